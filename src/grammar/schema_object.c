/* Objects: declared properties in the schema's order, then keys that are not declared. */
#include "grammar/schema_internal.h"

typedef struct member {
    const char *key;
    int32_t set; /* of its value */
    bool required, forbidden;
    sl_expression expression; /* key, colon, value */
} member;

/* Keys that are not declared, by the patterns they match: those of one class have values of one set. */
typedef struct key_class {
    sl_expression keys; /* between quotes */
    int32_t *matched;   /* of the distinct patterns, 1: it matches */
    int32_t set;
} key_class;

typedef struct object_shape {
    sl_schema_context *c;
    const sl_schema_leaf *leaf;
    member *members;
    int32_t count, capacity;
    int32_t *table; /* of members by key */
    uint32_t slots;
    key_class *classes;
    int32_t class_count, class_capacity;
    const char **patterns;
    int32_t pattern_count, pattern_capacity;
    const sl_schema_exists *exists; /* an undeclared member of that kind must be there, or NULL */
    sl_expression special;          /* it */
    sl_expression others;           /* one more undeclared member, or SL_NO_EXPRESSION: there can be none */
    bool others_differ;             /* their names do, as more than one of them has to count */
    int64_t other_names;            /* how many they have to choose from, if so, or SL_MOST_NAMES and more */
    int64_t least, most;
    int32_t bound_entry; /* that has minProperties or maxProperties */
    int32_t required;    /* members that are */
} object_shape;

/* ---- declared members ---- */

static bool grow_table(object_shape *o) {
    if ((uint32_t)o->count * 2 < o->slots) {
        return true;
    }
    o->slots = o->slots ? o->slots * 2 : 64;
    o->table = sl_schema_alloc(o->c, o->slots, sizeof *o->table);
    if (!o->table) {
        return false;
    }
    memset(o->table, 0xff, o->slots * sizeof *o->table);
    for (int32_t i = 0; i < o->count; i++) {
        uint32_t at = (uint32_t)sl_hash64(o->members[i].key, strlen(o->members[i].key), 0);
        while (o->table[at & (o->slots - 1)] >= 0) {
            at++;
        }
        o->table[at & (o->slots - 1)] = i;
    }
    return true;
}

static member *declare(object_shape *o, const char *key) {
    if (!grow_table(o)) {
        return NULL;
    }
    uint32_t at = (uint32_t)sl_hash64(key, strlen(key), 0);
    for (; o->table[at & (o->slots - 1)] >= 0; at++) {
        member *found = &o->members[o->table[at & (o->slots - 1)]];
        if (strcmp(found->key, key) == 0) {
            return found;
        }
    }
    if (!sl_schema_grow(o->c, (void **)&o->members, o->count, &o->capacity, sizeof *o->members)) {
        return NULL;
    }
    o->table[at & (o->slots - 1)] = o->count;
    o->members[o->count] = (member){.key = key, .expression = SL_NO_EXPRESSION};
    return &o->members[o->count++];
}

static bool declare_all(object_shape *o) {
    for (int32_t i = 0; i < o->leaf->count; i++) {
        const sl_schema_node *node = o->leaf->nodes[i];
        for (int32_t at = 0; at < node->property_count; at++) {
            if (!declare(o, node->properties[at].key)) {
                return false;
            }
        }
        if (node->min_properties > o->least) {
            o->least = node->min_properties;
            o->bound_entry = node->entry;
        }
        if (node->max_properties >= 0 && (o->most < 0 || node->max_properties < o->most)) {
            o->most = node->max_properties;
            o->bound_entry = node->entry;
        }
    }
    for (int32_t i = 0; i < o->leaf->count; i++) {
        const sl_schema_node *node = o->leaf->nodes[i];
        for (int32_t at = 0; at < node->required_count; at++) {
            member *found = declare(o, node->required[at]);
            if (!found) {
                return false;
            }
            found->required = true;
        }
    }
    return true;
}

