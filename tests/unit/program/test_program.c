/* Programs: names, sizes, the dump, the check of every rule, costs, and the step block. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "program/program.h"
#include "program/step.h"
#include "unit/program/tiny.h"

#include <stdlib.h>

static const tiny_types TYPES = {SL_QTYPE_Q8_0, SL_QTYPE_Q8_0, SL_QTYPE_F16, SL_QTYPE_Q4_0};

static void names_and_roles(void **state) {
    (void)state;
    assert_string_equal(sl_op_name(SL_OP_DELTA_SCAN), "delta_scan");
    assert_true(sl_view_is(sl_op_role(SL_OP_LINEAR, false, 0), "x"));
    assert_true(sl_view_is(sl_op_role(SL_OP_LINEAR, false, 3), "residual?"));
    assert_int_equal(sl_op_role(SL_OP_LINEAR, false, 4).length, 0);
    assert_int_equal(sl_op_role(SL_OP_BEGIN, false, 0).length, 0);
    assert_true(sl_view_is(sl_op_role(SL_OP_RMSNORM, true, 1), "sum?"));
    assert_int_equal(sl_op_role(SL_OP_RMSNORM, true, 2).length, 0);
    assert_string_equal(sl_value_type_name(SL_VALUE_Q8_32), "q8_32");
    assert_string_equal(sl_value_type_name(SL_VALUE_E4M3_128), "e4m3_128");
    assert_string_equal(sl_value_type_name(SL_VALUE_Q8_256), "q8_256");
    assert_string_equal(sl_rows_name(SL_ROWS_EXPERT), "expert");
    for (int kind = 0; kind < SL_OP_COUNT; kind++) {
        int inputs = 0, outputs = 0;
        while (sl_op_role((sl_op_kind)kind, false, inputs).length > 0) {
            inputs++;
        }
        while (sl_op_role((sl_op_kind)kind, true, outputs).length > 0) {
            outputs++;
        }
        assert_in_range(inputs, 0, SL_OP_INPUTS);
        assert_in_range(outputs, 0, SL_OP_OUTPUTS);
    }
}

static void sizes(void **state) {
    (void)state;
    assert_int_equal(sl_value_row_bytes(SL_VALUE_F32, 7), 28);
    assert_int_equal(sl_value_row_bytes(SL_VALUE_BF16, 7), 14);
    assert_int_equal(sl_value_row_bytes(SL_VALUE_Q8_32, 64), 64 + 2 * 4 + 2 * 4);
    assert_int_equal(sl_value_row_bytes(SL_VALUE_Q8_32, 33), 80);
    assert_int_equal(sl_value_row_bytes(SL_VALUE_E4M3_128, 96), 128 + 16);
    assert_int_equal(sl_value_row_bytes(SL_VALUE_Q8_256, 2048), 2048 + 32);
    const int32_t rows[SL_ROWS_COUNT] = {3, 6, 2};
    const sl_value schedule = {.type = SL_VALUE_I32, .rows = SL_ROWS_EXPERT, .width = 1, .fixed = 5};
    assert_int_equal(sl_value_bytes(&schedule, rows), (5 + 6) * 4);
    const sl_value logits = {.type = SL_VALUE_F32, .rows = SL_ROWS_OUTPUT, .width = 100};
    assert_int_equal(sl_value_bytes(&logits, rows), 800);
}

static void state_layout(void **state) {
    (void)state;
    sl_program p = {0};
    sl_program_state(&p,
                     &(sl_state_layer){.channels = 2, .taps = 4, .heads = 2, .key_size = 3, .value_size = 4});
    sl_program_state(&p,
                     &(sl_state_layer){.channels = 2, .taps = 4, .heads = 2, .key_size = 3, .value_size = 4});
    assert_int_equal(p.states[0].conv_offset, 0);
    assert_int_equal(p.states[0].delta_offset, 64);      /* 24 bytes of convolution */
    assert_int_equal(p.states[1].conv_offset, 64 + 128); /* 96 bytes of state */
    assert_int_equal(p.state_bytes, 2 * 192);
    sl_program_free(&p);
    const int32_t most = INT32_MAX;
    assert_int_equal(sl_program_state(&p, &(sl_state_layer){most, most, most, most, most, 0, 0}), SL_NONE);
    assert_true(p.failed);
    sl_program_free(&p);
}

