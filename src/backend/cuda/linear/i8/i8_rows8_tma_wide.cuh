/* Products of i8_rows8_tma.cuh with wide boxes: each of sixteen warps has one chunk of 256 columns of a
 * phase, weights of Q8_0 come as boxes of 1024 columns for four of them, and a warp of its own copies. Blocks
 * take tiles in turns and not ranges of them, so that what is under way lies side by side. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_ROWS8_TMA_WIDE_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_ROWS8_TMA_WIDE_CUH

#include "backend/cuda/linear/i8/i8_rows8_tma_finish.cuh"

enum {
    WIDE_WARPS = 16, /* that multiply; then those that finish outputs, and the one that copies */
    WIDE_THREADS = (WIDE_WARPS + HELD_FINISHERS + 1) * SL_WARP,
    /* Of a thread: five warps of a quarter of a processor leave a norm's two their room. */
    WIDE_REGISTERS = 80,
    WIDE_SHARE = 4, /* warps of a box */
    WIDE_CHUNK_BYTES = sl_chunk_shape<SL_QTYPE_Q8_0>::BYTES,
    /* Of a row of a box: 16 bytes of the next box too, which keep the reads of a warp on different banks. */
    WIDE_STRIDE = WIDE_SHARE * WIDE_CHUNK_BYTES + 16,
    WIDE_SLOT = SL_TILE_ROWS * WIDE_STRIDE,
    /* Boxes under way at most, which memory needs to be busy. More would only wait, and with them x, and what
     * the kernel before reads. Nor may there be more than slots less the boxes of a tile: a slot has boxes of
     * other warps in turn, and a warp may wait for its own only when the one before in that slot has come. It
     * has, when it came before the warp's last box was asked for. */
    WIDE_FLIGHT = 4,
    WIDE_X_ROW = SL_CHUNK_GROUPS * 4, /* bytes of a chunk's scales */
    WIDE_X_VALUES = SL_TILE_X * SL_CHUNK,
    WIDE_X_SCALES = SL_TILE_X * WIDE_X_ROW,
    WIDE_SUMS = HELD_FINISHERS * WIDE_WARPS * HELD_SUMS * 4,
    WIDE_KEPT = HELD_KEPT * HELD_TILE * 4, /* outputs of the tiles of a group, between phases */
    WIDE_LEAST_COLUMNS = 3072,             /* of fewer, too many warps have none */
    /* Of a phase. More columns are whole phases, as the order of barriers asks for warps with boxes in all.
     */
    WIDE_PHASE = WIDE_WARPS * SL_CHUNK
};

/* Boxes that a block has room for. Where x comes once, sums take its place. */
template <bool PHASES> struct wide_shape {
    enum { SLOTS = PHASES ? 9 : 11 };
    enum { BARRIERS = 8 * (2 * SLOTS + 2 * HELD_FINISHERS + WIDE_WARPS + 1) };
    enum {
        BYTES = WIDE_WARPS * (WIDE_X_VALUES + (PHASES ? 2 : 1) * WIDE_X_SCALES) + SLOTS * WIDE_SLOT +
                BARRIERS + (PHASES ? WIDE_SUMS + WIDE_KEPT : 0)
    };
};

typedef struct wide_memory {
    held_memory sums;
    uint32_t slots, full, empty; /* and barriers of them */
    uint32_t x, placed;          /* barriers of the warps' x, and of all that is in registers */
    unsigned char *values, *scales;
} wide_memory;

#if __CUDA_ARCH__ >= 900

/* Boxes of a tile's columns of a phase. */
static __device__ __forceinline__ int32_t wide_boxes(const held_args &args, int32_t phase) {
    return (min(args.op.chunks - phase * WIDE_WARPS, (int32_t)WIDE_WARPS) + WIDE_SHARE - 1) / WIDE_SHARE;
}

/* All boxes of the block, tile after tile of a group, phase after phase. By one warp, of which a lane asks
 * for them: lanes that went elsewhere could wait for the kernel's inputs first, and it behind them. */