/* False after a failure; *possible: the required ones can be there. */
static bool fill_members(object_shape *o, bool *possible) {
    sl_schema_context *c = o->c;
    for (int32_t i = 0; i < o->count; i++) {
        member *m = &o->members[i];
        m->set = sl_schema_key_set(c, o->leaf, m->key);
        if (m->set < 0) {
            return false;
        }
        m->forbidden = sl_schema_set_has(c, m->set, SL_ENTRY_FALSE);
        if (!m->forbidden) {
            const sl_expression key = sl_schema_name(c, sl_schema_literal(c, m->key));
            m->expression = sl_schema_sequence(c, 3, key, c->colon, sl_schema_value(c, m->set));
        }
        *possible = *possible && !(m->required && m->forbidden);
        o->required += m->required;
    }
    return !c->code;
}

/* ---- undeclared keys ---- */

static int32_t pattern_index(object_shape *o, const char *pattern) {
    for (int32_t i = 0; i < o->pattern_count; i++) {
        if (strcmp(o->patterns[i], pattern) == 0) {
            return i;
        }
    }
    if (!sl_schema_grow(o->c, (void **)&o->patterns, o->pattern_count, &o->pattern_capacity,
                        sizeof *o->patterns)) {
        return -1;
    }
    o->patterns[o->pattern_count] = pattern;
    return o->pattern_count++;
}

static bool add_class(object_shape *o, sl_expression keys, const int32_t *matched, int32_t patterns) {
    if (!sl_schema_grow(o->c, (void **)&o->classes, o->class_count, &o->class_capacity, sizeof *o->classes)) {
        return false;
    }
    key_class *made = &o->classes[o->class_count];
    made->keys = keys;
    made->matched = sl_schema_alloc(o->c, (uint64_t)patterns + 1, sizeof *made->matched);
    if (!made->matched) {
        return false;
    }
    if (patterns) {
        memcpy(made->matched, matched, (size_t)patterns * sizeof *matched);
    }
    o->class_count++;
    return true;
}

/* Every class in two: what matches the pattern, and what does not. */
static bool split_classes(object_shape *o, int32_t pattern, int32_t entry) {
    enum { MOST_CLASSES = 64 };
    sl_schema_context *c = o->c;
    const sl_text_rule rule = sl_schema_key_rule(o->patterns[pattern], entry);
    const sl_expression matching = sl_schema_regex(c, &rule);
    const int32_t before = o->class_count;
    int32_t kept = 0;
    for (int32_t i = 0; i < before && !c->code; i++) {
        const sl_expression keys = o->classes[i].keys;
        const sl_expression in = sl_expression_both(c->builder, keys, matching);
        const sl_expression out = sl_expression_except(c->builder, keys, matching);
        o->classes[i].keys = out;
        if (!sl_expression_is_nothing(c->builder, in)) {
            if (o->class_count >= MOST_CLASSES) {
                sl_schema_refuse(c, SL_ERR_LIMIT, entry, "patternProperties",
                                 "patterns overlap in more than %d ways", MOST_CLASSES);
                return false;
            }
            if (!add_class(o, in, o->classes[i].matched, o->pattern_count)) {
                return false;
            }
            o->classes[o->class_count - 1].matched[pattern] = 1;
        }
    }
    for (int32_t i = 0; i < o->class_count; i++) {
        if (i >= before || !sl_expression_is_nothing(c->builder, o->classes[i].keys)) {
            o->classes[kept++] = o->classes[i];
        }
    }
    o->class_count = kept;
    return !c->code;
}

/* What the values of the class must satisfy. */
static int32_t class_set(object_shape *o, const key_class *of) {
    int32_t *list = NULL, count = 0, capacity = 0;
    for (int32_t i = 0; i < o->leaf->count; i++) {
        const sl_schema_node *node = o->leaf->nodes[i];
        bool known = false;
        for (int32_t at = 0; at <= node->pattern_count; at++) {
            const bool last = at == node->pattern_count;
            const int32_t entry = last ? (known ? -1 : node->additional) : node->patterns[at].entry;
            const bool matches = last || of->matched[pattern_index(o, node->patterns[at].key)];
            known = known || (!last && matches);
            if (!matches || entry < 0) {
                continue;
            }
            if (!sl_schema_grow(o->c, (void **)&list, count, &capacity, sizeof *list)) {
                return -1;
            }
            list[count++] = entry;
        }
    }
    return sl_schema_set_of(o->c, list, count);
}

