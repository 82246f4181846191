/* The kernels of decode.cuh, and their launches. */
#ifndef SL_BACKEND_CUDA_ATTENTION_DECODE_LAUNCH_CUH
#define SL_BACKEND_CUDA_ATTENTION_DECODE_LAUNCH_CUH

#include "backend/cuda/ptx/barrier.cuh"
#include "backend/cuda/attention/decode_chunks.cuh"

#if __CUDA_ARCH__ >= 900

/* The only item of a block that makes heads itself. */
template <typename SHAPE, int TYPE, typename SHARED>
static __device__ __forceinline__ void decode_feed_own(const sl_cuda_context &context,
                                                       const decode_args &args, const decode_maps &maps,
                                                       SHARED *shared, decode_feeder *feeder) {
    const decode_source source = {&context.caches[args.attention.place.group], &args, &maps};
    const decode_item item = decode_find_own<SHAPE>(context, args, (int32_t)blockIdx.x);
    if (item.count == 0) {
        sl_wait_for_inputs();
        return;
    }
    decode_cursor cursor = decode_cursor_at<SHAPE>(item, item.tile);
    const decode_stable stable = decode_find_stable<true>(context, args, item);
    decode_feed_loads<SHAPE>(source, item, decode_stable_loads<SHAPE>(item, cursor, stable.tile), &cursor,
                             feeder);
    if (SHAPE::LETS_NEXT == DECODE_BEHIND_EARLY_KEYS) {
        sl_let_next_begin();
    }
    sl_wait_for_inputs();
    cursor.mine = decode_entry(item, cursor.base);
    decode_feed_loads<SHAPE>(source, item, INT32_MAX, &cursor, feeder);
    if (decode_has_newest(item)) {
        decode_write_newest<SHAPE, TYPE>(context, args.attention.place, item, shared);
    }
}

/* Beside the launch in front the inputs are there from the beginning, and whoever comes next waits for both.
 */
static __device__ __forceinline__ void decode_wait_first(const decode_args &args) {
    if (!args.beside) {
        sl_wait_for_inputs();
    }
}

/* One block is enough, as the launch ends with its last one: the others leave their places to blocks that
 * have not begun. */
static __device__ __forceinline__ void decode_wait_last(const decode_args &args) {
    if (args.beside && blockIdx.x == 0) {
        sl_wait_for_inputs();
    }
}

/* Items one after the other. */
template <typename SHAPE, int TYPE, typename SHARED>
static __device__ __forceinline__ void decode_feed_items(const sl_cuda_context &context,
                                                         const decode_args &args, const decode_maps &maps,
                                                         SHARED *shared, decode_feeder *feeder) {
    enum { EARLY = SHAPE::SLOTS - 1 };
    const sl_cuda_cache &cache = context.caches[args.attention.place.group];
    const decode_source source = {&cache, &args, &maps};
    const decode_work work = decode_list<SHAPE::UNITS>(context, args, shared->before);
    int32_t number = (int32_t)blockIdx.x, early = 0;
    shared->total = work.total;
    decode_item item = {}, next;
    decode_cursor cursor = {};
    decode_stable stable = {};
    if (number < work.total) {
        item = decode_find<SHAPE>(context, args, work, number);
        cursor = decode_cursor_at<SHAPE>(item, item.tile);
        stable = decode_find_stable<false>(context, args, item);
        early = min(max(decode_stable_loads<SHAPE>(item, cursor, stable.tile), 0), EARLY);
        decode_feed_loads<SHAPE>(source, item, early, &cursor, feeder);
    }
    sl_meet(DECODE_READY, DECODE_THREADS);
    decode_wait_first(args);
    decode_pairs<SHAPE> pairs;
    if (number < work.total) {
        decode_load_queries<SHAPE>(args, item, cache.key_size, &pairs);
        cursor.mine = stable.settled ? cursor.mine : decode_entry(item, cursor.base);
        decode_feed_loads<SHAPE>(source, item, SHAPE::SLOTS - early, &cursor, feeder);
    }
    for (uint32_t phase = 0; number < work.total; phase ^= 1, item = next) {
        decode_hand_over<SHAPE, TYPE>(item, pairs, phase, shared);
        number += (int32_t)gridDim.x;
        next = item;
        decode_cursor after = cursor;
        if (number < work.total) { /* its queries come while slots are full */
            next = decode_find<SHAPE>(context, args, work, number);
            decode_load_queries<SHAPE>(args, next, cache.key_size, &pairs);
            after = decode_cursor_at<SHAPE>(next, next.tile);
        }
        decode_feed_loads<SHAPE>(source, item, INT32_MAX, &cursor, feeder);
        cursor = after;
    }
}

