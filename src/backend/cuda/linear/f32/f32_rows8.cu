/* Matrix products with few rows of x, y = x W^T (+ bias) (+ residual), with or without experts: float weights
 * here, integers in i8_row1.cuh, i8_rows8.cuh and i8_rows8_tma.cuh. What counts is reading the weights
 * at the memory's rate. A warp takes one weight row, or two when there are several rows of x, and its lanes
 * take neighbouring pieces of 16 bytes, so that a warp reads consecutive bytes; the loads of several pieces
 * are under way at once.
 *
 * Class "f32/lanes": piece p of a row goes to lane p % 32 (F32: of four warps, to thread p % 128). A lane
 * adds its products in rising order with fmaf; then the lanes are added as in sl_warp_sum, and the warps in
 * order. Then bias, then residual. With more rows F32 weights go tile by tile, in the same class. */
#include "backend/cuda/common/linear_arguments.cuh"
#include "backend/cuda/linear/f32/f32_rows8.h"

enum { THREADS = 256, WARPS = THREADS / SL_WARP };

/* ---- pieces ---- */

/* A piece is RUN elements. SPLIT: warps that share a weight row. */
template <int TYPE> struct piece_shape {
    enum { RUN = 8, SPLIT = 1 };
};
template <> struct piece_shape<SL_QTYPE_F32> {
    enum { RUN = 4, SPLIT = 4 };
};
enum { RAW = 4, AHEAD_ONE = 4, AHEAD_MORE = 2 }; /* words of a piece; pieces under way */

static __device__ __forceinline__ void load_16(const unsigned char *at, uint32_t *words) {
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
        : "l"(at));
}

/* Weights of a piece of floats. */
template <int TYPE> static __device__ __forceinline__ void decode_floats(const uint32_t *raw, float *w) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (TYPE == SL_QTYPE_F32) {
            w[i] = __uint_as_float(raw[i]);
        } else if (TYPE == SL_QTYPE_F16) {
            w[2 * i] = sl_half_of(raw[i] & 0xffffu);
            w[2 * i + 1] = sl_half_of(raw[i] >> 16);
        } else {
            w[2 * i] = __uint_as_float(raw[i] << 16);
            w[2 * i + 1] = __uint_as_float(raw[i] & 0xffff0000u);
        }
    }
}

template <int RUN>
static __device__ __forceinline__ float add_floats(const float *w, const float *x, float sum) {
#pragma unroll
    for (int i = 0; i < RUN; i += 4) {
        const float4 v = *(const float4 *)(x + i);
        sum = fmaf(w[i + 3], v.w, fmaf(w[i + 2], v.z, fmaf(w[i + 1], v.y, fmaf(w[i], v.x, sum))));
    }
    return sum;
}

/* ---- the kernel ---- */

template <int TYPE, int ROWS, int OUTPUTS>
static __device__ __forceinline__ void add_piece(const sl_lanes_args &args, const uint32_t (*raw)[RAW],
                                                 int32_t p, int32_t first, int32_t rows,
                                                 float (*sums)[ROWS]) {
    enum { RUN = piece_shape<TYPE>::RUN };
    float w[OUTPUTS][RUN];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
        decode_floats<TYPE>(raw[o], w[o]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r < rows) {
            const float *x = sl_f32(args.x, first + r) + RUN * p;
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                sums[o][r] = add_floats<RUN>(w[o], x, sums[o][r]);
            }
        }
    }
}

