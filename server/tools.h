/* Tools that a model may call: what the APIs' fields say of them. */
#ifndef SLUICE_SERVER_TOOLS_H
#define SLUICE_SERVER_TOOLS_H

#include "generation.h"

/* What a request wants of its functions. Borrowed from its body. */
typedef struct tool_wish {
    sluice_tool_choice choice;
    const char *function; /* the one that must be called; NULL: any */
    bool single;          /* no more than one call */
} tool_wish;

/* OpenAI's tool_choice: "none", "auto", "required", a function of that name, or some of the functions
 * (allowed_tools, which leaves the others out of *functions). `functions`: an array of chat tools, or NULL.
 */
int tools_read_choice(const json_t *choice, json_t **functions, tool_wish *wish, http_error *error);
/* Anthropic's. */
int tools_read_anthropic(const json_t *choice, tool_wish *wish, http_error *error);
/* Gives the functions to the generation: a reply's calls are looked for, and it is held to the wish. 400
 * where the model or the functions do not allow that. Options of the template get the functions, if they are
 * to be in the prompt. */
int tools_use(generation *g, json_t *functions, const tool_wish *wish, json_t *options, http_error *error);

#endif
