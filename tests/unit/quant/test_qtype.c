/* Weight types against ggml: names, sizes, and for each type the bytes and values ggml made of the same
 * input.
 *
 * ggml_blocks.bin holds records, little-endian, made with ggml's quantize_row_*_ref and dequantize_row_*
 * (ggml d99724f2b141fed9e1a9f402213506c081433465, x86-64, compiled without contraction of multiply and add):
 *     char name[24], type[8]; uint32 bytes, flags; uint64 hash
 *     flags & 1: float input[256], which holds for the records that follow too, up to the next input
 *     the encoded bytes of 256 elements; of the input, or when flags & 2, random ones
 *     flags & 2: float decoded[256]
 * Blocks of IQ1, IQ2 and IQ3 are random ones, and what ggml_quantize_chunk made of numbers and an importance.
 * hash: FNV-1a, 64 bits, over the bytes of the decoded floats, every NaN counted as 0x7fc00000. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "quant/blocks.h"
#include "quant/qtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ELEMENTS = 256, INPUT = 1, DECODED = 2, LARGEST = 1024 };

typedef struct record_head {
    char name[24];
    char type[8];
    uint32_t bytes;
    uint32_t flags;
    uint64_t hash;
} record_head;

typedef struct record {
    record_head head;
    float input[ELEMENTS];
    uint8_t encoded[LARGEST];
    float decoded[ELEMENTS];
} record;

static int read_record(FILE *file, record *record) {
    if (fread(&record->head, sizeof record->head, 1, file) != 1) {
        return 0;
    }
    assert_true(record->head.bytes <= LARGEST);
    if (record->head.flags & INPUT) {
        assert_int_equal(fread(record->input, sizeof record->input, 1, file), 1);
    }
    assert_int_equal(fread(record->encoded, record->head.bytes, 1, file), 1);
    if (record->head.flags & DECODED) {
        assert_int_equal(fread(record->decoded, sizeof record->decoded, 1, file), 1);
    }
    return 1;
}

static uint64_t hash_of(const float *values) {
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < ELEMENTS; i++) {
        const uint32_t bits = isnan(values[i]) ? 0x7fc00000u : sl_f32_bits(values[i]);
        for (int k = 0; k < 4; k++) {
            hash = (hash ^ (bits >> 8 * k & 255)) * 1099511628211u;
        }
    }
    return hash;
}

/* Both buffers start at an odd address and have guards: blocks need not be aligned, and nothing is written
 * beside them. */
static void check_encode(const record *record, const sl_qtype_info *type) {
    uint8_t buffer[LARGEST + 2];
    memset(buffer, 0xa5, sizeof buffer);
    type->encode(record->input, buffer + 1, ELEMENTS);
    for (uint32_t i = 0; i < record->head.bytes; i++) {
        if (buffer[1 + i] != record->encoded[i]) {
            fail_msg("%s, %s: byte %u of the encoded blocks is %u, ggml's is %u", record->head.type,
                     record->head.name, i, buffer[1 + i], record->encoded[i]);
        }
    }
    assert_int_equal(buffer[0], 0xa5);
    assert_int_equal(buffer[1 + record->head.bytes], 0xa5);
}

static void check_decode(const record *record, const sl_qtype_info *type) {
    uint8_t buffer[LARGEST + 1];
    float values[ELEMENTS + 1];
    memcpy(buffer + 1, record->encoded, record->head.bytes);
    values[ELEMENTS] = -77.0f;
    type->decode(buffer + 1, values, ELEMENTS);
    assert_true(values[ELEMENTS] == -77.0f);
    if (record->head.flags & DECODED) {
        for (int i = 0; i < ELEMENTS; i++) {
            const float expected = record->decoded[i];
            if (sl_f32_bits(values[i]) != sl_f32_bits(expected) && !(isnan(values[i]) && isnan(expected))) {
                fail_msg("%s, %s: value %d is %a, ggml's is %a", record->head.type, record->head.name, i,
                         (double)values[i], (double)expected);
            }
        }
    }
    if (hash_of(values) != record->head.hash) {
        fail_msg("%s, %s: decoded values differ from ggml's", record->head.type, record->head.name);
    }
}

