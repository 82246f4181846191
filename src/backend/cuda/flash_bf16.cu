/* Flash attention over caches of bf16. */
#include "backend/cuda/flash.cuh"

FLASH_DEFINE(bf16, SL_QTYPE_BF16)
