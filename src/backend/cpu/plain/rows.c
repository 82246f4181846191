/* Ops that treat each row by itself: threads share the rows. */
#include "backend/cpu/plain/plain.h"
#include "program/temperature.h"
#include "quant/convert.h"

#include <math.h>
#include <string.h>

static float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static float silu(float x) {
    return x / (1.0f + expf(-x));
}

/* Hugging Face's gelu_pytorch_tanh. */
static float gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

static int32_t embedded_row(const sl_cpu_context *context, const sl_cpu_op *op, const sl_step_row *row) {
    switch (op->op->u.embed.source) {
    case SL_EMBED_POSITION:
        return row->position + op->op->u.embed.offset;
    case SL_EMBED_FIRST:
        return 0;
    default:
        return row->source == SL_ROW_LAST_TOKEN ? context->last_tokens[context->spans[row->span].slot]
                                                : row->token;
    }
}

uint64_t sl_plain_embed_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_weight *table = &query->program->weights[query->op->u.embed.weight];
    return query->op->in[0].value == SL_NONE
               ? 0
               : sl_cpu_scratch_bytes(query, (uint64_t)table->columns * sizeof(float));
}

/* A token outside the table gives zeros: the step's maker checks ids, and nothing is read outside in any
 * case. */
void sl_plain_embed(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const sl_cpu_weight *table = &op->weights[0];
    const sl_qtype_info *type = sl_qtype_get(table->type);
    float *scratch = op->in[0].data ? sl_cpu_scratch(op, thread, threads) : NULL;
    int32_t first, last;
    sl_cpu_share(context->counts[SL_ROWS_STEP], thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        const sl_step_row *source = &context->rows[row];
        float *y = sl_cpu_f32(&op->out[0], row);
        const float *residual = op->in[0].data ? sl_cpu_f32(&op->in[0], row) : NULL;
        const int32_t index = embedded_row(context, op, source);
        float *values = residual ? scratch : y; /* the residual may be y */
        if (index < 0 || index >= table->rows) {
            memset(values, 0, (size_t)table->columns * sizeof *values);
        } else {
            type->decode(table->data + (uint64_t)index * table->row_bytes, values, (uint64_t)table->columns);
        }
        for (int32_t i = 0; i < table->columns; i++) {
            const float value = values[i] * op->op->u.embed.scale;
            y[i] = residual ? value + residual[i] : value;
        }
    }
}

/* Class "f32x16": see sl_plain_dot. x, y, residual and sum may be the same memory, so the row with its
 * residual added is kept in `values`. A residual that is added before the norm is laid out like x, one added
 * after it like y. */
static void rmsnorm_row(const sl_cpu_op *op, int32_t row, float *values) {
    const sl_op_rmsnorm *norm = &op->op->u.rmsnorm;
    const float *weights = (const float *)(const void *)op->weights[0].data;
    const bool in_place = op->op->in[0].value == op->op->out[0].value;
    const int32_t y_stride = in_place ? norm->stride : norm->width;
    for (int32_t g = 0; g < norm->groups; g++) {
        const int32_t at = g * norm->stride;
        const float *weight = weights && norm->own_weights ? weights + g * norm->width : weights;
        const float *x = sl_cpu_f32(&op->in[0], row) + at;
        const float *residual = norm->residual != SL_RESIDUAL_NONE ? sl_cpu_f32(&op->in[1], row) : NULL;
        const float *gate = op->in[2].data ? sl_cpu_f32(&op->in[2], row) + g * norm->gate_stride : NULL;
        float *y = sl_cpu_f32(&op->out[0], row) + g * y_stride;
        float *sum = op->out[1].data ? sl_cpu_f32(&op->out[1], row) + at : NULL;
        const float *before = norm->residual == SL_RESIDUAL_BEFORE ? residual + at : NULL;
        const float *after = norm->residual == SL_RESIDUAL_AFTER ? residual + g * y_stride : NULL;
        for (int32_t i = 0; i < norm->width; i++) {
            const float own = x[i] * norm->x_factor;
            values[i] = before ? own + before[i] : own;
        }
        const float mean = sl_plain_dot(values, values, norm->width) / (float)norm->width;
        const float factor = 1.0f / sqrtf(mean + norm->epsilon);
        for (int32_t i = 0; i < norm->width; i++) {
            float result = values[i] * factor;
            if (weight) {
                result *= weight[i] + norm->weight_offset;
            }
            if (gate) {
                result *= silu(gate[i]);
            }
            if (after) {
                result += after[i];
            }
            result *= norm->y_factor;
            if (sum) {
                sum[i] = after ? result : values[i];
            }
            y[i] = result;
        }
    }
}

uint64_t sl_plain_rmsnorm_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    return sl_cpu_scratch_bytes(query, (uint64_t)query->op->u.rmsnorm.width * sizeof(float));
}

