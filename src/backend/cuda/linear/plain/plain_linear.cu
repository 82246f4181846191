/* Matrix products y = x W^T (+ bias) (+ residual), with or without experts. Two shapes of one numeric class:
 *
 *   plain-rows8: lanes of a warp share the columns of one weight row, which is read once for up to 8 rows;
 *       with experts, each expert row by itself
 *   plain-tile: 64 rows by 64 weight rows per block; the weights are decoded to shared memory once per tile;
 *       with experts the tiles come from the router's schedule
 *
 * Class "q8_32/256": activations int8 with a scale and a sum per 32. The columns are cut into chunks of 256.
 * Per group of 32, dot is exact and sum = fmaf(scale * dot, x_scale, sum); where a type has minima then sum =
 * fmaf(-minimum, x_scale * sum(x), sum). A chunk, from 0, adds its groups in order, and y, from 0, the chunks
 * in order. (q2_k has a minimum for each half of a group: an integer factor of each, times the sum of x over
 * that half, stands for sum(x); where the halves have scales of their own they are added one after the other,
 * each with its dot.) scale and minimum are products of the block's fields; every operation is
 * rounded by itself. Class "f32/256": the same with products of decoded weights and f32 activations, added
 * with fmaf. Then bias, then residual. */
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/types/types.cuh"
#include "backend/cuda/common/tile_rows.cuh"
#include "backend/cuda/linear/linear.h"

enum {
    CHUNK = 256, /* columns */
    FEW_THREADS = 128,
    FEW_WARPS = FEW_THREADS / SL_WARP,
    TILE = 64, /* rows, and weight rows */
    MANY_THREADS = 256,
    SIDE = 16,         /* threads in each direction of a tile */
    EACH = TILE / SIDE /* rows, and weight rows, of a thread */
};

typedef struct linear_args {
    sl_cuda_weight weights[SL_LINEAR_SEGMENTS];
    int32_t first_block[SL_LINEAR_SEGMENTS + 1]; /* of each segment, along x */
    int32_t segments;
    int32_t lanes; /* few: per weight row, a power of two */
    sl_cuda_operand x, ids, residual, y;
    const int32_t *offsets, *list; /* the schedule, or NULL */
    int32_t experts_used, x_share; /* rows of y that read one row of x */
} linear_args;

/* ---- weight types ---- */

#define IS_FLOAT(type)                                                                                       \
    ((type) == SL_QTYPE_F32 || (type) == SL_QTYPE_F16 || (type) == SL_QTYPE_BF16 ||                          \
     (type) == SL_QTYPE_FP8_128)
/* The type itself where it fits a function template, else one that does: the call is not made. */
#define FLOAT_OF(type) (IS_FLOAT(type) ? (type) : (int)SL_QTYPE_F32)
#define Q8_OF(type) (IS_FLOAT(type) ? (int)SL_QTYPE_Q8_0 : (type))

/* sum + the contribution of a group. */
template <int TYPE>
static __device__ __forceinline__ float add_group(int32_t dot, float scale, float min, int32_t x_sum,
                                                  float x_scale, float sum) {
    sum = fmaf(scale * (float)dot, x_scale, sum);
    return sl_group_kind<TYPE>::HAS_MIN ? fmaf(-min, x_scale * (float)x_sum, sum) : sum;
}

/* Adds eight signed bytes. */
static __device__ __forceinline__ int32_t add_bytes(int2 words, int32_t sum) {
    return __dp4a(words.y, 0x01010101, __dp4a(words.x, 0x01010101, sum));
}

/* What a minimum multiplies. x_low: the sum of the group's first half. */
template <int TYPE>
static __device__ __forceinline__ int32_t min_sum(int32_t factor0, int32_t factor1, int32_t x_low,
                                                  int32_t x_sum) {
    return sl_group_kind<TYPE>::HAS_MIN_FACTORS ? factor0 * x_low + factor1 * (x_sum - x_low) : x_sum;
}

