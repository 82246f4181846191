/* Log lines go to one callback for the whole process; none is set at the start, so a library is silent by default. */
#ifndef SL_BASE_LOG_H
#define SL_BASE_LOG_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum sl_log_level { SL_LOG_ERROR, SL_LOG_WARNING, SL_LOG_INFO, SL_LOG_DEBUG } sl_log_level;
typedef void (*sl_log_function)(void *context, sl_log_level level, const char *line);

/* NULL silences. Set it before engines run; the callback may be called from any thread. */
void sl_log_set(sl_log_function function, void *context);
void sl_log(sl_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif
#endif
