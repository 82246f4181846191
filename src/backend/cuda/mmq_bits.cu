/* int8 tensor-core products of Q2_K and Q3_K. */
#include "backend/cuda/mmq_launch.cuh"

MMQ_RUN(Q2_K, q2_k)
MMQ_RUN(Q3_K, q3_k)

cudaError_t sl_cuda_mmq_prepare_bits(int most_bytes) {
    const cudaError_t code = mmq_prepare<SL_QTYPE_Q2_K>(most_bytes);
    return code ? code : mmq_prepare<SL_QTYPE_Q3_K>(most_bytes);
}
