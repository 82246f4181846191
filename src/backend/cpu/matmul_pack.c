/* Repacking of weights into the panels of matmul.h, at load. */
#include "backend/cpu/matmul.h"
#include "quant/codebook.h"

#include <string.h>

/* A run of words of the block that becomes a plane of the panel's block: `count` words of `bytes` bytes. */
typedef struct plane {
    uint16_t offset;
    uint8_t bytes, count;
} plane;

enum { PLANES = 6, LARGEST_BLOCK = 256, MOST_OUTPUTS = 32 };

/* Bit 8 b + q of a word of high bits belongs to column 4 q + b of its 32, as the columns lie in the bytes of
 * the quants' words. In the file it is bit 4 q + b of a word: the product puts the bits of four columns seven
 * apart, behind those that they have. */
static void put_high_word(unsigned char *out, uint32_t bits) {
    uint32_t word = 0;
    for (int q = 0; q < 8; q++) {
        word |= ((bits >> 4 * q & 15u) * 0x00204081u & 0x01010101u) << q;
    }
    memcpy(out, &word, sizeof word);
}

/* Or it is bit `bit` of the column's byte. */
static void put_high_word_of(unsigned char *out, const uint8_t *bytes, int bit) {
    uint32_t word = 0;
    for (int q = 0; q < 8; q++) {
        uint32_t four;
        memcpy(&four, bytes + 4 * q, sizeof four);
        word |= (four >> bit & 0x01010101u) << q;
    }
    memcpy(out, &word, sizeof word);
}

/* How a type's block is rearranged before its planes are taken: high bits to words, those of a period in
 * front of its quants. */
static void prepare_q5_0(const unsigned char *block, unsigned char *out) {
    uint32_t bits;
    memcpy(out, block, SL_Q5_0_BYTES);
    memcpy(&bits, block + offsetof(sl_block_q5_0, high), sizeof bits);
    put_high_word(out + offsetof(sl_block_q5_0, high), bits);
}

static void prepare_q5_1(const unsigned char *block, unsigned char *out) {
    uint32_t bits;
    memcpy(out, block, SL_Q5_1_BYTES);
    memcpy(&bits, block + offsetof(sl_block_q5_1, high), sizeof bits);
    put_high_word(out + offsetof(sl_block_q5_1, high), bits);
}

static void prepare_q5_k(const unsigned char *data, unsigned char *out) {
    const sl_block_q5_k *block = (const void *)data;
    memcpy(out, data, 16);
    out += 16;
    for (int pair = 0; pair < 4; pair++, out += 40) {
        put_high_word_of(out, block->high, 2 * pair);
        put_high_word_of(out + 4, block->high, 2 * pair + 1);
        memcpy(out + 8, block->quants + (size_t)32 * (size_t)pair, 32);
    }
}

static void prepare_q3_k(const unsigned char *data, unsigned char *out) {
    const sl_block_q3_k *block = (const void *)data;
    memcpy(out, &block->scale, 2);
    memcpy(out + 2, block->scales, 12);
    out += 14;
    for (int half = 0; half < 2; half++, out += 48) {
        for (int r = 0; r < 4; r++) {
            put_high_word_of(out + (size_t)4 * (size_t)r, block->high, 4 * half + r);
        }
        memcpy(out + 16, block->quants + (size_t)32 * (size_t)half, 32);
    }
}

/* Groups of 16 with their nibbles as those of 32 have them elsewhere, and scales that are numbers: ggml's NaN
 * is 0, and there is no sign. */
