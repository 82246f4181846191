/* Row-wise work in quads: four neighbouring elements that one thread keeps in registers. Ops on their own
 * (row_ops.cu) and runs of ops in one launch (row_runs.cu) are made of the same pieces, so they leave the
 * same bits. */
#ifndef SL_BACKEND_CUDA_ROWS_ROW_OPS_CUH
#define SL_BACKEND_CUDA_ROWS_ROW_OPS_CUH

#include "backend/cuda/ptx/bulk_copy.cuh"
#include "backend/cuda/common/quad.cuh"
#include "backend/cuda/types/types.cuh"

enum {
    SL_NORM_MOST_THREADS = 1024,
    SL_NORM_THREADS = 512,
    SL_NORM_QUADS = 16,
    SL_NORM_CLUSTER = 4, /* blocks of a group, of one row; of several */
    SL_NORM_WIDE_CLUSTER = 8,
    SL_NORM_SPREAD_ROWS = 8,
    SL_NORM_SPREAD_QUADS = 512,
    SL_ROW_THREADS = 256,
    SL_SMALL_GRID = 128
};

static inline unsigned sl_blocks_for(int64_t items, int64_t per_block) {
    return (unsigned)((items + per_block - 1) / per_block);
}

/* ---- activate ---- */

static __device__ __forceinline__ float4 sl_activate_quad(int32_t function, float4 gate, float4 up) {
    return function == SL_ACTIVATION_SILU
               ? sl_map_quads(gate, up, [](float g, float u) { return sl_silu(g) * u; })
               : sl_map_quads(gate, up, [](float g, float u) { return sl_gelu_tanh(g) * u; });
}

/* Those that sl_activation_is_gate does not name. up: ones where there is none. */
static __device__ __forceinline__ float4 sl_activate_other_quad(const sl_op_activate &op, float4 gate,
                                                                float4 up) {
    switch (op.function) {
    case SL_ACTIVATION_SILU:
    case SL_ACTIVATION_GELU_TANH:
        return sl_activate_quad(op.function, gate, up);
    case SL_ACTIVATION_GELU:
        return sl_map_quads(gate, up,
                            [](float g, float u) { return 0.5f * g * (1.0f + erff(g * 0.70710678f)) * u; });
    case SL_ACTIVATION_RELU_SQUARED:
        return sl_map_quads(gate, up, [](float g, float u) {
            const float positive = g < 0 ? 0.0f : g;
            return positive * positive * u;
        });
    case SL_ACTIVATION_IDENTITY:
        return sl_map_quads(gate, up, [](float g, float u) { return g * u; });
    case SL_ACTIVATION_XIELU:
        return sl_map_quads(gate, up, [&op](float g, float u) {
            const float bent = expm1f(g > op.limit ? op.limit : g) - g;
            return (g > 0 ? (op.alpha * g + op.beta) * g : op.negative * bent + op.beta * g) * u;
        });
    default:
        return sl_map_quads(gate, up,
                            [&op](float g, float u) { return sl_swiglu_oai(op.alpha, op.limit, g, u); });
    }
}

/* ---- combine ---- */

typedef struct sl_combine_args {
    sl_op_combine combine;
    sl_cuda_operand x, weights, residual, shared, shared_gate, y;
} sl_combine_args;

