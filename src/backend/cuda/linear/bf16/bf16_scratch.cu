/* Weights from the file's bytes to BF16 in a scratch, for products that read BF16. */
#include "backend/cuda/linear/bf16/bf16_cublas.h"
#include "backend/cuda/types/types.cuh"

enum { DECODE_THREADS = 256, DECODE_UNROLL = 2, DECODE_BLOCK = DECODE_THREADS * DECODE_UNROLL };

/* ---- streams of them ---- */

/* Parts `index`, `index + stride`, ... (UNROLL of them) of `count` parts: loaded together, stored later.
 * PART: decode_part or decode_pair of the type. */
template <int TYPE, int UNROLL, typename PART> struct decode_parts {
    enum { PARTS = decode_part<TYPE>::elements / DECODE_PART };
    PART parts[UNROLL];
    uint32_t index, stride, count;

    __device__ __forceinline__ void load(const unsigned char *weights, uint32_t first, uint32_t step,
                                         uint32_t all) {
        index = first;
        stride = step;
        count = all;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const uint32_t at = index + (uint32_t)u * stride;
            if (at < count) {
                parts[u].load(weights + (uint64_t)(at / PARTS) * decode_part<TYPE>::bytes,
                              (int32_t)(at % PARTS));
            }
        }
    }

    /* The same of a type in planes, of rows of `blocks` blocks. */
    __device__ __forceinline__ void load_rows(const sl_cuda_decode &work, const unsigned char *weights,
                                              uint32_t first, uint32_t all) {
        const uint32_t blocks = (uint32_t)work.columns / decode_part<TYPE>::elements;
        index = first;
        stride = DECODE_THREADS;
        count = all;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const uint32_t at = index + (uint32_t)u * stride, row = at / PARTS / blocks;
            if (at < count) {
                parts[u].load(weights + row * work.row_bytes, work.row_bytes, at / PARTS - row * blocks,
                              (int32_t)(at % PARTS));
            }
        }
    }

    __device__ __forceinline__ void store(uint4 *out) const {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const uint32_t at = index + (uint32_t)u * stride;
            if (at < count) {
                const int32_t part = (int32_t)(at % PARTS);
                uint4 *const to = out + (uint64_t)(at / PARTS) * (decode_part<TYPE>::elements / 8);
                to[decode_part<TYPE>::first(part) / 8] = parts[u].run(0, part);
                to[decode_part<TYPE>::second(part) / 8] = parts[u].run(1, part);
            }
        }
    }
};

typedef struct scratch_args {
    sl_cuda_decode work;
    uint32_t first_block[SL_LINEAR_SEGMENTS + 1]; /* of each job; then of the rows of x */
} scratch_args;

/* One row of x that the step does not have. */
static __device__ void clear_row(const sl_cuda_context &context, const sl_cuda_decode &work, int32_t row) {
    if (row < sl_count(context, work.x.rows)) {
        return;
    }
    uint4 *x = (uint4 *)((uint16_t *)(work.x.data + (uint64_t)row * work.x.row_bytes) + work.x.column);
    for (int32_t i = (int32_t)threadIdx.x; i < work.x_columns / 8; i += DECODE_THREADS) {
        x[i] = make_uint4(0, 0, 0, 0);
    }
}

/* A chunk is what a block of threads decodes. Blocks of weights that start anywhere are brought to shared
 * memory in whole words of 16 bytes, and each thread picks its bytes there. H200, GB/s read and written: Q8_0
 * 2500 to 3100 directly, 2900 to 3400 this way (Q6_K 3400 to 3800, 3700 to 3900). */
template <int TYPE> struct decode_chunk {
    enum {
        elements = DECODE_BLOCK * DECODE_PART,
        bytes = elements / decode_part<TYPE>::elements * decode_part<TYPE>::bytes,
        staged = decode_part<TYPE>::bytes % 16 != 0,
        words = staged ? bytes / 16 + 1 : 1
    };
};

/* A chunk's bytes, `length` of them, to shared memory; returns where they begin there. Reads whole words, so
 * up to 15 bytes before and behind them, which weights in the pool have. */
template <int TYPE>
static __device__ __forceinline__ const unsigned char *stage_chunk(uint4 *stage, const unsigned char *from,
                                                                   int32_t length) {
    const int32_t shift = (int32_t)((uint64_t)from % 16), words = (shift + length + 15) / 16;
    const uint4 *const source = (const uint4 *)(from - shift);
#pragma unroll
    for (int i = 0; i < (decode_chunk<TYPE>::words + DECODE_THREADS - 1) / DECODE_THREADS; i++) {
        const int32_t at = i * DECODE_THREADS + (int32_t)threadIdx.x;
        if (at < words) {
            stage[at] = __ldg(source + at);
        }
    }
    __syncthreads();
    return (const unsigned char *)stage + shift;
}