static void prepare_nvfp4_parts(const unsigned char *scales, const unsigned char *quants, int groups,
                                unsigned char *out) {
    for (int g = 0; g < groups; g++) {
        *out++ = scales[g] == 127 ? 0 : scales[g] & 127;
    }
    for (int pair = 0; pair < groups / 2; pair++, quants += 16, out += 16) {
        for (int i = 0; i < 4; i++) {
            out[i] = (unsigned char)((quants[i] & 15) | (quants[8 + i] & 15) << 4);
            out[4 + i] = (unsigned char)((quants[4 + i] & 15) | (quants[12 + i] & 15) << 4);
            out[8 + i] = (unsigned char)(quants[i] >> 4 | (quants[8 + i] & 240));
            out[12 + i] = (unsigned char)(quants[4 + i] >> 4 | (quants[12 + i] & 240));
        }
    }
}

static void prepare_nvfp4(const unsigned char *data, unsigned char *out) {
    const sl_block_nvfp4 *block = (const void *)data;
    prepare_nvfp4_parts(block->scales, block->quants, 4, out);
}

static void prepare_nvfp4_128(const unsigned char *data, unsigned char *out) {
    const sl_block_nvfp4_128 *block = (const void *)data;
    memcpy(out, &block->scale, 4);
    prepare_nvfp4_parts(block->scales, block->quants, 8, out + 4);
}

/* Four codes, nibbles, to the low nibbles of four bytes. */
static uint32_t nibbles_to_bytes(uint32_t codes) {
    const uint32_t x = (codes | codes << 8) & 0x00ff00ffu;
    return (x | x << 4) & 0x0f0f0f0fu;
}

/* A group's codes as q4_0 has its quants. */
static void put_codes(const sl_codes32 *group, unsigned char *out) {
    for (int k = 0; k < 2; k++) {
        const uint32_t words[2] = {nibbles_to_bytes(group->codes[k] & 0xffffu) |
                                       nibbles_to_bytes(group->codes[2 + k] & 0xffffu) << 4,
                                   nibbles_to_bytes(group->codes[k] >> 16) |
                                       nibbles_to_bytes(group->codes[2 + k] >> 16) << 4};
        memcpy(out + (size_t)8 * (size_t)k, words, sizeof words);
    }
}

/* `halves`: factors of a group. */
#define PREPARE_CODES(name, halves)                                                                          \
    static void prepare_##name(const unsigned char *block, unsigned char *out) {                             \
        for (int g = 0; g < 8; g++) {                                                                        \
            sl_codes32 group;                                                                                \
            sl_codes_##name((const void *)block, (uint32_t)g, &group);                                       \
            memcpy(out, &group.scale, sizeof group.scale);                                                   \
            for (int h = 0; h < (halves); h++) {                                                             \
                out[4 + (halves)*g + h] = (unsigned char)group.factor[h];                                    \
            }                                                                                                \
            put_codes(&group, out + 4 + 8 * (halves) + (size_t)16 * (size_t)g);                              \
        }                                                                                                    \
    }
PREPARE_CODES(iq3_xxs, 1)
PREPARE_CODES(iq3_s, 1)
PREPARE_CODES(iq2_xxs, 2)
PREPARE_CODES(iq2_xs, 2)
PREPARE_CODES(iq2_s, 2)
PREPARE_CODES(iq1_s, 2)
PREPARE_CODES(iq1_m, 2)

/* To TQ2_0. */
static void prepare_tq1_0(const unsigned char *data, unsigned char *out) {
    const sl_block_tq1_0 *block = (const void *)data;
    sl_block_tq2_0 *to = (void *)out;
    memset(to->quants, 0, sizeof to->quants);
    for (uint32_t i = 0; i < SL_TQ1_0_ELEMENTS; i++) {
        to->quants[i / 128 * 32 + i % 32] |= (uint8_t)(sl_tq1_0_digit(block, i) << 2 * (i % 128 / 32));
    }
    to->scale = block->scale;
}

/* Of 128 columns and a column of their first group, its nibbles in the four groups, a bit further to the
 * left: where they are an index's upper bits. */
static void put_four_nibbles(uint16_t nibbles, unsigned char *out) {
    const uint16_t word = (uint16_t)(nibbles << 1 | nibbles >> 15);
    memcpy(out, &word, sizeof word);
}

