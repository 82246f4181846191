/* Memory that several devices read and write (PTX, "Memory Consistency Model", scope .sys). */
#ifndef SL_BACKEND_CUDA_PTX_SYSTEM_CUH
#define SL_BACKEND_CUDA_PTX_SYSTEM_CUH

#include <stdint.h>

/* What the block wrote before its last barrier, on whatever device, is there for who sees this. */
static __device__ __forceinline__ void sl_store_release(unsigned long long *to, unsigned long long value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

static __device__ __forceinline__ unsigned long long sl_load_acquire(const unsigned long long *from) {
    unsigned long long value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

/* Past the processor's own cache, and whole in each of their two halves. */
static __device__ __forceinline__ void sl_store_words(void *to, uint4 words) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y),
                 "r"(words.z), "r"(words.w)
                 : "memory");
}

static __device__ __forceinline__ uint4 sl_load_words(const void *from) {
    uint4 words;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(from)
                 : "memory");
    return words;
}

/* Nanoseconds, of a clock that moves on at least every microsecond. */
static __device__ __forceinline__ unsigned long long sl_global_time(void) {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

#endif
