/* Matrix products for many rows with Hopper's warpgroup instructions: y = x W^T (+ bias) (+ residual), with
 * or without experts.
 *
 * Class "bf16/wgmma": like "bf16/mma" (bf16_tile_mma.cuh), added by wgmma.m64nNk16 instead; the order of the
 * columns does not depend on N. With PAIRS weights are decoded as in class "bf16/k16" (k16.h): in that class,
 * and of the types that bf16_tile_takes_pairs() names.
 *
 * A tile is 256 outputs by up to 160 rows. As many blocks as there are processors go through all tiles, each
 * with two consumer warpgroups of 128 outputs and a producer warpgroup. Two producer warps bring weights, as
 * the file has them, in chunks of bf16_tile_layout::columns columns; the other two bring 64 columns of x at a
 * time, row by row because an expert's rows are scattered. (Bulk copies of a row each lose: a warp issues one
 * in 60 cycles, as their operands are uniform registers.) Both rings go on into the next tile while consumers
 * still write this one's results. The weights are the products' first operand, from registers: a consumer
 * decodes 64 outputs while the products of its other 64 run. x is the second, read by the tensor cores from
 * shared memory in the layout "128-byte swizzle": row r's 16-byte piece c lies at 128 r + 16 (c ^ r % 8). The
 * registers that products read are written again only after those were waited for.
 *
 * Why 256 outputs: a tile of O outputs takes x from L2 at 4096 / O bytes per cycle of a processor's tensor
 * cores; L2 gives some 24. */
#ifndef SL_BACKEND_CUDA_LINEAR_BF16_BF16_TILE_WGMMA_CUH
#define SL_BACKEND_CUDA_LINEAR_BF16_BF16_TILE_WGMMA_CUH

#include "backend/cuda/common/quad.cuh"
#include "backend/cuda/linear/bf16/bf16_tile_wgmma_copies.cuh"
#include "backend/cuda/types/iq4.cuh"
#include "backend/cuda/types/q4_1.cuh"
#include "backend/cuda/types/q5.cuh"

#if SL_HAS_WGMMA

/* ---- the consumers ---- */

static __device__ __forceinline__ uint32_t two_halves(const unsigned char *first,
                                                      const unsigned char *second) {
    return (uint32_t) * (const uint16_t *)first | (uint32_t) * (const uint16_t *)second << 16;
}

/* Types of which types/ describes groups of 32 columns with nibbles. */
template <int TYPE> struct bf16_tile_kind {
    enum {
        HAS_NIBBLES = TYPE == SL_QTYPE_Q4_1 || TYPE == SL_QTYPE_Q5_0 || TYPE == SL_QTYPE_Q5_1 ||
                      TYPE == SL_QTYPE_IQ4_NL || TYPE == SL_QTYPE_IQ4_XS
    };
};

/* Of sixteen bytes at `at` a lane's two of the first eight and its two of the others. */
struct bf16_tile_words {
    const unsigned char *row;
    int32_t part;

    __device__ __forceinline__ uint32_t word(int at, int) const {
        return two_halves(row + at + 2 * part, row + at + 2 * part + 8);
    }
};

/* Bits 0, 1, 8 and 9, each to bit 4 of a byte. */
static __device__ __forceinline__ uint32_t bf16_tile_fifths(uint32_t bits) {
    const uint32_t pairs = (bits & 0x3u) | (bits & 0x300u) << 8;
    return (pairs << 4 & 0x00100010u) | (pairs << 11 & 0x10001000u);
}

/* A row's scales of a chunk, by one lane: pairs (scale, constant) as decode_bytes takes them of eight groups
 * of 32 columns, or 16 scales. The four 16-byte pieces, one per step, change places with the row, so that
 * eight rows' lie in different banks. */
