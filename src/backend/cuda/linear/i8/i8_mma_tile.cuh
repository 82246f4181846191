/* A chunk of 256 columns of 16 weight rows times the same columns of 8 rows of x, by one warp on int8 tensor
 * cores (mma m16n8k32), both in shared memory: class "q8_32/256" of plain_linear.cu.
 *
 * Columns of a group may be multiplied in any order, so x is put into the order in which a thread finds the
 * weights. Numbers become floats as in i8_chunk.cuh: a sum starts from the bits of 1.5 * 2^23, and
 * fmaf(scale, sum's bits as a float, -scale * 1.5 * 2^23) is scale * dot rounded once. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_MMA_TILE_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_MMA_TILE_CUH

#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/linear/i8/i8_chunk.cuh"

enum { SL_TILE_ROWS = 16, SL_TILE_X = 8 };

/* x of a chunk: values [group][row][32], scales [group][row], then per group and row what the type needs, see
 * sl_chunk_shape; Q6_K's halves [group][half][row]. ITEM: chunks of a weight row that a warp takes at once,
 * whole sectors of memory if possible. STRIDE: of their weight rows in shared memory, which keeps the reads
 * of a warp on different banks. Chunks of no whole 16 bytes begin up to 15 bytes behind a row's start there.
 */
template <int TYPE> struct sl_tile_shape {
    enum { VALUES = SL_CHUNK * SL_TILE_X, SCALES = SL_CHUNK_GROUPS * SL_TILE_X * 4 };
    enum { X_BYTES = VALUES + SCALES + sl_chunk_shape<TYPE>::EXTRA * SL_TILE_X * 4 };
    enum { ITEM = TYPE == SL_QTYPE_Q8_0 ? 1 : 2, BYTES = ITEM * sl_chunk_shape<TYPE>::BYTES };
    enum { WHOLE = sl_chunk_shape<TYPE>::BYTES % 16 == 0 }; /* if not, an odd number of 16 bytes */
    enum { SHIFTED = TYPE != SL_QTYPE_Q8_0 && TYPE != SL_QTYPE_Q4_K && TYPE != SL_QTYPE_Q5_K };
    enum { STRIDE = WHOLE ? BYTES + 16 * SHIFTED : 16 * ((BYTES + 14 + 15) / 16 | 1) };
};

/* ---- x ---- */

/* Words of 16-bit aligned data one half later: those of pairs 1 .. count - 1, then the two ends. */
template <int COUNT> static __device__ __forceinline__ void shift_halves(const uint32_t *from, uint32_t *to) {
#pragma unroll
    for (int i = 0; i + 1 < COUNT; i++) {
        to[i] = __funnelshift_r(from[i], from[i + 1], 16);
    }
    to[COUNT - 1] = (from[0] & 0xffffu) | (from[COUNT - 1] & 0xffff0000u);
}

/* Thread t of a row's four reads words 2 t and 2 t + 1. */
template <int TYPE> static __device__ __forceinline__ void order_group(uint32_t *words, int32_t group) {
    uint32_t moved[8];
    if (TYPE == SL_QTYPE_Q4_K || TYPE == SL_QTYPE_Q5_K || sl_chunk_shape<TYPE>::EIGHTS) {
        return; /* eight bytes of the block's 32 */
    }
    if (sl_chunk_shape<TYPE>::INTERLEAVED) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sl_interleave(words[i], words[4 + i], moved + 2 * i);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            words[i] = moved[i];
        }
        return;
    }
    if (TYPE == SL_QTYPE_Q8_0 && group % 2 == 0) { /* the block starts in the middle of a word */
        shift_halves<8>(words, moved);
    } else if (TYPE == SL_QTYPE_Q4_0 && group % 2 == 0) {
        shift_halves<4>(words, moved);
        shift_halves<4>(words + 4, moved + 4);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            moved[i] = words[i];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        words[2 * i] = moved[i];
        words[2 * i + 1] = moved[4 + i];
    }
}

/* A group of a row of x, as read. */
typedef struct tile_group {
    uint4 low, high;
    float scale;
    int32_t sum;
} tile_group;

