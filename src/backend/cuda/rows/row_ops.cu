/* Ops that treat each row by itself. The grid covers the bucket's rows; blocks of rows that a step does not
 * have return at once. */
#include "backend/cuda/rows/row_ops.cuh"
#include "program/temperature.h"

/* A row for each x of the grid, a thread for each of its quads; few rows in small blocks, so that more
 * processors share them. */
static sl_launch_shape quads_of_rows(int32_t rows, int32_t width) {
    const int32_t quads = (width + SL_QUAD - 1) / SL_QUAD, warps = (quads + SL_WARP - 1) / SL_WARP;
    int32_t threads = SL_ROW_THREADS;
    while (threads > 2 * SL_WARP && (int64_t)rows * quads < (int64_t)threads * SL_SMALL_GRID) {
        threads /= 2;
    }
    threads = warps * SL_WARP < threads ? warps * SL_WARP : threads;
    return {dim3((unsigned)rows, sl_blocks_for(quads, threads)), dim3((unsigned)threads), 0};
}

static __device__ __forceinline__ int32_t my_quad(void) {
    return SL_QUAD * (int32_t)(blockIdx.y * blockDim.x + threadIdx.x);
}

/* ---- embed ---- */

template <bool ALIGNED>
static __global__ void embed_kernel(const __grid_constant__ sl_cuda_context context,
                                    const __grid_constant__ sl_embed_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t row = (int32_t)blockIdx.x, i = my_quad();
    if (row < context.header->rows && i < args.table.columns) {
        float4 quad = sl_embed_quad<ALIGNED>(args, sl_embedding(context, args, row), i);
        if (args.residual.data) {
            quad =
                sl_add_quads(quad, sl_load_quad<ALIGNED>(sl_f32(args.residual, row), i, args.table.columns));
        }
        sl_store_quad<ALIGNED>(sl_f32(args.y, row), i, args.table.columns, quad);
    }
}

static SL_CUDA_RUN(run_embed) {
    const sl_embed_args args = {op->weights[0],         op->out[0],
                                op->op->u.embed.scale,  op->op->u.embed.source,
                                op->op->u.embed.offset, op->in[0]};
    const bool aligned =
        args.table.columns % SL_QUAD == 0 && sl_in_quads(args.y) && sl_in_quads(args.residual);
    const sl_launch_shape shape = quads_of_rows(op->rows[SL_ROWS_STEP], args.table.columns);
    return sl_launch(context, stream, shape, aligned ? embed_kernel<true> : embed_kernel<false>, *context,
                     args);
}

/* ---- rmsnorm ---- */

template <bool ALIGNED, sl_norm_form FORM>
static cudaError_t run_norm(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                            const sl_norm_args &args) {
    switch (sl_norm_shape_of(args.norm.width).quads) {
    case 1:
        return sl_norm_launch<1, ALIGNED, FORM, SL_NORM_OF_X>(context, op, stream, args);
    case 2:
        return sl_norm_launch<2, ALIGNED, FORM, SL_NORM_OF_X>(context, op, stream, args);
    case 4:
        return sl_norm_launch<4, ALIGNED, FORM, SL_NORM_OF_X>(context, op, stream, args);
    case 8:
        return sl_norm_launch<8, ALIGNED, FORM, SL_NORM_OF_X>(context, op, stream, args);
    default:
        return sl_norm_launch<SL_NORM_QUADS, ALIGNED, FORM, SL_NORM_OF_X>(context, op, stream, args);
    }
}

static cudaError_t run_norm_in_quads(const sl_cuda_context *context, const sl_cuda_op *op,
                                     cudaStream_t stream, const sl_norm_args &args) {
    switch (sl_norm_form_of(args)) {
    case SL_NORM_PLAIN:
        return run_norm<true, SL_NORM_PLAIN>(context, op, stream, args);
    case SL_NORM_ANY:
        return run_norm<true, SL_NORM_ANY>(context, op, stream, args);
    default:
        return run_norm<true, SL_NORM_SCALED>(context, op, stream, args);
    }
}

static SL_CUDA_RUN(run_rmsnorm) {
    const sl_norm_args args = sl_norm_args_of(op);
    return sl_norm_in_quads(args) ? run_norm_in_quads(context, op, stream, args)
                                  : run_norm<false, SL_NORM_SCALED>(context, op, stream, args);
}

