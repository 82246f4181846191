/* The recurrent ops: the causal convolution, and the scan of a gated-delta-net layer. Both read the state
 * slot state_read (or zeros) and write their own part of the slots that the span leaves, which are others.
 * Row after row, so that the bits do not depend on how a sequence is cut into steps. */
#include "backend/cpu/plain/plain.h"

#include <math.h>
#include <string.h>

enum { CONV_CHANNELS = 64 }; /* a unit of work */

/* Element `index` of a channel's time line: the rows of the span follow the taps - 1 elements of the state.
 */
static float conv_input(const sl_cpu_op *op, const sl_state_layer *shape, const sl_step_span *span,
                        const float *state, int32_t channel, int32_t index) {
    const int32_t kept = shape->taps - 1;
    if (index >= kept) {
        return sl_cpu_f32(&op->in[0], span->first_row + index - kept)[channel];
    }
    return state ? state[(int64_t)index * shape->channels + channel] : 0.0f;
}

/* Class "f32": products added from the oldest tap to the newest, then the bias. */
static void conv_channel(const sl_cpu_context *context, const sl_cpu_op *op, const sl_step_span *span,
                         int32_t channel) {
    const sl_op_conv *conv = &op->op->u.conv;
    const sl_state_layer *shape = &context->program->states[conv->state];
    const float bias =
        conv->bias == SL_NONE ? 0.0f : ((const float *)(const void *)op->weights[1].data)[channel];
    const float *weight = (const float *)(const void *)op->weights[0].data + (int64_t)channel * shape->taps;
    const float *state = sl_cpu_old_state(context, span, shape->conv_offset);
    for (int32_t i = 0; i < span->row_count; i++) {
        float sum = 0;
        for (int32_t tap = 0; tap < shape->taps; tap++) {
            sum += weight[tap] * conv_input(op, shape, span, state, channel, i + tap);
        }
        sum += bias;
        sl_cpu_f32(&op->out[0], span->first_row + i)[channel] =
            conv->function == SL_ACTIVATION_SILU ? sum / (1.0f + expf(-sum)) : sum;
        float *kept = sl_cpu_new_state(context, span, i, shape->conv_offset);
        for (int32_t k = 0; kept && k < shape->taps - 1; k++) {
            kept[(int64_t)k * shape->channels + channel] =
                conv_input(op, shape, span, state, channel, i + 1 + k);
        }
    }
}

void sl_plain_conv(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const int32_t channels = context->program->states[op->op->u.conv.state].channels;
    const int32_t blocks = (channels + CONV_CHANNELS - 1) / CONV_CHANNELS;
    const int32_t units = blocks * context->header->spans;
    (void)thread, (void)threads;
    for (int32_t unit = sl_cpu_take(op, 0, 1); unit < units; unit = sl_cpu_take(op, 0, 1)) {
        const sl_step_span *span = &context->spans[unit / blocks];
        const int32_t first = unit % blocks * CONV_CHANNELS;
        for (int32_t c = first; c < first + CONV_CHANNELS && c < channels; c++) {
            conv_channel(context, op, span, c);
        }
    }
}

uint64_t sl_plain_delta_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_state_layer *shape = &query->program->states[query->op->u.delta_scan.state];
    return sl_cpu_scratch_bytes(query, (uint64_t)(2 * shape->key_size + shape->value_size) * sizeof(float));
}

/* y = x / sqrt(sum of squares + epsilon) * scale, squares added in order. */
static void normalise(const float *x, int32_t size, float scale, float *y) {
    float sum = 0;
    for (int32_t i = 0; i < size; i++) {
        sum += x[i] * x[i];
    }
    const float factor = 1.0f / sqrtf(sum + 1e-6f) * scale;
    for (int32_t i = 0; i < size; i++) {
        y[i] = x[i] * factor;
    }
}

static float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

/* One row of one value head. state: [key_size][value_size]. */
static void scan_row(const sl_cpu_op *op, const sl_state_layer *shape, int32_t row, int32_t head,
                     float *state, float *scratch) {
    const sl_op_delta_scan *scan = &op->op->u.delta_scan;
    const int32_t keys = shape->key_size, values = shape->value_size;
    const int32_t key_head =
        scan->keys_cycle ? head % scan->key_heads : head / (scan->value_heads / scan->key_heads);
    const float *qkv = sl_cpu_f32(&op->in[0], row);
    const float *v = qkv + 2 * scan->key_heads * keys + head * values;
    float *q = scratch, *k = scratch + keys, *change = scratch + 2 * keys;
    float *y = sl_cpu_f32(&op->out[0], row) + head * values;
    normalise(qkv + key_head * keys, keys, 1.0f / sqrtf((float)keys), q);
    normalise(qkv + (scan->key_heads + key_head) * keys, keys, 1.0f, k);

    const float a_log = ((const float *)(const void *)op->weights[0].data)[head];
    const float dt_bias = ((const float *)(const void *)op->weights[1].data)[head];
    const float rate = scan->decay_is_negated ? a_log : -expf(a_log);
    const float decay = expf(rate * softplus(sl_cpu_f32(&op->in[1], row)[head] + dt_bias));
    const float beta = 1.0f / (1.0f + expf(-sl_cpu_f32(&op->in[2], row)[head]));

    memset(change, 0, (size_t)values * sizeof *change);
    for (int32_t i = 0; i < keys; i++) {
        for (int32_t j = 0; j < values; j++) {
            state[i * values + j] *= decay;
            change[j] += state[i * values + j] * k[i];
        }
    }
    for (int32_t j = 0; j < values; j++) {
        change[j] = beta * (v[j] - change[j]);
        y[j] = 0;
    }
    for (int32_t i = 0; i < keys; i++) {
        for (int32_t j = 0; j < values; j++) {
            state[i * values + j] += k[i] * change[j];
            y[j] += state[i * values + j] * q[i];
        }
    }
}

/* Class "f32": sums over keys in order. */
void sl_plain_delta_scan(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const sl_op_delta_scan *scan = &op->op->u.delta_scan;
    const sl_state_layer *shape = &context->program->states[scan->state];
    const int32_t units = scan->value_heads * context->header->spans;
    const uint64_t size = (uint64_t)shape->key_size * (uint64_t)shape->value_size;
    for (int32_t unit = sl_cpu_take(op, 0, 1); unit < units; unit = sl_cpu_take(op, 0, 1)) {
        const sl_step_span *span = &context->spans[unit / scan->value_heads];
        const int32_t head = unit % scan->value_heads;
        const uint64_t own = shape->delta_offset + (uint64_t)head * size * sizeof(float);
        const float *old = sl_cpu_old_state(context, span, own);
        float *state = sl_cpu_new_state(context, span, span->row_count - 1, own);
        if (old) {
            memcpy(state, old, size * sizeof *state);
        } else {
            memset(state, 0, size * sizeof *state);
        }
        for (int32_t i = 0; i < span->row_count; i++) {
            scan_row(op, shape, span->first_row + i, head, state, sl_cpu_scratch(op, thread, threads));
            float *kept = sl_cpu_new_state(context, span, i, own);
            if (kept && kept != state) {
                memcpy(kept, state, size * sizeof *kept);
            }
        }
    }
}
