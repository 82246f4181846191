/* sluice run: a prompt and the answer to it, or what follows it. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct prompt_text {
    const char *text;
    size_t length;
    bool chat; /* to be asked in the chat format */
    int32_t *tokens;
    size_t count;
} prompt_text;

typedef struct output {
    const sluice_model *model;
    bool json, answer; /* answer: to a question, which is a text of its own and ends with a newline */
    char *text;        /* with json: all of it */
    size_t length, capacity;
    json_t *tokens, *logprobs; /* logprobs NULL: not asked for */
    bool failed;
    size_t written; /* bytes of text */
    char last;      /* of them */
    char *thought;  /* with json: all of the thinking */
    size_t thought_length, thought_capacity;
    bool faint; /* thinking was printed last */
    reply_reader reader;
} output;

static bool keep(char **all, size_t *used, size_t *capacity, const char *text, size_t length) {
    if (*used + length > *capacity) {
        const size_t larger = (*used + length) * 2;
        char *grown = realloc(*all, larger);
        if (!grown) {
            return false;
        }
        *all = grown;
        *capacity = larger;
    }
    if (length > 0) {
        memcpy(*all + *used, text, length);
    }
    *used += length;
    return true;
}

static void take_text(void *context, const char *text, size_t length, bool thought) {
    output *out = context;
    if (!thought) {
        out->written += length;
        out->last = length ? text[length - 1] : out->last;
    }
    if (!out->json) {
        print_reply_text(&out->faint, text, length, thought);
    } else if (thought) {
        out->failed |= !keep(&out->thought, &out->thought_length, &out->thought_capacity, text, length);
    } else {
        out->failed |= !keep(&out->text, &out->length, &out->capacity, text, length);
    }
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
    read_reply_text(&out->reader, event);
    if (out->json && event->kind == SLUICE_EVENT_TOKEN) {
        json_array_append_new(out->tokens, json_integer(event->token));
        if (out->logprobs) {
            keep_logprobs(out, event);
        }
    }
}

static int print_result(const settings *settings, output *out, const sluice_event *done) {
    if (out->failed || out->reader.failed) {
        return fail("out of memory for the text");
    }
    json_t *result =
        json_pack("{s:s, s:o, s:o, s:s, s:I, s:I, s:I, s:f, s:f, s:I}", "model", settings->model, "text",
                  json_stringn(out->text ? out->text : "", out->length), "tokens", json_incref(out->tokens),
                  "finish", finish_name(done->finish), "prompt_tokens", (json_int_t)done->prompt_tokens,
                  "reused_tokens", (json_int_t)done->reused_tokens, "generated_tokens",
                  (json_int_t)done->generated_tokens, "prompt_seconds", done->prompt_seconds,
                  "generate_seconds", done->generate_seconds, "seed", (json_int_t)settings->seed);
    if (out->thought) {
        json_object_set_new(result, "reasoning", json_stringn(out->thought, out->thought_length));
    }
    if (out->logprobs) {
        json_object_set(result, "logprobs", out->logprobs);
    }
    return print_json(result);
}

static int report(const settings *settings, output *out, const sluice_event *done) {
    if (out->json) {
        return print_result(settings, out, done);
    }
    if (out->written > 0 && out->last != '\n' && (out->answer || isatty(STDOUT_FILENO))) {
        printf("\n");
        fflush(stdout);
    }
    return DONE;
}

static int generate_text(const settings *settings, session *session, const prompt_text *prompt) {
    sluice_error error;
    sluice_sequence *sequence;
    if (sluice_sequence_create(session->engine, &sequence, &error)) {
        return fail_with(&error);
    }
    sluice_request_options options = {.size = sizeof options,
                                      .tokens = prompt->tokens,
                                      .token_count = prompt->count,
                                      .generate = most_tokens(settings)};
    sampling_options(settings, &options);
    options.logprobs = settings->logprobs > 0;
    options.top_logprobs = settings->logprobs;
    output out = {.model = session->model,
                  .json = strcmp(settings->output, "json") == 0,
                  .answer = prompt->chat,
                  .tokens = json_array(),
                  .logprobs = settings->logprobs > 0 ? json_array() : NULL};
    sluice_event done;
    held_grammar held = {.answers = prompt->chat};
    out.reader = (reply_reader){.take = take_text, .context = &out};
    int code = hold_to_grammar(&held, settings, session->model, &options);
    code = code == DONE && prompt->chat ? begin_reply(&out.reader, session->model, &options) : code;
    code = code == DONE ? generate(sequence, &options, take_token, &out, &done) : code;
    end_faint(&out.faint);
    end_reply(&out.reader);
    code = code == DONE ? report(settings, &out, &done) : code;
    if (code == DONE) {
        if (out.written == 0 && !explain_thinking(&out.reader, &done)) {
            explain_silence(settings, &done);
        }
        print_timings(&done);
    }
    if (code == DONE && done.finish == SLUICE_FINISH_CANCELLED) {
        code = fail("cancelled");
    }
    release_grammar(&held);
    json_decref(out.tokens);
    json_decref(out.logprobs);
    free(out.text);
    free(out.thought);
    sluice_sequence_release(sequence);
    return code;
}

