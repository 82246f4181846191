/* Names of a file's parts, found by hash, and the sort beneath it. Both cost O(n log n) whatever the names
 * are: a file can choose its names so that they collide in a hash table, so there is none. */
#ifndef SL_FORMAT_INDEX_H
#define SL_FORMAT_INDEX_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sl_name_slot {
    uint64_t hash;
    const char *name; /* borrowed, NUL-terminated */
    uint64_t item;
} sl_name_slot;

/* Zero-initialise before use. Immutable once sorted, so any thread may look up. */
typedef struct sl_name_index {
    sl_name_slot *slots; /* sorted by hash, then by name */
    uint64_t count, capacity;
} sl_name_index;

/* Makes room for `capacity` names; SL_ERR_NOMEM otherwise. */
int sl_name_index_reserve(sl_name_index *index, uint64_t capacity, sl_error *error);
/* At most `capacity` times. */
void sl_name_index_add(sl_name_index *index, const char *name, uint64_t item);
/* To be called once, after the last name. A name that was added twice, or NULL when all differ. */
const char *sl_name_index_sort(sl_name_index *index);
/* The item of a name, or UINT64_MAX. */
uint64_t sl_name_index_find(const sl_name_index *index, const char *name);
void sl_name_index_free(sl_name_index *index);

/* The place of the first byte that a name may not have (a control character, with `ascii` also anything above
 * 0x7e), or `length`. Names end up in messages and logs of one line. */
size_t sl_name_bad_byte(const char *name, size_t length, bool ascii);

/* Room for one more item of `size` bytes after `used`: `items` or its successor (sl_free), NULL when memory
 * ran out (then `items` stays). Arrays grow with what was read, never to what was declared, so that a false
 * count costs nothing. */
void *sl_grow(void *items, uint64_t used, uint64_t *capacity, size_t size);

/* Heap sort: in place, no memory, not stable. `size` is at most SL_SORT_ITEM_SIZE bytes. */
enum { SL_SORT_ITEM_SIZE = 256 };
void sl_sort(void *items, size_t count, size_t size, int (*compare)(const void *a, const void *b));

#endif
