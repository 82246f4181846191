/* What bf16_rows128_types.cuh has, for types whose columns are points of a codebook. Points are bytes in
 * shared memory (types/codebook_tables.cuh): a lane reads the two of its columns at once, which as bits of
 * BF16 numbers it multiplies by the scale, and gives them their signs.
 *
 * Signs are words of a group of 32 columns, beside its scale. Bit 16 l + 8 (k % 2) + 2 t + k / 2 is of column
 * 8 k + 2 t + l, so that one shift gives lane t its own, and another those of point k in bits 15 and 31. */
#ifndef SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_CODES_CUH
#define SL_BACKEND_CUDA_LINEAR_BF16_BF16_ROWS128_CODES_CUH

#include "backend/cuda/linear/bf16/bf16_rows128_blocks.cuh"
#include "backend/cuda/types/codebook_tables.cuh"

/* Copies begin up to 14 bytes before the block, of IQ1_M up to 8. */
template <> struct skinny_layout<SL_QTYPE_IQ2_XXS> : skinny_quants<SL_IQ2_XXS_BYTES, 80, 64> {};
template <> struct skinny_layout<SL_QTYPE_IQ2_XS> : skinny_quants<SL_IQ2_XS_BYTES, 112, 64> {};
template <> struct skinny_layout<SL_QTYPE_IQ2_S> : skinny_quants<SL_IQ2_S_BYTES, 112, 64> {};
template <> struct skinny_layout<SL_QTYPE_IQ3_XXS> : skinny_quants<SL_IQ3_XXS_BYTES, 112, 64> {};
template <> struct skinny_layout<SL_QTYPE_IQ3_S> : skinny_quants<SL_IQ3_S_BYTES, 144, 64> {};
template <> struct skinny_layout<SL_QTYPE_IQ1_S> : skinny_quants<SL_IQ1_S_BYTES, 80, 64> {};
template <> struct skinny_layout<SL_QTYPE_IQ1_M> : skinny_quants<SL_IQ1_M_BYTES, 80, 64> {};

/* Offsets of what the blocks have. */
enum {
    SKINNY_IQ2_XS_SCALES = 66,
    SKINNY_IQ2_S_SIGNS = 34,
    SKINNY_IQ2_S_HIGH = 66,
    SKINNY_IQ2_S_SCALES = 74,
    SKINNY_IQ3_XXS_SIGNS = 66,
    SKINNY_IQ3_S_HIGH = 66,
    SKINNY_IQ3_S_SIGNS = 74,
    SKINNY_IQ3_S_SCALES = 106,
    SKINNY_IQ1_S_HIGH = 34,
    SKINNY_IQ1_M_HIGH = 32,
    SKINNY_IQ1_M_SCALES = 48
};

/* ---- scales and signs ---- */

static __device__ __forceinline__ uint32_t skinny_half_at(const unsigned char *at) {
    return *(const uint16_t *)at;
}

static __device__ __forceinline__ uint32_t skinny_word_at(const unsigned char *at) {
    return skinny_half_at(at) | skinny_half_at(at + 2) << 16;
}

/* Bytes of seven signs, of which an even number is set with the eighth. */
static __device__ __forceinline__ uint32_t skinny_even_signs(uint32_t seven) {
    uint32_t odd = seven ^ seven << 4;
    odd ^= odd << 2;
    return seven | ((odd ^ odd << 1) & 0x80808080u);
}

/* Four numbers of seven bits to bytes. */
static __device__ __forceinline__ uint32_t skinny_sevens(uint32_t bits) {
    return (bits & 0x7fu) | (bits << 1 & 0x7f00u) | (bits << 2 & 0x7f0000u) | (bits << 3 & 0x7f000000u);
}

/* Byte k has the signs of point k. Bits 0 and 4 of bits' numbers change places. */
static __device__ __forceinline__ uint32_t skinny_place_signs(uint32_t bytes) {
    const uint32_t both = (bytes ^ bytes >> 15) & 0xaaaau;
    return bytes ^ both ^ both << 15;
}

