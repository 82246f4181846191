#define _GNU_SOURCE
/* The C API: engines, sequences and requests. One thread per engine builds steps, runs them and hands out
 * what they gave; everything that callers share with it is under one lock, which is not held while a step
 * runs. */
#include "api.h"

#include "base/alloc.h"
#include "sched/output.h"
#include "sched/scheduler.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct sluice_engine {
    sluice_model *model; /* a reference */
    sl_api_plan planned;
    char device[256]; /* backend and its description */
    sl_executor *executor;
    sl_scheduler *scheduler;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work_came; /* for the thread */
    pthread_cond_t step_done; /* for everybody else */
    bool thread_runs, stop;
    bool holds;  /* the weights' data in the model */
    bool failed; /* the device is gone; `failure` says how */
    sl_error failure;
    double step_seconds;
    sl_plan_step last_step; /* what ran last, for a profile; no rows: nothing did */
    bool stepping;          /* a step runs, without the lock */
    bool reuses_prefixes;
};

struct sluice_sequence {
    sluice_engine *engine;
    sl_sequence *core;
};

struct sluice_request {
    sl_work work; /* first: callbacks get a pointer to it */
    sluice_engine *engine;
    sl_output output;
    bool ignore_eos;
    /* What was generated so far; under the engine's lock. */
    int32_t *tokens;   /* [token_room] */
    size_t *text_ends; /* [token_room]: bytes that may be shown with each token */
    size_t token_room, token_count;
    float *logits; /* [logits_room][vocabulary], owned */
    size_t logits_room, logits_rows, logits_position;
    size_t logits_after; /* tokens that come before the logits */
    bool logits_ready;   /* not handed out yet */
    bool logits_lent;    /* handed out, until the next poll */
    bool done;
    sl_finish finish;
    sl_error error;
    size_t prompt_tokens;
    double submitted, first_token, ended; /* seconds */
    /* Of the polling thread. */
    size_t polled_tokens, polled_text;
    sl_buffer text;
    bool done_polled;
};

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

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

/* Runs the step that was built, and those that follow it without a pause. Called and left with the lock held;
 * it is free while the device works. */
static void run_steps(sluice_engine *engine, int32_t bucket) {
    const sl_backend_functions *functions = engine->planned.backend->functions;
    sl_error error, next_error;
    bool follows = true;
    note_step(engine, bucket);
    pthread_mutex_unlock(&engine->mutex);
    int status = functions->submit(engine->executor, bucket, &error), next_status = 0;
    while (follows) {
        pthread_mutex_lock(&engine->mutex);
        follows = !status && !engine->stop && sl_scheduler_follow(engine->scheduler, &bucket) > 0;
        if (follows) {
            note_step(engine, bucket);
        }
        pthread_mutex_unlock(&engine->mutex);
        if (follows) {
            next_status = functions->submit(engine->executor, bucket, &next_error);
        }
        status = status ? status : functions->wait(engine->executor, &error);
        pthread_mutex_lock(&engine->mutex);
        sl_scheduler_commit(engine->scheduler, status, &error);
        if (status == SL_ERR_DEVICE) {
            engine->failed = true;
            engine->failure = error;
            sl_scheduler_fail_all(engine->scheduler, &error);
            follows = false;
        }
        pthread_cond_broadcast(&engine->step_done);
        if (follows) {
            pthread_mutex_unlock(&engine->mutex);
            status = next_status;
            error = next_error;
        }
    }
}

