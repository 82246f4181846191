/* Asynchronous copies by the tensor memory accelerator (TMA) into shared memory, which end at barriers there
 * (PTX, "cp.async.bulk"; compute capability 9.0). Addresses of shared memory are those of the window
 * (sl_shared_address). */
#ifndef SL_BACKEND_CUDA_PTX_BULK_COPY_CUH
#define SL_BACKEND_CUDA_PTX_BULK_COPY_CUH

#include "backend/cuda/common/device.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"

#include <cuda.h>

/* ---- on the host ---- */

/* What a tensor map is of, in three dimensions, the innermost first. */
typedef struct sl_cuda_tensor {
    const void *data;
    int32_t element_bytes; /* 1, 2 or 8 */
    uint64_t sizes[3];     /* elements */
    uint64_t strides[2];   /* of the second and third dimension; bytes */
    uint32_t box[3];       /* elements that a copy brings; 0 of the third dimension: one */
    bool swizzles;         /* piece p of 16 bytes of row r of the box lies in place p ^ r % 8 */
} sl_cuda_tensor;

/* Makes the map; what lies outside the tensor reads as zeros. No device work. tensor_map.cu */
cudaError_t sl_cuda_tensor_map(const sl_cuda_tensor *tensor, CUtensorMap *map);

/* ---- in a kernel ---- */

#if __CUDA_ARCH__ >= 900

/* Both addresses and the count are multiples of 16. */
static __device__ __forceinline__ void sl_bulk_copy(uint32_t to, const void *from, uint32_t bytes,
                                                    uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

/* Of a tensor: the box whose first element is at (column, row, layer). */
static __device__ __forceinline__ void sl_box_copy(uint32_t to, const CUtensorMap *map, int32_t column,
                                                   int32_t row, int32_t layer, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(layer), "r"(barrier)
                 : "memory");
}

/* The same of what is read once, as weights are in a step: its lines leave L2 first. */
static __device__ __forceinline__ void sl_box_copy_once(uint32_t to, const CUtensorMap *map, int32_t column,
                                                        int32_t row, int32_t layer, uint32_t barrier) {
    asm volatile("{\n"
                 ".reg .b64 policy;\n"
                 "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
                 "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4}], [%5], policy;\n"
                 "}" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(layer), "r"(barrier)
                 : "memory");
}

/* To the same place in each of the cluster's blocks whose bit is in `ranks`; the barriers that lie there in
 * those blocks count the bytes. */
typedef struct sl_box_to_all {
    uint32_t barrier;
    uint16_t ranks;
} sl_box_to_all;

static __device__ __forceinline__ void sl_box_copy_to_all(uint32_t to, const CUtensorMap *map, int32_t column,
                                                          int32_t row, int32_t layer,
                                                          const sl_box_to_all &all) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(layer), "r"(all.barrier), "h"(all.ranks)
                 : "memory");
}

/* Brings a map near, that copies will need. */
static __device__ __forceinline__ void sl_map_prefetch(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

#endif

#endif
