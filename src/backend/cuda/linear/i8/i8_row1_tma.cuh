/* Matrix products with one row of x at the rate the memory can be read, for devices of capability 9.0. Class
 * "q8_32/256" of plain_linear.cu.
 *
 * A block takes a range of weight rows and goes through it in stages of whole rows. Bulk copies bring stage
 * after stage to a ring of slots in shared memory, the first of them before the kernel's inputs are there.
 * Two lanes have the same chunk of 256 columns of every stage, so that its x stays in registers. The chunks'
 * sums are kept in shared memory until the range is done, or no more fit; then a thread adds those of a row
 * in order.
 *
 * For types with sl_half_chunk, without experts. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_ROW1_TMA_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_ROW1_TMA_CUH

#include "backend/cuda/linear/i8/i8_chunk.cuh"

enum {
    ROW1_TMA_WARPS = 8,
    ROW1_TMA_SUMS = 4096,         /* floats, where more stages follow */
    ROW1_TMA_SHARED = 132 * 1024, /* bytes of a block, unless long ranges of large slots want more */
    ROW1_TMA_AHEAD = 2,           /* stages copied before the inputs are there: more would delay x */
    ROW1_TMA_LEAST = 3            /* slots where more stages follow */
};

typedef struct row1_tma_args {
    sl_matvec_args op;       /* a unit is a row */
    int32_t rows, row_bytes; /* of a stage */
    int32_t padded;          /* sums of a row, an odd number */
    int32_t batch;           /* stages whose sums fit */
    int32_t slots, ahead;    /* stages of the ring, and those copied before the inputs are there */
    uint32_t per_chunks;     /* sl_matvec_inverse */
} row1_tma_args;

template <int TYPE> struct row1_tma_shape {
    enum { CHUNKS = ROW1_TMA_WARPS * SL_WARP / 2, SLOT = CHUNKS * (int)sl_chunk_shape<TYPE>::BYTES };
};

/* Sums of two rows' chunks, one after the other. */
static __device__ __forceinline__ float2 row1_tma_sums(const float *a, const float *b, int32_t count) {
    float2 sums = make_float2(0, 0);
#pragma unroll 8
    for (int32_t c = 0; c < count; c++) {
        sums.x += a[c];
        sums.y += b[c];
    }
    return sums;
}

/* Where a row's result goes, known before it is. */
typedef struct row1_tma_target {
    float *y;
    const float *residual; /* or NULL */
    float bias;
    bool biased;
} row1_tma_target;

static __device__ __forceinline__ row1_tma_target row1_tma_target_of(const sl_matvec_args &op, int32_t unit) {
    int32_t row;
    const sl_cuda_weight &weight = op.weights[sl_matvec_unit(op, unit, &row)];
    row1_tma_target target;
    target.y = sl_f32(op.y, 0) + weight.column + row;
    target.residual = op.residual.data ? sl_f32(op.residual, 0) + weight.column + row : NULL;
    target.biased = weight.bias != NULL;
    target.bias = target.biased ? weight.bias[row] : 0.0f;
    return target;
}

/* As sl_linear_store. */
static __device__ __forceinline__ void row1_tma_store(const row1_tma_target &target, float value) {
    value = target.biased ? value + target.bias : value;
    *target.y = target.residual ? value + *target.residual : value;
}

/* Rows [first, first + count) of the range, whose chunks' sums are there. own: of the thread's row of the
 * range's first ones. */
static __device__ __forceinline__ void row1_tma_finish(const row1_tma_args &args, const float *sums,
                                                       int32_t first, int32_t count,
                                                       const row1_tma_target &own, bool first_time) {
    const sl_matvec_args &op = args.op;
    if (op.activates) {
        for (int32_t g = (int32_t)threadIdx.x / SL_WARP; 2 * SL_GRANULE * g < count; g += ROW1_TMA_WARPS) {
            const int32_t row = 2 * SL_GRANULE * g + (int32_t)threadIdx.x % SL_WARP;
            const float2 both =
                row1_tma_sums(sums + row * args.padded, sums + (row + SL_GRANULE) * args.padded, op.chunks);
            sl_matvec_activate(op, 0, 0, first / (2 * SL_GRANULE) + g, both.x, both.y);
        }
        return;
    }
    for (int32_t i = (int32_t)threadIdx.x; i < count; i += ROW1_TMA_WARPS * SL_WARP) {
        const float *row = sums + i * args.padded;
        const float sum = row1_tma_sums(row, row, op.chunks).x;
        row1_tma_store(first_time && i == (int32_t)threadIdx.x ? own : row1_tma_target_of(op, first + i),
                       sum);
    }
}

#if __CUDA_ARCH__ >= 900
/* A block's ring of slots of SLOT bytes, and where it is in it: stage s has slot s % slots. Addresses are of
 * shared memory. */
