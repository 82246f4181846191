/* FETCH. All of a set: copies that run beside the ops in front of them (run/copies.c), and a kernel behind
 * which they are there. Chosen experts: a block finds their slots in the set's table and empties some for
 * those that are in none; then many blocks read what is missing from host memory, as fast as the bus brings
 * it. Ops read them in their slots, for which the block writes ids and schedule anew, or in a buffer, to
 * which the many blocks copy those that are in slots too. What a slot held never reaches the bits: it is the
 * weights of the expert that it says. Each way the kernel that is there already counts how often each expert
 * was chosen. */
#include "backend/cuda/common/device.cuh"
#include "backend/cuda/run/copies.h"

enum {
    SLOT_THREADS = 1024, /* of the one block at most: most experts and slots */
    COPY_THREADS = 256,
    COPY_BLOCKS = 2, /* for each processor */
    COPY_WORDS = 4,  /* of a thread at a time: the bus is far away, so that much has to be under way */
    MOST_WORD = 16   /* bytes */
};

/* ---- all of a set ---- */

typedef struct arrived_args {
    const sl_step_header *header;
    const int32_t *offsets;     /* of the schedule, which a step without rows does not write */
    unsigned long long *chosen; /* of the table */
    int32_t experts;            /* 0: there is nothing to count */
} arrived_args;

/* A thread for each expert. Launched without leave to begin early, and gives none: what is behind it reads
 * weights without waiting. */
static __global__ void arrived_kernel(const __grid_constant__ arrived_args args) {
    const int32_t expert = (int32_t)threadIdx.x;
    if (expert < args.experts && args.header->rows > 0) {
        const int32_t rows = args.offsets[expert + 1] - args.offsets[expert];
        args.chosen[expert] += (unsigned long long)rows;
    }
}

