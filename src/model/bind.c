#include "model/bind.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "format/index.h"
#include "model/scaled.h"
#include "quant/blocks.h"

#include <stdio.h>

void sl_binding_free(sl_binding *binding) {
    sl_free(binding->layers);
    sl_free(binding->used);
    binding->layers = NULL;
    binding->used = NULL;
    binding->tensors = 0;
}

/* ---- looking up ---- */

/* Where checkpoints put the text model: alone, and inside a multimodal one (transformers 5, then 4). */
static const struct {
    const char *trunk, *head;
} PREFIXES[] = {{"model.", ""},
                {"backbone.", ""}, /* Nemotron-H */
                {"model.language_model.", ""},
                {"language_model.model.", "language_model."},
                /* of models without a head, and encoders under the name of their kind */
                {"", ""},
                {"bert.", ""},
                {"roberta.", ""}};

typedef struct binder {
    const sl_config *config;
    const sl_source *source;
    const char *file;
    const char *trunk, *head; /* prefixes of Hugging Face names */
    sl_hf_quantization quantization;
    bool told; /* of weights that become BF16 */
    sl_program *program;
    sl_owned *owned;
    sl_binding *binding;
    size_t used_capacity;
    sl_error *error;
} binder;

static int no_memory(const binder *b) {
    return sl_fail(b->error, SL_ERR_NOMEM, "%s: out of memory for weights", b->file);
}

/* The name in the source; empty when its naming has no such tensor. */
static void tensor_name(const binder *b, const sl_tensor_fact *fact, int32_t expert,
                        char name[SL_TENSOR_NAME_SIZE]) {
    char plain[SL_TENSOR_NAME_SIZE];
    const char *format = b->config->naming == SL_NAMING_GGUF ? fact->gguf : fact->hf;
    name[0] = '\0';
    if (!format) {
        return;
    }
    if (b->config->naming == SL_NAMING_GGUF) {
        sl_tensor_name(format, fact->layer, expert, name);
        return;
    }
    const char *own = fact->layer >= b->config->layers ? b->config->family->hf_draft : NULL;
    sl_tensor_name(format + (*format == '^'), own ? fact->layer - b->config->layers : fact->layer, expert,
                   plain);
    snprintf(name, SL_TENSOR_NAME_SIZE, "%s%s%s", own || *format == '^' ? b->head : b->trunk, own ? own : "",
             plain);
}

/* Whether a weight of this layer was made of it, of which another part is taken now. */
static bool noted_lately(const sl_binding *binding, const sl_tensor *tensor) {
    for (size_t i = 1; i <= 32 && i <= binding->tensors; i++) {
        if (binding->used[binding->tensors - i] == tensor) {
            return true;
        }
    }
    return false;
}

/* `elements` of a weight of type `type`; 0 for what belongs to one. */
static int note_used(binder *b, const sl_tensor *tensor, sl_qtype type, uint64_t elements) {
    sl_binding *binding = b->binding;
    if (noted_lately(binding, tensor)) {
        return 0;
    }
    if (binding->tensors == b->used_capacity) {
        const size_t capacity = b->used_capacity ? b->used_capacity * 2 : 256;
        const sl_tensor **used = sl_realloc(binding->used, capacity * sizeof *used);
        if (!used) {
            return no_memory(b);
        }
        binding->used = used;
        b->used_capacity = capacity;
    }
    binding->used[binding->tensors++] = tensor;
    binding->types[type].tensors += elements > 0;
    binding->types[type].elements += elements;
    binding->types[type].bytes += tensor->bytes;
    return 0;
}

static void print_shape(char *text, size_t size, const uint64_t dims[SL_TENSOR_DIMS]) {
    int last = SL_TENSOR_DIMS - 1;
    while (last > 0 && dims[last] == 1) {
        last--;
    }
    size_t length = 0;
    for (text[0] = '\0'; last >= 0 && length < size - 24; last--) {
        length += (size_t)snprintf(text + length, size - length, "[%llu]", (unsigned long long)dims[last]);
    }
}

static int check_shape(const binder *b, const sl_tensor_fact *fact, const sl_tensor *tensor,
                       int32_t experts) {
    const bool vectors = fact->kind == SL_TENSOR_EXPERT_VECTOR; /* [experts][columns] */
    const uint64_t wanted[SL_TENSOR_DIMS] = {(uint64_t)fact->columns,
                                             (uint64_t)(vectors ? experts : fact->rows),
                                             (uint64_t)(vectors ? 1 : experts), 1};
    const uint64_t kernel[SL_TENSOR_DIMS] = {(uint64_t)fact->columns, 1, (uint64_t)fact->rows, 1};
    const uint64_t flat[SL_TENSOR_DIMS] = {(uint64_t)fact->columns * (uint64_t)fact->rows, 1, 1, 1};
    char found_text[120], wanted_text[120];
    if (memcmp(tensor->dims, wanted, sizeof wanted) == 0 ||
        (fact->kind == SL_TENSOR_FLAT && memcmp(tensor->dims, flat, sizeof flat) == 0) ||
        (fact->kind == SL_TENSOR_KERNEL && memcmp(tensor->dims, kernel, sizeof kernel) == 0)) {
        return 0;
    }
    print_shape(found_text, sizeof found_text, tensor->dims);
    print_shape(wanted_text, sizeof wanted_text, wanted);
    return sl_fail(b->error, SL_ERR_FORMAT, "%s: tensor %s has the shape %s, the config asks for %s", b->file,
                   tensor->name, found_text, wanted_text);
}

