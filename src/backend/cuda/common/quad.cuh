/* Quads: four neighbouring elements of a row, which one thread keeps in registers. */
#ifndef SL_BACKEND_CUDA_COMMON_QUAD_CUH
#define SL_BACKEND_CUDA_COMMON_QUAD_CUH

#include "backend/cuda/common/device.cuh"

enum { SL_QUAD = 4 };

/* ---- quads ---- */

/* Whether quads of an operand that begin at multiples of 4 can be loaded and stored as one. Values begin at
 * multiples of 256. */
static inline bool sl_in_quads(const sl_cuda_operand &operand) {
    const uint64_t quad = operand.type == SL_VALUE_BF16 ? 8 : 16;
    return !operand.data || operand.type == SL_VALUE_Q8_32 ||
           (operand.column % SL_QUAD == 0 && operand.row_bytes % quad == 0);
}

/* Elements [i, i + 4) of a row that ends at `width`; what lies behind counts as 0. ALIGNED: width is a
 * multiple of 4. */
template <bool ALIGNED>
static __device__ __forceinline__ float4 sl_load_quad(const float *row, int32_t i, int32_t width) {
    if (ALIGNED) {
        return *(const float4 *)(const void *)(row + i);
    }
    return make_float4(row[i], i + 1 < width ? row[i + 1] : 0.0f, i + 2 < width ? row[i + 2] : 0.0f,
                       i + 3 < width ? row[i + 3] : 0.0f);
}

template <bool ALIGNED>
static __device__ __forceinline__ void sl_store_quad(float *row, int32_t i, int32_t width, float4 quad) {
    if (ALIGNED) {
        *(float4 *)(void *)(row + i) = quad;
        return;
    }
    const float values[SL_QUAD] = {quad.x, quad.y, quad.z, quad.w};
    for (int32_t k = 0; k < SL_QUAD && i + k < width; k++) {
        row[i + k] = values[k];
    }
}

template <typename FUNCTION>
static __device__ __forceinline__ float4 sl_map_quad(float4 a, FUNCTION function) {
    return make_float4(function(a.x), function(a.y), function(a.z), function(a.w));
}

template <typename FUNCTION>
static __device__ __forceinline__ float4 sl_map_quads(float4 a, float4 b, FUNCTION function) {
    return make_float4(function(a.x, b.x), function(a.y, b.y), function(a.z, b.z), function(a.w, b.w));
}

static __device__ __forceinline__ float4 sl_add_quads(float4 a, float4 b) {
    return sl_map_quads(a, b, [](float x, float y) { return x + y; });
}

/* Elements [i, i + 4) of a product in ranges, which are added one after the other; `from`: of the first. */
static __device__ __forceinline__ float4 sl_add_ranges(const sl_cuda_ranges &ranges, const float *from,
                                                       int32_t i) {
    enum { AT_ONCE = 6 };
    const unsigned char *at = (const unsigned char *)(from + i);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int32_t first = 0; first < ranges.count; first += AT_ONCE) {
        float4 parts[AT_ONCE];
#pragma unroll
        for (int32_t r = 0; r < AT_ONCE; r++) {
            if (first + r < ranges.count) {
                parts[r] = *(const float4 *)(const void *)at;
                at += ranges.bytes;
            }
        }
#pragma unroll
        for (int32_t r = 0; r < AT_ONCE; r++) {
            if (first + r < ranges.count) {
                sum = first + r == 0 ? parts[r] : sl_add_quads(sum, parts[r]);
            }
        }
    }
    return sum;
}

/* ---- quantize ---- */

/* The larger of two magnitudes; a NaN if one is. */
static __device__ __forceinline__ float sl_larger(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(fabsf(a)), "f"(fabsf(b)));
    return larger;
}

