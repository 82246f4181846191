/* Page tables, cache writes and attention. */
#include "backend/cpu/plain/plain.h"
#include "program/window.h"

#include <math.h>
#include <string.h>

void sl_plain_begin(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    (void)op;
    for (int32_t i = 0; i < context->header->page_copies; i++) {
        const sl_page_copy *copy = &context->page_copies[i];
        const uint64_t bytes = context->deployment->caches[copy->group].page_bytes;
        const uint64_t first = bytes * (uint64_t)thread / (uint64_t)threads;
        const uint64_t last = bytes * (uint64_t)(thread + 1) / (uint64_t)threads;
        unsigned char *pages = context->caches[copy->group];
        memcpy(pages + (uint64_t)copy->target * bytes + first, pages + (uint64_t)copy->source * bytes + first,
               last - first);
    }
    if (thread == 0) {
        for (int32_t i = 0; i < context->header->table_changes; i++) {
            const sl_table_change *change = &context->table_changes[i];
            context->tables[change->group][(int64_t)change->slot * context->table_width + change->index] =
                change->page;
        }
    }
}

void sl_plain_cache_write(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const sl_cache_place place = op->op->u.cache_write.place;
    const sl_cache_group *group = &context->program->groups[place.group];
    const sl_qtype_info *type = sl_qtype_get(context->deployment->caches[place.group].type);
    int32_t first, last;
    sl_cpu_share(context->counts[SL_ROWS_STEP], thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        const sl_step_span *span = &context->spans[context->rows[row].span];
        const int32_t index = span->length[place.group] + row - span->first_row;
        const sl_cpu_cache cache = sl_cpu_cache_of(context, place, span->slot);
        for (int32_t head = 0; head < group->kv_heads; head++) {
            unsigned char *keys = sl_cpu_page_keys(&cache, index / SL_PAGE_TOKENS, head);
            unsigned char *values = sl_cpu_page_values(&cache, index / SL_PAGE_TOKENS, head);
            if (!keys) {
                continue; /* no page: the step's maker left it out; nothing else must be hurt */
            }
            type->encode(sl_cpu_f32(&op->in[0], row) + head * group->key_size,
                         keys + (uint64_t)(index % SL_PAGE_TOKENS) * cache.key_bytes,
                         (uint64_t)group->key_size);
            if (!group->values_are_keys) {
                type->encode(sl_cpu_f32(&op->in[1], row) + head * group->value_size,
                             values + (uint64_t)(index % SL_PAGE_TOKENS) * cache.value_bytes,
                             (uint64_t)group->value_size);
            }
        }
    }
}

void sl_plain_recall(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const sl_cache_place place = op->op->u.recall.place;
    const sl_cache_group *group = &context->program->groups[place.group];
    const sl_qtype_info *type = sl_qtype_get(context->deployment->caches[place.group].type);
    int32_t first, last;
    sl_cpu_share(context->counts[SL_ROWS_STEP], thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        const sl_step_span *span = &context->spans[context->rows[row].span];
        const int32_t index = span->length[place.group] + row - span->first_row - 1;
        const sl_cpu_cache cache = sl_cpu_cache_of(context, place, span->slot);
        for (int32_t head = 0; head < group->kv_heads; head++) {
            float *y = sl_cpu_f32(&op->out[0], row) + head * group->key_size;
            const unsigned char *keys =
                index < 0 ? NULL : sl_cpu_page_keys(&cache, index / SL_PAGE_TOKENS, head);
            if (keys) {
                type->decode(keys + (uint64_t)(index % SL_PAGE_TOKENS) * cache.key_bytes, y,
                             (uint64_t)group->key_size);
            } else {
                memset(y, 0, (size_t)group->key_size * sizeof *y);
            }
        }
    }
}

/* ---- attention ----
 *
 * Class "tile64/f32": the cache decoded to f32, q as it is. Keys in tiles of 64, at multiples of 64 of their
 * index in the sequence, in rising order; a tile of which a row sees nothing is skipped. Per row, head and
 * tile: scores as sl_plain_dot(q, k) * scale, softcap; m' = max(m, scores); l and y are multiplied by exp(m -
 * m'); then key after key p = exp(score - m'), l += p, y += p * v. It starts with m = -infinity, l = 0, or m
 * = sink, l = 1. At the end y *= 1 / l, then y *= sigmoid(gate). So the bits do not depend on which rows are
 * in the step. */

enum { BLOCK_ROWS = 16 }; /* rows of a span that share the decoded tile */

typedef struct head_state {
    float largest, sum;
} head_state;

