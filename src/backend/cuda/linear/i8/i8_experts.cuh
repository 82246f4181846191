/* The choice of one row's experts and all their products, gate and up with their activation, down and the
 * experts' sum, in two launches. Class "q8_32/256" of plain_linear.cu, and the bits of the ops' own kernels.
 *
 * Gate and up are cut into granules: as many outputs as a warp's lanes have chunks for, of gate and of up.
 * Granules of all experts are shared equally by the blocks, so activations cannot be quantised there, 32 at a
 * time: the second launch does it, in every block. A block of that has some outputs, of all experts. Its
 * weights are on their way while the first launch is at work, see down_kernel. Every block of both chooses
 * the experts by itself: that takes less time than to wait for another's choice. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_EXPERTS_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_EXPERTS_CUH

#include "backend/cuda/linear/i8/i8.h"
#include "backend/cuda/linear/i8/i8_row1.cuh"
#include "backend/cuda/router/router.cuh"
#include "backend/cuda/types/integer_types.h"

enum {
    GATED_WARPS = 12,
    GATED_THREADS = GATED_WARPS * SL_WARP,
    DOWN_THREADS = 384,
    EXPERTS_MOST_COLUMNS = 16384 /* of all experts of a row, whose x is in shared memory */
};

/* EACH below: experts of a lane. */
enum { CHOICE_FEW = 4, CHOICE_MANY = 8, CHOICE_EXPERTS = CHOICE_MANY * SL_WARP, CHOICE_USED = SL_WARP };

/* ROUTER's. */
typedef struct choice_args {
    sl_op_router router;
    sl_cuda_operand logits;
    const float *bias; /* or NULL */
} choice_args;

/* Sum of a row's chunks in their order; eight loads at a time are under way. */
template <typename LOAD> static __device__ __forceinline__ float sum_chunks(int32_t count, LOAD load) {
    float sum = 0;
    for (int32_t first = 0; first < count; first += 8) {
        float chunks[8];
#pragma unroll
        for (int32_t c = 0; c < 8; c++) {
            chunks[c] = load(min(first + c, count - 1));
        }
#pragma unroll
        for (int32_t c = 0; c < 8; c++) {
            sum = first + c < count ? sum + chunks[c] : sum;
        }
    }
    return sum;
}

/* ---- gate and up ---- */

typedef struct gated_args {
    choice_args choice;
    sl_cuda_weight weights[2]; /* gate, up */
    sl_cuda_operand x, active;
    const sl_step_header *header;
    sl_gating gating;
    int32_t chunks, unit, granules; /* of a row; outputs of a granule; granules of an expert */
} gated_args;

/* A granule's place. */
typedef struct gated_place {
    int32_t rank, row, chunks; /* of the expert; the first of its weight rows; of them all */
} gated_place;

static __device__ __forceinline__ gated_place gated_find(const gated_args &args, int32_t granule) {
    gated_place place;
    place.rank = granule / args.granules;
    place.row = (granule - place.rank * args.granules) * args.unit;
    place.chunks = min(args.weights[0].rows - place.row, args.unit) * args.chunks;
    return place;
}

/* The first granule of a block. */
static __device__ __forceinline__ int32_t gated_first(const gated_args &args, uint32_t block) {
    const int32_t granules = args.header->rows > 0 ? args.choice.router.used * args.granules : 0;
    return (int32_t)((int64_t)granules * block / gridDim.x);
}

/* Gate's rows (0) or up's (1). */
template <int TYPE>
static __device__ __forceinline__ row1_item gated_item(const gated_args &args, const gated_place &place,
                                                       int32_t which, int32_t expert) {
    const sl_cuda_weight &weight = args.weights[which];
    row1_item item = {};
    item.from = weight.data + (uint64_t)expert * weight.expert_bytes + (uint64_t)place.row * weight.row_bytes;
    item.lead = sl_chunk_shape<TYPE>::BYTES % 16 ? (int32_t)((uint64_t)item.from & 15u) : 0;
    item.chunks = place.chunks;
    return item;
}

