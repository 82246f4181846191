/* The C API: drafts, and the model that makes them. */
#include "api/speculate.h"

#include "api/models.h"
#include "base/log.h"

#include <string.h>

_Static_assert((int)SLUICE_DRAFTS == (int)SL_DRAFTS, "of one sequence in a step");

enum {
    USUAL_DRAFTS = 8,
    /* Sequences that may have all their drafts in one step; more share the rows of so many. With recurrent
     * layers each row has a state, as large as many pages of keys. */
    DRAFTING_SEQUENCES = 8,
    RECURRENT_DRAFTING_SEQUENCES = 2,
    USUAL_LONGEST = 4,
    USUAL_SHORTEST = 2,
};

/* What AUTO stands for. A head reads keys of all tokens, so it does not go with a budget for them. */
static sluice_speculate kind_of(const sl_model *model, const sluice_engine_options *o) {
    return o->speculate != SLUICE_SPECULATE_AUTO               ? o->speculate
           : o->draft_model                                    ? SLUICE_SPECULATE_DRAFT
           : model->drafting.op_count > 0 && o->kv_budget == 0 ? SLUICE_SPECULATE_MTP
                                                               : SLUICE_SPECULATE_NGRAM;
}

bool sl_api_drafts_with_head(const sl_model *model, const sluice_engine_options *o) {
    return kind_of(model, o) == SLUICE_SPECULATE_MTP && model->drafting.op_count > 0 && !o->embeddings &&
           !o->observe;
}

int32_t sl_api_draft_rows(const sl_model *model, const sluice_engine_options *o) {
    const int32_t each = o->drafts > 0 ? o->drafts : USUAL_DRAFTS;
    const int32_t most = model->program.state_count > 0 ? RECURRENT_DRAFTING_SEQUENCES : DRAFTING_SEQUENCES;
    const int32_t sequences = o->sequences > 0 && o->sequences < most ? o->sequences : most;
    return o->speculate == SLUICE_SPECULATE_OFF ? 0
                                                : (each < SLUICE_DRAFTS ? each : SLUICE_DRAFTS) * sequences;
}

static int check(const sl_model *model, const sluice_engine_options *o, sl_error *error) {
    if ((unsigned)o->speculate > SLUICE_SPECULATE_CALLER) {
        return sl_fail(error, SL_ERR_INVALID, "speculate: %d is no sluice_speculate", (int)o->speculate);
    }
    if (o->drafts < 0 || o->drafts > SLUICE_DRAFTS) {
        return sl_fail(error, SL_ERR_INVALID, "drafts: %d is not between 0 and %d", o->drafts, SLUICE_DRAFTS);
    }
    if (o->ngram_longest < 0 || o->ngram_shortest < 0 ||
        (o->ngram_longest > 0 && o->ngram_shortest > o->ngram_longest)) {
        return sl_fail(error, SL_ERR_INVALID, "ngram_longest %d, ngram_shortest %d: no range of lengths",
                       o->ngram_longest, o->ngram_shortest);
    }
    switch (kind_of(model, o)) {
    case SLUICE_SPECULATE_MTP:
        return model->drafting.op_count > 0 && o->kv_budget > 0
                   ? sl_fail(error, SL_ERR_UNSUPPORTED,
                             "speculate: mtp: the head reads keys of all tokens, kv_budget drops some; ngram "
                             "and draft go with it")
               : model->drafting.op_count > 0
                   ? 0
                   : sl_fail(error, SL_ERR_UNSUPPORTED,
                             "speculate: mtp: the model has no head that drafts; ngram and draft need none");
    case SLUICE_SPECULATE_DRAFT:
        return o->draft_model ? 0
                              : sl_fail(error, SL_ERR_INVALID, "speculate: draft: there is no draft_model");
    case SLUICE_SPECULATE_CALLER:
        return o->draft ? 0
                        : sl_fail(error, SL_ERR_INVALID, "speculate: caller: there is no function `draft`");
    default:
        return o->draft_model && kind_of(model, o) == SLUICE_SPECULATE_NGRAM
                   ? sl_fail(error, SL_ERR_INVALID,
                             "speculate: ngram: a draft_model is given, which is not used")
                   : 0;
    }
}

/* ---- a draft model
 * ------------------------------------------------------------------------------------------------ */

static int32_t slots_of(const sluice_engine_options *o) {
    return o->sequences > 0 ? o->sequences : 8;
}

static bool is_same(sl_view a, sl_view b) {
    return a.length == b.length && (a.length == 0 || memcmp(a.data, b.data, a.length) == 0);
}

