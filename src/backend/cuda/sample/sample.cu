/* The sampler of program/step.h. An output has a cluster of blocks where the device knows them, else one
 * block; each block keeps its part of the vocabulary, logits as keys that order like them.
 *
 * Sums of probabilities are integers (units of 2^-43 of the likeliest candidate's), so that they do not
 * depend on the order in which threads add. top-k and top-p need no sorted list: the logit of the worst
 * candidate that is left is found by its bits, eight at a time, from counts (top-k) or sums (top-p) of the
 * candidates above. The same search among the largest candidate of every thread gives a bound first, which
 * spares most candidates the rest. Among equal logits the lower ids are left. The other stages that few ask
 * for (typical-p, XTC, top-n-sigma, a dynamic temperature) take the keys of what they do not leave; typical-p
 * is the same search with the distance from the expected logit as a key. The draw walks the candidates in
 * order of id. */
#include "backend/cuda/common/device.cuh"
#include "program/adjustment.h"
#include "program/random.h"

enum { THREADS = 512, WARPS = THREADS / SL_WARP, BINS = 256, CLUSTER = 8, MOST_SHARED = 190 << 10 };
#define PROBABILITY_ONE 8796093022208.0f /* 2^43: vocabularies of up to 2^20 cannot overflow 64 bits */

typedef unsigned long long mass;

typedef struct sample_args {
    sl_cuda_operand logits, tokens;
    uint32_t *scratch;        /* [outputs][blocks][part]: keys; NULL: they are in shared memory */
    int32_t vocabulary, part; /* candidates of a block, a multiple of 4 */
} sample_args;

typedef struct sampling {
    const sl_sampler *sampler;
    uint32_t *keys;       /* of the block's part, adjusted; 0: no candidate any more */
    int32_t first, count; /* the part */
    int32_t vocabulary;
    float largest;         /* of what is left */
    float temperature;     /* 1 before that stage */
    float expected;        /* with typical-p: what the logit over the temperature, less the largest, is */
    uint32_t thread_key;   /* of one of the thread's own candidates, the first of a search; 0: it has none */
    uint32_t rank, blocks; /* in the cluster */
    uint32_t turn;         /* which of the two copies of what is exchanged comes next */
} sampling;

/* Candidates that are left: those with a larger key, and of those with an equal one the first `ties` by id.
 */
typedef struct cut {
    uint32_t key, ties;
} cut;

/* What other blocks of the cluster read lies there twice: a block that is one exchange ahead must not
 * overwrite what others still read. */
typedef struct shared_memory {
    mass bins[WARPS][BINS]; /* a warp adds to its own */
    mass totals[2][BINS], exchange[2];
    mass warp_mass[WARPS];
    uint32_t warp_ties[WARPS];
    unsigned long long best[WARPS];
    uint32_t digit, reached;
    mass above;
} shared_memory;

/* ---- clusters ---- */

/* Every block gives a number; the sum over all, and over the blocks before this one. */
static __device__ mass sum_blocks(sampling *s, mass mine, mass *before, shared_memory *shared) {
    mass *exchange = &shared->exchange[s->turn++ % 2];
    if (threadIdx.x == 0) {
        *exchange = mine;
    }
    sl_cluster_sync();
    mass total = 0;
    *before = 0;
    for (uint32_t rank = 0; rank < s->blocks; rank++) {
        const mass number = *sl_of_block(exchange, rank);
        total += number;
        *before += rank < s->rank ? number : 0;
    }
    return total;
}

/* ---- candidates ---- */

