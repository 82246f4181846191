/* One row's experts in two launches: weights whose codes name one of 16 values. */
#include "backend/cuda/linear/i8/i8_experts.cuh"
#include "backend/cuda/linear/i8/i8_fp4.cuh"

const sl_i8_experts *sl_i8_experts_fp4(void) {
    static const sl_i8_experts LIST[] = {SL_INTEGER_TABLES(I8_EXPERTS), SL_INTEGER_NVFP4(I8_EXPERTS), {}};
    return LIST;
}
