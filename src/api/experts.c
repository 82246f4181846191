/* The C API: weights in host memory. What is counted of them, and files that say how often experts were
 * chosen.
 */
#include "api/experts.h"

#include "api/engine.h"
#include "base/alloc.h"
#include "base/log.h"
#include "format/json.h"
#include "format/output_file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static const char KIND[] = "sluice_expert_stats"; /* whose value is the format's version */
enum { VERSION = 1, MOST_BYTES = 64 << 20 };

/* ---- counters ---- */

int sl_api_begin_expert_counts(sluice_engine *engine, sl_error *error) {
    const int32_t sets = engine->planned.plan->deployment.fetch_set_count;
    engine->expert_counts = sl_alloc_zero((size_t)sets + 1, sizeof *engine->expert_counts);
    return engine->expert_counts ? 0 : sl_fail(error, SL_ERR_NOMEM, "out of memory for counts of experts");
}

void sl_api_take_expert_counts(sluice_engine *engine, const sl_counters *counters) {
    sluice_counters *all = &engine->counted;
    all->expert_hits = all->expert_misses = all->expert_promotions = 0;
    all->streamed_bytes = all->fetched_bytes = 0;
    for (int32_t i = 0; i < counters->fetch_count; i++) {
        const sl_fetch_count *one = &counters->fetches[i];
        engine->expert_counts[i] = *one;
        all->expert_hits += one->hits;
        all->expert_misses += one->misses;
        all->expert_promotions += one->promotions;
        all->streamed_bytes += one->streamed_bytes;
        all->fetched_bytes += one->fetched_bytes;
    }
}

int32_t sluice_engine_get_expert_counters(sluice_engine *engine,
                                          void (*layer)(void *context,
                                                        const sluice_expert_counters *counters),
                                          void *context) {
    if (!engine) {
        return 0;
    }
    const sl_deployment *deployment = &engine->planned.plan->deployment;
    for (int32_t i = 0; layer && i < deployment->fetch_set_count; i++) {
        pthread_mutex_lock(&engine->mutex);
        const sl_fetch_count one = engine->expert_counts[i];
        const int32_t experts = deployment->fetch_sets[i].experts;
        pthread_mutex_unlock(&engine->mutex);
        const sluice_expert_counters counters = {.size = sizeof counters,
                                                 .layer = deployment->fetch_sets[i].layer,
                                                 .experts = experts,
                                                 .at_hand = experts > 0 ? deployment->expert_slots : 0,
                                                 .hits = one.hits,
                                                 .misses = one.misses,
                                                 .promotions = one.promotions,
                                                 .streamed_bytes = one.streamed_bytes,
                                                 .fetched_bytes = one.fetched_bytes};
        layer(context, &counters);
    }
    return deployment->fetch_set_count;
}

/* ---- files ---- */

static int refuse(const char *path, const char *what, sl_error *error) {
    return sl_fail(error, SL_ERR_FORMAT, "%s: %s", path, what);
}

/* A file of this kind, whatever the model; *json is a new reference. */
static int load(const char *path, json_t **json, sl_error *error) {
    const int code = sl_json_load(path, MOST_BYTES, json, error);
    const json_t *version = code ? NULL : json_object_get(*json, KIND);
    if (code == 0 && (!json_is_integer(version) || json_integer_value(version) != VERSION)) {
        json_decref(*json);
        *json = NULL;
        return sl_fail(error, SL_ERR_FORMAT, "%s: no file of expert stats: \"%s\" is not %d", path, KIND,
                       VERSION);
    }
    return code;
}

/* One layer's numbers, or null. */
static int read_layer(const json_t *from, int32_t experts, const char *path, uint64_t *uses,
                      sl_error *error) {
    if (json_is_null(from)) {
        return 0;
    }
    if (!json_is_array(from) || json_array_size(from) != (size_t)experts) {
        return refuse(path, "chosen: a layer is neither null nor an array of as many numbers as experts",
                      error);
    }
    for (int32_t e = 0; e < experts; e++) {
        const json_t *number = json_array_get(from, (size_t)e);
        if (!json_is_integer(number) || json_integer_value(number) < 0) {
            return refuse(path, "chosen: a number is no whole one of at least 0", error);
        }
        uses[e] = (uint64_t)json_integer_value(number);
    }
    return 0;
}