/* A group of x on its way to the records. */
typedef struct x_group {
    uint4 low, high;
    float scale;
    int32_t sum;
} x_group;

static __device__ __forceinline__ x_group load_x_group(const sl_q8_32 &x, int32_t i) {
    return {((const uint4 *)(const void *)x.values)[2 * i],
            ((const uint4 *)(const void *)x.values)[2 * i + 1], x.scales[i], x.sums[i]};
}

/* Its values in the order that the type's chunks are in. */
template <int TYPE> static __device__ __forceinline__ void order_x_group(uint4 &low, uint4 &high) {
    typedef sl_chunk_shape<TYPE> shape;
    if (shape::INTERLEAVED) {
        const uint4 first = make_uint4(low.x, low.y, high.x, high.y);
        const uint4 second = make_uint4(low.z, low.w, high.z, high.w);
        low = sl_interleave_half(first);
        high = sl_interleave_half(second);
    } else if (shape::HALVES_INTERLEAVED) {
        low = sl_interleave_half(low);
        high = sl_interleave_half(high);
    }
}

/* records: of the row. */
template <int TYPE>
static __device__ __forceinline__ void store_x_group(x_group x, int32_t i, unsigned char *records) {
    typedef sl_chunk_shape<TYPE> shape;
    unsigned char *record = records + i / SL_CHUNK_GROUPS * shape::RECORD;
    const int32_t g = i % SL_CHUNK_GROUPS;
    uint32_t extra[2];
    sl_x_extra<TYPE>(x.low, x.scale, x.sum, extra);
    order_x_group<TYPE>(x.low, x.high);
    ((uint4 *)(void *)record)[2 * g] = x.low;
    ((uint4 *)(void *)record)[2 * g + 1] = x.high;
    float *scales = (float *)(void *)(record + SL_CHUNK);
    uint32_t *extras = (uint32_t *)(void *)(scales + SL_CHUNK_GROUPS);
    scales[g] = x.scale;
    if (shape::X == SL_X_HALVES) {
        extras[2 * g] = extra[0];
        extras[2 * g + 1] = extra[1];
    } else if (shape::X != SL_X_NOTHING) {
        extras[g] = extra[0];
    }
}

/* All groups; first: the thread's first. */
template <int TYPE>
static __device__ __forceinline__ void stage_x_groups(const sl_q8_32 &x, const x_group &first, int32_t groups,
                                                      unsigned char *records) {
    for (int32_t i = (int32_t)threadIdx.x; i < groups; i += GATED_THREADS) {
        store_x_group<TYPE>(i < GATED_THREADS ? first : load_x_group(x, i), i, records);
    }
}

/* By a warp. sums: a lane's chunk of gate and of up. */
template <int TYPE>
static __device__ __forceinline__ void gated_finish(const gated_args &args, const gated_place &place,
                                                    int32_t expert, const float (&sums)[2]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, lane_row = lane / args.chunks;
    const int32_t first = lane_row * args.chunks, output = place.row + lane_row;
    float gate =
        sum_chunks(args.chunks, [&](int32_t c) { return __shfl_sync(SL_FULL_WARP, sums[0], first + c); });
    float up =
        sum_chunks(args.chunks, [&](int32_t c) { return __shfl_sync(SL_FULL_WARP, sums[1], first + c); });
    if (lane < place.chunks && lane == first) {
        gate = sl_matvec_biased(args.weights[0], expert, output, gate);
        up = sl_matvec_biased(args.weights[1], expert, output, up);
        sl_f32(args.active, place.rank)[output] = sl_gate<SL_CUDA_TAKES_OAI(TYPE)>(args.gating, gate, up);
    }
}

/* Registers are left for a block of down_kernel, but where chunks of weights are so large that they would
 * spill. */
template <int TYPE> struct gated_blocks {
    enum { COUNT = TYPE == SL_QTYPE_Q8_0 || TYPE == SL_QTYPE_Q4_1 ? 1 : 2 };
};