/* Columns i and 16 + i of a group side by side. */
static void prepare_runs_q4_k(const unsigned char *data, unsigned char *out) {
    const sl_block_q4_k *block = (const void *)data;
    memcpy(out, data, offsetof(sl_block_q4_k, quants));
    out += offsetof(sl_block_q4_k, quants);
    for (int i = 0; i < 64; i++) {
        const uint8_t *quants = block->quants + i / 32 * 64 + i % 32 / 2 + i % 2 * 16;
        put_four_nibbles((uint16_t)(quants[0] | quants[32] << 8), out + (size_t)2 * (size_t)i);
    }
}

static void prepare_runs_iq4_xs(const unsigned char *data, unsigned char *out) {
    const sl_block_iq4_xs *block = (const void *)data;
    memcpy(out, data, offsetof(sl_block_iq4_xs, quants));
    out += offsetof(sl_block_iq4_xs, quants);
    for (int i = 0; i < 64; i++) {
        unsigned nibbles = 0;
        for (int g = 0; g < 4; g++) {
            nibbles |= (block->quants[i / 32 * 64 + g * 16 + i % 32 / 2] >> 4 * (i % 2) & 15u) << 4 * g;
        }
        put_four_nibbles((uint16_t)nibbles, out + (size_t)2 * (size_t)i);
    }
}

#define TERNARY_PLANES                                                                                       \
    {                                                                                                        \
        {offsetof(sl_block_tq2_0, scale), 2, 1}, {                                                           \
            offsetof(sl_block_tq2_0, quants), 4, 16                                                          \
        }                                                                                                    \
    }
#define CODE_PLANES(halves)                                                                                  \
    {                                                                                                        \
        {0, 4, 1}, {4, 4, 2 * (halves)}, {                                                                   \
            4 + 8 * (halves), 4, 32                                                                          \
        }                                                                                                    \
    }

