#include "chat/evaluator.h"

/* What a statement did: go on, or leave or repeat the loop around it. */
enum { FLOW_BREAK = 1, FLOW_CONTINUE = 2 };

static int evaluate(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                    sl_jinja_value *result);
static int execute(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node);

static sl_jinja_scope *new_scope(sl_jinja *state, sl_jinja_scope *parent) {
    sl_jinja_scope *scope = sl_jinja_alloc(state, 1, sizeof *scope);
    if (scope) {
        scope->parent = parent;
    }
    return scope;
}

static int define(sl_jinja *state, sl_jinja_scope *scope, sl_view name, sl_jinja_value value) {
    return sl_jinja_dict_set(state, &scope->names, sl_jinja_text(name.data, name.length), value);
}

static int look_up(sl_jinja *state, const sl_jinja_scope *scope, sl_view name, sl_jinja_value *result) {
    size_t walked = 0;
    for (; scope; scope = scope->parent, walked++) {
        sl_jinja_value *value = NULL;
        if (scope->names.count &&
            sl_jinja_dict_get(state, &scope->names, sl_jinja_text(name.data, name.length), &value)) {
            return state->code;
        }
        if (value) {
            *result = *value;
            return sl_jinja_spend(state, walked / 2);
        }
    }
    const sl_jinja_builtin *row = sl_jinja_find_function(name);
    *result = row ? (sl_jinja_value){.kind = SL_JINJA_FUNCTION, .function = row} : sl_jinja_undefined(name);
    return sl_jinja_spend(state, walked / 2);
}

/* ---- calls ---- */

static int argument_error(sl_jinja *state, const char *name, const char *rule, sl_view argument) {
    return sl_jinja_fail(state, SL_ERR_INVALID, "%s(): %s %.*s", name, rule, (int)argument.length,
                         argument.length ? argument.data : "");
}

/* The place of a name in a list of names with commas between, counted from 1; 0: not there. */
static size_t parameter_index(const char *parameters, sl_view name) {
    size_t index = 1;
    for (const char *at = parameters; *at; index++) {
        size_t length = strcspn(at, ",");
        if (sl_view_equal((sl_view){at, length}, name)) {
            return index;
        }
        at += length + (at[length] == ',');
    }
    return 0;
}

static size_t parameter_count(const char *parameters) {
    size_t count = *parameters != 0;
    for (; *parameters; parameters++) {
        count += *parameters == ',';
    }
    return count;
}

int sl_jinja_run(sl_jinja *state, const sl_jinja_builtin *row, sl_jinja_value subject,
                 const sl_jinja_arguments *arguments, sl_jinja_value *result) {
    sl_jinja_call_frame call = {.row = row, .raw = arguments};
    call.bound[0] = subject;
    if (row->parameters[0] != '*') {
        size_t most = parameter_count(row->parameters);
        if (arguments->count > most) {
            return argument_error(state, row->name, "too many arguments", (sl_view){0});
        }
        for (size_t i = 0; i < arguments->count; i++) {
            call.bound[i + 1] = arguments->items[i];
        }
        for (size_t i = 0; i < arguments->named_count; i++) {
            size_t index = parameter_index(row->parameters, arguments->names[i]);
            if (index == 0 || call.bound[index].kind != SL_JINJA_MISSING) {
                return argument_error(state, row->name, "unexpected argument", arguments->names[i]);
            }
            call.bound[index] = arguments->named[i];
        }
        for (size_t i = 1; i <= row->required; i++) {
            if (call.bound[i].kind == SL_JINJA_MISSING) {
                return argument_error(state, row->name, "an argument is missing", (sl_view){0});
            }
        }
    }
    return row->function(state, &call, result);
}

static bool bind_named(const sl_jinja_node *node, const sl_jinja_arguments *arguments, size_t index,
                       bool *used, sl_jinja_value *value) {
    for (size_t i = 0; i < arguments->named_count; i++) {
        if (!used[i] && sl_view_equal(arguments->names[i], node->names[index])) {
            *value = arguments->named[i];
            used[i] = true;
            return true;
        }
    }
    return false;
}

