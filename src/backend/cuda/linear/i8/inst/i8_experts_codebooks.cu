/* One row's experts in two launches: weights in codebooks. */
#include "backend/cuda/linear/i8/i8_codebook.cuh"
#include "backend/cuda/linear/i8/i8_experts.cuh"

const sl_i8_experts *sl_i8_experts_codebooks(void) {
    static const sl_i8_experts LIST[] = {
        SL_INTEGER_IQ1(I8_EXPERTS), SL_INTEGER_IQ2(I8_EXPERTS), SL_INTEGER_IQ3(I8_EXPERTS), {}};
    return LIST;
}
