/* Choice of experts. Class "f32": softmax with the largest logit taken off, exponentials summed in order of
 * expert. */
#include "backend/cpu/plain/plain.h"

#include <math.h>

uint64_t sl_plain_router_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_op_router *router = &query->op->u.router;
    return sl_cpu_scratch_bytes(query,
                                (2 * (uint64_t)router->experts + (uint64_t)router->groups) * sizeof(float) +
                                    (uint64_t)router->groups * sizeof(bool));
}

/* What a row is chosen by, in a thread's scratch: scores [experts], the same with bias [experts], groups'
 * scores [groups], groups left [groups]. */
typedef struct router_row {
    float *scores, *choosing, *group_scores;
    bool *allowed;
    const float *bias, *factors; /* [experts], or NULL */
} router_row;

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

/* The index of the largest of `count` scores among those not chosen yet, the first of equals; always one,
 * whatever the scores are (NaN included). */
static int32_t best_of(const float *scores, int32_t count, const int32_t *chosen, int32_t chosen_count) {
    int32_t best = SL_NONE;
    for (int32_t i = 0; i < count; i++) {
        if (!is_chosen(chosen, chosen_count, i) && (best == SL_NONE || scores[i] > scores[best])) {
            best = i;
        }
    }
    return best;
}

/* What a group is chosen by: its best expert's score, or the sum of its two best. */
static float group_score(const sl_op_router *router, const float *scores) {
    const int32_t size = router->experts / router->groups;
    const int32_t best = best_of(scores, size, NULL, 0);
    return router->group_by_best || size == 1 ? scores[best]
                                              : scores[best] + scores[best_of(scores, size, &best, 1)];
}

/* allowed: [groups]; scores of groups in `best`, [groups]. */
static void choose_groups(const sl_op_router *router, const float *scores, float *best, bool *allowed) {
    const int32_t size = router->experts / router->groups;
    for (int32_t g = 0; g < router->groups; g++) {
        best[g] = group_score(router, scores + g * size);
        allowed[g] = false;
    }
    for (int32_t i = 0; i < router->groups_used; i++) {
        int32_t next = SL_NONE;
        for (int32_t g = 0; g < router->groups; g++) {
            if (!allowed[g] && (next == SL_NONE || best[g] > best[next])) {
                next = g;
            }
        }
        allowed[next] = true;
    }
}

/* Always chooses `used` different experts, whatever the scores are (NaN included). */
static void choose(const sl_op_router *router, const router_row *row, int32_t *ids, float *weights) {
    const int32_t size = router->experts / router->groups;
    float sum = 0;
    for (int32_t rank = 0; rank < router->used; rank++) {
        int32_t best = SL_NONE;
        for (int32_t e = 0; e < router->experts; e++) {
            if ((router->groups == 1 || row->allowed[e / size]) && !is_chosen(ids, rank, e) &&
                (best == SL_NONE || row->choosing[e] > row->choosing[best])) {
                best = e;
            }
        }
        ids[rank] = best;
        weights[rank] = row->scores[best];
        sum += row->scores[best];
    }
    sum += router->epsilon;
    const float divisor = sum < router->least_sum ? router->least_sum : sum; /* a NaN stays one */
    for (int32_t rank = 0; rank < router->used; rank++) {
        const float weight = router->normalise ? weights[rank] / divisor : weights[rank];
        weights[rank] = weight * router->scale * (row->factors ? row->factors[ids[rank]] : 1.0f);
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
    router_row work = {.scores = sl_cpu_scratch(op, thread, threads),
                       .bias = (const float *)(const void *)op->weights[0].data,
                       .factors = (const float *)(const void *)op->weights[1].data};
    work.choosing = work.scores + router->experts;
    work.group_scores = work.choosing + router->experts;
    work.allowed = (bool *)(void *)(work.group_scores + router->groups);
    int32_t first, last;
    sl_cpu_share(rows, thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        probabilities(router, sl_cpu_f32(&op->in[0], row), work.scores);
        for (int32_t e = 0; e < router->experts; e++) {
            work.choosing[e] = work.bias ? work.scores[e] + work.bias[e] : work.scores[e];
        }
        if (router->groups > 1) {
            choose_groups(router, work.choosing, work.group_scores, work.allowed);
        }
        choose(router, &work, ids + (int64_t)row * router->used, weights + (int64_t)row * router->used);
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