static cudaError_t bring_all(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const sl_cuda_fetch *fetch = op->fetch;
    const cudaError_t code = sl_cuda_finish_copies(context->copies, fetch, stream);
    if (code != cudaSuccess) {
        return code;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(SL_WARP);
    config.stream = stream;
    arrived_args args = {};
    if (fetch->experts > 0) {
        config.blockDim = dim3(((unsigned)fetch->experts + SL_WARP - 1) / SL_WARP * SL_WARP);
        args.header = context->header;
        args.offsets = op->in[1].head;
        args.chosen = sl_slot_arrays_of(fetch->table, fetch->experts, 0).chosen;
        args.experts = fetch->experts;
    }
    return cudaLaunchKernelEx(&config, arrived_kernel, args);
}

/* ---- slots ---- */

typedef struct slot_args {
    sl_cuda_operand ids, slots;
    const int32_t *given;    /* offsets of the schedule, which a step without rows does not write */
    int32_t *offsets, *list; /* the schedule of slots; NULL: the experts go to a buffer */
    sl_slot_table *table;
    unsigned long long *counts;
    int32_t experts, slot_count, used, most_protected;
} slot_args;

typedef struct slot_memory {
    int32_t slot_of[SLOT_THREADS], expert_of[SLOT_THREADS], is_protected[SLOT_THREADS];
    int32_t wanted[SLOT_THREADS]; /* per expert: rows that chose it in this step */
    int32_t chosen[SLOT_THREADS]; /* per row and rank: the slot */
    int32_t victim[SLOT_THREADS]; /* slots that may be emptied, those that must go first in front */
    unsigned long long used_at[SLOT_THREADS];
    int32_t hits, misses, promotions, protected_count, victims;
} slot_memory;

static __device__ void read_table(const slot_args &args, const sl_slot_arrays &a, bool is_new,
                                  slot_memory *shared) {
    const int32_t thread = (int32_t)threadIdx.x;
    if (thread < args.experts) {
        shared->slot_of[thread] = is_new ? SL_NONE : a.slot_of[thread];
        shared->wanted[thread] = args.given[thread + 1] - args.given[thread];
    }
    if (thread < args.slot_count) {
        shared->expert_of[thread] = is_new ? SL_NONE : a.expert_of[thread];
        shared->is_protected[thread] = is_new ? 0 : a.is_protected[thread];
        shared->used_at[thread] = is_new ? 0 : a.used_at[thread];
    }
    if (thread == 0) {
        shared->hits = shared->misses = shared->promotions = shared->protected_count = shared->victims = 0;
    }
    __syncthreads();
}

static __device__ void write_table(const slot_args &args, const sl_slot_arrays &a,
                                   const slot_memory *shared) {
    const int32_t thread = (int32_t)threadIdx.x;
    if (thread < args.experts) {
        a.slot_of[thread] = shared->slot_of[thread];
    }
    if (thread < args.slot_count) {
        a.expert_of[thread] = shared->expert_of[thread];
        a.is_protected[thread] = shared->is_protected[thread];
        a.used_at[thread] = shared->used_at[thread];
    }
}

/* Slots of experts that were chosen and are there. */
static __device__ void touch(const slot_args &args, unsigned long long clock, slot_memory *shared) {
    const int32_t thread = (int32_t)threadIdx.x;
    if (thread < args.experts && shared->wanted[thread]) {
        const int32_t slot = shared->slot_of[thread];
        if (slot >= 0) {
            if (!shared->is_protected[slot]) {
                atomicAdd(&shared->promotions, 1);
            }
            shared->is_protected[slot] = 1;
            shared->used_at[slot] = clock;
        }
        atomicAdd(slot >= 0 ? &shared->hits : &shared->misses, 1);
    }
    __syncthreads();
}

/* Of too many protected slots those that were not used for longest are on probation again. */
static __device__ void demote(const slot_args &args, slot_memory *shared) {
    const int32_t thread = (int32_t)threadIdx.x, most = args.most_protected;
    const bool mine = thread < args.slot_count && shared->is_protected[thread];
    if (mine) {
        atomicAdd(&shared->protected_count, 1);
    }
    __syncthreads();
    int32_t rank = 0;
    const bool too_many = shared->protected_count > most;
    for (int32_t s = 0; mine && too_many && s < args.slot_count; s++) {
        const unsigned long long at = shared->used_at[s], own = shared->used_at[thread];
        rank += shared->is_protected[s] && (at < own || (at == own && s < thread));
    }
    __syncthreads();
    if (mine && rank < shared->protected_count - most) {
        shared->is_protected[thread] = 0;
    }
    __syncthreads();
}

/* Whether slot a goes before slot b, neither of which the step uses. */
static __device__ __forceinline__ bool goes_before(const slot_memory *shared, int32_t a, int32_t b) {
    const bool a_stays = shared->is_protected[a], b_stays = shared->is_protected[b];
    const unsigned long long a_used = shared->used_at[a], b_used = shared->used_at[b];
    return a_stays != b_stays ? b_stays : a_used != b_used ? a_used < b_used : a < b;
}

/* Whether the step may empty the slot. To slots there must be one for each missing expert. To the buffer all
 * missing ones may be more than a table has use for: that those which are protected stay is what they are
 * protected for. */
static __device__ __forceinline__ bool may_go(const slot_args &args, const slot_memory *shared, int32_t slot,
                                              unsigned long long clock) {
    return slot < args.slot_count && shared->used_at[slot] != clock &&
           (args.offsets || !shared->is_protected[slot]);
}

/* Lists the slots that may be emptied. */
static __device__ void find_victims(const slot_args &args, unsigned long long clock, slot_memory *shared) {
    const int32_t thread = (int32_t)threadIdx.x;
    const bool goes = shared->misses > 0 && may_go(args, shared, thread, clock);
    int32_t rank = 0;
    for (int32_t s = 0; goes && s < args.slot_count; s++) {
        rank += may_go(args, shared, s, clock) && goes_before(shared, s, thread);
    }
    if (goes) {
        shared->victim[rank] = thread;
        atomicAdd(&shared->victims, 1);
    }
    __syncthreads();
}

/* Missing experts to the slots that must go first: those that most rows chose, of equals the lower number. */
static __device__ void replace(const slot_args &args, const sl_slot_arrays &a, unsigned long long clock,
                               slot_memory *shared) {
    const int32_t thread = (int32_t)threadIdx.x;
    const bool is_missing = thread < args.experts && shared->wanted[thread] && shared->slot_of[thread] < 0;
    int32_t rank = 0;
    for (int32_t e = 0; is_missing && e < args.experts; e++) {
        const int32_t rows = shared->wanted[e], own = shared->wanted[thread];
        rank += rows > 0 && shared->slot_of[e] < 0 && (rows > own || (rows == own && e < thread));
    }
    __syncthreads();
    const int32_t slot = is_missing && rank < shared->victims ? shared->victim[rank] : SL_NONE;
    if (slot >= 0 && shared->expert_of[slot] >= 0) {
        shared->slot_of[shared->expert_of[slot]] = SL_NONE;
    }
    if (is_missing) {
        a.expert[rank] = thread;
        a.slot[rank] = slot;
    }
    __syncthreads();
    if (slot >= 0) {
        shared->slot_of[thread] = slot;
        shared->expert_of[slot] = thread;
        shared->is_protected[slot] = 0;
        shared->used_at[slot] = clock;
    }
    __syncthreads();
}

/* Chosen experts that are in slots, in the list behind those that are missing. Returns how many. */
static __device__ int32_t list_hits(const slot_args &args, const sl_slot_arrays &a, slot_memory *shared) {
    const int32_t thread = (int32_t)threadIdx.x;
    const auto is_hit = [shared](int32_t e) { return shared->wanted[e] > 0 && shared->slot_of[e] >= 0; };
    if (thread < args.experts && is_hit(thread)) {
        int32_t place = shared->misses;
        for (int32_t e = 0; e < thread; e++) {
            place += is_hit(e);
        }
        a.expert[place] = thread;
        a.slot[place] = shared->slot_of[thread];
    }
    __syncthreads();
    return shared->hits;
}

/* `count` expert rows, whose slots are in `chosen`. */
static __device__ void write_schedule(const slot_args &args, int32_t count, const slot_memory *shared) {
    const int32_t thread = (int32_t)threadIdx.x, slots = args.slot_count;
    for (int32_t slot = thread; slot <= slots; slot += (int32_t)blockDim.x) {
        int32_t before = 0;
        for (int32_t i = 0; i < count; i++) {
            before += shared->chosen[i] < slot;
        }
        args.offsets[slot] = before;
    }
    if (thread < count) {
        const int32_t mine = shared->chosen[thread];
        int32_t place = 0;
        for (int32_t i = 0; i < count; i++) {
            place += shared->chosen[i] < mine || (shared->chosen[i] == mine && i < thread);
        }
        args.list[place] = thread;
        sl_i32(args.slots, thread / args.used)[thread % args.used] = mine;
    }
}

static __global__ void __launch_bounds__(SLOT_THREADS)
    slot_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ slot_args args) {
    __shared__ slot_memory shared;
    sl_let_next_begin(); /* fetch_kernel, which waits before it reads anything */
    sl_wait_for_inputs();
    const int32_t thread = (int32_t)threadIdx.x, count = context.header->rows * args.used;
    const unsigned long long before = args.table->clock, clock = before + 1;
    const sl_slot_arrays a = sl_slot_arrays_of(args.table, args.experts, args.slot_count);
    if (count == 0) {
        if (args.offsets) {
            write_schedule(args, 0, &shared);
        }
        if (thread == 0) {
            args.table->brought = args.table->copied = 0;
        }
        return;
    }
    int32_t expert = 0; /* the thread's row and rank's */
    if (args.offsets && thread < count) {
        expert = sl_i32(args.ids, thread / args.used)[thread % args.used];
    }
    const unsigned long long chosen = thread < args.experts ? a.chosen[thread] : 0; /* long before its use */
    read_table(args, a, before == 0, &shared);
    touch(args, clock, &shared);
    demote(args, &shared);
    find_victims(args, clock, &shared);
    const int32_t copied = args.offsets ? 0 : list_hits(args, a, &shared);
    replace(args, a, clock, &shared);
    if (args.offsets) {
        if (thread < count) {
            shared.chosen[thread] = shared.slot_of[expert];
        }
        __syncthreads();
        write_schedule(args, count, &shared);
    }
    write_table(args, a, &shared);
    if (thread < args.experts && shared.wanted[thread] > 0) {
        a.chosen[thread] = chosen + (unsigned long long)shared.wanted[thread];
    }
    if (thread == 0) {
        args.table->clock = clock;
        args.table->brought = shared.misses;
        args.table->copied = copied;
        args.counts[0] = args.table->hits += (unsigned long long)shared.hits;
        args.counts[1] = args.table->misses += (unsigned long long)shared.misses;
        args.counts[2] = args.table->promotions += (unsigned long long)shared.promotions;
    }
}

