/* MXFP4. */
#ifndef SL_BACKEND_CUDA_TYPES_MXFP4_CUH
#define SL_BACKEND_CUDA_TYPES_MXFP4_CUH

#include "backend/cuda/types/blocks.cuh"
#include "backend/cuda/types/type.cuh"

template <> __device__ __forceinline__ float sl_element<SL_QTYPE_MXFP4>(const unsigned char *row, int32_t i) {
    const sl_block_mxfp4 *block = (const sl_block_mxfp4 *)row + i / 32;
    const int quant = (block->quants[i % 16] >> 4 * (i % 32 / 16)) & 15;
    return (float)sl_mxfp4_value((uint32_t)quant) * sl_mxfp4_scale(block->exponent);
}

template <>
__device__ __forceinline__ void sl_load_group<SL_QTYPE_MXFP4>(const unsigned char *row, int32_t g,
                                                              sl_group32 *w) {
    const unsigned char *block = row + (uint64_t)g * SL_MXFP4_BYTES;
    uint32_t words[4];
    sl_load_words<4>(block + 1, words);
    w->scale = sl_mxfp4_scale(block[0]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sl_look_up(SL_MXFP4_VALUES_0, SL_MXFP4_VALUES_1, words[i], &w->words[i], &w->words[4 + i]);
    }
}

template <>
struct decode_part<SL_QTYPE_MXFP4> : decode_part_of_group<SL_QTYPE_MXFP4, SL_MXFP4_ELEMENTS, SL_MXFP4_BYTES> {
};

/* The bits of sl_mxfp4_scale, without a choice: where one of both numbers is the scale's bits, the other is
 * smaller. */
static __device__ __forceinline__ float sl_mxfp4_scale_of(uint32_t exponent) {
    const int32_t normal = (int32_t)(exponent * 0x00800000u - 0x00800000u);
    const int32_t subnormal = (int32_t)(exponent * 0x00200000u + 0x00200000u);
    return __int_as_float(max(normal, subnormal));
}

/* 12 + sl_mxfp4_value(0..7), and 12 - it */
#define SL_MXFP4_POSITIVES 0x181412100f0e0d0cull
#define SL_MXFP4_NEGATIVES 0x00040608090a0b0cull

template <> struct sl_block32<SL_QTYPE_MXFP4> : sl_block32_of<SL_QTYPE_MXFP4> {
    enum { TABLE = 1, WIDE = 1, OFFSET = 12 };
    static constexpr uint64_t VALUES_0 = SL_MXFP4_VALUES_0, VALUES_1 = SL_MXFP4_VALUES_1;
    template <typename WORDS>
    static __device__ __forceinline__ uint32_t nibbles(const WORDS &w, int g, int32_t i) {
        return w.word(SL_MXFP4_BYTES * g + 1, i);
    }
    template <typename WORDS> static __device__ __forceinline__ float scale(const WORDS &w, int g) {
        const int at = SL_MXFP4_BYTES * g;
        return sl_mxfp4_scale(w.word(at / 4 * 4, 0) >> 8 * (at % 4) & 255u);
    }
    template <typename WORDS>
    static __device__ __forceinline__ void quants(const WORDS &w, int g, int32_t i, uint32_t quants[2],
                                                  uint32_t *) {
        const uint32_t own = sl_block32::nibbles(w, g, i), turned = own ^ 0x88888888u;
        quants[0] = sl_table_bytes(SL_MXFP4_POSITIVES, own) | sl_table_bytes(SL_MXFP4_NEGATIVES, turned);
        quants[1] =
            sl_table_bytes(SL_MXFP4_POSITIVES, own >> 16) | sl_table_bytes(SL_MXFP4_NEGATIVES, turned >> 16);
    }
};

#endif
