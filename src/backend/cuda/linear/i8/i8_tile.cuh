/* i8_mma.cuh for many rows: a block multiplies a tile of weight rows with a tile of rows of x, one chunk of
 * 256 columns after the other. While a chunk is multiplied, the next one is on its way to shared memory. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_TILE_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_TILE_CUH

#include "backend/cuda/linear/i8/i8_mma.cuh"

/* DOWN by ACROSS warps of HEIGHT times 16 weight rows by TILES times 8 rows of x. */
template <int DOWN, int ACROSS, int HEIGHT, int TILES, int BLOCKS> struct tile_shape {
    enum {
        down = DOWN,
        across = ACROSS,
        height = HEIGHT,
        tiles = TILES,
        blocks = BLOCKS, /* at a time on a processor, as far as registers go */
        threads = DOWN * ACROSS * SL_WARP,
        outputs = DOWN * HEIGHT * MMQ_OUTPUTS,
        rows = ACROSS * TILES * 8
    };
};

/* What is where in shared memory; the first three twice. */
template <int TYPE, typename SHAPE> struct tile_memory {
    enum {
        x = SHAPE::outputs * mmq_type<TYPE>::stride,
        x_factors = x + SHAPE::rows * MMQ_X_STRIDE,
        stage = x_factors + SHAPE::rows * MMQ_FACTORS * 16,
        factors = 2 * stage,
        bytes = factors + SHAPE::outputs / MMQ_OUTPUTS * (int)sizeof(mmq_factors)
    };
};

/* What a row past the end has instead of a place. */
enum { TILE_NO_ROW = 1 };

/* What a block multiplies; rows.x: where rows start in x's data, at multiples of 16. */
template <typename SHAPE> struct tile_work {
    const mmq_args &args;
    const sl_cuda_weight &weight;
    const sl_tile_rows<SHAPE::rows> &rows;
    const unsigned char *matrix; /* the first weight row */
    int32_t left;                /* weight rows from there on, at least 1 */
};

/* By the whole block: rows of x as tile_work has them. */
template <int ROWS>
static __device__ __forceinline__ void tile_place_rows(const mmq_args &args, sl_tile_rows<ROWS> *rows) {
    for (int32_t i = (int32_t)threadIdx.x; i < ROWS; i += (int32_t)blockDim.x) {
        const int32_t x = rows->x[i];
        rows->x[i] = x < 0 ? (int32_t)TILE_NO_ROW : (int32_t)((uint32_t)x * (uint32_t)args.x.row_bytes);
    }
    __syncthreads();
}

/* ---- copies ---- */

