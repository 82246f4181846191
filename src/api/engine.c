#define _GNU_SOURCE
/* The C API: engines and sequences. */
#include "api/engine.h"

#include "api/experts.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/map.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- the stepping thread
 * -------------------------------------------------------------------------------------------- */

static void note_step(sluice_engine *engine, int32_t bucket) {
    const sl_plan *plan = engine->planned.plan;
    void *block = engine->planned.backend->functions->step_block(engine->executor);
    const sl_step_header *head = sl_step_head(block);
    const sl_step_row *rows = sl_step_rows(&plan->deployment.step, block);
    double keys = 0;
    for (int32_t i = 0; i < head->rows; i++) {
        keys += rows[i].position + 1;
    }
    const int32_t used = plan->deployment.program->experts_used;
    engine->last_step = (sl_plan_step){.bucket = bucket,
                                       .rows = {[SL_ROWS_STEP] = head->rows,
                                                [SL_ROWS_EXPERT] = head->rows * used,
                                                [SL_ROWS_OUTPUT] = head->outputs},
                                       .keys = (int32_t)(keys / head->rows + 0.5),
                                       .spans = head->spans};
}

/* The device is gone, or a file that weights are read from. */
static void give_up(sluice_engine *engine, const sl_error *error) {
    engine->failed = true;
    engine->failure = *error;
    sl_scheduler_fail_all(engine->scheduler, error);
}

/* Takes over what the backend counted. It counts while it runs a step, without the lock: so only the thread
 * that runs steps may look, or whoever is alone with the engine. */
static void take_counts(sluice_engine *engine) {
    sl_counters c;
    engine->planned.backend->functions->counters(engine->executor, &c);
    sluice_counters *all = &engine->counted;
    all->eager_steps = c.eager_steps;
    all->replayed_steps = c.replayed_steps;
    all->captured_buckets = c.captured_buckets;
    all->failed_captures = c.failed_captures;
    all->device_allocations = c.device_allocations;
    all->synchronisations = c.synchronisations;
    sl_api_take_expert_counts(engine, &c);
    all->batched_calls = all->batched_rows = 0;
    for (int32_t i = 0; i < c.kernel_count; i++) {
        const sl_kernel *kernel = c.kernels[i].kernel;
        if (kernel->op == SL_OP_LINEAR && kernel->batched) {
            all->batched_calls += c.kernels[i].calls;
            all->batched_rows += c.kernels[i].rows;
        }
    }
}

/* After a step: what it read may be lost. */
static int check_files(sluice_engine *engine, sl_error *error) {
    const unsigned losses = sl_map_losses();
    if (losses == engine->losses || !engine->holds) {
        return 0;
    }
    engine->losses = losses;
    return sl_model_check(engine->model->model, error);
}

/* Under the lock, with a step in flight that began then: until the next has to be submitted, or cannot follow
 * because somebody came who can be in it. */
static void wait_for_newcomers(sluice_engine *engine, double begin) {
    for (;;) {
        const double after = sl_scheduler_follow_after(engine->scheduler), until = begin + after;
        if (after < 0 || engine->stop || sl_seconds_now() >= until) {
            return;
        }
        const struct timespec time = {.tv_sec = (time_t)until,
                                      .tv_nsec = (long)((until - (double)(time_t)until) * 1e9)};
        pthread_cond_timedwait(&engine->work_came, &engine->mutex, &time);
    }
}

/* Writes the masks of the step that was built, unless they have to wait; says whether they do. */
static bool make_masks(sluice_engine *engine) {
    const sl_step_header *head =
        sl_step_head(engine->planned.backend->functions->step_block(engine->executor));
    const bool later = head->masks_later != 0;
    if (!later) {
        sl_scheduler_fill_masks(engine->scheduler);
    }
    return later;
}

/* By the thread that runs steps. */
static uint64_t captures(sluice_engine *engine) {
    sl_counters c;
    engine->planned.backend->functions->counters(engine->executor, &c);
    return c.captured_buckets + c.failed_captures;
}

/* Of a step's time: whoever waited no longer for its end came when it was over. */
static const double NO_WAIT_PART = 0.02;

/* Runs the step that was built, and those that follow it without a pause. Called and left with the lock held;
 * it is free while the device works. */