template <bool ALIGNED>
static __device__ __forceinline__ float4 sl_combine_quad(const sl_combine_args &args, int32_t row,
                                                         int32_t i) {
    const float *weights = args.weights.data ? sl_f32(args.weights, row) : NULL;
    const int32_t width = args.combine.width, used = args.combine.used;
    const float *x = sl_f32(args.x, (int64_t)row * used);
    const uint64_t apart = args.x.row_bytes / sizeof *x;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int32_t rank = 0; rank < used; rank++) {
        const float weight = weights ? weights[rank] : 1.0f;
        const float4 part = sl_load_quad<ALIGNED>(x + (uint64_t)rank * apart, i, width);
        sum = sl_map_quads(sum, part, [weight](float s, float p) { return s + weight * p; });
    }
    if (args.shared.data) {
        const float weight = args.shared_gate.data ? sl_sigmoid(*sl_f32(args.shared_gate, row)) : 1.0f;
        const float4 part = sl_load_quad<ALIGNED>(sl_f32(args.shared, row), i, width);
        sum = sl_map_quads(sum, part, [weight](float s, float p) { return s + p * weight; });
    }
    if (args.residual.data) {
        sum = sl_add_quads(sum, sl_load_quad<ALIGNED>(sl_f32(args.residual, row), i, width));
    }
    return sum;
}

static inline sl_combine_args sl_combine_args_of(const sl_cuda_op *op) {
    return {op->op->u.combine, op->in[0], op->in[1], op->in[2], op->in[3], op->in[4], op->out[0]};
}

static inline bool sl_combine_in_quads(const sl_combine_args &args) {
    return args.combine.width % SL_QUAD == 0 && sl_in_quads(args.x) && sl_in_quads(args.residual) &&
           sl_in_quads(args.shared) && sl_in_quads(args.y);
}

/* ---- rope ---- */

typedef struct sl_turn {
    float cosine, sine;
} sl_turn;

static __device__ __forceinline__ sl_turn sl_turn_of(const sl_op_rope &rope, int32_t position,
                                                     float frequency) {
    sl_turn turn;
    sincosf((float)position * frequency, &turn.sine, &turn.cosine);
    turn.sine *= rope.magnitude;
    turn.cosine *= rope.magnitude;
    return turn;
}

static __device__ __forceinline__ float sl_turn_first(const sl_turn &turn, float a, float b) {
    return a * turn.cosine - b * turn.sine;
}

static __device__ __forceinline__ float sl_turn_second(const sl_turn &turn, float a, float b) {
    return a * turn.sine + b * turn.cosine;
}

/* ---- embed ---- */

typedef struct sl_embed_args {
    sl_cuda_weight table;
    sl_cuda_operand y;
    float scale;
    int32_t source, offset; /* sl_embed_source; in front of positions */
    sl_cuda_operand residual;
} sl_embed_args;

/* The row's values in the table. A token outside it gives NULL, which counts as zeros: the step's maker
 * checks ids, and nothing is read outside in any case. */
static __device__ __forceinline__ const unsigned char *sl_embedding(const sl_cuda_context &context,
                                                                    const sl_embed_args &args, int32_t row) {
    const sl_step_row *source = &context.rows[row];
    int32_t index = 0;
    if (args.source == SL_EMBED_POSITION) {
        index = source->position + args.offset;
    } else if (args.source == SL_EMBED_TOKEN) {
        index = source->source == SL_ROW_LAST_TOKEN ? context.last_tokens[context.spans[source->span].slot]
                                                    : source->token;
    }
    const bool inside = index >= 0 && index < args.table.rows;
    return inside ? args.table.data + (uint64_t)index * args.table.row_bytes : NULL;
}

template <bool ALIGNED>
static __device__ __forceinline__ float4 sl_embed_quad(const sl_embed_args &args, const unsigned char *values,
                                                       int32_t i) {
    const float scale = args.scale;
    if (!values) {
        return make_float4(0, 0, 0, 0);
    }
    if (ALIGNED) {
        return sl_map_quad(sl_decode_quad(args.table.type, values, args.table.row_bytes, i),
                           [scale](float v) { return v * scale; });
    }
    float quad[SL_QUAD] = {};
    for (int32_t k = 0; k < SL_QUAD && i + k < args.table.columns; k++) {
        quad[k] = sl_decode(args.table.type, values, args.table.row_bytes, i + k) * scale;
    }
    return make_float4(quad[0], quad[1], quad[2], quad[3]);
}

