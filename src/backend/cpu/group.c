#include "backend/cpu/group.h"

#include "backend/cpu/plain/plain.h"
#include "base/alloc.h"

#include <string.h>

int sl_cpu_group_create(int32_t ranks, sl_cpu_group **group, sl_error *error) {
    *group = sl_alloc_zero(1, sizeof **group);
    if (!*group) {
        return sl_fail(error, SL_ERR_NOMEM, "cpu: out of memory for %d ranks", ranks);
    }
    (*group)->ranks = (*group)->members = ranks;
    pthread_mutex_init(&(*group)->mutex, NULL);
    pthread_cond_init(&(*group)->met, NULL);
    return 0;
}

void sl_cpu_group_leave(sl_cpu_group *group) {
    if (!group) {
        return;
    }
    pthread_mutex_lock(&group->mutex);
    const bool last = --group->members == 0;
    pthread_mutex_unlock(&group->mutex);
    if (last) {
        pthread_cond_destroy(&group->met);
        pthread_mutex_destroy(&group->mutex);
        sl_free(group);
    }
}

/* By one thread of each rank: returns when all ranks are here. */
static void meet(sl_cpu_group *group) {
    pthread_mutex_lock(&group->mutex);
    const uint64_t meeting = group->meetings;
    if (++group->here == group->ranks) {
        group->here = 0;
        group->meetings++;
        pthread_cond_broadcast(&group->met);
    }
    while (group->meetings == meeting) {
        pthread_cond_wait(&group->met, &group->mutex);
    }
    pthread_mutex_unlock(&group->mutex);
}

/* By all threads: shows what this rank has, which all its threads have written, and waits for the others. */
static void show(const sl_cpu_context *context, const float *data, int thread) {
    sl_pool_barrier(context->pool);
    if (thread == 0) {
        context->group->shown[context->rank] = data;
        meet(context->group);
    }
    sl_pool_barrier(context->pool);
}

/* By all threads: nobody changes what was shown before all ranks have read it. */
static void end(const sl_cpu_context *context, int thread) {
    sl_pool_barrier(context->pool);
    if (thread == 0) {
        meet(context->group);
    }
}

uint64_t sl_plain_all_reduce_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_value *value = &query->values[query->op->in[0].value];
    const uint64_t rows = (uint64_t)query->rows[value->rows];
    return rows * (uint64_t)query->op->u.all_reduce.width * sizeof(float);
}

/* x is where the sum goes, so the others read a copy. */
void sl_plain_all_reduce(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const int32_t width = op->op->u.all_reduce.width, rows = sl_cpu_rows(context, &op->out[0]);
    float *copy = (float *)(void *)op->scratch;
    int32_t first, last;
    if (!context->group || rows == 0) {
        return;
    }
    sl_cpu_share(rows, thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        memcpy(copy + (int64_t)row * width, sl_cpu_f32(&op->in[0], row), (size_t)width * sizeof *copy);
    }
    show(context, copy, thread);
    for (int32_t row = first; row < last; row++) {
        float *y = sl_cpu_f32(&op->out[0], row);
        memcpy(y, context->group->shown[0] + (int64_t)row * width, (size_t)width * sizeof *y);
        for (int32_t rank = 1; rank < context->group->ranks; rank++) {
            const float *x = context->group->shown[rank] + (int64_t)row * width;
            for (int32_t i = 0; i < width; i++) {
                y[i] += x[i];
            }
        }
    }
    end(context, thread);
}

/* Rows of all ranks are equally far apart. */
void sl_plain_all_gather(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const int32_t width = op->op->u.all_gather.width, rows = sl_cpu_rows(context, &op->out[0]);
    const float *own = sl_cpu_f32(&op->in[0], 0);
    const int64_t stride = (int64_t)(op->in[0].row_bytes / sizeof(float));
    int32_t first, last;
    if (rows == 0) {
        return;
    }
    if (context->group) {
        show(context, own, thread);
    }
    sl_cpu_share(rows, thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        for (int32_t rank = 0; rank < op->op->u.all_gather.ranks; rank++) {
            const float *from = context->group ? context->group->shown[rank] : own;
            memcpy(sl_cpu_f32(&op->out[0], row) + (int64_t)rank * width, from + row * stride,
                   (size_t)width * sizeof(float));
        }
    }
    if (context->group) {
        end(context, thread);
    }
}
