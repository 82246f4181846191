/* Types of 256 elements with quantised group scales: Q4_K and Q6_K.
 *
 * The encoders search the scale of each group: they try a range of scales, round to levels with each, solve
 * for the scale (and minimum) that fits those levels best in weighted least squares, and keep the best. Sums
 * run in element order, and every float operation stands as it must be done: the bytes are those of ggml's
 * reference. */
#include "quant/blocks.h"
#include "quant/codec.h"

#include <math.h>
#include <string.h>

enum {
    Q4_K_GROUP = 32,
    Q4_K_GROUPS = 8,
    Q4_K_LEVELS = 16,
    Q6_K_GROUP = 16,
    Q6_K_GROUPS = 16,
    Q6_K_HALF_RANGE = 32
};

/* A group of Q6_K whose values are all below this counts as zero. */
#define NEGLIGIBLE 1e-15f

/* Nearest integer, ties to even, for |value| < 2^22. At 1.5 * 2^23 the last place of a float is worth 1, so
 * the sum is rounded and the integer stands in its low bits. Larger values, infinities and NaNs give some
 * integer; callers clamp. */
static int nearest(float value) {
    return (int)(sl_f32_bits(value + 12582912.0f) & 0x7fffffu) - 0x400000;
}

static int clamp(int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
}

/* ---- Q4_K
 * ------------------------------------------------------------------------------------------------------- */

void sl_decode_q4_k(const void *blocks, float *values, uint64_t count) {
    const sl_block_q4_k *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q4_K_ELEMENTS, block++) {
        const float block_scale = sl_f16_to_f32(block->scale);
        const float block_min = sl_f16_to_f32(block->min_scale);
        for (uint32_t group = 0; group < Q4_K_GROUPS; group++) {
            uint8_t group_scale;
            uint8_t group_min;
            sl_q4_k_group(block->scales, group, &group_scale, &group_min);
            const float scale = block_scale * (float)group_scale;
            const float min = block_min * (float)group_min;
            const uint8_t *quants = block->quants + 32 * (group / 2);
            float *out = values + done + (size_t)Q4_K_GROUP * group;
            for (int i = 0; i < Q4_K_GROUP; i++) {
                out[i] = scale * (float)(quants[i] >> 4 * (group % 2) & 15) - min;
            }
        }
    }
}

/* value ~ scale * level + min, with min <= 0: a zero must stay representable. */
typedef struct affine {
    float scale;
    float min;
    uint8_t levels[Q4_K_GROUP];
} affine;

static void affine_round(const float *values, float inverse, float min, uint8_t *levels) {
    for (int i = 0; i < Q4_K_GROUP; i++) {
        levels[i] = (uint8_t)clamp(nearest(inverse * (values[i] - min)), 0, Q4_K_LEVELS - 1);
    }
}

static float affine_error(const affine *fit, const float *values, const float *weights) {
    float error = 0.0f;
    for (int i = 0; i < Q4_K_GROUP; i++) {
        const float difference = fit->scale * (float)fit->levels[i] + fit->min - values[i];
        error += weights[i] * (difference * difference);
    }
    return error;
}

/* Sets fit's scale and min to the weighted least squares solution for its levels; false when those are all
 * equal. The sums of the weights and of weight * value do not depend on the levels. */
static int affine_solve(affine *fit, const float *values, const float *weights, float sum_w, float sum_wx) {
    float sum_wl = 0.0f;
    float sum_wll = 0.0f;
    float sum_wlx = 0.0f;
    for (int i = 0; i < Q4_K_GROUP; i++) {
        const float level = (float)fit->levels[i];
        const float weighted = weights[i] * level;
        sum_wl += weighted;
        sum_wll += weighted * level;
        sum_wlx += weighted * values[i];
    }
    const float determinant = sum_w * sum_wll - sum_wl * sum_wl;
    if (!(determinant > 0.0f)) {
        return 0;
    }
    fit->scale = (sum_w * sum_wlx - sum_wx * sum_wl) / determinant;
    fit->min = (sum_wll * sum_wx - sum_wl * sum_wlx) / determinant;
    if (fit->min > 0.0f) {
        fit->min = 0.0f;
        fit->scale = sum_wlx / sum_wll;
    }
    return 1;
}

/* Larger values weigh more: |x| plus the group's root mean square. */
static void affine_weights(const float *values, float *weights) {
    float squares = 0.0f;
    for (int i = 0; i < Q4_K_GROUP; i++) {
        squares += values[i] * values[i];
    }
    const float root_mean_square = sqrtf(squares / Q4_K_GROUP);
    for (int i = 0; i < Q4_K_GROUP; i++) {
        weights[i] = root_mean_square + fabsf(values[i]);
    }
}

