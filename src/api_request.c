#define _GNU_SOURCE
/* The C API: requests, from submit to the last event. */
#include "api_engine.h"

#include "base/alloc.h"

#include <errno.h>
#include <string.h>
#include <time.h>

/* ---- requests: what the stepping thread does with them
 * ------------------------------------------------------------- */

static sl_finish on_token(sl_work *work, int32_t token) {
    sluice_request *request = (sluice_request *)work;
    if (request->token_count == 0) {
        request->first_token = sl_api_seconds();
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

static void on_start(sl_work *work) {
    ((sluice_request *)work)->started = sl_api_seconds();
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
    request->ended = sl_api_seconds();
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
    work->on_start = on_start;
    work->priority = o->priority;
    work->group = o->group;
    work->no_reuse = o->no_reuse;
    work->cache_salt = o->cache_salt;
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
        request->submitted = request->first_token = sl_api_seconds();
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
        sl_api_wait_for_steps(engine, sequences[i]->core);
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
    event->queue_seconds = (request->started > 0 ? request->started : request->ended) - request->submitted;
    event->reuse = (sluice_reuse)request->work.reuse;
    event->reuse_matched = (size_t)request->work.matched;
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
