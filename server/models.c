#include "models.h"

#include "sampling.h"
#include "structured.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { WAITING_CALLERS = 2 };

typedef struct model_state {
    served_model served; /* first */
    struct models *of;
    int references; /* of callers */
    bool loading;
    uint64_t last_used;
    char device[256];
} model_state;

struct models {
    pthread_mutex_t loads; /* one at a time, so that each knows what the others take; before `mutex` */
    pthread_mutex_t mutex;
    pthread_cond_t loaded;
    model_state *states; /* [count] */
    size_t count;
    uint64_t uses;
    int waiting;
    bool strict;
    sluice_engine_options engine;
    const sluice_model_options *model;
    bool no_sampling;
    void (*loaded_call)(void *context, const served_model *model);
    void *loaded_context;
    const char *expert_stats;
    void (*complain)(void *context, const char *line);
};

static double file_time(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0 ? (double)facts.st_mtim.tv_sec : 0;
}

int models_create(const models_options *o, models **out, http_error *error) {
    *out = NULL;
    models *m = calloc(1, sizeof *m);
    model_state *states = calloc(o->count, sizeof *states);
    if (!m || !states) {
        free(m);
        free(states);
        snprintf(error->message, sizeof error->message, "out of memory");
        return -1;
    }
    m->states = states;
    m->count = o->count;
    m->strict = o->strict;
    m->engine = *o->engine;
    m->model = o->model;
    m->no_sampling = o->no_sampling;
    m->loaded_call = o->loaded;
    m->loaded_context = o->loaded_context;
    m->expert_stats = o->expert_stats;
    m->complain = o->complain;
    pthread_mutex_init(&m->loads, NULL);
    pthread_mutex_init(&m->mutex, NULL);
    pthread_cond_init(&m->loaded, NULL);
    for (size_t i = 0; i < o->count; i++) {
        served_model *served = &states[i].served;
        served->id = o->names[i];
        served->path = o->paths[i];
        served->created = file_time(served->path);
        served->state = &states[i];
        served->template_options = o->template_options;
        served->thought_tokens = o->thought_tokens;
        states[i].of = m;
    }
    *out = m;
    return 0;
}

static void unload(model_state *s) {
    const models *m = s->of;
    sluice_error error;
    if (s->served.engine && m->expert_stats &&
        sluice_engine_write_expert_stats(s->served.engine, m->expert_stats, false, &error)) {
        m->complain(m->loaded_context, error.message);
    }
    sluice_engine_destroy(s->served.engine);
    grammar_cache_destroy(s->served.grammars);
    sluice_model_release(s->served.model);
    json_decref(s->served.plan);
    s->served.plan = NULL;
    s->served.engine = NULL;
    s->served.grammars = NULL;
    s->served.model = NULL;
}

void models_destroy(models *m) {
    if (!m) {
        return;
    }
    for (size_t i = 0; i < m->count; i++) {
        unload(&m->states[i]);
    }
    pthread_cond_destroy(&m->loaded);
    pthread_mutex_destroy(&m->mutex);
    pthread_mutex_destroy(&m->loads);
    free(m->states);
    free(m);
}

/* The loaded model without callers that was used longest ago. While it is `loading`, its first caller is to
 * come. */
static model_state *least_used(models *m, const model_state *except) {
    model_state *best = NULL;
    for (size_t i = 0; i < m->count; i++) {
        model_state *s = &m->states[i];
        if (s != except && s->served.engine && s->references == 0 && !s->loading &&
            (!best || s->last_used < best->last_used)) {
            best = s;
        }
    }
    return best;
}

/* Conversations are longer than what a command line asks, and seldom all of them at once: one may take the
 * model's own context, and together they have what so many of the command line's would. */
static void size_for_serving(const sluice_model_info *info, sluice_engine_options *o) {
    enum { CONTEXT = 32768, EACH = 4096, SEQUENCES = 8 };
    if (o->context == 0) {
        o->context = info->context > 0 && info->context < CONTEXT ? info->context : CONTEXT;
    }
    if (o->cache_tokens == 0 && !o->embeddings) {
        const uint64_t sequences = o->sequences ? (uint64_t)o->sequences : SEQUENCES;
        /* One context, and beside it what is kept of it. */
        const uint64_t all = sequences * EACH, kept = o->kv_budget > 0 ? (uint64_t)o->kv_budget + 64 : 0;
        const uint64_t one = (uint64_t)o->context + kept;
        o->cache_tokens = all > one ? all : one;
    }
}

