/* What does not satisfy a schema: a choice of nodes, each of which breaks one of its assertions. */
#include "grammar/schema_internal.h"

typedef struct negation {
    sl_schema_context *c;
    int32_t entry; /* that is made */
    sl_schema_group *choices;
    int32_t capacity;
} negation;

int32_t sl_schema_negation(sl_schema_context *c, int32_t entry) {
    if (entry < 0) {
        return -1;
    }
    if (entry == SL_ENTRY_TRUE || entry == SL_ENTRY_FALSE) {
        return entry == SL_ENTRY_TRUE ? SL_ENTRY_FALSE : SL_ENTRY_TRUE;
    }
    if (c->entries[entry].negation_of >= 0) {
        return c->entries[entry].negation_of;
    }
    if (c->entries[entry].negation < 0) {
        const int32_t made = sl_schema_entry_make(c, entry);
        if (made < 0) {
            return -1;
        }
        c->entries[made].negation_of = entry;
        c->entries[entry].negation = made;
    }
    return c->entries[entry].negation;
}

static bool add_entry(negation *n, int32_t entry) {
    if (entry < 0 || !sl_schema_grow(n->c, (void **)&n->choices->entries, n->choices->count, &n->capacity,
                                     sizeof *n->choices->entries)) {
        return false;
    }
    n->choices->entries[n->choices->count++] = entry;
    return true;
}

/* One more choice, of these types, to be filled; NULL after a failure. */
static sl_schema_node *add_node(negation *n, uint8_t types) {
    const int32_t entry = sl_schema_entry_make(n->c, n->entry);
    sl_schema_node *node = entry < 0 ? NULL : sl_schema_node_make(n->c, entry);
    if (!node || !add_entry(n, entry)) {
        return NULL;
    }
    node->types = types;
    node->asserts = true;
    n->c->entries[entry].node = node;
    return node;
}

static bool refuse(negation *n, const char *keyword) {
    sl_schema_refuse(n->c, SL_ERR_UNSUPPORTED, n->c->entries[n->entry].negation_of, keyword,
                     "cannot be negated (by not, if or oneOf)");
    return false;
}

/* A made entry that accepts the value alone. */
static int32_t constant_entry(negation *n, json_t *value) {
    const int32_t entry = sl_schema_entry_make(n->c, n->entry);
    sl_schema_node *node = entry < 0 ? NULL : sl_schema_node_make(n->c, entry);
    json_t *array = json_array();
    if (!array || json_array_append(array, value) || json_array_append_new(n->c->document, array)) {
        sl_schema_refuse(n->c, SL_ERR_NOMEM, -1, NULL, "no memory for a schema");
        return -1;
    }
    if (!node) {
        return -1;
    }
    node->asserts = true;
    node->values = array;
    n->c->entries[entry].node = node;
    return entry;
}

/* A made entry that says of an array or an object what it is made of, which can be negated part by part. */
static int32_t taken_apart(negation *n, json_t *value) {
    const bool array = json_is_array(value);
    const size_t count = array ? json_array_size(value) : json_object_size(value);
    const int32_t entry = sl_schema_entry_make(n->c, n->entry);
    sl_schema_node *node = entry < 0 ? NULL : sl_schema_node_make(n->c, entry);
    const char *key;
    json_t *item;
    if (!node || !(node->prefix = sl_schema_alloc(n->c, count, sizeof *node->prefix)) ||
        !(node->properties = sl_schema_alloc(n->c, count, sizeof *node->properties)) ||
        !(node->required = sl_schema_alloc(n->c, count, sizeof *node->required))) {
        return -1;
    }
    node->asserts = true;
    node->types = array ? SL_TYPE_ARRAY : SL_TYPE_OBJECT;
    n->c->entries[entry].node = node;
    for (size_t i = 0; array && i < count; i++) {
        node->prefix[node->prefix_count++] = constant_entry(n, json_array_get(value, i));
    }
    if (array) {
        node->min_items = node->max_items = (int64_t)count;
    } else {
        node->additional = SL_ENTRY_FALSE;
        json_object_foreach(value, key, item) {
            node->required[node->required_count++] = key;
            node->properties[node->property_count++] = (sl_schema_property){key, constant_entry(n, item)};
        }
    }
    return n->c->code ? -1 : entry;
}

/* Forbidden values that are no scalars, which emitting takes no notice of. */
static bool forbid_containers(negation *n, sl_schema_node *node) {
    const json_t *values = node->forbidden->array;
    int32_t capacity = 0;
    for (size_t i = 0; i < json_array_size(values); i++) {
        json_t *value = json_array_get(values, i);
        if (!json_is_array(value) && !json_is_object(value)) {
            continue;
        }
        const int32_t entry = sl_schema_negation(n->c, taken_apart(n, value));
        if (entry < 0 ||
            !sl_schema_grow(n->c, (void **)&node->all, node->all_count, &capacity, sizeof *node->all)) {
            return false;
        }
        node->all[node->all_count++] = entry;
    }
    return true;
}