/* By one warp: copies all tiles of the block's items. Waits for the kernel's inputs. */
template <typename SHAPE, int TYPE, typename SHARED>
static __device__ __forceinline__ void decode_feed(const sl_cuda_context &context, const decode_args &args,
                                                   const decode_maps &maps, SHARED *shared, uint32_t slots) {
    /* The slots are empty at first. */
    decode_feeder feeder = {slots, sl_shared_address(shared->full), sl_shared_address(shared->empty), 0, 1};
    if constexpr (SHAPE::ONE) {
        sl_meet(DECODE_READY, DECODE_THREADS);
        decode_feed_own<SHAPE, TYPE>(context, args, maps, shared, &feeder);
    } else {
        decode_feed_items<SHAPE, TYPE>(context, args, maps, shared, &feeder);
    }
}

/* What is asked for one after the other behind the inputs, while those are not there. */
static __device__ __forceinline__ void decode_touch(const decode_args &args, const sl_heads_args &made) {
    sl_touch(args);
    sl_touch(made);
}

/* By the warps that multiply: all items of the block. Waits for the kernel's inputs. */
template <typename SHAPE, int TYPE, typename SHARED>
static __device__ __forceinline__ void decode_multiply(const sl_cuda_context &context,
                                                       const decode_args &args, const sl_heads_args &made,
                                                       SHARED *shared, unsigned char *slots, float *meeting) {
    const sl_cuda_cache &cache = context.caches[args.attention.place.group];
    const int32_t size = cache.value_size;
    decode_ring ring = {slots, sl_shared_address(shared->full), sl_shared_address(shared->empty), 0, 0};
    decode_view<SHAPE::UNITS> view;
    view.scale = args.attention.scale;
    view.softcap = args.attention.softcap;
    view.c = view.softcap > 0 ? MMA_LOG2_E : view.scale * MMA_LOG2_E;
    view.window = cache.window;
    view.cache = &cache;
    if constexpr (SHAPE::ONE) {
        decode_touch(args, made);
    }
    sl_meet(DECODE_READY, DECODE_THREADS);
    if (!SHAPE::ONE) {
        decode_wait_first(args);
    }
    uint32_t phase = 0;
    for (int32_t number = (int32_t)blockIdx.x; SHAPE::ONE || number < shared->total;
         number += (int32_t)gridDim.x) {
        decode_item item;
        uint32_t q[SHAPE::UNITS / 8][SHAPE::COLUMNS / 16][2];
        if constexpr (SHAPE::ONE) {
            item = decode_find_own<SHAPE>(context, args, number);
            if (item.count == 0) {
                sl_wait_for_inputs();
                return;
            }
            decode_begin_item<SHAPE::UNITS, SHAPE::ONE>(args, item, &view);
            decode_maker<SHAPE::QUADS> maker;
            decode_begin_heads(context, made, item.first_row, &maker);
            sl_wait_for_inputs();
            decode_make_heads<SHAPE, TYPE>(context, args, made, item, maker, shared);
            decode_take_queries<SHAPE>(*shared, q);
        } else {
            sl_barrier_wait(sl_shared_address(&shared->handed), phase);
            item = shared->item;
            decode_take_queries<SHAPE>(*shared, q);
            __syncwarp();
            if (threadIdx.x % SL_WARP < SL_ARRIVING_LANES) {
                sl_barrier_arrive(sl_shared_address(&shared->taken));
            }
            phase ^= 1;
            decode_begin_item<SHAPE::UNITS, SHAPE::ONE>(args, item, &view);
        }
        /* Whether there is any in the tile that `base` is in. */
        const auto add = [&](int32_t base, bool is_value, unsigned char *slot) {
            if (SHAPE::ONE) {
                if (SHAPE::HEADS == DECODE_ROWS) {
                    decode_add_earlier<SHAPE, TYPE>(context, made, item, base, is_value, slot);
                }
                decode_add_newest<SHAPE, TYPE>(cache, item, base, is_value, slot, shared);
            }
            return SHAPE::ONE && base / MMA_KEYS >= item.fresh / MMA_KEYS;
        };
        view.tile = item.tile;
        for (int32_t n = 0; n < item.count; n++) {
            view.end = view.tile - decode_rest(view.tile, item.part_tiles) + item.part_tiles;
            view.end = view.end < item.end ? view.end : item.end;
            if constexpr (SHAPE::CHUNKS) {
                decode_chunk<SHAPE, TYPE>(view, q, &ring, shared, meeting, add);
            } else {
                decode_strand<SHAPE, TYPE>(view, q, &ring, shared, meeting, add);
            }
            for (int32_t i = (int32_t)threadIdx.x; i < item.units * (size / 4); i += DECODE_MULTIPLIERS) {
                decode_add_strands<SHAPE>(args, item, n, shared, meeting, i);
            }
            view.tile = view.end;
        }
        if (item.count < item.parts) {
            decode_end_item<SHAPE>(args, item, shared, size);
        }
        if (SHAPE::ONE) { /* one item */
            break;
        }
    }
}

