/* A matrix for each head, many rows, on the tensor cores.
 *
 * A block takes one head, 128 rows and 128 outputs; x and weights come to shared memory as BF16, 64 inputs a
 * step. Eight warps multiply 32 rows by 64 outputs each. Class "bf16/heads": x and weights are rounded to
 * BF16, products are added in f32 by mma m16n8k16, 16 inputs after the other. */
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/rows/head_linear.cuh"

enum {
    ROW_WARPS = 4,
    OUTPUT_WARPS = 2,
    THREADS = ROW_WARPS * OUTPUT_WARPS * SL_WARP,
    WARP_ROWS = 32,
    WARP_OUTPUTS = 64,
    ROWS = ROW_WARPS * WARP_ROWS,
    OUTPUTS = OUTPUT_WARPS * WARP_OUTPUTS,
    STEP = 64,         /* inputs */
    LEAST_ROWS = 9,    /* of fewer the other kernel is faster, if its bits may be others */
    X_BYTES = 2 * STEP /* of a row in shared memory */
};

/* Rows of shared memory are whole lines of 128 bytes, whose pieces of 16 bytes are turned, so that of eight
 * rows those below each other fall on different banks. */
static __device__ __forceinline__ uint32_t turned_at(int32_t row, int32_t row_bytes, int32_t at) {
    return (uint32_t)(row * row_bytes + (at ^ (row & 7) << 4));
}

/* x's inputs from `from` on; zeros behind the last input and row. */
static __device__ __forceinline__ void load_x(const sl_head_args &args, const sl_head_rows &rows,
                                              int32_t from, unsigned char *to) {
    const bool aligned =
        (((uint64_t)sl_head_x(args, rows, 0) | args.x.row_bytes | (uint64_t)args.inputs * sizeof(float)) &
         15) == 0;
#pragma unroll 4
    for (int32_t i = (int32_t)threadIdx.x; i < ROWS * STEP / 4; i += THREADS) {
        const int32_t r = i / (STEP / 4), c = i % (STEP / 4) * 4, left = args.inputs - from - c;
        float4 x = make_float4(0, 0, 0, 0);
        if (r < rows.count && left > 0) {
            const float *at = sl_head_x(args, rows, r) + from + c;
            x = aligned ? *(const float4 *)at
                        : make_float4(at[0], left > 1 ? at[1] : 0.0f, left > 2 ? at[2] : 0.0f,
                                      left > 3 ? at[3] : 0.0f);
        }
        *(uint2 *)(to + turned_at(r, X_BYTES, 2 * c)) =
            make_uint2(sl_bf16_pair(x.x, x.y), sl_bf16_pair(x.z, x.w));
    }
}

/* The weights of inputs from `from` on and outputs from `first` on, [outputs][inputs] or, turned,
 * [inputs][outputs]; zeros behind the last ones. */
template <sl_qtype TYPE, bool TURNED>
static __device__ __forceinline__ void load_weights(const sl_head_args &args, const sl_head_rows &rows,
                                                    int32_t from, int32_t first, unsigned char *to) {
    constexpr int32_t WIDTH = TURNED ? OUTPUTS : STEP;
    const int32_t top = TURNED ? from : first, column = TURNED ? first : from;
#pragma unroll 2
    for (int32_t i = (int32_t)threadIdx.x; i < STEP * OUTPUTS / 2; i += THREADS) {
        const int32_t r = i / (WIDTH / 2), c = i % (WIDTH / 2) * 2, at = column + c;
        const unsigned char *row = rows.matrix + (uint64_t)(top + r) * args.weight.row_bytes;
        const bool there = top + r < args.weight.rows;
        const uint64_t bytes = args.weight.row_bytes;
        const float low = there && at < args.weight.columns ? sl_row_element<TYPE>(row, bytes, at) : 0.0f;
        const float high =
            there && at + 1 < args.weight.columns ? sl_row_element<TYPE>(row, bytes, at + 1) : 0.0f;
        *(uint32_t *)(to + turned_at(r, 2 * WIDTH, 2 * c)) = sl_bf16_pair(low, high);
    }
}

