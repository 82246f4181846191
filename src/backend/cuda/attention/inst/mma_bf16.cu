/* Flash attention over caches of bf16. */
#include "backend/cuda/attention/mma_kernel.cuh"

const sl_mma_type sl_mma_cache_bf16 = {SL_QTYPE_BF16, mma_launch<SL_QTYPE_BF16>, mma_bytes<SL_QTYPE_BF16>,
                                       mma_prepare<SL_QTYPE_BF16>};
