/* Products for many rows in class "q8_256" (units.cuh) with Hopper's int8 warpgroup instructions.
 *
 * An integer weight of 16 bits is 256 * high + low, a signed and an unsigned byte. Per chunk of 256 columns a
 * warpgroup adds the products of the high bytes, multiplies the sums by 256, and adds those of the low bytes:
 * the exact integer. Then it becomes a float and is added to the sums over the chunks.
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
    PLANES_STAGES = 4,    /* two chunks */
    PLANES_SLOTS = 3,     /* of factors: a chunk's may be read until the next one's products are done */
    PLANES_THREADS = 384,
    PLANES_W_BYTES = 2 * PLANES_OUTPUTS * PLANES_STEP /* of a stage: high, low */
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
        barriers = factors + PLANES_SLOTS * slot,
        bytes = barriers + 8 * 2 * PLANES_STAGES + 1024
    };
};

#if SL_HAS_WGMMA

#define PLANES_D(i)                                                                                          \
    "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]),              \
        "+r"(d[i + 6]), "+r"(d[i + 7])
#define PLANES_D16 PLANES_D(0), PLANES_D(8)
#define PLANES_D32 PLANES_D16, PLANES_D(16), PLANES_D(24)
#define PLANES_D64 PLANES_D32, PLANES_D(32), PLANES_D(40), PLANES_D(48), PLANES_D(56)
#define PLANES_D88 PLANES_D64, PLANES_D(64), PLANES_D(72), PLANES_D(80)

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
PLANES_BOTH(176, SL_M88, "%88", "%89", "%90", PLANES_D88)

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

/* One thread: all copies of a block. */
template <int ROWS, int CLUSTER>
static __device__ void planes_bring(const planes_args &args, uint32_t base, uint32_t rank, int32_t first,
                                    int32_t step) {
    typedef planes_memory<ROWS> memory;
    enum { SHARE = PLANES_W_BYTES / CLUSTER };
    const uint16_t mask = (uint16_t)((1u << CLUSTER) - 1);
    uint32_t stage = 0, parity = 1, slot = 0;
    for (int32_t t = first; t < args.tiles; t += step) {
        const int32_t output = t / args.row_tiles, row = t % args.row_tiles * ROWS;
        const unsigned char *w = args.w + (int64_t)output * args.chunks * 2 * PLANES_W_BYTES + rank * SHARE;
        for (int32_t c = 0; c < 2 * args.chunks; c++) {
            const uint32_t full = base + memory::barriers + 8 * stage, to = base + stage * memory::stage;
            planes_await(full + 8 * PLANES_STAGES, parity);
            planes_expect(full, memory::stage + (c % 2 ? 0u : (uint32_t)memory::slot));
            if (CLUSTER > 1) {
                planes_copy_all(to + rank * SHARE, w + (int64_t)c * PLANES_W_BYTES, SHARE, full, mask);
            } else {
                planes_copy(to, w + (int64_t)c * PLANES_W_BYTES, PLANES_W_BYTES, full);
            }
            planes_copy(to + PLANES_W_BYTES, args.x + ((int64_t)c * args.x_rows + row) * PLANES_STEP,
                        ROWS * PLANES_STEP, full);
            if (c % 2 == 0) {
                const uint32_t factors = base + memory::factors + slot * memory::slot;
                planes_copy(factors, args.units + (int64_t)(c / 2) * args.outputs + output * PLANES_OUTPUTS,
                            PLANES_OUTPUTS * 4, full);
                planes_copy(factors + PLANES_OUTPUTS * 4, args.x_scales + (int64_t)(c / 2) * args.x_rows + row,
                            ROWS * 4, full);
                slot = slot + 1 == PLANES_SLOTS ? 0 : slot + 1;
            }
            stage = stage + 1 == PLANES_STAGES ? 0 : stage + 1;
            parity ^= stage == 0;
        }
    }
}

/* The two consumer warpgroups issue products in turn, so that one's float work falls into the other's
 * products. */
static __device__ __forceinline__ void planes_take_turn(uint32_t group) {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
}

static __device__ __forceinline__ void planes_pass_turn(uint32_t group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory");
}

