/* One row's experts in two launches: weights of four to eight bits with scales, minima in those that have
 * them. */
#include "backend/cuda/linear/i8/i8_blocks.cuh"
#include "backend/cuda/linear/i8/i8_experts.cuh"

const sl_i8_experts *sl_i8_experts_kquants(void) {
    static const sl_i8_experts LIST[] = {
        SL_INTEGER_LEGACY(I8_EXPERTS), SL_INTEGER_KQUANTS(I8_EXPERTS), SL_INTEGER_FIVES(I8_EXPERTS), {}};
    return LIST;
}
