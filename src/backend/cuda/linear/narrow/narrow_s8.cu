#include "backend/cuda/linear/narrow/narrow.cuh"

const sl_narrow_shape sl_narrow_s8_shapes[SL_NARROW_SHAPES] = {
    NARROW_SHAPE(SL_NARROW_S8, 192, 2, true, 192),    NARROW_SHAPE(SL_NARROW_S8, 192, 2, false, 100000),
    NARROW_SHAPE(SL_NARROW_S8, 192, 4, true, 100000), NARROW_SHAPE(SL_NARROW_S8, 192, 1, true, 100000),
    NARROW_SHAPE(SL_NARROW_S8, 128, 2, true, 160),    NARROW_SHAPE(SL_NARROW_S8, 128, 2, false, 100000),
    NARROW_SHAPE(SL_NARROW_S8, 128, 1, true, 192),    NARROW_SHAPE(SL_NARROW_S8, 64, 1, true, 128),
};
