/* Encoding of IQ1, IQ2 and IQ3: a search for small sums of weight * (value - decoded)^2.
 *
 * A block's values are brought to 1 at most. Each part that has a scale of its own looks for one, first among
 * free levels and then among the codebook's points. From the largest of these scales follows the block's.
 * Then parts choose among the scales that can be written, and the block's scale follows once more, by least
 * squares.
 *
 * At a given scale the nearest point is found by trying all that can be it: the error of a point is the sum
 * of what its two bytes give, and each byte's errors are a table. Where the upper byte's alone is too much,
 * none of its points is tried. */
#include "quant/codebook.h"
#include "quant/codec.h"
#include "quant/weigh.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { BLOCK = 256, PARTS = 16, POINTS = 64, LEVELS = 8, STEPS = 16, ROUNDS = 2, RUNS = 256 };

/* Whose values have 1 less instead of 1 more (IQ1). */
typedef enum shift { NONE, BY_PART, BY_POINT } shift;

/* What the encoder made of a block. */
typedef struct choice {
    float scale;
    uint16_t points[POINTS];
    uint8_t signs[BLOCK / 8];
    uint8_t numbers[PARTS]; /* of parts: s */
    bool less[POINTS];
} choice;

typedef struct codebook {
    const uint16_t *points;
    int32_t count, size;    /* points; elements of one */
    int32_t levels;         /* of an element */
    float values[LEVELS];   /* of the levels */
    int32_t part;           /* elements that share a scale */
    int32_t top;            /* the largest s */
    float unit;             /* of scales: a part's is scale * unit * (2 s + 1) */
    bool signs, even_signs; /* elements have signs; of each eight an even number */
    shift shift;
    void (*write)(const choice *choice, void *block);
    /* Points of one upper byte follow each other: run r is first[r] .. first[r + 1] - 1. */
    int32_t runs;
    uint16_t first[RUNS + 1];
} codebook;

static void find_runs(codebook *book) {
    book->runs = 0;
    for (int32_t i = 0; i < book->count; i++) {
        if (i == 0 || book->points[i] >> 8 != book->points[i - 1] >> 8) {
            book->first[book->runs++] = (uint16_t)i;
        }
    }
    book->first[book->runs] = (uint16_t)book->count;
}

/* ---- the nearest point
 * ---------------------------------------------------------------------------------------------------- */

/* Elements that are encoded together: as targets and weights. */
typedef struct piece {
    const float *targets, *weights;
    int32_t count;
} piece;

/* What is added to a codebook's values. */
static float added(const codebook *book, bool less) {
    return book->shift == NONE ? 0.0f : less ? -1.0f : 1.0f;
}

static float error_of(float target, float weight, float value) {
    const float difference = target - value;
    return weight * difference * difference;
}

/* The errors of each nibble of a point: two elements of two bits, or one. Returns what all nibbles are below.
 */
static int nibble_errors(const codebook *book, piece p, float scale, bool less, float errors[4][16]) {
    float own[8][LEVELS];
    memset(own, 0, sizeof own);
    for (int i = 0; i < book->size; i++) {
        for (int level = 0; level < book->levels; level++) {
            own[i][level] =
                error_of(p.targets[i], p.weights[i], scale * (book->values[level] + added(book, less)));
        }
    }
    const int end = book->size == 8 ? 5 * (book->levels - 1) + 1 : book->levels;
    for (int n = 0; n < 4; n++) {
        for (int j = 0; j < end; j++) {
            errors[n][j] = book->size == 8 ? own[2 * n][j % 4] + own[2 * n + 1][j / 4] : own[n][j];
        }
    }
    return end;
}

typedef struct nearest_point {
    float error;
    uint16_t index;
} nearest_point;

static int high_of(const codebook *book, int32_t run) {
    return book->points[book->first[run]] >> 8;
}

static void try_run(const codebook *book, int32_t run, const float *low, float high, nearest_point *best) {
    for (int32_t i = book->first[run]; i < book->first[run + 1]; i++) {
        const float error = low[book->points[i] & 255] + high;
        if (error < best->error) {
            *best = (nearest_point){error, (uint16_t)i};
        }
    }
}

