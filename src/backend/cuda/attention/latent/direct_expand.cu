/* Keys and values of every head from cached latent rows, with Hopper's wgmma.
 *
 * A first launch decodes the heads' matrices to the cache's type, as they are to lie in shared memory. In the
 * second one a block keeps 128 outputs of a head there, and takes pages of 64 latent rows in turn: one warp
 * copies boxes of 64 columns, two groups of four warps multiply a page each, one after the other, so that one
 * stores while the other multiplies. Pages are numbered through the sequences that go directly, and blocks of
 * one matrix share them out.
 *
 * Products are added in f32, 16 inputs after the other, and rounded to the cache's type. */
#include "backend/cuda/attention/latent/direct.h"
#include "backend/cuda/attention/page_maps.cuh"
#include "backend/cuda/ptx/wgmma_tiles.cuh"
#include "backend/cuda/types/types.cuh"

enum {
    CONVERT_THREADS = 256,
    GROUPS = 2, /* of four warps, that multiply */
    THREADS = 128 + 128 * GROUPS,
    STAGES = 12, /* boxes of latent rows in shared memory */
    STAGE_BYTES = SL_PAGE_TOKENS * SL_DIRECT_BOX * 2,
    MATRIX_BYTES = SL_DIRECT_MOST_BOXES * SL_DIRECT_BOX_BYTES,
    BYTES = MATRIX_BYTES + STAGES * STAGE_BYTES + 1024, /* 1024: to align */
    MOST_SPLITS = 8
};

/* Which matrix is tile `tile` of a head; *first: its first output. */
static __host__ __device__ __forceinline__ const sl_direct_matrix &matrix_of(const sl_direct_args &args,
                                                                             int32_t tile, int32_t *first) {
    const bool is_key = tile < args.keys.tiles;
    *first = (is_key ? tile : tile - args.keys.tiles) * SL_DIRECT_OUTPUTS;
    return is_key ? args.keys : args.values;
}

/* Where 16 bytes of a box of 64 columns lie, behind the boxes of columns before it. */
static __device__ __forceinline__ uint32_t piece_at(int32_t rows, int32_t row, int32_t piece) {
    return (uint32_t)((piece / 8 * rows + row) * 128 + ((piece ^ row) & 7) * 16);
}

/* ---- the matrices ---- */

/* A box for each x of the grid, a tile of a head for each y. Zeros behind the last input and output. */
template <int TYPE>
static __global__ void __launch_bounds__(CONVERT_THREADS)
    convert_kernel(const __grid_constant__ sl_cuda_context context,
                   const __grid_constant__ sl_direct_args args) {
    (void)context;
    sl_let_next_begin();
    sl_wait_for_inputs();
    const int32_t tiles = args.keys.tiles + args.values.tiles, head = (int32_t)blockIdx.y / tiles;
    int32_t first;
    const sl_direct_matrix &matrix = matrix_of(args, (int32_t)blockIdx.y % tiles, &first);
    const sl_cuda_weight &weight = matrix.weight;
    const unsigned char *from = weight.data + (uint64_t)head * weight.expert_bytes;
    unsigned char *to = args.matrices + (uint64_t)blockIdx.y * (uint64_t)args.boxes * SL_DIRECT_BOX_BYTES;
    /* By inputs: all inputs' rows, boxes of outputs; else rows of outputs, boxes of inputs. */
    const int32_t rows = matrix.by_inputs ? args.boxes * SL_DIRECT_BOX : SL_DIRECT_OUTPUTS;
    const int32_t pieces = matrix.by_inputs ? SL_DIRECT_OUTPUTS / 8 : args.boxes * SL_DIRECT_BOX / 8;
    const int32_t top = matrix.by_inputs ? 0 : first, left = matrix.by_inputs ? first : 0;
    for (int32_t i = (int32_t)(blockIdx.x * CONVERT_THREADS + threadIdx.x); i < rows * pieces;
         i += (int32_t)gridDim.x * CONVERT_THREADS) {
        const int32_t row = i / pieces, piece = i % pieces, column = left + 8 * piece;
        float4 a = make_float4(0, 0, 0, 0), b = a;
        if (top + row < weight.rows && column < weight.columns) {
            const unsigned char *at = from + (uint64_t)(top + row) * weight.row_bytes;
            a = sl_decode_quad(weight.type, at, weight.row_bytes, column);
            b = sl_decode_quad(weight.type, at, weight.row_bytes, column + 4);
        }
        *(uint4 *)(to + piece_at(rows, row, piece)) =
            make_uint4(mma_pack<TYPE>(a.x, a.y), mma_pack<TYPE>(a.z, a.w), mma_pack<TYPE>(b.x, b.y),
                       mma_pack<TYPE>(b.z, b.w));
    }
}