static void run_steps(sluice_engine *engine, int32_t bucket) {
    const sl_backend_functions *functions = engine->planned.backend->functions;
    sl_error error, next_error;
    bool follows = true, masks_due = false;
    double begin = sl_seconds_now();
    note_step(engine, bucket);
    pthread_mutex_unlock(&engine->mutex);
    make_masks(engine);
    uint64_t captured = captures(engine), next_captured = 0;
    int status = functions->submit(engine->executor, bucket, &error), next_status = 0;
    while (follows) {
        pthread_mutex_lock(&engine->mutex);
        wait_for_newcomers(engine, begin);
        follows = !status && !engine->stop && sl_scheduler_follow(engine->scheduler, &bucket) > 0;
        if (follows) {
            note_step(engine, bucket);
        }
        pthread_mutex_unlock(&engine->mutex);
        if (follows) {
            masks_due = make_masks(engine);
            next_captured = captures(engine);
            next_status = functions->submit(engine->executor, bucket, &next_error);
        }
        const double asked = sl_seconds_now();
        status = status ? status : functions->wait(engine->executor, &error);
        const double waited = sl_seconds_now() - asked;
        status = status ? status : check_files(engine, &error);
        const double end = sl_seconds_now();
        pthread_mutex_lock(&engine->mutex);
        /* While a step is captured, itself or the one behind it, its time says nothing. */
        if (captures(engine) == captured) {
            sl_scheduler_measured(engine->scheduler, end - begin, waited < NO_WAIT_PART * (end - begin));
        }
        captured = next_captured;
        begin = end;
        take_counts(engine);
        sl_scheduler_commit(engine->scheduler, status, &error);
        if (status == SL_ERR_DEVICE || status == SL_ERR_IO) {
            give_up(engine, &error);
            follows = false;
        }
        pthread_cond_broadcast(&engine->step_done);
        if (follows) {
            pthread_mutex_unlock(&engine->mutex);
            status = next_status;
            error = next_error;
            if (masks_due && sl_scheduler_fill_masks(engine->scheduler) && !status) {
                status = functions->resume(engine->executor, &error);
            }
        }
    }
}

/* Builds a step; 0 rows: there is nothing to do, or `waits` says that there is something else. */
static int32_t build_step(sluice_engine *engine, int32_t *bucket, bool *waits) {
    sl_error error;
    *waits = true;
    bool loading = false;
    sl_api_feed(engine);
    int result = engine->failed ? 0 : sl_api_keep_load(engine, &loading, &error);
    if (!engine->failed && !result && !engine->stop) {
        sl_api_draft(&engine->speculation, engine->scheduler, &engine->mutex);
    }
    const int32_t rows =
        engine->failed || result || engine->stop ? 0 : sl_scheduler_build(engine->scheduler, bucket);
    if (rows == 0) {
        bool saving = false;
        pthread_cond_broadcast(&engine->step_done); /* building may have ended requests */
        if (!engine->failed && !result && !loading && !engine->stop) {
            result = sl_api_keep_save(engine, &saving, &error);
        }
        *waits = !loading && !saving && (engine->failed || !sl_scheduler_could_load(engine->scheduler));
    }
    if (result && !engine->failed) {
        give_up(engine, &error);
        sl_api_feed(engine);
        pthread_cond_broadcast(&engine->step_done);
    }
    return rows;
}

static void *step_thread(void *argument) {
    sluice_engine *engine = argument;
    pthread_mutex_lock(&engine->mutex);
    while (!engine->stop) {
        int32_t bucket;
        bool waits;
        if (build_step(engine, &bucket, &waits) == 0) {
            if (waits && !engine->stop) {
                pthread_cond_wait(&engine->work_came, &engine->mutex);
            }
            continue;
        }
        double begin = sl_seconds_now();
        engine->stepping = true;
        run_steps(engine, bucket);
        engine->stepping = false;
        engine->step_seconds += sl_seconds_now() - begin;
    }
    sl_error error;
    sl_fail(&error, SL_ERR_CANCELLED, "the engine was destroyed");
    sl_scheduler_fail_all(engine->scheduler, &error);
    pthread_cond_broadcast(&engine->step_done);
    pthread_mutex_unlock(&engine->mutex);
    return NULL;
}

