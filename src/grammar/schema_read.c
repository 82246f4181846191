/* A schema's keywords as a node. The keywords and what they mean: JSON Schema 2020-12, validation and core;
 * of drafts 4 to 7 what was renamed since (definitions, dependencies, arrays as items, booleans as exclusive
 * bounds). */
#include "grammar/schema_internal.h"

#include <stdarg.h>
#include <math.h>

typedef struct reader {
    sl_schema_context *c;
    sl_schema_node *node;
    const json_t *schema;
    int32_t entry;
    const char *keyword;
} reader;

static bool invalid(reader *r, const char *words) {
    sl_schema_refuse(r->c, SL_ERR_INVALID, r->entry, r->keyword, "%s", words);
    return false;
}

static bool unsupported(reader *r, const char *words) {
    sl_schema_refuse(r->c, SL_ERR_UNSUPPORTED, r->entry, r->keyword, "%s", words);
    return false;
}

sl_schema_node *sl_schema_node_make(sl_schema_context *c, int32_t entry) {
    sl_schema_node *node = sl_schema_alloc(c, 1, sizeof *node);
    if (node) {
        node->entry = entry;
        node->types = SL_TYPE_ANY;
        node->max_length = node->max_items = node->max_properties = node->max_contains = -1;
        node->items = node->contains = node->additional = node->names = -1;
    }
    return node;
}

static bool add_all(reader *r, int32_t entry) {
    sl_schema_node *node = r->node;
    int32_t capacity = node->all_count;
    if (entry < 0 ||
        !sl_schema_grow(r->c, (void **)&node->all, node->all_count, &capacity, sizeof *node->all)) {
        return false;
    }
    node->all[node->all_count++] = entry;
    return true;
}

static sl_schema_group *add_group(reader *r, int32_t count) {
    sl_schema_group *group = sl_schema_alloc(r->c, 1, sizeof *group), **last = &r->node->groups;
    if (!group || !(group->entries = sl_schema_alloc(r->c, (uint64_t)count, sizeof *group->entries))) {
        return NULL;
    }
    group->count = count;
    group->keyword = r->keyword;
    while (*last) {
        last = &(*last)->next;
    }
    *last = group;
    return group;
}

/* A new entry with a node of its own to fill. */
static sl_schema_node *make_entry(reader *r, int32_t *entry) {
    *entry = sl_schema_entry_make(r->c, r->entry);
    sl_schema_node *node = *entry < 0 ? NULL : sl_schema_node_make(r->c, *entry);
    if (node) {
        r->c->entries[*entry].node = node;
        r->c->entries[*entry].keyword = r->keyword;
        node->asserts = true;
    }
    return node;
}

int32_t sl_schema_all_of(sl_schema_context *c, int32_t near, const int32_t *entries, int32_t count) {
    int32_t entry;
    reader r = {.c = c, .entry = near};
    r.node = make_entry(&r, &entry);
    if (!r.node) {
        return -1;
    }
    r.node->asserts = false;
    for (int32_t i = 0; i < count; i++) {
        if (!add_all(&r, entries[i])) {
            return -1;
        }
    }
    return entry;
}

/* ---- any type ---- */

static bool read_type(reader *r, const json_t *value) {
    static const struct {
        const char *name;
        uint8_t types;
    } rows[] = {{"null", SL_TYPE_NULL},     {"boolean", SL_TYPE_BOOLEAN}, {"integer", SL_TYPE_INTEGER},
                {"number", SL_TYPE_NUMBER}, {"string", SL_TYPE_STRING},   {"array", SL_TYPE_ARRAY},
                {"object", SL_TYPE_OBJECT}};
    const size_t count = json_is_array(value) ? json_array_size(value) : 1;
    uint8_t types = 0;
    for (size_t i = 0; i < count; i++) {
        const char *name = json_string_value(json_is_array(value) ? json_array_get(value, i) : value);
        bool known = false;
        for (size_t row = 0; name && row < sizeof rows / sizeof *rows; row++) {
            if (strcmp(name, rows[row].name) == 0) {
                types |= rows[row].types;
                known = true;
            }
        }
        if (!known) {
            return invalid(r, "a type is one of null, boolean, integer, number, string, array, object");
        }
    }
    if (count == 0) {
        return invalid(r, "an empty list of types, which nothing satisfies");
    }
    r->node->types &= types;
    return true;
}

