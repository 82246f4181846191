/* The second launch of ssm_chunk.cu: from chunk to chunk, with the state. */
#ifndef SL_BACKEND_CUDA_DELTA_SSM_CHUNK_WALK_CUH
#define SL_BACKEND_CUDA_DELTA_SSM_CHUNK_WALK_CUH

#include "backend/cuda/delta/ssm_chunk.cuh"

enum {
    COLUMNS = 32,
    SIDES = COLUMNS / 16, /* of the columns, 16 each: a warp's */
    HALVES = 2,           /* of the keys, or of the rows: a warp's */
    STATE_WARPS = SIDES * HALVES,
    OUTPUT_WARPS = SIDES * HALVES,
    LOAD_WARPS = 4,
    LOAD_THREADS = LOAD_WARPS * SL_WARP,
    WALK_THREADS = (STATE_WARPS + OUTPUT_WARPS) * SL_WARP + LOAD_THREADS,
    HANDED_THREADS = (STATE_WARPS + OUTPUT_WARPS) * SL_WARP,
    VALUE_STRIDE = COLUMNS + 4
};
enum { CHUNK_BARRIER = 1, HANDED_BARRIER }; /* the next chunk is there; its state has been handed over */

template <int KEYS> struct ssm_walk_stage {
    uint16_t writes[PARTS][ssm_chunk_shape<KEYS>::CHUNK][ssm_chunk_shape<KEYS>::STRIDE];
    uint16_t reads[PARTS][ssm_chunk_shape<KEYS>::CHUNK][ssm_chunk_shape<KEYS>::STRIDE];
    float products[ssm_chunk_shape<KEYS>::CHUNK][ssm_chunk_shape<KEYS>::SQUARE_STRIDE];
    float values[ssm_chunk_shape<KEYS>::CHUNK][VALUE_STRIDE];
    float factors[FACTORS][ssm_chunk_shape<KEYS>::CHUNK];
};

template <int KEYS> struct ssm_walk_shared {
    ssm_walk_stage<KEYS> stages[2]; /* for one chunk and the next */
    /* S^T at the chunk's start, as left factors, from the state's warps to those of the outputs. */
    uint4 state[PARTS][KEYS / 16][SIDES][SL_WARP];
};

typedef struct ssm_walk_place {
    int32_t chunk, first, count; /* in the memory; row of the step; rows of the span from there on */
    int32_t head, group, column;
    int32_t side, half; /* the warp's */
} ssm_walk_place;

/* Rows of `width` 16-byte pieces, one behind the other, to rows of `stride` bytes. */
static __device__ __forceinline__ void copy_rows(void *to, int32_t stride, const void *from, int32_t rows,
                                                 int32_t width, int32_t thread) {
    for (int32_t i = thread; i < rows * width; i += LOAD_THREADS) {
        copy_16((unsigned char *)to + i / width * stride + i % width * 16,
                (const unsigned char *)from + i * 16);
    }
}

/* By the loading warps. */
template <int KEYS>
static __device__ __forceinline__ void load_chunk(const ssm_args &args, const ssm_chunk_memory &memory,
                                                  const ssm_walk_place &place, int32_t thread,
                                                  ssm_walk_stage<KEYS> *stage) {
    typedef ssm_chunk_shape<KEYS> shape;
    enum { CHUNK = shape::CHUNK, ROWS = PARTS * CHUNK, STRIDE_BYTES = shape::STRIDE * 2 };
    const int64_t group = (int64_t)place.chunk * args.scan.groups + place.group;
    const int64_t head = (int64_t)place.chunk * args.scan.heads + place.head;
    copy_rows(stage->writes, STRIDE_BYTES, memory.writes + group * shape::MATRIX, ROWS, KEYS / 8, thread);
    copy_rows(stage->reads, STRIDE_BYTES, memory.reads + group * shape::MATRIX, ROWS, KEYS / 8, thread);
    const float *products = memory.products + group * CHUNK * CHUNK;
    for (int32_t i = thread; i < CHUNK * CHUNK / 4; i += LOAD_THREADS) {
        const int32_t row = i / (CHUNK / 4), column = i % (CHUNK / 4) * 4;
        if (column / 16 <= row / 16) {
            copy_16(&stage->products[row][column], products + i * 4);
        }
    }
    if (thread < FACTORS * CHUNK / 4) {
        copy_16(stage->factors[0] + thread * 4, memory.factors + head * FACTORS * CHUNK + thread * 4);
    }
    /* Their rows may lie anywhere, so four bytes at a time. */
    const int32_t c = thread % COLUMNS, first = thread / COLUMNS;
    const int32_t column = place.head * args.shape.value_size + place.column + c;
    const unsigned char *from = (const unsigned char *)(sl_f32(args.xbc, place.first + first) + column);
    enum { STEP = LOAD_THREADS / COLUMNS };
    for (int32_t row = first; row < CHUNK; row += STEP, from += STEP * args.xbc.row_bytes) {
        const bool there = row < place.count;
        copy_4(&stage->values[row][c], there ? (const void *)from : (const void *)args.xbc.data, there);
    }
}