template <int TYPE>
static __device__ __forceinline__ float load_float(const unsigned char *row, uint64_t row_bytes, int32_t i) {
    return TYPE == SL_QTYPE_F16 ? sl_half_at(row + 2 * (int64_t)i) : sl_row_element<TYPE>(row, row_bytes, i);
}

/* Elements i .. i + 3, i a multiple of 4, of a row that is aligned to 16 bytes. */
template <int TYPE>
static __device__ __forceinline__ void load_floats(const unsigned char *row, uint64_t row_bytes, int32_t i,
                                                   float w[4]) {
    if constexpr (TYPE == SL_QTYPE_FP8_128) {
        const uint32_t codes = *(const uint32_t *)(row + i);
        const float scale = sl_fp8_scales(row, row_bytes)[i / SL_FP8_128_ELEMENTS];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            w[e] = scale * sl_e4m3_to_f32((uint8_t)(codes >> 8 * e));
        }
    } else {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            w[e] = load_float<TYPE>(row, row_bytes, i + e);
        }
    }
}

/* ---- what both shapes share ---- */

/* ---- few rows ---- */

/* A weight row, and rows [first, first + count) of x. */
typedef struct few_work {
    const unsigned char *row;
    uint64_t row_bytes;
    int32_t columns, first, count;
} few_work;

