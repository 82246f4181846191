/* Strings: lengths, patterns and formats hold on what is between the quotes, before it is escaped. */
#include "grammar/schema_internal.h"

static sl_expression any_text(sl_schema_context *c) {
    if (c->any_text == SL_NO_EXPRESSION) {
        const sl_expression character = sl_expression_character(c->builder, NULL, 0, true);
        c->any_text = sl_expression_repeat(c->builder, character, 0, -1);
    }
    return c->any_text;
}

static sl_expression without_text(sl_schema_context *c, sl_expression body, const char *text) {
    return text ? sl_expression_both(c->builder, body, sl_expression_until(c->builder, text, strlen(text)))
                : body;
}

sl_expression sl_schema_quoted(sl_schema_context *c, sl_expression body) {
    body = without_text(c, body, c->style.own_quotes ? c->style.quote_text : NULL);
    body = without_text(c, body, c->style.without);
    if (c->style.own_quotes) {
        return sl_schema_sequence(c, 3, c->style.quote, body, c->style.quote);
    }
    const sl_expression quote = sl_schema_literal(c, "\"");
    return sl_schema_sequence(c, 3, quote, sl_expression_json_escaped(c->builder, body), quote);
}

sl_expression sl_schema_new_name(sl_schema_context *c, sl_expression body, int64_t *texts) {
    body = without_text(c, body, c->style.without);
    *texts += sl_expression_count(c->builder, body, SL_MOST_NAMES);
    *texts = *texts < SL_MOST_NAMES ? *texts : SL_MOST_NAMES;
    return sl_schema_sequence(c, 3, sl_expression_name_quote(c->builder, false),
                              sl_expression_json_escaped(c->builder, body),
                              sl_expression_name_quote(c->builder, true));
}

sl_expression sl_schema_name(sl_schema_context *c, sl_expression body) {
    return c->style.bare_keys ? body : sl_schema_quoted(c, body);
}

sl_expression sl_schema_regex(sl_schema_context *c, const sl_text_rule *rule) {
    sl_error error = {0};
    for (int32_t i = 0; i < c->regex_count; i++) {
        const sl_text_rule *known = &c->regexes[i];
        if (known->format == rule->format && known->narrow == rule->narrow &&
            (rule->format >= 0 ? known->negated == rule->negated
                               : strcmp(known->pattern, rule->pattern) == 0)) {
            return c->regex_expressions[i];
        }
    }
    if (c->code || !sl_schema_step(c, (uint64_t)c->regex_count, rule->entry) ||
        !sl_schema_grow(c, (void **)&c->regexes, c->regex_count, &c->regex_capacity, sizeof *c->regexes) ||
        !sl_schema_grow(c, (void **)&c->regex_expressions, c->regex_count, &c->regex_expressions_capacity,
                        sizeof *c->regex_expressions)) {
        return SL_NO_EXPRESSION;
    }
    const sl_expression made =
        rule->format >= 0 ? sl_schema_format(c, rule, &error) : sl_schema_pattern(c, rule->pattern, &error);
    if (made == SL_NO_EXPRESSION) {
        const sl_error *stuck = sl_grammar_builder_error(c->builder);
        const sl_error *told = error.code ? &error : stuck;
        sl_schema_refuse(c, told->code ? told->code : SL_ERR_INTERNAL, rule->entry, rule->keyword, "%s",
                         told->message);
        return SL_NO_EXPRESSION;
    }
    c->regexes[c->regex_count] = *rule;
    c->regex_expressions[c->regex_count++] = made;
    return made;
}

/* 1: the expression has the text; 0: it has not; negative: an error. */
static int has_text(sl_schema_context *c, const sl_text_rule *rule, const char *text) {
    const sl_expression regex = sl_schema_regex(c, rule);
    if (regex == SL_NO_EXPRESSION || !sl_schema_step(c, 16, rule->entry)) {
        return c->code;
    }
    const sl_expression both = sl_expression_both(c->builder, sl_schema_literal(c, text), regex);
    const bool has = !sl_expression_is_nothing(c->builder, both);
    const int code = sl_grammar_builder_error(c->builder)->code;
    return code ? code : has;
}

/* Rare forms take many states: they are looked at where the others do not have the text. */
int sl_schema_text_matches(sl_schema_context *c, const sl_text_rule *rule, const char *text) {
    sl_text_rule common = *rule;
    common.narrow = rule->format >= 0;
    int has = common.narrow ? has_text(c, &common, text) : 0;
    has = has ? has : has_text(c, rule, text);
    return has < 0 ? has : has != (int)rule->negated;
}

static sl_expression literals(sl_schema_context *c, const json_t *values) {
    sl_expression_list list = {0};
    for (size_t i = 0; i < json_array_size(values); i++) {
        if (json_is_string(json_array_get(values, i))) {
            sl_schema_add(c, &list, sl_schema_literal(c, json_string_value(json_array_get(values, i))));
        }
    }
    return sl_expression_choice(c->builder, list.rows, list.count);
}

/* Both, where one may not be there yet. */
static sl_expression narrow(sl_schema_context *c, sl_expression body, sl_expression by) {
    return body == SL_NO_EXPRESSION ? by : sl_expression_both(c->builder, body, by);
}

