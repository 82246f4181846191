#define _GNU_SOURCE
/* The C API: texts to vectors and documents to scores. Each text is a sequence of its own whose rows behind
 * the final norm are pooled as they come, in the order of positions, so that a vector does not depend on
 * cuts. */
#include "api/embed.h"

#include "api/models.h"
#include "base/alloc.h"
#include "base/checked.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>

/* A sequence that takes one text after the other. */
typedef struct lane {
    sl_work work; /* first: callbacks get a pointer to it */
    sluice_embedding *of;
    sl_sequence *core;
    size_t text;
    bool busy;
    double *sums; /* [width], of mean pooling */
} lane;

struct sluice_embedding {
    sluice_engine *engine;
    sl_api_texts texts;
    sl_pooling pooling;
    bool normalise, rank;
    int32_t priority;
    uint64_t group;
    size_t width;      /* of the program's rows */
    size_t out_width;  /* of what the caller gets */
    size_t stride;     /* of `values`: room for both */
    float *values;     /* [rows][stride] */
    size_t *first_row; /* [count + 1] */
    void (*notify)(void *context);
    void *notify_context;
    /* Under the engine's lock. */
    lane *lanes; /* [lane_count] */
    size_t lane_count;
    size_t next, done; /* texts that were begun / that are complete */
    bool cancelled, failed, finished;
    sl_error failure;
    sluice_embedding *following; /* in the engine's list */
    /* Of the caller's. */
    bool completed; /* vectors are what they are to be */
};

/* ---- what the stepping thread does ---- */

static sl_finish on_token(sl_work *work, int32_t token) {
    (void)work, (void)token;
    return SL_FINISH_LENGTH; /* nothing is generated */
}

static void on_rows(sl_work *work, const float *rows, int32_t count, int32_t first_position) {
    lane *l = (lane *)work;
    sluice_embedding *e = l->of;
    const size_t width = e->width, first = e->first_row[l->text];
    work->blocked = false; /* all is taken over here */
    for (int32_t i = 0; i < count; i++) {
        const float *row = rows + (size_t)i * width;
        const size_t position = (size_t)(first_position + i);
        if (e->pooling == SL_POOLING_MEAN) {
            for (size_t c = 0; c < width; c++) {
                l->sums[c] += (double)row[c];
            }
        } else if (e->pooling == SL_POOLING_NONE) {
            memcpy(e->values + (first + position) * e->stride, row, width * sizeof *row);
        } else if (e->pooling != SL_POOLING_CLS || position == 0) {
            memcpy(e->values + first * e->stride, row, width * sizeof *row);
        }
    }
}

static void fail_embedding(sluice_embedding *e, const sl_error *error) {
    if (!e->failed) {
        e->failed = true;
        e->failure = *error;
    }
    for (size_t i = 0; i < e->lane_count; i++) {
        e->lanes[i].work.cancelled |= e->lanes[i].busy;
    }
}

static void on_done(sl_work *work, sl_finish finish, const sl_error *error) {
    lane *l = (lane *)work;
    sluice_embedding *e = l->of;
    l->busy = false;
    if (finish == SL_FINISH_ERROR) {
        sl_error named = *error;
        char prefix[48];
        snprintf(prefix, sizeof prefix, "text %zu", l->text);
        sl_fail_prefix(&named, prefix);
        fail_embedding(e, &named);
        return;
    }
    if (finish == SL_FINISH_CANCELLED) {
        return;
    }
    const size_t tokens = e->texts.ends[l->text + 1] - e->texts.ends[l->text];
    for (size_t c = 0; e->pooling == SL_POOLING_MEAN && c < e->width; c++) {
        e->values[e->first_row[l->text] * e->stride + c] = (float)(l->sums[c] / (double)tokens);
    }
    e->done++;
}

/* False: not now. */
static bool begin_text(sluice_embedding *e, lane *l) {
    const size_t first = e->texts.ends[e->next];
    l->text = e->next;
    l->work = (sl_work){.sequence = l->core,
                        .logits = e->pooling == SL_POOLING_LAST ? SL_LOGITS_LAST : SL_LOGITS_ALL,
                        .priority = e->priority,
                        .group = e->group,
                        .no_reuse = !e->rank || e->engine->planned.plan->deployment.program->both_sides,
                        .on_token = on_token,
                        .on_logits = on_rows,
                        .on_done = on_done};
    if (l->sums) {
        memset(l->sums, 0, e->width * sizeof *l->sums);
    }
    sl_error error;
    const int code = sl_scheduler_submit(e->engine->scheduler, &l->work, e->texts.tokens + first,
                                         e->texts.ends[e->next + 1] - first, &error);
    if (code && code != SL_ERR_BUSY) {
        fail_embedding(e, &error);
    }
    l->busy = code == 0;
    e->next += code == 0;
    return code == 0;
}