/* ---- engine
 * ---------------------------------------------------------------------------------------------------------
 */

typedef struct load_progress {
    sluice_progress function;
    void *context;
} load_progress;

static bool report_progress(void *context, uint64_t done, uint64_t total) {
    const load_progress *progress = context;
    return progress->function(progress->context, done, total);
}

static int list_ends(sluice_engine *engine, sl_error *error) {
    const sl_tokenizer *tokenizer = engine->model->model->tokenizer;
    const int32_t program = engine->planned.plan->deployment.program->vocabulary;
    const int32_t size = tokenizer ? sl_tokenizer_size(tokenizer) : 0;
    const int32_t count = size < program ? size : program;
    for (int32_t token = 0; token < count; token++) {
        engine->end_count += sl_tokenizer_is_eog(tokenizer, token);
    }
    engine->ends = sl_alloc_zero((size_t)engine->end_count + 1, sizeof *engine->ends);
    if (!engine->ends) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for the tokens that end a text");
    }
    for (int32_t token = 0, i = 0; token < count; token++) {
        engine->ends[i] = token;
        i += sl_tokenizer_is_eog(tokenizer, token);
    }
    return 0;
}

static int check_scheduling(const sluice_engine_options *options, sl_error *error) {
    if (options->queue < 0) {
        return sl_fail(error, SL_ERR_INVALID, "queue: %d is negative", options->queue);
    }
    if (!(options->prompt_seconds > -1e9) || !(options->prompt_seconds < 1e9)) {
        return sl_fail(error, SL_ERR_INVALID, "prompt_seconds: %g is not between -1e9 and 1e9",
                       options->prompt_seconds);
    }
    return 0;
}

/* A draft model's pools count in the same limits. */
static int open_plan(sluice_engine *engine, const sluice_engine_options *options, sl_error *error) {
    sluice_engine_options own = *options;
    sl_api_speculation_leave(&engine->speculation, &own);
    const int result = sl_api_plan_open(engine->model->model, &own, &engine->planned, error);
    if (result == 0) {
        sl_api_speculation_planned(&engine->speculation, engine->planned.plan);
    }
    return result;
}

static int start_engine(sluice_engine *engine, const sluice_engine_options *options, sl_error *error) {
    int result = check_scheduling(options, error);
    result = result ? result : sl_api_speculation_open(&engine->speculation, engine->model, options, error);
    result = result ? result : open_plan(engine, options, error);
    if (result) {
        return result;
    }
    result = list_ends(engine, error);
    if (result) {
        return result;
    }
    snprintf(engine->device, sizeof engine->device, "%s: %s", engine->planned.backend->name,
             engine->planned.backend->description);
    load_progress load = {options->progress, options->progress_context};
    sl_progress progress = {report_progress, &load};
    const sl_plan *plan = engine->planned.plan;
    result = sl_model_hold(engine->model->model, error);
    if (result) {
        return result;
    }
    engine->holds = true;
    result = sl_api_keep_open(engine, options, error);
    if (result) {
        return result;
    }
    result = engine->planned.backend->functions->deploy(engine->planned.backend, &plan->deployment,
                                                        options->progress ? &progress : NULL,
                                                        &engine->executor, error);
    result = result ? result : sl_model_check(engine->model->model, error);
    if (result == 0 && !engine->planned.backend->maps_weights) {
        engine->holds = false; /* the device has its own */
        sl_model_let_go(engine->model->model, true);
    }
    engine->reuses_prefixes = !options->no_prefix_reuse;
    if (result == 0) {
        const sl_scheduler_options scheduling = {.reuse = !options->no_prefix_reuse,
                                                 .queue = options->queue,
                                                 .prompt_seconds = options->prompt_seconds,
                                                 .source = engine->speculation.source,
                                                 .drafts = engine->speculation.drafts,
                                                 .always = options->draft_always};
        result = sl_scheduler_create(plan, engine->executor, &scheduling, &engine->scheduler, error);
    }
    result = result ? result : sl_api_keep_begin(engine, error);
    result = result ? result : sl_api_begin_expert_counts(engine, error);
    if (result == 0) {
        take_counts(engine);
        int failed = pthread_create(&engine->thread, NULL, step_thread, engine);
        engine->thread_runs = failed == 0;
        if (failed) {
            result = sl_fail(error, SL_ERR_NOMEM, "cannot start the engine's thread: %s", strerror(failed));
        }
    }
    return result;
}