/* Of the rules that are negated, or are not; narrow: see sl_text_rule. */
static sl_expression texts_of(sl_schema_context *c, const sl_schema_leaf *leaf, bool negated,
                              sl_expression body, bool is_narrow) {
    for (int32_t i = 0; i < leaf->count && !c->code; i++) {
        const sl_schema_node *node = leaf->nodes[i];
        for (int32_t at = 0; at < node->text_count; at++) {
            sl_text_rule rule = node->texts[at];
            if (rule.negated != negated) {
                continue;
            }
            rule.narrow = is_narrow && rule.format >= 0;
            const sl_expression regex = sl_schema_regex(c, &rule);
            if (regex == SL_NO_EXPRESSION) {
                return SL_NO_EXPRESSION;
            }
            body = !negated ? narrow(c, body, regex)
                            : sl_expression_except(c->builder, body == SL_NO_EXPRESSION ? any_text(c) : body,
                                                   regex);
        }
    }
    return body;
}

/* A body that was made before: schemas repeat themselves, and bodies are costly. */
struct sl_schema_body {
    uint64_t hash[2];
    sl_expression expression;
};

/* What makes a body, as a number; two seeds make it long enough. */
static uint64_t hash_leaf(const sl_schema_leaf *leaf, uint64_t seed) {
    for (int32_t i = 0; i < leaf->count; i++) {
        const sl_schema_node *node = leaf->nodes[i];
        const int64_t lengths[2] = {node->min_length, node->max_length};
        if (node->min_length || node->max_length >= 0) {
            seed = sl_hash64(lengths, sizeof lengths, seed);
        }
        for (int32_t at = 0; at < node->text_count; at++) {
            const sl_text_rule *rule = &node->texts[at];
            const int32_t kind[2] = {rule->format, rule->negated};
            seed = sl_hash64(kind, sizeof kind, seed);
            seed = rule->pattern ? sl_hash64(rule->pattern, strlen(rule->pattern), seed) : seed;
        }
        for (const sl_schema_values *list = node->forbidden; list; list = list->next) {
            seed = sl_hash64(&list->array, sizeof list->array, seed);
        }
    }
    return seed;
}

static sl_expression make_body(sl_schema_context *c, const sl_schema_leaf *leaf);

sl_expression sl_schema_string_body(sl_schema_context *c, const sl_schema_leaf *leaf) {
    const uint64_t hash[2] = {hash_leaf(leaf, 1), hash_leaf(leaf, 2)};
    for (int32_t i = 0; i < c->body_count; i++) {
        if (c->bodies[i].hash[0] == hash[0] && c->bodies[i].hash[1] == hash[1]) {
            return c->bodies[i].expression;
        }
    }
    const sl_expression made = make_body(c, leaf);
    if (sl_schema_step(c, (uint64_t)c->body_count / 16, -1) &&
        sl_schema_grow(c, (void **)&c->bodies, c->body_count, &c->body_capacity, sizeof *c->bodies)) {
        c->bodies[c->body_count++] = (struct sl_schema_body){{hash[0], hash[1]}, made};
    }
    return made;
}

static sl_expression make_body(sl_schema_context *c, const sl_schema_leaf *leaf) {
    int64_t least = 0, most = -1;
    for (int32_t i = 0; i < leaf->count; i++) {
        const sl_schema_node *node = leaf->nodes[i];
        least = node->min_length > least ? node->min_length : least;
        most = node->max_length >= 0 && (most < 0 || node->max_length < most) ? node->max_length : most;
    }
    sl_expression body = texts_of(c, leaf, false, SL_NO_EXPRESSION, most >= 0);
    if (most >= 0 && least > most) {
        return sl_expression_nothing(c->builder);
    }
    if (least > 0 || most >= 0) {
        const sl_expression character = sl_expression_character(c->builder, NULL, 0, true);
        body = narrow(c, body, sl_expression_repeat(c->builder, character, least, most));
    }
    body = texts_of(c, leaf, true, body, false);
    for (int32_t i = 0; i < leaf->count && !c->code; i++) {
        for (const sl_schema_values *list = leaf->nodes[i]->forbidden; list; list = list->next) {
            body = sl_expression_except(c->builder, body == SL_NO_EXPRESSION ? any_text(c) : body,
                                        literals(c, list->array));
        }
    }
    return c->code ? SL_NO_EXPRESSION : body == SL_NO_EXPRESSION ? any_text(c) : body;
}

sl_expression sl_schema_names(sl_schema_context *c, int32_t set) {
    const sl_schema_leaves *leaves = sl_schema_expand(c, set, false);
    sl_expression_list list = {0};
    for (int32_t i = 0; leaves && i < leaves->count; i++) {
        const sl_schema_leaf *leaf = &leaves->rows[i];
        if (sl_schema_has_values(leaf)) {
            json_t *values = sl_schema_candidates(c, leaf);
            if (values) {
                sl_schema_add(c, &list, literals(c, values));
            }
            json_decref(values);
        } else if (leaf->types & SL_TYPE_STRING) {
            sl_schema_add(c, &list, sl_schema_string_body(c, leaf));
        }
    }
    return c->code ? SL_NO_EXPRESSION : sl_expression_choice(c->builder, list.rows, list.count);
}
