/* Choice of experts, and the schedule that expert products read: offsets by expert, and the expert rows
 * sorted by expert, those of one in rising order.
 *
 * A block takes 32 rows, a warp one of them. Its choices are one word for each expert, a bit for each row:
 * counts and ranks are counts of bits. With one such block the schedule is made at once, else by a second
 * launch, where every block adds up all words and places its own rows. */
#include "backend/cuda/router/router.cuh"

enum {
    ROWS = 32,
    MOST_THREADS = ROWS * SL_WARP,
    MOST_EXPERTS = 1024,
    MOST_USED = SL_WARP,
    MOST_GROUPS = SL_WARP
};

typedef struct router_args {
    sl_op_router router;
    sl_cuda_operand logits, ids, weights;
    const float *bias;
    int32_t *offsets, *list; /* the schedule, or NULL */
    uint32_t *words;         /* [blocks][experts], when there are several blocks */
    const float *factors;    /* [experts], or NULL */
} router_args;

/* By a warp: the row's experts, also as bit `bit` of the block's words. */
template <int EACH, bool GROUPED>
static __device__ void choose(const router_args &args, int32_t row, uint32_t bit, uint32_t *words) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const sl_chosen mine = sl_choose<EACH, GROUPED>(args.router, args.bias, sl_f32(args.logits, row));
    if (lane < args.router.used) {
        sl_i32(args.ids, row)[lane] = (int32_t)mine.expert;
        sl_f32(args.weights, row)[lane] =
            args.factors ? mine.weight * args.factors[mine.expert] : mine.weight;
        atomicOr(&words[mine.expert], 1u << bit);
    }
}

typedef struct schedule_memory {
    int32_t count[MOST_EXPERTS], first[MOST_EXPERTS]; /* rows of an expert; those in lower blocks */
    int32_t warp[MOST_THREADS / SL_WARP];
} schedule_memory;

/* Per expert: its rows in all blocks, and those before block `block`. */
static __device__ void add_words(const uint32_t *words, int32_t block, int32_t blocks, int32_t experts,
                                 schedule_memory *shared) {
    const int32_t thread = (int32_t)threadIdx.x, column = (experts + SL_WARP - 1) / SL_WARP * SL_WARP;
    if (thread < experts) {
        shared->count[thread] = shared->first[thread] = 0;
    }
    __syncthreads();
    const int32_t e = thread % column, slice = thread / column, slices = (int32_t)blockDim.x / column;
    int32_t count = 0, first = 0;
    for (int32_t b = slice; b < blocks && e < experts && slice < slices; b += slices) {
        const int32_t rows = __popc(words[(int64_t)b * experts + e]);
        count += rows;
        first += b < block ? rows : 0;
    }
    if (count > 0) {
        atomicAdd(&shared->count[e], count);
        atomicAdd(&shared->first[e], first);
    }
    __syncthreads();
}

/* Sum over the threads before this one. */
static __device__ int32_t sum_before(int32_t mine, schedule_memory *shared) {
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    int32_t end = mine;
    for (int distance = 1; distance < SL_WARP; distance *= 2) {
        const int32_t other = __shfl_up_sync(SL_FULL_WARP, end, distance);
        end += lane >= distance ? other : 0;
    }
    if (lane == SL_WARP - 1) {
        shared->warp[warp] = end;
    }
    __syncthreads();
    return end - mine + __reduce_add_sync(SL_FULL_WARP, lane < warp ? shared->warp[lane] : 0);
}

/* The places of a block's rows in the list; block 0 also writes the offsets. */
static __device__ void schedule(const router_args &args, const uint32_t *words, int32_t block, int32_t rows,
                                schedule_memory *shared) {
    const int32_t experts = args.router.experts, used = args.router.used, thread = (int32_t)threadIdx.x;
    const int32_t warp = thread / SL_WARP, lane = thread % SL_WARP, row = block * ROWS + warp;
    add_words(words, block, (rows + ROWS - 1) / ROWS, experts, shared);
    const int32_t offset = sum_before(thread < experts ? shared->count[thread] : 0, shared);
    if (thread < experts) {
        shared->first[thread] += offset;
        if (block == 0) {
            args.offsets[thread] = offset;
        }
    }
    if (block == 0 && thread == 0) {
        args.offsets[experts] = rows * used;
    }
    __syncthreads();
    if (row < rows && lane < used) {
        const int32_t e = sl_i32(args.ids, row)[lane];
        const uint32_t lower = words[(int64_t)block * experts + e] & ((1u << warp) - 1u);
        args.list[shared->first[e] + __popc(lower)] = row * used + lane;
    }
}