/* Past the end: the last weight row once more, and zeros for x. */
template <int TYPE, typename SHAPE>
static __device__ __forceinline__ void tile_copy(const tile_work<SHAPE> &work, int32_t chunk,
                                                 uint32_t stage) {
    typedef tile_memory<TYPE, SHAPE> memory;
    enum { PIECES = mmq_type<TYPE>::pieces, X_PIECES = MMQ_CHUNK / 16, ROWS = SHAPE::rows };
    const unsigned char *from = work.matrix + chunk * mmq_type<TYPE>::bytes;
    const uint32_t thread = threadIdx.x, last = (uint32_t)work.left - 1,
                   row_bytes = (uint32_t)work.weight.row_bytes;
#pragma unroll
    for (uint32_t k = 0; k < (SHAPE::outputs * PIECES + SHAPE::threads - 1) / SHAPE::threads; k++) {
        const uint32_t i = k * SHAPE::threads + thread, row = i / PIECES;
        if (SHAPE::outputs * PIECES % SHAPE::threads == 0 || i < SHAPE::outputs * PIECES) {
            const unsigned char *start = from + (row < last ? row : last) * row_bytes;
            const uint32_t piece = mmq_own_piece<TYPE>(i % PIECES, (uint32_t)(uint64_t)start);
            if (mmq_type<TYPE>::bytes % 16 != 0) { /* every piece has bytes of the chunk */
                start = (const unsigned char *)((uint64_t)start & ~(uint64_t)15);
            }
            sl_copy_16_of_line(stage + i * 16, start + piece * 16, 16);
        }
    }
    const unsigned char *x = work.args.x.data + work.args.x.column + chunk * MMQ_CHUNK;
    const uint32_t x_piece = thread % X_PIECES;
#pragma unroll
    for (uint32_t k = 0; k < ROWS * X_PIECES / SHAPE::threads; k++) {
        const uint32_t row = k * (SHAPE::threads / X_PIECES) + thread / X_PIECES,
                       at = (uint32_t)work.rows.x[row];
        sl_copy_16_of_line(stage + memory::x + row * MMQ_X_STRIDE + x_piece * 16,
                           x + (at == TILE_NO_ROW ? 0 : at + x_piece * 16), at == TILE_NO_ROW ? 0 : 16);
    }
    const uint32_t width = (uint32_t)work.args.x.width;
    const unsigned char *scales = work.args.x.data + width + work.args.x.column / 8 + chunk * MMQ_GROUPS * 4;
    for (uint32_t i = thread; i < ROWS * 2; i += SHAPE::threads) {
        const uint32_t row = i / 2, half = i % 2, at = (uint32_t)work.rows.x[row];
        const uint32_t to = stage + memory::x_factors + (row * MMQ_FACTORS + 2 * half) * 16;
        const unsigned char *of = scales + (at == TILE_NO_ROW ? 0 : at + 16 * half);
        sl_copy_16_of_line(to, of, at == TILE_NO_ROW ? 0 : 16);
        sl_copy_16_of_line(to + 16, of + width / 8, at == TILE_NO_ROW ? 0 : 16);
    }
    sl_copy_commit();
}

/* By the thread that copied them, which sees them before the others do. */
template <int TYPE, typename SHAPE>
static __device__ __forceinline__ void tile_finish_x(unsigned char *stage) {
    float4 *factors = (float4 *)(stage + tile_memory<TYPE, SHAPE>::x_factors);
    for (uint32_t i = threadIdx.x; i < SHAPE::rows * 2; i += SHAPE::threads) {
        mmq_finish_x(factors + i / 2 * MMQ_FACTORS + i % 2 * 2);
    }
}

/* ---- the kernel ---- */

/* Neighbours in the grid share the weights: what a wave of blocks reads is x and few of the outputs' weights.
 */
