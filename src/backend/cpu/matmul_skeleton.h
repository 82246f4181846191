/* The matrix product around its innermost loops: packs x, hands out panels, adds bias and residual. Included
 * once by each tier's matmul.c, after matmul_tiles.h and the tier's own matmul_types[SL_QTYPE_COUNT]. */
#ifndef SL_BACKEND_CPU_MATMUL_SKELETON_H
#define SL_BACKEND_CPU_MATMUL_SKELETON_H

#include "backend/cpu/matmul.h"

/* Of a kernel of this tier; one that has two for a weight type tells them apart. */
#ifndef SL_MATMUL_TYPE
#define SL_MATMUL_TYPE(row) (&matmul_types[(row)->weight_type])
#endif

/* Scratch: the packed tiles of all rows, shared; then for each thread, its own packed tiles of few rows,
 * expanded scales, unpacked weights, with --no-repack a panel's chunk of weights, and running sums. */
typedef struct linear {
    const sl_cpu_context *context;
    const sl_cpu_op *op;
    const sl_matmul_type *type;
    int32_t columns, panels; /* panels: of all segments */
    int32_t active;          /* batches that have rows */
    int32_t unit_panels;
    uint64_t row_bytes; /* of a row in a tile */
    bool own_tiles;     /* every thread packs all rows for itself: no meeting before the products */
    unsigned char *tiles, *unpacked, *panel;
    float *scales, *sums;
    const unsigned char
        *next; /* packed weights that this thread's next unit is likely to begin with, or NULL */
} linear;

static int32_t panels_of(const sl_cpu_weight *weight) {
    return (weight->rows + SL_PANEL - 1) / SL_PANEL;
}

static uint64_t packed_row_bytes(const sl_matmul_type *type, int32_t columns) {
    return ((uint64_t)columns + SL_MATMUL_GROUP - 1) / SL_MATMUL_GROUP * (uint64_t)type->group_bytes;
}

/* Bytes of a chunk's expanded scales, and of its unpacked weights. */
static uint64_t scales_bytes(const sl_matmul_type *type) {
    return (uint64_t)(type->chunk / type->block * type->scales * SL_PANEL) * sizeof(float);
}

static uint64_t unpacked_bytes(const sl_matmul_type *type) {
    return (uint64_t)(type->chunk * type->unpacked_bytes) * SL_PANEL;
}

/* Of a chunk that is packed as it is needed; a whole number of floats. */
static uint64_t panel_chunk_bytes(const sl_matmul_type *type, const sl_backend *backend) {
    return backend->options.no_repack
               ? (uint64_t)(type->chunk / type->block) * (uint64_t)type->block_bytes * SL_PANEL
               : 0;
}

/* Rows of y in the largest batch. */
static int32_t batch_rows(const sl_kernel_query *query) {
    const bool experts = query->op->in[1].value != SL_NONE;
    return query->rows[experts ? SL_ROWS_STEP : query->values[query->op->out[0].value].rows];
}

