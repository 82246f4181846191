/* Sequences to steps. A sequence is a list of tokens of which the first so many are in the cache; the rest is
 * pending. A step takes pending tokens of any sequences, whole prompts, chunks or single ones alike, and when
 * the last pending token of a sequence has gone through, the token sampled from it becomes the next pending
 * one. There is no other state: a preempted or rolled back sequence merely has more pending.
 *
 * Where the backend takes two steps at once, a step of which every sequence goes on by the one token that it
 * samples can be followed by the next before its tokens are known (sl_scheduler_follow): the device has them.
 * A sequence that turns out to end there is dropped from the following step, which then has computed a row
 * for nothing.
 *
 * Not thread-safe: the engine holds its lock for every call. Between sl_scheduler_build and
 * sl_scheduler_commit it may let go of the lock; what is in a step then (sequence->in_step) must not be
 * changed by others. */
#ifndef SL_SCHED_SCHEDULER_H
#define SL_SCHED_SCHEDULER_H

#include "kv/keeper.h"
#include "plan/plan.h"
#include "sched/adjust.h"

typedef struct sl_scheduler sl_scheduler;
typedef struct sl_work sl_work;

typedef struct sl_sequence {
    int32_t *tokens; /* [limits.context] */
    int32_t count;
    sl_timeline timeline;
    int32_t slot;                      /* page-table row on the device; SL_NONE when it has none */
    int32_t in_step;                   /* steps in flight that it is in */
    sl_work *work;                     /* the request it works for, or NULL */
    uint64_t last_used;                /* step number, for choosing whom to preempt */
    struct sl_sequence *older, *newer; /* all sequences of the scheduler */
} sl_sequence;

typedef enum sl_finish {
    SL_FINISH_LENGTH,
    SL_FINISH_EOS,
    SL_FINISH_STOP,
    SL_FINISH_CONTEXT,
    SL_FINISH_CANCELLED,
    SL_FINISH_ERROR,
} sl_finish;

typedef enum sl_logits_wanted { SL_LOGITS_NONE, SL_LOGITS_LAST, SL_LOGITS_ALL } sl_logits_wanted;

/* What a sequence has to do. The owner fills the first part; callbacks run inside sl_scheduler_commit (or
 * _build, for on_done). */
struct sl_work {
    sl_sequence *sequence;
    int32_t generate;   /* tokens still to sample; counted down */
    sl_sampler sampler; /* counter is set per output */
    sl_adjust *adjust;  /* the owner's, while the work lasts; NULL: logits are taken as they are */
    sl_logits_wanted logits;
    /* With SL_LOGITS_ALL: the first position whose logits are wanted; what is cached from there on is
     * computed again. */
    int32_t logits_from;
    /* A sampled token, already appended to the sequence. Returns SL_FINISH_LENGTH to go on, another value to
     * end there. */
    sl_finish (*on_token)(sl_work *work, int32_t token);
    /* Rows [rows][vocabulary] of adjacent positions, which on_token may still read if it follows; the work is
     * then `blocked` until the owner clears that, which it may do in this call. */
    void (*on_logits)(sl_work *work, const float *logits, int32_t rows, int32_t first_position);
    void (*on_done)(sl_work *work, sl_finish finish, const sl_error *error);
    /* The scheduler's part; zero at the start. */
    bool blocked;
    bool cancelled; /* set by the owner; takes effect between steps */
    int32_t reused; /* tokens that came from the prefix index */
    bool unread;    /* it has nothing cached, and files were not looked into yet: it waits for that */
    int32_t load_end, loaded; /* of sl_load, while it is unread */
    struct sl_work *previous, *next;
};

typedef struct sl_scheduler_counters {
    uint64_t steps, rows, outputs, reused_tokens, preemptions;
    uint64_t following_steps; /* steps that began without the host knowing their tokens */
} sl_scheduler_counters;

/* `plan` and `executor` must outlive the scheduler. */
int sl_scheduler_create(const sl_plan *plan, sl_executor *executor, bool reuse, sl_scheduler **scheduler,
                        sl_error *error);
/* All works must have ended and all sequences be destroyed. */
void sl_scheduler_destroy(sl_scheduler *scheduler);
const sl_scheduler_counters *sl_scheduler_counts(const sl_scheduler *scheduler);
bool sl_scheduler_has_work(const sl_scheduler *scheduler);
/* For tests, and for what is kept on disk. */
sl_cache *sl_scheduler_cache(const sl_scheduler *scheduler);

int sl_sequence_create(sl_scheduler *scheduler, sl_sequence **sequence, sl_error *error);
/* It must have no work and not be in a step. */
void sl_sequence_destroy(sl_scheduler *scheduler, sl_sequence *sequence);
int sl_sequence_fork(sl_scheduler *scheduler, const sl_sequence *sequence, sl_sequence **fork,
                     sl_error *error);
void sl_sequence_rollback(sl_scheduler *scheduler, sl_sequence *sequence, int32_t length);

/* Appends tokens and queues the work. SL_ERR_BUSY, SL_ERR_LIMIT (context), SL_ERR_INVALID (token ids, nothing
 * to do); on failure nothing has changed. */
int sl_scheduler_submit(sl_scheduler *scheduler, sl_work *work, const int32_t *tokens, size_t count,
                        sl_error *error);
/* Takes back a work of which no step was built yet, without calling on_done; the sequence then has `count`
 * tokens. */
void sl_scheduler_withdraw(sl_scheduler *scheduler, sl_work *work, int32_t count);

/* Fills the executor's step block. Returns the rows in it (0: nothing can run now) and the bucket to submit.
 */
int32_t sl_scheduler_build(sl_scheduler *scheduler, int32_t *bucket);
/* With one step submitted and not committed: the same for a step that follows it, if there can be one. */
int32_t sl_scheduler_follow(sl_scheduler *scheduler, int32_t *bucket);
/* After the oldest step in flight: `status` 0 or the error it failed with. Sequences of a failed step are as
 * they were before it, and their works end with the error. */
void sl_scheduler_commit(sl_scheduler *scheduler, int status, const sl_error *error);
/* From now on works that begin with nothing cached wait until files were looked into for them. */
void sl_scheduler_loads(sl_scheduler *scheduler);
/* With no step in flight: the work whose turn that is, or NULL. Its sequence has taken over from the index
 * what is there, and *load says what to load behind it, with sl_keeper_seek and the others. While the lock is
 * let go nothing of it changes but `cancelled`. */
sl_work *sl_scheduler_unread(sl_scheduler *scheduler, sl_load *load);
/* May it hold pages already? Not while those before it are as many as run at once. */
bool sl_scheduler_may_load(const sl_scheduler *scheduler, const sl_work *work);
/* Afterwards: it goes on from what was loaded, or, with `more`, waits to be loaded further. */
void sl_scheduler_loaded(sl_scheduler *scheduler, sl_work *work, const sl_load *load, bool more);
/* Ends all works with an error (the device is gone). */
void sl_scheduler_fail_all(sl_scheduler *scheduler, const sl_error *error);

#endif
