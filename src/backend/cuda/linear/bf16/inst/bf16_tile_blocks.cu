/* Many-row matrix products of weights with nibbles in groups of 32 columns. */
#include "backend/cuda/linear/bf16/bf16_tile_wgmma.cuh"

/* With fewer rows in a step an expert has too few of them to pay for decoding: i8-tile, i8-rows64. */
enum { LEAST_ROWS = 257 };

static const sl_cuda_kernel KERNELS[] = {
    TILE_WGMMA_FROM(LEAST_ROWS, Q4_1, q4_1, 1.5e-2f),
    TILE_WGMMA_FROM(LEAST_ROWS, Q5_0, q5_0, 1.5e-2f),
    TILE_WGMMA_FROM(LEAST_ROWS, Q5_1, q5_1, 1.5e-2f),
    TILE_WGMMA_FROM(LEAST_ROWS, IQ4_NL, iq4_nl, 1.5e-2f),
    TILE_WGMMA_FROM(LEAST_ROWS, IQ4_XS, iq4_xs, 1.5e-2f),
};

SL_CUDA_FAMILY(bf16_tile_blocks) = {
    SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS,
    prepare_wgmma<SL_QTYPE_Q4_1, SL_QTYPE_Q5_0, SL_QTYPE_Q5_1, SL_QTYPE_IQ4_NL, SL_QTYPE_IQ4_XS>};
