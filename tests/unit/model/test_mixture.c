/* Which type each tensor takes, against what llama.cpp says: the snapshots of its own test of the same rules
 * (llama.cpp, tests/snapshots/NAME.schema, commits 343313bd and a45da44f) for dense models, and its published
 * file sizes. For eight experts there is no snapshot; those maps were worked out by hand from the text of
 * llama_tensor_get_type_impl (src/llama-quant.cpp). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/mixture.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 700, NAME = 64 };

typedef struct shape {
    const char *name, *architecture;
    uint64_t layers, heads, kv_heads, experts, width, feed_forward, vocabulary;
    bool tied;
} shape;

static const shape SHAPES[] = {
    {"qwen3-0.6b", "qwen3", 28, 16, 8, 0, 1024, 3072, 151936, false},
    {"qwen3-14b", "qwen3", 40, 40, 8, 0, 5120, 17408, 151936, false},
    {"llama-70b", "llama", 80, 64, 8, 0, 8192, 28672, 128256, false},
    {"gemma-3-4b", "gemma3", 34, 8, 4, 0, 2560, 10240, 262144, true},
    {"mixtral", "llama", 32, 32, 8, 8, 4096, 14336, 32000, false},
};

/* What differs from the mixture's own type: layers of a matrix, "-" for all of them. */
typedef struct exception {
    const char *matrix, *layers;
    sl_qtype type;
} exception;

#define ALL "-"
#define HEAD                                                                                                 \
    { "output", "", SL_QTYPE_Q6_K }
#define HEAD_5                                                                                               \
    { "output", "", SL_QTYPE_Q5_K }
#define EMBEDDING_2                                                                                          \
    { "token_embd", "", SL_QTYPE_Q2_K }
#define EMBEDDING_3                                                                                          \
    { "token_embd", "", SL_QTYPE_IQ3_S }
#define MORE_28 "0-2,5,8,11,14,17,20,23-27"
#define MORE_40 "0-4,7,10,13,16,19,22,25,28,31,34-39"
#define MORE_80 "0-9,12,15,18,21,24,27,30,33,36,39,42,45,48,51,54,57,60,63,66,69-79"
#define MORE_32 "0-3,6,9,12,15,18,21,24,27-31"
#define Q2 SL_QTYPE_Q2_K
#define I3 SL_QTYPE_IQ3_S
#define Q3 SL_QTYPE_Q3_K
#define Q4 SL_QTYPE_Q4_K
#define Q5 SL_QTYPE_Q5_K
#define Q6 SL_QTYPE_Q6_K
#define Q8 SL_QTYPE_Q8_0

