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
 * The first launch makes, for all chunks at once: normalised q and k, the products K K^T and Q K^T, T by
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
    SHORT_ROWS = 23, /* of a span; up to here the scan is faster */
    PREPARE_WARPS = 4,
    PREPARE_THREADS = PREPARE_WARPS * SL_WARP,
    SOLVED = 2, /* value heads solved side by side, with CHUNK threads each */
    SOLVE_STRIDE = CHUNK + 8,
    LOAD_WARPS = 2, /* of the walk */
    LOAD_THREADS = LOAD_WARPS * SL_WARP,
    SQUARE_STRIDE = CHUNK + 8, /* halves; rows 16 bytes apart in the banks */
    FACTORS = 3,               /* b, g, g_C / g_t */
    LEAST_ROWS = 32
};
#define MOST_SCRATCH (UINT64_C(512) << 20)
#define LEAST_DECAY (-200.0f) /* of a logarithm: its power is 0 */
#define LOG2_E 1.44269504088896341f

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

/* Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void load_matrices(uint32_t *r, const __half *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(sl_shared_address(row))
                 : "memory");
}

static __device__ __forceinline__ void load_transposed(uint32_t *r, const __half *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(sl_shared_address(row))
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
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(sl_shared_address(to)), "l"(from)
                 : "memory");
}

/* Zero where it is not there. */
static __device__ __forceinline__ void copy_4(void *to, const void *from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(sl_shared_address(to)), "l"(from),
                 "r"(there ? 4 : 0)
                 : "memory");
}

static __device__ __forceinline__ int32_t chunks_of(int32_t rows) {
    return rows > SHORT_ROWS ? (rows + CHUNK - 1) / CHUNK : 0;
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
        const int32_t chunks = chunks_of(rows);
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
    union {
        struct {
            __half k[CHUNK][KEYS + 8], q[CHUNK][KEYS + 8];
        };
        float system[SOLVED][CHUNK][SOLVE_STRIDE]; /* afterwards: A, then T */
    };
    float logs[SOLVED][CHUNK], betas[SOLVED][CHUNK]; /* logarithms to base 2 */
    float totals[PREPARE_WARPS];
    chunk_place place;
};

/* A warp's 16 rows of q or k: normalised, rounded; zeros past the last row. */
template <int KEYS>
static __device__ __forceinline__ void load_rows(const delta_args &args, const chunk_place &place,
                                                 int32_t column, float scale, __half (*out)[KEYS + 8]) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, first = (int32_t)threadIdx.x / SL_WARP * 16;
    enum { EACH = KEYS / SL_WARP, BATCH = KEYS > 128 ? 4 : KEYS > 64 ? 8 : 16 };
    for (int32_t base = first; base < first + 16; base += BATCH) {
        float x[BATCH][EACH];
        const unsigned char *from =
            (const unsigned char *)(sl_f32(args.x, place.first + base) + column + lane);
#pragma unroll
        for (int b = 0; b < BATCH; b++, from += args.x.row_bytes) {
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                x[b][i] = base + b < place.count ? ((const float *)from)[SL_WARP * i] : 0.0f;
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

static __device__ __forceinline__ int32_t value_head(const delta_args &args, int32_t key_head,
                                                     int32_t index) {
    return args.scan.keys_cycle ? key_head + index * args.scan.key_heads
                                : key_head * (args.scan.value_heads / args.scan.key_heads) + index;
}

/* What a thread needs of row t of the chunk for one value head, as it lies in memory. */
typedef struct row_factors {
    float rate, decay, beta; /* decay: before softplus */
    bool there;
} row_factors;

static __device__ __forceinline__ row_factors load_factors(const delta_args &args, const chunk_place &place,
                                                           int32_t head, int32_t t) {
    const int64_t row = place.first + (t < place.count ? t : 0);
    row_factors factors;
    factors.rate = args.weight[head];
    factors.decay = sl_f32(args.a, row)[head] + args.dt_bias[head];
    factors.beta = sl_f32(args.b, row)[head];
    factors.there = t < place.count;
    return factors;
}

/* b_t, and the sums of logarithms of decays: two warps for a head, a thread for a row. Every thread of the
 * block comes here. */
static __device__ __forceinline__ void add_factors(const delta_args &args, const row_factors &factors,
                                                   int32_t t, float *logs, float *betas, float *totals) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    const float rate = args.scan.decay_is_negated ? factors.rate : -expf(factors.rate);
    float sum = factors.there ? rate * delta_softplus(factors.decay) * LOG2_E : 0.0f;
    sum = sum < LEAST_DECAY ? LEAST_DECAY : sum;
    for (int distance = 1; distance < SL_WARP; distance *= 2) {
        const float other = __shfl_up_sync(SL_FULL_WARP, sum, distance);
        sum += lane >= distance ? other : 0.0f;
    }
    if (lane == SL_WARP - 1) {
        totals[warp] = sum;
    }
    __syncthreads();
    logs[t] = t < SL_WARP ? sum : sum + totals[warp - 1];
    betas[t] = factors.there ? sl_sigmoid(factors.beta) : 0.0f;
    __syncthreads();
}

/* 2^x for x <= 0, within two units of the last place. */
static __device__ __forceinline__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* A warp's 16 rows of A and of P, from K K^T and Q K^T in the layout of results; as far as the blocks of 32
 * on the diagonal, what lies beyond is never read. */
static __device__ __forceinline__ void weigh(const float (*kk)[4], const float (*qk)[4], const float *logs,
                                             const float *betas, float (*system)[SOLVE_STRIDE],
                                             __half *weights) {
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int32_t t = 16 * warp + lane / 4 + 8 * half;
        const float log = logs[t], beta = betas[t];
#pragma unroll
        for (int n = 0; n < CHUNK / 8; n++) {
            if (n / 2 <= (warp | 1)) {
                const int32_t i = 8 * n + 2 * (lane % 4);
                const float2 logs_i = *(const float2 *)(logs + i);
                const float low = i <= t ? power(log - logs_i.x) : 0.0f;
                const float high = i + 1 <= t ? power(log - logs_i.y) : 0.0f;
                *(float2 *)&system[t][i] = make_float2(i < t ? beta * low * kk[n][2 * half] : 0.0f,
                                                       i + 1 < t ? beta * high * kk[n][2 * half + 1] : 0.0f);
                *(uint32_t *)(weights + t * CHUNK + i) =
                    pack(low * qk[n][2 * half], high * qk[n][2 * half + 1]);
            }
        }
    }
}

