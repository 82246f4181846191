/* Many-row matrix products of FP8_128 weights. */
#include "backend/cuda/matmul_mma.cuh"

SL_CUDA_RUN(sl_cuda_linear_mma_fp8_128) {
    return launch_type<SL_QTYPE_FP8_128>(context, op, stream);
}

cudaError_t sl_cuda_matmul_prepare_fp8(int most_bytes) {
    return prepare_type<SL_QTYPE_FP8_128>(most_bytes);
}
