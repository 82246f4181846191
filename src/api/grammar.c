#define _GNU_SOURCE
/* The C API: grammars that a request's text is held to. */
#include "api/grammars.h"
#include "api/replies.h"

#include "base/alloc.h"
#include "chat/reply_grammar.h"
#include "grammar/schema.h"
#include "token/tokenizer.h"

#include <string.h>

/* ---- the vocabulary ---- */

/* Tokens that were added to a vocabulary are text to the detokenizer. Those that the chat template writes are
 * its marks all the same: inside a string, one would push the model out of it. */
static bool is_mark(const sluice_model *model, int32_t id) {
    const sl_tokenizer *tokenizer = model->model->tokenizer;
    const sl_view text = sl_tokenizer_token_text(tokenizer, id);
    return sl_tokenizer_token_type(tokenizer, id) == SL_TOKEN_USER_DEFINED && model->chat_template &&
           text.length > 1 &&
           memmem(model->chat_template, strlen(model->chat_template), text.data, text.length);
}

bool sl_api_is_special(const sluice_model *model, int32_t id) {
    const sl_tokenizer *tokenizer = model->model->tokenizer;
    const sl_token_type type = sl_tokenizer_token_type(tokenizer, id);
    return type == SL_TOKEN_CONTROL || type == SL_TOKEN_UNKNOWN || type == SL_TOKEN_UNUSED ||
           sl_tokenizer_is_eog(tokenizer, id) || is_mark(model, id);
}

/* As many as the model's logits. */
static int make_vocabulary(sluice_model *model, sl_error *error) {
    const sl_tokenizer *tokenizer = model->model->tokenizer;
    const int32_t size = sl_tokenizer_size(tokenizer), rows = model->model->program.vocabulary;
    const int32_t count = rows > 0 ? rows : size;
    sl_grammar_token *tokens = sl_alloc_zero((size_t)count + 1, sizeof *tokens);
    if (!tokens) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for a vocabulary of %d tokens", count);
    }
    for (int32_t id = 0; id < count && id < size; id++) {
        const sl_view bytes = sl_tokenizer_decode_piece(tokenizer, id);
        tokens[id].bytes = bytes.data;
        tokens[id].count = (int32_t)bytes.length;
        tokens[id].is_special = sl_api_is_special(model, id);
        tokens[id].is_end = sl_tokenizer_is_eog(tokenizer, id);
    }
    model->vocabulary = sl_grammar_vocabulary_create(tokens, count, error);
    sl_free(tokens);
    return model->vocabulary ? 0 : error->code;
}

int sl_api_vocabulary(sluice_model *model, sl_grammar_vocabulary **vocabulary, sl_error *error) {
    int result = 0;
    if (!model->model->tokenizer) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "grammar: this model has no tokenizer");
    }
    pthread_mutex_lock(&model->vocabulary_mutex);
    if (!model->vocabulary) {
        result = make_vocabulary(model, error);
    }
    *vocabulary = model->vocabulary;
    pthread_mutex_unlock(&model->vocabulary_mutex);
    return result;
}

/* ---- from a source to a grammar ---- */

static const struct {
    const char *name;
    bool has_text;
} KINDS[] = {
    [SLUICE_GRAMMAR_JSON_SCHEMA] = {"JSON schema", true},
    [SLUICE_GRAMMAR_JSON_OBJECT] = {"JSON object", false},
    [SLUICE_GRAMMAR_GBNF] = {"GBNF", true},
    [SLUICE_GRAMMAR_REGEX] = {"regular expression", true},
    [SLUICE_GRAMMAR_TEXT] = {"text", false},
};

static sl_expression parse(sl_grammar_builder *builder, const sluice_grammar_options *o, sl_error *error) {
    const sl_json_style style = {.compact = o->compact};
    switch (o->kind) {
    case SLUICE_GRAMMAR_JSON_SCHEMA:
        return sl_expression_schema(builder, o->text, o->length, &style, error);
    case SLUICE_GRAMMAR_GBNF:
        return sl_expression_gbnf(builder, o->text, o->length, error);
    case SLUICE_GRAMMAR_REGEX:
        return sl_expression_regex(builder, o->text, o->length, true, error);
    default:
        return sl_expression_json_object(builder, &style);
    }
}

static bool is_special(const void *owner, int32_t token) {
    return sl_api_is_special(owner, token);
}

/* Everything of a reply around what the source says of its answer. */
static sl_expression reply(sl_grammar_builder *builder, const sluice_model *model,
                           const sluice_grammar_options *o, sl_expression answer, sl_error *error) {
    json_t *tools = NULL;
    if (o->tools && sl_api_read_tools(o->tools, &tools, error)) {
        return SL_NO_EXPRESSION;
    }
    const sl_reply_rules rules = {
        .format = sl_api_reply_format(model, json_array_size(tools) > 0),
        .tokenizer = model->model->tokenizer,
        .is_special = is_special,
        .owner = model,
        .tools = json_array_size(tools) > 0 ? tools : NULL,
        .choice = (sl_reply_choice)o->tool_choice,
        .function = o->function,
        .single = o->single_call,
        .thought = (sl_reply_thought)o->thought,
        .answer = answer,
    };
    const sl_expression all = sl_expression_reply(builder, &rules, error);
    json_decref(tools);
    return all;
}

