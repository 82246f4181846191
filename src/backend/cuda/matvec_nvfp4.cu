/* Matrix products with few rows of NVFP4, whole chunks of 256 columns (matvec_fp4.cu takes the others). */
#include "backend/cuda/matvec_nvfp4.cuh"
#include "backend/cuda/matvec_types.cuh"

MATVEC_RUN(NVFP4, nvfp4)
MATVEC_RUN(NVFP4_128, nvfp4_128)

cudaError_t sl_cuda_matvec_prepare_nvfp4(int most_bytes) {
    const cudaError_t code = matvec_prepare_type<SL_QTYPE_NVFP4>(most_bytes);
    return code ? code : matvec_prepare_type<SL_QTYPE_NVFP4_128>(most_bytes);
}
