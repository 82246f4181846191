/* Asynchronous copies by the tensor memory accelerator into shared memory, and the barriers there at which
 * they end (PTX, "mbarrier", "cp.async.bulk"; compute capability 9.0). Addresses of shared memory are those
 * of the window (sl_shared_address). */
#ifndef SL_BACKEND_CUDA_COPIES_CUH
#define SL_BACKEND_CUDA_COPIES_CUH

#include "backend/cuda/device.cuh"

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

/* Makes the map; what lies outside the tensor reads as zeros. No device work. copies.cu */
cudaError_t sl_cuda_tensor_map(const sl_cuda_tensor *tensor, CUtensorMap *map);

/* ---- in a kernel ---- */

#if __CUDA_ARCH__ >= 900

/* A phase of the barrier ends when `count` threads have arrived, and the bytes expected have come. */
static __device__ __forceinline__ void sl_barrier_init(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

/* After the last sl_barrier_init, before the block meets and other threads use the barriers. */
static __device__ __forceinline__ void sl_barriers_ready(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* The same, where the thread itself goes on with copies: those are of another proxy than its own writes. */
static __device__ __forceinline__ void sl_barrier_fence(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void sl_barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives when the thread's cp.async so far are done. */
static __device__ __forceinline__ void sl_barrier_arrive_copied(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* Arrives, and lets the phase end only when so many bytes have come. */
static __device__ __forceinline__ void sl_barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Stores a float to shared memory of the cluster's block `rank`, where it and the barrier lie as in this one;
 * the barrier counts its four bytes. Nothing else orders it. */
static __device__ __forceinline__ void sl_store_counted(uint32_t to, float value, uint32_t barrier,
                                                        uint32_t rank) {
    uint32_t there, counter;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(to), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counter) : "r"(barrier), "r"(rank));
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there),
        "r"(__float_as_uint(value)), "r"(counter)
        : "memory");
}

/* Until the phase of that parity has ended; a new barrier counts as if one of parity 1 had. */
static __device__ __forceinline__ void sl_barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Whether it has ended. */
static __device__ __forceinline__ uint32_t sl_barrier_ask(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

/* The same, perhaps after waiting for a while. */
static __device__ __forceinline__ uint32_t sl_barrier_try(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

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

/* Brings a map near, that copies will need. */
static __device__ __forceinline__ void sl_map_prefetch(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

#endif

#endif
