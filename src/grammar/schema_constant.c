/* Values that a schema names (enum, const): which of them other schemas accept, and how they are written. */
#include "grammar/schema_internal.h"

#include <math.h>
#include <stdio.h>

bool sl_schema_equal(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) {
        return json_is_integer(a) && json_is_integer(b) ? json_integer_value(a) == json_integer_value(b)
                                                        : json_number_value(a) == json_number_value(b);
    }
    if (json_typeof(a) != json_typeof(b)) {
        return false;
    }
    if (json_is_array(a)) {
        bool equal = json_array_size(a) == json_array_size(b);
        for (size_t i = 0; equal && i < json_array_size(a); i++) {
            equal = sl_schema_equal(json_array_get(a, i), json_array_get(b, i));
        }
        return equal;
    }
    if (json_is_object(a)) {
        const char *key;
        json_t *value;
        bool equal = json_object_size(a) == json_object_size(b);
        json_object_foreach((json_t *)a, key, value) {
            const json_t *other = equal ? json_object_get(b, key) : NULL;
            equal = other && sl_schema_equal(value, other);
        }
        return equal;
    }
    return json_equal(a, b);
}

static bool contains_value(const json_t *array, const json_t *value) {
    for (size_t i = 0; i < json_array_size(array); i++) {
        if (sl_schema_equal(json_array_get(array, i), value)) {
            return true;
        }
    }
    return false;
}

static uint8_t type_of(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_NULL:
        return SL_TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return SL_TYPE_BOOLEAN;
    case JSON_INTEGER:
        return SL_TYPE_INTEGER;
    case JSON_REAL:
        return json_real_value(value) == floor(json_real_value(value)) ? SL_TYPE_INTEGER : SL_TYPE_FRACTION;
    case JSON_STRING:
        return SL_TYPE_STRING;
    case JSON_ARRAY:
        return SL_TYPE_ARRAY;
    default:
        return SL_TYPE_OBJECT;
    }
}

static int accepts_number(sl_schema_context *c, const sl_schema_node *node, const json_t *value) {
    if (!node->lower.is_set && !node->upper.is_set && !node->multiple && !node->not_multiple) {
        return 1;
    }
    const sl_decimal number = sl_schema_decimal(c, value);
    if (c->code) {
        return c->code;
    }
    const int low = node->lower.is_set ? sl_decimal_compare(&number, &node->lower.value) : 1;
    const int high = node->upper.is_set ? sl_decimal_compare(&number, &node->upper.value) : -1;
    if (low < 0 || high > 0 || (low == 0 && node->lower.exclusive) || (high == 0 && node->upper.exclusive)) {
        return 0;
    }
    int multiple = node->multiple ? sl_decimal_is_multiple(&number, node->multiple) : 1;
    if (multiple > 0 && node->not_multiple) {
        multiple = sl_decimal_is_multiple(&number, node->not_multiple);
        multiple = multiple < 0 ? multiple : !multiple;
    }
    return multiple >= 0 ? multiple
                         : sl_schema_refuse(c, SL_ERR_UNSUPPORTED, node->entry, "multipleOf", "is too long");
}

static int accepts_string(sl_schema_context *c, const sl_schema_node *node, const char *text) {
    int64_t length = 0;
    for (const char *at = text; *at; at++) {
        length += (*at & 0xc0) != 0x80;
    }
    if (length < node->min_length || (node->max_length >= 0 && length > node->max_length)) {
        return 0;
    }
    for (int32_t i = 0; i < node->text_count; i++) {
        const int matches = sl_schema_text_matches(c, &node->texts[i], text);
        if (matches <= 0) {
            return matches;
        }
    }
    return 1;
}

