/* Every op's definition (program.h, step.h, quant/activation.h) once more, in double and without any regard
 * to speed or order. Written apart from the kernels, so that a misreading shows. */
#include "harness.h"

#include "quant/activation.h"
#include "quant/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct error_sum {
    double largest, squares;
    int64_t count;
    bool wrong;
} error_sum;

static void compare(error_sum *sum, double expected, double actual) {
    if (isnan(expected) || isnan(actual)) {
        sum->wrong = sum->wrong || isnan(expected) != isnan(actual);
        return;
    }
    const double difference = fabs(expected - actual);
    sum->largest = difference > sum->largest ? difference : sum->largest;
    sum->squares += expected * expected;
    sum->count++;
}

static double result_of(const error_sum *sum) {
    if (sum->wrong) {
        return INFINITY;
    }
    const double rms = sum->count ? sqrt(sum->squares / (double)sum->count) : 0;
    return sum->largest == 0 ? 0 : sum->largest / rms;
}

/* ---- access ---- */

static const sl_op *op_of(const kt_case *c) {
    return &c->program.ops[c->op];
}

static int32_t row_count(const kt_case *c, int32_t value) {
    const sl_rows rows = c->program.values[value].rows;
    return rows == SL_ROWS_OUTPUT   ? c->output_count
           : rows == SL_ROWS_EXPERT ? c->rows * c->program.experts_used
                                    : c->rows;
}

/* An input as it was given. */
static double in_at(const kt_case *c, int index, int64_t row, int64_t column) {
    const sl_operand *operand = &op_of(c)->in[index];
    const float *data = c->inputs[operand->value];
    return data[row * c->program.values[operand->value].width + operand->column + column];
}

static bool has(const kt_case *c, int index) {
    return op_of(c)->in[index].value != SL_NONE;
}

static float out_at(const kt_case *c, const kt_result *result, int index, int64_t row, int64_t column) {
    const sl_operand *operand = &op_of(c)->out[index];
    const float *data = result->values[operand->value];
    return data[row * c->program.values[operand->value].width + operand->column + column];
}

