/* int8 tensor-core products of the types whose values are in a table. */
#include "backend/cuda/mmq_launch.cuh"

MMQ_RUN(IQ4_NL, iq4_nl)
MMQ_RUN(IQ4_XS, iq4_xs)
MMQ_RUN(MXFP4, mxfp4)

cudaError_t sl_cuda_mmq_prepare_tables(int most_bytes) {
    cudaError_t code = mmq_prepare<SL_QTYPE_IQ4_NL>(most_bytes);
    code = code ? code : mmq_prepare<SL_QTYPE_IQ4_XS>(most_bytes);
    return code ? code : mmq_prepare<SL_QTYPE_MXFP4>(most_bytes);
}
