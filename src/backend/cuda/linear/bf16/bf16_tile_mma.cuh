/* Matrix products for many rows on the tensor cores: y = x W^T (+ bias) (+ residual), with or without
 * experts.
 *
 * Class "bf16/mma": x is BF16, weights are decoded to BF16 (from an f32 value that is exact or nearly so,
 * rounded to nearest even once), products are added in f32 by mma m16n8k16, 16 columns after the other;
 * then bias, then residual. The columns are added in one order whatever the tile, so that a row's bits do not
 * depend on the others.
 *
 * A block computes BM rows by BN outputs, 64 columns a step. asynchronous copies brings x and the weights'
 * own bytes through a ring of stages in shared memory; each warp decodes the weights it multiplies straight
 * into the registers of the instruction, so that no decoded copy is written or read. For that the columns of
 * a group of 32 are renamed: lane l holds columns 8 (l % 4) .. 8 (l % 4) + 7 of x and of the weights for two
 * instructions, instead of four pairs.
 *
 * Per step of a 256 x 128 block: 4.2 M multiply-adds, 32 KiB of x and 6 (Q4_K) to 20 KiB (Q6_K) of weights
 * read. */
#ifndef SL_BACKEND_CUDA_LINEAR_BF16_BF16_TILE_MMA_CUH
#define SL_BACKEND_CUDA_LINEAR_BF16_BF16_TILE_MMA_CUH

#include "backend/cuda/linear/bf16/bf16_tile.h"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/copy.cuh"
#include "backend/cuda/types/fp8.cuh"
#include "backend/cuda/common/tile_rows.cuh"

enum { STEP = 64, GROUP = 32, STAGES = 3 };

typedef struct matmul_args {
    sl_cuda_weight weights[SL_LINEAR_SEGMENTS];
    int32_t first_block[SL_LINEAR_SEGMENTS + 1]; /* of each segment, along y of the grid */
    int32_t segments;
    sl_cuda_operand x, residual, y;
    const int32_t *offsets, *list; /* the schedule, or NULL */
    int32_t x_share;               /* rows of y that read one row of x */
} matmul_args;

/* A block's shape: ROW_WARPS by OUTPUT_WARPS warps of 16 ROW_TILES rows by 8 OUTPUT_TILES outputs. */
template <int ROW_WARPS, int OUTPUT_WARPS, int ROW_TILES, int OUTPUT_TILES, int BLOCKS> struct matmul_shape {
    enum {
        blocks = BLOCKS, /* at a time on a processor, as far as registers go */
        row_warps = ROW_WARPS,
        output_warps = OUTPUT_WARPS,
        row_tiles = ROW_TILES,
        output_tiles = OUTPUT_TILES,
        threads = ROW_WARPS * OUTPUT_WARPS * SL_WARP,
        rows = ROW_WARPS * ROW_TILES * 16,
        outputs = OUTPUT_WARPS * OUTPUT_TILES * 8
    };
};

/* ---- weights: bytes of a step in shared memory ---- */

/* What 16-byte pieces a step's 64 columns of a weight row are copied in. Rows of blocks start at even
 * addresses only; a piece starts at a multiple of 16 at or below the bytes it is for, and what lies in front
 * is skipped by the reader
 * (`shift` below). */
template <int TYPE> struct weight_layout;
template <> struct weight_layout<SL_QTYPE_F16> { /* [group][row ^ group][piece ^ row / 2 % 4][16] */
    enum { pieces = 8, bytes = 128 };
};
template <> struct weight_layout<SL_QTYPE_BF16> {
    enum { pieces = 8, bytes = 128 };
};
template <> struct weight_layout<SL_QTYPE_Q8_0> { /* [row][two blocks] */
    enum { pieces = 6, bytes = 96, blocks = 2 * SL_Q8_0_BYTES };
};
template <>
struct weight_layout<SL_QTYPE_Q4_0> { /* [row][two blocks]; the stride spreads rows over the banks */
    enum { pieces = 4, bytes = 80, blocks = 2 * SL_Q4_0_BYTES };
};
template <> struct weight_layout<SL_QTYPE_Q4_K> { /* [row][scales: 16], then [row][quants: 32] */
    enum { pieces = 3, bytes = 48 };
};
template <> struct weight_layout<SL_QTYPE_Q6_K> { /* [row][low: 80][high: 48][scales: 32] */
    enum { pieces = 10, bytes = 160, high = 80, scales = 128 };
};
template <>
struct weight_layout<SL_QTYPE_FP8_128> { /* [row][codes: 64][scales: 16]; the stride spreads rows */
    enum { pieces = 5, bytes = 96, scales = 64 };
};

