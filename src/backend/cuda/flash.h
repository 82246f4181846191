/* Between flash.cu, which chooses and merges, and flash_*.cu, which hold the kernels of a cache type each. */
#ifndef SL_BACKEND_CUDA_FLASH_H
#define SL_BACKEND_CUDA_FLASH_H

#include "backend/cuda/cuda.h"

enum {
    FLASH_CHUNK_TILES = 8,
    FLASH_PARTIAL_HEAD = 2 /* floats before a partial result: m (times log2 e) and l */
};

/* Passed to kernels by value. */
typedef struct flash_args {
    sl_op_attention attention;
    sl_cuda_operand q, gate, y;
    const float *sinks;
    float
        *partials; /* [row][head][splits][FLASH_PARTIAL_HEAD + value_size]; NULL: a block walks all chunks */
    int32_t splits;
    int32_t parts; /* blocks that share a unit's chunks, 1 without partials */
    int32_t ratio; /* query heads per key head */
} flash_args;

typedef struct flash_launch_shape {
    int32_t size; /* the larger of key and value size */
    int32_t rows, spans, kv_heads;
    bool few; /* the arrangement */
} flash_launch_shape;

#define FLASH_DECLARE(name)                                                                                  \
    cudaError_t sl_flash_launch_##name(const sl_cuda_context *context, const flash_args *args,               \
                                       const flash_launch_shape *shape, cudaStream_t stream);                \
    int32_t sl_flash_bytes_##name(int32_t size, bool few);                                                   \
    cudaError_t sl_flash_prepare_##name(int32_t most);
FLASH_DECLARE(f16)
FLASH_DECLARE(bf16)
FLASH_DECLARE(q8_0)
#undef FLASH_DECLARE
/* Devices of capability 9.0 only; heads up to 128. */
cudaError_t sl_flash_launch_wgmma(const sl_cuda_context *context, const flash_args *args,
                                  const flash_launch_shape *shape, cudaStream_t stream);
cudaError_t sl_flash_prepare_wgmma(void);

#endif
