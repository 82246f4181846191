/* The kernels of the AMX tier, the preferred first. What is not among them the lower tiers do. */
#include "backend/cpu/amx/amx.h"
#include "backend/cpu/matmul.h"

const sl_cpu_kernel sl_cpu_kernels_amx[] = {
    SL_LINEAR_ROW(BF16, "bf16", BF16, "bf16/tiles", amx, 32),
    SL_TIER_ROW(ATTENTION, attention, "tile64/bf16x3", SL_SPLIT_TOLERANCE, amx,
                SL_TIER(attention_workspace)),
    {.kernel = {.name = NULL}},
};
