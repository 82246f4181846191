/* What placements are estimated to take, and which one that chooses, with speeds that are given. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/model.h"
#include "plan/estimate.h"
#include "plan/split.h"
#include "unit/plan/dense.h"
#include "unit/plan/fake_backend.h"

#include <math.h>
#include <string.h>

static void check_near(double got, double expected) {
    if (!(fabs(got - expected) <= 1e-9 * expected)) {
        fail_msg("%g, expected %g", got, expected);
    }
}

/* As fast as nothing is: what is left is what a test asks for. */
static const double AT_ONCE = 1e60;

static sl_speeds speeds_of(double read, double operations, double bus, double border) {
    return (sl_speeds){.rates = {.read_bytes = read, .operations[SL_WITH_BF16] = operations},
                       .bus_bytes = bus,
                       .border_seconds = border};
}

/* ---- placements of a small program: on a device that fetches, on a host and a device, on a host ---- */

enum { FETCHING, BESIDE_HOST, ON_HOST, PLACES };

typedef struct placements {
    sl_program built, *program; /* the former, or the model's */
    sl_model *model;
    fake_backend device;
    sl_backend *both, *host;
    sl_plan *plans[PLACES];
} placements;

static sl_plan *plan_of(sl_program *program, sl_backend *backend, const sl_plan_options *options) {
    sl_error error;
    sl_plan *plan = NULL;
    if (sl_plan_create(program, backend, options, &plan, &error)) {
        fail_msg("%s", error.message);
    }
    return plan;
}

/* The second of two processors stands for the device: speeds are what makes one of it. */
static void place(placements *all, sl_plan_options options, int32_t host_experts, int32_t host_layers) {
    const sl_backend_options cpu = {.threads = 1, .isa = SL_ISA_PLAIN};
    sl_error error;
    assert_int_equal(sl_split_open("cpu+cpu", SL_SPLIT_LAYERS, &cpu, &all->both, &error), 0);
    assert_int_equal(sl_cpu_backend_create(&cpu, &all->host, &error), 0);
    all->device = fake(true, false);
    all->plans[ON_HOST] = plan_of(all->program, all->host, &options);
    options.host_experts = host_experts;
    options.host_layers = host_layers;
    all->plans[FETCHING] = make(all->program, &all->device, &options);
    options.layers[0] = host_layers; /* with experts on the host all other ops are the device's */
    options.layers[1] = host_layers > 0 ? sl_program_layers(all->program) - host_layers : 0;
    options.host_layers = options.expert_slots = 0;
    all->plans[BESIDE_HOST] = plan_of(all->program, all->both, &options);
}

static void drop(placements *all) {
    for (int i = 0; i < PLACES; i++) {
        sl_plan_destroy(all->plans[i]);
    }
    sl_backend_close(all->both);
    sl_backend_close(all->host);
    sl_program_free(&all->built);
    sl_model_free(all->model);
}

static sl_estimate estimate(const placements *all, int place, sl_speeds host, sl_speeds device) {
    const sl_speeds both[] = {host, device};
    sl_estimate result;
    sl_plan_estimate(all->plans[place], place == FETCHING ? &both[1] : both, &result);
    check_near(result.request_seconds, result.prompt_seconds + SL_TYPICAL_REPLY * result.token_seconds);
    return result;
}

static int32_t choice(const placements *all, sl_speeds host, sl_speeds device) {
    sl_estimate estimates[PLACES];
    for (int i = 0; i < PLACES; i++) {
        estimates[i] = estimate(all, i, host, device);
    }
    return sl_estimate_choose(estimates, PLACES);
}

static double set_bytes(const sl_plan *plan) {
    double sum = 0;
    for (int32_t s = 0; s < plan->deployment.fetch_set_count; s++) {
        sum += (double)plan->deployment.fetch_sets[s].bytes;
    }
    return sum;
}

/* ---- the tests ---- */

enum { HALF = DENSE_LAYERS / 2, CHUNK = 8 };

static void place_dense(placements *all) {
    *all = (placements){.device.hidden = 0};
    all->program = &all->built;
    dense_build(all->program, false);
    place(all, DENSE_OPTIONS, 0, HALF);
}

