#include "harness.h"

#include "quant/activation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, PATTERN = 0xA5, SPARE_ROWS = 3, SPARE_PAGES = 12 };
enum { NEAR = 64 << 10, SCRATCH_FILL = 1 << 20 };

/* ---- random numbers ---- */

uint64_t kt_next(kt_random *random) {
    if (!random) {
        return 0;
    }
    uint64_t z = (random->state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

int32_t kt_below(kt_random *random, int32_t count) {
    return (int32_t)(kt_next(random) % (uint64_t)count);
}

float kt_uniform(kt_random *random, float scale) {
    return ((float)(kt_next(random) >> 40) * 0x1p-23f - 1.0f) * scale;
}

float kt_normal(kt_random *random, float scale) {
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += kt_uniform(random, 1.0f);
    }
    return sum * 0.866f * scale;
}

void *kt_alloc(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size ? size : 1);
    if (!memory) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    return memory;
}

void kt_case_free(kt_case *c) {
    for (int32_t w = 0; w < c->program.weight_count; w++) {
        const void *data = c->program.weights[w].data;
        if (w == 0 || c->program.weights[w - 1].data != data) { /* copies of one share its numbers */
            free((void *)(uintptr_t)data);
        }
    }
    for (int v = 0; v < KT_VALUES; v++) {
        free(c->inputs[v]);
    }
    free(c->tokens);
    free(c->outputs);
    free(c->adjustments);
    free(c->masks);
    sl_program_free(&c->program);
    memset(c, 0, sizeof *c);
}

void kt_result_free(kt_result *result) {
    for (int v = 0; v < KT_VALUES; v++) {
        free(result->values[v]);
    }
    free(result->schedule);
    free(result->cache);
    free(result->kept);
    free(result->state);
    free(result->row_states);
    free(result->has_state);
    memset(result, 0, sizeof *result);
}

/* ---- a deployment by hand ---- */

struct kt_runner {
    sl_backend *backend;
    const kt_case *c;
    sl_executor *executor;
    sl_deployment deployment;
    sl_lowered buckets[2]; /* all ops; the op under test alone */
    int32_t spare_page;    /* the first that is compacted to */
    int32_t next_page[SL_CACHE_GROUPS], moved[SL_CACHE_GROUPS];
    int32_t *pages;               /* [group][span][table width]: where each page of a sequence lies now */
    int32_t state_set[KT_SPANS];  /* 0 or 1: which of its slots a span has written last */
    int32_t state_slot[KT_SPANS]; /* the very last of these */
    int32_t done[KT_SPANS];       /* rows of each span that were run */
    /* The values with their guards, as they are on the device where a step has rows; behind them in the
     * workspace lies scratch, which may be large and is not copied. */
    unsigned char *image;
    uint64_t image_bytes;
    int32_t most_rows, most_outputs; /* of a step of the run */
    void *last_block;                /* of the last step of the run, in one of the executor's blocks */
};

static int32_t copies_of(const kt_case *c) {
    return c->copies > 0 ? c->copies : 1;
}

static int32_t states_of(const kt_case *c) {
    return c->program.state_count == 0 ? 0 : c->states > 0 ? c->states : 1;
}

