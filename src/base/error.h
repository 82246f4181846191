/* Errors: every function that can fail returns 0 or one of the negative SL_ERR_ codes and fills an sl_error
 * with one line that names the file, the field and the rule. There is no other convention in the project. */
#ifndef SL_BASE_ERROR_H
#define SL_BASE_ERROR_H

#include <stdarg.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum sl_error_code {
    SL_OK = 0,
#define SL_ERROR(name, value, message) SL_ERR_##name = value,
#include "base/err.def"
#undef SL_ERROR
};

enum { SL_ERROR_MESSAGE_SIZE = 512 };

/* Fixed size, so that reporting that memory ran out needs no memory. `message` is always NUL-terminated. */
typedef struct sl_error {
    int code;
    char message[SL_ERROR_MESSAGE_SIZE];
} sl_error;

#if defined(__GNUC__)
#define SL_PRINTF(format_at, first_at) __attribute__((format(printf, format_at, first_at)))
#else
#define SL_PRINTF(format_at, first_at)
#endif

/* Sets `error` (which may be NULL) and returns `code`, so that a caller can `return sl_fail(...)`. */
int sl_fail(sl_error *error, int code, const char *format, ...) SL_PRINTF(3, 4);
int sl_fail_va(sl_error *error, int code, const char *format, va_list arguments) SL_PRINTF(3, 0);

/* Puts "prefix: " before the message that `error` holds already, unless it begins so; returns error's code.
 */
int sl_fail_prefix(sl_error *error, const char *prefix);

/* Short name ("FORMAT") and general message ("malformed file") of a code; never NULL. */
const char *sl_error_name(int code);
const char *sl_error_text(int code);

#ifdef __cplusplus
}
#endif
#endif
