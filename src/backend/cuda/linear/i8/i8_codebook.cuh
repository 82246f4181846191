/* Chunks and tiles (i8_chunk.cuh, i8_mma_tile.cuh) of IQ1, IQ2 and IQ3: points of a codebook, which are
 * looked up in shared memory.
 *
 * A warp looks up 32 numbers at once, and those that fall on one bank wait for each other. So IQ2's tables
 * are there several times, a copy of eight bytes beside the other, and a lane has its own, or shares it with
 * few. IQ3's points are short: its table has them with all signs. IQ1's are nibbles, with both of its
 * offsets. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_CODEBOOK_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_CODEBOOK_CUH

#include "backend/cuda/types/codebook_tables.cuh"
#include "backend/cuda/linear/i8/i8_mma_tile.cuh"

/* ---- shapes ---- */

/* Rows of x have their columns in order everywhere. */
template <int BYTES, int BRINGS, int TIMES = 0>
struct codebook_chunk_shape : chunk_shape<BYTES, BRINGS, TIMES> {
    enum { EIGHTS = 1 };
};
template <> struct sl_chunk_shape<SL_QTYPE_IQ2_XXS> : codebook_chunk_shape<SL_IQ2_XXS_BYTES, SL_X_NOTHING> {};
template <> struct sl_chunk_shape<SL_QTYPE_IQ2_XS> : codebook_chunk_shape<SL_IQ2_XS_BYTES, SL_X_NOTHING> {};
template <> struct sl_chunk_shape<SL_QTYPE_IQ2_S> : codebook_chunk_shape<SL_IQ2_S_BYTES, SL_X_NOTHING> {};
template <> struct sl_chunk_shape<SL_QTYPE_IQ3_XXS> : codebook_chunk_shape<SL_IQ3_XXS_BYTES, SL_X_NOTHING> {};
template <> struct sl_chunk_shape<SL_QTYPE_IQ3_S> : codebook_chunk_shape<SL_IQ3_S_BYTES, SL_X_NOTHING> {};
template <> struct sl_chunk_shape<SL_QTYPE_IQ1_S> : codebook_chunk_shape<SL_IQ1_S_BYTES, SL_X_START, -9> {};
template <> struct sl_chunk_shape<SL_QTYPE_IQ1_M> : codebook_chunk_shape<SL_IQ1_M_BYTES, SL_X_HALVES, -9> {};

/* ---- bits ---- */

/* Of each byte that is chosen its highest bit, eight times. Selectors: 8 and the byte's number of the eight.
 */
static __device__ __forceinline__ uint32_t sl_sign_bytes(uint32_t a, uint32_t b, uint32_t selectors) {
    uint32_t found;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(a), "r"(b), "r"(selectors));
    return found;
}

/* Bytes of 255 where one of four bits is set. */
static __device__ __forceinline__ uint32_t sl_mask_of(uint32_t bits) {
    return sl_sign_bytes((bits & 15u) * 0x10204080u, 0, 0xba98);
}

/* Bytes turned negative where a mask is 255; none is 0. */
static __device__ __forceinline__ uint32_t sl_negate_by(uint32_t bytes, uint32_t mask) {
    return (bytes ^ mask) + (mask & 0x01010101u);
}

/* To the left, or by a negative number to the right. */
static __device__ __forceinline__ uint32_t sl_shift(uint32_t word, int by) {
    return by < 0 ? word >> -by : word << by;
}

/* Four times seven of eight signs, from the lowest bit on, to four bytes: the eighth makes them even. */
static __device__ __forceinline__ uint32_t sl_even_sign_bytes(uint32_t sevens) {
    uint32_t signs = sevens & 0x0fffffffu;
    signs = (signs & 0x0000007fu) | (signs << 1 & 0xffffff00u);
    signs = (signs & 0x00007fffu) | (signs << 1 & 0xffff0000u);
    signs = (signs & 0x007fffffu) | (signs << 1 & 0xff000000u);
    uint32_t odd = signs ^ signs << 4;
    odd ^= odd << 2;
    odd ^= odd << 1;
    return signs | (odd & 0x80808080u);
}

/* Byte `low` of `bytes`, and byte `high` of `above` as the next eight bits; those of `above` are below 128.
 */
static __device__ __forceinline__ uint32_t sl_number_of(uint32_t bytes, int low, uint32_t above, int high) {
    return sl_sign_bytes(bytes, above, 0xcc00u | (uint32_t)(4 + high) << 4 | (uint32_t)low);
}

