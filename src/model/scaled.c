#include "model/scaled.h"

#include "base/checked.h"
#include "quant/blocks.h"

#include <math.h>
#include <stdio.h>

enum { BLOCK = SL_FP8_128_ELEMENTS, SMALL = 16 }; /* columns of a block, and of those with a scale in NVFP4 */

/* ---- finding ---- */

/* "module.weight" to "module" and another ending. */
static void sibling(const char *weight, const char *ending, char name[SL_TENSOR_NAME_SIZE]) {
    const size_t length = strlen(weight), tail = strlen(".weight");
    const bool usual = length > tail && strcmp(weight + length - tail, ".weight") == 0;
    snprintf(name, SL_TENSOR_NAME_SIZE, "%.*s%s", (int)(usual ? length - tail : length), weight, ending);
}

typedef struct finder {
    const sl_scaled_query *query;
    const sl_hf *hf; /* NULL: GGUF */
    const char *file;
    sl_error *error;
} finder;

static const sl_safetensors_entry *hf_sibling(const finder *f, const char *ending) {
    char name[SL_TENSOR_NAME_SIZE];
    sibling(f->query->name, ending, name);
    return sl_hf_find(f->hf, name);
}

static const sl_tensor *tensor_of(const sl_safetensors_entry *entry) {
    return entry ? &entry->tensor : NULL;
}

static bool has_dtype(const sl_safetensors_entry *entry, const char *dtype) {
    return entry && strcmp(entry->dtype, dtype) == 0;
}

/* Exactly [rows][columns]. */
static bool has_shape(const sl_safetensors_entry *entry, uint64_t rows, uint64_t columns) {
    return entry->rank == 2 && entry->tensor.dims[0] == columns && entry->tensor.dims[1] == rows;
}

