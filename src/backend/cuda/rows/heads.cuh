/* What happens to heads of q and k between their projection and attention: norms if there are any, and RoPE.
 * A warp has a head, lane after lane a quad: element i is of quad i / 4 % 32. */
#ifndef SL_BACKEND_CUDA_ROWS_HEADS_CUH
#define SL_BACKEND_CUDA_ROWS_HEADS_CUH

#include "backend/cuda/rows/cache_write.cuh"

/* Passed to kernels by value. */
typedef struct sl_heads_args {
    sl_cuda_operand q, k, v;
    const float *q_weight, *k_weight, *frequencies;
    float q_offset, k_offset, q_epsilon, k_epsilon, share; /* share: 1 / head size */
    sl_op_rope rope;                                       /* of q; k's heads lie side by side */
    sl_cache_place place;
    bool has_norms, keep_k;
} sl_heads_args;

/* Of the ops [RMSNORM q, RMSNORM k,] ROPE q, ROPE k, CACHE_WRITE. */
sl_heads_args sl_heads_args_of(const sl_cuda_context *context, const sl_cuda_op *op);
const char *sl_heads_declines(const sl_fusion *fusion, const sl_fusion_query *query);

static __device__ __forceinline__ int32_t sl_head_at(int32_t k) {
    return SL_QUAD * ((int32_t)threadIdx.x % SL_WARP + k * SL_WARP);
}

template <int QUADS>
static __device__ __forceinline__ void sl_load_head(const float *from, int32_t size, float4 (&x)[QUADS]) {
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        x[k] = sl_head_at(k) < size ? sl_load_quad<true>(from, sl_head_at(k), size) : make_float4(0, 0, 0, 0);
    }
}

/* A norm's weights with their offset; all ones when it has none: multiplying by them changes nothing. */
template <int QUADS>
static __device__ __forceinline__ void sl_load_head_weights(const float *from, float offset, int32_t size,
                                                            float4 (&weight)[QUADS]) {
    sl_load_head(from, from ? size : 0, weight);
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        weight[k] =
            from ? sl_map_quad(weight[k], [offset](float w) { return w + offset; }) : make_float4(1, 1, 1, 1);
    }
}

/* The bits of the op RMSNORM. */
template <int QUADS>
static __device__ __forceinline__ void sl_norm_head(float share, float epsilon, const float4 (&weight)[QUADS],
                                                    float4 (&x)[QUADS]) {
    const float factor = rsqrtf(fmaf(sl_warp_sum(sl_norm_squares(x)), share, epsilon));
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        x[k] = sl_map_quad(x[k], [factor](float a) { return a * factor; });
        x[k] = sl_map_quads(x[k], weight[k], [](float a, float w) { return a * w; });
    }
}

/* What a lane's elements are multiplied by, and what their partners are, when a head turns: `own` is the
 * cosine, `other` the sine, with a minus for a pair's first. */
template <int QUADS> struct sl_turns { float4 own[QUADS], other[QUADS]; };

/* table: cosines, then sines of the row's pairs. */
template <int QUADS>
static __device__ __forceinline__ void sl_load_turns(const sl_op_rope &rope, const float *table,
                                                     sl_turns<QUADS> &turn) {
    const int32_t pairs = rope.dims / 2;
    const bool in_halves = rope.layout == SL_ROPE_HALVES;
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int32_t i = sl_head_at(k);
        turn.own[k] = turn.other[k] = make_float4(0, 0, 0, 0);
        if (i >= rope.dims) {
            continue;
        }
        if (in_halves) {
            const int32_t pair = i < pairs ? i : i - pairs;
            turn.own[k] = sl_load_quad<true>(table, pair, pairs);
            turn.other[k] = sl_load_quad<true>(table + pairs, pair, pairs);
            if (i < pairs) {
                turn.other[k] = sl_map_quad(turn.other[k], [](float sine) { return -sine; });
            }
        } else {
            const float2 cosine = *(const float2 *)(const void *)(table + i / 2);
            const float2 sine = *(const float2 *)(const void *)(table + pairs + i / 2);
            turn.own[k] = make_float4(cosine.x, cosine.x, cosine.y, cosine.y);
            turn.other[k] = make_float4(-sine.x, sine.x, -sine.y, sine.y);
        }
    }
}