/* Of one point's elements. */
static nearest_point nearest_of(const codebook *book, piece p, float scale, bool less) {
    float nibbles[4][16], low[256], high[256];
    const int end = nibble_errors(book, p, scale, less, nibbles);
    for (int j = 0; j < end; j++) {
        for (int i = 0; i < end; i++) {
            low[16 * j + i] = nibbles[0][i] + nibbles[1][j];
            high[16 * j + i] = nibbles[2][i] + nibbles[3][j];
        }
    }
    int32_t start = 0;
    for (int32_t r = 1; r < book->runs; r++) {
        start = high[high_of(book, r)] < high[high_of(book, start)] ? r : start;
    }
    nearest_point best = {INFINITY, 0};
    try_run(book, start, low, high[high_of(book, start)], &best);
    for (int32_t r = 0; r < book->runs; r++) {
        if (r != start && high[high_of(book, r)] < best.error) {
            try_run(book, r, low, high[high_of(book, r)], &best);
        }
    }
    return best;
}

static float value_at(const codebook *book, uint16_t point, int i, bool less) {
    const int bits = 16 / book->size;
    return book->values[book->points[point] >> bits * i & ((1 << bits) - 1)] + added(book, less);
}

/* ---- a part at a scale
 * --------------------------------------------------------------------------------------------------- */

/* Sums over elements: weight * target * value and weight * value^2. */
typedef struct products {
    float tv, vv;
} products;

static products add_products(products sums, float target, float weight, float value) {
    return (products){sums.tv + weight * target * value, sums.vv + weight * value * value};
}

/* The points of a part and whether their values have 1 less. */
typedef struct part_points {
    uint16_t points[8];
    bool less[8];
    float errors[8], error; /* of each, and their sum */
} part_points;

static part_points points_with(const codebook *book, piece p, float scale, bool less) {
    part_points out = {.error = 0};
    for (int32_t k = 0; k < p.count / book->size; k++) {
        const piece own = {p.targets + k * book->size, p.weights + k * book->size, book->size};
        const nearest_point nearest = nearest_of(book, own, scale, less);
        out.points[k] = nearest.index;
        out.less[k] = less;
        out.errors[k] = nearest.error;
        out.error += nearest.error;
    }
    return out;
}

static part_points points_at(const codebook *book, piece p, float scale) {
    part_points out = points_with(book, p, scale, false);
    if (book->shift == NONE) {
        return out;
    }
    const part_points other = points_with(book, p, scale, true);
    if (book->shift == BY_PART) {
        return other.error < out.error ? other : out;
    }
    for (int32_t k = 0; k < p.count / book->size; k++) {
        if (other.errors[k] < out.errors[k]) {
            out.points[k] = other.points[k];
            out.less[k] = true;
            out.error += other.errors[k] - out.errors[k];
        }
    }
    return out;
}

static products products_of(const codebook *book, piece p, const part_points *chosen) {
    products sums = {0, 0};
    for (int32_t i = 0; i < p.count; i++) {
        const int32_t k = i / book->size;
        sums = add_products(sums, p.targets[i], p.weights[i],
                            value_at(book, chosen->points[k], i % book->size, chosen->less[k]));
    }
    return sums;
}

/* ---- a part's own scale
 * -------------------------------------------------------------------------------------------------- */

/* With every element at its nearest level, whether or not there is such a point. */
static products free_products(const codebook *book, piece p, float scale, bool less) {
    products sums = {0, 0};
    for (int32_t i = 0; i < p.count; i++) {
        float best = book->values[0] + added(book, less);
        for (int level = 1; level < book->levels; level++) {
            const float value = book->values[level] + added(book, less);
            best = fabsf(p.targets[i] - scale * value) < fabsf(p.targets[i] - scale * best) ? value : best;
        }
        sums = add_products(sums, p.targets[i], p.weights[i], best);
    }
    return sums;
}

static float largest_of(const float *values, int32_t count) {
    float largest = 0;
    for (int32_t i = 0; i < count; i++) {
        largest = largest < fabsf(values[i]) ? fabsf(values[i]) : largest;
    }
    return largest;
}

/* By how much the error falls from that of zeros, at the scale that suits the levels. */
static float gain_of(products sums) {
    return sums.vv > 0 && sums.tv > 0 ? sums.tv * sums.tv / sums.vv : 0;
}

