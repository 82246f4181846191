/* Matrix products with one row of x, or one per chosen expert, at the rate the memory can be read. Class
 * "q8_32/256" of plain_linear.cu.
 *
 * A block takes a range of weight rows. Rows that lie one after the other are a stretch, cut into items of 32
 * chunks of 256 columns wherever rows end, so that every lane has one. Each warp has a ring of slots in
 * shared memory and copies item after item to it, the first of them before the kernel's inputs are there. A
 * lane keeps its chunk of x in registers, and reads another from shared memory where its next item begins in
 * another place of a row. The chunks' sums are kept there until the range is done, or no more fit; then a
 * thread adds those of a row in order. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_ROW1_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_ROW1_CUH

#include "backend/cuda/linear/i8/i8_chunk.cuh"
#include "backend/cuda/linear/i8/i8_arguments.cuh"

enum { ROW1_SUMS = 4096 }; /* floats, unless a granule has more */

/* A unit is a weight row. */
typedef struct row1_args {
    sl_matvec_args op;
    int32_t padded;      /* sums of a row in shared memory, an odd number */
    int32_t batch;       /* rows whose sums fit, whole granules */
    uint32_t per_chunks; /* sl_matvec_inverse */
    float alpha, limit;  /* of swiglu_oai */
} row1_args;

/* ---- items ---- */

typedef struct row1_item {
    const unsigned char *from;
    int32_t chunks, lead; /* lead: bytes to copy before it, so that copies begin at multiples of 16 */
} row1_item;

/* Where a warp is: at chunk `at` of a stretch of rows that lie one after the other, and whose sums are kept
 * at a time. */
template <int BYTES, int WARPS> struct row1_cursor {
    const unsigned char *from; /* the stretch */
    int32_t unit, end, rows;   /* of the stretch, and behind all */
    int32_t batch_end;
    int32_t at;

    /* The stretch that begins at a unit. */
    __device__ __forceinline__ void enter(const row1_args &args, int32_t first, int32_t expert) {
        const sl_matvec_args &op = args.op;
        unit = first;
        rows = 0;
        from = NULL;
        if (first < end) {
            int32_t row, segment, border;
            if (op.activates) { /* 32 rows of the gate and 32 of up in turn */
                segment = first / SL_GRANULE % 2;
                row = first / (2 * SL_GRANULE) * SL_GRANULE + first % SL_GRANULE;
                border = first / SL_GRANULE * SL_GRANULE + SL_GRANULE;
            } else {
                segment = sl_matvec_unit(op, first, &row);
                border = op.first_unit[segment + 1];
            }
            const sl_cuda_weight &weight = op.weights[segment];
            batch_end = first < batch_end ? batch_end : min(batch_end + args.batch, end);
            rows = min(border, batch_end) - first;
            from = weight.data + (uint64_t)expert * weight.expert_bytes + (uint64_t)row * weight.row_bytes;
        }
    }

    /* To the warp's first item of a block's units. */
    __device__ __forceinline__ void begin(const row1_args &args, int32_t first, int32_t stop,
                                          int32_t expert) {
        end = stop;
        batch_end = first;
        at = (int32_t)threadIdx.x / SL_WARP * SL_WARP;
        enter(args, first, expert);
        settle(args, expert);
    }

    __device__ __forceinline__ void settle(const row1_args &args, int32_t expert) {
        int32_t whole = (rows * args.op.chunks + SL_WARP - 1) & -SL_WARP;
        while (unit < end && at >= whole) {
            at -= whole;
            enter(args, unit + rows, expert);
            whole = (rows * args.op.chunks + SL_WARP - 1) & -SL_WARP;
        }
    }

    /* To the warp's next item. */
    __device__ __forceinline__ void advance(const row1_args &args, int32_t expert) {
        at += WARPS * SL_WARP;
        settle(args, expert);
    }

    __device__ __forceinline__ bool any(void) const {
        return unit < end;
    }

    __device__ __forceinline__ row1_item item(const row1_args &args) const {
        row1_item item;
        item.from = from + at * BYTES;
        item.lead = BYTES % 16 ? (int32_t)((uint64_t)item.from & 15u) : 0;
        item.chunks = min(rows * args.op.chunks - at, (int32_t)SL_WARP);
        return item;
    }
};