/* The planes of each type in the panel's order, of the block as rearranged; none: a type without blocks. */
static const struct {
    void (*prepare)(const unsigned char *block, unsigned char *out); /* NULL: as it is */
    plane planes[PLANES];
    int32_t bytes; /* of a block as rearranged; 0: as many as in the file */
    void (*prepare_runs)(const unsigned char *block, unsigned char *out);
    plane runs[PLANES]; /* the planes where an output's columns lie together; none: no such panels */
} blocks_of[SL_QTYPE_COUNT] = {
    [SL_QTYPE_Q8_0] = {.planes = {{offsetof(sl_block_q8_0, scale), 2, 1},
                                  {offsetof(sl_block_q8_0, quants), 4, 8}},
                       .runs = {{offsetof(sl_block_q8_0, scale), 2, 1},
                                {offsetof(sl_block_q8_0, quants), 32, 1}}},
    [SL_QTYPE_Q4_0] = {.planes = {{offsetof(sl_block_q4_0, scale), 2, 1},
                                  {offsetof(sl_block_q4_0, quants), 4, 4}},
                       .runs = {{offsetof(sl_block_q4_0, scale), 2, 1},
                                {offsetof(sl_block_q4_0, quants), 16, 1}}},
    [SL_QTYPE_Q4_1] = {.planes = {{offsetof(sl_block_q4_1, scale), 2, 2},
                                  {offsetof(sl_block_q4_1, quants), 4, 4}}},
    [SL_QTYPE_Q5_0] = {.prepare = prepare_q5_0, .planes = {{0, 2, 1}, {2, 4, 5}}},
    [SL_QTYPE_Q5_1] = {.prepare = prepare_q5_1, .planes = {{0, 2, 2}, {4, 4, 5}}},
    [SL_QTYPE_Q2_K] = {.planes = {{offsetof(sl_block_q2_k, scales), 4, 4},
                                  {offsetof(sl_block_q2_k, scale), 2, 2},
                                  {offsetof(sl_block_q2_k, quants), 4, 16}}},
    [SL_QTYPE_Q3_K] = {.prepare = prepare_q3_k, .planes = {{0, 2, 1}, {2, 4, 3}, {14, 4, 24}}},
    [SL_QTYPE_Q4_K] = {.planes = {{offsetof(sl_block_q4_k, scale), 2, 2},
                                  {offsetof(sl_block_q4_k, scales), 4, 3},
                                  {offsetof(sl_block_q4_k, quants), 4, 32}},
                       .runs = {{offsetof(sl_block_q4_k, scale), 2, 2},
                                {offsetof(sl_block_q4_k, scales), 4, 3},
                                {offsetof(sl_block_q4_k, quants), 64, 2}},
                       .prepare_runs = prepare_runs_q4_k},
    [SL_QTYPE_Q5_K] = {.prepare = prepare_q5_k,
                       .planes = {{0, 2, 2}, {4, 4, 3}, {16, 4, 40}},
                       .runs = {{offsetof(sl_block_q5_k, scale), 2, 2},
                                {offsetof(sl_block_q5_k, scales), 4, 3},
                                {offsetof(sl_block_q5_k, high), 32, 1},
                                {offsetof(sl_block_q5_k, quants), 32, 4}}},
    [SL_QTYPE_Q6_K] = {.planes = {{offsetof(sl_block_q6_k, scale), 2, 1},
                                  {offsetof(sl_block_q6_k, scales), 4, 4},
                                  {offsetof(sl_block_q6_k, low), 4, 16},
                                  {offsetof(sl_block_q6_k, high), 4, 8},
                                  {offsetof(sl_block_q6_k, low) + 64, 4, 16},
                                  {offsetof(sl_block_q6_k, high) + 32, 4, 8}},
                       .runs = {{offsetof(sl_block_q6_k, scale), 2, 1},
                                {offsetof(sl_block_q6_k, scales), 4, 4},
                                {offsetof(sl_block_q6_k, low), 64, 1},
                                {offsetof(sl_block_q6_k, high), 32, 1},
                                {offsetof(sl_block_q6_k, low) + 64, 64, 1},
                                {offsetof(sl_block_q6_k, high) + 32, 32, 1}}},
    [SL_QTYPE_IQ4_NL] = {.planes = {{offsetof(sl_block_iq4_nl, scale), 2, 1},
                                    {offsetof(sl_block_iq4_nl, quants), 4, 4}}},
    [SL_QTYPE_IQ4_XS] = {.planes = {{offsetof(sl_block_iq4_xs, scale), 2, 2},
                                    {offsetof(sl_block_iq4_xs, scales_low), 4, 1},
                                    {offsetof(sl_block_iq4_xs, quants), 4, 32}},
                         .runs = {{offsetof(sl_block_iq4_xs, scale), 2, 2},
                                  {offsetof(sl_block_iq4_xs, scales_low), 4, 1},
                                  {offsetof(sl_block_iq4_xs, quants), 64, 2}},
                         .prepare_runs = prepare_runs_iq4_xs},
    [SL_QTYPE_MXFP4] = {.planes = {{offsetof(sl_block_mxfp4, exponent), 1, 1},
                                   {offsetof(sl_block_mxfp4, quants), 4, 4}}},
    [SL_QTYPE_NVFP4] = {.prepare = prepare_nvfp4, .planes = {{0, 4, 1}, {4, 4, 8}}},
    [SL_QTYPE_NVFP4_128] = {.prepare = prepare_nvfp4_128, .planes = {{0, 4, 1}, {4, 4, 2}, {12, 4, 16}}},
    [SL_QTYPE_TQ1_0] = {.prepare = prepare_tq1_0, .planes = TERNARY_PLANES, .bytes = SL_PACKED_TERNARY},
    [SL_QTYPE_TQ2_0] = {.prepare = NULL, .planes = TERNARY_PLANES, .bytes = SL_PACKED_TERNARY},
    [SL_QTYPE_IQ3_XXS] = {.prepare = prepare_iq3_xxs, .planes = CODE_PLANES(1), .bytes = SL_PACKED_CODES},
    [SL_QTYPE_IQ3_S] = {.prepare = prepare_iq3_s, .planes = CODE_PLANES(1), .bytes = SL_PACKED_CODES},
    [SL_QTYPE_IQ2_XXS] = {.prepare = prepare_iq2_xxs,
                          .planes = CODE_PLANES(2),
                          .bytes = SL_PACKED_CODES_OF_HALVES},
    [SL_QTYPE_IQ2_XS] = {.prepare = prepare_iq2_xs,
                         .planes = CODE_PLANES(2),
                         .bytes = SL_PACKED_CODES_OF_HALVES},
    [SL_QTYPE_IQ2_S] = {.prepare = prepare_iq2_s,
                        .planes = CODE_PLANES(2),
                        .bytes = SL_PACKED_CODES_OF_HALVES},
    [SL_QTYPE_IQ1_S] = {.prepare = prepare_iq1_s,
                        .planes = CODE_PLANES(2),
                        .bytes = SL_PACKED_CODES_OF_HALVES},
    [SL_QTYPE_IQ1_M] = {.prepare = prepare_iq1_m,
                        .planes = CODE_PLANES(2),
                        .bytes = SL_PACKED_CODES_OF_HALVES},
    [SL_QTYPE_FP8_128] = {.planes = {{offsetof(sl_block_fp8_128, scale), 4, 1},
                                     {offsetof(sl_block_fp8_128, codes), 1, 128}}},
};