static const struct {
    const char *shape, *mixture;
    sl_qtype base;
    exception exceptions[8]; /* the first that holds */
} MAPS[] = {
    {"qwen3-0.6b", "F16", SL_QTYPE_F16, {{0}}},
    {"qwen3-0.6b", "Q8_0", Q8, {{0}}},
    {"qwen3-0.6b", "Q4_0", SL_QTYPE_Q4_0, {HEAD}},
    {"qwen3-0.6b", "Q4_1", SL_QTYPE_Q4_1, {HEAD}},
    {"qwen3-0.6b", "Q5_0", SL_QTYPE_Q5_0, {HEAD}},
    {"qwen3-0.6b", "Q5_1", SL_QTYPE_Q5_1, {HEAD}},
    {"qwen3-0.6b",
     "Q2_K",
     SL_QTYPE_Q2_K,
     {HEAD, {"attn_output", ALL, Q3}, {"attn_v", ALL, Q3}, {"ffn_down", ALL, Q3}}},
    {"qwen3-0.6b", "Q3_K_S", Q3, {HEAD}},
    {"qwen3-0.6b",
     "Q3_K_M",
     Q3,
     {HEAD,
      {"attn_output", ALL, Q4},
      {"attn_v", "0-1", Q5},
      {"attn_v", ALL, Q4},
      {"ffn_down", "0", Q5},
      {"ffn_down", ALL, Q4}}},
    {"qwen3-0.6b",
     "Q3_K_L",
     Q3,
     {HEAD, {"attn_output", ALL, Q5}, {"attn_v", ALL, Q5}, {"ffn_down", ALL, Q5}}},
    {"qwen3-0.6b", "Q4_K_S", Q4, {HEAD, {"attn_v", "0-3", Q5}, {"ffn_down", "0-2", Q5}}},
    {"qwen3-0.6b", "Q4_K_M", Q4, {HEAD, {"attn_v", MORE_28, Q6}, {"ffn_down", MORE_28, Q6}}},
    {"qwen3-0.6b", "q4_k", Q4, {HEAD, {"attn_v", MORE_28, Q6}, {"ffn_down", MORE_28, Q6}}},
    {"qwen3-0.6b", "Q5_K_S", Q5, {HEAD}},
    {"qwen3-0.6b", "Q5_K_M", Q5, {HEAD, {"attn_v", MORE_28, Q6}, {"ffn_down", MORE_28, Q6}}},
    {"qwen3-0.6b", "Q6_K", Q6, {{0}}},
    {"qwen3-0.6b", "Q2_K_S", SL_QTYPE_Q2_K, {HEAD, {"ffn_down", "0-2", Q4}}},
    {"qwen3-0.6b",
     "IQ1_S",
     SL_QTYPE_IQ1_S,
     {HEAD_5,
      EMBEDDING_2,
      {"attn_output", ALL, SL_QTYPE_IQ2_XXS},
      {"attn_v", ALL, Q2},
      {"ffn_down", "0-2", Q2}}},
    {"qwen3-0.6b",
     "IQ1_M",
     SL_QTYPE_IQ1_M,
     {HEAD_5,
      EMBEDDING_2,
      {"attn_output", ALL, SL_QTYPE_IQ2_XXS},
      {"attn_v", ALL, Q2},
      {"ffn_down", "0-2", Q2}}},
    {"qwen3-0.6b", "TQ1_0", SL_QTYPE_TQ1_0, {HEAD, {"token_embd", "", Q4}}},
    {"qwen3-0.6b", "TQ2_0", SL_QTYPE_TQ2_0, {HEAD, {"token_embd", "", Q4}}},
    {"qwen3-0.6b",
     "IQ2_XXS",
     SL_QTYPE_IQ2_XXS,
     {HEAD_5, EMBEDDING_2, {"attn_v", ALL, Q2}, {"ffn_down", "0-2", Q2}}},
    {"qwen3-0.6b",
     "IQ2_XS",
     SL_QTYPE_IQ2_XS,
     {HEAD_5, EMBEDDING_2, {"attn_v", ALL, Q2}, {"ffn_down", "0-2", Q2}}},
    {"qwen3-0.6b",
     "IQ2_S",
     SL_QTYPE_IQ2_XS,
     {HEAD_5, EMBEDDING_3, {"attn_output", ALL, I3}, {"attn_v", ALL, I3}, {"ffn_down", "0-2", I3}}},
    {"qwen3-0.6b",
     "IQ2_M",
     SL_QTYPE_IQ2_S,
     {HEAD_5, EMBEDDING_3, {"attn_output", ALL, I3}, {"attn_v", ALL, I3}, {"ffn_down", "0-2", I3}}},
    {"qwen3-0.6b",
     "IQ3_XXS",
     SL_QTYPE_IQ3_XXS,
     {HEAD_5,
      EMBEDDING_3,
      {"attn_k", ALL, SL_QTYPE_IQ2_S},
      {"attn_q", ALL, SL_QTYPE_IQ2_S},
      {"attn_output", ALL, I3},
      {"attn_v", ALL, I3},
      {"ffn_down", "0-2", Q4},
      {"ffn_down", ALL, Q3}}},
    {"qwen3-0.6b",
     "IQ3_XS",
     I3,
     {HEAD,
      {"attn_k", ALL, SL_QTYPE_IQ3_XXS},
      {"attn_q", ALL, SL_QTYPE_IQ3_XXS},
      {"ffn_gate", "3-23", SL_QTYPE_IQ3_XXS},
      {"ffn_up", "3-23", SL_QTYPE_IQ3_XXS}}},
    {"qwen3-0.6b", "IQ3_S", I3, {HEAD}},
    {"qwen3-0.6b",
     "IQ3_M",
     I3,
     {HEAD, {"attn_output", ALL, Q4}, {"attn_v", ALL, Q4}, {"ffn_down", "0-2", Q4}}},
    {"qwen3-14b",
     "Q2_K",
     SL_QTYPE_Q2_K,
     {HEAD, {"attn_output", ALL, Q3}, {"attn_v", ALL, Q4}, {"ffn_down", ALL, Q3}}},
    {"qwen3-14b",
     "Q3_K_M",
     Q3,
     {HEAD,
      {"attn_output", ALL, Q4},
      {"attn_v", "0-1", Q5},
      {"attn_v", ALL, Q4},
      {"ffn_down", "0-1", Q5},
      {"ffn_down", ALL, Q4}}},
    {"qwen3-14b", "Q4_K_S", Q4, {HEAD, {"attn_v", "0-3", Q5}, {"ffn_down", "0-4", Q5}}},
    {"qwen3-14b", "Q4_K_M", Q4, {HEAD, {"attn_v", MORE_40, Q6}, {"ffn_down", MORE_40, Q6}}},
    {"qwen3-14b", "Q5_K_M", Q5, {HEAD, {"attn_v", MORE_40, Q6}, {"ffn_down", MORE_40, Q6}}},
    {"qwen3-14b", "Q2_K_S", SL_QTYPE_Q2_K, {HEAD, {"attn_v", ALL, Q4}, {"ffn_down", "0-4", Q4}}},
    {"qwen3-14b", "IQ4_NL", SL_QTYPE_IQ4_NL, {HEAD, {"attn_v", ALL, Q5}, {"ffn_down", "0-4", Q5}}},
    {"qwen3-14b", "IQ4_XS", SL_QTYPE_IQ4_XS, {HEAD, {"attn_v", ALL, Q5}, {"ffn_down", "0-4", Q5}}},
    {"qwen3-14b", "MXFP4_MOE", Q8, {{0}}},
    {"llama-70b", "Q8_0", Q8, {{0}}},
    {"llama-70b",
     "Q2_K",
     SL_QTYPE_Q2_K,
     {HEAD, {"attn_output", ALL, Q3}, {"attn_v", ALL, Q5}, {"ffn_down", ALL, Q3}}},
    {"llama-70b", "Q3_K_S", Q3, {HEAD, {"attn_v", ALL, Q5}}},
    {"llama-70b",
     "Q3_K_M",
     Q3,
     {HEAD, {"attn_output", ALL, Q4}, {"attn_v", ALL, Q5}, {"ffn_down", "0-4", Q5}, {"ffn_down", ALL, Q4}}},
    {"llama-70b", "Q4_K_S", Q4, {HEAD, {"attn_v", ALL, Q5}, {"ffn_down", "0-9", Q5}}},
    {"llama-70b",
     "Q4_K_M",
     Q4,
     {HEAD, {"attn_v", MORE_80, Q6}, {"attn_v", ALL, Q5}, {"ffn_down", MORE_80, Q6}}},
    {"llama-70b", "Q5_K_M", Q5, {HEAD, {"attn_v", MORE_80, Q6}, {"ffn_down", MORE_80, Q6}}},
    {"llama-70b", "Q2_K_S", SL_QTYPE_Q2_K, {HEAD, {"attn_v", ALL, Q5}, {"ffn_down", "0-9", Q4}}},
    {"gemma-3-4b", "F16", SL_QTYPE_F16, {{0}}},
    {"gemma-3-4b", "Q8_0", Q8, {{0}}},
    {"gemma-3-4b", "Q4_0", SL_QTYPE_Q4_0, {{"token_embd", "", Q6}}},
    {"gemma-3-4b", "Q3_K_S", Q3, {{"token_embd", "", Q6}}},
    {"gemma-3-4b", "Q5_K_S", Q5, {{"token_embd", "", Q6}}},
    {"gemma-3-4b", "Q6_K", Q6, {{0}}},
    {"mixtral",
     "Q4_K_M",
     Q4,
     {HEAD,
      {"attn_v", ALL, Q8},
      {"attn_k", ALL, Q8},
      {"attn_output", ALL, Q5},
      {"ffn_down_exps", MORE_32, Q6}}},
    {"mixtral",
     "Q4_K_S",
     Q4,
     {HEAD,
      {"attn_v", ALL, Q8},
      {"attn_k", ALL, Q8},
      {"attn_output", ALL, Q5},
      {"ffn_down_exps", "0-3", Q5}}},
    {"mixtral", "Q3_K_L", Q3, {HEAD, {"attn_v", ALL, Q8}, {"attn_k", ALL, Q8}, {"ffn_down_exps", ALL, Q5}}},
    {"mixtral",
     "Q3_K_M",
     Q3,
     {HEAD,
      {"attn_v", ALL, Q8},
      {"attn_k", ALL, Q8},
      {"attn_output", ALL, Q5},
      {"ffn_down_exps", "0-1", Q5},
      {"ffn_down_exps", ALL, Q4}}},
    {"mixtral",
     "Q5_K_M",
     Q5,
     {HEAD, {"attn_v", ALL, Q8}, {"attn_k", ALL, Q8}, {"ffn_down_exps", MORE_32, Q6}}},
    {"mixtral", "Q4_0", SL_QTYPE_Q4_0, {HEAD, {"attn_v", ALL, Q8}, {"attn_k", ALL, Q8}}},
    {"mixtral",
     "IQ2_S",
     SL_QTYPE_IQ2_XS,
     {HEAD_5,
      EMBEDDING_3,
      {"attn_v", ALL, Q4},
      {"attn_k", ALL, Q4},
      {"attn_output", ALL, Q5},
      {"ffn_down_exps", "0-3", I3}}},
    {"mixtral",
     "IQ3_M",
     I3,
     {HEAD,
      {"attn_v", ALL, Q8},
      {"attn_k", ALL, Q8},
      {"attn_output", ALL, Q5},
      {"ffn_down_exps", MORE_32, Q4}}},
    {"mixtral",
     "MXFP4_MOE",
     Q8,
     {{"ffn_gate_exps", ALL, SL_QTYPE_MXFP4},
      {"ffn_up_exps", ALL, SL_QTYPE_MXFP4},
      {"ffn_down_exps", ALL, SL_QTYPE_MXFP4}}},
};

