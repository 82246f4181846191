#define _POSIX_C_SOURCE 200809L
#include "plan/ranks.h"

#include "base/alloc.h"
#include "plan/split.h"

#include <pthread.h>
#include <string.h>

/* A thread for a rank behind the first whose submit runs the step. */
typedef struct runner {
    struct sl_rank_group *all;
    int32_t rank;
    pthread_t thread;
    uint64_t begun; /* steps */
} runner;

struct sl_rank_group {
    const sl_plan *plan;
    sl_executor *parts[SL_MOST_DEVICES];
    int32_t count;
    void *blocks[SL_MOST_DEVICES]; /* of the step that was submitted last */
    uint64_t submitted, waited;
    bool lacks_masks;
    bool joined;            /* and none has left */
    sl_error fault;         /* the ranks are out of step from then on */
    sl_kernel_count *given; /* of all ranks: what the caller got last */
    runner runners[SL_MOST_DEVICES];
    int32_t running;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* Under the mutex, of the step that is being submitted. */
    uint64_t posted;
    int32_t busy; /* runners */
    int codes[SL_MOST_DEVICES];
    sl_error errors[SL_MOST_DEVICES];
    bool stop;
};

static const sl_backend *backend_of(const sl_rank_group *all, int32_t rank) {
    return all->plan->segments[rank].plan->backend;
}

static const sl_backend_functions *functions_of(const sl_rank_group *all, int32_t rank) {
    return backend_of(all, rank)->functions;
}

/* ---- submitting ---- */

static int submit_to(sl_rank_group *all, int32_t rank, sl_error *error) {
    const int32_t bucket = sl_plan_bucket(all->plan->segments[rank].plan, sl_step_head(all->blocks[rank]));
    return functions_of(all, rank)->submit(all->parts[rank], bucket, error);
}

static void *runner_thread(void *argument) {
    runner *own = argument;
    sl_rank_group *all = own->all;
    pthread_mutex_lock(&all->mutex);
    for (;;) {
        while (!all->stop && all->posted == own->begun) {
            pthread_cond_wait(&all->changed, &all->mutex);
        }
        if (all->stop) {
            break;
        }
        own->begun++;
        pthread_mutex_unlock(&all->mutex);
        sl_error error = {.code = SL_OK};
        const int code = submit_to(all, own->rank, &error);
        pthread_mutex_lock(&all->mutex);
        all->codes[own->rank] = code;
        all->errors[own->rank] = error;
        all->busy--;
        pthread_cond_broadcast(&all->changed);
    }
    pthread_mutex_unlock(&all->mutex);
    return NULL;
}

/* The others may wait for a rank that has failed: nothing is left under way on any device. */
static void leave(sl_rank_group *all) {
    if (all->joined && functions_of(all, 0)->leave) {
        functions_of(all, 0)->leave(all->parts, all->count);
    }
    all->joined = false;
}

/* An error on one rank is the end for all: the others are a step ahead of it. */
static int fail_rank(sl_rank_group *all, int32_t rank, const sl_error *why, sl_error *error) {
    sl_fail(&all->fault, SL_ERR_DEVICE, "%s, device %d of %s: %s",
            sl_split_part_name(all->plan->backend, rank), rank + 1, all->plan->backend->name, why->message);
    leave(all);
    return sl_fail(error, SL_ERR_DEVICE, "%s", all->fault.message);
}

/* To all ranks: to those without a thread one after the other, as it only begins the step there. */
static int submit_to_all(sl_rank_group *all, sl_error *error) {
    if (all->running > 0) {
        pthread_mutex_lock(&all->mutex);
        all->posted++;
        all->busy = all->running;
        pthread_cond_broadcast(&all->changed);
        pthread_mutex_unlock(&all->mutex);
    }
    for (int32_t r = 0; r < all->count - all->running; r++) {
        all->errors[r] = (sl_error){.code = SL_OK};
        all->codes[r] = submit_to(all, r, &all->errors[r]);
    }
    if (all->running > 0) {
        pthread_mutex_lock(&all->mutex);
        while (all->busy > 0) {
            pthread_cond_wait(&all->changed, &all->mutex);
        }
        pthread_mutex_unlock(&all->mutex);
    }
    for (int32_t r = 0; r < all->count; r++) {
        if (all->codes[r]) {
            return fail_rank(all, r, &all->errors[r], error);
        }
    }
    return 0;
}

