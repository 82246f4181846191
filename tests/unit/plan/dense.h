/* A program without experts, for tests of what lies in host memory. Weights have shapes and no data. */
#ifndef SLUICE_TESTS_DENSE_H
#define SLUICE_TESTS_DENSE_H

#include "plan/plan.h"
#include "unit/program/tiny.h"

enum { DENSE_LAYERS = 8 };

static const char *const LAYER_NAMES[DENSE_LAYERS] = {"0", "1", "2", "3", "4", "5", "6", "7"};

/* Dense layers of two products each, of which the later ones are the wider. `shared`: the last two read one
 * matrix. */
static void dense_build(sl_program *p, bool shared) {
    int32_t first = SL_NONE;
    p->name = "dense";
    p->width = TINY_WIDTH;
    p->vocabulary = TINY_VOCABULARY;
    const int32_t hidden = sl_program_value(p, "hidden", SL_ROWS_STEP, 64);
    const int32_t normed = sl_program_value(p, "normed", SL_ROWS_STEP, 64);
    const int32_t table = tiny_matrix(p, "table", SL_QTYPE_F16, 1, TINY_VOCABULARY, 64);
    tiny_op(p, SL_OP_BEGIN, SL_NONE, SL_NONE, SL_NONE);
    tiny_op(p, SL_OP_EMBED, SL_NONE, SL_NONE, hidden)->u.embed = (sl_op_embed){.weight = table, .scale = 1};
    for (int32_t l = 0; l < DENSE_LAYERS; l++) {
        const int32_t width = 128 + 32 * l, up = sl_program_value(p, "up", SL_ROWS_STEP, width);
        tiny_norm(p, l, hidden, normed, tiny_vector(p, LAYER_NAMES[l], 64));
        const int32_t matrix = tiny_matrix(p, LAYER_NAMES[l], SL_QTYPE_Q4_0, 1, width, 64);
        sl_op *op = tiny_linear(p, l, normed, up, matrix);
        op->u.linear.segments[0].bias = tiny_vector(p, LAYER_NAMES[l], width);
        const bool again = shared && l == DENSE_LAYERS - 1;
        const int32_t active = sl_program_value(p, "active", SL_ROWS_STEP, 128);
        op = tiny_op(p, SL_OP_ACTIVATE, l, up, active);
        op->u.activate = (sl_op_activate){.function = SL_ACTIVATION_SILU, .width = 128};
        const int32_t down = again ? first : tiny_matrix(p, LAYER_NAMES[l], SL_QTYPE_F16, 1, 64, 128);
        first = l == DENSE_LAYERS - 2 ? down : first;
        op = tiny_linear(p, l, active, hidden, down);
        op->in[3].value = hidden;
    }
    tiny_head(p, hidden, table);
    tiny_op(p, SL_OP_SAMPLE, SL_NONE, p->logits, p->tokens)->u.sample.vocabulary = TINY_VOCABULARY;
}

static const sl_plan_options DENSE_OPTIONS = {
    .chunk = 8, .sequences = 2, .context = 130, .cache_type = SL_QTYPE_F16, .cache_tokens = 384};

#endif
