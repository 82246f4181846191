/* Mamba2's scan. It reads the state slot state_read (or zeros) and writes its own part of the slots that the
 * span leaves, which are others. Row after row, so that the bits do not depend on how a sequence is cut into
 * steps. */
#include "backend/cpu/plain/plain.h"

#include <math.h>
#include <string.h>

static const float *vector(const sl_cpu_op *op, int index) {
    return (const float *)(const void *)op->weights[index].data;
}

static float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

/* One row of one head. state: [key_size][value_size]. */
static void scan_row(const sl_cpu_op *op, const sl_state_layer *shape, int32_t row, int32_t head,
                     float *state) {
    const sl_op_ssm_scan *scan = &op->op->u.ssm_scan;
    const int32_t keys = shape->key_size, values = shape->value_size;
    const int32_t group = head / (scan->heads / scan->groups);
    const float *xbc = sl_cpu_f32(&op->in[0], row), *x = xbc + head * values;
    const float *write = xbc + scan->heads * values + group * keys, *read = write + scan->groups * keys;
    float *y = sl_cpu_f32(&op->out[0], row) + head * values;

    const float a_log = vector(op, 0)[head], dt_bias = vector(op, 1)[head], skip = vector(op, 2)[head];
    const float rate = scan->decay_is_negated ? a_log : -expf(a_log);
    const float wanted = softplus(sl_cpu_f32(&op->in[1], row)[head] + dt_bias);
    const float step = sl_cpu_clamp(wanted, scan->step_least, scan->step_most);
    const float decay = expf(rate * step);

    memset(y, 0, (size_t)values * sizeof *y);
    for (int32_t i = 0; i < keys; i++) {
        for (int32_t j = 0; j < values; j++) {
            state[i * values + j] = state[i * values + j] * decay + write[i] * (step * x[j]);
            y[j] += state[i * values + j] * read[i];
        }
    }
    for (int32_t j = 0; j < values; j++) {
        y[j] += skip * x[j];
    }
}

/* Class "f32": sums over the state's keys in order, then what skips it. */
void sl_plain_ssm_scan(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const sl_op_ssm_scan *scan = &op->op->u.ssm_scan;
    const sl_state_layer *shape = &context->program->states[scan->state];
    const int32_t units = scan->heads * context->header->spans;
    const uint64_t size = (uint64_t)shape->key_size * (uint64_t)shape->value_size;
    (void)thread, (void)threads;
    for (int32_t unit = sl_cpu_take(op, 0, 1); unit < units; unit = sl_cpu_take(op, 0, 1)) {
        const sl_step_span *span = &context->spans[unit / scan->heads];
        const int32_t head = unit % scan->heads;
        const uint64_t own = shape->delta_offset + (uint64_t)head * size * sizeof(float);
        const float *old = sl_cpu_old_state(context, span, own);
        float *state = sl_cpu_new_state(context, span, span->row_count - 1, own);
        if (old) {
            memcpy(state, old, size * sizeof *state);
        } else {
            memset(state, 0, size * sizeof *state);
        }
        for (int32_t i = 0; i < span->row_count; i++) {
            scan_row(op, shape, span->first_row + i, head, state);
            float *kept = sl_cpu_new_state(context, span, i, own);
            if (kept && kept != state) {
                memcpy(kept, state, size * sizeof *kept);
            }
        }
    }
}