/* Finds, checks and marks one tensor. */
static int take(binder *b, const sl_tensor_fact *fact, int32_t expert, int32_t experts,
                const sl_tensor **tensor) {
    char name[SL_TENSOR_NAME_SIZE];
    tensor_name(b, fact, expert, name);
    int code = sl_source_tensor(b->source, name, tensor, b->error);
    if (code == SL_ERR_NOT_FOUND) {
        return sl_fail(b->error, SL_ERR_FORMAT, "%s: tensor %s is missing", b->file, name);
    }
    code = code ? code : check_shape(b, fact, *tensor, experts);
    return code ? code : note_used(b, *tensor, (*tensor)->type, (*tensor)->elements);
}

/* Where a tensor stands: itself, or the one that it is a part of, or in whose order it is not. */
typedef struct place {
    const sl_tensor_fact *fact; /* in the file */
    const sl_tensor_part *part; /* NULL: all its rows */
    bool turned;                /* [columns][rows] in the file, unless it is of blocks */
    int32_t rows;               /* that are taken */
} place;

/* A matrix in the file, or what makes one. */
typedef struct matrix {
    const char *name;
    sl_qtype type;
    uint64_t bytes;
    const sl_tensor *tensor; /* NULL: the other */
    sl_scaled scaled;
} matrix;

/* Once, of the first. */
static void tell_of_bf16(binder *b, const sl_tensor_fact *fact, const char *name) {
    if (!b->told) {
        b->told = true;
        sl_log(SL_LOG_WARNING,
               "%s: %s has %d columns, not a multiple of %d: rounded to bf16, as all that have not", b->file,
               name, fact->columns, SL_FP8_128_ELEMENTS);
    }
}

/* A matrix that has no scales but an order of its own: *there becomes true if it has. */
static int take_ordered(binder *b, const place *p, const sl_scaled_query *query, const sl_tensor **tensor,
                        matrix *m, bool *there) {
    sl_tensor_fact fact = *p->fact;
    if (p->turned) {
        fact.rows = p->fact->columns;
        fact.columns = p->fact->rows;
    }
    const int code = take(b, &fact, 0, query->experts, tensor);
    if (code || (!p->turned && !p->part)) {
        return code;
    }
    if (p->turned && sl_qtype_get((*tensor)->type)->block_elements != 1) {
        return sl_fail(b->error, SL_ERR_UNSUPPORTED, "%s: tensor %s is %s: only floats can be turned",
                       b->file, (*tensor)->name, sl_qtype_get((*tensor)->type)->name);
    }
    sl_scaled_rows(query, *tensor, p->turned, &m->scaled);
    *there = true;
    return 0;
}

/* The tensor "....scale" beside this matrix is one of the model's own. */
static bool has_own_scale(const binder *b, const sl_tensor_fact *fact) {
    const char *end = fact->gguf ? strstr(fact->gguf, ".weight") : NULL;
    for (int id = 0; end && id < SL_TENSOR_COUNT; id++) {
        sl_tensor_fact other;
        const size_t stem = (size_t)(end - fact->gguf);
        if (sl_config_tensor(b->config, (sl_tensor_id)id, fact->layer < 0 ? 0 : fact->layer, &other) &&
            other.gguf && strncmp(other.gguf, fact->gguf, stem) == 0 &&
            strcmp(other.gguf + stem, ".scale") == 0) {
            return true;
        }
    }
    return false;
}

