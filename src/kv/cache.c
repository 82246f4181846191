#include "kv/cache.h"

#include "base/alloc.h"
#include "kv/internal.h"

#include <string.h>

/* ---- pools of counted items
 * ----------------------------------------------------------------------------------------- */

static bool pool_init(sl_item_pool *pool, int32_t count) {
    pool->items = sl_alloc_zero((size_t)count + 1, sizeof *pool->items);
    pool->free_items = sl_alloc_zero((size_t)count + 1, sizeof *pool->free_items);
    if (!pool->items || !pool->free_items) {
        return false;
    }
    pool->count = pool->free_count = count;
    for (int32_t i = 0; i < count; i++) {
        pool->free_items[i] = count - 1 - i;
    }
    return true;
}

static void pool_free(sl_item_pool *pool) {
    sl_free(pool->items);
    sl_free(pool->free_items);
}

static int32_t pool_take(sl_item_pool *pool) {
    if (pool->free_count == 0) {
        return SL_NONE;
    }
    int32_t item = pool->free_items[--pool->free_count];
    pool->items[item] = (sl_item){.references = 1, .node = SL_NONE};
    return item;
}

void sl_pool_hold(sl_item_pool *pool, int32_t item) {
    if (item != SL_NONE) {
        pool->items[item].references++;
    }
}

void sl_pool_drop(sl_item_pool *pool, int32_t item) {
    if (item != SL_NONE && --pool->items[item].references == 0) {
        pool->free_items[pool->free_count++] = item;
    }
}

void sl_pool_index(sl_item_pool *pool, int32_t item, int32_t node) {
    if (item != SL_NONE) {
        sl_pool_hold(pool, item);
        pool->items[item].index_references++;
        pool->items[item].node = node;
        if (pool->items[item].worth == 0) {
            sl_pool_value(pool, item, SL_KEEP_PASSING);
        }
    }
}

void sl_pool_value(sl_item_pool *pool, int32_t item, sl_keep keep) {
    if (item != SL_NONE) {
        /* As if used that many uses later, in multiples of the pool's size. */
        static const uint64_t later[] = {[SL_KEEP_PASSING] = 0, [SL_KEEP_PROMPT] = 1, [SL_KEEP_END] = 4};
        pool->items[item].worth = ++pool->clock + later[keep] * (uint64_t)pool->count;
    }
}

static bool only_indexed(const sl_item *item) {
    return item->references > 0 && item->references == item->index_references;
}

/* ---- the index's references
 * ----------------------------------------------------------------------------------------- */

static int32_t *held_by(sl_cache *cache, int32_t node, int32_t group) {
    sl_index_node *n = sl_index_get(cache->index, node);
    return group == SL_NONE ? &n->state : &n->pages[group];
}

/* `node` lets go of its page of a group, or of its state; another node that holds the same is the item's from
 * then on. Only siblings can: a page holds what follows one beginning. */
static void forget(sl_cache *cache, int32_t node, int32_t group) {
    sl_item_pool *pool = group == SL_NONE ? &cache->states : &cache->pages[group];
    int32_t *held = held_by(cache, node, group), item = *held;
    if (item == SL_NONE) {
        return;
    }
    *held = SL_NONE;
    sl_item *record = &pool->items[item];
    record->index_references--;
    if (record->index_references > 0 && record->node == node) {
        int32_t sibling = sl_index_first_child(cache->index, sl_index_get(cache->index, node)->parent);
        while (sibling != SL_NONE && *held_by(cache, sibling, group) != item) {
            sibling = sl_index_get(cache->index, sibling)->next_child;
        }
        record->node = sibling;
    }
    sl_pool_drop(pool, item);
}

void sl_cache_drop_node(sl_cache *cache, int32_t node) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        forget(cache, node, g);
    }
    forget(cache, node, SL_NONE);
    sl_index_remove(cache->index, node);
}

/* With all that follows it. */
static void drop_subtree(sl_cache *cache, int32_t node) {
    int32_t leaf;
    do {
        leaf = node;
        for (int32_t child; (child = sl_index_first_child(cache->index, leaf)) != SL_NONE;) {
            leaf = child;
        }
        sl_cache_drop_node(cache, leaf);
    } while (leaf != node);
}

/* Drops the least recently used node whose page of a full group only the index holds: a leaf or, when there
 * is none, a node with all that follows it. */
static bool evict_node(sl_cache *cache, int32_t group) {
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = sl_index_oldest(cache->index); i != SL_NONE; i = sl_index_newer(cache->index, i)) {
            const int32_t page = *held_by(cache, i, group);
            const bool leaf = sl_index_first_child(cache->index, i) == SL_NONE;
            if (page != SL_NONE && only_indexed(&cache->pages[group].items[page]) && (leaf || pass == 1)) {
                drop_subtree(cache, i);
                return true;
            }
        }
    }
    return false;
}

