/* Matrix products with up to 8 rows of x at the rate the memory can be read, for Hopper. Class "q8_32/256" of
 * linear.cu.
 *
 * A block takes a range of tiles of 16 weight rows. Each of its multiplying warps owns a pair of neighbouring
 * chunks of 256 columns, whose x it holds in registers, and multiplies these columns of tile after tile on
 * the tensor cores (matvec_tile.cuh). Weights come as boxes of a tensor map to slots of the warp's own, the
 * first of them before the kernel's inputs are there. The chunks' sums go to shared memory, where one more
 * warp adds those of an output in order, stores them or activates them. Rows of more chunks than the warps
 * own take several phases, between which that warp keeps the outputs' sums; of fewer, teams of warps take a
 * tile each.
 *
 * A block has a processor for itself, by the size of its shared memory. Where two would fit, and a small
 * kernel in front still has blocks on some processors, the device puts two blocks of this one on others and
 * none on those, and the launch takes up to twice as long. The next kernel may begin when this one has its x:
 * loads of x wait behind copies of weights. */
#ifndef SL_BACKEND_CUDA_MATVEC_HELD_CUH
#define SL_BACKEND_CUDA_MATVEC_HELD_CUH

#include "backend/cuda/matmul_skinny.cuh"
#include "backend/cuda/matvec_common.cuh"
#include "backend/cuda/matvec_tile.cuh"

enum {
    HELD_WARPS = 8, /* that multiply */
    HELD_THREADS = (HELD_WARPS + 1) * SL_WARP,
    HELD_CHUNKS = 2,  /* of a warp */
    HELD_STRIDE = 20, /* of a row of x in a chunk's sums: 16 and what keeps the banks apart */
    HELD_SUMS = HELD_STRIDE * SL_TILE_X,
    HELD_TILE = SL_TILE_ROWS * SL_TILE_X,
    HELD_KEPT = 16,                                                    /* tiles */
    HELD_BUFFERS = 2,                                                  /* of sums */
    HELD_X_SCALES = HELD_CHUNKS * SL_CHUNK_GROUPS * SL_TILE_X / 2 * 16 /* bytes of a warp */
};

/* A unit is a tile. */
typedef struct held_args {
    CUtensorMap maps[SL_LINEAR_SEGMENTS];
    sl_matvec_args op;
    int32_t rows;                     /* of x in the bucket */
    int32_t pairs, per_phase, phases; /* pairs of chunks of a row, of all phases but the last */
    int32_t teams;                    /* a power of two */
    int32_t group;                    /* tiles between which x is loaded and outputs are kept */
} held_args;

/* ---- x ---- */

/* A lane's part of a chunk. scales_at: [group][pair of rows], a pair's two scales and what the type needs. */
template <int TYPE> struct held_x {
    uint2 held[SL_CHUNK_GROUPS];
    const float4 *scales_at;

    __device__ __forceinline__ uint2 values(int g) const {
        return held[g];
    }
    __device__ __forceinline__ float2 scales(int g) const {
        return *(const float2 *)(scales_at + g * (SL_TILE_X / 2));
    }
    __device__ __forceinline__ int2 extra(int g) const {
        return *(const int2 *)((const float2 *)(scales_at + g * (SL_TILE_X / 2)) + 1);
    }
};

/* Where word i of a group lies in the staged 128 columns of a row: moved by pieces of 16 bytes, so that the
 * rows that a half of a warp reads are on different banks. */
static __device__ __forceinline__ uint32_t held_word(const uint32_t *staged, int32_t row, int g, int32_t i) {
    const int32_t piece = (2 * g + i / 4) ^ ((row & 3) << 1) ^ (row >> 2);
    return staged[row * 32 + piece * 4 + i % 4];
}

