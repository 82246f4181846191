/* Products of five to eight rows in class "bf16/k16": launches of k16_rows8.cuh. */
#include "backend/cuda/linear/k16/k16_rows8_kernel.cuh"
#include "backend/cuda/linear/linear.h"

template <int... TYPES> static cudaError_t prepare(const sl_cuda_facts *facts) {
    cudaError_t code = cudaSuccess;
    if (facts->has_wgmma) {
        ((code = code ? code : slim_prepare_type<TYPES>()), ...);
    }
    return code;
}

template <int TYPE> static SL_CUDA_RUN(run) {
    return slim_launch<TYPE>(context, op, stream);
}

template <int TYPE> static SL_CUDA_RANGES(run_ranges) {
    return slim_launch<TYPE>(context, op, stream, ranges);
}

/* What the boxes of bf16-rows128 need, and room for x beside the rings. */
template <int TYPE> static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const char *reason = sl_bf16_rows128_declines(kernel, query);
    if (reason) {
        return reason;
    }
    const sl_rows kind = query->values[query->op->out[0].value].rows;
    if (kind == SL_ROWS_EXPERT) {
        return "takes no experts";
    }
    const int32_t processors = sl_cuda_facts_of(query->backend)->processors;
    const sl_op_linear *linear = &query->op->u.linear;
    static const float BIAS = 0.0f;
    sl_cuda_op op = {};
    op.weight_count = linear->segment_count;
    for (int32_t s = 0; s < linear->segment_count; s++) {
        op.weights[s].rows = query->program->weights[linear->segments[s].weight].rows;
        op.weights[s].columns = sl_cuda_columns(&query->program->weights[linear->segments[s].weight]);
        op.weights[s].bias = linear->segments[s].bias == SL_NONE ? NULL : &BIAS;
    }
    slim_args args = {};
    args.weights[0] = op.weights[0];
    args.rows = query->rows[kind];
    args.ranges = sl_k16_ranges(&op, processors);
    args.tiles = sl_linear_cut(&op, CHAIN_ROWS, args.first_tile);
    /* Beyond 2^17 columns bytes could overflow. */
    return args.weights[0].columns <= 1 << 17 && slim_fits<TYPE>(&args, processors)
               ? NULL
               : "has no room in shared memory for x of so many columns";
}

#define K16_ROWS8(ID, type_name, most_error)                                                                 \
    {                                                                                                        \
        .kernel = BF16_KERNEL("linear/" #type_name "/cuda-k16-rows8", "bf16/k16", most_error,                \
                              .deterministic = true, .declines = declines<SL_QTYPE_##ID>,                    \
                              .workspace = sl_bf16_rows128_workspace),                                       \
        .arrangement = SL_CUDA_K16_ROWS8, .weight_type = SL_QTYPE_##ID, .most_rows = 8, .least_rows = 5,     \
        .run = run<SL_QTYPE_##ID>, .gated = run<SL_QTYPE_##ID>, .ranges = run_ranges<SL_QTYPE_##ID>,         \
        .ranges_declines = sl_bf16_rows128_ranges_declines                                                   \
    }
static const sl_cuda_kernel KERNELS[] = {
    K16_ROWS8(F16, f16, 1.5e-2f),   K16_ROWS8(BF16, bf16, 1e-4f),   K16_ROWS8(Q8_0, q8_0, 2.5e-2f),
    K16_ROWS8(Q4_0, q4_0, 2.5e-2f), K16_ROWS8(Q4_K, q4_k, 3.5e-2f), K16_ROWS8(Q5_K, q5_k, 3.5e-2f),
    K16_ROWS8(Q6_K, q6_k, 2.5e-2f),
};

SL_CUDA_FAMILY(k16_rows8) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                             prepare<SL_QTYPE_F16, SL_QTYPE_BF16, SL_QTYPE_Q8_0, SL_QTYPE_Q4_0, SL_QTYPE_Q4_K,
                                     SL_QTYPE_Q5_K, SL_QTYPE_Q6_K>};