/* Finds, checks and marks one matrix, or a block of `experts` of them. */
static int take_matrix(binder *b, const place *p, int32_t expert, int32_t experts, matrix *m) {
    const sl_tensor_fact *fact = p->fact;
    char name[SL_TENSOR_NAME_SIZE];
    const sl_tensor *tensor = NULL;
    bool there;
    tensor_name(b, fact, expert, name);
    const sl_scaled_query query = {.source = b->source,
                                   .quantization = &b->quantization,
                                   .name = name,
                                   .experts = experts,
                                   .rows = fact->rows,
                                   .columns = fact->columns,
                                   .own_scale = has_own_scale(b, fact),
                                   .part = p->part};
    int code = sl_scaled_find(&query, &m->scaled, &there, b->error);
    const bool scaled = there;
    const bool blocks =
        scaled && b->config->naming == SL_NAMING_GGUF; /* whose codes are a tensor as any other */
    if (code == 0 && scaled && p->turned && m->scaled.kind != SL_SCALED_MXFP4) {
        code = sl_fail(b->error, SL_ERR_UNSUPPORTED,
                       "%s: tensor %s: experts of this family are supported in MXFP4 and as floats", b->file,
                       m->scaled.codes->name);
    } else if (code == 0 && blocks) {
        code = take(b, fact, expert, experts, &tensor);
    } else if (code == 0 && !scaled) {
        code = expert == 0 ? take_ordered(b, p, &query, &tensor, m, &there)
                           : take(b, fact, expert, experts, &tensor);
    }
    if (code) {
        return code;
    }
    const bool taken = blocks || !scaled;
    const sl_tensor *const parts[] = {
        taken ? NULL : m->scaled.codes, m->scaled.scales,     m->scaled.whole,     m->scaled.integers.zeros,
        m->scaled.integers.order,       m->scaled.ignored[0], m->scaled.ignored[1]};
    const uint64_t elements = (uint64_t)fact->rows * (uint64_t)fact->columns * (uint64_t)experts;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && code == 0; i++) {
        code = parts[i] ? note_used(b, parts[i], m->scaled.type, i == 0 ? elements : 0) : 0;
    }
    m->tensor = there ? NULL : tensor;
    m->name = there ? m->scaled.codes->name : tensor->name;
    m->type = there ? m->scaled.type : tensor->type;
    m->bytes = there ? 0 : tensor->bytes;
    if (scaled && m->type == SL_QTYPE_BF16) {
        tell_of_bf16(b, fact, m->name);
    }
    return code || !there || sl_scaled_bytes(&m->scaled, &m->bytes) ? code : no_memory(b);
}

static bool is_there(const binder *b, const sl_tensor_fact *fact) {
    char name[SL_TENSOR_NAME_SIZE];
    const sl_tensor *tensor;
    tensor_name(b, fact, 0, name);
    if (name[0] == '\0' || sl_source_tensor(b->source, name, &tensor, NULL) != SL_ERR_NOT_FOUND) {
        return name[0] != '\0';
    }
    const sl_hf *hf = sl_source_hf(b->source);
    return hf && sl_scaled_is_there(hf, name);
}

/* ---- adding ---- */

static int add_weight(const binder *b, const sl_weight *weight, int32_t *index) {
    *index = sl_program_weight(b->program, weight);
    return *index == SL_NONE ? no_memory(b) : 0;
}

/* A matrix, or a block of experts, that stays in the map if its address allows. */
static int add_mapped(const binder *b, const sl_tensor_fact *fact, const sl_tensor *tensor, int32_t *index) {
    /* Blocks of quantised types are packed structs and may lie anywhere. */
    const sl_qtype_info *info = sl_qtype_get(tensor->type);
    const uintptr_t alignment = info->block_elements == 1 ? info->block_bytes : 1;
    const void *data = tensor->data;
    if ((uintptr_t)data % alignment != 0) {
        void *copy = sl_owned_alloc(b->owned, tensor->bytes);
        if (!copy || !sl_owned_add_copy(b->owned, tensor, NULL, copy)) {
            return no_memory(b);
        }
        data = copy;
    }
    const sl_weight weight = {.name = tensor->name,
                              .type = tensor->type,
                              .experts = fact->experts,
                              .rows = fact->rows,
                              .columns = fact->columns,
                              .data = data,
                              .bytes = tensor->bytes};
    return add_weight(b, &weight, index);
}

static int convert(const binder *b, const sl_tensor *tensor, const float **values) {
    uint64_t bytes;
    float *copy = sl_mul_u64(tensor->elements, sizeof *copy, &bytes) ? sl_owned_alloc(b->owned, bytes) : NULL;
    if (!copy) {
        return no_memory(b);
    }
    sl_qtype_get(tensor->type)->decode(tensor->data, copy, tensor->elements);
    *values = copy;
    return 0;
}

static int add_floats(const binder *b, const char *name, const float *values, int32_t rows, int32_t columns,
                      int32_t *index) {
    const sl_weight weight = {.name = name,
                              .type = SL_QTYPE_F32,
                              .experts = 1,
                              .rows = rows,
                              .columns = columns,
                              .data = values,
                              .bytes = (uint64_t)rows * (uint64_t)columns * sizeof *values};
    return add_weight(b, &weight, index);
}

/* A vector for each expert, or a part of each. */
static int add_vectors(binder *b, const place *p, int32_t *index) {
    const sl_tensor_fact *fact = p->fact;
    const int32_t columns = p->part ? sl_part_rows(p->part) : fact->columns;
    const uint64_t bytes = (uint64_t)fact->experts * (uint64_t)columns * sizeof(float);
    const sl_tensor *tensor;
    const float *values;
    int code = take(b, fact, 0, fact->experts, &tensor);
    code = code ? code : convert(b, tensor, &values);
    if (code == 0 && p->part) {
        float *part = sl_owned_alloc(b->owned, bytes);
        for (int64_t i = 0; part && i < (int64_t)fact->experts * columns; i++) {
            const int64_t expert = i / columns;
            part[i] = values[expert * fact->columns + sl_part_row(p->part, (int32_t)(i % columns))];
        }
        values = part;
        code = part ? 0 : no_memory(b);
    }
    const sl_weight weight = {.name = code ? NULL : tensor->name,
                              .type = SL_QTYPE_F32,
                              .experts = fact->experts,
                              .rows = 1,
                              .columns = columns,
                              .data = values,
                              .bytes = bytes};
    return code ? code : add_weight(b, &weight, index);
}

