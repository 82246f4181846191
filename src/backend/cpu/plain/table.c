/* The kernels of the plain tier. Tolerances are 0: this is what the others are compared with. */
#include "backend/cpu/plain/plain.h"

#define SIMPLE(ID, op_name, class_name)                                                                      \
    {                                                                                                        \
        .kernel = {.name = #op_name "/plain",                                                                \
                   .op = SL_OP_##ID,                                                                         \
                   .numeric_class = class_name,                                                              \
                   .batched = true},                                                                         \
        .run = sl_plain_##op_name                                                                            \
    }
#define WITH_WORKSPACE(ID, op_name, class_name, bytes)                                                       \
    {                                                                                                        \
        .kernel = {.name = #op_name "/plain",                                                                \
                   .op = SL_OP_##ID,                                                                         \
                   .numeric_class = class_name,                                                              \
                   .batched = true,                                                                          \
                   .workspace = bytes},                                                                      \
        .run = sl_plain_##op_name                                                                            \
    }
#define LINEAR(ID, kernel_name, format, class_name, function, bytes)                                         \
    {                                                                                                        \
        .kernel = {.name = kernel_name,                                                                      \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = class_name,                                                              \
                   .activation = SL_VALUE_##format,                                                          \
                   .batched = true,                                                                          \
                   .declines = sl_plain_linear_declines,                                                     \
                   .workspace = bytes},                                                                      \
        .weight_type = SL_QTYPE_##ID, .run = function                                                        \
    }
#define LINEAR_FLOAT(ID, name)                                                                               \
    LINEAR(ID, "linear/" name "/plain", F32, "f32x16", sl_plain_linear_float, sl_plain_linear_float_workspace)
#define LINEAR_Q8(ID, name)                                                                                  \
    LINEAR(ID, "linear/" name "/plain", Q8_32, "q8_32", sl_plain_linear_q8, sl_plain_linear_q8_workspace)
/* What the tensor cores' 8-bit products are compared with; no plan of the CPU makes such x. */
#define LINEAR_CODES(ID, kernel_name, FORMAT, format)                                                        \
    LINEAR(ID, "linear/" kernel_name "." format "/plain", FORMAT, format "/f32x16", sl_plain_linear_codes,   \
           sl_plain_linear_codes_workspace)

#define LINEAR_ROUNDED(ID, type_name)                                                                        \
    {                                                                                                        \
        .kernel = {.name = "linear/" type_name ".bf16/plain",                                                \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = "bf16/f32x16",                                                           \
                   .activation = SL_VALUE_BF16,                                                              \
                   .rounding = SL_BF16_ROUNDING,                                                             \
                   .batched = true,                                                                          \
                   .precisions = SL_PRECISION_BIT(BF16),                                                     \
                   .declines = sl_plain_linear_declines,                                                     \
                   .workspace = sl_plain_linear_float_workspace},                                            \
        .weight_type = SL_QTYPE_##ID, .run = sl_plain_linear_bf16                                            \
    }

