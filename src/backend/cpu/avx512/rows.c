/* Ops on single rows, of the AVX-512 tier. */
#include "backend/cpu/avx512/avx512.h"

#include "backend/cpu/avx512/simd.h"
#include "backend/cpu/simd_rows.h"
