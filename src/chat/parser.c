#include "chat/parser.h"

#include "chat/evaluator.h"

typedef struct parser {
    sl_jinja_source *source;
    const sl_jinja_token *token; /* the current one */
    unsigned depth;
    unsigned loops; /* loops around the current statement: break and continue need one */
    uint8_t uses;   /* SL_JINJA_USES_ names seen in the macro being parsed */
} parser;

/* A growing list of nodes. */
typedef struct nodes {
    sl_jinja_node **items;
    uint32_t count, capacity;
} nodes;

typedef struct names {
    sl_view *items;
    uint32_t count, capacity;
} names;

/* ---- helpers ---- */

static int fail(parser *p, const char *rule) {
    sl_view text = p->token->text;
    int length = text.length < 40 ? (int)text.length : 40;
    if (p->token->kind == SL_JINJA_TOKEN_END) {
        return sl_jinja_source_fail(p->source, SL_ERR_FORMAT, p->token->line,
                                    "%s, not the end of the template", rule);
    }
    return sl_jinja_source_fail(p->source, SL_ERR_FORMAT, p->token->line, "%s, not '%.*s'", rule, length,
                                length ? text.data : "");
}

static int no_memory(parser *p) {
    return sl_jinja_source_fail(p->source, SL_ERR_NOMEM, p->token->line, "out of memory");
}

static int too_deep(parser *p) {
    return sl_jinja_source_fail(p->source, SL_ERR_LIMIT, p->token->line, "nested deeper than %d",
                                SL_JINJA_NESTING);
}

static bool is_operator(const parser *p, const char *text) {
    return p->token->kind == SL_JINJA_TOKEN_OPERATOR && sl_view_is(p->token->text, text);
}

static bool is_word(const parser *p, const char *text) {
    return p->token->kind == SL_JINJA_TOKEN_NAME && sl_view_is(p->token->text, text);
}

static bool skip_operator(parser *p, const char *text) {
    bool there = is_operator(p, text);
    p->token += there;
    return there;
}

static bool skip_word(parser *p, const char *text) {
    bool there = is_word(p, text);
    p->token += there;
    return there;
}

static int expect_operator(parser *p, const char *text) {
    char rule[32] = "expected '";
    strcat(strcat(rule, text), "'");
    return skip_operator(p, text) ? 0 : fail(p, rule);
}

static int expect_name(parser *p, sl_view *name) {
    if (p->token->kind != SL_JINJA_TOKEN_NAME) {
        return fail(p, "expected a name");
    }
    *name = p->token++->text;
    return 0;
}

static int expect_block_end(parser *p) {
    if (p->token->kind != SL_JINJA_TOKEN_BLOCK_END) {
        return fail(p, "expected '%}'");
    }
    p->token++;
    return 0;
}

static sl_jinja_node *new_node(parser *p, sl_jinja_node_kind kind) {
    sl_jinja_node *node = sl_arena_alloc(p->source->arena, 1, sizeof *node);
    if (!node) {
        no_memory(p);
        return NULL;
    }
    node->kind = kind;
    node->line = p->token->line;
    return node;
}

static void raise_height(sl_jinja_node *node, const sl_jinja_node *child) {
    if (child && child->height >= node->height) {
        node->height = (uint16_t)(child->height + 1);
    }
}

/* Sets a finished node's height, which bounds the evaluator's recursion. */
static int finish(parser *p, sl_jinja_node *node) {
    raise_height(node, node->a);
    raise_height(node, node->b);
    raise_height(node, node->c);
    for (uint32_t i = 0; i < node->count; i++) {
        raise_height(node, node->items[i]);
    }
    for (uint32_t i = 0; i < node->other_count; i++) {
        raise_height(node, node->others[i]);
    }
    return node->height > SL_JINJA_NESTING ? too_deep(p) : 0;
}

static int grow(parser *p, void **items, uint32_t count, uint32_t *capacity, size_t size) {
    if (count < *capacity) {
        return 0;
    }
    uint32_t more = *capacity ? *capacity * 2 : 4;
    void *memory = sl_arena_alloc(p->source->arena, more, size);
    if (!memory) {
        return no_memory(p);
    }
    if (count) {
        memcpy(memory, *items, count * size);
    }
    *items = memory;
    *capacity = more;
    return 0;
}

static int push_node(parser *p, nodes *list, sl_jinja_node *node) {
    void *items = list->items;
    if (grow(p, &items, list->count, &list->capacity, sizeof *list->items)) {
        return p->source->code;
    }
    list->items = items;
    list->items[list->count++] = node;
    return 0;
}

static int push_name(parser *p, names *list, sl_view name) {
    void *items = list->items;
    if (grow(p, &items, list->count, &list->capacity, sizeof *list->items)) {
        return p->source->code;
    }
    list->items = items;
    list->items[list->count++] = name;
    return 0;
}

