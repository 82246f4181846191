/* Weight types and types of caches: names, block geometry, and the reference encode and decode of each. */
#ifndef SL_QUANT_QTYPE_H
#define SL_QUANT_QTYPE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum sl_qtype {
#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes) SL_QTYPE_##ID,
#include "quant/qtypes.def"
#undef SL_QTYPE
    SL_QTYPE_COUNT, /* the types of weights end here */
    /* Of caches, and of tensors in checkpoints: OCP E4M3 without a scale, see quant/convert.h. */
    SL_QTYPE_FP8 = SL_QTYPE_COUNT,
    SL_QTYPE_ALL
} sl_qtype;

enum { SL_QTYPE_NO_GGUF = 0x7fffffff }; /* the gguf_type of a type that GGUF does not have */

typedef struct sl_qtype_info {
    const char *name;        /* lower case, as the command line takes it: "q4_k" */
    uint32_t gguf_type;      /* the number in a GGUF file (ggml_type), or SL_QTYPE_NO_GGUF */
    uint32_t block_elements; /* elements that share one block; a row holds whole blocks */
    uint32_t block_bytes;
    /* `count` is a multiple of block_elements. Blocks need not be aligned. */
    void (*decode)(const void *blocks, float *values, uint64_t count);
    void (*encode)(const float *values, void *blocks, uint64_t count);
    uint32_t file_type; /* general.file_type of a file whose matrices have it (llama.cpp's llama_ftype) */
} sl_qtype_info;

/* Never NULL for a valid type. */
const sl_qtype_info *sl_qtype_get(sl_qtype type);
/* A type of weights that files can be written in, or of caches; -1 when there is none of that name. Names
 * compare without regard to case. */
int sl_qtype_parse(const char *name);
/* How they compare: ASCII letters alike, whatever the locale. */
bool sl_same_name(const char *a, const char *b);
int sl_qtype_parse_cache(const char *name);
/* Whether keys and values can be kept in it. */
bool sl_qtype_is_cache(sl_qtype type);
/* Their names, for messages: "f16, bf16, ..." */
extern const char sl_qtype_cache_names[];
int sl_qtype_from_gguf(uint32_t gguf_type);
/* The name llama.cpp gives a GGUF type number ("q4_K"), also of those that are not supported here; NULL when
 * there is none. */
const char *sl_gguf_type_name(uint32_t gguf_type);
/* Bytes of `elements` consecutive elements; false when they are no whole number of blocks or the product
 * overflows. */
bool sl_qtype_bytes(sl_qtype type, uint64_t elements, uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
