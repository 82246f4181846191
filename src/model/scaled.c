#include "model/scaled.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "model/packed.h"
#include "quant/blocks.h"

#include <math.h>
#include <stdio.h>

enum { BLOCK = SL_FP8_128_ELEMENTS, SMALL = 16 }; /* columns of a block, and of those with a scale in NVFP4 */

/* ---- finding ---- */

/* Whether it is a module's own: all experts' matrices in one tensor are not ("experts.down_proj"). */
static bool is_weight(const char *name) {
    const size_t length = strlen(name), tail = strlen(".weight");
    return length > tail && strcmp(name + length - tail, ".weight") == 0;
}

/* "module.weight" to "module" and another ending; with ".weight_scale" "experts.down_proj" becomes
 * "experts.down_proj_scale". */
static void sibling(const char *weight, const char *ending, char name[SL_TENSOR_NAME_SIZE]) {
    const char *word = strncmp(ending, ".weight_", 8) == 0 ? ending + 8 : ending + 1;
    if (is_weight(weight)) {
        snprintf(name, SL_TENSOR_NAME_SIZE, "%.*s%s", (int)(strlen(weight) - strlen(".weight")), weight,
                 ending);
    } else {
        snprintf(name, SL_TENSOR_NAME_SIZE, "%s_%s", weight, word);
    }
}

static int32_t rows_made(const sl_scaled_query *query) {
    return query->part ? sl_part_rows(query->part) : query->rows;
}

const sl_safetensors_entry *sl_find_sibling(const sl_finder *f, const char *ending) {
    char name[SL_TENSOR_NAME_SIZE];
    sibling(f->query->name, ending, name);
    return sl_hf_find(f->hf, name);
}

static const sl_tensor *tensor_of(const sl_safetensors_entry *entry) {
    return entry ? &entry->tensor : NULL;
}

bool sl_find_has_dtype(const sl_safetensors_entry *entry, const char *dtype) {
    return entry && strcmp(entry->dtype, dtype) == 0;
}

bool sl_find_has_shape(const sl_finder *f, const sl_safetensors_entry *entry, uint64_t rows,
                       uint64_t columns) {
    const bool one = is_weight(f->query->name);
    return entry->rank == (one ? 2 : 3) && entry->tensor.dims[0] == columns &&
           entry->tensor.dims[1] == rows && (one || entry->tensor.dims[2] == (uint64_t)f->query->experts);
}

int sl_find_wrong(const sl_finder *f, const sl_safetensors_entry *entry, const char *rule) {
    char shape[96];
    size_t length = 0;
    for (uint32_t i = entry->rank < SL_TENSOR_DIMS ? entry->rank : SL_TENSOR_DIMS; i-- > 0;) {
        length += (size_t)snprintf(shape + length, sizeof shape - length, "[%llu]",
                                   (unsigned long long)entry->tensor.dims[i]);
    }
    shape[length] = '\0';
    return sl_fail(f->error, SL_ERR_FORMAT, "%s: tensor %.100s is %.16s %s, must be %s", f->file,
                   entry->tensor.name, entry->dtype, shape, rule);
}

int sl_find_missing(const sl_finder *f, const char *ending) {
    char name[SL_TENSOR_NAME_SIZE];
    sibling(f->query->name, ending, name);
    return sl_fail(f->error, SL_ERR_FORMAT, "%s: tensor %s is missing", f->file, name);
}

/* Tensors beside a weight that would change what it means. */
static int refuse_others(const sl_finder *f) {
    static const char *const endings[] = {".pre_quant_scale", ".weight_zero_point", ".weight_g_idx",
                                          ".weight_shape"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const sl_safetensors_entry *entry = sl_find_sibling(f, endings[i]);
        if (entry) {
            return sl_fail(f->error, SL_ERR_UNSUPPORTED, "%s: tensor %.100s is not supported", f->file,
                           entry->tensor.name);
        }
    }
    return 0;
}

/* Rows hold whole blocks; where they do not, it is BF16. */
static sl_qtype type_for(const sl_scaled *s, sl_qtype blocks) {
    return s->columns % BLOCK == 0 ? blocks : SL_QTYPE_BF16;
}

