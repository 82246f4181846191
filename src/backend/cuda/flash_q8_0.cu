/* Flash attention over caches of q8_0. */
#include "backend/cuda/flash.cuh"

FLASH_DEFINE(q8_0, SL_QTYPE_Q8_0)
