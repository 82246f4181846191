/* States of recurrent layers, [key_size][value_size] for each head, in the registers of blocks that take a
 * span row after row: a lane has COLUMNS neighbouring columns, warp w the keys from w * EACH on.
 *
 * An item is a span, a head and 32 lanes' columns. Of one sequence each column is a lane's and an item a
 * block's, so that there are blocks enough. Of many, a block takes items in turn, and reads the next one's
 * state while it multiplies and stores: else memory would wait for the one, then for the other. */
#ifndef SL_BACKEND_CUDA_DELTA_STATE_COLUMNS_CUH
#define SL_BACKEND_CUDA_DELTA_STATE_COLUMNS_CUH

#include "backend/cuda/delta/delta.cuh"

enum { PARTS = 8 /* of the keys, one warp each */ };

/* What a thread has of a head's state. */
typedef struct state_part {
    int32_t number; /* of its keys' part */
    int32_t column; /* the first */
    int32_t keys;   /* of the part that are there; 0: the columns are not */
    int64_t at;     /* the first element, from where the states of all heads begin */
} state_part;

typedef struct state_item {
    const sl_step_span *span;
    int32_t head, rows; /* rows 0: there is nothing to do */
    state_part part;
} state_item;

template <int COLUMNS> struct part_sums { float of[PARTS][SL_WARP * COLUMNS]; };

/* Items of a step. */
template <int COLUMNS>
static __device__ __forceinline__ int32_t state_items(const sl_cuda_context &context,
                                                      const sl_state_layer &shape) {
    const int32_t columns = SL_WARP * COLUMNS;
    return (shape.value_size + columns - 1) / columns * shape.heads * context.header->spans;
}

/* Spans of more than most_rows rows are another kernel's, unless they leave several states. */
template <int EACH, int COLUMNS>
static __device__ __forceinline__ state_item state_item_of(const sl_cuda_context &context,
                                                           const sl_state_layer &shape, int32_t most_rows,
                                                           int32_t index) {
    const int32_t columns = SL_WARP * COLUMNS, tiles = (shape.value_size + columns - 1) / columns;
    state_item item;
    item.head = index / tiles % shape.heads;
    item.span = &context.spans[index / tiles / shape.heads];
    const int32_t rows = item.span->row_count;
    item.rows = rows > most_rows && item.span->state_count <= 1 ? 0 : rows;
    item.part.number = (int32_t)threadIdx.x / SL_WARP;
    item.part.column = COLUMNS * (index % tiles * SL_WARP + (int32_t)threadIdx.x % SL_WARP);
    item.part.keys =
        item.part.column < shape.value_size && item.rows > 0 ? shape.key_size - item.part.number * EACH : 0;
    item.part.at =
        ((int64_t)item.head * shape.key_size + item.part.number * EACH) * shape.value_size + item.part.column;
    return item;
}

/* COLUMNS is 1 or 2; `from` lies at a multiple of so many. */
template <int COLUMNS>
static __device__ __forceinline__ void load_columns(const float *from, float (&x)[COLUMNS]) {
    if constexpr (COLUMNS == 2) {
        const float2 pair = *(const float2 *)(const void *)from;
        x[0] = pair.x, x[1] = pair.y;
    } else {
        x[0] = *from;
    }
}

template <int COLUMNS>
static __device__ __forceinline__ void store_columns(float *to, const float (&x)[COLUMNS]) {
    if constexpr (COLUMNS == 2) {
        *(float2 *)(void *)to = make_float2(x[0], x[1]);
    } else {
        *to = x[0];
    }
}

/* From the slot that the item's span reads; zeros where it begins. */
template <int EACH, int COLUMNS>
static __device__ __forceinline__ void load_state(const sl_cuda_context &context, const sl_state_layer &shape,
                                                  const state_item &item, float (&state)[EACH][COLUMNS]) {
    const float *old = delta_old_state(context, *item.span, shape.delta_offset);
    const state_part &part = item.part;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (old && i < part.keys) {
            load_columns(old + part.at + (int64_t)i * shape.value_size, state[i]);
        } else {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                state[i][c] = 0;
            }
        }
    }
}

/* Behind row `at` of the item's span, if that leaves one there. */
template <int EACH, int COLUMNS>
static __device__ __forceinline__ void store_state(const sl_cuda_context &context,
                                                   const sl_state_layer &shape, const state_item &item,
                                                   int32_t at, const float (&state)[EACH][COLUMNS]) {
    float *left = delta_new_state(context, *item.span, at, shape.delta_offset);
    if (!left) {
        return;
    }
    left += item.part.at;
#pragma unroll
    for (int i = 0; i < EACH; i++, left += shape.value_size) {
        if (i < item.part.keys) {
            store_columns(left, state[i]);
        }
    }
}

