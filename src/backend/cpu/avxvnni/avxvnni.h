/* What the files of the AVX-VNNI tier give its table. */
#ifndef SL_BACKEND_CPU_AVXVNNI_AVXVNNI_H
#define SL_BACKEND_CPU_AVXVNNI_AVXVNNI_H

#define SL_TIER(name) sl_avxvnni_##name
#define SL_TIER_ISA SL_ISA_AVXVNNI
#include "backend/cpu/simd_tier.h"

#endif
