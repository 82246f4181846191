/* Matrix products with 2 to 8 rows on Hopper (i8_rows8_tma.cuh), of Q8_0 in class "q8_32/256", of Q4_K in
 * class "q8_32/factors". */
#include "backend/cuda/linear/i8/i8.h"
#include "backend/cuda/linear/i8/i8_rows8_tma_warp.cuh"
#include "backend/cuda/linear/i8/i8_rows8_tma_wide.cuh"

static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_op *op = query->op;
    const sl_weight *weight = &query->program->weights[op->u.linear.segments[0].weight];
    const char *why = sl_i8_rows8_declines(kernel, query);
    if (why) {
        return why;
    }
    if (query->rows[query->values[op->out[0].value].rows] < ((const sl_cuda_kernel *)kernel)->least_rows) {
        return "takes 2 rows or more";
    }
    uint64_t row_bytes = 0;
    if (!sl_qtype_bytes(weight->type, (uint64_t)sl_cuda_columns(weight), &row_bytes) || row_bytes % 16 != 0) {
        return "takes weight rows of a multiple of 16 bytes";
    }
    if (sl_cuda_x_width(query) % 128 != 0 || sl_cuda_x_column(query) % 128 != 0) {
        return "takes x at multiples of 128 columns";
    }
    return sl_cuda_device_declines(((const sl_cuda_kernel *)kernel)->arrangement,
                                   sl_cuda_facts_of(query->backend));
}

static SL_CUDA_RUN(run_q8_0) {
    return wide_takes(op->weights[0].columns) ? wide_launch(context, op, stream)
                                              : held_launch<SL_QTYPE_Q8_0>(context, op, stream);
}

static SL_CUDA_RUN(run_q4_k) {
    return held_launch<SL_QTYPE_Q4_K>(context, op, stream);
}

static cudaError_t prepare(const sl_cuda_facts *facts) {
    const int bytes = facts->block_bytes;
    cudaError_t code = sl_allow_shared(held_kernel<SL_QTYPE_Q8_0>, bytes);
    code = code ? code : sl_allow_shared(held_kernel<SL_QTYPE_Q4_K>, bytes);
    code = code ? code : sl_allow_shared(wide_kernel<false>, bytes);
    return code ? code : sl_allow_shared(wide_kernel<true>, bytes);
}

static const sl_cuda_kernel KERNELS[] = {
    I8_ROWS8_TMA(Q8_0, "linear/q8_0/cuda-i8-rows8-tma", "q8_32/256", 2e-5f, declines, run_q8_0),
    I8_ROWS8_TMA(Q4_K, "linear/q4_k/cuda-i8-rows8-tma", "q8_32/factors", 1.5e-4f, declines, run_q4_k),
};

SL_CUDA_FAMILY(i8_rows8_tma) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, prepare};