/* Piece `piece` of the `length` bytes at `start`. */
static __device__ __forceinline__ void copy_piece(uint32_t to, const unsigned char *start, int32_t length,
                                                  int32_t piece, bool valid) {
    const unsigned char *from = (const unsigned char *)((uint64_t)start & ~(uint64_t)15) + 16 * piece;
    const int64_t left = start + length - from;
    const int32_t bytes = !valid || left < 0 ? 0 : left < 16 ? (int32_t)left : 16;
    sl_copy_16_of(to, bytes > 0 ? from : (const unsigned char *)((uint64_t)start & ~(uint64_t)15), bytes);
}

/* A weight row, and its place in a tile of shared memory; it is not read unless it is valid. */
typedef struct weight_row {
    const unsigned char *start;
    int32_t bytes, at;
    bool valid;
} weight_row;

/* Piece `piece` of step `step` of a weight row to the tile of ROWS rows at `to`. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void copy_weight(uint32_t to, const weight_row &row, int32_t step,
                                                   int32_t piece) {
    typedef weight_layout<TYPE> layout;
    const int32_t at = row.at;
    if constexpr (TYPE == SL_QTYPE_F16 || TYPE == SL_QTYPE_BF16) {
        const int32_t group = piece / 4, from = step * layout::bytes + 16 * piece;
        const bool valid = row.valid && from < row.bytes;
        sl_copy_16_of(to + (group * ROWS + (at ^ group)) * 64 + 16 * (piece % 4 ^ at / 2 % 4),
                      row.start + (valid ? from : 0), valid ? 16 : 0);
    } else if constexpr (TYPE == SL_QTYPE_Q8_0 || TYPE == SL_QTYPE_Q4_0) {
        const int32_t from = step * layout::blocks, left = row.bytes - from;
        copy_piece(to + at * layout::bytes + 16 * piece, row.start + from,
                   left < layout::blocks ? left : (int32_t)layout::blocks, piece, row.valid);
    } else if constexpr (TYPE == SL_QTYPE_Q4_K) {
        const unsigned char *block = row.start + step / 4 * SL_Q4_K_BYTES;
        sl_copy_16_of(piece == 0 ? to + at * 16 : to + ROWS * 16 + at * 32 + 16 * (piece - 1),
                      block + (piece == 0 ? 0 : 32 * (step % 4) + 16 * piece), row.valid ? 16 : 0);
    } else if constexpr (TYPE == SL_QTYPE_FP8_128) {
        const int32_t from = piece < 4 ? step * STEP + 16 * piece
                                       : (int32_t)sl_fp8_scales_at((uint32_t)row.bytes) + step / 8 * 16;
        sl_copy_16_of(to + at * layout::bytes + 16 * piece, row.start + (row.valid ? from : 0),
                      row.valid ? 16 : 0);
    } else {
        const int32_t half = step % 4 / 2;
        const bool low = piece < 5, high = piece >= 5 && piece < 8;
        const unsigned char *start = row.start + step / 4 * SL_Q6_K_BYTES +
                                     (low    ? 64 * half
                                      : high ? 128 + 32 * half
                                             : 192);
        copy_piece(to + at * layout::bytes + 16 * piece, start,
                   low    ? 64
                   : high ? 32
                          : 18,
                   low    ? piece
                   : high ? piece - 5
                          : piece - 8,
                   row.valid);
    }
}

/* ---- weights: eight columns of one row into registers ---- */

/* 32768 + byte i of the word, without a conversion. */
static __device__ __forceinline__ float biased_byte(uint32_t word, uint32_t i) {
    return __uint_as_float(__byte_perm(word, 0x47000000u, 0x7504u | i << 4));
}