static bool read_enum(reader *r, const json_t *value) {
    if (!json_is_array(value)) {
        return invalid(r, "must be an array");
    }
    if (json_array_size(value) == 0) {
        return invalid(r, "is empty, so that nothing satisfies it");
    }
    if (!r->node->values) {
        r->node->values = value;
        return true;
    }
    int32_t entry; /* const stands beside it */
    sl_schema_node *node = make_entry(r, &entry);
    if (!node) {
        return false;
    }
    node->values = value;
    return add_all(r, entry);
}

static bool read_const(reader *r, const json_t *value) {
    int32_t entry;
    sl_schema_node *node = make_entry(r, &entry);
    json_t *array = json_array();
    /* The document holds it, so that it lives as long as what refers to it. */
    if (!array || json_array_append(array, (json_t *)value) || json_array_append_new(r->c->document, array)) {
        sl_schema_refuse(r->c, SL_ERR_NOMEM, -1, NULL, "no memory for a schema");
        return false;
    }
    if (!node) {
        return false;
    }
    node->values = array;
    return add_all(r, entry);
}

/* ---- numbers ---- */

static bool set_bound(reader *r, const json_t *value, bool lower, bool exclusive) {
    sl_bound *bound = lower ? &r->node->lower : &r->node->upper;
    const sl_decimal decimal = sl_schema_decimal(r->c, value);
    if (!r->c->code && decimal.negative != lower && strlen(decimal.whole) > SL_MOST_WHOLE) {
        sl_schema_refuse(r->c, SL_ERR_UNSUPPORTED, r->entry, r->keyword,
                         "leaves numbers of more than %d digits only, which are not written", SL_MOST_WHOLE);
    }
    if (r->c->code) {
        return false;
    }
    const int order = bound->is_set ? sl_decimal_compare(&decimal, &bound->value) : 0;
    if (!bound->is_set || (lower ? order > 0 : order < 0)) {
        *bound = (sl_bound){true, exclusive, decimal};
    } else if (order == 0) {
        bound->exclusive = bound->exclusive || exclusive;
    }
    return true;
}

static bool read_bound(reader *r, const json_t *value) {
    const bool lower = strcmp(r->keyword, "minimum") == 0;
    const json_t *exclusive = json_object_get(r->schema, lower ? "exclusiveMinimum" : "exclusiveMaximum");
    return json_is_number(value) ? set_bound(r, value, lower, json_is_true(exclusive))
                                 : invalid(r, "must be a number");
}

static bool read_exclusive(reader *r, const json_t *value) {
    if (json_is_boolean(value)) {
        return true; /* draft 4: the bound beside it is read with it */
    }
    return json_is_number(value) ? set_bound(r, value, strcmp(r->keyword, "exclusiveMinimum") == 0, true)
                                 : invalid(r, "must be a number");
}

static bool read_multiple(reader *r, const json_t *value) {
    sl_decimal *decimal = sl_schema_alloc(r->c, 1, sizeof *decimal);
    if (!decimal) {
        return false;
    }
    if (!json_is_number(value) || json_number_value(value) <= 0) {
        return invalid(r, "must be a number above 0");
    }
    *decimal = sl_schema_decimal(r->c, value);
    r->node->multiple = decimal;
    return !r->c->code;
}

/* ---- lengths and counts ---- */

static bool read_count(reader *r, const json_t *value, int64_t *count) {
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        *count = json_integer_value(value);
        return true;
    }
    const double real = json_is_real(value) ? json_real_value(value) : -1;
    if (real >= 0 && real == floor(real)) {
        *count = real < 9e18 ? (int64_t)real : INT64_MAX;
        return true;
    }
    return invalid(r, "must be a whole number, 0 or above");
}

