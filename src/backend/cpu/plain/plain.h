/* The plain tier: every op in the most readable C, the reference for all other tiers. It runs on any machine.
 */
#ifndef SL_BACKEND_CPU_PLAIN_PLAIN_H
#define SL_BACKEND_CPU_PLAIN_PLAIN_H

#include "backend/cpu/cpu.h"

/* Sum of products in class "f32x16": sixteen partial sums, product i going to sum i % 16 in order of i, then
 * added in halves (0 with 8, 1 with 9, ...; then 4, 2 and 1 apart). Every product and sum is rounded by
 * itself. */
static inline float sl_plain_dot(const float *a, const float *b, int32_t count) {
    float sums[16] = {0};
    int32_t i = 0;
    for (; i + 16 <= count; i += 16) {
        for (int32_t lane = 0; lane < 16; lane++) {
            sums[lane] += a[i + lane] * b[i + lane];
        }
    }
    for (; i < count; i++) {
        sums[i % 16] += a[i] * b[i];
    }
    for (int32_t half = 8; half > 0; half /= 2) {
        for (int32_t lane = 0; lane < half; lane++) {
            sums[lane] += sums[lane + half];
        }
    }
    return sums[0];
}

#define SL_PLAIN_RUN(name)                                                                                   \
    void name(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads)

/* rows.c: ops that treat each row by itself */
SL_PLAIN_RUN(sl_plain_embed);
SL_PLAIN_RUN(sl_plain_rmsnorm);
SL_PLAIN_RUN(sl_plain_layernorm);
SL_PLAIN_RUN(sl_plain_quantize);
SL_PLAIN_RUN(sl_plain_rope);
SL_PLAIN_RUN(sl_plain_combine);
SL_PLAIN_RUN(sl_plain_activate);
SL_PLAIN_RUN(sl_plain_gather);
SL_PLAIN_RUN(sl_plain_transfer);
SL_PLAIN_RUN(sl_plain_all_reduce); /* this and the next: group.c */
SL_PLAIN_RUN(sl_plain_all_gather);
SL_PLAIN_RUN(sl_plain_softcap);
uint64_t sl_plain_embed_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
uint64_t sl_plain_layernorm_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
uint64_t sl_plain_rmsnorm_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
/* linear.c */
SL_PLAIN_RUN(sl_plain_linear_float);
SL_PLAIN_RUN(sl_plain_linear_q8);
SL_PLAIN_RUN(sl_plain_linear_bf16);
SL_PLAIN_RUN(sl_plain_linear_codes);
const char *sl_plain_linear_declines(const sl_kernel *kernel, const sl_kernel_query *query);
uint64_t sl_plain_linear_float_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
uint64_t sl_plain_linear_codes_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
uint64_t sl_plain_linear_q8_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
/* head_linear.c */
SL_PLAIN_RUN(sl_plain_head_linear);
uint64_t sl_plain_head_linear_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
/* cache.c */
SL_PLAIN_RUN(sl_plain_begin);
SL_PLAIN_RUN(sl_plain_cache_write);
SL_PLAIN_RUN(sl_plain_recall);
SL_PLAIN_RUN(sl_plain_attention);
uint64_t sl_plain_attention_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
SL_PLAIN_RUN(sl_plain_compact);
uint64_t sl_plain_all_reduce_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
uint64_t sl_plain_compact_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
/* router.c */
SL_PLAIN_RUN(sl_plain_router);
uint64_t sl_plain_router_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
/* delta.c */
SL_PLAIN_RUN(sl_plain_conv);
SL_PLAIN_RUN(sl_plain_delta_scan);
uint64_t sl_plain_delta_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
/* ssm.c */
SL_PLAIN_RUN(sl_plain_ssm_scan);
/* observe.c */
SL_PLAIN_RUN(sl_plain_observe);
/* sample.c */
SL_PLAIN_RUN(sl_plain_sample);
uint64_t sl_plain_sample_workspace(const sl_kernel *kernel, const sl_kernel_query *query);

#endif
