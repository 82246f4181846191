/* Rings in shared memory whose slots have barriers. */
#ifndef SL_BACKEND_CUDA_COMMON_RING_CUH
#define SL_BACKEND_CUDA_COMMON_RING_CUH

#include <stdint.h>

/* A position in a ring, and the parity of the phase of its barriers. */
template <int LENGTH> struct sl_ring_place {
    uint32_t at = 0, parity = 0;
    __device__ __forceinline__ void next() {
        at++;
        if (at == LENGTH) {
            at = 0;
            parity ^= 1;
        }
    }
};

#endif
