/* Attention over the paged cache, for one tier: included once by its attention.c, after its simd.h.
 *
 * Class "tile64/chain": as the plain kernel's (plain/cache.c), tiles of 64 keys at multiples of 64 in rising
 * order, keys, values, queries and probabilities in f32; a score is one fused chain over the elements of the
 * head, a value's element one fused chain over the keys that the row sees; the exponential is vf_exp, a
 * tile's probabilities are added lane by lane, vector after vector, then across lanes.
 *
 * Keys are transposed, so that a vector holds one element of many keys. */
#ifndef SL_BACKEND_CPU_SIMD_ATTENTION_H
#define SL_BACKEND_CPU_SIMD_ATTENTION_H

enum {
    BLOCK_QUERIES = 96, /* a block's queries (row times head), unless one row has more heads */
    TILE_QUERIES = 6,   /* of which so many go through the keys at once */
    FETCHING = 64,      /* bytes that tile_scratch.fetch takes, aligned as the scratch is */
};

/* A thread's scratch beside what all kernels have. */
typedef struct tile_scratch {
    float *keys;    /* [key_size][64] */
    float *values;  /* [64][value_size] */
    float *scores;  /* [TILE_QUERIES][64] */
    float *rows;    /* [VN][key_size]: keys before they are transposed */
    float *queries; /* [queries][key_size] */
    struct fetching *fetch;
} tile_scratch;

#include "backend/cpu/simd_attention_rows.h"

/* ---- the next tile ---- */

/* With few queries nearly all time would go by waiting for memory, so what comes next is fetched by and by.
 * All that walks over this tile fetches its share, as bursts would only fill the queue of misses. Pages take
 * turns, as one after the other each would begin by waiting for its address. */
typedef struct fetching {
    const unsigned char *keys, *values;
    uint32_t key_bytes, bytes; /* of the keys, of both; 0: nothing is known to come */
    uint32_t page, line;       /* whose turn it is, in bytes */
} fetching;
_Static_assert(sizeof(fetching) <= FETCHING, "it lies at the beginning of the scratch");

SL_ALWAYS_INLINE void fetch_line(fetching *f) {
    enum { PAGE = 4096, LINE = 64 };
    const uint32_t at = f->page + f->line;
    if (at < f->bytes && f->line < PAGE) {
        _mm_prefetch((const char *)(at < f->key_bytes ? f->keys + at : f->values + (at - f->key_bytes)),
                     _MM_HINT_T0);
    }
    f->page += PAGE;
    if (f->page >= f->bytes) {
        f->page = 0;
        f->line += LINE;
    }
}

static void start_fetching(const attention *a, const sl_cpu_cache *cache) {
    const uint64_t keys = SL_PAGE_TOKENS * cache->key_bytes, values = SL_PAGE_TOKENS * cache->value_bytes;
    *a->scratch.fetch = (fetching){.keys = a->next_keys,
                                   .values = a->next_values,
                                   .key_bytes = (uint32_t)keys,
                                   .bytes = a->next_keys ? (uint32_t)(keys + values) : 0};
}

/* ---- small products ---- */

/* c[rows][vectors * VN] (+)= a[rows][from .. to) b[from .. to)[vectors * VN] */
typedef struct product {
    const float *a, *b;
    float *c;
    int32_t a_stride, b_stride, c_stride;
    int32_t from, to;
    bool from_zero;
    fetching *fetch;
} product;