static uint64_t aligned(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

static uint64_t element_bytes(sl_value_type type) {
    return type == SL_VALUE_BF16 ? 2 : type == SL_VALUE_F32 || type == SL_VALUE_I32 ? 4 : 1;
}

static int32_t rows_of_kind(const kt_case *c, sl_rows kind, int32_t rows, int32_t outputs) {
    return kind == SL_ROWS_OUTPUT ? outputs : kind == SL_ROWS_EXPERT ? rows * c->program.experts_used : rows;
}

static void query_of(const kt_runner *r, int32_t op, sl_kernel_query *query) {
    const sl_op *which = &r->buckets[0].ops[op];
    memset(query, 0, sizeof *query);
    query->backend = r->backend;
    query->program = &r->c->program;
    query->values = r->buckets[0].values;
    query->op = which;
    query->rows = r->buckets[0].rows;
    query->span_rows = r->buckets[0].span_rows;
    query->limits = &r->deployment.limits;
    query->cache_type = r->c->cache_type;
}

static const sl_kernel *choose(const kt_runner *r, int32_t op, const sl_kernel *wanted,
                               const char **declined) {
    const sl_op *which = &r->c->program.ops[op];
    int32_t count;
    const sl_kernel *const *kernels = r->backend->functions->kernels(r->backend, &count);
    const sl_kernel *found = NULL;
    const char *reason = "there is no kernel";
    sl_kernel_query query;
    query_of(r, op, &query);
    for (int32_t k = 0; k < count; k++) {
        if (kernels[k]->op != which->kind || (wanted && kernels[k] != wanted) ||
            (which->kind == SL_OP_LINEAR &&
             kernels[k]->activation != r->c->program.values[which->in[0].value].type)) {
            continue;
        }
        const char *why = kernels[k]->declines ? kernels[k]->declines(kernels[k], &query) : NULL;
        if (!why) {
            found = kernels[k];
        } else {
            reason = why;
        }
    }
    *declined = found ? NULL : reason;
    return found;
}

static void lay_out_caches(kt_runner *r) {
    sl_deployment *d = &r->deployment;
    const sl_program *p = &r->c->program;
    uint64_t offset = 0;
    for (int32_t g = 0; g < p->group_count; g++) {
        sl_cache_layout *cache = &d->caches[g];
        cache->type = r->c->cache_type;
        sl_qtype_bytes(cache->type, (uint64_t)p->groups[g].key_size, &cache->row_key_bytes);
        sl_qtype_bytes(cache->type, p->groups[g].values_are_keys ? 0 : (uint64_t)p->groups[g].value_size,
                       &cache->row_value_bytes);
        cache->layer_bytes = (uint64_t)p->groups[g].kv_heads * SL_PAGE_TOKENS *
                             (cache->row_key_bytes + cache->row_value_bytes);
        cache->page_bytes = (uint64_t)p->groups[g].layers * cache->layer_bytes;
        cache->pages = d->limits.sequences * sl_table_width(d->limits.context) + SPARE_PAGES +
                       sl_table_width(r->c->keep);
        d->cache_offsets[g] = offset;
        offset += aligned((uint64_t)cache->pages * cache->page_bytes);
    }
    d->pool_bytes[SL_POOL_CACHE] = offset;
}

static uint64_t scratch_bytes(const kt_runner *r, int32_t op) {
    const sl_kernel *kernel = r->buckets[0].kernels[op];
    sl_kernel_query query;
    query_of(r, op, &query);
    return kernel->workspace ? aligned(kernel->workspace(kernel, &query)) : 0;
}

/* Every value with GUARD bytes before and after it, then the ops' scratch, each with a guard behind. */
static void lay_out_workspace(kt_runner *r) {
    sl_lowered *all = &r->buckets[0];
    uint64_t offset = GUARD;
    for (int32_t v = 0; v < all->value_count; v++) {
        all->value_offsets[v] = offset;
        offset += aligned(sl_value_bytes(&all->values[v], all->rows)) + GUARD;
    }
    r->image_bytes = offset;
    r->image = kt_alloc(offset, 1);
    for (int32_t i = 0; i < all->op_count; i++) {
        const uint64_t bytes = scratch_bytes(r, i);
        all->scratch_offsets[i] = offset;
        offset += bytes ? bytes + GUARD : 0;
    }
    r->deployment.pool_bytes[SL_POOL_WORKSPACE] = offset;
}

static void lay_out_weights(kt_runner *r) {
    const sl_program *p = &r->c->program;
    sl_deployment *d = &r->deployment;
    const sl_kernel *kernel = r->buckets[0].kernels[r->c->op];
    d->weights = kt_alloc((size_t)p->weight_count, sizeof *d->weights);
    d->weight_count = p->weight_count;
    for (int32_t w = 0; w < p->weight_count; w++) {
        bool packed = false;
        for (int32_t i = 0; i < copies_of(r->c) && kernel->op == SL_OP_LINEAR && kernel->pack; i++) {
            const sl_op_linear *linear = &p->ops[r->c->op + i].u.linear;
            for (int32_t s = 0; s < linear->segment_count; s++) {
                packed = packed || linear->segments[s].weight == w;
            }
        }
        d->weights[w].weight = w;
        d->weights[w].layout = packed ? kernel : NULL;
        d->weights[w].bytes = packed ? kernel->packed_bytes(&p->weights[w]) : 0;
        if (!packed) {
            sl_stored_bytes(r->backend->column_multiple, &p->weights[w], &d->weights[w].bytes);
        }
        if (packed || !r->backend->maps_weights) {
            d->pool_bytes[SL_POOL_WEIGHTS] += aligned(d->weights[w].bytes);
        }
    }
}

static void lay_out(kt_runner *r) {
    const kt_case *c = r->c;
    const sl_program *p = &c->program;
    sl_deployment *d = &r->deployment;
    sl_lowered *all = &r->buckets[0], *one = &r->buckets[1];
    const uint64_t tables = (uint64_t)p->group_count * (uint64_t)sl_table_rows(&d->limits) *
                            (uint64_t)sl_table_width(d->limits.context);
    lay_out_caches(r);
    lay_out_weights(r);
    lay_out_workspace(r);
    d->state_slots = 2 * states_of(c) * c->span_count;
    d->pool_bytes[SL_POOL_STATE] = (uint64_t)d->state_slots * p->state_bytes;
    /* Room for the work lists of a device, whatever they are. */
    d->pool_bytes[SL_POOL_TABLES] = aligned((tables + (uint64_t)d->limits.sequences) * sizeof(int32_t)) +
                                    (r->backend->maps_weights ? 0 : 1 << 20);
    d->pool_bytes[SL_POOL_STAGING] =
        (uint64_t)r->backend->steps_in_flight *
        (d->step.bytes +
         (r->backend->maps_weights ? 0 : (uint64_t)d->limits.outputs * (uint64_t)(p->vocabulary + 64) * 4));
    d->buckets = r->buckets;
    d->bucket_count = 2;
    *one = *all;
    one->ops += c->op;
    one->kernels += c->op;
    one->scratch_offsets += c->op;
    one->op_count = copies_of(c);
}

/* Up to the choice of kernels: nothing is on the device yet. NULL with *declined set when `kernel` declines.
 */
static kt_runner *lower(sl_backend *backend, const sl_kernel *kernel, const kt_case *c,
                        const char **declined) {
    kt_runner *r = kt_alloc(1, sizeof *r);
    sl_deployment *d = &r->deployment;
    sl_lowered *all = &r->buckets[0];
    int32_t longest = 0;
    *declined = NULL;
    r->backend = backend;
    r->c = c;
    for (int32_t s = 0; s < c->span_count; s++) {
        longest = c->span_rows[s] > longest ? c->span_rows[s] : longest;
    }
    d->program = &c->program;
    d->limits = (sl_limits){.rows = (c->step_rows ? c->step_rows : c->rows) + (c->tight ? 0 : SPARE_ROWS),
                            .outputs = c->output_count + 1,
                            .sequences = c->span_count,
                            .context = longest + c->position_base + c->depth + 1,
                            .adjustments = c->adjustment_count + 1,
                            .masks = c->mask_count,
                            .mask_tokens = c->program.vocabulary,
                            .keep = c->keep,
                            .states = states_of(c) * c->span_count};
    sl_step_layout_init(&d->step, &d->limits, c->program.group_count);
    for (int kind = 0; kind < SL_ROWS_COUNT; kind++) {
        all->rows[kind] = rows_of_kind(c, (sl_rows)kind, d->limits.rows, d->limits.outputs);
    }
    /* As `kt_run` deals them out; the rows that nobody has may be of spans that nobody has. */
    all->span_rows = c->step_rows ? c->step_rows / c->span_count : all->rows[SL_ROWS_STEP];
    all->values = c->program.values;
    all->value_count = c->program.value_count;
    all->value_offsets = kt_alloc((size_t)all->value_count, sizeof(uint64_t));
    all->ops = c->program.ops;
    all->op_count = c->program.op_count;
    all->kernels = kt_alloc((size_t)all->op_count, sizeof *all->kernels);
    all->scratch_offsets = kt_alloc((size_t)all->op_count, sizeof(uint64_t));
    for (int32_t i = 0; i < all->op_count; i++) {
        const bool tested = i >= c->op && i < c->op + copies_of(c);
        all->kernels[i] = choose(r, i, tested ? kernel : NULL, declined);
        if (*declined) {
            if (i != c->op) {
                fprintf(stderr, "%s: %s: %s\n", c->name, sl_op_name(all->ops[i].kind), *declined);
            }
            kt_runner_free(r);
            return NULL;
        }
    }
    return r;
}

const sl_kernel *kt_choose(sl_backend *backend, const sl_kernel *kernel, const kt_case *c) {
    const char *declined;
    kt_runner *r = lower(backend, kernel, c, &declined);
    const sl_kernel *found = r ? kt_runner_kernel(r) : NULL;
    if (r) {
        kt_runner_free(r);
    }
    return found;
}

kt_runner *kt_runner_new(sl_backend *backend, const sl_kernel *kernel, const kt_case *c,
                         const char **declined) {
    kt_runner *r = lower(backend, kernel, c, declined);
    sl_error error = {0};
    if (!r) {
        return NULL;
    }
    lay_out(r);
    r->pages = kt_alloc(
        (size_t)(c->program.group_count * c->span_count * sl_table_width(r->deployment.limits.context)),
        sizeof(int32_t));
    if (backend->functions->deploy(backend, &r->deployment, NULL, &r->executor, &error)) {
        fprintf(stderr, "%s: deploy: %s\n", c->name, error.message);
        kt_runner_free(r);
        return NULL;
    }
    return r;
}

void kt_runner_free(kt_runner *r) {
    if (r->executor) {
        r->backend->functions->destroy_executor(r->executor);
    }
    free(r->buckets[0].value_offsets);
    free(r->buckets[0].kernels);
    free(r->buckets[0].scratch_offsets);
    free(r->deployment.weights);
    free(r->pages);
    free(r->image);
    free(r);
}

const sl_kernel *kt_runner_kernel(const kt_runner *r) {
    return r->buckets[0].kernels[r->c->op];
}

/* ---- one step ---- */

/* Which rows of the time line a step carries. */
typedef struct step_plan {
    int32_t first[KT_SPANS], count[KT_SPANS]; /* of each span */
    int32_t start[KT_SPANS];                  /* of each span on the time line */
    int32_t states[KT_SPANS];                 /* that each leaves, behind its last rows */
} step_plan;

/* Fills `list` with the time line's indices of the step's rows of one kind; returns how many. */
static int32_t list_rows(const kt_case *c, const step_plan *step, sl_rows kind, int32_t *list) {
    const int32_t used = c->program.experts_used;
    int32_t count = 0;
    for (int32_t s = 0; s < c->span_count; s++) {
        for (int32_t i = 0; i < step->count[s]; i++) {
            const int32_t row = step->start[s] + step->first[s] + i;
            if (kind == SL_ROWS_STEP) {
                list[count++] = row;
            }
            for (int32_t rank = 0; kind == SL_ROWS_EXPERT && rank < used; rank++) {
                list[count++] = row * used + rank;
            }
            for (int32_t o = 0; kind == SL_ROWS_OUTPUT && o < c->output_count; o++) {
                if (c->outputs[o].row == row) {
                    list[count++] = o;
                }
            }
        }
    }
    return count;
}

static bool check(int status, const sl_error *error, const char *what) {
    if (status) {
        fprintf(stderr, "%s: %s\n", what, error->message);
    }
    return status == 0;
}

static sl_cache_place place_of(const kt_case *c) {
    return c->program.ops[c->op].u.compact.attention.place;
}

/* Tables change when a page is first needed; in the chunked run, pages also move about now and then. */
static void fill_tables(kt_runner *r, const step_plan *step, bool move, kt_random *random, void *block) {
    const kt_case *c = r->c;
    sl_step_header *header = sl_step_head(block);
    sl_table_change *changes = sl_step_table_changes(&r->deployment.step, block);
    sl_page_copy *copies = sl_step_page_copies(&r->deployment.step, block);
    const int32_t width = sl_table_width(r->deployment.limits.context);
    for (int32_t g = 0; g < c->program.group_count; g++) {
        const int32_t window = c->program.groups[g].window;
        for (int32_t s = 0; s < c->span_count; s++) {
            int32_t *pages = r->pages + (g * c->span_count + s) * width;
            const int32_t length = c->depth + r->done[s], end = length + step->count[s];
            for (int32_t i = (length + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS;
                 step->count[s] > 0 && i * SL_PAGE_TOKENS < end; i++) {
                pages[i] = r->next_page[g]++;
                changes[header->table_changes++] = (sl_table_change){g, s, i, pages[i]};
            }
            /* A page that the window has left behind may go. */
            for (int32_t i = 0; move && window > 0 && (i + 1) * SL_PAGE_TOKENS <= length + 1 - window; i++) {
                if (pages[i] != SL_NONE) {
                    changes[header->table_changes++] = (sl_table_change){g, s, i, SL_NONE};
                    pages[i] = SL_NONE;
                }
            }
            const int32_t held = (length + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS;
            const int32_t i = held > 0 ? kt_below(random, held) : 0;
            if (move && held > 0 && pages[i] != SL_NONE && r->moved[g] < SPARE_PAGES &&
                kt_below(random, 3) == 0) {
                const int32_t to = r->next_page[g]++;
                copies[header->page_copies++] = (sl_page_copy){g, pages[i], to};
                changes[header->table_changes++] = (sl_table_change){g, s, i, to};
                pages[i] = to;
                r->moved[g]++;
            }
        }
        if (header->compact && g == place_of(c).group) {
            r->spare_page = r->next_page[g];
            for (int32_t i = 0; i < sl_table_width(c->keep); i++) {
                changes[header->table_changes++] = (sl_table_change){g, c->span_count, i, r->next_page[g]++};
            }
        }
    }
}

static void fill_block(kt_runner *r, const step_plan *step, bool move, kt_random *random) {
    const kt_case *c = r->c;
    void *block = r->backend->functions->step_block(r->executor);
    sl_step_header *header = sl_step_head(block);
    sl_step_row *rows = sl_step_rows(&r->deployment.step, block);
    sl_step_span *spans = sl_step_spans(&r->deployment.step, block);
    sl_step_output *outputs = sl_step_outputs(&r->deployment.step, block);
    int32_t states = 0;
    memset(header, 0, sizeof *header);
    header->want_logits = 1;
    header->compact = c->keep > 0 && r->done[0] >= c->rows - c->window;
    for (int32_t s = 0; s < c->span_count; s++) {
        if (step->count[s] == 0) {
            continue;
        }
        sl_step_span *span = &spans[header->spans];
        memset(span, 0, sizeof *span);
        span->slot = s;
        span->first_row = header->rows;
        span->row_count = step->count[s];
        span->state_read = r->done[s] && states_of(c) > 0 ? r->state_slot[s] : SL_NONE;
        span->state_first = states;
        span->state_count = step->states[s];
        r->state_set[s] = 1 - r->state_set[s];
        for (int32_t i = 0; i < step->states[s]; i++) {
            r->state_slot[s] = (2 * s + r->state_set[s]) * states_of(c) + i;
            sl_step_states(&r->deployment.step, block)[states++] = r->state_slot[s];
        }
        for (int32_t g = 0; g < c->program.group_count; g++) {
            span->length[g] = c->depth + r->done[s];
        }
        for (int32_t i = 0; i < step->count[s]; i++) {
            const int32_t at = step->first[s] + i, row = step->start[s] + at;
            rows[header->rows] =
                (sl_step_row){c->last_tokens ? SL_ROW_LAST_TOKEN : SL_ROW_TOKEN, c->tokens[row],
                              c->position_base + c->depth + at, header->spans};
            for (int32_t o = 0; o < c->output_count; o++) {
                if (c->outputs[o].row == row) {
                    outputs[header->outputs] = c->outputs[o];
                    outputs[header->outputs].slot = s;
                    outputs[header->outputs++].row = header->rows;
                }
            }
            header->rows++;
        }
        header->spans++;
    }
    fill_tables(r, step, move, random, block);
    if (c->adjustment_count) { /* behind the table changes */
        header->adjustments = c->adjustment_count;
        memcpy(sl_step_adjustments(&r->deployment.step, block), c->adjustments,
               (size_t)c->adjustment_count * sizeof *c->adjustments);
    }
    if (c->mask_count) { /* and behind those */
        header->masks = c->mask_count;
        memcpy(sl_step_masks(&r->deployment.step, block), c->masks,
               (size_t)c->mask_count * (size_t)sl_mask_words(c->program.vocabulary) * sizeof *c->masks);
    }
}

/* Offsets, then expert rows sorted by expert. */
static void make_schedule(const int32_t *ids, int32_t count, int32_t experts, int32_t *schedule) {
    int32_t next = 0;
    for (int32_t e = 0; e < experts; e++) {
        schedule[e] = next;
        for (int32_t i = 0; i < count; i++) {
            if (ids[i] == e) {
                schedule[experts + 1 + next++] = i;
            }
        }
    }
    schedule[experts] = next;
}

static uint64_t end_of_rows(const kt_runner *r, int32_t v, int32_t rows) {
    const sl_value *value = &r->buckets[0].values[v];
    return r->buckets[0].value_offsets[v] + (uint64_t)value->fixed * element_bytes(value->type) +
           (uint64_t)rows * sl_value_row_bytes(value->type, value->width);
}

/* What a step has of each value gets the pattern, GUARD bytes behind its rows too, then inputs their rows. */
static void fill_image(kt_runner *r, const step_plan *step) {
    const kt_case *c = r->c;
    const sl_lowered *all = &r->buckets[0];
    int32_t *list =
        kt_alloc((size_t)(all->rows[SL_ROWS_STEP] * (c->program.experts_used + 1) + all->rows[2]), 4);
    for (int32_t v = 0; v < all->value_count; v++) {
        const uint64_t bytes = sl_value_row_bytes(all->values[v].type, all->values[v].width);
        unsigned char *at = r->image + all->value_offsets[v];
        const int32_t count = list_rows(c, step, all->values[v].rows, list);
        memset(at, PATTERN, end_of_rows(r, v, count) - all->value_offsets[v] + GUARD);
        if (v == c->schedule_value && c->inputs[c->ids_value]) {
            const int32_t rows = list_rows(c, step, SL_ROWS_STEP, list), used = c->program.experts_used;
            int32_t *ids = kt_alloc((size_t)(rows * used), sizeof *ids);
            for (int32_t i = 0; i < rows * used; i++) {
                ids[i] = ((const int32_t *)c->inputs[c->ids_value])[list[i / used] * used + i % used];
            }
            make_schedule(ids, rows * used, c->program.experts, (int32_t *)(void *)at);
            free(ids);
        } else if (c->inputs[v]) {
            for (int32_t i = 0; i < count; i++) {
                memcpy(at + (uint64_t)i * bytes, (const char *)c->inputs[v] + (uint64_t)list[i] * bytes,
                       bytes);
            }
        }
    }
    free(list);
}

/* Copies the step's rows of all values and GUARD bytes behind them, to the device or from it. What lies near
 * each other goes in one piece: a call costs as much as some tens of KiB. */
static bool copy_image(kt_runner *r, int32_t rows, int32_t outputs, bool to_device) {
    const sl_backend_functions *f = r->backend->functions;
    const sl_lowered *all = &r->buckets[0];
    sl_error error = {0};
    bool good = true;
    for (int32_t v = 0; v < all->value_count && good;) {
        const uint64_t start = all->value_offsets[v];
        uint64_t end = start;
        for (; v < all->value_count && all->value_offsets[v] < end + (end > start ? NEAR : 1); v++) {
            end = end_of_rows(r, v, rows_of_kind(r->c, all->values[v].rows, rows, outputs)) + GUARD;
        }
        unsigned char *at = r->image + start;
        good = check(to_device ? f->write(r->executor, SL_POOL_WORKSPACE, start, at, end - start, &error)
                               : f->read(r->executor, SL_POOL_WORKSPACE, start, at, end - start, &error),
                     &error, r->c->name);
    }
    return good;
}

static bool is_pattern(const unsigned char *at, uint64_t bytes) {
    return bytes == 0 || (at[0] == PATTERN && memcmp(at, at + 1, bytes - 1) == 0);
}

/* After a step: what lies directly behind each value's rows holds the pattern. Where launch shapes are fixed,
 * the bucket's rows behind those of the step may be used. */
static bool check_rows_behind(const kt_runner *r, int32_t rows, int32_t outputs) {
    const sl_lowered *all = &r->buckets[0];
    for (int32_t v = 0; v < all->value_count && !r->backend->fixed_buckets; v++) {
        const uint64_t end = end_of_rows(r, v, rows_of_kind(r->c, all->values[v].rows, rows, outputs));
        if (!is_pattern(r->image + end, GUARD)) {
            fprintf(stderr, "%s: a byte behind value %s was overwritten\n", r->c->name, all->values[v].name);
            return false;
        }
    }
    return true;
}

/* After a run: all guards hold the pattern, and so does what lies behind the rows of the largest step. */
static bool check_guards(kt_runner *r) {
    const sl_backend_functions *f = r->backend->functions;
    const sl_lowered *all = &r->buckets[0];
    sl_error error = {0};
    uint64_t at = 0;
    if (!check(f->read(r->executor, SL_POOL_WORKSPACE, 0, r->image, r->image_bytes, &error), &error,
               r->c->name)) {
        return false;
    }
    for (int32_t v = 0; v <= all->value_count; v++) {
        const uint64_t end = v < all->value_count ? all->value_offsets[v] : r->image_bytes;
        if (!is_pattern(r->image + at, end - at)) {
            fprintf(stderr, "%s: a byte %s value %s was overwritten\n", r->c->name, v ? "behind" : "before",
                    all->values[v ? v - 1 : 0].name);
            return false;
        }
        if (v < all->value_count) {
            const sl_rows kind = all->values[v].rows;
            at = end_of_rows(r, v,
                             r->backend->fixed_buckets
                                 ? all->rows[kind]
                                 : rows_of_kind(r->c, kind, r->most_rows, r->most_outputs));
        }
    }
    for (int32_t i = 0; i < all->op_count; i++) {
        const uint64_t bytes = scratch_bytes(r, i);
        unsigned char guard[GUARD];
        if (bytes > 0 && (!check(f->read(r->executor, SL_POOL_WORKSPACE, all->scratch_offsets[i] + bytes,
                                         guard, GUARD, &error),
                                 &error, r->c->name) ||
                          !is_pattern(guard, GUARD))) {
            fprintf(stderr, "%s: the guard behind the scratch of %s was overwritten\n", r->c->name,
                    sl_op_name(all->ops[i].kind));
            return false;
        }
    }
    return true;
}

static void collect(const kt_runner *r, const step_plan *step, kt_result *result) {
    const unsigned char *image = r->image;
    const kt_case *c = r->c;
    const sl_lowered *all = &r->buckets[0];
    int32_t *list =
        kt_alloc((size_t)(all->rows[SL_ROWS_STEP] * (c->program.experts_used + 1) + all->rows[2]), 4);
    for (int32_t v = 0; v < all->value_count; v++) {
        const sl_value *value = &all->values[v];
        const uint64_t bytes = sl_value_row_bytes(value->type, value->width);
        const uint64_t fixed = (uint64_t)value->fixed * element_bytes(value->type);
        const unsigned char *at = image + all->value_offsets[v] + fixed;
        const int32_t count = list_rows(c, step, value->rows, list);
        for (int32_t i = 0; i < count; i++) {
            memcpy((char *)result->values[v] + (uint64_t)list[i] * bytes, at + (uint64_t)i * bytes, bytes);
        }
        if (v == c->schedule_value) {
            memcpy(result->schedule, image + all->value_offsets[v], fixed);
        }
    }
    free(list);
}

/* What the step has left of each span, as far as it is behind rows that the result is of. */
static bool collect_states(const kt_runner *r, const step_plan *step, kt_result *result) {
    const kt_case *c = r->c;
    const uint64_t bytes = c->program.state_bytes;
    sl_error error = {0};
    bool good = true;
    for (int32_t s = 0; s < c->span_count; s++) {
        const int32_t behind = c->span_rows[s] - step->first[s] - step->count[s];
        for (int32_t i = 0; step->count[s] > 0 && i < step->states[s] && good; i++) {
            const int32_t last = behind + i; /* rows from there to the span's last */
            const uint64_t slot = (uint64_t)(r->state_slot[s] - i);
            const int32_t at = s * states_of(c) + last;
            if (last < states_of(c)) {
                good = check(r->backend->functions->read(r->executor, SL_POOL_STATE, slot * bytes,
                                                         result->row_states + (uint64_t)at * bytes, bytes,
                                                         &error),
                             &error, c->name);
                result->has_state[at] = true;
            }
        }
    }
    return good;
}

static bool run_step(kt_runner *r, const step_plan *step, bool move, kt_random *random, kt_result *result) {
    const sl_backend_functions *f = r->backend->functions;
    sl_error error = {0};
    fill_image(r, step);
    fill_block(r, step, move, random);
    r->last_block = f->step_block(r->executor);
    const sl_step_header *header = sl_step_head(r->last_block);
    const int32_t rows = header->rows, outputs = header->outputs;
    const bool good =
        copy_image(r, rows, outputs, true) && check(f->submit(r->executor, 0, &error), &error, r->c->name) &&
        check(f->wait(r->executor, &error), &error, r->c->name) && copy_image(r, rows, outputs, false) &&
        check_rows_behind(r, rows, outputs) && collect_states(r, step, result);
    if (good) {
        collect(r, step, result);
    }
    for (int32_t s = 0; s < r->c->span_count; s++) {
        r->done[s] += step->count[s];
    }
    r->most_rows = rows > r->most_rows ? rows : r->most_rows;
    r->most_outputs = outputs > r->most_outputs ? outputs : r->most_outputs;
    return good;
}

/* ---- a run ---- */

/* The pattern for all values with their guards, the guards of scratch, and where scratch begins. */
static bool prepare_workspace(kt_runner *r) {
    const sl_backend_functions *f = r->backend->functions;
    const sl_lowered *all = &r->buckets[0];
    sl_error error = {0};
    memset(r->image, PATTERN, r->image_bytes);
    r->most_rows = r->most_outputs = 0;
    bool good = check(f->write(r->executor, SL_POOL_WORKSPACE, 0, r->image, r->image_bytes, &error), &error,
                      r->c->name);
    for (int32_t i = 0; i < all->op_count && good; i++) {
        const uint64_t bytes = scratch_bytes(r, i), fill = bytes < SCRATCH_FILL ? bytes : SCRATCH_FILL;
        if (bytes > 0) {
            unsigned char *pattern = kt_alloc(fill + GUARD, 1);
            memset(pattern, PATTERN, fill + GUARD);
            good = check(f->write(r->executor, SL_POOL_WORKSPACE, all->scratch_offsets[i], pattern, fill,
                                  &error),
                         &error, r->c->name) &&
                   check(f->write(r->executor, SL_POOL_WORKSPACE, all->scratch_offsets[i] + bytes, pattern,
                                  GUARD, &error),
                         &error, r->c->name);
            free(pattern);
        }
    }
    return good;
}

static bool prepare(kt_runner *r, kt_result *result) {
    const kt_case *c = r->c;
    const sl_deployment *d = &r->deployment;
    const sl_backend_functions *f = r->backend->functions;
    const int32_t entries = c->program.group_count * c->span_count * sl_table_width(d->limits.context);
    sl_error error = {0};
    memset(result, 0, sizeof *result);
    for (int32_t v = 0; v < c->program.value_count; v++) {
        const sl_value *value = &c->program.values[v];
        result->values[v] = kt_alloc((size_t)rows_of_kind(c, value->rows, c->rows, c->output_count),
                                     sl_value_row_bytes(value->type, value->width));
        if (v == c->schedule_value) {
            result->schedule = kt_alloc((size_t)value->fixed, sizeof(int32_t));
        }
    }
    result->cache_bytes = d->pool_bytes[SL_POOL_CACHE];
    result->state_bytes = d->pool_bytes[SL_POOL_STATE];
    result->cache = kt_alloc(result->cache_bytes, 1);
    result->state = kt_alloc(result->state_bytes, 1);
    result->row_states = kt_alloc(result->state_bytes / 2, 1);
    result->has_state = kt_alloc((size_t)(states_of(c) * c->span_count), sizeof *result->has_state);
    memset(result->cache, PATTERN, result->cache_bytes);
    memset(result->state, PATTERN, result->state_bytes);
    memset(r->next_page, 0, sizeof r->next_page);
    memset(r->moved, 0, sizeof r->moved);
    memset(r->done, 0, sizeof r->done);
    for (int32_t i = 0; i < entries; i++) {
        r->pages[i] = SL_NONE;
    }
    const int32_t width = sl_table_width(d->limits.context), rows = sl_table_rows(&d->limits);
    const int32_t all = c->program.group_count * rows * width;
    int32_t *table = kt_alloc((size_t)(all + c->span_count), sizeof *table);
    for (int32_t i = 0; i < all + c->span_count; i++) {
        table[i] = i < all ? SL_NONE : 7 * (i - all) + 3;
    }
    for (int32_t s = 0; s < c->span_count; s++) {
        r->state_set[s] = 1;
    }
    for (int32_t i = 0; i < entries; i++) { /* pages of keys that are there already */
        const int32_t group = i / width / c->span_count, in_group = i - group * width * c->span_count;
        if (i % width < c->depth / SL_PAGE_TOKENS) {
            table[group * rows * width + in_group] = r->pages[i] = r->next_page[group]++;
        }
    }
    const bool good =
        check(f->write(r->executor, SL_POOL_CACHE, 0, result->cache, result->cache_bytes, &error), &error,
              c->name) &&
        check(f->write(r->executor, SL_POOL_STATE, 0, result->state, result->state_bytes, &error), &error,
              c->name) &&
        check(f->write(r->executor, SL_POOL_TABLES, 0, table, (uint64_t)(all + c->span_count) * sizeof *table,
                       &error),
              &error, c->name) &&
        prepare_workspace(r);
    free(table);
    return good;
}

static bool finish(kt_runner *r, kt_result *result) {
    const kt_case *c = r->c;
    const sl_backend_functions *f = r->backend->functions;
    const uint64_t tables = (uint64_t)c->program.group_count *
                            (uint64_t)sl_table_rows(&r->deployment.limits) *
                            (uint64_t)sl_table_width(r->deployment.limits.context) * sizeof(int32_t);
    sl_error error = {0};
    if (c->keep > 0) {
        const sl_cache_layout *cache = &r->deployment.caches[place_of(c).group];
        result->kept_bytes = (uint64_t)sl_table_width(c->keep) * cache->page_bytes;
        result->kept = kt_alloc(result->kept_bytes, 1);
        if (!check(f->read(r->executor, SL_POOL_CACHE,
                           r->deployment.cache_offsets[place_of(c).group] +
                               (uint64_t)r->spare_page * cache->page_bytes,
                           result->kept, result->kept_bytes, &error),
                   &error, c->name)) {
            return false;
        }
    }
    return check(f->read(r->executor, SL_POOL_CACHE, 0, result->cache, result->cache_bytes, &error), &error,
                 c->name) &&
           check(f->read(r->executor, SL_POOL_STATE, 0, result->state, result->state_bytes, &error), &error,
                 c->name) &&
           check(f->read(r->executor, SL_POOL_TABLES, tables, result->last_tokens,
                         (uint64_t)c->span_count * sizeof(int32_t), &error),
                 &error, c->name) &&
           check_guards(r);
}

bool kt_run(kt_runner *r, kt_cut cut, kt_random *random, kt_result *result) {
    cut = r->c->program.both_sides ? KT_WHOLE : cut; /* a sequence is never cut */
    const kt_case *c = r->c;
    if (!prepare(r, result)) {
        return false;
    }
    for (;;) {
        step_plan step;
        int32_t start = 0, rows = 0;
        const int32_t most = c->step_rows ? c->step_rows / c->span_count : INT32_MAX;
        memset(&step, 0, sizeof step);
        for (int32_t s = 0; s < c->span_count; s++) {
            const int32_t ahead = c->span_rows[s] - (c->keep > 0 ? c->window : 0) - r->done[s];
            const int32_t left = ahead > 0 ? ahead : c->span_rows[s] - r->done[s];
            step.start[s] = start;
            step.first[s] = r->done[s];
            step.count[s] = cut == KT_WHOLE        ? left
                            : cut == KT_ROW_BY_ROW ? (rows == 0 && left > 0)
                            : left == 0 || kt_below(random, 3) == 0
                                ? 0
                                : 1 + kt_below(random, left < 70 ? left : 70);
            step.count[s] = step.count[s] < most ? step.count[s] : most;
            step.count[s] = c->keep > 0 && ahead <= 0 ? left : step.count[s];
            const int32_t states = states_of(c) < step.count[s] ? states_of(c) : step.count[s];
            step.states[s] = cut == KT_CHUNKS && states > 1 ? 1 + kt_below(random, states) : states;
            rows += step.count[s];
            start += c->span_rows[s];
        }
        int32_t left = 0;
        for (int32_t s = 0; s < c->span_count; s++) {
            left += c->span_rows[s] - r->done[s];
        }
        if (left == 0) {
            break;
        }
        if (rows > 0 && !run_step(r, &step, cut == KT_CHUNKS, random, result)) {
            return false;
        }
    }
    return finish(r, result);
}

bool kt_run_op(kt_runner *r) {
    sl_error error = {0};
    void *block = r->backend->functions->step_block(r->executor); /* not always the same one */
    if (block != r->last_block) {
        memcpy(block, r->last_block, r->deployment.step.bytes);
    }
    return check(r->backend->functions->submit(r->executor, 1, &error), &error, r->c->name) &&
           check(r->backend->functions->wait(r->executor, &error), &error, r->c->name);
}

bool kt_rates(kt_runner *r, sl_rates *rates) {
    sl_error error = {0};
    return check(r->backend->functions->rates(r->executor, rates, &error), &error, r->c->name);
}

bool kt_profile_op(kt_runner *r, double *seconds) {
    sl_error error = {0};
    int32_t *groups = kt_alloc((size_t)copies_of(r->c), sizeof *groups);
    sl_profile profile = {.groups = groups, .group_count = 1, .seconds = seconds};
    const bool good =
        check(r->backend->functions->profile(r->executor, &profile, &error), &error, r->c->name);
    *seconds /= copies_of(r->c);
    free(groups);
    return good;
}
