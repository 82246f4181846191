/* An arena: many small allocations with one life. Nothing in it is freed by itself; sl_arena_free drops it all. */
#ifndef SL_BASE_ARENA_H
#define SL_BASE_ARENA_H

#include <stddef.h>

typedef struct sl_arena_block sl_arena_block;

/* Zero-initialise before use. Not thread-safe. */
typedef struct sl_arena {
    sl_arena_block *blocks;
} sl_arena;

/* Zeroed memory aligned to 16 bytes, or NULL when memory ran out (or count * size overflows). */
void *sl_arena_alloc(sl_arena *arena, size_t count, size_t size);
/* A NUL-terminated copy; NULL when memory ran out. */
char *sl_arena_strndup(sl_arena *arena, const char *text, size_t length);
char *sl_arena_printf(sl_arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sl_arena_free(sl_arena *arena);

#endif