/* Adds chunk `chunk` of the weight row times each row of x. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void few_chunk_q8(const linear_args &args, const few_work &work,
                                                    int32_t chunk, float *part) {
    const int32_t columns = work.columns, first = work.first, n = work.count;
    const unsigned char *w_row = work.row;
    const int32_t end = columns / 32 < (chunk + 1) * 8 ? columns / 32 : (chunk + 1) * 8;
#pragma unroll(ROWS == 1 ? 4 : 2)
    for (int32_t g = chunk * 8; g < end; g++) {
        sl_group32 w;
        sl_load_group<TYPE>(w_row, g, &w);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= n) {
                continue;
            }
            const sl_q8_32 x = sl_q8_32_of(args.x, first + r);
            const int2 *values = (const int2 *)(x.values + 32 * g);
            int32_t low = 0, high = 0, x_low = 0;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int2 a = values[i], b = values[2 + i];
                x_low = sl_group_kind<TYPE>::HAS_MIN_FACTORS ? add_bytes(a, x_low) : 0;
                low = __dp4a(w.words[2 * i + 1], a.y, __dp4a(w.words[2 * i], a.x, low));
                high = __dp4a(w.words[4 + 2 * i + 1], b.y, __dp4a(w.words[4 + 2 * i], b.x, high));
            }
            if (sl_group_kind<TYPE>::HAS_UPPER) {
                part[r] = add_group<TYPE>(low, w.scale, 0, 0, x.scales[g], part[r]);
                part[r] = add_group<TYPE>(high, w.upper, 0, 0, x.scales[g], part[r]);
                continue;
            }
            const int32_t dot =
                sl_group_kind<TYPE>::HAS_FACTORS ? w.factor0 * low + w.factor1 * high : low + high;
            const int32_t x_sum = min_sum<TYPE>(w.min_factor0, w.min_factor1, x_low, x.sums[g]);
            part[r] = add_group<TYPE>(dot, w.scale, w.min, x_sum, x.scales[g], part[r]);
        }
    }
}

template <int TYPE, int ROWS>
static __device__ __forceinline__ void few_chunk_float(const linear_args &args, const few_work &work,
                                                       int32_t chunk, float *part) {
    const int32_t columns = work.columns, first = work.first, n = work.count;
    const unsigned char *w_row = work.row;
    const int32_t end = columns < (chunk + 1) * CHUNK ? columns : (chunk + 1) * CHUNK;
    int32_t i = chunk * CHUNK;
    const bool aligned = ((uint64_t)w_row | (uint64_t)sl_f32(args.x, first) | args.x.row_bytes) % 16 == 0;
    for (; aligned && i + 4 <= end; i += 4) {
        float w[4];
        load_floats<TYPE>(w_row, work.row_bytes, i, w);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r < n) {
                const float4 x = *(const float4 *)(sl_f32(args.x, first + r) + i);
                part[r] = fmaf(w[3], x.w, fmaf(w[2], x.z, fmaf(w[1], x.y, fmaf(w[0], x.x, part[r]))));
            }
        }
    }
    for (; i < end; i++) {
        const float w = load_float<TYPE>(w_row, work.row_bytes, i);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r < n) {
                part[r] = fmaf(w, sl_f32(args.x, first + r)[i], part[r]);
            }
        }
    }
}

/* With experts blockIdx.y is a row of y, otherwise a group of ROWS rows. */
template <int TYPE, int ROWS>
static __global__ void __launch_bounds__(FEW_THREADS) few_kernel(sl_cuda_context context, linear_args args) {
    const int32_t first = (int32_t)blockIdx.y * ROWS, left = sl_count(context, args.y.rows) - first;
    if (left <= 0) {
        return;
    }
    const int32_t n = left < ROWS ? left : ROWS;
    const int32_t segment = sl_linear_find(args.first_block, args.segments, (int32_t)blockIdx.x),
                  lanes = args.lanes, per_warp = SL_WARP / lanes;
    const sl_cuda_weight &weight = args.weights[segment];
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t output =
        (((int32_t)blockIdx.x - args.first_block[segment]) * FEW_WARPS + warp) * per_warp + lane / lanes;
    const bool valid = output < weight.rows;
    int32_t expert = 0;
    if (args.ids.data) {
        expert = sl_i32(args.ids, first / args.experts_used)[first % args.experts_used];
    }
    const unsigned char *w_row = weight.data + (uint64_t)expert * weight.expert_bytes +
                                 (valid ? (uint64_t)output : 0) * weight.row_bytes;
    const few_work work = {w_row, weight.row_bytes, weight.columns, first / args.x_share, n};
    const int32_t chunks = (weight.columns + CHUNK - 1) / CHUNK;
    float sums[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        sums[r] = 0;
    }
    for (int32_t base = 0; base < chunks; base += lanes) {
        float part[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            part[r] = 0;
        }
        const int32_t chunk = base + lane % lanes;
        if (valid && chunk < chunks) {
            if (IS_FLOAT(TYPE)) {
                few_chunk_float<FLOAT_OF(TYPE), ROWS>(args, work, chunk, part);
            } else {
                few_chunk_q8<Q8_OF(TYPE), ROWS>(args, work, chunk, part);
            }
        }
        const int32_t count = chunks - base < lanes ? chunks - base : lanes;
        for (int32_t i = 0; i < count; i++) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                sums[r] += __shfl_sync(SL_FULL_WARP, part[r], i, lanes);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (valid && r < n && lane % lanes == 0) {
            sl_linear_store(args, weight, expert, first + r, output, sums[r]);
        }
    }
}

/* ---- many rows ---- */

/* What a block multiplies. */
typedef struct many_work {
    const linear_args *args;
    const sl_cuda_weight *weight;
    const unsigned char *matrix; /* of the expert */
    const sl_tile_rows<TILE> *rows;
    int32_t first_output;
} many_work;

/* The stride puts the words that a warp's matrix instruction reads on different banks. */
enum { Q8_GROUPS = 4, Q8_STRIDE = Q8_GROUPS * 8 + 4 };

typedef struct tile_q8 {
    alignas(16) int32_t w[TILE][Q8_STRIDE], x[TILE][Q8_STRIDE];
    float w_scale[TILE][Q8_GROUPS], w_min[TILE][Q8_GROUPS],
        x_scale[Q8_GROUPS][TILE]; /* w_min: or the upper scale */
    int32_t x_sum[Q8_GROUPS][TILE], x_low[Q8_GROUPS][TILE];
    int8_t factors[TILE][Q8_GROUPS][4]; /* of the two halves' scales, and of their minima */
} tile_q8;