static void dump(void **state) {
    (void)state;
    static const char expected[] =
        "program tiny: width 64, vocabulary 96, 2 of 4 experts\n"
        "group 0 full: 1 layers, 2 heads, keys of 16, values of 16\n"
        "state 0: conv 4 taps of 64 channels, delta 2 heads of 16x16\n"
        "state 1: conv 4 taps of 64 channels, delta 2 heads of 16x16\n"
        "value 0   hidden           f32   step   rows of 64\n"
        "value 1   normed           f32   step   rows of 64\n"
        "value 2   qkv              f32   step   rows of 128\n"
        "value 3   attended         f32   step   rows of 64\n"
        "value 4   gate_up          f32   step   rows of 256\n"
        "value 5   active           f32   step   rows of 128\n"
        "value 6   mixed            f32   step   rows of 100\n"
        "value 7   convolved        f32   step   rows of 64\n"
        "value 8   scanned          f32   step   rows of 32\n"
        "value 9   scores           f32   step   rows of 4\n"
        "value 10  ids              i32   step   rows of 2\n"
        "value 11  shares           f32   step   rows of 2\n"
        "value 12  schedule         i32   expert rows of 1 after 5\n"
        "value 13  expert_gate_up   f32   expert rows of 64\n"
        "value 14  expert_out       f32   expert rows of 64\n"
        "value 15  shared           f32   step   rows of 65\n"
        "value 16  last             f32   output rows of 64\n"
        "value 17  logits           f32   output rows of 96, logits\n"
        "value 18  tokens           i32   output rows of 1, tokens\n"
        "   0   .  begin\n"
        "   1   .  embed       hidden = table q4_0 96x64\n"
        "   2   0  rmsnorm     normed = hidden, 0.attn_norm, epsilon 1e-06\n"
        "   3   0  linear      qkv = normed . [0.q q8_0 64x64, 0.k q8_0 32x64 + 0.k_bias, 0.v f16 32x64]\n"
        "   4   0  rope        qkv[0:96] = qkv[0:96], frequencies, 6 heads of 16 every 16, halves\n"
        "   5   0  cache_write  = qkv[64:96], qkv[96:128], full 0\n"
        "   6   0  attention   attended = qkv[0:64], full 0, 4 heads, scale 0.25\n"
        "   7   0  linear      hidden = attended, residual hidden . [0.out q4_0 64x64]\n"
        "   8   0  rmsnorm     normed = hidden, 0.ffn_norm, epsilon 1e-06\n"
        "   9   0  linear      gate_up = normed . [0.gate q4_0 128x64, 0.up q4_0 128x64]\n"
        "  10   0  activate    active = gate_up[0:128], up gate_up[128:256], silu\n"
        "  11   0  linear      hidden = active, residual hidden . [0.down q4_0 64x128]\n"
        "  12   1  rmsnorm     normed = hidden, 1.norm, epsilon 1e-06\n"
        "  13   1  linear      mixed = normed . [1.qkv q4_0 64x64, 1.z q4_0 32x64, 1.a f32 2x64, 1.b f32 "
        "2x64]\n"
        "  14   1  conv        convolved = mixed[0:64], 1.conv, bias 1.conv_bias, silu, state 0\n"
        "  15   1  delta_scan  scanned = convolved, mixed[96:98], mixed[98:100], a_log 1.a_log, dt_bias "
        "1.dt, "
        "1 key heads, 2 value heads, state 0\n"
        "  16   1  ssm_scan    mixed[0:32] = convolved, mixed[96:98], a_log 1.ssm_a_log, dt_bias 1.ssm_dt, "
        "skip 1.ssm_skip, 1 groups, 2 heads, state 1, steps of 0 to 0.5\n"
        "  17   1  rmsnorm     scanned = scanned, gate mixed[0:32], 1.gate_norm, 2 groups of 16, epsilon "
        "1e-06\n"
        "  18   1  linear      hidden = scanned, residual hidden . [1.out q4_0 64x32]\n"
        "  19   1  rmsnorm     normed = hidden, 1.ffn_norm, epsilon 1e-06\n"
        "  20   1  linear      scores = normed . [1.router f32 4x64]\n"
        "  21   1  router      ids, shares, schedule = scores, softmax, 2 of 4, normalised, scale 1\n"
        "  22   1  linear      expert_gate_up = normed, ids ids, schedule schedule . [1.experts_gate q4_0 "
        "4x32x64, "
        "1.experts_up q4_0 4x32x64]\n"
        "  23   1  activate    expert_gate_up[0:32] = expert_gate_up[0:32], up expert_gate_up[32:64], "
        "gelu_tanh\n"
        "  24   1  linear      expert_out = expert_gate_up[0:32], ids ids, schedule schedule . "
        "[1.experts_down q4_0 "
        "4x64x32]\n"
        "  25   1  linear      shared = normed . [1.shared q4_0 64x64, 1.shared_gate f32 1x64]\n"
        "  26   1  combine     hidden = expert_out, weights shares, residual hidden, shared shared[0:64], "
        "shared_gate "
        "shared[64:65]\n"
        "  27   .  gather      last = hidden\n"
        "  28   .  rmsnorm     last = last, norm, epsilon 1e-06\n"
        "  29   .  linear      logits = last . [table q4_0 96x64]\n"
        "  30   .  softcap     logits = logits, cap 30\n"
        "  31   .  sample      tokens = logits\n";
    sl_program p = {0};
    sl_error error;
    tiny_build(&p, &TYPES);
    assert_int_equal(sl_program_check(&p, &error), 0);
    sl_buffer text = {0};
    sl_program_print(&p, &text);
    assert_string_equal(text.data, expected);
    sl_buffer_free(&text);
    sl_program_free(&p);
}

/* Breaks rule number n and returns what the refusal must say; NULL when there is no such rule. */
#define RULE(message, ...)                                                                                   \
    if (n-- == 0) {                                                                                          \
        __VA_ARGS__;                                                                                         \
        return message;                                                                                      \
    }
#define OP(kind, nth) tiny_find(p, SL_OP_##kind, nth)

static const char *break_whole(sl_program *p, int *counter) {
    int n = *counter;
    RULE("out of memory", p->failed = true)
    RULE("more than 4 cache geometries", p->too_many_groups = true)
    RULE("vocabulary 0", p->vocabulary = 0)
    RULE("5 of 4 experts", p->experts_used = 5)
    RULE("weight table: type 99", p->weights[0].type = (sl_qtype)99)
    RULE("weight table: 1x0x64", p->weights[0].rows = 0)
    RULE("no whole blocks of 32", p->weights[0].columns = 63)
    RULE("do not fit its shape", p->weights[0].bytes--)
    RULE("cache group full", p->groups[0].kv_heads = 0)
    RULE("values of 17 are no part of keys of 16", p->groups[0].values_are_keys = true,
         p->groups[0].value_size = 17)
    RULE("state layer 0", p->states[0].taps = 0)
    RULE("value qkv", p->values[2].width = 0)
    RULE("logits: value 99", p->logits = 99)
    RULE("logits: value last must be f32 with output rows of width 96", p->logits--)
    RULE("tokens: no op writes", p->tokens = sl_program_typed_value(p, &p->values[18]))
    RULE("op 0: kind 99", p->ops[0].kind = (sl_op_kind)99)
    RULE("op 2 (begin, layer 0): must be the first", p->ops[2].kind = SL_OP_BEGIN)
    *counter = n;
    return NULL;
}

