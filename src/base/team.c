#include "base/team.h"

enum { MILLISECOND = 1000000 };
/* From a team's shrinking to the trial of a larger one; each trial that fails doubles it. */
static const int64_t FIRST_TRIAL = 20 * MILLISECOND, LAST_TRIAL = 200 * MILLISECOND;
/* And not before so many times what the trial lost: that is a part of 5 % at most. */
static const int64_t TRIAL_PART = 20;
/* A larger team may do well at first, until the kernel moves a thread. */
static const int64_t TRIAL_LASTS = 2000 * MILLISECOND;

/* Parts of the time that threads could work. */
static const double CONTENDED = 0.25; /* without a processor: more than the caller's own other threads take */
static const double SHRINK = 0.65;    /* at work, when contended: fewer threads do as much */
/* Of the time that runs take. Of a large team the first of these is enough: all others wait meanwhile. It
 * counts threads only that are often delayed (CONTENDED), as every thread is for a moment when it wakes. */
static const double KEPT = 0.5;
/* A thread that shares a processor, and another that is late now and then, are one. */
static const double LATE = 0.25;

sl_team sl_team_begin(int threads, int processors) {
    return (sl_team){
        .size = threads,
        .useful = threads < processors ? threads : processors,
        .contended = threads > processors,
        .trial_after = FIRST_TRIAL,
    };
}

void sl_team_add_delay(sl_team_seen *seen, int64_t delay) {
    seen->delayed += delay;
    if ((double)delay > CONTENDED * (double)seen->taken) {
        seen->kept += delay;
    }
}

bool sl_team_is_unsettled(const sl_team *team) {
    return team->was_idle || team->began;
}

/* Without as many as were delayed at once. */
static int without_delayed(const sl_team *team, double delayed) {
    const int whole = (int)delayed;
    const int leave = delayed - whole > LATE || whole < 1 ? whole + 1 : whole;
    const int size = team->size - leave;
    return size < 1 ? 1 : size < team->useful ? size : team->useful;
}

static void end_trial(sl_team *team) {
    team->before = 0;
    team->lost = 0;
}

static void shrink(sl_team *team, int size, int64_t now) {
    const int64_t doubled = 2 * team->trial_after;
    team->trial_after = team->before == 0 ? FIRST_TRIAL : doubled < LAST_TRIAL ? doubled : LAST_TRIAL;
    const int64_t paid = TRIAL_PART * team->lost;
    team->trial_at = now + (paid > team->trial_after ? paid : team->trial_after);
    team->size = size;
    /* A larger team than before the trial has not failed yet. */
    if (size <= team->before) {
        end_trial(team);
    }
}

void sl_team_judge(sl_team *team, const sl_team_seen *seen, int64_t now) {
    const double taken = (double)seen->taken;
    const double at_work = team->size - (double)seen->waited / taken;
    const double delayed = (double)seen->delayed / taken;
    const double kept = (double)seen->kept / taken;
    const bool all = team->size > team->useful || delayed > CONTENDED * team->size;
    team->contended = all || kept > KEPT;
    const bool idle = team->contended && at_work < SHRINK * team->size;
    if (idle && team->before > 0) {
        /* What the smaller team would have done meanwhile, and this one did not. */
        const double missed = 1 - (at_work - delayed) / team->before;
        /* The end of a wait may be counted with the next runs, which are less than nothing then. */
        team->lost += missed > 1 ? seen->taken : missed > 0 ? (int64_t)(missed * taken) : 0;
    }
    /* One time alone may be chance: another program's start, a burst of packets. */
    if (idle && (team->was_idle || team->began || team->size > team->useful)) {
        shrink(team, without_delayed(team, all ? delayed : kept), now);
    } else if (!idle && now >= team->trial_ends) {
        end_trial(team);
    }
    team->was_idle = idle;
    team->began = false;
}

bool sl_team_try(sl_team *team, int64_t now) {
    if (team->size >= team->useful || team->began || (team->before > 0 && team->was_idle) ||
        now < team->trial_at) {
        return false;
    }
    if (team->before == 0) {
        team->before = team->size;
    }
    team->trial_ends = now + TRIAL_LASTS;
    team->began = true;
    team->size = 2 * team->size < team->useful ? 2 * team->size : team->useful;
    return true;
}
