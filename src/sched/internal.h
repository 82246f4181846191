/* Of src/sched only: the scheduler's state, and what its files call of each other. */
#ifndef SL_SCHED_INTERNAL_H
#define SL_SCHED_INTERNAL_H

#include "base/pool.h"
#include "sched/budget.h"
#include "sched/halves.h"
#include "sched/scheduler.h"

/* What a step does for one sequence; as many as it has spans. */
typedef struct sl_part {
    sl_work *work; /* NULL when it ended while the step was in flight */
    sl_sequence *sequence;
    int32_t rows, first_output, outputs;
    int32_t drafts;      /* of the rows, and of the outputs, the last so many */
    bool generates;      /* see sl_generates */
    int32_t end;         /* position behind its rows */
    bool compacts;       /* its step does */
    bool advanced;       /* the timeline has taken the step's rows over already */
    bool masked;         /* its last output has a mask */
    sl_error mask_error; /* code 0: that could be made */
} sl_part;

typedef struct sl_step {
    sl_part *parts; /* [limits.sequences] */
    void *block;
    int32_t bucket;
    bool overlaps; /* devices were at the step before as well: how long it took is not known */
    bool half;     /* it is for a part of those who generate, the others have a step of their own */
    int32_t works; /* that generated when it was built, in whichever step */
} sl_step;

struct sl_group {
    uint64_t id;
    double served; /* tokens, in virtual time */
    int32_t works; /* unfinished */
    int32_t slots; /* of those, how many are admitted; counted when it is needed */
    sl_group *next;
};

enum { SL_STEPS = 2 };

struct sl_scheduler {
    const sl_plan *plan;
    const sl_program *program;
    const sl_limits *limits;
    sl_executor *executor;
    sl_scheduler_options options;
    sl_cache *cache;
    bool loads;          /* see sl_scheduler_loads */
    sl_sequence **slots; /* [limits.sequences], who has which page-table row; NULL: free */
    sl_work **order;     /* [limits.sequences], scratch: the admitted in their order */
    sl_sequence *oldest_sequence, *newest_sequence;
    sl_work *first, *last; /* in order of submission */
    sl_group *groups;
    double virtual_time;   /* tokens that a group with works has been served since the start, on average */
    int32_t active_groups; /* with works */
    int32_t running;       /* works that were in a step */
    int32_t waiting;       /* works that were in none */
    uint64_t arrivals, builds;
    sl_step steps[SL_STEPS];
    int32_t next, in_flight; /* the one to build; how many before it are not committed */
    bool last_try; /* nobody could run: the first in rank may take what it needs from whoever is blocked */
    bool memory_short;  /* a work went without pages while others ran: the next step goes by rank alone */
    sl_pool *mask_pool; /* NULL: no work had a matcher yet */
    sl_pace pace;
    bool drafts_full; /* the last step had no room for drafts that are worth it */
    sl_halves halves;
    sl_halving halving;
    bool lone_half;   /* nobody was in a step beside the last half */
    sl_budget budget; /* its buckets are [deployment.bucket_count] and owned */
    sl_scheduler_counters counters;
};

static inline const sl_backend_functions *sl_backend_of(const sl_scheduler *s) {
    return s->plan->backend->functions;
}

static inline int32_t sl_pending(const sl_work *work) {
    return work->sequence->count - work->sequence->timeline.cached;
}

/* Of those in flight; 0 is the oldest. */
static inline sl_step *sl_flying(sl_scheduler *s, int32_t index) {
    return &s->steps[(s->next + SL_STEPS - s->in_flight + index) % SL_STEPS];
}

/* ---- scheduler.c */
/* Ends a work; its sequence is freed if that was released. */
void sl_finish_work(sl_scheduler *s, sl_work *work, sl_finish reason, const sl_error *error);
void sl_release_slot(sl_scheduler *s, sl_sequence *sequence);
/* The timeline takes the part's rows over, but for those of drafts that are refused: the first `agreed` are
 * not. */
void sl_advance_part(sl_scheduler *s, sl_part *part, int32_t agreed);

/* ---- step.c */
/* Puts into a step's block where the sequence's pages are that the device does not know yet. */
void sl_write_table_changes(const sl_scheduler *s, void *block, sl_sequence *sequence);
/* The slots that a timeline has reserved, for a span behind all that have theirs. */
void sl_write_states(const sl_scheduler *s, void *block, const sl_timeline *t, sl_step_span *span);

