/* Ollama's API: what its handlers read and its dialect writes. */
#ifndef SLUICE_SERVER_OLLAMA_H
#define SLUICE_SERVER_OLLAMA_H

#include "apis.h"

typedef struct ollama_state {
    event_writer writer;
    bool chat; /* /api/chat, else /api/generate */
    bool logprobs;
    double load_seconds; /* until the model was there */
    double started;      /* seconds of the monotonic clock */
} ollama_state;

extern const dialect OLLAMA_DIALECT;

/* {"error": "..."}: a route.error_body. */
char *ollama_error_body(const http_error *error, const char *request_id);
/* A time as a JSON string, in RFC 3339. */
void ollama_write_time(text *out, double seconds);
/* Everything of an answer but what it says and how it ended: {"model", "created_at" */
void ollama_write_head(text *out, const served_model *m);
/* A copy of a name without its tag ":latest", which every name without a tag has; malloc. NULL: no memory. */
char *ollama_name(const char *name);

/* Handlers of routes that tell of models. */
void ollama_version(exchange *x, void *context);
void ollama_tags(exchange *x, void *context);
void ollama_running(exchange *x, void *context);
void ollama_show(exchange *x, void *context);

#endif
