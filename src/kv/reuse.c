/* What timelines leave in the index, and what they find there. */
#include "kv/cache.h"

#include "kv/internal.h"

#include <string.h>

static sl_index_node *node_of(const sl_cache *cache, int32_t node) {
    return sl_index_get(cache->index, node);
}

/* How many tokens two texts begin with in common. */
static int32_t count_common(const int32_t *a, const int32_t *b, int32_t count) {
    int32_t common = 0;
    while (common < count && a[common] == b[common]) {
        common++;
    }
    return common;
}

/* ---- finding
 * ----------------------------------------------------------------------------------------------------------
 */

/* A sequence can go on after `depth` full pages and `length` tokens of `child`, which follows them. */
typedef struct place {
    int32_t depth, child, length;
    int32_t matched;
} place;

typedef struct search {
    const sl_cache *cache;
    const sl_beginning *beginning;
    uint64_t salt;
    const int32_t *path; /* [depth] nodes of full pages */
    int32_t depth;
} search;

static int32_t parent_at(const search *s, int32_t depth) {
    return depth > 0 ? s->path[depth - 1] : SL_NONE;
}

/* Tokens in common of a child after `depth` pages and what follows there. */
static int32_t common_with(const search *s, int32_t depth, const sl_index_node *child) {
    const int32_t first = depth * SL_PAGE_TOKENS, rest = s->beginning->count - first;
    if (child->salt != s->salt) {
        return 0;
    }
    return count_common(child->tokens, s->beginning->tokens + first,
                        child->count < rest ? child->count : rest);
}

static int32_t longest_child(const search *s, int32_t depth) {
    int32_t longest = 0;
    int32_t child = sl_index_first_child(s->cache->index, parent_at(s, depth));
    for (; child != SL_NONE; child = node_of(s->cache, child)->next_child) {
        const int32_t common = common_with(s, depth, node_of(s->cache, child));
        longest = common > longest ? common : longest;
    }
    return longest;
}

static bool has_pages(const sl_cache *cache, const sl_index_node *node) {
    bool all = true;
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        all &= node->pages[g] != SL_NONE;
    }
    return all;
}

/* Are the pages there that a row at `position`, behind `depth` full pages, sees of them? */
static bool sees_pages(const search *s, int32_t depth, int32_t position) {
    const sl_program *program = s->cache->program;
    for (int32_t g = 0; g < program->group_count; g++) {
        int32_t first = sl_first_visible(&program->groups[g], position) / SL_PAGE_TOKENS;
        for (int32_t i = first; i < depth; i++) {
            if (node_of(s->cache, s->path[i])->pages[g] == SL_NONE) {
                return false;
            }
        }
    }
    return true;
}

/* The child after `depth` pages that takes a sequence furthest. */
static place best_child(const search *s, int32_t depth) {
    const bool recurrent = s->cache->program->state_count > 0;
    const int32_t room = s->beginning->limit - depth * SL_PAGE_TOKENS;
    place best = {.depth = depth, .child = SL_NONE};
    int32_t child = sl_index_first_child(s->cache->index, parent_at(s, depth));
    for (; child != SL_NONE && room > 0; child = node_of(s->cache, child)->next_child) {
        const sl_index_node *node = node_of(s->cache, child);
        int32_t length = common_with(s, depth, node);
        if (recurrent && (length != node->count || length > room || node->state == SL_NONE)) {
            continue; /* a state is there for the whole of its page only */
        }
        length = length < room ? length : room;
        if (length > best.length && has_pages(s->cache, node)) {
            best.child = child;
            best.length = length;
        }
    }
    return best;
}

static bool ends_at_page(const search *s, int32_t depth) {
    return (s->cache->program->state_count == 0 || node_of(s->cache, s->path[depth - 1])->state != SL_NONE) &&
           sees_pages(s, depth, depth * SL_PAGE_TOKENS);
}

/* The last place to go on from; depth and length 0 when there is none. */
static place find_place(const sl_cache *cache, const sl_timeline *timeline, const sl_beginning *beginning) {
    int32_t *path = sl_index_path(cache->index);
    search s = {cache, beginning, timeline->salt, path, 0};
    for (;;) {
        const int32_t first = s.depth * SL_PAGE_TOKENS;
        const sl_index_page page = {parent_at(&s, s.depth), s.salt, beginning->tokens + first,
                                    SL_PAGE_TOKENS};
        const int32_t node =
            first + SL_PAGE_TOKENS <= beginning->count ? sl_index_find(cache->index, &page) : SL_NONE;
        if (node == SL_NONE) {
            break;
        }
        path[s.depth++] = node;
    }
    const int32_t matched = s.depth * SL_PAGE_TOKENS + longest_child(&s, s.depth);
    for (int32_t depth = s.depth; depth >= 0; depth--) {
        place found = best_child(&s, depth);
        if (found.length == 0 || !sees_pages(&s, depth, depth * SL_PAGE_TOKENS + found.length)) {
            found = (place){.depth = depth, .child = SL_NONE};
        }
        const bool whole = depth > 0 && depth * SL_PAGE_TOKENS <= beginning->limit;
        if (found.length > 0 || (whole && ends_at_page(&s, depth))) {
            found.matched = matched;
            return found;
        }
    }
    return (place){.child = SL_NONE, .matched = matched};
}

