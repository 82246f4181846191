/* Products of many rows with F32 weights on tensor cores: routers, and models whose weights are F32. A float
 * is the sum of two TF32 numbers of 11 bits each, but for 2^-23 of it. Of a product's four parts the one of
 * both rests is left out, which is 2^-22 of it at most. So results are almost as good as sums of floats are.
 * An infinity makes NaN.
 *
 * Class "f32/tf32x3": chunks of 32 columns are summed by the tensor core, 8 columns after the other; of these
 * the weights' rests times x, the weights times x's rests, and the weights times x. Chunks are added in
 * rising order to the sum of their range, a fourth of the chunks, and then the ranges in order. Then bias,
 * then residual.
 *
 * A block has a tile of outputs and rows. Small tiles fill the device where there are few rows or few
 * outputs, and their ranges go to groups of warps; in the largest, every warp takes all ranges. Which tile it
 * is does not change the bits. Weights and rows of x come to shared memory as they are, some chunks ahead,
 * and are split on their way to registers. */
#include "backend/cuda/linear/f32/f32_rows8.h"
#include "backend/cuda/linear/f32/tf32_tile.cuh"

/* What a block computes. */
typedef struct tf32_place {
    int32_t segment, output, row;
} tf32_place;

/* A result's place in the block's tile: element i of part m, n of the warp's. */
template <typename SHAPE> static __device__ __forceinline__ int2 tf32_result(int m, int n, int i) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP,
                  warp = (int32_t)threadIdx.x / SL_WARP % (TF32_WARPS / SHAPE::GROUPS);
    const int32_t output = (warp % SHAPE::DOWN * SHAPE::TALL + m) * 16 + lane / 4 + i / 2 * 8,
                  row = (warp / SHAPE::DOWN * SHAPE::WIDE + n) * 8 + lane % 4 * 2 + i % 2;
    return make_int2(output, row);
}

/* Puts the sums of a range aside, or adds them to those that are, and begins at zero. */
template <typename SHAPE>
static __device__ __forceinline__ void keep(float *kept, bool is_first,
                                            float (&sums)[SHAPE::TALL][SHAPE::WIDE][4]) {
#pragma unroll
    for (int i = 0; i < SHAPE::TALL * SHAPE::WIDE * 4; i++) {
        float *sum = &sums[i / 4 / SHAPE::WIDE][i / 4 % SHAPE::WIDE][i % 4],
              *to = kept + i * TF32_THREADS + threadIdx.x;
        *to = is_first ? *sum : *to + *sum;
        *sum = 0;
    }
}

/* Of a block whose warps have taken all ranges. */
template <typename SHAPE>
static __device__ __forceinline__ void store_all(const sl_lanes_args &args, const tf32_place &place,
                                                 int32_t left, const float *kept,
                                                 const float (&sums)[SHAPE::TALL][SHAPE::WIDE][4]) {
    const sl_cuda_weight &weight = args.weights[place.segment];
#pragma unroll
    for (int i = 0; i < SHAPE::TALL * SHAPE::WIDE * 4; i++) {
        const int m = i / 4 / SHAPE::WIDE, n = i / 4 % SHAPE::WIDE;
        const int2 at = tf32_result<SHAPE>(m, n, i % 4);
        const float sum = sums[m][n][i % 4];
        if (place.output + at.x < weight.rows && at.y < left) {
            sl_linear_store(args, weight, 0, place.row + at.y, place.output + at.x,
                            kept ? kept[i * TF32_THREADS + threadIdx.x] + sum : sum);
        }
    }
}

/* Of a block whose groups of warps have a range each; partial: where the stages were. */
template <typename SHAPE>
static __device__ __forceinline__ void store_ranges(const sl_lanes_args &args, const tf32_place &place,
                                                    int32_t left, float *partial,
                                                    const float (&sums)[SHAPE::TALL][SHAPE::WIDE][4]) {
    enum { RANGE = SHAPE::ROWS * SHAPE::LINE, ALL = SHAPE::ROWS * SHAPE::OUTPUTS };
    const int32_t group = (int32_t)threadIdx.x / (TF32_THREADS / SHAPE::GROUPS);
    const sl_cuda_weight &weight = args.weights[place.segment];
    sl_copy_wait_all();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SHAPE::TALL * SHAPE::WIDE * 4; i++) {
        const int m = i / 4 / SHAPE::WIDE, n = i / 4 % SHAPE::WIDE;
        const int2 at = tf32_result<SHAPE>(m, n, i % 4);
        partial[group * RANGE + at.y * SHAPE::LINE + at.x] = sums[m][n][i % 4];
    }
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < ALL; i += TF32_THREADS) {
        const int32_t output = i % SHAPE::OUTPUTS, row = i / SHAPE::OUTPUTS;
        const float *from = partial + row * SHAPE::LINE + output;
        float sum = from[0];
#pragma unroll
        for (int g = 1; g < SHAPE::GROUPS; g++) {
            sum += from[g * RANGE];
        }
        if (place.output + output < weight.rows && row < left) {
            sl_linear_store(args, weight, 0, place.row + row, place.output + output, sum);
        }
    }
}

