#include "sched/pace.h"

/* Longer than any step: sums of such times stay finite. */
static const double MOST_SECONDS = 1e6;
/* Weights of the last token drafted, in the sequence and in all, and of the last step measured: a slow one
 * may be slow for other reasons than its rows, a quick one can't. */
static const double NEWEST_TOKEN = 0.2, NEWEST_OF_ALL = 0.05, NEWEST_STEP = 0.25, NEWEST_QUICK_STEP = 0.5;
/* Of a draft that is not made, what one that is made teaches. */
static const double NEWEST_UNTRIED = 0.02;
/* Of what steps of more rows than those measured take beyond these, what is forgotten, so that what was slow
 * once is tried again. */
static const double FADING = 0.0005;
/* Of a step's time, what a row more takes while nothing is known; and least, whatever was measured. */
static const double USUAL_ROW = 0.1, LEAST_ROW = 0.01;

enum { SHORT_PAUSE = 4, FIRST_PAUSE = 16, LONGEST_PAUSE = 128, MISSES = 16, STEPS = 64 };

sl_luck sl_luck_begin(const sl_pace *pace) {
    return (sl_luck){.chances = pace->chances, .next_pause = pace->pause > 0 ? pace->pause : FIRST_PAUSE};
}

/* Of draft `i`: those behind the last that was ever made are like that one. */
static double chance_of(const sl_chances *chances, int32_t i) {
    return chances->made == 0 ? 0.5 : chances->right[i < chances->made ? i : chances->made - 1];
}

static void note(sl_chances *chances, double newest, int32_t drafted, int32_t accepted) {
    const int32_t judged = accepted < drafted ? accepted + 1 : drafted;
    const int32_t made = judged < SL_PACE_DRAFTS ? judged : SL_PACE_DRAFTS;
    for (int32_t i = chances->made; i < made; i++) {
        chances->right[i] = chance_of(chances, i);
    }
    chances->made = made > chances->made ? made : chances->made;
    for (int32_t i = 0; i < judged; i++) {
        double *right = &chances->right[i < SL_PACE_DRAFTS ? i : SL_PACE_DRAFTS - 1];
        *right += newest * ((i < accepted) - *right);
    }
    for (int32_t i = made; i < chances->made; i++) {
        chances->right[i] += NEWEST_UNTRIED * (chances->right[made - 1] - chances->right[i]);
    }
}

void sl_pace_note(sl_pace *pace, sl_luck *luck, int32_t drafted, int32_t accepted) {
    note(&pace->chances, NEWEST_OF_ALL, drafted, accepted);
    note(&luck->chances, NEWEST_TOKEN, drafted, accepted);
    luck->next_pause = accepted > 0 ? FIRST_PAUSE : luck->next_pause;
    luck->pause = accepted > 0 && luck->pause > SHORT_PAUSE ? SHORT_PAUSE : luck->pause;
    luck->misses = 0;
    if (++luck->steps >= STEPS && luck->pause == 0) {
        luck->steps = 0;
        luck->pause = 1; /* what a step without drafts takes stays known */
    }
    pace->pause = luck->next_pause;
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
    if (below == at) {
        return pace->seconds[at];
    }
    if (below == 0) {
        return above <= SL_PACE_ROWS ? pace->seconds[above] / (1 + USUAL_ROW * (above - at)) : 0;
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
    if (!pace->met[at]) {
        pace->met[at] = true; /* code and memory are new to the first one */
        return;
    }
    const double expected = seconds_of(pace, at);
    const double newest = seconds < expected ? NEWEST_QUICK_STEP : NEWEST_STEP;
    const double change = limited((seconds - expected) * newest, -expected, expected / 8);
    const bool known = pace->seconds[at] > 0;
    pace->seconds[at] = known          ? expected + change
                        : expected > 0 ? limited(seconds, 0, expected * 2)
                                       : seconds;
    for (int32_t i = at + 1; i <= SL_PACE_ROWS; i++) {
        const double more = pace->seconds[i] - pace->seconds[at];
        pace->seconds[i] -= more > 0 ? FADING * more : 0;
    }
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
        right *= chance_of(&luck->chances, i);
        gain += right;
    }
    return gain;
}

/* Of `most` drafts those whose steps can be judged: at most twice the rows that there ever were, as a guess
 * about many more that looks good would never be compared with few. */
static int32_t judged(const sl_pace *pace, int32_t rows, int32_t most) {
    int32_t largest = rows < SL_PACE_ROWS ? SL_PACE_ROWS : rows;
    while (largest > rows && pace->seconds[largest] <= 0) {
        largest--;
    }
    return most <= 2 * largest - rows ? most : 2 * largest - rows;
}

int32_t sl_pace_choose(const sl_pace *pace, const sl_luck *luck, int32_t rows, double tokens, int32_t most) {
    most = judged(pace, rows, most);
    int32_t best = most;
    double best_rate = 0, step = 0;
    for (int32_t drafts = most; drafts >= 0; drafts--) {
        /* Fewer rows never take longer: what is measured too seldom, or was when memory was new, must not
         * make drafts look free. */
        const double measured = seconds_of(pace, rows + drafts);
        step = drafts == most || measured < step ? measured : step;
        const double seconds = step > 0 ? step + drafts * pace->draft_seconds : 1 + USUAL_ROW * drafts;
        const double rate = (tokens + sl_luck_gain(luck, drafts)) / seconds;
        if (rate >= best_rate) {
            best = drafts;
            best_rate = rate;
        }
    }
    return best;
}

bool sl_pace_is_full(const sl_pace *pace, int32_t rows, double tokens) {
    const sl_luck right = {.chances = {.right = {0.95}, .made = 1}};
    return sl_pace_choose(pace, &right, rows, tokens, 4) == 0;
}