static const float *weight_of(const kt_case *c, int32_t index) {
    return index == SL_NONE ? NULL : c->program.weights[index].data;
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static float *decode_all(const sl_weight *weight) {
    const uint64_t count = (uint64_t)weight->experts * (uint64_t)weight->rows * (uint64_t)weight->columns;
    float *values = kt_alloc(count, sizeof *values);
    sl_qtype_get(weight->type)->decode(weight->data, values, count);
    return values;
}

/* ---- linear: x as the kernel got it, whatever its format ---- */

static double *activations(const kt_case *c, const kt_result *result, int64_t row, int32_t columns) {
    const sl_operand *x = &op_of(c)->in[0];
    const sl_value *value = &c->program.values[x->value];
    double *values = kt_alloc((size_t)columns, sizeof *values);
    if (value->type == SL_VALUE_Q8_32) {
        float *decoded = kt_alloc((size_t)value->width, sizeof *decoded);
        sl_q8_32_decode(sl_q8_32_row(result->values[x->value], (uint64_t)value->width, (uint64_t)row),
                        decoded, (uint64_t)value->width);
        for (int32_t i = 0; i < columns; i++) {
            values[i] = decoded[i];
        }
        free(decoded);
        return values;
    }
    if (value->type == SL_VALUE_E4M3_128 || value->type == SL_VALUE_Q8_256) {
        const int32_t group = value->type == SL_VALUE_E4M3_128 ? 128 : 256;
        const uint8_t *codes = (const uint8_t *)result->values[x->value] +
                               row * (int64_t)sl_value_row_bytes(value->type, value->width);
        const float *scales =
            (const float *)(const void *)(codes + (value->width + group - 1) / group * group);
        for (int32_t i = 0; i < columns; i++) {
            values[i] = (double)scales[i / group] *
                        (group == 128 ? (double)sl_e4m3_to_f32(codes[i]) : (double)(int8_t)codes[i]);
        }
        return values;
    }
    for (int32_t i = 0; i < columns; i++) {
        const int64_t at = row * value->width + x->column + i;
        values[i] = value->type == SL_VALUE_BF16
                        ? sl_bf16_to_f32(((const uint16_t *)result->values[x->value])[at])
                        : ((const float *)result->values[x->value])[at];
    }
    return values;
}

/* The nearest E4M3 number, ties to the even mantissa: whole numbers of its own last place. */
static double round_e4m3(double x) {
    int exponent;
    frexp(x, &exponent);
    const int last = (exponent - 1 < -6 ? -6 : exponent - 1) - 3;
    return ldexp(nearbyint(ldexp(x, -last)), last);
}

/* Where x is codes the weights are rounded to such too: FP8_128 has E4M3 already. */
static void round_weights(const sl_weight *weight, sl_value_type x, float *w) {
    const bool e4m3 = x == SL_VALUE_E4M3_128;
    if ((!e4m3 && x != SL_VALUE_Q8_256) || (e4m3 && weight->type == SL_QTYPE_FP8_128)) {
        return;
    }
    const int32_t columns = weight->columns, group = e4m3 ? 128 : 256;
    for (int64_t row = 0; row < (int64_t)weight->experts * weight->rows; row++) {
        for (int32_t first = 0; first < columns; first += group) {
            const int32_t end = first + group < columns ? first + group : columns;
            float *at = w + row * columns, largest = 0;
            for (int32_t i = first; i < end; i++) {
                largest = fabsf(at[i]) > largest ? fabsf(at[i]) : largest;
            }
            const float scale = largest / (e4m3 ? 448.0f : 127.0f),
                        factor = (e4m3 ? 448.0f : 127.0f) / largest;
            for (int32_t i = first; i < end; i++) {
                const float scaled = at[i] * factor;
                const double code = e4m3 ? round_e4m3((double)scaled) : nearbyint((double)scaled);
                at[i] = largest < 0x1p-100f ? 0 : (float)((double)scale * code);
            }
        }
    }
}

/* In eight sums, which a compiler may have side by side. */
static double dot(const float *w, const double *x, int32_t count) {
    double sums[8] = {0};
    int32_t k = 0;
    for (; k + 8 <= count; k += 8) {
        for (int32_t i = 0; i < 8; i++) {
            sums[i] += (double)w[k + i] * x[k + i];
        }
    }
    for (; k < count; k++) {
        sums[k % 8] += (double)w[k] * x[k];
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

static void check_linear(const kt_case *c, const kt_result *result, error_sum *sum) {
    const sl_op_linear *linear = &op_of(c)->u.linear;
    const int32_t used = c->program.experts_used;
    const bool x_is_shared = has(c, 1) && c->program.values[op_of(c)->in[0].value].rows == SL_ROWS_STEP;
    for (int32_t s = 0; s < linear->segment_count; s++) {
        const sl_linear_segment *segment = &linear->segments[s];
        const sl_weight *weight = &c->program.weights[segment->weight];
        const float *bias = weight_of(c, segment->bias);
        float *w = decode_all(weight);
        round_weights(weight, c->program.values[op_of(c)->in[0].value].type, w);
        for (int32_t row = 0; row < row_count(c, op_of(c)->out[0].value); row++) {
            const int32_t expert = has(c, 1) ? ((const int32_t *)c->inputs[c->ids_value])[row] : 0;
            double *x = activations(c, result, x_is_shared ? row / used : row, weight->columns);
            for (int32_t n = 0; n < weight->rows; n++) {
                const int64_t at = (int64_t)expert * weight->rows + n;
                const double y = (bias ? bias[at] : 0) +
                                 (has(c, 3) ? in_at(c, 3, row, segment->column + n) : 0) +
                                 dot(w + at * weight->columns, x, weight->columns);
                compare(sum, y, out_at(c, result, 0, row, segment->column + n));
            }
            free(x);
        }
        free(w);
    }
}

static void check_head_linear(const kt_case *c, const kt_result *result, error_sum *sum) {
    const sl_op_head_linear *linear = &op_of(c)->u.head_linear;
    const sl_weight *weight = &c->program.weights[linear->weight];
    const int32_t inputs = linear->turned ? weight->rows : weight->columns;
    const int32_t outputs = linear->turned ? weight->columns : weight->rows;
    float *w = decode_all(weight);
    for (int32_t row = 0; row < c->rows; row++) {
        for (int32_t head = 0; head < weight->experts; head++) {
            const float *matrix = w + (int64_t)head * inputs * outputs;
            const int32_t x = head * linear->x_stride, at = head * (outputs + linear->tail);
            for (int32_t n = 0; n < outputs; n++) {
                double y = 0;
                for (int32_t k = 0; k < inputs; k++) {
                    y += in_at(c, 0, row, x + k) *
                         (double)matrix[linear->turned ? k * outputs + n : n * inputs + k];
                }
                compare(sum, y, out_at(c, result, 0, row, at + n));
            }
            for (int32_t i = 0; i < linear->tail; i++) {
                const float same = out_at(c, result, 0, row, at + outputs + i);
                sum->wrong = sum->wrong || (double)same != in_at(c, 0, row, x + inputs + i);
            }
        }
    }
    free(w);
}

/* ---- rows ---- */

/* x before the norm, its factor and a residual included. */
static double normed_at(const kt_case *c, int64_t row, int64_t column) {
    const sl_op_rmsnorm *norm = &op_of(c)->u.rmsnorm;
    return in_at(c, 0, row, column) * (double)norm->x_factor +
           (norm->residual == SL_RESIDUAL_BEFORE ? in_at(c, 1, row, column) : 0);
}

static void check_rmsnorm(const kt_case *c, const kt_result *result, error_sum *sum) {
    const sl_op_rmsnorm *norm = &op_of(c)->u.rmsnorm;
    const float *weight = weight_of(c, norm->weight);
    const bool in_place = op_of(c)->in[0].value == op_of(c)->out[0].value;
    for (int32_t row = 0; row < c->rows; row++) {
        for (int32_t g = 0; g < norm->groups; g++) {
            const int32_t at = g * norm->stride, y_at = g * (in_place ? norm->stride : norm->width);
            double squares = 0;
            for (int32_t i = 0; i < norm->width; i++) {
                squares += normed_at(c, row, at + i) * normed_at(c, row, at + i);
            }
            for (int32_t i = 0; i < norm->width; i++) {
                const double x = normed_at(c, row, at + i);
                double y = x / sqrt(squares / norm->width + (double)norm->epsilon);
                const int32_t own = norm->own_weights ? g * norm->width : 0;
                y *= weight ? (double)weight[own + i] + (double)norm->weight_offset : 1;
                if (has(c, 2)) {
                    const double gate = in_at(c, 2, row, g * norm->gate_stride + i);
                    y *= gate * sigmoid(gate);
                }
                y += norm->residual == SL_RESIDUAL_AFTER ? in_at(c, 1, row, y_at + i) : 0;
                compare(sum, y * (double)norm->y_factor, out_at(c, result, 0, row, y_at + i));
                if (op_of(c)->out[1].value != SL_NONE) {
                    compare(sum, x, out_at(c, result, 1, row, at + i));
                }
            }
        }
    }
}

static void check_layernorm(const kt_case *c, const kt_result *result, error_sum *sum) {
    const sl_op_layernorm *norm = &op_of(c)->u.layernorm;
    const float *weight = weight_of(c, norm->weight), *bias = weight_of(c, norm->bias);
    for (int32_t row = 0; row < c->rows; row++) {
        double mean = 0, variance = 0;
        for (int32_t i = 0; i < norm->width; i++) {
            mean += (in_at(c, 0, row, i) + (has(c, 1) ? in_at(c, 1, row, i) : 0)) / norm->width;
        }
        for (int32_t i = 0; i < norm->width; i++) {
            const double x = in_at(c, 0, row, i) + (has(c, 1) ? in_at(c, 1, row, i) : 0);
            variance += (x - mean) * (x - mean) / norm->width;
        }
        for (int32_t i = 0; i < norm->width; i++) {
            const double x = in_at(c, 0, row, i) + (has(c, 1) ? in_at(c, 1, row, i) : 0);
            const double y = (x - mean) / sqrt(variance + (double)norm->epsilon) * (double)weight[i];
            compare(sum, y + (bias ? (double)bias[i] : 0), out_at(c, result, 0, row, i));
            if (op_of(c)->out[1].value != SL_NONE) {
                compare(sum, x, out_at(c, result, 1, row, i));
            }
        }
    }
}

static void check_q8_32_group(const float *x, sl_q8_32 row, int32_t group, error_sum *sum) {
    float largest = 0;
    bool finite = true;
    int32_t total = 0;
    for (int32_t i = 0; i < 32; i++) {
        finite = finite && isfinite(x[i]);
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    }
    const bool zero = !finite || largest < 0x1p-100f;
    const uint32_t scale = !finite ? 0x7fc00000u : zero ? 0 : sl_f32_bits(largest / 127.0f);
    for (int32_t i = 0; i < 32; i++) {
        const float factor = 127.0f / largest;
        const int32_t expected = zero ? 0 : (int32_t)rintf(x[i] * factor);
        total += expected;
        sum->wrong = sum->wrong || row.values[32 * group + i] != expected;
    }
    sum->wrong = sum->wrong || row.sums[group] != total || sl_f32_bits(row.scales[group]) != scale;
}

/* Whether no other of the 256 codes is nearer to x, and the even one of two was taken. */
static bool is_nearest_e4m3(double x, uint8_t code) {
    const double here = fabs((double)sl_e4m3_to_f32(code) - x);
    bool good = (code & 0x7f) != 0x7f && (x == 0 || signbit(x) == (code >> 7));
    for (int32_t other = 0; other < 256; other++) {
        if ((other & 0x7f) != 0x7f) {
            const double there = fabs((double)sl_e4m3_to_f32((uint8_t)other) - x);
            good = good && (here < there || (here == there && (code % 2 == 0 || other % 2 == 1)));
        }
    }
    return good;
}

/* One row of E4M3_128 or Q8_256; x has zeros behind its own columns. */
static void check_codes_row(const float *x, const uint8_t *codes, const sl_value *value, error_sum *sum) {
    const bool e4m3 = value->type == SL_VALUE_E4M3_128;
    const int32_t group = e4m3 ? 128 : 256, groups = (value->width + group - 1) / group;
    const float *scales = (const float *)(const void *)(codes + groups * group);
    const uint8_t *end = codes + sl_value_row_bytes(value->type, value->width);
    for (int32_t g = 0; g < groups; g++) {
        float largest = 0;
        bool finite = true;
        for (int32_t i = group * g; i < group * (g + 1) && i < value->width; i++) {
            finite = finite && isfinite(x[i]);
            largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
        }
        const bool zero = !finite || largest < 0x1p-100f;
        const float most = e4m3 ? 448.0f : 127.0f;
        const uint32_t scale = !finite ? 0x7fc00000u : zero ? 0 : sl_f32_bits(largest / most);
        sum->wrong = sum->wrong || sl_f32_bits(scales[g]) != scale;
        for (int32_t i = group * g; i < group * (g + 1); i++) {
            const float factor = most / largest, scaled = zero || i >= value->width ? 0 : x[i] * factor;
            const bool good = zero || i >= value->width ? codes[i] == 0
                              : e4m3                    ? is_nearest_e4m3((double)scaled, codes[i])
                                                        : (int8_t)codes[i] == (int32_t)rintf(scaled);
            sum->wrong = sum->wrong || !good;
        }
    }
    for (const uint8_t *at = (const uint8_t *)(scales + groups); at < end; at++) {
        sum->wrong = sum->wrong || *at != 0;
    }
}

static void check_quantize(const kt_case *c, const kt_result *result, error_sum *sum) {
    const sl_operand *in = &op_of(c)->in[0], *out = &op_of(c)->out[0];
    const int32_t x_width = c->program.values[in->value].width, width = c->program.values[out->value].width;
    float *x = kt_alloc((size_t)width, sizeof *x); /* with the zeros that are stored behind a row */
    for (int32_t row = 0; row < c->rows; row++) {
        memcpy(x, (const float *)c->inputs[in->value] + (int64_t)row * x_width + in->column,
               (size_t)op_of(c)->u.quantize.width * sizeof *x);
        if (c->program.values[out->value].type == SL_VALUE_Q8_32) {
            for (int32_t g = 0; g < width / 32; g++) {
                check_q8_32_group(x + 32 * g,
                                  sl_q8_32_row(result->values[out->value], (uint64_t)width, (uint64_t)row), g,
                                  sum);
            }
            continue;
        }
        if (c->program.values[out->value].type != SL_VALUE_BF16) {
            const sl_value *value = &c->program.values[out->value];
            check_codes_row(x,
                            (const uint8_t *)result->values[out->value] +
                                row * (int64_t)sl_value_row_bytes(value->type, width),
                            value, sum);
            continue;
        }
        const uint16_t *y = (const uint16_t *)result->values[out->value] + (int64_t)row * width;
        for (int32_t i = 0; i < width; i++) {
            /* No neighbour is nearer. */
            const double here = fabs((double)sl_bf16_to_f32(y[i]) - (double)x[i]);
            const double above = fabs((double)sl_bf16_to_f32((uint16_t)(y[i] + 1)) - (double)x[i]);
            const double below = fabs((double)sl_bf16_to_f32((uint16_t)(y[i] - 1)) - (double)x[i]);
            const bool tie = here == above || here == below;
            const bool good = isfinite(x[i]) ? here <= above && here <= below && (!tie || y[i] % 2 == 0)
                              : isnan(x[i])  ? isnan(sl_bf16_to_f32(y[i]))
                                             : sl_bf16_to_f32(y[i]) == x[i];
            sum->wrong = sum->wrong || !(good || (x[i] == 0 && y[i] % 0x8000 == 0));
        }
    }
    free(x);
}

/* Element `i` of the head at column `at`, turned. */
static double turned_at(const kt_case *c, int32_t row, int32_t at, int32_t i, int32_t position) {
    const sl_op_rope *rope = &op_of(c)->u.rope;
    const int32_t half = rope->dims / 2;
    if (i >= rope->dims) { /* does not rotate */
        return in_at(c, 0, row, at + i);
    }
    const bool halves = rope->layout == SL_ROPE_HALVES;
    const int32_t pair = halves ? i % half : i / 2;
    const bool second = halves ? i >= half : i % 2 == 1;
    const int32_t other = halves ? (second ? i - half : i + half) : i ^ 1;
    const double angle = (double)position * (double)weight_of(c, rope->frequencies)[pair];
    const double y = in_at(c, 0, row, at + i) * cos(angle) +
                     in_at(c, 0, row, at + other) * (second ? sin(angle) : -sin(angle));
    return y * (double)rope->magnitude;
}

static void check_rope(const kt_case *c, const kt_result *result, error_sum *sum) {
    const sl_op_rope *rope = &op_of(c)->u.rope;
    const sl_rope_temperature *heat = &rope->temperature;
    for (int32_t s = 0, row = 0; s < c->span_count; s++) {
        for (int32_t position = c->position_base; position < c->position_base + c->span_rows[s];
             position++, row++) {
            const double periods =
                heat->width > 0 ? floor(((double)position + heat->offset) / heat->length) : 0;
            const double factor = 1 + (double)heat->scale * log(1 + periods);
            for (int32_t h = 0; h < rope->heads; h++) {
                for (int32_t i = 0; i < rope->stride; i++) {
                    const double y = turned_at(c, row, h * rope->stride, i, position);
                    compare(sum, i < heat->width ? y * factor : y,
                            out_at(c, result, 0, row, h * rope->stride + i));
                }
            }
        }
    }
}

static void check_embed(const kt_case *c, const kt_result *result, error_sum *sum) {
    const sl_weight *table = &c->program.weights[op_of(c)->u.embed.weight];
    float *values = decode_all(table);
    for (int32_t s = 0, row = 0; s < c->span_count; s++) {
        for (int32_t r = 0; r < c->span_rows[s]; r++, row++) {
            const sl_op_embed *embed = &op_of(c)->u.embed;
            const int64_t token = c->last_tokens ? 7 * s + 3 : c->tokens[row];
            const int64_t index = embed->source == SL_EMBED_TOKEN      ? token
                                  : embed->source == SL_EMBED_POSITION ? c->position_base + r + embed->offset
                                                                       : 0;
            for (int32_t i = 0; i < table->columns; i++) {
                const double value = index < table->rows ? (double)values[index * table->columns + i] : 0;
                compare(sum, value * (double)embed->scale + (has(c, 0) ? in_at(c, 0, row, i) : 0),
                        out_at(c, result, 0, row, i));
            }
        }
    }
    free(values);
}

static double activated(const sl_op_activate *op, double x) {
    switch (op->function) {
    case SL_ACTIVATION_SILU:
        return x * sigmoid(x);
    case SL_ACTIVATION_GELU_TANH:
        return x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
    case SL_ACTIVATION_GELU:
        return x / 2 * erfc(-x / sqrt(2));
    case SL_ACTIVATION_RELU_SQUARED:
        return x <= 0 ? 0 : x * x;
    case SL_ACTIVATION_IDENTITY:
        return x;
    case SL_ACTIVATION_XIELU:
        return (double)op->beta * x + (x > 0
                                           ? (double)op->alpha * x * x
                                           : (double)op->negative * (expm1(fmin(x, (double)op->limit)) - x));
    default:
        return x > (double)op->limit ? (double)op->limit * sigmoid((double)op->alpha * (double)op->limit)
                                     : x * sigmoid((double)op->alpha * x);
    }
}

static void check_activate(const kt_case *c, const kt_result *result, error_sum *sum) {
    const sl_op_activate *op = &op_of(c)->u.activate;
    const double limit = (double)op->limit;
    for (int32_t row = 0; row < row_count(c, op_of(c)->out[0].value); row++) {
        for (int32_t i = 0; i < op->width; i++) {
            const int32_t used = c->program.experts_used;
            const double weight = has(c, 2) ? in_at(c, 2, row / used, row % used) : 1;
            double up = has(c, 1) ? weight * in_at(c, 1, row, i) : 1;
            if (op->function == SL_ACTIVATION_SWIGLU_OAI) {
                up = 1 + (up > limit ? limit : up < -limit ? -limit : up);
            }
            compare(sum, activated(op, weight * in_at(c, 0, row, i)) * up, out_at(c, result, 0, row, i));
        }
    }
}

static void check_gather(const kt_case *c, const kt_result *result, error_sum *sum) {
    for (int32_t o = 0; o < c->output_count; o++) {
        for (int32_t i = 0; i < op_of(c)->u.gather.width; i++) {
            sum->wrong =
                sum->wrong || in_at(c, 0, c->outputs[o].row, i) != (double)out_at(c, result, 0, o, i);
        }
    }
}

/* And of a rank that is alone. */
static void check_transfer(const kt_case *c, const kt_result *result, error_sum *sum) {
    const sl_op *op = op_of(c);
    const int32_t width = op->kind == SL_OP_ALL_REDUCE   ? op->u.all_reduce.width
                          : op->kind == SL_OP_ALL_GATHER ? op->u.all_gather.width
                                                         : op->u.transfer.width;
    for (int32_t row = 0; row < c->rows; row++) {
        for (int32_t i = 0; i < width; i++) {
            sum->wrong = sum->wrong || in_at(c, 0, row, i) != (double)out_at(c, result, 0, row, i);
        }
    }
}

static void check_softcap(const kt_case *c, const kt_result *result, error_sum *sum) {
    const double cap = op_of(c)->u.softcap.cap, scale = op_of(c)->u.softcap.scale;
    for (int32_t row = 0; row < c->output_count; row++) {
        for (int32_t i = 0; i < op_of(c)->u.softcap.width; i++) {
            const double x = in_at(c, 0, row, i) * scale;
            compare(sum, cap > 0 ? cap * tanh(x / cap) : x, out_at(c, result, 0, row, i));
        }
    }
}

/* ---- experts ---- */

static void check_schedule(const kt_case *c, const kt_result *result, const int32_t *ids, error_sum *sum) {
    const int32_t *list = result->values[c->schedule_value];
    const int32_t experts = c->program.experts, rows = c->rows * c->program.experts_used;
    int32_t at = 0;
    for (int32_t e = 0; e < experts; e++) {
        sum->wrong = sum->wrong || result->schedule[e] != at;
        for (int32_t row = 0; row < rows; row++) {
            if (ids[row] == e) {
                sum->wrong = sum->wrong || list[at] != row;
                at++;
            }
        }
    }
    sum->wrong = sum->wrong || result->schedule[experts] != at || at != rows;
}

/* What group `group` is chosen by. choosing: [experts]. */
static double group_score(const sl_op_router *router, const double *choosing, int32_t group) {
    const int32_t size = router->experts / router->groups;
    double best = -INFINITY, second = -INFINITY;
    for (int32_t e = group * size; e < (group + 1) * size; e++) {
        const double it = choosing[e];
        second = it > best ? best : it > second ? it : second;
        best = it > best ? it : best;
    }
    return router->group_by_best || size == 1 ? best : best + second;
}

/* Whether fewer than `groups_used` groups are before this one. */
static bool group_is_used(const sl_op_router *router, const double *choosing, int32_t group) {
    const double mine = group_score(router, choosing, group);
    int32_t before = 0;
    for (int32_t g = 0; g < router->groups; g++) {
        const double its = group_score(router, choosing, g);
        before += its > mine || (its == mine && g < group);
    }
    return before < router->groups_used;
}

static void check_router(const kt_case *c, const kt_result *result, error_sum *sum) {
    const sl_op_router *router = &op_of(c)->u.router;
    const int32_t *ids = result->values[op_of(c)->out[0].value];
    const int32_t size = router->experts / router->groups;
    const float *bias = weight_of(c, router->bias), *factors = weight_of(c, router->factors);
    double *p = kt_alloc((size_t)router->experts, sizeof *p);
    double *choosing = kt_alloc((size_t)router->experts, sizeof *choosing);
    bool *used = kt_alloc((size_t)router->groups, sizeof *used);
    for (int32_t row = 0; row < c->rows; row++) {
        double total = 0, kept = (double)router->epsilon;
        for (int32_t e = 0; e < router->experts; e++) {
            total += exp(in_at(c, 0, row, e));
        }
        for (int32_t e = 0; e < router->experts; e++) {
            const double x = in_at(c, 0, row, e);
            p[e] = router->kind == SL_ROUTER_SOFTMAX ? exp(x) / total : sigmoid(x);
            choosing[e] = p[e] + (bias ? (double)bias[e] : 0);
        }
        for (int32_t g = 0; g < router->groups; g++) {
            used[g] = group_is_used(router, choosing, g);
        }
        for (int32_t r = 0; r < router->used; r++) {
            kept += p[ids[row * router->used + r]];
        }
        kept = kept < (double)router->least_sum ? (double)router->least_sum : kept;
        for (int32_t r = 0; r < router->used; r++) {
            /* The expert of rank r is the one that exactly r others of its groups are before. */
            const int32_t id = ids[row * router->used + r];
            int32_t before = 0;
            for (int32_t e = 0; e < router->experts; e++) {
                before +=
                    used[e / size] && (choosing[e] > choosing[id] || (choosing[e] == choosing[id] && e < id));
            }
            sum->wrong = sum->wrong || before != r || !used[id / size];
            compare(sum,
                    p[id] / (router->normalise ? kept : 1) * (double)router->scale *
                        (factors ? (double)factors[id] : 1),
                    out_at(c, result, 1, row, r));
        }
    }
    check_schedule(c, result, ids, sum);
    free(p);
    free(choosing);
    free(used);
}

static void check_combine(const kt_case *c, const kt_result *result, error_sum *sum) {
    const sl_op_combine *combine = &op_of(c)->u.combine;
    for (int32_t row = 0; row < c->rows; row++) {
        for (int32_t i = 0; i < combine->width; i++) {
            double y = has(c, 2) ? in_at(c, 2, row, i) : 0;
            for (int32_t r = 0; r < combine->used; r++) {
                y += (has(c, 1) ? in_at(c, 1, row, r) : 1) * in_at(c, 0, (int64_t)row * combine->used + r, i);
            }
            if (has(c, 3)) {
                y += in_at(c, 3, row, i) * (has(c, 4) ? sigmoid(in_at(c, 4, row, 0)) : 1);
            }
            compare(sum, y, out_at(c, result, 0, row, i));
        }
    }
}

/* ---- cache ---- */

/* What a vector is after it was in the cache. */
static void through_cache(sl_qtype type, const float *x, float *y, int32_t size) {
    unsigned char blocks[4096];
    sl_qtype_get(type)->encode(x, blocks, (uint64_t)size);
    sl_qtype_get(type)->decode(blocks, y, (uint64_t)size);
}

/* The cache write before the op under test, or the op itself. */
static const sl_op *write_of(const kt_case *c) {
    return &c->program.ops[1];
}

static const float *kv_at(const kt_case *c, int index, int64_t row, int32_t head, int32_t size) {
    const sl_operand *operand = &write_of(c)->in[index];
    return (const float *)c->inputs[operand->value] + row * c->program.values[operand->value].width +
           operand->column + head * size;
}

/* The whole pool: what was written where, and the pattern everywhere else. Pages are dealt out in order of
 * group, sequence and index. */
static void check_cache_write(const kt_case *c, const kt_result *result, error_sum *sum) {
    const sl_cache_place place = write_of(c)->u.cache_write.place;
    const sl_qtype_info *type = sl_qtype_get(c->cache_type);
    unsigned char *expected = kt_alloc(result->cache_bytes, 1);
    uint64_t key_bytes = 0, value_bytes = 0, base = 0;
    memset(expected, 0xA5, result->cache_bytes);
    int32_t longest = 0, page = 0;
    for (int32_t s = 0; s < c->span_count; s++) {
        longest = c->span_rows[s] > longest ? c->span_rows[s] : longest;
    }
    for (int32_t g = 0; g <= place.group; g++) {
        const sl_cache_group *group = &c->program.groups[g];
        const int32_t pages = c->span_count * sl_table_width(longest + c->position_base + 1) + 12;
        sl_qtype_bytes(c->cache_type, (uint64_t)group->key_size, &key_bytes);
        sl_qtype_bytes(c->cache_type, group->values_are_keys ? 0 : (uint64_t)group->value_size, &value_bytes);
        if (g < place.group) {
            base += ((uint64_t)pages * (uint64_t)(group->layers * group->kv_heads * 64) *
                         (key_bytes + value_bytes) +
                     63) /
                    64 * 64;
        }
    }
    const sl_cache_group *group = &c->program.groups[place.group];
    const uint64_t layer_bytes = (uint64_t)group->kv_heads * 64 * (key_bytes + value_bytes);
    for (int32_t s = 0, row = 0; s < c->span_count; s++) {
        for (int32_t i = 0; i < c->span_rows[s]; i++, row++) {
            unsigned char *at = expected + base +
                                (uint64_t)(page + i / 64) * (uint64_t)group->layers * layer_bytes +
                                (uint64_t)place.layer * layer_bytes;
            for (int32_t h = 0; h < group->kv_heads; h++) {
                type->encode(kv_at(c, 0, row, h, group->key_size),
                             at + (uint64_t)(h * 64 + i % 64) * key_bytes, (uint64_t)group->key_size);
                if (!group->values_are_keys) {
                    type->encode(kv_at(c, 1, row, h, group->value_size),
                                 at + (uint64_t)group->kv_heads * 64 * key_bytes +
                                     (uint64_t)(h * 64 + i % 64) * value_bytes,
                                 (uint64_t)group->value_size);
                }
            }
        }
        page += (c->span_rows[s] + 63) / 64;
    }
    sum->wrong = memcmp(expected, result->cache, result->cache_bytes) != 0;
    free(expected);
}

/* What the row in front left, and zeros for the first of a sequence. */
static void check_recall(const kt_case *c, const kt_result *result, error_sum *sum) {
    const sl_cache_group *group = &c->program.groups[op_of(c)->u.recall.place.group];
    float *y = kt_alloc((size_t)group->key_size, sizeof *y);
    for (int32_t s = 0, row = 0; s < c->span_count; s++) {
        for (int32_t i = 0; i < c->span_rows[s]; i++, row++) {
            for (int32_t h = 0; h < group->kv_heads; h++) {
                memset(y, 0, (size_t)group->key_size * sizeof *y);
                if (i > 0) {
                    through_cache(c->cache_type, kv_at(c, 0, row - 1, h, group->key_size), y,
                                  group->key_size);
                }
                for (int32_t k = 0; k < group->key_size; k++) {
                    const float got = (float)out_at(c, result, 0, row, h * group->key_size + k);
                    sum->wrong = sum->wrong || memcmp(&got, &y[k], sizeof got) != 0;
                }
            }
        }
    }
    free(y);
}

/* A sequence's keys and values of one key head, as the cache gives them back. */
typedef struct cached_head {
    int32_t start, rows; /* the sequence's first row, and how many it has */
    const float *k, *v;  /* [rows][key_size], [rows][value_size] */
} cached_head;

/* Query head `head` of row `index` of the sequence. */
static void attend(const kt_case *c, const kt_result *result, const cached_head *cached, int32_t index,
                   int32_t head, error_sum *sum) {
    const sl_op_attention *attention = &op_of(c)->u.attention;
    const sl_cache_group *group = &c->program.groups[attention->place.group];
    const float *sinks = weight_of(c, attention->sinks);
    const float *k = cached->k, *v = cached->v;
    const int32_t row = cached->start + index,
                  behind = group->window && index >= group->window ? index - group->window + 1 : 0,
                  seen = group->chunked ? index / group->window * group->window : behind;
    const int32_t first = seen > attention->first ? seen : attention->first;
    int32_t last = index;
    if (attention->both_sides) {
        const bool all = !group->window || cached->rows - index <= group->window;
        last = all ? cached->rows - 1 : index + group->window - 1;
    }
    double *scores = kt_alloc((size_t)last + 1, sizeof *scores);
    double *q = kt_alloc((size_t)group->key_size, sizeof *q);
    double *sums = kt_alloc((size_t)group->value_size, sizeof *sums);
    double largest = sinks ? sinks[head] : -INFINITY, total = 0;
    for (int32_t i = 0; i < group->key_size; i++) {
        q[i] = in_at(c, 0, row, head * attention->q_stride + i);
    }
    for (int32_t j = first; j <= last; j++) {
        scores[j] = dot(k + j * group->key_size, q, group->key_size) * (double)attention->scale;
        if (attention->softcap > 0) {
            scores[j] = (double)attention->softcap * tanh(scores[j] / (double)attention->softcap);
        }
        largest = scores[j] > largest ? scores[j] : largest;
    }
    total = sinks ? exp((double)sinks[head] - largest) : 0;
    for (int32_t j = first; j <= last; j++) {
        scores[j] = exp(scores[j] - largest);
        total += scores[j];
    }
    for (int32_t j = first; j <= last; j++) {
        const double weight = scores[j] / total;
        for (int32_t i = 0; i < group->value_size; i++) {
            sums[i] += weight * (double)v[j * group->value_size + i];
        }
    }
    for (int32_t i = 0; i < group->value_size; i++) {
        const double gate = has(c, 1) ? sigmoid(in_at(c, 1, row, head * attention->gate_stride + i)) : 1;
        compare(sum, sums[i] * gate, out_at(c, result, 0, row, head * group->value_size + i));
    }
    free(sums);
    free(q);
    free(scores);
}

static void check_attention(const kt_case *c, const kt_result *result, error_sum *sum) {
    const sl_op_attention *attention = &op_of(c)->u.attention;
    const sl_cache_group *group = &c->program.groups[attention->place.group];
    const int32_t ratio = attention->heads / group->kv_heads;
    for (int32_t s = 0, start = 0; s < c->span_count; start += c->span_rows[s++]) {
        for (int32_t h = 0; h < group->kv_heads; h++) {
            float *k = kt_alloc((size_t)(c->span_rows[s] * group->key_size), sizeof *k);
            float *v = kt_alloc((size_t)(c->span_rows[s] * group->value_size), sizeof *v);
            for (int32_t i = 0; i < c->span_rows[s]; i++) {
                through_cache(c->cache_type, kv_at(c, 0, start + i, h, group->key_size),
                              k + i * group->key_size, group->key_size);
                if (group->values_are_keys) {
                    memcpy(v + i * group->value_size, k + i * group->key_size,
                           (size_t)group->value_size * sizeof *v);
                } else {
                    through_cache(c->cache_type, kv_at(c, 1, start + i, h, group->value_size),
                                  v + i * group->value_size, group->value_size);
                }
            }
            const cached_head cached = {start, c->span_rows[s], k, v};
            for (int32_t i = 0; i < c->span_rows[s]; i++) {
                for (int32_t q = h * ratio; q < (h + 1) * ratio; q++) {
                    attend(c, result, &cached, i, q, sum);
                }
            }
            free(k);
            free(v);
        }
    }
}

/* ---- gated delta net ---- */

static void check_conv(const kt_case *c, const kt_result *result, error_sum *sum) {
    const sl_op_conv *conv = &op_of(c)->u.conv;
    const sl_state_layer *shape = &c->program.states[conv->state];
    const float *weight = weight_of(c, conv->weight);
    const float *bias = conv->bias == SL_NONE ? NULL : weight_of(c, conv->bias);
    for (int32_t s = 0, start = 0; s < c->span_count; start += c->span_rows[s++]) {
        for (int32_t i = 0; i < c->span_rows[s]; i++) {
            for (int32_t channel = 0; channel < shape->channels; channel++) {
                double y = bias ? (double)bias[channel] : 0;
                for (int32_t back = 0; back < shape->taps && back <= i; back++) {
                    y += (double)weight[channel * shape->taps + shape->taps - 1 - back] *
                         in_at(c, 0, start + i - back, channel);
                }
                y *= conv->function == SL_ACTIVATION_SILU ? sigmoid(y) : 1;
                compare(sum, y, out_at(c, result, 0, start + i, channel));
            }
        }
    }
}

static void normalise(const kt_case *c, int32_t row, int32_t column, int32_t size, double *y) {
    double squares = 1e-6;
    for (int32_t i = 0; i < size; i++) {
        squares += in_at(c, 0, row, column + i) * in_at(c, 0, row, column + i);
    }
    for (int32_t i = 0; i < size; i++) {
        y[i] = in_at(c, 0, row, column + i) / sqrt(squares);
    }
}

static void scan_head(const kt_case *c, const kt_result *result, int32_t start, int32_t rows, int32_t head,
                      error_sum *sum) {
    const sl_op_delta_scan *scan = &op_of(c)->u.delta_scan;
    const sl_state_layer *shape = &c->program.states[scan->state];
    const int32_t dk = shape->key_size, dv = shape->value_size;
    const int32_t key_head =
        scan->keys_cycle ? head % scan->key_heads : head / (scan->value_heads / scan->key_heads);
    double *state = kt_alloc((size_t)(dk * dv), sizeof *state), *q = kt_alloc((size_t)dk, sizeof *q);
    double *k = kt_alloc((size_t)dk, sizeof *k);
    const double a_log = weight_of(c, scan->a_log)[head], dt_bias = weight_of(c, scan->dt_bias)[head];
    for (int32_t row = start; row < start + rows; row++) {
        normalise(c, row, key_head * dk, dk, q);
        normalise(c, row, (scan->key_heads + key_head) * dk, dk, k);
        const double rate = scan->decay_is_negated ? a_log : -exp(a_log);
        const double decay = exp(rate * log1p(exp(in_at(c, 1, row, head) + dt_bias)));
        const double beta = sigmoid(in_at(c, 2, row, head));
        for (int32_t j = 0; j < dv; j++) {
            double read = 0, y = 0;
            for (int32_t i = 0; i < dk; i++) {
                read += decay * state[i * dv + j] * k[i];
            }
            const double v = in_at(c, 0, row, 2 * scan->key_heads * dk + head * dv + j);
            for (int32_t i = 0; i < dk; i++) {
                state[i * dv + j] = decay * state[i * dv + j] + k[i] * beta * (v - read);
                y += state[i * dv + j] * q[i] / sqrt(dk);
            }
            compare(sum, y, out_at(c, result, 0, row, head * dv + j));
        }
    }
    free(state);
    free(q);
    free(k);
}

static void check_scan(const kt_case *c, const kt_result *result, error_sum *sum) {
    for (int32_t s = 0, start = 0; s < c->span_count; start += c->span_rows[s++]) {
        for (int32_t head = 0; head < op_of(c)->u.delta_scan.value_heads; head++) {
            scan_head(c, result, start, c->span_rows[s], head, sum);
        }
    }
}

/* ---- Mamba2's scan ---- */

static void ssm_head(const kt_case *c, const kt_result *result, int32_t start, int32_t rows, int32_t head,
                     error_sum *sum) {
    const sl_op_ssm_scan *scan = &op_of(c)->u.ssm_scan;
    const sl_state_layer *shape = &c->program.states[scan->state];
    const int32_t keys = shape->key_size, size = shape->value_size;
    const int32_t write = scan->heads * size + head / (scan->heads / scan->groups) * keys;
    const int32_t read = write + scan->groups * keys;
    double *state = kt_alloc((size_t)(keys * size), sizeof *state);
    const double a_log = weight_of(c, scan->a_log)[head], bias = weight_of(c, scan->dt_bias)[head];
    const double rate = scan->decay_is_negated ? a_log : -exp(a_log);
    for (int32_t row = start; row < start + rows; row++) {
        const double wanted = log1p(exp(in_at(c, 1, row, head) + bias));
        const double step = fmin(fmax(wanted, (double)scan->step_least), (double)scan->step_most);
        for (int32_t j = 0; j < size; j++) {
            const double x = in_at(c, 0, row, head * size + j);
            double y = (double)weight_of(c, scan->skip)[head] * x;
            for (int32_t i = 0; i < keys; i++) {
                double *s = &state[i * size + j];
                *s = exp(rate * step) * *s + step * x * in_at(c, 0, row, write + i);
                y += *s * in_at(c, 0, row, read + i);
            }
            compare(sum, y, out_at(c, result, 0, row, head * size + j));
        }
    }
    free(state);
}

static void check_ssm(const kt_case *c, const kt_result *result, error_sum *sum) {
    for (int32_t s = 0, start = 0; s < c->span_count; start += c->span_rows[s++]) {
        for (int32_t head = 0; head < op_of(c)->u.ssm_scan.heads; head++) {
            ssm_head(c, result, start, c->span_rows[s], head, sum);
        }
    }
}

/* ---- sampling: sorts, which no kernel needs to ---- */

typedef struct token {
    double logit, p, surprise;
    int32_t id;
} token;

static int by_logit(const void *a, const void *b) {
    const token *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit ? 1 : -1) : x->id - y->id;
}

static int by_surprise(const void *a, const void *b) {
    const token *x = a, *y = b;
    return x->surprise != y->surprise ? (x->surprise < y->surprise ? -1 : 1) : x->id - y->id;
}

static int by_id(const void *a, const void *b) {
    return ((const token *)a)->id - ((const token *)b)->id;
}

/* Random123's philox4x32-10, as its paper writes it: rounds of two multiplications and a permutation. */
static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t result[4]) {
    uint32_t r0 = counter[0], r1 = counter[1], r2 = counter[2], r3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++, k0 += 2654435769u, k1 += 3144134277u) {
        const uint64_t p0 = 3528531795ull * r0, p1 = 3449720151ull * r2;
        r0 = (uint32_t)(p1 >> 32) ^ r1 ^ k0;
        r1 = (uint32_t)p1;
        r2 = (uint32_t)(p0 >> 32) ^ r3 ^ k1;
        r3 = (uint32_t)p0;
    }
    result[0] = r0, result[1] = r1, result[2] = r2, result[3] = r3;
}

