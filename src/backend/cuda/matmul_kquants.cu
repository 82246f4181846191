/* Many-row matrix products of weights in blocks of 256. */
#include "backend/cuda/matmul_wgmma.cuh"

SL_CUDA_RUN(sl_cuda_linear_mma_q4_k) {
    return launch_type<SL_QTYPE_Q4_K>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_mma_q6_k) {
    return launch_type<SL_QTYPE_Q6_K>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_wgmma_q4_k) {
    return wgmma_launch_type<SL_QTYPE_Q4_K>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_wgmma_q6_k) {
    return wgmma_launch_type<SL_QTYPE_Q6_K>(context, op, stream);
}

cudaError_t sl_cuda_matmul_prepare_kquants(int most_bytes, bool wgmma) {
    cudaError_t code = prepare_type<SL_QTYPE_Q4_K>(most_bytes);
    code = code ? code : prepare_type<SL_QTYPE_Q6_K>(most_bytes);
    code = code || !wgmma ? code : wgmma_prepare_type<SL_QTYPE_Q4_K>();
    return code || !wgmma ? code : wgmma_prepare_type<SL_QTYPE_Q6_K>();
}
