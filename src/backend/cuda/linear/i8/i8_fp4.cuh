/* Chunks of MXFP4, and chunks and tiles (i8_chunk.cuh, i8_mma_tile.cuh) of NVFP4 and NVFP4_128: each half of
 * their groups has a scale of its own. A word of their quants has four columns in its low nibbles, and those
 * eight columns on in its high ones. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_FP4_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_FP4_CUH

#include "backend/cuda/types/types.cuh"
#include "backend/cuda/linear/i8/i8_blocks.cuh"

template <>
struct sl_chunk_shape<SL_QTYPE_NVFP4> : chunk_shape<SL_CHUNK / 64 * SL_NVFP4_BYTES, SL_X_NOTHING> {
    enum { HALVES_INTERLEAVED = 1 };
};
template <>
struct sl_chunk_shape<SL_QTYPE_NVFP4_128> : chunk_shape<SL_CHUNK / 128 * SL_NVFP4_128_BYTES, SL_X_NOTHING> {
    enum { HALVES_INTERLEAVED = 1 };
};

/* ---- four quants at a time ----
 *
 * The table has the sizes of the values, which are below 128: so those of positive quants come from the
 * nibbles, and 0 for the others, and those of negative ones from the nibbles with the signs turned over
 * (blocks.cuh). Both have a sum of their own, and the difference is exact. */
typedef struct fp4_sums {
    int32_t positive, negative;

    /* The lower four nibbles times the bytes of x. table: fp4_table's. */
    __device__ __forceinline__ void add(uint64_t table, uint32_t nibbles, int32_t x) {
        positive = sl_dot_unsigned(sl_table_bytes(table, nibbles), x, positive);
        negative = sl_dot_unsigned(sl_table_bytes(table, nibbles ^ 0x8888u), x, negative);
    }
    __device__ __forceinline__ float dot(void) const {
        return __int_as_float(positive - negative) - SL_FLOAT_OF_INT;
    }
} fp4_sums;

/* In blocks of one dimension. The compiler does not know the words, as in sl_float_of_byte_bits: it would put
 * one of them into the instruction, and bring the other to another register for each. */
static __device__ __forceinline__ uint64_t fp4_table(void) {
    const uint32_t low = (uint32_t)SL_MXFP4_VALUES_0 | threadIdx.y;
    const uint32_t high = (uint32_t)(SL_MXFP4_VALUES_0 >> 32) | threadIdx.z;
    return low | (uint64_t)high << 32;
}

template <> struct sl_chunk<SL_QTYPE_MXFP4> {
    typedef sl_x_chunk<SL_QTYPE_MXFP4> X;
    typedef sl_words_held<sl_chunk_shape<SL_QTYPE_MXFP4>::BYTES> words_type;

    /* The two bytes from one on, in the lower half. */
    static __device__ __forceinline__ uint32_t bytes(const words_type &w, int at) {
        return at % 4 < 3 ? w.words[at / 4] >> 8 * (at % 4) : w.word(at, 0);
    }

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x) {
        const uint64_t table = fp4_table();
        words_type words;
        words.load(w);
        float sum = 0;
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            const int at = SL_MXFP4_BYTES * g;
            fp4_sums sums = {SL_FLOAT_OF_INT_BITS, 0};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sums.add(table, sl_chunk::bytes(words, at + 1 + 2 * i), x.values[8 * g + i]);
            }
            const float scale = sl_mxfp4_scale_of(words.words[at / 4] >> 8 * (at % 4) & 255u);
            sum = fmaf(scale * sums.dot(), x.scales[g], sum);
        }
        return sum;
    }
};

/* ---- NVFP4 ---- */

/* STRIDE: room for a start up to 15 bytes behind a row's, and rows on different banks. */
template <> struct sl_tile_shape<SL_QTYPE_NVFP4_128> {
    enum { VALUES = SL_CHUNK * SL_TILE_X, SCALES = SL_CHUNK_GROUPS * SL_TILE_X * 4 };
    enum { X_BYTES = VALUES + SCALES };
    enum { ITEM = 2, BYTES = ITEM * sl_chunk_shape<SL_QTYPE_NVFP4_128>::BYTES, STRIDE = 336 };
};