/* One group of the weights and one of x: what a thread brings to a tile. */
typedef struct part_q8 {
    sl_group32 w;
    int2 x[4];
    float x_scale;
    int32_t x_sum;
} part_q8;

/* Thread t brings group group + t % 4 of weight row and row t / 4. */
template <int TYPE>
static __device__ __forceinline__ void fetch_q8(const many_work &work, int32_t group, part_q8 *part) {
    const sl_cuda_weight &weight = *work.weight;
    const sl_tile_rows<TILE> *rows = work.rows;
    const int32_t at = (int32_t)threadIdx.x / Q8_GROUPS, g = group + (int32_t)threadIdx.x % Q8_GROUPS;
    const bool inside = g < weight.columns / 32;
    *part = {};
    if (inside && work.first_output + at < weight.rows) {
        sl_load_group<TYPE>(work.matrix + (uint64_t)(work.first_output + at) * weight.row_bytes, g, &part->w);
    }
    if (inside && rows->x[at] >= 0) {
        const sl_q8_32 x = sl_q8_32_of(work.args->x, rows->x[at]);
        const int2 *values = (const int2 *)(x.values + 32 * g);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            part->x[i] = values[i];
        }
        part->x_scale = x.scales[g];
        part->x_sum = x.sums[g];
    }
}

template <int TYPE> static __device__ __forceinline__ void put_q8(const part_q8 &part, tile_q8 *tile) {
    const int32_t at = (int32_t)threadIdx.x / Q8_GROUPS, g = (int32_t)threadIdx.x % Q8_GROUPS;
    const int32_t *w = part.w.words;
    int4 *to_w = (int4 *)&tile->w[at][8 * g], *to_x = (int4 *)&tile->x[at][8 * g];
    to_w[0] = make_int4(w[0], w[1], w[2], w[3]);
    to_w[1] = make_int4(w[4], w[5], w[6], w[7]);
    to_x[0] = make_int4(part.x[0].x, part.x[0].y, part.x[1].x, part.x[1].y);
    to_x[1] = make_int4(part.x[2].x, part.x[2].y, part.x[3].x, part.x[3].y);
    tile->w_scale[at][g] = part.w.scale;
    tile->w_min[at][g] = sl_group_kind<TYPE>::HAS_UPPER ? part.w.upper : part.w.min;
    tile->factors[at][g][0] = (int8_t)part.w.factor0;
    tile->factors[at][g][1] = (int8_t)part.w.factor1;
    tile->x_scale[g][at] = part.x_scale;
    tile->x_sum[g][at] = part.x_sum;
    if (sl_group_kind<TYPE>::HAS_MIN_FACTORS) {
        tile->factors[at][g][2] = (int8_t)part.w.min_factor0;
        tile->factors[at][g][3] = (int8_t)part.w.min_factor1;
        tile->x_low[g][at] = add_bytes(part.x[1], add_bytes(part.x[0], 0));
    }
}

/* A warp takes 16 weight rows and half of the rows, as four pieces of 8. Of piece p a thread has, with i =
 * lane / 4 and j = lane % 4 * 2: part[p] = {(i, j), (i, j + 1), (i + 8, j), (i + 8, j + 1)}, the layout of
 * the instruction's sums. */
static __device__ __forceinline__ int32_t my_output(int e) {
    return (int32_t)threadIdx.x / SL_WARP % 4 * 16 + (int32_t)threadIdx.x % SL_WARP / 4 + e / 2 * 8;
}

static __device__ __forceinline__ int32_t my_row(int p, int e) {
    return (int32_t)threadIdx.x / SL_WARP / 4 * (TILE / 2) + 8 * p + (int32_t)threadIdx.x % 4 * 2 + e % 2;
}

