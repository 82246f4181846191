/* Schemas of a function's arguments, for formats in which these are no JSON object: what is said of the
 * object is taken apart into what is said of each argument. */
#include "chat/reply_internal.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 16, MOST_VARIANTS = 64 };

/* ---- pointers ---- */

static int hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* A byte of a URI's fragment, and behind it. */
static char take_percent(const char **at) {
    const char *from = *at;
    const bool encoded = *from == '%' && hex(from[1]) >= 0 && hex(from[2]) >= 0;
    *at += encoded ? 3 : 1;
    return encoded ? (char)(hex(from[1]) * 16 + hex(from[2])) : *from;
}

/* Is the first step of the pointer this key? */
static bool is_step(const char *pointer, const char *key, bool percent) {
    while (*pointer && *pointer != '/') {
        char byte = percent ? take_percent(&pointer) : *pointer++;
        if (byte == '~' && (*pointer == '0' || *pointer == '1')) {
            byte = *pointer++ == '0' ? '~' : '/';
        }
        if (!*key || byte != *key++) {
            return false;
        }
    }
    return !*key;
}

/* What a pointer (RFC 6901) leads to, or NULL. percent: it stands in a URI. */
static json_t *follow(json_t *at, const char *pointer, bool percent) {
    while (at && *pointer == '/') {
        json_t *item, *next = NULL;
        const char *key;
        pointer++;
        json_object_foreach(at, key, item) {
            next = is_step(pointer, key, percent) ? item : next;
        }
        if (json_is_array(at)) {
            next = json_array_get(at, (size_t)strtoul(pointer, NULL, 10));
        }
        at = next;
        pointer += strcspn(pointer, "/");
    }
    return at;
}

static json_t *at_pointer(json_t *root, const char *pointer) {
    return follow(root, pointer, false);
}

static bool is_local(const json_t *reference) {
    const char *text = json_string_value(reference);
    return text && *text == '#' && (!text[1] || text[1] == '/');
}

/* The pointer with one step more; `index` -1: `name`. NULL: no memory. */
static json_t *step_to(const char *pointer, const char *keyword, const char *name, long index) {
    sl_buffer text = {0};
    sl_buffer_printf(&text, "%s/%s", pointer, keyword);
    if (index >= 0) {
        sl_buffer_printf(&text, "/%ld", index);
    }
    if (name) {
        sl_buffer_text(&text, "/");
    }
    for (; name && *name; name++) {
        const char *written = *name == '~' ? "~0" : *name == '/' ? "~1" : NULL;
        sl_buffer_append(&text, written ? written : name, written ? 2 : 1);
    }
    json_t *made = text.failed ? NULL : json_string(text.data);
    sl_buffer_free(&text);
    return made;
}

/* The pointer of a reference that is local, a new text; NULL: no memory. */
static json_t *pointer_of(const json_t *reference) {
    const char *at = json_string_value(reference) + 1;
    sl_buffer text = {0};
    sl_buffer_text(&text, "");
    while (*at) {
        const char byte = take_percent(&at);
        sl_buffer_append(&text, &byte, 1);
    }
    json_t *made = text.failed ? NULL : json_string(text.data ? text.data : "");
    sl_buffer_free(&text);
    return made;
}

static json_t *referred(json_t *root, const json_t *schema) {
    const json_t *reference = json_object_get(schema, "$ref");
    return is_local(reference) ? follow(root, json_string_value(reference) + 1, true) : NULL;
}

/* ---- kinds ---- */

static const struct {
    const char *type;
    unsigned kind;
} TYPES[] = {{"string", SL_ARGUMENT_TEXT},     {"null", SL_ARGUMENT_NULL},
             {"boolean", SL_ARGUMENT_BOOLEAN}, {"number", SL_ARGUMENT_NUMBER},
             {"integer", SL_ARGUMENT_NUMBER},  {"array", SL_ARGUMENT_ARRAY},
             {"object", SL_ARGUMENT_OBJECT}};
enum { TYPE_COUNT = sizeof TYPES / sizeof *TYPES };