/* In f32, as the type of a logit is: order and ties depend on it. */
static float adjusted(const kt_case *c, const sl_step_output *output, int32_t id, float logit) {
    const sl_adjustment *a = c->adjustments + output->adjustment_first;
    for (int32_t i = 0; i < output->adjustment_count; i++) {
        if (a[i].token == id) {
            logit += a[i].before;
            logit = logit > 0 ? logit / a[i].repetition : logit * a[i].repetition;
            logit += a[i].after;
            logit = isnan(logit) ? -INFINITY : logit;
        }
    }
    return logit;
}

/* Bit id % 32 of word id / 32, which is bit id of a row of bytes. */
static bool in_mask(const kt_case *c, const sl_step_output *output, int32_t id) {
    const size_t bytes = (size_t)sl_mask_words(c->program.vocabulary) * 4;
    if (output->mask == SL_NONE) {
        return true;
    }
    const unsigned char *mask = (const unsigned char *)c->masks + (size_t)output->mask * bytes;
    return mask[id / 8] >> id % 8 & 1;
}

/* Probabilities that add up to 1, of the logits over the temperature; returns the entropy. */
static double normalize(token *tokens, int32_t count, double temperature) {
    double largest = -INFINITY, total = 0, entropy = 0;
    for (int32_t i = 0; i < count; i++) {
        largest = fmax(largest, tokens[i].logit);
    }
    for (int32_t i = 0; i < count; i++) {
        tokens[i].p = exp((tokens[i].logit - largest) / temperature);
        total += tokens[i].p;
    }
    for (int32_t i = 0; i < count; i++) {
        tokens[i].p /= total;
        entropy -= tokens[i].p > 0 ? tokens[i].p * log(tokens[i].p) : 0;
    }
    return entropy;
}