/* The inverse of a triangle of two, X and Z on the diagonal inverted already, Y below: -Z (Y X) in place of
 * Y, in two steps of which each ends when all threads have read. Y is SIZE by SIZE at row and column `at`;
 * the thread has COLUMNS columns of it from `column` on, and ROWS rows, STEP apart. */
template <int SIZE, int ROWS, int COLUMNS>
static __device__ __forceinline__ void invert_below(float (*m)[SOLVE_STRIDE], int32_t at, int32_t row,
                                                    int32_t column) {
    enum { STEP = SIZE / ROWS };
#pragma unroll
    for (int step = 0; step < 2; step++) {
        float out[ROWS][COLUMNS] = {};
        const int32_t inner = at + (step == 0 ? 0 : SIZE);
        const float *left = m[at + SIZE + row] + inner, *right = m[inner] + at + column;
#pragma unroll 8
        for (int k = 0; k < SIZE; k++) {
            float a[ROWS], b[COLUMNS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                a[r] = left[r * STEP * SOLVE_STRIDE + k];
            }
#pragma unroll
            for (int c = 0; c < COLUMNS; c += 4) {
                *(float4 *)(b + c) = *(const float4 *)(right + k * SOLVE_STRIDE + c);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    out[r][c] = fmaf(a[r], b[c], out[r][c]);
                }
            }
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                m[at + SIZE + row + r * STEP][at + column + c] = step == 0 ? out[r][c] : -out[r][c];
            }
        }
        __syncthreads();
    }
}

/* I + A to its inverse, in place, by CHUNK threads of which this is number `thread`: blocks of 16 on the
 * diagonal by substitution, a column each, then of 32, then of 64. Every thread of the block comes here. */
static __device__ __forceinline__ void invert(float (*m)[SOLVE_STRIDE], int32_t thread) {
    const int32_t base = thread / 16 * 16, column = thread % 16;
    float x[16];
#pragma unroll
    for (int t = 0; t < 16; t++) {
        x[t] = t == column ? 1.0f : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 15; i++) {
#pragma unroll
        for (int t = i + 1; t < 16; t++) {
            x[t] = fmaf(-m[base + t][base + i], x[i], x[t]);
        }
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < 16; t++) {
        m[base + t][base + column] = x[t];
    }
    __syncthreads();
    invert_below<16, 1, 8>(m, thread / 32 * 32, thread % 32 / 2, thread % 2 * 8);
    invert_below<32, 4, 4>(m, 0, thread / 8, thread % 8 * 4);
}