static int read_uses(const sl_model *model, const json_t *json, const char *path, uint64_t *uses,
                     sl_error *error) {
    const int32_t layers = sl_program_layers(&model->program), experts = model->program.experts;
    const json_t *chosen = json_object_get(json, "chosen");
    const sl_json_place place = {json, path};
    uint64_t its_layers, its_experts;
    int code = sl_json_u64(place, NULL, "layers", &its_layers, error);
    code = code ? code : sl_json_u64(place, NULL, "experts", &its_experts, error);
    if (code) {
        return code;
    }
    if (its_layers != (uint64_t)layers || its_experts != (uint64_t)experts) {
        return sl_fail(error, SL_ERR_INVALID,
                       "%s: of another model, which has %llu layers of %llu experts; this one has %d of %d",
                       path, (unsigned long long)its_layers, (unsigned long long)its_experts, layers,
                       experts);
    }
    if (!json_is_array(chosen) || json_array_size(chosen) != (size_t)layers) {
        return refuse(path, "chosen: no array of as many elements as layers", error);
    }
    for (int32_t l = 0; l < layers && code == 0; l++) {
        code =
            read_layer(json_array_get(chosen, (size_t)l), experts, path, uses + (int64_t)l * experts, error);
    }
    return code;
}

/* Layers of the program that a plan may be of: a head that drafts is one more. */
static int32_t rows_of(const sl_model *model) {
    const int32_t layers = sl_program_layers(&model->program);
    const int32_t drafting = sl_program_layers(&model->drafting);
    return drafting > layers ? drafting : layers;
}

int sl_api_read_expert_uses(const sl_model *model, const char *path, uint64_t **uses, sl_error *error) {
    json_t *json = NULL;
    const int32_t experts = model->program.experts;
    *uses = NULL;
    if (experts == 0) {
        return sl_fail(error, SL_ERR_INVALID, "expert pin: the model has no experts");
    }
    int code = load(path, &json, error);
    uint64_t *made = code ? NULL : sl_alloc_zero((size_t)rows_of(model) * (size_t)experts, sizeof *made);
    if (code == 0) {
        code = made ? read_uses(model, json, path, made, error)
                    : sl_fail(error, SL_ERR_NOMEM, "out of memory for the uses of experts");
    }
    json_decref(json);
    if (code) {
        sl_free(made);
        return sl_fail_prefix(error, "expert pin");
    }
    *uses = made;
    return 0;
}

/* Adds what the device counted. Under the engine's lock, which is free while the last step ends. */
static int count_uses(sluice_engine *engine, uint64_t *uses, sl_error *error) {
    const sl_deployment *deployment = &engine->planned.plan->deployment;
    const int32_t experts = deployment->program->experts;
    uint64_t *chosen = sl_alloc_zero((size_t)experts, sizeof *chosen);
    int code = chosen ? 0 : sl_fail(error, SL_ERR_NOMEM, "out of memory for the uses of experts");
    while ((engine->stepping || engine->saving) && !sl_scheduler_has_work(engine->scheduler)) {
        pthread_cond_wait(&engine->step_done, &engine->mutex);
    }
    if (code == 0 && sl_scheduler_has_work(engine->scheduler)) {
        code = sl_fail(error, SL_ERR_BUSY, "expert stats: the engine has unfinished requests");
    }
    if (code == 0 && engine->failed) {
        *error = engine->failure;
        code = error->code;
    }
    for (int32_t s = 0; s < deployment->fetch_set_count && code == 0; s++) {
        const sl_fetch_set *set = &deployment->fetch_sets[s];
        code = engine->planned.backend->functions->read(engine->executor, SL_POOL_FETCHED,
                                                        set->table + sizeof(sl_slot_table), chosen,
                                                        (uint64_t)experts * sizeof *chosen, error);
        for (int32_t e = 0; e < experts && code == 0; e++) {
            uses[(int64_t)set->layer * experts + e] += chosen[e];
        }
    }
    sl_free(chosen);
    return code;
}

static bool is_counted(const sl_deployment *deployment, int32_t layer) {
    for (int32_t s = 0; s < deployment->fetch_set_count; s++) {
        if (deployment->fetch_sets[s].layer == layer) {
            return true;
        }
    }
    return false;
}

