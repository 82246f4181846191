/* Making a plan: options, buckets, weights, cache and the bytes of every pool. */
#include "plan/plan.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "plan/build.h"
#include "plan/split.h"

#include <stdio.h>
#include <string.h>

/* Bounds that keep every product below inside 64 bits; far above what any machine has. */
enum { MOST_ROWS = 1 << 20, MOST_SEQUENCES = 1 << 16, MOST_CONTEXT = 1 << 28, MOST_DRAFTS = 1 << 12 };

static int out_of_memory(sl_error *error) {
    return sl_fail(error, SL_ERR_NOMEM, "plan: out of memory");
}

/* ---- options ---- */

static int resolve_one(int32_t *option, const char *name, int32_t otherwise, int32_t most, sl_error *error) {
    *option = *option == 0 ? otherwise : *option;
    if (*option < 1 || *option > most) {
        return sl_fail(error, SL_ERR_INVALID, "plan: %s %d is not in 1 to %d", name, *option, most);
    }
    return 0;
}

/* Keeps a copy of the list; each name in it must be the beginning of a kernel's. */
static int resolve_preferred(sl_plan *plan, sl_error *error) {
    const char *list = plan->options.prefer;
    int32_t count = 0;
    const sl_kernel *const *kernels = plan->backend->functions->kernels(plan->backend, &count);
    for (const char *name = list; name && *name != '\0';) {
        const int length = (int)strcspn(name, ",");
        int32_t k = 0;
        while (k < count && strncmp(kernels[k]->name, name, (size_t)length) != 0) {
            k++;
        }
        if (length == 0 || k == count) {
            return sl_fail(error, SL_ERR_INVALID,
                           "plan: kernel \"%.*s\": no kernel of backend %s has a name that begins so", length,
                           name, plan->backend->name);
        }
        name += length + (name[length] == ',');
    }
    plan->options.prefer = list ? sl_arena_printf(&plan->arena, "%s", list) : NULL;
    return list && !plan->options.prefer ? out_of_memory(error) : 0;
}

/* What the caller reads: logits and tokens, or the rows in front of the head. */
static int resolve_results(sl_plan *plan, sl_error *error) {
    sl_deployment *deployment = &plan->deployment;
    const sl_program *program = deployment->program;
    plan->options.embed |= program->logits == SL_NONE && program->hidden != SL_NONE;
    if (plan->options.embed && program->hidden == SL_NONE) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "plan: the program has no rows in front of a head");
    }
    deployment->result = plan->options.embed ? program->hidden : program->logits;
    deployment->result_width = plan->options.embed ? program->width : program->vocabulary;
    deployment->tokens = plan->options.embed ? SL_NONE : program->tokens;
    return 0;
}

/* What a sequence keeps of a long prompt. */
static int resolve_budget(sl_plan *plan, sl_error *error) {
    enum { USUAL_WINDOW = 64, USUAL_POOL = 7, MOST_POOL = 255 };
    const sl_program *program = plan->deployment.program;
    sl_plan_options *options = &plan->options;
    bool full = false;
    for (int32_t g = 0; g < program->group_count; g++) {
        full |= program->groups[g].window == 0;
    }
    if (options->kv_budget == 0) {
        return 0;
    }
    if (options->embed || program->both_sides || options->observe) {
        return sl_fail(error, SL_ERR_UNSUPPORTED,
                       "plan: kv_budget: for texts that are generated, this plan %s",
                       options->observe ? "observes" : "makes vectors");
    }
    if (program->draft_ops > 0) {
        return sl_fail(error, SL_ERR_UNSUPPORTED,
                       "plan: kv_budget: the head that drafts reads keys of all tokens");
    }
    if (!full) {
        return sl_fail(error, SL_ERR_UNSUPPORTED,
                       "plan: kv_budget: no layer of the model keeps all of a prompt");
    }
    int code = resolve_one(&options->kv_budget, "kv_budget", 0, MOST_CONTEXT, error);
    code = code ? code : resolve_one(&options->kv_window, "kv_window", USUAL_WINDOW, MOST_ROWS, error);
    code = code ? code : resolve_one(&options->kv_pool, "kv_pool", USUAL_POOL, MOST_POOL, error);
    if (code == 0 && (options->kv_budget <= options->kv_window || options->kv_pool % 2 == 0)) {
        code = sl_fail(error, SL_ERR_INVALID,
                       "plan: kv_budget %d must be more than kv_window %d, and kv_pool %d odd",
                       options->kv_budget, options->kv_window, options->kv_pool);
    }
    return code;
}

uint64_t sl_plan_limit(const sl_plan_options *options, const char *name, int32_t number, uint64_t otherwise) {
    char own[sizeof options->limits[0].device];
    uint64_t of_kind = otherwise;
    snprintf(own, sizeof own, "%s:%d", name, (int)number);
    for (int i = 0; i < SL_DEVICE_LIMITS && options->limits[i].device[0]; i++) {
        if (strcmp(options->limits[i].device, own) == 0) {
            return options->limits[i].bytes;
        }
        of_kind = strcmp(options->limits[i].device, name) == 0 ? options->limits[i].bytes : of_kind;
    }
    return of_kind;
}

enum { USUAL_SEQUENCES = 8, EMBEDDING_SEQUENCES = 64, USUAL_CONTEXT = 4096, USUAL_SNAPSHOTS = 16 };

