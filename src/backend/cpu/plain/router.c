/* Choice of experts. Class "f32": softmax with the largest logit taken off, exponentials summed in order of
 * expert. */
#include "backend/cpu/plain/plain.h"

#include <math.h>

uint64_t sl_plain_router_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    return sl_cpu_scratch_bytes(query, (uint64_t)query->op->u.router.experts * sizeof(float));
}

static void probabilities(const sl_op_router *router, const float *logits, float *result) {
    if (router->kind == SL_ROUTER_SIGMOID) {
        for (int32_t e = 0; e < router->experts; e++) {
            result[e] = 1.0f / (1.0f + expf(-logits[e]));
        }
        return;
    }
    float largest = logits[0];
    for (int32_t e = 1; e < router->experts; e++) {
        largest = logits[e] > largest ? logits[e] : largest;
    }
    float sum = 0;
    for (int32_t e = 0; e < router->experts; e++) {
        result[e] = expf(logits[e] - largest);
        sum += result[e];
    }
    for (int32_t e = 0; e < router->experts; e++) {
        result[e] /= sum;
    }
}

static bool is_chosen(const int32_t *ids, int32_t count, int32_t expert) {
    for (int32_t i = 0; i < count; i++) {
        if (ids[i] == expert) {
            return true;
        }
    }
    return false;
}

/* Always chooses `used` different experts, whatever the probabilities are (NaN included). */
static void choose(const sl_op_router *router, const float *probability, const float *bias, int32_t *ids,
                   float *weights) {
    float sum = 0;
    for (int32_t rank = 0; rank < router->used; rank++) {
        int32_t best = SL_NONE;
        float best_score = 0;
        for (int32_t e = 0; e < router->experts; e++) {
            const float score = bias ? probability[e] + bias[e] : probability[e];
            if (!is_chosen(ids, rank, e) && (best == SL_NONE || score > best_score)) {
                best = e;
                best_score = score;
            }
        }
        ids[rank] = best;
        weights[rank] = probability[best];
        sum += probability[best];
    }
    for (int32_t rank = 0; rank < router->used; rank++) {
        const float weight = router->normalise ? weights[rank] / sum : weights[rank];
        weights[rank] = weight * router->scale;
    }
}

/* head: [experts + 1] offsets; list: expert rows sorted by expert, rising within one. */
static void make_schedule(const int32_t *ids, int32_t count, int32_t experts, int32_t *head, int32_t *list) {
    for (int32_t e = 0; e <= experts; e++) {
        head[e] = 0;
    }
    for (int32_t i = 0; i < count; i++) {
        head[ids[i] + 1]++;
    }
    for (int32_t e = 0; e < experts; e++) {
        head[e + 1] += head[e];
    }
    for (int32_t i = 0; i < count; i++) {
        list[head[ids[i]]++] = i; /* leaves each expert's offset at its end: the next one's start */
    }
    for (int32_t e = experts; e > 0; e--) {
        head[e] = head[e - 1];
    }
    head[0] = 0;
}

void sl_plain_router(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const sl_op_router *router = &op->op->u.router;
    const int32_t rows = context->counts[SL_ROWS_STEP];
    int32_t *ids = sl_cpu_i32(&op->out[0], 0);
    float *weights = sl_cpu_f32(&op->out[1], 0);
    float *probability = sl_cpu_scratch(op, thread, threads);
    int32_t first, last;
    sl_cpu_share(rows, thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        probabilities(router, sl_cpu_f32(&op->in[0], row), probability);
        choose(router, probability, (const float *)(const void *)op->weights[0].data,
               ids + (int64_t)row * router->used, weights + (int64_t)row * router->used);
    }
    if (!op->out[2].data) {
        return;
    }
    sl_pool_barrier(context->pool);
    if (thread == 0) {
        make_schedule(ids, rows * router->used, router->experts, op->out[2].head,
                      (int32_t *)(void *)op->out[2].data);
    }
}
