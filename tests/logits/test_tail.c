/* Rows without outputs leave a step behind the last op that writes a cache or a state. Whatever rows of a
 * step have outputs, their logits are the bits of a plan in which all rows stay to the end (one that
 * observes), and ops behind compute the rows with outputs alone. How many layers are there, and how many of
 * them attend behind the last write, is what the fixtures' config.json says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/model.h"
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 3, ROWS = 33, MORE = 20, BOTH = ROWS + MORE, VOCABULARY = 256 };

typedef struct fixture {
    const char *name;
    int32_t attentions, behind; /* ATTENTION ops, and those behind the last write */
} fixture;

/* The last layer, with all that shares the caches of layers in front: num_kv_shared_layers. Recurrent layers
 * behind the last attention leave states: nothing attends behind them. */
static const fixture fixtures[] = {
    {"qwen3", 3, 1},       {"qwen3moe", 3, 1},     {"qwen3_5", 1, 1},    {"gemma3", 4, 1},
    {"gemma4-e", 8, 5},    {"gemma4-dense", 4, 1}, {"gemma4-moe", 4, 1}, {"gpt_oss", 4, 1},
    {"deepseek_v3", 3, 1}, {"lfm2", 1, 0},
};

typedef struct engine {
    sl_backend *backend;
    sl_plan *plan;
    sl_executor *executor;
    int32_t lengths[SEQUENCES], states[SEQUENCES];
} engine;

static const char *device = "cpu"; /* --device */
static const char *only;           /* --only: one fixture */
static int most = 3;               /* --outputs: of the ways in which rows have outputs */

/* whole: all rows stay to the end. On a GPU they do in buckets of as many outputs as rows. */
static void open_engine(engine *e, const sl_program *program, sl_isa isa, bool whole) {
    const bool gpu = strcmp(device, "cpu") != 0;
    const sl_backend_options backend = {.isa = isa, .threads = 2, .deterministic = true};
    const sl_plan_options options = {.chunk = SEQUENCES * ROWS,
                                     .sequences = SEQUENCES,
                                     .context = SL_PAGE_TOKENS,
                                     .outputs = (gpu && whole ? SEQUENCES : 2) * ROWS,
                                     .cache_type = SL_QTYPE_F16,
                                     .observe = whole && !gpu};
    sl_error error;
    memset(e, 0, sizeof *e);
    assert_int_equal(sl_backend_open(device, &backend, &e->backend, &error), 0);
    if (sl_plan_create(program, e->backend, &options, &e->plan, &error) ||
        e->backend->functions->deploy(e->backend, &e->plan->deployment, NULL, &e->executor, &error)) {
        fail_msg("%s", error.message);
    }
    for (int32_t s = 0; s < SEQUENCES; s++) {
        e->states[s] = SL_NONE;
    }
}

static void close_engine(engine *e) {
    e->backend->functions->destroy_executor(e->executor);
    sl_plan_destroy(e->plan);
    sl_backend_close(e->backend);
}

static int32_t token_at(int32_t sequence, int32_t position) {
    return (position * position * 7 + position * (31 + sequence) + 5 * sequence) % VOCABULARY;
}

/* `rows` more of a sequence, of which the last `outputs` have outputs. */
static void add_span(engine *e, void *block, int32_t sequence, int32_t rows, int32_t outputs) {
    const sl_step_layout *layout = &e->plan->deployment.step;
    const sl_program *program = e->plan->deployment.program;
    sl_step_header *head = sl_step_head(block);
    const bool recurrent = program->state_count > 0;
    const int32_t before = e->lengths[sequence], state = 2 * sequence + (e->states[sequence] == 2 * sequence);
    sl_step_span *span = &sl_step_spans(layout, block)[head->spans];
    *span = (sl_step_span){.slot = sequence,
                           .first_row = head->rows,
                           .row_count = rows,
                           .state_read = e->states[sequence],
                           .state_first = recurrent ? head->spans : 0,
                           .state_count = recurrent};
    if (recurrent) { /* there is no room for them otherwise */
        sl_step_states(layout, block)[head->spans] = state;
    }
    for (int32_t g = 0; g < program->group_count; g++) {
        span->length[g] = before;
        sl_step_table_changes(layout, block)[head->table_changes++] =
            (sl_table_change){g, sequence, 0, sequence};
    }
    for (int32_t i = 0; i < rows; i++) {
        sl_step_rows(layout, block)[head->rows] =
            (sl_step_row){SL_ROW_TOKEN, token_at(sequence, before + i), before + i, head->spans};
        if (i >= rows - outputs) {
            sl_step_outputs(layout, block)[head->outputs++] =
                (sl_step_output){.row = head->rows, .slot = sequence, .mask = SL_NONE};
        }
        head->rows++;
    }
    head->spans++;
    e->lengths[sequence] += rows;
    e->states[sequence] = recurrent ? state : SL_NONE;
}

