#include "vectors.h"

#include "convert.h"
#include "ollama.h"
#include "openai.h"
#include "pump.h"
#include "vectors_write.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct vectors {
    struct server *server;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    /* Under the lock. */
    vector_job *all;          /* that have no answer yet */
    vector_job *first, *last; /* whose vectors are there */
    bool stop;
};

/* ---- answering ---- */

static void free_job(vector_job *job) {
    sluice_embedding_release(job->embedding);
    models_release(job->server->models, job->model);
    exchange_release(job->exchange);
    json_decref(job->body);
    free(job->inputs);
    free(job->tokens);
    free(job);
}

static void answer(vector_job *job) {
    sluice_error inner;
    size_t done;
    if (sluice_embedding_wait(job->embedding, -1, &done, &inner)) {
        http_error error;
        if (inner.code == SLUICE_ERR_DEVICE || inner.code == SLUICE_ERR_IO) {
            job->server->life = SERVER_FAILED;
        }
        error_from_sluice(&inner, &error);
        exchange_fail(job->exchange, &error);
        return;
    }
    size_t tokens = 0;
    for (size_t i = 0; i < job->count; i++) {
        tokens += sluice_embedding_tokens(job->embedding, i);
    }
    const double seconds = monotonic_seconds() - job->begun;
    const http_record counts = {.prompt_tokens = tokens, .prompt_seconds = seconds};
    metrics_tokens(job->server->metrics, tokens, 0, 0);
    metrics_observe(job->server->metrics, METRIC_TOTAL, seconds);
    exchange_note(job->exchange, &counts);
    text body = {0};
    job->write(job, tokens, &body);
    reply_text(job->exchange, &body);
}

/* Under the lock. */
static void unlist(vectors *v, const vector_job *job) {
    vector_job **at = &v->all;
    while (*at != job) {
        at = &(*at)->next;
    }
    *at = job->next;
}

static void *answer_jobs(void *context) {
    vectors *v = context;
    pthread_mutex_lock(&v->mutex);
    while (!v->stop) {
        vector_job *job = v->first;
        if (!job) {
            pthread_cond_wait(&v->wake, &v->mutex);
            continue;
        }
        v->first = job->next_ready;
        v->last = v->first ? v->last : NULL;
        unlist(v, job);
        pthread_mutex_unlock(&v->mutex);
        answer(job);
        free_job(job);
        pthread_mutex_lock(&v->mutex);
    }
    pthread_mutex_unlock(&v->mutex);
    return NULL;
}

/* By the engine's thread: nothing of sluice may be called. */
static void notify(void *context) {
    vector_job *job = context;
    vectors *v = job->server->vectors;
    pthread_mutex_lock(&v->mutex);
    *(v->last ? &v->last->next_ready : &v->first) = job;
    v->last = job;
    pthread_cond_signal(&v->wake);
    pthread_mutex_unlock(&v->mutex);
}

vectors *vectors_create(struct server *server) {
    vectors *v = calloc(1, sizeof *v);
    if (!v) {
        return NULL;
    }
    v->server = server;
    pthread_mutex_init(&v->mutex, NULL);
    pthread_cond_init(&v->wake, NULL);
    if (pthread_create(&v->thread, NULL, answer_jobs, v)) {
        pthread_cond_destroy(&v->wake);
        pthread_mutex_destroy(&v->mutex);
        free(v);
        return NULL;
    }
    return v;
}

void vectors_destroy(vectors *v) {
    if (!v) {
        return;
    }
    pthread_mutex_lock(&v->mutex);
    v->stop = true;
    pthread_cond_signal(&v->wake);
    pthread_mutex_unlock(&v->mutex);
    pthread_join(v->thread, NULL);
    while (v->all) {
        vector_job *job = v->all;
        v->all = job->next;
        free_job(job);
    }
    pthread_cond_destroy(&v->wake);
    pthread_mutex_destroy(&v->mutex);
    free(v);
}

/* ---- what a request asks for ---- */

typedef struct vector_fields {
    const char *model, *encoding, *query, *pooling, *instruction;
    const json_t *input, *documents;
    int64_t dimensions, top_n, normalise; /* 0: all; of llama-server: 2, or -1 for none */
    bool truncate, return_documents;
} vector_fields;

#define AT(member) offsetof(vector_fields, member)

