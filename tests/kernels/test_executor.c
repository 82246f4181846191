/* The CPU executor under a real plan, with a program that has every kind of op in it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/cpu.h"
#include "base/log.h"
#include "plan/plan.h"
#include "unit/program/tiny.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 3, LENGTH = 150 };

/* ---- a model with numbers in it ---- */

static uint64_t random_state;

static float random_float(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(random_state >> 40) * 0x1p-23f - 1.0f;
}

static void fill_weights(sl_program *program) {
    random_state = 17;
    for (int32_t w = 0; w < program->weight_count; w++) {
        sl_weight *weight = &program->weights[w];
        const uint64_t count = (uint64_t)weight->experts * (uint64_t)weight->rows * (uint64_t)weight->columns;
        float *values = malloc(count * sizeof *values);
        void *data = malloc(weight->bytes);
        assert_non_null(values);
        assert_non_null(data);
        for (uint64_t i = 0; i < count; i++) {
            values[i] = weight->rows == 1 && weight->experts == 1 ? 1.0f + 0.3f * random_float()
                                                                  : 0.3f * random_float();
        }
        sl_qtype_get(weight->type)->encode(values, data, count);
        free(values);
        weight->data = data;
    }
}

typedef struct engine {
    sl_program program;
    sl_backend *backend;
    sl_plan *plan;
    sl_executor *executor;
    int32_t tokens[SLOTS][LENGTH];
    int32_t done[SLOTS], state[SLOTS];
    bool has_pages[SLOTS];
    float logits[SLOTS][LENGTH][TINY_VOCABULARY];
    int32_t sampled[SLOTS];
} engine;

static void open_engine(engine *e, sl_isa isa, int32_t threads, sl_qtype weights, sl_qtype cache) {
    const sl_backend_options options = {.isa = isa, .threads = threads};
    const sl_plan_options plan = {.chunk = SLOTS * LENGTH,
                                  .sequences = SLOTS,
                                  .context = 192,
                                  .outputs = SLOTS * LENGTH,
                                  .cache_type = cache};
    sl_error error = {0};
    memset(e, 0, sizeof *e);
    tiny_build(&e->program, &(tiny_types){weights, SL_QTYPE_F16, weights, weights});
    fill_weights(&e->program);
    assert_int_equal(sl_program_check(&e->program, &error), 0);
    assert_int_equal(sl_cpu_backend_create(&options, &e->backend, &error), 0);
    if (sl_plan_create(&e->program, e->backend, &plan, &e->plan, &error)) {
        fail_msg("%s", error.message);
    }
    for (int s = 0; s < SLOTS; s++) {
        for (int i = 0; i < LENGTH; i++) {
            e->tokens[s][i] = (s * 31 + i * i * 7) % TINY_VOCABULARY;
        }
    }
}

static void start(engine *e) {
    sl_error error = {0};
    if (e->backend->functions->deploy(e->backend, &e->plan->deployment, NULL, &e->executor, &error)) {
        fail_msg("%s", error.message);
    }
}

static void close_engine(engine *e) {
    if (e->executor) {
        e->backend->functions->destroy_executor(e->executor);
    }
    sl_plan_destroy(e->plan);
    sl_backend_close(e->backend);
    for (int32_t w = 0; w < e->program.weight_count; w++) {
        free((void *)(uintptr_t)e->program.weights[w].data);
    }
    sl_program_free(&e->program);
}

/* counts[s] more rows of each sequence, all with outputs; `generate`: the token is the one sampled last. */
static void fill_step(engine *e, const int32_t counts[SLOTS], bool generate) {
    const sl_step_layout *layout = &e->plan->deployment.step;
    void *block = e->backend->functions->step_block(e->executor);
    sl_step_header *header = sl_step_head(block);
    memset(header, 0, sizeof *header);
    header->want_logits = 1;
    for (int s = 0; s < SLOTS; s++) {
        if (counts[s] == 0) {
            continue;
        }
        sl_step_span span = {.slot = s, .first_row = header->rows, .row_count = counts[s]};
        span.state_read = e->done[s] ? 2 * s + e->state[s] : SL_NONE;
        span.state_first = header->spans;
        span.state_count = 1;
        sl_step_states(layout, block)[header->spans] = 2 * s + !e->state[s];
        span.length[0] = e->done[s];
        for (int32_t page = 0; !e->has_pages[s] && page < 3; page++) {
            sl_step_table_changes(layout, block)[header->table_changes++] =
                (sl_table_change){0, s, page, 3 * page + s};
        }
        e->has_pages[s] = true;
        for (int32_t i = 0; i < counts[s]; i++) {
            const int32_t position = e->done[s] + i;
            sl_step_rows(layout, block)[header->rows] = (sl_step_row){
                generate ? SL_ROW_LAST_TOKEN : SL_ROW_TOKEN, e->tokens[s][position], position, header->spans};
            sl_step_outputs(layout, block)[header->outputs++] =
                (sl_step_output){.row = header->rows++, .slot = s, .mask = SL_NONE};
        }
        sl_step_spans(layout, block)[header->spans++] = span;
    }
}

