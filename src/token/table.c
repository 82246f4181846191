#include "token/internal.h"

#include "base/alloc.h"

static uint64_t slot_count(size_t keys) {
    uint64_t slots = 16;
    while (slots < (uint64_t)keys * 2) {
        slots *= 2;
    }
    return slots;
}

/* ---- text -> id
 * ---------------------------------------------------------------------------------------------------- */

static sl_view key_of(const sl_text_table *table, const sl_token *token) {
    sl_view key;
    memcpy(&key, (const char *)token + table->field, sizeof key);
    return key;
}

void sl_text_table_free(sl_text_table *table) {
    sl_free(table->slots);
    sl_free(table->tags);
    *table = (sl_text_table){0};
}

/* The slot that holds `key`, or the empty one where it would go, or -1 when the chain ends before either. */
static int64_t text_slot(const sl_text_table *table, const sl_token *tokens, sl_view key, uint32_t *tag) {
    uint64_t hash = sl_hash64(key.data, key.length, table->seed);
    *tag = (uint32_t)(hash >> 32);
    for (uint64_t step = 0; step < SL_TABLE_CHAIN; step++) {
        uint64_t slot = (hash + step) & table->mask;
        int32_t id = table->slots[slot];
        if (id < 0 || (table->tags[slot] == *tag && sl_view_equal(key_of(table, &tokens[id]), key))) {
            return (int64_t)slot;
        }
    }
    return -1;
}

static int text_fill(sl_text_table *table, const sl_token *tokens, size_t count, sl_token_filter filter,
                     int32_t *twice) {
    memset(table->slots, 0xff, (table->mask + 1) * sizeof *table->slots);
    for (size_t id = 0; id < count; id++) {
        if (!filter(&tokens[id])) {
            continue;
        }
        uint32_t tag;
        int64_t slot = text_slot(table, tokens, key_of(table, &tokens[id]), &tag);
        if (slot < 0) {
            return SL_ERR_BUSY;
        }
        if (table->slots[slot] >= 0) {
            *twice = (int32_t)id;
            continue;
        }
        table->slots[slot] = (int32_t)id;
        table->tags[slot] = tag;
    }
    return 0;
}

int sl_text_table_build(sl_text_table *table, size_t field, const sl_token *tokens, size_t count,
                        sl_token_filter filter, int32_t *twice) {
    int32_t unused;
    twice = twice ? twice : &unused;
    *twice = -1;
    uint64_t slots = slot_count(count);
    *table = (sl_text_table){.field = field, .mask = slots - 1};
    table->slots = sl_alloc(slots * sizeof *table->slots);
    table->tags = sl_alloc_zero(slots, sizeof *table->tags);
    if (!table->slots || !table->tags) {
        sl_text_table_free(table);
        return SL_ERR_NOMEM;
    }
    /* The first seed depends on all keys: nobody can make a file for a seed without changing the seed. */
    for (size_t id = 0; id < count; id++) {
        sl_view key = key_of(table, &tokens[id]);
        table->seed = sl_hash64(key.data, key.length, table->seed);
    }
    for (int i = 0; i < SL_TABLE_SEEDS; i++) {
        *twice = -1;
        if (text_fill(table, tokens, count, filter, twice) == 0) {
            return 0;
        }
        table->seed = table->seed * 0x9e3779b97f4a7c15u + 1;
    }
    sl_text_table_free(table);
    return SL_ERR_LIMIT;
}

int32_t sl_text_table_find(const sl_text_table *table, const sl_token *tokens, sl_view key) {
    uint32_t tag;
    if (!table->slots) {
        return -1;
    }
    int64_t slot = text_slot(table, tokens, key, &tag);
    return slot < 0 ? -1 : table->slots[slot];
}

/* ---- pair -> merge
 * ------------------------------------------------------------------------------------------------- */

/* Two rounds of multiply and xor-shift (the finaliser of MurmurHash3), the seed between them. */
static uint64_t pair_hash(uint32_t left, uint32_t right, uint64_t seed) {
    uint64_t x = ((uint64_t)left << 32 | right) + seed;
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = ((x ^ (x >> 33)) + seed) * 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
}