/* X^T, each row of the chunk times its factor, as a left factor: a warp's 16 columns of rows [first, first +
 * 16). */
template <int KEYS>
static __device__ __forceinline__ left_factor weigh_values(const ssm_walk_stage<KEYS> &stage, int32_t first,
                                                           int32_t side, const float *factors) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    left_factor a;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int32_t row = first + 8 * half + 2 * (lane % 4);
        const float2 factor = *(const float2 *)(factors + row);
        const float *x = &stage.values[row][16 * side + lane / 4];
        set_word(&a, 2 * half, factor.x * x[0], factor.y * x[VALUE_STRIDE]);
        set_word(&a, 2 * half + 1, factor.x * x[8], factor.y * x[VALUE_STRIDE + 8]);
    }
    return a;
}

/* ---- the state ---- */

/* state: S^T [16][KEYS / HALVES] in the layout of results; `half` of the keys. */
template <int KEYS>
static __device__ __forceinline__ void hand_over(const float (*state)[4], int32_t side, int32_t half,
                                                 ssm_walk_shared<KEYS> *shared) {
    enum { STEPS_EACH = KEYS / HALVES / 16 };
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
#pragma unroll
    for (int step = 0; step < STEPS_EACH; step++) {
        left_factor a;
        set_word(&a, 0, state[2 * step][0], state[2 * step][1]);
        set_word(&a, 1, state[2 * step][2], state[2 * step][3]);
        set_word(&a, 2, state[2 * step + 1][0], state[2 * step + 1][1]);
        set_word(&a, 3, state[2 * step + 1][2], state[2 * step + 1][3]);
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const uint32_t *words = a.words[part];
            shared->state[part][half * STEPS_EACH + step][side][lane] =
                make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
}

template <int KEYS>
static __device__ __forceinline__ void update_state(const ssm_walk_stage<KEYS> &stage, int32_t side,
                                                    int32_t half, float (*state)[4]) {
    typedef ssm_chunk_shape<KEYS> shape;
    enum { EACH = KEYS / HALVES / 16, BATCH = EACH < 4 ? EACH : 4 };
    const float decay = stage.factors[GROWTHS][shape::CHUNK - 1];
#pragma unroll
    for (int n = 0; n < KEYS / HALVES / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            state[n][i] *= decay;
        }
    }
#pragma unroll
    for (int m = 0; m < shape::TILES; m++) {
        const left_factor a = weigh_values<KEYS>(stage, 16 * m, side, stage.factors[RESTS]);
#pragma unroll
        for (int base = 0; base < EACH; base += BATCH) {
            right_factor right[BATCH];
#pragma unroll
            for (int n = 0; n < BATCH; n++) {
                const int32_t key = 16 * (half * EACH + base + n);
                load_right_rows(right[n].words[HIGH], &stage.writes[HIGH][16 * m][key], shape::STRIDE);
                load_right_rows(right[n].words[LOW], &stage.writes[LOW][16 * m][key], shape::STRIDE);
            }
            add_products<BATCH>(state + 2 * base, a, right);
        }
    }
}

