/* Matrix products. A weight row is decoded once per step and then multiplied with every row of its batch, so
 * that weights are read once however many rows there are.
 *
 * Class "f32x16": weights decoded to f32, activations f32 (or bf16 taken as f32), summed as sl_plain_dot
 * does. "e4m3_128/f32x16" and "q8_256/f32x16": activations are codes (quant/activation.h), taken as f32, and
 * weights are rounded to the same codes first.
 *
 * Class "q8_32": activations int8 with a scale and a sum per group of 32 (quant/activation.h). Per group of
 * 32 columns a weight row has integers q, a scale and a minimum in f32, and for each half of the group an
 * integer factor of the scale and one of the minimum:
 *
 *     dot = factor0 * sum(q[0..15] * x[0..15]) + factor1 * sum(q[16..31] * x[16..31])   exact, below 2^24
 *     sum = the same with the minimum's factors and q = 1
 *     y  += (scale * dot - minimum * sum) * x_scale     group after group, each operation rounded by itself
 *
 *     q8_0, iq4_nl, mxfp4   q signed, or from the table; scale = d
 *     q4_0, q5_0            q - 8, q - 16; scale = d
 *     q4_1, q5_1            scale = d, minimum = -m
 *     q4_k, q5_k            scale = d * group_scale, minimum = dmin * group_min (both rounded to f32)
 *     iq4_xs                q from the table, scale = d * group_scale (rounded to f32)
 *     q3_k, q6_k            q - 4, q - 32; scale = d, factors = the two group scales
 *     iq1, iq2, iq3, tq     q from the table, scale = d times a power of two, factors as in codebook.h
 *     q2_k                  scale = d, minimum = dmin, factors = the two group scales and minima
 *     nvfp4, nvfp4_128      q from the table; each half has a scale, and scale * dot stands for the sum,
 * rounded, of the halves' own scale * dot: the group's, or the block's scale times that (rounded to f32)
 *
 * and no minimum, and factors 1, where none are named. Another tier may regroup the float part and call it
 * another class; the integer part is the same everywhere. At the end bias, then residual are added. */
#include "backend/cpu/plain/plain.h"
#include "quant/codebook.h"

#include <string.h>

enum { CHUNK = 16 }; /* weight rows in a unit of work */

const char *sl_plain_linear_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_cpu_kernel *row = (const sl_cpu_kernel *)(const void *)kernel;
    const sl_weight *weight = &query->program->weights[query->op->u.linear.segments[0].weight];
    return weight->type == row->weight_type ? NULL : "is for another weight type";
}

/* A unit of work: some rows of one segment's weight, for one batch. */
typedef struct part {
    sl_cpu_batch batch;
    const sl_cpu_weight *weight;
    int32_t first, last;
} part;

static int32_t chunks_of(const sl_cpu_weight *weight) {
    return (weight->rows + CHUNK - 1) / CHUNK;
}

/* The next unit for this thread; false when none is left. */
static bool next_part(const sl_cpu_context *context, const sl_cpu_op *op, part *part) {
    int32_t chunks = 0;
    for (int32_t s = 0; s < op->weight_count; s++) {
        chunks += chunks_of(&op->weights[s]);
    }
    const int32_t unit = sl_cpu_take(op, 0, 1);
    if (unit >= chunks * sl_cpu_batch_count(op)) {
        return false;
    }
    int32_t chunk = unit % chunks;
    part->batch = sl_cpu_batch_at(context, op, unit / chunks);
    part->weight = op->weights;
    while (chunk >= chunks_of(part->weight)) {
        chunk -= chunks_of(part->weight++);
    }
    part->first = chunk * CHUNK;
    part->last = part->first + CHUNK < part->weight->rows ? part->first + CHUNK : part->weight->rows;
    return true;
}

static const unsigned char *weight_row(const part *part, int32_t row) {
    return part->weight->data + (uint64_t)part->batch.expert * part->weight->expert_bytes +
           (uint64_t)row * part->weight->row_bytes;
}

