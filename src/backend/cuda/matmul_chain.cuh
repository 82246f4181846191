/* What products of few rows in class "bf16/k16" share (k16.h; matmul_thin.cuh, matmul_slim.cuh): chains of
 * mma.m16n8k16, one to a warp, x as their lanes want it, and boxes of weights. */
#ifndef SL_BACKEND_CUDA_MATMUL_CHAIN_CUH
#define SL_BACKEND_CUDA_MATMUL_CHAIN_CUH

#include "backend/cuda/hopper.cuh"
#include "backend/cuda/k16.h"
#include "backend/cuda/matmul_skinny.cuh"
#include "backend/cuda/matmul_thin_types.cuh"

enum { CHAIN_ROWS = 16 }; /* of weights, in a tile; with gates eight are gates and eight their values */

#if SL_HAS_WGMMA

/* ---- x: eight columns, a piece, at a time ---- */

/* Piece number `eight` of a row: of 64 columns lane t of a row's four has eight words one behind the other.
 */
template <int TYPE>
static __device__ __forceinline__ void chain_put_x(uint32_t *row, int32_t eight, uint4 words) {
    uint32_t *to = row + eight / 8 * 32 + eight / 2 % 4 * 2;
    const int32_t second = eight % 2;
    if constexpr (thin_layout<TYPE>::permuted) {
        *(uint2 *)(to + 16 * second) =
            make_uint2(__byte_perm(words.x, words.y, 0x5410), __byte_perm(words.x, words.y, 0x7632));
        *(uint2 *)(to + 16 * second + 8) =
            make_uint2(__byte_perm(words.z, words.w, 0x5410), __byte_perm(words.z, words.w, 0x7632));
    } else {
        to[second] = words.x;
        to[8 + second] = words.y;
        to[16 + second] = words.z;
        to[24 + second] = words.w;
    }
}

/* ---- the chain ---- */

static __device__ __forceinline__ void chain_multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t low,
                                                      uint32_t high) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high));
}

/* No branch: what is behind one waits for products. */
static __device__ __forceinline__ void chain_arrive_if(uint32_t barrier, bool arrives) {
    asm volatile("{\n"
                 ".reg .pred arrives;\n"
                 "setp.ne.u32 arrives, %1, 0;\n"
                 "@arrives mbarrier.arrive.shared::cta.b64 _, [%0];\n"
                 "}" ::"r"(barrier),
                 "r"((uint32_t)arrives)
                 : "memory");
}

/* The warp's number, the same in all lanes, which the compiler sees. */
static __device__ __forceinline__ int32_t chain_warp(void) {
    return __shfl_sync(SL_FULL_WARP, (int32_t)threadIdx.x / SL_WARP, 0);
}
#endif

/* ---- launches ---- */

/* With an ACTIVATE and a QUANTIZE behind a LINEAR. Returns the tiles. */
template <typename ARGS> static int32_t chain_gate(const sl_cuda_op *op, int32_t behind, ARGS *args) {
    const int32_t width = op[behind].op->u.activate.width;
    if (args->segments == 1) { /* gates and values are one weight */
        args->weights[1] = args->weights[0];
        args->weights[1].data += (uint64_t)width * args->weights[0].row_bytes;
        args->weights[0].rows = args->weights[1].rows = width;
    }
    args->gated = op[behind + 1].out[0];
    args->function = op[behind].op->u.activate.function;
    return (width + CHAIN_ROWS / 2 - 1) / (CHAIN_ROWS / 2);
}

/* Boxes of a tile's rows of a slot's columns. */
template <typename LAYOUT, typename ARGS> static cudaError_t chain_make_maps(ARGS *args) {
    return skinny_weight_maps(args->weights, LAYOUT::stride / 2,
                              args->gated.data ? CHAIN_ROWS / 2u : (uint32_t)CHAIN_ROWS, args->maps);
}

#endif