template <int TYPE>
static __device__ __forceinline__ void multiply_group_q8(const tile_q8 *tile, int32_t g,
                                                         float part[EACH][EACH]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, word = 8 * g + lane % 4;
    const int32_t o0 = my_output(0), o1 = my_output(2);
    const int32_t a[4] = {tile->w[o0][word], tile->w[o1][word], tile->w[o0][word + 4], tile->w[o1][word + 4]};
    const float scale[2] = {tile->w_scale[o0][g], tile->w_scale[o1][g]};
    const float min[2] = {tile->w_min[o0][g], tile->w_min[o1][g]};
    const int8_t *factors[2] = {tile->factors[o0][g], tile->factors[o1][g]};
#pragma unroll
    for (int p = 0; p < EACH; p++) {
        const int32_t x_row = my_row(p, 0) - lane % 4 * 2 + lane / 4;
        const int32_t b[2] = {tile->x[x_row][word], tile->x[x_row][word + 4]};
        int32_t low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
        if (sl_group_kind<TYPE>::HAS_FACTORS || sl_group_kind<TYPE>::HAS_UPPER) {
            sl_mma_i8_k16_add<false>(low, a[0], a[1], b[0]);
            sl_mma_i8_k16_add<false>(high, a[2], a[3], b[1]);
        } else {
            sl_mma_i8_add(low, a, b);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int32_t row = my_row(p, e);
            const int8_t *factor = factors[e / 2];
            if (sl_group_kind<TYPE>::HAS_UPPER) {
                const float x_scale = tile->x_scale[g][row];
                part[p][e] = add_group<TYPE>(low[e], scale[e / 2], 0, 0, x_scale, part[p][e]);
                part[p][e] = add_group<TYPE>(high[e], min[e / 2], 0, 0, x_scale, part[p][e]);
                continue;
            }
            const int32_t dot =
                sl_group_kind<TYPE>::HAS_FACTORS ? factor[0] * low[e] + factor[1] * high[e] : low[e];
            const int32_t x_sum =
                min_sum<TYPE>(factor[2], factor[3], tile->x_low[g][row], tile->x_sum[g][row]);
            part[p][e] =
                add_group<TYPE>(dot, scale[e / 2], min[e / 2], x_sum, tile->x_scale[g][row], part[p][e]);
        }
    }
}

enum { FLOAT_COLUMNS = 32, FLOAT_STRIDE = FLOAT_COLUMNS + 1 };

typedef struct tile_float {
    float w[TILE][FLOAT_STRIDE], x[TILE][FLOAT_STRIDE];
} tile_float;

template <int TYPE>
static __device__ void load_tile_float(const many_work &work, int32_t column, tile_float *tile) {
    const sl_cuda_weight &weight = *work.weight;
    const sl_tile_rows<TILE> *rows = work.rows;
    for (int32_t i = (int32_t)threadIdx.x; i < TILE * FLOAT_COLUMNS; i += MANY_THREADS) {
        const int32_t at = i / FLOAT_COLUMNS, c = i % FLOAT_COLUMNS;
        const bool inside = column + c < weight.columns;
        float w = 0, x = 0;
        if (inside && work.first_output + at < weight.rows) {
            w = load_float<TYPE>(work.matrix + (uint64_t)(work.first_output + at) * weight.row_bytes,
                                 weight.row_bytes, column + c);
        }
        if (inside && rows->x[at] >= 0) {
            x = sl_f32(work.args->x, rows->x[at])[column + c];
        }
        tile->w[at][c] = w;
        tile->x[at][c] = x;
    }
}

static __device__ __forceinline__ void multiply_float(const tile_float *tile, int32_t columns,
                                                      float part[EACH][EACH]) {
    const int32_t i = (int32_t)threadIdx.x % SIDE, j = (int32_t)threadIdx.x / SIDE;
    for (int32_t c = 0; c < columns; c++) {
        float w[EACH], x[EACH];
#pragma unroll
        for (int a = 0; a < EACH; a++) {
            w[a] = tile->w[i + SIDE * a][c];
            x[a] = tile->x[j + SIDE * a][c];
        }
#pragma unroll
        for (int a = 0; a < EACH; a++) {
#pragma unroll
            for (int b = 0; b < EACH; b++) {
                part[a][b] = fmaf(w[a], x[b], part[a][b]);
            }
        }
    }
}

