/* Work by shares: every unit is taken once, whoever is late, and the thread that packed a panel of a weight
 * is the one that reads it while all threads are equally quick. The linears under test are the tiers' own
 * skeleton, with tiles that compute nothing and note who they are. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/cpu.h"
#include "base/pool.h"
#include "plan/plan.h"
#include "unit/program/tiny.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef SL_PANEL
#define SL_PANEL 32
#endif

/* ---- a tier that computes nothing ---- */

#define SL_TIER(name) noting_##name
#define SL_TIER_ISA SL_ISA_PLAIN
#include "backend/cpu/simd_tier.h"
#include "backend/cpu/unroll.h"

#define VN (SL_PANEL / 2)
typedef struct vf {
    float lanes[VN];
} vf;

static vf vf_load_part(const float *from, int count) {
    vf value = {{0}};
    memcpy(value.lanes, from, (size_t)(count < VN ? count : VN) * sizeof *from);
    return value;
}

static vf vf_load(const float *from) {
    return vf_load_part(from, VN);
}

static vf vf_add(vf a, vf b) {
    for (int i = 0; i < VN; i++) {
        a.lanes[i] += b.lanes[i];
    }
    return a;
}

static void vf_store_part(float *to, vf value, int count) {
    memcpy(to, value.lanes, (size_t)(count < VN ? count : VN) * sizeof *to);
}

#if !defined(__x86_64__)
#define _mm_prefetch(address, hint) ((void)(address))
#else
#include <immintrin.h>
#endif

#include "backend/cpu/matmul.h"

static void note_tile(const sl_matmul_part *part);
static void pack_no_row(const sl_matmul_source *source) {
    (void)source;
}

#define TILES note_tile, note_tile, note_tile, note_tile, note_tile, note_tile

/* A batch is one tile, however many rows it has. */
static const sl_matmul_type matmul_types[SL_QTYPE_COUNT] = {[SL_QTYPE_F32] = {.tiles = {TILES, TILES},
                                                                              .pack_row = pack_no_row,
                                                                              .main_rows = 1 << 20,
                                                                              .most_rows = 1 << 20,
                                                                              .few_rows = 1,
                                                                              .chunk = 32,
                                                                              .block = 1,
                                                                              .block_bytes = 4,
                                                                              .group_bytes = 128}};

#include "backend/cpu/matmul_skeleton.h"

/* ---- who does what ----
 *
 * In lock-step: a thread that has done as many panels as its share has waits until all panels are done, so
 * that nobody helps anybody. Where work is handed out in another way some may wait for what never comes, for
 * a while. */

