#include "kv/cache.h"

#include "base/alloc.h"
#include "kv/internal.h"

#include <string.h>

int sl_timeline_init(const sl_cache *cache, sl_timeline *timeline, sl_error *error) {
    memset(timeline, 0, sizeof *timeline);
    timeline->state = timeline->previous_state = SL_NONE;
    for (int32_t g = 0; g < SL_CACHE_GROUPS; g++) {
        timeline->copied_from[g] = SL_NONE;
    }
    int32_t groups = cache->program->group_count;
    const size_t targets = (size_t)sl_table_width(cache->keep);
    for (int32_t g = 0; g < groups; g++) {
        timeline->pages[g] = sl_alloc((size_t)cache->table_width * sizeof *timeline->pages[g]);
        timeline->targets[g] = targets > 0 ? sl_alloc(targets * sizeof *timeline->targets[g]) : NULL;
        if (!timeline->pages[g] || (targets > 0 && !timeline->targets[g])) {
            for (; g >= 0; g--) {
                sl_free(timeline->pages[g]);
                sl_free(timeline->targets[g]);
                timeline->pages[g] = timeline->targets[g] = NULL;
            }
            return sl_fail(error, SL_ERR_NOMEM, "out of memory for a sequence of %d pages",
                           cache->table_width);
        }
    }
    return 0;
}

/* Drops the pages from index `keep` on. */
static void drop_pages_from(sl_cache *cache, sl_timeline *timeline, int32_t group, int32_t keep) {
    for (int32_t i = keep; i < timeline->page_count[group]; i++) {
        sl_pool_drop(&cache->pages[group], timeline->pages[group][i]);
    }
    if (keep < timeline->page_count[group]) {
        timeline->page_count[group] = keep;
    }
    if (timeline->dirty_from[group] > keep) {
        timeline->dirty_from[group] = keep;
    }
}

static void drop_state(sl_cache *cache, int32_t *slot) {
    sl_pool_drop(&cache->states, *slot);
    *slot = SL_NONE;
}

static void drop_states(sl_cache *cache, int32_t *slots, int32_t *count) {
    while (*count > 0) {
        drop_state(cache, &slots[--*count]);
    }
}

/* The sources of page copies are done with. */
static void drop_sources(sl_cache *cache, sl_timeline *timeline) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        sl_pool_drop(&cache->pages[g], timeline->copied_from[g]);
        timeline->copied_from[g] = SL_NONE;
    }
}

/* Pages to which nothing is compacted. */
static void drop_targets(sl_cache *cache, sl_timeline *timeline) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        while (timeline->target_count[g] > 0) {
            sl_pool_drop(&cache->pages[g], timeline->targets[g][--timeline->target_count[g]]);
        }
    }
}

/* Puts the shared pages back where their copies were to be; the page being written is the one that holds
 * what comes next. */
static void undo_copies(sl_cache *cache, sl_timeline *timeline) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        if (timeline->copied_from[g] != SL_NONE) {
            int32_t *entry = &timeline->pages[g][sl_timeline_length(timeline, g) / SL_PAGE_TOKENS];
            sl_pool_drop(&cache->pages[g], *entry);
            *entry = timeline->copied_from[g];
            timeline->copied_from[g] = SL_NONE;
        }
    }
}

void sl_timeline_reset(sl_cache *cache, sl_timeline *timeline) {
    drop_sources(cache, timeline);
    drop_targets(cache, timeline);
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        drop_pages_from(cache, timeline, g, 0);
    }
    drop_state(cache, &timeline->state);
    drop_state(cache, &timeline->previous_state);
    drop_states(cache, timeline->write_states, &timeline->write_count);
    drop_states(cache, timeline->row_states, &timeline->row_count);
    timeline->cached = timeline->previous = timeline->compacted = 0;
    memset(timeline->dropped, 0, sizeof timeline->dropped);
}

void sl_timeline_free(sl_cache *cache, sl_timeline *timeline) {
    sl_timeline_reset(cache, timeline);
    for (int32_t g = 0; g < SL_CACHE_GROUPS; g++) {
        sl_free(timeline->pages[g]);
        sl_free(timeline->targets[g]);
        timeline->pages[g] = timeline->targets[g] = NULL;
    }
}

