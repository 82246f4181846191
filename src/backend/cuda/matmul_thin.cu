/* Products of one to four rows in class "bf16/k16": launches of matmul_thin.cuh. */
#include "backend/cuda/matmul_thin.cuh"

#define THIN_RUN(ID, name)                                                                                   \
    SL_CUDA_RUN(sl_cuda_linear_thin_##name) {                                                                \
        return thin_launch<SL_QTYPE_##ID>(context, op, stream);                                              \
    }

THIN_RUN(F16, f16)
THIN_RUN(BF16, bf16)
THIN_RUN(Q8_0, q8_0)
THIN_RUN(Q4_0, q4_0)
THIN_RUN(Q4_K, q4_k)
THIN_RUN(Q5_K, q5_k)
THIN_RUN(Q6_K, q6_k)

cudaError_t sl_cuda_thin_prepare(int device) {
    bool has = false;
    cudaError_t code = sl_cuda_has_wgmma(device, &has);
    if (code || !has) {
        return code;
    }
    code = thin_prepare_type<SL_QTYPE_F16>();
    code = code ? code : thin_prepare_type<SL_QTYPE_BF16>();
    code = code ? code : thin_prepare_type<SL_QTYPE_Q8_0>();
    code = code ? code : thin_prepare_type<SL_QTYPE_Q4_0>();
    code = code ? code : thin_prepare_type<SL_QTYPE_Q4_K>();
    code = code ? code : thin_prepare_type<SL_QTYPE_Q5_K>();
    return code ? code : thin_prepare_type<SL_QTYPE_Q6_K>();
}

/* What a block with rings of two slots for the ranges of a tile takes: thin_fit comes down to it. */
static uint32_t thin_bytes(sl_qtype type, int32_t columns, int32_t rows) {
    thin_args args = {};
    args.weights[0].columns = columns;
    args.rows = rows;
    args.warps = args.ranges = SL_K16_RANGES;
    args.stages = 2;
    switch (type) {
    case SL_QTYPE_F16:
        return thin_memory_of<SL_QTYPE_F16>(args).bytes;
    case SL_QTYPE_BF16:
        return thin_memory_of<SL_QTYPE_BF16>(args).bytes;
    case SL_QTYPE_Q8_0:
        return thin_memory_of<SL_QTYPE_Q8_0>(args).bytes;
    case SL_QTYPE_Q4_0:
        return thin_memory_of<SL_QTYPE_Q4_0>(args).bytes;
    case SL_QTYPE_Q4_K:
        return thin_memory_of<SL_QTYPE_Q4_K>(args).bytes;
    case SL_QTYPE_Q5_K:
        return thin_memory_of<SL_QTYPE_Q5_K>(args).bytes;
    default:
        return thin_memory_of<SL_QTYPE_Q6_K>(args).bytes;
    }
}

/* What skinny's boxes need, and room for x beside the rings. */
const char *sl_cuda_thin_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const char *reason = sl_cuda_skinny_declines(kernel, query);
    if (reason) {
        return reason;
    }
    const sl_weight *weight = &query->program->weights[query->op->u.linear.segments[0].weight];
    const sl_rows kind = query->values[query->op->out[0].value].rows;
    const int32_t rows = kind == SL_ROWS_EXPERT ? 1 : query->rows[kind];
    /* Beyond 2^17 columns bytes could overflow. */
    const bool fits =
        weight->columns <= 1 << 17 && thin_bytes(weight->type, weight->columns, rows) <= (uint32_t)THIN_BYTES;
    return fits ? NULL : "has no room in shared memory for x of so many columns";
}

const char *sl_cuda_gated_thin_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    (void)fusion;
    if (query->kernels[0]->declines != sl_cuda_thin_declines) {
        return "is for products of thin";
    }
    return sl_cuda_gated_reason(query);
}

SL_CUDA_RUN(sl_cuda_gated_thin) {
    return op->kernel->run(context, op, stream);
}