static void store(const sl_cpu_op *op, const part *part, int32_t row, int32_t output, float value) {
    const sl_cpu_weight *weight = part->weight;
    if (weight->bias) {
        value += weight->bias[(int64_t)part->batch.expert * weight->rows + output];
    }
    if (op->in[3].data) {
        value += sl_cpu_f32(&op->in[3], row)[weight->column + output];
    }
    sl_cpu_f32(&op->out[0], row)[weight->column + output] = value;
}

/* ---- float weights ---- */

static int32_t largest_columns(const sl_kernel_query *query) {
    int32_t columns = 0;
    for (int32_t s = 0; s < query->op->u.linear.segment_count; s++) {
        const sl_weight *weight = &query->program->weights[query->op->u.linear.segments[s].weight];
        columns = weight->columns > columns ? weight->columns : columns;
    }
    return columns;
}

/* A decoded weight row, and a row of x when that is no f32. */
uint64_t sl_plain_linear_float_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    return sl_cpu_scratch_bytes(query, (uint64_t)largest_columns(query) * 2 * sizeof(float));
}

void sl_plain_linear_float(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    float *decoded = sl_cpu_scratch(op, thread, threads);
    part part;
    while (next_part(context, op, &part)) {
        const int32_t columns = part.weight->columns;
        for (int32_t output = part.first; output < part.last && part.batch.count > 0; output++) {
            sl_qtype_get(part.weight->type)->decode(weight_row(&part, output), decoded, (uint64_t)columns);
            for (int32_t i = 0; i < part.batch.count; i++) {
                const int32_t row = sl_cpu_batch_row(&part.batch, i);
                const float *x = sl_cpu_f32(&op->in[0], sl_cpu_source_row(context, op, row));
                store(op, &part, row, output, sl_plain_dot(decoded, x, columns));
            }
        }
    }
}

/* To the nearest BF16, ties away from zero. */
static float rounded(float weight) {
    uint32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    bits = (bits + 0x8000u) & 0xffff0000u;
    memcpy(&weight, &bits, sizeof bits);
    return weight;
}

/* Quantised weights are rounded to BF16, as x is. */
void sl_plain_linear_bf16(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    float *decoded = sl_cpu_scratch(op, thread, threads);
    part part;
    while (next_part(context, op, &part)) {
        const int32_t columns = part.weight->columns;
        float *x = decoded + columns;
        for (int32_t output = part.first; output < part.last && part.batch.count > 0; output++) {
            sl_qtype_get(part.weight->type)->decode(weight_row(&part, output), decoded, (uint64_t)columns);
            for (int32_t k = 0; k < columns; k++) {
                decoded[k] = rounded(decoded[k]);
            }
            for (int32_t i = 0; i < part.batch.count; i++) {
                const int32_t row = sl_cpu_batch_row(&part.batch, i);
                const uint16_t *half = sl_cpu_bf16(&op->in[0], sl_cpu_source_row(context, op, row));
                for (int32_t k = 0; k < columns; k++) {
                    x[k] = sl_bf16_to_f32(half[k]);
                }
                store(op, &part, row, output, sl_plain_dot(decoded, x, columns));
            }
        }
    }
}

/* A decoded weight row, a row of x, and a row of codes. */
uint64_t sl_plain_linear_codes_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    const uint64_t columns = (uint64_t)largest_columns(query);
    (void)kernel;
    return sl_cpu_scratch_bytes(query, columns * 2 * sizeof(float) +
                                           sl_codes_row_bytes(SL_CODES_E4M3_128, columns + SL_Q8_256_GROUP));
}

/* x as codes, and weights rounded to such as well. FP8_128 has E4M3 codes already. */
void sl_plain_linear_codes(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    float *decoded = sl_cpu_scratch(op, thread, threads);
    part part;
    sl_codes codes;
    sl_value_codes(op->in[0].type, &codes);
    while (next_part(context, op, &part)) {
        const int32_t columns = part.weight->columns;
        const bool rounds = part.weight->type != SL_QTYPE_FP8_128 || codes != SL_CODES_E4M3_128;
        float *x = decoded + columns, *rounded = x + columns;
        for (int32_t output = part.first; output < part.last && part.batch.count > 0; output++) {
            sl_qtype_get(part.weight->type)->decode(weight_row(&part, output), decoded, (uint64_t)columns);
            if (rounds) {
                sl_codes_encode(codes, decoded, (uint64_t)columns, (uint64_t)columns, rounded);
                sl_codes_decode(codes, rounded, (uint64_t)columns, decoded, (uint64_t)columns);
            }
            for (int32_t i = 0; i < part.batch.count; i++) {
                const int32_t row = sl_cpu_batch_row(&part.batch, i);
                sl_codes_decode(codes, sl_cpu_codes(&op->in[0], sl_cpu_source_row(context, op, row)),
                                (uint64_t)op->in[0].width, x, (uint64_t)columns);
                store(op, &part, row, output, sl_plain_dot(decoded, x, columns));
            }
        }
    }
}

