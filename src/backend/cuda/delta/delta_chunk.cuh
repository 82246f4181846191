/* What the launches of delta_chunk.cu share. */
#ifndef SL_BACKEND_CUDA_DELTA_DELTA_CHUNK_CUH
#define SL_BACKEND_CUDA_DELTA_DELTA_CHUNK_CUH

#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/ptx/copy.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/delta/delta.cuh"

#include <cuda_fp16.h>

enum {
    CHUNK = 64,
    SHORT_ROWS = 23, /* of a span; up to here the scan is faster */
    PREPARE_WARPS = 4,
    PREPARE_THREADS = PREPARE_WARPS * SL_WARP,
    SOLVED = 2, /* value heads solved side by side, with CHUNK threads each */
    SOLVE_STRIDE = CHUNK + 8,
    LOAD_WARPS = 2, /* of the walk */
    LOAD_THREADS = LOAD_WARPS * SL_WARP,
    SQUARE_STRIDE = CHUNK + 8, /* halves; rows 16 bytes apart in the banks */
    FACTORS = 3,               /* b, g, g_C / g_t */
    LEAST_ROWS = 32
};
#define MOST_SCRATCH (UINT64_C(512) << 20)
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

/* Left factor: rows [0, 16) and columns [0, 16) from `tile` on. */
static __device__ __forceinline__ void load_left(uint32_t *a, const __half *tile, int32_t stride) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    sl_load_matrices(sl_shared_address(tile + (lane % 16) * stride + lane / 16 * 8), a);
}

/* Right factors of two products, b[16][8] each: the transposes of rows [0, 8) and [8, 16), columns [0, 16).
 */
static __device__ __forceinline__ void load_right(uint32_t *b, const __half *tile, int32_t stride) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    sl_load_matrices(sl_shared_address(tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8), b);
}

/* As they lie: rows [0, 16), columns [0, 8) and [8, 16). */
static __device__ __forceinline__ void load_right_rows(uint32_t *b, const __half *tile, int32_t stride) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    sl_load_matrices_transposed(sl_shared_address(tile + (lane % 16) * stride + lane / 16 * 8), b);
}

/* Results [16][16], two neighbours of 8 columns, as a left factor. */
static __device__ __forceinline__ void as_left(uint32_t *a, const float *c0, const float *c1) {
    a[0] = pack(c0[0], c0[1]);
    a[1] = pack(c0[2], c0[3]);
    a[2] = pack(c1[0], c1[1]);
    a[3] = pack(c1[2], c1[3]);
}

static __device__ __forceinline__ void copy_16(void *to, const void *from) {
    sl_copy_16(sl_shared_address(to), from);
}

/* Zero where it is not there. */
static __device__ __forceinline__ void copy_4(void *to, const void *from, bool there) {
    sl_copy_4_of(sl_shared_address(to), from, there ? 4 : 0);
}

/* None where the scan goes row after row: there are few, or states between them are to be left. */
static __device__ __forceinline__ int32_t chunks_of(const sl_step_span &span) {
    return span.row_count > SHORT_ROWS && span.state_count <= 1 ? (span.row_count + CHUNK - 1) / CHUNK : 0;
}

#endif