/* The prompt as one message. The newline that ends a file's or an echo's last line is not part of it. */
static int ask(const settings *s, session *session, prompt_text *p) {
    json_t *messages = json_array();
    size_t length = p->length;
    if (!s->prompt && length > 0 && p->text[length - 1] == '\n') {
        length -= length > 1 && p->text[length - 2] == '\r' ? 2 : 1;
    }
    int code = messages ? DONE : fail("out of memory");
    if (code == DONE && s->system) {
        code = add_message(messages, "system", s->system, strlen(s->system));
    }
    code = code == DONE ? add_message(messages, "user", p->text, length) : code;
    code = code == DONE ? render_tokens(session->model, s, messages, &p->tokens, &p->count) : code;
    json_decref(messages);
    return code;
}

static int go_on(const settings *s, session *session, prompt_text *p) {
    sluice_error error;
    const unsigned flags = SLUICE_TOKENIZE_BOS | (s->special ? SLUICE_TOKENIZE_SPECIAL : 0);
    if (sluice_tokenize(session->model, p->text, p->length, flags, &p->tokens, &p->count, &error)) {
        return fail_with(&error);
    }
    return p->count == 0 ? fail("the prompt is empty, and the model has no beginning-of-text token") : DONE;
}

/* Is the prompt a question in the model's chat format, or a text to go on from? */
static int choose_format(const settings *s, const session *session, bool *chat) {
    sluice_error error;
    sluice_chat_facts facts = {.size = sizeof facts};
    *chat = false;
    if (s->raw) {
        return DONE;
    }
    if (sluice_chat_get_facts(session->model, &facts, &error)) {
        return fail("%s (--raw goes on from the text as it stands, --chat-template takes another)",
                    error.message);
    }
    *chat = !facts.builtin;
    if (facts.builtin && s->system) {
        return fail("run: --system: the model has no chat template (--chat-template chatml takes that one)");
    }
    if (facts.builtin) {
        notice(s, "the model has no chat template: it goes on from the text as it stands "
                  "(--chat-template NAME asks in a format)");
    }
    if (*chat && s->special) {
        fail("run: --special wants --raw: in a message special tokens stay text");
        return WRONG_USAGE;
    }
    return DONE;
}

static int run_prompt(const settings *given, prompt_text *prompt) {
    session session = {0};
    settings own = *given, *settings = &own;
    sluice_engine_options options;
    int code = open_model(settings, &session);
    code = code == DONE ? choose_format(settings, &session, &prompt->chat) : code;
    if (code == DONE) {
        take_model_sampling(settings, session.model);
        code = (prompt->chat ? ask : go_on)(settings, &session, prompt);
    }
    engine_options(settings, 1, &options);
    code = code == DONE ? open_engine(settings, &session, &options) : code;
    code = code == DONE ? generate_text(settings, &session, prompt) : code;
    code = code == DONE ? write_expert_stats(settings, &session) : code;
    sluice_free(prompt->tokens);
    close_session(&session);
    return code;
}

int run_command(const settings *settings) {
    if (settings->logprobs > 0 && strcmp(settings->output, "json") != 0) {
        fail("run: --logprobs wants -o json");
        return WRONG_USAGE;
    }
    if (settings->raw && (settings->system || settings->chat_template)) {
        fail("run: --raw excludes --system and --chat-template");
        return WRONG_USAGE;
    }
    int code;
    prompt_text prompt = {0};
    char *text = read_prompt("run", settings, &prompt.length, &code);
    prompt.text = text;
    code = code == DONE ? run_prompt(settings, &prompt) : code;
    free(text);
    return code;
}