/* ---- quantised weights ---- */

/* A weight row as class "q8_32" describes it. */
typedef struct unpacked {
    float *scales, *minima; /* [columns / 32] */
    float *uppers;          /* [columns / 32]: with `halves`, scales of the upper halves */
    bool halves;
    int8_t *values, *factors, *min_factors; /* [columns], [columns / 16] twice */
} unpacked;

static unpacked unpacked_at(void *scratch, int32_t columns) {
    unpacked row = {.scales = scratch};
    row.minima = row.scales + columns / 32;
    row.uppers = row.minima + columns / 32;
    row.values = (int8_t *)(void *)(row.uppers + columns / 32);
    row.factors = row.values + columns;
    row.min_factors = row.factors + columns / 16;
    return row;
}

uint64_t sl_plain_linear_q8_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const uint64_t columns = (uint64_t)largest_columns(query);
    return sl_cpu_scratch_bytes(query, columns / 32 * 3 * sizeof(float) + columns + columns / 16 * 2);
}

static void unpack_q8_0(const void *data, int32_t columns, unpacked row) {
    const sl_block_q8_0 *blocks = data;
    for (int32_t g = 0; g < columns / 32; g++) {
        row.scales[g] = sl_f16_to_f32(blocks[g].scale);
        memcpy(row.values + 32 * g, blocks[g].quants, 32);
    }
}

static void unpack_q4_0(const void *data, int32_t columns, unpacked row) {
    const sl_block_q4_0 *blocks = data;
    for (int32_t g = 0; g < columns / 32; g++) {
        row.scales[g] = sl_f16_to_f32(blocks[g].scale);
        for (int32_t i = 0; i < 16; i++) {
            row.values[32 * g + i] = (int8_t)((blocks[g].quants[i] & 15) - 8);
            row.values[32 * g + 16 + i] = (int8_t)((blocks[g].quants[i] >> 4) - 8);
        }
    }
}

static void unpack_q4_k(const void *data, int32_t columns, unpacked row) {
    const sl_block_q4_k *blocks = data;
    for (int32_t g = 0; g < columns / 32; g++) {
        const sl_block_q4_k *block = &blocks[g / 8];
        uint8_t scale, min;
        sl_q4_k_group(block->scales, (uint32_t)g % 8, &scale, &min);
        row.scales[g] = sl_f16_to_f32(block->scale) * (float)scale;
        row.minima[g] = sl_f16_to_f32(block->min_scale) * (float)min;
        for (int32_t i = 0; i < 32; i++) {
            row.values[32 * g + i] = (int8_t)((block->quants[32 * (g % 8 / 2) + i] >> 4 * (g % 2)) & 15);
        }
    }
}

static void unpack_q5_k(const void *data, int32_t columns, unpacked row) {
    const sl_block_q5_k *blocks = data;
    for (int32_t g = 0; g < columns / 32; g++) {
        const sl_block_q5_k *block = &blocks[g / 8];
        uint8_t scale, min;
        sl_q4_k_group(block->scales, (uint32_t)g % 8, &scale, &min);
        row.scales[g] = sl_f16_to_f32(block->scale) * (float)scale;
        row.minima[g] = sl_f16_to_f32(block->min_scale) * (float)min;
        for (int32_t i = 0; i < 32; i++) {
            row.values[32 * g + i] = (int8_t)sl_q5_k_quant(block, (uint32_t)g % 8, (uint32_t)i);
        }
    }
}