template <int SLOT> struct row1_tma_ring {
    const row1_tma_args &args;
    uint32_t memory, full, empty; /* the slots, and their barriers */
    int32_t first, end, stages;   /* rows, and stages of them */
    int32_t slot;
    uint32_t parity;

    /* By one thread. */
    __device__ __forceinline__ void copy(int32_t stage, int32_t to) const {
        const sl_matvec_args &op = args.op;
        const uint32_t barrier = full + 8 * (uint32_t)to;
        uint32_t at = memory + (uint32_t)(to * SLOT);
        int32_t row = first + stage * args.rows, count = min(args.rows, end - row);
        sl_barrier_expect(barrier, (uint32_t)(count * args.row_bytes));
#pragma unroll 1
        while (count > 0) { /* up to the next row that lies elsewhere */
            int32_t of_weight;
            const int32_t segment = sl_matvec_unit(op, row, &of_weight);
            const int32_t border =
                op.activates ? row / SL_GRANULE * SL_GRANULE + SL_GRANULE : op.first_unit[segment + 1];
            const int32_t rows = min(count, border - row);
            const uint32_t bytes = (uint32_t)(rows * args.row_bytes);
            sl_bulk_copy(at, op.weights[segment].data + (uint64_t)of_weight * (uint32_t)args.row_bytes, bytes,
                         barrier);
            at += bytes;
            row += rows;
            count -= rows;
        }
    }

    /* Stages [from, to), each to the slot of its number; by one thread. */
    __device__ __forceinline__ void copy_first(int32_t from, int32_t to) const {
#pragma unroll 1
        for (int32_t s = from; s < min(to, stages); s++) {
            copy(s, s);
        }
    }

    __device__ __forceinline__ void start(void) const {
        for (uint32_t s = 0; s < (uint32_t)args.slots; s++) {
            sl_barrier_init(full + 8 * s, 1);
            sl_barrier_init(empty + 8 * s, ROW1_TMA_WARPS * SL_ARRIVING_LANES);
        }
        sl_fence_shared();
    }

    /* The warp has done the stage. The one before, which all warps should have done, makes room; warps take
     * turns at that. */
    __device__ __forceinline__ void leave(int32_t stage, int32_t *turn) {
        const int32_t lane = (int32_t)threadIdx.x % SL_WARP, slots = args.slots;
        __syncwarp();
        if (lane < SL_ARRIVING_LANES) {
            sl_barrier_arrive(empty + 8 * (uint32_t)slot);
        }
        if (stage == *turn) {
            *turn += ROW1_TMA_WARPS;
            if (lane == 0 && stage > 0 && stage - 1 + slots < stages) {
                const int32_t before = slot ? slot - 1 : slots - 1;
                sl_barrier_wait(empty + 8 * (uint32_t)before, slot ? parity : parity ^ 1);
                sl_fence_shared();
                copy(stage - 1 + slots, before);
            }
            __syncwarp();
        }
        slot = slot + 1 == slots ? 0 : slot + 1;
        parity ^= slot == 0;
    }
};
#endif

/* One row of y. */
template <int TYPE>
static __global__ void __launch_bounds__(ROW1_TMA_WARPS *SL_WARP, 2)
    row1_tma_kernel(const __grid_constant__ row1_tma_args args) {
#if __CUDA_ARCH__ >= 900
    enum { SLOT = row1_tma_shape<TYPE>::SLOT };
    enum { BYTES = sl_chunk_shape<TYPE>::BYTES, RECORD = sl_chunk_shape<TYPE>::RECORD };
    extern __shared__ __align__(128) unsigned char shared[];
    const sl_matvec_args &op = args.op;
    unsigned char *records = shared + args.slots * SLOT;
    unsigned char *barriers = records + op.chunks * RECORD;
    float *sums = (float *)(void *)(barriers + 16 * args.slots);
    int32_t first, end;
    sl_let_next_begin();
    sl_matvec_range(op, &first, &end);
    const uint32_t full = sl_shared_address(barriers);
    row1_tma_ring<SLOT> ring = {args,
                                sl_shared_address(shared),
                                full,
                                full + 8 * (uint32_t)args.slots,
                                first,
                                end,
                                (end - first + args.rows - 1) / args.rows,
                                0,
                                0};
    if (threadIdx.x == 0) {
        ring.start();
        ring.copy_first(0, args.ahead);
    }
    row1_tma_target target = {};
    if (!op.activates && first + (int32_t)threadIdx.x < end) {
        target = row1_tma_target_of(op, first + (int32_t)threadIdx.x);
    }
    __syncwarp();
    sl_wait_for_inputs();
    const bool valid = sl_matvec_rows(op) > 0;
    sl_stage_x<TYPE>(sl_q8_32_of(op.x, 0), op.chunks, records);
    if (threadIdx.x == 0) {
        ring.copy_first(args.ahead, args.slots);
    }
    __syncthreads();

    const int32_t index = (int32_t)threadIdx.x / 2, half = (int32_t)threadIdx.x % 2;
    const int32_t lane_row = sl_matvec_divide(index, args.per_chunks), chunk = index - lane_row * op.chunks;
    const bool active = lane_row < args.rows; /* of the last stage's rows some may count nowhere */
    const int32_t at = active ? index * BYTES : 0;
    sl_x_half<TYPE> x;
    x.load(records + chunk * RECORD, half);
    int32_t turn = (int32_t)threadIdx.x / SL_WARP;
    for (int32_t batch = 0; batch < ring.stages; batch += args.batch) {
        const int32_t batch_end = min(batch + args.batch, ring.stages);
        float *sum = sums + lane_row * args.padded + chunk;
#pragma unroll 1
        for (int32_t stage = batch; stage < batch_end; stage++, sum += args.rows * args.padded) {
            sl_barrier_wait(full + 8 * (uint32_t)ring.slot, ring.parity);
            const float product = sl_half_chunk<TYPE>::product(shared + ring.slot * SLOT + at, x, half);
            if (active && half) {
                *sum = product;
            }
            ring.leave(stage, &turn);
        }
        __syncthreads();
        const int32_t from = first + batch * args.rows;
        if (valid) { /* an empty step has copies under way, and must wait for them as well */
            row1_tma_finish(args, sums, from, min(end - from, args.batch * args.rows), target, batch == 0);
        }
        if (batch_end < ring.stages) {
            __syncthreads();
        }
    }
#endif
}

