/* A matrix for each head.
 *
 * Class "f32x16": weights decoded to f32, activations f32. An output is summed as sl_plain_dot does; of a
 * turned matrix it is one sum over the inputs in rising order, every product and sum rounded by itself. */
#include "backend/cpu/plain/plain.h"

#include <string.h>

enum { MOST_OUTPUTS = 64 /* of a unit of work */ };

/* A decoded row. */
uint64_t sl_plain_head_linear_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_weight *weight = &query->program->weights[query->op->u.head_linear.weight];
    return sl_cpu_scratch_bytes(query, (uint64_t)weight->columns * sizeof(float));
}

static void decode_row(const sl_cpu_weight *weight, int32_t head, int32_t row, float *values) {
    sl_qtype_get(weight->type)
        ->decode(weight->data + (uint64_t)head * weight->expert_bytes + (uint64_t)row * weight->row_bytes,
                 values, (uint64_t)weight->columns);
}

/* One head, for all rows of the step. */
typedef struct head_work {
    const sl_cpu_op *op;
    const sl_cpu_weight *weight;
    int32_t head, rows;
    float *decoded;
} head_work;

static const float *x_of(const head_work *w, int32_t row) {
    return sl_cpu_f32(&w->op->in[0], row) + w->head * w->op->op->u.head_linear.x_stride;
}

static float *y_of(const head_work *w, int32_t row) {
    const sl_op_head_linear *linear = &w->op->op->u.head_linear;
    const int32_t outputs = linear->turned ? w->weight->columns : w->weight->rows;
    return sl_cpu_f32(&w->op->out[0], row) + w->head * (outputs + linear->tail);
}

/* Outputs [first, last). */
static void multiply(const head_work *w, int32_t first, int32_t last) {
    for (int32_t output = first; output < last; output++) {
        decode_row(w->weight, w->head, output, w->decoded);
        for (int32_t row = 0; row < w->rows; row++) {
            y_of(w, row)[output] = sl_plain_dot(w->decoded, x_of(w, row), w->weight->columns);
        }
    }
}

static void multiply_turned(const head_work *w) {
    const int32_t outputs = w->weight->columns;
    for (int32_t row = 0; row < w->rows; row++) {
        memset(y_of(w, row), 0, (size_t)outputs * sizeof(float));
    }
    for (int32_t input = 0; input < w->weight->rows; input++) {
        decode_row(w->weight, w->head, input, w->decoded);
        for (int32_t row = 0; row < w->rows; row++) {
            const float factor = x_of(w, row)[input];
            float *y = y_of(w, row);
            for (int32_t i = 0; i < outputs; i++) {
                y[i] += factor * w->decoded[i];
            }
        }
    }
}

static void copy_tails(const head_work *w) {
    const sl_op_head_linear *linear = &w->op->op->u.head_linear;
    const int32_t inputs = linear->turned ? w->weight->rows : w->weight->columns;
    const int32_t outputs = linear->turned ? w->weight->columns : w->weight->rows;
    for (int32_t row = 0; row < w->rows; row++) {
        memcpy(y_of(w, row) + outputs, x_of(w, row) + inputs, (size_t)linear->tail * sizeof(float));
    }
}

void sl_plain_head_linear(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const bool turned = op->op->u.head_linear.turned;
    head_work w = {.op = op,
                   .weight = &op->weights[0],
                   .rows = sl_cpu_rows(context, &op->out[0]),
                   .decoded = sl_cpu_scratch(op, thread, threads)};
    const int32_t chunks = turned ? 1 : (w.weight->rows + MOST_OUTPUTS - 1) / MOST_OUTPUTS;
    for (int32_t unit = sl_cpu_take(op, 0, 1); unit < chunks * w.weight->experts;
         unit = sl_cpu_take(op, 0, 1)) {
        const int32_t first = unit % chunks * MOST_OUTPUTS, last = first + MOST_OUTPUTS;
        w.head = unit / chunks;
        if (turned) {
            multiply_turned(&w);
        } else {
            multiply(&w, first, last < w.weight->rows ? last : w.weight->rows);
        }
        if (first == 0) {
            copy_tails(&w);
        }
    }
}
