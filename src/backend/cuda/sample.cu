/* The sampler of program/step.h, one block per output.
 *
 * Sums of probabilities are integers (units of 2^-43 of the likeliest candidate's), so that they do not
 * depend on the order in which threads add. top-k and top-p need no sorted list: the logit of the worst
 * candidate that is left is found by its bits, eight at a time, from counts (top-k) or sums (top-p) of the
 * candidates above. Among equal logits the lower ids are left. The draw walks the candidates in order of id.
 */
#include "backend/cuda/device.cuh"
#include "program/random.h"

enum { THREADS = 512, WARPS = THREADS / SL_WARP, BINS = 256 };
#define PROBABILITY_ONE 8796093022208.0f /* 2^43: vocabularies of up to 2^20 cannot overflow 64 bits */

typedef unsigned long long mass;

typedef struct sample_args {
    sl_cuda_operand logits, tokens;
    float *scratch; /* [outputs][vocabulary]: penalised logits */
    int32_t vocabulary;
} sample_args;

typedef struct sampling {
    const sl_sampler *sampler;
    const float *logits; /* penalised, in scratch */
    int32_t count;
    float largest;
} sampling;

/* Candidates that are left: those with a larger key, and of those with an equal one the first `ties` by id.
 */
typedef struct cut {
    uint32_t key, ties;
} cut;

typedef struct shared_memory {
    mass bins[WARPS][BINS]; /* a warp adds to its own */
    mass warp_mass[WARPS], total;
    uint32_t warp_ties[WARPS];
    unsigned long long best[WARPS];
    uint32_t digit;
    mass above;
    int32_t chosen;
} shared_memory;