static int pair_fill(sl_pair_table *table, const sl_merge *merges, size_t count) {
    for (uint64_t slot = 0; slot <= table->mask; slot++) {
        table->slots[slot].left = UINT32_MAX;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t hash = pair_hash(merges[i].left, merges[i].right, table->seed), step = 0;
        for (; step < SL_TABLE_CHAIN; step++) {
            sl_merge *slot = &table->slots[(hash + step) & table->mask];
            if (slot->left == UINT32_MAX) {
                *slot = merges[i];
                break;
            }
            if (slot->left == merges[i].left && slot->right == merges[i].right) {
                break;
            }
        }
        if (step == SL_TABLE_CHAIN) {
            return SL_ERR_BUSY;
        }
    }
    return 0;
}

int sl_pair_table_build(sl_pair_table *table, const sl_merge *merges, size_t count) {
    uint64_t slots = slot_count(count);
    table->slots = sl_alloc_zero(slots, sizeof *table->slots);
    if (!table->slots) {
        return SL_ERR_NOMEM;
    }
    table->mask = slots - 1;
    /* The first seed depends on all keys, so that a file cannot be made for it without knowing its own sum.
     */
    table->seed = sl_hash64(merges, count * sizeof *merges, 0);
    for (int i = 0; i < SL_TABLE_SEEDS; i++) {
        if (pair_fill(table, merges, count) == 0) {
            return 0;
        }
        table->seed = table->seed * 0x9e3779b97f4a7c15u + 1;
    }
    sl_pair_table_free(table);
    return SL_ERR_LIMIT;
}

void sl_pair_table_free(sl_pair_table *table) {
    sl_free(table->slots);
    *table = (sl_pair_table){0};
}

const sl_merge *sl_pair_table_find(const sl_pair_table *table, uint32_t left, uint32_t right) {
    uint64_t hash = pair_hash(left, right, table->seed);
    for (uint64_t step = 0; step < SL_TABLE_CHAIN; step++) {
        const sl_merge *slot = &table->slots[(hash + step) & table->mask];
        if (slot->left == left && slot->right == right) {
            return slot;
        }
        if (slot->left == UINT32_MAX) {
            break;
        }
    }
    return NULL;
}

/* ---- trie
 * ----------------------------------------------------------------------------------------------------------
 */

static int trie_node(sl_trie *trie, unsigned char byte, uint32_t *index) {
    if (trie->count == trie->capacity) {
        uint32_t capacity = trie->capacity ? trie->capacity * 2 : 64;
        sl_added_node *nodes = sl_realloc(trie->nodes, capacity * sizeof *nodes);
        if (!nodes) {
            return SL_ERR_NOMEM;
        }
        trie->nodes = nodes;
        trie->capacity = capacity;
        if (trie->count == 0) {
            nodes[0] = (sl_added_node){.entry = -1};
            trie->count = 1;
        }
    }
    trie->nodes[trie->count] = (sl_added_node){.entry = -1, .byte = byte};
    *index = trie->count++;
    return 0;
}

int sl_trie_insert(sl_trie *trie, sl_view text, int32_t entry) {
    uint32_t parent = 0;
    for (size_t i = 0; i < text.length; i++) {
        unsigned char byte = (unsigned char)text.data[i];
        uint32_t child = i == 0 ? trie->first[byte] : trie->nodes[parent].child;
        while (i != 0 && child && trie->nodes[child].byte != byte) {
            child = trie->nodes[child].sibling;
        }
        if (!child) {
            if (trie_node(trie, byte, &child)) {
                return SL_ERR_NOMEM;
            }
            if (i == 0) {
                trie->first[byte] = child;
            } else {
                trie->nodes[child].sibling = trie->nodes[parent].child;
                trie->nodes[parent].child = child;
            }
        }
        parent = child;
    }
    /* The first of equal texts counts. */
    if (text.length && trie->nodes[parent].entry < 0) {
        trie->nodes[parent].entry = entry;
    }
    return 0;
}

uint32_t sl_trie_child(const sl_trie *trie, uint32_t node, char byte) {
    uint32_t child = trie->nodes[node].child;
    while (child && trie->nodes[child].byte != (unsigned char)byte) {
        child = trie->nodes[child].sibling;
    }
    return child;
}

void sl_trie_free(sl_trie *trie) {
    sl_free(trie->nodes);
    *trie = (sl_trie){0};
}