/* ---- rmsnorm ---- */

/* What a norm does besides: PLAIN neither a gate nor a residual behind it, ANY both, SCALED these, factors
 * and weights of each group's own. */
typedef enum sl_norm_form { SL_NORM_PLAIN, SL_NORM_ANY, SL_NORM_SCALED } sl_norm_form;

/* Where a norm's x comes from. What it computes is also kept, unless nobody reads it. */
typedef enum sl_norm_source {
    SL_NORM_OF_X,
    SL_NORM_OF_EMBED,
    SL_NORM_OF_GATHER,
    SL_NORM_OF_COMBINE,
    SL_NORM_OF_RANGES /* of a product */
} sl_norm_source;

typedef struct sl_norm_args {
    sl_op_rmsnorm norm;
    sl_cuda_operand x, residual, gate, y, sum;
    sl_cuda_operand q; /* y as a linear reads it; data is NULL when that is not asked for */
    const float *weight;
    float share; /* 1 / width */
    int32_t y_stride;
    bool keep_y;
    /* What stands in front of the norm; of its output and of a gathered residual, data is NULL when they need
     * not be kept. */
    sl_embed_args embed;
    sl_combine_args combine;
    sl_cuda_operand kept, kept_residual;
    bool gathers_residual;
    sl_cuda_ranges ranges;
} sl_norm_args;

/* Threads and quads of each: they depend on the group's width alone. A quad each as long as a block or, for
 * heads, a warp has enough threads. */
typedef struct sl_norm_shape {
    int32_t threads, quads;
} sl_norm_shape;

static inline sl_norm_shape sl_norm_shape_of(int32_t width) {
    const int32_t all = (width + SL_QUAD - 1) / SL_QUAD;
    const int32_t most = all <= SL_QUAD * SL_WARP      ? (int32_t)SL_WARP
                         : all <= SL_NORM_MOST_THREADS ? (int32_t)SL_NORM_MOST_THREADS
                                                       : (int32_t)SL_NORM_THREADS;
    int32_t quads = 1;
    while (quads * most < all) {
        quads *= 2;
    }
    const int32_t threads = (all + quads - 1) / quads;
    return {(threads + SL_WARP - 1) / SL_WARP * SL_WARP, quads};
}

/* A thread's quads of a group: its number, and on from there. */
template <int CLUSTER> static __device__ __forceinline__ int32_t sl_quad_at(int32_t k) {
    const int32_t thread = (int32_t)(blockIdx.x % CLUSTER * blockDim.x + threadIdx.x);
    return SL_QUAD * (thread + k * CLUSTER * (int32_t)blockDim.x);
}

/* Of a thread's quads. */
template <int QUADS> static __device__ __forceinline__ float sl_norm_squares(const float4 (&x)[QUADS]) {
    float squares = 0;
#pragma unroll
    for (int k = 0; k < QUADS; k++) { /* zeros behind the end change nothing */
        squares = fmaf(x[k].x, x[k].x, squares);
        squares = fmaf(x[k].y, x[k].y, squares);
        squares = fmaf(x[k].z, x[k].z, squares);
        squares = fmaf(x[k].w, x[k].w, squares);
    }
    return squares;
}

/* What the blocks of a group exchange: sums of squares of all their warps, and whether those of all are
 * there. */
typedef struct sl_norm_shared {
    float sums[SL_WARP];
    uint64_t all_there;
} sl_norm_shared;

/* First in a kernel whose groups have CLUSTER blocks. */
template <int CLUSTER> static __device__ __forceinline__ void sl_norm_begin(sl_norm_shared *shared) {
#if __CUDA_ARCH__ >= 900
    if (CLUSTER > 1 && threadIdx.x == 0) {
        const uint32_t barrier = sl_shared_address(&shared->all_there);
        sl_barrier_init(barrier, 1);
        sl_barrier_expect(barrier, CLUSTER * blockDim.x / SL_WARP * (uint32_t)sizeof *shared->sums);
        sl_barriers_ready();
    }
#else
    (void)shared;
#endif
    sl_cluster_arrive<CLUSTER>();
}

