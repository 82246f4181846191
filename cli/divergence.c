/* sluice perplexity --kl: how far a model's probabilities are from those that base logits give. */
#include "perplexity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t hash_words(uint64_t hash, const void *words, size_t count) {
    const char *at = words;
    for (size_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, at + i * sizeof word, sizeof word);
        hash = (hash ^ word) * 0x100000001b3u;
    }
    return hash;
}

/* In doubles and in the order of the vocabulary. */
row_sum sum_row(const float *logits, size_t vocabulary) {
    row_sum s = {.most = logits[0]};
    double sum = 0;
    for (size_t i = 1; i < vocabulary; i++) {
        if (logits[i] > s.most) {
            s.most = logits[i];
            s.top = (int32_t)i;
        }
    }
    for (size_t i = 0; i < vocabulary; i++) {
        sum += exp((double)logits[i] - (double)s.most);
    }
    s.log_sum = log(sum);
    return s;
}

double log_probability(const float *logits, const row_sum *sum, size_t token) {
    return (double)logits[token] - (double)sum->most - sum->log_sum;
}

divergence_row compare_rows(const float *base, const float *model, size_t vocabulary, int32_t next) {
    const row_sum p = sum_row(base, vocabulary), q = sum_row(model, vocabulary);
    divergence_row row = {.same_top = p.top == q.top};
    for (size_t i = 0; i < vocabulary; i++) {
        const double log_p = log_probability(base, &p, i), share = exp(log_p);
        if (share > 0) { /* a probability of 0 adds nothing */
            row.divergence += share * (log_p - log_probability(model, &q, i));
        }
    }
    row.negative = -log_probability(base, &p, (size_t)next);
    row.change = exp(log_probability(model, &q, (size_t)next)) - exp(-row.negative);
    return row;
}

static int compare_divergence(const void *a, const void *b) {
    const double x = ((const divergence_row *)a)->divergence, y = ((const divergence_row *)b)->divergence;
    return (x > y) - (x < y);
}

/* Between two rows in proportion to how near each is. */
double percentile(const divergence_row *rows, size_t count, double share) {
    const double at = share * (double)(count - 1);
    const size_t low = (size_t)at, high = low + 1 < count ? low + 1 : low;
    const double part = at - (double)low;
    return part > 0 ? (1 - part) * rows[low].divergence + part * rows[high].divergence : rows[low].divergence;
}

divergence summarize_rows(divergence_row *rows, size_t count) {
    divergence d = {0};
    const double n = (double)count;
    double same = 0, squares = 0, deviation = 0;
    qsort(rows, count, sizeof *rows, compare_divergence);
    for (size_t i = 0; i < count; i++) {
        d.mean += rows[i].divergence;
        d.change += rows[i].change;
        d.negative += rows[i].negative;
        squares += rows[i].change * rows[i].change;
        same += rows[i].same_top;
    }
    d.mean /= n;
    for (size_t i = 0; i < count; i++) {
        deviation += (rows[i].divergence - d.mean) * (rows[i].divergence - d.mean);
    }
    d.error = count > 1 ? sqrt(deviation / (n - 1) / n) : 0;
    d.change /= n;
    d.negative /= n;
    d.change_root = sqrt(squares / n);
    d.same_top = same / n;
    d.median = percentile(rows, count, 0.5);
    d.high = percentile(rows, count, 0.99);
    d.most = rows[count - 1].divergence;
    return d;
}