/* Every key that no member has; SL_NO_EXPRESSION after a failure. */
static sl_expression undeclared_keys(object_shape *o) {
    sl_schema_context *c = o->c;
    int32_t *list = NULL, count = 0, capacity = 0;
    for (int32_t i = 0; i < o->leaf->count; i++) {
        if (o->leaf->nodes[i]->names >= 0) {
            if (!sl_schema_grow(c, (void **)&list, count, &capacity, sizeof *list)) {
                return SL_NO_EXPRESSION;
            }
            list[count++] = o->leaf->nodes[i]->names;
        }
    }
    const int32_t names = sl_schema_set_of(c, list, count);
    sl_expression keys = names < 0 ? SL_NO_EXPRESSION : sl_schema_names(c, names);
    if (o->count && !c->code) {
        sl_expression_list declared = {0};
        for (int32_t i = 0; i < o->count; i++) {
            sl_schema_add(c, &declared, sl_schema_literal(c, o->members[i].key));
        }
        keys = sl_expression_except(c->builder, keys,
                                    sl_expression_choice(c->builder, declared.rows, declared.count));
    }
    return keys;
}

/* No key is left over where a schema has nothing but `additionalProperties: false`. */
static bool is_closed(const object_shape *o) {
    for (int32_t i = 0; i < o->leaf->count; i++) {
        if (o->leaf->nodes[i]->additional == SL_ENTRY_FALSE && !o->leaf->nodes[i]->pattern_count) {
            return true;
        }
    }
    return false;
}

static bool find_classes(object_shape *o) {
    sl_schema_context *c = o->c;
    if (is_closed(o)) {
        return true;
    }
    for (int32_t i = 0; i < o->leaf->count; i++) {
        for (int32_t at = 0; at < o->leaf->nodes[i]->pattern_count; at++) {
            if (pattern_index(o, o->leaf->nodes[i]->patterns[at].key) < 0) {
                return false;
            }
        }
    }
    int32_t *none = sl_schema_alloc(c, (uint64_t)o->pattern_count + 1, sizeof *none);
    if (!none || !add_class(o, undeclared_keys(o), none, o->pattern_count)) {
        return false;
    }
    for (int32_t i = 0; i < o->leaf->count; i++) {
        const sl_schema_node *node = o->leaf->nodes[i];
        for (int32_t at = 0; at < node->pattern_count; at++) {
            const int32_t index = pattern_index(o, node->patterns[at].key);
            if (!none[index]) {
                none[index] = 1;
                if (!split_classes(o, index, node->entry)) {
                    return false;
                }
            }
        }
    }
    return !c->code;
}

/* Keys of the class that are of the kind. */
static sl_expression special_keys(object_shape *o, sl_expression keys) {
    sl_schema_context *c = o->c;
    const sl_schema_node *owner = o->exists->owner;
    if (o->exists->pattern) {
        const sl_text_rule rule = sl_schema_key_rule(o->exists->pattern, -1);
        return sl_expression_both(c->builder, keys, sl_schema_regex(c, &rule));
    }
    if (!owner) {
        int32_t names[1] = {o->exists->names};
        const int32_t set = sl_schema_set_of(c, names, 1);
        return set < 0 ? SL_NO_EXPRESSION : sl_expression_both(c->builder, keys, sl_schema_names(c, set));
    }
    sl_expression_list named = {0};
    for (int32_t i = 0; i < owner->property_count; i++) {
        sl_schema_add(c, &named, sl_schema_literal(c, owner->properties[i].key));
    }
    for (int32_t i = 0; i < owner->pattern_count; i++) {
        const sl_text_rule rule = sl_schema_key_rule(owner->patterns[i].key, owner->entry);
        sl_schema_add(c, &named, sl_schema_regex(c, &rule));
    }
    return named.count == 0 ? keys
                            : sl_expression_except(c->builder, keys,
                                                   sl_expression_choice(c->builder, named.rows, named.count));
}

