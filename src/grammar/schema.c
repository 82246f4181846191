/* From a schema's text to the rules of a grammar: every set of schemas that is met becomes a rule once. */
#include "grammar/schema_internal.h"

#include <stdarg.h>
#include <stdio.h>

enum {
    MOST_BYTES = 256 << 20, /* of the arena */
    MOST_INDENT = 40        /* spaces or tabs behind a line break */
};
static const uint64_t MOST_STEPS = 50000000;

/* ---- memory, errors, short forms ---- */

void *sl_schema_alloc(sl_schema_context *c, uint64_t count, size_t size) {
    if (c->code) {
        return NULL;
    }
    if (count > MOST_BYTES / size || c->spent + count * size > MOST_BYTES) {
        sl_schema_refuse(c, SL_ERR_LIMIT, -1, NULL, "takes more than %d MiB", MOST_BYTES >> 20);
        return NULL;
    }
    void *made = sl_arena_alloc(&c->arena, count ? count : 1, size);
    if (!made) {
        sl_schema_refuse(c, SL_ERR_NOMEM, -1, NULL, "no memory for a schema");
        return NULL;
    }
    c->spent += count * size;
    return made;
}

char *sl_schema_strndup(sl_schema_context *c, const char *text, size_t length) {
    char *made = sl_schema_alloc(c, (uint64_t)length + 1, 1);
    if (made) {
        memcpy(made, text, length);
    }
    return made;
}

bool sl_schema_grow(sl_schema_context *c, void **array, int32_t count, int32_t *capacity, size_t size) {
    if (c->code || count < *capacity) {
        return !c->code;
    }
    if (count > INT32_MAX / 2 - 4) {
        sl_schema_refuse(c, SL_ERR_LIMIT, -1, NULL, "has too many parts");
        return false;
    }
    const int32_t more = count * 2 + 4;
    void *grown = sl_schema_alloc(c, (uint64_t)more, size);
    if (!grown) {
        return false;
    }
    if (count) {
        memcpy(grown, *array, (size_t)count * size);
    }
    *array = grown;
    *capacity = more;
    return true;
}

int sl_schema_refuse(sl_schema_context *c, int code, int32_t entry, const char *keyword, const char *format,
                     ...) {
    if (c->code) {
        return c->code;
    }
    va_list arguments;
    char words[SL_ERROR_MESSAGE_SIZE];
    sl_buffer path = {0};
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    c->code = code;
    if (entry >= 0) {
        sl_schema_path(c, entry, keyword, &path);
    }
    sl_fail(c->error, code, "schema: %.300s%s%s", path.data && !path.failed ? path.data : "",
            path.data ? ": " : "", words);
    sl_buffer_free(&path);
    return code;
}

bool sl_schema_step(sl_schema_context *c, uint64_t steps, int32_t entry) {
    c->steps += steps;
    if (c->steps > MOST_STEPS) {
        sl_schema_refuse(c, SL_ERR_LIMIT, entry, NULL, "has too many combinations");
    }
    return !c->code;
}

sl_expression sl_schema_literal(sl_schema_context *c, const char *text) {
    return sl_expression_literal(c->builder, text, strlen(text));
}

enum { MOST_PARTS = 8 }; /* of the short forms */

sl_expression sl_schema_sequence(sl_schema_context *c, int32_t count, ...) {
    sl_expression parts[MOST_PARTS];
    va_list arguments;
    va_start(arguments, count);
    for (int32_t i = 0; i < count; i++) {
        parts[i] = va_arg(arguments, sl_expression);
    }
    va_end(arguments);
    return sl_expression_sequence(c->builder, parts, count);
}

sl_expression sl_schema_choice(sl_schema_context *c, int32_t count, ...) {
    sl_expression parts[MOST_PARTS];
    va_list arguments;
    va_start(arguments, count);
    for (int32_t i = 0; i < count; i++) {
        parts[i] = va_arg(arguments, sl_expression);
    }
    va_end(arguments);
    return sl_expression_choice(c->builder, parts, count);
}

sl_expression sl_schema_optional(sl_schema_context *c, sl_expression of) {
    return sl_schema_choice(c, 2, of, sl_expression_empty(c->builder));
}

void sl_schema_add(sl_schema_context *c, sl_expression_list *list, sl_expression expression) {
    if (sl_schema_grow(c, (void **)&list->rows, list->count, &list->capacity, sizeof *list->rows)) {
        list->rows[list->count++] = expression;
    }
}

/* ---- values ---- */