static const char *break_operands(sl_program *p, int *counter) {
    int n = *counter;
    RULE("op 2 (rmsnorm, layer 0): x is missing", p->ops[2].in[0].value = SL_NONE)
    RULE("input 1 is not one that the op has", OP(GATHER, 0)->in[1].value = 0)
    RULE("output 1 is not one that the op has", OP(GATHER, 0)->out[1].value = 0)
    RULE("value 77 does not exist", p->ops[2].in[0].value = 77)
    RULE("columns 1 to 65 are outside value hidden of width 64", p->ops[2].in[0].column = 1)
    RULE("columns -1 to", p->ops[2].in[0].column = -1)
    RULE("y: value ids has type i32", p->ops[1].out[0].value = 10, p->values[10].width = 64)
    RULE("ids: value shares has type f32", OP(LINEAR, 7)->in[1].value = 11)
    RULE("x: value logits has output rows, expected step rows", OP(GATHER, 0)->in[0].value = p->logits)
    RULE("x has step rows, y has output rows", OP(LINEAR, 10)->in[0].value = 0)
    RULE("y: value last has output rows, other operands step rows", p->ops[2].out[0].value = 16)
    RULE("with ids it must have expert rows", OP(LINEAR, 7)->out[0].value = 2)
    RULE("output 0 overwrites input 0", OP(ATTENTION, 0)->out[0] = (sl_operand){2, 32})
    RULE("output 0 overwrites input 0", OP(ACTIVATE, 0)->out[0] = (sl_operand){4, 64})
    RULE("outputs 0 and 1 overlap", OP(RMSNORM, 1)->u.rmsnorm.residual = SL_RESIDUAL_BEFORE,
         OP(RMSNORM, 1)->in[1].value = 3, OP(RMSNORM, 1)->out[1].value = 1)
    RULE("reads column 0 of value attended before it is written", OP(ATTENTION, 0)->out[0].value = 7)
    RULE("reads column 128 of value gate_up before it is written", OP(LINEAR, 2)->u.linear.segment_count = 1)
    RULE("reads layer 0 of cache group full before it is written", OP(CACHE_WRITE, 0)->kind = SL_OP_SOFTCAP,
         p->ops[5].u.softcap = (sl_op_softcap){30, 1, 32}, p->ops[5].in[1].value = SL_NONE,
         p->ops[5].out[0] = p->ops[5].in[0])
    *counter = n;
    return NULL;
}

