/* Anthropic's Messages: what its handler reads and its dialect writes. */
#ifndef SLUICE_SERVER_ANTHROPIC_H
#define SLUICE_SERVER_ANTHROPIC_H

#include "apis.h"

typedef enum anthropic_block { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_TOOL } anthropic_block;

typedef struct anthropic_state {
    event_writer writer;
    char id[64];
    bool omit_thinking; /* thinking blocks are empty */
    bool begun;         /* a stream's first event is out */
    size_t index;       /* of the block that is open, or the next one */
    anthropic_block open;
} anthropic_state;

extern const dialect ANTHROPIC_DIALECT;

/* A route.error_body, and the same behind `out`. */
char *anthropic_error_body(const http_error *error, const char *request_id);
void anthropic_write_error(text *out, const http_error *error, const char *request_id);

#endif
