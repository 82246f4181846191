/* Products for many rows in class "q8_256" (units.cuh) with Hopper's int8 warpgroup instructions.
 *
 * An integer weight of 16 bits is 256 * high + low, a signed and an unsigned byte. A warpgroup adds the products of
 * both over a chunk of 256 columns, each in sums of its own; 256 times the one plus the other is the exact
 * integer, which becomes a float and is added to the sums over the chunks.
 *
 * Both sides lie in a scratch as shared memory has them, "128-byte swizzle": pieces of 8 rows by 128 columns,
 * 16-byte piece c of row r at c ^ r; so that a tile's stage is one bulk copy of weights and one of x. The
 * blocks of a cluster multiply one tile of weights with neighbouring tiles of x: each brings a part of the
 * weights to all of them. */
#ifndef SL_BACKEND_CUDA_PLANES_CUH
#define SL_BACKEND_CUDA_PLANES_CUH

#include "backend/cuda/hopper.cuh"
#include "backend/cuda/units.cuh"

enum {
    PLANES_OUTPUTS = 128, /* of a tile: two consumer warpgroups of 64 */
    PLANES_STEP = 128,    /* columns of a stage */
    PLANES_STAGES = 4,    /* of half a chunk */
    PLANES_SLOTS = 3,     /* of factors: a chunk's may be read until the next one's products are done */
    PLANES_THREADS = 384,
    PLANES_W_BYTES = 2 * PLANES_OUTPUTS * PLANES_STEP /* of a stage: both planes */
};

/* w: [tile of outputs][step][plane][outputs / 8] pieces; units [chunk][outputs]; x [step][x_rows / 8] pieces;
 * x_scales [chunk][x_rows]. x_rows are whole tiles, and whole clusters of them. The tiles of outputs, a segment's
 * last one padded, are those from first_tile on. */
typedef struct planes_args {
    sl_cuda_weight weights[SL_LINEAR_SEGMENTS];
    int32_t segment_tile[SL_LINEAR_SEGMENTS + 1]; /* the first of each segment */
    int32_t segments;
    const unsigned char *w, *x;
    const float *units, *x_scales;
    int32_t first_tile, outputs, x_rows;
    int32_t chunks;
    int32_t row_tiles, tiles; /* tiles of rows by tiles of outputs; a multiple of the cluster */
    sl_cuda_operand y, residual;
} planes_args;

template <int ROWS> struct planes_memory {
    enum {
        stage = PLANES_W_BYTES + ROWS * PLANES_STEP,
        factors = PLANES_STAGES * stage, /* [slot][units, x_scales] */
        slot = (PLANES_OUTPUTS + ROWS) * 4,
        full = factors + PLANES_SLOTS * slot,
        empty = full + 8 * PLANES_STAGES,
        bytes = empty + 8 * PLANES_STAGES + 1024
    };
};

#if SL_HAS_WGMMA

#define PLANES_D(i)                                                                                          \
    "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]),              \
        "+r"(d[i + 6]), "+r"(d[i + 7])
#define PLANES_D16 PLANES_D(0), PLANES_D(8)
#define PLANES_D32 PLANES_D16, PLANES_D(16), PLANES_D(24)
#define PLANES_D64 PLANES_D32, PLANES_D(32), PLANES_D(40), PLANES_D(48), PLANES_D(56)

/* d = (KEEP ? d : 0) + a b^T, 32 columns, both in shared memory. */
template <int ROWS, bool LOW>
static __device__ __forceinline__ void planes_multiply(int32_t (&d)[ROWS / 2], uint64_t a, uint64_t b,
                                                       int32_t keep);