static int find_fp8(const sl_finder *f, const sl_safetensors_entry *codes, sl_scaled *s) {
    const uint64_t rows = (uint64_t)s->source_rows, columns = (uint64_t)s->columns;
    const uint64_t block_rows = f->query->quantization->block_rows,
                   block_columns = f->query->quantization->block_columns;
    const sl_safetensors_entry *scales = sl_find_sibling(f, ".weight_scale");
    const sl_safetensors_entry *other = sl_find_sibling(f, ".weight_scale_inv");
    if (!sl_find_has_shape(f, codes, rows, columns)) {
        return sl_find_wrong(f, codes, "as large as the config says");
    }
    if (scales && other) {
        return sl_find_wrong(f, other, "the only tensor of scales");
    }
    scales = scales ? scales : other;
    if (!scales) {
        return sl_find_missing(f, ".weight_scale");
    }
    if (!sl_find_has_dtype(scales, "F32") && !sl_find_has_dtype(scales, "BF16") &&
        !sl_find_has_dtype(scales, "F16")) {
        return sl_find_wrong(f, scales, "F32, BF16 or F16");
    }
    const uint64_t experts = (uint64_t)s->experts, numbers = scales->tensor.elements;
    s->kind = SL_SCALED_FP8;
    s->type = type_for(s, SL_QTYPE_FP8_128);
    s->codes = &codes->tensor;
    s->scales = &scales->tensor;
    s->block_columns = columns;
    s->scale_columns = 1;
    if (sl_find_has_shape(f, scales, 1, 1) ||
        (scales->rank <= 1 && (numbers == 1 || (experts > 1 && numbers == experts)))) {
        s->block_rows = rows;
    } else if (sl_find_has_shape(f, scales, rows, 1) ||
               (experts == 1 && scales->rank == 1 && numbers == rows)) {
        s->block_rows = 1;
    } else if (block_rows && sl_find_has_shape(f, scales, (rows + block_rows - 1) / block_rows,
                                               (columns + block_columns - 1) / block_columns)) {
        s->block_rows = block_rows;
        s->block_columns = block_columns;
        s->scale_columns = scales->tensor.dims[0];
    } else {
        return sl_find_wrong(f, scales,
                             "one number, one for each row, or one for each block of the config's size");
    }
    s->scale_step = numbers == 1 ? 0 : numbers / experts;
    s->ignored[0] = tensor_of(sl_find_sibling(f, ".input_scale"));
    s->ignored[1] = tensor_of(sl_find_sibling(f, ".activation_scale"));
    return 0;
}

static int find_nvfp4(const sl_finder *f, const sl_safetensors_entry *codes, bool divides, sl_scaled *s) {
    const uint64_t rows = (uint64_t)s->source_rows, columns = (uint64_t)s->columns;
    const char *whole_ending = divides ? ".weight_global_scale" : ".weight_scale_2";
    const sl_safetensors_entry *scales = sl_find_sibling(f, ".weight_scale"),
                               *whole = sl_find_sibling(f, whole_ending);
    if (columns % SMALL != 0) {
        return sl_fail(f->error, SL_ERR_UNSUPPORTED,
                       "%s: tensor %.100s has %d columns, in NVFP4 they must be a multiple of %d", f->file,
                       f->query->name, f->query->columns, SMALL);
    }
    if (!is_weight(f->query->name)) {
        return sl_find_wrong(f, codes, "F8_E4M3: one tensor of all experts is not supported in NVFP4");
    }
    if (!scales || !whole) {
        return sl_find_missing(f, scales ? whole_ending : ".weight_scale");
    }
    if (!sl_find_has_dtype(codes, "U8") || !sl_find_has_shape(f, codes, rows, columns / 2)) {
        return sl_find_wrong(f, codes, "U8, two columns of the config's to a byte");
    }
    if (!sl_find_has_dtype(scales, "F8_E4M3") || !sl_find_has_shape(f, scales, rows, columns / SMALL)) {
        return sl_find_wrong(f, scales, "F8_E4M3, one for each 16 columns");
    }
    if (!sl_find_has_dtype(whole, "F32") || whole->tensor.elements != 1) {
        return sl_find_wrong(f, whole, "F32, one number");
    }
    s->kind = SL_SCALED_NVFP4;
    s->type = type_for(s, SL_QTYPE_NVFP4_128);
    s->codes = &codes->tensor;
    s->scales = &scales->tensor;
    s->whole = &whole->tensor;
    s->divides = divides;
    s->ignored[0] = tensor_of(sl_find_sibling(f, divides ? ".input_global_scale" : ".input_scale"));
    return 0;
}

