/* Matrix products with few rows of x and FP8_128 weights, y = x W^T (+ bias) (+ residual), with or without
 * experts. What counts is reading the weights at the memory's rate, and a byte is a whole weight: a
 * conversion and a fused multiply-add for each would take longer. So the tensor core multiplies. Codes are
 * halves as they are, and x, so that it is not rounded, is the sum of two halves: 22 bits of a float's 24,
 * and the sign of what is left.
 *
 * A thread block holds its rows of x as halves and takes tile after tile of weight rows. The columns of 16
 * rows are divided among SPLIT warps, each of which has some blocks of 128 columns under way, across tiles
 * too. A load of a warp takes whole lines of 128 bytes of four rows: the memory is asked for lines, and half
 * lines would be as many questions for half of the bytes. So eight lanes have neighbouring pieces of a row,
 * but the tensor core takes a row from four: to it each half of a row's block is a row of its own, and each
 * half of a block of x a column. Of what it makes that is of other halves than meant is not looked at.
 *
 * Class "fp8/mma": 2^k of a row's 128 columns is such that the largest is from 2^14 to below 2^15, high =
 * half(x * 2^k), low = half(x * 2^k - high). The tensor core adds codes * high and codes * low apart, from 0,
 * for 64 columns, 16 at a time: in step i 4 of each 16, from 4 i on. dot is the sum of both. A warp takes its
 * blocks in rising order: sum = fmaf(scale * 2^-k, dot, sum), from 0, for each half of the blocks; then both
 * halves are added. The warps' sums are added in order, which is that of the columns: of a row of `blocks`
 * blocks, warp w has those from blocks * w / SPLIT on. Then bias, then residual. */
#include "backend/cuda/common/linear_arguments.cuh"
#include "backend/cuda/linear/f32/f32_rows8.h"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/types/fp8.cuh"

/* AHEAD: blocks of a warp under way. RESIDENT: thread blocks of a multiprocessor, where x leaves room. */
enum { THREADS = 256, WARPS = THREADS / SL_WARP, AHEAD = 2, RESIDENT = 2 };
enum { TILE = 16, BLOCK = SL_FP8_128_ELEMENTS, LOADS = 4, LOAD_ROWS = TILE / LOADS };

typedef struct fp8_rows_args {
    sl_lanes_args lanes;
    int32_t blocks;       /* of a weight row, without those that are zeros to a multiple of columns */
    int32_t tile_count;   /* of a thread block's size */
    uint32_t scales_at;   /* where they begin in a weight row, in bytes */
    int32_t scale_stride; /* of a weight row's in shared memory */
} fp8_rows_args;

/* ---- shared memory ---- */

/* The halves of ROWS rows, each [2][columns], 2^-k, [blocks][ROWS], then two tiles' scales,
 * [outputs][stride]. */
static __host__ __device__ __forceinline__ uint32_t halves_bytes(int32_t blocks) {
    return (uint32_t)blocks * BLOCK * 4;
}
static __host__ __device__ __forceinline__ uint32_t x_bytes(int32_t rows, int32_t blocks) {
    return (uint32_t)rows * (halves_bytes(blocks) + (uint32_t)(blocks + 3) / 4 * 16);
}
/* So that the rows of a load lie in banks of their own. */
static __host__ __device__ __forceinline__ int32_t scale_stride(int32_t blocks) {
    return ((blocks + 3) / 4 | 1) * 4;
}
static uint32_t shared_bytes(int32_t rows, int32_t split, int32_t blocks) {
    return x_bytes(rows, blocks) + (uint32_t)(2 * WARPS / split * TILE * scale_stride(blocks)) * 4;
}

/* ---- x ---- */

