/* POST /v1/completions. */
#include "openai.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- the request ---- */

typedef struct completion_fields {
    const json_t *prompt;
    bool echo, add_special;
    int64_t logprobs, best_of; /* -1, 0: absent */
} completion_fields;

#define AT(member) offsetof(completion_fields, member)

static const field FIELDS[] = {
    {"prompt", FIELD_ANY, AT(prompt), 0, 0, NULL},
    {"echo", FIELD_BOOL, AT(echo), 0, 0, NULL},
    {"logprobs", FIELD_WHOLE, AT(logprobs), 0, BODY_TOP_LOGPROBS, NULL},
    {"best_of", FIELD_WHOLE, AT(best_of), 1, BODY_CHOICES, NULL},
    {"add_special_tokens", FIELD_BOOL, AT(add_special), 0, 0, NULL},
    {"suffix", FIELD_UNSUPPORTED, 0, 0, 0, "\"\""},
    {"tools", FIELD_UNSUPPORTED, 0, 0, 0, "[]"},
    {"functions", FIELD_UNSUPPORTED, 0, 0, 0, "[]"},
};

/* All that a request's prompts are read with. */
typedef struct prompts {
    generation *g;
    const completion_fields *fields;
    openai_state *state;
    http_error *error;
} prompts;

static int no_memory(http_error *error) {
    const sluice_error inner = {.code = SLUICE_ERR_NOMEM, .message = "out of memory for the prompt"};
    error_from_sluice(&inner, error);
    return -1;
}

/* Keeps the text for an echo. */
static int add_prompt(const prompts *p, const char *echo, size_t length, const prompt_tokens *tokens) {
    openai_state *s = p->state;
    if (s->echoes) {
        text *kept = &s->echoes[s->echo_count++];
        text_add(kept, echo, length);
        if (kept->failed) {
            return no_memory(p->error);
        }
    }
    return generation_copy_prompt(p->g, tokens->tokens, tokens->count, p->error);
}

static int add_text(const prompts *p, const json_t *prompt) {
    const char *string = json_string_value(prompt);
    const size_t length = json_string_length(prompt);
    const unsigned flags = SLUICE_TOKENIZE_SPECIAL | (p->fields->add_special ? SLUICE_TOKENIZE_BOS : 0u);
    const sluice_model *model = generation_model(p->g)->model;
    prompt_tokens tokens = {0};
    sluice_error inner;
    if (sluice_tokenize(model, string, length, flags, &tokens.tokens, &tokens.count, &inner)) {
        error_from_sluice(&inner, p->error);
        return -1;
    }
    const int code = add_prompt(p, string, length, &tokens);
    sluice_free(tokens.tokens);
    return code;
}

/* Ids in the vocabulary, or NULL with *error. */
static int32_t *read_ids(const served_model *m, const json_t *ids, http_error *error) {
    const size_t count = json_array_size(ids);
    int32_t *list = calloc(count, sizeof *list);
    if (!list) {
        no_memory(error);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= m->info.vocabulary) {
            free(list);
            body_refuse(error,
                        "prompt: element %zu of a list of tokens must be an id, a whole number from 0 to %d",
                        i, m->info.vocabulary - 1);
            return NULL;
        }
        list[i] = (int32_t)json_integer_value(id);
    }
    return list;
}

static int add_ids(const prompts *p, const json_t *ids) {
    const served_model *m = generation_model(p->g);
    const prompt_tokens tokens = {read_ids(m, ids, p->error), json_array_size(ids)};
    sluice_error inner;
    char *echo = NULL;
    size_t length = 0;
    if (!tokens.tokens) {
        return -1;
    }
    int code = p->state->echoes ? sluice_detokenize(m->model, tokens.tokens, tokens.count,
                                                    SLUICE_TOKENIZE_SPECIAL, &echo, &length, &inner)
                                : 0;
    if (code) {
        error_from_sluice(&inner, p->error);
    } else {
        code = add_prompt(p, echo ? echo : "", length, &tokens);
    }
    sluice_free(echo);
    free(tokens.tokens);
    return code ? -1 : 0;
}

