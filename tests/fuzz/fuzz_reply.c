/* sl_chat: replies of any format. What comes in pieces is what comes at once, and a call's arguments are
 * JSON. */
#include "base/alloc.h"
#include "chat/reply.h"

#include <stdlib.h>

typedef struct reading {
    sl_buffer text[3]; /* reasoning, content, calls */
    size_t arguments;  /* where the last call's begin */
    int calls, ends;
} reading;

static void take(void *context, const sl_reply_event *e) {
    reading *to = context;
    const int which = e->kind == SL_REPLY_REASONING ? 0 : e->kind == SL_REPLY_CONTENT ? 1 : 2;
    to->calls += e->kind == SL_REPLY_CALL;
    to->ends += e->kind == SL_REPLY_CALL_END;
    if (which == 2 && e->call != to->calls - 1) {
        abort();
    }
    sl_buffer_append(&to->text[which], e->text, e->length);
    if (e->kind == SL_REPLY_CALL) {
        to->arguments = to->text[2].length;
    } else if (e->kind == SL_REPLY_CALL_END) {
        json_error_t why;
        const size_t length = to->text[2].length - to->arguments;
        json_t *value = json_loadb(to->text[2].data + to->arguments, length, JSON_ALLOW_NUL, &why);
        const enum json_error_code code = value ? json_error_unknown : json_error_code(&why);
        /* Bytes that are no text, escapes of half a character, NUL in a name and numbers without end are the
         * model's. */
        if (!json_is_object(value) && code != json_error_invalid_utf8 &&
            code != json_error_numeric_overflow && code != json_error_null_byte_in_key &&
            !strstr(why.text, "Unicode")) {
            abort();
        }
        json_decref(value);
        sl_buffer_text(&to->text[2], "\n");
    }
}

static reading read_reply(const sl_reply_format *format, json_t *tools, const uint8_t *data, size_t size,
                          size_t piece) {
    reading r = {0};
    sl_error error;
    sl_reply *reply;
    const sl_reply_options options = {.format = format,
                                      .tools = data[1] & 1 ? tools : NULL,
                                      .opened = data[1] & 2,
                                      .keeps_thoughts = data[1] & 4,
                                      .event = take,
                                      .context = &r};
    if (sl_reply_create(&options, &reply, &error)) {
        abort();
    }
    for (size_t at = 3; at < size; at += piece) {
        const size_t count = size - at < piece ? size - at : piece;
        if (sl_reply_feed(reply, (const char *)data + at, count, &error)) {
            abort();
        }
    }
    if (sl_reply_finish(reply, data[1] & 8, &error)) {
        abort();
    }
    sl_reply_free(reply);
    return r;
}

enum { LONGEST = 4096 };

/* Frames as they are written: none in another, each closed. */
static size_t make_frames(uint8_t *to, const uint8_t *data, size_t size) {
    size_t open = 0;
    for (size_t i = 0; i < size; i++) {
        const bool begins = data[i] == SL_REPLY_FRAME_OPEN, ends = data[i] == SL_REPLY_FRAME_CLOSE;
        to[i] = i > 2 && ((begins && open) || (ends && !open)) ? '?' : data[i];
        open = i <= 2 ? 0 : begins && !open ? i : ends ? 0 : open;
    }
    return open ? open : size;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
    static json_t *tools;
    static uint8_t data[LONGEST];
    if (!tools) {
        tools = json_loads("[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":"
                           "\"string\"},\"n\":{\"type\":\"integer\"}}}}}]",
                           0, NULL);
    }
    int count = 0;
    while (sl_reply_format_at(count)) {
        count++;
    }
    if (size < 3 || size > LONGEST) {
        return 0;
    }
    size = make_frames(data, input, size);
    sl_reply_format *format =
        sl_reply_format_bind(sl_reply_format_at(data[0] % count), NULL, "<think>", "</think>");
    reading whole = read_reply(format, tools, data, size, size);
    const size_t pieces[] = {1, 1 + data[2] % 7};
    for (int k = 0; k < 2; k++) {
        reading r = read_reply(format, tools, data, size, pieces[k]);
        for (int i = 0; i < 3; i++) {
            const sl_view a = {whole.text[i].data, whole.text[i].length};
            if (!sl_view_equal(a, (sl_view){r.text[i].data, r.text[i].length})) {
                abort();
            }
            sl_buffer_free(&r.text[i]);
        }
    }
    for (int i = 0; i < 3; i++) {
        sl_buffer_free(&whole.text[i]);
    }
    sl_free(format);
    return 0;
}
