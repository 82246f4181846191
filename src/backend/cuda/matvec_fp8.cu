/* Matrix products with few rows of x and FP8_128 weights, y = x W^T (+ bias) (+ residual), with or without
 * experts. A block of weights is four codes for each lane of a warp and a scale for all, so a warp takes a
 * weight row, or two when there are several rows of x, and reads consecutive bytes, several blocks under way
 * at once.
 *
 * Class "fp8/lanes": elements 4 l .. 4 l + 3 of every block belong to lane l. It adds block after block, from
 * 0: sum = fmaf(scale, dot, sum), where dot adds the four products in rising order, from 0, with fmaf. Then
 * the lanes are added as in sl_warp_sum. Then bias, then residual. */
#include "backend/cuda/device.cuh"

enum { THREADS = 256, WARPS = THREADS / SL_WARP, BLOCK = SL_FP8_128_ELEMENTS };

typedef struct fp8_args {
    sl_cuda_weight weights[SL_LINEAR_SEGMENTS];
    int32_t first_block[SL_LINEAR_SEGMENTS + 1]; /* of each segment, along x */
    int32_t segments;
    sl_cuda_operand x, ids, residual, y;
    int32_t experts_used, x_share; /* rows of y that read one row of x */
} fp8_args;

static __device__ __forceinline__ uint32_t load_word(const unsigned char *at) {
    uint32_t word;
    asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(word) : "l"(at));
    return word;
}

static __device__ __forceinline__ float half_of(uint32_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((uint16_t)bits));
    return value;
}

/* Two codes, in the upper bytes of halves, to what they mean times 2^-8: E4M3's bits are those of such a
 * half, subnormals included. */
static __device__ __forceinline__ uint32_t halves_of(uint32_t codes) {
    return (codes & 0x80008000u) | (codes >> 1 & 0x3f803f80u);
}

static __device__ __forceinline__ void decode_four(uint32_t codes, float w[4]) {
    const uint32_t low = halves_of(__byte_perm(codes, 0, 0x1404));
    const uint32_t high = halves_of(__byte_perm(codes, 0, 0x3424));
    w[0] = half_of(low & 0xffffu);
    w[1] = half_of(low >> 16);
    w[2] = half_of(high & 0xffffu);
    w[3] = half_of(high >> 16);
}

static __device__ __forceinline__ int32_t find_segment(const fp8_args &args) {
    int32_t segment = 0;
    while (segment + 1 < args.segments && (int32_t)blockIdx.x >= args.first_block[segment + 1]) {
        segment++;
    }
    return segment;
}

static __device__ __forceinline__ void store(const fp8_args &args, const sl_cuda_weight &weight,
                                             int32_t expert, int32_t row, int32_t output, float value) {
    if (weight.bias) {
        value += weight.bias[(int64_t)expert * weight.rows + output];
    }
    if (args.residual.data) {
        value += sl_f32(args.residual, row)[weight.column + output];
    }
    sl_f32(args.y, row)[weight.column + output] = value;
}

/* What a lane has of some blocks of its weight rows. */
template <int OUTPUTS, int AHEAD> struct some_blocks {
    uint32_t codes[AHEAD][OUTPUTS];
    float scales[AHEAD][OUTPUTS];

    /* Blocks past the end are the last once more. */
    __device__ __forceinline__ void load(const unsigned char *const *w_rows, int32_t first, int32_t blocks) {
        const uint32_t lane = threadIdx.x % SL_WARP;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const uint64_t at = (uint64_t)(first + i < blocks ? first + i : blocks - 1) * SL_FP8_128_BYTES;
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                codes[i][o] = load_word(w_rows[o] + at + 4 + 4 * lane);
                scales[i][o] = __uint_as_float(load_word(w_rows[o] + at));
            }
        }
    }

    template <int ROWS>
    __device__ __forceinline__ void add(const sl_cuda_operand &operand, int32_t row, int32_t rows,
                                        int32_t first, int32_t blocks, float (*sums)[ROWS]) const {
        const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (first + i >= blocks) {
                return;
            }
            float w[OUTPUTS][4];
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                decode_four(codes[i][o], w[o]);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r < rows) {
                    const float4 x =
                        *(const float4 *)(sl_f32(operand, row + r) + (int64_t)(first + i) * BLOCK + 4 * lane);
#pragma unroll
                    for (int o = 0; o < OUTPUTS; o++) {
                        const float dot =
                            fmaf(w[o][3], x.w, fmaf(w[o][2], x.z, fmaf(w[o][1], x.y, w[o][0] * x.x)));
                        sums[o][r] = fmaf(256.0f * scales[i][o], dot, sums[o][r]);
                    }
                }
            }
        }
    }
};

