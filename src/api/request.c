#define _GNU_SOURCE
/* The C API: requests, from submit to the last event. */
#include "api/engine.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "sched/logprob.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- requests: what the stepping thread does with them
 * ------------------------------------------------------------- */

static size_t vocabulary_of(const sluice_request *request) {
    return (size_t)request->engine->planned.plan->deployment.program->vocabulary;
}

/* Under the lock, after an event has come: tells the caller, once until a poll has found nothing again. */
static void tell(sluice_request *request) {
    if (request->notify && request->notify_due) {
        request->notify_due = false;
        request->notify(request->notify_context);
    }
}

/* The next of a list's tokens, from the logits in front of it; logits NULL: nothing is known of it. */
static void add_logprob(sluice_request *request, sl_api_logprobs *list, const float *logits, int32_t token) {
    int32_t likeliest[SLUICE_TOP_LOGPROBS];
    sluice_logprob *top = list->top + list->count * (size_t)request->top_count;
    double total =
        logits ? sl_logprob_total(logits, (int32_t)vocabulary_of(request), likeliest, request->top_count) : 0;
    for (int32_t i = 0; logits && i < request->top_count; i++) {
        top[i] = (sluice_logprob){likeliest[i], (float)((double)logits[likeliest[i]] - total)};
    }
    list->logprobs[list->count++] = logits ? (float)((double)logits[token] - total) : NAN;
}

static int compare_tokens(const void *a, const void *b) {
    const int32_t *left = a, *right = b;
    return (*left > *right) - (*left < *right);
}

static bool ends_generation(const sluice_request *request, int32_t token) {
    const sl_tokenizer *tokenizer = request->engine->model->model->tokenizer;
    return (!request->ignore_eos && tokenizer && sl_tokenizer_is_eog(tokenizer, token)) ||
           (request->stop_token_count > 0 &&
            bsearch(&token, request->stop_tokens, request->stop_token_count, sizeof token, compare_tokens));
}

static sl_finish on_token(sl_work *work, int32_t token) {
    sluice_request *request = (sluice_request *)work;
    if (request->token_count == 0) {
        request->first_token = sl_seconds_now();
    }
    bool end = ends_generation(request, token), stopped = false;
    int result = end ? 0 : sl_output_feed(&request->output, token, &stopped, &request->error);
    request->stop_token = end ? token : -1;
    if (request->generated.logprobs) {
        add_logprob(request, &request->generated, request->sampled_row, token);
        request->sampled_row = NULL;
    }
    request->tokens[request->token_count] = token;
    request->text_ends[request->token_count] = request->output.released;
    request->token_count++;
    tell(request);
    return result ? SL_FINISH_ERROR : end ? SL_FINISH_EOS : stopped ? SL_FINISH_STOP : SL_FINISH_LENGTH;
}

/* Log-probabilities of the prompt's tokens that these rows stand in front of. */
static void score_prompt(sluice_request *request, const float *logits, int32_t rows, int32_t first_position) {
    const int32_t first = request->prompt_position;
    if (first == 0 && request->prompt.count == 0) {
        add_logprob(request, &request->prompt, NULL, 0); /* nothing stands in front of a sequence's first */
    }
    for (int32_t i = 0; i < rows; i++) {
        size_t next = (size_t)(first_position + i + 1 - first);
        if (next == request->prompt.count && next < request->prompt_tokens) {
            add_logprob(request, &request->prompt, logits + (size_t)i * vocabulary_of(request),
                        request->prompt_copy[next]);
        }
    }
}

static void on_logits(sl_work *work, const float *logits, int32_t rows, int32_t first_position) {
    sluice_request *request = (sluice_request *)work;
    const size_t vocabulary = vocabulary_of(request);
    request->sampled_row = logits + (size_t)(rows - 1) * vocabulary;
    if (request->prompt.logprobs) {
        score_prompt(request, logits, rows, first_position);
    }
    int32_t skipped = request->logits_from > first_position ? request->logits_from - first_position : 0;
    if (skipped >= rows) {
        work->blocked = false; /* the caller has nothing to read */
    } else {
        request->logits_rows = (size_t)(rows - skipped);
        memcpy(request->logits, logits + (size_t)skipped * vocabulary,
               request->logits_rows * vocabulary * sizeof *logits);
        request->logits_position = (size_t)(first_position + skipped);
        request->logits_after = request->token_count;
        request->logits_ready = true;
    }
    if (request->logits_ready || request->polled_prompt < request->prompt.count) {
        tell(request);
    }
}