int sluice_engine_create(sluice_model *model, const sluice_engine_options *given, sluice_engine **out,
                         sluice_error *error) {
    if (sl_api_lacks(out, "engine", error)) {
        return SL_ERR_INVALID;
    }
    *out = NULL;
    sluice_engine_options options;
    int result = sl_api_lacks(model, "model", error) ? SL_ERR_INVALID : 0;
    result =
        result ? result : sl_api_options(&options, sizeof options, given, "sluice_engine_options", error);
    if (result) {
        return result;
    }
    sluice_engine *engine = sl_alloc_zero(1, sizeof *engine);
    if (!engine) {
        return sl_api_fail(error, SL_ERR_NOMEM, "out of memory for an engine");
    }
    engine->model = sluice_model_retain(model);
    pthread_mutex_init(&engine->mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&engine->work_came, &attributes);
    pthread_cond_init(&engine->step_done, &attributes);
    pthread_condattr_destroy(&attributes);
    sl_error inner;
    result = start_engine(engine, &options, &inner);
    if (result) {
        sluice_engine_destroy(engine);
        return sl_api_error(error, &inner);
    }
    *out = engine;
    return 0;
}

void sluice_engine_destroy(sluice_engine *engine) {
    if (!engine) {
        return;
    }
    if (engine->thread_runs) {
        pthread_mutex_lock(&engine->mutex);
        engine->stop = true;
        pthread_cond_broadcast(&engine->work_came);
        pthread_mutex_unlock(&engine->mutex);
        pthread_join(engine->thread, NULL);
    }
    sl_api_keep_close(engine);
    sl_scheduler_destroy(engine->scheduler);
    sl_api_speculation_close(&engine->speculation);
    if (engine->executor) {
        engine->planned.backend->functions->destroy_executor(engine->executor);
    }
    if (engine->holds) {
        sl_model_let_go(engine->model->model, false);
    }
    sl_api_plan_close(&engine->planned);
    pthread_cond_destroy(&engine->work_came);
    pthread_cond_destroy(&engine->step_done);
    pthread_mutex_destroy(&engine->mutex);
    sluice_model_release(engine->model);
    sl_free(engine->expert_counts);
    sl_free(engine->ends);
    sl_free(engine);
}

int32_t sluice_engine_context(const sluice_engine *engine) {
    return engine ? engine->planned.plan->deployment.limits.context : 0;
}

int32_t sluice_engine_sequences(const sluice_engine *engine) {
    return engine ? engine->planned.plan->deployment.limits.sequences : 0;
}

const char *sluice_engine_device(const sluice_engine *engine) {
    return engine ? engine->device : "";
}

void sluice_engine_get_counters(sluice_engine *engine, sluice_counters *out) {
    if (!engine || !out) {
        return;
    }
    pthread_mutex_lock(&engine->mutex);
    sluice_counters all = engine->counted;
    const sl_scheduler_counters *s = sl_scheduler_counts(engine->scheduler);
    all.steps = s->steps;
    all.rows = s->rows;
    all.outputs = s->outputs;
    all.reused_tokens = s->reused_tokens;
    all.preemptions = s->preemptions;
    all.prompt_tokens = s->prompt_tokens;
    all.generated_tokens = s->generated_tokens;
    for (int i = 0; i < SLUICE_DRAFTS; i++) {
        all.drafted += all.drafted_at[i] = s->drafted[i];
        all.accepted += all.accepted_at[i] = s->accepted[i];
    }
    sl_scheduler_load load;
    sl_scheduler_get_load(engine->scheduler, &load);
    all.running = (uint64_t)load.running;
    all.waiting = (uint64_t)load.waiting;
    all.cache_tokens = load.cache_tokens;
    all.cache_tokens_used = load.used_tokens;
    all.cache_tokens_kept = load.kept_tokens;
    all.page_tokens = SL_PAGE_TOKENS;
    all.step_seconds = engine->step_seconds;
    all.memory = sl_plan_bytes(engine->planned.plan);
    all.memory += sl_api_speculation_bytes(&engine->speculation);
    sl_api_add_memory(engine->planned.plan, all.memory_on);
    if (engine->speculation.planned.plan) {
        sl_api_add_memory(engine->speculation.planned.plan, all.memory_on);
    }
    if (engine->keeper) {
        all.stored_pages = sl_keeper_counts(engine->keeper).stored_pages;
        all.loaded_pages = sl_keeper_counts(engine->keeper).loaded_pages;
    }
    pthread_mutex_unlock(&engine->mutex);
    size_t size = out->size < sizeof all ? out->size : sizeof all;
    size_t kept = out->size;
    memcpy(out, &all, size);
    out->size = kept;
}