/* varargs, kwargs and caller: what a macro may use besides its parameters. */
static int bind_rest(sl_jinja *state, const sl_jinja_node *node, const sl_jinja_arguments *arguments,
                     const bool *used, sl_jinja_scope *scope) {
    size_t extra = arguments->count > node->name_count ? arguments->count - node->name_count : 0;
    sl_jinja_value varargs, kwargs;
    if (sl_jinja_list_new(state, SL_JINJA_TUPLE, extra, &varargs) ||
        sl_jinja_dict_new(state, SL_JINJA_DICT, &kwargs)) {
        return state->code;
    }
    if (extra && !(node->uses & SL_JINJA_USES_VARARGS)) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "macro '%.*s' takes not more than %u arguments",
                             (int)node->name.length, node->name.data, node->name_count);
    }
    for (size_t i = 0; i < extra; i++) {
        varargs.list->items[i] = arguments->items[node->name_count + i];
    }
    for (size_t i = 0; i < arguments->named_count; i++) {
        sl_view name = arguments->names[i];
        if (used[i]) {
            continue;
        }
        bool is_caller = sl_view_is(name, "caller");
        if (!(node->uses & (is_caller ? SL_JINJA_USES_CALLER : SL_JINJA_USES_KWARGS))) {
            return sl_jinja_fail(state, SL_ERR_INVALID, "macro '%.*s' takes no argument '%.*s' here",
                                 (int)node->name.length, node->name.data, (int)name.length, name.data);
        }
        if (is_caller ? define(state, scope, name, arguments->named[i])
                      : sl_jinja_dict_set(state, kwargs.dict, sl_jinja_text(name.data, name.length),
                                          arguments->named[i])) {
            return state->code;
        }
    }
    return define(state, scope, sl_view_of("varargs"), varargs) ||
                   define(state, scope, sl_view_of("kwargs"), kwargs)
               ? state->code
               : 0;
}

static int bind_parameters(sl_jinja *state, const sl_jinja_node *node, const sl_jinja_arguments *arguments,
                           sl_jinja_scope *scope) {
    bool *used = sl_jinja_alloc(state, arguments->named_count, sizeof *used);
    if (!used) {
        return state->code;
    }
    for (size_t i = 0; i < node->name_count; i++) {
        if (sl_jinja_spend(state, arguments->named_count / 8)) {
            return state->code;
        }
        sl_jinja_value value = sl_jinja_undefined(node->names[i]);
        size_t without_default = node->name_count - node->count;
        if (i < arguments->count) {
            value = arguments->items[i];
        } else if (!bind_named(node, arguments, i, used, &value) && i >= without_default &&
                   evaluate(state, scope, node->items[i - without_default], &value)) {
            return state->code;
        }
        if (define(state, scope, node->names[i], value)) {
            return state->code;
        }
    }
    return bind_rest(state, node, arguments, used, scope);
}

static int call_macro(sl_jinja *state, const sl_jinja_macro *macro, const sl_jinja_arguments *arguments,
                      sl_jinja_value *result) {
    uint32_t line = state->line;
    size_t mark = state->out->length;
    sl_jinja_scope *scope = new_scope(state, macro->scope);
    if (!scope || bind_parameters(state, macro->node, arguments, scope) ||
        execute(state, scope, macro->node->a)) {
        return state->code;
    }
    state->line = line;
    return sl_jinja_capture(state, mark, result);
}

int sl_jinja_call(sl_jinja *state, sl_jinja_value callee, const sl_jinja_arguments *arguments,
                  sl_jinja_value *result) {
    switch (callee.kind) {
    case SL_JINJA_FUNCTION:
        return sl_jinja_run(state, callee.function, sl_jinja_of(SL_JINJA_MISSING), arguments, result);
    case SL_JINJA_METHOD:
        return sl_jinja_run(state, callee.method->row, callee.method->self, arguments, result);
    case SL_JINJA_MACRO:
        return call_macro(state, callee.macro, arguments, result);
    case SL_JINJA_UNDEFINED:
        return sl_jinja_fail(state, SL_ERR_INVALID, "'%.*s' is undefined", (int)callee.length, callee.text);
    default:
        return sl_jinja_fail(state, SL_ERR_INVALID, "'%s' object is not callable",
                             sl_jinja_type_name(callee));
    }
}