static __device__ __forceinline__ int32_t sl_odd_of(uint32_t number) {
    return (int32_t)(2 * number + 1);
}

static __device__ __forceinline__ float sl_u16_half(const unsigned char *at) {
    return sl_half_of(*(const uint16_t *)at);
}

/* ---- tables ---- */

/* COPIES of eight bytes of each entry, one beside the other; 16 are a lane of a half-warp's own. */
template <int ENTRIES, int COUNT> struct copied_table {
    enum { COPIES = COUNT, STRIDE = 8 * COUNT, BYTES = ENTRIES * STRIDE };

    template <typename ENTRY> static __device__ __forceinline__ void fill(unsigned char *to, ENTRY entry) {
#pragma unroll 4
        for (int32_t i = (int32_t)threadIdx.x; i < BYTES / 16; i += (int32_t)blockDim.x) {
            const uint2 eight = entry(i / (COPIES / 2));
            ((uint4 *)to)[i] = make_uint4(eight.x, eight.y, eight.x, eight.y);
        }
    }

    /* Where a lane's copies begin. */
    static __device__ __forceinline__ uint32_t own(void) {
        return threadIdx.x % COPIES * 8;
    }
};

static __device__ __forceinline__ uint2 sl_iq2_point(uint32_t pairs) {
    return sl_codebook_bytes(SL_IQ2_VALUES_0, sl_spread_pairs(pairs));
}

/* Points, then masks of seven signs and the eighth, if the type writes seven. */
template <typename POINTS, bool SEVENS> struct iq2_tables {
    typedef POINTS points;
    typedef copied_table<SEVENS ? 128 : 0, 16> signs;
    enum { BYTES = points::BYTES + signs::BYTES };

    static __device__ __forceinline__ void fill_signs(unsigned char *to) {
        signs::fill(to + points::BYTES, [](int32_t i) {
            const uint32_t eight = sl_even_signs((uint32_t)i);
            return make_uint2(sl_mask_of(eight), sl_mask_of(eight >> 4));
        });
    }
};

template <> struct sl_tables<SL_QTYPE_IQ2_XXS> : iq2_tables<copied_table<256, 16>, true> {
    static __device__ __forceinline__ void fill(unsigned char *to) {
        points::fill(to, [](int32_t i) { return sl_iq2_point(sl_grid_iq2_xxs[i]); });
        fill_signs(to);
    }
};
template <> struct sl_tables<SL_QTYPE_IQ2_XS> : iq2_tables<copied_table<512, 8>, true> {
    static __device__ __forceinline__ void fill(unsigned char *to) {
        points::fill(to, [](int32_t i) { return sl_iq2_point(sl_grid_iq2_xs[i]); });
        fill_signs(to);
    }
};
template <> struct sl_tables<SL_QTYPE_IQ2_S> : iq2_tables<copied_table<1024, 4>, false> {
    static __device__ __forceinline__ void fill(unsigned char *to) {
        points::fill(to, [](int32_t i) { return sl_iq2_point(sl_grid_iq2_s[i]); });
    }
};

/* Four signed bytes of each point with each four signs; a point's number is the lower part of the index. */
template <int POINTS> struct iq3_tables {
    enum { BYTES = 16 * POINTS * 4, AT_ONCE = 4 };

    template <typename POINT> static __device__ __forceinline__ void fill_by(unsigned char *to, POINT point) {
#pragma unroll 2
        for (int32_t i = (int32_t)threadIdx.x; i < POINTS * 16 / AT_ONCE; i += (int32_t)blockDim.x) {
            const uint32_t bytes = point(i % POINTS), signs = (uint32_t)i / POINTS * AT_ONCE;
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++) {
                ((uint32_t *)to)[(signs + k) * POINTS + (uint32_t)i % POINTS] =
                    sl_negate_by(bytes, sl_mask_of(signs + k));
            }
        }
    }
};

template <> struct sl_tables<SL_QTYPE_IQ3_XXS> : iq3_tables<256> {
    static __device__ __forceinline__ void fill(unsigned char *to) {
        fill_by(to, [](int32_t i) { return sl_table_bytes(SL_IQ3_XXS_VALUES_0, sl_grid_iq3_xxs[i]); });
    }
};
template <> struct sl_tables<SL_QTYPE_IQ3_S> : iq3_tables<512> {
    static __device__ __forceinline__ void fill(unsigned char *to) {
        fill_by(to, [](int32_t i) { return sl_table_bytes(SL_IQ3_S_VALUES_0, sl_grid_iq3_s[i]); });
    }
};

