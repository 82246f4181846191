#include "sched/pace.h"

/* Longer than any step: sums of such times stay finite. */
static const double MOST_SECONDS = 1e6;
/* Weights of the last token drafted, in the sequence and in all, and of the last step measured. */
static const double NEWEST_TOKEN = 0.2, NEWEST_OF_ALL = 0.05, NEWEST_STEP = 0.25;
/* What is not measured any more fades, so that what was slow once is tried again. */
static const double FADING = 0.999;
/* Of a step's time, what a row more takes while nothing is known; and least, whatever was measured. */
static const double USUAL_ROW = 0.1, LEAST_ROW = 0.01;

enum { FIRST_PAUSE = 16, LONGEST_PAUSE = 128, MISSES = 16 };

sl_luck sl_luck_begin(const sl_pace *pace) {
    return (sl_luck){.chance = pace->chance_known ? pace->chance : 0.5, .next_pause = FIRST_PAUSE};
}

static void note(double *chance, double newest, int32_t drafted, int32_t accepted) {
    for (int32_t i = 0; i < accepted; i++) {
        *chance += newest * (1 - *chance);
    }
    if (accepted < drafted) {
        *chance -= newest * *chance;
    }
}

void sl_pace_note(sl_pace *pace, sl_luck *luck, int32_t drafted, int32_t accepted) {
    pace->chance = pace->chance_known ? pace->chance : 0.5;
    pace->chance_known = true;
    note(&pace->chance, NEWEST_OF_ALL, drafted, accepted);
    note(&luck->chance, NEWEST_TOKEN, drafted, accepted);
    luck->next_pause = accepted > 0 ? FIRST_PAUSE : luck->next_pause;
    luck->pause = accepted > 0 ? 0 : luck->pause;
    luck->misses = 0;
}

void sl_luck_rest(sl_luck *luck) {
    luck->pause = luck->next_pause;
    luck->next_pause = luck->next_pause < LONGEST_PAUSE / 2 ? luck->next_pause * 2 : LONGEST_PAUSE;
}

void sl_luck_miss(sl_luck *luck) {
    if (++luck->misses >= MISSES) {
        luck->misses = 0;
        luck->pause = MISSES / 2;
    }
}

void sl_luck_pass(sl_luck *luck) {
    luck->pause -= luck->pause > 0;
}

/* Of a step with so many rows: between those that were measured, or on from the last of them; 0: none was. */
static double seconds_of(const sl_pace *pace, int32_t rows) {
    const int32_t at = rows < SL_PACE_ROWS ? rows : SL_PACE_ROWS;
    int32_t below = at, above = at;
    while (below > 0 && pace->seconds[below] <= 0) {
        below--;
    }
    while (above <= SL_PACE_ROWS && pace->seconds[above] <= 0) {
        above++;
    }
    if (below == at || below == 0) {
        return above <= SL_PACE_ROWS ? pace->seconds[above] : 0;
    }
    double row = USUAL_ROW * pace->seconds[below];
    if (above <= SL_PACE_ROWS) {
        row = (pace->seconds[above] - pace->seconds[below]) / (above - below);
    } else {
        int32_t first = 1;
        while (first < below && pace->seconds[first] <= 0) {
            first++;
        }
        row = first < below ? (pace->seconds[below] - pace->seconds[first]) / (below - first) : row;
    }
    const double least = LEAST_ROW * pace->seconds[below];
    return pace->seconds[below] + (at - below) * (row > least ? row : least);
}

static double limited(double value, double least, double most) {
    return value < least ? least : value > most ? most : value;
}

void sl_pace_measured(sl_pace *pace, int32_t rows, double seconds) {
    if (rows < 1 || !(seconds > 0 && seconds <= MOST_SECONDS)) {
        return;
    }
    const int32_t at = rows < SL_PACE_ROWS ? rows : SL_PACE_ROWS;
    const double expected = seconds_of(pace, at);
    /* A step now and then takes far longer, for reasons that are not its rows. */
    const double change = limited((seconds - expected) * NEWEST_STEP, -expected / 4, expected / 4);
    const bool known = pace->seconds[at] > 0;
    for (int32_t i = 1; i <= SL_PACE_ROWS; i++) {
        pace->seconds[i] *= FADING;
    }
    pace->seconds[at] = known          ? expected + change
                        : expected > 0 ? limited(seconds, expected / 2, expected * 2)
                                       : seconds;
}

void sl_pace_drafted(sl_pace *pace, int32_t tokens, double seconds) {
    if (tokens < 1 || !(seconds > 0 && seconds <= MOST_SECONDS)) {
        return;
    }
    const double each = seconds / tokens;
    pace->draft_seconds += pace->draft_seconds > 0 ? (each - pace->draft_seconds) * NEWEST_STEP : each;
}

double sl_luck_gain(const sl_luck *luck, int32_t drafts) {
    double gain = 0, right = 1;
    for (int32_t i = 0; i < drafts; i++) {
        right *= luck->chance;
        gain += right;
    }
    return gain;
}

int32_t sl_pace_choose(const sl_pace *pace, const sl_luck *luck, int32_t rows, double tokens, int32_t most) {
    int32_t best = 0;
    double best_rate = 0;
    for (int32_t drafts = 0; drafts <= most; drafts++) {
        const double seconds = seconds_of(pace, rows + drafts) + drafts * pace->draft_seconds;
        const double rate = (tokens + sl_luck_gain(luck, drafts)) / (seconds > 0 ? seconds : 1);
        if (drafts == 0 || rate > best_rate) {
            best = drafts;
            best_rate = rate;
        }
    }
    return best;
}

bool sl_pace_is_full(const sl_pace *pace, int32_t rows, double tokens) {
    const sl_luck right = {.chance = 0.95};
    return sl_pace_choose(pace, &right, rows, tokens, 4) == 0;
}