static const field EMBED_FIELDS[] = {
    {"model", FIELD_TEXT, AT(model), 0, 0, NULL},
    {"input", FIELD_ANY, AT(input), 0, 0, NULL},
    {"encoding_format", FIELD_CHOICE, AT(encoding), 0, 0, "float|base64"},
    {"dimensions", FIELD_WHOLE, AT(dimensions), 1, INT32_MAX, NULL},
    {"pooling", FIELD_CHOICE, AT(pooling), 0, 0, "none|mean|cls|last"},
};
static const field NATIVE_FIELDS[] = {
    {"content", FIELD_ANY, AT(input), 0, 0, NULL},
    {"embd_normalize", FIELD_WHOLE, AT(normalise), -1, 2, NULL},
};
static const field OLLAMA_FIELDS[] = {
    {"model", FIELD_TEXT, AT(model), 0, 0, NULL},
    {"input", FIELD_ANY, AT(input), 0, 0, NULL},
    {"truncate", FIELD_BOOL, AT(truncate), 0, 0, NULL},
    {"dimensions", FIELD_WHOLE, AT(dimensions), 0, INT32_MAX, NULL},
};
static const field OLLAMA_SINGLE_FIELDS[] = {
    {"model", FIELD_TEXT, AT(model), 0, 0, NULL},
    {"prompt", FIELD_ANY, AT(input), 0, 0, NULL},
};
static const field RERANK_FIELDS[] = {
    {"model", FIELD_TEXT, AT(model), 0, 0, NULL},
    {"query", FIELD_TEXT, AT(query), 0, 0, NULL},
    {"documents", FIELD_ARRAY, AT(documents), 0, 0, NULL},
    {"texts", FIELD_ARRAY, AT(documents), 0, 0, NULL}, /* text-embeddings-inference's name */
    {"top_n", FIELD_WHOLE, AT(top_n), 1, INT32_MAX, NULL},
    {"return_documents", FIELD_BOOL, AT(return_documents), 0, 0, NULL},
    {"instruction", FIELD_TEXT, AT(instruction), 0, 0, NULL},
};

#define READ(body, fields, target, error)                                                                    \
    body_fields(body, "", fields, sizeof fields / sizeof *fields, target, error)

/* ---- inputs ---- */

static int add_text(vector_job *job, const json_t *value) {
    job->inputs[job->count++] =
        (sluice_embed_input){.text = json_string_value(value), .length = json_string_length(value)};
    return 0;
}

/* Token ids behind those that are in job->tokens already; ids are checked by sluice_embed. */
static int add_ids(vector_job *job, const json_t *ids, size_t *used, http_error *error) {
    const size_t first = *used, count = json_array_size(ids);
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX) {
            return body_refuse(error, "input: element %zu of a list of tokens must be an id", i);
        }
        job->tokens[(*used)++] = (int32_t)json_integer_value(id);
    }
    job->inputs[job->count++] = (sluice_embed_input){.tokens = job->tokens + first, .token_count = count};
    return 0;
}

/* A string, an array of token ids, or an array of either. */
static int read_inputs(vector_job *job, const json_t *input, const char *name, http_error *error) {
    const bool single = json_is_string(input) || json_is_number(json_array_get(input, 0));
    const size_t count = single ? 1 : json_array_size(input);
    size_t tokens = 1, used = 0;
    if (count == 0) {
        return body_refuse(error, "%s: must be a text, an array of token ids, or an array of either, not %s",
                           name, input ? (json_is_array(input) ? "empty" : body_type(input)) : "absent");
    }
    for (size_t i = 0; i < count; i++) {
        tokens += json_array_size(single ? input : json_array_get(input, i));
    }
    job->inputs = calloc(count, sizeof *job->inputs);
    job->tokens = calloc(tokens, sizeof *job->tokens);
    if (!job->inputs || !job->tokens) {
        return error_no_memory(error);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *one = single ? input : json_array_get(input, i);
        if (!json_is_string(one) && !json_is_array(one)) {
            return body_refuse(error, "%s[%zu]: must be a text or an array of token ids, not %s", name, i,
                               body_type(one));
        }
        if (json_is_string(one) ? add_text(job, one) : add_ids(job, one, &used, error)) {
            return -1;
        }
    }
    return 0;
}

/* Texts, or objects with one as `text`. */
static int read_documents(vector_job *job, const json_t *documents, http_error *error) {
    const size_t count = json_array_size(documents);
    if (count == 0) {
        return body_refuse(error, "documents: must be an array of at least one text");
    }
    job->inputs = calloc(count, sizeof *job->inputs);
    if (!job->inputs) {
        return error_no_memory(error);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_array_get(documents, i);
        one = json_is_object(one) ? json_object_get(one, "text") : one;
        if (!json_is_string(one)) {
            return body_refuse(error, "documents[%zu]: must be a text, or an object with one as `text`", i);
        }
        add_text(job, one);
    }
    return 0;
}

/* ---- submitting ---- */

static sluice_pooling pooling_of(const char *name) {
    static const char *const names[] = {"none", "mean", "cls", "last"};
    for (int i = 0; name && i < 4; i++) {
        if (strcmp(names[i], name) == 0) {
            return (sluice_pooling)(SLUICE_POOLING_NONE + i);
        }
    }
    return SLUICE_POOLING_MODEL;
}

static int acquire(vector_job *job, const char *name, bool ollama, http_error *error) {
    char *plain = ollama && name ? ollama_name(name) : NULL;
    if (ollama && name && !plain) {
        return error_no_memory(error);
    }
    job->model = models_acquire(job->server->models, ollama ? plain : name, error);
    free(plain);
    return job->model ? 0 : -1;
}

