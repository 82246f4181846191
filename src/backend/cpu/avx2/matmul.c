/* Matrix products of the AVX2 tier. */
#include "backend/cpu/avx2/unpack.h"
#include "backend/cpu/matmul_tiles.h"
#include "quant/blocks.h"

enum { SL_FLOAT_ROWS = 6 };

SL_INT_TYPE(q8_0, Q8_0)
SL_INT_TYPE(q4_0, Q4_0)
SL_INT_TYPE(q4_k, Q4_K)
SL_INT_TYPE(q6_k, Q6_K)
SL_INT_TYPE(q5_k, Q5_K)
SL_INT_TYPE(q4_1, Q4_1)
SL_INT_TYPE(q5_0, Q5_0)
SL_INT_TYPE(q5_1, Q5_1)
SL_INT_TYPE(q2_k, Q2_K)
SL_INT_TYPE(q3_k, Q3_K)
SL_INT_TYPE(iq4_nl, IQ4_NL)
SL_INT_TYPE(iq4_xs, IQ4_XS)
SL_INT_TYPE(mxfp4, MXFP4)
SL_TILES(SL_FLOAT_TILE, f32, F32)
SL_TILES(SL_FLOAT_TILE, f16, F16)
SL_TILES(SL_FLOAT_TILE, bf16, BF16)

static const sl_matmul_type matmul_types[SL_QTYPE_COUNT] = {
    SL_FLOAT_ROW(f32, F32),      SL_FLOAT_ROW(f16, F16),        SL_FLOAT_ROW(bf16, BF16),
    SL_INT_ROW(q8_0, Q8_0, 1),   SL_INT_ROW(q4_0, Q4_0, 1),     SL_INT_ROW(q4_k, Q4_K, 16),
    SL_INT_ROW(q6_k, Q6_K, 16),  SL_INT_ROW(q5_k, Q5_K, 16),    SL_INT_ROW(q4_1, Q4_1, 2),
    SL_INT_ROW(q5_0, Q5_0, 1),   SL_INT_ROW(q5_1, Q5_1, 2),     SL_INT_ROW(q2_k, Q2_K, 32),
    SL_INT_ROW(q3_k, Q3_K, 16),  SL_INT_ROW(iq4_nl, IQ4_NL, 1), SL_INT_ROW(iq4_xs, IQ4_XS, 8),
    SL_INT_ROW(mxfp4, MXFP4, 1),
};

#include "backend/cpu/matmul_skeleton.h"