/* [experts][rows][columns / 32], and behind them `last` (0: nothing). */
static bool has_blocks(const sl_scaled *s, const sl_safetensors_entry *entry, uint64_t last) {
    const uint64_t *dims = entry->tensor.dims + (last > 0);
    return sl_find_has_dtype(entry, "U8") && entry->rank == 3 + (last > 0) &&
           (last == 0 || dims[-1] == last) && dims[0] == (uint64_t)s->columns / SL_MXFP4_ELEMENTS &&
           dims[1] == (uint64_t)s->source_rows && dims[2] == (uint64_t)s->experts;
}

static int find_mxfp4(const sl_finder *f, const sl_safetensors_entry *codes, sl_scaled *s) {
    const sl_safetensors_entry *scales = sl_find_sibling(f, ".weight_scales");
    if (s->columns % SL_MXFP4_ELEMENTS != 0) {
        return sl_fail(f->error, SL_ERR_UNSUPPORTED,
                       "%s: tensor %.100s is for %d columns, in MXFP4 they must be a multiple of %d", f->file,
                       codes->tensor.name, s->columns, SL_MXFP4_ELEMENTS);
    }
    if (!scales) {
        return sl_find_missing(f, ".weight_scales");
    }
    if (!has_blocks(s, codes, SL_MXFP4_ELEMENTS / 2)) {
        return sl_find_wrong(f, codes, "U8 [experts][rows][columns / 32][16] as the config has them");
    }
    if (!has_blocks(s, scales, 0)) {
        return sl_find_wrong(f, scales, "U8 [experts][rows][columns / 32] as the config has them");
    }
    s->kind = SL_SCALED_MXFP4;
    s->type = SL_QTYPE_MXFP4;
    s->codes = &codes->tensor;
    s->scales = &scales->tensor;
    return 0;
}

bool sl_scaled_is_there(const sl_hf *hf, const char *name) {
    static const char *const endings[] = {".weight_packed", ".qweight", ".weight_blocks"};
    char other[SL_TENSOR_NAME_SIZE];
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        sibling(name, endings[i], other);
        if (sl_hf_find(hf, other)) {
            return true;
        }
    }
    return sl_hf_find(hf, name) != NULL;
}

static int find_in_folder(const sl_finder *f, sl_scaled *s, bool *there) {
    const sl_safetensors_entry *plain = sl_hf_find(f->hf, f->query->name);
    const sl_safetensors_entry *packed = plain ? NULL : sl_find_sibling(f, ".weight_packed");
    const sl_safetensors_entry *blocks =
        plain || is_weight(f->query->name) ? NULL : sl_find_sibling(f, ".weight_blocks");
    const sl_safetensors_entry *words = plain ? NULL : sl_find_sibling(f, ".qweight");
    const bool fp8 = sl_find_has_dtype(plain, "F8_E4M3");
    const bool integers = words || sl_find_has_dtype(packed, "I32") ||
                          (f->query->quantization->integers &&
                           (sl_find_has_dtype(plain, "I8") || (packed && !sl_find_has_dtype(packed, "U8"))));
    int code = 0;
    *there = fp8 || packed || blocks || integers || sl_find_has_dtype(plain, "U8");
    if (!*there) {
        return 0;
    }
    const sl_safetensors_entry *codes = plain ? plain : packed ? packed : blocks ? blocks : words;
    if (!f->query->quantization->there) {
        return sl_fail(f->error, SL_ERR_UNSUPPORTED,
                       "%s: tensor %.100s is %.16s, but config.json has no quantization_config and no "
                       "hf_quant_config.json has a quant_algo",
                       f->file, codes->tensor.name, codes->dtype);
    }
    if (integers) {
        return sl_packed_find(f, codes, s);
    }
    code = refuse_others(f);
    if (code) {
        return code;
    }
    return fp8      ? find_fp8(f, codes, s)
           : blocks ? find_mxfp4(f, codes, s)
                    : find_nvfp4(f, codes, packed != NULL, s);
}

