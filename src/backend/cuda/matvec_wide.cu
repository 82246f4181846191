/* Matrix products of Q8_0 with 2 to 8 rows on Hopper (matvec_wide.cuh), in class "q8_32/256". */
#include "backend/cuda/matvec_wide.cuh"

const char *sl_cuda_wide_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const char *why = sl_cuda_held_declines(kernel, query);
    if (why) {
        return why;
    }
    const int32_t columns = query->program->weights[query->op->u.linear.segments[0].weight].columns;
    return columns < WIDE_LEAST_COLUMNS || (columns > WIDE_PHASE && columns % WIDE_PHASE != 0)
               ? "takes 3072 to 4096 columns, or a multiple of 4096"
               : NULL;
}

SL_CUDA_RUN(sl_cuda_linear_wide_q8_0) {
    return wide_launch(context, op, stream);
}

cudaError_t sl_cuda_matvec_prepare_wide(int most_bytes) {
    const cudaError_t code = sl_allow_shared(wide_kernel<false>, most_bytes);
    return code ? code : sl_allow_shared(wide_kernel<true>, most_bytes);
}