static void run_step(engine *e, const int32_t counts[SLOTS], bool generate) {
    const sl_backend_functions *f = e->backend->functions;
    sl_error error = {0};
    fill_step(e, counts, generate);
    const sl_step_header *header = sl_step_head(f->step_block(e->executor));
    const int32_t bucket = sl_plan_bucket(e->plan, header);
    if (f->submit(e->executor, bucket, &error) || f->wait(e->executor, &error)) {
        fail_msg("%s", error.message);
    }
    int32_t output = 0;
    for (int s = 0; s < SLOTS; s++) {
        for (int32_t i = 0; i < counts[s]; i++, output++) {
            memcpy(e->logits[s][e->done[s] + i], f->logits(e->executor) + output * TINY_VOCABULARY,
                   TINY_VOCABULARY * sizeof(float));
            e->sampled[s] = f->tokens(e->executor)[output];
        }
        e->state[s] ^= counts[s] > 0;
        e->done[s] += counts[s];
    }
}

static void rewind_all(engine *e) {
    memset(e->done, 0, sizeof e->done);
    memset(e->logits, 0, sizeof e->logits);
}

/* ---- tests ---- */

typedef enum cut { WHOLE, ROW_BY_ROW, CHUNKS } cut;

static void run_all(engine *e, const int32_t all[SLOTS], cut way) {
    rewind_all(e);
    random_state = 5;
    while (e->done[0] < all[0] || e->done[1] < all[1] || e->done[2] < all[2]) {
        int32_t counts[SLOTS] = {0}, sum = 0;
        for (int s = 0; s < SLOTS; s++) {
            const int32_t left = all[s] - e->done[s];
            const int32_t most = way == WHOLE        ? left
                                 : way == ROW_BY_ROW ? sum == 0
                                                     : (int32_t)(fabsf(random_float()) * 50.0f);
            counts[s] = most < left ? most : left;
            sum += counts[s];
        }
        if (sum) {
            run_step(e, counts, false);
        }
    }
}

/* Logits of a token do not depend on how the batch was cut, on who else is in it, or on the threads. (One row
 * at a time has one thread: a barrier per op is slow where the processors are busy with something else.) */
static void check_cuts(sl_isa isa, sl_qtype weights, sl_qtype cache) {
    static engine whole, other;
    const int32_t all[SLOTS] = {LENGTH, 70, 5};
    const struct {
        int32_t threads;
        cut way;
    } runs[] = {{1, ROW_BY_ROW}, {3, WHOLE}, {3, CHUNKS}};
    open_engine(&whole, isa, 1, weights, cache);
    start(&whole);
    run_all(&whole, all, WHOLE);
    for (int32_t i = 0; i < TINY_VOCABULARY; i++) {
        assert_true(isfinite(whole.logits[0][LENGTH - 1][i]));
    }
    assert_memory_not_equal(whole.logits[0][0], whole.logits[0][1], sizeof whole.logits[0][0]);
    for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
        open_engine(&other, isa, runs[r].threads, weights, cache);
        start(&other);
        run_all(&other, all, runs[r].way);
        assert_memory_equal(whole.logits, other.logits, sizeof whole.logits);
        close_engine(&other);
    }
    close_engine(&whole);
}

static void test_cuts_plain(void **state) {
    (void)state;
    check_cuts(SL_ISA_PLAIN, SL_QTYPE_Q8_0, SL_QTYPE_F16);
    check_cuts(SL_ISA_PLAIN, SL_QTYPE_BF16, SL_QTYPE_F32);
}

static void test_cuts_best(void **state) {
    (void)state;
    check_cuts(SL_ISA_AMX, SL_QTYPE_Q8_0, SL_QTYPE_F16);
    check_cuts(SL_ISA_AMX, SL_QTYPE_Q4_0, SL_QTYPE_BF16);
    check_cuts(SL_ISA_AMX, SL_QTYPE_F32, SL_QTYPE_F32);
}

