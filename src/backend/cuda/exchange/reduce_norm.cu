/* A small ALL_REDUCE, the norm of its sum and that as a linear reads it, in one launch. */
#include "backend/cuda/exchange/call.cuh"
#include "backend/cuda/rows/row_ops.cuh"

enum { MOST_QUADS = 4 };

/* The thread's quads of all ranks, added in the order of the ranks. */
template <int QUADS>
static __device__ __forceinline__ void add_ranks(const sl_exchange_call &call, float4 (&x)[QUADS]) {
    float4 sums[QUADS];
    for (int32_t from = 0; from < call.ranks; from++) {
#pragma unroll
        for (int k = 0; k < QUADS; k++) {
            const uint32_t q = call.first + (uint32_t)k * call.step;
            const float4 part = q < call.end && from != call.rank ? sl_take_marked(call, from, q) : x[k];
            sums[k] = from == 0 ? part : sl_add_quads(sums[k], part);
        }
    }
#pragma unroll
    for (int k = 0; k < QUADS; k++) { /* those behind the end stay zeros */
        x[k] = sums[k];
    }
}

template <int QUADS>
static __device__ __forceinline__ void send_quads(const sl_exchange_call &call, const float4 (&x)[QUADS]) {
    for (int32_t other = 1; other < call.ranks; other++) { /* all to different ones at a time */
        const int32_t to = (call.rank + other) % call.ranks;
        unsigned char *slot = sl_slot_of(call, call.pools[to], call.rank);
#pragma unroll
        for (int k = 0; k < QUADS; k++) {
            const uint32_t q = call.first + (uint32_t)k * call.step;
            if (q < call.end) {
                sl_send_marked(call, slot, q, x[k]);
            }
        }
    }
}

template <int QUADS, int CLUSTER>
static __device__ __forceinline__ void load_quads(const float *row, int32_t width, float4 (&quads)[QUADS]) {
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int32_t i = sl_quad_at<CLUSTER>(k);
        quads[k] = row && i < width ? sl_load_quad<true>(row, i, width) : make_float4(0, 0, 0, 0);
    }
}

/* A row for each x of the grid, or for CLUSTER of them: blocks of the same rows of all ranks wait for each
 * other, so all are on a processor at once, as in exchange.cu. A thread takes the quads that it would take of
 * the norm alone. */
template <int QUADS, sl_norm_form FORM, int CLUSTER, bool CODES = false>
static __global__ void __launch_bounds__((QUADS == 1 ? SL_NORM_MOST_THREADS : SL_NORM_THREADS) / CLUSTER)
    reduce_norm_kernel(const __grid_constant__ sl_cuda_context context,
                       const __grid_constant__ sl_norm_args args) {
    __shared__ sl_norm_shared shared;
    __shared__ sl_exchange_shared shared_call;
    const int32_t row = (int32_t)blockIdx.x / CLUSTER, width = args.norm.width;
    const uint32_t row_quads = (uint32_t)width / SL_QUAD;
    float4 weight[QUADS], x[QUADS], residual[QUADS];
    sl_norm_begin<CLUSTER>(&shared);
    load_quads<QUADS, CLUSTER>(args.weight, width, weight);
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        weight[k] = sl_map_quad(weight[k], [&args](float w) { return w + args.norm.weight_offset; });
    }
    const int32_t rows = sl_count(context, args.y.rows);
    sl_exchange_call call = sl_exchange_call_of(context.exchange, &shared_call);
    call.first = (uint32_t)row * row_quads + (uint32_t)sl_quad_at<CLUSTER>(0) / SL_QUAD;
    call.step = CLUSTER * blockDim.x;
    call.end = ((uint32_t)row + 1) * row_quads;
    sl_let_next_begin();
    sl_wait_for_inputs();
    if (rows == 0) { /* no call, for nobody */
        return;
    }
    load_quads<QUADS, CLUSTER>(row < rows ? sl_f32(args.x, row) : NULL, width, x);
    if (call.ranks > 1) { /* blocks without a row count too */
        sl_number_call(context.exchange, &call, &shared_call);
        if (row < rows) {
            send_quads(call, x);
        }
        sl_count_call(context.exchange, call.number);
    }
    if (row >= rows) {
        return;
    }
    const bool before = args.norm.residual == SL_RESIDUAL_BEFORE;
    load_quads<QUADS, CLUSTER>(before ? sl_f32(args.residual, row) : NULL, width, residual);
    if (call.ranks > 1) {
        add_ranks(call, x);
    }
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int32_t i = sl_quad_at<CLUSTER>(k);
        if (args.kept.data && i < width) {
            sl_store_quad<true>(sl_f32(args.kept, row), i, width, x[k]);
        }
        x[k] = before ? sl_add_quads(x[k], residual[k]) : x[k];
    }
    const float factor = sl_norm_factor<QUADS, CLUSTER>(x, args.share, args.norm.epsilon, &shared);
    sl_norm_store<QUADS, true, FORM, CLUSTER, CODES>(args, row, 0, factor, x, weight);
    if constexpr (CODES) {
        __shared__ float largest[QUADS * SL_NORM_MOST_THREADS / SL_WARP];
        sl_norm_store_codes(args.q, row, width, x, largest);
    }
}

