/* The first launch of delta_chunk.cu: every chunk by itself. */
#ifndef SL_BACKEND_CUDA_DELTA_DELTA_CHUNK_SOLVE_CUH
#define SL_BACKEND_CUDA_DELTA_DELTA_CHUNK_SOLVE_CUH

#include "backend/cuda/delta/delta_chunk.cuh"

/* ---- the first launch ---- */

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
            sl_mma_f16(kk[2 * n], left_k, right[0], right[1]);
            sl_mma_f16(kk[2 * n + 1], left_k, right[2], right[3]);
            sl_mma_f16(qk[2 * n], left_q, right[0], right[1]);
            sl_mma_f16(qk[2 * n + 1], left_q, right[2], right[3]);
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
        find_chunk<CHUNK>(context, chunk, &s.place);
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

#endif
