/* Matrix products with 2 to 8 rows on Hopper (matvec_held.cuh), of Q8_0 in class "q8_32/256", of Q4_K in
 * class "q8_32/factors". */
#include "backend/cuda/matvec_held.cuh"

enum { HELD_SLOTS_Q8_0 = 4, HELD_SLOTS_Q4_K = 2 };

const char *sl_cuda_held_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_op *op = query->op;
    const sl_weight *weight = &query->program->weights[op->u.linear.segments[0].weight];
    const char *why = sl_cuda_matvec_declines(kernel, query);
    if (why) {
        return why;
    }
    if (query->rows[query->values[op->out[0].value].rows] < ((const sl_cuda_kernel *)kernel)->least_rows) {
        return "takes 2 rows or more";
    }
    if (weight->experts > 1) {
        return "takes no experts";
    }
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, query->backend->options.device) !=
            cudaSuccess ||
        major < 9) {
        return "needs compute capability 9.0";
    }
    uint64_t row_bytes = 0;
    if (!sl_qtype_bytes(weight->type, (uint64_t)weight->columns, &row_bytes) || row_bytes % 16 != 0) {
        return "takes weight rows of a multiple of 16 bytes";
    }
    if (query->values[op->in[0].value].width % 128 != 0 || op->in[0].column % 128 != 0) {
        return "takes x at multiples of 128 columns";
    }
    return NULL;
}

SL_CUDA_RUN(sl_cuda_linear_held_q8_0) {
    return held_launch<SL_QTYPE_Q8_0, true, HELD_SLOTS_Q8_0>(context, op, context->processors, stream);
}

SL_CUDA_RUN(sl_cuda_linear_held_q4_k) {
    return held_launch<SL_QTYPE_Q4_K, false, HELD_SLOTS_Q4_K>(context, op, context->processors, stream);
}

cudaError_t sl_cuda_matvec_prepare_held(int most_bytes) {
    const cudaError_t code = sl_allow_shared(held_kernel<SL_QTYPE_Q8_0, true, HELD_SLOTS_Q8_0>, most_bytes);
    return code ? code : sl_allow_shared(held_kernel<SL_QTYPE_Q4_K, false, HELD_SLOTS_Q4_K>, most_bytes);
}
