/* The sampler, for one tier: included once by its sample.c, after its simd.h. What it does and why is in
 * plain/sample.c; this one keeps the candidates that are left together, in order of id, so that a stage costs
 * as much as the one before it left. Class "f32/series": probabilities are vf_exp's; sums are double, in
 * order of id, but over what typical-p and top-p keep in the order in which it is taken. */
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
    return sl_cpu_scratch_bytes(query, padded * (3 * sizeof(float) + 2 * sizeof(int32_t)));
}

/* What a heap has on top. */
typedef enum heap_order { BEST_FIRST, WORST_FIRST, NEAREST_FIRST } heap_order;

/* The candidates of one output that are left, in order of id; arrays are padded to whole vectors with
 * candidates that are never chosen. Elsewhere a candidate is its place here. */
typedef struct candidates {
    float *logits;        /* adjusted */
    float *probabilities; /* relative to the likeliest's, where `weighed` */
    float *distances;     /* of the logit over the temperature from what it is expected to be */
    int32_t *ids;
    int32_t *heap;
    int32_t count, heap_count;
    heap_order order;
    float largest, temperature;
    bool weighed;
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

/* ---- what is left ---- */

/* Keeps those of the vector at `i` whose bit is set, behind the first `kept`; returns how many there are
 * then.
 */
static int32_t keep_bits(candidates *c, int32_t i, unsigned bits, int32_t kept) {
    for (; bits; bits &= bits - 1) {
        const int32_t at = i + __builtin_ctz(bits);
        if (at < c->count) {
            c->logits[kept] = c->logits[at];
            c->ids[kept++] = c->ids[at];
        }
    }
    return kept;
}

static void end_keeping(candidates *c, int32_t kept) {
    c->count = kept;
    for (int32_t i = kept; i < whole_vectors(kept); i++) {
        c->logits[i] = -INFINITY;
    }
    c->weighed = false;
}

/* Those with a larger logit, and of those with this one the places up to `last`. */
static void keep_from(candidates *c, float logit, int32_t last) {
    int32_t kept = 0;
    for (int32_t i = 0; i < c->count; i += VN) {
        const vf x = vf_load(c->logits + i);
        unsigned bits = vf_greater(x, vf_set1(logit));
        unsigned ties = ~vf_greater(vf_set1(logit), x) & ~bits & ((1u << VN) - 1);
        for (; ties; ties &= ties - 1) {
            const unsigned lowest = ties & (~ties + 1);
            bits |= i + __builtin_ctz(ties) <= last ? lowest : 0;
        }
        kept = keep_bits(c, i, bits, kept);
    }
    end_keeping(c, kept);
}

/* Those with a distance above 0. */
static void keep_marked(candidates *c) {
    int32_t kept = 0;
    for (int32_t i = 0; i < c->count; i += VN) {
        kept = keep_bits(c, i, vf_greater(vf_load(c->distances + i), vf_set1(0)), kept);
    }
    end_keeping(c, kept);
    c->largest = -INFINITY;
    for (int32_t i = 0; i < kept; i++) {
        c->largest = fmaxf(c->largest, c->logits[i]);
    }
}

/* Makes the probabilities, if they are not there, and returns their sum. */
static double weigh(candidates *c) {
    const vf largest = vf_set1(c->largest), temperature = vf_set1(c->temperature);
    double total = 0;
    for (int32_t i = 0; i < whole_vectors(c->count) && !c->weighed; i += VN) {
        const vf x = vf_div(vf_sub(vf_load(c->logits + i), largest), temperature);
        vf_store(c->probabilities + i, vf_exp(x));
    }
    c->weighed = true;
    for (int32_t i = 0; i < c->count; i++) {
        total += c->probabilities[i];
    }
    return total;
}

static float scaled(const candidates *c, int32_t i) {
    return (c->logits[i] - c->largest) / c->temperature;
}

/* Of what was weighed: what a logit over the temperature, less the largest, is expected to be. */
static double expect(const candidates *c, double total) {
    double moment = 0;
    for (int32_t i = 0; i < c->count; i++) {
        const float p = c->probabilities[i];
        moment += p > 0 ? (double)p * scaled(c, i) : 0;
    }
    return moment / total;
}

/* ---- stages ---- */

static void keep_best(candidates *c, int32_t most) {
    if (most >= c->count) {
        return;
    }
    c->order = WORST_FIRST;
    for (c->heap_count = 0; c->heap_count < most; c->heap_count++) {
        c->heap[c->heap_count] = c->heap_count;
    }
    make_heap(c);
    for (int32_t i = most / VN * VN; i < c->count; i += VN) {
        unsigned better = vf_greater(vf_load(c->logits + i), vf_set1(c->logits[c->heap[0]]));
        for (; better; better &= better - 1) {
            const int32_t at = i + __builtin_ctz(better);
            if (at >= most && c->logits[at] > c->logits[c->heap[0]]) {
                c->heap[0] = at;
                sift_down(c, 0);
            }
        }
    }
    keep_from(c, c->logits[c->heap[0]], c->heap[0]);
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

static void keep_likely(candidates *c, double part) {
    const double total = weigh(c);
    int32_t last = c->count - 1;
    double sum = 0;
    heap_likely(c, part, total);
    while (c->heap_count > 0 && (sum < part * total || sum == 0)) {
        last = pop(c);
        sum += c->probabilities[last];
    }
    keep_from(c, c->logits[last], last);
}

static void keep_typical(candidates *c, double part) {
    const double total = weigh(c);
    const float expected = (float)expect(c, total);
    double sum = 0;
    c->heap_count = 0;
    for (int32_t i = 0; i < c->count; i++) {
        c->distances[i] = fabsf(scaled(c, i) - expected);
        c->heap[c->heap_count] = i;
        c->heap_count += c->probabilities[i] > 0;
    }
    const int32_t most = c->heap_count;
    c->order = NEAREST_FIRST;
    make_heap(c);
    do {
        sum += c->probabilities[pop(c)];
    } while (sum < part * total && c->heap_count > 0);
    /* The heap has those that stay behind its end; from here on a distance says whether one stays. */
    for (int32_t i = 0; i < whole_vectors(c->count); i++) {
        c->distances[i] = 0;
    }
    for (int32_t i = c->heap_count; i < most; i++) {
        c->distances[c->heap[i]] = 1;
    }
    keep_marked(c);
}

static void keep_near_the_top(candidates *c, double deviations) {
    double sum = 0, squares = 0;
    int32_t finite = 0;
    for (int32_t i = 0; i < c->count; i++) {
        const bool counts = c->logits[i] > -INFINITY;
        sum += counts ? (double)c->logits[i] : 0;
        finite += counts;
    }
    for (int32_t i = 0; i < c->count; i++) {
        const double away = c->logits[i] > -INFINITY ? (double)c->logits[i] - sum / finite : 0;
        squares += away * away;
    }
    keep_from(c, (float)((double)c->largest - deviations * sqrt(squares / finite)), INT32_MAX);
}

static void exclude_top_choices(candidates *c, const sl_sampler *s) {
    int32_t last = SL_NONE, choices = 0;
    if (!(sl_random_uniform(s, SL_RANDOM_XTC) < s->xtc_probability)) {
        return;
    }
    const double least = (double)s->xtc_threshold * weigh(c);
    for (int32_t i = 0; i < c->count; i++) {
        if (c->logits[i] > -INFINITY && (double)c->probabilities[i] >= least) {
            last = last == SL_NONE || !is_better(c, i, last) ? i : last;
            choices++;
        }
    }
    if (choices > 1) {
        for (int32_t i = 0; i < whole_vectors(c->count); i++) {
            c->distances[i] = i < c->count && (i == last || !is_better(c, i, last)) ? 1.0f : 0.0f;
        }
        keep_marked(c);
    }
}

static float find_temperature(candidates *c, const sl_sampler *s) {
    int32_t finite = 0;
    for (int32_t i = 0; i < c->count && s->dynamic_range > 0; i++) {
        finite += c->logits[i] > -INFINITY;
    }
    if (finite < 2) {
        return s->temperature;
    }
    const double total = weigh(c);
    const double low = fmax(0, (double)s->temperature - (double)s->dynamic_range);
    const double high = (double)s->temperature + (double)s->dynamic_range;
    const double entropy = fmax(0, log(total) - expect(c, total)) / log(finite);
    const double found = low + (high - low) * pow(entropy, (double)s->dynamic_exponent);
    return fmaxf(SL_LEAST_TEMPERATURE, (float)found);
}

static void run_stage(candidates *c, const sl_sampler *s, sl_sampler_stage stage) {
    if (stage == SL_STAGE_TOP_N_SIGMA && s->top_n_sigma > 0) {
        keep_near_the_top(c, (double)s->top_n_sigma);
    } else if (stage == SL_STAGE_TOP_K && s->top_k > 0) {
        keep_best(c, s->top_k);
    } else if (stage == SL_STAGE_TYPICAL_P && s->typical_p > 0 && s->typical_p < 1) {
        keep_typical(c, (double)s->typical_p);
    } else if (stage == SL_STAGE_TOP_P && s->top_p < 1) {
        keep_likely(c, (double)s->top_p);
    } else if (stage == SL_STAGE_MIN_P && s->min_p > 0) {
        keep_from(c, c->largest + c->temperature * logf(s->min_p), INT32_MAX);
    } else if (stage == SL_STAGE_XTC && s->xtc_probability > 0) {
        exclude_top_choices(c, s);
    } else if (stage == SL_STAGE_TEMPERATURE) {
        c->temperature = find_temperature(c, s);
        c->weighed = false;
    }
}

static int32_t draw(candidates *c, const sl_sampler *s) {
    const double target = (double)sl_random_uniform(s, SL_RANDOM_DRAW) * weigh(c);
    double sum = 0;
    int32_t chosen = 0;
    for (int32_t i = 0; i < c->count && sum <= target; i++) {
        const float p = c->probabilities[i];
        chosen = p > 0 ? i : chosen;
        sum += p;
    }
    return c->ids[chosen];
}

/* Most masks leave few tokens: words without any are filled at once. */
static void apply_mask(candidates *c, const uint32_t *mask) {
    for (int32_t i = 0; i < c->count; i += 32) {
        const int32_t count = c->count - i < 32 ? c->count - i : 32;
        const uint32_t word = mask[i / 32];
        for (int32_t j = 0; j < count && word != UINT32_MAX; j++) {
            c->logits[i + j] = word >> j & 1u ? c->logits[i + j] : -INFINITY;
        }
    }
}

/* Copies the logits, adjusted; the place of the likeliest. */
static int32_t prepare(const sl_cpu_context *context, const sl_step_output *output, const float *logits,
                       candidates *c) {
    const vf lowest = vf_set1(-INFINITY), none = vf_set1(INFINITY);
    const int32_t padded = whole_vectors(c->count);
    for (int32_t i = 0; i < padded; i += VN) {
        const vf x = vf_load_part(logits + i, c->count - i);
        vf_store(c->logits + i, vf_select(vf_min(x, none), 0, c->count - i, lowest)); /* NaN: the second */
    }
    const sl_adjustment *adjustments = sl_output_adjustments(context->header, context->table_changes, output);
    for (int32_t i = 0; i < output->adjustment_count; i++) {
        const int32_t id = adjustments[i].token;
        if (id >= 0 && id < c->count) {
            c->logits[id] = sl_adjusted_logit(&adjustments[i], logits[id]);
        }
    }
    const uint32_t *mask = sl_output_mask(context->header, context->table_changes, output, c->count);
    if (mask) {
        apply_mask(c, mask);
    }
    vf top = lowest;
    for (int32_t i = 0; i < padded; i += VN) {
        top = vf_max(vf_load(c->logits + i), top);
    }
    c->largest = vf_largest(top);
    for (int32_t i = 0; i < c->count; i++) {
        if (c->logits[i] == c->largest) {
            return i;
        }
    }
    return 0;
}

static int32_t sample(const sl_cpu_context *context, const sl_step_output *output, const float *logits,
                      candidates *c) {
    const sl_sampler *s = &output->sampler;
    const int32_t best = prepare(context, output, logits, c);
    if (!isfinite(c->largest)) {
        return c->largest > 0 ? SL_NO_TOKEN : SL_NO_TOKEN_LEFT;
    }
    if (!(s->temperature > 0)) {
        return best;
    }
    for (int32_t i = 0; i < c->count; i++) {
        c->ids[i] = i;
    }
    c->temperature = 1;
    c->weighed = false;
    for (int32_t i = 0; i < SL_SAMPLER_STAGES && s->order[i] != SL_STAGE_END; i++) {
        run_stage(c, s, (sl_sampler_stage)s->order[i]);
    }
    return draw(c, s);
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
    candidates c = {.logits = sl_cpu_scratch(op, thread, threads)};
    const int32_t vocabulary = op->op->u.sample.vocabulary, padded = whole_vectors(vocabulary);
    c.probabilities = c.logits + padded;
    c.distances = c.probabilities + padded;
    c.ids = (int32_t *)(void *)(c.distances + padded);
    c.heap = c.ids + padded;
    for (int32_t i = sl_cpu_take(op, 0, 1); i < context->counts[SL_ROWS_OUTPUT]; i = sl_cpu_take(op, 0, 1)) {
        const sl_step_output *output = &context->outputs[i];
        c.count = vocabulary;
        const int32_t token = sample(context, output, sl_cpu_f32(&op->in[0], i), &c);
        *sl_cpu_i32(&op->out[0], i) = token;
        if (output->slot >= 0 && is_last_of_slot(context, i)) {
            context->last_tokens[output->slot] = token < 0 ? 0 : token;
        }
    }
}

#endif
