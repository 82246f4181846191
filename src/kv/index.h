/* The prefix index: a tree whose nodes are pages of tokens, in order of use. Full pages are found by parent
 * and content; a page that is not full is a leaf, and is found among its parent's children. The index only
 * remembers: whoever adds a node takes the references that it stands for. Never allocates after creation. Not
 * thread-safe. */
#ifndef SL_KV_INDEX_H
#define SL_KV_INDEX_H

#include "base/sha256.h"
#include "program/program.h"

typedef struct sl_index sl_index;

typedef struct sl_index_node {
    int32_t pages[SL_CACHE_GROUPS]; /* SL_NONE: not kept */
    int32_t state;       /* slot with the recurrent state after this page's tokens; SL_NONE: not kept */
    int32_t count;       /* of tokens; a full page has SL_PAGE_TOKENS */
    int32_t parent;      /* SL_NONE at the root level */
    int32_t first_child; /* SL_NONE: a leaf */
    int32_t next_child, last_child; /* its neighbours among its parent's children */
    int32_t older, newer;           /* order of use */
    int32_t chain;                  /* next in its hash bucket */
    uint64_t salt;                  /* only sequences with the same salt find it */
    uint64_t hash;                  /* of salt and all tokens up to the end of this page */
    int32_t tokens[SL_PAGE_TOKENS];
    /* kv/keeper.c's; zero in a new node, but for `used`. */
    uint32_t stored; /* what of it is on the disk */
    bool used;       /* since that was said to the disk */
    bool named;      /* `name` holds */
    sl_digest name;
} sl_index_node;

/* NULL when memory ran out. */
sl_index *sl_index_create(int32_t nodes);
void sl_index_destroy(sl_index *index);
sl_index_node *sl_index_get(const sl_index *index, int32_t node);
/* One page below `parent`, or the first page of a sequence when that is SL_NONE. */
typedef struct sl_index_page {
    int32_t parent;
    uint64_t salt;
    const int32_t *tokens; /* [count] */
    int32_t count;
} sl_index_page;

/* A full page; SL_NONE when there is none. */
int32_t sl_index_find(const sl_index *index, const sl_index_page *page);
/* SL_NONE when there is none. parent SL_NONE: of the first pages, whatever their salt; further ones follow
 * through next_child. */
int32_t sl_index_first_child(const sl_index *index, int32_t parent);
bool sl_index_full(const sl_index *index);
/* Needs room. The new node keeps nothing yet and counts as just used. */
int32_t sl_index_add(sl_index *index, const sl_index_page *page);
/* The node must have no children. */
void sl_index_remove(sl_index *index, int32_t node);
/* Marks a node and its ancestors as used. Ancestors count as used after their descendants, so that the oldest
 * node is always a leaf. */
void sl_index_touch(sl_index *index, int32_t node);
/* From the least recently used on; SL_NONE at the end. */
int32_t sl_index_oldest(const sl_index *index);
int32_t sl_index_newer(const sl_index *index, int32_t node);
/* And back. */
int32_t sl_index_newest(const sl_index *index);
int32_t sl_index_older(const sl_index *index, int32_t node);
/* Rises whenever nodes or their order change. */
uint64_t sl_index_changes(const sl_index *index);
/* Scratch for a path of nodes from the root: room for all nodes. */
int32_t *sl_index_path(sl_index *index);

#endif
