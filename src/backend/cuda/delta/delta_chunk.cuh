/* What the launches of delta_chunk.cu share. */
#ifndef SL_BACKEND_CUDA_DELTA_DELTA_CHUNK_CUH
#define SL_BACKEND_CUDA_DELTA_DELTA_CHUNK_CUH

#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/delta/chunks.cuh"

#include <cuda_fp16.h>

enum {
    CHUNK = 64,
    PREPARE_WARPS = 4,
    PREPARE_THREADS = PREPARE_WARPS * SL_WARP,
    SOLVED = 2, /* value heads solved side by side, with CHUNK threads each */
    SOLVE_STRIDE = CHUNK + 8,
    LOAD_WARPS = 2, /* of the walk */
    LOAD_THREADS = LOAD_WARPS * SL_WARP,
    SQUARE_STRIDE = CHUNK + 8, /* halves; rows 16 bytes apart in the banks */
    FACTORS = 3                /* b, g, g_C / g_t */
};
#define LEAST_DECAY (-200.0f) /* of a logarithm: its power is 0 */
#define LOG2_E 1.44269504088896341f

/* What the first launch leaves for the second; chunks of all spans one after the other. */
typedef struct chunk_memory {
    __half *k, *q;            /* [chunks][key_heads][CHUNK][key_size] */
    __half *solved, *weights; /* T and P: [chunks][value_heads][CHUNK][CHUNK] */
    float *factors;           /* [chunks][value_heads][FACTORS][CHUNK] */
} chunk_memory;

/* ---- pieces ---- */

static __device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* Results [16][16], two neighbours of 8 columns, as a left factor. */
static __device__ __forceinline__ void as_left(uint32_t *a, const float *c0, const float *c1) {
    a[0] = pack(c0[0], c0[1]);
    a[1] = pack(c0[2], c0[3]);
    a[2] = pack(c1[0], c1[1]);
    a[3] = pack(c1[2], c1[3]);
}

#endif