/* Copies `count` arguments and makes room for `extra` more. */
static int make_room(sl_jinja *state, sl_jinja_value **items, size_t count, size_t extra) {
    sl_jinja_value *more = sl_jinja_alloc(state, count + extra, sizeof *more);
    if (!more || sl_jinja_spend(state, extra)) {
        return state->code;
    }
    if (count) {
        memcpy(more, *items, count * sizeof *more);
    }
    *items = more;
    return 0;
}

static int add_starred(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                       sl_jinja_arguments *arguments) {
    sl_jinja_value value;
    sl_jinja_list list;
    if (evaluate(state, scope, node->b, &value) || sl_jinja_iterate(state, value, &list) ||
        make_room(state, &arguments->items, arguments->count, list.count)) {
        return state->code;
    }
    for (size_t i = 0; i < list.count; i++) {
        arguments->items[arguments->count++] = list.items[i];
    }
    return 0;
}

static int add_double_starred(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                              sl_jinja_arguments *arguments) {
    sl_jinja_value value;
    if (evaluate(state, scope, node->c, &value)) {
        return state->code;
    }
    if (value.kind != SL_JINJA_DICT) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "** takes a dict, not a %s", sl_jinja_type_name(value));
    }
    size_t count = arguments->named_count;
    sl_view *all = sl_jinja_alloc(state, count + value.dict->count, sizeof *all);
    if (!all || make_room(state, &arguments->named, count, value.dict->count)) {
        return state->code;
    }
    if (count) {
        memcpy(all, arguments->names, count * sizeof *all);
    }
    arguments->names = all;
    for (size_t i = 0; i < value.dict->count; i++) {
        const sl_jinja_entry *entry = &value.dict->entries[i];
        if (entry->key.kind != SL_JINJA_STRING) {
            return sl_jinja_fail(state, SL_ERR_INVALID, "the keys of ** must be strings");
        }
        all[arguments->named_count] = sl_jinja_view(entry->key);
        arguments->named[arguments->named_count++] = entry->value;
    }
    return 0;
}

static int evaluate_arguments(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                              sl_jinja_arguments *arguments) {
    *arguments = (sl_jinja_arguments){.names = node->names};
    if (node->count && make_room(state, &arguments->items, 0, node->count)) {
        return state->code;
    }
    for (; arguments->count < node->count; arguments->count++) {
        if (evaluate(state, scope, node->items[arguments->count], &arguments->items[arguments->count])) {
            return state->code;
        }
    }
    if (node->other_count && make_room(state, &arguments->named, 0, node->other_count)) {
        return state->code;
    }
    for (; arguments->named_count < node->other_count; arguments->named_count++) {
        if (evaluate(state, scope, node->others[arguments->named_count],
                     &arguments->named[arguments->named_count])) {
            return state->code;
        }
    }
    if ((node->b && add_starred(state, scope, node, arguments)) ||
        (node->c && add_double_starred(state, scope, node, arguments))) {
        return state->code;
    }
    return 0;
}

/* ---- expressions ---- */

static int evaluate_sequence(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                             sl_jinja_value *result) {
    sl_jinja_kind kind = node->kind == SL_JINJA_LIST_OF ? SL_JINJA_LIST : SL_JINJA_TUPLE;
    if (sl_jinja_list_new(state, kind, node->count, result)) {
        return state->code;
    }
    for (uint32_t i = 0; i < node->count; i++) {
        if (evaluate(state, scope, node->items[i], &result->list->items[i])) {
            return state->code;
        }
    }
    return 0;
}