/* Tokens must have the same texts, as far as both programs have them. */
static int check_vocabulary(const sl_model *model, const sl_model *draft, sl_error *error) {
    const sl_tokenizer *ours = model->tokenizer, *theirs = draft->tokenizer;
    if (!ours || !theirs) {
        return !ours && !theirs && model->program.vocabulary == draft->program.vocabulary
                   ? 0
                   : sl_fail(error, SL_ERR_INVALID, "draft_model: its vocabulary cannot be compared");
    }
    const int32_t size = sl_tokenizer_size(ours), drafts = sl_tokenizer_size(theirs);
    for (int32_t i = 0; i < size && i < drafts; i++) {
        const sl_view mine = sl_tokenizer_token_text(ours, i), its = sl_tokenizer_token_text(theirs, i);
        if (!is_same(mine, its)) {
            return sl_fail(error, SL_ERR_INVALID,
                           "draft_model: another vocabulary: token %d is \"%.*s\", the model's is \"%.*s\"",
                           i, (int)(its.length < 64 ? its.length : 64), its.data,
                           (int)(mine.length < 64 ? mine.length : 64), mine.data);
        }
    }
    /* It must be able to read whatever the model says. */
    if (size != drafts || draft->program.vocabulary < size) {
        return sl_fail(error, SL_ERR_INVALID, "draft_model: a vocabulary of %d tokens, the model's has %d",
                       drafts, size);
    }
    return 0;
}

static int open_model(sl_api_speculation *s, sluice_model *model, const sluice_engine_options *o,
                      sl_error *error) {
    const sl_model *draft = o->draft_model->model;
    if (!sl_api_has_weights(draft)) {
        return sl_api_no_weights(error);
    }
    int result = check_vocabulary(model->model, draft, error);
    if (result) {
        return result;
    }
    const int32_t sequences = slots_of(o);
    s->model = sluice_model_retain(o->draft_model);
    sluice_engine_options options = {.device = o->device,
                                     .isa = o->isa,
                                     .threads = o->threads,
                                     .chunk = o->chunk,
                                     .sequences = sequences,
                                     .context = o->context,
                                     .kv_type = o->kv_type,
                                     .cache_tokens = o->cache_tokens,
                                     .memory_limit = o->memory_limit,
                                     .host_memory_limit = o->host_memory_limit,
                                     .gpu_layers = o->gpu_layers,
                                     .cpu_experts = o->cpu_experts,
                                     .expert_cache = o->expert_cache,
                                     .no_graphs = o->no_graphs,
                                     .no_fusion = o->no_fusion,
                                     .no_repack = o->no_repack,
                                     .deterministic = o->deterministic,
                                     .prompt_precision = o->prompt_precision,
                                     .weight_copies = o->weight_copies,
                                     .split = o->split};
    memcpy(options.memory_limits, o->memory_limits, sizeof options.memory_limits);
    result = sl_api_plan_open(draft, &options, &s->planned, error);
    result = result ? result : sl_model_hold(s->model->model, error);
    if (result) {
        return result;
    }
    s->holds = true;
    sl_backend *backend = s->planned.backend;
    result = backend->functions->deploy(backend, &s->planned.plan->deployment, NULL, &s->executor, error);
    result = result ? result : sl_model_check(s->model->model, error);
    if (result == 0 && !backend->maps_weights) {
        s->holds = false; /* the device has its own */
        sl_model_let_go(s->model->model, true);
    }
    const sl_drafter_options drafter = {
        .plan = s->planned.plan, .executor = s->executor, .tokenizer = draft->tokenizer, .slots = sequences};
    return result ? result : sl_drafter_create(&drafter, &s->drafter, error);
}

/* ---- the speculation
 * ---------------------------------------------------------------------------------------------- */

static int32_t ask_caller(void *context, const sl_draft_query *query, int32_t *drafts) {
    const sl_api_speculation *s = context;
    const size_t most = (size_t)query->most;
    const size_t count = s->draft(s->draft_context, query->tokens, (size_t)query->count, drafts, most);
    return (int32_t)(count < most ? count : most);
}

