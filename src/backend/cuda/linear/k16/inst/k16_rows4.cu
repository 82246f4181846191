/* Products of one to four rows in class "bf16/k16": launches of k16_rows4.cuh. */
#include "backend/cuda/linear/k16/k16_rows4.cuh"
#include "backend/cuda/linear/linear.h"

template <int... TYPES> static cudaError_t prepare(const sl_cuda_facts *facts) {
    cudaError_t code = cudaSuccess;
    if (facts->has_wgmma) {
        ((code = code ? code : thin_prepare_type<TYPES>()), ...);
    }
    return code;
}

/* What a block with rings of two slots for the ranges of a tile takes: thin_fit comes down to it. */
template <int TYPE> static uint32_t thin_bytes(int32_t columns, int32_t rows) {
    thin_args args = {};
    args.weights[0].columns = columns;
    args.rows = rows;
    args.warps = args.ranges = SL_K16_RANGES;
    args.stages = 2;
    return thin_memory_of<TYPE>(args).bytes;
}

/* What the boxes of bf16-rows128 need, and room for x beside the rings. */
template <int TYPE> static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const char *reason = sl_bf16_rows128_declines(kernel, query);
    if (reason) {
        return reason;
    }
    const sl_weight *weight = &query->program->weights[query->op->u.linear.segments[0].weight];
    const sl_rows kind = query->values[query->op->out[0].value].rows;
    const int32_t rows = kind == SL_ROWS_EXPERT ? 1 : query->rows[kind];
    /* Beyond 2^17 columns bytes could overflow. */
    const int32_t columns = sl_cuda_columns(weight);
    const bool fits = columns <= 1 << 17 && thin_bytes<TYPE>(columns, rows) <= (uint32_t)THIN_BYTES;
    return fits ? NULL : "has no room in shared memory for x of so many columns";
}

#define K16_ROWS4(ID, type_name, most_error)                                                                 \
    {                                                                                                        \
        .kernel = BF16_KERNEL("linear/" #type_name "/cuda-k16-rows4", "bf16/k16", most_error,                \
                              .deterministic = true, .declines = declines<SL_QTYPE_##ID>),                   \
        .arrangement = SL_CUDA_K16_ROWS4, .weight_type = SL_QTYPE_##ID, .most_rows = 4,                      \
        .run = thin_launch<SL_QTYPE_##ID>, .gated = thin_launch<SL_QTYPE_##ID>                               \
    }
static const sl_cuda_kernel KERNELS[] = {
    K16_ROWS4(F16, f16, 1.5e-2f),   K16_ROWS4(BF16, bf16, 1e-4f),   K16_ROWS4(Q8_0, q8_0, 2.5e-2f),
    K16_ROWS4(Q4_0, q4_0, 2.5e-2f), K16_ROWS4(Q4_K, q4_k, 3.5e-2f), K16_ROWS4(Q5_K, q5_k, 3.5e-2f),
    K16_ROWS4(Q6_K, q6_k, 2.5e-2f),
};

SL_CUDA_FAMILY(k16_rows4) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                             prepare<SL_QTYPE_F16, SL_QTYPE_BF16, SL_QTYPE_Q8_0, SL_QTYPE_Q4_0, SL_QTYPE_Q4_K,
                                     SL_QTYPE_Q5_K, SL_QTYPE_Q6_K>};