SL_ALWAYS_INLINE void multiply(const int rows, const int vectors, const product *p) {
    vf sums[TILE_QUERIES][SL_ATTENTION_VECTORS];
    SL_UNROLL for (int r = 0; r < rows; r++) {
        SL_UNROLL for (int v = 0; v < vectors; v++) {
            sums[r][v] = p->from_zero ? vf_zero() : vf_load(p->c + r * p->c_stride + v * VN);
        }
    }
    const float *a = p->a + p->from, *b = p->b + (int64_t)p->from * p->b_stride;
    const int32_t a_stride = p->a_stride, b_stride = p->b_stride;
    fetching fetch = *p->fetch;
    for (int32_t k = p->to - p->from; k > 0; k--, a++, b += b_stride) {
        fetch_line(&fetch);
        vf columns[SL_ATTENTION_VECTORS];
        SL_UNROLL for (int v = 0; v < vectors; v++) {
            columns[v] = vf_load(b + v * VN);
        }
        SL_UNROLL for (int r = 0; r < rows; r++) {
            const vf value = vf_set1(a[r * a_stride]);
            SL_UNROLL for (int v = 0; v < vectors; v++) {
                sums[r][v] = vf_fma(value, columns[v], sums[r][v]);
            }
        }
    }
    SL_UNROLL for (int r = 0; r < rows; r++) {
        SL_UNROLL for (int v = 0; v < vectors; v++) {
            vf_store(p->c + r * p->c_stride + v * VN, sums[r][v]);
        }
    }
    *p->fetch = fetch;
}

#define MULTIPLY(rows, vectors)                                                                              \
    static void multiply_##rows##_##vectors(const product *p) {                                              \
        multiply(rows, vectors, p);                                                                          \
    }
#define MULTIPLY_ALL(vectors)                                                                                \
    MULTIPLY(1, vectors)                                                                                     \
    MULTIPLY(2, vectors)                                                                                     \
    MULTIPLY(3, vectors) MULTIPLY(4, vectors) MULTIPLY(5, vectors) MULTIPLY(6, vectors)
#define MULTIPLY_LIST(vectors)                                                                               \
    {                                                                                                        \
        multiply_1_##vectors, multiply_2_##vectors, multiply_3_##vectors, multiply_4_##vectors,              \
            multiply_5_##vectors, multiply_6_##vectors                                                       \
    }
MULTIPLY_ALL(1)
MULTIPLY_ALL(2)
#if SL_ATTENTION_VECTORS == 4
MULTIPLY_ALL(3)
MULTIPLY_ALL(4)
#endif
static void (*const multiplies[SL_ATTENTION_VECTORS][TILE_QUERIES])(const product *) = {
    MULTIPLY_LIST(1),
    MULTIPLY_LIST(2),
#if SL_ATTENTION_VECTORS == 4
    MULTIPLY_LIST(3),
    MULTIPLY_LIST(4),
#endif
};

/* All columns, in strips that fit the registers. */
static void multiply_wide(product p, int32_t rows, int32_t columns) {
    for (int32_t left = columns / VN, take; left > 0; left -= take) {
        take = left < SL_ATTENTION_VECTORS ? left : SL_ATTENTION_VECTORS;
        multiplies[take - 1][rows - 1](&p);
        p.b += take * VN;
        p.c += take * VN;
    }
}

/* ---- scratch ---- */

static const char *cache_declined(sl_qtype type) {
    (void)type;
    return NULL;
}

static int32_t output_stride(const attention *a) {
    return a->group->value_size;
}

static uint64_t lay_out(attention *a, unsigned char *at) {
    const int32_t queries = a->block_rows * a->ratio, keys = a->group->key_size,
                  values = a->group->value_size;
    const int32_t floats[] = {SL_PAGE_TOKENS * (keys > values ? keys : values),
                              SL_PAGE_TOKENS * values,
                              SL_PAGE_TOKENS * TILE_QUERIES,
                              VN * keys,
                              queries * keys,
                              queries * values,
                              queries,
                              queries};
    float **const parts[] = {&a->scratch.keys,    &a->scratch.values, &a->scratch.scores, &a->scratch.rows,
                             &a->scratch.queries, &a->outputs,        &a->largest,        &a->sum};
    uint64_t used = FETCHING / sizeof(float);
    a->scratch.fetch = (fetching *)(void *)at;
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        *parts[i] = at ? (float *)(void *)at + used : NULL;
        used += (uint64_t)floats[i];
    }
    return used * sizeof(float);
}

/* ---- a tile of keys ---- */

static int32_t queries_of(const attention *a) {
    return (a->last - a->first) * a->ratio;
}

