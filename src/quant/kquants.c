/* Types of 256 elements with quantised group scales: Q2_K to Q6_K.
 *
 * The encoders search the scale of each group: they try a range of scales, round to levels with each, solve
 * for the scale (and minimum) that fits those levels best in weighted least squares, and keep the best. Sums
 * run in element order, and every float operation stands as it must be done: the bytes are those of ggml's
 * reference.
 *
 * With `importance`, one number for each element and else NULL, the searches weigh by it, and so does the
 * choice of the block's scales. */
#include "quant/blocks.h"
#include "quant/codec.h"
#include "quant/weigh.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum {
    AFFINE_GROUP = 32,
    AFFINE_GROUPS = 8,
    SMALL_GROUP = 16,
    SMALL_GROUPS = 16,
    Q3_K_HALF_RANGE = 4,
    Q6_K_HALF_RANGE = 32
};

/* A group of Q3_K or Q6_K whose values are all below this counts as zero. */
#define NEGLIGIBLE 1e-15f

/* The encoders of a type, block after block. */
#define ENCODE_BLOCKS(type, ID)                                                                              \
    void sl_encode_##type(const float *values, void *blocks, uint64_t count) {                               \
        sl_block_##type *block = blocks;                                                                     \
        for (uint64_t done = 0; done < count; done += SL_##ID##_ELEMENTS) {                                  \
            type##_encode_block(values + done, NULL, block++);                                               \
        }                                                                                                    \
    }                                                                                                        \
    void sl_weigh_##type(const float *values, const float *importance, void *block) {                        \
        type##_encode_block(values, importance, block);                                                      \
    }

/* Nearest integer, ties to even, for |value| < 2^22. At 1.5 * 2^23 the last place of a float is worth 1, so
 * the sum is rounded and the integer stands in its low bits. Larger values, infinities and NaNs give some
 * integer; callers clamp. */
static int nearest(float value) {
    return (int)(sl_f32_bits(value + 12582912.0f) & 0x7fffffu) - 0x400000;
}

static int clamp(int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
}

/* ---- groups with a minimum
 * --------------------------------------------------------------------------------------- */

/* value ~ scale * level + min, with min <= 0: a zero must stay representable. */
typedef struct affine {
    float scale;
    float min;
    uint8_t levels[AFFINE_GROUP];
} affine;

/* How a type looks for the fit of a group. */
typedef struct affine_kind {
    int count;  /* elements of a group */
    int levels; /* 0 .. levels - 1 */
    float first;
    int steps; /* tries as many levels as there are plus first, first + 0.1, ... of them in all steps + 1 */
    bool absolute; /* weights and errors: |x| and |difference|; else |x| + root mean square, and squares */
} affine_kind;

static void affine_round(const affine_kind *kind, const float *values, float inverse, affine *fit) {
    for (int i = 0; i < kind->count; i++) {
        fit->levels[i] = (uint8_t)clamp(nearest(inverse * (values[i] - fit->min)), 0, kind->levels - 1);
    }
}

static float affine_error(const affine_kind *kind, const affine *fit, const float *values,
                          const float *weights) {
    float error = 0.0f;
    for (int i = 0; i < kind->count; i++) {
        const float difference = fit->scale * (float)fit->levels[i] + fit->min - values[i];
        error += weights[i] * (kind->absolute ? fabsf(difference) : difference * difference);
    }
    return error;
}

/* What does not depend on the levels: the sums of the weights and of weight * value. */
typedef struct affine_sums {
    float w, wx;
} affine_sums;

/* Sets fit's scale and min to the weighted least squares solution for its levels; false when those are all
 * equal. */
static bool affine_solve(const affine_kind *kind, affine *fit, const float *values, const float *weights,
                         affine_sums sums) {
    float sum_wl = 0.0f;
    float sum_wll = 0.0f;
    float sum_wlx = 0.0f;
    for (int i = 0; i < kind->count; i++) {
        const float level = (float)fit->levels[i];
        const float weighted = weights[i] * level;
        sum_wl += weighted;
        sum_wll += weighted * level;
        sum_wlx += weighted * values[i];
    }
    const float determinant = sums.w * sum_wll - sum_wl * sum_wl;
    if (!(determinant > 0.0f)) {
        return false;
    }
    fit->scale = (sums.w * sum_wlx - sums.wx * sum_wl) / determinant;
    fit->min = (sum_wll * sums.wx - sum_wl * sum_wlx) / determinant;
    if (fit->min > 0.0f) {
        fit->min = 0.0f;
        fit->scale = sum_wlx / sum_wll;
    }
    return true;
}

