/* Expressions: nodes in arrays, simplified a little as they are made. */
#include "grammar/build.h"

#include "base/alloc.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEEPEST = 512,       /* an expression deeper than this becomes a rule of its own */
    MOST_WORK = 1 << 27, /* arcs looked at by one builder: about a second */
};

int sl_builder_fail(sl_grammar_builder *builder, int code, const char *format, ...) {
    if (builder->error.code == 0) {
        va_list arguments;
        va_start(arguments, format);
        sl_fail_va(&builder->error, code, format, arguments);
        va_end(arguments);
    }
    return builder->error.code;
}

bool sl_builder_grow(sl_grammar_builder *builder, void *array, int32_t *capacity, int64_t needed,
                     size_t size) {
    if (builder->error.code) {
        return false;
    }
    if (needed <= *capacity) {
        return true;
    }
    int64_t wanted = *capacity < 16 ? 16 : (int64_t)*capacity * 2;
    wanted = wanted < needed ? needed : wanted;
    uint64_t more = (uint64_t)(wanted - *capacity) * size;
    if (wanted > INT_MAX / 2 || builder->bytes_held + more > builder->limits.bytes) {
        sl_builder_fail(builder, SL_ERR_LIMIT, "grammar: it takes more than %llu bytes of memory",
                        (unsigned long long)builder->limits.bytes);
        return false;
    }
    void *old;
    memcpy(&old, array, sizeof(old));
    void *grown = sl_realloc(old, (size_t)wanted * size);
    if (!grown) {
        sl_builder_fail(builder, SL_ERR_NOMEM, "grammar: out of memory");
        return false;
    }
    builder->bytes_held += more;
    memcpy(array, &grown, sizeof(grown));
    *capacity = (int32_t)wanted;
    return true;
}

void sl_builder_drop(sl_grammar_builder *builder, void *memory, int32_t capacity, size_t size) {
    builder->bytes_held -= (uint64_t)capacity * size;
    sl_free(memory);
}

bool sl_builder_count_states(sl_grammar_builder *builder, int32_t count) {
    if (builder->error.code) {
        return false;
    }
    builder->states_made += count;
    if (builder->states_made > builder->limits.states) {
        sl_builder_fail(builder, SL_ERR_LIMIT, "grammar: it takes more than %d states",
                        builder->limits.states);
        return false;
    }
    return true;
}

bool sl_builder_count_work(sl_grammar_builder *builder, uint64_t arcs) {
    if (builder->error.code) {
        return false;
    }
    builder->work += arcs;
    if (builder->work > MOST_WORK) {
        sl_builder_fail(builder, SL_ERR_LIMIT, "grammar: it takes too long to compile");
        return false;
    }
    return true;
}

sl_grammar_builder *sl_grammar_builder_create(const sl_grammar_limits *limits, sl_error *error) {
    sl_grammar_builder *builder = sl_alloc_zero(1, sizeof(*builder));
    if (!builder) {
        sl_fail(error, SL_ERR_NOMEM, "grammar: out of memory");
        return NULL;
    }
    if (limits) {
        builder->limits = *limits;
    }
    if (builder->limits.expressions <= 0) {
        builder->limits.expressions = 1 << 20;
    }
    if (builder->limits.states <= 0) {
        builder->limits.states = 1 << 19;
    }
    if (builder->limits.bytes == 0) {
        builder->limits.bytes = (uint64_t)256 << 20;
    }
    return builder;
}

void sl_machine_free(sl_grammar_builder *builder, sl_machine *machine) {
    sl_builder_drop(builder, machine->first_arc, machine->state_capacity, sizeof(int32_t));
    sl_builder_drop(builder, machine->accepts, machine->state_capacity, sizeof(uint8_t));
    sl_builder_drop(builder, machine->arcs, machine->arc_capacity, sizeof(sl_arc));
    memset(machine, 0, sizeof(*machine));
}

void sl_grammar_builder_destroy(sl_grammar_builder *builder) {
    if (!builder) {
        return;
    }
    for (int32_t i = 0; i < builder->machine_count; i++) {
        sl_machine_free(builder, &builder->machines[i]);
    }
    sl_free(builder->machines);
    sl_free(builder->nodes);
    sl_free(builder->parts);
    sl_free(builder->bytes);
    sl_free(builder->ranges);
    sl_free(builder->rules);
    sl_free(builder);
}