static const shape *shape_of(const char *name) {
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
        if (strcmp(SHAPES[i].name, name) == 0) {
            return &SHAPES[i];
        }
    }
    fail_msg("no shape %s", name);
    return NULL;
}

static sl_mixture_model model_of(const shape *s, bool importance) {
    return (sl_mixture_model){
        {s->architecture, strlen(s->architecture)}, s->layers, s->heads, s->kv_heads, s->experts, importance};
}

/* Every matrix of a model, the last layer first: their order must not matter. */
static uint64_t list_tensors(const shape *s, sl_mixture_tensor *tensors, char (*names)[NAME]) {
    static const char *const matrices[] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                           "ffn_gate", "ffn_up", "ffn_down"};
    uint64_t count = 0;
    for (uint64_t layer = s->layers; layer-- > 0;) {
        for (int i = 0; i < 7; i++) {
            const bool experts = s->experts > 0 && i >= 4;
            snprintf(names[count], NAME, "blk.%d.%s%s.weight", (int)layer, matrices[i],
                     experts ? "_exps" : "");
            tensors[count] = (sl_mixture_tensor){names[count], i == 6 ? s->feed_forward : s->width,
                                                 experts ? s->experts : 1, 0};
            count++;
        }
    }
    tensors[count++] = (sl_mixture_tensor){"token_embd.weight", s->width, 1, 0};
    if (!s->tied) {
        tensors[count++] = (sl_mixture_tensor){"output.weight", s->width, 1, 0};
    }
    return count;
}

