/* What the files of the AVX-512 tier give its table. */
#ifndef SL_BACKEND_CPU_AVX512_AVX512_H
#define SL_BACKEND_CPU_AVX512_AVX512_H

#include "backend/cpu/cpu.h"

#define SL_AVX512_RUN(name)                                                                                            \
    void sl_avx512_##name(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads)

SL_AVX512_RUN(linear);
const char *sl_avx512_linear_declines(const sl_kernel *kernel, const sl_kernel_query *query);
uint64_t sl_avx512_linear_workspace(const sl_kernel *kernel, const sl_kernel_query *query);

#endif