/* Adds to the list of devices what one more engine takes of them. */
static void add_taken(sluice_memory_limit *taken, const sluice_memory_limit *more) {
    for (int i = 0; i < SLUICE_MEMORY_LIMITS && more[i].device[0]; i++) {
        int k = 0;
        while (k < SLUICE_MEMORY_LIMITS - 1 && taken[k].device[0] &&
               strcmp(taken[k].device, more[i].device) != 0) {
            k++;
        }
        memcpy(taken[k].device, more[i].device, sizeof taken[k].device);
        taken[k].bytes += more[i].bytes;
    }
}

/* What the models that are loaded leave of --memory-limit; at least a byte, as 0 is no limit. */
static void leave_memory(models *m, sluice_engine_options *options) {
    uint64_t left = m->engine.memory_limit;
    sluice_memory_limit taken[SLUICE_MEMORY_LIMITS] = {0};
    pthread_mutex_lock(&m->mutex);
    for (size_t i = 0; i < m->count; i++) {
        if (m->states[i].served.engine) {
            sluice_counters counters = {.size = sizeof counters};
            sluice_engine_get_counters(m->states[i].served.engine, &counters);
            left = left == 0 ? 0 : left > counters.memory + 1 ? left - counters.memory : 1;
            add_taken(taken, counters.memory_on);
        }
    }
    pthread_mutex_unlock(&m->mutex);
    options->memory_limit = left;
    memcpy(options->memory_limits, m->engine.memory_limits, sizeof options->memory_limits);
    sluice_memory_limits_leave(options->memory_limits, taken);
}

static int create_engine(models *m, served_model *loaded, sluice_engine_options *options,
                         sluice_error *error) {
    leave_memory(m, options);
    char *text = NULL;
    json_decref(loaded->plan);
    sluice_plan_describe(loaded->model, options, SLUICE_PLAN_MEMORY, SLUICE_JSON, &text, NULL);
    loaded->plan = text ? json_loads(text, 0, NULL) : NULL;
    sluice_free(text);
    int result = sluice_engine_create(loaded->model, options, &loaded->engine, error);
    if (!result && m->expert_stats) {
        result = sluice_engine_write_expert_stats(loaded->engine, m->expert_stats, true, error);
    }
    if (result) {
        sluice_engine_destroy(loaded->engine);
        loaded->engine = NULL;
    }
    return result;
}

/* Opens model and engine; with `loads` and without the other lock. */
static int load(models *m, model_state *s, sluice_error *error) {
    served_model loaded = s->served;
    int result = sluice_model_open_with(loaded.path, m->model, &loaded.model, error);
    sluice_engine_options options = m->engine;
    loaded.info.size = sizeof loaded.info;
    if (result == 0) {
        sluice_model_get_info(loaded.model, &loaded.info);
        sluice_embedding_facts facts = {.size = sizeof facts};
        sluice_model_get_embedding(loaded.model, &facts);
        options.embeddings |= facts.embeds || !facts.generates;
        size_for_serving(&loaded.info, &options);
    }
    while (result == 0 && (result = create_engine(m, &loaded, &options, error)) != 0) {
        if (result != SLUICE_ERR_LIMIT && result != SLUICE_ERR_NOMEM) {
            break;
        }
        pthread_mutex_lock(&m->mutex);
        model_state *victim = least_used(m, s);
        if (victim) {
            unload(victim);
        }
        pthread_mutex_unlock(&m->mutex);
        if (!victim) {
            break;
        }
        result = 0; /* and once more, with what that one had */
    }
    if (result) {
        json_decref(loaded.plan);
        sluice_model_release(loaded.model);
        return result;
    }
    loaded.facts.size = sizeof loaded.facts;
    result = sluice_chat_get_facts(loaded.model, &loaded.facts, error);
    loaded.grammars = result ? NULL : grammar_cache_create(loaded.model);
    if (!result && !loaded.grammars) {
        result = SLUICE_ERR_NOMEM;
        *error = (sluice_error){.code = result, .message = "out of memory for a model"};
    }
    if (result) {
        sluice_engine_destroy(loaded.engine);
        json_decref(loaded.plan);
        sluice_model_release(loaded.model);
        return result;
    }
    loaded.sampling = (model_sampling){0};
    if (!m->no_sampling) {
        model_sampling_read(loaded.model, &loaded.sampling);
    }
    loaded.context = sluice_engine_context(loaded.engine);
    loaded.sequences = sluice_engine_sequences(loaded.engine);
    snprintf(s->device, sizeof s->device, "%s", sluice_engine_device(loaded.engine));
    loaded.on_host = strncmp(s->device, "cpu:", 4) == 0;
    pthread_mutex_lock(&m->mutex);
    s->served = loaded;
    pthread_mutex_unlock(&m->mutex);
    if (m->loaded_call) {
        m->loaded_call(m->loaded_context, &loaded);
    }
    return 0;
}