/* Class "f32/tree": fused squares, a thread's quads in rising order, then over the warp, then over the warps
 * of the group. With more than one warp this is for once in a kernel, which called sl_norm_begin.
 * `share`: 1 / width. */
template <int QUADS, int CLUSTER>
static __device__ __forceinline__ float sl_norm_factor(const float4 (&x)[QUADS], float share, float epsilon,
                                                       sl_norm_shared *shared) {
    float squares = sl_warp_sum(sl_norm_squares(x));
    const unsigned lane = threadIdx.x % SL_WARP, warps = blockDim.x / SL_WARP;
    if (CLUSTER > 1) { /* every block gets all warps' sums, and waits for no more than these */
#if __CUDA_ARCH__ >= 900
        float *mine = &shared->sums[blockIdx.x % CLUSTER * warps + threadIdx.x / SL_WARP];
        const uint32_t barrier = sl_shared_address(&shared->all_there);
        sl_cluster_wait<CLUSTER>();
        if (lane < CLUSTER) {
            sl_store_counted(sl_shared_address(mine), squares, barrier, lane);
        }
        sl_barrier_wait(barrier, 0);
#endif
    } else if (warps > 1) {
        if (lane == 0) {
            shared->sums[threadIdx.x / SL_WARP] = squares;
        }
        __syncthreads();
    }
    if (CLUSTER * warps > 1) {
        squares = sl_warp_sum(lane < CLUSTER * warps ? shared->sums[lane] : 0.0f);
    }
    return rsqrtf(fmaf(squares, share, epsilon));
}

template <int QUADS, bool ALIGNED, sl_norm_form FORM, sl_norm_source SOURCE, int CLUSTER>
static __device__ __forceinline__ void sl_norm_load(const sl_cuda_context &context, const sl_norm_args &args,
                                                    int32_t row, int32_t at, float4 (&x)[QUADS]) {
    const int32_t width = args.norm.width;
    const int32_t source = SOURCE == SL_NORM_OF_GATHER ? context.outputs[row].row : row;
    const float *from =
        SOURCE != SL_NORM_OF_EMBED && SOURCE != SL_NORM_OF_COMBINE ? sl_f32(args.x, source) + at : NULL;
    const unsigned char *values = SOURCE == SL_NORM_OF_EMBED ? sl_embedding(context, args.embed, row) : NULL;
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int32_t i = sl_quad_at<CLUSTER>(k);
        x[k] = make_float4(0, 0, 0, 0);
        if (i < width) {
            x[k] = SOURCE == SL_NORM_OF_EMBED     ? sl_embed_quad<ALIGNED>(args.embed, values, i)
                   : SOURCE == SL_NORM_OF_COMBINE ? sl_combine_quad<ALIGNED>(args.combine, row, i)
                   : SOURCE == SL_NORM_OF_RANGES || (SOURCE == SL_NORM_OF_GATHER && args.ranges.data)
                       ? sl_add_ranges(args.ranges, from, i)
                       : sl_load_quad<ALIGNED>(from, i, width);
            if (SOURCE != SL_NORM_OF_X && args.kept.data) {
                sl_store_quad<ALIGNED>(sl_f32(args.kept, row), i, width, x[k]);
            }
            if (FORM == SL_NORM_SCALED) {
                x[k] = sl_map_quad(x[k], [&args](float v) { return v * args.norm.x_factor; });
            }
        }
    }
    if (args.norm.residual != SL_RESIDUAL_BEFORE) {
        return;
    }
    const float *before =
        sl_f32(args.residual, SOURCE == SL_NORM_OF_GATHER && args.gathers_residual ? source : row) + at;
    float4 residual[QUADS];
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int32_t i = sl_quad_at<CLUSTER>(k);
        residual[k] = i < width ? sl_load_quad<ALIGNED>(before, i, width) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int32_t i = sl_quad_at<CLUSTER>(k);
        if (SOURCE == SL_NORM_OF_GATHER && args.kept_residual.data && i < width) {
            sl_store_quad<ALIGNED>(sl_f32(args.kept_residual, row), i, width, residual[k]);
        }
        x[k] = sl_add_quads(x[k], residual[k]);
    }
}

