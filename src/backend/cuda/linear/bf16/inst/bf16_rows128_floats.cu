/* Matrix products of few rows, of floating-point weights; what all types share on the host. */
#include "backend/cuda/linear/bf16/bf16_rows128_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    BF16_ROWS128(F16, f16, 2, 128, 1.5e-2f),
    K16_ROWS128(F16, f16, 1.5e-2f),
    BF16_ROWS128(BF16, bf16, 2, 128, 1e-4f),
    K16_ROWS128(BF16, bf16, 1e-4f),
};

SL_CUDA_FAMILY(bf16_rows128_floats) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                       skinny_prepare<SL_QTYPE_F16, SL_QTYPE_BF16>};

/* Rows of a step from which on its experts are this kernel's. For fewer `i8-row1` reads an expert once for
 * each row, as `f32-rows8` does, and takes longer for quants that are floating-point numbers. */
static int32_t skinny_least_expert_rows(sl_qtype type) {
    const bool floats = type == SL_QTYPE_F16 || type == SL_QTYPE_BF16 || type == SL_QTYPE_FP8_128 ||
                        type == SL_QTYPE_MXFP4 || type == SL_QTYPE_NVFP4 || type == SL_QTYPE_NVFP4_128;
    return floats ? 2 : SKINNY_EXPERT_ROWS;
}

const char *sl_bf16_rows128_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_cuda_kernel *row = (const sl_cuda_kernel *)kernel;
    const sl_op *op = query->op;
    const sl_weight *weight = &query->program->weights[op->u.linear.segments[0].weight];
    if (weight->type != row->weight_type) {
        return "is for another weight type";
    }
    const char *reason = sl_cuda_device_declines(row->arrangement, sl_cuda_facts_of(query->backend));
    if (reason) {
        return reason;
    }
    if (sl_cuda_columns(weight) % SKINNY_RANGE != 0) {
        return "takes columns in groups of 256";
    }
    uint64_t row_bytes = 0;
    if (!sl_stored_row_bytes(SL_CUDA_COLUMN_MULTIPLE, weight, &row_bytes) || row_bytes % 16 != 0) {
        return "takes rows of a multiple of 16 bytes";
    }
    if (weight->experts > SKINNY_EXPERTS) {
        return "takes up to 512 experts";
    }
    /* A converted x starts at column 0. */
    const sl_value *x = &query->values[op->in[0].value];
    if (x->type == SL_VALUE_BF16 && (op->in[0].column % 8 != 0 || x->width % 8 != 0)) {
        return "takes x at multiples of 8 columns";
    }
    /* Of an expert's rows it is the step that counts. */
    const sl_rows kind = query->values[op->out[0].value].rows;
    const bool experts = kind == SL_ROWS_EXPERT;
    const int32_t rows = query->rows[experts ? SL_ROWS_STEP : kind];
    if (rows > (experts ? (int32_t)SKINNY_ROWS : row->most_rows)) { /* experts' in one launch */
        return "is for fewer rows";
    }
    const bool is_many = experts && row->least_rows > 0;
    const int32_t least = is_many ? skinny_least_expert_rows(weight->type) : row->least_rows;
    return rows < least ? "is for more rows" : NULL;
}

/* Of the sums of ranges, which there are where a launch behind it adds them. */
uint64_t sl_bf16_rows128_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_op_linear *linear = &query->op->u.linear;
    const sl_value *y = &query->values[query->op->out[0].value];
    int32_t parts = 0;
    for (int32_t s = 0; s < linear->segment_count; s++) {
        const sl_weight *weight = &query->program->weights[linear->segments[s].weight];
        parts += (weight->rows + SKINNY_PART - 1) / SKINNY_PART;
    }
    const int32_t splits = skinny_most_splits(parts);
    const bool has_experts = query->op->in[1].value != SL_NONE || query->op->in[2].value != SL_NONE;
    return splits > 1 && !has_experts
               ? (uint64_t)splits * (uint64_t)query->rows[y->rows] * sl_value_row_bytes(y->type, y->width)
               : 0;
}

const char *sl_bf16_rows128_ranges_declines(const sl_fusion_query *query) {
    const sl_op *op = &query->ops[0];
    bool plain = op->in[1].value == SL_NONE && op->in[2].value == SL_NONE && op->in[3].value == SL_NONE;
    int32_t parts = 0;
    for (int32_t s = 0; s < op->u.linear.segment_count; s++) {
        const sl_linear_segment *segment = &op->u.linear.segments[s];
        plain = plain && segment->bias == SL_NONE;
        parts += (query->program->weights[segment->weight].rows + SKINNY_PART - 1) / SKINNY_PART;
    }
    return !plain                          ? "takes products without experts, bias and residual"
           : skinny_most_splits(parts) < 2 ? "is for fewer outputs"
                                           : NULL;
}
