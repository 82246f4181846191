/* What happens to q, k and v between their projection and attention, in one launch: norms of q and k if there
 * are any, RoPE, and the write to the cache. */
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/rows/heads.cuh"
#include "program/temperature.h"

enum { MOST_WARPS = 8, MOST_SIZE = 512, MANY_BLOCKS = 1056, FEW_BLOCKS = 132 };

/* exchange: the warp's own, [dims]. */
template <int QUADS>
static __device__ __forceinline__ void rotate_head(const sl_op_rope &rope, const sl_turns<QUADS> &turn,
                                                   float *exchange, float4 (&x)[QUADS]) {
    const int32_t pairs = rope.dims / 2;
    float4 partner[QUADS];
    if (rope.layout == SL_ROPE_HALVES) {
        __syncwarp();
#pragma unroll
        for (int k = 0; k < QUADS; k++) {
            if (sl_head_at(k) < rope.dims) {
                sl_store_quad<true>(exchange, sl_head_at(k), rope.dims, x[k]);
            }
        }
        __syncwarp();
    }
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int32_t i = sl_head_at(k);
        if (i < rope.dims) {
            partner[k] = rope.layout == SL_ROPE_HALVES
                             ? sl_load_quad<true>(exchange, i < pairs ? i + pairs : i - pairs, rope.dims)
                             : make_float4(x[k].y, x[k].x, x[k].w, x[k].z);
        }
    }
    sl_turn_head(rope, turn, partner, x);
}

/* A query's temperature, as the op ROPE applies it. */
template <int QUADS>
static __device__ __forceinline__ void scale_head(int32_t width, float factor, float4 (&x)[QUADS]) {
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        if (sl_head_at(k) < width) {
            x[k] = sl_map_quad(x[k], [factor](float a) { return a * factor; });
        }
    }
}

/* To its place in the row and to the cache, each unless it is NULL. */
template <int QUADS>
static __device__ __forceinline__ void store_head(const float4 (&x)[QUADS], int32_t size, float *to,
                                                  sl_qtype type, unsigned char *out) {
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int32_t i = sl_head_at(k);
        if (to && i < size) {
            sl_store_quad<true>(to, i, size, x[k]);
        }
        if (out) {
            sl_encode_quad<true>(type, x[k], out, i, size);
        }
    }
}

/* The head at `from` in y, as it comes from the projection: ranges have rows as y has. */
template <int QUADS, bool IN_RANGES>
static __device__ __forceinline__ void load_head(const sl_cuda_operand &y, const sl_cuda_ranges &ranges,
                                                 const float *from, int32_t size, float4 (&x)[QUADS]) {
    if constexpr (!IN_RANGES) {
        sl_load_head(from, size, x);
    } else {
        const float *first =
            (const float *)(const void *)(ranges.data + ((const unsigned char *)from - y.data));
#pragma unroll
        for (int k = 0; k < QUADS; k++) {
            x[k] =
                sl_head_at(k) < size ? sl_add_ranges(ranges, first, sl_head_at(k)) : make_float4(0, 0, 0, 0);
        }
    }
}

/* Cosines, then sines of the row's pairs: `thread` of `threads`. */
static __device__ __forceinline__ void fill_table(const sl_heads_args &args, int32_t position, int32_t thread,
                                                  int32_t threads, float *table) {
    const int32_t pairs = args.rope.dims / 2;
    for (int32_t pair = thread; pair < pairs; pair += threads) {
        const sl_turn turn = sl_turn_of(args.rope, position, args.frequencies[pair]);
        table[pair] = turn.cosine;
        table[pairs + pair] = turn.sine;
    }
}

/* A row for each x of the grid; its heads, in the order q, k, v, are shared among the warps of all y.
 * IN_RANGES: the projection is yet to be added up, and values are stored too. SCALED: queries have a
 * temperature. */
