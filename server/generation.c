/* A generation up to its start: options made into sluice's, checked against the model, and submitted. */
#include "generation.h"

#include "pump.h"
#include "sampling.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

double monotonic_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int no_memory(http_error *error) {
    *error = (http_error){.status = 503, .type = "server_error", .code = "out_of_memory", .retry_after = 1};
    snprintf(error->message, sizeof error->message,
             "the server is out of memory for this request; try again");
    return -1;
}

/* ---- making ---- */

generation_options generation_defaults(const served_model *m) {
    generation_options o = {.temperature = 1,
                            .top_p = 1,
                            .typical_p = 1,
                            .xtc_threshold = 0.1,
                            .dynatemp_exponent = 1,
                            .dry_base = 1.75,
                            .dry_allowed_length = 2,
                            .dry_penalty_last_n = -1,
                            .mirostat_tau = 5,
                            .mirostat_eta = 0.1,
                            .repetition_penalty = 1,
                            .penalty_tokens = 64,
                            .seed = -1,
                            .max_tokens = -1,
                            .n = 1,
                            .drafts = -1,
                            .thought_tokens = m->thought_tokens,
                            .cache_prompt = true};
    model_sampling_set(&m->sampling, &o);
    return o;
}

generation *generation_create(server *server, exchange *exchange, served_model *m, json_t *body) {
    generation *g = calloc(1, sizeof *g);
    if (!g) {
        json_decref(body);
        models_release(server->models, m);
        return NULL;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    g->server = server;
    g->exchange = exchange_retain(exchange);
    g->model = m;
    g->body = body;
    g->created = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    g->arrived = monotonic_seconds();
    g->options = generation_defaults(m);
    return g;
}

generation_options *generation_get_options(generation *g) {
    return &g->options;
}

int generation_copy_prompt(generation *g, const int32_t *tokens, size_t count, http_error *error) {
    if (g->prompt_count >= BODY_CHOICES) {
        return body_refuse(error, "prompt: more than %d prompts in one request", BODY_CHOICES);
    }
    void *larger = realloc(g->prompts, (g->prompt_count + 1) * sizeof *g->prompts);
    if (!larger) {
        return no_memory(error);
    }
    g->prompts = larger;
    int32_t *copy = malloc((count ? count : 1) * sizeof *copy);
    if (!copy) {
        return no_memory(error);
    }
    if (count) {
        memcpy(copy, tokens, count * sizeof *copy);
    }
    g->prompts[g->prompt_count].tokens = copy;
    g->prompts[g->prompt_count].count = count;
    g->prompt_count++;
    return 0;
}

int generation_add_prompt(generation *g, int32_t *tokens, size_t count, http_error *error) {
    const int code = generation_copy_prompt(g, tokens, count, error);
    sluice_free(tokens);
    return code;
}

void generation_expect_reply(generation *g, sluice_thought thought) {
    g->expects_reply = true;
    g->thought = thought;
}

static void free_choice(choice *c, choice_run *run) {
    text_free(&c->content);
    text_free(&c->reasoning);
    free(c->prompt_entries);
    free(c->entries);
    free(c->tops);
    for (size_t i = 0; i < c->call_count; i++) {
        text_free(&c->calls[i].name);
        text_free(&c->calls[i].arguments);
    }
    free(c->calls);
    free(run->call_pieces);
    sluice_reply_release(run->reply);
    if (run->request) {
        sluice_request_release(run->request);
    }
    if (run->sequence) {
        sluice_sequence_release(run->sequence);
    }
}

void generation_free(generation *g) {
    for (size_t i = 0; g->choices && g->runs && i < g->choice_count; i++) {
        free_choice(&g->choices[i], &g->runs[i]);
    }
    free(g->choices);
    free(g->runs);
    for (size_t i = 0; i < g->prompt_count; i++) {
        free(g->prompts[i].tokens);
    }
    free(g->prompts);
    free(g->stops);
    free(g->stop_tokens);
    free(g->biases);
    free(g->breakers);
    free(g->tools);
    sluice_grammar_release(g->grammar);
    if (g->state && g->dialect && g->dialect->release) {
        g->dialect->release(g->state);
    }
    models_release(g->server->models, g->model);
    json_decref(g->body);
    exchange_release(g->exchange);
    free(g);
}

void generation_discard(generation *g) {
    if (g) {
        generation_free(g);
    }
}

/* ---- checking ---- */

static int read_stops(generation *g, http_error *error) {
    const json_t *stop = g->options.stop;
    if (!stop || json_is_null(stop)) {
        return 0;
    }
    if (!json_is_string(stop) && !json_is_array(stop)) {
        return body_refuse(error, "stop: must be a string or an array of strings, not %s", body_type(stop));
    }
    const size_t count = json_is_array(stop) ? json_array_size(stop) : 1;
    if (count > BODY_STOPS) {
        return body_refuse(error, "stop: %zu texts, at most %d are allowed", count, BODY_STOPS);
    }
    g->stops = calloc(count + 1, sizeof *g->stops);
    if (!g->stops) {
        return no_memory(error);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_is_array(stop) ? json_array_get(stop, i) : stop;
        if (!json_is_string(one) || json_string_length(one) == 0) {
            return body_refuse(error, "stop[%zu]: must be a string that is not empty%s%s", i,
                               json_is_string(one) ? "" : ", not ",
                               json_is_string(one) ? "" : body_type(one));
        }
        g->stops[i] = json_string_value(one);
    }
    g->stop_count = count;
    return 0;
}

static int read_stop_tokens(generation *g, http_error *error) {
    const json_t *ids = g->options.stop_tokens;
    const size_t count = ids ? json_array_size(ids) : 0;
    if (count > BODY_BIASES) {
        return body_refuse(error, "stop_token_ids: more than %d ids", BODY_BIASES);
    }
    g->stop_tokens = calloc(count + 1, sizeof *g->stop_tokens);
    if (!g->stop_tokens) {
        return no_memory(error);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= g->model->info.vocabulary) {
            return body_refuse(error, "stop_token_ids[%zu]: must be a token id below %d", i,
                               g->model->info.vocabulary);
        }
        g->stop_tokens[i] = (int32_t)json_integer_value(id);
    }
    g->stop_token_count = count;
    return 0;
}

