/* Which keys a sequence keeps behind its prompt, and their copies (sl_op_compact).
 *
 * Class "f32": the cache decoded to f32, keys in tiles of 64 in rising order, queries in the order of rows
 * and then of heads. Per query and tile the largest score and the sum of exp(score - largest), key after key;
 * the tiles' sums are added in order, each times exp(its largest - the largest of all). A key's score is the
 * sum over the queries of exp(score - largest) * (1 / sum). */
#include "backend/cpu/plain/plain.h"

#include <math.h>
#include <string.h>

typedef struct softmax {
    float largest, sum;
} softmax;

typedef struct compaction {
    const sl_cpu_context *context;
    const sl_cpu_op *op;
    const sl_op_attention *attention;
    const sl_cache_group *group;
    const sl_qtype_info *type;
    sl_cpu_cache source, target;
    int32_t rows, keys;     /* of the step / of the sequence, the rows' own included */
    int32_t tiles;          /* of keys */
    int32_t ratio, queries; /* query heads of a key head / of those times rows */
    softmax *parts;         /* [kv_heads][tiles][queries] */
    softmax *wholes;        /* [kv_heads][queries] */
    float *scores;          /* [kv_heads][context] */
    uint32_t *kept;         /* [kv_heads][context] */
    float *tile;            /* a thread's: decoded keys [64][key_size] */
} compaction;

/* Bytes of what all threads share; where each of its arrays begins. */
typedef struct shared_layout {
    uint64_t parts, wholes, scores, kept, bytes;
} shared_layout;

static shared_layout layout_of(const sl_op_attention *attention, const sl_cache_group *group, int32_t rows,
                               int32_t context) {
    const uint64_t queries = (uint64_t)(attention->heads / group->kv_heads) * (uint64_t)rows;
    const uint64_t heads = (uint64_t)group->kv_heads, keys = (uint64_t)context;
    shared_layout layout = {0};
    layout.wholes = heads * (uint64_t)sl_table_width(context) * queries * sizeof(softmax);
    layout.scores = layout.wholes + heads * queries * sizeof(softmax);
    layout.kept = layout.scores + heads * keys * sizeof(float);
    layout.bytes = (layout.kept + heads * keys * sizeof(uint32_t) + 63) / 64 * 64;
    return layout;
}

static uint64_t tile_bytes(const sl_cache_group *group) {
    return ((uint64_t)SL_PAGE_TOKENS * (uint64_t)group->key_size * sizeof(float) + 63) / 64 * 64;
}

uint64_t sl_plain_compact_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_op_attention *attention = &query->op->u.compact.attention;
    const sl_cache_group *group = &query->program->groups[attention->place.group];
    return layout_of(attention, group, query->rows[SL_ROWS_STEP], query->limits->context).bytes +
           (uint64_t)query->backend->options.threads * tile_bytes(group);
}