/* A head's values of a row, which may lie anywhere. */
template <int COLUMNS>
static __device__ __forceinline__ void load_inputs(const float *from, const state_part &part,
                                                   float (&x)[COLUMNS]) {
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        x[c] = part.keys == 0 ? 0.0f : from[part.column + c];
    }
}

template <int COLUMNS>
static __device__ __forceinline__ void store_outputs(float *to, const state_part &part,
                                                     const float (&y)[COLUMNS]) {
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        if (part.keys != 0) {
            to[part.column + c] = y[c];
        }
    }
}

template <int COLUMNS>
static __device__ __forceinline__ void put_sums(part_sums<COLUMNS> &sums, const state_part &part,
                                                const float (&x)[COLUMNS]) {
    store_columns(&sums.of[part.number][COLUMNS * (threadIdx.x % SL_WARP)], x);
}

/* Part after part. */
template <int COLUMNS>
static __device__ __forceinline__ void add_sums(const part_sums<COLUMNS> &sums, float (&x)[COLUMNS]) {
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        x[c] = 0;
    }
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        float of[COLUMNS];
        load_columns(&sums.of[p][COLUMNS * (threadIdx.x % SL_WARP)], of);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            x[c] += of[c];
        }
    }
}

/* Calls `rows_of`(item, state) for the block's items, with the state in front of them. */
template <int EACH, int COLUMNS, typename FUNCTION>
static __device__ __forceinline__ void take_states(const sl_cuda_context &context,
                                                   const sl_state_layer &shape, int32_t most_rows,
                                                   FUNCTION rows_of) {
    const int32_t items = state_items<COLUMNS>(context, shape);
    int32_t index = (int32_t)blockIdx.x;
    if (index >= items) {
        return;
    }
    float ahead[EACH][COLUMNS];
    state_item next = state_item_of<EACH, COLUMNS>(context, shape, most_rows, index);
    load_state(context, shape, next, ahead);
    while (index < items) {
        const state_item item = next;
        float state[EACH][COLUMNS];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                state[i][c] = ahead[i][c];
            }
        }
        index += (int32_t)gridDim.x;
        if (index < items) {
            next = state_item_of<EACH, COLUMNS>(context, shape, most_rows, index);
            load_state(context, shape, next, ahead);
        }
        rows_of(item, state);
    }
}

/* ---- launches ---- */

/* Blocks that are to lie on a multiprocessor side by side: a state and the next one are in registers. */
static constexpr int state_blocks(int each, int columns) {
    return delta_blocks(2 * each * columns);
}

template <int EACH, int COLUMNS>
static sl_launch_shape state_launch(const sl_cuda_context *context, const sl_state_layer &shape,
                                    int32_t spans) {
    const int32_t columns = SL_WARP * COLUMNS;
    const int64_t items = (int64_t)((shape.value_size + columns - 1) / columns) * shape.heads * spans,
                  most = (int64_t)state_blocks(EACH, COLUMNS) * context->processors;
    return {dim3((unsigned)(items < most ? items : most)), dim3(PARTS * SL_WARP), 0};
}

/* How many columns a lane has, at most 2: as many as leave two items for each processor. */
static inline int32_t state_columns(const sl_cuda_context *context, const sl_state_layer &shape,
                                    int32_t spans) {
    const int64_t wanted = (int64_t)4 * context->processors * SL_WARP,
                  all = (int64_t)shape.heads * spans * shape.value_size;
    const bool aligned = shape.delta_offset % 8 == 0 && context->state_bytes % 8 == 0;
    return aligned && shape.value_size % (SL_WARP * 2) == 0 && all / 2 >= wanted ? 2 : 1;
}

/* Returns what `function`<keys of a thread, columns of a lane> does. */
#define SCAN_STATES(function, keys, columns, ...)                                                            \
    do {                                                                                                     \
        if ((keys) <= 4 * PARTS) {                                                                           \
            return (columns) == 1 ? function<4, 1>(__VA_ARGS__) : function<4, 2>(__VA_ARGS__);               \
        } else if ((keys) <= 8 * PARTS) {                                                                    \
            return (columns) == 1 ? function<8, 1>(__VA_ARGS__) : function<8, 2>(__VA_ARGS__);               \
        } else if ((keys) <= 16 * PARTS) {                                                                   \
            return (columns) == 1 ? function<16, 1>(__VA_ARGS__) : function<16, 2>(__VA_ARGS__);             \
        } else if ((keys) <= 32 * PARTS) {                                                                   \
            return function<32, 1>(__VA_ARGS__);                                                             \
        }                                                                                                    \
        return function<64, 1>(__VA_ARGS__);                                                                 \
    } while (0)

#endif