static const char *break_dense(sl_program *p, int *counter) {
    int n = *counter;
    RULE("table: weight -1 does not exist", OP(EMBED, 0)->u.embed.weight = SL_NONE)
    RULE("table 0.q has 64 rows for a vocabulary of 96", OP(EMBED, 0)->u.embed.weight = 2)
    RULE("groups and width must be at least 1", OP(RMSNORM, 0)->u.rmsnorm.groups = 0)
    RULE("stride 15 is less than the width 16", OP(RMSNORM, 3)->u.rmsnorm.stride = 15)
    RULE("gate stride 15 is less than", OP(RMSNORM, 3)->u.rmsnorm.gate_stride = 15)
    RULE("strides must not be negative", OP(RMSNORM, 0)->u.rmsnorm.stride = -1)
    RULE("epsilon must be finite", OP(RMSNORM, 0)->u.rmsnorm.epsilon = -1)
    RULE("factors must be finite and not 0", OP(RMSNORM, 0)->u.rmsnorm.y_factor = 0)
    RULE("unknown place 9", OP(RMSNORM, 0)->u.rmsnorm.residual = (sl_residual)9)
    RULE("a residual and its place", OP(RMSNORM, 0)->u.rmsnorm.residual = SL_RESIDUAL_AFTER)
    RULE("sum: there is one only", OP(RMSNORM, 0)->out[1].value = 0)
    RULE("weight: weight 0.k_bias is 1x1x32, expected 1x1x64", OP(RMSNORM, 0)->u.rmsnorm.weight = 4)
    RULE("weight: weight table must be f32", OP(RMSNORM, 0)->u.rmsnorm.weight = 0)
    RULE("0 segments, expected 1 to 4", OP(LINEAR, 0)->u.linear.segment_count = 0)
    RULE("5 segments", OP(LINEAR, 0)->u.linear.segment_count = 5)
    RULE("segment: weight 999 does not exist", OP(LINEAR, 0)->u.linear.segments[1].weight = 999)
    RULE("weight 0.down reads 128 columns, 0.q reads 64",
         int32_t down = OP(LINEAR, 3)->u.linear.segments[0].weight;
         OP(LINEAR, 0)->u.linear.segments[1].weight = down)
    RULE("column -1 is negative", OP(LINEAR, 0)->u.linear.segments[0].column = -1)
    RULE("weights 0.q and 0.k write the same columns", OP(LINEAR, 0)->u.linear.segments[1].column = 63)
    RULE("bias: weight frequencies is 1x1x8, expected 1x1x32", OP(LINEAR, 0)->u.linear.segments[1].bias = 6)
    RULE("columns 0 to 160 are outside value qkv", OP(LINEAR, 0)->u.linear.segments[2].column = 128)
    RULE("heads must be at least 1", OP(ROPE, 0)->u.rope.heads = 0)
    RULE("dims 15 must be even", OP(ROPE, 0)->u.rope.dims = 15)
    RULE("dims 16 or width 0 exceed the stride 12", OP(ROPE, 0)->u.rope.stride = 12)
    RULE("neither rotates nor scales", OP(ROPE, 0)->u.rope.dims = 0)
    RULE("its length 0 positive", OP(ROPE, 0)->u.rope.temperature.width = 16)
    RULE("unknown layout 5", OP(ROPE, 0)->u.rope.layout = (sl_rope_layout)5)
    RULE("works in place", OP(ROPE, 0)->out[0].column = 1)
    RULE("frequencies: weight frequencies is 1x1x8, expected 1x1x6", OP(ROPE, 0)->u.rope.dims = 12)
    RULE("cache group 1 does not exist", OP(CACHE_WRITE, 0)->u.cache_write.place.group = 1)
    RULE("layer 1 does not exist in cache group full", OP(CACHE_WRITE, 0)->u.cache_write.place.layer = 1)
    RULE("v: columns 97 to 129 are outside value qkv", OP(CACHE_WRITE, 0)->in[1].column = 97)
    RULE("k: columns 100 to 132", OP(CACHE_WRITE, 0)->in[0].column = 100)
    RULE("3 heads are no multiple of the group's 2", OP(ATTENTION, 0)->u.attention.heads = 3)
    RULE("q stride 8 is less than the key size 16", OP(ATTENTION, 0)->u.attention.q_stride = 8)
    RULE("gate stride 0 is less than the value size", OP(ATTENTION, 0)->in[1].value = 0)
    RULE("scale must be finite", OP(ATTENTION, 0)->u.attention.softcap = -1)
    RULE("sinks: weight 0.attn_norm is 1x1x64, expected 1x1x4", OP(ATTENTION, 0)->u.attention.sinks = 1)
#define AS_COMPACT(change)                                                                                   \
    sl_op *op = OP(ATTENTION, 0);                                                                            \
    const sl_op_attention attention = op->u.attention;                                                       \
    op->kind = SL_OP_COMPACT;                                                                                \
    op->out[0].value = SL_NONE;                                                                              \
    op->u.compact = (sl_op_compact){attention, 64, 7};                                                       \
    change
    RULE("(compact, layer 0): 3 heads are no multiple", AS_COMPACT(op->u.compact.attention.heads = 3))
    RULE("keep 0 must be at least 1, pool 7 odd", AS_COMPACT(op->u.compact.keep = 0))
    RULE("keep 64 must be at least 1, pool 4 odd", AS_COMPACT(op->u.compact.pool = 4))
    RULE("group full: a window drops its keys by itself", AS_COMPACT(p->groups[0].window = 5))
#undef AS_COMPACT
    RULE("unknown function 7", OP(ACTIVATE, 0)->u.activate.function = (sl_activation)7)
    RULE("limit positive", OP(ACTIVATE, 0)->u.activate.function = SL_ACTIVATION_SWIGLU_OAI)
    RULE("(activate, layer 0): width must be", OP(ACTIVATE, 0)->u.activate.width = 0)
    RULE("(gather): width must be", OP(GATHER, 0)->u.gather.width = 0)
    RULE("cap must not be negative", OP(SOFTCAP, 0)->u.softcap.cap = -1)
    RULE("scale must be finite and not 0", OP(SOFTCAP, 0)->u.softcap.scale = 0)
    RULE("(softcap): works in place", OP(SOFTCAP, 0)->out[0].value = 16)
    RULE("vocabulary 95, the program has 96", OP(SAMPLE, 0)->u.sample.vocabulary = 95)
    *counter = n;
    return NULL;
}

/* An OBSERVE of what the nth LINEAR reads. */
static sl_op *add_observe(sl_program *p, int nth, int32_t weight) {
    const sl_op linear = *OP(LINEAR, nth);
    sl_op *op = sl_program_op(p, SL_OP_OBSERVE, linear.layer);
    op->in[0] = linear.in[0];
    op->in[1] = linear.in[2];
    op->u.observe.weight = weight;
    return op;
}

static int32_t weight_of(sl_program *p, int nth) {
    return OP(LINEAR, nth)->u.linear.segments[0].weight;
}

static const char *break_observed(sl_program *p, int *counter) {
    int n = *counter;
    RULE("(observe, layer 0): weight: weight -1 does not exist", add_observe(p, 0, SL_NONE))
    RULE("(observe, layer 1): weight 0.q has 1 experts, expected 4", add_observe(p, 7, 2))
    RULE("x: columns 32 to 96 are outside", add_observe(p, 0, 2)->in[0].column = 32)
    RULE("x is missing", add_observe(p, 0, 2)->in[0].value = SL_NONE)
    RULE("schedule: value ids has step rows", add_observe(p, 7, weight_of(p, 7))->in[1].value = 10)
    RULE("with a schedule it must have step or expert rows",
         add_observe(p, 7, weight_of(p, 7))->in[0].value = OP(LINEAR, 10)->in[0].value)
    *counter = n;
    return NULL;
}

/* The output projection as four heads that share one matrix of [heads][32][64], or [heads][64][32] turned. */
static sl_op *add_heads(sl_program *p, bool turned) {
    sl_op *op = sl_program_op(p, SL_OP_HEAD_LINEAR, 0);
    const int32_t weight = turned ? OP(LINEAR, 8)->u.linear.segments[0].weight : weight_of(p, 7);
    op->in[0].value = OP(LINEAR, 2)->out[0].value;  /* 256 columns */
    op->out[0].value = OP(LINEAR, 0)->out[0].value; /* 128 */
    op->u.head_linear = (sl_op_head_linear){.weight = weight, .x_stride = 64, .turned = turned};
    return op;
}

