#include "backend/cuda/linear/narrow/narrow.cuh"

const sl_narrow_shape sl_narrow_s8_shapes[SL_NARROW_SHAPES] = {
    NARROW_SHAPE(SL_NARROW_S8, 192, 2, 1, false, 122),
    NARROW_SHAPE(SL_NARROW_S8, 192, 1, 1, false, 127),
    NARROW_SHAPE(SL_NARROW_S8, 128, 1, 2, false, 100),
    NARROW_SHAPE(SL_NARROW_S8, 64, 1, 2, false, 66),
};