typedef struct attention_scratch {
    float *keys, *values; /* [64][key_size], [64][value_size] */
    float *scores;        /* [64] */
    head_state *states;   /* [BLOCK_ROWS][heads / kv_heads] */
} attention_scratch;

uint64_t sl_plain_attention_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_op_attention *attention = &query->op->u.attention;
    const sl_cache_group *group = &query->program->groups[attention->place.group];
    const uint64_t floats = (uint64_t)SL_PAGE_TOKENS * (uint64_t)(group->key_size + group->value_size + 1);
    const uint64_t states = (uint64_t)BLOCK_ROWS * (uint64_t)(attention->heads / group->kv_heads);
    return sl_cpu_scratch_bytes(query, floats * sizeof(float) + states * sizeof(head_state));
}

static attention_scratch scratch_at(void *memory, const sl_cache_group *group) {
    attention_scratch scratch;
    scratch.keys = memory;
    scratch.values = scratch.keys + SL_PAGE_TOKENS * group->key_size;
    scratch.scores = scratch.values + SL_PAGE_TOKENS * group->value_size;
    scratch.states = (head_state *)(void *)(scratch.scores + SL_PAGE_TOKENS);
    return scratch;
}

/* A unit of work: rows [first, last) of a span, for the query heads of one key head. Indices count in the
 * sequence. */
typedef struct block {
    const sl_step_span *span;
    int32_t first, last;
    int32_t kv_head;
} block;

/* Finds unit `unit`; false past the end. */
static bool find_block(const sl_cpu_context *context, const sl_cache_group *group, int32_t unit,
                       block *block) {
    for (int32_t s = 0; s < context->header->spans; s++) {
        const sl_step_span *span = &context->spans[s];
        const int32_t blocks = (span->row_count + BLOCK_ROWS - 1) / BLOCK_ROWS;
        if (unit < blocks * group->kv_heads) {
            /* The last block first: it has the most keys. */
            const int32_t index = blocks - 1 - unit / group->kv_heads;
            block->span = span;
            block->kv_head = unit % group->kv_heads;
            block->first = index * BLOCK_ROWS;
            block->last =
                block->first + BLOCK_ROWS < span->row_count ? block->first + BLOCK_ROWS : span->row_count;
            return true;
        }
        unit -= blocks * group->kv_heads;
    }
    return false;
}

/* First index that the row at `index` sees. */
static int32_t first_seen(const sl_op_attention *attention, const sl_cache_group *group, int32_t index) {
    const int32_t first = sl_first_seen(sl_group_window(group), index);
    return first > attention->first ? first : attention->first;
}

/* Behind the last index that the row at `index` sees, of a span that ends in front of `end`. */
static int32_t seen_end(const sl_op_attention *attention, const sl_cache_group *group, int32_t index,
                        int32_t end) {
    if (!attention->both_sides) {
        return index + 1;
    }
    return group->window > 0 && end - index > group->window ? index + group->window : end;
}

/* Keys [from, to) of tile `index`, which begins at index * SL_PAGE_TOKENS of the sequence. */
typedef struct tile_keys {
    int32_t index, from, to;
} tile_keys;

static int32_t clamp(int32_t value) {
    return value < 0 ? 0 : value > SL_PAGE_TOKENS ? SL_PAGE_TOKENS : value;
}

/* What tile `index` has of the sequence's keys [first, last). */
static tile_keys keys_of_tile(int32_t index, int32_t first, int32_t last) {
    const int32_t base = index * SL_PAGE_TOKENS;
    return (tile_keys){index, clamp(first - base), clamp(last - base)};
}

/* One query head of one row of the step. */
typedef struct query_head {
    int32_t row, head;
    const float *q; /* [key_size] */
    float *y;       /* [value_size] */
    head_state *state;
} query_head;

/* `keys` are of the decoded tile. */
static void attend_tile(const sl_op_attention *attention, const sl_cache_group *group,
                        const attention_scratch *scratch, tile_keys keys, const query_head *query) {
    head_state *state = query->state;
    float *y = query->y, largest = state->largest;
    for (int32_t j = keys.from; j < keys.to; j++) {
        float score =
            sl_plain_dot(query->q, scratch->keys + j * group->key_size, group->key_size) * attention->scale;
        if (attention->softcap > 0) {
            score = attention->softcap * tanhf(score / attention->softcap);
        }
        scratch->scores[j] = score;
        largest = score > largest ? score : largest;
    }
    const float correction = expf(state->largest - largest);
    state->largest = largest;
    state->sum *= correction;
    for (int32_t i = 0; i < group->value_size; i++) {
        y[i] *= correction;
    }
    for (int32_t j = keys.from; j < keys.to; j++) {
        const float p = expf(scratch->scores[j] - largest);
        const float *v = scratch->values + j * group->value_size;
        state->sum += p;
        for (int32_t i = 0; i < group->value_size; i++) {
            y[i] += p * v[i];
        }
    }
}

