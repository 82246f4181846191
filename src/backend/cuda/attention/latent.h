/* Between latent.cu, which chooses, and inst/latent_*.cu, which hold the kernels of a cache type each. */
#ifndef SL_BACKEND_CUDA_ATTENTION_LATENT_H
#define SL_BACKEND_CUDA_ATTENTION_LATENT_H

#include "backend/cuda/attention/mma.h"

#ifdef __CUDACC__
#define LATENT_INLINE static __host__ __device__ __forceinline__
#else
#define LATENT_INLINE static inline
#endif

/* Chunks of 4 tiles among the first 256 tiles, of 8 among the next 256, then twice as long wherever the
 * number of tiles doubles: a context of any length has few enough to add, and short ones enough to share. */
enum { LATENT_CHUNK_SHIFT = 2, LATENT_EVEN_TILES = 256, LATENT_EVEN_CHUNKS = 64 };

/* Which chunk a tile is of. */
LATENT_INLINE int32_t latent_chunk_of(int32_t tile) {
    int32_t chunk = 0, shift = LATENT_CHUNK_SHIFT, begin = 0, end = LATENT_EVEN_TILES;
    for (; tile >= end; end *= 2, shift++) {
        chunk += (end - begin) >> shift;
        begin = end;
    }
    return chunk + ((tile - begin) >> shift);
}

/* The first tile of a chunk. */
LATENT_INLINE int32_t latent_chunk_begin(int32_t chunk) {
    if (chunk < LATENT_EVEN_CHUNKS) {
        return chunk << LATENT_CHUNK_SHIFT;
    }
    const int32_t half = LATENT_EVEN_CHUNKS / 2, doubled = (chunk - LATENT_EVEN_CHUNKS) / half;
    return (LATENT_EVEN_TILES << doubled) +
           ((chunk - LATENT_EVEN_CHUNKS) % half << (LATENT_CHUNK_SHIFT + 1 + doubled));
}

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
