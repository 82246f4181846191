#include "model/packed.h"

#include "quant/blocks.h"

#include <math.h>
#include <stdio.h>

enum {
    COLUMNS = 32, /* of a block */
    WORD = 4,     /* bytes */
    TILE = 256    /* rows that are made together where one word has codes of several of them, or lies among
                     theirs */
};
_Static_assert(COLUMNS == (int)SL_Q4_0_ELEMENTS && COLUMNS == (int)SL_Q4_1_ELEMENTS &&
                   COLUMNS == (int)SL_Q8_0_ELEMENTS,
               "a row of every type is whole blocks of so many columns");

/* ---- finding ---- */

static bool is_float(const sl_safetensors_entry *entry) {
    return sl_find_has_dtype(entry, "F16") || sl_find_has_dtype(entry, "BF16") ||
           sl_find_has_dtype(entry, "F32");
}

static int unsupported(const sl_finder *f, const sl_safetensors_entry *entry, const char *rule) {
    return sl_fail(f->error, SL_ERR_UNSUPPORTED, "%s: tensor %.100s: %s", f->file, entry->tensor.name, rule);
}

static sl_qtype type_of(const sl_integers *n) {
    return n->bits == 8 ? SL_QTYPE_Q8_0 : n->zeros && !n->middle ? SL_QTYPE_Q4_1 : SL_QTYPE_Q4_0;
}

static uint64_t codes_of_a_word(const sl_integers *n) {
    return 32 / (uint64_t)n->bits;
}

/* Two integers that say how large the matrix is, beside one whose tensors say so too. */
static int check_shape(const sl_finder *f, sl_scaled *s) {
    const sl_safetensors_entry *entry = sl_find_sibling(f, ".weight_shape");
    const size_t size = sl_find_has_dtype(entry, "I64") ? 8 : 4;
    if (!entry) {
        return 0;
    }
    s->ignored[0] = &entry->tensor;
    if (s->experts > 1) {
        return 0;
    }
    if ((size == 4 && !sl_find_has_dtype(entry, "I32")) || entry->rank != 1 || entry->tensor.elements != 2) {
        return sl_find_wrong(f, entry, "two integers, I32 or I64");
    }
    int64_t sizes[2] = {0, 0};
    for (size_t i = 0; i < 2; i++) {
        memcpy(&sizes[i], (const unsigned char *)entry->tensor.data + i * size, size);
    }
    return sizes[0] == s->source_rows && sizes[1] == s->columns
               ? 0
               : sl_find_wrong(f, entry, "the rows and columns that the config asks for");
}

static int find_zeros_of_rows(const sl_finder *f, sl_scaled *s) {
    sl_integers *n = &s->integers;
    const sl_safetensors_entry *zeros = sl_find_sibling(f, ".weight_zero_point");
    const uint64_t packed = codes_of_a_word(n);
    if (!zeros) {
        return 0;
    }
    if (n->bits != 4 || s->experts > 1) {
        return unsupported(f, zeros, "zero points are supported of 4 bits and of one matrix");
    }
    if (!sl_find_has_dtype(zeros, "I32") ||
        !sl_find_has_shape(f, zeros, ((uint64_t)s->source_rows + packed - 1) / packed, n->groups)) {
        return sl_find_wrong(f, zeros, "I32, a word for 8 rows, as many columns as there are scales");
    }
    n->zeros = &zeros->tensor;
    return 0;
}