static int add_one(const prompts *p, const json_t *prompt) {
    if (json_is_array(prompt) && !json_array_size(prompt)) {
        return body_refuse(p->error, "prompt: a list of tokens must not be empty");
    }
    return json_is_string(prompt) ? add_text(p, prompt) : add_ids(p, prompt);
}

/* A string, token ids, or a list of either. */
static int add_prompts(const prompts *p) {
    const json_t *prompt = p->fields->prompt, *first = json_array_get(prompt, 0);
    if (!json_is_string(prompt) && !json_is_array(prompt)) {
        return body_refuse(p->error,
                           "prompt must be a string, an array of token ids, or an array of either, not %s",
                           body_type(prompt));
    }
    const bool single = json_is_string(prompt) || json_is_number(first);
    const size_t count = single ? 1 : json_array_size(prompt);
    if (!count || count > BODY_CHOICES) {
        return body_refuse(p->error, "prompt must have 1 to %d elements", BODY_CHOICES);
    }
    if (p->fields->echo && !(p->state->echoes = calloc(count, sizeof *p->state->echoes))) {
        return no_memory(p->error);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *one = single ? prompt : json_array_get(prompt, i);
        if (json_typeof(one) != json_typeof(single ? prompt : first) ||
            (!json_is_string(one) && !json_is_array(one))) {
            return body_refuse(
                p->error,
                "prompt: element %zu must be a string or an array of token ids, as all others, not %s", i,
                body_type(one));
        }
        if (add_one(p, one)) {
            return -1;
        }
    }
    return 0;
}

/* ---- log-probabilities in the shape of this route: four arrays of equal length ---- */

typedef struct row {
    const token_entry *entry;
    const char *bytes;
    size_t length, offset; /* characters of the text before it */
} row;

static size_t characters(const char *bytes, size_t length) {
    size_t count = 0;
    for (size_t i = 0; i < length; i++) {
        count += ((unsigned char)bytes[i] & 0xc0) != 0x80;
    }
    return count;
}

/* Where the tokens of a prompt stand in its text. Tokens may have a space in front that the text lacks (the
 * tokenizer's prefix), or no text at all (the beginning-of-text token). */
static void place_prompt(const generation *g, const choice *c, const text *echo, row *rows) {
    size_t at = 0, offset = 0;
    for (size_t i = 0; i < c->prompt_entry_count; i++) {
        row *r = &rows[i];
        *r = (row){.entry = &c->prompt_entries[i], .offset = offset};
        r->bytes = openai_token_bytes(g, r->entry->token, &r->length);
        const size_t left = echo->length - at;
        if (r->length && r->bytes[0] == ' ' && (!left || echo->data[at] != ' ') && r->length - 1 <= left &&
            memcmp(r->bytes + 1, echo->data + at, r->length - 1) == 0) {
            r->bytes++;
            r->length--;
        }
        if (r->length && r->length <= left && memcmp(r->bytes, echo->data + at, r->length) == 0) {
            at += r->length;
            offset += characters(r->bytes, r->length);
        }
    }
}

/* OpenAI's form of a token that is no UTF-8 of its own: "bytes:\xf0\x9f". */
static void write_token(text *out, const char *bytes, size_t length) {
    size_t at = 0, size = 1, skip;
    while (at < length && (size = text_character(bytes + at, length - at, &skip)) > 0) {
        at += size;
    }
    if (at == length) {
        text_string(out, bytes, length);
        return;
    }
    text_put(out, "\"bytes:");
    for (size_t i = 0; i < length; i++) {
        text_format(out, "\\\\x%02x", (unsigned char)bytes[i]);
    }
    text_put(out, "\"");
}

