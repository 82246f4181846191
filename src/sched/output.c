#include "sched/output.h"

#include "base/alloc.h"

#include <string.h>

enum { BYTES_PER_TOKEN = 8 }; /* room set aside; more is allocated when needed */

int sl_output_init(sl_output *output, const sl_output_options *options, sl_error *error) {
    memset(output, 0, sizeof *output);
    for (size_t i = 0; i < options->stop_count; i++) {
        if (!options->stops[i] || !*options->stops[i]) {
            return sl_fail(error, SL_ERR_INVALID, "stop %zu: a stop text must not be empty", i);
        }
    }
    output->has_text = options->tokenizer != NULL;
    if (!output->has_text) {
        return options->stop_count
                   ? sl_fail(error, SL_ERR_INVALID, "stop: stop texts need a model with a tokenizer")
                   : 0;
    }
    sl_detokenizer_begin(&output->detokenizer, options->tokenizer,
                         SL_DETOKENIZE_SKIP_SPECIAL | (options->continues ? SL_DETOKENIZE_CONTINUE : 0));
    output->stops = sl_alloc_zero(options->stop_count + 1, sizeof *output->stops);
    output->stop_lengths = sl_alloc_zero(options->stop_count + 1, sizeof *output->stop_lengths);
    size_t room = options->expected_tokens * BYTES_PER_TOKEN + 64;
    output->text.data = sl_alloc(room);
    output->text.capacity = output->text.data ? room : 0;
    bool ok = output->stops && output->stop_lengths && output->text.data;
    for (size_t i = 0; ok && i < options->stop_count; i++) {
        size_t length = strlen(options->stops[i]);
        output->stops[i] = sl_strdup(options->stops[i]);
        output->stop_lengths[i] = length;
        output->stop_count = i + 1;
        output->longest_stop = length > output->longest_stop ? length : output->longest_stop;
        ok = output->stops[i] != NULL;
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
        sl_free(output->stops[i]);
    }
    sl_free(output->stops);
    sl_free(output->stop_lengths);
    sl_buffer_free(&output->text);
    memset(output, 0, sizeof *output);
}

/* The earliest stop text that ends in the bytes from `fresh` on; SIZE_MAX: none. */
static size_t find_stop(const sl_output *output, size_t fresh) {
    const sl_buffer *text = &output->text;
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < output->stop_count; i++) {
        size_t length = output->stop_lengths[i];
        size_t from = fresh + 1 > length ? fresh + 1 - length : 0;
        for (size_t at = from; at + length <= text->length && at < best; at++) {
            if (memcmp(text->data + at, output->stops[i], length) == 0) {
                best = at;
            }
        }
    }
    return best;
}

/* How many bytes at the end of the text could be the beginning of a stop text. */
static size_t held_back(const sl_output *output) {
    const sl_buffer *text = &output->text;
    size_t most = output->longest_stop ? output->longest_stop - 1 : 0;
    for (size_t tail = most < text->length ? most : text->length; tail > 0; tail--) {
        for (size_t i = 0; i < output->stop_count; i++) {
            if (tail < output->stop_lengths[i] &&
                memcmp(text->data + text->length - tail, output->stops[i], tail) == 0) {
                return tail;
            }
        }
    }
    return 0;
}

static void release(sl_output *output, size_t fresh, bool *stopped) {
    size_t stop = find_stop(output, fresh);
    *stopped = stop != SIZE_MAX;
    if (*stopped) {
        output->text.length = stop;
        output->text.data[stop] = 0;
        output->released = stop;
    } else {
        output->released = output->text.length - held_back(output);
    }
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