/* Scales beside every row, and what belongs to them. */
static int find_rows(const sl_finder *f, const sl_safetensors_entry *scales, sl_scaled *s) {
    sl_integers *n = &s->integers;
    const uint64_t columns = (uint64_t)s->columns, groups = scales->rank > 0 ? scales->tensor.dims[0] : 0;
    n->one = n->packing == SL_PACKING_BYTES && scales->tensor.elements == 1;
    n->groups = n->one ? 1 : groups;
    n->group = n->groups > 0 ? columns / n->groups : 0;
    if (!n->one && (!sl_find_has_shape(f, scales, (uint64_t)s->source_rows, groups) || groups == 0 ||
                    columns % groups != 0)) {
        return sl_find_wrong(f, scales, "one number for each row, or for each group of its columns");
    }
    if (n->group % COLUMNS != 0) {
        return unsupported(f, scales, "groups must be of a multiple of 32 columns");
    }
    const int code = check_shape(f, s);
    return code ? code : find_zeros_of_rows(f, s);
}

static int find_compressed(const sl_finder *f, const sl_safetensors_entry *codes, sl_scaled *s) {
    sl_integers *n = &s->integers;
    const uint64_t rows = (uint64_t)s->source_rows, columns = (uint64_t)s->columns;
    const bool bytes = sl_find_has_dtype(codes, "I8");
    const sl_safetensors_entry *scales = sl_find_sibling(f, ".weight_scale"),
                               *order = sl_find_sibling(f, ".weight_g_idx");
    n->packing = bytes ? SL_PACKING_BYTES : SL_PACKING_ROWS;
    n->bits = !bytes && sl_find_has_shape(f, codes, rows, columns / 8) ? 4 : 8;
    if (!bytes && !sl_find_has_dtype(codes, "I32")) {
        return sl_find_wrong(f, codes, "I32");
    }
    if (!sl_find_has_shape(f, codes, rows, bytes ? columns : columns / codes_of_a_word(n))) {
        return sl_find_wrong(
            f, codes, bytes ? "as large as the config says" : "8 or 4 columns of the config's to a word");
    }
    if (order) {
        return unsupported(f, order, "columns in another order are not supported");
    }
    if (!scales) {
        return sl_find_missing(f, ".weight_scale");
    }
    if (!is_float(scales)) {
        return sl_find_wrong(f, scales, "F32, BF16 or F16");
    }
    s->scales = &scales->tensor;
    return find_rows(f, scales, s);
}

/* Words that lie across rows: GPTQ's and AWQ's. */
static int find_words(const sl_finder *f, const sl_safetensors_entry *codes, sl_scaled *s) {
    const sl_hf_quantization *q = f->query->quantization;
    sl_integers *n = &s->integers;
    const uint64_t rows = (uint64_t)s->source_rows, columns = (uint64_t)s->columns;
    const sl_safetensors_entry *scales = sl_find_sibling(f, ".scales"),
                               *zeros = sl_find_sibling(f, ".qzeros"), *order = sl_find_sibling(f, ".g_idx");
    const bool gptq = q->words == SL_HF_WORDS_GPTQ;
    n->packing = gptq ? SL_PACKING_GPTQ : SL_PACKING_AWQ;
    n->bits = q->bits;
    n->less_one = q->zeros_less_one;
    n->middle = q->symmetric;
    n->group = q->group ? q->group : columns;
    n->groups = (columns + n->group - 1) / n->group;
    const uint64_t packed = codes_of_a_word(n);
    if (s->experts > 1) {
        return unsupported(f, codes, "one tensor of all experts is not supported");
    }
    if (rows % packed != 0) {
        return unsupported(f, codes, "the matrix has rows that fill no words of zero points");
    }
    if (!sl_find_has_dtype(codes, "I32") ||
        !sl_find_has_shape(f, codes, gptq ? columns / packed : columns, gptq ? rows : rows / packed)) {
        return sl_find_wrong(f, codes,
                             gptq ? "I32 [columns / codes of a word][rows] as the config has them"
                                  : "I32 [columns][rows / 8] as the config has them");
    }
    if (!scales || !zeros) {
        return sl_find_missing(f, scales ? ".qzeros" : ".scales");
    }
    if (!is_float(scales) || !sl_find_has_shape(f, scales, n->groups, rows)) {
        return sl_find_wrong(f, scales, "F16, BF16 or F32 [groups][rows] as the config has them");
    }
    if (!sl_find_has_dtype(zeros, "I32") || !sl_find_has_shape(f, zeros, n->groups, rows / packed)) {
        return sl_find_wrong(f, zeros, "I32 [groups][rows / codes of a word] as the config has them");
    }
    if (order &&
        (!sl_find_has_dtype(order, "I32") || order->rank != 1 || order->tensor.elements != columns)) {
        return sl_find_wrong(f, order, "I32, one number for each column");
    }
    s->scales = &scales->tensor;
    n->zeros = &zeros->tensor;
    n->order = order ? &order->tensor : NULL;
    return 0;
}