#endif

template <int TYPE, int SIZE, int UNITS, int SLOTS, int BLOCKS, decode_heads HEADS, bool CHUNKS>
static __global__ void __launch_bounds__(DECODE_THREADS, BLOCKS)
    decode_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ decode_args args,
                  const __grid_constant__ sl_heads_args made, const __grid_constant__ decode_maps maps) {
#if __CUDA_ARCH__ >= 900
    typedef decode_shape<TYPE, SIZE, UNITS, SLOTS, HEADS, CHUNKS> SHAPE;
    extern __shared__ uint4 mma_memory[];
    __shared__ decode_shared<UNITS, SLOTS, SHAPE::COLUMNS, SHAPE::ONE ? SHAPE::QUADS : 0,
                             CHUNKS ? MMA_CHUNK_TILES : 1>
        shared;
    if (SHAPE::LETS_NEXT == DECODE_AT_ONCE) {
        sl_let_next_begin();
    }
    if (threadIdx.x == DECODE_MULTIPLIERS) { /* of the warp that uses them first */
        shared.value_size = context.caches[args.attention.place.group].value_size;
        for (int i = 0; i < SLOTS; i++) {
            sl_barrier_init(sl_shared_address(&shared.full[i]), 1);
            sl_barrier_init(sl_shared_address(&shared.empty[i]), DECODE_WARPS * SL_ARRIVING_LANES);
        }
        sl_barrier_init(sl_shared_address(&shared.handed), SL_ARRIVING_LANES);
        sl_barrier_init(sl_shared_address(&shared.taken), DECODE_WARPS * SL_ARRIVING_LANES);
        sl_barriers_ready();
        if (!SHAPE::RAW) {
            sl_map_prefetch(&maps.tiles.keys);
            sl_map_prefetch(&maps.tiles.values);
            sl_map_prefetch(&maps.strands.keys);
            sl_map_prefetch(&maps.strands.values);
        }
    }
    __syncwarp();
    /* As an offset, by which the compiler sees that all this is shared memory. */
    unsigned char *slots = (unsigned char *)mma_memory + (0u - sl_shared_address(mma_memory)) % 1024;
    if (threadIdx.x >= DECODE_MULTIPLIERS) {
        decode_feed<SHAPE, TYPE>(context, args, maps, &shared, sl_shared_address(slots));
    } else {
        decode_multiply<SHAPE, TYPE>(context, args, made, &shared, slots,
                                     (float *)(slots + SLOTS * SHAPE::SLOT));
    }
    decode_wait_last(args);
#else
    (void)context;
    (void)args;
    (void)made;
    (void)maps;
#endif
}

/* ---- launches ---- */

/* Of heads of 512: as many as a block has room for. */
template <int TYPE>
static constexpr int DECODE_WIDE_SLOTS = TYPE == SL_QTYPE_FP8    ? 4
                                         : TYPE == SL_QTYPE_Q8_0 ? 3
                                                                 : 2;

/* Calls `what`(SIZE, UNITS, SLOTS, BLOCKS) for a head size of a cache of TYPE. Where heads of several rows
 * are made here a block has a processor and all slots for itself: keys and values of short sequences are then
 * asked for at once. Of heads of 512 a lane has no registers for more than 8 units. */
#define DECODE_FOR_SIZE(size, units, what)                                                                   \
    if ((size) <= 64) {                                                                                      \
        if ((units) <= 8) {                                                                                  \
            what(64, 8, 8, 2);                                                                               \
        } else {                                                                                             \
            what(64, 16, 8, 2);                                                                              \
        }                                                                                                    \
    } else if ((size) <= 128) {                                                                              \
        if ((units) <= 8) {                                                                                  \
            what(128, 8, 5, 2);                                                                              \
        } else {                                                                                             \
            what(128, 16, 4, 2);                                                                             \
        }                                                                                                    \
    } else if ((size) <= 256) {                                                                              \
        if ((units) <= 8) {                                                                                  \
            what(256, 8, 4, 1);                                                                              \
        } else {                                                                                             \
            what(256, 16, 4, 1);                                                                             \
        }                                                                                                    \
    } else {                                                                                                 \
        what(512, 8, DECODE_WIDE_SLOTS<TYPE>, 1);                                                            \
    }