static __device__ __forceinline__ uint32_t half_pair(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* Four floats as two times four halves. */
static __device__ __forceinline__ void split_halves(float4 v, float factor, uint2 *high, uint2 *low) {
    const float x[4] = {v.x * factor, v.y * factor, v.z * factor, v.w * factor};
    uint32_t words[2][2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        words[0][i] = half_pair(x[2 * i], x[2 * i + 1]);
        words[1][i] = half_pair(x[2 * i] - sl_half_of(words[0][i] & 0xffffu),
                                x[2 * i + 1] - sl_half_of(words[0][i] >> 16));
    }
    *high = make_uint2(words[0][0], words[0][1]);
    *low = make_uint2(words[1][0], words[1][1]);
}

/* Rows of x from the first on, and up to ROWS the last once more. Low halves' 16 bytes change places with
 * their neighbours, so that lanes which read eight of high and low halves meet in no bank. */
template <int ROWS>
static __device__ __forceinline__ void fill_x(const fp8_rows_args &args, int32_t first, int32_t rows,
                                              unsigned char *x) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const uint32_t part = halves_bytes(args.blocks) / 2;
    float *factors = (float *)(x + ROWS * halves_bytes(args.blocks));
#pragma unroll 4
    for (int32_t i = (int32_t)threadIdx.x / SL_WARP; i < args.blocks * ROWS; i += WARPS) {
        const int32_t r = i % ROWS, block = i / ROWS;
        const float *row = sl_f32(args.lanes.x, first + (r < rows ? r : rows - 1));
        const float4 v = *(const float4 *)(row + block * BLOCK + 4 * lane);
        const float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
        /* Below 15 2^-k were no normal float. */
        const uint32_t bits = __reduce_max_sync(SL_FULL_WARP, __float_as_uint(most)) >> 23;
        const uint32_t exponent = bits < 15 ? 15 : bits;
        uint2 high, low;
        split_halves(v, __uint_as_float((268 - exponent) << 23), &high, &low);
        unsigned char *to = x + (uint32_t)r * 2 * part;
        const uint32_t at = (uint32_t)(block * BLOCK + 4 * lane) * 2;
        *(uint2 *)(to + at) = high;
        *(uint2 *)(to + part + (at ^ 16)) = low;
        if (lane == 0) {
            factors[i] = __uint_as_float((exponent - 14) << 23);
        }
    }
}

/* ---- weights ---- */

/* Where a warp's next loads are: of the tile, at its blocks from `at` on. It has `count` blocks of each row,
 * the first at rows; a lane has pieces of rows lane / 8 + 4 i. */
typedef struct fp8_rows_place {
    const unsigned char *rows[LOADS];
    int32_t tile, at, count;
} fp8_rows_place;

static __device__ __forceinline__ void load_codes(const unsigned char *at, uint32_t *words) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(at));
}

static __device__ __forceinline__ void load_block(const fp8_rows_args &args, const fp8_rows_place &place,
                                                  int32_t at, uint32_t (*codes)[4]) {
    if (place.tile < args.tile_count && at < place.count) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            load_codes(place.rows[i] + at * BLOCK, codes[i]);
        }
    }
}

/* Output `index` of a thread block's tile; past the end it is the last once more. */
template <int OUTPUTS>
static __device__ __forceinline__ const unsigned char *
weight_row(const fp8_rows_args &args, int32_t segment, int32_t expert, int32_t tile, int32_t index) {
    const sl_cuda_weight &weight = args.lanes.weights[segment];
    const int32_t row = (tile - args.lanes.first_block[segment]) * OUTPUTS + index;
    return weight.data + (uint64_t)expert * weight.expert_bytes +
           (uint64_t)(row < weight.rows ? row : weight.rows - 1) * weight.row_bytes;
}

/* first: the warp's first block of a row. */
template <int SPLIT>
static __device__ __forceinline__ void find_tile(const fp8_rows_args &args, int32_t expert, int32_t tile,
                                                 int32_t first, fp8_rows_place *place) {
    const int32_t group = (int32_t)threadIdx.x / SL_WARP / SPLIT, lane = (int32_t)threadIdx.x % SL_WARP;
    place->tile = tile;
    place->at = 0;
    if (tile >= args.tile_count) {
        return;
    }
    const int32_t segment = sl_linear_find(args.lanes.first_block, args.lanes.segments, tile);
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        place->rows[i] = weight_row<WARPS / SPLIT * TILE>(args, segment, expert, tile,
                                                          group * TILE + LOAD_ROWS * i + lane / 8) +
                         first * BLOCK + 16 * (lane % 8);
    }
}

/* Begins copies of a tile's scales, by the thread block. */
template <int SPLIT>
static __device__ __forceinline__ void copy_scales(const fp8_rows_args &args, int32_t expert, int32_t tile,
                                                   float *scales) {
    enum { OUTPUTS = WARPS / SPLIT * TILE };
    if (tile < args.tile_count) {
        const int32_t pieces = (args.blocks + 3) / 4;
        const int32_t segment = sl_linear_find(args.lanes.first_block, args.lanes.segments, tile);
        for (int32_t i = (int32_t)threadIdx.x; i < OUTPUTS * pieces; i += THREADS) {
            const int32_t output = i / pieces, piece = i % pieces;
            sl_copy_16(sl_shared_address(scales + output * args.scale_stride + 4 * piece),
                       weight_row<OUTPUTS>(args, segment, expert, tile, output) + args.scales_at +
                           16 * piece);
        }
    }
}

/* ---- sums ---- */

