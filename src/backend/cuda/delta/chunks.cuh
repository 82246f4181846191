/* What the scans in chunks share: which chunks a step has, and pieces of products on the tensor cores. Chunks
 * are ROWS rows, counted from where a span begins. */
#ifndef SL_BACKEND_CUDA_DELTA_CHUNKS_CUH
#define SL_BACKEND_CUDA_DELTA_CHUNKS_CUH

#include "backend/cuda/ptx/copy.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/delta/delta.cuh"

enum {
    SHORT_ROWS = 23, /* of a span; up to here the scan row after row is faster */
    LEAST_ROWS = 32
};
#define MOST_SCRATCH (UINT64_C(512) << 20)

/* ---- chunks ---- */

typedef struct chunk_place {
    int32_t span, first, count; /* row of the step, and how many; count is 0 when there is no such chunk */
} chunk_place;

/* None where the scan goes row after row: there are few, or states between them are to be left. */
template <int ROWS> static __device__ __forceinline__ int32_t chunks_of(const sl_step_span &span) {
    return span.row_count > SHORT_ROWS && span.state_count <= 1 ? (span.row_count + ROWS - 1) / ROWS : 0;
}

/* By the first warp. */
template <int ROWS>
static __device__ void find_chunk(const sl_cuda_context &context, int32_t chunk, chunk_place *place) {
    const int32_t lane = (int32_t)threadIdx.x, spans = context.header->spans;
    int32_t before = 0;
    if (lane == 0) {
        place->count = 0;
    }
    __syncwarp();
    for (int32_t base = 0; base < spans && before <= chunk; base += SL_WARP) {
        const int32_t rows = base + lane < spans ? context.spans[base + lane].row_count : 0;
        const int32_t chunks = rows > 0 ? chunks_of<ROWS>(context.spans[base + lane]) : 0;
        int32_t end = chunks;
        for (int distance = 1; distance < SL_WARP; distance *= 2) {
            const int32_t other = __shfl_up_sync(SL_FULL_WARP, end, distance);
            end += lane >= distance ? other : 0;
        }
        end += before;
        if (chunk >= end - chunks && chunk < end) {
            const int32_t done = (chunk - (end - chunks)) * ROWS;
            place->span = base + lane;
            place->first = context.spans[base + lane].first_row + done;
            place->count = rows - done < ROWS ? rows - done : ROWS;
        }
        before = __shfl_sync(SL_FULL_WARP, end, SL_WARP - 1);
    }
}

/* By every warp: the span that is number `index` among those with chunks, or SL_NONE; before: the chunks of
 * those in front of it. */
template <int ROWS>
static __device__ int32_t find_span(const sl_cuda_context &context, int32_t index, int32_t *before) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, spans = context.header->spans;
    int32_t seen = 0;
    *before = 0;
    for (int32_t base = 0; base < spans; base += SL_WARP) {
        const int32_t chunks = base + lane < spans ? chunks_of<ROWS>(context.spans[base + lane]) : 0;
        const uint32_t have = __ballot_sync(SL_FULL_WARP, chunks > 0);
        const int32_t rank = seen + __popc(have & ((1u << lane) - 1));
        const uint32_t found = __ballot_sync(SL_FULL_WARP, chunks > 0 && rank == index);
        int32_t sum = found == 0 || lane < __ffs((int)found) - 1 ? chunks : 0;
        for (int distance = SL_WARP / 2; distance > 0; distance /= 2) {
            sum += __shfl_xor_sync(SL_FULL_WARP, sum, distance);
        }
        *before += sum;
        if (found != 0) {
            return base + __ffs((int)found) - 1;
        }
        seen += __popc(have);
    }
    return SL_NONE;
}

/* Spans of a step that have chunks, at most. */
static inline uint64_t most_long_spans(uint64_t rows, uint64_t spans) {
    return rows / (SHORT_ROWS + 1) < spans ? rows / (SHORT_ROWS + 1) : spans;
}

/* Of a step, at most: each span may leave one partly empty. */
static inline uint64_t most_chunks(uint64_t chunk_rows, uint64_t rows, uint64_t spans) {
    return rows / chunk_rows + spans;
}

/* ---- products; ELEMENT has 16 bits ---- */

/* Left factor: rows [0, 16) and columns [0, 16) from `tile` on. */
template <typename ELEMENT>
static __device__ __forceinline__ void load_left(uint32_t *a, const ELEMENT *tile, int32_t stride) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    sl_load_matrices(sl_shared_address(tile + (lane % 16) * stride + lane / 16 * 8), a);
}

/* Right factors of two products, b[16][8] each: the transposes of rows [0, 8) and [8, 16), columns [0, 16).
 */
template <typename ELEMENT>
static __device__ __forceinline__ void load_right(uint32_t *b, const ELEMENT *tile, int32_t stride) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    sl_load_matrices(sl_shared_address(tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8), b);
}

/* As they lie: rows [0, 16), columns [0, 8) and [8, 16). */
template <typename ELEMENT>
static __device__ __forceinline__ void load_right_rows(uint32_t *b, const ELEMENT *tile, int32_t stride) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    sl_load_matrices_transposed(sl_shared_address(tile + (lane % 16) * stride + lane / 16 * 8), b);
}

/* ---- copies ---- */

static __device__ __forceinline__ void copy_16(void *to, const void *from) {
    sl_copy_16(sl_shared_address(to), from);
}

/* Zero where it is not there. */
static __device__ __forceinline__ void copy_4(void *to, const void *from, bool there) {
    sl_copy_4_of(sl_shared_address(to), from, there ? 4 : 0);
}

#endif
