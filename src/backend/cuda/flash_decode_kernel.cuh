/* The kernels of flash_decode.cuh, and their launches. */
#ifndef SL_BACKEND_CUDA_FLASH_DECODE_KERNEL_CUH
#define SL_BACKEND_CUDA_FLASH_DECODE_KERNEL_CUH

#include "backend/cuda/flash_decode_chunks.cuh"

#if __CUDA_ARCH__ >= 900

/* Copies what of an item may be copied before the inputs are there, and waits for them. The item is left with
 * the rest. */
template <typename SHAPE>
static __device__ __forceinline__ void decode_feed_early(const sl_cuda_context &context,
                                                         const decode_args &args, const flash_maps &maps,
                                                         decode_item *item, decode_feeder *feeder) {
    const sl_cuda_cache &cache = context.caches[args.attention.place.group];
    const int32_t end = item->end;
    item->end = min(end, decode_stable<SHAPE::ONE>(context, args, *item));
    if (SHAPE::CHUNKS && item->end < end) { /* not a part of a chunk */
        item->end = item->tile;
    }
    decode_feed_tiles<SHAPE>(cache, args, maps, *item, item->tile, feeder);
    item->tile = max(item->tile, item->end);
    item->end = end;
    sl_wait_for_inputs();
}

/* By one warp: copies all tiles of the block's items. Waits for the kernel's inputs. */
template <typename SHAPE, int TYPE, typename SHARED>
static __device__ __forceinline__ void decode_feed(const sl_cuda_context &context, const decode_args &args,
                                                   const flash_maps &maps, SHARED *shared, uint32_t slots) {
    const sl_cuda_cache &cache = context.caches[args.attention.place.group];
    const int32_t total = decode_total<SHAPE>(context, args, *shared);
    /* The slots are empty at first. */
    decode_feeder feeder = {slots, sl_shared_address(shared->full), sl_shared_address(shared->empty), 0, 1};
    int32_t number = (int32_t)blockIdx.x;
    if (number >= total) {
        sl_wait_for_inputs();
        return;
    }
    decode_item item = decode_find<SHAPE>(context, args, shared->before, number);
    const bool has_newest = decode_has_newest(item);
    decode_feed_early<SHAPE>(context, args, maps, &item, &feeder);
    if constexpr (SHAPE::ONE) { /* one item */
        decode_feed_tiles<SHAPE>(cache, args, maps, item, item.tile, &feeder);
        if (has_newest) {
            decode_write_newest<SHAPE, TYPE>(context, args.attention.place, item, shared);
        }
    } else {
        while (number < total) {
            /* The next item is found while slots are full. */
            decode_item next = item;
            next.end = min(item.end, item.tile + SHAPE::SLOTS / 2);
            decode_feed_tiles<SHAPE>(cache, args, maps, next, item.tile, &feeder);
            item.tile = max(item.tile, next.end);
            number += (int32_t)gridDim.x;
            if (number < total) {
                next = decode_find<SHAPE>(context, args, shared->before, number);
            }
            decode_feed_tiles<SHAPE>(cache, args, maps, item, item.tile, &feeder);
            item = next;
        }
    }
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
    view.c = view.softcap > 0 ? FLASH_LOG2_E : view.scale * FLASH_LOG2_E;
    view.window = cache.window;
    view.cache = &cache;
    const int32_t total = decode_total<SHAPE>(context, args, *shared);
    bool waited = false;
    for (int32_t number = (int32_t)blockIdx.x; number < total; number += (int32_t)gridDim.x) {
        const decode_item item = decode_find<SHAPE>(context, args, shared->before, number);
        decode_begin_item<SHAPE::UNITS, SHAPE::ONE>(args, item, &view);
        decode_maker<SHAPE::QUADS> maker;
        if (SHAPE::ONE) {
            decode_begin_heads(context, made, item.first_row, &maker);
        }
        if (!waited) {
            sl_wait_for_inputs();
            waited = true;
        }
        uint32_t q[SHAPE::UNITS / 8][SHAPE::COLUMNS / 16][2];
        if (SHAPE::ONE) {
            decode_make_heads<SHAPE, TYPE>(context, args, made, item, maker, shared);
            decode_take_queries<SHAPE>(*shared, q);
        } else {
            decode_load_queries<SHAPE, TYPE>(args, item, cache.key_size, q);
        }
        /* Whether there is any in the tile that `base` is in. */
        const auto add = [&](int32_t base, bool is_value, unsigned char *slot) {
            if (SHAPE::ONE) {
                if (SHAPE::HEADS == DECODE_ROWS) {
                    decode_add_earlier<SHAPE, TYPE>(context, made, item, base, is_value, slot);
                }
                decode_add_newest<SHAPE, TYPE>(cache, item, base, is_value, slot, shared);
            }
            return SHAPE::ONE && base / FLASH_KEYS >= item.fresh / FLASH_KEYS;
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
    if (!waited) {
        sl_wait_for_inputs();
    }
}

#endif

template <int TYPE, int SIZE, int UNITS, int SLOTS, int BLOCKS, decode_heads HEADS, bool CHUNKS>
static __global__ void __launch_bounds__(DECODE_THREADS, BLOCKS)
    decode_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ decode_args args,
                  const __grid_constant__ sl_heads_args made, const __grid_constant__ flash_maps maps) {
#if __CUDA_ARCH__ >= 900
    typedef decode_shape<TYPE, SIZE, UNITS, SLOTS, HEADS, CHUNKS> SHAPE;
    extern __shared__ uint4 flash_memory[];
    __shared__ decode_shared<UNITS, SLOTS, SHAPE::COLUMNS, SHAPE::QUADS, CHUNKS ? FLASH_CHUNK_TILES : 1>
        shared;
    sl_let_next_begin();
    if (threadIdx.x == 0) {
        shared.value_size = context.caches[args.attention.place.group].value_size;
        for (int i = 0; i < SLOTS; i++) {
            sl_barrier_init(sl_shared_address(&shared.full[i]), 1);
            sl_barrier_init(sl_shared_address(&shared.empty[i]), DECODE_WARPS * SL_ARRIVING_LANES);
        }
        sl_barriers_ready();
        if (!SHAPE::RAW) {
            sl_map_prefetch(&maps.keys);
            sl_map_prefetch(&maps.values);
        }
    }
    if (!SHAPE::ONE && threadIdx.x < SL_WARP) {
        decode_list<UNITS>(context, args, shared.before);
    }
    __syncthreads();
    unsigned char *slots = (unsigned char *)(((uint64_t)flash_memory + 1023) & ~UINT64_C(1023));
    if (threadIdx.x >= DECODE_MULTIPLIERS) {
        decode_feed<SHAPE, TYPE>(context, args, maps, &shared, sl_shared_address(slots));
    } else {
        decode_multiply<SHAPE, TYPE>(context, args, made, &shared, slots,
                                     (float *)(slots + SLOTS * SHAPE::SLOT));
    }
#else
    (void)context;
    (void)args;
    (void)made;
    (void)maps;
#endif
}

/* ---- launches ---- */

/* Calls `what`(SIZE, UNITS, SLOTS, BLOCKS) for a head size. */
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
    } else {                                                                                                 \
        if ((units) <= 8) {                                                                                  \
            what(256, 8, 4, 1);                                                                              \
        } else {                                                                                             \
            what(256, 16, 4, 1);                                                                             \
        }                                                                                                    \
    }

