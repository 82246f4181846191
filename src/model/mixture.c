#include "model/mixture.h"

#include "base/alloc.h"
#include "format/index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- roles
 * ------------------------------------------------------------------------------------------------------------
 */

sl_tensor_role sl_tensor_role_of(const char *name) {
    static const struct {
        const char *part;
        sl_tensor_role role;
    } parts[] = {{"attn_qkv.weight", SL_ROLE_VALUE},
                 {"attn_kv_b.weight", SL_ROLE_VALUE},
                 {"attn_v.weight", SL_ROLE_VALUE},
                 {"attn_k.weight", SL_ROLE_KEY},
                 {"attn_q.weight", SL_ROLE_QUERY},
                 {"attn_output.weight", SL_ROLE_ATTENTION_OUTPUT},
                 {"ffn_up", SL_ROLE_UP},
                 {"ffn_gate", SL_ROLE_GATE},
                 {"ffn_down", SL_ROLE_DOWN}};
    if (strcmp(name, "output.weight") == 0) {
        return SL_ROLE_OUTPUT;
    }
    if (strcmp(name, "token_embd.weight") == 0 || strcmp(name, "per_layer_token_embd.weight") == 0) {
        return SL_ROLE_EMBEDDING;
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strstr(name, parts[i].part)) {
            return parts[i].role;
        }
    }
    return SL_ROLE_OTHER;
}

/* ---- the table
 * -------------------------------------------------------------------------------------------------------- */

/* When a rule holds. A tensor's index is its place among those of its role, by layer. */
typedef enum rule_when {
    ALWAYS,
    EIGHT_EXPERTS,
    OTHER_EXPERTS,         /* any number but eight, none too */
    FOUR_EXPERTS,          /* or more */
    SHARED_HEADS,          /* four query heads or more for a key head */
    INDEX_BELOW,           /* index < number */
    FIRST_PART,            /* index < layers / number */
    FIRST_PART_IMPORTANCE, /* the same, with an importance matrix */
    FIRST_PART_PLAIN,      /* the same, without */
    PLAIN,                 /* without an importance matrix */
    MIDDLE,                /* all but the first and the last eighth */
    MORE_BITS,             /* the first and the last eighth, and every third between */
    EIGHT_EXPERTS_MORE,    /* the same, with eight experts */
} rule_when;

typedef struct rule {
    sl_tensor_role role;
    rule_when when;
    uint64_t number;
    sl_qtype type;
} rule;

enum { RULES = 8 };

struct sl_mixture {
    const char *name, *alias;
    sl_qtype base;
    uint32_t file_type;
    bool experts_only;        /* matrices of experts take the base, all others Q8_0 */
    bool rules_alone;         /* nothing else is said of a 70B's values, and of eight experts' attention */
    sl_qtype head, embedding; /* 0: Q6_K and the base */
    rule rules[RULES];        /* the first that holds decides, none: the base */
};

#define VALUE SL_ROLE_VALUE
#define DOWN SL_ROLE_DOWN
#define OUT SL_ROLE_ATTENTION_OUTPUT
#define EIGHT_OUT                                                                                            \
    { OUT, EIGHT_EXPERTS, 0, SL_QTYPE_Q5_K }

/* IQ1 and IQ2: the types of values where many heads share them, of other values and the first feed-forwards,
 * and of the attention's output. */
#define LOW_BITS(more, output)                                                                               \
    .rules_alone = true, .head = SL_QTYPE_Q5_K,                                                              \
    .rules = {{VALUE, SHARED_HEADS, 0, SL_QTYPE_Q4_K},                                                       \
              {VALUE, FOUR_EXPERTS, 0, SL_QTYPE_Q4_K},                                                       \
              {VALUE, ALWAYS, 0, more},                                                                      \
              {SL_ROLE_KEY, EIGHT_EXPERTS, 0, SL_QTYPE_Q4_K},                                                \
              {DOWN, FIRST_PART, 8, more},                                                                   \
              EIGHT_OUT,                                                                                     \
              {OUT, ALWAYS, 0, output}}