template <int TYPE>
static __device__ __forceinline__ void bf16_tile_scales(const unsigned char *row, float4 *to, int32_t swap) {
    if constexpr (TYPE == SL_QTYPE_F16 || TYPE == SL_QTYPE_BF16) {
        return;
    } else if constexpr (TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K) {
        const uint4 header = *(const uint4 *)row;
#pragma unroll
        for (int step = 0; step < 4; step++) {
            float4 pair;
            q4_k_scales(header, step, 0, &pair.x, &pair.y);
            q4_k_scales(header, step, 1, &pair.z, &pair.w);
            if (TYPE == SL_QTYPE_Q4_K) { /* its quants are taken 16 times as large */
                pair.w = fmaf(30720.0f, pair.z, pair.w);
                pair.z *= 0.0625f;
            }
            to[step ^ swap] = pair;
        }
    } else if constexpr (TYPE == SL_QTYPE_Q6_K) {
        const float all = sl_half_of(*(const uint16_t *)(row + 208));
#pragma unroll
        for (int step = 0; step < 4; step++) {
            const int8_t *factors = (const int8_t *)row + 192 + 4 * step;
            to[step ^ swap] = make_float4(all * (float)factors[0], all * (float)factors[1],
                                          all * (float)factors[2], all * (float)factors[3]);
        }
    } else if constexpr (bf16_tile_kind<TYPE>::HAS_NIBBLES) {
        typedef sl_block32<TYPE> block;
        enum { OFFSET = block::TABLE ? 128 : (int)block::OFFSET };
        const sl_words_anywhere words = {row};
#pragma unroll
        for (int step = 0; step < 4; step++) {
            const float first = block::scale(words, 2 * step), second = block::scale(words, 2 * step + 1);
            to[step ^ swap] =
                make_float4(first, fmaf(-32768.0f - OFFSET, first, block::min(words, 2 * step)), second,
                            fmaf(-32768.0f - OFFSET, second, block::min(words, 2 * step + 1)));
        }
    } else {
        enum { BYTES = TYPE == SL_QTYPE_Q8_0 ? SL_Q8_0_BYTES : SL_Q4_0_BYTES };
        const float offset = TYPE == SL_QTYPE_Q8_0 ? -32896.0f : -32776.0f;
#pragma unroll
        for (int step = 0; step < 4; step++) {
            const float first = sl_half_of(*(const uint16_t *)(row + 2 * step * BYTES));
            const float second = sl_half_of(*(const uint16_t *)(row + (2 * step + 1) * BYTES));
            to[step ^ swap] = make_float4(first, offset * first, second, offset * second);
        }
    }
}

/* A lane's quants of 64 columns of one row, undecoded: columns 2 part, 2 part + 1, and these plus 8, 16,
 * .. 56. */
typedef struct bf16_tile_quants {
    uint32_t words[6];
    float4 scales;
} bf16_tile_quants;

template <int TYPE>
static __device__ __forceinline__ void bf16_tile_load(const unsigned char *row, int32_t step, int32_t part,
                                                      bf16_tile_quants *raw) {
    if constexpr (TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K) {
        const unsigned char *quants = row + (TYPE == SL_QTYPE_Q4_K ? 16 : 48) + 32 * step + 2 * part;
        const unsigned char *fifth = row + 16 + 2 * part;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            raw->words[i] = two_halves(quants + 16 * i, quants + 16 * i + 8);
            raw->words[2 + i] =
                TYPE == SL_QTYPE_Q5_K ? two_halves(fifth + 16 * i, fifth + 16 * i + 8) >> 2 * step : 0;
        }
    } else if constexpr (TYPE == SL_QTYPE_Q4_0) {
#pragma unroll
        for (int group = 0; group < 2; group++) {
            const unsigned char *quants = row + (2 * step + group) * SL_Q4_0_BYTES + 2 + 2 * part;
            raw->words[group] = two_halves(quants, quants + 8);
        }
    } else if constexpr (TYPE == SL_QTYPE_Q8_0) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const unsigned char *quants =
                row + (2 * step + k / 2) * SL_Q8_0_BYTES + 2 + 2 * part + k % 2 * 16;
            raw->words[k] = two_halves(quants, quants + 8);
        }
    } else if constexpr (bf16_tile_kind<TYPE>::HAS_NIBBLES) {
        typedef sl_block32<TYPE> block;
#pragma unroll
        for (int group = 0; group < 2; group++) {
            raw->words[group] = block::nibbles(bf16_tile_words{row, part}, 2 * step + group, 0);
            if constexpr (block::FIFTHS) {
                raw->words[2 + group] = block::fifths(sl_words_anywhere{row}, 2 * step + group) >> 2 * part;
            }
        }
    } else if constexpr (TYPE == SL_QTYPE_Q6_K) {
        /* Step 2 h + o has the columns 64 o .. of half h, in blocks.h r = 2 o and 2 o + 1. */
        const unsigned char *low = row + 64 * (step / 2) + 2 * part;
        const unsigned char *high = row + 128 + 32 * (step / 2) + 2 * part;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            raw->words[k] = two_halves(low + 16 * k, low + 16 * k + 8) >> 4 * (step % 2);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            raw->words[4 + i] = two_halves(high + 16 * i, high + 16 * i + 8) >> 4 * (step % 2);
        }
    }
}