/* Columns of the tensor core's matrix are high and low, of both halves of a block, of up to two rows of x. */
template <int ROWS> struct fp8_rows_shape {
    enum { MATRICES = ROWS > 2 ? ROWS / 2 : 1, EACH = ROWS > 2 ? 2 : ROWS };
};

/* A lane's sums of load i are of weight row lane / 8 + 4 i, row lane % 4 / 2 of x and the second next, and of
 * half lane % 2 of the block with weights of half lane / 4 % 2: the others are not looked at.
 * x: where the block's halves begin; scales: of the warp's 16 weight rows. */
template <int ROWS>
static __device__ __forceinline__ void add_block(const fp8_rows_args &args, const uint32_t (*codes)[4],
                                                 const unsigned char *x, int32_t block, const float *scales,
                                                 float (*sums)[LOADS]) {
    enum { MATRICES = fp8_rows_shape<ROWS>::MATRICES, EACH = fp8_rows_shape<ROWS>::EACH };
    const uint32_t lane = threadIdx.x % SL_WARP, column = lane / 4 % (4 * EACH), quarter = lane % 4;
    const uint32_t part = halves_bytes(args.blocks) / 2;
    float dots[MATRICES][LOADS / 2][4] = {};
    uint4 pairs[MATRICES][2];
#pragma unroll
    for (int m = 0; m < MATRICES; m++) {
        const unsigned char *from = x + (4 * m + column / 4 * 2 + column % 2) * part +
                                    (uint32_t)block * BLOCK * 2 + column / 2 % 2 * BLOCK + 32 * quarter;
        pairs[m][0] = *(const uint4 *)(from + column % 2 * 16);
        pairs[m][1] = *(const uint4 *)(from + (column + 1) % 2 * 16);
    }
#pragma unroll
    for (int i = 0; i < LOADS / 2; i++) {
#pragma unroll
        for (int step = 0; step < 4; step++) {
            const uint32_t first = codes[2 * i][step], second = codes[2 * i + 1][step];
            const uint32_t a[4] = {sl_fp8_halves(first), sl_fp8_halves(second), sl_fp8_halves(first >> 16),
                                   sl_fp8_halves(second >> 16)};
#pragma unroll
            for (int m = 0; m < MATRICES; m++) {
                const uint4 four = pairs[m][step / 2];
                sl_mma_f16(dots[m][i], a, step % 2 ? four.z : four.x, step % 2 ? four.w : four.y);
            }
        }
    }
    const float *factors =
        (const float *)(x + ROWS * halves_bytes(args.blocks)) + block * ROWS + quarter / 2 % EACH;
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const float scale = scales[(int32_t)(lane / 8 + LOAD_ROWS * i) * args.scale_stride + block];
#pragma unroll
        for (int m = 0; m < MATRICES; m++) {
            const float *dot = dots[m][i / 2] + i % 2 * 2;
            sums[m][i] = fmaf(scale * factors[2 * m], dot[0] + dot[1], sums[m][i]);
        }
    }
}

/* What a thread block stores: of `rows` rows of y from the first on, the outputs of a tile. */
typedef struct fp8_rows_part {
    int32_t tile, expert, first, rows;
} fp8_rows_part;

/* To shared memory, where the sums of all warps meet. */
template <int ROWS>
static __device__ __forceinline__ void put_sums(float (*sums)[LOADS], float (*partial)[ROWS][TILE]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
#pragma unroll
    for (int m = 0; m < fp8_rows_shape<ROWS>::MATRICES; m++) {
        const int32_t r = 2 * m + lane % 4 / 2;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const float sum =
                sums[m][i] + __shfl_xor_sync(SL_FULL_WARP, sums[m][i], 5); /* the other halves */
            if (lane % 2 == 0 && lane / 4 % 2 == 0 && r < ROWS) {
                partial[warp][r][lane / 8 + LOAD_ROWS * i] = sum;
            }
            sums[m][i] = 0;
        }
    }
}

template <int ROWS, int SPLIT>
static __device__ __forceinline__ void store_tile(const fp8_rows_args &args, const fp8_rows_part &part,
                                                  const float (*partial)[ROWS][TILE]) {
    enum { OUTPUTS = WARPS / SPLIT * TILE };
    const int32_t segment = sl_linear_find(args.lanes.first_block, args.lanes.segments, part.tile);
    const sl_cuda_weight &weight = args.lanes.weights[segment];
    const int32_t first_output = (part.tile - args.lanes.first_block[segment]) * OUTPUTS;
    for (int32_t i = (int32_t)threadIdx.x; i < OUTPUTS * ROWS; i += THREADS) {
        const int32_t o = i % OUTPUTS, r = i / OUTPUTS;
        float sum = partial[o / TILE * SPLIT][r][o % TILE];
#pragma unroll
        for (int s = 1; s < SPLIT; s++) {
            sum += partial[o / TILE * SPLIT + s][r][o % TILE];
        }
        if (first_output + o < weight.rows && r < part.rows) {
            sl_linear_store(args.lanes, weight, part.expert, part.first + r, first_output + o, sum);
        }
    }
}

