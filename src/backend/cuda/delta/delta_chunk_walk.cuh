/* The second launch of delta_chunk.cu: from chunk to chunk, with the state. */
#ifndef SL_BACKEND_CUDA_DELTA_DELTA_CHUNK_WALK_CUH
#define SL_BACKEND_CUDA_DELTA_DELTA_CHUNK_WALK_CUH

#include "backend/cuda/delta/delta_chunk.cuh"

/* ---- the second launch ---- */

/* Warps that keep the state, 16 columns each; as many make the outputs. */
template <int KEYS> struct walk_shape {
    enum {
        STATES = KEYS > 128 ? 1 : 2,
        COLUMNS = 16 * STATES,
        THREADS = 2 * STATES * SL_WARP + LOAD_THREADS,
        VALUE_STRIDE = COLUMNS + 4
    };
};

/* Each in two copies, for one chunk and the next. */
template <int KEYS> struct walk_shared {
    struct {
        __half k[CHUNK][KEYS + 8], solved[CHUNK][SQUARE_STRIDE];
        float values[CHUNK][walk_shape<KEYS>::VALUE_STRIDE];
        float factors[FACTORS][CHUNK];
    } update[2];
    struct {
        __half q[CHUNK][KEYS + 8], weights[CHUNK][SQUARE_STRIDE];
        float growth[CHUNK]; /* g_t */
    } output[2];
    /* From the state's warps to those of the outputs, as left factors: S^T at the chunk's start, and U^T. */
    struct {
        uint4 state[KEYS / 16][SL_WARP], changes[CHUNK / 16][SL_WARP];
    } handed[2][walk_shape<KEYS>::STATES];
};

typedef struct walk_place {
    int32_t chunk, first, count; /* in the memory; row of the step; rows */
    int32_t head, key_head, column;
} walk_place;

static __device__ __forceinline__ walk_place chunk_at(const walk_place &start, int32_t chunk) {
    walk_place place = start; /* whose count is the span's */
    place.chunk += chunk;
    place.first += chunk * CHUNK;
    place.count = start.count - chunk * CHUNK < CHUNK ? start.count - chunk * CHUNK : CHUNK;
    return place;
}

/* Rows of `width` halves, one behind the other, by the loading warps. */
static __device__ __forceinline__ void copy_rows(__half *to, int32_t stride, const __half *from,
                                                 int32_t width, int32_t thread) {
    const int32_t pieces = width / 8;
    for (int32_t i = thread; i < CHUNK * pieces; i += LOAD_THREADS) {
        copy_16(to + i / pieces * stride + i % pieces * 8, from + i * 8);
    }
}

template <int KEYS>
static __device__ __forceinline__ void load_update(const delta_args &args, const chunk_memory &memory,
                                                   const walk_place &place, int32_t thread,
                                                   walk_shared<KEYS> *shared, int32_t which) {
    enum { COLUMNS = walk_shape<KEYS>::COLUMNS, STEP = LOAD_THREADS / COLUMNS };
    auto &stage = shared->update[which];
    const int64_t keys = ((int64_t)place.chunk * args.scan.key_heads + place.key_head) * CHUNK * KEYS;
    const int64_t head = (int64_t)place.chunk * args.scan.value_heads + place.head;
    copy_rows(&stage.k[0][0], KEYS + 8, memory.k + keys, KEYS, thread);
    copy_rows(&stage.solved[0][0], SQUARE_STRIDE, memory.solved + head * CHUNK * CHUNK, CHUNK, thread);
    if (thread < FACTORS * CHUNK / 4) {
        copy_16(&stage.factors[0][0] + thread * 4, memory.factors + head * FACTORS * CHUNK + thread * 4);
    }
    const int32_t c = thread % COLUMNS;
    const int32_t column =
        2 * args.scan.key_heads * KEYS + place.head * args.shape.value_size + place.column + c;
    /* Their rows may lie anywhere, so four bytes at a time. */
    const unsigned char *from =
        (const unsigned char *)(sl_f32(args.x, place.first + thread / COLUMNS) + column);
    for (int32_t row = thread / COLUMNS; row < CHUNK; row += STEP, from += STEP * args.x.row_bytes) {
        const bool there = row < place.count;
        copy_4(&stage.values[row][c], there ? (const void *)from : (const void *)args.x.data, there);
    }
}