enum { MOST_PANELS = 1 << 14, MOST_THREADS = 16, MOST_OPS = 64 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int threads_known;
static _Thread_local int own_number = -1; /* of the thread, in the order of their first panels */

typedef struct phase {
    int32_t total, done;                          /* panels */
    int32_t due[MOST_THREADS], did[MOST_THREADS]; /* of each thread, by its number in the pool */
} phase;

typedef struct noted {
    const unsigned char *panel;
    int packer, reader, reads;
    int32_t share;
    bool wrong; /* it was read by one whose share it is not */
} noted;

static struct {
    int32_t threads;
    noted panels[MOST_PANELS];
    int32_t panel_count;
    bool is_sorted;
    phase packing;
    const sl_cpu_op *ops[MOST_OPS];
    phase reading[MOST_OPS];
    int32_t op_count;
    int32_t smallest_team;
    bool unknown;  /* a tile was given what nobody has packed */
    bool is_stuck; /* all waited for panels that never came */
} notes;

/* Of the thread that runs, while a linear runs. */
static _Thread_local phase *current;
static _Thread_local int current_member, current_team;

static int number_of_thread(void) {
    own_number = own_number < 0 ? threads_known++ : own_number;
    return own_number;
}

/* With the mutex: when the thread has done what is due, until all is done. */
static void wait_for_all(const phase *phase, int thread) {
    enum { SECONDS = 120 };
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += SECONDS;
    while (phase->did[thread] >= phase->due[thread] && phase->done < phase->total && !notes.is_stuck) {
        notes.is_stuck = pthread_cond_timedwait(&changed, &mutex, &end) != 0;
    }
}

static void count_panel(phase *phase, int thread) {
    phase->did[thread]++;
    phase->done++;
    pthread_cond_broadcast(&changed);
    wait_for_all(phase, thread);
}

static int32_t share_of_row(int32_t rows, int32_t row) {
    int32_t share = 0, first, last;
    for (;; share++) {
        sl_cpu_share_rows(rows, share, notes.threads, &first, &last);
        if (row < last) {
            return share;
        }
    }
}

static int32_t panels_of_rows(int32_t first, int32_t last) {
    return (last + SL_PANEL - 1) / SL_PANEL - first / SL_PANEL;
}

/* What is due from each share of one matrix. */
static void add_due(phase *phase, int32_t rows, int32_t times) {
    for (int32_t share = 0; share < notes.threads; share++) {
        int32_t first, last;
        sl_cpu_share_rows(rows, share, notes.threads, &first, &last);
        phase->due[share] += times * panels_of_rows(first, last);
        phase->total += times * panels_of_rows(first, last);
    }
}

static _Thread_local int32_t own_share = SL_NONE; /* while packing: that of the first panel */

static void note_pack(const sl_weight *weight, void *packed, int32_t first, int32_t count) {
    const uint64_t panel_bytes = (uint64_t)weight->columns * 4 * SL_PANEL;
    pthread_mutex_lock(&mutex);
    const int32_t share = share_of_row(weight->rows, first);
    own_share = own_share == SL_NONE ? share : own_share;
    for (int32_t row = first; row < first + count; row += SL_PANEL) {
        if (notes.panel_count < MOST_PANELS) {
            notes.panels[notes.panel_count++] =
                (noted){.panel = (unsigned char *)packed + (uint64_t)(row / SL_PANEL) * panel_bytes,
                        .packer = number_of_thread(),
                        .reader = -1,
                        .share = share};
        }
        count_panel(&notes.packing, own_share);
    }
    pthread_mutex_unlock(&mutex);
}

static int compare_panels(const void *a, const void *b) {
    const unsigned char *x = ((const noted *)a)->panel, *y = ((const noted *)b)->panel;
    return x < y ? -1 : x > y;
}

static noted *find_panel(const unsigned char *panel) {
    const noted key = {.panel = panel};
    if (!notes.is_sorted) {
        qsort(notes.panels, (size_t)notes.panel_count, sizeof key, compare_panels);
        notes.is_sorted = true;
    }
    return bsearch(&key, notes.panels, (size_t)notes.panel_count, sizeof key, compare_panels);
}

/* Whether the share is one that the member of the team begins with. */
static bool has_share(int32_t share, int member, int team) {
    int32_t first, last;
    sl_cpu_share(notes.threads, member, team, &first, &last);
    return share >= first && share < last;
}

static void note_tile(const sl_matmul_part *part) {
    if (!part->first) {
        return;
    }
    memset(part->sums, 0, (size_t)part->rows * SL_PANEL * sizeof *part->sums);
    pthread_mutex_lock(&mutex);
    noted *panel = find_panel(part->weights);
    if (panel) {
        panel->wrong = panel->wrong || !has_share(panel->share, current_member, current_team);
        panel->reader = number_of_thread();
        panel->reads++;
    }
    notes.unknown = notes.unknown || !panel;
    count_panel(current, current_member);
    pthread_mutex_unlock(&mutex);
}

/* What is due from each thread of this run. */
static phase *begin_phase(const sl_cpu_context *context, const sl_cpu_op *op, int threads) {
    for (int32_t i = 0; i < notes.op_count; i++) {
        if (notes.ops[i] == op) {
            return &notes.reading[i];
        }
    }
    phase all = {0}, *phase = &notes.reading[notes.op_count];
    int32_t active = 0;
    for (int32_t b = 0; b < sl_cpu_batch_count(op); b++) {
        active += sl_cpu_batch_at(context, op, b).count > 0;
    }
    for (int32_t s = 0; s < op->weight_count; s++) {
        add_due(&all, op->weights[s].rows, active);
    }
    memset(phase, 0, sizeof *phase);
    phase->total = all.total;
    for (int32_t share = 0; share < notes.threads; share++) {
        for (int member = 0; member < threads; member++) {
            phase->due[member] += has_share(share, member, threads) ? all.due[share] : 0;
        }
    }
    notes.ops[notes.op_count++] = op;
    notes.smallest_team = threads < notes.smallest_team ? threads : notes.smallest_team;
    return phase;
}

static void note_linear(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    pthread_mutex_lock(&mutex);
    phase *phase = begin_phase(context, op, threads);
    wait_for_all(phase, thread);
    pthread_mutex_unlock(&mutex);
    current = phase;
    current_member = thread;
    current_team = threads;
    noting_linear(context, op, thread, threads);
}

/* ---- a backend whose linears are these ---- */

#define JOINED(a, b) a##b
#define OF_PANEL(name, panel) JOINED(name, panel)

static const sl_cpu_kernel noting = {.kernel = {.name = "linear/f32/noting",
                                                .op = SL_OP_LINEAR,
                                                .numeric_class = "nothing",
                                                .activation = SL_VALUE_F32,
                                                .batched = true,
                                                .declines = noting_linear_declines,
                                                .packed_bytes = OF_PANEL(sl_matmul_packed_bytes_, SL_PANEL),
                                                .pack = note_pack,
                                                .workspace = noting_linear_workspace},
                                     .isa = SL_ISA_PLAIN,
                                     .weight_type = SL_QTYPE_F32,
                                     .run = note_linear};

static const sl_kernel *const *noting_kernels(const sl_backend *backend, int32_t *count) {
    static const sl_kernel *kernels[SL_CPU_KERNELS_MAX + 1];
    const sl_kernel *all[SL_CPU_KERNELS_MAX];
    const int32_t all_count = sl_cpu_registry(all);
    (void)backend;
    *count = 0;
    kernels[(*count)++] = &noting.kernel;
    for (int32_t i = 0; i < all_count; i++) {
        if (all[i]->op != SL_OP_LINEAR) {
            kernels[(*count)++] = all[i];
        }
    }
    return kernels;
}

/* ---- a program with linears of many shapes ---- */

enum { ROWS = 9, SEGMENTS = 3 };

/* Fewer units than threads; odd ends; so many that each thread has units of four panels. */
static const int32_t shapes[][SEGMENTS] = {
    {1, 0, 0},     {32, 0, 0},      {33, 31, 64}, {96, 0, 0},      {1000, 40, 7},
    {640, 320, 1}, {2048, 96, 160}, {4097, 0, 0}, {6400, 6400, 0},
};

static void add_linear(sl_program *p, const char *name, const int32_t outputs[SEGMENTS], int32_t x,
                       const sl_op *router) {
    int32_t width = 0, column = 0;
    for (int s = 0; s < SEGMENTS; s++) {
        width += outputs[s];
    }
    const int32_t y = sl_program_value(p, name, router ? SL_ROWS_EXPERT : SL_ROWS_STEP, width);
    const int32_t ids = router ? router->out[0].value : SL_NONE;
    const int32_t schedule = router ? router->out[2].value : SL_NONE;
    sl_op *op = tiny_op(p, SL_OP_LINEAR, 1, x, y);
    op->in[1].value = ids;
    op->in[2].value = schedule;
    for (int s = 0; s < SEGMENTS && outputs[s]; column += outputs[s++]) {
        tiny_segment(op, tiny_matrix(p, name, SL_QTYPE_F32, router ? 4 : 1, outputs[s], TINY_WIDTH), SL_NONE,
                     column);
    }
}

static void build(sl_program *p) {
    static char names[2 * sizeof shapes / sizeof *shapes][16];
    const int32_t count = (int32_t)(sizeof shapes / sizeof *shapes);
    memset(p, 0, sizeof *p);
    p->name = "shapes";
    p->width = TINY_WIDTH;
    p->vocabulary = TINY_VOCABULARY;
    p->experts = 4;
    p->experts_used = 2;
    const int32_t hidden = sl_program_value(p, "hidden", SL_ROWS_STEP, TINY_WIDTH);
    const int32_t normed = sl_program_value(p, "normed", SL_ROWS_STEP, TINY_WIDTH);
    const int32_t table = tiny_matrix(p, "table", SL_QTYPE_F32, 1, TINY_VOCABULARY, TINY_WIDTH);
    const tiny_types types = {SL_QTYPE_F32, SL_QTYPE_F32, SL_QTYPE_F32, SL_QTYPE_F32};
    tiny_op(p, SL_OP_BEGIN, SL_NONE, SL_NONE, SL_NONE);
    tiny_op(p, SL_OP_EMBED, SL_NONE, SL_NONE, hidden)->u.embed = (sl_op_embed){.weight = table, .scale = 1};
    tiny_experts(p, &types, hidden, normed);
    const sl_op router = *tiny_find(p, SL_OP_ROUTER, 0);
    for (int32_t i = 0; i < 2 * count; i++) {
        snprintf(names[i], sizeof names[i], "y%d", (int)i);
        add_linear(p, names[i], shapes[i % count], normed, i < count ? NULL : &router);
    }
    tiny_head(p, hidden, table);
    tiny_op(p, SL_OP_SAMPLE, SL_NONE, p->logits, p->tokens)->u.sample.vocabulary = TINY_VOCABULARY;
    for (int32_t w = 0; w < p->weight_count; w++) {
        p->weights[w].data = calloc(1, p->weights[w].bytes);
        assert_non_null(p->weights[w].data);
    }
}

static void submit_rows(sl_backend *backend, sl_executor *executor, const sl_plan *plan, int32_t rows) {
    const sl_step_layout *layout = &plan->deployment.step;
    void *block = backend->functions->step_block(executor);
    sl_step_header *header = sl_step_head(block);
    sl_error error = {0};
    memset(header, 0, sizeof *header);
    sl_step_spans(layout, block)[header->spans++] = (sl_step_span){.row_count = rows, .state_read = SL_NONE};
    for (int32_t i = 0; i < rows; i++) {
        sl_step_rows(layout, block)[header->rows++] = (sl_step_row){SL_ROW_TOKEN, 7 * i, i, 0};
    }
    sl_step_outputs(layout, block)[header->outputs++] =
        (sl_step_output){.row = rows - 1, .slot = 0, .mask = SL_NONE};
    if (backend->functions->submit(executor, sl_plan_bucket(plan, header), &error)) {
        fail_msg("%s", error.message);
    }
}

static void check_notes(int32_t rows) {
    int32_t read = 0;
    assert_false(notes.unknown);
    assert_false(notes.is_stuck);
    for (int32_t i = 0; i < notes.panel_count; i++) {
        const noted *panel = &notes.panels[i];
        if (panel->wrong || (panel->reads && panel->packer != panel->reader)) {
            fail_msg("%d rows, %d threads: panel %d, of share %d, was packed by thread %d and read by %d",
                     rows, notes.threads, i, panel->share, panel->packer, panel->reader);
        }
        assert_in_range(panel->reads, 0, 1);
        read += panel->reads;
    }
    int32_t due = 0;
    for (int32_t i = 0; i < notes.op_count; i++) {
        assert_int_equal(notes.reading[i].done, notes.reading[i].total);
        due += notes.reading[i].total;
    }
    assert_int_equal(read, due);
    assert_true(due > 500);
}

/* One step behind the packing, which all threads make: a smaller team comes later. */
static void pack_and_read(int32_t threads, int32_t rows) {
    const sl_backend_options options = {.threads = threads};
    const sl_plan_options plan_options = {.chunk = ROWS, .sequences = 1, .context = 64, .outputs = 1};
    static sl_program program;
    sl_backend *cpu;
    sl_plan *plan;
    sl_executor *executor = NULL;
    sl_error error = {0};
    memset(&notes, 0, sizeof notes);
    notes.threads = notes.smallest_team = threads;
    build(&program);
    assert_int_equal(sl_program_check(&program, &error), 0);
    assert_int_equal(sl_cpu_backend_create(&options, &cpu, &error), 0);
    sl_backend backend = *cpu;
    sl_backend_functions functions = *cpu->functions;
    functions.kernels = noting_kernels;
    functions.fusions = NULL;
    backend.functions = &functions;
    if (sl_plan_create(&program, &backend, &plan_options, &plan, &error)) {
        fail_msg("%s", error.message);
    }
    for (int32_t u = 0; u < plan->deployment.weight_count; u++) {
        const sl_weight_use *use = &plan->deployment.weights[u];
        if (use->layout == &noting.kernel) {
            add_due(&notes.packing, program.weights[use->weight].rows, program.weights[use->weight].experts);
        }
    }
    own_share = SL_NONE; /* the calling thread's, of the pool before */
    if (backend.functions->deploy(&backend, &plan->deployment, NULL, &executor, &error)) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(notes.packing.done, notes.packing.total);
    assert_int_equal(notes.panel_count, notes.packing.total);
    submit_rows(&backend, executor, plan, rows);
    assert_int_equal(notes.smallest_team, threads);
    check_notes(rows);
    backend.functions->destroy_executor(executor);
    sl_plan_destroy(plan);
    sl_backend_close(cpu);
    for (int32_t w = 0; w < program.weight_count; w++) {
        free((void *)(uintptr_t)program.weights[w].data);
    }
    sl_program_free(&program);
}

static void readers_are_packers(void **state) {
    static const int32_t threads[] = {1, 2, 3, 5, 8, MOST_THREADS};
    (void)state;
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        pack_and_read(threads[i], 1);
        pack_and_read(threads[i], ROWS);
    }
}