/* ---- the work of a block ---- */

/* The sequences that go directly; pages of the n-th are numbers begin[n] to begin[n + 1] - 1. */
typedef struct expand_list {
    int32_t count;
    int32_t span[SL_DIRECT_MOST_SPANS], begin[SL_DIRECT_MOST_SPANS + 1];
} expand_list;

typedef struct expand_shared {
    uint64_t full[STAGES], empty[STAGES], matrix;
    expand_list list;
} expand_shared;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* By the first warp. */
static __device__ __forceinline__ void find_spans(const sl_cuda_context &context, const sl_direct &direct,
                                                  expand_list *list) {
    const int32_t lane = (int32_t)threadIdx.x, spans = context.header->spans;
    int32_t count = 0;
    for (int32_t base = 0; base < spans; base += SL_WARP) {
        const bool goes = base + lane < spans && sl_direct_goes(&direct, &context.spans[base + lane]);
        const uint32_t all = __ballot_sync(SL_FULL_WARP, goes);
        const int32_t place = count + __popc(all & ((1u << lane) - 1));
        if (goes && place < SL_DIRECT_MOST_SPANS) {
            list->span[place] = base + lane;
            list->begin[place + 1] = sl_direct_span_pages(&direct, &context.spans[base + lane]);
        }
        count += __popc(all);
    }
    count = count < SL_DIRECT_MOST_SPANS ? count : SL_DIRECT_MOST_SPANS;
    __syncwarp();
    if (lane == 0) {
        list->count = count;
        list->begin[0] = 0;
        for (int32_t i = 0; i < count; i++) {
            list->begin[i + 1] += list->begin[i];
        }
    }
}

/* Page `number`: of which sequence, which of its pages. */
typedef struct expand_page {
    const sl_step_span *span;
    int32_t index;
} expand_page;

/* `at`: where in the list the page before was. */
static __device__ __forceinline__ expand_page find_page(const sl_cuda_context &context,
                                                        const expand_list &list, int32_t number,
                                                        int32_t *at) {
    while (number >= list.begin[*at + 1]) {
        ++*at;
    }
    return {&context.spans[list.span[*at]], number - list.begin[*at]};
}

static __device__ __forceinline__ int32_t cached_page(const sl_cuda_context &context,
                                                      const sl_cuda_cache &cache, const expand_page &page) {
    const int32_t found = cache.table[(int64_t)page.span->slot * context.table_width + page.index];
    return found > 0 ? found : 0;
}

static __device__ __forceinline__ int32_t scratch_page(const sl_direct &direct, const expand_page &page) {
    return sl_direct_first_page(&direct, page.span) + page.index;
}

/* Which pages a block has, of which matrix. */
typedef struct expand_work {
    int32_t first, end;
    int32_t head, tile;
} expand_work;

