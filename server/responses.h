/* OpenAI's Responses: what its handler reads and its dialect writes. */
#ifndef SLUICE_SERVER_RESPONSES_H
#define SLUICE_SERVER_RESPONSES_H

#include "apis.h"
#include "tools.h"

/* Fields of a request; JSON and texts are borrowed from its body. NULL: not given. */
typedef struct responses_fields {
    const json_t *input, *instructions, *tools, *tool_choice, *metadata, *include, *reasoning, *text,
        *stream_options;
    json_t *functions;    /* of the tools, as chat tools; of the handler, which releases it */
    const json_t *format; /* of text */
    const char *effort, *summary, *verbosity, *truncation;
    const char *user, *safety_identifier, *prompt_cache_key, *prompt_cache_retention, *service_tier;
    tool_wish wish;
    bool parallel_tool_calls, store;
    bool counts;                               /* input_tokens: nothing is generated */
    int64_t max_output_tokens, max_tool_calls; /* -1: not given */
    int64_t top_logprobs;
    double temperature;
    bool logprobs, encrypted_reasoning; /* as `include` asks */
} responses_fields;

typedef enum response_item { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL } response_item;

typedef struct responses_state {
    responses_fields fields;
    event_writer writer;
    char id[64], reasoning_id[64], message_id[64];
    uint64_t sequence;    /* number of the next event */
    size_t output_index;  /* of the item that is open, or the next one */
    response_item open;   /* in a stream */
    bool started_message; /* the stream has one */
    size_t call;          /* that is open */
} responses_state;

extern const dialect RESPONSES_DIALECT;

#endif