template <int TYPE, typename SHAPE>
static __global__ void __launch_bounds__(SHAPE::threads, SHAPE::blocks)
    tile_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ mmq_args args) {
    enum { HEIGHT = SHAPE::height, TILES = SHAPE::tiles, ROWS = SHAPE::rows };
    typedef tile_memory<TYPE, SHAPE> layout;
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ sl_tile_rows<ROWS> rows;
    sl_wait_for_inputs();
    if (!sl_find_rows(args, args.weights[0].experts, sl_count(context, args.y.rows), (int32_t)blockIdx.x,
                      &rows)) {
        return;
    }
    tile_place_rows(args, &rows);
    int32_t segment = 0;
    while (segment + 1 < args.segments && (int32_t)blockIdx.y >= args.first_tile[segment + 1]) {
        segment++;
    }
    const sl_cuda_weight &weight = args.weights[segment];
    const int32_t first = ((int32_t)blockIdx.y - args.first_tile[segment]) * SHAPE::outputs;
    const tile_work<SHAPE> work = {args, weight, rows,
                                   weight.data + (uint64_t)rows.expert * weight.expert_bytes +
                                       (uint64_t)first * weight.row_bytes,
                                   weight.rows - first};
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t my_tile = warp % SHAPE::down * HEIGHT, my_row = warp / SHAPE::down * (TILES * 8);
    const int32_t chunks = weight.columns / MMQ_CHUNK;
    const uint32_t base = sl_shared_address(memory);
    mmq_factors *factors = (mmq_factors *)(memory + layout::factors);
    float totals[HEIGHT][TILES][4] = {};
    tile_copy<TYPE, SHAPE>(work, 0, base);
    for (int32_t c = 0; c < chunks; c++) {
        unsigned char *stage = memory + c % 2 * layout::stage;
        mmq_wait(0);
        tile_finish_x<TYPE, SHAPE>(stage);
        __syncthreads();
        if (c + 1 < chunks) {
            tile_copy<TYPE, SHAPE>(work, c + 1, base + (uint32_t)((c + 1) % 2 * layout::stage));
        }
        const uint32_t start = (uint32_t)(uint64_t)work.matrix + (uint32_t)(c * mmq_type<TYPE>::bytes);
        for (int32_t t = warp; t < SHAPE::outputs / MMQ_OUTPUTS; t += SHAPE::threads / SL_WARP) {
            const mmq_raw raw = {stage + t * MMQ_OUTPUTS * mmq_type<TYPE>::stride,
                                 start + (uint32_t)(t * MMQ_OUTPUTS) * (uint32_t)weight.row_bytes,
                                 (uint32_t)weight.row_bytes};
            mmq_make_factors<TYPE>(raw, factors + t);
        }
        __syncthreads();
        mmq_chunk<HEIGHT> chunk;
#pragma unroll
        for (int m = 0; m < HEIGHT; m++) {
            chunk.raw[m].at = stage + (my_tile + m) * MMQ_OUTPUTS * mmq_type<TYPE>::stride;
            chunk.raw[m].start = start + (uint32_t)((my_tile + m) * MMQ_OUTPUTS) * (uint32_t)weight.row_bytes;
            chunk.raw[m].row_bytes = (uint32_t)weight.row_bytes;
        }
        chunk.factors = factors + my_tile;
        chunk.x = stage + layout::x + my_row * MMQ_X_STRIDE;
        chunk.x_factors = (const float4 *)(stage + layout::x_factors) + my_row * MMQ_FACTORS;
        float part[HEIGHT][TILES][4] = {};
        mmq_add_chunk<TYPE, HEIGHT, TILES>(chunk, part);
#pragma unroll
        for (int i = 0; i < HEIGHT * TILES * 4; i++) {
            totals[i / (4 * TILES)][i / 4 % TILES][i % 4] += part[i / (4 * TILES)][i / 4 % TILES][i % 4];
        }
    }
    sl_let_next_begin();
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
        for (int m = 0; m < HEIGHT; m++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int32_t row = my_row + 8 * n + lane % 4 * 2 + e % 2;
                const int32_t output = first + (my_tile + m) * MMQ_OUTPUTS + lane / 4 + e / 2 * 8;
                if (row < rows.count && output < weight.rows) {
                    sl_linear_store(args, weight, rows.expert, rows.y[row], output, totals[m][n][e]);
                }
            }
        }
    }
}

/* ---- launches ---- */

template <int TYPE, typename SHAPE>
static cudaError_t tile_launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    mmq_args args;
    const int32_t tiles = mmq_make_args(context, op, SHAPE::outputs, &args);
    const int32_t rows = op->rows[op->out[0].rows];
    int32_t row_tiles = (rows + SHAPE::rows - 1) / SHAPE::rows;
    if (args.list) { /* each expert that is chosen may leave one tile partly empty */
        row_tiles = rows / SHAPE::rows + (op->weights[0].experts < rows ? op->weights[0].experts : rows);
    }
    const sl_launch_shape launch = {dim3((unsigned)row_tiles, (unsigned)tiles), dim3(SHAPE::threads),
                                    (uint32_t)tile_memory<TYPE, SHAPE>::bytes};
    return sl_launch(context, stream, launch, tile_kernel<TYPE, SHAPE>, *context, args);
}

template <int TYPE, typename SHAPE> static cudaError_t tile_prepare_shape(int32_t bytes) {
    return tile_memory<TYPE, SHAPE>::bytes > bytes
               ? cudaSuccess
               : cudaFuncSetAttribute(tile_kernel<TYPE, SHAPE>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      tile_memory<TYPE, SHAPE>::bytes);
}

#endif
