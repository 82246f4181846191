/* Between mma.cu, which chooses and merges, and mma_*.cu, which hold the kernels of a cache type each. */
#ifndef SL_BACKEND_CUDA_ATTENTION_MMA_H
#define SL_BACKEND_CUDA_ATTENTION_MMA_H

#include "backend/cuda/attention/decoded_cache.h"
#include "backend/cuda/attention/latent/direct.h"

#ifdef __CUDACC__
#define MMA_INLINE static __host__ __device__ __forceinline__
#else
#define MMA_INLINE static inline
#endif

enum {
    MMA_CHUNK_TILES = 8,
    MMA_PARTIAL_HEAD = 2 /* floats before a partial result: m (times log2 e) and l */
};

/* Chunks of 4 tiles among the first 256 tiles, of 8 among the next 256, then twice as long wherever the
 * number of tiles doubles: a context of any length has few enough to add, and short ones enough to share. */
enum { GROWING_CHUNK_SHIFT = 2, GROWING_EVEN_TILES = 256, GROWING_EVEN_CHUNKS = 64 };

/* Which chunk a tile is of. */
MMA_INLINE int32_t growing_chunk_of(int32_t tile) {
    int32_t chunk = 0, shift = GROWING_CHUNK_SHIFT, begin = 0, end = GROWING_EVEN_TILES;
    for (; tile >= end; end *= 2, shift++) {
        chunk += (end - begin) >> shift;
        begin = end;
    }
    return chunk + ((tile - begin) >> shift);
}

/* The first tile of a chunk. */
MMA_INLINE int32_t growing_chunk_begin(int32_t chunk) {
    if (chunk < GROWING_EVEN_CHUNKS) {
        return chunk << GROWING_CHUNK_SHIFT;
    }
    const int32_t half = GROWING_EVEN_CHUNKS / 2, doubled = (chunk - GROWING_EVEN_CHUNKS) / half;
    return (GROWING_EVEN_TILES << doubled) +
           ((chunk - GROWING_EVEN_CHUNKS) % half << (GROWING_CHUNK_SHIFT + 1 + doubled));
}

/* Ranges of keys by which blocks share the few rows of a prompt: four such chunks each, 1024 keys or more. */
enum { RANGE_CHUNKS = 4, RANGE_TILES = RANGE_CHUNKS << GROWING_CHUNK_SHIFT };

MMA_INLINE int32_t mma_range_of(int32_t tile) {
    return growing_chunk_of(tile) / RANGE_CHUNKS;
}

/* Passed to kernels by value. */
typedef struct mma_args {
    sl_op_attention attention;
    sl_cuda_operand q, gate, y;
    const float *sinks;
    /* [row][head][splits][MMA_PARTIAL_HEAD + value_size]; NULL: a block walks all chunks. wgmma: of a row
     * from its first range on, with DECODE_HEAD. */
    float *partials;
    int32_t splits;
    int32_t parts;    /* blocks that share a unit's chunks, 1 without partials */
    int32_t ratio;    /* query heads per key head */
    bool beside;      /* wgmma: spans of one row are the next launch's, which begins beside this one */
    sl_direct direct; /* wgmma, latent: whose rows it has */
    sl_decoded_slots decoded; /* wgmma: of these again those */
} mma_args;

typedef struct mma_launch_shape {
    int32_t size; /* the larger of key and value size */
    int32_t rows, spans, kv_heads;
    bool few;    /* the arrangement */
    bool uneven; /* wgmma: keys to 192 and values to 128 */
} mma_launch_shape;

/* The kernels of one type of cache, mma_kernel.cuh. */
typedef struct sl_mma_type {
    sl_qtype type;
    cudaError_t (*launch)(const sl_cuda_context *context, const mma_args *args, const mma_launch_shape *shape,
                          cudaStream_t stream);
    int32_t (*bytes)(int32_t size, bool few);
    cudaError_t (*prepare)(int32_t most);
} sl_mma_type;