static void on_start(sl_work *work) {
    ((sluice_request *)work)->started = sl_seconds_now();
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
    request->ended = sl_seconds_now();
    request->notify_due = true;
    tell(request);
}

/* ---- requests: the caller's side
 * ------------------------------------------------------------------------------------ */

static void free_logprobs(sl_api_logprobs *list) {
    sl_free(list->logprobs);
    sl_free(list->top);
}

static void free_request(sluice_request *request) {
    sl_output_free(&request->output);
    sl_buffer_free(&request->text);
    sl_free(request->tokens);
    sl_free(request->text_ends);
    sl_free(request->logits);
    sl_free(request->stop_tokens);
    sl_free(request->prompt_copy);
    free_logprobs(&request->generated);
    free_logprobs(&request->prompt);
    sl_adjust_destroy(request->work.adjust);
    sl_mirostat_destroy(request->work.mirostat);
    sl_matcher_destroy(request->work.matcher);
    sl_forced_destroy(request->work.forced);
    sluice_grammar_release(request->grammar);
    sl_free(request);
}

enum { MOST_STOPS = 65536 };

static int check_tokens(const sluice_request_options *o, const sluice_sequence *sequence, sl_error *error) {
    const sl_deployment *deployment = &sequence->engine->planned.plan->deployment;
    const int32_t vocabulary = deployment->program->vocabulary;
    const int32_t context = deployment->limits.context, held = sequence->core->count;
    /* The scheduler's rule, before memory is set aside for so many. */
    if (o->token_count > (size_t)(context - held)) {
        return sl_fail(error, SL_ERR_LIMIT, "context: %d tokens and %zu more do not fit the limit of %d",
                       held, o->token_count, context);
    }
    if (o->top_logprobs < 0 || o->top_logprobs > SLUICE_TOP_LOGPROBS) {
        return sl_fail(error, SL_ERR_INVALID, "top_logprobs: %d is not between 0 and %d", o->top_logprobs,
                       SLUICE_TOP_LOGPROBS);
    }
    if (o->top_logprobs > 0 && !o->logprobs && !o->prompt_logprobs) {
        return sl_fail(error, SL_ERR_INVALID,
                       "top_logprobs: %d, but neither logprobs nor prompt_logprobs is asked for",
                       o->top_logprobs);
    }
    if (o->stop_count > MOST_STOPS || o->stop_token_count > (size_t)vocabulary) {
        return sl_fail(error, SL_ERR_INVALID,
                       "stops: %zu texts are more than %d, or %zu tokens more than the vocabulary's %d",
                       o->stop_count, MOST_STOPS, o->stop_token_count, vocabulary);
    }
    for (size_t i = 0; i < o->stop_token_count; i++) {
        if (o->stop_tokens[i] < 0 || o->stop_tokens[i] >= vocabulary) {
            return sl_fail(error, SL_ERR_INVALID, "stop_tokens %zu: id %d is not in the vocabulary of %d", i,
                           o->stop_tokens[i], vocabulary);
        }
    }
    return 0;
}

/* Uninitialised, so that room for tokens that never come costs addresses only; NULL when it does not fit. */
static void *set_aside(size_t count, size_t size) {
    uint64_t bytes;
    return sl_mul_u64(count, size, &bytes) ? sl_alloc((size_t)bytes) : NULL;
}

static bool prepare_logprobs(sl_api_logprobs *list, size_t room, int32_t top_count) {
    list->room = room;
    list->logprobs = set_aside(room + 1, sizeof *list->logprobs);
    list->top = set_aside(room + 1, (size_t)top_count * sizeof *list->top);
    return list->logprobs && list->top;
}

