/* What happens to q, k and v between their projection and attention, in one launch: norms of q and k if there
 * are any, RoPE, and the write to the cache. */
#include "backend/cuda/cache.cuh"

enum { WARPS = 8, THREADS = WARPS * SL_WARP, MOST_SIZE = 512, MANY_BLOCKS = 1056 };

typedef struct heads_args {
    sl_cuda_operand q, k, v;
    const float *q_weight, *k_weight, *frequencies;
    sl_op_rmsnorm q_norm, k_norm;
    sl_op_rope rope; /* of q; k's heads lie side by side */
    sl_cache_place place;
    int32_t has_norms, keep_k;
} heads_args;

/* A head's quads, and what it is. */
typedef struct head {
    const float *from;
    float *to; /* NULL: it is not kept */
    int32_t index, size;
    bool is_query, is_value;
} head;

/* Heads in the order q, k, v. */
static __device__ __forceinline__ head find_head(const sl_cuda_cache &cache, const heads_args &args,
                                                 int32_t row, int32_t i) {
    head found;
    found.is_query = i < args.rope.heads;
    found.is_value = i >= args.rope.heads + cache.kv_heads;
    found.index = found.is_query ? i : i - args.rope.heads - (found.is_value ? cache.kv_heads : 0);
    found.size = found.is_value ? cache.value_size : cache.key_size;
    float *row_start = sl_f32(found.is_query ? args.q : found.is_value ? args.v : args.k, row);
    float *start = row_start + found.index * (found.is_query ? args.rope.stride : found.size);
    found.from = start;
    found.to = found.is_query || (!found.is_value && args.keep_k) ? start : NULL;
    return found;
}

template <int QUADS>
static __device__ __forceinline__ void load_quads(const float *from, int32_t size, float4 (&x)[QUADS]) {
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int32_t i = SL_QUAD * ((int32_t)threadIdx.x + k * SL_WARP);
        x[k] = i < size ? sl_load_quad<true>(from, i, size) : make_float4(0, 0, 0, 0);
    }
}

/* As the op RMSNORM does it. */
template <int QUADS>
static __device__ __forceinline__ void norm_head(const sl_op_rmsnorm &norm, const float4 (&weight)[QUADS],
                                                 bool weighted, float4 (&x)[QUADS]) {
    const float factor = sl_norm_factor(x, norm.width, norm.epsilon, (float *)NULL);
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        x[k] = sl_map_quad(x[k], [factor](float v) { return v * factor; });
        if (weighted) {
            x[k] = sl_map_quads(x[k], weight[k],
                                [&norm](float v, float w) { return v * (w + norm.weight_offset); });
        }
    }
}

/* Element i turns with its partner; `first`: it is the pair's first. */
static __device__ __forceinline__ float4 turn_halves(float4 own, float4 partner, float4 cosine, float4 sine,
                                                     bool first) {
    const float a[SL_QUAD] = {own.x, own.y, own.z, own.w};
    const float b[SL_QUAD] = {partner.x, partner.y, partner.z, partner.w};
    const float c[SL_QUAD] = {cosine.x, cosine.y, cosine.z, cosine.w};
    const float s[SL_QUAD] = {sine.x, sine.y, sine.z, sine.w};
    float y[SL_QUAD];
#pragma unroll
    for (int k = 0; k < SL_QUAD; k++) {
        const sl_turn turn = {c[k], s[k]};
        y[k] = first ? sl_turn_first(turn, a[k], b[k]) : sl_turn_second(turn, b[k], a[k]);
    }
    return make_float4(y[0], y[1], y[2], y[3]);
}

/* table: cosines, then sines of the row's pairs; exchange: the warp's own, [dims]. */
template <int QUADS>
static __device__ __forceinline__ void rotate_head(const sl_op_rope &rope, const float *table,
                                                   float *exchange, float4 (&x)[QUADS]) {
    const int32_t pairs = rope.dims / 2;
    if (rope.layout == SL_ROPE_PAIRS) {
#pragma unroll
        for (int k = 0; k < QUADS; k++) {
            const int32_t i = SL_QUAD * ((int32_t)threadIdx.x + k * SL_WARP);
            if (i < rope.dims) {
                const sl_turn one = {table[i / 2], table[pairs + i / 2]};
                const sl_turn two = {table[i / 2 + 1], table[pairs + i / 2 + 1]};
                x[k] = make_float4(sl_turn_first(one, x[k].x, x[k].y), sl_turn_second(one, x[k].x, x[k].y),
                                   sl_turn_first(two, x[k].z, x[k].w), sl_turn_second(two, x[k].z, x[k].w));
            }
        }
        return;
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int32_t i = SL_QUAD * ((int32_t)threadIdx.x + k * SL_WARP);
        if (i < rope.dims) {
            sl_store_quad<true>(exchange, i, rope.dims, x[k]);
        }
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int32_t i = SL_QUAD * ((int32_t)threadIdx.x + k * SL_WARP);
        const bool first = i < pairs;
        const int32_t pair = first ? i : i - pairs;
        if (i < rope.dims) {
            x[k] = turn_halves(x[k], sl_load_quad<true>(exchange, first ? i + pairs : pair, rope.dims),
                               sl_load_quad<true>(table, pair, pairs),
                               sl_load_quad<true>(table + pairs, pair, pairs), first);
        }
    }
}