static SL_CUDA_RUN(run_rmsnorm_quantize) {
    sl_norm_args args = sl_norm_args_of(&op[0]);
    args.q = op[1].out[0];
    args.keep_y = !op[0].unread[0];
    args.sum.data = op[0].unread[1] ? NULL : args.sum.data;
    return run_norm_in_quads(context, op, stream, args);
}

static const char *rmsnorm_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    return query->op->u.rmsnorm.width > SL_NORM_QUADS * SL_NORM_THREADS * SL_QUAD
               ? "takes groups of up to 32768"
               : NULL;
}

/* ---- layernorm ---- */

enum { LAYERNORM_THREADS = 256, LAYERNORM_WARPS = LAYERNORM_THREADS / SL_WARP };

typedef struct layernorm_args {
    sl_cuda_operand x, residual, y, sum;
    const float *weight, *bias;
    float epsilon;
    int32_t width;
} layernorm_args;

/* The sum of one number of each thread, in all of them. */
static __device__ __forceinline__ float block_sum(float value, float *parts) {
    const float mine = sl_warp_sum(value);
    __syncthreads(); /* the sum before this one has been read */
    if (threadIdx.x % SL_WARP == 0) {
        parts[threadIdx.x / SL_WARP] = mine;
    }
    __syncthreads();
    float total = 0;
    for (int32_t i = 0; i < LAYERNORM_WARPS; i++) {
        total += parts[i];
    }
    return total;
}

static __device__ __forceinline__ float layernorm_input(const float *x, const float *residual, int32_t i) {
    return residual ? x[i] + residual[i] : x[i];
}

/* Class "f32/threads": a block takes a row; column i is added by thread i % 256 in rising order, then over
 * warps, then warp after warp; first for the mean, then for the squares of what differs from it. */
static __global__ void layernorm_kernel(const __grid_constant__ sl_cuda_context context,
                                        const __grid_constant__ layernorm_args args) {
    __shared__ float parts[LAYERNORM_WARPS];
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t row = (int32_t)blockIdx.x, first = (int32_t)threadIdx.x, width = args.width;
    if (row >= sl_count(context, args.y.rows)) {
        return;
    }
    const float *x = sl_f32(args.x, row), *residual = args.residual.data ? sl_f32(args.residual, row) : NULL;
    float *y = sl_f32(args.y, row), *sum = args.sum.data ? sl_f32(args.sum, row) : NULL;
    float total = 0, squares = 0;
    for (int32_t i = first; i < width; i += LAYERNORM_THREADS) {
        total += layernorm_input(x, residual, i);
    }
    const float mean = block_sum(total, parts) / (float)width;
    for (int32_t i = first; i < width; i += LAYERNORM_THREADS) {
        const float apart = layernorm_input(x, residual, i) - mean;
        squares = fmaf(apart, apart, squares);
    }
    const float factor = 1.0f / sqrtf(block_sum(squares, parts) / (float)width + args.epsilon);
    for (int32_t i = first; i < width; i += LAYERNORM_THREADS) {
        const float value = layernorm_input(x, residual, i);
        const float normed = (value - mean) * factor * args.weight[i];
        y[i] = args.bias ? normed + args.bias[i] : normed;
        if (sum) {
            sum[i] = value;
        }
    }
}

static SL_CUDA_RUN(run_layernorm) {
    const sl_op_layernorm *norm = &op->op->u.layernorm;
    const layernorm_args args = {op->in[0],
                                 op->in[1],
                                 op->out[0],
                                 op->out[1],
                                 (const float *)op->weights[0].data,
                                 (const float *)op->weights[1].data,
                                 norm->epsilon,
                                 norm->width};
    const sl_launch_shape shape = {dim3((unsigned)op->rows[args.y.rows]), dim3(LAYERNORM_THREADS), 0};
    return sl_launch(context, stream, shape, layernorm_kernel, *context, args);
}

/* ---- quantize ---- */

typedef struct quantize_args {
    sl_cuda_operand x, q;
    int32_t width;
} quantize_args;

template <bool ALIGNED>
static __global__ void quantize_kernel(const __grid_constant__ sl_cuda_context context,
                                       const __grid_constant__ quantize_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t row = (int32_t)blockIdx.x, i = my_quad();
    if (row >= sl_count(context, args.q.rows)) {
        return;
    }
    const float4 quad =
        i < args.width ? sl_load_quad<ALIGNED>(sl_f32(args.x, row), i, args.width) : make_float4(0, 0, 0, 0);
    sl_quantize_quad<ALIGNED>(args.q, row, i, args.width, quad);
}

