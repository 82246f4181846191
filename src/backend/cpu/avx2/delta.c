/* Recurrent layers of the AVX2 tier. */
#include "backend/cpu/avx2/avx2.h"

#include "backend/cpu/avx2/simd.h"
#include "backend/cpu/simd_delta.h"
#include "backend/cpu/simd_ssm.h"