static void *step_thread(void *argument) {
    sluice_engine *engine = argument;
    pthread_mutex_lock(&engine->mutex);
    while (!engine->stop) {
        int32_t bucket;
        if (engine->failed || sl_scheduler_build(engine->scheduler, &bucket) == 0) {
            pthread_cond_broadcast(&engine->step_done); /* building may have ended requests */
            pthread_cond_wait(&engine->work_came, &engine->mutex);
            continue;
        }
        double begin = seconds_now();
        engine->stepping = true;
        run_steps(engine, bucket);
        engine->stepping = false;
        engine->step_seconds += seconds_now() - begin;
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

static int start_engine(sluice_engine *engine, const sluice_engine_options *options, sl_error *error) {
    int result = sl_api_plan_open(engine->model->model, options, &engine->planned, error);
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
    result = engine->planned.backend->functions->deploy(engine->planned.backend, &plan->deployment,
                                                        options->progress ? &progress : NULL,
                                                        &engine->executor, error);
    if (result == 0 && !engine->planned.backend->maps_weights) {
        engine->holds = false; /* the device has its own */
        sl_model_let_go(engine->model->model, true);
    }
    engine->reuses_prefixes = !options->no_prefix_reuse;
    if (result == 0) {
        result =
            sl_scheduler_create(plan, engine->executor, !options->no_prefix_reuse, &engine->scheduler, error);
    }
    if (result == 0) {
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
    *out = NULL;
    sluice_engine_options options;
    int result = sl_api_options(&options, sizeof options, given, "sluice_engine_options", error);
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
    sl_scheduler_destroy(engine->scheduler);
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
    sl_free(engine);
}

const char *sluice_engine_device(const sluice_engine *engine) {
    return engine->device;
}

void sluice_engine_get_counters(sluice_engine *engine, sluice_counters *out) {
    sluice_counters all = {.size = sizeof all};
    pthread_mutex_lock(&engine->mutex);
    const sl_scheduler_counters *s = sl_scheduler_counts(engine->scheduler);
    sl_counters c;
    engine->planned.backend->functions->counters(engine->executor, &c);
    all.steps = s->steps;
    all.rows = s->rows;
    all.outputs = s->outputs;
    all.reused_tokens = s->reused_tokens;
    all.preemptions = s->preemptions;
    all.eager_steps = c.eager_steps;
    all.replayed_steps = c.replayed_steps;
    all.captured_buckets = c.captured_buckets;
    all.failed_captures = c.failed_captures;
    all.device_allocations = c.device_allocations;
    all.synchronisations = c.synchronisations;
    all.step_seconds = engine->step_seconds;
    for (int32_t i = 0; i < c.kernel_count; i++) {
        const sl_kernel *kernel = c.kernels[i].kernel;
        if (kernel->op == SL_OP_LINEAR && kernel->batched) {
            all.batched_calls += c.kernels[i].calls;
            all.batched_rows += c.kernels[i].rows;
        }
    }
    pthread_mutex_unlock(&engine->mutex);
    size_t size = out->size < sizeof all ? out->size : sizeof all;
    size_t kept = out->size;
    memcpy(out, &all, size);
    out->size = kept;
}

int sluice_engine_profile(sluice_engine *engine, sluice_text_format format, char **text,
                          sluice_error *error) {
    *text = NULL;
    sl_error inner;
    sl_plan_profile profile = {0};
    if (engine->reuses_prefixes) {
        return sl_api_fail(error, SL_ERR_INVALID,
                           "profile: spoils cached pages, so it wants an engine with no_prefix_reuse");
    }
    pthread_mutex_lock(&engine->mutex);
    int result = 0;
    if (engine->stepping || sl_scheduler_has_work(engine->scheduler)) {
        result = sl_fail(&inner, SL_ERR_BUSY, "profile: the engine has unfinished requests");
    } else if (engine->failed) {
        inner = engine->failure;
        result = inner.code;
    } else {
        result = sl_plan_profile_step(engine->planned.plan, engine->executor, &engine->last_step, &profile,
                                      &inner);
    }
    if (result == SL_ERR_DEVICE && !engine->failed) {
        engine->failed = true;
        engine->failure = inner;
    }
    pthread_mutex_unlock(&engine->mutex);
    result = result ? sl_api_error(error, &inner) : sl_api_profile_text(&profile, format, text, error);
    sl_plan_profile_free(&profile);
    return result;
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
    *out = NULL;
    sl_error inner;
    sl_sequence *core;
    pthread_mutex_lock(&engine->mutex);
    int result = sl_sequence_create(engine->scheduler, &core, &inner);
    pthread_mutex_unlock(&engine->mutex);
    return result ? sl_api_error(error, &inner) : wrap_sequence(engine, core, out, error);
}

/* Under the lock: a sequence whose request has ended may still be in a step that had begun by then. */
static void wait_for_steps(sluice_engine *engine, const sl_sequence *core) {
    while (!core->work && core->in_step) {
        pthread_cond_wait(&engine->step_done, &engine->mutex);
    }
}

int sluice_sequence_fork(sluice_sequence *sequence, sluice_sequence **out, sluice_error *error) {
    *out = NULL;
    sluice_engine *engine = sequence->engine;
    sl_error inner;
    sl_sequence *core = NULL;
    pthread_mutex_lock(&engine->mutex);
    wait_for_steps(engine, sequence->core);
    int result = sequence->core->work ? sl_fail(&inner, SL_ERR_BUSY, "the sequence has an unfinished request")
                                      : sl_sequence_fork(engine->scheduler, sequence->core, &core, &inner);
    pthread_mutex_unlock(&engine->mutex);
    return result ? sl_api_error(error, &inner) : wrap_sequence(engine, core, out, error);
}

int sluice_sequence_rollback(sluice_sequence *sequence, size_t length, sluice_error *error) {
    sluice_engine *engine = sequence->engine;
    sl_error inner;
    int result = 0;
    pthread_mutex_lock(&engine->mutex);
    wait_for_steps(engine, sequence->core);
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
    pthread_mutex_lock(&sequence->engine->mutex);
    size_t length = (size_t)sequence->core->count;
    pthread_mutex_unlock(&sequence->engine->mutex);
    return length;
}

const int32_t *sluice_sequence_tokens(const sluice_sequence *sequence) {
    return sequence->core->tokens;
}

/* Under the lock: ends a work and waits until the thread has let go of it. */
static void cancel_and_wait(sluice_engine *engine, sl_sequence *core) {
    while (core->work || core->in_step) {
        if (core->work) {
            core->work->cancelled = true;
        }
        pthread_cond_signal(&engine->work_came);
        pthread_cond_wait(&engine->step_done, &engine->mutex);
    }
}

void sluice_sequence_release(sluice_sequence *sequence) {
    if (!sequence) {
        return;
    }
    sluice_engine *engine = sequence->engine;
    pthread_mutex_lock(&engine->mutex);
    cancel_and_wait(engine, sequence->core);
    sl_sequence_destroy(engine->scheduler, sequence->core);
    pthread_mutex_unlock(&engine->mutex);
    sl_free(sequence);
}

/* ---- requests: what the stepping thread does with them
 * ------------------------------------------------------------- */

static sl_finish on_token(sl_work *work, int32_t token) {
    sluice_request *request = (sluice_request *)work;
    if (request->token_count == 0) {
        request->first_token = seconds_now();
    }
    const sl_tokenizer *tokenizer = request->engine->model->model->tokenizer;
    bool end = !request->ignore_eos && tokenizer && sl_tokenizer_is_eog(tokenizer, token);
    bool stopped = false;
    int result = end ? 0 : sl_output_feed(&request->output, token, &stopped, &request->error);
    request->tokens[request->token_count] = token;
    request->text_ends[request->token_count] = request->output.released;
    request->token_count++;
    return result ? SL_FINISH_ERROR : end ? SL_FINISH_EOS : stopped ? SL_FINISH_STOP : SL_FINISH_LENGTH;
}

static void on_logits(sl_work *work, const float *logits, int32_t rows, int32_t first_position) {
    sluice_request *request = (sluice_request *)work;
    size_t vocabulary = (size_t)request->engine->planned.plan->deployment.program->vocabulary;
    memcpy(request->logits, logits, (size_t)rows * vocabulary * sizeof *logits);
    request->logits_rows = (size_t)rows;
    request->logits_position = (size_t)first_position;
    request->logits_after = request->token_count;
    request->logits_ready = true;
}

static void on_done(sl_work *work, sl_finish finish, const sl_error *error) {
    sluice_request *request = (sluice_request *)work;
    if (error) {
        request->error = *error;
    }
    if (finish != SL_FINISH_STOP && sl_output_finish(&request->output, &request->error)) {
        finish = SL_FINISH_ERROR;
    }
    request->done = true;
    request->finish = finish;
    request->ended = seconds_now();
}

/* ---- requests: the caller's side
 * ------------------------------------------------------------------------------------ */

static void free_request(sluice_request *request) {
    sl_output_free(&request->output);
    sl_buffer_free(&request->text);
    sl_free(request->tokens);
    sl_free(request->text_ends);
    sl_free(request->logits);
    sl_free(request);
}

static int check_sampling(const sluice_request_options *o, sl_error *error) {
    if (!(o->temperature >= 0) || !(o->temperature <= 1e6f)) {
        return sl_fail(error, SL_ERR_INVALID, "temperature: %g is not between 0 and 1e6",
                       (double)o->temperature);
    }
    if (!(o->top_p >= 0) || !(o->top_p <= 1) || !(o->min_p >= 0) || !(o->min_p <= 1)) {
        return sl_fail(error, SL_ERR_INVALID, "top_p %g, min_p %g: both must be between 0 and 1",
                       (double)o->top_p, (double)o->min_p);
    }
    if (o->top_k < 0) {
        return sl_fail(error, SL_ERR_INVALID, "top_k: %d is negative", o->top_k);
    }
    if (!(o->repetition_penalty >= 0) || !(o->repetition_penalty <= 1e3f)) {
        return sl_fail(error, SL_ERR_INVALID, "repetition_penalty: %g is not between 0 and 1000",
                       (double)o->repetition_penalty);
    }
    if ((unsigned)o->logits > SLUICE_LOGITS_ALL) {
        return sl_fail(error, SL_ERR_INVALID, "logits: %d is no sluice_logits", (int)o->logits);
    }
    return 0;
}

/* Memory for all that the request can give, so that steps need none. */
static int prepare_request(sluice_request *request, const sluice_request_options *o, const sl_sequence *core,
                           sl_error *error) {
    const sl_deployment *deployment = &request->engine->planned.plan->deployment;
    size_t context = (size_t)deployment->limits.context;
    size_t generate = o->generate < context ? o->generate : context;
    sl_output_options output = {
        .tokenizer = o->no_text ? NULL : request->engine->model->model->tokenizer,
        .continues = core->count > 0 || o->token_count > 0,
        .stops = o->stops,
        .stop_count = o->stop_count,
        .expected_tokens = generate,
    };
    int result = sl_output_init(&request->output, &output, error);
    if (result) {
        return result;
    }
    request->token_room = generate;
    request->tokens = sl_alloc_zero(generate + 1, sizeof *request->tokens);
    request->text_ends = sl_alloc_zero(generate + 1, sizeof *request->text_ends);
    bool ok = request->tokens && request->text_ends;
    if (ok && o->logits != SLUICE_LOGITS_NONE) {
        size_t most = o->logits == SLUICE_LOGITS_ALL ? o->token_count + 1 : 1;
        size_t outputs = (size_t)deployment->limits.outputs;
        request->logits_room = most < outputs ? most : outputs;
        request->logits =
            sl_alloc_zero(request->logits_room * (size_t)deployment->program->vocabulary, sizeof(float));
        ok = request->logits != NULL;
    }
    return ok ? 0 : sl_fail(error, SL_ERR_NOMEM, "out of memory for a request of %zu tokens", generate);
}

static void fill_work(sluice_request *request, const sluice_request_options *o, sl_sequence *core) {
    sl_work *work = &request->work;
    work->sequence = core;
    work->generate = (int32_t)request->token_room;
    work->sampler = (sl_sampler){
        .temperature = o->temperature,
        .top_p = o->top_p == 0 ? 1 : o->top_p,
        .min_p = o->min_p,
        .repetition_penalty = o->repetition_penalty == 0 ? 1 : o->repetition_penalty,
        .top_k = o->top_k,
        .seed_low = (uint32_t)o->seed,
        .seed_high = (uint32_t)(o->seed >> 32),
    };
    work->logits = (sl_logits_wanted)o->logits;
    work->logits_from = core->count;
    work->on_token = on_token;
    work->on_logits = on_logits;
    work->on_done = on_done;
    request->ignore_eos = o->ignore_eos;
    request->prompt_tokens = o->token_count;
}

/* Under the lock: a request with all it needs, queued. On failure nothing has changed, and *out is NULL. */
static int queue_request(sluice_sequence *sequence, const sluice_request_options *given, sluice_request **out,
                         sluice_error *error) {
    sluice_engine *engine = sequence->engine;
    sluice_request_options o;
    int result = sl_api_options(&o, sizeof o, given, "sluice_request_options", error);
    if (result) {
        return result;
    }
    sluice_request *request = sl_alloc_zero(1, sizeof *request);
    if (!request) {
        return sl_api_fail(error, SL_ERR_NOMEM, "out of memory for a request");
    }
    request->engine = engine;
    sl_error inner;
    result = engine->failed ? (inner = engine->failure, inner.code) : check_sampling(&o, &inner);
    if (result == 0) {
        result = prepare_request(request, &o, sequence->core, &inner);
    }
    if (result == 0) {
        fill_work(request, &o, sequence->core);
        request->submitted = request->first_token = seconds_now();
        result = sl_scheduler_submit(engine->scheduler, &request->work, o.tokens, o.token_count, &inner);
    }
    if (result) {
        free_request(request);
        return sl_api_error(error, &inner);
    }
    *out = request;
    return 0;
}

int sluice_submit_together(sluice_sequence *const *sequences, const sluice_request_options *const *options,
                           size_t count, sluice_request **out, sluice_error *error) {
    size_t queued = 0;
    int result = 0;
    for (size_t i = 0; i < count; i++) {
        out[i] = NULL;
    }
    for (size_t i = 0; i < count; i++) {
        if (sequences[i]->engine != sequences[0]->engine) {
            return sl_api_fail(error, SL_ERR_INVALID, "sequence %zu: belongs to another engine", i);
        }
    }
    if (count == 0) {
        return 0;
    }
    sluice_engine *engine = sequences[0]->engine;
    pthread_mutex_lock(&engine->mutex);
    for (size_t i = 0; i < count; i++) {
        wait_for_steps(engine, sequences[i]->core);
    }
    while (queued < count && result == 0) {
        result = queue_request(sequences[queued], options[queued], &out[queued], error);
        queued += result == 0;
    }
    while (result && queued > 0) {
        sluice_request *request = out[--queued];
        sl_sequence *core = sequences[queued]->core;
        sl_scheduler_withdraw(engine->scheduler, &request->work,
                              core->count - (int32_t)request->prompt_tokens);
        free_request(request);
        out[queued] = NULL;
    }
    if (result == 0) {
        pthread_cond_signal(&engine->work_came);
    }
    pthread_mutex_unlock(&engine->mutex);
    return result;
}

int sluice_submit(sluice_sequence *sequence, const sluice_request_options *options, sluice_request **out,
                  sluice_error *error) {
    return sluice_submit_together(&sequence, &options, 1, out, error);
}

/* Text between what was polled and `end`, copied out because the stepping thread may move the original. */
static int take_text(sluice_request *request, size_t end, sluice_event *event) {
    sl_buffer_clear(&request->text);
    sl_buffer_append(&request->text, request->output.text.data + request->polled_text,
                     end - request->polled_text);
    request->polled_text = end;
    event->text = request->text.failed ? "" : request->text.data;
    event->text_length = request->text.length;
    return request->text.failed ? SL_ERR_NOMEM : 0;
}

static int fill_done(sluice_request *request, sluice_event *event) {
    event->kind = SLUICE_EVENT_DONE;
    event->finish = (sluice_finish)request->finish;
    event->prompt_tokens = request->prompt_tokens;
    event->generated_tokens = request->token_count;
    event->reused_tokens = (size_t)request->work.reused;
    double first = request->token_count ? request->first_token : request->ended;
    event->prompt_seconds = first - request->submitted;
    event->generate_seconds = request->ended - first;
    if (request->finish == SL_FINISH_ERROR) {
        sl_api_error(&event->error, &request->error);
    }
    request->done_polled = true;
    return request->output.has_text ? take_text(request, request->output.released, event) : 0;
}

/* The next event, if there is one; under the lock. */
static int next_event(sluice_request *request, sluice_event *event) {
    bool tokens_left = request->polled_tokens < request->token_count;
    if (request->logits_ready && request->polled_tokens == request->logits_after) {
        event->kind = SLUICE_EVENT_LOGITS;
        event->logits = request->logits;
        event->rows = request->logits_rows;
        event->first_position = request->logits_position;
        request->logits_ready = false;
        request->logits_lent = true;
        return 0;
    }
    if (tokens_left) {
        size_t i = request->polled_tokens++;
        event->kind = SLUICE_EVENT_TOKEN;
        event->token = request->tokens[i];
        size_t end = request->text_ends[i];
        return request->output.has_text ? take_text(request, end, event) : 0;
    }
    return request->done && !request->done_polled ? fill_done(request, event) : 0;
}

static void give_back_logits(sluice_request *request) {
    if (request->logits_lent) {
        request->logits_lent = false;
        request->work.blocked = false;
        pthread_cond_signal(&request->engine->work_came);
    }
}

int sluice_poll(sluice_request *request, int timeout, sluice_event *out, sluice_error *error) {
    sluice_engine *engine = request->engine;
    sluice_event event = {.size = sizeof event, .text = ""};
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (timeout > 0) {
        until.tv_sec += timeout / 1000;
        until.tv_nsec += (long)(timeout % 1000) * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
    }
    pthread_mutex_lock(&engine->mutex);
    give_back_logits(request);
    int result = next_event(request, &event);
    while (result == 0 && event.kind == SLUICE_EVENT_NONE && timeout != 0 && !request->done_polled) {
        int waited = timeout < 0 ? pthread_cond_wait(&engine->step_done, &engine->mutex)
                                 : pthread_cond_timedwait(&engine->step_done, &engine->mutex, &until);
        result = next_event(request, &event);
        if (waited == ETIMEDOUT) {
            break;
        }
    }
    pthread_mutex_unlock(&engine->mutex);
    size_t size = out->size;
    memcpy(out, &event, size < sizeof event ? size : sizeof event);
    out->size = size;
    return result ? sl_api_fail(error, result, "out of memory for an event's text") : 0;
}

void sluice_cancel(sluice_request *request) {
    pthread_mutex_lock(&request->engine->mutex);
    request->work.cancelled = true;
    pthread_cond_signal(&request->engine->work_came);
    pthread_mutex_unlock(&request->engine->mutex);
}

void sluice_request_release(sluice_request *request) {
    if (!request) {
        return;
    }
    sluice_engine *engine = request->engine;
    pthread_mutex_lock(&engine->mutex);
    while (!request->done) {
        request->work.cancelled = true;
        pthread_cond_signal(&engine->work_came);
        pthread_cond_wait(&engine->step_done, &engine->mutex);
    }
    pthread_mutex_unlock(&engine->mutex);
    free_request(request);
}