static int prepare_text(sluice_request *request, const sluice_request_options *o, const sl_sequence *core,
                        sl_error *error) {
    sl_output_options output = {
        .tokenizer = o->no_text ? NULL : request->engine->model->model->tokenizer,
        .continues = core->count > 0 || o->token_count > 0,
        .special = o->special_text,
        .stops = o->stops,
        .stop_count = o->stop_count,
        .expected_tokens = request->token_room,
    };
    return sl_output_init(&request->output, &output, error);
}

static bool prepare_logits(sluice_request *request, const sluice_request_options *o) {
    const sl_deployment *deployment = &request->engine->planned.plan->deployment;
    size_t most = o->logits == SLUICE_LOGITS_ALL ? o->token_count + 1 : 1;
    size_t outputs = (size_t)deployment->limits.outputs;
    request->logits_room = most < outputs ? most : outputs;
    request->logits = sl_alloc_zero(request->logits_room * vocabulary_of(request), sizeof(float));
    return request->logits != NULL;
}

static bool prepare_stop_tokens(sluice_request *request, const sluice_request_options *o) {
    request->stop_tokens = set_aside(o->stop_token_count, sizeof *request->stop_tokens);
    if (!request->stop_tokens) {
        return false;
    }
    memcpy(request->stop_tokens, o->stop_tokens, o->stop_token_count * sizeof *request->stop_tokens);
    qsort(request->stop_tokens, o->stop_token_count, sizeof *request->stop_tokens, compare_tokens);
    request->stop_token_count = o->stop_token_count;
    return true;
}

static bool prepare_prompt(sluice_request *request, const sluice_request_options *o) {
    request->prompt_copy = set_aside(o->token_count, sizeof *request->prompt_copy);
    if (!request->prompt_copy) {
        return false;
    }
    memcpy(request->prompt_copy, o->tokens, o->token_count * sizeof *o->tokens);
    return prepare_logprobs(&request->prompt, o->token_count, request->top_count);
}

/* Memory for all that the request can give, so that steps need none. */
static int prepare_request(sluice_request *request, const sluice_request_options *o, const sl_sequence *core,
                           sl_error *error) {
    size_t context = (size_t)request->engine->planned.plan->deployment.limits.context;
    request->token_room = o->generate < context ? o->generate : context;
    request->top_count =
        o->top_logprobs < (int32_t)vocabulary_of(request) ? o->top_logprobs : (int32_t)vocabulary_of(request);
    int result = prepare_text(request, o, core, error);
    if (result) {
        return result;
    }
    request->tokens = sl_alloc_zero(request->token_room + 1, sizeof *request->tokens);
    request->text_ends = sl_alloc_zero(request->token_room + 1, sizeof *request->text_ends);
    bool ok = request->tokens && request->text_ends;
    ok = ok && (o->logits == SLUICE_LOGITS_NONE || prepare_logits(request, o));
    ok = ok && (o->stop_token_count == 0 || prepare_stop_tokens(request, o));
    ok = ok &&
         (!o->logprobs || prepare_logprobs(&request->generated, request->token_room, request->top_count));
    ok = ok && (!o->prompt_logprobs || o->token_count == 0 || prepare_prompt(request, o));
    return ok ? 0
              : sl_fail(error, SL_ERR_NOMEM, "out of memory for a request of %zu tokens",
                        request->token_room);
}

/* Which logits the scheduler brings, and which of them the caller gets. */
static void fill_logits(sluice_request *request, const sluice_request_options *o, const sl_sequence *core) {
    sl_work *work = &request->work;
    const int32_t last = core->count + (int32_t)o->token_count - 1;
    const bool of_prompt = request->prompt.logprobs != NULL;
    const bool of_tokens = (o->logprobs || work->mirostat) && o->generate > 0;
    request->prompt_position = core->count;
    request->logits_from = o->logits == SLUICE_LOGITS_NONE                        ? INT32_MAX
                           : o->logits == SLUICE_LOGITS_ALL && core->count < last ? core->count
                                                                                  : last;
    work->logits = of_prompt || o->logits == SLUICE_LOGITS_ALL    ? SL_LOGITS_ALL
                   : of_tokens || o->logits == SLUICE_LOGITS_LAST ? SL_LOGITS_LAST
                                                                  : SL_LOGITS_NONE;
    /* The first appended token follows from the one in front of it. */
    work->logits_from = of_prompt && core->count > 0 ? core->count - 1 : core->count;
}