static const char *break_heads(sl_program *p, int *counter) {
    int n = *counter;
    RULE("(head_linear, layer 0): weight: weight 999 does not exist",
         add_heads(p, false)->u.head_linear.weight = 999)
    RULE("tail and stride must not be negative", add_heads(p, false)->u.head_linear.tail = -1)
    RULE("stride 63 is less than what a head reads (64 and 0)",
         add_heads(p, false)->u.head_linear.x_stride = 63)
    RULE("stride 64 is less than what a head reads (64 and 1)", add_heads(p, true)->u.head_linear.tail = 1)
    RULE("x: columns 0 to 259 are outside value gate_up", add_heads(p, false)->u.head_linear.x_stride = 65)
    RULE("y: columns 1 to 129 are outside value qkv", add_heads(p, true)->out[0].column = 1)
    RULE("v: there is none where values are part of keys", p->groups[0].values_are_keys = true)
    RULE("v: there is none where values are part of keys", OP(CACHE_WRITE, 0)->in[1].value = SL_NONE)
    *counter = n;
    return NULL;
}

/* The feed-forward block's result as the sum, or what is side by side, of all ranks' in two halves of 128
 * columns. */
static sl_op *add_exchange(sl_program *p, sl_op_kind kind) {
    sl_op *op = sl_program_op(p, kind, 0);
    op->in[0].value = OP(LINEAR, 3)->in[0].value; /* 128 columns */
    op->out[0].value = kind == SL_OP_ALL_REDUCE ? op->in[0].value : OP(LINEAR, 2)->out[0].value;
    if (kind == SL_OP_ALL_REDUCE) {
        op->u.all_reduce.width = 128;
    } else {
        op->u.all_gather = (sl_op_all_gather){128, 2};
    }
    return op;
}

static const char *break_exchange(sl_program *p, int *counter) {
    int n = *counter;
    RULE("(all_reduce, layer 0): width must be", add_exchange(p, SL_OP_ALL_REDUCE)->u.all_reduce.width = 0)
    RULE("x: columns 0 to 129 are outside", add_exchange(p, SL_OP_ALL_REDUCE)->u.all_reduce.width = 129)
    RULE("(all_reduce, layer 0): works in place", add_exchange(p, SL_OP_ALL_REDUCE)->out[0].value = 0)
    RULE("(all_gather, layer 0): width must be", add_exchange(p, SL_OP_ALL_GATHER)->u.all_gather.width = 0)
    RULE("0 ranks, expected 1 to 8", add_exchange(p, SL_OP_ALL_GATHER)->u.all_gather.ranks = 0)
    RULE("9 ranks, expected 1 to 8", add_exchange(p, SL_OP_ALL_GATHER)->u.all_gather.ranks = 9)
    RULE("2 ranks, the program has 4", add_exchange(p, SL_OP_ALL_GATHER), p->ranks = 4)
    RULE("y: columns 0 to 384 are outside value gate_up",
         add_exchange(p, SL_OP_ALL_GATHER)->u.all_gather.ranks = 3)
    RULE("output 0 overwrites input 0", sl_op *op = add_exchange(p, SL_OP_ALL_GATHER);
         op->u.all_gather.width = 64; op->out[0] = op->in[0])
    RULE("y: value last has output rows", add_exchange(p, SL_OP_ALL_GATHER)->out[0].value = 16,
         tiny_find(p, SL_OP_ALL_GATHER, 0)->u.all_gather.width = 32)
    RULE("rank 2 of 2", p->rank = p->ranks = 2)
    RULE("rank 0 of 9", p->ranks = 9)
    RULE("rank 1 of 0", p->rank = 1)
    *counter = n;
    return NULL;
}