static float search_scale(const codebook *book, piece p) {
    float gain = 0, scale = 0, step = largest_of(p.targets, p.count) / book->values[book->levels - 1] * 1.2f;
    for (int k = 0; k < STEPS; k++, step *= 0.92f) {
        for (int less = 0; less < (book->shift == NONE ? 1 : 2); less++) {
            const products sums = free_products(book, p, step, less);
            if (gain_of(sums) > gain) {
                gain = gain_of(sums);
                scale = sums.tv / sums.vv;
            }
        }
    }
    float best = scale;
    gain = 0;
    for (int round = 0; round < ROUNDS && scale > 0; round++) {
        const part_points chosen = points_at(book, p, scale);
        const products sums = products_of(book, p, &chosen);
        if (!(gain_of(sums) > gain)) {
            break;
        }
        gain = gain_of(sums);
        best = scale = sums.tv / sums.vv;
    }
    return best;
}

/* ---- a block
 * -------------------------------------------------------------------------------------------------------------
 */

/* A block with its signs taken off. */
typedef struct work {
    float targets[BLOCK], weights[BLOCK];
    uint8_t signs[BLOCK / 8];
} work;

static void take_signs(const codebook *book, work *w, int32_t octet) {
    float *x = w->targets + 8 * octet;
    const float *weights = w->weights + 8 * octet;
    uint32_t signs = 0, negative = 0;
    int least = 0;
    for (int i = 0; i < 8; i++) {
        signs |= (uint32_t)(x[i] < 0) << i;
        negative += x[i] < 0;
        x[i] = fabsf(x[i]);
        least = weights[i] * x[i] * x[i] < weights[least] * x[least] * x[least] ? i : least;
    }
    if (book->even_signs && negative % 2 == 1) { /* the one that costs least gets the wrong sign */
        signs ^= 1u << least;
        x[least] = -x[least];
    }
    w->signs[octet] = (uint8_t)signs;
}

/* False when the block counts as zero. */
static bool prepare(const codebook *book, const float *values, const float *importance, work *w,
                    float *largest) {
    const float most = importance ? largest_of(importance, BLOCK) : 0;
    *largest = largest_of(values, BLOCK);
    for (int i = 0; i < BLOCK; i++) {
        w->targets[i] = values[i] / *largest;
        w->weights[i] = most > 0 ? importance[i] / most : 1.0f;
    }
    for (int32_t octet = 0; book->signs && octet < BLOCK / 8; octet++) {
        take_signs(book, w, octet);
    }
    return *largest >= 1e-20f;
}

/* A scale as it will be read, on the scale of the targets; `numbers` become integers. */
static float written_scale(float scale, float largest) {
    const float written = sl_f16_to_f32(sl_f32_to_f16(scale * largest));
    return written < 65504.0f ? written / largest : 65504.0f / largest;
}

/* Parts take the best of the scales around their own. Returns the error. */
static float fill(const codebook *book, const work *w, const float *scales, choice *out) {
    float error = 0;
    const int32_t each = book->part / book->size;
    for (int32_t part = 0; part < BLOCK / book->part; part++) {
        const piece p = {w->targets + part * book->part, w->weights + part * book->part, book->part};
        const float unit = out->scale * book->unit, wanted = (scales[part] / unit - 1) / 2;
        const int32_t near = wanted > 0 ? (wanted < (float)book->top ? (int32_t)wanted : book->top) : 0;
        part_points best = {.error = INFINITY};
        for (int32_t s = near; s <= near + 1 && s <= book->top; s++) {
            const part_points chosen = points_at(book, p, unit * (float)(2 * s + 1));
            if (s == near || chosen.error < best.error) {
                best = chosen;
                out->numbers[part] = (uint8_t)s;
            }
        }
        memcpy(out->points + part * each, best.points, (size_t)each * sizeof *best.points);
        memcpy(out->less + part * each, best.less, (size_t)each * sizeof *best.less);
        error += best.error;
    }
    return error;
}

/* The block's scale by least squares, for the points and numbers chosen. */
static float fitted_scale(const codebook *book, const work *w, const choice *chosen) {
    products sums = {0, 0};
    for (int32_t i = 0; i < BLOCK; i++) {
        const int32_t k = i / book->size;
        const float factor = book->unit * (float)(2 * chosen->numbers[i / book->part] + 1);
        const float value = value_at(book, chosen->points[k], i % book->size, chosen->less[k]);
        sums = add_products(sums, w->targets[i], w->weights[i], factor * value);
    }
    return sums.vv > 0 && sums.tv > 0 ? sums.tv / sums.vv : chosen->scale;
}