/* Orders like the logit; -0 counts as 0. */
static __device__ uint32_t order_key(float logit) {
    const uint32_t bits = sl_f32_bits(logit + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static __device__ float probability(const sampling &s, float logit) {
    return expf((logit - s.largest) / s.sampler->temperature);
}

static __device__ mass to_mass(float p) {
    return (mass)(p * PROBABILITY_ONE);
}

static __device__ bool is_inside(const cut &limit, uint32_t key, uint32_t tie) {
    return key > limit.key || (key == limit.key && tie < limit.ties);
}

/* The candidate with the largest logit, the lowest id in a tie; the same in all threads. */
static __device__ int32_t find_best(const float *logits, int32_t count, shared_memory *shared) {
    unsigned long long best = 0;
    for (int32_t id = (int32_t)threadIdx.x; id < count; id += THREADS) {
        const unsigned long long key =
            (unsigned long long)order_key(logits[id]) << 32 | (0xffffffffu - (uint32_t)id);
        best = key > best ? key : best;
    }
    for (int distance = SL_WARP / 2; distance > 0; distance /= 2) {
        const unsigned long long other = __shfl_xor_sync(SL_FULL_WARP, best, distance);
        best = other > best ? other : best;
    }
    if (threadIdx.x % SL_WARP == 0) {
        shared->best[threadIdx.x / SL_WARP] = best;
    }
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
        best = shared->best[w] > best ? shared->best[w] : best;
    }
    __syncthreads();
    return (int32_t)(0xffffffffu - (uint32_t)best);
}

/* Adds up the weights of the warp's candidates by bin, one lane for each bin. `active` may differ between
 * lanes. */
static __device__ void add_to_bins(bool active, uint32_t bin, mass weight, mass *bins) {
    const unsigned mask = __ballot_sync(SL_FULL_WARP, active);
    if (active) {
        const unsigned peers = __match_any_sync(mask, bin);
        const mass low = __reduce_add_sync(peers, (uint32_t)weight & 0x3fffffu);
        const mass high = __reduce_add_sync(peers, (uint32_t)(weight >> 22));
        if (threadIdx.x % SL_WARP == (unsigned)__ffs((int)peers) - 1) {
            bins[bin] += (high << 22) + low;
        }
    }
    __syncwarp();
}

/* Weights of the candidates in `within` that begin with `prefix`, by their next eight bits, into
 * shared->bins[0]. */
static __device__ void fill_bins(const sampling &s, const cut &within, bool by_mass, uint32_t prefix,
                                 int shift, shared_memory *shared) {
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP;
    for (int32_t i = (int32_t)threadIdx.x; i < WARPS * BINS; i += THREADS) {
        shared->bins[0][i] = 0;
    }
    __syncthreads();
    for (int32_t base = 0; base < s.count; base += THREADS) {
        const int32_t id = base + (int32_t)threadIdx.x;
        const float logit = id < s.count ? s.logits[id] : 0.0f;
        const uint32_t key = order_key(logit);
        const bool active =
            id < s.count && key >= within.key && (shift == 24 || key >> (shift + 8) == prefix);
        const mass weight = !active ? 0 : by_mass ? to_mass(probability(s, logit)) : 1;
        add_to_bins(active, key >> shift & 255u, weight, shared->bins[warp]);
    }
    __syncthreads();
    for (int32_t bin = (int32_t)threadIdx.x; bin < BINS; bin += THREADS) {
        for (int w = 1; w < WARPS; w++) {
            shared->bins[0][bin] += shared->bins[w][bin];
        }
    }
    __syncthreads();
}

/* The cut that leaves just enough candidates above `within` for their weights to reach `target` (at least 1):
 * every candidate weighs 1, or its probability. Candidates outside `within` count nothing; equal ones that
 * are inside weigh the same. */
static __device__ cut find_cut(const sampling &s, const cut &within, bool by_mass, mass target,
                               shared_memory *shared) {
    uint32_t prefix = 0;
    mass above = 0; /* weight of all candidates with a larger prefix */
    mass tie_mass = 1;
    for (int shift = 24; shift >= 0; shift -= 8) {
        fill_bins(s, within, by_mass, prefix, shift, shared);
        if (threadIdx.x == 0) {
            mass sum = above;
            int bin = BINS - 1;
            while (bin > 0 && sum + shared->bins[0][bin] < target) {
                sum += shared->bins[0][bin--];
            }
            shared->digit = (uint32_t)bin;
            shared->above = sum;
        }
        __syncthreads();
        above = shared->above;
        prefix = prefix << 8 | shared->digit;
        __syncthreads();
    }
    cut result = {prefix, 1};
    if (by_mass) {
        const uint32_t bits = prefix & 0x80000000u ? prefix & 0x7fffffffu : ~prefix;
        tie_mass = to_mass(probability(s, sl_f32_from_bits(bits)));
    }
    const mass needed = target > above ? target - above : 1;
    const mass ties = tie_mass > 0 ? (needed + tie_mass - 1) / tie_mass : 0xffffffffull;
    result.ties = ties > 0xffffffffull ? 0xffffffffu : (uint32_t)ties;
    if (prefix == within.key && result.ties > within.ties) {
        result.ties = within.ties;
    }
    return result;
}

/* Candidates of each thread are neighbours, so that a prefix over threads is one over ids. */
static __device__ void my_part(int32_t count, int32_t *first, int32_t *last) {
    const int32_t each = (count + THREADS - 1) / THREADS;
    *first = (int32_t)threadIdx.x * each < count ? (int32_t)threadIdx.x * each : count;
    *last = *first + each < count ? *first + each : count;
}

static __device__ mass left_mass(const sampling &s, const cut &limit, float logit, uint32_t *tie) {
    const uint32_t key = order_key(logit);
    const bool inside = is_inside(limit, key, *tie);
    *tie += key == limit.key;
    if (!inside) {
        return 0;
    }
    const float p = probability(s, logit);
    return p >= s.sampler->min_p ? to_mass(p) : 0;
}

/* How many candidates of the threads before this one lie on the cut. */
static __device__ uint32_t ties_before(const sampling &s, const cut &limit, int32_t first, int32_t last,
                                       shared_memory *shared) {
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    uint32_t mine = 0;
    for (int32_t id = first; id < last; id++) {
        mine += order_key(s.logits[id]) == limit.key;
    }
    uint32_t end = mine;
    for (int distance = 1; distance < SL_WARP; distance *= 2) {
        const uint32_t other = __shfl_up_sync(SL_FULL_WARP, end, distance);
        end += lane >= distance ? other : 0;
    }
    if (lane == SL_WARP - 1) {
        shared->warp_ties[warp] = end;
    }
    __syncthreads();
    uint32_t before = end - mine;
    for (int w = 0; w < warp; w++) {
        before += shared->warp_ties[w];
    }
    __syncthreads();
    return before;
}

/* Sum over the threads before this one; shared->total: over all. */
static __device__ mass mass_before(mass mine, shared_memory *shared) {
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    mass end = mine;
    for (int distance = 1; distance < SL_WARP; distance *= 2) {
        const mass other = __shfl_up_sync(SL_FULL_WARP, end, distance);
        end += lane >= distance ? other : 0;
    }
    if (lane == SL_WARP - 1) {
        shared->warp_mass[warp] = end;
    }
    __syncthreads();
    mass before = end - mine, total = 0;
    for (int w = 0; w < WARPS; w++) {
        before += w < warp ? shared->warp_mass[w] : 0;
        total += shared->warp_mass[w];
    }
    shared->total = total; /* the same from every thread */
    __syncthreads();
    return before;
}

/* Sum of the probabilities inside a cut. */
static __device__ mass sum_inside(const sampling &s, const cut &limit, shared_memory *shared) {
    int32_t first, last;
    my_part(s.count, &first, &last);
    uint32_t tie = ties_before(s, limit, first, last, shared);
    mass mine = 0;
    for (int32_t id = first; id < last; id++) {
        const uint32_t key = order_key(s.logits[id]);
        mine += is_inside(limit, key, tie) ? to_mass(probability(s, s.logits[id])) : 0;
        tie += key == limit.key;
    }
    mass_before(mine, shared);
    return shared->total;
}

static __device__ int32_t draw(const sampling &s, int32_t best, shared_memory *shared) {
    const sl_sampler *sampler = s.sampler;
    cut limit = {0, 0xffffffffu}; /* all */
    if (sampler->top_k > 0 && sampler->top_k < s.count) {
        limit = find_cut(s, limit, false, (mass)sampler->top_k, shared);
    }
    if (sampler->top_p < 1.0f) {
        const mass total = sum_inside(s, limit, shared);
        const mass target = (mass)((double)sampler->top_p * (double)total);
        limit = find_cut(s, limit, true, target > 0 ? target : 1, shared);
    }
    int32_t first, last;
    my_part(s.count, &first, &last);
    const uint32_t tie_start = ties_before(s, limit, first, last, shared);
    uint32_t tie = tie_start;
    mass mine = 0;
    for (int32_t id = first; id < last; id++) {
        mine += left_mass(s, limit, s.logits[id], &tie);
    }
    mass sum = mass_before(mine, shared);
    const mass total = shared->total;
    const mass random = sl_random_24(sampler->seed_low, sampler->seed_high, sampler->counter);
    /* floor(random * total / 2^24); a whole sum is above it just when it is above the true quotient */
    const mass target = __umul64hi(random << 40, total);
    if (threadIdx.x == 0) {
        shared->chosen = best;
    }
    __syncthreads();
    if (sum <= target && target < sum + mine) { /* one thread at most */
        tie = tie_start;
        for (int32_t id = first; id < last; id++) {
            sum += left_mass(s, limit, s.logits[id], &tie);
            if (sum > target) {
                shared->chosen = id;
                break;
            }
        }
    }
    __syncthreads();
    return shared->chosen;
}

/* NaN counts as -infinity. A token counts once however often it is in the history: its penalty is computed
 * from the original logit each time. */
static __device__ void penalise(const sl_cuda_context &context, const sl_step_output &output,
                                const float *logits, float *penalised, int32_t count) {
    for (int32_t id = (int32_t)threadIdx.x; id < count; id += THREADS) {
        penalised[id] = logits[id] == logits[id] ? logits[id] : -INFINITY;
    }
    __syncthreads();
    const float penalty = output.sampler.repetition_penalty;
    for (int32_t i = (int32_t)threadIdx.x; i < output.history_count && penalty > 0; i += THREADS) {
        const int32_t id = context.history[output.history_first + i];
        if (id >= 0 && id < count && logits[id] == logits[id]) {
            penalised[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
        }
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS) sample_kernel(sl_cuda_context context, sample_args args) {
    __shared__ shared_memory shared;
    const int32_t index = (int32_t)blockIdx.x, outputs = context.header->outputs;
    if (index >= outputs) {
        return;
    }
    const sl_step_output &output = context.outputs[index];
    float *penalised = args.scratch + (int64_t)index * args.vocabulary;
    penalise(context, output, sl_f32(args.logits, index), penalised, args.vocabulary);
    int32_t token = find_best(penalised, args.vocabulary, &shared);
    const sampling s = {&output.sampler, penalised, args.vocabulary, penalised[token]};
    if (output.sampler.temperature > 0 && isfinite(s.largest)) {
        token = draw(s, token, &shared);
    }
    if (threadIdx.x != 0) {
        return;
    }
    *sl_i32(args.tokens, index) = token;
    /* Of several outputs of one sequence the last one's token is kept. */
    bool is_last = output.slot >= 0;
    for (int32_t i = index + 1; i < outputs && is_last; i++) {
        is_last = context.outputs[i].slot != output.slot;
    }
    if (is_last) {
        context.last_tokens[output.slot] = token;
    }
}

uint64_t sl_cuda_sample_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    return (uint64_t)query->rows[SL_ROWS_OUTPUT] * (uint64_t)query->op->u.sample.vocabulary * sizeof(float);
}

SL_CUDA_RUN(sl_cuda_sample) {
    const sample_args args = {op->in[0], op->out[0], (float *)op->scratch, op->op->u.sample.vocabulary};
    sample_kernel<<<(unsigned)op->rows[SL_ROWS_OUTPUT], THREADS, 0, stream>>>(*context, args);
    return cudaGetLastError();
}