/* A group's scale, of both halves, and its signs. all: the block's scale. */
template <int TYPE>
static __device__ __forceinline__ uint2 skinny_code_scales(const unsigned char *row, int32_t g, float all) {
    uint32_t low, high, signs; /* numbers of halves */
    if constexpr (TYPE == SL_QTYPE_IQ2_XXS || TYPE == SL_QTYPE_IQ3_XXS) {
        const unsigned char *at =
            row + (TYPE == SL_QTYPE_IQ2_XXS ? 2 + 8 * g + 4 : SKINNY_IQ3_XXS_SIGNS + 4 * g);
        const uint32_t word = skinny_word_at(at);
        low = high = word >> 28;
        signs = skinny_even_signs(skinny_sevens(word));
    } else if constexpr (TYPE == SL_QTYPE_IQ2_XS) {
        const uint32_t first = skinny_word_at(row + 2 + 8 * g), second = skinny_word_at(row + 2 + 8 * g + 4);
        const uint32_t numbers = row[SKINNY_IQ2_XS_SCALES + g];
        low = numbers & 15u;
        high = numbers >> 4;
        signs = skinny_even_signs(__byte_perm(first >> 9 & 0x007f007fu, second >> 9 & 0x007f007fu, 0x6420));
    } else if constexpr (TYPE == SL_QTYPE_IQ2_S) {
        const uint32_t numbers = row[SKINNY_IQ2_S_SCALES + g];
        low = numbers & 15u;
        high = numbers >> 4;
        signs = skinny_word_at(row + SKINNY_IQ2_S_SIGNS + 4 * g);
    } else {
        low = high = (uint32_t)row[SKINNY_IQ3_S_SCALES + g / 2] >> 4 * (g % 2) & 15u;
        signs = skinny_word_at(row + SKINNY_IQ3_S_SIGNS + 4 * g);
    }
    return make_uint2(sl_bf16_pair(all * (float)(2 * low + 1), all * (float)(2 * high + 1)),
                      skinny_place_signs(signs));
}

/* IQ1_S: scale and constant. Bytes are 7 or 9 more than what they mean. */
static __device__ __forceinline__ uint2 skinny_iq1_s_scales(const unsigned char *row, int32_t g, float all) {
    const uint32_t high = skinny_half_at(row + SKINNY_IQ1_S_HIGH + 2 * g);
    const float scale = all * (float)(2 * (high >> 12 & 7u) + 1);
    const float less = high >> 15 ? -9.0f : -7.0f;
    const skinny_line line = skinny_line_of(scale, scale * SKINNY_BIT * less, 8.0f);
    return make_uint2(skinny_twice(line.scale), skinny_twice(line.constant));
}

/* IQ1_M: scales of both halves, and in bits 15 - k and 31 - k whether one is subtracted in point k, not
 * added.
 */
static __device__ __forceinline__ uint2 skinny_iq1_m_scales(const unsigned char *row, int32_t g, float all) {
    const uint32_t numbers = skinny_half_at(row + SKINNY_IQ1_M_SCALES + g / 2 * 2) >> 6 * (g % 2);
    const uint32_t high = skinny_half_at(row + SKINNY_IQ1_M_HIGH + 2 * g);
    const uint32_t less =
        (high << 12 & 0x8000u) | (high << 7 & 0x4000u) | (high << 2 & 0x2000u) | (high >> 3 & 0x1000u);
    return make_uint2(
        sl_bf16_pair(all * (float)(2 * (numbers & 7u) + 1), all * (float)(2 * (numbers >> 3 & 7u) + 1)),
        less | less << 16);
}

/* Half a row's groups. */
template <int TYPE>
static __device__ __forceinline__ void skinny_codes_scales(const unsigned char *row, int32_t half,
                                                           uint4 *to) {
    float all = TYPE == SL_QTYPE_IQ3_S ? SKINNY_UP : TYPE == SL_QTYPE_IQ3_XXS ? SKINNY_UP / 4 : SKINNY_UP / 8;
    if constexpr (TYPE == SL_QTYPE_IQ1_M) {
        uint32_t bits = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bits |= skinny_half_at(row + SKINNY_IQ1_M_SCALES + 2 * i) >> 12 << 4 * i;
        }
        all *= sl_half_of(bits);
    } else {
        all *= sl_half_of(skinny_half_at(row));
    }
    uint2 out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (TYPE == SL_QTYPE_IQ1_S) {
            out[i] = skinny_iq1_s_scales(row, 4 * half + i, all);
        } else if constexpr (TYPE == SL_QTYPE_IQ1_M) {
            out[i] = skinny_iq1_m_scales(row, 4 * half + i, all);
        } else {
            out[i] = skinny_code_scales<TYPE>(row, 4 * half + i, all);
        }
    }
    to[16 * (2 * half)] = make_uint4(out[0].x, out[0].y, out[1].x, out[1].y);
    to[16 * (2 * half + 1)] = make_uint4(out[2].x, out[2].y, out[3].x, out[3].y);
}

