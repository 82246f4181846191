/* Attention of few rows over caches of q8_0. */
#include "backend/cuda/flash_decode_kernel.cuh"

DECODE_DEFINE(q8_0, SL_QTYPE_Q8_0)