static void unpack_q4_1(const void *data, int32_t columns, unpacked row) {
    const sl_block_q4_1 *blocks = data;
    for (int32_t g = 0; g < columns / 32; g++) {
        row.scales[g] = sl_f16_to_f32(blocks[g].scale);
        row.minima[g] = -sl_f16_to_f32(blocks[g].min);
        for (int32_t i = 0; i < 16; i++) {
            row.values[32 * g + i] = (int8_t)(blocks[g].quants[i] & 15);
            row.values[32 * g + 16 + i] = (int8_t)(blocks[g].quants[i] >> 4);
        }
    }
}

static void unpack_q5_0(const void *data, int32_t columns, unpacked row) {
    const sl_block_q5_0 *blocks = data;
    for (int32_t g = 0; g < columns / 32; g++) {
        row.scales[g] = sl_f16_to_f32(blocks[g].scale);
        for (int32_t i = 0; i < 32; i++) {
            row.values[32 * g + i] =
                (int8_t)(sl_q5_quant(blocks[g].high, blocks[g].quants, (uint32_t)i) - 16);
        }
    }
}

static void unpack_q5_1(const void *data, int32_t columns, unpacked row) {
    const sl_block_q5_1 *blocks = data;
    for (int32_t g = 0; g < columns / 32; g++) {
        row.scales[g] = sl_f16_to_f32(blocks[g].scale);
        row.minima[g] = -sl_f16_to_f32(blocks[g].min);
        for (int32_t i = 0; i < 32; i++) {
            row.values[32 * g + i] = (int8_t)sl_q5_quant(blocks[g].high, blocks[g].quants, (uint32_t)i);
        }
    }
}

static void unpack_q2_k(const void *data, int32_t columns, unpacked row) {
    const sl_block_q2_k *blocks = data;
    for (int32_t g = 0; g < columns / 32; g++) {
        const sl_block_q2_k *block = &blocks[g / 8];
        row.scales[g] = sl_f16_to_f32(block->scale);
        row.minima[g] = sl_f16_to_f32(block->min_scale);
        for (int32_t h = 0; h < 2; h++) {
            row.factors[2 * g + h] = (int8_t)(block->scales[2 * (g % 8) + h] & 15);
            row.min_factors[2 * g + h] = (int8_t)(block->scales[2 * (g % 8) + h] >> 4);
        }
        for (int32_t i = 0; i < 32; i++) {
            row.values[32 * g + i] = (int8_t)(block->quants[32 * (g % 8 / 4) + i] >> 2 * (g % 4) & 3);
        }
    }
}

static void unpack_q3_k(const void *data, int32_t columns, unpacked row) {
    const sl_block_q3_k *blocks = data;
    for (int32_t g = 0; g < columns / 32; g++) {
        const sl_block_q3_k *block = &blocks[g / 8];
        row.scales[g] = sl_f16_to_f32(block->scale);
        row.factors[2 * g] = sl_q3_k_scale(block->scales, (uint32_t)g % 8 * 2);
        row.factors[2 * g + 1] = sl_q3_k_scale(block->scales, (uint32_t)g % 8 * 2 + 1);
        for (int32_t i = 0; i < 32; i++) {
            const int32_t low = block->quants[32 * (g % 8 / 4) + i] >> 2 * (g % 4) & 3;
            row.values[32 * g + i] = (int8_t)(low + 4 * (block->high[i] >> g % 8 & 1) - 4);
        }
    }
}

static void unpack_iq4(const uint8_t *quants, int8_t *values) {
    for (int32_t i = 0; i < 16; i++) {
        values[i] = sl_iq4_value(quants[i] & 15u);
        values[16 + i] = sl_iq4_value((uint32_t)quants[i] >> 4);
    }
}

static void unpack_iq4_nl(const void *data, int32_t columns, unpacked row) {
    const sl_block_iq4_nl *blocks = data;
    for (int32_t g = 0; g < columns / 32; g++) {
        row.scales[g] = sl_f16_to_f32(blocks[g].scale);
        unpack_iq4(blocks[g].quants, row.values + 32 * g);
    }
}