/* Four pairs of bits to the lower bits of bytes. */
static __device__ __forceinline__ uint32_t sl_spread_four(uint32_t pairs) {
    const uint32_t x = (pairs | pairs << 12) & 0x000f000fu;
    return (x | x << 6) & 0x03030303u;
}

/* An element's nibble u says 2 u - 9: 8 g + 1, or 8 g - 1 where the index has bit 11. Low nibbles are the
 * first four elements, high ones the others. */
struct iq1_tables {
    enum { POINTS = 2048, BYTES = 2 * POINTS * 4 };

    static __device__ __forceinline__ void fill(unsigned char *to) {
#pragma unroll 4
        for (int32_t i = (int32_t)threadIdx.x; i < POINTS; i += (int32_t)blockDim.x) {
            const uint32_t pairs = sl_grid_iq1[i];
            const uint32_t less = (sl_spread_four(pairs & 255u) | sl_spread_four(pairs >> 8) << 4) << 2;
            ((uint32_t *)to)[i] = less | 0x11111111u;
            ((uint32_t *)to)[POINTS + i] = less;
        }
    }
};
template <> struct sl_tables<SL_QTYPE_IQ1_S> : iq1_tables {};
template <> struct sl_tables<SL_QTYPE_IQ1_M> : iq1_tables {};

/* ---- IQ2, a chunk a lane ---- */

/* Of a chunk's words behind its scale: point k of group g as an offset in a table, and its signs as masks. */
template <int TYPE> struct iq2_chunk;

template <> struct iq2_chunk<SL_QTYPE_IQ2_XXS> {
    typedef sl_tables<SL_QTYPE_IQ2_XXS> tables;
    enum { HALVES = 0 };
    static __device__ __forceinline__ uint32_t point(const uint32_t *words, int g, int k) {
        return (sl_shift(words[2 * g], 7 - 8 * k) & 0x7f80u) | tables::points::own();
    }
    static __device__ __forceinline__ void masks(const uint32_t *words, int g, const unsigned char *at,
                                                 uint2 masks[4]) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t own = (sl_shift(words[2 * g + 1], 7 - 7 * k) & 0x3f80u) | tables::signs::own();
            masks[k] = *(const uint2 *)(at + tables::points::BYTES + own);
        }
    }
    static __device__ __forceinline__ uint32_t number(const uint32_t *words, int g, int) {
        return words[2 * g + 1] >> 28;
    }
};

template <> struct iq2_chunk<SL_QTYPE_IQ2_XS> {
    typedef sl_tables<SL_QTYPE_IQ2_XS> tables;
    enum { HALVES = 1 };
    static __device__ __forceinline__ uint32_t point(const uint32_t *words, int g, int k) {
        return (sl_shift(words[2 * g + k / 2], k % 2 ? -10 : 6) & 0x7fc0u) | tables::points::own();
    }
    static __device__ __forceinline__ void masks(const uint32_t *words, int g, const unsigned char *at,
                                                 uint2 masks[4]) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t own = (words[2 * g + k / 2] >> (k % 2 ? 18 : 2) & 0x3f80u) | tables::signs::own();
            masks[k] = *(const uint2 *)(at + tables::points::BYTES + own);
        }
    }
    static __device__ __forceinline__ uint32_t number(const uint32_t *words, int g, int half) {
        return words[16 + g / 4] >> (8 * (g % 4) + 4 * half) & 15u;
    }
};

template <> struct iq2_chunk<SL_QTYPE_IQ2_S> {
    typedef sl_tables<SL_QTYPE_IQ2_S> tables;
    enum { HALVES = 1 };
    static __device__ __forceinline__ uint32_t point(const uint32_t *words, int g, int k) {
        return (sl_shift(words[g], 5 - 8 * k) & 0x1fe0u) |
               (sl_shift(words[16 + g / 4], 13 - 2 * k - 8 * (g % 4)) & 0x6000u) | tables::points::own();
    }
    static __device__ __forceinline__ void masks(const uint32_t *words, int g, const unsigned char *,
                                                 uint2 masks[4]) {
        const uint32_t signs = words[8 + g];
#pragma unroll
        for (int h = 0; h < 2;
             h++) { /* sign j of each point is the highest of its byte when moved by 7 - j */
            const uint32_t first = signs << (7 - 4 * h), second = signs << (6 - 4 * h);
            const uint32_t third = signs << (5 - 4 * h), fourth = signs << (4 - 4 * h);
#pragma unroll
            for (int k = 0; k < 4; k += 2) { /* a point's first two, then the next one's */
                const uint32_t both = k ? 0xfbea : 0xd9c8;
                const uint32_t a = sl_sign_bytes(first, second, both), b = sl_sign_bytes(third, fourth, both);
                (h ? masks[k].y : masks[k].x) = __byte_perm(a, b, 0x5410);
                (h ? masks[k + 1].y : masks[k + 1].x) = __byte_perm(a, b, 0x7632);
            }
        }
    }
    static __device__ __forceinline__ uint32_t number(const uint32_t *words, int g, int half) {
        return words[18 + g / 4] >> (8 * (g % 4) + 4 * half) & 15u;
    }
};