static compaction begin(const sl_cpu_context *context, const sl_cpu_op *op, int thread) {
    const sl_op_attention *attention = &op->op->u.compact.attention;
    const sl_step_span *span = &context->spans[0];
    compaction c = {.context = context, .op = op, .attention = attention};
    c.group = &context->program->groups[attention->place.group];
    c.type = sl_qtype_get(context->deployment->caches[attention->place.group].type);
    c.source = sl_cpu_cache_of(context, attention->place, span->slot);
    c.target = sl_cpu_cache_of(context, attention->place, context->deployment->limits.sequences);
    c.rows = span->row_count;
    c.keys = span->length[attention->place.group] + span->row_count;
    c.tiles = (c.keys + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS;
    c.ratio = attention->heads / c.group->kv_heads;
    c.queries = c.ratio * c.rows;
    const shared_layout layout = layout_of(attention, c.group, c.rows, context->deployment->limits.context);
    c.parts = (softmax *)(void *)op->scratch;
    c.wholes = (softmax *)(void *)(op->scratch + layout.wholes);
    c.scores = (float *)(void *)(op->scratch + layout.scores);
    c.kept = (uint32_t *)(void *)(op->scratch + layout.kept);
    c.tile = (float *)(void *)(op->scratch + layout.bytes + (uint64_t)thread * tile_bytes(c.group));
    return c;
}

/* Keys of the tile that the sequence has; 0 where there is no page. */
static int32_t decode_tile(const compaction *c, int32_t head, int32_t tile) {
    const unsigned char *keys = sl_cpu_page_keys(&c->source, tile, head);
    const int32_t rest = c->keys - tile * SL_PAGE_TOKENS,
                  count = rest < SL_PAGE_TOKENS ? rest : SL_PAGE_TOKENS;
    for (int32_t j = 0; keys && j < count; j++) {
        c->type->decode(keys + (uint64_t)j * c->source.key_bytes, c->tile + j * c->group->key_size,
                        (uint64_t)c->group->key_size);
    }
    return keys ? count : 0;
}

static float score_of(const compaction *c, int32_t head, int32_t query, int32_t key) {
    const sl_op_attention *attention = c->attention;
    const float *q = sl_cpu_f32(&c->op->in[0], query / c->ratio) +
                     (head * c->ratio + query % c->ratio) * attention->q_stride;
    const float score =
        sl_plain_dot(q, c->tile + key * c->group->key_size, c->group->key_size) * attention->scale;
    return attention->softcap > 0 ? attention->softcap * tanhf(score / attention->softcap) : score;
}

/* Keys of the tile that the row of a query sees. */
static int32_t seen(const compaction *c, int32_t query, int32_t tile, int32_t count) {
    const int32_t end = c->keys - c->rows + query / c->ratio + 1 - tile * SL_PAGE_TOKENS;
    return end < 0 ? 0 : end < count ? end : count;
}

static void sum_tile(const compaction *c, int32_t head, int32_t tile) {
    const int32_t count = decode_tile(c, head, tile);
    softmax *parts = c->parts + ((int64_t)head * c->tiles + tile) * c->queries;
    for (int32_t query = 0; query < c->queries; query++) {
        float scores[SL_PAGE_TOKENS], largest = -INFINITY, sum = 0;
        const int32_t end = seen(c, query, tile, count);
        for (int32_t j = 0; j < end; j++) {
            scores[j] = score_of(c, head, query, j);
            largest = scores[j] > largest ? scores[j] : largest;
        }
        for (int32_t j = 0; j < end; j++) {
            sum += expf(scores[j] - largest);
        }
        parts[query] = (softmax){largest, sum};
    }
}

static void join_tiles(const compaction *c, int32_t head, int32_t query) {
    const softmax *parts = c->parts + (int64_t)head * c->tiles * c->queries + query;
    const float *sinks = (const float *)(const void *)c->op->weights[0].data;
    const float sink = sinks ? sinks[head * c->ratio + query % c->ratio] : -INFINITY;
    float largest = sink, sum = 0;
    for (int32_t tile = 0; tile < c->tiles; tile++) {
        const float own = parts[(int64_t)tile * c->queries].largest;
        largest = own > largest ? own : largest;
    }
    sum += sinks ? expf(sink - largest) : 0;
    for (int32_t tile = 0; tile < c->tiles; tile++) {
        const softmax *part = &parts[(int64_t)tile * c->queries];
        sum += part->sum > 0 ? part->sum * expf(part->largest - largest) : 0;
    }
    c->wholes[(int64_t)head * c->queries + query] = (softmax){largest, sum};
}

/* Scores of the keys in front of the rows' own. */
static void score_tile(const compaction *c, int32_t head, int32_t tile) {
    const int32_t count = decode_tile(c, head, tile), first = tile * SL_PAGE_TOKENS;
    float *scores = c->scores + (int64_t)head * c->context->deployment->limits.context + first;
    const int32_t rest = c->keys - c->rows - first, end = rest < SL_PAGE_TOKENS ? rest : SL_PAGE_TOKENS;
    for (int32_t j = 0; j < end; j++) {
        scores[j] = 0;
    }
    for (int32_t query = 0; query < c->queries; query++) {
        const softmax *whole = &c->wholes[(int64_t)head * c->queries + query];
        const float factor = whole->sum > 0 ? 1.0f / whole->sum : 0;
        for (int32_t j = 0; j < end && j < count; j++) {
            scores[j] += expf(score_of(c, head, query, j) - whole->largest) * factor;
        }
    }
}

/* In the order of numbers that are not negative. */
static uint32_t pooled(const float *scores, int32_t count, int32_t reach, int32_t key) {
    const int32_t first = key > reach ? key - reach : 0;
    const int32_t last = key + reach < count ? key + reach : count - 1;
    uint32_t largest = 0;
    for (int32_t j = first; j <= last; j++) {
        uint32_t bits;
        memcpy(&bits, &scores[j], sizeof bits);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

static int32_t count_reached(const uint32_t *scores, int32_t count, uint32_t least) {
    int32_t reached = 0;
    for (int32_t j = 0; j < count; j++) {
        reached += scores[j] >= least;
    }
    return reached;
}

/* The keys that one head keeps, bit after bit of the least of their pooled scores. */
static void select_keys(const compaction *c, int32_t head) {
    const int32_t context = c->context->deployment->limits.context, reach = c->op->op->u.compact.pool / 2;
    const int32_t candidates = c->keys - c->rows, keep = c->op->op->u.compact.keep;
    const int32_t wanted = (keep < c->keys ? keep : c->keys) - c->rows;
    const float *scores = c->scores + (int64_t)head * context;
    uint32_t *kept = c->kept + (int64_t)head * context;
    for (int32_t j = 0; j < candidates; j++) {
        kept[j] = pooled(scores, candidates, reach, j);
    }
    uint32_t least = 0; /* the largest that at least `wanted` reach */
    for (int bit = 31; bit >= 0; bit--) {
        const uint32_t trial = least | UINT32_C(1) << bit;
        least = count_reached(kept, candidates, trial) >= wanted ? trial : least;
    }
    const int32_t above = least < UINT32_MAX ? count_reached(kept, candidates, least + 1) : 0;
    int32_t count = 0;
    for (int32_t j = 0, equal = wanted - above; j < candidates; j++) {
        const uint32_t score = kept[j];
        if (score > least || (score == least && equal-- > 0)) {
            kept[count++] = (uint32_t)j; /* at most j so far */
        }
    }
    for (int32_t j = candidates; j < c->keys; j++) {
        kept[count++] = (uint32_t)j;
    }
}

static void copy_keys(const compaction *c, int32_t head, int32_t tile) {
    const int32_t keep = c->op->op->u.compact.keep, all = keep < c->keys ? keep : c->keys;
    const uint32_t *kept = c->kept + (int64_t)head * c->context->deployment->limits.context;
    const int32_t first = tile * SL_PAGE_TOKENS,
                  end = first + SL_PAGE_TOKENS < all ? first + SL_PAGE_TOKENS : all;
    for (int32_t to = first; to < end; to++) {
        const int32_t from = (int32_t)kept[to], at = from % SL_PAGE_TOKENS, place = to % SL_PAGE_TOKENS;
        const unsigned char *keys = sl_cpu_page_keys(&c->source, from / SL_PAGE_TOKENS, head);
        unsigned char *copy = sl_cpu_page_keys(&c->target, tile, head);
        if (!keys || !copy) {
            continue;
        }
        memcpy(copy + (uint64_t)place * c->target.key_bytes, keys + (uint64_t)at * c->source.key_bytes,
               c->source.key_bytes);
        if (!c->group->values_are_keys) {
            memcpy(sl_cpu_page_values(&c->target, tile, head) + (uint64_t)place * c->target.value_bytes,
                   sl_cpu_page_values(&c->source, from / SL_PAGE_TOKENS, head) +
                       (uint64_t)at * c->source.value_bytes,
                   c->source.value_bytes);
        }
    }
}

void sl_plain_compact(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    if (!context->header->compact) {
        return;
    }
    const compaction c = begin(context, op, thread);
    const int32_t heads = c.group->kv_heads, keep = op->op->u.compact.keep;
    const int32_t copies = (keep + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS;
    int32_t first, last;
    for (int32_t unit; (unit = sl_cpu_take(op, 0, 1)) < heads * c.tiles;) {
        sum_tile(&c, unit % heads, unit / heads);
    }
    sl_pool_barrier(context->pool);
    sl_cpu_share(heads * c.queries, thread, threads, &first, &last);
    for (int32_t unit = first; unit < last; unit++) {
        join_tiles(&c, unit / c.queries, unit % c.queries);
    }
    sl_pool_barrier(context->pool);
    for (int32_t unit; (unit = sl_cpu_take(op, 1, 1)) < heads * c.tiles;) {
        score_tile(&c, unit % heads, unit / heads);
    }
    sl_pool_barrier(context->pool);
    sl_cpu_share(heads, thread, threads, &first, &last);
    for (int32_t head = first; head < last; head++) {
        select_keys(&c, head);
    }
    sl_pool_barrier(context->pool);
    sl_cpu_share(heads * copies, thread, threads, &first, &last);
    for (int32_t unit = first; unit < last; unit++) {
        copy_keys(&c, unit % heads, unit / heads);
    }
}
