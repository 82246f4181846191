/* Launches of products of few rows (bf16_rows128.cuh): how they are cut, their maps, and one set of
 * functions for each type of weights. */
#ifndef SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_LAUNCH_CUH
#define SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_LAUNCH_CUH

#include "backend/cuda/linear/bf16/bf16_rows128.cuh"
#include "backend/cuda/linear/linear.h"

/* How an op is cut. Ranges and subs must not depend on rows: they are part of the numeric class. */
typedef struct skinny_cut {
    int32_t parts, splits, subs;
} skinny_cut;

/* So many ranges are a product's, of `parts` parts, at most: what scratch there is for its sums. */
static inline int32_t skinny_most_splits(int32_t parts) {
    const int32_t most = parts > 0 ? (int32_t)SKINNY_PIECES / parts : 1;
    return most < 1 ? 1 : most > SKINNY_SPLITS ? (int32_t)SKINNY_SPLITS : most;
}

/* The time of 256 columns in a block, in twentieths of a microsecond, as a H200 takes at 64 rows. Two groups
 * take turns where there is one part and one tile, but for types of many bytes. */
template <int TYPE> static int32_t skinny_chunk_time(int32_t parts, int32_t subs) {
    return skinny_kind<TYPE>::IS_BYTES ? 17 + 10 * parts
           : parts == 3                ? 29
           : parts == 2                ? 20
           : subs > 1                  ? 12
                                       : 18;
}

/* The least time of a block where the ranges of a tile meet in a cluster, which adds 7 for every part and
 * range. Clusters of more than two blocks cannot have all processors: those of 4 and 8 leave 12 of 132.
 * wanted: ranges, or 0. */
template <int TYPE>
static skinny_cut skinny_choose(int32_t all_parts, int32_t ranges, int32_t processors, int32_t wanted) {
    enum { TURNS = skinny_kind<TYPE>::IS_BYTES ? 1 : (int)SKINNY_SUBS };
    skinny_cut best = {1, 1, 1};
    int64_t least = INT64_MAX;
    for (int32_t splits = 1; splits <= SKINNY_SPLITS && splits <= ranges; splits *= 2) {
        for (int32_t parts = 1; parts <= 3; parts++) {
            const int32_t tiles = (all_parts + parts - 1) / parts;
            const int32_t room = splits > 2 ? processors - processors / 11 : processors;
            const int64_t rounds = (tiles * splits + room - 1) / room;
            /* A range's halves alternate, so the first has one chunk more at most. */
            const bool halves = !wanted || (int)skinny_layout<TYPE>::columns == (int)SKINNY_RANGE ||
                                ranges % (2 * splits) == 0;
            const int32_t subs = rounds == 1 && parts == 1 && splits != wanted && halves ? TURNS : 1;
            if (wanted ? splits * subs != wanted : splits > 1 && tiles > room / splits) {
                continue;
            }
            const int64_t range = (ranges + splits - 1) / splits;
            const int64_t add = splits > 1 ? 7 * parts * splits : 0;
            const int64_t time = rounds * range * skinny_chunk_time<TYPE>(parts, subs) + add;
            if (time < least) {
                least = time;
                best.parts = parts;
                best.splits = splits;
                best.subs = subs;
            }
        }
    }
    return best;
}

/* The same where every range's sums are stored apart, and added by what reads them: 5 for each further one.
 */
template <int TYPE>
static skinny_cut skinny_choose_apart(int32_t all_parts, int32_t ranges, int32_t processors, int32_t wanted) {
    skinny_cut best = {1, 1, 1};
    int64_t least = INT64_MAX;
    for (int32_t splits = 1; splits <= skinny_most_splits(all_parts) && splits <= ranges; splits++) {
        for (int32_t parts = 1; parts <= 3 && (!wanted || splits == wanted); parts++) {
            const int32_t tiles = (all_parts + parts - 1) / parts;
            const int64_t rounds = (tiles * splits + processors - 1) / processors;
            if (!wanted && splits > 1 && rounds > 1) {
                continue;
            }
            const int64_t range = (ranges + splits - 1) / splits;
            const int64_t time = rounds * range * skinny_chunk_time<TYPE>(parts, 1) + 5 * (splits - 1);
            if (time < least) {
                least = time;
                best.parts = parts;
                best.splits = splits;
            }
        }
    }
    return best;
}

/* Parts of a tile of experts: the fewest rounds, as above, of the tiles there will be when each row takes its
 * experts by chance. No bit depends on it. */