template <int KEYS>
static __device__ __forceinline__ void load_output(const delta_args &args, const chunk_memory &memory,
                                                   const walk_place &place, int32_t thread,
                                                   walk_shared<KEYS> *shared, int32_t which) {
    auto &stage = shared->output[which];
    const int64_t keys = ((int64_t)place.chunk * args.scan.key_heads + place.key_head) * CHUNK * KEYS;
    const int64_t head = (int64_t)place.chunk * args.scan.value_heads + place.head;
    copy_rows(&stage.q[0][0], KEYS + 8, memory.q + keys, KEYS, thread);
    copy_rows(&stage.weights[0][0], SQUARE_STRIDE, memory.weights + head * CHUNK * CHUNK, CHUNK, thread);
    if (thread < CHUNK / 4) {
        copy_16(stage.growth + thread * 4, memory.factors + (head * FACTORS + 1) * CHUNK + thread * 4);
    }
}

static __device__ __forceinline__ void wait_for_copies(void) {
    sl_copy_wait_all();
}

/* out[16][CHUNK] += left[16][16] rows[..][16]^T, of the first `tiles` times 16 rows. */
template <bool WHOLE>
static __device__ __forceinline__ void add_product(const uint32_t *left, const __half *rows, int32_t stride,
                                                   int32_t tiles, float (*out)[4]) {
#pragma unroll
    for (int n = 0; n < CHUNK / 16; n++) {
        if (WHOLE || n < tiles) {
            uint32_t right[4];
            load_right(right, rows + 16 * n * stride, stride);
            sl_mma_f16(out[2 * n], left, right[0], right[1]);
            sl_mma_f16(out[2 * n + 1], left, right[2], right[3]);
        }
    }
}

/* out[16][CHUNK] += left[16][CHUNK] lower^T, a lower triangular matrix. */
template <bool WHOLE>
static __device__ __forceinline__ void
apply_lower(const uint32_t (*left)[4], const __half (*lower)[SQUARE_STRIDE], int32_t tiles, float (*out)[4]) {
#pragma unroll
    for (int step = 0; step < CHUNK / 16; step++) {
#pragma unroll
        for (int n = step; n < CHUNK / 16; n++) {
            if (WHOLE || n < tiles) {
                uint32_t right[4];
                load_right(right, &lower[16 * n][16 * step], SQUARE_STRIDE);
                sl_mma_f16(out[2 * n], left[step], right[0], right[1]);
                sl_mma_f16(out[2 * n + 1], left[step], right[2], right[3]);
            }
        }
    }
}

/* The factors of a lane's columns of a result [16][CHUNK], which are rows of the chunk. */
static __device__ __forceinline__ float2 factors_at(const float *factors, int n) {
    return *(const float2 *)(factors + 8 * n + 2 * (threadIdx.x % 4));
}

/* One chunk for a warp's 16 columns: state is S^T [16][KEYS] in the layout of results. WHOLE: no 16 rows of
 * it are missing, and nothing branches. */
template <int KEYS, bool WHOLE>
static __device__ __forceinline__ void update_state(walk_shared<KEYS> *shared, int32_t which, int32_t warp,
                                                    int32_t count, float (*state)[4]) {
    const auto &stage = shared->update[which];
    auto &handed = shared->handed[which][warp];
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, tiles = (count + 15) / 16;
    float x[CHUNK / 8][4] = {}, u[CHUNK / 8][4] = {};
    uint32_t left[CHUNK / 16][4];
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        uint32_t a[4];
        as_left(a, state[2 * step], state[2 * step + 1]);
        handed.state[step][lane] = make_uint4(a[0], a[1], a[2], a[3]);
        add_product<WHOLE>(a, &stage.k[0][16 * step], KEYS + 8, tiles, x);
    }
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
        const float2 beta = factors_at(stage.factors[0], n), growth = factors_at(stage.factors[1], n);
        const float *values = &stage.values[8 * n + 2 * (lane % 4)][16 * warp + lane / 4];
        enum { NEXT = walk_shape<KEYS>::VALUE_STRIDE };
        x[n][0] = beta.x * (values[0] - growth.x * x[n][0]);
        x[n][1] = beta.y * (values[NEXT] - growth.y * x[n][1]);
        x[n][2] = beta.x * (values[8] - growth.x * x[n][2]);
        x[n][3] = beta.y * (values[NEXT + 8] - growth.y * x[n][3]);
    }
