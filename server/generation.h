/* One call of a model on behalf of a client: prompts, choices, and the dialect that writes what they give.
 * Handlers (one per API, on worker threads) read a body into a generation and start it; from then on the
 * pump, one thread for all, polls the engine and calls the dialect. */
#ifndef SLUICE_SERVER_GENERATION_H
#define SLUICE_SERVER_GENERATION_H

#include "body.h"
#include "http.h"
#include "models.h"
#include "structured.h"
#include "text.h"

#include "sluice.h"

typedef struct server server;
typedef struct generation generation;

/* What all APIs know in one form or another. */
typedef struct generation_options {
    double temperature, top_p, min_p, typical_p;                    /* 1, 1, 0, 1 */
    int64_t top_k;                                                  /* 0, -1: all */
    double presence_penalty, frequency_penalty, repetition_penalty; /* 0, 0, 1 */
    int64_t penalty_tokens;                                         /* 64; -1: all, 0: none */
    double top_n_sigma;                                             /* 0, -1: all */
    double xtc_probability, xtc_threshold;                          /* 0, 0.1 */
    double dynatemp_range, dynatemp_exponent;                       /* 0, 1 */
    double dry_multiplier, dry_base;                                /* 0, 1.75 */
    int64_t dry_allowed_length, dry_penalty_last_n;                 /* 2; -1: all, 0: none */
    const json_t *dry_breakers;                                     /* texts; NULL: the usual ones */
    int64_t mirostat;                                               /* 0, 1, 2 */
    double mirostat_tau, mirostat_eta;                              /* 5, 0.1 */
    const json_t *samplers; /* names, or a string of them or of letters */
    int64_t seed;           /* -1: a random one; else choice i draws with seed + i */
    int64_t max_tokens;     /* -1: to the end of the context. 0: nothing is generated */
    int64_t min_tokens;
    int64_t n;                 /* choices of each prompt */
    const json_t *stop;        /* a string or strings; borrowed from the body */
    const json_t *stop_tokens; /* ids */
    const json_t *logit_bias;  /* object of id -> bias, or llama.cpp's array of [id or text, bias or false] */
    bool logprobs, prompt_logprobs;
    int64_t top_logprobs;
    bool ignore_eos, cache_prompt, stream;
    const char *cache_salt; /* NULL: none */
    int64_t priority;
    bool include_usage, continuous_usage; /* stream_options */
    bool timings_per_token, return_progress;
    int64_t drafts, least_drafts; /* of one step: -1: what the server drafts, 0: none; fewer are left out */
    int64_t thought_tokens;       /* of a thought, which is then closed; -1: no bound */
    bool keep_reasoning;          /* thinking stays in the content, tags and all */
    structured_fields structured; /* what the answer is held to */
    sluice_tool_choice tool_choice;
    const char *tool_function; /* the one that must be called; NULL: any */
    bool single_call;          /* no more than one */
} generation_options;

/* The options of a request to this model that says nothing. */
generation_options generation_defaults(const served_model *m);

/* Fields that mean the same in chat, completions and the APIs beside them: body_fields with target
 * generation_options. */
extern const field GENERATION_FIELDS[];
extern const size_t GENERATION_FIELD_COUNT;

/* One generated token (with `logprobs`) or one token of the prompt (with `prompt_logprobs`). */
typedef struct token_entry {
    int32_t token;
    float logprob;                 /* NAN: there is none (a prompt's first) */
    uint32_t top_first, top_count; /* in choice.tops */
    bool outside;                  /* of no content: thinking, a call, a mark */
} token_entry;

/* A call of a tool. */
typedef struct tool_call {
    char id[64];
    text name, arguments; /* arguments: JSON, so far */
    bool ended;           /* they are complete: an object */
} tool_call;

typedef struct choice {
    generation *of;
    size_t index, prompt; /* of the prompt that it goes on from */
    /* All so far: what may be shown, whole UTF-8 characters, without stop texts and marks. */
    text content, reasoning;
    tool_call *calls; /* [call_count] */
    size_t call_count;
    token_entry *prompt_entries; /* [prompt_entry_count] */
    size_t prompt_entry_count;
    token_entry *entries; /* [entry_count]: of tokens whose text is in content or reasoning, in order */
    size_t entry_count;
    sluice_logprob *tops; /* shared by both */
    size_t top_count;
    /* Counts; final when done. */
    size_t prompt_tokens, cached_tokens, generated_tokens, reasoning_tokens;
    bool done;
    sluice_finish finish; /* when done */
    const char *stop;     /* the stop text that ended it, or NULL */
    sluice_event ended;   /* the DONE event; its texts are gone */
    /* The rest is generation.c's. */
    struct choice_run *run;
} choice;