template <int SLOTS>
static __device__ __forceinline__ void wide_copy_all(const held_args &args, const wide_memory &memory,
                                                     held_cursor at, int32_t end) {
    const bool leads = threadIdx.x % SL_WARP == 0;
    uint32_t count = 0, slot = 0, parity = 1, arriving = 0, there = 0;
#pragma unroll 1
    while (at.begin < end) {
        const int32_t stop = held_stop(args, at, end), boxes = wide_boxes(args, at.phase);
        int32_t tile = at.begin, box = 0;
#pragma unroll 1
        while (tile < stop) {
            if (count == SLOTS) {
                sl_wait_for_inputs();
            }
            sl_barrier_wait(memory.empty + 8 * slot, parity);
            if (count >= WIDE_FLIGHT) {
                sl_barrier_wait(memory.full + 8 * arriving, there);
                there ^= arriving + 1 == SLOTS;
                arriving = arriving + 1 == SLOTS ? 0 : arriving + 1;
            }
            int32_t row;
            const int32_t segment = held_place(args.op, held_dealt(args, tile), &row);
            __syncwarp(); /* what a lane waits for has not come twice */
            if (leads) {
                sl_fence_shared(); /* those of the warps that arrived */
                sl_barrier_expect(memory.full + 8 * slot, WIDE_SLOT);
                sl_box_copy_once(memory.slots + slot * WIDE_SLOT, &args.maps[segment],
                                 (at.phase * WIDE_WARPS + box * WIDE_SHARE) * (WIDE_CHUNK_BYTES / 8), row, 0,
                                 memory.full + 8 * slot);
            }
            count++;
            tile += box + 1 == boxes;
            box = box + 1 == boxes ? 0 : box + 1;
            parity ^= slot + 1 == SLOTS;
            slot = slot + 1 == SLOTS ? 0 : slot + 1;
        }
        held_leave(args, 0, end, &at);
    }
    if (count <= SLOTS) {
        sl_wait_for_inputs();
    }
}

/* [group][row], in one of two places. */
template <bool PHASES>
static __device__ __forceinline__ float *wide_scales(const wide_memory &memory, int32_t warp,
                                                     uint32_t loads) {
    return (float *)(void *)(memory.scales +
                             ((PHASES ? 2 : 1) * (uint32_t)warp + (PHASES ? loads % 2 : 0)) * WIDE_X_SCALES);
}

/* Asks for x of a chunk, which comes to the warp's shared memory: its values as boxes, its scales, of which a
 * row has 32 bytes, by the lanes. loads: how often before. */
template <bool PHASES>
static __device__ __forceinline__ void wide_bring_x(const held_args &args, const wide_memory &memory,
                                                    int32_t warp, int32_t chunk, uint32_t loads) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    if (lane == 0) {
        const uint32_t barrier = memory.x + 8 * (uint32_t)warp;
        const uint32_t values = sl_shared_address(memory.values + warp * WIDE_X_VALUES);
        sl_barrier_expect(barrier, WIDE_X_VALUES);
        for (int h = 0; h < 2; h++) {
            sl_box_copy(values + (uint32_t)(h * HELD_X_VALUES), &args.values, 128 * (2 * chunk + h), 0, 0,
                        barrier);
        }
    }
    const uint32_t scales = sl_shared_address(wide_scales<PHASES>(memory, warp, loads));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int32_t at = lane + i * SL_WARP, row = at / SL_CHUNK_GROUPS, group = at % SL_CHUNK_GROUPS;
        const bool there = row < args.x_rows;
        sl_copy_4_of(scales + (uint32_t)(4 * (group * SL_TILE_X + row)),
                     sl_q8_32_of(args.op.x, there ? row : 0).scales + chunk * SL_CHUNK_GROUPS + group,
                     there ? 4 : 0);
    }
}

/* What was asked for `loads` times before. */
template <bool PHASES>
static __device__ __forceinline__ void wide_place_x(const wide_memory &memory, int32_t warp, uint32_t loads,
                                                    held_x *x) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const unsigned char *values = memory.values + warp * WIDE_X_VALUES;
    sl_barrier_wait(memory.x + 8 * (uint32_t)warp, loads & 1);
#pragma unroll
    for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
        x->held[g] = held_values<SL_QTYPE_Q8_0>(
            (const uint32_t *)(const void *)(values + g / 4 * HELD_X_VALUES), g % 4, lane);
    }
    sl_fence_shared();
    sl_copy_wait_all();
    __syncwarp();
    x->scales_at = wide_scales<PHASES>(memory, warp, loads) + lane % 4 * 2;
}

/* What a warp does in a turn of the block: has its columns a box (`reads`), has it any itself (`works`). */
typedef struct wide_turn {
    bool reads, works;
    uint32_t used; /* boxes of the tiles before */
    int32_t index; /* of the sums */
} wide_turn;