/* A row of one group to E4M3_128, or to Q8_256, of which two neighbouring warps' quads are a group. */
template <int QUADS>
static __device__ __forceinline__ void sl_norm_store_codes(const sl_cuda_operand &q, int32_t row,
                                                           int32_t width, const float4 (&y)[QUADS],
                                                           float *largest_of) {
    const int32_t warps = (int32_t)(blockDim.x / SL_WARP), warp = (int32_t)(threadIdx.x / SL_WARP);
    if (q.type == SL_VALUE_E4M3_128) {
#pragma unroll
        for (int k = 0; k < QUADS; k++) {
            sl_quantize_e4m3_quad(q, row, sl_quad_at<1>(k), width, y[k]);
        }
        return;
    }
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const float largest = sl_warp_largest(y[k]);
        if (threadIdx.x % SL_WARP == 0) {
            largest_of[k * warps + warp] = largest;
        }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int32_t own = k * warps + warp, other = own ^ 1;
        if (SL_WARP_QUADS * own < width) {
            const float4 quads[1] = {y[k]};
            const float beside = other < QUADS * warps ? largest_of[other] : 0.0f;
            sl_store_codes<SL_VALUE_Q8_256>(q, row, SL_WARP_QUADS * own, sl_larger(largest_of[own], beside),
                                            quads);
        }
    }
}

/* x: the row's quads before the norm, and, with CODES, the norm's output behind it; weight: with the offset.
 */
template <int QUADS, bool ALIGNED, sl_norm_form FORM, int CLUSTER, bool CODES>
static __device__ __forceinline__ void sl_norm_store(const sl_norm_args &args, int32_t row, int32_t group,
                                                     float factor, float4 (&x)[QUADS],
                                                     const float4 (&weight)[QUADS]) {
    constexpr bool PLAIN = FORM == SL_NORM_PLAIN;
    const sl_op_rmsnorm &norm = args.norm;
    const int32_t width = norm.width, at = group * args.y_stride;
    const float *gate = !PLAIN && args.gate.data ? sl_f32(args.gate, row) + group * norm.gate_stride : NULL;
    const float *after =
        !PLAIN && norm.residual == SL_RESIDUAL_AFTER ? sl_f32(args.residual, row) + at : NULL;
    float *sum = args.sum.data ? sl_f32(args.sum, row) + group * norm.stride : NULL;
    float *y = args.keep_y ? sl_f32(args.y, row) + at : NULL;
    sl_cuda_operand q = args.q;
    q.column += at;
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int32_t i = sl_quad_at<CLUSTER>(k);
        float4 result = sl_map_quad(x[k], [factor](float v) { return v * factor; });
        if (args.weight) {
            result = sl_map_quads(result, weight[k], [](float v, float w) { return v * w; });
        }
        if (i < width) {
            if (gate) {
                result = sl_map_quads(result, sl_load_quad<ALIGNED>(gate, i, width),
                                      [](float v, float g) { return v * sl_silu(g); });
            }
            if (after) {
                result = sl_add_quads(result, sl_load_quad<ALIGNED>(after, i, width));
            }
            if (FORM == SL_NORM_SCALED) {
                result = sl_map_quad(result, [&norm](float v) { return v * norm.y_factor; });
            }
            if (sum) {
                sl_store_quad<ALIGNED>(sum, i, width, after ? result : x[k]);
            }
            if (y) {
                sl_store_quad<ALIGNED>(y, i, width, result);
            }
        }
        if (CODES) {
            x[k] = result;
        } else if (q.data) {
            sl_quantize_quad<ALIGNED>(q, row, i, width, result);
        }
    }
}