uint64_t sl_plan_usual_cache(const sl_plan_options *options) {
    const int32_t sequences = options->sequences > 0 ? options->sequences : USUAL_SEQUENCES;
    const int32_t context = options->context > 0 ? options->context : USUAL_CONTEXT;
    return options->embed || sequences > MOST_SEQUENCES || context > MOST_CONTEXT
               ? 0
               : (uint64_t)sequences * (uint64_t)sl_table_width(context) * SL_PAGE_TOKENS;
}

static int32_t find_fixed_rows(const sl_backend *backend, const sl_program *program) {
    uint64_t floats = 0, others = 0; /* elements */
    for (int32_t w = 0; w < program->weight_count; w++) {
        const sl_weight *weight = &program->weights[w];
        const bool is_float =
            weight->type == SL_QTYPE_F32 || weight->type == SL_QTYPE_F16 || weight->type == SL_QTYPE_BF16;
        *(is_float ? &floats : &others) +=
            (uint64_t)weight->rows * (uint64_t)weight->columns * (uint64_t)weight->experts;
    }
    return floats > others ? backend->fixed_rows_of_floats : backend->fixed_rows;
}

static int resolve_options(sl_plan *plan, const sl_plan_options *given, sl_error *error) {
    const sl_program *program = plan->deployment.program;
    sl_plan_options *options = &plan->options;
    if (given) {
        *options = *given;
    } else {
        memset(options, 0, sizeof *options);
        options->cache_type = SL_QTYPE_F16;
    }
    options->memory_limit =
        sl_plan_limit(options, plan->backend->name, plan->backend->options.device, options->memory_limit);
    options->host_memory_limit = sl_plan_limit(options, "cpu", 0, options->host_memory_limit);
    plan->fixed_rows = find_fixed_rows(plan->backend, program);
    plan->is_usual_chunk = options->chunk == 0;
    int code = resolve_results(plan, error);
    code = code ? code : resolve_one(&options->context, "context", USUAL_CONTEXT, MOST_CONTEXT, error);
    code = code ? code : resolve_one(&options->chunk, "chunk", plan->backend->chunk, MOST_ROWS, error);
    if (program->both_sides && options->chunk < options->context) {
        options->chunk = options->context; /* a text is never cut */
    }
    code = code ? code : resolve_budget(plan, error);
    code = code ? code
                : resolve_one(&options->sequences, "sequences",
                              options->embed ? EMBEDDING_SEQUENCES : USUAL_SEQUENCES, MOST_SEQUENCES, error);
    code = code ? code
                : resolve_one(&options->outputs, "outputs",
                              options->embed ? options->chunk : options->sequences, MOST_ROWS, error);
    code = code ? code : resolve_preferred(plan, error);
    if (code) {
        return code;
    }
    options->outputs = options->outputs < options->sequences ? options->sequences : options->outputs;
    if (options->drafts < 0 || options->drafts > MOST_DRAFTS) {
        return sl_fail(error, SL_ERR_INVALID, "plan: drafts: %d is not in 0 to %d", options->drafts,
                       MOST_DRAFTS);
    }
    options->outputs += options->drafts;
    const int32_t sampled = options->sequences + options->drafts;
    /* Rows that choose what is kept are one step. */
    const int32_t window = options->kv_budget > 0 ? options->kv_window : 0;
    const int32_t rows = options->chunk > window ? options->chunk : window;
    if ((int64_t)rows * program->experts_used > INT32_MAX) {
        return sl_fail(error, SL_ERR_INVALID, "plan: chunk %d with %d experts per row is too much", rows,
                       program->experts_used);
    }
    _Static_assert((int64_t)SL_ADJUSTMENTS * (MOST_SEQUENCES + MOST_DRAFTS) <= INT32_MAX,
                   "the sum is an int32");
    const sl_qtype type = options->cache_type;
    if (!sl_qtype_is_cache(type)) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "plan: cache type %s is not one of %s",
                       sl_qtype_get(type) ? sl_qtype_get(type)->name : "?", sl_qtype_cache_names);
    }
    if (program->state_count == 0) {
        options->state_slots = 0;
    } else {
        code = resolve_one(&options->state_slots, "state_slots",
                           2 * options->sequences + USUAL_SNAPSHOTS + options->drafts, MOST_ROWS, error);
        if (code == 0 && options->state_slots < 2) {
            code = sl_fail(error, SL_ERR_INVALID, "plan: state_slots 1; a step reads one and writes another");
        }
    }
    if (sl_split_count(plan->backend) == 0 && (plan->backend->maps_weights || program->experts == 0)) {
        options->host_experts = options->expert_slots = 0; /* all lies in host memory, or there are none */
    }
    if (sl_split_count(plan->backend) > 0 || plan->backend->maps_weights || program->experts > 0) {
        options->host_layers = 0;
    }
    plan->deployment.limits = (sl_limits){.rows = rows,
                                          .outputs = options->outputs,
                                          .sequences = options->sequences,
                                          .context = options->context,
                                          .adjustments = SL_ADJUSTMENTS * sampled,
                                          .masks = sampled,
                                          .mask_tokens = plan->deployment.program->vocabulary,
                                          .keep = options->kv_budget,
                                          .states = program->state_count > 0 ? sampled : 0};
    return code;
}

/* ---- buckets ---- */

