/* Flash attention for many rows with Hopper's wgmma, over caches of f16 and bf16.
 *
 * As flash.cuh, but for these: four warps multiply 64 units at once; keys and values are read from shared
 * memory (128-byte swizzle); while the scores of the next tile and the sum of
 * this one are computed, the softmax of the next one goes on; and there are no chunks.
 *
 * Class "wgmma64", after the type: as "mma64/split512", but the scores and sums by wgmma, and all of a row's
 * keys are one chunk. */
#include "backend/cuda/flash.cuh"

static constexpr int GROUPS = 2; /* of four warps */
static constexpr int WGMMA_THREADS = 128 * GROUPS, WGMMA_UNITS = 64 * GROUPS;

template <int SIZE> struct wgmma_shape {
    static constexpr int Q_BYTES = WGMMA_UNITS * SIZE * 2, TILE_BYTES = FLASH_KEYS * SIZE * 2;
    static constexpr int BYTES = Q_BYTES + 4 * TILE_BYTES + 1024; /* 1024: to align */
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Of a tile of rows of 128 bytes, swizzled: rows of eight are 1024 bytes apart. The leading distance counts
 * for operands whose rows are keys and that are wider than 64 columns. */
static __device__ __forceinline__ uint64_t wgmma_operand(uint32_t at, uint32_t leading) {
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           UINT64_C(1) << 62;
}

static __device__ __forceinline__ void wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int LEFT> static __device__ __forceinline__ void wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#define D4(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define D32(c, n)                                                                                            \
    D4(c, n), D4(c, n + 1), D4(c, n + 2), D4(c, n + 3), D4(c, n + 4), D4(c, n + 5), D4(c, n + 6), D4(c, n + 7)
#define R32                                                                                                  \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"    \
    "%27,%28,%29,%30,%31"
#define R64                                                                                                  \
    R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,"  \
        "%56,%57,%58,%59,%60,%61,%62,%63"

/* s (+)= q . k for 16 columns */
#define SCORES(type)                                                                                         \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0;\n"                                                   \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " R32                         \
                 "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;}"                                                   \
                 : D32(s, 0)                                                                                 \
                 : "r"(q[0]), "r"(q[1]), "r"(q[2]), "r"(q[3]), "l"(k), "r"(add))
template <int TYPE>
static __device__ __forceinline__ void wgmma_scores(float s[8][4], const uint32_t q[4], uint64_t k, int add) {
    if (TYPE == SL_QTYPE_BF16) {
        SCORES("bf16");
    } else {
        SCORES("f16");
    }
}

/* acc += p v for 16 keys */
#define VALUES_64(type)                                                                                      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " R32                         \
                 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"                                                    \
                 : D32(acc, 0)                                                                               \
                 : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v))
#define VALUES_128(type)                                                                                     \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " " R64                        \
                 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"                                                    \
                 : D32(acc, 0), D32(acc, 8)                                                                  \
                 : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v))
template <int TYPE, int SIZE>
static __device__ __forceinline__ void wgmma_values(float acc[SIZE / 8][4], const uint32_t p[4], uint64_t v) {
    if constexpr (SIZE == 64) {
        if (TYPE == SL_QTYPE_BF16) {
            VALUES_64("bf16");
        } else {
            VALUES_64("f16");
        }
    } else {
        if (TYPE == SL_QTYPE_BF16) {
            VALUES_128("bf16");
        } else {
            VALUES_128("f16");
        }
    }
}

/* ---- moving tiles ---- */

/* Where 16 bytes of a tile of `rows` rows lie. */
static __device__ __forceinline__ uint32_t swizzled(int32_t rows, int32_t row, int32_t piece) {
    return (uint32_t)((piece / 8 * rows + row) * 128 + ((piece ^ row) & 7) * 16);
}

template <int SIZE>
static __device__ __forceinline__ void wgmma_fetch(const flash_walk &w, int32_t tile, bool is_key,
                                                   uint32_t to) {
    constexpr int PIECES = SIZE / 8;
    if (tile > w.last_tile) {
        return;
    }
    const unsigned char *from = (is_key ? w.keys : w.values) + (uint64_t)w.table[tile] * w.page_bytes;
    const int32_t row_bytes = is_key ? w.key_bytes : w.value_bytes;
    const int32_t size = is_key ? w.key_size : w.value_size, base = tile * FLASH_KEYS;
#pragma unroll
    for (int j = 0; j < FLASH_KEYS * PIECES / WGMMA_THREADS; j++) {
        const int32_t i = (int32_t)threadIdx.x + j * WGMMA_THREADS;
        const int32_t key = i / PIECES, piece = i % PIECES;
        const bool there = 8 * piece < size && base + key >= w.lowest && base + key <= w.highest;
        flash_copy16(to + swizzled(FLASH_KEYS, key, piece),
                     there ? from + key * row_bytes + piece * 16 : from, there ? 16 : 0);
    }
}