static int evaluate_dict(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                         sl_jinja_value *result) {
    if (sl_jinja_dict_new(state, SL_JINJA_DICT, result)) {
        return state->code;
    }
    for (uint32_t i = 0; i < node->count; i++) {
        sl_jinja_value key, value;
        if (evaluate(state, scope, node->items[i], &key) || evaluate(state, scope, node->others[i], &value) ||
            sl_jinja_dict_set(state, result->dict, key, value)) {
            return state->code;
        }
    }
    return 0;
}

static int evaluate_slice(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                          sl_jinja_value *result) {
    sl_jinja_value value, parts[3];
    if (evaluate(state, scope, node->a, &value)) {
        return state->code;
    }
    for (int i = 0; i < 3; i++) {
        parts[i] = sl_jinja_of(SL_JINJA_NONE);
        if (node->items[i] && evaluate(state, scope, node->items[i], &parts[i])) {
            return state->code;
        }
    }
    return sl_jinja_slice(state, value, parts, result);
}

static int evaluate_call(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                         sl_jinja_value *result) {
    sl_jinja_value callee;
    sl_jinja_arguments arguments;
    if (evaluate(state, scope, node->a, &callee) || evaluate_arguments(state, scope, node, &arguments)) {
        return state->code;
    }
    state->line = node->line;
    return sl_jinja_call(state, callee, &arguments, result);
}

static int evaluate_builtin(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                            sl_jinja_value *result) {
    sl_jinja_value subject = state->captured;
    sl_jinja_arguments arguments;
    if ((node->a && evaluate(state, scope, node->a, &subject)) ||
        evaluate_arguments(state, scope, node, &arguments)) {
        return state->code;
    }
    state->line = node->line;
    if (!node->builtin) {
        return sl_jinja_fail(state, SL_ERR_UNSUPPORTED, "no %s named '%.*s'",
                             node->kind == SL_JINJA_TEST ? "test" : "filter", (int)node->name.length,
                             node->name.data);
    }
    if (sl_jinja_run(state, node->builtin, subject, &arguments, result)) {
        return state->code;
    }
    if (node->kind == SL_JINJA_TEST) {
        *result = sl_jinja_bool(sl_jinja_truthy(*result) != node->negated);
    }
    return 0;
}

static int evaluate_concatenation(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                                  sl_jinja_value *result) {
    sl_jinja_value parts;
    if (evaluate_sequence(state, scope, node, &parts)) {
        return state->code;
    }
    size_t mark = state->out->length;
    for (uint32_t i = 0; i < node->count; i++) {
        if (sl_jinja_emit_str(state, parts.list->items[i])) {
            return state->code;
        }
    }
    return sl_jinja_capture(state, mark, result);
}

static int evaluate_comparison(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                               sl_jinja_value *result) {
    sl_jinja_value left, right;
    bool holds = true;
    if (evaluate(state, scope, node->a, &left)) {
        return state->code;
    }
    for (uint32_t i = 0; holds && i < node->count; i++) {
        if (evaluate(state, scope, node->items[i]->a, &right) ||
            sl_jinja_test_compare(state, node->items[i]->operation, left, right, &holds)) {
            return state->code;
        }
        left = right;
    }
    *result = sl_jinja_bool(holds);
    return 0;
}

static int evaluate_conditional(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                                sl_jinja_value *result) {
    sl_jinja_value condition;
    if (evaluate(state, scope, node->b, &condition)) {
        return state->code;
    }
    const sl_jinja_node *chosen = sl_jinja_truthy(condition) ? node->a : node->c;
    *result = sl_jinja_undefined(sl_view_of("the value of an 'if' without 'else'"));
    return chosen ? evaluate(state, scope, chosen, result) : 0;
}

