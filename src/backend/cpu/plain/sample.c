/* The sampler of program/step.h. Sums are double, in order of id, but for the candidates that top-k,
 * typical-p and top-p keep, which are added in the order in which they are taken. What a stage drops gets a
 * logit of -infinity. The draw walks the candidates that are left in order of id, so that it needs no sorted
 * list. */
#include "program/adjustment.h"
#include "program/random.h"
#include "backend/cpu/plain/plain.h"

#include <math.h>

uint64_t sl_plain_sample_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    return sl_cpu_scratch_bytes(query, (uint64_t)query->op->u.sample.vocabulary *
                                           (2 * sizeof(float) + sizeof(int32_t)));
}

/* The candidates of one output. */
typedef struct candidates {
    float *logits;      /* [count], adjusted */
    float *distances;   /* [count]: of the logit over the temperature from what it is expected to be */
    int32_t *heap;      /* ids, the first on top */
    bool nearest_first; /* the heap's order: by distance, not by logit */
    int32_t count, heap_count;
    float largest, temperature;
} candidates;

/* Ties by lower id. */
static bool is_better(const candidates *c, int32_t a, int32_t b) {
    return c->logits[a] > c->logits[b] || (c->logits[a] == c->logits[b] && a < b);
}

static bool comes_first(const candidates *c, int32_t a, int32_t b) {
    const float *d = c->distances;
    return c->nearest_first ? d[a] < d[b] || (d[a] == d[b] && a < b) : is_better(c, a, b);
}

static void sift_down(candidates *c, int32_t at) {
    const int32_t id = c->heap[at];
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= c->heap_count) {
            break;
        }
        if (child + 1 < c->heap_count && comes_first(c, c->heap[child + 1], c->heap[child])) {
            child++;
        }
        if (comes_first(c, id, c->heap[child])) {
            break;
        }
        c->heap[at] = c->heap[child];
        at = child;
    }
    c->heap[at] = id;
}

/* Takes the first off. */
static int32_t pop(candidates *c) {
    const int32_t first = c->heap[0];
    c->heap[0] = c->heap[--c->heap_count];
    if (c->heap_count > 0) {
        sift_down(c, 0);
    }
    return first;
}

/* The logit over the temperature, relative to the likeliest candidate's. */
static float scaled(const candidates *c, int32_t id) {
    return (c->logits[id] - c->largest) / c->temperature;
}

/* Relative to the likeliest candidate's; 0 when it was dropped. */
static float probability(const candidates *c, int32_t id) {
    return expf(scaled(c, id));
}

/* Keeps the first candidates, `most` of them or as soon as they have this part of the sum of all. */
static void keep_first(candidates *c, int32_t most, float part) {
    double total = 0, sum = 0;
    c->heap_count = 0;
    for (int32_t id = 0; id < c->count; id++) {
        if (c->logits[id] > -INFINITY) {
            c->heap[c->heap_count++] = id;
            total += probability(c, id);
        }
    }
    for (int32_t i = c->heap_count / 2 - 1; i >= 0; i--) {
        sift_down(c, i);
    }
    for (int32_t taken = 0; taken < most && c->heap_count > 0; taken++) {
        sum += probability(c, pop(c));
        if (sum >= (double)part * total) {
            break;
        }
    }
    for (int32_t i = 0; i < c->heap_count; i++) {
        c->logits[c->heap[i]] = -INFINITY;
    }
}

/* Drops what lies below. */
static void drop_below(candidates *c, float logit) {
    for (int32_t id = 0; id < c->count; id++) {
        c->logits[id] = c->logits[id] < logit ? -INFINITY : c->logits[id];
    }
}

/* After the likeliest may have gone: probabilities are relative to the likeliest that is left. */
static void find_largest(candidates *c) {
    c->largest = -INFINITY;
    for (int32_t id = 0; id < c->count; id++) {
        c->largest = fmaxf(c->largest, c->logits[id]);
    }
}

/* The sum of all probabilities and what a logit over the temperature, less the largest, is expected to be;
 * returns how many candidates are left. */
static int32_t expect(const candidates *c, double *total, double *expected) {
    double moment = 0;
    int32_t left = 0;
    *total = 0;
    for (int32_t id = 0; id < c->count; id++) {
        const float p = probability(c, id);
        *total += p;
        moment += p > 0 ? (double)p * scaled(c, id) : 0;
        left += c->logits[id] > -INFINITY;
    }
    *expected = moment / *total;
    return left;
}

static void keep_typical(candidates *c, float part) {
    double total, expected;
    expect(c, &total, &expected);
    for (int32_t id = 0; id < c->count; id++) {
        c->distances[id] = fabsf(scaled(c, id) - (float)expected);
    }
    c->nearest_first = true;
    keep_first(c, c->count, part);
    c->nearest_first = false;
    find_largest(c);
}

static void keep_near_the_top(candidates *c, float deviations) {
    double sum = 0, squares = 0;
    int32_t left = 0;
    for (int32_t id = 0; id < c->count; id++) {
        const bool finite = c->logits[id] > -INFINITY;
        sum += finite ? (double)c->logits[id] : 0;
        left += finite;
    }
    for (int32_t id = 0; id < c->count; id++) {
        const double away = c->logits[id] > -INFINITY ? (double)c->logits[id] - sum / left : 0;
        squares += away * away;
    }
    drop_below(c, (float)((double)c->largest - (double)deviations * sqrt(squares / left)));
}