/* Most runs of `units` units in a step. Each span may leave one partly empty. */
static inline int32_t mma_runs(int32_t rows, int32_t spans, int32_t ratio, int32_t units) {
    const int32_t runs = rows * ratio / units + spans;
    return ratio <= units && rows < runs ? rows : runs;
}

/* What a row's keys are cut into where few rows have many keys, see decode.cuh. */
enum {
    DECODE_MOST_ROWS = 64,
    DECODE_MOST_SPANS = 512, /* rows too, where each is a span of its own */
    DECODE_PARTS = 128,      /* of all key heads together: about one for each multiprocessor */
    DECODE_LEAST_TILES = 4,  /* of a part */
    DECODE_HEAD = 4          /* floats before a partial result: m (times log2 e), l and two unused */
};

/* Tiles of a part, for a row whose last key lies in the tile before `tiles`. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int32_t
    decode_part_tiles(int32_t tiles, int32_t window, int32_t kv_heads) {
    const int32_t keys = window < 0 ? -window : window;
    const int32_t most = keys > 0 ? (keys + SL_PAGE_TOKENS - 2) / SL_PAGE_TOKENS + 1 : tiles;
    const int32_t seen = most < tiles ? most : tiles;
    const int32_t each = (seen * kv_heads + DECODE_PARTS - 1) / DECODE_PARTS;
    return each > DECODE_LEAST_TILES ? each : DECODE_LEAST_TILES;
}

/* Most parts that a run of units can have. */
static inline int32_t decode_most_parts(int32_t kv_heads) {
    return (DECODE_PARTS + kv_heads - 1) / kv_heads + 1;
}

struct sl_heads_args;

typedef struct decode_args {
    sl_op_attention attention;
    sl_cuda_operand q, gate, y; /* y.data is NULL when only `quantized` is asked for */
    sl_cuda_operand quantized;  /* y as a linear reads it; data is NULL when that is not asked for */
    const float *sinks;
    float *partials;    /* [row][head][most_parts][DECODE_HEAD + value_size]: m and l, y */
    uint32_t *arrivals; /* [row][head]: parts done, 0 before a launch and after it */
    int32_t most_parts;
    int32_t ratio;      /* query heads per key head */
    int32_t spans;      /* at most */
    int32_t rows;       /* of the bucket */
    int32_t item_parts; /* parts that a block does one after the other */
    int32_t groups;     /* blocks that share the parts of a run, at most */
    int32_t part_tiles; /* of a part, where the class is "mma64/split512"; 0: decode_part_tiles() says */
    int32_t layers;     /* of a page */
    /* Takes the step's spans of one row, of which item_parts is all parts. The launch in front, whose blocks
     * let this one begin behind their own inputs, has the others. */
    bool beside;
} decode_args;

/* The kernels of one type of cache, decode_launch.cuh. heads: what makes the heads of q and k in the same
 * launch, see heads.cuh; NULL: q is made, k and v are in the cache. */
typedef struct sl_decode_type {
    cudaError_t (*launch)(const sl_cuda_context *context, const decode_args *args,
                          const struct sl_heads_args *heads, const mma_launch_shape *shape,
                          cudaStream_t stream);
    cudaError_t (*prepare)(void);
} sl_decode_type;

extern const sl_mma_type sl_mma_cache_f16, sl_mma_cache_bf16, sl_mma_cache_q8_0, sl_mma_cache_fp8;
extern const sl_decode_type sl_decode_cache_f16, sl_decode_cache_bf16, sl_decode_cache_q8_0,
    sl_decode_cache_fp8;

/* Devices of capability 9.0 only. split: class "mma64/split512", heads up to 128. With partials the rows are
 * left there by ranges of their keys, to be merged, but for those of one range. */
cudaError_t sl_wgmma_prompt_launch(const sl_cuda_context *context, const mma_args *args,
                                   const mma_launch_shape *shape, cudaStream_t stream);
cudaError_t sl_wgmma_prompt_launch_split(const sl_cuda_context *context, const mma_args *args,
                                         const mma_launch_shape *shape, cudaStream_t stream);
cudaError_t sl_wgmma_prompt_prepare(void);

#endif