static int32_t skinny_choose_parts(const sl_cuda_context *context, int32_t all_parts, int32_t experts,
                                   int32_t rows) {
    double unchosen = 1.0;
    for (int32_t row = 0; row < rows / context->experts_used; row++) {
        unchosen *= 1.0 - (double)context->experts_used / experts;
    }
    const int32_t chosen = (int32_t)(experts * (1.0 - unchosen)) + 1;
    int32_t best = 1, least = INT32_MAX;
    for (int32_t parts = 1; parts <= 4; parts++) {
        const int32_t tiles = chosen * ((all_parts + parts - 1) / parts);
        const int32_t rounds = (tiles + context->processors - 1) / context->processors;
        const int32_t time = rounds * (5 + 6 * parts);
        if (time < least) {
            least = time;
            best = parts;
        }
    }
    return best;
}

template <int TYPE, int ROWS> static cudaError_t skinny_prepare_rows() {
    return cudaFuncSetAttribute(skinny_kernel<TYPE, ROWS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                SKINNY_BYTES);
}

template <int TYPE> static cudaError_t skinny_prepare_type() {
    cudaError_t code = skinny_prepare_rows<TYPE, 8>();
    code = code ? code : skinny_prepare_rows<TYPE, 16>();
    code = code ? code : skinny_prepare_rows<TYPE, 32>();
    code = code ? code : skinny_prepare_rows<TYPE, 64>();
    code = code ? code : skinny_prepare_rows<TYPE, 96>();
    return code ? code : skinny_prepare_rows<TYPE, 128>();
}

/* Maps of x, rows of 64 columns swizzled, and of the weights, 32 rows of a chunk as they lie in memory. */
template <int TYPE, int ROWS> static cudaError_t skinny_make_maps(const sl_cuda_op *op, skinny_args *args) {
    const uint64_t rows = (uint64_t)(op->rows[args->x.rows] - args->first_row);
    const sl_cuda_tensor x = {args->x.data + 2 * (uint64_t)args->x.column,
                              2,
                              {(uint64_t)args->weights[0].columns, rows, 1},
                              {args->x.row_bytes, args->x.row_bytes * rows},
                              {SKINNY_STEP, ROWS},
                              true};
    cudaError_t code = args->list ? cudaSuccess : sl_cuda_tensor_map(&x, &args->x_map);
    if (skinny_kind<TYPE>::IS_APART) {
        return code ? code : skinny_code_maps(args->weights, args->maps);
    }
    return code ? code
                : skinny_weight_maps(args->weights, skinny_layout<TYPE>::stride / 2, SKINNY_BOX, args->maps);
}

/* The rest of args, and the launch. row_tiles: most that there can be. */
template <int TYPE, int ROWS>
static cudaError_t skinny_launch_rows(const sl_cuda_context *context, const sl_cuda_op *op, skinny_args *args,
                                      int32_t row_tiles, cudaStream_t stream) {
    typedef skinny_memory<TYPE, ROWS> memory;
    const int32_t all = args->first_part[SL_LINEAR_SEGMENTS];
    if (args->parts > skinny_shape<ROWS>::parts) {
        args->parts = skinny_shape<ROWS>::parts;
    }
    const int32_t least = SKINNY_PART * skinny_layout<TYPE>::stride;
    /* Groups that take turns need more of x at once. Two chunks of weights would be too few. */
    args->stages = args->subs > 1 || ROWS <= 16 ? (int32_t)skinny_shape<ROWS>::stages : SKINNY_STAGES;
    int32_t room = SKINNY_BYTES - 1024 - memory::x - args->stages * skinny_shape<ROWS>::stage_bytes;
    if (args->subs == 1 && args->stages == SKINNY_STAGES && room / (args->parts * least) == 2) {
        args->stages--;
        room += skinny_shape<ROWS>::stage_bytes;
    }
    while (args->parts > 1 && args->parts * least > room / 2) {
        args->parts--; /* a tile is lower, which changes no bit */
    }
    const int32_t chunk = args->parts * least, fit = room / chunk;
    args->chunks = fit < SKINNY_CHUNKS ? fit : (int32_t)SKINNY_CHUNKS;
    const bool eager = skinny_kind<TYPE>::IS_BYTES || ROWS <= 32;
    int32_t early = eager ? SKINNY_EARLY_BYTES / chunk : (int32_t)SKINNY_FIRST;
    early = early < SKINNY_FIRST ? (int32_t)SKINNY_FIRST : early;
    args->early = args->list ? 0 : early < args->chunks ? early : args->chunks;
    const int64_t tiles = (int64_t)((all + args->parts - 1) / args->parts) * row_tiles;
    sl_launch_shape shape = {};
    shape.grid = dim3((unsigned)(args->splits > 1              ? tiles * args->splits
                                 : tiles < context->processors ? tiles
                                                               : context->processors));
    shape.block = dim3((unsigned)((args->parts * args->subs + 1) * SKINNY_GROUP));
    shape.shared_bytes =
        (uint32_t)(1024 + memory::x + args->stages * skinny_shape<ROWS>::stage_bytes + args->chunks * chunk);
    shape.cluster = skinny_meets(*args) ? (uint32_t)args->splits : 1;
    const cudaError_t code = skinny_make_maps<TYPE, ROWS>(op, args);
    return code ? code : sl_launch(context, stream, shape, skinny_kernel<TYPE, ROWS>, *context, *args);
}

