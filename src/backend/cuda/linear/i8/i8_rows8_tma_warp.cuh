/* Products of i8_rows8_tma.cuh with warp boxes: a warp has a pair of neighbouring chunks, whose boxes it asks
 * for itself. x comes as boxes too, that of another phase while one is multiplied. Where rows have few chunks
 * teams of warps take a tile each. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_ROWS8_TMA_WARP_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_ROWS8_TMA_WARP_CUH

#include "backend/cuda/linear/i8/i8_rows8_tma_finish.cuh"

enum {
    HELD_THREADS = (HELD_WARPS + HELD_FINISHERS) * SL_WARP,
    /* Of a thread. A quarter of a processor's 65536 has three of the warps, and two more of a norm's: more
     * registers, and blocks would not come up where the norm before them still runs. */
    HELD_REGISTERS = 144
};

template <int TYPE> struct held_shape {
    enum { ITEM = sl_tile_shape<TYPE>::ITEM, ITEMS = HELD_CHUNKS / ITEM };
    enum { SLOT = SL_TILE_ROWS * sl_tile_shape<TYPE>::STRIDE, SLOTS = held_part<TYPE>::SLOTS };
    enum { BUFFERS = held_part<TYPE>::BUFFERS };
};

/* What a multiplying warp works with. */
typedef struct held_warp {
    int32_t team, pair; /* pair: of a phase */
    bool works;
    int32_t end;
    unsigned char *slots;
    uint32_t barriers; /* of the slots, and of x */
    unsigned char *x;
    float *scales;
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
        sl_box_copy_once(sl_shared_address(warp->slots + slot * shape::SLOT), &args.maps[segment],
                         chunk * (sl_chunk_shape<TYPE>::BYTES / 2), row, 0, barrier);
    }
    if (++warp->item == shape::ITEMS) {
        warp->item = 0;
        warp->next.tile += args.teams;
        held_settle(args, warp->team, warp->pair, warp->end, &warp->next);
    }
}

/* The warp's chunks of a tile. used: slots so far. */
template <int TYPE>
static __device__ __forceinline__ void held_multiply(const held_args &args, const held_memory &memory,
                                                     held_warp *warp, const held_part<TYPE> &x, int32_t index,
                                                     uint32_t *used) {
    typedef held_shape<TYPE> shape;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    float part[held_part<TYPE>::SUMS][4] = {};
    const unsigned char *w[2];
    const auto enter = [&](int c) { /* the slot of chunk c */
                                    const uint32_t slot = *used % shape::SLOTS;
                                    if (c % shape::ITEM == 0) {
                                        sl_barrier_wait(warp->barriers + 8 * slot, *used / shape::SLOTS & 1);
                                    }
                                    w[0] = warp->slots + slot * shape::SLOT +
                                           lane / 4 * sl_tile_shape<TYPE>::STRIDE +
                                           c % shape::ITEM * sl_chunk_shape<TYPE>::BYTES;
                                    w[1] = w[0] + 8 * sl_tile_shape<TYPE>::STRIDE;
    };
    const auto leave = [&]() {
        sl_fence_shared();
        __syncwarp();
        held_copy_next<TYPE>(args, warp, *used % shape::SLOTS);
        ++*used;
    };
#pragma unroll
    for (int c = 0; c < HELD_CHUNKS; c++) {
        enter(c);
        if constexpr (TYPE == SL_QTYPE_Q8_0) {
            x.add(c, w, part);
            if (c % shape::ITEM == shape::ITEM - 1) {
                leave();
            }
        } else {
            const auto tile = x.load(w);
            if (c % shape::ITEM == shape::ITEM - 1) {
                leave();
            }
            x.add(c, tile, part);
        }
    }
    held_await<shape::BUFFERS>(memory, index);
    float *own =
        held_own<TYPE>(args, memory, index, warp->team, warp->pair) + lane % 4 * 2 * HELD_STRIDE + lane / 4;
#pragma unroll
    for (int c = 0; c < held_part<TYPE>::SUMS; c++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            own[c * HELD_SUMS + e % 2 * HELD_STRIDE + e / 2 * 8] = part[c][e];
        }
    }
}