static const char *break_sparse(sl_program *p, int *counter) {
    int n = *counter;
    RULE("ids and schedule go together", OP(LINEAR, 7)->in[2].value = SL_NONE)
    RULE("without ids it must have 1", OP(LINEAR, 7)->in[1].value = OP(LINEAR, 7)->in[2].value = SL_NONE)
    RULE("with ids it must have the program's", OP(LINEAR, 9)->in[1].value = 10,
         OP(LINEAR, 9)->in[2].value = 12)
    RULE("schedule: value schedule must have 5 fixed elements", p->values[12].fixed = 4)
    RULE("unknown kind 3", OP(ROUTER, 0)->u.router.kind = (sl_router_kind)3)
    RULE("experts and used must be at least 1", OP(ROUTER, 0)->u.router.used = 0)
    RULE("3 of 3 groups of 4 experts",
         OP(ROUTER, 0)->u.router.groups = OP(ROUTER, 0)->u.router.groups_used = 3)
    RULE("factors: weight 0.k_bias is", OP(ROUTER, 0)->u.router.factors = 4)
    RULE("chooses 3 of 4 experts, the program 2 of 4", OP(ROUTER, 0)->u.router.used = 3)
    RULE("bias: weight 0.k_bias is 1x1x32, expected 1x1x4", OP(ROUTER, 0)->u.router.bias = 4)
    RULE("sums 1 experts, the program uses 2", OP(COMBINE, 0)->u.combine.used = 1)
    RULE("(combine, layer 1): width must be", OP(COMBINE, 0)->u.combine.width = 0)
    RULE("shared_gate needs shared", OP(COMBINE, 0)->in[3].value = SL_NONE)
    RULE("state layer 2 does not exist", OP(CONV, 0)->u.conv.state = 2)
    RULE("state layer -1 does not exist", OP(DELTA_SCAN, 0)->u.delta_scan.state = -1)
    RULE("weight 0.attn_norm is 1x64, the state has 64 channels", OP(CONV, 0)->u.conv.weight = 1)
    RULE("bias: weight 0.k_bias is 1x1x32, expected 1x1x64", OP(CONV, 0)->u.conv.bias = 4)
    RULE("function must be silu or identity", OP(CONV, 0)->u.conv.function = SL_ACTIVATION_GELU)
    RULE("weight 0.q must be f32", OP(CONV, 0)->u.conv.weight = 2)
    RULE("value heads must be at least 1", OP(DELTA_SCAN, 0)->u.delta_scan.value_heads = 0,
         p->states[0].heads = p->states[0].key_size = p->states[0].value_size = 0)
    RULE("those of a scan all 0", p->states[0].key_size = 0)
    RULE("those of a scan all 0", p->states[0].taps = 0)
    RULE("4 value heads, the state has 2", OP(DELTA_SCAN, 0)->u.delta_scan.value_heads = 4)
    RULE("2 value heads are no multiple of 3 key heads", OP(DELTA_SCAN, 0)->u.delta_scan.key_heads = 3)
    RULE("a_log: weight 0.k_bias", OP(DELTA_SCAN, 0)->u.delta_scan.a_log = 4)
    RULE("dt_bias: weight 0.k_bias", OP(DELTA_SCAN, 0)->u.delta_scan.dt_bias = 4)
    RULE("state layer 2 does not exist", OP(SSM_SCAN, 0)->u.ssm_scan.state = 2)
    RULE("4 heads, the state has 2", OP(SSM_SCAN, 0)->u.ssm_scan.heads = 4)
    RULE("2 heads are no multiple of 3 groups", OP(SSM_SCAN, 0)->u.ssm_scan.groups = 3)
    RULE("steps of 1 to 0.5 are no interval", OP(SSM_SCAN, 0)->u.ssm_scan.step_least = 1)
    RULE("a_log: weight 0.k_bias", OP(SSM_SCAN, 0)->u.ssm_scan.a_log = 4)
    RULE("dt_bias: weight 0.k_bias", OP(SSM_SCAN, 0)->u.ssm_scan.dt_bias = 4)
    RULE("skip: weight 0.k_bias", OP(SSM_SCAN, 0)->u.ssm_scan.skip = 4)
    RULE("weight 1.gate_norm is 1x1x16, expected 1x1x32",
         tiny_find(p, SL_OP_RMSNORM, 3)->u.rmsnorm.own_weights = true)
    RULE("value expert_gate_up: expert rows in a program without", p->experts = p->experts_used = 0,
         p->values[12].rows = SL_ROWS_STEP)
    *counter = n;
    return NULL;
}

static void every_rule_is_checked(void **state) {
    (void)state;
    int wrong = 0;
    for (int rule = 0;; rule++) {
        sl_program p = {0};
        tiny_build(&p, &TYPES);
        int n = rule;
        const char *message = break_whole(&p, &n);
        message = message ? message : break_operands(&p, &n);
        message = message ? message : break_dense(&p, &n);
        message = message ? message : break_sparse(&p, &n);
        message = message ? message : break_heads(&p, &n);
        message = message ? message : break_observed(&p, &n);
        message = message ? message : break_exchange(&p, &n);
        if (!message) {
            sl_program_free(&p);
            assert_in_range(rule, 90, 200);
            assert_int_equal(wrong, 0);
            return;
        }
        sl_error error = {0};
        const int code = sl_program_check(&p, &error);
        if (code == 0 || !strstr(error.message, message) ||
            strncmp(error.message, "program tiny: ", 14) != 0) {
            print_error("rule %d: code %d, expected \"%s\", got \"%s\"\n", rule, code, message,
                        error.message);
            wrong++;
        }
        assert_int_equal(sl_program_check(&p, NULL), code);
        sl_program_free(&p);
    }
}

static void quantised_operands(void **state) {
    (void)state;
    sl_program p = {0};
    sl_error error;
    tiny_build(&p, &TYPES);
    const int32_t q = sl_program_typed_value(
        &p, &(sl_value){.name = "q", .type = SL_VALUE_Q8_32, .rows = SL_ROWS_STEP, .width = 64});
    sl_op ops[3] = {p.ops[1], p.ops[2], p.ops[3]};
    ops[1] = *tiny_op(&p, SL_OP_QUANTIZE, 0, 0, q);
    ops[1].u.quantize.width = 64;
    ops[2].in[0].value = q;
    assert_int_equal(sl_ops_check(&p, p.values, p.value_count, ops, 3, &error), 0);
    ops[1].u.quantize.width = 33;
    assert_int_equal(sl_ops_check(&p, p.values, p.value_count, ops, 3, &error), SL_ERR_INVALID);
    assert_non_null(strstr(error.message, "width 33 is no multiple of 32"));
    ops[1].u.quantize.width = 32;
    ops[1].out[0].column = 16;
    assert_int_equal(sl_ops_check(&p, p.values, p.value_count, ops, 3, &error), SL_ERR_INVALID);
    assert_non_null(strstr(error.message, "column 16 of a quantised value"));
    p.values[q].type = SL_VALUE_E4M3_128;
    ops[1].u.quantize.width = 64;
    ops[1].out[0].column = 0;
    assert_int_equal(sl_ops_check(&p, p.values, p.value_count, ops, 3, &error), 0);
    ops[1].u.quantize.width = 33;
    ops[1].out[0].column = 16;
    assert_int_equal(sl_ops_check(&p, p.values, p.value_count, ops, 3, &error), SL_ERR_INVALID);
    assert_non_null(strstr(error.message, "read from its beginning on"));
    sl_program_free(&p);
}

