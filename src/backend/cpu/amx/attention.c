/* Attention of the AMX tier.
 *
 * Class "tile64/bf16x3": tiles of 64 keys as plain's (plain/cache.c). Queries, keys, values and probabilities
 * are split into a high BF16 and what is left, another: 16 bits of each number, all of an f16's. A product is
 * low by high, high by high, high by low, of which TDPBF16PS takes 32 terms an instruction, r and r + 16 as a
 * pair: for a score 32 elements of the head after the other, for a value 32 keys after the other, added to
 * what the row has so far. Where the cache's type fits one BF16 the third product is left out, which adds
 * zeros.
 * Queries are scaled first, so that scores are powers of two. A tile's probabilities are added to four sums,
 * key j to sum j mod 4, and these (0 + 1) + (2 + 3).
 *
 * A row meets keys that it does not see with probability 0. So values that are not finite are taken for zeros
 * there, and leave NaN afterwards in the rows that see them. They are told by what is left of them, which
 * is no number.
 *
 * Scores come out as [key][query], keys being read as they lie: what a row does to its scores then is done to
 * 16 queries at once, and probabilities are turned round, not keys. */
#include "backend/cpu/amx/amx.h"
#include "backend/cpu/amx/tiles.h"
#include "backend/cpu/avx512/simd.h"

enum {
    BLOCK_QUERIES = 256, /* a block's queries (row times head), unless one row has more heads */
    LANES = 16,          /* queries of a group: a tile's rows or columns */
    STEP = 32,           /* terms of an instruction */
    TILE = 16 * STEP,    /* elements of a tile register */
};

#define LOG2_E 1.44269504f

/* A thread's scratch beside what all kernels have. */
typedef struct tile_scratch {
    uint16_t *keys;    /* [part][key_columns / 32][64][32]; then room for values */
    uint16_t *queries; /* [group][part][key_columns / 32][16][16][2]: by element, a pair of each query */
    float *split;      /* [part][16][key_columns / 2]: pairs of a group's queries, by element */
    float *scores;     /* [2][64][16] */
    float *turned;     /* [16][64] */
    uint16_t *probabilities; /* [2][part][2][16][32] */
} tile_scratch;

#include "backend/cpu/simd_attention_rows.h"

static int32_t whole_steps(int32_t size) {
    return (size + STEP - 1) / STEP * STEP;
}

/* 16 bits of a number are not what an F32 cache is asked for. */
static const char *cache_declined(sl_qtype type) {
    return type == SL_QTYPE_F32 ? "keeps 16 bits of a number, of an f32 cache too" : NULL;
}

static int32_t output_stride(const attention *a) {
    return whole_steps(a->group->value_size);
}

/* Lays the scratch out from `at` on; returns its bytes. */
static uint64_t lay_out(attention *a, unsigned char *at) {
    const uint64_t keys = (uint64_t)whole_steps(a->group->key_size), values = (uint64_t)output_stride(a);
    const uint64_t queries = (uint64_t)(a->block_rows * a->ratio + LANES - 1) / LANES * LANES;
    uint64_t used = 0;
    void *parts[8];
    const uint64_t bytes[8] = {
        2 * SL_PAGE_TOKENS * (keys + values) * 2,
        2 * queries * keys * 2,
        2 * LANES * keys * 2,
        2 * SL_PAGE_TOKENS * LANES * 4,
        SL_PAGE_TOKENS * LANES * 4,
        4 * SL_PAGE_TOKENS * LANES * 2,
        queries * values * 4,
        2 * queries * 4,
    };
    for (int i = 0; i < 8; i++) {
        parts[i] = at ? at + used : NULL;
        used += bytes[i];
    }
    a->scratch = (tile_scratch){parts[0], parts[1], parts[2], parts[3], parts[4], parts[5]};
    a->outputs = parts[6];
    a->largest = parts[7];
    a->sum = at ? a->largest + queries : NULL;
    return used;
}

/* ---- splitting ---- */