static bool negate_values(negation *n, const sl_schema_node *node) {
    if (node->types != SL_TYPE_ANY && !add_node(n, SL_TYPE_ANY & ~node->types)) {
        return false;
    }
    if (node->values) {
        sl_schema_node *breaks = add_node(n, SL_TYPE_ANY);
        if (!breaks || !(breaks->forbidden = sl_schema_alloc(n->c, 1, sizeof *breaks->forbidden))) {
            return false;
        }
        breaks->forbidden->array = node->values;
        if (!forbid_containers(n, breaks)) {
            return false;
        }
    }
    for (const sl_schema_values *values = node->forbidden; values; values = values->next) {
        sl_schema_node *is = add_node(n, SL_TYPE_ANY);
        if (!is) {
            return false;
        }
        is->values = values->array;
    }
    return true;
}

static bool negate_scalars(negation *n, const sl_schema_node *node) {
    sl_schema_node *breaks;
    if (node->lower.is_set) {
        if (!(breaks = add_node(n, SL_TYPE_NUMBER))) {
            return false;
        }
        breaks->upper = (sl_bound){true, !node->lower.exclusive, node->lower.value};
    }
    if (node->upper.is_set) {
        if (!(breaks = add_node(n, SL_TYPE_NUMBER))) {
            return false;
        }
        breaks->lower = (sl_bound){true, !node->upper.exclusive, node->upper.value};
    }
    if (node->multiple) {
        if (!(breaks = add_node(n, SL_TYPE_NUMBER))) {
            return false;
        }
        breaks->not_multiple = node->multiple;
    }
    if (node->min_length > 0) {
        if (!(breaks = add_node(n, SL_TYPE_STRING))) {
            return false;
        }
        breaks->max_length = node->min_length - 1;
    }
    if (node->max_length >= 0 && node->max_length < INT64_MAX) {
        if (!(breaks = add_node(n, SL_TYPE_STRING))) {
            return false;
        }
        breaks->min_length = node->max_length + 1;
    }
    for (int32_t i = 0; i < node->text_count; i++) {
        if (!(breaks = add_node(n, SL_TYPE_STRING)) ||
            !(breaks->texts = sl_schema_alloc(n->c, 1, sizeof *breaks->texts))) {
            return false;
        }
        breaks->texts[breaks->text_count++] = node->texts[i];
        breaks->texts[0].negated = !node->texts[i].negated;
    }
    return true;
}

static bool negate_array(negation *n, const sl_schema_node *node) {
    sl_schema_node *breaks;
    for (int32_t i = 0; i < node->prefix_count; i++) {
        if (!(breaks = add_node(n, SL_TYPE_ARRAY)) ||
            !(breaks->prefix = sl_schema_alloc(n->c, (uint64_t)i + 1, sizeof *breaks->prefix))) {
            return false;
        }
        breaks->prefix_count = i + 1; /* those before it are 0, which is TRUE */
        breaks->min_items = i + 1;
        if ((breaks->prefix[i] = sl_schema_negation(n->c, node->prefix[i])) < 0) {
            return false;
        }
    }
    if (node->items == SL_ENTRY_FALSE) {
        if (!(breaks = add_node(n, SL_TYPE_ARRAY))) {
            return false;
        }
        breaks->min_items = (int64_t)node->prefix_count + 1;
    } else if (node->items > SL_ENTRY_FALSE) {
        if (node->prefix_count) {
            return refuse(n, "items");
        }
        if (!(breaks = add_node(n, SL_TYPE_ARRAY)) ||
            (breaks->contains = sl_schema_negation(n->c, node->items)) < 0) {
            return false;
        }
        breaks->min_contains = 1;
    }
    if (node->unique) {
        return refuse(n, "uniqueItems");
    }
    if (node->contains >= 0) {
        if (node->min_contains != 1 || node->max_contains >= 0) {
            return refuse(n, "contains");
        }
        if (!(breaks = add_node(n, SL_TYPE_ARRAY)) ||
            (breaks->items = sl_schema_negation(n->c, node->contains)) < 0) {
            return false;
        }
    }
    if (node->min_items > 0) {
        if (!(breaks = add_node(n, SL_TYPE_ARRAY))) {
            return false;
        }
        breaks->max_items = node->min_items - 1;
    }
    if (node->max_items >= 0 && node->max_items < INT64_MAX) {
        if (!(breaks = add_node(n, SL_TYPE_ARRAY))) {
            return false;
        }
        breaks->min_items = node->max_items + 1;
    }
    return true;
}