#pragma unroll
    for (int m = 0; m < CHUNK / 16; m++) {
        as_left(left[m], x[2 * m], x[2 * m + 1]);
    }
    apply_lower<WHOLE>(left, stage.solved, tiles, u);
    const float decay = stage.factors[1][CHUNK - 1];
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            state[n][i] *= decay;
        }
    }
#pragma unroll
    for (int m = 0; m < CHUNK / 16; m++) {
        uint32_t a[4];
        as_left(a, u[2 * m], u[2 * m + 1]);
        handed.changes[m][lane] = make_uint4(a[0], a[1], a[2], a[3]);
#pragma unroll
        for (int n = 2 * m; n < 2 * m + 2; n++) {
            const float2 rest = factors_at(stage.factors[2], n);
            u[n][0] *= rest.x;
            u[n][1] *= rest.y;
            u[n][2] *= rest.x;
            u[n][3] *= rest.y;
        }
        as_left(left[m], u[2 * m], u[2 * m + 1]);
        if (WHOLE || m < tiles) {
#pragma unroll
            for (int n = 0; n < KEYS / 16; n++) {
                uint32_t right[4];
                load_right_rows(right, &stage.k[16 * m][16 * n], KEYS + 8);
                sl_mma_f16(state[2 * n], left[m], right[0], right[1]);
                sl_mma_f16(state[2 * n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* The outputs of a chunk for a warp's 16 columns. */
template <int KEYS, bool WHOLE>
static __device__ __forceinline__ void make_outputs(const delta_args &args, const walk_place &place,
                                                    const walk_shared<KEYS> *shared, int32_t which,
                                                    int32_t warp) {
    const auto &stage = shared->output[which];
    const auto &handed = shared->handed[which][warp];
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, tiles = (place.count + 15) / 16;
    float y[CHUNK / 8][4] = {};
    uint32_t left[CHUNK / 16][4];
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        const uint4 state = handed.state[step][lane];
        const uint32_t a[4] = {state.x, state.y, state.z, state.w};
        add_product<WHOLE>(a, &stage.q[0][16 * step], KEYS + 8, tiles, y);
    }
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
        const float2 growth = factors_at(stage.growth, n);
        y[n][0] *= growth.x;
        y[n][1] *= growth.y;
        y[n][2] *= growth.x;
        y[n][3] *= growth.y;
    }
#pragma unroll
    for (int m = 0; m < CHUNK / 16; m++) {
        const uint4 changes = handed.changes[m][lane];
        left[m][0] = changes.x;
        left[m][1] = changes.y;
        left[m][2] = changes.z;
        left[m][3] = changes.w;
    }
    apply_lower<WHOLE>(left, stage.weights, tiles, y);
    const int32_t column = place.head * args.shape.value_size + place.column + 16 * warp + lane / 4;
    unsigned char *out = (unsigned char *)(sl_f32(args.y, place.first + 2 * (lane % 4)) + column);
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
#pragma unroll
        for (int next = 0; next < 2; next++) {
            float *row = (float *)(out + (uint64_t)(8 * n + next) * args.y.row_bytes);
            if (8 * n + 2 * (lane % 4) + next < place.count) {
                row[0] = y[n][next];
                row[8] = y[n][2 + next];
            }
        }
    }
}

/* The warps that keep the state: from the old slot, through all chunks, to the new one. */
template <int KEYS>
static __device__ __forceinline__ void walk_states(const sl_cuda_context &context, const delta_args &args,
                                                   const sl_step_span &span, const walk_place &start,
                                                   int32_t warp, walk_shared<KEYS> *shared) {
    enum { THREADS = walk_shape<KEYS>::THREADS };
    /* Element i of tile n: key 8 n + 2 (lane % 4) + i % 2, column lane / 4 + 8 (i / 2) of the warp's. */
    float state[KEYS / 8][4];
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, values = args.shape.value_size;
    const float *old = delta_old_state(context, span, args.shape.delta_offset);
    float *left = delta_new_state(context, span, span.row_count - 1, args.shape.delta_offset);
    const int64_t at =
        ((int64_t)start.head * KEYS + 2 * (lane % 4)) * values + start.column + 16 * warp + lane / 4;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            state[n][i] = old ? old[at + (int64_t)(8 * n + i % 2) * values + i / 2 * 8] : 0.0f;
        }
    }
    const int32_t chunks = chunks_of<CHUNK>(span);
    sl_meet<1, THREADS>();
    for (int32_t c = 0; c < chunks; c++) {
        const int32_t count = chunk_at(start, c).count;
        if (count > CHUNK - 16) {
            update_state<KEYS, true>(shared, c % 2, warp, count, state);
        } else {
            update_state<KEYS, false>(shared, c % 2, warp, count, state);
        }
        sl_meet<1, THREADS>();
    }
    sl_meet<1, THREADS>();
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            left[at + (int64_t)(8 * n + i % 2) * values + i / 2 * 8] = state[n][i];
        }
    }
}

