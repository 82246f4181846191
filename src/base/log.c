#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static sl_log_function log_function;
static void *log_context;

void sl_log_set(sl_log_function function, void *context) {
    log_function = function;
    log_context = context;
}

void sl_log(sl_log_level level, const char *format, ...) {
    if (!log_function) {
        return;
    }
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    log_function(log_context, level, line);
}