/* ---- points ---- */

static __device__ __forceinline__ uint32_t skinny_octet(uint32_t from) {
    uint32_t octet;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(octet) : "r"(from) : "memory");
    return octet;
}

/* What a lane reads of a group's points: of a row, WORDS registers for group g of the chunk; then the address
 * of its two columns of point k. `view.table` is that of the first point's. */
template <int TYPE> struct skinny_points;

template <> struct skinny_points<SL_QTYPE_IQ2_XXS> {
    uint32_t words[2];
    __device__ __forceinline__ void load(const skinny_view &, uint32_t row, uint32_t g) {
        words[0] = skinny_short(row + 2 + 8 * g);
        words[1] = skinny_short(row + 2 + 8 * g + 2);
    }
    __device__ __forceinline__ uint32_t place(const skinny_view &view, int k) const {
        return view.table + 8 * (words[k / 2] >> 8 * (k % 2) & 255u);
    }
};

template <> struct skinny_points<SL_QTYPE_IQ2_XS> {
    uint32_t words[4];
    __device__ __forceinline__ void load(const skinny_view &, uint32_t row, uint32_t g) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            words[k] = skinny_short(row + 2 + 8 * g + 2 * k);
        }
    }
    __device__ __forceinline__ uint32_t place(const skinny_view &view, int k) const {
        return view.table + 8 * (words[k] & 511u);
    }
};

/* Points of eight columns, whose upper bits lie together, EACH of a point. */
template <uint32_t POINTS, int EACH> struct skinny_points_and_high {
    uint32_t words[2], high;
    __device__ __forceinline__ void load_points(uint32_t row, uint32_t g) {
        words[0] = skinny_short(row + POINTS + 4 * g);
        words[1] = skinny_short(row + POINTS + 4 * g + 2);
    }
    __device__ __forceinline__ uint32_t place(const skinny_view &view, int k) const {
        enum { MASK = EACH == 2 ? 0x1800 : 0x3800 };
        const int shift = 11 - EACH * k;
        return view.table + 8 * (words[k / 2] >> 8 * (k % 2) & 255u) +
               ((shift < 0 ? high >> (shift < 0 ? -shift : 0) : high << (shift < 0 ? 0 : shift)) & MASK);
    }
};

template <> struct skinny_points<SL_QTYPE_IQ2_S> : skinny_points_and_high<2, 2> {
    __device__ __forceinline__ void load(const skinny_view &, uint32_t row, uint32_t g) {
        load_points(row, g);
        high = skinny_octet(row + SKINNY_IQ2_S_HIGH + g);
    }
};
template <> struct skinny_points<SL_QTYPE_IQ1_S> : skinny_points_and_high<2, 3> {
    __device__ __forceinline__ void load(const skinny_view &, uint32_t row, uint32_t g) {
        load_points(row, g);
        high = skinny_short(row + SKINNY_IQ1_S_HIGH + 2 * g);
    }
};
template <> struct skinny_points<SL_QTYPE_IQ1_M> : skinny_points_and_high<0, 4> {
    __device__ __forceinline__ void load(const skinny_view &, uint32_t row, uint32_t g) {
        load_points(row, g);
        high = skinny_short(row + SKINNY_IQ1_M_HIGH + 2 * g);
    }
};

/* Points of four columns: lanes 0 and 1 of a row read one, lanes 2 and 3 the next. */
struct skinny_half_points {
    uint32_t points[4];
    __device__ __forceinline__ void load_points(const skinny_view &view, uint32_t row, uint32_t g) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            points[k] = skinny_octet(row + view.pair / 4 + 2 + 8 * g + 2 * k);
        }
    }
};

template <> struct skinny_points<SL_QTYPE_IQ3_XXS> : skinny_half_points {
    __device__ __forceinline__ void load(const skinny_view &view, uint32_t row, uint32_t g) {
        load_points(view, row, g);
    }
    __device__ __forceinline__ uint32_t place(const skinny_view &view, int k) const {
        return view.table + 4 * points[k];
    }
};