/* A warp's slots: item after item is copied to them in turn. */
template <int TYPE, int SLOTS> struct warp_ring {
    enum { BYTES = sl_chunk_shape<TYPE>::BYTES };
    enum { SLOT = SL_WARP * BYTES + 32 }; /* with what a copy takes besides the item */
    unsigned char *slots;
    uint32_t barriers;
    int32_t slot;
    uint32_t parity;

    __device__ __forceinline__ void init(unsigned char *memory, unsigned char *barrier_memory) {
        slots = memory;
        barriers = sl_shared_address(barrier_memory);
        slot = 0;
        parity = 0;
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x % SL_WARP == 0) {
            for (int i = 0; i < SLOTS; i++) {
                sl_barrier_init(barriers + 8 * (uint32_t)i, 1);
            }
            sl_fence_shared();
        }
        __syncwarp();
#endif
    }

    /* By the whole warp. Without bulk copies every call ends a group of copies, also when there is nothing to
     * copy. */
    __device__ __forceinline__ void copy(bool any, const row1_item &item, int32_t to) {
        const int32_t bytes = (item.lead + item.chunks * BYTES + 15) / 16 * 16;
        const uint32_t at = sl_shared_address(slots + to * SLOT);
        const unsigned char *from = item.from - item.lead;
#if __CUDA_ARCH__ >= 900
        if (any && threadIdx.x % SL_WARP == 0) {
            const uint32_t barrier = barriers + 8 * (uint32_t)to;
            sl_barrier_expect(barrier, (uint32_t)bytes);
            sl_bulk_copy(at, from, (uint32_t)bytes, barrier);
        }
#else
        for (int32_t i = 16 * ((int32_t)threadIdx.x % SL_WARP); any && i < bytes; i += 16 * SL_WARP) {
            sl_copy_16(at + (uint32_t)i, from + i);
        }
        sl_copy_commit();
#endif
    }

    /* Returns when the copy to slot `of` of the first round is there. */
    __device__ __forceinline__ void await_first(int32_t of) {
#if __CUDA_ARCH__ >= 900
        sl_barrier_wait(barriers + 8 * (uint32_t)of, 0);
#else
        (void)of;
#endif
    }

    /* Waits for the next item and returns where it begins. */
    __device__ __forceinline__ const unsigned char *wait(const row1_item &item) {
#if __CUDA_ARCH__ >= 900
        sl_barrier_wait(barriers + 8 * (uint32_t)slot, parity);
#else
        sl_copy_wait<SLOTS - 1>();
        __syncwarp();
#endif
        return slots + slot * SLOT + item.lead;
    }

    __device__ __forceinline__ void advance(void) {
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        parity ^= slot == 0;
    }
};

/* ---- the kernel ---- */

static __device__ __forceinline__ float row1_sum(const float *chunks, int32_t count) {
    float sum = 0;
#pragma unroll 16
    for (int32_t c = 0; c < count; c++) {
        sum += chunks[c];
    }
    return sum;
}

/* Rows [first, first + count) of the block's, whose chunks' sums are there. */
template <int TYPE>
static __device__ __forceinline__ void row1_finish(const row1_args &args, const float *sums, int32_t first,
                                                   int32_t count, int32_t expert, int32_t y_row) {
    const sl_matvec_args &op = args.op;
    if (op.activates) {
        const int32_t lane = (int32_t)threadIdx.x % SL_WARP, step = (int32_t)blockDim.x / SL_WARP;
        for (int32_t g = (int32_t)threadIdx.x / SL_WARP; 2 * SL_GRANULE * g < count; g += step) {
            const float *rows = sums + (2 * g * SL_GRANULE + lane) * args.padded;
            const float gate = row1_sum(rows, op.chunks),
                        up = row1_sum(rows + SL_GRANULE * args.padded, op.chunks);
            const int32_t granule = first / (2 * SL_GRANULE) + g;
            sl_matvec_activate_by(
                op, expert, y_row, granule, make_float2(gate, up), [&args](float a, float b) {
                    return sl_gate<SL_CUDA_TAKES_OAI(TYPE)>({args.op.function, args.alpha, args.limit}, a, b);
                });
            const bool is_last = (granule + 1) * SL_GRANULE == op.weights[0].rows;
            if (op.quantized.padding > 0 && is_last && lane < SL_Q8_32_GROUP / SL_QUAD) {
                sl_pad_row(op.quantized, y_row, lane);
            }
        }
        return;
    }
    for (int32_t i = (int32_t)threadIdx.x; i < count; i += (int32_t)blockDim.x) {
        int32_t row;
        const sl_cuda_weight &weight = op.weights[sl_matvec_unit(op, first + i, &row)];
        sl_linear_store(op, weight, expert, y_row, row, row1_sum(sums + i * args.padded, op.chunks));
    }
}

