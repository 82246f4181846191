/* Matrix products with few rows for Q2_K and Q3_K. */
#include "backend/cuda/matvec_types.cuh"

MATVEC_RUN(Q2_K, q2_k)
MATVEC_RUN(Q3_K, q3_k)

cudaError_t sl_cuda_matvec_prepare_bits(int most_bytes) {
    const cudaError_t code = matvec_prepare_type<SL_QTYPE_Q2_K>(most_bytes);
    return code ? code : matvec_prepare_type<SL_QTYPE_Q3_K>(most_bytes);
}
