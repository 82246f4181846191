/* The norm in front of experts, its output as their products read it, and the router's product, in one launch
 * for one row: every block makes the norm by itself, and has some weight rows, which it read before its
 * inputs were there. The bits of the ops' own kernels: the norm's sum is added as sl_norm_factor does, a
 * product as f32_rows8.cu does with F32 weights (piece p of a row to thread p % 128). */
#include "backend/cuda/rows/row_ops.cuh"

#include <string.h>

enum {
    GROUP = 128, /* threads that share a weight row */
    GROUPS = 2,  /* and weight rows of a block */
    THREADS = GROUPS * GROUP,
    GROUP_WARPS = GROUP / SL_WARP,
    MOST_PIECES = 8
};

typedef struct route_args {
    sl_norm_args norm;
    sl_cuda_weight weight;
    sl_cuda_operand logits;
} route_args;

/* PIECES of 4 columns is what a thread of a group has at most. x before the norm: */
template <int PIECES>
static __device__ __forceinline__ void route_load(const sl_norm_args &args, int32_t thread,
                                                  float4 (&x)[PIECES]) {
    const bool adds = args.norm.residual == SL_RESIDUAL_BEFORE;
    const float *from = sl_f32(args.x, 0), *before = adds ? sl_f32(args.residual, 0) : NULL;
    const int32_t width = args.norm.width;
    float4 residual[PIECES];
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        const int32_t i = SL_QUAD * (thread + k * GROUP);
        x[k] = i < width ? sl_load_quad<true>(from, i, width) : make_float4(0, 0, 0, 0);
        residual[k] = adds && i < width ? sl_load_quad<true>(before, i, width) : make_float4(0, 0, 0, 0);
    }
    if (adds) {
#pragma unroll
        for (int k = 0; k < PIECES; k++) {
            x[k] = sl_add_quads(x[k], residual[k]);
        }
    }
}

/* The norm's factor, in the order of sl_norm_factor: of its threads, which have a quad each, this one is
 * those GROUP apart. shared: [SL_WARP]. */
template <int PIECES>
static __device__ __forceinline__ float route_factor(const sl_norm_args &args, const float4 (&x)[PIECES],
                                                     float *shared) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    const int32_t warps = (args.norm.width / SL_QUAD + SL_WARP - 1) / SL_WARP;
    float squares[PIECES];
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        const float4 quad[1] = {x[k]};
        squares[k] = sl_warp_sum(sl_norm_squares(quad));
    }
    if (lane == 0 && warp < GROUP_WARPS) {
#pragma unroll
        for (int k = 0; k < PIECES; k++) {
            shared[warp + k * GROUP_WARPS] = squares[k];
        }
    }
    __syncthreads();
    const float sum = sl_warp_sum(lane < warps ? shared[lane] : 0.0f);
    return rsqrtf(fmaf(sum, args.share, args.norm.epsilon));
}

/* Calls store(column, quad) for this block's share of the row; by whole warps. */
template <int PIECES, typename STORE>
static __device__ __forceinline__ void route_share(const float4 (&x)[PIECES], STORE store) {
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP;
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        if (warp < GROUP_WARPS && (uint32_t)(warp + k * GROUP_WARPS) % gridDim.x == blockIdx.x) {
            store(SL_QUAD * ((int32_t)threadIdx.x + k * GROUP), x[k]);
        }
    }
}

template <int PIECES>
static __global__ void __launch_bounds__(THREADS, 2)
    route_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ route_args args) {
    __shared__ float squares[SL_WARP], partial[THREADS / SL_WARP];
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t thread = (int32_t)threadIdx.x % GROUP, group = (int32_t)threadIdx.x / GROUP;
    const int32_t row = (int32_t)blockIdx.x * GROUPS + group, width = args.norm.norm.width;
    float4 weight[PIECES], norm_weight[PIECES], x[PIECES];
    const float *from =
        (const float *)(const void *)(args.weight.data +
                                      (uint64_t)min(row, args.weight.rows - 1) * args.weight.row_bytes);
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        const int32_t i = SL_QUAD * (thread + k * GROUP);
        weight[k] = norm_weight[k] = make_float4(0, 0, 0, 0);
        if (i < width) {
            weight[k] = sl_load_quad<true>(from, i, width);
            if (args.norm.weight) {
                norm_weight[k] = sl_map_quad(sl_load_quad<true>(args.norm.weight, i, width),
                                             [&args](float w) { return w + args.norm.norm.weight_offset; });
            }
        }
    }
    const bool valid = context.header->rows > 0;
    sl_wait_for_inputs();
    sl_let_next_begin(); /* not earlier: the experts' blocks would come up beside what is in front of this
                            one, take its time for their first pass, and find no room on some processors */
    route_load(args.norm, thread, x);
    if (valid && args.norm.sum.data) {
        route_share(x, [&](int32_t i, float4 quad) {
            if (i < width) {
                sl_store_quad<true>(sl_f32(args.norm.sum, 0), i, width, quad);
            }
        });
    }
    const float factor = route_factor(args.norm, x, squares);
    float sum = 0;
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        x[k] = sl_map_quad(x[k], [factor](float v) { return v * factor; });
        if (args.norm.weight) {
            x[k] = sl_map_quads(x[k], norm_weight[k], [](float v, float w) { return v * w; });
        }
        const float4 w = weight[k];
        const float more = fmaf(w.w, x[k].w, fmaf(w.z, x[k].z, fmaf(w.y, x[k].y, fmaf(w.x, x[k].x, sum))));
        sum = SL_QUAD * (thread + k * GROUP) < width ? more : sum;
    }
    sum = sl_warp_sum(sum);
    if (lane == 0) {
        partial[warp] = sum;
    }
    __syncthreads();
    if (valid && thread == 0 && row < args.weight.rows) {
        for (int i = 1; i < GROUP_WARPS; i++) {
            sum += partial[warp + i];
        }
        sum = args.weight.bias ? sum + args.weight.bias[row] : sum;
        sl_f32(args.logits, 0)[args.weight.column + row] = sum;
    }
    if (valid) {
        route_share(x, [&](int32_t i, float4 quad) {
            if (args.norm.keep_y && i < width) {
                sl_store_quad<true>(sl_f32(args.norm.y, 0), i, width, quad);
            }
            if (args.norm.q.data) {
                sl_quantize_quad<true>(args.norm.q, 0, i, width, quad);
            }
        });
    }
}

