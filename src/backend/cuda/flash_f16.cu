/* Flash attention over caches of f16. */
#include "backend/cuda/flash.cuh"

FLASH_DEFINE(f16, SL_QTYPE_F16)