static int read_breakers(generation *g, http_error *error) {
    const json_t *given = g->options.dry_breakers;
    const size_t count = given ? json_array_size(given) : 0;
    if (count > BODY_BREAKERS) {
        return body_refuse(error, "dry_sequence_breakers: %zu texts, at most %d are allowed", count,
                           BODY_BREAKERS);
    }
    g->breakers = given ? calloc(count + 1, sizeof *g->breakers) : NULL;
    if (given && !g->breakers) {
        return no_memory(error);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_array_get(given, i);
        if (!json_is_string(one) || json_string_length(one) == 0) {
            return body_refuse(error, "dry_sequence_breakers[%zu]: must be a string that is not empty", i);
        }
        g->breakers[i] = json_string_value(one);
    }
    g->breaker_count = count;
    return 0;
}

/* llama-server's: an array of names, or a string of letters (or of names with semicolons). */
static int read_samplers(generation *g, http_error *error) {
    const json_t *given = g->options.samplers;
    const size_t count = json_is_array(given) ? json_array_size(given) : 0;
    sluice_error inner = {.message = "samplers: must be an array of names, or a string"};
    bool wrong = given && !json_is_array(given) && !json_is_string(given);
    if (json_is_string(given)) {
        wrong = sluice_samplers_parse(json_string_value(given), g->samplers, &g->sampler_count, &inner) != 0;
    }
    if (!given) {
        const model_sampling *own = &g->model->sampling;
        memcpy(g->samplers, own->samplers, sizeof g->samplers);
        g->sampler_count = own->sampler_count;
    }
    text names = {0};
    for (size_t i = 0; i < count && i <= SLUICE_SAMPLERS && !wrong; i++) {
        const json_t *name = json_array_get(given, i);
        wrong = !json_is_string(name);
        text_format(&names, "%s;", wrong ? "" : json_string_value(name));
    }
    if (count > 0 && !wrong) {
        size_t length;
        char *joined = text_take(&names, &length);
        if (!joined) {
            return no_memory(error);
        }
        wrong = sluice_samplers_parse(joined, g->samplers, &g->sampler_count, &inner) != 0;
        free(joined);
    }
    text_free(&names);
    return wrong ? body_refuse(error, "%s", inner.message) : 0;
}

