#include "backend/cuda/linear/narrow/narrow.cuh"

const sl_narrow_shape sl_narrow_e4m3_shapes[SL_NARROW_SHAPES] = {
    NARROW_SHAPE(SL_NARROW_E4M3, 192, 2, 192),
    NARROW_SHAPE(SL_NARROW_E4M3, 128, 2, 160),
    NARROW_SHAPE(SL_NARROW_E4M3, 128, 1, 192),
    NARROW_SHAPE(SL_NARROW_E4M3, 64, 1, 128),
};