static uint64_t align64(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

static linear linear_of(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const sl_matmul_type *type = SL_MATMUL_TYPE(op->kernel);
    linear linear = {.context = context, .op = op, .type = type, .columns = op->weights[0].columns};
    linear.row_bytes = packed_row_bytes(type, linear.columns);
    /* The shared part is as large as this step's rows need; the rest is the threads'. */
    const uint64_t packed = align64((uint64_t)sl_cpu_rows(context, &op->out[0]) * linear.row_bytes);
    linear.own_tiles = packed <= SL_MATMUL_OWN_TILES;
    const uint64_t shared = linear.own_tiles ? 0 : packed;
    const uint64_t each = (op->scratch_bytes - shared) / (uint64_t)threads / 64 * 64;
    unsigned char *own = op->scratch + shared + each * (uint64_t)thread;
    linear.tiles = linear.own_tiles ? own : op->scratch;
    linear.scales = (float *)(void *)(own + SL_MATMUL_OWN_TILES);
    linear.unpacked = own + SL_MATMUL_OWN_TILES + scales_bytes(type);
    linear.panel = linear.unpacked + unpacked_bytes(type);
    linear.sums = (float *)(void *)(linear.panel + panel_chunk_bytes(type, context->backend));
    for (int32_t s = 0; s < op->weight_count; s++) {
        linear.panels += panels_of(&op->weights[s]);
    }
    return linear;
}

/* Rows of a panel's sums. */
static int32_t sum_rows(int32_t rows) {
    return (rows + SL_MATMUL_SUM_ROWS - 1) / SL_MATMUL_SUM_ROWS * SL_MATMUL_SUM_ROWS;
}

/* Rows of the next tile when `left` are left. */
static int32_t tile_rows(const sl_matmul_type *type, int32_t left) {
    return left > type->most_rows ? type->main_rows : left;
}

/* How many rows come before the batch in the packed order. */
static int32_t batch_first(const linear *linear, const sl_cpu_batch *batch) {
    return batch->list ? linear->op->in[2].head[batch->expert] : 0;
}

/* ---- packing x ---- */

static void pack_tile(const linear *linear, const sl_cpu_batch *batch, int32_t first, int32_t rows) {
    sl_matmul_source source = {.x = &linear->op->in[0], .columns = linear->columns, .rows = rows};
    source.tile = linear->tiles + (uint64_t)(batch_first(linear, batch) + first) * linear->row_bytes;
    for (source.index = 0; source.index < rows; source.index++) {
        const int32_t row = sl_cpu_batch_row(batch, first + source.index);
        source.row = sl_cpu_source_row(linear->context, linear->op, row);
        linear->type->pack_row(&source);
    }
}

/* Threads share the tiles by where their first row lies, and meet when all are packed. */
static void pack_tiles(const linear *linear, int thread, int threads) {
    int32_t from, to;
    sl_cpu_share(sl_cpu_rows(linear->context, &linear->op->out[0]), linear->own_tiles ? 0 : thread,
                 linear->own_tiles ? 1 : threads, &from, &to);
    const int32_t batches = sl_cpu_batch_count(linear->op);
    for (int32_t b = 0; b < batches; b++) {
        const sl_cpu_batch batch = sl_cpu_batch_at(linear->context, linear->op, b);
        const int32_t base = batch_first(linear, &batch);
        for (int32_t i = 0, rows; i < batch.count; i += rows) {
            rows = tile_rows(linear->type, batch.count - i);
            if (base + i >= from && base + i < to) {
                pack_tile(linear, &batch, i, rows);
            }
        }
    }
    if (!linear->own_tiles) {
        sl_pool_barrier(linear->context->pool);
    }
}

/* ---- units of work ---- */

/* Some panels of a segment's weight, for one batch. */
typedef struct unit {
    sl_cpu_batch batch;
    const sl_cpu_weight *weight;
    int32_t first, count; /* panels */
} unit;

/* A thread's place in a share's list of units, batch after batch: batches without rows have none. */
typedef struct walk {
    int32_t first[SL_LINEAR_SEGMENTS], end[SL_LINEAR_SEGMENTS]; /* panels of the share, of each segment */
    int32_t segment_units[SL_LINEAR_SEGMENTS];
    int32_t per_batch, units; /* of a batch with rows; of all */
    int32_t batch, active;    /* where it is; batches with rows before that */
} walk;

/* At the beginning of a share's list. */
static walk walk_of(const linear *linear, int32_t share) {
    walk walk = {.batch = -1, .active = -1};
    for (int32_t s = 0; s < linear->op->weight_count; s++) {
        sl_cpu_share_rows(linear->op->weights[s].rows, share, sl_pool_threads(linear->context->pool),
                          &walk.first[s], &walk.end[s]);
        walk.first[s] /= SL_PANEL;
        walk.end[s] = (walk.end[s] + SL_PANEL - 1) / SL_PANEL;
        walk.segment_units[s] = (walk.end[s] - walk.first[s] + linear->unit_panels - 1) / linear->unit_panels;
        walk.per_batch += walk.segment_units[s];
    }
    walk.units = walk.per_batch * linear->active;
    return walk;
}

static int32_t count_active(const linear *linear) {
    const int32_t batches = sl_cpu_batch_count(linear->op);
    int32_t active = 0;
    for (int32_t b = 0; b < batches; b++) {
        active += sl_cpu_batch_at(linear->context, linear->op, b).count > 0;
    }
    return active;
}

/* As many panels as still leave every thread several units. */
static int32_t choose_unit_panels(const linear *linear, int threads) {
    const int64_t panels = (int64_t)linear->panels * linear->active / ((int64_t)threads * 6);
    return panels < 1 ? 1 : panels > SL_MATMUL_PANELS ? SL_MATMUL_PANELS : (int32_t)panels;
}

/* To the batch with rows that has `active` of them before it. */
static sl_cpu_batch find_batch(const linear *linear, walk *walk, int32_t active) {
    sl_cpu_batch batch = {0, 0, NULL};
    if (walk->active == active) {
        batch = sl_cpu_batch_at(linear->context, linear->op, walk->batch);
    }
    while (walk->active != active) {
        const int32_t step = walk->active < active ? 1 : -1;
        do {
            walk->batch += step;
            batch = sl_cpu_batch_at(linear->context, linear->op, walk->batch);
        } while (batch.count == 0);
        walk->active += step;
    }
    return batch;
}

/* Unit `index` of the share. */
static unit find_unit(const linear *linear, walk *walk, int32_t index) {
    const int32_t active = index / walk->per_batch;
    int32_t i = index - active * walk->per_batch, s = 0;
    while (i >= walk->segment_units[s]) {
        i -= walk->segment_units[s++];
    }
    const int32_t first = walk->first[s] + i * linear->unit_panels, left = walk->end[s] - first;
    return (unit){.batch = find_batch(linear, walk, active),
                  .weight = &linear->op->weights[s],
                  .first = first,
                  .count = left < linear->unit_panels ? left : linear->unit_panels};
}

/* ---- the product ---- */

/* One row's sums of a panel to y, with what is added to them. */
static void store_sums_of(const sl_cpu_weight *weight, const float *sums, const float *bias,
                          const float *residual, float *y, int32_t output) {
    const int32_t left = weight->rows - output;
    SL_UNROLL for (int v = 0; v < 2; v++) {
        const int32_t count = left - v * VN;
        if (count > 0) {
            vf value = vf_load(sums + v * VN);
            value = bias ? vf_add(value, vf_load_part(bias + output + v * VN, count)) : value;
            value = residual ? vf_add(value, vf_load_part(residual + output + v * VN, count)) : value;
            vf_store_part(y + output + v * VN, value, count);
        }
    }
}

/* The unit's expert's matrix, as the kernel reads it. */
static const unsigned char *matrix_of(const unit *unit) {
    return unit->weight->data + (uint64_t)unit->batch.expert * unit->weight->expert_bytes;
}

/* Bytes of so many columns of a packed panel. */
static uint64_t chunk_bytes(const linear *linear, int32_t columns) {
    const sl_matmul_type *type = linear->type;
    return (uint64_t)(columns / type->block) * (uint64_t)type->block_bytes * SL_PANEL;
}

/* Where a packed panel's weights lie from `column` on. */
static const unsigned char *packed_at(const linear *linear, const unit *unit, int32_t panel, int32_t column) {
    return matrix_of(unit) + (uint64_t)panel * chunk_bytes(linear, linear->columns) +
           chunk_bytes(linear, column);
}

/* The panel's weights from `column` on: where they lie packed, or packed now from the file's rows. */
static const unsigned char *chunk_weights(const linear *linear, const unit *unit, int32_t panel,
                                          int32_t column, int32_t columns) {
    const sl_matmul_type *type = linear->type;
    const sl_cpu_weight *weight = unit->weight;
    const unsigned char *data = matrix_of(unit);
    if (weight->packed) {
        return packed_at(linear, unit, panel, column);
    }
    const int32_t left = weight->rows - panel * SL_PANEL;
    const sl_matmul_rows rows = {.rows = data + (uint64_t)panel * SL_PANEL * weight->row_bytes +
                                         weight->row_bytes * (uint64_t)column / (uint64_t)linear->columns,
                                 .row_bytes = weight->row_bytes,
                                 .type = weight->type,
                                 .columns = columns,
                                 .outputs = left < SL_PANEL ? left : SL_PANEL};
    (type->pack_rows  ? type->pack_rows
     : SL_PANEL == 32 ? sl_matmul_pack_rows_32
                      : sl_matmul_pack_rows_16)(&rows, linear->panel);
    return linear->panel;
}

/* Is each tile written as soon as its sums are done? Rows lie pages apart, where L1 has few places for them:
 * larger tiles would drive out what was fetched for their first rows, and so would a residual. */
static bool stores_tiles(const linear *linear) {
    return linear->op->in[3].data == NULL && linear->type->main_rows <= SL_MATMUL_TILE;
}

/* What of a unit. */
typedef struct rows_part {
    int32_t first, end;   /* rows of the batch */
    int32_t panel, count; /* panels of the unit */
} rows_part;

/* Rows [first, end) of the batch to panels [panel, panel + count) of the unit. */
static void store_rows(const linear *linear, const unit *unit, const rows_part *part) {
    const sl_cpu_op *op = linear->op;
    const sl_cpu_weight *weight = unit->weight;
    const float *bias = weight->bias ? weight->bias + (int64_t)unit->batch.expert * weight->rows : NULL;
    for (int32_t r = part->first; r < part->end; r++) {
        const int32_t row = sl_cpu_batch_row(&unit->batch, r);
        const float *residual = op->in[3].data ? sl_cpu_f32(&op->in[3], row) + weight->column : NULL;
        float *y = sl_cpu_f32(&op->out[0], row) + weight->column;
        for (int32_t p = part->panel; p < part->panel + part->count; p++) {
            const float *sums = linear->sums + ((int64_t)p * sum_rows(unit->batch.count) + r) * SL_PANEL;
            store_sums_of(weight, sums, bias, residual, y, (unit->first + p) * SL_PANEL);
        }
    }
}

/* Where a tile's sums of a panel will be written: at once, or when the unit is done. */
static void fetch_rows(const linear *linear, const unit *unit, const rows_part *part) {
    for (int32_t r = part->first; r < part->end; r++) {
        const float *y = sl_cpu_f32(&linear->op->out[0], sl_cpu_batch_row(&unit->batch, r)) +
                         unit->weight->column + (unit->first + part->panel) * SL_PANEL;
        for (int i = 0; i < SL_PANEL; i += 16) {
            if (stores_tiles(linear)) {
                __builtin_prefetch(y + i, 1);
            } else {
                _mm_prefetch((const char *)(y + i), _MM_HINT_T1);
            }
        }
    }
}

/* The weights that are read behind a chunk. They are fetched while its rows are multiplied, when memory would
 * have nothing to do. */
typedef struct coming {
    const unsigned char *weights; /* NULL: not known */
    uint64_t bytes;
} coming;

/* Behind columns [column, end) of a panel of the unit. Of a batch of one tile: nothing, as a tile fetches
 * what lies ahead in the panel by itself, and with few rows memory is busy all the time. */
static coming coming_after(const linear *linear, const unit *unit, int32_t panel, int32_t column,
                           int32_t end) {
    const int32_t chunk = linear->type->chunk;
    if (!unit->weight->packed || unit->batch.count <= linear->type->most_rows) {
        return (coming){NULL, 0};
    }
    if (panel + 1 < unit->count) {
        return (coming){packed_at(linear, unit, unit->first + panel + 1, column),
                        chunk_bytes(linear, end - column)};
    }
    const bool more = end < linear->columns;
    const int32_t left = more ? linear->columns - end : linear->columns;
    return (coming){more ? packed_at(linear, unit, unit->first, end) : linear->next,
                    chunk_bytes(linear, left < chunk ? left : chunk)};
}

/* To L2 the share of them that falls to rows [first, end) of `count`: all at once would fill the queue of
 * misses. */
static void fetch_coming(coming coming, int32_t first, int32_t end, int32_t count) {
    enum { LINE = 64 };
    const uint64_t lines = coming.weights ? (coming.bytes + LINE - 1) / LINE : 0;
    const uint64_t stop = lines * (uint64_t)end / (uint64_t)count;
    for (uint64_t i = lines * (uint64_t)first / (uint64_t)count; i < stop; i++) {
        _mm_prefetch((const char *)coming.weights + i * LINE, _MM_HINT_T1);
    }
}

/* Columns [column, end) of one panel, for all rows of the batch. */
static void run_chunk(const linear *linear, const unit *unit, int32_t panel, int32_t column, int32_t end) {
    const sl_matmul_type *type = linear->type;
    const int32_t count = unit->batch.count;
    sl_matmul_part part = {.columns = end - column, .first = column == 0, .last = end == linear->columns};
    part.weights = chunk_weights(linear, unit, unit->first + panel, column, part.columns);
    const bool many = count > type->few_rows;
    if (many && type->expand) {
        type->expand(part.weights, part.columns / type->block, linear->scales);
        part.scales = linear->scales;
    }
    if (many && type->unpack) {
        type->unpack(part.weights, part.columns / type->block, linear->unpacked);
        part.unpacked = linear->unpacked;
    }
    const sl_matmul_tile *run = part.unpacked ? type->unpacked_tiles : type->tiles;
    const unsigned char *tiles =
        linear->tiles + (uint64_t)batch_first(linear, &unit->batch) * linear->row_bytes;
    float *sums = linear->sums + (int64_t)panel * sum_rows(count) * SL_PANEL;
    const coming coming = coming_after(linear, unit, panel, column, end);
    for (int32_t i = 0, rows; i < count; i += rows) {
        rows = tile_rows(type, count - i);
        fetch_coming(coming, i, i + rows, count);
        part.x = tiles + (uint64_t)i * linear->row_bytes +
                 (uint64_t)(column / SL_MATMUL_GROUP) * (uint64_t)type->group_bytes * (uint64_t)rows;
        part.sums = sums + (int64_t)i * SL_PANEL;
        part.rows = rows;
        const rows_part tile = {i, i + rows, panel, 1};
        if (part.last) {
            fetch_rows(linear, unit, &tile);
        }
        run[(rows < SL_MATMUL_TILE ? rows : SL_MATMUL_TILE) - 1](&part);
        if (part.last && stores_tiles(linear)) {
            store_rows(linear, unit, &tile);
        }
    }
}

/* To the unit of the share that is likely to be this thread's next. */
static void look_ahead(linear *linear, walk walk, int32_t index) {
    linear->next = NULL;
    if (index >= 0 && index < walk.units) {
        const unit unit = find_unit(linear, &walk, index);
        linear->next = unit.weight->packed ? packed_at(linear, &unit, unit.first, 0) : NULL;
    }
}

/* One tile reads each weight once, as it comes from memory: all columns at once. What is packed as it is
 * needed has room for a chunk. */
static void run_unit(const linear *linear, const unit *unit) {
    const sl_matmul_type *type = linear->type;
    const int32_t rows = unit->batch.count;
    const bool whole =
        unit->weight->packed && rows <= type->most_rows && (rows <= type->few_rows || !type->unpack);
    const int32_t chunk = whole ? linear->columns : type->chunk;
    if (type->begin) {
        type->begin(rows);
    }
    for (int32_t column = 0; column < linear->columns; column += chunk) {
        const int32_t end = linear->columns - column > chunk ? column + chunk : linear->columns;
        for (int32_t p = 0; p < unit->count; p++) {
            run_chunk(linear, unit, p, column, end);
        }
    }
    if (!stores_tiles(linear)) { /* row by row, so that what lies together in y is written together */
        store_rows(linear, unit, &(rows_part){0, rows, 0, unit->count});
    }
}

/* ---- the kernel ---- */

static const sl_matmul_type *type_of(const sl_kernel *kernel) {
    return SL_MATMUL_TYPE((const sl_cpu_kernel *)(const void *)kernel);
}

SL_TIER_DECLINES(linear) {
    const char *needs = sl_cpu_needs(query, SL_TIER_ISA);
    if (needs) {
        return needs;
    }
    const sl_weight *weight = &query->program->weights[query->op->u.linear.segments[0].weight];
    if (weight->type != ((const sl_cpu_kernel *)(const void *)kernel)->weight_type) {
        return "is for another weight type";
    }
    const char *slow = type_of(kernel)->declines ? type_of(kernel)->declines() : NULL;
    if (slow) {
        return slow;
    }
    return weight->columns % type_of(kernel)->block == 0 ? NULL : "takes an even number of columns";
}

SL_TIER_WORKSPACE(linear) {
    const sl_matmul_type *type = type_of(kernel);
    const int32_t columns = query->program->weights[query->op->u.linear.segments[0].weight].columns;
    const int32_t rows = query->rows[query->values[query->op->out[0].value].rows];
    const uint64_t sums =
        (uint64_t)SL_MATMUL_PANELS * SL_PANEL * sizeof(float) * (uint64_t)sum_rows(batch_rows(query));
    const uint64_t each = SL_MATMUL_OWN_TILES + scales_bytes(type) + unpacked_bytes(type) +
                          panel_chunk_bytes(type, query->backend) + sums;
    return align64((uint64_t)rows * packed_row_bytes(type, columns)) +
           align64(each) * (uint64_t)query->backend->options.threads;
}

SL_TIER_RUN(linear) {
    linear linear = linear_of(context, op, thread, threads);
    linear.active = count_active(&linear);
    linear.unit_panels = choose_unit_panels(&linear, threads);
    pack_tiles(&linear, thread, threads);
    sl_cpu_taking taking = sl_cpu_shares_of(context, op, thread, threads);
    while (sl_cpu_next_share(&taking)) {
        walk walk = walk_of(&linear, taking.share);
        for (int32_t index; (index = sl_cpu_next_unit(&taking, walk.units)) >= 0;) {
            const unit unit = find_unit(&linear, &walk, index);
            look_ahead(&linear, walk, taking.helps ? index - 1 : index + 1);
            run_unit(&linear, &unit);
        }
    }
    if (linear.type->end) {
        linear.type->end();
    }
}

#endif