/* 0 when the device can be measured now; with the lock held, like the next. */
static int check_idle(const sluice_engine *engine, const char *what, sl_error *error) {
    if (engine->stepping || sl_scheduler_has_work(engine->scheduler)) {
        return sl_fail(error, SL_ERR_BUSY, "%s: the engine has unfinished requests", what);
    }
    if (engine->failed) {
        *error = engine->failure;
        return error->code;
    }
    return 0;
}

static void keep_failure(sluice_engine *engine, int result, const sl_error *error) {
    if (result == SL_ERR_DEVICE && !engine->failed) {
        engine->failed = true;
        engine->failure = *error;
    }
}

int sluice_engine_profile(sluice_engine *engine, sluice_text_format format, char **text,
                          sluice_error *error) {
    if (sl_api_lacks(text, "text", error)) {
        return SL_ERR_INVALID;
    }
    *text = NULL;
    sl_error inner;
    sl_plan_profile profile = {0};
    if (sl_api_lacks(engine, "engine", error)) {
        return SL_ERR_INVALID;
    }
    if ((unsigned)format > SLUICE_JSON) {
        return sl_api_fail(error, SL_ERR_INVALID, "format: %d is no sluice_text_format", (int)format);
    }
    if (engine->reuses_prefixes) {
        return sl_api_fail(error, SL_ERR_INVALID,
                           "profile: spoils cached pages, so it wants an engine with no_prefix_reuse");
    }
    pthread_mutex_lock(&engine->mutex);
    int result = check_idle(engine, "profile", &inner);
    if (!result) {
        result = sl_plan_profile_step(engine->planned.plan, engine->executor, &engine->last_step, &profile,
                                      &inner);
    }
    keep_failure(engine, result, &inner);
    pthread_mutex_unlock(&engine->mutex);
    result = result ? sl_api_error(error, &inner) : sl_api_profile_text(&profile, format, text, error);
    sl_plan_profile_free(&profile);
    return result;
}

int sluice_engine_measure_rates(sluice_engine *engine, sluice_rates *out, sluice_error *error) {
    sl_error inner;
    sl_rates rates = {0};
    if (sl_api_lacks(engine, "engine", error) || sl_api_lacks(out, "rates", error)) {
        return SL_ERR_INVALID;
    }
    pthread_mutex_lock(&engine->mutex);
    int result = check_idle(engine, "rates", &inner);
    result = result ? result : engine->planned.backend->functions->rates(engine->executor, &rates, &inner);
    keep_failure(engine, result, &inner);
    pthread_mutex_unlock(&engine->mutex);
    if (result) {
        return sl_api_error(error, &inner);
    }
    const sluice_rates all = {.size = out->size,
                              .threads = rates.threads,
                              .read_bytes = rates.read_bytes,
                              .int8_operations = rates.operations[SL_WITH_INT8],
                              .bf16_operations = rates.operations[SL_WITH_BF16],
                              .f32_operations = rates.operations[SL_WITH_F32],
                              .quantised_products = sl_rates_of(&rates, SL_WITH_INT8),
                              .bf16_products = sl_rates_of(&rates, SL_WITH_BF16),
                              .f32_products = sl_rates_of(&rates, SL_WITH_F32)};
    memcpy(out, &all, out->size < sizeof all ? out->size : sizeof all);
    return 0;
}

/* ---- sequences
 * ------------------------------------------------------------------------------------------------------ */