/* Whether a group with that largest magnitude has codes other than 0; and its scale if it has not. */
static __device__ __forceinline__ bool sl_is_usable(float largest) {
    return largest >= SL_Q8_32_ZERO_BELOW && largest <= 3.40282347e+38f;
}
static __device__ __forceinline__ float sl_unusable_scale(float largest) {
    return largest < SL_Q8_32_ZERO_BELOW ? 0.0f : sl_f32_from_bits(0x7fc00000u);
}

/* The nearest whole numbers of magnitudes up to 127, ties to even, in memory's order: adding 1.5 * 2^23
 * rounds, and they are then in the lower bits. */
static __device__ __forceinline__ uint32_t sl_whole_quad(float4 quad) {
    const float4 whole = sl_map_quad(quad, [](float v) { return v + 12582912.0f; });
    const uint32_t low = __byte_perm(sl_f32_bits(whole.x), sl_f32_bits(whole.y), 0x0040);
    const uint32_t high = __byte_perm(sl_f32_bits(whole.z), sl_f32_bits(whole.w), 0x0040);
    return __byte_perm(low, high, 0x5410);
}

/* Eight neighbouring lanes hold a group of 32; lanes without a quad hold zeros and store nothing. `lanes`:
 * those that are here, a lane's own group at least. The bits of sl_q8_32_encode. */
static __device__ __forceinline__ void sl_quantize_group(float4 quad, const sl_q8_32 &row, int32_t i,
                                                         bool active, uint32_t lanes = SL_FULL_WARP) {
    float largest = sl_larger(sl_larger(quad.x, quad.y), sl_larger(quad.z, quad.w));
#pragma unroll
    for (int distance = 1; distance < SL_Q8_32_GROUP / SL_QUAD; distance *= 2) {
        largest = sl_larger(largest, __shfl_xor_sync(lanes, largest, distance));
    }
    const bool usable = sl_is_usable(largest);
    const float inverse = 127.0f / largest;
    const float4 scaled = sl_map_quad(quad, [inverse](float v) { return v * inverse; });
    const uint32_t packed = usable ? sl_whole_quad(scaled) : 0;
    int sum = __dp4a((int)packed, 0x01010101, 0);
#pragma unroll
    for (int distance = 1; distance < SL_Q8_32_GROUP / SL_QUAD; distance *= 2) {
        sum += __shfl_xor_sync(lanes, sum, distance);
    }
    if (!active) {
        return;
    }
    *(uint32_t *)(void *)(row.values + i) = packed;
    if (i % SL_Q8_32_GROUP == 0) {
        row.sums[i / SL_Q8_32_GROUP] = sum;
        row.scales[i / SL_Q8_32_GROUP] = usable ? largest / 127.0f : sl_unusable_scale(largest);
    }
}

static __device__ __forceinline__ bool sl_has_nan(float4 quad) {
    return quad.x != quad.x || quad.y != quad.y || quad.z != quad.z || quad.w != quad.w;
}

/* As sl_f32_to_bf16 and sl_f32_to_f16, in memory's order. The instructions agree with them but for NaNs. */
static __device__ __forceinline__ uint2 sl_bf16_quad(float4 quad) {
    uint2 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed.x) : "f"(quad.y), "f"(quad.x));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed.y) : "f"(quad.w), "f"(quad.z));
    if (sl_has_nan(quad)) {
        packed.x = sl_f32_to_bf16(quad.x) | (uint32_t)sl_f32_to_bf16(quad.y) << 16;
        packed.y = sl_f32_to_bf16(quad.z) | (uint32_t)sl_f32_to_bf16(quad.w) << 16;
    }
    return packed;
}

static __device__ __forceinline__ uint2 sl_f16_quad(float4 quad) {
    uint2 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed.x) : "f"(quad.y), "f"(quad.x));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed.y) : "f"(quad.w), "f"(quad.z));
    if (sl_has_nan(quad)) {
        packed.x = sl_f32_to_f16(quad.x) | (uint32_t)sl_f32_to_f16(quad.y) << 16;
        packed.y = sl_f32_to_f16(quad.z) | (uint32_t)sl_f32_to_f16(quad.w) << 16;
    }
    return packed;
}

