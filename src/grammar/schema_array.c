/* Arrays: the first items each by their own schema, the rest by one. */
#include "grammar/schema_internal.h"

#include <stdio.h>

typedef struct array_shape {
    int64_t least, most; /* items; most -1: no bound */
    int32_t prefix;
    int32_t rest; /* the set of the items behind the prefix */
    bool unique;
    int32_t unique_entry;
    const sl_schema_node *contains;
} array_shape;

static bool read_shape(sl_schema_context *c, const sl_schema_leaf *leaf, array_shape *shape) {
    *shape = (array_shape){.most = -1};
    for (int32_t i = 0; i < leaf->count; i++) {
        const sl_schema_node *node = leaf->nodes[i];
        shape->least = node->min_items > shape->least ? node->min_items : shape->least;
        if (node->max_items >= 0 && (shape->most < 0 || node->max_items < shape->most)) {
            shape->most = node->max_items;
        }
        shape->prefix = node->prefix_count > shape->prefix ? node->prefix_count : shape->prefix;
        if (node->unique) {
            shape->unique = true;
            shape->unique_entry = node->entry;
        }
        if (node->contains >= 0) {
            if (shape->contains) {
                sl_schema_refuse(c, SL_ERR_UNSUPPORTED, node->entry, "contains", "stands beside another one");
                return false;
            }
            shape->contains = node;
        }
    }
    shape->rest = sl_schema_item_set(c, leaf, shape->prefix);
    if (shape->rest < 0) {
        return false;
    }
    if (sl_schema_is_empty(c, shape->rest, 2) && (shape->most < 0 || shape->most > shape->prefix)) {
        shape->most = shape->prefix;
    }
    return !c->code;
}

static sl_expression between(sl_schema_context *c, sl_expression items) {
    return sl_schema_sequence(c, 5, sl_schema_literal(c, "["), c->open_space, items, c->close_space,
                              sl_schema_literal(c, "]"));
}

static sl_expression with_comma(sl_schema_context *c, sl_expression item) {
    return sl_schema_sequence(c, 2, c->comma, item);
}

/* Items from `at` on, with a comma before each but the first of all. */
static sl_expression items(sl_schema_context *c, const sl_schema_leaf *leaf, const array_shape *shape) {
    const int64_t prefix = shape->most >= 0 && shape->most < shape->prefix ? shape->most : shape->prefix;
    const int64_t most = shape->most < 0 ? -1 : shape->most - prefix;
    int64_t least = shape->least > prefix ? shape->least - prefix : 0;
    sl_expression tail = sl_expression_empty(c->builder);
    if (most != 0) {
        const sl_expression item = sl_schema_value(c, shape->rest), next = with_comma(c, item);
        if (prefix > 0) {
            tail = sl_expression_repeat(c->builder, next, least, most);
        } else {
            const sl_expression more =
                sl_expression_repeat(c->builder, next, least > 0 ? least - 1 : 0, most < 0 ? -1 : most - 1);
            tail = sl_schema_sequence(c, 2, item, more);
        }
    }
    for (int64_t i = prefix - 1; i >= 0; i--) {
        const int32_t set = sl_schema_item_set(c, leaf, (int32_t)i);
        if (set < 0) {
            return SL_NO_EXPRESSION;
        }
        const sl_expression item = sl_schema_value(c, set);
        tail = sl_schema_sequence(c, 2, i ? with_comma(c, item) : item, tail);
        if (shape->least <= i && i > 0) {
            tail = sl_schema_optional(c, tail);
        }
    }
    return tail;
}

/* ---- uniqueItems: of few values, each used once ---- */

enum { MOST_UNIQUE = 9 };

typedef struct unique_walk {
    sl_schema_context *c;
    const array_shape *shape;
    sl_expression values[MOST_UNIQUE];
    int32_t count;
    int32_t rules[1 << MOST_UNIQUE]; /* by which are used; -1: none yet */
} unique_walk;

/* What follows once the values of `used` stand there. */
static sl_expression unique_after(unique_walk *w, uint32_t used, int32_t depth) {
    sl_schema_context *c = w->c;
    sl_expression_list choices = {0};
    if (w->rules[used] >= 0) {
        return sl_expression_rule(c->builder, w->rules[used]);
    }
    w->rules[used] = sl_grammar_rule(c->builder, "unique items");
    if (w->shape->least <= depth) {
        sl_schema_add(c, &choices, sl_expression_empty(c->builder));
    }
    for (int32_t i = 0; i < w->count && (w->shape->most < 0 || depth < w->shape->most); i++) {
        if (!(used >> i & 1)) {
            const sl_expression item = depth ? with_comma(c, w->values[i]) : w->values[i];
            sl_schema_add(c, &choices,
                          sl_schema_sequence(c, 2, item, unique_after(w, used | 1U << i, depth + 1)));
        }
    }
    sl_grammar_define(c->builder, w->rules[used],
                      sl_expression_choice(c->builder, choices.rows, choices.count));
    return sl_expression_rule(c->builder, w->rules[used]);
}

/* Adds a value that is not there yet. */
static bool add_value(unique_walk *w, json_t *known, json_t *value) {
    for (size_t i = 0; i < json_array_size(known); i++) {
        if (sl_schema_equal(json_array_get(known, i), value)) {
            return true;
        }
    }
    if (w->count == MOST_UNIQUE || json_array_append(known, value)) {
        return false;
    }
    w->values[w->count++] = sl_schema_constant(w->c, value, 256);
    return true;
}