int sl_packed_find(const sl_finder *f, const sl_safetensors_entry *codes, sl_scaled *s) {
    if (s->columns % COLUMNS != 0) {
        return sl_fail(f->error, SL_ERR_UNSUPPORTED,
                       "%s: tensor %.100s is for %d columns, of integers they must be a multiple of %d",
                       f->file, codes->tensor.name, s->columns, COLUMNS);
    }
    const bool words = codes == sl_find_sibling(f, ".qweight");
    if (words && f->query->quantization->words == SL_HF_WORDS_NONE) {
        return unsupported(f, codes, "only config.json's quant_method \"gptq\" and \"awq\" say how it lies");
    }
    s->kind = SL_SCALED_INTEGERS;
    s->codes = &codes->tensor;
    const int code = words ? find_words(f, codes, s) : find_compressed(f, codes, s);
    s->type = type_of(&s->integers);
    return code;
}

/* ---- packing ---- */

/* Rows of the source that become rows of blocks together, and of these 32 columns as codes without a sign. */
typedef struct tile {
    const sl_scaled *s;
    size_t count;
    uint64_t rows[TILE];
    uint16_t scales[TILE], mins[TILE]; /* F16 */
    uint8_t codes[TILE][COLUMNS];
} tile;

static uint32_t word_at(const sl_tensor *tensor, uint64_t index) {
    uint32_t word;
    memcpy(&word, (const unsigned char *)tensor->data + index * WORD, WORD);
    return word;
}

/* A word's codes, a byte each. */
static void spread(uint32_t word, int32_t bits, uint8_t *codes) {
    if (bits == 8) {
        memcpy(codes, &word, WORD);
        return;
    }
    uint64_t bytes = word;
    bytes = (bytes | bytes << 16) & 0x0000ffff0000ffffu;
    bytes = (bytes | bytes << 8) & 0x00ff00ff00ff00ffu;
    bytes = (bytes | bytes << 4) & 0x0f0f0f0f0f0f0f0fu;
    memcpy(codes, &bytes, sizeof bytes);
}

