#include "kv/cache.h"

#include "base/alloc.h"

#include <string.h>

/* Reference counts and a stack of free items. */
typedef struct item_pool {
    int32_t *references; /* [count] */
    int32_t *free_items; /* [free_count] */
    int32_t count, free_count;
} item_pool;

struct sl_cache {
    const sl_program *program;
    int32_t table_width;
    bool reuse;
    item_pool pages[SL_CACHE_GROUPS];
    item_pool states;
    sl_index *index; /* holds references like a timeline does */
};

/* ---- pools of counted items
 * ----------------------------------------------------------------------------------------- */

static bool pool_init(item_pool *pool, int32_t count) {
    pool->references = sl_alloc_zero((size_t)count + 1, sizeof *pool->references);
    pool->free_items = sl_alloc_zero((size_t)count + 1, sizeof *pool->free_items);
    if (!pool->references || !pool->free_items) {
        return false;
    }
    pool->count = pool->free_count = count;
    for (int32_t i = 0; i < count; i++) {
        pool->free_items[i] = count - 1 - i;
    }
    return true;
}

static void pool_free(item_pool *pool) {
    sl_free(pool->references);
    sl_free(pool->free_items);
}

static int32_t pool_take(item_pool *pool) {
    if (pool->free_count == 0) {
        return SL_NONE;
    }
    int32_t item = pool->free_items[--pool->free_count];
    pool->references[item] = 1;
    return item;
}

static void pool_hold(item_pool *pool, int32_t item) {
    if (item != SL_NONE) {
        pool->references[item]++;
    }
}

static void pool_drop(item_pool *pool, int32_t item) {
    if (item != SL_NONE && --pool->references[item] == 0) {
        pool->free_items[pool->free_count++] = item;
    }
}

/* ---- the index's references
 * ----------------------------------------------------------------------------------------- */

static void drop_node(sl_cache *cache, int32_t node) {
    sl_index_node *n = sl_index_get(cache->index, node);
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        pool_drop(&cache->pages[g], n->pages[g]);
    }
    pool_drop(&cache->states, n->state);
    sl_index_remove(cache->index, node);
}

/* Frees one item of `pool` that only the index holds, the least recently used first. A full group's
 * page is what makes a node worth having, so such a node goes altogether, from the leaves; of a window's page
 * or a state only the reference goes, and the node still serves longer matches. */
static bool evict_one(sl_cache *cache, item_pool *pool, int32_t group) {
    bool whole = group != SL_NONE && cache->program->groups[group].window == 0;
    for (int32_t i = sl_index_oldest(cache->index); i != SL_NONE; i = sl_index_newer(cache->index, i)) {
        sl_index_node *node = sl_index_get(cache->index, i);
        int32_t *item = group == SL_NONE ? &node->state : &node->pages[group];
        if (*item == SL_NONE || pool->references[*item] != 1 || (whole && node->children != 0)) {
            continue;
        }
        if (whole) {
            drop_node(cache, i);
        } else {
            pool_drop(pool, *item);
            *item = SL_NONE;
        }
        return true;
    }
    return false;
}

static int32_t take_page(sl_cache *cache, int32_t group) {
    item_pool *pool = &cache->pages[group];
    if (pool->free_count == 0) {
        evict_one(cache, pool, group);
    }
    return pool_take(pool);
}

static int32_t take_state(sl_cache *cache) {
    if (cache->states.free_count == 0) {
        evict_one(cache, &cache->states, SL_NONE);
    }
    return pool_take(&cache->states);
}

/* ---- cache
 * ----------------------------------------------------------------------------------------------------------
 */

int sl_cache_create(const sl_deployment *deployment, bool reuse, sl_cache **out, sl_error *error) {
    *out = NULL;
    sl_cache *cache = sl_alloc_zero(1, sizeof *cache);
    if (!cache) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for the cache's book-keeping");
    }
    const sl_program *program = deployment->program;
    cache->program = program;
    cache->table_width = sl_table_width(deployment->limits.context);
    cache->reuse = reuse;
    bool ok = pool_init(&cache->states, program->state_count ? deployment->state_slots : 0);
    int32_t nodes = 1;
    for (int32_t g = 0; g < program->group_count; g++) {
        ok = ok && pool_init(&cache->pages[g], deployment->caches[g].pages);
        nodes = deployment->caches[g].pages > nodes ? deployment->caches[g].pages : nodes;
    }
    nodes = cache->states.count > nodes ? cache->states.count : nodes;
    if (!ok || !(cache->index = sl_index_create(nodes))) {
        sl_cache_destroy(cache);
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for the cache's book-keeping");
    }
    *out = cache;
    return 0;
}

