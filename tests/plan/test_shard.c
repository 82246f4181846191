/* Programs of ranks: that they check, that together they compute what the whole does, that their weights are
 * the whole's, and what stays whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "interpret.h"
#include "model/files.h"
#include "model/model.h"
#include "unit/program/tiny.h"

#include <math.h>
#include <stdlib.h>

/* ---- the ranks of a program ---- */

typedef struct group {
    sl_program ranks[SL_MOST_RANKS];
    int32_t count;
} group;

static void make_group(group *g, const sl_program *whole, int32_t count) {
    sl_error error = {0};
    memset(g, 0, sizeof *g);
    g->count = count;
    for (int32_t r = 0; r < count; r++) {
        if (sl_program_shard(whole, r, count, &g->ranks[r], &error) ||
            sl_program_check(&g->ranks[r], &error)) {
            fail_msg("rank %d of %d: %s", r, count, error.message);
        }
    }
}

static void fill_group(group *g) {
    sl_error error = {0};
    for (int32_t r = 0; r < g->count; r++) {
        if (sl_program_fill_slices(&g->ranks[r], &error)) {
            fail_msg("rank %d: %s", r, error.message);
        }
    }
}

static void free_group(group *g) {
    for (int32_t r = 0; r < g->count; r++) {
        sl_program_free(&g->ranks[r]);
    }
}

static void says(const sl_program *whole, int32_t ranks, const char *expected) {
    sl_buffer text = {0};
    sl_program_describe_shards(whole, ranks, &text);
    assert_false(text.failed);
    assert_string_equal(text.data, expected);
    sl_buffer_free(&text);
}

/* All of them compute the same, and that is what the whole computes but for rounding. */
static void compute_alike(const sl_program *whole, const group *g) {
    double *wanted, *found, largest = 0, worst = 0;
    int32_t width = 0, found_width = 0;
    const char *reason;
    if (!interpret(whole, 1, &wanted, &width, &reason) ||
        !interpret(g->ranks, g->count, &found, &found_width, &reason)) {
        fail_msg("%d ranks: %s", g->count, reason);
    }
    assert_int_equal(width, found_width);
    for (int32_t i = 0; i < width * INTERPRET_ROWS; i++) {
        assert_true(isfinite(wanted[i]) && isfinite(found[i]));
        largest = fmax(largest, fabs(wanted[i]));
        worst = fmax(worst, fabs(wanted[i] - found[i]));
    }
    assert_true(largest > 0);
    if (worst > 1e-9 * largest) {
        fail_msg("%d ranks differ by %g of %g", g->count, worst, largest);
    }
    free(wanted);
    free(found);
}

static int32_t count_kind(const sl_program *p, sl_op_kind kind) {
    int32_t count = 0;
    for (int32_t i = 0; i < p->op_count; i++) {
        count += p->ops[i].kind == kind;
    }
    return count;
}

/* Each sum stands behind the op whose columns it adds up, and is of exactly those. */
static void sums_stand_behind_shares(const sl_program *part) {
    for (int32_t i = 1; i < part->op_count; i++) {
        const sl_op *op = &part->ops[i], *before = &part->ops[i - 1];
        if (op->kind != SL_OP_ALL_REDUCE) {
            continue;
        }
        assert_true(before->kind == SL_OP_LINEAR || before->kind == SL_OP_COMBINE);
        assert_int_equal(op->layer, before->layer);
        assert_int_equal(op->in[0].value, before->out[0].value);
        assert_int_equal(op->in[0].column, before->out[0].column);
        assert_int_equal(op->u.all_reduce.width, sl_operand_width(part, before, true, 0));
    }
}

/* ---- families ---- */

typedef struct family {
    /* tests/logits/fixtures/MODEL, or ~PRESET: synthetic, of Q8_0; ~PRESET:N has experts of N columns, of
     * Q4_K. */
    const char *model;
    int32_t sums; /* of two ranks */
    const char *text;
} family;