static void start_row(const sl_cpu_op *op, const sl_cache_group *group, const query_head *query) {
    const float *sinks = (const float *)(const void *)op->weights[0].data;
    query->state->largest = sinks ? sinks[query->head] : -INFINITY;
    query->state->sum = sinks ? 1.0f : 0.0f;
    memset(query->y, 0, (size_t)group->value_size * sizeof *query->y);
}

static void finish_row(const sl_cpu_op *op, const sl_cache_group *group, const query_head *query) {
    const float sum = query->state->sum, factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    const float *gate =
        op->in[1].data ? sl_cpu_f32(&op->in[1], query->row) + query->head * op->op->u.attention.gate_stride
                       : NULL;
    float *y = query->y;
    for (int32_t i = 0; i < group->value_size; i++) {
        y[i] *= factor;
        if (gate) {
            y[i] *= 1.0f / (1.0f + expf(-gate[i]));
        }
    }
}

/* Decodes some keys of a tile, and their values; false when the page is not there. */
static bool decode_tile(const sl_cpu_cache *cache, sl_qtype type, const sl_cache_group *group,
                        int32_t kv_head, tile_keys wanted, const attention_scratch *scratch) {
    const unsigned char *keys = sl_cpu_page_keys(cache, wanted.index, kv_head);
    const unsigned char *values = sl_cpu_page_values(cache, wanted.index, kv_head);
    if (!keys) {
        return false;
    }
    const sl_qtype_info *info = sl_qtype_get(type);
    for (int32_t j = wanted.from; j < wanted.to; j++) {
        info->decode(keys + (uint64_t)j * cache->key_bytes, scratch->keys + j * group->key_size,
                     (uint64_t)group->key_size);
        info->decode(values + (uint64_t)j * cache->value_bytes, scratch->values + j * group->value_size,
                     (uint64_t)group->value_size);
    }
    return true;
}

static void attend_block(const sl_cpu_context *context, const sl_cpu_op *op, const block *block,
                         const attention_scratch *scratch) {
    const sl_op_attention *attention = &op->op->u.attention;
    const sl_cache_group *group = &context->program->groups[attention->place.group];
    const sl_cpu_cache cache = sl_cpu_cache_of(context, attention->place, block->span->slot);
    const sl_qtype type = context->deployment->caches[attention->place.group].type;
    const int32_t ratio = attention->heads / group->kv_heads;
    const int32_t length = block->span->length[attention->place.group];
    const int32_t end = length + block->span->row_count;
    const int32_t lowest = first_seen(attention, group, length + block->first);
    const int32_t highest = seen_end(attention, group, length + block->last - 1, end) - 1;

    for (int32_t phase = lowest / SL_PAGE_TOKENS - 1; phase <= highest / SL_PAGE_TOKENS + 1; phase++) {
        const bool starts = phase<lowest / SL_PAGE_TOKENS, ends = phase> highest / SL_PAGE_TOKENS;
        if (!starts && !ends &&
            !decode_tile(&cache, type, group, block->kv_head, keys_of_tile(phase, lowest, highest + 1),
                         scratch)) {
            continue;
        }
        for (int32_t unit = 0; unit < (block->last - block->first) * ratio; unit++) {
            const int32_t i = block->first + unit / ratio, row = block->span->first_row + i;
            const int32_t head = block->kv_head * ratio + unit % ratio;
            const query_head query = {.row = row,
                                      .head = head,
                                      .q = sl_cpu_f32(&op->in[0], row) + head * attention->q_stride,
                                      .y = sl_cpu_f32(&op->out[0], row) + head * group->value_size,
                                      .state = &scratch->states[unit]};
            const tile_keys keys = keys_of_tile(phase, first_seen(attention, group, length + i),
                                                seen_end(attention, group, length + i, end));
            if (starts) {
                start_row(op, group, &query);
            } else if (ends) {
                finish_row(op, group, &query);
            } else if (keys.from < keys.to) {
                attend_tile(attention, group, scratch, keys, &query);
            }
        }
    }
}

void sl_plain_attention(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const sl_cache_group *group = &context->program->groups[op->op->u.attention.place.group];
    const attention_scratch scratch = scratch_at(sl_cpu_scratch(op, thread, threads), group);
    block block;
    while (find_block(context, group, sl_cpu_take(op, 0, 1), &block)) {
        attend_block(context, op, &block, &scratch);
    }
}
