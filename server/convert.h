/* The conversations of other APIs as one list of OpenAI's chat messages. Pure functions of JSON: no model, no
 * HTTP.
 *
 * All return 0 with *messages a new array (one reference for the caller), or -1 with *error, which names the
 * field as the client wrote it. Adjacent system messages become one, because many templates allow a single
 * one at the beginning. Parts of a content are joined by newlines, as in chat completions. */
#ifndef SLUICE_SERVER_CONVERT_H
#define SLUICE_SERVER_CONVERT_H

#include "body.h"

#include <stdbool.h>

/* 503 for a request that there is no memory for; returns -1. */
int error_no_memory(http_error *error);

/* OpenAI's Responses: `instructions` (a string or NULL) and `input` (a string or items). Calls join the
 * assistant's message before them; what the assistant reasoned goes with its next message. Items of hosted
 * tools are left out. */
int convert_responses(const json_t *instructions, const json_t *input, json_t **messages, http_error *error);

/* Anthropic's Messages: `system` (a string, text blocks or NULL) and `turns`, its array "messages". Turns of
 * one role in a row become one, as there. *continues: the last message is the beginning of the answer, to be
 * gone on with. */
int convert_anthropic(const json_t *system, const json_t *turns, json_t **messages, bool *continues,
                      http_error *error);

/* Ollama's /api/chat. Calls without an id get one, and results without one are those of the calls in their
 * order. */
int convert_ollama(const json_t *turns, json_t **messages, http_error *error);

/* The functions among the tools of a request as OpenAI's chat tools, *functions a new array (one reference
 * for the caller) that is empty when there are none. Tools of other types run on the servers of those APIs or
 * are known to their models alone; clients offer them to any server, and they are left out. `tools` may be
 * NULL. */
int convert_responses_tools(const json_t *tools, json_t **functions, http_error *error);
int convert_anthropic_tools(const json_t *tools, json_t **functions, http_error *error);

/* What a reasoning effort ("none" .. "max") means to templates: "enable_thinking" and "reasoning_effort" in
 * `options`, an object of template options. False: no memory. */
bool convert_effort(json_t *options, const char *effort);

#endif