void sl_cache_destroy(sl_cache *cache) {
    if (!cache) {
        return;
    }
    for (int32_t g = 0; g < SL_CACHE_GROUPS; g++) {
        pool_free(&cache->pages[g]);
    }
    pool_free(&cache->states);
    sl_index_destroy(cache->index);
    sl_free(cache);
}

void sl_cache_clear_index(sl_cache *cache) {
    int32_t node;
    while ((node = sl_index_oldest(cache->index)) != SL_NONE) {
        drop_node(cache, node);
    }
}

static int32_t count_available(const sl_cache *cache, const item_pool *pool, int32_t group) {
    int32_t available = pool->free_count;
    for (int32_t i = sl_index_oldest(cache->index); i != SL_NONE; i = sl_index_newer(cache->index, i)) {
        const sl_index_node *node = sl_index_get(cache->index, i);
        int32_t item = group == SL_NONE ? node->state : node->pages[group];
        available += item != SL_NONE && pool->references[item] == 1;
    }
    return available;
}

int32_t sl_cache_available_pages(const sl_cache *cache, int32_t group) {
    return count_available(cache, &cache->pages[group], group);
}

int32_t sl_cache_available_states(const sl_cache *cache) {
    return count_available(cache, &cache->states, SL_NONE);
}

/* ---- timelines
 * ------------------------------------------------------------------------------------------------------ */

int sl_timeline_init(const sl_cache *cache, sl_timeline *timeline, sl_error *error) {
    memset(timeline, 0, sizeof *timeline);
    timeline->state = timeline->previous_state = timeline->write_state = SL_NONE;
    for (int32_t g = 0; g < SL_CACHE_GROUPS; g++) {
        timeline->copied_from[g] = SL_NONE;
    }
    int32_t groups = cache->program->group_count;
    for (int32_t g = 0; g < groups; g++) {
        timeline->pages[g] = sl_alloc((size_t)cache->table_width * sizeof *timeline->pages[g]);
        if (!timeline->pages[g]) {
            while (g-- > 0) {
                sl_free(timeline->pages[g]);
                timeline->pages[g] = NULL;
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
        pool_drop(&cache->pages[group], timeline->pages[group][i]);
    }
    if (keep < timeline->page_count[group]) {
        timeline->page_count[group] = keep;
    }
    if (timeline->dirty_from[group] > keep) {
        timeline->dirty_from[group] = keep;
    }
}

static void drop_state(sl_cache *cache, int32_t *slot) {
    pool_drop(&cache->states, *slot);
    *slot = SL_NONE;
}

/* The sources of page copies are done with. */
static void drop_sources(sl_cache *cache, sl_timeline *timeline) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        pool_drop(&cache->pages[g], timeline->copied_from[g]);
        timeline->copied_from[g] = SL_NONE;
    }
}

/* Puts the shared pages back where their copies were to be; the page being written is the one that holds
 * index `cached`. */
static void undo_copies(sl_cache *cache, sl_timeline *timeline) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        if (timeline->copied_from[g] != SL_NONE) {
            int32_t *entry = &timeline->pages[g][timeline->cached / SL_PAGE_TOKENS];
            pool_drop(&cache->pages[g], *entry);
            *entry = timeline->copied_from[g];
            timeline->copied_from[g] = SL_NONE;
        }
    }
}

void sl_timeline_reset(sl_cache *cache, sl_timeline *timeline) {
    drop_sources(cache, timeline);
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        drop_pages_from(cache, timeline, g, 0);
    }
    drop_state(cache, &timeline->state);
    drop_state(cache, &timeline->previous_state);
    drop_state(cache, &timeline->write_state);
    timeline->cached = timeline->previous = 0;
}

void sl_timeline_free(sl_cache *cache, sl_timeline *timeline) {
    sl_timeline_reset(cache, timeline);
    for (int32_t g = 0; g < SL_CACHE_GROUPS; g++) {
        sl_free(timeline->pages[g]);
        timeline->pages[g] = NULL;
    }
}

void sl_timeline_fork(sl_cache *cache, const sl_timeline *timeline, sl_timeline *fork) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        int32_t count = (timeline->cached + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS;
        memcpy(fork->pages[g], timeline->pages[g], (size_t)count * sizeof *fork->pages[g]);
        for (int32_t i = 0; i < count; i++) {
            pool_hold(&cache->pages[g], fork->pages[g][i]);
        }
        fork->page_count[g] = count;
        fork->dirty_from[g] = 0;
    }
    fork->cached = timeline->cached;
    fork->previous = timeline->previous;
    fork->state = timeline->state;
    fork->previous_state = timeline->previous_state;
    pool_hold(&cache->states, fork->state);
    pool_hold(&cache->states, fork->previous_state);
}

/* The first index that a row at index `position` of this group still sees. */
static int32_t first_visible(const sl_cache_group *group, int32_t position) {
    int32_t first = group->window ? position - group->window + 1 : 0;
    return first > 0 ? first : 0;
}