/* The member that must be there, of whichever class. */
static bool make_special(object_shape *o) {
    sl_schema_context *c = o->c;
    sl_expression_list choices = {0};
    for (int32_t i = 0; o->exists && i < o->class_count && !c->code; i++) {
        const sl_schema_set *of = &c->sets[o->classes[i].set];
        int32_t *entries = sl_schema_alloc(c, (uint64_t)of->count + 1, sizeof *entries);
        if (!entries) {
            return false;
        }
        for (int32_t at = 0; at < of->count; at++) {
            entries[at] = of->entries[at];
        }
        entries[of->count] = o->exists->value;
        const int32_t set = sl_schema_set_of(c, entries, of->count + 1);
        if (set < 0 || sl_schema_is_empty(c, set, 2)) {
            continue;
        }
        const sl_expression keys = special_keys(o, o->classes[i].keys);
        if (keys != SL_NO_EXPRESSION && !sl_expression_is_nothing(c->builder, keys)) {
            const sl_expression key = sl_schema_quoted(c, keys);
            sl_schema_add(c, &choices, sl_schema_sequence(c, 3, key, c->colon, sl_schema_value(c, set)));
        }
    }
    o->special = sl_expression_choice(c->builder, choices.rows, choices.count);
    return !c->code;
}

static bool make_others(object_shape *o) {
    sl_schema_context *c = o->c;
    sl_expression_list choices = {0};
    o->others_differ = o->class_count && o->least > 1 + o->required;
    if (o->others_differ && c->style.own_quotes) {
        sl_schema_refuse(
            c, SL_ERR_UNSUPPORTED, o->bound_entry, "minProperties",
            "above 1 is held for declared properties only where texts are not quoted as in JSON");
        return false;
    }
    for (int32_t i = 0; i < o->class_count; i++) {
        o->classes[i].set = class_set(o, &o->classes[i]);
        if (o->classes[i].set < 0) {
            return false;
        }
    }
    for (int32_t i = 0; i < o->class_count; i++) {
        const int32_t set = o->classes[i].set;
        sl_expression_list keys = {0};
        bool first = true;
        for (int32_t at = 0; at < o->class_count; at++) {
            if (o->classes[at].set == set && !sl_expression_is_nothing(c->builder, o->classes[at].keys)) {
                first = first && at >= i;
                sl_schema_add(c, &keys, o->classes[at].keys);
            }
        }
        if (!first || !keys.count || sl_schema_is_empty(c, set, 2)) {
            continue;
        }
        const sl_expression of =
            keys.count == 1 ? keys.rows[0] : sl_expression_choice(c->builder, keys.rows, keys.count);
        const sl_expression key =
            o->others_differ ? sl_schema_new_name(c, of, &o->other_names) : sl_schema_quoted(c, of);
        sl_schema_add(c, &choices, sl_schema_sequence(c, 3, key, c->colon, sl_schema_value(c, set)));
    }
    if (choices.count) {
        o->others = sl_expression_choice(c->builder, choices.rows, choices.count);
    }
    return !c->code;
}

/* ---- members in order ---- */

static sl_expression with_comma(sl_schema_context *c, sl_expression member) {
    return sl_schema_sequence(c, 2, c->comma, member);
}

/* What may follow once `count` members stand there and the next to come is `at`; most members. Rules, one for
 * each pair, so that nothing is made twice. */
typedef struct order {
    object_shape *o;
    int32_t width;  /* counts that are told apart: 0 to width - 1, where the last means that and more */
    int32_t *rules; /* [members + 1][width]; -1: none yet */
} order;

static sl_expression after(order *w, int32_t at, int32_t count);

static sl_expression follow(order *w, int32_t at, int32_t count) {
    sl_grammar_builder *builder = w->o->c->builder;
    int32_t *rule = &w->rules[at * w->width + count];
    if (*rule < 0) {
        *rule = sl_grammar_rule(builder, "members");
        sl_grammar_define(builder, *rule, after(w, at, count));
    }
    return sl_expression_rule(builder, *rule);
}