/* blockIdx.x: a group of ROWS rows, so that blocks which run at once share weights; blockIdx.y: OUTPUTS
 * weight rows of a segment. */
template <typename SHAPE, int BLOCKS>
static __global__ void __launch_bounds__(TF32_THREADS, BLOCKS)
    tf32_tile_kernel(const __grid_constant__ sl_cuda_context context,
                     const __grid_constant__ sl_lanes_args args) {
    enum { GROUPS = SHAPE::GROUPS, STAGES = SHAPE::STAGES };
    extern __shared__ float4 tf32_memory[];
    float *memory = (float *)tf32_memory;
    const uint32_t stages = sl_shared_address(memory);
    sl_let_next_begin();
    const int32_t segment = sl_linear_find(args.first_block, args.segments, (int32_t)blockIdx.y);
    const sl_cuda_weight &weight = args.weights[segment];
    const tf32_place place = {segment,
                              ((int32_t)blockIdx.y - args.first_block[segment]) * (int32_t)SHAPE::OUTPUTS,
                              (int32_t)blockIdx.x * (int32_t)SHAPE::ROWS};
    const int32_t left = sl_count(context, args.y.rows) - place.row;
    if (left <= 0) {
        sl_wait_for_inputs();
        return;
    }
    const tf32_lines weights = {weight.data + (uint64_t)place.output * weight.row_bytes, weight.row_bytes,
                                weight.rows - place.output, weight.columns};
    const tf32_lines x = {(const unsigned char *)sl_f32(args.x, place.row), args.x.row_bytes, left,
                          weight.columns};
    const int32_t chunks = (weight.columns + TF32_CHUNK - 1) / TF32_CHUNK;
    /* The last range is the longest. */
    const int32_t steps = GROUPS == 1 ? chunks : chunks - tf32_range(chunks, TF32_RANGES - 1);
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        tf32_copy<SHAPE::OUTPUTS, GROUPS>(stages + (uint32_t)(s * SHAPE::STAGE) * 4, weights, s);
    }
    sl_wait_for_inputs();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        tf32_copy<SHAPE::ROWS, GROUPS>(stages + (uint32_t)(s * SHAPE::STAGE + SHAPE::WEIGHTS) * 4, x, s);
        sl_copy_commit();
    }
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP % (TF32_WARPS / GROUPS),
                  group = (int32_t)threadIdx.x / (TF32_THREADS / GROUPS);
    const int32_t first_output = group * SHAPE::OUTPUTS + warp % SHAPE::DOWN * SHAPE::TALL * 16,
                  first_row = group * SHAPE::ROWS + warp / SHAPE::DOWN * SHAPE::WIDE * 8;
    const int32_t mine = GROUPS == 1 ? chunks : tf32_range(chunks, group + 1) - tf32_range(chunks, group);
    float sums[SHAPE::TALL][SHAPE::WIDE][4] = {}, *kept = NULL;
#pragma unroll 1
    for (int32_t step = 0, stage = 0, to = STAGES - 1; step < steps; step++) {
        sl_copy_wait<STAGES - 2>();
        __syncthreads();
        const uint32_t next = stages + (uint32_t)(to * SHAPE::STAGE) * 4;
        if (step + STAGES - 1 < steps) {
            tf32_copy<SHAPE::OUTPUTS, GROUPS>(next, weights, step + STAGES - 1);
            tf32_copy<SHAPE::ROWS, GROUPS>(next + SHAPE::WEIGHTS * 4, x, step + STAGES - 1);
        }
        sl_copy_commit();
        if (GROUPS == 1 && step > 0 && tf32_begins(chunks, step)) {
            float *to_keep = memory + STAGES * SHAPE::STAGE;
            keep<SHAPE>(to_keep, !kept, sums);
            kept = to_keep;
        }
        const uint32_t from = stages + (uint32_t)(stage * SHAPE::STAGE) * 4;
        if (step < mine) {
            tf32_multiply<SHAPE>({from + (uint32_t)(first_output * TF32_STRIDE) * 4,
                                  from + (uint32_t)(SHAPE::WEIGHTS + first_row * TF32_STRIDE) * 4},
                                 sums);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        to = to + 1 == STAGES ? 0 : to + 1;
    }
    if constexpr (GROUPS == 1) {
        store_all<SHAPE>(args, place, left, kept, sums);
    } else {
        store_ranges<SHAPE>(args, place, left, memory, sums);
    }
}