/* Words as the lane finds the weights: order_group's. */
template <int TYPE>
static __device__ __forceinline__ uint2 held_values(const uint32_t *staged, int g, int32_t lane) {
    const int32_t row = lane / 4, t = lane % 4;
    const auto word = [&](int32_t i) { return held_word(staged, row, g, i); };
    if (TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K) {
        const int32_t piece = (2 * g + t / 2) ^ ((row & 3) << 1) ^ (row >> 2);
        return *(const uint2 *)(staged + row * 32 + piece * 4 + t % 2 * 2);
    }
    if (sl_chunk_shape<TYPE>::INTERLEAVED) {
        uint32_t moved[2];
        sl_interleave(word(t), word(4 + t), moved);
        return make_uint2(moved[0], moved[1]);
    }
    if (TYPE == SL_QTYPE_Q8_0 && g % 2 == 0) {
        const uint32_t last = word(4 + t), after = word(t == 3 ? 0 : 5 + t);
        return make_uint2(__funnelshift_r(word(t), word(1 + t), 16),
                          t == 3 ? (after & 0xffffu) | (last & 0xffff0000u)
                                 : __funnelshift_r(last, after, 16));
    }
    if (TYPE == SL_QTYPE_Q4_0 && g % 2 == 0) {
        uint32_t moved[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const uint32_t own = word(4 * k + t), after = word(4 * k + (t + 1) % 4);
            moved[k] = t == 3 ? (after & 0xffffu) | (own & 0xffff0000u) : __funnelshift_r(own, after, 16);
        }
        return make_uint2(moved[0], moved[1]);
    }
    return make_uint2(word(t), word(4 + t));
}

/* A warp's chunks from `chunk` on, of the first `rows` rows; what is not there is zero. staged: 1024
 * bytes; scales: HELD_X_SCALES. */
template <int TYPE>
static __device__ __forceinline__ void held_load_x(const sl_matvec_args &op, int32_t rows, int32_t chunk,
                                                   uint32_t *staged, float4 *scales,
                                                   held_x<TYPE> x[HELD_CHUNKS]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    uint4 raw[2 * HELD_CHUNKS][2]; /* [half of a chunk][half of the rows] */
#pragma unroll
    for (int h = 0; h < 2 * HELD_CHUNKS; h++) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int32_t row = 4 * k + lane / 8;
            raw[h][k] = make_uint4(0, 0, 0, 0);
            if (row < rows && chunk + h / 2 < op.chunks) {
                raw[h][k] = ((const uint4 *)sl_q8_32_of(op.x, row).values)[16 * chunk + 8 * h + lane % 8];
            }
        }
    }
    const int32_t c = lane / 16, row = lane / 2 % 8, half = lane % 2;
    float4 scale = make_float4(0, 0, 0, 0);
    int4 sum = make_int4(0, 0, 0, 0);
    if (row < rows && chunk + c < op.chunks) {
        const sl_q8_32 planes = sl_q8_32_of(op.x, row);
        scale = ((const float4 *)planes.scales)[2 * (chunk + c) + half];
        sum = ((const int4 *)planes.sums)[2 * (chunk + c) + half];
    }
    const float each[4] = {scale.x, scale.y, scale.z, scale.w};
    const int32_t sums[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t *to =
            (uint32_t *)(scales + (c * SL_CHUNK_GROUPS + 4 * half + i) * (SL_TILE_X / 2) + row / 2);
        uint32_t extra[2] = {0, 0};
        sl_x_extra<TYPE>(make_uint4(0, 0, 0, 0), each[i], sums[i], extra);
        to[row % 2] = __float_as_uint(each[i]);
        to[2 + row % 2] = extra[0];
    }
#pragma unroll
    for (int h = 0; h < 2 * HELD_CHUNKS; h++) {
        __syncwarp();
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int32_t r = 4 * k + lane / 8, piece = lane % 8 ^ (r & 3) << 1 ^ r >> 2;
            ((uint4 *)staged)[r * 8 + piece] = raw[h][k];
        }
        __syncwarp();
#pragma unroll
        for (int g = 0; g < 4; g++) {
            x[h / 2].held[h % 2 * 4 + g] = held_values<TYPE>(staged, g, lane);
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < HELD_CHUNKS; i++) {
        x[i].scales_at = scales + i * (SL_CHUNK_GROUPS * SL_TILE_X / 2) + lane % 4;
    }
}

/* ---- items ---- */

/* As sl_matvec_unit: the segment and the first row of a tile. */
static __device__ __forceinline__ int32_t held_place(const sl_matvec_args &op, int32_t tile, int32_t *row) {
    int32_t segment = 0, first = 0;
    if (op.activates) {
        *row = (int32_t)((uint32_t)tile / 4 * SL_GRANULE + (uint32_t)tile % 2 * SL_TILE_ROWS);
        return (int32_t)((uint32_t)tile / 2 % 2);
    }
#pragma unroll
    for (int s = 1; s < SL_LINEAR_SEGMENTS; s++) {
        if (tile >= op.first_unit[s]) {
            segment = s;
            first = op.first_unit[s];
        }
    }
    *row = (tile - first) * SL_TILE_ROWS;
    return segment;
}