/* With one group of queries values are decoded when the keys have been used, to where they were: one of them
 * fits L1, both do not. More groups need both until the last is done. */
static float *values_of(const attention *a) {
    return queries_of(a) <= TILE_QUERIES ? a->scratch.keys : a->scratch.values;
}

/* Rows [from, to) of a tile as they lie in the cache. */
typedef struct cached_rows {
    const unsigned char *rows;
    uint64_t bytes; /* of a row */
    int32_t from, to;
    fetching *fetch;
} cached_rows;

/* Half of the next tile is fetched while rows are decoded, the rest in the products. */
SL_ALWAYS_INLINE void decode_row(const sl_qtype type, const cached_rows *cached, int32_t j, int32_t size,
                                 float *out) {
    const unsigned char *row = cached->rows + (uint64_t)j * cached->bytes;
    for (uint64_t i = 0; i < cached->bytes; i += 128) {
        fetch_line(cached->fetch);
    }
    for (int32_t i = 0; i < size; i += VN) {
        vf_store(out + i, vf_decode(type, row, i));
    }
}

/* Keys j .. j + VN - 1, of which some may be outside. */
SL_ALWAYS_INLINE void decode_key_rows(const attention *a, const sl_qtype type, const cached_rows *keys,
                                      int32_t j) {
    const int32_t size = a->group->key_size;
    for (int32_t i = 0; i < VN; i++) {
        if (j + i >= keys->from && j + i < keys->to) {
            decode_row(type, keys, j + i, size, a->scratch.rows + i * size);
        }
    }
    for (int32_t d = 0; d < size; d += VN) {
        vf_transpose(a->scratch.rows + d, size, a->scratch.keys + d * SL_PAGE_TOKENS + j, SL_PAGE_TOKENS);
    }
}

SL_ALWAYS_INLINE void decode_keys(const attention *a, const sl_qtype type, const cached_rows *keys) {
    for (int32_t j = keys->from / VN * VN; j < keys->to; j += VN) {
        if (type != SL_QTYPE_F16 && type != SL_QTYPE_BF16) {
            decode_key_rows(a, type, keys, j);
            continue;
        }
        /* Numbers of 16 bits are transposed in pairs, from where they lie: half the work. */
        const unsigned char *rows = keys->rows + (uint64_t)j * keys->bytes;
        for (int32_t d = 0; d < a->group->key_size; d += 8) {
            fetch_line(keys->fetch);
            fetch_line(keys->fetch);
            vf_transpose_16(type, rows + d * 2, keys->bytes, a->scratch.keys + d * SL_PAGE_TOKENS + j,
                            SL_PAGE_TOKENS);
        }
    }
}

SL_ALWAYS_INLINE void decode_values(const attention *a, const sl_qtype type, const cached_rows *values) {
    const int32_t size = a->group->value_size;
    for (int32_t j = values->from; j < values->to; j++) {
        decode_row(type, values, j, size, values_of(a) + j * size);
    }
}

#define DECODE(type, what)                                                                                   \
    case SL_QTYPE_##type:                                                                                    \
        decode_##what(a, SL_QTYPE_##type, rows);                                                             \
        break;
/* Keys or values of a tile; those next to them keep what was there, and nothing uses it. */
#define DECODE_TILE(what)                                                                                    \
    static void decode_tile_##what(const attention *a, const cached_rows *rows) {                            \
        switch (a->type) {                                                                                   \
            DECODE(F32, what)                                                                                \
            DECODE(F16, what)                                                                                \
            DECODE(BF16, what)                                                                               \
            DECODE(FP8, what)                                                                                \
        default:                                                                                             \
            decode_##what(a, SL_QTYPE_Q8_0, rows);                                                           \
            break;                                                                                           \
        }                                                                                                    \
    }
DECODE_TILE(keys)
DECODE_TILE(values)

