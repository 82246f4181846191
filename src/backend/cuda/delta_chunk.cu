/* The gated delta rule for many rows of a sequence: chunks of 64 rows, products on the tensor cores.
 *
 * For one value head, with decay a_t in (0, 1], row vectors q_t, k_t, v_t and a state S [keys][values]:
 *
 *     u_t = b_t (v_t - a_t k_t S_{t-1});   S_t = a_t S_{t-1} + k_t^T u_t;   y_t = q_t S_t.
 *
 * Let g_t be a_1 ... a_t within a chunk that begins with S. Unrolled, S_t = g_t S + sum over i <= t of (g_t /
 * g_i) k_i^T u_i, and so
 *
 *     (I + A) U = B (V - G K S),      A[t][i] = b_t (g_t / g_i) (k_t . k_i) for i < t, else 0
 *     Y = G Q S + P U,                P[t][i] =     (g_t / g_i) (q_t . k_i) for i <= t, else 0
 *     S' = g_C S + (E K)^T U,         E = diag(g_C / g_t)
 *
 * with B = diag(b_t), G = diag(g_t). T = (I + A)^-1 is lower triangular with ones on its diagonal. Nothing
 * but the last line goes from chunk to chunk. (The WY form of products of Householder-like matrices, Bischof
 * and Van Loan 1987; for the delta rule Yang et al. 2024, arXiv 2406.06484, with decay Yang et al. 2024,
 * arXiv 2412.06464.) Decays are added as logarithms and only differences of later minus earlier ones are
 * raised, so nothing overflows.
 *
 * Two launches. The first, for all chunks at once: normalised q and k, the products K K^T and Q K^T, T by
 * substitution in f32, and P. The second walks the chunks of a span; a warp keeps 16 columns of S,
 * transposed, as accumulators in its registers, so that its products chain without leaving them: the state is
 * the left factor of S^T K^T and S^T Q^T, the result of one product the left factor of the next.
 *
 * Factors are rounded to f16 (11 bits), sums are f32, and so is the state. A v or u beyond 65504 overflows.
 * Chunks begin where a span begins, so the bits depend on where a sequence was cut into steps, but on no
 * other row. */
#include "backend/cuda/delta.cuh"

#include <cuda_fp16.h>

enum {
    CHUNK = 64,
    PREPARE_WARPS = 4,
    PREPARE_THREADS = PREPARE_WARPS * SL_WARP,
    SOLVED = 2, /* value heads solved side by side */
    SOLVE_STRIDE = CHUNK + 4,
    WALK_WARPS = 2,
    WALK_THREADS = WALK_WARPS * SL_WARP,
    WALK_COLUMNS = 16 * WALK_WARPS, /* of the state, in one block */
    SQUARE_STRIDE = CHUNK + 8,      /* halves; rows 16 bytes apart in the banks */
    VALUE_STRIDE = WALK_COLUMNS + 4,
    FACTORS = 3, /* b, g, g_C / g_t */
    LEAST_ROWS = 32
};
#define MOST_SCRATCH (UINT64_C(512) << 20)
#define LEAST_DECAY (-100.0f) /* of a logarithm: its power is 0 */

/* What the first launch leaves for the second; chunks of all spans one after the other. */
typedef struct chunk_memory {
    __half *k, *q;            /* [chunks][key_heads][CHUNK][key_size] */
    __half *solved, *weights; /* T and P: [chunks][value_heads][CHUNK][CHUNK] */
    float *factors;           /* [chunks][value_heads][FACTORS][CHUNK] */
} chunk_memory;

/* ---- pieces ---- */