static int begin(vector_job *job, const vector_fields *f, http_error *error) {
    const sluice_embed_options options = {.size = sizeof options,
                                          .pooling = pooling_of(f->pooling),
                                          .no_normalise = f->normalise < 0,
                                          .dimensions = (int32_t)f->dimensions,
                                          .truncate = f->truncate,
                                          .query = f->query,
                                          .instruction = f->instruction,
                                          .notify = notify,
                                          .notify_context = job};
    vectors *v = job->server->vectors;
    sluice_error inner;
    job->rows = options.pooling == SLUICE_POOLING_NONE;
    job->base64 = f->encoding && strcmp(f->encoding, "base64") == 0;
    job->top = f->top_n > 0 && (size_t)f->top_n < job->count ? (size_t)f->top_n : job->count;
    job->documents = f->return_documents;
    /* Listed before it can be done. */
    pthread_mutex_lock(&v->mutex);
    job->next = v->all;
    v->all = job;
    pthread_mutex_unlock(&v->mutex);
    sluice_embedding **into = &job->embedding;
    const int code = f->query
                         ? sluice_rerank(job->model->engine, job->inputs, job->count, &options, into, &inner)
                         : sluice_embed(job->model->engine, job->inputs, job->count, &options, into, &inner);
    if (code == 0) {
        return 0;
    }
    pthread_mutex_lock(&v->mutex);
    unlist(v, job);
    pthread_mutex_unlock(&v->mutex);
    error_from_sluice(&inner, error);
    return -1;
}

/* A job for an exchange whose body it has; NULL: answered. */
static vector_job *open_job(exchange *x, server *s, vector_writer *write) {
    http_error error;
    json_t *body = NULL;
    vector_job *job = NULL;
    if (openai_open(s, x, &body, &error) == 0 && !(job = calloc(1, sizeof *job))) {
        error_no_memory(&error);
    }
    if (!job) {
        json_decref(body);
        exchange_fail(x, &error);
        return NULL;
    }
    job->server = s;
    job->body = body;
    job->exchange = exchange_retain(x);
    job->write = write;
    job->begun = monotonic_seconds();
    return job;
}

static void close_job(vector_job *job, int failed, const http_error *error) {
    if (failed) {
        exchange_fail(job->exchange, error);
        free_job(job);
    }
}

void vectors_openai(exchange *x, void *context) {
    http_error error;
    vector_fields f = {0};
    vector_job *job = open_job(x, context, vectors_write_openai);
    if (job) {
        /* llama-server's clients ask at /embeddings too, with its own field. */
        const bool native = json_object_get(job->body, "content") && !json_object_get(job->body, "input");
        job->write = native ? vectors_write_native : job->write;
        close_job(job,
                  READ(job->body, EMBED_FIELDS, &f, &error) || READ(job->body, NATIVE_FIELDS, &f, &error) ||
                      read_inputs(job, f.input, native ? "content" : "input", &error) ||
                      acquire(job, f.model, false, &error) || begin(job, &f, &error),
                  &error);
    }
}

void vectors_native(exchange *x, void *context) {
    http_error error;
    vector_fields f = {0};
    vector_job *job = open_job(x, context, vectors_write_native);
    if (job) {
        close_job(job,
                  READ(job->body, EMBED_FIELDS, &f, &error) || READ(job->body, NATIVE_FIELDS, &f, &error) ||
                      read_inputs(job, f.input, "content", &error) || acquire(job, f.model, false, &error) ||
                      begin(job, &f, &error),
                  &error);
    }
}

void vectors_ollama(exchange *x, void *context) {
    http_error error;
    vector_fields f = {.truncate = true};
    vector_job *job = open_job(x, context, vectors_write_ollama);
    if (job) {
        close_job(job,
                  READ(job->body, OLLAMA_FIELDS, &f, &error) || read_inputs(job, f.input, "input", &error) ||
                      acquire(job, f.model, true, &error) || begin(job, &f, &error),
                  &error);
    }
}

void vectors_ollama_single(exchange *x, void *context) {
    http_error error;
    vector_fields f = {.truncate = true};
    vector_job *job = open_job(x, context, vectors_write_ollama_single);
    if (job) {
        close_job(job,
                  READ(job->body, OLLAMA_SINGLE_FIELDS, &f, &error) ||
                      read_inputs(job, f.input, "prompt", &error) || acquire(job, f.model, true, &error) ||
                      begin(job, &f, &error),
                  &error);
    }
}

void vectors_rerank(exchange *x, void *context) {
    http_error error;
    vector_fields f = {0};
    vector_job *job = open_job(x, context, vectors_write_scores);
    if (!job) {
        return;
    }
    int failed = READ(job->body, RERANK_FIELDS, &f, &error);
    if (!failed && !f.query) {
        failed = body_refuse(&error, "query: is required and must be a string");
    }
    failed = failed || read_documents(job, f.documents, &error) || acquire(job, f.model, false, &error) ||
             begin(job, &f, &error);
    close_job(job, failed, &error);
}