static bool finite_values(unique_walk *w) {
    const sl_schema_leaves *leaves = sl_schema_expand(w->c, w->shape->rest, false);
    json_t *known = json_array();
    bool finite = leaves && known;
    for (int32_t i = 0; finite && i < leaves->count; i++) {
        json_t *values;
        if (sl_schema_has_values(&leaves->rows[i])) {
            values = sl_schema_candidates(w->c, &leaves->rows[i]);
        } else {
            const uint8_t types = leaves->rows[i].types;
            finite = !(types & ~(SL_TYPE_NULL | SL_TYPE_BOOLEAN)) && leaves->rows[i].count == 1;
            values = json_array();
            if (types & SL_TYPE_BOOLEAN) {
                json_array_append_new(values, json_true());
                json_array_append_new(values, json_false());
            }
            if (types & SL_TYPE_NULL) {
                json_array_append_new(values, json_null());
            }
        }
        finite = finite && values;
        for (size_t at = 0; finite && at < json_array_size(values); at++) {
            finite = add_value(w, known, json_array_get(values, at));
        }
        json_decref(values);
    }
    json_decref(known);
    return finite;
}

static sl_expression unique(sl_schema_context *c, const array_shape *shape) {
    unique_walk *w = sl_schema_alloc(c, 1, sizeof *w);
    if (!w) {
        return SL_NO_EXPRESSION;
    }
    w->c = c;
    w->shape = shape;
    memset(w->rules, 0xff, sizeof w->rules);
    if (shape->prefix || shape->contains || !finite_values(w)) {
        sl_schema_refuse(c, SL_ERR_UNSUPPORTED, shape->unique_entry, "uniqueItems",
                         "is held where the items are at most %d constants, or maxItems is 1", MOST_UNIQUE);
        return SL_NO_EXPRESSION;
    }
    if (shape->least > w->count) {
        return sl_expression_nothing(c->builder);
    }
    sl_expression_list choices = {0};
    for (int32_t i = 0; i < w->count && shape->most != 0; i++) {
        sl_schema_add(c, &choices, sl_schema_sequence(c, 2, w->values[i], unique_after(w, 1U << i, 1)));
    }
    const sl_expression some = between(c, sl_expression_choice(c->builder, choices.rows, choices.count));
    return shape->least > 0 ? some : sl_schema_choice(c, 2, sl_schema_literal(c, "[]"), some);
}

/* ---- contains ---- */

/* Items that match, with others between them; without bounds on how many there are in all. */
static sl_expression containing(sl_schema_context *c, const array_shape *shape) {
    const sl_schema_node *node = shape->contains;
    const sl_schema_set *rest = &c->sets[shape->rest];
    if (shape->prefix || shape->most >= 0 || shape->least > node->min_contains || node->min_contains > 64) {
        sl_schema_refuse(c, SL_ERR_UNSUPPORTED, node->entry, "contains",
                         "is held without prefixItems, minItems and maxItems beside it");
        return SL_NO_EXPRESSION;
    }
    const int32_t count = rest->count;
    int32_t *matching = sl_schema_alloc(c, (uint64_t)count + 1, sizeof *matching);
    int32_t *others = sl_schema_alloc(c, (uint64_t)count + 1, sizeof *others);
    if (!matching || !others) {
        return SL_NO_EXPRESSION;
    }
    for (int32_t i = 0; i < count; i++) {
        matching[i] = others[i] = rest->entries[i];
    }
    matching[count] = node->contains;
    /* Where there is no most, what is between may match as well. */
    others[count] = node->max_contains < 0 ? SL_ENTRY_TRUE : sl_schema_negation(c, node->contains);
    const int32_t other_set = others[count] < 0 ? -1 : sl_schema_set_of(c, others, count + 1);
    const int32_t match_set = sl_schema_set_of(c, matching, count + 1);
    if (other_set < 0 || match_set < 0) {
        return SL_NO_EXPRESSION;
    }
    const sl_expression match = sl_schema_value(c, match_set), other = sl_schema_value(c, other_set);
    const sl_expression run = sl_expression_repeat(c->builder, with_comma(c, other), 0, -1);
    const sl_expression before = sl_expression_repeat(c->builder, sl_schema_sequence(c, 2, other, c->comma),
                                                      0, -1); /* each with its comma behind it */
    const int64_t least = node->min_contains > 0 ? node->min_contains : 1;
    if (node->max_contains >= 0 && node->max_contains < least && node->min_contains > 0) {
        return sl_expression_nothing(c->builder);
    }
    const sl_expression more =
        sl_expression_repeat(c->builder, sl_schema_sequence(c, 2, with_comma(c, match), run), least - 1,
                             node->max_contains < 0 ? -1 : node->max_contains - 1);
    sl_expression some = sl_schema_sequence(c, 4, before, match, run, more);
    if (node->max_contains >= 0 && (node->min_contains == 0 || node->max_contains == 0)) {
        const sl_expression none = sl_schema_sequence(c, 2, other, run);
        some = node->max_contains == 0 ? none : sl_schema_choice(c, 2, some, none);
        return sl_schema_choice(c, 2, sl_schema_literal(c, "[]"), between(c, some));
    }
    return between(c, some);
}

sl_expression sl_schema_array(sl_schema_context *c, const sl_schema_leaf *leaf) {
    array_shape shape;
    if (!read_shape(c, leaf, &shape)) {
        return SL_NO_EXPRESSION;
    }
    if (shape.most >= 0 && shape.least > shape.most) {
        return sl_expression_nothing(c->builder);
    }
    if (shape.unique && (shape.most < 0 || shape.most > 1)) {
        return unique(c, &shape);
    }
    if (shape.contains) {
        return containing(c, &shape);
    }
    if (shape.most == 0) {
        return sl_schema_literal(c, "[]");
    }
    const sl_expression some = between(c, items(c, leaf, &shape));
    return shape.least > 0 ? some : sl_schema_choice(c, 2, sl_schema_literal(c, "[]"), some);
}
