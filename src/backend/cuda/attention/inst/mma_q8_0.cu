/* Flash attention over caches of q8_0. */
#include "backend/cuda/attention/mma_kernel.cuh"

const sl_mma_type sl_mma_cache_q8_0 = {SL_QTYPE_Q8_0, mma_launch<SL_QTYPE_Q8_0>, mma_bytes<SL_QTYPE_Q8_0>,
                                       mma_prepare<SL_QTYPE_Q8_0>};
