/* Models of true shape with random weights.
 *
 * A matrix is put together of pieces of a pattern: random numbers of the spread that keeps a product at the
 * size of its input, encoded once for each type and width that the model has. So the blocks are what a real
 * model of that type has, the cost is that of copying, and no type needs code here. */
#include "model/files.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "model/config.h"

#include <math.h>
#include <stdio.h>

/* ---- presets
 * ------------------------------------------------------------------------------------------------------- */

typedef struct preset {
    const char *name, *title; /* title: general.name */
    const char *family;
    int32_t layers, width, heads, kv_heads, head_size, feed_forward, vocabulary, context;
    int32_t experts, experts_used, expert_width, window;
    int32_t window_kv_heads, window_head_size; /* 0: as the others */
    int32_t shared_kv, per_layer_width;
    int32_t period;     /* of the family's pattern; 0: its own */
    uint64_t attending; /* bit L: layer L attends, where the family's other layers convolve */
    double rope_base, softcap;
    double temperature; /* of queries, from original_context on */
    bool tied, key_is_value;
    int32_t shared_width, leading_dense;
    int32_t key_heads, value_heads, state_size; /* of recurrent layers; 0: as the attention */
    int32_t latent_width;
    double expert_scale;   /* 0: 1 */
    int32_t ssm_head_size; /* of Mamba2's heads; key_heads are its groups */
    const char *kinds;     /* of Mamba2's families: M Mamba2, * attention, and where
                             a layer is one block - dense, E experts; over and over */
    double yarn_factor;    /* 0: none */
    int32_t original_context;
    double mscale;                                   /* both, of YaRN; 0: neither */
    int32_t latent, query_rank, value_size, turning; /* of latent attention; turning: elements of a head */
    int32_t groups, groups_used;                     /* of experts; 0: none */
    bool drafts;                                     /* has a head that does */
    int32_t sparse_step;                             /* every so many-th layer has experts; 0: all */
} preset;

static const preset PRESETS[] = {
#define SL_PRESET(preset_name, general_name, family_name, ...)                                               \
    {.name = preset_name, .title = general_name, .family = family_name, __VA_ARGS__},
#include "model/presets.def"
#undef SL_PRESET
};
enum { PRESET_COUNT = sizeof PRESETS / sizeof *PRESETS, LEAST_VOCABULARY = 260 };

const char *sl_synth_preset(int index) {
    return index >= 0 && index < PRESET_COUNT ? PRESETS[index].name : NULL;
}

static const preset *find_preset(const char *name, sl_error *error) {
    sl_buffer names = {0};
    for (int i = 0; i < PRESET_COUNT; i++) {
        if (strcmp(PRESETS[i].name, name) == 0) {
            return &PRESETS[i];
        }
    }
    for (int i = 0; i < PRESET_COUNT; i++) {
        sl_buffer_printf(&names, "%s%s", i ? ", " : "", PRESETS[i].name);
    }
    sl_fail(error, SL_ERR_INVALID, "preset: \"%.64s\" is not one of %s", name, names.data ? names.data : "");
    sl_buffer_free(&names);
    return NULL;
}

static void set_listed_layers(sl_config *config, const char *kinds) {
    for (int32_t layer = 0; layer < config->layers && layer < SL_CONFIG_LAYERS; layer++) {
        const char kind = kinds[(size_t)layer % strlen(kinds)];
        config->kinds[layer] = (uint8_t)(kind == 'M'   ? SL_LAYER_SSM
                                         : kind == '*' ? SL_LAYER_FULL
                                                       : SL_LAYER_FEED_FORWARD);
        config->dense[layer] = kind == '-' && config->experts > 0;
    }
}

