/* Products for many rows in class "q8_256" (units.cuh) with Hopper's int8 warpgroup instructions.
 *
 * An integer weight of 16 bits is 256 * high + low, a signed and an unsigned byte. A warpgroup adds the
 * products of both over a chunk of 256 columns, each in sums of its own; 256 times the one plus the other is
 * the exact integer, which becomes a float and is added to the sums over the chunks.
 *
 * x lies in a scratch as shared memory has it, "128-byte swizzle": pieces of 8 rows by 128 columns, 16-byte
 * piece c of row r at c ^ r; so that a tile's stage is one bulk copy. The weights' planes are made by a
 * warpgroup of the block from the file's bytes, a weight row each thread: through memory they would be two
 * bytes a weight, and the L2 cache hands out too few (some 25 a cycle and multiprocessor) for that. Two
 * warpgroups multiply 64 outputs each with all rows of the tile.
 */
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
    PLANES_W_BYTES = 2 * PLANES_OUTPUTS * PLANES_STEP, /* of a stage: both planes */
    PLANES_DECODERS = 128
};

/* A tile of rows: `count` of them from `first` on in the scratch; they are rows of y from `row` on or, with
 * experts, those that the schedule's list names from there on. */
typedef struct planes_tile {
    int32_t expert, first, row, count;
} planes_tile;

/* With experts: made on the device from the schedule. An expert's rows begin at a multiple of 8 in the
 * scratch. */
typedef struct planes_plan {
    int32_t tiles;
    planes_tile at[];
} planes_plan;

/* x: [step][x_rows / 8] pieces; x_scales [chunk][x_rows]. */
typedef struct planes_args {
    sl_cuda_weight weights[SL_LINEAR_SEGMENTS];
    int32_t segment_tile[SL_LINEAR_SEGMENTS + 1]; /* the first tile of outputs of each segment; all */
    int32_t segments;
    const unsigned char *x;
    const float *x_scales;
    int32_t x_rows, chunks;
    const planes_plan *plan; /* NULL without experts */
    const int32_t *list;
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

/* Tile `index` of the rows; `rows`: of the step. */
template <int ROWS>
static __device__ __forceinline__ planes_tile planes_find(const planes_args &args, int32_t index,
                                                          int32_t rows) {
    if (args.plan) {
        return args.plan->at[index];
    }
    const planes_tile tile = {0, index * ROWS, index * ROWS, min(rows - index * ROWS, ROWS)};
    return tile;
}

template <int ROWS>
static __device__ __forceinline__ int32_t planes_row_tiles(const planes_args &args, int32_t rows) {
    return args.plan ? args.plan->tiles : (rows + ROWS - 1) / ROWS;
}

#if SL_HAS_WGMMA

#define PLANES_D(i)                                                                                          \
    "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]),              \
        "+r"(d[i + 6]), "+r"(d[i + 7])
#define PLANES_D16 PLANES_D(0), PLANES_D(8)
#define PLANES_D32 PLANES_D16, PLANES_D(16), PLANES_D(24)
#define PLANES_D40 PLANES_D32, PLANES_D(32)
#define PLANES_D48 PLANES_D40, PLANES_D(40)
#define PLANES_D64 PLANES_D32, PLANES_D(32), PLANES_D(40), PLANES_D(48), PLANES_D(56)

/* d = (KEEP ? d : 0) + a b^T, 32 columns, both in shared memory. */
template <int ROWS, bool LOW>
static __device__ __forceinline__ void planes_multiply(int32_t (&d)[ROWS / 2], uint64_t a, uint64_t b,
                                                       int32_t keep);
#define PLANES_WGMMA(ROWS, LOW, TYPES, NAMES, A, B, P, ...)                                                  \
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
PLANES_BOTH(32, SL_M16, "%16", "%17", "%18", PLANES_D16)
PLANES_BOTH(80, SL_M40, "%40", "%41", "%42", PLANES_D40)
PLANES_BOTH(96, SL_M48, "%48", "%49", "%50", PLANES_D48)
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

/* A place in the ring, and the parity of its barriers' phase. */
typedef struct planes_place {
    uint32_t at, parity;
} planes_place;

static __device__ __forceinline__ void planes_next(planes_place *place) {
    place->at = place->at + 1 == PLANES_STAGES ? 0 : place->at + 1;
    place->parity ^= place->at == 0;
}

static __device__ __forceinline__ int32_t planes_segment(const planes_args &args, int32_t tile) {
    int32_t segment = 0;
    while (segment + 1 < args.segments && tile >= args.segment_tile[segment + 1]) {
        segment++;
    }
    return segment;
}

/* ---- weights to planes ---- */

/* Four columns: q are bytes below 256, and scale * q + constant is the integer plus 2^15, twice. */
static __device__ __forceinline__ void planes_four(uint32_t even, uint32_t odd, int32_t scale,
                                                   uint32_t constant, uint32_t *high, uint32_t *low) {
    const uint32_t e = even * (uint32_t)scale + constant, o = odd * (uint32_t)scale + constant;
    *low = __byte_perm(e, o, 0x6240);
    *high = __byte_perm(e, o, 0x7351) ^ 0x80808080u;
}

/* A thread's row: half a chunk at a time. */
template <int TYPE> struct planes_row;

template <> struct planes_row<SL_QTYPE_Q4_K> {
    enum { BYTES = SL_Q4_K_BYTES };
    uint4 header, quants[4];
    units_k k;

    __device__ __forceinline__ void load(const unsigned char *chunk, int half) {
        if (half == 0) {
            header = *(const uint4 *)chunk;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            quants[i] = ((const uint4 *)chunk)[1 + 4 * half + i];
        }
    }
    __device__ __forceinline__ void begin(void) {
        k = units_k_of(header);
    }
    /* What the second half has from the first one. */
    __device__ __forceinline__ void take(const planes_row &first) {
        k = first.k;
    }
    __device__ __forceinline__ float unit(void) const {
        return k.unit;
    }
    /* Words 4 j .. 4 j + 3 of group g's columns, g the number in the half. */
    __device__ __forceinline__ void decode(int half, int g, int j, uint32_t (&high)[4],
                                           uint32_t (&low)[4]) const {
        const uint4 q = quants[g / 2 * 2 + j];
        const uint32_t words[4] = {q.x, q.y, q.z, q.w};
        const uint32_t scales = half ? k.scales[1] : k.scales[0], mins = half ? k.mins[1] : k.mins[0];
        const int32_t scale = units_nearest(k.scale, units_byte(scales, g)) - UNITS_MAGIC_BITS;
        const int32_t min = units_nearest(k.min, units_byte(mins, g)) - UNITS_MAGIC_BITS;
        const uint32_t constant = (uint32_t)(32768 - min) * 0x10001u;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            planes_four(words[i] >> 4 * (g % 2) & 0x000f000fu, words[i] >> (8 + 4 * (g % 2)) & 0x000f000fu,
                        scale, constant, &high[i], &low[i]);
        }
    }
};