static int check_options(const sluice_model *model, const sluice_grammar_options *o, sl_error *error) {
    if ((unsigned)o->kind >= sizeof KINDS / sizeof *KINDS) {
        return sl_fail(error, SL_ERR_INVALID, "kind: %d is no sluice_grammar_kind", (int)o->kind);
    }
    if (!o->text && KINDS[o->kind].has_text) {
        return sl_fail(error, SL_ERR_INVALID, "text: NULL, but a grammar of the kind %s has one",
                       KINDS[o->kind].name);
    }
    if ((unsigned)o->thought > SLUICE_THOUGHT_OPEN) {
        return sl_fail(error, SL_ERR_INVALID, "thought: %d is no sluice_thought", (int)o->thought);
    }
    const sl_reply_format *format = sl_api_reply_format(model, o->tools != NULL);
    if (o->thought && (!format || !format->marks[SL_REPLY_THINK_CLOSE])) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "thought: this model has no marks of thinking");
    }
    if ((unsigned)o->tool_choice > SLUICE_TOOLS_REQUIRED) {
        return sl_fail(error, SL_ERR_INVALID, "tool_choice: %d is no sluice_tool_choice",
                       (int)o->tool_choice);
    }
    if (!o->tools && (o->tool_choice || o->function || o->single_call)) {
        return sl_fail(error, SL_ERR_INVALID, "tools: NULL, but something is said of calls");
    }
    if (o->tools && (!format || !sl_reply_format_has_calls(format))) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "tools: how this model writes calls is not known");
    }
    return 0;
}

static int compile(sluice_model *model, const sluice_grammar_options *o, sluice_grammar *grammar,
                   sl_error *error) {
    sl_grammar_vocabulary *vocabulary;
    int result = sl_api_vocabulary(model, &vocabulary, error);
    if (result) {
        return result;
    }
    sl_grammar_builder *builder = sl_grammar_builder_create(NULL, error);
    if (!builder) {
        return error->code;
    }
    const bool any = o->kind == SLUICE_GRAMMAR_TEXT;
    error->code = 0;
    sl_expression root = any ? SL_NO_EXPRESSION : parse(builder, o, error);
    if (any || (root != SL_NO_EXPRESSION && (o->thought || o->tools))) {
        root = reply(builder, model, o, root, error);
    }
    if (root != SL_NO_EXPRESSION) {
        grammar->grammar = sl_grammar_compile(builder, root, vocabulary, error);
    } else if (!error->code) { /* not the text is wrong, but what it makes too large */
        *error = *sl_grammar_builder_error(builder);
    }
    result = grammar->grammar ? 0 : error->code;
    sl_grammar_builder_destroy(builder);
    return result;
}

int sluice_grammar_create(sluice_model *model, const sluice_grammar_options *given, sluice_grammar **out,
                          sluice_error *error) {
    if (sl_api_lacks(out, "grammar", error)) {
        return SL_ERR_INVALID;
    }
    *out = NULL;
    sluice_grammar_options options;
    sl_error inner;
    if (sl_api_lacks(model, "model", error) || sl_api_lacks(given, "options", error)) {
        return SL_ERR_INVALID;
    }
    int result = sl_api_options(&options, sizeof options, given, "sluice_grammar_options", error);
    if (result) {
        return result;
    }
    result = check_options(model, &options, &inner);
    sluice_grammar *grammar = result ? NULL : sl_alloc_zero(1, sizeof *grammar);
    if (!result && !grammar) {
        result = sl_fail(&inner, SL_ERR_NOMEM, "out of memory for a grammar");
    }
    result = result ? result : compile(model, &options, grammar, &inner);
    if (result) {
        sl_free(grammar);
        return sl_api_error(error, &inner);
    }
    grammar->references = 1;
    grammar->model = sluice_model_retain(model);
    *out = grammar;
    return 0;
}

sluice_grammar *sluice_grammar_retain(sluice_grammar *grammar) {
    if (grammar) {
        atomic_fetch_add(&grammar->references, 1);
    }
    return grammar;
}

uint64_t sluice_grammar_bytes(const sluice_grammar *grammar) {
    return grammar ? sizeof *grammar + sl_grammar_bytes(grammar->grammar) : 0;
}

void sluice_grammar_release(sluice_grammar *grammar) {
    if (grammar && atomic_fetch_sub(&grammar->references, 1) == 1) {
        sl_grammar_release(grammar->grammar);
        sluice_model_release(grammar->model);
        sl_free(grammar);
    }
}