/* ---- expressions ---- */

static int parse_expression(parser *p, bool conditional, sl_jinja_node **out);
static int parse_unary(parser *p, bool filters, sl_jinja_node **out);
static int parse_postfix(parser *p, sl_jinja_node **node);

static bool ends_tuple(const parser *p) {
    return p->token->kind == SL_JINJA_TOKEN_BLOCK_END || p->token->kind == SL_JINJA_TOKEN_PRINT_END ||
           p->token->kind == SL_JINJA_TOKEN_END || is_operator(p, ")");
}

/* Expressions with commas between; one without a comma is itself. */
static int parse_tuple(parser *p, bool conditional, bool may_be_empty, sl_jinja_node **out) {
    nodes items = {0};
    bool comma = false;
    sl_jinja_node *tuple = new_node(p, SL_JINJA_TUPLE_OF);
    if (!tuple) {
        return p->source->code;
    }
    while (!ends_tuple(p)) {
        sl_jinja_node *item;
        if (parse_expression(p, conditional, &item) || push_node(p, &items, item)) {
            return p->source->code;
        }
        if (!skip_operator(p, ",")) {
            break;
        }
        comma = true;
    }
    if (items.count == 0 && !may_be_empty) {
        return fail(p, "expected an expression");
    }
    if (items.count == 1 && !comma) {
        *out = items.items[0];
        return 0;
    }
    tuple->items = items.items;
    tuple->count = items.count;
    *out = tuple;
    return finish(p, tuple);
}

static int parse_list(parser *p, sl_jinja_node **out) {
    nodes items = {0};
    sl_jinja_node *list = new_node(p, SL_JINJA_LIST_OF);
    if (!list) {
        return p->source->code;
    }
    p->token++;
    while (!is_operator(p, "]")) {
        sl_jinja_node *item;
        if (items.count && expect_operator(p, ",")) {
            return p->source->code;
        }
        if (is_operator(p, "]")) {
            break;
        }
        if (parse_expression(p, true, &item) || push_node(p, &items, item)) {
            return p->source->code;
        }
    }
    p->token++;
    list->items = items.items;
    list->count = items.count;
    *out = list;
    return finish(p, list);
}

static int parse_dict(parser *p, sl_jinja_node **out) {
    nodes keys = {0}, values = {0};
    sl_jinja_node *dict = new_node(p, SL_JINJA_DICT_OF);
    if (!dict) {
        return p->source->code;
    }
    p->token++;
    while (!is_operator(p, "}")) {
        sl_jinja_node *key, *value;
        if (keys.count && expect_operator(p, ",")) {
            return p->source->code;
        }
        if (is_operator(p, "}")) {
            break;
        }
        if (parse_expression(p, true, &key) || expect_operator(p, ":") || parse_expression(p, true, &value) ||
            push_node(p, &keys, key) || push_node(p, &values, value)) {
            return p->source->code;
        }
    }
    p->token++;
    dict->items = keys.items;
    dict->count = keys.count;
    dict->others = values.items;
    dict->other_count = values.count;
    *out = dict;
    return finish(p, dict);
}

static int parse_string(parser *p, sl_jinja_node *node) {
    const sl_jinja_token *first = p->token;
    size_t length = 0;
    for (; p->token->kind == SL_JINJA_TOKEN_STRING; p->token++) { /* neighbours are one string */
        length += p->token->text.length;
    }
    node->constant = sl_jinja_text(first->text.data, first->text.length);
    if (p->token > first + 1) {
        char *both = sl_arena_alloc(p->source->arena, length + 1, 1);
        if (!both) {
            return no_memory(p);
        }
        node->constant = sl_jinja_text(both, length);
        for (; first < p->token; both += first->text.length, first++) {
            memcpy(both, first->text.data, first->text.length);
        }
    }
    return 0;
}

static int parse_name(parser *p, sl_jinja_node *node) {
    static const struct {
        const char *name;
        sl_jinja_value value;
    } constants[] = {
        {"true", {.kind = SL_JINJA_BOOL, .boolean = true}},
        {"True", {.kind = SL_JINJA_BOOL, .boolean = true}},
        {"false", {.kind = SL_JINJA_BOOL, .boolean = false}},
        {"False", {.kind = SL_JINJA_BOOL, .boolean = false}},
        {"none", {.kind = SL_JINJA_NONE}},
        {"None", {.kind = SL_JINJA_NONE}},
    };
    node->name = p->token++->text;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (sl_view_is(node->name, constants[i].name)) {
            node->constant = constants[i].value;
            return 0;
        }
    }
    p->uses |= sl_view_is(node->name, "varargs")  ? SL_JINJA_USES_VARARGS
               : sl_view_is(node->name, "kwargs") ? SL_JINJA_USES_KWARGS
               : sl_view_is(node->name, "caller") ? SL_JINJA_USES_CALLER
                                                  : 0;
    node->kind = SL_JINJA_NAME;
    return 0;
}