template <int TYPE, int EACH>
static __global__ void __launch_bounds__(GATED_THREADS, gated_blocks<TYPE>::COUNT)
    gated_kernel(const __grid_constant__ gated_args args) {
    typedef warp_ring<TYPE, 2> ring_type;
    enum { BYTES = ring_type::BYTES, RING = GATED_WARPS * 2 * ring_type::SLOT };
    enum { RECORD = sl_chunk_shape<TYPE>::RECORD, BARRIERS = GATED_WARPS * 2 * 8 };
    extern __shared__ __align__(128) unsigned char shared[];
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, lane = (int32_t)threadIdx.x % SL_WARP;
    const int32_t end = gated_first(args, blockIdx.x + 1);
    const int32_t groups = args.chunks * SL_CHUNK_GROUPS;
    unsigned char *tables = shared + RING + BARRIERS, *records = tables + sl_tables<TYPE>::BYTES;
    int32_t granule = gated_first(args, blockIdx.x) + warp;
    gated_place place = gated_find(args, granule);
    const unsigned char *record = records + lane % args.chunks * RECORD;
    ring_type ring;
    ring.init(shared + warp * 2 * ring_type::SLOT, shared + RING + warp * 2 * 8);
    const sl_q8_32 x_planes = sl_q8_32_of(args.x, 0);
    x_group group = {};
    sl_ranks<EACH> ranks;
    uint32_t expert = 0;
    int32_t found = 0; /* ranks */
    const auto find = [&](int32_t rank) {
#pragma unroll 1
        for (; found <= rank; found++) {
            expert = ranks.next();
        }
    };
    sl_tables<TYPE>::fill(tables);
    /* First on any numbers, while there is nothing else to do: so the instructions are near. */
#pragma unroll 1
    for (int32_t pass = 0; pass < 2; pass++) {
        const float *logits = (const float *)(const void *)args.weights[0].data;
        if (pass > 0) {
            sl_wait_for_inputs();
            sl_let_next_begin(); /* not earlier: see down_kernel */
            if ((int32_t)threadIdx.x < groups) {
                group = load_x_group(x_planes, (int32_t)threadIdx.x);
            }
            logits = sl_f32(args.choice.logits, 0);
        }
        ranks.init(args.choice.router, args.choice.bias, logits);
        found = 0;
        find(place.rank);
    }
    const auto copy = [&](const gated_place &at, int32_t which) {
        ring.copy(true, gated_item<TYPE>(args, at, which, (int32_t)expert), which);
    };
    if (granule < end) {
        copy(place, 0);
        copy(place, 1);
    }
    stage_x_groups<TYPE>(x_planes, group, groups, records);
    __syncthreads();
    for (; granule < end; granule += GATED_WARPS) {
        const gated_place next = gated_find(args, granule + GATED_WARPS);
        const int32_t mine = (int32_t)expert;
        const bool more = granule + GATED_WARPS < end;
        float sums[2] = {};
        if (more) {
            find(next.rank);
        }
#pragma unroll
        for (int32_t which = 0; which < 2; which++) {
            const unsigned char *chunks = ring.wait(gated_item<TYPE>(args, place, which, mine));
            if (lane < place.chunks) {
                sl_x_chunk<TYPE> x;
                x.load(record);
                sums[which] = sl_multiply_chunk<TYPE>(chunks + lane * BYTES, x, tables);
            }
            if (more) {
                sl_fence_shared();
                __syncwarp();
                copy(next, which);
            }
            ring.advance();
        }
        gated_finish<TYPE>(args, place, mine, sums);
        place = next;
    }
}

/* ---- down, and the experts' sum ---- */

typedef struct down_args {
    choice_args choice;
    sl_cuda_weight weight;
    sl_cuda_operand active;
    sl_combine_args combine;
    const sl_step_header *header;
    int32_t chunks, outputs; /* of a row; of a block */
    int32_t width;           /* of an expert's activations: zeros follow up to whole chunks */
    int32_t slot;            /* bytes that an expert's rows take in shared memory */
} down_args;

