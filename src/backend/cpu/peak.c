/* The limits of this processor, measured by the threads that run steps. */
#include "backend/cpu/peak.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum {
    RUNS = 8,
    STREAMS = 4, /* of a thread: one alone does not keep as much memory busy */
    LINE = 64,
    SHARE_MULTIPLE = STREAMS * 4096,
};

/* A buffer to read: twice the last cache, of which this process may have a part only. */
static const uint64_t LEAST_BYTES = 256 << 20, MOST_BYTES = 512 << 20;
static const double RUN_SECONDS = 2e-3; /* of one kind of products */

static const sl_cpu_peak *const tiers[SL_ISA_COUNT] = {
    [SL_ISA_PLAIN] = &sl_cpu_peak_plain,
#if defined(__x86_64__)
    [SL_ISA_AVX2] = &sl_cpu_peak_avx2,
    [SL_ISA_AVXVNNI] = &sl_cpu_peak_avxvnni,
    [SL_ISA_AVX512] = &sl_cpu_peak_avx512,
    [SL_ISA_AMX] = &sl_cpu_peak_amx,
#endif
};

sl_cpu_peak_loop sl_cpu_peak_loop_of(sl_isa isa, sl_arithmetic arithmetic) {
    int tier = (int)isa;
    while (tier > SL_ISA_PLAIN && (!tiers[tier] || !tiers[tier]->loops[arithmetic])) {
        tier--;
    }
    return tiers[tier]->loops[arithmetic];
}

/* ---- products
 * ----------------------------------------------------------------------------------------------- */

typedef struct part {
    _Alignas(LINE) unsigned char sink[SL_CPU_PEAK_SINK];
    double rate;
} part;

typedef struct computing {
    sl_pool *pool;
    sl_cpu_peak_loop loop;
    part *parts; /* of all threads */
    int threads; /* that took part in the last run */
} computing;

static void compute(void *argument, int thread, int threads) {
    computing *c = argument;
    part *own = &c->parts[thread];
    sl_pool_barrier(c->pool);
    const double begin = sl_seconds_now();
    double operations = 0, taken;
    do {
        operations += c->loop(own->sink);
        taken = sl_seconds_now() - begin;
    } while (taken < RUN_SECONDS);
    own->rate = operations / taken;
    if (thread == 0) {
        c->threads = threads;
    }
}

static bool start_computing(computing *c, sl_pool *pool) {
    *c = (computing){.pool = pool};
    c->parts = sl_alloc_zero((size_t)sl_pool_threads(pool), sizeof *c->parts);
    return c->parts != NULL;
}

/* One run more; *best: the best so far, operations a second. */
static void compute_once(computing *c, sl_isa isa, sl_arithmetic arithmetic, double *best) {
    double sum = 0;
    c->loop = sl_cpu_peak_loop_of(isa, arithmetic);
    sl_pool_run(c->pool, compute, c);
    for (int t = 0; t < c->threads; t++) {
        sum += c->parts[t].rate;
    }
    *best = sum > *best ? sum : *best;
}

/* ---- memory
 * ------------------------------------------------------------------------------------------------- */

typedef struct reading {
    sl_pool *pool;
    unsigned char *memory;
    uint64_t bytes;
    double seconds; /* of the last run */
    _Atomic uint64_t sink;
} reading;

/* A whole number of lines for each of the streams; what the last thread's rest would be nobody reads. */
static uint64_t share_of(const reading *r, int threads) {
    return r->bytes / (uint64_t)threads / SHARE_MULTIPLE * SHARE_MULTIPLE;
}

/* By the thread that will read it: it decides where the memory lies. */
static void touch(void *argument, int thread, int threads) {
    reading *r = argument;
    const uint64_t share = share_of(r, threads);
    memset(r->memory + share * (uint64_t)thread, 1, share);
}

static uint64_t read_streams(const unsigned char *memory, uint64_t stream_bytes) {
    uint64_t sums[LINE / sizeof(uint64_t)] = {0}, words[LINE / sizeof(uint64_t)], sum = 0;
    for (uint64_t at = 0; at < stream_bytes; at += LINE) {
        for (int s = 0; s < STREAMS; s++) {
            memcpy(words, memory + (uint64_t)s * stream_bytes + at, LINE);
            for (size_t i = 0; i < LINE / sizeof(uint64_t); i++) {
                sums[i] ^= words[i];
            }
        }
    }
    for (size_t i = 0; i < LINE / sizeof(uint64_t); i++) {
        sum += sums[i];
    }
    return sum;
}

static void read_share(void *argument, int thread, int threads) {
    reading *r = argument;
    const uint64_t share = share_of(r, threads);
    sl_pool_barrier(r->pool);
    const double begin = sl_seconds_now();
    r->sink += read_streams(r->memory + share * (uint64_t)thread, share / STREAMS);
    sl_pool_barrier(r->pool);
    if (thread == 0) {
        r->seconds = (sl_seconds_now() - begin) * ((double)r->bytes / (double)(share * (uint64_t)threads));
    }
}

static uint64_t bytes_to_read(void) {
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const uint64_t twice = cache > 0 ? 2 * (uint64_t)cache : 0;
    return twice < LEAST_BYTES ? LEAST_BYTES : twice > MOST_BYTES ? MOST_BYTES : twice;
}

static void read_once(reading *r, double *best) {
    sl_pool_run(r->pool, read_share, r);
    const double rate = (double)r->bytes / r->seconds;
    *best = rate > *best ? rate : *best;
}

int sl_cpu_peak_rates(sl_pool *pool, sl_isa isa, uint64_t room, sl_rates *rates, sl_error *error) {
    reading r = {.pool = pool, .bytes = bytes_to_read()};
    const bool reads = r.bytes <= room;
    computing c = {.parts = NULL};
    memset(rates, 0, sizeof *rates);
    rates->threads = sl_pool_threads(pool);
    r.memory = reads ? sl_alloc(r.bytes) : NULL;
    if ((reads && !r.memory) || !start_computing(&c, pool)) {
        sl_free(r.memory);
        return sl_fail(error, SL_ERR_NOMEM, "cpu: no memory to measure rates");
    }
    if (reads) {
        sl_alloc_prefer_huge(r.memory, r.bytes); /* as the weights' copies have them */
        sl_pool_run(pool, touch, &r);
    }
    /* In turns: what takes the processors away for a while does not hit one rate alone. */
    for (int run = 0; run < RUNS; run++) {
        for (int a = 0; a < SL_ARITHMETICS; a++) {
            compute_once(&c, isa, (sl_arithmetic)a, &rates->operations[a]);
        }
        if (reads) {
            read_once(&r, &rates->read_bytes);
        }
    }
    sl_free(c.parts);
    sl_free(r.memory);
    return SL_OK;
}