static int copy_matrix(const binder *b, const matrix *m, unsigned char *to) {
    return sl_owned_add_copy(b->owned, m->tensor, &m->scaled, to) ? 0 : no_memory(b);
}

/* A matrix, or a block of experts, that stays in the map if it can. */
static int add_matrix(binder *b, const place *p, int32_t *index) {
    const sl_tensor_fact *fact = p->fact;
    matrix m;
    const int code = take_matrix(b, p, 0, fact->experts, &m);
    if (code || m.tensor) {
        return code ? code : add_mapped(b, fact, m.tensor, index);
    }
    unsigned char *blocks = sl_owned_alloc(b->owned, m.bytes);
    if (!blocks) {
        return no_memory(b);
    }
    const sl_weight weight = {.name = m.name,
                              .type = m.type,
                              .experts = fact->experts,
                              .rows = p->rows,
                              .columns = fact->columns,
                              .data = blocks,
                              .bytes = m.bytes,
                              .scale_rows = sl_scaled_scale_rows(&m.scaled)};
    const int copied = copy_matrix(b, &m, blocks);
    return copied ? copied : add_weight(b, &weight, index);
}

/* One tensor per expert: copied side by side. */
static int add_gathered(binder *b, const sl_tensor_fact *fact, int32_t *index) {
    matrix m, first = {0};
    char name[SL_TENSOR_NAME_SIZE];
    unsigned char *block = NULL;
    uint64_t bytes = 0;
    for (int32_t expert = 0; expert < fact->experts; expert++) {
        int code = take_matrix(b, &(place){.fact = fact, .rows = fact->rows}, expert, 1, &m);
        if (code) {
            return code;
        }
        if (expert == 0) {
            first = m;
            if (!sl_mul_u64(m.bytes, (uint64_t)fact->experts, &bytes) ||
                !(block = sl_owned_alloc(b->owned, bytes))) {
                return no_memory(b);
            }
        }
        if (m.type != first.type) {
            return sl_fail(b->error, SL_ERR_UNSUPPORTED,
                           "%s: tensor %s is %s, but %s is %s: experts must be of one type", b->file, m.name,
                           sl_qtype_get(m.type)->name, first.name, sl_qtype_get(first.type)->name);
        }
        code = copy_matrix(b, &m, block + (uint64_t)expert * m.bytes);
        if (code) {
            return code;
        }
    }
    /* "...experts.0.gate_proj.weight" is expert 0's; the block's name has a star in its place. */
    const char *number = strstr(first.name, "experts.") + strlen("experts.");
    snprintf(name, sizeof name, "%.*s*%s", (int)(number - first.name), first.name, number + 1);
    const sl_weight weight = {.name = name,
                              .type = first.type,
                              .experts = fact->experts,
                              .rows = fact->rows,
                              .columns = fact->columns,
                              .data = block,
                              .bytes = bytes,
                              .scale_rows = sl_scaled_scale_rows(&first.scaled)};
    return add_weight(b, &weight, index);
}

static int add_tensor(binder *b, const place *p, int32_t *index) {
    const sl_tensor_fact *fact = p->fact;
    const sl_tensor *tensor;
    const float *values;
    const bool per_expert = fact->kind == SL_TENSOR_EXPERTS && b->config->naming == SL_NAMING_HF &&
                            strstr(fact->hf, "experts.%d") != NULL;
    if (per_expert) {
        return add_gathered(b, fact, index);
    }
    if (fact->kind == SL_TENSOR_MATRIX || fact->kind == SL_TENSOR_EXPERTS || fact->kind == SL_TENSOR_HEADS) {
        return add_matrix(b, p, index);
    }
    if (fact->kind == SL_TENSOR_EXPERT_VECTOR) {
        return add_vectors(b, p, index);
    }
    int code = take(b, fact, 0, fact->experts, &tensor);
    code = code ? code : convert(b, tensor, &values);
    const bool flat = fact->kind == SL_TENSOR_FLAT;
    const int32_t rows = flat ? 1 : fact->rows, columns = flat ? fact->rows * fact->columns : fact->columns;
    return code ? code : add_floats(b, tensor->name, values, rows, columns, index);
}

/* ---- RoPE ---- */

typedef struct frequencies {
    const sl_rope_config *rope;
    const float *factors; /* [dims / 2], or NULL */
    int32_t dims;
    const char *name;
} frequencies;