static void affine_search(affine *best, const float *values) {
    float weights[Q4_K_GROUP];
    affine_weights(values, weights);
    float low = values[0];
    float high = values[0];
    float sum_w = weights[0];
    float sum_wx = weights[0] * values[0];
    for (int i = 1; i < Q4_K_GROUP; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
        sum_w += weights[i];
        sum_wx += weights[i] * values[i];
    }
    best->min = low > 0.0f ? 0.0f : low;
    if (high == best->min) {
        best->scale = 0.0f;
        memset(best->levels, 0, sizeof best->levels);
        return;
    }
    const float first = (float)(Q4_K_LEVELS - 1) / (high - best->min);
    best->scale = 1.0f / first;
    affine_round(values, first, best->min, best->levels);
    float best_error = affine_error(best, values, weights);
    for (int step = 0; step <= 20; step++) { /* as if there were 14 to 16 steps between low and high */
        const float steps = -1.0f + 0.1f * (float)step + (float)(Q4_K_LEVELS - 1);
        affine tried;
        affine_round(values, steps / (high - best->min), best->min, tried.levels);
        if (affine_solve(&tried, values, weights, sum_w, sum_wx)) {
            const float error = affine_error(&tried, values, weights);
            if (error < best_error) {
                *best = tried;
                best_error = error;
            }
        }
    }
}

static void q4_k_pack_groups(const uint8_t *scales, const uint8_t *mins, uint8_t *packed) {
    for (int i = 0; i < 4; i++) {
        packed[i] = (uint8_t)(scales[i] | scales[i + 4] >> 4 << 6);
        packed[i + 4] = (uint8_t)(mins[i] | mins[i + 4] >> 4 << 6);
        packed[i + 8] = (uint8_t)((scales[i + 4] & 15) | (mins[i + 4] & 15) << 4);
    }
}

/* 6 bits. A scale cannot be negative but for overflow inside the search; the cut to a byte keeps that
 * defined. */
static uint8_t q4_k_group_number(float value) {
    const uint8_t number = (uint8_t)nearest(value);
    return number < 63 ? number : 63;
}

static void q4_k_encode_block(const float *values, sl_block_q4_k *block) {
    affine fits[Q4_K_GROUPS];
    float largest_scale = 0.0f;
    float largest_min = 0.0f; /* minima are stored negated */
    for (int group = 0; group < Q4_K_GROUPS; group++) {
        affine_search(&fits[group], values + Q4_K_GROUP * group);
        largest_scale = fits[group].scale > largest_scale ? fits[group].scale : largest_scale;
        largest_min = -fits[group].min > largest_min ? -fits[group].min : largest_min;
    }
    const float inverse_scale = largest_scale > 0.0f ? 63.0f / largest_scale : 0.0f;
    const float inverse_min = largest_min > 0.0f ? 63.0f / largest_min : 0.0f;
    uint8_t scales[Q4_K_GROUPS];
    uint8_t mins[Q4_K_GROUPS];
    for (int group = 0; group < Q4_K_GROUPS; group++) {
        scales[group] = q4_k_group_number(inverse_scale * fits[group].scale);
        mins[group] = q4_k_group_number(inverse_min * -fits[group].min);
    }
    q4_k_pack_groups(scales, mins, block->scales);
    block->scale = sl_f32_to_f16(largest_scale / 63.0f);
    block->min_scale = sl_f32_to_f16(largest_min / 63.0f);

    /* Scales lost bits on the way: round again with what decode will see. Without a scale the searched levels
     * stay. */
    for (int group = 0; group < Q4_K_GROUPS; group++) {
        const float scale = sl_f16_to_f32(block->scale) * (float)scales[group];
        const float min = sl_f16_to_f32(block->min_scale) * (float)mins[group];
        if (scale != 0.0f) {
            for (int i = 0; i < Q4_K_GROUP; i++) {
                const int level = nearest((values[Q4_K_GROUP * group + i] + min) / scale);
                fits[group].levels[i] = (uint8_t)clamp(level, 0, Q4_K_LEVELS - 1);
            }
        }
    }
    for (int i = 0; i < SL_Q4_K_ELEMENTS / 2; i++) {
        const int pair = 2 * (i / 32);
        block->quants[i] = (uint8_t)(fits[pair].levels[i % 32] | fits[pair + 1].levels[i % 32] << 4);
    }
}