static int parse_primary(parser *p, sl_jinja_node **out) {
    if (is_operator(p, "(")) {
        p->token++;
        return parse_tuple(p, true, true, out) || expect_operator(p, ")") ? p->source->code : 0;
    }
    if (is_operator(p, "[")) {
        return parse_list(p, out);
    }
    if (is_operator(p, "{")) {
        return parse_dict(p, out);
    }
    sl_jinja_node *node = new_node(p, SL_JINJA_CONSTANT);
    if (!node) {
        return p->source->code;
    }
    *out = node;
    switch (p->token->kind) {
    case SL_JINJA_TOKEN_NAME:
        return parse_name(p, node);
    case SL_JINJA_TOKEN_STRING:
        return parse_string(p, node);
    case SL_JINJA_TOKEN_INTEGER:
        node->constant = sl_jinja_int(p->token++->integer);
        return 0;
    case SL_JINJA_TOKEN_FLOAT:
        node->constant = sl_jinja_float(p->token++->real);
        return 0;
    default:
        return fail(p, "expected an expression");
    }
}

/* "(a, b=c, *d, **e)" into a call, filter or test node. */
static int parse_arguments(parser *p, sl_jinja_node *call) {
    nodes items = {0}, named = {0};
    names keys = {0};
    if (expect_operator(p, "(")) {
        return p->source->code;
    }
    for (bool first = true; !is_operator(p, ")"); first = false) {
        sl_jinja_node *value;
        sl_view name = {0};
        if (!first && expect_operator(p, ",")) {
            return p->source->code;
        }
        if (is_operator(p, ")")) {
            break;
        }
        bool star = skip_operator(p, "*"), stars = !star && skip_operator(p, "**");
        if (!star && !stars && p->token->kind == SL_JINJA_TOKEN_NAME &&
            p->token[1].kind == SL_JINJA_TOKEN_OPERATOR && sl_view_is(p->token[1].text, "=")) {
            name = p->token->text;
            p->token += 2;
        }
        if ((star && (call->b || call->c)) || (!star && call->c) ||
            (!star && !stars && !name.data && (named.count || call->b))) {
            return fail(p, "invalid order of arguments in a call");
        }
        if (parse_expression(p, true, &value)) {
            return p->source->code;
        }
        if (star) {
            call->b = value;
        } else if (stars) {
            call->c = value;
        } else if (name.data ? push_name(p, &keys, name) || push_node(p, &named, value)
                             : push_node(p, &items, value)) {
            return p->source->code;
        }
    }
    p->token++;
    call->items = items.items;
    call->count = items.count;
    call->others = named.items;
    call->other_count = named.count;
    call->names = keys.items;
    return 0;
}

static int parse_filter(parser *p, sl_jinja_node **node) {
    sl_jinja_node *filter = new_node(p, SL_JINJA_FILTER);
    if (!filter || expect_name(p, &filter->name)) {
        return p->source->code;
    }
    filter->a = *node;
    filter->builtin = sl_jinja_find_filter(filter->name);
    if (is_operator(p, "(") && parse_arguments(p, filter)) {
        return p->source->code;
    }
    *node = filter;
    return finish(p, filter);
}

static bool starts_test_argument(const parser *p) {
    switch (p->token->kind) {
    case SL_JINJA_TOKEN_NAME:
        return !is_word(p, "else") && !is_word(p, "or") && !is_word(p, "and");
    case SL_JINJA_TOKEN_STRING:
    case SL_JINJA_TOKEN_INTEGER:
    case SL_JINJA_TOKEN_FLOAT:
        return true;
    default:
        return is_operator(p, "[") || is_operator(p, "{");
    }
}

static int parse_test(parser *p, sl_jinja_node **node) {
    sl_jinja_node *test = new_node(p, SL_JINJA_TEST);
    if (!test) {
        return p->source->code;
    }
    test->negated = skip_word(p, "not");
    if (expect_name(p, &test->name)) {
        return p->source->code;
    }
    test->a = *node;
    test->builtin = sl_jinja_find_test(test->name);
    if (is_operator(p, "(")) {
        if (parse_arguments(p, test)) {
            return p->source->code;
        }
    } else if (starts_test_argument(p)) {
        nodes items = {0};
        sl_jinja_node *argument;
        if (is_word(p, "is")) {
            return fail(p, "tests with 'is' cannot be chained");
        }
        if (parse_primary(p, &argument) || parse_postfix(p, &argument) || push_node(p, &items, argument)) {
            return p->source->code;
        }
        test->items = items.items;
        test->count = 1;
    }
    *node = test;
    return finish(p, test);
}

