#include "base/arena.h"

#include "base/alloc.h"
#include "base/checked.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK_SIZE = 16 * 1024, BLOCK_HEADER = 64 };

struct sl_arena_block {
    sl_arena_block *next;
    size_t used, size; /* of the payload, in bytes */
};

_Static_assert(sizeof(sl_arena_block) <= BLOCK_HEADER, "the header must fit before the payload");

void *sl_arena_alloc(sl_arena *arena, size_t count, size_t size) {
    uint64_t bytes, need;
    if (!sl_mul_u64(count, size, &bytes) || !sl_align_u64(bytes, 16, &need)) {
        return NULL;
    }
    sl_arena_block *block = arena->blocks;
    if (!block || block->size - block->used < need) {
        uint64_t payload = need > BLOCK_SIZE ? need : BLOCK_SIZE, total;
        if (!sl_add_u64(payload, BLOCK_HEADER, &total) || !(block = sl_alloc((size_t)total))) {
            return NULL;
        }
        block->used = 0;
        block->size = (size_t)payload;
        block->next = arena->blocks;
        arena->blocks = block;
    }
    unsigned char *memory = (unsigned char *)block + BLOCK_HEADER + block->used;
    block->used += (size_t)need;
    memset(memory, 0, (size_t)need);
    return memory;
}

char *sl_arena_strndup(sl_arena *arena, const char *text, size_t length) {
    if (length == SIZE_MAX) {
        return NULL;
    }
    char *copy = sl_arena_alloc(arena, length + 1, 1);
    if (copy) {
        memcpy(copy, text, length);
    }
    return copy;
}

char *sl_arena_printf(sl_arena *arena, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *text = length < 0 ? NULL : sl_arena_alloc(arena, (size_t)length + 1, 1);
    if (text) {
        vsnprintf(text, (size_t)length + 1, format, again);
    }
    va_end(again);
    return text;
}

void sl_arena_free(sl_arena *arena) {
    sl_arena_block *block = arena->blocks;
    while (block) {
        sl_arena_block *next = block->next;
        sl_free(block);
        block = next;
    }
    arena->blocks = NULL;
}