/* By one thread: the matrix, then the boxes of all pages. */
static __device__ __forceinline__ void feed(const sl_cuda_context &context, const sl_direct_args &args,
                                            const CUtensorMap *map, expand_shared *shared, uint32_t memory,
                                            const expand_work &work) {
    const sl_cuda_cache &cache = context.caches[args.place.group];
    const int32_t layers = (int32_t)(cache.page_bytes / cache.layer_bytes);
    const uint32_t matrix = sl_shared_address(&shared->matrix);
    const unsigned char *from =
        args.matrices + (uint64_t)blockIdx.y * (uint64_t)args.boxes * SL_DIRECT_BOX_BYTES;
    sl_barrier_expect(matrix, (uint32_t)(args.boxes * SL_DIRECT_BOX_BYTES));
    for (int32_t box = 0; box < args.boxes; box++) {
        sl_bulk_copy(memory + (uint32_t)(box * SL_DIRECT_BOX_BYTES), from + box * SL_DIRECT_BOX_BYTES,
                     SL_DIRECT_BOX_BYTES, matrix);
    }
    int32_t stage = 0, at = 0;
    uint32_t phase = 1; /* the stages are empty at first */
    for (int32_t number = work.first; number < work.end; number++) {
        const int32_t page = cached_page(context, cache, find_page(context, shared->list, number, &at));
        for (int32_t box = 0; box < args.boxes; box++) {
            const uint32_t full = sl_shared_address(&shared->full[stage]);
            sl_barrier_wait(sl_shared_address(&shared->empty[stage]), phase);
            sl_barrier_expect(full, STAGE_BYTES);
            sl_box_copy(memory + MATRIX_BYTES + (uint32_t)(stage * STAGE_BYTES), map, SL_DIRECT_BOX * box, 0,
                        page * layers + args.place.layer, full);
            stage++;
            if (stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
    }
}

/* ---- multiplying ---- */

/* y += the box of latent rows at x times that of the matrix. */
template <int TYPE, bool BY_INPUTS>
static __device__ __forceinline__ void multiply_box(float (&y)[SL_DIRECT_OUTPUTS / 8][4], uint32_t x,
                                                    uint32_t matrix, int32_t box, uint32_t leading) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < SL_DIRECT_BOX / 16; step++) {
        const uint64_t rows = wgmma_operand(x + (uint32_t)(32 * step), 16);
        if constexpr (BY_INPUTS) {
            wgmma_values<TYPE, SL_DIRECT_OUTPUTS>(
                y, rows,
                wgmma_operand(matrix + (uint32_t)(box * SL_DIRECT_BOX * 128 + step * 2048), leading));
        } else {
            wgmma_scores<TYPE, SL_DIRECT_OUTPUTS>(
                y, rows, wgmma_operand(matrix + (uint32_t)(box * SL_DIRECT_BOX_BYTES + step * 32), 16), 1);
        }
    }
    wgmma_commit();
}

/* Of four lanes' four words each, word l of all lanes to lane l. */
static __device__ __forceinline__ void turn_words(uint32_t (&words)[4]) {
    const int32_t lane = (int32_t)threadIdx.x % 4;
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
        const bool upper = (lane & distance) != 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if ((i & distance) == 0) {
                const uint32_t sent = upper ? words[i] : words[i + distance];
                const uint32_t got = __shfl_xor_sync(SL_FULL_WARP, sent, distance);
                words[i] = upper ? got : words[i];
                words[i + distance] = upper ? words[i + distance] : got;
            }
        }
    }
}

/* What a group has of a page, to rows of `row_bytes` from `to` on; `outputs`: columns that there are. */
template <int TYPE>
static __device__ __forceinline__ void store_page(const float (&y)[SL_DIRECT_OUTPUTS / 8][4],
                                                  unsigned char *to, uint64_t row_bytes, int32_t outputs) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        unsigned char *row = to + (uint64_t)(16 * warp + 8 * h + lane / 4) * row_bytes;
#pragma unroll
        for (int n = 0; n < SL_DIRECT_OUTPUTS / 8; n += 4) {
            uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                words[i] = mma_pack<TYPE>(y[n + i][2 * h], y[n + i][2 * h + 1]);
            }
            turn_words(words);
            const int32_t column = 8 * (n + lane % 4);
            if (column < outputs) {
                *(uint4 *)(row + 2 * column) = make_uint4(words[0], words[1], words[2], words[3]);
            }
        }
    }
}

/* By a group: what turns of a page's keys is the same in all heads. */
static __device__ __forceinline__ void copy_turning(const sl_direct_args &args, const unsigned char *from,
                                                    uint64_t from_bytes, unsigned char *to) {
    const int32_t pieces = args.turning / 8;
    for (int32_t i = (int32_t)threadIdx.x % 128; i < SL_PAGE_TOKENS * pieces; i += 128) {
        const int32_t row = i / pieces, at = i % pieces * 16;
        *(uint4 *)(to + (uint64_t)row * args.to.key_bytes + 2 * args.keys.outputs + at) =
            *(const uint4 *)(from + (uint64_t)row * from_bytes + 2 * args.latent + at);
    }
}