#define PLANES_WGMMA(ROWS, LOW, TYPES, NAMES, A, B, P, ...)                                                    \
    template <>                                                                                              \
    __device__ __forceinline__ void planes_multiply<ROWS, LOW>(int32_t(&d)[ROWS / 2], uint64_t a,            \
                                                               uint64_t b, int32_t keep) {                   \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\n"                                          \
                     "wgmma.mma_async.sync.aligned.m64n" #ROWS "k32.s32." TYPES " {" NAMES "}, " A ", " B    \
                     ", p;\n}"                                                                               \
                     : __VA_ARGS__                                                                           \
                     : "l"(a), "l"(b), "r"(keep));                                                           \
    }
#define PLANES_BOTH(ROWS, NAMES, A, B, P, ...)                                                               \
    PLANES_WGMMA(ROWS, false, "s8.s8", NAMES, A, B, P, __VA_ARGS__)                                          \
    PLANES_WGMMA(ROWS, true, "u8.s8", NAMES, A, B, P, __VA_ARGS__)
PLANES_BOTH(64, SL_M32, "%32", "%33", "%34", PLANES_D32)
PLANES_BOTH(128, SL_M64, "%64", "%65", "%66", PLANES_D64)

/* Until all products are done, which are operands so that nothing moves across. */
template <int COUNT> static __device__ __forceinline__ void planes_wait(int32_t (&d)[COUNT]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        asm volatile("" : "+r"(d[i])::"memory");
    }
}

/* K-major, 128-byte swizzle, eight rows are 1024 bytes. */
static __device__ __forceinline__ uint64_t planes_descriptor(uint32_t address) {
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 | (address >> 4 & 0x3fffu);
}

static __device__ __forceinline__ void planes_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void planes_copy(uint32_t to, const void *from, uint32_t bytes,
                                                   uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

/* To the same place of all blocks in `mask`, whose barriers count the bytes. */
static __device__ __forceinline__ void planes_copy_all(uint32_t to, const void *from, uint32_t bytes,
                                                       uint32_t barrier, uint16_t mask) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "h"(mask)
                 : "memory");
}

