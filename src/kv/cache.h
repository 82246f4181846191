/* Who owns which cache page and state slot. Pages and slots are counted references: timelines share them
 * after a fork or a match, and the prefix index holds those of finished pages and of the ends of prompts and
 * answers, so that a sequence which begins alike starts from them. A shared page that is not full may go on
 * in place by one of those who share it, behind all that the others have of it. Nothing here touches the
 * memory itself: changes reach the backend through the step block.
 *
 * Not thread-safe: the scheduler calls it under its lock. Nothing here allocates after creation. */
#ifndef SL_KV_CACHE_H
#define SL_KV_CACHE_H

#include "backend/backend.h"
#include "kv/index.h"

typedef struct sl_cache sl_cache;

/* `deployment` must outlive the cache. Without `reuse` the index stays empty. */
int sl_cache_create(const sl_deployment *deployment, bool reuse, sl_cache **cache, sl_error *error);
void sl_cache_destroy(sl_cache *cache);
/* Pages of a group / state slots that could be taken now, those that only the index holds included. */
int32_t sl_cache_available_pages(const sl_cache *cache, int32_t group);
int32_t sl_cache_available_states(const sl_cache *cache);
/* To count the pages that some timelines hold together: after sl_cache_clear_marks, how many pages of a group
 * a timeline holds that none marked before it does. */
void sl_cache_clear_marks(sl_cache *cache);
struct sl_timeline;
int32_t sl_cache_mark(sl_cache *cache, const struct sl_timeline *timeline, int32_t group);
/* Pages of a group that nobody holds, and all there are. */
int32_t sl_cache_free_pages(const sl_cache *cache, int32_t group);
int32_t sl_cache_all_pages(const sl_cache *cache, int32_t group);
/* Drops everything that the index holds. */
void sl_cache_clear_index(sl_cache *cache);

/* Why the index keeps a state or a window's page, in rising order of worth: of each kind the least recently
 * used goes first, and a better one outlives more of the next. */
typedef enum sl_keep {
    SL_KEEP_PASSING, /* a step ended there */
    SL_KEEP_PROMPT,  /* a prompt ends there, texts part there, or somebody went on from there already */
    SL_KEEP_END,     /* an answer ends there, where its conversation will go on */
} sl_keep;

/* A sequence's part of the cache: which pages hold its first `cached` tokens, and the state after them. */
typedef struct sl_timeline {
    int32_t *pages[SL_CACHE_GROUPS]; /* [table width]; SL_NONE for pages that a window has left behind */
    int32_t page_count[SL_CACHE_GROUPS];
    int32_t dirty_from[SL_CACHE_GROUPS]; /* table entries from here on are not on the device yet */
    int32_t cached;                      /* tokens */
    int32_t previous; /* `cached` before the last step; until the next is reserved, a rollback to there needs
                         no recomputing */
    /* Tokens of the `cached` ones that the pages of a group do not hold any more: the last that they hold is
     * at index cached - dropped - 1 of them. And `cached` when some were dropped last; 0: never. */
    int32_t dropped[SL_CACHE_GROUPS];
    int32_t compacted;
    int32_t *targets[SL_CACHE_GROUPS]; /* pages to which the step in flight compacts; NULL: none ever does */
    int32_t target_count[SL_CACHE_GROUPS];
    int32_t state, previous_state; /* slots; SL_NONE: zeros / nothing kept */
    /* Slots of the step in flight: behind its last rows, one each. */
    int32_t write_states[SL_SPAN_STATES], write_count;
    /* Until the timeline is truncated, or its next step reserved: the states behind its last tokens but the
     * very last, one each. */
    int32_t row_states[SL_SPAN_STATES], row_count;
    int32_t copied_from[SL_CACHE_GROUPS]; /* the shared page that the step in flight copies; SL_NONE: none */
    /* Set by the owner before the first token is cached; a fork has the same. */
    uint64_t salt; /* only timelines of one salt share */
    bool unshared; /* takes nothing over, and leaves nothing in the index */
} sl_timeline;

int sl_timeline_init(const sl_cache *cache, sl_timeline *timeline, sl_error *error);
/* Drops all references; the timeline is as after init, and usable. */
void sl_timeline_reset(sl_cache *cache, sl_timeline *timeline);
void sl_timeline_free(sl_cache *cache, sl_timeline *timeline);
/* `fork` must be fresh. */
void sl_timeline_fork(sl_cache *cache, const sl_timeline *timeline, sl_timeline *fork);