/* A byte v turned over is -v - 1, so the sum of x under the masks is missing: less. */
template <int TYPE> struct chunk_of_iq2 {
    typedef sl_x_chunk<TYPE> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x,
                                                    const unsigned char *tables) {
        typedef iq2_chunk<TYPE> own;
        enum { WORDS = (sl_chunk_shape<TYPE>::BYTES - 2) / 4 };
        uint32_t words[WORDS];
        sl_load_words<WORDS>(w + 2, words);
        const float d = sl_u16_half(w) * 0.125f;
        float sum = 0;
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            int32_t dots[2] = {own::HALVES ? 0 : SL_FLOAT_OF_INT_BITS, 0}, less[2] = {0, 0};
            uint2 masks[4];
            own::masks(words, g, tables, masks);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint2 point = *(const uint2 *)(tables + own::point(words, g, k)), mask = masks[k];
                const int32_t first = x.values[8 * g + 2 * k], second = x.values[8 * g + 2 * k + 1];
                int32_t &dot = dots[own::HALVES ? k / 2 : 0], &under = less[own::HALVES ? k / 2 : 0];
                dot = __dp4a((int32_t)(point.y ^ mask.y), second,
                             __dp4a((int32_t)(point.x ^ mask.x), first, dot));
                under = __dp4a((int32_t)mask.y, second, __dp4a((int32_t)mask.x, first, under));
            }
            const int32_t f0 = sl_odd_of(own::number(words, g, 0)), f1 = sl_odd_of(own::number(words, g, 1));
            if (own::HALVES) {
                const int32_t dot = f0 * (dots[0] - less[0]) + f1 * (dots[1] - less[1]);
                sum = fmaf(d * (float)dot, x.scales[g], sum);
            } else {
                const float scale = d * (__int_as_float(SL_FLOAT_OF_INT_BITS + f0) - SL_FLOAT_OF_INT);
                sum = fmaf(scale * (__int_as_float(dots[0] - less[0]) - SL_FLOAT_OF_INT), x.scales[g], sum);
            }
        }
        return sum;
    }
};
template <> struct sl_chunk<SL_QTYPE_IQ2_XXS> : chunk_of_iq2<SL_QTYPE_IQ2_XXS> {};
template <> struct sl_chunk<SL_QTYPE_IQ2_XS> : chunk_of_iq2<SL_QTYPE_IQ2_XS> {};
template <> struct sl_chunk<SL_QTYPE_IQ2_S> : chunk_of_iq2<SL_QTYPE_IQ2_S> {};

/* ---- IQ3, a chunk a lane ---- */

/* Of a chunk's words behind its scale: what stands above the lower eight bits of the numbers of points 0 2 4
 * 6 and 1 3 5 7 of a group, as bytes. */
template <int TYPE> struct iq3_chunk;

template <> struct iq3_chunk<SL_QTYPE_IQ3_XXS> {
    static __device__ __forceinline__ void above(const uint32_t *words, int g, uint32_t &even,
                                                 uint32_t &odd) {
        const uint32_t signs = sl_even_sign_bytes(words[16 + g]);
        even = signs & 0x0f0f0f0fu;
        odd = signs >> 4 & 0x0f0f0f0fu;
    }
    static __device__ __forceinline__ float scale(const uint32_t *words, int g, float d) {
        const int32_t bits = SL_FLOAT_OF_INT_BITS + sl_odd_of(words[16 + g] >> 28);
        return d * 0.25f * (__int_as_float(bits) - SL_FLOAT_OF_INT);
    }
};