/* A warp's group of Q8_256; a lane has elements [i, i + 4) and [i + 128, i + 132). */
static __device__ __forceinline__ void quantize_pair(const sl_cuda_operand &q, int32_t row, int32_t i,
                                                     int32_t width, const float4 (&quads)[2]) {
    const float largest = sl_larger(sl_warp_largest(quads[0]), sl_warp_largest(quads[1]));
    const int32_t first = i - SL_QUAD * (int32_t)(threadIdx.x % SL_WARP);
    if (first < width) {
        sl_store_codes<SL_VALUE_Q8_256>(q, row, first, largest, quads);
    }
}

/* The first element of a thread that has two quads, of a group of 256 that its warp takes. */
static __device__ __forceinline__ int32_t my_pair(void) {
    const int32_t thread = (int32_t)(blockIdx.y * blockDim.x + threadIdx.x);
    return SL_Q8_256_GROUP * (thread / SL_WARP) + SL_QUAD * (thread % SL_WARP);
}

/* To E4M3_128 or Q8_256, from F32; ALIGNED: from BF16 too. */
template <bool ALIGNED, int TYPE>
static __global__ void quantize_codes_kernel(const __grid_constant__ sl_cuda_context context,
                                             const __grid_constant__ quantize_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t row = (int32_t)blockIdx.x;
    if (row >= sl_count(context, args.q.rows)) {
        return;
    }
    const auto load = [&args, row](int32_t i) {
        if (i >= args.width) {
            return make_float4(0, 0, 0, 0);
        }
        if (ALIGNED && args.x.type == SL_VALUE_BF16) {
            const uint2 quad = *(const uint2 *)(args.x.data + (uint64_t)row * args.x.row_bytes + 2 * i);
            return make_float4(__uint_as_float(quad.x << 16), __uint_as_float(quad.x & 0xffff0000u),
                               __uint_as_float(quad.y << 16), __uint_as_float(quad.y & 0xffff0000u));
        }
        return sl_load_quad<ALIGNED>(sl_f32(args.x, row), i, args.width);
    };
    if constexpr (TYPE == SL_VALUE_E4M3_128) {
        sl_quantize_e4m3_quad(args.q, row, my_quad(), args.width, load(my_quad()));
    } else {
        const float4 quads[2] = {load(my_pair()), load(my_pair() + SL_WARP_QUADS)};
        quantize_pair(args.q, row, my_pair(), args.width, quads);
    }
}

/* A thread has two quads of Q8_256, else one. */
static sl_launch_shape quads_of_codes(sl_value_type type, int32_t rows, int32_t width) {
    return quads_of_rows(rows, type == SL_VALUE_Q8_256 ? (width + 1) / 2 : width);
}

template <bool ALIGNED>
static cudaError_t launch_quantize_codes(const sl_cuda_context *context, const sl_cuda_op *op,
                                         cudaStream_t stream, const quantize_args &args) {
    return sl_launch(context, stream, quads_of_codes(args.q.type, op->rows[args.q.rows], args.width),
                     args.q.type == SL_VALUE_Q8_256 ? quantize_codes_kernel<ALIGNED, SL_VALUE_Q8_256>
                                                    : quantize_codes_kernel<ALIGNED, SL_VALUE_E4M3_128>,
                     *context, args);
}

static SL_CUDA_RUN(run_quantize) {
    const quantize_args args = {op->in[0], op->out[0], op->op->u.quantize.width};
    const bool aligned = args.width % SL_QUAD == 0 && sl_in_quads(args.x) && sl_in_quads(args.q);
    if (sl_is_codes(args.q.type)) {
        return aligned ? launch_quantize_codes<true>(context, op, stream, args)
                       : launch_quantize_codes<false>(context, op, stream, args);
    }
    const sl_launch_shape shape = quads_of_rows(op->rows[args.q.rows], args.width);
    return sl_launch(context, stream, shape, aligned ? quantize_kernel<true> : quantize_kernel<false>,
                     *context, args);
}

/* ---- rope ---- */

typedef struct rope_args {
    sl_op_rope rope;
    sl_cuda_operand x;
    const float *frequencies;
} rope_args;

/* A block takes a row; each thread keeps the sine and cosine of its pair for all heads. SCALED: with a
 * temperature. */
