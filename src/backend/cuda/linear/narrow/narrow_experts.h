/* What eight-bit products of experts decline (narrow_experts.c). */
#ifndef SL_BACKEND_CUDA_LINEAR_NARROW_NARROW_EXPERTS_H
#define SL_BACKEND_CUDA_LINEAR_NARROW_NARROW_EXPERTS_H

#include "backend/cuda/linear/linear.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a step, and of an expert in the mean: with fewer, most of a tile would be rows that nobody has. */
enum { SL_NARROW_EXPERTS_LEAST_ROWS = 96, SL_NARROW_EXPERTS_LEAST_MEAN = 16 };

const char *sl_narrow_experts_declines(const sl_kernel *kernel, const sl_kernel_query *query);

#ifdef __cplusplus
}
#endif
#endif