template <int QUADS, bool IN_RANGES, bool SCALED>
static __global__ void __launch_bounds__(MOST_WARPS *SL_WARP)
    heads_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ sl_heads_args args,
                 const __grid_constant__ sl_cuda_ranges ranges) {
    extern __shared__ float4 memory[];
    __shared__ sl_cache_spot shared_spot;
    const sl_cuda_cache &cache = context.caches[args.place.group];
    const int32_t pairs = args.rope.dims / 2, row = (int32_t)blockIdx.x, size = cache.key_size;
    const int32_t warp = (int32_t)threadIdx.y, threads = (int32_t)blockDim.y * SL_WARP;
    const int32_t queries = args.rope.heads, keys = queries + cache.kv_heads, heads = keys + cache.kv_heads;
    float *table = (float *)(void *)memory, *exchange = table + 2 * pairs + warp * args.rope.dims;
    float4 q_weight[QUADS], k_weight[QUADS], x[QUADS], next[QUADS];
    sl_let_next_begin();
    sl_load_head_weights(args.q_weight, args.q_offset, size, q_weight);
    sl_load_head_weights(args.k_weight, args.k_offset, size, k_weight);
    /* Weights and the step block are there: all that follows from them is ready when the inputs come. The
     * step block has room for all rows of the bucket. */
    const int32_t rows = context.header->rows, position = row < rows ? context.rows[row].position : 0;
    const float factor = SCALED ? sl_rope_temperature_factor(&args.rope.temperature, position) : 1.0f;
    fill_table(args, position, warp * SL_WARP + (int32_t)threadIdx.x, threads, table);
    sl_cache_entry entry = {};
    if (warp == (int32_t)blockDim.y - 1 && row < rows) {
        entry = sl_find_entry(context, args.place, row);
    }
    sl_wait_for_inputs();
    if (row > 0 && row >= rows) { /* the first row's memory is there even in an empty step */
        return;
    }
    float *q = sl_f32(args.q, row), *k = sl_f32(args.k, row), *v = sl_f32(args.v, row);
    const auto head_at = [&](int32_t i) {
        return i < queries ? q + i * args.rope.stride
               : i < keys  ? k + (i - queries) * size
                           : v + (i - keys) * cache.value_size;
    };
    const int32_t step = (int32_t)(gridDim.y * blockDim.y), first = (int32_t)(blockIdx.y * blockDim.y) + warp;
    const auto load = [&](int32_t head) {
        const int32_t width = head < keys ? size : cache.value_size;
        load_head<QUADS, IN_RANGES>(args.q, ranges, head_at(head), width, next);
    };
    load(first < heads ? first : 0);
    if (row >= rows) {
        return;
    }
    if (warp == (int32_t)blockDim.y - 1 && threadIdx.x == 0) {
        shared_spot = sl_spot_of(cache, args.place, entry);
    }
    __syncthreads();
    const sl_cache_spot spot = shared_spot;
    sl_turns<QUADS> turn;
    sl_load_turns(args.rope, table, turn);
    for (int32_t i = first; i < heads; i += step) {
        const bool is_query = i < queries, is_value = i >= keys;
#pragma unroll
        for (int n = 0; n < QUADS; n++) {
            x[n] = next[n];
        }
        if (i + step < heads) {
            load(i + step);
        }
        if (!is_value) {
            if (args.has_norms) {
                const float epsilon = is_query ? args.q_epsilon : args.k_epsilon;
                if (is_query) {
                    sl_norm_head(args.share, epsilon, q_weight, x);
                } else {
                    sl_norm_head(args.share, epsilon, k_weight, x);
                }
            }
            rotate_head(args.rope, turn, exchange, x);
            if (SCALED && is_query) {
                scale_head(args.rope.temperature.width, factor, x);
            }
        }
        unsigned char *out = is_query || !spot.keys
                                 ? NULL
                                 : sl_cache_row(cache, spot, is_value, i - (is_value ? keys : queries));
        store_head(x, is_value ? cache.value_size : size,
                   is_query || (is_value ? IN_RANGES : args.keep_k) ? head_at(i) : NULL, cache.type, out);
    }
}

/* Few rows in small blocks, so that more processors share them; many rows in few blocks each, so that sines
 * and cosines are computed once. */
static sl_launch_shape heads_shape(unsigned rows, unsigned heads, const sl_op_rope &rope) {
    unsigned warps = MOST_WARPS;
    while (warps > 2 && rows * heads < warps * FEW_BLOCKS) {
        warps /= 2;
    }
    const unsigned most = (heads + warps - 1) / warps, wanted = (MANY_BLOCKS + rows - 1) / rows;
    return {dim3(rows, wanted < most ? wanted : most), dim3(SL_WARP, warps),
            (uint32_t)rope.dims * (1 + warps) * (uint32_t)sizeof(float)};
}