typedef struct layout {
    int32_t panel;
    bool bf16_pairs;    /* two columns of bf16 are one word */
    bool q8_0_unsigned; /* q8_0 plus 128 */
    bool runs;
} layout;

static uint64_t row_bytes(const sl_weight *weight) {
    const sl_qtype_info *type = sl_qtype_get(weight->type);
    return (uint64_t)weight->columns / type->block_elements * type->block_bytes;
}

/* Of an output in a panel. */
static uint64_t packed_row_bytes(const sl_weight *weight) {
    const sl_qtype_info *type = sl_qtype_get(weight->type);
    const uint64_t block =
        blocks_of[weight->type].bytes ? (uint64_t)blocks_of[weight->type].bytes : type->block_bytes;
    return (uint64_t)weight->columns / type->block_elements * block;
}

static uint64_t packed_bytes(const sl_weight *weight, int32_t panel) {
    const uint64_t outputs =
        ((uint64_t)weight->rows + (uint64_t)panel - 1) / (uint64_t)panel * (uint64_t)panel;
    return (uint64_t)weight->experts * outputs * packed_row_bytes(weight);
}

uint64_t sl_matmul_packed_bytes_32(const sl_weight *weight) {
    return packed_bytes(weight, 32);
}

uint64_t sl_matmul_packed_bytes_runs(const sl_weight *weight) {
    return packed_bytes(weight, 32);
}

uint64_t sl_matmul_packed_bytes_16(const sl_weight *weight) {
    return packed_bytes(weight, 16);
}

/* As many words of as many outputs as a vector has: rows become columns, `stride` bytes apart. Each round
 * lays the words of the first half of the vectors between those of the second. */
