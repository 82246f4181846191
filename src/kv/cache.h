/* Who owns which cache page and state slot. Pages and slots are counted references: timelines share them
 * after a fork or a prefix match, and the prefix index holds those of finished pages, so that a sequence
 * which begins alike starts from them. Nothing here touches the memory itself: changes reach the backend
 * through the step block.
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
/* Drops everything that the index holds. */
void sl_cache_clear_index(sl_cache *cache);

/* A sequence's part of the cache: which pages hold its first `cached` tokens, and the state after them. */
typedef struct sl_timeline {
    int32_t *pages[SL_CACHE_GROUPS]; /* [table width]; SL_NONE for pages that a window has left behind */
    int32_t page_count[SL_CACHE_GROUPS];
    int32_t dirty_from[SL_CACHE_GROUPS]; /* table entries from here on are not on the device yet */
    int32_t cached;                      /* tokens */
    int32_t previous; /* `cached` before the last step; until the next is reserved, a rollback to there needs
                         no recomputing */
    int32_t state, previous_state;        /* slots; SL_NONE: zeros / nothing kept */
    int32_t write_state;                  /* slot of the step in flight */
    int32_t copied_from[SL_CACHE_GROUPS]; /* the shared page that the step in flight copies; SL_NONE: none */
} sl_timeline;

int sl_timeline_init(const sl_cache *cache, sl_timeline *timeline, sl_error *error);
/* Drops all references; the timeline is as after init, and usable. */
void sl_timeline_reset(sl_cache *cache, sl_timeline *timeline);
void sl_timeline_free(sl_cache *cache, sl_timeline *timeline);
/* `fork` must be fresh. */
void sl_timeline_fork(sl_cache *cache, const sl_timeline *timeline, sl_timeline *fork);

/* For a timeline with nothing cached: takes over the longest indexed beginning of tokens[0, count), at most
 * `limit` tokens of it. Returns how many tokens that gave. */
int32_t sl_timeline_resume(sl_cache *cache, sl_timeline *timeline, const int32_t *tokens, int32_t limit);

/* Makes [cached, cached + rows) writable: takes pages and replaces a shared one, appending a page copy to
 * `copies`. With recurrent layers takes the slot to write. SL_ERR_LIMIT when pages, slots or copies ran out:
 * then nothing is replaced, and pages taken until then stay with the timeline for the next try. Sources of
 * copies stay held until advance or revert, so that no other copy of the step writes them. */
typedef struct sl_copy_list {
    sl_page_copy *copies;
    int32_t count, room;
} sl_copy_list;
int sl_timeline_reserve(sl_cache *cache, sl_timeline *timeline, int32_t rows, sl_copy_list *copies);

/* After a step that stored `rows` more: tokens[0, cached + rows) are the sequence's. Full pages go into the
 * index. */
void sl_timeline_advance(sl_cache *cache, sl_timeline *timeline, const int32_t *tokens, int32_t rows);
/* After a step that failed, or when a reserved step is not taken: as before sl_timeline_reserve. */
void sl_timeline_revert(sl_cache *cache, sl_timeline *timeline);

/* Forgets tokens from `length` on. `cached` becomes `length` or, when the cache can't give that back,
 * something smaller. */
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
