/* int8 tensor-core products of weights in blocks of 256. */
#include "backend/cuda/mmq_launch.cuh"

MMQ_RUN(Q4_K, q4_k)
MMQ_RUN(Q5_K, q5_k)
MMQ_RUN(Q6_K, q6_k)

cudaError_t sl_cuda_mmq_prepare_kquants(int most_bytes) {
    cudaError_t code = mmq_prepare<SL_QTYPE_Q4_K>(most_bytes);
    code = code ? code : mmq_prepare<SL_QTYPE_Q5_K>(most_bytes);
    return code ? code : mmq_prepare<SL_QTYPE_Q6_K>(most_bytes);
}
