/* Matrix products with up to 8 rows of x at the rate the memory can be read. Class "q8_32/256" of
 * plain_linear.cu.
 *
 * A block takes a range of tiles of 16 weight rows. Each warp has a ring of slots in shared memory and copies
 * item after item to it, one or two chunks of a tile, the first of them before the kernel's inputs are there.
 * It multiplies them on the tensor cores (i8_mma_tile.cuh); the chunks' sums go to shared memory, where
 * threads add those of an output in order. x is staged for up to ROWS_PHASE chunks; longer rows take several
 * phases, between which the block keeps the outputs' sums. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_ROWS8_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_ROWS8_CUH

#include "backend/cuda/linear/i8/i8_arguments.cuh"
#include "backend/cuda/linear/i8/i8_mma_tile.cuh"

enum {
    ROWS_PHASE = 16,  /* chunks */
    ROWS_STRIDE = 20, /* of a row of x in a chunk's sums: 16 and what keeps the banks apart */
    ROWS_SUMS = ROWS_STRIDE * SL_TILE_X,
    ROWS_TILE = SL_TILE_ROWS * SL_TILE_X,
    ROWS_KEPT = 16,   /* tiles */
    ROWS_ROOM = 20480 /* bytes for chunks' sums */
};

/* A unit is a tile. */
typedef struct rows_args {
    sl_matvec_args op;
    int32_t phases;
    bool keeps;            /* outputs, until all phases or all of a granule are there */
    int32_t group;         /* tiles between which x is staged and outputs are kept */
    int32_t batch;         /* tiles whose chunks' sums fit */
    uint32_t per_items[2]; /* sl_matvec_inverse of a tile's items in the last phase, and in those before */
} rows_args;

/* ---- items ---- */

/* Where a warp is: item i of phase `phase` of the tiles [begin, stop). */
typedef struct rows_cursor {
    int32_t begin, stop, end, phase, i;
    int32_t chunks, items; /* of a tile in this phase */
} rows_cursor;

template <int TYPE>
static __device__ __forceinline__ void rows_enter(const rows_args &args, int32_t begin, int32_t phase,
                                                  rows_cursor *at) {
    at->begin = begin;
    at->stop = min(begin + args.group, at->end);
    at->phase = phase;
    at->chunks = min((int32_t)ROWS_PHASE, args.op.chunks - phase * ROWS_PHASE);
    at->items = (at->chunks + sl_tile_shape<TYPE>::ITEM - 1) / sl_tile_shape<TYPE>::ITEM;
}

/* To the warp's next item. */
template <int TYPE, int WARPS>
static __device__ __forceinline__ void rows_advance(const rows_args &args, rows_cursor *at) {
    at->i += WARPS;
    while (at->begin < at->end && at->i >= (at->stop - at->begin) * at->items) {
        at->i -= (at->stop - at->begin) * at->items;
        const bool last = at->phase + 1 == args.phases;
        rows_enter<TYPE>(args, last ? at->stop : at->begin, last ? 0 : at->phase + 1, at);
    }
}

typedef struct rows_item {
    const unsigned char *from; /* the first row's */
    uint64_t row_bytes;
    int32_t rows, chunks; /* that there are */
    int32_t tile, chunk;  /* tile: from the group's first; chunk: of the phase */
} rows_item;

template <int TYPE>
static __device__ __forceinline__ rows_item rows_item_at(const rows_args &args, const rows_cursor &at) {
    enum { ITEM = sl_tile_shape<TYPE>::ITEM };
    rows_item item;
    int32_t row;
    item.tile = sl_matvec_divide(at.i, args.per_items[at.phase + 1 < args.phases]);
    item.chunk = (at.i - item.tile * at.items) * ITEM;
    const sl_cuda_weight &weight = args.op.weights[sl_matvec_unit(args.op, at.begin + item.tile, &row)];
    item.row_bytes = weight.row_bytes;
    item.from = weight.data + (uint64_t)row * weight.row_bytes +
                (at.phase * ROWS_PHASE + item.chunk) * sl_chunk_shape<TYPE>::BYTES;
    item.rows = min(weight.rows - row, (int32_t)SL_TILE_ROWS);
    item.chunks = min(at.chunks - item.chunk, (int32_t)ITEM);
    return item;
}