/* Meister et al., "Locally Typical Sampling", equation 10: of tokens[count] the fewest whose probabilities
 * reach typical_p, by how far -ln p is from the entropy. Returns how many, and puts them first. */
static int32_t keep_typical(token *tokens, int32_t count, double entropy, double typical_p) {
    double sum = 0;
    int32_t kept = 0;
    for (int32_t i = 0; i < count; i++) {
        tokens[i].surprise = fabs(-log(tokens[i].p) - entropy);
    }
    qsort(tokens, (size_t)count, sizeof *tokens, by_surprise);
    while (kept < count && sum < typical_p) {
        sum += tokens[kept++].p;
    }
    qsort(tokens, (size_t)kept, sizeof *tokens, by_logit);
    return kept;
}

/* The first that together reach top_p. */
static int32_t keep_top_p(const token *tokens, int32_t count, double top_p) {
    double sum = 0;
    for (int32_t i = 0; i < count; i++) {
        sum += tokens[i].p;
        if (sum >= top_p) {
            return i + 1;
        }
    }
    return count;
}

/* Tang et al., "Top-n-sigma: Not All Logits Are You Need": the largest logit less n standard deviations. */
static int32_t keep_top_n_sigma(const token *tokens, int32_t count, double deviations) {
    double sum = 0, squares = 0;
    int32_t finite = 0;
    while (finite < count && tokens[finite].logit > -INFINITY) {
        sum += tokens[finite++].logit;
    }
    for (int32_t i = 0; i < finite; i++) {
        squares += (tokens[i].logit - sum / finite) * (tokens[i].logit - sum / finite);
    }
    while (tokens[count - 1].logit < tokens[0].logit - deviations * sqrt(squares / finite)) {
        count--;
    }
    return count;
}