/* Larger values weigh more. */
static void affine_weights(const affine_kind *kind, const float *values, float *weights) {
    float squares = 0.0f;
    for (int i = 0; i < kind->count; i++) {
        squares += values[i] * values[i];
    }
    const float more = kind->absolute ? 0.0f : sqrtf(squares / (float)kind->count);
    for (int i = 0; i < kind->count; i++) {
        weights[i] = more + fabsf(values[i]);
    }
}

static void affine_search(const affine_kind *plain, affine *best, const float *values,
                          const float *importance) {
    float weights[AFFINE_GROUP] = {0};
    affine_kind weighed = *plain;
    weighed.absolute = plain->absolute && !importance;
    const affine_kind *kind = &weighed;
    if (importance) {
        memcpy(weights, importance, (size_t)kind->count * sizeof *weights);
    } else {
        affine_weights(kind, values, weights);
    }
    float low = values[0];
    float high = values[0];
    affine_sums sums = {weights[0], weights[0] * values[0]};
    for (int i = 1; i < kind->count; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
        sums.w += weights[i];
        sums.wx += weights[i] * values[i];
    }
    best->min = low > 0.0f ? 0.0f : low;
    if (high == best->min) {
        best->scale = 0.0f;
        memset(best->levels, 0, sizeof best->levels);
        return;
    }
    const float most = (float)(kind->levels - 1);
    const float first = most / (high - best->min);
    best->scale = 1.0f / first;
    affine_round(kind, values, first, best);
    float best_error = affine_error(kind, best, values, weights);
    for (int step = 0; step <= kind->steps; step++) {
        affine tried = {.min = best->min}; /* ggml goes on from the best minimum, also for the range */
        affine_round(kind, values, (kind->first + 0.1f * (float)step + most) / (high - best->min), &tried);
        if (affine_solve(kind, &tried, values, weights, sums)) {
            const float error = affine_error(kind, &tried, values, weights);
            if (error < best_error) {
                *best = tried;
                best_error = error;
            }
        }
    }
}

/* The step for `count` numbers that are not negative, as multiples of it from 0 to `most`, where errors weigh
 * by the sums of the importance in groups of `size`. */
static float weighed_step(const float *numbers, const float *importance, int count, int size, int most) {
    float largest = 0.0f, weights[SMALL_GROUPS] = {0};
    for (int g = 0; g < count; g++) {
        largest = numbers[g] > largest ? numbers[g] : largest;
        for (int i = 0; i < size; i++) {
            weights[g] += importance[g * size + i];
        }
    }
    if (!(largest > 0.0f)) {
        return 0.0f;
    }
    float best = largest / (float)most, best_error = INFINITY;
    for (int step = -8; step <= 8; step++) {
        const float inverse = ((float)most + 0.25f * (float)step) / largest;
        float level_level = 0.0f, level_number = 0.0f, number_number = 0.0f;
        for (int g = 0; g < count; g++) {
            const float level = (float)clamp(nearest(inverse * numbers[g]), 0, most);
            level_level += weights[g] * level * level;
            level_number += weights[g] * level * numbers[g];
            number_number += weights[g] * numbers[g] * numbers[g];
        }
        const float error = number_number - level_number * level_number / level_level;
        if (level_level > 0.0f && error < best_error) {
            best = level_number / level_level;
            best_error = error;
        }
    }
    return best;
}

/* Scales lost bits on the way: rounds again with what decode will see. Without a scale the searched levels
 * stay. */
static void affine_round_again(const affine_kind *kind, const float *values, float scale, float min,
                               uint8_t *levels) {
    if (scale != 0.0f) {
        for (int i = 0; i < kind->count; i++) {
            levels[i] = (uint8_t)clamp(nearest((values[i] + min) / scale), 0, kind->levels - 1);
        }
    }
}

/* ---- Q4_K and Q5_K
 * ----------------------------------------------------------------------------------------------- */

