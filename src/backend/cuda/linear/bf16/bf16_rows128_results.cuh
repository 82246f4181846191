/* What follows the sums of bf16_rows128.cuh. */
#ifndef SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_RESULTS_CUH
#define SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_RESULTS_CUH

#include "backend/cuda/linear/bf16/bf16_rows128_products.cuh"

#if SL_HAS_WGMMA

/* ---- results ---- */

static __device__ __forceinline__ void skinny_meet(const skinny_work &work) {
    sl_meet(1, work.args.parts * work.args.subs * SKINNY_GROUP);
}

/* Sums lie in every block as [row][group][outputs of the group]; outputs change places with the row so that a
 * warp's stores lie in different banks. */
static __device__ __forceinline__ int32_t skinny_place_of(const skinny_args &args, int32_t row,
                                                          int32_t output) {
    return row * (args.parts * args.subs * SKINNY_PART) + (output ^ row / 2 % 4 * 8);
}

template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_put_sums(const skinny_work &work, const skinny_lane &me,
                                                       int32_t count, const float (&sums)[ROWS / 2]) {
    float *to = (float *)(work.memory + skinny_memory<TYPE, ROWS>::x);
    int32_t lane = me.lane;
    asm volatile("" : "+r"(lane)); /* nothing of this is kept while products run: registers are short */
    const int32_t output = me.group * SKINNY_PART + 16 * me.warp + lane / 4;
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        const int32_t row = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (i / 4 * 8 < count) {
            to[skinny_place_of(work.args, row, output + i % 4 / 2 * 8)] = sums[i];
        }
    }
}

/* Where a lane's outputs of a tile go without ranges: of its rows' first element; NULL: not there. */
typedef struct skinny_target {
    const sl_cuda_operand &to;
    unsigned char *first;          /* output `output` of row 0, of y or of the gated values */
    const unsigned char *residual; /* the same of the residual, or NULL */
    bool has_second;               /* output eight on is there */
    float scale;
    const float *bias[2]; /* of the two outputs, or NULL */
} skinny_target;

/* Two outputs of row `row` of y, eight apart, or a gate and its value. */
template <int TYPE>
static __device__ __forceinline__ void skinny_store_two(const skinny_args &args, const skinny_target &target,
                                                        int32_t row, float low, float high) {
    low = target.bias[0] ? low * target.scale + *target.bias[0] : low * target.scale;
    high = target.bias[1] ? high * target.scale + *target.bias[1] : high * target.scale;
    unsigned char *to = target.first + (uint64_t)(uint32_t)row * target.to.row_bytes;
    if (args.gated.data) {
        *(uint16_t *)to = sl_f32_to_bf16(sl_gate<SL_CUDA_TAKES_OAI(TYPE)>(args.gating, low, high));
        return;
    }
    float *y = (float *)to;
    const float *residual =
        target.residual ? (const float *)(target.residual + (uint64_t)(uint32_t)row * args.residual.row_bytes)
                        : NULL;
    y[0] = residual ? low + residual[0] : low;
    if (target.has_second) {
        y[8] = residual ? high + residual[8] : high;
    }
}

/* Without ranges: from registers. A lane has outputs lane / 4 and lane / 4 + 8 of its warp's 16 (with gates a
 * gate and its value), and two of every eight rows. Code that runs once is slow, so this is a loop. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_store_sums(const skinny_work &work, const skinny_lane &me,
                                                         const skinny_tile &tile, float (&sums)[ROWS / 2]) {
    enum { AT_ONCE = ROWS < 16 ? ROWS / 8 : 2 }; /* eights of rows */
    const skinny_args &args = work.args;
    const skinny_part part = skinny_part_of(args, tile.part + me.part);
    int32_t lane = me.lane;
    asm volatile("" : "+r"(lane)); /* nothing of this is kept while products run: registers are short */
    const bool gated = args.gated.data != NULL;
    const int32_t output = part.output + (gated ? 8 : 16) * me.warp + lane / 4;
    if (!part.weight || output >= part.weight->rows) {
        return;
    }
    const sl_cuda_weight &weight = *part.weight;
    const int64_t bias = (int64_t)tile.expert * weight.rows + output;
    const bool has_second = gated || output + 8 < weight.rows;
    const float *second = gated ? args.weights[1].bias : weight.bias ? weight.bias + 8 : NULL;
    const int32_t column = weight.column + output, range = work.range * args.subs + me.sub;
    const skinny_target target = {
        gated ? args.gated : args.y,
        gated ? args.gated.data + 2 * (int64_t)(args.gated.column + output)
              : (unsigned char *)(sl_f32(args.y, 0) + column) + (uint32_t)range * args.range_bytes,
        !gated && args.residual.data ? (const unsigned char *)(sl_f32(args.residual, 0) + column) : NULL,
        has_second,
        __uint_as_float((127u + skinny_layout<TYPE>::bits) << 23),
        {weight.bias ? weight.bias + bias : NULL, has_second && second ? second + bias : NULL}};