static bool read_min_length(reader *r, const json_t *value) {
    return read_count(r, value, &r->node->min_length);
}
static bool read_max_length(reader *r, const json_t *value) {
    return read_count(r, value, &r->node->max_length);
}
static bool read_min_items(reader *r, const json_t *value) {
    return read_count(r, value, &r->node->min_items);
}
static bool read_max_items(reader *r, const json_t *value) {
    return read_count(r, value, &r->node->max_items);
}
static bool read_min_properties(reader *r, const json_t *value) {
    return read_count(r, value, &r->node->min_properties);
}
static bool read_max_properties(reader *r, const json_t *value) {
    return read_count(r, value, &r->node->max_properties);
}

/* ---- strings ---- */

static bool add_text(reader *r, sl_text_rule rule) {
    sl_schema_node *node = r->node;
    int32_t capacity = node->text_count;
    if (!sl_schema_grow(r->c, (void **)&node->texts, node->text_count, &capacity, sizeof *node->texts)) {
        return false;
    }
    node->texts[node->text_count++] = rule;
    return true;
}

static bool read_pattern(reader *r, const json_t *value) {
    if (!json_is_string(value)) {
        return invalid(r, "must be a string");
    }
    return add_text(
        r, (sl_text_rule){
               .pattern = json_string_value(value), .format = -1, .entry = r->entry, .keyword = "pattern"});
}

static bool read_format(reader *r, const json_t *value) {
    if (!json_is_string(value)) {
        return invalid(r, "must be a string");
    }
    const int32_t format = sl_schema_format_find(json_string_value(value));
    const char *refused = format < 0 ? NULL : sl_schema_format_refused(format);
    if (refused) {
        sl_schema_refuse(r->c, SL_ERR_UNSUPPORTED, r->entry, r->keyword, "'%s' is refused: %s",
                         json_string_value(value), refused);
        return false;
    }
    return format < 0 ||
           add_text(r, (sl_text_rule){.format = format, .entry = r->entry, .keyword = "format"});
}

/* ---- arrays ---- */

static bool read_children(reader *r, const json_t *array, int32_t **entries, int32_t *count) {
    *count = 0;
    *entries = sl_schema_alloc(r->c, json_array_size(array), sizeof **entries);
    for (size_t i = 0; *entries && i < json_array_size(array); i++) {
        const int32_t child =
            sl_schema_child(r->c, r->entry, r->keyword, NULL, (int32_t)i, json_array_get(array, i));
        if (child < 0) {
            return false;
        }
        (*entries)[(*count)++] = child;
    }
    return *entries != NULL;
}

static bool read_child(reader *r, const json_t *value, int32_t *entry) {
    *entry = sl_schema_child(r->c, r->entry, r->keyword, NULL, -1, value);
    return *entry >= 0;
}

static bool read_prefix(reader *r, const json_t *value) {
    return json_is_array(value) ? read_children(r, value, &r->node->prefix, &r->node->prefix_count)
                                : invalid(r, "must be an array of schemas");
}

static bool read_items(reader *r, const json_t *value) {
    if (!json_is_array(value)) {
        return read_child(r, value, &r->node->items);
    }
    const json_t *rest = json_object_get(r->schema, "additionalItems");
    if (json_object_get(r->schema, "prefixItems")) {
        return invalid(r, "must be a schema beside prefixItems");
    }
    if (!read_prefix(r, value)) {
        return false;
    }
    r->keyword = "additionalItems";
    return !rest || read_child(r, rest, &r->node->items);
}

static bool read_unique(reader *r, const json_t *value) {
    r->node->unique = json_is_true(value);
    return json_is_boolean(value) || invalid(r, "must be a boolean");
}

static bool read_contains(reader *r, const json_t *value) {
    const json_t *least = json_object_get(r->schema, "minContains");
    const json_t *most = json_object_get(r->schema, "maxContains");
    r->node->min_contains = 1;
    if (!read_child(r, value, &r->node->contains)) {
        return false;
    }
    r->keyword = "minContains";
    if (least && !read_count(r, least, &r->node->min_contains)) {
        return false;
    }
    r->keyword = "maxContains";
    if (most && !read_count(r, most, &r->node->max_contains)) {
        return false;
    }
    if (r->node->min_contains == 0 && !most) {
        r->node->contains = -1;
    }
    return true;
}

/* ---- objects ---- */

