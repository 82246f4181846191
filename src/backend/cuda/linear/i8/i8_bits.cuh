/* Chunks and tiles (i8_chunk.cuh, i8_mma_tile.cuh) of Q2_K and Q3_K: two bits of an element in a byte
 * that holds four elements, and a scale for each 16.
 *
 * Bits are masked where they are, not shifted down: products are powers of two too large, and the sums are
 * shifted, exactly. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_BITS_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_BITS_CUH

#include "backend/cuda/linear/i8/i8_blocks.cuh"

/* ---- Q2_K ---- */

/* The bytes of a block: scales and minima of the 16 halves of groups, four bits each, and their factors; min
 * is negative. */
typedef struct sl_q2_k_head {
    uint32_t scales[4], mins[4];
    float d, min;
} sl_q2_k_head;

template <typename WORDS> static __device__ __forceinline__ sl_q2_k_head sl_q2_k_head_of(const WORDS &w) {
    sl_q2_k_head head;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t both = w.word(0, i);
        head.scales[i] = both & 0x0f0f0f0fu;
        head.mins[i] = both >> 4 & 0x0f0f0f0fu;
    }
    const uint32_t halves = w.word(80, 0);
    head.d = sl_half_of(halves & 0xffffu);
    head.min = -sl_half_of(halves >> 16);
    return head;
}

/* Byte `index` of four words, which is known to the compiler. */
static __device__ __forceinline__ int32_t sl_byte_of(const uint32_t words[4], int index) {
    return (int32_t)(words[index / 4] >> 8 * (index % 4) & 255u);
}

static __device__ __forceinline__ float sl_float_of(int32_t n) {
    return __int_as_float(SL_FLOAT_OF_INT_BITS + n) - SL_FLOAT_OF_INT;
}

template <> struct sl_chunk<SL_QTYPE_Q2_K> {
    typedef sl_x_chunk<SL_QTYPE_Q2_K> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x) {
        sl_words_held<SL_Q2_K_BYTES> words;
        words.load(w);
        const sl_q2_k_head head = sl_q2_k_head_of(words);
        float sum = 0;
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            const int shift = 2 * (g % 4);
            int32_t dots[2] = {0, 0};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint32_t quants = words.word(16 + 32 * (g / 4), i) & 0x03030303u << shift;
                dots[i / 4] = sl_dot_unsigned(quants, x.values[8 * g + i], dots[i / 4]);
            }
            const int32_t dot =
                sl_byte_of(head.scales, 2 * g) * dots[0] + sl_byte_of(head.scales, 2 * g + 1) * dots[1];
            const int32_t x_sum = sl_byte_of(head.mins, 2 * g) * (int32_t)x.extra[2 * g] +
                                  sl_byte_of(head.mins, 2 * g + 1) * (int32_t)x.extra[2 * g + 1];
            sum = fmaf(head.d * sl_float_of(dot >> shift), x.scales[g], sum);
            sum = fmaf(head.min, x.scales[g] * sl_float_of(x_sum), sum);
        }
        return sum;
    }
};

template <> struct sl_tile<SL_QTYPE_Q2_K> {
    template <typename X>
    static __device__ __forceinline__ void add(const unsigned char *const w[2], const X &x, int32_t lane,
                                               float sums[4]) {
        const sl_words_shared words[2] = {{w[0]}, {w[1]}};
        const sl_q2_k_head heads[2] = {sl_q2_k_head_of(words[0]), sl_q2_k_head_of(words[1])};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t quants[2][2]; /* [half of a group][row] */
#pragma unroll
            for (int r = 0; r < 2; r++) {
                quants[0][r] = words[r].word(16 + 32 * h, lane % 4);
                quants[1][r] = words[r].word(32 + 32 * h, lane % 4);
            }
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const int g = 4 * h + q;
                const uint32_t mask = 0x03030303u << 2 * q;
                const uint2 b = x.values(g);
                int32_t low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
                sl_mma_i8_k16_add<true>(low, quants[0][0] & mask, quants[0][1] & mask, b.x);
                sl_mma_i8_k16_add<true>(high, quants[1][0] & mask, quants[1][1] & mask, b.y);
                const int2 low_sums = x.extra(2 * g), high_sums = x.extra(2 * g + 1);
                const float2 x_scale = x.scales(g);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const sl_q2_k_head &head = heads[e / 2];
                    const float scale = e % 2 ? x_scale.y : x_scale.x;
                    const int32_t dot = sl_byte_of(head.scales, 2 * g) * low[e] +
                                        sl_byte_of(head.scales, 2 * g + 1) * high[e];
                    const int32_t x_sum =
                        sl_byte_of(head.mins, 2 * g) * (e % 2 ? low_sums.y : low_sums.x) +
                        sl_byte_of(head.mins, 2 * g + 1) * (e % 2 ? high_sums.y : high_sums.x);
                    sums[e] = fmaf(head.d * sl_float_of(dot >> 2 * q), scale, sums[e]);
                    sums[e] = fmaf(head.min, scale * sl_float_of(x_sum), sums[e]);
                }
            }
        }
    }
};

/* ---- Q3_K ---- */