/* The header that both have. */
typedef struct group_header {
    uint16_t scale, min_scale;
    uint8_t scales[12];
} group_header;

static void pack_groups(const uint8_t *scales, const uint8_t *mins, uint8_t *packed) {
    for (int i = 0; i < 4; i++) {
        packed[i] = (uint8_t)(scales[i] | scales[i + 4] >> 4 << 6);
        packed[i + 4] = (uint8_t)(mins[i] | mins[i + 4] >> 4 << 6);
        packed[i + 8] = (uint8_t)((scales[i + 4] & 15) | (mins[i + 4] & 15) << 4);
    }
}

/* 6 bits. A scale cannot be negative but for overflow inside the search; the cut to a byte keeps that
 * defined. */
static uint8_t group_number(float value) {
    const uint8_t number = (uint8_t)nearest(value);
    return number < 63 ? number : 63;
}

static void encode_groups(const affine_kind *kind, const float *values, const float *importance,
                          group_header *header, affine *fits) {
    float group_scales[AFFINE_GROUPS], group_mins[AFFINE_GROUPS];
    float largest_scale = 0.0f;
    float largest_min = 0.0f; /* minima are stored negated */
    for (int group = 0; group < AFFINE_GROUPS; group++) {
        affine_search(kind, &fits[group], values + AFFINE_GROUP * group,
                      importance ? importance + AFFINE_GROUP * group : NULL);
        group_scales[group] = fits[group].scale;
        group_mins[group] = -fits[group].min;
        largest_scale = fits[group].scale > largest_scale ? fits[group].scale : largest_scale;
        largest_min = -fits[group].min > largest_min ? -fits[group].min : largest_min;
    }
    float step_scale = largest_scale / 63.0f, step_min = largest_min / 63.0f;
    float inverse_scale = largest_scale > 0.0f ? 63.0f / largest_scale : 0.0f;
    float inverse_min = largest_min > 0.0f ? 63.0f / largest_min : 0.0f;
    if (importance) {
        step_scale = weighed_step(group_scales, importance, AFFINE_GROUPS, AFFINE_GROUP, 63);
        step_min = weighed_step(group_mins, importance, AFFINE_GROUPS, AFFINE_GROUP, 63);
        inverse_scale = step_scale > 0.0f ? 1.0f / step_scale : 0.0f;
        inverse_min = step_min > 0.0f ? 1.0f / step_min : 0.0f;
    }
    uint8_t scales[AFFINE_GROUPS];
    uint8_t mins[AFFINE_GROUPS];
    for (int group = 0; group < AFFINE_GROUPS; group++) {
        scales[group] = group_number(inverse_scale * fits[group].scale);
        mins[group] = group_number(inverse_min * -fits[group].min);
    }
    pack_groups(scales, mins, header->scales);
    header->scale = sl_f32_to_f16(step_scale);
    header->min_scale = sl_f32_to_f16(step_min);
    for (int group = 0; group < AFFINE_GROUPS; group++) {
        const float scale = sl_f16_to_f32(header->scale) * (float)scales[group];
        const float min = sl_f16_to_f32(header->min_scale) * (float)mins[group];
        affine_round_again(kind, values + AFFINE_GROUP * group, scale, min, fits[group].levels);
    }
}

void sl_decode_q4_k(const void *blocks, float *values, uint64_t count) {
    const sl_block_q4_k *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q4_K_ELEMENTS, block++) {
        const float block_scale = sl_f16_to_f32(block->scale);
        const float block_min = sl_f16_to_f32(block->min_scale);
        for (uint32_t group = 0; group < AFFINE_GROUPS; group++) {
            uint8_t group_scale;
            uint8_t group_min;
            sl_q4_k_group(block->scales, group, &group_scale, &group_min);
            const float scale = block_scale * (float)group_scale;
            const float min = block_min * (float)group_min;
            const uint8_t *quants = block->quants + 32 * (group / 2);
            float *out = values + done + (size_t)AFFINE_GROUP * group;
            for (int i = 0; i < AFFINE_GROUP; i++) {
                out[i] = scale * (float)(quants[i] >> 4 * (group % 2) & 15) - min;
            }
        }
    }
}