/* A row of y for each y of the grid. */
template <int TYPE, int WARPS, int SLOTS>
static __global__ void __launch_bounds__(WARPS *SL_WARP, 1)
    row1_kernel(const __grid_constant__ row1_args args) {
    typedef warp_ring<TYPE, SLOTS> ring_type;
    enum { BYTES = ring_type::BYTES, RING = WARPS * SLOTS * ring_type::SLOT };
    enum { RECORD = sl_chunk_shape<TYPE>::RECORD, BARRIERS = (WARPS * SLOTS * 8 + 15) / 16 * 16 };
    extern __shared__ __align__(128) unsigned char shared[];
    const sl_matvec_args &op = args.op;
    unsigned char *tables = shared + RING + BARRIERS, *records = tables + sl_tables<TYPE>::BYTES;
    float *sums = (float *)(records + op.chunks * RECORD);
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t y_row = (int32_t)blockIdx.y;
    int32_t first, end, expert = 0;
    sl_matvec_range(op, &first, &end);

    ring_type ring;
    ring.init(shared + warp * SLOTS * ring_type::SLOT, shared + RING + warp * SLOTS * 8);
    row1_cursor<BYTES, WARPS> next, here;
    const auto copy_next = [&](int32_t slot) {
        ring.copy(next.any(), next.item(args), slot);
        next.advance(args, expert);
    };
    sl_let_next_begin();
    if (!op.ids.data) {
        next.begin(args, first, end, expert);
        here = next;
        for (int slot = 0; slot < SLOTS; slot++) {
            if (slot > 0 && next.any()) { /* more would delay what this and the kernel before read */
                ring.await_first(slot - 1);
            }
            copy_next(slot);
        }
    }
    sl_tables<TYPE>::fill(tables);
    sl_wait_for_inputs();
    const bool valid = y_row < sl_matvec_rows(op);
    if (op.ids.data) {
        if (!valid) {
            return;
        }
        expert = sl_i32(op.ids, y_row / op.experts_used)[y_row % op.experts_used];
        next.begin(args, first, end, expert);
        here = next;
        for (int slot = 0; slot < SLOTS; slot++) {
            copy_next(slot);
        }
    }
    sl_stage_x<TYPE>(sl_q8_32_of(op.x, y_row / op.x_share), op.chunks, records);
    __syncthreads();

    int32_t held = -1;
    sl_x_chunk<TYPE> x;
    for (int32_t batch = first; batch < end; batch += args.batch) {
        const int32_t batch_end = min(batch + args.batch, end);
        while (here.unit < batch_end) {
            const row1_item item = here.item(args);
            const int32_t row = sl_matvec_divide(here.at + lane, args.per_chunks);
            const int32_t chunk = here.at + lane - row * op.chunks;
            float *sum = sums + (here.unit - batch + row) * args.padded + chunk;
            if (chunk != held) {
                x.load(records + chunk * RECORD);
                held = chunk;
            }
            const unsigned char *chunks = ring.wait(item);
            if (lane < item.chunks) {
                *sum = sl_multiply_chunk<TYPE>(chunks + lane * BYTES, x, tables);
            }
            sl_fence_shared();
            __syncwarp();
            copy_next(ring.slot);
            ring.advance();
            here.advance(args, expert);
        }
        __syncthreads();
        if (valid) { /* an empty step has copies under way, and must wait for them as well */
            row1_finish<TYPE>(args, sums, batch, batch_end - batch, expert, y_row);
        }
        __syncthreads();
    }
}

/* ---- launches ---- */

/* Of shared memory, where a warp has that many slots. */
template <int TYPE, int WARPS, int SLOTS> static inline uint32_t row1_bytes(const row1_args &args) {
    return (uint32_t)(WARPS * SLOTS * warp_ring<TYPE, SLOTS>::SLOT + (WARPS * SLOTS * 8 + 15) / 16 * 16 +
                      sl_tables<TYPE>::BYTES + args.op.chunks * sl_chunk_shape<TYPE>::RECORD +
                      args.batch * args.padded * 4);
}

/* No more blocks than the device has processors, unless there are more rows of y: of two that share one the
 * others would wait. A warp has SLOTS slots, or one where rows are long: with one a block fits in
 * MATVEC_SHARED_BYTES whatever the type and the shape. */
template <int TYPE, int WARPS, int SLOTS>
static cudaError_t row1_launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    enum { MOST_CHUNKS = MATVEC_COLUMNS / SL_CHUNK };
    static_assert(WARPS * (warp_ring<TYPE, 1>::SLOT + 16) + (int)sl_tables<TYPE>::BYTES +
                          MOST_CHUNKS * ((int)sl_chunk_shape<TYPE>::RECORD + 2 * SL_GRANULE * 4) +
                          2 * SL_GRANULE * 4 + ROW1_SUMS * 4 <=
                      MATVEC_SHARED_BYTES,
                  "a block fits");
    row1_args args = {};
    args.op = sl_matvec_args_of(context, op);
    if (args.op.activates) {
        args.alpha = op[1].op->u.activate.alpha;
        args.limit = op[1].op->u.activate.limit;
    }
    const int32_t chunks = args.op.chunks, rows = op->rows[op->out[0].rows];
    args.padded = chunks | 1;
    args.per_chunks = sl_matvec_inverse(chunks);
    const int32_t blocks = context->processors / rows;
    const int32_t along = sl_matvec_cut(1, blocks > 0 ? blocks : 1, &args.op);
    const int32_t each = sl_matvec_most(args.op), fit = ROW1_SUMS / (args.op.granule * args.padded);
    args.batch = (fit < 1 ? 1 : fit < each ? fit : each) * args.op.granule;
    sl_launch_shape shape = {};
    shape.grid = dim3((unsigned)along, (unsigned)rows);
    shape.block = dim3(WARPS * SL_WARP);
    shape.shared_bytes = row1_bytes<TYPE, WARPS, SLOTS>(args);
    if (shape.shared_bytes > (uint32_t)context->shared_bytes) {
        shape.shared_bytes = row1_bytes<TYPE, WARPS, 1>(args);
        return sl_launch(context, stream, shape, row1_kernel<TYPE, WARPS, 1>, args);
    }
    return sl_launch(context, stream, shape, row1_kernel<TYPE, WARPS, SLOTS>, args);
}

#endif