/* The BF16 next to each number: halfway the one of larger magnitude. */
SL_ALWAYS_INLINE vf high_part(vf v) {
    const vi rounded = vi_add(vi_bits(v), vi_set1(0x8000));
    return _mm512_castsi512_ps(vi_and(rounded, vi_set1((int32_t)0xffff0000)));
}

/* What it leaves: tells by a NaN of a number that is not finite. */
SL_ALWAYS_INLINE vf rest_of(vf v) {
    return vf_sub(v, high_part(v));
}

/* Pairs of two vectors' elements, cut to BF16. */
SL_ALWAYS_INLINE vi interleave(vf x, vf y) {
    return vi_or(vi_right(vi_bits(x), 16), vi_and(vi_bits(y), vi_set1((int32_t)0xffff0000)));
}

SL_ALWAYS_INLINE vf decode_at(const sl_qtype type, const unsigned char *row, int32_t at, int32_t size) {
    return at < size ? vf_decode(type, row, at) : vf_zero();
}

/* ---- a tile of keys ---- */

typedef struct tile_range {
    int32_t tile, from, to; /* keys of the tile that the block sees */
} tile_range;

/* Whether two parts are needed for numbers of the cache's type. */
SL_ALWAYS_INLINE int parts_of(sl_qtype type) {
    return type == SL_QTYPE_BF16 || type == SL_QTYPE_FP8 ? 1 : 2;
}

SL_ALWAYS_INLINE void decode_key(const attention *a, const sl_qtype type, const unsigned char *key,
                                 int32_t j) {
    const int32_t size = a->group->key_size, columns = whole_steps(size);
    uint16_t *out = a->scratch.keys + j * STEP;
    for (int32_t d = 0; d < size; d += STEP, out += SL_PAGE_TOKENS * STEP) {
        const vf x = decode_at(type, key, d, size), y = decode_at(type, key, d + VN, size);
        _mm512_store_si512(out, interleave(high_part(x), high_part(y)));
        if (parts_of(type) > 1) {
            _mm512_store_si512(out + SL_PAGE_TOKENS * columns, interleave(rest_of(x), rest_of(y)));
        }
    }
}

/* Zeros for what is not finite. */
SL_ALWAYS_INLINE vf finite_part(vf v) {
    const vf rest = rest_of(v);
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(rest, rest, _CMP_ORD_Q), v);
}

static int32_t groups_of(const attention *a) {
    return ((a->last - a->first) * a->ratio + LANES - 1) / LANES;
}

/* The tile's values: [part][2][value_columns / 16][16][16][2], keys r and r + 16 of 32 as a pair. Where no
 * more than two groups meet the tile they lie where its keys were, which nobody needs any more: so they find
 * room in the first cache. */
static uint16_t *values_of(const attention *a) {
    return a->scratch.keys + (groups_of(a) > 2 ? 2 * SL_PAGE_TOKENS * whole_steps(a->group->key_size) : 0);
}

/* Values r and r + 16 of a tile's `step`, zeros for one that is NULL, and for what is not finite if
 * `careful`. Returns numbers that are NaN where something is not finite. */
SL_ALWAYS_INLINE vf decode_values(const attention *a, const sl_qtype type, const bool careful,
                                  const unsigned char *const row[2], int32_t step, int32_t r) {
    const int32_t size = a->group->value_size, columns = whole_steps(size);
    uint16_t *out = values_of(a) + (step * columns + r) * STEP;
    vf marks = vf_zero();
    for (int32_t d = 0; d < columns; d += VN, out += TILE) {
        vf x = row[0] ? decode_at(type, row[0], d, size) : vf_zero();
        vf y = row[1] ? decode_at(type, row[1], d, size) : vf_zero();
        if (careful) {
            x = finite_part(x);
            y = finite_part(y);
        }
        _mm512_store_si512(out, interleave(high_part(x), high_part(y)));
        if (parts_of(type) > 1) {
            _mm512_store_si512(out + SL_PAGE_TOKENS * columns, interleave(rest_of(x), rest_of(y)));
        }
        marks = vf_add(marks, vf_add(rest_of(x), rest_of(y)));
    }
    return marks;
}