/* With experts blockIdx.y is a row of y, otherwise a group of ROWS rows. AHEAD: pieces under way. */
template <int TYPE, int ROWS, int OUTPUTS, int AHEAD>
static __global__ void __launch_bounds__(THREADS)
    matvec_kernel(const __grid_constant__ sl_cuda_context context,
                  const __grid_constant__ sl_lanes_args args) {
    enum { SPLIT = piece_shape<TYPE>::SPLIT, PIECE = piece_shape<TYPE>::RUN, LANES = SPLIT * SL_WARP };
    __shared__ float partial[SPLIT > 1 ? WARPS : 1][OUTPUTS][ROWS];
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t first = (int32_t)blockIdx.y * ROWS, left = sl_count(context, args.y.rows) - first;
    if (left <= 0) {
        return;
    }
    const int32_t rows = left < ROWS ? left : ROWS;
    const int32_t segment = sl_linear_find(args.first_block, args.segments, (int32_t)blockIdx.x);
    const sl_cuda_weight &weight = args.weights[segment];
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % LANES;
    const int32_t output =
        (((int32_t)blockIdx.x - args.first_block[segment]) * (WARPS / SPLIT) + warp / SPLIT) * OUTPUTS;
    int32_t expert = 0;
    if (args.ids.data) {
        expert = sl_i32(args.ids, first / args.experts_used)[first % args.experts_used];
    }
    const unsigned char *matrix = weight.data + (uint64_t)expert * weight.expert_bytes;
    const unsigned char *w_rows[OUTPUTS];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) { /* past the end: the last row once more */
        const int32_t w_row = output + o < weight.rows ? output + o : weight.rows - 1;
        w_rows[o] = matrix + (uint64_t)w_row * weight.row_bytes;
    }
    float sums[OUTPUTS][ROWS] = {};
    const int32_t pieces = weight.columns / PIECE;
    for (int32_t base = lane; base < pieces; base += AHEAD * LANES) {
        uint32_t raw[AHEAD][OUTPUTS][RAW];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int32_t p = base + i * LANES < pieces ? base + i * LANES : base;
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                load_16(w_rows[o] + (uint64_t)p * 16, raw[i][o]);
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (base + i * LANES < pieces) {
                add_piece<TYPE, ROWS, OUTPUTS>(args, raw[i], base + i * LANES, first / args.x_share, rows,
                                               sums);
            }
        }
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            sums[o][r] = sl_warp_sum(sums[o][r]);
            if (SPLIT > 1 && lane % SL_WARP == 0) {
                partial[SPLIT > 1 ? warp : 0][o][r] = sums[o][r];
            }
        }
    }
    if (SPLIT > 1) {
        __syncthreads();
    }
    if (lane != 0) {
        return;
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float sum = sums[o][r];
            for (int i = 1; i < SPLIT; i++) {
                sum += partial[SPLIT > 1 ? warp + i : 0][o][r];
            }
            if (output + o < weight.rows && r < rows) {
                sl_linear_store(args, weight, expert, first + r, output + o, sum);
            }
        }
    }
}

/* ---- many rows ---- */

/* A block has TILE_GROUPS groups of 128 threads, and each thread a piece's place in the rows as in the kernel
 * above, so that sums are made in the same order; but for ROWS rows of x times OUTPUTS weight rows at once.
 * What lanes load is consecutive, and rows of x are shared by the groups through the cache. */
enum { TILE_GROUPS = 4, TILE_LANES = 128, TILE_THREADS = TILE_GROUPS * TILE_LANES };

/* Adds each of COUNT values over the warp as sl_warp_sum does, with the same bits, but every exchange leaves
 * a lane half of the values: the first COUNT / 32 are then those from the returned index on (with fewer than
 * 32 values, several lanes have the same one). */
template <int COUNT, int DISTANCE> static __device__ __forceinline__ int32_t sum_many(float *values) {
    const bool upper = ((int32_t)threadIdx.x & DISTANCE) != 0;
    if constexpr (COUNT == 1) {
        values[0] += __shfl_xor_sync(SL_FULL_WARP, values[0], DISTANCE);
    }
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
        const float given = upper ? values[i] : values[i + COUNT / 2];
        const float kept = upper ? values[i + COUNT / 2] : values[i];
        values[i] = kept + __shfl_xor_sync(SL_FULL_WARP, given, DISTANCE);
    }
    const int32_t index = upper ? COUNT / 2 : 0;
    if constexpr (DISTANCE == 1) {
        return index;
    } else {
        return index + sum_many<(COUNT > 1 ? COUNT / 2 : 1), DISTANCE / 2>(values);
    }
}

