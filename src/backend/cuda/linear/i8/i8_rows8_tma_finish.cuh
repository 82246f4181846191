/* What the finishing warps of i8_rows8_tma.cuh do: they add the chunks' sums, activate and store. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_ROWS8_TMA_FINISH_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_ROWS8_TMA_FINISH_CUH

#include "backend/cuda/linear/i8/i8_rows8_tma.cuh"

/* sl_matvec_quantize of a group of 32, of which four neighbouring lanes have elements 4 k .. 4 k + 3 of both
 * halves, k being the lane's place among them. */
static __device__ __forceinline__ void held_quantize(const float values[8], const sl_q8_32 &row,
                                                     int32_t group, bool stores) {
    uint32_t magnitude = 0;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        magnitude = max(magnitude, sl_f32_bits(values[e]) & 0x7fffffffu);
    }
    magnitude = max(magnitude, __shfl_xor_sync(SL_FULL_WARP, magnitude, 1));
    magnitude = max(magnitude, __shfl_xor_sync(SL_FULL_WARP, magnitude, 2));
    const float largest = sl_f32_from_bits(magnitude), factor = 127.0f / largest;
    const bool usable = largest >= SL_Q8_32_ZERO_BELOW && largest <= 3.40282347e+38f;
    uint32_t packed[2] = {0, 0};
#pragma unroll
    for (int e = 0; e < 8; e++) { /* the lowest byte of a whole number that 1.5 * 2^23 was added to */
        packed[e / 4] |= (sl_f32_bits(values[e] * factor + 12582912.0f) & 255u) << 8 * (e % 4);
    }
    packed[0] = usable ? packed[0] : 0;
    packed[1] = usable ? packed[1] : 0;
    int sum = __dp4a((int)packed[0], 0x01010101, __dp4a((int)packed[1], 0x01010101, 0));
    sum += __shfl_xor_sync(SL_FULL_WARP, sum, 1);
    sum += __shfl_xor_sync(SL_FULL_WARP, sum, 2);
    const int32_t k = (int32_t)threadIdx.x % 4;
    if (stores) {
        ((uint32_t *)row.values)[SL_Q8_32_GROUP / 4 * group + k] = packed[0];
        ((uint32_t *)row.values)[SL_Q8_32_GROUP / 4 * group + 4 + k] = packed[1];
    }
    if (stores && k == 0) {
        row.sums[group] = sum;
        row.scales[group] = usable                          ? largest / 127.0f
                            : largest < SL_Q8_32_ZERO_BELOW ? 0.0f
                                                            : sl_f32_from_bits(0x7fc00000u);
    }
}

static __device__ __forceinline__ float4 held_add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

#if __CUDA_ARCH__ >= 900

/* A lane's four outputs of a tile: what its parts' sums add up to behind `value`. */
template <int TYPE>
static __device__ __forceinline__ float4 held_total(const held_args &args, const float *sum, int32_t phase,
                                                    float4 value) {
    enum { SUMS = held_part<TYPE>::SUMS };
    const int32_t first = phase * args.per_phase, apart = args.teams * SUMS * HELD_SUMS;
    if (SUMS > 1) {
        const int32_t parts = min(args.per_phase * SUMS, args.op.chunks - first * SUMS);
#pragma unroll 8
        for (int32_t c = 0; c < parts / 2; c++, sum += apart) {
            const float4 one = *(const float4 *)sum, two = *(const float4 *)(sum + HELD_SUMS);
            value = held_add(held_add(value, one), two);
        }
        return parts % 2 ? held_add(value, *(const float4 *)sum) : value;
    }
    const int32_t parts = min(args.per_phase, args.pairs - first);
    float4 part[HELD_WARPS];
#pragma unroll
    for (int c = 0; c < HELD_WARPS; c++) {
        part[c] = c < parts ? *(const float4 *)(sum + c * apart) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int c = 0; c < HELD_WARPS; c++) {
        value = held_add(value, part[c]);
    }
    return value;
}

/* Where a lane's four outputs of a tile go, and what is added to them, known before they are. */
typedef struct held_target {
    float *y;      /* or NULL */
    int32_t count; /* of the four */
    bool biased;
    float biases[4], residuals[4];
} held_target;