template <> struct iq3_chunk<SL_QTYPE_IQ3_S> {
    static __device__ __forceinline__ void above(const uint32_t *words, int g, uint32_t &even,
                                                 uint32_t &odd) {
        const uint32_t high = words[16 + g / 4] >> 8 * (g % 4), signs = words[18 + g];
        /* every other bit to the lowest of a byte: where two products meet, none is kept and none carries */
        even = (signs << 1 & 0x1e1e1e1eu) | ((high & 0x55u) * 0x00041041u & 0x01010101u);
        odd = (signs >> 3 & 0x1e1e1e1eu) | ((high >> 1 & 0x55u) * 0x00041041u & 0x01010101u);
    }
    static __device__ __forceinline__ float scale(const uint32_t *words, int g, float d) {
        const int32_t bits = SL_FLOAT_OF_INT_BITS + sl_odd_of(words[26] >> 4 * g & 15u);
        return d * (__int_as_float(bits) - SL_FLOAT_OF_INT);
    }
};

template <int TYPE> struct chunk_of_iq3 {
    typedef sl_x_chunk<TYPE> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x,
                                                    const unsigned char *tables) {
        enum { WORDS = (sl_chunk_shape<TYPE>::BYTES - 2) / 4 };
        uint32_t words[WORDS];
        sl_load_words<WORDS>(w + 2, words);
        const float d = sl_u16_half(w);
        float sum = 0;
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            uint32_t even, odd;
            iq3_chunk<TYPE>::above(words, g, even, odd);
            int32_t dot = SL_FLOAT_OF_INT_BITS;
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const uint32_t number = sl_number_of(words[2 * g + k / 4], k % 4, k % 2 ? odd : even, k / 2);
                dot = __dp4a(((const int32_t *)tables)[number], x.values[8 * g + k], dot);
            }
            sum = fmaf(iq3_chunk<TYPE>::scale(words, g, d) * (__int_as_float(dot) - SL_FLOAT_OF_INT),
                       x.scales[g], sum);
        }
        return sum;
    }
};
template <> struct sl_chunk<SL_QTYPE_IQ3_XXS> : chunk_of_iq3<SL_QTYPE_IQ3_XXS> {};
template <> struct sl_chunk<SL_QTYPE_IQ3_S> : chunk_of_iq3<SL_QTYPE_IQ3_S> {};

/* ---- IQ1, a chunk a lane ---- */

/* Four points, by their lower eight bits and what stands above; the sums of two of them. */
struct iq1_points {
    int32_t low[2], high[2]; /* `high` is 16 times too large */

    __device__ __forceinline__ void multiply(uint32_t bytes, uint32_t above, const int32_t *x,
                                             const unsigned char *tables) {
        low[0] = low[1] = high[0] = high[1] = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t nibbles = ((const uint32_t *)tables)[sl_number_of(bytes, k, above, k)];
            low[k / 2] = sl_dot_unsigned(nibbles & 0x0f0f0f0fu, x[2 * k], low[k / 2]);
            high[k / 2] = sl_dot_unsigned(nibbles & 0xf0f0f0f0u, x[2 * k + 1], high[k / 2]);
        }
    }
};

template <> struct sl_chunk<SL_QTYPE_IQ1_S> {
    typedef sl_x_chunk<SL_QTYPE_IQ1_S> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x,
                                                    const unsigned char *tables) {
        uint32_t words[12];
        sl_load_words<12>(w + 2, words);
        const float d = sl_u16_half(w) * 0.125f;
        float sum = 0;
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            const uint32_t high = words[8 + g / 2] >> 16 * (g % 2) & 0xffffu;
            uint32_t above = (high | high << 10) & 0x003f003fu; /* three bits, and the group's sign above */
            above = ((above | above << 5) & 0x07070707u) | (sl_sign_bytes(high, 0, 0x9999) & 0x08080808u);
            iq1_points sums;
            sums.multiply(words[g], above, x.values + 8 * g, tables);
            const int32_t dot =
                (int32_t)x.extra[g] + 2 * (sums.low[0] + sums.low[1]) + (sums.high[0] + sums.high[1] >> 3);
            const int32_t bits = SL_FLOAT_OF_INT_BITS + sl_odd_of(high >> 12 & 7u);
            const float scale = d * (__int_as_float(bits) - SL_FLOAT_OF_INT);
            sum = fmaf(scale * (__int_as_float(dot) - SL_FLOAT_OF_INT), x.scales[g], sum);
        }
        return sum;
    }
};

/* The scale, from the upper four bits of each of the last four halves. */
static __device__ __forceinline__ float sl_iq1_m_scale_of(uint32_t first, uint32_t second) {
    return sl_half_of((first >> 12 & 15u) | (first >> 24 & 0xf0u) | (second >> 4 & 0xf00u) |
                      (second >> 16 & 0xf000u)) *
           0.125f;
}