/* The numbers of general.file_type are enum llama_ftype of llama.h. */
static const sl_mixture MIXTURES[] = {
    {.name = "IQ1_S",
     .base = SL_QTYPE_IQ1_S,
     .file_type = 24,
     .embedding = SL_QTYPE_Q2_K,
     LOW_BITS(SL_QTYPE_Q2_K, SL_QTYPE_IQ2_XXS)},
    {.name = "IQ1_M",
     .base = SL_QTYPE_IQ1_M,
     .file_type = 31,
     .embedding = SL_QTYPE_Q2_K,
     LOW_BITS(SL_QTYPE_Q2_K, SL_QTYPE_IQ2_XXS)},
    {.name = "TQ1_0", .base = SL_QTYPE_TQ1_0, .file_type = 36, .embedding = SL_QTYPE_Q4_K},
    {.name = "TQ2_0", .base = SL_QTYPE_TQ2_0, .file_type = 37, .embedding = SL_QTYPE_Q4_K},
    {.name = "IQ2_XXS",
     .base = SL_QTYPE_IQ2_XXS,
     .file_type = 19,
     .embedding = SL_QTYPE_Q2_K,
     LOW_BITS(SL_QTYPE_Q2_K, SL_QTYPE_IQ2_XXS)},
    {.name = "IQ2_XS",
     .base = SL_QTYPE_IQ2_XS,
     .file_type = 20,
     .embedding = SL_QTYPE_Q2_K,
     LOW_BITS(SL_QTYPE_Q2_K, SL_QTYPE_IQ2_XS)},
    {.name = "IQ2_S",
     .base = SL_QTYPE_IQ2_XS,
     .file_type = 28,
     .embedding = SL_QTYPE_IQ3_S,
     LOW_BITS(SL_QTYPE_IQ3_S, SL_QTYPE_IQ3_S)},
    {.name = "IQ2_M",
     .base = SL_QTYPE_IQ2_S,
     .file_type = 29,
     .embedding = SL_QTYPE_IQ3_S,
     LOW_BITS(SL_QTYPE_IQ3_S, SL_QTYPE_IQ3_S)},
    {.name = "IQ3_XXS",
     .base = SL_QTYPE_IQ3_XXS,
     .file_type = 23,
     .head = SL_QTYPE_Q5_K,
     .embedding = SL_QTYPE_IQ3_S,
     .rules = {{VALUE, SHARED_HEADS, 0, SL_QTYPE_Q4_K},
               {VALUE, PLAIN, 0, SL_QTYPE_IQ3_S},
               {SL_ROLE_KEY, ALWAYS, 0, SL_QTYPE_IQ2_S},
               {SL_ROLE_QUERY, ALWAYS, 0, SL_QTYPE_IQ2_S},
               {DOWN, FIRST_PART_PLAIN, 8, SL_QTYPE_Q4_K},
               {DOWN, PLAIN, 0, SL_QTYPE_Q3_K},
               EIGHT_OUT,
               {OUT, ALWAYS, 0, SL_QTYPE_IQ3_S}}},
    {.name = "IQ3_XS",
     .base = SL_QTYPE_IQ3_S,
     .file_type = 22,
     .rules = {{VALUE, SHARED_HEADS, 0, SL_QTYPE_Q4_K},
               {SL_ROLE_KEY, ALWAYS, 0, SL_QTYPE_IQ3_XXS},
               {SL_ROLE_QUERY, ALWAYS, 0, SL_QTYPE_IQ3_XXS},
               {SL_ROLE_GATE, MIDDLE, 0, SL_QTYPE_IQ3_XXS},
               {SL_ROLE_UP, MIDDLE, 0, SL_QTYPE_IQ3_XXS},
               EIGHT_OUT}},
    {.name = "IQ3_S",
     .base = SL_QTYPE_IQ3_S,
     .file_type = 26,
     .rules = {{VALUE, SHARED_HEADS, 0, SL_QTYPE_Q4_K}, EIGHT_OUT}},
    {.name = "IQ3_M",
     .base = SL_QTYPE_IQ3_S,
     .file_type = 27,
     .rules = {{VALUE, ALWAYS, 0, SL_QTYPE_Q4_K},
               {DOWN, FIRST_PART, 8, SL_QTYPE_Q4_K},
               {DOWN, EIGHT_EXPERTS_MORE, 0, SL_QTYPE_Q4_K},
               EIGHT_OUT,
               {OUT, ALWAYS, 0, SL_QTYPE_Q4_K}}},
    {.name = "Q2_K_S",
     .base = SL_QTYPE_Q2_K,
     .file_type = 21,
     .rules = {{VALUE, SHARED_HEADS, 0, SL_QTYPE_Q4_K}, {DOWN, FIRST_PART, 8, SL_QTYPE_Q4_K}}},
    {.name = "Q2_K",
     .base = SL_QTYPE_Q2_K,
     .file_type = 10,
     .rules = {{VALUE, SHARED_HEADS, 0, SL_QTYPE_Q4_K},
               {VALUE, ALWAYS, 0, SL_QTYPE_Q3_K},
               {DOWN, ALWAYS, 0, SL_QTYPE_Q3_K},
               EIGHT_OUT,
               {OUT, ALWAYS, 0, SL_QTYPE_Q3_K}}},
    {.name = "Q3_K_S", .base = SL_QTYPE_Q3_K, .file_type = 11, .rules = {EIGHT_OUT}},
    {.name = "Q3_K_M",
     .alias = "Q3_K",
     .base = SL_QTYPE_Q3_K,
     .file_type = 12,
     .rules = {{VALUE, INDEX_BELOW, 2, SL_QTYPE_Q5_K},
               {VALUE, ALWAYS, 0, SL_QTYPE_Q4_K},
               {DOWN, FIRST_PART, 16, SL_QTYPE_Q5_K},
               {DOWN, ALWAYS, 0, SL_QTYPE_Q4_K},
               EIGHT_OUT,
               {OUT, ALWAYS, 0, SL_QTYPE_Q4_K}}},
    {.name = "Q3_K_L",
     .base = SL_QTYPE_Q3_K,
     .file_type = 13,
     .rules = {{VALUE, ALWAYS, 0, SL_QTYPE_Q5_K},
               {DOWN, ALWAYS, 0, SL_QTYPE_Q5_K},
               {OUT, OTHER_EXPERTS, 0, SL_QTYPE_Q5_K}}},
    {.name = "IQ4_XS",
     .base = SL_QTYPE_IQ4_XS,
     .file_type = 30,
     .rules = {{VALUE, SHARED_HEADS, 0, SL_QTYPE_Q5_K},
               {DOWN, FIRST_PART_PLAIN, 8, SL_QTYPE_Q5_K},
               EIGHT_OUT}},
    {.name = "MXFP4_MOE", .base = SL_QTYPE_MXFP4, .file_type = 38, .experts_only = true},
    {.name = "MXFP4", .base = SL_QTYPE_MXFP4, .file_type = 38},
    {.name = "NVFP4", .base = SL_QTYPE_NVFP4, .file_type = 39},
    {.name = "Q4_0",
     .base = SL_QTYPE_Q4_0,
     .file_type = 2,
     .rules = {{DOWN, FIRST_PART_IMPORTANCE, 8, SL_QTYPE_Q4_1}}},
    {.name = "IQ4_NL",
     .base = SL_QTYPE_IQ4_NL,
     .file_type = 25,
     .rules = {{VALUE, SHARED_HEADS, 0, SL_QTYPE_Q5_K},
               {DOWN, FIRST_PART_PLAIN, 8, SL_QTYPE_Q5_K},
               EIGHT_OUT}},
    {.name = "Q4_K_S",
     .base = SL_QTYPE_Q4_K,
     .file_type = 14,
     .rules = {{VALUE, INDEX_BELOW, 4, SL_QTYPE_Q5_K}, {DOWN, FIRST_PART, 8, SL_QTYPE_Q5_K}, EIGHT_OUT}},
    {.name = "Q4_K_M",
     .alias = "Q4_K",
     .base = SL_QTYPE_Q4_K,
     .file_type = 15,
     .rules = {{VALUE, MORE_BITS, 0, SL_QTYPE_Q6_K}, {DOWN, MORE_BITS, 0, SL_QTYPE_Q6_K}, EIGHT_OUT}},
    {.name = "Q4_1", .base = SL_QTYPE_Q4_1, .file_type = 3},
    {.name = "Q5_0",
     .base = SL_QTYPE_Q5_0,
     .file_type = 8,
     .rules = {{DOWN, FIRST_PART_IMPORTANCE, 8, SL_QTYPE_Q5_1}}},
    {.name = "Q5_K_S", .base = SL_QTYPE_Q5_K, .file_type = 16},
    {.name = "Q5_K_M",
     .alias = "Q5_K",
     .base = SL_QTYPE_Q5_K,
     .file_type = 17,
     .rules = {{VALUE, MORE_BITS, 0, SL_QTYPE_Q6_K}, {DOWN, MORE_BITS, 0, SL_QTYPE_Q6_K}}},
    {.name = "Q5_1", .base = SL_QTYPE_Q5_1, .file_type = 9},
    {.name = "Q6_K", .base = SL_QTYPE_Q6_K, .file_type = 18},
    {.name = "Q8_0", .base = SL_QTYPE_Q8_0, .file_type = 7},
    {.name = "BF16", .base = SL_QTYPE_BF16, .file_type = 32},
    {.name = "F16", .base = SL_QTYPE_F16, .file_type = 1},
    {.name = "F32", .base = SL_QTYPE_F32, .file_type = 0},
};
enum { MIXTURE_COUNT = sizeof MIXTURES / sizeof *MIXTURES };

