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
enum { BF16_ROWS = 2 * SL_TILE_ROWS, BF16_CHUNK = 256 };

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

static void tiles_end(void) {
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

/* ---- quantised weights ----
 *
 * Class "q8_32/chain", as matmul_tiles.h has it. A tile product is the sum of a group, or of half of one; it
 * goes through memory to the vectors, where scales are applied, for 16 rows by 16 outputs whose running sums
 * stay in registers. Beside tiles the vectors have one port for floats instead of two, and that is what this
 * waits for. Few rows are the AVX-512 tier's. */
enum { INT_FEW_ROWS = 8, INT_CHUNK = 512 };

/* Rows past the last of a batch are computed too, from whatever lies behind, and dropped. */
SL_ALWAYS_INLINE void int_begin(sl_qtype type, int32_t rows) {
    if (rows > INT_FEW_ROWS) {
        const int halves = geometry_of(type).halves;
        sl_tile_shapes shapes = {.palette = 1};
        for (int t = 0; t < SL_TILES; t++) {
            const bool is_x = t == X_0 || t == X_1, is_weights = t == WEIGHTS_0 || t == WEIGHTS_1;
            shapes.row_bytes[t] = (uint16_t)(is_x ? SL_MATMUL_GROUP / halves : SL_TILE_BYTES);
            shapes.rows[t] = (uint8_t)(is_weights ? SL_MATMUL_GROUP / 4 / halves : SL_TILE_ROWS);
        }
        sl_tiles_shape(&shapes);
    }
}

/* Where the operands of a tile of x and 16 outputs of a panel lie. */
typedef struct int_operands {
    const unsigned char *weights; /* [groups][8][SL_PANEL] words, of the first of the outputs */
    const unsigned char *x;
    const float *scales;
    int32_t rows, steps; /* of the tile; groups, or halves of them */
} int_operands;

/* Product `step` into register `into`, a digit, of which `from` is the last bit. */
#define INT_PRODUCT(into, from, type, at, step)                                                              \
    {                                                                                                        \
        const int halves = geometry_of(type).halves;                                                         \
        const unsigned char *x = (at)->x + (step) / halves * (at)->rows * INT_GROUP_BYTES;                   \
        _tile_loadd(WEIGHTS_##from, (at)->weights + (step)*SL_MATMUL_GROUP / halves * SL_PANEL,              \
                    SL_PANEL * 4);                                                                           \
        _tile_loadd(X_##from, x + (step) % halves * SL_MATMUL_GROUP / halves, SL_MATMUL_GROUP);              \
        _tile_zero(into);                                                                                    \
        if (unpack_offset(type)) {                                                                           \
            _tile_dpbssd(into, X_##from, WEIGHTS_##from);                                                    \
        } else {                                                                                             \
            _tile_dpbsud(into, X_##from, WEIGHTS_##from);                                                    \
        }                                                                                                    \
    }

/* The sums of a step, a group's last if it is odd or there are no halves, to the running sums. */
SL_ALWAYS_INLINE void int_add(const sl_qtype type, const int_operands *at, int32_t step,
                              const int32_t dots[SL_TILE_ROWS][16], vf sums[SL_TILE_ROWS]) {
    const int halves = geometry_of(type).halves, minima = geometry_of(type).minima;
    const float *scales = at->scales + step / halves * group_scales(type) * SL_PANEL;
    const unsigned char *x_scales =
        at->x + step / halves * at->rows * INT_GROUP_BYTES + at->rows * SL_MATMUL_GROUP;
    const vf scale = vf_load(scales + step % halves * SL_PANEL), zero = vf_mul(scale, vf_set1(-SL_DOT_ZERO));
    SL_UNROLL for (int r = 0; r < SL_TILE_ROWS; r++) {
        const vi dot = vi_add(vi_load(dots[r]), vi_set1(dot_bits(type)));
        sums[r] = vf_fma(scaled_dot(type, dot, scale, zero), broadcast_f32(x_scales + r * 4), sums[r]);
    }
    if (step % halves == halves - 1) {
        SL_UNROLL for (int m = 0; m < minima; m++) {
            const vf min = vf_load(scales + (halves + m) * SL_PANEL);
            SL_UNROLL for (int r = 0; r < SL_TILE_ROWS; r++) {
                sums[r] = vf_fnma(min, broadcast_f32(x_scales + ((1 + m) * at->rows + r) * 4), sums[r]);
            }
        }
    }
}

/* Products are two steps ahead of the vectors. */
#define INT_STEP(type, this, from, next)                                                                     \
    if (step < at->steps) {                                                                                  \
        _tile_stored(this, dots[this], SL_TILE_BYTES);                                                       \
        if (step + 2 < at->steps) {                                                                          \
            INT_PRODUCT(next, from, type, at, step + 2)                                                      \
        }                                                                                                    \
        int_add(type, at, step, dots[this], sums);                                                           \
        step++;                                                                                              \
    }

SL_ALWAYS_INLINE void int_outputs(const sl_qtype type, const int_operands *at, vf sums[SL_TILE_ROWS]) {
    int32_t dots[4][SL_TILE_ROWS][16] __attribute__((aligned(64)));
    INT_PRODUCT(0, 0, type, at, 0)
    if (at->steps > 1) {
        INT_PRODUCT(1, 1, type, at, 1)
    }
    for (int32_t step = 0; step < at->steps;) {
        INT_STEP(type, 0, 0, 2)
        INT_STEP(type, 1, 1, 3)
        INT_STEP(type, 2, 0, 0)
        INT_STEP(type, 3, 1, 1)
    }
}

SL_ALWAYS_INLINE void int_tiles(const sl_qtype type, const sl_matmul_part *part) {
    sl_tiles_read(part->unpacked);
    for (int v = 0; v < 2; v++) {
        vf sums[SL_TILE_ROWS];
        float *out = part->sums + v * VN;
        const int_operands at = {.weights = part->unpacked + v * (int)sizeof(vi),
                                 .x = part->x,
                                 .scales = part->scales + v * VN,
                                 .rows = part->rows,
                                 .steps = part->columns / SL_MATMUL_GROUP * geometry_of(type).halves};
        SL_UNROLL for (int r = 0; r < SL_TILE_ROWS; r++) {
            sums[r] = part->first ? vf_zero() : vf_load(out + r * SL_PANEL);
        }
        int_outputs(type, &at, sums);
        SL_UNROLL for (int r = 0; r < SL_TILE_ROWS; r++) {
            vf_store(out + r * SL_PANEL, sums[r]);
        }
    }
}

/* [groups][8][SL_PANEL] words of a chunk's weights; with their signs, where the type's are not all positive.
 */
SL_ALWAYS_INLINE void int_unpack(const sl_qtype type, const unsigned char *weights, int32_t blocks,
                                 unsigned char *unpacked) {
    const int periods = block_groups(type) / period_groups(type);
    const vi offset = _mm512_set1_epi8((char)unpack_offset(type));
    for (int32_t b = 0; b < blocks; b++) {
        weights += header_bytes(type);
        for (int p = 0; p < periods; p++, weights += period_bytes(type)) {
            SL_UNROLL for (int phase = 0; phase < period_groups(type); phase++) {
                prefetch_group(type, weights + phase * period_bytes(type) / period_groups(type));
                SL_UNROLL for (int i = 0; i < 16; i++, unpacked += sizeof(vi)) {
                    const vi quants = unpack_weights(type, weights, phase, i / 2, i % 2);
                    vi_store(unpacked, _mm512_sub_epi8(quants, offset));
                }
            }
        }
    }
}

#define INT_TILES(name, ID, block_scales)                                                                    \
    static void name##_begin(int32_t rows) {                                                                 \
        int_begin(SL_QTYPE_##ID, rows);                                                                      \
    }                                                                                                        \
    static void name##_unpack(const unsigned char *weights, int32_t blocks, unsigned char *unpacked) {       \
        int_unpack(SL_QTYPE_##ID, weights, blocks, unpacked);                                                \
    }                                                                                                        \
    static void name##_tiles(const sl_matmul_part *part) {                                                   \
        int_tiles(SL_QTYPE_##ID, part);                                                                      \
    }                                                                                                        \
    static const sl_matmul_tile name##_of_many[SL_MATMUL_TILE] = {                                           \
        name##_tile_1, name##_tile_2, name##_tile_3, name##_tile_4, name##_tile_5, name##_tile_6,            \
        name##_tile_7, name##_tile_8, name##_tiles,  name##_tiles,  name##_tiles,  name##_tiles};

SL_EACH_INT_TYPE(SL_INT_TYPE)
SL_EACH_INT_TYPE(INT_TILES)

#define INT_ROW(name, ID, block_scales)                                                                      \
    [SL_QTYPE_##ID] = {.tiles = SL_TILE_LIST(name),                                                          \
                       .begin = name##_begin,                                                                \
                       .end = tiles_end,                                                                     \
                       .pack_row = name##_pack_row,                                                          \
                       .expand = name##_expand,                                                              \
                       .unpack = name##_unpack,                                                              \
                       .unpacked_tiles = name##_of_many,                                                     \
                       .main_rows = SL_TILE_ROWS,                                                            \
                       .most_rows = SL_TILE_ROWS,                                                            \
                       .few_rows = INT_FEW_ROWS,                                                             \
                       .block = SL_##ID##_ELEMENTS,                                                          \
                       .block_bytes = SL_PACKED_BYTES(ID),                                                   \
                       .scales = block_scales,                                                               \
                       .group_bytes = INT_GROUP_BYTES,                                                       \
                       .chunk = INT_CHUNK},

/* ---- the table ---- */

#define ALL_TILES(name)                                                                                      \
    { name, name, name, name, name, name, name, name, name, name, name, name }

static const sl_matmul_type matmul_types[SL_QTYPE_COUNT] = {
    /* A block is a pair of columns. */
    [SL_QTYPE_BF16] = {.tiles = ALL_TILES(bf16_tiles),
                       .begin = bf16_begin,
                       .end = tiles_end,
                       .pack_row = pack_row_bf16,
                       .main_rows = BF16_ROWS,
                       .most_rows = BF16_ROWS,
                       .chunk = BF16_CHUNK,
                       .block = 2,
                       .block_bytes = 4,
                       .group_bytes = SL_MATMUL_GROUP * 2},
    SL_EACH_INT_TYPE(INT_ROW) SL_EACH_INT_ALIAS(INT_ROW)};

#include "backend/cpu/matmul_skeleton.h"