/* A block per span, value head and COLUMNS columns of the state. Between two meetings the state takes chunk
 * c, the outputs of chunk c - 1 are made, and what chunk c + 1 and the outputs of chunk c need is copied. */
template <int KEYS>
static __global__ void __launch_bounds__(walk_shape<KEYS>::THREADS)
    walk_kernel(sl_cuda_context context, delta_args args, chunk_memory memory) {
    enum { STATES = walk_shape<KEYS>::STATES, THREADS = walk_shape<KEYS>::THREADS };
    extern __shared__ uint4 dynamic[];
    walk_shared<KEYS> *shared = (walk_shared<KEYS> *)dynamic;
    sl_wait_for_inputs();
    walk_place start = {};
    const int32_t number = find_span<CHUNK>(context, (int32_t)blockIdx.z, &start.chunk);
    if (number == SL_NONE) {
        return;
    }
    const sl_step_span &span = context.spans[number];
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, chunks = chunks_of<CHUNK>(span);
    start.head = (int32_t)blockIdx.y;
    start.key_head = delta_key_head(args, start.head);
    start.column = (int32_t)blockIdx.x * walk_shape<KEYS>::COLUMNS;
    start.first = span.first_row;
    start.count = span.row_count;
    if (warp < STATES) {
        walk_states<KEYS>(context, args, span, start, warp, shared);
    } else if (warp < 2 * STATES) {
        sl_meet<1, THREADS>();
        for (int32_t c = 0; c <= chunks; c++) {
            if (c > 0) {
                const walk_place place = chunk_at(start, c - 1);
                if (place.count > CHUNK - 16) {
                    make_outputs<KEYS, true>(args, place, shared, (c - 1) % 2, warp - STATES);
                } else {
                    make_outputs<KEYS, false>(args, place, shared, (c - 1) % 2, warp - STATES);
                }
            }
            sl_meet<1, THREADS>();
        }
    } else {
        const int32_t thread = (int32_t)threadIdx.x - 2 * STATES * SL_WARP;
        load_update<KEYS>(args, memory, chunk_at(start, 0), thread, shared, 0);
        wait_for_copies();
        sl_meet<1, THREADS>();
        for (int32_t c = 0; c <= chunks; c++) {
            if (c + 1 < chunks) {
                load_update<KEYS>(args, memory, chunk_at(start, c + 1), thread, shared, (c + 1) % 2);
            }
            if (c < chunks) {
                load_output<KEYS>(args, memory, chunk_at(start, c), thread, shared, c % 2);
            }
            wait_for_copies();
            sl_meet<1, THREADS>();
        }
    }
}

#endif