/* Frees what texts left in the cache and begins others; true when all lanes are idle and nothing is to come.
 */
static bool feed(sluice_embedding *e) {
    bool idle = true;
    for (size_t i = 0; i < e->lane_count; i++) {
        lane *l = &e->lanes[i];
        if (l->busy || l->core->in_step) {
            idle = false;
            continue;
        }
        sl_sequence_rollback(e->engine->scheduler, l->core, 0);
        if (!e->failed && !e->cancelled && e->next < e->texts.count) {
            begin_text(e, l);
            idle = false;
        }
    }
    return idle;
}

void sl_api_feed(sluice_engine *engine) {
    for (sluice_embedding **at = &engine->embeddings; *at;) {
        sluice_embedding *e = *at;
        if (engine->failed) {
            fail_embedding(e, &engine->failure);
        }
        if (!feed(e)) {
            at = &e->following;
            continue;
        }
        *at = e->following;
        for (size_t i = 0; i < e->lane_count; i++) {
            sl_sequence_release(engine->scheduler, e->lanes[i].core);
            e->lanes[i].core = NULL;
        }
        e->finished = true;
        if (e->notify) {
            e->notify(e->notify_context);
        }
        pthread_cond_broadcast(&engine->step_done);
    }
}

/* ---- from pooled rows to what the caller gets ---- */

static void normalise(float *x, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += (double)x[i] * x[i];
    }
    for (size_t i = 0; sum > 0 && i < count; i++) {
        x[i] = (float)(x[i] / sqrt(sum));
    }
}

static int run_layers(const sl_dense *layers, int32_t count, float *x, sl_error *error) {
    for (int32_t i = 0; i < count; i++) {
        float *y = sl_alloc_zero((size_t)layers[i].rows, sizeof *y);
        if (!y) {
            return sl_fail(error, SL_ERR_NOMEM, "out of memory for a vector of %d elements", layers[i].rows);
        }
        sl_dense_apply(&layers[i], x, y);
        memcpy(x, y, (size_t)layers[i].rows * sizeof *y);
        sl_free(y);
    }
    return 0;
}

/* Of logits x: one row's sigmoid, or the share of the first of two. */
static float score_of(const float *x, int32_t rows) {
    return (float)(1 / (1 + exp(rows == 1 ? -(double)x[0] : (double)x[1] - (double)x[0])));
}

static int complete(sluice_embedding *e, sl_error *error) {
    const sl_embedding *model = &e->engine->model->model->embedding;
    for (size_t row = 0; row < e->first_row[e->texts.count]; row++) {
        float *x = e->values + row * e->stride;
        for (size_t i = 0; i < e->width; i++) {
            if (!isfinite(x[i])) {
                return sl_fail(error, SL_ERR_INTERNAL, "row %zu: the model's numbers are not finite", row);
            }
        }
        const int code = e->rank ? run_layers(model->classifier, model->classifier_count, x, error)
                                 : run_layers(model->layers, model->layer_count, x, error);
        if (code) {
            return code;
        }
        if (e->rank) {
            x[0] = score_of(x, model->classifier[model->classifier_count - 1].rows);
        } else if (e->normalise) {
            normalise(x, e->out_width);
        }
    }
    e->completed = true;
    return 0;
}

int sluice_embedding_wait(sluice_embedding *e, int timeout, size_t *done, sluice_error *error) {
    if (sl_api_lacks(e, "embedding", error) || sl_api_lacks(done, "done", error)) {
        return SL_ERR_INVALID;
    }
    sluice_engine *engine = e->engine;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (timeout > 0) {
        until.tv_sec += timeout / 1000;
        until.tv_nsec += (long)(timeout % 1000) * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
    }
    pthread_mutex_lock(&engine->mutex);
    for (bool waits = timeout != 0; !e->finished && waits;) {
        const int result = timeout < 0 ? pthread_cond_wait(&engine->step_done, &engine->mutex)
                                       : pthread_cond_timedwait(&engine->step_done, &engine->mutex, &until);
        waits = result != ETIMEDOUT;
    }
    const bool finished = e->finished;
    sl_error inner = e->failure;
    int code = finished && e->failed ? inner.code : 0;
    *done = e->done;
    pthread_mutex_unlock(&engine->mutex);
    if (code == 0 && finished && !e->completed) {
        code = complete(e, &inner);
    }
    return code ? sl_api_error(error, &inner) : 0;
}

const float *sluice_embedding_vector(const sluice_embedding *e, size_t index, size_t *rows, size_t *width) {
    if (!e || !e->completed || index >= e->texts.count || !rows || !width) {
        return NULL;
    }
    *rows = e->first_row[index + 1] - e->first_row[index];
    *width = e->out_width;
    return e->values + e->first_row[index] * e->stride;
}

