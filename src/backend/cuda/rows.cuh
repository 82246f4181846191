/* Row-wise work in quads: four neighbouring elements that one thread keeps in registers. Ops on their own
 * (rows.cu) and runs of ops in one launch (fuse_rows.cu) are made of the same pieces, so they leave the same
 * bits. */
#ifndef SL_BACKEND_CUDA_ROWS_CUH
#define SL_BACKEND_CUDA_ROWS_CUH

#include "backend/cuda/copies.cuh"

enum {
    SL_QUAD = 4,
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

/* ---- quads ---- */

/* Whether quads of an operand that begin at multiples of 4 can be loaded and stored as one. Values begin at
 * multiples of 256. */
static inline bool sl_in_quads(const sl_cuda_operand &operand) {
    const uint64_t quad = operand.type == SL_VALUE_BF16 ? 8 : 16;
    return !operand.data || operand.type == SL_VALUE_Q8_32 ||
           (operand.column % SL_QUAD == 0 && operand.row_bytes % quad == 0);
}

/* Elements [i, i + 4) of a row that ends at `width`; what lies behind counts as 0. ALIGNED: width is a
 * multiple of 4. */
template <bool ALIGNED>
static __device__ __forceinline__ float4 sl_load_quad(const float *row, int32_t i, int32_t width) {
    if (ALIGNED) {
        return *(const float4 *)(const void *)(row + i);
    }
    return make_float4(row[i], i + 1 < width ? row[i + 1] : 0.0f, i + 2 < width ? row[i + 2] : 0.0f,
                       i + 3 < width ? row[i + 3] : 0.0f);
}

template <bool ALIGNED>
static __device__ __forceinline__ void sl_store_quad(float *row, int32_t i, int32_t width, float4 quad) {
    if (ALIGNED) {
        *(float4 *)(void *)(row + i) = quad;
        return;
    }
    const float values[SL_QUAD] = {quad.x, quad.y, quad.z, quad.w};
    for (int32_t k = 0; k < SL_QUAD && i + k < width; k++) {
        row[i + k] = values[k];
    }
}

template <typename FUNCTION>
static __device__ __forceinline__ float4 sl_map_quad(float4 a, FUNCTION function) {
    return make_float4(function(a.x), function(a.y), function(a.z), function(a.w));
}

template <typename FUNCTION>
static __device__ __forceinline__ float4 sl_map_quads(float4 a, float4 b, FUNCTION function) {
    return make_float4(function(a.x, b.x), function(a.y, b.y), function(a.z, b.z), function(a.w, b.w));
}

static __device__ __forceinline__ float4 sl_add_quads(float4 a, float4 b) {
    return sl_map_quads(a, b, [](float x, float y) { return x + y; });
}

/* Elements [i, i + 4) of a product in ranges, which are added one after the other; `from`: of the first. */
static __device__ __forceinline__ float4 sl_add_ranges(const sl_cuda_ranges &ranges, const float *from,
                                                       int32_t i) {
    enum { AT_ONCE = 6 };
    const unsigned char *at = (const unsigned char *)(from + i);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int32_t first = 0; first < ranges.count; first += AT_ONCE) {
        float4 parts[AT_ONCE];
#pragma unroll
        for (int32_t r = 0; r < AT_ONCE; r++) {
            if (first + r < ranges.count) {
                parts[r] = *(const float4 *)(const void *)at;
                at += ranges.bytes;
            }
        }
#pragma unroll
        for (int32_t r = 0; r < AT_ONCE; r++) {
            if (first + r < ranges.count) {
                sum = first + r == 0 ? parts[r] : sl_add_quads(sum, parts[r]);
            }
        }
    }
    return sum;
}

/* ---- quantize ---- */

/* The larger of two magnitudes; a NaN if one is. */
static __device__ __forceinline__ float sl_larger(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(fabsf(a)), "f"(fabsf(b)));
    return larger;
}

/* Eight neighbouring lanes hold a group of 32; lanes without a quad hold zeros and store nothing. `lanes`:
 * those that are here, a lane's own group at least. The bits of sl_q8_32_encode. */