static int refuse_bias(const generation *g, http_error *error) {
    return body_refuse(
        error,
        "logit_bias: must be an object of token ids below %d and numbers from -100 to 100, or an array of "
        "[id, number or false], at most %d of them and none twice",
        g->model->info.vocabulary, BODY_BIASES);
}

static bool is_bias(const generation *g, int64_t token, const json_t *bias) {
    const bool in_range = json_is_number(bias) && fabs(json_number_value(bias)) <= 100;
    return token >= 0 && token < g->model->info.vocabulary && (in_range || json_is_false(bias));
}

static int64_t parse_id(const char *text) {
    char *end;
    errno = 0;
    const long long id = strtoll(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && errno == 0 ? (int64_t)id : -1;
}

static int compare_biases(const void *a, const void *b) {
    const sluice_logit_bias *x = a, *y = b;
    return (x->token > y->token) - (x->token < y->token);
}

/* OpenAI's object, or llama.cpp's array of pairs, where false bans. */
static int read_biases(generation *g, http_error *error) {
    const json_t *given = g->options.logit_bias;
    const size_t count = json_is_array(given) ? json_array_size(given) : json_object_size(given);
    if (!given || json_is_null(given) || count == 0) {
        return given && !json_is_null(given) && !json_is_object(given) && !json_is_array(given)
                   ? refuse_bias(g, error)
                   : 0;
    }
    g->biases = count <= BODY_BIASES ? calloc(count, sizeof *g->biases) : NULL;
    if (count > BODY_BIASES) {
        return refuse_bias(g, error);
    }
    if (!g->biases) {
        return no_memory(error);
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)given, key, value) {
        if (!is_bias(g, parse_id(key), value) || json_is_false(value)) {
            return refuse_bias(g, error);
        }
        g->biases[g->bias_count++] =
            (sluice_logit_bias){(int32_t)parse_id(key), (float)json_number_value(value)};
    }
    for (size_t i = 0; json_is_array(given) && i < count; i++) {
        const json_t *pair = json_array_get(given, i), *id = json_array_get(pair, 0),
                     *bias = json_array_get(pair, 1);
        if (json_array_size(pair) != 2 || !json_is_integer(id) || !is_bias(g, json_integer_value(id), bias)) {
            return refuse_bias(g, error);
        }
        g->biases[g->bias_count++] =
            (sluice_logit_bias){(int32_t)json_integer_value(id),
                                json_is_false(bias) ? -INFINITY : (float)json_number_value(bias)};
    }
    qsort(g->biases, g->bias_count, sizeof *g->biases, compare_biases);
    for (size_t i = 1; i < g->bias_count; i++) {
        if (g->biases[i].token == g->biases[i - 1].token) {
            return refuse_bias(g, error);
        }
    }
    return 0;
}

static int check_prompts(generation *g, const char *param, http_error *error) {
    generation_options *o = &g->options;
    if (g->prompt_count * (size_t)o->n > BODY_CHOICES) {
        return body_refuse(error, "n: %zu prompts and n %lld make more than %d choices", g->prompt_count,
                           (long long)o->n, BODY_CHOICES);
    }
    for (size_t i = 0; i < g->prompt_count; i++) {
        const size_t count = g->prompts[i].count;
        const size_t most = (size_t)g->model->context - (o->max_tokens == 0 ? 0 : 1);
        if (count > most) {
            body_refuse_as(
                error, param,
                "This model's maximum context length is %d tokens: the request (%zu tokens) exceeds the "
                "available context size (%d tokens), make the prompt shorter",
                g->model->context, count, g->model->context);
            error->code = "context_length_exceeded";
            error->prompt_tokens = (int64_t)count;
            error->context = g->model->context;
            return -1;
        }
        if (count == 0) {
            return body_refuse(error, "%s: the prompt has no tokens", param);
        }
    }
    return 0;
}