/* Orders like the logit; -0 counts as 0. */
static __device__ __forceinline__ uint32_t order_key(float logit) {
    const uint32_t bits = sl_f32_bits(logit + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ float logit_of(uint32_t key) {
    return sl_f32_from_bits(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

static __device__ __forceinline__ float scaled(const sampling &s, float logit) {
    return (logit - s.largest) / s.temperature;
}

static __device__ __forceinline__ float probability(const sampling &s, float logit) {
    return expf(scaled(s, logit));
}

/* What searches go by: the larger comes first. Of no candidate 0, as its key is. */
template <bool BY_DISTANCE>
static __device__ __forceinline__ uint32_t search_key(const sampling &s, uint32_t key) {
    if (!BY_DISTANCE || key == 0) {
        return key;
    }
    return ~sl_f32_bits(fabsf(scaled(s, logit_of(key)) - s.expected));
}

static __device__ __forceinline__ mass to_mass(float p) {
    return (mass)(p * PROBABILITY_ONE);
}

static __device__ __forceinline__ bool is_inside(const cut &limit, uint32_t key, uint32_t tie) {
    return key > limit.key || (key == limit.key && tie < limit.ties);
}

typedef struct candidate {
    float logit;
    int32_t id; /* -1: none */
} candidate;

/* The better of two, the earlier one in a tie. */
static __device__ __forceinline__ void keep_better(candidate *best, float logit, int32_t id) {
    const bool better = logit > best->logit || best->id < 0;
    best->logit = better ? logit : best->logit;
    best->id = better ? id : best->id;
}

/* The thread's best candidate of the part `from`; the keys of all go to `to` unless it is NULL. */
static __device__ candidate read_part(const float *from, int32_t first, int32_t count, uint32_t *to) {
    candidate best = {-INFINITY, -1};
    const int32_t quads = (uintptr_t)from % 16 == 0 ? count / 4 : 0;
#pragma unroll 8
    for (int32_t i = (int32_t)threadIdx.x; i < quads; i += THREADS) {
        float4 quad = ((const float4 *)(const void *)from)[i];
        quad = make_float4(sl_number_logit(quad.x), sl_number_logit(quad.y), sl_number_logit(quad.z),
                           sl_number_logit(quad.w));
        keep_better(&best, quad.x, first + 4 * i);
        keep_better(&best, quad.y, first + 4 * i + 1);
        keep_better(&best, quad.z, first + 4 * i + 2);
        keep_better(&best, quad.w, first + 4 * i + 3);
        if (to) {
            ((uint4 *)(void *)to)[i] =
                make_uint4(order_key(quad.x), order_key(quad.y), order_key(quad.z), order_key(quad.w));
        }
    }
    for (int32_t i = 4 * quads + (int32_t)threadIdx.x; i < count; i += THREADS) {
        const float logit = sl_number_logit(from[i]);
        keep_better(&best, logit, first + i);
        if (to) {
            to[i] = order_key(logit);
        }
    }
    return best;
}

/* Replaces the keys of the tokens that are adjusted, each of which is in one entry, and of those that the
 * mask does not have. Then the thread's best candidate. */
static __device__ candidate adjust(const sl_cuda_context &context, const sl_step_output &output,
                                   const float *from, const sampling &s, uint32_t *to) {
    const sl_adjustment *adjustments = sl_output_adjustments(context.header, context.table_changes, &output);
    const uint32_t *mask = sl_output_mask(context.header, context.table_changes, &output, s.vocabulary);
    __syncthreads(); /* the keys of others are there, to be replaced */
    for (int32_t i = (int32_t)threadIdx.x; i < output.adjustment_count; i += THREADS) {
        const int32_t at = adjustments[i].token - s.first;
        if (at >= 0 && at < s.count) {
            to[at] = order_key(sl_adjusted_logit(&adjustments[i], from[at]));
        }
    }
    __syncthreads();
    candidate best = {-INFINITY, -1};
    for (int32_t i = (int32_t)threadIdx.x; i < s.count; i += THREADS) {
        if (mask && sl_is_masked(mask, s.first + i)) {
            to[i] = order_key(-INFINITY);
        }
        keep_better(&best, logit_of(to[i]), s.first + i);
    }
    return best;
}

/* The largest of all threads' numbers; the same in all threads of the cluster. */
static __device__ unsigned long long find_most(sampling *s, unsigned long long best, shared_memory *shared) {
    for (int distance = SL_WARP / 2; distance > 0; distance /= 2) {
        const unsigned long long other = __shfl_xor_sync(SL_FULL_WARP, best, distance);
        best = other > best ? other : best;
    }
    if (threadIdx.x % SL_WARP == 0) {
        shared->best[threadIdx.x / SL_WARP] = best;
    }
    __syncthreads();
    mass *exchange = &shared->exchange[s->turn++ % 2];
    if (threadIdx.x == 0) {
        for (int w = 0; w < WARPS; w++) {
            best = shared->best[w] > best ? shared->best[w] : best;
        }
        *exchange = best;
    }
    sl_cluster_sync();
    best = 0;
    for (uint32_t rank = 0; rank < s->blocks; rank++) {
        const unsigned long long other = *sl_of_block(exchange, rank);
        best = other > best ? other : best;
    }
    return best;
}

/* The candidate with the largest logit, the lowest id in a tie; the same in all threads of the cluster. */
static __device__ candidate find_best(sampling *s, const candidate &mine, shared_memory *shared) {
    const unsigned long long own =
        mine.id < 0 ? 0 : (unsigned long long)order_key(mine.logit) << 32 | (0xffffffffu - (uint32_t)mine.id);
    const unsigned long long best = find_most(s, own, shared);
    return {logit_of((uint32_t)(best >> 32)), (int32_t)(0xffffffffu - (uint32_t)best)};
}

/* ---- cuts ---- */

/* A search: candidates whose search keys are `floor` or more weigh 1, or their probability; how many of the
 * first reach `target`? */
typedef struct search {
    uint32_t floor;
    bool by_mass, one_each; /* one_each: only one candidate of every thread */
    mass target;
    uint32_t prefix;
    mass above; /* weight of all candidates with a larger prefix */
    bool reached;
} search;

/* Adds up the weights of the warp's candidates by bin, one lane for each bin. `active` may differ between
 * lanes. */
static __device__ __forceinline__ void add_to_bins(bool active, uint32_t bin, mass weight, mass *bins) {
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

/* The block's weights of the candidates that begin with the prefix, by their next eight bits, into `totals`.
 */
template <bool BY_DISTANCE>
static __device__ void fill_bins(const sampling &s, const search &q, int shift, mass *totals,
                                 shared_memory *shared) {
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP;
    for (int32_t i = (int32_t)threadIdx.x; i < WARPS * BINS; i += THREADS) {
        shared->bins[i / BINS][i % BINS] = 0;
    }
    __syncthreads();
    const auto add = [&](uint32_t own) {
        const uint32_t key = search_key<BY_DISTANCE>(s, own);
        const bool active = key != 0 && key >= q.floor && (shift == 24 || key >> (shift + 8) == q.prefix);
        if (__any_sync(SL_FULL_WARP, active)) {
            const mass weight = !active ? 0 : q.by_mass ? to_mass(probability(s, logit_of(own))) : 1;
            add_to_bins(active, key >> shift & 255u, weight, shared->bins[warp]);
        }
    };
    if (q.one_each) {
        add(s.thread_key);
    }
    const int32_t quads = q.one_each ? 0 : (s.count + 3) / 4;
    for (int32_t base = 0; base < quads; base += THREADS) {
        const int32_t i = base + (int32_t)threadIdx.x;
        const uint4 keys = i < quads ? ((const uint4 *)(const void *)s.keys)[i] : make_uint4(0, 0, 0, 0);
        if (__any_sync(SL_FULL_WARP,
                       BY_DISTANCE || max(max(keys.x, keys.y), max(keys.z, keys.w)) >= q.floor)) {
            add(keys.x);
            add(keys.y);
            add(keys.z);
            add(keys.w);
        }
    }
    __syncthreads();
    for (int32_t bin = (int32_t)threadIdx.x; bin < BINS; bin += THREADS) {
        mass sum = 0;
        for (int w = 0; w < WARPS; w++) {
            sum += shared->bins[w][bin];
        }
        totals[bin] = sum;
    }
}

/* The highest bin that reaches the target together with those above it, the lowest if none does. A thread has
 * one bin, the first threads the highest. */
static __device__ void choose_bin(mass mine, search *q, shared_memory *shared) {
    const int32_t thread = (int32_t)threadIdx.x, warp = thread / SL_WARP, lane = thread % SL_WARP;
    mass end = mine;
    for (int distance = 1; distance < SL_WARP; distance *= 2) {
        const mass other = __shfl_up_sync(SL_FULL_WARP, end, distance);
        end += lane >= distance ? other : 0;
    }
    if (lane == SL_WARP - 1) {
        shared->warp_mass[warp] = end;
    }
    __syncthreads();
    end += q->above;
    for (int w = 0; w < warp; w++) {
        end += shared->warp_mass[w];
    }
    const bool is_last = thread == BINS - 1, reaches = end >= q->target;
    if (thread < BINS && (reaches || is_last) && end - mine < q->target) {
        shared->digit = (uint32_t)(BINS - 1 - thread);
        shared->above = end - mine;
        shared->reached = reaches;
    }
    __syncthreads();
    q->above = shared->above;
    q->prefix = q->prefix << 8 | shared->digit;
    q->reached = shared->reached != 0;
}

/* Finds the leading `digits` * 8 bits of the key that the search ends at. */
template <bool BY_DISTANCE>
static __device__ void run_search(sampling *s, search *q, int digits, shared_memory *shared) {
    q->prefix = 0;
    q->above = 0;
    for (int d = 0; d < digits; d++) {
        mass *totals = shared->totals[s->turn++ % 2];
        fill_bins<BY_DISTANCE>(*s, *q, 24 - 8 * d, totals, shared);
        sl_cluster_sync();
        mass mine = 0;
        for (uint32_t rank = 0; rank < s->blocks && threadIdx.x < BINS; rank++) {
            mine += *sl_of_block(&totals[BINS - 1 - threadIdx.x], rank);
        }
        choose_bin(mine, q, shared);
        if (!q->reached && q->one_each) {
            return;
        }
    }
}

/* Where the first candidates from `floor` on just reach the target together. */
template <bool BY_DISTANCE>
static __device__ search find_end(sampling *s, uint32_t floor, bool by_mass, mass target,
                                  shared_memory *shared) {
    search bound = {floor, by_mass, true, target, 0, 0, false};
    run_search<BY_DISTANCE>(s, &bound, 2, shared);
    search all = {floor, by_mass, false, target, 0, 0, false};
    if (bound.reached && bound.prefix << 16 > floor) {
        all.floor = bound.prefix << 16; /* some reach the target from here on; so do all */
    }
    run_search<BY_DISTANCE>(s, &all, 4, shared);
    return all;
}

/* The cut that leaves just enough candidates above `within` for their weights to reach `target` (at least 1):
 * every candidate weighs 1, or its probability. Candidates outside `within` count nothing; equal ones that
 * are inside weigh the same. */
static __device__ cut find_cut(sampling *s, const cut &within, bool by_mass, mass target,
                               shared_memory *shared) {
    const search all = find_end<false>(s, within.key, by_mass, target, shared);
    if (!all.reached) {
        return within;
    }
    const mass tie_mass = by_mass ? to_mass(probability(*s, logit_of(all.prefix))) : 1;
    const mass needed = target > all.above ? target - all.above : 1;
    const mass ties = tie_mass > 0 ? (needed + tie_mass - 1) / tie_mass : 0xffffffffull;
    cut result = {all.prefix, ties > 0xffffffffull ? 0xffffffffu : (uint32_t)ties};
    if (result.key == within.key && result.ties > within.ties) {
        result.ties = within.ties;
    }
    return result;
}

/* ---- the draw ---- */

/* Candidates of each thread are neighbours, so that a prefix over threads is one over ids; an odd number of
 * them, so that the threads of a warp read different banks. */
static __device__ void my_part(int32_t count, int32_t *first, int32_t *last) {
    const int32_t each = (count + THREADS - 1) / THREADS | 1, thread = (int32_t)threadIdx.x;
    *first = thread * each < count ? thread * each : count;
    *last = *first + each < count ? *first + each : count;
}

/* Sum over the threads before this one in the whole cluster; *total: over all. */
static __device__ mass sum_threads(sampling *s, mass mine, mass *total, shared_memory *shared) {
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    mass end = mine, block = 0, before;
    for (int distance = 1; distance < SL_WARP; distance *= 2) {
        const mass other = __shfl_up_sync(SL_FULL_WARP, end, distance);
        end += lane >= distance ? other : 0;
    }
    __syncthreads();
    if (lane == SL_WARP - 1) {
        shared->warp_mass[warp] = end;
    }
    __syncthreads();
    mass sum = end - mine;
    for (int w = 0; w < WARPS; w++) {
        sum += w < warp ? shared->warp_mass[w] : 0;
        block += shared->warp_mass[w];
    }
    *total = sum_blocks(s, block, &before, shared);
    return sum + before;
}

/* How many candidates of the threads before this one lie on the cut. */
static __device__ uint32_t ties_before(sampling *s, const cut &limit, int32_t first, int32_t last,
                                       shared_memory *shared) {
    if (limit.ties == 0xffffffffu) {
        return 0; /* as good as the true number: all of them are inside */
    }
    mass mine = 0, total;
    for (int32_t i = first; i < last; i++) {
        mine += s->keys[i] == limit.key;
    }
    return (uint32_t)sum_threads(s, mine, &total, shared);
}

/* What candidate i weighs if it is inside the cut. */
static __device__ __forceinline__ mass left_mass(const sampling &s, const cut &limit, int32_t i,
                                                 uint32_t *tie) {
    const uint32_t key = s.keys[i];
    const bool inside = is_inside(limit, key, *tie);
    *tie += key == limit.key && limit.ties != 0xffffffffu;
    return inside ? to_mass(probability(s, logit_of(key))) : 0;
}

/* The thread's own sum; tie: as ties_before. */
static __device__ mass sum_part(const sampling &s, const cut &limit, uint32_t tie) {
    int32_t first, last;
    my_part(s.count, &first, &last);
    mass mine = 0;
    for (int32_t i = first; i < last; i++) {
        mine += left_mass(s, limit, i, &tie);
    }
    return mine;
}

/* ---- stages that few ask for ---- */

/* Takes the keys of what is outside the cut. tie: as ties_before. */
static __device__ void drop_outside(sampling *s, const cut &limit, uint32_t tie) {
    int32_t first, last;
    my_part(s->count, &first, &last);
    for (int32_t i = first; i < last; i++) {
        const uint32_t key = s->keys[i];
        const bool inside = is_inside(limit, key, tie);
        tie += key == limit.key && limit.ties != 0xffffffffu;
        s->keys[i] = inside ? key : 0;
    }
}

/* Has the thread's own finite candidates a key? How many have, in the whole cluster. */
static __device__ mass count_left(sampling *s, shared_memory *shared) {
    int32_t first, last;
    mass mine = 0, total;
    my_part(s->count, &first, &last);
    for (int32_t i = first; i < last; i++) {
        mine += s->keys[i] > order_key(-INFINITY);
    }
    sum_threads(s, mine, &total, shared);
    return total;
}

/* Finds the expected logit and the sum of what has a key. */
static __device__ mass expect(sampling *s, shared_memory *shared) {
    int32_t first, last;
    my_part(s->count, &first, &last);
    mass mine = 0, moment = 0, total, moments;
    for (int32_t i = first; i < last; i++) {
        const float x = scaled(*s, logit_of(s->keys[i])), p = s->keys[i] ? expf(x) : 0;
        mine += to_mass(p);
        moment += p > 0 ? to_mass(-x * p) : 0; /* at most 1 / e */
    }
    sum_threads(s, mine, &total, shared);
    sum_threads(s, moment, &moments, shared);
    s->expected = -(float)((double)moments / (double)total);
    return total;
}

/* The thread's own candidate that comes first in a search. */
template <bool BY_DISTANCE> static __device__ uint32_t first_of_part(const sampling &s) {
    int32_t first, last;
    uint32_t best = 0, found = 0;
    my_part(s.count, &first, &last);
    for (int32_t i = first; i < last; i++) {
        const uint32_t key = search_key<BY_DISTANCE>(s, s.keys[i]);
        found = key > best ? s.keys[i] : found;
        best = max(best, key);
    }
    return found;
}

/* Takes the keys of all but those nearest to the expected logit. */
static __device__ void keep_typical(sampling *s, shared_memory *shared) {
    const mass total = expect(s, shared);
    const mass target = (mass)((double)s->sampler->typical_p * (double)total);
    s->thread_key = first_of_part<true>(*s);
    const search end = find_end<true>(s, 1, true, target > 0 ? target : 1, shared);
    /* Of those that are as far as the last one, by id until the sum is reached. */
    const mass needed = target > end.above ? target - end.above : 1;
    int32_t first, last;
    mass ties = 0, unused;
    my_part(s->count, &first, &last);
    for (int32_t i = first; i < last; i++) {
        const bool tied = search_key<true>(*s, s->keys[i]) == end.prefix;
        ties += tied ? to_mass(probability(*s, logit_of(s->keys[i]))) : 0;
    }
    mass before = sum_threads(s, ties, &unused, shared);
    for (int32_t i = first; i < last; i++) {
        const uint32_t key = search_key<true>(*s, s->keys[i]);
        const bool left = key > end.prefix || (key == end.prefix && before < needed);
        before += key == end.prefix ? to_mass(probability(*s, logit_of(s->keys[i]))) : 0;
        s->keys[i] = left ? s->keys[i] : 0;
    }
}

/* XTC, when its number has come: of those that reach the threshold only the last by likelihood stays. */
static __device__ void exclude_top_choices(sampling *s, shared_memory *shared) {
    int32_t first, last;
    mass mine = 0, total, choices;
    my_part(s->count, &first, &last);
    for (int32_t i = first; i < last; i++) {
        mine += s->keys[i] ? to_mass(probability(*s, logit_of(s->keys[i]))) : 0;
    }
    sum_threads(s, mine, &total, shared);
    const double least = (double)s->sampler->xtc_threshold * ((double)total / (double)PROBABILITY_ONE);
    unsigned long long worst = 0; /* the complement of key and place, so that the largest is wanted */
    mine = 0;
    for (int32_t i = first; i < last; i++) {
        const uint32_t key = s->keys[i];
        if (key > order_key(-INFINITY) && (double)probability(*s, logit_of(key)) >= least) {
            const uint32_t place = 0xffffffffu - (uint32_t)(s->first + i);
            const unsigned long long own = ~((unsigned long long)key << 32 | place);
            worst = own > worst ? own : worst;
            mine++;
        }
    }
    sum_threads(s, mine, &choices, shared);
    worst = ~find_most(s, worst, shared);
    const uint32_t kept_key = (uint32_t)(worst >> 32);
    const int32_t kept = (int32_t)(0xffffffffu - (uint32_t)worst);
    for (int32_t i = first; i < last && choices > 1; i++) {
        const uint32_t key = s->keys[i];
        s->keys[i] = key > kept_key || (key == kept_key && s->first + i < kept) ? 0 : key;
    }
}

/* Sum over all threads of the cluster, in one order. */
static __device__ double sum_numbers(sampling *s, double mine, shared_memory *shared) {
    for (int distance = SL_WARP / 2; distance > 0; distance /= 2) {
        mine += __longlong_as_double((long long)__shfl_xor_sync(
            SL_FULL_WARP, (unsigned long long)__double_as_longlong(mine), distance));
    }
    if (threadIdx.x % SL_WARP == 0) {
        shared->best[threadIdx.x / SL_WARP] = (unsigned long long)__double_as_longlong(mine);
    }
    __syncthreads();
    mass *exchange = &shared->exchange[s->turn++ % 2];
    if (threadIdx.x == 0) {
        double block = 0;
        for (int w = 0; w < WARPS; w++) {
            block += __longlong_as_double((long long)shared->best[w]);
        }
        *exchange = (mass)__double_as_longlong(block);
    }
    sl_cluster_sync();
    double total = 0;
    for (uint32_t rank = 0; rank < s->blocks; rank++) {
        total += __longlong_as_double((long long)*sl_of_block(exchange, rank));
    }
    return total;
}

/* The least key within so many standard deviations of the largest logit. */
static __device__ uint32_t least_near_the_top(sampling *s, shared_memory *shared) {
    const double left = (double)count_left(s, shared);
    int32_t first, last;
    double sum = 0, squares = 0;
    my_part(s->count, &first, &last);
    for (int32_t i = first; i < last; i++) {
        sum += s->keys[i] > order_key(-INFINITY) ? (double)logit_of(s->keys[i]) : 0;
    }
    const double mean = sum_numbers(s, sum, shared) / left;
    for (int32_t i = first; i < last; i++) {
        const double away = s->keys[i] > order_key(-INFINITY) ? (double)logit_of(s->keys[i]) - mean : 0;
        squares += away * away;
    }
    const double deviation = sqrt(sum_numbers(s, squares, shared) / left);
    return order_key((float)((double)s->largest - (double)s->sampler->top_n_sigma * deviation));
}

static __device__ float dynamic_temperature(sampling *s, shared_memory *shared) {
    const double center = (double)s->sampler->temperature, range = (double)s->sampler->dynamic_range;
    const mass left = count_left(s, shared);
    if (left < 2) {
        return s->sampler->temperature;
    }
    const double total = (double)expect(s, shared) / (double)PROBABILITY_ONE;
    const double low = fmax(0.0, center - range);
    const double entropy = fmax(0.0, log(total) - (double)s->expected) / log((double)left);
    const double found = low + (center + range - low) * pow(entropy, (double)s->sampler->dynamic_exponent);
    return fmaxf(SL_LEAST_TEMPERATURE, (float)found);
}

typedef struct narrowed {
    cut limit;
    float largest, temperature;
    uint32_t thread_key, turn;
} narrowed;

/* A stage of those. What it leaves has keys, all else none. A function of its own, with a copy, so that it
 * takes no registers from samplers without such stages. */
static __device__ __noinline__ narrowed run_rare_stage(sampling own, sl_sampler_stage stage, cut limit,
                                                       uint32_t tie, shared_memory *shared) {
    sampling *s = &own;
    drop_outside(s, limit, tie);
    limit = {1, 0xffffffffu};
    if (stage == SL_STAGE_TEMPERATURE) {
        s->temperature = dynamic_temperature(s, shared);
    } else if (stage == SL_STAGE_TOP_N_SIGMA) {
        limit.key = least_near_the_top(s, shared);
    } else if (stage == SL_STAGE_XTC) {
        exclude_top_choices(s, shared);
    } else {
        keep_typical(s, shared);
    }
    s->thread_key = first_of_part<false>(*s);
    const candidate likeliest = {logit_of(s->thread_key), s->thread_key ? s->first : -1};
    s->largest = find_best(s, likeliest, shared).logit;
    return {limit, s->largest, s->temperature, s->thread_key, s->turn};
}

static __device__ __forceinline__ bool is_rare(const sl_sampler &sampler, sl_sampler_stage stage) {
    switch (stage) {
    case SL_STAGE_TOP_N_SIGMA:
        return sampler.top_n_sigma > 0;
    case SL_STAGE_TYPICAL_P:
        return sampler.typical_p > 0 && sampler.typical_p < 1.0f;
    case SL_STAGE_XTC:
        return sampler.xtc_probability > 0 &&
               sl_random_uniform(&sampler, SL_RANDOM_XTC) < sampler.xtc_probability;
    case SL_STAGE_TEMPERATURE:
        return sampler.dynamic_range > 0;
    default:
        return false;
    }
}

/* True in the one thread that has the drawn candidate; in thread 0 of the cluster when none is left: then the
 * best. */
static __device__ __forceinline__ bool draw(sampling *s, const candidate &best, int32_t *chosen,
                                            shared_memory *shared) {
    const sl_sampler *sampler = s->sampler;
    int32_t first, last;
    my_part(s->count, &first, &last);
    cut limit = {1, 0xffffffffu}; /* all */
    uint32_t tie = 0;
    mass total;
#pragma unroll 1
    for (int32_t slot = 0; slot < SL_SAMPLER_STAGES; slot++) {
        const sl_sampler_stage stage = (sl_sampler_stage)sampler->order[slot];
        if (stage == SL_STAGE_END) {
            break;
        }
        const bool by_count = stage == SL_STAGE_TOP_K && sampler->top_k > 0 && sampler->top_k < s->vocabulary;
        const bool by_mass = stage == SL_STAGE_TOP_P && sampler->top_p < 1.0f;
        if (by_count || by_mass) {
            mass target = (mass)sampler->top_k;
            if (by_mass) {
                sum_threads(s, sum_part(*s, limit, tie), &total, shared);
                target = (mass)((double)sampler->top_p * (double)total);
            }
            limit = find_cut(s, limit, by_mass, target > 0 ? target : 1, shared);
            tie = ties_before(s, limit, first, last, shared);
        } else if (stage == SL_STAGE_MIN_P && sampler->min_p > 0) {
            const uint32_t least = order_key(s->largest + s->temperature * logf(sampler->min_p));
            if (least > limit.key) {
                limit = {least, 0xffffffffu};
            }
        } else if (is_rare(*sampler, stage)) {
            const narrowed left = run_rare_stage(*s, stage, limit, tie, shared);
            limit = left.limit;
            tie = 0;
            s->largest = left.largest;
            s->temperature = left.temperature;
            s->thread_key = left.thread_key;
            s->turn = left.turn;
        } else if (stage == SL_STAGE_TEMPERATURE) {
            s->temperature = sampler->temperature;
        }
    }
    const mass mine = sum_part(*s, limit, tie);
    mass sum = sum_threads(s, mine, &total, shared);
    const mass random = sl_random_24(sampler, SL_RANDOM_DRAW);
    /* floor(random * total / 2^24); a whole sum is above it just when it is above the true quotient */
    const mass target = __umul64hi(random << 40, total);
    *chosen = best.id;
    if (sum > target || target >= sum + mine) {
        return total == 0 && s->rank == 0 && threadIdx.x == 0;
    }
    for (int32_t i = first; i < last && sum <= target; i++) {
        sum += left_mass(*s, limit, i, &tie);
        *chosen = s->first + i;
    }
    return true;
}

/* By all threads: whether a later one of so many outputs has the slot too. Of several outputs of one sequence
 * the last one's token is kept. */
static __device__ bool is_superseded(const sl_cuda_context &context, int32_t index, int32_t outputs,
                                     int32_t slot) {
    bool later = false;
    for (int32_t i = index + 1 + (int32_t)threadIdx.x; i < outputs; i += THREADS) {
        later = later || context.outputs[i].slot == slot;
    }
    return __syncthreads_or(later) != 0;
}

static __global__ void __launch_bounds__(THREADS, 2) /* both find room in a processor of Hopper */
    sample_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ sample_args args) {
    extern __shared__ float4 memory[];
    __shared__ shared_memory shared;
    sl_let_next_begin();
    sampling s = {};
    s.blocks = sl_cluster_blocks();
    s.rank = blockIdx.x % s.blocks;
    const int32_t index = (int32_t)(blockIdx.x / s.blocks);
    /* Of the step block, which is there, with room for all outputs of the bucket: known when logits come. */
    const int32_t outputs = context.header->outputs;
    const sl_step_output output = context.outputs[index];
    const bool superseded = is_superseded(context, index, outputs, output.slot);
    sl_wait_for_inputs();
    if (index >= outputs) { /* so do the others of the cluster */
        return;
    }
    s.sampler = &context.outputs[index].sampler;
    s.vocabulary = args.vocabulary;
    s.first = min((int32_t)s.rank * args.part, args.vocabulary);
    s.count = min(args.part, args.vocabulary - s.first);
    const float *from = sl_f32(args.logits, index) + s.first;
    uint32_t *part =
        args.scratch ? args.scratch + (int64_t)blockIdx.x * args.part : (uint32_t *)(void *)memory;
    const bool adjusted = output.adjustment_count > 0 || output.mask >= 0;
    const bool draws = output.sampler.temperature > 0;
    candidate mine = read_part(from, s.first, s.count, adjusted || draws ? part : NULL);
    if (adjusted) {
        mine = adjust(context, output, from, s, part);
    }
    if (draws && threadIdx.x < 4 && s.count + (int32_t)threadIdx.x < args.part) {
        part[s.count + threadIdx.x] = 0; /* none: the last quad is read whole */
    }
    const candidate best = find_best(&s, mine, &shared);
    int32_t token = isfinite(best.logit) ? best.id : best.logit > 0 ? SL_NO_TOKEN : SL_NO_TOKEN_LEFT;
    bool writes = s.rank == 0 && threadIdx.x == 0;
    if (draws && token >= 0) {
        s.keys = part;
        s.largest = best.logit;
        s.temperature = 1;
        s.thread_key = mine.id < 0 ? 0 : order_key(mine.logit);
        writes = draw(&s, best, &token, &shared);
    }
    if (writes) {
        *sl_i32(args.tokens, index) = token;
        if (output.slot >= 0 && !superseded) {
            context.last_tokens[output.slot] = max(token, 0);
        }
    }
    sl_cluster_sync(); /* others may still read this block's memory */
}

static cudaError_t prepare(const sl_cuda_facts *facts) {
    return facts->has_bulk_copies
               ? cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST_SHARED)
               : cudaSuccess;
}

static uint64_t workspace_of(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const uint64_t whole = CLUSTER * 4; /* parts are whole quads */
    return (uint64_t)query->rows[SL_ROWS_OUTPUT] *
           (((uint64_t)query->op->u.sample.vocabulary + whole - 1) / whole * whole) * sizeof(uint32_t);
}

static SL_CUDA_RUN(run) {
    const int32_t vocabulary = op->op->u.sample.vocabulary;
    const uint32_t cluster = context->dependent_launches ? CLUSTER : 1; /* both came with 9.0 */
    const int32_t part = (vocabulary + (int32_t)cluster * 4 - 1) / ((int32_t)cluster * 4) * 4;
    const uint32_t bytes = (uint32_t)part * (uint32_t)sizeof(float);
    const bool fits = cluster > 1 && bytes <= MOST_SHARED;
    const sample_args args = {op->in[0], op->out[0], fits ? NULL : (uint32_t *)(void *)op->scratch,
                              vocabulary, part};
    sl_launch_shape shape = {dim3((unsigned)op->rows[SL_ROWS_OUTPUT] * cluster), dim3(THREADS),
                             fits ? bytes : 0};
    shape.cluster = cluster;
    return sl_launch(context, stream, shape, sample_kernel, *context, args);
}

static const sl_cuda_kernel KERNELS[] = {
    {.kernel = {.name = "sample/cuda",
                .op = SL_OP_SAMPLE,
                .numeric_class = "f32/fixed43",
                .batched = true,
                .workspace = workspace_of},
     .run = run},
};

SL_CUDA_FAMILY(sample) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, prepare};
