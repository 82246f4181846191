/* The choice of a row's experts, by a warp. */
#ifndef SL_BACKEND_CUDA_ROUTER_ROUTER_CUH
#define SL_BACKEND_CUDA_ROUTER_ROUTER_CUH

#include "backend/cuda/common/device.cuh"

typedef struct sl_chosen {
    uint32_t expert;
    float weight;
} sl_chosen;

/* Orders like the score. A NaN is below every number; 0 is none. */
static __device__ __forceinline__ uint32_t sl_rank_key(float score) {
    const uint32_t bits = sl_f32_bits(score);
    return score == score ? (bits & 0x80000000u ? ~bits : bits | 0x80000000u) : 1u;
}

/* The score of a key; NaN for that of NaN. */
static __device__ __forceinline__ float sl_score_of(uint32_t key) {
    return key == 1u ? sl_f32_from_bits(0x7fc00000u)
                     : sl_f32_from_bits(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* Probabilities of experts lane, lane + 32, ... of a row, each still to be divided by the number returned.
 * Class "f32/tree": softmax with the largest logit taken off; exponentials added by lane, experts 32 apart in
 * rising order, then over the warp. Logits are read past the first cache (why: down_kernel in
 * i8_experts.cuh). */
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
    uint32_t key[EACH]; /* 0: not, or no longer, to choose */

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

    /* The largest key of group g, or the largest but that of `expert`; 0 when there is none. */
    __device__ __forceinline__ uint32_t best_of_group(int32_t g, int32_t size, uint32_t without) const {
        const int32_t lane = (int32_t)threadIdx.x % SL_WARP, first = g * size;
        uint32_t best = 0;
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const int32_t e = lane + k * SL_WARP;
            const bool counts = e >= first && e < first + size && (uint32_t)e != without;
            best = max(best, counts ? key[k] : 0u);
        }
        return __reduce_max_sync(SL_FULL_WARP, best);
    }

    /* The first of group g's experts with that key. */
    __device__ __forceinline__ uint32_t expert_of_group(int32_t g, int32_t size, uint32_t wanted) const {
        const int32_t lane = (int32_t)threadIdx.x % SL_WARP, first = g * size;
        uint32_t expert = 0xffffffffu;
#pragma unroll
        for (int k = EACH - 1; k >= 0; k--) {
            const int32_t e = lane + k * SL_WARP;
            expert = e >= first && e < first + size && key[k] == wanted ? (uint32_t)e : expert;
        }
        return __reduce_min_sync(SL_FULL_WARP, expert);
    }

    /* Leaves the experts of the best groups, of at most 32. */
    __device__ __forceinline__ void limit_to_groups(const sl_op_router &router) {
        const int32_t lane = (int32_t)threadIdx.x % SL_WARP, size = router.experts / router.groups;
        uint32_t mine = 0; /* of lane g: group g's key; 0 when it is no group or chosen */
#pragma unroll 1
        for (int32_t g = 0; g < router.groups; g++) {
            uint32_t score = best_of_group(g, size, 0xffffffffu);
            if (!router.group_by_best && size > 1) {
                const uint32_t second = best_of_group(g, size, expert_of_group(g, size, score));
                score = sl_rank_key(sl_score_of(score) + sl_score_of(second));
            }
            mine = lane == g ? score : mine;
        }
        uint32_t allowed = 0; /* a bit for each group */
#pragma unroll 1
        for (int32_t i = 0; i < router.groups_used; i++) {
            const uint32_t best = __reduce_max_sync(SL_FULL_WARP, mine);
            const int32_t g = __ffs((int)__ballot_sync(SL_FULL_WARP, mine == best)) - 1;
            allowed |= 1u << g;
            mine = lane == g ? 0 : mine;
        }
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const int32_t e = lane + k * SL_WARP;
            key[k] = e < router.experts && (allowed >> e / size & 1u) ? key[k] : 0;
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

/* What sl_choose leaves out: groups and factors of experts. */
static inline bool sl_router_is_simple(const sl_op_router *router) {
    return router->groups == 1 && router->factors == SL_NONE;
}

/* Of lane `rank`: the expert with that rank, and its weight. GROUPED: only of the best groups. */
template <int EACH, bool GROUPED = false>
static __device__ __forceinline__ sl_chosen sl_choose(const sl_op_router &router, const float *bias,
                                                      const float *logits) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    float sum = 0;
    sl_chosen chosen = {};
    sl_ranks<EACH> ranks;
    ranks.init(router, bias, logits);
    if (GROUPED) {
        ranks.limit_to_groups(router);
    }
#pragma unroll 1
    for (int32_t rank = 0; rank < router.used; rank++) {
        const uint32_t expert = ranks.next();
        const float probability = ranks.probability_of(expert);
        sum += probability;
        chosen.expert = rank == lane ? expert : chosen.expert;
        chosen.weight = rank == lane ? probability : chosen.weight;
    }
    sum += router.epsilon;
    const float divisor = sum < router.least_sum ? router.least_sum : sum; /* a NaN stays one */
    chosen.weight = (router.normalise ? chosen.weight / divisor : chosen.weight) * router.scale;
    return chosen;
}

#endif
