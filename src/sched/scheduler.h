/* Sequences to steps. A sequence is a list of tokens of which the first so many are in the cache; the rest is
 * pending. A step takes pending tokens of any sequences, whole prompts, chunks or single ones alike, and when
 * the last pending token of a sequence has gone through, the token sampled from it becomes the next pending
 * one. There is no other state: a preempted or rolled back sequence merely has more pending.
 *
 * Where the backend takes two steps at once, a step of which every sequence goes on by the one token that it
 * samples, or by more of its prompt, can be followed by the next before its tokens are known
 * (sl_scheduler_follow): the device has them. A sequence that turns out to end there is dropped from the
 * following step, which then has computed a row for nothing.
 *
 * Where devices work on two steps at once, those who generate may be divided (halves.h): a step is for half
 * of them, and while it is in flight the next one is built for those who are not in it. Its tokens are known,
 * so it is built like any other. Who is in which half is nowhere written: a step takes at most half of all
 * who generate, and whoever is left over, came or has read his prompt is in the next one.
 *
 * Who goes first. As many works as there are slots are admitted. Works of a higher priority are admitted
 * first, and take the slot of a lower one when none is free; lower ones get what higher ones leave, which may
 * be nothing. Within a priority, groups have equally many slots as far as they have works: a group with two
 * fewer than another takes one of the other's. Between groups with equally many, the one that was served
 * fewer tokens comes first, where a group that was idle counts as served its share meanwhile; within a group
 * the first come. So within a priority everybody's turn comes. In a step, who has one token pending comes
 * first, then prompts in the same order; see step.c for how they share its rows. Memory is taken away from
 * the lowest priority first, and there from the last come, whatever the group. Nothing is lost by giving up a
 * slot or memory.
 *
 * Not thread-safe: the engine holds its lock for every call. Between sl_scheduler_build and
 * sl_scheduler_commit it may let go of the lock; what is in a step then (sequence->in_step) must not be
 * changed by others. */
#ifndef SL_SCHED_SCHEDULER_H
#define SL_SCHED_SCHEDULER_H

#include "grammar/grammar.h"
#include "kv/keeper.h"
#include "plan/plan.h"
#include "sched/adjust.h"
#include "sched/draft.h"
#include "sched/forced.h"
#include "sched/mirostat.h"
#include "sched/pace.h"

typedef struct sl_scheduler sl_scheduler;
typedef struct sl_work sl_work;
typedef struct sl_group sl_group; /* works of one owner, see sl_work.group */

/* Rows [first, end) of a sequence end a prompt behind which it keeps limits.keep tokens: they are a step. */
typedef struct sl_compaction {
    int32_t first, end;
} sl_compaction;