#pragma unroll 1
    for (int32_t first = lane % 4 * 2; first < tile.count; first += 8 * AT_ONCE) {
#pragma unroll
        for (int i = 0; i < 2 * AT_ONCE; i++) {
            const int32_t row = first + i / 2 * 8 + i % 2, at = i / 2 * 4 + i % 2;
            if (row < tile.count) {
                skinny_store_two<TYPE>(args, target, args.list ? args.list[tile.first + row] : row, sums[at],
                                       sums[at + 2]);
            }
        }
#pragma unroll
        for (int i = 0; i + 4 * AT_ONCE < ROWS / 2; i++) { /* the next rows' */
            sums[i] = sums[i + 4 * AT_ONCE];
        }
    }
}

/* The same, found before the inputs are there, for the block's first tile; else the operands that it reads
 * would come one after the other, from memory, when products are done. first: of row 0, or NULL: as above. */
typedef struct skinny_exit {
    unsigned char *first;
    uint32_t row_bytes;
    int32_t function; /* of gates, one without numbers, or -1 */
} skinny_exit;

template <int TYPE>
static __device__ __forceinline__ skinny_exit skinny_exit_of(const skinny_work &work, const skinny_lane &me,
                                                             const skinny_tile &tile) {
    const skinny_args &args = work.args;
    skinny_exit out = {NULL, 0, -1};
    const skinny_part part = skinny_part_of(args, tile.part + me.part);
    const bool gated = args.gated.data != NULL;
    const int32_t output = part.output + (gated ? 8 : 16) * me.warp + me.lane / 4;
    if (!part.weight || args.residual.data || part.weight->bias || (gated && args.weights[1].bias) ||
        (SL_CUDA_TAKES_OAI(TYPE) && gated && args.gating.function == SL_ACTIVATION_SWIGLU_OAI) ||
        output + (gated ? 0 : 8) >= part.weight->rows) {
        return out;
    }
    const int32_t column = part.weight->column + output, range = work.range * args.subs + me.sub;
    const sl_cuda_operand &to = gated ? args.gated : args.y;
    out.row_bytes = (uint32_t)to.row_bytes;
    out.function = gated ? args.gating.function : -1;
    out.first = gated ? to.data + 2 * (int64_t)(to.column + output)
                      : (unsigned char *)(sl_f32(to, 0) + column) + (uint32_t)range * args.range_bytes;
    out.first += (uint64_t)(uint32_t)(me.lane % 4 * 2) * out.row_bytes;
    return out;
}

template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_leave(const skinny_exit &out, int32_t lane, int32_t count,
                                                    float (&sums)[ROWS / 2]) {
    const float scale = __uint_as_float((127u + skinny_layout<TYPE>::bits) << 23);
    unsigned char *to = out.first;
    count -= lane % 4 * 2;
    if (out.function < 0) {
#pragma unroll
        for (int i = 0; i < ROWS / 4; i++) { /* row i / 2 * 8 + i % 2 */
            if (i / 2 * 8 + i % 2 < count) {
                float *y = (float *)(to + (uint32_t)(i % 2) * out.row_bytes);
                y[0] = sums[i / 2 * 4 + i % 2] * scale;
                y[8] = sums[i / 2 * 4 + i % 2 + 2] * scale;
            }
            to += i % 2 ? (uint64_t)8 * out.row_bytes : 0;
        }
        return;
    }
#pragma unroll 1
    for (int32_t row = 0; row < count; row += 8) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (row + i < count) {
                *(uint16_t *)(to + (uint32_t)i * out.row_bytes) =
                    sl_f32_to_bf16(sl_activate(out.function, sums[i] * scale) * (sums[i + 2] * scale));
            }
        }
        to += (uint64_t)8 * out.row_bytes;
#pragma unroll
        for (int i = 0; i + 4 < ROWS / 2; i++) { /* the next rows' */
            sums[i] = sums[i + 4];
        }
    }
}

/* What is to be stored of one row of y: the place of its sums, with those of the cluster's other blocks. */
typedef struct skinny_result {
    const skinny_work &work;
    const skinny_tile &tile;
    const skinny_part &part;
    int32_t row, y_row; /* of the tile, of y */
    float scale;
    float *sums;
} skinny_result;

/* WIDTH neighbouring outputs of the tile, the ranges one after the other. */
template <int WIDTH>
static __device__ __forceinline__ void skinny_add(const skinny_result &result, int32_t output,
                                                  float (&out)[WIDTH]) {
    const skinny_args &args = result.work.args;
    const float *from = result.sums + skinny_place_of(args, result.row, output);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        out[i] = 0.0f;
    }
    const int32_t count = args.splits * args.subs;
    uint32_t rank = 0, sub = 0;