static __device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* c[16][8] += a[16][16] b[16][8] */
static __device__ __forceinline__ void multiply(float *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void load_matrices(uint32_t *r, const __half *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

static __device__ __forceinline__ void load_transposed(uint32_t *r, const __half *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Left factor: rows [0, 16) and columns [0, 16) from `tile` on. */
static __device__ __forceinline__ void load_left(uint32_t *a, const __half *tile, int32_t stride) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    load_matrices(a, tile + (lane % 16) * stride + lane / 16 * 8);
}

/* Right factors of two products, b[16][8] each: the transposes of rows [0, 8) and [8, 16), columns [0, 16).
 */
static __device__ __forceinline__ void load_right(uint32_t *b, const __half *tile, int32_t stride) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    load_matrices(b, tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
}

/* As they lie: rows [0, 16), columns [0, 8) and [8, 16). */
static __device__ __forceinline__ void load_right_rows(uint32_t *b, const __half *tile, int32_t stride) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    load_transposed(b, tile + (lane % 16) * stride + lane / 16 * 8);
}

/* Results [16][16], two neighbours of 8 columns, as a left factor. */
static __device__ __forceinline__ void as_left(uint32_t *a, const float *c0, const float *c1) {
    a[0] = pack(c0[0], c0[1]);
    a[1] = pack(c0[2], c0[3]);
    a[2] = pack(c1[0], c1[1]);
    a[3] = pack(c1[2], c1[3]);
}

static __device__ __forceinline__ void copy_16(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

/* Zero where it is not there. */
static __device__ __forceinline__ void copy_4(void *to, const void *from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(there ? 4 : 0)
                 : "memory");
}

/* ---- the first launch ---- */

typedef struct chunk_place {
    int32_t span, first, count; /* row of the step, and how many; count is 0 when there is no such chunk */
} chunk_place;

/* By the first warp. */
static __device__ void find_chunk(const sl_cuda_context &context, int32_t chunk, chunk_place *place) {
    const int32_t lane = (int32_t)threadIdx.x, spans = context.header->spans;
    int32_t before = 0;
    if (lane == 0) {
        place->count = 0;
    }
    __syncwarp();
    for (int32_t base = 0; base < spans && before <= chunk; base += SL_WARP) {
        const int32_t rows = base + lane < spans ? context.spans[base + lane].row_count : 0;
        const int32_t chunks = (rows + CHUNK - 1) / CHUNK;
        int32_t end = chunks;
        for (int distance = 1; distance < SL_WARP; distance *= 2) {
            const int32_t other = __shfl_up_sync(SL_FULL_WARP, end, distance);
            end += lane >= distance ? other : 0;
        }
        end += before;
        if (chunk >= end - chunks && chunk < end) {
            const int32_t done = (chunk - (end - chunks)) * CHUNK;
            place->span = base + lane;
            place->first = context.spans[base + lane].first_row + done;
            place->count = rows - done < CHUNK ? rows - done : CHUNK;
        }
        before = __shfl_sync(SL_FULL_WARP, end, SL_WARP - 1);
    }
}

template <int KEYS> struct prepare_shared {
    __half k[CHUNK][KEYS + 8], q[CHUNK][KEYS + 8];
    float system[SOLVED][CHUNK][SOLVE_STRIDE]; /* A transposed: [i][t] */
    float logs[SOLVED][CHUNK], betas[SOLVED][CHUNK];
    chunk_place place;
};

/* A warp's 16 rows of q or k: normalised, rounded; zeros past the last row. */
template <int KEYS>
static __device__ __forceinline__ void load_rows(const delta_args &args, const chunk_place &place,
                                                 int32_t column, float scale, __half (*out)[KEYS + 8]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, first = (int32_t)threadIdx.x / SL_WARP * 16;
    enum { EACH = KEYS / SL_WARP, BATCH = 4 };
    for (int32_t base = first; base < first + 16; base += BATCH) {
        float x[BATCH][EACH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const float *row = sl_f32(args.x, place.first + base + b) + column;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                x[b][i] = base + b < place.count ? row[lane + SL_WARP * i] : 0.0f;
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                sum = fmaf(x[b][i], x[b][i], sum);
            }
            const float factor = 1.0f / sqrtf(sl_warp_sum(sum) + 1e-6f) * scale;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                out[base + b][lane + SL_WARP * i] = __float2half_rn(x[b][i] * factor);
            }
        }
    }
}

/* By one warp, for value head `head`: b_t and the sums of logarithms of decays. */
static __device__ void load_factors(const delta_args &args, const chunk_place &place, int32_t head,
                                    float *logs, float *betas) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const float rate = delta_rate(args, head), bias = args.dt_bias[head];
    float before = 0;
    for (int32_t t = lane; t < CHUNK; t += SL_WARP) {
        const bool there = t < place.count;
        const int64_t row = place.first + (there ? t : 0);
        float sum = there ? rate * delta_softplus(sl_f32(args.a, row)[head] + bias) : 0.0f;
        sum = sum < LEAST_DECAY ? LEAST_DECAY : sum;
        for (int distance = 1; distance < SL_WARP; distance *= 2) {
            const float other = __shfl_up_sync(SL_FULL_WARP, sum, distance);
            sum += lane >= distance ? other : 0.0f;
        }
        logs[t] = sum + before;
        before += __shfl_sync(SL_FULL_WARP, sum, SL_WARP - 1);
        betas[t] = there ? sl_sigmoid(sl_f32(args.b, row)[head]) : 0.0f;
    }
}

