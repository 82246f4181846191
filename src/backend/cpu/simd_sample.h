/* The sampler, for one tier: included once by its sample.c, after its simd.h. What it does and why is in
 * plain/sample.c; this one computes all probabilities at once and then looks only at vectors that hold a
 * candidate. Class "f32/series": probabilities are vf_exp's, sums are double in the same orders as the plain
 * kernel's. */
#ifndef SL_BACKEND_CPU_SIMD_SAMPLE_H
#define SL_BACKEND_CPU_SIMD_SAMPLE_H

#include "backend/cpu/cpu.h"
#include "program/random.h"
#include "backend/cpu/simd_math.h"

#include <math.h>

SL_TIER_DECLINES(sample) {
    (void)kernel;
    return sl_cpu_needs(query, SL_TIER_ISA);
}

static int32_t whole_vectors(int32_t count) {
    return (count + VN - 1) / VN * VN;
}

SL_TIER_WORKSPACE(sample) {
    (void)kernel;
    const uint64_t padded = (uint64_t)query->op->u.sample.vocabulary + VN;
    return sl_cpu_scratch_bytes(query, padded * (2 * sizeof(float) + sizeof(int32_t)));
}

/* The candidates of one output; arrays are padded to whole vectors with candidates that are never chosen. */
typedef struct candidates {
    float *logits;        /* penalised; NaN counts as -infinity */
    float *probabilities; /* relative to the likeliest's */
    int32_t *heap;        /* ids */
    int32_t count, heap_count;
    bool worst_first; /* what the heap has on top */
} candidates;

static bool is_better(const candidates *c, int32_t a, int32_t b) {
    return c->logits[a] > c->logits[b] || (c->logits[a] == c->logits[b] && a < b);
}

static bool is_above(const candidates *c, int32_t a, int32_t b) {
    return c->worst_first ? is_better(c, b, a) : is_better(c, a, b);
}

static void sift_down(candidates *c, int32_t at) {
    const int32_t id = c->heap[at];
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= c->heap_count) {
            break;
        }
        if (child + 1 < c->heap_count && is_above(c, c->heap[child + 1], c->heap[child])) {
            child++;
        }
        if (is_above(c, id, c->heap[child])) {
            break;
        }
        c->heap[at] = c->heap[child];
        at = child;
    }
    c->heap[at] = id;
}

static void make_heap(candidates *c) {
    for (int32_t i = c->heap_count / 2 - 1; i >= 0; i--) {
        sift_down(c, i);
    }
}

/* Takes the top off and keeps it behind the heap's end. */
static int32_t pop(candidates *c) {
    const int32_t top = c->heap[0];
    c->heap[0] = c->heap[--c->heap_count];
    c->heap[c->heap_count] = top;
    if (c->heap_count > 0) {
        sift_down(c, 0);
    }
    return top;
}

/* Leaves the `most` best in the heap's array, the best first. */
static void find_best(candidates *c, int32_t most) {
    c->worst_first = true;
    for (c->heap_count = 0; c->heap_count < most; c->heap_count++) {
        c->heap[c->heap_count] = c->heap_count;
    }
    make_heap(c);
    for (int32_t i = most / VN * VN; i < c->count; i += VN) {
        unsigned better = vf_greater(vf_load(c->logits + i), vf_set1(c->logits[c->heap[0]]));
        for (; better; better &= better - 1) {
            const int32_t id = i + __builtin_ctz(better);
            if (id >= most && c->logits[id] > c->logits[c->heap[0]]) {
                c->heap[0] = id;
                sift_down(c, 0);
            }
        }
    }
    while (c->heap_count > 0) {
        pop(c);
    }
}

/* Heaps those that can be among the likeliest whose sum reaches `part` of the total: the rest, each below
 * (1 - part) / count of it, cannot even fill what is left together. */
static void heap_likely(candidates *c, double part, double total) {
    const float bound = (float)(0.5 * (1.0 - part) * total / c->count);
    c->worst_first = false;
    c->heap_count = 0;
    for (int32_t i = 0; i < c->count; i += VN) {
        unsigned likely = ~vf_greater(vf_set1(bound), vf_load(c->probabilities + i)) & ((1u << VN) - 1);
        for (; likely; likely &= likely - 1) {
            const int32_t id = i + __builtin_ctz(likely);
            if (id < c->count) {
                c->heap[c->heap_count++] = id;
            }
        }
    }
    make_heap(c);
}

/* The worst candidate that top-k and top-p leave, or SL_NONE when they leave all. */
static int32_t find_cut(candidates *c, const sl_sampler *sampler) {
    const bool by_count = sampler->top_k > 0 && sampler->top_k < c->count;
    const bool by_sum = sampler->top_p < 1.0f;
    const int32_t most = by_count ? sampler->top_k : c->count;
    double total = 0, sum = 0;
    int32_t cut = SL_NONE;
    if (!by_count && !by_sum) {
        return SL_NONE;
    }
    if (by_count) {
        find_best(c, most);
        cut = c->heap[most - 1];
    }
    for (int32_t i = 0; i < most && by_sum; i++) {
        total += c->probabilities[by_count ? c->heap[i] : i];
    }
    if (by_sum && !by_count) {
        heap_likely(c, (double)sampler->top_p, total);
    }
    for (int32_t i = 0; by_sum && i < most && (by_count || c->heap_count > 0); i++) {
        cut = by_count ? c->heap[i] : pop(c);
        sum += c->probabilities[cut];
        if (sum >= (double)sampler->top_p * total) {
            break;
        }
    }
    return cut;
}