static void add_bucket(sl_plan *plan, int32_t rows, int32_t outputs, int32_t span_rows) {
    sl_lowered *bucket = &plan->deployment.buckets[plan->deployment.bucket_count++];
    bucket->span_rows = span_rows;
    bucket->rows[SL_ROWS_STEP] = rows;
    bucket->rows[SL_ROWS_EXPERT] = rows * plan->deployment.program->experts_used;
    bucket->rows[SL_ROWS_OUTPUT] = outputs;
    sl_tail_rows(bucket->rows, bucket->tail_rows);
    bucket->tail_span_rows = span_rows < outputs ? span_rows : outputs;
}

/* Twice as many; from FINE_ROWS on a quarter of the power of two at or below `rows` more, because kernels for
 * many rows may work on all rows of a bucket. */
static int32_t next_rows(int32_t rows) {
    enum { FINE_ROWS = 128 };
    int32_t power = FINE_ROWS;
    if (rows < FINE_ROWS) {
        return rows * 2;
    }
    while (power <= rows / 2) {
        power *= 2;
    }
    return rows + power / 4;
}

enum { FEW_ROWS = 64 }; /* to these, kernels for few rows take any step */

/* For steps of more than `fewer` sequences that go on by a row each: kernels for few rows take these. */
static void add_crowd(sl_plan *plan, int32_t fewer, int32_t rows) {
    const int32_t sequences = plan->options.sequences;
    if (fewer >= FEW_ROWS && rows > fewer && sequences > fewer) {
        add_bucket(plan, rows, rows < sequences ? rows : sequences, 1);
    }
}

/* In front of those with as many rows or more, and of the last one in any case, which takes every other step.
 */
static void insert_compacting(sl_plan *plan) {
    sl_deployment *deployment = &plan->deployment;
    const int32_t rows = plan->options.kv_window;
    const int32_t last = deployment->bucket_count;
    int32_t at = last;
    if (plan->options.kv_budget == 0) {
        return;
    }
    add_bucket(plan, rows, 1, rows);
    sl_lowered compacting = deployment->buckets[at];
    compacting.compacts = true;
    for (; at > deployment->draft_buckets &&
           (at == last || deployment->buckets[at - 1].rows[SL_ROWS_STEP] >= rows);
         at--) {
        deployment->buckets[at] = deployment->buckets[at - 1];
    }
    deployment->buckets[at] = compacting;
}

/* A row for each sequence. */
static void add_draft_buckets(sl_plan *plan) {
    const int32_t sequences = plan->options.sequences;
    const int32_t most = sequences < plan->options.chunk ? sequences : plan->options.chunk;
    for (int32_t rows = plan->backend->fixed_buckets ? 1 : most;; rows = next_rows(rows)) {
        const int32_t now = rows < most ? rows : most;
        add_bucket(plan, now, now, 1);
        plan->deployment.draft_buckets++;
        if (now == most) {
            return;
        }
    }
}

static int make_buckets(sl_plan *plan, sl_error *error) {
    const sl_plan_options *options = &plan->options;
    /* 8 to 128 rows, then four for each doubling up to MOST_ROWS; those that draft; one that compacts. */
    enum { MOST_BUCKETS = 4 * 64 + 4 * 16 };
    plan->deployment.buckets = sl_arena_alloc(&plan->arena, MOST_BUCKETS, sizeof *plan->deployment.buckets);
    if (!plan->deployment.buckets) {
        return out_of_memory(error);
    }
    if (plan->deployment.program->draft_ops > 0) {
        add_draft_buckets(plan);
    }
    if (!plan->backend->fixed_buckets) {
        add_bucket(plan, options->chunk, options->outputs, options->chunk);
        insert_compacting(plan);
        return 0;
    }
    for (int32_t rows = 1, fewer = 0;;
         rows = next_rows(rows) < options->chunk ? next_rows(rows) : options->chunk) {
        const int32_t usual = rows < options->sequences ? rows : options->sequences;
        const int32_t most = rows < options->outputs ? rows : options->outputs;
        const int32_t middle = fewer == FEW_ROWS ? (fewer + rows) / 2 : fewer;
        add_crowd(plan, fewer, middle);
        add_crowd(plan, middle, rows);
        add_bucket(plan, rows, usual, rows);
        if (most > usual) {
            add_bucket(plan, rows, most, rows);
        }
        fewer = rows;
        if (rows == options->chunk) {
            insert_compacting(plan);
            return 0;
        }
    }
}

int32_t sl_plan_draft_bucket(const sl_plan *plan, int32_t rows) {
    for (int32_t b = 0; b < plan->deployment.draft_buckets; b++) {
        if (plan->deployment.buckets[b].rows[SL_ROWS_STEP] >= rows) {
            return b;
        }
    }
    return -1;
}

int32_t sl_plan_bucket(const sl_plan *plan, const sl_step_header *step) {
    for (int32_t b = plan->deployment.draft_buckets; b < plan->deployment.bucket_count; b++) {
        const sl_lowered *bucket = &plan->deployment.buckets[b];
        if (bucket->rows[SL_ROWS_STEP] >= step->rows && bucket->rows[SL_ROWS_OUTPUT] >= step->outputs &&
            bucket->compacts == (step->compact != 0) &&
            (bucket->span_rows > 1 || step->spans == step->rows || bucket->compacts)) {
            return b;
        }
    }
    return -1;
}

/* Lowers all buckets, of each list of ops the largest first: it says which numeric classes the others must
 * take. */
