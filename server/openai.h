/* What OpenAI's routes share: fields of chat and completions, and the writing of chunks and
 * log-probabilities. */
#ifndef SLUICE_SERVER_OPENAI_H
#define SLUICE_SERVER_OPENAI_H

#include "server.h"

/* What was written of one choice of a stream. */
typedef struct openai_progress {
    bool begun;    /* its first chunk */
    size_t offset; /* characters of its text */
} openai_progress;

/* The state of both dialects. Of one thread at a time. */
typedef struct openai_state {
    text head;           /* of every chunk or answer, up to its choices: {"id":... */
    text event;          /* the one that is being written; kept for its memory */
    bool broken;         /* without memory for an event: nothing more is written */
    bool hide_reasoning; /* chat */
    text *echoes;        /* completions: [echo_count] texts of the prompts; NULL: no echo */
    size_t echo_count;
    openai_progress *choices; /* [prompts of one request and choices of each], room for all there may be */
    double started,
        sent; /* seconds of the monotonic clock: the request, and the last event (where that matters) */
} openai_state;

typedef struct openai_names {
    const char *id_prefix;
    const char *chunk, *answer; /* `object` with and without a stream */
} openai_names;

/* The body, admitted and parsed. On failure *error, and nothing is left. */
int openai_open(const server *s, exchange *x, json_t **body, http_error *error);
/* A handler's beginning: `read` reads the body's own fields (0, or -1 with *error), and there is a generation
 * of the model that the body names. NULL: the exchange has its answer. */
typedef int openai_reader(const json_t *body, void *fields, http_error *error);
generation *openai_request(server *s, exchange *x, openai_reader *read, void *fields);
/* Reads what both routes have in common into the generation's options. */
int openai_read_fields(generation *g, http_error *error);
/* After the fields were read. NULL: *error. */
openai_state *openai_state_create(generation *g, const openai_names *names, http_error *error);
void openai_state_free(void *state); /* NULL is fine */

/* One event of a stream: begin, the choice's own members, close with its finish_reason ("null" or a JSON
 * string), members of the chunk, send. */
text *openai_chunk_begin(openai_state *s, const choice *c);
void openai_chunk_close(openai_state *s, const char *finish);
/* llama-server's prompt_progress. */
void openai_write_progress(const generation *g, openai_state *s, size_t read, size_t total);
void openai_chunk_send(generation *g, openai_state *s, bool timings);

/* Parts of both dialects. */
void openai_begin(generation *g, void *state);
void openai_fail(generation *g, void *state, const http_error *error);
/* A stream: usage if asked for, and [DONE]. Else the whole answer with what `write` writes of each choice. */
void openai_end(generation *g, openai_state *s,
                void (*write)(generation *g, openai_state *s, const choice *c));

const char *openai_finish(const choice *c); /* as JSON */
bool openai_all_done(const generation *g);  /* no choice is left to end */
/* A log-probability: of no probability at all OpenAI's -9999, of none that was computed null. */
void openai_write_logprob(text *out, float logprob);
/* The bytes of a token; "" when it has none. */
const char *openai_token_bytes(const generation *g, int32_t token, size_t *length);

extern const char OPENAI_STREAM_TYPE[], OPENAI_HEARTBEAT[];

/* Handlers of their routes. */
void openai_chat(exchange *x, void *context);
void openai_completions(exchange *x, void *context);

#endif