size_t sluice_embedding_tokens(const sluice_embedding *e, size_t index) {
    return e && index < e->texts.count ? e->texts.ends[index + 1] - e->texts.ends[index] : 0;
}

static void free_embedding(sluice_embedding *e) {
    if (!e) {
        return;
    }
    for (size_t i = 0; i < e->lane_count; i++) {
        sl_free(e->lanes[i].sums);
    }
    sl_free(e->lanes);
    sl_free(e->values);
    sl_free(e->first_row);
    sl_api_texts_free(&e->texts);
    sl_free(e);
}

void sluice_embedding_release(sluice_embedding *e) {
    if (!e) {
        return;
    }
    sluice_engine *engine = e->engine;
    pthread_mutex_lock(&engine->mutex);
    e->cancelled = true;
    while (!e->finished) {
        for (size_t i = 0; i < e->lane_count; i++) {
            e->lanes[i].work.cancelled |= e->lanes[i].busy;
        }
        pthread_cond_signal(&engine->work_came);
        pthread_cond_wait(&engine->step_done, &engine->mutex);
    }
    pthread_mutex_unlock(&engine->mutex);
    free_embedding(e);
}

/* ---- submitting ---- */

static int out_of_memory(size_t count, sl_error *error) {
    return sl_fail(error, SL_ERR_NOMEM, "out of memory for %zu texts", count);
}

/* Sizes of what the caller gets, and room for it. */
static int prepare(sluice_embedding *e, const sluice_embed_options *o, sl_error *error) {
    const sl_embedding *model = &e->engine->model->model->embedding;
    const int32_t width = e->engine->planned.plan->deployment.result_width;
    const sl_dense *layers = e->rank ? model->classifier : model->layers;
    const int32_t layer_count = e->rank ? model->classifier_count : model->layer_count;
    const size_t count = e->texts.count;
    int32_t whole = width, most = width;
    for (int32_t i = 0; i < layer_count; i++) {
        whole = layers[i].rows;
        most = whole > most ? whole : most;
    }
    if (!e->rank && (o->dimensions < 0 || o->dimensions > whole)) {
        return sl_fail(error, SL_ERR_INVALID, "dimensions: %d is not in 0 to %d", o->dimensions, whole);
    }
    e->width = (size_t)width;
    e->stride = (size_t)most;
    e->out_width = e->rank ? 1 : (size_t)(o->dimensions ? o->dimensions : whole);
    e->first_row = sl_alloc_zero(count + 1, sizeof *e->first_row);
    if (!e->first_row) {
        return out_of_memory(count, error);
    }
    for (size_t i = 0; i < count; i++) {
        const size_t rows = e->pooling == SL_POOLING_NONE ? e->texts.ends[i + 1] - e->texts.ends[i] : 1;
        e->first_row[i + 1] = e->first_row[i] + rows;
    }
    uint64_t values;
    if (!sl_mul_u64(e->first_row[count], e->stride, &values) || values > SIZE_MAX / sizeof(float)) {
        return sl_fail(error, SL_ERR_LIMIT, "%zu vectors are more than can be counted", e->first_row[count]);
    }
    e->values = sl_alloc_zero((size_t)values, sizeof *e->values);
    return e->values ? 0 : out_of_memory(count, error);
}

/* Under the lock. */
static int make_lanes(sluice_embedding *e, sl_error *error) {
    const size_t most = (size_t)e->engine->planned.plan->deployment.limits.sequences;
    const size_t count = e->texts.count < most ? e->texts.count : most;
    e->lanes = sl_alloc_zero(count, sizeof *e->lanes);
    if (!e->lanes) {
        return out_of_memory(e->texts.count, error);
    }
    for (; e->lane_count < count; e->lane_count++) {
        lane *l = &e->lanes[e->lane_count];
        l->of = e;
        if (e->pooling == SL_POOLING_MEAN && !(l->sums = sl_alloc_zero(e->width, sizeof *l->sums))) {
            return out_of_memory(e->texts.count, error);
        }
        const int code = sl_sequence_create(e->engine->scheduler, &l->core, error);
        if (code) {
            sl_free(l->sums);
            return code;
        }
    }
    return 0;
}

static int queue(sluice_embedding *e, sl_error *error) {
    sluice_engine *engine = e->engine;
    pthread_mutex_lock(&engine->mutex);
    int code = engine->failed ? (*error = engine->failure, error->code) : make_lanes(e, error);
    if (code == 0) {
        sluice_embedding **last = &engine->embeddings;
        while (*last) {
            last = &(*last)->following;
        }
        *last = e;
        pthread_cond_signal(&engine->work_came);
    }
    for (size_t i = 0; code && i < e->lane_count; i++) {
        sl_sequence_release(engine->scheduler, e->lanes[i].core);
    }
    pthread_mutex_unlock(&engine->mutex);
    return code;
}