/* What a timeline with nothing cached asks for. */
typedef struct sl_beginning {
    const int32_t *tokens; /* [count] */
    int32_t count;
    int32_t limit; /* of tokens to take over */
} sl_beginning;
/* What the index has of it. */
typedef struct sl_match {
    int32_t usable;  /* tokens to go on from, at most the limit */
    int32_t matched; /* tokens at the beginning that it knows, usable or not */
} sl_match;
sl_match sl_timeline_match(const sl_cache *cache, const sl_timeline *timeline, const sl_beginning *beginning);
/* Takes over what is usable of it; `cached` is that then. Full attention goes on anywhere, a windowed group
 * where the window before that place is kept, and a recurrent one where a state is. */
sl_match sl_timeline_resume(sl_cache *cache, sl_timeline *timeline, const sl_beginning *beginning);
/* The same of full pages only, to go on with files. Returns what sl_timeline_resume would have. */
sl_match sl_timeline_resume_pages(sl_cache *cache, sl_timeline *timeline, const sl_beginning *beginning);

/* Makes [cached, cached + rows) writable: takes pages and replaces a shared one in which others go on there,
 * appending a page copy to `copies`. With recurrent layers takes the slots to write: behind the last row, and
 * behind each of the `drafts` rows in front of it, so that these may be refused. SL_ERR_LIMIT when pages,
 * slots or copies ran out: then nothing is replaced, and pages taken until then stay with the timeline for
 * the next try. Sources of copies stay held until advance or revert, so that no other copy of the step writes
 * them. */
typedef struct sl_copy_list {
    sl_page_copy *copies;
    int32_t count, room;
} sl_copy_list;
int sl_timeline_reserve(sl_cache *cache, sl_timeline *timeline, int32_t rows, int32_t drafts,
                        sl_copy_list *copies);
/* Slots that a reservation without drafts takes, less what it gives back: 0 or 1. */
int32_t sl_timeline_new_states(const sl_cache *cache, const sl_timeline *timeline);

/* After a step that stored `rows` more: tokens[0, cached + rows) are the sequence's. Full pages go into the
 * index. */
void sl_timeline_advance(sl_cache *cache, sl_timeline *timeline, const int32_t *tokens, int32_t rows);
/* The same where of `rows` reserved ones the first `kept` alone are to stay, all but drafts or none: the
 * others are as if they had not been. */
void sl_timeline_advance_by(sl_cache *cache, sl_timeline *timeline, const int32_t *tokens, int32_t rows,
                            int32_t kept);
/* Lets the index hold all of the timeline's tokens[0, cached), the last page too when it is not full, and the
 * state after them. */
void sl_timeline_keep(sl_cache *cache, const sl_timeline *timeline, const int32_t *tokens, sl_keep keep);
/* The same of full pages alone; the state when the last one is full. sl_timeline_advance calls it. */
void sl_timeline_index(sl_cache *cache, const sl_timeline *timeline, const int32_t *tokens);
/* After a step that failed, or when a reserved step is not taken: as before sl_timeline_reserve. */
void sl_timeline_revert(sl_cache *cache, sl_timeline *timeline);

/* Tokens that the pages of a group hold: the length of its span. */
static inline int32_t sl_timeline_length(const sl_timeline *timeline, int32_t group) {
    return timeline->cached - timeline->dropped[group];
}

/* For a reserved step that compacts: takes the pages that groups without a window keep (limits.keep tokens).
 * SL_ERR_LIMIT when there are not enough: then it has taken none. Advance and revert end it as they end the
 * reservation. */
int sl_timeline_reserve_compaction(sl_cache *cache, sl_timeline *timeline);
/* After such a step, behind sl_timeline_advance: the timeline has these pages instead of its own. What it has
 * from now on is of no use to others, and the index takes nothing of it. */
void sl_timeline_compact(sl_cache *cache, sl_timeline *timeline);

/* Forgets tokens from `length` on. `cached` becomes `length` or, when the cache can't give that back,
 * something smaller. States of row_states are gone afterwards, whatever `length` is. */
void sl_timeline_truncate(sl_cache *cache, sl_timeline *timeline, int32_t length);

/* ---- for what is kept on disk: kv/keeper.h ---- */

sl_index *sl_cache_index(sl_cache *cache);
/* Pages and a slot, SL_NONE where there is none. */
typedef struct sl_cache_items {
    int32_t pages[SL_CACHE_GROUPS];
    int32_t state;
} sl_cache_items;
/* Nobody else gets them until they are dropped. */
void sl_cache_hold(sl_cache *cache, const sl_cache_items *items);
void sl_cache_drop(sl_cache *cache, const sl_cache_items *items);
/* The first page that a row at index `position` of this group still sees. */
int32_t sl_cache_first_page(const sl_cache_group *group, int32_t position);
/* Gives back a windowed group's pages up to index `last`, whether rows see them or not. */
void sl_timeline_leave_behind(sl_cache *cache, sl_timeline *timeline, int32_t group, int32_t last);
/* Has the next row what it sees? */
bool sl_timeline_complete(const sl_cache *cache, const sl_timeline *timeline);

#endif
