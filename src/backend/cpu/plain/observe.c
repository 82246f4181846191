/* Sums of squares of what a LINEAR reads: threads share the columns, so that each sum grows in the order of
 * the rows, whatever the threads. */
#include "backend/cpu/plain/plain.h"

void sl_plain_observe(const sl_cpu_context *context, const sl_cpu_op *op, int thread, int threads) {
    const sl_cpu_operand *x = &op->in[0], *schedule = &op->in[1];
    const int32_t index = op->op->u.observe.weight;
    const sl_weight *weight = &context->program->weights[index];
    double *sums = (double *)(void *)(context->observations + context->deployment->observations[index]);
    double *counts = sums + (int64_t)weight->experts * weight->columns;
    int32_t first, last;
    sl_cpu_share(weight->columns, thread, threads, &first, &last);
    for (int32_t expert = 0; expert < weight->experts; expert++, sums += weight->columns) {
        const int32_t *list = NULL;
        int32_t count = sl_cpu_rows(context, x);
        if (schedule->data) {
            list = (const int32_t *)(const void *)schedule->data + schedule->head[expert];
            count = schedule->head[expert + 1] - schedule->head[expert];
        }
        for (int32_t i = 0; i < count; i++) {
            const int32_t row = list ? list[i] : i;
            const bool shared = list && x->rows == SL_ROWS_STEP;
            const float *values = sl_cpu_f32(x, shared ? row / context->program->experts_used : row);
            for (int32_t column = first; column < last; column++) {
                sums[column] += (double)values[column] * (double)values[column];
            }
        }
        if (thread == 0) {
            counts[expert] += count;
        }
    }
}