static void q4_k_encode_block(const float *values, const float *importance, sl_block_q4_k *block) {
    static const affine_kind kind = {.count = 32, .levels = 16, .first = -1.0f, .steps = 20};
    affine fits[AFFINE_GROUPS];
    group_header header;
    encode_groups(&kind, values, importance, &header, fits);
    memcpy(block, &header, sizeof header);
    for (int i = 0; i < SL_Q4_K_ELEMENTS / 2; i++) {
        const int pair = 2 * (i / 32);
        block->quants[i] = (uint8_t)(fits[pair].levels[i % 32] | fits[pair + 1].levels[i % 32] << 4);
    }
}

ENCODE_BLOCKS(q4_k, Q4_K)

void sl_decode_q5_k(const void *blocks, float *values, uint64_t count) {
    const sl_block_q5_k *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q5_K_ELEMENTS, block++) {
        const float block_scale = sl_f16_to_f32(block->scale);
        const float block_min = sl_f16_to_f32(block->min_scale);
        for (uint32_t group = 0; group < AFFINE_GROUPS; group++) {
            uint8_t group_scale;
            uint8_t group_min;
            sl_q4_k_group(block->scales, group, &group_scale, &group_min);
            const float scale = block_scale * (float)group_scale;
            const float min = block_min * (float)group_min;
            float *out = values + done + (size_t)AFFINE_GROUP * group;
            for (uint32_t i = 0; i < AFFINE_GROUP; i++) {
                out[i] = scale * (float)sl_q5_k_quant(block, group, i) - min;
            }
        }
    }
}

static void q5_k_encode_block(const float *values, const float *importance, sl_block_q5_k *block) {
    static const affine_kind kind = {.count = 32, .levels = 32, .first = -0.5f, .steps = 15};
    affine fits[AFFINE_GROUPS];
    group_header header;
    encode_groups(&kind, values, importance, &header, fits);
    memcpy(block, &header, sizeof header);
    memset(block->high, 0, sizeof block->high);
    for (int i = 0; i < SL_Q5_K_ELEMENTS / 2; i++) {
        const int pair = 2 * (i / 32);
        const uint8_t even = fits[pair].levels[i % 32], odd = fits[pair + 1].levels[i % 32];
        block->quants[i] = (uint8_t)((even & 15) | (odd & 15) << 4);
        block->high[i % 32] |= (uint8_t)((even >> 4 | odd >> 4 << 1) << pair);
    }
}

ENCODE_BLOCKS(q5_k, Q5_K)

/* ---- Q2_K
 * ------------------------------------------------------------------------------------------------------- */

void sl_decode_q2_k(const void *blocks, float *values, uint64_t count) {
    const sl_block_q2_k *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q2_K_ELEMENTS, block++) {
        const float block_scale = sl_f16_to_f32(block->scale);
        const float block_min = sl_f16_to_f32(block->min_scale);
        for (int i = 0; i < SL_Q2_K_ELEMENTS; i++) {
            const float scale = block_scale * (float)(block->scales[i / SMALL_GROUP] & 15);
            const float min = block_min * (float)(block->scales[i / SMALL_GROUP] >> 4);
            const int quant = block->quants[32 * (i / 128) + i % 32] >> 2 * (i / 32 % 4) & 3;
            values[done + (uint64_t)i] = scale * (float)quant - min;
        }
    }
}

/* Two bits of each of 256 levels, the lower ones. */
static void pack_two_bits(const uint8_t *levels, uint8_t *quants) {
    memset(quants, 0, 64);
    for (int i = 0; i < 256; i++) {
        quants[32 * (i / 128) + i % 32] |= (uint8_t)((levels[i] & 3) << 2 * (i / 32 % 4));
    }
}

/* 4 bits, of what is 0..15 but for overflow inside the search. */
static uint8_t small_group_number(float value) {
    return (uint8_t)clamp(nearest(value), 0, 15);
}

