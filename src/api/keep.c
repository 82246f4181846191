/* The C API: beginnings of prompts on disk (cache_folder). What waits for the disk runs without the lock. */
#include "api/engine.h"

int sl_api_keep_open(sluice_engine *engine, const sluice_engine_options *options, sl_error *error) {
    enum { USUAL_GIGABYTES = 8 };
    const sl_plan *plan = engine->planned.plan;
    if (!options->cache_folder) {
        return 0;
    }
    if (options->no_prefix_reuse) {
        return sl_fail(error, SL_ERR_INVALID, "cache_folder: nothing is kept with no_prefix_reuse");
    }
    sl_store_options store = {.folder = options->cache_folder,
                              .budget = options->cache_folder_bytes ? options->cache_folder_bytes
                                                                    : (uint64_t)USUAL_GIGABYTES << 30};
    sl_keeper_part_bytes(&plan->deployment, store.part_bytes);
    const int result = sl_plan_fingerprint(plan, sluice_version(), &store.fingerprint, error);
    return result ? result : sl_store_open(&store, &engine->store, error);
}

int sl_api_keep_begin(sluice_engine *engine, sl_error *error) {
    if (!engine->store) {
        return 0;
    }
    const sl_keeper_options options = {.deployment = &engine->planned.plan->deployment,
                                       .functions = engine->planned.backend->functions,
                                       .executor = engine->executor,
                                       .cache = sl_scheduler_cache(engine->scheduler),
                                       .store = engine->store};
    const int result = sl_keeper_create(&options, &engine->keeper, error);
    if (result == 0) {
        sl_scheduler_loads(engine->scheduler);
    }
    return result;
}

/* The next pages of one request; *pages: how many came, 0: it waits, or has all that it can get. */
static int load_some(sluice_engine *engine, sl_work *work, sl_load *load, int32_t *pages, sl_error *error) {
    sl_keeper *keeper = engine->keeper;
    int result = 0;
    pthread_mutex_unlock(&engine->mutex);
    *pages = sl_keeper_seek(keeper, load);
    pthread_mutex_lock(&engine->mutex);
    bool more = *pages > 0;
    if (more && !sl_scheduler_may_load(work)) {
        *pages = 0;
    } else if (more && sl_keeper_reserve(keeper, load)) {
        more = false;
        *pages = 0;
    } else if (more) {
        pthread_mutex_unlock(&engine->mutex);
        result = sl_keeper_read(keeper, load, error);
        pthread_mutex_lock(&engine->mutex);
        more = sl_keeper_finish(keeper, load);
    }
    sl_scheduler_loaded(engine->scheduler, work, load, more);
    return result;
}

int sl_api_keep_load(sluice_engine *engine, bool *more, sl_error *error) {
    /* As many pages as a step computes: others that run are not held up for longer than by one. */
    const int32_t most = engine->planned.plan->deployment.limits.rows / SL_PAGE_TOKENS + 1;
    int32_t loaded = 0;
    int result = 0;
    *more = false;
    while (engine->keeper && result == 0 && !engine->stop) {
        sl_load load;
        sl_work *work = sl_scheduler_unread(engine->scheduler, &load);
        *more = work && loaded >= most;
        if (!work || *more) {
            break;
        }
        int32_t pages = 0;
        result = load_some(engine, work, &load, &pages, error);
        loaded += pages;
    }
    return result;
}

int sl_api_keep_save(sluice_engine *engine, bool *more, sl_error *error) {
    *more = engine->keeper && sl_keeper_choose(engine->keeper);
    if (!*more) {
        return 0;
    }
    engine->saving = true;
    pthread_mutex_unlock(&engine->mutex);
    const int result = sl_keeper_save(engine->keeper, error);
    pthread_mutex_lock(&engine->mutex);
    engine->saving = false;
    pthread_cond_broadcast(&engine->step_done);
    sl_keeper_settle(engine->keeper);
    return result;
}

void sl_api_keep_close(sluice_engine *engine) {
    sl_error error;
    bool more = engine->keeper && !engine->failed;
    pthread_mutex_lock(&engine->mutex);
    while (more && sl_api_keep_save(engine, &more, &error) == 0) {
    }
    pthread_mutex_unlock(&engine->mutex);
    sl_keeper_destroy(engine->keeper);
    sl_store_close(engine->store);
    engine->keeper = NULL;
    engine->store = NULL;
}