static int check_engine(const sluice_engine *engine, bool rank, sl_error *error) {
    if (!engine->planned.plan->options.embed) {
        return sl_fail(error, SL_ERR_UNSUPPORTED,
                       "engine: it generates; embeddings and scores need one made with `embeddings`");
    }
    if (rank && engine->model->model->embedding.classifier_count == 0) {
        return sl_fail(error, SL_ERR_UNSUPPORTED,
                       "model: it has no classifier, and no head with the tokens \"yes\" and \"no\" that "
                       "could score documents");
    }
    return 0;
}

/* Takes the texts over, on failure too. */
static int submit(sluice_engine *engine, sl_api_texts *texts, const sluice_embed_options *o, bool rank,
                  sluice_embedding **out, sl_error *error) {
    const sl_embedding *model = &engine->model->model->embedding;
    sluice_embedding *e = sl_alloc_zero(1, sizeof *e);
    if (!e) {
        const int code = out_of_memory(texts->count, error);
        sl_api_texts_free(texts);
        return code;
    }
    e->engine = engine;
    e->texts = *texts;
    e->rank = rank;
    e->pooling = sl_api_pooling(model, rank ? SLUICE_POOLING_MODEL : o->pooling, rank);
    e->normalise = model->normalise && !o->no_normalise;
    e->priority = o->priority;
    e->group = o->group;
    e->notify = o->notify;
    e->notify_context = o->notify_context;
    *out = e; /* before anybody can be told that it is done */
    int code = prepare(e, o, error);
    code = code ? code : queue(e, error);
    if (code) {
        free_embedding(e);
        *out = NULL;
    }
    return code;
}

/* What sluice_embed and sluice_rerank check alike. */
static int begin(sluice_engine *engine, const sluice_embed_options *given, bool rank, sluice_embedding **out,
                 sluice_embed_options *o, sluice_error *error) {
    if (sl_api_lacks(out, "embedding", error)) {
        return SL_ERR_INVALID;
    }
    *out = NULL;
    if (sl_api_lacks(engine, "engine", error)) {
        return SL_ERR_INVALID;
    }
    int code = sl_api_options(o, sizeof *o, given, "sluice_embed_options", error);
    if (code == 0 && (unsigned)o->pooling > SLUICE_POOLING_LAST) {
        code = sl_api_fail(error, SL_ERR_INVALID, "pooling: %d is no sluice_pooling", (int)o->pooling);
    }
    sl_error inner;
    return code ? code : check_engine(engine, rank, &inner) ? sl_api_error(error, &inner) : 0;
}

int sluice_embed(sluice_engine *engine, const sluice_embed_input *inputs, size_t count,
                 const sluice_embed_options *given, sluice_embedding **out, sluice_error *error) {
    sluice_embed_options o;
    int code = begin(engine, given, false, out, &o, error);
    if (code || sl_api_lacks_array(inputs, count, "inputs", error)) {
        return code ? code : SL_ERR_INVALID;
    }
    if (count == 0) {
        return sl_api_fail(error, SL_ERR_INVALID, "inputs: there must be at least one text");
    }
    sl_api_texts texts = {0};
    sl_error inner;
    const sl_api_text_limits limits = {sluice_engine_context(engine), o.truncate};
    code = sl_api_texts_read(engine->model, inputs, count, &limits, &texts, &inner);
    if (code) {
        sl_api_texts_free(&texts);
    } else {
        code = submit(engine, &texts, &o, false, out, &inner);
    }
    return code ? sl_api_error(error, &inner) : 0;
}

int sluice_rerank(sluice_engine *engine, const sluice_embed_input *documents, size_t count,
                  const sluice_embed_options *given, sluice_embedding **out, sluice_error *error) {
    sluice_embed_options o;
    int code = begin(engine, given, true, out, &o, error);
    if (code || sl_api_lacks(o.query, "query", error) ||
        sl_api_lacks_array(documents, count, "documents", error)) {
        return code ? code : SL_ERR_INVALID;
    }
    if (count == 0) {
        return sl_api_fail(error, SL_ERR_INVALID, "documents: there must be at least one");
    }
    sl_api_texts texts = {0};
    sl_error inner;
    const sl_api_query asked = {{.text = o.query, .length = strlen(o.query)},
                                o.instruction,
                                {sluice_engine_context(engine), o.truncate}};
    code = sl_api_texts_pair(engine->model, &asked, documents, count, &texts, &inner);
    if (code) {
        sl_api_texts_free(&texts);
    } else {
        code = submit(engine, &texts, &o, true, out, &inner);
    }
    return code ? sl_api_error(error, &inner) : 0;
}