static bool is_listed(const char *list, long number) {
    while (*list) {
        char *end;
        const long first = strtol(list, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        if (number >= first && number <= last) {
            return true;
        }
        list = *end == ',' ? end + 1 : end;
    }
    return false;
}

static sl_qtype expected_type(size_t map, const char *name) {
    for (int i = 0; i < 8 && MAPS[map].exceptions[i].matrix; i++) {
        const exception *e = &MAPS[map].exceptions[i];
        char wanted[NAME];
        long layer = -1;
        const char *rest = name;
        if (strncmp(name, "blk.", 4) == 0) {
            char *end;
            layer = strtol(name + 4, &end, 10);
            rest = end + 1;
        }
        snprintf(wanted, sizeof wanted, "%s.weight", e->matrix);
        if (strcmp(rest, wanted) == 0 &&
            (layer < 0 || strcmp(e->layers, ALL) == 0 || is_listed(e->layers, layer))) {
            return e->type;
        }
    }
    return MAPS[map].base;
}

static void maps_are_llama_cpps(void **state) {
    (void)state;
    static sl_mixture_tensor tensors[TENSORS];
    static char names[TENSORS][NAME];
    for (size_t map = 0; map < sizeof MAPS / sizeof *MAPS; map++) {
        const shape *s = shape_of(MAPS[map].shape);
        const sl_mixture_model model = model_of(s, false);
        const uint64_t count = list_tensors(s, tensors, names);
        sl_error error;
        assert_int_equal(
            sl_mixture_assign(sl_mixture_find(MAPS[map].mixture), &model, tensors, count, &error), 0);
        for (uint64_t i = 0; i < count; i++) {
            const sl_qtype wanted = expected_type(map, tensors[i].name);
            if (tensors[i].type != wanted) {
                fail_msg("%s as %s: %s is %s, not %s", s->name, MAPS[map].mixture, tensors[i].name,
                         sl_qtype_get(tensors[i].type)->name, sl_qtype_get(wanted)->name);
            }
        }
    }
}

/* With an importance matrix IQ4 and IQ3_XXS need no better start, and Q4_0 and Q5_0 take one
 * (llama-quant.cpp). */
static void importance_changes_the_first_layers(void **state) {
    (void)state;
    static sl_mixture_tensor tensors[TENSORS];
    static char names[TENSORS][NAME];
    static const struct {
        const char *mixture;
        sl_qtype without, with;
    } cases[] = {{"IQ4_XS", Q5, SL_QTYPE_IQ4_XS},
                 {"IQ3_XXS", Q4, SL_QTYPE_IQ3_XXS},
                 {"Q4_0", SL_QTYPE_Q4_0, SL_QTYPE_Q4_1},
                 {"Q5_0", SL_QTYPE_Q5_0, SL_QTYPE_Q5_1},
                 {"Q4_K_M", Q6, Q6}};
    const shape *s = shape_of("qwen3-14b");
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (int with = 0; with < 2; with++) {
            const sl_mixture_model model = model_of(s, with);
            const uint64_t count = list_tensors(s, tensors, names);
            sl_error error;
            assert_int_equal(
                sl_mixture_assign(sl_mixture_find(cases[c].mixture), &model, tensors, count, &error), 0);
            for (uint64_t i = 0; i < count; i++) {
                if (strcmp(tensors[i].name, "blk.4.ffn_down.weight") == 0) {
                    assert_int_equal(tensors[i].type, with ? cases[c].with : cases[c].without);
                }
            }
        }
    }
}