void sl_plain_rmsnorm(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    int32_t first, last;
    sl_cpu_share(sl_cpu_rows(context, &op->out[0]), thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        rmsnorm_row(op, row, sl_cpu_scratch(op, thread, threads));
    }
}

/* Class "f64": mean and variance in double, in the order of columns, in two passes. */
void sl_plain_layernorm(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const sl_op_layernorm *norm = &op->op->u.layernorm;
    const float *weight = (const float *)(const void *)op->weights[0].data;
    const float *bias = (const float *)(const void *)op->weights[1].data;
    float *values = sl_cpu_scratch(op, thread, threads);
    int32_t first, last;
    sl_cpu_share(sl_cpu_rows(context, &op->out[0]), thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        const float *x = sl_cpu_f32(&op->in[0], row);
        const float *residual = op->in[1].data ? sl_cpu_f32(&op->in[1], row) : NULL;
        float *y = sl_cpu_f32(&op->out[0], row);
        float *sum = op->out[1].data ? sl_cpu_f32(&op->out[1], row) : NULL;
        double total = 0, squares = 0;
        for (int32_t i = 0; i < norm->width; i++) {
            values[i] = residual ? x[i] + residual[i] : x[i];
            total += values[i];
        }
        const double mean = total / norm->width;
        for (int32_t i = 0; i < norm->width; i++) {
            squares += (values[i] - mean) * (values[i] - mean);
        }
        const double factor = 1 / sqrt(squares / norm->width + (double)norm->epsilon);
        for (int32_t i = 0; i < norm->width; i++) {
            const float normed = (float)((values[i] - mean) * factor) * weight[i];
            y[i] = bias ? normed + bias[i] : normed;
        }
        if (sum) {
            memcpy(sum, values, (size_t)norm->width * sizeof *sum);
        }
    }
}

uint64_t sl_plain_layernorm_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    return sl_cpu_scratch_bytes(query, (uint64_t)query->op->u.layernorm.width * sizeof(float));
}

void sl_plain_quantize(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const int32_t width = op->op->u.quantize.width;
    int32_t first, last;
    sl_cpu_share(sl_cpu_rows(context, &op->out[0]), thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        const float *x = sl_cpu_f32(&op->in[0], row);
        const int32_t stored = op->out[0].width;
        sl_codes codes;
        if (sl_value_codes(op->out[0].type, &codes)) {
            sl_codes_encode(codes, x, (uint64_t)width, (uint64_t)stored, sl_cpu_codes(&op->out[0], row));
            continue;
        }
        if (op->out[0].type == SL_VALUE_Q8_32) {
            const sl_q8_32 planes = sl_cpu_q8_32(&op->out[0], row);
            sl_q8_32_encode(x, planes, (uint64_t)width);
            for (int32_t i = width; i < stored; i++) {
                planes.values[i] = 0;
                planes.scales[i / SL_Q8_32_GROUP] = 0;
                planes.sums[i / SL_Q8_32_GROUP] = 0;
            }
            continue;
        }
        uint16_t *y = sl_cpu_bf16(&op->out[0], row);
        for (int32_t i = 0; i < stored; i++) {
            y[i] = i < width ? sl_f32_to_bf16(x[i]) : 0;
        }
    }
}

/* Class "f32": angle = position * frequency rounded to f32, then sine and cosine of that. */
void sl_plain_rope(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const sl_op_rope *rope = &op->op->u.rope;
    const float *frequencies = (const float *)(const void *)op->weights[0].data;
    const int32_t pairs = rope->dims / 2;
    const int32_t apart = rope->layout == SL_ROPE_HALVES ? pairs : 1;
    const int32_t step = rope->layout == SL_ROPE_HALVES ? 1 : 2;
    int32_t first, last;
    sl_cpu_share(context->counts[SL_ROWS_STEP], thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        float *x = sl_cpu_f32(&op->out[0], row);
        for (int32_t i = 0; i < pairs; i++) {
            const float angle = (float)context->rows[row].position * frequencies[i];
            const float cosine = cosf(angle) * rope->magnitude;
            const float sine = sinf(angle) * rope->magnitude;
            for (int32_t head = 0; head < rope->heads; head++) {
                float *pair = x + head * rope->stride + i * step;
                const float a = pair[0], b = pair[apart];
                pair[0] = a * cosine - b * sine;
                pair[apart] = a * sine + b * cosine;
            }
        }
        if (rope->temperature.width > 0) {
            const float factor = sl_rope_temperature_factor(&rope->temperature, context->rows[row].position);
            for (int32_t head = 0; head < rope->heads; head++) {
                for (int32_t i = 0; i < rope->temperature.width; i++) {
                    x[head * rope->stride + i] *= factor;
                }
            }
        }
    }
}