static void blocks_are_those_of_ggml(void **state) {
    (void)state;
    FILE *file = fopen(SLUICE_SOURCE_DIR "/tests/unit/quant/ggml_blocks.bin", "rb");
    assert_non_null(file);
    record *record = calloc(1, sizeof *record);
    assert_non_null(record);
    int encoded[SL_QTYPE_COUNT] = {0};
    int decoded[SL_QTYPE_COUNT] = {0};
    while (read_record(file, record)) {
        const int type = sl_qtype_parse(record->head.type);
        assert_true(type >= 0);
        uint64_t bytes;
        assert_true(sl_qtype_bytes((sl_qtype)type, ELEMENTS, &bytes));
        assert_int_equal(bytes, record->head.bytes);
        if (!(record->head.flags & DECODED)) {
            check_encode(record, sl_qtype_get((sl_qtype)type));
            encoded[type]++;
        }
        check_decode(record, sl_qtype_get((sl_qtype)type));
        decoded[type]++;
    }
    assert_true(feof(file));
    fclose(file);
    free(record);
    for (int type = 0; type < SL_QTYPE_COUNT; type++) {           /* a new row needs its records */
        if (type >= SL_QTYPE_IQ3_XXS && type <= SL_QTYPE_IQ1_M) { /* the encoder is our own */
            assert_int_equal(encoded[type], 0);
            assert_in_range(decoded[type], 8, 1000);
        } else if (type != SL_QTYPE_F32 && sl_qtype_get((sl_qtype)type)->gguf_type != SL_QTYPE_NO_GGUF) {
            /* Without those whose bytes ggml leaves to chance: see nonlinear.c. Of the ternary types' inputs
             * f32 subnormals, whose largest has no inverse. */
            const bool ternary = type == SL_QTYPE_TQ1_0 || type == SL_QTYPE_TQ2_0;
            const int left_out = type == SL_QTYPE_IQ4_NL ? 7 : type == SL_QTYPE_MXFP4 || ternary ? 1 : 0;
            assert_in_range(encoded[type], 34 - left_out, 1000);
            assert_in_range(decoded[type], encoded[type], 1000);
        }
    }
}

