/* Attention of few rows over caches of f16. */
#include "backend/cuda/attention/decode_launch.cuh"

const sl_decode_type sl_decode_cache_f16 = {decode_launch<SL_QTYPE_F16>, decode_prepare<SL_QTYPE_F16>};