static const family FAMILIES[] = {
    {"llama", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"mistral", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"qwen2", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"qwen3", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"qwen3-tied", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"qwen3moe", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"gemma3", 8, "4 of 4 layers' attention, 4 of 4 layers' feed-forward and the head"},
    {"gemma4-dense", 8, "4 of 4 layers' attention, 4 of 4 layers' feed-forward and the head"},
    {"gemma4-e", 16, "8 of 8 layers' attention, 8 of 8 layers' feed-forward and the head"},
    {"gemma4-moe", 12, "4 of 4 layers' attention, 4 of 4 layers' feed-forward and the head"},
    {"gemma4-mixed-values", 6, "2 of 2 layers' attention, 2 of 2 layers' feed-forward and the head"},
    {"qwen3_5", 8,
     "1 of 1 layers' attention, 4 of 4 layers' feed-forward, 3 of 3 layers' state and the head"},
    {"qwen3_5_moe", 8,
     "1 of 1 layers' attention, 4 of 4 layers' feed-forward, 3 of 3 layers' state and the head"},
    {"qwen3_next", 8,
     "1 of 1 layers' attention, 4 of 4 layers' feed-forward, 3 of 3 layers' state and the head"},
    {"gpt_oss", 8, "4 of 4 layers' attention, 4 of 4 layers' feed-forward and the head"},
    {"gpt_oss-mxfp4", 4,
     "4 of 4 layers' attention, 0 of 4 layers' feed-forward and the head; whole: 4 layers' feed-forward (a "
     "rank's columns are no whole blocks of weights)"},
    {"glm4_moe", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"minimax_m2", 3,
     "0 of 3 layers' attention, 3 of 3 layers' feed-forward and the head; whole: 3 layers' attention (a norm "
     "goes over all of its columns)"},
    {"ernie4_5_moe", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"lfm2", 6, "1 of 1 layers' attention, 3 of 3 layers' feed-forward, 2 of 2 layers' state and the head"},
    {"lfm2_moe", 6,
     "1 of 1 layers' attention, 3 of 3 layers' feed-forward, 2 of 2 layers' state and the head"},
    {"hunyuan_moe", 4, "2 of 2 layers' attention, 2 of 2 layers' feed-forward and the head"},
    {"deepseek_v2", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"deepseek_v3", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"mistral4", 4, "2 of 2 layers' attention, 2 of 2 layers' feed-forward and the head"},
    {"apertus", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"falcon_h1", 4,
     "2 of 2 layers' attention, 2 of 2 layers' feed-forward, 0 of 2 layers' state and the head; whole: 2 "
     "layers' state (its heads or columns do not divide evenly)"},
    {"llama4", 8, "4 of 4 layers' attention, 4 of 4 layers' feed-forward and the head"},
    {"granite-h-moe", 4,
     "1 of 1 layers' attention, 3 of 3 layers' feed-forward, 0 of 2 layers' state and the head; whole: 2 "
     "layers' state (its heads or columns do not divide evenly)"},
    {"nemotron_h", 5,
     "1 of 1 layers' attention, 2 of 2 layers' feed-forward, 2 of 2 layers' state and the head"},
    {"nemotron_h-latent", 6,
     "1 of 1 layers' attention, 2 of 2 layers' feed-forward, 2 of 2 layers' state and the head"},
    {"cohere2", 8, "4 of 4 layers' attention, 4 of 4 layers' feed-forward and the head"},
    {"olmo3", 4,
     "0 of 4 layers' attention, 4 of 4 layers' feed-forward and the head; whole: 4 layers' attention (a norm "
     "goes over all of its columns)"},
    {"exaone4", 8, "4 of 4 layers' attention, 4 of 4 layers' feed-forward and the head"},
    {"phi3-long", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"embed-bert", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward"},
    {"embed-gemma3", 8, "4 of 4 layers' attention, 4 of 4 layers' feed-forward"},
    {"llama-nvfp4", 2,
     "0 of 2 layers' attention, 2 of 2 layers' feed-forward and the head; whole: 2 layers' attention (a "
     "rank's columns are no whole blocks of weights)"},
    {"qwen3-fp8-channel", 2,
     "0 of 2 layers' attention, 2 of 2 layers' feed-forward and the head; whole: 2 layers' attention (a "
     "rank's columns are no whole blocks of weights)"},
    {"qwen3-int4", 4, "2 of 2 layers' attention, 2 of 2 layers' feed-forward and the head"},
    {"~ministral3", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"~smollm3", 8, "4 of 4 layers' attention, 4 of 4 layers' feed-forward and the head"},
    {"~granite", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"~olmo2", 4,
     "0 of 4 layers' attention, 4 of 4 layers' feed-forward and the head; whole: 4 layers' attention (a norm "
     "goes over all of its columns)"},
    {"~glm4", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"~phi3", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"~qwen3moe:768", 8, "4 of 4 layers' attention, 4 of 4 layers' feed-forward (4 unevenly) and the head"},
    {"~qwen3_5", 8,
     "1 of 1 layers' attention, 4 of 4 layers' feed-forward, 3 of 3 layers' state and the head"},
    {"~nemotron_h", 5,
     "1 of 1 layers' attention, 2 of 2 layers' feed-forward, 2 of 2 layers' state and the head"},
    {"~hunyuan_moe", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"~deepseek_v3", 6, "3 of 3 layers' attention, 3 of 3 layers' feed-forward and the head"},
    {"~falcon_h1", 9,
     "3 of 3 layers' attention, 3 of 3 layers' feed-forward, 3 of 3 layers' state and the head"},
};
enum { FAMILY_COUNT = sizeof FAMILIES / sizeof *FAMILIES };

static void load_family(const family *f, sl_model **model) {
    char path[512];
    sl_error error;
    if (f->model[0] == '~') {
        char preset[64];
        const size_t length = strcspn(f->model + 1, ":");
        snprintf(preset, sizeof preset, "%.*s", (int)length, f->model + 1);
        const bool blocks = f->model[1 + length] == ':';
        const sl_synth_options options = {.preset = preset,
                                          .type = blocks ? SL_QTYPE_Q4_K : SL_QTYPE_Q8_0,
                                          .expert_width = blocks ? atoi(f->model + length + 2) : 0};
        snprintf(path, sizeof path, "test_shard-%s.gguf", f->model + 1);
        remove(path);
        if (sl_synth_file(path, &options, NULL, &error)) {
            fail_msg("%s", error.message);
        }
    } else {
        snprintf(path, sizeof path, "%s/tests/logits/fixtures/%s", SLUICE_SOURCE_DIR, f->model);
    }
    if (sl_model_load(path, model, &error)) {
        fail_msg("%s", error.message);
    }
    if (f->model[0] == '~') {
        remove(path); /* the map stays */
    }
}

static void ranks_compute_what_the_whole_does(void **state) {
    const family *f = *state;
    sl_model *model;
    load_family(f, &model);
    says(&model->program, 2, f->text);
    static const int32_t counts[] = {2, 3, 4};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        group g;
        make_group(&g, &model->program, counts[i]);
        fill_group(&g);
        compute_alike(&model->program, &g);
        for (int32_t r = 0; r < g.count; r++) {
            assert_int_equal(g.ranks[r].rank, r);
            assert_int_equal(g.ranks[r].ranks, counts[i]);
            sums_stand_behind_shares(&g.ranks[r]);
            assert_int_equal(count_kind(&g.ranks[r], SL_OP_ALL_REDUCE),
                             count_kind(&g.ranks[0], SL_OP_ALL_REDUCE));
        }
        if (counts[i] == 2) {
            assert_int_equal(count_kind(&g.ranks[0], SL_OP_ALL_REDUCE), f->sums);
        }
        free_group(&g);
    }
    sl_model_free(model);
}

/* ---- small programs ---- */

/* Weights with bytes of their own; numbers between -1 and 1. */
static void fill_weights(sl_program *p) {
    uint32_t random = 7;
    for (int32_t w = 0; w < p->weight_count; w++) {
        sl_weight *weight = &p->weights[w];
        const uint64_t count = (uint64_t)weight->experts * (uint64_t)weight->rows * (uint64_t)weight->columns;
        float *numbers = malloc(count * sizeof *numbers);
        void *data = malloc(weight->bytes);
        assert_true(numbers && data);
        for (uint64_t i = 0; i < count; i++) {
            random = random * 1664525u + 1013904223u;
            numbers[i] = (float)(random >> 8) / (float)(1 << 23) - 1;
        }
        sl_qtype_get(weight->type)->encode(numbers, data, count);
        weight->data = data;
        free(numbers);
    }
}

static void free_whole(sl_program *p) {
    for (int32_t w = 0; w < p->weight_count; w++) {
        free((void *)(uintptr_t)p->weights[w].data);
    }
    sl_program_free(p);
}

static const tiny_types FLOATS = {SL_QTYPE_F32, SL_QTYPE_F16, SL_QTYPE_BF16, SL_QTYPE_F32};