static void fifth_group_is_refused(void **state) {
    (void)state;
    sl_program p = {0};
    for (int i = 0; i < SL_CACHE_GROUPS; i++) {
        assert_int_equal(sl_program_group(&p, &(sl_cache_group){.name = "g"}), i);
    }
    assert_int_equal(sl_program_group(&p, &(sl_cache_group){.name = "g"}), SL_NONE);
    assert_true(p.too_many_groups);
    sl_program_free(&p);
}

static void memory_failures_are_reported(void **state) {
    (void)state;
    const uint64_t live = sl_alloc_live_bytes();
    for (uint64_t n = 1;; n++) {
        sl_program p = {0};
        sl_error error = {0};
        const uint64_t before = sl_alloc_count();
        sl_alloc_fail_at(n);
        tiny_build(&p, &TYPES);
        const int code = sl_program_check(&p, &error);
        sl_alloc_fail_at(0);
        const bool all_done = sl_alloc_count() - before < n;
        sl_program_free(&p);
        assert_int_equal(sl_alloc_live_bytes(), live);
        if (all_done) {
            assert_int_equal(code, 0);
            assert_true(n > 4);
            return;
        }
        assert_int_equal(code, SL_ERR_NOMEM);
    }
}

/* A machine of 20 GB/s, 2 TOPS with int8, 0.2 with BF16 and 0.5 with f32. */
static void rates(void **state) {
    (void)state;
    const sl_rates cpu = {
        .read_bytes = 20e9,
        .operations = {[SL_WITH_INT8] = 2e12, [SL_WITH_BF16] = 0.2e12, [SL_WITH_F32] = 0.5e12}};
    const sl_rates gpu = {.read_bytes = 4e12, .operations = {[SL_WITH_BF16] = 900e12}}, none = {0};
    assert_true(sl_rates_of(&cpu, SL_WITH_INT8) == 2e12);
    assert_true(sl_rates_of(&cpu, SL_WITH_BF16) == 0.5e12); /* in f32, which is faster there */
    assert_true(sl_rates_of(&cpu, SL_WITH_F32) == 0.5e12);
    for (int a = 0; a < SL_ARITHMETICS; a++) {
        assert_true(sl_rates_of(&gpu, (sl_arithmetic)a) == 900e12); /* all that is known */
        assert_true(sl_rates_of(&none, (sl_arithmetic)a) == 0);
        assert_true(sl_rates_least(&none, 1e9, (sl_arithmetic)a, 1e9) == 0);
    }
    assert_true(sl_rates_least(&cpu, 10e9, SL_WITH_INT8, 0.5e12) == 0.5);  /* reading takes longer */
    assert_true(sl_rates_least(&cpu, 10e9, SL_WITH_INT8, 1.5e12) == 0.75); /* computing does */
    assert_true(sl_qtype_arithmetic(SL_QTYPE_Q4_K) == SL_WITH_INT8);
    assert_true(sl_qtype_arithmetic(SL_QTYPE_IQ1_M) == SL_WITH_INT8);
    assert_true(sl_qtype_arithmetic(SL_QTYPE_BF16) == SL_WITH_BF16);
    assert_true(sl_qtype_arithmetic(SL_QTYPE_F16) == SL_WITH_F32);
    sl_program p = {0};
    sl_arithmetic arithmetic;
    tiny_build(&p, &TYPES);
    assert_true(sl_op_products(&p, tiny_find(&p, SL_OP_LINEAR, 0), &arithmetic) &&
                arithmetic == SL_WITH_INT8);
    assert_true(sl_op_products(&p, tiny_find(&p, SL_OP_ATTENTION, 0), &arithmetic) &&
                arithmetic == SL_WITH_BF16);
    assert_false(sl_op_products(&p, tiny_find(&p, SL_OP_RMSNORM, 0), &arithmetic));
    sl_program_free(&p);
}

static void costs(void **state) {
    (void)state;
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    const int32_t rows[SL_ROWS_COUNT] = {10, 20, 2};
    sl_cost cost = sl_op_cost(&p, tiny_find(&p, SL_OP_LINEAR, 0), rows, 0);
    assert_true(cost.operations == 2.0 * 10 * 64 * (64 + 32 + 32));
    assert_true(cost.weight_bytes == (64 + 32) * 64 / 32 * 34 + 32 * 64 * 2 + 32 * 4);
    assert_true(cost.value_bytes == 10 * 4 * (64 + 128));
    cost = sl_op_cost(&p, tiny_find(&p, SL_OP_LINEAR, 7), rows, 0);
    assert_true(cost.operations == 2.0 * 20 * 64 * 64);
    assert_true(cost.weight_bytes == 4 * 64 * 64 / 32 * 18);
    const int32_t one[SL_ROWS_COUNT] = {1, 2, 1};
    cost = sl_op_cost(&p, tiny_find(&p, SL_OP_LINEAR, 7), one, 0);
    assert_true(cost.weight_bytes == 2 * 64 * 64 / 32 * 18);
    cost = sl_op_cost(&p, tiny_find(&p, SL_OP_ATTENTION, 0), rows, 100);
    assert_true(cost.operations == 2.0 * 10 * 100 * 4 * (16 + 16));
    p.groups[0].window = 50;
    cost = sl_op_cost(&p, tiny_find(&p, SL_OP_ATTENTION, 0), rows, 100);
    assert_true(cost.operations == 2.0 * 10 * 50 * 4 * (16 + 16));
    /* Ten rows of two sequences, five each: the last sees two keys more than the third, which sees the mean.
     * A sequence reads these once, at two bytes an element: 2 heads of 16 and 16. */
    const sl_op *attention = tiny_find(&p, SL_OP_ATTENTION, 0);
    const double own = sl_op_cost(&p, attention, rows, 0).value_bytes;
    assert_true(sl_step_cost(&p, attention, rows, 30, 2).value_bytes == own + 2 * 32 * 2.0 * 2 * (16 + 16));
    assert_true(sl_step_cost(&p, attention, rows, 30, 2).operations == 2.0 * 10 * 30 * 4 * (16 + 16));
    const double both = cost.value_bytes;
    p.groups[0].values_are_keys = true;
    cost = sl_op_cost(&p, tiny_find(&p, SL_OP_ATTENTION, 0), rows, 100);
    assert_true(both - cost.value_bytes == 2.0 * 10 * 50 * 2 * 16); /* half of what is read of the cache */
    cost = sl_op_cost(&p, add_heads(&p, true), rows, 0);
    assert_true(cost.operations == 2.0 * 10 * 4 * 32 * 64);
    assert_true(cost.weight_bytes == 4 * 32 * 64 / 32 * 18);
    p.ranks = 2; /* x is read and written, and the other rank's is read */
    cost = sl_op_cost(&p, add_exchange(&p, SL_OP_ALL_REDUCE), rows, 0);
    assert_true(cost.operations == 10 * 128 && cost.value_bytes == 10 * 4 * 3 * 128.0);
    cost = sl_op_cost(&p, add_exchange(&p, SL_OP_ALL_GATHER), rows, 0);
    assert_true(cost.operations == 0 && cost.value_bytes == 10 * 4 * (128 + 256 + 128.0));
    sl_program_free(&p);
}