static int evaluate_operator(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                             sl_jinja_value *result) {
    sl_jinja_value a, b;
    if (evaluate(state, scope, node->a, &a)) {
        return state->code;
    }
    switch (node->kind) {
    case SL_JINJA_NOT:
        *result = sl_jinja_bool(!sl_jinja_truthy(a));
        return 0;
    case SL_JINJA_NEGATE:
        return sl_jinja_negate(state, a, result);
    case SL_JINJA_POSITIVE:
        *result = a.kind == SL_JINJA_BOOL ? sl_jinja_int(a.boolean) : a;
        return sl_jinja_is_number(a) ? 0 : sl_jinja_negate(state, a, result);
    case SL_JINJA_AND:
    case SL_JINJA_OR:
        *result = a;
        return sl_jinja_truthy(a) == (node->kind == SL_JINJA_AND) ? evaluate(state, scope, node->b, result)
                                                                  : 0;
    case SL_JINJA_GET_ATTRIBUTE:
        return sl_jinja_attribute(state, a, node->name, result);
    default:
        break;
    }
    if (evaluate(state, scope, node->b, &b)) {
        return state->code;
    }
    return node->kind == SL_JINJA_GET_ITEM ? sl_jinja_item(state, a, b, result)
                                           : sl_jinja_binary(state, node->operation, a, b, result);
}

static int evaluate_kind(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                         sl_jinja_value *result) {
    switch (node->kind) {
    case SL_JINJA_CONSTANT:
        *result = node->constant;
        return 0;
    case SL_JINJA_NAME:
        return look_up(state, scope, node->name, result);
    case SL_JINJA_LIST_OF:
    case SL_JINJA_TUPLE_OF:
        return evaluate_sequence(state, scope, node, result);
    case SL_JINJA_DICT_OF:
        return evaluate_dict(state, scope, node, result);
    case SL_JINJA_GET_SLICE:
        return evaluate_slice(state, scope, node, result);
    case SL_JINJA_CALL:
        return evaluate_call(state, scope, node, result);
    case SL_JINJA_FILTER:
    case SL_JINJA_TEST:
        return evaluate_builtin(state, scope, node, result);
    case SL_JINJA_CONCATENATE:
        return evaluate_concatenation(state, scope, node, result);
    case SL_JINJA_COMPARE:
        return evaluate_comparison(state, scope, node, result);
    case SL_JINJA_CONDITIONAL:
        return evaluate_conditional(state, scope, node, result);
    default:
        return evaluate_operator(state, scope, node, result);
    }
}

static int evaluate(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                    sl_jinja_value *result) {
    if (sl_jinja_spend(state, 1) || sl_jinja_enter(state)) {
        return state->code;
    }
    int code = evaluate_kind(state, scope, node, result);
    sl_jinja_leave(state);
    return code;
}

/* ---- statements ---- */

static int assign(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *target, sl_jinja_value value);

static int assign_parts(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *target,
                        sl_jinja_value value) {
    sl_jinja_list items;
    if (sl_jinja_iterate(state, value, &items)) {
        return state->code;
    }
    if (items.count != target->count) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "cannot unpack %zu values into %u names", items.count,
                             target->count);
    }
    for (uint32_t i = 0; i < target->count; i++) {
        if (assign(state, scope, target->items[i], items.items[i])) {
            return state->code;
        }
    }
    return 0;
}

static int assign(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *target, sl_jinja_value value) {
    state->line = target->line;
    if (target->kind == SL_JINJA_NAME) {
        return define(state, scope, target->name, value);
    }
    if (target->kind == SL_JINJA_TUPLE_OF) {
        return assign_parts(state, scope, target, value);
    }
    sl_jinja_value object;
    if (evaluate(state, scope, target->a, &object)) {
        return state->code;
    }
    if (object.kind != SL_JINJA_NAMESPACE || target->kind != SL_JINJA_GET_ATTRIBUTE) {
        return sl_jinja_fail(state, SL_ERR_INVALID, "cannot assign an attribute of a non-namespace object");
    }
    return sl_jinja_dict_set(state, object.dict, sl_jinja_text(target->name.data, target->name.length),
                             value);
}

static int execute_if(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node) {
    for (uint32_t i = 0; i < node->count; i += 2) {
        sl_jinja_value condition;
        if (evaluate(state, scope, node->items[i], &condition)) {
            return state->code;
        }
        if (sl_jinja_truthy(condition)) {
            return execute(state, scope, node->items[i + 1]);
        }
    }
    return node->a ? execute(state, scope, node->a) : 0;
}

