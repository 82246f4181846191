/* The choice of a row's experts, by a warp. */
#ifndef SL_BACKEND_CUDA_ROUTER_CUH
#define SL_BACKEND_CUDA_ROUTER_CUH

#include "backend/cuda/device.cuh"

typedef struct sl_chosen {
    uint32_t expert;
    float weight;
} sl_chosen;

/* Orders like the score. A NaN is below every number; 0 is none. */
static __device__ __forceinline__ uint32_t sl_rank_key(float score) {
    const uint32_t bits = sl_f32_bits(score);
    return score == score ? (bits & 0x80000000u ? ~bits : bits | 0x80000000u) : 1u;
}

/* Probabilities of experts lane, lane + 32, ... of a row, each still to be divided by the number returned.
 * Class "f32/tree": softmax with the largest logit taken off; exponentials added by lane, experts 32 apart in
 * rising order, then over the warp. Logits are read past the first cache (why: down_kernel in
 * matvec_experts.cuh). */
template <int EACH>
static __device__ __forceinline__ float sl_probabilities(const sl_op_router &router, const float *logits,
                                                         float (&result)[EACH]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    float largest = -INFINITY, sum = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const int32_t e = lane + k * SL_WARP;
        result[k] = e < router.experts ? __ldcg(logits + e) : -INFINITY;
        largest = fmaxf(largest, result[k]);
    }
    if (router.kind == SL_ROUTER_SIGMOID) {
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            result[k] = sl_sigmoid(result[k]);
        }
        return 1;
    }
#pragma unroll
    for (int distance = SL_WARP / 2; distance > 0; distance /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(SL_FULL_WARP, largest, distance));
    }
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        if (lane + k * SL_WARP < router.experts) {
            result[k] = expf(result[k] - largest);
            sum += result[k];
        }
    }
    return sl_warp_sum(sum);
}

/* By a warp: the row's experts one after the other, always different ones, whatever the probabilities are. */
template <int EACH> struct sl_ranks {
    float probability[EACH];
    uint32_t key[EACH];

    /* bias: [experts] or NULL. */
    __device__ __forceinline__ void init(const sl_op_router &router, const float *bias, const float *logits) {
        const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
        const float divisor = sl_probabilities(router, logits, probability);
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const int32_t e = lane + k * SL_WARP;
            probability[k] /= divisor;
            key[k] = e < router.experts ? sl_rank_key(bias ? probability[k] + bias[e] : probability[k]) : 0;
        }
    }

    /* The next rank's expert. */
    __device__ __forceinline__ uint32_t next(void) {
        const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
        uint32_t best = 0, expert = 0xffffffffu;
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            best = max(best, key[k]);
        }
        best = __reduce_max_sync(SL_FULL_WARP, best);
#pragma unroll
        for (int k = EACH - 1; k >= 0; k--) {
            expert = key[k] == best ? (uint32_t)(lane + k * SL_WARP) : expert;
        }
        expert = __reduce_min_sync(SL_FULL_WARP, expert);
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            key[k] = expert == (uint32_t)(lane + k * SL_WARP) ? 0 : key[k];
        }
        return expert;
    }

    __device__ __forceinline__ float probability_of(uint32_t expert) const {
        const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
        float at = 0;
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            at = expert == (uint32_t)(lane + k * SL_WARP) ? probability[k] : at;
        }
        return __shfl_sync(SL_FULL_WARP, at, (int)(expert % SL_WARP));
    }
};

/* Of lane `rank`: the expert with that rank, and its weight. */
template <int EACH>
static __device__ __forceinline__ sl_chosen sl_choose(const sl_op_router &router, const float *bias,
                                                      const float *logits) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    float sum = 0;
    sl_chosen chosen = {};
    sl_ranks<EACH> ranks;
    ranks.init(router, bias, logits);
#pragma unroll 1
    for (int32_t rank = 0; rank < router.used; rank++) {
        const uint32_t expert = ranks.next();
        const float probability = ranks.probability_of(expert);
        sum += probability;
        chosen.expert = rank == lane ? expert : chosen.expert;
        chosen.weight = rank == lane ? probability : chosen.weight;
    }
    chosen.weight = (router.normalise ? chosen.weight / sum : chosen.weight) * router.scale;
    return chosen;
}

#endif