/* Columns 16 k .. of them, as the instruction wants them: two pairs. */
template <int TYPE>
static __device__ __forceinline__ void bf16_tile_decode(const bf16_tile_quants &raw, int k, uint32_t out[2]) {
    const uint32_t *words = raw.words;
    const float scale = k / 2 ? raw.scales.z : raw.scales.x, constant = k / 2 ? raw.scales.w : raw.scales.y;
    if constexpr (TYPE == SL_QTYPE_Q4_K) {
        decode_bytes(words[k % 2] & (k / 2 ? 0xf0f0f0f0u : 0x0f0f0f0fu), scale, constant, out);
    } else if constexpr (TYPE == SL_QTYPE_Q5_K) {
        const uint32_t low = (k / 2 ? words[k % 2] >> 4 : words[k % 2]) & 0x0f0f0f0fu;
        const uint32_t fifth =
            k / 2 ? (words[2 + k % 2] & 0x02020202u) << 3 : (words[2 + k % 2] & 0x01010101u) << 4;
        decode_bytes(low | fifth, scale, constant, out);
    } else if constexpr (TYPE == SL_QTYPE_Q4_0) {
        decode_bytes((k % 2 ? words[k / 2] >> 4 : words[k / 2]) & 0x0f0f0f0fu, scale, constant, out);
    } else if constexpr (TYPE == SL_QTYPE_Q8_0) {
        decode_bytes(words[k] ^ 0x80808080u, scale, constant, out);
    } else if constexpr (bf16_tile_kind<TYPE>::HAS_NIBBLES) {
        typedef sl_block32<TYPE> block;
        if constexpr (block::TABLE) {
            int32_t low, high;
            sl_look_up(block::VALUES_0, block::VALUES_1, words[k / 2], &low, &high);
            decode_bytes((uint32_t)(k % 2 ? high : low) ^ 0x80808080u, scale, constant, out);
        } else {
            const uint32_t low = (k % 2 ? words[k / 2] >> 4 : words[k / 2]) & 0x0f0f0f0fu;
            const uint32_t fifth = block::FIFTHS ? bf16_tile_fifths(words[2 + k / 2] >> 16 * (k % 2)) : 0;
            decode_bytes(low | fifth, scale, constant, out);
        }
    } else {
        const float each = k == 0   ? raw.scales.x
                           : k == 1 ? raw.scales.y
                           : k == 2 ? raw.scales.z
                                    : raw.scales.w;
        const uint32_t high = (words[4 + k % 2] >> 2 * (k / 2) & 0x03030303u) << 4;
        decode_bytes((words[k] & 0x0f0f0f0fu) | high, each, -32800.0f * each, out);
    }
}

/* How far the bytes of weight row `row` of the tile start behind the place they were copied to. */
template <int TYPE>
static __device__ __forceinline__ uint32_t bf16_tile_shift(const bf16_tile_work &work,
                                                           const bf16_tile_tile &tile, int32_t chunk,
                                                           int32_t row) {
    if constexpr (bf16_tile_layout<TYPE>::before > 0) {
        const bf16_tile_part part = bf16_tile_part_of(work, tile, row / 64);
        return ((uint32_t)(uint64_t)part.weight.data +
                (uint32_t)tile.expert * (uint32_t)part.weight.expert_bytes +
                (uint32_t)(part.output + row % 64) * (uint32_t)part.weight.row_bytes +
                (uint32_t)(chunk * bf16_tile_layout<TYPE>::bytes)) %
               16;
    }
    return 0;
}

/* Which 64 columns: step of the chunk, and descriptor of x's. */
typedef struct bf16_tile_columns {
    int32_t step, lane;
    uint64_t x;
    uint32_t full, parity; /* of the barrier to wait for before x is read; 0: none */
} bf16_tile_columns;

/* Class "bf16/k16": where a row's scales are, behind `scales`: as skinny has them, within the 8192 bytes of
 * the row's warpgroup, which stores results there while the other may still multiply. */
template <int TYPE> static __device__ __forceinline__ uint32_t bf16_tile_pair_scales(int32_t row) {
    return (uint32_t)(row / 128 * 8192 + row % 128 / 16 * 16 * skinny_layout<TYPE>::scales + row % 16 * 16);
}

/* The same as bf16_tile_multiply in class "bf16/k16": all 64 columns are decoded before they are multiplied.
 */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void
bf16_tile_multiply_pairs(const bf16_tile_work &work, const unsigned char *weights, int32_t row,
                         const bf16_tile_columns &columns, uint32_t (&a)[4][4], float (&sums)[ROWS / 2]) {
    enum { STRIDE = bf16_tile_layout<TYPE>::stride };
    skinny_view view;
    view.row[0] = (uint32_t)__cvta_generic_to_shared(weights) + (uint32_t)(row * STRIDE);
    view.row[1] = view.row[0] + 8 * STRIDE;
    view.matrix = 0;
    view.scales = work.base + bf16_tile_memory<TYPE>::scales + bf16_tile_pair_scales<TYPE>(row);
    view.pair = (uint32_t)columns.lane % 4 * 2;
    view.select = view.pair * 0x1111 + 0x1100;
    view.table = work.base + bf16_tile_memory<TYPE>::table +
                 (sl_codebook<TYPE>::WIDTH == 4 ? view.pair % 4 : view.pair);
    skinny_decoder<TYPE> decoder;
    if constexpr (TYPE == SL_QTYPE_FP8_128) {
        decoder.load_in_order(view, columns.step);
    } else {
        decoder.load(view, columns.step);
    }
    decoder.run(view, columns.step, a);
    if (columns.full) {
        sl_barrier_wait(columns.full, columns.parity);
        sl_fence_shared();
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        asm volatile("" : "+r"(a[k][0]), "+r"(a[k][1]), "+r"(a[k][2]), "+r"(a[k][3])); /* now, not later */
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        wgmma<ROWS>(sums, a[k], columns.x + (uint64_t)(2 * k));
    }
    wgmma_commit();
}