/* A row for each x of the grid. A group has a block, or a warp of it (threadIdx.y) when a warp is enough. x,
 * y, residual and sum may be the same memory: a thread reads all its quads before it writes one. CLUSTER:
 * blocks that share a group. */
template <int QUADS, bool ALIGNED, sl_norm_form FORM, sl_norm_source SOURCE, int CLUSTER, bool CODES = false>
static __global__ void __launch_bounds__(QUADS == 1 ? SL_NORM_MOST_THREADS : SL_NORM_THREADS)
    sl_norm_kernel(const __grid_constant__ sl_cuda_context context,
                   const __grid_constant__ sl_norm_args args) {
    __shared__ sl_norm_shared shared;
    const int32_t row = (int32_t)blockIdx.x / CLUSTER, width = args.norm.width;
    const int32_t group = (int32_t)(blockIdx.y * blockDim.y + threadIdx.y);
    float4 weight[QUADS], x[QUADS];
    sl_norm_begin<CLUSTER>(&shared);
    const bool own = FORM == SL_NORM_SCALED && args.norm.own_weights && group < args.norm.groups;
    const float *weights = args.weight + (own ? group * width : 0);
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int32_t i = sl_quad_at<CLUSTER>(k);
        weight[k] =
            args.weight && i < width ? sl_load_quad<ALIGNED>(weights, i, width) : make_float4(0, 0, 0, 0);
        weight[k] = sl_map_quad(weight[k], [&args](float w) { return w + args.norm.weight_offset; });
    }
    const int32_t rows = sl_count(context, args.y.rows); /* of the step block, which is there */
    sl_let_next_begin();
    sl_wait_for_inputs();
    /* The first row's memory is there even in an empty step: it is read without waiting for the count. */
    const bool at_once =
        row == 0 && (SOURCE == SL_NORM_OF_X ||
                     ((SOURCE == SL_NORM_OF_COMBINE || SOURCE == SL_NORM_OF_RANGES) && !args.kept.data));
    if (group >= args.norm.groups || (!at_once && row >= rows)) {
        return;
    }
    sl_norm_load<QUADS, ALIGNED, FORM, SOURCE, CLUSTER>(context, args, row, group * args.norm.stride, x);
    const float factor = sl_norm_factor<QUADS, CLUSTER>(x, args.share, args.norm.epsilon, &shared);
    if (at_once && row >= rows) {
        return;
    }
    sl_norm_store<QUADS, ALIGNED, FORM, CLUSTER, CODES>(args, row, group, factor, x, weight);
    if constexpr (CODES) {
        __shared__ float largest[SL_NORM_QUADS * SL_NORM_THREADS / SL_WARP];
        sl_cuda_operand q = args.q;
        q.column += group * args.y_stride;
        sl_norm_store_codes(q, row, width, x, largest);
    }
}

