/* The kernels of the AMX tier, the preferred first. What is not among them the lower tiers do. */
#include "backend/cpu/amx/amx.h"
#include "backend/cpu/matmul.h"

const sl_cpu_kernel sl_cpu_kernels_amx[] = {
    {.kernel = {.name = NULL}},
};