/* NULL: out of memory. A layer that is not counted here is one that the file of expert_pin knows, or null. */
static json_t *uses_json(const sluice_engine *engine, const uint64_t *uses) {
    const sl_model *model = engine->model->model;
    const sl_deployment *deployment = &engine->planned.plan->deployment;
    const int32_t layers = sl_program_layers(&model->program), experts = model->program.experts;
    json_t *chosen = json_array();
    bool complete = chosen != NULL;
    for (int32_t l = 0; l < layers && complete; l++) {
        const uint64_t *row = uses + (int64_t)l * experts;
        uint64_t sum = 0;
        for (int32_t e = 0; e < experts; e++) {
            sum += row[e];
        }
        json_t *numbers = sum > 0 || is_counted(deployment, l) ? json_array() : json_null();
        complete = numbers != NULL;
        for (int32_t e = 0; e < experts && complete && json_is_array(numbers); e++) {
            complete = json_array_append_new(numbers, json_integer((json_int_t)row[e])) == 0;
        }
        complete = json_array_append_new(chosen, numbers) == 0 && complete;
    }
    json_t *whole = complete
                        ? json_pack("{s:i, s:i, s:i, s:i, s:O}", KIND, VERSION, "layers", layers, "experts",
                                    experts, "experts_used", model->program.experts_used, "chosen", chosen)
                        : NULL;
    json_decref(chosen);
    return whole;
}

static int write_json(json_t *json, const char *path, const sl_output_rules *rules, sl_error *error) {
    sl_output_file output = {0};
    int code = json ? sl_output_file_open(&output, path, rules, error)
                    : sl_fail(error, SL_ERR_NOMEM, "%s: out of memory", path);
    if (code == 0 && (json_dumpfd(json, output.file, JSON_COMPACT) || write(output.file, "\n", 1) != 1)) {
        code = sl_fail(error, SL_ERR_IO, "%s: cannot write: %s", path, strerror(errno));
    }
    code = code ? code : sl_output_file_commit(&output, error);
    sl_output_file_discard(&output);
    json_decref(json);
    return code;
}

/* What stands there must be of this kind to be replaced. */
static int check_path(const sluice_engine *engine, const char *path, const char *const *inputs,
                      sl_output_rules *rules, sl_error *error) {
    json_t *old = NULL;
    *rules = (sl_output_rules){access(path, F_OK) == 0, inputs, 1};
    if (engine->planned.plan->deployment.fetch_set_count == 0 || engine->model->model->program.experts == 0) {
        return sl_fail(error, SL_ERR_UNSUPPORTED,
                       "experts are counted where the GPU fetches them from host memory, and of this engine "
                       "it fetches none");
    }
    int code = sl_output_file_check(path, rules, error);
    if (code == 0 && rules->replace) {
        code = load(path, &old, error);
        json_decref(old);
    }
    return code;
}

static int write_stats(sluice_engine *engine, const char *path, bool dry_run, sl_error *error) {
    const sl_model *model = engine->model->model;
    const char *const inputs[] = {sl_source_path(model->source)};
    const size_t count = (size_t)rows_of(model) * (size_t)model->program.experts;
    sl_output_rules rules;
    int code = check_path(engine, path, inputs, &rules, error);
    if (code || dry_run) {
        return code;
    }
    uint64_t *uses = sl_alloc_zero(count, sizeof *uses);
    if (!uses) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for the uses of experts");
    }
    if (engine->planned.expert_uses) {
        memcpy(uses, engine->planned.expert_uses, count * sizeof *uses);
    }
    pthread_mutex_lock(&engine->mutex);
    code = count_uses(engine, uses, error);
    pthread_mutex_unlock(&engine->mutex);
    code = code ? code : write_json(uses_json(engine, uses), path, &rules, error);
    sl_free(uses);
    return code;
}

int sluice_engine_write_expert_stats(sluice_engine *engine, const char *path, bool dry_run,
                                     sluice_error *error) {
    sl_error inner;
    if (sl_api_lacks(engine, "engine", error) || sl_api_lacks(path, "path", error)) {
        return SL_ERR_INVALID;
    }
    if (write_stats(engine, path, dry_run, &inner)) {
        sl_fail_prefix(&inner, "expert stats");
        return sl_api_error(error, &inner);
    }
    return 0;
}