template <int TYPE, int SIZE>
static __device__ __forceinline__ void wgmma_load_queries(const flash_args &args, const flash_walk &w,
                                                          unsigned char *to) {
    const int32_t first_row = w.span->first_row;
    constexpr int PIECES = SIZE / 8;
    const bool aligned = (((uint64_t)sl_f32(args.q, 0) | args.q.row_bytes |
                           (uint64_t)args.attention.q_stride * sizeof(float)) &
                          15) == 0;
#pragma unroll 4
    for (int32_t i = (int32_t)threadIdx.x; i < WGMMA_UNITS * PIECES; i += WGMMA_THREADS) {
        const int32_t at = i / PIECES, piece = i % PIECES;
        float4 a = make_float4(0, 0, 0, 0), b = a;
        const int32_t unit = w.first_unit + at;
        if (unit <= w.last_unit && 8 * piece < w.key_size) {
            const int32_t row = first_row + unit / args.ratio;
            const int32_t head = w.kv_head * args.ratio + unit % args.ratio;
            const float *from = sl_f32(args.q, row) + head * args.attention.q_stride + 8 * piece;
            a = aligned ? ((const float4 *)from)[0] : make_float4(from[0], from[1], from[2], from[3]);
            b = aligned ? ((const float4 *)from)[1] : make_float4(from[4], from[5], from[6], from[7]);
        }
        /* 64 rows of a group of warps lie together. */
        *(uint4 *)(to + at / 64 * (64 * SIZE * 2) + swizzled(64, at % 64, piece)) = make_uint4(
            flash_pack<TYPE>(flash_q(a.x), flash_q(a.y)), flash_pack<TYPE>(flash_q(a.z), flash_q(a.w)),
            flash_pack<TYPE>(flash_q(b.x), flash_q(b.y)), flash_pack<TYPE>(flash_q(b.z), flash_q(b.w)));
    }
}

static __device__ __forceinline__ void wgmma_arrived(void) {
    flash_wait<0>();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* what threads wrote, for wgmma to read */
    __syncthreads();
}

template <int TYPE, int SIZE>
static __device__ __forceinline__ void start_scores(float s[8][4], const uint32_t q[SIZE / 16][4],
                                                    uint32_t k_at) {
#pragma unroll
    for (int step = 0; step < SIZE / 16; step++) {
        const uint32_t at = (uint32_t)(step / 4 * 64 * 128 + step % 4 * 32);
        wgmma_scores<TYPE>(s, q[step], wgmma_operand(k_at + at, 16), step > 0);
    }
    wgmma_commit();
}

template <int TYPE, int SIZE>
static __device__ __forceinline__ void start_values(float acc[SIZE / 8][4], const uint32_t p[4][4],
                                                    uint32_t v_at) {
#pragma unroll
    for (int step = 0; step < 4; step++) {
        wgmma_values<TYPE, SIZE>(acc, p[step], wgmma_operand(v_at + (uint32_t)step * 2048, FLASH_KEYS * 128));
    }
    wgmma_commit();
}

/* The warp's 16 rows of q, from shared memory: reading them for every tile would take all of its bandwidth.
 */