static void q2_k_encode_block(const float *values, const float *importance, sl_block_q2_k *block) {
    static const affine_kind kind = {
        .count = SMALL_GROUP, .levels = 4, .first = -0.5f, .steps = 15, .absolute = true};
    affine fits[SMALL_GROUPS];
    float group_scales[SMALL_GROUPS], group_mins[SMALL_GROUPS];
    float largest_scale = 0.0f;
    float largest_min = 0.0f; /* minima are stored negated */
    for (int group = 0; group < SMALL_GROUPS; group++) {
        affine_search(&kind, &fits[group], values + SMALL_GROUP * group,
                      importance ? importance + SMALL_GROUP * group : NULL);
        group_scales[group] = fits[group].scale;
        group_mins[group] = -fits[group].min;
        largest_scale = fits[group].scale > largest_scale ? fits[group].scale : largest_scale;
        largest_min = -fits[group].min > largest_min ? -fits[group].min : largest_min;
    }
    float step_scale = largest_scale / 15.0f, step_min = largest_min / 15.0f;
    float inverse_scale = largest_scale > 0.0f ? 15.0f / largest_scale : 0.0f;
    float inverse_min = largest_min > 0.0f ? 15.0f / largest_min : 0.0f;
    if (importance) {
        step_scale = weighed_step(group_scales, importance, SMALL_GROUPS, SMALL_GROUP, 15);
        step_min = weighed_step(group_mins, importance, SMALL_GROUPS, SMALL_GROUP, 15);
        inverse_scale = step_scale > 0.0f ? 1.0f / step_scale : 0.0f;
        inverse_min = step_min > 0.0f ? 1.0f / step_min : 0.0f;
    }
    block->scale = sl_f32_to_f16(step_scale);
    block->min_scale = sl_f32_to_f16(step_min);
    uint8_t levels[SL_Q2_K_ELEMENTS];
    for (int group = 0; group < SMALL_GROUPS; group++) {
        const uint8_t number = small_group_number(inverse_scale * fits[group].scale);
        const uint8_t min_number = small_group_number(inverse_min * -fits[group].min);
        block->scales[group] = (uint8_t)(number | min_number << 4);
        affine_round_again(&kind, values + SMALL_GROUP * group, sl_f16_to_f32(block->scale) * (float)number,
                           sl_f16_to_f32(block->min_scale) * (float)min_number, fits[group].levels);
        memcpy(levels + SMALL_GROUP * group, fits[group].levels, SMALL_GROUP);
    }
    pack_two_bits(levels, block->quants);
}

ENCODE_BLOCKS(q2_k, Q2_K)

/* ---- Q3_K
 * ------------------------------------------------------------------------------------------------------- */

void sl_decode_q3_k(const void *blocks, float *values, uint64_t count) {
    const sl_block_q3_k *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q3_K_ELEMENTS, block++) {
        const float block_scale = sl_f16_to_f32(block->scale);
        for (int i = 0; i < SL_Q3_K_ELEMENTS; i++) {
            const int low = block->quants[32 * (i / 128) + i % 32] >> 2 * (i / 32 % 4) & 3;
            const int high = block->high[i % 32] >> i / 32 & 1;
            const float scale = block_scale * (float)sl_q3_k_scale(block->scales, (uint32_t)i / SMALL_GROUP);
            values[done + (uint64_t)i] = scale * (float)(low + 4 * high - Q3_K_HALF_RANGE);
        }
    }
}

static int q3_k_level(float value) {
    return clamp(nearest(value), -Q3_K_HALF_RANGE, Q3_K_HALF_RANGE - 1);
}

/* Rounds, and then moves single levels for as long as that makes the weighted squared error smaller, weights
 * x^2 or the importance; the levels are -4..3. Returns the scale. */