/* A warp's 16 rows of A, transposed, and of P, from K K^T and Q K^T in the layout of results. */
static __device__ __forceinline__ void weigh(const float (*kk)[4], const float (*qk)[4], const float *logs,
                                             const float *betas, float (*system)[SOLVE_STRIDE],
                                             __half *weights) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, first = (int32_t)threadIdx.x / SL_WARP * 16;
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t t = first + lane / 4 + 8 * half, i = 8 * n + 2 * (lane % 4);
            const float low = i <= t ? expf(logs[t] - logs[i]) : 0.0f;
            const float high = i + 1 <= t ? expf(logs[t] - logs[i + 1]) : 0.0f;
            system[i][t] = i < t ? betas[t] * low * kk[n][2 * half] : 0.0f;
            system[i + 1][t] = i + 1 < t ? betas[t] * high * kk[n][2 * half + 1] : 0.0f;
            *(uint32_t *)(weights + t * CHUNK + i) =
                pack(i <= t ? low * qk[n][2 * half] : 0.0f, i + 1 <= t ? high * qk[n][2 * half + 1] : 0.0f);
        }
    }
}

/* Column `column` of T: (I + A) x = e_column, one unknown after the other. */
static __device__ __noinline__ void solve(const float (*system)[SOLVE_STRIDE], int32_t column,
                                          __half *solved) {
    float x[CHUNK];
#pragma unroll
    for (int t = 0; t < CHUNK; t++) {
        x[t] = t == column ? 1.0f : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < CHUNK - 1; i++) {
#pragma unroll
        for (int base = (i + 1) / 4 * 4; base < CHUNK; base += 4) {
            const float4 a = *(const float4 *)&system[i][base];
            const float each[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (base + j > i) {
                    x[base + j] = fmaf(-each[j], x[i], x[base + j]);
                }
            }
        }
    }
#pragma unroll
    for (int t = 0; t < CHUNK; t++) {
        solved[t * CHUNK + column] = __float2half_rn(x[t]);
    }
}