/* ---- the weights of chosen experts ---- */

typedef struct copy_args {
    sl_cuda_fetch_part parts[SL_CUDA_FETCH_PARTS];
    int32_t part_count, experts, slots;
    bool to_buffer;
    sl_slot_table *table;
} copy_args;

/* Where an expert's part comes from and where it goes. */
typedef struct copy_places {
    const unsigned char *from;
    unsigned char *to, *slot; /* the latter besides, or NULL */
} copy_places;

static __device__ __forceinline__ copy_places places_of(const copy_args &args, const sl_cuda_fetch_part &part,
                                                        int32_t expert, int32_t slot, bool is_missing) {
    const uint64_t in_all = (uint64_t)expert * part.expert_bytes;
    unsigned char *in_slots = slot < 0 ? NULL : part.slots + (uint64_t)slot * part.expert_bytes;
    if (!args.to_buffer) {
        return copy_places{part.from + in_all, in_slots, NULL};
    }
    return is_missing ? copy_places{part.from + in_all, part.to + in_all, in_slots}
                      : copy_places{in_slots, part.to + in_all, NULL};
}

/* A block has a piece of one expert's part at a time. */
template <typename WORD>
static __global__ void __launch_bounds__(COPY_THREADS) fetch_kernel(const __grid_constant__ copy_args args) {
    constexpr int64_t PIECE = COPY_THREADS * COPY_WORDS;
    sl_wait_for_inputs();
    const sl_slot_arrays a = sl_slot_arrays_of(args.table, args.experts, args.slots);
    const int32_t brought = args.table->brought, all = brought + args.table->copied;
    int64_t unit = blockIdx.x; /* among those of the part, expert by expert */
    for (int32_t p = 0; p < args.part_count && all > 0; p++) {
        const sl_cuda_fetch_part &part = args.parts[p];
        const int64_t words = (int64_t)(part.expert_bytes / sizeof(WORD));
        const int64_t pieces = (words + PIECE - 1) / PIECE, units = pieces * all;
        for (; unit < units; unit += gridDim.x) {
            const int32_t which = (int32_t)(unit / pieces);
            const int64_t first = unit % pieces * PIECE + threadIdx.x;
            const copy_places places = places_of(args, part, a.expert[which], a.slot[which], which < brought);
            const WORD *from = (const WORD *)(const void *)places.from;
            WORD *to = (WORD *)(void *)places.to, *slot = (WORD *)(void *)places.slot;
            WORD word[COPY_WORDS];
#pragma unroll
            for (int i = 0; i < COPY_WORDS; i++) {
                if (first + i * COPY_THREADS < words) {
                    word[i] = from[first + i * COPY_THREADS];
                }
            }
#pragma unroll
            for (int i = 0; i < COPY_WORDS; i++) {
                if (first + i * COPY_THREADS < words) {
                    to[first + i * COPY_THREADS] = word[i];
                    if (slot) {
                        slot[first + i * COPY_THREADS] = word[i];
                    }
                }
            }
        }
        unit -= units;
    }
}

