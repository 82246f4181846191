/* What a block of tf32_tile.cu does with its lines in shared memory: copies and products. */
#ifndef SL_BACKEND_CUDA_LINEAR_F32_TF32_TILE_CUH
#define SL_BACKEND_CUDA_LINEAR_F32_TF32_TILE_CUH

#include "backend/cuda/common/linear_arguments.cuh"
#include "backend/cuda/ptx/mma.cuh"

enum { TF32_THREADS = 256, TF32_WARPS = TF32_THREADS / SL_WARP };
enum { TF32_CHUNK = 32, TF32_PIECES = TF32_CHUNK / 4, TF32_RANGES = 4 };
/* Floats from a line in shared memory to the next: eight lines' pieces lie in different banks. */
enum { TF32_STRIDE = TF32_CHUNK + 4 };

/* GROUPS of warps, which take a range of columns each, or one, which takes all ranges one after the other.
 * A warp of a group has TALL x WIDE results of 16 outputs and 8 rows. */
template <int OUTPUTS_, int ROWS_, int GROUPS_, int STAGES_> struct tf32_tile_shape {
    enum { OUTPUTS = OUTPUTS_, ROWS = ROWS_, GROUPS = GROUPS_, STAGES = STAGES_ };
    enum { DOWN = GROUPS == 1 ? 4 : 2, ACROSS = TF32_WARPS / GROUPS / DOWN };
    enum { TALL = OUTPUTS / DOWN / 16, WIDE = ROWS / ACROSS / 8 };
    enum { WEIGHTS = GROUPS * OUTPUTS * TF32_STRIDE, STAGE = WEIGHTS + GROUPS * ROWS * TF32_STRIDE };
    /* Floats of sums of ranges: over the stages behind the last product, or beside them. */
    enum { LINE = OUTPUTS + 4, KEPT = GROUPS == 1 ? OUTPUTS * ROWS : 0 };
    enum { BYTES = 4 * (STAGES * STAGE + KEPT) };
    static_assert(GROUPS == 1 || ((int)GROUPS == (int)TF32_RANGES && GROUPS * ROWS * LINE <= STAGES * STAGE),
                  "the ranges' sums fit where the stages were");
    static_assert(WIDE % 2 == 0, "two results' rows are loaded at once");
};

/* The first chunk of a range: by the number of columns alone. */
static __device__ __forceinline__ int32_t tf32_range(int32_t chunks, int32_t range) {
    return chunks * range / TF32_RANGES;
}

/* Whether a range that is not the first begins there. */
static __device__ __forceinline__ bool tf32_begins(int32_t chunks, int32_t chunk) {
    bool begins = false;
    for (int32_t range = 1; range < TF32_RANGES; range++) {
        begins |= chunk == tf32_range(chunks, range);
    }
    return begins;
}

/* Lines of a matrix that a block copies: those from `from` on, `count` of them; behind these and behind the
 * columns it puts zeros. */
typedef struct tf32_lines {
    const unsigned char *from;
    uint64_t row_bytes;
    int32_t count, columns;
} tf32_lines;

/* Chunk `step` of each group's range, LINES lines of it. */
template <int LINES, int GROUPS>
static __device__ __forceinline__ void tf32_copy(uint32_t to, const tf32_lines &lines, int32_t step) {
    const int32_t chunks = (lines.columns + TF32_CHUNK - 1) / TF32_CHUNK;
#pragma unroll 4 /* more at once leave no registers for sums */
    for (int i = 0; i < GROUPS * LINES * TF32_PIECES / TF32_THREADS; i++) {
        const int32_t index = i * TF32_THREADS + (int32_t)threadIdx.x, piece = index % TF32_PIECES,
                      line = index / TF32_PIECES % LINES, group = index / TF32_PIECES / LINES;
        const int32_t chunk = (GROUPS == 1 ? 0 : tf32_range(chunks, group)) + step,
                      end = GROUPS == 1 ? chunks : tf32_range(chunks, group + 1);
        const int32_t column = TF32_CHUNK * chunk + 4 * piece;
        const bool is_there = line < lines.count && chunk < end && column < lines.columns;
        const uint64_t offset = (uint64_t)line * lines.row_bytes + (uint64_t)column * 4;
        sl_copy_16_of(to + (uint32_t)(index / TF32_PIECES * TF32_STRIDE + 4 * piece) * 4,
                      lines.from + (is_there ? offset : 0), is_there ? 16 : 0);
    }
}

/* x becomes the TF32 number nearest to it. Returns what it lacks: 12 bits and a sign, of which an mma takes
 * 11 bits. Of a NaN the rest is one, and of an infinity. */
static __device__ __forceinline__ uint32_t tf32_split(uint32_t *x) {
    const float whole = __uint_as_float(*x);
    *x = (*x + 0x1000u) & 0xffffe000u;
    return __float_as_uint(whole - __uint_as_float(*x));
}

/* The warp's lines in shared memory: its first output's and its first row's. */
typedef struct tf32_operands {
    uint32_t weights, x;
} tf32_operands;

/* Adds the products over one chunk, which begin at zero: what a tensor core adds to, it does not round to
 * the nearest, so its chains are kept short. */
template <typename SHAPE>
static __device__ __forceinline__ void tf32_multiply(const tf32_operands &from,
                                                     float (&sums)[SHAPE::TALL][SHAPE::WIDE][4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, row = lane % 8, matrix = lane / 8;
    const uint32_t weights =
        from.weights + (uint32_t)((row + matrix % 2 * 8) * TF32_STRIDE + matrix / 2 * 4) * 4;
    const uint32_t x = from.x + (uint32_t)((row + matrix / 2 * 8) * TF32_STRIDE + matrix % 2 * 4) * 4;
    float chunk[SHAPE::TALL][SHAPE::WIDE][4] = {};
#pragma unroll
    for (int k = 0; k < TF32_CHUNK; k += 8) {
        uint32_t w[SHAPE::TALL][4], w_rest[SHAPE::TALL][4];
#pragma unroll
        for (int m = 0; m < SHAPE::TALL; m++) {
            sl_load_matrices(weights + (uint32_t)(16 * m * TF32_STRIDE + k) * 4, w[m]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                w_rest[m][i] = tf32_split(&w[m][i]);
            }
        }
#pragma unroll
        for (int n = 0; n < SHAPE::WIDE; n += 2) {
            uint32_t v[4], v_rest[4];
            sl_load_matrices(x + (uint32_t)(8 * n * TF32_STRIDE + k) * 4, v);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v_rest[i] = tf32_split(&v[i]);
            }
#pragma unroll
            for (int i = 0; i < 2 * SHAPE::TALL; i++) { /* all that a result takes of these columns */
                const int b = i % 2 * 2, m = i / 2;
                float *sum = chunk[m][n + i % 2];
                sl_mma_tf32(sum, w_rest[m], v[b], v[b + 1]);
                sl_mma_tf32(sum, w[m], v_rest[b], v_rest[b + 1]);
                sl_mma_tf32(sum, w[m], v[b], v[b + 1]);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < SHAPE::TALL; m++) {
#pragma unroll
        for (int n = 0; n < SHAPE::WIDE; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sums[m][n][i] += chunk[m][n][i];
            }
        }
    }
}

#endif
