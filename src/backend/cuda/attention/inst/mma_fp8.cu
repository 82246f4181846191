/* Flash attention over caches of fp8 (E4M3). */
#include "backend/cuda/attention/mma_kernel.cuh"

const sl_mma_type sl_mma_cache_fp8 = {SL_QTYPE_FP8, mma_launch<SL_QTYPE_FP8>, mma_bytes<SL_QTYPE_FP8>,
                                      mma_prepare<SL_QTYPE_FP8>};
