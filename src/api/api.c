/* The C API: what all its functions need. Errors, the log, memory, and the handing out of texts. */
#include "api/api.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/map.h"

#include <stdio.h>
#include <string.h>

#define SL_ERROR(name, value, message)                                                                       \
    _Static_assert((int)SLUICE_ERR_##name == (int)SL_ERR_##name, "sluice.h and err.def must agree");
#include "base/err.def"
#undef SL_ERROR

int sl_api_error(sluice_error *to, const sl_error *from) {
    if (to) {
        to->code = from->code;
        snprintf(to->message, sizeof to->message, "%s", from->message);
    }
    return from->code;
}

int sl_api_fail(sluice_error *to, int code, const char *format, ...) {
    sl_error error;
    va_list arguments;
    va_start(arguments, format);
    sl_fail_va(&error, code, format, arguments);
    va_end(arguments);
    return sl_api_error(to, &error);
}

bool sl_api_lacks(const void *given, const char *name, sluice_error *error) {
    if (!given) {
        sl_api_fail(error, SL_ERR_INVALID, "%s: NULL", name);
    }
    return !given;
}

bool sl_api_lacks_array(const void *given, size_t count, const char *name, sluice_error *error) {
    if (!given && count > 0) {
        sl_api_fail(error, SL_ERR_INVALID, "%s: NULL, but %zu are announced", name, count);
    }
    return !given && count > 0;
}

int sl_api_check_size(size_t size, const char *name, sluice_error *error) {
    enum { MOST = 4096 };
    if (size == 0) {
        return sl_api_fail(error, SL_ERR_INVALID, "%s: `size` is not set", name);
    }
    if (size % sizeof size != 0 || size > MOST) {
        return sl_api_fail(error, SL_ERR_INVALID, "%s: `size` %zu is not that of the struct", name, size);
    }
    return 0;
}

int sl_api_options(void *options, size_t size, const void *given, const char *name, sluice_error *error) {
    memset(options, 0, size);
    if (!given) {
        return 0;
    }
    size_t given_size;
    memcpy(&given_size, given, sizeof given_size);
    const int result = sl_api_check_size(given_size, name, error);
    if (result) {
        return result;
    }
    for (size_t i = size; i < given_size; i++) {
        if (((const unsigned char *)given)[i]) {
            return sl_api_fail(error, SL_ERR_INVALID, "%s: an option that this library does not know is set",
                               name);
        }
    }
    memcpy(options, given, given_size < size ? given_size : size);
    return 0;
}

const char *sluice_status_name(int code) {
    return sl_error_name(code);
}

const char *sluice_version(void) {
    return SLUICE_VERSION;
}

static struct {
    void (*function)(void *context, sluice_log_level level, const char *line);
    void *context;
} log_target;

static void forward_log(void *context, sl_log_level level, const char *line) {
    (void)context;
    log_target.function(log_target.context, (sluice_log_level)level, line);
}

void sluice_log_set(void (*function)(void *, sluice_log_level, const char *), void *context) {
    sl_log_set(NULL, NULL);
    log_target.function = function;
    log_target.context = context;
    sl_log_set(function ? forward_log : NULL, NULL);
}

int sluice_handle_truncation(sluice_error *error) {
    sl_error inner;
    const int result = sl_map_handle_loss(&inner);
    return result ? sl_api_error(error, &inner) : 0;
}

void sluice_free(void *memory) {
    sl_free(memory);
}

int sl_api_give_text(sl_buffer *buffer, char **text, size_t *length, sluice_error *error) {
    if (!buffer->failed && !buffer->data) {
        sl_buffer_append(buffer, "", 0);
    }
    if (buffer->failed) {
        sl_buffer_free(buffer);
        return sl_api_fail(error, SL_ERR_NOMEM, "out of memory for text");
    }
    *text = buffer->data;
    if (length) {
        *length = buffer->length;
    }
    return 0;
}

int sl_api_give_json(json_t *value, char **text, sluice_error *error) {
    char *dumped = value ? json_dumps(value, JSON_INDENT(2)) : NULL;
    json_decref(value);
    sl_buffer buffer = {0};
    if (dumped) {
        sl_buffer_text(&buffer, dumped);
        sl_buffer_text(&buffer, "\n");
    }
    buffer.failed |= dumped == NULL;
    free(dumped);
    return sl_api_give_text(&buffer, text, NULL, error);
}

bool sl_api_lacks_text(const void *object, sluice_text_format format, char **text, sluice_error *error) {
    if (sl_api_lacks(text, "text", error)) {
        return true;
    }
    *text = NULL;
    if (sl_api_lacks(object, "model", error)) {
        return true;
    }
    if ((unsigned)format > SLUICE_JSON) {
        sl_api_fail(error, SL_ERR_INVALID, "format: %d is no sluice_text_format", (int)format);
        return true;
    }
    return false;
}