/* The scales of the 16 halves of groups, and 32 less as they are signed bytes. */
static __device__ __forceinline__ void sl_q3_k_scales(uint32_t low, uint32_t middle, uint32_t high,
                                                      uint32_t scales[4]) {
    scales[0] = (low & 0x0f0f0f0fu) | (high << 4 & 0x30303030u);
    scales[1] = (middle & 0x0f0f0f0fu) | (high << 2 & 0x30303030u);
    scales[2] = (low >> 4 & 0x0f0f0f0fu) | (high & 0x30303030u);
    scales[3] = (middle >> 4 & 0x0f0f0f0fu) | (high >> 2 & 0x30303030u);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        scales[i] = ((scales[i] | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
    }
}

static __device__ __forceinline__ int32_t sl_signed_byte_of(const uint32_t words[4], int index) {
    return (int8_t)(words[index / 4] >> 8 * (index % 4));
}

template <> struct sl_chunk<SL_QTYPE_Q3_K> {
    typedef sl_x_chunk<SL_QTYPE_Q3_K> X;

    static __device__ __forceinline__ float product(const unsigned char *w, const X &x) {
        const uint32_t odd = (uint32_t)(uint64_t)w & 2u; /* blocks begin at even addresses */
        const uint32_t *aligned = (const uint32_t *)(w - odd);
        uint32_t words[28], scales[4];
        uint32_t before = aligned[0];
#pragma unroll
        for (int i = 0; i < 27; i++) {
            const uint32_t next = aligned[i + 1];
            words[i] = __funnelshift_r(before, next, 8 * odd);
            before = next;
        }
        sl_q3_k_scales(words[24], words[25], words[26], scales);
        const float d = sl_half_of(((const uint16_t *)w)[54]);
        float sum = 0;
#pragma unroll
        for (int g = 0; g < SL_CHUNK_GROUPS; g++) {
            int32_t low[2] = {0, 0}, high[2] = {0, 0}, dot = 0;
            const int shift = 2 * (g % 4);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int32_t value = x.values[8 * g + i];
                low[i / 4] =
                    sl_dot_unsigned(words[8 + 8 * (g / 4) + i] & 0x03030303u << shift, value, low[i / 4]);
                high[i / 4] = sl_dot_unsigned(words[i] & 0x01010101u << g, value, high[i / 4]);
            }
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const int32_t own = (low[k] >> shift) + 4 * (high[k] >> g) + (int32_t)x.extra[2 * g + k];
                dot += sl_signed_byte_of(scales, 2 * g + k) * own;
            }
            sum = fmaf(d * sl_float_of(dot), x.scales[g], sum);
        }
        return sum;
    }
};

template <> struct sl_tile<SL_QTYPE_Q3_K> {
    /* Elements of the group whose lower bits are in bits 2 q and 2 q + 1, times 4^q, or for q of 3 times 16;
     * g: the bit of the third. */
    static __device__ __forceinline__ uint32_t quants(uint32_t low, uint32_t high, int q, int g) {
        const int at = q < 3 ? 2 * q : 4;
        low = q < 3 ? low : low >> 2;
        high = at + 2 > g ? high << (at + 2 - g) : high >> (g - at - 2);
        return (low & 0x03030303u << at) | (high & 0x04040404u << at);
    }

    template <typename X>
    static __device__ __forceinline__ void add(const unsigned char *const w[2], const X &x, int32_t lane,
                                               float sums[4]) {
        const int32_t at = 4 * (lane % 4);
        float d[2];
        uint32_t high[2][2], scales[2][4]; /* [half of a group][row] */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            d[r] = sl_half_of(((const uint16_t *)w[r])[54]);
            high[0][r] = sl_tile<SL_QTYPE_Q6_K>::word(w[r], at);
            high[1][r] = sl_tile<SL_QTYPE_Q6_K>::word(w[r], 16 + at);
            sl_q3_k_scales(sl_tile<SL_QTYPE_Q6_K>::word(w[r], 96), sl_tile<SL_QTYPE_Q6_K>::word(w[r], 100),
                           sl_tile<SL_QTYPE_Q6_K>::word(w[r], 104), scales[r]);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t low[2][2]; /* [half of a group][row] */
#pragma unroll
            for (int r = 0; r < 2; r++) {
                low[0][r] = sl_tile<SL_QTYPE_Q6_K>::word(w[r], 32 + 32 * h + at);
                low[1][r] = sl_tile<SL_QTYPE_Q6_K>::word(w[r], 48 + 32 * h + at);
            }
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const int g = 4 * h + q, shift = q < 3 ? 2 * q : 4;
                const uint2 b = x.values(g);
                int32_t dots[2][4] = {};
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    sl_mma_i8_k16_add<true>(dots[k], quants(low[k][0], high[k][0], q, g),
                                            quants(low[k][1], high[k][1], q, g), k ? b.y : b.x);
                }
                const int2 first = x.extra(2 * g), second = x.extra(2 * g + 1);
                const float2 scale = x.scales(g);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int32_t f0 = sl_signed_byte_of(scales[e / 2], 2 * g),
                                  f1 = sl_signed_byte_of(scales[e / 2], 2 * g + 1);
                    const int32_t dot = f0 * ((dots[0][e] >> shift) + (e % 2 ? first.y : first.x)) +
                                        f1 * ((dots[1][e] >> shift) + (e % 2 ? second.y : second.x));
                    sums[e] = fmaf(d[e / 2] * sl_float_of(dot), e % 2 ? scale.y : scale.x, sums[e]);
                }
            }
        }
    }
};

#endif
