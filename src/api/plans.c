/* The C API: plans, made and described. */
#include "api/plans.h"

#include "api/experts.h"
#include "api/models.h"
#include "api/speculate.h"
#include "base/alloc.h"
#include "base/log.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int parse_cache_type(const char *name, sl_qtype *type, sl_error *error) {
    int parsed = name ? sl_qtype_parse_cache(name) : SL_QTYPE_F16;
    if (parsed < 0) {
        return sl_fail(error, SL_ERR_INVALID, "kv type: \"%s\" is not one of %s", name, sl_qtype_cache_names);
    }
    *type = (sl_qtype)parsed;
    return 0;
}

static int backend_options(const sluice_engine_options *o, sl_backend_options *out, sl_error *error) {
    int isa = o->isa ? sl_isa_parse(o->isa) : (int)sl_cpu_isa();
    if (isa < 0) {
        return sl_fail(error, SL_ERR_INVALID, "isa: \"%s\" is not one of plain, avx2, avxvnni, avx512, amx",
                       o->isa);
    }
    if (!sl_cpu_has((sl_isa)isa)) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "isa: this machine has %s, not %s",
                       sl_isa_name(sl_cpu_isa()), o->isa);
    }
    _Static_assert((int)SLUICE_PROMPT_FP8 == (int)SL_PRECISION_FP8 &&
                       SL_PRECISION_COUNT == SLUICE_PROMPT_FP8 + 1,
                   "the same precisions in the same order");
    if ((unsigned)o->prompt_precision >= SL_PRECISION_COUNT) {
        return sl_fail(error, SL_ERR_INVALID, "prompt precision: %d is no sluice_prompt_precision",
                       (int)o->prompt_precision);
    }
    _Static_assert((int)SLUICE_COPIES_ALWAYS == (int)SL_COPIES_ALWAYS &&
                       SL_COPIES_COUNT == SLUICE_COPIES_ALWAYS + 1,
                   "the same choices in the same order");
    if ((unsigned)o->weight_copies >= SL_COPIES_COUNT) {
        return sl_fail(error, SL_ERR_INVALID, "weight copies: %d is no sluice_weight_copies",
                       (int)o->weight_copies);
    }
    *out = (sl_backend_options){.threads = o->threads,
                                .isa = (sl_isa)isa,
                                .no_graphs = o->no_graphs,
                                .no_fusion = o->no_fusion,
                                .no_repack = o->no_repack,
                                .deterministic = o->deterministic,
                                .prompt_precision = (sl_precision)o->prompt_precision};
    return 0;
}

int sl_api_plan_open(const sl_model *model, const sluice_engine_options *o, sl_api_plan *planned,
                     sl_error *error) {
    memset(planned, 0, sizeof *planned);
    if (!sl_api_has_weights(model)) {
        return sl_api_no_weights(error);
    }
    sl_backend_options options;
    int result = backend_options(o, &options, error);
    enum { USUAL_CONTEXT = 4096 };
    int32_t most = model->config.context > 0 ? model->config.context : USUAL_CONTEXT;
    sl_plan_options plan_options = {
        .chunk = o->chunk,
        .sequences = o->sequences,
        .context = o->context             ? o->context
                   : most < USUAL_CONTEXT ? most
                                          : USUAL_CONTEXT,
        .outputs = o->outputs,
        .cache_tokens = o->cache_tokens,
        .state_slots = o->state_slots,
        .memory_limit = o->memory_limit,
        .prefer = o->kernels,
        .embed = o->embeddings,
        .observe = o->observe,
        .drafts = sl_api_draft_rows(model, o),
        .host_memory_limit = o->host_memory_limit,
        .kv_budget = o->kv_budget,
        .kv_window = o->kv_window,
        .kv_pool = o->kv_pool,
        .host_experts = model->program.experts > 0 ? o->cpu_experts : 0,
        .expert_cache = o->expert_cache,
        .copies = (sl_copies)o->weight_copies,
    };
    if (result == 0 &&
        (o->chunk < 0 || o->sequences < 0 || o->context < 0 || o->outputs < 0 || o->state_slots < 0)) {
        result =
            sl_fail(error, SL_ERR_INVALID,
                    "chunk %d, sequences %d, context %d, outputs %d, state slots %d: none may be negative",
                    o->chunk, o->sequences, o->context, o->outputs, o->state_slots);
    }
    if (result == 0 && o->cpu_experts < 0) {
        result = sl_fail(error, SL_ERR_INVALID, "cpu experts: %d layers", o->cpu_experts);
    }
    if (result == 0 && o->cpu_experts > 0 && model->program.experts == 0) {
        sl_log(SL_LOG_WARNING, "cpu experts: the model has none");
    }
    if (result == 0 && o->context > most) {
        sl_log(SL_LOG_WARNING, "context: %d tokens are more than the %d that the model was made for",
               o->context, most);
    }
    if (result == 0) {
        result = parse_cache_type(o->kv_type, &plan_options.cache_type, error);
    }
    result = result ? result : sl_api_take_limits(o, &plan_options, error);
    if (result == 0 && o->expert_pin) {
        result = sl_api_read_expert_uses(model, o->expert_pin, &planned->expert_uses, error);
        plan_options.expert_uses = planned->expert_uses;
    }
    if (result == 0) {
        const sl_program *drafting = sl_api_drafts_with_head(model, o) ? &model->drafting : NULL;
        const sl_api_placing placing = {&model->program, drafting, &options, &plan_options, o};
        result = sl_api_place_model(&placing, planned, error);
    }
    if (result == 0 && o->expert_pin && planned->plan->deployment.fetch_set_count == 0) {
        sl_log(SL_LOG_INFO, "expert pin: the GPU fetches no experts here, so there are none to be at hand");
    }
    if (result) {
        sl_api_plan_close(planned);
    }
    return result;
}