/* With experts blockIdx.y is a row of y, otherwise a group of ROWS rows. */
template <int ROWS, int OUTPUTS, int AHEAD>
static __global__ void __launch_bounds__(THREADS)
    fp8_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ fp8_args args) {
    sl_let_next_begin();
    const int32_t segment = find_segment(args);
    const sl_cuda_weight &weight = args.weights[segment];
    const int32_t first = (int32_t)blockIdx.y * ROWS, blocks = weight.columns / BLOCK;
    const int32_t output =
        (((int32_t)blockIdx.x - args.first_block[segment]) * WARPS + (int32_t)threadIdx.x / SL_WARP) *
        OUTPUTS;
    const unsigned char *w_rows[OUTPUTS];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) { /* past the end: the last row once more */
        const int32_t w_row = output + o < weight.rows ? output + o : weight.rows - 1;
        w_rows[o] = weight.data + (uint64_t)w_row * weight.row_bytes;
    }
    some_blocks<OUTPUTS, AHEAD> some;
    if (!args.ids.data) {
        some.load(w_rows, 0, blocks);
    }
    sl_wait_for_inputs();
    const int32_t left = sl_count(context, args.y.rows) - first, rows = left < ROWS ? left : ROWS;
    if (left <= 0) {
        return;
    }
    int32_t expert = 0;
    if (args.ids.data) {
        expert = sl_i32(args.ids, first / args.experts_used)[first % args.experts_used];
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            w_rows[o] += (uint64_t)expert * weight.expert_bytes;
        }
        some.load(w_rows, 0, blocks);
    }
    float sums[OUTPUTS][ROWS] = {};
    for (int32_t block = 0; block < blocks; block += AHEAD) {
        some_blocks<OUTPUTS, AHEAD> next = some;
        if (block + AHEAD < blocks) {
            next.load(w_rows, block + AHEAD, blocks);
        }
        some.add(args.x, first / args.x_share, rows, block, blocks, sums);
        some = next;
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            sums[o][r] = sl_warp_sum(sums[o][r]);
            if (threadIdx.x % SL_WARP == 0 && output + o < weight.rows && r < rows) {
                store(args, weight, expert, first + r, output + o, sums[o][r]);
            }
        }
    }
}

template <int ROWS, int OUTPUTS, int AHEAD>
static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    fp8_args args = {};
    int32_t blocks = 0;
    args.segments = op->weight_count;
    for (int32_t s = 0; s < SL_LINEAR_SEGMENTS; s++) {
        args.weights[s] = op->weights[s];
        args.first_block[s] = blocks;
        blocks += s < op->weight_count ? (op->weights[s].rows + WARPS * OUTPUTS - 1) / (WARPS * OUTPUTS) : 0;
    }
    args.first_block[SL_LINEAR_SEGMENTS] = blocks;
    args.x = op->in[0];
    args.ids = op->in[1];
    args.residual = op->in[3];
    args.y = op->out[0];
    args.experts_used = context->experts_used;
    args.x_share =
        op->out[0].rows == SL_ROWS_EXPERT && op->in[0].rows == SL_ROWS_STEP ? context->experts_used : 1;
    const unsigned groups = (unsigned)((op->rows[op->out[0].rows] + ROWS - 1) / ROWS);
    const sl_launch_shape shape = {dim3((unsigned)blocks, groups), dim3(THREADS), 0};
    return sl_launch(context, stream, shape, fp8_kernel<ROWS, OUTPUTS, AHEAD>, *context, args);
}

SL_CUDA_RUN(sl_cuda_linear_matvec_fp8_128) {
    const int32_t rows = op->rows[op->out[0].rows];
    if (op->in[1].data || rows == 1) {
        return launch<1, 1, 8>(context, op, stream);
    }
    return rows <= 4 ? launch<4, 2, 4>(context, op, stream)
                     : launch<SL_CUDA_FEW_ROWS, 2, 4>(context, op, stream);
}