static int report_fault(const sl_rank_group *all, sl_error *error) {
    return all->fault.code ? sl_fail(error, SL_ERR_DEVICE, "%s", all->fault.message) : 0;
}

void *sl_ranks_block(sl_rank_group *all) {
    return functions_of(all, 0)->step_block(all->parts[0]);
}

/* Devices that cannot stop in front of the sampling begin when the masks are there. */
static bool waits_for_masks(const sl_rank_group *all) {
    return all->lacks_masks && !functions_of(all, 0)->resume;
}

/* What can be said of a step before a rank has begun it. */
static int check_step(const sl_rank_group *all, void *block, sl_error *error) {
    const sl_step_header *header = sl_step_head(block);
    int code = report_fault(all, error);
    for (int32_t r = 0; r < all->count && code == 0; r++) {
        if (sl_plan_bucket(all->plan->segments[r].plan, header) < 0) {
            code = sl_fail(error, SL_ERR_INVALID, "step: %d rows and %d outputs fit no bucket",
                           (int)header->rows, (int)header->outputs);
        }
    }
#ifndef NDEBUG
    code =
        code ? code : sl_step_check(&all->plan->deployment.step, all->plan->deployment.program, block, error);
#endif
    if (code == 0 && all->submitted - all->waited == (uint64_t)all->plan->backend->steps_in_flight) {
        code = sl_fail(error, SL_ERR_INTERNAL, "step: %d are under way already",
                       all->plan->backend->steps_in_flight);
    }
    if (code == 0 && all->lacks_masks) {
        code = sl_fail(error, SL_ERR_INTERNAL, "step: the one in front waits for its masks");
    }
    return code;
}

int sl_ranks_submit(sl_rank_group *all, sl_error *error) {
    const sl_step_layout *layout = &all->plan->deployment.step;
    void *block = sl_ranks_block(all);
    const int code = check_step(all, block, error);
    if (code) {
        return code;
    }
    const sl_step_header *header = sl_step_head(block);
    const size_t bytes =
        header->masks_later ? sl_step_unmasked_bytes(layout, block) : sl_step_used_bytes(layout, block);
    all->blocks[0] = block;
    for (int32_t r = 1; r < all->count; r++) {
        all->blocks[r] = functions_of(all, r)->step_block(all->parts[r]);
        memcpy(all->blocks[r], block, bytes);
    }
    all->lacks_masks = header->masks_later;
    const int failed = waits_for_masks(all) ? 0 : submit_to_all(all, error);
    all->submitted += failed == 0;
    return failed;
}

int sl_ranks_resume(sl_rank_group *all, sl_error *error) {
    int code = report_fault(all, error);
    if (code == 0 && !all->lacks_masks) {
        code = sl_fail(error, SL_ERR_INTERNAL, "step: none waits for masks");
    }
    const bool begins = waits_for_masks(all);
    if (code == 0 && begins) {
        sl_step_head(all->blocks[0])->masks_later = 0;
    }
    for (int32_t r = 1; r < all->count && code == 0; r++) {
        memcpy(all->blocks[r], all->blocks[0],
               sl_step_used_bytes(&all->plan->deployment.step, all->blocks[0]));
    }
    if (code == 0 && begins) {
        code = submit_to_all(all, error);
    }
    for (int32_t r = 0; r < all->count && code == 0 && !begins; r++) {
        sl_error why = {.code = SL_OK};
        if (functions_of(all, r)->resume(all->parts[r], &why)) {
            code = fail_rank(all, r, &why, error);
        }
    }
    all->lacks_masks = all->lacks_masks && code != 0;
    return code;
}

int sl_ranks_wait(sl_rank_group *all, sl_error *error) {
    int code = report_fault(all, error);
    for (int32_t r = 0; r < all->count && code == 0; r++) {
        sl_error why = {.code = SL_OK};
        if (functions_of(all, r)->wait(all->parts[r], &why)) {
            code = fail_rank(all, r, &why, error);
        }
    }
    all->waited += code == 0 && all->waited < all->submitted;
    return code;
}

