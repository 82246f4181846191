/* Attention of few rows over caches of f16. */
#include "backend/cuda/flash_decode_kernel.cuh"

DECODE_DEFINE(f16, SL_QTYPE_F16)