template <bool SCALED>
static __global__ void rope_kernel(const __grid_constant__ sl_cuda_context context,
                                   const __grid_constant__ rope_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t row = (int32_t)blockIdx.x;
    if (row >= context.header->rows) {
        return;
    }
    const sl_op_rope &rope = args.rope;
    const int32_t pairs = rope.dims / 2;
    const int32_t apart = rope.layout == SL_ROPE_HALVES ? pairs : 1;
    const int32_t step = rope.layout == SL_ROPE_HALVES ? 1 : 2;
    const int32_t scaled = rope.temperature.width;
    const float factor =
        SCALED ? sl_rope_temperature_factor(&rope.temperature, context.rows[row].position) : 1.0f;
    float *x = sl_f32(args.x, row);
    for (int32_t i = (int32_t)threadIdx.x; i < pairs; i += (int32_t)blockDim.x) {
        const sl_turn turn = sl_turn_of(rope, context.rows[row].position, args.frequencies[i]);
        for (int32_t head = (int32_t)threadIdx.y; head < rope.heads; head += (int32_t)blockDim.y) {
            float *pair = x + head * rope.stride + i * step;
            const float a = pair[0], b = pair[apart];
            const float first = sl_turn_first(turn, a, b), second = sl_turn_second(turn, a, b);
            pair[0] = SCALED && i * step < scaled ? first * factor : first;
            pair[apart] = SCALED && i * step + apart < scaled ? second * factor : second;
        }
    }
    for (int32_t head = (int32_t)threadIdx.y; SCALED && head < rope.heads; head += (int32_t)blockDim.y) {
        for (int32_t i = rope.dims + (int32_t)threadIdx.x; i < scaled; i += (int32_t)blockDim.x) {
            x[head * rope.stride + i] *= factor;
        }
    }
}

static SL_CUDA_RUN(run_rope) {
    const rope_args args = {op->op->u.rope, op->out[0], (const float *)(const void *)op->weights[0].data};
    const sl_launch_shape shape = {dim3((unsigned)op->rows[SL_ROWS_STEP]), dim3(SL_WARP, 16), 0};
    return sl_launch(context, stream, shape,
                     args.rope.temperature.width > 0 ? rope_kernel<true> : rope_kernel<false>, *context,
                     args);
}

/* ---- combine ---- */

template <bool ALIGNED>
static __global__ void combine_kernel(const __grid_constant__ sl_cuda_context context,
                                      const __grid_constant__ sl_combine_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t row = (int32_t)blockIdx.x, i = my_quad(), width = args.combine.width;
    if (row < sl_count(context, args.y.rows) && i < width) {
        sl_store_quad<ALIGNED>(sl_f32(args.y, row), i, width, sl_combine_quad<ALIGNED>(args, row, i));
    }
}

static SL_CUDA_RUN(run_combine) {
    const sl_combine_args args = sl_combine_args_of(op);
    const sl_launch_shape shape = quads_of_rows(op->rows[args.y.rows], args.combine.width);
    return sl_launch(context, stream, shape,
                     sl_combine_in_quads(args) ? combine_kernel<true> : combine_kernel<false>, *context,
                     args);
}

/* ---- activate, gather, transfer, softcap ---- */

typedef struct element_args {
    sl_cuda_operand a, b, y;
    sl_cuda_operand weights; /* of experts' rows, [rows][used]; data is NULL without */
    sl_cuda_operand q;       /* y as a linear reads it; data is NULL when that is not asked for */
    int32_t width, function;
    float cap;
    bool keep_y;
    float scale;
    sl_op_activate activate;
} element_args;

static bool elements_in_quads(const element_args &args) {
    return args.width % SL_QUAD == 0 && sl_in_quads(args.a) && sl_in_quads(args.b) && sl_in_quads(args.y);
}

/* Elements [i, i + 4) of a row, which are also kept unless nobody reads them; zeros behind the width. OTHERS:
 * activations that sl_activation_is_gate does not name. */
template <bool ALIGNED, bool OTHERS>
static __device__ __forceinline__ float4 activated_quad(const element_args &args, int32_t row, int32_t i) {
    const int32_t width = args.width;
    if (i >= width) {
        return make_float4(0, 0, 0, 0);
    }
    float4 gate = sl_load_quad<ALIGNED>(sl_f32(args.a, row), i, width);
    float4 up = OTHERS && !args.b.data ? make_float4(1, 1, 1, 1)
                                       : sl_load_quad<ALIGNED>(sl_f32(args.b, row), i, width);
    if (OTHERS && args.weights.data) {
        const float weight = sl_f32(args.weights, 0)[row];
        gate = sl_map_quad(gate, [weight](float g) { return weight * g; });
        up = args.b.data ? sl_map_quad(up, [weight](float u) { return weight * u; }) : up;
    }
    const float4 quad =
        OTHERS ? sl_activate_other_quad(args.activate, gate, up) : sl_activate_quad(args.function, gate, up);
    if (args.keep_y) {
        sl_store_quad<ALIGNED>(sl_f32(args.y, row), i, width, quad);
    }
    return quad;
}