/* By a group: y of a page, whose first box is the block's box `first`. */
template <int TYPE, bool BY_INPUTS>
static __device__ __forceinline__ void multiply_page(float (&y)[SL_DIRECT_OUTPUTS / 8][4],
                                                     expand_shared *shared, uint32_t memory, int32_t boxes,
                                                     int32_t first) {
    const bool arrives = threadIdx.x % SL_WARP < SL_ARRIVING_LANES;
    int32_t before = 0;
    for (int32_t box = 0; box < boxes; box++) {
        const int32_t turn = first + box, stage = turn % STAGES;
        sl_barrier_wait(sl_shared_address(&shared->full[stage]), (uint32_t)(turn / STAGES % 2));
        multiply_box<TYPE, BY_INPUTS>(y, memory + MATRIX_BYTES + (uint32_t)(stage * STAGE_BYTES), memory, box,
                                      (uint32_t)(boxes * SL_DIRECT_BOX * 128));
        if (box > 0) {
            wgmma_wait<1>();
            sl_barrier_arrive_if(sl_shared_address(&shared->empty[before]), arrives);
        }
        before = stage;
    }
    wgmma_wait<0>();
    sl_barrier_arrive_if(sl_shared_address(&shared->empty[before]), arrives);
}

/* By a group: every other page of the block. */
template <int TYPE, bool BY_INPUTS>
static __device__ __forceinline__ void multiply(const sl_cuda_context &context, const sl_direct_args &args,
                                                expand_shared *shared, uint32_t memory,
                                                const expand_work &work) {
    const sl_cuda_cache &cache = context.caches[args.place.group];
    const int32_t group = (int32_t)threadIdx.x / 128 - 1;
    const bool is_key = work.tile < args.keys.tiles;
    int32_t first, at = 0;
    const sl_direct_matrix &matrix = matrix_of(args, work.tile, &first);
    const uint64_t row_bytes = is_key ? args.to.key_bytes : args.to.value_bytes;
    sl_barrier_wait(sl_shared_address(&shared->matrix), 0);
    for (int32_t number = work.first + group; number < work.end; number += GROUPS) {
        float y[SL_DIRECT_OUTPUTS / 8][4] = {};
        multiply_page<TYPE, BY_INPUTS>(y, shared, memory, args.boxes, (number - work.first) * args.boxes);
        const expand_page page = find_page(context, shared->list, number, &at);
        unsigned char *head = args.to.pages + (uint64_t)scratch_page(args.direct, page) * args.to.page_bytes +
                              (is_key ? 0 : args.to.values) +
                              (uint64_t)work.head * SL_PAGE_TOKENS * row_bytes;
        store_page<TYPE>(y, head + 2 * first, row_bytes, matrix.outputs - first);
        if (work.tile == 0) {
            copy_turning(args,
                         cache.pages + (uint64_t)cached_page(context, cache, page) * cache.page_bytes +
                             (uint64_t)args.place.layer * cache.layer_bytes,
                         cache.key_bytes, head);
        }
    }
}

/* By all threads of one block for each range of pages: where a sequence's pages are in the scratch. */
static __device__ __forceinline__ void write_table(const sl_cuda_context &context, const sl_direct_args &args,
                                                   const expand_list &list, const expand_work &work) {
    int32_t at = 0;
    for (int32_t number = work.first + (int32_t)threadIdx.x; number < work.end; number += THREADS) {
        const expand_page page = find_page(context, list, number, &at);
        args.to.table[(int64_t)page.span->slot * context.table_width + page.index] =
            scratch_page(args.direct, page);
    }
}
#endif

