/* Ops that treat each row by itself. The grid covers the bucket's rows; blocks of rows that a step does not
 * have return at once. */
#include "backend/cuda/rows.cuh"

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
        const float4 quad = sl_embed_quad<ALIGNED>(args, sl_embedding(context, args, row), i);
        sl_store_quad<ALIGNED>(sl_f32(args.y, row), i, args.table.columns, quad);
    }
}

SL_CUDA_RUN(sl_cuda_embed) {
    const sl_embed_args args = {op->weights[0], op->out[0], op->op->u.embed.scale};
    const bool aligned = args.table.columns % SL_QUAD == 0 && sl_in_quads(args.y);
    const sl_launch_shape shape = quads_of_rows(op->rows[SL_ROWS_STEP], args.table.columns);
    return sl_launch(context, stream, shape, aligned ? embed_kernel<true> : embed_kernel<false>, *context,
                     args);
}

/* ---- rmsnorm ---- */

template <bool ALIGNED, bool PLAIN>
static cudaError_t run_norm(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                            const sl_norm_args &args) {
    switch (sl_norm_shape_of(args.norm.width).quads) {
    case 1:
        return sl_norm_launch<1, ALIGNED, PLAIN, SL_NORM_OF_X>(context, op, stream, args);
    case 2:
        return sl_norm_launch<2, ALIGNED, PLAIN, SL_NORM_OF_X>(context, op, stream, args);
    case 4:
        return sl_norm_launch<4, ALIGNED, PLAIN, SL_NORM_OF_X>(context, op, stream, args);
    case 8:
        return sl_norm_launch<8, ALIGNED, PLAIN, SL_NORM_OF_X>(context, op, stream, args);
    default:
        return sl_norm_launch<SL_NORM_QUADS, ALIGNED, PLAIN, SL_NORM_OF_X>(context, op, stream, args);
    }
}

static cudaError_t run_norm_in_quads(const sl_cuda_context *context, const sl_cuda_op *op,
                                     cudaStream_t stream, const sl_norm_args &args) {
    return sl_norm_is_plain(args) ? run_norm<true, true>(context, op, stream, args)
                                  : run_norm<true, false>(context, op, stream, args);
}

SL_CUDA_RUN(sl_cuda_rmsnorm) {
    const sl_norm_args args = sl_norm_args_of(op);
    return sl_norm_in_quads(args) ? run_norm_in_quads(context, op, stream, args)
                                  : run_norm<false, false>(context, op, stream, args);
}

SL_CUDA_RUN(sl_cuda_rmsnorm_quantize) {
    sl_norm_args args = sl_norm_args_of(&op[0]);
    args.q = op[1].out[0];
    args.keep_y = !op[0].unread[0];
    args.sum.data = op[0].unread[1] ? NULL : args.sum.data;
    return run_norm_in_quads(context, op, stream, args);
}

const char *sl_cuda_rmsnorm_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    return query->op->u.rmsnorm.width > SL_NORM_QUADS * SL_NORM_THREADS * SL_QUAD
               ? "takes groups of up to 32768"
               : NULL;
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

SL_CUDA_RUN(sl_cuda_quantize) {
    const quantize_args args = {op->in[0], op->out[0], op->op->u.quantize.width};
    const bool aligned = args.width % SL_QUAD == 0 && sl_in_quads(args.x) && sl_in_quads(args.q);
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

/* A block takes a row; each thread keeps the sine and cosine of its pair for all heads. */
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
    float *x = sl_f32(args.x, row);
    for (int32_t i = (int32_t)threadIdx.x; i < pairs; i += (int32_t)blockDim.x) {
        const sl_turn turn = sl_turn_of(rope, context.rows[row].position, args.frequencies[i]);
        for (int32_t head = (int32_t)threadIdx.y; head < rope.heads; head += (int32_t)blockDim.y) {
            float *pair = x + head * rope.stride + i * step;
            const float a = pair[0], b = pair[apart];
            pair[0] = sl_turn_first(turn, a, b);
            pair[apart] = sl_turn_second(turn, a, b);
        }
    }
}

