/* Attention of few rows over caches of fp8. */
#include "backend/cuda/attention/decode_launch.cuh"

const sl_decode_type sl_decode_cache_fp8 = {decode_launch<SL_QTYPE_FP8>, decode_prepare<SL_QTYPE_FP8>};
