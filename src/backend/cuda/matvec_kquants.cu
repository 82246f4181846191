/* Matrix products with few rows for Q4_K, Q5_K and Q6_K. */
#include "backend/cuda/matvec_types.cuh"

SL_CUDA_RUN(sl_cuda_linear_matvec_q4_k) {
    return matvec_launch<SL_QTYPE_Q4_K>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_matvec_q5_k) {
    return matvec_launch<SL_QTYPE_Q5_K>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_matvec_q6_k) {
    return matvec_launch<SL_QTYPE_Q6_K>(context, op, stream);
}

cudaError_t sl_cuda_matvec_prepare_kquants(int most_bytes) {
    cudaError_t code = matvec_prepare_type<SL_QTYPE_Q4_K>(most_bytes);
    code = code ? code : matvec_prepare_type<SL_QTYPE_Q5_K>(most_bytes);
    return code ? code : matvec_prepare_type<SL_QTYPE_Q6_K>(most_bytes);
}