static int lower_buckets(sl_plan *plan, sl_error *error) {
    sl_deployment *deployment = &plan->deployment;
    const int32_t largest = deployment->bucket_count - 1;
    sl_classes classes = {0};
    const size_t slots = (size_t)deployment->program->op_count * SL_LINEAR_SEGMENTS;
    classes.op = sl_arena_alloc(&plan->arena, slots, sizeof *classes.op);
    classes.quantize = sl_arena_alloc(&plan->arena, slots, sizeof *classes.quantize);
    if (!classes.op || !classes.quantize) {
        return out_of_memory(error);
    }
    if (plan->backend->options.deterministic || !plan->backend->fixed_buckets) {
        classes.reason = sl_arena_printf(&plan->arena, "another numeric class than the bucket of %d rows",
                                         deployment->buckets[largest].rows[SL_ROWS_STEP]);
        if (!classes.reason) {
            return out_of_memory(error);
        }
    }
    uint64_t workspace = 0;
    for (int32_t b = largest; b >= 0; b--) {
        uint64_t bytes;
        int code = sl_lower(plan, b, &classes, b == largest || b == deployment->draft_buckets - 1, error);
        code = code ? code : sl_fuse(plan, b, error);
        code = code ? code : sl_place(plan, b, &bytes, error);
        if (code) {
            return code;
        }
        workspace = bytes > workspace ? bytes : workspace;
    }
    deployment->pool_bytes[SL_POOL_WORKSPACE] = workspace;
    return 0;
}

/* ---- weights ---- */

/* Uses of one weight are chained, so that finding one takes no search through all. */
typedef struct use_list {
    sl_weight_use *uses;
    int32_t count, capacity;
    int32_t *heads; /* per weight: its last use, or SL_NONE */
    int32_t *next;  /* per use */
} use_list;

/* set: whose weights are in host memory; SL_NONE: it is on the device. */
static int add_use(sl_plan *plan, use_list *list, int32_t weight, const sl_kernel *layout, int32_t set,
                   sl_error *error) {
    for (int32_t u = list->heads[weight]; u != SL_NONE; u = list->next[u]) {
        const sl_kernel *other = list->uses[u].layout;
        if ((other ? other->pack : NULL) == (layout ? layout->pack : NULL)) {
            return 0;
        }
    }
    if (list->count == list->capacity) {
        const int32_t larger = list->capacity ? list->capacity * 2 : 64;
        sl_weight_use *uses = sl_arena_alloc(&plan->arena, (size_t)larger, sizeof *uses);
        int32_t *next = sl_arena_alloc(&plan->arena, (size_t)larger, sizeof *next);
        if (!uses || !next) {
            return out_of_memory(error);
        }
        if (list->count > 0) {
            memcpy(uses, list->uses, (size_t)list->count * sizeof *uses);
            memcpy(next, list->next, (size_t)list->count * sizeof *next);
        }
        list->uses = uses;
        list->next = next;
        list->capacity = larger;
    }
    const sl_weight *data = &plan->deployment.program->weights[weight];
    uint64_t bytes = layout ? layout->packed_bytes(data) : 0, aligned;
    if (!layout && !plan->backend->maps_weights &&
        !sl_stored_bytes(plan->backend->column_multiple, data, &bytes)) {
        return sl_fail(error, SL_ERR_LIMIT, "plan: weight %s exceeds 64 bits", data->name);
    }
    if (!layout && plan->backend->maps_weights) {
        plan->mapped_bytes += data->bytes;
    }
    uint64_t *pool = &plan->deployment.pool_bytes[set == SL_NONE ? SL_POOL_WEIGHTS : SL_POOL_HOST_WEIGHTS];
    if (!sl_align_u64(bytes, SL_POOL_ALIGNMENT, &aligned) || !sl_add_u64(*pool, aligned, pool)) {
        return sl_fail(error, SL_ERR_LIMIT, "plan: the weights exceed 64 bits");
    }
    list->next[list->count] = list->heads[weight];
    list->heads[weight] = list->count;
    list->uses[list->count++] = (sl_weight_use){
        .weight = weight, .layout = layout, .bytes = bytes, .on_host = set != SL_NONE, .set = set};
    return 0;
}

static int list_weights(sl_plan *plan, sl_error *error) {
    sl_deployment *deployment = &plan->deployment;
    const int32_t weight_count = deployment->program->weight_count;
    use_list list = {.heads = sl_arena_alloc(&plan->arena, (size_t)weight_count, sizeof *list.heads)};
    if (!list.heads) {
        return out_of_memory(error);
    }
    for (int32_t w = 0; w < weight_count; w++) {
        list.heads[w] = SL_NONE;
    }
    for (int32_t b = 0; b < deployment->bucket_count; b++) {
        const sl_lowered *bucket = &deployment->buckets[b];
        for (int32_t i = 0; i < bucket->op_count; i++) {
            const sl_op *op = &bucket->ops[i];
            int32_t weights[SL_OP_WEIGHTS];
            const int32_t count = sl_op_weights(op, weights);
            const int32_t matrices = op->kind == SL_OP_LINEAR ? op->u.linear.segment_count : 0;
            for (int32_t w = 0; w < count; w++) {
                const bool packed = w < matrices && bucket->kernels[i]->pack && !sl_plan_maps_all(plan);
                const int32_t set = packed ? SL_NONE : sl_fetch_set_of(plan, op);
                const int code =
                    weights[w] == SL_NONE
                        ? 0
                        : add_use(plan, &list, weights[w], packed ? bucket->kernels[i] : NULL, set, error);
                if (code) {
                    return code;
                }
            }
        }
    }
    deployment->weights = list.uses;
    deployment->weight_count = list.count;
    return 0;
}

