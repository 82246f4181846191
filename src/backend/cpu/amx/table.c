/* The kernels of the AMX tier, the preferred first. What is not among them the lower tiers do. */
#include "backend/cpu/amx/amx.h"
#include "backend/cpu/matmul.h"

const sl_cpu_kernel sl_cpu_kernels_amx[] = {
    SL_LINEAR_ROW(BF16, "bf16", BF16, "bf16/tiles", amx, 32),
    {.kernel = {.name = NULL}},
};
