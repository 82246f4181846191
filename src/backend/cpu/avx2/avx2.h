/* What the files of the AVX2 tier give its table. */
#ifndef SL_BACKEND_CPU_AVX2_AVX2_H
#define SL_BACKEND_CPU_AVX2_AVX2_H

#define SL_TIER(name) sl_avx2_##name
#define SL_TIER_ISA SL_ISA_AVX2
#include "backend/cpu/simd_tier.h"

#endif