template <bool ALIGNED, bool OTHERS>
static __global__ void activate_kernel(const __grid_constant__ sl_cuda_context context,
                                       const __grid_constant__ element_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t row = (int32_t)blockIdx.x, i = my_quad();
    if (row >= sl_count(context, args.y.rows)) {
        return;
    }
    const float4 quad = activated_quad<ALIGNED, OTHERS>(args, row, i);
    if (args.q.data) {
        sl_quantize_quad<ALIGNED>(args.q, row, i, args.width, quad);
    }
}

template <bool OTHERS, int TYPE>
static __global__ void activate_codes_kernel(const __grid_constant__ sl_cuda_context context,
                                             const __grid_constant__ element_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t row = (int32_t)blockIdx.x;
    if (row >= sl_count(context, args.y.rows)) {
        return;
    }
    if constexpr (TYPE == SL_VALUE_E4M3_128) {
        const float4 quad = activated_quad<true, OTHERS>(args, row, my_quad());
        sl_quantize_e4m3_quad(args.q, row, my_quad(), args.width, quad);
    } else {
        const float4 quads[2] = {activated_quad<true, OTHERS>(args, row, my_pair()),
                                 activated_quad<true, OTHERS>(args, row, my_pair() + SL_WARP_QUADS)};
        quantize_pair(args.q, row, my_pair(), args.width, quads);
    }
}

template <int TYPE>
static cudaError_t launch_activate_codes(const sl_cuda_context *context, const sl_cuda_op *op,
                                         cudaStream_t stream, const element_args &args) {
    return sl_launch(context, stream, quads_of_codes(args.q.type, op->rows[args.y.rows], args.width),
                     sl_activation_is_gate(op->op) ? activate_codes_kernel<false, TYPE>
                                                   : activate_codes_kernel<true, TYPE>,
                     *context, args);
}

static element_args activate_args(const sl_cuda_op *op) {
    element_args args = {};
    args.a = op->in[0];
    args.b = op->in[1];
    args.weights = op->in[2];
    args.y = op->out[0];
    args.width = op->op->u.activate.width;
    args.function = op->op->u.activate.function;
    args.activate = op->op->u.activate;
    args.keep_y = true;
    return args;
}

template <bool ALIGNED>
static cudaError_t launch_activate(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                                   const element_args &args) {
    const sl_launch_shape shape = quads_of_rows(op->rows[args.y.rows], args.width);
    return sl_launch(context, stream, shape,
                     sl_activation_is_gate(op->op) ? activate_kernel<ALIGNED, false>
                                                   : activate_kernel<ALIGNED, true>,
                     *context, args);
}

static SL_CUDA_RUN(run_activate) {
    const element_args args = activate_args(op);
    return elements_in_quads(args) ? launch_activate<true>(context, op, stream, args)
                                   : launch_activate<false>(context, op, stream, args);
}

static SL_CUDA_RUN(run_activate_quantize) {
    element_args args = activate_args(&op[0]);
    args.q = op[1].out[0];
    args.keep_y = !op[0].unread[0];
    if (sl_is_codes(args.q.type)) {
        return args.q.type == SL_VALUE_Q8_256
                   ? launch_activate_codes<SL_VALUE_Q8_256>(context, op, stream, args)
                   : launch_activate_codes<SL_VALUE_E4M3_128>(context, op, stream, args);
    }
    return launch_activate<true>(context, op, stream, args);
}

template <bool ALIGNED>
static __global__ void gather_kernel(const __grid_constant__ sl_cuda_context context,
                                     const __grid_constant__ element_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t output = (int32_t)blockIdx.x, i = my_quad();
    if (output < context.header->outputs && i < args.width) {
        const float *x = sl_f32(args.a, context.outputs[output].row);
        sl_store_quad<ALIGNED>(sl_f32(args.y, output), i, args.width,
                               sl_load_quad<ALIGNED>(x, i, args.width));
    }
}