const sl_error *sl_grammar_builder_error(const sl_grammar_builder *builder) {
    return &builder->error;
}

static bool is_expression(sl_grammar_builder *builder, sl_expression expression) {
    if (builder->error.code) {
        return false;
    }
    if (expression < 0 || expression >= builder->node_count) {
        sl_builder_fail(builder, SL_ERR_INVALID, "grammar: there is no expression %d", expression);
        return false;
    }
    return true;
}

static sl_expression add_node(sl_grammar_builder *builder, sl_expression_node node) {
    if (builder->error.code) {
        return SL_NO_EXPRESSION;
    }
    if (builder->node_count >= builder->limits.expressions) {
        sl_builder_fail(builder, SL_ERR_LIMIT, "grammar: more than %d expressions",
                        builder->limits.expressions);
        return SL_NO_EXPRESSION;
    }
    if (!sl_builder_grow(builder, &builder->nodes, &builder->node_capacity, (int64_t)builder->node_count + 1,
                         sizeof(*builder->nodes))) {
        return SL_NO_EXPRESSION;
    }
    node.rule[0] = node.rule[1] = -1;
    builder->nodes[builder->node_count] = node;
    return builder->node_count++;
}

/* Copies bytes behind the builder's; where they begin, or -1. */
static int32_t add_bytes(sl_grammar_builder *builder, const char *bytes, size_t count) {
    if (count > INT_MAX / 4) {
        sl_builder_fail(builder, SL_ERR_LIMIT, "grammar: a text of %zu bytes", count);
        return -1;
    }
    if (!sl_builder_grow(builder, &builder->bytes, &builder->byte_capacity,
                         (int64_t)builder->byte_count + (int64_t)count + 1, 1)) {
        return -1;
    }
    int32_t first = builder->byte_count;
    if (count) {
        memcpy(builder->bytes + first, bytes, count);
    }
    builder->bytes[first + (int32_t)count] = 0;
    builder->byte_count += (int32_t)count + 1;
    return first;
}

/* Makes sure that what contains `expression` is not too deep: returns it, or a reference to a rule for it. */
static sl_expression shallow(sl_grammar_builder *builder, sl_expression expression) {
    if (builder->nodes[expression].depth < DEEPEST || builder->nodes[expression].anchored) {
        return expression;
    }
    int32_t rule = sl_grammar_rule(builder, "(part)");
    if (rule < 0) {
        return SL_NO_EXPRESSION;
    }
    sl_grammar_define(builder, rule, expression);
    return sl_expression_rule(builder, rule);
}

static uint32_t add_weights(uint32_t a, uint32_t b) {
    return a > UINT32_MAX - b ? UINT32_MAX : a + b;
}

sl_expression sl_expression_leaf(sl_grammar_builder *builder, sl_expression_kind kind) {
    return add_node(
        builder, (sl_expression_node){.kind = (uint8_t)kind,
                                      .anchored = kind == SL_EXPRESSION_BEGIN || kind == SL_EXPRESSION_END});
}

sl_expression sl_expression_empty(sl_grammar_builder *builder) {
    return sl_expression_leaf(builder, SL_EXPRESSION_EMPTY);
}

sl_expression sl_expression_nothing(sl_grammar_builder *builder) {
    return sl_expression_leaf(builder, SL_EXPRESSION_NOTHING);
}

sl_expression sl_expression_literal(sl_grammar_builder *builder, const char *bytes, size_t count) {
    if (count == 0) {
        return sl_expression_empty(builder);
    }
    int32_t first = builder->error.code ? -1 : add_bytes(builder, bytes, count);
    if (first < 0) {
        return SL_NO_EXPRESSION;
    }
    return add_node(builder, (sl_expression_node){.kind = SL_EXPRESSION_LITERAL,
                                                  .first = first,
                                                  .count = (int32_t)count,
                                                  .weight = (uint32_t)count});
}

static int add_range(sl_grammar_builder *builder, uint32_t first, uint32_t last) {
    if (first > last) {
        return 0;
    }
    if (first < 0xe000 && last > 0xd7ff) { /* around the surrogates */
        return add_range(builder, first, 0xd7ff < last ? 0xd7ff : last) ||
               add_range(builder, first > 0xe000 ? first : 0xe000, last);
    }
    if (!sl_builder_grow(builder, &builder->ranges, &builder->range_capacity,
                         (int64_t)builder->range_count + 1, sizeof(*builder->ranges))) {
        return builder->error.code;
    }
    builder->ranges[builder->range_count++] = (sl_character_range){first, last};
    return 0;
}

