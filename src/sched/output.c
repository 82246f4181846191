#include "sched/output.h"

#include "base/alloc.h"

#include <string.h>

enum { BYTES_PER_TOKEN = 8 }; /* room set aside; more is allocated when needed */

static bool is_utf8(const char *text) {
    uint32_t character;
    for (size_t left = strlen(text), size; left > 0; left -= size, text += size) {
        size = sl_utf8_decode(text, left, &character);
        if (size == 0) {
            return false;
        }
    }
    return true;
}

/* The length of what is matched when `byte` follows a match of `matched` bytes. */
static size_t advance(const sl_stop *stop, size_t matched, char byte) {
    while (matched > 0 && (matched == stop->length || stop->text[matched] != byte)) {
        matched = stop->border[matched - 1];
    }
    return matched + (stop->text[matched] == byte);
}

static bool prepare_stop(sl_stop *stop, const char *text) {
    stop->length = strlen(text);
    stop->text = sl_strdup(text);
    stop->border = sl_alloc_zero(stop->length, sizeof *stop->border);
    if (!stop->text || !stop->border) {
        return false;
    }
    for (size_t i = 1; i < stop->length; i++) {
        stop->border[i] = advance(stop, stop->border[i - 1], text[i]);
    }
    return true;
}

static int check_stops(const sl_output_options *options, sl_error *error) {
    for (size_t i = 0; i < options->stop_count; i++) {
        if (!options->stops[i] || !*options->stops[i]) {
            return sl_fail(error, SL_ERR_INVALID, "stop %zu: a stop text must not be empty", i);
        }
        if (!is_utf8(options->stops[i])) {
            return sl_fail(error, SL_ERR_INVALID, "stop %zu: a stop text must be UTF-8", i);
        }
    }
    return options->stop_count && !options->tokenizer
               ? sl_fail(error, SL_ERR_INVALID, "stop: stop texts need a model with a tokenizer")
               : 0;
}

int sl_output_init(sl_output *output, const sl_output_options *options, sl_error *error) {
    memset(output, 0, sizeof *output);
    output->stop = -1;
    int result = check_stops(options, error);
    output->has_text = options->tokenizer != NULL;
    if (result || !output->has_text) {
        return result;
    }
    sl_detokenizer_begin(&output->detokenizer, options->tokenizer,
                         SL_DETOKENIZE_SKIP_SPECIAL | (options->continues ? SL_DETOKENIZE_CONTINUE : 0) |
                             (options->special ? SL_DETOKENIZE_FRAME_SPECIAL : 0));
    output->stops = sl_alloc_zero(options->stop_count + 1, sizeof *output->stops);
    size_t room = options->expected_tokens * BYTES_PER_TOKEN + 64;
    output->text.data = sl_alloc(room);
    output->text.capacity = output->text.data ? room : 0;
    bool ok = output->stops && output->text.data;
    for (size_t i = 0; ok && i < options->stop_count; i++) {
        output->stop_count = i + 1;
        ok = prepare_stop(&output->stops[i], options->stops[i]);
    }
    if (!ok) {
        sl_output_free(output);
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for a request's text");
    }
    output->text.data[0] = 0;
    return 0;
}

void sl_output_free(sl_output *output) {
    for (size_t i = 0; i < output->stop_count; i++) {
        sl_free(output->stops[i].text);
        sl_free(output->stops[i].border);
    }
    sl_free(output->stops);
    sl_buffer_free(&output->text);
    memset(output, 0, sizeof *output);
}

/* The stop text that is complete with this byte; -1: none. */
static int32_t take_byte(sl_output *output, char byte) {
    int32_t found = -1;
    const unsigned char frame = (unsigned char)byte;
    const bool framed = output->framed || frame == SL_FRAME_OPEN;
    output->framed = framed && frame != SL_FRAME_CLOSE;
    for (size_t i = 0; i < output->stop_count; i++) {
        sl_stop *stop = &output->stops[i];
        if (framed) {
            stop->matched = 0;
            continue;
        }
        stop->matched = advance(stop, stop->matched, byte);
        if (stop->matched == stop->length && (found < 0 || stop->length > output->stops[found].length)) {
            found = (int32_t)i;
        }
    }
    return found;
}

/* How many bytes at the end of the text could be the beginning of a stop text. The text ends with a whole
 * character, and stop texts are UTF-8, so they begin with one. */
static size_t held_back(const sl_output *output) {
    size_t most = 0;
    for (size_t i = 0; i < output->stop_count; i++) {
        most = output->stops[i].matched > most ? output->stops[i].matched : most;
    }
    return most;
}

static void release(sl_output *output, size_t fresh, bool *stopped) {
    sl_buffer *text = &output->text;
    for (size_t at = fresh; at < text->length && output->stop_count > 0; at++) {
        output->stop = take_byte(output, text->data[at]);
        if (output->stop >= 0) {
            text->length = at + 1 - output->stops[output->stop].length;
            text->data[text->length] = 0;
            output->released = text->length;
            *stopped = true;
            return;
        }
    }
    output->released = text->length - held_back(output);
}

int sl_output_feed(sl_output *output, int32_t token, bool *stopped, sl_error *error) {
    *stopped = false;
    if (!output->has_text) {
        return 0;
    }
    size_t fresh = output->text.length;
    int result = sl_detokenizer_feed(&output->detokenizer, token, &output->text, error);
    if (result == 0) {
        release(output, fresh, stopped);
    }
    return result;
}

int sl_output_finish(sl_output *output, sl_error *error) {
    if (!output->has_text) {
        return 0;
    }
    int result = sl_detokenizer_flush(&output->detokenizer, &output->text, error);
    output->released = output->text.length;
    return result;
}
