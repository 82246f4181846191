#include "sched/budget.h"

#include <stddef.h>

/* Longer than any step: sums of such times stay finite. */
static const double MOST_SECONDS = 1e6;

/* A bucket's first step does not count: code and memory may be new to the device. A step that takes longer
 * than expected is a reason not to run another like it, so times grow at once; but not far, as it may have
 * been an accident. What was measured of other buckets fades, so that one which was slow once is tried again.
 */
static void measure_bucket(sl_budget *budget, int32_t bucket, double seconds) {
    static const double FADING = 0.999, NEWEST = 0.25, MOST_GROWTH = 1.25;
    for (int32_t b = 0; b < budget->bucket_count; b++) {
        budget->buckets[b].seconds *= b == bucket ? 1 : FADING;
    }
    sl_budget_bucket *t = &budget->buckets[bucket];
    if (t->steps == 1) {
        t->seconds = seconds;
    } else if (t->steps > 1 && seconds <= t->seconds) {
        t->seconds += (seconds - t->seconds) * NEWEST;
    } else if (t->steps > 1) {
        t->seconds = seconds < t->seconds * MOST_GROWTH ? seconds : t->seconds * MOST_GROWTH;
    }
    t->steps += t->steps < 2;
}

static void measure_plain(sl_budget *budget, sl_budget_bucket *t, double seconds) {
    static const double NEWEST = 0.125;
    const bool is_new = t->steps == 0 && t->plain_steps == 0;
    if (!is_new) {
        t->plain_seconds += (seconds - t->plain_seconds) * (t->plain_steps > 1 ? NEWEST : 1);
        budget->plain_seconds += (seconds - budget->plain_seconds) * (budget->plain_known ? NEWEST : 1);
        budget->plain_known = true;
    }
    t->plain_steps += t->plain_steps < 2;
}

/* Shrinks at once and grows slowly: whoever waits for a step's end must not wait beyond it. Of a step that
 * was over by then it is not known how long it took, and its time has the wait in it. */
static void expect(sl_budget_bucket *bucket, double seconds, bool over) {
    static const double EARLIER = 0.75;
    const bool shorter = bucket->least == 0 || seconds < bucket->least;
    if (over) {
        bucket->least *= EARLIER;
        return;
    }
    bucket->least += (seconds - bucket->least) * (shorter ? 1 : 0.125);
}

void sl_budget_measured(sl_budget *budget, sl_budget_step step, double seconds) {
    if (!(seconds >= 0 && seconds <= MOST_SECONDS)) {
        return;
    }
    sl_budget_bucket *bucket = &budget->buckets[step.bucket];
    expect(bucket, seconds, step.over);
    if (step.prompt_rows == 0) {
        measure_plain(budget, bucket, seconds);
        return;
    }
    if (step.other_rows > 0) {
        measure_bucket(budget, step.bucket, seconds);
    }
    budget->prompt_rows = budget->prompt_rows * 0.875 + step.prompt_rows;
    budget->prompt_seconds = budget->prompt_seconds * 0.875 + seconds;
    budget->prompt_steps = budget->prompt_steps * 0.875 + 1;
}

/* Of a step of these rows alone, as their bucket was measured: of few sequences it is shorter than of those
 * that generated just before. */
static double plain_of(const sl_budget *budget, int32_t rows, int32_t outputs) {
    for (int32_t b = 0; b < budget->bucket_count; b++) {
        const sl_budget_bucket *bucket = &budget->buckets[b];
        if (bucket->rows >= rows && bucket->outputs >= outputs) {
            return bucket->plain_seconds > 0 ? bucket->plain_seconds : budget->plain_seconds;
        }
    }
    return budget->plain_seconds;
}

/* Whole halves of pages: recurrent models end steps at pages' ends. */
static int32_t whole_rows(double rows, int32_t most) {
    if (rows >= most) {
        return most;
    }
    const int32_t whole = (int32_t)rows / SL_LEAST_PROMPT_ROWS * SL_LEAST_PROMPT_ROWS;
    const int32_t least = most < SL_LEAST_PROMPT_ROWS ? most : SL_LEAST_PROMPT_ROWS;
    return whole > least ? whole : least;
}

/* Launches of a bucket take about the same time whatever rows are in them, and the next bucket may have other
 * kernels: the largest that lasts no longer than `longer` more than the rows alone, by what its steps with
 * prompts took. Of those that had none yet only the next one is tried, if it would be short enough at a
 * quarter of what it has more rows. */
static double bucket_rows(const sl_budget *budget, double longer, int32_t rows, int32_t outputs) {
    const double plain = plain_of(budget, rows, outputs), most = plain + (longer < 0 ? plain : longer);
    const sl_budget_bucket *best = NULL, *next = NULL; /* next: the first behind it */
    for (int32_t b = 0; b < budget->bucket_count; b++) {
        const sl_budget_bucket *bucket = &budget->buckets[b];
        if (bucket->rows <= rows || bucket->outputs <= outputs) {
            continue;
        }
        if (bucket->seconds > most) {
            next = next ? next : bucket;
            break;
        }
        if (bucket->seconds > 0) {
            best = bucket;
            next = NULL;
        } else {
            next = next ? next : bucket;
        }
    }
    if (next && next->seconds == 0) {
        const double before = best ? best->seconds : plain, rows_before = best ? best->rows : rows;
        best = before * (0.75 + 0.25 * next->rows / rows_before) > most ? best : next;
    }
    return best ? best->rows - rows : 0;
}

int32_t sl_budget_rows(const sl_budget *budget, double seconds, int32_t rows, int32_t outputs, int32_t most) {
    if (seconds == 0 || budget->prompt_rows == 0) {
        return most;
    }
    if (!budget->plain_known) {
        return 0;
    }
    if (budget->by_bucket) {
        return whole_rows(bucket_rows(budget, seconds, rows, outputs), most);
    }
    const double longer = seconds < 0 ? budget->plain_seconds : seconds;
    /* What a step takes without them is not theirs. */
    const double theirs = budget->prompt_seconds - budget->prompt_steps * budget->plain_seconds;
    const double least_seconds = 0.01 * budget->prompt_seconds + 1e-9;
    return whole_rows(longer * budget->prompt_rows / (theirs > least_seconds ? theirs : least_seconds), most);
}