static void unpack_iq4_xs(const void *data, int32_t columns, unpacked row) {
    const sl_block_iq4_xs *blocks = data;
    for (int32_t g = 0; g < columns / 32; g++) {
        const sl_block_iq4_xs *block = &blocks[g / 8];
        row.scales[g] = sl_f16_to_f32(block->scale) * (float)sl_iq4_xs_scale(block, (uint32_t)g % 8);
        unpack_iq4(block->quants + 16 * (g % 8), row.values + 32 * g);
    }
}

static void unpack_mxfp4(const void *data, int32_t columns, unpacked row) {
    const sl_block_mxfp4 *blocks = data;
    for (int32_t g = 0; g < columns / 32; g++) {
        row.scales[g] = sl_mxfp4_scale(blocks[g].exponent);
        for (int32_t i = 0; i < 16; i++) {
            row.values[32 * g + i] = sl_mxfp4_value(blocks[g].quants[i] & 15u);
            row.values[32 * g + 16 + i] = sl_mxfp4_value((uint32_t)blocks[g].quants[i] >> 4);
        }
    }
}

/* 32 elements from 16 bytes. */
static void unpack_fp4(const uint8_t *quants, int8_t *values) {
    for (uint32_t i = 0; i < 32; i++) {
        values[i] = sl_mxfp4_value(sl_nvfp4_quant(quants + 8 * (i / 16), i % 16));
    }
}

static void unpack_nvfp4(const void *data, int32_t columns, unpacked row) {
    const sl_block_nvfp4 *blocks = data;
    for (int32_t g = 0; g < columns / 32; g++) {
        const sl_block_nvfp4 *block = &blocks[g / 2];
        row.scales[g] = sl_nvfp4_scale(block->scales[2 * (g % 2)]);
        row.uppers[g] = sl_nvfp4_scale(block->scales[2 * (g % 2) + 1]);
        unpack_fp4(block->quants + 16 * (g % 2), row.values + 32 * g);
    }
}

static void unpack_nvfp4_128(const void *data, int32_t columns, unpacked row) {
    const sl_block_nvfp4_128 *blocks = data;
    for (int32_t g = 0; g < columns / 32; g++) {
        const sl_block_nvfp4_128 *block = &blocks[g / 4];
        row.scales[g] = block->scale * sl_nvfp4_scale(block->scales[2 * (g % 4)]);
        row.uppers[g] = block->scale * sl_nvfp4_scale(block->scales[2 * (g % 4) + 1]);
        unpack_fp4(block->quants + 16 * (g % 4), row.values + 32 * g);
    }
}

static void unpack_q6_k(const void *data, int32_t columns, unpacked row) {
    const sl_block_q6_k *blocks = data;
    for (int32_t g = 0; g < columns / 32; g++) {
        const sl_block_q6_k *block = &blocks[g / 8];
        const int32_t half = g % 8 / 4, r = g % 4;
        const uint8_t *low = block->low + 64 * half + 32 * (r % 2), *high = block->high + 32 * half;
        row.scales[g] = sl_f16_to_f32(block->scale);
        row.factors[2 * g] = block->scales[2 * (g % 8)];
        row.factors[2 * g + 1] = block->scales[2 * (g % 8) + 1];
        for (int32_t i = 0; i < 32; i++) {
            const int32_t value = ((low[i] >> 4 * (r / 2)) & 15) | ((high[i] >> 2 * r) & 3) << 4;
            row.values[32 * g + i] = (int8_t)(value - 32);
        }
    }
}

/* Groups of codebook.h. */
static void unpack_codes(const sl_codes32 *group, const uint64_t table[2], int32_t g, unpacked row) {
    row.scales[g] = group->scale;
    row.factors[2 * g] = (int8_t)group->factor[0];
    row.factors[2 * g + 1] = (int8_t)group->factor[1];
    for (int32_t i = 0; i < 32; i++) {
        row.values[32 * g + i] = sl_code_value(table[0], table[1], group->codes[i / 8] >> 4 * (i % 8) & 15u);
    }
}

#define UNPACK_CODES(ID, name, table)                                                                        \
    static void unpack_##name(const void *data, int32_t columns, unpacked row) {                             \
        static const uint64_t values[2] = {SL_##table##_VALUES_0, SL_##table##_VALUES_1};                    \
        const sl_block_##name *blocks = data;                                                                \
        for (int32_t g = 0; g < columns / 32; g++) {                                                         \
            sl_codes32 group;                                                                                \
            sl_codes_##name(&blocks[g / 8], (uint32_t)g % 8, &group);                                        \
            unpack_codes(&group, values, g, row);                                                            \
        }                                                                                                    \
    }