static int read_structured(generation *g, http_error *error) {
    const structured_request request = {.fields = g->options.structured,
                                        .thought = g->thought,
                                        .tools = g->tools,
                                        .tool_choice = g->options.tool_choice,
                                        .function = g->options.tool_function,
                                        .single_call = g->options.single_call};
    return structured_grammar(&request, g->model->grammars, &g->grammar, error);
}

/* ---- starting ---- */

static uint64_t random_seed(void) {
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) {
        seed = (uint64_t)(monotonic_seconds() * 1e9);
    }
    return seed;
}

static uint64_t salt_of(const char *text) {
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    for (; text && *text; text++) {
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    }
    return text ? hash | 1 : 0;
}

static void fill_request(const generation *g, size_t index, uint64_t seed, sluice_request_options *r) {
    const generation_options *o = &g->options;
    const size_t prompt = index / (size_t)o->n, count = g->prompts[prompt].count;
    const size_t room = (size_t)g->model->context - count;
    const bool penalises = o->penalty_tokens != 0;
    *r = (sluice_request_options){
        .size = sizeof *r,
        .tokens = g->prompts[prompt].tokens,
        .token_count = count,
        .generate = o->max_tokens < 0 || (uint64_t)o->max_tokens > room ? room : (size_t)o->max_tokens,
        .temperature = (float)o->temperature,
        .top_k = o->top_k > 0 ? (int32_t)o->top_k : 0,
        .top_p = o->top_p > 0 ? (float)o->top_p : 1e-9f, /* a client's 0: the likeliest only */
        .min_p = (float)o->min_p,
        .typical_p = (float)o->typical_p,
        .samplers = g->samplers,
        .sampler_count = g->sampler_count,
        .top_n_sigma = o->top_n_sigma > 0 ? (float)o->top_n_sigma : 0,
        .xtc_probability = (float)o->xtc_probability,
        .xtc_threshold = (float)o->xtc_threshold,
        .dynamic_temperature_range = (float)o->dynatemp_range,
        .dynamic_temperature_exponent = (float)o->dynatemp_exponent,
        .dry_multiplier = o->dry_penalty_last_n ? (float)o->dry_multiplier : 0,
        .dry_base = (float)o->dry_base,
        .dry_allowed_length = (int32_t)o->dry_allowed_length,
        .dry_tokens = o->dry_penalty_last_n > 0 ? (int32_t)o->dry_penalty_last_n : 0,
        .dry_breakers = g->breakers,
        .dry_breaker_count = g->breaker_count,
        .mirostat = (int32_t)o->mirostat,
        .mirostat_tau = (float)o->mirostat_tau,
        .mirostat_eta = (float)o->mirostat_eta,
        .repetition_penalty = penalises ? (float)o->repetition_penalty : 1,
        .presence_penalty = penalises ? (float)o->presence_penalty : 0,
        .frequency_penalty = penalises ? (float)o->frequency_penalty : 0,
        .penalty_tokens = penalises ? (int32_t)o->penalty_tokens : 0,
        .seed = seed + index,
        .stops = g->stops,
        .stop_count = g->stop_count,
        .ignore_eos = o->ignore_eos,
        .logit_bias = g->biases,
        .logit_bias_count = g->bias_count,
        .minimum = o->min_tokens > 0 ? (size_t)o->min_tokens : 0,
        .stop_tokens = g->stop_tokens,
        .stop_token_count = g->stop_token_count,
        .logprobs = o->logprobs,
        .top_logprobs = (int32_t)o->top_logprobs,
        .prompt_logprobs = o->prompt_logprobs,
        .priority = (int32_t)o->priority,
        .group = (uint64_t)(exchange_key(g->exchange) + 1),
        .no_reuse = !o->cache_prompt,
        .drafts = o->drafts < 0   ? 0
                  : o->drafts > 0 ? (int32_t)o->drafts
                                  : -1,
        .least_drafts = (int32_t)o->least_drafts,
        .grammar = g->grammar,
        .thought = o->thought_tokens >= 0 ? g->thought : SLUICE_THOUGHT_NONE,
        .thought_tokens = o->thought_tokens >= 0 ? (size_t)o->thought_tokens : 0,
        .special_text = g->expects_reply,
        .cache_salt = salt_of(o->cache_salt),
        .notify = pump_notify,
        .notify_context = &g->runs[index],
    };
}