/* Tokens that stay on the device give what the same tokens give when they are told. */
static void test_generation(void **state) {
    (void)state;
    static engine told, kept;
    open_engine(&told, SL_ISA_PLAIN, 1, SL_QTYPE_Q8_0, SL_QTYPE_F16);
    open_engine(&kept, SL_ISA_PLAIN, 2, SL_QTYPE_Q8_0, SL_QTYPE_F16);
    start(&told);
    start(&kept);
    run_step(&told, (const int32_t[SLOTS]){7, 3, 1}, false);
    run_step(&kept, (const int32_t[SLOTS]){7, 3, 1}, false);
    for (int i = 0; i < 10; i++) {
        for (int s = 0; s < SLOTS; s++) {
            const float *logits = told.logits[s][told.done[s] - 1];
            int32_t best = 0;
            for (int32_t t = 1; t < TINY_VOCABULARY; t++) {
                best = logits[t] > logits[best] ? t : best;
            }
            assert_int_equal(told.sampled[s], best);
            told.tokens[s][told.done[s]] = best;
        }
        run_step(&told, (const int32_t[SLOTS]){1, 1, 1}, false);
        run_step(&kept, (const int32_t[SLOTS]){1, 1, 1}, true);
    }
    assert_memory_equal(told.logits, kept.logits, sizeof told.logits);
    close_engine(&told);
    close_engine(&kept);
}

static void test_counters_and_allocations(void **state) {
    (void)state;
    static engine e;
    open_engine(&e, SL_ISA_AMX, 2, SL_QTYPE_Q8_0, SL_QTYPE_F16);
    start(&e);
    run_step(&e, (const int32_t[SLOTS]){40, 0, 0}, false);
    const uint64_t allocations = sl_alloc_count();
    run_step(&e, (const int32_t[SLOTS]){30, 20, 10}, false);
    run_step(&e, (const int32_t[SLOTS]){1, 1, 1}, true);
    assert_int_equal(sl_alloc_count(), allocations);

    sl_counters counters;
    e.backend->functions->counters(e.executor, &counters);
    assert_int_equal(counters.steps, 3);
    assert_int_equal(counters.synchronisations, 0);
    const sl_lowered *bucket = &e.plan->deployment.buckets[0];
    assert_int_equal(e.plan->deployment.bucket_count, 1);
    uint64_t calls = 0;
    for (int32_t i = 0; i < counters.kernel_count; i++) {
        calls += counters.kernels[i].calls;
        /* 103 rows in 3 steps; every row had an output, and 2 experts. */
        assert_true(counters.kernels[i].kernel->batched);
        assert_int_equal(counters.kernels[i].rows % 103, 0);
    }
    assert_int_equal(calls, 3 * bucket->op_count);
    close_engine(&e);
}

/* Of a run of ops its shape names each. */
static int32_t run_length(const char *shape) {
    int32_t length = 1;
    for (const char *at = shape; (at = strstr(at, " > ")); at++) {
        length++;
    }
    return length;
}

/* A profile of the last step: every op is in one row, and the rows' times are parts of the whole's. */
static void test_profile(void **state) {
    (void)state;
    static engine e;
    sl_error error = {0};
    sl_plan_profile profile = {0};
    sl_plan_step step = {.rows = {60, 120, 60}, .keys = 20, .spans = 3};
    open_engine(&e, SL_ISA_AMX, 2, SL_QTYPE_Q8_0, SL_QTYPE_F16);
    start(&e);
    assert_int_equal(sl_plan_profile_step(e.plan, e.executor, &step, &profile, &error), SL_ERR_INVALID);
    sl_plan_profile_free(&profile);
    run_step(&e, (const int32_t[SLOTS]){30, 20, 10}, false);
    if (sl_plan_profile_step(e.plan, e.executor, &step, &profile, &error)) {
        fail_msg("%s", error.message);
    }
    const sl_lowered *bucket = &e.plan->deployment.buckets[0];
    int32_t calls = 0, linears = 0, linear_calls = 0, runs = 0;
    double seconds = 0;
    for (int32_t r = 0; r < profile.row_count; r++) {
        const sl_profile_row *row = &profile.rows[r];
        assert_true(row->seconds > 0);
        assert_true(r == 0 || row->seconds <= row[-1].seconds);
        calls += row->ops;
        const int32_t length = run_length(row->shape);
        assert_int_equal(row->ops, length * row->calls);
        runs += length > 1;
        linear_calls += strncmp(row->kernel, "linear/", 7) == 0 ? row->calls : 0;
        seconds += row->seconds;
        for (int32_t other = 0; other < r; other++) {
            assert_true(strcmp(row->kernel, profile.rows[other].kernel) != 0 ||
                        strcmp(row->shape, profile.rows[other].shape) != 0);
        }
    }
    for (int32_t i = 0; i < bucket->op_count; i++) {
        linears += bucket->ops[i].kind == SL_OP_LINEAR;
    }
    assert_int_equal(calls, bucket->op_count);
    assert_int_equal(linear_calls, linears);
    assert_true(runs > 0 || sl_cpu_isa() == SL_ISA_PLAIN);
    /* The best of each op is at most what it took in the quickest run. */
    assert_true(seconds <= profile.step_seconds * 1.0001);
    assert_int_equal(profile.op_count, bucket->op_count);
    sl_plan_profile_free(&profile);
    close_engine(&e);
}