template <> struct skinny_points<SL_QTYPE_IQ3_S> : skinny_half_points {
    uint32_t high;
    __device__ __forceinline__ void load(const skinny_view &view, uint32_t row, uint32_t g) {
        load_points(view, row, g);
        high = skinny_octet(row + SKINNY_IQ3_S_HIGH + g) >> view.pair / 4;
    }
    __device__ __forceinline__ uint32_t place(const skinny_view &view, int k) const {
        return view.table + 4 * points[k] + (high << (10 - 2 * k) & 0x400u);
    }
};

/* ---- columns ---- */

/* A group's scale and signs, or what is there instead, for one lane. */
template <int TYPE> struct skinny_code_values {
    enum {
        HAS_HALVES = TYPE == SL_QTYPE_IQ2_XS || TYPE == SL_QTYPE_IQ2_S || TYPE == SL_QTYPE_IQ1_M,
        IS_LINE = TYPE == SL_QTYPE_IQ1_S,
        HAS_STEPS = TYPE == SL_QTYPE_IQ1_M
    };
    uint32_t scales[2], signs;

    __device__ __forceinline__ skinny_code_values(const skinny_view &view, uint32_t scale, uint32_t second) {
        scales[0] = HAS_HALVES ? __byte_perm(scale, 0, 0x1010) : scale;
        scales[1] = HAS_HALVES ? __byte_perm(scale, 0, 0x3232) : scale;
        signs = IS_LINE || HAS_STEPS ? second : second >> view.pair;
    }
    /* Of point k. */
    __device__ __forceinline__ uint32_t run(uint32_t bits, int k) const {
        const uint32_t scale = scales[k / 2];
        if constexpr (IS_LINE) {
            return skinny_value(bits, scale, signs);
        } else if constexpr (HAS_STEPS) { /* 8 less, then 1 more or less: rounded once */
            const uint32_t one = scale ^ (signs << k & 0x80008000u);
            return skinny_value(0x00010001u, one,
                                skinny_value(bits, scale, skinny_product(scale, SKINNY_OFFSET_Q4_0)));
        } else {
            return skinny_product(bits, scale) ^ (signs << (15 - 8 * (k % 2) - k / 2) & 0x80008000u);
        }
    }
};

template <int TYPE> struct skinny_decoder_codes {
    skinny_points<TYPE> points[2][2]; /* [row][group] */
    uint4 scales[2];

    __device__ __forceinline__ void load(const skinny_view &view, int step) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            scales[row] = skinny_four(view.scales + (uint32_t)(128 * row + 256 * step));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                points[row][i].load(view, view.row[row], (uint32_t)(2 * step + i));
            }
        }
    }

    __device__ __forceinline__ void run(const skinny_view &view, int, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int row = 0; row < 2; row++) { /* all are on their way before the first is used */
#pragma unroll
            for (int i = 0; i < 8; i++) {
                a[i / 2][i % 2 * 2 + row] = skinny_short(points[row][i / 4].place(view, i % 4));
            }
        }
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const uint4 s = scales[row];
            const skinny_code_values<TYPE> values[2] = {{view, s.x, s.y}, {view, s.z, s.w}};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                uint32_t &out = a[i / 2][i % 2 * 2 + row];
                out = values[i / 4].run(__byte_perm(out, 0, 0x4140), i % 4);
            }
        }
    }
};

#define SKINNY_CODES(ID)                                                                                     \
    template <>                                                                                              \
    __device__ __forceinline__ void skinny_scales<SL_QTYPE_##ID>(const unsigned char *row, int32_t half,     \
                                                                 uint4 *to) {                                \
        skinny_codes_scales<SL_QTYPE_##ID>(row, half, to);                                                   \
    }                                                                                                        \
    template <> struct skinny_decoder<SL_QTYPE_##ID> : skinny_decoder_codes<SL_QTYPE_##ID> {};
SKINNY_CODES(IQ2_XXS)
SKINNY_CODES(IQ2_XS)
SKINNY_CODES(IQ2_S)
SKINNY_CODES(IQ3_XXS)
SKINNY_CODES(IQ3_S)
SKINNY_CODES(IQ1_S)
SKINNY_CODES(IQ1_M)

#endif