/* What stands between "[" and "]": an index, a slice, or several with commas (a tuple). */
static int parse_subscript(parser *p, sl_jinja_node **node) {
    sl_jinja_node *item = new_node(p, SL_JINJA_GET_ITEM);
    nodes parts = {0};
    if (!item) {
        return p->source->code;
    }
    p->token++;
    item->a = *node;
    if (!is_operator(p, ":") && parse_expression(p, true, &item->b)) {
        return p->source->code;
    }
    if (is_operator(p, ":")) {
        sl_jinja_node *part = item->b;
        item->kind = SL_JINJA_GET_SLICE;
        item->b = NULL;
        if (push_node(p, &parts, part)) {
            return p->source->code;
        }
        for (int i = 1; i < 3; i++) {
            part = NULL;
            if (skip_operator(p, ":") && !is_operator(p, ":") && !is_operator(p, "]") &&
                parse_expression(p, true, &part)) {
                return p->source->code;
            }
            if (push_node(p, &parts, part)) {
                return p->source->code;
            }
        }
    } else if (is_operator(p, ",")) {
        sl_jinja_node *tuple = new_node(p, SL_JINJA_TUPLE_OF);
        if (!tuple || push_node(p, &parts, item->b)) {
            return p->source->code;
        }
        while (skip_operator(p, ",")) {
            sl_jinja_node *part;
            if (parse_expression(p, true, &part) || push_node(p, &parts, part)) {
                return p->source->code;
            }
        }
        tuple->items = parts.items;
        tuple->count = parts.count;
        parts = (nodes){0};
        item->b = tuple;
        if (finish(p, tuple)) {
            return p->source->code;
        }
    }
    item->items = parts.items;
    item->count = parts.count;
    *node = item;
    return expect_operator(p, "]") || finish(p, item) ? p->source->code : 0;
}

static int parse_dot(parser *p, sl_jinja_node **node) {
    sl_jinja_node *get = new_node(p, SL_JINJA_GET_ATTRIBUTE);
    if (!get) {
        return p->source->code;
    }
    p->token++;
    get->a = *node;
    *node = get;
    if (p->token->kind == SL_JINJA_TOKEN_INTEGER) {
        get->kind = SL_JINJA_GET_ITEM;
        if (!(get->b = new_node(p, SL_JINJA_CONSTANT))) {
            return p->source->code;
        }
        get->b->constant = sl_jinja_int(p->token++->integer);
    } else if (expect_name(p, &get->name)) {
        return p->source->code;
    }
    return finish(p, get);
}

static int parse_call(parser *p, sl_jinja_node **node) {
    sl_jinja_node *call = new_node(p, SL_JINJA_CALL);
    if (!call || parse_arguments(p, call)) {
        return p->source->code;
    }
    call->a = *node;
    *node = call;
    return finish(p, call);
}

static int parse_postfix(parser *p, sl_jinja_node **node) {
    int code = 0;
    while (!code) {
        if (is_operator(p, ".")) {
            code = parse_dot(p, node);
        } else if (is_operator(p, "[")) {
            code = parse_subscript(p, node);
        } else if (is_operator(p, "(")) {
            code = parse_call(p, node);
        } else {
            break;
        }
    }
    return code;
}

static int parse_signed(parser *p, sl_jinja_node **out) {
    sl_jinja_node *node = new_node(p, is_operator(p, "-") ? SL_JINJA_NEGATE : SL_JINJA_POSITIVE);
    if (!node) {
        return p->source->code;
    }
    p->token++;
    *out = node;
    return parse_unary(p, false, &node->a) || finish(p, node) ? p->source->code : 0;
}

static int parse_unary(parser *p, bool filters, sl_jinja_node **out) {
    if (p->depth++ >= SL_JINJA_NESTING) {
        return too_deep(p);
    }
    int code = is_operator(p, "-") || is_operator(p, "+") ? parse_signed(p, out) : parse_primary(p, out);
    code = code ? code : parse_postfix(p, out);
    while (filters && !code) {
        if (skip_operator(p, "|")) {
            code = parse_filter(p, out);
        } else if (skip_word(p, "is")) {
            code = parse_test(p, out);
        } else if (is_operator(p, "(")) {
            code = parse_call(p, out);
        } else {
            break;
        }
    }
    p->depth--;
    return code;
}

/* Binary operators by how tightly they bind. */
enum {
    LEVEL_OR = 1,
    LEVEL_AND,
    LEVEL_NOT,
    LEVEL_COMPARE,
    LEVEL_ADD,
    LEVEL_CONCATENATE,
    LEVEL_MULTIPLY,
    LEVEL_POWER
};

typedef struct binary_operator {
    const char *text;
    int level;
    sl_jinja_node_kind kind;
    sl_jinja_operator operation;
} binary_operator;

