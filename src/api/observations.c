/* The C API: what an observing engine saw, and importance matrices of it. */
#include "api/engine.h"

#include "base/alloc.h"
#include "model/importance.h"

#include <string.h>

/* A copy of the pool, and its contents by tensor. Zero-initialise; free after success and failure alike. */
typedef struct observed {
    unsigned char *pool;
    sl_importance_sums *entries; /* [count] */
    uint64_t count;
} observed;

static void free_observed(observed *o) {
    sl_free(o->pool);
    sl_free(o->entries);
}

/* Under the engine's lock. */
static int copy_pool(sluice_engine *engine, observed *o, sl_error *error) {
    const sl_deployment *deployment = &engine->planned.plan->deployment;
    const uint64_t bytes = deployment->pool_bytes[SL_POOL_OBSERVATIONS];
    if (engine->stepping || sl_scheduler_has_work(engine->scheduler)) {
        return sl_fail(error, SL_ERR_BUSY, "observe: the engine has unfinished requests");
    }
    if (engine->failed) {
        *error = engine->failure;
        return error->code;
    }
    o->pool = sl_alloc((size_t)bytes);
    return o->pool ? engine->planned.backend->functions->read(engine->executor, SL_POOL_OBSERVATIONS, 0,
                                                              o->pool, bytes, error)
                   : sl_fail(error, SL_ERR_NOMEM, "observe: out of memory");
}

/* Parts of one tensor that the model has as several weights read the same: that tensor is listed once. */
static bool is_listed(const observed *o, const char *name) {
    for (uint64_t i = 0; i < o->count; i++) {
        if (strcmp(o->entries[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static int observe(sluice_engine *engine, observed *o, sl_error *error) {
    const sl_deployment *deployment = &engine->planned.plan->deployment;
    const sl_program *program = deployment->program;
    if (!deployment->observations) {
        return sl_fail(error, SL_ERR_INVALID, "observe: the engine was made without the option");
    }
    pthread_mutex_lock(&engine->mutex);
    const int code = copy_pool(engine, o, error);
    pthread_mutex_unlock(&engine->mutex);
    if (code) {
        return code;
    }
    o->entries = sl_alloc_zero((size_t)program->weight_count + 1, sizeof *o->entries);
    if (!o->entries) {
        return sl_fail(error, SL_ERR_NOMEM, "observe: out of memory");
    }
    for (int32_t w = 0; w < program->weight_count; w++) {
        const sl_weight *weight = &program->weights[w];
        if (deployment->observations[w] != UINT64_MAX && !is_listed(o, weight->name)) {
            const double *sums = (const double *)(const void *)(o->pool + deployment->observations[w]);
            o->entries[o->count++] =
                (sl_importance_sums){weight->name, (uint64_t)weight->columns, (uint64_t)weight->experts, sums,
                                     sums + (int64_t)weight->experts * weight->columns};
        }
    }
    return 0;
}

int sluice_engine_get_observations(sluice_engine *engine,
                                   void (*observation)(void *context, const sluice_observation *observation),
                                   void *context, sluice_error *error) {
    sl_error inner;
    observed o = {0};
    if (!engine || !observation) {
        return sl_api_fail(error, SL_ERR_INVALID, "%s: is NULL", engine ? "observation" : "engine");
    }
    const int code = observe(engine, &o, &inner);
    for (uint64_t i = 0; i < o.count && code == 0; i++) {
        const sl_importance_sums *e = &o.entries[i];
        const sluice_observation found = {sizeof found,         e->name, (int32_t)e->columns,
                                          (int32_t)e->matrices, e->sums, e->counts};
        observation(context, &found);
    }
    free_observed(&o);
    return code ? sl_api_error(error, &inner) : 0;
}

static int write_importance(sluice_engine *engine, const char *path, const sluice_importance_options *o,
                            sl_error *error) {
    observed seen = {0};
    const sl_source *source = engine->model->model->source;
    if (!sl_source_gguf(source)) {
        return sl_fail(
            error, SL_ERR_UNSUPPORTED,
            "%s: an importance matrix has the names of GGUF tensors: make a GGUF file of the folder "
            "first (sluice quantize)",
            sl_source_path(source));
    }
    const char **inputs = sl_alloc_zero(o->input_count + 1, sizeof *inputs);
    if (!inputs) {
        return sl_fail(error, SL_ERR_NOMEM, "observe: out of memory");
    }
    inputs[0] = sl_source_path(source);
    for (size_t i = 0; i < o->input_count; i++) {
        inputs[i + 1] = o->inputs[i];
    }
    const sl_output_rules rules = {o->replace, inputs, (int)o->input_count + 1};
    int code;
    if (o->dry_run) {
        code = sl_output_file_check(path, &rules, error);
    } else {
        code = observe(engine, &seen, error);
        const sl_importance_text text = {o->dataset ? o->dataset : "", o->chunks, o->chunk_size, seen.entries,
                                         seen.count};
        code = code ? code : sl_importance_write(&text, path, &rules, error);
    }
    free_observed(&seen);
    sl_free(inputs);
    return code;
}

int sluice_engine_write_importance(sluice_engine *engine, const char *path,
                                   const sluice_importance_options *given, sluice_error *error) {
    enum { MOST_INPUTS = 1024 };
    sluice_importance_options o;
    sl_error inner;
    int code = sl_api_options(&o, sizeof o, given, "sluice_importance_options", error);
    if (code) {
        return code;
    }
    if (!engine || !path || (o.input_count > 0 && !o.inputs) || o.input_count > MOST_INPUTS) {
        return sl_api_fail(error, SL_ERR_INVALID, "%s",
                           !engine                        ? "engine: is NULL"
                           : !path                        ? "path: is NULL"
                           : o.input_count <= MOST_INPUTS ? "inputs: is NULL with a count"
                                                          : "inputs: more than 1024");
    }
    for (size_t i = 0; i < o.input_count; i++) {
        if (!o.inputs[i]) {
            return sl_api_fail(error, SL_ERR_INVALID, "inputs: one is NULL");
        }
    }
    code = write_importance(engine, path, &o, &inner);
    return code ? sl_api_error(error, &inner) : 0;
}