static void set_layers(sl_config *config, int32_t period, uint64_t attending) {
    const sl_family *family = config->family;
    for (int32_t layer = 0; layer < config->layers && layer < SL_CONFIG_LAYERS; layer++) {
        const bool last = family->last_full && layer == config->layers - 1;
        const bool full = period == 0 || (layer + 1) % period == 0 || last;
        config->kinds[layer] = (uint8_t)(full            ? SL_LAYER_FULL
                                         : family->delta ? SL_LAYER_DELTA
                                                         : SL_LAYER_WINDOW);
        if (attending != 0 && !(layer < 64 && attending >> layer & 1)) {
            config->kinds[layer] = SL_LAYER_CONV;
        }
    }
}

/* What the family has by itself. */
static void set_family_facts(sl_config *config, const preset *p) {
    const sl_family *family = config->family;
    if (family->scaled) { /* of the size that Granite's are */
        config->embed_factor = 12;
        config->branch_factor = 0.22;
        config->logit_divisor = 8;
    }
    if (family->logit_factor > 0) {
        config->logit_divisor = 1 / family->logit_factor;
    }
    if (p->temperature > 0) {
        config->temperature_scale = p->temperature;
        config->temperature_length = p->original_context;
        config->rope.mscale = config->rope.mscale_all = 1;
    }
    if (family->still_temperature > 0) { /* so that it is met */
        config->temperature_length = 32;
    }
    if (p->mscale > 0) {
        config->rope.mscale = config->rope.mscale_all = p->mscale;
    }
    if (p->groups > 0) {
        config->expert_groups = p->groups;
        config->expert_groups_used = p->groups_used;
    }
    for (int32_t layer = 0; layer < config->layers && layer < SL_CONFIG_LAYERS; layer++) {
        config->xielu[SL_XIELU_POSITIVE][layer] = 0.2f; /* what xIELU begins with is 0.8 behind softplus */
        config->xielu[SL_XIELU_NEGATIVE][layer] = -1.05f;
        config->xielu[SL_XIELU_BETA][layer] = 0.5f;
        config->xielu[SL_XIELU_EPSILON][layer] = -1e-6f;
    }
    if (family->latent) {
        config->latent = p->latent;
        config->query_rank = p->query_rank;
        config->value_size = p->value_size;
        config->rope_dims = p->turning;
        config->kv_heads = 1;
        config->attention_scale *= sl_rope_latent_scale(&config->rope);
    }
    for (int32_t layer = 0; layer < config->layers && layer < SL_CONFIG_LAYERS; layer++) {
        if (family->pattern == SL_PATTERN_WINDOW_TURNED) {
            config->kinds[layer] = (layer + 1) % 4 == 0 ? SL_LAYER_FULL : SL_LAYER_WINDOW;
        }
        config->dense[layer] |=
            p->sparse_step > 0 && config->experts > 0 && (layer + 1) % p->sparse_step != 0;
        const bool full = config->kinds[layer] == SL_LAYER_FULL;
        config->no_rope[layer] =
            family->rope_layers == SL_ROPE_LAYERS_ASKED || family->rope_layers == SL_ROPE_LAYERS_NONE ||
            (family->rope_layers == SL_ROPE_LAYERS_WINDOWED && full && config->window > 0) ||
            (family->rope_layers == SL_ROPE_LAYERS_LISTED && (layer + 1) % 4 == 0);
    }
}

static int32_t either(int32_t asked, int32_t usual) {
    return asked ? asked : usual;
}

