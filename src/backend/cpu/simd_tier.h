/* The kernels of simd_*.h as a tier has them: declarations, and the rows of its table. A tier's own header
 * defines SL_TIER(name), its prefix, before it includes this one. */
#ifndef SL_BACKEND_CPU_SIMD_TIER_H
#define SL_BACKEND_CPU_SIMD_TIER_H

#include "backend/cpu/cpu.h"

#define SL_TIER_RUN(name)                                                                                    \
    void SL_TIER(name)(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads)
#define SL_TIER_DECLINES(name)                                                                               \
    const char *SL_TIER(name##_declines)(const sl_kernel *kernel, const sl_kernel_query *query)
#define SL_TIER_WORKSPACE(name)                                                                              \
    uint64_t SL_TIER(name##_workspace)(const sl_kernel *kernel, const sl_kernel_query *query)

SL_TIER_RUN(linear);
SL_TIER_DECLINES(linear);
SL_TIER_WORKSPACE(linear);
SL_TIER_RUN(attention);
SL_TIER_DECLINES(attention);
SL_TIER_WORKSPACE(attention);
SL_TIER_RUN(rmsnorm);
SL_TIER_DECLINES(rmsnorm);
SL_TIER_RUN(quantize);
SL_TIER_DECLINES(quantize);
SL_TIER_RUN(rope);
SL_TIER_DECLINES(rope);
SL_TIER_RUN(activate);
SL_TIER_DECLINES(activate);
SL_TIER_RUN(combine);
SL_TIER_DECLINES(combine);
SL_TIER_RUN(softcap);
SL_TIER_DECLINES(softcap);
SL_TIER_RUN(conv);
SL_TIER_DECLINES(conv);
SL_TIER_RUN(delta_scan);
SL_TIER_DECLINES(delta_scan);
SL_TIER_WORKSPACE(delta_scan);
SL_TIER_RUN(ssm_scan);
SL_TIER_DECLINES(ssm_scan);
SL_TIER_WORKSPACE(ssm_scan);
SL_TIER_RUN(sample);
SL_TIER_DECLINES(sample);
SL_TIER_WORKSPACE(sample);
SL_TIER_RUN(cache_write);
SL_TIER_DECLINES(cache_write);

/* Tolerances, as fractions of the root mean square of plain's result.
 *
 * linear     integers are exact, so int8 differs from plain only by the rounding of one float product and sum
 * per group: 2^-24 of a running sum that may be some times the result, over a few hundred groups. Chains of a
 *            few thousand float products: likewise. bf16 pairs: both factors are exact, sums as for floats.
 * s8         weights of both are rounded to int8, but with scales that differ: half of 2^-7 of the largest
 * each, independently. attention  an error of a score, 2^-24 of the largest terms of its dot product, is a
 * relative one of its probability; scores with outliers reach some hundred. The same as plain's own against
 * double. Split into two BF16, numbers keep 16 bits: 2^-17 of those terms, some thousandths where scores have
 * outliers and 2^-13 where not. the rest   a few roundings of an element, or of a sum of squares; elements
 * may be tens of root mean squares. delta_scan, ssm_scan  a row's rounding stays in the state for as long as
 * the decay lets it.
 */
#define SL_SCAN_TOLERANCE 3e-5f
#define SL_LINEAR_TOLERANCE 3e-5f
#define SL_S8_TOLERANCE 6e-2f
#define SL_ATTENTION_TOLERANCE 1e-4f
#define SL_SPLIT_TOLERANCE 5e-3f
#define SL_ROWS_TOLERANCE 1e-5f

#define SL_LINEAR_ROW(ID, type_name, format, class_name, tier, panel)                                        \
    {                                                                                                        \
        .kernel = {.name = "linear/" type_name "/" #tier,                                                    \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = class_name,                                                              \
                   .activation = SL_VALUE_##format,                                                          \
                   .tolerance = SL_LINEAR_TOLERANCE,                                                         \
                   .batched = true,                                                                          \
                   .declines = SL_TIER(linear_declines),                                                     \
                   .packed_bytes = sl_matmul_packed_bytes_##panel,                                           \
                   .pack = sl_matmul_pack_##panel,                                                           \
                   .takes_unpacked = true,                                                                   \
                   .workspace = SL_TIER(linear_workspace)},                                                  \
        .isa = SL_TIER_ISA, .weight_type = SL_QTYPE_##ID, .run = SL_TIER(linear)                             \
    }

/* Asked for with --prompt-precision int8: as of bf16 on AMX, one sequence's weights cost more than they gain.
 */
#define SL_S8_ROW(ID, type_name, tier)                                                                       \
    {                                                                                                        \
        .kernel = {.name = "linear/" type_name ".s8/" #tier,                                                 \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = "s8/256",                                                                \
                   .activation = SL_VALUE_Q8_256,                                                            \
                   .tolerance = SL_S8_TOLERANCE,                                                             \
                   .batched = true,                                                                          \
                   .precisions = SL_PRECISION_BIT(INT8),                                                     \
                   .declines = SL_TIER(linear_declines),                                                     \
                   .packed_bytes = sl_matmul_packed_bytes_32,                                                \
                   .pack = sl_matmul_pack_32,                                                                \
                   .takes_unpacked = true,                                                                   \
                   .workspace = SL_TIER(linear_workspace)},                                                  \
        .isa = SL_TIER_ISA, .weight_type = SL_QTYPE_##ID, .run = SL_TIER(linear)                             \
    }
#define SL_S8_ROWS(tier)                                                                                     \
    SL_S8_ROW(Q4_K, "q4_k", tier), SL_S8_ROW(Q5_K, "q5_k", tier), SL_S8_ROW(Q6_K, "q6_k", tier)

#define SL_TIER_ROW(ID, op_name, class_name, difference, tier, bytes)                                        \
    SL_TIER_ENTRY(ID, op_name, class_name, difference, tier, bytes, false)
#define SL_TIER_BY_ROWS(ID, op_name, class_name, difference, tier)                                           \
    SL_TIER_ENTRY(ID, op_name, class_name, difference, tier, NULL, true)
#define SL_TIER_ENTRY(ID, op_name, class_name, difference, tier, bytes, alone)                               \
    {                                                                                                        \
        .kernel = {.name = #op_name "/" #tier,                                                               \
                   .op = SL_OP_##ID,                                                                         \
                   .numeric_class = class_name,                                                              \
                   .tolerance = difference,                                                                  \
                   .batched = true,                                                                          \
                   .declines = SL_TIER(op_name##_declines),                                                  \
                   .workspace = bytes},                                                                      \
        .isa = SL_TIER_ISA, .run = SL_TIER(op_name), .by_rows = alone                                        \
    }

/* `lanes`: what the classes of sums are called after. */
#define SL_TIER_ROWS(tier, lanes)                                                                            \
    SL_TIER_ROW(ATTENTION, attention, "tile64/f32x" lanes, SL_ATTENTION_TOLERANCE, tier,                     \
                SL_TIER(attention_workspace)),                                                               \
        SL_TIER_BY_ROWS(RMSNORM, rmsnorm, "f32x" lanes "/fused", SL_ROWS_TOLERANCE, tier),                   \
        SL_TIER_BY_ROWS(QUANTIZE, quantize, "exact", 0, tier),                                               \
        SL_TIER_BY_ROWS(CACHE_WRITE, cache_write, "exact", 0, tier),                                         \
        SL_TIER_BY_ROWS(ROPE, rope, "f32/series", SL_ROWS_TOLERANCE, tier),                                  \
        SL_TIER_BY_ROWS(ACTIVATE, activate, "f32/series", SL_ROWS_TOLERANCE, tier),                          \
        SL_TIER_ROW(COMBINE, combine, "f32/fused", SL_ROWS_TOLERANCE, tier, NULL),                           \
        SL_TIER_ROW(SOFTCAP, softcap, "f32/series", SL_ROWS_TOLERANCE, tier, NULL),                          \
        SL_TIER_ROW(CONV, conv, "f32/fused", SL_ROWS_TOLERANCE, tier, NULL),                                 \
        SL_TIER_ROW(DELTA_SCAN, delta_scan, "f32x" lanes "/fused", SL_SCAN_TOLERANCE, tier,                  \
                    SL_TIER(delta_scan_workspace)),                                                          \
        SL_TIER_ROW(SSM_SCAN, ssm_scan, "f32/fused", SL_SCAN_TOLERANCE, tier, SL_TIER(ssm_scan_workspace)),  \
        SL_TIER_ROW(SAMPLE, sample, "f32/series", 0, tier, SL_TIER(sample_workspace))

#endif
