#include "quant/qtype.h"

#include "base/checked.h"
#include "quant/codec.h"

#include <stddef.h>

/* llama_ftype in llama.h; of several mixes the one that is mostly this type. */
enum file_type {
    FILE_F32 = 0,
    FILE_F16 = 1,
    FILE_BF16 = 32,
    FILE_Q8_0 = 7,
    FILE_Q4_0 = 2,
    FILE_Q4_K = 14,
    FILE_Q6_K = 18,
    FILE_Q5_K = 16,
    FILE_Q4_1 = 3,
    FILE_Q5_0 = 8,
    FILE_Q5_1 = 9,
    FILE_Q2_K = 10,
    FILE_Q3_K = 11,
    FILE_IQ4_NL = 25,
    FILE_IQ4_XS = 30,
    FILE_MXFP4 = 38,
    FILE_NVFP4 = 39,
    FILE_TQ1_0 = 36,
    FILE_TQ2_0 = 37,
    FILE_IQ3_XXS = 23,
    FILE_IQ3_S = 26,
    FILE_IQ2_XXS = 19,
    FILE_IQ2_XS = 20,
    FILE_IQ2_S = 29, /* IQ2_M: what llama.cpp calls IQ2_S is mostly IQ2_XS */
    FILE_IQ1_S = 24,
    FILE_IQ1_M = 31,
    FILE_NVFP4_128 = 0, /* of no file */
    FILE_FP8_128 = 0,
};

static const sl_qtype_info types[SL_QTYPE_ALL] = {
#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes)                                           \
    [SL_QTYPE_##ID] = {#name,    gguf_type, block_elements, block_bytes, sl_decode_##name, sl_encode_##name, \
                       FILE_##ID},
#include "quant/qtypes.def"
#undef SL_QTYPE
    [SL_QTYPE_FP8] = {.name = "fp8",
                      .gguf_type = SL_QTYPE_NO_GGUF,
                      .block_elements = 1,
                      .block_bytes = 1,
                      .decode = sl_decode_fp8,
                      .encode = sl_encode_fp8},
};

const char sl_qtype_cache_names[] = "f16, bf16, f32, q8_0, fp8";

/* ggml_type_name() by the numbers of enum ggml_type; the gaps are types that were removed. */
static const char *const gguf_names[] = {
    [0] = "f32",     [1] = "f16",    [2] = "q4_0",     [3] = "q4_1",    [6] = "q5_0",     [7] = "q5_1",
    [8] = "q8_0",    [9] = "q8_1",   [10] = "q2_K",    [11] = "q3_K",   [12] = "q4_K",    [13] = "q5_K",
    [14] = "q6_K",   [15] = "q8_K",  [16] = "iq2_xxs", [17] = "iq2_xs", [18] = "iq3_xxs", [19] = "iq1_s",
    [20] = "iq4_nl", [21] = "iq3_s", [22] = "iq2_s",   [23] = "iq4_xs", [24] = "i8",      [25] = "i16",
    [26] = "i32",    [27] = "i64",   [28] = "f64",     [29] = "iq1_m",  [30] = "bf16",    [34] = "tq1_0",
    [35] = "tq2_0",  [39] = "mxfp4", [40] = "nvfp4",   [41] = "q1_0",   [42] = "q2_0",
};

const sl_qtype_info *sl_qtype_get(sl_qtype type) {
    return (unsigned)type < SL_QTYPE_ALL ? &types[type] : NULL;
}

/* Names are ASCII; a locale must not change what a command line means. */
static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

bool sl_same_name(const char *a, const char *b) {
    while (*a != '\0' && lower(*a) == lower(*b)) {
        a++;
        b++;
    }
    return lower(*a) == lower(*b);
}

int sl_qtype_parse(const char *name) {
    for (int type = 0; type < SL_QTYPE_COUNT; type++) {
        if (types[type].gguf_type != SL_QTYPE_NO_GGUF && sl_same_name(types[type].name, name)) {
            return type;
        }
    }
    return -1;
}

bool sl_qtype_is_cache(sl_qtype type) {
    return type == SL_QTYPE_F16 || type == SL_QTYPE_BF16 || type == SL_QTYPE_F32 || type == SL_QTYPE_Q8_0 ||
           type == SL_QTYPE_FP8;
}

int sl_qtype_parse_cache(const char *name) {
    for (int type = 0; type < SL_QTYPE_ALL; type++) {
        if (sl_qtype_is_cache((sl_qtype)type) && sl_same_name(types[type].name, name)) {
            return type;
        }
    }
    return -1;
}

int sl_qtype_from_gguf(uint32_t gguf_type) {
    for (int type = 0; type < SL_QTYPE_COUNT; type++) {
        if (types[type].gguf_type == gguf_type && gguf_type != SL_QTYPE_NO_GGUF) {
            return type;
        }
    }
    return -1;
}

const char *sl_gguf_type_name(uint32_t gguf_type) {
    return gguf_type < sizeof gguf_names / sizeof gguf_names[0] ? gguf_names[gguf_type] : NULL;
}

bool sl_qtype_bytes(sl_qtype type, uint64_t elements, uint64_t *bytes) {
    const sl_qtype_info *info = sl_qtype_get(type);
    return info != NULL && elements % info->block_elements == 0 &&
           sl_mul_u64(elements / info->block_elements, info->block_bytes, bytes);
}
