/* Eight-bit products of experts, of weights that are E4M3 already. */
#include "backend/cuda/linear/narrow/narrow_experts.cuh"

static const sl_cuda_kernel KERNELS[] = {
    E4M3_EXPERTS(FP8_128, fp8_128, SL_PRECISION_BIT(FP8)),
};

SL_CUDA_FAMILY(narrow_experts_fp8) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                      experts_allow<SL_NARROW_E4M3, SL_QTYPE_FP8_128>};