static int submit_all(generation *g, http_error *error) {
    const size_t count = g->choice_count;
    sluice_request_options *options = calloc(count, sizeof *options);
    const sluice_request_options **pointers = calloc(count, sizeof *pointers);
    sluice_sequence **sequences = calloc(count, sizeof *sequences);
    sluice_request **requests = calloc(count, sizeof *requests);
    sluice_error inner = {0};
    int failed = options && pointers && sequences && requests ? 0 : no_memory(error);
    const uint64_t seed = g->options.seed == -1 ? random_seed() : (uint64_t)g->options.seed;
    for (size_t i = 0; !failed && i < count; i++) {
        fill_request(g, i, seed, &options[i]);
        pointers[i] = &options[i];
        failed = sluice_sequence_create(g->model->engine, &sequences[i], &inner);
        g->runs[i].sequence = sequences[i];
    }
    if (!failed) {
        failed = sluice_submit_together(sequences, pointers, count, requests, &inner);
    }
    if (inner.code) {
        error_from_sluice(&inner, error);
    }
    for (size_t i = 0; !failed && i < count; i++) {
        g->runs[i].request = requests[i];
    }
    free(options);
    free(pointers);
    free(sequences);
    free(requests);
    return failed ? -1 : 0;
}

static int make_choices(generation *g, http_error *error) {
    g->choice_count = g->prompt_count * (size_t)g->options.n;
    g->choices = calloc(g->choice_count, sizeof *g->choices);
    g->runs = calloc(g->choice_count, sizeof *g->runs);
    if (!g->choices || !g->runs) {
        return no_memory(error);
    }
    const sluice_reply_options reply = {.size = sizeof reply,
                                        .tools =
                                            g->options.tool_choice == SLUICE_TOOLS_NONE ? NULL : g->tools,
                                        .opened = g->thought == SLUICE_THOUGHT_OPEN,
                                        .keeps_thoughts = g->options.keep_reasoning};
    sluice_error inner;
    for (size_t i = 0; i < g->choice_count; i++) {
        choice *c = &g->choices[i];
        c->of = g;
        c->index = i;
        c->prompt = i / (size_t)g->options.n;
        c->prompt_tokens = g->prompts[c->prompt].count;
        c->run = &g->runs[i];
        g->runs[i].choice = c;
        if (g->expects_reply && sluice_reply_create(g->model->model, &reply, &g->runs[i].reply, &inner)) {
            error_from_sluice(&inner, error);
            return -1;
        }
    }
    return 0;
}

int generation_start(generation *g, const dialect *dialect, void *state, const char *param,
                     http_error *error) {
    g->dialect = dialect;
    g->state = state;
    g->pump = g->server->pump;
    if (read_stops(g, error) || read_stop_tokens(g, error) || read_biases(g, error) ||
        read_breakers(g, error) || read_samplers(g, error) || check_prompts(g, param, error) ||
        read_structured(g, error) || make_choices(g, error) || submit_all(g, error)) {
        generation_free(g);
        return -1;
    }
    pump_begin(g->pump, g);
    return 0;
}

/* ---- for dialects ---- */

exchange *generation_exchange(const generation *g) {
    return g->exchange;
}

served_model *generation_model(const generation *g) {
    return g->model;
}

const json_t *generation_body(const generation *g) {
    return g->body;
}

double generation_created(const generation *g) {
    return g->created;
}

size_t generation_choice_count(const generation *g) {
    return g->choice_count;
}

const choice *generation_choice(const generation *g, size_t index) {
    return &g->choices[index];
}

const int32_t *generation_prompt(const generation *g, size_t index, size_t *count) {
    *count = g->prompts[index].count;
    return g->prompts[index].tokens;
}