/* Whether the outputs are gates and as many values: those that go with an activation meet in clusters. */
static inline bool skinny_is_gated(const sl_cuda_op *op) {
    return op->weight_count == 2 && op->weights[0].rows == op->weights[1].rows;
}

/* apart: blocks do not meet. Ranges and subs are the same, as they are the numeric class's. */
template <int TYPE>
static void skinny_make_args(const sl_cuda_context *context, const sl_cuda_op *op, bool apart,
                             skinny_args *args) {
    const skinny_args none = {};
    *args = none;
    sl_linear_fill(context, op, args);
    sl_linear_fill_schedule(op, args);
    const int32_t parts = sl_linear_cut(op, SKINNY_PART, args->first_part);
    args->parts = args->splits = args->subs = 1;
    if (!args->list) {
        const int32_t ranges = op->weights[0].columns / SKINNY_RANGE, processors = context->processors;
        const int32_t wanted = sl_k16_is(op) ? sl_k16_ranges(op, processors) : 0;
        const skinny_cut cut = apart || (!wanted && !skinny_is_gated(op))
                                   ? skinny_choose_apart<TYPE>(parts, ranges, processors, wanted)
                                   : skinny_choose<TYPE>(parts, ranges, processors, wanted);
        args->splits = cut.splits;
        args->parts = cut.parts < parts ? cut.parts : parts;
        args->subs = cut.subs;
        args->halves = sl_k16_is(op) && cut.subs > 1;
    }
}

/* The operands from a later row on. */
static inline void skinny_skip_rows(skinny_args *args, int32_t rows) {
    args->first_row += rows;
    for (sl_cuda_operand *operand : {&args->x, &args->residual, &args->y, &args->gated}) {
        operand->data += operand->data ? (uint64_t)rows * operand->row_bytes : 0;
    }
}

/* More rows than a tile has go through one launch after the other. */
template <int TYPE>
static cudaError_t skinny_launch(const sl_cuda_context *context, const sl_cuda_op *op, skinny_args *args,
                                 cudaStream_t stream) {
    const int32_t rows = op->rows[op->out[0].rows];
    if (args->list) { /* twice the mean load; each expert that is chosen may have one tile more */
        const int32_t experts = op->weights[0].experts, loads = 2 * rows / experts;
        const int32_t chosen = experts < rows ? experts : rows;
        args->parts = skinny_choose_parts(context, args->first_part[SL_LINEAR_SEGMENTS], experts, rows);
        return loads <= 8    ? skinny_launch_rows<TYPE, 8>(context, op, args, rows / 8 + chosen, stream)
               : loads <= 16 ? skinny_launch_rows<TYPE, 16>(context, op, args, rows / 16 + chosen, stream)
               : loads <= 32 ? skinny_launch_rows<TYPE, 32>(context, op, args, rows / 32 + chosen, stream)
                             : skinny_launch_rows<TYPE, 64>(context, op, args, rows / 64 + chosen, stream);
    }
    cudaError_t code = cudaSuccess;
    while (!code && args->first_row < rows) {
        const int32_t left = rows - args->first_row;
        code = left <= 8    ? skinny_launch_rows<TYPE, 8>(context, op, args, 1, stream)
               : left <= 16 ? skinny_launch_rows<TYPE, 16>(context, op, args, 1, stream)
               : left <= 32 ? skinny_launch_rows<TYPE, 32>(context, op, args, 1, stream)
               : left <= 64 ? skinny_launch_rows<TYPE, 64>(context, op, args, 1, stream)
               : left <= 96 ? skinny_launch_rows<TYPE, 96>(context, op, args, 1, stream)
                            : skinny_launch_rows<TYPE, SKINNY_ROWS>(context, op, args, 1, stream);
        skinny_skip_rows(args, SKINNY_ROWS);
    }
    return code;
}

