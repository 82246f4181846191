/* One row's experts in two launches: weights of three bits and fewer without a codebook. */
#include "backend/cuda/linear/i8/i8_bits.cuh"
#include "backend/cuda/linear/i8/i8_experts.cuh"
#include "backend/cuda/linear/i8/i8_ternary.cuh"

const sl_i8_experts *sl_i8_experts_bits(void) {
    static const sl_i8_experts LIST[] = {SL_INTEGER_BITS(I8_EXPERTS), SL_INTEGER_TERNARY(I8_EXPERTS), {}};
    return LIST;
}
