/* The kernels of the AVX-512 tier, the preferred first. */
#include "backend/cpu/avx512/avx512.h"
#include "backend/cpu/matmul.h"

const sl_cpu_kernel sl_cpu_kernels_avx512[] = {
    SL_LINEAR_ROW(Q8_0, "q8_0", Q8_32, "q8_32/chain", avx512, 32),
    SL_LINEAR_ROW(Q4_0, "q4_0", Q8_32, "q8_32/chain", avx512, 32),
    SL_LINEAR_ROW(Q4_K, "q4_k", Q8_32, "q8_32/chain", avx512, 32),
    SL_LINEAR_ROW(Q6_K, "q6_k", Q8_32, "q8_32/chain", avx512, 32),
    SL_LINEAR_ROW(Q5_K, "q5_k", Q8_32, "q8_32/chain", avx512, 32),
    SL_LINEAR_ROW(Q4_1, "q4_1", Q8_32, "q8_32/chain", avx512, 32),
    SL_LINEAR_ROW(Q5_0, "q5_0", Q8_32, "q8_32/chain", avx512, 32),
    SL_LINEAR_ROW(Q5_1, "q5_1", Q8_32, "q8_32/chain", avx512, 32),
    SL_LINEAR_ROW(Q2_K, "q2_k", Q8_32, "q8_32/chain", avx512, 32),
    SL_LINEAR_ROW(Q3_K, "q3_k", Q8_32, "q8_32/chain", avx512, 32),
    SL_LINEAR_ROW(IQ4_NL, "iq4_nl", Q8_32, "q8_32/chain", avx512, 32),
    SL_LINEAR_ROW(IQ4_XS, "iq4_xs", Q8_32, "q8_32/chain", avx512, 32),
    SL_LINEAR_ROW(MXFP4, "mxfp4", Q8_32, "q8_32/chain", avx512, 32),
    SL_LINEAR_ROW(NVFP4, "nvfp4", Q8_32, "q8_32/chain", avx512, 32),
    SL_LINEAR_ROW(NVFP4_128, "nvfp4_128", Q8_32, "q8_32/chain", avx512, 32),
    SL_LINEAR_ROW(FP8_128, "fp8_128", F32, "f32/chain", avx512, 32),
    SL_LINEAR_ROW(BF16, "bf16", BF16, "bf16/pairs", avx512, 32),
    SL_LINEAR_ROW(F16, "f16", F32, "f32/chain", avx512, 32),
    SL_LINEAR_ROW(F32, "f32", F32, "f32/chain", avx512, 32),
    SL_TIER_ROWS(avx512, "16"),
    {.kernel = {.name = NULL}},
};