/* Can a sequence go on at the end of path[0, depth)? Its last node must have the state, and windows their
 * pages. */
static bool can_resume(const sl_cache *cache, const int32_t *path, int32_t depth) {
    const sl_program *program = cache->program;
    if (program->state_count && sl_index_get(cache->index, path[depth - 1])->state == SL_NONE) {
        return false;
    }
    for (int32_t g = 0; g < program->group_count; g++) {
        int32_t first = first_visible(&program->groups[g], depth * SL_PAGE_TOKENS) / SL_PAGE_TOKENS;
        for (int32_t i = first; i < depth; i++) {
            if (sl_index_get(cache->index, path[i])->pages[g] == SL_NONE) {
                return false;
            }
        }
    }
    return true;
}

int32_t sl_timeline_resume(sl_cache *cache, sl_timeline *timeline, const int32_t *tokens, int32_t limit) {
    if (!cache->reuse || timeline->cached != 0) {
        return 0;
    }
    int32_t *path = sl_index_path(cache->index);
    int32_t depth = 0, node = SL_NONE;
    while ((depth + 1) * SL_PAGE_TOKENS <= limit &&
           (node = sl_index_find(cache->index, node, tokens + (size_t)depth * SL_PAGE_TOKENS)) != SL_NONE) {
        path[depth++] = node;
    }
    while (depth > 0 && !can_resume(cache, path, depth)) {
        depth--;
    }
    if (depth == 0) {
        return 0;
    }
    sl_timeline_reset(cache, timeline);
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        int32_t first = first_visible(&cache->program->groups[g], depth * SL_PAGE_TOKENS) / SL_PAGE_TOKENS;
        for (int32_t i = 0; i < depth; i++) {
            int32_t page = i < first ? SL_NONE : sl_index_get(cache->index, path[i])->pages[g];
            pool_hold(&cache->pages[g], page);
            timeline->pages[g][i] = page;
        }
        timeline->page_count[g] = depth;
        timeline->dirty_from[g] = 0;
    }
    timeline->state =
        cache->program->state_count ? sl_index_get(cache->index, path[depth - 1])->state : SL_NONE;
    pool_hold(&cache->states, timeline->state);
    timeline->cached = timeline->previous = depth * SL_PAGE_TOKENS;
    sl_index_touch(cache->index, path[depth - 1]);
    return timeline->cached;
}

/* One page that is about to be written: present and not shared afterwards. */
static int own_page(sl_cache *cache, sl_timeline *timeline, int32_t group, int32_t index,
                    sl_copy_list *copies) {
    int32_t *entry = &timeline->pages[group][index];
    item_pool *pool = &cache->pages[group];
    if (index < timeline->page_count[group]) {
        if (pool->references[*entry] == 1) {
            return 0;
        }
        if (copies->count == copies->room) {
            return SL_ERR_LIMIT;
        }
        int32_t page = take_page(cache, group);
        if (page == SL_NONE) {
            return SL_ERR_LIMIT;
        }
        copies->copies[copies->count++] = (sl_page_copy){group, *entry, page};
        timeline->copied_from[group] = *entry;
        *entry = page;
    } else {
        int32_t page = take_page(cache, group);
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

static int reserve_all(sl_cache *cache, sl_timeline *timeline, int32_t rows, sl_copy_list *copies) {
    int32_t last = (timeline->cached + rows - 1) / SL_PAGE_TOKENS;
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        for (int32_t i = timeline->cached / SL_PAGE_TOKENS; i <= last; i++) {
            int result = own_page(cache, timeline, g, i, copies);
            if (result) {
                return result;
            }
        }
    }
    if (cache->program->state_count) {
        drop_state(cache, &timeline->previous_state);
        timeline->write_state = take_state(cache);
        return timeline->write_state == SL_NONE ? SL_ERR_LIMIT : 0;
    }
    return 0;
}

int sl_timeline_reserve(sl_cache *cache, sl_timeline *timeline, int32_t rows, sl_copy_list *copies) {
    int32_t copies_before = copies->count;
    int result = reserve_all(cache, timeline, rows, copies);
    if (result) {
        copies->count = copies_before;
        undo_copies(cache, timeline);
    }
    return result;
}

/* Lets the index hold what it lacks of the full pages of tokens[0, cached). */
static void index_full_pages(sl_cache *cache, sl_timeline *timeline, const int32_t *tokens) {
    int32_t full = timeline->cached / SL_PAGE_TOKENS, node = SL_NONE;
    for (int32_t i = 0; i < full; i++) {
        const int32_t *page_tokens = tokens + (size_t)i * SL_PAGE_TOKENS;
        int32_t next = sl_index_find(cache->index, node, page_tokens);
        if (next == SL_NONE) {
            int32_t oldest = sl_index_full(cache->index) ? sl_index_oldest(cache->index) : SL_NONE;
            if (oldest != SL_NONE) {
                if (oldest == node) {
                    return; /* the path itself fills the index */
                }
                drop_node(cache, oldest);
            }
            next = sl_index_add(cache->index, node, page_tokens);
        }
        sl_index_node *n = sl_index_get(cache->index, next);
        for (int32_t g = 0; g < cache->program->group_count; g++) {
            if (n->pages[g] == SL_NONE) {
                n->pages[g] = timeline->pages[g][i];
                pool_hold(&cache->pages[g], n->pages[g]);
            }
        }
        node = next;
    }
    if (node != SL_NONE) {
        sl_index_node *n = sl_index_get(cache->index, node);
        if (cache->program->state_count && n->state == SL_NONE && timeline->cached % SL_PAGE_TOKENS == 0) {
            n->state = timeline->state;
            pool_hold(&cache->states, n->state);
        }
        sl_index_touch(cache->index, node);
    }
}

void sl_timeline_advance(sl_cache *cache, sl_timeline *timeline, const int32_t *tokens, int32_t rows) {
    drop_sources(cache, timeline);
    timeline->previous = timeline->cached;
    int32_t full_before = timeline->cached / SL_PAGE_TOKENS;
    timeline->cached += rows;
    if (cache->program->state_count) {
        timeline->previous_state = timeline->state;
        timeline->state = timeline->write_state;
        timeline->write_state = SL_NONE;
    }
    if (cache->reuse && timeline->cached / SL_PAGE_TOKENS > full_before) {
        index_full_pages(cache, timeline, tokens);
    }
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        /* By `previous`, so that the last step can be rolled back. */
        int32_t first = first_visible(&cache->program->groups[g], timeline->previous) / SL_PAGE_TOKENS;
        for (int32_t i = first - 1; i >= 0 && timeline->pages[g][i] != SL_NONE; i--) {
            pool_drop(&cache->pages[g], timeline->pages[g][i]);
            timeline->pages[g][i] = SL_NONE;
        }
    }
}