template <> struct sl_chunk<SL_QTYPE_IQ1_M> {
    typedef sl_x_chunk<SL_QTYPE_IQ1_M> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x,
                                                    const unsigned char *tables) {
        sl_words_held<SL_IQ1_M_BYTES> words;
        words.load(w);
        const float d = sl_iq1_m_scale_of(words.word(48, 0), words.word(48, 1));
        float sum = 0;
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            const uint32_t high = words.word(32, g / 2) >> 16 * (g % 2) & 0xffffu;
            uint32_t above = (high | high << 8) & 0x00ff00ffu; /* of a point three bits, and a sign above */
            above = (above | above << 4) & 0x0f0f0f0fu;
            iq1_points sums;
            sums.multiply(words.word(0, g), above, x.values + 8 * g, tables);
            const uint32_t numbers = words.word(48, g / 4) >> (16 * (g / 2 % 2) + 6 * (g % 2));
            int32_t dot = 0;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                dot += sl_odd_of(numbers >> 3 * h & 7u) *
                       ((int32_t)x.extra[2 * g + h] + 2 * sums.low[h] + (sums.high[h] >> 3));
            }
            sum = fmaf(d * (float)dot, x.scales[g], sum);
        }
        return sum;
    }
};

/* ---- tiles ---- */

/* What a lane has of a group of a weight row: columns 8 t .. 8 t + 7, where t = lane % 4, and the factors of
 * the group's halves. A type without HALVES has one. */
typedef struct codebook_eight {
    uint32_t first, second;
    int32_t factor0, factor1;
} codebook_eight;

template <int TYPE> struct codebook_tile;

static __device__ __forceinline__ codebook_eight sl_signed_eight(uint2 point, uint2 mask, uint32_t number0,
                                                                 uint32_t number1) {
    return {sl_negate_by(point.x, mask.x), sl_negate_by(point.y, mask.y), sl_odd_of(number0),
            sl_odd_of(number1)};
}

/* Entry `index` of a table of IQ2, from a lane's own copies. */
template <typename TABLE>
static __device__ __forceinline__ uint2 sl_copied_entry(const unsigned char *table, uint32_t index) {
    return *(const uint2 *)(table + index * TABLE::STRIDE + TABLE::own());
}

static __device__ __forceinline__ uint32_t sl_even_word(const unsigned char *at) {
    return *(const uint16_t *)at | (uint32_t)((const uint16_t *)at)[1] << 16;
}

template <> struct codebook_tile<SL_QTYPE_IQ2_XXS> {
    typedef sl_tables<SL_QTYPE_IQ2_XXS> tables;
    enum { HALVES = 0, TIMES = 1 };
    static __device__ __forceinline__ codebook_eight eight(const unsigned char *w, int g, int32_t t,
                                                           const unsigned char *at) {
        const uint32_t signs = sl_even_word(w + 6 + 8 * g), number = signs >> 28;
        return sl_signed_eight(
            sl_copied_entry<tables::points>(at, w[2 + 8 * g + t]),
            sl_copied_entry<tables::signs>(at + tables::points::BYTES, signs >> 7 * t & 127u), number,
            number);
    }
    static __device__ __forceinline__ float scale(const unsigned char *w) {
        return sl_u16_half(w) * 0.125f;
    }
};

template <> struct codebook_tile<SL_QTYPE_IQ2_XS> {
    typedef sl_tables<SL_QTYPE_IQ2_XS> tables;
    enum { HALVES = 1, TIMES = 1 };
    static __device__ __forceinline__ codebook_eight eight(const unsigned char *w, int g, int32_t t,
                                                           const unsigned char *at) {
        const uint32_t point = *(const uint16_t *)(w + 2 + 8 * g + 2 * t), numbers = w[66 + g];
        return sl_signed_eight(sl_copied_entry<tables::points>(at, point & 511u),
                               sl_copied_entry<tables::signs>(at + tables::points::BYTES, point >> 9),
                               numbers & 15u, numbers >> 4);
    }
    static __device__ __forceinline__ float scale(const unsigned char *w) {
        return sl_u16_half(w) * 0.125f;
    }
};

