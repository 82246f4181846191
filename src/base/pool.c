#define _GNU_SOURCE
#include "base/pool.h"

#include "base/alloc.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Spin this often before giving the processor away, and that often before sleeping: an op is microseconds
 * long, but on a shared machine the other thread may not be running at all. */
enum { SPIN_ROUNDS = 2000, YIELD_ROUNDS = 200 };

typedef struct worker {
    sl_pool *pool;
    pthread_t thread;
    int index;
} worker;

struct sl_pool {
    int threads;
    int started; /* workers whose thread runs */
    worker *workers;
    sl_pool_function function;
    void *context;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    _Atomic unsigned generation; /* raised once per run */
    _Atomic int stop;
    _Atomic int sleepers;
    _Atomic int barrier_count;
    _Atomic unsigned barrier_phase;
    _Atomic int barrier_sleepers;
};

static void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* A wait returns at once when *word is not `value` any more; an interrupted one is repeated by the caller's
 * loop. */
static void futex(_Atomic unsigned *word, int operation, unsigned value) {
    syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

void sl_pool_barrier(sl_pool *pool) {
    if (pool->threads == 1) {
        return;
    }
    unsigned phase = atomic_load_explicit(&pool->barrier_phase, memory_order_acquire);
    if (atomic_fetch_add_explicit(&pool->barrier_count, 1, memory_order_acq_rel) == pool->threads - 1) {
        atomic_store_explicit(&pool->barrier_count, 0, memory_order_relaxed);
        /* Sequentially consistent, both: whoever counts as a sleeper after this load finds the new phase and
         * does not sleep. */
        atomic_store(&pool->barrier_phase, phase + 1);
        if (atomic_load(&pool->barrier_sleepers) > 0) {
            futex(&pool->barrier_phase, FUTEX_WAKE_PRIVATE, INT_MAX);
        }
        return;
    }
    for (int round = 0; atomic_load_explicit(&pool->barrier_phase, memory_order_acquire) == phase; round++) {
        if (round < SPIN_ROUNDS) {
            cpu_relax();
        } else if (round < SPIN_ROUNDS + YIELD_ROUNDS) {
            sched_yield();
        } else {
            atomic_fetch_add(&pool->barrier_sleepers, 1);
            futex(&pool->barrier_phase, FUTEX_WAIT_PRIVATE, phase);
            atomic_fetch_sub(&pool->barrier_sleepers, 1);
        }
    }
}

/* Waits for a generation after `seen`; returns it. */
static unsigned wait_for_work(sl_pool *pool, unsigned seen) {
    unsigned now;
    for (int round = 0; (now = atomic_load_explicit(&pool->generation, memory_order_acquire)) == seen;
         round++) {
        if (round < SPIN_ROUNDS) {
            cpu_relax();
        } else if (round < SPIN_ROUNDS + YIELD_ROUNDS) {
            sched_yield();
        } else {
            pthread_mutex_lock(&pool->mutex);
            atomic_fetch_add(&pool->sleepers, 1);
            while (atomic_load(&pool->generation) == seen) {
                pthread_cond_wait(&pool->wake, &pool->mutex);
            }
            atomic_fetch_sub(&pool->sleepers, 1);
            pthread_mutex_unlock(&pool->mutex);
        }
    }
    return now;
}

static void *worker_main(void *argument) {
    worker *self = argument;
    sl_pool *pool = self->pool;
    unsigned seen = 0;
    for (;;) {
        seen = wait_for_work(pool, seen);
        if (atomic_load(&pool->stop)) {
            return NULL;
        }
        pool->function(pool->context, self->index, pool->threads);
        sl_pool_barrier(pool);
    }
}

static void release_workers(sl_pool *pool) {
    atomic_fetch_add(&pool->generation, 1);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
}

int sl_pool_create(int threads, sl_pool **out, sl_error *error) {
    *out = NULL;
    if (threads < 1 || threads > 1024) {
        return sl_fail(error, SL_ERR_INVALID, "threads: %d is not between 1 and 1024", threads);
    }
    sl_pool *pool = sl_alloc_zero(1, sizeof *pool);
    worker *workers = sl_alloc_zero((size_t)threads, sizeof *workers);
    if (!pool || !workers) {
        sl_free(pool);
        sl_free(workers);
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for %d threads", threads);
    }
    pool->threads = threads;
    pool->workers = workers;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    for (int i = 1; i < threads; i++) {
        workers[i].pool = pool;
        workers[i].index = i;
        int failed = pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]);
        if (failed) {
            sl_pool_destroy(pool);
            return sl_fail(error, SL_ERR_NOMEM, "cannot start thread %d of %d: %s", i + 1, threads,
                           strerror(failed));
        }
        pool->started++;
    }
    *out = pool;
    return 0;
}

void sl_pool_destroy(sl_pool *pool) {
    if (!pool) {
        return;
    }
    atomic_store(&pool->stop, 1);
    release_workers(pool);
    for (int i = 1; i <= pool->started; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    sl_free(pool->workers);
    sl_free(pool);
}

int sl_pool_threads(const sl_pool *pool) {
    return pool->threads;
}

void sl_pool_run(sl_pool *pool, sl_pool_function function, void *context) {
    pool->function = function;
    pool->context = context;
    if (pool->threads > 1) {
        release_workers(pool);
    }
    function(context, 0, pool->threads);
    sl_pool_barrier(pool);
}
