/* Of src/kv only: pools of counted items, and what the files of the cache share. */
#ifndef SL_KV_INTERNAL_H
#define SL_KV_INTERNAL_H

#include "kv/cache.h"
#include "kv/index.h"

/* A page or a state slot. */
typedef struct sl_item {
    int32_t references;       /* of timelines and of the index */
    int32_t index_references; /* of the index alone */
    int32_t node;             /* of the index, one that holds it; siblings may hold it too */
    int32_t filled; /* pages: tokens that somebody wrote or is about to write; nobody's tokens lie behind */
    uint64_t worth; /* of those that only the index holds, what is worth least is given up first */
} sl_item;

typedef struct sl_item_pool {
    sl_item *items;      /* [count] */
    int32_t *free_items; /* [free_count] */
    int32_t count, free_count;
    uint64_t clock; /* of worth */
} sl_item_pool;

struct sl_cache {
    const sl_program *program;
    int32_t table_width;
    int32_t keep; /* tokens of a compacted timeline; 0: none is */
    bool reuse;
    sl_item_pool pages[SL_CACHE_GROUPS];
    sl_item_pool states;
    sl_index *index;      /* holds references like a timeline does */
    unsigned char *marks; /* [mark_count], by page */
    int32_t mark_count;
};

/* Another reference to an item / one less; SL_NONE is fine. */
void sl_pool_hold(sl_item_pool *pool, int32_t item);
void sl_pool_drop(sl_item_pool *pool, int32_t item);
/* SL_NONE when there is none, after what only the index holds was given up. */
int32_t sl_cache_take_page(sl_cache *cache, int32_t group);
int32_t sl_cache_take_state(sl_cache *cache);
/* The index's reference to an item that `node` holds from now on; SL_NONE is fine. */
void sl_pool_index(sl_item_pool *pool, int32_t item, int32_t node);
/* Sets what an item is worth, as used now and to be kept for that reason. */
void sl_pool_value(sl_item_pool *pool, int32_t item, sl_keep keep);
/* Removes a leaf and drops what it holds. */
void sl_cache_drop_node(sl_cache *cache, int32_t node);
/* The first index that a row at index `position` of this group still sees. */
int32_t sl_first_visible(const sl_cache_group *group, int32_t position);

#endif
