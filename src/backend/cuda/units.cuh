/* Weights as integers of 16 bits: the numbers of class "q8_256".
 *
 * A chunk of 256 columns of a weight row has a unit; element i of its group g (32 columns) is
 *     unit * (scales[g] * q[i] - mins[g]),   scales and mins integers, nearest to the factors over the unit
 * and that integer fits 16 bits. A chunk of a row of x has one scale: the largest of its eight groups' of
 * q8_32, to which the integers of the other groups are brought, nearest even. So a chunk's product is an
 * integer below 2^31, exact in any order; it is converted to float, and multiplied with unit * scale.
 *
 * Of Q4_K (and Q5_K) the unit is max(|scale|, |min| / 128): mostly the scales are the file's own integers. */
#ifndef SL_BACKEND_CUDA_UNITS_CUH
#define SL_BACKEND_CUDA_UNITS_CUH

#include "backend/cuda/device.cuh"

enum { UNITS_CHUNK = 256 };

/* 1.5 * 2^23: a float of this plus n, n below 2^22 in size, has the bits of this plus n. */
#define UNITS_MAGIC 12582912.0f
#define UNITS_MAGIC_BITS 0x4b400000

/* 1 / x, 0 for 0. */
static __device__ __forceinline__ float units_inverse(float x) {
    float inverse;
    asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    return x > 0.0f ? inverse : 0.0f;
}

/* The integer nearest to a * b, plus UNITS_MAGIC_BITS. */
static __device__ __forceinline__ int32_t units_nearest(float a, float b) {
    return __float_as_int(fmaf(a, b, UNITS_MAGIC));
}

/* Byte `index` of a word as a float. */
static __device__ __forceinline__ float units_byte(uint32_t word, int index) {
    return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u | (uint32_t)index)) - 8388608.0f;
}

/* Of Q4_K and Q5_K. */
typedef struct units_k {
    float unit, scale, min; /* scale and min: over the unit */
    uint32_t scales[2], mins[2];
} units_k;

static __device__ __forceinline__ units_k units_k_of(uint4 header) {
    units_k k;
    const float d = sl_half_of(header.x & 0xffffu), m = sl_half_of(header.x >> 16);
    k.unit = fmaxf(fabsf(d), fabsf(m) * 0.0078125f);
    const float inverse = units_inverse(k.unit);
    k.scale = d * inverse;
    k.min = m * inverse;
    k.scales[0] = header.y & 0x3f3f3f3fu;
    k.scales[1] = (header.w & 0x0f0f0f0fu) | (header.y >> 2 & 0x30303030u);
    k.mins[0] = header.z & 0x3f3f3f3fu;
    k.mins[1] = (header.w >> 4 & 0x0f0f0f0fu) | (header.z >> 2 & 0x30303030u);
    return k;
}

static __device__ __forceinline__ int32_t units_k_scale(const units_k &k, int g) {
    return units_nearest(k.scale, units_byte(k.scales[g / 4], g % 4)) - UNITS_MAGIC_BITS;
}

static __device__ __forceinline__ int32_t units_k_min(const units_k &k, int g) {
    return units_nearest(k.min, units_byte(k.mins[g / 4], g % 4)) - UNITS_MAGIC_BITS;
}

/* A chunk's product from its integer. */
static __device__ __forceinline__ float units_product(int32_t sum, float unit, float x_scale) {
    return (float)sum * (unit * x_scale);
}

/* ---- x ---- */

/* The scale of a chunk of x from a group's, by the eight neighbouring lanes that have its groups. Not a
 * number is the largest. */
static __device__ __forceinline__ float units_x_scale(float scale) {
    uint32_t bits = __float_as_uint(scale);
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) {
        bits = max(bits, __shfl_xor_sync(SL_FULL_WARP, bits, distance));
    }
    return __uint_as_float(bits);
}

/* What a group's integers are multiplied with. */
static __device__ __forceinline__ float units_x_ratio(float scale, float largest) {
    return scale == largest ? 1.0f : scale * units_inverse(largest);
}

/* Four signed bytes times ratio, which is at most 1. */
static __device__ __forceinline__ uint32_t units_x_word(uint32_t word, float ratio) {
    uint32_t out[4];
#pragma unroll
    for (int b = 0; b < 4; b++) { /* the byte plus 128, less 128 */
        const float value = units_byte(word ^ 0x80808080u, b) - 128.0f;
        out[b] = (uint32_t)units_nearest(value, ratio);
    }
    const uint32_t low = __byte_perm(out[0], out[1], 0x0040), high = __byte_perm(out[2], out[3], 0x0040);
    return __byte_perm(low, high, 0x5410);
}

#endif