/* text-generation-webui, pull request 6335: of those that reach the threshold only the last stays. */
static int32_t exclude_top_choices(token *tokens, int32_t count, double threshold) {
    int32_t choices = 0;
    while (choices < count && tokens[choices].p >= threshold) {
        choices++;
    }
    if (choices > 1) {
        memmove(tokens, tokens + choices - 1, (size_t)(count - choices + 1) * sizeof *tokens);
        count -= choices - 1;
    }
    return count;
}

/* llama.cpp's dynamic temperature (pull request 4972). */
static double temperature_of(const sl_sampler *s, const token *tokens, int32_t count, double entropy) {
    const double t = (double)s->temperature, range = (double)s->dynamic_range;
    int32_t finite = 0;
    while (finite < count && tokens[finite].logit > -INFINITY) {
        finite++;
    }
    if (range == 0 || finite < 2) {
        return t;
    }
    const double low = t > range ? t - range : 0;
    return fmax(1e-4, low + (t + range - low) * pow(entropy / log(finite), (double)s->dynamic_exponent));
}

/* tokens[count] are sorted, before and after; returns how many are left. */
static int32_t run_stage(const sl_sampler *s, int stage, double random, token *tokens, int32_t count,
                         double *temperature) {
    const double entropy = normalize(tokens, count, *temperature);
    switch (stage) {
    case SL_STAGE_TOP_N_SIGMA:
        return s->top_n_sigma > 0 ? keep_top_n_sigma(tokens, count, (double)s->top_n_sigma) : count;
    case SL_STAGE_TOP_K:
        return s->top_k > 0 && s->top_k < count ? s->top_k : count;
    case SL_STAGE_TYPICAL_P:
        return s->typical_p > 0 && s->typical_p < 1
                   ? keep_typical(tokens, count, entropy, (double)s->typical_p)
                   : count;
    case SL_STAGE_TOP_P:
        return s->top_p < 1 ? keep_top_p(tokens, count, (double)s->top_p) : count;
    case SL_STAGE_MIN_P:
        while (tokens[count - 1].p < (double)s->min_p * tokens[0].p) {
            count--;
        }
        return count;
    case SL_STAGE_XTC:
        return random < (double)s->xtc_probability
                   ? exclude_top_choices(tokens, count, (double)s->xtc_threshold)
                   : count;
    default:
        *temperature = temperature_of(s, tokens, count, entropy);
        return count;
    }
}