static void expect_weights(const sl_program *p, const sl_op *op, int32_t count, const char *const *names) {
    int32_t weights[SL_OP_WEIGHTS];
    assert_int_equal(sl_op_weights(op, weights), count);
    for (int32_t i = 0; i < count; i++) {
        assert_int_equal(weights[i] == SL_NONE, names[i] == NULL);
        if (names[i]) {
            assert_string_equal(p->weights[weights[i]].name, names[i]);
        }
    }
}

/* The order that the header promises, and that no weight of a program with every op in it is forgotten. */
static void weights_of_ops(void **state) {
    (void)state;
    sl_program p = {0};
    tiny_build(&p, &TYPES);
    expect_weights(&p, tiny_find(&p, SL_OP_LINEAR, 0), 6,
                   (const char *[]){"0.q", "0.k", "0.v", NULL, "0.k_bias", NULL});
    expect_weights(&p, tiny_find(&p, SL_OP_DELTA_SCAN, 0), 2, (const char *[]){"1.a_log", "1.dt"});
    expect_weights(&p, tiny_find(&p, SL_OP_SSM_SCAN, 0), 3,
                   (const char *[]){"1.ssm_a_log", "1.ssm_dt", "1.ssm_skip"});
    expect_weights(&p, tiny_find(&p, SL_OP_ATTENTION, 0), 1, (const char *[]){NULL});
    expect_weights(&p, tiny_find(&p, SL_OP_GATHER, 0), 0, NULL);
    bool *is_read = calloc((size_t)p.weight_count, sizeof *is_read);
    assert_non_null(is_read);
    for (int32_t i = 0; i < p.op_count; i++) {
        int32_t weights[SL_OP_WEIGHTS];
        const int32_t count = sl_op_weights(&p.ops[i], weights);
        for (int32_t w = 0; w < count; w++) {
            assert_in_range(weights[w] + 1, 0, p.weight_count);
            is_read[weights[w] == SL_NONE ? 0 : weights[w]] |= weights[w] != SL_NONE;
        }
    }
    for (int32_t i = 0; i < p.weight_count; i++) {
        assert_true(is_read[i]);
    }
    free(is_read);
    sl_program_free(&p);
}

/* FP8_128: 132 bytes for each 128 columns, rows of a device at multiples of 16; 3 * 132 = 396 and 4 * 132 =
 * 528. */
static void stored_rows(void **state) {
    (void)state;
    const struct {
        int32_t multiple, columns;
        sl_qtype type;
        uint64_t row_bytes;
    } known[] = {
        {0, 384, SL_QTYPE_FP8_128, 396},   {1, 384, SL_QTYPE_FP8_128, 400}, {256, 384, SL_QTYPE_FP8_128, 528},
        {256, 768, SL_QTYPE_FP8_128, 800}, {256, 960, SL_QTYPE_Q8_0, 1088}, {0, 960, SL_QTYPE_Q8_0, 1020},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        sl_weight weight = {.type = known[i].type, .experts = 2, .rows = 3, .columns = known[i].columns};
        uint64_t bytes;
        assert_true(sl_qtype_bytes(weight.type, (uint64_t)weight.columns, &weight.bytes));
        weight.bytes *= 6;
        assert_true(sl_stored_row_bytes(known[i].multiple, &weight, &bytes));
        assert_int_equal(bytes, known[i].row_bytes);
        assert_true(sl_stored_bytes(known[i].multiple, &weight, &bytes));
        assert_int_equal(bytes, 6 * known[i].row_bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_roles),
        cmocka_unit_test(sizes),
        cmocka_unit_test(state_layout),
        cmocka_unit_test(dump),
        cmocka_unit_test(every_rule_is_checked),
        cmocka_unit_test(quantised_operands),
        cmocka_unit_test(fifth_group_is_refused),
        cmocka_unit_test(memory_failures_are_reported),
        cmocka_unit_test(costs),
        cmocka_unit_test(rates),
        cmocka_unit_test(weights_of_ops),
        cmocka_unit_test(stored_rows),
    };
    return cmocka_run_group_tests_name("program", tests, NULL, NULL);
}