/* Where row r of 8 stands in a word of AWQ's. */
static const uint8_t AWQ_NIBBLES[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/* 32 columns from `column` on. */
static void unpack_rows(tile *t, uint64_t column) {
    const sl_scaled *s = t->s;
    const uint64_t packed = codes_of_a_word(&s->integers), words = (uint64_t)s->columns / packed;
    for (size_t i = 0; i < t->count; i++) {
        for (uint64_t k = 0; k < COLUMNS; k += packed) {
            spread(word_at(s->codes, t->rows[i] * words + (column + k) / packed), s->integers.bits,
                   t->codes[i] + k);
        }
    }
}

static void unpack_bytes(tile *t, uint64_t column) {
    const sl_scaled *s = t->s;
    for (size_t i = 0; i < t->count; i++) {
        const uint8_t *from = (const uint8_t *)s->codes->data + t->rows[i] * (uint64_t)s->columns + column;
        for (int k = 0; k < COLUMNS; k++) {
            t->codes[i][k] = from[k] ^ 0x80;
        }
    }
}

static void unpack_gptq(tile *t, uint64_t column) {
    const sl_scaled *s = t->s;
    const uint64_t packed = codes_of_a_word(&s->integers), rows = (uint64_t)s->source_rows;
    for (uint64_t k = 0; k < COLUMNS; k += packed) {
        for (size_t i = 0; i < t->count; i++) {
            spread(word_at(s->codes, (column + k) / packed * rows + t->rows[i]), s->integers.bits,
                   t->codes[i] + k);
        }
    }
}

static void unpack_awq(tile *t, uint64_t column) {
    const sl_scaled *s = t->s;
    const uint64_t words = (uint64_t)s->source_rows / 8;
    for (uint64_t k = 0; k < COLUMNS; k++) {
        for (size_t i = 0; i < t->count; i++) {
            const uint64_t row = t->rows[i];
            const uint32_t word = word_at(s->codes, (column + k) * words + row / 8);
            t->codes[i][k] = (uint8_t)(word >> 4 * AWQ_NIBBLES[row % 8] & 15);
        }
    }
}

static void (*const UNPACK[])(tile *t, uint64_t column) = {[SL_PACKING_ROWS] = unpack_rows,
                                                           [SL_PACKING_BYTES] = unpack_bytes,
                                                           [SL_PACKING_GPTQ] = unpack_gptq,
                                                           [SL_PACKING_AWQ] = unpack_awq};

/* ---- scales ---- */

static bool is_across(const sl_integers *n) {
    return n->packing == SL_PACKING_GPTQ || n->packing == SL_PACKING_AWQ;
}

/* The zero point of a row in a group of columns. */
static uint32_t zero_at(const sl_scaled *s, uint64_t row, uint64_t group) {
    const sl_integers *n = &s->integers;
    const uint64_t packed = codes_of_a_word(n), rows = (uint64_t)s->source_rows;
    const uint64_t index =
        is_across(n) ? group * (rows / packed) + row / packed : row / packed * n->groups + group;
    const uint32_t one = n->bits == 8 ? 0x01010101u : 0x11111111u, mask = n->bits == 8 ? 255 : 15;
    const uint32_t word = word_at(n->zeros, index) + (n->less_one ? one : 0);
    const uint32_t at = n->packing == SL_PACKING_AWQ ? AWQ_NIBBLES[row % 8] : (uint32_t)(row % packed);
    return word >> (uint32_t)n->bits * at & mask;
}

static int bad_scale(const sl_scaled *s, uint64_t index, const char *rule, int code, sl_error *error) {
    return sl_fail(error, code, "%s: tensor %.100s: number %llu %s", s->file, s->scales->name,
                   (unsigned long long)index, rule);
}

/* Of row i of the tile. */
static int take_scale(tile *t, size_t i, uint64_t group, sl_scaled_notes *notes, sl_error *error) {
    enum { MIDDLE_4 = 8, MIDDLE_8 = 128 };
    const float limit = 65520; /* which F16 would round to infinity */
    const sl_scaled *s = t->s;
    const sl_integers *n = &s->integers;
    const uint64_t row = t->rows[i];
    const uint64_t index = n->one         ? 0
                           : is_across(n) ? group * (uint64_t)s->source_rows + row
                                          : row * n->groups + group;
    const sl_qtype_info *type = sl_qtype_get(s->scales->type);
    float scale;
    type->decode((const unsigned char *)s->scales->data + index * type->block_bytes, &scale, 1);
    if (!isfinite(scale)) {
        return bad_scale(s, index, "must be finite", SL_ERR_FORMAT, error);
    }
    if (fabsf(scale) >= limit) {
        return bad_scale(s, index, "is too large for f16", SL_ERR_UNSUPPORTED, error);
    }
    t->scales[i] = sl_f32_to_f16(scale);
    const float held = sl_f16_to_f32(t->scales[i]);
    notes->scales++;
    notes->rounded += held != scale;
    if (!n->zeros) {
        return 0;
    }
    const uint32_t zero = zero_at(s, row, group);
    if (n->middle && zero != (n->bits == 8 ? MIDDLE_8 : MIDDLE_4)) {
        return sl_fail(error, SL_ERR_FORMAT,
                       "%s: tensor %.100s: the zero point of row %llu, group %llu is %u, but the config says "
                       "'sym'",
                       s->file, n->zeros->name, (unsigned long long)row, (unsigned long long)group, zero);
    }
    const float min = -(float)zero * held;
    t->mins[i] = sl_f32_to_f16(min);
    return fabsf(min) < limit
               ? 0
               : bad_scale(s, index, "times its zero point is too large for f16", SL_ERR_UNSUPPORTED, error);
}

/* ---- blocks ---- */

/* Columns i and i + 16 of 4 bits in a byte. */
static void join(const uint8_t *codes, uint8_t *quants) {
    uint64_t part[4];
    memcpy(part, codes, sizeof part);
    part[0] |= part[2] << 4;
    part[1] |= part[3] << 4;
    memcpy(quants, part, 2 * sizeof *part);
}

static void write_block(const tile *t, size_t i, void *to) {
    switch (t->s->type) {
    case SL_QTYPE_Q4_0: {
        sl_block_q4_0 *block = to;
        block->scale = t->scales[i];
        join(t->codes[i], block->quants);
        return;
    }
    case SL_QTYPE_Q4_1: {
        sl_block_q4_1 *block = to;
        block->scale = t->scales[i];
        block->min = t->mins[i];
        join(t->codes[i], block->quants);
        return;
    }
    default: {
        sl_block_q8_0 *block = to;
        block->scale = t->scales[i];
        for (int k = 0; k < COLUMNS; k++) {
            block->quants[k] = (int8_t)(t->codes[i][k] ^ 0x80);
        }
        return;
    }
    }
}

static int pack_tile(tile *t, unsigned char *to, sl_scaled_notes *notes, sl_error *error) {
    const sl_scaled *s = t->s;
    const uint64_t columns = (uint64_t)s->columns, size = sl_qtype_get(s->type)->block_bytes;
    for (uint64_t column = 0; column < columns; column += COLUMNS, to += size) {
        for (size_t i = 0; i < t->count && column % s->integers.group == 0; i++) {
            const int code = take_scale(t, i, column / s->integers.group, notes, error);
            if (code) {
                return code;
            }
        }
        UNPACK[s->integers.packing](t, column);
        for (size_t i = 0; i < t->count; i++) {
            write_block(t, i, to + i * (columns / COLUMNS * size));
        }
    }
    return 0;
}

/* Every column must be of the group that it lies in. */
static int check_order(const sl_scaled *s, sl_error *error) {
    const sl_integers *n = &s->integers;
    for (uint64_t column = 0; n->order && column < (uint64_t)s->columns; column++) {
        if (word_at(n->order, column) != column / n->group) {
            return sl_fail(
                error, SL_ERR_UNSUPPORTED,
                "%s: tensor %.100s: number %llu is not %llu: columns in another order (desc_act) are "
                "not supported",
                s->file, n->order->name, (unsigned long long)column, (unsigned long long)(column / n->group));
        }
    }
    return 0;
}

int sl_packed_pack(const sl_scaled *s, uint64_t first, uint64_t rows, void *to, sl_scaled_notes *notes,
                   sl_error *error) {
    const uint64_t row_bytes = (uint64_t)s->columns / COLUMNS * sl_qtype_get(s->type)->block_bytes;
    const uint64_t most = is_across(&s->integers) ? TILE : 1;
    tile t = {.s = s};
    int code = check_order(s, error);
    for (uint64_t row = 0; row < rows && code == 0; row += t.count) {
        t.count = (size_t)(rows - row < most ? rows - row : most);
        for (size_t i = 0; i < t.count; i++) {
            t.rows[i] = sl_scaled_row(s, first + row + i);
        }
        code = pack_tile(&t, (unsigned char *)to + row * row_bytes, notes, error);
    }
    return code;
}