static float q3_k_search(const float *values, const float *importance, int *levels) {
    float extreme = 0.0f; /* with its sign: it becomes -4 */
    for (int i = 0; i < SMALL_GROUP; i++) {
        extreme = fabsf(values[i]) > fabsf(extreme) ? values[i] : extreme;
    }
    if (fabsf(extreme) < NEGLIGIBLE) {
        for (int i = 0; i < SMALL_GROUP; i++) {
            levels[i] = -Q3_K_HALF_RANGE; /* with a scale of 0 */
        }
        return 0.0f;
    }
    const float inverse = -(float)Q3_K_HALF_RANGE / extreme;
    float value_level = 0.0f, level_level = 0.0f;
    for (int i = 0; i < SMALL_GROUP; i++) {
        const float weight = importance ? importance[i] : values[i] * values[i];
        levels[i] = q3_k_level(inverse * values[i]);
        value_level += weight * values[i] * (float)levels[i];
        level_level += weight * (float)levels[i] * (float)levels[i];
    }
    bool moved = true;
    for (int round = 0; round < 5 && moved; round++) {
        moved = false;
        for (int i = 0; i < SMALL_GROUP; i++) {
            const float weight = importance ? importance[i] : values[i] * values[i];
            const float level = (float)levels[i];
            float other_value = value_level - weight * values[i] * level; /* without element i */
            if (!(other_value > 0.0f)) {
                continue;
            }
            float other_level = level_level - weight * level * level;
            const int tried = q3_k_level(values[i] * other_level / other_value);
            other_value += weight * values[i] * (float)tried;
            other_level += weight * (float)tried * (float)tried;
            if (tried != levels[i] && other_level > 0.0f &&
                other_value * other_value * level_level > value_level * value_level * other_level) {
                levels[i] = tried;
                value_level = other_value;
                level_level = other_level;
                moved = true;
            }
        }
    }
    return level_level > 0.0f ? value_level / level_level : 0.0f;
}

static void q3_k_encode_block(const float *values, const float *importance, sl_block_q3_k *block) {
    int levels[SL_Q3_K_ELEMENTS];
    float scales[SMALL_GROUPS];
    float extreme = 0.0f; /* the largest scale, with its sign: it becomes -32 */
    for (int group = 0; group < SMALL_GROUPS; group++) {
        scales[group] =
            q3_k_search(values + SMALL_GROUP * group, importance ? importance + SMALL_GROUP * group : NULL,
                        levels + SMALL_GROUP * group);
        extreme = fabsf(scales[group]) > fabsf(extreme) ? scales[group] : extreme;
    }
    memset(block, 0, sizeof *block); /* without an extreme the numbers are 0 as well */
    if (extreme != 0.0f) {
        const float inverse = -32.0f / extreme;
        block->scale = sl_f32_to_f16(1.0f / inverse);
        for (int group = 0; group < SMALL_GROUPS; group++) {
            const int number = clamp(nearest(inverse * scales[group]), -32, 31) + 32;
            block->scales[group % 8] |= (uint8_t)(number % 16 << 4 * (group / 8));
            block->scales[8 + group % 4] |= (uint8_t)(number / 16 << 2 * (group / 4));
        }
    }
    uint8_t packed[SL_Q3_K_ELEMENTS];
    for (int i = 0; i < SL_Q3_K_ELEMENTS; i++) {
        const float scale =
            sl_f16_to_f32(block->scale) * (float)sl_q3_k_scale(block->scales, (uint32_t)i / SMALL_GROUP);
        const int level = scale != 0.0f ? q3_k_level(values[i] / scale) : levels[i];
        packed[i] = (uint8_t)(level + Q3_K_HALF_RANGE);
        block->high[i % 32] |= (uint8_t)(packed[i] >> 2 << i / 32);
    }
    pack_two_bits(packed, block->quants);
}

ENCODE_BLOCKS(q3_k, Q3_K)

/* ---- Q6_K
 * ------------------------------------------------------------------------------------------------------- */

void sl_decode_q6_k(const void *blocks, float *values, uint64_t count) {
    const sl_block_q6_k *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q6_K_ELEMENTS, block++) {
        const float block_scale = sl_f16_to_f32(block->scale);
        for (int i = 0; i < SL_Q6_K_ELEMENTS; i++) {
            const int half = i / 128;
            const int quarter = i / 32 % 4;
            const int column = i % 32;
            const int low = block->low[64 * half + 32 * (quarter % 2) + column] >> 4 * (quarter / 2) & 15;
            const int high = block->high[32 * half + column] >> 2 * quarter & 3;
            const float scale = block_scale * (float)block->scales[i / SMALL_GROUP];
            values[done + i] = scale * (float)((high << 4 | low) - Q6_K_HALF_RANGE);
        }
    }
}

/* value ~ scale * (level - 32) */
typedef struct symmetric {
    float scale;
    uint8_t levels[SMALL_GROUP];
} symmetric;

/* What a choice of levels gives: with weights x^2 or the importance, the sums of weight * x * level and
 * weight * level^2. */
typedef struct symmetric_sums {
    float value_level;
    float level_level;
} symmetric_sums;

