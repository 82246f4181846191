/* Choice of experts, and the schedule that expert products read. */
#include "backend/cuda/device.cuh"

enum { THREADS = 128, SCHEDULE_THREADS = 256, MOST_EXPERTS = 1024 };

typedef struct router_args {
    sl_op_router router;
    sl_cuda_operand logits, ids, weights;
    const float *bias;
    int32_t *offsets, *list; /* the schedule, or NULL */
} router_args;

/* A candidate as a number that orders like (score, lower index first); a NaN is below every number. 0 is
 * none. */
static __device__ unsigned long long rank_key(float score, int32_t expert) {
    const uint32_t bits = sl_f32_bits(score);
    uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    ordered = score == score ? ordered : 0u;
    return (unsigned long long)ordered << 32 | (0xffffffffu - (uint32_t)expert);
}

static __device__ unsigned long long warp_largest(unsigned long long key) {
    for (int distance = SL_WARP / 2; distance > 0; distance /= 2) {
        const unsigned long long other = __shfl_xor_sync(SL_FULL_WARP, key, distance);
        key = other > key ? other : key;
    }
    return key;
}

/* Probabilities of a row into `result`. Class "f32/tree": softmax with the largest logit taken off;
 * exponentials added by lane, experts 32 apart in rising order, then over the warp. */
static __device__ void probabilities(const sl_op_router &router, const float *logits, float *result) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    if (router.kind == SL_ROUTER_SIGMOID) {
        for (int32_t e = lane; e < router.experts; e += SL_WARP) {
            result[e] = sl_sigmoid(logits[e]);
        }
        return;
    }
    float largest = -INFINITY;
    for (int32_t e = lane; e < router.experts; e += SL_WARP) {
        largest = fmaxf(largest, logits[e]);
    }
    for (int distance = SL_WARP / 2; distance > 0; distance /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, distance));
    }
    float sum = 0;
    for (int32_t e = lane; e < router.experts; e += SL_WARP) {
        result[e] = expf(logits[e] - largest);
        sum += result[e];
    }
    sum = sl_warp_sum(sum);
    for (int32_t e = lane; e < router.experts; e += SL_WARP) {
        result[e] /= sum;
    }
}

/* One warp per row. Always chooses `used` different experts, whatever the probabilities are. */
static __global__ void choose_kernel(sl_cuda_context context, router_args args) {
    extern __shared__ float memory[]; /* per warp: probabilities, then a mark for each expert */
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t row = (int32_t)blockIdx.x * (THREADS / SL_WARP) + warp, experts = args.router.experts;
    if (row >= context.header->rows) {
        return;
    }
    float *probability = memory + (int64_t)warp * experts * 2, *chosen = probability + experts;
    probabilities(args.router, sl_f32(args.logits, row), probability);
    for (int32_t e = lane; e < experts; e += SL_WARP) {
        chosen[e] = 0;
    }
    __syncwarp();
    int32_t *ids = sl_i32(args.ids, row);
    float *weights = sl_f32(args.weights, row);
    float sum = 0;
    for (int32_t rank = 0; rank < args.router.used; rank++) {
        unsigned long long best = 0;
        for (int32_t e = lane; e < experts; e += SL_WARP) {
            const float score = args.bias ? probability[e] + args.bias[e] : probability[e];
            const unsigned long long key = chosen[e] != 0 ? 0 : rank_key(score, e);
            best = key > best ? key : best;
        }
        best = warp_largest(best);
        const int32_t expert = (int32_t)(0xffffffffu - (uint32_t)best);
        sum += probability[expert];
        if (lane == 0) {
            ids[rank] = expert;
            chosen[expert] = 1;
        }
        __syncwarp();
    }
    if (lane == 0) {
        for (int32_t rank = 0; rank < args.router.used; rank++) {
            const float weight = probability[ids[rank]];
            weights[rank] = (args.router.normalise ? weight / sum : weight) * args.router.scale;
        }
    }
}

/* How many threads before this one have `flag`; *all: how many of the block. */
static __device__ int32_t count_before(bool flag, int32_t *shared, int32_t *all) {
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    const unsigned votes = __ballot_sync(SL_FULL_WARP, flag);
    __syncthreads();
    if (lane == 0) {
        shared[warp] = __popc(votes);
    }
    __syncthreads();
    int32_t before = __popc(votes & ((1u << lane) - 1u));
    *all = 0;
    for (int32_t w = 0; w < SCHEDULE_THREADS / SL_WARP; w++) {
        before += w < warp ? shared[w] : 0;
        *all += shared[w];
    }
    return before;
}

/* One block per expert: its offset is the number of rows that chose a lower one; its rows follow in rising
 * order. */
static __global__ void schedule_kernel(sl_cuda_context context, router_args args) {
    __shared__ int32_t shared[SCHEDULE_THREADS / SL_WARP];
    const int32_t expert = (int32_t)blockIdx.x, used = args.router.used, count = context.header->rows * used;
    int32_t offset = 0, all;
    for (int32_t base = 0; base < count; base += SCHEDULE_THREADS) {
        const int32_t i = base + (int32_t)threadIdx.x;
        count_before(i < count && sl_i32(args.ids, i / used)[i % used] < expert, shared, &all);
        offset += all;
    }
    if (threadIdx.x == 0) {
        args.offsets[expert] = offset;
        if (expert == args.router.experts - 1) {
            args.offsets[expert + 1] = count;
        }
    }
    for (int32_t base = 0; base < count; base += SCHEDULE_THREADS) {
        const int32_t i = base + (int32_t)threadIdx.x;
        const bool mine = i < count && sl_i32(args.ids, i / used)[i % used] == expert;
        const int32_t before = count_before(mine, shared, &all);
        if (mine) {
            args.list[offset + before] = i;
        }
        offset += all;
    }
}

SL_CUDA_RUN(sl_cuda_router) {
    const sl_op_router *router = &op->op->u.router;
    const router_args args = {*router,
                              op->in[0],
                              op->out[0],
                              op->out[1],
                              (const float *)op->weights[0].data,
                              op->out[2].head,
                              (int32_t *)op->out[2].data};
    const int32_t rows = op->rows[SL_ROWS_STEP], warps = THREADS / SL_WARP;
    const size_t bytes = (size_t)warps * (size_t)router->experts * 2 * sizeof(float);
    choose_kernel<<<(unsigned)((rows + warps - 1) / warps), THREADS, bytes, stream>>>(*context, args);
    if (args.list) {
        schedule_kernel<<<(unsigned)router->experts, SCHEDULE_THREADS, 0, stream>>>(*context, args);
    }
    return cudaGetLastError();
}

const char *sl_cuda_router_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    return query->op->u.router.experts > MOST_EXPERTS ? "takes up to 1024 experts" : NULL;
}
