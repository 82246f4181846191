#include "sched/mirostat.h"

#include "base/alloc.h"
#include "program/adjustment.h"

#include <math.h>
#include <stdbool.h>

enum { ESTIMATED = 100 }; /* of the likeliest, which Zipf's exponent is estimated from; the paper's m */

struct sl_mirostat {
    sl_mirostat_options options;
    double most; /* mu */
    float *logits;
    double *probabilities;
    int32_t *order; /* ids */
};

int sl_mirostat_create(const sl_mirostat_options *options, sl_mirostat **out, sl_error *error) {
    *out = NULL;
    const size_t count = (size_t)options->vocabulary;
    sl_mirostat *m = sl_alloc_zero(1, sizeof *m);
    if (m) {
        m->options = *options;
        m->most = 2 * (double)options->tau;
        m->logits = sl_alloc(count * sizeof *m->logits);
        m->probabilities = sl_alloc(count * sizeof *m->probabilities);
        m->order = sl_alloc(count * sizeof *m->order);
    }
    if (!m || !m->logits || !m->probabilities || !m->order) {
        sl_mirostat_destroy(m);
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for mirostat");
    }
    *out = m;
    return 0;
}

void sl_mirostat_destroy(sl_mirostat *m) {
    if (m) {
        sl_free(m->logits);
        sl_free(m->probabilities);
        sl_free(m->order);
        sl_free(m);
    }
}

double sl_mirostat_most(const sl_mirostat *m) {
    return m->most;
}

/* Of the adjusted logits over the temperature. False: there is nothing to draw from. */
static bool weigh(sl_mirostat *m, const sl_mirostat_row *row) {
    const int32_t vocabulary = m->options.vocabulary;
    float largest = -INFINITY;
    double total = 0;
    for (int32_t id = 0; id < vocabulary; id++) {
        m->logits[id] = sl_number_logit(row->logits[id]);
    }
    for (int32_t i = 0; i < row->adjustment_count; i++) {
        const int32_t id = row->adjustments[i].token;
        m->logits[id] = sl_adjusted_logit(&row->adjustments[i], row->logits[id]);
    }
    for (int32_t id = 0; id < vocabulary && row->mask; id++) {
        m->logits[id] = sl_is_masked(row->mask, id) ? -INFINITY : m->logits[id];
    }
    for (int32_t id = 0; id < vocabulary; id++) {
        largest = m->logits[id] > largest ? m->logits[id] : largest;
    }
    for (int32_t id = 0; id < vocabulary && isfinite(largest); id++) {
        m->probabilities[id] =
            exp(((double)m->logits[id] - (double)largest) / (double)m->options.temperature);
        total += m->probabilities[id];
    }
    for (int32_t id = 0; id < vocabulary && isfinite(largest); id++) {
        m->probabilities[id] /= total;
    }
    return isfinite(largest);
}

static bool is_better(const sl_mirostat *m, int32_t a, int32_t b) {
    return m->logits[a] > m->logits[b] || (m->logits[a] == m->logits[b] && a < b);
}

static void swap(int32_t *a, int32_t *b) {
    const int32_t held = *a;
    *a = *b;
    *b = held;
}

/* The `count` best of order[first, end) come first, in any order: quickselect. */
static void select_best(sl_mirostat *m, int32_t first, int32_t end, int32_t count) {
    int32_t *order = m->order;
    const int32_t last = first + count; /* of those wanted, past it */
    while (end - first > 1 && last > first && last < end) {
        swap(&order[first + (end - first) / 2], &order[end - 1]);
        int32_t better = first;
        for (int32_t i = first; i < end - 1; i++) {
            if (is_better(m, order[i], order[end - 1])) {
                swap(&order[i], &order[better++]);
            }
        }
        swap(&order[better], &order[end - 1]);
        if (better >= last) {
            end = better;
        } else {
            first = better + 1;
        }
    }
}

/* Zipf's exponent, by least squares on the likeliest: the sum of t b over the sum of t^2, for t = ln((i + 1)
 * / i) and b = ln(p_i / p_i+1), i counted from 1 (the paper's equation 30). */
static double estimate_exponent(sl_mirostat *m) {
    const int32_t count = m->options.vocabulary < ESTIMATED ? m->options.vocabulary : ESTIMATED;
    double above = 0, below = 0;
    select_best(m, 0, m->options.vocabulary, count);
    for (int32_t i = 1; i < count; i++) { /* a hundred: by insertion */
        for (int32_t at = i; at > 0 && is_better(m, m->order[at], m->order[at - 1]); at--) {
            swap(&m->order[at], &m->order[at - 1]);
        }
    }
    for (int32_t i = 1; i < count && m->probabilities[m->order[i]] > 0; i++) {
        const double t = log((i + 1.0) / i);
        above += t * log(m->probabilities[m->order[i - 1]] / m->probabilities[m->order[i]]);
        below += t * t;
    }
    return below > 0 ? above / below : 0;
}

/* How many candidates have the surprise mu on average, were they Zipf's (the paper's algorithm 1), the whole
 * part and at least one. */
static int32_t count_by_zipf(sl_mirostat *m) {
    const int32_t vocabulary = m->options.vocabulary;
    const double exponent = estimate_exponent(m), above_one = exponent - 1;
    const double factor =
        fabs(above_one) < 1e-9 ? 1 / log(fmax(2, vocabulary)) : above_one / (1 - pow(vocabulary, -above_one));
    const double count = pow(factor * exp2(m->most), 1 / exponent);
    return !(count < vocabulary) ? vocabulary : count < 1 ? 1 : (int32_t)count;
}

/* How many candidates are left, the first of `order`. */
static int32_t cut(sl_mirostat *m) {
    const int32_t vocabulary = m->options.vocabulary;
    int32_t left = 0;
    for (int32_t id = 0; id < vocabulary; id++) {
        m->order[id] = id;
    }
    if (m->options.version == 1) {
        left = count_by_zipf(m);
        select_best(m, 0, vocabulary, left);
        return left;
    }
    for (int32_t id = 0; id < vocabulary; id++) {
        if (m->probabilities[id] >= exp2(-m->most)) {
            m->order[left++] = id;
        }
    }
    if (left == 0) {
        select_best(m, 0, vocabulary, 1);
        left = 1;
    }
    return left;
}

int32_t sl_mirostat_sample(sl_mirostat *m, const sl_mirostat_row *row, double random) {
    if (!weigh(m, row)) {
        return SL_NO_TOKEN;
    }
    const int32_t left = cut(m);
    double total = 0, sum = 0;
    for (int32_t i = 0; i < left; i++) {
        total += m->probabilities[m->order[i]];
    }
    int32_t chosen = m->order[0];
    for (int32_t i = 0; i < left && sum <= random * total; i++) {
        if (m->probabilities[m->order[i]] > 0) {
            chosen = m->order[i];
            sum += m->probabilities[chosen];
        }
    }
    const double surprise = -log2(m->probabilities[chosen] / total);
    m->most -= (double)m->options.eta * (surprise - (double)m->options.tau);
    return chosen;
}