static void encode_block(const codebook *book, const float *values, const float *importance, void *block) {
    work w;
    choice best = {.scale = 0};
    float largest, scales[PARTS], top = 0, error = INFINITY;
    if (!prepare(book, values, importance, &w, &largest)) {
        book->write(&best, block);
        return;
    }
    memcpy(best.signs, w.signs, book->signs ? sizeof best.signs : 0);
    for (int32_t part = 0; part < BLOCK / book->part; part++) {
        const piece p = {w.targets + part * book->part, w.weights + part * book->part, book->part};
        scales[part] = search_scale(book, p);
        top = scales[part] > top ? scales[part] : top;
    }
    choice next = best;
    next.scale = top / (book->unit * (float)(2 * book->top + 1));
    for (int round = 0; round < ROUNDS; round++) {
        next.scale = written_scale(next.scale, largest);
        if (!(next.scale > 0)) {
            break;
        }
        const float now = fill(book, &w, scales, &next);
        if (!(now < error)) {
            break;
        }
        error = now;
        best = next;
        next.scale = fitted_scale(book, &w, &next);
    }
    best.scale *= largest;
    book->write(&best, block);
}

/* ---- blocks as they are written
 * ------------------------------------------------------------------------------------------ */

static void write_iq2_xxs(const choice *c, void *data) {
    sl_block_iq2_xxs *block = data;
    block->scale = sl_f32_to_f16(c->scale);
    for (int g = 0; g < 8; g++) {
        uint32_t word = (uint32_t)c->numbers[g] << 28;
        for (int k = 0; k < 4; k++) {
            block->groups[g][k] = (uint8_t)c->points[4 * g + k];
            word |= (uint32_t)(c->signs[4 * g + k] & 127) << 7 * k;
        }
        memcpy(block->groups[g] + 4, &word, sizeof word);
    }
}

static void write_iq2_xs(const choice *c, void *data) {
    sl_block_iq2_xs *block = data;
    block->scale = sl_f32_to_f16(c->scale);
    for (int k = 0; k < 32; k++) {
        block->points[k] = (uint16_t)(c->points[k] | (c->signs[k] & 127) << 9);
    }
    for (int g = 0; g < 8; g++) {
        block->scales[g] = (uint8_t)(c->numbers[2 * g] | c->numbers[2 * g + 1] << 4);
    }
}

static void write_iq2_s(const choice *c, void *data) {
    sl_block_iq2_s *block = data;
    block->scale = sl_f32_to_f16(c->scale);
    memcpy(block->signs, c->signs, sizeof block->signs);
    memset(block->high, 0, sizeof block->high);
    for (int k = 0; k < 32; k++) {
        block->points[k] = (uint8_t)c->points[k];
        block->high[k / 4] |= (uint8_t)(c->points[k] >> 8 << 2 * (k % 4));
    }
    for (int g = 0; g < 8; g++) {
        block->scales[g] = (uint8_t)(c->numbers[2 * g] | c->numbers[2 * g + 1] << 4);
    }
}

static void write_iq3_xxs(const choice *c, void *data) {
    sl_block_iq3_xxs *block = data;
    block->scale = sl_f32_to_f16(c->scale);
    for (int k = 0; k < 64; k++) {
        block->points[k] = (uint8_t)c->points[k];
    }
    for (int g = 0; g < 8; g++) {
        uint32_t word = (uint32_t)c->numbers[g] << 28;
        for (int k = 0; k < 4; k++) {
            word |= (uint32_t)(c->signs[4 * g + k] & 127) << 7 * k;
        }
        memcpy(block->signs[g], &word, sizeof word);
    }
}

static void write_iq3_s(const choice *c, void *data) {
    sl_block_iq3_s *block = data;
    block->scale = sl_f32_to_f16(c->scale);
    memcpy(block->signs, c->signs, sizeof block->signs);
    memset(block->high, 0, sizeof block->high);
    for (int k = 0; k < 64; k++) {
        block->points[k] = (uint8_t)c->points[k];
        block->high[k / 8] |= (uint8_t)(c->points[k] >> 8 << k % 8);
    }
    for (int pair = 0; pair < 4; pair++) {
        block->scales[pair] = (uint8_t)(c->numbers[2 * pair] | c->numbers[2 * pair + 1] << 4);
    }
}