/* Of the tier that is allowed, by the executor's threads; memory that is missing is said, and none is kept.
 */
static void test_rates(void **state) {
    (void)state;
    static engine e;
    sl_error error = {0};
    sl_rates rates = {0};
    open_engine(&e, SL_ISA_PLAIN, 2, SL_QTYPE_Q8_0, SL_QTYPE_F16);
    start(&e);
    const sl_backend_functions *functions = e.backend->functions;
    const uint64_t live = sl_alloc_live_bytes();
    if (functions->rates(e.executor, &rates, &error)) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(rates.threads, 2);
    assert_true(rates.read_bytes > 1e7);
    for (int a = 0; a < SL_ARITHMETICS; a++) {
        assert_true(rates.operations[a] > 1e6);
    }
    for (uint64_t nth = 1; nth <= 2; nth++) {
        sl_alloc_fail_at(nth);
        assert_int_equal(functions->rates(e.executor, &rates, &error), SL_ERR_NOMEM);
    }
    sl_alloc_fail_at(0);
    assert_int_equal(sl_alloc_live_bytes(), live);
    close_engine(&e);
}

/* Every allocation of a deployment fails once; nothing is left behind. */
static void test_failing_memory(void **state) {
    (void)state;
    static engine e;
    sl_error error = {0};
    open_engine(&e, SL_ISA_AMX, 2, SL_QTYPE_Q8_0, SL_QTYPE_F16);
    const uint64_t before = sl_alloc_live_bytes();
    int status = SL_ERR_NOMEM;
    int failures = 0;
    for (uint64_t nth = 1; status; nth++) {
        sl_alloc_fail_at(nth);
        status = e.backend->functions->deploy(e.backend, &e.plan->deployment, NULL, &e.executor, &error);
        sl_alloc_fail_at(0);
        if (status) {
            failures++;
            assert_int_equal(status, SL_ERR_NOMEM);
            assert_int_equal(sl_alloc_live_bytes(), before);
        }
    }
    assert_true(failures > SL_POOL_COUNT);
    run_step(&e, (const int32_t[SLOTS]){3, 0, 0}, false);
    close_engine(&e);
}

static bool stop(void *context, uint64_t done, uint64_t total) {
    (void)done, (void)total;
    (*(int *)context)++;
    return false;
}

static void test_cancelled_loading(void **state) {
    (void)state;
    static engine e;
    sl_error error = {0};
    int calls = 0;
    const sl_progress progress = {stop, &calls};
    open_engine(&e, SL_ISA_AMX, 1, SL_QTYPE_Q8_0, SL_QTYPE_F16);
    const uint64_t before = sl_alloc_live_bytes();
    assert_int_equal(
        e.backend->functions->deploy(e.backend, &e.plan->deployment, &progress, &e.executor, &error),
        SL_ERR_CANCELLED);
    assert_int_equal(calls, 1);
    assert_int_equal(sl_alloc_live_bytes(), before);
    close_engine(&e);
}

/* --isa plain leaves only plain kernels, and the plan says why. */
static void test_isa_limit(void **state) {
    (void)state;
    static engine e;
    open_engine(&e, SL_ISA_PLAIN, 1, SL_QTYPE_Q8_0, SL_QTYPE_F16);
    const sl_lowered *bucket = &e.plan->deployment.buckets[0];
    for (int32_t i = 0; i < bucket->op_count; i++) {
        assert_non_null(strstr(bucket->kernels[i]->name, "/plain"));
    }
    for (int32_t i = 0; i < e.plan->declined_count; i++) {
        const sl_declined *declined = &e.plan->declined[i];
        if (strstr(declined->name, ".bf16/amx") || strstr(declined->name, ".s8/")) {
            assert_string_equal(declined->reason, "is for another prompt precision");
        } else if (strstr(declined->name, "avx512")) {
            assert_string_equal(declined->reason, "needs avx512; this machine (or --isa) has plain");
        } else if (strstr(declined->name, "avxvnni")) {
            assert_string_equal(declined->reason, "needs avxvnni; this machine (or --isa) has plain");
        } else if (strstr(declined->name, "amx")) {
            assert_string_equal(declined->reason, "needs amx; this machine (or --isa) has plain");
        }
    }
    close_engine(&e);
}