static __device__ __forceinline__ void sl_quantize_group(float4 quad, const sl_q8_32 &row, int32_t i,
                                                         bool active, uint32_t lanes = SL_FULL_WARP) {
    float largest = sl_larger(sl_larger(quad.x, quad.y), sl_larger(quad.z, quad.w));
#pragma unroll
    for (int distance = 1; distance < SL_Q8_32_GROUP / SL_QUAD; distance *= 2) {
        largest = sl_larger(largest, __shfl_xor_sync(lanes, largest, distance));
    }
    const bool usable = largest >= SL_Q8_32_ZERO_BELOW && largest <= 3.40282347e+38f;
    const float inverse = 127.0f / largest;
    /* Adding 1.5 * 2^23 rounds to a whole number, which is then in the lower bits. */
    const float4 whole = sl_map_quad(quad, [inverse](float v) { return v * inverse + 12582912.0f; });
    const uint32_t low = __byte_perm(sl_f32_bits(whole.x), sl_f32_bits(whole.y), 0x0040);
    const uint32_t high = __byte_perm(sl_f32_bits(whole.z), sl_f32_bits(whole.w), 0x0040);
    const uint32_t packed = usable ? __byte_perm(low, high, 0x5410) : 0;
    int sum = __dp4a((int)packed, 0x01010101, 0);
#pragma unroll
    for (int distance = 1; distance < SL_Q8_32_GROUP / SL_QUAD; distance *= 2) {
        sum += __shfl_xor_sync(lanes, sum, distance);
    }
    if (!active) {
        return;
    }
    *(uint32_t *)(void *)(row.values + i) = packed;
    if (i % SL_Q8_32_GROUP == 0) {
        row.sums[i / SL_Q8_32_GROUP] = sum;
        row.scales[i / SL_Q8_32_GROUP] = usable                          ? largest / 127.0f
                                         : largest < SL_Q8_32_ZERO_BELOW ? 0.0f
                                                                         : sl_f32_from_bits(0x7fc00000u);
    }
}

static __device__ __forceinline__ bool sl_has_nan(float4 quad) {
    return quad.x != quad.x || quad.y != quad.y || quad.z != quad.z || quad.w != quad.w;
}

/* As sl_f32_to_bf16 and sl_f32_to_f16, in memory's order. The instructions agree with them but for NaNs. */
static __device__ __forceinline__ uint2 sl_bf16_quad(float4 quad) {
    uint2 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed.x) : "f"(quad.y), "f"(quad.x));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed.y) : "f"(quad.w), "f"(quad.z));
    if (sl_has_nan(quad)) {
        packed.x = sl_f32_to_bf16(quad.x) | (uint32_t)sl_f32_to_bf16(quad.y) << 16;
        packed.y = sl_f32_to_bf16(quad.z) | (uint32_t)sl_f32_to_bf16(quad.w) << 16;
    }
    return packed;
}

static __device__ __forceinline__ uint2 sl_f16_quad(float4 quad) {
    uint2 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed.x) : "f"(quad.y), "f"(quad.x));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed.y) : "f"(quad.w), "f"(quad.z));
    if (sl_has_nan(quad)) {
        packed.x = sl_f32_to_f16(quad.x) | (uint32_t)sl_f32_to_f16(quad.y) << 16;
        packed.y = sl_f32_to_f16(quad.z) | (uint32_t)sl_f32_to_f16(quad.w) << 16;
    }
    return packed;
}

template <bool ALIGNED>
static __device__ __forceinline__ void sl_store_bf16_quad(uint16_t *row, int32_t i, int32_t width,
                                                          float4 quad) {
    if (ALIGNED) {
        *(uint2 *)(void *)(row + i) = sl_bf16_quad(quad);
        return;
    }
    const float values[SL_QUAD] = {quad.x, quad.y, quad.z, quad.w};
    for (int32_t k = 0; k < SL_QUAD && i + k < width; k++) {
        row[i + k] = sl_f32_to_bf16(values[k]);
    }
}

/* Elements [i, i + 4) of a row to the operand's format; by whole warps, lane after lane a quad. */
template <bool ALIGNED>
static __device__ __forceinline__ void sl_quantize_quad(const sl_cuda_operand &q, int32_t row, int32_t i,
                                                        int32_t width, float4 quad) {
    if (q.type == SL_VALUE_Q8_32) {
        sl_quantize_group(quad, sl_q8_32_of(q, row), i, i < width);
    } else if (i < width) {
        uint16_t *start = (uint16_t *)(void *)(q.data + (uint64_t)row * q.row_bytes) + q.column;
        sl_store_bf16_quad<ALIGNED>(start, i, width, quad);
    }
}