/* Each step brings all of the layers' weights, in as much time as their bytes take, or as the rest takes
 * where that is longer. */
static void layers_cost_their_bytes(void **state) {
    (void)state;
    placements all;
    place_dense(&all);
    const sl_plan *plan = all.plans[FETCHING];
    const sl_speeds host = speeds_of(AT_ONCE, AT_ONCE, 0, 0);
    const double bytes = set_bytes(plan);
    assert_int_equal(plan->deployment.fetch_set_count, HALF);
    assert_true(bytes > 0 && plan->options.chunk == CHUNK);
    const sl_estimate bound_by_bus = estimate(&all, FETCHING, host, speeds_of(AT_ONCE, AT_ONCE, 1e6, 3));
    check_near(bound_by_bus.token_seconds, bytes / 1e6 + 3);
    check_near(bound_by_bus.long_prompt_seconds, (bytes / 1e6 + 3) / CHUNK);
    check_near(bound_by_bus.prompt_seconds, SL_TYPICAL_PROMPT * bound_by_bus.long_prompt_seconds);
    /* All weights are read from the device's memory besides, at the same time. */
    const sl_estimate bound_by_memory = estimate(&all, FETCHING, host, speeds_of(1e3, AT_ONCE, AT_ONCE, 0));
    assert_true(bound_by_memory.token_seconds > 1.5 * bytes / 1e3);
    const sl_estimate bound_by_both = estimate(&all, FETCHING, host, speeds_of(1e3, AT_ONCE, 1e3, 0));
    check_near(bound_by_both.token_seconds, bound_by_memory.token_seconds);
    /* Products of more rows take longer. */
    const sl_estimate bound_by_products = estimate(&all, FETCHING, host, speeds_of(AT_ONCE, 1, AT_ONCE, 0));
    assert_true(bound_by_products.long_prompt_seconds * CHUNK > 5 * bound_by_products.token_seconds);
    drop(&all);
}

/* Values cross the bus, and a section of the device is waited for. Of prompts in many chunks only the slower
 * device counts. */
static void borders_cost_what_crosses_them(void **state) {
    (void)state;
    placements all;
    place_dense(&all);
    const sl_estimate crossing =
        estimate(&all, BESIDE_HOST, speeds_of(AT_ONCE, AT_ONCE, 0, 0), speeds_of(AT_ONCE, AT_ONCE, 1e6, 3));
    check_near(crossing.token_seconds, 4 * all.program->width / 1e6 + 3);
    check_near(crossing.long_prompt_seconds, (CHUNK * 4 * all.program->width / 1e6 + 3) / CHUNK);
    const sl_speeds slow = speeds_of(1e3, AT_ONCE, 0, 0), at_once = speeds_of(AT_ONCE, AT_ONCE, 0, 0);
    const sl_estimate first = estimate(&all, BESIDE_HOST, slow, at_once);
    const sl_estimate second = estimate(&all, BESIDE_HOST, at_once, slow);
    const sl_estimate both = estimate(&all, BESIDE_HOST, slow, slow);
    check_near(both.token_seconds, first.token_seconds + second.token_seconds);
    check_near(both.prompt_seconds, first.prompt_seconds + second.prompt_seconds);
    check_near(both.long_prompt_seconds, fmax(first.long_prompt_seconds, second.long_prompt_seconds));
    drop(&all);
}

/* Of a dense model: the bus against the host's memory, and both against waits. */
static void speeds_turn_the_choice_of_layers(void **state) {
    (void)state;
    placements all;
    place_dense(&all);
    const sl_speeds host = speeds_of(50e9, 1e12, 0, 0);
    assert_int_equal(choice(&all, host, speeds_of(1e12, 1e14, 400e9, 0)), FETCHING);
    assert_int_equal(choice(&all, host, speeds_of(1e12, 1e14, 5e9, 0)), BESIDE_HOST);
    assert_int_equal(choice(&all, host, speeds_of(1e12, 1e14, 400e9, 1)), ON_HOST);
    /* A host that computes slowly: its chunks take longer than weights take over the bus. */
    const sl_speeds weak = speeds_of(50e9, 1e9, 0, 0), device = speeds_of(1e12, 1e14, 5e9, 0);
    assert_true(estimate(&all, FETCHING, weak, device).long_prompt_seconds <
                estimate(&all, BESIDE_HOST, weak, device).long_prompt_seconds);
    drop(&all);
}