/* The experts by rank. */
typedef struct down_choice {
    int32_t expert[CHOICE_USED];
    float weight[CHOICE_USED];
} down_choice;

/* Eight neighbours' values as the type's chunks have them: a lane's eight, where it does not exchange four
 * with the lane that has those interleaved with them. to: bytes from the group's first. */
template <int TYPE> static __device__ __forceinline__ uint2 order_eight(uint2 values, int32_t *to) {
    typedef sl_chunk_shape<TYPE> shape;
    enum { APART = shape::INTERLEAVED ? 2 : 1 }; /* lanes */
    if (!shape::INTERLEAVED && !shape::HALVES_INTERLEAVED) {
        return values;
    }
    const int32_t quarter = (int32_t)threadIdx.x % 4;
    const bool later = quarter & APART;
    const uint32_t other = __shfl_xor_sync(SL_FULL_WARP, later ? values.x : values.y, APART);
    uint32_t words[2];
    sl_interleave(later ? other : values.x, later ? values.y : other, words);
    *to = shape::INTERLEAVED ? 16 * (quarter % 2) + 8 * (quarter / 2) : *to;
    return make_uint2(words[0], words[1]);
}

/* Eight elements of a row, of which four neighbouring lanes have a group of 32, to the row's records: the
 * bits of sl_quantize_group, and what sl_stage_x makes of them. */
template <int TYPE>
static __device__ __forceinline__ void stage_eight(float4 a, float4 b, int32_t i, unsigned char *records,
                                                   bool active) {
    typedef sl_chunk_shape<TYPE> shape;
    float largest = sl_larger(sl_larger(sl_larger(a.x, a.y), sl_larger(a.z, a.w)),
                              sl_larger(sl_larger(b.x, b.y), sl_larger(b.z, b.w)));
    largest = sl_larger(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 1));
    largest = sl_larger(largest, __shfl_xor_sync(SL_FULL_WARP, largest, 2));
    const bool usable = largest >= SL_Q8_32_ZERO_BELOW && largest <= 3.40282347e+38f;
    const float inverse = 127.0f / largest;
    const auto whole = [inverse](float v) { return sl_f32_bits(v * inverse + 12582912.0f); };
    uint2 packed;
    packed.x = __byte_perm(__byte_perm(whole(a.x), whole(a.y), 0x0040),
                           __byte_perm(whole(a.z), whole(a.w), 0x0040), 0x5410);
    packed.y = __byte_perm(__byte_perm(whole(b.x), whole(b.y), 0x0040),
                           __byte_perm(whole(b.z), whole(b.w), 0x0040), 0x5410);
    packed = usable ? packed : make_uint2(0, 0);
    int32_t half = __dp4a((int32_t)packed.x, 0x01010101, __dp4a((int32_t)packed.y, 0x01010101, 0));
    half += __shfl_xor_sync(SL_FULL_WARP, half, 1);
    const int32_t sum = half + __shfl_xor_sync(SL_FULL_WARP, half, 2);
    int32_t to = i % SL_Q8_32_GROUP;
    packed = order_eight<TYPE>(packed, &to);
    if (!active) {
        return;
    }
    unsigned char *record = records + i / SL_CHUNK * shape::RECORD;
    *(uint2 *)(void *)(record + i % SL_CHUNK / SL_Q8_32_GROUP * SL_Q8_32_GROUP + to) = packed;
    if (i % SL_Q8_32_GROUP == 0) {
        const float scale = usable                          ? largest / 127.0f
                            : largest < SL_Q8_32_ZERO_BELOW ? 0.0f
                                                            : sl_f32_from_bits(0x7fc00000u);
        const int32_t g = i % SL_CHUNK / SL_Q8_32_GROUP;
        float *scales = (float *)(void *)(record + SL_CHUNK);
        uint32_t *extras = (uint32_t *)(void *)(scales + SL_CHUNK_GROUPS);
        scales[g] = scale;
        if (shape::X == SL_X_MIN) {
            extras[g] = __float_as_uint(scale * (float)sum);
        } else if (shape::X == SL_X_START) {
            extras[g] = (uint32_t)(SL_FLOAT_OF_INT_BITS + shape::FACTOR * sum);
        } else if (shape::X == SL_X_HALVES) {
            extras[2 * g] = (uint32_t)(shape::FACTOR * half);
            extras[2 * g + 1] = (uint32_t)(shape::FACTOR * (sum - half));
        } else if (shape::X == SL_X_PACKED) {
            extras[g] = __byte_perm((uint32_t)(shape::FACTOR * half),
                                    (uint32_t)(shape::FACTOR * (sum - half)), 0x5410);
        }
    }
}

