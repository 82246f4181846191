/* A program with every kind of op in it, for the tests of programs and plans: two layers, the first with
 * attention and a dense MLP, the second with a gated delta net and experts. Weights have shapes and no data.
 */
#ifndef SL_TESTS_TINY_H
#define SL_TESTS_TINY_H

#include "program/program.h"

#include <stdio.h>

enum { TINY_WIDTH = 64, TINY_VOCABULARY = 96 };

typedef struct tiny_types {
    sl_qtype q, k, v, other; /* of attention's three matrices, and of all other matrices */
} tiny_types;

static int32_t tiny_matrix(sl_program *p, const char *name, sl_qtype type, int32_t experts, int32_t rows,
                           int32_t columns) {
    sl_weight weight = {.name = name, .type = type, .experts = experts, .rows = rows, .columns = columns};
    sl_qtype_bytes(type, (uint64_t)experts * (uint64_t)rows * (uint64_t)columns, &weight.bytes);
    return sl_program_weight(p, &weight);
}

static int32_t tiny_vector(sl_program *p, const char *name, int32_t columns) {
    return tiny_matrix(p, name, SL_QTYPE_F32, 1, 1, columns);
}

/* A failed append gives somewhere harmless to write to; the program is marked as failed. */
static sl_op *tiny_op(sl_program *p, sl_op_kind kind, int32_t layer, int32_t in, int32_t out) {
    static sl_op nowhere;
    sl_op *op = sl_program_op(p, kind, layer);
    if (!op) {
        return &nowhere;
    }
    op->in[0].value = in;
    op->out[0].value = out;
    return op;
}

static void tiny_norm(sl_program *p, int32_t layer, int32_t x, int32_t y, int32_t weight) {
    tiny_op(p, SL_OP_RMSNORM, layer, x, y)->u.rmsnorm = (sl_op_rmsnorm){.weight = weight,
                                                                        .epsilon = 1e-6f,
                                                                        .groups = 1,
                                                                        .width = TINY_WIDTH,
                                                                        .stride = TINY_WIDTH,
                                                                        .x_factor = 1,
                                                                        .y_factor = 1};
}

static sl_op *tiny_linear(sl_program *p, int32_t layer, int32_t x, int32_t y, int32_t weight) {
    sl_op *op = tiny_op(p, SL_OP_LINEAR, layer, x, y);
    op->u.linear.segment_count = 1;
    op->u.linear.segments[0] = (sl_linear_segment){weight, SL_NONE, 0};
    return op;
}

static void tiny_segment(sl_op *op, int32_t weight, int32_t bias, int32_t column) {
    if (op->u.linear.segment_count < SL_LINEAR_SEGMENTS) {
        op->u.linear.segments[op->u.linear.segment_count++] = (sl_linear_segment){weight, bias, column};
    }
}

static void tiny_attention(sl_program *p, const tiny_types *types, int32_t hidden, int32_t normed) {
    const int32_t qkv = sl_program_value(p, "qkv", SL_ROWS_STEP, 128);
    const int32_t attended = sl_program_value(p, "attended", SL_ROWS_STEP, 64);
    const int32_t gate_up = sl_program_value(p, "gate_up", SL_ROWS_STEP, 256);
    const int32_t active = sl_program_value(p, "active", SL_ROWS_STEP, 128);
    tiny_norm(p, 0, hidden, normed, tiny_vector(p, "0.attn_norm", 64));
    sl_op *op = tiny_linear(p, 0, normed, qkv, tiny_matrix(p, "0.q", types->q, 1, 64, 64));
    const int32_t k =
        tiny_matrix(p, "0.k", types->k, 1, 32, 64); /* one append per statement: fixed numbers */
    tiny_segment(op, k, tiny_vector(p, "0.k_bias", 32), 64);
    tiny_segment(op, tiny_matrix(p, "0.v", types->v, 1, 32, 64), SL_NONE, 96);
    const int32_t frequencies = tiny_vector(p, "frequencies", 8);
    tiny_op(p, SL_OP_ROPE, 0, qkv, qkv)->u.rope = (sl_op_rope){.frequencies = frequencies,
                                                               .heads = 6,
                                                               .stride = 16,
                                                               .dims = 16,
                                                               .layout = SL_ROPE_HALVES,
                                                               .magnitude = 1};
    op = tiny_op(p, SL_OP_CACHE_WRITE, 0, qkv, SL_NONE);
    op->in[0].column = 64;
    op->in[1] = (sl_operand){qkv, 96};
    op->u.cache_write.place = (sl_cache_place){0, 0};
    op = tiny_op(p, SL_OP_ATTENTION, 0, qkv, attended);
    op->u.attention = (sl_op_attention){.heads = 4, .q_stride = 16, .scale = 0.25f, .sinks = SL_NONE};
    op = tiny_linear(p, 0, attended, hidden, tiny_matrix(p, "0.out", types->other, 1, 64, 64));
    op->in[3].value = hidden;
    tiny_norm(p, 0, hidden, normed, tiny_vector(p, "0.ffn_norm", 64));
    op = tiny_linear(p, 0, normed, gate_up, tiny_matrix(p, "0.gate", types->other, 1, 128, 64));
    tiny_segment(op, tiny_matrix(p, "0.up", types->other, 1, 128, 64), SL_NONE, 128);
    op = tiny_op(p, SL_OP_ACTIVATE, 0, gate_up, active);
    op->in[1] = (sl_operand){gate_up, 128};
    op->u.activate = (sl_op_activate){.function = SL_ACTIVATION_SILU, .width = 128};
    op = tiny_linear(p, 0, active, hidden, tiny_matrix(p, "0.down", types->other, 1, 64, 128));
    op->in[3].value = hidden;
}