/* What llama-quantize writes and sluice does not. */
static const char *const NOT_WRITTEN[] = {"Q1_0", "Q2_0"};

const sl_mixture *sl_mixture_find(const char *name) {
    for (int i = 0; i < MIXTURE_COUNT; i++) {
        const sl_mixture *m = &MIXTURES[i];
        if (sl_same_name(m->name, name) || (m->alias && sl_same_name(m->alias, name))) {
            return m;
        }
    }
    return NULL;
}

const sl_mixture *sl_mixture_at(int index) {
    return index >= 0 && index < MIXTURE_COUNT ? &MIXTURES[index] : NULL;
}

const char *sl_mixture_name(const sl_mixture *mixture) {
    return mixture->name;
}

sl_qtype sl_mixture_base(const sl_mixture *mixture) {
    return mixture->base;
}

uint32_t sl_mixture_file_type(const sl_mixture *mixture) {
    return mixture->file_type;
}

int sl_mixture_unknown(const char *name, sl_error *error) {
    sl_buffer names = {0};
    bool known = false;
    for (size_t i = 0; i < sizeof NOT_WRITTEN / sizeof *NOT_WRITTEN; i++) {
        known |= sl_same_name(NOT_WRITTEN[i], name);
    }
    for (int i = 0; i < MIXTURE_COUNT; i++) {
        sl_buffer_printf(&names, "%s%s", i ? ", " : "", MIXTURES[i].name);
    }
    const int code = known ? SL_ERR_UNSUPPORTED : SL_ERR_INVALID;
    sl_fail(error, code, "type: %.32s is %s: one of %s", name,
            known ? "not written here" : "no weight type or mixture", names.data ? names.data : "");
    sl_buffer_free(&names);
    return code;
}

