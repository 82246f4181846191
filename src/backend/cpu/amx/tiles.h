/* The tile registers of a thread. */
#ifndef SL_BACKEND_CPU_AMX_TILES_H
#define SL_BACKEND_CPU_AMX_TILES_H

#include <immintrin.h>
#include <stdint.h>

enum { SL_TILES = 8, SL_TILE_ROWS = 16, SL_TILE_BYTES = 64 /* of a row, at most */ };

/* As LDTILECFG reads it. */
typedef struct sl_tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} sl_tile_shapes;

/* Before a tile, or the shapes, are read from memory that this function wrote: compilers do not see how much
 * the intrinsics read, and would write it later or not at all. */
static inline void sl_tiles_read(const void *memory) {
    __asm__ volatile("" : : "r"(memory) : "memory");
}

static inline void sl_tiles_shape(const sl_tile_shapes *shapes) {
    sl_tiles_read(shapes);
    _tile_loadconfig(shapes);
}

#endif