/* ---- cache, and whether all fits ---- */

int sl_plan_geometry(sl_plan *plan, sl_error *error) {
    const sl_program *program = plan->deployment.program;
    for (int32_t g = 0; g < program->group_count; g++) {
        const sl_cache_group *group = &program->groups[g];
        sl_cache_layout *layout = &plan->deployment.caches[g];
        layout->type = plan->options.cache_type;
        const char *type = sl_qtype_get(layout->type)->name;
        if (!sl_qtype_bytes(layout->type, (uint64_t)group->key_size, &layout->row_key_bytes) ||
            !sl_qtype_bytes(layout->type, (uint64_t)group->value_size, &layout->row_value_bytes)) {
            return sl_fail(
                error, SL_ERR_UNSUPPORTED,
                "plan: cache type %s needs head sizes that are multiples of %u; group %s has keys of %d and "
                "values of %d",
                type, sl_qtype_get(layout->type)->block_elements, group->name, group->key_size,
                group->value_size);
        }
        layout->row_value_bytes = group->values_are_keys ? 0 : layout->row_value_bytes;
        if (!sl_mul_u64((uint64_t)group->kv_heads * SL_PAGE_TOKENS,
                        layout->row_key_bytes + layout->row_value_bytes, &layout->layer_bytes) ||
            !sl_mul_u64(layout->layer_bytes, (uint64_t)group->layers, &layout->page_bytes)) {
            return sl_fail(error, SL_ERR_LIMIT, "plan: a page of group %s exceeds 64 bits", group->name);
        }
    }
    return 0;
}

/* Sets the pages of all groups for `full` pages in a full group, and the cache pool; false when they pass 64
 * bits. A window's pages are those of all sequences behind a chunk, which could still be rolled back, those
 * of the chunk that comes next, and a quarter more for prefix reuse; it never needs more than a full group.
 */