static const binary_operator binary_operators[] = {
    {"or", LEVEL_OR, SL_JINJA_OR, 0},
    {"and", LEVEL_AND, SL_JINJA_AND, 0},
    {"==", LEVEL_COMPARE, SL_JINJA_COMPARE, SL_JINJA_EQUAL},
    {"!=", LEVEL_COMPARE, SL_JINJA_COMPARE, SL_JINJA_NOT_EQUAL},
    {"<", LEVEL_COMPARE, SL_JINJA_COMPARE, SL_JINJA_LESS},
    {"<=", LEVEL_COMPARE, SL_JINJA_COMPARE, SL_JINJA_LESS_EQUAL},
    {">", LEVEL_COMPARE, SL_JINJA_COMPARE, SL_JINJA_GREATER},
    {">=", LEVEL_COMPARE, SL_JINJA_COMPARE, SL_JINJA_GREATER_EQUAL},
    {"in", LEVEL_COMPARE, SL_JINJA_COMPARE, SL_JINJA_IN},
    {"not", LEVEL_COMPARE, SL_JINJA_COMPARE, SL_JINJA_NOT_IN}, /* when "in" follows */
    {"+", LEVEL_ADD, SL_JINJA_BINARY, SL_JINJA_ADD},
    {"-", LEVEL_ADD, SL_JINJA_BINARY, SL_JINJA_SUBTRACT},
    {"~", LEVEL_CONCATENATE, SL_JINJA_CONCATENATE, 0},
    {"*", LEVEL_MULTIPLY, SL_JINJA_BINARY, SL_JINJA_MULTIPLY},
    {"/", LEVEL_MULTIPLY, SL_JINJA_BINARY, SL_JINJA_DIVIDE},
    {"//", LEVEL_MULTIPLY, SL_JINJA_BINARY, SL_JINJA_FLOOR_DIVIDE},
    {"%", LEVEL_MULTIPLY, SL_JINJA_BINARY, SL_JINJA_MODULO},
    {"**", LEVEL_POWER, SL_JINJA_BINARY, SL_JINJA_POWER},
};

static const binary_operator *current_operator(const parser *p) {
    if (p->token->kind != SL_JINJA_TOKEN_OPERATOR && p->token->kind != SL_JINJA_TOKEN_NAME) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof binary_operators / sizeof *binary_operators; i++) {
        const binary_operator *row = &binary_operators[i];
        if (!sl_view_is(p->token->text, row->text)) {
            continue;
        }
        bool in_follows = p->token[1].kind == SL_JINJA_TOKEN_NAME && sl_view_is(p->token[1].text, "in");
        return row->operation == SL_JINJA_NOT_IN && !in_follows ? NULL : row;
    }
    return NULL;
}

static void skip_binary(parser *p, const binary_operator *row) {
    p->token += row->operation == SL_JINJA_NOT_IN ? 2 : 1;
}

static int parse_level(parser *p, int lowest, sl_jinja_node **out);

/* "a < b <= c" and "a ~ b ~ c" are one node each. */
static int parse_chain(parser *p, const binary_operator *first, sl_jinja_node **left) {
    sl_jinja_node *chain = new_node(p, first->kind);
    nodes items = {0};
    bool compare = first->kind == SL_JINJA_COMPARE;
    if (!chain) {
        return p->source->code;
    }
    if (compare) {
        chain->a = *left;
    } else if (push_node(p, &items, *left)) {
        return p->source->code;
    }
    for (const binary_operator *row; (row = current_operator(p)) && row->level == first->level;) {
        sl_jinja_node *right, *operand = compare ? new_node(p, SL_JINJA_OPERAND) : NULL;
        if (compare && !operand) {
            return p->source->code;
        }
        skip_binary(p, row);
        if (parse_level(p, first->level + 1, &right)) {
            return p->source->code;
        }
        if (compare) {
            operand->a = right;
            operand->operation = row->operation;
            if (finish(p, operand)) {
                return p->source->code;
            }
            right = operand;
        }
        if (push_node(p, &items, right)) {
            return p->source->code;
        }
    }
    chain->items = items.items;
    chain->count = items.count;
    *left = chain;
    return finish(p, chain);
}

static int parse_not(parser *p, sl_jinja_node **out) {
    sl_jinja_node *node = new_node(p, SL_JINJA_NOT);
    if (!node) {
        return p->source->code;
    }
    if (p->depth++ >= SL_JINJA_NESTING) {
        return too_deep(p);
    }
    p->token++;
    *out = node;
    int code = parse_level(p, LEVEL_NOT, &node->a);
    p->depth--;
    return code ? code : finish(p, node);
}

