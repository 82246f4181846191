/* The kernels of the AVX-512 tier, the preferred first. */
#include "backend/cpu/cpu.h"

const sl_cpu_kernel sl_cpu_kernels_avx512[] = {
    {.kernel = {.name = NULL}},
};