/* sums += x w of a step; x, w: addresses in shared memory of the warp's rows and of the block's outputs. */
template <bool TURNED>
static __device__ __forceinline__ void multiply(uint32_t x, uint32_t w, int32_t output,
                                                float sums[2][WARP_OUTPUTS / 8][4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
#pragma unroll
    for (int step = 0; step < STEP / 16; step++) {
        uint32_t a[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            sl_load_matrices(x + turned_at(16 * i + lane % 16, X_BYTES, 32 * step + lane / 16 * 16), a[i]);
        }
#pragma unroll
        for (int n = 0; n < WARP_OUTPUTS / 16; n++) {
            uint32_t b[4];
            if (TURNED) {
                sl_load_matrices_transposed(
                    w + turned_at(16 * step + lane % 16, 2 * OUTPUTS, 2 * (output + 16 * n) + lane / 16 * 16),
                    b);
            } else {
                sl_load_matrices(w + turned_at(output + 16 * n + lane % 8 + lane / 16 * 8, 2 * STEP,
                                               32 * step + lane / 8 % 2 * 16),
                                 b);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                sl_mma_bf16(sums[i][2 * n], a[i], b[0], b[1]);
                sl_mma_bf16(sums[i][2 * n + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* Row `r` of the block's; those of other sequences are left to another launch. */
static __device__ __forceinline__ bool is_taken(const sl_cuda_context &context, const sl_head_args &args,
                                                const sl_head_rows &rows, int32_t r) {
    return r < rows.count &&
           (args.direct.side == SL_DIRECT_ALL ||
            sl_direct_takes(&args.direct, &context.spans[context.rows[rows.first + r].span]));
}

/* The warp's rows from `r` on, outputs from `output` on. */
static __device__ __forceinline__ void store(const sl_cuda_context &context, const sl_head_args &args,
                                             const sl_head_rows &rows, int32_t r, int32_t output,
                                             const float sums[2][WARP_OUTPUTS / 8][4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int32_t row = r + 8 * i + lane / 4;
        if (!is_taken(context, args, rows, row)) {
            continue;
        }
        float *y = sl_head_y(args, rows, row);
#pragma unroll
        for (int n = 0; n < WARP_OUTPUTS / 8; n++) {
            const int32_t at = output + 8 * n + 2 * (lane % 4);
            const float low = sums[i / 2][n][i % 2 * 2], high = sums[i / 2][n][i % 2 * 2 + 1];
            if (at + 1 < args.outputs && ((uint64_t)(y + at) & 7) == 0) {
                *(float2 *)(y + at) = make_float2(low, high);
            } else if (at < args.outputs) {
                y[at] = low;
                if (at + 1 < args.outputs) {
                    y[at + 1] = high;
                }
            }
        }
    }
}

/* Rows for each x of the grid, a head for each y, outputs for each z. */
template <sl_qtype TYPE, bool TURNED>
static __global__ void __launch_bounds__(THREADS, 2)
    head_tile_kernel(const __grid_constant__ sl_cuda_context context,
                     const __grid_constant__ sl_head_args args) {
    __shared__ uint4 x_rows[ROWS * X_BYTES / 16], weights[STEP * OUTPUTS * 2 / 16];
    sl_let_next_begin();
    sl_wait_for_inputs();
    const sl_head_rows rows = sl_head_rows_of(context, args, ROWS);
    if (rows.count <= 0) {
        return;
    }
    if (args.direct.side != SL_DIRECT_ALL && /* none of its rows: nothing to do */
        !__syncthreads_or(is_taken(context, args, rows, (int32_t)threadIdx.x))) {
        return;
    }
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, first = (int32_t)blockIdx.z * OUTPUTS;
    const int32_t r = warp % ROW_WARPS * WARP_ROWS, output = warp / ROW_WARPS * WARP_OUTPUTS;
    const uint32_t x = sl_shared_address(x_rows) + (uint32_t)(r * X_BYTES), w = sl_shared_address(weights);
    float sums[2][WARP_OUTPUTS / 8][4] = {};
    for (int32_t from = 0; from < args.inputs; from += STEP) {
        load_x(args, rows, from, (unsigned char *)x_rows);
        load_weights<TYPE, TURNED>(args, rows, from, first, (unsigned char *)weights);
        __syncthreads();
        multiply<TURNED>(x, w, output, sums);
        __syncthreads();
    }
    store(context, args, rows, r, first + output, sums);
    sl_head_copy_tail(args, rows, THREADS);
}

using head_kernel = decltype(&head_tile_kernel<SL_QTYPE_F32, false>);

/* Of each type, plain and turned. */
static const head_kernel HEAD_KERNELS[SL_QTYPE_COUNT][2] = {
#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes)                                           \
    {head_tile_kernel<SL_QTYPE_##ID, false>, head_tile_kernel<SL_QTYPE_##ID, true>},
#include "quant/qtypes.def"
#undef SL_QTYPE
};

/* Deterministic plans need one class for any number of rows, and this one's is the faster one of many. */
static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const int32_t least = ((const sl_cuda_kernel *)kernel)->least_rows;
    if (query->program->weights[query->op->u.head_linear.weight].type == SL_QTYPE_F32) {
        return "would round F32 weights";
    }
    return query->rows[SL_ROWS_STEP] < least && !query->backend->options.deterministic
               ? "takes 9 rows or more"
               : NULL;
}

cudaError_t sl_head_tile_launch(const sl_cuda_context *context, const sl_cuda_op *op, const sl_direct *direct,
                                cudaStream_t stream) {
    sl_head_args args = sl_head_args_of(op);
    args.direct = *direct;
    const sl_launch_shape shape = {dim3(sl_blocks_for(op->rows[args.y.rows], ROWS),
                                        (unsigned)args.weight.experts, sl_blocks_for(args.outputs, OUTPUTS)),
                                   dim3(THREADS), 0};
    return sl_launch(context, stream, shape, HEAD_KERNELS[args.weight.type][op->op->u.head_linear.turned],
                     *context, args);
}

static SL_CUDA_RUN(run) {
    const sl_direct all = {};
    return sl_head_tile_launch(context, op, &all, stream);
}

/* Both factors are rounded to BF16, by 2^-9 of themselves at most; a product of two outliers may be ten times
 * what sums are on average. */
static const sl_cuda_kernel KERNELS[] = {
    {.kernel = {.name = "head_linear/cuda-tile",
                .op = SL_OP_HEAD_LINEAR,
                .numeric_class = "bf16/heads",
                .tolerance = 8e-2f,
                .batched = true,
                .declines = declines},
     .arrangement = SL_CUDA_HEADS_TILE,
     .least_rows = LEAST_ROWS,
     .run = run},
};

SL_CUDA_FAMILY(head_linear_tile) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, NULL};