/* The key is there, and its value satisfies the entry (FALSE: it is not there). */
static bool add_property(negation *n, const char *key, int32_t entry) {
    sl_schema_node *node = entry < 0 ? NULL : add_node(n, SL_TYPE_OBJECT);
    if (!node || !(node->properties = sl_schema_alloc(n->c, 1, sizeof *node->properties)) ||
        !(node->required = sl_schema_alloc(n->c, 1, sizeof *node->required))) {
        return false;
    }
    node->properties[node->property_count++] = (sl_schema_property){key, entry};
    if (entry != SL_ENTRY_FALSE) {
        node->required[node->required_count++] = key;
    }
    return true;
}

static bool add_exists(negation *n, sl_schema_exists exists) {
    sl_schema_node *node = add_node(n, SL_TYPE_OBJECT);
    sl_schema_exists *made = node ? sl_schema_alloc(n->c, 1, sizeof *made) : NULL;
    if (!made || exists.value < 0) {
        return false;
    }
    *made = exists;
    node->exists = made;
    return true;
}

static bool negate_object(negation *n, const sl_schema_node *node) {
    sl_schema_node *breaks;
    for (int32_t i = 0; i < node->property_count; i++) {
        const int32_t value = node->properties[i].entry;
        if (value != SL_ENTRY_TRUE &&
            !add_property(n, node->properties[i].key, sl_schema_negation(n->c, value))) {
            return false;
        }
    }
    for (int32_t i = 0; i < node->pattern_count; i++) {
        const int32_t value = node->patterns[i].entry;
        if (value != SL_ENTRY_TRUE &&
            !add_exists(n, (sl_schema_exists){.pattern = node->patterns[i].key,
                                              .names = -1,
                                              .value = sl_schema_negation(n->c, value)})) {
            return false;
        }
    }
    if (node->additional > SL_ENTRY_TRUE &&
        !add_exists(n, (sl_schema_exists){.owner = node,
                                          .names = -1,
                                          .value = sl_schema_negation(n->c, node->additional)})) {
        return false;
    }
    if (node->names > SL_ENTRY_TRUE &&
        !add_exists(n, (sl_schema_exists){.names = sl_schema_negation(n->c, node->names)})) {
        return false;
    }
    if (node->exists) {
        return refuse(n, "not");
    }
    for (int32_t i = 0; i < node->required_count; i++) {
        if (!add_property(n, node->required[i], SL_ENTRY_FALSE)) {
            return false;
        }
    }
    if (node->min_properties > 0) {
        if (!(breaks = add_node(n, SL_TYPE_OBJECT))) {
            return false;
        }
        breaks->max_properties = node->min_properties - 1;
    }
    if (node->max_properties >= 0 && node->max_properties < INT64_MAX) {
        if (!(breaks = add_node(n, SL_TYPE_OBJECT))) {
            return false;
        }
        breaks->min_properties = node->max_properties + 1;
    }
    return true;
}

/* Two of them hold. */
static bool negate_one(negation *n, const sl_schema_group *group) {
    enum { MOST = 10 };
    if (group->count > MOST) {
        return refuse(n, group->keyword);
    }
    for (int32_t i = 0; i < group->count; i++) {
        for (int32_t j = 0; j < i; j++) {
            const int32_t pair[2] = {group->entries[j], group->entries[i]};
            if (!add_entry(n, sl_schema_all_of(n->c, n->entry, pair, 2))) {
                return false;
            }
        }
    }
    return true;
}

static bool negate_groups(negation *n, const sl_schema_node *node) {
    for (int32_t i = 0; i < node->all_count; i++) {
        if (!add_entry(n, sl_schema_negation(n->c, node->all[i]))) {
            return false;
        }
    }
    for (const sl_schema_group *group = node->groups; group; group = group->next) {
        int32_t *none = sl_schema_alloc(n->c, (uint64_t)group->count, sizeof *none);
        if (!none) {
            return false;
        }
        if (group->exactly_one && !negate_one(n, group)) {
            return false;
        }
        for (int32_t i = 0; i < group->count; i++) {
            if ((none[i] = sl_schema_negation(n->c, group->entries[i])) < 0) {
                return false;
            }
        }
        if (!add_entry(n, sl_schema_all_of(n->c, n->entry, none, group->count))) {
            return false;
        }
    }
    return true;
}

bool sl_schema_negate(sl_schema_context *c, int32_t entry, sl_schema_node *node) {
    const sl_schema_node *of = sl_schema_read(c, c->entries[entry].negation_of);
    negation n = {.c = c, .entry = entry};
    n.choices = of ? sl_schema_alloc(c, 1, sizeof *n.choices) : NULL;
    if (!n.choices || !negate_values(&n, of) || !negate_scalars(&n, of) || !negate_array(&n, of) ||
        !negate_object(&n, of) || !negate_groups(&n, of)) {
        return false;
    }
    n.choices->keyword = "not";
    node->groups = n.choices;
    if (n.choices->count == 0) {
        node->types = 0; /* what everything satisfies */
    }
    return true;
}