static int add_frequencies(const binder *b, const frequencies *f, int32_t *index) {
    const int32_t pairs = f->dims / 2;
    float *values = sl_owned_alloc(b->owned, (uint64_t)pairs * sizeof *values);
    if (!values) {
        return no_memory(b);
    }
    sl_rope_frequencies(f->rope, f->dims, values);
    for (int32_t i = 0; f->factors && i < pairs; i++) {
        values[i] /= f->factors[i];
    }
    return add_floats(b, f->name, values, 1, pairs, index);
}

/* The divisors in one tensor. */
static int take_factors(binder *b, const sl_tensor_fact *fact, const float **factors) {
    const sl_tensor *tensor;
    int code = take(b, fact, 0, 1, &tensor);
    code = code ? code : convert(b, tensor, factors);
    for (int32_t i = 0; code == 0 && i < fact->columns; i++) {
        if (!((*factors)[i] > 0)) {
            return sl_fail(b->error, SL_ERR_FORMAT, "%s: tensor %s: element %d must be above 0", b->file,
                           tensor->name, i);
        }
    }
    return code;
}

/* What RoPE's frequencies are divided by besides their scaling; NULL for nothing. */
static int bind_factors(binder *b, const float **factors) {
    const sl_config *config = b->config;
    const bool is_long = sl_config_is_long(config);
    sl_tensor_fact fact, other;
    if (sl_config_tensor(config, SL_TENSOR_ROPE_FACTORS, 0, &fact)) {
        return take_factors(b, &fact, factors);
    }
    if (!sl_config_tensor(config, is_long ? SL_TENSOR_ROPE_LONG : SL_TENSOR_ROPE_SHORT, 0, &fact)) {
        return 0;
    }
    if (config->naming == SL_NAMING_HF) {
        *factors = is_long ? config->long_factors : config->short_factors;
        return 0;
    }
    const sl_tensor *unread; /* marked as used: it belongs to the model */
    sl_config_tensor(config, is_long ? SL_TENSOR_ROPE_SHORT : SL_TENSOR_ROPE_LONG, 0, &other);
    const int code = take(b, &other, 0, 1, &unread);
    return code ? code : take_factors(b, &fact, factors);
}

static int bind_rope(binder *b) {
    const sl_config *config = b->config;
    const float *factors = NULL;
    int code = bind_factors(b, &factors);
    if (code || !sl_config_turns(config)) {
        return code;
    }
    if (memchr(config->kinds, SL_LAYER_FULL, (size_t)config->layers)) {
        const frequencies full = {&config->rope, factors, config->rope_dims, "rope"};
        code = add_frequencies(b, &full, &b->binding->rope);
    }
    if (code == 0 && memchr(config->kinds, SL_LAYER_WINDOW, (size_t)config->layers)) {
        const int32_t dims = config->window_rope_dims > 0 ? config->window_rope_dims : config->rope_dims;
        const frequencies window = {&config->local_rope, config->family->local_rope ? NULL : factors, dims,
                                    "rope.window"};
        code = add_frequencies(b, &window, &b->binding->local_rope);
    }
    return code;
}

/* ---- all of it ---- */

/* A tensor that has its rows among those of another one, which the file has, or its own in another order. */
static bool is_part(const binder *b, sl_tensor_id id, int32_t layer, sl_tensor_fact *fact,
                    sl_tensor_part *part) {
    sl_tensor_fact other;
    if (!sl_config_part(b->config, id, part)) {
        return false;
    }
    sl_config_tensor(b->config, part->of, layer, &other);
    if (part->of != id && !is_there(b, &other)) {
        return false;
    }
    *fact = other;
    return true;
}

/* The tensor that a file may have in place of this one and of another, or under another name;
 * SL_TENSOR_COUNT: none. */
static sl_tensor_id fused_of(const binder *b, sl_tensor_id id) {
    const bool checkpoint = b->config->naming == SL_NAMING_HF && b->config->family->hf_fused_gate_up;
    switch (id) {
    case SL_TENSOR_GATE_EXPERTS:
    case SL_TENSOR_UP_EXPERTS:
        return SL_TENSOR_FUSED_EXPERTS;
    case SL_TENSOR_DOWN_EXPERTS:
        return SL_TENSOR_FUSED_DOWN_EXPERTS;
    case SL_TENSOR_GATE:
    case SL_TENSOR_UP:
        return checkpoint ? SL_TENSOR_GATE_UP : SL_TENSOR_COUNT;
    case SL_TENSOR_SHARED_GATE:
    case SL_TENSOR_SHARED_UP:
        return checkpoint ? SL_TENSOR_SHARED_GATE_UP : SL_TENSOR_COUNT;
    default:
        return SL_TENSOR_COUNT;
    }
}

/* A file with gate and up rows in one tensor has that in place of the two. */
static bool replaced(const binder *b, sl_tensor_id id, int32_t layer, sl_tensor_fact *fact) {
    sl_tensor_fact fused;
    const sl_tensor_id other = fused_of(b, id);
    if (other == SL_TENSOR_COUNT) {
        return false;
    }
    sl_config_tensor(b->config, other, layer, &fused);
    if (!is_there(b, &fused)) {
        return false;
    }
    *fact = fused;
    return true;
}