/* The likeliest tokens and the one that is there, each once. */
static void write_top(text *out, const generation *g, const choice *c, const row *r) {
    const token_entry *e = r->entry;
    if (isnan(e->logprob)) {
        text_put(out, "null");
        return;
    }
    text_put(out, "{");
    write_token(out, r->bytes, r->length);
    text_put(out, ":");
    openai_write_logprob(out, e->logprob);
    for (size_t i = 0; i < e->top_count; i++) {
        const sluice_logprob *top = &c->tops[e->top_first + i];
        size_t length;
        const char *bytes = openai_token_bytes(g, top->token, &length);
        bool named = length == r->length && memcmp(bytes, r->bytes, length) == 0;
        for (size_t k = 0; k < i && !named; k++) {
            size_t other;
            const char *before = openai_token_bytes(g, c->tops[e->top_first + k].token, &other);
            named = other == length && memcmp(bytes, before, length) == 0;
        }
        if (top->token != e->token && !named) {
            text_put(out, ",");
            write_token(out, bytes, length);
            text_put(out, ":");
            openai_write_logprob(out, top->logprob);
        }
    }
    text_put(out, "}");
}

static void write_rows(text *out, const generation *g, const choice *c, const row *rows, size_t count) {
    text_put(out, "{\"tokens\":[");
    for (size_t i = 0; i < count; i++) {
        text_put(out, i ? "," : "");
        write_token(out, rows[i].bytes, rows[i].length);
    }
    text_put(out, "],\"token_logprobs\":[");
    for (size_t i = 0; i < count; i++) {
        text_put(out, i ? "," : "");
        openai_write_logprob(out, rows[i].entry->logprob);
    }
    text_put(out, "],\"top_logprobs\":[");
    for (size_t i = 0; i < count; i++) {
        text_put(out, i ? "," : "");
        write_top(out, g, c, &rows[i]);
    }
    text_put(out, "],\"text_offset\":[");
    for (size_t i = 0; i < count; i++) {
        text_format(out, i ? ",%zu" : "%zu", rows[i].offset);
    }
    text_put(out, "]}");
}

static const text *echo_of(const openai_state *s, const choice *c) {
    return s->echoes ? &s->echoes[c->prompt] : NULL;
}

/* What a chunk or an answer has of a choice. */
typedef struct share {
    bool prompt;         /* the echo */
    size_t first, count; /* generated entries */
} share;

/* Writes the member logprobs and moves the choice's offset on. */
static void write_logprobs(text *out, generation *g, openai_state *s, const choice *c, const share *part) {
    const text *echo = part->prompt ? echo_of(s, c) : NULL;
    const size_t before = echo ? c->prompt_entry_count : 0, count = before + part->count;
    openai_progress *progress = &s->choices[c->index];
    text_put(out, ",\"logprobs\":");
    if (!generation_get_options(g)->logprobs) {
        text_put(out, "null");
        return;
    }
    row *rows = calloc(count + 1, sizeof *rows);
    if (!rows) {
        out->failed = true;
        return;
    }
    if (echo) {
        place_prompt(g, c, echo, rows);
        progress->offset = characters(echo->data, echo->length);
    }
    for (size_t i = 0; i < part->count; i++) {
        row *r = &rows[before + i];
        *r = (row){.entry = &c->entries[part->first + i], .offset = progress->offset};
        r->bytes = openai_token_bytes(g, r->entry->token, &r->length);
        progress->offset += characters(r->bytes, r->length);
    }
    write_rows(out, g, c, rows, count);
    free(rows);
}

/* ---- the answer ---- */

static void begin_choice(generation *g, openai_state *s, const choice *c) {
    const text *echo = echo_of(s, c);
    if (!s->choices[c->index].begun && echo) {
        text *out = openai_chunk_begin(s, c);
        text_put(out, ",\"text\":");
        text_string(out, echo->data, echo->length);
        write_logprobs(out, g, s, c, &(share){.prompt = true});
        openai_chunk_close(s, "null");
        openai_chunk_send(g, s, false);
    }
    s->choices[c->index].begun = true;
}