/* Ranges of pages for each x of the grid, a tile of a head for each y. */
template <int TYPE>
static __global__ void __launch_bounds__(THREADS, 1)
    expand_kernel(const __grid_constant__ sl_cuda_context context,
                  const __grid_constant__ sl_direct_args args, const __grid_constant__ mma_maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint4 expand_memory[];
    __shared__ expand_shared shared;
    const uint32_t memory = (sl_shared_address(expand_memory) + 1023) & ~1023u;
    sl_wait_for_inputs();
    if (threadIdx.x < SL_WARP) {
        find_spans(context, args.direct, &shared.list);
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            sl_barrier_init(sl_shared_address(&shared.full[i]), 1);
            sl_barrier_init(sl_shared_address(&shared.empty[i]), 128 / SL_WARP * SL_ARRIVING_LANES);
        }
        sl_barrier_init(sl_shared_address(&shared.matrix), 1);
        sl_barriers_ready();
    }
    __syncthreads();
    const int32_t tiles = args.keys.tiles + args.values.tiles;
    const int64_t pages = shared.list.begin[shared.list.count], part = blockIdx.x, parts = gridDim.x;
    const expand_work work = {(int32_t)(pages * part / parts), (int32_t)(pages * (part + 1) / parts),
                              (int32_t)blockIdx.y / tiles, (int32_t)blockIdx.y % tiles};
    if (work.first >= work.end) {
        return;
    }
    if (blockIdx.y == 0) {
        write_table(context, args, shared.list, work);
    }
    int32_t first;
    if (threadIdx.x == 0) {
        feed(context, args, &maps.keys, &shared, memory, work);
    } else if (threadIdx.x >= 128 && matrix_of(args, work.tile, &first).by_inputs) {
        multiply<TYPE, true>(context, args, &shared, memory, work);
    } else if (threadIdx.x >= 128) {
        multiply<TYPE, false>(context, args, &shared, memory, work);
    }
#else
    (void)context;
    (void)args;
    (void)maps;
#endif
}

/* ---- launches ---- */

/* Ranges of pages: as many as leave the fewest processors idle, and of those the fewest, since each has the
 * matrix copied. */
static int32_t splits_of(int32_t matrices, int32_t processors) {
    int32_t best = 1, best_blocks = 0, best_waves = 1;
    for (int32_t splits = 1; splits <= MOST_SPLITS; splits++) {
        const int32_t blocks = splits * matrices, waves = (blocks + processors - 1) / processors;
        if ((int64_t)blocks * best_waves * 10 > (int64_t)best_blocks * waves * 11) {
            best = splits;
            best_blocks = blocks;
            best_waves = waves;
        }
    }
    return best;
}

template <int TYPE>
static cudaError_t expand(const sl_cuda_context *context, const sl_direct_args *args, cudaStream_t stream) {
    mma_maps maps;
    const int32_t matrices = args->heads * (args->keys.tiles + args->values.tiles);
    cudaError_t code = sl_page_maps_make(&context->caches[args->place.group], SL_PAGE_TOKENS, &maps);
    if (code == cudaSuccess) {
        const sl_launch_shape shape = {dim3((unsigned)args->boxes, (unsigned)matrices), dim3(CONVERT_THREADS),
                                       0};
        code = sl_launch(context, stream, shape, convert_kernel<TYPE>, *context, *args);
    }
    if (code == cudaSuccess) {
        const sl_launch_shape shape = {
            dim3((unsigned)splits_of(matrices, context->processors), (unsigned)matrices), dim3(THREADS),
            (uint32_t)BYTES};
        code = sl_launch(context, stream, shape, expand_kernel<TYPE>, *context, *args, maps);
    }
    return code;
}

cudaError_t sl_direct_expand(const sl_cuda_context *context, const sl_direct_args *args,
                             cudaStream_t stream) {
    return context->caches[args->place.group].type == SL_QTYPE_BF16
               ? expand<SL_QTYPE_BF16>(context, args, stream)
               : expand<SL_QTYPE_F16>(context, args, stream);
}

cudaError_t sl_direct_expand_prepare(void) {
    const cudaError_t code = sl_allow_shared(expand_kernel<SL_QTYPE_F16>, BYTES);
    return code ? code : sl_allow_shared(expand_kernel<SL_QTYPE_BF16>, BYTES);
}