/* Where group g's words are in a chunk, and its two scales. */
template <int TYPE> struct fp4_group {
    enum { ALONE = TYPE == SL_QTYPE_NVFP4, GROUPS = ALONE ? 2 : 4 /* of a block */ };
    enum { WORDS = (ALONE ? SL_NVFP4_BYTES : SL_NVFP4_128_BYTES) / 4, HEAD = WORDS - 4 * GROUPS };

    static __device__ __forceinline__ int quants(int g) {
        return g / GROUPS * WORDS + HEAD + g % GROUPS * 4;
    }

    template <typename W> static __device__ __forceinline__ void scales(const W &words, int g, float own[2]) {
        const int block = g / GROUPS * WORDS;
        const uint32_t codes = words.word(4 * (block + (ALONE ? 0 : 1 + g % 4 / 2)), 0) >> 16 * (g % 2);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            /* As sl_nvfp4_scale: E4M3's bits are those of a smaller half, subnormals included. */
            const uint32_t code = codes >> 8 * h & 255u;
            const float scale = code == 127 ? 0.0f : 128.0f * sl_half_of((code & 127u) << 7);
            own[h] = ALONE ? scale : __uint_as_float(words.word(4 * block, 0)) * scale;
        }
    }
};

template <int TYPE> struct chunk_of_fp4 {
    typedef sl_x_chunk<TYPE> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x) {
        const uint64_t table = fp4_table();
        sl_words_held<sl_chunk_shape<TYPE>::BYTES> words;
        words.load(w);
        float sum = 0;
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            float scales[2];
            fp4_group<TYPE>::scales(words, g, scales);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                fp4_sums sums = {SL_FLOAT_OF_INT_BITS, 0};
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t quants = words.words[fp4_group<TYPE>::quants(g) + 2 * h + i];
                    sums.add(table, quants, x.values[8 * g + 4 * h + 2 * i]);
                    sums.add(table, quants >> 16, x.values[8 * g + 4 * h + 2 * i + 1]);
                }
                sum = fmaf(scales[h] * sums.dot(), x.scales[g], sum);
            }
        }
        return sum;
    }
};

template <int TYPE> struct tile_of_fp4 {
    template <typename X>
    static __device__ __forceinline__ void add(const unsigned char *const w[2], const X &x, int32_t lane,
                                               float sums[4]) {
        const sl_words_shared words[2] = {{w[0]}, {w[1]}};
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            uint32_t a[2][2]; /* [half][row] */
            float scales[2][2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                fp4_group<TYPE>::scales(words[r], g, scales[r]);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int32_t low, high;
                    sl_look_up(SL_MXFP4_VALUES_0, SL_MXFP4_VALUES_1,
                               words[r].word(4 * (fp4_group<TYPE>::quants(g) + 2 * h), lane % 2), &low,
                               &high);
                    a[h][r] = (uint32_t)(lane % 4 < 2 ? low : high);
                }
            }
            const uint2 b = x.values(g);
            const float2 x_scale = x.scales(g);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int32_t dots[4] = {SL_FLOAT_OF_INT_BITS, SL_FLOAT_OF_INT_BITS, SL_FLOAT_OF_INT_BITS,
                                   SL_FLOAT_OF_INT_BITS};
                sl_mma_i8_k16_add<false>(dots, a[h][0], a[h][1], h ? b.y : b.x);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    sums[e] = fmaf(scales[e / 2][h] * (__int_as_float(dots[e]) - SL_FLOAT_OF_INT),
                                   e % 2 ? x_scale.y : x_scale.x, sums[e]);
                }
            }
        }
    }
};

template <> struct sl_chunk<SL_QTYPE_NVFP4> : chunk_of_fp4<SL_QTYPE_NVFP4> {};
template <> struct sl_chunk<SL_QTYPE_NVFP4_128> : chunk_of_fp4<SL_QTYPE_NVFP4_128> {};
template <> struct sl_tile<SL_QTYPE_NVFP4> : tile_of_fp4<SL_QTYPE_NVFP4> {};
template <> struct sl_tile<SL_QTYPE_NVFP4_128> : tile_of_fp4<SL_QTYPE_NVFP4_128> {};

#endif