static int parse_level(parser *p, int lowest, sl_jinja_node **out) {
    int code = lowest <= LEVEL_NOT && is_word(p, "not") ? parse_not(p, out) : parse_unary(p, true, out);
    for (const binary_operator *row; !code && (row = current_operator(p)) && row->level >= lowest;) {
        if (row->kind == SL_JINJA_COMPARE || row->kind == SL_JINJA_CONCATENATE) {
            code = parse_chain(p, row, out);
            continue;
        }
        sl_jinja_node *node = new_node(p, row->kind);
        if (!node) {
            return p->source->code;
        }
        skip_binary(p, row);
        node->a = *out;
        node->operation = row->operation;
        *out = node;
        code = parse_level(p, row->level + 1, &node->b);
        code = code ? code : finish(p, node);
    }
    return code;
}

static int parse_expression(parser *p, bool conditional, sl_jinja_node **out) {
    if (p->depth++ >= SL_JINJA_NESTING) {
        return too_deep(p);
    }
    int code = parse_level(p, LEVEL_OR, out);
    while (!code && conditional && is_word(p, "if")) {
        sl_jinja_node *node = new_node(p, SL_JINJA_CONDITIONAL);
        if (!node) {
            return p->source->code;
        }
        p->token++;
        node->a = *out;
        *out = node;
        code = parse_level(p, LEVEL_OR, &node->b);
        if (!code && skip_word(p, "else")) {
            code = parse_expression(p, true, &node->c);
        }
        code = code ? code : finish(p, node);
    }
    p->depth--;
    return code;
}

/* ---- statements ---- */

static int parse_body(parser *p, const char *const *ends, sl_jinja_node **out);

static bool reserved(sl_view name) {
    static const char *const words[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (sl_view_is(name, words[i])) {
            return true;
        }
    }
    return false;
}

static int parse_target(parser *p, bool attribute, sl_jinja_node **out);

static int parse_one_target(parser *p, bool attribute, sl_jinja_node **out) {
    if (skip_operator(p, "(")) {
        return parse_target(p, false, out) || expect_operator(p, ")") ? p->source->code : 0;
    }
    sl_jinja_node *node = new_node(p, SL_JINJA_NAME);
    if (!node || expect_name(p, &node->name)) {
        return p->source->code;
    }
    if (reserved(node->name)) {
        return fail(p, "cannot assign to a constant");
    }
    *out = node;
    if (attribute && is_operator(p, ".")) {
        return parse_dot(p, out);
    }
    return 0;
}

/* name, namespace.name, or names with commas between, which may be in parentheses. */
static int parse_target(parser *p, bool attribute, sl_jinja_node **out) {
    if (p->depth++ >= SL_JINJA_NESTING) {
        return too_deep(p);
    }
    if (parse_one_target(p, attribute, out)) {
        return p->source->code;
    }
    if (is_operator(p, ",")) {
        sl_jinja_node *tuple = new_node(p, SL_JINJA_TUPLE_OF);
        nodes items = {0};
        if (!tuple || push_node(p, &items, *out)) {
            return p->source->code;
        }
        while (skip_operator(p, ",")) {
            sl_jinja_node *item;
            if (p->token->kind != SL_JINJA_TOKEN_NAME && !is_operator(p, "(")) {
                break;
            }
            if (is_word(p, "in")) {
                break;
            }
            if (parse_one_target(p, false, &item) || push_node(p, &items, item)) {
                return p->source->code;
            }
        }
        tuple->items = items.items;
        tuple->count = items.count;
        *out = tuple;
        if (finish(p, tuple)) {
            return p->source->code;
        }
    }
    p->depth--;
    return 0;
}

static int parse_if(parser *p, sl_jinja_node *node) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    nodes items = {0};
    for (;;) {
        sl_jinja_node *condition, *body;
        if (parse_tuple(p, false, false, &condition) || expect_block_end(p) || parse_body(p, ends, &body) ||
            push_node(p, &items, condition) || push_node(p, &items, body)) {
            return p->source->code;
        }
        if (!skip_word(p, "elif")) {
            break;
        }
    }
    node->items = items.items;
    node->count = items.count;
    if (skip_word(p, "else") && (expect_block_end(p) || parse_body(p, last, &node->a))) {
        return p->source->code;
    }
    p->token++; /* endif */
    return 0;
}

static int parse_for(parser *p, sl_jinja_node *node) {
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    nodes items = {0};
    sl_jinja_node *body, *otherwise = NULL;
    if (parse_target(p, false, &node->a)) {
        return p->source->code;
    }
    if (!skip_word(p, "in")) {
        return fail(p, "expected 'in'");
    }
    if (parse_tuple(p, false, false, &node->b) ||
        (skip_word(p, "if") && parse_expression(p, true, &node->c))) {
        return p->source->code;
    }
    if (is_word(p, "recursive")) {
        return sl_jinja_source_fail(p->source, SL_ERR_UNSUPPORTED, p->token->line,
                                    "recursive loops are not supported");
    }
    p->loops++;
    if (expect_block_end(p) || parse_body(p, ends, &body)) {
        return p->source->code;
    }
    p->loops--;
    if (skip_word(p, "else") && (expect_block_end(p) || parse_body(p, last, &otherwise))) {
        return p->source->code;
    }
    p->token++; /* endfor */
    if (push_node(p, &items, body) || push_node(p, &items, otherwise)) {
        return p->source->code;
    }
    node->items = items.items;
    node->count = items.count;
    return 0;
}