/* ---- shares and units ---- */

static void shares_cover_every_row_once(void **state) {
    static const int32_t rows[] = {1, 31, 32, 33, 64, 1000, 4096, 151936, INT32_MAX - 64};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int32_t shares = 1; shares <= 130; shares++) {
            int32_t end = 0;
            for (int32_t share = 0; share < shares; share++) {
                int32_t first, last;
                sl_cpu_share_rows(rows[i], share, shares, &first, &last);
                assert_int_equal(first >= last ? end : first, end);
                assert_true(first >= last || first % SL_CPU_PACK_ROWS == 0);
                end = first >= last ? end : last;
            }
            assert_int_equal(end, rows[i]);
        }
    }
}

/* A team's members begin with the shares of the threads that they are, and have all shares among them. */
static void a_smaller_team_has_all_shares(void **state) {
    (void)state;
    for (int threads = 1; threads <= 70; threads++) {
        for (int team = 1; team <= threads; team++) {
            int32_t next = 0;
            for (int member = 0; member < team; member++) {
                const sl_cpu_taking taking = sl_cpu_taking_of(NULL, NULL, threads, member, team);
                assert_int_equal(taking.first, next);
                assert_int_equal(taking.first, sl_pool_thread_of(threads, member, team));
                assert_true(taking.own > 0);
                next += taking.own;
            }
            assert_int_equal(next, threads);
            int members = 0;
            for (int thread = 0; thread < threads; thread++) {
                const int member = sl_pool_member(threads, thread, team);
                members += member >= 0;
                assert_true(member < 0 || sl_pool_thread_of(threads, member, team) == thread);
            }
            assert_int_equal(members, team);
        }
    }
}