SL_CUDA_RUN(sl_cuda_rope) {
    const rope_args args = {op->op->u.rope, op->out[0], (const float *)(const void *)op->weights[0].data};
    const sl_launch_shape shape = {dim3((unsigned)op->rows[SL_ROWS_STEP]), dim3(SL_WARP, 16), 0};
    return sl_launch(context, stream, shape, rope_kernel, *context, args);
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

SL_CUDA_RUN(sl_cuda_combine) {
    const sl_combine_args args = sl_combine_args_of(op);
    const sl_launch_shape shape = quads_of_rows(op->rows[args.y.rows], args.combine.width);
    return sl_launch(context, stream, shape,
                     sl_combine_in_quads(args) ? combine_kernel<true> : combine_kernel<false>, *context,
                     args);
}

/* ---- activate, gather, softcap ---- */

typedef struct element_args {
    sl_cuda_operand a, b, y;
    sl_cuda_operand q; /* y as a linear reads it; data is NULL when that is not asked for */
    int32_t width, function;
    float cap;
    bool keep_y;
} element_args;

static bool elements_in_quads(const element_args &args) {
    return args.width % SL_QUAD == 0 && sl_in_quads(args.a) && sl_in_quads(args.b) && sl_in_quads(args.y);
}

template <bool ALIGNED>
static __global__ void activate_kernel(const __grid_constant__ sl_cuda_context context,
                                       const __grid_constant__ element_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t row = (int32_t)blockIdx.x, i = my_quad(), width = args.width;
    if (row >= sl_count(context, args.y.rows)) {
        return;
    }
    float4 quad = make_float4(0, 0, 0, 0);
    if (i < width) {
        const float4 gate = sl_load_quad<ALIGNED>(sl_f32(args.a, row), i, width);
        const float4 up = sl_load_quad<ALIGNED>(sl_f32(args.b, row), i, width);
        quad = sl_activate_quad(args.function, gate, up);
        if (args.keep_y) {
            sl_store_quad<ALIGNED>(sl_f32(args.y, row), i, width, quad);
        }
    }
    if (args.q.data) {
        sl_quantize_quad<ALIGNED>(args.q, row, i, width, quad);
    }
}

static element_args activate_args(const sl_cuda_op *op) {
    element_args args = {};
    args.a = op->in[0];
    args.b = op->in[1];
    args.y = op->out[0];
    args.width = op->op->u.activate.width;
    args.function = op->op->u.activate.function;
    args.keep_y = true;
    return args;
}

SL_CUDA_RUN(sl_cuda_activate) {
    const element_args args = activate_args(op);
    const sl_launch_shape shape = quads_of_rows(op->rows[args.y.rows], args.width);
    return sl_launch(context, stream, shape,
                     elements_in_quads(args) ? activate_kernel<true> : activate_kernel<false>, *context,
                     args);
}

SL_CUDA_RUN(sl_cuda_activate_quantize) {
    element_args args = activate_args(&op[0]);
    args.q = op[1].out[0];
    args.keep_y = !op[0].unread[0];
    const sl_launch_shape shape = quads_of_rows(op->rows[args.y.rows], args.width);
    return sl_launch(context, stream, shape, activate_kernel<true>, *context, args);
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

SL_CUDA_RUN(sl_cuda_gather) {
    element_args args = {};
    args.a = args.b = op->in[0];
    args.y = op->out[0];
    args.width = op->op->u.gather.width;
    const sl_launch_shape shape = quads_of_rows(op->rows[SL_ROWS_OUTPUT], args.width);
    return sl_launch(context, stream, shape,
                     elements_in_quads(args) ? gather_kernel<true> : gather_kernel<false>, *context, args);
}

template <bool ALIGNED>
static __global__ void softcap_kernel(const __grid_constant__ sl_cuda_context context,
                                      const __grid_constant__ element_args args) {
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t row = (int32_t)blockIdx.x, i = my_quad();
    if (row < sl_count(context, args.y.rows) && i < args.width) {
        float *x = sl_f32(args.y, row);
        const float cap = args.cap;
        const float4 quad = sl_map_quad(sl_load_quad<ALIGNED>(x, i, args.width),
                                        [cap](float v) { return cap * tanhf(v / cap); });
        sl_store_quad<ALIGNED>(x, i, args.width, quad);
    }
}

SL_CUDA_RUN(sl_cuda_softcap) {
    element_args args = {};
    args.a = args.b = args.y = op->out[0];
    args.width = op->op->u.softcap.width;
    args.cap = op->op->u.softcap.cap;
    const sl_launch_shape shape = quads_of_rows(op->rows[args.y.rows], args.width);
    return sl_launch(context, stream, shape,
                     elements_in_quads(args) ? softcap_kernel<true> : softcap_kernel<false>, *context, args);
}
