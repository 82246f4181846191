/* Matrix products of few rows, of weights in blocks of 256. */
#include "backend/cuda/matmul_skinny_launch.cuh"

SKINNY_RUN(Q4_K, q4_k)
SKINNY_RUN(Q5_K, q5_k)
SKINNY_RUN(Q6_K, q6_k)

cudaError_t sl_cuda_skinny_prepare_kquants(void) {
    cudaError_t code = skinny_prepare_type<SL_QTYPE_Q4_K>();
    code = code ? code : skinny_prepare_type<SL_QTYPE_Q5_K>();
    return code ? code : skinny_prepare_type<SL_QTYPE_Q6_K>();
}
