/* The C API: what a request's text is held to. */
#include "api/engine.h"
#include "api/replies.h"

#include "base/alloc.h"

#include <string.h>

static int make_matcher(sluice_request *request, const sluice_request_options *o, sl_error *error) {
    if (!o->grammar) {
        return 0;
    }
    if (o->grammar->model != request->engine->model) {
        return sl_fail(error, SL_ERR_INVALID, "grammar: it was made for another model");
    }
    request->grammar = sluice_grammar_retain(o->grammar);
    request->work.matcher = sl_matcher_create(o->grammar->grammar, error);
    return request->work.matcher ? 0 : error->code;
}

/* The tokens of the mark, which templates write on a line of its own unless it is special tokens. */
static int closing_of(const sl_tokenizer *tokenizer, const char *mark, bool special, sl_tokens *closing,
                      sl_error *error) {
    sl_buffer text = {0};
    sl_buffer_text(&text, special ? "" : "\n");
    sl_buffer_text(&text, mark);
    sl_buffer_text(&text, special ? "" : "\n\n");
    const int result = text.failed ? sl_fail(error, SL_ERR_NOMEM, "out of memory for the bound of a thought")
                                   : sl_tokenizer_encode(tokenizer, text.data, text.length,
                                                         SL_TOKENIZE_SPECIAL, closing, error);
    sl_buffer_free(&text);
    return result;
}

/* A mark as it is written: without the frames of special tokens, and without blanks at its end. */
static void plain_mark(const char *mark, sl_buffer *text) {
    for (; *mark; mark++) {
        const unsigned char c = (unsigned char)*mark;
        if (c != SL_REPLY_FRAME_OPEN && c != SL_REPLY_FRAME_CLOSE) {
            sl_buffer_append(text, mark, 1);
        }
    }
    while (text->length > 0 &&
           (text->data[text->length - 1] == ' ' || text->data[text->length - 1] == '\n')) {
        text->data[--text->length] = '\0';
    }
}

/* The special token that the mark begins with, or -1. */
static int32_t opening_of(const sl_tokenizer *tokenizer, const char *mark) {
    const char *close = strchr(mark, SL_REPLY_FRAME_CLOSE - 256);
    return (unsigned char)*mark == SL_REPLY_FRAME_OPEN && close
               ? sl_tokenizer_find(tokenizer, (sl_view){mark + 1, (size_t)(close - mark - 1)})
               : -1;
}

/* *thought stays NULL when none is bounded. */
static int make_thought(const sluice_request *request, const sluice_request_options *o, sl_thought **thought,
                        sl_error *error) {
    const sluice_model *model = request->engine->model;
    const sl_reply_format *format = sl_api_reply_format(model, false);
    sl_buffer open = {0}, close = {0};
    sl_tokens closing = {0};
    if (o->thought == SLUICE_THOUGHT_NONE) {
        return 0;
    }
    if ((unsigned)o->thought > SLUICE_THOUGHT_OPEN) {
        return sl_fail(error, SL_ERR_INVALID, "thought: %d is no sluice_thought", (int)o->thought);
    }
    const char *mark = format ? format->marks[SL_REPLY_THINK_CLOSE] : NULL;
    if (!mark || !model->model->tokenizer) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "thought: this model has no marks of thinking");
    }
    plain_mark(format->marks[SL_REPLY_THINK_OPEN], &open);
    plain_mark(mark, &close);
    int result = open.failed || close.failed
                     ? sl_fail(error, SL_ERR_NOMEM, "out of memory for the bound of a thought")
                     : closing_of(model->model->tokenizer, close.data,
                                  (unsigned char)*mark == SL_REPLY_FRAME_OPEN, &closing, error);
    if (result == 0) {
        const sl_thought_options options = {
            .open = o->thought == SLUICE_THOUGHT_OPEN,
            .again = format->thinks_again,
            .opening = opening_of(model->model->tokenizer, format->marks[SL_REPLY_THINK_OPEN]),
            .open_mark = open.data,
            .close_mark = close.data,
            .budget = o->thought_tokens < INT32_MAX ? (int32_t)o->thought_tokens : INT32_MAX,
            .closing = closing.data,
            .closing_count = (int32_t)closing.count,
            .bytes = sl_api_bytes_of,
            .owner = model->model->tokenizer,
        };
        result = sl_thought_create(&options, thought, error);
    }
    sl_buffer_free(&open);
    sl_buffer_free(&close);
    sl_tokens_free(&closing);
    return result;
}

int sl_api_make_bounds(sluice_request *request, const sluice_request_options *o, sl_error *error) {
    sl_thought *thought = NULL;
    int result = make_matcher(request, o, error);
    result = result ? result : make_thought(request, o, &thought, error);
    if (result || (!thought && !o->grammar)) {
        return result;
    }
    const sl_forced_options options = {
        .tokenizer = o->grammar ? request->engine->model->model->tokenizer : NULL,
        .vocabulary = request->engine->model->vocabulary,
        .tokens = request->engine->planned.plan->deployment.program->vocabulary,
    };
    result = sl_forced_create(&options, thought, &request->work.forced, error);
    if (result == 0) {
        sl_forced_begin(request->work.forced, request->work.matcher);
    }
    return result;
}
