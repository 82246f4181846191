#include "backend/cuda/linear/narrow/narrow.cuh"

const sl_narrow_shape sl_narrow_e4m3_blocks_shapes[SL_NARROW_SHAPES] = {
    NARROW_SHAPE(SL_NARROW_E4M3, 192, 2, 1, true, false, 122),
    NARROW_SHAPE(SL_NARROW_E4M3, 192, 1, 1, true, false, 127),
    NARROW_SHAPE(SL_NARROW_E4M3, 128, 1, 2, true, false, 100),
    NARROW_SHAPE(SL_NARROW_E4M3, 64, 1, 2, true, false, 66),
};

const sl_narrow_shape sl_narrow_e4m3_blocks_gated_shapes[SL_NARROW_GATED_SHAPES] = {
    NARROW_SHAPE(SL_NARROW_E4M3, 192, 2, 1, true, true, 122),
    NARROW_SHAPE(SL_NARROW_E4M3, 192, 1, 1, true, true, 127),
};
