/* Attention of the AVX-512 tier. */
#include "backend/cpu/avx512/avx512.h"

#include "backend/cpu/avx512/simd.h"

#define SL_ATTENTION_VECTORS 4 /* 6 queries by 4 vectors: 24 sums */
#include "backend/cpu/simd_attention.h"
