/* Chunks and tiles (i8_chunk.cuh, i8_mma_tile.cuh) of Q2_K and Q3_K: two bits of an element in a byte
 * that holds four elements, and a scale for each 16.
 *
 * Bits are masked where they are, not shifted down: products are powers of two too large, and the sums are
 * shifted, exactly. The sums of a group's halves fit into 16 bits each, so one instruction multiplies both
 * with their scales. */
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

/* Adds what the two halves of group g say, signed numbers of 16 bits, times signed bytes 2 g and 2 g + 1. */
static __device__ __forceinline__ int32_t sl_dot_halves(uint32_t halves, const uint32_t bytes[4], int g,
                                                        int32_t sum) {
    if (g % 2) {
        asm("dp2a.hi.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(halves), "r"(bytes[g / 2]));
    } else {
        asm("dp2a.lo.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(halves), "r"(bytes[g / 2]));
    }
    return sum;
}

static __device__ __forceinline__ uint32_t sl_pack_halves(int32_t first, int32_t second) {
    return __byte_perm((uint32_t)first, (uint32_t)second, 0x5410);
}

/* Of a number that was added to SL_FLOAT_OF_INT_BITS. */
static __device__ __forceinline__ float sl_float_of_sum(int32_t bits) {
    return __int_as_float(bits) - SL_FLOAT_OF_INT;
}

/* Of group g, d times the dot products of its halves with x, times their scales. The products are 4^(g % 4)
 * times too large; four times too large they fit into 16 bits, and d may be four times too small. */
static __device__ __forceinline__ float sl_q2_k_scaled(const sl_q2_k_head &head, int g, int32_t first,
                                                       int32_t second) {
    const int shift = g % 4 < 2 ? 0 : 2 * (g % 4);
    const uint32_t halves = sl_pack_halves(first >> shift, second >> shift);
    const float d = g % 4 == 1 ? head.d * 0.25f : head.d;
    return d * sl_float_of_sum(sl_dot_halves(halves, head.scales, g, SL_FLOAT_OF_INT_BITS));
}

/* x_sums: of the halves of x. */
static __device__ __forceinline__ float sl_q2_k_min(const sl_q2_k_head &head, int g, uint32_t x_sums) {
    return sl_float_of_sum(sl_dot_halves(x_sums, head.mins, g, SL_FLOAT_OF_INT_BITS));
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
            sum = fmaf(sl_q2_k_scaled(head, g, dots[0], dots[1]), x.scales[g], sum);
            sum = fmaf(head.min, x.scales[g] * sl_q2_k_min(head, g, x.extra[g]), sum);
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
                const int2 x_sums = x.extra(g);
                const float2 x_scale = x.scales(g);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const sl_q2_k_head &head = heads[e / 2];
                    const float scale = e % 2 ? x_scale.y : x_scale.x;
                    const uint32_t x_sum = (uint32_t)(e % 2 ? x_sums.y : x_sums.x);
                    sums[e] = fmaf(sl_q2_k_scaled(head, g, low[e], high[e]), scale, sums[e]);
                    sums[e] = fmaf(head.min, scale * sl_q2_k_min(head, g, x_sum), sums[e]);
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

/* d times what the halves of a group say, times their scales. start: to be added to the halves. */
static __device__ __forceinline__ float sl_q3_k_scaled(const uint32_t scales[4], int g, uint32_t halves,
                                                       uint32_t start, float d) {
    const int32_t sum = sl_dot_halves(start, scales, g, SL_FLOAT_OF_INT_BITS);
    return d * sl_float_of_sum(sl_dot_halves(halves, scales, g, sum));
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
            int32_t low[2] = {0, 0}, high[2] = {0, 0}, own[2];
            const int shift = 2 * (g % 4), up = shift + 2 - g; /* third bits are worth four */
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int32_t value = x.values[8 * g + i];
                low[i / 4] =
                    sl_dot_unsigned(words[8 + 8 * (g / 4) + i] & 0x03030303u << shift, value, low[i / 4]);
                high[i / 4] = sl_dot_unsigned(words[i] & 0x01010101u << g, value, high[i / 4]);
            }
#pragma unroll
            for (int k = 0; k < 2; k++) {
                own[k] = (low[k] + (up < 0 ? high[k] >> -up : high[k] << up)) >> shift;
            }
            const float scaled = sl_q3_k_scaled(scales, g, sl_pack_halves(own[0], own[1]), x.extra[g], d);
            sum = fmaf(scaled, x.scales[g], sum);
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
                const int2 start = x.extra(g);
                const float2 scale = x.scales(g);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const uint32_t halves = sl_pack_halves(dots[0][e] >> shift, dots[1][e] >> shift);
                    const float scaled = sl_q3_k_scaled(scales[e / 2], g, halves,
                                                        (uint32_t)(e % 2 ? start.y : start.x), d[e / 2]);
                    sums[e] = fmaf(scaled, e % 2 ? scale.y : scale.x, sums[e]);
                }
            }
        }
    }
};

#endif