void sl_encode_q4_k(const float *values, void *blocks, uint64_t count) {
    sl_block_q4_k *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q4_K_ELEMENTS) {
        q4_k_encode_block(values + done, block++);
    }
}

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
            const float scale = block_scale * (float)block->scales[i / Q6_K_GROUP];
            values[done + i] = scale * (float)((high << 4 | low) - Q6_K_HALF_RANGE);
        }
    }
}

/* value ~ scale * (level - 32) */
typedef struct symmetric {
    float scale;
    uint8_t levels[Q6_K_GROUP];
} symmetric;

/* What a choice of levels gives: with weights x^2, the sums of weight * x * level and weight * level^2. */
typedef struct symmetric_sums {
    float value_level;
    float level_level;
} symmetric_sums;

static symmetric_sums symmetric_round(const float *values, float inverse, uint8_t *levels) {
    symmetric_sums sums = {0.0f, 0.0f};
    for (int i = 0; i < Q6_K_GROUP; i++) {
        const int level = clamp(nearest(inverse * values[i]), -Q6_K_HALF_RANGE, Q6_K_HALF_RANGE - 1);
        const float weight = values[i] * values[i];
        levels[i] = (uint8_t)(level + Q6_K_HALF_RANGE);
        sums.value_level += weight * values[i] * (float)level;
        sums.level_level += weight * (float)level * (float)level;
    }
    return sums;
}

static void symmetric_search(symmetric *best, const float *values) {
    float extreme = 0.0f; /* with its sign: it becomes about -32 */
    for (int i = 0; i < Q6_K_GROUP; i++) {
        extreme = fabsf(values[i]) > fabsf(extreme) ? values[i] : extreme;
    }
    if (fabsf(extreme) < NEGLIGIBLE) {
        memset(best, 0, sizeof *best);
        return;
    }
    symmetric_sums sums = symmetric_round(values, -(float)Q6_K_HALF_RANGE / extreme, best->levels);
    best->scale = sums.level_level != 0.0f ? sums.value_level / sums.level_level : 0.0f;
    float gain =
        best->scale * sums.value_level; /* by how much the weighted squared error falls from that of zero */
    for (int step = -9; step <= 9; step++) {
        symmetric tried;
        sums =
            symmetric_round(values, -((float)Q6_K_HALF_RANGE + 0.1f * (float)step) / extreme, tried.levels);
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
        const int level = fits[i / Q6_K_GROUP].levels[i % Q6_K_GROUP];
        block->low[64 * half + 32 * (quarter % 2) + column] |= (uint8_t)((level & 15) << 4 * (quarter / 2));
        block->high[32 * half + column] |= (uint8_t)(level >> 4 << 2 * quarter);
    }
}

static void q6_k_encode_block(const float *values, sl_block_q6_k *block) {
    symmetric fits[Q6_K_GROUPS];
    float extreme = 0.0f; /* the largest group scale, with its sign: it becomes -128 */
    for (int group = 0; group < Q6_K_GROUPS; group++) {
        symmetric_search(&fits[group], values + Q6_K_GROUP * group);
        extreme = fabsf(fits[group].scale) > fabsf(extreme) ? fits[group].scale : extreme;
    }
    if (fabsf(extreme) < NEGLIGIBLE) {
        memset(block, 0, sizeof *block);
        return;
    }
    const float inverse = -128.0f / extreme;
    block->scale = sl_f32_to_f16(1.0f / inverse);
    for (int group = 0; group < Q6_K_GROUPS; group++) {
        const int number = nearest(inverse * fits[group].scale);
        block->scales[group] = (int8_t)(number < 127 ? number : 127);
        const float scale = sl_f16_to_f32(block->scale) * (float)block->scales[group];
        if (scale != 0.0f) { /* round again with what decode will see */
            for (int i = 0; i < Q6_K_GROUP; i++) {
                const int level = nearest(values[Q6_K_GROUP * group + i] / scale);
                fits[group].levels[i] =
                    (uint8_t)(clamp(level, -Q6_K_HALF_RANGE, Q6_K_HALF_RANGE - 1) + Q6_K_HALF_RANGE);
            }
        }
    }
    q6_k_pack(fits, block);
}

void sl_encode_q6_k(const float *values, void *blocks, uint64_t count) {
    sl_block_q6_k *block = blocks;
    for (uint64_t done = 0; done < count; done += SL_Q6_K_ELEMENTS) {
        q6_k_encode_block(values + done, block++);
    }
}