static void tiny_delta(sl_program *p, const tiny_types *types, int32_t hidden, int32_t normed) {
    const int32_t mixed = sl_program_value(p, "mixed", SL_ROWS_STEP, 100);
    const int32_t convolved = sl_program_value(p, "convolved", SL_ROWS_STEP, 64);
    const int32_t scanned = sl_program_value(p, "scanned", SL_ROWS_STEP, 32);
    const int32_t state = sl_program_state(
        p, &(sl_state_layer){.channels = 64, .taps = 4, .heads = 2, .key_size = 16, .value_size = 16});
    tiny_norm(p, 1, hidden, normed, tiny_vector(p, "1.norm", 64));
    sl_op *op = tiny_linear(p, 1, normed, mixed, tiny_matrix(p, "1.qkv", types->other, 1, 64, 64));
    tiny_segment(op, tiny_matrix(p, "1.z", types->other, 1, 32, 64), SL_NONE, 64);
    tiny_segment(op, tiny_matrix(p, "1.a", SL_QTYPE_F32, 1, 2, 64), SL_NONE, 96);
    tiny_segment(op, tiny_matrix(p, "1.b", SL_QTYPE_F32, 1, 2, 64), SL_NONE, 98);
    const int32_t taps = tiny_matrix(p, "1.conv", SL_QTYPE_F32, 1, 64, 4);
    const int32_t bias = tiny_vector(p, "1.conv_bias", 64);
    tiny_op(p, SL_OP_CONV, 1, mixed, convolved)->u.conv =
        (sl_op_conv){.weight = taps, .bias = bias, .state = state, .function = SL_ACTIVATION_SILU};
    const int32_t a_log = tiny_vector(p, "1.a_log", 2);
    const int32_t dt = tiny_vector(p, "1.dt", 2);
    op = tiny_op(p, SL_OP_DELTA_SCAN, 1, convolved, scanned);
    op->in[1] = (sl_operand){mixed, 96};
    op->in[2] = (sl_operand){mixed, 98};
    op->u.delta_scan =
        (sl_op_delta_scan){.a_log = a_log, .dt_bias = dt, .key_heads = 1, .value_heads = 2, .state = state};
    const int32_t kept = sl_program_state(
        p, &(sl_state_layer){.channels = 64, .taps = 4, .heads = 2, .key_size = 16, .value_size = 16});
    op = tiny_op(p, SL_OP_SSM_SCAN, 1, convolved, mixed); /* where nobody reads what was convolved any more */
    op->in[1] = (sl_operand){mixed, 96};
    op->u.ssm_scan = (sl_op_ssm_scan){.a_log = tiny_vector(p, "1.ssm_a_log", 2),
                                      .dt_bias = tiny_vector(p, "1.ssm_dt", 2),
                                      .skip = tiny_vector(p, "1.ssm_skip", 2),
                                      .groups = 1,
                                      .heads = 2,
                                      .state = kept,
                                      .step_most = 0.5f};
    op = tiny_op(p, SL_OP_RMSNORM, 1, scanned, scanned);
    op->in[2] = (sl_operand){mixed, 0};
    op->u.rmsnorm = (sl_op_rmsnorm){.weight = tiny_vector(p, "1.gate_norm", 16),
                                    .epsilon = 1e-6f,
                                    .groups = 2,
                                    .width = 16,
                                    .stride = 16,
                                    .gate_stride = 16,
                                    .x_factor = 1,
                                    .y_factor = 1};
    op = tiny_linear(p, 1, scanned, hidden, tiny_matrix(p, "1.out", types->other, 1, 64, 32));
    op->in[3].value = hidden;
}