/* blockIdx.y: a group of ROWS rows; blockIdx.x: TILE_GROUPS * OUTPUTS weight rows of a segment. */
template <int ROWS, int OUTPUTS>
static __global__ void __launch_bounds__(TILE_THREADS)
    f32_tile_kernel(const __grid_constant__ sl_cuda_context context,
                    const __grid_constant__ sl_lanes_args args) {
    enum { COUNT = ROWS * OUTPUTS, LEFT = COUNT > SL_WARP ? COUNT / SL_WARP : 1 };
    __shared__ float partial[TILE_THREADS / SL_WARP][COUNT];
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t first = (int32_t)blockIdx.y * ROWS, left = sl_count(context, args.y.rows) - first;
    if (left <= 0) {
        return;
    }
    const int32_t segment = sl_linear_find(args.first_block, args.segments, (int32_t)blockIdx.x),
                  warp = (int32_t)threadIdx.x / SL_WARP;
    const int32_t group = (int32_t)threadIdx.x / TILE_LANES, thread = (int32_t)threadIdx.x % TILE_LANES;
    const sl_cuda_weight &weight = args.weights[segment];
    const int32_t output =
        (((int32_t)blockIdx.x - args.first_block[segment]) * TILE_GROUPS + group) * OUTPUTS;
    const float4 *x = (const float4 *)sl_f32(args.x, first), *w[OUTPUTS];
    uint32_t offsets[ROWS]; /* of rows, in units of 16 bytes */
#pragma unroll
    for (int r = 0; r < ROWS; r++) { /* past the end: the last row once more */
        offsets[r] = (uint32_t)(r < left ? r : left - 1) * (uint32_t)(args.x.row_bytes / 16);
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
        const int32_t row = output + o < weight.rows ? output + o : weight.rows - 1;
        w[o] = (const float4 *)(weight.data + (uint64_t)row * weight.row_bytes);
    }
    float sums[COUNT] = {};
#pragma unroll 1
    for (int32_t piece = thread; piece < weight.columns / 4; piece += TILE_LANES) {
        float4 weights[OUTPUTS];
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            weights[o] = __ldg(w[o] + piece);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 v = x[offsets[r] + (uint32_t)piece];
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                float *sum = &sums[r * OUTPUTS + o];
                *sum = fmaf(weights[o].w, v.w,
                            fmaf(weights[o].z, v.z, fmaf(weights[o].y, v.y, fmaf(weights[o].x, v.x, *sum))));
            }
        }
    }
    const int32_t index = sum_many<COUNT, SL_WARP / 2>(sums);
#pragma unroll
    for (int i = 0; i < LEFT; i++) {
        partial[warp][index + i] = sums[i];
    }
    __syncthreads();
    for (int32_t i = thread; i < COUNT; i += TILE_LANES) {
        const int32_t r = i / OUTPUTS, o = i % OUTPUTS, from = group * (TILE_LANES / SL_WARP);
        float sum = partial[from][i];
        for (int32_t other = 1; other < TILE_LANES / SL_WARP; other++) {
            sum += partial[from + other][i];
        }
        if (r < left && output + o < weight.rows) {
            sl_linear_store(args, weight, 0, first + r, output + o, sum);
        }
    }
}

/* ---- launches ---- */

template <int TYPE, int ROWS, int OUTPUTS, int AHEAD>
static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    sl_lanes_args args = {};
    const int32_t per_block = WARPS / piece_shape<TYPE>::SPLIT * OUTPUTS;
    const unsigned blocks = sl_lanes_fill(context, op, per_block, &args);
    const unsigned groups = (unsigned)((op->rows[op->out[0].rows] + ROWS - 1) / ROWS);
    const sl_launch_shape shape = {dim3(blocks, groups), dim3(THREADS), 0};
    return sl_launch(context, stream, shape, matvec_kernel<TYPE, ROWS, OUTPUTS, AHEAD>, *context, args);
}