/* ---- admit.c */
/* The work's group; false when memory ran out. */
bool sl_join_group(sl_scheduler *s, sl_work *work);
void sl_leave_group(sl_scheduler *s, sl_work *work);
void sl_serve(sl_scheduler *s, sl_work *work, int32_t rows);
/* Does `a` keep memory when both cannot? */
bool sl_outranks(const sl_work *a, const sl_work *b);
/* Of those that are not blocked; NULL when there are none. */
sl_work *sl_first_in_rank(const sl_scheduler *s);
/* Gives slots to works that have none. `by_rank`: the first in rank gets one in any case, from one that is
 * blocked if need be. */
void sl_admit(sl_scheduler *s, bool by_rank);
/* Would that give a slot to anybody? */
bool sl_could_admit(sl_scheduler *s);
/* Would it take one from somebody first? */
bool sl_would_displace(sl_scheduler *s);
/* Fills s->order with those that are admitted and neither blocked nor unread; returns how many. */
int32_t sl_order_admitted(sl_scheduler *s, bool by_rank);
/* Frees the cache of somebody who can wait: of idle sequences the one unused for longest, then the work
 * lowest in rank, never one that outranks `work` unless it is blocked and this is the last try. Their tokens
 * stay, and are computed again when it is their turn. */
bool sl_preempt_one(sl_scheduler *s, const sl_work *work);

/* ---- compact.c */
/* Room for a sequence's compactions; false when memory ran out. */
bool sl_compact_create(const sl_scheduler *s, sl_sequence *sequence);
void sl_compact_fork(const sl_sequence *sequence, sl_sequence *fork);
/* Those that end behind `length`. */
void sl_compact_forget(sl_sequence *sequence, int32_t length);
/* A work of `count` more tokens, which the sequence has already, was submitted. Its prompt is compacted if
 * the cache would hold more than the budget behind it, and the window is of its own tokens. Logits of all
 * rows are those of a whole cache. */
void sl_compact_submit(const sl_scheduler *s, sl_work *work, size_t count);
/* The next one; NULL: none. */
const sl_compaction *sl_compact_next(const sl_sequence *sequence);
/* Is it the next thing to do? */
bool sl_compact_is_due(const sl_work *work);

/* ---- draft.c */
/* What a step has without the drafts that are still to be chosen: rows, room for more, and the tokens that it
 * gives, on average. */
typedef struct sl_draft_load {
    int32_t rows, room;
    double tokens;
} sl_draft_load;
/* Is the next step one that gives the work a token, with what was forced in front of it? */
bool sl_generates(const sl_scheduler *s, const sl_work *work);
/* Drafts for which a step has room, if so many rows and outputs are left. */
int32_t sl_draft_room(const sl_scheduler *s, int32_t rows, int32_t outputs);
/* May the work's next step carry drafts, if there are any? */
bool sl_draft_is_open(const sl_scheduler *s, const sl_work *work);
/* How many would be worth it now. */
int32_t sl_draft_wanted(const sl_scheduler *s, const sl_work *work, const sl_draft_load *load);
/* Writes drafts behind the sequence's tokens; returns how many, and adds them to the load. */
int32_t sl_draft_take(sl_scheduler *s, sl_work *work, sl_draft_load *load);

/* ---- mask.c */
/* For a work with a matcher: what making masks needs. */
int sl_mask_prepare(sl_scheduler *s, const sl_work *work, sl_error *error);
/* Gives every output of the step being built whose token a matcher bounds its mask, which is not written yet.
 * Adjustments must be complete. */
void sl_mask_number(sl_scheduler *s, bool later);

/* ---- load.c */
/* A work with nothing cached waits until files were looked into for it, where there are any. */
void sl_await_loading(const sl_scheduler *s, sl_work *work);

/* ---- share.c */
/* At most so many tokens may come from elsewhere: the last is always computed, and so are those whose logits
 * are wanted and those that choose what is kept of the prompt. */
int32_t sl_reuse_limit(const sl_work *work);
/* What a work took over of files. */
void sl_share_loaded(sl_scheduler *s, sl_work *work);
/* For an admitted work: takes over what it can when nothing is cached; false when it waits for another that
 * computes more of its beginning. */
bool sl_share_begin(sl_scheduler *s, sl_work *work);
/* Nobody waits for it any more. */
void sl_share_end(sl_scheduler *s, const sl_work *work);
/* Lets the index keep what others may go on from, after a step. */
void sl_share_keep(sl_scheduler *s, const sl_work *work);
/* Rows of a step for a work of which [cached, cached + rows) are pending, fewer when a state is to be kept in
 * between. */
int32_t sl_share_cut(const sl_scheduler *s, const sl_work *work, int32_t rows);

#endif