static sl_expression last_members(const object_shape *o, int32_t count) {
    sl_grammar_builder *builder = o->c->builder;
    const int64_t least = o->least > count ? o->least - count : 0;
    if (o->most >= 0 && count > o->most) {
        return sl_expression_nothing(builder);
    }
    int64_t most = o->most < 0 ? -1 : o->most - count;
    if (o->others_differ && o->other_names < SL_MOST_NAMES && (most < 0 || most > o->other_names)) {
        most = o->other_names;
    }
    if (o->others == SL_NO_EXPRESSION || most == 0 || (most > 0 && least > most)) {
        return least ? sl_expression_nothing(builder) : sl_expression_empty(builder);
    }
    const sl_expression next = with_comma(o->c, o->others);
    if (count > 0) {
        return sl_expression_repeat(builder, next, least, most);
    }
    const sl_expression more =
        sl_expression_repeat(builder, next, least > 0 ? least - 1 : 0, most < 0 ? -1 : most - 1);
    const sl_expression some = sl_schema_sequence(o->c, 2, o->others, more);
    return least ? some : sl_schema_optional(o->c, some);
}

static sl_expression after(order *w, int32_t at, int32_t count) {
    const object_shape *o = w->o;
    while (at < o->count && o->members[at].forbidden) {
        at++;
    }
    if (at == o->count) {
        return last_members(o, count);
    }
    const member *m = &o->members[at];
    const int32_t next = count + 1 < w->width ? count + 1 : w->width - 1;
    const sl_expression own = count ? with_comma(o->c, m->expression) : m->expression;
    sl_expression with = SL_NO_EXPRESSION;
    if (o->most < 0 || count < o->most) {
        with = sl_schema_sequence(o->c, 2, own, follow(w, at + 1, next));
    }
    if (m->required) {
        return with == SL_NO_EXPRESSION ? sl_expression_nothing(o->c->builder) : with;
    }
    const sl_expression without = follow(w, at + 1, count);
    return with == SL_NO_EXPRESSION ? without : sl_schema_choice(o->c, 2, with, without);
}

/* Without counting: a chain of members, each with its comma, as long as one stands before it. */
static sl_expression chain(const object_shape *o, int32_t from) {
    sl_expression_list parts = {0};
    for (int32_t i = from; i < o->count; i++) {
        const member *m = &o->members[i];
        if (!m->forbidden) {
            const sl_expression own = with_comma(o->c, m->expression);
            sl_schema_add(o->c, &parts, m->required ? own : sl_schema_optional(o->c, own));
        }
    }
    for (int i = 0; i < (o->exists ? 2 : 1); i++) {
        if (i) {
            sl_schema_add(o->c, &parts, with_comma(o->c, o->special));
        }
        if (o->others != SL_NO_EXPRESSION) {
            sl_schema_add(o->c, &parts,
                          sl_expression_repeat(o->c->builder, with_comma(o->c, o->others), 0, -1));
        }
    }
    return sl_expression_sequence(o->c->builder, parts.rows, parts.count);
}

/* Whichever member is there first, and the chain behind it, without the empty object. */
static sl_expression first_and_rest(const object_shape *o) {
    sl_schema_context *c = o->c;
    sl_expression_list choices = {0};
    int32_t last = 0; /* the last that can be the first */
    while (last < o->count && (o->members[last].forbidden || !o->members[last].required)) {
        last++;
    }
    /* What follows each is a rule that is made of the next one's: nothing is made twice. */
    sl_expression rest = SL_NO_EXPRESSION;
    if (last == o->count) {
        rest = chain(o, o->count);
        if (o->exists) { /* it is the first, or stands behind others */
            object_shape without = *o;
            without.exists = NULL;
            sl_schema_add(c, &choices, sl_schema_sequence(c, 2, o->special, chain(&without, o->count)));
        }
        if (o->others != SL_NO_EXPRESSION) {
            sl_schema_add(c, &choices, sl_schema_sequence(c, 2, o->others, rest));
        }
    } else {
        rest = chain(o, last + 1);
        sl_schema_add(c, &choices, sl_schema_sequence(c, 2, o->members[last].expression, rest));
        rest = sl_schema_sequence(c, 2, with_comma(c, o->members[last].expression), rest);
    }
    for (int32_t i = last - 1; i >= 0; i--) {
        const member *m = &o->members[i];
        if (!m->forbidden) {
            const int32_t rule = sl_grammar_rule(c->builder, "members");
            sl_grammar_define(c->builder, rule, rest);
            rest = sl_expression_rule(c->builder, rule);
            sl_schema_add(c, &choices, sl_schema_sequence(c, 2, m->expression, rest));
            rest = sl_schema_sequence(c, 2, sl_schema_optional(c, with_comma(c, m->expression)), rest);
        }
    }
    return sl_expression_choice(c->builder, choices.rows, choices.count);
}