/* The row's activations of all experts as records. */
template <int TYPE>
static __device__ __forceinline__ void stage_active(const down_args &args, unsigned char *records) {
    enum { EIGHT = 8, AT_ONCE = 2 };
    const int32_t columns = args.chunks * SL_CHUNK, used = args.combine.combine.used;
    const int32_t eights = columns / EIGHT;
    for (int32_t base = 0; base < used * eights; base += AT_ONCE * (int32_t)blockDim.x) {
        float4 a[AT_ONCE], b[AT_ONCE];
        int32_t rank[AT_ONCE], at[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int32_t i = base + k * (int32_t)blockDim.x + (int32_t)threadIdx.x;
            rank[k] = i / eights;
            at[k] = EIGHT * (i - rank[k] * eights);
            a[k] = b[k] = make_float4(0, 0, 0, 0);
            if (rank[k] < used && at[k] < args.width) {
                const float *from = sl_f32(args.active, rank[k]) + at[k];
                a[k] = ((const float4 *)(const void *)from)[0];
                b[k] = ((const float4 *)(const void *)from)[1];
            }
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            if (base + k * (int32_t)blockDim.x < used * eights) {
                stage_eight<TYPE>(a[k], b[k], at[k],
                                  records + rank[k] * args.chunks * sl_chunk_shape<TYPE>::RECORD,
                                  rank[k] < used);
            }
        }
    }
}

/* An output of the experts' sum, as sl_combine_quad. parts: the experts' outputs, `apart` one after the
 * other. */
static __device__ __forceinline__ void down_combine(const down_args &args, int32_t output, const float *parts,
                                                    int32_t apart, const down_choice &choice) {
    const sl_combine_args &combine = args.combine;
    float sum = 0;
    for (int32_t first = 0; first < combine.combine.used; first += 8) {
        float part[8], weight[8];
#pragma unroll
        for (int32_t i = 0; i < 8; i++) {
            const int32_t rank = min(first + i, combine.combine.used - 1);
            part[i] = parts[rank * apart];
            weight[i] = choice.weight[rank];
        }
#pragma unroll
        for (int32_t i = 0; i < 8; i++) {
            sum = first + i < combine.combine.used ? sum + weight[i] * part[i] : sum;
        }
    }
    if (combine.shared.data) {
        const float weight = combine.shared_gate.data ? sl_sigmoid(*sl_f32(combine.shared_gate, 0)) : 1.0f;
        sum = sum + sl_f32(combine.shared, 0)[output] * weight;
    }
    if (combine.residual.data) {
        sum = sum + sl_f32(combine.residual, 0)[output];
    }
    sl_f32(combine.y, 0)[output] = sum;
}

/* Chooses the experts, and asks for their weights, before it waits for its inputs: it is launched behind
 * gated_kernel, which lets it begin only when the kernels in front of that have ended, and it is they who
 * wrote the logits. Those must be read past the first cache, which may still have an earlier layer's. */