/* A head's T, by its CHUNK threads. */
static __device__ __forceinline__ void store_inverse(const float (*m)[SOLVE_STRIDE], int32_t thread,
                                                     __half *solved) {
    for (int32_t i = thread; i < CHUNK * CHUNK / 8; i += CHUNK) {
        if (i % 8 / 2 > i / 8 / 16) {
            continue; /* right of the diagonal's blocks: never read */
        }
        const float *from = &m[i / 8][i % 8 * 8];
        const float4 a = *(const float4 *)from, b = *(const float4 *)(from + 4);
        *(uint4 *)(solved + i * 8) =
            make_uint4(pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w));
    }
}

/* K K^T and Q K^T, of a warp's 16 rows; what lies right of the diagonal costs less than a branch. */
template <int KEYS>
static __device__ __forceinline__ void multiply_keys(const prepare_shared<KEYS> &s, float (*kk)[4],
                                                     float (*qk)[4]) {
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP;
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        uint32_t left_k[4], left_q[4];
        load_left(left_k, &s.k[16 * warp][16 * step], KEYS + 8);
        load_left(left_q, &s.q[16 * warp][16 * step], KEYS + 8);
#pragma unroll
        for (int n = 0; n < CHUNK / 16; n++) {
            uint32_t right[4];
            load_right(right, &s.k[16 * n][16 * step], KEYS + 8);
            multiply(kk[2 * n], left_k, right[0], right[1]);
            multiply(kk[2 * n + 1], left_k, right[2], right[3]);
            multiply(qk[2 * n], left_q, right[0], right[1]);
            multiply(qk[2 * n + 1], left_q, right[2], right[3]);
        }
    }
}

/* A block per chunk and key head, for the value heads that use it. */
template <int KEYS>
static __global__ void __launch_bounds__(PREPARE_THREADS, KEYS > 128 ? 3 : 4)
    prepare_kernel(sl_cuda_context context, delta_args args, chunk_memory memory) {
    extern __shared__ uint4 dynamic[];
    prepare_shared<KEYS> &s = *(prepare_shared<KEYS> *)dynamic;
    sl_wait_for_inputs();
    const int32_t chunk = (int32_t)blockIdx.x, key_head = (int32_t)blockIdx.y,
                  key_heads = args.scan.key_heads;
    const int32_t ratio = args.scan.value_heads / key_heads;
    if (threadIdx.x < SL_WARP) {
        find_chunk(context, chunk, &s.place);
    }
    __syncthreads();
    if (s.place.count == 0) {
        return;
    }
    const chunk_place place = s.place;
    /* The thread's part in solving: row or column t, for one of SOLVED heads; the last head again where there
     * are fewer. */
    const int32_t mine = (int32_t)threadIdx.x / CHUNK, t = (int32_t)threadIdx.x % CHUNK;
    int32_t index = mine < ratio ? mine : ratio - 1;
    row_factors factors = load_factors(args, place, value_head(args, key_head, index), t);
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
    multiply_keys<KEYS>(s, kk, qk);
    __syncthreads(); /* the system takes the place of k and q */
    for (int32_t base = 0; base < ratio; base += SOLVED) {
        if (base > 0) {
            index = base + mine < ratio ? base + mine : ratio - 1;
            factors = load_factors(args, place, value_head(args, key_head, index), t);
        }
        add_factors(args, factors, t, s.logs[mine], s.betas[mine], s.totals);
        const int64_t heads = (int64_t)chunk * args.scan.value_heads;
#pragma unroll
        for (int h = 0; h < SOLVED; h++) {
            const int32_t other = base + h < ratio ? base + h : ratio - 1;
            weigh(kk, qk, s.logs[h], s.betas[h], s.system[h],
                  memory.weights + (heads + value_head(args, key_head, other)) * CHUNK * CHUNK);
        }
        __syncthreads();
        invert(s.system[mine], t);
        const int64_t head = heads + value_head(args, key_head, index);
        store_inverse(s.system[mine], t, memory.solved + head * CHUNK * CHUNK);
        float *out = memory.factors + head * FACTORS * CHUNK;
        out[t] = s.betas[mine][t];
        out[CHUNK + t] = power(s.logs[mine][t]);
        out[2 * CHUNK + t] = power(s.logs[mine][CHUNK - 1] - s.logs[mine][t]);
        __syncthreads();
    }
}

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