/* Half a chunk to a stage: 128 columns of both planes. */
template <int TYPE>
static __device__ __forceinline__ void planes_put_row(const planes_row<TYPE> &row, int half, int32_t at,
                                                      unsigned char *stage) {
    unsigned char *to = stage + at / 8 * 1024 + at % 8 * 128;
#pragma unroll
    for (int g = 0; g < 4; g++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t high[4], low[4];
            row.decode(half, g, j, high, low);
            const int32_t piece = ((2 * g + j) ^ (at % 8)) * 16;
            *(uint4 *)(to + piece) = make_uint4(high[0], high[1], high[2], high[3]);
            *(uint4 *)(to + PLANES_W_BYTES / 2 + piece) = make_uint4(low[0], low[1], low[2], low[3]);
        }
    }
}

/* One warpgroup: x's copies and the weights' planes of all stages. */
template <int TYPE, int ROWS>
static __device__ void planes_bring(const planes_args &args, uint32_t base, unsigned char *memory_base,
                                    int32_t rows) {
    typedef planes_memory<ROWS> memory;
    const int32_t mine = (int32_t)threadIdx.x % PLANES_DECODERS, lane = mine % SL_WARP;
    const int32_t row_tiles = planes_row_tiles<ROWS>(args, rows);
    const int32_t tiles = row_tiles * args.segment_tile[SL_LINEAR_SEGMENTS];
    planes_place place = {0, 1};
    uint32_t slot = 0;
    for (int32_t t = (int32_t)blockIdx.x; t < tiles; t += (int32_t)gridDim.x) {
        const planes_tile tile = planes_find<ROWS>(args, t % row_tiles, rows);
        const int32_t segment = planes_segment(args, t / row_tiles);
        const sl_cuda_weight &weight = args.weights[segment];
        const int32_t output = (t / row_tiles - args.segment_tile[segment]) * PLANES_OUTPUTS + mine;
        const unsigned char *w = weight.data + (uint64_t)tile.expert * weight.expert_bytes +
                                 (uint64_t)min(output, weight.rows - 1) * weight.row_bytes;
        planes_row<TYPE> row, next;
        next.load(w, 0);
        for (int32_t c = 0; c < args.chunks; c++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if (half == 0) {
                    row = next;
                    row.begin();
                    next.load(w, 1);
                } else {
                    const planes_row<TYPE> head = row;
                    row = next;
                    row.take(head);
                    w += planes_row<TYPE>::BYTES;
                    next.load(c + 1 < args.chunks ? w : w - planes_row<TYPE>::BYTES, 0);
                }
                const uint32_t full = base + memory::full + 8 * place.at;
                const uint32_t stage = place.at * memory::stage;
                sl_barrier_wait(base + memory::empty + 8 * place.at, place.parity);
                if (mine == 0) {
                    const uint32_t scales = memory::factors + slot * memory::slot + PLANES_OUTPUTS * 4;
                    sl_barrier_expect(full, (uint32_t)(ROWS * PLANES_STEP + (half ? 0 : ROWS * 4)));
                    sl_bulk_copy(base + stage + PLANES_W_BYTES,
                                 args.x + ((int64_t)(2 * c + half) * args.x_rows + tile.first) * PLANES_STEP,
                                 ROWS * PLANES_STEP, full);
                    if (half == 0) {
                        sl_bulk_copy(base + scales, args.x_scales + (int64_t)c * args.x_rows + tile.first,
                                     ROWS * 4, full);
                    }
                }
                planes_put_row<TYPE>(row, half, mine, memory_base + stage);
                if (half == 0) {
                    float *units = (float *)(memory_base + memory::factors + slot * memory::slot);
                    units[mine] = row.unit();
                    slot = slot + 1 == PLANES_SLOTS ? 0 : slot + 1;
                }
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                __syncwarp();
                if (lane < SL_ARRIVING_LANES) {
                    sl_barrier_arrive(full);
                }
                planes_next(&place);
            }
        }
    }
}

