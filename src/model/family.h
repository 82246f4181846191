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
    SL_PATTERN_WINDOW_ALL,      /* a window, if one is declared, holds for every layer */
    SL_PATTERN_WINDOW_SWITCH,   /* use_sliding_window turns it on, from layer max_window_layers on */
    SL_PATTERN_WINDOW_PERIOD,   /* every n-th layer sees everything, the others a window */
    SL_PATTERN_WINDOW_TURNED,   /* in layers that rotate */
    SL_PATTERN_WINDOW_UNTURNED, /* use_sliding_window turns it on, in layers without RoPE */
    SL_PATTERN_SSM_LISTED,      /* layers without heads of keys (GGUF) are recurrent */
    SL_PATTERN_DELTA_PERIOD,    /* every n-th layer attends, the others are recurrent */
    SL_PATTERN_CONV_LISTED,     /* layers that no list names attend, the others are short convolutions */
} sl_layer_pattern;

/* Where a layer's norms stand. */
typedef enum sl_norm_places {
    SL_NORMS_BEFORE,   /* in front of each block */
    SL_NORMS_SANDWICH, /* and behind it, in front of the residual */
    SL_NORMS_BEHIND,   /* behind it alone: blocks read the stream as it is */
} sl_norm_places;

/* RMS norm on queries and keys. */
typedef enum sl_query_norm {
    SL_QUERY_NORM_NONE,
    SL_QUERY_NORM_HEADS,  /* on each head */
    SL_QUERY_NORM_WHOLE,  /* on all heads together */
    SL_QUERY_NORM_TURNED, /* on each head, behind RoPE */
} sl_query_norm;

/* Which layers rotate queries and keys. */
typedef enum sl_rope_layers {
    SL_ROPE_LAYERS_ALL,
    SL_ROPE_LAYERS_WINDOWED, /* the windowed ones; all, where a model has no window */
    SL_ROPE_LAYERS_ASKED,    /* all or none: GGUF's rope.scaling.finetuned, position_embedding_type "rope" */
    SL_ROPE_LAYERS_NONE,
    SL_ROPE_LAYERS_LISTED, /* no_rope_layers says so; GGUF: all but every fourth */
} sl_rope_layers;

/* RoPE of windowed layers. */
typedef enum sl_local_rope {
    SL_LOCAL_ROPE_SAME,
    SL_LOCAL_ROPE_OWN,      /* a base and a scaling of their own */
    SL_LOCAL_ROPE_UNSCALED, /* the others' base, unless the file says another, without their scaling */
} sl_local_rope;
/* An expert that every row goes through beside those that its router chooses. */
typedef enum sl_shared_expert {
    SL_SHARED_NONE,
    SL_SHARED_PLAIN,
    SL_SHARED_GATED, /* times the sigmoid of a gate of its own */
} sl_shared_expert;

enum { SL_FAMILY_RENAMES = 32, SL_FAMILY_ALIASES = 4 };

