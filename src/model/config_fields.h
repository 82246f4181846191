/* Between config.c and the files that read and write configs: the table of fields. */
#ifndef SL_MODEL_CONFIG_FIELDS_H
#define SL_MODEL_CONFIG_FIELDS_H

#include "model/config.h"

/* A config and the values of keys that facts are derived from. Fields point into this. */
typedef struct sl_config_raw {
    sl_config config;
    int32_t value_size;        /* of a head; only equal to head_size is built */
    int32_t window_value_size; /* the same of windowed layers */
    int32_t latent_head_size;  /* GGUF: of queries, where key_length is what is cached; 0: key_length is */
    int32_t latent_value_size; /* and of values */
    int32_t key_part;          /* elements of a latent key that do not turn, */
    int32_t turning_part;      /* and that do */
    int32_t group_method;      /* how groups of experts are chosen; sl_top_method */
    double rope_part;          /* share of a head that rotates */
    double query_scalar;
    double layer_epsilon;   /* of LayerNorm; 0: not said */
    double attention_scale; /* 0: from query_scalar or the head size */
    int32_t draft_layers;   /* counted in block_count, not part of the model proper */
    int32_t period;         /* of the layer pattern */
    bool use_window;
    int32_t window_from;     /* first windowed layer */
    int32_t delta_values;    /* value heads times value size */
    bool attention_bias;     /* on q, k, v and, in most families, the output */
    bool all_bias;           /* on every projection */
    double rope_alpha;       /* of rope_type "dynamic" */
    double rope_multiplier;  /* GGUF: on the magnitude that the scaling has by itself */
    int32_t global_kv_heads; /* of layers with full attention, where the key is the value */
    bool mixture;            /* experts are switched on */
    bool truncate;           /* YaRN's ramp is rounded to whole pairs */
    int32_t gating;          /* GGUF's number of the router's kind: 1 softmax, 2 sigmoid; 0: not said */
    int32_t shared_experts;  /* that many experts' width is the shared one's */
    int32_t leading_dense;   /* layers without experts at the beginning */
    bool turns;              /* GGUF, where a family asks: queries and keys rotate */
    /* LFM2's rule of the feed-forward's width, and its older key of it; 0: not said. */
    int32_t block_width;
    bool adjusts_width;
    double width_multiplier;
    int32_t width_multiple;
    /* Of families whose configs multiply: on what attention and Mamba2 read and leave, on keys, on logits. */
    double attention_in, attention_out, ssm_in, ssm_out, key_factor, logit_factor;
    int32_t chunk_size;  /* of checkpoints: what a row sees of its sequence is its chunk of so many tokens */
    int32_t dense_width; /* of feed-forwards without experts, where intermediate_size is that of experts; 0:
                            it is both */
    int32_t sparse_step; /* every so many-th layer has experts */
    double still_temperature; /* of checkpoints */
    int32_t still_length;
    int32_t rotary_dims; /* leading elements of a head that rotate; 0: by rope_part */
} sl_config_raw;

/* GGUF: each an array with a number for each layer, or one for all (llama.cpp's llama-arch.cpp). */
static const char *const SL_XIELU_KEYS[SL_XIELU_COUNT] = {
    [SL_XIELU_POSITIVE] = "xielu.alpha_p",
    [SL_XIELU_NEGATIVE] = "xielu.alpha_n",
    [SL_XIELU_BETA] = "xielu.beta",
    [SL_XIELU_EPSILON] = "xielu.eps",
};
/* GGUF files with latent attention hold rope.scaling.yarn_log_multiplier times this. */
#define SL_LATENT_LOG_MULTIPLIER 0.1

/* DeepSeek's names of how experts are chosen: of all, of the groups with the best one, or of those with the
 * two best scores behind the choosing bias. */
typedef enum sl_top_method { SL_TOP_NOT_SAID, SL_TOP_GREEDY, SL_TOP_GROUPS, SL_TOP_BIASED } sl_top_method;

typedef enum sl_field_type {
    SL_FIELD_INT,
    SL_FIELD_LAYERS, /* an integer; in GGUF one for each layer may stand there, of which this is the largest
                      */
    SL_FIELD_REAL,
    SL_FIELD_BOOL,
    SL_FIELD_CHOICE
} sl_field_type;

/* Words a CHOICE field may have, each with its number; ends with a NULL word. */
typedef struct sl_field_choice {
    const char *word;
    int32_t value;
} sl_field_choice;

typedef struct sl_config_field {
    size_t offset; /* in sl_config_raw */
    sl_field_type type;
    /* GGUF: after "<architecture>.". Hugging Face: paths in the text model's config, tried in order,
     * separated by |; one that begins with ^ starts at the file's root. NULL: that format has no such key. */
    const char *key[SL_NAMING_COUNT];
    double least, most;
    const sl_field_choice *choices;
} sl_config_field;

extern const sl_config_field SL_CONFIG_FIELDS[];
extern const int SL_CONFIG_FIELD_COUNT;

/* The field at this offset of sl_config_raw; NULL when there is none. */
const sl_config_field *sl_config_field_at(size_t offset);
/* Its first key with the format's prefix, for messages. */
void sl_config_key(const sl_config *config, const sl_config_field *field, char key[SL_TENSOR_NAME_SIZE]);
/* `value` is inside the field's range, or a message that names file, key, value and range. */
int sl_config_check_range(const sl_config_field *field, double value, const char *file, const char *key,
                          sl_error *error);

#endif