/* Bytes to copy before a row's chunks, so that copies begin at multiples of 16. */
template <int TYPE> static __device__ __forceinline__ int32_t rows_lead(const unsigned char *from) {
    return sl_chunk_shape<TYPE>::BYTES % 16 ? (int32_t)((uint64_t)from & 15u) : 0;
}

/* By a warp; neighbouring lanes copy neighbouring pieces of 16 bytes. */
template <int TYPE> static __device__ __forceinline__ void rows_copy(const rows_item &item, uint32_t to) {
    typedef sl_tile_shape<TYPE> shape;
    enum { PIECES = sl_chunk_shape<TYPE>::BYTES % 16 ? (shape::BYTES + 14 + 15) / 16 : shape::BYTES / 16 };
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, bytes = item.chunks * sl_chunk_shape<TYPE>::BYTES;
#pragma unroll
    for (int i = 0; i < (SL_TILE_ROWS * PIECES + SL_WARP - 1) / SL_WARP; i++) {
        const int32_t row = (lane + i * SL_WARP) / PIECES, at = (lane + i * SL_WARP) % PIECES * 16;
        const unsigned char *from = item.from + (uint64_t)row * item.row_bytes;
        const int32_t lead = rows_lead<TYPE>(from);
        if (row < item.rows && at < lead + bytes) {
            sl_copy_16(to + (uint32_t)(row * shape::STRIDE + at), from - lead + at);
        }
    }
}

/* ---- products ---- */

typedef struct rows_memory {
    unsigned char *slots, *tables, *records;
    float *sums; /* [tile of the batch][chunk of the phase][row of x][weight row] */
    float *kept; /* [tile of the group][row of x][weight row] */
} rows_memory;

/* The chunks of an item. sums: the tile's. */
template <int TYPE>
static __device__ __forceinline__ void rows_multiply(const rows_item &item, const unsigned char *slot,
                                                     const rows_memory &memory, float *sums) {
    typedef sl_tile_shape<TYPE> shape;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, row = lane / 4;
    const unsigned char *w[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        w[k] = slot + (row + 8 * k) * shape::STRIDE +
               rows_lead<TYPE>(item.from + (uint64_t)(row + 8 * k) * item.row_bytes);
    }
#pragma unroll 1
    for (int32_t c = item.chunk; c < item.chunk + item.chunks; c++) {
        float part[4] = {};
        sl_add_tile<TYPE>(w, sl_tile_record<TYPE>(memory.records + c * shape::X_BYTES, lane), lane, part,
                          memory.tables);
        w[0] += sl_chunk_shape<TYPE>::BYTES;
        w[1] += sl_chunk_shape<TYPE>::BYTES;
        float *sum = sums + c * ROWS_SUMS + lane % 4 * 2 * ROWS_STRIDE + row;
        sum[0] = part[0];
        sum[ROWS_STRIDE] = part[1];
        sum[8] = part[2];
        sum[ROWS_STRIDE + 8] = part[3];
    }
}

/* Adds the chunks of a batch of tiles in order; tile `first` is the batch's first, from the group's. */
static __device__ __forceinline__ void rows_finish(const rows_args &args, const rows_memory &memory,
                                                   const rows_cursor &at, int32_t first, int32_t tiles,
                                                   int32_t count) {
    for (int32_t i = (int32_t)threadIdx.x; i < tiles * ROWS_TILE; i += (int32_t)blockDim.x) {
        const int32_t tile = i / ROWS_TILE, r = i / SL_TILE_ROWS % SL_TILE_X, o = i % SL_TILE_ROWS;
        const float *sum = memory.sums + tile * at.chunks * ROWS_SUMS + r * ROWS_STRIDE + o;
        float *kept = memory.kept + first * ROWS_TILE + i;
        float value = at.phase == 0 ? 0.0f : *kept;
#pragma unroll 4
        for (int32_t c = 0; c < at.chunks; c++) {
            value += sum[c * ROWS_SUMS];
        }
        if (args.keeps) {
            *kept = value;
        }
        int32_t row;
        const sl_cuda_weight &weight =
            args.op.weights[sl_matvec_unit(args.op, at.begin + first + tile, &row)];
        if (at.phase + 1 == args.phases && !args.op.activates && r < count && row + o < weight.rows) {
            sl_linear_store(args.op, weight, 0, r, row + o, value);
        }
    }
}