/* Four bytes b to scale * (b - offset), where constant = -scale * (32768 + offset). */
static __device__ __forceinline__ void decode_bytes(uint32_t word, float scale, float constant,
                                                    uint32_t *out) {
    out[0] = sl_bf16_pair(fmaf(biased_byte(word, 0), scale, constant),
                          fmaf(biased_byte(word, 1), scale, constant));
    out[1] = sl_bf16_pair(fmaf(biased_byte(word, 2), scale, constant),
                          fmaf(biased_byte(word, 3), scale, constant));
}

/* Eight bytes at an even address. */
static __device__ __forceinline__ uint2 load_even(const unsigned char *at) {
    const uint32_t *words = (const uint32_t *)((uint64_t)at & ~(uint64_t)3);
    const uint32_t bits = ((uint32_t)(uint64_t)at & 2u) * 8;
    const uint32_t middle = words[1];
    return make_uint2(__funnelshift_r(words[0], middle, bits), __funnelshift_r(middle, words[2], bits));
}

/* Scale and minimum of a group of Q4_K from the block's header, as decode_bytes takes them; group: 0 or 1 of
 * the step. */
static __device__ __forceinline__ void q4_k_scales(uint4 header, int32_t step, int32_t group, float *scale,
                                                   float *constant) {
    const int32_t bits = 16 * (step % 2) + 8 * group;
    const uint32_t a = header.y >> bits, b = header.z >> bits, c = header.w >> bits;
    const bool upper = step % 4 >= 2;
    const uint32_t s = upper ? (c & 15u) | (a >> 2 & 48u) : a & 63u;
    const uint32_t m = upper ? (c >> 4 & 15u) | (b >> 2 & 48u) : b & 63u;
    const float all = sl_half_of(header.x), min = sl_half_of(header.x >> 16);
    *scale = fmaf(biased_byte(s, 0), all, -32768.0f * all);
    *constant = fmaf(-32768.0f, *scale, -fmaf(biased_byte(m, 0), min, -32768.0f * min));
}

/* Which columns of a step a lane decodes: its part of group `group` (0 or 1); the rows' bytes start at
 * `shift`. */
typedef struct weight_columns {
    int32_t step, group, part, shift;
} weight_columns;