static int accepts_array(sl_schema_context *c, const sl_schema_node *node, const json_t *value, int depth) {
    const int64_t count = (int64_t)json_array_size(value);
    int64_t found = 0;
    if (count < node->min_items || (node->max_items >= 0 && count > node->max_items)) {
        return 0;
    }
    for (int64_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(value, (size_t)i);
        const int32_t entry = i < node->prefix_count ? node->prefix[i] : node->items;
        int accepted = entry < 0 ? 1 : sl_schema_accepts(c, entry, item, depth - 1);
        if (accepted <= 0) {
            return accepted;
        }
        accepted = node->contains < 0 ? 0 : sl_schema_accepts(c, node->contains, item, depth - 1);
        if (accepted < 0) {
            return accepted;
        }
        found += accepted;
        for (int64_t before = 0; node->unique && before < i; before++) {
            if (!sl_schema_step(c, 1, node->entry)) {
                return c->code;
            }
            if (sl_schema_equal(item, json_array_get(value, (size_t)before))) {
                return 0;
            }
        }
    }
    return node->contains < 0 ||
           (found >= node->min_contains && (node->max_contains < 0 || found <= node->max_contains));
}

/* What the node says of one member. */
static int accepts_member(sl_schema_context *c, const sl_schema_node *node, const char *key,
                          const json_t *value, int depth) {
    sl_schema_node only = *node;
    sl_schema_node *list = &only;
    only.names = -1; /* looked at below: here it would be a set with FALSE all the same */
    const sl_schema_leaf leaf = {&list, 1, SL_TYPE_OBJECT};
    if (node->names >= 0) {
        json_t *name = json_string(key);
        const int accepted = name ? sl_schema_accepts(c, node->names, name, depth - 1) : 0;
        json_decref(name);
        if (accepted <= 0) {
            return accepted;
        }
    }
    const int32_t set = sl_schema_key_set(c, &leaf, key);
    if (set < 0) {
        return c->code;
    }
    for (int32_t i = 0; i < c->sets[set].count; i++) {
        const int accepted = sl_schema_accepts(c, c->sets[set].entries[i], value, depth - 1);
        if (accepted <= 0) {
            return accepted;
        }
    }
    return 1;
}

int sl_schema_exists_key(sl_schema_context *c, const sl_schema_exists *exists, const char *key) {
    if (exists->owner) {
        for (int32_t i = 0; i < exists->owner->property_count; i++) {
            if (strcmp(exists->owner->properties[i].key, key) == 0) {
                return 0;
            }
        }
        for (int32_t i = 0; i < exists->owner->pattern_count; i++) {
            const sl_text_rule rule =
                sl_schema_key_rule(exists->owner->patterns[i].key, exists->owner->entry);
            const int matches = sl_schema_text_matches(c, &rule, key);
            if (matches) {
                return matches < 0 ? matches : 0;
            }
        }
        return 1;
    }
    if (exists->pattern) {
        const sl_text_rule rule = sl_schema_key_rule(exists->pattern, -1);
        return sl_schema_text_matches(c, &rule, key);
    }
    json_t *name = json_string(key);
    const int accepted = name ? sl_schema_accepts(c, exists->names, name, 32) : 0;
    json_decref(name);
    return accepted;
}

static int has_member(sl_schema_context *c, const sl_schema_exists *exists, const json_t *value, int depth) {
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)value, key, item) {
        int accepted = sl_schema_exists_key(c, exists, key);
        accepted = accepted > 0 ? sl_schema_accepts(c, exists->value, item, depth - 1) : accepted;
        if (accepted) {
            return accepted;
        }
    }
    return 0;
}

static int accepts_object(sl_schema_context *c, const sl_schema_node *node, const json_t *value, int depth) {
    const int64_t count = (int64_t)json_object_size(value);
    const char *key;
    json_t *item;
    if (count < node->min_properties || (node->max_properties >= 0 && count > node->max_properties)) {
        return 0;
    }
    for (int32_t i = 0; i < node->required_count; i++) {
        if (!json_object_get(value, node->required[i])) {
            return 0;
        }
    }
    if (node->exists) {
        const int has = has_member(c, node->exists, value, depth);
        if (has <= 0) {
            return has;
        }
    }
    if (!node->property_count && !node->pattern_count && node->additional < 0 && node->names < 0) {
        return 1;
    }
    json_object_foreach((json_t *)value, key, item) {
        const int accepted = accepts_member(c, node, key, item, depth);
        if (accepted <= 0) {
            return accepted;
        }
    }
    return 1;
}