static int make_config(const preset *p, const sl_synth_options *o, const char *file, sl_config *config,
                       sl_error *error) {
    sl_config_init(config, sl_family_find(p->family), SL_NAMING_GGUF);
    config->layers = either(o->layers, p->layers);
    config->width = either(o->width, p->width);
    config->heads = either(o->heads, p->heads);
    config->kv_heads = either(o->kv_heads, p->kv_heads);
    config->head_size = either(o->head_size, p->head_size);
    config->feed_forward = either(o->feed_forward, p->feed_forward);
    config->vocabulary = either(o->vocabulary, p->vocabulary);
    config->experts = either(o->experts, p->experts);
    config->experts_used = either(o->experts_used, p->experts_used);
    config->expert_width = either(o->expert_width, p->expert_width);
    config->context = p->context;
    config->window = p->window;
    config->tied = p->tied;
    config->normalise = config->experts > 0 && !config->family->weight_before;
    config->rope.base = p->rope_base;
    config->attention_scale = config->family->attention_scale > 0
                                  ? config->family->attention_scale
                                  : 1 / sqrt(config->head_size > 0 ? config->head_size : 1);
    config->window_kv_heads = p->window_kv_heads;
    config->window_head_size = config->window_rope_dims = p->window_head_size;
    config->shared_kv = p->shared_kv;
    config->key_is_value = p->key_is_value;
    config->per_layer_width = p->per_layer_width;
    config->final_softcap = p->softcap;
    const double part = config->family->hf_rope_part;
    config->rope_dims = part > 0 ? (int32_t)(config->head_size * part) : config->head_size;
    config->shared_width = config->experts > 0 ? p->shared_width : 0;
    config->latent_width = config->experts > 0 ? p->latent_width : 0;
    config->expert_scale = p->expert_scale > 0 ? p->expert_scale : 1;
    config->query_bias |= config->family->hf_attention_bias || config->family->no_output_bias;
    config->output_bias |= config->family->hf_attention_bias && !config->family->no_output_bias;
    for (int32_t layer = 0; layer < p->leading_dense && layer < SL_CONFIG_LAYERS; layer++) {
        config->dense[layer] = config->experts > 0;
    }
    if (p->yarn_factor > 0) {
        config->rope.scaling = SL_ROPE_SCALING_YARN;
        config->rope.factor = p->yarn_factor;
        config->rope.original_context = p->original_context;
    }
    if (config->family->delta || config->family->ssm) {
        config->delta_key_heads = either(p->key_heads, config->heads);
        config->delta_value_heads = either(p->value_heads, config->heads);
        config->delta_key_size = either(p->state_size, config->head_size);
        config->delta_value_size = either(p->ssm_head_size, config->delta_key_size);
        config->delta_taps = 4;
        config->delta_tiled = config->family->gguf_tiled;
    }
    if (config->vocabulary < LEAST_VOCABULARY) {
        return sl_fail(error, SL_ERR_INVALID,
                       "%s: vocabulary is %d, must be at least %d: bytes and special tokens", file,
                       config->vocabulary, LEAST_VOCABULARY);
    }
    set_layers(config,
               either(p->period, config->window > 0 || config->family->delta ? config->family->period : 0),
               p->attending);
    if (p->kinds) {
        set_listed_layers(config, p->kinds);
    }
    config->short_conv_taps = config->family->hf_conv_taps;
    config->draft_layers = o->head == SL_SYNTH_HEAD_PRESET ? p->drafts : o->head != SL_SYNTH_HEAD_NONE;
    if (config->draft_layers > 0 && (!config->family->drafts || config->layers >= SL_CONFIG_LAYERS)) {
        return sl_fail(error, SL_ERR_INVALID, "%s: %s has no head that drafts", file, config->family->name);
    }
    set_family_facts(config, p);
    if (config->family->local_rope != SL_LOCAL_ROPE_OWN) {
        config->local_rope = config->rope;
    }
    return sl_config_check(config, file, error);
}

/* ---- vocabulary
 * ---------------------------------------------------------------------------------------------------- */

static const char CHAT_TEMPLATE[] =
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + "
    "message.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";
static const char *const SPECIAL[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
enum { BYTES = 256, SPECIALS = 3, LETTERS = 26 };

/* The character that stands for a byte in GPT-2's alphabet: itself where it is printable, else the next free
 * one from U+0100 on. */
static uint32_t byte_character(int byte) {
    uint32_t next = 256;
    for (int b = 0; b < BYTES; b++) {
        const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b != 0xAD);
        if (b == byte) {
            return printable ? (uint32_t)b : next;
        }
        next += !printable;
    }
    return 0;
}

