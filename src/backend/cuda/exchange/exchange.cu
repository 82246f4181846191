/* ALL_REDUCE and ALL_GATHER (exchange.h). */
#include "backend/cuda/exchange/call.cuh"

enum {
    SMALL_THREADS = 256,
    LARGE_THREADS = 512,
    AT_ONCE = 4 /* quads that a thread has under way */
};

typedef struct exchange_args {
    sl_cuda_operand x, y;
    int32_t width;
    uint32_t row_quads;
} exchange_args;

static __device__ __forceinline__ unsigned long long *flag_of(unsigned char *pool, int32_t rank) {
    return (unsigned long long *)(void *)(pool + ((uint32_t)rank * SL_CUDA_EXCHANGE_BLOCKS + blockIdx.x) *
                                                     SL_CUDA_FLAG_BYTES);
}

/* ---- rows ---- */

static __device__ __forceinline__ float *row_of(const sl_cuda_operand &operand, const exchange_args &args,
                                                uint32_t q, int32_t *i) {
    const uint32_t row = q / args.row_quads;
    *i = SL_QUAD * (int32_t)(q - row * args.row_quads);
    return sl_f32(operand, row);
}

template <bool ALIGNED>
static __device__ __forceinline__ float4 load_own(const exchange_args &args, uint32_t q) {
    int32_t i;
    const float *row = row_of(args.x, args, q, &i);
    return sl_load_quad<ALIGNED>(row, i, args.width);
}

/* column: where the row's part begins in y */
template <bool ALIGNED>
static __device__ __forceinline__ void store_result(const exchange_args &args, uint32_t q, int32_t column,
                                                    float4 quad) {
    int32_t i;
    float *row = row_of(args.y, args, q, &i);
    sl_store_quad<ALIGNED>(row + column, i, args.width, quad);
}

template <bool SMALL, bool ALIGNED>
static __device__ __forceinline__ void send(const sl_exchange_call &call, const exchange_args &args) {
    for (uint32_t begin = call.first; begin < call.end; begin += AT_ONCE * call.step) {
        float4 quads[AT_ONCE];
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const uint32_t q = begin + k * call.step;
            if (q < call.end) {
                quads[k] = load_own<ALIGNED>(args, q);
            }
        }
        for (int32_t other = 1; other < call.ranks; other++) { /* all to different ones at a time */
            const int32_t to = (call.rank + other) % call.ranks;
            unsigned char *slot = sl_slot_of(call, call.pools[to], call.rank);
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++) {
                const uint32_t q = begin + k * call.step;
                if (q < call.end && SMALL) {
                    sl_send_marked(call, slot, q, quads[k]);
                } else if (q < call.end) {
                    float4 *large = (float4 *)(void *)(slot + 2 * SL_EXCHANGE_SMALL);
                    large[q] = quads[k];
                }
            }
        }
    }
}

/* What the block wrote is there for the others, and what their same blocks wrote is there for it. */
static __device__ __forceinline__ void meet(const sl_exchange_call &call) {
    const int32_t other = (int32_t)threadIdx.x;
    __syncthreads();
    if (other < call.ranks && other != call.rank) {
        unsigned long long *flag = flag_of(call.pools[call.rank], other);
        sl_store_release(flag_of(call.pools[other], call.rank), call.number);
        sl_wait_for_rank(call, other, [flag, &call] { return sl_load_acquire(flag) >= call.number; });
    }
    __syncthreads();
}

template <bool SMALL>
static __device__ __forceinline__ float4 take(const sl_exchange_call &call, int32_t from, uint32_t q) {
    if (SMALL) {
        return sl_take_marked(call, from, q);
    }
    const unsigned char *slot = sl_slot_of(call, call.pools[call.rank], from);
    return __ldcg((const float4 *)(const void *)(slot + 2 * SL_EXCHANGE_SMALL) + q);
}

template <bool SUMS, bool SMALL, bool ALIGNED>
static __device__ __forceinline__ void receive(const sl_exchange_call &call, const exchange_args &args) {
    for (uint32_t begin = call.first; begin < call.end; begin += AT_ONCE * call.step) {
        float4 sums[AT_ONCE];
        for (int32_t from = 0; from < call.ranks; from++) {
            float4 parts[AT_ONCE];
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++) {
                const uint32_t q = begin + k * call.step;
                if (q < call.end) {
                    parts[k] = from == call.rank ? load_own<ALIGNED>(args, q) : take<SMALL>(call, from, q);
                }
            }
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++) {
                const uint32_t q = begin + k * call.step;
                if (SUMS) {
                    sums[k] = from == 0 ? parts[k] : sl_add_quads(sums[k], parts[k]);
                } else if (q < call.end) {
                    store_result<ALIGNED>(args, q, from * args.width, parts[k]);
                }
            }
        }
