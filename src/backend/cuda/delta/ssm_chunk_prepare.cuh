/* The first launch of ssm_chunk.cu: every chunk by itself. */
#ifndef SL_BACKEND_CUDA_DELTA_SSM_CHUNK_PREPARE_CUH
#define SL_BACKEND_CUDA_DELTA_SSM_CHUNK_PREPARE_CUH

#include "backend/cuda/delta/ssm_chunk.cuh"

enum { PREPARE_WARPS = 8, PREPARE_THREADS = PREPARE_WARPS * SL_WARP };
#define LEAST_DECAY (-100.0f) /* of a logarithm: its power is 0 beside any other */

template <int KEYS> struct ssm_prepare_shared {
    uint16_t writes[PARTS][ssm_chunk_shape<KEYS>::CHUNK][ssm_chunk_shape<KEYS>::STRIDE];
    uint16_t reads[PARTS][ssm_chunk_shape<KEYS>::CHUNK][ssm_chunk_shape<KEYS>::STRIDE];
    chunk_place place;
};

/* B or C of the chunk in two parts: zeros past the last row. */
template <int KEYS>
static __device__ __forceinline__ void
load_rows(const ssm_args &args, const chunk_place &place, int32_t column,
          uint16_t (*out)[ssm_chunk_shape<KEYS>::CHUNK][ssm_chunk_shape<KEYS>::STRIDE]) {
    enum { EACH = KEYS / (2 * SL_WARP), BATCH = 8 / EACH, CHUNK = ssm_chunk_shape<KEYS>::CHUNK };
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    for (int32_t base = warp * BATCH; base < CHUNK; base += PREPARE_WARPS * BATCH) {
        float x[BATCH][EACH][2];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const float *from = sl_f32(args.xbc, place.first + base + b) + column + 2 * lane;
#pragma unroll
            for (int i = 0; i < 2 * EACH; i++) {
                x[b][i / 2][i % 2] = base + b < place.count ? from[2 * SL_WARP * (i / 2) + i % 2] : 0.0f;
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const uint2 parts = split(x[b][i][0], x[b][i][1]);
                const int32_t at = 2 * (lane + SL_WARP * i);
                *(uint32_t *)&out[HIGH][base + b][at] = parts.x;
                *(uint32_t *)&out[LOW][base + b][at] = parts.y;
            }
        }
    }
}

template <int KEYS>
static __device__ __forceinline__ void
store_rows(const uint16_t (*rows)[ssm_chunk_shape<KEYS>::CHUNK][ssm_chunk_shape<KEYS>::STRIDE],
           uint16_t *out) {
    for (int32_t i = (int32_t)threadIdx.x; i < ssm_chunk_shape<KEYS>::MATRIX / 8; i += PREPARE_THREADS) {
        *(uint4 *)(out + i * 8) = *(const uint4 *)&rows[0][i / (KEYS / 8)][i % (KEYS / 8) * 8];
    }
}

/* A warp's 16 rows of C B^T, of which those as far as the diagonal's block are stored: what lies right of it
 * costs less than a branch. */
template <int KEYS>
static __device__ __forceinline__ void multiply_rows(const ssm_prepare_shared<KEYS> &s, float *out) {
    typedef ssm_chunk_shape<KEYS> shape;
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP, warp = (int32_t)threadIdx.x / SL_WARP;
    float sums[2 * shape::TILES][4] = {};
#pragma unroll 2
    for (int step = 0; step < KEYS / 16; step++) {
        left_factor left;
        load_left(left.words[HIGH], &s.reads[HIGH][16 * warp][16 * step], shape::STRIDE);
        load_left(left.words[LOW], &s.reads[LOW][16 * warp][16 * step], shape::STRIDE);
        right_factor right[shape::TILES];
#pragma unroll
        for (int n = 0; n < shape::TILES; n++) {
            load_right(right[n].words[HIGH], &s.writes[HIGH][16 * n][16 * step], shape::STRIDE);
            load_right(right[n].words[LOW], &s.writes[LOW][16 * n][16 * step], shape::STRIDE);
        }
        add_products<shape::TILES>(sums, left, right);
    }
#pragma unroll
    for (int n = 0; n < 2 * shape::TILES; n++) {
        if (n / 2 <= warp) {
            float *at = out + (16 * warp + lane / 4) * shape::CHUNK + 8 * n + 2 * (lane % 4);
            *(float2 *)at = make_float2(sums[n][0], sums[n][1]);
            *(float2 *)(at + 8 * shape::CHUNK) = make_float2(sums[n][2], sums[n][3]);
        }
    }
}