#define TRANSPOSE(type)                                                                                      \
    static void transpose_##type(const unsigned char *const *outputs, size_t offset, unsigned char *packed,  \
                                 size_t stride) {                                                            \
        enum { COUNT = 16 / sizeof(type), HALF = COUNT / 2 };                                                \
        typedef type vector __attribute__((vector_size(16)));                                                \
        vector words[COUNT], mixed[COUNT];                                                                   \
        for (int i = 0; i < COUNT; i++) {                                                                    \
            memcpy(&words[i], outputs[i] + offset, sizeof words[i]);                                         \
        }                                                                                                    \
        for (int round = 1; round < COUNT; round *= 2) {                                                     \
            for (int i = 0; i < HALF; i++) {                                                                 \
                mixed[2 * i] = __builtin_shufflevector(words[i], words[HALF + i], LOW_##type);               \
                mixed[2 * i + 1] = __builtin_shufflevector(words[i], words[HALF + i], HIGH_##type);          \
            }                                                                                                \
            memcpy(words, mixed, sizeof words);                                                              \
        }                                                                                                    \
        for (int i = 0; i < COUNT; i++) {                                                                    \
            memcpy(packed + stride * (size_t)i, &words[i], sizeof words[i]);                                 \
        }                                                                                                    \
    }
#define LOW_uint32_t 0, 4, 1, 5
#define HIGH_uint32_t 2, 6, 3, 7
#define LOW_uint16_t 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_uint16_t 4, 12, 5, 13, 6, 14, 7, 15
#define LOW_uint8_t 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_uint8_t 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
TRANSPOSE(uint32_t)
TRANSPOSE(uint16_t)
TRANSPOSE(uint8_t)

static const struct {
    void (*transpose)(const unsigned char *const *outputs, size_t offset, unsigned char *packed,
                      size_t stride);
    int32_t count; /* of words, and of outputs */
} transposes[] = {
    [1] = {transpose_uint8_t, 16}, [2] = {transpose_uint16_t, 8}, [4] = {transpose_uint32_t, 4}};

/* One plane of a panel's block; `outputs`: each output's block. */
static void interleave(const unsigned char *const *outputs, const plane *plane, int32_t panel,
                       unsigned char *packed) {
    const size_t bytes = plane->bytes, stride = bytes * (size_t)panel;
    const int32_t step = bytes <= 4 ? transposes[bytes].count : 1;
    size_t offset = plane->offset;
    int32_t w = 0;
    for (; bytes <= 4 && w + step <= plane->count; w += step, offset += bytes * (size_t)step) {
        for (int32_t o = 0; o < panel; o += step) {
            transposes[bytes].transpose(outputs + o, offset, packed + bytes * (size_t)o, stride);
        }
        packed += stride * (size_t)step;
    }
    for (; w < plane->count; w++, offset += bytes) {
        for (int32_t o = 0; o < panel; o++, packed += bytes) {
            memcpy(packed, outputs[o] + offset, bytes);
        }
    }
}

static void flip_signs(unsigned char *quants, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        quants[i] ^= 0x80;
    }
}

/* What a panel's blocks are in the file. Types without blocks have their words in blocks as large as fit; the
 * last of a row may be smaller. */
typedef struct panel_blocks {
    size_t bytes;
    plane whole[2];
} panel_blocks;

static panel_blocks blocks_of_panel(sl_qtype type, const layout *layout) {
    panel_blocks blocks = {.bytes = sl_qtype_get(type)->block_bytes};
    if (blocks_of[type].planes[0].count == 0) {
        const size_t word = blocks.bytes * (layout->bf16_pairs && type == SL_QTYPE_BF16 ? 2 : 1);
        blocks.bytes = LARGEST_BLOCK / 2;
        blocks.whole[0] = (plane){0, (uint8_t)word, (uint8_t)(blocks.bytes / word)};
    }
    return blocks;
}

static void pack_panel(const sl_matmul_rows *from, const layout *layout, unsigned char *packed) {
    static const unsigned char zeros[LARGEST_BLOCK];
    const sl_qtype_info *type = sl_qtype_get(from->type);
    const size_t panel = (size_t)layout->panel;
    const size_t row_bytes = (size_t)from->columns / type->block_elements * type->block_bytes;
    panel_blocks blocks = blocks_of_panel(from->type, layout);
    const plane *planes = blocks.whole[0].count > 0 ? blocks.whole
                          : layout->runs            ? blocks_of[from->type].runs
                                                    : blocks_of[from->type].planes;
    void (*const prepare)(const unsigned char *, unsigned char *) =
        layout->runs ? blocks_of[from->type].prepare_runs : blocks_of[from->type].prepare;
    unsigned char prepared[MOST_OUTPUTS][LARGEST_BLOCK];
    const unsigned char *outputs[MOST_OUTPUTS];
    for (int32_t o = 0; o < layout->panel; o++) {
        outputs[o] = zeros;
    }
    for (size_t at = 0; at < row_bytes; at += blocks.bytes) {
        for (int32_t o = 0; o < from->outputs; o++) {
            outputs[o] = from->rows + (size_t)o * from->row_bytes + at;
            if (prepare) {
                prepare(outputs[o], prepared[o]);
                outputs[o] = prepared[o];
            }
        }
        if (row_bytes - at < blocks.bytes) {
            blocks.bytes = row_bytes - at;
            blocks.whole[0].count = (uint8_t)(blocks.bytes / blocks.whole[0].bytes);
        }
        unsigned char *out = packed;
        for (int p = 0; p < PLANES && planes[p].count > 0; p++) {
            interleave(outputs, &planes[p], layout->panel, out);
            out += planes[p].bytes * panel * planes[p].count;
        }
        if (from->type == SL_QTYPE_Q8_0 && layout->q8_0_unsigned) {
            flip_signs(packed + 2 * panel, 32 * panel);
        }
        packed = out;
    }
}

static void pack(const sl_weight *weight, void *packed, int32_t first, int32_t count, const layout *layout) {
    const uint64_t row = row_bytes(weight), panel = packed_row_bytes(weight) * (uint64_t)layout->panel;
    const uint64_t packed_expert = packed_bytes(weight, layout->panel) / (uint64_t)weight->experts;
    for (int32_t e = 0; e < weight->experts; e++) {
        const unsigned char *from =
            (const unsigned char *)weight->data + (uint64_t)e * (uint64_t)weight->rows * row;
        unsigned char *to = (unsigned char *)packed + (uint64_t)e * packed_expert;
        for (int32_t o = first; o < first + count; o += layout->panel) {
            const int32_t left = first + count - o;
            const sl_matmul_rows rows = {from + (uint64_t)o * row, row, weight->type, weight->columns,
                                         left < layout->panel ? left : layout->panel};
            pack_panel(&rows, layout, to + (uint64_t)(o / layout->panel) * panel);
        }
    }
}

static const layout layout_32 = {.panel = 32, .bf16_pairs = true, .q8_0_unsigned = true};
static const layout layout_runs = {.panel = 32, .q8_0_unsigned = true, .runs = true};
static const layout layout_16 = {.panel = 16, .bf16_pairs = false, .q8_0_unsigned = false};

void sl_matmul_pack_32(const sl_weight *weight, void *packed, int32_t first, int32_t count) {
    pack(weight, packed, first, count, &layout_32);
}

void sl_matmul_pack_runs(const sl_weight *weight, void *packed, int32_t first, int32_t count) {
    pack(weight, packed, first, count, &layout_runs);
}

void sl_matmul_pack_16(const sl_weight *weight, void *packed, int32_t first, int32_t count) {
    pack(weight, packed, first, count, &layout_16);
}

void sl_matmul_pack_rows_32(const sl_matmul_rows *rows, unsigned char *packed) {
    pack_panel(rows, &layout_32, packed);
}

void sl_matmul_pack_rows_runs(const sl_matmul_rows *rows, unsigned char *packed) {
    pack_panel(rows, &layout_runs, packed);
}

void sl_matmul_pack_rows_16(const sl_matmul_rows *rows, unsigned char *packed) {
    pack_panel(rows, &layout_16, packed);
}