/* At the same barrier of block `rank` of the cluster. */
static __device__ __forceinline__ void planes_arrive(uint32_t barrier, uint32_t rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

/* The same as barrier_wait, and what other blocks of the cluster did before they arrived is seen. */
static __device__ __forceinline__ void planes_await(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* A place in the ring, and the parity of its barriers' phase. */
typedef struct planes_place {
    uint32_t at, parity;
} planes_place;

static __device__ __forceinline__ void planes_next(planes_place *place) {
    place->at = place->at + 1 == PLANES_STAGES ? 0 : place->at + 1;
    place->parity ^= place->at == 0;
}

/* One thread: all copies of a block. */
template <int ROWS, int CLUSTER>
static __device__ void planes_bring(const planes_args &args, uint32_t base, uint32_t rank) {
    typedef planes_memory<ROWS> memory;
    enum { SHARE = PLANES_W_BYTES / CLUSTER };
    const uint16_t mask = (uint16_t)((1u << CLUSTER) - 1);
    planes_place place = {0, 1};
    uint32_t slot = 0;
    for (int32_t t = (int32_t)blockIdx.x; t < args.tiles; t += (int32_t)gridDim.x) {
        const int32_t output = t / args.row_tiles, row = t % args.row_tiles * ROWS;
        const unsigned char *w = args.w + (int64_t)output * args.chunks * 2 * PLANES_W_BYTES + rank * SHARE;
        const unsigned char *x = args.x + (int64_t)row * PLANES_STEP;
        for (int32_t c = 0; c < 2 * args.chunks; c++) {
            const uint32_t full = base + memory::full + 8 * place.at, to = base + place.at * memory::stage;
            planes_await(base + memory::empty + 8 * place.at, place.parity);
            planes_expect(full, memory::stage + (c % 2 ? 0u : (uint32_t)memory::slot));
            if (CLUSTER > 1) {
                planes_copy_all(to + rank * SHARE, w, SHARE, full, mask);
            } else {
                planes_copy(to, w, SHARE, full);
            }
            planes_copy(to + PLANES_W_BYTES, x, ROWS * PLANES_STEP, full);
            if (c % 2 == 0) {
                const uint32_t factors = base + memory::factors + slot * memory::slot;
                planes_copy(factors, args.units + (int64_t)(c / 2) * args.outputs + output * PLANES_OUTPUTS,
                            PLANES_OUTPUTS * 4, full);
                planes_copy(factors + PLANES_OUTPUTS * 4, args.x_scales + (int64_t)(c / 2) * args.x_rows + row,
                            ROWS * 4, full);
                slot = slot + 1 == PLANES_SLOTS ? 0 : slot + 1;
            }
            w += PLANES_W_BYTES;
            x += (int64_t)args.x_rows * PLANES_STEP;
            planes_next(&place);
        }
    }
}

/* Both planes of a stage. */
template <int ROWS>
static __device__ __forceinline__ void planes_add_stage(int32_t (&high)[ROWS / 2], int32_t (&low)[ROWS / 2],
                                                        uint32_t stage, uint32_t group, int32_t keep) {
    const uint64_t w = planes_descriptor(stage + group * 64 * PLANES_STEP);
    const uint64_t x = planes_descriptor(stage + PLANES_W_BYTES);
#pragma unroll
    for (int s = 0; s < PLANES_STEP / 32; s++) {
        planes_multiply<ROWS, false>(high, w + 2 * s, x + 2 * s, s > 0 ? 1 : keep);
        planes_multiply<ROWS, true>(low, w + PLANES_W_BYTES / 2 / 16 + 2 * s, x + 2 * s, s > 0 ? 1 : keep);
    }
}

/* In each tile the second group begins when the first one's products are under way, so that the float work of
 * one falls into the products of the other. */
static __device__ __forceinline__ void planes_take_turn(void) {
#ifndef NO_TURNS
    asm volatile("bar.sync 1, 256;" ::: "memory");
#endif
}

static __device__ __forceinline__ void planes_pass_turn(void) {
#ifndef NO_TURNS
    asm volatile("bar.arrive 1, 256;" ::: "memory");
#endif
}

/* A thread's outputs: `output` of the tile and 8 further, rows `row` and the next of every eight. */
template <int ROWS>
static __device__ __forceinline__ void planes_store(const planes_args &args, int32_t tile, int32_t output,
                                                    int32_t row, int32_t rows, const float (&totals)[ROWS / 2]) {
    int32_t segment = 0;
    while (segment + 1 < args.segments && tile >= args.segment_tile[segment + 1]) {
        segment++;
    }
    const sl_cuda_weight &weight = args.weights[segment];
    output += (tile - args.segment_tile[segment]) * PLANES_OUTPUTS;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const int32_t o = output + 8 * k;
        if (o >= weight.rows) {
            continue;
        }
        const float bias = weight.bias ? weight.bias[o] : 0.0f;
        float *y = sl_f32(args.y, row) + weight.column + o;
        const float *residual = args.residual.data ? sl_f32(args.residual, row) + weight.column + o : NULL;
        const uint64_t y_step = args.y.row_bytes / 4, residual_step = args.residual.row_bytes / 4;
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (row + 8 * j + e < rows) {
                    float value = totals[4 * j + 2 * k + e];
                    value = weight.bias ? value + bias : value;
                    value = residual ? value + residual[e * residual_step] : value;
                    y[e * y_step] = value;
                }
            }
            y += 8 * y_step;
            residual = residual ? residual + 8 * residual_step : NULL;
        }
    }
}

