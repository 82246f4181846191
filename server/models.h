/* The models that a server serves: by name, loaded on first use, the least recently used unloaded when memory
 * is short. Thread-safe. */
#ifndef SLUICE_SERVER_MODELS_H
#define SLUICE_SERVER_MODELS_H

#include "http.h"

#include "sluice.h"

#include <jansson.h>

typedef struct models models;

/* sampling.c's: how those who made the model would sample from it. Zero: they say nothing. */
typedef struct model_sampling {
    sluice_sampling_facts facts;
    sluice_sampler samplers[SLUICE_SAMPLERS]; /* [sampler_count], the order; 0: the usual one */
    size_t sampler_count;
    bool refused; /* the order: `error` says why, and the usual one is used */
    sluice_error error;
} model_sampling;

typedef struct served_model {
    const char *id; /* the name in answers: --alias, or the file's name without its ending */
    const char *path;
    double created;                 /* the file's time, seconds since 1970 */
    const json_t *template_options; /* of every prompt, unless its request says otherwise; NULL: none */
    int64_t thought_tokens;         /* the same; -1: no bound */
    /* While loaded: */
    sluice_model *model;
    sluice_engine *engine;
    sluice_model_info info;
    sluice_chat_facts facts;
    model_sampling sampling;        /* what requests get whose fields say nothing */
    int32_t context;                /* tokens of one sequence */
    int32_t sequences;              /* that run at once */
    bool on_host;                   /* its steps and the server's threads share the processors */
    json_t *plan;                   /* of sluice_plan_describe for the engine, read-only; NULL: unknown */
    struct grammar_cache *grammars; /* compiled for its requests */
    struct model_state *state;      /* models.c's */
} served_model;

typedef struct model_status {
    const char *id, *path;
    const sluice_model_options *options; /* to open it with */
    bool loaded, loading;
    double created;
    int32_t context, trained_context, vocabulary; /* 0: not loaded yet */
    int32_t sequences;                            /* that run at once */
    uint64_t parameters, bytes;
} model_status;

typedef struct models_options {
    const char *const *paths; /* [count]; the first is the default */
    const char *const *names; /* [count] */
    size_t count;
    bool strict;                         /* an unknown name is 404, else the default answers */
    const sluice_engine_options *engine; /* for all; borrowed */
    const sluice_model_options *model;   /* the same; NULL: none */
    const json_t *template_options;      /* the same: an object */
    int64_t thought_tokens;              /* of a thought at most; -1: no bound */
    bool no_sampling;                    /* do not sample as the models' files ask */
    /* Called when a model has been loaded, before its first request; other models wait meanwhile. NULL:
     * nothing. */
    void (*loaded)(void *context, const served_model *model);
    void *loaded_context;
    void *progress_context;
    /* A file for sluice_engine_write_expert_stats, when the engine of the only model ends; NULL: none. */
    const char *expert_stats;
    void (*complain)(void *context, const char *line); /* that it could not be written; with loaded_context */
} models_options;

int models_create(const models_options *options, models **models, http_error *error);
/* Nothing may be acquired any more. */
void models_destroy(models *models);
/* The model of that name (NULL: the default), loaded, with one reference. While it is being loaded callers
 * wait, but no more than two: others get 503 with Retry-After. NULL: *error (404 model_not_found, 503, 500).
 * Not on the HTTP thread. */
served_model *models_acquire(models *models, const char *name, http_error *error);
void models_release(models *models, served_model *model);
served_model *models_retain(served_model *model);
size_t models_count(const models *models);
/* Never waits. */
void models_get_status(models *models, size_t index, model_status *status);
/* Loaded engines' counters, one model after the other; false: that one is not loaded. Never waits for a load.
 */
bool models_get_counters(models *models, size_t index, sluice_counters *counters, char *device, size_t size);
/* The same of experts in host memory, layer by layer. */
void models_get_experts(models *models, size_t index,
                        void (*layer)(void *context, const sluice_expert_counters *counters), void *context);

#endif