static const char TINY_TEXT[] =
    "1 of 1 layers' attention, 2 of 2 layers' feed-forward, 0 of 1 layers' state and the head; "
    "whole: 1 layers' state (its heads or columns do not divide evenly)";

static void tiny_is_divided(void **state) {
    (void)state;
    sl_program whole = {0};
    tiny_build(&whole, &FLOATS);
    fill_weights(&whole);
    says(&whole, 2, TINY_TEXT);
    group g;
    make_group(&g, &whole, 2);
    assert_int_equal(g.ranks[1].groups[0].kv_heads, 1);
    assert_int_equal(g.ranks[1].values[2].width, 64);                 /* qkv */
    assert_int_equal(g.ranks[1].values[0].width, 64);                 /* hidden */
    assert_int_equal(g.ranks[1].values[g.ranks[1].logits].width, 96); /* of all ranks */
    sl_buffer text = {0};
    sl_op_print(&g.ranks[1], g.ranks[1].values, tiny_find(&g.ranks[1], SL_OP_LINEAR, 0), &text);
    assert_string_equal(text.data, "linear      qkv = normed . [0.q[32:64] f32 32x64, 0.k[16:32] f16 16x64 + "
                                   "0.k_bias[16:32], 0.v[16:32] bf16 16x64]");
    sl_buffer_clear(&text);
    sl_op_print(&g.ranks[1], g.ranks[1].values, tiny_find(&g.ranks[1], SL_OP_LINEAR, 1), &text);
    assert_string_equal(text.data, "linear      hidden = attended . [0.out[:,32:64] f32 64x32]");
    sl_buffer_clear(&text);
    sl_op_print(&g.ranks[0], g.ranks[0].values, tiny_find(&g.ranks[0], SL_OP_LINEAR, 1), &text);
    assert_string_equal(text.data,
                        "linear      hidden = attended, residual hidden . [0.out[:,0:32] f32 64x32]");
    sl_buffer_clear(&text);
    sl_op_print(&g.ranks[1], g.ranks[1].values, tiny_find(&g.ranks[1], SL_OP_ALL_GATHER, 0), &text);
    assert_string_equal(text.data, "all_gather  logits = logits.rank, of 2 ranks");
    sl_buffer_free(&text);
    /* What the experts share is whole with each rank: the first adds it. */
    assert_int_equal(tiny_find(&g.ranks[0], SL_OP_COMBINE, 0)->in[3].value, 15);
    assert_int_equal(tiny_find(&g.ranks[1], SL_OP_COMBINE, 0)->in[3].value, SL_NONE);
    assert_int_equal(tiny_find(&g.ranks[1], SL_OP_COMBINE, 0)->in[2].value, SL_NONE);
    /* The table is both: the head has a slice, and embeddings are the whole. */
    assert_ptr_equal(g.ranks[1].weights[tiny_find(&g.ranks[1], SL_OP_EMBED, 0)->u.embed.weight].data,
                     whole.weights[0].data);
    fill_group(&g);
    compute_alike(&whole, &g);
    free_group(&g);
    free_whole(&whole);
}

static const sl_weight *segment_of(const sl_program *p, int nth, int segment) {
    const sl_op *op = tiny_find((sl_program *)(uintptr_t)p, SL_OP_LINEAR, nth);
    return &p->weights[op->u.linear.segments[segment].weight];
}

/* The ranks' rows, or columns, of each expert put together are the whole's bytes. */
static void pieces_are_the_whole(const sl_program *whole, const group *g, int nth, int segment,
                                 bool columns) {
    const sl_weight *of = segment_of(whole, nth, segment);
    unsigned char *bytes = malloc(of->bytes);
    assert_non_null(bytes);
    uint64_t row, first = 0, bytes_of_all = 0;
    sl_qtype_bytes(of->type, (uint64_t)of->columns, &row);
    for (int32_t r = 0; r < g->count; r++) {
        const sl_weight *part = segment_of(&g->ranks[r], nth, segment);
        const unsigned char *from = part->data;
        uint64_t length;
        sl_qtype_bytes(of->type, (uint64_t)part->columns, &length);
        bytes_of_all += part->bytes;
        assert_int_equal(columns ? part->rows : part->columns, columns ? of->rows : of->columns);
        for (int32_t e = 0; e < of->experts; e++) {
            for (int32_t k = 0; k < part->rows; k++, from += length) {
                const uint64_t to =
                    ((uint64_t)e * (uint64_t)of->rows + (uint64_t)k) * row + (columns ? first : first * row);
                assert_true(to + length <= of->bytes);
                memcpy(bytes + to, from, (size_t)length);
            }
        }
        first += columns ? length : (uint64_t)part->rows;
    }
    assert_int_equal(bytes_of_all, of->bytes);
    assert_memory_equal(bytes, of->data, of->bytes);
    free(bytes);
}

/* Gate and up of `inner` columns in matrices of their own or in one. */
static void add_feed_forward(sl_program *p, int32_t x, int32_t y, sl_qtype type, int32_t inner, bool fused) {
    const int32_t width = p->width;
    const int32_t gate_up = sl_program_value(p, "gate_up", SL_ROWS_STEP, 2 * inner);
    const int32_t gated = sl_program_value(p, "gated", SL_ROWS_STEP, inner);
    sl_op *op =
        tiny_linear(p, 0, x, gate_up, tiny_matrix(p, "gate", type, 1, fused ? 2 * inner : inner, width));
    op->u.linear.segments[0].bias = tiny_vector(p, "gate.bias", fused ? 2 * inner : inner);
    if (!fused) {
        tiny_segment(op, tiny_matrix(p, "up", type, 1, inner, width), SL_NONE, inner);
    }
    op = tiny_op(p, SL_OP_ACTIVATE, 0, gate_up, gated);
    op->in[1] = (sl_operand){gate_up, inner};
    op->u.activate.width = inner;
    op = tiny_linear(p, 0, gated, y, tiny_matrix(p, "down", type, 1, width, inner));
    op->u.linear.segments[0].bias = tiny_vector(p, "down.bias", width);
}