/* Columns 8 part .. 8 part + 7 of the group, of a row of the tile of ROWS rows, as four pairs. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void load_weight(const unsigned char *tile, int32_t row,
                                                   const weight_columns &columns, uint32_t out[4]) {
    typedef weight_layout<TYPE> layout;
    const int32_t group = columns.group, part = columns.part;
    if constexpr (TYPE == SL_QTYPE_BF16 || TYPE == SL_QTYPE_F16) {
        const uint4 pairs =
            *(const uint4 *)(tile + (group * ROWS + (row ^ group)) * 64 + 16 * (part ^ row / 2 % 4));
        const uint32_t words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[i] = TYPE == SL_QTYPE_BF16 ? words[i]
                                           : sl_bf16_pair(sl_half_of(words[i]), sl_half_of(words[i] >> 16));
        }
    } else if constexpr (TYPE == SL_QTYPE_Q8_0) {
        const unsigned char *block = tile + row * layout::bytes + columns.shift + group * SL_Q8_0_BYTES;
        const float scale = sl_half_of(*(const uint16_t *)block), constant = -32896.0f * scale;
        const uint2 quants = load_even(block + 2 + 8 * part);
        decode_bytes(quants.x ^ 0x80808080u, scale, constant, out);
        decode_bytes(quants.y ^ 0x80808080u, scale, constant, out + 2);
    } else if constexpr (TYPE == SL_QTYPE_Q4_0) {
        const unsigned char *block = tile + row * layout::bytes + columns.shift + group * SL_Q4_0_BYTES;
        const float scale = sl_half_of(*(const uint16_t *)block), constant = -32776.0f * scale;
        const uint2 quants = load_even(block + 2 + 8 * (part % 2));
        const int32_t bits = 4 * (part / 2);
        decode_bytes(quants.x >> bits & 0x0f0f0f0fu, scale, constant, out);
        decode_bytes(quants.y >> bits & 0x0f0f0f0fu, scale, constant, out + 2);
    } else if constexpr (TYPE == SL_QTYPE_Q4_K) {
        const uint2 quants = *(const uint2 *)(tile + ROWS * 16 + row * 32 + 8 * part);
        float scale, constant;
        q4_k_scales(*(const uint4 *)(tile + row * 16), columns.step, group, &scale, &constant);
        decode_bytes(quants.x >> 4 * group & 0x0f0f0f0fu, scale, constant, out);
        decode_bytes(quants.y >> 4 * group & 0x0f0f0f0fu, scale, constant, out + 2);
    } else if constexpr (TYPE == SL_QTYPE_FP8_128) {
        const unsigned char *block = tile + row * layout::bytes;
        const float scale = *(const float *)(block + layout::scales + columns.shift);
        const uint32_t *codes = (const uint32_t *)(block + GROUP * group + 8 * part);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float w[4];
            sl_fp8_values(codes[i], w);
            out[2 * i] = sl_bf16_pair(scale * w[0], scale * w[1]);
            out[2 * i + 1] = sl_bf16_pair(scale * w[2], scale * w[3]);
        }
    } else {
        const unsigned char *block = tile + row * layout::bytes + columns.shift;
        const int32_t odd = columns.step % 2, bits = 4 * odd + 2 * group;
        const float factor =
            (float)(int8_t)block[layout::scales + 4 * (columns.step % 4) + 2 * group + part / 2];
        const float scale = sl_half_of(*(const uint16_t *)(block + layout::scales + 16)) * factor;
        const float constant = -32800.0f * scale;
        const uint2 low = load_even(block + 32 * group + 8 * part);
        const uint2 high = load_even(block + layout::high + 8 * part);
        decode_bytes((low.x >> 4 * odd & 0x0f0f0f0fu) | (high.x >> bits & 0x03030303u) << 4, scale, constant,
                     out);
        decode_bytes((low.y >> 4 * odd & 0x0f0f0f0fu) | (high.y >> bits & 0x03030303u) << 4, scale, constant,
                     out + 2);
    }
}

/* ---- the kernel ---- */

template <int TYPE, typename SHAPE> static __host__ __device__ constexpr int stage_bytes() {
    return SHAPE::rows * STEP * 2 + SHAPE::outputs * weight_layout<TYPE>::bytes;
}

/* What a block multiplies. */
template <int ROWS> struct matmul_work {
    const matmul_args &args;
    const sl_cuda_weight &weight;
    const unsigned char *matrix; /* of the expert */
    const sl_tile_rows<ROWS> &rows;
    int32_t first_output;
};

/* The weights' bytes of a step to the tile at `to`, of OUTPUTS rows, by THREADS threads. */
template <int TYPE, int ROWS, int OUTPUTS, int THREADS>
static __device__ __forceinline__ void copy_weights(const matmul_work<ROWS> &work, int32_t thread,
                                                    int32_t step, uint32_t to) {
    typedef weight_layout<TYPE> layout;
    const int32_t row_bytes = (int32_t)work.weight.row_bytes;
#pragma unroll
    for (int i = 0; i < OUTPUTS * layout::pieces; i += THREADS) {
        const int32_t index = thread + i, at = index / layout::pieces;
        if (OUTPUTS * layout::pieces % THREADS != 0 && at >= OUTPUTS) {
            break;
        }
        const bool valid = work.first_output + at < work.weight.rows && step * STEP < work.weight.columns;
        const uint32_t row = (uint32_t)(valid ? work.first_output + at : 0);
        const weight_row from = {work.matrix + (uint64_t)row * (uint32_t)row_bytes, row_bytes, at, valid};
        copy_weight<TYPE, OUTPUTS>(to, from, step, index % layout::pieces);
    }
}

