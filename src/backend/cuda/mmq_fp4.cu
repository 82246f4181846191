/* int8 tensor-core products of NVFP4. */
#include "backend/cuda/mmq_launch.cuh"

MMQ_RUN(NVFP4, nvfp4)
MMQ_RUN(NVFP4_128, nvfp4_128)

cudaError_t sl_cuda_mmq_prepare_fp4(int most_bytes) {
    const cudaError_t code = mmq_prepare<SL_QTYPE_NVFP4>(most_bytes);
    return code ? code : mmq_prepare<SL_QTYPE_NVFP4_128>(most_bytes);
}