void sl_api_plan_close(sl_api_plan *planned) {
    sl_plan_destroy(planned->plan);
    sl_backend_close(planned->backend);
    sl_free(planned->expert_uses);
    memset(planned, 0, sizeof *planned);
}

/* What one token of one sequence costs with an empty cache: bytes of weights read, floating-point operations.
 * Each page of the cache is read besides. */
static json_t *token_json(const sl_plan *plan) {
    const sl_program *program = plan->deployment.program;
    const int32_t used = program->experts_used > 0 ? program->experts_used : 1;
    const int32_t rows[SL_ROWS_COUNT] = {[SL_ROWS_STEP] = 1, [SL_ROWS_EXPERT] = used, [SL_ROWS_OUTPUT] = 1};
    sl_cost sum = {0};
    for (int32_t i = 0; i < program->op_count - program->draft_ops; i++) {
        const sl_cost cost = sl_op_cost(program, &program->ops[i], rows, 0);
        sum.operations += cost.operations;
        sum.weight_bytes += cost.weight_bytes;
    }
    return json_pack("{s:I, s:I}", "weight_bytes", (json_int_t)sum.weight_bytes, "operations",
                     (json_int_t)sum.operations);
}

static json_t *memory_json(const sl_api_plan *planned) {
    const sl_plan *plan = planned->plan;
    json_t *rows = json_array();
    for (int32_t i = 0; rows && i < plan->memory_count; i++) {
        const sl_memory_row *row = &plan->memory[i];
        json_array_append_new(rows, json_pack("{s:s, s:I, s:s, s:s*}", "name", row->name, "bytes",
                                              (json_int_t)row->bytes, "detail", row->detail, "device",
                                              row->device));
    }
    const uint64_t limit = plan->options.memory_limit;
    return json_pack("{s:s, s:o, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "device", plan->backend->description,
                     "memory", rows, "total_bytes", (json_int_t)sl_plan_bytes(plan), "host_weights_bytes",
                     (json_int_t)plan->deployment.pool_bytes[SL_POOL_HOST_WEIGHTS], "mapped_bytes",
                     (json_int_t)plan->mapped_bytes, "memory_limit",
                     limit == UINT64_MAX ? json_null() : json_integer((json_int_t)limit), "token",
                     token_json(plan), "places", sl_api_places_json(planned), "speeds",
                     sl_api_speeds_json(planned));
}

/* Lines of text as a JSON array. */
static json_t *lines_json(const sl_buffer *text) {
    json_t *lines = json_array();
    for (const char *at = text->data; lines && at && *at;) {
        size_t length = strcspn(at, "\n");
        json_array_append_new(lines, json_stringn(at, length));
        at += length + (at[length] == '\n');
    }
    return lines;
}

int sluice_plan_describe(const sluice_model *model, const sluice_engine_options *given, sluice_plan_view view,
                         sluice_text_format format, char **text, sluice_error *error) {
    if (sl_api_lacks_text(model, format, text, error)) {
        return SL_ERR_INVALID;
    }
    if ((unsigned)view > SLUICE_PLAN_EXPLAIN) {
        return sl_api_fail(error, SL_ERR_INVALID, "view: %d is no sluice_plan_view", (int)view);
    }
    sluice_engine_options options;
    int result = sl_api_options(&options, sizeof options, given, "sluice_engine_options", error);
    if (result) {
        return result;
    }
    sl_error inner;
    sl_api_plan planned;
    result = sl_api_plan_open(model->model, &options, &planned, &inner);
    if (result) {
        return sl_api_error(error, &inner);
    }
    sl_buffer buffer = {0};
    if (view == SLUICE_PLAN_OPS) {
        sl_plan_print_ops(planned.plan, planned.plan->deployment.bucket_count - 1, &buffer);
    } else if (view == SLUICE_PLAN_EXPLAIN) {
        sl_api_print_places(&planned, &buffer);
        sl_plan_explain(planned.plan, &buffer);
    } else if (format == SLUICE_TEXT) {
        sl_plan_print_memory(planned.plan, &buffer);
        sl_api_print_places(&planned, &buffer);
    }
    if (format == SLUICE_TEXT) {
        result = sl_api_give_text(&buffer, text, NULL, error);
    } else {
        json_t *value = view == SLUICE_PLAN_MEMORY ? memory_json(&planned) : lines_json(&buffer);
        sl_buffer_free(&buffer);
        result = sl_api_give_json(value, text, error);
    }
    sl_api_plan_close(&planned);
    return result;
}