template <int TYPE, typename SHAPE>
static __device__ __forceinline__ void copy_step(const matmul_work<SHAPE::rows> &work, int32_t step,
                                                 uint32_t stage) {
    const matmul_args &args = work.args;
    int32_t thread = (int32_t)threadIdx.x;
    asm volatile("" : "+r"(thread)); /* addresses are computed anew in each step: registers are short */
    const int32_t piece = thread % 8, group = piece / 4;
    const int32_t column = step * STEP + 8 * piece;
    const unsigned char *x = args.x.data + 2 * (uint64_t)(args.x.column + column);
    const uint32_t x_bytes = (uint32_t)args.x.row_bytes;
#pragma unroll
    for (int i = 0; i < SHAPE::rows * 8 / SHAPE::threads; i++) {
        const int32_t at = thread / 8 + i * (SHAPE::threads / 8), row = work.rows.x[at];
        const bool valid = row >= 0 && column < work.weight.columns;
        sl_copy_16_of(stage + group * SHAPE::rows * 64 + (at ^ group) * 64 + piece % 4 * 16,
                      valid ? x + (uint64_t)(uint32_t)row * x_bytes : args.x.data, valid ? 16 : 0);
    }
    copy_weights<TYPE, SHAPE::rows, SHAPE::outputs, SHAPE::threads>(work, thread, step,
                                                                    stage + SHAPE::rows * STEP * 2);
    sl_copy_commit();
}

template <int TYPE, typename SHAPE>
static __device__ __forceinline__ void multiply_step(const unsigned char *stage, int32_t step, int32_t shift,
                                                     int32_t my_row, int32_t my_output,
                                                     float sums[SHAPE::row_tiles][SHAPE::output_tiles][4]) {
    const unsigned char *tile = stage + SHAPE::rows * STEP * 2;
    const int32_t part = (int32_t)threadIdx.x % 4;
#pragma unroll
    for (int group = 0; group < 2; group++) {
        const weight_columns columns = {step, group, part, shift};
        uint32_t b[SHAPE::output_tiles][4];
        asm volatile(
            "" ::
                : "memory"); /* the second group's bytes stay in shared memory: registers are short */
#pragma unroll
        for (int n = 0; n < SHAPE::output_tiles; n++) {
            load_weight<TYPE, SHAPE::outputs>(tile, my_output + 8 * n, columns, b[n]);
        }
#pragma unroll
        for (int m = 0; m < SHAPE::row_tiles; m++) {
            const unsigned char *x = stage + group * SHAPE::rows * 64 + 16 * part;
            const int32_t row = my_row + 16 * m;
            const uint4 upper = *(const uint4 *)(x + (row ^ group) * 64);
            const uint4 lower = *(const uint4 *)(x + ((row + 8) ^ group) * 64);
            const uint32_t a[2][4] = {{upper.x, lower.x, upper.y, lower.y},
                                      {upper.z, lower.z, upper.w, lower.w}};
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int n = 0; n < SHAPE::output_tiles; n++) {
                    sl_mma_bf16(sums[m][n], a[half], b[n][2 * half], b[n][2 * half + 1]);
                }
            }
        }
    }
}

/* Two outputs side by side, of which the second may be past the end. */
template <int ROWS>
static __device__ __forceinline__ void store_pair(const matmul_work<ROWS> &work, int32_t row, int32_t output,
                                                  float first, float second) {
    const matmul_args &args = work.args;
    const sl_cuda_weight &weight = work.weight;
    const bool both = output + 1 < weight.rows;
    if (weight.bias) {
        const float *bias = weight.bias + (int64_t)work.rows.expert * weight.rows + output;
        first += bias[0];
        second += both ? bias[1] : 0.0f;
    }
    if (args.residual.data) {
        const float *residual = sl_f32(args.residual, row) + weight.column + output;
        first += residual[0];
        second += both ? residual[1] : 0.0f;
    }
    float *y = sl_f32(args.y, row) + weight.column + output;
    if (both && (uint64_t)y % 8 == 0) {
        *(float2 *)y = make_float2(first, second);
        return;
    }
    y[0] = first;
    if (both) {
        y[1] = second;
    }
}

