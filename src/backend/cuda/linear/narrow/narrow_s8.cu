#include "backend/cuda/linear/narrow/narrow.cuh"

const sl_narrow_shape sl_narrow_s8_shapes[SL_NARROW_SHAPES] = {
    NARROW_SHAPE(SL_NARROW_S8, 192, 2, 192),
    NARROW_SHAPE(SL_NARROW_S8, 128, 2, 160),
    NARROW_SHAPE(SL_NARROW_S8, 128, 1, 192),
    NARROW_SHAPE(SL_NARROW_S8, 64, 1, 128),
};