static int compare_ranges(const void *a, const void *b) {
    const sl_character_range *left = a, *right = b;
    return left->first < right->first ? -1 : left->first > right->first;
}

/* Sorts what was added since `begin`, joins what touches. */
static void normalise_ranges(sl_grammar_builder *builder, int32_t begin) {
    int32_t count = builder->range_count - begin, kept = 0;
    if (count == 0) {
        return;
    }
    sl_character_range *ranges = builder->ranges + begin;
    qsort(ranges, (size_t)count, sizeof(*ranges), compare_ranges);
    for (int32_t i = 1; i < count; i++) {
        if (ranges[i].first <= ranges[kept].last || ranges[i].first == ranges[kept].last + 1) {
            ranges[kept].last = ranges[i].last > ranges[kept].last ? ranges[i].last : ranges[kept].last;
        } else {
            ranges[++kept] = ranges[i];
        }
    }
    builder->range_count = begin + kept + 1;
}

/* What is between the ranges since `begin` takes their place. */
static int negate_ranges(sl_grammar_builder *builder, int32_t begin) {
    int32_t end = builder->range_count;
    uint32_t next = 0;
    for (int32_t i = begin; i <= end; i++) {
        uint32_t first = i < end ? builder->ranges[i].first : 0x110000;
        uint32_t last = i < end ? builder->ranges[i].last : 0x10ffff;
        if (first > next && add_range(builder, next, first - 1)) {
            return builder->error.code;
        }
        next = last + 1;
    }
    memmove(builder->ranges + begin, builder->ranges + end,
            (size_t)(builder->range_count - end) * sizeof(*builder->ranges));
    builder->range_count -= end - begin;
    normalise_ranges(builder, begin);
    return 0;
}

sl_expression sl_expression_character(sl_grammar_builder *builder, const sl_character_range *ranges,
                                      int32_t count, bool negated) {
    if (builder->error.code) {
        return SL_NO_EXPRESSION;
    }
    int32_t begin = builder->range_count;
    for (int32_t i = 0; i < count; i++) {
        uint32_t last = ranges[i].last > 0x10ffff ? 0x10ffff : ranges[i].last;
        if (add_range(builder, ranges[i].first, last)) {
            return SL_NO_EXPRESSION;
        }
    }
    normalise_ranges(builder, begin);
    if (negated && negate_ranges(builder, begin)) {
        return SL_NO_EXPRESSION;
    }
    int32_t kept = builder->range_count - begin;
    if (kept == 0) {
        return sl_expression_nothing(builder);
    }
    return add_node(builder, (sl_expression_node){.kind = SL_EXPRESSION_RANGES,
                                                  .first = begin,
                                                  .count = kept,
                                                  .weight = kept > 8 ? (uint32_t)kept : 4});
}

sl_expression sl_expression_token(sl_grammar_builder *builder, int32_t token) {
    if (token < 0) {
        sl_builder_fail(builder, SL_ERR_INVALID, "grammar: there is no token %d", token);
        return SL_NO_EXPRESSION;
    }
    return add_node(builder, (sl_expression_node){.kind = SL_EXPRESSION_TOKEN, .first = token, .weight = 1});
}

sl_expression sl_expression_other_token(sl_grammar_builder *builder, int32_t token) {
    sl_expression expression = sl_expression_token(builder, token);
    if (expression >= 0) {
        builder->nodes[expression].negated = true;
    }
    return expression;
}

sl_expression sl_expression_token_text(sl_grammar_builder *builder, const char *text, size_t count,
                                       bool negated) {
    int32_t first = builder->error.code ? -1 : add_bytes(builder, text, count);
    if (first < 0) {
        return SL_NO_EXPRESSION;
    }
    return add_node(builder, (sl_expression_node){.kind = SL_EXPRESSION_TOKEN,
                                                  .negated = negated,
                                                  .first = -1,
                                                  .count = (int32_t)count,
                                                  .least = first,
                                                  .weight = 1});
}