/* A warp takes a row of a granule of the kept tiles after the other. */
static __device__ __forceinline__ void rows_activate(const rows_args &args, const rows_memory &memory,
                                                     const rows_cursor &at, int32_t count) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, granules = (at.stop - at.begin) / args.op.granule;
    for (int32_t i = (int32_t)threadIdx.x / SL_WARP; i < granules * SL_TILE_X;
         i += (int32_t)blockDim.x / SL_WARP) {
        const int32_t r = i % SL_TILE_X, tile = i / SL_TILE_X * args.op.granule;
        const float *gate =
            memory.kept + (tile + lane / SL_TILE_ROWS) * ROWS_TILE + r * SL_TILE_ROWS + lane % SL_TILE_ROWS;
        if (r < count) {
            sl_matvec_activate(args.op, 0, r, (at.begin + tile) / args.op.granule, gate[0],
                               gate[SL_GRANULE / SL_TILE_ROWS * ROWS_TILE]);
        }
    }
}

/* ---- the kernel ---- */

template <int TYPE, int WARPS, int SLOTS>
static __global__ void __launch_bounds__(WARPS *SL_WARP, 1)
    rows_kernel(const __grid_constant__ rows_args args) {
    enum { SLOT = SL_TILE_ROWS * sl_tile_shape<TYPE>::STRIDE };
    extern __shared__ __align__(128) unsigned char shared[];
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, staged = min(args.op.chunks, (int32_t)ROWS_PHASE);
    rows_memory memory;
    memory.slots = shared + warp * SLOTS * SLOT;
    memory.tables = shared + WARPS * SLOTS * SLOT;
    memory.records = memory.tables + sl_tables<TYPE>::BYTES;
    memory.sums = (float *)(memory.records + staged * sl_tile_shape<TYPE>::X_BYTES);
    memory.kept = memory.sums + args.batch * staged * ROWS_SUMS;
    rows_cursor at, next;
    int32_t first;
    sl_matvec_range(args.op, &first, &at.end);
    at.i = warp - WARPS;
    rows_enter<TYPE>(args, first, 0, &at);
    rows_advance<TYPE, WARPS>(args, &at);
    next = at;
    const auto copy_next =
        [&](int32_t slot) { /* a group of copies, also when there is nothing left */
                            if (next.begin < next.end) {
                                rows_copy<TYPE>(rows_item_at<TYPE>(args, next),
                                                sl_shared_address(memory.slots + slot * SLOT));
                                rows_advance<TYPE, WARPS>(args, &next);
                            }
                            sl_copy_commit();
        };
    sl_let_next_begin();
    for (int slot = 0; slot < SLOTS; slot++) {
        copy_next(slot);
    }
    sl_tables<TYPE>::fill(memory.tables);
    sl_wait_for_inputs();
    const int32_t count = min(sl_matvec_rows(args.op), (int32_t)SL_TILE_X);
    int32_t slot = 0;
    rows_cursor here = at; /* of the block */
    for (rows_enter<TYPE>(args, first, 0, &here); here.begin < here.end;) {
        if (here.begin == first || args.phases > 1) {
            __syncthreads();
            sl_stage_tile_x<TYPE>(args.op.x, count, here.phase * ROWS_PHASE, here.chunks, memory.records);
            __syncthreads();
        }
        for (int32_t tile = 0; tile < here.stop - here.begin; tile += args.batch) {
            const int32_t tiles = min(args.batch, here.stop - here.begin - tile);
            while (at.begin == here.begin && at.phase == here.phase && at.i < (tile + tiles) * at.items) {
                const rows_item item = rows_item_at<TYPE>(args, at);
                sl_copy_wait<SLOTS - 1>();
                __syncwarp();
                rows_multiply<TYPE>(item, memory.slots + slot * SLOT, memory,
                                    memory.sums + (item.tile - tile) * here.chunks * ROWS_SUMS);
                __syncwarp();
                copy_next(slot);
                slot = slot + 1 == SLOTS ? 0 : slot + 1;
                rows_advance<TYPE, WARPS>(args, &at);
            }
            __syncthreads();
            rows_finish(args, memory, here, tile, tiles, count);
            __syncthreads();
        }
        const bool last = here.phase + 1 == args.phases;
        if (last && args.op.activates) {
            rows_activate(args, memory, here, count);
        }
        rows_enter<TYPE>(args, last ? here.stop : here.begin, last ? 0 : here.phase + 1, &here);
    }
}

