/* The pump: one thread that takes what the engines give and has the dialects write it. What generation.c and
 * pump.c share. */
#ifndef SLUICE_SERVER_PUMP_H
#define SLUICE_SERVER_PUMP_H

#include "generation.h"
#include "server.h"

#include <stdatomic.h>

typedef struct pump pump;

/* A choice as it runs. Of the pump's thread, but for what the queue's lock guards. */
typedef struct choice_run {
    choice *choice;
    sluice_sequence *sequence;
    sluice_request *request;
    bool queued;                        /* under the lock */
    struct choice_run *previous, *next; /* under the lock: in the queue */
    sluice_reply *reply;                /* NULL: all text is content */
    call_piece *call_pieces;
    size_t call_piece_count, call_piece_room, call_room;
    size_t entry_total, entry_room; /* of choice->entries: the last ones may not be shown yet */
    size_t prompt_entry_room, top_room;
    double last_token; /* seconds; 0: none yet */
} choice_run;

struct generation {
    struct server *server;
    exchange *exchange;
    served_model *model;
    json_t *body;
    generation_options options;
    const dialect *dialect;
    void *state;
    struct {
        int32_t *tokens;
        size_t count;
    } * prompts;
    size_t prompt_count;
    bool expects_reply;
    sluice_thought thought; /* as the prompts end */
    char *tools;            /* JSON: functions that may be called, or are forbidden; NULL: none */
    choice *choices;
    choice_run *runs;
    size_t choice_count, done_count;
    double created; /* seconds since 1970 */
    double arrived; /* of the monotonic clock */
    /* What the options point to in sluice's words. */
    const char **stops;
    size_t stop_count;
    int32_t *stop_tokens;
    size_t stop_token_count;
    sluice_logit_bias *biases;
    size_t bias_count;
    const char **breakers; /* NULL: the usual ones */
    size_t breaker_count;
    sluice_sampler samplers[SLUICE_SAMPLERS];
    size_t sampler_count;
    sluice_grammar *grammar; /* a reference; NULL: any text */
    /* Of the pump. */
    struct pump *pump;
    generation *previous, *next; /* of all that run; under the lock */
    generation *next_begun;      /* under the lock */
    _Atomic bool gone;           /* the client left */
    bool begun;                  /* under the lock: the pump may look at it */
    bool beaten;                 /* a heartbeat was sent */
    bool streaming;              /* its headers are out */
    bool cancelled;              /* its requests were told to end */
    bool stalled;                /* the client does not read, or polling failed; polled again later */
    http_error error;            /* status 0: none */
    double last_write;
};

pump *pump_create(struct server *server);
/* Joins its thread: nothing is taken from the engines from here on, generations may still begin. Once. */
void pump_stop(pump *p);
/* After pump_stop and http_server_stop. Generations that have not ended are broken off, which may take a step. */
void pump_destroy(pump *p);
/* From here on the pump has g. Its choices' requests may have events already. */
void pump_begin(pump *p, generation *g);
/* A sluice_request_options.notify; context: a choice_run. */
void pump_notify(void *run);
size_t pump_count(pump *p);
/* Ends all generations with an error. */
void pump_break_all(pump *p, const http_error *error);
/* llama-server's /slots: what runs, without texts. */
void pump_describe(pump *p, text *out);

/* generation.c */
void generation_free(generation *g);
double monotonic_seconds(void);

#endif