/* Tile `tile` of the group that begins at `begin`, in a phase. */
typedef struct held_cursor {
    int32_t begin, phase, tile;
} held_cursor;

/* Of the group. */
static __device__ __forceinline__ int32_t held_stop(const held_args &args, const held_cursor &at,
                                                    int32_t end) {
    return min(at.begin + args.group, end);
}

/* To the first tile behind the group in its phase, of `team`. */
static __device__ __forceinline__ void held_leave(const held_args &args, int32_t team, int32_t end,
                                                  held_cursor *at) {
    const bool last = at->phase + 1 == args.phases;
    at->begin = last ? held_stop(args, *at, end) : at->begin;
    at->phase = last ? 0 : at->phase + 1;
    at->tile = at->begin + team;
}

/* To the first tile from here on that the warp takes; pair: of a phase. */
static __device__ __forceinline__ void held_settle(const held_args &args, int32_t team, int32_t pair,
                                                   int32_t end, held_cursor *at) {
    while (at->begin < end &&
           (at->tile >= held_stop(args, *at, end) || at->phase * args.per_phase + pair >= args.pairs)) {
        held_leave(args, team, end, at);
    }
}

/* ---- sums ---- */

typedef struct held_memory {
    float *sums;          /* HELD_BUFFERS of [pair of the phase][team][chunk][HELD_SUMS] */
    float *kept;          /* [tile of the group][HELD_TILE] */
    uint32_t full, empty; /* barriers of the buffers */
} held_memory;

/* Where a warp puts the sums of the tiles that the block's teams multiply in turn `index`. */
static __device__ __forceinline__ float *held_own(const held_args &args, const held_memory &memory,
                                                  int32_t index, int32_t team, int32_t pair) {
    return memory.sums +
           ((index % HELD_BUFFERS * args.per_phase + pair) * args.teams + team) * (HELD_CHUNKS * HELD_SUMS);
}

#if __CUDA_ARCH__ >= 900

/* Until the sums that were in its buffer have been added. */
static __device__ __forceinline__ void held_await(const held_memory &memory, int32_t index) {
    if (index >= HELD_BUFFERS) {
        sl_barrier_wait(memory.empty + 8 * (uint32_t)(index % HELD_BUFFERS),
                        (uint32_t)(index / HELD_BUFFERS - 1) & 1);
    }
}

#endif

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

/* Tile `tile` of a granule's four, gate, gate, up, up. value: a lane's four outputs; values: both halves of
 * the granule so far. */
static __device__ __forceinline__ void held_activate(const sl_matvec_args &op, int32_t tile, bool stores,
                                                     const float value[4], float values[8]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, j = lane / 4, segment = tile / 2 % 2;
    const sl_cuda_weight &weight = op.weights[segment];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int32_t output = tile / 4 * SL_GRANULE + tile % 2 * SL_TILE_ROWS + lane % 4 * 4 + e;
        const float gate = tile % 2 ? values[4 + e] : values[e];
        float now = sl_matvec_biased(weight, 0, output, value[e]);
        if (op.y.data && stores) {
            sl_f32(op.y, j)[weight.column + output] = now;
        }
        if (segment) {
            now = (op.function == SL_ACTIVATION_SILU ? sl_silu(gate) : sl_gelu_tanh(gate)) * now;
            if (op.active.data && stores) {
                sl_f32(op.active, j)[output] = now;
            }
        }
        values[e] = tile % 2 ? values[e] : now;
        values[4 + e] = tile % 2 ? now : values[4 + e];
    }
    if (tile % 4 == 3 && op.quantized.data) {
        held_quantize(values, sl_q8_32_of(op.quantized, j), tile / 4, stores);
    }
}

static __device__ __forceinline__ float4 held_add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

#if __CUDA_ARCH__ >= 900

/* The warp that finishes outputs: a lane has four neighbouring ones of a row of x. */
static __device__ __forceinline__ void held_finish(const held_args &args, const held_memory &memory,
                                                   held_cursor here, int32_t end) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, j = lane / 4;
    const int32_t per_phase = args.per_phase * HELD_CHUNKS;
    const bool stores = j < sl_matvec_rows(args.op);
    float values[8] = {};
    int32_t index = 0;