/* ---- launches ---- */

/* As row1_bytes. */
template <int TYPE, int WARPS, int SLOTS> static inline uint32_t rows_bytes(const rows_args &args) {
    const int32_t staged = args.op.chunks < ROWS_PHASE ? args.op.chunks : (int32_t)ROWS_PHASE;
    return (uint32_t)(WARPS * SLOTS * SL_TILE_ROWS * sl_tile_shape<TYPE>::STRIDE + sl_tables<TYPE>::BYTES +
                      staged * sl_tile_shape<TYPE>::X_BYTES + args.batch * staged * ROWS_SUMS * 4 +
                      (args.keeps ? args.group * ROWS_TILE * 4 : 0));
}

/* As row1_launch. */
template <int TYPE, int WARPS, int SLOTS>
static cudaError_t rows_launch(const sl_cuda_context *context, const sl_cuda_op *op, int32_t blocks,
                               cudaStream_t stream) {
    static_assert(WARPS * SL_TILE_ROWS * sl_tile_shape<TYPE>::STRIDE + (int)sl_tables<TYPE>::BYTES +
                          ROWS_PHASE * (sl_tile_shape<TYPE>::X_BYTES + ROWS_SUMS * 4) + ROWS_ROOM +
                          ROWS_KEPT * ROWS_TILE * 4 <=
                      MATVEC_SHARED_BYTES,
                  "a block fits");
    rows_args args = {};
    args.op = sl_matvec_args_of(context, op);
    const int32_t chunks = args.op.chunks, staged = chunks < ROWS_PHASE ? chunks : (int32_t)ROWS_PHASE;
    args.phases = (chunks + ROWS_PHASE - 1) / ROWS_PHASE;
    args.keeps = args.phases > 1 || args.op.activates;
    const int32_t along = sl_matvec_cut(SL_TILE_ROWS, blocks, &args.op);
    const int32_t each = sl_matvec_most(args.op) * args.op.granule;
    args.group = args.keeps && each > ROWS_KEPT ? (int32_t)ROWS_KEPT : each;
    const int32_t fit = ROWS_ROOM / (staged * ROWS_SUMS * 4);
    args.batch = fit < 1 ? 1 : fit < args.group ? fit : args.group;
    const int32_t last = chunks - (args.phases - 1) * ROWS_PHASE, item = sl_tile_shape<TYPE>::ITEM;
    args.per_items[0] = sl_matvec_inverse((last + item - 1) / item);
    args.per_items[1] = sl_matvec_inverse(ROWS_PHASE / item);
    sl_launch_shape shape = {};
    shape.grid = dim3((unsigned)along);
    shape.block = dim3(WARPS * SL_WARP);
    shape.shared_bytes = rows_bytes<TYPE, WARPS, SLOTS>(args);
    if (shape.shared_bytes > (uint32_t)context->shared_bytes) {
        shape.shared_bytes = rows_bytes<TYPE, WARPS, 1>(args);
        return sl_launch(context, stream, shape, rows_kernel<TYPE, WARPS, 1>, args);
    }
    return sl_launch(context, stream, shape, rows_kernel<TYPE, WARPS, SLOTS>, args);
}

#endif
