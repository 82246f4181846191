/* Attention of few rows over caches of bf16. */
#include "backend/cuda/flash_decode_kernel.cuh"

DECODE_DEFINE(bf16, SL_QTYPE_BF16)
