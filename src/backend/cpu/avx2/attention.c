/* Attention of the AVX2 tier. */
#include "backend/cpu/avx2/avx2.h"

#include "backend/cpu/avx2/simd.h"

#define SL_ATTENTION_VECTORS 2 /* 6 queries by 2 vectors: 12 sums */
#include "backend/cpu/simd_attention.h"
