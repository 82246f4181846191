/* A float as the sum of two TF32 numbers. */
#ifndef SL_BACKEND_CUDA_COMMON_TF32_CUH
#define SL_BACKEND_CUDA_COMMON_TF32_CUH

#include <stdint.h>

/* x becomes the tf32 part of it; returns what it lacks, of which an mma takes the first 11 bits. */
static __device__ __forceinline__ uint32_t sl_split_tf32(uint32_t *x) {
    const float whole = __uint_as_float(*x);
    *x &= 0xffffe000u;
    return __float_as_uint(whole - __uint_as_float(*x));
}

#endif