template <int TYPE, typename PART>
static __global__ void __launch_bounds__(DECODE_THREADS)
    scratch_kernel(const __grid_constant__ sl_cuda_context context,
                   const __grid_constant__ scratch_args args) {
    const sl_cuda_decode &work = args.work;
    if (blockIdx.x >= args.first_block[SL_LINEAR_SEGMENTS]) {
        sl_wait_for_inputs();
        clear_row(context, work, (int32_t)(blockIdx.x - args.first_block[SL_LINEAR_SEGMENTS]));
        return;
    }
    int32_t job = 0;
    while (job + 1 < work.count && blockIdx.x >= args.first_block[job + 1]) {
        job++;
    }
    if constexpr (TYPE == SL_QTYPE_FP8_128) {
        const sl_cuda_decode_job &task = work.jobs[job];
        const uint32_t first = (blockIdx.x - args.first_block[job]) * DECODE_BLOCK + threadIdx.x;
        decode_parts<TYPE, DECODE_UNROLL, PART> parts;
        parts.load_rows(work, task.from, first, (uint32_t)(task.elements / DECODE_PART));
        sl_wait_for_inputs();
        parts.store((uint4 *)task.to);
    } else if constexpr (TYPE != SL_QTYPE_BF16) {
        typedef decode_chunk<TYPE> chunk;
        __shared__ uint4 stage[chunk::words];
        const sl_cuda_decode_job &task = work.jobs[job];
        const uint64_t index = blockIdx.x - args.first_block[job];
        const uint64_t left = task.elements - index * chunk::elements;
        const uint32_t elements = left < chunk::elements ? (uint32_t)left : (uint32_t)chunk::elements;
        const unsigned char *from = task.from + index * chunk::bytes;
        if constexpr (chunk::staged) {
            from = stage_chunk<TYPE>(
                stage, from, (int32_t)(elements / decode_part<TYPE>::elements * decode_part<TYPE>::bytes));
        }
        decode_parts<TYPE, DECODE_UNROLL, PART> parts;
        parts.load(from, threadIdx.x, DECODE_THREADS, elements / DECODE_PART);
        sl_wait_for_inputs(); /* the product before reads the scratch */
        parts.store((uint4 *)task.to + index * (chunk::elements / 8));
    }
}

/* Types that class "bf16/k16" decodes in its own way. */
template <int TYPE> static constexpr bool has_pairs() {
    return TYPE == SL_QTYPE_Q8_0 || TYPE == SL_QTYPE_Q4_0 || TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K ||
           TYPE == SL_QTYPE_Q6_K;
}

template <int TYPE>
static cudaError_t decode_type(const sl_cuda_context *context, const sl_cuda_decode *decode,
                               cudaStream_t stream) {
    scratch_args args;
    uint32_t blocks = 0;
    args.work = *decode;
    for (int32_t j = 0; j < SL_LINEAR_SEGMENTS; j++) {
        args.first_block[j] = blocks;
        blocks += j < decode->count
                      ? (uint32_t)((decode->jobs[j].elements / DECODE_PART + DECODE_BLOCK - 1) / DECODE_BLOCK)
                      : 0;
    }
    args.first_block[SL_LINEAR_SEGMENTS] = blocks;
    blocks += decode->x.data ? (uint32_t)decode->x_rows : 0;
    const sl_launch_shape shape = {dim3(blocks), dim3(DECODE_THREADS), 0};
    if (blocks == 0) {
        return cudaSuccess;
    }
    if constexpr (has_pairs<TYPE>()) {
        if (decode->pairs) {
            return sl_launch(context, stream, shape, scratch_kernel<TYPE, decode_pair<TYPE>>, *context, args);
        }
    }
    return sl_launch(context, stream, shape, scratch_kernel<TYPE, decode_part<TYPE>>, *context, args);
}

typedef cudaError_t (*decode_function)(const sl_cuda_context *context, const sl_cuda_decode *decode,
                                       cudaStream_t stream);

template <int TYPE> static constexpr decode_function decoder_of() {
    if constexpr (decode_part<TYPE>::elements > 0 || TYPE == SL_QTYPE_BF16) {
        return decode_type<TYPE>;
    } else {
        return nullptr;
    }
}

static const decode_function decoders[SL_QTYPE_COUNT] = {
#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes) decoder_of<SL_QTYPE_##ID>(),
#include "quant/qtypes.def"
#undef SL_QTYPE
};

cudaError_t sl_cuda_decode_weights(const sl_cuda_context *context, const sl_cuda_decode *decode,
                                   cudaStream_t stream) {
    const decode_function decoder = decoders[decode->type];
    return decoder ? decoder(context, decode, stream) : cudaErrorInvalidValue;
}