/* null, true and false, as far as all nodes accept them. */
static bool add_words(sl_schema_context *c, const sl_schema_leaf *leaf, sl_expression_list *list) {
    json_t *const words[] = {json_null(), json_true(), json_false()};
    for (int i = 0; i < 3; i++) {
        int accepted = leaf->types & (i ? SL_TYPE_BOOLEAN : SL_TYPE_NULL);
        for (int32_t at = 0; accepted > 0 && at < leaf->count; at++) {
            accepted = sl_schema_node_accepts(c, leaf->nodes[at], words[i], 1);
        }
        if (accepted < 0) {
            return false;
        }
        if (accepted) {
            sl_schema_add(c, list, sl_schema_constant(c, words[i], 1));
        }
    }
    return true;
}

static bool add_constants(sl_schema_context *c, const sl_schema_leaf *leaf, sl_expression_list *list) {
    json_t *values = sl_schema_candidates(c, leaf);
    sl_expression_list strings = {0};
    for (size_t i = 0; values && i < json_array_size(values); i++) {
        const json_t *value = json_array_get(values, i);
        if (json_is_string(value)) {
            sl_schema_add(c, &strings, sl_schema_literal(c, json_string_value(value)));
        } else {
            sl_schema_add(c, list, sl_schema_constant(c, value, 256));
        }
    }
    if (strings.count) {
        sl_schema_add(c, list,
                      sl_schema_quoted(c, sl_expression_choice(c->builder, strings.rows, strings.count)));
    }
    json_decref(values);
    return !c->code;
}

static sl_expression any_string(sl_schema_context *c, const sl_schema_leaf *leaf) {
    for (int32_t i = 0; i < leaf->count; i++) {
        const sl_schema_node *node = leaf->nodes[i];
        if (node->min_length || node->max_length >= 0 || node->text_count || node->forbidden) {
            return sl_schema_quoted(c, sl_schema_string_body(c, leaf));
        }
    }
    if (c->any_string == SL_NO_EXPRESSION) {
        c->any_string = sl_schema_quoted(c, sl_schema_string_body(c, leaf));
    }
    return c->any_string;
}

static bool add_leaf(sl_schema_context *c, const sl_schema_leaf *leaf, sl_expression_list *list) {
    if (sl_schema_has_values(leaf)) {
        return add_constants(c, leaf, list);
    }
    if (!add_words(c, leaf, list)) {
        return false;
    }
    if (leaf->types & SL_TYPE_NUMBER) {
        sl_schema_add(c, list, sl_schema_number(c, leaf));
    }
    if (leaf->types & SL_TYPE_STRING) {
        sl_schema_add(c, list, any_string(c, leaf));
    }
    if (leaf->types & SL_TYPE_ARRAY) {
        sl_schema_add(c, list, sl_schema_array(c, leaf));
    }
    if (leaf->types & SL_TYPE_OBJECT) {
        sl_schema_add(c, list, sl_schema_object(c, leaf));
    }
    return !c->code;
}

static sl_expression make_value(sl_schema_context *c, const sl_schema_leaves *leaves) {
    sl_expression_list list = {0};
    for (int32_t i = 0; i < leaves->count; i++) {
        if (!add_leaf(c, &leaves->rows[i], &list)) {
            return SL_NO_EXPRESSION;
        }
    }
    return sl_expression_choice(c->builder, list.rows, list.count);
}

/* Nothing in it can lead back to it. */
static bool is_scalar(const sl_schema_leaves *leaves) {
    for (int32_t i = 0; i < leaves->count; i++) {
        const sl_schema_leaf *leaf = &leaves->rows[i];
        if (!sl_schema_has_values(leaf) && leaf->types & (SL_TYPE_ARRAY | SL_TYPE_OBJECT)) {
            return false;
        }
    }
    return true;
}

sl_expression sl_schema_value(sl_schema_context *c, int32_t set) {
    if (c->sets[set].expression != SL_NO_EXPRESSION) {
        return c->sets[set].expression;
    }
    const sl_schema_leaves *leaves = sl_schema_expand(c, set, false);
    if (!leaves) {
        return SL_NO_EXPRESSION;
    }
    sl_expression made;
    if (is_scalar(leaves)) {
        made = make_value(c, leaves);
    } else {
        const int32_t rule = sl_grammar_rule(c->builder, "value");
        if (!sl_schema_grow(c, (void **)&c->queue, c->queue_count, &c->queue_capacity, sizeof *c->queue)) {
            return SL_NO_EXPRESSION;
        }
        c->queue[c->queue_count++] = set;
        c->sets[set].rule = rule;
        made = sl_expression_rule(c->builder, rule);
    }
    c->sets[set].expression = made;
    return made;
}

/* ---- the whole ---- */