/* SEQUENCE or CHOICE of what is left of the parts without the neutral ones. */
static sl_expression add_parts(sl_grammar_builder *builder, sl_expression_kind kind,
                               const sl_expression *parts, int32_t count) {
    sl_expression_kind neutral = kind == SL_EXPRESSION_SEQUENCE ? SL_EXPRESSION_EMPTY : SL_EXPRESSION_NOTHING;
    sl_expression_node node = {.kind = (uint8_t)kind};
    int32_t kept = 0, last = -1;
    for (int32_t i = 0; i < count; i++) {
        if (!is_expression(builder, parts[i])) {
            return SL_NO_EXPRESSION;
        }
        sl_expression_kind part = (sl_expression_kind)builder->nodes[parts[i]].kind;
        if (kind == SL_EXPRESSION_SEQUENCE && part == SL_EXPRESSION_NOTHING) {
            return parts[i];
        }
        kept += part != neutral;
        last = part != neutral ? parts[i] : last;
    }
    if (kept == 0) {
        return sl_expression_leaf(builder, neutral);
    }
    if (kept == 1) {
        return last;
    }
    if (!sl_builder_grow(builder, &builder->parts, &builder->part_capacity,
                         (int64_t)builder->part_count + kept, sizeof(*builder->parts))) {
        return SL_NO_EXPRESSION;
    }
    node.first = builder->part_count;
    node.count = kept;
    builder->part_count += kept;
    for (int32_t i = 0, at = node.first; i < count; i++) {
        if (builder->nodes[parts[i]].kind == neutral) {
            continue;
        }
        sl_expression part = shallow(builder, parts[i]);
        if (part < 0) {
            return SL_NO_EXPRESSION;
        }
        sl_expression_node *inner = &builder->nodes[part];
        inner->references++;
        builder->parts[at++] = part;
        node.weight = add_weights(node.weight, inner->weight);
        node.depth = inner->depth >= node.depth ? inner->depth + 1 : node.depth;
        node.anchored |= inner->anchored;
    }
    return add_node(builder, node);
}

sl_expression sl_expression_sequence(sl_grammar_builder *builder, const sl_expression *parts, int32_t count) {
    return add_parts(builder, SL_EXPRESSION_SEQUENCE, parts, count);
}

sl_expression sl_expression_choice(sl_grammar_builder *builder, const sl_expression *parts, int32_t count) {
    return add_parts(builder, SL_EXPRESSION_CHOICE, parts, count);
}

static sl_expression add_around(sl_grammar_builder *builder, sl_expression_node node, sl_expression of) {
    if (!is_expression(builder, of)) {
        return SL_NO_EXPRESSION;
    }
    of = shallow(builder, of);
    if (of < 0) {
        return SL_NO_EXPRESSION;
    }
    builder->nodes[of].references++;
    node.first = of;
    node.depth = builder->nodes[of].depth + 1;
    return add_node(builder, node);
}

sl_expression sl_expression_repeat(sl_grammar_builder *builder, sl_expression of, int64_t least,
                                   int64_t most) {
    if (!is_expression(builder, of)) {
        return SL_NO_EXPRESSION;
    }
    if (most > INT_MAX / 2) {
        most = -1; /* no text is as long */
    }
    if (least < 0 || (most >= 0 && least > most)) {
        sl_builder_fail(builder, SL_ERR_INVALID, "grammar: a repetition from %lld to %lld times",
                        (long long)least, (long long)most);
        return SL_NO_EXPRESSION;
    }
    if (least > INT_MAX / 2) {
        sl_builder_fail(builder, SL_ERR_LIMIT, "grammar: a repetition of at least %lld times",
                        (long long)least);
        return SL_NO_EXPRESSION;
    }
    sl_expression_node inner = builder->nodes[of];
    if (most == 0 || inner.kind == SL_EXPRESSION_EMPTY) {
        return sl_expression_empty(builder);
    }
    if (least == 1 && most == 1) {
        return of;
    }
    if (inner.kind == SL_EXPRESSION_NOTHING) {
        return least == 0 ? sl_expression_empty(builder) : of;
    }
    uint64_t copies = most < 0 ? (uint64_t)least + 1 : (uint64_t)most;
    uint64_t weight = copies * inner.weight + 1;
    return add_around(builder,
                      (sl_expression_node){.kind = SL_EXPRESSION_REPEAT,
                                           .least = least,
                                           .most = most,
                                           .anchored = inner.anchored,
                                           .weight = weight > UINT32_MAX ? UINT32_MAX : (uint32_t)weight},
                      of);
}

