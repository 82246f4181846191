/* Many-row matrix products of weights in blocks of 32. */
#include "backend/cuda/matmul_ring.cuh"

SL_CUDA_RUN(sl_cuda_linear_mma_q8_0) {
    return launch_type<SL_QTYPE_Q8_0>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_mma_q4_0) {
    return launch_type<SL_QTYPE_Q4_0>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_wgmma_q8_0) {
    return ring_launch_type<SL_QTYPE_Q8_0>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_gated_wgmma_q8_0) {
    return ring_launch_gated<SL_QTYPE_Q8_0>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_wgmma_q4_0) {
    return ring_launch_type<SL_QTYPE_Q4_0>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_gated_wgmma_q4_0) {
    return ring_launch_gated<SL_QTYPE_Q4_0>(context, op, stream);
}

cudaError_t sl_cuda_matmul_prepare_legacy(int most_bytes, bool wgmma) {
    cudaError_t code = prepare_type<SL_QTYPE_Q8_0>(most_bytes);
    code = code ? code : prepare_type<SL_QTYPE_Q4_0>(most_bytes);
    code = code || !wgmma ? code : ring_prepare_type<SL_QTYPE_Q8_0>();
    return code || !wgmma ? code : ring_prepare_type<SL_QTYPE_Q4_0>();
}