/* sums += 64 outputs' weights times x, 64 columns: `row` and `row` + 8 of the tile are the lane's outputs. A
 * product is issued as soon as its 16 columns are decoded: a warp cannot issue the next before it has begun,
 * and decodes meanwhile. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void
bf16_tile_multiply(const bf16_tile_work &work, const unsigned char *weights, int32_t row,
                   const bf16_tile_columns &columns, uint32_t (&a)[4][4], float (&sums)[ROWS / 2]) {
    typedef bf16_tile_layout<TYPE> layout;
    const int32_t step = columns.step, lane = columns.lane;
    if constexpr (TYPE == SL_QTYPE_F16 || TYPE == SL_QTYPE_BF16) {
        /* Lanes 0..15 point at the 16 rows' first 8 columns, the others at the next 8. */
        const int32_t at = row - lane / 4 + lane % 16;
        const uint32_t from =
            sl_shared_address(weights) + (uint32_t)(at * layout::stride + step * STEP * 2 + lane / 16 * 16);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            sl_load_matrices(from + 32 * k, a[k]);
#pragma unroll
            for (int i = 0; i < 4 && TYPE == SL_QTYPE_F16; i++) {
                a[k][i] = sl_bf16_pair(sl_half_of(a[k][i]), sl_half_of(a[k][i] >> 16));
            }
        }
    }
    bf16_tile_quants raw[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int32_t at = row + 8 * half;
        raw[half].scales = *(const float4 *)(work.memory + bf16_tile_memory<TYPE>::scales + at * 64 +
                                             (step ^ at / 2 % 4) * 16);
        bf16_tile_load<TYPE>(weights + at * layout::stride, step, lane % 4, &raw[half]);
    }
    if (columns.full) {
        sl_barrier_wait(columns.full, columns.parity);
        sl_fence_shared();
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if constexpr (TYPE != SL_QTYPE_F16 && TYPE != SL_QTYPE_BF16) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t pairs[2];
                bf16_tile_decode<TYPE>(raw[half], k, pairs);
                a[k][half] = pairs[0];
                a[k][2 + half] = pairs[1];
            }
            asm volatile(""
                         : "+r"(a[k][0]), "+r"(a[k][1]), "+r"(a[k][2]), "+r"(a[k][3])); /* now, not later */
        }
        wgmma_fence();
        wgmma<ROWS>(sums, a[k], columns.x + (uint64_t)(2 * k));
    }
    wgmma_commit();
}

/* One or the other. */
template <int TYPE, int ROWS, bool PAIRS>
static __device__ __forceinline__ void bf16_tile_add(const bf16_tile_work &work, const unsigned char *weights,
                                                     int32_t row, const bf16_tile_columns &columns,
                                                     uint32_t (&a)[4][4], float (&sums)[ROWS / 2]) {
    if constexpr (PAIRS) {
        bf16_tile_multiply_pairs<TYPE, ROWS>(work, weights, row, columns, a, sums);
    } else {
        bf16_tile_multiply<TYPE, ROWS>(work, weights, row, columns, a, sums);
    }
}

template <int TYPE> struct bf16_tile_places {
    sl_ring_place<bf16_tile_layout<TYPE>::steps> x;
    sl_ring_place<bf16_tile_layout<TYPE>::chunks> weights;
};

/* ---- results ---- */

/* What one consumer warpgroup stores of a tile. Sums lie by output, eight neighbours in lanes four apart; so
 * that rows are written in long pieces, they pass through shared memory (where scales are, which nobody needs
 * then), 16 rows at a time as [row][64 outputs] for both parts. Outputs change places with the row so that a
 * warp's stores lie in different banks. Only the stores from registers are unrolled: as code runs once per
 * tile, fetching it can take longer than running it. */
typedef struct bf16_tile_results {
    const bf16_tile_work &work;
    const bf16_tile_tile &tile;
    float *buffer;       /* [2][16][64] */
    const int32_t *rows; /* of y, [tile.count] */
    int32_t thread;      /* 0..127 */
    int32_t group;       /* which warpgroup */
} bf16_tile_results;

enum { TILE_BATCH = 16 }; /* rows */

static __device__ __forceinline__ void bf16_tile_meet(const bf16_tile_results &results) {
    sl_meet(results.group + 1, 128);
}

static __device__ __forceinline__ const float *bf16_tile_result(const bf16_tile_results &results,
                                                                int32_t part, int32_t row, int32_t output) {
    return &results.buffer[part * 1024 + row * 64 + (output ^ row / 2 % 4 * 8)];
}

/* Rows [first, first + 16) of 128 outputs, a warp to a row, where outputs do not lie in fours or have a bias.
 */