/* Scales one query's scores, -infinity outside [from, to); returns the largest. */
SL_ALWAYS_INLINE float finish_scores(const sl_op_attention *parameters, float *scores, int32_t from,
                                     int32_t to) {
    const bool all = from == 0 && to == SL_PAGE_TOKENS;
    vf top = vf_set1(-INFINITY);
    SL_UNROLL for (int v = 0; v < SL_PAGE_TOKENS / VN; v++) {
        vf s = vf_mul(vf_load(scores + v * VN), vf_set1(parameters->scale));
        if (parameters->softcap > 0) {
            const vf cap = vf_set1(parameters->softcap);
            s = vf_mul(cap, vf_tanh(vf_div(s, cap)));
        }
        if (!all) {
            s = vf_select(s, from - v * VN, to - v * VN, vf_set1(-INFINITY));
        }
        vf_store(scores + v * VN, s);
        top = vf_max(s, top); /* a NaN leaves top as it was */
    }
    return vf_largest(top);
}

/* Turns one query's scores into probabilities relative to exp(largest), 0 outside [from, to); returns their
 * sum. */
SL_ALWAYS_INLINE float soften(float *scores, float largest, int32_t from, int32_t to) {
    const bool all = from == 0 && to == SL_PAGE_TOKENS;
    vf total = vf_zero();
    SL_UNROLL for (int v = 0; v < SL_PAGE_TOKENS / VN; v++) {
        vf p = vf_exp(vf_sub(vf_load(scores + v * VN), vf_set1(largest)));
        if (!all) {
            p = vf_select(p, from - v * VN, to - v * VN, vf_zero());
        }
        vf_store(scores + v * VN, p);
        total = vf_add(total, p);
    }
    return vf_sum(total);
}

/* Scores of `count` queries to probabilities; what the queries have so far is rescaled. */
static void soften_all(const attention *a, int32_t query, int32_t count, const int32_t *from,
                       const int32_t *to) {
    const int32_t size = a->group->value_size;
    float *scores = a->scratch.scores;
    float changes[VN] = {0};
    for (int32_t i = 0; i < count; i++) {
        const float old = a->largest[query + i];
        const float top = finish_scores(a->parameters, scores + i * SL_PAGE_TOKENS, from[i], to[i]);
        a->largest[query + i] = top > old ? top : old;
        changes[i] = old - a->largest[query + i];
    }
    vf_store(changes, vf_exp(vf_load(changes)));
    for (int32_t i = 0; i < count; i++) {
        const vf factor = vf_set1(changes[i]);
        float *y = a->outputs + (query + i) * size;
        for (int32_t d = 0; d < size; d += VN) {
            vf_store(y + d, vf_mul(vf_load(y + d), factor));
        }
        const float sum = soften(scores + i * SL_PAGE_TOKENS, a->largest[query + i], from[i], to[i]);
        a->sum[query + i] = a->sum[query + i] * changes[i] + sum;
    }
}

/* Adds values by probability. What only some of the queries see is added for those alone: another row's value
 * must not even meet a factor of zero, it could be infinite. */
static void add_values(const attention *a, int32_t query, int32_t count, const int32_t *from,
                       const int32_t *to) {
    const int32_t size = a->group->value_size;
    int32_t start = from[0], end = to[0];
    for (int32_t i = 1; i < count; i++) {
        start = from[i] > start ? from[i] : start;
        end = to[i] < end ? to[i] : end;
    }
    end = end < start ? start : end;
    product all = {.a = a->scratch.scores,
                   .b = values_of(a),
                   .c = a->outputs + query * size,
                   .a_stride = SL_PAGE_TOKENS,
                   .b_stride = size,
                   .c_stride = size,
                   .fetch = a->scratch.fetch};
    for (int32_t i = 0; i < count; i++) {
        product own = all;
        own.a += i * SL_PAGE_TOKENS;
        own.c += i * size;
        own.from = from[i];
        own.to = to[i] < start ? to[i] : start;
        if (own.from < own.to) {
            multiply_wide(own, 1, size);
        }
    }
    all.from = start;
    all.to = end;
    if (start < end) {
        multiply_wide(all, count, size);
    }
    for (int32_t i = 0; i < count; i++) {
        product own = all;
        own.a += i * SL_PAGE_TOKENS;
        own.c += i * size;
        own.from = from[i] > end ? from[i] : end;
        own.to = to[i];
        if (own.from < own.to) {
            multiply_wide(own, 1, size);
        }
    }
}