static void tiny_experts(sl_program *p, const tiny_types *types, int32_t hidden, int32_t normed) {
    const int32_t scores = sl_program_value(p, "scores", SL_ROWS_STEP, 4);
    const int32_t ids = sl_program_typed_value(
        p, &(sl_value){.name = "ids", .type = SL_VALUE_I32, .rows = SL_ROWS_STEP, .width = 2});
    const int32_t shares = sl_program_value(p, "shares", SL_ROWS_STEP, 2);
    const int32_t schedule = sl_program_typed_value(
        p, &(sl_value){
               .name = "schedule", .type = SL_VALUE_I32, .rows = SL_ROWS_EXPERT, .width = 1, .fixed = 5});
    const int32_t gate_up = sl_program_value(p, "expert_gate_up", SL_ROWS_EXPERT, 64);
    const int32_t result = sl_program_value(p, "expert_out", SL_ROWS_EXPERT, 64);
    const int32_t shared = sl_program_value(p, "shared", SL_ROWS_STEP, 65);
    tiny_norm(p, 1, hidden, normed, tiny_vector(p, "1.ffn_norm", 64));
    tiny_linear(p, 1, normed, scores, tiny_matrix(p, "1.router", SL_QTYPE_F32, 1, 4, 64));
    sl_op *op = tiny_op(p, SL_OP_ROUTER, 1, scores, ids);
    op->out[1].value = shares;
    op->out[2].value = schedule;
    op->u.router = (sl_op_router){.kind = SL_ROUTER_SOFTMAX,
                                  .experts = 4,
                                  .used = 2,
                                  .normalise = true,
                                  .bias = SL_NONE,
                                  .factors = SL_NONE,
                                  .groups = 1,
                                  .groups_used = 1,
                                  .scale = 1};
    op = tiny_linear(p, 1, normed, gate_up, tiny_matrix(p, "1.experts_gate", types->other, 4, 32, 64));
    tiny_segment(op, tiny_matrix(p, "1.experts_up", types->other, 4, 32, 64), SL_NONE, 32);
    op->in[1].value = ids;
    op->in[2].value = schedule;
    op = tiny_op(p, SL_OP_ACTIVATE, 1, gate_up, gate_up);
    op->in[1] = (sl_operand){gate_up, 32};
    op->u.activate = (sl_op_activate){.function = SL_ACTIVATION_GELU_TANH, .width = 32};
    op = tiny_linear(p, 1, gate_up, result, tiny_matrix(p, "1.experts_down", types->other, 4, 64, 32));
    op->in[1].value = ids;
    op->in[2].value = schedule;
    op = tiny_linear(p, 1, normed, shared, tiny_matrix(p, "1.shared", types->other, 1, 64, 64));
    tiny_segment(op, tiny_matrix(p, "1.shared_gate", SL_QTYPE_F32, 1, 1, 64), SL_NONE, 64);
    op = tiny_op(p, SL_OP_COMBINE, 1, result, hidden);
    op->in[1].value = shares;
    op->in[2].value = hidden;
    op->in[3].value = shared;
    op->in[4] = (sl_operand){shared, 64};
    op->u.combine = (sl_op_combine){2, 64};
}

/* Rows with outputs, a last norm and logits from `table`; sampling is the caller's. */
static void tiny_head(sl_program *p, int32_t hidden, int32_t table) {
    const int32_t last = sl_program_value(p, "last", SL_ROWS_OUTPUT, 64);
    p->hidden = last;
    p->logits = sl_program_value(p, "logits", SL_ROWS_OUTPUT, TINY_VOCABULARY);
    p->tokens = sl_program_typed_value(
        p, &(sl_value){.name = "tokens", .type = SL_VALUE_I32, .rows = SL_ROWS_OUTPUT, .width = 1});
    tiny_op(p, SL_OP_GATHER, SL_NONE, hidden, last)->u.gather.width = 64;
    tiny_norm(p, SL_NONE, last, last, tiny_vector(p, "norm", 64));
    tiny_linear(p, SL_NONE, last, p->logits, table);
}

/* `p` must be zero. */
static inline void tiny_build(sl_program *p, const tiny_types *types) {
    p->name = "tiny";
    p->width = TINY_WIDTH;
    p->vocabulary = TINY_VOCABULARY;
    p->experts = 4;
    p->experts_used = 2;
    sl_program_group(
        p, &(sl_cache_group){.name = "full", .layers = 1, .kv_heads = 2, .key_size = 16, .value_size = 16});
    const int32_t hidden = sl_program_value(p, "hidden", SL_ROWS_STEP, 64);
    const int32_t normed = sl_program_value(p, "normed", SL_ROWS_STEP, 64);
    const int32_t table = tiny_matrix(p, "table", types->other, 1, TINY_VOCABULARY, 64);
    tiny_op(p, SL_OP_BEGIN, SL_NONE, SL_NONE, SL_NONE);
    tiny_op(p, SL_OP_EMBED, SL_NONE, SL_NONE, hidden)->u.embed = (sl_op_embed){.weight = table, .scale = 1};
    tiny_attention(p, types, hidden, normed);
    tiny_delta(p, types, hidden, normed);
    tiny_experts(p, types, hidden, normed);
    tiny_head(p, hidden, table);
    tiny_op(p, SL_OP_SOFTCAP, SL_NONE, p->logits, p->logits)->u.softcap =
        (sl_op_softcap){30, 1, TINY_VOCABULARY};
    tiny_op(p, SL_OP_SAMPLE, SL_NONE, p->logits, p->tokens)->u.sample.vocabulary = TINY_VOCABULARY;
}

/* The nth op of a kind. */
static inline sl_op *tiny_find(sl_program *p, sl_op_kind kind, int nth) {
    for (int32_t i = 0; i < p->op_count; i++) {
        if (p->ops[i].kind == kind && nth-- == 0) {
            return &p->ops[i];
        }
    }
    return NULL;
}

#endif