/* A warp's columns of a tile. */
template <bool PHASES>
static __device__ __forceinline__ void wide_multiply(const wide_memory &memory, const held_x &x, int32_t warp,
                                                     const wide_turn &turn) {
    enum { SLOTS = wide_shape<PHASES>::SLOTS };
    const bool reads = turn.reads, works = turn.works;
    const uint32_t used = turn.used;
    const int32_t index = turn.index;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    float sums[4] = {};
    if (reads) {
        const uint32_t box = used + (uint32_t)(warp / WIDE_SHARE), slot = box % SLOTS;
        sl_barrier_wait(memory.full + 8 * slot, box / SLOTS & 1);
        if (works) {
            const unsigned char *first = (const unsigned char *)__cvta_shared_to_generic(
                memory.slots + slot * WIDE_SLOT + (uint32_t)(lane / 4 * WIDE_STRIDE) +
                (uint32_t)(warp % WIDE_SHARE * WIDE_CHUNK_BYTES));
            const unsigned char *const w[2] = {first, first + 8 * WIDE_STRIDE};
            sl_tile<SL_QTYPE_Q8_0>::add(w, x, lane, sums);
        }
        __syncwarp();
        if (lane < SL_ARRIVING_LANES) {
            sl_barrier_arrive(memory.empty + 8 * slot);
        }
    }
    held_await<HELD_FINISHERS>(memory.sums, index);
    if (!PHASES) {
        sl_barrier_wait(memory.placed, 0);
    }
    if (works) {
        float *own = memory.sums.sums + (index % HELD_FINISHERS * WIDE_WARPS + warp) * HELD_SUMS +
                     lane % 4 * 2 * HELD_STRIDE + lane / 4;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            own[e % 2 * HELD_STRIDE + e / 2 * 8] = sums[e];
        }
    }
    __syncwarp();
    if (lane < SL_ARRIVING_LANES) {
        sl_barrier_arrive(memory.sums.full + 8 * (uint32_t)(index % HELD_FINISHERS));
    }
}

template <bool PHASES>
static __device__ __forceinline__ void wide_multiply_all(const held_args &args, const wide_memory &memory,
                                                         int32_t warp, held_cursor here, int32_t end) {
    int32_t turns[HELD_FINISHERS] = {};
    uint32_t used = 0, loads = 0;
    held_x x;
    if (warp < args.op.chunks) {
        wide_bring_x<PHASES>(args, memory, warp, warp, 0);
    }
#pragma unroll 1
    while (here.begin < end) {
        const int32_t chunk = here.phase * WIDE_WARPS + warp, boxes = wide_boxes(args, here.phase),
                      stop = held_stop(args, here, end);
        const bool reads = warp / WIDE_SHARE < boxes, works = chunk < args.op.chunks;
        if (works && (loads == 0 || PHASES)) {
            wide_place_x<PHASES>(memory, warp, loads++, &x);
            if (PHASES && chunk + WIDE_WARPS < args.op.chunks) {
                wide_bring_x<PHASES>(args, memory, warp, chunk + WIDE_WARPS, loads);
            } else if (PHASES && stop < end) {
                wide_bring_x<PHASES>(args, memory, warp, warp, loads);
            }
        }
        if (!PHASES && threadIdx.x % SL_WARP < SL_ARRIVING_LANES) {
            sl_barrier_arrive(memory.placed);
        }
        sl_let_next_begin();
#pragma unroll 1
        for (int32_t tile = here.begin, turn = 0; tile < stop; tile++, turn++) {
            const int32_t finisher = held_finisher(args, turn), index = held_index(turns, finisher);
            held_count(turns, finisher);
            wide_multiply<PHASES>(memory, x, warp, wide_turn{reads, works, used, index});
            used += (uint32_t)boxes;
        }
        held_leave(args, 0, end, &here);
    }
}

#endif

