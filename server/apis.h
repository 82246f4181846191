/* What the handlers and dialects of Responses, Messages and Ollama share, and some of it with chat. */
#ifndef SLUICE_SERVER_APIS_H
#define SLUICE_SERVER_APIS_H

#include "server.h"

/* Events of a stream on their way out. Of one thread at a time. */
typedef struct event_writer {
    text event;          /* the one being written; kept for its memory */
    bool broken;         /* without memory for an event: nothing more is written */
    const char *failure; /* what is written then, a whole event */
} event_writer;

/* Sends the event and clears it. */
void event_send(generation *g, event_writer *w);

/* Checks the list, renders it with the template and adds it as prompt; takes over both (kwargs may be NULL).
 * `param`: the field that it came from. */
int api_add_messages(generation *g, json_t *messages, json_t *kwargs, const char *param, http_error *error);
/* Reads what GENERATION_FIELDS has into the generation's options; these APIs answer once, so n is 1. */
int api_read_fields(generation *g, http_error *error);
/* The choice that those APIs have one of. */
const choice *api_choice(const generation *g);
/* The limit ended it, or the context. */
bool api_is_cut(const choice *c);
/* Whether tokens of the content came with a piece; they may have no text yet. */
bool api_has_logprobs(const choice *c, const piece *p);
/* Log-probabilities of the tokens of the content among entries [first, first + count), in OpenAI's shape:
 * [{"token", "logprob", "bytes", "top_logprobs"}, ...]. */
void api_write_logprobs(text *out, const generation *g, const choice *c, size_t first, size_t count);

#endif