sl_expression sl_expression_scope(sl_grammar_builder *builder, sl_expression of) {
    if (!is_expression(builder, of) || !builder->nodes[of].anchored) {
        return builder->error.code ? SL_NO_EXPRESSION : of;
    }
    return add_around(
        builder,
        (sl_expression_node){.kind = SL_EXPRESSION_SCOPE,
                             .weight = add_weights(builder->nodes[of].weight, builder->nodes[of].weight)},
        of);
}

sl_expression sl_expression_json_escaped(sl_grammar_builder *builder, sl_expression of) {
    if (!is_expression(builder, of)) {
        return SL_NO_EXPRESSION;
    }
    return add_around(
        builder,
        (sl_expression_node){.kind = SL_EXPRESSION_ESCAPED,
                             .anchored = builder->nodes[of].anchored,
                             .weight = add_weights(builder->nodes[of].weight, builder->nodes[of].weight)},
        of);
}

sl_expression sl_expression_machine(sl_grammar_builder *builder, sl_machine *machine) {
    if (!sl_builder_grow(builder, &builder->machines, &builder->machine_capacity,
                         (int64_t)builder->machine_count + 1, sizeof(*builder->machines))) {
        sl_machine_free(builder, machine);
        return SL_NO_EXPRESSION;
    }
    sl_expression_node node = {
        .kind = SL_EXPRESSION_MACHINE, .first = builder->machine_count, .weight = (uint32_t)machine->states};
    builder->machines[builder->machine_count++] = *machine;
    memset(machine, 0, sizeof(*machine));
    return add_node(builder, node);
}

int32_t sl_grammar_rule(sl_grammar_builder *builder, const char *name) {
    if (builder->error.code) {
        return -1;
    }
    if (builder->rule_count >= builder->limits.expressions) {
        sl_builder_fail(builder, SL_ERR_LIMIT, "grammar: more than %d rules", builder->limits.expressions);
        return -1;
    }
    size_t length = strlen(name);
    int32_t at = add_bytes(builder, name, length < 64 ? length : 64);
    if (at < 0 || !sl_builder_grow(builder, &builder->rules, &builder->rule_capacity,
                                   (int64_t)builder->rule_count + 1, sizeof(*builder->rules))) {
        return -1;
    }
    builder->rules[builder->rule_count] =
        (sl_grammar_rule_entry){.name = at, .expression = SL_NO_EXPRESSION, .escaped_twin = -1};
    return builder->rule_count++;
}

static bool is_rule(sl_grammar_builder *builder, int32_t rule) {
    if (builder->error.code) {
        return false;
    }
    if (rule < 0 || rule >= builder->rule_count) {
        sl_builder_fail(builder, SL_ERR_INVALID, "grammar: there is no rule %d", rule);
        return false;
    }
    return true;
}

void sl_grammar_define(sl_grammar_builder *builder, int32_t rule, sl_expression expression) {
    if (!is_rule(builder, rule) || !is_expression(builder, expression)) {
        return;
    }
    if (builder->rules[rule].expression != SL_NO_EXPRESSION) {
        sl_builder_fail(builder, SL_ERR_INVALID, "grammar: the rule %s is defined twice",
                        builder->bytes + builder->rules[rule].name);
        return;
    }
    builder->rules[rule].expression = expression;
}

sl_expression sl_expression_name_quote(sl_grammar_builder *builder, bool ends) {
    int32_t rule = builder->name_rules[ends] - 1;
    if (rule < 0) {
        rule = sl_grammar_rule(builder, ends ? "(end of a name)" : "(name)");
        sl_grammar_define(builder, rule, sl_expression_literal(builder, "\"", 1));
        if (builder->error.code) {
            return SL_NO_EXPRESSION;
        }
        builder->rules[rule].is_name_quote = true;
        builder->name_rules[ends] = rule + 1;
    }
    return sl_expression_rule(builder, rule);
}

sl_expression sl_expression_rule(sl_grammar_builder *builder, int32_t rule) {
    if (!is_rule(builder, rule)) {
        return SL_NO_EXPRESSION;
    }
    return add_node(builder, (sl_expression_node){.kind = SL_EXPRESSION_RULE, .first = rule, .weight = 1});
}