template <int TYPE>
static cudaError_t decode_launch(const sl_cuda_context *context, const decode_args *args,
                                 const sl_heads_args *heads, const mma_launch_shape *shape,
                                 cudaStream_t stream) {
    const sl_cuda_cache *cache = &context->caches[args->attention.place.group];
    decode_maps maps = {};
    cudaError_t code = TYPE == SL_QTYPE_Q8_0 ? cudaSuccess : sl_page_maps_make(cache, MMA_KEYS, &maps.tiles);
    code = TYPE == SL_QTYPE_Q8_0 || code ? code : sl_page_maps_make(cache, 16, &maps.strands);
    if (code != cudaSuccess) {
        return code;
    }
    decode_args given = *args;
    const sl_heads_args made = heads ? *heads : sl_heads_args{};
    const bool chunks = given.part_tiles > 0, one = heads && shape->rows == 1;
#define DECODE_START(SIZE, UNITS, SLOTS, BLOCKS, HEADS, CHUNKS)                                              \
    sl_launch(context, stream,                                                                               \
              {dim3((unsigned)blocks), dim3(DECODE_THREADS),                                                 \
               (uint32_t)decode_shape<TYPE, SIZE, UNITS, SLOTS, HEADS, CHUNKS>::SHARED},                     \
              decode_kernel<TYPE, SIZE, UNITS, SLOTS, BLOCKS, HEADS, CHUNKS>, *context, given, made, maps)
#define DECODE_LAUNCH(SIZE, UNITS, SLOTS, BLOCKS)                                                            \
    do {                                                                                                     \
        const int64_t runs = shape->rows * ((args->ratio + UNITS - 1) / UNITS) * shape->kv_heads;            \
        const int64_t room = (heads && !one && !chunks ? 1 : BLOCKS) * context->processors;                  \
        const int64_t items = runs * args->groups;                                                           \
        if (items > room && (chunks || !one)) {                                                              \
            given.groups = (int32_t)(room < 2 * runs ? 1 : room / runs);                                     \
        }                                                                                                    \
        const int64_t blocks = heads ? runs * given.groups : items < room ? items : room;                    \
        return !heads && chunks ? DECODE_START(SIZE, UNITS, SLOTS, BLOCKS, DECODE_APART, true)               \
               : !heads         ? DECODE_START(SIZE, UNITS, SLOTS, BLOCKS, DECODE_APART, false)              \
               : one && chunks  ? DECODE_START(SIZE, UNITS, SLOTS, BLOCKS, DECODE_ONE_ROW, true)             \
               : one            ? DECODE_START(SIZE, UNITS, SLOTS, BLOCKS, DECODE_ONE_ROW, false)            \
               : chunks         ? DECODE_START(SIZE, UNITS, SLOTS, BLOCKS, DECODE_ROWS, true)                \
                                : DECODE_START(SIZE, UNITS, SLOTS * BLOCKS, 1, DECODE_ROWS, false);                  \
    } while (0)
    DECODE_FOR_SIZE(shape->size, args->ratio, DECODE_LAUNCH)
}

template <typename... PARAMETERS>
static cudaError_t decode_allow(cudaError_t code, void (*kernel)(PARAMETERS...), int bytes) {
    return code == cudaSuccess
               ? cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)
               : code;
}

template <int TYPE> static cudaError_t decode_prepare(void) {
    static const int32_t sizes[] = {64, 128, 256, 512};
    cudaError_t code = cudaSuccess;
    for (int i = 0; i < 7 && code == cudaSuccess; i++) {
#define DECODE_ALLOW(SIZE, UNITS, SLOTS, BLOCKS, HEADS, CHUNKS)                                              \
    code = decode_allow(code, decode_kernel<TYPE, SIZE, UNITS, SLOTS, BLOCKS, HEADS, CHUNKS>,                \
                        decode_shape<TYPE, SIZE, UNITS, SLOTS, HEADS, CHUNKS>::SHARED)
#define DECODE_PREPARE(SIZE, UNITS, SLOTS, BLOCKS)                                                           \
    do {                                                                                                     \
        DECODE_ALLOW(SIZE, UNITS, SLOTS, BLOCKS, DECODE_APART, false);                                       \
        DECODE_ALLOW(SIZE, UNITS, SLOTS, BLOCKS, DECODE_APART, true);                                        \
        DECODE_ALLOW(SIZE, UNITS, SLOTS, BLOCKS, DECODE_ONE_ROW, false);                                     \
        DECODE_ALLOW(SIZE, UNITS, SLOTS, BLOCKS, DECODE_ONE_ROW, true);                                      \
        DECODE_ALLOW(SIZE, UNITS, SLOTS *BLOCKS, 1, DECODE_ROWS, false);                                     \
        DECODE_ALLOW(SIZE, UNITS, SLOTS, BLOCKS, DECODE_ROWS, true);                                         \
    } while (0)
        DECODE_FOR_SIZE(sizes[i / 2], i % 2 * 16, DECODE_PREPARE)
    }
    return code;
}

#endif