static SL_CUDA_RUN(run_gather) {
    element_args args = {};
    args.a = args.b = op->in[0];
    args.y = op->out[0];
    args.width = op->op->u.gather.width;
    const sl_launch_shape shape = quads_of_rows(op->rows[SL_ROWS_OUTPUT], args.width);
    return sl_launch(context, stream, shape,
                     elements_in_quads(args) ? gather_kernel<true> : gather_kernel<false>, *context, args);
}

template <bool ALIGNED>
static __global__ void transfer_kernel(const __grid_constant__ sl_cuda_context context,
                                       const __grid_constant__ element_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t row = (int32_t)blockIdx.x, i = my_quad();
    if (row < sl_count(context, args.y.rows) && i < args.width) {
        sl_store_quad<ALIGNED>(sl_f32(args.y, row), i, args.width,
                               sl_load_quad<ALIGNED>(sl_f32(args.a, row), i, args.width));
    }
}

static SL_CUDA_RUN(run_transfer) {
    element_args args = {};
    args.a = args.b = op->in[0];
    args.y = op->out[0];
    args.width = op->op->u.transfer.width;
    const sl_launch_shape shape = quads_of_rows(op->rows[args.y.rows], args.width);
    return sl_launch(context, stream, shape,
                     elements_in_quads(args) ? transfer_kernel<true> : transfer_kernel<false>, *context,
                     args);
}

template <bool ALIGNED>
static __global__ void softcap_kernel(const __grid_constant__ sl_cuda_context context,
                                      const __grid_constant__ element_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t row = (int32_t)blockIdx.x, i = my_quad();
    if (row < sl_count(context, args.y.rows) && i < args.width) {
        float *x = sl_f32(args.y, row);
        const float cap = args.cap, scale = args.scale;
        const float4 quad = sl_map_quad(sl_load_quad<ALIGNED>(x, i, args.width), [cap, scale](float v) {
            return cap > 0 ? cap * tanhf(scale * v / cap) : scale * v;
        });
        sl_store_quad<ALIGNED>(x, i, args.width, quad);
    }
}

static SL_CUDA_RUN(run_softcap) {
    element_args args = {};
    args.a = args.b = args.y = op->out[0];
    args.width = op->op->u.softcap.width;
    args.cap = op->op->u.softcap.cap;
    args.scale = op->op->u.softcap.scale;
    const sl_launch_shape shape = quads_of_rows(op->rows[args.y.rows], args.width);
    return sl_launch(context, stream, shape,
                     elements_in_quads(args) ? softcap_kernel<true> : softcap_kernel<false>, *context, args);
}

static const sl_cuda_kernel KERNELS[] = {
    SL_CUDA_KERNEL(EMBED, "embed/cuda", "exact", 0, NULL, run_embed),
    SL_CUDA_KERNEL(LAYERNORM, "layernorm/cuda", "f32/threads", 1e-5f, NULL, run_layernorm),
    SL_CUDA_KERNEL(RMSNORM, "rmsnorm/cuda", "f32/tree", 1e-5f, rmsnorm_declines, run_rmsnorm),
    SL_CUDA_KERNEL(QUANTIZE, "quantize/cuda", "exact", 0, NULL, run_quantize),
    SL_CUDA_KERNEL(ROPE, "rope/cuda", "f32", 1e-5f, NULL, run_rope),
    SL_CUDA_KERNEL(COMBINE, "combine/cuda", "f32", 1e-5f, NULL, run_combine),
    SL_CUDA_KERNEL(ACTIVATE, "activate/cuda", "f32", 1e-5f, NULL, run_activate),
    SL_CUDA_KERNEL(GATHER, "gather/cuda", "exact", 0, NULL, run_gather),
    SL_CUDA_KERNEL(TRANSFER, "transfer/cuda", "exact", 0, NULL, run_transfer),
    SL_CUDA_KERNEL(SOFTCAP, "softcap/cuda", "f32", 1e-5f, NULL, run_softcap),
};

static const sl_cuda_fusion FUSIONS[] = {
    SL_CUDA_FUSION(run_rmsnorm_quantize, sl_norm_quantize_declines, "rmsnorm+quantize", SL_OP_RMSNORM,
                   SL_OP_QUANTIZE),
    SL_CUDA_FUSION(run_activate_quantize, sl_activate_quantize_declines, "activate+quantize", SL_OP_ACTIVATE,
                   SL_OP_QUANTIZE),
};

SL_CUDA_FAMILY(row_ops) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_ROWS(FUSIONS), NULL};