/* What may stand between the parts: nothing, one space, or a line break with an indentation. */
static void make_style(sl_schema_context *c) {
    sl_expression wide = sl_expression_empty(c->builder), space = wide;
    if (!c->style.compact) {
        const sl_character_range blank[] = {{'\t', '\t'}, {' ', ' '}};
        const sl_expression indent = sl_expression_repeat(
            c->builder, sl_expression_character(c->builder, blank, 2, false), 0, MOST_INDENT);
        const sl_expression line = sl_schema_sequence(c, 2, sl_schema_literal(c, "\n"), indent);
        space = sl_schema_optional(c, sl_schema_literal(c, " "));
        const int32_t rule = sl_grammar_rule(c->builder, "space");
        sl_grammar_define(c->builder, rule, sl_schema_choice(c, 2, space, line));
        wide = sl_expression_rule(c->builder, rule);
    }
    c->open_space = c->close_space = wide;
    c->comma = sl_schema_sequence(c, 2, sl_schema_literal(c, ","), wide);
    c->colon = sl_schema_sequence(c, 2, sl_schema_literal(c, ":"), space);
}

static sl_expression compile(sl_schema_context *c, int32_t root) {
    int32_t entries[1] = {root};
    make_style(c);
    const int32_t set = sl_schema_set_of(c, entries, 1);
    const sl_expression made = set < 0 ? SL_NO_EXPRESSION : sl_schema_value(c, set);
    while (!c->code && c->queue_done < c->queue_count) {
        const int32_t next = c->queue[c->queue_done++];
        const sl_schema_leaves *leaves = sl_schema_expand(c, next, false);
        if (leaves) {
            const sl_expression value = make_value(c, leaves);
            if (!c->code) {
                sl_grammar_define(c->builder, c->sets[next].rule, value);
            }
        }
        if (sl_grammar_builder_error(c->builder)->code) {
            break;
        }
    }
    if (!c->code && sl_grammar_builder_error(c->builder)->code) {
        const sl_error *stuck = sl_grammar_builder_error(c->builder);
        sl_schema_refuse(c, stuck->code, -1, NULL, "%s", stuck->message);
    }
    if (!c->code && !c->style.may_be_nothing && sl_expression_is_nothing(c->builder, made)) {
        sl_schema_refuse(c, SL_ERR_INVALID, -1, NULL, "nothing satisfies it");
    }
    return c->code ? SL_NO_EXPRESSION : made;
}

static sl_schema_context begin(sl_grammar_builder *builder, const sl_json_style *style, sl_error *error) {
    return (sl_schema_context){.builder = builder,
                               .style = style ? *style : (sl_json_style){0},
                               .error = error,
                               .any_text = SL_NO_EXPRESSION,
                               .any_string = SL_NO_EXPRESSION};
}

static sl_expression compile_document(sl_schema_context *c) {
    const json_t *root = json_array_get(c->document, 0);
    sl_expression made = SL_NO_EXPRESSION;
    if (json_array_size(c->document) != 1 || (!json_is_object(root) && !json_is_boolean(root))) {
        sl_schema_refuse(c, SL_ERR_INVALID, -1, NULL, "a schema must be an object or a boolean");
    } else if (sl_schema_scan(c, root) == 0) {
        made = compile(c, json_is_object(root) ? SL_ENTRY_ROOT
                          : json_is_true(root) ? SL_ENTRY_TRUE
                                               : SL_ENTRY_FALSE);
    }
    sl_arena_free(&c->arena);
    json_decref(c->document);
    return made;
}

sl_expression sl_expression_schema(sl_grammar_builder *builder, const char *text, size_t count,
                                   const sl_json_style *style, sl_error *error) {
    sl_schema_context c = begin(builder, style, error);
    sl_buffer wrapped = {0};
    /* A schema may be a boolean, which is no JSON text to the reader: it is read as the item of an array. */
    sl_buffer_append(&wrapped, "[", 1);
    sl_buffer_append(&wrapped, text, count);
    sl_buffer_append(&wrapped, "]", 1);
    if (wrapped.failed) {
        sl_buffer_free(&wrapped);
        sl_fail(error, SL_ERR_NOMEM, "no memory for a schema of %zu bytes", count);
        return SL_NO_EXPRESSION;
    }
    const int code =
        sl_json_parse_as((sl_view){wrapped.data, wrapped.length},
                         SL_JSON_LARGE_INTEGERS | SL_JSON_LAST_COUNTS, "schema", &c.document, error);
    sl_buffer_free(&wrapped);
    return code ? SL_NO_EXPRESSION : compile_document(&c);
}

static sl_expression fixed(sl_grammar_builder *builder, const sl_json_style *style, const char *text) {
    sl_error error;
    return sl_expression_schema(builder, text, strlen(text), style, &error);
}

sl_expression sl_expression_json_object(sl_grammar_builder *builder, const sl_json_style *style) {
    return fixed(builder, style, "{\"type\":\"object\"}");
}

sl_expression sl_expression_json_value(sl_grammar_builder *builder, const sl_json_style *style) {
    return fixed(builder, style, "true");
}
