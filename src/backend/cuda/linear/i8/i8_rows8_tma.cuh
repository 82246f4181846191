/* Matrix products with 2 to 8 rows of x at the rate the memory can be read, for Hopper: Q8_0 in class
 * "q8_32/256" of plain_linear.cu, Q4_K in class "q8_32/factors" (i8_rows8_tma_x.cuh).
 *
 * A block takes tiles of 16 weight rows. Its multiplying warps hold x of their columns in registers, and
 * multiply these columns of tile after tile on the tensor cores. Weights come as boxes of a tensor map, the
 * first of them before the kernel's inputs are there. The chunks' sums go to shared memory, where two more
 * warps in turns add those of an output in order, store them or activate them. Rows of more chunks than the
 * warps own take several phases, between which those keep the outputs' sums.
 *
 * There are two ways of copying. Warp boxes (i8_rows8_tma_warp.cuh): a warp has a pair of chunks of 256
 * columns, and brings them to slots of its own. Wide boxes of Q8_0 (i8_rows8_tma_wide.cuh): a warp has one
 * chunk, and another warp brings boxes of 1024 columns for four of them.
 *
 * A block has a processor for itself, by the size of its shared memory. Where two would fit, and a small
 * kernel in front still has blocks on some processors, the device puts two blocks of this one on others and
 * none on those, and the launch takes up to twice as long. The next kernel may begin when this one has its x,
 * which would wait behind copies of weights. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_ROWS8_TMA_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_ROWS8_TMA_CUH

#include "backend/cuda/linear/bf16/bf16_rows128.cuh"
#include "backend/cuda/linear/i8/i8_rows8_tma_x.cuh"

enum {
    HELD_WARPS = 8,     /* that multiply warp boxes */
    HELD_FINISHERS = 2, /* warps that add, activate and store */
    HELD_STRIDE = 20,   /* of a row of x in a chunk's sums: 16 and what keeps the banks apart */
    HELD_SUMS = HELD_STRIDE * SL_TILE_X,
    HELD_TILE = SL_TILE_ROWS * SL_TILE_X,
    HELD_KEPT = 16 /* tiles */
};

/* A unit is a tile. */
typedef struct held_args {
    CUtensorMap maps[SL_LINEAR_SEGMENTS];
    CUtensorMap values, scales, sums; /* of x */
    sl_matvec_args op;
    int32_t pairs, per_phase, phases; /* pairs of chunks of a row, of all phases but the last */
    int32_t teams;                    /* a power of two */
    int32_t group;                    /* tiles between which x is loaded and outputs are kept */
    int32_t x_rows;                   /* that x has memory for, at most SL_TILE_X */
    bool dealt;                       /* blocks take granules in turns, not ranges of them; with wide boxes */
} held_args;

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

/* Tile i of the block, where it has every gridDim.x-th granule. */
static __device__ __forceinline__ int32_t held_dealt(const held_args &args, int32_t i) {
    if (!args.dealt) {
        return i;
    }
    const int32_t blocks = (int32_t)gridDim.x, block = (int32_t)blockIdx.x;
    return args.op.activates ? (i / 4 * blocks + block) * 4 + i % 4 : i * blocks + block;
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
    float *sums;          /* buffers of [pair of the phase][team][a pair's sums][HELD_SUMS] */
    float *kept;          /* [tile of the group][HELD_TILE] */
    uint32_t full, empty; /* barriers of the buffers */
} held_memory;

/* Turns of the block's teams through its tiles are dealt to the warps that finish them, whole granules where
 * an activation follows: a turn's number is that of its warp and, times their count, of those that this warp
 * had before. Each has buffers of its own, as a barrier can be waited for by those only that saw its last
 * phase. */
static __device__ __forceinline__ int32_t held_finisher(const held_args &args, int32_t turn) {
    const int32_t together = args.op.activates && args.teams < 4 ? 4 / args.teams : 1;
    return turn / together % HELD_FINISHERS;
}

/* The number of the next turn of warp `finisher`, of which there were so many. */
static __device__ __forceinline__ int32_t held_index(const int32_t (&turns)[HELD_FINISHERS],
                                                     int32_t finisher) {
    int32_t count = turns[0];
#pragma unroll
    for (int f = 1; f < HELD_FINISHERS; f++) {
        count = f == finisher ? turns[f] : count;
    }
    return count * HELD_FINISHERS + finisher;
}

static __device__ __forceinline__ void held_count(int32_t (&turns)[HELD_FINISHERS], int32_t finisher) {
#pragma unroll
    for (int f = 0; f < HELD_FINISHERS; f++) {
        turns[f] += f == finisher;
    }
}

/* Where a warp puts the sums of the tiles that the block's teams multiply in turn `index`. */
template <int TYPE>
static __device__ __forceinline__ float *held_own(const held_args &args, const held_memory &memory,
                                                  int32_t index, int32_t team, int32_t pair) {
    return memory.sums + ((index % held_part<TYPE>::BUFFERS * args.per_phase + pair) * args.teams + team) *
                             (held_part<TYPE>::SUMS * HELD_SUMS);
}

#if __CUDA_ARCH__ >= 900

/* Until the sums that were in its buffer have been added. */
template <int BUFFERS>
static __device__ __forceinline__ void held_await(const held_memory &memory, int32_t index) {
    if (index >= BUFFERS) {
        sl_barrier_wait(memory.empty + 8 * (uint32_t)(index % BUFFERS), (uint32_t)(index / BUFFERS - 1) & 1);
    }
}

#endif

/* ---- launches ---- */

/* What both ways ask for. Returns the blocks. */
static inline int32_t held_fill(const sl_cuda_context *context, const sl_cuda_op *op, held_args *args) {
    args->op = sl_matvec_args_of(context, op);
    const int32_t along = sl_matvec_cut(SL_TILE_ROWS, context->processors, &args->op);
    for (int32_t s = args->op.segments; s < SL_LINEAR_SEGMENTS; s++) {
        args->op.first_unit[s] = args->op.units;
    }
    const int32_t rows = op->rows[op->out[0].rows];
    args->pairs = (args->op.chunks + HELD_CHUNKS - 1) / HELD_CHUNKS;
    args->x_rows = rows < SL_TILE_X ? rows : (int32_t)SL_TILE_X;
    return along;
}

/* When phases and teams are known. */
static inline void held_group(held_args *args) {
    const int32_t each = sl_matvec_most(args->op) * args->op.granule;
    args->group = args->phases > 1 && each > HELD_KEPT ? (int32_t)HELD_KEPT : each;
}

/* A tensor map of `bytes` bytes of each of `rows` rows, and boxes of `box` bytes of all of them. */
static inline cudaError_t held_map_x(const void *data, uint64_t row_bytes, int32_t rows, int32_t bytes,
                                     uint32_t box, CUtensorMap *map) {
    sl_cuda_tensor tensor = {};
    tensor.data = data;
    tensor.element_bytes = 1;
    tensor.sizes[0] = (uint64_t)bytes;
    tensor.sizes[1] = (uint64_t)rows;
    tensor.sizes[2] = 1;
    tensor.strides[0] = row_bytes;
    tensor.strides[1] = row_bytes * (uint64_t)rows;
    tensor.box[0] = box;
    tensor.box[1] = SL_TILE_X;
    tensor.swizzles = box == 128;
    return sl_cuda_tensor_map(&tensor, map);
}

static inline cudaError_t held_map_values(held_args *args) {
    const sl_cuda_operand &x = args->op.x;
    return held_map_x(x.data + x.column, x.row_bytes, args->x_rows, args->op.chunks * SL_CHUNK, 128,
                      &args->values);
}

#endif