static sl_expression braces(sl_schema_context *c, sl_expression members) {
    return sl_schema_sequence(c, 5, sl_schema_literal(c, "{"), c->open_space, members, c->close_space,
                              sl_schema_literal(c, "}"));
}

static sl_expression counted(object_shape *o) {
    enum { MOST_RULES = 1 << 18 };
    sl_schema_context *c = o->c;
    int64_t width = o->most >= 0 && o->most > o->least ? o->most : o->least;
    width = (width < o->count ? width : o->count) + 1;
    if (width * (o->count + 1) > MOST_RULES) {
        sl_schema_refuse(c, SL_ERR_LIMIT, o->bound_entry, "maxProperties", "is too large for %d properties",
                         o->count);
        return SL_NO_EXPRESSION;
    }
    order w = {o, (int32_t)width, NULL};
    const size_t rules = (size_t)width * ((size_t)o->count + 1);
    w.rules = sl_schema_alloc(c, rules, sizeof *w.rules);
    if (!w.rules || !sl_schema_step(c, rules, o->bound_entry)) {
        return SL_NO_EXPRESSION;
    }
    memset(w.rules, 0xff, rules * sizeof *w.rules);
    /* The empty object is written without space inside, so it stands for itself. */
    const bool empty = o->least == 0 && o->required == 0;
    if (empty) {
        o->least = 1;
    }
    sl_expression some = sl_expression_nothing(c->builder);
    if (o->most != 0) {
        for (int32_t at = o->count; at >= 0; at--) { /* from the end, so that nothing recurses deeply */
            for (int32_t count = 0; count < w.width && count <= at; count++) {
                follow(&w, at, count);
            }
        }
        some = braces(c, follow(&w, 0, 0));
    }
    return empty ? sl_schema_choice(c, 2, sl_schema_literal(c, "{}"), some) : some;
}

static sl_expression plain_object(sl_schema_context *c, const sl_schema_leaf *leaf,
                                  const sl_schema_exists *exists) {
    object_shape o = {
        .c = c, .leaf = leaf, .exists = exists, .others = SL_NO_EXPRESSION, .most = -1, .bound_entry = -1};
    bool possible = true;
    if (!declare_all(&o) || !fill_members(&o, &possible) ||
        (possible && (!find_classes(&o) || !make_others(&o) || !make_special(&o)))) {
        return SL_NO_EXPRESSION;
    }
    if (!possible || (o.most >= 0 && (o.required > o.most || o.least > o.most))) {
        return sl_expression_nothing(c->builder);
    }
    int32_t able = 0;
    for (int32_t i = 0; i < o.count; i++) {
        able += !o.members[i].forbidden;
    }
    const bool least_counts = o.least > 1 && o.least > o.required;
    const bool most_counts = o.most >= 0 && (o.others != SL_NO_EXPRESSION || o.most < able);
    if ((least_counts || most_counts) && exists) {
        sl_schema_refuse(c, SL_ERR_UNSUPPORTED, o.bound_entry,
                         least_counts ? "minProperties" : "maxProperties",
                         "beside a negation of what holds for all members");
        return SL_NO_EXPRESSION;
    }
    if (least_counts || most_counts) {
        return counted(&o);
    }
    const bool none = o.required == 0 && o.least == 0 && !exists;
    if (able == 0 && o.others == SL_NO_EXPRESSION && !exists) {
        return none ? sl_schema_literal(c, "{}") : sl_expression_nothing(c->builder);
    }
    const sl_expression some = braces(c, first_and_rest(&o));
    return none ? sl_schema_choice(c, 2, sl_schema_literal(c, "{}"), some) : some;
}