/* ---- activate ---- */

static __device__ __forceinline__ float4 sl_activate_quad(int32_t function, float4 gate, float4 up) {
    return function == SL_ACTIVATION_SILU
               ? sl_map_quads(gate, up, [](float g, float u) { return sl_silu(g) * u; })
               : sl_map_quads(gate, up, [](float g, float u) { return sl_gelu_tanh(g) * u; });
}

/* ---- combine ---- */

typedef struct sl_combine_args {
    sl_op_combine combine;
    sl_cuda_operand x, weights, residual, shared, shared_gate, y;
} sl_combine_args;

template <bool ALIGNED>
static __device__ __forceinline__ float4 sl_combine_quad(const sl_combine_args &args, int32_t row,
                                                         int32_t i) {
    const float *weights = sl_f32(args.weights, row);
    const int32_t width = args.combine.width, used = args.combine.used;
    const float *x = sl_f32(args.x, (int64_t)row * used);
    const uint64_t apart = args.x.row_bytes / sizeof *x;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int32_t rank = 0; rank < used; rank++) {
        const float weight = weights[rank];
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
} sl_embed_args;

/* The row's values in the table. A token outside it gives NULL, which counts as zeros: the step's maker
 * checks ids, and nothing is read outside in any case. */
static __device__ __forceinline__ const unsigned char *sl_embedding(const sl_cuda_context &context,
                                                                    const sl_embed_args &args, int32_t row) {
    const sl_step_row *source = &context.rows[row];
    const int32_t token = source->source == SL_ROW_LAST_TOKEN
                              ? context.last_tokens[context.spans[source->span].slot]
                              : source->token;
    const bool inside = token >= 0 && token < args.table.rows;
    return inside ? args.table.data + (uint64_t)token * args.table.row_bytes : NULL;
}

template <sl_qtype TYPE>
static __device__ __forceinline__ float4 sl_decode_quad_of(const unsigned char *row, int32_t i) {
    const int32_t first = i & ~(SL_QUAD - 1); /* what a group has in common is decoded once */
    return make_float4(sl_decode(TYPE, row, first), sl_decode(TYPE, row, first | 1),
                       sl_decode(TYPE, row, first | 2), sl_decode(TYPE, row, first | 3));
}

/* Elements [i, i + 4) of a row of any type; i is a multiple of 4. */
static __device__ __noinline__ float4 sl_decode_quad(sl_qtype type, const unsigned char *row, int32_t i) {
    switch (type) {
#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes)                                           \
    case SL_QTYPE_##ID:                                                                                      \
        return sl_decode_quad_of<SL_QTYPE_##ID>(row, i);
#include "quant/qtypes.def"
#undef SL_QTYPE
    default:
        return make_float4(0, 0, 0, 0);
    }
}

template <bool ALIGNED>
static __device__ __forceinline__ float4 sl_embed_quad(const sl_embed_args &args, const unsigned char *values,
                                                       int32_t i) {
    const float scale = args.scale;
    if (!values) {
        return make_float4(0, 0, 0, 0);
    }
    if (ALIGNED) {
        return sl_map_quad(sl_decode_quad(args.table.type, values, i),
                           [scale](float v) { return v * scale; });
    }
    float quad[SL_QUAD] = {};
    for (int32_t k = 0; k < SL_QUAD && i + k < args.table.columns; k++) {
        quad[k] = sl_decode(args.table.type, values, i + k) * scale;
    }
    return make_float4(quad[0], quad[1], quad[2], quad[3]);
}

/* ---- rmsnorm ---- */

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

template <int QUADS, bool ALIGNED, sl_norm_source SOURCE, int CLUSTER>
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

/* x: the row's quads before the norm; weight: with the offset. */
template <int QUADS, bool ALIGNED, bool PLAIN, int CLUSTER>
static __device__ __forceinline__ void sl_norm_store(const sl_norm_args &args, int32_t row, int32_t group,
                                                     float factor, const float4 (&x)[QUADS],
                                                     const float4 (&weight)[QUADS]) {
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
            if (sum) {
                sl_store_quad<ALIGNED>(sum, i, width, after ? result : x[k]);
            }
            if (y) {
                sl_store_quad<ALIGNED>(y, i, width, result);
            }
        }
        if (q.data) {
            sl_quantize_quad<ALIGNED>(q, row, i, width, result);
        }
    }
}