SL_EACH_CODEBOOK_TYPE(UNPACK_CODES)

#define CODES_ENTRY(ID, name, table) [SL_QTYPE_##ID] = unpack_##name,
typedef void (*unpack_function)(const void *data, int32_t columns, unpacked row);
static const unpack_function unpackers[SL_QTYPE_COUNT] = {
    [SL_QTYPE_Q8_0] = unpack_q8_0,           [SL_QTYPE_Q4_0] = unpack_q4_0,
    [SL_QTYPE_Q4_K] = unpack_q4_k,           [SL_QTYPE_Q6_K] = unpack_q6_k,
    [SL_QTYPE_Q5_K] = unpack_q5_k,           [SL_QTYPE_Q4_1] = unpack_q4_1,
    [SL_QTYPE_Q5_0] = unpack_q5_0,           [SL_QTYPE_Q5_1] = unpack_q5_1,
    [SL_QTYPE_Q2_K] = unpack_q2_k,           [SL_QTYPE_Q3_K] = unpack_q3_k,
    [SL_QTYPE_IQ4_NL] = unpack_iq4_nl,       [SL_QTYPE_IQ4_XS] = unpack_iq4_xs,
    [SL_QTYPE_MXFP4] = unpack_mxfp4,         [SL_QTYPE_NVFP4] = unpack_nvfp4,
    [SL_QTYPE_NVFP4_128] = unpack_nvfp4_128, SL_EACH_CODEBOOK_TYPE(CODES_ENTRY)};

static int32_t dot16(const int8_t *a, const int8_t *b) {
    int32_t sum = 0;
    for (int32_t i = 0; i < 16; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* The sum that a group's minimum multiplies. */
static int32_t min_sum(const int8_t *factors, const int8_t *x, int32_t sum) {
    if (factors[0] == 1 && factors[1] == 1) {
        return sum;
    }
    int32_t low = 0;
    for (int32_t i = 0; i < 16; i++) {
        low += x[i];
    }
    return factors[0] * low + factors[1] * (sum - low);
}

static float dot_q8(unpacked w, sl_q8_32 x, int32_t columns) {
    float y = 0;
    for (int32_t g = 0; g < columns / 32; g++) {
        const int32_t low = dot16(w.values + 32 * g, x.values + 32 * g);
        const int32_t high = dot16(w.values + 32 * g + 16, x.values + 32 * g + 16);
        if (w.halves) {
            y += (w.scales[g] * (float)low + w.uppers[g] * (float)high) * x.scales[g];
            continue;
        }
        const int32_t dot = w.factors[2 * g] * low + w.factors[2 * g + 1] * high;
        const int32_t sum = min_sum(w.min_factors + 2 * g, x.values + 32 * g, x.sums[g]);
        y += (w.scales[g] * (float)dot - w.minima[g] * (float)sum) * x.scales[g];
    }
    return y;
}

void sl_plain_linear_q8(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    part part;
    while (next_part(context, op, &part)) {
        const int32_t columns = part.weight->columns;
        unpacked w = unpacked_at(sl_cpu_scratch(op, thread, threads), columns);
        w.halves = part.weight->type == SL_QTYPE_NVFP4 || part.weight->type == SL_QTYPE_NVFP4_128;
        memset(w.minima, 0, (size_t)(columns / 32) * sizeof *w.minima);
        memset(w.factors, 1, (size_t)(columns / 16));
        memset(w.min_factors, 1, (size_t)(columns / 16));
        for (int32_t output = part.first; output < part.last && part.batch.count > 0; output++) {
            unpackers[part.weight->type](weight_row(&part, output), columns, w);
            for (int32_t i = 0; i < part.batch.count; i++) {
                const int32_t row = sl_cpu_batch_row(&part.batch, i);
                const sl_q8_32 x = sl_cpu_q8_32(&op->in[0], sl_cpu_source_row(context, op, row));
                store(op, &part, row, output, dot_q8(w, x, columns));
            }
        }
    }
}