static void fill_work(sluice_request *request, const sluice_request_options *o, sl_sequence *core) {
    sl_work *work = &request->work;
    work->sequence = core;
    work->generate = (int32_t)request->token_room;
    sl_api_fill_sampler(o, &work->sampler);
    fill_logits(request, o, core);
    work->on_token = on_token;
    work->on_logits = on_logits;
    work->on_done = on_done;
    work->on_start = on_start;
    work->priority = o->priority;
    work->group = o->group;
    work->no_reuse = o->no_reuse;
    /* Who reads logits gets them a row at a time. */
    const bool drafts = o->drafts >= 0 && o->logits == SLUICE_LOGITS_NONE;
    work->drafts = !drafts ? 0 : o->drafts > 0 ? o->drafts : SLUICE_DRAFTS;
    work->least_drafts = o->least_drafts;
    work->cache_salt = o->cache_salt;
    request->ignore_eos = o->ignore_eos;
    request->prompt_tokens = o->token_count;
    request->stop_token = -1;
    request->notify = o->notify;
    request->notify_context = o->notify_context;
    request->notify_due = true;
}

static bool lacks_arrays(const sluice_request_options *o, sluice_error *error) {
    return sl_api_lacks_array(o->tokens, o->token_count, "tokens", error) ||
           sl_api_lacks_array(o->stops, o->stop_count, "stops", error) ||
           sl_api_lacks_array(o->logit_bias, o->logit_bias_count, "logit_bias", error) ||
           sl_api_lacks_array(o->samplers, o->sampler_count, "samplers", error) ||
           sl_api_lacks_array(o->dry_breakers, o->dry_breaker_count, "dry_breakers", error) ||
           sl_api_lacks_array(o->stop_tokens, o->stop_token_count, "stop_tokens", error);
}

