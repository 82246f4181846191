/* Plans of experts in host memory, and limits of memory by device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "unit/plan/fake_backend.h"

#include <stdio.h>

/* ---- experts in host memory ---- */

/* One FETCH in front of the first op that reads experts; with slots, ids and schedule are its own from there
 * on. */
static void check_fetch(const sl_program *p, const sl_lowered *lowered, int32_t slots) {
    const int32_t wanted = lowered->rows[SL_ROWS_EXPERT] <= slots ? slots : 0;
    const sl_op *fetch = NULL;
    int32_t readers = 0;
    for (int32_t i = 0; i < lowered->op_count; i++) {
        const sl_op *op = &lowered->ops[i];
        if (op->kind == SL_OP_FETCH) {
            assert_true(!fetch && op->layer == 1 && op->u.fetch.slots == wanted);
            fetch = op;
        } else if (op->kind == SL_OP_LINEAR && op->in[1].value != SL_NONE) {
            assert_non_null(fetch);
            assert_int_equal(wanted > 0 && op->in[1].value == fetch->out[0].value, wanted > 0);
            assert_int_equal(wanted > 0 && op->in[2].value == fetch->out[1].value, wanted > 0);
            readers++;
        }
    }
    assert_true(fetch && readers > 1);
    assert_int_equal(
        sl_ops_check(p, lowered->values, lowered->value_count, lowered->ops, lowered->op_count, NULL), 0);
}

/* Weights with experts, and no others, are on the host; their places do not overlap and fill the pools. */
static void check_places(const sl_plan *plan) {
    const sl_deployment *d = &plan->deployment;
    uint64_t host = 0, buffer = 0, slots = SL_FETCH_BUFFERS * d->buffer_bytes;
    for (int32_t u = 0; u < d->weight_count; u++) {
        const sl_weight_use *use = &d->weights[u];
        const sl_weight *weight = &d->program->weights[use->weight];
        assert_int_equal(use->on_host, weight->experts > 1);
        if (use->on_host) {
            host += (use->bytes + 63) / 64 * 64;
            assert_int_equal(use->in_buffer, buffer);
            buffer += (use->bytes + 255) / 256 * 256;
            assert_int_equal(use->slots, slots);
            slots += (use->bytes / (uint64_t)weight->experts * (uint64_t)d->expert_slots + 255) / 256 * 256;
        }
    }
    assert_true(host > 0);
    assert_int_equal(d->pool_bytes[SL_POOL_HOST_WEIGHTS], host);
    assert_int_equal(d->fetch_sets[0].table, slots);
    const uint64_t table = sl_slot_table_bytes(d->program->experts, d->expert_slots);
    assert_int_equal(d->pool_bytes[SL_POOL_FETCHED], slots + (table + 255) / 256 * 256);
    assert_true(d->buffer_bytes == 0 || d->buffer_bytes == buffer);
}

static void experts_may_lie_in_host_memory(void **state) {
    (void)state;
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(true, false);
    sl_plan_options options = {.chunk = 8,
                               .sequences = 2,
                               .context = 130,
                               .cache_type = SL_QTYPE_F16,
                               .host_experts = 2,
                               .expert_slots = p.experts - 1};
    sl_plan *plan = make(&p, &backend, &options);
    assert_int_equal(plan->deployment.fetch_set_count, 1);
    assert_true(plan->deployment.bucket_count > 2 && plan->deployment.buffer_bytes > 0);
    for (int32_t b = 0; b < plan->deployment.bucket_count; b++) {
        check_fetch(&p, &plan->deployment.buckets[b], p.experts - 1);
    }
    check_places(plan);
    sl_plan_destroy(plan);
    /* Only where it has to be: the first layer has no experts, so two layers are the least that help. */
    options.chunk = 1;
    options.host_experts = SL_NONE;
    options.expert_slots = 0;
    options.cache_tokens = 384; /* else it would shrink first */
    plan = make(&p, &backend, &options);
    assert_int_equal(plan->deployment.fetch_set_count, 0);
    const uint64_t resident = sl_plan_bytes(plan);
    sl_plan_destroy(plan);
    backend.available = resident - 1;
    plan = make(&p, &backend, &options);
    assert_int_equal(plan->options.host_experts, 2);
    assert_true(sl_plan_bytes(plan) < resident);
    assert_int_equal(plan->deployment.expert_slots, p.experts - 1); /* all would fit no better than before */
    check_places(plan);
    sl_plan_destroy(plan);
    /* And refused where the host has no room. */
    sl_error error;
    options.host_memory_limit = 1;
    assert_int_equal(sl_plan_create(&p, &backend.base, &options, &plan, &error), SL_ERR_LIMIT);
    assert_non_null(strstr(error.message, "bytes of host memory, the limit is 1"));
    options.limits[0] = (sl_device_limit){"cpu", 2};
    assert_int_equal(sl_plan_create(&p, &backend.base, &options, &plan, &error), SL_ERR_LIMIT);
    assert_non_null(strstr(error.message, "bytes of host memory, the limit is 2"));
    sl_program_free(&p);
}