/* ---- launches ---- */

template <int QUADS, sl_norm_form FORM>
static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                          const sl_norm_args &args) {
    const unsigned threads = (unsigned)sl_norm_shape_of(args.norm.width).threads;
    const unsigned rows = (unsigned)op->rows[args.y.rows];
    sl_launch_shape shape = {dim3(rows), dim3(threads), 0};
    if constexpr (QUADS != 2) { /* those are a warp's */
        if (context->dependent_launches && !sl_is_codes(args.q.type) &&
            threads * QUADS > SL_NORM_SPREAD_QUADS && threads % (SL_NORM_CLUSTER * SL_WARP) == 0 &&
            rows * SL_NORM_CLUSTER <= (unsigned)context->processors) {
            shape.cluster = SL_NORM_CLUSTER;
            shape.grid.x *= shape.cluster;
            shape.block.x /= shape.cluster;
            return sl_launch(context, stream, shape, reduce_norm_kernel<QUADS, FORM, SL_NORM_CLUSTER>,
                             *context, args);
        }
    }
    return args.q.data && sl_is_codes(args.q.type)
               ? sl_launch(context, stream, shape, reduce_norm_kernel<QUADS, FORM, 1, true>, *context, args)
               : sl_launch(context, stream, shape, reduce_norm_kernel<QUADS, FORM, 1>, *context, args);
}

template <sl_norm_form FORM>
static cudaError_t run(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                       const sl_norm_args &args) {
    switch (sl_norm_shape_of(args.norm.width).quads) {
    case 1:
        return launch<1, FORM>(context, op, stream, args);
    case 2:
        return launch<2, FORM>(context, op, stream, args);
    default:
        return launch<MOST_QUADS, FORM>(context, op, stream, args);
    }
}

static SL_CUDA_RUN(run_reduce_norm) {
    sl_norm_args args = sl_norm_args_of(&op[1]);
    args.keep_y = !op[1].unread[0];
    args.sum.data = op[1].unread[1] ? NULL : args.sum.data;
    args.kept = op[0].out[0];
    args.kept.data = op[0].unread[0] ? NULL : args.kept.data;
    if (op->run_length > 2) {
        args.q = op[2].out[0];
    }
    return sl_norm_form_of(args) == SL_NORM_PLAIN ? run<SL_NORM_PLAIN>(context, op, stream, args)
                                                  : run<SL_NORM_ANY>(context, op, stream, args);
}

/* ---- what they take ---- */

static const char *reduce_norm_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    const sl_op *reduce = &query->ops[0], *op = &query->ops[1];
    const sl_op_rmsnorm *norm = &op->u.rmsnorm;
    const sl_operand *x = &reduce->out[0];
    const int32_t rows = query->rows[query->values[x->value].rows];
    if (op->in[0].value != x->value || op->in[0].column != x->column || norm->groups != 1 ||
        norm->width != reduce->u.all_reduce.width || op->in[1].value == x->value ||
        op->in[2].value == x->value) {
        return "takes ops of which each reads the one before";
    }
    if (sl_norm_is_scaled(norm)) {
        return "takes a norm without factors";
    }
    if (!sl_exchange_is_small(query->program->ranks, sl_exchange_x_bytes(rows, norm->width))) {
        return "takes rows that are sent with marks: large exchanges have all processors";
    }
    if (rows > sl_cuda_facts_of(query->backend)->processors) {
        return "takes no more rows than processors, since their blocks wait for those of other ranks";
    }
    if (sl_norm_shape_of(norm->width).quads > MOST_QUADS) {
        return "takes narrower rows";
    }
    sl_fusion behind = *fusion;
    sl_fusion_query rest = *query;
    behind.count--;
    rest.ops++;
    rest.kernels++;
    rest.unread++;
    return sl_norm_quantize_declines(&behind, &rest);
}

static const sl_cuda_fusion FUSIONS[] = {
    SL_CUDA_FUSION(run_reduce_norm, reduce_norm_declines, "all_reduce+rmsnorm+quantize", SL_OP_ALL_REDUCE,
                   SL_OP_RMSNORM, SL_OP_QUANTIZE),
    SL_CUDA_FUSION(run_reduce_norm, reduce_norm_declines, "all_reduce+rmsnorm", SL_OP_ALL_REDUCE,
                   SL_OP_RMSNORM),
};

SL_CUDA_FAMILY(reduce_norm) = {SL_CUDA_NO_ROWS, SL_CUDA_ROWS(FUSIONS), NULL};
