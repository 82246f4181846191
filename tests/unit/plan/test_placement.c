/* Plans of experts and layers in host memory, and limits of memory by device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "unit/plan/dense.h"
#include "unit/plan/fake_backend.h"

#include <stdio.h>

/* ---- experts in host memory ---- */

/* Of rows that choose at random, the share of a layer's experts that no row chooses. */
static double left_out(const sl_program *p, int32_t rows) {
    double share = 1;
    for (int32_t i = 0; i < rows; i++) {
        share *= 1 - (double)p->experts_used / p->experts;
    }
    return share;
}

/* One FETCH in front of the first op that reads experts; to slots, ids and schedule are its own from there
 * on. Returns its way. */
static sl_fetch_way check_fetch(const sl_program *p, const sl_lowered *lowered, int32_t slots) {
    const bool few = lowered->rows[SL_ROWS_EXPERT] <= slots;
    const sl_fetch_way way = few                                                   ? SL_FETCH_TO_SLOTS
                             : left_out(p, lowered->rows[SL_ROWS_STEP]) > 1 - 0.95 ? SL_FETCH_TO_BUFFER
                                                                                   : SL_FETCH_ALL;
    const sl_op *fetch = NULL;
    int32_t readers = 0;
    for (int32_t i = 0; i < lowered->op_count; i++) {
        const sl_op *op = &lowered->ops[i];
        if (op->kind == SL_OP_FETCH) {
            assert_true(!fetch && op->layer == 1 && op->u.fetch.way == way);
            assert_int_equal(op->u.fetch.slots, way == SL_FETCH_ALL ? 0 : slots);
            fetch = op;
        } else if (op->kind == SL_OP_LINEAR && op->in[1].value != SL_NONE) {
            assert_non_null(fetch);
            for (int i = 0; i < 2; i++) {
                const int32_t value = few ? fetch->out[i].value : fetch->in[i].value;
                assert_true(value != SL_NONE && op->in[1 + i].value == value);
            }
            readers++;
        }
    }
    assert_true(fetch && readers > 1);
    assert_int_equal(
        sl_ops_check(p, lowered->values, lowered->value_count, lowered->ops, lowered->op_count, NULL), 0);
    return way;
}

/* The bucket's list says which way it is, and so does the explanation. */
static void check_printed(const sl_plan *plan, int32_t bucket, sl_fetch_way way) {
    static const char *const WORDS[][2] = {
        [SL_FETCH_ALL] = {", all experts to a buffer |", "fetch 2, all experts to a buffer: "},
        [SL_FETCH_TO_SLOTS] = {", chosen experts to slots, 3 slots |", "fetch 2, chosen experts to slots: "},
        [SL_FETCH_TO_BUFFER] = {", chosen experts to a buffer, 3 slots |",
                                "fetch 2, chosen experts to a buffer: "}};
    sl_buffer text = {0};
    sl_plan_print_ops(plan, bucket, &text);
    sl_plan_explain(plan, &text);
    for (int i = 0; i < 2; i++) {
        if (!strstr(text.data, WORDS[way][i])) {
            fail_msg("the plan lacks \"%s\":\n%s", WORDS[way][i], text.data);
        }
    }
    sl_buffer_free(&text);
}