sl_heads_args sl_heads_args_of(const sl_cuda_context *context, const sl_cuda_op *op) {
    const sl_cuda_op *rope = op->op->kind == SL_OP_RMSNORM ? op + 2 : op, *write = rope + 2;
    sl_heads_args args = {};
    args.q = rope[0].out[0];
    args.k = rope[1].out[0];
    args.v = write->in[1];
    args.frequencies = (const float *)(const void *)rope->weights[0].data;
    args.rope = rope->op->u.rope;
    args.place = write->op->u.cache_write.place;
    args.keep_k = !rope[1].unread[0];
    args.has_norms = rope != op;
    args.share = 1.0f / (float)context->caches[args.place.group].key_size;
    if (args.has_norms) {
        args.q_offset = op[0].op->u.rmsnorm.weight_offset;
        args.k_offset = op[1].op->u.rmsnorm.weight_offset;
        args.q_epsilon = op[0].op->u.rmsnorm.epsilon;
        args.k_epsilon = op[1].op->u.rmsnorm.epsilon;
        args.q_weight = (const float *)(const void *)op[0].weights[0].data;
        args.k_weight = (const float *)(const void *)op[1].weights[0].data;
    }
    return args;
}

template <bool IN_RANGES, bool SCALED>
static cudaError_t launch_heads(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                                const sl_heads_args &args, const sl_cuda_ranges &ranges) {
    const sl_cuda_cache *cache = &context->caches[args.place.group];
    const unsigned heads = (unsigned)args.rope.heads + 2 * (unsigned)cache->kv_heads;
    const sl_launch_shape shape = heads_shape((unsigned)op->rows[SL_ROWS_STEP], heads, args.rope);
    const int32_t size = cache->key_size > cache->value_size ? cache->key_size : cache->value_size;
    return size <= SL_QUAD * SL_WARP
               ? sl_launch(context, stream, shape, heads_kernel<1, IN_RANGES, SCALED>, *context, args, ranges)
           : size <= 2 * SL_QUAD * SL_WARP
               ? sl_launch(context, stream, shape, heads_kernel<2, IN_RANGES, SCALED>, *context, args, ranges)
               : sl_launch(context, stream, shape, heads_kernel<4, IN_RANGES, SCALED>, *context, args,
                           ranges);
}

template <bool IN_RANGES>
static cudaError_t run_heads(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                             const sl_cuda_ranges &ranges) {
    const sl_heads_args args = sl_heads_args_of(context, op);
    return args.rope.temperature.width > 0
               ? launch_heads<IN_RANGES, true>(context, op, stream, args, ranges)
               : launch_heads<IN_RANGES, false>(context, op, stream, args, ranges);
}

static SL_CUDA_RUN(run) {
    const sl_cuda_ranges none = {};
    return run_heads<false>(context, op, stream, none);
}

static SL_CUDA_RUN(run_ranges) {
    sl_cuda_ranges ranges = {};
    const cudaError_t code = sl_cuda_run_ranges(context, op, stream, &ranges);
    return code ? code : run_heads<true>(context, op + 1, stream, ranges);
}

/* ---- what it takes ---- */

static bool same(const sl_operand &a, const sl_operand &b) {
    return a.value == b.value && a.column == b.column;
}

static bool in_quads(const sl_fusion_query *query, const sl_operand &operand) {
    const sl_value *value = &query->values[operand.value];
    return operand.column % SL_QUAD == 0 && value->width % SL_QUAD == 0;
}

/* A norm in place of the heads that `rope` turns. */
static bool norm_fits(const sl_op *norm, const sl_op *rope, int32_t size) {
    return same(norm->in[0], rope->in[0]) && same(norm->out[0], rope->in[0]) &&
           norm->in[1].value == SL_NONE && norm->in[2].value == SL_NONE && norm->out[1].value == SL_NONE &&
           norm->u.rmsnorm.groups == rope->u.rope.heads && norm->u.rmsnorm.width == size &&
           (rope->u.rope.heads == 1 || norm->u.rmsnorm.stride == rope->u.rope.stride);
}

