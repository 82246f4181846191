/* How many of a pool's threads make its runs (base/pool.c): judged from numbers alone.
 *
 * All threads of a team meet at every barrier, so one that has no processor keeps all others waiting. The
 * kernel says how long each was *delayed*: ready to run, and without a processor. Where that is much, as many
 * threads leave the team as were delayed at once, since so many processors are others'. How many wait says
 * nothing about it: nearly all wait for a single one. After a while a larger team is on *trial*. It costs
 * runs that are slower if nothing has changed, so the next is the later, the more that cost.
 *
 * Times are nanoseconds. One thread at a time may call. */
#ifndef SL_BASE_TEAM_H
#define SL_BASE_TEAM_H

#include <stdbool.h>
#include <stdint.h>

enum { SL_TEAM_JUDGED = 10000000 }; /* of runs, before a team is judged */

/* What runs were like since the last judgement. */
typedef struct sl_team_seen {
    int64_t taken;   /* from their begin to their end, above 0 */
    int64_t waited;  /* at barriers beyond the first rounds, by all threads */
    int64_t delayed; /* without a processor, by all threads */
    int64_t kept;    /* by those only that were delayed for a large part of `taken` */
} sl_team_seen;

typedef struct sl_team {
    int size;       /* threads that make the next run */
    int useful;     /* that can run at once: a team is not made larger again than this */
    bool contended; /* threads lose their processors to others: they should not spin */
    bool was_idle;  /* so little of the team was at work that it would have been made smaller */
    bool began;     /* a trial, which was not judged yet */
    int before;     /* the team's size before the trial that it is on; 0: none */
    int64_t lost;   /* by that trial */
    int64_t trial_ends;
    int64_t trial_at, trial_after; /* when the next one is, and how long after the last has failed */
} sl_team;

sl_team sl_team_begin(int threads, int processors);
/* Adds one thread's delay; `taken` is set. */
void sl_team_add_delay(sl_team_seen *seen, int64_t delay);
/* Is the next judgement to come as soon as it can, since a bad team would cost much? */
bool sl_team_is_unsettled(const sl_team *team);
/* Sets `size` and `contended`. */
void sl_team_judge(sl_team *team, const sl_team_seen *seen, int64_t now);
/* Makes the team larger if it is time for that: true. */
bool sl_team_try(sl_team *team, int64_t now);

#endif