/* ---- which type
 * ------------------------------------------------------------------------------------------------------- */

/* Places by layer and name, which is the order that llama-quantize counts in. */
typedef struct place {
    const char *name;
    sl_tensor_role role;
    int64_t layer; /* -1: of none */
    uint64_t tensor;
} place;

static int64_t layer_of(const char *name) {
    char *end;
    if (strncmp(name, "blk.", 4) != 0 || name[4] < '0' || name[4] > '9') {
        return -1;
    }
    const long long layer = strtoll(name + 4, &end, 10);
    return *end == '.' ? layer : -1;
}

static int compare_places(const void *a, const void *b) {
    const place *x = a, *y = b;
    return x->role != y->role     ? (x->role < y->role ? -1 : 1)
           : x->layer != y->layer ? (x->layer < y->layer ? -1 : 1)
                                  : strcmp(x->name, y->name);
}

static bool needs_more_bits(uint64_t index, uint64_t count) {
    return index < count / 8 || index >= 7 * count / 8 || (index - count / 8) % 3 == 2;
}

/* What a rule asks about a tensor: its index, and of how many. */
typedef struct where {
    uint64_t index, count;
} where;

static bool holds(const rule *rule, const sl_mixture_model *model, where where) {
    const bool early = rule->number > 0 && where.index < where.count / rule->number;
    switch (rule->when) {
    case ALWAYS:
        return true;
    case EIGHT_EXPERTS:
        return model->experts == 8;
    case OTHER_EXPERTS:
        return model->experts != 8;
    case FOUR_EXPERTS:
        return model->experts >= 4;
    case PLAIN:
        return !model->importance;
    case MIDDLE:
        return where.index >= where.count / 8 && where.index < 7 * where.count / 8;
    case EIGHT_EXPERTS_MORE:
        return model->experts == 8 && needs_more_bits(where.index, where.count);
    case SHARED_HEADS:
        return model->kv_heads > 0 && model->heads / model->kv_heads >= 4;
    case INDEX_BELOW:
        return where.index < rule->number;
    case FIRST_PART:
        return early;
    case FIRST_PART_IMPORTANCE:
        return early && model->importance;
    case FIRST_PART_PLAIN:
        return early && !model->importance;
    default:
        return needs_more_bits(where.index, where.count);
    }
}