/* A block per chunk and key head, for the value heads that use it. */
template <int KEYS>
static __global__ void __launch_bounds__(PREPARE_THREADS)
    prepare_kernel(sl_cuda_context context, delta_args args, chunk_memory memory) {
    extern __shared__ uint4 dynamic[];
    prepare_shared<KEYS> &s = *(prepare_shared<KEYS> *)dynamic;
    sl_wait_for_inputs();
    const int32_t chunk = (int32_t)blockIdx.x, key_head = (int32_t)blockIdx.y;
    const int32_t key_heads = args.scan.key_heads, ratio = args.scan.value_heads / key_heads;
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP;
    if (warp == 0) {
        find_chunk(context, chunk, &s.place);
    }
    __syncthreads();
    if (s.place.count == 0) {
        return;
    }
    const chunk_place place = s.place;
    load_rows<KEYS>(args, place, key_head * KEYS, 1.0f / sqrtf((float)KEYS), s.q);
    load_rows<KEYS>(args, place, (key_heads + key_head) * KEYS, 1.0f, s.k);
    __syncthreads();
    const int64_t at = ((int64_t)chunk * key_heads + key_head) * CHUNK * KEYS;
    for (int32_t i = (int32_t)threadIdx.x; i < CHUNK * KEYS / 8; i += PREPARE_THREADS) {
        const int32_t row = i / (KEYS / 8), column = i % (KEYS / 8) * 8;
        *(uint4 *)(memory.k + at + (int64_t)i * 8) = *(const uint4 *)&s.k[row][column];
        *(uint4 *)(memory.q + at + (int64_t)i * 8) = *(const uint4 *)&s.q[row][column];
    }
    float kk[CHUNK / 8][4] = {}, qk[CHUNK / 8][4] = {};
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        uint32_t left_k[4], left_q[4];
        load_left(left_k, &s.k[16 * warp][16 * step], KEYS + 8);
        load_left(left_q, &s.q[16 * warp][16 * step], KEYS + 8);
#pragma unroll
        for (int n = 0; n < CHUNK / 16; n++) {
            if (n <= warp) {
                uint32_t right[4];
                load_right(right, &s.k[16 * n][16 * step], KEYS + 8);
                multiply(kk[2 * n], left_k, right[0], right[1]);
                multiply(kk[2 * n + 1], left_k, right[2], right[3]);
                multiply(qk[2 * n], left_q, right[0], right[1]);
                multiply(qk[2 * n + 1], left_q, right[2], right[3]);
            }
        }
    }
    for (int32_t base = 0; base < ratio; base += SOLVED) {
        const int32_t heads = ratio - base < SOLVED ? ratio - base : SOLVED;
        int64_t index[SOLVED];
        for (int32_t h = 0; h < SOLVED; h++) {
            const int32_t head =
                args.scan.keys_cycle ? key_head + (base + h) * key_heads : key_head * ratio + base + h;
            index[h] = (int64_t)chunk * args.scan.value_heads + head;
            if (h < heads && warp == h) {
                load_factors(args, place, head, s.logs[h], s.betas[h]);
            }
        }
        __syncthreads();
        for (int32_t h = 0; h < heads; h++) {
            weigh(kk, qk, s.logs[h], s.betas[h], s.system[h], memory.weights + index[h] * CHUNK * CHUNK);
        }
        __syncthreads();
        const int32_t mine = (int32_t)threadIdx.x / CHUNK, t = (int32_t)threadIdx.x % CHUNK;
        if (mine < heads) {
            solve(s.system[mine], t, memory.solved + index[mine] * CHUNK * CHUNK);
            float *factors = memory.factors + index[mine] * FACTORS * CHUNK;
            factors[t] = s.betas[mine][t];
            factors[CHUNK + t] = expf(s.logs[mine][t]);
            factors[2 * CHUNK + t] = expf(s.logs[mine][CHUNK - 1] - s.logs[mine][t]);
        }
        __syncthreads();
    }
}

/* ---- the second launch ---- */

/* One chunk, as a block of the walk reads it. */
template <int KEYS> struct walk_stage {
    __half k[CHUNK][KEYS + 8], q[CHUNK][KEYS + 8];
    __half solved[CHUNK][SQUARE_STRIDE], weights[CHUNK][SQUARE_STRIDE];
    float values[CHUNK][VALUE_STRIDE];
    float factors[FACTORS][CHUNK];
};

typedef struct walk_place {
    int32_t chunk, first, count; /* in the memory; row of the step; rows */
    int32_t head, key_head, column;
} walk_place;