SL_ALWAYS_INLINE void decode_keys_as(const attention *a, const sl_qtype type, const sl_cpu_cache *cache,
                                     const tile_range *range) {
    const unsigned char *keys = sl_cpu_page_keys(cache, range->tile, a->kv_head);
    for (int32_t j = range->from; j < range->to; j++) {
        decode_key(a, type, keys + (uint64_t)j * cache->key_bytes, j);
    }
}

SL_ALWAYS_INLINE bool decode_values_as(const attention *a, const sl_qtype type, const bool careful,
                                       const sl_cpu_cache *cache, const tile_range *range) {
    const unsigned char *values = sl_cpu_page_values(cache, range->tile, a->kv_head);
    vf marks = vf_zero();
    for (int32_t step = range->from / STEP; step * STEP < range->to; step++) {
        for (int32_t r = 0; r < 16; r++) {
            const unsigned char *rows[2];
            for (int32_t i = 0; i < 2; i++) {
                const int32_t j = step * STEP + r + i * 16;
                rows[i] =
                    j >= range->from && j < range->to ? values + (uint64_t)j * cache->value_bytes : NULL;
            }
            marks = vf_add(marks, decode_values(a, type, careful, rows, step, r));
        }
    }
    return _mm512_cmp_ps_mask(marks, marks, _CMP_UNORD_Q) == 0;
}

/* The tile's keys; those outside of the range are nothing in particular. */
static void decode_keys(const attention *a, const sl_cpu_cache *cache, const tile_range *range) {
    switch (a->type) {
    case SL_QTYPE_F16:
        decode_keys_as(a, SL_QTYPE_F16, cache, range);
        break;
    case SL_QTYPE_BF16:
        decode_keys_as(a, SL_QTYPE_BF16, cache, range);
        break;
    case SL_QTYPE_FP8:
        decode_keys_as(a, SL_QTYPE_FP8, cache, range);
        break;
    default:
        decode_keys_as(a, SL_QTYPE_Q8_0, cache, range);
        break;
    }
}

/* The tile's values; those outside of the range are zeros. Returns whether all are
 * finite. */
SL_ALWAYS_INLINE bool decode_tile_values(const attention *a, const bool careful, const sl_cpu_cache *cache,
                                         const tile_range *range) {
    switch (a->type) {
    case SL_QTYPE_F16:
        return decode_values_as(a, SL_QTYPE_F16, careful, cache, range);
    case SL_QTYPE_BF16:
        return decode_values_as(a, SL_QTYPE_BF16, careful, cache, range);
    case SL_QTYPE_FP8:
        return decode_values_as(a, SL_QTYPE_FP8, careful, cache, range);
    default:
        return decode_values_as(a, SL_QTYPE_Q8_0, careful, cache, range);
    }
}

/* NaN for what queries see of a tile that is not finite. */
static void mark_queries(const attention *a, const sl_cpu_cache *cache, int32_t tile) {
    const unsigned char *values = sl_cpu_page_values(cache, tile, a->kv_head);
    for (int32_t query = 0; query < (a->last - a->first) * a->ratio; query++) {
        float *y = a->outputs + query * output_stride(a);
        int32_t from, to;
        seen_keys(a, query, tile * SL_PAGE_TOKENS, &from, &to);
        for (int32_t j = from; j < to; j++) {
            for (int32_t d = 0; d < a->group->value_size; d += VN) {
                const vf rest = rest_of(vf_decode(a->type, values + (uint64_t)j * cache->value_bytes, d));
                vf_store(y + d, vf_fma(rest, vf_zero(), vf_load(y + d)));
            }
        }
    }
}

/* ---- products: tiles 0 to 3 are sums ---- */

#define LOAD(tile, from) _tile_loadd(tile, from, STEP * 2)

static void configure(void) {
    sl_tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < SL_TILES; i++) {
        shapes.row_bytes[i] = SL_TILE_BYTES;
        shapes.rows[i] = SL_TILE_ROWS;
    }
    sl_tiles_shape(&shapes);
}

