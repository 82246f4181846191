/* Matrix products of few rows, of weights whose quants are floating-point numbers of four or eight bits. */
#include "backend/cuda/matmul_skinny_launch.cuh"

SKINNY_RUN(MXFP4, mxfp4)
SKINNY_RUN(NVFP4, nvfp4)
SKINNY_RUN(NVFP4_128, nvfp4_128)
SKINNY_RUN(FP8_128, fp8_128)

cudaError_t sl_cuda_skinny_prepare_small(void) {
    cudaError_t code = skinny_prepare_type<SL_QTYPE_MXFP4>();
    code = code ? code : skinny_prepare_type<SL_QTYPE_NVFP4>();
    code = code ? code : skinny_prepare_type<SL_QTYPE_NVFP4_128>();
    return code ? code : skinny_prepare_type<SL_QTYPE_FP8_128>();
}