/* The types of blocks.h that are not ggml's, by hand: numbers of few bits, so that every value is exact. */
static void own_types_mean_what_they_say(void **state) {
    (void)state;
    static const float fp4[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    /* E4M3: 0, 2^-9, 7 * 2^-9, 2^-6, 1, 1.125, 240, 448 */
    static const uint8_t codes[8] = {0x00, 0x01, 0x07, 0x08, 0x38, 0x39, 0x77, 0x7e};
    static const float numbers[8] = {0, 0x1p-9f, 0x7p-9f, 0x1p-6f, 1, 1.125f, 240, 448};
    sl_block_nvfp4_128 four = {.scale = 0.75f};
    sl_block_fp8_128 eight = {.scale = -0.75f};
    for (int i = 0; i < 128; i++) {
        const int group = i / 16, within = i % 16, level = (i * 5 + group) % 16;
        four.scales[group] = codes[group];
        four.quants[8 * group + within % 8] |= (uint8_t)(within < 8 ? level : level << 4);
        eight.codes[i] = (uint8_t)(codes[i * 3 % 8] | (i % 5 == 0) << 7);
    }
    float values[128];
    sl_qtype_get(SL_QTYPE_NVFP4_128)->decode(&four, values, 128);
    for (int i = 0; i < 128; i++) {
        const int level = (i * 5 + i / 16) % 16;
        const float value = 0.75f * numbers[i / 16] * fp4[level % 8];
        assert_true(values[i] == (level < 8 ? value : -value));
    }
    sl_qtype_get(SL_QTYPE_FP8_128)->decode(&eight, values, 128);
    for (int i = 0; i < 128; i++) {
        assert_true(values[i] == (i % 5 == 0 ? 0.75f : -0.75f) * numbers[i * 3 % 8]);
    }
}

/* Uniform in [0, 1); splitmix64. */
static double uniform(uint64_t *seed) {
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static void gaussian_data_comes_back_near(void **state) {
    (void)state;
    /* Mean squared error over mean square that ggml has on two thousand such rows, and 2 % more. */
    static const double limits[SL_QTYPE_COUNT] = {
        [SL_QTYPE_F32] = 0.0,
        [SL_QTYPE_F16] = 4.327e-8 * 1.02,
        [SL_QTYPE_BF16] = 2.763e-6 * 1.02,
        [SL_QTYPE_Q8_0] = 2.881e-5 * 1.02,
        [SL_QTYPE_Q4_0] = 7.437e-3 * 1.02,
        [SL_QTYPE_Q4_K] = 5.118e-3 * 1.02,
        [SL_QTYPE_Q6_K] = 3.151e-4 * 1.02,
        [SL_QTYPE_Q5_K] = 1.305e-3 * 1.02,
        [SL_QTYPE_Q4_1] = 6.112e-3 * 1.02,
        [SL_QTYPE_Q5_0] = 1.821e-3 * 1.02,
        [SL_QTYPE_Q5_1] = 1.436e-3 * 1.02,
        [SL_QTYPE_Q2_K] = 8.766e-2 * 1.02,
        [SL_QTYPE_Q3_K] = 2.273e-2 * 1.02,
        [SL_QTYPE_IQ4_NL] = 6.198e-3 * 1.02,
        [SL_QTYPE_IQ4_XS] = 5.889e-3 * 1.02,
        [SL_QTYPE_MXFP4] = 1.325e-2 * 1.02,
        [SL_QTYPE_NVFP4] = 9.066e-3 * 1.02,
        [SL_QTYPE_TQ1_0] = 6.53e-1 * 1.02,
        [SL_QTYPE_TQ2_0] = 6.53e-1 * 1.02,
        /* Ours is below what ggml has with an importance of 1, which is named here. */
        [SL_QTYPE_IQ3_XXS] = 3.264e-2,
        [SL_QTYPE_IQ3_S] = 1.809e-2,
        [SL_QTYPE_IQ2_XXS] = 1.187e-1,
        [SL_QTYPE_IQ2_XS] = 8.919e-2,
        [SL_QTYPE_IQ2_S] = 6.196e-2,
        [SL_QTYPE_IQ1_S] = 2.309e-1,
        [SL_QTYPE_IQ1_M] = 2.016e-1,
        /* Not ggml's: a scale in E4M3 of another unit, and a relative 2^-4 at most, uniform within a step. */
        [SL_QTYPE_NVFP4_128] = 9.066e-3 * 1.02,
        [SL_QTYPE_FP8_128] = 7.5e-4,
    };
    for (int type = 0; type < SL_QTYPE_COUNT; type++) {
        const sl_qtype_info *info = sl_qtype_get((sl_qtype)type);
        uint64_t seed = 7;
        double error = 0.0;
        double power = 0.0;
        for (int row = 0; row < 500; row++) {
            float values[ELEMENTS];
            float back[ELEMENTS];
            uint8_t blocks[LARGEST];
            for (int i = 0; i < ELEMENTS; i++) {
                const double radius = sqrt(-2.0 * log(1.0 - uniform(&seed)));
                values[i] = (float)(radius * cos(6.283185307179586 * uniform(&seed)));
            }
            info->encode(values, blocks, ELEMENTS);
            info->decode(blocks, back, ELEMENTS);
            for (int i = 0; i < ELEMENTS; i++) {
                const double difference = (double)values[i] - (double)back[i];
                error += difference * difference;
                power += (double)values[i] * (double)values[i];
            }
        }
        if (!(error <= limits[type] * power)) {
            fail_msg("%s: error %g, limit %g", info->name, error / power, limits[type]);
        }
    }
}

/* Of whole numbers from -8 to 8. Half of a step, of the 3 or 8 that these are cut into; 3 bits do not reach
 * the 8. E2M1's last step is a third of the largest, 8.25. What no point of a codebook is near is what these
 * encoders were seen to make of it. */
static float worst_error(sl_qtype type) {
    switch (type) {
    case SL_QTYPE_Q2_K:
        return 2.7f;
    case SL_QTYPE_Q3_K:
        return 2.1f;
    case SL_QTYPE_NVFP4:
    case SL_QTYPE_NVFP4_128:
        return 1.4f;
    case SL_QTYPE_TQ1_0:
    case SL_QTYPE_TQ2_0:
        return 4.0f;
    case SL_QTYPE_IQ3_S:
    case SL_QTYPE_IQ2_S:
        return 2.9f;
    case SL_QTYPE_IQ3_XXS:
    case SL_QTYPE_IQ2_XXS:
    case SL_QTYPE_IQ2_XS:
    case SL_QTYPE_IQ1_S:
    case SL_QTYPE_IQ1_M:
        return 5.8f;
    default:
        return 1.0f;
    }
}

/* Infinities and NaNs have no right answer, but must not be undefined (the sanitizers look on) nor touch the
 * neighbour. */
static void no_input_disturbs_the_next_block(void **state) {
    (void)state;
    static const float odd[] = {INFINITY, -INFINITY, NAN, 3.4e38f, -3.4e38f, 1e-45f, 1e20f};
    for (int type = 0; type < SL_QTYPE_COUNT; type++) {
        const sl_qtype_info *info = sl_qtype_get((sl_qtype)type);
        const float worst = worst_error((sl_qtype)type);
        for (size_t k = 0; k < sizeof odd / sizeof odd[0]; k++) {
            float values[2 * ELEMENTS];
            float back[2 * ELEMENTS];
            float alone[ELEMENTS];
            uint8_t blocks[2 * LARGEST];
            for (int i = 0; i < 2 * ELEMENTS; i++) {
                values[i] = i < ELEMENTS && i % 5 == 0 ? odd[k] : (float)(i % 17) - 8.0f;
            }
            info->encode(values, blocks, (uint64_t)2 * ELEMENTS);
            info->decode(blocks, back, (uint64_t)2 * ELEMENTS);
            info->encode(values + ELEMENTS, blocks, ELEMENTS);
            info->decode(blocks, alone, ELEMENTS);
            assert_memory_equal(back + ELEMENTS, alone, sizeof alone);
            for (int i = 0; i < ELEMENTS; i++) {
                assert_true(fabsf(alone[i] - values[ELEMENTS + i]) <= worst);
            }
        }
    }
}

/* ggml_type_name() of every number that ggml.c of the same version names. */
static const struct {
    uint32_t number;
    const char *name;
} ggml_names[] = {
    {24, "i8"},      {25, "i16"},   {26, "i32"},   {27, "i64"},   {28, "f64"},     {0, "f32"},
    {1, "f16"},      {41, "q1_0"},  {42, "q2_0"},  {2, "q4_0"},   {3, "q4_1"},     {6, "q5_0"},
    {7, "q5_1"},     {8, "q8_0"},   {9, "q8_1"},   {39, "mxfp4"}, {40, "nvfp4"},   {10, "q2_K"},
    {11, "q3_K"},    {12, "q4_K"},  {13, "q5_K"},  {14, "q6_K"},  {16, "iq2_xxs"}, {17, "iq2_xs"},
    {18, "iq3_xxs"}, {21, "iq3_s"}, {22, "iq2_s"}, {19, "iq1_s"}, {29, "iq1_m"},   {20, "iq4_nl"},
    {23, "iq4_xs"},  {15, "q8_K"},  {30, "bf16"},  {34, "tq1_0"}, {35, "tq2_0"},
};

static void numbers_and_names_are_those_of_ggml(void **state) {
    (void)state;
    const size_t count = sizeof ggml_names / sizeof ggml_names[0];
    int supported = 0;
    int named = 0;
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(sl_gguf_type_name(ggml_names[i].number), ggml_names[i].name);
        const int type = sl_qtype_from_gguf(ggml_names[i].number);
        assert_int_equal(type, sl_qtype_parse(ggml_names[i].name)); /* "q4_K" is "q4_k" */
        supported += type >= 0;
    }
    for (uint32_t number = 0; number < 1000; number++) {
        named += sl_gguf_type_name(number) != NULL;
    }
    assert_int_equal(supported, SL_QTYPE_NVFP4_128); /* the types behind it are not ggml's */
    assert_int_equal(named, count);
    assert_null(sl_gguf_type_name(4));
    assert_null(sl_gguf_type_name(UINT32_MAX));
    assert_int_equal(sl_qtype_from_gguf(4), -1);
    assert_int_equal(sl_qtype_from_gguf(UINT32_MAX), -1);
    assert_int_equal(sl_qtype_parse("Q4_K"), SL_QTYPE_Q4_K);
    assert_int_equal(sl_qtype_parse("bF16"), SL_QTYPE_BF16);
    assert_int_equal(sl_qtype_parse("q4_"), -1);
    assert_int_equal(sl_qtype_parse("q4_0 "), -1);
    assert_int_equal(sl_qtype_parse(""), -1);
    assert_int_equal(sl_qtype_parse("fp8"), -1);
    assert_int_equal(sl_qtype_parse("fp8_128"), -1); /* files cannot be written in it */
    assert_int_equal(sl_qtype_from_gguf(SL_QTYPE_NO_GGUF), -1);
    assert_null(sl_qtype_get(SL_QTYPE_ALL));
}

static void sizes_are_whole_blocks_and_fit(void **state) {
    (void)state;
    for (int type = 0; type < SL_QTYPE_COUNT; type++) {
        const sl_qtype_info *info = sl_qtype_get((sl_qtype)type);
        const uint64_t block = info->block_elements;
        uint64_t bytes = 1;
        assert_true(sl_qtype_bytes((sl_qtype)type, 0, &bytes) && bytes == 0);
        assert_true(sl_qtype_bytes((sl_qtype)type, 3 * block, &bytes));
        assert_int_equal(bytes, 3 * (uint64_t)info->block_bytes);
        if (block > 1) {
            assert_false(sl_qtype_bytes((sl_qtype)type, 1, &bytes));
            assert_false(sl_qtype_bytes((sl_qtype)type, block - 1, &bytes));
            assert_false(sl_qtype_bytes((sl_qtype)type, 3 * block + block / 2, &bytes));
        }
    }
    uint64_t bytes;
    assert_true(sl_qtype_bytes(SL_QTYPE_F32, UINT64_MAX / 4, &bytes) && bytes == UINT64_MAX - 3);
    assert_false(sl_qtype_bytes(SL_QTYPE_F32, UINT64_MAX / 4 + 1, &bytes));
    assert_false(sl_qtype_bytes(SL_QTYPE_F16, UINT64_MAX / 2 + 1, &bytes));
    assert_false(sl_qtype_bytes(SL_QTYPE_Q8_0, UINT64_MAX - 31, &bytes)); /* 34 bytes for 32 elements */
    assert_true(sl_qtype_bytes(SL_QTYPE_Q4_K, UINT64_MAX - 255, &bytes));
    assert_false(sl_qtype_bytes(SL_QTYPE_ALL, 256, &bytes));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_those_of_ggml),
        cmocka_unit_test(own_types_mean_what_they_say),
        cmocka_unit_test(gaussian_data_comes_back_near),
        cmocka_unit_test(no_input_disturbs_the_next_block),
        cmocka_unit_test(numbers_and_names_are_those_of_ggml),
        cmocka_unit_test(sizes_are_whole_blocks_and_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