/* Three layers of eight experts, of which a row chooses two. */
enum { EXPERT_LAYERS = 3, EXPERTS = 8, USED = 2 };

static void place_experts(placements *all, int32_t chunk, int32_t slots, const uint64_t *uses) {
    sl_error error;
    *all = (placements){.device.hidden = 0};
    if (sl_model_load(SLUICE_SOURCE_DIR "/tests/logits/fixtures/qwen3moe", &all->model, &error)) {
        fail_msg("%s", error.message);
    }
    all->program = &all->model->program;
    assert_int_equal(all->program->experts, EXPERTS);
    assert_int_equal(all->program->experts_used, USED);
    const sl_plan_options options = {.chunk = chunk,
                                     .sequences = 2,
                                     .context = 130,
                                     .cache_type = SL_QTYPE_F16,
                                     .expert_slots = slots,
                                     .expert_uses = uses};
    place(all, options, EXPERT_LAYERS, 0);
    assert_int_equal(all->plans[FETCHING]->deployment.fetch_set_count, EXPERT_LAYERS);
}

/* A token waits for the chosen experts that are in no slot, and so does a small chunk, whose rows choose some
 * of them at random; a larger one has all of them brought. */
static void missing_experts_are_waited_for(void **state) {
    (void)state;
    static const uint64_t uses[EXPERT_LAYERS][EXPERTS] = {{40, 30, 20, 10}, {10, 40, 20, 30}, {70}};
    const sl_speeds host = speeds_of(AT_ONCE, AT_ONCE, 0, 0), device = speeds_of(AT_ONCE, AT_ONCE, 1e6, 0);
    placements all;
    place_experts(&all, CHUNK, 2, NULL);
    const sl_plan *plan = all.plans[FETCHING];
    const double bytes = set_bytes(plan), chosen = bytes / EXPERTS * USED;
    sl_estimate got = estimate(&all, FETCHING, host, device);
    check_near(got.token_seconds, chosen / 1e6 * (1 - pow(0.25, log(0.8) / log(0.2))));
    const double of_chunk =
        EXPERTS * (1 - pow(1 - (double)USED / EXPERTS, CHUNK)); /* most of whose uses are hits */
    check_near(got.long_prompt_seconds, bytes / EXPERTS * (of_chunk - 2) / 1e6 / CHUNK);
    drop(&all);
    place_experts(&all, 2 * CHUNK, 2, NULL);
    check_near(estimate(&all, FETCHING, host, device).long_prompt_seconds, bytes / 1e6 / (2 * CHUNK));
    drop(&all);
    place_experts(&all, CHUNK, 2, uses[0]); /* the two most used ones of each layer have 210 of 270 uses */
    got = estimate(&all, FETCHING, host, device);
    check_near(got.token_seconds, chosen / 1e6 * 60 / 270);
    drop(&all);
    place_experts(&all, CHUNK, EXPERTS, NULL);
    assert_true(estimate(&all, FETCHING, host, device).token_seconds < 1e-12);
    drop(&all);
}

/* A token's products, of which those with experts have a row for each chosen one. */
static void chosen_experts_compute(void **state) {
    (void)state;
    const int32_t rows[SL_ROWS_COUNT] = {[SL_ROWS_STEP] = 1, [SL_ROWS_EXPERT] = USED, [SL_ROWS_OUTPUT] = 1};
    placements all;
    place_experts(&all, CHUNK, 2, NULL);
    double operations = 0;
    for (int32_t i = 0; i < all.program->op_count; i++) {
        const sl_op *op = &all.program->ops[i];
        sl_arithmetic arithmetic;
        operations += sl_op_products(all.program, op, &arithmetic)
                          ? sl_step_cost(all.program, op, rows, SL_TYPICAL_PROMPT, 1).operations
                          : 0;
    }
    const sl_speeds slow = speeds_of(AT_ONCE, 1, 0, 0);
    check_near(estimate(&all, ON_HOST, slow, slow).token_seconds, operations);
    check_near(estimate(&all, BESIDE_HOST, slow, slow).token_seconds, operations);
    drop(&all);
}

