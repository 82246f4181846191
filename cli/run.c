/* sluice run: a prompt and what follows it. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct output {
    const sluice_model *model;
    bool json;
    char *text; /* with json: all of it */
    size_t length, capacity;
    json_t *tokens, *logprobs; /* logprobs NULL: not asked for */
    bool failed;
} output;

static void keep_text(output *out, const char *text, size_t length) {
    if (out->length + length > out->capacity) {
        const size_t capacity = (out->length + length) * 2;
        char *larger = realloc(out->text, capacity);
        if (!larger) {
            out->failed = true;
            return;
        }
        out->text = larger;
        out->capacity = capacity;
    }
    if (length > 0) {
        memcpy(out->text + out->length, text, length);
    }
    out->length += length;
}

/* The text is null where a token is a part of a character. */
static json_t *logprob_of(const output *out, int32_t token, double logprob) {
    const char *bytes = "";
    size_t length = 0;
    sluice_token_bytes(out->model, token, &bytes, &length, NULL);
    json_t *text = json_stringn(bytes, length);
    return json_pack("{s:i, s:o, s:f}", "token", token, "text", text ? text : json_null(), "logprob",
                     logprob);
}

static void keep_logprobs(output *out, const sluice_event *event) {
    json_t *top = json_array(), *entry = logprob_of(out, event->token, (double)event->logprob);
    for (size_t i = 0; i < event->top_count; i++) {
        json_array_append_new(top, logprob_of(out, event->top[i].token, (double)event->top[i].logprob));
    }
    json_object_set_new(entry, "top", top);
    out->failed |= json_array_append_new(out->logprobs, entry) != 0;
}

static void take_token(void *context, const sluice_event *event) {
    output *out = context;
    if (!out->json) {
        fwrite(event->text, 1, event->text_length, stdout);
        fflush(stdout);
        return;
    }
    keep_text(out, event->text, event->text_length);
    if (event->kind == SLUICE_EVENT_TOKEN) {
        json_array_append_new(out->tokens, json_integer(event->token));
        if (out->logprobs) {
            keep_logprobs(out, event);
        }
    }
}

static int print_result(const settings *settings, output *out, const sluice_event *done) {
    if (out->failed) {
        return fail("out of memory for the text");
    }
    json_t *result =
        json_pack("{s:s, s:o, s:o, s:s, s:I, s:I, s:I, s:f, s:f, s:I}", "model", settings->model, "text",
                  json_stringn(out->text ? out->text : "", out->length), "tokens", json_incref(out->tokens),
                  "finish", finish_name(done->finish), "prompt_tokens", (json_int_t)done->prompt_tokens,
                  "reused_tokens", (json_int_t)done->reused_tokens, "generated_tokens",
                  (json_int_t)done->generated_tokens, "prompt_seconds", done->prompt_seconds,
                  "generate_seconds", done->generate_seconds, "seed", (json_int_t)settings->seed);
    if (out->logprobs) {
        json_object_set(result, "logprobs", out->logprobs);
    }
    return print_json(result);
}

static int generate_text(const settings *settings, session *session, const int32_t *tokens, size_t count) {
    sluice_error error;
    sluice_sequence *sequence;
    if (sluice_sequence_create(session->engine, &sequence, &error)) {
        return fail_with(&error);
    }
    sluice_request_options options = {.size = sizeof options,
                                      .tokens = tokens,
                                      .token_count = count,
                                      .generate = (size_t)settings->predict};
    sampling_options(settings, &options);
    options.logprobs = settings->logprobs > 0;
    options.top_logprobs = settings->logprobs;
    output out = {.model = session->model,
                  .json = strcmp(settings->output, "json") == 0,
                  .tokens = json_array(),
                  .logprobs = settings->logprobs > 0 ? json_array() : NULL};
    sluice_event done;
    int code = generate(sequence, &options, take_token, &out, &done);
    if (code == DONE && out.json) {
        code = print_result(settings, &out, &done);
    }
    if (code == DONE && !out.json && isatty(STDOUT_FILENO)) {
        printf("\n");
        fflush(stdout);
    }
    if (code == DONE) {
        print_timings(&done);
    }
    if (code == DONE && done.finish == SLUICE_FINISH_CANCELLED) {
        code = fail("cancelled");
    }
    json_decref(out.tokens);
    json_decref(out.logprobs);
    free(out.text);
    sluice_sequence_release(sequence);
    return code;
}

static int run_prompt(const settings *settings, const char *prompt, size_t length) {
    session session = {0};
    sluice_error error;
    sluice_engine_options options;
    int32_t *tokens = NULL;
    size_t count = 0;
    int code = open_model(settings, &session);
    const unsigned flags = SLUICE_TOKENIZE_BOS | (settings->special ? SLUICE_TOKENIZE_SPECIAL : 0);
    if (code == DONE && sluice_tokenize(session.model, prompt, length, flags, &tokens, &count, &error)) {
        code = fail_with(&error);
    }
    if (code == DONE && count == 0) {
        code = fail("the prompt is empty, and the model has no beginning-of-text token");
    }
    engine_options(settings, 1, &options);
    code = code == DONE ? open_engine(&session, &options) : code;
    code = code == DONE ? generate_text(settings, &session, tokens, count) : code;
    sluice_free(tokens);
    close_session(&session);
    return code;
}

int run_command(const settings *settings) {
    if (settings->logprobs > 0 && strcmp(settings->output, "json") != 0) {
        fail("run: --logprobs wants -o json");
        return WRONG_USAGE;
    }
    if (settings->prompt && settings->file) {
        fail("run: -p and -f exclude each other");
        return WRONG_USAGE;
    }
    if (settings->prompt) {
        return run_prompt(settings, settings->prompt, strlen(settings->prompt));
    }
    if (!settings->file && isatty(STDIN_FILENO)) {
        fail("run: no prompt: give one with -p, with -f, or on standard input");
        return WRONG_USAGE;
    }
    size_t length;
    char *prompt = read_all(settings->file, &length);
    if (!prompt) {
        return FAILED;
    }
    const int code = run_prompt(settings, prompt, length);
    free(prompt);
    return code;
}
