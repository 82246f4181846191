/* Matrix products of the AMX tier. */
#include "backend/cpu/amx/amx.h"
#include "backend/cpu/amx/tiles.h"

#include "backend/cpu/avx512/unpack.h"
#include "backend/cpu/matmul_tiles.h"
#include "quant/blocks.h"

/* ---- BF16 weights ----
 *
 * Class "bf16/tiles": tdpbf16ps takes 32 columns a step. Of these the even ones' products are one fused chain
 * and the odd ones' another, both from zero, and their sum is added to the running sum; subnormals are taken
 * as zero and made zero. Past the last column there are zeros.
 *
 * A tile is 16 rows of x by 32 columns; a panel's 32 columns are two tiles, each of 16 outputs. Two tiles of
 * x by these two are four of sums: what hides that a product's result comes late. */
enum { BF16_ROWS = 2 * SL_TILE_ROWS, BF16_CHUNK = 1024 };

/* The numbers of the registers: intrinsics take nothing but digits. */
#define SUMS_0 0
#define SUMS_1 1
#define SUMS_2 2
#define SUMS_3 3
#define X_0 4
#define X_1 5
#define WEIGHTS_0 6
#define WEIGHTS_1 7

static int32_t at_most(int32_t rows, int32_t most) {
    return rows < most ? rows : most;
}

static void bf16_begin(int32_t rows) {
    sl_tile_shapes shapes = {.palette = 1};
    const uint8_t first = (uint8_t)at_most(rows, SL_TILE_ROWS);
    const uint8_t second = (uint8_t)at_most(rows > SL_TILE_ROWS ? rows - SL_TILE_ROWS : 1, SL_TILE_ROWS);
    for (int t = 0; t < SL_TILES; t++) {
        shapes.row_bytes[t] = SL_TILE_BYTES;
        shapes.rows[t] = t >= WEIGHTS_0                           ? SL_TILE_ROWS
                         : t == SUMS_2 || t == SUMS_3 || t == X_1 ? second
                                                                  : first;
    }
    sl_tiles_shape(&shapes);
}

static void bf16_end(void) {
    _tile_release();
}

/* 32 columns. Where few rows leave the weights' way from memory as all there is to wait for, they are
 * fetched. */
SL_ALWAYS_INLINE void bf16_step(const bool both, const unsigned char *weights, const unsigned char *x) {
    if (!both) {
        SL_UNROLL for (int i = 0; i < SL_PANEL * SL_MATMUL_GROUP * 2; i += 64) {
            _mm_prefetch((const char *)weights + PREFETCH + i, _MM_HINT_T0);
        }
    }
    _tile_loadd(WEIGHTS_0, weights, SL_PANEL * 4);
    _tile_loadd(X_0, x, SL_TILE_BYTES);
    _tile_dpbf16ps(SUMS_0, X_0, WEIGHTS_0);
    _tile_loadd(WEIGHTS_1, weights + SL_TILE_BYTES, SL_PANEL * 4);
    _tile_dpbf16ps(SUMS_1, X_0, WEIGHTS_1);
    if (both) {
        _tile_loadd(X_1, x + SL_TILE_ROWS * SL_TILE_BYTES, SL_TILE_BYTES);
        _tile_dpbf16ps(SUMS_2, X_1, WEIGHTS_0);
        _tile_dpbf16ps(SUMS_3, X_1, WEIGHTS_1);
    }
}

SL_ALWAYS_INLINE void bf16_tile(const bool both, const sl_matmul_part *part) {
    enum { SUMS_BYTES = SL_PANEL * 4 };
    const unsigned char *weights = part->weights, *x = part->x;
    float *second = part->sums + SL_TILE_ROWS * SL_PANEL;
    if (part->first) {
        _tile_zero(SUMS_0);
        _tile_zero(SUMS_1);
        _tile_zero(SUMS_2);
        _tile_zero(SUMS_3);
    } else {
        _tile_loadd(SUMS_0, part->sums, SUMS_BYTES);
        _tile_loadd(SUMS_1, part->sums + VN, SUMS_BYTES);
        if (both) {
            _tile_loadd(SUMS_2, second, SUMS_BYTES);
            _tile_loadd(SUMS_3, second + VN, SUMS_BYTES);
        }
    }
    int32_t left = part->columns;
    for (; left >= SL_MATMUL_GROUP; left -= SL_MATMUL_GROUP) {
        bf16_step(both, weights, x);
        weights += SL_PANEL * SL_MATMUL_GROUP * 2;
        x += part->rows * SL_TILE_BYTES;
    }
    if (left > 0) {
        unsigned char last[SL_PANEL * SL_MATMUL_GROUP * 2] = {0};
        memcpy(last, weights, (size_t)(left * SL_PANEL * 2));
        sl_tiles_read(last);
        bf16_step(both, last, x);
    }
    _tile_stored(SUMS_0, part->sums, SUMS_BYTES);
    _tile_stored(SUMS_1, part->sums + VN, SUMS_BYTES);
    if (both) {
        _tile_stored(SUMS_2, second, SUMS_BYTES);
        _tile_stored(SUMS_3, second + VN, SUMS_BYTES);
    }
}

static void bf16_tiles(const sl_matmul_part *part) {
    if (part->rows > SL_TILE_ROWS) {
        bf16_tile(true, part);
    } else {
        bf16_tile(false, part);
    }
}

/* ---- the table ---- */

#define ALL_TILES(name)                                                                                      \
    { name, name, name, name, name, name, name, name, name, name, name, name }

static const sl_matmul_type matmul_types[SL_QTYPE_COUNT] = {
    /* A block is a pair of columns. */
    [SL_QTYPE_BF16] = {.tiles = ALL_TILES(bf16_tiles),
                       .begin = bf16_begin,
                       .end = bf16_end,
                       .pack_row = pack_row_bf16,
                       .main_rows = BF16_ROWS,
                       .most_rows = BF16_ROWS,
                       .chunk = BF16_CHUNK,
                       .block = 2,
                       .block_bytes = 4,
                       .group_bytes = SL_MATMUL_GROUP * 2},
};

#include "backend/cpu/matmul_skeleton.h"