/* All warps of the block, wherever they are in the code. */
template <int THREADS> static __device__ __forceinline__ void meet(void) {
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
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
    asm volatile("cp.async.wait_all;" ::: "memory");
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
            multiply(out[2 * n], left, right[0], right[1]);
            multiply(out[2 * n + 1], left, right[2], right[3]);
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
                multiply(out[2 * n], left[step], right[0], right[1]);
                multiply(out[2 * n + 1], left[step], right[2], right[3]);
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
                multiply(state[2 * n], left[m], right[0], right[1]);
                multiply(state[2 * n + 1], left[m], right[2], right[3]);
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

/* By every warp: chunks of the spans before `span`. */
static __device__ int32_t chunks_before(const sl_cuda_context &context, int32_t span) {
    int32_t sum = 0;
    for (int32_t s = (int32_t)threadIdx.x % SL_WARP; s < span; s += SL_WARP) {
        sum += chunks_of(context.spans[s].row_count);
    }
    for (int distance = SL_WARP / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(SL_FULL_WARP, sum, distance);
    }
    return sum;
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
    float *left = delta_new_state(context, span, args.shape.delta_offset);
    const int64_t at =
        ((int64_t)start.head * KEYS + 2 * (lane % 4)) * values + start.column + 16 * warp + lane / 4;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            state[n][i] = old ? old[at + (int64_t)(8 * n + i % 2) * values + i / 2 * 8] : 0.0f;
        }
    }
    const int32_t chunks = chunks_of(start.count);
    meet<THREADS>();
    for (int32_t c = 0; c < chunks; c++) {
        const int32_t count = chunk_at(start, c).count;
        if (count > CHUNK - 16) {
            update_state<KEYS, true>(shared, c % 2, warp, count, state);
        } else {
            update_state<KEYS, false>(shared, c % 2, warp, count, state);
        }
        meet<THREADS>();
    }
    meet<THREADS>();
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
    if ((int32_t)blockIdx.z >= context.header->spans || context.spans[blockIdx.z].row_count <= SHORT_ROWS) {
        return;
    }
    const sl_step_span &span = context.spans[blockIdx.z];
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, chunks = chunks_of(span.row_count);
    walk_place start = {};
    start.head = (int32_t)blockIdx.y;
    start.key_head = delta_key_head(args, start.head);
    start.column = (int32_t)blockIdx.x * walk_shape<KEYS>::COLUMNS;
    start.chunk = chunks_before(context, (int32_t)blockIdx.z);
    start.first = span.first_row;
    start.count = span.row_count;
    if (warp < STATES) {
        walk_states<KEYS>(context, args, span, start, warp, shared);
    } else if (warp < 2 * STATES) {
        meet<THREADS>();
        for (int32_t c = 0; c <= chunks; c++) {
            if (c > 0) {
                const walk_place place = chunk_at(start, c - 1);
                if (place.count > CHUNK - 16) {
                    make_outputs<KEYS, true>(args, place, shared, (c - 1) % 2, warp - STATES);
                } else {
                    make_outputs<KEYS, false>(args, place, shared, (c - 1) % 2, warp - STATES);
                }
            }
            meet<THREADS>();
        }
    } else {
        const int32_t thread = (int32_t)threadIdx.x - 2 * STATES * SL_WARP;
        load_update<KEYS>(args, memory, chunk_at(start, 0), thread, shared, 0);
        wait_for_copies();
        meet<THREADS>();
        for (int32_t c = 0; c <= chunks; c++) {
            if (c + 1 < chunks) {
                load_update<KEYS>(args, memory, chunk_at(start, c + 1), thread, shared, (c + 1) % 2);
            }
            if (c < chunks) {
                load_output<KEYS>(args, memory, chunk_at(start, c), thread, shared, c % 2);
            }
            wait_for_copies();
            meet<THREADS>();
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
    const sl_launch_shape second = {dim3((unsigned)(args.shape.value_size / walk_shape<KEYS>::COLUMNS),
                                         (unsigned)args.scan.value_heads, (unsigned)op->spans),
                                    dim3(walk_shape<KEYS>::THREADS), (uint32_t)sizeof(walk_shared<KEYS>)};
    cudaError_t code = sl_launch(context, stream, first, prepare_kernel<KEYS>, *context, args, memory);
    code = code == cudaSuccess ? sl_launch(context, stream, second, walk_kernel<KEYS>, *context, args, memory)
                               : code;
    return code == cudaSuccess ? sl_cuda_delta_scan_spans(context, op, SHORT_ROWS, stream) : code;
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
                                      (int)sizeof(walk_shared<KEYS>))
               : code;
}

static size_t shared_needed(int32_t key_size) {
    return key_size == 64    ? sizeof(walk_shared<64>)
           : key_size == 128 ? sizeof(walk_shared<128>)
                             : sizeof(walk_shared<256>);
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
    if (shape->value_size % 32 != 0) {
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
