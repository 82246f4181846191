/* Matrix products with few rows for Q8_0 and Q4_0. */
#include "backend/cuda/matvec_types.cuh"

SL_CUDA_RUN(sl_cuda_linear_matvec_q8_0) {
    return matvec_launch<SL_QTYPE_Q8_0>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_matvec_q4_0) {
    return matvec_launch<SL_QTYPE_Q4_0>(context, op, stream);
}

cudaError_t sl_cuda_matvec_prepare_legacy(int most_bytes) {
    const cudaError_t code = matvec_prepare_type<SL_QTYPE_Q8_0>(most_bytes);
    return code ? code : matvec_prepare_type<SL_QTYPE_Q4_0>(most_bytes);
}