/* ---- the kernel ---- */

/* Tile after tile. place: of the first one, whose first AHEAD blocks are loaded or under way. Scales are
 * copied a tile ahead; the partial sums of a tile are read while the next one's are written. */
template <int ROWS, int SPLIT>
static __device__ __forceinline__ void multiply_tiles(const fp8_rows_args &args, fp8_rows_part part,
                                                      fp8_rows_place place, uint32_t (*codes)[LOADS][4],
                                                      const unsigned char *x, float *scales) {
    enum { OUTPUTS = WARPS / SPLIT * TILE };
    __shared__ float partial[2][WARPS][ROWS][TILE];
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, first = args.blocks * (warp % SPLIT) / SPLIT;
    const int32_t steps = (args.blocks + SPLIT - 1) / SPLIT;
    float sums[fp8_rows_shape<ROWS>::MATRICES][LOADS] = {};
    int32_t turn = 0;
    while (part.tile < args.tile_count) {
        const int32_t before = place.at;
        const float *tile_scales = scales + turn * OUTPUTS * args.scale_stride;
        place.at += AHEAD;
        if (place.at >= steps) {
            find_tile<SPLIT>(args, part.expert, part.tile + (int32_t)gridDim.x, first, &place);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (before + i < place.count) {
                add_block<ROWS>(args, codes[i], x, first + before + i,
                                tile_scales + warp / SPLIT * TILE * args.scale_stride, sums);
            }
            load_block(args, place, place.at + i, codes[i]);
        }
        if (place.at == 0) {
            put_sums<ROWS>(sums, partial[turn]);
            sl_copy_wait_all();
            __syncthreads();
            copy_scales<SPLIT>(args, part.expert, place.tile + (int32_t)gridDim.x,
                               scales + turn * OUTPUTS * args.scale_stride);
            store_tile<ROWS, SPLIT>(args, part, partial[turn]);
            turn ^= 1;
            part.tile = place.tile;
        }
    }
}

/* What is read of weights before there is anything else to read. */
template <int SPLIT>
static __device__ __forceinline__ void begin_weights(const fp8_rows_args &args, int32_t expert,
                                                     fp8_rows_place *place, uint32_t (*codes)[LOADS][4],
                                                     float *scales) {
    const int32_t slice = (int32_t)threadIdx.x / SL_WARP % SPLIT, first = args.blocks * slice / SPLIT;
    place->count = args.blocks * (slice + 1) / SPLIT - first;
    find_tile<SPLIT>(args, expert, (int32_t)blockIdx.x, first, place);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        load_block(args, *place, i, codes[i]);
    }
    copy_scales<SPLIT>(args, expert, (int32_t)blockIdx.x, scales);
    copy_scales<SPLIT>(args, expert, (int32_t)(blockIdx.x + gridDim.x),
                       scales + WARPS / SPLIT * TILE * args.scale_stride);
}

/* blockIdx.y: a group of ROWS rows, with experts a row of y. */
template <int ROWS, int SPLIT>
static __global__ void __launch_bounds__(THREADS, ROWS > 4 ? 1 : RESIDENT)
    fp8_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ fp8_rows_args args) {
    extern __shared__ __align__(16) unsigned char fp8_rows_shared[];
    unsigned char *x = fp8_rows_shared;
    float *scales = (float *)(x + x_bytes(ROWS, args.blocks));
    sl_let_next_begin();
    fp8_rows_part part = {(int32_t)blockIdx.x, 0, (int32_t)blockIdx.y * ROWS, 0};
    fp8_rows_place place = {};
    uint32_t codes[AHEAD][LOADS][4];
    if (!args.lanes.ids.data) {
        begin_weights<SPLIT>(args, 0, &place, codes, scales);
    }
    sl_wait_for_inputs();
    const int32_t left = sl_count(context, args.lanes.y.rows) - part.first;
    if (left <= 0) {
        sl_copy_wait_all();
        return;
    }
    part.rows = left < ROWS ? left : ROWS;
    if (args.lanes.ids.data) {
        const int32_t used = args.lanes.experts_used;
        part.expert = sl_i32(args.lanes.ids, part.first / used)[part.first % used];
        begin_weights<SPLIT>(args, part.expert, &place, codes, scales);
    }
    fill_x<ROWS>(args, part.first / args.lanes.x_share, part.rows, x);
    sl_copy_wait_all();
    __syncthreads();
    multiply_tiles<ROWS, SPLIT>(args, part, place, codes, x, scales);
}