static unsigned kind_of_type(const json_t *type) {
    for (size_t i = 0; json_is_string(type) && i < TYPE_COUNT; i++) {
        if (strcmp(TYPES[i].type, json_string_value(type)) == 0) {
            return TYPES[i].kind;
        }
    }
    return 0;
}

static unsigned kind_of_value(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_STRING:
        return SL_ARGUMENT_TEXT;
    case JSON_NULL:
        return SL_ARGUMENT_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return SL_ARGUMENT_BOOLEAN;
    case JSON_ARRAY:
        return SL_ARGUMENT_ARRAY;
    case JSON_OBJECT:
        return SL_ARGUMENT_OBJECT;
    default:
        return SL_ARGUMENT_NUMBER;
    }
}

static const char *const BRANCHES[] = {"anyOf", "oneOf", "allOf"};
enum { BRANCH_COUNT = 3 };

/* What is named, of any branch; 0: nothing is. */
static unsigned kinds_of(json_t *root, json_t *schema, int depth) {
    json_t *type = json_object_get(schema, "type"), *only = json_object_get(schema, "const"), *item;
    unsigned kinds = kind_of_type(type);
    size_t index;
    if (!json_is_object(schema) || depth == 0) {
        return 0;
    }
    json_array_foreach(type, index, item) {
        kinds |= kind_of_type(item);
    }
    if (!type) {
        json_array_foreach(json_object_get(schema, "enum"), index, item) {
            kinds |= kind_of_value(item);
        }
        kinds |= only ? kind_of_value(only) : 0;
    }
    for (size_t i = 0; i < BRANCH_COUNT; i++) {
        json_array_foreach(json_object_get(schema, BRANCHES[i]), index, item) {
            kinds |= kinds_of(root, item, depth - 1);
        }
    }
    return kinds | kinds_of(root, referred(root, schema), depth - 1);
}

/* 0: no branch lists the argument. */
static unsigned kinds_of_key(json_t *root, json_t *schema, const char *key, int depth) {
    json_t *property = json_object_get(json_object_get(schema, "properties"), key), *item;
    unsigned kinds = 0;
    size_t index;
    if (!json_is_object(schema) || depth == 0) {
        return 0;
    }
    if (property) {
        kinds = kinds_of(root, property, DEEPEST);
        kinds = kinds ? kinds : SL_ARGUMENT_ANY;
    }
    for (size_t i = 0; i < BRANCH_COUNT; i++) {
        json_array_foreach(json_object_get(schema, BRANCHES[i]), index, item) {
            kinds |= kinds_of_key(root, item, key, depth - 1);
        }
    }
    return kinds | kinds_of_key(root, referred(root, schema), key, depth - 1);
}

unsigned sl_reply_kinds(json_t *parameters, const char *key) {
    const unsigned kinds = key ? kinds_of_key(parameters, parameters, key, DEEPEST) : 0;
    return kinds ? kinds : SL_ARGUMENT_ANY;
}

/* ---- alternatives: lists of schemas that hold together ---- */

typedef struct expansion {
    json_t *root;
    sl_error *error;
    bool failed;
} expansion;

static json_t *no_memory(expansion *x) {
    if (!x->failed) {
        sl_fail(x->error, SL_ERR_NOMEM, "out of memory for the schema of arguments");
    }
    x->failed = true;
    return NULL;
}

static json_t *not_held(expansion *x, const char *keyword, const char *words) {
    if (!x->failed) {
        sl_fail(x->error, SL_ERR_UNSUPPORTED, "%s %s", keyword, words);
    }
    x->failed = true;
    return NULL;
}

/* Each of one list with each of the other; takes both over. */
static json_t *product(expansion *x, json_t *left, json_t *right) {
    json_t *all = json_array(), *a, *b;
    size_t i, k;
    if (!left || !right || !all) {
        json_decref(left);
        json_decref(right);
        json_decref(all);
        return no_memory(x);
    }
    if (json_array_size(left) * json_array_size(right) > MOST_VARIANTS) {
        not_held(x, "anyOf", "and oneOf make too many combinations");
    }
    json_array_foreach(left, i, a) {
        json_array_foreach(right, k, b) {
            json_t *both = x->failed ? NULL : json_copy(a);
            if (!x->failed && (json_array_extend(both, b) || json_array_append(all, both))) {
                no_memory(x);
            }
            json_decref(both);
        }
    }
    json_decref(left);
    json_decref(right);
    if (x->failed) {
        json_decref(all);
        return NULL;
    }
    return all;
}

