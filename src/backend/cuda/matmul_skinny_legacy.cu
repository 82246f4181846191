/* Matrix products of few rows, of weights in blocks of 32. */
#include "backend/cuda/matmul_skinny_launch.cuh"

SKINNY_RUN(Q8_0, q8_0)
SKINNY_RUN(Q4_0, q4_0)

cudaError_t sl_cuda_skinny_prepare_legacy(void) {
    const cudaError_t code = skinny_prepare_type<SL_QTYPE_Q8_0>();
    return code ? code : skinny_prepare_type<SL_QTYPE_Q4_0>();
}
