/* One call between ranks (exchange.h), as its kernels see it: its number, its slots, and what goes through
 * them with marks. */
#ifndef SL_BACKEND_CUDA_EXCHANGE_CALL_CUH
#define SL_BACKEND_CUDA_EXCHANGE_CALL_CUH

#include "backend/cuda/common/quad.cuh"
#include "backend/cuda/exchange/exchange.h"
#include "backend/cuda/ptx/system.cuh"

enum {
    SL_EXCHANGE_LOOKS = 1024, /* at memory, for one at the clock */
    SL_EXCHANGE_PAIR_BYTES = 16
};

static constexpr unsigned long long SL_EXCHANGE_NANOSECONDS = SL_CUDA_EXCHANGE_SECONDS * 1000000000ull;

typedef struct sl_exchange_shared {
    unsigned char *pools[SL_MOST_RANKS];
    unsigned long long calls;
} sl_exchange_shared;

typedef struct sl_exchange_call {
    sl_cuda_exchange *exchange;
    unsigned char *const *pools; /* [ranks], in shared memory */
    uint64_t slot_bytes;
    int32_t rank, ranks;
    uint32_t first, step, end; /* the thread's first quad, from one to its next, and behind the last */
    unsigned long long number;
} sl_exchange_call;

/* ---- its beginning ---- */

/* What is the same in all calls. Before the inputs are there. */
static __device__ __forceinline__ sl_exchange_call sl_exchange_call_of(sl_cuda_exchange *exchange,
                                                                       sl_exchange_shared *shared) {
    sl_exchange_call call = {};
    if (threadIdx.x < SL_MOST_RANKS) {
        shared->pools[threadIdx.x] = exchange->pools[threadIdx.x];
    }
    call.exchange = exchange;
    call.pools = shared->pools;
    call.slot_bytes = exchange->slot_bytes;
    call.rank = exchange->rank;
    call.ranks = exchange->ranks;
    return call;
}

/* By every thread of every block, when the inputs are there; then sl_count_call. */
static __device__ __forceinline__ void sl_number_call(const sl_cuda_exchange *exchange,
                                                      sl_exchange_call *call, sl_exchange_shared *shared) {
    if (threadIdx.x == 0) {
        shared->calls = *(const volatile unsigned long long *)&exchange->calls;
    }
    __syncthreads();
    call->number = shared->calls + 1;
}

/* The call's number is the next one's when all blocks have read it: a block reads it by one thread, which has
 * it before it comes here. */
static __device__ __forceinline__ void sl_count_call(sl_cuda_exchange *exchange, unsigned long long number) {
    if (threadIdx.x == 0 && (gridDim.x == 1 || atomicAdd(&exchange->arrivals, 1u) == gridDim.x - 1)) {
        exchange->arrivals = 0;
        exchange->calls = number;
    }
}

/* ---- memory ---- */

/* What rank `from` leaves in the pool in this turn. */
static __device__ __forceinline__ unsigned char *sl_slot_of(const sl_exchange_call &call, unsigned char *pool,
                                                            int32_t from) {
    const int32_t turn = (int32_t)(call.number % SL_EXCHANGE_TURNS);
    return pool + SL_EXCHANGE_FLAGS + (uint64_t)(turn * call.ranks + from) * call.slot_bytes;
}

/* A turn's numbers are all even or all odd: no two within 2^32 calls are the same, and none is the 0 that
 * memory begins with. */
static __device__ __forceinline__ uint32_t sl_mark_of(const sl_exchange_call &call) {
    return (uint32_t)call.number | 1u;
}

/* ---- waiting ---- */

static constexpr unsigned long long SL_EXCHANGE_OVER = ~0ull;

/* When the wait for rank `rank` began, of which 0 is not known; SL_EXCHANGE_OVER where nobody waits any more,
 * nor in the launches behind. */
static __device__ __noinline__ unsigned long long sl_look_up(sl_cuda_exchange *exchange, int32_t rank,
                                                             unsigned long long begin) {
    volatile sl_cuda_meeting *meeting = exchange->meeting;
    const unsigned long long now = sl_global_time();
    if (meeting->over) {
        *(volatile int32_t *)&exchange->ranks = 0;
        return SL_EXCHANGE_OVER;
    }
    if (begin && now - begin > SL_EXCHANGE_NANOSECONDS) {
        meeting->absent = 1u + (uint32_t)rank;
        __threadfence_system();
        __trap();
    }
    return begin ? begin : now;
}

/* Until it is there, whatever rank `rank` is to bring, or all is over. */
template <typename FUNCTION>
static __device__ __forceinline__ void sl_wait_for_rank(const sl_exchange_call &call, int32_t rank,
                                                        FUNCTION is_there) {
    unsigned long long begin = 0;
    for (uint32_t looks = 1; !is_there() && begin != SL_EXCHANGE_OVER; looks++) {
        if (looks % SL_EXCHANGE_LOOKS == 0) {
            begin = sl_look_up(call.exchange, rank, begin);
        }
    }
}

/* ---- small exchanges: a quad is two pairs of elements, each with the call's mark behind it ---- */

static __device__ __forceinline__ void sl_send_marked(const sl_exchange_call &call, unsigned char *slot,
                                                      uint32_t q, float4 quad) {
    const uint32_t mark = sl_mark_of(call);
    unsigned char *to = slot + (uint64_t)q * 2 * SL_EXCHANGE_PAIR_BYTES;
    sl_store_words(to, make_uint4(__float_as_uint(quad.x), mark, __float_as_uint(quad.y), mark));
    sl_store_words(to + SL_EXCHANGE_PAIR_BYTES,
                   make_uint4(__float_as_uint(quad.z), mark, __float_as_uint(quad.w), mark));
}

static __device__ __forceinline__ float4 sl_take_marked(const sl_exchange_call &call, int32_t from,
                                                        uint32_t q) {
    const uint32_t mark = sl_mark_of(call);
    const unsigned char *at =
        sl_slot_of(call, call.pools[call.rank], from) + (uint64_t)q * 2 * SL_EXCHANGE_PAIR_BYTES;
    uint4 a, b;
    sl_wait_for_rank(call, from, [&a, &b, at, mark] {
        a = sl_load_words(at);
        b = sl_load_words(at + SL_EXCHANGE_PAIR_BYTES);
        return a.y == mark && a.w == mark && b.y == mark && b.w == mark;
    });
    return make_float4(__uint_as_float(a.x), __uint_as_float(a.z), __uint_as_float(b.x),
                       __uint_as_float(b.z));
}

#endif
