#include "sched/halves.h"

#include <string.h>

/* Longer than any step: sums of such times stay finite. */
static const double MOST_SECONDS = 1e6;
/* Of a round's time, what the other way must save: a change costs a round. */
static const double LEAST_GAIN = 0.03;

enum {
    SETTLING = 4,      /* steps behind a change that are not like those that come */
    FIRST_PAUSE = 256, /* rounds; twice as many behind each trial that changes nothing */
    LONGEST_PAUSE = 8192,
    MOST_LOST = 64, /* steps that say nothing, between two rounds of a trial: then it ends */
};

static int32_t index_of(int32_t works) {
    int32_t index = 0;
    while (index < SL_HALVES_SIZES - 1 && works > (int32_t)2 << index) {
        index++;
    }
    return index;
}

bool sl_halves_pay(const sl_halves *h, int32_t works) {
    const sl_halves_size *size = &h->sizes[index_of(works)];
    return size->halved != size->trying;
}

static void begin_round(sl_halves *h) {
    h->seconds = 0;
    h->generated = h->parts = 0;
}

/* The way that is kept goes on. What was not decided is tried again as soon as it was. */
static void end_trial(sl_halves_size *size, bool decided) {
    const int32_t longer = size->pause < LONGEST_PAUSE / 2 ? size->pause * 2 : LONGEST_PAUSE;
    size->pause = size->pause == 0 ? FIRST_PAUSE : decided ? longer : size->pause;
    size->left = size->pause;
    size->trying = false;
    size->rounds = 0;
}

static double median_of(const double tokens[SL_HALVES_ROUNDS]) {
    double sorted[SL_HALVES_ROUNDS];
    for (int32_t i = 0; i < SL_HALVES_ROUNDS; i++) {
        int32_t at = i;
        for (; at > 0 && sorted[at - 1] > tokens[i]; at--) {
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = tokens[i];
    }
    return sorted[SL_HALVES_ROUNDS / 2];
}

/* Rounds of other numbers of sequences have other times. */
static bool is_like(int32_t a, int32_t b) {
    return 8 * (a - b) <= b && 8 * (b - a) <= b;
}

static void take_round(sl_halves_size *size, int32_t works, double token) {
    if (!size->trying && size->left > 0) {
        size->left--;
        return;
    }
    if (size->trying && !is_like(works, size->works)) {
        end_trial(size, false);
        return;
    }
    if (!size->trying && (size->rounds == 0 || !is_like(works, size->works))) {
        size->works = works;
        size->rounds = 0;
    }
    size->tokens[size->rounds++] = token;
    size->lost = 0;
    if (size->rounds < SL_HALVES_ROUNDS) {
        return;
    }
    const double median = median_of(size->tokens);
    if (!size->trying) {
        size->kept = median;
        size->trying = true;
        size->rounds = 0;
        return;
    }
    if (median < size->kept * (1 - LEAST_GAIN)) {
        size->halved = !size->halved;
        size->pause = 0;
    }
    end_trial(size, true);
}

void sl_halves_measured(sl_halves *h, sl_halves_step step, double seconds) {
    if (step.works < 2) {
        return;
    }
    sl_halves_size *size = &h->sizes[index_of(step.works)];
    const bool known = step.generated > 0 && seconds > 0 && seconds <= MOST_SECONDS &&
                       step.halved == sl_halves_pay(h, step.works);
    if (!known || step.halved != h->halved) {
        h->steps = 0;
        begin_round(h);
    }
    h->halved = step.halved;
    if (!known) {
        if (size->trying && ++size->lost >= MOST_LOST) {
            end_trial(size, false);
        }
        return;
    }
    if (h->steps++ < SETTLING) {
        return;
    }
    h->seconds += seconds;
    h->generated += step.generated;
    if (step.halved && ++h->parts < 2) {
        return;
    }
    const double token = h->seconds / h->generated;
    begin_round(h);
    take_round(size, step.works, token);
}