/* Whether a list is refused whose FETCH has another way than outputs. */
static void check_refused(const sl_program *p, sl_lowered *lowered, sl_fetch_way way, bool refused) {
    int32_t at = 0;
    while (lowered->ops[at].kind != SL_OP_FETCH) {
        at++;
    }
    const sl_fetch_way before = lowered->ops[at].u.fetch.way;
    lowered->ops[at].u.fetch.way = way;
    const int code =
        sl_ops_check(p, lowered->values, lowered->value_count, lowered->ops, lowered->op_count, NULL);
    assert_int_equal(code != 0, refused);
    lowered->ops[at].u.fetch.way = before;
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
    bool met[SL_FETCH_TO_BUFFER + 1] = {false};
    for (int32_t b = 0; b < plan->deployment.bucket_count; b++) {
        const sl_fetch_way way = check_fetch(&p, &plan->deployment.buckets[b], p.experts - 1);
        check_printed(plan, b, way);
        met[way] = true;
    }
    for (int way = 0; way <= SL_FETCH_TO_BUFFER + 1; way++) { /* the first bucket is one row's */
        check_refused(&p, &plan->deployment.buckets[0], (sl_fetch_way)way, way != SL_FETCH_TO_SLOTS);
    }
    assert_true(met[SL_FETCH_ALL] && met[SL_FETCH_TO_SLOTS] && met[SL_FETCH_TO_BUFFER]);
    check_places(plan);
    sl_plan_destroy(plan);
    /* No bucket brings all, and there are buffers. */
    options.chunk = 2;
    plan = make(&p, &backend, &options);
    assert_int_equal(
        check_fetch(&p, &plan->deployment.buckets[plan->deployment.bucket_count - 1], p.experts - 1),
        SL_FETCH_TO_BUFFER);
    assert_true(plan->deployment.buffer_bytes > 0);
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

/* ---- layers in host memory ---- */

/* In every bucket one FETCH in front of the first product of each layer whose bit is set, and no other. */
static void check_layers_fetched(const sl_program *p, const sl_lowered *lowered, unsigned layers) {
    unsigned fetched = 0;
    int32_t sets = 0;
    for (int32_t i = 0; i < lowered->op_count; i++) {
        const sl_op *op = &lowered->ops[i];
        if (op->kind == SL_OP_FETCH) {
            assert_int_equal(op->u.fetch.set, sets++);
            assert_int_equal(op->u.fetch.slots + op->u.fetch.used, 0);
            assert_false(fetched >> op->layer & 1u);
            fetched |= 1u << op->layer;
        } else if (op->kind == SL_OP_LINEAR && op->layer >= 0) {
            assert_int_equal(fetched >> op->layer & 1u, layers >> op->layer & 1u);
        }
    }
    assert_int_equal(fetched, layers);
    assert_int_equal(
        sl_ops_check(p, lowered->values, lowered->value_count, lowered->ops, lowered->op_count, NULL), 0);
}

/* What products of these layers read is on the host, and nothing else; and no buffer is too small. */
static void check_layers_placed(const sl_plan *plan, unsigned layers) {
    const sl_deployment *d = &plan->deployment;
    uint64_t host = 0, largest = 0, ends[DENSE_LAYERS] = {0};
    bool on_host[64] = {false};
    for (int32_t i = 0; i < d->program->op_count; i++) {
        const sl_op *op = &d->program->ops[i];
        int32_t weights[SL_OP_WEIGHTS];
        const int32_t count = sl_op_weights(op, weights);
        for (int32_t w = 0; w < count; w++) {
            if (weights[w] != SL_NONE && op->kind == SL_OP_LINEAR && op->layer >= 0) {
                on_host[weights[w]] = layers >> op->layer & 1u;
            }
        }
    }
    for (int32_t u = 0; u < d->weight_count; u++) {
        const sl_weight_use *use = &d->weights[u];
        assert_int_equal(use->on_host, on_host[use->weight]);
        if (use->on_host) {
            assert_true(layers >> d->fetch_sets[use->set].layer & 1u);
            assert_int_equal(use->in_buffer, ends[use->set]);
            ends[use->set] += (use->bytes + 255) / 256 * 256;
            largest = ends[use->set] > largest ? ends[use->set] : largest;
            host += (use->bytes + 63) / 64 * 64;
        }
    }
    const uint64_t buffers = d->fetch_set_count < 2 ? 1 : 2;
    assert_int_equal(d->buffer_bytes, largest);
    assert_int_equal(d->pool_bytes[SL_POOL_FETCHED], buffers * largest);
    assert_int_equal(d->pool_bytes[SL_POOL_HOST_WEIGHTS], host);
    uint64_t listed = 0;
    for (int32_t i = 0; i < plan->memory_count; i++) {
        listed += plan->memory[i].pool == SL_POOL_FETCHED ? plan->memory[i].bytes : 0;
    }
    assert_int_equal(listed, buffers * largest);
}

/* A bit for each layer in host memory. They are the last ones of runs of layers that are alike in length. */
static unsigned spread_of(const sl_deployment *d) {
    const int32_t count = d->fetch_set_count, shortest = DENSE_LAYERS / count;
    unsigned layers = 0;
    int32_t last = -1;
    for (int32_t s = 0; s < count; s++) {
        const int32_t run = d->fetch_sets[s].layer - last;
        assert_true(run == shortest || (DENSE_LAYERS % count > 0 && run == shortest + 1));
        last = d->fetch_sets[s].layer;
        layers |= 1u << last;
    }
    assert_int_equal(last, DENSE_LAYERS - 1);
    return layers;
}

/* As many as were asked for; in every bucket. */
static void layers_may_lie_in_host_memory(void **state) {
    (void)state;
    sl_program p = {0};
    dense_build(&p, false);
    fake_backend backend = fake(true, false);
    for (int32_t layers = 1; layers <= DENSE_LAYERS + 1; layers++) {
        const int32_t count = layers < DENSE_LAYERS ? layers : DENSE_LAYERS;
        sl_plan_options options = DENSE_OPTIONS;
        options.host_layers = layers;
        sl_plan *plan = make(&p, &backend, &options);
        assert_int_equal(plan->options.host_layers, count);
        assert_int_equal(plan->deployment.fetch_set_count, count);
        assert_true(plan->deployment.bucket_count > 2);
        const unsigned spread = spread_of(&plan->deployment);
        for (int32_t b = 0; b < plan->deployment.bucket_count; b++) {
            check_layers_fetched(&p, &plan->deployment.buckets[b], spread);
        }
        check_layers_placed(plan, spread);
        sl_buffer text = {0};
        char expected[80];
        sl_plan_print_memory(plan, &text);
        snprintf(expected, sizeof expected, "%d, of one layer's weights each", count < 2 ? 1 : 2);
        assert_non_null(strstr(text.data, expected));
        snprintf(expected, sizeof expected, "weights of %d layers in host memory", (int)count);
        assert_non_null(strstr(text.data, expected));
        sl_plan_print_ops(plan, 0, &text);
        assert_non_null(strstr(text.data, "fetch weights of the layer"));
        sl_buffer_free(&text);
        sl_plan_destroy(plan);
    }
    sl_program_free(&p);
}

static int refused(sl_program *p, fake_backend *backend, const sl_plan_options *options, const char *why) {
    sl_error error;
    sl_plan *plan = NULL;
    const int code = sl_plan_create(p, &backend->base, options, &plan, &error);
    assert_null(plan);
    if (code && !strstr(error.message, why)) {
        fail_msg("%s", error.message);
    }
    return code;
}

/* With the bytes that a plan with so many layers takes, these, and with a byte less more of them. Two buffers
 * take the room of two layers, so that three are the least that help; and buffers are of the widest. */
static void as_few_layers_as_must_be(void **state) {
    (void)state;
    sl_program p = {0};
    dense_build(&p, false);
    fake_backend backend = fake(true, false);
    uint64_t bytes[DENSE_LAYERS + 1];
    sl_plan_options options = DENSE_OPTIONS;
    for (int32_t layers = 0; layers <= DENSE_LAYERS; layers++) {
        options.host_layers = layers;
        sl_plan *plan = make(&p, &backend, &options);
        bytes[layers] = sl_plan_bytes(plan);
        sl_plan_destroy(plan);
    }
    for (int32_t layers = 0; layers <= DENSE_LAYERS; layers++) {
        int32_t least = 0;
        while (bytes[least] > bytes[layers]) {
            least++;
        }
        options.host_layers = SL_NONE;
        backend.available = bytes[layers];
        sl_plan *plan = make(&p, &backend, &options);
        assert_int_equal(plan->options.host_layers, least);
        assert_int_equal(plan->deployment.fetch_set_count, least);
        assert_true(sl_plan_bytes(plan) == bytes[least] && least != 1 && least != 2);
        sl_plan_destroy(plan);
    }
    assert_true(bytes[DENSE_LAYERS] < bytes[0]);
    backend.available = bytes[DENSE_LAYERS] - 1;
    assert_int_equal(refused(&p, &backend, &options, "buffers "), SL_ERR_LIMIT);
    options.observe = true;
    options.host_layers = 3;
    assert_int_equal(refused(&p, &backend, &options, "on the device"), SL_ERR_UNSUPPORTED);
    sl_program_free(&p);
}

/* The host's limit bounds those that were asked for and those that are chosen. */
static void layers_keep_to_the_hosts_limit(void **state) {
    (void)state;
    sl_program p = {0};
    dense_build(&p, false);
    fake_backend backend = fake(true, false);
    sl_plan_options options = DENSE_OPTIONS;
    options.host_layers = 4;
    sl_plan *plan = make(&p, &backend, &options);
    const uint64_t host = plan->deployment.pool_bytes[SL_POOL_HOST_WEIGHTS], four = sl_plan_bytes(plan);
    sl_plan_destroy(plan);
    options.host_memory_limit = host;
    plan = make(&p, &backend, &options);
    sl_plan_destroy(plan);
    options.host_memory_limit = host - 1;
    assert_int_equal(refused(&p, &backend, &options, "the weights of 4 layers need"), SL_ERR_LIMIT);
    options.host_layers = SL_NONE;
    options.host_memory_limit = host;
    backend.available = four;
    plan = make(&p, &backend, &options);
    assert_int_equal(plan->options.host_layers, 4);
    sl_plan_destroy(plan);
    backend.available = four - 1;
    assert_int_equal(
        refused(&p, &backend, &options, "has room for the weights of 4 of 8 layers: plan: needs"),
        SL_ERR_LIMIT);
    options.limits[0] = (sl_device_limit){"cpu", 1};
    assert_int_equal(refused(&p, &backend, &options, "limit 1, has room for the weights of 0 of 8 layers"),
                     SL_ERR_LIMIT);
    sl_program_free(&p);
}

/* Two layers that read one matrix keep all of theirs on the device. */
static void shared_weights_stay(void **state) {
    (void)state;
    sl_program p = {0};
    dense_build(&p, true);
    fake_backend backend = fake(true, false);
    sl_plan_options options = DENSE_OPTIONS;
    options.host_layers = DENSE_LAYERS;
    sl_plan *plan = make(&p, &backend, &options);
    for (int32_t b = 0; b < plan->deployment.bucket_count; b++) {
        check_layers_fetched(&p, &plan->deployment.buckets[b], 0x3f);
    }
    check_layers_placed(plan, 0x3f);
    /* A FETCH without experts has no slots. */
    sl_lowered *lowered = &plan->deployment.buckets[0];
    int32_t at = 0;
    while (lowered->ops[at].kind != SL_OP_FETCH) {
        at++;
    }
    lowered->ops[at].u.fetch.slots = 1;
    assert_int_not_equal(
        sl_ops_check(&p, lowered->values, lowered->value_count, lowered->ops, lowered->op_count, NULL), 0);
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

/* Every allocation fails once while layers are chosen. */
static void memory_failures_leave_nothing(void **state) {
    (void)state;
    sl_program p = {0};
    dense_build(&p, false);
    fake_backend backend = fake(true, false);
    sl_plan_options options = DENSE_OPTIONS;
    options.host_layers = 4;
    sl_plan *plan = make(&p, &backend, &options);
    backend.available = sl_plan_bytes(plan);
    sl_plan_destroy(plan);
    options.host_layers = SL_NONE;
    const uint64_t live = sl_alloc_live_bytes();
    int code = SL_ERR_NOMEM;
    for (uint64_t n = 1; code; n++) {
        sl_error error = {0};
        plan = NULL;
        sl_alloc_fail_at(n);
        code = sl_plan_create(&p, &backend.base, &options, &plan, &error);
        sl_alloc_fail_at(0);
        assert_true(code == 0 || code == SL_ERR_NOMEM);
        assert_true(code == 0 || !plan);
        sl_plan_destroy(plan);
        assert_int_equal(sl_alloc_live_bytes(), live);
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
        cmocka_unit_test(layers_may_lie_in_host_memory),
        cmocka_unit_test(as_few_layers_as_must_be),
        cmocka_unit_test(layers_keep_to_the_hosts_limit),
        cmocka_unit_test(shared_weights_stay),
        cmocka_unit_test(memory_failures_leave_nothing),
        cmocka_unit_test(limits_are_by_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