/* Starts the copies; 16 bytes each but for the values, whose rows lie anywhere. */
template <int KEYS>
static __device__ __forceinline__ void load_stage(const delta_args &args, const chunk_memory &memory,
                                                  const walk_place &place, walk_stage<KEYS> *stage) {
    const int32_t thread = (int32_t)threadIdx.x;
    const int64_t keys = ((int64_t)place.chunk * args.scan.key_heads + place.key_head) * CHUNK * KEYS;
    const int64_t head = (int64_t)place.chunk * args.scan.value_heads + place.head;
    for (int32_t i = thread; i < CHUNK * KEYS / 8; i += WALK_THREADS) {
        const int32_t row = i / (KEYS / 8), column = i % (KEYS / 8) * 8;
        copy_16(&stage->k[row][column], memory.k + keys + (int64_t)i * 8);
        copy_16(&stage->q[row][column], memory.q + keys + (int64_t)i * 8);
    }
    for (int32_t i = thread; i < CHUNK * CHUNK / 8; i += WALK_THREADS) {
        const int32_t row = i / (CHUNK / 8), column = i % (CHUNK / 8) * 8;
        copy_16(&stage->solved[row][column], memory.solved + head * CHUNK * CHUNK + i * 8);
        copy_16(&stage->weights[row][column], memory.weights + head * CHUNK * CHUNK + i * 8);
    }
    for (int32_t i = thread; i < FACTORS * CHUNK / 4; i += WALK_THREADS) {
        copy_16(&stage->factors[0][0] + i * 4, memory.factors + head * FACTORS * CHUNK + i * 4);
    }
    const int32_t column = 2 * args.scan.key_heads * KEYS + place.head * args.shape.value_size + place.column;
    for (int32_t i = thread; i < CHUNK * WALK_COLUMNS; i += WALK_THREADS) {
        const int32_t row = i / WALK_COLUMNS, c = i % WALK_COLUMNS;
        const bool there = row < place.count;
        copy_4(&stage->values[row][c], sl_f32(args.x, place.first + (there ? row : 0)) + column + c, there);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* out[16][CHUNK] += S^T rows^T: of the warp's columns of the state, and q or k. */
template <int KEYS>
static __device__ __forceinline__ void read_state(const float (*state)[4], const __half (*rows)[KEYS + 8],
                                                  int32_t tiles, float (*out)[4]) {
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        uint32_t left[4];
        as_left(left, state[2 * step], state[2 * step + 1]);
#pragma unroll
        for (int n = 0; n < CHUNK / 16; n++) {
            if (n < tiles) {
                uint32_t right[4];
                load_right(right, &rows[16 * n][16 * step], KEYS + 8);
                multiply(out[2 * n], left, right[0], right[1]);
                multiply(out[2 * n + 1], left, right[2], right[3]);
            }
        }
    }
}

/* out[16][CHUNK] += left[16][CHUNK] lower^T, a lower triangular matrix. */
static __device__ __forceinline__ void
apply_lower(const uint32_t (*left)[4], const __half (*lower)[SQUARE_STRIDE], int32_t tiles, float (*out)[4]) {
#pragma unroll
    for (int step = 0; step < CHUNK / 16; step++) {
#pragma unroll
        for (int n = step; n < CHUNK / 16; n++) {
            if (n < tiles) {
                uint32_t right[4];
                load_right(right, &lower[16 * n][16 * step], SQUARE_STRIDE);
                multiply(out[2 * n], left[step], right[0], right[1]);
                multiply(out[2 * n + 1], left[step], right[2], right[3]);
            }
        }
    }
}

/* Of the warp's columns, from `column` of the block on. */
static __device__ __forceinline__ void store(const delta_args &args, const walk_place &place, int32_t column,
                                             const float (*y)[4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t t = 8 * n + 2 * (lane % 4) + i % 2;
            if (t < place.count) {
                sl_f32(args.y,
                       place.first +
                           t)[place.head * args.shape.value_size + place.column + column + i / 2 * 8] =
                    y[n][i];
            }
        }
    }
}

/* One chunk for the warp's 16 columns: state is S^T [16][KEYS] in the layout of results. */
template <int KEYS>
static __device__ __forceinline__ void take_chunk(const delta_args &args, const walk_place &place,
                                                  const walk_stage<KEYS> &stage, float (*state)[4]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    const int32_t tiles = (place.count + 15) / 16, column = 16 * warp + lane / 4;
    uint32_t left[CHUNK / 16][4], scaled[CHUNK / 16][4];
    float x[CHUNK / 8][4] = {};
    read_state<KEYS>(state, stage.k, tiles, x);
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t t = 8 * n + 2 * (lane % 4) + i % 2;
            x[n][i] =
                stage.factors[0][t] * (stage.values[t][column + i / 2 * 8] - stage.factors[1][t] * x[n][i]);
        }
    }
#pragma unroll
    for (int m = 0; m < CHUNK / 16; m++) {
        as_left(left[m], x[2 * m], x[2 * m + 1]);
    }
    float u[CHUNK / 8][4] = {};
    apply_lower(left, stage.solved, tiles, u);
#pragma unroll
    for (int m = 0; m < CHUNK / 16; m++) {
        as_left(left[m], u[2 * m], u[2 * m + 1]);
    }
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u[n][i] *= stage.factors[2][8 * n + 2 * (lane % 4) + i % 2];
        }
    }
#pragma unroll
    for (int m = 0; m < CHUNK / 16; m++) {
        as_left(scaled[m], u[2 * m], u[2 * m + 1]);
    }

    float y[CHUNK / 8][4] = {};
    read_state<KEYS>(state, stage.q, tiles, y);
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            y[n][i] *= stage.factors[1][8 * n + 2 * (lane % 4) + i % 2];
        }
    }
    apply_lower(left, stage.weights, tiles, y);
    store(args, place, column, y);

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
        if (m < tiles) {
#pragma unroll
            for (int n = 0; n < KEYS / 16; n++) {
                uint32_t right[4];
                load_right_rows(right, &stage.k[16 * m][16 * n], KEYS + 8);
                multiply(state[2 * n], scaled[m], right[0], right[1]);
                multiply(state[2 * n + 1], scaled[m], right[2], right[3]);
            }
        }
    }
}

