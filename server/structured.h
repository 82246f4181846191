/* Output that is held to a schema, a grammar or a list: what the APIs' fields say of it, and the grammars of
 * a model, each compiled once for all requests that bring it. */
#ifndef SLUICE_SERVER_STRUCTURED_H
#define SLUICE_SERVER_STRUCTURED_H

#include "body.h"

#include "sluice.h"

/* What a request's fields say; borrowed from its body. Zero: nothing. */
typedef struct structured_fields {
    /* OpenAI's response_format, and what other APIs have of that shape: an object with the type text,
     * json_object or json_schema; Ollama's: "json" or a schema itself. */
    const json_t *format;
    const char *format_path; /* its name in messages; NULL: response_format */
    const json_t *json_schema, *guided_json, *guided_choice, *outputs; /* outputs: structured_outputs */
    const char *grammar, *guided_grammar, *guided_regex;
} structured_fields;

typedef struct grammar_cache grammar_cache;

/* NULL: no memory. The model is borrowed; its grammars are let go with the cache. */
grammar_cache *grammar_cache_create(sluice_model *model);
/* NULL is fine. */
void grammar_cache_destroy(grammar_cache *cache);

/* All that an answer is held to. Borrowed. */
typedef struct structured_request {
    structured_fields fields;
    sluice_thought thought;
    const char *tools; /* JSON, of functions; NULL: none */
    sluice_tool_choice tool_choice;
    const char *function; /* NULL: any */
    bool single_call;
} structured_request;

/* The grammar that a request asks for, one reference for the caller; NULL: none. What cannot be held is 400
 * with the field's path. Waits for another thread that compiles the same; not on the HTTP thread. */
int structured_grammar(const structured_request *request, grammar_cache *cache, sluice_grammar **grammar,
                       http_error *error);

#endif