template <int TYPE, typename SHAPE>
static __global__ void __launch_bounds__(SHAPE::threads, SHAPE::blocks)
    matmul_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ matmul_args args) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ sl_tile_rows<SHAPE::rows> rows;
    int32_t segment = 0;
    while (segment + 1 < args.segments && (int32_t)blockIdx.y >= args.first_block[segment + 1]) {
        segment++;
    }
    const sl_cuda_weight &weight = args.weights[segment];
    if (!sl_find_rows(args, weight.experts, sl_count(context, args.y.rows), (int32_t)blockIdx.x, &rows)) {
        return;
    }
    const unsigned char *matrix = weight.data + (uint64_t)rows.expert * weight.expert_bytes;
    const int32_t first_output = ((int32_t)blockIdx.y - args.first_block[segment]) * SHAPE::outputs;
    const matmul_work<SHAPE::rows> work = {args, weight, matrix, rows, first_output};
    const int32_t steps = (weight.columns + STEP - 1) / STEP;
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t my_row = warp / SHAPE::output_warps * (SHAPE::row_tiles * 16) + lane / 4;
    const int32_t my_output = warp % SHAPE::output_warps * (SHAPE::output_tiles * 8) + lane / 4;
    /* A lane's outputs are 8 rows of an even number of bytes apart: all start at the same place modulo 16.
     * Of FP8_128 it is the scale that does. */
    const uint32_t row_start =
        (uint32_t)(uint64_t)matrix + (uint32_t)(first_output + my_output) * (uint32_t)weight.row_bytes;
    const uint32_t base = sl_shared_address(memory);
    float sums[SHAPE::row_tiles][SHAPE::output_tiles][4] = {};
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        copy_step<TYPE, SHAPE>(work, i, base + i * stage_bytes<TYPE, SHAPE>());
    }
    int32_t now = 0, next = STAGES - 1;
    for (int32_t step = 0; step < steps; step++) {
        sl_copy_wait<STAGES - 2>();
        __syncthreads();
        /* Past the last step this copies nothing but zeros. */
        copy_step<TYPE, SHAPE>(work, step + STAGES - 1, base + next * stage_bytes<TYPE, SHAPE>());
        const int32_t offset = TYPE == SL_QTYPE_Q8_0      ? step * 2 * SL_Q8_0_BYTES
                               : TYPE == SL_QTYPE_Q4_0    ? step * 2 * SL_Q4_0_BYTES
                               : TYPE == SL_QTYPE_FP8_128 ? step / 2 * 4
                                                          : step / 4 * SL_Q6_K_BYTES;
        multiply_step<TYPE, SHAPE>(memory + now * stage_bytes<TYPE, SHAPE>(), step,
                                   (int32_t)((row_start + (uint32_t)offset) % 16), my_row, my_output, sums);
        now = now + 1 == STAGES ? 0 : now + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    sl_copy_wait_all();
#pragma unroll
    for (int m = 0; m < SHAPE::row_tiles; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t row = rows.y[my_row + 16 * m + 8 * half];
#pragma unroll
            for (int n = 0; n < SHAPE::output_tiles; n++) {
                const int32_t output = first_output + my_output - lane / 4 + 8 * n + lane % 4 * 2;
                if (row >= 0 && output < weight.rows) {
                    store_pair(work, row, output, sums[m][n][2 * half], sums[m][n][2 * half + 1]);
                }
            }
        }
    }
}

/* ---- launches ---- */

/* Shapes for rising numbers of rows per expert. The widest one has the least traffic per product; narrow ones
 * leave fewer processors idle when there are few tiles. */
typedef matmul_shape<2, 4, 8, 4, 1> wide_shape;   /* 256 x 128 */
typedef matmul_shape<1, 4, 8, 4, 2> middle_shape; /* 128 x 128 */
typedef matmul_shape<1, 4, 4, 4, 3> narrow_shape; /* 64 x 128 */

/* Row tiles of a bucket: each expert that is chosen may leave one tile partly empty. */
static inline int32_t row_tiles_of(const sl_cuda_op *op, int32_t height) {
    const int32_t rows = op->rows[op->out[0].rows];
    if (!op->in[2].data) {
        return (rows + height - 1) / height;
    }
    return rows / height + (op->weights[0].experts < rows ? op->weights[0].experts : rows);
}

