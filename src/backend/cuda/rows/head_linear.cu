/* A matrix for each head.
 *
 * A block takes one head, 8 rows and some outputs, so that a weight is decoded once for 8 rows. Class
 * "f32/heads": of a matrix [outputs][inputs] a warp takes an output, lane l the inputs l, l + 32, ... in
 * rising order with fmaf, then lanes are added as a tree; of a turned one a thread takes an output, all
 * inputs in rising order with fmaf. */
#include "backend/cuda/rows/row_ops.cuh"

enum { THREADS = 128, WARPS = THREADS / SL_WARP, ROWS = 8, WARP_OUTPUTS = 16 };

typedef struct head_args {
    sl_cuda_weight weight;
    sl_cuda_operand x, y;
    int32_t x_stride, tail;
} head_args;

/* What a block works on. */
typedef struct head_rows {
    const unsigned char *matrix;
    int32_t head, first, count; /* rows of the step */
} head_rows;

static __device__ __forceinline__ const float *x_of(const head_args &args, const head_rows &rows, int32_t r) {
    return sl_f32(args.x, rows.first + r) + rows.head * args.x_stride;
}

static __device__ __forceinline__ float *y_of(const head_args &args, const head_rows &rows, int32_t r,
                                              int32_t outputs) {
    return sl_f32(args.y, rows.first + r) + rows.head * (outputs + args.tail);
}

template <sl_qtype TYPE> static __device__ void multiply(const head_args &args, const head_rows &rows) {
    const int32_t inputs = args.weight.columns, outputs = args.weight.rows;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    const int32_t first = ((int32_t)blockIdx.z * WARPS + warp) * WARP_OUTPUTS;
    for (int32_t output = first; output < first + WARP_OUTPUTS && output < outputs; output++) {
        const unsigned char *row = rows.matrix + (uint64_t)output * args.weight.row_bytes;
        float sums[ROWS] = {};
        for (int32_t i = lane; i < inputs; i += SL_WARP) {
            const float w = sl_element<TYPE>(row, i);
#pragma unroll
            for (int32_t r = 0; r < ROWS; r++) {
                if (r < rows.count) {
                    sums[r] = fmaf(w, x_of(args, rows, r)[i], sums[r]);
                }
            }
        }
#pragma unroll
        for (int32_t r = 0; r < ROWS; r++) {
            const float sum = sl_warp_sum(sums[r]);
            if (lane == 0 && r < rows.count) {
                y_of(args, rows, r, outputs)[output] = sum;
            }
        }
    }
}

template <sl_qtype TYPE>
static __device__ void multiply_turned(const head_args &args, const head_rows &rows) {
    const int32_t inputs = args.weight.rows, outputs = args.weight.columns;
    const int32_t output = (int32_t)(blockIdx.z * THREADS + threadIdx.x);
    float sums[ROWS] = {};
    if (output >= outputs) {
        return;
    }
    for (int32_t i = 0; i < inputs; i++) {
        const float w = sl_element<TYPE>(rows.matrix + (uint64_t)i * args.weight.row_bytes, output);
#pragma unroll
        for (int32_t r = 0; r < ROWS; r++) {
            if (r < rows.count) {
                sums[r] = fmaf(w, x_of(args, rows, r)[i], sums[r]);
            }
        }
    }
#pragma unroll
    for (int32_t r = 0; r < ROWS; r++) {
        if (r < rows.count) {
            y_of(args, rows, r, outputs)[output] = sums[r];
        }
    }
}

/* Rows for each x of the grid, a head for each y, outputs for each z. */
template <sl_qtype TYPE, bool TURNED>
static __global__ void __launch_bounds__(THREADS)
    head_linear_kernel(const __grid_constant__ sl_cuda_context context,
                       const __grid_constant__ head_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t left = sl_count(context, args.y.rows) - (int32_t)blockIdx.x * ROWS;
    if (left <= 0) {
        return;
    }
    const head_rows rows = {args.weight.data + blockIdx.y * args.weight.expert_bytes, (int32_t)blockIdx.y,
                            (int32_t)blockIdx.x * ROWS, left < ROWS ? left : ROWS};
    if (TURNED) {
        multiply_turned<TYPE>(args, rows);
    } else {
        multiply<TYPE>(args, rows);
    }
    const int32_t inputs = TURNED ? args.weight.rows : args.weight.columns;
    const int32_t outputs = TURNED ? args.weight.columns : args.weight.rows;
    for (int32_t i = (int32_t)threadIdx.x; blockIdx.z == 0 && i < rows.count * args.tail; i += THREADS) {
        y_of(args, rows, i / args.tail, outputs)[outputs + i % args.tail] =
            x_of(args, rows, i / args.tail)[inputs + i % args.tail];
    }
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
    const sl_op_head_linear *linear = &op->op->u.head_linear;
    const head_args args = {op->weights[0], op->in[0], op->out[0], linear->x_stride, linear->tail};
    const int32_t rows = op->rows[args.y.rows];
    const unsigned blocks = linear->turned ? sl_blocks_for(args.weight.columns, THREADS)
                                           : sl_blocks_for(args.weight.rows, WARPS * WARP_OUTPUTS);
    const sl_launch_shape shape = {dim3(sl_blocks_for(rows, ROWS), (unsigned)args.weight.experts, blocks),
                                   dim3(THREADS), 0};
    return sl_launch(context, stream, shape, HEAD_KERNELS[args.weight.type][linear->turned], *context, args);
}

static const sl_cuda_kernel KERNELS[] = {
    SL_CUDA_KERNEL(HEAD_LINEAR, "head_linear/cuda", "f32/heads", 1e-5f, NULL, run),
};

SL_CUDA_FAMILY(head_linear) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, NULL};