/* One such block, or several, each of which reads what the one before leaves. */
static void build_blocks(sl_program *p, sl_qtype type, int32_t width, int32_t inner, int32_t blocks,
                         bool fused) {
    p->name = "feed-forward";
    p->width = width;
    p->vocabulary = 10;
    p->hidden = sl_program_value(p, "last", SL_ROWS_OUTPUT, width);
    p->logits = p->tokens = SL_NONE;
    const int32_t x = sl_program_value(p, "x", SL_ROWS_STEP, width);
    const int32_t y = sl_program_value(p, "y", SL_ROWS_STEP, width);
    const int32_t table = tiny_matrix(p, "table", SL_QTYPE_F32, 1, 10, width);
    tiny_op(p, SL_OP_BEGIN, SL_NONE, SL_NONE, SL_NONE);
    tiny_op(p, SL_OP_EMBED, SL_NONE, SL_NONE, x)->u.embed = (sl_op_embed){.weight = table, .scale = 1};
    for (int32_t b = 0; b < blocks; b++) {
        add_feed_forward(p, b ? y : x, y, type, inner, fused);
    }
    tiny_op(p, SL_OP_GATHER, SL_NONE, y, p->hidden)->u.gather.width = width;
}

static void build_feed_forward(sl_program *p, sl_qtype type, int32_t width, int32_t inner, bool fused) {
    build_blocks(p, type, width, inner, 1, fused);
}

static void slices_are_the_whole(void **state) {
    (void)state;
    static const sl_qtype types[] = {SL_QTYPE_F32,   SL_QTYPE_BF16,      SL_QTYPE_Q8_0,
                                     SL_QTYPE_Q4_0,  SL_QTYPE_Q4_K,      SL_QTYPE_Q6_K,
                                     SL_QTYPE_MXFP4, SL_QTYPE_NVFP4_128, SL_QTYPE_FP8_128};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        for (int fused = 0; fused < 2; fused++) {
            sl_program whole = {0};
            build_feed_forward(&whole, types[i], 256, 1024, fused);
            fill_weights(&whole);
            group g;
            make_group(&g, &whole, i % 2 ? 2 : 4);
            fill_group(&g);
            if (!fused) {
                pieces_are_the_whole(&whole, &g, 0, 0, false);
                pieces_are_the_whole(&whole, &g, 0, 1, false);
            }
            pieces_are_the_whole(&whole, &g, 1, 0, true);
            compute_alike(&whole, &g);
            free_group(&g);
            free_whole(&whole);
        }
    }
}

/* Blocks of weights that are no multiple of the ranks: some have one more, others in the next layer. */
static void shares_are_whole_blocks(void **state) {
    (void)state;
    static const struct {
        sl_qtype type;
        int32_t inner, ranks, units;
    } cases[] = {{SL_QTYPE_Q4_K, 768, 2, 3},   {SL_QTYPE_Q6_K, 1280, 3, 5}, {SL_QTYPE_Q8_0, 160, 2, 5},
                 {SL_QTYPE_F32, 128, 3, 4},    {SL_QTYPE_MXFP4, 96, 2, 3},  {SL_QTYPE_NVFP4_128, 640, 4, 5},
                 {SL_QTYPE_FP8_128, 384, 2, 3}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const int32_t inner = cases[i / 2].inner, ranks = cases[i / 2].ranks, units = cases[i / 2].units;
        const bool fused = i % 2;
        sl_program whole = {0};
        build_blocks(&whole, cases[i / 2].type, 256, inner, ranks, fused);
        fill_weights(&whole);
        says(&whole, ranks, "1 of 1 layers' feed-forward (1 unevenly)");
        group g;
        make_group(&g, &whole, ranks);
        fill_group(&g);
        int32_t given[SL_MOST_RANKS] = {0};
        for (int32_t b = 0; b < ranks; b++) {
            int32_t least = INT32_MAX, most = 0;
            for (int32_t r = 0; r < ranks; r++) {
                const int32_t columns = segment_of(&g.ranks[r], 2 * b + 1, 0)->columns;
                assert_int_equal(columns % (inner / units), 0);
                assert_int_equal(segment_of(&g.ranks[r], 2 * b, 0)->rows, columns);
                least = columns < least ? columns : least;
                most = columns > most ? columns : most;
                given[r] += columns;
            }
            assert_int_equal(most - least, inner / units);
            pieces_are_the_whole(&whole, &g, 2 * b + 1, 0, true);
            for (int segment = 0; !fused && segment < 2; segment++) {
                pieces_are_the_whole(&whole, &g, 2 * b, segment, false);
            }
        }
        for (int32_t r = 0; r < ranks; r++) { /* of as many layers as ranks all have as many */
            assert_int_equal(given[r], inner);
        }
        compute_alike(&whole, &g);
        free_group(&g);
        free_whole(&whole);
    }
}

static void slices_of_experts_are_the_whole(void **state) {
    (void)state;
    static const sl_qtype types[] = {SL_QTYPE_F32, SL_QTYPE_F16, SL_QTYPE_BF16};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        sl_program whole = {0};
        tiny_build(&whole, &(tiny_types){SL_QTYPE_Q8_0, SL_QTYPE_Q4_0, SL_QTYPE_Q8_0, types[i]});
        fill_weights(&whole);
        group g;
        make_group(&g, &whole, 2);
        fill_group(&g);
        for (int segment = 0; segment < 3; segment++) {
            pieces_are_the_whole(&whole, &g, 0, segment, false);
        }
        pieces_are_the_whole(&whole, &g, 7, 0, false);
        pieces_are_the_whole(&whole, &g, 7, 1, false);
        pieces_are_the_whole(&whole, &g, 8, 0, true);
        pieces_are_the_whole(&whole, &g, 10, 0, false); /* the head */
        compute_alike(&whole, &g);
        free_group(&g);
        free_whole(&whole);
    }
}

/* Rows of a matrix lie in the whole's data; columns are copies, from when they are filled until they are
 * dropped. */
static void only_columns_are_copied(void **state) {
    (void)state;
    sl_program whole = {0};
    sl_error error;
    build_feed_forward(&whole, SL_QTYPE_Q8_0, 64, 128, false);
    group g;
    make_group(&g, &whole, 2); /* without data too */
    assert_null(segment_of(&g.ranks[0], 0, 0)->data);
    assert_int_equal(sl_program_fill_slices(&g.ranks[0], &error), SL_ERR_INVALID);
    assert_non_null(strstr(error.message, "weight down has no data"));
    free_group(&g);
    fill_weights(&whole);
    make_group(&g, &whole, 2);
    const sl_weight *up = segment_of(&whole, 0, 1);
    assert_ptr_equal(segment_of(&g.ranks[1], 0, 1)->data, (const unsigned char *)up->data + up->bytes / 2);
    const sl_op *gate = tiny_find(&g.ranks[1], SL_OP_LINEAR, 0), *of = tiny_find(&whole, SL_OP_LINEAR, 0);
    assert_ptr_equal(g.ranks[1].weights[gate->u.linear.segments[0].bias].data,
                     (const float *)whole.weights[of->u.linear.segments[0].bias].data + 64);
    assert_null(segment_of(&g.ranks[1], 1, 0)->data);
    const uint64_t before = sl_alloc_live_bytes();
    fill_group(&g);
    assert_non_null(segment_of(&g.ranks[1], 1, 0)->data);
    assert_int_equal(sl_alloc_live_bytes() - before, segment_of(&whole, 1, 0)->bytes);
    fill_group(&g); /* once */
    sl_program_drop_slices(&g.ranks[0]);
    sl_program_drop_slices(&g.ranks[1]);
    assert_null(segment_of(&g.ranks[1], 1, 0)->data);
    assert_int_equal(sl_alloc_live_bytes(), before);
    free_group(&g);
    free_whole(&whole);
}