/* ---- launches ---- */

/* How a block goes through at most `most` weight rows. args->op.chunks and .activates are given. Returns its
 * shared memory in bytes. */
template <int TYPE> static inline int32_t row1_tma_cut(int32_t most, row1_tma_args *args) {
    enum { CHUNKS = row1_tma_shape<TYPE>::CHUNKS, SLOT = row1_tma_shape<TYPE>::SLOT };
    const int32_t chunks = args->op.chunks;
    args->rows = CHUNKS / chunks;
    args->row_bytes = chunks * sl_chunk_shape<TYPE>::BYTES;
    args->padded = chunks | 1;
    args->per_chunks = sl_matvec_inverse(chunks);
    const int32_t stages = (most + args->rows - 1) / args->rows;
    const int32_t fit = ROW1_TMA_SUMS / (args->rows * args->padded);
    /* Granules are not cut. */
    args->batch = args->op.activates || stages < fit ? stages : fit < 1 ? 1 : fit;
    const int32_t others =
        chunks * sl_chunk_shape<TYPE>::RECORD + args->batch * args->rows * args->padded * 4;
    args->slots = (ROW1_TMA_SHARED - others) / (SLOT + 16);
    args->slots =
        args->slots < ROW1_TMA_LEAST && args->slots < stages ? (int32_t)ROW1_TMA_LEAST : args->slots;
    args->slots = args->slots < ROW1_TMA_AHEAD ? (int32_t)ROW1_TMA_AHEAD : args->slots;
    args->ahead = ROW1_TMA_AHEAD;
    return args->slots * (SLOT + 16) + others;
}

/* Whether a block that activates its rows has room for their sums; alone it always has. */
template <int TYPE>
static inline bool row1_tma_activates(int32_t chunks, int32_t most, int32_t shared_bytes) {
    row1_tma_args args = {};
    args.op.chunks = chunks;
    args.op.activates = true;
    return row1_tma_cut<TYPE>(most, &args) <= shared_bytes;
}

template <int TYPE>
static cudaError_t row1_tma_launch(const sl_cuda_context *context, const sl_cuda_op *op,
                                   cudaStream_t stream) {
    static_assert(sl_chunk_shape<TYPE>::BYTES % 16 == 0, "bulk copies of rows as they lie");
    static_assert(MATVEC_COLUMNS / SL_CHUNK <= row1_tma_shape<TYPE>::CHUNKS, "a stage has a row");
    static_assert(ROW1_TMA_LEAST * (row1_tma_shape<TYPE>::SLOT + 16) +
                          MATVEC_COLUMNS / SL_CHUNK * sl_chunk_shape<TYPE>::RECORD + ROW1_TMA_SUMS * 4 <=
                      MATVEC_SHARED_BYTES,
                  "a block fits");
    row1_tma_args args = {};
    args.op = sl_matvec_args_of(context, op);
    sl_launch_shape shape = {};
    shape.grid = dim3((unsigned)sl_matvec_cut(1, context->processors, &args.op));
    shape.block = dim3(ROW1_TMA_WARPS * SL_WARP);
    shape.shared_bytes = (uint32_t)row1_tma_cut<TYPE>(sl_matvec_most(args.op) * args.op.granule, &args);
    /* Of two blocks that fit on a processor another would miss one. */
    const uint32_t alone = (uint32_t)context->shared_bytes / 2;
    shape.shared_bytes = shape.shared_bytes > alone ? shape.shared_bytes : alone;
    return sl_launch(context, stream, shape, row1_tma_kernel<TYPE>, args);
}

#endif