static bool read_map(reader *r, const json_t *value, sl_schema_property **rows, int32_t *count) {
    const char *name;
    json_t *item;
    if (!json_is_object(value)) {
        return invalid(r, "must be an object of schemas");
    }
    *rows = sl_schema_alloc(r->c, json_object_size(value), sizeof **rows);
    if (!*rows) {
        return false;
    }
    json_object_foreach((json_t *)value, name, item) {
        const int32_t child = sl_schema_child(r->c, r->entry, r->keyword, name, -1, item);
        if (child < 0) {
            return false;
        }
        (*rows)[(*count)++] = (sl_schema_property){name, child};
    }
    return true;
}

static bool read_properties(reader *r, const json_t *value) {
    return read_map(r, value, &r->node->properties, &r->node->property_count);
}

static bool read_pattern_properties(reader *r, const json_t *value) {
    return read_map(r, value, &r->node->patterns, &r->node->pattern_count);
}

static bool read_additional(reader *r, const json_t *value) {
    return read_child(r, value, &r->node->additional);
}

static bool read_names(reader *r, const json_t *value) {
    return read_child(r, value, &r->node->names);
}

static bool read_name_list(reader *r, const json_t *value, sl_schema_node *node) {
    if (!json_is_array(value)) {
        return invalid(r, "must be an array of names");
    }
    const size_t count = json_array_size(value);
    node->required = sl_schema_alloc(r->c, count + 1, sizeof *node->required);
    for (size_t i = 0; node->required && i < count; i++) {
        const char *name = json_string_value(json_array_get(value, i));
        if (!name) {
            return invalid(r, "must be an array of names");
        }
        node->required[node->required_count++] = name;
    }
    return node->required != NULL;
}

static bool read_required(reader *r, const json_t *value) {
    return read_name_list(r, value, r->node);
}

/* Where the key is, the other entry holds (or the names are there). */
static bool add_dependency(reader *r, const char *key, const json_t *value) {
    int32_t without, with;
    sl_schema_node *absent = make_entry(r, &without), *present = absent ? make_entry(r, &with) : NULL;
    sl_schema_group *group = present ? add_group(r, 2) : NULL;
    if (!group) {
        return false;
    }
    absent->properties = sl_schema_alloc(r->c, 1, sizeof *absent->properties);
    if (!absent->properties) {
        return false;
    }
    absent->properties[absent->property_count++] = (sl_schema_property){key, SL_ENTRY_FALSE};
    present->types = SL_TYPE_OBJECT;
    if (json_is_array(value)) {
        if (!read_name_list(r, value, present)) {
            return false;
        }
    } else {
        reader inner = {r->c, present, NULL, with, r->keyword};
        present->required = sl_schema_alloc(r->c, 1, sizeof *present->required);
        if (!present->required ||
            !add_all(&inner, sl_schema_child(r->c, r->entry, r->keyword, key, -1, value))) {
            return false;
        }
    }
    present->required[present->required_count++] = key;
    group->entries[0] = without;
    group->entries[1] = with;
    return true;
}

static bool read_dependencies(reader *r, const json_t *value) {
    const char *key;
    json_t *item;
    if (!json_is_object(value)) {
        return invalid(r, "must be an object");
    }
    json_object_foreach((json_t *)value, key, item) {
        if (!add_dependency(r, key, item)) {
            return false;
        }
    }
    return true;
}

/* ---- what combines schemas ---- */

static bool read_reference(reader *r, const json_t *value) {
    return json_is_string(value)
               ? add_all(r, sl_schema_resolve(r->c, r->entry, r->keyword, json_string_value(value)))
               : invalid(r, "must be a string");
}

static bool read_all(reader *r, const json_t *value) {
    int32_t *entries, count;
    if (!json_is_array(value) || json_array_size(value) == 0) {
        return invalid(r, "must be an array of at least one schema");
    }
    if (!read_children(r, value, &entries, &count)) {
        return false;
    }
    for (int32_t i = 0; i < count; i++) {
        if (!add_all(r, entries[i])) {
            return false;
        }
    }
    return true;
}