template <int TYPE, typename SHAPE> static cudaError_t prepare_shape(int most_bytes) {
    const int bytes = STAGES * stage_bytes<TYPE, SHAPE>();
    return bytes > most_bytes ? cudaSuccess
                              : cudaFuncSetAttribute(matmul_kernel<TYPE, SHAPE>,
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <int TYPE> static cudaError_t prepare_type(int most_bytes) {
    cudaError_t code = prepare_shape<TYPE, wide_shape>(most_bytes);
    code = code ? code : prepare_shape<TYPE, middle_shape>(most_bytes);
    return code ? code : prepare_shape<TYPE, narrow_shape>(most_bytes);
}

/* Returns the blocks of outputs. */
static inline unsigned make_matmul_args(const sl_cuda_context *context, const sl_cuda_op *op, int32_t outputs,
                                        matmul_args *args) {
    const matmul_args none = {};
    *args = none;
    sl_linear_fill(context, op, args);
    sl_linear_fill_schedule(op, args);
    return (unsigned)sl_linear_cut(op, outputs, args->first_block);
}

/* Neighbours in the grid share the weights: what a wave of blocks reads is x and few of the outputs' weights.
 */
template <int TYPE, typename SHAPE>
static cudaError_t launch_shape(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    matmul_args args;
    const unsigned blocks = make_matmul_args(context, op, SHAPE::outputs, &args);
    const dim3 grid((unsigned)row_tiles_of(op, SHAPE::rows), blocks);
    matmul_kernel<TYPE, SHAPE>
        <<<grid, SHAPE::threads, STAGES * stage_bytes<TYPE, SHAPE>(), stream>>>(*context, args);
    return cudaGetLastError();
}

/* The tile height to take of `count`, by the bucket's rows (with experts: their mean load) and the share of
 * the processors' time that the tiles fill. speeds: of a full grid, against the highest. */
static inline int choose_height(const sl_cuda_op *op, const int32_t *heights, const float *speeds,
                                int32_t count) {
    const int32_t processors = op->facts->processors;
    int best = count - 1;
    int64_t outputs = 0;
    for (int32_t s = 0; s < op->weight_count; s++) {
        outputs += (op->weights[s].rows + 127) / 128;
    }
    const int32_t experts = op->in[2].data ? op->weights[0].experts : 1;
    const int32_t rows = (op->rows[op->out[0].rows] + experts - 1) / experts;
    float highest = 0;
    for (int i = 0; i < count; i++) {
        /* Loads of experts differ: their last tile is half full in the mean. */
        const float high = experts > 1 ? (float)rows / (float)heights[i] + 0.5f
                                       : (float)((rows + heights[i] - 1) / heights[i]);
        const int64_t tiles = (int64_t)(high * (float)(experts * outputs));
        const int64_t waves = (tiles + processors - 1) / processors;
        const float share =
            speeds[i] * (float)rows / (high * (float)heights[i]) * (float)tiles / (float)(waves * processors);
        if (share > highest) {
            highest = share;
            best = i;
        }
    }
    return best;
}

template <int TYPE>
static cudaError_t launch_type(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const int32_t heights[3] = {wide_shape::rows, middle_shape::rows, narrow_shape::rows};
    const float speeds[3] = {1.0f, 1.0f, 0.9f};
    const int first = STAGES * stage_bytes<TYPE, wide_shape>() <= op->facts->block_bytes ? 0 : 1;
    const int best = first + choose_height(op, heights + first, speeds + first, 3 - first);
    return best == 0   ? launch_shape<TYPE, wide_shape>(context, op, stream)
           : best == 1 ? launch_shape<TYPE, middle_shape>(context, op, stream)
                       : launch_shape<TYPE, narrow_shape>(context, op, stream);
}

template <int... TYPES> static cudaError_t prepare_mma(const sl_cuda_facts *facts) {
    cudaError_t code = cudaSuccess;
    ((code = code ? code : prepare_type<TYPES>(facts->block_bytes)), ...);
    return code;
}

#define BF16_TILE_MMA(ID, type_name, most_error)                                                             \
    {                                                                                                        \
        .kernel = BF16_KERNEL("linear/" #type_name "/cuda-bf16-tile-mma", "bf16/mma", most_error,            \
                              .declines = sl_bf16_tile_declines),                                            \
        .arrangement = SL_CUDA_BF16_TILE_MMA, .weight_type = SL_QTYPE_##ID,                                  \
        .least_rows = SL_CUDA_FEW_ROWS + 1, .run = launch_type<SL_QTYPE_##ID>                                \
    }

#endif