static bool may_reuse(const sl_cache *cache, const sl_timeline *timeline) {
    return cache->reuse && !timeline->unshared && timeline->cached == 0;
}

static sl_match match_of(const place *p) {
    return (sl_match){p->depth * SL_PAGE_TOKENS + p->length, p->matched};
}

sl_match sl_timeline_match(const sl_cache *cache, const sl_timeline *timeline,
                           const sl_beginning *beginning) {
    if (!may_reuse(cache, timeline)) {
        return (sl_match){0};
    }
    const place found = find_place(cache, timeline, beginning);
    return match_of(&found);
}

sl_match sl_timeline_resume(sl_cache *cache, sl_timeline *timeline, const sl_beginning *beginning) {
    if (!may_reuse(cache, timeline)) {
        return (sl_match){0};
    }
    const place found = find_place(cache, timeline, beginning);
    const sl_match match = match_of(&found);
    if (match.usable == 0) {
        return match;
    }
    const int32_t *path = sl_index_path(cache->index);
    const int32_t count = found.depth + (found.length > 0);
    const int32_t last = found.length > 0 ? found.child : path[found.depth - 1];
    sl_timeline_reset(cache, timeline);
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        const int32_t first = sl_first_visible(&cache->program->groups[g], match.usable) / SL_PAGE_TOKENS;
        for (int32_t i = 0; i < count; i++) {
            const int32_t node = i < found.depth ? path[i] : found.child;
            const int32_t page = i < first ? SL_NONE : node_of(cache, node)->pages[g];
            sl_pool_hold(&cache->pages[g], page);
            sl_pool_value(&cache->pages[g], page, SL_KEEP_PROMPT);
            timeline->pages[g][i] = page;
        }
        timeline->page_count[g] = count;
        timeline->dirty_from[g] = 0;
    }
    if (cache->program->state_count) {
        timeline->state = node_of(cache, last)->state;
        sl_pool_hold(&cache->states, timeline->state);
        sl_pool_value(&cache->states, timeline->state, SL_KEEP_PROMPT);
    }
    timeline->cached = timeline->previous = match.usable;
    sl_index_touch(cache->index, last);
    return match;
}

sl_match sl_timeline_resume_pages(sl_cache *cache, sl_timeline *timeline, const sl_beginning *beginning) {
    const sl_match match = sl_timeline_match(cache, timeline, beginning);
    sl_beginning pages = *beginning;
    pages.limit = match.usable - match.usable % SL_PAGE_TOKENS;
    while (sl_timeline_resume(cache, timeline, &pages).usable % SL_PAGE_TOKENS) {
        pages.limit = timeline->cached - timeline->cached % SL_PAGE_TOKENS;
        sl_timeline_reset(cache, timeline);
    }
    return match;
}

/* ---- leaving
 * ----------------------------------------------------------------------------------------------------------
 */

/* A new node; the least recently used one goes when there is no room. SL_NONE when that is `page->parent`. */
static int32_t add_node(sl_cache *cache, const sl_index_page *page) {
    if (sl_index_full(cache->index)) {
        const int32_t oldest = sl_index_oldest(cache->index);
        if (oldest == page->parent || sl_index_first_child(cache->index, oldest) != SL_NONE) {
            return SL_NONE;
        }
        sl_cache_drop_node(cache, oldest);
    }
    return sl_index_add(cache->index, page);
}

/* Lets a node hold what it lacks of a timeline's page. */
static void fill_node(sl_cache *cache, int32_t node, const sl_timeline *timeline, int32_t index) {
    sl_index_node *n = node_of(cache, node);
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        if (n->pages[g] == SL_NONE) {
            n->pages[g] = timeline->pages[g][index];
            sl_pool_index(&cache->pages[g], n->pages[g], node);
        }
    }
    if (timeline->cached == index * SL_PAGE_TOKENS + n->count && n->state == SL_NONE) {
        n->state = timeline->state;
        sl_pool_index(&cache->states, n->state, node);
    }
}