template <int TYPE>
static __device__ __forceinline__ void tile_put(const tile_group &x, int32_t row, int32_t g,
                                                unsigned char *record) {
    typedef sl_tile_shape<TYPE> shape;
    uint32_t words[8] = {x.low.x, x.low.y, x.low.z, x.low.w, x.high.x, x.high.y, x.high.z, x.high.w};
    order_group<TYPE>(words, g);
    uint4 *values = (uint4 *)(record + (g * SL_TILE_X + row) * 32);
    values[0] = make_uint4(words[0], words[1], words[2], words[3]);
    values[1] = make_uint4(words[4], words[5], words[6], words[7]);
    float *scales = (float *)(record + shape::VALUES);
    uint32_t *extras = (uint32_t *)(scales + SL_CHUNK_GROUPS * SL_TILE_X), extra[2];
    scales[g * SL_TILE_X + row] = x.scale;
    sl_x_extra<TYPE>(x.low, x.scale, x.sum, extra);
    if (sl_chunk_shape<TYPE>::X == SL_X_HALVES) {
        extras[2 * g * SL_TILE_X + row] = extra[0];
        extras[(2 * g + 1) * SL_TILE_X + row] = extra[1];
    } else if (sl_chunk_shape<TYPE>::X != SL_X_NOTHING) {
        extras[g * SL_TILE_X + row] = extra[0];
    }
}

/* Puts `chunks` chunks from `chunk` on of the first `count` rows of x; rows past them are zero. By all
 * threads, each with the loads of several groups under way. */
template <int TYPE>
static __device__ __forceinline__ void sl_stage_tile_x(const sl_cuda_operand &x, int32_t count, int32_t chunk,
                                                       int32_t chunks, unsigned char *to) {
    enum { AHEAD = 4 };
    const int32_t groups = chunks * SL_CHUNK_GROUPS, step = (int32_t)blockDim.x;
    for (int32_t begin = (int32_t)threadIdx.x; begin < groups * SL_TILE_X; begin += AHEAD * step) {
        tile_group loaded[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int32_t i = begin + k * step, row = i % SL_TILE_X,
                          at = chunk * SL_CHUNK_GROUPS + i / SL_TILE_X;
            loaded[k] = {};
            if (i < groups * SL_TILE_X && row < count) {
                const sl_q8_32 planes = sl_q8_32_of(x, row);
                loaded[k].low = ((const uint4 *)planes.values)[2 * at];
                loaded[k].high = ((const uint4 *)planes.values)[2 * at + 1];
                loaded[k].scale = planes.scales[at];
                loaded[k].sum = planes.sums[at];
            }
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int32_t i = begin + k * step, row = i % SL_TILE_X, group = i / SL_TILE_X;
            if (i < groups * SL_TILE_X) {
                tile_put<TYPE>(loaded[k], row, group % SL_CHUNK_GROUPS,
                               to + group / SL_CHUNK_GROUPS * sl_tile_shape<TYPE>::X_BYTES);
            }
        }
    }
}

/* ---- products ---- */

/* A lane's part of a chunk of x in shared memory: for a group its eight values, and the scales and what the
 * type needs of rows lane % 4 * 2 and one further. */
template <int TYPE> struct sl_tile_record {
    const unsigned char *values_at, *scales_at;

    __device__ __forceinline__ sl_tile_record(const unsigned char *record, int32_t lane)
        : values_at(record + lane * 8), scales_at(record + sl_tile_shape<TYPE>::VALUES + lane % 4 * 8) {
    }
    __device__ __forceinline__ uint2 values(int g) const {
        return *(const uint2 *)(values_at + g * SL_TILE_X * 32);
    }
    __device__ __forceinline__ float2 scales(int g) const {
        return *(const float2 *)(scales_at + g * SL_TILE_X * 4);
    }
    __device__ __forceinline__ int2 extra(int i) const {
        return *(const int2 *)(scales_at + sl_tile_shape<TYPE>::SCALES + i * SL_TILE_X * 4);
    }
};