static int find_in_gguf(const sl_finder *f, const sl_gguf *gguf, sl_scaled *s, bool *there) {
    char name[SL_TENSOR_NAME_SIZE];
    sibling(f->query->name, ".scale", name);
    const sl_tensor *codes = sl_gguf_tensor(gguf, f->query->name), *whole = sl_gguf_tensor(gguf, name);
    sibling(f->query->name, ".input_scale", name);
    s->ignored[0] = sl_gguf_tensor(gguf, name);
    *there = codes && whole && !f->query->own_scale;
    if (!*there) {
        return 0;
    }
    if (codes->type != SL_QTYPE_NVFP4) {
        return sl_fail(f->error, SL_ERR_UNSUPPORTED,
                       "%s: tensor %.100s: a scale beside weights of %s is not supported", f->file,
                       whole->name, sl_qtype_get(codes->type)->name);
    }
    if (whole->type != SL_QTYPE_F32 ||
        (whole->elements != 1 && whole->elements != (uint64_t)f->query->experts)) {
        return sl_fail(f->error, SL_ERR_FORMAT,
                       "%s: tensor %.100s must be f32, one number for each expert, or one", f->file,
                       whole->name);
    }
    s->kind = SL_SCALED_GGUF;
    s->type = type_for(s, SL_QTYPE_NVFP4_128);
    s->codes = codes;
    s->whole = whole;
    return 0;
}

static void begin(const sl_scaled_query *query, sl_scaled *scaled) {
    memset(scaled, 0, sizeof *scaled);
    scaled->experts = query->experts;
    scaled->rows = rows_made(query);
    scaled->columns = query->columns;
    scaled->part = query->part ? *query->part : (sl_tensor_part){.count = 0};
    scaled->source_rows = query->rows;
    scaled->file = sl_source_path(query->source);
}

void sl_scaled_rows(const sl_scaled_query *query, const sl_tensor *tensor, bool turned, sl_scaled *scaled) {
    begin(query, scaled);
    scaled->kind = turned ? SL_SCALED_TURNED : SL_SCALED_ROWS;
    scaled->type = tensor->type;
    scaled->codes = tensor;
}

int sl_scaled_find(const sl_scaled_query *query, sl_scaled *scaled, bool *there, sl_error *error) {
    const sl_hf *hf = sl_source_hf(query->source);
    const sl_finder f = {query, hf, sl_source_path(query->source), error};
    begin(query, scaled);
    return hf ? find_in_folder(&f, scaled, there)
              : find_in_gguf(&f, sl_source_gguf(query->source), scaled, there);
}

/* ---- packing ---- */

bool sl_scaled_bytes(const sl_scaled *scaled, uint64_t *bytes) {
    uint64_t elements;
    return sl_mul_u64((uint64_t)scaled->experts * (uint64_t)scaled->rows, (uint64_t)scaled->columns,
                      &elements) &&
           sl_qtype_bytes(scaled->type, elements, bytes);
}

int32_t sl_scaled_scale_rows(const sl_scaled *scaled) {
    const bool known = scaled->kind == SL_SCALED_FP8 && scaled->type == SL_QTYPE_FP8_128;
    return known && scaled->part.count == 0 ? (int32_t)scaled->block_rows : 0;
}

/* Number `index` of a tensor of F32, F16 or BF16. */
static float number_at(const sl_tensor *tensor, uint64_t index) {
    const sl_qtype_info *type = sl_qtype_get(tensor->type);
    float value;
    type->decode((const unsigned char *)tensor->data + index * type->block_bytes, &value, 1);
    return value;
}

static int bad_number(const sl_scaled *s, const sl_tensor *tensor, uint64_t index, const char *rule,
                      sl_error *error) {
    return sl_fail(error, SL_ERR_FORMAT, "%s: tensor %.100s: number %llu must be %s", s->file, tensor->name,
                   (unsigned long long)index, rule);
}

static uint64_t row_blocks(const sl_scaled *s) {
    return ((uint64_t)s->columns + BLOCK - 1) / BLOCK;
}

/* Columns that are there of those from `column` on, at most `most`. */
static size_t columns_left(const sl_scaled *s, uint64_t column, size_t most) {
    return (uint64_t)s->columns - column < most ? (size_t)((uint64_t)s->columns - column) : most;
}

/* Each of these writes row `row`, of all experts' in the source, as blocks; behind the last column comes what
 * counts for nothing. */
static int pack_fp8(const sl_scaled *s, uint64_t row, sl_block_fp8_128 *block, sl_error *error) {
    const uint64_t columns = (uint64_t)s->columns, rows = (uint64_t)s->source_rows;
    const unsigned char *codes = (const unsigned char *)s->codes->data + row * columns;
    const uint64_t first = row / rows * s->scale_step + row % rows / s->block_rows * s->scale_columns;
    for (uint64_t column = 0; column < columns; column += BLOCK, block++) {
        const size_t count = columns_left(s, column, BLOCK);
        const uint64_t index = first + column / s->block_columns;
        const float scale = number_at(s->scales, index);
        if (!isfinite(scale)) {
            return bad_number(s, s->scales, index, "finite", error);
        }
        memcpy(&block->scale, &scale, sizeof scale);
        memcpy(block->codes, codes + column, count);
        memset(block->codes + count, 0, BLOCK - count);
    }
    return 0;
}