/* Another name that folders of this family give a tensor, if this one has it. */
static void respell(const binder *b, sl_tensor_fact *fact) {
    const sl_family *family = b->config->family;
    for (int i = 0; i < SL_FAMILY_ALIASES && family->hf_also[i].name; i++) {
        sl_tensor_fact other = *fact;
        other.hf = family->hf_also[i].name;
        if (family->hf_also[i].id == fact->id && b->config->naming == SL_NAMING_HF && is_there(b, &other)) {
            fact->hf = other.hf;
            return;
        }
    }
}

/* The model's table that stands in where the layer has none; NULL for what is no table, or has scales. */
static const sl_tensor *stood_for(const binder *b, sl_tensor_id id) {
    const sl_tensor_id embed = SL_TENSOR_EMBED, head = b->config->tied ? embed : SL_TENSOR_HEAD;
    const sl_tensor_id of = id == SL_TENSOR_DRAFT_EMBED  ? embed
                            : id == SL_TENSOR_DRAFT_HEAD ? head
                                                         : SL_TENSOR_COUNT;
    char name[SL_TENSOR_NAME_SIZE];
    sl_tensor_fact fact;
    const sl_tensor *tensor = NULL;
    if (of == SL_TENSOR_COUNT) {
        return NULL;
    }
    sl_config_tensor(b->config, of, 0, &fact);
    tensor_name(b, &fact, 0, name);
    return sl_source_tensor(b->source, name, &tensor, NULL) == 0 ? tensor : NULL;
}

/* A few rows speak for all of them: tables are of gigabytes, and what is drafted is checked. */
static bool is_same(const sl_tensor *a, const sl_tensor *b) {
    const uint64_t rows = a->dims[1], bytes = rows > 0 ? a->bytes / rows : 0, step = (rows + 255) / 256;
    if (a->type != b->type || a->bytes != b->bytes || memcmp(a->dims, b->dims, sizeof a->dims) != 0) {
        return false;
    }
    for (uint64_t row = 0; row < rows; row += step) {
        if (memcmp((const unsigned char *)a->data + row * bytes, (const unsigned char *)b->data + row * bytes,
                   bytes) != 0) {
            return false;
        }
    }
    return true;
}

/* Files may lack it, or have the model's once more: *stands becomes true, the model's own stands in. */
static int stands_in(binder *b, const sl_tensor_fact *fact, bool *stands) {
    const sl_tensor *own, *model = stood_for(b, fact->id);
    char name[SL_TENSOR_NAME_SIZE];
    tensor_name(b, fact, 0, name);
    *stands = !is_there(b, fact);
    if (*stands || !model || sl_source_tensor(b->source, name, &own, NULL) != 0 || !is_same(own, model)) {
        return 0;
    }
    *stands = true;
    return note_used(b, own, own->type, 0);
}

static int bind_one(binder *b, sl_tensor_id id, int32_t layer) {
    sl_tensor_fact fact;
    const bool wanted = sl_config_tensor(b->config, id, layer, &fact);
    respell(b, &fact);
    if (!wanted || id == SL_TENSOR_ROPE_FACTORS || id == SL_TENSOR_ROPE_LONG || id == SL_TENSOR_ROPE_SHORT) {
        return 0;
    }
    if (fact.kind == SL_TENSOR_NUMBER) { /* the config has it */
        const sl_tensor *unread;
        return take(b, &fact, 0, 1, &unread);
    }
    if (fact.stand_in) {
        bool stands;
        const int code = stands_in(b, &fact, &stands);
        if (code || stands) {
            return code;
        }
    }
    int32_t *indices = fact.layer == SL_NONE ? b->binding->model : b->binding->layers[layer];
    const int32_t rows = fact.rows;
    const bool of_heads = fact.kind == SL_TENSOR_HEADS;
    sl_tensor_part part;
    const bool partly = is_part(b, id, layer, &fact, &part);
    const bool fused = !partly && replaced(b, id, layer, &fact);
    const place p = {.fact = &fact,
                     .part = partly ? &part : NULL,
                     .turned =
                         b->config->naming == SL_NAMING_HF && b->config->family->hf_experts_turned &&
                         (fact.id == SL_TENSOR_FUSED_EXPERTS || fact.id == SL_TENSOR_FUSED_DOWN_EXPERTS),
                     .rows = !partly    ? fact.rows
                             : of_heads ? sl_part_rows(&part)
                                        : rows};
    if (fused && id != SL_TENSOR_DOWN_EXPERTS) {
        return indices[fact.id] == SL_NONE ? add_tensor(b, &p, &indices[fact.id]) : 0;
    }
    const int code = add_tensor(b, &p, &indices[id]);
    if (code == 0 && partly && of_heads) { /* which the other tensor has one below the other */
        sl_weight *weight = &b->program->weights[indices[id]];
        weight->experts = b->config->heads;
        weight->rows /= b->config->heads;
    }
    return code;
}