static __device__ __forceinline__ void bf16_tile_write_singly(const bf16_tile_results &results,
                                                              int32_t first) {
    const matmul_args &args = results.work.args;
    const sl_cuda_weight &weight = *results.tile.weight;
#pragma unroll 1
    for (int32_t i = results.thread; i < TILE_BATCH * 128; i += 128) {
        const int32_t n = i / 128, at = i % 128;
        const int32_t output = results.tile.first_output + 128 * results.group + at;
        if (first + n < results.tile.count && output < weight.rows) {
            const int32_t row = results.rows[first + n];
            float value = *bf16_tile_result(results, at / 64, n, at % 64);
            value = weight.bias ? value + weight.bias[(int64_t)results.tile.expert * weight.rows + output]
                                : value;
            value = args.residual.data ? value + sl_f32(args.residual, row)[weight.column + output] : value;
            sl_f32(args.y, row)[weight.column + output] = value;
        }
    }
}

/* The same in fours, where they do. */
static __device__ __forceinline__ void bf16_tile_write(const bf16_tile_results &results, int32_t first) {
    const matmul_args &args = results.work.args;
    const sl_cuda_weight &weight = *results.tile.weight;
    const int32_t quad = results.thread % SL_WARP * 4, mine = results.thread / SL_WARP;
    const int32_t output = results.tile.first_output + 128 * results.group + quad;
    const int32_t column = weight.column + output;
    const uint64_t y = (uint64_t)(sl_f32(args.y, 0) + column);
    const uint64_t residual = args.residual.data ? (uint64_t)(sl_f32(args.residual, 0) + column) : 0;
    const uint64_t y_bytes = args.y.row_bytes, residual_bytes = residual ? args.residual.row_bytes : 0;
    if (weight.bias || weight.rows % 4 != 0 || (y | residual | y_bytes | residual_bytes) % 16 != 0) {
        bf16_tile_write_singly(results, first);
        return;
    }
    uint32_t rows[TILE_BATCH / 4];
    float4 sums[TILE_BATCH / 4];
#pragma unroll
    for (int i = 0; i < TILE_BATCH / 4; i++) {
        rows[i] = (uint32_t)results.rows[min(first + mine + 4 * i, results.tile.count - 1)];
        sums[i] = *(const float4 *)bf16_tile_result(results, quad / 64, mine + 4 * i, quad % 64);
    }
#pragma unroll
    for (int i = 0; i < TILE_BATCH / 4; i++) {
        if (first + mine + 4 * i < results.tile.count && output < weight.rows) {
            if (residual) {
                const float4 more = *(const float4 *)(residual + rows[i] * residual_bytes);
                sums[i] = make_float4(sums[i].x + more.x, sums[i].y + more.y, sums[i].z + more.z,
                                      sums[i].w + more.w);
            }
            *(float4 *)(y + rows[i] * y_bytes) = sums[i];
        }
    }
}

/* f(gate) * value of rows [first, first + 16) and 64 outputs, of which a thread has eight of one row. The
 * last eight outputs' thread writes the zeros behind them too. */
template <int TYPE>
static __device__ __forceinline__ void bf16_tile_write_gated(const bf16_tile_results &results,
                                                             int32_t first) {
    const sl_cuda_weight *weights = results.work.args.weights;
    const sl_cuda_operand &gated = results.work.all.gated;
    const int32_t n = results.thread / 8, eight = results.thread % 8 * 8;
    const int32_t output = results.tile.first_output + 64 * results.group + eight;
    const int32_t left = weights[0].rows - output;
    if (first + n >= results.tile.count || left <= 0) {
        return;
    }
    const int64_t bias = (int64_t)results.tile.expert * weights[0].rows + output;
    uint16_t *to = (uint16_t *)(gated.data + (uint64_t)(uint32_t)results.rows[first + n] * gated.row_bytes) +
                   gated.column + output;
    for (int quad = 0; gated.padding > 0 && left <= 8 && quad < SL_Q8_32_GROUP / SL_QUAD; quad++) {
        sl_pad_row(gated, results.rows[first + n], quad);
    }
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float gate = *bf16_tile_result(results, 0, n, eight + i),
              value = *bf16_tile_result(results, 1, n, eight + i);
        if (weights[0].bias && i < left) {
            gate += weights[0].bias[bias + i];
            value += weights[1].bias[bias + i];
        }
        const uint32_t bits =
            sl_f32_to_bf16(sl_gate<SL_CUDA_TAKES_OAI(TYPE)>(results.work.all.gating, gate, value));
        words[i / 2] = i % 2 ? words[i / 2] | bits << 16 : bits;
    }
    if (left >= 8 && (uint64_t)to % 16 == 0) {
        *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (i < left) {
            to[i] = (uint16_t)(words[i / 2] >> 16 * (i % 2));
        }
    }
}

/* scale: what sums are multiplied with. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void bf16_tile_store(const bf16_tile_results &results, float scale,
                                                       const float (&sums)[2][ROWS / 2]) {
    const int32_t lane = results.thread % SL_WARP, at = results.thread / SL_WARP * 16 + lane / 4;
    float *to = results.buffer + lane % 4 * 2 * 64;
#pragma unroll 1
    for (int32_t batch = 0; batch * TILE_BATCH < results.tile.count; batch++) {
        bf16_tile_meet(results);
#pragma unroll
        for (int which = 0; which < ROWS / TILE_BATCH; which++) {
            if (which == batch) {
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    to[i / 8 * 1024 + (i % 8 / 4 * 8 + i % 2) * 64 + ((at + i % 4 / 2 * 8) ^ lane % 4 * 8)] =
                        sums[i / 8][which * 8 + i % 8] * scale;
                }
            }
        }
        bf16_tile_meet(results);
        if (results.work.all.gated.data) {
            bf16_tile_write_gated<TYPE>(results, batch * TILE_BATCH);
        } else {
            bf16_tile_write(results, batch * TILE_BATCH);
        }
    }
    bf16_tile_meet(results); /* before the next tile's scales */
}

