/* Matrix products of few rows, of weights whose quants of four bits stand for a table's values. */
#include "backend/cuda/linear/bf16/bf16_rows128_launch.cuh"

static const sl_cuda_kernel KERNELS[] = {
    BF16_ROWS128(IQ4_NL, iq4_nl, 9, 256, 2.5e-2f),
    BF16_ROWS128(IQ4_XS, iq4_xs, 9, 256, 2.5e-2f),
};

SL_CUDA_FAMILY(bf16_rows128_tables) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
                                       skinny_prepare<SL_QTYPE_IQ4_NL, SL_QTYPE_IQ4_XS>};