static void known_scales_stay_known(void **state) {
    (void)state;
    static const struct {
        int32_t of, expected; /* of 512 rows in one matrix, cut to 2 x 128 */
    } cases[] = {{0, 0}, {128, 128}, {64, 64}, {256, 128}, {512, 128}, {96, 32}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_program whole = {0};
        build_feed_forward(&whole, SL_QTYPE_FP8_128, 128, 256, true);
        for (int32_t w = 0; w < whole.weight_count; w++) {
            whole.weights[w].scale_rows = whole.weights[w].rows == 512 ? cases[i].of : 0;
        }
        group g;
        make_group(&g, &whole, 2);
        for (int32_t r = 0; r < 2; r++) {
            assert_int_equal(segment_of(&g.ranks[r], 0, 0)->scale_rows, cases[i].expected);
            assert_int_equal(segment_of(&g.ranks[r], 0, 1)->scale_rows, cases[i].expected);
        }
        free_group(&g);
        sl_program_free(&whole);
    }
    sl_program whole = {0}; /* 3 units of 128 rows */
    build_feed_forward(&whole, SL_QTYPE_FP8_128, 128, 384, true);
    for (int32_t w = 0; w < whole.weight_count; w++) {
        whole.weights[w].scale_rows = whole.weights[w].rows == 768 ? 256 : 0;
    }
    group g;
    make_group(&g, &whole, 2);
    for (int32_t r = 0; r < 2; r++) {
        assert_int_equal(segment_of(&g.ranks[r], 0, 0)->rows, r == 0 ? 256 : 128);
        assert_int_equal(segment_of(&g.ranks[r], 0, 1)->scale_rows, 128);
    }
    free_group(&g);
    sl_program_free(&whole);
}

/* ---- recurrent blocks ---- */

typedef struct recurrence {
    int32_t key_heads, value_heads;
    bool keys_cycle;
} recurrence;

enum { HEAD = 32 }; /* of keys and of values */

/* A gated delta net, all of whose inputs one matrix writes. */
static void add_delta(sl_program *p, int32_t layer, sl_qtype type, const recurrence *r) {
    const int32_t keys = r->key_heads * HEAD, values = r->value_heads * HEAD, channels = 2 * keys + values;
    const int32_t gate = channels, a = gate + values, b = a + r->value_heads, all = b + r->value_heads;
    const int32_t mixed = sl_program_value(p, "mixed", SL_ROWS_STEP, all);
    const int32_t convolved = sl_program_value(p, "convolved", SL_ROWS_STEP, channels);
    const int32_t scanned = sl_program_value(p, "scanned", SL_ROWS_STEP, values);
    const int32_t normed = sl_program_value(p, "delta.normed", SL_ROWS_STEP, values);
    const int32_t state = sl_program_state(
        p,
        &(sl_state_layer){
            .channels = channels, .taps = 3, .heads = r->value_heads, .key_size = HEAD, .value_size = HEAD});
    sl_op *op = tiny_linear(p, layer, 0, mixed, tiny_matrix(p, "in", type, 1, all, p->width));
    op->u.linear.segments[0].bias = tiny_vector(p, "in.bias", all);
    const int32_t taps = tiny_matrix(p, "conv", SL_QTYPE_F32, 1, channels, 3);
    const int32_t bias = tiny_vector(p, "conv.bias", channels);
    tiny_op(p, SL_OP_CONV, layer, mixed, convolved)->u.conv =
        (sl_op_conv){.weight = taps, .bias = bias, .state = state, .function = SL_ACTIVATION_SILU};
    const int32_t a_log = tiny_vector(p, "a_log", r->value_heads);
    const int32_t dt_bias = tiny_vector(p, "dt_bias", r->value_heads);
    op = tiny_op(p, SL_OP_DELTA_SCAN, layer, convolved, scanned);
    op->in[1] = (sl_operand){mixed, a};
    op->in[2] = (sl_operand){mixed, b};
    op->u.delta_scan = (sl_op_delta_scan){.a_log = a_log,
                                          .dt_bias = dt_bias,
                                          .key_heads = r->key_heads,
                                          .value_heads = r->value_heads,
                                          .state = state,
                                          .keys_cycle = r->keys_cycle};
    const int32_t own = tiny_vector(p, "norm", values);
    op = tiny_op(p, SL_OP_RMSNORM, layer, scanned, normed);
    op->in[2] = (sl_operand){mixed, gate};
    op->u.rmsnorm = (sl_op_rmsnorm){.weight = own,
                                    .own_weights = true,
                                    .epsilon = 1e-6f,
                                    .groups = r->value_heads,
                                    .width = HEAD,
                                    .stride = HEAD,
                                    .gate_stride = HEAD,
                                    .x_factor = 1,
                                    .y_factor = 1};
    tiny_linear(p, layer, normed, 0, tiny_matrix(p, "out", type, 1, p->width, values));
}

static void begin_program(sl_program *p) {
    p->name = "recurrent";
    p->width = 64;
    p->vocabulary = 10;
    p->logits = p->tokens = SL_NONE;
    const int32_t x = sl_program_value(p, "x", SL_ROWS_STEP, p->width);
    p->hidden = sl_program_value(p, "last", SL_ROWS_OUTPUT, p->width);
    const int32_t table = tiny_matrix(p, "table", SL_QTYPE_F32, 1, 10, p->width);
    tiny_op(p, SL_OP_BEGIN, SL_NONE, SL_NONE, SL_NONE);
    tiny_op(p, SL_OP_EMBED, SL_NONE, SL_NONE, x)->u.embed = (sl_op_embed){.weight = table, .scale = 1};
}

