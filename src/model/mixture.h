/* Which weight type each tensor of a file takes: the mixtures that people know by llama.cpp's names.
 *
 * Source of the rules: llama-quantize's tensor_get_category, llama_tensor_get_type_impl and
 * tensor_type_fallback (llama.cpp, src/llama-quant.cpp, commit 007dbbf3). Tensors go by the names that GGUF
 * files have. */
#ifndef SL_MODEL_MIXTURE_H
#define SL_MODEL_MIXTURE_H

#include "base/error.h"
#include "base/text.h"
#include "quant/qtype.h"

/* What a tensor does in a model, as far as rules tell tensors apart. */
typedef enum sl_tensor_role {
    SL_ROLE_OTHER,
    SL_ROLE_OUTPUT,
    SL_ROLE_EMBEDDING,
    SL_ROLE_VALUE, /* also a projection that holds values among others */
    SL_ROLE_KEY,
    SL_ROLE_QUERY,
    SL_ROLE_ATTENTION_OUTPUT,
    SL_ROLE_UP,
    SL_ROLE_GATE,
    SL_ROLE_DOWN,
} sl_tensor_role;

sl_tensor_role sl_tensor_role_of(const char *name);

typedef struct sl_mixture sl_mixture;

/* By name in any case, llama-quantize's aliases included; NULL when there is none. */
const sl_mixture *sl_mixture_find(const char *name);
/* The mixture at `index`, in order of bits; NULL past the end. */
const sl_mixture *sl_mixture_at(int index);
const char *sl_mixture_name(const sl_mixture *mixture);
/* What most of its matrices take. */
sl_qtype sl_mixture_base(const sl_mixture *mixture);
uint32_t sl_mixture_file_type(const sl_mixture *mixture); /* general.file_type: llama.cpp's llama_ftype */
/* Bits per weight of the matrices of Llama 3 8B, for people to compare by; 0 when memory ran out. */
double sl_mixture_bits(const sl_mixture *mixture);
/* Fails with a message that lists all names. */
int sl_mixture_unknown(const char *name, sl_error *error);

/* What rules look at beside the tensors. */
typedef struct sl_mixture_model {
    sl_view architecture; /* general.architecture */
    uint64_t layers, heads, kv_heads, experts;
    bool importance; /* there is an importance matrix */
} sl_mixture_model;

typedef struct sl_mixture_tensor {
    const char *name;
    uint64_t columns, matrices; /* matrices: experts, or 1 */
    sl_qtype type;              /* set by sl_mixture_assign */
} sl_mixture_tensor;

/* Sets the types of all matrices of a file that may be quantised; the order of the list does not matter.
 * Nothing falls back yet. SL_ERR_NOMEM. */
int sl_mixture_assign(const sl_mixture *mixture, const sl_mixture_model *model, sl_mixture_tensor *tensors,
                      uint64_t count, sl_error *error);

/* `type`, or what takes its place in rows of so many elements: a type of smaller blocks, or F16. */
sl_qtype sl_mixture_fallback(sl_qtype type, uint64_t columns);

#endif