/* Of linear attention, fused projections count among the values; their places are counted, not their layers.
 */
static void places_of_values_are_counted(void **state) {
    (void)state;
    sl_mixture_tensor tensors[8];
    char names[8][NAME];
    for (int layer = 0; layer < 8; layer++) {
        snprintf(names[layer], NAME, "blk.%d.%s.weight", 8 + 7 * layer,
                 layer % 4 == 3 ? "attn_v" : "attn_qkv");
        tensors[layer] = (sl_mixture_tensor){names[layer], 1024, 1, 0};
    }
    const sl_mixture_model model = {{"qwen35", 6}, 64, 16, 4, 0, false};
    sl_error error;
    assert_int_equal(sl_mixture_assign(sl_mixture_find("Q4_K_S"), &model, tensors, 8, &error), 0);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(tensors[i].type, i < 4 ? Q5 : Q4);
    }
}

/* GiB of Llama-3-8B, as llama-quantize's help says (tools/quantize/quantize.cpp). 266240 of its weights are
 * norms. */
static void sizes_are_the_published_ones(void **state) {
    (void)state;
    static const struct {
        const char *mixture;
        double size;
    } published[] = {{"Q4_0", 4.34},   {"Q4_1", 4.78},   {"Q5_0", 5.21},   {"Q5_1", 5.65},   {"Q2_K", 2.96},
                     {"Q3_K_S", 3.41}, {"Q3_K_M", 3.74}, {"Q3_K_L", 4.03}, {"Q4_K_S", 4.37}, {"Q4_K_M", 4.58},
                     {"Q5_K_S", 5.21}, {"Q5_K_M", 5.33}, {"Q6_K", 6.14},   {"Q8_0", 7.96}};
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        const double bits = sl_mixture_bits(sl_mixture_find(published[i].mixture));
        const double size = ((8030261248.0 - 266240) * bits / 8 + 4 * 266240) / 1073741824;
        if (size < published[i].size - 0.016 || size > published[i].size + 0.006) {
            fail_msg("%s: %.4f GiB, published as %.2f", published[i].mixture, size, published[i].size);
        }
    }
}