/* Takes the window's page or the state that is worth least from the nodes that hold it; they still serve
 * longer matches. */
static bool evict_item(sl_cache *cache, sl_item_pool *pool, int32_t group) {
    const sl_item *worst = NULL;
    for (int32_t i = 0; i < pool->count; i++) {
        const sl_item *item = &pool->items[i];
        if (only_indexed(item) && (!worst || item->worth < worst->worth)) {
            worst = item;
        }
    }
    if (!worst) {
        return false;
    }
    while (worst->index_references > 0) {
        forget(cache, worst->node, group);
    }
    return true;
}

/* A full group's page is what makes a node worth having, so there the node goes altogether. */
static bool evict(sl_cache *cache, int32_t group) {
    return cache->program->groups[group].window == 0 ? evict_node(cache, group)
                                                     : evict_item(cache, &cache->pages[group], group);
}

int32_t sl_cache_take_page(sl_cache *cache, int32_t group) {
    while (cache->pages[group].free_count == 0 && evict(cache, group)) {
    }
    return pool_take(&cache->pages[group]);
}

int32_t sl_cache_take_state(sl_cache *cache) {
    if (cache->states.free_count == 0) {
        evict_item(cache, &cache->states, SL_NONE);
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
    cache->keep = deployment->limits.keep;
    cache->reuse = reuse;
    bool ok = pool_init(&cache->states, program->state_count ? deployment->state_slots : 0);
    int32_t most = 1;
    for (int32_t g = 0; g < program->group_count; g++) {
        ok = ok && pool_init(&cache->pages[g], deployment->caches[g].pages);
        most = deployment->caches[g].pages > most ? deployment->caches[g].pages : most;
    }
    cache->mark_count = most;
    cache->marks = sl_alloc_zero((size_t)most, 1);
    /* Every page may be in a full node and in one that was not full yet; and without a full group nodes
     * outlive their pages. */
    const int32_t nodes = (most < INT32_MAX / 4 ? 2 * most : most) + cache->states.count + cache->table_width;
    if (!ok || !cache->marks || !(cache->index = sl_index_create(nodes))) {
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
    sl_free(cache->marks);
    sl_free(cache);
}

void sl_cache_clear_index(sl_cache *cache) {
    int32_t node;
    while ((node = sl_index_oldest(cache->index)) != SL_NONE) {
        drop_subtree(cache, node);
    }
}

static int32_t count_available(const sl_item_pool *pool) {
    int32_t available = pool->free_count;
    for (int32_t i = 0; i < pool->count; i++) {
        available += only_indexed(&pool->items[i]);
    }
    return available;
}

int32_t sl_cache_available_pages(const sl_cache *cache, int32_t group) {
    return count_available(&cache->pages[group]);
}

int32_t sl_cache_available_states(const sl_cache *cache) {
    return count_available(&cache->states);
}

void sl_cache_clear_marks(sl_cache *cache) {
    memset(cache->marks, 0, (size_t)cache->mark_count);
}

int32_t sl_cache_mark(sl_cache *cache, const sl_timeline *timeline, int32_t group) {
    int32_t marked = 0;
    for (int32_t i = 0; i < timeline->page_count[group]; i++) {
        const int32_t page = timeline->pages[group][i];
        if (page != SL_NONE && !cache->marks[page]) {
            cache->marks[page] = 1;
            marked++;
        }
    }
    return marked;
}

int32_t sl_cache_free_pages(const sl_cache *cache, int32_t group) {
    return cache->pages[group].free_count;
}

int32_t sl_cache_all_pages(const sl_cache *cache, int32_t group) {
    return cache->pages[group].count;
}

/* ---- for what is kept on disk
 * --------------------------------------------------------------------------------------- */

sl_index *sl_cache_index(sl_cache *cache) {
    return cache->index;
}

void sl_cache_hold(sl_cache *cache, const sl_cache_items *items) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        sl_pool_hold(&cache->pages[g], items->pages[g]);
    }
    sl_pool_hold(&cache->states, items->state);
}

void sl_cache_drop(sl_cache *cache, const sl_cache_items *items) {
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        sl_pool_drop(&cache->pages[g], items->pages[g]);
    }
    sl_pool_drop(&cache->states, items->state);
}

int32_t sl_cache_first_page(const sl_cache_group *group, int32_t position) {
    return sl_first_visible(group, position) / SL_PAGE_TOKENS;
}

void sl_timeline_leave_behind(sl_cache *cache, sl_timeline *timeline, int32_t group, int32_t last) {
    for (int32_t i = last; i >= 0 && timeline->pages[group][i] != SL_NONE; i--) {
        sl_pool_drop(&cache->pages[group], timeline->pages[group][i]);
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