void sl_timeline_fork(sl_cache *cache, const sl_timeline *timeline, sl_timeline *fork) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        int32_t count = (sl_timeline_length(timeline, g) + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS;
        memcpy(fork->pages[g], timeline->pages[g], (size_t)count * sizeof *fork->pages[g]);
        for (int32_t i = 0; i < count; i++) {
            sl_pool_hold(&cache->pages[g], fork->pages[g][i]);
        }
        fork->page_count[g] = count;
        fork->dirty_from[g] = 0;
        fork->dropped[g] = timeline->dropped[g];
    }
    fork->compacted = timeline->compacted;
    fork->salt = timeline->salt;
    fork->unshared = timeline->unshared;
    fork->cached = timeline->cached;
    fork->previous = timeline->previous;
    fork->state = timeline->state;
    fork->previous_state = timeline->previous_state;
    sl_pool_hold(&cache->states, fork->state);
    sl_pool_hold(&cache->states, fork->previous_state);
}

int32_t sl_first_visible(const sl_cache_group *group, int32_t position) {
    int32_t first = group->window ? position - group->window + 1 : 0;
    return first > 0 ? first : 0;
}

/* May a timeline write into a page from `offset` on where it is? What others have of a shared page must end
 * there. */
static bool may_write(const sl_item *page, int32_t offset) {
    return page->references == 1 || page->filled <= offset;
}

/* One page that is about to be written: present, and without anything of others where it will be written. */
static int own_page(sl_cache *cache, sl_timeline *timeline, int32_t group, int32_t index,
                    sl_copy_list *copies) {
    int32_t *entry = &timeline->pages[group][index];
    sl_item_pool *pool = &cache->pages[group];
    if (index < timeline->page_count[group]) {
        const int32_t offset = sl_timeline_length(timeline, group) - index * SL_PAGE_TOKENS;
        if (may_write(&pool->items[*entry], offset > 0 ? offset : 0)) {
            return 0;
        }
        if (copies->count == copies->room) {
            return SL_ERR_LIMIT;
        }
        int32_t page = sl_cache_take_page(cache, group);
        if (page == SL_NONE) {
            return SL_ERR_LIMIT;
        }
        copies->copies[copies->count++] = (sl_page_copy){group, *entry, page};
        timeline->copied_from[group] = *entry;
        *entry = page;
    } else {
        int32_t page = sl_cache_take_page(cache, group);
        if (page == SL_NONE) {
            return SL_ERR_LIMIT;
        }
        *entry = page;
        timeline->page_count[group] = index + 1;
    }
    if (timeline->dirty_from[group] > index) {
        timeline->dirty_from[group] = index;
    }
    return 0;
}

/* Every page of the next rows is the timeline's to write: nobody else may go on behind these rows. */
static void claim(sl_cache *cache, const sl_timeline *timeline, int32_t rows) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        const int32_t length = sl_timeline_length(timeline, g), end = length + rows;
        for (int32_t i = length / SL_PAGE_TOKENS; i * SL_PAGE_TOKENS < end; i++) {
            const int32_t filled = end - i * SL_PAGE_TOKENS;
            cache->pages[g].items[timeline->pages[g][i]].filled =
                filled < SL_PAGE_TOKENS ? filled : SL_PAGE_TOKENS;
        }
    }
}

static int reserve_states(sl_cache *cache, sl_timeline *timeline, int32_t count) {
    drop_state(cache, &timeline->previous_state);
    drop_states(cache, timeline->row_states, &timeline->row_count);
    while (timeline->write_count < count) {
        const int32_t slot = sl_cache_take_state(cache);
        if (slot == SL_NONE) {
            drop_states(cache, timeline->write_states, &timeline->write_count);
            return SL_ERR_LIMIT;
        }
        timeline->write_states[timeline->write_count++] = slot;
    }
    return 0;
}

