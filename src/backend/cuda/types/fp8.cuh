/* E4M3 codes as floats, four at a time. */
#ifndef SL_BACKEND_CUDA_TYPES_FP8_CUH
#define SL_BACKEND_CUDA_TYPES_FP8_CUH

#include "backend/cuda/common/device.cuh"

/* Two codes, in the lower bytes, as halves. */
static __device__ __forceinline__ uint32_t sl_fp8_halves(uint32_t codes) {
    uint32_t halves;
#if __CUDA_ARCH__ >= 890
    asm("{.reg .b16 c; cvt.u16.u32 c, %1; cvt.rn.f16x2.e4m3x2 %0, c;}" : "=r"(halves) : "r"(codes));
#else /* E4M3's bits are those of a smaller half, subnormals included: 2^8 makes up for the biases */
    const uint32_t upper = __byte_perm(codes, 0, 0x1404);
    halves = (upper & 0x80008000u) | (upper >> 1 & 0x3f803f80u);
    asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(halves) : "r"(0x5c005c00u));
#endif
    return halves;
}

/* Of the four codes of a word. */
static __device__ __forceinline__ void sl_fp8_values(uint32_t codes, float w[4]) {
    const uint32_t low = sl_fp8_halves(codes), high = sl_fp8_halves(codes >> 16);
    w[0] = sl_half_of(low & 0xffffu);
    w[1] = sl_half_of(low >> 16);
    w[2] = sl_half_of(high & 0xffffu);
    w[3] = sl_half_of(high >> 16);
}

#endif