static void completion_piece(generation *g, void *state, const choice *c, const piece *p) {
    openai_state *s = state;
    begin_choice(g, s, c);
    text *out = openai_chunk_begin(s, c);
    text_put(out, ",\"text\":");
    text_string(out, p->content, p->content_length);
    write_logprobs(out, g, s, c, &(share){.first = p->first_entry, .count = p->entry_count});
    openai_chunk_close(s, "null");
    openai_chunk_send(g, s, generation_get_options(g)->timings_per_token);
}

static void completion_choice_end(generation *g, void *state, const choice *c) {
    openai_state *s = state;
    begin_choice(g, s, c);
    text_put(openai_chunk_begin(s, c), ",\"text\":\"\",\"logprobs\":null");
    openai_chunk_close(s, openai_finish(c));
    openai_chunk_send(g, s, openai_all_done(g) || generation_get_options(g)->timings_per_token);
}

static void write_choice(generation *g, openai_state *s, const choice *c) {
    text *out = &s->event, all = {0};
    const text *echo = echo_of(s, c);
    if (echo) {
        text_add(&all, echo->data, echo->length);
    }
    text_add(&all, c->content.data, c->content.length);
    text_format(out, "%s{\"index\":%zu,\"text\":", c->index ? "," : "", c->index);
    text_string(out, all.data, all.length);
    out->failed |= all.failed;
    text_free(&all);
    write_logprobs(out, g, s, c, &(share){.prompt = echo != NULL, .count = c->entry_count});
    text_put(out, ",\"finish_reason\":");
    text_put(out, openai_finish(c));
    text_put(out, "}");
}

static void completion_end(generation *g, void *state) {
    openai_end(g, state, write_choice);
}

static void completion_progress(generation *g, void *state, size_t read, size_t total) {
    openai_state *s = state;
    text_put(openai_chunk_begin(s, generation_choice(g, 0)), ",\"text\":\"\",\"logprobs\":null");
    openai_chunk_close(s, "null");
    openai_write_progress(g, s, read, total);
    openai_chunk_send(g, s, false);
}

static const dialect COMPLETION = {
    .name = "completions",
    .content_type = OPENAI_STREAM_TYPE,
    .heartbeat = OPENAI_HEARTBEAT,
    .begin = openai_begin,
    .piece = completion_piece,
    .choice_end = completion_choice_end,
    .end = completion_end,
    .fail = openai_fail,
    .progress = completion_progress,
    .release = openai_state_free,
};

static const openai_names NAMES = {"cmpl-", "text_completion", "text_completion"};

static int read_options(generation *g, const completion_fields *f, http_error *error) {
    generation_options *o = generation_get_options(g);
    if (openai_read_fields(g, error)) {
        return -1;
    }
    if (f->best_of && f->best_of != 1 && f->best_of != o->n) {
        return body_refuse(error, "best_of: other values than 1 and n are not supported");
    }
    o->logprobs = f->logprobs >= 0;
    o->top_logprobs = o->logprobs ? f->logprobs : 0;
    o->prompt_logprobs = o->logprobs && f->echo;
    o->keep_reasoning = true;
    return 0;
}

static int start(generation *g, const completion_fields *f, http_error *error) {
    openai_state *s = NULL;
    prompts p = {.g = g, .fields = f, .error = error};
    if (read_options(g, f, error) || !(p.state = s = openai_state_create(g, &NAMES, error)) ||
        add_prompts(&p)) {
        openai_state_free(s);
        generation_discard(g);
        return -1;
    }
    return generation_start(g, &COMPLETION, s, "prompt", error);
}

static int read_fields(const json_t *body, void *fields, http_error *error) {
    return body_fields(body, "", FIELDS, sizeof FIELDS / sizeof *FIELDS, fields, error);
}

void openai_completions(exchange *x, void *context) {
    completion_fields f = {.add_special = true, .logprobs = -1};
    http_error error;
    generation *g = openai_request(context, x, read_fields, &f);
    if (g && start(g, &f, &error)) {
        exchange_fail(x, &error);
    }
}