template <int EACH, bool GROUPED>
static __global__ void __launch_bounds__(MOST_THREADS)
    choose_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ router_args args) {
    __shared__ uint32_t words[MOST_EXPERTS];
    __shared__ schedule_memory shared;
    const int32_t thread = (int32_t)threadIdx.x, warp = thread / SL_WARP, block = (int32_t)blockIdx.x;
    for (int32_t e = thread; e < args.router.experts; e += (int32_t)blockDim.x) {
        words[e] = 0;
    }
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t rows = context.header->rows;
    if (block > 0 && block * ROWS >= rows) {
        return;
    }
    __syncthreads();
    if (block * ROWS + warp < rows) {
        choose<EACH, GROUPED>(args, block * ROWS + warp, (uint32_t)warp, words);
    }
    __syncthreads();
    if (args.words) {
        if (thread < args.router.experts) {
            args.words[(int64_t)block * args.router.experts + thread] = words[thread];
        }
    } else if (args.list) {
        schedule(args, words, 0, rows, &shared);
    }
}

static __global__ void __launch_bounds__(MOST_THREADS)
    schedule_kernel(const __grid_constant__ sl_cuda_context context,
                    const __grid_constant__ router_args args) {
    __shared__ schedule_memory shared;
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t block = (int32_t)blockIdx.x, rows = context.header->rows;
    if (block == 0 || block * ROWS < rows) {
        schedule(args, args.words, block, rows, &shared);
    }
}

template <bool GROUPED>
static cudaError_t launch_choose(const sl_cuda_context *context, cudaStream_t stream,
                                 const sl_launch_shape &shape, const router_args &args) {
    const int32_t experts = args.router.experts;
    return experts <= 4 * SL_WARP
               ? sl_launch(context, stream, shape, choose_kernel<4, GROUPED>, *context, args)
           : experts <= 8 * SL_WARP
               ? sl_launch(context, stream, shape, choose_kernel<8, GROUPED>, *context, args)
               : sl_launch(context, stream, shape, choose_kernel<32, GROUPED>, *context, args);
}

static SL_CUDA_RUN(run) {
    const sl_op_router *router = &op->op->u.router;
    const unsigned blocks = ((unsigned)op->rows[SL_ROWS_STEP] + ROWS - 1) / ROWS;
    router_args args = {};
    args.router = *router;
    args.logits = op->in[0];
    args.ids = op->out[0];
    args.weights = op->out[1];
    args.bias = (const float *)(const void *)op->weights[0].data;
    args.factors = (const float *)(const void *)op->weights[1].data;
    args.offsets = op->out[2].head;
    args.list = (int32_t *)(void *)op->out[2].data;
    args.words = args.list && blocks > 1 ? (uint32_t *)(void *)op->scratch : NULL;
    const unsigned rows = blocks > 1 ? (unsigned)ROWS : (unsigned)op->rows[SL_ROWS_STEP];
    const unsigned columns = ((unsigned)router->experts + SL_WARP - 1) / SL_WARP;
    const sl_launch_shape shape = {dim3(blocks), dim3((rows > columns ? rows : columns) * SL_WARP), 0};
    const cudaError_t code = router->groups > 1 ? launch_choose<true>(context, stream, shape, args)
                                                : launch_choose<false>(context, stream, shape, args);
    return code == cudaSuccess && args.words
               ? sl_launch(context, stream, shape, schedule_kernel, *context, args)
               : code;
}

static uint64_t workspace_of(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const uint64_t blocks = ((uint64_t)query->rows[SL_ROWS_STEP] + ROWS - 1) / ROWS;
    return blocks * (uint64_t)query->op->u.router.experts * sizeof(uint32_t);
}

static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    return query->op->u.router.experts > MOST_EXPERTS ? "takes up to 1024 experts"
           : query->op->u.router.used > MOST_USED     ? "takes up to 32 experts for a row"
           : query->op->u.router.groups > MOST_GROUPS ? "takes up to 32 groups of experts"
                                                      : NULL;
}

static const sl_cuda_kernel KERNELS[] = {
    {.kernel = {.name = "router/cuda",
                .op = SL_OP_ROUTER,
                .numeric_class = "f32/tree",
                .tolerance = 1e-5f,
                .batched = true,
                .declines = declines,
                .workspace = workspace_of},
     .run = run},
};

SL_CUDA_FAMILY(router) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, NULL};