/* The leaf with one node replaced (NULL: left out). */
static bool replace_node(sl_schema_context *c, const sl_schema_leaf *leaf, int32_t at, sl_schema_node *by,
                         sl_schema_leaf *made) {
    *made = (sl_schema_leaf){.types = leaf->types};
    made->nodes = sl_schema_alloc(c, (uint64_t)leaf->count + 1, sizeof *made->nodes);
    for (int32_t i = 0; made->nodes && i < leaf->count; i++) {
        if (i != at || by) {
            made->nodes[made->count++] = i == at ? by : leaf->nodes[i];
        }
    }
    return made->nodes != NULL;
}

static sl_expression existing(sl_schema_context *c, const sl_schema_leaf *leaf, const sl_schema_exists *free);

/* The member that must be there is the declared one of this name. */
static bool add_declared(sl_schema_context *c, const sl_schema_leaf *leaf, int32_t at, const char *key,
                         sl_expression_list *choices, const sl_schema_exists *free) {
    const sl_schema_exists *exists = leaf->nodes[at]->exists;
    const int is_kind = sl_schema_exists_key(c, exists, key);
    sl_schema_leaf with;
    if (is_kind <= 0) {
        return is_kind == 0;
    }
    sl_schema_node *node = sl_schema_node_make(c, leaf->nodes[at]->entry);
    if (!node || !(node->properties = sl_schema_alloc(c, 1, sizeof *node->properties)) ||
        !(node->required = sl_schema_alloc(c, 1, sizeof *node->required)) ||
        !replace_node(c, leaf, at, node, &with)) {
        return false;
    }
    node->properties[node->property_count++] = (sl_schema_property){key, exists->value};
    node->required[node->required_count++] = key;
    const int32_t set = sl_schema_key_set(c, &with, key);
    if (set >= 0 && !sl_schema_is_empty(c, set, 2)) {
        sl_schema_add(c, choices, existing(c, &with, free));
    }
    return !c->code;
}

/* Whichever member it is that must be there: of the declared ones, or another. */
static sl_expression existing(sl_schema_context *c, const sl_schema_leaf *leaf,
                              const sl_schema_exists *free) {
    sl_expression_list choices = {0};
    int32_t at = 0;
    while (at < leaf->count && !leaf->nodes[at]->exists) {
        at++;
    }
    if (at == leaf->count || c->code) {
        return c->code ? SL_NO_EXPRESSION : plain_object(c, leaf, free);
    }
    const sl_schema_exists *exists = leaf->nodes[at]->exists;
    object_shape names = {.c = c, .leaf = leaf, .most = -1};
    sl_schema_leaf without;
    if (!declare_all(&names) || !replace_node(c, leaf, at, NULL, &without) ||
        !sl_schema_step(c, (uint64_t)names.count * 64 + 64, leaf->nodes[at]->entry)) {
        return SL_NO_EXPRESSION;
    }
    for (int32_t i = 0; i < names.count; i++) {
        if (!add_declared(c, leaf, at, names.members[i].key, &choices, free)) {
            return SL_NO_EXPRESSION;
        }
    }
    if (!is_closed(&names)) {
        if (free) {
            sl_schema_refuse(c, SL_ERR_UNSUPPORTED, leaf->nodes[at]->entry, NULL,
                             "has two negations of what holds for all members of one object");
            return SL_NO_EXPRESSION;
        }
        sl_schema_add(c, &choices, existing(c, &without, exists));
    }
    return sl_expression_choice(c->builder, choices.rows, choices.count);
}

sl_expression sl_schema_object(sl_schema_context *c, const sl_schema_leaf *leaf) {
    return existing(c, leaf, NULL);
}