static void end_program(sl_program *p) {
    tiny_op(p, SL_OP_GATHER, SL_NONE, 0, p->hidden)->u.gather.width = p->width;
    fill_weights(p);
}

/* Queries, keys, values, gates and two columns a head, each in as many pieces as its heads lie in. */
static void recurrent_heads_divide(void **state) {
    (void)state;
    static const struct {
        recurrence r;
        int32_t ranks;
        sl_qtype type;
        const char *rows, *columns; /* of the second rank */
    } cases[] = {
        {{2, 2, false}, 2, SL_QTYPE_F32, "in[32:64,96:128,160:192,224:256,257:258,259:260]", "out[:,32:64]"},
        {{2, 4, false},
         2,
         SL_QTYPE_Q8_0,
         "in[32:64,96:128,192:256,320:384,386:388,390:392]",
         "out[:,64:128]"},
        {{2, 4, true},
         2,
         SL_QTYPE_Q8_0,
         "in[32:64,96:128,160:192,224:256,288:320,352:384,385:386,387:388,389:390,391:392]",
         "out[:,32:64,96:128]"},
        {{4, 4, true}, 4, SL_QTYPE_BF16, "in[32:64,160:192,288:320,416:448,513:514,517:518]", "out[:,32:64]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_program whole = {0};
        begin_program(&whole);
        add_delta(&whole, 0, cases[i].type, &cases[i].r);
        add_delta(&whole, 1, cases[i].type, &cases[i].r);
        end_program(&whole);
        says(&whole, cases[i].ranks, "2 of 2 layers' state");
        group g;
        make_group(&g, &whole, cases[i].ranks);
        assert_string_equal(segment_of(&g.ranks[1], 0, 0)->name, cases[i].rows);
        assert_string_equal(segment_of(&g.ranks[1], 1, 0)->name, cases[i].columns);
        assert_int_equal(g.ranks[1].states[1].heads * g.count, whole.states[1].heads);
        assert_int_equal(g.ranks[1].states[1].channels * g.count, whole.states[1].channels);
        assert_int_equal(g.ranks[1].state_bytes * (uint64_t)g.count, whole.state_bytes);
        fill_group(&g);
        compute_alike(&whole, &g);
        free_group(&g);
        free_whole(&whole);
    }
}

/* Slots have the states of all layers, and ranks' slots are the whole's together. */
static void states_divide_together(void **state) {
    (void)state;
    static const struct {
        recurrence first, second;
        int32_t ranks;
        const char *text;
    } cases[] = {
        {{2, 4, false},
         {1, 4, false},
         2,
         "0 of 2 layers' state; whole: 1 layers' state (its state is beside one that is whole), 1 layers' "
         "state (its heads or columns do not divide evenly)"},
        {{1, 1, false},
         {1, 1, false},
         2,
         "0 of 2 layers' state; whole: 2 layers' state (its state does not divide evenly)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_program whole = {0};
        begin_program(&whole);
        add_delta(&whole, 0, SL_QTYPE_F32, &cases[i].first);
        add_delta(&whole, 1, SL_QTYPE_F32, &cases[i].second);
        end_program(&whole);
        says(&whole, cases[i].ranks, cases[i].text);
        group g;
        make_group(&g, &whole, cases[i].ranks);
        assert_int_equal(g.ranks[1].state_bytes, whole.state_bytes);
        fill_group(&g);
        compute_alike(&whole, &g);
        free_group(&g);
        free_whole(&whole);
    }
}

/* Of a convolution alone; bytes of a rank's would end between two multiples of 64. */
static void states_without_gaps(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        const int32_t channels = i ? 32 : 16;
        sl_program whole = {0};
        begin_program(&whole);
        const int32_t x = sl_program_value(&whole, "in", SL_ROWS_STEP, channels);
        const int32_t y = sl_program_value(&whole, "convolved", SL_ROWS_STEP, channels);
        const int32_t kept = sl_program_state(&whole, &(sl_state_layer){.channels = channels, .taps = 2});
        tiny_linear(&whole, 0, 0, x, tiny_matrix(&whole, "in", SL_QTYPE_F32, 1, channels, 64));
        const int32_t taps = tiny_matrix(&whole, "conv", SL_QTYPE_F32, 1, channels, 2);
        tiny_op(&whole, SL_OP_CONV, 0, x, y)->u.conv =
            (sl_op_conv){.weight = taps, .bias = SL_NONE, .state = kept, .function = SL_ACTIVATION_SILU};
        tiny_linear(&whole, 0, y, 0, tiny_matrix(&whole, "out", SL_QTYPE_F32, 1, 64, channels));
        end_program(&whole);
        says(&whole, 2,
             i ? "1 of 1 layers' state"
               : "0 of 1 layers' state; whole: 1 layers' state (its state does not divide evenly)");
        group g;
        make_group(&g, &whole, 2);
        fill_group(&g);
        compute_alike(&whole, &g);
        free_group(&g);
        free_whole(&whole);
    }
}

/* ---- what stays whole ---- */

static void columns_of_whole_blocks(void **state) {
    (void)state;
    sl_program whole = {0};
    build_feed_forward(&whole, SL_QTYPE_Q4_K, 256, 256, false);
    says(&whole, 2,
         "0 of 1 layers' feed-forward; whole: 1 layers' feed-forward (a rank's columns are no whole blocks "
         "of weights)");
    sl_program_free(&whole);
    build_feed_forward(&whole, SL_QTYPE_Q4_K, 256, 768, false);
    says(&whole, 2, "1 of 1 layers' feed-forward (1 unevenly)");
    says(&whole, 3, "1 of 1 layers' feed-forward");
    says(&whole, 4,
         "0 of 1 layers' feed-forward; whole: 1 layers' feed-forward (a rank's columns are no whole blocks "
         "of weights)");
    sl_program_free(&whole);
    build_feed_forward(&whole, SL_QTYPE_F32, 64, 100, false);
    says(&whole, 3,
         "0 of 1 layers' feed-forward; whole: 1 layers' feed-forward (its heads or columns do not divide "
         "evenly)");
    sl_program_free(&whole);
    build_feed_forward(&whole, SL_QTYPE_Q8_0, 64, 64, false);
    says(&whole, 2, "1 of 1 layers' feed-forward");
    says(&whole, 4,
         "0 of 1 layers' feed-forward; whole: 1 layers' feed-forward (a rank's columns are no whole blocks "
         "of weights)");
    sl_program_free(&whole);
}

static void three_ranks(void **state) {
    (void)state;
    sl_program whole = {0};
    tiny_build(&whole, &FLOATS);
    fill_weights(&whole);
    says(&whole, 3,
         "0 of 1 layers' attention, 1 of 2 layers' feed-forward (1 unevenly), 0 of 1 layers' state and the "
         "head; "
         "whole: 1 layers' attention (its key heads do not divide evenly), 1 layers' feed-forward (its heads "
         "or columns do "
         "not divide "
         "evenly), 1 layers' state (its heads or columns do not divide evenly)");
    group g;
    make_group(&g, &whole, 3);
    fill_group(&g);
    assert_int_equal(count_kind(&g.ranks[2], SL_OP_ALL_REDUCE), 1);
    assert_int_equal(segment_of(&g.ranks[0], 3, 0)->columns, 64); /* 4 units of 32 columns */
    assert_int_equal(segment_of(&g.ranks[2], 3, 0)->columns, 32);
    assert_int_equal(g.ranks[2].groups[0].kv_heads, 2);
    compute_alike(&whole, &g);
    free_group(&g);
    free_whole(&whole);
}

/* Changes a small program; what is said of its attention and feed-forward then, of two ranks. */
typedef struct change {
    void (*make)(sl_program *p);
    int32_t attention, attention_layers, feed_forward; /* layers that are divided, and all */
    const char *whole;
} change;

/* Moves the last op of a program to `at`. */
static void move_last(sl_program *p, int32_t at) {
    const sl_op last = p->ops[p->op_count - 1];
    memmove(p->ops + at + 1, p->ops + at, (size_t)(p->op_count - 1 - at) * sizeof last);
    p->ops[at] = last;
}

/* In place on the columns of queries, keys and values. */
static void norm_in_front_of_attention(sl_program *p, int32_t column, int32_t groups, int32_t width,
                                       int32_t stride) {
    sl_op *op = tiny_op(p, SL_OP_RMSNORM, 0, 2, 2);
    op->in[0].column = op->out[0].column = column;
    op->u.rmsnorm = (sl_op_rmsnorm){
        .weight = SL_NONE, .groups = groups, .width = width, .stride = stride, .x_factor = 1, .y_factor = 1};
    move_last(p, 4);
}

static void norm_of_all_heads(sl_program *p) {
    norm_in_front_of_attention(p, 0, 1, 64, 64);
}

static void norm_of_each_head(sl_program *p) {
    norm_in_front_of_attention(p, 0, 4, 16, 16);
}

static void norm_with_own_weights(sl_program *p) {
    norm_in_front_of_attention(p, 0, 4, 16, 16);
    p->ops[4].u.rmsnorm.own_weights = true;
    p->ops[4].u.rmsnorm.weight = tiny_vector(p, "own", 64);
}

static void norm_of_half_the_heads(sl_program *p) {
    norm_in_front_of_attention(p, 0, 2, 16, 16);
}

static void norm_across_heads(sl_program *p) {
    norm_in_front_of_attention(p, 8, 4, 12, 16);
}

static void norm_of_two_heads(sl_program *p) {
    norm_in_front_of_attention(p, 0, 4, 32, 32);
}

static void residual_inside(sl_program *p) {
    const int32_t before = sl_program_value(p, "before", SL_ROWS_STEP, 256);
    sl_op *op = tiny_find(p, SL_OP_LINEAR, 2);
    op->in[3].value = before;
    const int32_t at = (int32_t)(op - p->ops);
    tiny_linear(p, 0, 1, before, tiny_matrix(p, "before", SL_QTYPE_F32, 1, 256, 64));
    move_last(p, at);
}

/* A second layer that reads the first one's keys, with a norm over all of its queries. */
static void shared_cache(sl_program *p) {
    const int32_t q = sl_program_value(p, "q.late", SL_ROWS_STEP, 64);
    const int32_t attended = sl_program_value(p, "attended.late", SL_ROWS_STEP, 64);
    const int32_t from = p->op_count;
    tiny_linear(p, 1, 1, q, tiny_matrix(p, "late.q", SL_QTYPE_F32, 1, 64, 64));
    tiny_norm(p, 1, q, q, SL_NONE);
    tiny_op(p, SL_OP_ATTENTION, 1, q, attended)->u.attention = tiny_find(p, SL_OP_ATTENTION, 0)->u.attention;
    tiny_linear(p, 1, attended, 0, tiny_matrix(p, "late.out", SL_QTYPE_F32, 1, 64, 64));
    sl_op late[4];
    memcpy(late, p->ops + from, sizeof late);
    memmove(p->ops + 16, p->ops + 12, (size_t)(from - 12) * sizeof *p->ops);
    memcpy(p->ops + 12, late, sizeof late);
}

static int32_t combine_in(sl_program *p) {
    return (int32_t)(tiny_find(p, SL_OP_COMBINE, 0) - p->ops);
}

static void two_readers_of_experts(sl_program *p) {
    tiny_op(p, SL_OP_ACTIVATE, 1, 14, 14)->u.activate.width = 64;
    move_last(p, combine_in(p));
}

static void two_sums_of_experts(sl_program *p) {
    const sl_op combine = *tiny_find(p, SL_OP_COMBINE, 0);
    *tiny_op(p, SL_OP_COMBINE, 1, SL_NONE, SL_NONE) = combine;
    move_last(p, combine_in(p));
}

/* What the ranks have shares of too, in front of the residual. */
static void shared_expert(sl_program *p) {
    const int32_t gate = sl_program_value(p, "shared.gate", SL_ROWS_STEP, 32);
    const int32_t y = sl_program_value(p, "shared.out", SL_ROWS_STEP, 64);
    tiny_find(p, SL_OP_COMBINE, 0)->in[3].value = y;
    tiny_linear(p, 1, 1, gate, tiny_matrix(p, "shared.up", SL_QTYPE_F32, 1, 32, 64));
    move_last(p, combine_in(p));
    tiny_op(p, SL_OP_ACTIVATE, 1, gate, gate)->u.activate.width = 32;
    move_last(p, combine_in(p));
    tiny_linear(p, 1, gate, y, tiny_matrix(p, "shared.down", SL_QTYPE_F32, 1, 64, 32));
    move_last(p, combine_in(p));
}

static const change CHANGES[] = {
    {norm_of_each_head, 1, 1, 2, ""},
    {norm_with_own_weights, 1, 1, 2, ""},
    {shared_expert, 1, 1, 2, ""},
    {norm_of_all_heads, 0, 1, 2, "1 layers' attention (a norm goes over all of its columns), "},
    {norm_of_half_the_heads, 0, 1, 2, "1 layers' attention (its columns are not told apart as heads), "},
    {norm_across_heads, 0, 1, 2, "1 layers' attention (its columns are not told apart as heads), "},
    {norm_of_two_heads, 0, 1, 2, "1 layers' attention (its heads or columns do not divide evenly), "},
    {shared_cache, 0, 2, 2,
     "1 layers' attention (its cache is shared with layers that are whole), "
     "1 layers' attention (a norm goes over all of its columns), "},
    {residual_inside, 1, 1, 1, "1 layers' feed-forward (a residual is added inside it), "},
    {two_readers_of_experts, 1, 1, 1,
     "1 layers' feed-forward (what its experts leave is not only combined), "},
    {two_sums_of_experts, 1, 1, 1, "1 layers' feed-forward (what its experts leave is not only combined), "},
};

static void what_does_not_divide_stays_whole(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof CHANGES / sizeof *CHANGES; i++) {
        const change *change = &CHANGES[i];
        char text[512];
        sl_program whole = {0};
        sl_error error;
        tiny_build(&whole, &FLOATS);
        change->make(&whole);
        if (sl_program_check(&whole, &error)) {
            fail_msg("change %d: %s", (int)i, error.message);
        }
        fill_weights(&whole);
        snprintf(
            text, sizeof text,
            "%d of %d layers' attention, %d of 2 layers' feed-forward, 0 of 1 layers' state and the head; "
            "whole: %s1 layers' state (its heads or columns do not divide evenly)",
            change->attention, change->attention_layers, change->feed_forward, change->whole);
        says(&whole, 2, text);
        group g;
        make_group(&g, &whole, 2);
        fill_group(&g);
        compute_alike(&whole, &g);
        free_group(&g);
        free_whole(&whole);
    }
}