template <int TYPE, int EACH>
static __global__ void __launch_bounds__(DOWN_THREADS, 2)
    down_kernel(const __grid_constant__ down_args args) {
    enum { BYTES = sl_chunk_shape<TYPE>::BYTES, RECORD = sl_chunk_shape<TYPE>::RECORD };
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ down_choice choice;
    const int32_t used = args.combine.combine.used;
    const int32_t first = (int32_t)blockIdx.x * args.outputs;
    const int32_t outputs = min(args.outputs, args.weight.rows - first), each = outputs * args.chunks;
    unsigned char *const weights = shared + sl_tables<TYPE>::BYTES, *records = weights + used * args.slot;
    float *sums = (float *)(void *)(records + used * args.chunks * RECORD), *parts = sums + used * each;
    const bool valid = args.header->rows > 0;
    const auto place_of = [&](int32_t rank) {
        return args.weight.data + (uint64_t)choice.expert[rank] * args.weight.expert_bytes +
               (uint64_t)first * args.weight.row_bytes;
    };
#if __CUDA_ARCH__ >= 900
    __shared__ __align__(8) unsigned char barrier_memory[8];
    const uint32_t barrier = sl_shared_address(barrier_memory);
    if (valid && threadIdx.x < SL_WARP) {
        const int32_t rank = (int32_t)threadIdx.x;
        const sl_chosen mine =
            sl_choose<EACH>(args.choice.router, args.choice.bias, sl_f32(args.choice.logits, 0));
        choice.expert[rank] = (int32_t)mine.expert;
        choice.weight[rank] = mine.weight;
        if (rank == 0) {
            sl_barrier_init(barrier, (uint32_t)used);
            sl_fence_shared();
        }
        __syncwarp();
        if (rank < used) {
            const unsigned char *from = place_of(rank);
            const uint32_t lead = BYTES % 16 ? (uint32_t)((uint64_t)from & 15u) : 0;
            const uint32_t bytes = (lead + (uint32_t)(each * BYTES) + 15) / 16 * 16;
            sl_barrier_expect(barrier, bytes);
            sl_bulk_copy(sl_shared_address(weights + rank * args.slot), from - lead, bytes, barrier);
        }
    }
#endif
    sl_tables<TYPE>::fill(shared);
    sl_wait_for_inputs();
    sl_let_next_begin();
    if (!valid) {
        return;
    }
    stage_active<TYPE>(args, records);
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    sl_barrier_wait(barrier, 0);
#endif
    for (int32_t i = (int32_t)threadIdx.x; i < used * each; i += DOWN_THREADS) {
        const int32_t rank = i / each, at = i - rank * each, chunk = at % args.chunks;
        const uint32_t lead = BYTES % 16 ? (uint32_t)((uint64_t)place_of(rank) & 15u) : 0;
        sl_x_chunk<TYPE> x;
        x.load(records + (rank * args.chunks + chunk) * RECORD);
        sums[i] = sl_multiply_chunk<TYPE>(weights + rank * args.slot + lead + at * BYTES, x, shared);
    }
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < used * outputs; i += DOWN_THREADS) {
        const float part = sum_chunks(args.chunks, [&](int32_t c) { return sums[i * args.chunks + c]; });
        const int32_t rank = i / outputs;
        parts[i] = sl_matvec_biased(args.weight, choice.expert[rank], first + i - rank * outputs, part);
    }
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < outputs; i += DOWN_THREADS) {
        down_combine(args, first + i, parts + i, outputs, choice);
    }
}

/* ---- launches ---- */

/* Of shared memory: more than half of a processor's. Else blocks that find no room beside the kernel before
 * land as second blocks on other processors, and the launch takes up to twice as long. */
template <int TYPE> static int32_t gated_bytes(int32_t chunks) {
    enum { ABOVE_HALF = 116 * 1024 };
    const int32_t bytes = GATED_WARPS * 2 * (warp_ring<TYPE, 2>::SLOT + 8) + sl_tables<TYPE>::BYTES +
                          chunks * sl_chunk_shape<TYPE>::RECORD;
    return bytes > ABOVE_HALF ? bytes : ABOVE_HALF;
}

static choice_args choice_args_of(const sl_cuda_op *op) {
    return {op->op->u.router, op->in[0], (const float *)(const void *)op->weights[0].data};
}

