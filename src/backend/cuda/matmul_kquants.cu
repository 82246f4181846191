/* Many-row matrix products of weights in blocks of 256. */
#include "backend/cuda/matmul_ring.cuh"

SL_CUDA_RUN(sl_cuda_linear_mma_q4_k) {
    return launch_type<SL_QTYPE_Q4_K>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_mma_q6_k) {
    return launch_type<SL_QTYPE_Q6_K>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_wgmma_q4_k) {
    return ring_launch_type<SL_QTYPE_Q4_K>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_gated_wgmma_q4_k) {
    return ring_launch_gated<SL_QTYPE_Q4_K>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_wgmma_q6_k) {
    return ring_launch_type<SL_QTYPE_Q6_K>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_gated_wgmma_q6_k) {
    return ring_launch_gated<SL_QTYPE_Q6_K>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_wgmma_q5_k) {
    return ring_launch_type<SL_QTYPE_Q5_K>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_gated_wgmma_q5_k) {
    return ring_launch_gated<SL_QTYPE_Q5_K>(context, op, stream);
}

cudaError_t sl_cuda_matmul_prepare_kquants(int most_bytes, bool wgmma) {
    cudaError_t code = prepare_type<SL_QTYPE_Q4_K>(most_bytes);
    code = code ? code : prepare_type<SL_QTYPE_Q6_K>(most_bytes);
    code = code || !wgmma ? code : ring_prepare_type<SL_QTYPE_Q4_K>();
    code = code || !wgmma ? code : ring_prepare_type<SL_QTYPE_Q5_K>();
    return code || !wgmma ? code : ring_prepare_type<SL_QTYPE_Q6_K>();
}