#pragma unroll 1
    for (int32_t first = 0; first < count; first += SKINNY_AT_ONCE) {
        float parts[SKINNY_AT_ONCE][WIDTH];
#pragma unroll
        for (int s = 0; s < SKINNY_AT_ONCE; s++) {
            if (first + s < count) {
                const float *own = from + sub * (uint32_t)(args.parts * SKINNY_PART);
                const float *other = args.splits > 1 ? sl_of_block(own, rank) : own;
#pragma unroll
                for (int i = 0; i < WIDTH; i += 2) { /* two of them make one load */
                    const float2 two = ((const float2 *)other)[i / 2];
                    parts[s][i] = two.x;
                    parts[s][i + 1] = two.y;
                }
                sub++;
                if (sub == (uint32_t)args.subs) {
                    sub = 0;
                    rank++;
                }
            }
        }
#pragma unroll
        for (int s = 0; s < SKINNY_AT_ONCE; s++) {
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                out[i] = first + s >= count ? out[i] : first + s == 0 ? parts[s][i] : out[i] + parts[s][i];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        out[i] *= result.scale;
    }
}

/* Outputs 4 quad .. 4 quad + 3 of the part. */
static __device__ __forceinline__ void skinny_write(const skinny_result &result, int32_t first,
                                                    int32_t quad) {
    const skinny_args &args = result.work.args;
    const sl_cuda_weight &weight = *result.part.weight;
    const int32_t output = result.part.output + 4 * quad, left = weight.rows - output;
    float sums[4];
    skinny_add<4>(result, first + 4 * quad, sums);
    if (left <= 0) {
        return;
    }
    float *y = sl_f32(args.y, result.y_row) + weight.column + output;
    const float *residual =
        args.residual.data ? sl_f32(args.residual, result.y_row) + weight.column + output : NULL;
    const float *bias = weight.bias ? weight.bias + (int64_t)result.tile.expert * weight.rows + output : NULL;
    if (left >= 4 && !bias && ((uint64_t)y | (uint64_t)residual) % 16 == 0) {
        if (residual) {
            const float4 more = *(const float4 *)residual;
            sums[0] += more.x;
            sums[1] += more.y;
            sums[2] += more.z;
            sums[3] += more.w;
        }
        *(float4 *)y = make_float4(sums[0], sums[1], sums[2], sums[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i < left) {
            sums[i] = bias ? sums[i] + bias[i] : sums[i];
            y[i] = residual ? sums[i] + residual[i] : sums[i];
        }
    }
}

/* f(gate) * value, outputs 2 pair and the next of the part's 32. */
template <int TYPE>
static __device__ __forceinline__ void skinny_write_gated(const skinny_result &result, int32_t first,
                                                          int32_t pair) {
    const skinny_args &args = result.work.args;
    const int32_t output = result.part.output + 2 * pair, left = result.part.weight->rows - output;
    const int32_t gate = first + pair / 4 * 16 + pair % 4 * 2;
    float gates[2], values[2];
    skinny_add<2>(result, gate, gates);
    skinny_add<2>(result, gate + 8, values);
    if (left <= 0) {
        return;
    }
    const int64_t bias = (int64_t)result.tile.expert * result.part.weight->rows + output;
    uint16_t *to = (uint16_t *)(args.gated.data + (uint64_t)(uint32_t)result.y_row * args.gated.row_bytes) +
                   args.gated.column + output;
    uint32_t bits[2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (args.weights[0].bias && i < left) {
            gates[i] += args.weights[0].bias[bias + i];
            values[i] += args.weights[1].bias[bias + i];
        }
        bits[i] = sl_f32_to_bf16(sl_gate<SL_CUDA_TAKES_OAI(TYPE)>(args.gating, gates[i], values[i]));
    }
    if (left >= 2 && (uint64_t)to % 4 == 0) {
        *(uint32_t *)to = bits[0] | bits[1] << 16;
    } else {
        to[0] = (uint16_t)bits[0];
        if (left >= 2) {
            to[1] = (uint16_t)bits[1];
        }
    }
}

/* By the consumers: the block's rows of the tile, sixteen lanes to a row of a part. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void skinny_store(const skinny_work &work, const skinny_tile &tile) {
    const skinny_args &args = work.args;
    const int32_t rank = work.range;
    int32_t thread = (int32_t)threadIdx.x;
    asm volatile("" : "+r"(thread)); /* nothing of this is kept while products run: registers are short */
    const int32_t sixteen = thread / 16, mine = thread % 16;
    const int32_t which = sixteen % args.parts, first_row = sixteen / args.parts;
    const skinny_part part = skinny_part_of(args, tile.part + which);
    const int32_t each = (ROWS + args.splits - 1) / args.splits, end = min((rank + 1) * each, tile.count);
    const float scale = __uint_as_float((127u + skinny_layout<TYPE>::bits) << 23);
    if (!part.weight) {
        return;
    }
#pragma unroll 1
    for (int32_t row = rank * each + first_row; row < end; row += 8 * args.subs) {
        const int32_t y_row = args.list ? args.list[tile.first + row] : row;
        const skinny_result result = {
            work, tile, part, row, y_row, scale, (float *)(work.memory + skinny_memory<TYPE, ROWS>::x)};
        if (args.gated.data) {
            skinny_write_gated<TYPE>(result, which * SKINNY_PART, mine);
        } else {
            skinny_write(result, which * SKINNY_PART, mine);
        }
    }
}

#endif
#endif