static json_t *expand(expansion *x, const char *pointer, int depth);

/* One after the other, with which branch of `oneOf` it is. */
static json_t *expand_choice(expansion *x, const char *pointer, const char *keyword, int depth) {
    const size_t count = json_array_size(json_object_get(at_pointer(x->root, pointer), keyword));
    json_t *all = json_array();
    for (size_t i = 0; i < count && !x->failed; i++) {
        json_t *to = step_to(pointer, keyword, NULL, (long)i);
        json_t *branch = to ? expand(x, json_string_value(to), depth - 1) : no_memory(x), *one;
        size_t index;
        json_array_foreach(branch, index, one) {
            if (strcmp(keyword, "oneOf") == 0 && count > 1 &&
                json_array_append_new(one, json_pack("{s:s, s:I}", "of", pointer, "chosen", (json_int_t)i))) {
                no_memory(x);
            }
        }
        if (!x->failed && (!all || json_array_extend(all, branch))) {
            no_memory(x);
        }
        json_decref(branch);
        json_decref(to);
    }
    if (x->failed) {
        json_decref(all);
        return NULL;
    }
    return all;
}

static bool may_be_object(const json_t *schema) {
    json_t *type = json_object_get(schema, "type"), *item;
    size_t index;
    unsigned kinds = kind_of_type(type);
    json_array_foreach(type, index, item) {
        kinds |= kind_of_type(item);
    }
    return !type || kinds & SL_ARGUMENT_OBJECT;
}

/* What is said of the object otherwise. */
static bool is_simple(expansion *x, const json_t *schema) {
    static const char *const OTHERS[] = {"not",
                                         "if",
                                         "minProperties",
                                         "dependentRequired",
                                         "dependentSchemas",
                                         "patternProperties",
                                         "propertyNames",
                                         "maxProperties",
                                         "dependencies",
                                         "$dynamicRef",
                                         "enum",
                                         "const"};
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        if (json_object_get(schema, OTHERS[i])) {
            not_held(x, OTHERS[i], "is not held beside the arguments of a function");
        }
    }
    return !x->failed;
}

/* Alternatives of the schema at the pointer: a new array of arrays of pointers. */
static json_t *expand(expansion *x, const char *pointer, int depth) {
    json_t *schema = at_pointer(x->root, pointer);
    if (json_is_boolean(schema)) {
        json_t *made = json_is_true(schema) ? json_pack("[[]]") : json_array();
        return made ? made : no_memory(x);
    }
    if (!json_is_object(schema) || depth == 0) {
        return not_held(x, "$ref", depth ? "leads to no schema" : "recurses, or leads too deep");
    }
    if (!is_simple(x, schema)) {
        return NULL;
    }
    json_t *all = may_be_object(schema) ? json_pack("[[s]]", pointer) : json_array();
    if (json_object_get(schema, "$ref")) {
        const bool local = is_local(json_object_get(schema, "$ref"));
        json_t *to = local ? pointer_of(json_object_get(schema, "$ref"))
                           : not_held(x, "$ref", "outside of the schema itself is not held");
        json_t *more = to ? expand(x, json_string_value(to), depth - 1) : no_memory(x);
        all = x->failed ? all : product(x, all, more);
        json_decref(to);
    }
    for (size_t i = 0; i < json_array_size(json_object_get(schema, "allOf")) && !x->failed; i++) {
        json_t *to = step_to(pointer, "allOf", NULL, (long)i);
        json_t *more = to ? expand(x, json_string_value(to), depth - 1) : no_memory(x);
        all = x->failed ? all : product(x, all, more);
        json_decref(to);
    }
    for (int i = 0; i < 2 && !x->failed; i++) {
        if (json_object_get(schema, BRANCHES[i])) {
            json_t *more = expand_choice(x, pointer, BRANCHES[i], depth);
            all = x->failed ? all : product(x, all, more);
        }
    }
    if (x->failed) {
        json_decref(all);
        return NULL;
    }
    return all ? all : no_memory(x);
}