/* All layers behind the model's own are of heads that draft; the first one is used. */
static int32_t count_draft_layers(const binder *b) {
    sl_tensor_fact fact;
    const int32_t most = b->config->draft_layers, first = b->config->layers;
    if (most == 0 || !sl_config_tensor(b->config, SL_TENSOR_DRAFT_JOIN, first, &fact) ||
        !is_there(b, &fact)) {
        return 0;
    }
    sl_config_tensor(b->config, SL_TENSOR_ATTENTION_NORM, first, &fact);
    while (is_there(b, &fact)) {
        fact.layer++;
    }
    if (fact.layer > first + most) {
        sl_log(SL_LOG_WARNING, "%s: %d layers draft; the first one does so for all tokens ahead", b->file,
               fact.layer - first);
    }
    return most;
}

static int bind_all(binder *b) {
    int code = 0;
    b->binding->draft_layers = count_draft_layers(b);
    const int32_t layers = b->config->layers + b->binding->draft_layers;
    for (int id = 0; id < SL_TENSOR_COUNT && code == 0; id++) {
        sl_tensor_fact fact;
        sl_config_tensor(b->config, (sl_tensor_id)id, 0, &fact);
        code = fact.layer == SL_NONE ? bind_one(b, (sl_tensor_id)id, 0) : 0;
    }
    code = code ? code : bind_rope(b);
    for (int32_t layer = 0; layer < layers && code == 0; layer++) {
        for (int id = 0; id < SL_TENSOR_COUNT && code == 0; id++) {
            sl_tensor_fact fact;
            sl_config_tensor(b->config, (sl_tensor_id)id, layer, &fact);
            code = fact.layer == SL_NONE ? 0 : bind_one(b, (sl_tensor_id)id, layer);
        }
    }
    return code;
}

static int compare_pointers(const void *a, const void *b) {
    const uintptr_t x = (uintptr_t) * (const sl_tensor *const *)a,
                    y = (uintptr_t) * (const sl_tensor *const *)b;
    return x < y ? -1 : x > y;
}

static bool is_used(const sl_binding *b, const sl_tensor *tensor) {
    size_t low = 0, high = b->tensors;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((uintptr_t)b->used[middle] < (uintptr_t)tensor) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < b->tensors && b->used[low] == tensor;
}

/* Some writers of integers give every module a bias, of zeros where a model has none: "module.bias" beside
 * "module.qweight", which nothing asked for. */
static bool is_spare_bias(const binder *b, const sl_tensor *tensor) {
    char codes[SL_TENSOR_NAME_SIZE];
    const size_t length = strlen(tensor->name), tail = strlen(".bias");
    const sl_hf *hf = sl_source_hf(b->source);
    if (!hf || b->quantization.words == SL_HF_WORDS_NONE || length < tail ||
        strcmp(tensor->name + length - tail, ".bias") != 0) {
        return false;
    }
    snprintf(codes, sizeof codes, "%.*s.qweight", (int)(length - tail), tensor->name);
    const sl_safetensors_entry *entry = sl_hf_find(hf, codes);
    return entry && is_used(b->binding, &entry->tensor) && !is_used(b->binding, tensor);
}

/* What is not zero would have been added. */
static int check_spare_biases(const binder *b) {
    const uint64_t count = sl_source_tensor_count(b->source);
    for (uint64_t i = 0; i < count; i++) {
        const sl_tensor *tensor = sl_source_tensor_at(b->source, i, NULL);
        const unsigned char *bytes = tensor->data;
        const uint64_t spare = is_spare_bias(b, tensor) ? tensor->bytes : 0;
        for (uint64_t k = 0; k < spare; k++) {
            if (bytes[k] != 0) {
                return sl_fail(b->error, SL_ERR_UNSUPPORTED,
                               "%s: tensor %s is not zero, but models of this family have no such bias",
                               b->file, tensor->name);
            }
        }
    }
    return 0;
}

enum { KINDS = 4, LEADERS = 8 };

/* Unused tensors by what their names have in common. */
typedef struct unused_tensors {
    sl_view leaders[LEADERS]; /* first words of the names of tensors in use */
    int leader_count;
    char kinds[KINDS][SL_TENSOR_NAME_SIZE];
    int kind_count;
    bool more;
    uint64_t count;
} unused_tensors;

static sl_view first_word(const char *name) {
    return (sl_view){name, strcspn(name, ".")};
}

static bool leads_used(const unused_tensors *u, const char *name) {
    const sl_view word = first_word(name);
    for (int i = 0; i < u->leader_count; i++) {
        if (sl_view_equal(u->leaders[i], word)) {
            return true;
        }
    }
    return u->leader_count == LEADERS; /* there may be more */
}

