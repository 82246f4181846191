/* What products of many rows on the tensor cores decline (bf16_tile_floats.cu). */
#ifndef SL_BACKEND_CUDA_LINEAR_BF16_BF16_TILE_H
#define SL_BACKEND_CUDA_LINEAR_BF16_BF16_TILE_H

#include "backend/cuda/linear/linear.h"

#ifdef __cplusplus
extern "C" {
#endif

const char *sl_bf16_tile_declines(const sl_kernel *kernel, const sl_kernel_query *query);
/* With wgmma; K16_TILE is for experts alone. */
const char *sl_bf16_tile_wgmma_declines(const sl_kernel *kernel, const sl_kernel_query *query);

#ifdef __cplusplus
}
#endif
#endif