/* ---- products ---- */

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

/* Each warp for itself: that it leaves a chunk's first stage also says that it has read the factors of the
 * chunk before. */
static __device__ __forceinline__ void planes_leave(uint32_t empty) {
    __syncwarp();
    if (threadIdx.x % SL_WARP < SL_ARRIVING_LANES) {
        sl_barrier_arrive(empty);
    }
}

/* In each tile the second group begins when the first one's products are under way, so that the float work of
 * one falls into the products of the other. */
static __device__ __forceinline__ void planes_take_turn(void) {
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

static __device__ __forceinline__ void planes_pass_turn(void) {
    asm volatile("bar.arrive 1, 256;" ::: "memory");
}

/* A thread's outputs: `output` of the tile and 8 further, rows `row` and the next of every eight. */
template <int N>
static __device__ __forceinline__ void planes_store(const planes_args &args, const planes_tile &tile,
                                                    int32_t output_tile, int32_t output, int32_t row,
                                                    const float (&totals)[N / 2]) {
    const int32_t segment = planes_segment(args, output_tile);
    const sl_cuda_weight &weight = args.weights[segment];
    output += (output_tile - args.segment_tile[segment]) * PLANES_OUTPUTS;
    const bool there[2] = {output < weight.rows, output + 8 < weight.rows};
    float bias[2] = {};
    for (int k = 0; k < 2 && weight.bias; k++) {
        bias[k] = there[k] ? weight.bias[(int64_t)tile.expert * weight.rows + output + 8 * k] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int32_t r = row + 8 * j + e;
            if (r < tile.count) {
                const int32_t y_row = args.plan ? args.list[tile.row + r] : tile.row + r;
                float *y = sl_f32(args.y, y_row) + weight.column + output;
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    if (there[k]) {
                        float value = totals[4 * j + 2 * k + e];
                        value = weight.bias ? value + bias[k] : value;
                        if (args.residual.data) {
                            value += sl_f32(args.residual, y_row)[weight.column + output + 8 * k];
                        }
                        y[8 * k] = value;
                    }
                }
            }
        }
    }
}

/* Where a consumer is. */
typedef struct planes_consumer {
    uint32_t base;
    unsigned char *memory;
    planes_place place;
    uint32_t slot;
    bool turns;
} planes_consumer;