static int reserve_all(sl_cache *cache, sl_timeline *timeline, int32_t rows, int32_t drafts,
                       sl_copy_list *copies) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        const int32_t length = sl_timeline_length(timeline, g), last = (length + rows - 1) / SL_PAGE_TOKENS;
        for (int32_t i = length / SL_PAGE_TOKENS; i <= last; i++) {
            int result = own_page(cache, timeline, g, i, copies);
            if (result) {
                return result;
            }
        }
    }
    return cache->program->state_count ? reserve_states(cache, timeline, 1 + drafts) : 0;
}

int sl_timeline_reserve(sl_cache *cache, sl_timeline *timeline, int32_t rows, int32_t drafts,
                        sl_copy_list *copies) {
    int32_t copies_before = copies->count;
    int result = reserve_all(cache, timeline, rows, drafts, copies);
    if (result) {
        copies->count = copies_before;
        undo_copies(cache, timeline);
    } else {
        claim(cache, timeline, rows);
    }
    return result;
}

int32_t sl_timeline_new_states(const sl_cache *cache, const sl_timeline *timeline) {
    const int32_t previous = timeline->previous_state;
    const sl_item *item = previous == SL_NONE ? NULL : &cache->states.items[previous];
    return cache->program->state_count && !(item && item->references == item->index_references + 1);
}

/* `cached` becomes `end`, with the state behind it, and full pages go into the index. */
static void advance_to(sl_cache *cache, sl_timeline *timeline, const int32_t *tokens, int32_t end,
                       int32_t state) {
    const int32_t full_before = timeline->cached / SL_PAGE_TOKENS;
    timeline->cached = end;
    timeline->state = state;
    if (end / SL_PAGE_TOKENS > full_before) {
        sl_timeline_index(cache, timeline, tokens);
    }
}

/* The same with the states of a step that ended `rows` behind `cached`. Those at pages' ends on the way are
 * for the index. */
static void advance_states(sl_cache *cache, sl_timeline *timeline, const int32_t *tokens, int32_t rows,
                           int32_t end) {
    int32_t *slots = timeline->write_states;
    const int32_t first =
        timeline->cached + rows - timeline->write_count + 1; /* tokens in front of slots[0] */
    timeline->previous_state = timeline->state;
    for (int32_t at = first + (SL_PAGE_TOKENS - first % SL_PAGE_TOKENS) % SL_PAGE_TOKENS; at < end;
         at += SL_PAGE_TOKENS) {
        advance_to(cache, timeline, tokens, at, slots[at - first]);
    }
    advance_to(cache, timeline, tokens, end, slots[end - first]);
    slots[end - first] = SL_NONE;
    timeline->row_count = end - first;
    memcpy(timeline->row_states, slots, (size_t)timeline->row_count * sizeof *slots);
    memset(slots, 0xff, (size_t)timeline->row_count * sizeof *slots);
    drop_states(cache, slots, &timeline->write_count);
}

/* What no row sees any more that stands behind `previous`, so that the last step can be rolled back. */
static void leave_windows(sl_cache *cache, sl_timeline *timeline) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        int32_t first = sl_first_visible(&cache->program->groups[g], timeline->previous) / SL_PAGE_TOKENS;
        sl_timeline_leave_behind(cache, timeline, g, first - 1);
    }
}

/* What was claimed behind `cached` is free to be written again. */
static void unclaim(sl_cache *cache, const sl_timeline *timeline) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        const int32_t length = sl_timeline_length(timeline, g);
        for (int32_t i = length / SL_PAGE_TOKENS; i < timeline->page_count[g]; i++) {
            const int32_t filled = length - i * SL_PAGE_TOKENS;
            cache->pages[g].items[timeline->pages[g][i]].filled = filled > 0 ? filled : 0;
        }
    }
}