typedef struct vocabulary {
    sl_arena arena;
    sl_view *texts, *merges;
    int32_t *types;
    int32_t count, merge_count;
} vocabulary;

/* Bytes; pairs of small letters, each with its merge; then fillers that no text becomes; special tokens last.
 */
static int fill_vocabulary(vocabulary *v) {
    const int32_t fillers = v->count - BYTES - SPECIALS;
    v->texts = sl_arena_alloc(&v->arena, (size_t)v->count, sizeof *v->texts);
    v->merges = sl_arena_alloc(&v->arena, LETTERS * LETTERS, sizeof *v->merges);
    v->types = sl_arena_alloc(&v->arena, (size_t)v->count, sizeof *v->types);
    if (!v->texts || !v->merges || !v->types) {
        return SL_ERR_NOMEM;
    }
    for (int32_t id = 0; id < v->count; id++) {
        const int32_t filler = id - BYTES;
        char text[8] = "";
        v->types[id] = 1; /* normal */
        if (filler < 0) {
            sl_utf8_encode(byte_character(id), text);
            v->texts[id] = sl_view_of(sl_arena_strndup(&v->arena, text, strlen(text)));
        } else if (filler < fillers && filler < LETTERS * LETTERS) {
            const char left = (char)('a' + filler / LETTERS), right = (char)('a' + filler % LETTERS);
            v->texts[id] = sl_view_of(sl_arena_printf(&v->arena, "%c%c", left, right));
            v->merges[v->merge_count++] = sl_view_of(sl_arena_printf(&v->arena, "%c %c", left, right));
        } else if (filler < fillers) {
            v->texts[id] = sl_view_of(sl_arena_printf(&v->arena, "[filler %d]", filler));
        } else {
            v->texts[id] = sl_view_of(SPECIAL[filler - fillers]);
            v->types[id] = 3; /* control */
        }
        if (!v->texts[id].data || (v->merge_count > 0 && !v->merges[v->merge_count - 1].data)) {
            return SL_ERR_NOMEM;
        }
    }
    return 0;
}

static int write_vocabulary(sl_gguf_writer *writer, int32_t count, const char *file, sl_error *error) {
    vocabulary v = {.count = count};
    int code =
        fill_vocabulary(&v) ? sl_fail(error, SL_ERR_NOMEM, "%s: out of memory for a vocabulary", file) : 0;
    const struct {
        const char *key;
        sl_gguf_items items;
    } arrays[] = {{"tokenizer.ggml.tokens", {SL_GGUF_STRING, v.texts, (uint64_t)count}},
                  {"tokenizer.ggml.token_type", {SL_GGUF_I32, v.types, (uint64_t)count}},
                  {"tokenizer.ggml.merges", {SL_GGUF_STRING, v.merges, (uint64_t)v.merge_count}}};
    const struct {
        const char *key, *text;
    } strings[] = {{"tokenizer.ggml.model", "gpt2"},
                   {"tokenizer.ggml.pre", "qwen2"},
                   {"tokenizer.chat_template", CHAT_TEMPLATE}};
    const struct {
        const char *key;
        int32_t id;
    } ids[] = {{"tokenizer.ggml.eos_token_id", count - 1},
               {"tokenizer.ggml.padding_token_id", count - SPECIALS}};
    for (int i = 0; i < 3 && code == 0; i++) {
        code = sl_gguf_writer_string(writer, strings[i].key, sl_view_of(strings[i].text), error);
        code = code ? code : sl_gguf_writer_array(writer, arrays[i].key, &arrays[i].items, error);
    }
    for (int i = 0; i < 2 && code == 0; i++) {
        code = sl_gguf_writer_unsigned(writer, ids[i].key, SL_GGUF_U32, (uint64_t)ids[i].id, error);
    }
    code = code ? code : sl_gguf_writer_bool(writer, "tokenizer.ggml.add_bos_token", false, error);
    sl_arena_free(&v.arena);
    return code;
}

