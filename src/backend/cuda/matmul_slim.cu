/* Products of five to eight rows in class "bf16/k16": launches of matmul_slim.cuh. */
#include "backend/cuda/matmul_slim_kernel.cuh"

#define SLIM_RUN(ID, name)                                                                                   \
    SL_CUDA_RUN(sl_cuda_linear_slim_##name) {                                                                \
        return slim_launch<SL_QTYPE_##ID>(context, op, stream);                                              \
    }

#define SLIM_RANGES(ID)                                                                                      \
    case SL_QTYPE_##ID:                                                                                      \
        return slim_launch<SL_QTYPE_##ID>(context, op, stream, ranges)

SLIM_RUN(F16, f16)
SLIM_RUN(BF16, bf16)
SLIM_RUN(Q8_0, q8_0)
SLIM_RUN(Q4_0, q4_0)
SLIM_RUN(Q4_K, q4_k)
SLIM_RUN(Q5_K, q5_k)
SLIM_RUN(Q6_K, q6_k)

SL_CUDA_RANGES(sl_cuda_slim_ranges) {
    switch (op->weights[0].type) {
        SLIM_RANGES(F16);
        SLIM_RANGES(BF16);
        SLIM_RANGES(Q8_0);
        SLIM_RANGES(Q4_0);
        SLIM_RANGES(Q4_K);
        SLIM_RANGES(Q5_K);
        SLIM_RANGES(Q6_K);
    default:
        return cudaErrorInvalidValue;
    }
}

cudaError_t sl_cuda_slim_prepare(void) {
    cudaError_t code = slim_prepare_type<SL_QTYPE_F16>();
    code = code ? code : slim_prepare_type<SL_QTYPE_BF16>();
    code = code ? code : slim_prepare_type<SL_QTYPE_Q8_0>();
    code = code ? code : slim_prepare_type<SL_QTYPE_Q4_0>();
    code = code ? code : slim_prepare_type<SL_QTYPE_Q4_K>();
    code = code ? code : slim_prepare_type<SL_QTYPE_Q5_K>();
    return code ? code : slim_prepare_type<SL_QTYPE_Q6_K>();
}

/* Whether every warp has room for its ring beside x. */
static bool slim_fits_of(sl_qtype type, slim_args *args, int32_t processors) {
    switch (type) {
    case SL_QTYPE_F16:
        return slim_fits<SL_QTYPE_F16>(args, processors);
    case SL_QTYPE_BF16:
        return slim_fits<SL_QTYPE_BF16>(args, processors);
    case SL_QTYPE_Q8_0:
        return slim_fits<SL_QTYPE_Q8_0>(args, processors);
    case SL_QTYPE_Q4_0:
        return slim_fits<SL_QTYPE_Q4_0>(args, processors);
    case SL_QTYPE_Q4_K:
        return slim_fits<SL_QTYPE_Q4_K>(args, processors);
    case SL_QTYPE_Q5_K:
        return slim_fits<SL_QTYPE_Q5_K>(args, processors);
    default:
        return slim_fits<SL_QTYPE_Q6_K>(args, processors);
    }
}

/* What skinny's boxes need, and room for x beside the rings. */
const char *sl_cuda_slim_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const char *reason = sl_cuda_skinny_declines(kernel, query);
    if (reason) {
        return reason;
    }
    const sl_rows kind = query->values[query->op->out[0].value].rows;
    if (kind == SL_ROWS_EXPERT) {
        return "takes no experts";
    }
    int processors = 0;
    if (cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, query->backend->options.device) !=
        cudaSuccess) {
        return "could not ask how many processors the device has";
    }
    const sl_op_linear *linear = &query->op->u.linear;
    static const float BIAS = 0.0f;
    sl_cuda_op op = {};
    op.weight_count = linear->segment_count;
    for (int32_t s = 0; s < linear->segment_count; s++) {
        op.weights[s].rows = query->program->weights[linear->segments[s].weight].rows;
        op.weights[s].columns = query->program->weights[linear->segments[s].weight].columns;
        op.weights[s].bias = linear->segments[s].bias == SL_NONE ? NULL : &BIAS;
    }
    slim_args args = {};
    args.weights[0] = op.weights[0];
    args.rows = query->rows[kind];
    args.ranges = sl_k16_ranges(&op, processors);
    args.tiles = sl_linear_cut(&op, CHAIN_ROWS, args.first_tile);
    /* Beyond 2^17 columns bytes could overflow. */
    const sl_qtype type = query->program->weights[linear->segments[0].weight].type;
    return args.weights[0].columns <= 1 << 17 && slim_fits_of(type, &args, processors)
               ? NULL
               : "has no room in shared memory for x of so many columns";
}

const char *sl_cuda_gated_slim_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    (void)fusion;
    if (query->kernels[0]->declines != sl_cuda_slim_declines) {
        return "is for products of slim";
    }
    return sl_cuda_gated_reason(query);
}

SL_CUDA_RUN(sl_cuda_gated_slim) {
    return op->kernel->run(context, op, stream);
}