/* sums: of weight rows i and i + 8 with rows j and j + 1 of x, where i = lane / 4 and j = lane % 4 * 2. */
static __device__ __forceinline__ void tile_add(float sums[4], const int32_t dots[4], const float scale[2],
                                                float2 x) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float less = scale[r] * -SL_FLOAT_OF_INT;
        sums[2 * r] = fmaf(fmaf(scale[r], __int_as_float(dots[2 * r]), less), x.x, sums[2 * r]);
        sums[2 * r + 1] = fmaf(fmaf(scale[r], __int_as_float(dots[2 * r + 1]), less), x.y, sums[2 * r + 1]);
    }
}

/* w: the chunks of weight rows lane / 4 and 8 further. x: the chunk's record. */
template <int TYPE> struct sl_tile;

/* Its products; tables: what sl_tables filled. */
template <int TYPE, typename X>
static __device__ __forceinline__ void sl_add_tile(const unsigned char *const w[2], const X &x, int32_t lane,
                                                   float sums[4], const unsigned char *tables) {
    if constexpr (sl_tables<TYPE>::BYTES > 0) {
        sl_tile<TYPE>::add(w, x, lane, sums, tables);
    } else {
        (void)tables;
        sl_tile<TYPE>::add(w, x, lane, sums);
    }
}

template <int TYPE> struct tile_with_minima {
    template <typename X>
    static __device__ __forceinline__ void add(const unsigned char *const w[2], const X &x, int32_t lane,
                                               float sums[4]) {
        const sl_kquant_head heads[2] = {sl_kquant_head_of(w[0]), sl_kquant_head_of(w[1])};
        const uint32_t magic = sl_float_of_byte_bits();
        const int32_t at = 8 * (lane % 4), quants = TYPE == SL_QTYPE_Q5_K ? 48 : 16;
        uint2 high[2];
        if (TYPE == SL_QTYPE_Q5_K) {
            high[0] = *(const uint2 *)(w[0] + 16 + at);
            high[1] = *(const uint2 *)(w[1] + 16 + at);
        }
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const uint2 low[2] = {*(const uint2 *)(w[0] + quants + 32 * p + at),
                                  *(const uint2 *)(w[1] + quants + 32 * p + at)};
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const int g = 2 * p + n;
                uint32_t a[4] = {low[0].x, low[1].x, low[0].y, low[1].y};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (TYPE == SL_QTYPE_Q5_K) {
                        const uint32_t bits = i < 2 ? high[i].x : high[i - 2].y;
                        a[i] = (n ? a[i] >> 4 : a[i]) & 0x0f0f0f0fu;
                        a[i] |= (g < 4 ? bits << (4 - g) : bits >> (g - 4)) & 0x10101010u;
                    } else { /* high nibbles stay 16 times too large */
                        a[i] &= n ? 0xf0f0f0f0u : 0x0f0f0f0fu;
                    }
                }
                int32_t dots[4];
                sl_mma_i8<true>(dots, a, x.values(g), make_int2(SL_FLOAT_OF_INT_BITS, SL_FLOAT_OF_INT_BITS));
                float scale[2], min[2];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const float factor = TYPE == SL_QTYPE_Q4_K && n ? 0.0625f : 1.0f;
                    scale[r] = sl_times_byte_by(magic, heads[r].d * factor, heads[r].d_less * factor,
                                                heads[r].scales[g / 4], g % 4);
                    min[r] =
                        sl_times_byte_by(magic, heads[r].m, heads[r].m_less, heads[r].mins[g / 4], g % 4);
                }
                tile_add(sums, dots, scale, x.scales(g));
                const int2 x_sums = x.extra(g);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    sums[e] = fmaf(min[e / 2], __int_as_float(e % 2 ? x_sums.y : x_sums.x), sums[e]);
                }
            }
        }
    }
};
template <> struct sl_tile<SL_QTYPE_Q4_K> : tile_with_minima<SL_QTYPE_Q4_K> {};
template <> struct sl_tile<SL_QTYPE_Q5_K> : tile_with_minima<SL_QTYPE_Q5_K> {};

