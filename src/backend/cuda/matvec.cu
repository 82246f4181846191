/* Matrix products with few rows of x, y = x W^T (+ bias) (+ residual), with or without experts: what counts
 * is reading the weights at the memory's rate. A warp takes one weight row, or two when there are several
 * rows of x, and its lanes take neighbouring pieces of 8 to 32 columns, so that a warp reads consecutive
 * bytes; the loads of several pieces are under way at once.
 *
 * Class "q8_32/lanes": piece p of a row goes to lane p % 32 (F32: of four warps, to thread p % 128). A lane
 * adds its pieces in rising order with fmaf(part, x_scale, sum); then the lanes are added as in sl_warp_sum,
 * and the warps in order. Dots of integers are exact. "f32/lanes": the same with products of decoded weights
 * and f32 activations. Then bias, then residual. */
#include "backend/cuda/device.cuh"

enum { THREADS = 256, WARPS = THREADS / SL_WARP };

typedef struct matvec_args {
    sl_cuda_weight weights[SL_LINEAR_SEGMENTS];
    int32_t first_block[SL_LINEAR_SEGMENTS + 1]; /* of each segment, along x */
    int32_t segments;
    sl_cuda_operand x, ids, residual, y;
    int32_t experts_used, x_share; /* rows of y that read one row of x */
} matvec_args;

/* ---- pieces ---- */

/* Elements of a weight row that one lane takes at once: RUNS runs of RUN elements. RAW: words as read. SPLIT:
 * warps that share a weight row. AHEAD: pieces under way for one row of x. */
template <int TYPE> struct piece_shape;
template <> struct piece_shape<SL_QTYPE_F32> {
    enum { RUNS = 1, RUN = 4, RAW = 4, SPLIT = 4, AHEAD = 4, IS_FLOAT = 1 };
};
template <> struct piece_shape<SL_QTYPE_F16> {
    enum { RUNS = 1, RUN = 8, RAW = 4, SPLIT = 1, AHEAD = 4, IS_FLOAT = 1 };
};
template <> struct piece_shape<SL_QTYPE_BF16> {
    enum { RUNS = 1, RUN = 8, RAW = 4, SPLIT = 1, AHEAD = 4, IS_FLOAT = 1 };
};
template <> struct piece_shape<SL_QTYPE_Q8_0> {
    enum { RUNS = 1, RUN = 8, RAW = 4, SPLIT = 1, AHEAD = 8, IS_FLOAT = 0 };
};
template <> struct piece_shape<SL_QTYPE_Q4_0> {
    enum { RUNS = 2, RUN = 8, RAW = 4, SPLIT = 1, AHEAD = 4, IS_FLOAT = 0 };
};
template <> struct piece_shape<SL_QTYPE_Q4_K> {
    enum { RUNS = 2, RUN = 16, RAW = 8, SPLIT = 1, AHEAD = 4, IS_FLOAT = 0 };
};
template <> struct piece_shape<SL_QTYPE_Q6_K> {
    enum { RUNS = 4, RUN = 8, RAW = 11, SPLIT = 1, AHEAD = 4, IS_FLOAT = 0 };
};

/* Integers: words of the runs one after the other, a scale and a minimum each. */
template <int TYPE> struct piece {
    enum { WORDS = piece_shape<TYPE>::RUN / 4 };
    int32_t words[piece_shape<TYPE>::RUNS][WORDS];
    float scale[piece_shape<TYPE>::RUNS], min[piece_shape<TYPE>::RUNS];
};

static __device__ __forceinline__ float half_of(uint32_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((uint16_t)bits));
    return value;
}

/* Eight bytes at an even address, from aligned words. Where it is not a multiple of four, the two bytes
 * before, which are the block's, and the two behind are read too: the block's, the next block's, or the
 * padding of the weight. */
static __device__ __forceinline__ void load_8(const unsigned char *at, uint32_t *words) {
    const uint32_t odd = (uint32_t)(uint64_t)at & 2u;
    const uint32_t *aligned = (const uint32_t *)(at - odd);
    const uint32_t a = __ldg(aligned), b = __ldg(aligned + 1), c = __ldg(aligned + 1 + odd / 2);
    words[0] = __funnelshift_r(a, b, 8 * odd);
    words[1] = __funnelshift_r(b, c, 8 * odd);
}