int sl_api_speculation_open(sl_api_speculation *s, sluice_model *model, const sluice_engine_options *o,
                            sl_error *error) {
    int result = check(model->model, o, error);
    const sluice_speculate kind = kind_of(model->model, o);
    if (result || kind == SLUICE_SPECULATE_OFF) {
        return result;
    }
    if (o->speculate == SLUICE_SPECULATE_AUTO && kind == SLUICE_SPECULATE_NGRAM &&
        model->model->drafting.op_count > 0) {
        sl_log(SL_LOG_INFO, "speculation: ngram: the model's own head does not go with kv_budget");
    }
    s->drafts = o->drafts > 0 ? o->drafts : USUAL_DRAFTS;
    s->ngram.longest = o->ngram_longest > 0 ? o->ngram_longest : USUAL_LONGEST;
    s->ngram.shortest = o->ngram_shortest > 0 ? o->ngram_shortest : USUAL_SHORTEST;
    s->ngram.shortest = s->ngram.shortest < s->ngram.longest ? s->ngram.shortest : s->ngram.longest;
    s->draft = o->draft;
    s->draft_context = o->draft_context;
    if (kind == SLUICE_SPECULATE_DRAFT) {
        result = open_model(s, model, o, error);
        s->source = (sl_draft_source){sl_drafter_draft, s->drafter};
    } else if (kind == SLUICE_SPECULATE_CALLER) {
        s->source = (sl_draft_source){ask_caller, s};
    } else if (sl_api_drafts_with_head(model->model, o)) {
        result = sl_head_create(slots_of(o), model->model->tokenizer, &s->head, error);
        s->source = (sl_draft_source){sl_head_draft, s->head};
    } else {
        s->source = (sl_draft_source){sl_ngram_draft, &s->ngram};
    }
    return result;
}

void sl_api_speculation_planned(sl_api_speculation *s, const sl_plan *plan) {
    if (s->head && plan->deployment.program->draft_ops == 0) {
        sl_log(SL_LOG_INFO, "speculation: ngram: the model's own head drafts on one device alone");
        sl_head_destroy(s->head);
        s->head = NULL;
        s->source = (sl_draft_source){sl_ngram_draft, &s->ngram};
    }
}

void sl_api_speculation_close(sl_api_speculation *s) {
    sl_head_destroy(s->head);
    sl_drafter_destroy(s->drafter);
    if (s->executor) {
        s->planned.backend->functions->destroy_executor(s->executor);
    }
    if (s->holds) {
        sl_model_let_go(s->model->model, false);
    }
    sl_api_plan_close(&s->planned);
    sluice_model_release(s->model);
    memset(s, 0, sizeof *s);
}

static uint64_t pools_of(const sl_plan *plan) {
    return plan ? sl_plan_bytes(plan) : 0;
}

uint64_t sl_api_speculation_bytes(const sl_api_speculation *s) {
    return pools_of(s->planned.plan);
}

/* At least a byte, as 0 is no limit. */
static uint64_t without(uint64_t limit, uint64_t taken) {
    return limit == 0 ? 0 : limit > taken ? limit - taken : 1;
}

void sl_api_speculation_leave(const sl_api_speculation *s, sluice_engine_options *o) {
    const sl_plan *plan = s->planned.plan;
    const int32_t segments = plan ? plan->segment_count : 0;
    uint64_t host = plan ? plan->flight_bytes : 0,
             weights = plan ? plan->deployment.pool_bytes[SL_POOL_HOST_WEIGHTS] : 0;
    for (int32_t i = 0; i < segments; i++) {
        const sl_plan *own = plan->segments[i].plan;
        host += strcmp(own->backend->name, "cpu") == 0 ? pools_of(own) : 0;
    }
    o->memory_limit = without(o->memory_limit, pools_of(plan) - host);
    o->host_memory_limit = without(o->host_memory_limit, host + weights);
    sluice_memory_limit taken[SLUICE_MEMORY_LIMITS] = {0};
    if (plan) {
        sl_api_add_memory(plan, taken);
        sluice_memory_limits_leave(o->memory_limits, taken);
    }
}

static void draft_with_head(sl_head *head, sl_scheduler *scheduler, pthread_mutex_t *mutex) {
    sl_error error;
    if (!sl_head_begin(head, scheduler)) {
        return;
    }
    pthread_mutex_unlock(mutex);
    if (sl_head_run(head, &error)) {
        sl_log(SL_LOG_WARNING, "speculation: the model's head: %s", error.message);
    }
    pthread_mutex_lock(mutex);
    sl_head_end(head);
}

void sl_api_draft(sl_api_speculation *s, sl_scheduler *scheduler, pthread_mutex_t *mutex) {
    if (s->head) {
        draft_with_head(s->head, scheduler, mutex);
    }
    if (!s->drafter || !sl_drafter_begin(s->drafter, scheduler)) {
        return;
    }
    sl_error error;
    pthread_mutex_unlock(mutex);
    if (sl_drafter_run(s->drafter, &error)) {
        sl_log(SL_LOG_WARNING, "speculation: the draft model: %s", error.message);
    }
    pthread_mutex_lock(mutex);
    sl_drafter_end(s->drafter, scheduler);
}