/* By every warp: chunks of the spans before `span`. */
static __device__ int32_t chunks_before(const sl_cuda_context &context, int32_t span) {
    int32_t sum = 0;
    for (int32_t s = (int32_t)threadIdx.x % SL_WARP; s < span; s += SL_WARP) {
        sum += (context.spans[s].row_count + CHUNK - 1) / CHUNK;
    }
    for (int distance = SL_WARP / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(SL_FULL_WARP, sum, distance);
    }
    return sum;
}

/* A block per span, value head and WALK_COLUMNS columns of the state. */
template <int KEYS>
static __global__ void __launch_bounds__(WALK_THREADS)
    walk_kernel(sl_cuda_context context, delta_args args, chunk_memory memory) {
    extern __shared__ uint4 dynamic[];
    walk_stage<KEYS> *stages = (walk_stage<KEYS> *)dynamic;
    sl_wait_for_inputs();
    if ((int32_t)blockIdx.z >= context.header->spans) {
        return;
    }
    const sl_step_span &span = context.spans[blockIdx.z];
    const int32_t chunks = (span.row_count + CHUNK - 1) / CHUNK;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    const int32_t values = args.shape.value_size;
    walk_place place = {};
    place.head = (int32_t)blockIdx.y;
    place.key_head = delta_key_head(args, place.head);
    place.column = (int32_t)blockIdx.x * WALK_COLUMNS;
    place.chunk = chunks_before(context, (int32_t)blockIdx.z);
    place.first = span.first_row;
    place.count = span.row_count < CHUNK ? span.row_count : CHUNK;
    load_stage<KEYS>(args, memory, place, &stages[0]);

    /* Element i of tile n: key 8 n + 2 (lane % 4) + i % 2, column lane / 4 + 8 (i / 2) of the warp's. */
    float state[KEYS / 8][4];
    const float *old = delta_old_state(context, span, args.shape.delta_offset);
    float *left = delta_new_state(context, span, args.shape.delta_offset);
    const int64_t at =
        ((int64_t)place.head * KEYS + 2 * (lane % 4)) * values + place.column + 16 * warp + lane / 4;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            state[n][i] = old ? old[at + (int64_t)(8 * n + i % 2) * values + i / 2 * 8] : 0.0f;
        }
    }
    for (int32_t c = 0; c < chunks; c++) {
        walk_place next = place;
        next.chunk++;
        next.first += CHUNK;
        next.count = span.row_count - (c + 1) * CHUNK;
        next.count = next.count < CHUNK ? next.count : CHUNK;
        if (c + 1 < chunks) {
            load_stage<KEYS>(args, memory, next, &stages[(c + 1) % 2]);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
        __syncthreads();
        take_chunk<KEYS>(args, place, stages[c % 2], state);
        __syncthreads();
        place = next;
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            left[at + (int64_t)(8 * n + i % 2) * values + i / 2 * 8] = state[n][i];
        }
    }
}

/* ---- launches ---- */

static uint64_t most_chunks(uint64_t rows, uint64_t spans) {
    return rows / CHUNK + spans; /* each span may leave one partly empty */
}

/* Bytes of one chunk's part of each plane, all multiples of 16. */
static uint64_t key_bytes(const sl_state_layer *shape, const sl_op_delta_scan *scan) {
    return (uint64_t)scan->key_heads * CHUNK * (uint64_t)shape->key_size * sizeof(__half);
}

static uint64_t square_bytes(const sl_op_delta_scan *scan) {
    return (uint64_t)scan->value_heads * CHUNK * CHUNK * sizeof(__half);
}

static uint64_t factor_bytes(const sl_op_delta_scan *scan) {
    return (uint64_t)scan->value_heads * FACTORS * CHUNK * sizeof(float);
}

