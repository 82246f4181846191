/* int8 tensor-core products of Q4_1, Q5_0 and Q5_1. */
#include "backend/cuda/mmq_launch.cuh"

MMQ_RUN(Q4_1, q4_1)
MMQ_RUN(Q5_0, q5_0)
MMQ_RUN(Q5_1, q5_1)

cudaError_t sl_cuda_mmq_prepare_fives(int most_bytes) {
    cudaError_t code = mmq_prepare<SL_QTYPE_Q4_1>(most_bytes);
    code = code ? code : mmq_prepare<SL_QTYPE_Q5_0>(most_bytes);
    return code ? code : mmq_prepare<SL_QTYPE_Q5_1>(most_bytes);
}