static __device__ __forceinline__ held_target held_target_of(const sl_matvec_args &op, int32_t tile,
                                                             bool stores) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, j = lane / 4;
    held_target target = {};
    int32_t row;
    const sl_cuda_weight &weight = op.weights[held_place(op, tile, &row)];
    row += lane % 4 * 4;
    target.count = stores ? weight.rows - row : 0;
    target.y = op.y.data ? sl_f32(op.y, j) + weight.column + row : NULL;
    target.biased = weight.bias != NULL;
    if (target.biased) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            target.biases[e] = e < target.count ? weight.bias[row + e] : 0.0f;
        }
    }
    if (op.residual.data) {
        const float *residual = sl_f32(op.residual, j) + weight.column + row;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            target.residuals[e] = e < target.count ? residual[e] : 0.0f;
        }
    }
    return target;
}

/* As sl_linear_store. */
static __device__ __forceinline__ void held_store(const sl_matvec_args &op, const held_target &target,
                                                  const float value[4]) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        if (e < target.count) {
            const float sum = target.biased ? value[e] + target.biases[e] : value[e];
            target.y[e] = op.residual.data ? sum + target.residuals[e] : sum;
        }
    }
}

/* Tile `tile` of a granule's four, gate, gate, up, up. value: a lane's four outputs; values: both halves of
 * the granule so far, activated gates until their products with up are there. */
static __device__ __forceinline__ void held_activate(const sl_matvec_args &op, const held_target &target,
                                                     int32_t tile, const float value[4], float values[8]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, j = lane / 4;
    const bool second = tile % 2 != 0, up = tile / 2 % 2 != 0, stores = target.count > 0;
    float now[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        now[e] = target.biased ? value[e] + target.biases[e] : value[e];
    }
    if (target.y && stores) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            target.y[e] = now[e];
        }
    }
    if (up) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            now[e] = (second ? values[4 + e] : values[e]) * now[e];
        }
    } else if (op.function == SL_ACTIVATION_SILU) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            now[e] = sl_silu(now[e]);
        }
    } else {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            now[e] = sl_gelu_tanh(now[e]);
        }
    }
    if (up && op.active.data && stores) {
        float *active = sl_f32(op.active, j) + tile / 4 * SL_GRANULE + tile % 2 * SL_TILE_ROWS + lane % 4 * 4;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            active[e] = now[e];
        }
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        values[e] = second ? values[e] : now[e];
        values[4 + e] = second ? now[e] : values[4 + e];
    }
    if (tile % 4 == 3 && op.quantized.data) {
        held_quantize(values, sl_q8_32_of(op.quantized, j), tile / 4, stores);
    }
}

/* Warp `which` of those that finish outputs: a lane has four neighbouring ones of a row of x. The warps take
 * turns of the teams, or granules, one after the other. */
template <int TYPE>
static __device__ __forceinline__ void held_finish(const held_args &args, const held_memory &memory,
                                                   held_cursor here, int32_t end, int32_t which) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, j = lane / 4;
    const bool stores = j < sl_matvec_rows(args.op);
    float values[8] = {};
    int32_t index = which;
#pragma unroll 1
    while (here.begin < end) {
        const bool last = here.phase + 1 == args.phases;
        const int32_t stop = held_stop(args, here, end);
#pragma unroll 1
        for (int32_t tile = here.begin, turn = 0; tile < stop; tile += args.teams, turn++) {
            if (held_finisher(args, turn) != which) {
                continue;
            }
            const int32_t buffer = index % held_part<TYPE>::BUFFERS, count = min(args.teams, stop - tile);
#pragma unroll 1
            for (int32_t team = 0; team < count; team++) {
                const int32_t placed = TYPE == SL_QTYPE_Q8_0 ? held_dealt(args, tile + team) : tile + team;
                float4 *kept = (float4 *)memory.kept + (tile + team - here.begin) * SL_WARP + lane;
                held_target target = {};
                if (last) {
                    target = held_target_of(args.op, placed, stores);
                }
                if (team == 0) {
                    sl_barrier_wait(memory.full + 8 * (uint32_t)buffer,
                                    (uint32_t)(index / held_part<TYPE>::BUFFERS) & 1);
                }
                const float4 value = held_total<TYPE>(
                    args, held_own<TYPE>(args, memory, index, team, 0) + j * HELD_STRIDE + lane % 4 * 4,
                    here.phase, here.phase == 0 ? make_float4(0, 0, 0, 0) : *kept);
                __syncwarp();
                if (team + 1 == count && lane < SL_ARRIVING_LANES) {
                    sl_barrier_arrive(memory.empty + 8 * (uint32_t)buffer);
                }
                const float four[4] = {value.x, value.y, value.z, value.w};
                if (!last) {
                    *kept = value;
                } else if (args.op.activates) {
                    held_activate(args.op, target, placed, four, values);
                } else {
                    held_store(args.op, target, four);
                }
            }
            index += HELD_FINISHERS;
        }
        held_leave(args, 0, end, &here);
    }
}

#endif

#endif
