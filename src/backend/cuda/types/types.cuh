/* Every type of weights, and what is done with any of them. */
#ifndef SL_BACKEND_CUDA_TYPES_TYPES_CUH
#define SL_BACKEND_CUDA_TYPES_TYPES_CUH

#include "backend/cuda/types/codebook.cuh"
#include "backend/cuda/types/floats.cuh"
#include "backend/cuda/types/fp8_128.cuh"
#include "backend/cuda/types/iq4.cuh"
#include "backend/cuda/types/mxfp4.cuh"
#include "backend/cuda/types/nvfp4.cuh"
#include "backend/cuda/types/q2_k.cuh"
#include "backend/cuda/types/q3_k.cuh"
#include "backend/cuda/types/q4_0.cuh"
#include "backend/cuda/types/q4_1.cuh"
#include "backend/cuda/types/q4_k.cuh"
#include "backend/cuda/types/q5.cuh"
#include "backend/cuda/types/q5_k.cuh"
#include "backend/cuda/types/q6_k.cuh"
#include "backend/cuda/types/q8_0.cuh"

/* sl_row_element of a type that the compiler does not know. */
static __device__ __forceinline__ float sl_decode(sl_qtype type, const unsigned char *row, uint64_t row_bytes,
                                                  int32_t i) {
    switch (type) {
#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes)                                           \
    case SL_QTYPE_##ID:                                                                                      \
        return sl_row_element<SL_QTYPE_##ID>(row, row_bytes, i);
#include "quant/qtypes.def"
#undef SL_QTYPE
    default: /* there is no other */
        return 0;
    }
}

template <sl_qtype TYPE>
static __device__ __forceinline__ float4 sl_decode_quad_of(const unsigned char *row, uint64_t row_bytes,
                                                           int32_t i) {
    const int32_t first = i & ~(3); /* what a group has in common is decoded once */
    return make_float4(
        sl_row_element<TYPE>(row, row_bytes, first), sl_row_element<TYPE>(row, row_bytes, first | 1),
        sl_row_element<TYPE>(row, row_bytes, first | 2), sl_row_element<TYPE>(row, row_bytes, first | 3));
}

/* Elements [i, i + 4) of a row of any type; i is a multiple of 4. */
static __device__ __noinline__ float4 sl_decode_quad(sl_qtype type, const unsigned char *row,
                                                     uint64_t row_bytes, int32_t i) {
    switch (type) {
#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes)                                           \
    case SL_QTYPE_##ID:                                                                                      \
        return sl_decode_quad_of<SL_QTYPE_##ID>(row, row_bytes, i);
#include "quant/qtypes.def"
#undef SL_QTYPE
    default:
        return make_float4(0, 0, 0, 0);
    }
}

#endif
