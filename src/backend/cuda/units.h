/* Kernels of class "q8_256" (units.cuh) for middling rows; the others are in cuda.h. */
#ifndef SL_BACKEND_CUDA_UNITS_H
#define SL_BACKEND_CUDA_UNITS_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

SL_CUDA_RUN(sl_cuda_linear_units_batch_q4_k);
const char *sl_cuda_units_batch_declines(const sl_kernel *kernel, const sl_kernel_query *query);
uint64_t sl_cuda_units_batch_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
/* Allows the kernels their shared memory. */
cudaError_t sl_cuda_units_batch_prepare(int most_bytes);

#ifdef __cplusplus
}
#endif
#endif