static bool read_any(reader *r, const json_t *value) {
    int32_t *entries, count;
    if (!json_is_array(value) || json_array_size(value) == 0) {
        return invalid(r, "must be an array of at least one schema");
    }
    if (!read_children(r, value, &entries, &count)) {
        return false;
    }
    sl_schema_group *group = add_group(r, count);
    if (!group) {
        return false;
    }
    group->entries = entries;
    group->exactly_one = strcmp(r->keyword, "oneOf") == 0 && count > 1;
    return true;
}

static bool read_not(reader *r, const json_t *value) {
    int32_t child;
    return read_child(r, value, &child) && add_all(r, sl_schema_negation(r->c, child));
}

static bool read_if(reader *r, const json_t *value) {
    const json_t *then = json_object_get(r->schema, "then"), *otherwise = json_object_get(r->schema, "else");
    int32_t holds[2], fails[2];
    if (!then && !otherwise) {
        return true;
    }
    if (!read_child(r, value, &holds[0])) {
        return false;
    }
    fails[0] = sl_schema_negation(r->c, holds[0]);
    holds[1] = then ? sl_schema_child(r->c, r->entry, "then", NULL, -1, then) : SL_ENTRY_TRUE;
    fails[1] = otherwise ? sl_schema_child(r->c, r->entry, "else", NULL, -1, otherwise) : SL_ENTRY_TRUE;
    if (fails[0] < 0 || holds[1] < 0 || fails[1] < 0) {
        return false;
    }
    sl_schema_group *group = add_group(r, 2);
    if (!group) {
        return false;
    }
    group->entries[0] = sl_schema_all_of(r->c, r->entry, holds, 2);
    group->entries[1] = sl_schema_all_of(r->c, r->entry, fails, 2);
    return group->entries[0] >= 0 && group->entries[1] >= 0;
}

/* ---- what is left over ---- */

/* Gathers what an entry evaluates by itself: false where that depends on the value. */
static bool evaluated(reader *r, int32_t entry, sl_schema_node *sum, bool *everything, int depth) {
    sl_schema_node *node = depth > 0 ? sl_schema_read(r->c, entry) : NULL;
    const json_t *json = r->c->entries[entry].json;
    if (!node || node->groups || json_object_get(json, "if")) {
        return false;
    }
    *everything = *everything || json_object_get(json, "additionalProperties") ||
                  (json != r->schema && json_object_get(json, "unevaluatedProperties"));
    for (int32_t i = 0; i < node->property_count + node->pattern_count; i++) {
        const bool pattern = i >= node->property_count;
        sl_schema_property **rows = pattern ? &sum->patterns : &sum->properties;
        int32_t *count = pattern ? &sum->pattern_count : &sum->property_count, capacity = *count;
        if (!sl_schema_grow(r->c, (void **)rows, *count, &capacity, sizeof **rows)) {
            return false;
        }
        const char *key = pattern ? node->patterns[i - node->property_count].key : node->properties[i].key;
        (*rows)[(*count)++] = (sl_schema_property){key, SL_ENTRY_TRUE};
    }
    for (int32_t i = 0; i < node->all_count; i++) {
        /* What is negated evaluates nothing. */
        if (r->c->entries[node->all[i]].negation_of < 0 &&
            !evaluated(r, node->all[i], sum, everything, depth - 1)) {
            return false;
        }
    }
    return true;
}

static bool read_unevaluated_properties(reader *r, const json_t *value) {
    int32_t entry, child;
    bool everything = json_object_get(r->schema, "additionalProperties") != NULL;
    if (!read_child(r, value, &child)) {
        return false;
    }
    if (child == SL_ENTRY_TRUE || everything) {
        return true;
    }
    sl_schema_node *sum = make_entry(r, &entry);
    if (!sum) {
        return false;
    }
    sl_schema_node *own = r->node;
    sl_schema_node *parts = sl_schema_node_make(r->c, r->entry);
    if (!parts) {
        return false;
    }
    *parts = *own;
    r->c->entries[r->entry].node = parts; /* as far as it is read: this keyword is the last */
    const bool known = evaluated(r, r->entry, sum, &everything, 16);
    r->c->entries[r->entry].node = NULL;
    if (!known) {
        return unsupported(r, "is held beside properties, allOf and $ref only");
    }
    sum->additional = child;
    return everything || add_all(r, entry);
}