/* One of the two consumer warpgroups. */
template <int ROWS, int CLUSTER>
static __device__ void planes_consume(const sl_cuda_context &context, const planes_args &args, uint32_t base,
                                      unsigned char *memory_base) {
    typedef planes_memory<ROWS> memory;
    const uint32_t thread = threadIdx.x % 128, group = threadIdx.x / 128, lane = thread % 32;
    const int32_t my_output = (int32_t)(group * 64 + thread / 32 * 16 + lane / 4),
                  my_row = (int32_t)(lane % 4 * 2);
    const int32_t rows = sl_count(context, args.y.rows);
    const bool turns = args.chunks > PLANES_STAGES / 2; /* else one might be two tiles ahead of the other */
    planes_place place = {0, 0};
    uint32_t slot = 0;
    int32_t high[ROWS / 2], low[ROWS / 2];
    for (int32_t t = (int32_t)blockIdx.x; t < args.tiles; t += (int32_t)gridDim.x) {
        const int32_t tile = t / args.row_tiles, row = t % args.row_tiles * ROWS;
        float totals[ROWS / 2] = {};
        if (group == 1 && turns) {
            planes_take_turn();
        }
        for (int32_t c = 0; c < args.chunks; c++) {
            const uint32_t first = place.at;
            planes_await(base + memory::full + 8 * place.at, place.parity);
            wgmma_fence();
            planes_add_stage<ROWS>(high, low, base + place.at * memory::stage, group, 0);
            wgmma_commit();
            planes_next(&place);
            const uint32_t second = place.at;
            planes_await(base + memory::full + 8 * place.at, place.parity);
            planes_add_stage<ROWS>(high, low, base + place.at * memory::stage, group, 1);
            wgmma_commit();
            planes_next(&place);
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (thread < CLUSTER) {
                planes_arrive(base + memory::empty + 8 * first, thread);
            }
            if (group == 0 && c == 0 && turns) {
                planes_pass_turn();
            }
            planes_wait(high);
            planes_wait(low);
            if (thread < CLUSTER) {
                planes_arrive(base + memory::empty + 8 * second, thread);
            }
            const float *units = (const float *)(memory_base + memory::factors + slot * memory::slot);
            const float u[2] = {units[my_output], units[my_output + 8]};
            const float2 *x_scales = (const float2 *)(units + PLANES_OUTPUTS + my_row);
#pragma unroll
            for (int j = 0; j < ROWS / 8; j++) {
                const float2 s = x_scales[4 * j];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int32_t sum = high[4 * j + e] * 256 + low[4 * j + e];
                    totals[4 * j + e] += units_product(sum, u[e / 2], e % 2 ? s.y : s.x);
                }
            }
            slot = slot + 1 == PLANES_SLOTS ? 0 : slot + 1;
        }
        planes_store<ROWS>(args, args.first_tile + tile, my_output, row + my_row, rows, totals);
    }
}

#endif

/* Blocks that go through all tiles, neighbours in a cluster through neighbours. */
template <int ROWS, int CLUSTER>
static __global__ void __launch_bounds__(PLANES_THREADS, 1)
    planes_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ planes_args args) {
    sl_wait_for_inputs();
#if SL_HAS_WGMMA
    typedef planes_memory<ROWS> memory;
    extern __shared__ unsigned char shared[];
    const uint32_t start = (uint32_t)__cvta_generic_to_shared(shared), base = (start + 1023) / 1024 * 1024;
    unsigned char *const memory_base = shared + (base - start);
    const uint32_t rank = blockIdx.x % CLUSTER;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < PLANES_STAGES; i++) {
            barrier_init(base + memory::full + 8 * i, 1);
            barrier_init(base + memory::empty + 8 * i, 2 * CLUSTER);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    sl_cluster_arrive<CLUSTER>();
    sl_cluster_wait<CLUSTER>();
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 256) {
            planes_bring<ROWS, CLUSTER>(args, base, rank);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        planes_consume<ROWS, CLUSTER>(context, args, base, memory_base);
    }
    __syncwarp();
    sl_cluster_arrive<CLUSTER>();
    sl_cluster_wait<CLUSTER>();
#else
    (void)context;
    (void)args;
#endif
}

#endif