/* Models that llama.cpp calls 70B: there values are an eighth of queries, and more bits for them cost little.
 */
static bool is_70b(const sl_mixture_model *model) {
    return model->layers == 80 &&
           ((sl_view_is(model->architecture, "llama") && model->heads != model->kv_heads) ||
            sl_view_is(model->architecture, "qwen2"));
}

static sl_qtype type_of(const sl_mixture *m, const sl_mixture_model *model, sl_tensor_role role,
                        where where) {
    sl_qtype type = m->base;
    for (int i = 0; i < RULES; i++) {
        if (m->rules[i].role == role && role != SL_ROLE_OTHER && holds(&m->rules[i], model, where)) {
            type = m->rules[i].type;
            break;
        }
    }
    if (m->rules_alone) {
        return type;
    }
    if (role == SL_ROLE_VALUE && is_70b(model) && (type == SL_QTYPE_Q3_K || type == SL_QTYPE_Q4_K)) {
        type = SL_QTYPE_Q5_K;
    }
    /* With eight experts, attention is small beside them. */
    return model->experts == 8 && (role == SL_ROLE_VALUE || role == SL_ROLE_KEY) ? SL_QTYPE_Q8_0 : type;
}

/* The head, and an embedding that is also the head. */
static sl_qtype head_type(const sl_mixture *m, const sl_mixture_tensor *tensor) {
    const bool plain = m->experts_only || tensor->columns % sl_qtype_get(m->base)->block_elements != 0;
    return plain || m->base == SL_QTYPE_Q8_0 ? SL_QTYPE_Q8_0 : m->head ? m->head : SL_QTYPE_Q6_K;
}

static bool is_float(sl_qtype type) {
    return sl_qtype_get(type)->block_elements == 1;
}

int sl_mixture_assign(const sl_mixture *m, const sl_mixture_model *model, sl_mixture_tensor *tensors,
                      uint64_t count, sl_error *error) {
    place *places = sl_alloc_zero((size_t)count + 1, sizeof *places);
    if (!places) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for the types of tensors");
    }
    bool tied = true;
    uint64_t per_role[SL_ROLE_DOWN + 1] = {0};
    for (uint64_t i = 0; i < count; i++) {
        const char *name = tensors[i].name;
        places[i] = (place){name, sl_tensor_role_of(name), layer_of(name), i};
        per_role[places[i].role]++;
        tied = tied && places[i].role != SL_ROLE_OUTPUT;
    }
    sl_sort(places, (size_t)count, sizeof *places, compare_places);
    uint64_t first = 0; /* of the role */
    for (uint64_t i = 0; i < count; i++) {
        const place *p = &places[i];
        first = i > 0 && places[i - 1].role == p->role ? first : i;
        /* Values are counted one by one. Feed-forwards go by layers, of which some may have several tensors.
         */
        const bool by_layer = p->role != SL_ROLE_VALUE;
        const where where = {by_layer && model->experts > 1 && p->layer >= 0 ? (uint64_t)p->layer : i - first,
                             by_layer ? model->layers : per_role[p->role]};
        sl_mixture_tensor *t = &tensors[p->tensor];
        if (is_float(m->base)) {
            t->type = m->base;
        } else if (p->role == SL_ROLE_OUTPUT || (tied && p->role == SL_ROLE_EMBEDDING)) {
            t->type = head_type(m, t);
        } else if (m->experts_only) {
            t->type = t->matrices > 1 ? m->base : SL_QTYPE_Q8_0;
        } else if (p->role == SL_ROLE_EMBEDDING) {
            t->type = m->embedding ? m->embedding : m->base;
        } else {
            t->type = type_of(m, model, p->role, where);
        }
    }
    sl_free(places);
    return 0;
}

