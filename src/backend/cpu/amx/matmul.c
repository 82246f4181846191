/* Matrix products of the AMX tier. */
#include "backend/cpu/amx/amx.h"
#include "backend/cpu/amx/tiles.h"

#include "backend/cpu/avx512/unpack.h"
#include "backend/cpu/amx/decode.h"
#include "backend/cpu/matmul_tiles.h"
enum { S8_STEP = 64 }; /* as many columns as a tile takes at once */
#include "backend/cpu/matmul_s8.h"
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

/* Where the four tiles of sums lie: floats from one to the next outputs' and to the next rows', bytes from
 * row to row. */
typedef struct sums_places {
    int32_t outputs, rows, row_bytes;
} sums_places;

SL_ALWAYS_INLINE void load_tiles(const bool both, const sl_matmul_part *part, const sums_places at) {
    const float *sums = part->sums, *second = sums + at.rows;
    if (part->first) {
        _tile_zero(SUMS_0);
        _tile_zero(SUMS_1);
        _tile_zero(SUMS_2);
        _tile_zero(SUMS_3);
    } else {
        _tile_loadd(SUMS_0, sums, at.row_bytes);
        _tile_loadd(SUMS_1, sums + at.outputs, at.row_bytes);
        if (both) {
            _tile_loadd(SUMS_2, second, at.row_bytes);
            _tile_loadd(SUMS_3, second + at.outputs, at.row_bytes);
        }
    }
}

SL_ALWAYS_INLINE void store_tiles(const bool both, float *sums, const sums_places at) {
    float *second = sums + at.rows;
    _tile_stored(SUMS_0, sums, at.row_bytes);
    _tile_stored(SUMS_1, sums + at.outputs, at.row_bytes);
    if (both) {
        _tile_stored(SUMS_2, second, at.row_bytes);
        _tile_stored(SUMS_3, second + at.outputs, at.row_bytes);
    }
}

SL_ALWAYS_INLINE void bf16_tile(const bool both, const sl_matmul_part *part) {
    const sums_places places = {VN, SL_TILE_ROWS * SL_PANEL, SL_PANEL * 4};
    const unsigned char *weights = part->weights, *x = part->x;
    load_tiles(both, part, places);
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
    store_tiles(both, part->sums, places);
}

static void bf16_tiles(const sl_matmul_part *part) {
    if (part->rows > SL_TILE_ROWS) {
        bf16_tile(true, part);
    } else {
        bf16_tile(false, part);
    }
}

/* ---- quantised weights made BF16 ----
 *
 * Class "bf16/rounded": weights rounded to BF16 (decode.h), then sums as of "bf16/tiles", 32 columns a step
 * in decode.h's order: the even words' chain has the columns 0 .. 15 of a group, the odd ones' the others.
 *
 * Weights are the left operand and x the right one: an output's columns lie together, so that nothing is
 * turned but a tile of sums, once for all columns. */
enum { ROUNDED_ROWS = 2 * SL_TILE_ROWS, ROUNDED_CHUNK = 256, TURNED = SL_TILE_ROWS * VN };

/* Rows past the last of a batch are computed too, from whatever lies behind, and dropped. */
static void rounded_begin(int32_t rows) {
    (void)rows;
    sl_tile_shapes shapes = {.palette = 1};
    for (int t = 0; t < SL_TILES; t++) {
        shapes.row_bytes[t] = SL_TILE_BYTES;
        shapes.rows[t] = SL_TILE_ROWS;
    }
    sl_tiles_shape(&shapes);
}

/* Pairs of columns, [16][rows][2] of a group, of 16 rows or of as many as are left after these. */
static void rounded_pack_row(const sl_matmul_source *source) {
    const uint16_t *x = sl_cpu_bf16(source->x, source->row);
    const int32_t second = source->index / SL_TILE_ROWS, row = source->index % SL_TILE_ROWS;
    const int32_t rows = at_most(source->rows - second * SL_TILE_ROWS, SL_TILE_ROWS);
    unsigned char *group = source->tile + (size_t)(second * SL_TILE_ROWS * SL_TILE_BYTES + row * 4);
    for (int32_t done = 0; done < source->columns; done += SL_MATMUL_GROUP, x += SL_MATMUL_GROUP) {
        for (int32_t i = 0; i < SL_MATMUL_GROUP / 2; i++) {
            const uint16_t pair[2] = {x[i], x[i + SL_MATMUL_GROUP / 2]};
            memcpy(group + (size_t)(i * rows * 4), pair, sizeof pair);
        }
        group += source->rows * SL_TILE_BYTES;
    }
}