template <> struct sl_tile<SL_QTYPE_Q8_0> {
    template <typename X>
    static __device__ __forceinline__ void add(const unsigned char *const w[2], const X &x, int32_t lane,
                                               float sums[4]) {
        const int32_t t = lane % 4;
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            uint32_t a[4];
            float scale[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint32_t *words = (const uint32_t *)w[r] + 17 * g / 2; /* the first holds the scale */
                const uint32_t first = words[0], last = words[5 + t];
                scale[r] = sl_half_of(g % 2 ? first >> 16 : first & 0xffffu);
                a[r] = words[1 + t];
                a[2 + r] = g % 2 == 0 && t == 3 ? __byte_perm(first, last, 0x5432) : last;
            }
            int32_t dots[4];
            sl_mma_i8<false>(dots, a, x.values(g), make_int2(SL_FLOAT_OF_INT_BITS, SL_FLOAT_OF_INT_BITS));
            tile_add(sums, dots, scale, x.scales(g));
        }
    }
};

template <> struct sl_tile<SL_QTYPE_Q4_0> {
    template <typename X>
    static __device__ __forceinline__ void add(const unsigned char *const w[2], const X &x, int32_t lane,
                                               float sums[4]) {
        const int32_t t = lane % 4;
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            uint32_t a[4];
            float scale[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint32_t *words = (const uint32_t *)w[r] + 9 * g / 2;
                const uint32_t first = words[0], mine = words[1 + t];
                const uint32_t quants = g % 2 == 0 && t == 3 ? __byte_perm(first, mine, 0x5432) : mine;
                scale[r] = sl_half_of(g % 2 ? first >> 16 : first & 0xffffu);
                a[r] = quants & 0x0f0f0f0fu;
                a[2 + r] = quants >> 4 & 0x0f0f0f0fu;
            }
            int32_t dots[4];
            sl_mma_i8<true>(dots, a, x.values(g), x.extra(g));
            tile_add(sums, dots, scale, x.scales(g));
        }
    }
};

template <> struct sl_tile<SL_QTYPE_Q6_K> {
    /* The word at an offset that is a multiple of 4; the chunk starts at 0 or 2 modulo 4. */
    static __device__ __forceinline__ uint32_t word(const unsigned char *w, int32_t at) {
        const uint32_t odd = (uint32_t)(uint64_t)w & 2u;
        const uint32_t *aligned = (const uint32_t *)(w - odd + at);
        return __funnelshift_r(aligned[0], aligned[1], 8 * odd);
    }

    template <typename X>
    static __device__ __forceinline__ void add(const unsigned char *const w[2], const X &x, int32_t lane,
                                               float sums[4]) {
        const int32_t at = 4 * (lane % 4);
        const float d[2] = {sl_half_of(((const uint16_t *)w[0])[104]),
                            sl_half_of(((const uint16_t *)w[1])[104])};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t low[2][2][2], high[2][2],
                factors[2][2]; /* [row][nibble's 32][half], [row][half], [row] */
#pragma unroll
            for (int r = 0; r < 2; r++) {
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    low[r][0][k] = word(w[r], 64 * h + 16 * k + at);
                    low[r][1][k] = word(w[r], 64 * h + 32 + 16 * k + at);
                    high[r][k] = word(w[r], 128 + 32 * h + 16 * k + at);
                    factors[r][k] = word(w[r], 192 + 8 * h + 4 * k);
                }
            }
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const int g = 4 * h + q;
                const uint2 b = x.values(g);
                int32_t dots[2][4];
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    uint32_t a[2];
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const uint32_t bits = q < 2 ? high[r][k] << (4 - 2 * q) : high[r][k] >> (2 * q - 4);
                        a[r] = (low[r][q % 2][k] >> 4 * (q / 2) & 0x0f0f0f0fu) | (bits & 0x30303030u);
                    }
                    const int2 start = x.extra(2 * g + k);
                    dots[k][0] = dots[k][2] = start.x;
                    dots[k][1] = dots[k][3] = start.y;
                    sl_mma_i8_k16_add<true>(dots[k], a[0], a[1], k ? b.y : b.x);
                }
                const float2 scale = x.scales(g);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const uint32_t f = factors[e / 2][q / 2] >> 16 * (q % 2);
                    const int32_t dot = (int8_t)f * dots[0][e] + (int8_t)(f >> 8) * dots[1][e];
                    sums[e] = fmaf(d[e / 2] * (float)dot, e % 2 ? scale.y : scale.x, sums[e]);
                }
            }
        }
    }
};

#endif