template <bool PHASES>
static __global__ void __maxnreg__(WIDE_REGISTERS) wide_kernel(const __grid_constant__ held_args args) {
#if __CUDA_ARCH__ >= 900
    enum { SLOTS = wide_shape<PHASES>::SLOTS };
    extern __shared__ __align__(1024) unsigned char wide_shared[]; /* x's map moves pieces by address */
    const int32_t warp = __shfl_sync(SL_FULL_WARP, (int32_t)threadIdx.x / SL_WARP, 0),
                  lane = (int32_t)threadIdx.x % SL_WARP;
    wide_memory memory;
    memory.values = wide_shared;
    unsigned char *slots = wide_shared + WIDE_WARPS * WIDE_X_VALUES, *behind = slots + SLOTS * WIDE_SLOT;
    memory.slots = sl_shared_address(slots);
    memory.sums.sums = (float *)(void *)(PHASES ? behind : wide_shared);
    memory.sums.kept = memory.sums.sums + WIDE_SUMS / 4;
    memory.scales = PHASES ? behind + WIDE_SUMS + WIDE_KEPT : behind;
    memory.full = sl_shared_address(memory.scales + (PHASES ? 2 : 1) * WIDE_WARPS * WIDE_X_SCALES);
    memory.empty = memory.full + 8 * SLOTS;
    memory.sums.full = memory.empty + 8 * SLOTS;
    memory.sums.empty = memory.sums.full + 8 * HELD_FINISHERS;
    memory.x = memory.sums.empty + 8 * HELD_FINISHERS;
    memory.placed = memory.x + 8 * WIDE_WARPS;
    held_cursor here = {};
    const int32_t end =
        (args.op.each + ((int32_t)blockIdx.x < args.op.more)) * args.op.granule; /* tiles of the block */
    if (warp == WIDE_WARPS + HELD_FINISHERS && lane == 0) {
        for (uint32_t i = 0; i < SLOTS; i++) {
            sl_barrier_init(memory.full + 8 * i, 1);
            sl_barrier_init(memory.empty + 8 * i, WIDE_SHARE * SL_ARRIVING_LANES);
        }
        sl_fence_shared();
    } else if (warp == WIDE_WARPS && lane == 0) {
        for (uint32_t i = 0; i < HELD_FINISHERS; i++) {
            sl_barrier_init(memory.sums.full + 8 * i, WIDE_WARPS * SL_ARRIVING_LANES);
            sl_barrier_init(memory.sums.empty + 8 * i, SL_ARRIVING_LANES);
        }
        sl_barrier_init(memory.placed, WIDE_WARPS * SL_ARRIVING_LANES);
    } else if (warp < WIDE_WARPS && lane == 0) {
        sl_barrier_init(memory.x + 8 * (uint32_t)warp, 1);
        sl_fence_shared();
    }
    __syncthreads();
    if (warp == WIDE_WARPS + HELD_FINISHERS) {
        wide_copy_all<SLOTS>(args, memory, here, end);
        return;
    }
    if (warp < WIDE_WARPS && lane == 0) {
        sl_map_prefetch(&args.values);
    }
    sl_wait_for_inputs();
    if (warp >= WIDE_WARPS) {
        sl_let_next_begin();
        held_finish<SL_QTYPE_Q8_0>(args, memory.sums, here, end, warp - WIDE_WARPS);
    } else {
        wide_multiply_all<PHASES>(args, memory, warp, here, end);
    }
#endif
}

/* ---- launches ---- */

/* Whether rows of so many columns come as wide boxes. */
static inline bool wide_takes(int32_t columns) {
    return columns >= WIDE_LEAST_COLUMNS && (columns <= WIDE_PHASE || columns % WIDE_PHASE == 0);
}

/* Maps of x and of the weights. */
static inline cudaError_t wide_map(held_args *args) {
    cudaError_t code = held_map_values(args);
    for (int32_t s = 0; s < args->op.segments && !code; s++) {
        const sl_cuda_weight &weight = args->op.weights[s];
        const uint64_t weight_rows = (uint64_t)weight.rows;
        const sl_cuda_tensor tensor = {weight.data,
                                       8,
                                       {weight.row_bytes / 8, weight_rows, 1},
                                       {weight.row_bytes, weight.row_bytes * weight_rows},
                                       {WIDE_STRIDE / 8, SL_TILE_ROWS},
                                       false};
        code = sl_cuda_tensor_map(&tensor, &args->maps[s]);
    }
    return code;
}

template <bool PHASES>
static cudaError_t wide_start(const sl_cuda_context *context, const held_args &args, int32_t along,
                              cudaStream_t stream) {
    typedef wide_shape<PHASES> shape_of;
    static_assert((int)shape_of::BYTES <= (int)MATVEC_SHARED_BYTES, "a block fits");
    static_assert((int)WIDE_SUMS <= WIDE_WARPS * (int)WIDE_X_VALUES, "sums have room where x was");
    static_assert(WIDE_FLIGHT + WIDE_WARPS / WIDE_SHARE <= (int)shape_of::SLOTS,
                  "barriers are waited for in order");
    sl_launch_shape shape = {};
    shape.grid = dim3((unsigned)along);
    shape.block = dim3(WIDE_THREADS);
    shape.shared_bytes = shape_of::BYTES;
    return sl_launch(context, stream, shape, wide_kernel<PHASES>, args);
}

static cudaError_t wide_launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    held_args args = {};
    const int32_t along = held_fill(context, op, &args);
    args.per_phase = WIDE_WARPS / HELD_CHUNKS;
    args.phases = (args.op.chunks + WIDE_WARPS - 1) / WIDE_WARPS;
    args.teams = 1;
    args.dealt = true;
    held_group(&args);
    const cudaError_t code = wide_map(&args);
    if (code) {
        return code;
    }
    return args.phases > 1 ? wide_start<true>(context, args, along, stream)
                           : wide_start<false>(context, args, along, stream);
}

#endif