enum { SHARES = 12, MOST_UNITS = 40, ROUNDS = 300 };

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

typedef struct races {
    sl_pool *pool;
    sl_cpu_taken taken[2][SHARES];
    _Atomic int32_t ended[ROUNDS];
    int32_t units[ROUNDS][SHARES];
    _Atomic int32_t given[ROUNDS][SHARES][MOST_UNITS];
    _Atomic bool outside;
} races;

/* As an op does it, with others late by chance: as many rounds as there are, and two sets of counts. */
static void take_units(void *context, int thread, int threads) {
    races *r = context;
    uint64_t random = 77 + (uint64_t)thread;
    for (int round = 0; round < ROUNDS; round++) {
        sl_cpu_taken *taken = r->taken[round % 2], *next = r->taken[(round + 1) % 2];
        for (int share = thread; share < SHARES; share += threads) {
            atomic_store_explicit(&next[share].asked, 0, memory_order_relaxed);
        }
        sl_cpu_taking taking = sl_cpu_taking_of(taken, &r->ended[round], SHARES, thread, threads);
        while (sl_cpu_next_share(&taking)) {
            const int32_t units = r->units[round][taking.share];
            for (int32_t unit; (unit = sl_cpu_next_unit(&taking, units)) >= 0;) {
                if (unit >= units) {
                    atomic_store(&r->outside, true);
                } else {
                    atomic_fetch_add(&r->given[round][taking.share][unit], 1);
                }
                for (volatile uint64_t i = next_random(&random) % 200; i > 0; i--) {
                }
                if (next_random(&random) % 64 == 0) {
                    sched_yield();
                }
            }
        }
        sl_pool_barrier(r->pool);
    }
}