void sl_timeline_advance_by(sl_cache *cache, sl_timeline *timeline, const int32_t *tokens, int32_t rows,
                            int32_t kept) {
    drop_sources(cache, timeline);
    timeline->previous = timeline->cached;
    if (kept == 0) {
        drop_states(cache, timeline->write_states, &timeline->write_count);
    } else if (cache->program->state_count) {
        advance_states(cache, timeline, tokens, rows, timeline->cached + kept);
    } else {
        advance_to(cache, timeline, tokens, timeline->cached + kept, SL_NONE);
    }
    leave_windows(cache, timeline);
    if (kept < rows) {
        unclaim(cache, timeline);
    }
}

void sl_timeline_advance(sl_cache *cache, sl_timeline *timeline, const int32_t *tokens, int32_t rows) {
    sl_timeline_advance_by(cache, timeline, tokens, rows, rows);
}

void sl_timeline_revert(sl_cache *cache, sl_timeline *timeline) {
    drop_states(cache, timeline->write_states, &timeline->write_count);
    drop_targets(cache, timeline);
    undo_copies(cache, timeline);
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        timeline->dirty_from[g] = 0;
    }
}

int sl_timeline_reserve_compaction(sl_cache *cache, sl_timeline *timeline) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        const int32_t wanted = cache->program->groups[g].window > 0 ? 0 : sl_table_width(cache->keep);
        while (timeline->target_count[g] < wanted) {
            const int32_t page = sl_cache_take_page(cache, g);
            if (page == SL_NONE) {
                drop_targets(cache, timeline);
                return SL_ERR_LIMIT;
            }
            timeline->targets[g][timeline->target_count[g]++] = page;
        }
    }
    return 0;
}

void sl_timeline_compact(sl_cache *cache, sl_timeline *timeline) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        const int32_t count = timeline->target_count[g], keep = cache->keep;
        if (count == 0) {
            continue;
        }
        drop_pages_from(cache, timeline, g, 0);
        for (int32_t i = 0; i < count; i++) {
            const int32_t filled = keep - i * SL_PAGE_TOKENS;
            timeline->pages[g][i] = timeline->targets[g][i];
            cache->pages[g].items[timeline->pages[g][i]].filled =
                filled < SL_PAGE_TOKENS ? filled : SL_PAGE_TOKENS;
        }
        timeline->page_count[g] = count;
        timeline->target_count[g] = 0;
        timeline->dropped[g] = timeline->cached - keep;
    }
    /* The step before it cannot be taken back alone. */
    drop_state(cache, &timeline->previous_state);
    timeline->compacted = timeline->previous = timeline->cached;
}

/* The state behind `length` tokens, or else the last one in front of them that there is; false: there is
 * none. */
static bool find_state(const sl_timeline *timeline, int32_t length, int32_t *target, int32_t *state) {
    const int32_t first = timeline->cached - timeline->row_count;
    *target = length >= first ? length : timeline->previous;
    *state = length >= first ? timeline->row_states[length - first] : timeline->previous_state;
    return *state != SL_NONE && length >= timeline->previous;
}

static void truncate_to(sl_cache *cache, sl_timeline *timeline, int32_t length) {
    int32_t target = length, state = SL_NONE;
    if (length < timeline->compacted ||
        (cache->program->state_count && !find_state(timeline, length, &target, &state))) {
        sl_timeline_reset(cache, timeline);
        return;
    }
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        int32_t first = sl_first_visible(&cache->program->groups[g], target) / SL_PAGE_TOKENS;
        if (first < timeline->page_count[g] && target > 0 && timeline->pages[g][first] == SL_NONE) {
            sl_timeline_reset(cache, timeline);
            return;
        }
    }
    sl_pool_hold(&cache->states, state);
    drop_state(cache, &timeline->state);
    timeline->state = state;
    if (target <= timeline->previous) {
        drop_state(cache, &timeline->previous_state);
        timeline->previous = target;
    }
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        const int32_t held = target - timeline->dropped[g];
        drop_pages_from(cache, timeline, g, (held + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS);
    }
    timeline->cached = target;
}

void sl_timeline_truncate(sl_cache *cache, sl_timeline *timeline, int32_t length) {
    if (length < timeline->cached) {
        truncate_to(cache, timeline, length);
    }
    drop_states(cache, timeline->row_states, &timeline->row_count);
}