const sl_cpu_kernel sl_cpu_kernels_plain[] = {
    SIMPLE(BEGIN, begin, "exact"),
    WITH_WORKSPACE(EMBED, embed, "exact", sl_plain_embed_workspace),
    WITH_WORKSPACE(RMSNORM, rmsnorm, "f32x16", sl_plain_rmsnorm_workspace),
    WITH_WORKSPACE(LAYERNORM, layernorm, "f64", sl_plain_layernorm_workspace),
    SIMPLE(QUANTIZE, quantize, "exact"),
    LINEAR_FLOAT(F32, "f32"),
    LINEAR_FLOAT(F16, "f16"),
    LINEAR_FLOAT(BF16, "bf16"),
    LINEAR_Q8(Q8_0, "q8_0"),
    LINEAR_Q8(Q4_0, "q4_0"),
    LINEAR_Q8(Q4_K, "q4_k"),
    LINEAR_Q8(Q6_K, "q6_k"),
    LINEAR_Q8(Q5_K, "q5_k"),
    LINEAR_Q8(Q4_1, "q4_1"),
    LINEAR_Q8(Q5_0, "q5_0"),
    LINEAR_Q8(Q5_1, "q5_1"),
    LINEAR_Q8(Q2_K, "q2_k"),
    LINEAR_Q8(Q3_K, "q3_k"),
    LINEAR_Q8(IQ4_NL, "iq4_nl"),
    LINEAR_Q8(IQ4_XS, "iq4_xs"),
    LINEAR_Q8(MXFP4, "mxfp4"),
    LINEAR_Q8(NVFP4, "nvfp4"),
    LINEAR_Q8(TQ1_0, "tq1_0"),
    LINEAR_Q8(TQ2_0, "tq2_0"),
    LINEAR_Q8(IQ3_XXS, "iq3_xxs"),
    LINEAR_Q8(IQ3_S, "iq3_s"),
    LINEAR_Q8(IQ2_XXS, "iq2_xxs"),
    LINEAR_Q8(IQ2_XS, "iq2_xs"),
    LINEAR_Q8(IQ2_S, "iq2_s"),
    LINEAR_Q8(IQ1_S, "iq1_s"),
    LINEAR_Q8(IQ1_M, "iq1_m"),
    LINEAR_Q8(NVFP4_128, "nvfp4_128"),
    LINEAR_FLOAT(FP8_128, "fp8_128"),
    LINEAR(BF16, "linear/bf16.bf16/plain", BF16, "bf16/f32x16", sl_plain_linear_bf16,
           sl_plain_linear_float_workspace),
    LINEAR_ROUNDED(Q8_0, "q8_0"),
    LINEAR_ROUNDED(Q4_0, "q4_0"),
    LINEAR_ROUNDED(Q4_K, "q4_k"),
    LINEAR_ROUNDED(Q6_K, "q6_k"),
    LINEAR_ROUNDED(Q5_K, "q5_k"),
    LINEAR_ROUNDED(IQ4_XS, "iq4_xs"),
    LINEAR_CODES(FP8_128, "fp8_128", E4M3_128, "e4m3_128"),
    LINEAR_CODES(Q8_0, "q8_0", E4M3_128, "e4m3_128"),
    LINEAR_CODES(Q8_0, "q8_0", Q8_256, "q8_256"),
    LINEAR_CODES(Q4_K, "q4_k", E4M3_128, "e4m3_128"),
    LINEAR_CODES(Q4_K, "q4_k", Q8_256, "q8_256"),
    WITH_WORKSPACE(HEAD_LINEAR, head_linear, "f32x16", sl_plain_head_linear_workspace),
    SIMPLE(ROPE, rope, "f32"),
    SIMPLE(CACHE_WRITE, cache_write, "exact"),
    SIMPLE(RECALL, recall, "exact"),
    WITH_WORKSPACE(ATTENTION, attention, "tile64/f32", sl_plain_attention_workspace),
    WITH_WORKSPACE(COMPACT, compact, "f32", sl_plain_compact_workspace),
    WITH_WORKSPACE(ROUTER, router, "f32", sl_plain_router_workspace),
    SIMPLE(COMBINE, combine, "f32"),
    SIMPLE(ACTIVATE, activate, "f32"),
    SIMPLE(CONV, conv, "f32"),
    WITH_WORKSPACE(DELTA_SCAN, delta_scan, "f32", sl_plain_delta_workspace),
    SIMPLE(SSM_SCAN, ssm_scan, "f32"),
    SIMPLE(GATHER, gather, "exact"),
    SIMPLE(TRANSFER, transfer, "exact"),
    WITH_WORKSPACE(ALL_REDUCE, all_reduce, "exact", sl_plain_all_reduce_workspace),
    SIMPLE(ALL_GATHER, all_gather, "exact"),
    SIMPLE(SOFTCAP, softcap, "f32"),
    WITH_WORKSPACE(SAMPLE, sample, "f32", sl_plain_sample_workspace),
    SIMPLE(OBSERVE, observe, "f64"),
    {.kernel = {.name = NULL}},
};