#pragma unroll 1
    while (here.begin < end) {
        const bool last = here.phase + 1 == args.phases;
        const int32_t stop = held_stop(args, here, end);
        const int32_t chunks = min(per_phase, args.op.chunks - here.phase * per_phase);
#pragma unroll 1
        for (int32_t tile = here.begin; tile < stop; tile++) {
            const int32_t team = (tile - here.begin) % args.teams, buffer = index % HELD_BUFFERS;
            if (team == 0) {
                sl_barrier_wait(memory.full + 8 * (uint32_t)buffer, (uint32_t)(index / HELD_BUFFERS) & 1);
            }
            const float *sum = held_own(args, memory, index, team, 0) + j * HELD_STRIDE + lane % 4 * 4;
            float4 *kept = (float4 *)memory.kept + (tile - here.begin) * SL_WARP + lane;
            float4 value = here.phase == 0 ? make_float4(0, 0, 0, 0) : *kept;
#pragma unroll 2
            for (int32_t c = 0; c < chunks / 2; c++) {
                const float4 first = ((const float4 *)sum)[0], second = *(const float4 *)(sum + HELD_SUMS);
                value = held_add(held_add(value, first), second);
                sum += args.teams * HELD_CHUNKS * HELD_SUMS;
            }
            value = chunks % 2 ? held_add(value, *(const float4 *)sum) : value;
            __syncwarp();
            if (team + 1 == args.teams || tile + 1 == stop) {
                if (lane < SL_ARRIVING_LANES) {
                    sl_barrier_arrive(memory.empty + 8 * (uint32_t)buffer);
                }
                index++;
            }
            const float four[4] = {value.x, value.y, value.z, value.w};
            if (!last) {
                *kept = value;
            } else if (args.op.activates) {
                held_activate(args.op, tile, stores, four, values);
            } else {
                int32_t row;
                const sl_cuda_weight &weight = args.op.weights[held_place(args.op, tile, &row)];
                row += lane % 4 * 4;
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    if (stores && row + e < weight.rows) {
                        sl_linear_store(args.op, weight, 0, j, row + e, four[e]);
                    }
                }
            }
        }
        held_leave(args, 0, end, &here);
    }
}

#endif

/* ---- the kernel ---- */

template <int TYPE> struct held_shape {
    enum { ITEM = sl_tile_shape<TYPE>::ITEM, ITEMS = HELD_CHUNKS / ITEM };
    enum { SLOT = SL_TILE_ROWS * sl_tile_shape<TYPE>::STRIDE };
};

/* What a multiplying warp works with. */
typedef struct held_warp {
    int32_t team, pair; /* pair: of a phase */
    bool works;
    int32_t end;
    unsigned char *slots;
    uint32_t barriers; /* of the slots */
    float4 *scales;
    held_cursor next; /* where it copies */
    int32_t item;     /* of the pair */
} held_warp;

#if __CUDA_ARCH__ >= 900

/* The next item, if there is one. */
template <int TYPE>
static __device__ __forceinline__ void held_copy_next(const held_args &args, held_warp *warp, uint32_t slot) {
    typedef held_shape<TYPE> shape;
    if (warp->next.begin >= warp->end) {
        return;
    }
    int32_t row;
    const int32_t segment = held_place(args.op, warp->next.tile, &row);
    const int32_t chunk =
        (warp->next.phase * args.per_phase + warp->pair) * HELD_CHUNKS + warp->item * shape::ITEM;
    if (threadIdx.x % SL_WARP == 0) {
        const uint32_t barrier = warp->barriers + 8 * slot;
        sl_barrier_expect(barrier, shape::SLOT);
        sl_box_copy(sl_shared_address(warp->slots + slot * shape::SLOT), &args.maps[segment],
                    chunk * (sl_chunk_shape<TYPE>::BYTES / 2), row, 0, barrier);
    }
    if (++warp->item == shape::ITEMS) {
        warp->item = 0;
        warp->next.tile += args.teams;
        held_settle(args, warp->team, warp->pair, warp->end, &warp->next);
    }
}