static const sums_places TURNED_PLACES = {TURNED, 2 * TURNED, SL_TILE_BYTES};

/* 16 outputs' sums of 16 rows to sums[rows][SL_PANEL]. */
SL_ALWAYS_INLINE void turn(const float from[TURNED], float *sums) {
    vi words[VN], mixed[VN];
    SL_UNROLL for (int i = 0; i < VN; i++) {
        words[i] = vi_load(from + i * VN);
    }
    SL_UNROLL for (int i = 0; i < VN; i += 4) {
        const vi a = _mm512_unpacklo_epi32(words[i], words[i + 1]),
                 b = _mm512_unpackhi_epi32(words[i], words[i + 1]),
                 c = _mm512_unpacklo_epi32(words[i + 2], words[i + 3]),
                 d = _mm512_unpackhi_epi32(words[i + 2], words[i + 3]);
        mixed[i] = _mm512_unpacklo_epi64(a, c);
        mixed[i + 1] = _mm512_unpackhi_epi64(a, c);
        mixed[i + 2] = _mm512_unpacklo_epi64(b, d);
        mixed[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    /* mixed[4 q + c]: in its lane l, of the outputs 4 q .. 4 q + 3 the row 4 l + c */
    SL_UNROLL for (int c = 0; c < 4; c++) {
        const vi low = _mm512_shuffle_i32x4(mixed[c], mixed[4 + c], 0x88),
                 high = _mm512_shuffle_i32x4(mixed[c], mixed[4 + c], 0xdd),
                 low2 = _mm512_shuffle_i32x4(mixed[8 + c], mixed[12 + c], 0x88),
                 high2 = _mm512_shuffle_i32x4(mixed[8 + c], mixed[12 + c], 0xdd);
        vi_store(sums + c * SL_PANEL, _mm512_shuffle_i32x4(low, low2, 0x88));
        vi_store(sums + (8 + c) * SL_PANEL, _mm512_shuffle_i32x4(low, low2, 0xdd));
        vi_store(sums + (4 + c) * SL_PANEL, _mm512_shuffle_i32x4(high, high2, 0x88));
        vi_store(sums + (12 + c) * SL_PANEL, _mm512_shuffle_i32x4(high, high2, 0xdd));
    }
}

SL_ALWAYS_INLINE void rounded_store(const bool both, const sl_matmul_part *part) {
    float last[4 * TURNED] __attribute__((aligned(64)));
    store_tiles(both, part->last ? last : part->sums, TURNED_PLACES);
    if (part->last) {
        sl_tiles_read(last);
        for (int i = 0; i < (both ? 4 : 2); i++) {
            turn(last + i * TURNED, part->sums + i / 2 * 2 * TURNED + i % 2 * VN);
        }
    }
}

/* 32 columns. `weights`: [SL_PANEL] runs. */
SL_ALWAYS_INLINE void rounded_step(const bool both, const unsigned char *weights, const unsigned char *x,
                                   int32_t rows) {
    _tile_loadd(WEIGHTS_0, weights, RUN_BYTES);
    _tile_loadd(X_0, x, (both ? SL_TILE_ROWS : rows) * 4);
    _tile_dpbf16ps(SUMS_0, WEIGHTS_0, X_0);
    _tile_loadd(WEIGHTS_1, weights + SL_TILE_ROWS * RUN_BYTES, RUN_BYTES);
    _tile_dpbf16ps(SUMS_1, WEIGHTS_1, X_0);
    if (both) {
        _tile_loadd(X_1, x + SL_TILE_ROWS * SL_TILE_BYTES, (rows - SL_TILE_ROWS) * 4);
        _tile_dpbf16ps(SUMS_2, WEIGHTS_0, X_1);
        _tile_dpbf16ps(SUMS_3, WEIGHTS_1, X_1);
    }
}

SL_ALWAYS_INLINE void rounded_tile(const bool both, const sl_matmul_part *part) {
    const unsigned char *weights = part->unpacked, *x = part->x;
    sl_tiles_read(weights);
    load_tiles(both, part, TURNED_PLACES);
    for (int32_t left = part->columns; left > 0; left -= SL_MATMUL_GROUP) {
        rounded_step(both, weights, x, part->rows);
        weights += DECODED_GROUP;
        x += part->rows * SL_TILE_BYTES;
    }
    rounded_store(both, part);
}

static void rounded_tiles(const sl_matmul_part *part) {
    if (part->rows > SL_TILE_ROWS) {
        rounded_tile(true, part);
    } else {
        rounded_tile(false, part);
    }
}

/* One tile of x, which takes every weight once: as it is read. Products are a period behind, so that what
 * they load has left the store buffer. */
SL_ALWAYS_INLINE void rounded_stream(const sl_qtype type, const bool both, const sl_matmul_part *part) {
    const run_geometry geometry = run_geometry_of(type);
    unsigned char decoded[2][LARGEST_PERIOD * DECODED_GROUP] __attribute__((aligned(64)));
    float scales[LARGEST_SCALES] __attribute__((aligned(64)));
    const unsigned char *weights = part->weights, *x = part->x;
    const int32_t x_bytes = part->rows * SL_TILE_BYTES;
    const int32_t blocks = part->columns / (block_groups(type) * SL_MATMUL_GROUP);
    int now = 0;
    load_tiles(both, part, TURNED_PLACES);
    for (int32_t b = 0; b < blocks; b++) {
        prefetch_header(type, weights);
        expand_block(type, weights, scales);
        for (int p = 0; p < geometry.periods; p++, now ^= 1) {
            decode_period(type, weights, p, scales, decoded[now]);
            sl_tiles_read(decoded);
            if (b + p > 0) {
                SL_UNROLL for (int g = 0; g < geometry.groups; g++, x += x_bytes) {
                    rounded_step(both, decoded[now ^ 1] + g * DECODED_GROUP, x, part->rows);
                }
            }
        }
        weights += (geometry.header + geometry.periods * geometry.period) * SL_PANEL;
    }
    SL_UNROLL for (int g = 0; g < geometry.groups; g++, x += x_bytes) {
        rounded_step(both, decoded[now ^ 1] + g * DECODED_GROUP, x, part->rows);
    }
    rounded_store(both, part);
}

SL_ALWAYS_INLINE void rounded_unpack(const sl_qtype type, const unsigned char *weights, int32_t blocks,
                                     unsigned char *unpacked) {
    const run_geometry geometry = run_geometry_of(type);
    float scales[LARGEST_SCALES] __attribute__((aligned(64)));
    for (int32_t b = 0; b < blocks; b++) {
        prefetch_header(type, weights);
        expand_block(type, weights, scales);
        for (int p = 0; p < geometry.periods; p++) {
            decode_period(type, weights, p, scales, unpacked);
            unpacked += geometry.groups * DECODED_GROUP;
        }
        weights += (geometry.header + geometry.periods * geometry.period) * SL_PANEL;
    }
}

#define ALL_TILES(name)                                                                                      \
    { name, name, name, name, name, name, name, name, name, name, name, name }

static const sl_matmul_tile rounded_of_many[SL_MATMUL_TILE] = ALL_TILES(rounded_tiles);

#define SL_EACH_ROUNDED_TYPE(MACRO)                                                                          \
    MACRO(q8_0, Q8_0)                                                                                        \
    MACRO(q4_0, Q4_0)                                                                                        \
    MACRO(q4_k, Q4_K)                                                                                        \
    MACRO(q6_k, Q6_K)                                                                                        \
    MACRO(q5_k, Q5_K)                                                                                        \
    MACRO(iq4_xs, IQ4_XS)

#define ROUNDED_TYPE(name, ID)                                                                               \
    static void name##_rounded_unpack(const unsigned char *weights, int32_t blocks,                          \
                                      unsigned char *unpacked) {                                             \
        rounded_unpack(SL_QTYPE_##ID, weights, blocks, unpacked);                                            \
    }                                                                                                        \
    static void name##_rounded_stream(const sl_matmul_part *part) {                                          \
        if (part->rows > SL_TILE_ROWS) {                                                                     \
            rounded_stream(SL_QTYPE_##ID, true, part);                                                       \
        } else {                                                                                             \
            rounded_stream(SL_QTYPE_##ID, false, part);                                                      \
        }                                                                                                    \
    }

#define ROUNDED_ROW(name, ID)                                                                                \
    [SL_QTYPE_##ID] = {.tiles = ALL_TILES(name##_rounded_stream),                                            \
                       .begin = rounded_begin,                                                               \
                       .end = tiles_end,                                                                     \
                       .pack_row = rounded_pack_row,                                                         \
                       .pack_rows = sl_matmul_pack_rows_runs,                                                \
                       .unpack = name##_rounded_unpack,                                                      \
                       .unpacked_bytes = 2,                                                                  \
                       .unpacked_tiles = rounded_of_many,                                                    \
                       .main_rows = ROUNDED_ROWS,                                                            \
                       .most_rows = ROUNDED_ROWS,                                                            \
                       .few_rows = ROUNDED_ROWS,                                                             \
                       .block = SL_##ID##_ELEMENTS,                                                          \
                       .block_bytes = SL_##ID##_BYTES,                                                       \
                       .group_bytes = SL_TILE_BYTES,                                                         \
                       .chunk = ROUNDED_CHUNK},

SL_EACH_ROUNDED_TYPE(ROUNDED_TYPE)

/* ---- quantised weights as integers ----
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
    const unsigned char *share = weights;
    for (int32_t b = 0; b < blocks; b++) {
        weights += header_bytes(type);
        for (int p = 0; p < periods; p++, weights += period_bytes(type)) {
            SL_UNROLL for (int phase = 0; phase < period_groups(type); phase++) {
                prefetch_group(type, share);
                share += share_bytes(type);
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
                       .unpacked_bytes = 1,                                                                  \
                       .unpacked_tiles = name##_of_many,                                                     \
                       .main_rows = SL_TILE_ROWS,                                                            \
                       .most_rows = SL_TILE_ROWS,                                                            \
                       .few_rows = INT_FEW_ROWS,                                                             \
                       .block = SL_##ID##_ELEMENTS,                                                          \
                       .block_bytes = SL_PACKED_BYTES(ID),                                                   \
                       .scales = block_scales,                                                               \
                       .group_bytes = INT_GROUP_BYTES,                                                       \
                       .chunk = INT_CHUNK},

/* ---- quantised weights and activations as integers with scales for 256 columns ----
 *
 * Class "s8/256", as matmul_s8.h has it. Two tiles of x by two of weights, 64 columns at a time; behind 256
 * the four tiles of sums go through memory to the vectors, which scale them while the next columns are
 * multiplied. Few rows are the AVX-512 tier's. */
enum { S8_TILE_ROWS = 2 * SL_TILE_ROWS, S8_FEW_ROWS = 8, S8_TILES = 4 };

static void s8_begin(int32_t rows) {
    if (rows > S8_FEW_ROWS) {
        rounded_begin(rows);
    }
}

/* The sums of tile `tile` of a step of 256 columns, to the running ones. */
SL_ALWAYS_INLINE void s8_add_tile(const int tile, const sl_matmul_part *part, int32_t step,
                                  const int32_t dots[SL_TILE_ROWS][VN]) {
    const int first_row = tile / 2 * SL_TILE_ROWS, v = tile % 2;
    const unsigned char *x = part->x + (int64_t)step * part->rows * 8 * S8_GROUP_BYTES;
    const unsigned char *x_scales = x + part->rows * S8_COLUMNS + first_row * 4;
    const vf scale = vf_load(part->scales + step * SL_PANEL + v * VN);
    float *sums = part->sums + first_row * SL_PANEL + v * VN;
    const bool first = part->first && step == 0;
    SL_UNROLL for (int r = 0; r < SL_TILE_ROWS; r++) {
        const vf sum = first ? vf_zero() : vf_load(sums + r * SL_PANEL);
        vf_store(sums + r * SL_PANEL, s8_add(vi_load(dots[r]), x_scales + r * 4, scale, sum));
    }
}

/* Where the next 64 columns' operands lie. */
typedef struct s8_operands {
    const unsigned char *weights, *x;
} s8_operands;

SL_ALWAYS_INLINE void s8_product(const bool both, const s8_operands *at) {
    _tile_loadd(WEIGHTS_0, at->weights, SL_PANEL * 4);
    _tile_loadd(X_0, at->x, S8_STEP);
    _tile_dpbssd(SUMS_0, X_0, WEIGHTS_0);
    _tile_loadd(WEIGHTS_1, at->weights + SL_TILE_BYTES, SL_PANEL * 4);
    _tile_dpbssd(SUMS_1, X_0, WEIGHTS_1);
    if (both) {
        _tile_loadd(X_1, at->x + SL_TILE_ROWS * S8_STEP, S8_STEP);
        _tile_dpbssd(SUMS_2, X_1, WEIGHTS_0);
        _tile_dpbssd(SUMS_3, X_1, WEIGHTS_1);
    }
}

SL_ALWAYS_INLINE void s8_tiles_of(const bool both, const sl_matmul_part *part) {
    int32_t dots[2][S8_TILES][SL_TILE_ROWS][VN] __attribute__((aligned(64)));
    const int32_t steps = part->columns / S8_COLUMNS;
    s8_operands at = {part->unpacked, part->x};
    sl_tiles_read(part->unpacked);
    for (int32_t step = 0; step < steps; step++) {
        int32_t(*now)[SL_TILE_ROWS][VN] = dots[step % 2], (*before)[SL_TILE_ROWS][VN] = dots[(step + 1) % 2];
        _tile_zero(SUMS_0);
        _tile_zero(SUMS_1);
        if (both) {
            _tile_zero(SUMS_2);
            _tile_zero(SUMS_3);
        }
        SL_UNROLL for (int s = 0; s < S8_COLUMNS / S8_STEP; s++) {
            s8_product(both, &at);
            at.weights += S8_STEP * SL_PANEL;
            at.x += part->rows * S8_STEP;
            if (step > 0 && (both || s < 2)) {
                s8_add_tile(s, part, step - 1, before[s]);
            }
        }
        at.x += part->rows * 8; /* scales and sums */
        _tile_stored(SUMS_0, now[0], SL_TILE_BYTES);
        _tile_stored(SUMS_1, now[1], SL_TILE_BYTES);
        if (both) {
            _tile_stored(SUMS_2, now[2], SL_TILE_BYTES);
            _tile_stored(SUMS_3, now[3], SL_TILE_BYTES);
        }
    }
    sl_tiles_read(dots);
    for (int s = 0; s < (both ? 4 : 2); s++) {
        s8_add_tile(s, part, steps - 1, dots[(steps + 1) % 2][s]);
    }
}

static void s8_tiles(const sl_matmul_part *part) {
    if (part->rows > SL_TILE_ROWS) {
        s8_tiles_of(true, part);
    } else {
        s8_tiles_of(false, part);
    }
}

static const sl_matmul_tile s8_of_many[SL_MATMUL_TILE] = ALL_TILES(s8_tiles);

#define S8_TYPE(name, ID) SL_TILES(S8_TILE, name, ID) S8_EXPAND(name, ID) S8_UNPACK(name, ID, true)
SL_EACH_S8_TYPE(S8_TYPE)

#define S8_ROW(name, ID)                                                                                     \
    [SL_QTYPE_##ID] = {.tiles = SL_TILE_LIST(name##_s8),                                                     \
                       .begin = s8_begin,                                                                    \
                       .end = tiles_end,                                                                     \
                       .main_rows = S8_TILE_ROWS,                                                            \
                       .most_rows = S8_TILE_ROWS,                                                            \
                       .few_rows = S8_FEW_ROWS,                                                              \
                       S8_FIELDS(name, ID)},

/* ---- the table ---- */

static const sl_matmul_type s8_types[SL_QTYPE_COUNT] = {SL_EACH_S8_TYPE(S8_ROW)};
static const sl_matmul_type rounded_types[SL_QTYPE_COUNT] = {SL_EACH_ROUNDED_TYPE(ROUNDED_ROW)};

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

#define SL_MATMUL_TYPE(row)                                                                                  \
    ((row)->kernel.activation == SL_VALUE_Q8_256 ? &s8_types[(row)->weight_type]                             \
     : (row)->kernel.activation == SL_VALUE_BF16 && (row)->weight_type != SL_QTYPE_BF16                      \
         ? &rounded_types[(row)->weight_type]                                                                \
         : &matmul_types[(row)->weight_type])

#include "backend/cpu/matmul_skeleton.h"
