/* Matrix products with few rows for Q4_1, Q5_0 and Q5_1. */
#include "backend/cuda/matvec_types.cuh"

MATVEC_RUN(Q4_1, q4_1)
MATVEC_RUN(Q5_0, q5_0)
MATVEC_RUN(Q5_1, q5_1)

cudaError_t sl_cuda_matvec_prepare_fives(int most_bytes) {
    cudaError_t code = matvec_prepare_type<SL_QTYPE_Q4_1>(most_bytes);
    code = code ? code : matvec_prepare_type<SL_QTYPE_Q5_0>(most_bytes);
    return code ? code : matvec_prepare_type<SL_QTYPE_Q5_1>(most_bytes);
}