static __device__ __forceinline__ void load_16(const unsigned char *at, uint32_t *words) {
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
        : "l"(at));
}

static __device__ __forceinline__ uint32_t load_2(const unsigned char *at) {
    return __ldg((const uint16_t *)at);
}

/* Piece p of a row, as it lies there. */
template <int TYPE>
static __device__ __forceinline__ void load_piece(const unsigned char *row, int32_t p, uint32_t *raw) {
    if (piece_shape<TYPE>::IS_FLOAT) {
        load_16(row + (uint64_t)p * 16, raw);
    } else if (TYPE == SL_QTYPE_Q8_0) {
        const unsigned char *block = row + (uint64_t)(p / 4) * SL_Q8_0_BYTES;
        load_8(block + 2 + 8 * (p % 4), raw);
        raw[2] = load_2(block);
    } else if (TYPE == SL_QTYPE_Q4_0) {
        const unsigned char *block = row + (uint64_t)(p / 2) * SL_Q4_0_BYTES;
        load_8(block + 2 + 8 * (p % 2), raw);
        raw[2] = load_2(block);
    } else if (TYPE == SL_QTYPE_Q4_K) {
        const unsigned char *block = row + (uint64_t)(p / 8) * SL_Q4_K_BYTES;
        load_16(block, raw);
        load_16(block + 16 + 16 * (p % 8), raw + 4);
    } else {
        const unsigned char *block = row + (uint64_t)(p / 8) * SL_Q6_K_BYTES;
        const int32_t half = p % 8 / 4, c = 8 * (p % 4);
        load_8(block + 64 * half + c, raw);
        load_8(block + 64 * half + 32 + c, raw + 2);
        load_8(block + 128 + 32 * half + c, raw + 4);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            raw[6 + r] = __ldg(block + 192 + 8 * half + 2 * r + c / 16);
        }
        raw[10] = load_2(block + 208);
    }
}

/* Where run r of piece p starts. */
template <int TYPE> static __device__ __forceinline__ int32_t run_start(int32_t p, int r) {
    switch (TYPE) {
    case SL_QTYPE_Q4_0:
        return 32 * (p / 2) + 16 * r + 8 * (p % 2);
    case SL_QTYPE_Q4_K:
        return 64 * (p / 2) + 32 * r + 16 * (p % 2);
    case SL_QTYPE_Q6_K:
        return 128 * (p / 4) + 32 * r + 8 * (p % 4);
    default:
        return piece_shape<TYPE>::RUN * p;
    }
}

/* Each byte minus `value`; bytes are below 128 and the difference fits int8. */
static __device__ __forceinline__ int32_t subtract_each(uint32_t word, uint32_t value) {
    return (int32_t)__vsub4(word, value * 0x01010101u);
}

static __device__ __forceinline__ void decode(const uint32_t *raw, int32_t p, piece<SL_QTYPE_Q8_0> *w) {
    (void)p;
    w->words[0][0] = (int32_t)raw[0];
    w->words[0][1] = (int32_t)raw[1];
    w->scale[0] = half_of(raw[2]);
}

static __device__ __forceinline__ void decode(const uint32_t *raw, int32_t p, piece<SL_QTYPE_Q4_0> *w) {
    (void)p;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        w->words[0][i] = subtract_each(raw[i] & 0x0f0f0f0fu, 8);
        w->words[1][i] = subtract_each(raw[i] >> 4 & 0x0f0f0f0fu, 8);
    }
    w->scale[0] = w->scale[1] = half_of(raw[2]);
}

/* Both halves of a group have its scale; its minimum counts once, with the sum of its x, in the first. The
 * six-bit fields of groups 0 to 3 are the low bits of bytes 0 to 3 and 4 to 7; of groups 4 to 7 the low and
 * the high nibbles of bytes 8 to 11, below the two high bits of the first eight bytes. Here for the groups
 * 2 * pair and the next at once. */