const float *sl_ranks_logits(sl_rank_group *all) {
    return functions_of(all, 0)->logits(all->parts[0]);
}

const int32_t *sl_ranks_tokens(sl_rank_group *all) {
    return functions_of(all, 0)->tokens(all->parts[0]);
}

int sl_ranks_check_idle(sl_rank_group *all, sl_error *error) {
    const int code = report_fault(all, error);
    return code || all->submitted == all->waited
               ? code
               : sl_fail(error, SL_ERR_INTERNAL, "pools: a step is in flight");
}

void sl_ranks_counters(sl_rank_group *all, sl_counters *result) {
    memset(result, 0, sizeof *result);
    for (int32_t r = 0; r < all->count; r++) {
        sl_counters own;
        functions_of(all, r)->counters(all->parts[r], &own);
        result->eager_steps += own.eager_steps;
        result->replayed_steps += own.replayed_steps;
        result->device_allocations += own.device_allocations;
        result->synchronisations += own.synchronisations;
        result->captured_buckets += own.captured_buckets;
        result->failed_captures += own.failed_captures;
        memcpy(all->given + result->kernel_count, own.kernels, (size_t)own.kernel_count * sizeof *all->given);
        result->kernel_count += own.kernel_count;
    }
    result->steps = all->submitted;
    result->kernels = all->given;
}

/* ---- create ---- */

static int make_counts(sl_rank_group *all, sl_error *error) {
    int32_t total = 0;
    for (int32_t r = 0; r < all->count; r++) {
        sl_counters own;
        functions_of(all, r)->counters(all->parts[r], &own);
        total += own.kernel_count;
    }
    all->given = sl_alloc_zero((size_t)total + 1, sizeof *all->given);
    return all->given ? 0 : sl_fail(error, SL_ERR_NOMEM, "%s: out of memory", all->plan->backend->name);
}

/* They are the last ranks. */
static int start_runners(sl_rank_group *all, sl_error *error) {
    const sl_backend *first = backend_of(all, 0);
    sl_counters counters;
    sl_ranks_counters(all, &counters);
    /* In submit; or it launches one op after the other, and a device's queue may be full before a step is in
     * it, which is not emptied while the others have not begun. */
    const bool runs = first->steps_in_flight == 1 || first->options.no_graphs || counters.failed_captures > 0;
    for (int32_t r = 1; runs && r < all->count; r++) {
        runner *own = &all->runners[r];
        *own = (runner){.all = all, .rank = r};
        const int failed = pthread_create(&own->thread, NULL, runner_thread, own);
        if (failed) {
            return sl_fail(error, SL_ERR_NOMEM, "%s: cannot start a thread: %s", all->plan->backend->name,
                           strerror(failed));
        }
        all->running++;
    }
    return 0;
}

int sl_ranks_create(const sl_plan *plan, sl_executor *const *parts, sl_rank_group **ranks, sl_error *error) {
    *ranks = NULL;
    sl_rank_group *all = sl_alloc_zero(1, sizeof *all);
    if (!all) {
        return sl_fail(error, SL_ERR_NOMEM, "%s: out of memory", plan->backend->name);
    }
    all->plan = plan;
    all->count = plan->segment_count;
    memcpy(all->parts, parts, (size_t)all->count * sizeof *parts);
    pthread_mutex_init(&all->mutex, NULL);
    pthread_cond_init(&all->changed, NULL);
    int code = make_counts(all, error);
    code = code ? code : functions_of(all, 0)->join(all->parts, all->count, error);
    all->joined = code == 0;
    code = code ? code : start_runners(all, error);
    if (code) {
        sl_ranks_destroy(all);
        return code;
    }
    *ranks = all;
    return 0;
}

void sl_ranks_destroy(sl_rank_group *all) {
    if (!all) {
        return;
    }
    pthread_mutex_lock(&all->mutex);
    all->stop = true;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->mutex);
    for (int32_t r = 1; r <= all->running; r++) {
        pthread_join(all->runners[r].thread, NULL);
    }
    leave(all);
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->mutex);
    sl_free(all->given);
    sl_free(all);
}