int sl_schema_node_accepts(sl_schema_context *c, const sl_schema_node *node, const json_t *value, int depth) {
    const uint8_t type = type_of(value);
    uint64_t steps = 1;
    if (!(node->types & type)) {
        return 0;
    }
    steps += node->values ? json_array_size(node->values) / 16 : 0;
    if (!sl_schema_step(c, steps, node->entry)) {
        return c->code;
    }
    if (node->values && !contains_value(node->values, value)) {
        return 0;
    }
    for (const sl_schema_values *list = node->forbidden; list; list = list->next) {
        if (contains_value(list->array, value)) {
            return 0;
        }
    }
    return type & SL_TYPE_NUMBER    ? accepts_number(c, node, value)
           : type == SL_TYPE_STRING ? accepts_string(c, node, json_string_value(value))
           : type == SL_TYPE_ARRAY  ? accepts_array(c, node, value, depth)
           : type == SL_TYPE_OBJECT ? accepts_object(c, node, value, depth)
                                    : 1;
}

int sl_schema_accepts(sl_schema_context *c, int32_t entry, const json_t *value, int depth) {
    const sl_schema_node *node = sl_schema_read(c, entry);
    if (!node) {
        return c->code;
    }
    if (depth <= 0) {
        return sl_schema_refuse(c, SL_ERR_LIMIT, entry, NULL, "is nested too deeply to check a constant");
    }
    int accepted = sl_schema_node_accepts(c, node, value, depth);
    for (int32_t i = 0; accepted > 0 && i < node->all_count; i++) {
        accepted = sl_schema_accepts(c, node->all[i], value, depth - 1);
    }
    for (const sl_schema_group *group = node->groups; accepted > 0 && group; group = group->next) {
        int32_t holding = 0;
        for (int32_t i = 0; i < group->count; i++) {
            accepted = sl_schema_accepts(c, group->entries[i], value, depth - 1);
            if (accepted < 0) {
                return accepted;
            }
            holding += accepted;
        }
        accepted = group->exactly_one ? holding == 1 : holding > 0;
    }
    return accepted;
}

bool sl_schema_has_values(const sl_schema_leaf *leaf) {
    for (int32_t i = 0; i < leaf->count; i++) {
        if (leaf->nodes[i]->values) {
            return true;
        }
    }
    return false;
}

json_t *sl_schema_candidates(sl_schema_context *c, const sl_schema_leaf *leaf) {
    enum { DEEPEST = 256 };
    const sl_schema_node *source = NULL;
    for (int32_t i = 0; i < leaf->count; i++) {
        const json_t *values = leaf->nodes[i]->values;
        if (values && (!source || json_array_size(values) < json_array_size(source->values))) {
            source = leaf->nodes[i];
        }
    }
    json_t *kept = source ? json_array() : NULL;
    for (size_t i = 0; kept && i < json_array_size(source->values); i++) {
        json_t *value = json_array_get(source->values, i);
        int accepted = 1;
        for (int32_t at = 0; accepted > 0 && at < leaf->count; at++) {
            sl_schema_node node = *leaf->nodes[at];
            node.values = leaf->nodes[at] == source ? NULL : node.values;
            accepted = sl_schema_node_accepts(c, &node, value, DEEPEST);
        }
        if (accepted < 0 || (accepted && json_array_append(kept, value))) {
            sl_schema_refuse(c, SL_ERR_NOMEM, -1, NULL, "no memory for a schema");
            json_decref(kept);
            return NULL;
        }
    }
    return kept;
}

/* ---- as they are written ---- */

