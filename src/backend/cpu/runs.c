/* Runs of ops that treat each row by itself. A thread does all ops of a run for one row, then for the next:
 * the row stays in the caches, and the threads meet once. */
#include "backend/cpu/cpu.h"

/* The rows that an op handles. */
static sl_rows rows_of(const sl_value *values, const sl_op *op) {
    return op->out[0].value != SL_NONE ? values[op->out[0].value].rows : SL_ROWS_STEP;
}

static const char *declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    const sl_op *first = query->ops;
    for (int32_t i = 0; i < fusion->count; i++) {
        const sl_op *op = &query->ops[i];
        if (!((const sl_cpu_kernel *)(const void *)query->kernels[i])->by_rows) {
            return "has an op whose kernel does not do one row at a time";
        }
        if (rows_of(query->values, op) != rows_of(query->values, first) ||
            sl_op_is_tail(query->values, op) != sl_op_is_tail(query->values, first)) {
            return "has ops of different rows";
        }
    }
    return NULL;
}

/* What reads a row reads what an op of the run in front of it wrote of the same row: none of these kinds
 * reads others. */
static const sl_fusion runs[] = {
    {.name = "rmsnorm+rmsnorm+rope+rope+cache_write/cpu",
     .count = 5,
     .ops = {SL_OP_RMSNORM, SL_OP_RMSNORM, SL_OP_ROPE, SL_OP_ROPE, SL_OP_CACHE_WRITE},
     .declines = declines},
    {.name = "rope+rope+cache_write/cpu",
     .count = 3,
     .ops = {SL_OP_ROPE, SL_OP_ROPE, SL_OP_CACHE_WRITE},
     .declines = declines},
    {.name = "rmsnorm+rmsnorm+quantize/cpu",
     .count = 3,
     .ops = {SL_OP_RMSNORM, SL_OP_RMSNORM, SL_OP_QUANTIZE},
     .declines = declines},
    {.name = "rmsnorm+quantize/cpu",
     .count = 2,
     .ops = {SL_OP_RMSNORM, SL_OP_QUANTIZE},
     .declines = declines},
    {.name = "activate+quantize/cpu",
     .count = 2,
     .ops = {SL_OP_ACTIVATE, SL_OP_QUANTIZE},
     .declines = declines},
};

const sl_fusion *const *sl_cpu_fusions(const sl_backend *backend, int32_t *count) {
    static const sl_fusion *const list[] = {&runs[0], &runs[1], &runs[2], &runs[3], &runs[4]};
    (void)backend;
    *count = (int32_t)(sizeof list / sizeof *list);
    return list;
}

void sl_cpu_run_by_rows(const sl_cpu_context *context, const sl_cpu_op *ops, int thread, int threads) {
    const int32_t rows = context->counts[ops->counted];
    int32_t first, last;
    sl_cpu_share(rows, thread, threads, &first, &last);
    for (int32_t row = first; row < last; row++) {
        for (int32_t i = 0; i < ops->run_length; i++) {
            ops[i].run(context, &ops[i], row, rows); /* of so many threads this one has just that row */
        }
    }
}