template <int TYPE>
static cudaError_t launch_type(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const int32_t rows = op->rows[op->out[0].rows];
    if (op->in[1].data || rows == 1) {
        return launch<TYPE, 1, 1, AHEAD_ONE>(context, op, stream);
    }
    return rows <= 4 ? launch<TYPE, 4, 2, AHEAD_MORE>(context, op, stream)
                     : launch<TYPE, SL_CUDA_FEW_ROWS, 2, AHEAD_MORE>(context, op, stream);
}

template <int ROWS, int OUTPUTS>
static cudaError_t launch_tile(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    sl_lanes_args args = {};
    const unsigned blocks = sl_lanes_fill(context, op, TILE_GROUPS * OUTPUTS, &args);
    const unsigned groups = (unsigned)((op->rows[op->out[0].rows] + ROWS - 1) / ROWS);
    const sl_launch_shape shape = {dim3(blocks, groups), dim3(TILE_THREADS), 0};
    return sl_launch(context, stream, shape, f32_tile_kernel<ROWS, OUTPUTS>, *context, args);
}

/* Large tiles read less, small ones fill the device with few rows. */
static SL_CUDA_RUN(run_tile) {
    const int64_t rows = op->rows[op->out[0].rows];
    int64_t outputs = 0;
    for (int32_t s = 0; s < op->weight_count; s++) {
        outputs += op->weights[s].rows;
    }
    return rows * outputs >= (int64_t)context->processors * 16 * 16 * 3 / 4
               ? launch_tile<16, 4>(context, op, stream)
           : rows * outputs >= (int64_t)context->processors * 8 * 8 ? launch_tile<8, 2>(context, op, stream)
                                                                    : launch_tile<4, 1>(context, op, stream);
}

const char *sl_f32_rows8_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_op *op = query->op;
    /* A plan whose buckets are all this small would take it, one for longer chunks could not: the chunk would
     * change the bits. */
    if (query->backend->options.deterministic && ((const sl_cuda_kernel *)kernel)->most_rows > 0) {
        return "has a numeric class for few rows only";
    }
    if (op->in[1].value != SL_NONE && query->rows[SL_ROWS_STEP] > SL_CUDA_FEW_ROWS) {
        return "reads experts' weights row by row";
    }
    /* x and the weights are read 16 bytes at a time. */
    if (query->values[op->in[0].value].width % 4 != 0 || op->in[0].column % 4 != 0 ||
        query->program->weights[op->u.linear.segments[0].weight].columns % 8 != 0) {
        return "takes rows aligned to 16 bytes";
    }
    return sl_cuda_linear_declines(kernel, query);
}

const char *sl_f32_tile_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    if (query->op->in[1].value != SL_NONE) {
        return "takes no experts";
    }
    if (query->rows[query->values[query->op->out[0].value].rows] <
        ((const sl_cuda_kernel *)kernel)->least_rows) {
        return "is for more rows";
    }
    return sl_f32_rows8_declines(kernel, query);
}

static const sl_cuda_kernel KERNELS[] = {
    F32_KERNEL(F32, "linear/f32/cuda-f32-tile", SL_CUDA_F32_TILE, "f32/lanes", SL_CUDA_FEW_ROWS + 1, 0,
               sl_f32_tile_declines, run_tile),
    F32_KERNEL(F32, "linear/f32/cuda-f32-rows8", SL_CUDA_F32_ROWS8, "f32/lanes", 0, 0, sl_f32_rows8_declines,
               launch_type<SL_QTYPE_F32>),
    F32_KERNEL(F16, "linear/f16/cuda-f32-rows8", SL_CUDA_F32_ROWS8, "f32/lanes", 0, SL_CUDA_FEW_ROWS,
               sl_f32_rows8_declines, launch_type<SL_QTYPE_F16>),
    F32_KERNEL(BF16, "linear/bf16/cuda-f32-rows8", SL_CUDA_F32_ROWS8, "f32/lanes", 0, SL_CUDA_FEW_ROWS,
               sl_f32_rows8_declines, launch_type<SL_QTYPE_BF16>),
};

SL_CUDA_FAMILY(f32_rows8) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, NULL};