/* 16 columns: from two neighbours in a byte to columns i and i + 8. */
static void pack_small(const unsigned char *codes, uint8_t *quants) {
    for (int i = 0; i < SMALL / 4; i++) {
        quants[2 * i] = (uint8_t)((codes[i] & 15) | (codes[4 + i] & 15) << 4);
        quants[2 * i + 1] = (uint8_t)(codes[i] >> 4 | (codes[4 + i] & 240));
    }
}

/* The scale of the whole matrix, or of one expert. */
static int whole_scale(const sl_scaled *s, uint64_t index, float *scale, sl_error *error) {
    const float value = number_at(s->whole, index);
    *scale = s->divides ? 1.0f / value : value;
    return value > 0 && isfinite(value) && isfinite(*scale)
               ? 0
               : bad_number(s, s->whole, index, "above 0 and finite", error);
}

static int pack_nvfp4(const sl_scaled *s, uint64_t row, sl_block_nvfp4_128 *block, sl_error *error) {
    const uint64_t columns = (uint64_t)s->columns, first = row * columns / SMALL;
    const unsigned char *codes = (const unsigned char *)s->codes->data + row * columns / 2;
    const unsigned char *scales = (const unsigned char *)s->scales->data + first;
    float scale;
    const int code = whole_scale(s, 0, &scale, error);
    for (uint64_t b = 0; b < row_blocks(s) && code == 0; b++, block++) {
        const size_t groups = columns_left(s, b * BLOCK, BLOCK) / SMALL;
        memset(block, 0, sizeof *block);
        memcpy(&block->scale, &scale, sizeof scale);
        for (size_t g = 0; g < groups; g++, codes += SMALL / 2, scales++) {
            if (*scales >= 127) { /* E4M3's NaN, and its numbers with a sign */
                return bad_number(s, s->scales, first + b * (BLOCK / SMALL) + g, "a number and not negative",
                                  error);
            }
            block->scales[g] = *scales;
            pack_small(codes, block->quants + SMALL / 2 * g);
        }
    }
    return code;
}

static int pack_gguf(const sl_scaled *s, uint64_t row, sl_block_nvfp4_128 *block, sl_error *error) {
    const uint64_t columns = (uint64_t)s->columns;
    const sl_block_nvfp4 *from = (const sl_block_nvfp4 *)s->codes->data + row * columns / SL_NVFP4_ELEMENTS;
    float scale;
    const int code =
        whole_scale(s, s->whole->elements == 1 ? 0 : row / (uint64_t)s->source_rows, &scale, error);
    for (uint64_t b = 0; b < row_blocks(s) && code == 0; b++, block++) {
        const size_t halves = columns_left(s, b * BLOCK, BLOCK) / SL_NVFP4_ELEMENTS;
        memset(block, 0, sizeof *block);
        memcpy(&block->scale, &scale, sizeof scale);
        for (size_t half = 0; half < halves; half++, from++) {
            memcpy(block->scales + 4 * half, from->scales, 4);
            memcpy(block->quants + 32 * half, from->quants, 32);
        }
    }
    return code;
}

/* 32 columns: from two neighbours in a byte to columns i and i + 16. */
static int pack_mxfp4(const sl_scaled *s, uint64_t row, sl_block_mxfp4 *block, sl_error *error) {
    enum { BYTES = SL_MXFP4_ELEMENTS / 2 };
    const uint64_t blocks = (uint64_t)s->columns / SL_MXFP4_ELEMENTS;
    const unsigned char *codes = (const unsigned char *)s->codes->data + row * blocks * BYTES;
    const unsigned char *scales = (const unsigned char *)s->scales->data + row * blocks;
    for (uint64_t b = 0; b < blocks; b++, block++, codes += BYTES) {
        if (scales[b] == 255) {
            return bad_number(s, s->scales, row * blocks + b, "a number", error);
        }
        block->exponent = scales[b];
        for (int i = 0; i < BYTES / 2; i++) {
            block->quants[2 * i] = (uint8_t)((codes[i] & 15) | (codes[BYTES / 2 + i] & 15) << 4);
            block->quants[2 * i + 1] = (uint8_t)(codes[i] >> 4 | (codes[BYTES / 2 + i] & 240));
        }
    }
    return 0;
}