typedef struct sl_sequence {
    int32_t *tokens; /* [limits.context]; behind the `count` that it has, drafts of the step in flight */
    int32_t count;
    sl_timeline timeline;
    int32_t slot;               /* page-table row on the device; SL_NONE when it has none */
    int32_t in_step;            /* steps in flight that it is in */
    bool salted;                /* the timeline has the salt of its first work */
    bool released;              /* its owner is gone: freed as soon as nothing uses it */
    sl_work *work;              /* the request it works for, or NULL */
    sl_luck luck;               /* of its drafts */
    sl_compaction *compactions; /* in order, those to come too; NULL: the plan has no budget */
    int32_t compaction_count;
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

/* Why no more of a beginning was taken over. */
typedef enum sl_reuse {
    SL_REUSE_ALL,    /* all but the last token, or those that choose what is kept */
    SL_REUSE_NEW,    /* no more of it is in the index */
    SL_REUSE_STATE,  /* more is, but without the state or the window to go on from */
    SL_REUSE_LOGITS, /* logits were asked for from there on */
    SL_REUSE_OFF,
} sl_reuse;

/* What a sequence has to do. The owner fills the first part; callbacks run inside sl_scheduler_commit (or
 * _build, for on_done). */
struct sl_work {
    sl_sequence *sequence;
    int32_t generate;      /* tokens still to sample; counted down */
    sl_sampler sampler;    /* counter is set per output */
    sl_adjust *adjust;     /* the owner's, while the work lasts; NULL: logits are taken as they are */
    sl_mirostat *mirostat; /* the same: draws the tokens; then logits are wanted. NULL: the device draws */
    /* The same: only tokens that follow in its grammar are sampled, and it takes over each; when it has
     * ended, so does the work. The scheduler uses it between sl_scheduler_build and sl_scheduler_commit too.
     * NULL: any token may come. */
    sl_matcher *matcher;
    sl_forced *forced; /* the same: tokens that come in place of what is sampled. NULL: none */
    sl_logits_wanted logits;
    /* With SL_LOGITS_ALL: the first position whose logits are wanted; what is cached from there on is
     * computed again. */
    int32_t logits_from;
    int32_t priority;     /* higher first */
    uint64_t group;       /* whose it is; groups take turns */
    int32_t drafts;       /* that a step may carry for it; 0: none */
    int32_t least_drafts; /* fewer are not worth a step's while */
    bool no_reuse;        /* the sequence takes nothing over and leaves nothing, from now on */
    uint64_t cache_salt;  /* of a sequence's first work: only sequences with the same salt share */
    /* A sampled token, already appended to the sequence. Returns SL_FINISH_LENGTH to go on, another value to
     * end there. */
    sl_finish (*on_token)(sl_work *work, int32_t token);
    /* Rows [rows][vocabulary] of adjacent positions, which on_token may still read if it follows; the work is
     * then `blocked` until the owner clears that, which it may do in this call. */
    void (*on_logits)(sl_work *work, const float *logits, int32_t rows, int32_t first_position);
    void (*on_done)(sl_work *work, sl_finish finish, const sl_error *error);
    void (*on_start)(sl_work *work); /* its first step is being built; NULL: nobody wants to know */
    /* The scheduler's part; zero at the start. */
    bool blocked;
    bool cancelled;  /* set by the owner; takes effect between steps */
    int32_t reused;  /* tokens that came from the index when it started */
    int32_t matched; /* tokens at the beginning that the index knew then, reused or not */
    sl_reuse reuse;
    int32_t drafted, accepted; /* tokens that steps carried for it / of those, that were right */
    bool started;              /* it was in a step */
    bool noted;                /* the three above are known */
    int32_t prompt_end;        /* tokens of the sequence when it was submitted */
    int32_t read;              /* of those, how many were counted as read */
    int32_t branch;      /* where the sequence goes on differently from others: worth a state; 0: nowhere */
    sl_work *waits_for;  /* the work that computes what this one will take over; NULL: none */
    int32_t waits_until; /* that many tokens */
    uint64_t arrival;    /* in order of submission */
    uint64_t ready_in, built_in; /* the last build in which it was ready for rows, and got some */
    uint64_t ahead_in; /* the last build to which more of its prompt was known than a step in flight has */
    sl_group *owner;
    bool unread; /* it has nothing cached, and files were not looked into yet: it waits for that */
    int32_t load_end, loaded; /* of sl_load, while it is unread */
    struct sl_work *previous, *next;
};

typedef struct sl_scheduler_counters {
    uint64_t steps, rows, outputs, reused_tokens, preemptions;
    uint64_t following_steps;                 /* steps that began without the host knowing their tokens */
    uint64_t halved_steps;                    /* steps beside one of other sequences */
    uint64_t prompt_tokens, generated_tokens; /* read, reused ones included / sampled */
    /* Drafts that steps carried / that were right: the first behind a token, the second, ... */
    uint64_t drafted[SL_DRAFTS], accepted[SL_DRAFTS];
} sl_scheduler_counters;

typedef struct sl_scheduler_options {
    bool reuse;
    int32_t queue; /* works that may wait for a slot; 0: no bound */
    /* Seconds that prompts may add to a step in which others generate; 0: no bound, negative: as long as a
     * step without prompts takes. */
    double prompt_seconds;
    sl_draft_source source; /* of drafts */
    int32_t drafts;         /* of one sequence in a step, at most SL_DRAFTS; 0: none */
    bool always;            /* carry as many as there are, whatever that costs */
} sl_scheduler_options;

/* `plan` and `executor` must outlive the scheduler. */
int sl_scheduler_create(const sl_plan *plan, sl_executor *executor, const sl_scheduler_options *options,
                        sl_scheduler **scheduler, sl_error *error);
/* All works must have ended. Frees sequences that are left. */
void sl_scheduler_destroy(sl_scheduler *scheduler);
const sl_scheduler_counters *sl_scheduler_counts(const sl_scheduler *scheduler);
bool sl_scheduler_has_work(const sl_scheduler *scheduler);

/* What there is now. */
typedef struct sl_scheduler_load {
    int32_t running, waiting; /* works that were in a step / that were in none yet */
    /* Tokens that the pages of the first full group have room for; of those, in pages that somebody holds; of
     * those again, in pages that no unfinished work holds. */
    uint64_t cache_tokens, used_tokens, kept_tokens;
} sl_scheduler_load;
void sl_scheduler_get_load(const sl_scheduler *scheduler, sl_scheduler_load *load);
/* For tests, and for what is kept on disk. */
sl_cache *sl_scheduler_cache(const sl_scheduler *scheduler);

/* When those who generate are divided into two halves; never where steps are run one by one, or carry
 * drafts. */
typedef enum sl_halving { SL_HALVING_MEASURED, SL_HALVING_ALWAYS, SL_HALVING_NEVER } sl_halving;
/* For tests. */
void sl_scheduler_set_halving(sl_scheduler *scheduler, sl_halving halving);

int sl_sequence_create(sl_scheduler *scheduler, sl_sequence **sequence, sl_error *error);
/* It must have no work and not be in a step. What the index keeps of it stays. */
void sl_sequence_destroy(sl_scheduler *scheduler, sl_sequence *sequence);
/* The same for any sequence: cancels its work, and frees it when that has ended and no step in flight holds
 * it. The owner must not use it any more; the work's callbacks still come. */
void sl_sequence_release(sl_scheduler *scheduler, sl_sequence *sequence);
int sl_sequence_fork(sl_scheduler *scheduler, const sl_sequence *sequence, sl_sequence **fork,
                     sl_error *error);
void sl_sequence_rollback(sl_scheduler *scheduler, sl_sequence *sequence, int32_t length);

/* Appends tokens and queues the work. SL_ERR_BUSY (also when more would wait than may: those that were in no
 * step yet, beyond the slots that works which were do not need), SL_ERR_LIMIT (context), SL_ERR_INVALID
 * (token ids, nothing to do); on failure nothing has changed. */
int sl_scheduler_submit(sl_scheduler *scheduler, sl_work *work, const int32_t *tokens, size_t count,
                        sl_error *error);
/* Takes back a work of which no step was built yet, without calling on_done; the sequence then has `count`
 * tokens. */
void sl_scheduler_withdraw(sl_scheduler *scheduler, sl_work *work, int32_t count);

/* What the next step could use drafts for. */
typedef struct sl_draft_want {
    sl_sequence *sequence; /* with a slot */
    int32_t most;          /* drafts, at least 1 */
} sl_draft_want;
/* With no step in flight, for drafts that take a while to make: wants[limits.sequences]; returns how many.
 * Who adds to in_step of such a sequence keeps it as it is, and lets go of it before the next step is built.
 */
int32_t sl_scheduler_wants_drafts(sl_scheduler *s, sl_draft_want *wants);
void sl_scheduler_let_go(sl_scheduler *s, sl_sequence *sequence);
/* Making so many drafts took so long. */
void sl_scheduler_drafted(sl_scheduler *s, int32_t tokens, double seconds);

/* Fills the executor's step block. Returns the rows in it (0: nothing can run now) and the bucket to submit.
 */
int32_t sl_scheduler_build(sl_scheduler *scheduler, int32_t *bucket);
/* With one step submitted and not committed: the same for a step that follows it, if there can be one. */
int32_t sl_scheduler_follow(sl_scheduler *scheduler, int32_t *bucket);
/* How many seconds after the beginning of the step in flight that is to be asked for: late enough that who
 * comes meanwhile is in the next step, early enough that no device waits. So it is at once where devices work
 * on several steps (sl_backend.stages) and the next one's tokens are known. Less than 0: none can follow. */
double sl_scheduler_follow_after(sl_scheduler *scheduler);
/* Writes the masks of the step built last, where it has any: for one that was built with masks_later when the
 * step in front of it was committed, for others before they are submitted. Needs no lock. True: it was built
 * with masks_later, and can be resumed. */
bool sl_scheduler_fill_masks(sl_scheduler *scheduler);
/* How long the oldest step in flight took, before it is committed; prompt_seconds is kept by that, and how
 * many drafts are worth it is known from it. Not called for steps of which that is not known. over: it had
 * ended when it was waited for, so the next one was asked for too late. */
void sl_scheduler_measured(sl_scheduler *scheduler, double seconds, bool over);
/* After the oldest step in flight: `status` 0 or the error it failed with. Sequences of a failed step are as
 * they were before it, and their works end with the error. */
void sl_scheduler_commit(sl_scheduler *scheduler, int status, const sl_error *error);
/* From now on works that begin with nothing cached wait until files were looked into for them. */
void sl_scheduler_loads(sl_scheduler *scheduler);
/* With no step in flight: the work whose turn that is, or NULL. Its sequence has taken over from the index
 * the full pages that are there, and *load says what to load behind them, with sl_keeper_seek and the others.
 * While the lock is let go nothing of it changes but `cancelled`. Gives slots to works that have none. */
sl_work *sl_scheduler_unread(sl_scheduler *scheduler, sl_load *load);
/* May it hold pages already? Only with a slot. */
bool sl_scheduler_may_load(const sl_work *work);
/* Is there one that could be looked at now? Building a step may have given it a slot. */
bool sl_scheduler_could_load(const sl_scheduler *scheduler);
/* Afterwards: it goes on from what was loaded, or, with `more`, waits to be loaded further. */
void sl_scheduler_loaded(sl_scheduler *scheduler, sl_work *work, const sl_load *load, bool more);
/* Ends all works with an error (the device is gone). */
void sl_scheduler_fail_all(sl_scheduler *scheduler, const sl_error *error);

#endif