/* Launches it for the bucket's rows. */
template <int QUADS, bool ALIGNED, sl_norm_form FORM, sl_norm_source SOURCE>
static cudaError_t sl_norm_launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                                  const sl_norm_args &args) {
    const unsigned threads = (unsigned)sl_norm_shape_of(args.norm.width).threads;
    const unsigned groups = (unsigned)args.norm.groups;
    const unsigned warps = threads > SL_WARP ? 1 : groups < 8 ? groups : 8;
    const unsigned rows = (unsigned)op->rows[args.y.rows];
    sl_launch_shape shape = {dim3(rows, (groups + warps - 1) / warps), dim3(threads, warps), 0};
    /* Clusters and early launches came with 9.0. With fewer threads or experts in front they do not pay, nor
     * with many rows: their blocks would be on every processor, where the next product's wait for room. */
    constexpr bool may_spread =
        FORM == SL_NORM_PLAIN || (FORM == SL_NORM_SCALED && ALIGNED && SOURCE == SL_NORM_OF_X);
    if constexpr (may_spread && QUADS <= 4 && SOURCE != SL_NORM_OF_COMBINE) {
        if (context->dependent_launches && !sl_is_codes(args.q.type) &&
            rows * groups <= SL_NORM_SPREAD_ROWS && threads * QUADS > SL_NORM_SPREAD_QUADS &&
            threads % (SL_NORM_CLUSTER * SL_WARP) == 0) {
            const bool wide = rows * groups > 1 && threads % (SL_NORM_WIDE_CLUSTER * SL_WARP) == 0;
            shape.cluster = wide ? SL_NORM_WIDE_CLUSTER : SL_NORM_CLUSTER;
            shape.grid.x *= shape.cluster;
            shape.block.x /= shape.cluster;
            const auto kernel = wide ? sl_norm_kernel<QUADS, ALIGNED, FORM, SOURCE, SL_NORM_WIDE_CLUSTER>
                                     : sl_norm_kernel<QUADS, ALIGNED, FORM, SOURCE, SL_NORM_CLUSTER>;
            return sl_launch(context, stream, shape, kernel, *context, args);
        }
    }
    if constexpr (ALIGNED) { /* as all runs are */
        if (args.q.data && sl_is_codes(args.q.type)) {
            return sl_launch(context, stream, shape, sl_norm_kernel<QUADS, ALIGNED, FORM, SOURCE, 1, true>,
                             *context, args);
        }
    }
    const auto kernel = sl_norm_kernel<QUADS, ALIGNED, FORM, SOURCE, 1>;
    return sl_launch(context, stream, shape, kernel, *context, args);
}

static inline bool sl_norm_is_scaled(const sl_op_rmsnorm *norm) {
    return norm->x_factor != 1 || norm->y_factor != 1 || norm->own_weights;
}

static inline sl_norm_form sl_norm_form_of(const sl_norm_args &args) {
    return sl_norm_is_scaled(&args.norm)                                ? SL_NORM_SCALED
           : !args.gate.data && args.norm.residual != SL_RESIDUAL_AFTER ? SL_NORM_PLAIN
                                                                        : SL_NORM_ANY;
}

static inline sl_norm_args sl_norm_args_of(const sl_cuda_op *op) {
    const sl_op_rmsnorm *norm = &op->op->u.rmsnorm;
    const bool in_place = op->op->in[0].value == op->op->out[0].value;
    sl_norm_args args = {};
    args.norm = *norm;
    args.x = op->in[0];
    args.residual = op->in[1];
    args.gate = op->in[2];
    args.y = op->out[0];
    args.sum = op->out[1];
    args.weight = (const float *)(const void *)op->weights[0].data;
    args.share = 1.0f / (float)norm->width;
    args.y_stride = in_place ? norm->stride : norm->width;
    args.keep_y = true;
    return args;
}

/* Whether all its operands can be read and written in quads. */
static inline bool sl_norm_in_quads(const sl_norm_args &args) {
    const sl_op_rmsnorm &norm = args.norm;
    return norm.width % SL_QUAD == 0 &&
           (norm.groups == 1 || (norm.stride % SL_QUAD == 0 && norm.gate_stride % SL_QUAD == 0)) &&
           sl_in_quads(args.x) && sl_in_quads(args.residual) && sl_in_quads(args.gate) &&
           sl_in_quads(args.y) && sl_in_quads(args.sum) && sl_in_quads(args.q);
}

/* What the runs of row_ops.cu take (row_runs.cu). */
const char *sl_norm_quantize_declines(const sl_fusion *fusion, const sl_fusion_query *query);
const char *sl_activate_quantize_declines(const sl_fusion *fusion, const sl_fusion_query *query);

#endif