/* The warp's chunks of a tile. used: slots so far. */
template <int TYPE, int SLOTS>
static __device__ __forceinline__ void held_multiply(const held_args &args, const held_memory &memory,
                                                     held_warp *warp, const held_x<TYPE> (&x)[HELD_CHUNKS],
                                                     int32_t index, uint32_t *used) {
    typedef held_shape<TYPE> shape;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    float part[HELD_CHUNKS][4] = {};
#pragma unroll
    for (int c = 0; c < HELD_CHUNKS; c++) {
        const uint32_t slot = *used % SLOTS;
        if (c % shape::ITEM == 0) {
            sl_barrier_wait(warp->barriers + 8 * slot, *used / SLOTS & 1);
        }
        const unsigned char *w[2];
        w[0] = warp->slots + slot * shape::SLOT + lane / 4 * sl_tile_shape<TYPE>::STRIDE +
               c % shape::ITEM * sl_chunk_shape<TYPE>::BYTES;
        w[1] = w[0] + 8 * sl_tile_shape<TYPE>::STRIDE;
        sl_tile<TYPE>::add(w, x[c], lane, part[c]);
        if (c % shape::ITEM == shape::ITEM - 1) {
            sl_fence_reads();
            __syncwarp();
            held_copy_next<TYPE>(args, warp, slot);
            ++*used;
        }
    }
    held_await(memory, index);
    float *own =
        held_own(args, memory, index, warp->team, warp->pair) + lane % 4 * 2 * HELD_STRIDE + lane / 4;
#pragma unroll
    for (int c = 0; c < HELD_CHUNKS; c++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            own[c * HELD_SUMS + e % 2 * HELD_STRIDE + e / 2 * 8] = part[c][e];
        }
    }
}

/* All tiles of the block, from here on. */
template <int TYPE, int SLOTS>
static __device__ __forceinline__ void held_multiply_all(const held_args &args, const held_memory &memory,
                                                         held_warp *warp, held_cursor here) {
    held_x<TYPE> x[HELD_CHUNKS];
    int32_t index = 0;
    uint32_t used = 0;
#pragma unroll 1
    while (here.begin < warp->end) {
        const int32_t first_pair = here.phase * args.per_phase, stop = held_stop(args, here, warp->end);
        if (index == 0 || args.phases > 1) {
            held_await(memory, index);
            if (warp->works) {
                held_load_x<TYPE>(args.op, args.rows, (first_pair + warp->pair) * HELD_CHUNKS,
                                  (uint32_t *)held_own(args, memory, index, warp->team, warp->pair),
                                  warp->scales, x);
            }
            sl_let_next_begin();
        }
        const bool owns = warp->works && first_pair + warp->pair < args.pairs;
#pragma unroll 1
        for (int32_t tile = here.begin; tile < stop; tile += args.teams, index++) {
            if (owns && tile + warp->team < stop) {
                held_multiply<TYPE, SLOTS>(args, memory, warp, x, index, &used);
            }
            __syncwarp();
            if (threadIdx.x % SL_WARP < SL_ARRIVING_LANES) {
                sl_barrier_arrive(memory.full + 8 * (uint32_t)(index % HELD_BUFFERS));
            }
        }
        held_leave(args, 0, warp->end, &here);
    }
}

#endif

template <int TYPE, int SLOTS, int BLOCKS>
static __global__ void __launch_bounds__(HELD_THREADS, BLOCKS)
    held_kernel(const __grid_constant__ held_args args) {
#if __CUDA_ARCH__ >= 900
    typedef held_shape<TYPE> shape;
    extern __shared__ __align__(128) unsigned char shared[];
    const int32_t index = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    unsigned char *after = shared + HELD_WARPS * SLOTS * shape::SLOT;
    held_memory memory;
    memory.sums = (float *)(after + HELD_WARPS * HELD_X_SCALES);
    memory.kept = memory.sums + HELD_BUFFERS * args.per_phase * args.teams * HELD_CHUNKS * HELD_SUMS;
    memory.full = sl_shared_address(memory.kept + (args.phases > 1 ? args.group * HELD_TILE : 0));
    memory.empty = memory.full + 8 * HELD_BUFFERS;
    held_warp warp;
    warp.team = index / args.per_phase;
    warp.pair = index - warp.team * args.per_phase;
    warp.works = index < HELD_WARPS && warp.team < args.teams;
    warp.slots = shared + index * SLOTS * shape::SLOT;
    warp.barriers = memory.empty + (uint32_t)(8 * (HELD_BUFFERS + index * SLOTS));
    warp.scales = (float4 *)(after + index * HELD_X_SCALES);
    held_cursor here = {};
    sl_matvec_range(args.op, &here.begin, &warp.end);
    warp.next = {warp.works ? here.begin : warp.end, 0, here.begin + warp.team};
    warp.item = 0;
    held_settle(args, warp.team, warp.pair, warp.end, &warp.next);
    if (lane == 0 && index == HELD_WARPS) {
        for (uint32_t i = 0; i < HELD_BUFFERS; i++) {
            sl_barrier_init(memory.full + 8 * i, HELD_WARPS * SL_ARRIVING_LANES);
            sl_barrier_init(memory.empty + 8 * i, SL_ARRIVING_LANES);
        }
    } else if (lane == 0) {
        for (int i = 0; i < SLOTS; i++) {
            sl_barrier_init(warp.barriers + 8 * (uint32_t)i, 1);
        }
        sl_barrier_fence();
    }
    __syncthreads();
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        held_copy_next<TYPE>(args, &warp, slot);
    }
    sl_wait_for_inputs();
    if (index == HELD_WARPS) {
        sl_let_next_begin();
        held_finish(args, memory, here, warp.end);
    } else {
        held_multiply_all<TYPE, SLOTS>(args, memory, &warp, here);
    }
