#define _GNU_SOURCE
#include "base/pool.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/team.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* An op is microseconds long, so whoever waits for the others spins at first, and a run takes all threads. On
 * a machine that others use as well neither holds: the one waited for may not be running at all. Spinning
 * then takes the processor from it, and each meeting of the threads costs a time slice. So a pool measures
 * its runs: how long threads wait for each other, and what the kernel says of their delays. Where processors
 * are short nobody spins beyond the first rounds, and for a while a smaller *team* may make the runs
 * (base/team.h). */
enum {
    FIRST_ROUNDS = 256,        /* without a look at the clock */
    ROUNDS_PER_LOOK = 64,      /* from then on */
    SPIN_NANOSECONDS = 100000, /* at most, before sleeping; a sleep that lasts no longer was not worth it */
    TEAM_BITS = 11,            /* of a word that threads wait for: room for 1024 */
    TEAM_MASK = (1 << TEAM_BITS) - 1,
    MOST_THREADS = 1024,
};

/* What threads wait for: that the word's upper part changes, which counts. The lower one, of TEAM_BITS, says
 * how many threads that is for, or how many are here. It has a cache line of its own, and one word for both,
 * so that a meeting of two threads moves the line there and back and no more. */
typedef struct waiting {
    alignas(64) _Atomic unsigned word;
    _Atomic int sleepers;
    _Atomic bool spins; /* beyond the first rounds: the last sleep was short */
} waiting;

typedef struct worker {
    sl_pool *pool;
    pthread_t thread;
    int index;
    int member;      /* of the run's team */
    int64_t delay;   /* when the team was judged last, or began */
    int64_t delayed; /* since */
} worker;

struct sl_pool {
    int threads;
    int started; /* workers whose thread runs */
    worker *workers;
    sl_pool_function function;
    void *context;
    waiting runs;     /* counts them; below, the team of the last */
    waiting barriers; /* counts them; below, how many threads have come to the next */
    _Atomic int stop;
    cpu_set_t *callers; /* processors that the caller of a run may use meanwhile; NULL: all */
    sl_team team;       /* that makes the next run, or this one; changes between runs */
    /* What runs were like since the team was judged. */
    _Atomic int64_t waited; /* nanoseconds at barriers beyond the first rounds, of all threads */
    int64_t taken;          /* nanoseconds from begin to end */
    bool begins;            /* this run, or the next one, is the team's first: threads look at their delays */
    bool measures;          /* at its end they look how long they were delayed */
    _Atomic bool contended; /* the team's, for all threads */
};

static void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static bool is_later(unsigned word, unsigned seen) {
    return word >> TEAM_BITS != seen >> TEAM_BITS;
}

/* A wait returns at once when *word is not `value` any more; an interrupted one is repeated by the caller's
 * loop. */
