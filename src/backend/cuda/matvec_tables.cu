/* Matrix products with few rows for the types whose values are in a table. */
#include "backend/cuda/matvec_types.cuh"

MATVEC_RUN(IQ4_NL, iq4_nl)
MATVEC_RUN(IQ4_XS, iq4_xs)
MATVEC_RUN(MXFP4, mxfp4)

cudaError_t sl_cuda_matvec_prepare_tables(int most_bytes) {
    cudaError_t code = matvec_prepare_type<SL_QTYPE_IQ4_NL>(most_bytes);
    code = code ? code : matvec_prepare_type<SL_QTYPE_IQ4_XS>(most_bytes);
    return code ? code : matvec_prepare_type<SL_QTYPE_MXFP4>(most_bytes);
}
