/* The kernels of the AMX tier, the preferred first. What is not among them the lower tiers do. */
#include "backend/cpu/amx/amx.h"
#include "backend/cpu/matmul.h"

/* Asked for with --prompt-precision bf16: a class is one for all rows, and this one is better for many only.
 */
#define ROUNDED_ROW(ID, type_name)                                                                           \
    {                                                                                                        \
        .kernel = {.name = "linear/" type_name ".bf16/amx",                                                  \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = "bf16/rounded",                                                          \
                   .activation = SL_VALUE_BF16,                                                              \
                   .tolerance = SL_LINEAR_TOLERANCE,                                                         \
                   .rounding = SL_BF16_ROUNDING,                                                             \
                   .batched = true,                                                                          \
                   .precisions = SL_PRECISION_BIT(BF16),                                                     \
                   .declines = SL_TIER(linear_declines),                                                     \
                   .packed_bytes = sl_matmul_packed_bytes_runs,                                              \
                   .pack = sl_matmul_pack_runs,                                                              \
                   .takes_unpacked = true,                                                                   \
                   .workspace = SL_TIER(linear_workspace)},                                                  \
        .isa = SL_TIER_ISA, .weight_type = SL_QTYPE_##ID, .run = SL_TIER(linear)                             \
    }

const sl_cpu_kernel sl_cpu_kernels_amx[] = {
    ROUNDED_ROW(Q8_0, "q8_0"),
    ROUNDED_ROW(Q4_0, "q4_0"),
    ROUNDED_ROW(Q4_K, "q4_k"),
    ROUNDED_ROW(Q6_K, "q6_k"),
    ROUNDED_ROW(Q5_K, "q5_k"),
    ROUNDED_ROW(IQ4_XS, "iq4_xs"),
    SL_S8_ROWS(amx),
    SL_LINEAR_ROW(Q8_0, "q8_0", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(Q4_0, "q4_0", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(Q4_K, "q4_k", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(Q6_K, "q6_k", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(Q5_K, "q5_k", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(Q4_1, "q4_1", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(Q5_0, "q5_0", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(Q5_1, "q5_1", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(Q2_K, "q2_k", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(Q3_K, "q3_k", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(IQ4_NL, "iq4_nl", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(IQ4_XS, "iq4_xs", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(MXFP4, "mxfp4", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(NVFP4, "nvfp4", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(NVFP4_128, "nvfp4_128", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(TQ1_0, "tq1_0", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(TQ2_0, "tq2_0", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(IQ3_XXS, "iq3_xxs", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(IQ3_S, "iq3_s", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(IQ2_XXS, "iq2_xxs", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(IQ2_XS, "iq2_xs", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(IQ2_S, "iq2_s", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(IQ1_S, "iq1_s", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(IQ1_M, "iq1_m", Q8_32, "q8_32/chain", amx, 32),
    SL_LINEAR_ROW(BF16, "bf16", BF16, "bf16/tiles", amx, 32),
    SL_TIER_ROW(ATTENTION, attention, "tile64/bf16x3", SL_SPLIT_TOLERANCE, amx, SL_TIER(attention_workspace)),
    {.kernel = {.name = NULL}},
};