static void exclude_top_choices(candidates *c, const sl_sampler *sampler) {
    double total, expected;
    int32_t last = SL_NONE, choices = 0;
    if (!(sl_random_uniform(sampler, SL_RANDOM_XTC) < sampler->xtc_probability)) {
        return;
    }
    expect(c, &total, &expected);
    const double least = (double)sampler->xtc_threshold * total;
    for (int32_t id = 0; id < c->count; id++) {
        if (c->logits[id] > -INFINITY && (double)probability(c, id) >= least) {
            last = last == SL_NONE || !is_better(c, id, last) ? id : last;
            choices++;
        }
    }
    for (int32_t id = 0; id < c->count && choices > 1; id++) {
        c->logits[id] = id != last && is_better(c, id, last) ? -INFINITY : c->logits[id];
    }
    find_largest(c);
}

static float find_temperature(const candidates *c, const sl_sampler *sampler) {
    double total, expected;
    if (!(sampler->dynamic_range > 0)) {
        return sampler->temperature;
    }
    const int32_t left = expect(c, &total, &expected);
    if (left < 2) {
        return sampler->temperature;
    }
    const double low = fmax(0, (double)sampler->temperature - (double)sampler->dynamic_range);
    const double high = (double)sampler->temperature + (double)sampler->dynamic_range;
    const double entropy = fmax(0, log(total) - expected) / log(left);
    const double found = low + (high - low) * pow(entropy, (double)sampler->dynamic_exponent);
    return fmaxf(SL_LEAST_TEMPERATURE, (float)found);
}

static void run_stage(candidates *c, const sl_sampler *sampler, sl_sampler_stage stage) {
    if (stage == SL_STAGE_TOP_N_SIGMA && sampler->top_n_sigma > 0) {
        keep_near_the_top(c, sampler->top_n_sigma);
    } else if (stage == SL_STAGE_TOP_K && sampler->top_k > 0) {
        keep_first(c, sampler->top_k, INFINITY);
    } else if (stage == SL_STAGE_TYPICAL_P && sampler->typical_p > 0 && sampler->typical_p < 1) {
        keep_typical(c, sampler->typical_p);
    } else if (stage == SL_STAGE_TOP_P && sampler->top_p < 1) {
        keep_first(c, c->count, sampler->top_p);
    } else if (stage == SL_STAGE_MIN_P && sampler->min_p > 0) {
        drop_below(c, c->largest + c->temperature * logf(sampler->min_p));
    } else if (stage == SL_STAGE_XTC && sampler->xtc_probability > 0) {
        exclude_top_choices(c, sampler);
    } else if (stage == SL_STAGE_TEMPERATURE) {
        c->temperature = find_temperature(c, sampler);
    }
}

static int32_t draw(const candidates *c, const sl_sampler *sampler) {
    double total = 0, sum = 0;
    for (int32_t id = 0; id < c->count; id++) {
        total += probability(c, id);
    }
    const double target = (double)sl_random_uniform(sampler, SL_RANDOM_DRAW) * total;
    int32_t chosen = 0;
    for (int32_t id = 0; id < c->count; id++) {
        const float p = probability(c, id);
        if (p > 0) {
            chosen = id;
            sum += p;
            if (sum > target) {
                break;
            }
        }
    }
    return chosen;
}

static int32_t sample(const sl_cpu_context *context, const sl_step_output *output, const float *logits,
                      candidates *c) {
    const sl_sampler *sampler = &output->sampler;
    const sl_adjustment *adjustments = sl_output_adjustments(context->header, context->table_changes, output);
    int32_t best = 0;
    for (int32_t id = 0; id < c->count; id++) {
        c->logits[id] = sl_number_logit(logits[id]);
    }
    for (int32_t i = 0; i < output->adjustment_count; i++) {
        const int32_t id = adjustments[i].token;
        if (id >= 0 && id < c->count) {
            c->logits[id] = sl_adjusted_logit(&adjustments[i], logits[id]);
        }
    }
    const uint32_t *mask = sl_output_mask(context->header, context->table_changes, output, c->count);
    for (int32_t id = 0; mask && id < c->count; id++) {
        c->logits[id] = sl_is_masked(mask, id) ? -INFINITY : c->logits[id];
    }
    for (int32_t id = 1; id < c->count; id++) {
        best = is_better(c, id, best) ? id : best;
    }
    c->largest = c->logits[best];
    if (!isfinite(c->largest)) {
        return c->largest > 0 ? SL_NO_TOKEN : SL_NO_TOKEN_LEFT;
    }
    if (!(sampler->temperature > 0)) {
        return best;
    }
    c->temperature = 1;
    c->nearest_first = false;
    for (int32_t i = 0; i < SL_SAMPLER_STAGES && sampler->order[i] != SL_STAGE_END; i++) {
        run_stage(c, sampler, (sl_sampler_stage)sampler->order[i]);
    }
    return draw(c, sampler);
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

void sl_plain_sample(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    candidates c = {.count = op->op->u.sample.vocabulary, .logits = sl_cpu_scratch(op, thread, threads)};
    c.distances = c.logits + c.count;
    c.heap = (int32_t *)(void *)(c.distances + c.count);
    for (int32_t i = sl_cpu_take(op, 0, 1); i < context->counts[SL_ROWS_OUTPUT]; i = sl_cpu_take(op, 0, 1)) {
        const sl_step_output *output = &context->outputs[i];
        const int32_t token = sample(context, output, sl_cpu_f32(&op->in[0], i), &c);
        *sl_cpu_i32(&op->out[0], i) = token;
        if (output->slot >= 0 && is_last_of_slot(context, i)) {
            context->last_tokens[output->slot] = token < 0 ? 0 : token;
        }
    }
}
