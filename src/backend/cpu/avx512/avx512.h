/* What the files of the AVX-512 tier give its table. */
#ifndef SL_BACKEND_CPU_AVX512_AVX512_H
#define SL_BACKEND_CPU_AVX512_AVX512_H

#define SL_TIER(name) sl_avx512_##name
#define SL_TIER_ISA SL_ISA_AVX512
#include "backend/cpu/simd_tier.h"

#endif