/* A row for each x of the grid. A group has a block, or a warp of it (threadIdx.y) when a warp is enough. x,
 * y, residual and sum may be the same memory: a thread reads all its quads before it writes one. PLAIN:
 * without a gate and a residual behind the norm. CLUSTER: blocks that share a group. */
template <int QUADS, bool ALIGNED, bool PLAIN, sl_norm_source SOURCE, int CLUSTER>
static __global__ void __launch_bounds__(QUADS == 1 ? SL_NORM_MOST_THREADS : SL_NORM_THREADS)
    sl_norm_kernel(const __grid_constant__ sl_cuda_context context,
                   const __grid_constant__ sl_norm_args args) {
    __shared__ sl_norm_shared shared;
    const int32_t row = (int32_t)blockIdx.x / CLUSTER, width = args.norm.width;
    const int32_t group = (int32_t)(blockIdx.y * blockDim.y + threadIdx.y);
    float4 weight[QUADS], x[QUADS];
    sl_norm_begin<CLUSTER>(&shared);
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int32_t i = sl_quad_at<CLUSTER>(k);
        weight[k] =
            args.weight && i < width ? sl_load_quad<ALIGNED>(args.weight, i, width) : make_float4(0, 0, 0, 0);
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
    sl_norm_load<QUADS, ALIGNED, SOURCE, CLUSTER>(context, args, row, group * args.norm.stride, x);
    const float factor = sl_norm_factor<QUADS, CLUSTER>(x, args.share, args.norm.epsilon, &shared);
    if (at_once && row >= rows) {
        return;
    }
    sl_norm_store<QUADS, ALIGNED, PLAIN, CLUSTER>(args, row, group, factor, x, weight);
}

/* Launches it for the bucket's rows. */
template <int QUADS, bool ALIGNED, bool PLAIN, sl_norm_source SOURCE>
static cudaError_t sl_norm_launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                                  const sl_norm_args &args) {
    const unsigned threads = (unsigned)sl_norm_shape_of(args.norm.width).threads;
    const unsigned groups = (unsigned)args.norm.groups;
    const unsigned warps = threads > SL_WARP ? 1 : groups < 8 ? groups : 8;
    const unsigned rows = (unsigned)op->rows[args.y.rows];
    sl_launch_shape shape = {dim3(rows, (groups + warps - 1) / warps), dim3(threads, warps), 0};
    /* Clusters and early launches came with 9.0. With fewer threads or experts in front they do not pay, nor
     * with many rows: their blocks would be on every processor, where the next product's wait for room. */
    if constexpr (PLAIN && QUADS <= 4 && SOURCE != SL_NORM_OF_COMBINE) {
        if (context->dependent_launches && rows * groups <= SL_NORM_SPREAD_ROWS &&
            threads * QUADS > SL_NORM_SPREAD_QUADS && threads % (SL_NORM_CLUSTER * SL_WARP) == 0) {
            const bool wide = rows * groups > 1 && threads % (SL_NORM_WIDE_CLUSTER * SL_WARP) == 0;
            shape.cluster = wide ? SL_NORM_WIDE_CLUSTER : SL_NORM_CLUSTER;
            shape.grid.x *= shape.cluster;
            shape.block.x /= shape.cluster;
            const auto kernel = wide ? sl_norm_kernel<QUADS, ALIGNED, PLAIN, SOURCE, SL_NORM_WIDE_CLUSTER>
                                     : sl_norm_kernel<QUADS, ALIGNED, PLAIN, SOURCE, SL_NORM_CLUSTER>;
            return sl_launch(context, stream, shape, kernel, *context, args);
        }
    }
    const auto kernel = sl_norm_kernel<QUADS, ALIGNED, PLAIN, SOURCE, 1>;
    return sl_launch(context, stream, shape, kernel, *context, args);
}

static inline bool sl_norm_is_plain(const sl_norm_args &args) {
    return !args.gate.data && args.norm.residual != SL_RESIDUAL_AFTER;
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

#endif