void sl_timeline_revert(sl_cache *cache, sl_timeline *timeline) {
    drop_state(cache, &timeline->write_state);
    undo_copies(cache, timeline);
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        timeline->dirty_from[g] = 0;
    }
}

void sl_timeline_truncate(sl_cache *cache, sl_timeline *timeline, int32_t length) {
    if (length >= timeline->cached) {
        return;
    }
    int32_t target = length;
    if (cache->program->state_count) {
        if (timeline->previous_state == SL_NONE || length < timeline->previous) {
            sl_timeline_reset(cache, timeline);
            return;
        }
        target = timeline->previous;
    }
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        int32_t first = first_visible(&cache->program->groups[g], target) / SL_PAGE_TOKENS;
        if (first < timeline->page_count[g] && target > 0 && timeline->pages[g][first] == SL_NONE) {
            sl_timeline_reset(cache, timeline);
            return;
        }
    }
    if (cache->program->state_count) {
        drop_state(cache, &timeline->state);
        timeline->state = timeline->previous_state;
        timeline->previous_state = SL_NONE;
    }
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        drop_pages_from(cache, timeline, g, (target + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS);
    }
    timeline->cached = timeline->previous = target;
}

/* ---- for what is kept on disk
 * --------------------------------------------------------------------------------------- */

sl_index *sl_cache_index(sl_cache *cache) {
    return cache->index;
}

void sl_cache_hold(sl_cache *cache, const sl_cache_items *items) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        pool_hold(&cache->pages[g], items->pages[g]);
    }
    pool_hold(&cache->states, items->state);
}

void sl_cache_drop(sl_cache *cache, const sl_cache_items *items) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        pool_drop(&cache->pages[g], items->pages[g]);
    }
    pool_drop(&cache->states, items->state);
}

int32_t sl_cache_first_page(const sl_cache_group *group, int32_t position) {
    return first_visible(group, position) / SL_PAGE_TOKENS;
}

void sl_timeline_leave_behind(sl_cache *cache, sl_timeline *timeline, int32_t group, int32_t last) {
    for (int32_t i = last; i >= 0 && timeline->pages[group][i] != SL_NONE; i--) {
        pool_drop(&cache->pages[group], timeline->pages[group][i]);
        timeline->pages[group][i] = SL_NONE;
    }
}

bool sl_timeline_complete(const sl_cache *cache, const sl_timeline *timeline) {
    if (timeline->cached == 0) {
        return true;
    }
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        const int32_t end = (timeline->cached + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS;
        for (int32_t i = sl_cache_first_page(&cache->program->groups[g], timeline->cached); i < end; i++) {
            if (timeline->pages[g][i] == SL_NONE) {
                return false;
            }
        }
    }
    return cache->program->state_count == 0 || timeline->state != SL_NONE;
}