static model_state *find(models *m, const char *name) {
    for (size_t i = 0; name && i < m->count; i++) {
        if (strcmp(m->states[i].served.id, name) == 0) {
            return &m->states[i];
        }
    }
    return name && m->strict ? NULL : &m->states[0];
}

static served_model *refuse(http_error *error, int status, const char *code, const char *message) {
    *error = (http_error){.status = status,
                          .type = status == 404 ? "not_found_error" : "server_error",
                          .code = code,
                          .retry_after = status == 503 ? 2 : 0};
    snprintf(error->message, sizeof error->message, "%s", message);
    snprintf(error->param, sizeof error->param, "%s", status == 404 ? "model" : "");
    return NULL;
}

served_model *models_acquire(models *m, const char *name, http_error *error) {
    pthread_mutex_lock(&m->mutex);
    model_state *s = find(m, name);
    if (!s) {
        pthread_mutex_unlock(&m->mutex);
        return refuse(error, 404, "model_not_found",
                      "model: there is no model of that name here; see /v1/models");
    }
    if (s->loading && m->waiting >= WAITING_CALLERS) {
        pthread_mutex_unlock(&m->mutex);
        return refuse(error, 503, "model_loading", "the model is being loaded; try again soon");
    }
    m->waiting += s->loading;
    const bool waited = s->loading;
    while (s->loading) {
        pthread_cond_wait(&m->loaded, &m->mutex);
    }
    m->waiting -= waited;
    sluice_error inner;
    int result = 0;
    if (!s->served.engine) {
        s->loading = true;
        pthread_mutex_unlock(&m->mutex);
        pthread_mutex_lock(&m->loads);
        result = load(m, s, &inner);
        pthread_mutex_unlock(&m->loads);
        pthread_mutex_lock(&m->mutex);
        s->loading = false;
        pthread_cond_broadcast(&m->loaded);
    }
    s->references += result == 0;
    s->last_used = ++m->uses;
    pthread_mutex_unlock(&m->mutex);
    return result ? refuse(error, result == SLUICE_ERR_LIMIT || result == SLUICE_ERR_NOMEM ? 503 : 500,
                           "model_not_loaded", inner.message)
                  : &s->served;
}

served_model *models_retain(served_model *served) {
    pthread_mutex_lock(&served->state->of->mutex);
    served->state->references++;
    pthread_mutex_unlock(&served->state->of->mutex);
    return served;
}

void models_release(models *m, served_model *served) {
    if (served) {
        pthread_mutex_lock(&m->mutex);
        served->state->references--;
        pthread_mutex_unlock(&m->mutex);
    }
}

size_t models_count(const models *m) {
    return m->count;
}

void models_get_status(models *m, size_t index, model_status *status) {
    pthread_mutex_lock(&m->mutex);
    const model_state *s = &m->states[index];
    const bool loaded = s->served.engine != NULL;
    *status = (model_status){.id = s->served.id,
                             .path = s->served.path,
                             .options = m->model,
                             .loaded = loaded,
                             .loading = s->loading,
                             .created = s->served.created,
                             .context = loaded ? s->served.context : 0,
                             .trained_context = loaded ? s->served.info.context : 0,
                             .sequences = loaded ? s->served.sequences : 0,
                             .vocabulary = loaded ? s->served.info.vocabulary : 0,
                             .parameters = loaded ? s->served.info.parameters : 0,
                             .bytes = loaded ? s->served.info.bytes : 0};
    pthread_mutex_unlock(&m->mutex);
}

bool models_get_counters(models *m, size_t index, sluice_counters *counters, char *device, size_t size) {
    pthread_mutex_lock(&m->mutex);
    model_state *s = &m->states[index];
    sluice_engine *engine = s->served.engine;
    s->references += engine != NULL; /* so that nobody unloads it meanwhile */
    pthread_mutex_unlock(&m->mutex);
    if (!engine) {
        return false;
    }
    counters->size = sizeof *counters;
    sluice_engine_get_counters(engine, counters);
    if (device) {
        snprintf(device, size, "%s", s->device);
    }
    models_release(m, &s->served);
    return true;
}

void models_get_experts(models *m, size_t index,
                        void (*layer)(void *context, const sluice_expert_counters *counters), void *context) {
    pthread_mutex_lock(&m->mutex);
    model_state *s = &m->states[index];
    sluice_engine *engine = s->served.engine;
    s->references += engine != NULL;
    pthread_mutex_unlock(&m->mutex);
    if (engine) {
        sluice_engine_get_expert_counters(engine, layer, context);
        models_release(m, &s->served);
    }
}
