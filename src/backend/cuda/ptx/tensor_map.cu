/* Tensor maps. */
#include "backend/cuda/ptx/bulk_copy.cuh"

#include <cudaTypedefs.h>

cudaError_t sl_cuda_tensor_map(const sl_cuda_tensor *tensor, CUtensorMap *map) {
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t code =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    if (code != cudaSuccess || found != cudaDriverEntryPointSuccess) {
        return code != cudaSuccess ? code : cudaErrorNotSupported;
    }
    const cuuint64_t sizes[3] = {tensor->sizes[0], tensor->sizes[1], tensor->sizes[2]};
    const cuuint64_t strides[2] = {tensor->strides[0], tensor->strides[1]};
    const cuuint32_t layers = tensor->box[2] ? tensor->box[2] : 1;
    const cuuint32_t box[3] = {tensor->box[0], tensor->box[1], layers}, steps[3] = {1, 1, 1};
    const CUtensorMapDataType type = tensor->element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                     : tensor->element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                                                  : CU_TENSOR_MAP_DATA_TYPE_UINT64;
    const CUresult result = ((PFN_cuTensorMapEncodeTiled_v12000)entry)(
        map, type, 3, (void *)tensor->data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        tensor->swizzles ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