void sl_plain_combine(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const sl_op_combine *combine = &op->op->u.combine;
    const float *weights = op->in[1].data ? sl_cpu_f32(&op->in[1], 0) : NULL;
    int32_t first, last;
    sl_cpu_share(sl_cpu_rows(context, &op->out[0]), thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        const float *residual = op->in[2].data ? sl_cpu_f32(&op->in[2], row) : NULL;
        const float *shared = op->in[3].data ? sl_cpu_f32(&op->in[3], row) : NULL;
        const float shared_weight = op->in[4].data ? sigmoid(*sl_cpu_f32(&op->in[4], row)) : 1.0f;
        float *y = sl_cpu_f32(&op->out[0], row);
        for (int32_t i = 0; i < combine->width; i++) {
            float sum = 0;
            for (int32_t rank = 0; rank < combine->used; rank++) {
                const int32_t expert_row = row * combine->used + rank;
                const float x = sl_cpu_f32(&op->in[0], expert_row)[i];
                sum += weights ? weights[expert_row] * x : x;
            }
            if (shared) {
                sum += shared[i] * shared_weight;
            }
            y[i] = residual ? sum + residual[i] : sum;
        }
    }
}

static float activated(const sl_op_activate *activate, float gate) {
    switch (activate->function) {
    case SL_ACTIVATION_SILU:
        return silu(gate);
    case SL_ACTIVATION_GELU_TANH:
        return gelu_tanh(gate);
    case SL_ACTIVATION_GELU:
        return 0.5f * gate * (1.0f + erff(gate * 0.70710678f));
    case SL_ACTIVATION_RELU_SQUARED:
        return gate < 0 ? 0.0f : gate * gate;
    case SL_ACTIVATION_IDENTITY:
        return gate;
    case SL_ACTIVATION_XIELU: {
        const float bent = expm1f(gate > activate->limit ? activate->limit : gate) - gate;
        return gate > 0 ? (activate->alpha * gate + activate->beta) * gate
                        : activate->negative * bent + activate->beta * gate;
    }
    default: {
        const float clamped = gate > activate->limit ? activate->limit : gate; /* fminf would lose a NaN */
        return clamped * sigmoid(activate->alpha * clamped);
    }
    }
}

void sl_plain_activate(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const sl_op_activate *activate = &op->op->u.activate;
    int32_t first, last;
    sl_cpu_share(sl_cpu_rows(context, &op->out[0]), thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        const float *gate = sl_cpu_f32(&op->in[0], row);
        const float *up = op->in[1].data ? sl_cpu_f32(&op->in[1], row) : NULL;
        const float weight = op->in[2].data ? sl_cpu_f32(&op->in[2], 0)[row] : 1.0f;
        float *y = sl_cpu_f32(&op->out[0], row);
        for (int32_t i = 0; i < activate->width; i++) {
            float factor = up ? weight * up[i] : 1.0f;
            if (activate->function == SL_ACTIVATION_SWIGLU_OAI) {
                factor = factor < -activate->limit  ? 1.0f - activate->limit
                         : factor > activate->limit ? 1.0f + activate->limit
                                                    : factor + 1.0f;
            }
            y[i] = activated(activate, weight * gate[i]) * factor;
        }
    }
}

void sl_plain_gather(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    int32_t first, last;
    sl_cpu_share(context->counts[SL_ROWS_OUTPUT], thread, threads, &first, &last);
    for (int32_t i = first; i < last; i++) {
        memcpy(sl_cpu_f32(&op->out[0], i), sl_cpu_f32(&op->in[0], context->outputs[i].row),
               (size_t)op->op->u.gather.width * sizeof(float));
    }
}

void sl_plain_transfer(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    int32_t first, last;
    sl_cpu_share(sl_cpu_rows(context, &op->out[0]), thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        memcpy(sl_cpu_f32(&op->out[0], row), sl_cpu_f32(&op->in[0], row),
               (size_t)op->op->u.transfer.width * sizeof(float));
    }
}

void sl_plain_softcap(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const sl_op_softcap *softcap = &op->op->u.softcap;
    const int32_t rows = sl_cpu_rows(context, &op->out[0]);
    /* By columns as well as rows: the head has few rows and many columns. */
    const int32_t chunk = 4096, chunks = (softcap->width + chunk - 1) / chunk;
    int32_t first, last;
    sl_cpu_share(rows * chunks, thread, threads, &first, &last);
    for (int32_t unit = first; unit < last; unit++) {
        float *x = sl_cpu_f32(&op->out[0], unit / chunks);
        const int32_t from = unit % chunks * chunk;
        const int32_t to = from + chunk < softcap->width ? from + chunk : softcap->width;
        for (int32_t i = from; i < to; i++) {
            const float scaled = x[i] * softcap->scale;
            x[i] = softcap->cap > 0 ? softcap->cap * tanhf(scaled / softcap->cap) : scaled;
        }
    }
}