/* RMSNORM, possibly QUANTIZE, LINEAR. */
static SL_CUDA_RUN(run) {
    const sl_cuda_op *linear = op + op->run_length - 1;
    route_args args = {};
    args.norm = sl_norm_args_of(op);
    args.norm.keep_y = !op->unread[0];
    args.norm.sum.data = op->unread[1] ? NULL : args.norm.sum.data;
    if (op->run_length > 2) {
        args.norm.q = op[1].out[0];
    }
    args.weight = linear->weights[0];
    args.logits = linear->out[0];
    const sl_launch_shape shape = {dim3((unsigned)(args.weight.rows + GROUPS - 1) / GROUPS), dim3(THREADS),
                                   0};
    return args.norm.norm.width <= SL_QUAD * GROUP * MOST_PIECES / 2
               ? sl_launch(context, stream, shape, route_kernel<MOST_PIECES / 2>, *context, args)
               : sl_launch(context, stream, shape, route_kernel<MOST_PIECES>, *context, args);
}

/* ---- what it takes ---- */

static bool same(const sl_operand &a, const sl_operand &b) {
    return a.value == b.value && a.column == b.column;
}

static bool in_quads(const sl_fusion_query *query, const sl_operand &operand) {
    return operand.value == SL_NONE ||
           (operand.column % SL_QUAD == 0 && query->values[operand.value].width % SL_QUAD == 0);
}

static const char *declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    const sl_op *op = &query->ops[0], *linear = &query->ops[fusion->count - 1];
    const sl_op *quantize = fusion->count > 2 ? op + 1 : NULL;
    const sl_op_rmsnorm *norm = &op->u.rmsnorm;
    const sl_weight *weight = &query->program->weights[linear->u.linear.segments[0].weight];
    if (query->rows[SL_ROWS_STEP] > 1 || query->values[op->out[0].value].rows != SL_ROWS_STEP) {
        return "takes one row";
    }
    if (strcmp(query->kernels[fusion->count - 1]->numeric_class, "f32/lanes") != 0 ||
        weight->type != SL_QTYPE_F32 || linear->u.linear.segment_count != 1 ||
        linear->in[1].value != SL_NONE || linear->in[3].value != SL_NONE) {
        return "takes F32 weights in one segment";
    }
    if (norm->groups != 1 || norm->residual == SL_RESIDUAL_AFTER || op->in[2].value != SL_NONE ||
        sl_norm_is_scaled(norm)) {
        return "takes a norm of one group, without a gate, a residual behind it and factors";
    }
    const sl_norm_shape shape = sl_norm_shape_of(norm->width);
    if (shape.quads != 1 || shape.threads <= SL_WARP || norm->width % SL_QUAD != 0) {
        return "takes a norm of 516 to 4096 columns, a multiple of 4";
    }
    if (!same(linear->in[0], op->out[0]) || weight->columns != norm->width ||
        (quantize && (!same(quantize->in[0], op->out[0]) || quantize->u.quantize.width != norm->width))) {
        return "takes ops that read the norm's output";
    }
    for (int i = 0; i < 4; i++) { /* blocks write while others read */
        const sl_operand &out = op->out[i % 2];
        if (out.value != SL_NONE && out.value == op->in[i / 2].value) {
            return "takes a norm that is not in place";
        }
    }
    sl_codes codes;
    if (quantize && sl_value_codes(query->values[quantize->out[0].value].type, &codes)) {
        return "quantizes to BF16 and q8_32";
    }
    return in_quads(query, op->in[0]) && in_quads(query, op->in[1]) && in_quads(query, op->out[0]) &&
                   in_quads(query, op->out[1]) && (!quantize || in_quads(query, quantize->out[0]))
               ? NULL
               : "takes operands that lie in whole quads";
}

static const sl_cuda_fusion FUSIONS[] = {
    SL_CUDA_FUSION(run, declines, "rmsnorm+quantize+linear-f32", SL_OP_RMSNORM, SL_OP_QUANTIZE, SL_OP_LINEAR),
    SL_CUDA_FUSION(run, declines, "rmsnorm+linear-f32", SL_OP_RMSNORM, SL_OP_LINEAR),
};

SL_CUDA_FAMILY(route) = {SL_CUDA_NO_ROWS, SL_CUDA_ROWS(FUSIONS), NULL};