bool sl_plan_set_pages(sl_plan *plan, uint64_t full) {
    sl_deployment *deployment = &plan->deployment;
    const sl_plan_options *options = &plan->options;
    const uint64_t rows = (uint64_t)deployment->limits.rows;
    uint64_t *pool = &deployment->pool_bytes[SL_POOL_CACHE];
    *pool = 0;
    for (int32_t g = 0; g < deployment->program->group_count; g++) {
        const int32_t window = deployment->program->groups[g].window;
        uint64_t pages = full, bytes;
        if (window > 0) {
            const uint64_t span = ((uint64_t)window + rows + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS + 2;
            const uint64_t next = rows / SL_PAGE_TOKENS + 1;
            const uint64_t held = (uint64_t)options->sequences * span + next;
            pages = held + (held + 3) / 4 < full ? held + (held + 3) / 4 : full;
        }
        if (pages > INT32_MAX || !sl_mul_u64(pages, deployment->caches[g].page_bytes, &bytes)) {
            return false;
        }
        deployment->caches[g].pages = (int32_t)pages;
        deployment->cache_offsets[g] = *pool;
        if (!sl_add_u64(*pool, bytes, pool)) {
            return false;
        }
    }
    return true;
}

/* Of those on the device; false when the sum passes 64 bits */
static bool pool_sum(const sl_plan *plan, uint64_t *sum) {
    *sum = 0;
    for (int p = 0; p < SL_POOL_COUNT; p++) {
        if (p != SL_POOL_HOST_WEIGHTS && !sl_add_u64(*sum, plan->deployment.pool_bytes[p], sum)) {
            return false;
        }
    }
    return true;
}

static bool fits(sl_plan *plan, uint64_t full, uint64_t limit, uint64_t *sum) {
    return sl_plan_set_pages(plan, full) && pool_sum(plan, sum) && *sum <= limit;
}

static int too_large(const sl_plan *plan, uint64_t sum, uint64_t limit, sl_error *error) {
    const uint64_t *bytes = plan->deployment.pool_bytes;
    char more[48] = "";
    if (bytes[SL_POOL_OBSERVATIONS] > 0) {
        snprintf(more, sizeof more, ", observations %llu", (unsigned long long)bytes[SL_POOL_OBSERVATIONS]);
    } else if (bytes[SL_POOL_FETCHED] > 0) {
        snprintf(more, sizeof more, ", %s %llu", plan->options.host_layers > 0 ? "buffers" : "experts",
                 (unsigned long long)bytes[SL_POOL_FETCHED]);
    } else if (bytes[SL_POOL_EXCHANGE] > 0) {
        snprintf(more, sizeof more, ", from other devices %llu", (unsigned long long)bytes[SL_POOL_EXCHANGE]);
    }
    return sl_fail(
        error, SL_ERR_LIMIT,
        "plan: needs %llu bytes (weights %llu, cache %llu, state %llu, workspace %llu, tables %llu, staging "
        "%llu%s), the limit is %llu",
        (unsigned long long)sum, (unsigned long long)bytes[SL_POOL_WEIGHTS],
        (unsigned long long)bytes[SL_POOL_CACHE], (unsigned long long)bytes[SL_POOL_STATE],
        (unsigned long long)bytes[SL_POOL_WORKSPACE], (unsigned long long)bytes[SL_POOL_TABLES],
        (unsigned long long)bytes[SL_POOL_STAGING], more, (unsigned long long)limit);
}

/* The other pools are known. Chooses the pages: as asked for, or as many as fit, at least one whole context.
 */
static int fit_cache(sl_plan *plan, sl_error *error) {
    sl_plan_options *options = &plan->options;
    if (options->memory_limit == 0) {
        options->memory_limit = plan->backend->functions->memory_available(plan->backend);
    }
    const uint64_t limit = options->memory_limit;
    /* What a sequence keeps is copied beside all that it had. */
    const uint64_t kept = (uint64_t)sl_table_width(options->kv_budget);
    const uint64_t least = (uint64_t)sl_table_width(options->context) + kept;
    const bool asked = options->cache_tokens != 0;
    uint64_t full =
        asked ? options->cache_tokens / SL_PAGE_TOKENS + (options->cache_tokens % SL_PAGE_TOKENS != 0)
              : (least - kept) * (uint64_t)options->sequences + kept;
    if (!asked && options->embed) {
        /* Texts leave the cache when they were read: what a step holds, and one whole context. */
        const uint64_t held = least + (uint64_t)sl_table_width(options->chunk) + (uint64_t)options->sequences;
        full = held < full ? held : full;
    }
    full = !asked && full > INT32_MAX ? INT32_MAX : full;
    uint64_t sum = 0;
    if (!fits(plan, full, limit, &sum)) {
        const uint64_t smallest = asked ? full : least;
        if (!fits(plan, smallest, limit, &sum)) {
            if (!sl_plan_set_pages(plan, smallest) || !pool_sum(plan, &sum)) {
                return sl_fail(error, SL_ERR_LIMIT, "plan: a cache of %llu pages is more than can be counted",
                               (unsigned long long)smallest);
            }
            return too_large(plan, sum, limit, error);
        }
        uint64_t fitting = least, too_many = full;
        while (too_many - fitting > 1) {
            const uint64_t middle = fitting + (too_many - fitting) / 2;
            if (fits(plan, middle, limit, &sum)) {
                fitting = middle;
            } else {
                too_many = middle;
            }
        }
        full = fitting;
        fits(plan, full, limit, &sum);
    }
    options->cache_tokens = full * SL_PAGE_TOKENS;
    return 0;
}

int sl_plan_fixed_pools(sl_plan *plan, sl_error *error) {
    sl_deployment *deployment = &plan->deployment;
    const sl_program *program = deployment->program;
    const sl_limits *limits = &deployment->limits;
    sl_step_layout_init(&deployment->step, limits, program->group_count);
    deployment->state_slots = plan->options.state_slots;
    if (!sl_mul_u64((uint64_t)deployment->state_slots, program->state_bytes,
                    &deployment->pool_bytes[SL_POOL_STATE])) {
        return sl_fail(error, SL_ERR_LIMIT, "plan: %d state slots exceed 64 bits", deployment->state_slots);
    }
    deployment->pool_bytes[SL_POOL_TABLES] = (uint64_t)program->group_count *
                                                 (uint64_t)sl_table_rows(limits) *
                                                 (uint64_t)sl_table_width(limits->context) * 4 +
                                             (uint64_t)limits->sequences * 4;
    deployment->pool_bytes[SL_POOL_STAGING] = deployment->step.bytes;
    if (!plan->backend->maps_weights) {
        deployment->pool_bytes[SL_POOL_STAGING] +=
            (uint64_t)limits->outputs * ((uint64_t)deployment->result_width * 4 + 4);
    }
    deployment->pool_bytes[SL_POOL_STAGING] *= (uint64_t)plan->backend->steps_in_flight;
    return 0;
}

/* Ranks leave values for each other in device memory; in host memory they read each other's. Parts get what
 * other devices send. */
static int exchange_pool(sl_plan *plan, sl_error *error) {
    sl_deployment *deployment = &plan->deployment;
    const uint64_t ranks = (uint64_t)deployment->program->ranks;
    uint64_t most = 0, bytes = 0;
    for (int32_t b = 0; ranks > 0 && !plan->backend->maps_weights && b < deployment->bucket_count; b++) {
        const sl_lowered *lowered = &deployment->buckets[b];
        for (int32_t i = 0; i < lowered->op_count; i++) {
            const sl_op *op = &lowered->ops[i];
            if (op->kind == SL_OP_ALL_REDUCE || op->kind == SL_OP_ALL_GATHER) {
                const sl_rows kind = lowered->values[op->in[0].value].rows;
                const int32_t width = (int32_t)sl_operand_width(deployment->program, op, false, 0);
                const uint64_t own = sl_exchange_need(
                    (int32_t)ranks, sl_exchange_x_bytes(sl_rows_of_op(lowered, op)[kind], width));
                most = own > most ? own : most;
            }
        }
    }
    deployment->exchange_bytes = (most + 255) / 256 * 256;
    if (most > 0 && !sl_mul_u64(SL_EXCHANGE_TURNS * ranks, deployment->exchange_bytes, &bytes)) {
        return sl_fail(error, SL_ERR_LIMIT, "plan: what ranks exchange exceeds 64 bits");
    }
    deployment->pool_bytes[SL_POOL_EXCHANGE] =
        most > 0 ? bytes + SL_EXCHANGE_FLAGS : plan->options.landing_bytes;
    return 0;
}

/* ---- the memory table ---- */

static void memory_row(sl_plan *plan, sl_pool_kind pool, uint64_t bytes, const char *name,
                       const char *detail) {
    sl_memory_row *row = &plan->memory[plan->memory_count++];
    row->pool = pool;
    row->bytes = bytes;
    snprintf(row->name, sizeof row->name, "%s", name);
    snprintf(row->detail, sizeof row->detail, "%s", detail);
}

/* One row per layout of the weights. */
static void weight_rows(sl_plan *plan) {
    const sl_deployment *deployment = &plan->deployment;
    for (int32_t first = 0; first < deployment->weight_count; first++) {
        const sl_kernel *layout = deployment->weights[first].layout;
        uint64_t bytes = 0;
        int32_t count = 0, earlier = deployment->weights[first].on_host;
        for (int32_t u = 0; u < deployment->weight_count; u++) {
            const sl_kernel *other = deployment->weights[u].layout;
            if (!deployment->weights[u].on_host &&
                (other ? other->pack : NULL) == (layout ? layout->pack : NULL)) {
                earlier += u < first;
                count++;
                bytes += (deployment->weights[u].bytes + SL_POOL_ALIGNMENT - 1) &
                         ~(uint64_t)(SL_POOL_ALIGNMENT - 1);
            }
            if (earlier) {
                break;
            }
        }
        if (!earlier && bytes > 0) {
            char detail[96];
            snprintf(detail, sizeof detail, "%d tensors, %s%s", count,
                     layout ? "packed for " : "in the file's layout", layout ? layout->name : "");
            memory_row(plan, SL_POOL_WEIGHTS, bytes, "weights", detail);
        }
    }
}

/* What the device has of weights in host memory. */
static void fetch_rows(sl_plan *plan) {
    const sl_deployment *deployment = &plan->deployment;
    const uint64_t buffers = SL_FETCH_BUFFERS * deployment->buffer_bytes;
    char detail[96];
    if (plan->options.host_layers > 0) {
        const uint64_t bytes = deployment->pool_bytes[SL_POOL_FETCHED];
        snprintf(detail, sizeof detail, "%d, of one layer's weights each",
                 (int)(bytes / (deployment->buffer_bytes > 0 ? deployment->buffer_bytes : 1)));
        memory_row(plan, SL_POOL_FETCHED, bytes, "weight buffers", detail);
        return;
    }
    if (buffers > 0) {
        snprintf(detail, sizeof detail, "%d, of one layer's experts each", SL_FETCH_BUFFERS);
        memory_row(plan, SL_POOL_FETCHED, buffers, "expert buffers", detail);
    }
    if (deployment->fetch_set_count > 0) {
        const int length =
            snprintf(detail, sizeof detail, "%d of %d experts in each of %d layers", deployment->expert_slots,
                     deployment->program->experts, deployment->fetch_set_count);
        if (deployment->first_experts) {
            snprintf(detail + length, sizeof detail - (size_t)length, "; %.1f %% of uses begin there",
                     100 * sl_plan_first_share(plan));
        }
        memory_row(plan, SL_POOL_FETCHED, deployment->pool_bytes[SL_POOL_FETCHED] - buffers, "expert slots",
                   detail);
    }
}

static int make_memory_table(sl_plan *plan, sl_error *error) {
    const sl_deployment *deployment = &plan->deployment;
    const sl_program *program = deployment->program;
    int32_t layouts = 1, kernel_count = 0;
    plan->backend->functions->kernels(plan->backend, &kernel_count);
    layouts += kernel_count;
    plan->memory =
        sl_arena_alloc(&plan->arena, (size_t)(layouts + SL_CACHE_GROUPS + 9), sizeof *plan->memory);
    if (!plan->memory) {
        return out_of_memory(error);
    }
    char name[64], detail[96];
    weight_rows(plan);
    fetch_rows(plan);
    for (int32_t g = 0; g < program->group_count; g++) {
        const sl_cache_layout *layout = &deployment->caches[g];
        if (layout->page_bytes == 0) {
            continue; /* a part without such layers */
        }
        snprintf(name, sizeof name, "cache %s", program->groups[g].name);
        snprintf(detail, sizeof detail, "%d pages of %d tokens, %s", layout->pages, SL_PAGE_TOKENS,
                 sl_qtype_get(layout->type)->name);
        memory_row(plan, SL_POOL_CACHE, (uint64_t)layout->pages * layout->page_bytes, name, detail);
    }
    if (program->state_count > 0) {
        snprintf(detail, sizeof detail, "%d slots", deployment->state_slots);
        memory_row(plan, SL_POOL_STATE, deployment->pool_bytes[SL_POOL_STATE], "state", detail);
    }
    snprintf(detail, sizeof detail, "largest of %d bucket%s", deployment->bucket_count,
             deployment->bucket_count == 1 ? "" : "s");
    memory_row(plan, SL_POOL_WORKSPACE, deployment->pool_bytes[SL_POOL_WORKSPACE], "workspace", detail);
    snprintf(detail, sizeof detail, "%d group%s of %d sequences of %d pages", program->group_count,
             program->group_count == 1 ? "" : "s", deployment->limits.sequences,
             sl_table_width(deployment->limits.context));
    memory_row(plan, SL_POOL_TABLES, deployment->pool_bytes[SL_POOL_TABLES], "page tables", detail);
    char times[32] = "";
    if (plan->backend->steps_in_flight > 1) {
        snprintf(times, sizeof times, ", %d steps", plan->backend->steps_in_flight);
    }
    const uint64_t blocks = deployment->step.bytes * (uint64_t)plan->backend->steps_in_flight;
    snprintf(detail, sizeof detail, "%d rows, %d outputs%s", deployment->limits.rows,
             deployment->limits.outputs, times);
    memory_row(plan, SL_POOL_STAGING, blocks, "step block", detail);
    if (deployment->pool_bytes[SL_POOL_STAGING] > blocks) {
        snprintf(detail, sizeof detail, "%d outputs of %d%s", deployment->limits.outputs,
                 deployment->result_width, times);
        memory_row(plan, SL_POOL_STAGING, deployment->pool_bytes[SL_POOL_STAGING] - blocks, "host outputs",
                   detail);
    }
    if (deployment->exchange_bytes > 0) {
        snprintf(detail, sizeof detail, "%d times for each of %d ranks", SL_EXCHANGE_TURNS, program->ranks);
        memory_row(plan, SL_POOL_EXCHANGE, deployment->pool_bytes[SL_POOL_EXCHANGE], "exchange", detail);
    } else if (plan->options.landing_bytes > 0) {
        memory_row(plan, SL_POOL_EXCHANGE, plan->options.landing_bytes, "landing places",
                   "what other devices send, of each step on its way");
    }
    if (deployment->observations) {
        memory_row(plan, SL_POOL_OBSERVATIONS, deployment->pool_bytes[SL_POOL_OBSERVATIONS], "observations",
                   "sums of squares of the linears' inputs");
    }
    return 0;
}

/* ---- create ---- */

static int create(sl_plan *plan, const sl_plan_options *options, sl_error *error) {
    int code = sl_program_check(plan->deployment.program, error);
    code = code ? code : resolve_options(plan, options, error);
    code = code ? code : make_buckets(plan, error);
    code = code ? code : sl_plan_geometry(plan, error);
    code = code ? code : sl_plan_find_tail(plan, error);
    if (code || sl_split_count(plan->backend) > 0) {
        return code ? code : sl_plan_segments(plan, error);
    }
    code = code ? code : sl_plan_observe(plan, error);
    code = code ? code : sl_list_fetch_sets(plan, error);
    code = code ? code : lower_buckets(plan, error);
    code = code ? code : exchange_pool(plan, error);
    code = code ? code : list_weights(plan, error);
    code = code ? code : sl_lay_out_fetches(plan, error);
    code = code ? code : sl_plan_fixed_pools(plan, error);
    code = code ? code : fit_cache(plan, error);
    return code ? code : make_memory_table(plan, error);
}

int sl_plan_create(const sl_program *program, sl_backend *backend, const sl_plan_options *options,
                   sl_plan **plan, sl_error *error) {
    const int32_t layers = !options ? 0 : program->experts > 0 ? options->host_experts : options->host_layers;
    const bool apart = layers != 0 && sl_split_count(backend) == 0 && !backend->maps_weights;
    return apart ? sl_plan_with_fetches(program, backend, options, plan, error)
                 : sl_plan_make(program, backend, options, plan, error);
}

static int make_plan(const sl_program *program, sl_backend *backend, const sl_plan_options *options,
                     bool has_copies, sl_plan **plan, sl_error *error) {
    *plan = NULL;
    sl_plan *made = sl_alloc_zero(1, sizeof *made);
    if (!made) {
        return out_of_memory(error);
    }
    made->backend = backend;
    made->deployment.program = program;
    made->has_copies = has_copies;
    const int code = create(made, options, error);
    if (code) {
        sl_plan_destroy(made);
        return code;
    }
    *plan = made;
    return 0;
}

/* Of weights that a plan of one device may copy, whose backend has kernels for that. */
static bool may_copy(const sl_backend *backend, const sl_plan_options *options) {
    int32_t count = 0;
    if (sl_split_count(backend) > 0 ||
        (options && (options->copies == SL_COPIES_NEVER || options->host_experts || options->host_layers))) {
        return false;
    }
    const sl_kernel *const *kernels = backend->functions->kernels(backend, &count);
    while (count > 0 && !kernels[count - 1]->copies) {
        count--;
    }
    return count > 0;
}

int sl_plan_make(const sl_program *program, sl_backend *backend, const sl_plan_options *options,
                 sl_plan **plan, sl_error *error) {
    if (may_copy(backend, options)) {
        const int code = make_plan(program, backend, options, true, plan, error);
        if ((options && options->copies == SL_COPIES_ALWAYS) ||
            (!code && sl_plan_bytes(*plan) <= (*plan)->options.memory_limit / 2)) {
            return code;
        }
        sl_plan_destroy(*plan);
    }
    return make_plan(program, backend, options, false, plan, error);
}

void sl_plan_destroy(sl_plan *plan) {
    if (plan) {
        for (int32_t s = 0; s < plan->segment_count; s++) {
            sl_plan_destroy(plan->segments[s].plan);
            sl_program_free(&plan->segments[s].program);
        }
        sl_partition_free(&plan->partition);
        sl_arena_free(&plan->arena);
        sl_free(plan);
    }
}
