/* Attention of few rows over caches of q8_0. */
#include "backend/cuda/attention/decode_launch.cuh"

const sl_decode_type sl_decode_cache_q8_0 = {decode_launch<SL_QTYPE_Q8_0>, decode_prepare<SL_QTYPE_Q8_0>};