/* From the old slot, through all chunks, to the new one. */
template <int KEYS>
static __device__ __forceinline__ void walk_states(const sl_cuda_context &context, const ssm_args &args,
                                                   const sl_step_span &span, const ssm_walk_place &start,
                                                   ssm_walk_shared<KEYS> *shared) {
    /* Element i of tile n: key 8 n + 2 (lane % 4) + i % 2, column lane / 4 + 8 (i / 2) of the warp's. */
    float state[KEYS / HALVES / 8][4];
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, values = args.shape.value_size;
    const int32_t side = start.side, half = start.half;
    const float *old = delta_old_state(context, span, args.shape.delta_offset);
    float *left = delta_new_state(context, span, span.row_count - 1, args.shape.delta_offset);
    const int64_t at = ((int64_t)start.head * KEYS + half * (KEYS / HALVES) + 2 * (lane % 4)) * values +
                       start.column + 16 * side + lane / 4;
#pragma unroll
    for (int n = 0; n < KEYS / HALVES / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            state[n][i] = old ? old[at + (int64_t)(8 * n + i % 2) * values + i / 2 * 8] : 0.0f;
        }
    }
    const int32_t chunks = chunks_of<ssm_chunk_shape<KEYS>::CHUNK>(span);
    for (int32_t c = 0; c < chunks; c++) {
        sl_meet<CHUNK_BARRIER, WALK_THREADS>();
        hand_over<KEYS>(state, side, half, shared);
        sl_meet_without_waiting<HANDED_BARRIER, HANDED_THREADS>();
        update_state<KEYS>(shared->stages[c % 2], side, half, state);
    }
#pragma unroll
    for (int n = 0; n < KEYS / HALVES / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            left[at + (int64_t)(8 * n + i % 2) * values + i / 2 * 8] = state[n][i];
        }
    }
}

/* ---- the outputs ---- */

/* A warp's tiles of 16 rows: one from the front and one from the back, so that all have as much left of the
 * diagonal. */
template <int KEYS> static __device__ __forceinline__ int32_t tile_at(int32_t half, int i) {
    return i == 0 ? half : ssm_chunk_shape<KEYS>::TILES - 1 - half;
}

/* P^T, P[t][i] = (g_t / g_i) (C_t . B_i) for i <= t, else 0: rows [i, i + 16) and columns [t, t + 16). */
template <int KEYS>
static __device__ __forceinline__ right_factor weigh_products(const ssm_walk_stage<KEYS> &stage, int32_t t,
                                                              int32_t i) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    right_factor b;
    t += lane / 4;
    i += 2 * (lane % 4);
#pragma unroll
    for (int word = 0; word < 4; word++) {
        const int32_t row = t + word / 2 * 8, column = i + word % 2 * 8;
        const float log = stage.factors[LOGS][row];
        const float2 logs = *(const float2 *)&stage.factors[LOGS][column];
        const float2 products = *(const float2 *)&stage.products[row][column];
        const uint2 parts = split(column <= row ? __expf(log - logs.x) * products.x : 0.0f,
                                  column + 1 <= row ? __expf(log - logs.y) * products.y : 0.0f);
        b.words[HIGH][word] = parts.x;
        b.words[LOW][word] = parts.y;
    }
    return b;
}

/* The outputs of a chunk for a warp's 16 columns and half of the rows. */
template <int KEYS>
static __device__ __forceinline__ void make_outputs(const ssm_args &args, const ssm_walk_place &place,
                                                    const ssm_walk_shared<KEYS> &shared,
                                                    const ssm_walk_stage<KEYS> &stage) {
    typedef ssm_chunk_shape<KEYS> shape;
    enum { EACH = shape::TILES / HALVES };
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    float inner[2 * EACH][4] = {}, outer[2 * EACH][4] = {}; /* from the chunk's rows, from the state */
#pragma unroll
    for (int step = 0; step < shape::TILES; step++) {
        if (step > tile_at<KEYS>(place.half, EACH - 1)) {
            break;
        }
        const left_factor a = weigh_values<KEYS>(stage, 16 * step, place.side, stage.factors[STEPS]);
#pragma unroll
        for (int n = 0; n < EACH; n++) {
            const int32_t tile = tile_at<KEYS>(place.half, n);
            if (step <= tile) {
                const right_factor right = weigh_products<KEYS>(stage, 16 * tile, 16 * step);
                add_products<1>(inner + 2 * n, a, &right);
            }
        }
    }
    sl_meet<HANDED_BARRIER, HANDED_THREADS>();
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        left_factor a;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const uint4 words = shared.state[part][step][place.side][lane];
            a.words[part][0] = words.x;
            a.words[part][1] = words.y;
            a.words[part][2] = words.z;
            a.words[part][3] = words.w;
        }
        right_factor right[EACH];