/* What a token added to a call: first its name, then arguments. */
typedef struct call_piece {
    size_t call; /* of choice->calls */
    bool begins, ends;
    size_t first, length; /* of its arguments */
} call_piece;

/* What came with one token: bytes at the ends of choice->content and ->reasoning, entries at the end of
 * ->entries. */
typedef struct piece {
    const char *content, *reasoning;
    size_t content_length, reasoning_length;
    size_t first_entry, entry_count;
    const call_piece *calls; /* [call_count], in order */
    size_t call_count;
} piece;

/* How an API writes. All are called on the pump's thread but `release`; `state` is the handler's own. None
 * may wait. In a stream every function writes with exchange_write(generation_exchange(g)); without one only
 * `end` is called and replies with exchange_reply. */
typedef struct dialect {
    const char *name;         /* of the API, for metrics: "chat", "messages", ... */
    const char *content_type; /* of a stream; of whole answers it is application/json */
    const char *heartbeat;    /* written when nothing else was for 15 seconds; NULL: nothing */
    void (*begin)(generation *g, void *state); /* stream: after its headers */
    void (*piece)(generation *g, void *state, const choice *c, const piece *p); /* stream */
    void (*choice_end)(generation *g, void *state, const choice *c); /* stream: choice->finish is known */
    void (*end)(generation *g, void *state); /* all choices ended: the last events, or the whole answer. In a
                                                stream the pump calls exchange_end afterwards. */
    /* Stream: something failed after it began. Writes the API's error event; the pump breaks the stream off
     * afterwards. Without a stream the pump answers with the route's error body. */
    void (*fail)(generation *g, void *state, const http_error *error);
    /* return_progress: tokens of the prompt that were read so far. NULL: not in this API. */
    void (*progress)(generation *g, void *state, size_t read, size_t total);
    void (*release)(void *state); /* NULL: nothing to do */
} dialect;

/* ---- in a handler: create, fill the options, prompts and body, start ---- */

/* Takes over `body` (parsed JSON, kept until the end; may be NULL), also on failure. NULL: no memory. `m` is
 * one reference from models_acquire, taken over. */
generation *generation_create(server *server, exchange *exchange, served_model *m, json_t *body);
generation_options *generation_get_options(generation *g);
/* Adds a prompt; takes over `tokens` (sluice_free). At most BODY_CHOICES. */
int generation_add_prompt(generation *g, int32_t *tokens, size_t count, http_error *error);
/* The same of tokens that stay the caller's. */
int generation_copy_prompt(generation *g, const int32_t *tokens, size_t count, http_error *error);
/* From rendered messages: thinking and calls are taken apart from the content. `thought`: as the prompt ends.
 */
void generation_expect_reply(generation *g, sluice_thought thought);
/* Checks what is left to check (stop, stop_tokens, logit_bias, ranges that the model sets, the context),
 * submits all choices, and takes over g and `state`; on failure too (state is released, nothing was answered:
 * the caller fails the exchange with *error). `param_prompt`: the field of the prompt in messages. */
int generation_start(generation *g, const dialect *dialect, void *state, const char *param_prompt,
                     http_error *error);
/* Gives up before start. */
void generation_discard(generation *g);

/* ---- in a dialect and a handler ---- */
exchange *generation_exchange(const generation *g);
served_model *generation_model(const generation *g);
const json_t *generation_body(const generation *g);
double generation_created(const generation *g); /* seconds since 1970 */
size_t generation_choice_count(const generation *g);
const choice *generation_choice(const generation *g, size_t index);
const int32_t *generation_prompt(const generation *g, size_t index, size_t *count);

typedef struct generation_usage {
    size_t prompt_tokens;                       /* of each prompt once */
    size_t cached_tokens;                       /* of these */
    size_t completion_tokens, reasoning_tokens; /* of all choices */
    size_t drafted_tokens, accepted_tokens;     /* the same */
} generation_usage;
void generation_get_usage(const generation *g, generation_usage *usage);
/* OpenAI's `usage` and llama.cpp's `timings` (with cache_n, reuse and why not more) as JSON texts. */
void generation_write_usage(const generation *g, text *out);
void generation_write_timings(const generation *g, text *out);
/* A status and an error of OpenAI's kind for an error of sluice's (busy: 429 and Retry-After, ...). */
void error_from_sluice(const sluice_error *from, http_error *error);

#endif
