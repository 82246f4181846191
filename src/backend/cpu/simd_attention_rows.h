/* What the tiers' kernels of attention share: who computes which rows, what a row sees, and how it ends. The
 * kernel defines BLOCK_QUERIES and the type tile_scratch before it includes this, then the functions declared
 * here first. Rows share a tile: a block is some rows of a sequence times the query heads of one key head,
 * all of which read the tile that was decoded once. */
#ifndef SL_BACKEND_CPU_SIMD_ATTENTION_ROWS_H
#define SL_BACKEND_CPU_SIMD_ATTENTION_ROWS_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/simd_math.h"
#include "program/window.h"

#include <math.h>
#include <string.h>

typedef struct attention {
    const sl_cpu_context *context;
    const sl_cpu_op *op;
    const sl_op_attention *parameters;
    const sl_cache_group *group;
    sl_qtype type;
    int32_t ratio, block_rows;
    tile_scratch scratch;
    float *outputs;       /* [queries][output_stride] */
    float *largest, *sum; /* [queries] */
    /* the block: rows [first, last) of the span */
    const sl_step_span *span;
    int32_t first, last, kv_head;
    /* Keys and values of the tile that this thread will want next, perhaps of another block; NULL: not known.
     */
    const unsigned char *next_keys, *next_values;
} attention;

/* Sets scratch, outputs, largest and sum to parts of what is at `at`; returns how many bytes they are. */
static uint64_t lay_out(attention *a, unsigned char *at);

/* Why a cache of this type is not taken; NULL where it is. */
static const char *cache_declined(sl_qtype type);

/* Floats from a query's output to the next, at least value_size. */
static int32_t output_stride(const attention *a);

/* Makes the block's queries ready, with nothing seen yet. */
static void start_queries(const attention *a, int32_t queries);

/* The block's rows against a tile of keys that is there, of which they see keys [from, to), some more, some
 * less. */
static void attend_tile(const attention *a, const sl_cpu_cache *cache, int32_t tile, int32_t from,
                        int32_t to);

static void set_shape(attention *a, const sl_cache_group *group, int32_t heads) {
    a->group = group;
    a->ratio = heads / group->kv_heads;
    a->block_rows = a->ratio < BLOCK_QUERIES ? BLOCK_QUERIES / a->ratio : 1;
}

SL_TIER_WORKSPACE(attention) {
    (void)kernel;
    const sl_op_attention *parameters = &query->op->u.attention;
    attention a = {.parameters = parameters};
    set_shape(&a, &query->program->groups[parameters->place.group], parameters->heads);
    return sl_cpu_scratch_bytes(query, lay_out(&a, NULL));
}

SL_TIER_DECLINES(attention) {
    (void)kernel;
    const char *needs = sl_cpu_needs(query, SL_TIER_ISA);
    if (needs) {
        return needs;
    }
    const sl_cache_group *group = &query->program->groups[query->op->u.attention.place.group];
    return group->key_size % VN || group->value_size % VN ? "takes head sizes that fill its vectors"
                                                          : cache_declined(query->cache_type);
}

/* A thread's place in the list of blocks; numbers only rise. */
typedef struct attention_walk {
    int32_t span, before; /* blocks of the spans before this one */
} attention_walk;

/* Block `index`; false past the end. */
static bool find_block(attention *a, attention_walk *walk, int32_t index) {
    for (; walk->span < a->context->header->spans; walk->span++) {
        const sl_step_span *span = &a->context->spans[walk->span];
        const int32_t blocks = (span->row_count + a->block_rows - 1) / a->block_rows;
        const int32_t i = index - walk->before;
        if (i < blocks * a->group->kv_heads) {
            /* The last rows first: they have the most keys. */
            a->span = span;
            a->kv_head = i % a->group->kv_heads;
            a->first = (blocks - 1 - i / a->group->kv_heads) * a->block_rows;
            a->last = a->first + a->block_rows < span->row_count ? a->first + a->block_rows : span->row_count;
            return true;
        }
        walk->before += blocks * a->group->kv_heads;
    }
    return false;
}

/* ---- what is seen ---- */

static int32_t clamp_key(int32_t value) {
    return value < 0 ? 0 : value > SL_PAGE_TOKENS ? SL_PAGE_TOKENS : value;
}

/* First index that the row at `index` sees. */
static int32_t first_seen(const attention *a, int32_t index) {
    const int32_t least = a->parameters->first, first = sl_first_seen(sl_group_window(a->group), index);
    return first > least ? first : least;
}

/* Behind the last index that the row at `index` of the block's span sees. */
static int32_t seen_end(const attention *a, int32_t index) {
    const int32_t end = a->span->length[a->parameters->place.group] + a->span->row_count;
    if (!a->parameters->both_sides) {
        return index + 1;
    }
    return a->group->window > 0 && end - index > a->group->window ? index + a->group->window : end;
}