/* A row's scales of a chunk as skinny has them, by one lane. */
template <int TYPE>
static __device__ __forceinline__ void bf16_tile_make_pairs(const unsigned char *row, int32_t chunk,
                                                            uint4 *to) {
    if constexpr (TYPE == SL_QTYPE_FP8_128) {
        const float *scales =
            (const float *)(row + bf16_tile_layout<TYPE>::bytes + bf16_tile_scales_at(chunk));
        skinny_scale_of_half(scales[0], 0, to);
        skinny_scale_of_half(scales[1], 1, to);
    } else {
        skinny_scales<TYPE>(row, 0, to);
        skinny_scales<TYPE>(row, 1, to);
    }
}

/* A consumer warpgroup's half of a tile of ROWS rows or fewer. */
template <int TYPE, int ROWS, bool PAIRS>
static __device__ __forceinline__ void
bf16_tile_consume(const bf16_tile_work &work, const bf16_tile_tile &tile, bf16_tile_places<TYPE> &places) {
    typedef bf16_tile_layout<TYPE> layout;
    int32_t thread = (int32_t)threadIdx.x;
    asm volatile("" : "+r"(thread)); /* nothing is kept for the other heights: registers are short */
    const int32_t lane = thread % SL_WARP, warp = thread / SL_WARP;
    /* Outputs in the tile: the warp's first of each 64, the lane's of both. */
    const int32_t first = warp / 4 * 128 + warp % 4 * 16, mine = first + lane / 4;
    /* Rows of 128 bytes, groups of 8 rows 1024 bytes apart, 128-byte swizzle; see PTX, "matrix descriptor".
     */
    const uint64_t matrix = (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16;
    float sums[2][ROWS / 2] = {};
    uint32_t a[2][4][4] = {};
    uint32_t before = 0;
    const int32_t chunks = tile.weight->columns / layout::columns;
    for (int32_t chunk = 0; chunk < chunks; chunk++) {
        const unsigned char *weights = work.memory + bf16_tile_memory<TYPE>::weights +
                                       places.weights.at * (TILE_OUTPUTS * layout::stride);
        sl_barrier_wait(bf16_tile_full<TYPE>(work.base, places.weights.at), places.weights.parity);
        const int32_t at = first + lane / 16 * 64 + lane % 16;
        const unsigned char *headed =
            weights + at * layout::stride + bf16_tile_shift<TYPE>(work, tile, chunk, at);
        if constexpr (PAIRS) {
            uint4 *to =
                (uint4 *)(work.memory + bf16_tile_memory<TYPE>::scales + bf16_tile_pair_scales<TYPE>(at));
            bf16_tile_make_pairs<TYPE>(headed, chunk, to);
        } else {
            bf16_tile_scales<TYPE>(headed, (float4 *)(work.memory + bf16_tile_memory<TYPE>::scales + at * 64),
                                   at / 2 % 4);
        }
        /* Eight rows on it is the same. */
        const uint32_t shifts[2] = {bf16_tile_shift<TYPE>(work, tile, chunk, mine),
                                    bf16_tile_shift<TYPE>(work, tile, chunk, mine + 64)};
        __syncwarp();
#pragma unroll 1
        for (int32_t step = 0; step < layout::columns / STEP; step++) {
            const uint64_t x =
                matrix |
                (uint64_t)((work.base + bf16_tile_memory<TYPE>::x + places.x.at * TILE_X_BYTES) >> 4 &
                           0x3fffu);
            wgmma_wait<1>(a[0]);
            const bf16_tile_columns first_time = {
                step, lane, x, bf16_tile_x_full<TYPE>(work.base, places.x.at), places.x.parity};
            bf16_tile_add<TYPE, ROWS, PAIRS>(work, weights + shifts[0], mine, first_time, a[0], sums[0]);
            wgmma_wait<1>(a[1]);
            if (before && lane < SL_ARRIVING_LANES) {
                sl_barrier_arrive(before); /* the step before is done with x */
            }
            before = bf16_tile_x_empty<TYPE>(work.base, places.x.at);
            const bf16_tile_columns second_time = {step, lane, x, 0, 0};
            bf16_tile_add<TYPE, ROWS, PAIRS>(work, weights + shifts[1], mine + 64, second_time, a[1],
                                             sums[1]);
            places.x.next();
        }
        __syncwarp();
        if (lane < SL_ARRIVING_LANES) {
            sl_barrier_arrive(bf16_tile_empty<TYPE>(work.base, places.weights.at));
        }
        places.weights.next();
    }
    wgmma_wait<0>(a[0]);
    wgmma_wait<0>(a[1]);
    if (lane < SL_ARRIVING_LANES) {
        sl_barrier_arrive(before);
    }
    int32_t *rows = (int32_t *)(work.memory + bf16_tile_memory<TYPE>::rows) + warp * TILE_ROWS;
    for (int32_t i = lane; i < tile.count; i += SL_WARP) {
        rows[i] = work.args.list ? work.args.list[tile.first + i] : tile.first + i;
    }
    __syncwarp();
    bf16_tile_store<TYPE, ROWS>(
        {work, tile, (float *)(work.memory + bf16_tile_memory<TYPE>::scales + warp / 4 * 8192), rows,
         thread % 128, warp / 4},
        __uint_as_float((127u + (PAIRS ? skinny_layout<TYPE>::bits : 0)) << 23), sums);
}

/* All tiles from `index` on that have this height. */
template <int TYPE, int ROWS, bool PAIRS>
static __device__ __forceinline__ void
bf16_tile_consume_class(const bf16_tile_work &work, bf16_tile_places<TYPE> &places, int32_t &index) {
    for (; index < work.schedule.class_end[(TILE_ROWS - ROWS) / 16]; index += (int32_t)gridDim.x) {
        bf16_tile_consume<TYPE, ROWS, PAIRS>(work, bf16_tile_find(work, index), places);
    }
}

template <int TYPE, bool PAIRS>
static __device__ __forceinline__ void bf16_tile_consume_all(const bf16_tile_work &work) {
    bf16_tile_places<TYPE> places;
    int32_t index = (int32_t)blockIdx.x;
    bf16_tile_consume_class<TYPE, 160, PAIRS>(work, places, index);
    bf16_tile_consume_class<TYPE, 144, PAIRS>(work, places, index);
    bf16_tile_consume_class<TYPE, 128, PAIRS>(work, places, index);
    bf16_tile_consume_class<TYPE, 112, PAIRS>(work, places, index);
    bf16_tile_consume_class<TYPE, 96, PAIRS>(work, places, index);
    bf16_tile_consume_class<TYPE, 80, PAIRS>(work, places, index);
    bf16_tile_consume_class<TYPE, 64, PAIRS>(work, places, index);
    bf16_tile_consume_class<TYPE, 48, PAIRS>(work, places, index);
    bf16_tile_consume_class<TYPE, 32, PAIRS>(work, places, index);
}

#endif

/* PAIRS: decoded as in class "bf16/k16". */
template <int TYPE, bool PAIRS>
static __global__ void __launch_bounds__(TILE_THREADS, 1)
    bf16_tile_kernel(const __grid_constant__ sl_cuda_context context,
                     const __grid_constant__ bf16_tile_args all) {
#if SL_HAS_WGMMA
    typedef bf16_tile_layout<TYPE> layout;
    const matmul_args &args = all.product;
    extern __shared__ __align__(128) unsigned char start[];
    const uint32_t window = sl_shared_address(start), base = (window + 1023) / 1024 * 1024;
    unsigned char *const memory = start + (base - window);
    sl_codebook<TYPE>::fill(memory + bf16_tile_memory<TYPE>::table, (int32_t)threadIdx.x, TILE_THREADS);
    sl_wait_for_inputs();
    bf16_tile_schedule *schedule = (bf16_tile_schedule *)(memory + bf16_tile_memory<TYPE>::schedule);
    const int32_t blocks = args.first_block[SL_LINEAR_SEGMENTS];
    if (args.list) {
        bf16_tile_plan_experts(args.offsets, args.weights[0].experts, blocks, schedule);
    } else {
        bf16_tile_plan_rows(sl_count(context, args.y.rows), blocks, schedule);
    }
    const bf16_tile_work work = {all, args, *schedule, blocks, base, memory};
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < layout::steps; i++) {
            sl_barrier_init(bf16_tile_x_full<TYPE>(base, i), TILE_COPIERS);
            sl_barrier_init(bf16_tile_x_empty<TYPE>(base, i), TILE_CONSUMERS / SL_WARP * SL_ARRIVING_LANES);
        }
        for (uint32_t i = 0; i < layout::chunks; i++) {
            sl_barrier_init(bf16_tile_full<TYPE>(base, i), TILE_COPIERS);
            sl_barrier_init(bf16_tile_empty<TYPE>(base, i), TILE_CONSUMERS / SL_WARP * SL_ARRIVING_LANES);
        }
        sl_barriers_ready();
    }
    __syncthreads();
    if (threadIdx.x >= TILE_CONSUMERS) {
        sl_give_registers<56>();
        if (threadIdx.x < TILE_CONSUMERS + TILE_COPIERS) {
            bf16_tile_bring_weights<TYPE>(work);
        } else {
            bf16_tile_bring_x<TYPE>(work);
        }
        sl_copy_wait_all();
    } else {
        sl_take_registers<224>();
        bf16_tile_consume_all<TYPE, PAIRS>(work);
    }
