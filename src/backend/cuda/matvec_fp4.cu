/* Matrix products with few rows of x and NVFP4 or NVFP4_128 weights, y = x W^T (+ bias) (+ residual), with or
 * without experts, whose columns are no whole chunks (matvec_nvfp4.cuh takes those). A warp takes a weight
 * row, or more when there are several rows of x, and its lanes take neighbouring words of quants, several
 * under way at once.
 *
 * Class "q8_32/words": word i of a row's quants belongs to lane i % 32. dot, the sum of its eight integers
 * times those of x, is exact; a lane adds word after word, from 0: sum = fmaf(scale * dot, x's scale, sum).
 * Then the lanes are added as in sl_warp_sum. Then bias, then residual. */
#include "backend/cuda/groups.cuh"
#include "backend/cuda/matvec_lanes.cuh"

/* Words of a block: what is in front of the quants, and those. A turn is a word of each lane. */
template <int TYPE> struct fp4_shape;
template <> struct fp4_shape<SL_QTYPE_NVFP4> {
    enum { HEAD = 1, QUANTS = 8, BYTES = SL_NVFP4_BYTES };
};
template <> struct fp4_shape<SL_QTYPE_NVFP4_128> {
    enum { HEAD = 3, QUANTS = 16, BYTES = SL_NVFP4_128_BYTES };
};
/* Of one row of x: turns under way twice over, and thread blocks of a processor. H200, 4096 x 4096 and 4096 x
 * 12288: 1020 and 1130 GB/s; 2 under way and 6 thread blocks 710 and 750. */
enum { AHEAD_ONE = 4, BLOCKS_ONE = 4 };

/* What a lane has of a turn: its word, and the scales of its block. */
template <int TYPE> struct fp4_word {
    uint32_t quants, scales;
    float whole;

    __device__ __forceinline__ void load(const unsigned char *row, int32_t word) {
        typedef fp4_shape<TYPE> shape;
        const int32_t within = word % shape::QUANTS;
        const uint32_t *block = (const uint32_t *)(row + (uint64_t)(word / shape::QUANTS) * shape::BYTES);
        quants = block[shape::HEAD + within];
        if (TYPE == SL_QTYPE_NVFP4) {
            scales = block[0];
        } else {
            whole = __uint_as_float(block[0]);
            scales = block[1 + within / 8];
        }
    }

    /* Of the four groups whose scales are here. */
    __device__ __forceinline__ float scale(int32_t word) const {
        const float own = sl_nvfp4_scale(scales >> 8 * (word % 8 / 2) & 255u);
        return TYPE == SL_QTYPE_NVFP4 ? own : whole * own;
    }
};

/* What a lane has of some turns of its weight rows. */
template <int TYPE, int OUTPUTS, int AHEAD> struct some_words {
    enum { ELEMENTS = 8, STEP = AHEAD * SL_WARP, SPREAD = 1 };
    fp4_word<TYPE> words[AHEAD][OUTPUTS];

    /* Words past the end are the first once more. */
    __device__ __forceinline__ void load(const unsigned char *const *w_rows, int32_t first, int32_t count) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int32_t word = first + i * SL_WARP < count ? first + i * SL_WARP : first;
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                words[i][o].load(w_rows[o], word);
            }
        }
    }

    /* x: of the first row. FULL: all words are there. */
    template <int ROWS, bool FULL>
    __device__ __forceinline__ void add(const sl_cuda_operand &operand, int32_t row, int32_t rows,
                                        int32_t first, int32_t count, float (*sums)[ROWS]) const {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int32_t word = first + i * SL_WARP;
            if (!FULL && word >= count) {
                return;
            }
            int32_t low[OUTPUTS], high[OUTPUTS];
            float scales[OUTPUTS];
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                sl_look_up(SL_MXFP4_VALUES_0, SL_MXFP4_VALUES_1, words[i][o].quants, &low[o], &high[o]);
                scales[o] = words[i][o].scale(word);
            }
            const int32_t at =
                word / 2 * 4 + word % 2; /* in words of x: the other four are two words behind */
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (ROWS == 1 || r < rows) {
                    const sl_q8_32 x = sl_q8_32_of(operand, row + r);
                    const int32_t *values = (const int32_t *)x.values + at;
                    const int32_t x_low = values[0], x_high = values[2];
                    const float x_scale = x.scales[word / 4];
#pragma unroll
                    for (int o = 0; o < OUTPUTS; o++) {
                        const int32_t dot = __dp4a(high[o], x_high, __dp4a(low[o], x_low, 0));
                        sums[o][r] = fmaf(scales[o] * (float)dot, x_scale, sums[o][r]);
                    }
                }
            }
        }
    }
};

template <int TYPE, int ROWS, int OUTPUTS, int AHEAD>
static __global__ void __launch_bounds__(LANES_THREADS, ROWS == 1 ? BLOCKS_ONE : 2)
    fp4_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ sl_lanes_args args) {
    multiply<ROWS, OUTPUTS, some_words<TYPE, OUTPUTS, AHEAD>>(context, args);
}

template <int TYPE, int ROWS, int OUTPUTS, int AHEAD>
static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    return lanes_launch<ROWS, OUTPUTS>(context, op, stream, fp4_kernel<TYPE, ROWS, OUTPUTS, AHEAD>);
}

template <int TYPE>
static cudaError_t launch_type(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const int32_t rows = op->rows[op->out[0].rows];
    if (op->in[1].data || rows == 1) {
        return launch<TYPE, 1, 1, AHEAD_ONE>(context, op, stream);
    }
    return rows <= 4 ? launch<TYPE, 4, 4, 2>(context, op, stream)
                     : launch<TYPE, SL_CUDA_FEW_ROWS, 4, 1>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_matvec_nvfp4) {
    return launch_type<SL_QTYPE_NVFP4>(context, op, stream);
}

SL_CUDA_RUN(sl_cuda_linear_matvec_nvfp4_128) {
    return launch_type<SL_QTYPE_NVFP4_128>(context, op, stream);
}

const char *sl_cuda_fp4_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_op *op = query->op;
    if (query->backend->options.deterministic) {
        return "has a numeric class for few rows only";
    }
    if (op->in[1].value != SL_NONE && query->rows[SL_ROWS_STEP] > SL_CUDA_FEW_ROWS) {
        return "reads experts' weights row by row";
    }
    if (query->values[op->in[0].value].width % 32 != 0 || op->in[0].column % 32 != 0) {
        return "takes whole groups of 32";
    }
    return sl_cuda_linear_declines(kernel, query);
}