static int parse_filters(parser *p, sl_jinja_node **out) {
    int code = parse_filter(p, out);
    while (!code && skip_operator(p, "|")) {
        code = parse_filter(p, out);
    }
    return code;
}

static int parse_set(parser *p, sl_jinja_node *node) {
    static const char *const ends[] = {"endset", NULL};
    if (parse_target(p, true, &node->a)) {
        return p->source->code;
    }
    if (skip_operator(p, "=")) {
        return parse_tuple(p, true, false, &node->b);
    }
    node->kind = SL_JINJA_SET_BLOCK;
    if ((skip_operator(p, "|") && parse_filters(p, &node->c)) || expect_block_end(p) ||
        parse_body(p, ends, &node->b)) {
        return p->source->code;
    }
    p->token++;
    return 0;
}

/* "(a, b=1)" of a macro or call block. */
static int parse_signature(parser *p, sl_jinja_node *node) {
    nodes defaults = {0};
    names parameters = {0};
    if (expect_operator(p, "(")) {
        return p->source->code;
    }
    while (!is_operator(p, ")")) {
        sl_view name;
        if ((parameters.count && expect_operator(p, ",")) || expect_name(p, &name) ||
            push_name(p, &parameters, name)) {
            return p->source->code;
        }
        if (reserved(name)) {
            return fail(p, "cannot assign to a constant");
        }
        if (skip_operator(p, "=")) {
            sl_jinja_node *value;
            if (parse_expression(p, true, &value) || push_node(p, &defaults, value)) {
                return p->source->code;
            }
        } else if (defaults.count) {
            return fail(p, "a parameter without a default follows one with a default");
        }
    }
    p->token++;
    node->names = parameters.items;
    node->name_count = parameters.count;
    node->items = defaults.items;
    node->count = defaults.count;
    return 0;
}

/* A body in which the loops around it cannot be left. */
static int parse_closed_body(parser *p, const char *end, sl_jinja_node **out) {
    const char *const ends[] = {end, NULL};
    unsigned loops = p->loops;
    p->loops = 0;
    if (expect_block_end(p) || parse_body(p, ends, out)) {
        return p->source->code;
    }
    p->loops = loops;
    p->token++;
    return 0;
}

/* The body of a macro or of a caller. */
static int parse_macro_body(parser *p, const char *end, sl_jinja_node *node) {
    uint8_t outer = p->uses;
    p->uses = 0;
    int code = parse_closed_body(p, end, &node->a);
    node->uses = p->uses;
    p->uses = outer;
    return code;
}

static int parse_macro(parser *p, sl_jinja_node *node) {
    if (expect_name(p, &node->name) || parse_signature(p, node)) {
        return p->source->code;
    }
    return parse_macro_body(p, "endmacro", node);
}

static int parse_call_block(parser *p, sl_jinja_node *node) {
    sl_jinja_node *caller = new_node(p, SL_JINJA_MACRO_BLOCK);
    if (!caller) {
        return p->source->code;
    }
    caller->name = sl_view_of("caller");
    if ((is_operator(p, "(") && parse_signature(p, caller)) || parse_expression(p, true, &node->a)) {
        return p->source->code;
    }
    if (node->a->kind != SL_JINJA_CALL) {
        return fail(p, "expected a call");
    }
    node->b = caller;
    return parse_macro_body(p, "endcall", caller) || finish(p, caller) ? p->source->code : 0;
}

static int parse_filter_block(parser *p, sl_jinja_node *node) {
    return parse_filters(p, &node->c) || parse_closed_body(p, "endfilter", &node->b) ? p->source->code : 0;
}

static int parse_with(parser *p, sl_jinja_node *node) {
    nodes targets = {0}, values = {0};
    while (p->token->kind != SL_JINJA_TOKEN_BLOCK_END) {
        sl_jinja_node *target, *value;
        if ((targets.count && expect_operator(p, ",")) || parse_one_target(p, false, &target) ||
            expect_operator(p, "=") || parse_expression(p, true, &value) || push_node(p, &targets, target) ||
            push_node(p, &values, value)) {
            return p->source->code;
        }
    }
    node->items = targets.items;
    node->count = targets.count;
    node->others = values.items;
    node->other_count = values.count;
    return parse_closed_body(p, "endwith", &node->a);
}

static int parse_generation(parser *p, sl_jinja_node *node) {
    return parse_closed_body(p, "endgeneration", &node->a);
}

