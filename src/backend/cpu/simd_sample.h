/* The sampler, for one tier: included once by its sample.c, after its simd.h. What it does and why is in
 * plain/sample.c; this one computes all probabilities at once and then looks only at vectors that hold a
 * candidate. Class "f32/series": probabilities are vf_exp's; sums are double, in order of id over all
 * candidates, from the best on over what top-k keeps, and over what typical-p and top-p keep in the order in
 * which it is taken. */
#ifndef SL_BACKEND_CPU_SIMD_SAMPLE_H
#define SL_BACKEND_CPU_SIMD_SAMPLE_H

#include "backend/cpu/cpu.h"
#include "program/adjustment.h"
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
    return sl_cpu_scratch_bytes(query, padded * (3 * sizeof(float) + sizeof(int32_t)));
}

/* What a heap has on top. */
typedef enum heap_order { BEST_FIRST, WORST_FIRST, NEAREST_FIRST } heap_order;

/* The candidates of one output; arrays are padded to whole vectors with candidates that are never chosen. */
typedef struct candidates {
    float *logits;        /* adjusted; NaN counts as -infinity */
    float *probabilities; /* relative to the likeliest's */
    float *distances;     /* of the logit over the temperature from what it is expected to be */
    int32_t *heap;        /* ids */
    int32_t count, heap_count;
    heap_order order;
} candidates;

static bool is_better(const candidates *c, int32_t a, int32_t b) {
    return c->logits[a] > c->logits[b] || (c->logits[a] == c->logits[b] && a < b);
}

static bool is_above(const candidates *c, int32_t a, int32_t b) {
    const float *d = c->distances;
    return c->order == NEAREST_FIRST ? d[a] < d[b] || (d[a] == d[b] && a < b)
           : c->order == WORST_FIRST ? is_better(c, b, a)
                                     : is_better(c, a, b);
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
    c->order = WORST_FIRST;
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
    c->order = BEST_FIRST;
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

/* Leaves the nearest of what top-k leaves, and drops all else: its probability is then 0, its logit
 * -infinity. Returns the largest probability left. */
static float keep_typical(candidates *c, const sl_sampler *sampler, float largest) {
    int32_t most = 0;
    double total = 0, moment = 0, sum = 0;
    if (sampler->top_k > 0 && sampler->top_k < c->count) {
        most = sampler->top_k;
        find_best(c, most);
    } else {
        for (int32_t id = 0; id < c->count; id++) {
            c->heap[most] = id;
            most += c->probabilities[id] > 0;
        }
    }
    for (int32_t i = 0; i < most; i++) {
        const int32_t id = c->heap[i];
        const float p = c->probabilities[id], x = (c->logits[id] - largest) / sampler->temperature;
        c->distances[id] = x;
        total += p;
        moment += p > 0 ? (double)p * x : 0;
    }
    const float expected = (float)(moment / total);
    for (int32_t i = 0; i < most; i++) {
        c->distances[c->heap[i]] = fabsf(c->distances[c->heap[i]] - expected);
    }
    c->order = NEAREST_FIRST;
    c->heap_count = most;
    make_heap(c);
    do {
        sum += c->probabilities[pop(c)];
    } while (sum < (double)sampler->typical_p * total && c->heap_count > 0);
    /* The heap has those that stay behind its end; from here on a distance says whether one stays. */
    float likeliest = 0;
    for (int32_t id = 0; id < c->count; id++) {
        c->distances[id] = 0;
    }
    for (int32_t i = c->heap_count; i < most; i++) {
        c->distances[c->heap[i]] = 1;
        likeliest = fmaxf(likeliest, c->probabilities[c->heap[i]]);
    }
    for (int32_t id = 0; id < c->count; id++) {
        const bool left = c->distances[id] > 0;
        c->probabilities[id] = left ? c->probabilities[id] : 0.0f;
        c->logits[id] = left ? c->logits[id] : -INFINITY;
    }
    return likeliest;
}

/* Adds the probabilities of what is left, in order of id, until they exceed `target`; *last is the id that
 * did it, or the last one. */
static double add_left(const candidates *c, float least, int32_t cut, double target, int32_t *last) {
    const vf floor = vf_set1(cut == SL_NONE ? -INFINITY : c->logits[cut]);
    double sum = 0;
    for (int32_t i = 0; i < c->count; i += VN) {
        unsigned left = ~vf_greater(floor, vf_load(c->logits + i)) & ((1u << VN) - 1);
        for (; left; left &= left - 1) {
            const int32_t id = i + __builtin_ctz(left);
            const float p = id < c->count ? c->probabilities[id] : 0.0f;
            if (p > 0 && p >= least && (cut == SL_NONE || id == cut || is_better(c, id, cut))) {
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

/* Copies the logits, NaN as -infinity, adjusted; the likeliest's id. */
static int32_t prepare(const sl_cpu_context *context, const sl_step_output *output, const float *logits,
                       candidates *c) {
    const vf lowest = vf_set1(-INFINITY);
    const int32_t padded = whole_vectors(c->count);
    for (int32_t i = 0; i < padded; i += VN) {
        const vf x = vf_select(vf_load_part(logits + i, c->count - i), 0, c->count - i, lowest);
        vf_store(c->logits + i, vf_max(x, lowest)); /* a NaN gives the second */
    }
    const sl_adjustment *adjustments = sl_output_adjustments(context->header, context->table_changes, output);
    for (int32_t i = 0; i < output->adjustment_count; i++) {
        const int32_t id = adjustments[i].token;
        if (id >= 0 && id < c->count) {
            c->logits[id] = sl_adjusted_logit(&adjustments[i], logits[id]);
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
    sl_sampler s = output->sampler;
    const int32_t best = prepare(context, output, logits, c);
    if (!(s.temperature > 0) || !isfinite(c->logits[best])) {
        return best;
    }
    const vf largest = vf_set1(c->logits[best]), temperature = vf_set1(s.temperature);
    for (int32_t i = 0; i < whole_vectors(c->count); i += VN) {
        const vf x = vf_div(vf_sub(vf_load(c->logits + i), largest), temperature);
        vf_store(c->probabilities + i, vf_exp(x));
    }
    float least = s.min_p;
    if (s.typical_p > 0 && s.typical_p < 1) {
        least *= keep_typical(c, &s, c->logits[best]);
        s.top_k = 0; /* done */
    }
    const int32_t cut = find_cut(c, &s);
    int32_t chosen = 0;
    const double total = add_left(c, least, cut, INFINITY, &chosen);
    chosen = 0;
    add_left(c, least, cut, (double)sl_random_uniform(&s) * total, &chosen);
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
    c.distances = c.probabilities + whole_vectors(c.count);
    c.heap = (int32_t *)(void *)(c.distances + whole_vectors(c.count));
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
