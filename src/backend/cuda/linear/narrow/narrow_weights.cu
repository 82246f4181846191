/* Weights to codes and scales: see narrow_weights.h. A thread takes 32 columns of a row, and neighbouring
 * threads those of a group. A block's part of the file's bytes comes to shared memory first, in whole words
 * of 16 bytes. */
#include "backend/cuda/linear/narrow/narrow_weights.h"
#include "backend/cuda/common/quad.cuh"
#include "backend/cuda/types/integer_types.h"
#include "backend/cuda/types/types.cuh"

enum { WEIGHT_THREADS = 256, WEIGHT_COLUMNS = 32, WEIGHT_QUADS = WEIGHT_COLUMNS / SL_QUAD };

typedef struct weight_args {
    sl_narrow_weights work;
    uint32_t first_block[SL_LINEAR_SEGMENTS]; /* of each job */
} weight_args;

/* A block's part. */
template <int TYPE> struct weight_chunk {
    enum {
        elements = WEIGHT_THREADS * WEIGHT_COLUMNS,
        bytes = elements / sl_block_size<TYPE>::ELEMENTS * sl_block_size<TYPE>::BYTES,
        words = bytes / 16 + 3 /* where it begins within a word; and a read behind its end */
    };
};

/* `length` bytes to shared memory; returns where they begin there. Reads whole words, so up to 15 bytes
 * before and behind them, which weights in the pool have. */
static __device__ __forceinline__ const unsigned char *bring(uint4 *stage, const unsigned char *from,
                                                             int32_t length) {
    const int32_t shift = (int32_t)((uint64_t)from % 16), words = (shift + length + 15) / 16;
    const uint4 *const source = (const uint4 *)(from - shift);
    for (int32_t i = (int32_t)threadIdx.x; i < words; i += WEIGHT_THREADS) {
        stage[i] = __ldg(source + i);
    }
    __syncthreads();
    return (const unsigned char *)stage + shift;
}

/* What a thread makes: codes in memory's order, and its group's scale. */
typedef struct weight_codes {
    uint32_t words[WEIGHT_QUADS];
    float scale;
} weight_codes;

/* By whole warps. */
template <int TYPE, int KIND>
static __device__ __forceinline__ void make_codes(const unsigned char *chunk, uint32_t index,
                                                  weight_codes *made) {
    constexpr bool E4M3 = KIND == SL_NARROW_E4M3;
    constexpr int GROUP = E4M3 ? SL_NARROW_E4M3_GROUP : SL_NARROW_S8_GROUP;
    constexpr float MOST = E4M3 ? SL_E4M3_LARGEST : 127.0f;
    sl_group32 group;
    float4 quads[WEIGHT_QUADS];
    float largest = 0;
    sl_load_group<TYPE>(chunk, (int32_t)index, &group);
#pragma unroll
    for (int i = 0; i < WEIGHT_QUADS; i++) {
        quads[i] = sl_group_values<TYPE>(group, i);
        const float here = sl_larger(sl_larger(quads[i].x, quads[i].y), sl_larger(quads[i].z, quads[i].w));
        largest = sl_larger(largest, here);
    }
#pragma unroll
    for (int distance = 1; distance < GROUP / WEIGHT_COLUMNS; distance *= 2) {
        largest = sl_larger(largest, __shfl_xor_sync(SL_FULL_WARP, largest, distance));
    }
    const bool usable = sl_is_usable(largest);
    const float inverse = MOST / largest;
    made->scale = usable ? largest / MOST : sl_unusable_scale(largest);
#pragma unroll
    for (int i = 0; i < WEIGHT_QUADS; i++) {
        const float4 scaled = sl_map_quad(quads[i], [inverse](float v) { return v * inverse; });
        made->words[i] = !usable ? 0 : E4M3 ? sl_e4m3_quad(scaled) : sl_whole_quad(scaled);
    }
}

/* 32 bytes a thread, the index-th of a row; neighbours, which have the same row, share what they write, so
 * that a store fills whole sectors. By whole warps; an even thread's neighbour has something to store if it
 * has. */
static __device__ __forceinline__ void store_codes(unsigned char *row, uint32_t index, bool active,
                                                   const weight_codes &made) {
    const bool odd = threadIdx.x % 2;
    uint32_t got[WEIGHT_QUADS / 2], first[WEIGHT_QUADS / 2], second[WEIGHT_QUADS / 2];
#pragma unroll
    for (int i = 0; i < WEIGHT_QUADS / 2; i++) {
        got[i] = __shfl_xor_sync(SL_FULL_WARP, odd ? made.words[i] : made.words[i + WEIGHT_QUADS / 2], 1);
        first[i] = odd ? got[i] : made.words[i];
        second[i] = odd ? made.words[i + WEIGHT_QUADS / 2] : got[i];
    }
    if (active) {
        uint4 *to = (uint4 *)(void *)row + 2 * (uint64_t)(index - odd) + odd;
        to[0] = make_uint4(first[0], first[1], first[2], first[3]);
        to[2] = make_uint4(second[0], second[1], second[2], second[3]);
    }
}