/* A step of as many rows of each sequence, 0: it is not in it; the last of them have outputs. */
static const float *step(engine *e, const int32_t rows[SEQUENCES], const int32_t outputs[SEQUENCES]) {
    void *block = e->backend->functions->step_block(e->executor);
    sl_step_header *head = sl_step_head(block);
    sl_error error;
    *head = (sl_step_header){.want_logits = 1};
    for (int32_t s = 0; s < SEQUENCES; s++) {
        if (rows[s] > 0) {
            add_span(e, block, s, rows[s], outputs[s]);
        }
    }
    if (e->backend->functions->submit(e->executor, sl_plan_bucket(e->plan, head), &error) ||
        e->backend->functions->wait(e->executor, &error)) {
        fail_msg("%s", error.message);
    }
    return e->backend->functions->logits(e->executor);
}

/* Each sequence alone, in two steps, all rows to the end. */
static void read_whole(const sl_program *program, sl_isa isa, float logits[SEQUENCES][BOTH][VOCABULARY]) {
    engine e;
    open_engine(&e, program, isa, true);
    for (int32_t s = 0; s < SEQUENCES; s++) {
        for (int32_t at = 0, count = ROWS; at < BOTH; at += count, count = MORE) {
            int32_t rows[SEQUENCES] = {0};
            rows[s] = count;
            memcpy(logits[s][at], step(&e, rows, rows), sizeof(float[VOCABULARY]) * (size_t)count);
        }
    }
    close_engine(&e);
}

static void compare(const fixture *f, const float *got, int32_t at, const int32_t rows[SEQUENCES],
                    const int32_t outputs[SEQUENCES], float logits[SEQUENCES][BOTH][VOCABULARY]) {
    for (int32_t s = 0; s < SEQUENCES; s++) {
        for (int32_t i = rows[s] - outputs[s]; i < rows[s]; i++, got += VOCABULARY) {
            if (memcmp(got, logits[s][at + i], sizeof(float[VOCABULARY])) != 0) {
                fail_msg("%s: sequence %d, row %d: other bits than with all rows", f->name, s, at + i);
            }
        }
    }
}

static uint64_t attended_rows(const engine *e) {
    sl_counters counters;
    uint64_t rows = 0;
    e->backend->functions->counters(e->executor, &counters);
    for (int32_t k = 0; k < counters.kernel_count; k++) {
        rows += counters.kernels[k].kernel->op == SL_OP_ATTENTION ? counters.kernels[k].rows : 0;
    }
    return rows;
}

static int32_t sum(const int32_t counts[SEQUENCES]) {
    return counts[0] + counts[1] + counts[2];
}

static void check(const fixture *f, const sl_program *program, sl_isa isa) {
    static float logits[SEQUENCES][BOTH][VOCABULARY];
    static const int32_t rows[2][SEQUENCES] = {{ROWS, ROWS, ROWS}, {MORE, MORE, MORE}};
    /* the last, the last three, all, none */
    static const int32_t outputs[][2][SEQUENCES] = {
        {{1, 3, ROWS}, {0, MORE, 1}}, {{0, 0, 0}, {1, 1, 1}}, {{ROWS, 0, 3}, {3, 1, 0}}};
    engine e;
    read_whole(program, isa, logits);
    for (int i = 0; i < (int)(sizeof outputs / sizeof *outputs) && i < most; i++) {
        uint64_t expected = 0;
        open_engine(&e, program, isa, false);
        for (int32_t n = 0; n < 2; n++) {
            compare(f, step(&e, rows[n], outputs[i][n]), n * ROWS, rows[n], outputs[i][n], logits);
            expected +=
                (uint64_t)((f->attentions - f->behind) * sum(rows[n]) + f->behind * sum(outputs[i][n]));
        }
        if (strcmp(device, "cpu") == 0) { /* a GPU has buckets of as many outputs as rows */
            assert_int_equal(attended_rows(&e), expected);
        }
        close_engine(&e);
    }
}

static void outputs_do_not_depend_on_who_else_has_one(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        char path[512];
        if (only && strcmp(fixtures[i].name, only) != 0) {
            continue;
        }
        sl_model *model;
        sl_error error;
        snprintf(path, sizeof path, "%s/tests/logits/fixtures/%s", SLUICE_SOURCE_DIR, fixtures[i].name);
        if (sl_model_load(path, &model, &error)) {
            fail_msg("%s", error.message);
        }
        check(&fixtures[i], &model->program, sl_cpu_isa());
        if (strcmp(device, "cpu") == 0) {
            check(&fixtures[i], &model->program, SL_ISA_PLAIN);
        }
        sl_model_free(model);
    }
}

int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        device = strcmp(argv[i], "--device") == 0 ? argv[i + 1] : device;
        only = strcmp(argv[i], "--only") == 0 ? argv[i + 1] : only;
        most = strcmp(argv[i], "--outputs") == 0 ? atoi(argv[i + 1]) : most;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(outputs_do_not_depend_on_who_else_has_one)};
    return cmocka_run_group_tests_name("tail", tests, NULL, NULL);
}
