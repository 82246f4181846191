/* The kernels of the AVX-VNNI tier, the preferred first. What is not among them the lower tiers do. */
#include "backend/cpu/avxvnni/avxvnni.h"
#include "backend/cpu/matmul.h"

const sl_cpu_kernel sl_cpu_kernels_avxvnni[] = {
    SL_LINEAR_ROW(Q8_0, "q8_0", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(Q4_0, "q4_0", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(Q4_K, "q4_k", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(Q6_K, "q6_k", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(Q5_K, "q5_k", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(Q4_1, "q4_1", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(Q5_0, "q5_0", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(Q5_1, "q5_1", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(Q2_K, "q2_k", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(Q3_K, "q3_k", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(IQ4_NL, "iq4_nl", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(IQ4_XS, "iq4_xs", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(MXFP4, "mxfp4", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(NVFP4, "nvfp4", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(NVFP4_128, "nvfp4_128", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(TQ1_0, "tq1_0", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(TQ2_0, "tq2_0", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(IQ3_XXS, "iq3_xxs", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(IQ3_S, "iq3_s", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(IQ2_XXS, "iq2_xxs", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(IQ2_XS, "iq2_xs", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(IQ2_S, "iq2_s", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(IQ1_S, "iq1_s", Q8_32, "q8_32/chain", avxvnni, 16),
    SL_LINEAR_ROW(IQ1_M, "iq1_m", Q8_32, "q8_32/chain", avxvnni, 16),
    {.kernel = {.name = NULL}},
};
