/* Matrix products of few rows, of floating-point weights; what all types share on the host. */
#include "backend/cuda/matmul_skinny_launch.cuh"

#include <string.h>

SKINNY_RUN(F16, f16)
SKINNY_RUN(BF16, bf16)

cudaError_t sl_cuda_skinny_prepare(int device) {
    bool has = false;
    cudaError_t code = sl_cuda_has_wgmma(device, &has);
    if (code || !has) {
        return code;
    }
    code = skinny_prepare_type<SL_QTYPE_F16>();
    code = code ? code : skinny_prepare_type<SL_QTYPE_BF16>();
    code = code ? code : sl_cuda_skinny_prepare_legacy();
    code = code ? code : sl_cuda_skinny_prepare_kquants();
    code = code ? code : sl_cuda_skinny_prepare_small();
    return code ? code : sl_cuda_slim_prepare();
}

const char *sl_cuda_skinny_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_cuda_kernel *row = (const sl_cuda_kernel *)kernel;
    const sl_op *op = query->op;
    const sl_weight *weight = &query->program->weights[op->u.linear.segments[0].weight];
    if (weight->type != row->weight_type) {
        return "is for another weight type";
    }
    bool has = false;
    if (sl_cuda_has_wgmma(query->backend->options.device, &has) != cudaSuccess || !has) {
        return "needs compute capability 9.0";
    }
    if (weight->columns % SKINNY_RANGE != 0) {
        return "takes columns in groups of 256";
    }
    uint64_t row_bytes = 0;
    if (!sl_qtype_bytes(weight->type, (uint64_t)weight->columns, &row_bytes) || row_bytes % 16 != 0) {
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
    if (rows > (experts ? (int32_t)SKINNY_ROWS : row->most_rows)) {
        return "is for fewer rows";
    }
    const bool is_many = experts && row->least_rows > 0;
    const int32_t least = is_many ? (int32_t)SKINNY_EXPERT_ROWS : row->least_rows;
    return rows < least ? "is for more rows" : NULL;
}

const char *sl_cuda_gated_skinny_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    (void)fusion;
    if (query->kernels[0]->declines != sl_cuda_skinny_declines) {
        return "is for products of skinny";
    }
    return sl_cuda_gated_reason(query);
}

SL_CUDA_RUN(sl_cuda_gated_skinny) {
    switch (op->weights[0].type) {
    case SL_QTYPE_F16:
        return sl_cuda_gated_skinny_f16(context, op, stream);
    case SL_QTYPE_BF16:
        return sl_cuda_gated_skinny_bf16(context, op, stream);
    case SL_QTYPE_Q8_0:
        return sl_cuda_gated_skinny_q8_0(context, op, stream);
    case SL_QTYPE_Q4_0:
        return sl_cuda_gated_skinny_q4_0(context, op, stream);
    case SL_QTYPE_Q4_K:
        return sl_cuda_gated_skinny_q4_k(context, op, stream);
    case SL_QTYPE_Q5_K:
        return sl_cuda_gated_skinny_q5_k(context, op, stream);
    case SL_QTYPE_Q6_K:
        return sl_cuda_gated_skinny_q6_k(context, op, stream);
    case SL_QTYPE_MXFP4:
        return sl_cuda_gated_skinny_mxfp4(context, op, stream);
    case SL_QTYPE_NVFP4:
        return sl_cuda_gated_skinny_nvfp4(context, op, stream);
    case SL_QTYPE_NVFP4_128:
        return sl_cuda_gated_skinny_nvfp4_128(context, op, stream);
    case SL_QTYPE_FP8_128:
        return sl_cuda_gated_skinny_fp8_128(context, op, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

SL_CUDA_RANGES(sl_cuda_skinny_ranges) {
    if (op->kernel->kernel.declines == sl_cuda_slim_declines) {
        return sl_cuda_slim_ranges(context, op, stream, ranges);
    }
    switch (op->weights[0].type) {
    case SL_QTYPE_F16:
        return sl_cuda_ranges_skinny_f16(context, op, stream, ranges);
    case SL_QTYPE_BF16:
        return sl_cuda_ranges_skinny_bf16(context, op, stream, ranges);
    case SL_QTYPE_Q8_0:
        return sl_cuda_ranges_skinny_q8_0(context, op, stream, ranges);
    case SL_QTYPE_Q4_0:
        return sl_cuda_ranges_skinny_q4_0(context, op, stream, ranges);
    case SL_QTYPE_Q4_K:
        return sl_cuda_ranges_skinny_q4_k(context, op, stream, ranges);
    case SL_QTYPE_Q5_K:
        return sl_cuda_ranges_skinny_q5_k(context, op, stream, ranges);
    case SL_QTYPE_Q6_K:
        return sl_cuda_ranges_skinny_q6_k(context, op, stream, ranges);
    case SL_QTYPE_MXFP4:
        return sl_cuda_ranges_skinny_mxfp4(context, op, stream, ranges);
    case SL_QTYPE_NVFP4:
        return sl_cuda_ranges_skinny_nvfp4(context, op, stream, ranges);
    case SL_QTYPE_NVFP4_128:
        return sl_cuda_ranges_skinny_nvfp4_128(context, op, stream, ranges);
    case SL_QTYPE_FP8_128:
        return sl_cuda_ranges_skinny_fp8_128(context, op, stream, ranges);
    default:
        return cudaErrorInvalidValue;
    }
}

/* Of the sums of ranges, which there are where sl_cuda_skinny_ranges runs. */
uint64_t sl_cuda_skinny_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
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

const char *sl_cuda_ranges_reason(const sl_fusion_query *query) {
    const sl_op *op = &query->ops[0];
    if (query->kernels[0]->declines != sl_cuda_skinny_declines &&
        query->kernels[0]->declines != sl_cuda_slim_declines) {
        return "is for products of skinny and slim";
    }
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