static int parse_jump(parser *p, sl_jinja_node *node) {
    (void)node;
    return p->loops ? 0 : fail(p, "break and continue need a loop around them");
}

static int parse_unsupported(parser *p, sl_jinja_node *node) {
    (void)node;
    return sl_jinja_source_fail(p->source, SL_ERR_UNSUPPORTED, p->token->line,
                                "include, import, extends and block are not supported");
}

static const struct statement {
    const char *name;
    sl_jinja_node_kind kind;
    int (*parse)(parser *p, sl_jinja_node *node);
} statements[] = {
    {"if", SL_JINJA_IF, parse_if},
    {"for", SL_JINJA_FOR, parse_for},
    {"set", SL_JINJA_SET, parse_set},
    {"macro", SL_JINJA_MACRO_BLOCK, parse_macro},
    {"call", SL_JINJA_CALL_BLOCK, parse_call_block},
    {"filter", SL_JINJA_FILTER_BLOCK, parse_filter_block},
    {"with", SL_JINJA_WITH, parse_with},
    {"generation", SL_JINJA_SCOPED, parse_generation},
    {"break", SL_JINJA_BREAK, parse_jump},
    {"continue", SL_JINJA_CONTINUE, parse_jump},
    {"include", SL_JINJA_BODY, parse_unsupported},
    {"import", SL_JINJA_BODY, parse_unsupported},
    {"from", SL_JINJA_BODY, parse_unsupported},
    {"extends", SL_JINJA_BODY, parse_unsupported},
    {"block", SL_JINJA_BODY, parse_unsupported},
};

/* After "{%": one statement with its end. */
static int parse_statement(parser *p, sl_jinja_node **out) {
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (is_word(p, statements[i].name)) {
            sl_jinja_node *node = new_node(p, statements[i].kind);
            if (!node) {
                return p->source->code;
            }
            p->token++;
            *out = node;
            return statements[i].parse(p, node) || expect_block_end(p) || finish(p, node) ? p->source->code
                                                                                          : 0;
        }
    }
    return fail(p, "expected a statement");
}

static bool at_end_word(const parser *p, const char *const *ends) {
    for (; *ends; ends++) {
        if (p->token[1].kind == SL_JINJA_TOKEN_NAME && sl_view_is(p->token[1].text, *ends)) {
            return true;
        }
    }
    return false;
}

static int parse_print(parser *p, sl_jinja_node **out) {
    sl_jinja_node *node = new_node(p, SL_JINJA_PRINT);
    if (!node) {
        return p->source->code;
    }
    p->token++;
    *out = node;
    if (parse_tuple(p, true, false, &node->a)) {
        return p->source->code;
    }
    if (p->token->kind != SL_JINJA_TOKEN_PRINT_END) {
        return fail(p, "expected '}}'");
    }
    p->token++;
    return finish(p, node);
}

static int parse_item(parser *p, sl_jinja_node **out) {
    if (p->token->kind == SL_JINJA_TOKEN_PRINT) {
        return parse_print(p, out);
    }
    if (p->token->kind == SL_JINJA_TOKEN_BLOCK) {
        p->token++;
        return parse_statement(p, out);
    }
    if (!(*out = new_node(p, SL_JINJA_DATA))) {
        return p->source->code;
    }
    (*out)->constant = sl_jinja_text(p->token->text.data, p->token->text.length);
    p->token++;
    return 0;
}

/* Everything up to a block that begins with one of `ends`, and stops at that word; ends NULL: up to the end.
 */
static int parse_body(parser *p, const char *const *ends, sl_jinja_node **out) {
    sl_jinja_node *body = new_node(p, SL_JINJA_BODY);
    nodes items = {0};
    if (!body) {
        return p->source->code;
    }
    if (p->depth++ >= SL_JINJA_NESTING) {
        return too_deep(p);
    }
    while (p->token->kind != SL_JINJA_TOKEN_END) {
        if (ends && p->token->kind == SL_JINJA_TOKEN_BLOCK && at_end_word(p, ends)) {
            break;
        }
        sl_jinja_node *item;
        if (parse_item(p, &item) || push_node(p, &items, item)) {
            return p->source->code;
        }
    }
    if (ends && p->token->kind == SL_JINJA_TOKEN_END) {
        return sl_jinja_source_fail(p->source, SL_ERR_FORMAT, body->line, "a block is not closed: no '%s'",
                                    ends[0]);
    }
    p->token += ends != NULL;
    p->depth--;
    body->items = items.items;
    body->count = items.count;
    *out = body;
    return finish(p, body);
}

int sl_jinja_parse(sl_jinja_source *source, sl_jinja_token *tokens, sl_jinja_node **root) {
    parser p = {.source = source, .token = tokens};
    return parse_body(&p, NULL, root);
}
