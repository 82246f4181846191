/* Barriers in shared memory that count threads and bytes (PTX, "mbarrier"; compute capability 9.0). They are
 * named by their address in the window of shared memory (sl_shared_address), eight bytes each. */
#ifndef SL_BACKEND_CUDA_PTX_MBARRIER_CUH
#define SL_BACKEND_CUDA_PTX_MBARRIER_CUH

#include <stdint.h>

#if __CUDA_ARCH__ >= 900

/* A phase of the barrier ends when `count` threads have arrived, and the bytes expected have come. */
static __device__ __forceinline__ void sl_barrier_init(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

/* After the last sl_barrier_init, before the block meets and other threads use the barriers. */
static __device__ __forceinline__ void sl_barriers_ready(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void sl_barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* No branch: what is behind one waits for products. */
static __device__ __forceinline__ void sl_barrier_arrive_if(uint32_t barrier, bool arrives) {
    asm volatile("{\n"
                 ".reg .pred arrives;\n"
                 "setp.ne.u32 arrives, %1, 0;\n"
                 "@arrives mbarrier.arrive.shared::cta.b64 _, [%0];\n"
                 "}" ::"r"(barrier),
                 "r"((uint32_t)arrives)
                 : "memory");
}

/* Arrives at the barrier that lies there in the cluster's block `rank`. No branch. Only for what was read by
 * products that were waited for, and is written by copies next: with .release.cluster the compiler puts a
 * membar for all of the GPU in front, which costs a quarter of the time (docs/lab/narrow.md). */
static __device__ __forceinline__ void sl_barrier_arrive_there_if(uint32_t barrier, uint32_t rank,
                                                                  bool arrives) {
    asm volatile("{\n"
                 ".reg .pred arrives;\n"
                 ".reg .b32 there;\n"
                 "setp.ne.u32 arrives, %2, 0;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "@arrives mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(barrier),
                 "r"(rank), "r"((uint32_t)arrives)
                 : "memory");
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

#endif
#endif
