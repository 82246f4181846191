/* Attention of few rows over caches of fp8. */
#include "backend/cuda/flash_decode_kernel.cuh"

DECODE_DEFINE(fp8, SL_QTYPE_FP8)
