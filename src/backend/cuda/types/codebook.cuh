/* IQ1, IQ2, IQ3 and the ternary types: groups of codes, as quant/codebook.h reads them. */
#ifndef SL_BACKEND_CUDA_TYPES_CODEBOOK_CUH
#define SL_BACKEND_CUDA_TYPES_CODEBOOK_CUH

#include "backend/cuda/types/type.cuh"
#include "quant/codebook.h"

static __device__ __forceinline__ void sl_group_of_codes(const sl_codes32 &codes, uint64_t values_0,
                                                         uint64_t values_1, sl_group32 *w) {
    w->scale = codes.scale;
    w->factor0 = codes.factor[0];
    w->factor1 = codes.factor[1];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int32_t even, odd;
        sl_look_up(values_0, values_1, codes.codes[k], &even, &odd);
        w->words[2 * k] = (int32_t)__byte_perm((uint32_t)even, (uint32_t)odd, 0x5140);
        w->words[2 * k + 1] = (int32_t)__byte_perm((uint32_t)even, (uint32_t)odd, 0x7362);
    }
}

#define SL_CODEBOOK_TYPE(ID, name, table)                                                                    \
    template <>                                                                                              \
    __device__ __forceinline__ float sl_element<SL_QTYPE_##ID>(const unsigned char *row, int32_t i) {        \
        sl_codes32 group;                                                                                    \
        sl_codes_##name((const sl_block_##name *)row + i / 256, (uint32_t)i % 256 / 32, &group);             \
        const uint32_t code = group.codes[i % 32 / 8] >> 4 * (i % 8) & 15u;                                  \
        return group.scale * (float)group.factor[i % 32 / 16] *                                              \
               (float)sl_code_value(SL_##table##_VALUES_0, SL_##table##_VALUES_1, code);                     \
    }                                                                                                        \
    template <> struct sl_group_kind<SL_QTYPE_##ID> : sl_group_kind_of<false, true> {};                      \
    template <>                                                                                              \
    __device__ __forceinline__ void sl_load_group<SL_QTYPE_##ID>(const unsigned char *row, int32_t g,        \
                                                                 sl_group32 *w) {                            \
        sl_codes32 group;                                                                                    \
        sl_codes_##name((const sl_block_##name *)row + g / 8, (uint32_t)g % 8, &group);                      \
        sl_group_of_codes(group, SL_##table##_VALUES_0, SL_##table##_VALUES_1, w);                           \
    }                                                                                                        \
    template <>                                                                                              \
    struct decode_part<SL_QTYPE_##ID>                                                                        \
        : decode_part_of_group<SL_QTYPE_##ID, SL_##ID##_ELEMENTS, SL_##ID##_BYTES> {};
SL_EACH_CODEBOOK_TYPE(SL_CODEBOOK_TYPE)

#endif