static void futex(_Atomic unsigned *word, int operation, unsigned value) {
    syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

static bool has_changed(waiting *w, unsigned seen) {
    return is_later(atomic_load_explicit(&w->word, memory_order_acquire), seen);
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

/* The nanoseconds that it took beyond the first rounds. */
static int64_t wait_for_change(sl_pool *pool, waiting *w, unsigned seen) {
    if (changes_within(w, seen, FIRST_ROUNDS)) {
        return 0;
    }
    const int64_t begin = sl_nanoseconds_now();
    int64_t now = begin;
    if (atomic_load_explicit(&w->spins, memory_order_relaxed) &&
        !atomic_load_explicit(&pool->contended, memory_order_relaxed)) {
        while (now < begin + SPIN_NANOSECONDS) {
            if (changes_within(w, seen, ROUNDS_PER_LOOK)) {
                return now - begin;
            }
            now = sl_nanoseconds_now();
        }
    }
    atomic_fetch_add(&w->sleepers, 1);
    for (unsigned word; !is_later(word = atomic_load(&w->word), seen);) {
        futex(&w->word, FUTEX_WAIT_PRIVATE, word);
    }
    atomic_fetch_sub(&w->sleepers, 1);
    const int64_t end = sl_nanoseconds_now();
    atomic_store_explicit(&w->spins, end - now < SPIN_NANOSECONDS, memory_order_relaxed);
    return end - begin;
}

/* Counts one up from `seen`; the lower part becomes `lower`. */
static void change(waiting *w, unsigned seen, unsigned lower) {
    /* Sequentially consistent, both: whoever counts as a sleeper after this load finds the new word and does
     * not sleep. */
    atomic_store(&w->word, ((seen | TEAM_MASK) + 1) | lower);
    if (atomic_load(&w->sleepers) > 0) {
        futex(&w->word, FUTEX_WAKE_PRIVATE, INT_MAX);
    }
}

void sl_pool_barrier(sl_pool *pool) {
    /* Once the last thread is counted the run may be over, and the next have another team. */
    const int team = pool->team.size;
    if (team == 1) {
        return;
    }
    const unsigned seen = atomic_fetch_add_explicit(&pool->barriers.word, 1, memory_order_acq_rel);
    if ((seen & TEAM_MASK) == (unsigned)team - 1) {
        change(&pool->barriers, seen, 0);
        return;
    }
    const int64_t waited = wait_for_change(pool, &pool->barriers, seen);
    if (waited > 0) {
        atomic_fetch_add_explicit(&pool->waited, waited, memory_order_relaxed);
    }
}

/* Calls the team. */
static void start_run(sl_pool *pool) {
    const unsigned seen = atomic_load_explicit(&pool->runs.word, memory_order_relaxed);
    change(&pool->runs, seen, (unsigned)pool->team.size);
}

/* Nanoseconds that the calling thread was ready to run and had no processor, since it began: the second
 * number of its schedstat (the kernel's scheduler/sched-stats.rst). 0 where the kernel does not count them.
 */
static int64_t delay_of_thread(void) {
    char line[96];
    const int descriptor = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    const ssize_t length = descriptor >= 0 ? read(descriptor, line, sizeof line - 1) : -1;
    if (descriptor >= 0) {
        close(descriptor);
    }
    line[length > 0 ? length : 0] = '\0';
    const char *second = strchr(line, ' ');
    return second ? strtoll(second, NULL, 10) : 0;
}

/* One thread's part of a run. */
static void take_part(sl_pool *pool, worker *self) {
    if (pool->begins) {
        self->delay = delay_of_thread();
    }
    pool->function(pool->context, self->member, pool->team.size);
    if (pool->measures) {
        self->delayed = delay_of_thread() - self->delay;
    }
    sl_pool_barrier(pool);
}

static void *worker_main(void *argument) {
    worker *self = argument;
    sl_pool *pool = self->pool;
    unsigned seen = 0;
    for (;;) {
        wait_for_change(pool, &pool->runs, seen);
        if (atomic_load(&pool->stop)) {
            return NULL;
        }
        /* A run does not end without the members of its team, so that they miss none; others may. */
        seen = atomic_load_explicit(&pool->runs.word, memory_order_acquire);
        self->member = sl_pool_member(pool->threads, self->index, (int)(seen & TEAM_MASK));
        if (self->member >= 0) {
            take_part(pool, self);
        }
    }
}

int sl_pool_create(int threads, sl_pool **out, sl_error *error) {
    *out = NULL;
    if (threads < 1 || threads > MOST_THREADS) {
        return sl_fail(error, SL_ERR_INVALID, "threads: %d is not between 1 and %d", threads, MOST_THREADS);
    }
    sl_pool *pool = sl_alloc_zero(1, sizeof *pool);
    worker *workers = sl_alloc_zero((size_t)threads, sizeof *workers);
    if (!pool || !workers) {
        sl_free(pool);
        sl_free(workers);
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for %d threads", threads);
    }
    pool->threads = threads;
    pool->team = sl_team_begin(threads, sl_cpu_count());
    pool->begins = threads > 1;
    atomic_store(&pool->contended, pool->team.contended);
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
    start_run(pool);
    for (int i = 1; i <= pool->started; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
    sl_free(pool->callers);
    sl_free(pool->workers);
    sl_free(pool);
}

enum { SET_BYTES = SL_CPU_PROCESSORS / 8 };

int sl_pool_bind(sl_pool *pool, const sl_cpu_nodes *nodes, sl_error *error) {
    cpu_set_t *set = sl_alloc(SET_BYTES);
    if (!set) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for the processors of a thread");
    }
    int failed = 0;
    for (int i = pool->threads - 1; i >= 0; i--) {
        const int node = sl_cpu_node_of_thread(nodes, i, pool->threads);
        CPU_ZERO_S(SET_BYTES, set);
        for (int p = 0; p < SL_CPU_PROCESSORS; p++) {
            if (nodes->node_of[p] == node) {
                CPU_SET_S(p, SET_BYTES, set);
            }
        }
        if (i > 0 && !failed) {
            failed = pthread_setaffinity_np(pool->workers[i].thread, SET_BYTES, set);
        }
    }
    if (failed) {
        sl_log(SL_LOG_WARNING, "threads: they cannot be kept on their nodes of memory: %s", strerror(failed));
        sl_free(set);
        return 0;
    }
    pool->callers = set;
    return 0;
}

int sl_pool_threads(const sl_pool *pool) {
    return pool->threads;
}

static void judge(sl_pool *pool, int64_t now) {
    sl_team_seen seen = {.taken = pool->taken,
                         .waited = atomic_load_explicit(&pool->waited, memory_order_relaxed)};
    for (int member = 0; member < pool->team.size; member++) {
        worker *w = &pool->workers[sl_pool_thread_of(pool->threads, member, pool->team.size)];
        sl_team_add_delay(&seen, w->delayed);
        w->delay += w->delayed;
    }
    sl_team_judge(&pool->team, &seen, now);
    atomic_store_explicit(&pool->contended, pool->team.contended, memory_order_relaxed);
}

/* Between runs. Judges when enough has been seen, and tries larger teams. */
static void look_back(sl_pool *pool, int64_t begin, int64_t now) {
    const int size = pool->team.size;
    pool->taken += now - begin;
    bool ends = false;
    if (pool->measures && pool->taken >= SL_TEAM_JUDGED) {
        judge(pool, now);
        ends = true;
    }
    ends = sl_team_try(&pool->team, now) || ends;
    if (ends) {
        atomic_store_explicit(&pool->waited, 0, memory_order_relaxed);
        pool->taken = 0;
    }
    pool->begins = pool->team.size != size;
    /* To look costs a few calls of the system, so that most runs do without. */
    pool->measures =
        pool->team.size > 1 && (pool->taken >= SL_TEAM_JUDGED || sl_team_is_unsettled(&pool->team));
}

/* What a caller may use is its own again when the run is over. */
static void run_on_node(sl_pool *pool) {
    cpu_set_t before[SL_CPU_PROCESSORS / CPU_SETSIZE];
    const bool bound = sched_getaffinity(0, sizeof before, before) == 0 &&
                       sched_setaffinity(0, SET_BYTES, pool->callers) == 0;
    take_part(pool, &pool->workers[0]);
    if (bound) {
        sched_setaffinity(0, sizeof before, before);
    }
}

void sl_pool_run(sl_pool *pool, sl_pool_function function, void *context) {
    pool->function = function;
    pool->context = context;
    const int64_t begin = pool->threads > 1 ? sl_nanoseconds_now() : 0;
    if (pool->team.size > 1) {
        start_run(pool);
    }
    if (pool->callers) {
        run_on_node(pool);
    } else {
        take_part(pool, &pool->workers[0]);
    }
    if (pool->threads > 1) {
        look_back(pool, begin, sl_nanoseconds_now());
    }
}