static int wrong(const finder *f, const sl_safetensors_entry *entry, const char *rule) {
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

static int missing(const finder *f, const char *ending) {
    char name[SL_TENSOR_NAME_SIZE];
    sibling(f->query->name, ending, name);
    return sl_fail(f->error, SL_ERR_FORMAT, "%s: tensor %s is missing", f->file, name);
}

static int check_columns(const finder *f, const char *type) {
    return f->query->columns % BLOCK == 0
               ? 0
               : sl_fail(f->error, SL_ERR_UNSUPPORTED,
                         "%s: tensor %.100s has %d columns, in %s they must be a multiple of %d", f->file,
                         f->query->name, f->query->columns, type, BLOCK);
}

/* Tensors beside a weight that would change what it means. */
static int refuse_others(const finder *f) {
    static const char *const endings[] = {".pre_quant_scale", ".weight_zero_point", ".weight_g_idx",
                                          ".weight_shape"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const sl_safetensors_entry *entry = hf_sibling(f, endings[i]);
        if (entry) {
            return sl_fail(f->error, SL_ERR_UNSUPPORTED, "%s: tensor %.100s is not supported", f->file,
                           entry->tensor.name);
        }
    }
    return 0;
}

static int find_fp8(const finder *f, const sl_safetensors_entry *codes, sl_scaled *s) {
    const uint64_t rows = (uint64_t)s->rows, columns = (uint64_t)s->columns;
    const uint64_t block_rows = f->query->quantization->block_rows,
                   block_columns = f->query->quantization->block_columns;
    const sl_safetensors_entry *scales = hf_sibling(f, ".weight_scale");
    const sl_safetensors_entry *other = hf_sibling(f, ".weight_scale_inv");
    int code = check_columns(f, "FP8");
    if (code == 0 && !has_shape(codes, rows, columns)) {
        code = wrong(f, codes, "as large as the config says");
    }
    if (code == 0 && scales && other) {
        code = wrong(f, other, "the only tensor of scales");
    }
    scales = scales ? scales : other;
    if (code == 0 && !scales) {
        code = missing(f, ".weight_scale");
    }
    if (code) {
        return code;
    }
    if (!has_dtype(scales, "F32") && !has_dtype(scales, "BF16") && !has_dtype(scales, "F16")) {
        return wrong(f, scales, "F32, BF16 or F16");
    }
    s->type = SL_QTYPE_FP8_128;
    s->codes = &codes->tensor;
    s->scales = &scales->tensor;
    s->block_columns = columns;
    s->scale_columns = 1;
    if (scales->tensor.elements == 1 && scales->rank <= 2) {
        s->block_rows = rows;
    } else if (has_shape(scales, rows, 1) || (scales->rank == 1 && scales->tensor.elements == rows)) {
        s->block_rows = 1;
    } else if (block_rows && has_shape(scales, (rows + block_rows - 1) / block_rows,
                                       (columns + block_columns - 1) / block_columns)) {
        s->block_rows = block_rows;
        s->block_columns = block_columns;
        s->scale_columns = scales->tensor.dims[0];
    } else {
        return wrong(f, scales, "one number, one for each row, or one for each block of the config's size");
    }
    s->ignored[0] = tensor_of(hf_sibling(f, ".input_scale"));
    s->ignored[1] = tensor_of(hf_sibling(f, ".activation_scale"));
    return 0;
}

static int find_nvfp4(const finder *f, const sl_safetensors_entry *codes, bool divides, sl_scaled *s) {
    const uint64_t rows = (uint64_t)s->rows, columns = (uint64_t)s->columns;
    const char *whole_ending = divides ? ".weight_global_scale" : ".weight_scale_2";
    const sl_safetensors_entry *scales = hf_sibling(f, ".weight_scale"), *whole = hf_sibling(f, whole_ending);
    const int code = check_columns(f, "NVFP4");
    if (code) {
        return code;
    }
    if (!scales || !whole) {
        return missing(f, scales ? whole_ending : ".weight_scale");
    }
    if (!has_dtype(codes, "U8") || !has_shape(codes, rows, columns / 2)) {
        return wrong(f, codes, "U8, two columns of the config's to a byte");
    }
    if (!has_dtype(scales, "F8_E4M3") || !has_shape(scales, rows, columns / SMALL)) {
        return wrong(f, scales, "F8_E4M3, one for each 16 columns");
    }
    if (!has_dtype(whole, "F32") || whole->tensor.elements != 1) {
        return wrong(f, whole, "F32, one number");
    }
    s->type = SL_QTYPE_NVFP4_128;
    s->codes = &codes->tensor;
    s->scales = &scales->tensor;
    s->whole = &whole->tensor;
    s->divides = divides;
    s->ignored[0] = tensor_of(hf_sibling(f, divides ? ".input_global_scale" : ".input_scale"));
    return 0;
}

static int find_in_folder(const finder *f, sl_scaled *s, bool *there) {
    const sl_safetensors_entry *plain = sl_hf_find(f->hf, f->query->name);
    const sl_safetensors_entry *packed = plain ? NULL : hf_sibling(f, ".weight_packed");
    const bool fp8 = has_dtype(plain, "F8_E4M3");
    int code = 0;
    *there = fp8 || packed || has_dtype(plain, "U8");
    if (!*there) {
        return 0;
    }
    const sl_safetensors_entry *codes = plain ? plain : packed;
    if (!f->query->quantization->there) {
        return sl_fail(f->error, SL_ERR_UNSUPPORTED,
                       "%s: tensor %.100s is %.16s, but config.json has no quantization_config", f->file,
                       codes->tensor.name, codes->dtype);
    }
    code = refuse_others(f);
    code = code || !fp8 ? code : find_fp8(f, codes, s);
    code = code || fp8 ? code : find_nvfp4(f, codes, packed != NULL, s);
    return code;
}

static int find_in_gguf(const finder *f, const sl_gguf *gguf, sl_scaled *s, bool *there) {
    char name[SL_TENSOR_NAME_SIZE];
    sibling(f->query->name, ".scale", name);
    const sl_tensor *codes = sl_gguf_tensor(gguf, f->query->name), *whole = sl_gguf_tensor(gguf, name);
    sibling(f->query->name, ".input_scale", name);
    s->ignored[0] = sl_gguf_tensor(gguf, name);
    *there = codes && whole;
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
    s->type = SL_QTYPE_NVFP4_128;
    s->codes = codes;
    s->whole = whole;
    return check_columns(f, "NVFP4 with a scale");
}

int sl_scaled_find(const sl_scaled_query *query, sl_scaled *scaled, bool *there, sl_error *error) {
    const sl_hf *hf = sl_source_hf(query->source);
    const finder f = {query, hf, sl_source_path(query->source), error};
    memset(scaled, 0, sizeof *scaled);
    scaled->experts = query->experts;
    scaled->rows = query->rows;
    scaled->columns = query->columns;
    scaled->file = f.file;
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

static int pack_fp8(const sl_scaled *s, sl_block_fp8_128 *block, sl_error *error) {
    const unsigned char *codes = s->codes->data;
    for (uint64_t row = 0; row < (uint64_t)s->rows; row++) {
        for (uint64_t column = 0; column < (uint64_t)s->columns; column += BLOCK, block++, codes += BLOCK) {
            const uint64_t index = row / s->block_rows * s->scale_columns + column / s->block_columns;
            const float scale = number_at(s->scales, index);
            if (!isfinite(scale)) {
                return bad_number(s, s->scales, index, "finite", error);
            }
            memcpy(&block->scale, &scale, sizeof scale);
            memcpy(block->codes, codes, BLOCK);
        }
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

static int pack_nvfp4(const sl_scaled *s, sl_block_nvfp4_128 *block, sl_error *error) {
    const unsigned char *codes = s->codes->data, *scales = s->scales->data;
    const uint64_t blocks = (uint64_t)s->rows * (uint64_t)s->columns / BLOCK;
    float scale;
    const int code = whole_scale(s, 0, &scale, error);
    for (uint64_t b = 0; b < blocks && code == 0; b++, block++) {
        memcpy(&block->scale, &scale, sizeof scale);
        for (uint64_t g = 0; g < BLOCK / SMALL; g++, codes += SMALL / 2, scales++) {
            if (*scales >= 127) { /* E4M3's NaN, and its numbers with a sign */
                return bad_number(s, s->scales, b * (BLOCK / SMALL) + g, "a number and not negative", error);
            }
            block->scales[g] = *scales;
            pack_small(codes, block->quants + SMALL / 2 * g);
        }
    }
    return code;
}

static int pack_gguf(const sl_scaled *s, sl_block_nvfp4_128 *block, sl_error *error) {
    const sl_block_nvfp4 *from = s->codes->data;
    const uint64_t blocks = (uint64_t)s->rows * (uint64_t)s->columns / BLOCK; /* of an expert */
    for (uint64_t expert = 0; expert < (uint64_t)s->experts; expert++) {
        float scale;
        const int code = whole_scale(s, s->whole->elements == 1 ? 0 : expert, &scale, error);
        if (code) {
            return code;
        }
        for (uint64_t b = 0; b < blocks; b++, block++, from += 2) {
            memcpy(&block->scale, &scale, sizeof scale);
            for (size_t half = 0; half < 2; half++) {
                memcpy(block->scales + 4 * half, from[half].scales, 4);
                memcpy(block->quants + 32 * half, from[half].quants, 32);
            }
        }
    }
    return 0;
}

int sl_scaled_pack(const sl_scaled *scaled, void *blocks, sl_error *error) {
    return scaled->type == SL_QTYPE_FP8_128 ? pack_fp8(scaled, blocks, error)
           : scaled->scales                 ? pack_nvfp4(scaled, blocks, error)
                                            : pack_gguf(scaled, blocks, error);
}