/* The most used experts of a layer begin in slots: more uses first, of equals the lower number, and none that
 * was never used. */
static void the_most_used_experts_begin_in_slots(void **state) {
    (void)state;
    enum { EXPERTS = 4, SLOTS = 3 };
    static const struct {
        uint64_t uses[EXPERTS];
        int32_t first[SLOTS];
        const char *share; /* of the uses */
    } CASES[] = {
        {{5, 1, 9, 5}, {2, 0, 3}, "95.0 %"},
        {{0, 0, 7, 0}, {2, SL_NONE, SL_NONE}, "100.0 %"},
        {{1, 1, 1, 1}, {0, 1, 2}, "75.0 %"},
        {{0, 0, 0, 0}, {SL_NONE, SL_NONE, SL_NONE}, "0.0 %"},
    };
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    assert_int_equal(p.experts, EXPERTS);
    fake_backend backend = fake(true, false);
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        uint64_t uses[2][EXPERTS] = {{100, 200, 300, 400}}; /* the first layer has no experts */
        memcpy(uses[1], CASES[c].uses, sizeof uses[1]);
        const sl_plan_options options = {.chunk = 8,
                                         .sequences = 2,
                                         .context = 130,
                                         .cache_type = SL_QTYPE_F16,
                                         .host_experts = 2,
                                         .expert_slots = SLOTS,
                                         .expert_uses = uses[0]};
        sl_plan *plan = make(&p, &backend, &options);
        assert_non_null(plan->deployment.first_experts);
        for (int i = 0; i < SLOTS; i++) {
            assert_int_equal(plan->deployment.first_experts[i], CASES[c].first[i]);
        }
        sl_buffer text = {0};
        sl_plan_print_memory(plan, &text);
        char expected[64];
        snprintf(expected, sizeof expected, "; %s of uses begin there", CASES[c].share);
        assert_non_null(strstr(text.data, expected));
        sl_buffer_free(&text);
        sl_plan_destroy(plan);
    }
    sl_program_free(&p);
}

/* ---- limits ---- */

static void limits_are_by_device(void **state) {
    (void)state;
    static const struct {
        sl_device_limit limits[4];
        uint64_t given, expected; /* for device fake:1 */
    } CASES[] = {
        {{{"", 0}}, 7, 7},
        {{{"fake", 5}}, 7, 5},
        {{{"fake:1", 5}}, 7, 5},
        {{{"fake:1", 5}, {"fake", 6}}, 7, 5},
        {{{"fake", 6}, {"fake:1", 5}}, 7, 5},
        {{{"fake:0", 5}, {"fake:10", 4}, {"cpu", 3}, {"fak", 2}}, 7, 7},
        {{{"fake:0", 5}, {"fake", 6}}, 0, 6},
        {{{"fake", 6}, {"fake:1", 0}}, 7, 0},
    };
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        sl_plan_options options = {.memory_limit = CASES[c].given};
        memcpy(options.limits, CASES[c].limits, sizeof CASES[c].limits);
        const uint64_t limit = sl_plan_limit(&options, "fake", 1, options.memory_limit);
        if (limit != CASES[c].expected) {
            fail_msg("case %zu: %llu", c, (unsigned long long)limit);
        }
    }
    /* And plans keep to them. */
    sl_program p = {0};
    sl_error error;
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(true, true);
    backend.base.options.device = 1;
    sl_plan_options options = {.chunk = 16, .sequences = 4, .context = 130, .cache_type = SL_QTYPE_F16};
    sl_plan *plan = make(&p, &backend, &options);
    const uint64_t whole = total_of(plan);
    assert_int_equal(plan->deployment.caches[0].pages, 12);
    sl_plan_destroy(plan);
    options.limits[0] = (sl_device_limit){"fake:1", whole - 1};
    plan = make(&p, &backend, &options);
    assert_int_equal(plan->deployment.caches[0].pages, 11);
    sl_plan_destroy(plan);
    options.limits[0].bytes = 1;
    assert_int_equal(sl_plan_create(&p, &backend.base, &options, &plan, &error), SL_ERR_LIMIT);
    options.limits[0] = (sl_device_limit){"fake:0", 1};
    plan = make(&p, &backend, &options);
    assert_true(total_of(plan) == whole);
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_may_lie_in_host_memory),
        cmocka_unit_test(the_most_used_experts_begin_in_slots),
        cmocka_unit_test(limits_are_by_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