template <> struct codebook_tile<SL_QTYPE_IQ2_S> {
    typedef sl_tables<SL_QTYPE_IQ2_S> tables;
    enum { HALVES = 1, TIMES = 1 };
    static __device__ __forceinline__ codebook_eight eight(const unsigned char *w, int g, int32_t t,
                                                           const unsigned char *at) {
        const uint32_t high = (uint32_t)w[66 + g] >> 2 * t & 3u, signs = w[34 + 4 * g + t];
        const uint32_t numbers = w[74 + g];
        return sl_signed_eight(sl_copied_entry<tables::points>(at, w[2 + 4 * g + t] | high << 8),
                               make_uint2(sl_mask_of(signs), sl_mask_of(signs >> 4)), numbers & 15u,
                               numbers >> 4);
    }
    static __device__ __forceinline__ float scale(const unsigned char *w) {
        return sl_u16_half(w) * 0.125f;
    }
};

template <> struct codebook_tile<SL_QTYPE_IQ3_XXS> {
    enum { HALVES = 0, TIMES = 1 };
    static __device__ __forceinline__ codebook_eight eight(const unsigned char *w, int g, int32_t t,
                                                           const unsigned char *at) {
        const uint32_t points = *(const uint16_t *)(w + 2 + 8 * g + 2 * t);
        const uint32_t signs = sl_even_word(w + 66 + 4 * g), seven = signs >> 7 * t & 127u;
        const uint32_t last = (uint32_t)__popc(seven) << 11 & 0x800u; /* makes them even */
        const uint32_t first = (points & 255u) | (seven << 8 & 0xf00u);
        const uint32_t second = points >> 8 | (seven << 4 & 0x700u) | last;
        const uint32_t *table = (const uint32_t *)at;
        return {table[first], table[second], sl_odd_of(signs >> 28), 0};
    }
    static __device__ __forceinline__ float scale(const unsigned char *w) {
        return sl_u16_half(w) * 0.25f;
    }
};

template <> struct codebook_tile<SL_QTYPE_IQ3_S> {
    enum { HALVES = 0, TIMES = 1 };
    static __device__ __forceinline__ codebook_eight eight(const unsigned char *w, int g, int32_t t,
                                                           const unsigned char *at) {
        const uint32_t points = *(const uint16_t *)(w + 2 + 8 * g + 2 * t);
        const uint32_t high = (uint32_t)w[66 + g] >> 2 * t, signs = w[74 + 4 * g + t];
        const uint32_t first = (points & 255u) | (high << 8 & 0x100u) | (signs << 9 & 0x1e00u);
        const uint32_t second = points >> 8 | (high << 7 & 0x100u) | (signs << 5 & 0x1e00u);
        const uint32_t *table = (const uint32_t *)at;
        return {table[first], table[second], sl_odd_of((uint32_t)w[106 + g / 2] >> 4 * (g % 2) & 15u), 0};
    }
    static __device__ __forceinline__ float scale(const unsigned char *w) {
        return sl_u16_half(w);
    }
};

template <> struct codebook_tile<SL_QTYPE_IQ1_S> {
    enum { HALVES = 0, TIMES = 2 };
    static __device__ __forceinline__ codebook_eight eight(const unsigned char *w, int g, int32_t t,
                                                           const unsigned char *at) {
        const uint32_t high = *(const uint16_t *)(w + 34 + 2 * g);
        const uint32_t number = w[2 + 4 * g + t] | (high >> 3 * t & 7u) << 8 | (high >> 4 & 0x800u);
        const uint32_t nibbles = ((const uint32_t *)at)[number];
        return {nibbles & 0x0f0f0f0fu, nibbles >> 4 & 0x0f0f0f0fu, sl_odd_of(high >> 12 & 7u), 0};
    }
    static __device__ __forceinline__ float scale(const unsigned char *w) {
        return sl_u16_half(w) * 0.125f;
    }
};

template <> struct codebook_tile<SL_QTYPE_IQ1_M> {
    enum { HALVES = 1, TIMES = 2 };
    static __device__ __forceinline__ codebook_eight eight(const unsigned char *w, int g, int32_t t,
                                                           const unsigned char *at) {
        const uint32_t above = (uint32_t)w[32 + 2 * g + t / 2] >> 4 * (t % 2) & 15u;
        const uint32_t nibbles = ((const uint32_t *)at)[w[4 * g + t] | above << 8];
        const uint32_t numbers = (uint32_t)((const uint16_t *)(w + 48))[g / 2] >> 6 * (g % 2);
        return {nibbles & 0x0f0f0f0fu, nibbles >> 4 & 0x0f0f0f0fu, sl_odd_of(numbers & 7u),
                sl_odd_of(numbers >> 3 & 7u)};
    }
    static __device__ __forceinline__ float scale(const unsigned char *w) {
        return sl_iq1_m_scale_of(((const uint32_t *)(w + 48))[0], ((const uint32_t *)(w + 48))[1]);
    }
};

