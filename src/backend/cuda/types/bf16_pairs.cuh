/* Pairs of BF16 numbers made of quants without a conversion: bits below 256 in a BF16 number mean bits *
 * 2^-133, and one fused operation applies scale and constant. What comes out is 2^-44 times the weight, so
 * that those are finite; sums are put right in the end, exactly. */
#ifndef SL_BACKEND_CUDA_TYPES_BF16_PAIRS_CUH
#define SL_BACKEND_CUDA_TYPES_BF16_PAIRS_CUH

#include "backend/cuda/common/device.cuh"

#define SKINNY_UP 6.189700196426902e26f    /* 2^89: times 2^-133, which bits count, is 2^-44 */
#define SKINNY_DOWN 5.684341886080802e-14f /* 2^-44 */
#define SKINNY_BIT 9.183549615799121e-41f  /* 2^-133 */
/* -128, -8, -16, -32 and -1 bits, twice */
#define SKINNY_OFFSET_Q8_0 0x80808080u
#define SKINNY_OFFSET_Q4_0 0x80088008u
#define SKINNY_OFFSET_Q5_0 0x80108010u
#define SKINNY_OFFSET_Q6_K 0x80208020u
#define SKINNY_OFFSET_TQ 0x80018001u

/* Of types whose quants are small floating-point numbers: what takes BF16 numbers of those bits, the exponent
 * not biased anew, to 2^-44 of what they mean. */
#define SKINNY_FP4 9.671406556917033e24f /* 2^83: E2M1, doubled, is 2^127 times what its bits are */
#define SKINNY_FP8 7.555786372591432e22f /* 2^76: E4M3 is 2^120 times that */
#define SKINNY_E4M3_ROOT                                                                                     \
    2.535301200456459e30f /* 2^101: its square takes f32 numbers of E4M3's bits to 2^83 / 2                  \
                             times their meaning */

/* Two equal halves. */
static __device__ __forceinline__ uint32_t skinny_twice(float value) {
    return sl_bf16_pair(value, value);
}

/* Of pairs of BF16. */
static __device__ __forceinline__ uint32_t skinny_product(uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 900
    uint32_t out;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
#else /* two numbers of 8 bits: their product is exact in f32 */
    return sl_bf16_pair(__uint_as_float(a << 16) * __uint_as_float(b << 16),
                        __uint_as_float(a & 0xffff0000u) * __uint_as_float(b & 0xffff0000u));
#endif
}

/* Two quants that are bits of a BF16 number, times scale, plus constant. */
static __device__ __forceinline__ uint32_t skinny_value(uint32_t bits, uint32_t scale, uint32_t constant) {
    uint32_t out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(bits), "r"(scale), "r"(constant));
    return out;
}

#endif
