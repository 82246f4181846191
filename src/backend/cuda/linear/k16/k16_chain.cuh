/* What products of few rows in class "bf16/k16" share (k16.h; k16_rows4.cuh, k16_rows8.cuh): chains of
 * mma.m16n8k16, one to a warp, x as their lanes want it, and boxes of weights. */
#ifndef SL_BACKEND_CUDA_LINEAR_K16_K16_CHAIN_CUH
#define SL_BACKEND_CUDA_LINEAR_K16_K16_CHAIN_CUH

#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/wgmma.cuh"
#include "backend/cuda/linear/k16/k16.h"
#include "backend/cuda/linear/bf16/bf16_rows128.cuh"
#include "backend/cuda/linear/k16/k16_rows8_types.cuh"

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