static void odd_vocabulary(void **state) {
    (void)state;
    sl_program whole = {0};
    build_feed_forward(&whole, SL_QTYPE_F32, 64, 128, false);
    whole.logits = sl_program_value(&whole, "logits", SL_ROWS_OUTPUT, 10);
    tiny_linear(&whole, SL_NONE, whole.hidden, whole.logits,
                tiny_matrix(&whole, "head", SL_QTYPE_Q8_0, 1, 10, 64));
    fill_weights(&whole);
    says(&whole, 2, "1 of 1 layers' feed-forward and the head");
    says(&whole, 4, "1 of 1 layers' feed-forward; whole: the head (its rows do not divide evenly)");
    group g;
    make_group(&g, &whole, 4);
    fill_group(&g);
    assert_int_equal(count_kind(&g.ranks[0], SL_OP_ALL_GATHER), 0);
    compute_alike(&whole, &g);
    free_group(&g);
    free_whole(&whole);
}

static void refusals(void **state) {
    (void)state;
    sl_program whole = {0}, part = {0}, again = {0};
    sl_error error;
    tiny_build(&whole, &FLOATS);
    static const int32_t wrong[][2] = {{0, 1}, {0, 0}, {0, SL_MOST_RANKS + 1}, {-1, 2}, {2, 2}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(sl_program_shard(&whole, wrong[i][0], wrong[i][1], &part, &error), SL_ERR_INVALID);
        assert_non_null(strstr(error.message, "there must be 2 to 8 ranks"));
        sl_program_free(&part);
    }
    says(&whole, 1, "nothing");
    assert_int_equal(sl_program_shard(&whole, 1, 2, &part, &error), 0);
    assert_int_equal(sl_program_shard(&part, 0, 2, &again, &error), SL_ERR_UNSUPPORTED);
    sl_program_free(&again);
    sl_program_free(&part);
    whole.draft_ops = 1;
    assert_int_equal(sl_program_shard(&whole, 0, 2, &part, &error), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "a model's own head drafts on one device"));
    says(&whole, 2, "nothing; whole: all of it (a model's own head drafts on one device)");
    sl_program_free(&part);
    sl_program_free(&whole);
}