static void units_are_taken_once(void **state) {
    static races r;
    uint64_t random = 5;
    sl_error error;
    (void)state;
    for (int threads = 1; threads <= SHARES; threads += threads < 4 ? 1 : 4) {
        memset(&r, 0, sizeof r);
        for (int i = 0; i < ROUNDS * SHARES; i++) {
            const int32_t units = (int32_t)(next_random(&random) % (2 * MOST_UNITS));
            r.units[i / SHARES][i % SHARES] = units < MOST_UNITS ? units : 0;
        }
        assert_int_equal(sl_pool_create(threads, &r.pool, &error), 0);
        sl_pool_run(r.pool, take_units, &r);
        sl_pool_destroy(r.pool);
        assert_false(r.outside);
        for (int round = 0; round < ROUNDS; round++) {
            assert_in_range(r.ended[round], 0, SHARES);
            for (int share = 0; share < SHARES; share++) {
                for (int unit = 0; unit < MOST_UNITS; unit++) {
                    assert_int_equal(r.given[round][share][unit], unit < r.units[round][share]);
                }
            }
        }
    }
}

/* Whoever is alone does everything: its own shares from their front, and then the others' from their end. */
static void one_takes_what_others_leave(void **state) {
    (void)state;
    for (int team = 1; team <= SHARES; team++) {
        for (int member = 0; member < team; member++) {
            sl_cpu_taken taken[SHARES] = {{0}};
            _Atomic int32_t ended = 0;
            sl_cpu_taking taking = sl_cpu_taking_of(taken, &ended, SHARES, member, team);
            int32_t all = 0, own = 0;
            while (sl_cpu_next_share(&taking)) {
                const int32_t units = 3 * taking.share;
                assert_int_equal(taking.helps,
                                 taking.share < taking.first || taking.share >= taking.first + taking.own);
                assert_true(own == taking.visited - 1 || taking.helps);
                for (int32_t unit, i = 0; (unit = sl_cpu_next_unit(&taking, units)) >= 0; i++, all++) {
                    assert_int_equal(unit, taking.helps ? units - 1 - i : i);
                }
                own += !taking.helps;
            }
            assert_int_equal(own, taking.own);
            assert_int_equal(all, 3 * SHARES * (SHARES - 1) / 2);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_cover_every_row_once), cmocka_unit_test(a_smaller_team_has_all_shares),
        cmocka_unit_test(one_takes_what_others_leave), cmocka_unit_test(units_are_taken_once),
        cmocka_unit_test(readers_are_packers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