typedef struct sl_family {
    const char *name;
    const char *gguf;                  /* general.architecture; NULL: GGUF files carry another row's name */
    const char *gguf_as;               /* which, then */
    const char *hf[SL_FAMILY_ALIASES]; /* model_type */
    /* The norms' weights count from this in a checkpoint (1: stored as w - 1); GGUF always stores w itself.
     */
    float hf_norm_offset;
    /* BERT's kind: rows see each other to both sides, LayerNorm stands behind the blocks, positions are
     * learned, the feed-forward has no gate, and there is no head. */
    bool encoder;
    bool both_sides;    /* rows see each other to both sides always, */
    bool hf_both_sides; /* or where a config says so: then a window of W becomes W / 2 + 1 to each side */
    int32_t hf_position_offset; /* rows in front of the first position's */
    sl_norm_places norms;
    bool layer_norm; /* norms of the stream are by mean and variance, with a weight and without a bias */
    bool parallel;   /* attention and feed-forward read one norm, and both are added to the stream */
    sl_query_norm query_norm;
    sl_rope_layers rope_layers;
    sl_local_rope local_rope;
    bool scaled;           /* factors of the config on embeddings, on what joins the stream, and on logits */
    double logit_factor;   /* logit_scale multiplies logits: what it is where a config does not say; 0: a
                              divisor */
    bool fused_qkv;        /* one matrix of query, key and value rows */
    bool fused_gate_up;    /* one matrix of gate and up rows */
    bool hf_fused_gate_up; /* the same, of dense and shared feed-forwards in checkpoints alone */
    bool rope_alpha;       /* rope_type "dynamic" with an alpha is a larger base */
    bool query_bias;       /* biases on q, k and v without a key that says so */
    bool latent;           /* keys and values of all heads come out of one row */
    bool output_gate;      /* the query projection holds a gate for the output of each head */
    bool experts;          /* may have them */
    bool delta;            /* may have recurrent layers of the delta rule */
    bool ssm;              /* may have recurrent layers of Mamba2 */
    /* Windowed layers see their own chunk of so many tokens, where a file does not say another number; 0: a
     * window. */
    int32_t chunk;
    /* Norms of queries and keys have no weights, and stand in layers that rotate. GGUF files with so many
     * experts have none. */
    bool query_norm_plain;
    int32_t gguf_unnormed_experts;
    /* Queries of layers that do not rotate grow with the position, by so much where a file does not say; 0:
     * others do. */
    double still_temperature;
    int32_t still_length;
    bool weight_before;    /* an expert's weight multiplies what it reads, not what it leaves */
    bool sparse_steps;     /* every so many-th layer has experts: interleave_moe_layer_step */
    bool hf_experts_apart; /* with hf_experts_turned: gate and up do not alternate, the one stands behind the
                              other */
    bool ssm_beside;       /* every layer has attention and Mamba2, side by side on one norm */
    bool ssm_norm_asked;   /* Mamba2 has its norm where a file says so; checkpoints: in front of the gate, if
                              they do not */
    bool multiplied; /* configs have factors on what projections read and leave; GGUF files have them in the
                        weights */
    bool one_block;  /* a layer is a norm and one block: attention, Mamba2 or a feed-forward */
    bool ungated;    /* feed-forwards are up, function, down */
    const char *with_experts; /* the row that folders with experts are of: GGUF has two names */
    bool ssm_whole_norm;      /* whose norm is over all heads: one group */
    bool embed_scale;         /* embeddings times sqrt(width) */
    bool normalise;           /* expert weights are normalised where GGUF does not say */
    bool tied;                /* the head is the embedding, where a config does not say */
    bool value_norm;          /* RMS norm without weight on each head's value */
    bool layer_scalar;        /* what leaves a layer is multiplied by a number of its own */
    bool dense_beside;        /* a layer with experts has a dense feed-forward too, with norms of their own */
    bool last_full;           /* the last layer attends to everything, whatever the pattern says */
    bool key_may_be_value;    /* full layers without a value projection use the key's */
    double attention_scale;   /* 0: from the head size */
    int32_t hf_per_layer_width;
    sl_activation activation;
    sl_rope_layout gguf_rope;
    sl_layer_pattern pattern;
    int32_t period; /* of the pattern, by default */
    /* Defaults of Hugging Face configs; 0: there is none, or (head size) width / heads. */
    int32_t hf_head_size, hf_heads, hf_kv_heads, hf_vocabulary, hf_context, hf_window;
    double hf_rope_base, hf_rope_part, hf_query_scalar;
    double hf_epsilon;      /* 0: 1e-6 */
    int32_t hf_conv_taps;   /* of short convolutions */
    bool hf_adjusted_width; /* intermediate_size is made smaller and rounded up, unless a config says no */
    /* GGUF has no key for this: with so many layers, the attention scale is 1 / sqrt(width / heads). */
    int32_t gguf_wide_scale_layers;
    bool sinks;             /* a logit per head that takes part in the softmax of scores, and has no value */
    bool exact_yarn;        /* YaRN's ramp is not rounded to whole pairs where a config does not say */
    bool hf_attention_bias; /* biases on the attention's four projections where a config does not say */
    bool no_output_bias;    /* what a config says of biases is not of the output projection */
    bool query_norm_asked;  /* norms of query and key are there where a file says so */
    sl_rope_layout hf_rope; /* of checkpoints */
    bool gguf_tiled;        /* GGUF: value head h of the delta rule belongs to key head h % key_heads */
    bool delta_joined;      /* rates of decay and of writing are one matrix, interleaved by key head */
    /* A head that drafts: a layer of full attention behind the others. */
    bool drafts;          /* may have one */
    const char *hf_draft; /* what its names begin with in checkpoints, its layer being 0; NULL: they are those
                             of one more layer */
    /* Experts. */
    sl_shared_expert shared;
    int32_t shared_experts;   /* whose widths together are the shared one's, where a file does not say */
    sl_router_kind router;    /* where a file does not say */
    bool router_bias;         /* on the router's logits */
    bool expert_bias;         /* on the experts' projections */
    bool choosing_bias;       /* on the scores, for the choice alone */
    bool choosing_bias_asked; /* GGUF: where the file has it; and then the router is a sigmoid, if no key says
                               */
    bool expert_groups;       /* may be chosen by groups */
    bool group_by_best;       /* a group counts its best expert */
    bool leading_dense;       /* GGUF has a key for how many layers without experts come first */
    int32_t hf_leading_dense; /* so many, where a config does not say */
    bool hf_normalise;        /* weights are normalised where a config does not say */
    bool hf_expert_width;     /* intermediate_size is the width of an expert; GGUF: where it says no other */
    bool shared_is_dense;     /* without experts, the shared one is the dense block */
    bool hf_experts_turned;   /* fused experts are [columns][rows], and gate and up alternate */
    double router_epsilon;    /* added to the sum that weights are divided by */
    double router_least_sum;  /* and the least that it is, where a config does not say */
    double swiglu_alpha, swiglu_limit; /* of SWIGLU_OAI, likewise */
    /* Where a name differs from tensors.def; NULL: as there. */
    struct {
        sl_tensor_id id;
        const char *name[SL_NAMING_COUNT];
    } renamed[SL_FAMILY_RENAMES];
    int32_t rename_count;
    /* Other Hugging Face names, of folders that have these; the first without a name ends them. */
    struct {
        sl_tensor_id id;
        const char *name;
    } hf_also[SL_FAMILY_ALIASES];
} sl_family;

/* By name, by general.architecture, by model_type. NULL when there is none. */
const sl_family *sl_family_find(const char *name);
const sl_family *sl_family_of_gguf(sl_view architecture);
const sl_family *sl_family_of_hf(sl_view model_type);
/* general.architecture of the family's GGUF files. */
const char *sl_family_gguf_name(const sl_family *family);
/* The row at `index`, NULL past the end. */
const sl_family *sl_family_at(int index);

#endif
