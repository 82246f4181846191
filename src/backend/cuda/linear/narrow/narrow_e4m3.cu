#include "backend/cuda/linear/narrow/narrow.cuh"

const sl_narrow_shape sl_narrow_e4m3_shapes[SL_NARROW_SHAPES] = {
    NARROW_SHAPE(SL_NARROW_E4M3, 192, 2, 1, true, 119),
    NARROW_SHAPE(SL_NARROW_E4M3, 192, 2, 1, false, 10000),
    NARROW_SHAPE(SL_NARROW_E4M3, 192, 2, 2, true, 10000),
    NARROW_SHAPE(SL_NARROW_E4M3, 192, 1, 2, true, 137),
    NARROW_SHAPE(SL_NARROW_E4M3, 192, 1, 1, true, 10000),
    NARROW_SHAPE(SL_NARROW_E4M3, 128, 2, 1, true, 102),
    NARROW_SHAPE(SL_NARROW_E4M3, 128, 1, 2, true, 102),
    NARROW_SHAPE(SL_NARROW_E4M3, 64, 1, 2, true, 68),
};