#endif
}

/* ---- launches ---- */

/* Floats are the same in both classes. */
template <int TYPE> static constexpr bool bf16_tile_has_pairs() {
    return skinny_layout<TYPE>::bits > 0;
}

template <int TYPE> static cudaError_t bf16_tile_prepare_type() {
    const int bytes = bf16_tile_memory<TYPE>::bytes;
    const cudaError_t code = sl_allow_shared(bf16_tile_kernel<TYPE, bf16_tile_takes_pairs<TYPE>()>, bytes);
    return code ? code : sl_allow_shared(bf16_tile_kernel<TYPE, bf16_tile_has_pairs<TYPE>()>, bytes);
}

template <int TYPE>
static cudaError_t bf16_tile_launch(const sl_cuda_context *context, const sl_cuda_op *op,
                                    const bf16_tile_args &args, cudaStream_t stream) {
    const int32_t processors = op->facts->processors;
    /* No more blocks than tiles: of 32 rows, or for each expert that may be chosen one more. */
    const int64_t tiles = (int64_t)row_tiles_of(op, 32) * args.product.first_block[SL_LINEAR_SEGMENTS];
    const sl_launch_shape shape = {dim3((unsigned)(tiles < processors ? tiles : processors)), TILE_THREADS,
                                   bf16_tile_memory<TYPE>::bytes};
    return sl_k16_is(op) ? sl_launch(context, stream, shape,
                                     bf16_tile_kernel<TYPE, bf16_tile_has_pairs<TYPE>()>, *context, args)
                         : sl_launch(context, stream, shape,
                                     bf16_tile_kernel<TYPE, bf16_tile_takes_pairs<TYPE>()>, *context, args);
}