#endif
}

/* ---- launches ---- */

/* The device has tensor maps, which want rows of whole 16 bytes; and x, its scales and its sums are read 16
 * bytes at a time. */
static inline bool held_takes(const sl_cuda_context *context, const sl_cuda_op *op) {
    return context->dependent_launches && op->weights[0].row_bytes % 16 == 0 && op->in[0].width % 128 == 0 &&
           op->in[0].column % 128 == 0;
}

/* Phases and teams that leave the fewest warps idle. */
static inline void held_divide(held_args *args) {
    int32_t best = 0;
    for (int32_t phases = (args->pairs + HELD_WARPS - 1) / HELD_WARPS, i = 0; i < 3; i++, phases++) {
        const int32_t per = (args->pairs + phases - 1) / phases;
        int32_t teams = 1;
        while (2 * teams * per <= HELD_WARPS) {
            teams *= 2;
        }
        const int32_t busy = teams * args->pairs * 64 / phases;
        if (busy > best) {
            best = busy;
            args->phases = phases;
            args->per_phase = per;
            args->teams = teams;
        }
    }
}

/* As ring_launch. */
template <int TYPE, int SLOTS, int BLOCKS>
static cudaError_t held_launch(const sl_cuda_context *context, const sl_cuda_op *op, int32_t blocks,
                               cudaStream_t stream) {
    held_args args = {};
    args.op = sl_matvec_args_of(context, op);
    const int32_t along = sl_matvec_cut(SL_TILE_ROWS, blocks, &args.op);
    const int32_t each = sl_matvec_most(args.op) * args.op.granule;
    for (int32_t s = args.op.segments; s < SL_LINEAR_SEGMENTS; s++) {
        args.op.first_unit[s] = args.op.units;
    }
    args.pairs = (args.op.chunks + HELD_CHUNKS - 1) / HELD_CHUNKS;
    held_divide(&args);
    args.group = args.phases > 1 && each > HELD_KEPT ? (int32_t)HELD_KEPT : each;
    args.rows = op->rows[op->out[0].rows] < SL_TILE_X ? op->rows[op->out[0].rows] : (int32_t)SL_TILE_X;
    for (int32_t s = 0; s < args.op.segments; s++) {
        const sl_cuda_weight &weight = args.op.weights[s];
        sl_cuda_tensor tensor = {};
        tensor.data = weight.data;
        tensor.element_bytes = 2;
        tensor.sizes[0] = weight.row_bytes / 2;
        tensor.sizes[1] = (uint64_t)weight.rows;
        tensor.sizes[2] = 1;
        tensor.strides[0] = weight.row_bytes;
        tensor.strides[1] = weight.row_bytes * (uint64_t)weight.rows;
        tensor.box[0] = sl_tile_shape<TYPE>::STRIDE / 2;
        tensor.box[1] = SL_TILE_ROWS;
        const cudaError_t code = sl_cuda_tensor_map(&tensor, &args.maps[s]);
        if (code) {
            return code;
        }
    }
    sl_launch_shape shape = {};
    shape.grid = dim3((unsigned)along);
    shape.block = dim3(HELD_THREADS);
    shape.shared_bytes =
        (uint32_t)(HELD_WARPS * (SLOTS * (held_shape<TYPE>::SLOT + 8) + HELD_X_SCALES) +
                   HELD_BUFFERS * (args.per_phase * args.teams * HELD_CHUNKS * HELD_SUMS * 4 + 16) +
                   (args.phases > 1 ? args.group * HELD_TILE * 4 : 0));
    const uint32_t most = (uint32_t)context->shared_bytes;
    shape.shared_bytes = shape.shared_bytes > most / 2 ? shape.shared_bytes : most / 2; /* one block */
    if (shape.shared_bytes > most) {
        return cudaErrorInvalidConfiguration;
    }
    return sl_launch(context, stream, shape, held_kernel<TYPE, SLOTS, BLOCKS>, args);
}

#endif