/* ---- launches ---- */

/* What a thread block has of sums, and of shared memory that CUDA takes for it. */
enum { OWN_BYTES = 1024 };
static uint32_t partial_bytes(int32_t rows) {
    return (uint32_t)(2 * WARPS * TILE * 4 * rows);
}

/* Few columns are divided among fewer warps, so that each has some blocks. */
static int32_t split_of(int32_t blocks) {
    return blocks < WARPS ? 2 : WARPS;
}
static bool has_room(int32_t rows, int32_t blocks, int32_t bytes) {
    return blocks < 512 &&
           shared_bytes(rows, split_of(blocks), blocks) + partial_bytes(rows) <= (uint32_t)bytes;
}

static int32_t blocks_of(const sl_program *program, const sl_op *op) {
    return program->weights[op->u.linear.segments[0].weight].columns / BLOCK;
}

template <int ROWS, int SPLIT>
static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    fp8_rows_args args = {};
    args.tile_count = (int32_t)sl_lanes_fill(context, op, WARPS / SPLIT * TILE, &args.lanes);
    args.blocks = blocks_of(op->program, op->op);
    args.scales_at = (uint32_t)sl_fp8_scales_at(op->weights[0].row_bytes);
    args.scale_stride = scale_stride(args.blocks);
    const int32_t groups = (op->rows[op->out[0].rows] + ROWS - 1) / ROWS;
    const uint32_t bytes = shared_bytes(ROWS, SPLIT, args.blocks);
    const int32_t room = op->facts->processor_bytes / (int32_t)(bytes + partial_bytes(ROWS) + OWN_BYTES),
                  slots = context->processors * (room < 1          ? 1
                                                 : room < RESIDENT ? room
                                                                   : RESIDENT);
    /* As few tiles for the thread block with most as can be. */
    const int32_t rounds = (args.tile_count * groups + slots - 1) / slots;
    const sl_launch_shape shape = {
        dim3((unsigned)((args.tile_count + rounds - 1) / rounds), (unsigned)groups), dim3(THREADS), bytes};
    return sl_launch(context, stream, shape, fp8_kernel<ROWS, SPLIT>, *context, args);
}

template <int ROWS>
static cudaError_t launch_rows(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    return split_of(blocks_of(op->program, op->op)) == 2 ? launch<ROWS, 2>(context, op, stream)
                                                         : launch<ROWS, WARPS>(context, op, stream);
}

/* Groups of as many rows as there is room for. */
static SL_CUDA_RUN(run) {
    const int32_t rows = op->in[1].data ? 1 : op->rows[op->out[0].rows];
    const int32_t blocks = blocks_of(op->program, op->op), room = context->shared_bytes;
    if (rows > 4 && has_room(8, blocks, room)) {
        return launch_rows<8>(context, op, stream);
    }
    if (rows > 2 && has_room(4, blocks, room)) {
        return launch_rows<4>(context, op, stream);
    }
    return rows > 1 && has_room(2, blocks, room) ? launch_rows<2>(context, op, stream)
                                                 : launch_rows<1>(context, op, stream);
}

static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const int32_t blocks = blocks_of(query->program, query->op);
    return has_room(1, blocks, sl_cuda_facts_of(query->backend)->block_bytes)
               ? sl_f32_rows8_declines(kernel, query)
               : "takes fewer columns";
}

template <int ROWS> static cudaError_t prepare_rows(const sl_cuda_facts *facts) {
    const int bytes = facts->block_bytes - (int)partial_bytes(ROWS);
    const cudaError_t code = sl_allow_shared(fp8_kernel<ROWS, WARPS>, bytes);
    return code ? code : sl_allow_shared(fp8_kernel<ROWS, 2>, bytes);
}

static cudaError_t prepare(const sl_cuda_facts *facts) {
    cudaError_t code = prepare_rows<1>(facts);
    code = code ? code : prepare_rows<2>(facts);
    code = code ? code : prepare_rows<4>(facts);
    return code ? code : prepare_rows<8>(facts);
}

static const sl_cuda_kernel KERNELS[] = {
    F32_KERNEL(FP8_128, "linear/fp8_128/cuda-f32-rows8", SL_CUDA_F32_ROWS8, "fp8/mma", 0, SL_CUDA_FEW_ROWS,
               declines, run),
};

SL_CUDA_FAMILY(f32_rows8_fp8) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, prepare};