/* ---- launches ---- */

/* Small ones first. The first are for devices whose blocks have 163 KiB of shared memory, all for Hopper. */
typedef tf32_tile_shape<32, 16, 4, 4> tf32_rows16;
typedef tf32_tile_shape<32, 32, 4, 3> tf32_rows32;
typedef tf32_tile_shape<64, 32, 4, 3> tf32_rows32_wide;
typedef tf32_tile_shape<64, 64, 4, 3> tf32_rows64;
typedef tf32_tile_shape<128, 128, 1, 3> tf32_rows128;
enum { LEAST_BYTES = tf32_rows32_wide::BYTES };

template <typename SHAPE, int BLOCKS>
static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    sl_lanes_args args = {};
    const unsigned blocks = sl_lanes_fill(context, op, SHAPE::OUTPUTS, &args);
    const unsigned groups = (unsigned)((op->rows[op->out[0].rows] + SHAPE::ROWS - 1) / SHAPE::ROWS);
    const sl_launch_shape shape = {dim3(groups, blocks), dim3(TF32_THREADS), (uint32_t)SHAPE::BYTES};
    return sl_launch(context, stream, shape, tf32_tile_kernel<SHAPE, BLOCKS>, *context, args);
}

template <typename SHAPE, int BLOCKS> static cudaError_t prepare_shape(int32_t most_bytes) {
    return (int32_t)SHAPE::BYTES > most_bytes
               ? cudaSuccess
               : sl_allow_shared(tf32_tile_kernel<SHAPE, BLOCKS>, (int)SHAPE::BYTES);
}

typedef struct tf32_choice {
    int32_t outputs, rows, bytes;
    sl_cuda_run run;
    cudaError_t (*prepare)(int32_t most_bytes);
} tf32_choice;
#define CHOICE(shape, blocks)                                                                                \
    {                                                                                                        \
        (int32_t) shape::OUTPUTS, (int32_t)shape::ROWS, (int32_t)shape::BYTES, launch<shape, blocks>,        \
            prepare_shape<shape, blocks>                                                                     \
    }
static const tf32_choice CHOICES[] = {CHOICE(tf32_rows16, 2), CHOICE(tf32_rows32, 2),
                                      CHOICE(tf32_rows32_wide, 1), CHOICE(tf32_rows64, 1),
                                      CHOICE(tf32_rows128, 1)};

/* What a choice takes: rounds of blocks, times what a column costs a processor in 1/512 of a cycle, which are
 * its products, 512 of TF32 a cycle, and its bytes, 32 a cycle from L2. */
static int64_t cost_of(const tf32_choice &choice, const sl_cuda_context *context, const sl_cuda_op *op) {
    int32_t first[SL_LINEAR_SEGMENTS + 1];
    const int64_t rows = op->rows[op->out[0].rows], outputs = sl_linear_cut(op, choice.outputs, first);
    const int64_t blocks = outputs * ((rows + choice.rows - 1) / choice.rows),
                  rounds = (blocks + context->processors - 1) / context->processors;
    return rounds * (3 * choice.outputs * choice.rows + 64 * (choice.outputs + choice.rows));
}

static SL_CUDA_RUN(run) {
    const tf32_choice *best = &CHOICES[0];
    for (const tf32_choice &choice : CHOICES) {
        if (choice.bytes <= op->facts->block_bytes &&
            cost_of(choice, context, op) <= cost_of(*best, context, op)) {
            best = &choice;
        }
    }
    return best->run(context, op, stream);
}

static cudaError_t prepare(const sl_cuda_facts *facts) {
    cudaError_t code = cudaSuccess;
    for (const tf32_choice &choice : CHOICES) {
        code = code ? code : choice.prepare(facts->block_bytes);
    }
    return code;
}

static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    if (query->backend->options.deterministic) {
        return "has a numeric class for many rows only";
    }
    if (sl_cuda_facts_of(query->backend)->block_bytes < LEAST_BYTES) {
        return "needs 162 KiB of shared memory for a block";
    }
    return sl_f32_tile_declines(kernel, query);
}

static const sl_cuda_kernel KERNELS[] = {F32_KERNEL(F32, "linear/f32/cuda-tf32-tile", SL_CUDA_TF32_TILE,
                                                    "f32/tf32x3", SL_CUDA_FEW_ROWS + 1, 0, declines, run)};

SL_CUDA_FAMILY(tf32_tile) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, prepare};