static int32_t sample(const kt_case *c, int32_t index, token *tokens) {
    const sl_step_output *output = &c->outputs[index];
    const sl_sampler *sampler = &output->sampler;
    int32_t count = op_of(c)->u.sample.vocabulary;
    bool numbers = true;
    for (int32_t id = 0; id < count; id++) {
        const float given = (float)in_at(c, 0, index, id);
        const bool may_come = in_mask(c, output, id);
        const float logit = may_come ? adjusted(c, output, id, given) : -INFINITY;
        numbers = numbers && (!may_come || !isnan(given));
        tokens[id] = (token){.logit = (double)logit, .id = id};
    }
    if (!numbers) {
        return SL_NO_TOKEN;
    }
    qsort(tokens, (size_t)count, sizeof *tokens, by_logit);
    if (!isfinite(tokens[0].logit)) {
        return tokens[0].logit > 0 ? SL_NO_TOKEN : SL_NO_TOKEN_LEFT;
    }
    if (sampler->temperature == 0) {
        return tokens[0].id;
    }
    double temperature = 1, sum = 0;
    uint32_t random[4];
    philox((const uint32_t[]){sampler->counter, 0, 0, 0},
           (const uint32_t[]){sampler->seed_low, sampler->seed_high}, random);
    for (int32_t i = 0; i < SL_SAMPLER_STAGES && sampler->order[i] != SL_STAGE_END; i++) {
        count = run_stage(sampler, sampler->order[i], (double)(random[1] >> 8) / 16777216.0, tokens, count,
                          &temperature);
    }
    normalize(tokens, count, temperature);
    qsort(tokens, (size_t)count, sizeof *tokens, by_id);
    const double target = (double)(random[0] >> 8) / 16777216.0;
    for (int32_t i = 0; i < count; i++) {
        sum += tokens[i].p;
        if (sum > target) {
            return tokens[i].id;
        }
    }
    return tokens[count - 1].id;
}