/* A row that is one there. */
static void pack_same(const sl_scaled *s, uint64_t row, unsigned char *to) {
    const sl_qtype_info *type = sl_qtype_get(s->type);
    const uint64_t bytes = (uint64_t)s->columns / type->block_elements * type->block_bytes;
    memcpy(to, (const unsigned char *)s->codes->data + row * bytes, (size_t)bytes);
}

/* A row that is a column there, of floats. */
static void pack_turned(const sl_scaled *s, uint64_t row, unsigned char *to) {
    const uint64_t rows = (uint64_t)s->source_rows, columns = (uint64_t)s->columns;
    const size_t size = sl_qtype_get(s->type)->block_bytes;
    const unsigned char *from =
        (const unsigned char *)s->codes->data + (row / rows * rows * columns + row % rows) * size;
    for (uint64_t i = 0; i < columns; i++, from += rows * size) {
        memcpy(to + i * size, from, size);
    }
}

uint64_t sl_scaled_row(const sl_scaled *s, uint64_t row) {
    const uint64_t rows = (uint64_t)s->rows;
    return s->part.count == 0 ? row
                              : row / rows * (uint64_t)s->source_rows +
                                    (uint64_t)sl_part_row(&s->part, (int32_t)(row % rows));
}

/* `row` of those that are made. */
static int pack_row(const sl_scaled *s, uint64_t row, void *blocks, sl_error *error) {
    row = sl_scaled_row(s, row);
    switch (s->kind) {
    case SL_SCALED_FP8:
        return pack_fp8(s, row, blocks, error);
    case SL_SCALED_NVFP4:
        return pack_nvfp4(s, row, blocks, error);
    case SL_SCALED_GGUF:
        return pack_gguf(s, row, blocks, error);
    case SL_SCALED_MXFP4:
        return pack_mxfp4(s, row, blocks, error);
    case SL_SCALED_ROWS:
        pack_same(s, row, blocks);
        return 0;
    default:
        pack_turned(s, row, blocks);
        return 0;
    }
}

/* Through blocks of one row and their values. */
static int pack_plain(const sl_scaled *s, uint64_t first, uint64_t rows, unsigned char *to, sl_error *error) {
    const sl_qtype_info *blocks = sl_qtype_get(s->whole ? SL_QTYPE_NVFP4_128 : SL_QTYPE_FP8_128),
                        *plain = sl_qtype_get(s->type);
    const uint64_t count = row_blocks(s);
    float *values = sl_alloc((size_t)count * (BLOCK * sizeof *values + blocks->block_bytes));
    if (!values) {
        return sl_fail(error, SL_ERR_NOMEM, "%s: no memory for a row of %.100s", s->file, s->codes->name);
    }
    unsigned char *row_at = (unsigned char *)(values + count * BLOCK);
    int code = 0;
    for (uint64_t row = 0; row < rows && code == 0; row++) {
        code = pack_row(s, first + row, row_at, error);
        if (code == 0) {
            blocks->decode(row_at, values, count * BLOCK);
            plain->encode(values, to + row * (uint64_t)s->columns * plain->block_bytes, (uint64_t)s->columns);
        }
    }
    sl_free(values);
    return code;
}

int sl_scaled_pack(const sl_scaled *scaled, uint64_t first, uint64_t rows, void *to, sl_scaled_notes *notes,
                   sl_error *error) {
    const sl_qtype_info *type = sl_qtype_get(scaled->type);
    const bool of_blocks = scaled->kind <= SL_SCALED_GGUF; /* of 128, which rows need not be multiples of */
    if (scaled->kind == SL_SCALED_INTEGERS) {
        return sl_packed_pack(scaled, first, rows, to, notes, error);
    }
    if (of_blocks && type->block_elements != BLOCK) {
        return pack_plain(scaled, first, rows, to, error);
    }
    const uint64_t bytes = (uint64_t)scaled->columns / type->block_elements * type->block_bytes;
    int code = 0;
    for (uint64_t row = 0; row < rows && code == 0; row++) {
        code = pack_row(scaled, first + row, (unsigned char *)to + row * bytes, error);
    }
    return code;
}