/* One tile, of which N rows are multiplied. */
template <int ROWS, int N>
static __device__ __forceinline__ void planes_do_tile(const planes_args &args, const planes_tile &tile,
                                                      int32_t output_tile, planes_consumer *at) {
    typedef planes_memory<ROWS> memory;
    const uint32_t thread = threadIdx.x % 128, group = threadIdx.x / 128, lane = thread % 32;
    const int32_t my_output = (int32_t)(group * 64 + thread / 32 * 16 + lane / 4),
                  my_row = (int32_t)(lane % 4 * 2);
    int32_t high[N / 2], low[N / 2];
    float totals[N / 2] = {};
    if (group == 1 && at->turns) {
        planes_take_turn();
    }
#pragma unroll 1
    for (int32_t c = 0; c < args.chunks; c++) {
        const uint32_t first = at->place.at;
        sl_barrier_wait(at->base + memory::full + 8 * first, at->place.parity);
        wgmma_fence();
        planes_add_stage<N>(high, low, at->base + first * memory::stage, group, 0);
        wgmma_commit();
        planes_next(&at->place);
        const uint32_t second = at->place.at;
        sl_barrier_wait(at->base + memory::full + 8 * second, at->place.parity);
        planes_add_stage<N>(high, low, at->base + second * memory::stage, group, 1);
        wgmma_commit();
        planes_next(&at->place);
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        planes_leave(at->base + memory::empty + 8 * first);
        if (group == 0 && c == 0 && at->turns) {
            planes_pass_turn();
        }
        planes_wait(high);
        planes_wait(low);
        planes_leave(at->base + memory::empty + 8 * second);
        const float *units = (const float *)(at->memory + memory::factors + at->slot * memory::slot);
        const float u[2] = {units[my_output], units[my_output + 8]};
        const float2 *x_scales = (const float2 *)(units + PLANES_OUTPUTS + my_row);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float2 s = x_scales[4 * j];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int32_t sum = high[4 * j + e] * 256 + low[4 * j + e];
                totals[4 * j + e] += units_product(sum, u[e / 2], e % 2 ? s.y : s.x);
            }
        }
        asm volatile("fence.proxy.async.shared::cta;" ::
                         : "memory"); /* the scales' place is copied to again */
        at->slot = at->slot + 1 == PLANES_SLOTS ? 0 : at->slot + 1;
    }
    planes_store<N>(args, tile, output_tile, my_output, my_row, totals);
}

/* One of the two consumer warpgroups. */
template <int ROWS>
static __device__ void planes_consume(const planes_args &args, uint32_t base, unsigned char *memory,
                                      int32_t rows) {
    const int32_t row_tiles = planes_row_tiles<ROWS>(args, rows);
    const int32_t tiles = row_tiles * args.segment_tile[SL_LINEAR_SEGMENTS];
    planes_consumer at = {base, memory, {0, 0}, 0, args.chunks > PLANES_STAGES / 2};
    /* With fewer chunks one group might be two tiles ahead of the other, which turns do not allow for. */
    for (int32_t t = (int32_t)blockIdx.x; t < tiles; t += (int32_t)gridDim.x) {
        const planes_tile tile = planes_find<ROWS>(args, t % row_tiles, rows);
        if (ROWS > 96 && tile.count > 96) {
            planes_do_tile<ROWS, ROWS>(args, tile, t / row_tiles, &at);
        } else if (ROWS > 64 && tile.count > 80) {
            planes_do_tile<ROWS, 96>(args, tile, t / row_tiles, &at);
        } else if (ROWS > 64 && tile.count > 64) {
            planes_do_tile<ROWS, 80>(args, tile, t / row_tiles, &at);
        } else if (tile.count > 32) {
            planes_do_tile<ROWS, 64>(args, tile, t / row_tiles, &at);
        } else {
            planes_do_tile<ROWS, 32>(args, tile, t / row_tiles, &at);
        }
    }
}

#endif

/* Blocks that go through all tiles. */
template <int TYPE, int ROWS>
static __global__ void __launch_bounds__(PLANES_THREADS, 1)
    planes_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ planes_args args) {
    sl_wait_for_inputs();
#if SL_HAS_WGMMA
    typedef planes_memory<ROWS> memory;
    extern __shared__ unsigned char shared[];
    const uint32_t start = sl_shared_address(shared), base = (start + 1023) / 1024 * 1024;
    unsigned char *const memory_base = shared + (base - start);
    const int32_t rows = sl_count(context, args.y.rows);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < PLANES_STAGES; i++) {
            sl_barrier_init(base + memory::full + 8 * i, 1 + PLANES_DECODERS / SL_WARP * SL_ARRIVING_LANES);
            sl_barrier_init(base + memory::empty + 8 * i, 256 / SL_WARP * SL_ARRIVING_LANES);
        }
        sl_barriers_ready();
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
        planes_bring<TYPE, ROWS>(args, base, memory_base, rows);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
        planes_consume<ROWS>(args, base, memory_base, rows);
    }
#else
    (void)context;
    (void)args;
#endif
}

#endif
