/* Both sides of a product to the scratch that planes.cuh reads. */
#ifndef SL_BACKEND_CUDA_PLANES_SCRATCH_CUH
#define SL_BACKEND_CUDA_PLANES_SCRATCH_CUH

#include "backend/cuda/groups.cuh"
#include "backend/cuda/units.cuh"

enum { PLANES_FILL = 256, PLANES_LANES = 8, PLANES_EACH = PLANES_FILL / PLANES_LANES };

/* Tiles of 128 weight rows, `count` from `first` on; see planes_args. */
typedef struct planes_weights {
    sl_cuda_weight weights[SL_LINEAR_SEGMENTS];
    int32_t segment_tile[SL_LINEAR_SEGMENTS + 1];
    int32_t segments, first, count;
    int32_t chunks; /* of a row */
    unsigned char *to;
    float *units;
} planes_weights;

typedef struct planes_rows {
    sl_cuda_operand x;
    int32_t chunks, rows; /* with padding */
    unsigned char *to;
    float *scales;
} planes_rows;

/* A group's integers, of each half of it. */
typedef struct planes_factors {
    float unit;
    int32_t scales[2], min;
} planes_factors;

/* By the eight lanes that have a chunk's groups. chunk: its first byte. */
template <int TYPE>
static __device__ __forceinline__ planes_factors planes_factors_of(const unsigned char *chunk, int32_t g,
                                                                   const sl_group32 &w) {
    planes_factors f = {};
    if (TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K) {
        const units_k k = units_k_of(*(const uint4 *)chunk);
        const int32_t bits = 8 * (g % 4);
        f.unit = k.unit;
        f.scales[0] = f.scales[1] =
            units_nearest(k.scale, units_byte((g < 4 ? k.scales[0] : k.scales[1]) >> bits, 0)) - UNITS_MAGIC_BITS;
        f.min = units_nearest(k.min, units_byte((g < 4 ? k.mins[0] : k.mins[1]) >> bits, 0)) - UNITS_MAGIC_BITS;
    } else if (TYPE == SL_QTYPE_Q6_K) {
        f.unit = w.scale;
        f.scales[0] = w.factor0;
        f.scales[1] = w.factor1;
    } else {
        f.unit = units_of_largest(units_x_scale(fabsf(w.scale)));
        f.scales[0] = f.scales[1] = units_q8_scale(w.scale, units_inverse(f.unit));
    }
    return f;
}

/* Where group g (32 columns, two pieces) of a chunk of a row lies; `rows` of a tile, `chunks` of a row. */
static __device__ __forceinline__ uint32_t planes_piece(int32_t row, int32_t g, int32_t half) {
    return (uint32_t)(row / 8 * 1024 + row % 8 * 128 + (((g % 4 * 2 + half) ^ row % 8) * 16));
}

/* Stores a group's 32 bytes. Neighbouring lanes exchange halves, so that a store fills whole sectors. */
static __device__ __forceinline__ void planes_put(unsigned char *to, int32_t row, int32_t g,
                                                  const uint32_t words[8]) {
    const bool odd = g % 2;
    uint32_t other[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        other[i] = __shfl_xor_sync(SL_FULL_WARP, odd ? words[i] : words[4 + i], 1);
    }
    /* first the even lane's group, of which the odd one got the second half */
    *(uint4 *)(to + planes_piece(row, g & ~1, odd)) =
        odd ? make_uint4(other[0], other[1], other[2], other[3])
            : make_uint4(words[0], words[1], words[2], words[3]);
    *(uint4 *)(to + planes_piece(row, g | 1, odd)) =
        odd ? make_uint4(words[4], words[5], words[6], words[7])
            : make_uint4(other[0], other[1], other[2], other[3]);
}

template <int TYPE>
static __global__ void __launch_bounds__(PLANES_FILL)
    planes_weights_kernel(const __grid_constant__ planes_weights args) {
    sl_wait_for_inputs();
    const int32_t index = (int32_t)blockIdx.x * PLANES_EACH + (int32_t)threadIdx.x / PLANES_LANES;
    const int32_t g = (int32_t)threadIdx.x % PLANES_LANES, row = index / args.chunks, c = index % args.chunks;
    const int32_t tile = args.first + row / 128;
    int32_t s = 0;
    while (s + 1 < args.segments && tile >= args.segment_tile[s + 1]) {
        s++;
    }
    const sl_cuda_weight &weight = args.weights[s];
    const int32_t w_row = (tile - args.segment_tile[s]) * 128 + row % 128;
    const bool there = w_row < weight.rows; /* its eight lanes agree */
    const unsigned char *from = weight.data + (uint64_t)(there ? w_row : 0) * weight.row_bytes;
    sl_group32 w;
    sl_load_group<TYPE>(from, 8 * c + g, &w);
    const planes_factors f =
        planes_factors_of<TYPE>(from + (uint64_t)c * (weight.row_bytes / (uint64_t)args.chunks), g, w);
    uint32_t high[8], low[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int32_t v[4];
#pragma unroll
        for (int b = 0; b < 4; b++) {
            v[b] = there ? f.scales[i / 4] * (int8_t)(w.words[i] >> 8 * b) - f.min : 0;
        }
        low[i] = __byte_perm(__byte_perm((uint32_t)v[0], (uint32_t)v[1], 0x0040),
                             __byte_perm((uint32_t)v[2], (uint32_t)v[3], 0x0040), 0x5410);
        high[i] = __byte_perm(__byte_perm((uint32_t)v[0], (uint32_t)v[1], 0x0051),
                              __byte_perm((uint32_t)v[2], (uint32_t)v[3], 0x0051), 0x5410);
    }
    /* [tile of 128][step of 128 columns][plane] of 16 KiB */
    unsigned char *to = args.to + ((int64_t)(row / 128) * (2 * args.chunks) + 2 * c + g / 4) * 32768;
    planes_put(to, row % 128, g, high);
    planes_put(to + 16384, row % 128, g, low);
    if (g == 0) {
        args.units[(int64_t)c * (args.count * 128) + row] = there ? f.unit : 0.0f;
    }
}

/* Rows that the step does not have are zeros. */
static __global__ void __launch_bounds__(PLANES_FILL)
    planes_rows_kernel(const __grid_constant__ sl_cuda_context context, const __grid_constant__ planes_rows args) {
    sl_wait_for_inputs();
    const int32_t index = (int32_t)blockIdx.x * PLANES_EACH + (int32_t)threadIdx.x / PLANES_LANES;
    const int32_t g = (int32_t)threadIdx.x % PLANES_LANES, row = index / args.chunks, c = index % args.chunks;
    if (row >= args.rows) { /* whole warps: rows are a multiple of 64 */
        return;
    }
    const bool there = row < sl_count(context, args.x.rows);
    const sl_q8_32 x = sl_q8_32_of(args.x, there ? row : 0);
    const int32_t group = 8 * c + g;
    const float own = there ? x.scales[group] : 0.0f, scale = units_x_scale(own);
    const float ratio = units_x_ratio(own, scale);
    unsigned char *to = args.to + ((int64_t)(2 * c + g / 4) * args.rows) * 128;
    const uint4 v[2] = {((const uint4 *)x.values)[2 * group], ((const uint4 *)x.values)[2 * group + 1]};
    const uint32_t in[8] = {v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y, v[1].z, v[1].w};
    uint32_t words[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        words[i] = there ? units_x_word(in[i], ratio) : 0;
    }
    planes_put(to, row, g, words);
    if (g == 0) {
        args.scales[(int64_t)c * args.rows + row] = scale;
    }
}

#endif