/* The largest word of which all parts are whole numbers. */
static uint32_t word_of(const sl_cuda_fetch *fetch) {
    uint32_t word = MOST_WORD;
    for (int32_t p = 0; p < fetch->part_count; p++) {
        while (fetch->parts[p].expert_bytes % word != 0) {
            word /= 4;
        }
    }
    return word;
}

static cudaError_t bring_chosen(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const sl_cuda_fetch *fetch = op->fetch;
    slot_args slots = {};
    slots.given = op->in[1].head;
    if (fetch->way == SL_FETCH_TO_SLOTS) {
        slots.ids = op->in[0];
        slots.slots = op->out[0];
        slots.offsets = op->out[1].head;
        slots.list = (int32_t *)(void *)op->out[1].data;
    }
    slots.table = fetch->table;
    slots.counts = fetch->counts;
    slots.experts = fetch->experts;
    slots.slot_count = fetch->slots;
    slots.most_protected = sl_most_protected(fetch->slots);
    slots.used = op->op->u.fetch.used;
    copy_args copies = {};
    for (int32_t p = 0; p < fetch->part_count; p++) {
        copies.parts[p] = fetch->parts[p];
    }
    copies.part_count = fetch->part_count;
    copies.experts = fetch->experts;
    copies.slots = fetch->slots;
    copies.to_buffer = fetch->way == SL_FETCH_TO_BUFFER;
    copies.table = fetch->table;
    /* A thread for each expert and each slot, and no more ranks of rows than slots. */
    const int32_t most = fetch->experts > fetch->slots ? fetch->experts : fetch->slots;
    const sl_launch_shape one = {dim3(1), dim3(((unsigned)most + SL_WARP - 1) / SL_WARP * SL_WARP), 0};
    const sl_launch_shape many = {dim3((unsigned)(COPY_BLOCKS * context->processors)), dim3(COPY_THREADS), 0};
    const uint32_t word = word_of(fetch);
    const cudaError_t code = sl_launch(context, stream, one, slot_kernel, *context, slots);
    return code != cudaSuccess ? code
           : word == 16        ? sl_launch(context, stream, many, fetch_kernel<uint4>, copies)
           : word == 4         ? sl_launch(context, stream, many, fetch_kernel<uint32_t>, copies)
                               : sl_launch(context, stream, many, fetch_kernel<uint8_t>, copies);
}

static SL_CUDA_RUN(run) {
    return op->fetch->way == SL_FETCH_ALL ? bring_all(context, op, stream)
                                          : bring_chosen(context, op, stream);
}

static const char *declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    return query->program->experts > SLOT_THREADS ? "takes up to 1024 experts" : NULL;
}

static const sl_cuda_kernel KERNELS[] = {
    SL_CUDA_KERNEL(FETCH, "fetch/cuda", "exact", 0, declines, run),
};

SL_CUDA_FAMILY(fetch) = {SL_CUDA_ROWS(KERNELS), SL_CUDA_NO_ROWS, NULL};