/* Scores of keys [j, j + 32) for two groups of queries, or of [j, j + 64) for one. */
SL_ALWAYS_INLINE void score(const attention *a, int32_t group, const bool two, int32_t j) {
    const int32_t columns = whole_steps(a->group->key_size);
    const bool low_keys = parts_of(a->type) > 1;
    const uint16_t *keys = a->scratch.keys + j * STEP;
    const uint16_t *queries = a->scratch.queries + group * 2 * columns * LANES;
    float *out = a->scratch.scores + j * LANES;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int32_t c = 0; c < columns / STEP; c++, keys += SL_PAGE_TOKENS * STEP, queries += TILE) {
        const uint16_t *low = keys + SL_PAGE_TOKENS * columns;
        const uint16_t *queries_low = queries + columns * LANES;
        if (two) {
            const uint16_t *other = queries + 2 * columns * LANES, *other_low = other + columns * LANES;
            LOAD(4, keys);
            LOAD(5, keys + TILE);
            LOAD(6, queries_low);
            LOAD(7, other_low);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
            LOAD(6, queries);
            LOAD(7, other);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
            if (low_keys) {
                LOAD(4, low);
                LOAD(5, low + TILE);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            continue;
        }
        LOAD(4, queries_low);
        LOAD(5, queries);
        LOAD(6, keys);
        _tile_dpbf16ps(0, 6, 4);
        LOAD(7, keys + TILE);
        _tile_dpbf16ps(1, 7, 4);
        _tile_dpbf16ps(0, 6, 5);
        LOAD(6, keys + 2 * TILE);
        _tile_dpbf16ps(2, 6, 4);
        _tile_dpbf16ps(1, 7, 5);
        LOAD(7, keys + 3 * TILE);
        _tile_dpbf16ps(3, 7, 4);
        _tile_dpbf16ps(2, 6, 5);
        _tile_dpbf16ps(3, 7, 5);
        if (low_keys) {
            LOAD(6, low);
            _tile_dpbf16ps(0, 6, 5);
            LOAD(7, low + TILE);
            _tile_dpbf16ps(1, 7, 5);
            LOAD(6, low + 2 * TILE);
            _tile_dpbf16ps(2, 6, 5);
            LOAD(7, low + 3 * TILE);
            _tile_dpbf16ps(3, 7, 5);
        }
    }
    _tile_stored(0, out, LANES * 4);
    _tile_stored(1, two ? out + SL_PAGE_TOKENS * LANES : out + LANES * 16, LANES * 4);
    _tile_stored(2, two ? out + LANES * 16 : out + LANES * 32, LANES * 4);
    _tile_stored(3, two ? out + (SL_PAGE_TOKENS + 16) * LANES : out + LANES * 48, LANES * 4);
}

/* Adds keys [from, to) of the tile, multiples of 32, to columns [d, d + 32) of two groups of queries, or of
 * one. */
