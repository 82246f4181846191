/* Flash attention over caches of f16. */
#include "backend/cuda/attention/mma_kernel.cuh"

const sl_mma_type sl_mma_cache_f16 = {SL_QTYPE_F16, mma_launch<SL_QTYPE_F16>, mma_bytes<SL_QTYPE_F16>,
                                      mma_prepare<SL_QTYPE_F16>};
