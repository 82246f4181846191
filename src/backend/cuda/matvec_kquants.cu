/* Matrix products with few rows for Q4_K, Q5_K and Q6_K. */
#include "backend/cuda/matvec_types.cuh"

MATVEC_RUN(Q4_K, q4_k)
MATVEC_RUN(Q5_K, q5_k)
MATVEC_RUN(Q6_K, q6_k)
MATVEC_RUN_STREAM(Q4_K, q4_k)

cudaError_t sl_cuda_matvec_prepare_kquants(int most_bytes) {
    cudaError_t code = matvec_prepare_type<SL_QTYPE_Q4_K>(most_bytes);
    code = code ? code : matvec_prepare_type<SL_QTYPE_Q5_K>(most_bytes);
    return code ? code : matvec_prepare_type<SL_QTYPE_Q6_K>(most_bytes);
}
