/* States of recurrent layers, [key_size][value_size] for each head, in the registers of a block that takes
 * its span row after row: a lane has COLUMNS neighbouring columns, warp w the keys from w * EACH on.
 *
 * Of one sequence each column is a lane's, so that there are blocks enough. Of many, a lane has several: the
 * block's beginning, which waits for one read after the other, is then paid for more of the state. */
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

template <int COLUMNS> struct part_sums { float of[PARTS][SL_WARP * COLUMNS]; };

template <int EACH, int COLUMNS>
static __device__ __forceinline__ state_part state_part_of(const sl_state_layer &shape, int32_t head) {
    state_part part;
    part.number = (int32_t)threadIdx.x / SL_WARP;
    part.column = COLUMNS * (int32_t)(blockIdx.x * SL_WARP + threadIdx.x % SL_WARP);
    part.keys = part.column < shape.value_size ? shape.key_size - part.number * EACH : 0;
    part.at = ((int64_t)head * shape.key_size + part.number * EACH) * shape.value_size + part.column;
    return part;
}

/* COLUMNS is 1, 2 or 4; `from` lies at a multiple of so many. */
template <int COLUMNS>
static __device__ __forceinline__ void load_columns(const float *from, float (&x)[COLUMNS]) {
    if constexpr (COLUMNS == 4) {
        const float4 quad = *(const float4 *)(const void *)from;
        x[0] = quad.x, x[1] = quad.y, x[2] = quad.z, x[3] = quad.w;
    } else if constexpr (COLUMNS == 2) {
        const float2 pair = *(const float2 *)(const void *)from;
        x[0] = pair.x, x[1] = pair.y;
    } else {
        x[0] = *from;
    }
}

template <int COLUMNS>
static __device__ __forceinline__ void store_columns(float *to, const float (&x)[COLUMNS]) {
    if constexpr (COLUMNS == 4) {
        *(float4 *)(void *)to = make_float4(x[0], x[1], x[2], x[3]);
    } else if constexpr (COLUMNS == 2) {
        *(float2 *)(void *)to = make_float2(x[0], x[1]);
    } else {
        *to = x[0];
    }
}

/* Zeros where `old` is NULL. */
template <int EACH, int COLUMNS>
static __device__ __forceinline__ void load_state(const float *old, const state_part &part, int32_t values,
                                                  float (&state)[EACH][COLUMNS]) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (old && i < part.keys) {
            load_columns(old + part.at + (int64_t)i * values, state[i]);
        } else {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                state[i][c] = 0;
            }
        }
    }
}

/* Nothing where `left` is NULL. */
template <int EACH, int COLUMNS>
static __device__ __forceinline__ void store_state(float *left, const state_part &part, int32_t values,
                                                   const float (&state)[EACH][COLUMNS]) {
    if (!left) {
        return;
    }
    left += part.at;
#pragma unroll
    for (int i = 0; i < EACH; i++, left += values) {
        if (i < part.keys) {
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

/* ---- launches ---- */

/* A block per span, head and 32 lanes' columns. */
template <int COLUMNS>
static sl_launch_shape state_launch(const sl_state_layer &shape, int32_t heads, int32_t spans) {
    const unsigned columns = SL_WARP * COLUMNS;
    return {dim3(((unsigned)shape.value_size + columns - 1) / columns, (unsigned)heads, (unsigned)spans),
            dim3(PARTS * SL_WARP), 0};
}

/* How many columns a lane has: as many as leave two blocks for each processor. */
static inline int32_t state_columns(const sl_cuda_context *context, const sl_state_layer &shape,
                                    int32_t heads, int32_t spans) {
    const int64_t wanted = (int64_t)2 * context->processors * SL_WARP,
                  all = (int64_t)heads * spans * shape.value_size;
    const bool aligned = shape.delta_offset % 16 == 0 && context->state_bytes % 16 == 0;
    int32_t columns = 1;
    while (aligned && columns < 4 && shape.value_size % (SL_WARP * columns * 2) == 0 &&
           all / (columns * 2) >= wanted) {
        columns *= 2;
    }
    return columns;
}

/* Returns what `function`<keys of a thread, columns of a lane> does, with no more columns than leave the
 * state in registers. */
#define SCAN_STATES(function, keys, columns, ...)                                                            \
    do {                                                                                                     \
        if ((keys) <= 4 * PARTS) {                                                                           \
            return SCAN_STATES_OF(function, 4, columns, __VA_ARGS__);                                        \
        } else if ((keys) <= 8 * PARTS) {                                                                    \
            return SCAN_STATES_OF(function, 8, columns, __VA_ARGS__);                                        \
        } else if ((keys) <= 16 * PARTS) {                                                                   \
            return SCAN_STATES_OF(function, 16, columns, __VA_ARGS__);                                       \
        } else if ((keys) <= 32 * PARTS) {                                                                   \
            return (columns) == 1 ? function<32, 1>(__VA_ARGS__) : function<32, 2>(__VA_ARGS__);             \
        }                                                                                                    \
        return function<64, 1>(__VA_ARGS__);                                                                 \
    } while (0)
#define SCAN_STATES_OF(function, each, columns, ...)                                                         \
    ((columns) == 1   ? function<each, 1>(__VA_ARGS__)                                                       \
     : (columns) == 2 ? function<each, 2>(__VA_ARGS__)                                                       \
                      : function<each, 4>(__VA_ARGS__))

#endif