/* By the shortest digits that mean it, as the common libraries write it. */
static sl_expression number(sl_schema_context *c, const json_t *value) {
    enum { PLAIN = 21 };
    const sl_decimal decimal = sl_schema_decimal(c, value);
    if (c->code) {
        return SL_NO_EXPRESSION;
    }
    sl_buffer text = {0};
    const char *sign = decimal.negative ? "-" : "";
    const size_t whole = strlen(decimal.whole), fraction = strlen(decimal.fraction);
    sl_expression plain = SL_NO_EXPRESSION, other = SL_NO_EXPRESSION;
    if (whole <= PLAIN) {
        sl_buffer_printf(&text, "%s%s%s%s", sign, decimal.whole, fraction ? "." : "", decimal.fraction);
        plain = sl_schema_literal(c, text.failed ? "" : text.data);
    }
    size_t zeros = strspn(decimal.fraction, "0");
    if (whole > PLAIN || (decimal.whole[0] == '0' && zeros >= 4)) {
        const char *digits = whole > PLAIN ? decimal.whole : decimal.fraction + zeros;
        size_t count = strlen(digits);
        const int power = whole > PLAIN ? (int)whole - 1 : (int)zeros + 1;
        while (count > 1 && digits[count - 1] == '0') {
            count--;
        }
        sl_buffer_clear(&text);
        sl_buffer_printf(&text, "%s%c%s%.*se", sign, digits[0], count > 1 ? "." : "", (int)count - 1,
                         digits + 1);
        const sl_expression mantissa = sl_schema_literal(c, text.failed ? "" : text.data);
        sl_buffer_clear(&text);
        sl_buffer_printf(&text, "%s%s%d", whole > PLAIN ? "" : "-", whole > PLAIN || power > 9 ? "" : "0",
                         power);
        sl_expression exponent = sl_schema_literal(c, text.failed ? "" : text.data);
        if (whole > PLAIN) {
            exponent = sl_schema_sequence(c, 2, sl_schema_optional(c, sl_schema_literal(c, "+")), exponent);
        } else if (power <= 9) {
            sl_buffer_clear(&text);
            sl_buffer_printf(&text, "-%d", power);
            exponent = sl_schema_choice(c, 2, exponent, sl_schema_literal(c, text.failed ? "" : text.data));
        }
        other = sl_schema_sequence(c, 2, mantissa, exponent);
    }
    if (text.failed) {
        sl_schema_refuse(c, SL_ERR_NOMEM, -1, NULL, "no memory for a schema");
    }
    sl_buffer_free(&text);
    return whole > PLAIN                           ? other
           : zeros >= 4 && decimal.whole[0] == '0' ? sl_schema_choice(c, 2, plain, other)
                                                   : plain;
}

static sl_expression container(sl_schema_context *c, const json_t *value, int depth) {
    const bool object = json_is_object(value);
    sl_expression_list list = {0};
    const char *key;
    json_t *item;
    const size_t count = object ? json_object_size(value) : json_array_size(value);
    sl_schema_add(c, &list, sl_schema_literal(c, object ? "{" : "["));
    if (count) {
        sl_schema_add(c, &list, c->open_space);
    }
    if (object) {
        json_object_foreach((json_t *)value, key, item) {
            if (list.count > 2) {
                sl_schema_add(c, &list, c->comma);
            }
            sl_schema_add(c, &list, sl_schema_name(c, sl_schema_literal(c, key)));
            sl_schema_add(c, &list, c->colon);
            sl_schema_add(c, &list, sl_schema_constant(c, item, depth - 1));
        }
    }
    for (size_t i = 0; !object && i < count; i++) {
        if (i) {
            sl_schema_add(c, &list, c->comma);
        }
        sl_schema_add(c, &list, sl_schema_constant(c, json_array_get(value, i), depth - 1));
    }
    if (count) {
        sl_schema_add(c, &list, c->close_space);
    }
    sl_schema_add(c, &list, sl_schema_literal(c, object ? "}" : "]"));
    return sl_expression_sequence(c->builder, list.rows, list.count);
}

sl_expression sl_schema_constant(sl_schema_context *c, const json_t *value, int depth) {
    if (c->code || depth <= 0) {
        return SL_NO_EXPRESSION;
    }
    switch (json_typeof(value)) {
    case JSON_NULL:
        return sl_schema_literal(c, "null");
    case JSON_TRUE:
        return sl_schema_literal(c, "true");
    case JSON_FALSE:
        return sl_schema_literal(c, "false");
    case JSON_STRING:
        return sl_schema_quoted(c, sl_schema_literal(c, json_string_value(value)));
    case JSON_ARRAY:
    case JSON_OBJECT:
        return container(c, value, depth);
    default:
        return number(c, value);
    }
}