/* Where halves have factors of their own, each is multiplied with zeros for the other. */
template <int TYPE> struct tile_of_codebook {
    typedef codebook_tile<TYPE> own;

    template <typename X>
    static __device__ __forceinline__ void add_halves(const codebook_eight (&rows)[2], const X &x, int g,
                                                      const float scale[2], float sums[4]) {
        const uint32_t a[4] = {rows[0].first, rows[1].first, rows[0].second, rows[1].second};
        const uint2 b = x.values(g);
        const bool lower = threadIdx.x % 4 < 2;
        int32_t low[4], high[4];
        sl_mma_i8<false>(low, a, make_uint2(lower ? b.x : 0, lower ? b.y : 0), make_int2(0, 0));
        sl_mma_i8<false>(high, a, make_uint2(lower ? 0 : b.x, lower ? 0 : b.y), make_int2(0, 0));
        int2 more[2] = {{0, 0}, {0, 0}};
        if (sl_chunk_shape<TYPE>::X == SL_X_HALVES) {
            more[0] = x.extra(2 * g);
            more[1] = x.extra(2 * g + 1);
        }
        const float2 x_scale = x.scales(g);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const codebook_eight &row = rows[e / 2];
            const int32_t dot = row.factor0 * (own::TIMES * low[e] + (e % 2 ? more[0].y : more[0].x)) +
                                row.factor1 * (own::TIMES * high[e] + (e % 2 ? more[1].y : more[1].x));
            sums[e] = fmaf(scale[e / 2] * (float)dot, e % 2 ? x_scale.y : x_scale.x, sums[e]);
        }
    }

    template <typename X>
    static __device__ __forceinline__ void add_whole(const codebook_eight (&rows)[2], const X &x, int g,
                                                     const float d[2], float sums[4]) {
        const uint32_t a[4] = {rows[0].first, rows[1].first, rows[0].second, rows[1].second};
        int32_t dots[4];
        float scale[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int32_t bits = SL_FLOAT_OF_INT_BITS + rows[r].factor0;
            scale[r] = d[r] * (__int_as_float(bits) - SL_FLOAT_OF_INT);
        }
        if (sl_chunk_shape<TYPE>::X == SL_X_START) {
            const int2 start = x.extra(g);
            sl_mma_i8<false>(dots, a, x.values(g), make_int2(0, 0));
#pragma unroll
            for (int e = 0; e < 4; e++) {
                dots[e] = own::TIMES * dots[e] + (e % 2 ? start.y : start.x);
            }
        } else {
            sl_mma_i8<false>(dots, a, x.values(g), make_int2(SL_FLOAT_OF_INT_BITS, SL_FLOAT_OF_INT_BITS));
        }
        tile_add(sums, dots, scale, x.scales(g));
    }

    template <typename X>
    static __device__ __forceinline__ void add(const unsigned char *const w[2], const X &x, int32_t lane,
                                               float sums[4], const unsigned char *tables) {
        const float d[2] = {own::scale(w[0]), own::scale(w[1])};
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            const codebook_eight rows[2] = {own::eight(w[0], g, lane % 4, tables),
                                            own::eight(w[1], g, lane % 4, tables)};
            if (own::HALVES) {
                add_halves(rows, x, g, d, sums);
            } else {
                add_whole(rows, x, g, d, sums);
            }
        }
    }
};
template <> struct sl_tile<SL_QTYPE_IQ2_XXS> : tile_of_codebook<SL_QTYPE_IQ2_XXS> {};
template <> struct sl_tile<SL_QTYPE_IQ2_XS> : tile_of_codebook<SL_QTYPE_IQ2_XS> {};
template <> struct sl_tile<SL_QTYPE_IQ2_S> : tile_of_codebook<SL_QTYPE_IQ2_S> {};
template <> struct sl_tile<SL_QTYPE_IQ3_XXS> : tile_of_codebook<SL_QTYPE_IQ3_XXS> {};
template <> struct sl_tile<SL_QTYPE_IQ3_S> : tile_of_codebook<SL_QTYPE_IQ3_S> {};
template <> struct sl_tile<SL_QTYPE_IQ1_S> : tile_of_codebook<SL_QTYPE_IQ1_S> {};
template <> struct sl_tile<SL_QTYPE_IQ1_M> : tile_of_codebook<SL_QTYPE_IQ1_M> {};

#endif
