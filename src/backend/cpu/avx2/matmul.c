/* Matrix products of the AVX2 tier. */
#include "backend/cpu/avx2/avx2.h"

#include "backend/cpu/avx2/dot.h"
#include "backend/cpu/matmul_tiles.h"
#include "quant/blocks.h"

enum { SL_FLOAT_ROWS = 6, SL_FLOAT_CHUNK = 1024 };
#define SL_FLOAT_TILE_LIST SL_TILE_LIST

SL_EACH_INT_TYPE(SL_INT_TYPE)
SL_TILES(SL_FLOAT_TILE, f32, F32)
SL_TILES(SL_FLOAT_TILE, f16, F16)
SL_TILES(SL_FP8_TILE, fp8_128, FP8_128)
SL_TILES(SL_FLOAT_TILE, bf16, BF16)

static const sl_matmul_type matmul_types[SL_QTYPE_COUNT] = {
    SL_FLOAT_ROW(f32, F32), SL_FLOAT_ROW(f16, F16), SL_FLOAT_ROW(fp8_128, FP8_128), SL_FLOAT_ROW(bf16, BF16),
    SL_EACH_INT_TYPE(SL_INT_ROW) SL_EACH_INT_ALIAS(SL_INT_ROW)};

#include "backend/cpu/matmul_skeleton.h"
