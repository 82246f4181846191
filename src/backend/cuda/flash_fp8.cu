/* Flash attention over caches of fp8 (E4M3). */
#include "backend/cuda/flash.cuh"

FLASH_DEFINE(fp8, SL_QTYPE_FP8)
