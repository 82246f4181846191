/* Chunks and tiles (i8_chunk.cuh, i8_mma_tile.cuh) of the types that blocks.cuh describes: of all that have
 * none of their own. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_BLOCKS_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_BLOCKS_CUH

#include "backend/cuda/linear/i8/i8_mma_tile.cuh"

/* ---- products ---- */

template <int TYPE> struct sl_chunk {
    typedef sl_x_chunk<TYPE> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x) {
        typedef sl_chunk_shape<TYPE> shape;
        sl_words_held<shape::BYTES> words;
        words.load(w);
        float sum = 0;
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            int32_t dot = shape::X == SL_X_START ? (int32_t)x.extra[g] : SL_FLOAT_OF_INT_BITS, less_dot = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t quants[2], less[2];
                sl_block32<TYPE>::quants(words, g, i, quants, less);
                const int32_t first = x.values[8 * g + (shape::INTERLEAVED ? 2 * i : i)];
                const int32_t second = x.values[8 * g + (shape::INTERLEAVED ? 2 * i + 1 : 4 + i)];
                dot = sl_dot_unsigned(quants[1], second, sl_dot_unsigned(quants[0], first, dot));
                if (sl_block32<TYPE>::SPLIT) {
                    less_dot = sl_dot_unsigned(less[1], second, sl_dot_unsigned(less[0], first, less_dot));
                }
            }
            const float scale = sl_block32<TYPE>::scale(words, g);
            sum = fmaf(scale * (__int_as_float(dot - less_dot) - SL_FLOAT_OF_INT), x.scales[g], sum);
            if (shape::X == SL_X_MIN) {
                sum = fmaf(sl_block32<TYPE>::min(words, g), __uint_as_float(x.extra[g]), sum);
            }
        }
        return sum;
    }
};

template <int TYPE> struct sl_tile {
    template <typename X>
    static __device__ __forceinline__ void add(const unsigned char *const w[2], const X &x, int32_t lane,
                                               float sums[4]) {
        typedef sl_chunk_shape<TYPE> shape;
        const sl_words_shared words[2] = {{w[0]}, {w[1]}};
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            uint32_t a[4], less[4];
            float scale[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint32_t own[2], own_less[2] = {0, 0};
                sl_block32<TYPE>::quants(words[r], g, lane % 4, own, own_less);
                scale[r] = sl_block32<TYPE>::scale(words[r], g);
                a[r] = own[0], a[2 + r] = own[1];
                less[r] = own_less[0], less[2 + r] = own_less[1];
            }
            const int2 extra = shape::X == SL_X_NOTHING ? make_int2(0, 0) : x.extra(g);
            const int2 start =
                shape::X == SL_X_START ? extra : make_int2(SL_FLOAT_OF_INT_BITS, SL_FLOAT_OF_INT_BITS);
            const uint2 b = x.values(g);
            int32_t dots[4];
            sl_mma_i8<true>(dots, a, b, start);
            if (sl_block32<TYPE>::SPLIT) {
                int32_t less_dots[4];
                sl_mma_i8<true>(less_dots, less, b, make_int2(0, 0));
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    dots[e] -= less_dots[e];
                }
            }
            const float2 x_scale = x.scales(g);
            if (sl_block32<TYPE>::WIDE) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float dot = __int_as_float(dots[e]) - SL_FLOAT_OF_INT;
                    sums[e] = fmaf(scale[e / 2] * dot, e % 2 ? x_scale.y : x_scale.x, sums[e]);
                }
            } else {
                tile_add(sums, dots, scale, x_scale);
            }
            if (shape::X == SL_X_MIN) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    sums[e] = fmaf(sl_block32<TYPE>::min(words[e / 2], g),
                                   __int_as_float(e % 2 ? extra.y : extra.x), sums[e]);
                }
            }
        }
    }
};

#endif