/* Of the tile that starts at index `base`, what query `query` of the block sees. */
static void seen_keys(const attention *a, int32_t query, int32_t base, int32_t *from, int32_t *to) {
    const int32_t index = a->span->length[a->parameters->place.group] + a->first + query / a->ratio;
    *from = clamp_key(first_seen(a, index) - base);
    *to = clamp_key(seen_end(a, index) - base);
}

/* ---- rows ---- */

static const float *query_of(const attention *a, int32_t query) {
    const int32_t row = a->span->first_row + a->first + query / a->ratio;
    const int32_t head = a->kv_head * a->ratio + query % a->ratio;
    return sl_cpu_f32(&a->op->in[0], row) + head * a->parameters->q_stride;
}

/* NULL when there are none. */
static const float *sink_of(const attention *a, int32_t query) {
    const float *sinks = (const float *)(const void *)a->op->weights[0].data;
    return sinks ? sinks + a->kv_head * a->ratio + query % a->ratio : NULL;
}

/* Zeros are positive: those of keys that a row does not see must not tell by their sign. */
static void finish_queries(const attention *a, int32_t queries) {
    const int32_t size = a->group->value_size;
    for (int32_t query = 0; query < queries; query++) {
        const int32_t row = a->span->first_row + a->first + query / a->ratio;
        const int32_t head = a->kv_head * a->ratio + query % a->ratio;
        const sl_cpu_operand *gates = &a->op->in[1];
        const float *gate = gates->data ? sl_cpu_f32(gates, row) + head * a->parameters->gate_stride : NULL;
        const float *from = a->outputs + query * output_stride(a);
        float *y = sl_cpu_f32(&a->op->out[0], row) + head * size;
        const vf factor = vf_set1(a->sum[query] == 0.0f ? 0.0f : 1.0f / a->sum[query]);
        for (int32_t i = 0; i < size; i += VN) {
            vf result = vf_mul(vf_add(vf_load(from + i), vf_zero()), factor);
            if (gate) {
                result = vf_mul(result, vf_sigmoid(vf_load(gate + i)));
            }
            vf_store(y + i, result);
        }
    }
}

/* The first and the last tile that rows of the block see. */
static void seen_tiles(const attention *a, int32_t *first, int32_t *last) {
    const int32_t length = a->span->length[a->parameters->place.group];
    *first = first_seen(a, length + a->first) / SL_PAGE_TOKENS;
    *last = (seen_end(a, length + a->last - 1) - 1) / SL_PAGE_TOKENS;
}

/* What comes behind a tile: the block's next, or the first of the block that is likely to be this thread's
 * next; NULL: there is none. */
static void look_ahead(attention *a, const attention *next, int32_t tile) {
    int32_t first, last;
    seen_tiles(a, &first, &last);
    const attention *block = tile < last ? a : next;
    a->next_keys = a->next_values = NULL;
    if (block) {
        const sl_cpu_cache cache = sl_cpu_cache_of(a->context, a->parameters->place, block->span->slot);
        seen_tiles(block, &first, &last);
        const int32_t ahead = block == a ? tile + 1 : first;
        a->next_keys = sl_cpu_page_keys(&cache, ahead, block->kv_head);
        a->next_values = sl_cpu_page_values(&cache, ahead, block->kv_head);
    }
}

static void attend_block(attention *a, const attention *next) {
    const sl_cpu_cache cache = sl_cpu_cache_of(a->context, a->parameters->place, a->span->slot);
    const int32_t length = a->span->length[a->parameters->place.group];
    const int32_t queries = (a->last - a->first) * a->ratio;
    const int32_t lowest = first_seen(a, length + a->first);
    const int32_t highest = seen_end(a, length + a->last - 1) - 1;
    start_queries(a, queries);
    for (int32_t tile = lowest / SL_PAGE_TOKENS; tile <= highest / SL_PAGE_TOKENS; tile++) {
        const int32_t base = tile * SL_PAGE_TOKENS;
        if (cache.table[tile] >= 0) { /* else the step's maker left the page out */
            look_ahead(a, next, tile);
            attend_tile(a, &cache, tile, clamp_key(lowest - base), clamp_key(highest + 1 - base));
        }
    }
    finish_queries(a, queries);
}

static void attend_all_blocks(const sl_cpu_context *context, const sl_cpu_op *op, unsigned char *scratch,
                              int threads) {
    attention a = {.context = context, .op = op, .parameters = &op->op->u.attention};
    const sl_cache_place place = a.parameters->place;
    attention_walk walk = {0, 0};
    a.type = context->deployment->caches[place.group].type;
    set_shape(&a, &context->program->groups[place.group], a.parameters->heads);
    lay_out(&a, scratch);
    for (int32_t index; index = sl_cpu_take(op, 0, 1), find_block(&a, &walk, index);) {
        attention next = a;
        attention_walk ahead = walk;
        attend_block(&a, find_block(&next, &ahead, index + threads) ? &next : NULL);
    }
}

#endif
