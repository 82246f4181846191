/* Plans, with a backend of fake kernels: nothing here computes, all of it is decided. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "unit/plan/fake_backend.h"

#include <stdlib.h>

/* ---- lowering ---- */

static void kernels_are_chosen(void **state) {
    (void)state;
    static const char *const expected[] = {
        "begin", "embed",
        /* attention: q and k read int8, v reads the floats */
        "rmsnorm", "quantize", "linear/q8_0", "linear/f16", "rope", "cache_write", "attention", "quantize",
        "linear/q4_0/wide", "rmsnorm", "quantize", "linear/q4_0/wide", "activate", "quantize",
        "linear/q4_0/wide",
        /* delta net: one normed copy for two of the four matrices */
        "rmsnorm", "quantize", "linear/q4_0/wide", "linear/f32", "conv", "delta_scan", "ssm_scan", "rmsnorm",
        "quantize", "linear/q4_0/wide",
        /* experts: the copy of `normed` serves the experts and the shared matrix */
        "rmsnorm", "quantize", "linear/f32", "router", "linear/q4_0/wide", "activate", "quantize",
        "linear/q4_0/wide", "linear/q4_0/wide", "linear/f32", "combine", "gather", "rmsnorm", "quantize",
        "linear/q4_0/wide", "softcap", "sample"};
    sl_program p = {0};
    sl_error error;
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(false, true);
    sl_plan *plan = make(&p, &backend, NULL);
    assert_int_equal(plan->deployment.bucket_count, 1);
    const sl_lowered *lowered = &plan->deployment.buckets[0];
    for (int32_t i = 0; i < lowered->op_count; i++) {
        assert_in_range(i, 0, sizeof expected / sizeof *expected - 1);
        assert_string_equal(lowered->kernels[i]->name, expected[i]);
    }
    assert_int_equal(lowered->op_count, sizeof expected / sizeof *expected);
    /* What was lowered is a program still, and the check holds for it as well. */
    assert_int_equal(
        sl_ops_check(&p, lowered->values, lowered->value_count, lowered->ops, lowered->op_count, &error), 0);
    /* the split of qkv */
    const sl_op *q_k = &lowered->ops[4], *v = &lowered->ops[5];
    assert_int_equal(q_k->u.linear.segment_count, 2);
    assert_int_equal(q_k->u.linear.segments[1].column, 64);
    assert_int_equal(q_k->in[0].value, lowered->ops[3].out[0].value);
    assert_string_equal(lowered->values[q_k->in[0].value].name, "normed.q8_32");
    assert_int_equal(v->u.linear.segment_count, 1);
    assert_int_equal(v->u.linear.segments[0].column, 96);
    assert_int_equal(v->in[0].value, 1);
    /* a residual stays with the linear */
    assert_int_equal(lowered->ops[10].in[3].value, 0);
    /* EXPERT rows stay so */
    assert_int_equal(lowered->values[lowered->ops[32].out[0].value].rows, SL_ROWS_EXPERT);
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

/* ---- plans that pack nothing ---- */

/* The one kernel that packs reads the file's bytes as well. */
static const sl_kernel *const *willing_kernels(const sl_backend *backend, int32_t *count) {
    static fake_kernel willing;
    static const sl_kernel *list[FAKE_COUNT];
    const sl_kernel *const *others = fake_kernels(backend, count);
    for (int32_t i = 0; i < *count; i++) {
        list[i] = others[i];
        if (others[i]->pack) {
            willing = *(const fake_kernel *)others[i];
            willing.base.takes_unpacked = true;
            list[i] = &willing.base;
        }
    }
    return list;
}

static const sl_backend_functions WILLING_FUNCTIONS = {.kernels = willing_kernels,
                                                       .memory_available = fake_available};

static int32_t packed_uses(const sl_plan *plan) {
    int32_t count = 0;
    for (int32_t u = 0; u < plan->deployment.weight_count; u++) {
        count += plan->deployment.weights[u].layout != NULL;
    }
    return count;
}

static void nothing_is_packed_where_that_is_switched_off(void **state) {
    (void)state;
    sl_program p = {0};
    sl_error error;
    sl_plan *plan = NULL;
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(false, true);
    backend.base.options.no_repack = true;
    assert_int_equal(sl_plan_create(&p, &backend.base, NULL, &plan, &error), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "linear/q8_0: packs its weights, and repacking is switched off"));

    backend.base.functions = &WILLING_FUNCTIONS;
    plan = make(&p, &backend, NULL);
    assert_int_equal(packed_uses(plan), 0);
    assert_true(plan->deployment.pool_bytes[SL_POOL_WEIGHTS] == 0);
    const uint64_t all = plan->mapped_bytes;
    sl_plan_destroy(plan);
    backend.base.options.no_repack = false;
    plan = make(&p, &backend, NULL);
    assert_true(packed_uses(plan) > 0 && plan->deployment.pool_bytes[SL_POOL_WEIGHTS] > 0);
    assert_true(plan->mapped_bytes < all);
    sl_plan_destroy(plan);
    /* Where weights are copied anyway they are packed. */
    backend = fake(false, false);
    backend.base.options.no_repack = true;
    plan = make(&p, &backend, NULL);
    assert_true(packed_uses(plan) > 0);
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

/* ---- plans that observe ---- */

static const sl_kernel *const *observing_kernels(const sl_backend *backend, int32_t *count) {
    static const fake_kernel observer = KERNEL("observe", OBSERVE, "f64", F32, -1, 0, 0);
    static const sl_kernel *list[FAKE_COUNT + 1];
    const sl_kernel *const *others = fake_kernels(backend, count);
    memcpy(list, others, (size_t)*count * sizeof *list);
    list[(*count)++] = &observer.base;
    return list;
}

static const sl_backend_functions OBSERVING_FUNCTIONS = {.kernels = observing_kernels,
                                                         .memory_available = fake_available};

/* The OBSERVEs of a lowered list are those of the program's linears, in order, and read what they read. */
static int32_t check_observed(const sl_program *p, const sl_lowered *lowered) {
    int32_t at = 0, count = 0;
    for (int32_t i = 0; i < p->op_count; i++) {
        const sl_op *linear = &p->ops[i];
        for (int32_t s = 0; linear->kind == SL_OP_LINEAR && s < linear->u.linear.segment_count; s++) {
            while (at < lowered->op_count && lowered->ops[at].kind != SL_OP_OBSERVE) {
                at++;
            }
            assert_true(at < lowered->op_count);
            const sl_op *op = &lowered->ops[at++];
            assert_int_equal(op->u.observe.weight, linear->u.linear.segments[s].weight);
            assert_int_equal(op->in[0].value, linear->in[0].value);
            assert_int_equal(op->in[0].column, linear->in[0].column);
            assert_int_equal(op->in[1].value, linear->in[2].value);
            count++;
        }
        /* In front of it: behind its last OBSERVE comes a linear. */
        assert_true(linear->kind != SL_OP_LINEAR || lowered->ops[at].kind == SL_OP_LINEAR);
    }
    return count;
}

static void observing_plans(void **state) {
    (void)state;
    sl_program p = {0};
    sl_error error;
    sl_plan *plan = NULL;
    tiny_build(&p, &TYPES);
    const sl_plan_options options = {
        .chunk = 16, .sequences = 2, .context = 130, .cache_type = SL_QTYPE_F16, .observe = true};
    fake_backend backend = fake(true, true);
    assert_int_equal(sl_plan_create(&p, &backend.base, &options, &plan, &error), SL_ERR_UNSUPPORTED);
    assert_string_equal(error.message,
                        "observe, layer 0: no kernel of backend fake takes it: it has none of this kind");

    backend.base.functions = &OBSERVING_FUNCTIONS;
    plan = make(&p, &backend, &options);
    const sl_deployment *deployment = &plan->deployment;
    for (int32_t b = 0; b < deployment->bucket_count; b++) {
        const sl_lowered *lowered = &deployment->buckets[b];
        assert_int_equal(check_observed(&p, lowered), 19);
        assert_int_equal(
            sl_ops_check(&p, lowered->values, lowered->value_count, lowered->ops, lowered->op_count, &error),
            0);
    }
    uint64_t bytes = 0;
    int32_t observed = 0;
    for (int32_t w = 0; w < p.weight_count; w++) {
        const uint64_t offset = deployment->observations[w];
        if (offset != UINT64_MAX) {
            assert_true(w == 0 || offset == bytes); /* one behind the other, in the order of the linears */
            bytes += (uint64_t)p.weights[w].experts * ((uint64_t)p.weights[w].columns + 1) * sizeof(double);
            observed++;
        }
        if (w == 0) {
            bytes = 0; /* the table, which is the head's too, comes last */
        }
    }
    assert_int_equal(observed, 19);
    assert_int_equal(deployment->observations[0], bytes);
    assert_int_equal(deployment->pool_bytes[SL_POOL_OBSERVATIONS], bytes + (64 + 1) * sizeof(double));
    total_of(plan);
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

/* ---- fusions ---- */

static const char *unfit(const sl_fusion *fusion, const sl_fusion_query *query) {
    (void)fusion;
    return query->unread[0][0] ? NULL : "somebody reads the norm";
}
static const char *never(const sl_fusion *fusion, const sl_fusion_query *query) {
    (void)fusion;
    (void)query;
    return "the three do not fit";
}

static const sl_fusion ACTIVATED = {.name = "linear+activate+quantize",
                                    .count = 3,
                                    .ops = {SL_OP_LINEAR, SL_OP_ACTIVATE, SL_OP_QUANTIZE},
                                    .declines = never};
static const sl_fusion NORMED = {
    .name = "rmsnorm+quantize", .count = 2, .ops = {SL_OP_RMSNORM, SL_OP_QUANTIZE}, .declines = unfit};
static const sl_fusion ROTATED = {
    .name = "rope+cache_write", .count = 2, .ops = {SL_OP_ROPE, SL_OP_CACHE_WRITE}, .declines = NULL};

static const sl_fusion *const *fake_fusions(const sl_backend *backend, int32_t *count) {
    static const sl_fusion *const list[] = {&ACTIVATED, &NORMED, &ROTATED};
    (void)backend;
    *count = 3;
    return list;
}

static const sl_backend_functions FUSING_FUNCTIONS = {
    .kernels = fake_kernels, .fusions = fake_fusions, .memory_available = fake_available};

static bool apart(const sl_lowered *lowered, int32_t a, int32_t b) {
    const uint64_t first = lowered->value_offsets[a], second = lowered->value_offsets[b];
    return first + sl_value_bytes(&lowered->values[a], lowered->rows) <= second ||
           second + sl_value_bytes(&lowered->values[b], lowered->rows) <= first;
}

static const char *reason_for(const sl_plan *plan, int32_t op, const char *name) {
    for (int32_t i = 0; i < plan->declined_count; i++) {
        if (plan->declined[i].op == op && strcmp(plan->declined[i].name, name) == 0) {
            return plan->declined[i].reason;
        }
    }
    return "";
}

/* The op numbers are those of kernels_are_chosen. */
static void runs_are_fused(void **state) {
    (void)state;
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(false, true);
    backend.base.functions = &FUSING_FUNCTIONS;
    sl_plan *plan = make(&p, &backend, NULL);
    const sl_lowered *lowered = &plan->deployment.buckets[0];
    /* v reads the first norm as floats */
    assert_null(lowered->fusions[2]);
    assert_string_equal(reason_for(plan, 2, "rmsnorm+quantize"), "somebody reads the norm");
    assert_ptr_equal(lowered->fusions[6], &ROTATED);
    assert_null(lowered->fusions[7]);
    assert_ptr_equal(lowered->fusions[11], &NORMED);
    assert_true(lowered->unread[11][0]);
    assert_false(lowered->unread[12][0]);
    assert_null(lowered->fusions[13]);
    assert_string_equal(reason_for(plan, 13, "linear+activate+quantize"), "the three do not fit");
    /* A run is one moment: what it reads and what it writes lie apart, unread or not. */
    const int32_t x = lowered->ops[11].in[0].value, y = lowered->ops[11].out[0].value;
    const int32_t q = lowered->ops[12].out[0].value;
    assert_true(apart(lowered, x, q) && (x == y || apart(lowered, x, y)) && apart(lowered, y, q));
    for (int32_t i = 1; i < plan->declined_count; i++) {
        assert_true(plan->declined[i - 1].op <= plan->declined[i].op);
    }
    sl_plan_destroy(plan);
    backend.base.options.no_fusion = true;
    plan = make(&p, &backend, NULL);
    for (int32_t op = 0; op < plan->deployment.buckets[0].op_count; op++) {
        assert_null(plan->deployment.buckets[0].fusions[op]);
    }
    assert_string_equal(reason_for(plan, 11, "rmsnorm+quantize"), "fusion is switched off");
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

/* ---- fusions with a numeric class ---- */

static uint64_t run_scratch(const sl_fusion *fusion, const sl_fusion_query *query) {
    (void)fusion;
    return 4096 * (uint64_t)query->rows[SL_ROWS_STEP];
}

static const sl_fusion CLASSED = {.name = "rmsnorm+quantize",
                                  .numeric_class = "of its own",
                                  .count = 2,
                                  .ops = {SL_OP_RMSNORM, SL_OP_QUANTIZE},
                                  .workspace = run_scratch};

static const sl_fusion *const *classed_fusions(const sl_backend *backend, int32_t *count) {
    static const sl_fusion *const list[] = {&CLASSED};
    (void)backend;
    *count = 1;
    return list;
}

static const sl_backend_functions CLASSED_FUNCTIONS = {
    .kernels = fake_kernels, .fusions = classed_fusions, .memory_available = fake_available};

static void runs_may_have_a_class(void **state) {
    (void)state;
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(true, true);
    backend.base.functions = &CLASSED_FUNCTIONS;
    sl_plan *plan = make(&p, &backend, NULL);
    const int32_t last = plan->deployment.bucket_count - 1;
    const sl_lowered *lowered = &plan->deployment.buckets[last];
    int32_t run = 0;
    while (run < lowered->op_count && !lowered->fusions[run]) {
        run++;
    }
    assert_true(run < lowered->op_count);
    assert_true(lowered->scratch_offsets[run] > 0);
    assert_true(lowered->scratch_offsets[run] + 4096 * (uint64_t)lowered->rows[SL_ROWS_STEP] <=
                plan->deployment.pool_bytes[SL_POOL_WORKSPACE]);
    sl_buffer text = {0};
    sl_plan_explain(plan, &text);
    assert_non_null(strstr(text.data, ", its work done by rmsnorm+quantize (of its own)\n"));
    sl_buffer_free(&text);
    sl_plan_destroy(plan);
    backend.base.options.deterministic = true;
    plan = make(&p, &backend, NULL);
    for (int32_t op = 0; op < plan->deployment.buckets[0].op_count; op++) {
        assert_null(plan->deployment.buckets[0].fusions[op]);
    }
    assert_string_equal(reason_for(plan, run, "rmsnorm+quantize"), "its bits depend on how steps are cut");
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

static const char *reason_of(const sl_plan *plan, int32_t bucket, const char *kernel, const char *weight) {
    for (int32_t i = 0; i < plan->declined_count; i++) {
        const sl_declined *declined = &plan->declined[i];
        const sl_op *op = &plan->deployment.buckets[bucket].ops[declined->op];
        if (declined->bucket == bucket && op->kind == SL_OP_LINEAR && strcmp(declined->name, kernel) == 0 &&
            strcmp(plan->deployment.program->weights[op->u.linear.segments[0].weight].name, weight) == 0) {
            return declined->reason;
        }
    }
    return "";
}

static void reasons_are_kept(void **state) {
    (void)state;
    sl_program p = {0};
    sl_error error;
    sl_plan *plan;
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(false, true);
    plan = make(&p, &backend, NULL);
    assert_string_equal(reason_of(plan, 0, "linear/q4_0/wide", "0.q"), "another weight type");
    assert_string_equal(reason_of(plan, 0, "linear/q4_0/wide", "0.out"), "");
    sl_plan_destroy(plan);
    plan = make(&p, &backend, &(sl_plan_options){.chunk = 3});
    assert_string_equal(reason_of(plan, 0, "linear/q4_0/wide", "0.out"), "too few rows");
    sl_plan_destroy(plan);
    backend.hidden = 3;
    assert_int_equal(sl_plan_create(&p, &backend.base, NULL, &plan, &error), SL_ERR_UNSUPPORTED);
    assert_null(plan);
    assert_string_equal(error.message,
                        "linear, layer 0, weight 0.out of type q4_0: no kernel of backend fake takes it: "
                        "linear/q8_0: another weight type; linear/f16: another weight type; linear/f32: "
                        "another weight type");
    backend.hidden = 7;
    assert_int_equal(sl_plan_create(&p, &backend.base, NULL, &plan, &error), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "it has none of this kind"));
    sl_program_free(&p);
}

static const char *attention_with(fake_backend *backend, sl_program *program, const char *prefer) {
    sl_plan *plan = make(program, backend, &(sl_plan_options){.chunk = 8, .prefer = prefer});
    const sl_lowered *lowered = &plan->deployment.buckets[0];
    const char *name = "";
    for (int32_t i = 0; i < lowered->op_count; i++) {
        name = lowered->ops[i].kind == SL_OP_ATTENTION ? lowered->kernels[i]->name : name;
    }
    sl_plan_destroy(plan);
    return name;
}

static void some_kernels_are_for_deterministic_plans(void **state) {
    (void)state;
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(true, true);
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        backend.base.options.deterministic = deterministic;
        sl_plan *plan = make(&p, &backend, NULL);
        const sl_lowered *lowered = &plan->deployment.buckets[0];
        int32_t rope = 0;
        while (lowered->ops[rope].kind != SL_OP_ROPE) {
            rope++;
        }
        assert_string_equal(lowered->kernels[rope]->name, deterministic ? "rope/steady" : "rope");
        if (!deterministic) {
            assert_string_equal(reason_for(plan, rope, "rope/steady"), "is for deterministic plans");
        }
        sl_plan_destroy(plan);
    }
    sl_program_free(&p);
}

static void kernels_that_are_asked_for_come_first(void **state) {
    (void)state;
    sl_program p = {0};
    sl_error error;
    sl_plan *plan;
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(true, true);
    assert_string_equal(attention_with(&backend, &p, NULL), "attention");
    assert_string_equal(attention_with(&backend, &p, ""), "attention");
    assert_string_equal(attention_with(&backend, &p, "linear/q4_0,attention/as"), "attention/asked");
    assert_string_equal(attention_with(&backend, &p, "attention/cut,rope"), "attention/cut");
    backend.base.options.deterministic = true; /* asked for or not, it declines */
    assert_string_equal(attention_with(&backend, &p, "attention/cut"), "attention");
    plan = make(&p, &backend, &(sl_plan_options){.prefer = "attention/cut"});
    int32_t attention = 0;
    while (plan->deployment.buckets[0].ops[attention].kind != SL_OP_ATTENTION) {
        attention++;
    }
    assert_string_equal(reason_for(plan, attention, "attention/cut"), "its bits depend on how steps are cut");
    sl_plan_destroy(plan);
    assert_int_equal(
        sl_plan_create(&p, &backend.base, &(sl_plan_options){.prefer = "rope,attention/x"}, &plan, &error),
        SL_ERR_INVALID);
    assert_string_equal(error.message,
                        "plan: kernel \"attention/x\": no kernel of backend fake has a name that "
                        "begins so");
    assert_int_equal(sl_plan_create(&p, &backend.base, &(sl_plan_options){.prefer = ","}, &plan, &error),
                     SL_ERR_INVALID);
    sl_program_free(&p);
}

static void prompt_precisions_choose_kernels(void **state) {
    (void)state;
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    static const char *const notes[SL_PRECISION_COUNT] = {
        NULL, "\nprompt precision bf16\n", "\nprompt precision int8\n",
        "\nprompt precision fp8: no product of this plan is computed so\n"};
    for (int precision = 0; precision < SL_PRECISION_COUNT; precision++) {
        fake_backend backend = fake(true, true);
        backend.base.options.prompt_precision = (sl_precision)precision;
        const bool taken = precision == SL_PRECISION_INT8;
        assert_string_equal(attention_with(&backend, &p, NULL), taken ? "attention/narrow" : "attention");
        assert_string_equal(attention_with(&backend, &p, "attention/narrow"), "attention/narrow");
        sl_plan *plan = make(&p, &backend, NULL);
        sl_buffer text = {0};
        sl_plan_explain(plan, &text);
        sl_buffer_append(&text, "", 1);
        assert_true(notes[precision] ? strstr(text.data, notes[precision]) != NULL
                                     : strstr(text.data, "prompt precision ") == NULL);
        assert_int_equal(strstr(text.data, "attention/narrow: is for another prompt precision") != NULL,
                         !taken);
        sl_buffer_free(&text);
        sl_plan_destroy(plan);
    }
    sl_program_free(&p);
}

static void copies_are_shared_until_overwritten(void **state) {
    (void)state;
    sl_program p = {0};
    p.width = p.vocabulary = 64;
    p.hidden = p.logits = p.tokens = SL_NONE;
    const int32_t a = sl_program_value(&p, "a", SL_ROWS_STEP, 128),
                  b = sl_program_value(&p, "b", SL_ROWS_STEP, 128);
    const int32_t whole = tiny_matrix(&p, "whole", SL_QTYPE_Q4_0, 1, 64, 128);
    const int32_t half = tiny_matrix(&p, "half", SL_QTYPE_Q4_0, 1, 64, 64);
    const int32_t table = tiny_matrix(&p, "table", SL_QTYPE_F16, 1, 64, 128);
    tiny_op(&p, SL_OP_EMBED, 0, SL_NONE, a)->u.embed.weight = table;
    tiny_linear(&p, 1, a, b, whole);                    /* quantises a */
    tiny_linear(&p, 2, a, b, whole);                    /* shares */
    tiny_linear(&p, 3, a, b, half)->in[0].column = 32;  /* another part: quantises */
    tiny_linear(&p, 4, a, b, half)->in[0].column = 32;  /* shares */
    tiny_linear(&p, 5, a, b, half);                     /* another part: quantises */
    tiny_linear(&p, 6, b, a, half)->out[0].column = 64; /* quantises b; a[0:64] stays as it was */
    tiny_linear(&p, 7, a, b, half)->out[0].column = 64; /* shares that of 5 */
    tiny_linear(&p, 8, a, b, whole);                    /* stale: quantises again */
    tiny_linear(&p, 9, a, b, half)->in[0].column = 32;  /* stale too */
    fake_backend backend = fake(false, true);
    sl_plan *plan = make(&p, &backend, NULL);
    const sl_lowered *lowered = &plan->deployment.buckets[0];
    const int expected[] = {0, 1, 0, 1, 0, 1, 1, 0, 1, 1};
    int quantised[10] = {0};
    for (int32_t i = 0; i < lowered->op_count; i++) {
        quantised[lowered->ops[i].layer] += lowered->ops[i].kind == SL_OP_QUANTIZE;
    }
    assert_memory_equal(quantised, expected, sizeof expected);
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

static void an_odd_width_is_not_quantised(void **state) {
    (void)state;
    sl_program p = {0};
    sl_error error;
    sl_plan *plan;
    tiny_build(&p, &TYPES);
    for (int32_t i = 0; i < p.op_count;
         i++) { /* x of all quantised linears from column 16 on: no group begins there */
        if (p.ops[i].kind == SL_OP_LINEAR && p.ops[i].in[0].value == 5) {
            p.values[5].width += 16;
            p.ops[i].in[0].column = p.ops[i - 1].out[0].column = 16;
        }
    }
    fake_backend backend = fake(false, true);
    assert_int_equal(sl_plan_create(&p, &backend.base, NULL, &plan, &error), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "x is no whole number of groups of 32"));
    sl_program_free(&p);
}

/* ---- numeric classes ---- */

static const char *kernel_for(const sl_plan *plan, int32_t bucket, const char *weight) {
    const sl_lowered *lowered = &plan->deployment.buckets[bucket];
    for (int32_t i = 0; i < lowered->op_count; i++) {
        const sl_op *op = &lowered->ops[i];
        if (op->kind == SL_OP_LINEAR &&
            strcmp(plan->deployment.program->weights[op->u.linear.segments[0].weight].name, weight) == 0) {
            return lowered->kernels[i]->name;
        }
    }
    return "";
}

static void one_class_in_every_bucket(void **state) {
    (void)state;
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(true, true);
    const sl_plan_options options = {.chunk = 16, .sequences = 1};
    sl_plan *plan = make(&p, &backend, &options); /* 1 2 4 8 16 */
    assert_int_equal(plan->deployment.bucket_count, 5);
    assert_string_equal(kernel_for(plan, 0, "0.out"), "linear/q4_0");
    assert_string_equal(kernel_for(plan, 2, "0.out"), "linear/q4_0/wide");
    assert_string_equal(kernel_for(plan, 4, "0.out"), "linear/q4_0/wide");
    sl_plan_destroy(plan);
    /* The wide class has nothing for one row, so that no bucket may take it. */
    backend.base.options.deterministic = true;
    plan = make(&p, &backend, &options);
    assert_string_equal(kernel_for(plan, 0, "0.out"), "linear/q4_0");
    assert_string_equal(kernel_for(plan, 2, "0.out"), "linear/q4_0");
    assert_string_equal(kernel_for(plan, 3, "0.out"), "linear/q4_0/many");
    assert_string_equal(kernel_for(plan, 4, "0.out"), "linear/q4_0/many");
    assert_string_equal(reason_of(plan, 4, "linear/q4_0/wide", "0.out"),
                        "no kernels of its numeric class take every number of rows");
    assert_string_equal(reason_of(plan, 3, "linear/q4_0/wide", "0.out"),
                        "another numeric class than the bucket of 16 rows");
    for (int32_t b = 1; b < plan->deployment.bucket_count; b++) {
        const sl_lowered *one = &plan->deployment.buckets[0], *other = &plan->deployment.buckets[b];
        assert_int_equal(one->op_count, other->op_count);
        for (int32_t i = 0; i < one->op_count; i++) {
            assert_string_equal(one->kernels[i]->numeric_class, other->kernels[i]->numeric_class);
        }
    }
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

/* ---- one class for any number of rows
 * ------------------------------------------------------------------------------------ */

/* Kernels for some numbers of rows only, of the op's own kind of rows. A class of several such kernels may
 * take all numbers, all but some in the middle, or all but the largest. */
typedef struct ranged_kernel {
    sl_kernel base;
    int32_t least, most;
} ranged_kernel;

static const char *ranged_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const ranged_kernel *ranged = (const ranged_kernel *)kernel;
    const sl_op *op = query->op;
    const int32_t rows = query->rows[query->values[op->out[0].value].rows];
    if (op->kind == SL_OP_LINEAR &&
        query->program->weights[op->u.linear.segments[0].weight].type != SL_QTYPE_Q4_0) {
        return "another weight type";
    }
    return rows < ranged->least ? "too few rows" : rows > ranged->most ? "too many rows" : NULL;
}

#define RANGED(label, kind, class_name, format, least_rows, most_rows, ...)                                  \
    {                                                                                                        \
        {.name = label,                                                                                      \
         .op = SL_OP_##kind,                                                                                 \
         .numeric_class = class_name,                                                                        \
         .activation = SL_VALUE_##format,                                                                    \
         .declines = ranged_declines,                                                                        \
         __VA_ARGS__},                                                                                       \
            least_rows, most_rows                                                                            \
    }
/* In front of all others, so that each would be taken wherever it can be. */
static const ranged_kernel RANGED_KERNELS[] = {
    RANGED("linear/few", LINEAR, "few", F32, 1, 8),
    RANGED("linear/hole-few", LINEAR, "hole", Q8_32, 1, 15),
    RANGED("linear/hole-many", LINEAR, "hole", Q8_32, 17, INT32_MAX),
    RANGED("linear/tail", LINEAR, "tail", F32, 1, 5000),
    RANGED("linear/split-few", LINEAR, "split", Q8_32, 1, 16),
    RANGED("linear/split-many", LINEAR, "split", Q8_32, 9, INT32_MAX),
    RANGED("attention/exact", ATTENTION, "exact", F32, 1, 8), /* a class that other kinds of op complete */
    RANGED("attention/few", ATTENTION, "f16", F32, 1, 8),
    RANGED("attention/cut-many", ATTENTION, "f16", F32, 9, INT32_MAX, .cut_dependent = true),
    RANGED("attention/asked-many", ATTENTION, "f16", F32, 9, INT32_MAX, .on_request = true),
};
enum { RANGED_COUNT = sizeof RANGED_KERNELS / sizeof *RANGED_KERNELS };

static const sl_kernel *const *ranged_kernels(const sl_backend *backend, int32_t *count) {
    static const sl_kernel *list[RANGED_COUNT + FAKE_COUNT];
    (void)backend;
    for (int32_t i = 0; i < RANGED_COUNT; i++) {
        list[i] = &RANGED_KERNELS[i].base;
    }
    for (int32_t i = 0; i < FAKE_COUNT; i++) {
        list[RANGED_COUNT + i] = &FAKES[i].base;
    }
    *count = RANGED_COUNT + FAKE_COUNT;
    return list;
}

static const sl_backend_functions RANGED_FUNCTIONS = {.kernels = ranged_kernels,
                                                      .memory_available = fake_available};

/* The one numeric class that a kind of op on that kind of rows has in all buckets; linears of q4_0 only. */
static const char *class_of(const sl_plan *plan, sl_op_kind kind, sl_rows rows) {
    const char *class_name = NULL;
    for (int32_t b = 0; b < plan->deployment.bucket_count; b++) {
        const sl_lowered *lowered = &plan->deployment.buckets[b];
        for (int32_t i = 0; i < lowered->op_count; i++) {
            const sl_op *op = &lowered->ops[i];
            if (op->kind != kind || lowered->values[op->out[0].value].rows != rows ||
                (kind == SL_OP_LINEAR &&
                 plan->deployment.program->weights[op->u.linear.segments[0].weight].type != SL_QTYPE_Q4_0)) {
                continue;
            }
            class_name = class_name ? class_name : lowered->kernels[i]->numeric_class;
            assert_string_equal(class_name, lowered->kernels[i]->numeric_class);
        }
    }
    assert_non_null(class_name);
    return class_name;
}

/* However large a step may be: the class that would serve all of a plan's own buckets is another one for
 * nearly each of these, and so would be the bits of a text. */
static void one_class_however_large_steps_are(void **state) {
    (void)state;
    static const int32_t chunks[] = {1, 2, 7, 8, 9, 15, 16, 24, 64, 100, 512, 2000, 4096, 20000};
    static const int32_t sequences[] = {1, 3, 8, 40};
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(true, true);
    backend.base.functions = &RANGED_FUNCTIONS;
    backend.base.options.deterministic = true;
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        for (size_t s = 0; s < sizeof sequences / sizeof *sequences; s++) {
            sl_plan *plan =
                make(&p, &backend,
                     &(sl_plan_options){.chunk = chunks[c], .sequences = sequences[s], .context = 128});
            assert_string_equal(class_of(plan, SL_OP_LINEAR, SL_ROWS_STEP), "split");
            assert_string_equal(class_of(plan, SL_OP_LINEAR, SL_ROWS_EXPERT), "split");
            assert_string_equal(class_of(plan, SL_OP_LINEAR, SL_ROWS_OUTPUT), "split");
            assert_string_equal(class_of(plan, SL_OP_ATTENTION, SL_ROWS_STEP), "f32");
            /* Within the class the order counts, as always. */
            assert_string_equal(kernel_for(plan, 0, "0.out"), "linear/split-few");
            if (chunks[c] > 16) {
                assert_string_equal(kernel_for(plan, plan->deployment.bucket_count - 1, "0.out"),
                                    "linear/split-many");
            }
            const char *few =
                chunks[c] > 8 ? "too many rows" : "no kernels of its numeric class take every number of rows";
            assert_string_equal(reason_of(plan, plan->deployment.bucket_count - 1, "linear/few", "0.out"),
                                few);
            sl_plan_destroy(plan);
        }
    }
    /* Where that is not asked for, each bucket takes what comes first. */
    backend.base.options.deterministic = false;
    sl_plan *plan = make(&p, &backend, &(sl_plan_options){.chunk = 16, .sequences = 1, .context = 128});
    assert_string_equal(kernel_for(plan, 3, "0.out"), "linear/few");
    assert_string_equal(kernel_for(plan, 4, "0.out"), "linear/tail");
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

/* In front of all others: of steps of 9 rows and more. */
static const ranged_kernel COPYING =
    RANGED("linear/copied", LINEAR, "copied", F32, 9, INT32_MAX, .copies = true,
           .packed_bytes = fake_packed_bytes, .pack = fake_pack);

static const sl_kernel *const *copying_kernels(const sl_backend *backend, int32_t *count) {
    static const sl_kernel *list[1 + FAKE_COUNT];
    const sl_kernel *const *others = fake_kernels(backend, count);
    list[0] = &COPYING.base;
    memcpy(list + 1, others, (size_t)*count * sizeof *list);
    ++*count;
    return list;
}

static const sl_backend_functions COPYING_FUNCTIONS = {.kernels = copying_kernels,
                                                       .memory_available = fake_available};

/* Of the matrix "0.out" in the largest bucket: the kernel that it has, or why it has no copy. */
static void expect_copies(const sl_plan *plan, const char *kernel, const char *reason) {
    const int32_t largest = plan->deployment.bucket_count - 1;
    assert_string_equal(kernel_for(plan, largest, "0.out"), kernel);
    assert_string_equal(reason_of(plan, largest, "linear/copied", "0.out"), reason);
    assert_int_not_equal(strcmp(kernel_for(plan, 0, "0.out"), "linear/copied"), 0);
}

static void weights_are_copied_where_half_of_the_memory_is_left(void **state) {
    (void)state;
    static const char few[] = "second copies of weights would not leave half of the memory free",
                      never[] = "second copies of weights are switched off";
    sl_program p = {0};
    sl_error error;
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(true, false);
    backend.base.functions = &COPYING_FUNCTIONS;
    sl_plan_options options = {.chunk = 16, .sequences = 1, .context = 128};
    sl_plan *plan = make(&p, &backend, &options);
    expect_copies(plan, "linear/copied", "");
    const uint64_t most = total_of(plan);
    sl_plan_destroy(plan);
    const struct {
        uint64_t limit;
        sl_copies copies;
        const char *prefer, *kernel, *reason;
    } cases[] = {
        {2 * most, SL_COPIES_AUTO, NULL, "linear/copied", ""},
        {2 * most - 1, SL_COPIES_AUTO, NULL, "linear/q4_0/wide", few},
        {2 * most - 1, SL_COPIES_AUTO, "linear/copied", "linear/copied", ""},
        {2 * most, SL_COPIES_NEVER, NULL, "linear/q4_0/wide", never},
        {most, SL_COPIES_ALWAYS, NULL, "linear/copied", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        options.memory_limit = cases[i].limit;
        options.copies = cases[i].copies;
        options.prefer = cases[i].prefer;
        plan = make(&p, &backend, &options);
        expect_copies(plan, cases[i].kernel, cases[i].reason);
        assert_true(total_of(plan) <= cases[i].limit);
        sl_plan_destroy(plan);
    }
    options = (sl_plan_options){
        .chunk = 16, .sequences = 1, .context = 128, .memory_limit = most - 1, .copies = SL_COPIES_ALWAYS};
    assert_int_equal(sl_plan_create(&p, &backend.base, &options, &plan, &error), SL_ERR_LIMIT);
    sl_program_free(&p);
}

/* A kernel that no plan would take does not complete a class: one for requests only without a request, one
 * whose bits depend on how steps are cut ever. */
static void what_is_not_taken_completes_no_class(void **state) {
    (void)state;
    static const struct {
        const char *prefer;
        int32_t chunk;
        const char *expected, *name; /* class, and kernel of the first bucket */
    } cases[] = {
        {NULL, 8, "f32", "attention"},
        {NULL, 64, "f32", "attention"},
        {"attention/few", 8, "f32", "attention"},
        {"attention/few,attention/cut", 64, "f32", "attention"},
        {"attention/asked-many", 8, "f16", "attention/few"},
        {"attention/asked-many", 64, "f16", "attention/few"},
        {"attention/asked", 64, "f16", "attention/asked"}, /* and this one takes all */
    };
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(true, true);
    backend.base.functions = &RANGED_FUNCTIONS;
    backend.base.options.deterministic = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_plan *plan =
            make(&p, &backend,
                 &(sl_plan_options){
                     .chunk = cases[i].chunk, .sequences = 1, .context = 128, .prefer = cases[i].prefer});
        assert_string_equal(class_of(plan, SL_OP_ATTENTION, SL_ROWS_STEP), cases[i].expected);
        const sl_lowered *lowered = &plan->deployment.buckets[0];
        int32_t attention = 0;
        while (lowered->ops[attention].kind != SL_OP_ATTENTION) {
            attention++;
        }
        assert_string_equal(lowered->kernels[attention]->name, cases[i].name);
        sl_plan_destroy(plan);
    }
    sl_program_free(&p);
}

/* ---- buckets ---- */

static int32_t bucket_of(const sl_plan *plan, int32_t rows, int32_t outputs, int32_t spans) {
    const sl_step_header step = {.rows = rows, .outputs = outputs, .spans = spans};
    return sl_plan_bucket(plan, &step);
}

/* More than 64 sequences have buckets of their own for steps in which each has one row. */
static void buckets_of_many_sequences(void **state) {
    (void)state;
    static const int32_t expected[][3] = {{1, 1, 1},     {2, 2, 2},       {4, 4, 4},     {8, 8, 8},
                                          {16, 16, 16},  {32, 32, 32},    {64, 64, 64},  {96, 96, 1},
                                          {128, 128, 1}, {128, 128, 128}, {150, 140, 1}, {150, 140, 150}};
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(true, true);
    sl_plan *plan = make(&p, &backend, &(sl_plan_options){.chunk = 150, .sequences = 140});
    assert_int_equal(plan->deployment.bucket_count, sizeof expected / sizeof *expected);
    for (int32_t b = 0; b < plan->deployment.bucket_count; b++) {
        assert_int_equal(plan->deployment.buckets[b].rows[SL_ROWS_STEP], expected[b][0]);
        assert_int_equal(plan->deployment.buckets[b].rows[SL_ROWS_OUTPUT], expected[b][1]);
        assert_int_equal(plan->deployment.buckets[b].span_rows, expected[b][2]);
    }
    assert_int_equal(bucket_of(plan, 64, 64, 64), 6);
    assert_int_equal(bucket_of(plan, 65, 65, 65), 7);
    assert_int_equal(bucket_of(plan, 65, 65, 64), 9);
    assert_int_equal(bucket_of(plan, 97, 97, 97), 8);
    assert_int_equal(bucket_of(plan, 129, 2, 2), 11);
    assert_int_equal(bucket_of(plan, 140, 140, 140), 10);
    sl_plan_destroy(plan);
    plan = make(&p, &backend, &(sl_plan_options){.chunk = 150, .sequences = 64});
    for (int32_t b = 1; b < plan->deployment.bucket_count; b++) {
        assert_true(plan->deployment.buckets[b].span_rows > 1);
    }
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

static void buckets_and_their_choice(void **state) {
    (void)state;
    static const int32_t expected[][2] = {{1, 1},  {2, 2},  {4, 3},  {4, 4},  {8, 3},  {8, 5},   {16, 3},
                                          {16, 5}, {32, 3}, {32, 5}, {64, 3}, {64, 5}, {100, 3}, {100, 5}};
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(true, true);
    sl_plan *plan = make(&p, &backend, &(sl_plan_options){.chunk = 100, .sequences = 3, .outputs = 5});
    assert_int_equal(plan->deployment.bucket_count, sizeof expected / sizeof *expected);
    for (int32_t b = 0; b < plan->deployment.bucket_count; b++) {
        assert_int_equal(plan->deployment.buckets[b].rows[SL_ROWS_STEP], expected[b][0]);
        assert_int_equal(plan->deployment.buckets[b].rows[SL_ROWS_OUTPUT], expected[b][1]);
        assert_int_equal(plan->deployment.buckets[b].rows[SL_ROWS_EXPERT], expected[b][0] * 2);
    }
    assert_int_equal(bucket_of(plan, 1, 0, 1), 0);
    assert_int_equal(bucket_of(plan, 3, 3, 1), 2);
    assert_int_equal(bucket_of(plan, 4, 4, 1), 3);
    assert_int_equal(bucket_of(plan, 5, 5, 1), 5);
    assert_int_equal(bucket_of(plan, 65, 1, 1), 12);
    assert_int_equal(bucket_of(plan, 101, 1, 1), -1);
    assert_int_equal(bucket_of(plan, 1, 6, 1), -1);
    sl_plan_destroy(plan);
    plan = make(&p, &backend, &(sl_plan_options){.chunk = 64, .sequences = 3});
    assert_int_equal(plan->deployment.bucket_count, 7);
    sl_plan_destroy(plan);
    plan = make(&p, &backend, &(sl_plan_options){.chunk = 1});
    assert_int_equal(plan->deployment.bucket_count, 1);
    sl_plan_destroy(plan);
    /* Many rows: no bucket is more than a quarter larger than what is just too much for the one before. */
    static const int32_t many[] = {128, 160, 192, 224,  256,  320,  384,  448, 512,
                                   640, 768, 896, 1024, 1280, 1536, 1792, 2000};
    plan = make(&p, &backend, &(sl_plan_options){.chunk = 2000, .sequences = 1, .outputs = 1});
    assert_int_equal(plan->deployment.bucket_count, 7 + sizeof many / sizeof *many);
    for (size_t b = 0; b < sizeof many / sizeof *many; b++) {
        assert_int_equal(plan->deployment.buckets[7 + b].rows[SL_ROWS_STEP], many[b]);
    }
    sl_plan_destroy(plan);
    backend.base.fixed_buckets = false;
    plan = make(&p, &backend, &(sl_plan_options){.chunk = 100, .sequences = 3, .outputs = 5});
    assert_int_equal(plan->deployment.bucket_count, 1);
    assert_int_equal(plan->deployment.buckets[0].rows[SL_ROWS_STEP], 100);
    assert_int_equal(plan->deployment.buckets[0].rows[SL_ROWS_OUTPUT], 5);
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

/* ---- placement: the program carried out twice, in the workspace as placed and with a buffer for every
 * value. Each op writes a hash of what it reads, so that a value overwritten too early is seen by the next
 * that reads it. All guards around live values, and all scratch, are filled with rubbish at every op. */

typedef struct simulation {
    const sl_plan *plan;
    const sl_lowered *lowered;
    unsigned char *shared, **separate;
    uint64_t seed;
    int wrong;
} simulation;

enum { READ, WRITE };

/* Reads: hashes and compares; writes: the same new bytes to both. */
static void touch(simulation *s, int what, int32_t value, int64_t column, int64_t width, uint64_t *hash) {
    const sl_value *v = &s->lowered->values[value];
    const uint64_t row_bytes = sl_value_row_bytes(v->type, v->width), front = (uint64_t)v->fixed * 4;
    const uint64_t first = v->type == SL_VALUE_Q8_32 ? 0 : (uint64_t)column * 4;
    const uint64_t bytes = v->type == SL_VALUE_Q8_32 ? row_bytes : (uint64_t)width * 4;
    const uint64_t offset = s->lowered->value_offsets[value];
    for (int32_t r = -1; r < (v->tail ? s->lowered->tail_rows : s->lowered->rows)[v->rows]; r++) {
        const uint64_t at = r < 0 ? 0 : front + (uint64_t)r * row_bytes + first, size = r < 0 ? front : bytes;
        unsigned char *shared = s->shared + offset + at, *separate = s->separate[value] + at;
        if (what == READ) {
            s->wrong += size > 0 && memcmp(shared, separate, size) != 0;
            *hash = sl_hash64(separate, size, *hash);
            continue;
        }
        for (uint64_t i = 0; i < size; i++) {
            *hash = *hash * 6364136223846793005u + 1442695040888963407u;
            shared[i] = separate[i] = (unsigned char)(*hash >> 56);
        }
    }
}

static void rubbish(simulation *s, int32_t op) {
    const sl_lowered *lowered = s->lowered;
    const fake_kernel *kernel = (const fake_kernel *)lowered->kernels[op];
    const uint64_t scratch = kernel->scratch * (uint64_t)lowered->rows[SL_ROWS_STEP];
    if (scratch > 0) {
        assert_int_equal(lowered->scratch_offsets[op] % 64, 0);
        assert_true(lowered->scratch_offsets[op] >= 64);
        assert_true(lowered->scratch_offsets[op] + scratch + 64 <=
                    s->plan->deployment.pool_bytes[SL_POOL_WORKSPACE]);
        memset(s->shared + lowered->scratch_offsets[op] - 64, 0xa5, scratch + 128);
    }
    for (int i = 0; i < SL_OP_INPUTS + SL_OP_OUTPUTS; i++) {
        const int32_t value =
            i < SL_OP_INPUTS ? lowered->ops[op].in[i].value : lowered->ops[op].out[i - SL_OP_INPUTS].value;
        if (value != SL_NONE) {
            const uint64_t bytes = sl_value_bytes(&lowered->values[value], lowered->rows);
            memset(s->shared + lowered->value_offsets[value] - 64, 0x5a, 64);
            memset(s->shared + lowered->value_offsets[value] + bytes, 0x5a, 64);
        }
    }
}

static void simulate_op(simulation *s, int32_t index) {
    const sl_program *program = s->plan->deployment.program;
    const sl_op *op = &s->lowered->ops[index];
    uint64_t hash = s->seed++;
    rubbish(s, index);
    for (int i = 0; i < SL_OP_INPUTS; i++) {
        if (op->in[i].value != SL_NONE) {
            touch(s, READ, op->in[i].value, op->in[i].column, sl_operand_width(program, op, false, i), &hash);
        }
    }
    for (int o = 0; o < SL_OP_OUTPUTS; o++) {
        const sl_operand out = op->out[o];
        for (int32_t part = 0; out.value != SL_NONE && part < SL_LINEAR_SEGMENTS; part++) {
            if (op->kind == SL_OP_LINEAR && part < op->u.linear.segment_count) {
                const sl_linear_segment *segment = &op->u.linear.segments[part];
                touch(s, WRITE, out.value, (int64_t)out.column + segment->column,
                      program->weights[segment->weight].rows, &hash);
            } else if (op->kind != SL_OP_LINEAR && part == 0) {
                touch(s, WRITE, out.value, out.column, sl_operand_width(program, op, true, o), &hash);
            }
        }
    }
    rubbish(s, index);
}

static void simulate(const sl_plan *plan, int32_t bucket) {
    const sl_program *program = plan->deployment.program;
    simulation s = {.plan = plan, .lowered = &plan->deployment.buckets[bucket]};
    const uint64_t workspace = plan->deployment.pool_bytes[SL_POOL_WORKSPACE];
    s.shared = sl_alloc_zero(workspace, 1);
    s.separate = sl_alloc_zero((size_t)s.lowered->value_count, sizeof *s.separate);
    for (int32_t v = 0; v < s.lowered->value_count; v++) {
        const uint64_t bytes = sl_value_bytes(&s.lowered->values[v], s.lowered->rows);
        s.separate[v] = sl_alloc_zero(bytes, 1);
        if (s.lowered->value_offsets[v] != UINT64_MAX) {
            assert_int_equal(s.lowered->value_offsets[v] % 64, 0);
            assert_true(s.lowered->value_offsets[v] >= 64);
            assert_true(s.lowered->value_offsets[v] + bytes + 64 <= workspace);
        }
    }
    for (int32_t i = 0; i < s.lowered->op_count; i++) {
        simulate_op(&s, i);
    }
    uint64_t hash = 0;
    touch(&s, READ, program->logits, 0, program->vocabulary, &hash);
    touch(&s, READ, program->tokens, 0, 1, &hash);
    for (int32_t v = 0; v < s.lowered->value_count; v++) {
        sl_free(s.separate[v]);
    }
    sl_free(s.separate);
    sl_free(s.shared);
    assert_int_equal(s.wrong, 0);
}

static void no_live_values_overlap(void **state) {
    (void)state;
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(true, true);
    sl_plan *plan = make(&p, &backend, &(sl_plan_options){.chunk = 16});
    uint64_t sum = 0;
    for (int32_t b = 0; b < plan->deployment.bucket_count; b++) {
        simulate(plan, b);
    }
    const sl_lowered *largest = &plan->deployment.buckets[plan->deployment.bucket_count - 1];
    for (int32_t v = 0; v < largest->value_count; v++) {
        sum += sl_value_bytes(&largest->values[v], largest->rows) + 64;
    }
    /* Memory is shared by what does not live together: scratch alone is 16 * 4096 of the workspace. */
    assert_true(plan->deployment.pool_bytes[SL_POOL_WORKSPACE] < sum * 3 / 4 + 16 * 4096);
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

static int32_t pick(uint32_t *random, int32_t count) {
    *random = *random * 1664525u + 1013904223u;
    return (int32_t)((*random >> 8) % (uint32_t)count);
}

static void random_head(sl_program *p, int32_t table) {
    const int32_t last = sl_program_value(p, "last", SL_ROWS_OUTPUT, 64);
    p->hidden = SL_NONE;
    p->logits = sl_program_value(p, "logits", SL_ROWS_OUTPUT, 64);
    p->tokens = sl_program_typed_value(
        p, &(sl_value){.name = "tokens", .type = SL_VALUE_I32, .rows = SL_ROWS_OUTPUT, .width = 1});
    tiny_op(p, SL_OP_GATHER, SL_NONE, 0, last)->u.gather.width = 64;
    tiny_linear(p, SL_NONE, last, p->logits, table);
    tiny_op(p, SL_OP_SAMPLE, SL_NONE, p->logits, p->tokens)->u.sample.vocabulary = 64;
}

/* Random ops that pass the check, over few values with partial columns; the results are there long before the
 * end. */
static void random_program(sl_program *p, uint32_t seed) {
    static const sl_qtype types[] = {SL_QTYPE_F16, SL_QTYPE_Q4_0, SL_QTYPE_Q8_0};
    uint32_t random = seed;
    int32_t weights[3][4][4];
    p->name = "random";
    p->width = p->vocabulary = 64;
    const int32_t values = 4 + pick(&random, 8);
    for (int32_t v = 0; v < values; v++) {
        sl_program_value(p, "v", SL_ROWS_STEP, 32 * (2 + pick(&random, 3)));
    }
    for (int t = 0; t < 3; t++) {
        for (int r = 0; r < 4; r++) {
            for (int c = 0; c < 4; c++) {
                weights[t][r][c] = tiny_matrix(p, "w", types[t], 1, 32 * (r + 1), 32 * (c + 1));
            }
        }
    }
    const int32_t table = tiny_matrix(p, "table", SL_QTYPE_F16, 1, 64, 64);
    tiny_op(p, SL_OP_EMBED, SL_NONE, SL_NONE, 0)->u.embed = (sl_op_embed){.weight = table, .scale = 1};
    for (int tries = 0; tries < 4000 && p->op_count < 60; tries++) {
        if (p->op_count == 10) {
            random_head(p, table);
        }
        const int32_t x = pick(&random, values), y = pick(&random, values);
        sl_op *op = tiny_op(p, pick(&random, 2) ? SL_OP_LINEAR : SL_OP_ACTIVATE, 0, x, y);
        op->in[0].column = 32 * pick(&random, 3);
        op->out[0].column = 32 * pick(&random, 3);
        if (op->kind == SL_OP_ACTIVATE) {
            op->in[1] = (sl_operand){pick(&random, values), 32 * pick(&random, 3)};
            op->u.activate.width = 32 * (1 + pick(&random, 3));
        } else {
            const int32_t c = pick(&random, 4);
            for (int32_t s = 1 + pick(&random, 3), column = 0; s > 0; s--) {
                const int32_t r = pick(&random, 3);
                tiny_segment(op, weights[pick(&random, 3)][r][c], SL_NONE, column);
                column += 32 * (r + 1);
            }
            if (pick(&random, 2)) {
                op->in[3] = op->out[0];
            }
        }
        if (sl_ops_check(p, p->values, p->value_count, p->ops, p->op_count, NULL)) {
            p->op_count--;
        }
    }
}

static void no_live_values_overlap_in_random_programs(void **state) {
    (void)state;
    int32_t ops = 0;
    for (uint32_t seed = 1; seed <= 60; seed++) {
        sl_program p = {0};
        random_program(&p, seed);
        ops += p.op_count;
        fake_backend backend = fake(true, true);
        sl_plan *plan = make(&p, &backend, &(sl_plan_options){.chunk = 4, .sequences = 2});
        for (int32_t b = 0; b < plan->deployment.bucket_count; b++) {
            simulate(plan, b);
        }
        sl_plan_destroy(plan);
        sl_program_free(&p);
    }
    assert_true(ops > 60 * 20);
}

/* ---- memory ---- */

static uint64_t align64(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

static void every_pool_is_exact(void **state) {
    (void)state;
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    const sl_plan_options options = {
        .chunk = 16, .sequences = 2, .context = 130, .outputs = 3, .cache_type = SL_QTYPE_F16};
    fake_backend backend = fake(true, true);
    sl_plan *plan = make(&p, &backend, &options);
    const uint64_t *pools = plan->deployment.pool_bytes;
    /* packed: 0.q and 0.k, 4352 + 7 and 2176 + 7 bytes in steps of 64; the rest is read in the file */
    assert_int_equal(pools[SL_POOL_WEIGHTS], 4416 + 2240);
    uint64_t mapped = 0, uploaded = 0;
    for (int32_t w = 0; w < p.weight_count; w++) {
        if (strcmp(p.weights[w].name, "0.q") != 0 && strcmp(p.weights[w].name, "0.k") != 0) {
            mapped += p.weights[w].bytes;
            uploaded += align64(p.weights[w].bytes);
        }
    }
    assert_int_equal(plan->mapped_bytes, mapped);
    assert_int_equal(plan->deployment.weight_count,
                     p.weight_count); /* the table once, though it is used twice */
    assert_int_equal(plan->deployment.caches[0].row_key_bytes, 32);
    assert_int_equal(plan->deployment.caches[0].layer_bytes, 2 * 64 * (32 + 32));
    assert_int_equal(plan->deployment.caches[0].page_bytes, 8192);
    assert_int_equal(plan->deployment.caches[0].pages, 6); /* 2 sequences of 3 */
    assert_int_equal(pools[SL_POOL_CACHE], 6 * 8192);
    assert_int_equal(plan->options.cache_tokens, 6 * 64);
    assert_int_equal(plan->deployment.state_slots, 20);
    assert_int_equal(pools[SL_POOL_STATE], 20 * 2 * (3 * 64 * 4 + 2 * 16 * 16 * 4)); /* two layers */
    assert_int_equal(pools[SL_POOL_TABLES], 2 * 3 * 4 + 2 * 4);
    assert_int_equal(plan->deployment.limits.adjustments, 2 * SL_ADJUSTMENTS);
    assert_int_equal(plan->deployment.limits.masks, 2);
    assert_int_equal(plan->deployment.limits.mask_tokens, p.vocabulary);
    assert_int_equal(pools[SL_POOL_STAGING], plan->deployment.step.bytes);
    const uint64_t total = total_of(plan);
    sl_buffer text = {0};
    sl_plan_print_memory(plan, &text);
    char line[64];
    snprintf(line, sizeof line, "%-24s %16llu ", "total", (unsigned long long)total);
    assert_non_null(strstr(text.data, line));
    assert_non_null(strstr(
        text.data, "cache full                          49152    48.0 KiB  6 pages of 64 tokens, f16\n"));
    assert_non_null(strstr(text.data, "mapped weights"));
    sl_buffer_free(&text);
    sl_plan_destroy(plan);

    backend.base.maps_weights = false;
    plan = make(&p, &backend, &options);
    pools = plan->deployment.pool_bytes;
    assert_int_equal(plan->mapped_bytes, 0);
    assert_int_equal(pools[SL_POOL_WEIGHTS], 4416 + 2240 + uploaded);
    assert_int_equal(pools[SL_POOL_STAGING], plan->deployment.step.bytes + 3 * (96 * 4 + 4));
    total_of(plan);
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

static void values_that_are_keys_take_no_pages(void **state) {
    (void)state;
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    sl_program_group(&p, &(sl_cache_group){.name = "latent",
                                           .layers = 3,
                                           .kv_heads = 1,
                                           .key_size = 48,
                                           .value_size = 32,
                                           .values_are_keys = true});
    fake_backend backend = fake(true, true);
    sl_plan *plan =
        make(&p, &backend,
             &(sl_plan_options){.chunk = 16, .sequences = 2, .context = 1000, .cache_type = SL_QTYPE_F16});
    assert_int_equal(plan->deployment.caches[1].row_key_bytes, 96);
    assert_int_equal(plan->deployment.caches[1].row_value_bytes, 0);
    assert_int_equal(plan->deployment.caches[1].page_bytes, 3 * 64 * 96);
    total_of(plan);
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

static void windows_need_fewer_pages(void **state) {
    (void)state;
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    sl_program_group(
        &p,
        &(sl_cache_group){
            .name = "window", .layers = 3, .kv_heads = 1, .key_size = 32, .value_size = 32, .window = 100});
    fake_backend backend = fake(true, true);
    /* ceil((100 + 16) / 64) + 2 = 4 pages for each of 2 sequences, one for the next chunk, and a quarter more
     */
    sl_plan *plan =
        make(&p, &backend,
             &(sl_plan_options){.chunk = 16, .sequences = 2, .context = 1000, .cache_type = SL_QTYPE_F16});
    assert_int_equal(plan->deployment.caches[0].pages, 32);
    assert_int_equal(plan->deployment.caches[1].pages, 12);
    assert_int_equal(plan->deployment.cache_offsets[1], 32 * 8192);
    assert_int_equal(plan->deployment.pool_bytes[SL_POOL_CACHE], 32 * 8192 + 12 * 3 * 64 * 128);
    total_of(plan);
    sl_plan_destroy(plan);
    /* never more than a full group */
    plan = make(&p, &backend, &(sl_plan_options){.chunk = 16, .sequences = 2, .context = 130});
    assert_int_equal(plan->deployment.caches[1].pages, 6);
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

static void what_does_not_fit_shrinks_or_is_refused(void **state) {
    (void)state;
    sl_program p = {0};
    sl_error error;
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(true, true);
    sl_plan_options options = {.chunk = 16, .sequences = 4, .context = 130, .cache_type = SL_QTYPE_F16};
    sl_plan *plan = make(&p, &backend, &options);
    assert_int_equal(plan->deployment.caches[0].pages, 12);
    const uint64_t others = total_of(plan) - 12 * 8192;
    sl_plan_destroy(plan);
    for (uint64_t pages = 3; pages <= 12; pages++) {
        options.memory_limit = others + pages * 8192 + (pages % 2) * 8191;
        plan = make(&p, &backend, &options);
        assert_int_equal(plan->deployment.caches[0].pages, pages);
        assert_int_equal(plan->options.cache_tokens, pages * 64);
        assert_true(total_of(plan) == others + pages * 8192);
        sl_plan_destroy(plan);
    }
    options.memory_limit = others + 3 * 8192 - 1; /* less than one context */
    assert_int_equal(sl_plan_create(&p, &backend.base, &options, &plan, &error), SL_ERR_LIMIT);
    char expected[64];
    snprintf(expected, sizeof expected, "needs %llu bytes", (unsigned long long)(others + 3 * 8192));
    assert_non_null(strstr(error.message, expected));
    snprintf(expected, sizeof expected, "limit is %llu", (unsigned long long)options.memory_limit);
    assert_non_null(strstr(error.message, expected));
    /* what the backend has free counts when no limit is given */
    backend.available = others + 5 * 8192;
    options.memory_limit = 0;
    plan = make(&p, &backend, &options);
    assert_int_equal(plan->deployment.caches[0].pages, 5);
    sl_plan_destroy(plan);
    /* tokens that were asked for are not taken away */
    options.cache_tokens = 6 * 64;
    assert_int_equal(sl_plan_create(&p, &backend.base, &options, &plan, &error), SL_ERR_LIMIT);
    options.cache_tokens = 5 * 64 - 63;
    plan = make(&p, &backend, &options);
    assert_int_equal(plan->deployment.caches[0].pages, 5);
    sl_plan_destroy(plan);
    options.cache_tokens = UINT64_MAX;
    assert_int_equal(sl_plan_create(&p, &backend.base, &options, &plan, &error), SL_ERR_LIMIT);
    sl_program_free(&p);
}

static void options_are_checked(void **state) {
    (void)state;
    static const struct {
        sl_plan_options options;
        int code;
        const char *message;
    } cases[] = {
        {{.chunk = -1}, SL_ERR_INVALID, "chunk -1"},
        {{.sequences = -1}, SL_ERR_INVALID, "sequences -1"},
        {{.context = INT32_MAX}, SL_ERR_INVALID, "context 2147483647"},
        {{.outputs = -5}, SL_ERR_INVALID, "outputs -5"},
        {{.state_slots = 1}, SL_ERR_INVALID, "state_slots 1"},
        {{.cache_type = SL_QTYPE_Q4_0},
         SL_ERR_UNSUPPORTED,
         "cache type q4_0 is not one of f16, bf16, f32, q8_0, fp8"},
        {{.cache_type = SL_QTYPE_Q8_0}, SL_ERR_UNSUPPORTED, "multiples of 32; group full has keys of 16"},
    };
    sl_program p = {0};
    sl_error error;
    sl_plan *plan;
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(true, true);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(sl_plan_create(&p, &backend.base, &cases[i].options, &plan, &error), cases[i].code);
        assert_null(plan);
        assert_non_null(strstr(error.message, cases[i].message));
    }
    plan = make(&p, &backend, NULL);
    assert_int_equal(plan->options.chunk, 512);
    assert_int_equal(plan->options.sequences, 8);
    assert_int_equal(plan->options.context, 4096);
    assert_int_equal(plan->options.outputs, 8);
    assert_int_equal(plan->options.cache_type, SL_QTYPE_F16);
    sl_plan_destroy(plan);
    plan = make(&p, &backend, &(sl_plan_options){.outputs = 3});
    assert_int_equal(plan->options.outputs, 8); /* at least one per sequence */
    sl_plan_destroy(plan);
    p.ops[2].in[0].column = 1; /* a wrong program is no plan */
    assert_int_equal(sl_plan_create(&p, &backend.base, NULL, &plan, &error), SL_ERR_INVALID);
    sl_program_free(&p);
}

/* ---- text ---- */

static void explain_and_ops(void **state) {
    (void)state;
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(true, true);
    sl_plan *plan = make(&p, &backend, &(sl_plan_options){.chunk = 5, .sequences = 1});
    sl_buffer text = {0};
    sl_plan_explain(plan, &text);
    assert_false(text.failed);
    assert_non_null(strstr(
        text.data, "backend fake: no device\nbucket 0: 1 rows, 1 outputs\n    x1  begin: begin (exact)\n"));
    assert_non_null(
        strstr(text.data, "    x5  rmsnorm 64: rmsnorm (f32)\n")); /* 4 of the layers, one at the end */
    assert_non_null(strstr(
        text.data, "    x1  linear q8_0 64+32x64 from q8_32: linear/q8_0 (int8)\n"
                   "          not linear/q4_0/wide, linear/q4_0/many, linear/q4_0: another weight type\n"));
    assert_non_null(strstr(text.data, "    x1  linear q4_0 4x32+32x64 from q8_32: linear/q4_0 (int8)\n"
                                      "          not linear/q4_0/wide, linear/q4_0/many: too few rows\n"));
    assert_non_null(strstr(text.data, "bucket 1: 2 rows, 1 outputs: as the one before\n"));
    assert_non_null(
        strstr(text.data, "    x1  linear q4_0 4x32+32x64 from q8_32: linear/q4_0/wide (int8-wide)\n"));
    assert_non_null(strstr(text.data, "bucket 3: 5 rows, 1 outputs: as the one before\n"));
    sl_buffer_clear(&text);
    sl_plan_print_ops(plan, 3, &text);
    char line[200];
    snprintf(line, sizeof line, "   3   0  quantize    normed.q8_32 = normed | quantize normed.q8_32@%llu\n",
             (unsigned long long)plan->deployment.buckets[3].value_offsets[p.value_count]);
    assert_non_null(strstr(text.data, line));
    snprintf(line, sizeof line, "scale 0.25 | attention attended@%llu scratch@%llu\n",
             (unsigned long long)plan->deployment.buckets[3].value_offsets[3],
             (unsigned long long)plan->deployment.buckets[3].scratch_offsets[8]);
    assert_non_null(strstr(text.data, line));
    sl_buffer_free(&text);
    sl_plan_destroy(plan);
    sl_program_free(&p);
}

static void memory_failures_leave_nothing(void **state) {
    (void)state;
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    fake_backend backend = fake(true, false);
    backend.base.options.deterministic = true;
    const sl_plan_options options = {.chunk = 16};
    const uint64_t live = sl_alloc_live_bytes();
    for (uint64_t n = 1;; n++) {
        sl_error error = {0};
        sl_plan *plan;
        sl_buffer text = {0};
        const uint64_t before = sl_alloc_count();
        sl_alloc_fail_at(n);
        const int code = sl_plan_create(&p, &backend.base, &options, &plan, &error);
        if (code == 0) {
            sl_plan_print_memory(plan, &text);
            sl_plan_print_ops(plan, 0, &text);
            sl_plan_explain(plan, &text);
        }
        sl_alloc_fail_at(0);
        const bool all_done = sl_alloc_count() - before < n, failed = text.failed;
        sl_buffer_free(&text);
        sl_plan_destroy(plan);
        assert_int_equal(sl_alloc_live_bytes(), live);
        if (all_done) {
            assert_int_equal(code, 0);
            assert_true(n > 40);
            break;
        }
        assert_true(code == SL_ERR_NOMEM || (code == 0 && failed));
    }
    sl_program_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_are_chosen),
        cmocka_unit_test(runs_are_fused),
        cmocka_unit_test(runs_may_have_a_class),
        cmocka_unit_test(reasons_are_kept),
        cmocka_unit_test(copies_are_shared_until_overwritten),
        cmocka_unit_test(an_odd_width_is_not_quantised),
        cmocka_unit_test(one_class_in_every_bucket),
        cmocka_unit_test(one_class_however_large_steps_are),
        cmocka_unit_test(what_is_not_taken_completes_no_class),
        cmocka_unit_test(weights_are_copied_where_half_of_the_memory_is_left),
        cmocka_unit_test(buckets_and_their_choice),
        cmocka_unit_test(buckets_of_many_sequences),
        cmocka_unit_test(no_live_values_overlap),
        cmocka_unit_test(no_live_values_overlap_in_random_programs),
        cmocka_unit_test(every_pool_is_exact),
        cmocka_unit_test(windows_need_fewer_pages),
        cmocka_unit_test(values_that_are_keys_take_no_pages),
        cmocka_unit_test(what_does_not_fit_shrinks_or_is_refused),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(nothing_is_packed_where_that_is_switched_off),
        cmocka_unit_test(observing_plans),
        cmocka_unit_test(explain_and_ops),
        cmocka_unit_test(some_kernels_are_for_deterministic_plans),
        cmocka_unit_test(prompt_precisions_choose_kernels),
        cmocka_unit_test(kernels_that_are_asked_for_come_first),
        cmocka_unit_test(memory_failures_leave_nothing),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
