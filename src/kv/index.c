#include "kv/index.h"

#include "base/alloc.h"

#include <string.h>

struct sl_index {
    sl_index_node *nodes; /* [count] */
    int32_t *buckets;     /* [bucket_count], heads of hash chains */
    int32_t *path;        /* [count] */
    int32_t count, bucket_count;
    int32_t unused; /* head of the free list, linked through chain */
    int32_t oldest, newest;
    int32_t first_root;
    uint64_t changes;
};

sl_index *sl_index_create(int32_t nodes) {
    sl_index *index = sl_alloc_zero(1, sizeof *index);
    if (!index) {
        return NULL;
    }
    index->count = nodes;
    index->bucket_count = 16;
    while (index->bucket_count < nodes) {
        index->bucket_count *= 2;
    }
    index->nodes = sl_alloc_zero((size_t)nodes, sizeof *index->nodes);
    index->buckets = sl_alloc((size_t)index->bucket_count * sizeof *index->buckets);
    index->path = sl_alloc((size_t)nodes * sizeof *index->path);
    if (!index->nodes || !index->buckets || !index->path) {
        sl_index_destroy(index);
        return NULL;
    }
    for (int32_t i = 0; i < index->bucket_count; i++) {
        index->buckets[i] = SL_NONE;
    }
    for (int32_t i = 0; i < nodes; i++) {
        index->nodes[i].chain = i + 1 < nodes ? i + 1 : SL_NONE;
    }
    index->unused = 0;
    index->oldest = index->newest = index->first_root = SL_NONE;
    return index;
}

void sl_index_destroy(sl_index *index) {
    if (index) {
        sl_free(index->nodes);
        sl_free(index->buckets);
        sl_free(index->path);
        sl_free(index);
    }
}

sl_index_node *sl_index_get(const sl_index *index, int32_t node) {
    return &index->nodes[node];
}

static uint64_t hash_page(const sl_index *index, const sl_index_page *page) {
    uint64_t seed = page->parent == SL_NONE ? page->salt : index->nodes[page->parent].hash;
    return sl_hash64(page->tokens, (size_t)page->count * sizeof *page->tokens, seed);
}

static int32_t *bucket_of(const sl_index *index, uint64_t hash) {
    return &index->buckets[hash & (uint64_t)(index->bucket_count - 1)];
}

int32_t sl_index_find(const sl_index *index, const sl_index_page *page) {
    uint64_t hash = hash_page(index, page);
    for (int32_t i = *bucket_of(index, hash); i != SL_NONE; i = index->nodes[i].chain) {
        const sl_index_node *node = &index->nodes[i];
        if (node->hash == hash && node->parent == page->parent && node->salt == page->salt &&
            memcmp(node->tokens, page->tokens, sizeof node->tokens) == 0) {
            return i;
        }
    }
    return SL_NONE;
}

int32_t sl_index_first_child(const sl_index *index, int32_t parent) {
    return parent == SL_NONE ? index->first_root : index->nodes[parent].first_child;
}

bool sl_index_full(const sl_index *index) {
    return index->unused == SL_NONE;
}

static void link_newest(sl_index *index, int32_t node) {
    sl_index_node *n = &index->nodes[node];
    n->older = index->newest;
    n->newer = SL_NONE;
    if (index->newest != SL_NONE) {
        index->nodes[index->newest].newer = node;
    } else {
        index->oldest = node;
    }
    index->newest = node;
}

static void unlink_use(sl_index *index, int32_t node) {
    sl_index_node *n = &index->nodes[node];
    if (n->older != SL_NONE) {
        index->nodes[n->older].newer = n->newer;
    } else {
        index->oldest = n->newer;
    }
    if (n->newer != SL_NONE) {
        index->nodes[n->newer].older = n->older;
    } else {
        index->newest = n->older;
    }
}

static int32_t *children_of(sl_index *index, int32_t parent) {
    return parent == SL_NONE ? &index->first_root : &index->nodes[parent].first_child;
}

static void link_child(sl_index *index, int32_t node) {
    sl_index_node *n = &index->nodes[node];
    int32_t *first = children_of(index, n->parent);
    n->last_child = SL_NONE;
    n->next_child = *first;
    if (*first != SL_NONE) {
        index->nodes[*first].last_child = node;
    }
    *first = node;
}

static void unlink_child(sl_index *index, int32_t node) {
    const sl_index_node *n = &index->nodes[node];
    if (n->last_child != SL_NONE) {
        index->nodes[n->last_child].next_child = n->next_child;
    } else {
        *children_of(index, n->parent) = n->next_child;
    }
    if (n->next_child != SL_NONE) {
        index->nodes[n->next_child].last_child = n->last_child;
    }
}

int32_t sl_index_add(sl_index *index, const sl_index_page *page) {
    int32_t node = index->unused;
    sl_index_node *n = &index->nodes[node];
    index->unused = n->chain;
    for (int32_t g = 0; g < SL_CACHE_GROUPS; g++) {
        n->pages[g] = SL_NONE;
    }
    n->state = SL_NONE;
    n->stored = 0;
    n->named = false;
    n->first_child = SL_NONE;
    n->parent = page->parent;
    n->salt = page->salt;
    n->count = page->count;
    memcpy(n->tokens, page->tokens, (size_t)page->count * sizeof *n->tokens);
    n->chain = SL_NONE;
    n->hash = 0;
    if (page->count == SL_PAGE_TOKENS) {
        n->hash = hash_page(index, page);
        int32_t *bucket = bucket_of(index, n->hash);
        n->chain = *bucket;
        *bucket = node;
    }
    link_child(index, node);
    link_newest(index, node);
    sl_index_touch(index, node);
    return node;
}

void sl_index_remove(sl_index *index, int32_t node) {
    index->changes++;
    sl_index_node *n = &index->nodes[node];
    if (n->count == SL_PAGE_TOKENS) {
        int32_t *link = bucket_of(index, n->hash);
        while (*link != node) {
            link = &index->nodes[*link].chain;
        }
        *link = n->chain;
    }
    unlink_child(index, node);
    unlink_use(index, node);
    n->chain = index->unused;
    index->unused = node;
}

void sl_index_touch(sl_index *index, int32_t node) {
    index->changes++;
    for (; node != SL_NONE; node = index->nodes[node].parent) {
        unlink_use(index, node);
        link_newest(index, node);
        index->nodes[node].used = true;
    }
}

int32_t sl_index_oldest(const sl_index *index) {
    return index->oldest;
}

int32_t sl_index_newer(const sl_index *index, int32_t node) {
    return index->nodes[node].newer;
}

int32_t sl_index_newest(const sl_index *index) {
    return index->newest;
}

int32_t sl_index_older(const sl_index *index, int32_t node) {
    return index->nodes[node].older;
}

uint64_t sl_index_changes(const sl_index *index) {
    return index->changes;
}

int32_t *sl_index_path(sl_index *index) {
    return index->path;
}