#pragma unroll
        for (int n = 0; n < EACH; n++) {
            const int32_t row = 16 * tile_at<KEYS>(place.half, n);
            load_right(right[n].words[HIGH], &stage.reads[HIGH][row][16 * step], shape::STRIDE);
            load_right(right[n].words[LOW], &stage.reads[LOW][row][16 * step], shape::STRIDE);
        }
        add_products<EACH>(outer, a, right);
    }
    const float skip = args.skip[place.head];
    const int32_t column = place.head * args.shape.value_size + place.column + 16 * place.side + lane / 4;
#pragma unroll
    for (int n = 0; n < 2 * EACH; n++) {
#pragma unroll
        for (int next = 0; next < 2; next++) {
            const int32_t t = 16 * tile_at<KEYS>(place.half, n / 2) + 8 * (n % 2) + 2 * (lane % 4) + next;
            if (t < place.count) {
                const float growth = stage.factors[GROWTHS][t],
                            *x = &stage.values[t][16 * place.side + lane / 4];
                float *row = sl_f32(args.y, place.first + t) + column;
                row[0] = fmaf(skip, x[0], fmaf(growth, outer[n][next], inner[n][next]));
                row[8] = fmaf(skip, x[8], fmaf(growth, outer[n][2 + next], inner[n][2 + next]));
            }
        }
    }
}

/* A block per span with chunks, head and COLUMNS columns of the state. Between two meetings the state takes
 * chunk c, its outputs are made, and chunk c + 1 is copied. */
template <int KEYS>
static __global__ void __launch_bounds__(WALK_THREADS, 1)
    ssm_walk_kernel(sl_cuda_context context, ssm_args args, ssm_chunk_memory memory) {
    enum { CHUNK = ssm_chunk_shape<KEYS>::CHUNK };
    extern __shared__ uint4 dynamic[];
    ssm_walk_shared<KEYS> *shared = (ssm_walk_shared<KEYS> *)dynamic;
    sl_wait_for_inputs();
    ssm_walk_place place = {};
    const int32_t number = find_span<CHUNK>(context, (int32_t)blockIdx.z, &place.chunk);
    if (number == SL_NONE) {
        return;
    }
    const sl_step_span &span = context.spans[number];
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, chunks = chunks_of<CHUNK>(span);
    place.head = (int32_t)blockIdx.y;
    place.group = place.head / (args.scan.heads / args.scan.groups);
    place.column = (int32_t)blockIdx.x * COLUMNS;
    place.first = span.first_row;
    place.count = span.row_count;
    place.side = warp % SIDES;
    place.half = warp / SIDES % HALVES;
    if (warp < STATE_WARPS) {
        walk_states<KEYS>(context, args, span, place, shared);
    } else if (warp < STATE_WARPS + OUTPUT_WARPS) {
        for (int32_t c = 0; c < chunks; c++) {
            sl_meet<CHUNK_BARRIER, WALK_THREADS>();
            make_outputs<KEYS>(args, place, *shared, shared->stages[c % 2]);
            place.first += CHUNK;
            place.count -= CHUNK;
        }
    } else {
        const int32_t thread = (int32_t)threadIdx.x - HANDED_THREADS;
        for (int32_t c = 0; c < chunks; c++) {
            load_chunk<KEYS>(args, memory, place, thread, &shared->stages[c % 2]);
            place.chunk++;
            place.first += CHUNK;
            place.count -= CHUNK;
            sl_copy_wait_all();
            sl_meet<CHUNK_BARRIER, WALK_THREADS>();
        }
    }
}

#endif