static __device__ __forceinline__ void end_chunk(float sums[EACH][EACH], float part[EACH][EACH]) {
#pragma unroll
    for (int a = 0; a < EACH; a++) {
#pragma unroll
        for (int b = 0; b < EACH; b++) {
            sums[a][b] += part[a][b];
            part[a][b] = 0;
        }
    }
}

template <int TYPE>
static __device__ __forceinline__ void many_q8(const many_work &work, float sums[EACH][EACH]) {
    const sl_cuda_weight &weight = *work.weight;
    __shared__ tile_q8 tile;
    const int32_t groups = weight.columns / 32;
    float chunk[EACH][EACH] = {};
    part_q8 part;
    fetch_q8<TYPE>(work, 0, &part);
    for (int32_t group = 0; group < groups; group += Q8_GROUPS) {
        put_q8<TYPE>(part, &tile);
        __syncthreads();
        fetch_q8<TYPE>(work, group + Q8_GROUPS, &part);
        const int32_t count = groups - group < Q8_GROUPS ? groups - group : (int32_t)Q8_GROUPS;
#pragma unroll 1
        for (int32_t g = 0; g < count; g++) {
            multiply_group_q8<TYPE>(&tile, g, chunk);
        }
        __syncthreads();
        if ((group + Q8_GROUPS) % (CHUNK / 32) == 0 || group + Q8_GROUPS >= groups) {
            end_chunk(sums, chunk);
        }
    }
}

template <int TYPE>
static __device__ __forceinline__ void many_float(const many_work &work, float sums[EACH][EACH]) {
    const sl_cuda_weight &weight = *work.weight;
    __shared__ tile_float tile;
    float part[EACH][EACH] = {};
    for (int32_t column = 0; column < weight.columns; column += FLOAT_COLUMNS) {
        load_tile_float<TYPE>(work, column, &tile);
        __syncthreads();
        multiply_float(
            &tile, weight.columns - column < FLOAT_COLUMNS ? weight.columns - column : FLOAT_COLUMNS, part);
        __syncthreads();
        if ((column + FLOAT_COLUMNS) % CHUNK == 0 || column + FLOAT_COLUMNS >= weight.columns) {
            end_chunk(sums, part);
        }
    }
}

template <int TYPE>
static __global__ void __launch_bounds__(MANY_THREADS)
    many_kernel(sl_cuda_context context, linear_args args) {
    __shared__ sl_tile_rows<TILE> rows;
    const int32_t segment = sl_linear_find(args.first_block, args.segments, (int32_t)blockIdx.x);
    const sl_cuda_weight &weight = args.weights[segment];
    if (!sl_find_rows(args, weight.experts, sl_count(context, args.y.rows), (int32_t)blockIdx.y, &rows)) {
        return;
    }
    const unsigned char *matrix = weight.data + (uint64_t)rows.expert * weight.expert_bytes;
    const int32_t first_output = ((int32_t)blockIdx.x - args.first_block[segment]) * TILE;
    const many_work work = {&args, &weight, matrix, &rows, first_output};
    float sums[EACH][EACH] = {};
    if (IS_FLOAT(TYPE)) {
        many_float<FLOAT_OF(TYPE)>(work, sums);
    } else {
        many_q8<Q8_OF(TYPE)>(work, sums);
    }
#pragma unroll
    for (int a = 0; a < EACH; a++) {
#pragma unroll
        for (int b = 0; b < EACH; b++) {
            const int32_t at = IS_FLOAT(TYPE) ? (int32_t)threadIdx.x % SIDE + SIDE * a : my_output(b);
            const int32_t of = IS_FLOAT(TYPE) ? (int32_t)threadIdx.x / SIDE + SIDE * b : my_row(a, b);
            if (first_output + at < weight.rows && rows.y[of] >= 0) {
                sl_linear_store(args, weight, rows.expert, rows.y[of], first_output + at, sums[a][b]);
            }
        }
    }
}

/* ---- launches ---- */