/* By a warp: a lane has rows lane, lane + 32. */
template <int CHUNK>
static __device__ __forceinline__ void add_factors(const ssm_args &args, const chunk_place &place,
                                                   int32_t head, float *out) {
    enum { EACH = CHUNK / SL_WARP };
    const int32_t lane = (int32_t)threadIdx.x % SL_WARP;
    const float rate = ssm_rate(args, head), bias = args.dt_bias[head];
    float steps[EACH], logs[EACH], before = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int32_t t = lane + SL_WARP * i;
        steps[i] = t < place.count ? ssm_step(args, sl_f32(args.dt, place.first + t)[head] + bias) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float sum = fmaxf(rate * steps[i], LEAST_DECAY);
        for (int distance = 1; distance < SL_WARP; distance *= 2) {
            const float other = __shfl_up_sync(SL_FULL_WARP, sum, distance);
            sum += lane >= distance ? other : 0.0f;
        }
        logs[i] = before + sum;
        before = __shfl_sync(SL_FULL_WARP, logs[i], SL_WARP - 1);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float *at = out + lane + SL_WARP * i;
        at[LOGS * CHUNK] = logs[i];
        at[STEPS * CHUNK] = steps[i];
        at[GROWTHS * CHUNK] = __expf(logs[i]);
        at[RESTS * CHUNK] = steps[i] * __expf(before - logs[i]);
    }
}

/* A block per chunk and group: some warps multiply, the others make the factors of the group's heads. */
template <int KEYS>
static __global__ void __launch_bounds__(PREPARE_THREADS, 3)
    ssm_prepare_kernel(sl_cuda_context context, ssm_args args, ssm_chunk_memory memory) {
    typedef ssm_chunk_shape<KEYS> shape;
    extern __shared__ uint4 dynamic[];
    ssm_prepare_shared<KEYS> &s = *(ssm_prepare_shared<KEYS> *)dynamic;
    sl_wait_for_inputs();
    const int32_t chunk = (int32_t)blockIdx.x, group = (int32_t)blockIdx.y, groups = args.scan.groups;
    const int32_t warp = (int32_t)threadIdx.x / SL_WARP, ratio = args.scan.heads / groups;
    if (warp == 0) {
        find_chunk<shape::CHUNK>(context, chunk, &s.place);
    }
    __syncthreads();
    if (s.place.count == 0) {
        return;
    }
    const chunk_place place = s.place;
    const int32_t column = args.scan.heads * args.shape.value_size + group * KEYS;
    load_rows<KEYS>(args, place, column, s.writes);
    load_rows<KEYS>(args, place, column + groups * KEYS, s.reads);
    __syncthreads();
    const int64_t at = (int64_t)chunk * groups + group;
    store_rows<KEYS>(s.writes, memory.writes + at * shape::MATRIX);
    store_rows<KEYS>(s.reads, memory.reads + at * shape::MATRIX);
    if (warp < shape::TILES) {
        multiply_rows<KEYS>(s, memory.products + at * shape::CHUNK * shape::CHUNK);
    } else {
        for (int32_t i = warp - shape::TILES; i < ratio; i += PREPARE_WARPS - shape::TILES) {
            const int64_t head = (int64_t)chunk * args.scan.heads + group * ratio + i;
            add_factors<shape::CHUNK>(args, place, group * ratio + i,
                                      memory.factors + head * FACTORS * shape::CHUNK);
        }
    }
}

#endif