double sl_mixture_bits(const sl_mixture *mixture) {
    enum {
        LAYERS = 32,
        WIDTH = 4096,
        KEYS = 1024,
        FEED_FORWARD = 14336,
        VOCABULARY = 128256,
        COUNT = 7 * LAYERS + 2
    };
    static const struct {
        const char *name;
        uint64_t rows, columns;
    } matrices[] = {{"attn_q", WIDTH, WIDTH},          {"attn_k", KEYS, WIDTH},
                    {"attn_v", KEYS, WIDTH},           {"attn_output", WIDTH, WIDTH},
                    {"ffn_gate", FEED_FORWARD, WIDTH}, {"ffn_up", FEED_FORWARD, WIDTH},
                    {"ffn_down", WIDTH, FEED_FORWARD}};
    static const sl_mixture_model model = {{"llama", 5}, LAYERS, 32, 8, 0, false};
    sl_mixture_tensor tensors[COUNT];
    char names[COUNT][40];
    uint64_t count = 0, weights = 0, bits = 0;
    for (int layer = 0; layer < LAYERS; layer++) {
        for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
            snprintf(names[count], sizeof names[count], "blk.%d.%s.weight", layer, matrices[i].name);
            tensors[count] = (sl_mixture_tensor){names[count], matrices[i].columns, 1, SL_QTYPE_F32};
            count++;
        }
    }
    tensors[count++] = (sl_mixture_tensor){"token_embd.weight", WIDTH, 1, SL_QTYPE_F32};
    tensors[count++] = (sl_mixture_tensor){"output.weight", WIDTH, 1, SL_QTYPE_F32};
    if (sl_mixture_assign(mixture, &model, tensors, count, NULL) != 0) {
        return 0;
    }
    for (uint64_t i = 0; i < count; i++) {
        const sl_qtype_info *info = sl_qtype_get(tensors[i].type);
        const uint64_t kinds = sizeof matrices / sizeof *matrices;
        const uint64_t rows = i < LAYERS * kinds ? matrices[i % kinds].rows : VOCABULARY;
        weights += rows * tensors[i].columns;
        bits += rows * tensors[i].columns / info->block_elements * info->block_bytes * 8;
    }
    return (double)bits / (double)weights;
}

sl_qtype sl_mixture_fallback(sl_qtype type, uint64_t columns) {
    static const struct {
        sl_qtype type, smaller;
    } smaller[] = {{SL_QTYPE_IQ1_S, SL_QTYPE_IQ4_NL},   {SL_QTYPE_IQ1_M, SL_QTYPE_IQ4_NL},
                   {SL_QTYPE_IQ2_XXS, SL_QTYPE_IQ4_NL}, {SL_QTYPE_IQ2_XS, SL_QTYPE_IQ4_NL},
                   {SL_QTYPE_IQ2_S, SL_QTYPE_IQ4_NL},   {SL_QTYPE_IQ3_XXS, SL_QTYPE_IQ4_NL},
                   {SL_QTYPE_IQ3_S, SL_QTYPE_IQ4_NL},   {SL_QTYPE_TQ1_0, SL_QTYPE_Q4_0},
                   {SL_QTYPE_TQ2_0, SL_QTYPE_Q4_0},     {SL_QTYPE_IQ4_XS, SL_QTYPE_IQ4_NL},
                   {SL_QTYPE_Q2_K, SL_QTYPE_Q4_0},      {SL_QTYPE_Q3_K, SL_QTYPE_Q4_0},
                   {SL_QTYPE_Q4_K, SL_QTYPE_Q5_0},      {SL_QTYPE_Q5_K, SL_QTYPE_Q5_1},
                   {SL_QTYPE_Q6_K, SL_QTYPE_Q8_0},      {SL_QTYPE_NVFP4, SL_QTYPE_Q8_0}};
    for (size_t i = 0; i < sizeof smaller / sizeof *smaller; i++) {
        if (smaller[i].type == type && columns % sl_qtype_get(type)->block_elements != 0) {
            type = smaller[i].smaller;
        }
    }
    return columns % sl_qtype_get(type)->block_elements == 0 ? type : SL_QTYPE_F16;
}