/* A scope for the next iteration: the same one, emptied, unless a macro still refers to it. NULL: state->code. */
static sl_jinja_scope *next_scope(sl_jinja *state, sl_jinja_scope *parent, sl_jinja_scope *scope) {
    if (!scope || scope->kept) {
        return new_scope(state, parent);
    }
    if (scope->names.slots) {
        if (sl_jinja_spend(state, scope->names.slot_count / 256)) {
            return NULL;
        }
        memset(scope->names.slots, 0, scope->names.slot_count * sizeof *scope->names.slots);
    }
    scope->names.count = 0;
    return scope;
}

/* Leaves the items for which the loop's condition holds. */
static int filter_items(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                        sl_jinja_list *items) {
    sl_jinja_value kept;
    size_t count = 0;
    sl_jinja_scope *inner = NULL;
    if (sl_jinja_list_new(state, SL_JINJA_LIST, items->count, &kept)) {
        return state->code;
    }
    for (size_t i = 0; i < items->count; i++) {
        sl_jinja_value condition;
        if (!(inner = next_scope(state, scope, inner)) || assign(state, inner, node->a, items->items[i]) ||
            evaluate(state, inner, node->c, &condition)) {
            return state->code;
        }
        if (sl_jinja_truthy(condition)) {
            kept.list->items[count++] = items->items[i];
        }
    }
    kept.list->count = count;
    *items = *kept.list;
    return 0;
}

static int run_loop(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node, sl_jinja_loop *loop) {
    sl_jinja_scope *inner = NULL;
    sl_jinja_value self = {.kind = SL_JINJA_LOOP, .loop = loop};
    for (; loop->index < loop->items.count; loop->index++) {
        if (!(inner = next_scope(state, scope, inner)) || sl_jinja_spend(state, 1) ||
            define(state, inner, sl_view_of("loop"), self) ||
            assign(state, inner, node->a, loop->items.items[loop->index])) {
            return state->code;
        }
        int flow = execute(state, inner, node->items[0]);
        if (flow < 0) {
            return flow;
        }
        if (flow == FLOW_BREAK) {
            break;
        }
    }
    return 0;
}

static int execute_for(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node) {
    sl_jinja_value iterable;
    sl_jinja_loop *loop = sl_jinja_alloc(state, 1, sizeof *loop);
    if (!loop || evaluate(state, scope, node->b, &iterable) ||
        sl_jinja_iterate(state, iterable, &loop->items) ||
        (node->c && filter_items(state, scope, node, &loop->items))) {
        return state->code;
    }
    if (loop->items.count == 0 && node->items[1]) {
        sl_jinja_scope *inner = new_scope(state, scope);
        return inner ? execute(state, inner, node->items[1]) : state->code;
    }
    return run_loop(state, scope, node, loop);
}

/* Runs a body in a scope of its own and gives its text, through the filters when there are any. */
static int capture_body(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node,
                        sl_jinja_value *result) {
    sl_jinja_scope *inner = new_scope(state, scope);
    size_t mark = state->out->length;
    int flow = inner ? execute(state, inner, node->b) : state->code;
    if (flow < 0 || sl_jinja_capture(state, mark, result)) {
        return state->code;
    }
    if (node->c) {
        state->captured = *result;
        if (evaluate(state, inner, node->c, result)) {
            return state->code;
        }
    }
    return flow;
}

static sl_jinja_value make_macro(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node) {
    sl_jinja_macro *macro = sl_jinja_alloc(state, 1, sizeof *macro);
    if (!macro) {
        return sl_jinja_of(SL_JINJA_MISSING);
    }
    *macro = (sl_jinja_macro){.node = node, .scope = scope};
    for (; scope && !scope->kept; scope = scope->parent) {
        scope->kept = true;
    }
    return (sl_jinja_value){.kind = SL_JINJA_MACRO, .macro = macro};
}