/* ---- alternatives as objects ---- */

static bool add_pointer(expansion *x, json_t *list, json_t *pointer) {
    if (!list || !pointer || json_array_append_new(list, pointer)) {
        no_memory(x);
    }
    return !x->failed;
}

/* The list of the key, which is made if there is none. */
static json_t *list_of(expansion *x, json_t *properties, const char *key) {
    json_t *list = json_object_get(properties, key);
    if (!list && !json_object_set_new(properties, key, json_array())) {
        list = json_object_get(properties, key);
    }
    return list ? list : no_memory(x);
}

/* Lists and requires what one schema lists and requires. */
static void add_members(expansion *x, json_t *variant, const char *pointer) {
    json_t *schema = at_pointer(x->root, pointer), *properties = json_object_get(variant, "properties");
    json_t *required = json_object_get(variant, "required"), *item;
    const char *key;
    size_t index;
    json_object_foreach(json_object_get(schema, "properties"), key, item) {
        json_t *list = list_of(x, properties, key);
        if (!list || !add_pointer(x, list, step_to(pointer, "properties", key, -1))) {
            return;
        }
    }
    json_array_foreach(json_object_get(schema, "required"), index, item) {
        key = json_string_value(item);
        if (key && (!list_of(x, properties, key) || json_object_set_new(required, key, json_true()))) {
            no_memory(x);
            return;
        }
    }
}

/* Holds one schema's additionalProperties for what others list; false: nothing satisfies both. */
static bool add_others(expansion *x, json_t *variant, const char *pointer, bool *closed) {
    json_t *schema = at_pointer(x->root, pointer), *properties = json_object_get(variant, "properties");
    json_t *others = json_object_get(schema, "additionalProperties"),
           *own = json_object_get(schema, "properties");
    json_t *list;
    const char *key;
    void *next;
    if (!others || json_is_true(others)) {
        return true;
    }
    *closed = *closed || json_is_false(others);
    json_object_foreach_safe(properties, next, key, list) {
        if (json_object_get(own, key)) {
            continue;
        }
        if (!json_is_false(others)) {
            add_pointer(x, list, step_to(pointer, "additionalProperties", NULL, -1));
        } else if (json_object_get(json_object_get(variant, "required"), key)) {
            return false;
        } else {
            json_object_del(properties, key);
        }
    }
    return json_is_false(others) || add_pointer(x, json_object_get(variant, "others"),
                                                step_to(pointer, "additionalProperties", NULL, -1));
}

/* The object of an alternative; NULL without a failure: there is none. */
static json_t *object_of(expansion *x, json_t *alternative) {
    json_t *variant = json_pack("{s:{}, s:{}, s:[]}", "properties", "required", "others"), *part;
    bool closed = false, said = false, listed = false, rest = false, possible = variant != NULL;
    size_t index;
    if (!variant) {
        return no_memory(x);
    }
    json_array_foreach(alternative, index, part) {
        const char *pointer = json_string_value(part);
        json_t *schema = pointer ? at_pointer(x->root, pointer) : NULL;
        if (schema) {
            add_members(x, variant, pointer);
            said = said || json_object_get(schema, "additionalProperties");
            listed = listed || json_is_object(json_object_get(schema, "properties"));
            rest = rest || json_object_get(schema, "unevaluatedProperties");
        }
    }
    json_array_foreach(alternative, index, part) {
        const char *pointer = json_string_value(part);
        possible = possible && !x->failed && (!pointer || add_others(x, variant, pointer, &closed));
    }
    closed = closed || (!said && listed);
    if (closed) {
        json_object_del(variant, "others");
    } else if (rest) {
        not_held(x, "unevaluatedProperties", "is not held beside the arguments of a function");
    }
    if (x->failed || !possible) {
        json_decref(variant);
        return NULL;
    }
    return variant;
}

/* ---- oneOf: what is written as one branch must not satisfy another ---- */