static __device__ __forceinline__ void decode(const uint32_t *raw, int32_t p, piece<SL_QTYPE_Q4_K> *w) {
    const int32_t pair = p % 8 / 2, shift = 16 * (pair % 2);
    const uint32_t a = raw[1] >> shift, b = raw[2] >> shift, c = raw[3] >> shift;
    const uint32_t scales = pair < 2 ? a & 0x3f3fu : (c & 0x0f0fu) | (a >> 2 & 0x3030u);
    const uint32_t mins = pair < 2 ? b & 0x3f3fu : (c >> 4 & 0x0f0fu) | (b >> 2 & 0x3030u);
    const float scale = half_of(raw[0] & 0xffffu), min = p % 2 ? 0.0f : half_of(raw[0] >> 16);
    w->scale[0] = scale * (float)(scales & 255u);
    w->scale[1] = scale * (float)(scales >> 8 & 255u);
    w->min[0] = min * (float)(mins & 255u);
    w->min[1] = min * (float)(mins >> 8 & 255u);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w->words[0][i] = (int32_t)(raw[4 + i] & 0x0f0f0f0fu);
        w->words[1][i] = (int32_t)(raw[4 + i] >> 4 & 0x0f0f0f0fu);
    }
}

static __device__ __forceinline__ void decode(const uint32_t *raw, int32_t p, piece<SL_QTYPE_Q6_K> *w) {
    (void)p;
    const float scale = half_of(raw[10]);
#pragma unroll
    for (int r = 0; r < 4; r++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t low = raw[2 * (r % 2) + i] >> 4 * (r / 2) & 0x0f0f0f0fu;
            w->words[r][i] = subtract_each(low | (raw[4 + i] >> 2 * r & 0x03030303u) << 4, 32);
        }
        w->scale[r] = scale * (float)(int8_t)raw[6 + r];
    }
}

/* sum + the piece times a row of x. */
template <int TYPE>
static __device__ __forceinline__ float add_integers(const piece<TYPE> &w, int32_t p, const sl_q8_32 &x,
                                                     float sum) {
#pragma unroll
    for (int r = 0; r < piece_shape<TYPE>::RUNS; r++) {
        const int32_t at = run_start<TYPE>(p, r), group = at / 32;
        int32_t dot = 0;
        if (TYPE == SL_QTYPE_Q4_K) {
            const int4 v = *(const int4 *)(x.values + at);
            dot = __dp4a(w.words[r][1], v.y, __dp4a(w.words[r][0], v.x, 0));
            dot = __dp4a(w.words[r][piece<TYPE>::WORDS - 1], v.w,
                         __dp4a(w.words[r][piece<TYPE>::WORDS - 2], v.z, dot));
        } else {
            const int2 v = *(const int2 *)(x.values + at);
            dot = __dp4a(w.words[r][1], v.y, __dp4a(w.words[r][0], v.x, 0));
        }
        float part = w.scale[r] * (float)dot;
        if (TYPE == SL_QTYPE_Q4_K) {
            part = fmaf(-w.min[r], (float)x.sums[group], part);
        }
        sum = fmaf(part, x.scales[group], sum);
    }
    return sum;
}

/* Weights of a piece of floats. */
template <int TYPE> static __device__ __forceinline__ void decode_floats(const uint32_t *raw, float *w) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (TYPE == SL_QTYPE_F32) {
            w[i] = __uint_as_float(raw[i]);
        } else if (TYPE == SL_QTYPE_F16) {
            w[2 * i] = half_of(raw[i] & 0xffffu);
            w[2 * i + 1] = half_of(raw[i] >> 16);
        } else {
            w[2 * i] = __uint_as_float(raw[i] << 16);
            w[2 * i + 1] = __uint_as_float(raw[i] & 0xffff0000u);
        }
    }
}

template <int RUN>
static __device__ __forceinline__ float add_floats(const float *w, const float *x, float sum) {
#pragma unroll
    for (int i = 0; i < RUN; i += 4) {
        const float4 v = *(const float4 *)(x + i);
        sum = fmaf(w[i + 3], v.w, fmaf(w[i + 2], v.z, fmaf(w[i + 1], v.y, fmaf(w[i], v.x, sum))));
    }
    return sum;
}

/* ---- the kernel ---- */

