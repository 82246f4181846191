/* The sampler of program/step.h. Sums are double; candidates are ordered by logit, ties by lower id. The draw
 * walks the candidates that are left in order of id, so that it needs no sorted list. */
#include "program/random.h"
#include "backend/cpu/plain/plain.h"

#include <math.h>

uint64_t sl_plain_sample_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    return sl_cpu_scratch_bytes(query,
                                (uint64_t)query->op->u.sample.vocabulary * (sizeof(float) + sizeof(int32_t)));
}

/* The candidates of one output. */
typedef struct candidates {
    float *logits; /* [count], penalised; NaN counts as -infinity */
    int32_t *
        heap; /* ids: [0, heap_count) a heap with the best on top, then those taken off, the last one first */
    int32_t count, heap_count;
    float largest, temperature;
} candidates;

static bool is_better(const candidates *c, int32_t a, int32_t b) {
    return c->logits[a] > c->logits[b] || (c->logits[a] == c->logits[b] && a < b);
}

static void sift_down(candidates *c, int32_t at) {
    const int32_t id = c->heap[at];
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= c->heap_count) {
            break;
        }
        if (child + 1 < c->heap_count && is_better(c, c->heap[child + 1], c->heap[child])) {
            child++;
        }
        if (is_better(c, id, c->heap[child])) {
            break;
        }
        c->heap[at] = c->heap[child];
        at = child;
    }
    c->heap[at] = id;
}

/* Takes the best off. */
static int32_t pop(candidates *c) {
    const int32_t best = c->heap[0];
    c->heap[0] = c->heap[--c->heap_count];
    c->heap[c->heap_count] = best;
    if (c->heap_count > 0) {
        sift_down(c, 0);
    }
    return best;
}

static void make_heap(candidates *c) {
    c->heap_count = c->count;
    for (int32_t i = 0; i < c->count; i++) {
        c->heap[i] = i;
    }
    for (int32_t i = c->count / 2 - 1; i >= 0; i--) {
        sift_down(c, i);
    }
}

/* Relative to the likeliest candidate's. */
static float probability(const candidates *c, int32_t id) {
    return expf((c->logits[id] - c->largest) / c->temperature);
}

/* The worst candidate that top-k and top-p leave, or SL_NONE when they leave all. */
static int32_t find_cut(candidates *c, const sl_sampler *sampler) {
    const bool by_count = sampler->top_k > 0 && sampler->top_k < c->count;
    const bool by_sum = sampler->top_p < 1.0f;
    if (!by_count && !by_sum) {
        return SL_NONE;
    }
    const int32_t most = by_count ? sampler->top_k : c->count;
    make_heap(c);
    double total = 0;
    for (int32_t i = 0; i < most; i++) {
        total += probability(c, by_count ? pop(c) : i);
    }
    int32_t cut = by_count ? c->heap[c->count - most] : SL_NONE;
    double sum = 0;
    for (int32_t i = 0; by_sum && i < most; i++) {
        cut = by_count ? c->heap[c->count - 1 - i] : pop(c);
        sum += probability(c, cut);
        if (sum >= (double)sampler->top_p * total) {
            break;
        }
    }
    return cut;
}

static bool is_left(const candidates *c, const sl_sampler *sampler, int32_t cut, int32_t id) {
    return (cut == SL_NONE || id == cut || is_better(c, id, cut)) && probability(c, id) >= sampler->min_p;
}

static int32_t draw(candidates *c, const sl_sampler *sampler) {
    const int32_t cut = find_cut(c, sampler);
    double total = 0;
    for (int32_t id = 0; id < c->count; id++) {
        total += is_left(c, sampler, cut, id) ? probability(c, id) : 0.0f;
    }
    const double target = (double)sl_random_uniform(sampler) * total;
    double sum = 0;
    int32_t chosen = 0;
    for (int32_t id = 0; id < c->count; id++) {
        const float p = is_left(c, sampler, cut, id) ? probability(c, id) : 0.0f;
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
    for (int32_t id = 0; id < c->count; id++) {
        c->logits[id] = logits[id] == logits[id] ? logits[id] : -INFINITY;
    }
    /* From the original logit each time: a token counts once however often it is in the history. */
    for (int32_t i = 0; i < output->history_count && sampler->repetition_penalty > 0; i++) {
        const int32_t id = context->history[output->history_first + i];
        if (id >= 0 && id < c->count && logits[id] == logits[id]) {
            c->logits[id] = logits[id] > 0 ? logits[id] / sampler->repetition_penalty
                                           : logits[id] * sampler->repetition_penalty;
        }
    }
    int32_t best = 0;
    for (int32_t id = 1; id < c->count; id++) {
        best = is_better(c, id, best) ? id : best;
    }
    c->largest = c->logits[best];
    c->temperature = sampler->temperature;
    return sampler->temperature > 0 && isfinite(c->largest) ? draw(c, sampler) : best;
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
    c.heap = (int32_t *)(void *)(c.logits + c.count);
    for (int32_t i = sl_cpu_take(op, 0, 1); i < context->counts[SL_ROWS_OUTPUT]; i = sl_cpu_take(op, 0, 1)) {
        const sl_step_output *output = &context->outputs[i];
        const int32_t token = sample(context, output, sl_cpu_f32(&op->in[0], i), &c);
        *sl_cpu_i32(&op->out[0], i) = token;
        if (output->slot >= 0 && is_last_of_slot(context, i)) {
            context->last_tokens[output->slot] = token;
        }
    }
}