static bool is_equal(const json_t *a, const json_t *b) {
    return json_is_number(a) && json_is_number(b)
               ? fabs(json_number_value(a) - json_number_value(b)) <= 1e-9 * fabs(json_number_value(a))
               : json_equal(a, b);
}

/* The values that a schema names, one by one, or NULL. */
static json_t *value_of(json_t *schema, size_t index) {
    json_t *only = json_object_get(schema, "const");
    return only ? (index == 0 ? only : NULL) : json_array_get(json_object_get(schema, "enum"), index);
}

/* No value satisfies both. */
static bool are_apart(json_t *root, json_t *left, json_t *right) {
    left = json_object_get(left, "$ref") ? referred(root, left) : left;
    right = json_object_get(right, "$ref") ? referred(root, right) : right;
    const unsigned a = kinds_of(root, left, 1), b = kinds_of(root, right, 1);
    bool apart = value_of(left, 0) && value_of(right, 0);
    for (size_t i = 0; apart && value_of(left, i); i++) {
        for (size_t k = 0; apart && value_of(right, k); k++) {
            apart = !is_equal(value_of(left, i), value_of(right, k));
        }
    }
    /* Types at the top say it all; those of branches may be said with more beside them. */
    return apart || (json_object_get(left, "type") && json_object_get(right, "type") && a && b && !(a & b));
}

/* What is written as the object does not satisfy the schema. */
static bool excludes(json_t *root, json_t *variant, json_t *schema) {
    json_t *properties = json_object_get(variant, "properties"),
           *required = json_object_get(variant, "required");
    json_t *theirs = json_object_get(schema, "properties"), *item, *pointer;
    const bool open = json_object_get(variant, "others") != NULL;
    const char *key;
    size_t index;
    json_array_foreach(json_object_get(schema, "required"), index, item) {
        if (!open && json_is_string(item) && !json_object_get(properties, json_string_value(item))) {
            return true;
        }
    }
    json_object_foreach(required, key, item) {
        json_t *other = json_object_get(theirs, key);
        if (!other && json_is_false(json_object_get(schema, "additionalProperties"))) {
            return true;
        }
        json_array_foreach(json_object_get(properties, key), index, pointer) {
            if (other && are_apart(root, at_pointer(root, json_string_value(pointer)), other)) {
                return true;
            }
        }
    }
    return false;
}

/* Every alternative of the branch has a schema that the object does not satisfy. */
static bool excludes_branch(expansion *x, json_t *variant, const char *of, size_t branch) {
    json_t *to = step_to(of, "oneOf", NULL, (long)branch), *one, *part;
    json_t *all = to ? expand(x, json_string_value(to), DEEPEST) : no_memory(x);
    bool excluded = true;
    size_t i, k;
    json_array_foreach(all, i, one) {
        bool found = false;
        json_array_foreach(one, k, part) {
            const char *pointer = json_string_value(part);
            found = found || (pointer && excludes(x->root, variant, at_pointer(x->root, pointer)));
        }
        excluded = excluded && found;
    }
    json_decref(all);
    json_decref(to);
    return excluded && !x->failed;
}

static bool is_only_one(expansion *x, json_t *variant, json_t *alternative) {
    json_t *part;
    size_t index;
    json_array_foreach(alternative, index, part) {
        const char *of = json_string_value(json_object_get(part, "of"));
        const size_t chosen = (size_t)json_integer_value(json_object_get(part, "chosen"));
        const size_t count = of ? json_array_size(json_object_get(at_pointer(x->root, of), "oneOf")) : 0;
        for (size_t i = 0; i < count && !x->failed; i++) {
            if (i != chosen && !excludes_branch(x, variant, of, i)) {
                not_held(
                    x, "oneOf",
                    "of arguments is held only where branches tell themselves apart, by a required name or "
                    "by constants");
            }
        }
    }
    return !x->failed;
}

