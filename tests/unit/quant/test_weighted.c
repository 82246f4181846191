/* Encoding by importance, against its definition: the sum of importance * error^2, worked out here in double
 * from what decode gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "quant/weighted.h"

#include <math.h>
#include <string.h>

enum { BLOCKS = 64, COUNT = 256 * BLOCKS };

static const sl_qtype TYPES[] = {SL_QTYPE_Q2_K,  SL_QTYPE_Q3_K,    SL_QTYPE_Q4_K,   SL_QTYPE_Q5_K,
                                 SL_QTYPE_Q6_K,  SL_QTYPE_IQ4_NL,  SL_QTYPE_IQ4_XS, SL_QTYPE_IQ3_XXS,
                                 SL_QTYPE_IQ3_S, SL_QTYPE_IQ2_XXS, SL_QTYPE_IQ2_XS, SL_QTYPE_IQ2_S,
                                 SL_QTYPE_IQ1_S, SL_QTYPE_IQ1_M};
enum { TYPE_COUNT = sizeof TYPES / sizeof *TYPES };

static uint32_t state_of_random;

static float uniform(void) {
    state_of_random = state_of_random * 1664525u + 1013904223u;
    return (float)(state_of_random >> 8) * 0x1p-24f;
}

static float normal(void) {
    return uniform() + uniform() + uniform() + uniform() - 2.0f;
}

/* Of each 256 elements. */
static void errors(sl_qtype type, const float *values, const float *importance, const void *blocks,
                   double *sums) {
    static float decoded[COUNT];
    sl_qtype_get(type)->decode(blocks, decoded, COUNT);
    memset(sums, 0, BLOCKS * sizeof *sums);
    for (int i = 0; i < COUNT; i++) {
        const double difference = (double)decoded[i] - values[i];
        sums[i / 256] += importance[i] * difference * difference;
    }
}

static double both(sl_qtype type, const float *values, const float *importance) {
    static unsigned char plain[COUNT], weighted[COUNT];
    double before[BLOCKS], after[BLOCKS], sum_before = 0, sum_after = 0;
    sl_qtype_get(type)->encode(values, plain, COUNT);
    assert_true(sl_qtype_encode_weighted(type, values, importance, weighted, COUNT));
    errors(type, values, importance, plain, before);
    errors(type, values, importance, weighted, after);
    for (int b = 0; b < BLOCKS; b++) {
        assert_true(isfinite(after[b]));
        if (after[b] > before[b]) {
            fail_msg("%s, block %d: error %g instead of %g", sl_qtype_get(type)->name, b, after[b],
                     before[b]);
        }
        sum_before += before[b];
        sum_after += after[b];
    }
    return sum_after / sum_before;
}

/* Importance as matrices have it: over some orders of magnitude, a few columns far above all others. */
static void the_weighted_error_falls(void **state) {
    (void)state;
    static float values[COUNT], importance[COUNT];
    for (int t = 0; t < TYPE_COUNT; t++) {
        state_of_random = 7;
        for (int i = 0; i < COUNT; i++) {
            values[i] = 0.02f * normal();
            importance[i] = expf(3.0f * normal());
        }
        const double ratio = both(TYPES[t], values, importance);
        print_message("%s: %.3f of the error\n", sl_qtype_get(TYPES[t])->name, ratio);
        assert_true(ratio < 0.85);
    }
}

static void equal_importance_is_no_worse(void **state) {
    (void)state;
    static float values[COUNT], importance[COUNT];
    for (int t = 0; t < TYPE_COUNT; t++) {
        for (int i = 0; i < COUNT; i++) {
            values[i] = normal();
            importance[i] = 1;
        }
        assert_true(both(TYPES[t], values, importance) <= 1);
    }
}

/* Where one element of a group counts alone, it is kept as well as its scale can be: 6 bits of a step at
 * worst. */
static void a_lone_column_is_kept(void **state) {
    (void)state;
    static float values[COUNT], importance[COUNT], decoded[COUNT];
    static unsigned char blocks[COUNT];
    for (int i = 0; i < COUNT; i++) {
        values[i] = normal();
        importance[i] = i % 32 == 11;
    }
    assert_true(sl_qtype_encode_weighted(SL_QTYPE_IQ4_NL, values, importance, blocks, COUNT));
    sl_qtype_get(SL_QTYPE_IQ4_NL)->decode(blocks, decoded, COUNT);
    for (int i = 11; i < COUNT; i += 32) {
        assert_true(fabsf(decoded[i] - values[i]) <= 0.0005f * fabsf(values[i])); /* f16: 2^-11 */
    }
}

static void odd_numbers_do_no_harm(void **state) {
    (void)state;
    static float values[COUNT], importance[COUNT], decoded[COUNT];
    static unsigned char blocks[COUNT];
    for (int t = 0; t < TYPE_COUNT; t++) {
        for (int round = 0; round < 4; round++) {
            for (int i = 0; i < COUNT; i++) {
                values[i] = round == 0   ? 0.0f
                            : round == 1 ? 0.5f
                                         : (i % 7 ? 0.0f : 1e-20f) + normal() * (i % 512 > 255);
                importance[i] = round == 3 ? (i % 64 < 32 ? 0.0f : 1e30f) : i % 3 ? 0.0f : 1.0f;
            }
            assert_true(sl_qtype_encode_weighted(TYPES[t], values, importance, blocks, COUNT));
            sl_qtype_get(TYPES[t])->decode(blocks, decoded, COUNT);
            for (int i = 0; i < COUNT; i++) {
                assert_true(isfinite(decoded[i]) && fabsf(decoded[i]) < 8);
            }
        }
    }
    unsigned char kept[34] = {1};
    assert_false(sl_qtype_encode_weighted(SL_QTYPE_Q8_0, values, importance, kept, 32));
    assert_int_equal(kept[0], 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_weighted_error_falls),
        cmocka_unit_test(equal_importance_is_no_worse),
        cmocka_unit_test(a_lone_column_is_kept),
        cmocka_unit_test(odd_numbers_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