static void speeds_turn_the_choice_of_experts(void **state) {
    (void)state;
    placements all;
    place_experts(&all, CHUNK, 2, NULL);
    const sl_speeds host = speeds_of(50e9, 1e12, 0, 0);
    assert_int_equal(choice(&all, host, speeds_of(1e12, 1e14, 400e9, 0)), FETCHING);
    assert_int_equal(choice(&all, host, speeds_of(1e12, 1e14, 1e9, 0)), BESIDE_HOST);
    assert_int_equal(choice(&all, host, speeds_of(1e12, 1e14, 400e9, 1)), ON_HOST);
    drop(&all);
}

/* What was measured stays; of the rest there is an assumption, of the host none about a bus. */
static void what_is_not_known_is_assumed(void **state) {
    (void)state;
    sl_speeds known = speeds_of(1, 2, 3, 4), unknown = {.bus_bytes = 0}, host = unknown, part = unknown;
    assert_int_equal(sl_speeds_assume(false, &known), 0);
    assert_true(known.rates.read_bytes == 1 && known.rates.operations[SL_WITH_BF16] == 2);
    assert_true(known.bus_bytes == 3 && known.border_seconds == 4);
    const unsigned memory = SL_ASSUMED_MEMORY | SL_ASSUMED_PRODUCTS;
    const unsigned rest = SL_ASSUMED_PRODUCTS | SL_ASSUMED_BUS | SL_ASSUMED_BORDER;
    assert_int_equal(sl_speeds_assume(false, &unknown), memory | rest);
    assert_int_equal(sl_speeds_assume(true, &host), memory);
    assert_true(unknown.rates.read_bytes > host.rates.read_bytes && host.rates.read_bytes > 0);
    assert_true(unknown.bus_bytes > 0 && unknown.bus_bytes < host.rates.read_bytes);
    assert_true(unknown.border_seconds > 0 && host.bus_bytes == 0 && host.border_seconds == 0);
    part.rates.read_bytes = 2 * unknown.rates.read_bytes;
    assert_int_equal(sl_speeds_assume(false, &part), rest);
    check_near(sl_rates_of(&part.rates, SL_WITH_INT8), 2 * sl_rates_of(&unknown.rates, SL_WITH_INT8));
    host = (sl_speeds){.rates = {.read_bytes = 1, .operations[SL_WITH_F32] = 1}};
    assert_int_equal(sl_speeds_assume(true, &host), 0);
}

static void a_tenth_decides_nothing(void **state) {
    (void)state;
    static const struct {
        double seconds[PLACES];
        int32_t chosen;
    } CASES[] = {
        {{1.0, 0.95, 0.92}, 0}, {{1.0, 0.9, 2.0}, 1}, {{1.2, 1.05, 1.0}, 1},
        {{0, 0, 5}, 2},         {{0, 1, 0.99}, 1},    {{0, 0, 0}, SL_NONE},
    };
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        sl_estimate estimates[PLACES] = {{.request_seconds = 0}};
        for (int i = 0; i < PLACES; i++) {
            estimates[i].request_seconds = CASES[c].seconds[i];
        }
        assert_int_equal(sl_estimate_choose(estimates, PLACES), CASES[c].chosen);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_cost_their_bytes),
        cmocka_unit_test(borders_cost_what_crosses_them),
        cmocka_unit_test(speeds_turn_the_choice_of_layers),
        cmocka_unit_test(missing_experts_are_waited_for),
        cmocka_unit_test(chosen_experts_compute),
        cmocka_unit_test(speeds_turn_the_choice_of_experts),
        cmocka_unit_test(what_is_not_known_is_assumed),
        cmocka_unit_test(a_tenth_decides_nothing),
    };
    return cmocka_run_group_tests_name("estimate", tests, NULL, NULL);
}