template <int TYPE>
static cudaError_t skinny_launch_type(const sl_cuda_context *context, const sl_cuda_op *op,
                                      cudaStream_t stream) {
    skinny_args args;
    skinny_make_args<TYPE>(context, op, false, &args);
    return skinny_launch<TYPE>(context, op, &args, stream);
}

/* LINEAR, ACTIVATE, QUANTIZE: op[0] .. op[2]. Ranges are those of the LINEAR alone. */
template <int TYPE>
static cudaError_t skinny_launch_gated(const sl_cuda_context *context, const sl_cuda_op *op,
                                       cudaStream_t stream) {
    skinny_args args;
    skinny_make_args<TYPE>(context, op, false, &args);
    const int32_t width = op[1].op->u.activate.width;
    if (args.segments == 1) { /* gates and values are one weight */
        args.weights[1] = args.weights[0];
        args.weights[1].data += (uint64_t)width * args.weights[0].row_bytes;
        args.weights[0].rows = args.weights[1].rows = width;
    }
    args.segments = 1;
    args.first_part[1] = args.first_part[SL_LINEAR_SEGMENTS] = (width + 31) / 32;
    args.gated = op[2].out[0];
    args.gating = sl_gating_of(op[1].op);
    return skinny_launch<TYPE>(context, op, &args, stream);
}

/* The sums of the ranges to the op's scratch. */
template <int TYPE>
static cudaError_t skinny_launch_apart(const sl_cuda_context *context, const sl_cuda_op *op,
                                       cudaStream_t stream, sl_cuda_ranges *ranges) {
    skinny_args args;
    skinny_make_args<TYPE>(context, op, true, &args);
    args.y.data = op->scratch;
    args.range_bytes = (uint64_t)op->rows[args.y.rows] * args.y.row_bytes;
    ranges->data = op->scratch;
    ranges->count = args.splits * args.subs;
    ranges->bytes = args.range_bytes;
    return skinny_launch<TYPE>(context, op, &args, stream);
}

template <int... TYPES> static cudaError_t skinny_prepare(const sl_cuda_facts *facts) {
    cudaError_t code = cudaSuccess;
    if (facts->has_wgmma) {
        ((code = code ? code : skinny_prepare_type<TYPES>()), ...);
    }
    return code;
}

#define SKINNY_RUNS(ID)                                                                                      \
    .run = skinny_launch_type<SL_QTYPE_##ID>, .gated = skinny_launch_gated<SL_QTYPE_##ID>,                   \
    .ranges = skinny_launch_apart<SL_QTYPE_##ID>, .ranges_declines = sl_bf16_rows128_ranges_declines
/* From `least` rows on (experts: skinny_least_expert_rows), up to `rows` (experts: 128; beyond that in two
 * launches, which pays where that is quicker than cuBLAS with its decoding); below, int8 rows are faster. */
#define BF16_ROWS128(ID, type_name, least, rows, most_error)                                                 \
    {                                                                                                        \
        .kernel = BF16_KERNEL("linear/" #type_name "/cuda-bf16-rows128", "bf16/skinny", most_error,          \
                              .declines = sl_bf16_rows128_declines, .workspace = sl_bf16_rows128_workspace), \
        .arrangement = SL_CUDA_BF16_ROWS128, .weight_type = SL_QTYPE_##ID, .most_rows = rows,                \
        .least_rows = least, SKINNY_RUNS(ID)                                                                 \
    }
/* The same in class "bf16/k16" (k16.h). */
#define K16_ROWS128(ID, type_name, most_error)                                                               \
    {                                                                                                        \
        .kernel = BF16_KERNEL("linear/" #type_name "/cuda-k16-rows128", "bf16/k16", most_error,              \
                              .deterministic = true, .declines = sl_bf16_rows128_declines,                   \
                              .workspace = sl_bf16_rows128_workspace),                                       \
        .arrangement = SL_CUDA_K16_ROWS128, .weight_type = SL_QTYPE_##ID, .most_rows = 128, .least_rows = 1, \
        SKINNY_RUNS(ID)                                                                                      \
    }

#endif