static void memory_failures_are_reported(void **state) {
    (void)state;
    sl_program whole = {0};
    tiny_build(&whole, &FLOATS);
    fill_weights(&whole);
    const uint64_t before = sl_alloc_live_bytes();
    uint64_t failed = 0;
    for (int code = SL_ERR_NOMEM; code; failed++) {
        sl_program part = {0};
        sl_error error = {0};
        sl_alloc_fail_at(failed + 1);
        code = sl_program_shard(&whole, 1, 2, &part, &error);
        code = code ? code : sl_program_fill_slices(&part, &error);
        sl_alloc_fail_at(0);
        assert_true(code == 0 || code == SL_ERR_NOMEM);
        sl_program_free(&part);
        assert_int_equal(sl_alloc_live_bytes(), before);
    }
    assert_in_range(failed, 5, 1000);
    free_whole(&whole);
}

int main(void) {
    static const struct CMUnitTest own[] = {
        cmocka_unit_test(tiny_is_divided),
        cmocka_unit_test(slices_are_the_whole),
        cmocka_unit_test(shares_are_whole_blocks),
        cmocka_unit_test(slices_of_experts_are_the_whole),
        cmocka_unit_test(only_columns_are_copied),
        cmocka_unit_test(known_scales_stay_known),
        cmocka_unit_test(recurrent_heads_divide),
        cmocka_unit_test(states_divide_together),
        cmocka_unit_test(states_without_gaps),
        cmocka_unit_test(columns_of_whole_blocks),
        cmocka_unit_test(three_ranks),
        cmocka_unit_test(what_does_not_divide_stays_whole),
        cmocka_unit_test(odd_vocabulary),
        cmocka_unit_test(refusals),
        cmocka_unit_test(memory_failures_are_reported),
    };
    enum { OWN = sizeof own / sizeof *own };
    struct CMUnitTest tests[OWN + FAMILY_COUNT];
    memcpy(tests, own, sizeof own);
    memset(tests + OWN, 0, FAMILY_COUNT * sizeof *tests);
    for (int i = 0; i < FAMILY_COUNT; i++) {
        tests[OWN + i].name = FAMILIES[i].model;
        tests[OWN + i].test_func = ranks_compute_what_the_whole_does;
        tests[OWN + i].initial_state = (void *)(uintptr_t)&FAMILIES[i];
    }
    return cmocka_run_group_tests_name("programs of ranks", tests, NULL, NULL);
}