/* A row for each x of the grid, its heads shared among the warps of all y. */
template <int QUADS>
static __global__ void __launch_bounds__(THREADS)
    heads_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ heads_args args) {
    extern __shared__ float4 memory[];
    __shared__ sl_cache_spot shared_spot;
    const int32_t pairs = args.rope.dims / 2, row = (int32_t)blockIdx.x;
    const int32_t warp = (int32_t)threadIdx.y, thread = warp * SL_WARP + (int32_t)threadIdx.x;
    float *table = (float *)(void *)memory, *exchange = table + 2 * pairs + warp * args.rope.dims;
    const sl_cuda_cache &cache = context.caches[args.place.group];
    const float frequency = thread < pairs ? args.frequencies[thread] : 0.0f;
    float4 q_weight[QUADS], k_weight[QUADS], x[QUADS], next[QUADS];
    load_quads(args.q_weight, args.q_weight ? cache.key_size : 0, q_weight);
    load_quads(args.k_weight, args.k_weight ? cache.key_size : 0, k_weight);
    sl_wait_for_inputs();
    sl_let_next_begin();
    const int32_t rows = context.header->rows, heads = args.rope.heads + 2 * cache.kv_heads;
    if (row > 0 && row >= rows) { /* the first row's memory is there even in an empty step */
        return;
    }
    const int32_t step = (int32_t)gridDim.y * WARPS;
    int32_t i = (int32_t)blockIdx.y * WARPS + warp;
    head now = find_head(cache, args, row, i < heads ? i : 0);
    load_quads(now.from, now.size, next);
    if (thread < pairs) {
        const sl_turn turn = sl_turn_of(args.rope, context.rows[row].position, frequency);
        table[thread] = turn.cosine;
        table[pairs + thread] = turn.sine;
    }
    if (row >= rows) {
        return;
    }
    if (thread == THREADS - 1) {
        shared_spot = sl_find_spot(context, args.place, row);
    }
    __syncthreads();
    const sl_cache_spot spot = shared_spot;
    for (; i < heads; i += step) {
        const head done = now;
#pragma unroll
        for (int k = 0; k < QUADS; k++) {
            x[k] = next[k];
        }
        if (i + step < heads) {
            now = find_head(cache, args, row, i + step);
            load_quads(now.from, now.size, next);
        }
        if (!done.is_value) {
            if (args.has_norms && done.is_query) {
                norm_head(args.q_norm, q_weight, args.q_weight != NULL, x);
            } else if (args.has_norms) {
                norm_head(args.k_norm, k_weight, args.k_weight != NULL, x);
            }
            rotate_head(args.rope, table, exchange, x);
        }
        unsigned char *out =
            done.is_query || !spot.keys ? NULL : sl_cache_row(cache, spot, done.is_value, done.index);
#pragma unroll
        for (int k = 0; k < QUADS; k++) {
            const int32_t at = SL_QUAD * ((int32_t)threadIdx.x + k * SL_WARP);
            if (done.to && at < done.size) {
                sl_store_quad<true>(done.to, at, done.size, x[k]);
            }
            if (out) {
                sl_encode_quad<true>(cache.type, x[k], out, at, done.size);
            }
        }
    }
}

/* Ops: [RMSNORM q, RMSNORM k,] ROPE q, ROPE k, CACHE_WRITE. */
SL_CUDA_RUN(sl_cuda_heads) {
    const sl_cuda_op *rope = op->op->kind == SL_OP_RMSNORM ? op + 2 : op;
    const sl_cuda_op *write = rope + 2;
    heads_args args = {};
    args.q = rope[0].out[0];
    args.k = rope[1].out[0];
    args.v = write->in[1];
    args.frequencies = (const float *)(const void *)rope->weights[0].data;
    args.rope = rope->op->u.rope;
    args.place = write->op->u.cache_write.place;
    args.keep_k = !rope[1].unread[0];
    args.has_norms = rope != op;
    if (args.has_norms) {
        args.q_norm = op[0].op->u.rmsnorm;
        args.k_norm = op[1].op->u.rmsnorm;
        args.q_weight = (const float *)(const void *)op[0].weights[0].data;
        args.k_weight = (const float *)(const void *)op[1].weights[0].data;
    }
    const sl_cuda_cache *cache = &context->caches[args.place.group];
    const unsigned rows = (unsigned)op->rows[SL_ROWS_STEP];
    const unsigned most = ((unsigned)args.rope.heads + 2 * (unsigned)cache->kv_heads + WARPS - 1) / WARPS;
    const unsigned wanted = (MANY_BLOCKS + rows - 1) / rows;
    const sl_launch_shape shape = {dim3(rows, wanted < most ? wanted : most), dim3(SL_WARP, WARPS),
                                   (uint32_t)args.rope.dims * (1 + WARPS) * (uint32_t)sizeof(float)};
    const int32_t size = cache->key_size > cache->value_size ? cache->key_size : cache->value_size;
    return size <= SL_QUAD * SL_WARP ? sl_launch(context, stream, shape, heads_kernel<1>, *context, args)
           : size <= 2 * SL_QUAD * SL_WARP
               ? sl_launch(context, stream, shape, heads_kernel<2>, *context, args)
               : sl_launch(context, stream, shape, heads_kernel<4>, *context, args);
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

const char *sl_cuda_heads_declines(const sl_fusion *fusion, const sl_fusion_query *query) {
    const sl_op *ops = query->ops, *rope = ops + (fusion->count - 3), *write = rope + 2;
    const sl_op_rope *q = &rope[0].u.rope, *k = &rope[1].u.rope;
    const sl_cache_group *group = &query->program->groups[write->u.cache_write.place.group];
    const int32_t size = group->key_size;
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
        q->dims % (2 * SL_QUAD) != 0 || q->dims > size || !in_quads(query, rope[0].in[0]) ||
        !in_quads(query, write->in[0]) || !in_quads(query, write->in[1])) {
        return "takes operands that lie in whole quads";
    }
    return NULL;
}
