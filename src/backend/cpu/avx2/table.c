/* The kernels of the AVX2 tier, the preferred first. */
#include "backend/cpu/cpu.h"

const sl_cpu_kernel sl_cpu_kernels_avx2[] = {
    {.kernel = {.name = NULL}},
};