template <int TYPE>
static cudaError_t bf16_tile_launch_type(const sl_cuda_context *context, const sl_cuda_op *op,
                                         cudaStream_t stream) {
    bf16_tile_args args = {};
    make_matmul_args(context, op, TILE_OUTPUTS, &args.product);
    return bf16_tile_launch<TYPE>(context, op, args, stream);
}

/* LINEAR, ACTIVATE, QUANTIZE: op[0] .. op[2]. */
template <int TYPE>
static cudaError_t bf16_tile_launch_gated(const sl_cuda_context *context, const sl_cuda_op *op,
                                          cudaStream_t stream) {
    bf16_tile_args args = {};
    matmul_args *product = &args.product;
    make_matmul_args(context, op, TILE_OUTPUTS / 2, product);
    const int32_t width = op[1].op->u.activate.width;
    if (product->segments == 1) { /* gates and values are one weight */
        product->weights[1] = product->weights[0];
        product->weights[1].data += (uint64_t)width * product->weights[0].row_bytes;
        product->weights[0].rows = product->weights[1].rows = width;
    }
    product->segments = 1;
    product->first_block[1] = product->first_block[SL_LINEAR_SEGMENTS] =
        (width + TILE_OUTPUTS / 2 - 1) / (TILE_OUTPUTS / 2);
    args.gated = op[2].out[0];
    args.gating = sl_gating_of(op[1].op);
    return bf16_tile_launch<TYPE>(context, op, args, stream);
}

template <int... TYPES> static cudaError_t prepare_wgmma(const sl_cuda_facts *facts) {
    cudaError_t code = cudaSuccess;
    if (facts->has_wgmma) {
        ((code = code ? code : bf16_tile_prepare_type<TYPES>()), ...);
    }
    return code;
}

#define TILE_RUNS(ID, rows)                                                                                  \
    .weight_type = SL_QTYPE_##ID, .least_rows = rows, .run = bf16_tile_launch_type<SL_QTYPE_##ID>,           \
    .gated = bf16_tile_launch_gated<SL_QTYPE_##ID>
/* From so many rows on. */
#define TILE_WGMMA_FROM(rows, ID, type_name, most_error)                                                     \
    {                                                                                                        \
        .kernel = BF16_KERNEL("linear/" #type_name "/cuda-bf16-tile-wgmma", "bf16/wgmma", most_error,        \
                              .declines = sl_bf16_tile_wgmma_declines),                                      \
        .arrangement = SL_CUDA_BF16_TILE_WGMMA, TILE_RUNS(ID, rows)                                          \
    }
#define TILE_WGMMA(ID, type_name, most_error) TILE_WGMMA_FROM(SL_CUDA_FEW_ROWS + 1, ID, type_name, most_error)
/* In both classes. */
#define TILES_WGMMA(ID, type_name, most_error, most_k16_error)                                               \
    TILE_WGMMA(ID, type_name, most_error), {                                                                 \
        .kernel = BF16_KERNEL("linear/" #type_name "/cuda-k16-tile", "bf16/k16", most_k16_error,             \
                              .deterministic = true, .declines = sl_bf16_tile_wgmma_declines),               \
        .arrangement = SL_CUDA_K16_TILE, TILE_RUNS(ID, SL_CUDA_FEW_ROWS + 1)                                 \
    }

#endif