static symmetric_sums symmetric_round(const float *values, const float *importance, float inverse,
                                      uint8_t *levels) {
    symmetric_sums sums = {0.0f, 0.0f};
    for (int i = 0; i < SMALL_GROUP; i++) {
        const int level = clamp(nearest(inverse * values[i]), -Q6_K_HALF_RANGE, Q6_K_HALF_RANGE - 1);
        const float weight = importance ? importance[i] : values[i] * values[i];
        levels[i] = (uint8_t)(level + Q6_K_HALF_RANGE);
        sums.value_level += weight * values[i] * (float)level;
        sums.level_level += weight * (float)level * (float)level;
    }
    return sums;
}

static void symmetric_search(symmetric *best, const float *values, const float *importance) {
    float extreme = 0.0f; /* with its sign: it becomes about -32 */
    for (int i = 0; i < SMALL_GROUP; i++) {
        extreme = fabsf(values[i]) > fabsf(extreme) ? values[i] : extreme;
    }
    if (fabsf(extreme) < NEGLIGIBLE) {
        memset(best, 0, sizeof *best);
        return;
    }
    symmetric_sums sums =
        symmetric_round(values, importance, -(float)Q6_K_HALF_RANGE / extreme, best->levels);
    best->scale = sums.level_level != 0.0f ? sums.value_level / sums.level_level : 0.0f;
    float gain =
        best->scale * sums.value_level; /* by how much the weighted squared error falls from that of zero */
    for (int step = -9; step <= 9; step++) {
        symmetric tried;
        sums = symmetric_round(values, importance, -((float)Q6_K_HALF_RANGE + 0.1f * (float)step) / extreme,
                               tried.levels);
        if (step != 0 && sums.level_level > 0.0f &&
            sums.value_level * sums.value_level > gain * sums.level_level) {
            tried.scale = sums.value_level / sums.level_level;
            gain = tried.scale * sums.value_level;
            *best = tried;
        }
    }
}

static void q6_k_pack(const symmetric *fits, sl_block_q6_k *block) {
    memset(block->low, 0, sizeof block->low);
    memset(block->high, 0, sizeof block->high);
    for (int i = 0; i < SL_Q6_K_ELEMENTS; i++) {
        const int half = i / 128;
        const int quarter = i / 32 % 4;
        const int column = i % 32;
        const int level = fits[i / SMALL_GROUP].levels[i % SMALL_GROUP];
        block->low[64 * half + 32 * (quarter % 2) + column] |= (uint8_t)((level & 15) << 4 * (quarter / 2));
        block->high[32 * half + column] |= (uint8_t)(level >> 4 << 2 * quarter);
    }
}

static void q6_k_encode_block(const float *values, const float *importance, sl_block_q6_k *block) {
    symmetric fits[SMALL_GROUPS];
    float extreme = 0.0f; /* the largest group scale, with its sign: it becomes -128 */
    for (int group = 0; group < SMALL_GROUPS; group++) {
        symmetric_search(&fits[group], values + SMALL_GROUP * group,
                         importance ? importance + SMALL_GROUP * group : NULL);
        extreme = fabsf(fits[group].scale) > fabsf(extreme) ? fits[group].scale : extreme;
    }
    if (fabsf(extreme) < NEGLIGIBLE) {
        memset(block, 0, sizeof *block);
        return;
    }
    const float inverse = -128.0f / extreme;
    block->scale = sl_f32_to_f16(1.0f / inverse);
    for (int group = 0; group < SMALL_GROUPS; group++) {
        const int number = nearest(inverse * fits[group].scale);
        block->scales[group] = (int8_t)(number < 127 ? number : 127);
        const float scale = sl_f16_to_f32(block->scale) * (float)block->scales[group];
        if (scale != 0.0f) { /* round again with what decode will see */
            for (int i = 0; i < SMALL_GROUP; i++) {
                const int level = nearest(values[SMALL_GROUP * group + i] / scale);
                fits[group].levels[i] =
                    (uint8_t)(clamp(level, -Q6_K_HALF_RANGE, Q6_K_HALF_RANGE - 1) + Q6_K_HALF_RANGE);
            }
        }
    }
    q6_k_pack(fits, block);
}

ENCODE_BLOCKS(q6_k, Q6_K)