/* The same without a table. frequencies: [dims / 2]. */
template <int QUADS>
static __device__ __forceinline__ void sl_make_turns(const sl_op_rope &rope, const float *frequencies,
                                                     int32_t position, sl_turns<QUADS> &turn) {
    const int32_t pairs = rope.dims / 2;
    const bool in_halves = rope.layout == SL_ROPE_HALVES;
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int32_t i = sl_head_at(k);
        float own[SL_QUAD] = {0, 0, 0, 0}, other[SL_QUAD] = {0, 0, 0, 0};
        if (i < rope.dims) {
#pragma unroll 1
            for (int32_t e = 0; e < SL_QUAD; e++) {
                const bool is_first = in_halves ? i < pairs : e % 2 == 0;
                const int32_t pair = in_halves ? i + e - (i < pairs ? 0 : pairs) : (i + e) / 2;
                const sl_turn both = sl_turn_of(rope, position, frequencies[pair]);
                const float sine = is_first ? -both.sine : both.sine;
                own[0] = e == 0 ? both.cosine : own[0];
                own[1] = e == 1 ? both.cosine : own[1];
                own[2] = e == 2 ? both.cosine : own[2];
                own[3] = e == 3 ? both.cosine : own[3];
                other[0] = e == 0 ? sine : other[0];
                other[1] = e == 1 ? sine : other[1];
                other[2] = e == 2 ? sine : other[2];
                other[3] = e == 3 ? sine : other[3];
            }
        }
        turn.own[k] = make_float4(own[0], own[1], own[2], own[3]);
        turn.other[k] = make_float4(other[0], other[1], other[2], other[3]);
    }
}

/* The bits of the op ROPE: a - b is a + -b, and sums do not care for order. partner: the other elements of
 * x's pairs. */
template <int QUADS>
static __device__ __forceinline__ void sl_turn_head(const sl_op_rope &rope, const sl_turns<QUADS> &turn,
                                                    const float4 (&partner)[QUADS], float4 (&x)[QUADS]) {
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        if (sl_head_at(k) >= rope.dims) {
            continue;
        }
        const float4 one = sl_map_quads(x[k], turn.own[k], [](float a, float c) { return a * c; });
        const float4 two = sl_map_quads(partner[k], turn.other[k], [](float b, float s) { return b * s; });
        x[k] = sl_add_quads(one, two);
    }
}

static __device__ __forceinline__ float4 sl_shuffle_quad(float4 quad, int32_t lane) {
    return sl_map_quad(quad, [lane](float a) { return __shfl_sync(SL_FULL_WARP, a, lane); });
}

/* Turns a head by shuffles. */
template <int QUADS>
static __device__ __forceinline__ void sl_turn_head_in_warp(const sl_op_rope &rope,
                                                            const sl_turns<QUADS> &turn, float4 (&x)[QUADS]) {
    const int32_t apart = rope.dims / 2 / SL_QUAD; /* quads from a pair's first element to its second */
    float4 partner[QUADS];
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        if (rope.layout == SL_ROPE_HALVES) {
            const int32_t own = sl_head_at(k) / SL_QUAD;
            const int32_t from = own < apart ? own + apart : own - apart; /* any, where nothing turns */
            partner[k] = sl_shuffle_quad(x[0], from & (SL_WARP - 1));
#pragma unroll
            for (int n = 1; n < QUADS; n++) {
                const float4 other = sl_shuffle_quad(x[n], from & (SL_WARP - 1));
                partner[k] = from / SL_WARP == n ? other : partner[k];
            }
        } else {
            partner[k] = make_float4(x[k].y, x[k].x, x[k].w, x[k].z);
        }
    }
    sl_turn_head(rope, turn, partner, x);
}

#endif