static int execute_macro(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node) {
    sl_jinja_value macro = make_macro(state, scope, node);
    return macro.kind == SL_JINJA_MACRO ? define(state, scope, node->name, macro) : state->code;
}

static int execute_call_block(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node) {
    const sl_jinja_node *call = node->a;
    sl_jinja_value callee, text, caller = make_macro(state, scope, node->b);
    sl_jinja_arguments arguments;
    if (caller.kind != SL_JINJA_MACRO || evaluate(state, scope, call->a, &callee) ||
        evaluate_arguments(state, scope, call, &arguments)) {
        return state->code;
    }
    size_t count = arguments.named_count;
    sl_view *all = sl_jinja_alloc(state, count + 1, sizeof *all);
    if (!all || make_room(state, &arguments.named, count, 1)) {
        return state->code;
    }
    if (count) {
        memcpy(all, arguments.names, count * sizeof *all);
    }
    all[count] = sl_view_of("caller");
    arguments.names = all;
    arguments.named[count] = caller;
    arguments.named_count++;
    return sl_jinja_call(state, callee, &arguments, &text) || sl_jinja_emit_str(state, text) ? state->code
                                                                                             : 0;
}

static int execute_with(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node) {
    sl_jinja_scope *inner = new_scope(state, scope);
    for (uint32_t i = 0; inner && i < node->count; i++) {
        sl_jinja_value value;
        if (evaluate(state, scope, node->others[i], &value) || assign(state, inner, node->items[i], value)) {
            return state->code;
        }
    }
    return inner ? execute(state, inner, node->a) : state->code;
}

static int execute_kind(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node) {
    sl_jinja_value value;
    int flow;
    switch (node->kind) {
    case SL_JINJA_DATA:
        return sl_jinja_emit(state, node->constant.text, node->constant.length);
    case SL_JINJA_PRINT:
        return evaluate(state, scope, node->a, &value) || sl_jinja_emit_str(state, value) ? state->code : 0;
    case SL_JINJA_IF:
        return execute_if(state, scope, node);
    case SL_JINJA_FOR:
        return execute_for(state, scope, node);
    case SL_JINJA_SET:
        return evaluate(state, scope, node->b, &value) || assign(state, scope, node->a, value) ? state->code
                                                                                               : 0;
    case SL_JINJA_SET_BLOCK:
        flow = capture_body(state, scope, node, &value);
        return flow < 0 || assign(state, scope, node->a, value) ? state->code : flow;
    case SL_JINJA_FILTER_BLOCK:
        flow = capture_body(state, scope, node, &value);
        return flow < 0 || sl_jinja_emit_str(state, value) ? state->code : flow;
    case SL_JINJA_MACRO_BLOCK:
        return execute_macro(state, scope, node);
    case SL_JINJA_CALL_BLOCK:
        return execute_call_block(state, scope, node);
    case SL_JINJA_WITH:
        return execute_with(state, scope, node);
    case SL_JINJA_SCOPED: {
        sl_jinja_scope *inner = new_scope(state, scope);
        return inner ? execute(state, inner, node->a) : state->code;
    }
    case SL_JINJA_BREAK:
        return FLOW_BREAK;
    case SL_JINJA_CONTINUE:
        return FLOW_CONTINUE;
    default: /* a body */
        for (uint32_t i = 0; i < node->count; i++) {
            flow = execute(state, scope, node->items[i]);
            if (flow) {
                return flow;
            }
        }
        return 0;
    }
}

static int execute(sl_jinja *state, sl_jinja_scope *scope, const sl_jinja_node *node) {
    state->line = node->line;
    if (sl_jinja_spend(state, 1) || sl_jinja_enter(state)) {
        return state->code;
    }
    int flow = execute_kind(state, scope, node);
    sl_jinja_leave(state);
    return flow;
}

int sl_jinja_execute(sl_jinja *state, const sl_jinja_node *root, sl_jinja_value variables) {
    sl_jinja_scope context = {.names = *variables.dict}, top = {.parent = &context};
    return execute(state, &top, root);
}