/* x of the warp's chunks of a phase. */
template <int TYPE>
static __device__ __forceinline__ void held_bring_x(const held_args &args, const held_warp &warp,
                                                    int32_t phase) {
    if (threadIdx.x % SL_WARP == 0) {
        const int32_t pair = phase * args.per_phase + warp.pair;
        const uint32_t barrier = warp.barriers + 8 * held_shape<TYPE>::SLOTS, to = sl_shared_address(warp.x);
        const uint32_t scales = to + 2 * HELD_CHUNKS * HELD_X_VALUES;
        sl_barrier_expect(barrier, HELD_X_BYTES);
        for (int h = 0; h < 2 * HELD_CHUNKS; h++) {
            sl_box_copy(to + (uint32_t)(h * HELD_X_VALUES), &args.values, 128 * (2 * HELD_CHUNKS * pair + h),
                        0, 0, barrier);
        }
        sl_box_copy(scales, &args.scales, HELD_X_ROW * pair, 0, 0, barrier);
        sl_box_copy(scales + HELD_X_EACH, &args.sums, HELD_X_ROW * pair, 0, 0, barrier);
    }
}

/* All tiles of the block, from here on. */
template <int TYPE>
static __device__ __forceinline__ void held_multiply_all(const held_args &args, const held_memory &memory,
                                                         held_warp *warp, held_cursor here) {
    held_part<TYPE> x;
    int32_t turns[HELD_FINISHERS] = {};
    uint32_t used = 0;
    uint32_t phases = 0;
    if (warp->works) {
        held_bring_x<TYPE>(args, *warp, 0);
    }
#pragma unroll 1
    while (here.begin < warp->end) {
        const int32_t first_pair = here.phase * args.per_phase, stop = held_stop(args, here, warp->end);
        if (phases == 0 || args.phases > 1) {
            if (warp->works) {
                sl_barrier_wait(warp->barriers + 8 * held_shape<TYPE>::SLOTS, phases & 1);
                x.place(warp->x, warp->scales);
                sl_fence_shared();
                __syncwarp();
                if (args.phases > 1 && (here.phase + 1 < args.phases || stop < warp->end)) {
                    held_bring_x<TYPE>(args, *warp, here.phase + 1 < args.phases ? here.phase + 1 : 0);
                }
            }
            phases++;
            sl_let_next_begin();
        }
        const bool owns = warp->works && first_pair + warp->pair < args.pairs;
#pragma unroll 1
        for (int32_t tile = here.begin, turn = 0; tile < stop; tile += args.teams, turn++) {
            const int32_t finisher = held_finisher(args, turn), index = held_index(turns, finisher);
            held_count(turns, finisher);
            if (owns && tile + warp->team < stop) {
                held_multiply<TYPE>(args, memory, warp, x, index, &used);
            } else { /* nor may it arrive before the others did the last time */
                held_await<held_shape<TYPE>::BUFFERS>(memory, index);
            }
            __syncwarp();
            if (threadIdx.x % SL_WARP < SL_ARRIVING_LANES) {
                sl_barrier_arrive(memory.full + 8 * (uint32_t)(index % held_shape<TYPE>::BUFFERS));
            }
        }
        held_leave(args, 0, warp->end, &here);
    }
}

#endif