/* As sl_f32_to_e4m3, in memory's order. */
static __device__ __forceinline__ uint32_t sl_e4m3_quad(float4 quad) {
#if __CUDA_ARCH__ >= 890
    if (!sl_has_nan(quad)) {
        uint16_t low, high;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(quad.y), "f"(quad.x));
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(quad.w), "f"(quad.z));
        return low | (uint32_t)high << 16;
    }
#endif
    return sl_f32_to_e4m3(quad.x) | (uint32_t)sl_f32_to_e4m3(quad.y) << 8 |
           (uint32_t)sl_f32_to_e4m3(quad.z) << 16 | (uint32_t)sl_f32_to_e4m3(quad.w) << 24;
}

template <bool ALIGNED>
static __device__ __forceinline__ void sl_store_bf16_quad(uint16_t *row, int32_t i, int32_t width,
                                                          float4 quad) {
    if (ALIGNED) {
        *(uint2 *)(void *)(row + i) = sl_bf16_quad(quad);
        return;
    }
    const float values[SL_QUAD] = {quad.x, quad.y, quad.z, quad.w};
    for (int32_t k = 0; k < SL_QUAD && i + k < width; k++) {
        row[i + k] = sl_f32_to_bf16(values[k]);
    }
}

/* The zeros behind row `row`, by the eight quads of its last group: quad `quad` of them. */
static __device__ __forceinline__ void sl_pad_row(const sl_cuda_operand &q, int32_t row, int32_t quad) {
    const sl_q8_32 planes = sl_q8_32_of(q, row);
    uint16_t *start = (uint16_t *)(void *)(q.data + (uint64_t)row * q.row_bytes) + q.column;
    for (int32_t group = q.width - q.padding; group < q.width; group += SL_Q8_32_GROUP) {
        const int32_t i = group - q.column + SL_QUAD * quad;
        if (q.type == SL_VALUE_BF16) {
            *(uint2 *)(void *)(start + i) = make_uint2(0, 0);
            continue;
        }
        *(uint32_t *)(void *)(planes.values + i) = 0;
        if (quad == 0) {
            planes.sums[i / SL_Q8_32_GROUP] = 0;
            planes.scales[i / SL_Q8_32_GROUP] = 0;
        }
    }
}

/* Columns that a warp's quads cover. */
enum { SL_WARP_QUADS = SL_WARP * SL_QUAD };

/* The zeros of a row from element `end` on, and of scales behind that element's group. */
static __device__ __forceinline__ void sl_pad_codes(const sl_cuda_operand &q, unsigned char *row, int32_t end,
                                                    int32_t group) {
    const int32_t lane = (int32_t)(threadIdx.x % SL_WARP), padded = (q.width + group - 1) / group * group;
    uint32_t *words = (uint32_t *)(void *)row;
    for (int32_t i = end / SL_QUAD + lane; i < padded / SL_QUAD; i += SL_WARP) {
        words[i] = 0;
    }
    const int32_t scales = (end + group - 1) / group;
    for (int32_t i = padded / SL_QUAD + scales + lane; i < (int32_t)q.row_bytes / SL_QUAD; i += SL_WARP) {
        words[i] = 0;
    }
}

/* The largest magnitude of a quad of each lane, in all of them. */
static __device__ __forceinline__ float sl_warp_largest(float4 quad) {
    float largest = sl_larger(sl_larger(quad.x, quad.y), sl_larger(quad.z, quad.w));
#pragma unroll
    for (int distance = 1; distance < SL_WARP; distance *= 2) {
        largest = sl_larger(largest, __shfl_xor_sync(SL_FULL_WARP, largest, distance));
    }
    return largest;
}

