#include "format/index.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/text.h"

#include <string.h>

static void swap_items(unsigned char *a, unsigned char *b, size_t size) {
    unsigned char saved[SL_SORT_ITEM_SIZE];
    memcpy(saved, a, size);
    memcpy(a, b, size);
    memcpy(b, saved, size);
}

/* Moves the item at `root` down until no child within `count` is larger. */
static void sift_down(unsigned char *items, size_t root, size_t count, size_t size,
                      int (*compare)(const void *, const void *)) {
    for (size_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && compare(items + child * size, items + (child + 1) * size) < 0) {
            child++;
        }
        if (compare(items + root * size, items + child * size) >= 0) {
            return;
        }
        swap_items(items + root * size, items + child * size, size);
    }
}

void sl_sort(void *items, size_t count, size_t size, int (*compare)(const void *, const void *)) {
    for (size_t root = count / 2; root-- > 0;) {
        sift_down(items, root, count, size, compare);
    }
    for (size_t last = count; last-- > 1;) {
        swap_items(items, (unsigned char *)items + last * size, size);
        sift_down(items, 0, last, size, compare);
    }
}

static int compare_slots(const void *left, const void *right) {
    const sl_name_slot *a = left, *b = right;
    if (a->hash != b->hash) {
        return a->hash < b->hash ? -1 : 1;
    }
    return strcmp(a->name, b->name);
}

int sl_name_index_reserve(sl_name_index *index, uint64_t capacity, sl_error *error) {
    index->slots = sl_alloc_zero(capacity, sizeof *index->slots);
    index->capacity = index->slots ? capacity : 0;
    return index->slots ? 0
                        : sl_fail(error, SL_ERR_NOMEM, "no memory for an index of %llu names",
                                  (unsigned long long)capacity);
}

void sl_name_index_add(sl_name_index *index, const char *name, uint64_t item) {
    sl_name_slot slot = {sl_hash64(name, strlen(name), 0), name, item};
    index->slots[index->count++] = slot;
}

const char *sl_name_index_sort(sl_name_index *index) {
    sl_sort(index->slots, index->count, sizeof *index->slots, compare_slots);
    for (uint64_t i = 1; i < index->count; i++) {
        if (compare_slots(&index->slots[i - 1], &index->slots[i]) == 0) {
            return index->slots[i].name;
        }
    }
    return NULL;
}

uint64_t sl_name_index_find(const sl_name_index *index, const char *name) {
    sl_name_slot wanted = {sl_hash64(name, strlen(name), 0), name, 0};
    uint64_t low = 0, high = index->count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int order = compare_slots(&index->slots[middle], &wanted);
        if (order == 0) {
            return index->slots[middle].item;
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return UINT64_MAX;
}

void sl_name_index_free(sl_name_index *index) {
    sl_free(index->slots);
    memset(index, 0, sizeof *index);
}

size_t sl_name_bad_byte(const char *name, size_t length, bool ascii) {
    size_t i = 0;
    for (; i < length; i++) {
        unsigned char c = (unsigned char)name[i];
        if (c < 0x20 || c == 0x7f || (ascii && c > 0x7f)) {
            break;
        }
    }
    return i;
}

void *sl_grow(void *items, uint64_t used, uint64_t *capacity, size_t size) {
    if (used < *capacity) {
        return items;
    }
    uint64_t more = *capacity ? *capacity * 2 : 64, bytes;
    void *larger = sl_mul_u64(more, size, &bytes) ? sl_realloc(items, (size_t)bytes) : NULL;
    *capacity = larger ? more : *capacity;
    return larger;
}
