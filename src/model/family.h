/* Model families as rows of facts. A family that is a new row costs no code; only a new kind of block does.
 */
#ifndef SL_MODEL_FAMILY_H
#define SL_MODEL_FAMILY_H

#include "program/program.h"

#include <stdbool.h>
#include <stdint.h>

/* Whose names and conventions a set of weights follows. */
typedef enum sl_naming {
    SL_NAMING_GGUF,
    SL_NAMING_HF, /* Hugging Face checkpoint */
    SL_NAMING_COUNT
} sl_naming;

/* Every tensor a model of any family can have (tensors.def). */
typedef enum sl_tensor_id {
#define SL_TENSOR(ID, scope, need, kind, rows, columns, gguf, hf) SL_TENSOR_##ID,
#include "model/tensors.def"
#undef SL_TENSOR
    SL_TENSOR_COUNT
} sl_tensor_id;

/* Which layers look back how far, when the file does not list them one by one. */
typedef enum sl_layer_pattern {
    SL_PATTERN_WINDOW_ALL,    /* a window, if one is declared, holds for every layer */
    SL_PATTERN_WINDOW_SWITCH, /* use_sliding_window turns it on, from layer max_window_layers on */
    SL_PATTERN_WINDOW_PERIOD, /* every n-th layer sees everything, the others a window */
    SL_PATTERN_DELTA_PERIOD,  /* every n-th layer attends, the others are recurrent */
} sl_layer_pattern;

enum { SL_FAMILY_RENAMES = 2, SL_FAMILY_ALIASES = 2 };

typedef struct sl_family {
    const char *name;
    const char *gguf;                  /* general.architecture; NULL: GGUF files carry another row's name */
    const char *hf[SL_FAMILY_ALIASES]; /* model_type */
    /* The norms' weights count from this in a checkpoint (1: stored as w - 1); GGUF always stores w itself.
     */
    float hf_norm_offset;
    bool sandwich;    /* norms after attention and feed-forward too, in front of the residual */
    bool query_norm;  /* RMS norm on each head's query and key, before RoPE */
    bool query_bias;  /* biases on q, k and v without a key that says so */
    bool output_gate; /* the query projection holds a gate for the output of each head */
    bool experts;     /* may have them */
    bool delta;       /* may have recurrent layers */
    bool local_rope;  /* windowed layers have a RoPE of their own */
    bool embed_scale; /* embeddings times sqrt(width) */
    bool normalise;   /* expert weights are normalised where GGUF does not say */
    bool tied;        /* the head is the embedding, where a config does not say */
    sl_activation activation;
    sl_rope_layout gguf_rope; /* Hugging Face checkpoints: always halves */
    sl_layer_pattern pattern;
    int32_t period; /* of the pattern, by default */
    /* Defaults of Hugging Face configs; 0: there is none, or (head size) width / heads. */
    int32_t hf_head_size, hf_heads, hf_kv_heads, hf_vocabulary, hf_context;
    double hf_rope_base, hf_rope_part, hf_query_scalar;
    /* GGUF has no key for this: with so many layers, the attention scale is 1 / sqrt(width / heads). */
    int32_t gguf_wide_scale_layers;
    /* Where a name differs from tensors.def; NULL: as there. */
    struct {
        sl_tensor_id id;
        const char *name[SL_NAMING_COUNT];
    } renamed[SL_FAMILY_RENAMES];
    int32_t rename_count;
} sl_family;

/* By name, by general.architecture, by model_type. NULL when there is none. */
const sl_family *sl_family_find(const char *name);
const sl_family *sl_family_of_gguf(sl_view architecture);
const sl_family *sl_family_of_hf(sl_view model_type);
/* The row at `index`, NULL past the end. */
const sl_family *sl_family_at(int index);

#endif
