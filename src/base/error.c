#include "base/error.h"

#include <stdio.h>
#include <string.h>

/* Names and texts from files stand in messages: whatever they hold, a message is one line and moves no
 * cursor. */
static void make_one_line(char *message) {
    for (char *at = message; *at; at++) {
        const unsigned char c = (unsigned char)*at;
        if (c < 0x20 || c == 0x7f) {
            *at = c == '\n' || c == '\t' || c == '\r' ? ' ' : '?';
        }
    }
}

int sl_fail_va(sl_error *error, int code, const char *format, va_list arguments) {
    if (error) {
        error->code = code;
        vsnprintf(error->message, sizeof error->message, format, arguments);
        make_one_line(error->message);
    }
    return code;
}

int sl_fail(sl_error *error, int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    sl_fail_va(error, code, format, arguments);
    va_end(arguments);
    return code;
}

int sl_fail_prefix(sl_error *error, const char *prefix) {
    if (!error) {
        return SL_ERR_INTERNAL;
    }
    const size_t length = strlen(prefix);
    if (strncmp(error->message, prefix, length) == 0 && error->message[length] == ':') {
        return error->code;
    }
    char old[SL_ERROR_MESSAGE_SIZE];
    memcpy(old, error->message, sizeof old);
    size_t room = sizeof error->message;
    int written = snprintf(error->message, room, "%s: ", prefix);
    if (written > 0 && (size_t)written < room) {
        snprintf(error->message + written, room - (size_t)written, "%s", old);
    }
    make_one_line(error->message);
    return error->code;
}

const char *sl_error_name(int code) {
    switch (code) {
    case SL_OK:
        return "ok";
#define SL_ERROR(name, value, message)                                                                       \
    case value:                                                                                              \
        return #name;
#include "base/err.def"
#undef SL_ERROR
    default:
        return "unknown";
    }
}

const char *sl_error_text(int code) {
    switch (code) {
    case SL_OK:
        return "success";
#define SL_ERROR(name, value, message)                                                                       \
    case value:                                                                                              \
        return message;
#include "base/err.def"
#undef SL_ERROR
    default:
        return "unknown error";
    }
}