static void write_iq1_s(const choice *c, void *data) {
    sl_block_iq1_s *block = data;
    block->scale = sl_f32_to_f16(c->scale);
    for (int g = 0; g < 8; g++) {
        uint32_t high = (uint32_t)c->numbers[g] << 12 | (uint32_t)c->less[4 * g] << 15;
        for (int k = 0; k < 4; k++) {
            block->points[4 * g + k] = (uint8_t)c->points[4 * g + k];
            high |= (uint32_t)(c->points[4 * g + k] >> 8) << 3 * k;
        }
        block->high[g] = (uint16_t)high;
    }
}

static void write_iq1_m(const choice *c, void *data) {
    sl_block_iq1_m *block = data;
    const uint32_t scale = sl_f32_to_f16(c->scale);
    memset(block->high, 0, sizeof block->high);
    for (int k = 0; k < 32; k++) {
        block->points[k] = (uint8_t)c->points[k];
        block->high[k / 2] |= (uint8_t)((c->points[k] >> 8 | c->less[k] << 3) << 4 * (k % 2));
    }
    for (int i = 0; i < 4; i++) {
        uint32_t word = (scale >> 4 * i & 15u) << 12;
        for (int j = 0; j < 4; j++) {
            word |= (uint32_t)c->numbers[4 * i + j] << 3 * j;
        }
        block->scales[i] = (uint16_t)word;
    }
}

/* ---- the types
 * -----------------------------------------------------------------------------------------------------------
 */

#define POINTS_OF(grid) .points = grid, .count = sizeof grid / sizeof *grid
#define IQ2(grid, ...)                                                                                       \
    {                                                                                                        \
        POINTS_OF(grid), .size = 8, .levels = 3, .values = {8, 25, 43}, .top = 15, .unit = 0.125f,           \
                         .signs = true, __VA_ARGS__                                                          \
    }
#define IQ1(...)                                                                                             \
    {                                                                                                        \
        POINTS_OF(sl_grid_iq1), .size = 8, .levels = 3, .values = {-8, 0, 8}, .top = 7, .unit = 0.125f,      \
                                __VA_ARGS__                                                                  \
    }
#define IQ3(grid, ...)                                                                                       \
    { POINTS_OF(grid), .size = 4, .levels = 8, .part = 32, .top = 15, .signs = true, __VA_ARGS__ }

static const codebook IQ2_XXS = IQ2(sl_grid_iq2_xxs, .part = 32, .even_signs = true, .write = write_iq2_xxs);
static const codebook IQ2_XS = IQ2(sl_grid_iq2_xs, .part = 16, .even_signs = true, .write = write_iq2_xs);
static const codebook IQ2_S = IQ2(sl_grid_iq2_s, .part = 16, .write = write_iq2_s);
static const codebook IQ3_XXS = IQ3(sl_grid_iq3_xxs, .values = {4, 12, 20, 28, 36, 44, 52, 62}, .unit = 0.25f,
                                    .even_signs = true, .write = write_iq3_xxs);
static const codebook IQ3_S =
    IQ3(sl_grid_iq3_s, .values = {1, 3, 5, 7, 9, 11, 13, 15}, .unit = 1, .write = write_iq3_s);
static const codebook IQ1_S = IQ1(.part = 32, .shift = BY_PART, .write = write_iq1_s);
static const codebook IQ1_M = IQ1(.part = 16, .shift = BY_POINT, .write = write_iq1_m);

#define ENCODE(ID, name)                                                                                     \
    void sl_encode_##name(const float *values, void *blocks, uint64_t count) {                               \
        sl_block_##name *block = blocks;                                                                     \
        codebook book = ID;                                                                                  \
        find_runs(&book);                                                                                    \
        for (uint64_t done = 0; done < count; done += BLOCK) {                                               \
            encode_block(&book, values + done, NULL, block++);                                               \
        }                                                                                                    \
    }                                                                                                        \
    void sl_weigh_##name(const float *values, const float *importance, void *block) {                        \
        codebook book = ID;                                                                                  \
        find_runs(&book);                                                                                    \
        encode_block(&book, values, importance, block);                                                      \
    }
ENCODE(IQ2_XXS, iq2_xxs)
ENCODE(IQ2_XS, iq2_xs)
ENCODE(IQ2_S, iq2_s)
ENCODE(IQ3_XXS, iq3_xxs)
ENCODE(IQ3_S, iq3_s)
ENCODE(IQ1_S, iq1_s)
ENCODE(IQ1_M, iq1_m)