/* Elements [first, first + 128 QUADS) from the operand's column on, all of one group with that largest
 * magnitude, to E4M3_128 or Q8_256 by a warp: a lane has a quad of each 128. The bits of sl_codes_encode. */
template <int TYPE, int QUADS>
static __device__ __forceinline__ void sl_store_codes(const sl_cuda_operand &q, int32_t row, int32_t first,
                                                      float largest, const float4 (&quads)[QUADS]) {
    enum { E4M3 = TYPE == SL_VALUE_E4M3_128, GROUP = E4M3 ? SL_E4M3_128_GROUP : SL_Q8_256_GROUP };
    constexpr float MOST = E4M3 ? SL_E4M3_LARGEST : 127.0f;
    const bool usable = sl_is_usable(largest);
    const float inverse = MOST / largest;
    const int32_t lane = (int32_t)(threadIdx.x % SL_WARP), at = q.column + first;
    unsigned char *start = q.data + (uint64_t)row * q.row_bytes;
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const float4 scaled = sl_map_quad(quads[k], [inverse](float v) { return v * inverse; });
        const uint32_t codes = E4M3 ? sl_e4m3_quad(scaled) : sl_whole_quad(scaled);
        *(uint32_t *)(void *)(start + at + SL_WARP_QUADS * k + SL_QUAD * lane) = usable ? codes : 0;
    }
    const int32_t padded = (q.width + GROUP - 1) / GROUP * GROUP;
    if (lane == 0 && at % GROUP == 0) {
        ((float *)(void *)(start + padded))[at / GROUP] =
            usable ? largest / MOST : sl_unusable_scale(largest);
    }
    if (at + SL_WARP_QUADS * QUADS >= q.width - q.padding) {
        sl_pad_codes(q, start, at + SL_WARP_QUADS * QUADS, GROUP);
    }
}

static inline bool sl_is_codes(sl_value_type type) {
    return type == SL_VALUE_E4M3_128 || type == SL_VALUE_Q8_256;
}

/* Why a run does not quantise to that format, which has groups that two warps hold, or NULL. `groups`: of
 * what is quantised, each by threads of its own. */
static inline const char *sl_quantize_pairs_reason(sl_value_type type, int32_t groups) {
    return type == SL_VALUE_Q8_256 && groups > 1 ? "quantizes one group's norm to groups of 256" : NULL;
}

/* Elements [i, i + 4) of a row to E4M3_128; by whole warps, lane after lane a quad. */
static __device__ __forceinline__ void sl_quantize_e4m3_quad(const sl_cuda_operand &q, int32_t row, int32_t i,
                                                             int32_t width, float4 quad) {
    const float4 quads[1] = {quad};
    const float largest = sl_warp_largest(quad);
    const int32_t first = i - SL_QUAD * (int32_t)(threadIdx.x % SL_WARP);
    if (first < width) {
        sl_store_codes<SL_VALUE_E4M3_128>(q, row, first, largest, quads);
    }
}

/* Elements [i, i + 4) of a row to the operand's format, Q8_32 or BF16; by whole warps, lane after lane a
 * quad. */
template <bool ALIGNED>
static __device__ __forceinline__ void sl_quantize_quad(const sl_cuda_operand &q, int32_t row, int32_t i,
                                                        int32_t width, float4 quad) {
    if (q.type == SL_VALUE_Q8_32) {
        sl_quantize_group(quad, sl_q8_32_of(q, row), i, i < width);
    } else if (i < width) {
        uint16_t *start = (uint16_t *)(void *)(q.data + (uint64_t)row * q.row_bytes) + q.column;
        sl_store_bf16_quad<ALIGNED>(start, i, width, quad);
    }
    const int32_t left = width - i;
    if (q.padding > 0 && left > 0 && left <= SL_Q8_32_GROUP && q.column + width + q.padding == q.width) {
        sl_pad_row(q, row, SL_Q8_32_GROUP / SL_QUAD - left / SL_QUAD);
    }
}

#endif
