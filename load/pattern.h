/* Events of a stream that differ in their text alone. Of one the JSON library said what it means; the next
 * one that has the same bytes around its text means the same, with another text, and is not read again: that
 * took half of the load generator's time, which on a server's own machine is the server's. */
#ifndef SLUICE_LOAD_PATTERN_H
#define SLUICE_LOAD_PATTERN_H

#include "bytes.h"

#include <jansson.h>
#include <stdbool.h>

/* All zero: nothing was learnt. */
typedef struct load_pattern {
    load_bytes event;     /* an event that was read */
    size_t before, after; /* its bytes in front of the text and behind it; 0: none was learnt */
    int tries;            /* to learn one */
} load_pattern;

/* Keeps its memory for the next stream. */
void load_pattern_clear(load_pattern *pattern);
void load_pattern_free(load_pattern *pattern);
/* From `event`, which was read as `value`. What does not fit, or no memory, costs speed alone. */
void load_pattern_learn(load_pattern *pattern, const load_bytes *event, const json_t *value);
/* Does `event` mean the same? Then its text, as it is meant, is *length bytes (at least 1) from *text on. */
bool load_pattern_fits(const load_pattern *pattern, const load_bytes *event, const char **text,
                       size_t *length);

#endif