/* Under the lock: a request with all it needs, queued. On failure nothing has changed, and *out is NULL. */
static int queue_request(sluice_sequence *sequence, const sluice_request_options *given, sluice_request **out,
                         sluice_error *error) {
    sluice_engine *engine = sequence->engine;
    sluice_request_options o;
    int result = sl_api_options(&o, sizeof o, given, "sluice_request_options", error);
    if (result == 0 && lacks_arrays(&o, error)) {
        result = SL_ERR_INVALID;
    }
    if (result) {
        return result;
    }
    sluice_request *request = sl_alloc_zero(1, sizeof *request);
    if (!request) {
        return sl_api_fail(error, SL_ERR_NOMEM, "out of memory for a request");
    }
    request->engine = engine;
    sl_error inner;
    result = engine->failed ? (inner = engine->failure, inner.code) : sl_api_check_sampling(&o, &inner);
    if (result == 0 && engine->planned.plan->options.embed) {
        result = sl_fail(&inner, SL_ERR_UNSUPPORTED,
                         "engine: it makes embeddings and scores alone; requests need one made without "
                         "`embeddings`");
    }
    result = result ? result : check_tokens(&o, sequence, &inner);
    if (result == 0) {
        result = prepare_request(request, &o, sequence->core, &inner);
    }
    if (result == 0) {
        result = sl_api_make_sampling(request, &o, sequence->core, &inner);
    }
    if (result == 0) {
        result = sl_api_make_bounds(request, &o, &inner);
    }
    if (result == 0) {
        fill_work(request, &o, sequence->core);
        request->submitted = request->first_token = sl_seconds_now();
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
    if (sl_api_lacks_array(out, count, "requests", error)) {
        return SL_ERR_INVALID;
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = NULL;
    }
    if (sl_api_lacks_array(sequences, count, "sequences", error) ||
        sl_api_lacks_array(options, count, "options", error)) {
        return SL_ERR_INVALID;
    }
    for (size_t i = 0; i < count; i++) {
        if (sl_api_lacks(sequences[i], "sequence", error)) {
            return SL_ERR_INVALID;
        }
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
    if (!request->output.has_text) {
        return 0;
    }
    sl_buffer_clear(&request->text);
    sl_buffer_append(&request->text, request->output.text.data + request->polled_text,
                     end - request->polled_text);
    if (request->text.failed) {
        sl_buffer_free(&request->text);
        return SL_ERR_NOMEM;
    }
    request->polled_text = end;
    event->text = request->text.data;
    event->text_length = request->text.length;
    return 0;
}

static void fill_logprob(const sluice_request *request, const sl_api_logprobs *list, size_t index,
                         sluice_event *event) {
    if (list->logprobs) {
        event->logprob = list->logprobs[index];
        event->top = list->top + index * (size_t)request->top_count;
        event->top_count = (size_t)request->top_count;
    }
}

static int fill_token(sluice_request *request, sluice_event *event) {
    size_t i = request->polled_tokens;
    int result = take_text(request, request->text_ends[i], event);
    if (result == 0) {
        request->polled_tokens++;
        event->kind = SLUICE_EVENT_TOKEN;
        event->token = request->tokens[i];
        event->prompt_tokens = request->prompt_tokens;
        event->reused_tokens = (size_t)request->work.reused;
        fill_logprob(request, &request->generated, i, event);
    }
    return result;
}

static void fill_prompt(sluice_request *request, sluice_event *event) {
    size_t i = request->polled_prompt++;
    event->kind = SLUICE_EVENT_PROMPT;
    event->token = request->prompt_copy[i];
    fill_logprob(request, &request->prompt, i, event);
    if (i == 0 && request->prompt_position == 0) {
        event->top = NULL;
        event->top_count = 0;
    }
}

static int fill_done(sluice_request *request, sluice_event *event) {
    int result = take_text(request, request->output.released, event);
    if (result) {
        return result;
    }
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
    event->drafted_tokens = (size_t)request->work.drafted;
    event->accepted_tokens = (size_t)request->work.accepted;
    event->stop = request->finish == SL_FINISH_STOP ? request->output.stop : -1;
    event->stop_token = request->finish == SL_FINISH_EOS ? request->stop_token : -1;
    if (request->finish == SL_FINISH_ERROR) {
        sl_api_error(&event->error, &request->error);
    }
    request->done_polled = true;
    return 0;
}

/* The next event, if there is one; under the lock. A failure leaves all as it was: the next call tries again.
 */
static int next_event(sluice_request *request, sluice_event *event) {
    if (request->polled_prompt < request->prompt.count) {
        fill_prompt(request, event);
        return 0;
    }
    if (request->logits_ready && request->polled_tokens == request->logits_after) {
        event->kind = SLUICE_EVENT_LOGITS;
        event->logits = request->logits;
        event->rows = request->logits_rows;
        event->first_position = request->logits_position;
        request->logits_ready = false;
        request->logits_lent = true;
        return 0;
    }
    if (request->polled_tokens < request->token_count) {
        return fill_token(request, event);
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
    if (sl_api_lacks(request, "request", error) || sl_api_lacks(out, "event", error) ||
        sl_api_check_size(out->size, "sluice_event", error)) {
        return SL_ERR_INVALID;
    }
    if (out->size < offsetof(sluice_event, token)) {
        return sl_api_fail(error, SL_ERR_INVALID, "sluice_event: `size` %zu has no room for a kind",
                           out->size);
    }
    sluice_engine *engine = request->engine;
    sluice_event event = {.size = sizeof event, .text = "", .logprob = NAN, .stop = -1, .stop_token = -1};
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
    request->notify_due |= result == 0 && event.kind == SLUICE_EVENT_NONE;
    pthread_mutex_unlock(&engine->mutex);
    size_t size = out->size;
    memcpy(out, &event, size < sizeof event ? size : sizeof event);
    out->size = size;
    return result ? sl_api_fail(error, result, "out of memory for an event's text") : 0;
}

void sluice_request_progress(sluice_request *request, size_t *read, size_t *total) {
    if (!request || !read || !total) {
        return;
    }
    pthread_mutex_lock(&request->engine->mutex);
    *total = *read = request->prompt_tokens;
    if (!request->done && request->token_count == 0) {
        const sl_sequence *core = request->work.sequence;
        const size_t pending = (size_t)(core->count - core->timeline.cached);
        *read = *total > pending ? *total - pending : 0;
    }
    pthread_mutex_unlock(&request->engine->mutex);
}

void sluice_cancel(sluice_request *request) {
    if (!request) {
        return;
    }
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