template <int TYPE, int ROWS, int OUTPUTS>
static __device__ __forceinline__ void add_piece(const matvec_args &args,
                                                 const uint32_t (*raw)[piece_shape<TYPE>::RAW], int32_t p,
                                                 int32_t first, int32_t rows, float (*sums)[ROWS]) {
    if constexpr (piece_shape<TYPE>::IS_FLOAT) {
        enum { RUN = piece_shape<TYPE>::RUN };
        float w[OUTPUTS][RUN];
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            decode_floats<TYPE>(raw[o], w[o]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r < rows) {
                const float *x = sl_f32(args.x, first + r) + run_start<TYPE>(p, 0);
#pragma unroll
                for (int o = 0; o < OUTPUTS; o++) {
                    sums[o][r] = add_floats<RUN>(w[o], x, sums[o][r]);
                }
            }
        }
    } else {
        piece<TYPE> w[OUTPUTS];
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            decode(raw[o], p, &w[o]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r < rows) {
                const sl_q8_32 x = sl_q8_32_of(args.x, first + r);
#pragma unroll
                for (int o = 0; o < OUTPUTS; o++) {
                    sums[o][r] = add_integers<TYPE>(w[o], p, x, sums[o][r]);
                }
            }
        }
    }
}

static __device__ __forceinline__ void store(const matvec_args &args, const sl_cuda_weight &weight,
                                             int32_t expert, int32_t row, int32_t output, float value) {
    if (weight.bias) {
        value += weight.bias[(int64_t)expert * weight.rows + output];
    }
    if (args.residual.data) {
        value += sl_f32(args.residual, row)[weight.column + output];
    }
    sl_f32(args.y, row)[weight.column + output] = value;
}

/* With experts blockIdx.y is a row of y, otherwise a group of ROWS rows. AHEAD: pieces under way. */
template <int TYPE, int ROWS, int OUTPUTS, int AHEAD>
static __global__ void __launch_bounds__(THREADS) matvec_kernel(sl_cuda_context context, matvec_args args) {
    enum { SPLIT = piece_shape<TYPE>::SPLIT, RAW = piece_shape<TYPE>::RAW };
    enum { PIECE = piece_shape<TYPE>::RUNS * piece_shape<TYPE>::RUN, LANES = SPLIT * SL_WARP };
    __shared__ float partial[SPLIT > 1 ? WARPS : 1][OUTPUTS][ROWS];
    const int32_t first = (int32_t)blockIdx.y * ROWS, left = sl_count(context, args.y.rows) - first;
    if (left <= 0) {
        return;
    }
    const int32_t rows = left < ROWS ? left : ROWS;
    int32_t segment = 0;
    while (segment + 1 < args.segments && (int32_t)blockIdx.x >= args.first_block[segment + 1]) {
        segment++;
    }
    const sl_cuda_weight &weight = args.weights[segment];
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % LANES;
    const int32_t output =
        (((int32_t)blockIdx.x - args.first_block[segment]) * (WARPS / SPLIT) + warp / SPLIT) * OUTPUTS;
    int32_t expert = 0;
    if (args.ids.data) {
        expert = sl_i32(args.ids, first / args.experts_used)[first % args.experts_used];
    }
    const unsigned char *matrix = weight.data + (uint64_t)expert * weight.expert_bytes;
    const unsigned char *w_rows[OUTPUTS];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) { /* past the end: the last row once more */
        const int32_t w_row = output + o < weight.rows ? output + o : weight.rows - 1;
        w_rows[o] = matrix + (uint64_t)w_row * weight.row_bytes;
    }
    float sums[OUTPUTS][ROWS] = {};
    const int32_t pieces = weight.columns / PIECE;
    for (int32_t base = lane; base < pieces; base += AHEAD * LANES) {
        uint32_t raw[AHEAD][OUTPUTS][RAW];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int32_t p = base + i * LANES < pieces ? base + i * LANES : base;
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                load_piece<TYPE>(w_rows[o], p, raw[i][o]);
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (base + i * LANES < pieces) {
                add_piece<TYPE, ROWS, OUTPUTS>(args, raw[i], base + i * LANES, first / args.x_share, rows,
                                               sums);
            }
        }
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            sums[o][r] = sl_warp_sum(sums[o][r]);
            if (SPLIT > 1 && lane % SL_WARP == 0) {
                partial[SPLIT > 1 ? warp : 0][o][r] = sums[o][r];
            }
        }
    }
    if (SPLIT > 1) {
        __syncthreads();
    }
    if (lane != 0) {
        return;
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float sum = sums[o][r];
            for (int i = 1; i < SPLIT; i++) {
                sum += partial[SPLIT > 1 ? warp + i : 0][o][r];
            }
            if (output + o < weight.rows && r < rows) {
                store(args, weight, expert, first + r, output + o, sum);
            }
        }
    }
}