static void check_sample(const kt_case *c, const kt_result *result, error_sum *sum) {
    const int32_t *chosen = result->values[op_of(c)->out[0].value];
    token *tokens = kt_alloc((size_t)op_of(c)->u.sample.vocabulary, sizeof *tokens);
    uint32_t random[4];
    /* A published vector of Random123 (kat_vectors). */
    philox((const uint32_t[]){0, 0, 0, 0}, (const uint32_t[]){0, 0}, random);
    sum->wrong = random[0] != 0x6627e8d5u || random[3] != 0x9b00dbd8u;
    for (int32_t s = 0, row = 0; s < c->span_count; s++) {
        for (int32_t i = 0; i < c->span_rows[s]; i++, row++) {
            sum->wrong = sum->wrong || chosen[row] != sample(c, row, tokens);
        }
        sum->wrong = sum->wrong || result->last_tokens[s] != (chosen[row - 1] < 0 ? 0 : chosen[row - 1]);
    }
    free(tokens);
}

/* The scores of a key head's keys in front of the window. */
static double *score_keys(const kt_case *c, const float *k, int32_t kv_head) {
    const sl_op_attention *attention = &op_of(c)->u.compact.attention;
    const sl_cache_group *group = &c->program.groups[attention->place.group];
    const float *sinks = weight_of(c, attention->sinks);
    const int32_t ratio = attention->heads / group->kv_heads;
    double *scores = kt_alloc((size_t)c->rows, sizeof *scores), *own = kt_alloc((size_t)c->rows, sizeof *own);
    for (int32_t row = c->rows - c->window; row < c->rows; row++) {
        for (int32_t head = kv_head * ratio; head < (kv_head + 1) * ratio; head++) {
            double total = sinks ? exp((double)sinks[head]) : 0;
            for (int32_t j = 0; j <= row; j++) {
                double s = 0;
                for (int32_t i = 0; i < group->key_size; i++) {
                    s +=
                        in_at(c, 0, row, head * attention->q_stride + i) * (double)k[j * group->key_size + i];
                }
                s *= attention->scale;
                own[j] = attention->softcap > 0
                             ? (double)attention->softcap * tanh(s / (double)attention->softcap)
                             : s;
                total += exp(own[j]);
            }
            for (int32_t j = 0; j < c->rows - c->window; j++) {
                scores[j] += exp(own[j]) / total;
            }
        }
    }
    free(own);
    return scores;
}