template <int ROWS, bool LOW>
static __device__ __forceinline__ void planes_add_stage(int32_t (&sums)[ROWS / 2], uint32_t stage,
                                                        uint32_t group, int32_t keep) {
    const uint64_t w = planes_descriptor(stage + (LOW ? PLANES_W_BYTES / 2 : 0) + group * 64 * PLANES_STEP);
    const uint64_t x = planes_descriptor(stage + PLANES_W_BYTES);
#pragma unroll
    for (int s = 0; s < PLANES_STEP / 32; s++) {
        planes_multiply<ROWS, LOW>(sums, w + 2 * s, x + 2 * s, s > 0 ? 1 : keep);
    }
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
        if (o < weight.rows) {
            const float bias = weight.bias ? weight.bias[o] : 0.0f;
#pragma unroll
            for (int j = 0; j < ROWS / 8 * 2; j++) {
                const int32_t r = row + j / 2 * 8 + j % 2;
                if (r < rows) {
                    float value = totals[j / 2 * 4 + 2 * k + j % 2];
                    value = weight.bias ? value + bias : value;
                    if (args.residual.data) {
                        value += sl_f32(args.residual, r)[weight.column + o];
                    }
                    sl_f32(args.y, r)[weight.column + o] = value;
                }
            }
        }
    }
}

/* One of the two consumer warpgroups. */
template <int ROWS, int CLUSTER>
static __device__ void planes_consume(const sl_cuda_context &context, const planes_args &args, uint32_t base,
                                      unsigned char *memory_base) {
    typedef planes_memory<ROWS> memory;
    const uint32_t thread = threadIdx.x % 128, group = threadIdx.x / 128, lane = thread % 32;
    const int32_t my_output = (int32_t)(group * 64 + thread / 32 * 16 + lane / 4), my_row = (int32_t)(lane % 4 * 2);
    uint32_t stage = 0, parity = 0, slot = 0;
    const int32_t rows = sl_count(context, args.y.rows);
    int32_t sums[ROWS / 2];
    if (group == 1) {
        planes_pass_turn(group);
    }
    for (int32_t t = (int32_t)blockIdx.x; t < args.tiles; t += (int32_t)gridDim.x) {
        const int32_t tile = t / args.row_tiles, row = t % args.row_tiles * ROWS;
        float totals[ROWS / 2] = {};
        for (int32_t c = 0; c < args.chunks; c++) {
            const uint32_t full = base + memory::barriers + 8 * stage, at = base + stage * memory::stage;
            planes_await(full, parity);
            planes_await(full + 8, parity);
            planes_take_turn(group);
            wgmma_fence();
            planes_add_stage<ROWS, false>(sums, at, group, 0);
            planes_add_stage<ROWS, false>(sums, at + memory::stage, group, 1);
            wgmma_commit();
            planes_pass_turn(group);
            planes_wait(sums);
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++) {
                sums[i] <<= 8;
            }
            planes_take_turn(group);
            wgmma_fence();
            planes_add_stage<ROWS, true>(sums, at, group, 1);
            planes_add_stage<ROWS, true>(sums, at + memory::stage, group, 1);
            wgmma_commit();
            planes_pass_turn(group);
            planes_wait(sums);
            if (thread < 2 * CLUSTER) {
                planes_arrive(full + 8 * PLANES_STAGES + 8 * (thread % 2), thread / 2);
            }
            const float *units = (const float *)(memory_base + memory::factors + slot * memory::slot);
            const float u[2] = {units[my_output], units[my_output + 8]};
            const float2 *x_scales = (const float2 *)(units + PLANES_OUTPUTS + my_row);
#pragma unroll
            for (int j = 0; j < ROWS / 8; j++) {
                const float2 s = x_scales[4 * j];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    totals[4 * j + e] += units_product(sums[4 * j + e], u[e / 2], e % 2 ? s.y : s.x);
                }
            }
            slot = slot + 1 == PLANES_SLOTS ? 0 : slot + 1;
            stage = stage + 2 == PLANES_STAGES ? 0 : stage + 2;
            parity ^= stage == 0;
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
            barrier_init(base + memory::barriers + 8 * i, 1);
            barrier_init(base + memory::barriers + 8 * (PLANES_STAGES + i), 2 * CLUSTER);
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
            planes_bring<ROWS, CLUSTER>(args, base, rank, (int32_t)blockIdx.x, (int32_t)gridDim.x);
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