/* op: of the run, from ROUTER on. */
template <int TYPE>
static cudaError_t gated_launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const sl_cuda_op *linear = op + 1, *activate = op + 2;
    gated_args args = {};
    args.choice = choice_args_of(op);
    args.weights[0] = linear->weights[0];
    args.weights[1] = linear->weights[1];
    args.x = linear->in[0];
    args.active = activate->out[0];
    args.header = context->header;
    args.gating = sl_gating_of(activate->op);
    args.chunks = linear->weights[0].columns / SL_CHUNK;
    args.unit = SL_WARP / args.chunks;
    args.granules = (linear->weights[0].rows + args.unit - 1) / args.unit;
    sl_launch_shape shape = {dim3((unsigned)context->processors), dim3(GATED_THREADS), 0};
    shape.shared_bytes = (uint32_t)gated_bytes<TYPE>(args.chunks);
    return args.choice.router.experts <= CHOICE_FEW * SL_WARP
               ? sl_launch(context, stream, shape, gated_kernel<TYPE, CHOICE_FEW>, args)
               : sl_launch(context, stream, shape, gated_kernel<TYPE, CHOICE_MANY>, args);
}

template <int TYPE>
static cudaError_t down_launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const sl_cuda_op *activate = op + 2, *linear = op + 4, *combine = op + 5;
    down_args args = {};
    args.choice = choice_args_of(op);
    args.weight = linear->weights[0];
    args.active = activate->out[0];
    args.width = activate->op->u.activate.width;
    args.combine = sl_combine_args_of(combine);
    args.header = context->header;
    args.chunks = args.weight.columns / SL_CHUNK;
    enum { BYTES = sl_chunk_shape<TYPE>::BYTES, MOST_BYTES = (sl_tables<TYPE>::BYTES > 0 ? 96 : 76) * 1024 };
    const int32_t used = args.combine.combine.used;
    sl_launch_shape shape = {};
    for (int32_t waves = 1; waves == 1 || (shape.shared_bytes > MOST_BYTES && args.outputs > 1); waves++) {
        args.outputs = (args.weight.rows + waves * context->processors - 1) / (waves * context->processors);
        args.slot = (args.outputs * args.chunks * BYTES + 15) / 16 * 16 + (BYTES % 16 ? 16 : 0);
        shape.shared_bytes = (uint32_t)(sl_tables<TYPE>::BYTES +
                                        used * (args.slot + args.chunks * sl_chunk_shape<TYPE>::RECORD +
                                                args.outputs * (args.chunks + 1) * (int32_t)sizeof(float)));
    }
    shape.grid = dim3((unsigned)((args.weight.rows + args.outputs - 1) / args.outputs));
    shape.block = dim3(DOWN_THREADS);
    return args.choice.router.experts <= CHOICE_FEW * SL_WARP
               ? sl_launch(context, stream, shape, down_kernel<TYPE, CHOICE_FEW>, args)
               : sl_launch(context, stream, shape, down_kernel<TYPE, CHOICE_MANY>, args);
}

/* ---- rows of the table ---- */

enum { GATED_MOST_BYTES = 220 * 1024, DOWN_MOST_BYTES = 100 * 1024 };

template <int TYPE, int EACH> static cudaError_t prepare_each(int most_bytes) {
    const cudaError_t code = sl_allow_shared(gated_kernel<TYPE, EACH>,
                                             most_bytes < GATED_MOST_BYTES ? most_bytes : GATED_MOST_BYTES);
    return code ? code
                : sl_allow_shared(down_kernel<TYPE, EACH>,
                                  most_bytes < DOWN_MOST_BYTES ? most_bytes : DOWN_MOST_BYTES);
}

template <int TYPE> static cudaError_t experts_prepare(int most_bytes) {
    const cudaError_t code = prepare_each<TYPE, CHOICE_FEW>(most_bytes);
    return code ? code : prepare_each<TYPE, CHOICE_MANY>(most_bytes);
}

/* An EACH of integer_types.h. */
#define I8_EXPERTS(ID, name)                                                                                 \
    { SL_QTYPE_##ID, gated_launch<SL_QTYPE_##ID>, down_launch<SL_QTYPE_##ID>, experts_prepare<SL_QTYPE_##ID> }

#endif