const char *sl_heads_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    const sl_op *ops = query->ops, *rope = ops + (fusion->count - 3), *write = rope + 2;
    const sl_op_rope *q = &rope[0].u.rope, *k = &rope[1].u.rope;
    const sl_cache_group *group = &query->program->groups[write->u.cache_write.place.group];
    const int32_t size = group->key_size;
    if (group->values_are_keys) {
        return "takes values beside the keys";
    }
    if (q->dims == 0 || k->temperature.width > 0) {
        return "takes heads that rotate, and keys without a temperature";
    }
    if (rope != ops && (sl_norm_is_scaled(&ops[0].u.rmsnorm) || sl_norm_is_scaled(&ops[1].u.rmsnorm))) {
        return "takes norms without factors";
    }
    if (!same(rope[1].in[0], write->in[0]) ||
        (rope != ops && (!norm_fits(&ops[0], &rope[0], size) || !norm_fits(&ops[1], &rope[1], size)))) {
        return "takes ops of which each reads the one before";
    }
    if (q->frequencies != k->frequencies || q->dims != k->dims || q->layout != k->layout ||
        q->magnitude != k->magnitude) {
        return "takes one rotation for queries and keys";
    }
    if (k->heads != group->kv_heads || (k->heads > 1 && k->stride != size)) {
        return "takes keys side by side";
    }
    if (size > MOST_SIZE || group->value_size > MOST_SIZE) {
        return "takes head sizes up to 512";
    }
    if (size % SL_QUAD != 0 || group->value_size % SL_QUAD != 0 || q->stride % SL_QUAD != 0 ||
        q->dims % (2 * SL_QUAD) != 0 || q->dims > size || q->temperature.width % SL_QUAD != 0 ||
        q->temperature.width > size || !in_quads(query, rope[0].in[0]) || !in_quads(query, write->in[0]) ||
        !in_quads(query, write->in[1])) {
        return "takes operands that lie in whole quads";
    }
    return NULL;
}

static const char *ranges_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    const char *reason = sl_cuda_run_ranges_reason(query);
    if (reason) {
        return reason;
    }
    const sl_op *linear = &query->ops[0], *rope = linear + (fusion->count - 3), *write = rope + 2;
    sl_fusion heads = *fusion;
    sl_fusion_query rest = *query;
    heads.count--;
    rest.ops++;
    rest.kernels++;
    rest.unread++;
    reason = sl_heads_declines(&heads, &rest);
    if (reason) {
        return reason;
    }
    const int32_t value = linear->out[0].value;
    if (rope[0].in[0].value != value || rope[0].out[0].value != value || rope[1].in[0].value != value ||
        rope[1].out[0].value != value || write->in[1].value != value) {
        return "takes ops of which each reads the one before";
    }
    /* All that the product writes must be a head that is read. */
    int64_t outputs = 0;
    for (int32_t s = 0; s < linear->u.linear.segment_count; s++) {
        outputs += query->program->weights[linear->u.linear.segments[s].weight].rows;
    }
    const sl_cache_group *group = &query->program->groups[write->u.cache_write.place.group];
    const int64_t keys = (int64_t)group->kv_heads * group->key_size,
                  all = (int64_t)rope->u.rope.heads * group->key_size + keys +
                        (int64_t)group->kv_heads * group->value_size;
    if (outputs != all || (rope->u.rope.heads > 1 && rope->u.rope.stride != group->key_size) ||
        rope->u.rope.dims > group->key_size) {
        return "takes products that are heads alone";
    }
    /* Fewer rows have attention in the launch of the heads. */
    return query->rows[SL_ROWS_STEP] <= SL_CUDA_FEW_ROWS ? "is for more than 8 rows" : NULL;
}

static const sl_cuda_fusion FUSIONS[] = {
    SL_CUDA_FUSION(run_ranges, ranges_declines, "linear-ranges+norms+rope+cache_write", SL_OP_LINEAR,
                   SL_OP_RMSNORM, SL_OP_RMSNORM, SL_OP_ROPE, SL_OP_ROPE, SL_OP_CACHE_WRITE),
    SL_CUDA_FUSION(run_ranges, ranges_declines, "linear-ranges+rope+cache_write", SL_OP_LINEAR, SL_OP_ROPE,
                   SL_OP_ROPE, SL_OP_CACHE_WRITE),
    SL_CUDA_FUSION(run, sl_heads_declines, "norms+rope+cache_write", SL_OP_RMSNORM, SL_OP_RMSNORM, SL_OP_ROPE,
                   SL_OP_ROPE, SL_OP_CACHE_WRITE),
    SL_CUDA_FUSION(run, sl_heads_declines, "rope+cache_write", SL_OP_ROPE, SL_OP_ROPE, SL_OP_CACHE_WRITE),
};

SL_CUDA_FAMILY(heads) = {SL_CUDA_NO_ROWS, SL_CUDA_ROWS(FUSIONS), NULL};