void generation_get_usage(const generation *g, generation_usage *usage) {
    *usage = (generation_usage){0};
    const size_t n = (size_t)g->options.n;
    for (size_t i = 0; i < g->choice_count; i++) {
        const choice *c = &g->choices[i];
        usage->prompt_tokens += i % n == 0 ? c->prompt_tokens : 0;
        usage->cached_tokens += i % n == 0 ? c->cached_tokens : 0;
        usage->completion_tokens += c->generated_tokens;
        usage->reasoning_tokens += c->reasoning_tokens;
        usage->drafted_tokens += c->ended.drafted_tokens;
        usage->accepted_tokens += c->ended.accepted_tokens;
    }
}

void generation_write_usage(const generation *g, text *out) {
    generation_usage u;
    generation_get_usage(g, &u);
    text_format(out,
                "{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,"
                "\"prompt_tokens_details\":{\"cached_tokens\":%zu},"
                "\"completion_tokens_details\":{\"reasoning_tokens\":%zu}}",
                u.prompt_tokens, u.completion_tokens, u.prompt_tokens + u.completion_tokens, u.cached_tokens,
                u.reasoning_tokens);
}

static const char *const REUSE[] = {"all", "new", "state", "logits", "off"};

void generation_write_timings(const generation *g, text *out) {
    generation_usage u;
    generation_get_usage(g, &u);
    const sluice_event *e = &g->choices[0].ended;
    double decode = 0;
    for (size_t i = 0; i < g->choice_count; i++) {
        const double seconds = g->choices[i].ended.generate_seconds;
        decode = seconds > decode ? seconds : decode;
    }
    const size_t read = u.prompt_tokens - u.cached_tokens;
    const double prefill = e->prompt_seconds - e->queue_seconds;
    const double predicted =
        u.completion_tokens > g->choice_count ? (double)(u.completion_tokens - g->choice_count) : 0;
    text_format(
        out,
        "{\"cache_n\":%zu,\"prompt_n\":%zu,\"prompt_ms\":%.3f,\"prompt_per_token_ms\":%.4f,"
        "\"prompt_per_second\":%.3f,\"predicted_n\":%zu,\"predicted_ms\":%.3f,\"predicted_per_token_ms\":%."
        "4f,"
        "\"predicted_per_second\":%.3f,\"queue_ms\":%.3f,\"cache_matched_n\":%zu,\"cache_limit\":\"%s\"",
        u.cached_tokens, read, prefill * 1e3, read ? prefill * 1e3 / (double)read : 0,
        prefill > 0 ? (double)read / prefill : 0, u.completion_tokens, decode * 1e3,
        predicted > 0 ? decode * 1e3 / predicted : 0, decode > 0 ? predicted / decode : 0,
        e->queue_seconds * 1e3, e->reuse_matched,
        REUSE[e->reuse <= SLUICE_REUSE_OFF ? e->reuse : SLUICE_REUSE_NEW]);
    if (u.drafted_tokens > 0) {
        text_format(out, ",\"draft_n\":%zu,\"draft_n_accepted\":%zu", u.drafted_tokens, u.accepted_tokens);
    }
    text_put(out, "}");
}

void error_from_sluice(const sluice_error *from, http_error *error) {
    *error = (http_error){.status = 500, .type = "server_error", .code = "internal_error"};
    snprintf(error->message, sizeof error->message, "%s", from->message);
    switch (from->code) {
    case SLUICE_ERR_INVALID:
    case SLUICE_ERR_UNSUPPORTED:
    case SLUICE_ERR_FORMAT:
        error->status = 400;
        error->type = "invalid_request_error";
        error->code = NULL;
        break;
    case SLUICE_ERR_BUSY:
        error->status = 429;
        error->type = "rate_limit_error";
        error->code = "queue_full";
        error->retry_after = 1;
        break;
    case SLUICE_ERR_LIMIT:
    case SLUICE_ERR_NOMEM:
        error->status = 503;
        error->code = "out_of_memory";
        error->retry_after = 1;
        break;
    case SLUICE_ERR_CANCELLED:
    case SLUICE_ERR_DEVICE:
        error->status = 503;
        error->code = "engine_ended";
        break;
    default:
        break;
    }
}