template <int TYPE>
static cudaError_t decode_launch(const sl_cuda_context *context, const decode_args *args,
                                 const sl_heads_args *heads, const flash_launch_shape *shape,
                                 cudaStream_t stream) {
    const sl_cuda_cache *cache = &context->caches[args->attention.place.group];
    flash_maps maps = {};
    cudaError_t code = TYPE == SL_QTYPE_Q8_0 ? cudaSuccess : sl_flash_make_maps(cache, &maps);
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
        const int64_t room = BLOCKS * context->processors, items = runs * args->groups;                      \
        if (items > room && (chunks || !one)) {                                                              \
            given.groups = (int32_t)(room < 2 * runs ? 1 : room / runs);                                     \
        }                                                                                                    \
        const int64_t blocks = heads ? runs * given.groups : items < room ? items : room;                    \
        return !heads          ? DECODE_START(SIZE, UNITS, SLOTS, BLOCKS, DECODE_APART, false)               \
               : one && chunks ? DECODE_START(SIZE, UNITS, SLOTS, BLOCKS, DECODE_ONE_ROW, true)              \
               : one           ? DECODE_START(SIZE, UNITS, SLOTS, BLOCKS, DECODE_ONE_ROW, false)             \
               : chunks        ? DECODE_START(SIZE, UNITS, SLOTS, BLOCKS, DECODE_ROWS, true)                 \
                               : DECODE_START(SIZE, UNITS, SLOTS, BLOCKS, DECODE_ROWS, false);                      \
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
    static const int32_t sizes[] = {64, 128, 256};
    cudaError_t code = cudaSuccess;
    for (int i = 0; i < 6 && code == cudaSuccess; i++) {
#define DECODE_ALLOW(SIZE, UNITS, SLOTS, BLOCKS, HEADS, CHUNKS)                                              \
    code = decode_allow(code, decode_kernel<TYPE, SIZE, UNITS, SLOTS, BLOCKS, HEADS, CHUNKS>,                \
                        decode_shape<TYPE, SIZE, UNITS, SLOTS, HEADS, CHUNKS>::SHARED)
#define DECODE_PREPARE(SIZE, UNITS, SLOTS, BLOCKS)                                                           \
    do {                                                                                                     \
        DECODE_ALLOW(SIZE, UNITS, SLOTS, BLOCKS, DECODE_APART, false);                                       \
        DECODE_ALLOW(SIZE, UNITS, SLOTS, BLOCKS, DECODE_ONE_ROW, false);                                     \
        DECODE_ALLOW(SIZE, UNITS, SLOTS, BLOCKS, DECODE_ONE_ROW, true);                                      \
        DECODE_ALLOW(SIZE, UNITS, SLOTS, BLOCKS, DECODE_ROWS, false);                                        \
        DECODE_ALLOW(SIZE, UNITS, SLOTS, BLOCKS, DECODE_ROWS, true);                                         \
    } while (0)
        DECODE_FOR_SIZE(sizes[i / 2], i % 2 * 16, DECODE_PREPARE)
    }
    return code;
}

#define DECODE_DEFINE(name, TYPE)                                                                            \
    cudaError_t sl_decode_launch_##name(const sl_cuda_context *context, const decode_args *args,             \
                                        const sl_heads_args *heads, const flash_launch_shape *shape,         \
                                        cudaStream_t stream) {                                               \
        return decode_launch<TYPE>(context, args, heads, shape, stream);                                     \
    }                                                                                                        \
    cudaError_t sl_decode_prepare_##name(void) {                                                             \
        return decode_prepare<TYPE>();                                                                       \
    }

#endif