template <int TYPE>
static __global__ void __maxnreg__(HELD_REGISTERS) held_kernel(const __grid_constant__ held_args args) {
#if __CUDA_ARCH__ >= 900
    typedef held_shape<TYPE> shape;
    extern __shared__ __align__(128) unsigned char shared[];
    const int32_t index = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    unsigned char *base = shared + (0u - sl_shared_address(shared)) % 1024;
    unsigned char *slots = base + HELD_WARPS * HELD_X_BYTES,
                  *after = slots + HELD_WARPS * shape::SLOTS * shape::SLOT;
    held_memory memory;
    memory.sums = (float *)(after + HELD_WARPS * held_part<TYPE>::SCALES);
    memory.kept =
        memory.sums + shape::BUFFERS * args.per_phase * args.teams * held_part<TYPE>::SUMS * HELD_SUMS;
    memory.full = sl_shared_address(memory.kept + (args.phases > 1 ? args.group * HELD_TILE : 0));
    memory.empty = memory.full + 8 * shape::BUFFERS;
    held_warp warp;
    warp.team = index / args.per_phase;
    warp.pair = index - warp.team * args.per_phase;
    warp.works = index < HELD_WARPS && warp.team < args.teams;
    warp.x = base + index * HELD_X_BYTES;
    warp.slots = slots + index * shape::SLOTS * shape::SLOT;
    warp.barriers = memory.empty + (uint32_t)(8 * (shape::BUFFERS + index * (shape::SLOTS + 1)));
    warp.scales = (float *)(after + index * held_part<TYPE>::SCALES);
    held_cursor here = {};
    sl_matvec_range(args.op, &here.begin, &warp.end);
    warp.next = {warp.works ? here.begin : warp.end, 0, here.begin + warp.team};
    warp.item = 0;
    held_settle(args, warp.team, warp.pair, warp.end, &warp.next);
    if (lane == 0 && index == HELD_WARPS) {
        for (uint32_t i = 0; i < shape::BUFFERS; i++) {
            sl_barrier_init(memory.full + 8 * i, HELD_WARPS * SL_ARRIVING_LANES);
            sl_barrier_init(memory.empty + 8 * i, SL_ARRIVING_LANES);
        }
    } else if (lane == 0 && index < HELD_WARPS) {
        for (int i = 0; i < shape::SLOTS + 1; i++) {
            sl_barrier_init(warp.barriers + 8 * (uint32_t)i, 1);
        }
        sl_fence_shared();
    }
    __syncthreads();
    for (uint32_t slot = 0; slot < shape::SLOTS; slot++) {
        held_copy_next<TYPE>(args, &warp, slot);
    }
    if (index < HELD_WARPS && lane == 0) {
        sl_map_prefetch(&args.values);
        sl_map_prefetch(&args.scales);
        sl_map_prefetch(&args.sums);
    }
    sl_wait_for_inputs();
    if (index >= HELD_WARPS) {
        sl_let_next_begin();
        held_finish<TYPE>(args, memory, here, warp.end, index - HELD_WARPS);
    } else {
        held_multiply_all<TYPE>(args, memory, &warp, here);
    }
#endif
}

/* ---- launches ---- */

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

/* Maps of x and of the weights. */
template <int TYPE> static cudaError_t held_map(held_args *args) {
    const sl_cuda_operand &x = args->op.x;
    const unsigned char *scales = x.data + x.width + x.column / 8;
    const int32_t groups = args->op.chunks * SL_CHUNK / 8;
    cudaError_t code = held_map_values(args);
    code = code ? code : held_map_x(scales, x.row_bytes, args->x_rows, groups, HELD_X_ROW, &args->scales);
    code = code
               ? code
               : held_map_x(scales + x.width / 8, x.row_bytes, args->x_rows, groups, HELD_X_ROW, &args->sums);
    return code ? code
                : skinny_weight_maps(args->op.weights, sl_tile_shape<TYPE>::STRIDE / 2, SL_TILE_ROWS,
                                     args->maps);
}

/* Of shared memory, where `warps` of the warps work, and the outputs of `kept` tiles are kept. x begins at a
 * multiple of 1024, as its tensor map moves pieces by address. */
template <int TYPE> static constexpr int32_t held_bytes(int32_t warps, int32_t kept) {
    typedef held_part<TYPE> part;
    return 1024 +
           HELD_WARPS * (HELD_X_BYTES + 8 + part::SLOTS * (held_shape<TYPE>::SLOT + 8) + part::SCALES) +
           part::BUFFERS * (warps * part::SUMS * HELD_SUMS * 4 + 16) + kept * HELD_TILE * 4;
}

template <int TYPE>
static cudaError_t held_launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    static_assert(held_bytes<TYPE>(HELD_WARPS, HELD_KEPT) <= MATVEC_SHARED_BYTES, "a block fits");
    held_args args = {};
    const int32_t along = held_fill(context, op, &args);
    held_divide(&args);
    held_group(&args);
    const cudaError_t code = held_map<TYPE>(&args);
    if (code) {
        return code;
    }
    sl_launch_shape shape = {};
    shape.grid = dim3((unsigned)along);
    shape.block = dim3(HELD_THREADS);
    shape.shared_bytes =
        (uint32_t)held_bytes<TYPE>(args.per_phase * args.teams, args.phases > 1 ? args.group : 0);
    const uint32_t most = (uint32_t)context->shared_bytes;
    shape.shared_bytes = shape.shared_bytes > most / 2 ? shape.shared_bytes : most / 2; /* one block */
    return sl_launch(context, stream, shape, held_kernel<TYPE>, args);
}

#endif