#pragma unroll
        for (uint32_t k = 0; SUMS && k < AT_ONCE; k++) {
            const uint32_t q = begin + k * call.step;
            if (q < call.end) {
                store_result<ALIGNED>(args, q, 0, sums[k]);
            }
        }
    }
}

/* All blocks are on a processor at once, since they wait for those of others: there are no more than
 * processors, and what may begin early does so when all have begun. A step without rows is no call, for
 * nobody. */
template <bool SUMS, bool SMALL, bool ALIGNED>
static __global__ void __launch_bounds__(SMALL ? SMALL_THREADS : LARGE_THREADS)
    exchange_kernel(const __grid_constant__ sl_cuda_context context,
                    const __grid_constant__ exchange_args args) {
    __shared__ sl_exchange_shared shared;
    sl_cuda_exchange *exchange = context.exchange;
    sl_exchange_call call = sl_exchange_call_of(exchange, &shared);
    call.end = (uint32_t)sl_count(context, args.x.rows) * args.row_quads;
    call.first = blockIdx.x * blockDim.x + threadIdx.x;
    call.step = gridDim.x * blockDim.x;
    sl_let_next_begin();
    sl_wait_for_inputs();
    if (call.end == 0) {
        return;
    }
    if (call.ranks < 2) {
        for (uint32_t q = call.first; !SUMS && q < call.end; q += call.step) {
            store_result<ALIGNED>(args, q, 0, load_own<ALIGNED>(args, q));
        }
        return;
    }
    sl_number_call(exchange, &call, &shared);
    send<SMALL, ALIGNED>(call, args);
    sl_count_call(exchange, call.number);
    if (!SMALL && blockIdx.x * blockDim.x < call.end) {
        meet(call);
    }
    receive<SUMS, SMALL, ALIGNED>(call, args);
}

/* ---- launches ---- */

static uint64_t bytes_of(const sl_cuda_op *op) {
    const bool sums = op->op->kind == SL_OP_ALL_REDUCE;
    const int32_t width = sums ? op->op->u.all_reduce.width : op->op->u.all_gather.width;
    return sl_exchange_x_bytes(op->rows[op->out[0].rows], width);
}

uint64_t sl_cuda_exchange_need(const sl_cuda_op *op) {
    return sl_exchange_need(op->program->ranks, bytes_of(op));
}

template <bool SUMS, bool SMALL>
static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream,
                          const exchange_args &args) {
    const uint64_t quads = bytes_of(op) / sizeof(float4);
    const uint64_t threads = SMALL ? SMALL_THREADS : LARGE_THREADS, wanted = (quads + threads - 1) / threads;
    const uint64_t processors = (uint64_t)context->processors, flags = SL_CUDA_EXCHANGE_BLOCKS;
    const uint64_t most = processors < flags ? processors : flags;
    const bool aligned = args.width % SL_QUAD == 0 && sl_in_quads(args.x) && sl_in_quads(args.y);
    const sl_launch_shape shape = {dim3((unsigned)(wanted < most ? wanted : most)), dim3((unsigned)threads),
                                   0};
    return sl_launch(context, stream, shape,
                     aligned ? exchange_kernel<SUMS, SMALL, true> : exchange_kernel<SUMS, SMALL, false>,
                     *context, args);
}

template <bool SUMS>
static cudaError_t run(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const int32_t width = SUMS ? op->op->u.all_reduce.width : op->op->u.all_gather.width;
    const exchange_args args = {op->in[0], op->out[0], width, (uint32_t)((width + SL_QUAD - 1) / SL_QUAD)};
    return sl_exchange_is_small(op->program->ranks, bytes_of(op))
               ? launch<SUMS, true>(context, op, stream, args)
               : launch<SUMS, false>(context, op, stream, args);
}

static SL_CUDA_RUN(run_all_reduce) {
    return run<true>(context, op, stream);
}

static SL_CUDA_RUN(run_all_gather) {
    return run<false>(context, op, stream);
}

static const sl_cuda_kernel KERNELS[] = {
    SL_CUDA_KERNEL(ALL_REDUCE, "all_reduce/cuda", "exact", 0, NULL, run_all_reduce),
    SL_CUDA_KERNEL(ALL_GATHER, "all_gather/cuda", "exact", 0, NULL, run_all_gather),
};

SL_CUDA_FAMILY(exchange) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, NULL};
