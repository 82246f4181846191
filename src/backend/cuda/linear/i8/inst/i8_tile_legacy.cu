/* int8 tensor-core products of weights in blocks of 32, and what those of all types take. */
#include "backend/cuda/linear/i8/i8_tile_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    SL_INTEGER_LEGACY(I8_TILE),
};

SL_CUDA_FAMILY(i8_tile_legacy) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                  mmq_prepare_types<SL_INTEGER_LEGACY(SL_INTEGER_ID)>};

const char *sl_i8_tile_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_cuda_kernel *row = (const sl_cuda_kernel *)kernel;
    const sl_op *op = query->op;
    const sl_weight *weight = &query->program->weights[op->u.linear.segments[0].weight];
    if (weight->type != row->weight_type) {
        return "is for another weight type";
    }
    if (sl_cuda_facts_of(query->backend)->block_bytes < MMQ_LEAST_BYTES) {
        return "needs 112 KiB of shared memory in a block";
    }
    if (sl_cuda_columns(weight) % MMQ_CHUNK != 0) {
        return "takes columns in chunks of 256";
    }
    for (int32_t s = 0; s < op->u.linear.segment_count; s++) {
        if (query->program->weights[op->u.linear.segments[s].weight].rows < ROWS64_OUTPUTS) {
            return "takes 16 weight rows or more";
        }
    }
    /* x is read in pieces of 16 bytes, scales and sums too. */
    if (sl_cuda_x_width(query) % 128 != 0 || sl_cuda_x_column(query) % 128 != 0) {
        return "takes rows of x aligned to 16 bytes";
    }
    /* Of an expert's rows it is the step that counts. */
    const sl_rows kind = query->values[op->out[0].value].rows;
    const int32_t rows = query->rows[kind == SL_ROWS_EXPERT ? SL_ROWS_STEP : kind];
    if (row->most_rows > 0 && rows > row->most_rows) {
        return "is for fewer rows";
    }
    if (rows < row->least_rows) {
        return "is for more rows";
    }
    /* Above that BF16 is faster; not a matter of speed alone where one class must serve all. */
    if (!query->backend->options.deterministic && row->best_rows > 0 && rows > row->best_rows) {
        return "is slower than BF16 for so many rows";
    }
    return NULL;
}