/* Wraps a core sequence; takes it over also on failure. */
static int wrap_sequence(sluice_engine *engine, sl_sequence *core, sluice_sequence **out,
                         sluice_error *error) {
    sluice_sequence *sequence = sl_alloc_zero(1, sizeof *sequence);
    if (!sequence) {
        pthread_mutex_lock(&engine->mutex);
        sl_sequence_destroy(engine->scheduler, core);
        pthread_mutex_unlock(&engine->mutex);
        return sl_api_fail(error, SL_ERR_NOMEM, "out of memory for a sequence");
    }
    sequence->engine = engine;
    sequence->core = core;
    *out = sequence;
    return 0;
}

int sluice_sequence_create(sluice_engine *engine, sluice_sequence **out, sluice_error *error) {
    if (sl_api_lacks(out, "sequence", error)) {
        return SL_ERR_INVALID;
    }
    *out = NULL;
    if (sl_api_lacks(engine, "engine", error)) {
        return SL_ERR_INVALID;
    }
    sl_error inner;
    sl_sequence *core;
    pthread_mutex_lock(&engine->mutex);
    int result = sl_sequence_create(engine->scheduler, &core, &inner);
    pthread_mutex_unlock(&engine->mutex);
    return result ? sl_api_error(error, &inner) : wrap_sequence(engine, core, out, error);
}

/* Under the lock: a sequence whose request has ended may still be in a step that had begun by then. */
void sl_api_wait_for_steps(sluice_engine *engine, const sl_sequence *core) {
    while (!core->work && core->in_step) {
        pthread_cond_wait(&engine->step_done, &engine->mutex);
    }
}

int sluice_sequence_fork(sluice_sequence *sequence, sluice_sequence **out, sluice_error *error) {
    if (sl_api_lacks(out, "fork", error)) {
        return SL_ERR_INVALID;
    }
    *out = NULL;
    if (sl_api_lacks(sequence, "sequence", error)) {
        return SL_ERR_INVALID;
    }
    sluice_engine *engine = sequence->engine;
    sl_error inner;
    sl_sequence *core = NULL;
    pthread_mutex_lock(&engine->mutex);
    sl_api_wait_for_steps(engine, sequence->core);
    int result = sequence->core->work ? sl_fail(&inner, SL_ERR_BUSY, "the sequence has an unfinished request")
                                      : sl_sequence_fork(engine->scheduler, sequence->core, &core, &inner);
    pthread_mutex_unlock(&engine->mutex);
    return result ? sl_api_error(error, &inner) : wrap_sequence(engine, core, out, error);
}

int sluice_sequence_rollback(sluice_sequence *sequence, size_t length, sluice_error *error) {
    if (sl_api_lacks(sequence, "sequence", error)) {
        return SL_ERR_INVALID;
    }
    sluice_engine *engine = sequence->engine;
    sl_error inner;
    int result = 0;
    pthread_mutex_lock(&engine->mutex);
    sl_api_wait_for_steps(engine, sequence->core);
    if (sequence->core->work) {
        result = sl_fail(&inner, SL_ERR_BUSY, "the sequence has an unfinished request");
    } else if (length > (size_t)sequence->core->count) {
        result = sl_fail(&inner, SL_ERR_INVALID, "length: %zu is more than the sequence's %d tokens", length,
                         sequence->core->count);
    } else {
        sl_sequence_rollback(engine->scheduler, sequence->core, (int32_t)length);
    }
    pthread_mutex_unlock(&engine->mutex);
    return result ? sl_api_error(error, &inner) : 0;
}

size_t sluice_sequence_length(const sluice_sequence *sequence) {
    if (!sequence) {
        return 0;
    }
    pthread_mutex_lock(&sequence->engine->mutex);
    size_t length = (size_t)sequence->core->count;
    pthread_mutex_unlock(&sequence->engine->mutex);
    return length;
}

const int32_t *sluice_sequence_tokens(const sluice_sequence *sequence) {
    return sequence ? sequence->core->tokens : NULL;
}

void sluice_sequence_release(sluice_sequence *sequence) {
    if (!sequence) {
        return;
    }
    sluice_engine *engine = sequence->engine;
    pthread_mutex_lock(&engine->mutex);
    sl_sequence_release(engine->scheduler, sequence->core);
    pthread_cond_signal(&engine->work_came);
    pthread_mutex_unlock(&engine->mutex);
    sl_free(sequence);
}
