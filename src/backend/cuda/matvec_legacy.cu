/* Matrix products with few rows for Q8_0 and Q4_0. */
#include "backend/cuda/matvec_types.cuh"

MATVEC_RUN(Q8_0, q8_0)
MATVEC_RUN(Q4_0, q4_0)
MATVEC_RUN_STREAM(Q8_0, q8_0)

cudaError_t sl_cuda_matvec_prepare_legacy(int most_bytes) {
    const cudaError_t code = matvec_prepare_type<SL_QTYPE_Q8_0>(most_bytes);
    return code ? code : matvec_prepare_type<SL_QTYPE_Q4_0>(most_bytes);
}