/* Fills all but `lanes`; `per_block`: weight rows of a block. Returns the blocks along x. */
static unsigned make_args(const sl_cuda_context *context, const sl_cuda_op *op, int32_t per_block,
                          linear_args *args) {
    sl_linear_fill(context, op, args);
    sl_linear_fill_schedule(op, args);
    args->ids = op->in[1];
    args->experts_used = context->experts_used;
    return (unsigned)sl_linear_cut(op, per_block, args->first_block);
}

template <int TYPE>
static cudaError_t launch_few(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    linear_args args = {};
    const int32_t chunks = (op->weights[0].columns + CHUNK - 1) / CHUNK, rows = op->rows[op->out[0].rows];
    args.lanes = 1;
    while (args.lanes < SL_WARP && args.lanes < chunks) {
        args.lanes *= 2;
    }
    const unsigned blocks = make_args(context, op, FEW_WARPS * (SL_WARP / args.lanes), &args);
    if (args.ids.data || rows == 1) {
        few_kernel<TYPE, 1><<<dim3(blocks, (unsigned)rows), FEW_THREADS, 0, stream>>>(*context, args);
    } else {
        const unsigned groups = (unsigned)((rows + SL_CUDA_FEW_ROWS - 1) / SL_CUDA_FEW_ROWS);
        few_kernel<TYPE, SL_CUDA_FEW_ROWS><<<dim3(blocks, groups), FEW_THREADS, 0, stream>>>(*context, args);
    }
    return cudaGetLastError();
}

template <int TYPE>
static cudaError_t launch_many(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    linear_args args = {};
    const unsigned blocks = make_args(context, op, TILE, &args);
    const int32_t rows = op->rows[op->out[0].rows];
    int32_t tiles = (rows + TILE - 1) / TILE;
    if (args.list) { /* each expert that is chosen may leave one tile partly empty */
        const int32_t experts = op->weights[0].experts < rows ? op->weights[0].experts : rows;
        tiles = rows / TILE + experts;
    }
    many_kernel<TYPE><<<dim3(blocks, (unsigned)tiles), MANY_THREADS, 0, stream>>>(*context, args);
    return cudaGetLastError();
}

const char *sl_cuda_linear_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_cuda_kernel *row = (const sl_cuda_kernel *)kernel;
    const sl_op *op = query->op;
    if (query->program->weights[op->u.linear.segments[0].weight].type != row->weight_type) {
        return "is for another weight type";
    }
    /* Of an expert's rows it is the step that counts. */
    const sl_rows rows = query->values[op->out[0].value].rows;
    if (row->most_rows > 0 && query->rows[rows == SL_ROWS_EXPERT ? SL_ROWS_STEP : rows] > row->most_rows) {
        return "takes fewer rows";
    }
    return NULL;
}

#define PLAIN(ID, type_name, shape, arranged, limit, function)                                               \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-" shape,                                              \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = IS_FLOAT(SL_QTYPE_##ID) ? "f32/256" : "q8_32/256",                       \
                   .activation = IS_FLOAT(SL_QTYPE_##ID) ? SL_VALUE_F32 : SL_VALUE_Q8_32,                    \
                   .tolerance = 2e-5f,                                                                       \
                   .batched = true,                                                                          \
                   .declines = sl_cuda_linear_declines},                                                     \
        .arrangement = arranged, .weight_type = SL_QTYPE_##ID, .most_rows = limit, .run = function           \
    }
static const sl_cuda_kernel KERNELS[] = {
#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes)                                           \
    PLAIN(ID, name, "plain-rows8", SL_CUDA_PLAIN_ROWS8, SL_CUDA_FEW_ROWS, launch_few<SL_QTYPE_##ID>),        \
        PLAIN(ID, name, "plain-tile", SL_CUDA_PLAIN_TILE, 0, launch_many<SL_QTYPE_##ID>),
#include "quant/qtypes.def"
#undef SL_QTYPE
};

SL_CUDA_FAMILY(plain_linear) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, NULL};