static void names_in_any_case(void **state) {
    (void)state;
    sl_error error;
    assert_ptr_equal(sl_mixture_find("q3_k_l"), sl_mixture_find("Q3_K_L"));
    assert_ptr_equal(sl_mixture_find("Q5_K"), sl_mixture_find("q5_k_m"));
    assert_null(sl_mixture_find("q9_0"));
    assert_int_equal(sl_mixture_unknown("q9_0", &error), -5);
    assert_non_null(strstr(error.message, "Q4_K_M, "));
    assert_int_equal(sl_mixture_unknown("q2_0", &error), -4);
    for (int i = 0; sl_mixture_at(i); i++) {
        assert_ptr_equal(sl_mixture_find(sl_mixture_name(sl_mixture_at(i))), sl_mixture_at(i));
        assert_non_null(strstr(error.message, sl_mixture_name(sl_mixture_at(i))));
    }
}

/* tensor_type_fallback of llama-quant.cpp; rows of 96 and of 36. */
static void odd_rows_fall_back(void **state) {
    (void)state;
    static const struct {
        sl_qtype type, smaller;
    } cases[] = {{SL_QTYPE_Q2_K, SL_QTYPE_Q4_0},
                 {Q3, SL_QTYPE_Q4_0},
                 {Q4, SL_QTYPE_Q5_0},
                 {Q5, SL_QTYPE_Q5_1},
                 {Q6, Q8},
                 {SL_QTYPE_IQ4_XS, SL_QTYPE_IQ4_NL},
                 {SL_QTYPE_IQ3_S, SL_QTYPE_IQ4_NL},
                 {SL_QTYPE_IQ1_M, SL_QTYPE_IQ4_NL},
                 {SL_QTYPE_TQ1_0, SL_QTYPE_Q4_0},
                 {Q8, Q8},
                 {SL_QTYPE_MXFP4, SL_QTYPE_MXFP4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(sl_mixture_fallback(cases[i].type, 512), cases[i].type);
        assert_int_equal(sl_mixture_fallback(cases[i].type, 96), cases[i].smaller);
        assert_int_equal(sl_mixture_fallback(cases[i].type, 36), SL_QTYPE_F16);
    }
    assert_int_equal(sl_mixture_fallback(SL_QTYPE_BF16, 3), SL_QTYPE_BF16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_are_llama_cpps),
        cmocka_unit_test(importance_changes_the_first_layers),
        cmocka_unit_test(places_of_values_are_counted),
        cmocka_unit_test(sizes_are_the_published_ones),
        cmocka_unit_test(names_in_any_case),
        cmocka_unit_test(odd_rows_fall_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
