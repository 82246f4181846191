#define _GNU_SOURCE
#include "base/pool.h"

#include "base/alloc.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* An op is microseconds long, so whoever waits for the others spins at first. But on a shared machine the
 * one waited for may not be running at all, and spinning then takes the processor from it: after the first
 * rounds a thread spins on only while that pays, as the last wait that ended in sleep tells (see `waiting`).
 */
enum {
    FIRST_ROUNDS = 256,        /* without a look at the clock */
    ROUNDS_PER_LOOK = 64,      /* from then on */
    SPIN_NANOSECONDS = 100000, /* at most, before sleeping; a sleep that lasts no longer was not worth it */
};

/* A word that threads wait to see changed. */
typedef struct waiting {
    _Atomic unsigned word;
    _Atomic int sleepers;
    _Atomic bool spins; /* beyond the first rounds: the last sleep was short */
} waiting;

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
    waiting runs; /* the word counts them */
    _Atomic int stop;
    _Atomic int barrier_count;
    waiting barriers; /* the word counts them */
};

static void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int64_t nanoseconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* A wait returns at once when *word is not `value` any more; an interrupted one is repeated by the caller's
 * loop. */
static void futex(_Atomic unsigned *word, int operation, unsigned value) {
    syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

static bool has_changed(waiting *w, unsigned seen) {
    return atomic_load_explicit(&w->word, memory_order_acquire) != seen;
}

static bool changes_within(waiting *w, unsigned seen, int rounds) {
    for (int round = 0; round < rounds; round++) {
        if (has_changed(w, seen)) {
            return true;
        }
        cpu_relax();
    }
    return false;
}

static void wait_for_change(waiting *w, unsigned seen) {
    if (changes_within(w, seen, FIRST_ROUNDS)) {
        return;
    }
    int64_t begin = nanoseconds_now();
    if (atomic_load_explicit(&w->spins, memory_order_relaxed)) {
        const int64_t end = begin + SPIN_NANOSECONDS;
        while (begin < end) {
            if (changes_within(w, seen, ROUNDS_PER_LOOK)) {
                return;
            }
            begin = nanoseconds_now();
        }
    }
    atomic_fetch_add(&w->sleepers, 1);
    while (!has_changed(w, seen)) {
        futex(&w->word, FUTEX_WAIT_PRIVATE, seen);
    }
    atomic_fetch_sub(&w->sleepers, 1);
    atomic_store_explicit(&w->spins, nanoseconds_now() - begin < SPIN_NANOSECONDS, memory_order_relaxed);
}

static void change(waiting *w) {
    /* Sequentially consistent, both: whoever counts as a sleeper after this load finds the new word and does
     * not sleep. */
    atomic_fetch_add(&w->word, 1);
    if (atomic_load(&w->sleepers) > 0) {
        futex(&w->word, FUTEX_WAKE_PRIVATE, INT_MAX);
    }
}

void sl_pool_barrier(sl_pool *pool) {
    if (pool->threads == 1) {
        return;
    }
    const unsigned seen = atomic_load_explicit(&pool->barriers.word, memory_order_acquire);
    if (atomic_fetch_add_explicit(&pool->barrier_count, 1, memory_order_acq_rel) == pool->threads - 1) {
        atomic_store_explicit(&pool->barrier_count, 0, memory_order_relaxed);
        change(&pool->barriers);
    } else {
        wait_for_change(&pool->barriers, seen);
    }
}

static void *worker_main(void *argument) {
    worker *self = argument;
    sl_pool *pool = self->pool;
    unsigned seen = 0;
    for (;; seen++) {
        wait_for_change(&pool->runs, seen);
        if (atomic_load(&pool->stop)) {
            return NULL;
        }
        pool->function(pool->context, self->index, pool->threads);
        sl_pool_barrier(pool);
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
    change(&pool->runs);
    for (int i = 1; i <= pool->started; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
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
        change(&pool->runs);
    }
    function(context, 0, pool->threads);
    sl_pool_barrier(pool);
}
