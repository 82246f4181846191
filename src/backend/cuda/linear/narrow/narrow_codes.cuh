/* A thread's 32 columns of a weight row as eight-bit codes: narrow_weights.h says which. */
#ifndef SL_BACKEND_CUDA_LINEAR_NARROW_NARROW_CODES_CUH
#define SL_BACKEND_CUDA_LINEAR_NARROW_NARROW_CODES_CUH

#include "backend/cuda/common/quad.cuh"
#include "backend/cuda/linear/narrow/narrow.h"
#include "backend/cuda/types/types.cuh"

enum { WEIGHT_COLUMNS = 32, WEIGHT_QUADS = WEIGHT_COLUMNS / SL_QUAD };

/* What a thread makes: codes in memory's order, and its group's scale. */
typedef struct weight_codes {
    uint32_t words[WEIGHT_QUADS];
    float scale;
} weight_codes;

/* Codes as they are in the file. */
static __device__ __forceinline__ void take_codes(const unsigned char *chunk, uint32_t index,
                                                  weight_codes *made) {
    const uint32_t *block = (const uint32_t *)(chunk + index / 4 * SL_FP8_128_BYTES);
    made->scale = __uint_as_float(block[0]);
#pragma unroll
    for (int i = 0; i < WEIGHT_QUADS; i++) {
        made->words[i] = block[1 + index % 4 * WEIGHT_QUADS + i];
    }
}

/* sl_group_values. With a minimum the product has 22 bits at most, so that fusing gives the same bits. */
template <int TYPE> static __device__ __forceinline__ float4 code_values(const sl_group32 &group, int i) {
    typedef sl_group_kind<TYPE> kind;
    if constexpr (kind::HAS_MIN && !kind::HAS_FACTORS && !kind::HAS_MIN_FACTORS) {
        const int32_t word = group.words[i];
        return make_float4(fmaf(group.scale, (float)(int8_t)word, -group.min),
                           fmaf(group.scale, (float)(int8_t)(word >> 8), -group.min),
                           fmaf(group.scale, (float)(int8_t)(word >> 16), -group.min),
                           fmaf(group.scale, (float)(int8_t)(word >> 24), -group.min));
    } else {
        return sl_group_values<TYPE>(group, i);
    }
}

/* By whole warps. */
template <int TYPE, int KIND>
static __device__ __forceinline__ void make_codes(const unsigned char *chunk, uint32_t index,
                                                  weight_codes *made) {
    constexpr bool E4M3 = KIND == SL_NARROW_E4M3;
    constexpr int GROUP = E4M3 ? SL_NARROW_E4M3_GROUP : SL_NARROW_S8_GROUP;
    constexpr float MOST = E4M3 ? SL_E4M3_LARGEST : 127.0f;
    sl_group32 group;
    float4 quads[WEIGHT_QUADS];
    float largest = 0;
    sl_load_group<TYPE>(chunk, (int32_t)index, &group);
#pragma unroll
    for (int i = 0; i < WEIGHT_QUADS; i++) {
        quads[i] = code_values<TYPE>(group, i);
        const float here = sl_larger(sl_larger(quads[i].x, quads[i].y), sl_larger(quads[i].z, quads[i].w));
        largest = sl_larger(largest, here);
    }
#pragma unroll
    for (int distance = 1; distance < GROUP / WEIGHT_COLUMNS; distance *= 2) {
        largest = sl_larger(largest, __shfl_xor_sync(SL_FULL_WARP, largest, distance));
    }
    const bool usable = sl_is_usable(largest);
    const float inverse = MOST / largest;
    made->scale = usable ? largest / MOST : sl_unusable_scale(largest);
#pragma unroll
    for (int i = 0; i < WEIGHT_QUADS; i++) {
        const float4 scaled = sl_map_quad(quads[i], [inverse](float v) { return v * inverse; });
        made->words[i] = !usable ? 0 : E4M3 ? sl_e4m3_quad(scaled) : sl_whole_quad(scaled);
    }
}

#endif
