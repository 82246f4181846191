/* The server's log: a line each, written by a thread of its own, so that nobody waits for who reads it. */
#ifndef SLUICE_SERVER_LOG_H
#define SLUICE_SERVER_LOG_H

#include "http.h"

typedef struct log log_writer;

/* To `descriptor`; `json`: an object a line. */
log_writer *log_create(int descriptor, bool json);
/* Writes what is left, for a second at most. */
void log_destroy(log_writer *log);
/* "sluice: ..."; what people look for: it is ready, it ends. */
void log_message(log_writer *log, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A request that was answered. No text of a user is in it. */
void log_request(log_writer *log, const http_record *record);

#endif