/* ---- random numbers
 * ------------------------------------------------------------------------------------------------ */

/* splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators"). */
static uint64_t next_word(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Four uniform numbers added up: nearly normal, mean 0, deviation 1. */
static float next_normal(uint64_t *state) {
    const uint64_t word = next_word(state);
    const int32_t sum = (int32_t)(word & 0xffff) + (int32_t)(word >> 16 & 0xffff) +
                        (int32_t)(word >> 32 & 0xffff) + (int32_t)(word >> 48);
    return (float)(sum - 2 * 0xffff) * 2.64290e-5f; /* sqrt(3) / 65535 */
}

enum { PATTERN_ELEMENTS = 1 << 20, PATTERNS = 64, PIECE_BLOCKS = 32, CHUNK_BYTES = 1 << 20 };

typedef struct pattern {
    sl_qtype type;
    uint64_t spread;       /* one over the variance */
    unsigned char *blocks; /* [PATTERN_ELEMENTS / block_elements] */
} pattern;

typedef struct synth {
    const char *file;
    const sl_synth_options *options;
    const sl_config *config;
    const sl_file_progress *progress;
    sl_gguf_writer *writer;
    pattern patterns[PATTERNS];
    int pattern_count;
    float *values;        /* [PATTERN_ELEMENTS] */
    unsigned char *chunk; /* [CHUNK_BYTES] */
    uint64_t done, total;
} synth;

static int no_memory(const synth *s, sl_error *error) {
    return sl_fail(error, SL_ERR_NOMEM, "%s: out of memory for random weights", s->file);
}

/* Blocks of a type whose values have the deviation 1 / sqrt(spread). */
static int find_pattern(synth *s, sl_qtype type, uint64_t spread, const pattern **found, sl_error *error) {
    for (int i = 0; i < s->pattern_count; i++) {
        if (s->patterns[i].type == type && s->patterns[i].spread == spread) {
            *found = &s->patterns[i];
            return 0;
        }
    }
    const sl_qtype_info *info = sl_qtype_get(type);
    pattern *p = &s->patterns[s->pattern_count];
    if (s->pattern_count == PATTERNS) {
        return sl_fail(error, SL_ERR_INTERNAL, "%s: more than %d widths of matrices", s->file, PATTERNS);
    }
    p->blocks = sl_alloc((size_t)PATTERN_ELEMENTS / info->block_elements * info->block_bytes);
    if (!p->blocks) {
        return no_memory(s, error);
    }
    p->type = type;
    p->spread = spread;
    s->pattern_count++;
    uint64_t state = s->options->seed ^ spread << 8 ^ (uint64_t)type;
    const float deviation = 1 / sqrtf((float)spread);
    for (int i = 0; i < PATTERN_ELEMENTS; i++) {
        s->values[i] = next_normal(&state) * deviation;
    }
    info->encode(s->values, p->blocks, PATTERN_ELEMENTS);
    *found = p;
    return 0;
}

static int write_matrix(synth *s, const sl_gguf_tensor_fact *fact, const sl_gguf_shape *shape, uint64_t bytes,
                        uint64_t *state, sl_error *error) {
    const pattern *p;
    /* Embeddings that are multiplied by sqrt(width) would drown what the layers add. */
    const bool table = fact->id == SL_TENSOR_EMBED || fact->id == SL_TENSOR_PER_LAYER_EMBED;
    const bool scaled = table && s->config->family->embed_scale;
    int code = find_pattern(s, shape->type, shape->dims[0] * (scaled ? shape->dims[0] : 1), &p, error);
    if (code) {
        return code;
    }
    const sl_qtype_info *info = sl_qtype_get(shape->type);
    /* Floats are blocks of one: their pieces are longer. */
    const uint64_t piece_blocks = PIECE_BLOCKS * (256 / info->block_elements);
    const uint64_t piece = piece_blocks * info->block_bytes;
    const uint64_t places = PATTERN_ELEMENTS / info->block_elements - piece_blocks + 1;
    for (uint64_t left = bytes; left > 0 && code == 0;) {
        uint64_t filled = 0;
        while (filled + piece <= CHUNK_BYTES && filled < left) {
            memcpy(s->chunk + filled, p->blocks + next_word(state) % places * info->block_bytes,
                   (size_t)piece);
            filled += piece;
        }
        filled = filled < left ? filled : left;
        code = sl_gguf_writer_data(s->writer, s->chunk, filled, error);
        left -= filled;
        s->done += filled;
        code = code ? code : sl_file_report(s->progress, s->file, s->done, s->total, error);
    }
    return code;
}

static bool is_decay(const sl_gguf_tensor_fact *fact) {
    return fact->id == SL_TENSOR_DELTA_DECAY || fact->id == SL_TENSOR_SSM_DECAY;
}

/* Around which value, and how far: norms let activations pass, decay is slow, taps and biases are small. */
static void vector_shape(const sl_gguf_tensor_fact *fact, float *middle, float *deviation) {
    const bool norm = strstr(fact->name, "norm") != NULL || strstr(fact->name, "scale") != NULL ||
                      fact->id == SL_TENSOR_ROPE_FACTORS;
    const bool chooses = fact->id == SL_TENSOR_CHOOSING_BIAS || fact->id == SL_TENSOR_ROUTER_BIAS;
    const bool convolves = fact->id == SL_TENSOR_DELTA_CONV || fact->id == SL_TENSOR_SSM_CONV ||
                           fact->id == SL_TENSOR_SHORT_CONV;
    *middle = norm || fact->id == SL_TENSOR_SSM_SKIP ? 1.0f : is_decay(fact) ? -0.5f : 0.0f;
    *deviation = fact->id == SL_TENSOR_ROPE_FACTORS ? 0.0f : chooses ? 0.01f : convolves ? 0.5f : 0.1f;
}

/* ---- routers that prefer some experts
 * ------------------------------------------------------------------------------------------- */

enum { PREFERRED = 5 }; /* of so many neighbours one, another one in each layer */

/* Beyond which a normal number is with that probability, 0 to 1, by bisection. */
static double normal_quantile(double probability) {
    double low = -9, high = 9;
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;
        if (0.5 * erfc(middle / sqrt(2)) > probability) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* A row's logits are nearly normal, of deviation 1: what those of the preferred experts are multiplied by, so
 * that they are as often among the best of all as the options ask for. */
static int preferred_factor(const synth *s, double *factor, sl_error *error) {
    const sl_config *c = s->config;
    const double skew = s->options->expert_skew, preferred = (c->experts + PREFERRED - 1) / PREFERRED;
    *factor = 1;
    if (skew == 0 || c->experts == 0) {
        return 0;
    }
    const double of_preferred = normal_quantile(skew * c->experts_used / preferred);
    const double of_others = normal_quantile((1 - skew) * c->experts_used / (c->experts - preferred));
    *factor = of_others / of_preferred;
    if (!(skew > 0 && skew < 1) || !(of_preferred > 0) || !(of_others > 0)) {
        return sl_fail(error, SL_ERR_INVALID,
                       "%s: expert skew is %g: %g of %d experts cannot get as many of %d choices", s->file,
                       skew, preferred, c->experts, c->experts_used);
    }
    return 0;
}

/* With a preference. */
static int write_router(synth *s, const sl_gguf_tensor_fact *fact, uint64_t *state, sl_error *error) {
    const uint64_t width = fact->dims[0];
    const float deviation = 1 / sqrtf((float)width);
    double factor;
    int code = preferred_factor(s, &factor, error);
    for (uint64_t expert = 0; expert < fact->dims[1] && code == 0; expert++) {
        const bool preferred = expert % PREFERRED == (uint64_t)fact->layer % PREFERRED;
        for (uint64_t i = 0; i < width; i++) {
            s->values[i] = next_normal(state) * deviation * (preferred ? (float)factor : 1);
        }
        code = sl_gguf_writer_data(s->writer, s->values, width * sizeof *s->values, error);
        s->done += width * sizeof *s->values;
    }
    return code;
}

static int write_vector(synth *s, const sl_gguf_tensor_fact *fact, uint64_t elements, uint64_t *state,
                        sl_error *error) {
    float middle, deviation;
    vector_shape(fact, &middle, &deviation);
    int code = 0;
    for (uint64_t left = elements; left > 0 && code == 0;) {
        const uint64_t count = left < PATTERN_ELEMENTS ? left : PATTERN_ELEMENTS;
        for (uint64_t i = 0; i < count; i++) {
            const float value = middle + deviation * next_normal(state);
            s->values[i] = is_decay(fact) && value > -0.01f ? -0.01f : value;
        }
        code = sl_gguf_writer_data(s->writer, s->values, count * sizeof *s->values, error);
        left -= count;
        s->done += count * sizeof *s->values;
    }
    return code;
}

/* ---- a head that is right
 * ------------------------------------------------------------------------------------------- */

/* What a block adds to the stream. */
static bool leaves_layer(sl_tensor_id id) {
    return id == SL_TENSOR_OUTPUT || id == SL_TENSOR_DELTA_OUTPUT || id == SL_TENSOR_DOWN ||
           id == SL_TENSOR_DOWN_EXPERTS || id == SL_TENSOR_SHARED_DOWN;
}

/* The stream stays the token's embedding, in the model and in the head, which reads that and not the row in
 * front of it. */
static bool is_settled(const sl_gguf_tensor_fact *fact) {
    return leaves_layer(fact->id) || fact->id == SL_TENSOR_DRAFT_JOIN || fact->id == SL_TENSOR_DRAFT_NORM ||
           fact->id == SL_TENSOR_DRAFT_EMBED_NORM || fact->id == SL_TENSOR_FINAL_NORM;
}

static int write_settled(synth *s, const sl_gguf_tensor_fact *fact, const sl_gguf_shape *shape,
                         uint64_t elements, sl_error *error) {
    const uint64_t width = fact->dims[0];
    const sl_qtype_info *info = sl_qtype_get(shape->type);
    const uint64_t bytes = width / info->block_elements * info->block_bytes;
    if (width > PATTERN_ELEMENTS || bytes > CHUNK_BYTES) {
        return sl_fail(error, SL_ERR_LIMIT, "%s: tensor %s is too wide", s->file, fact->name);
    }
    int code = 0;
    for (uint64_t row = 0; row < elements / width && code == 0; row++) {
        for (uint64_t i = 0; i < width; i++) {
            s->values[i] = fact->vector || (fact->id == SL_TENSOR_DRAFT_JOIN && i == row) ? 1.0f : 0.0f;
        }
        info->encode(s->values, s->chunk, width);
        code = sl_gguf_writer_data(s->writer, s->chunk, bytes, error);
        s->done += bytes;
        code = code ? code : sl_file_report(s->progress, s->file, s->done, s->total, error);
    }
    return code;
}

/* ---- the file
 * ------------------------------------------------------------------------------------------------------ */

static int tensor_shape(const synth *s, const sl_gguf_tensor_fact *fact, sl_gguf_shape *shape,
                        uint64_t *elements, uint64_t *bytes, sl_error *error) {
    const bool exact = fact->vector || fact->id == SL_TENSOR_ROUTER || fact->id == SL_TENSOR_SHARED_SHARE;
    *elements = 1;
    const bool of_heads = fact->id == SL_TENSOR_LATENT_KEYS || fact->id == SL_TENSOR_LATENT_VALUES;
    const sl_qtype type = fact->dim_count == 3 && !of_heads && s->options->expert_type
                              ? *s->options->expert_type
                              : s->options->type;
    shape->type = exact ? SL_QTYPE_F32 : sl_mixture_fallback(type, fact->dims[0]);
    shape->dim_count = fact->dim_count;
    memcpy(shape->dims, fact->dims, sizeof shape->dims);
    for (uint32_t i = 0; i < fact->dim_count; i++) {
        *elements *= fact->dims[i]; /* config.h: products of sizes fit */
    }
    return sl_qtype_bytes(shape->type, *elements, bytes)
               ? 0
               : sl_fail(error, SL_ERR_LIMIT, "%s: tensor %s is too large", s->file, fact->name);
}

/* A table that would be the model's once more. */
static bool is_left_out(const sl_gguf_tensor_fact *fact) {
    return fact->stand_in && !fact->vector;
}

static int declare_tensor(void *context, const sl_gguf_tensor_fact *fact, sl_error *error) {
    synth *s = context;
    if (is_left_out(fact)) {
        return 0;
    }
    sl_gguf_shape shape;
    uint64_t elements, bytes;
    const int code = tensor_shape(s, fact, &shape, &elements, &bytes, error);
    if (code) {
        return code;
    }
    s->total += bytes;
    return sl_gguf_writer_tensor(s->writer, fact->name, &shape, error);
}

static int write_tensor(void *context, const sl_gguf_tensor_fact *fact, sl_error *error) {
    synth *s = context;
    if (is_left_out(fact)) {
        return 0;
    }
    sl_gguf_shape shape;
    uint64_t elements, bytes;
    const int code = tensor_shape(s, fact, &shape, &elements, &bytes, error);
    if (code) {
        return code;
    }
    uint64_t state = sl_hash64(fact->name, strlen(fact->name), s->options->seed);
    if (fact->id == SL_TENSOR_ROUTER && s->options->expert_skew != 0) {
        return write_router(s, fact, &state, error);
    }
    if (s->config->draft_layers > 0 && s->options->head == SL_SYNTH_HEAD_AGREEING && is_settled(fact)) {
        return write_settled(s, fact, &shape, elements, error);
    }
    return fact->vector ? write_vector(s, fact, elements, &state, error)
                        : write_matrix(s, fact, &shape, bytes, &state, error);
}

static int write_file(synth *s, const preset *p, sl_error *error) {
    s->values = sl_alloc_zero(PATTERN_ELEMENTS, sizeof *s->values);
    s->chunk = sl_alloc(CHUNK_BYTES);
    int code = s->values && s->chunk ? 0 : no_memory(s, error);
    const sl_output_rules rules = {.replace = !s->options->keep};
    code = code ? code : sl_gguf_writer_open(s->file, &rules, &s->writer, error);
    code = code ? code : sl_config_write_gguf_metadata(s->config, s->writer, error);
    code = code ? code : sl_gguf_writer_string(s->writer, "general.name", sl_view_of(p->title), error);
    code = code ? code : sl_file_write_type(s->writer, sl_qtype_get(s->options->type)->file_type, error);
    code = code ? code : write_vocabulary(s->writer, s->config->vocabulary, s->file, error);
    code = code ? code : sl_config_tensors(s->config, declare_tensor, s, error);
    code = code ? code : sl_gguf_writer_begin(s->writer, NULL, error);
    code = code ? code : sl_config_tensors(s->config, write_tensor, s, error);
    return code ? code : sl_gguf_writer_finish(s->writer, error);
}

int sl_synth_file(const char *output, const sl_synth_options *options, const sl_file_progress *progress,
                  sl_error *error) {
    const preset *p = find_preset(options->preset, error);
    if (!p) {
        return SL_ERR_INVALID;
    }
    sl_config config;
    int code = make_config(p, options, output, &config, error);
    if (code) {
        return code;
    }
    synth s = {.file = output, .options = options, .config = &config, .progress = progress};
    code = write_file(&s, p, error);
    for (int i = 0; i < s.pattern_count; i++) {
        sl_free(s.patterns[i].blocks);
    }
    sl_free(s.values);
    sl_free(s.chunk);
    sl_gguf_writer_free(s.writer);
    return code;
}