/* What is done with queries [query, query + count) of the block, at most TILE_QUERIES, and the tile at
 * `base`, of which each sees some. */
typedef void (*with_queries)(const attention *a, int32_t query, int32_t count, int32_t base);

static void score(const attention *a, int32_t query, int32_t count, int32_t base) {
    int32_t from[TILE_QUERIES], to[TILE_QUERIES];
    const product scores = {.a = a->scratch.queries + query * a->group->key_size,
                            .b = a->scratch.keys,
                            .c = a->scratch.scores,
                            .a_stride = a->group->key_size,
                            .b_stride = SL_PAGE_TOKENS,
                            .c_stride = SL_PAGE_TOKENS,
                            .to = a->group->key_size,
                            .from_zero = true,
                            .fetch = a->scratch.fetch};
    int32_t end = 0;
    for (int32_t i = 0; i < count; i++) {
        seen_keys(a, query + i, base, &from[i], &to[i]);
        end = to[i] > end ? to[i] : end;
    }
    multiply_wide(scores, count, (end + VN - 1) / VN * VN);
    soften_all(a, query, count, from, to);
}

static void add(const attention *a, int32_t query, int32_t count, int32_t base) {
    int32_t from[TILE_QUERIES], to[TILE_QUERIES];
    for (int32_t i = 0; i < count; i++) {
        seen_keys(a, query + i, base, &from[i], &to[i]);
    }
    add_values(a, query, count, from, to);
}

static void attend(const attention *a, int32_t query, int32_t count, int32_t base) {
    score(a, query, count, base);
    add(a, query, count, base);
}

/* All queries of the block; those that see nothing of the tile lie at either end. */
static void for_all(const attention *a, int32_t base, with_queries function) {
    const int32_t queries = queries_of(a);
    int32_t query = 0, from, to;
    while (query < queries) {
        int32_t count = 0;
        while (query + count < queries && count < TILE_QUERIES) {
            seen_keys(a, query + count, base, &from, &to);
            if (from >= to) {
                break;
            }
            count++;
        }
        if (count > 0) {
            function(a, query, count, base);
            query += count;
        } else {
            query++;
        }
    }
}

static void attend_tile(const attention *a, const sl_cpu_cache *cache, int32_t tile, int32_t from,
                        int32_t to) {
    const int32_t base = tile * SL_PAGE_TOKENS;
    const cached_rows keys = {sl_cpu_page_keys(cache, tile, a->kv_head), cache->key_bytes, from, to,
                              a->scratch.fetch};
    const cached_rows values = {sl_cpu_page_values(cache, tile, a->kv_head), cache->value_bytes, from, to,
                                a->scratch.fetch};
    start_fetching(a, cache);
    decode_tile_keys(a, &keys);
    if (values_of(a) == a->scratch.keys) {
        for_all(a, base, score);
        decode_tile_values(a, &values);
        for_all(a, base, add);
    } else {
        decode_tile_values(a, &values);
        for_all(a, base, attend);
    }
}

/* ---- rows ---- */

static void start_queries(const attention *a, int32_t queries) {
    for (int32_t query = 0; query < queries; query++) {
        const float *sink = sink_of(a, query);
        memcpy(a->scratch.queries + query * a->group->key_size, query_of(a, query),
               (size_t)a->group->key_size * sizeof(float));
        a->largest[query] = sink ? *sink : -INFINITY;
        a->sum[query] = sink ? 1.0f : 0.0f;
    }
    memset(a->outputs, 0, (size_t)(queries * a->group->value_size) * sizeof(float));
}

SL_TIER_RUN(attention) {
    attend_all_blocks(context, op, sl_cpu_scratch(op, thread, threads), threads);
}

#endif