/* ---- launches ---- */

/* `per_block`: weight rows of a block. Returns the blocks along x. */
static unsigned make_args(const sl_cuda_context *context, const sl_cuda_op *op, int32_t per_block,
                          matvec_args *args) {
    int32_t blocks = 0;
    args->segments = op->weight_count;
    for (int32_t s = 0; s < SL_LINEAR_SEGMENTS; s++) {
        args->weights[s] = op->weights[s];
        args->first_block[s] = blocks;
        blocks += s < op->weight_count ? (op->weights[s].rows + per_block - 1) / per_block : 0;
    }
    args->first_block[SL_LINEAR_SEGMENTS] = blocks;
    args->x = op->in[0];
    args->ids = op->in[1];
    args->residual = op->in[3];
    args->y = op->out[0];
    args->experts_used = context->experts_used;
    args->x_share =
        op->out[0].rows == SL_ROWS_EXPERT && op->in[0].rows == SL_ROWS_STEP ? context->experts_used : 1;
    return (unsigned)blocks;
}

template <int TYPE, int ROWS, int OUTPUTS, int AHEAD>
static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    matvec_args args = {};
    const int32_t per_block = WARPS / piece_shape<TYPE>::SPLIT * OUTPUTS;
    const unsigned blocks = make_args(context, op, per_block, &args);
    const dim3 grid(blocks, (unsigned)((op->rows[op->out[0].rows] + ROWS - 1) / ROWS));
    matvec_kernel<TYPE, ROWS, OUTPUTS, AHEAD><<<grid, THREADS, 0, stream>>>(*context, args);
    return cudaGetLastError();
}

#define MATVEC(ID, name)                                                                                     \
    SL_CUDA_RUN(sl_cuda_linear_matvec_##name) {                                                              \
        const int32_t rows = op->rows[op->out[0].rows];                                                      \
        if (op->in[1].data || rows == 1) {                                                                   \
            return launch<SL_QTYPE_##ID, 1, 1, piece_shape<SL_QTYPE_##ID>::AHEAD>(context, op, stream);      \
        }                                                                                                    \
        return rows <= 4 ? launch<SL_QTYPE_##ID, 4, 2, 2>(context, op, stream)                               \
                         : launch<SL_QTYPE_##ID, SL_CUDA_FEW_ROWS, 2, 2>(context, op, stream);               \
    }
MATVEC(F32, f32)
MATVEC(F16, f16)
MATVEC(BF16, bf16)
MATVEC(Q8_0, q8_0)
MATVEC(Q4_0, q4_0)
MATVEC(Q4_K, q4_k)
MATVEC(Q6_K, q6_k)

const char *sl_cuda_matvec_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_op *op = query->op;
    const sl_value *x = &query->values[op->in[0].value];
    /* A plan whose buckets are all this small would take it, one for longer chunks could not: the chunk would
     * change the bits. */
    if (query->backend->options.deterministic) {
        return "has a numeric class for few rows only";
    }
    const sl_qtype type = ((const sl_cuda_kernel *)kernel)->weight_type;
    /* A row of x is floats, or int8 with 8 bytes per group of 32. It is read 16 bytes at a time, and 8 for
     * the other types; weights of floats 16 too. */
    const int32_t unit = x->type == SL_VALUE_F32 ? 4 : type == SL_QTYPE_Q4_K ? 64 : 32;
    if (x->width % unit != 0 || op->in[0].column % unit != 0 ||
        query->program->weights[op->u.linear.segments[0].weight].columns % 8 != 0) {
        return "takes rows aligned to 16 bytes";
    }
    return sl_cuda_linear_declines(kernel, query);
}