/* Is key j kept, of `count` in front of the window? So many before it, and behind it, are better. */
static bool is_kept(const double *scores, int32_t count, int32_t reach, int32_t wanted, int32_t j) {
    int32_t better = 0;
    double best = 0, other;
    for (int32_t i = 0; i < count; i++) {
        best = i >= j - reach && i <= j + reach && scores[i] > best ? scores[i] : best;
    }
    for (int32_t i = 0; i < count; i++) {
        other = 0;
        for (int32_t n = i - reach; n <= i + reach; n++) {
            other = n >= 0 && n < count && scores[n] > other ? scores[n] : other;
        }
        better += other > best || (other == best && i < j);
    }
    return better < wanted;
}

/* All bytes of the pages: those of kept tokens, and the pattern everywhere else. */
static void check_compact(const kt_case *c, const kt_result *result, error_sum *sum) {
    const sl_op_compact *compact = &op_of(c)->u.compact;
    const sl_cache_group *group = &c->program.groups[compact->attention.place.group];
    const sl_qtype_info *type = sl_qtype_get(c->cache_type);
    unsigned char *expected = kt_alloc(result->kept_bytes, 1);
    const int32_t all = compact->keep < c->rows ? compact->keep : c->rows, count = c->rows - c->window;
    uint64_t key_bytes = 0, value_bytes = 0;
    memset(expected, 0xA5, result->kept_bytes);
    sl_qtype_bytes(c->cache_type, (uint64_t)group->key_size, &key_bytes);
    sl_qtype_bytes(c->cache_type, group->values_are_keys ? 0 : (uint64_t)group->value_size, &value_bytes);
    const uint64_t layer_bytes = (uint64_t)group->kv_heads * 64 * (key_bytes + value_bytes);
    for (int32_t h = 0; h < group->kv_heads; h++) {
        float *k = kt_alloc((size_t)(c->rows * group->key_size), sizeof *k);
        for (int32_t j = 0; j < c->rows; j++) {
            through_cache(c->cache_type, kv_at(c, 0, j, h, group->key_size), k + j * group->key_size,
                          group->key_size);
        }
        double *scores = score_keys(c, k, h);
        for (int32_t j = 0, to = 0; j < c->rows; j++) {
            if (j < count && !is_kept(scores, count, compact->pool / 2, all - c->window, j)) {
                continue;
            }
            unsigned char *at = expected + (uint64_t)(to / 64) * (uint64_t)group->layers * layer_bytes +
                                (uint64_t)compact->attention.place.layer * layer_bytes;
            type->encode(kv_at(c, 0, j, h, group->key_size), at + (uint64_t)(h * 64 + to % 64) * key_bytes,
                         (uint64_t)group->key_size);
            if (!group->values_are_keys) {
                type->encode(kv_at(c, 1, j, h, group->value_size),
                             at + (uint64_t)group->kv_heads * 64 * key_bytes +
                                 (uint64_t)(h * 64 + to % 64) * value_bytes,
                             (uint64_t)group->value_size);
            }
            to++;
        }
        free(scores);
        free(k);
    }
    sum->wrong = memcmp(expected, result->kept, result->kept_bytes) != 0;
    free(expected);
}

typedef void (*check_function)(const kt_case *c, const kt_result *result, error_sum *sum);
static const check_function checks[SL_OP_COUNT] = {
    [SL_OP_EMBED] = check_embed,
    [SL_OP_RMSNORM] = check_rmsnorm,
    [SL_OP_LAYERNORM] = check_layernorm,
    [SL_OP_QUANTIZE] = check_quantize,
    [SL_OP_LINEAR] = check_linear,
    [SL_OP_ROPE] = check_rope,
    [SL_OP_HEAD_LINEAR] = check_head_linear,
    [SL_OP_BEGIN] = check_cache_write,
    [SL_OP_CACHE_WRITE] = check_cache_write,
    [SL_OP_RECALL] = check_recall,
    [SL_OP_ATTENTION] = check_attention,
    [SL_OP_COMPACT] = check_compact,
    [SL_OP_ROUTER] = check_router,
    [SL_OP_COMBINE] = check_combine,
    [SL_OP_ACTIVATE] = check_activate,
    [SL_OP_CONV] = check_conv,
    [SL_OP_DELTA_SCAN] = check_scan,
    [SL_OP_SSM_SCAN] = check_ssm,
    [SL_OP_GATHER] = check_gather,
    [SL_OP_SOFTCAP] = check_softcap,
    [SL_OP_TRANSFER] = check_transfer,
    [SL_OP_ALL_REDUCE] = check_transfer,
    [SL_OP_ALL_GATHER] = check_transfer,
    [SL_OP_SAMPLE] = check_sample,
};

double kt_reference_error(const kt_case *c, const kt_result *result) {
    error_sum sum = {0};
    if (!checks[op_of(c)->kind]) {
        return -1;
    }
    checks[op_of(c)->kind](c, result, &sum);
    return result_of(&sum);
}
