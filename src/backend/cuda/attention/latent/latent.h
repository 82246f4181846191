/* Between latent.cu, which chooses, and inst/latent_*.cu, which hold the kernels of a cache type each. */
#ifndef SL_BACKEND_CUDA_ATTENTION_LATENT_H
#define SL_BACKEND_CUDA_ATTENTION_LATENT_H

#include "backend/cuda/attention/mma.h"

/* What a launch is for: its instance follows from sizes and device. */
typedef struct latent_launch_shape {
    int32_t key_size, value_size;
    int32_t rows, spans, kv_heads;
    bool wide; /* blocks of 64 units, where the device has room for them */
} latent_launch_shape;

/* The kernels of one type of cache, latent_kernel.cuh. */
typedef struct sl_latent_type {
    sl_qtype type;
    cudaError_t (*launch)(const sl_cuda_context *context, const mma_args *args,
                          const latent_launch_shape *shape, cudaStream_t stream);
    /* Shared memory that a block needs at least; 0: there is none for these sizes. */
    int32_t (*bytes)(int32_t key_size, int32_t value_size);
    cudaError_t (*prepare)(int32_t most);
} sl_latent_type;

extern const sl_latent_type sl_latent_cache_f16, sl_latent_cache_bf16, sl_latent_cache_q8_0,
    sl_latent_cache_fp8;

/* latent_wgmma.cu: devices of capability 9.0 only, caches of f16 and bf16, no windows. */
cudaError_t sl_latent_wgmma_launch(const sl_cuda_context *context, const mma_args *args,
                                   const latent_launch_shape *shape, cudaStream_t stream);
cudaError_t sl_latent_wgmma_prepare(void);

#endif