template <int TYPE, int KIND>
static __global__ void __launch_bounds__(WEIGHT_THREADS)
    weights_kernel(const __grid_constant__ weight_args args) {
    typedef weight_chunk<TYPE> chunk;
    constexpr int GROUP = KIND == SL_NARROW_E4M3 ? SL_NARROW_E4M3_GROUP : SL_NARROW_S8_GROUP;
    __shared__ uint4 stage[chunk::words];
    const sl_narrow_weights &work = args.work;
    int32_t j = 0;
    while (j + 1 < work.count && blockIdx.x >= args.first_block[j + 1]) {
        j++;
    }
    const sl_narrow_job &job = work.jobs[j];
    const uint32_t in_row = (uint32_t)work.columns / WEIGHT_COLUMNS, all = in_row * (uint32_t)job.rows;
    const uint32_t block = blockIdx.x - args.first_block[j], first = block * WEIGHT_THREADS;
    const uint32_t left = all - first, here = left < WEIGHT_THREADS ? left : WEIGHT_THREADS;
    const bool active = threadIdx.x < here;
    const unsigned char *from =
        bring(stage, job.from + (uint64_t)block * chunk::bytes,
              (int32_t)(here * WEIGHT_COLUMNS / sl_block_size<TYPE>::ELEMENTS * sl_block_size<TYPE>::BYTES));
    weight_codes made = {};
    const uint32_t index = active ? threadIdx.x : 0;
    make_codes<TYPE, KIND>(from, index, &made);
    sl_wait_for_inputs(); /* the product before reads the scratch */
    const uint32_t row = (first + threadIdx.x) / in_row, column = (first + threadIdx.x) % in_row;
    const uint32_t output = (uint32_t)job.first + row;
    store_codes(work.codes + output * work.code_row_bytes, column, active, made);
    if (active && column % (GROUP / WEIGHT_COLUMNS) == 0) {
        const int32_t group = (int32_t)(column / (GROUP / WEIGHT_COLUMNS));
        work.scales[sl_narrow_scale_at((sl_narrow_kind)KIND, (int32_t)output, group, work.scale_row)] =
            made.scale;
    }
}

template <int TYPE, int KIND>
static cudaError_t decode(const sl_cuda_context *context, const sl_narrow_weights *weights,
                          cudaStream_t stream) {
    weight_args args = {*weights, {}};
    uint32_t blocks = 0;
    for (int32_t j = 0; j < weights->count; j++) {
        const uint32_t threads =
            (uint32_t)weights->jobs[j].rows * (uint32_t)(weights->columns / WEIGHT_COLUMNS);
        args.first_block[j] = blocks;
        blocks += (threads + WEIGHT_THREADS - 1) / WEIGHT_THREADS;
    }
    const sl_launch_shape shape = {dim3(blocks), dim3(WEIGHT_THREADS), 0};
    return sl_launch(context, stream, shape, weights_kernel<TYPE, KIND>, args);
}

typedef cudaError_t (*decode_function)(const sl_cuda_context *context, const sl_narrow_weights *weights,
                                       cudaStream_t stream);

static constexpr bool is_integer(int type) {
    constexpr int types[] = {SL_INTEGER_TYPES(SL_INTEGER_ID)};
    for (const int one : types) {
        if (one == type) {
            return true;
        }
    }
    return false;
}

template <int TYPE, int KIND> static constexpr decode_function decoder_of() {
    if constexpr (is_integer(TYPE)) {
        return decode<TYPE, KIND>;
    } else {
        return nullptr;
    }
}

static const decode_function decoders[SL_QTYPE_COUNT][SL_NARROW_KINDS] = {
#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes)                                           \
    {decoder_of<SL_QTYPE_##ID, SL_NARROW_E4M3>(), decoder_of<SL_QTYPE_##ID, SL_NARROW_S8>()},
#include "quant/qtypes.def"
#undef SL_QTYPE
};

cudaError_t sl_narrow_decode(const sl_cuda_context *context, const sl_narrow_weights *weights,
                             cudaStream_t stream) {
    const decode_function decoder = decoders[weights->type][weights->kind];
    return decoder ? decoder(context, weights, stream) : cudaErrorInvalidValue;
}
