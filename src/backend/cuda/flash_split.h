/* Attention of the class "mma64/split512" with wgmma: devices of capability 9.0, heads up to 128. */
#ifndef SL_BACKEND_CUDA_FLASH_SPLIT_H
#define SL_BACKEND_CUDA_FLASH_SPLIT_H

#include "backend/cuda/flash.h"

#ifdef __cplusplus
extern "C" {
#endif

SL_CUDA_RUN(sl_cuda_flash_wgmma_split);

#ifdef __cplusplus
}
cudaError_t sl_flash_launch_wgmma_split(const sl_cuda_context *context, const flash_args *args,
                                        const flash_launch_shape *shape, cudaStream_t stream);
#endif
#endif