static bool read_unevaluated_items(reader *r, const json_t *value) {
    int32_t child;
    if (!read_child(r, value, &child)) {
        return false;
    }
    if (child == SL_ENTRY_TRUE || r->node->items >= 0) {
        return true;
    }
    if (r->node->all_count || r->node->groups || json_object_get(r->schema, "contains") ||
        json_object_get(r->schema, "if")) {
        return unsupported(r, "is held beside prefixItems and items only");
    }
    r->node->items = child;
    return true;
}

static const struct {
    const char *name;
    bool (*read)(reader *r, const json_t *value);
} KEYWORDS[] = {
    {"$ref", read_reference},
    {"$dynamicRef", read_reference},
    {"$recursiveRef", read_reference},
    {"type", read_type},
    {"enum", read_enum},
    {"const", read_const},
    {"minimum", read_bound},
    {"maximum", read_bound},
    {"exclusiveMinimum", read_exclusive},
    {"exclusiveMaximum", read_exclusive},
    {"multipleOf", read_multiple},
    {"minLength", read_min_length},
    {"maxLength", read_max_length},
    {"pattern", read_pattern},
    {"format", read_format},
    {"prefixItems", read_prefix},
    {"items", read_items},
    {"minItems", read_min_items},
    {"maxItems", read_max_items},
    {"uniqueItems", read_unique},
    {"contains", read_contains},
    {"properties", read_properties},
    {"patternProperties", read_pattern_properties},
    {"additionalProperties", read_additional},
    {"propertyNames", read_names},
    {"required", read_required},
    {"minProperties", read_min_properties},
    {"maxProperties", read_max_properties},
    {"dependentRequired", read_dependencies},
    {"dependentSchemas", read_dependencies},
    {"dependencies", read_dependencies},
    {"allOf", read_all},
    {"anyOf", read_any},
    {"oneOf", read_any},
    {"not", read_not},
    {"if", read_if},
    /* Last: they look at what the others found. */
    {"unevaluatedItems", read_unevaluated_items},
    {"unevaluatedProperties", read_unevaluated_properties},
};

static bool asserts(const sl_schema_node *n) {
    return n->types != SL_TYPE_ANY || n->lower.is_set || n->upper.is_set || n->multiple || n->not_multiple ||
           n->min_length || n->max_length >= 0 || n->text_count || n->prefix_count || n->items >= 0 ||
           n->min_items || n->max_items >= 0 || n->unique || n->contains >= 0 || n->property_count ||
           n->pattern_count || n->additional >= 0 || n->names >= 0 || n->required_count ||
           n->min_properties || n->max_properties >= 0 || n->values || n->forbidden || n->exists;
}

static bool read_keywords(reader *r) {
    const bool alone = r->c->references_stand_alone && json_object_get(r->schema, "$ref");
    for (size_t i = 0; i < (alone ? 1 : sizeof KEYWORDS / sizeof *KEYWORDS); i++) {
        const json_t *value = json_object_get(r->schema, KEYWORDS[i].name);
        r->keyword = KEYWORDS[i].name;
        if (value && (!KEYWORDS[i].read(r, value) || r->c->code)) {
            return false;
        }
    }
    return true;
}

sl_schema_node *sl_schema_read(sl_schema_context *c, int32_t entry) {
    if (c->code || c->entries[entry].node) {
        return c->code ? NULL : c->entries[entry].node;
    }
    if (c->entries[entry].is_open) {
        sl_schema_refuse(c, SL_ERR_UNSUPPORTED, entry, NULL, "is needed to read itself");
        return NULL;
    }
    reader r = {c, sl_schema_node_make(c, entry), c->entries[entry].json, entry, NULL};
    if (!r.node) {
        return NULL;
    }
    c->entries[entry].is_open = true;
    bool read = true;
    if (entry == SL_ENTRY_FALSE) {
        r.node->types = 0;
    } else if (c->entries[entry].negation_of >= 0) {
        read = sl_schema_negate(c, entry, r.node);
    } else if (r.schema) {
        read = read_keywords(&r);
    }
    c->entries[entry].is_open = false;
    if (!read || c->code) {
        return NULL;
    }
    r.node->asserts = asserts(r.node);
    c->entries[entry].node = r.node;
    return r.node;
}
