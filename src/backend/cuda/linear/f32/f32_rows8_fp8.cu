/* Matrix products with few rows of x and FP8_128 weights, y = x W^T (+ bias) (+ residual), with or without
 * experts. A block of weights is four codes for each lane of a warp and a scale for all, so a warp takes a
 * weight row, or two when there are several rows of x, and reads consecutive codes, several blocks under way
 * at once; their scales lie behind all codes of the row (sl_fp8_scales_at).
 *
 * Class "fp8/lanes": elements 4 l .. 4 l + 3 of every block belong to lane l. It adds block after block, from
 * 0: sum = fmaf(scale, dot, sum), where dot adds the four products in rising order, from 0, with fmaf. Then
 * the lanes are added as in sl_warp_sum. Then bias, then residual. */
#include "backend/cuda/types/fp8.cuh"
#include "backend/cuda/linear/f32/f32_lanes.cuh"
#include "backend/cuda/linear/f32/f32_rows8.h"

/* Of one row of x: blocks under way twice over, and thread blocks of a processor. H200, 4096 x 4096 and 4096
 * x 12288: 2230 and 2770 GB/s; 8 under way and 3 thread blocks 1640 and 2030. */
enum { AHEAD_ONE = 4, BLOCKS_ONE = 4 };

/* What a lane has of some blocks of its weight rows. */
template <int OUTPUTS, int AHEAD> struct some_blocks {
    enum { ELEMENTS = SL_FP8_128_ELEMENTS, STEP = AHEAD };
    uint32_t codes[AHEAD][OUTPUTS];
    float scales[AHEAD][OUTPUTS];

    /* Blocks past the end are the last once more. */
    __device__ __forceinline__ void load(const unsigned char *const *w_rows, int32_t first, int32_t blocks) {
        const uint32_t lane = threadIdx.x % SL_WARP;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const uint32_t at = (uint32_t)(first + i < blocks ? first + i : blocks - 1);
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                codes[i][o] = load_word(w_rows[o] + at * ELEMENTS + 4 * lane);
                scales[i][o] = __uint_as_float(load_word(w_rows[o] + (uint32_t)blocks * ELEMENTS + 4 * at));
            }
        }
    }

    /* x: of the first row. FULL: all blocks are there. */
    template <int ROWS, bool FULL>
    __device__ __forceinline__ void add(const sl_cuda_operand &operand, int32_t row, int32_t rows,
                                        int32_t first, int32_t blocks, float (*sums)[ROWS]) const {
        const float *x =
            sl_f32(operand, row) + 4 * ((int32_t)threadIdx.x % SL_WARP) + (int64_t)first * ELEMENTS;
        const uint64_t row_floats = operand.row_bytes / sizeof *x;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (!FULL && first + i >= blocks) {
                return;
            }
            float w[OUTPUTS][4];
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                sl_fp8_values(codes[i][o], w[o]);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (ROWS == 1 || r < rows) {
                    const float4 v = *(const float4 *)(x + (uint64_t)r * row_floats + i * ELEMENTS);
#pragma unroll
                    for (int o = 0; o < OUTPUTS; o++) {
                        const float dot =
                            fmaf(w[o][3], v.w, fmaf(w[o][2], v.z, fmaf(w[o][1], v.y, w[o][0] * v.x)));
                        sums[o][r] = fmaf(scales[i][o], dot, sums[o][r]);
                    }
                }
            }
        }
    }
};

template <int ROWS, int OUTPUTS, int AHEAD>
static __global__ void __launch_bounds__(LANES_THREADS, ROWS == 1 ? BLOCKS_ONE : 2)
    fp8_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ sl_lanes_args args) {
    multiply<ROWS, OUTPUTS, some_blocks<OUTPUTS, AHEAD>>(context, args);
}

template <int ROWS, int OUTPUTS, int AHEAD>
static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    return lanes_launch<ROWS, OUTPUTS>(context, op, stream, fp8_kernel<ROWS, OUTPUTS, AHEAD>);
}

static SL_CUDA_RUN(run) {
    const int32_t rows = op->rows[op->out[0].rows];
    if (op->in[1].data || rows == 1) {
        return launch<1, 1, AHEAD_ONE>(context, op, stream);
    }
    return rows <= 4 ? launch<4, 2, 2>(context, op, stream)
                     : launch<SL_CUDA_FEW_ROWS, 2, 2>(context, op, stream);
}

static const sl_cuda_kernel KERNELS[] = {
    F32_KERNEL(FP8_128, "linear/fp8_128/cuda-f32-rows8", SL_CUDA_F32_ROWS8, "fp8/lanes", 0, SL_CUDA_FEW_ROWS,
               sl_f32_rows8_declines, run),
};

SL_CUDA_FAMILY(f32_rows8_fp8) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, NULL};