/* Pages that begin a longer one have served their time, unless they have a state. */
static void drop_shorter(sl_cache *cache, int32_t node) {
    const sl_index_node *n = node_of(cache, node);
    int32_t next, sibling = sl_index_first_child(cache->index, n->parent);
    for (; sibling != SL_NONE; sibling = next) {
        const sl_index_node *other = node_of(cache, sibling);
        next = other->next_child;
        if (other->count < n->count && other->salt == n->salt && other->state == SL_NONE &&
            memcmp(other->tokens, n->tokens, (size_t)other->count * sizeof *n->tokens) == 0) {
            sl_cache_drop_node(cache, sibling);
        }
    }
}

/* The full pages of tokens[0, cached) in the index; *last is the node of the last one. false when the path
 * itself fills the index. */
static bool index_full_pages(sl_cache *cache, const sl_timeline *timeline, const int32_t *tokens,
                             int32_t *last) {
    const int32_t full = timeline->cached / SL_PAGE_TOKENS;
    int32_t node = SL_NONE;
    for (int32_t i = 0; i < full; i++) {
        const sl_index_page page = {node, timeline->salt, tokens + (size_t)i * SL_PAGE_TOKENS,
                                    SL_PAGE_TOKENS};
        int32_t next = sl_index_find(cache->index, &page);
        const bool added = next == SL_NONE;
        if (added && (next = add_node(cache, &page)) == SL_NONE) {
            return false;
        }
        fill_node(cache, next, timeline, i);
        if (added) {
            drop_shorter(cache, next);
        }
        node = next;
    }
    *last = node;
    return true;
}

/* A compacted timeline has nothing that others could go on from. */
static bool may_leave(const sl_cache *cache, const sl_timeline *timeline) {
    return cache->reuse && !timeline->unshared && timeline->compacted == 0;
}

void sl_timeline_index(sl_cache *cache, const sl_timeline *timeline, const int32_t *tokens) {
    int32_t last = SL_NONE;
    if (may_leave(cache, timeline) && index_full_pages(cache, timeline, tokens, &last) && last != SL_NONE) {
        sl_index_touch(cache->index, last);
    }
}

/* The node of a page that is not full: one with these tokens or, without states to keep, one that begins with
 * them. */
static int32_t find_partial(const sl_cache *cache, const sl_index_page *page) {
    const bool exact = cache->program->state_count > 0;
    int32_t child = sl_index_first_child(cache->index, page->parent);
    for (; child != SL_NONE; child = node_of(cache, child)->next_child) {
        const sl_index_node *n = node_of(cache, child);
        const bool long_enough = n->count == page->count || (!exact && n->count > page->count);
        if (long_enough && n->salt == page->salt && (n->count == page->count || has_pages(cache, n)) &&
            memcmp(n->tokens, page->tokens, (size_t)page->count * sizeof *n->tokens) == 0) {
            return child;
        }
    }
    return SL_NONE;
}

/* What is worth keeping for going on behind `node`, where the timeline ends: the state there, and the windows
 * before it. */
static void value_end(sl_cache *cache, const sl_timeline *timeline, int32_t node, sl_keep keep) {
    sl_pool_value(&cache->states, node_of(cache, node)->state, keep);
    const int32_t last = (timeline->cached - 1) / SL_PAGE_TOKENS;
    for (int32_t g = 0; g < cache->program->group_count; g++) {
        const sl_cache_group *group = &cache->program->groups[g];
        const int32_t first = sl_first_visible(group, timeline->cached) / SL_PAGE_TOKENS;
        int32_t ancestor = node;
        for (int32_t i = last; group->window && i >= first && ancestor != SL_NONE; i--) {
            sl_pool_value(&cache->pages[g], node_of(cache, ancestor)->pages[g], keep);
            ancestor = node_of(cache, ancestor)->parent;
        }
    }
}

void sl_timeline_keep(sl_cache *cache, const sl_timeline *timeline, const int32_t *tokens, sl_keep keep) {
    int32_t node = SL_NONE;
    if (!may_leave(cache, timeline) || timeline->cached == 0 ||
        !index_full_pages(cache, timeline, tokens, &node)) {
        return;
    }
    const int32_t full = timeline->cached / SL_PAGE_TOKENS, count = timeline->cached % SL_PAGE_TOKENS;
    if (count > 0) {
        const sl_index_page page = {node, timeline->salt, tokens + (size_t)full * SL_PAGE_TOKENS, count};
        int32_t partial = find_partial(cache, &page);
        if (partial == SL_NONE && (partial = add_node(cache, &page)) == SL_NONE) {
            return;
        }
        if (node_of(cache, partial)->count == count) {
            fill_node(cache, partial, timeline, full);
            drop_shorter(cache, partial);
        }
        node = partial;
    }
    value_end(cache, timeline, node, keep);
    sl_index_touch(cache->index, node);
}