/* "mtp.*" where nothing of that beginning is used; else the name with * for its numbers. */
static void kind_of(const unused_tensors *u, const char *name, char kind[SL_TENSOR_NAME_SIZE]) {
    if (!leads_used(u, name)) {
        snprintf(kind, SL_TENSOR_NAME_SIZE, "%.*s.*", (int)first_word(name).length, name);
        return;
    }
    size_t length = 0;
    for (const char *at = name; *at && length + 2 < SL_TENSOR_NAME_SIZE;) {
        const size_t digits = strspn(at, "0123456789");
        const bool number = digits > 0 && (at == name || at[-1] == '.') && (at[digits] == '.' || !at[digits]);
        kind[length++] = number ? '*' : *at;
        at += number ? digits : 1;
    }
    kind[length] = '\0';
}

static void add_kind(unused_tensors *u, const char *name) {
    char kind[SL_TENSOR_NAME_SIZE];
    kind_of(u, name, kind);
    for (int i = 0; i < u->kind_count; i++) {
        if (strcmp(u->kinds[i], kind) == 0) {
            return;
        }
    }
    if (u->kind_count < KINDS) {
        snprintf(u->kinds[u->kind_count++], SL_TENSOR_NAME_SIZE, "%s", kind);
    } else {
        u->more = true;
    }
}

/* One line for all tensors that nothing asked for: a draft head, a vision tower, or a name that was
 * misunderstood. */
static void warn_unused(const binder *b) {
    const uint64_t count = sl_source_tensor_count(b->source);
    unused_tensors u = {.leader_count = 0};
    char list[KINDS * SL_TENSOR_NAME_SIZE] = "";
    for (uint64_t i = 0; i < b->binding->tensors; i++) {
        if (!leads_used(&u, b->binding->used[i]->name)) {
            u.leaders[u.leader_count++] = first_word(b->binding->used[i]->name);
        }
    }
    for (uint64_t i = 0; i < count; i++) {
        const sl_tensor *tensor = sl_source_tensor_at(b->source, i, NULL);
        if (!is_used(b->binding, tensor) && !is_spare_bias(b, tensor)) {
            add_kind(&u, tensor->name);
            u.count++;
        }
    }
    for (int i = 0; i < u.kind_count; i++) {
        const size_t length = strlen(list);
        snprintf(list + length, sizeof list - length, "%s%s", i ? ", " : "", u.kinds[i]);
    }
    if (u.count > 0) {
        sl_log(SL_LOG_WARNING, "%s: %llu of %llu tensors are not used: %s%s", b->file,
               (unsigned long long)u.count, (unsigned long long)count, list, u.more ? ", ..." : "");
    }
}

static void find_prefix(binder *b) {
    sl_tensor_fact embed;
    sl_config_tensor(b->config, SL_TENSOR_EMBED, 0, &embed);
    for (size_t i = 0; i < sizeof PREFIXES / sizeof *PREFIXES; i++) {
        b->trunk = PREFIXES[i].trunk;
        b->head = PREFIXES[i].head;
        if (is_there(b, &embed)) {
            return;
        }
    }
    b->trunk = PREFIXES[0].trunk; /* what messages name */
    b->head = PREFIXES[0].head;
}

const sl_tensor *sl_model_tensor(const sl_config *config, const sl_source *source, sl_tensor_id id,
                                 int32_t layer) {
    binder b = {.config = config, .source = source};
    char name[SL_TENSOR_NAME_SIZE];
    sl_tensor_fact fact;
    const sl_tensor *tensor = NULL;
    sl_config_tensor(config, id, layer, &fact);
    find_prefix(&b);
    tensor_name(&b, &fact, 0, name);
    return sl_source_tensor(source, name, &tensor, NULL) == 0 ? tensor : NULL;
}

int sl_model_bind(const sl_config *config, const sl_source *source, sl_program *program, sl_owned *owned,
                  sl_binding *binding, sl_error *error) {
    binder b = {.config = config,
                .source = source,
                .file = sl_source_path(source),
                .program = program,
                .owned = owned,
                .binding = binding,
                .error = error};
    memset(binding, 0, sizeof *binding);
    binding->rope = binding->local_rope = SL_NONE;
    const int32_t layers = config->layers + config->draft_layers;
    binding->layers = sl_alloc_zero((size_t)layers, sizeof *binding->layers);
    if (!binding->layers) {
        return no_memory(&b);
    }
    for (int id = 0; id < SL_TENSOR_COUNT; id++) {
        binding->model[id] = SL_NONE;
        for (int32_t layer = 0; layer < layers; layer++) {
            binding->layers[layer][id] = SL_NONE;
        }
    }
    find_prefix(&b);
    const sl_hf *hf = sl_source_hf(source);
    int code = hf ? sl_hf_read_quantization(hf, &b.quantization, error) : 0;
    code = code ? code : bind_all(&b);
    code = code || owned->later ? code : sl_owned_make_copies(owned, error);
    if (code == 0) {
        sl_sort((void *)binding->used, binding->tensors, sizeof *binding->used, compare_pointers);
        code = check_spare_biases(&b);
    }
    if (code == 0) {
        warn_unused(&b);
    } else {
        sl_binding_free(binding);
    }
    return code;
}