SL_ALWAYS_INLINE void add_values(const attention *a, int32_t group, const bool two, int32_t d, int32_t from,
                                 int32_t to) {
    const int32_t columns = output_stride(a);
    const bool low_values = parts_of(a->type) > 1;
    float *out = a->outputs + group * LANES * columns + d, *other_out = out + LANES * columns;
    const size_t stride = (size_t)columns * 4;
    _tile_loadd(0, out, stride);
    _tile_loadd(1, out + 16, stride);
    if (two) {
        _tile_loadd(2, other_out, stride);
        _tile_loadd(3, other_out + 16, stride);
    }
    for (int32_t j = from; j < to; j += STEP) {
        const uint16_t *p = a->scratch.probabilities + j / STEP * TILE, *p_low = p + 2 * TILE;
        const uint16_t *values = values_of(a) + j * columns + d * STEP;
        const uint16_t *low = values + SL_PAGE_TOKENS * columns;
        LOAD(4, p_low);
        LOAD(6, values);
        LOAD(7, values + TILE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (two) {
            LOAD(5, p_low + 4 * TILE);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        LOAD(4, p);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (two) {
            LOAD(5, p + 4 * TILE);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        if (low_values) {
            LOAD(6, low);
            LOAD(7, low + TILE);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (two) {
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    }
    _tile_stored(0, out, stride);
    _tile_stored(1, out + 16, stride);
    if (two) {
        _tile_stored(2, other_out, stride);
        _tile_stored(3, other_out + 16, stride);
    }
}

/* ---- probabilities ---- */

/* What the lanes of a group see of a tile: keys [from, to) each, nothing where these are equal; together
 * [first, last). */
typedef struct group_seen {
    int32_t from[LANES], to[LANES];
    int32_t first, last;
} group_seen;

/* 2^x for x <= 0, within 2^-21; 0 below -126 (a subnormal result would cost a hundred cycles), NaN for NaN.
 * 2^r for r in [0, 1) is 1 + r g(r), g through the five Chebyshev points of (2^r - 1) / r; then times 2^n. */
SL_ALWAYS_INLINE vf power_of_two(vf x) {
    const vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = vf_set1(0.0017883688f);
    p = vf_fma(p, r, vf_set1(0.00919938739f));
    p = vf_fma(p, r, vf_set1(0.0556570552f));
    p = vf_fma(p, r, vf_set1(0.240207195f));
    p = vf_fma(p, r, vf_set1(0.69314754f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, vf_set1(-126.0f), _CMP_NLT_UQ), p, x);
}

/* Lanes that see key j. */
SL_ALWAYS_INLINE __mmask16 seeing(const group_seen *seen, int32_t j) {
    return _mm512_cmple_epi32_mask(vi_load(seen->from), vi_set1(j)) &
           _mm512_cmpgt_epi32_mask(vi_load(seen->to), vi_set1(j));
}

/* Scores of keys [from, to) as they count, -infinity where a lane does not see the key, in place; returns the
 * largest. */
SL_ALWAYS_INLINE vf finish_scores(const attention *a, float *scores, const group_seen *seen, int32_t from,
                                  int32_t to, const bool all) {
    const vf cap = vf_set1(a->parameters->softcap * LOG2_E);
    vf top[4];
    SL_UNROLL for (int i = 0; i < 4; i++) {
        top[i] = vf_set1(-INFINITY);
    }
    for (int32_t j = from; j < to; j += 4) {
        SL_UNROLL for (int i = 0; i < 4; i++) {
            vf s = vf_load(scores + (j + i) * LANES);
            if (a->parameters->softcap > 0) {
                s = vf_mul(cap, vf_tanh(s));
            }
            if (!all) {
                s = _mm512_mask_mov_ps(vf_set1(-INFINITY), seeing(seen, j + i), s);
            }
            if (!all || a->parameters->softcap > 0) {
                vf_store(scores + (j + i) * LANES, s);
            }
            top[i] = vf_max(s, top[i]); /* a NaN leaves top as it was */
        }
    }
    return vf_max(vf_max(top[0], top[1]), vf_max(top[2], top[3]));
}

/* Scores to probabilities relative to 2^largest, in place, 0 where a lane does not see the key; returns their
 * sums. */
SL_ALWAYS_INLINE vf soften(float *scores, const group_seen *seen, vf largest, int32_t from, int32_t to,
                           const bool all) {
    vf sums[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (int32_t j = from; j < to; j += 4) {
        SL_UNROLL for (int i = 0; i < 4; i++) {
            vf p = power_of_two(vf_sub(vf_load(scores + (j + i) * LANES), largest));
            if (!all) {
                p = _mm512_maskz_mov_ps(seeing(seen, j + i), p);
            }
            vf_store(scores + (j + i) * LANES, p);
            sums[i] = vf_add(sums[i], p);
        }
    }
    return vf_add(vf_add(sums[0], sums[1]), vf_add(sums[2], sums[3]));
}

/* Probabilities by query, split. */
static void split_probabilities(const attention *a, const float *scores, uint16_t *out, int32_t from,
                                int32_t to) {
    float *turned = a->scratch.turned;
    for (int32_t j = from; j < to; j += 16) {
        vf_transpose(scores + j * LANES, LANES, turned + j, SL_PAGE_TOKENS);
    }
    for (int32_t j = from; j < to; j += STEP) {
        uint16_t *y = out + j / STEP * TILE;
        SL_UNROLL for (int i = 0; i < LANES; i++) {
            const vf p = vf_load(turned + i * SL_PAGE_TOKENS + j);
            const vf q = vf_load(turned + i * SL_PAGE_TOKENS + j + VN);
            _mm512_store_si512(y + i * STEP, interleave(high_part(p), high_part(q)));
            _mm512_store_si512(y + 2 * TILE + i * STEP, interleave(rest_of(p), rest_of(q)));
        }
    }
}

/* Scores of a group to probabilities, for keys [from, to) of the tile, multiples of 32; what its queries have
 * so far is rescaled. */
static void soften_group(const attention *a, int32_t group, const group_seen *seen, int32_t which,
                         int32_t from, int32_t to) {
    float *scores = a->scratch.scores + which * SL_PAGE_TOKENS * LANES;
    const int32_t columns = output_stride(a);
    float *largest = a->largest + group * LANES, *sum = a->sum + group * LANES;
    const vi first = vi_load(seen->from), last = vi_load(seen->to);
    const bool all =
        _mm512_cmpgt_epi32_mask(first, vi_set1(from)) == 0 && _mm512_cmplt_epi32_mask(last, vi_set1(to)) == 0;
    const __mmask16 active = _mm512_cmplt_epi32_mask(first, last);
    const vf old = vf_load(largest);
    const vf tops = all ? finish_scores(a, scores, seen, from, to, true)
                        : finish_scores(a, scores, seen, from, to, false);
    const vf top = vf_max(tops, old);
    const vf change = _mm512_mask_mov_ps(vf_set1(1.0f), active, power_of_two(vf_sub(old, top)));
    const vf sums =
        all ? soften(scores, seen, top, from, to, true) : soften(scores, seen, top, from, to, false);
    vf_store(largest, top);
    vf_store(sum, vf_add(vf_mul(vf_load(sum), change), sums));
    split_probabilities(a, scores, a->scratch.probabilities + which * 4 * TILE, from, to);
    float changes[LANES];
    vf_store(changes, change);
    for (int32_t i = 0; i < LANES; i++) {
        float *y = a->outputs + (group * LANES + i) * columns;
        for (int32_t d = 0; changes[i] != 1.0f && d < columns; d += VN) {
            vf_store(y + d, vf_mul(vf_load(y + d), vf_set1(changes[i])));
        }
    }
}

/* Of the block's queries; false when none of the group sees a key. Lanes behind the last query see what that
 * one does. */
static bool see_group(const attention *a, int32_t group, int32_t base, group_seen *seen) {
    const int32_t last = (a->last - a->first) * a->ratio - 1;
    seen->first = SL_PAGE_TOKENS;
    seen->last = 0;
    for (int32_t i = 0, from = 0, to = 0; i < LANES; i++) {
        const int32_t query = group * LANES + i;
        if (i == 0 || (query <= last && query % a->ratio == 0)) {
            seen_keys(a, query, base, &from, &to);
            to = from < to ? to : from;
        }
        seen->from[i] = from;
        seen->to[i] = to;
        if (from < to) {
            seen->first = from < seen->first ? from : seen->first;
            seen->last = to > seen->last ? to : seen->last;
        }
    }
    return seen->first < seen->last;
}

/* Steps of the tile that one group, or two, see something of. */
static void steps_of(const group_seen *seen, int32_t count, int32_t *first, int32_t *last) {
    const group_seen *other = &seen[count - 1];
    *first = (seen->first < other->first ? seen->first : other->first) / STEP * STEP;
    *last = whole_steps(seen->last > other->last ? seen->last : other->last);
}

static void attend_keys(const attention *a, int32_t group, int32_t count, const group_seen *seen) {
    int32_t first, last;
    steps_of(seen, count, &first, &last);
    if (count == 2) {
        for (int32_t j = first; j < last; j += STEP) {
            score(a, group, true, j);
        }
    } else {
        score(a, group, false, 0);
    }
    for (int32_t i = 0; i < count; i++) {
        soften_group(a, group + i, &seen[i], i, first, last);
    }
}

static void attend_values(const attention *a, int32_t group, int32_t count, const group_seen *seen) {
    int32_t first, last;
    steps_of(seen, count, &first, &last);
    for (int32_t d = 0; d < output_stride(a); d += 32) {
        if (count == 2) {
            add_values(a, group, true, d, first, last);
        } else {
            add_values(a, group, false, d, first, last);
        }
    }
}

static void attend_tile(const attention *a, const sl_cpu_cache *cache, int32_t tile, int32_t from,
                        int32_t to) {
    const tile_range range = {tile, from, to};
    const int32_t base = tile * SL_PAGE_TOKENS, groups = groups_of(a);
    bool decoded = false, finite = true;
    group_seen seen[2];
    decode_keys(a, cache, &range);
    for (int32_t group = 0, count; group < groups; group += count) {
        count = 1;
        if (!see_group(a, group, base, &seen[0])) {
            continue;
        }
        count = group + 1 < groups && see_group(a, group + 1, base, &seen[1]) ? 2 : 1;
        attend_keys(a, group, count, seen);
        if (!decoded) {
            decoded = true;
            finite = decode_tile_values(a, false, cache, &range);
            if (!finite) {
                decode_tile_values(a, true, cache, &range);
            }
        }
        attend_values(a, group, count, seen);
    }
    if (!finite) {
        mark_queries(a, cache, tile);
    }
}

/* ---- rows ---- */

/* The group's queries as pairs, then by element. */
static void split_queries(const attention *a, int32_t group, int32_t queries) {
    const int32_t size = a->group->key_size, columns = whole_steps(size);
    float *high = a->scratch.split, *low = high + LANES * columns / 2;
    uint16_t *out = a->scratch.queries + group * 2 * columns * LANES;
    const float cap = a->parameters->softcap;
    const vf factor = vf_set1(cap > 0 ? a->parameters->scale / cap : a->parameters->scale * LOG2_E);
    for (int32_t i = 0; i < LANES; i++) {
        const int32_t query = group * LANES + i;
        const float *q = query < queries ? query_of(a, query) : NULL;
        for (int32_t d = 0; d < columns; d += STEP) {
            const vf x = q ? vf_mul(vf_load(q + d), factor) : vf_zero();
            const vf y = q && d + VN < size ? vf_mul(vf_load(q + d + VN), factor) : vf_zero();
            _mm512_store_si512(high + (i * columns + d) / 2, interleave(high_part(x), high_part(y)));
            _mm512_store_si512(low + (i * columns + d) / 2,
                               interleave(high_part(rest_of(x)), high_part(rest_of(y))));
        }
    }
    for (int32_t d = 0; d < columns; d += STEP) {
        vf_transpose(high + d / 2, columns / 2, (float *)(void *)(out + d * LANES), LANES);
        vf_transpose(low + d / 2, columns / 2, (float *)(void *)(out + (columns + d) * LANES), LANES);
    }
}

static void start_queries(const attention *a, int32_t queries) {
    const int32_t groups = (queries + LANES - 1) / LANES;
    for (int32_t group = 0; group < groups; group++) {
        split_queries(a, group, queries);
    }
    for (int32_t query = 0; query < groups * LANES; query++) {
        const float *sink = query < queries ? sink_of(a, query) : NULL;
        a->largest[query] = sink ? *sink * LOG2_E : -INFINITY;
        a->sum[query] = sink ? 1.0f : 0.0f;
    }
    memset(a->outputs, 0, (size_t)(groups * LANES * output_stride(a)) * sizeof(float));
}

SL_TIER_RUN(attention) {
    configure();
    attend_all_blocks(context, op, sl_cpu_scratch(op, thread, threads), threads);
    _tile_release();
}