/* What a machine of several nodes calls itself. */
static void test_description(void **state) {
    (void)state;
    sl_backend_options options = {.isa = SL_ISA_AVX512, .threads = 64};
    char text[64];
    sl_cpu_describe(&options, 1, text, sizeof text);
    assert_string_equal(text, "avx512, 64 threads");
    sl_cpu_describe(&options, 2, text, sizeof text);
    assert_string_equal(text, "avx512, 64 threads, 2 nodes");
}

static void test_refused_steps(void **state) {
    (void)state;
    static engine e;
    sl_error error = {0};
    open_engine(&e, SL_ISA_PLAIN, 1, SL_QTYPE_Q8_0, SL_QTYPE_F16);
    start(&e);
    fill_step(&e, (const int32_t[SLOTS]){3, 0, 0}, false);
    sl_step_header *header = sl_step_head(e.backend->functions->step_block(e.executor));
    assert_int_equal(e.backend->functions->submit(e.executor, 7, &error), SL_ERR_INVALID);
    header->rows = SLOTS * LENGTH + 100;
    assert_int_equal(e.backend->functions->submit(e.executor, 0, &error), SL_ERR_INVALID);
    header->rows = -1;
    assert_int_equal(e.backend->functions->submit(e.executor, 0, &error), SL_ERR_INVALID);
#ifndef NDEBUG
    e.has_pages[0] = false;
    fill_step(&e, (const int32_t[SLOTS]){3, 0, 0}, false);
    sl_step_table_changes(&e.plan->deployment.step, header)[1].page = e.plan->deployment.caches[0].pages;
    assert_int_equal(e.backend->functions->submit(e.executor, 0, &error), SL_ERR_INVALID);
    assert_string_equal(error.message + strlen(error.message) - 14, "does not exist");
    fill_step(&e, (const int32_t[SLOTS]){3, 0, 0}, false);
    sl_step_states(&e.plan->deployment.step, header)[0] = e.plan->deployment.state_slots;
    assert_int_equal(e.backend->functions->submit(e.executor, 0, &error), SL_ERR_INVALID);
#endif
    char byte;
    assert_int_equal(e.backend->functions->read(e.executor, SL_POOL_CACHE, UINT64_MAX, &byte, 2, &error),
                     SL_ERR_INVALID);
    close_engine(&e);
}

static void keep_line(void *context, sl_log_level level, const char *line) {
    if (level == SL_LOG_INFO) {
        snprintf(context, 512, "%s", line);
    }
}

static void test_open(void **state) {
    (void)state;
    const sl_backend_options options = {.threads = 1};
    sl_backend *backend = NULL;
    sl_error error = {0};
    assert_int_equal(sl_backend_open("cpu", &options, &backend, &error), 0);
    assert_string_equal(backend->name, "cpu");
    assert_int_equal(backend->options.threads, 1);
    assert_true(backend->functions->memory_available(backend) > 0);
    sl_backend_close(backend);
    const char *bad[] = {"tpu", "", "cuda:", "cuda:x", "cuda:12345", "cuda0", "cpu "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(sl_backend_open(bad[i], &options, &backend, &error), SL_ERR_INVALID);
        assert_non_null(strstr(error.message, "must be cpu, cuda, cuda:N or auto"));
    }
    const sl_backend_options wrong = {.threads = -1};
    assert_int_equal(sl_backend_open("cpu", &wrong, &backend, &error), SL_ERR_INVALID);

    const int status = sl_backend_open("cuda", &options, &backend, &error);
    if (status == 0) { /* this machine has a device and the module */
        sl_backend_close(backend);
        return;
    }
    assert_int_equal(strncmp(error.message, "cuda: ", 6), 0);
    char line[512] = "";
    sl_log_set(keep_line, line);
    assert_int_equal(sl_backend_open("auto", &options, &backend, &error), 0);
    sl_log_set(NULL, NULL);
    assert_string_equal(backend->name, "cpu");
    assert_int_equal(strncmp(line, "device: cpu, because cuda: ", 27), 0);
    sl_backend_close(backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_cuts_plain),
        cmocka_unit_test(test_cuts_best),
        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_counters_and_allocations),
        cmocka_unit_test(test_profile),
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_failing_memory),
        cmocka_unit_test(test_cancelled_loading),
        cmocka_unit_test(test_isa_limit),
        cmocka_unit_test(test_description),
        cmocka_unit_test(test_refused_steps),
    };
    return cmocka_run_group_tests_name("executor", tests, NULL, NULL);
}
