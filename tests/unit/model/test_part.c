/* Rows that a file has inside another tensor, or in another order (model/part.h, model/scaled.h). The orders
 * are written out from the definition of each format, in transformers' modelling code. */
#include "unit/model/support.h"

#include "model/files.h"
#include "model/part.h"
#include "model/scaled.h"
#include "quant/blocks.h"

#include <math.h>

static void assert_rows(const sl_config *config, sl_tensor_id id, const int32_t *rows, int32_t count) {
    sl_tensor_part part;
    assert_true(sl_config_part(config, id, &part));
    assert_int_equal(sl_part_rows(&part), count);
    for (int32_t i = 0; i < count; i++) {
        assert_int_equal(sl_part_row(&part, i), rows[i]);
    }
}

/* Qwen3NextGatedDeltaNet.fix_query_key_value_ordering: by key head two rows of query, two of key, six of
 * values (two heads of three) and six of their gate; two of b, two of a. */
static void projections_are_taken_apart(void **state) {
    (void)state;
    static sl_config c;
    sl_config_init(&c, sl_family_find("qwen3_next"), SL_NAMING_HF);
    c.delta_key_heads = 2;
    c.delta_value_heads = 4;
    c.delta_key_size = 2;
    c.delta_value_size = 3;
    static const int32_t qkv[] = {0, 1, 16, 17, /* queries */
                                  2, 3, 18, 19, /* keys */
                                  4, 5, 6,  7,  8, 9, 20, 21, 22, 23, 24, 25};
    static const int32_t gate[] = {10, 11, 12, 13, 14, 15, 26, 27, 28, 29, 30, 31};
    static const int32_t rates[] = {2, 3, 6, 7, 0, 1, 4, 5}; /* a, then b */
    assert_rows(&c, SL_TENSOR_DELTA_QKV, qkv, 20);
    assert_rows(&c, SL_TENSOR_DELTA_GATE, gate, 12);
    assert_rows(&c, SL_TENSOR_DELTA_ALPHA_BETA, rates, 8);
    sl_tensor_part part;
    assert_false(sl_config_part(&c, SL_TENSOR_GATE_EXPERTS, &part));
}

/* GptOssExperts: gate_up[..., ::2] and gate_up[..., 1::2]. */
static void gate_and_up_alternate(void **state) {
    (void)state;
    static sl_config c;
    sl_config_init(&c, sl_family_find("gpt_oss"), SL_NAMING_HF);
    c.expert_width = 3;
    static const int32_t gate[] = {0, 2, 4}, up[] = {1, 3, 5};
    assert_rows(&c, SL_TENSOR_GATE_EXPERTS, gate, 3);
    assert_rows(&c, SL_TENSOR_UP_EXPERTS, up, 3);
    assert_rows(&c, SL_TENSOR_UP_EXPERTS_BIAS, up, 3);
    sl_tensor_part part;
    c.naming = SL_NAMING_GGUF;
    assert_false(sl_config_part(&c, SL_TENSOR_GATE_EXPERTS, &part));
}

/* Two experts of four rows (gate and up in turn) by three columns, as [experts][columns][rows]. */
static void turned_matrices_are_turned_back(void **state) {
    (void)state;
    float file[2][3][4], made[2][2][3];
    for (int i = 0; i < 24; i++) {
        (&file[0][0][0])[i] = (float)i;
    }
    static const sl_tensor_part up = {.count = 1, .runs = {{.rows = 2, .piece = 1, .stride = 2, .first = 1}}};
    const sl_tensor tensor = {.name = "experts", .type = SL_QTYPE_F32, .data = file};
    const sl_scaled scaled = {.kind = SL_SCALED_TURNED,
                              .type = SL_QTYPE_F32,
                              .experts = 2,
                              .rows = 2,
                              .source_rows = 4,
                              .columns = 3,
                              .part = up,
                              .codes = &tensor,
                              .file = "test"};
    sl_error error;
    assert_int_equal(sl_scaled_pack(&scaled, 0, 1, made, NULL, &error), 0); /* in two goes */
    assert_int_equal(sl_scaled_pack(&scaled, 1, 3, made[0][1], NULL, &error), 0);
    for (int e = 0; e < 2; e++) {
        for (int row = 0; row < 2; row++) {
            for (int column = 0; column < 3; column++) {
                assert_float_equal(made[e][row][column], file[e][column][2 * row + 1], 0);
            }
        }
    }
}

/* transformers' integrations/mxfp4.py: byte j holds element 2 j in its low nibble, 2 j + 1 in its high one;
 * value = FP4_VALUES[code] * 2^(scale - 127). */
static void mxfp4_keeps_its_values(void **state) {
    (void)state;
    enum { ROWS = 2, COLUMNS = 64, BLOCKS = COLUMNS / 32 };
    static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    unsigned char codes[2 * ROWS][BLOCKS][16], scales[2 * ROWS][BLOCKS];
    for (size_t i = 0; i < sizeof codes; i++) {
        (&codes[0][0][0])[i] = (unsigned char)(i * 73 + 29);
    }
    for (size_t i = 0; i < sizeof scales; i++) {
        (&scales[0][0])[i] = (unsigned char)(120 + i);
    }
    const sl_tensor codes_tensor = {.name = "blocks", .data = codes},
                    scales_tensor = {.name = "scales", .data = scales};
    sl_scaled scaled = {.kind = SL_SCALED_MXFP4,
                        .type = SL_QTYPE_MXFP4,
                        .experts = 1,
                        .rows = ROWS,
                        .source_rows = 2 * ROWS,
                        .columns = COLUMNS,
                        .part = {.count = 1, .runs = {{.rows = ROWS, .piece = 1, .stride = 2, .first = 1}}},
                        .codes = &codes_tensor,
                        .scales = &scales_tensor,
                        .file = "test"};
    sl_block_mxfp4 blocks[ROWS][BLOCKS];
    float values[ROWS][COLUMNS];
    sl_error error = {0};
    uint64_t bytes;
    assert_true(sl_scaled_bytes(&scaled, &bytes));
    assert_int_equal(bytes, sizeof blocks);
    assert_int_equal(sl_scaled_pack(&scaled, 0, ROWS, blocks, NULL, &error), 0);
    sl_qtype_get(SL_QTYPE_MXFP4)->decode(blocks, values[0], ROWS * COLUMNS);
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < COLUMNS; i++) {
            const unsigned char byte = codes[2 * row + 1][i / 32][i % 32 / 2];
            const float factor = ldexpf(1, scales[2 * row + 1][i / 32] - 127);
            assert_float_equal(values[row][i], e2m1[i % 2 ? byte >> 4 : byte & 15] * factor, 0);
        }
    }
    scales[3][1] = 255;
    assert_int_equal(sl_scaled_pack(&scaled, 0, ROWS, blocks, NULL, &error), SL_ERR_FORMAT);
    assert_non_null(strstr(error.message, "tensor scales: number 7 must be a number"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(projections_are_taken_apart),
        cmocka_unit_test(gate_and_up_alternate),
        cmocka_unit_test(turned_matrices_are_turned_back),
        cmocka_unit_test(mxfp4_keeps_its_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
