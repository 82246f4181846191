/* A matrix for each head, a few rows.
 *
 * A block takes one head, 8 rows and some outputs, so that a weight is decoded once for 8 rows. Class
 * "f32/heads": of a matrix [outputs][inputs] a warp takes an output, lane l the inputs l, l + 32, ... in
 * rising order with fmaf, then lanes are added as a tree; of a turned one a lane takes an output, each of
 * four warps a quarter of the inputs, in rising order with fmaf, then the quarters are added in order. */
#include "backend/cuda/rows/head_linear.cuh"

enum { THREADS = 128, WARPS = THREADS / SL_WARP, ROWS = 8, WARP_OUTPUTS = 2 };

template <sl_qtype TYPE> static __device__ void multiply(const sl_head_args &args, const sl_head_rows &rows) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    const int32_t first = ((int32_t)blockIdx.z * WARPS + warp) * WARP_OUTPUTS;
    for (int32_t output = first; output < first + WARP_OUTPUTS && output < args.outputs; output++) {
        const unsigned char *row = rows.matrix + (uint64_t)output * args.weight.row_bytes;
        float sums[ROWS] = {};
#pragma unroll 4
        for (int32_t i = lane; i < args.inputs; i += SL_WARP) {
            const float w = sl_row_element<TYPE>(row, args.weight.row_bytes, i);
#pragma unroll
            for (int32_t r = 0; r < ROWS; r++) {
                if (r < rows.count) {
                    sums[r] = fmaf(w, sl_head_x(args, rows, r)[i], sums[r]);
                }
            }
        }
#pragma unroll
        for (int32_t r = 0; r < ROWS; r++) {
            const float sum = sl_warp_sum(sums[r]);
            if (lane == 0 && r < rows.count) {
                sl_head_y(args, rows, r)[output] = sum;
            }
        }
    }
}

template <sl_qtype TYPE>
static __device__ void multiply_turned(const sl_head_args &args, const sl_head_rows &rows) {
    __shared__ float quarters[WARPS][ROWS][SL_WARP];
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    const int32_t output = (int32_t)blockIdx.z * SL_WARP + lane, each = (args.inputs + WARPS - 1) / WARPS;
    const int32_t end = (warp + 1) * each < args.inputs ? (warp + 1) * each : args.inputs;
    float sums[ROWS] = {};
#pragma unroll 4
    for (int32_t i = warp * each; i < end; i++) {
        const unsigned char *row = rows.matrix + (uint64_t)i * args.weight.row_bytes;
        const float w =
            output < args.outputs ? sl_row_element<TYPE>(row, args.weight.row_bytes, output) : 0.0f;
#pragma unroll
        for (int32_t r = 0; r < ROWS; r++) {
            if (r < rows.count) {
                sums[r] = fmaf(w, sl_head_x(args, rows, r)[i], sums[r]);
            }
        }
    }
#pragma unroll
    for (int32_t r = 0; r < ROWS; r++) {
        quarters[warp][r][lane] = sums[r];
    }
    __syncthreads();
    for (int32_t r = warp; r < rows.count && output < args.outputs; r += WARPS) {
        float sum = quarters[0][r][lane];
#pragma unroll
        for (int32_t quarter = 1; quarter < WARPS; quarter++) {
            sum += quarters[quarter][r][lane];
        }
        sl_head_y(args, rows, r)[output] = sum;
    }
}

/* Rows for each x of the grid, a head for each y, outputs for each z. */
template <sl_qtype TYPE, bool TURNED>
static __global__ void __launch_bounds__(THREADS)
    head_linear_kernel(const __grid_constant__ sl_cuda_context context,
                       const __grid_constant__ sl_head_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const sl_head_rows rows = sl_head_rows_of(context, args, ROWS);
    if (rows.count <= 0) {
        return;
    }
    if (TURNED) {
        multiply_turned<TYPE>(args, rows);
    } else {
        multiply<TYPE>(args, rows);
    }
    sl_head_copy_tail(args, rows, THREADS);
}

using head_kernel = decltype(&head_linear_kernel<SL_QTYPE_F32, false>);

/* Of each type, plain and turned. */
static const head_kernel HEAD_KERNELS[SL_QTYPE_COUNT][2] = {
#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes)                                           \
    {head_linear_kernel<SL_QTYPE_##ID, false>, head_linear_kernel<SL_QTYPE_##ID, true>},
#include "quant/qtypes.def"
#undef SL_QTYPE
};

static SL_CUDA_RUN(run) {
    const bool turned = op->op->u.head_linear.turned;
    const sl_head_args args = sl_head_args_of(op);
    const sl_launch_shape shape = {dim3(sl_blocks_for(op->rows[args.y.rows], ROWS),
                                        (unsigned)args.weight.experts,
                                        sl_blocks_for(args.outputs, turned ? SL_WARP : WARPS * WARP_OUTPUTS)),
                                   dim3(THREADS), 0};
    return sl_launch(context, stream, shape, HEAD_KERNELS[args.weight.type][turned], *context, args);
}

static const sl_cuda_kernel KERNELS[] = {
    {.kernel = {.name = "head_linear/cuda",
                .op = SL_OP_HEAD_LINEAR,
                .numeric_class = "f32/heads",
                .tolerance = 1e-5f,
                .batched = true},
     .arrangement = SL_CUDA_HEADS_ROWS,
     .run = run},
};

SL_CUDA_FAMILY(head_linear) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, NULL};
