/* Eight-bit products of experts, of K-quants. */
#include "backend/cuda/linear/narrow/narrow_experts.cuh"
#include "backend/cuda/types/integer_types.h"

#define ROWS(ID, type_name) S8_EXPERTS(ID, type_name, SL_PRECISION_BIT(INT8))

static const sl_cuda_kernel KERNELS[] = {SL_INTEGER_KQUANTS(ROWS)};

SL_CUDA_FAMILY(narrow_experts_kquants) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                          experts_allow<SL_NARROW_S8, SL_INTEGER_KQUANTS(SL_INTEGER_ID)>};