/* Adds the probabilities of what is left, in order of id, until they exceed `target`; *last is the id that
 * did it, or the last one. */
static double add_left(const candidates *c, const sl_sampler *sampler, int32_t cut, double target,
                       int32_t *last) {
    const vf floor = vf_set1(cut == SL_NONE ? -INFINITY : c->logits[cut]);
    double sum = 0;
    for (int32_t i = 0; i < c->count; i += VN) {
        unsigned left = ~vf_greater(floor, vf_load(c->logits + i)) & ((1u << VN) - 1);
        for (; left; left &= left - 1) {
            const int32_t id = i + __builtin_ctz(left);
            const float p = id < c->count ? c->probabilities[id] : 0.0f;
            if (p > 0 && p >= sampler->min_p && (cut == SL_NONE || id == cut || is_better(c, id, cut))) {
                *last = id;
                sum += p;
                if (sum > target) {
                    return sum;
                }
            }
        }
    }
    return sum;
}

/* Copies the logits, NaN as -infinity, with the penalty of the history; the likeliest's id. */
static int32_t prepare(const sl_cpu_context *context, const sl_step_output *output, const float *logits,
                       candidates *c) {
    const vf lowest = vf_set1(-INFINITY);
    const int32_t padded = whole_vectors(c->count);
    for (int32_t i = 0; i < padded; i += VN) {
        const vf x = vf_select(vf_load_part(logits + i, c->count - i), 0, c->count - i, lowest);
        vf_store(c->logits + i, vf_max(x, lowest)); /* a NaN gives the second */
    }
    const float penalty = output->sampler.repetition_penalty;
    /* From the original logit each time: a token counts once however often it is in the history. */
    for (int32_t i = 0; i < output->history_count && penalty > 0; i++) {
        const int32_t id = context->history[output->history_first + i];
        if (id >= 0 && id < c->count && logits[id] == logits[id]) {
            c->logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
        }
    }
    vf top = lowest;
    for (int32_t i = 0; i < padded; i += VN) {
        top = vf_max(vf_load(c->logits + i), top);
    }
    const float largest = vf_largest(top);
    for (int32_t i = 0; i < c->count; i++) {
        if (c->logits[i] == largest) {
            return i;
        }
    }
    return 0;
}

static int32_t sample(const sl_cpu_context *context, const sl_step_output *output, const float *logits,
                      candidates *c) {
    const sl_sampler *sampler = &output->sampler;
    const int32_t best = prepare(context, output, logits, c);
    if (!(sampler->temperature > 0) || !isfinite(c->logits[best])) {
        return best;
    }
    const vf largest = vf_set1(c->logits[best]), temperature = vf_set1(sampler->temperature);
    for (int32_t i = 0; i < whole_vectors(c->count); i += VN) {
        const vf x = vf_div(vf_sub(vf_load(c->logits + i), largest), temperature);
        vf_store(c->probabilities + i, vf_exp(x));
    }
    const int32_t cut = find_cut(c, sampler);
    int32_t chosen = 0;
    const double total = add_left(c, sampler, cut, INFINITY, &chosen);
    chosen = 0;
    add_left(c, sampler, cut, (double)sl_random_uniform(sampler) * total, &chosen);
    return chosen;
}

/* Of several outputs of one sequence the last one's token is kept. */
static bool is_last_of_slot(const sl_cpu_context *context, int32_t index) {
    for (int32_t i = index + 1; i < context->counts[SL_ROWS_OUTPUT]; i++) {
        if (context->outputs[i].slot == context->outputs[index].slot) {
            return false;
        }
    }
    return true;
}

SL_TIER_RUN(sample) {
    candidates c = {.count = op->op->u.sample.vocabulary, .logits = sl_cpu_scratch(op, thread, threads)};
    c.probabilities = c.logits + whole_vectors(c.count);
    c.heap = (int32_t *)(void *)(c.probabilities + whole_vectors(c.count));
    for (int32_t i = sl_cpu_take(op, 0, 1); i < context->counts[SL_ROWS_OUTPUT]; i = sl_cpu_take(op, 0, 1)) {
        const sl_step_output *output = &context->outputs[i];
        const int32_t token = sample(context, output, sl_cpu_f32(&op->in[0], i), &c);
        *sl_cpu_i32(&op->out[0], i) = token;
        if (output->slot >= 0 && is_last_of_slot(context, i)) {
            context->last_tokens[output->slot] = token;
        }
    }
}

#endif
