/* What the files of the AMX tier give its table. */
#ifndef SL_BACKEND_CPU_AMX_AMX_H
#define SL_BACKEND_CPU_AMX_AMX_H

#define SL_TIER(name) sl_amx_##name
#define SL_TIER_ISA SL_ISA_AMX
#include "backend/cpu/simd_tier.h"

#endif