template <int SIZE>
static __device__ __forceinline__ void keep_queries(uint32_t q_start, int32_t warp,
                                                    uint32_t q[SIZE / 16][4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
#pragma unroll
    for (int step = 0; step < SIZE / 16; step++) {
        flash_load4(q_start + (uint32_t)(warp / 4 * 64 * SIZE * 2) +
                        swizzled(64, warp % 4 * 16 + lane % 16, 2 * step + lane / 16),
                    q[step]);
    }
}
#endif

template <int TYPE, int SIZE>
static __global__ void __launch_bounds__(WGMMA_THREADS, 1)
    wgmma_kernel(sl_cuda_context context, flash_args args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef wgmma_shape<SIZE> SHAPE;
    extern __shared__ uint4 flash_memory[];
    __shared__ flash_rare<WGMMA_UNITS, 1> rare;
    if (threadIdx.x < SL_WARP) {
        flash_find(context, (int32_t)blockIdx.y, args.ratio, WGMMA_UNITS, &rare.place);
    }
    __syncthreads();
    if (rare.place.units == 0) {
        return;
    }
    flash_walk w;
    flash_start_walk(context, args, rare.place, &w);

    unsigned char *memory = (unsigned char *)(((uint64_t)flash_memory + 1023) & ~UINT64_C(1023));
    const uint32_t q_start = (uint32_t)__cvta_generic_to_shared(memory);
    const uint32_t k_start = q_start + SHAPE::Q_BYTES, v_start = k_start + 2 * SHAPE::TILE_BYTES;
    int32_t tile = flash_first_tile(w, 0, 1), next = flash_next_tile(w, tile);
    wgmma_fetch<SIZE>(w, tile, true, k_start);
    flash_commit();
    wgmma_load_queries<TYPE, SIZE>(args, w, memory);
    flash_start_units<WGMMA_UNITS, 1, WGMMA_THREADS>(args, w, &rare);

    const int32_t number = (int32_t)threadIdx.x / SL_WARP;
    const flash_warp warp = flash_start_warp<1>(args, w, &rare, 16 * number, 0);
    flash_state<1, SIZE> state;
    flash_start_chunk(&state);
    state.first = true;
    float s[1][8][4], correction[1][2];
    uint32_t p[1][4][4];

    wgmma_arrived();
    wgmma_fetch<SIZE>(w, next, true, k_start + SHAPE::TILE_BYTES);
    wgmma_fetch<SIZE>(w, tile, false, v_start);
    flash_commit();
    uint32_t q[SIZE / 16][4];
    keep_queries<SIZE>(q_start, number, q);
    wgmma_fence();
    start_scores<TYPE, SIZE>(s[0], q, k_start);
    wgmma_wait<0>();
    flash_weigh<1, SIZE>(&state, s, warp, tile * FLASH_KEYS, correction);
    flash_pack_weights<TYPE, 1>(s, p);
    uint32_t stage = 0; /* of the values; that of the next keys is the other */
    while (next <= w.last_tile) {
        const int32_t after = flash_next_tile(w, next);
        const uint32_t here = stage * SHAPE::TILE_BYTES, there = (stage ^ 1u) * SHAPE::TILE_BYTES;
        wgmma_arrived(); /* and all have read the tiles before */
        wgmma_fetch<SIZE>(w, after, true, k_start + here);
        wgmma_fetch<SIZE>(w, next, false, v_start + there);
        flash_commit();
        wgmma_fence();
        start_scores<TYPE, SIZE>(s[0], q, k_start + there);
        start_values<TYPE, SIZE>(state.acc[0], p[0], v_start + here);
        wgmma_wait<1>();
        flash_weigh<1, SIZE>(&state, s, warp, next * FLASH_KEYS, correction);
        wgmma_wait<0>();
        flash_rescale<1, SIZE>(&state, correction);
        flash_pack_weights<TYPE, 1>(s, p);
        stage ^= 1u;
        next = after;
    }
    wgmma_arrived();
    wgmma_fence();
    start_values<TYPE, SIZE>(state.acc[0], p[0], v_start + stage * SHAPE::TILE_BYTES);
    wgmma_wait<0>();
    flash_end_chunk(args, w, warp, 0, true, &state);
#else
    (void)context;
    (void)args;
#endif
}

/* ---- launches ---- */

template <int TYPE, int SIZE>
static cudaError_t launch(const sl_cuda_context *context, const flash_args *args,
                          const flash_launch_shape *shape, cudaStream_t stream) {
    const dim3 grid((unsigned)shape->kv_heads,
                    (unsigned)(shape->rows * args->ratio / WGMMA_UNITS + shape->spans));
    wgmma_kernel<TYPE, SIZE><<<grid, WGMMA_THREADS, wgmma_shape<SIZE>::BYTES, stream>>>(*context, *args);
    return cudaGetLastError();
}

cudaError_t sl_flash_launch_wgmma(const sl_cuda_context *context, const flash_args *args,
                                  const flash_launch_shape *shape, cudaStream_t stream) {
    if (context->caches[args->attention.place.group].type == SL_QTYPE_BF16) {
        return shape->size <= 64 ? launch<SL_QTYPE_BF16, 64>(context, args, shape, stream)
                                 : launch<SL_QTYPE_BF16, 128>(context, args, shape, stream);
    }
    return shape->size <= 64 ? launch<SL_QTYPE_F16, 64>(context, args, shape, stream)
                             : launch<SL_QTYPE_F16, 128>(context, args, shape, stream);
}

cudaError_t sl_flash_prepare_wgmma(void) {
    cudaError_t code = cudaSuccess;
#define PREPARE(TYPE, SIZE)                                                                                  \
    code = code == cudaSuccess                                                                               \
               ? cudaFuncSetAttribute(wgmma_kernel<TYPE, SIZE>, cudaFuncAttributeMaxDynamicSharedMemorySize, \
                                      wgmma_shape<SIZE>::BYTES)                                              \
               : code
    PREPARE(SL_QTYPE_F16, 64);
    PREPARE(SL_QTYPE_F16, 128);
    PREPARE(SL_QTYPE_BF16, 64);
    PREPARE(SL_QTYPE_BF16, 128);
    return code;
}