uint64_t sl_cuda_delta_chunk_workspace(const sl_kernel *kernel, const sl_kernel_query *query) {
    (void)kernel;
    const sl_op_delta_scan *scan = &query->op->u.delta_scan;
    const sl_state_layer *shape = &query->program->states[scan->state];
    const int32_t rows = query->rows[SL_ROWS_STEP], sequences = query->limits->sequences;
    return most_chunks((uint64_t)rows, (uint64_t)(rows < sequences ? rows : sequences)) *
           (2 * key_bytes(shape, scan) + 2 * square_bytes(scan) + factor_bytes(scan));
}

template <int KEYS>
static cudaError_t launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const delta_args args = delta_scan_args(op);
    const uint64_t chunks = most_chunks((uint64_t)op->rows[SL_ROWS_STEP], (uint64_t)op->spans);
    unsigned char *at = op->scratch;
    chunk_memory memory;
    memory.k = (__half *)at;
    at += chunks * key_bytes(&args.shape, &args.scan);
    memory.q = (__half *)at;
    at += chunks * key_bytes(&args.shape, &args.scan);
    memory.solved = (__half *)at;
    at += chunks * square_bytes(&args.scan);
    memory.weights = (__half *)at;
    at += chunks * square_bytes(&args.scan);
    memory.factors = (float *)at;
    const sl_launch_shape first = {dim3((unsigned)chunks, (unsigned)args.scan.key_heads),
                                   dim3(PREPARE_THREADS), (uint32_t)sizeof(prepare_shared<KEYS>)};
    const sl_launch_shape second = {dim3((unsigned)(args.shape.value_size / WALK_COLUMNS),
                                         (unsigned)args.scan.value_heads, (unsigned)op->spans),
                                    dim3(WALK_THREADS), (uint32_t)(2 * sizeof(walk_stage<KEYS>))};
    cudaError_t code = sl_launch(context, stream, first, prepare_kernel<KEYS>, *context, args, memory);
    return code == cudaSuccess ? sl_launch(context, stream, second, walk_kernel<KEYS>, *context, args, memory)
                               : code;
}

SL_CUDA_RUN(sl_cuda_delta_chunk) {
    switch (op->program->states[op->op->u.delta_scan.state].key_size) {
    case 64:
        return launch<64>(context, op, stream);
    case 128:
        return launch<128>(context, op, stream);
    default:
        return launch<256>(context, op, stream);
    }
}

template <int KEYS> static cudaError_t prepare(void) {
    cudaError_t code = cudaFuncSetAttribute(prepare_kernel<KEYS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            (int)sizeof(prepare_shared<KEYS>));
    return code == cudaSuccess
               ? cudaFuncSetAttribute(walk_kernel<KEYS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)(2 * sizeof(walk_stage<KEYS>)))
               : code;
}

static size_t shared_needed(int32_t key_size) {
    return key_size == 64    ? 2 * sizeof(walk_stage<64>)
           : key_size == 128 ? 2 * sizeof(walk_stage<128>)
                             : 2 * sizeof(walk_stage<256>);
}

cudaError_t sl_cuda_delta_prepare(int device) {
    int most = 0;
    cudaError_t code = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    code = code == cudaSuccess && shared_needed(64) <= (size_t)most ? prepare<64>() : code;
    code = code == cudaSuccess && shared_needed(128) <= (size_t)most ? prepare<128>() : code;
    return code == cudaSuccess && shared_needed(256) <= (size_t)most ? prepare<256>() : code;
}

const char *sl_cuda_delta_chunk_declines(const sl_kernel *kernel, const sl_kernel_query *query) {
    const sl_state_layer *shape = &query->program->states[query->op->u.delta_scan.state];
    if (shape->key_size != 64 && shape->key_size != 128 && shape->key_size != 256) {
        return "takes keys of 64, 128 and 256";
    }
    if (shape->value_size % WALK_COLUMNS != 0) {
        return "takes values that are multiples of 32";
    }
    if (query->rows[SL_ROWS_STEP] < LEAST_ROWS) {
        return "takes 32 rows or more";
    }
    if (sl_cuda_delta_chunk_workspace(kernel, query) > MOST_SCRATCH) {
        return "its parts would take more than 512 MiB";
    }
    int most = 0;
    if (cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                               query->backend->options.device) != cudaSuccess ||
        shared_needed(shape->key_size) > (size_t)most) {
        return "the device has too little shared memory for this key size";
    }
    return NULL;
}