json_t *sl_reply_variants(json_t *parameters, sl_error *error) {
    expansion x = {.root = parameters, .error = error};
    json_t *made = json_array(), *alternative;
    json_t *all = parameters ? expand(&x, "", DEEPEST) : json_array();
    size_t index;
    if (!x.failed &&
        (!all || !made ||
         (!parameters && json_array_append_new(made, json_pack("{s:{}, s:{}}", "properties", "required"))))) {
        no_memory(&x);
    }
    json_array_foreach(all, index, alternative) {
        json_t *variant = x.failed ? NULL : object_of(&x, alternative);
        if (variant && is_only_one(&x, variant, alternative) && json_array_append(made, variant)) {
            no_memory(&x);
        }
        json_decref(variant);
    }
    if (!x.failed && json_array_size(made) == 0) {
        not_held(&x, "nothing", "satisfies it");
    }
    json_decref(all);
    if (x.failed) {
        json_decref(made);
        return NULL;
    }
    return made;
}

/* ---- schemas of values ---- */

static bool has_references(json_t *json) {
    json_t *item;
    const char *key;
    size_t index;
    if (json_object_get(json, "$ref") || json_object_get(json, "$dynamicRef")) {
        return true;
    }
    json_object_foreach(json, key, item) {
        if (has_references(item)) {
            return true;
        }
    }
    json_array_foreach(json, index, item) {
        if (has_references(item)) {
            return true;
        }
    }
    return false;
}

/* A reference to the place in the schema of all arguments, which has the URI. */
static json_t *reference_to(const char *uri, const char *pointer) {
    sl_buffer text = {0};
    sl_buffer_printf(&text, "%s#", uri);
    for (; *pointer; pointer++) {
        sl_buffer_append(&text, *pointer == '%' ? "%25" : pointer, *pointer == '%' ? 3 : 1);
    }
    json_t *made = text.failed ? NULL : json_pack("{s:s}", "$ref", text.data);
    sl_buffer_free(&text);
    return made;
}

/* The schema of all arguments in `$defs`, as a resource of its own: its references lead to what they do
 * there. */
static json_t *with_definitions(json_t *parameters, const char **uri) {
    static const char OWN[] = "urn:sluice:arguments";
    json_t *copy = json_copy(parameters), *id = json_object_get(parameters, "$id");
    json_t *draft = json_object_get(parameters, "$schema"), *made = NULL;
    *uri = json_is_string(id) ? json_string_value(id) : OWN;
    if (copy && (json_is_string(id) ||
                 (!json_object_set_new(copy, "$id", json_string(OWN)) &&
                  (json_object_get(copy, "id") || !json_object_set_new(copy, "id", json_string(OWN)))))) {
        made = json_pack("{s:{s:O}}", "$defs", "arguments", copy);
    }
    if (made && draft && json_object_set(made, "$schema", draft)) {
        json_decref(made);
        made = NULL;
    }
    json_decref(copy);
    return made;
}

/* Adds {"type": [...]}. */
static bool add_kinds(json_t *all, unsigned kinds) {
    json_t *types = json_array();
    bool added = types != NULL;
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        added =
            added && (!(kinds & TYPES[i].kind) || !json_array_append_new(types, json_string(TYPES[i].type)));
    }
    added = added && !json_array_append_new(all, json_pack("{s:O}", "type", types));
    json_decref(types);
    return added;
}

json_t *sl_reply_value_schema(json_t *parameters, json_t *pointers, unsigned kinds) {
    json_t *all = json_array(), *item, *made = NULL;
    const char *uri = NULL;
    size_t index;
    bool refers = false, added = all != NULL;
    json_array_foreach(pointers, index, item) {
        refers = refers || has_references(at_pointer(parameters, json_string_value(item)));
    }
    made = refers ? with_definitions(parameters, &uri) : json_object();
    json_array_foreach(pointers, index, item) {
        const char *pointer = json_string_value(item);
        json_t *part = !made    ? NULL
                       : refers ? reference_to(uri, pointer)
                                : json_incref(at_pointer(parameters, pointer));
        added = added && part && !json_array_append_new(all, part);
    }
    added = added && (!kinds || add_kinds(all, kinds));
    if (added && json_array_size(all) == 1 && !refers) {
        json_decref(made);
        made = json_incref(json_array_get(all, 0));
    } else if (added && json_array_size(all) > 0) {
        added = !json_object_set(made, "allOf", all);
    }
    json_decref(all);
    if (!added || !made) {
        json_decref(made);
        return NULL;
    }
    return made;
}
