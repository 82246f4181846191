/* Expressions to machines with empty arcs (Thompson's construction). Characters become UTF-8 (RFC 3629). What
 * is counted, shared or recursive becomes a call of a rule. */
#include "grammar/build.h"

#include "base/text.h"

#include <string.h>

enum {
    WRITTEN_OUT = 24,  /* states up to which repetitions and rules stand where they are used */
    SHARED = 6,        /* states from which on what is used twice is a rule, so that its masks are shared */
    MOST_DEPTH = 8192, /* of expressions within expressions, rules that stand where they are used included */
    MOST_COPIES = 1 << 16,
};

static const sl_arc EMPTY_ARC = {.kind = SL_ARC_EMPTY, .symbol = -1};

int32_t sl_loose_state(sl_loose_machine *loose) {
    if (!sl_builder_grow(loose->builder, &loose->heads, &loose->state_capacity, (int64_t)loose->states + 1,
                         sizeof(*loose->heads))) {
        return 0;
    }
    loose->heads[loose->states] = -1;
    return loose->states++;
}

void sl_loose_arc_add(sl_loose_machine *loose, int32_t from, sl_arc arc) {
    if (!sl_builder_grow(loose->builder, &loose->arcs, &loose->arc_capacity, (int64_t)loose->arc_count + 1,
                         sizeof(*loose->arcs))) {
        return;
    }
    loose->arcs[loose->arc_count] = (sl_loose_arc){.arc = arc, .next = loose->heads[from]};
    loose->heads[from] = loose->arc_count++;
}

void sl_loose_free(sl_loose_machine *loose) {
    sl_builder_drop(loose->builder, loose->heads, loose->state_capacity, sizeof(*loose->heads));
    sl_builder_drop(loose->builder, loose->arcs, loose->arc_capacity, sizeof(*loose->arcs));
    sl_builder_drop(loose->builder, loose->symbols, loose->symbol_capacity, sizeof(*loose->symbols));
}

static void add_empty(sl_loose_machine *loose, int32_t from, int32_t to) {
    sl_arc arc = EMPTY_ARC;
    arc.target = to;
    sl_loose_arc_add(loose, from, arc);
}

static void add_raw(sl_loose_machine *loose, int32_t from, int32_t to, unsigned first, unsigned last) {
    sl_loose_arc_add(loose, from,
                     (sl_arc){.kind = SL_ARC_BYTES,
                              .first = (uint8_t)first,
                              .last = (uint8_t)last,
                              .symbol = -1,
                              .target = to});
}

static int32_t add_state_after(sl_loose_machine *loose, int32_t from, unsigned byte) {
    int32_t state = sl_loose_state(loose);
    add_raw(loose, from, state, byte, byte);
    return state;
}

/* Bytes below 0x20 as JSON writes them (RFC 8259, 7), from the state behind the backslash. */
static void add_controls(sl_loose_machine *loose, int32_t slash, int32_t to, unsigned first, unsigned last) {
    static const char SHORT[][2] = {{'\b', 'b'}, {'\t', 't'}, {'\n', 'n'}, {'\f', 'f'}, {'\r', 'r'}};
    for (size_t i = 0; i < sizeof(SHORT) / sizeof(*SHORT); i++) {
        if ((unsigned)SHORT[i][0] >= first && (unsigned)SHORT[i][0] <= last) {
            add_raw(loose, slash, to, (unsigned)SHORT[i][1], (unsigned)SHORT[i][1]);
        }
    }
    int32_t zeros =
        add_state_after(loose, add_state_after(loose, add_state_after(loose, slash, 'u'), '0'), '0');
    for (unsigned high = first >> 4; high <= last >> 4; high++) {
        unsigned from = high == first >> 4 ? first & 15 : 0, end = high == last >> 4 ? last & 15 : 15;
        int32_t digit = add_state_after(loose, zeros, '0' + high);
        if (from <= 9) {
            add_raw(loose, digit, to, '0' + from, '0' + (end < 9 ? end : 9));
        }
        if (end >= 10) {
            unsigned letter = from > 10 ? from - 10 : 0;
            add_raw(loose, digit, to, 'a' + letter, 'a' + end - 10);
            add_raw(loose, digit, to, 'A' + letter, 'A' + end - 10);
        }
    }
}

static void add_escaped(sl_loose_machine *loose, int32_t from, int32_t to, unsigned first, unsigned last) {
    static const unsigned PLAIN[][2] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0xff}};
    for (size_t i = 0; i < sizeof(PLAIN) / sizeof(*PLAIN); i++) {
        unsigned low = first > PLAIN[i][0] ? first : PLAIN[i][0];
        unsigned high = last < PLAIN[i][1] ? last : PLAIN[i][1];
        if (low <= high) {
            add_raw(loose, from, to, low, high);
        }
    }
    bool quote = first <= '"' && last >= '"', back = first <= '\\' && last >= '\\';
    bool forward = first <= '/' && last >= '/';
    if (!quote && !back && !forward && first >= 0x20) {
        return;
    }
    int32_t slash = add_state_after(loose, from, '\\');
    if (quote) {
        add_raw(loose, slash, to, '"', '"');
    }
    if (back) {
        add_raw(loose, slash, to, '\\', '\\');
    }
    if (forward) {
        add_raw(loose, slash, to, '/', '/');
    }
    if (first < 0x20) {
        add_controls(loose, slash, to, first, last < 0x1f ? last : 0x1f);
    }
}

static void add_bytes(sl_loose_machine *loose, int32_t from, int32_t to, const unsigned range[2],
                      bool escaped) {
    if (escaped) {
        add_escaped(loose, from, to, range[0], range[1]);
    } else {
        add_raw(loose, from, to, range[0], range[1]);
    }
}

/* ---- characters
 * --------------------------------------------------------------------------------------------- */

/* Where characters lead, and the states from which 1, 2, 3 bytes 0x80 to 0xbf lead there (0: not made). */
typedef struct character_target {
    sl_loose_machine *loose;
    int32_t from, to;
    int32_t tails[4];
    bool escaped;
} character_target;

static int32_t tail(character_target *target, int count) {
    if (count == 0) {
        return target->to;
    }
    if (!target->tails[count]) {
        int32_t rest = tail(target, count - 1);
        int32_t state = sl_loose_state(target->loose);
        add_raw(target->loose, state, rest, 0x80, 0xbf);
        target->tails[count] = state;
    }
    return target->tails[count];
}

/* Code points whose UTF-8 has one length, and whose bytes are ranges independent of each other. */
static void add_aligned(character_target *target, uint32_t first, uint32_t last) {
    char low[4], high[4];
    size_t size = sl_utf8_encode(first, low);
    sl_utf8_encode(last, high);
    int32_t from = target->from;
    for (size_t i = 0; i < size; i++) {
        unsigned range[2] = {(unsigned char)low[i], (unsigned char)high[i]};
        bool is_rest_full = true;
        for (size_t j = i + 1; j < size; j++) {
            is_rest_full &= (unsigned char)low[j] == 0x80 && (unsigned char)high[j] == 0xbf;
        }
        int32_t next = is_rest_full ? tail(target, (int)(size - i - 1)) : sl_loose_state(target->loose);
        add_bytes(target->loose, from, next, range, target->escaped && size == 1);
        if (is_rest_full) {
            return;
        }
        from = next;
    }
}

static void add_characters(character_target *target, uint32_t first, uint32_t last) {
    static const uint32_t LAST_OF_LENGTH[] = {0x7f, 0x7ff, 0xffff};
    for (size_t i = 0; i < sizeof(LAST_OF_LENGTH) / sizeof(*LAST_OF_LENGTH); i++) {
        if (first <= LAST_OF_LENGTH[i] && last > LAST_OF_LENGTH[i]) {
            add_characters(target, first, LAST_OF_LENGTH[i]);
            add_characters(target, LAST_OF_LENGTH[i] + 1, last);
            return;
        }
    }
    for (unsigned bits = 6; last > 0x7f && bits <= 18; bits += 6) {
        uint32_t mask = ((uint32_t)1 << bits) - 1;
        if ((first & ~mask) == (last & ~mask)) {
            continue;
        }
        if (first & mask) {
            add_characters(target, first, first | mask);
            add_characters(target, (first | mask) + 1, last);
            return;
        }
        if ((last & mask) != mask) {
            add_characters(target, first, (last & ~mask) - 1);
            add_characters(target, last & ~mask, last);
            return;
        }
    }
    add_aligned(target, first, last);
}

/* ---- symbols
 * ------------------------------------------------------------------------------------------------- */

static int32_t find_symbol(sl_loose_machine *loose, sl_symbol symbol) {
    for (int32_t i = loose->symbol_count; i-- > 0 && loose->symbol_count - i < 64;) {
        const sl_symbol *other = &loose->symbols[i];
        if (other->is_token == symbol.is_token && other->negated == symbol.negated &&
            other->rule == symbol.rule && other->least == symbol.least && other->most == symbol.most) {
            return i;
        }
    }
    if (!sl_builder_grow(loose->builder, &loose->symbols, &loose->symbol_capacity,
                         (int64_t)loose->symbol_count + 1, sizeof(*loose->symbols))) {
        return -1;
    }
    loose->symbols[loose->symbol_count] = symbol;
    return loose->symbol_count++;
}

static bool add_symbol(sl_loose_machine *loose, int32_t from, int32_t to, sl_symbol symbol) {
    if (loose->whole) {
        sl_builder_fail(loose->builder, SL_ERR_UNSUPPORTED,
                        "grammar: an intersection or difference with a token in it");
        return false;
    }
    sl_loose_arc_add(loose, from,
                     (sl_arc){.kind = SL_ARC_SYMBOL, .symbol = find_symbol(loose, symbol), .target = to});
    return loose->builder->error.code == 0;
}

/* The rule that stands for an expression in this mode. */
static int32_t rule_of(sl_grammar_builder *builder, sl_expression expression, bool escaped) {
    sl_expression_node *node = &builder->nodes[expression];
    if (node->kind == SL_EXPRESSION_RULE) {
        sl_grammar_rule_entry *entry = &builder->rules[node->first];
        if (!escaped || entry->escaped) {
            return node->first;
        }
        if (entry->escaped_twin < 0) {
            int32_t twin = sl_grammar_rule(builder, "(escaped)");
            if (twin < 0) {
                return -1;
            }
            entry = &builder->rules[builder->nodes[expression].first];
            entry->escaped_twin = twin;
            builder->rules[twin].name = entry->name;
            builder->rules[twin].expression = entry->expression;
            builder->rules[twin].escaped = true;
        }
        return entry->escaped_twin;
    }
    if (node->rule[escaped] < 0) {
        int32_t rule = sl_grammar_rule(builder, "(part)");
        if (rule < 0) {
            return -1;
        }
        builder->nodes[expression].rule[escaped] = rule;
        builder->rules[rule].expression = expression;
        builder->rules[rule].escaped = escaped;
    }
    return builder->nodes[expression].rule[escaped];
}

static bool add_call(sl_loose_machine *loose, sl_expression expression, int32_t from, int32_t to,
                     const sl_symbol *counted, bool escaped) {
    sl_symbol symbol = counted ? *counted : (sl_symbol){.least = 1, .most = 1};
    symbol.rule = rule_of(loose->builder, expression, escaped);
    return symbol.rule >= 0 && add_symbol(loose, from, to, symbol);
}

/* ---- expressions
 * --------------------------------------------------------------------------------------------- */

static bool emit_literal(sl_loose_machine *loose, const sl_expression_node *node, int32_t from, int32_t to,
                         bool escaped) {
    for (int32_t i = 0; i < node->count; i++) {
        int32_t next = i + 1 < node->count ? sl_loose_state(loose) : to;
        unsigned byte = (unsigned char)loose->builder->bytes[node->first + i];
        add_bytes(loose, from, next, (unsigned[2]){byte, byte}, escaped);
        from = next;
    }
    return loose->builder->error.code == 0;
}

static bool emit_machine(sl_loose_machine *loose, int32_t number, int32_t from, int32_t to, bool escaped) {
    int32_t base = loose->states;
    int32_t states = loose->builder->machines[number].states;
    for (int32_t i = 0; i < states; i++) {
        sl_loose_state(loose);
    }
    if (loose->builder->error.code) {
        return false;
    }
    const sl_machine *machine = &loose->builder->machines[number];
    add_empty(loose, from, base);
    for (int32_t i = 0; i < states; i++) {
        for (int32_t a = machine->first_arc[i]; a < machine->first_arc[i + 1]; a++) {
            const sl_arc *arc = &machine->arcs[a];
            add_bytes(loose, base + i, base + arc->target, (unsigned[2]){arc->first, arc->last}, escaped);
        }
        if (machine->accepts[i]) {
            add_empty(loose, base + i, to);
        }
    }
    return loose->builder->error.code == 0;
}

static bool emit_copies(sl_loose_machine *loose, sl_expression_node node, int32_t from, int32_t to,
                        bool escaped) {
    int64_t copies = node.most < 0 ? node.least : node.most;
    if (copies > MOST_COPIES) {
        sl_builder_fail(loose->builder, SL_ERR_LIMIT,
                        "grammar: a repetition of %lld times within an intersection or difference",
                        (long long)copies);
        return false;
    }
    for (int64_t i = 0; i < copies; i++) {
        int32_t next = sl_loose_state(loose);
        if (i >= node.least) {
            add_empty(loose, from, to);
        }
        if (!sl_loose_emit(loose, node.first, from, next, escaped)) {
            return false;
        }
        from = next;
    }
    if (node.most < 0) {
        int32_t again = sl_loose_state(loose);
        add_empty(loose, from, again);
        if (!sl_loose_emit(loose, node.first, again, again, escaped)) {
            return false;
        }
        from = again;
    }
    add_empty(loose, from, to);
    return loose->builder->error.code == 0;
}

static bool emit_repeat(sl_loose_machine *loose, sl_expression_node node, int32_t from, int32_t to,
                        bool escaped) {
    bool plain = node.most < 0 && node.least <= 1;
    if (plain || loose->whole || node.anchored || node.weight <= WRITTEN_OUT ||
        (node.least == 0 && node.most == 1)) {
        return emit_copies(loose, node, from, to, escaped);
    }
    sl_symbol counted = {.least = (int32_t)node.least, .most = (int32_t)node.most};
    return add_call(loose, node.first, from, to, &counted, escaped);
}

/* Can it be the empty text? Of what a regular expression holds, in which no rule leads back to itself. */
static bool may_be_empty(const sl_grammar_builder *builder, sl_expression expression) {
    const sl_expression_node *node = &builder->nodes[expression];
    switch ((sl_expression_kind)node->kind) {
    case SL_EXPRESSION_EMPTY:
        return true;
    case SL_EXPRESSION_SEQUENCE:
    case SL_EXPRESSION_CHOICE: {
        bool is_choice = node->kind == SL_EXPRESSION_CHOICE;
        for (int32_t i = 0; i < node->count; i++) {
            if (may_be_empty(builder, builder->parts[node->first + i]) == is_choice) {
                return is_choice;
            }
        }
        return !is_choice;
    }
    case SL_EXPRESSION_REPEAT:
        return node->least == 0 || may_be_empty(builder, node->first);
    case SL_EXPRESSION_RULE:
        return builder->rules[node->first].expression != SL_NO_EXPRESSION &&
               may_be_empty(builder, builder->rules[node->first].expression);
    case SL_EXPRESSION_MACHINE:
        return builder->machines[node->first].accepts[0];
    case SL_EXPRESSION_ESCAPED:
        return may_be_empty(builder, node->first);
    default:
        return false;
    }
}

/* Is the arc a call that may be passed without text? */
static bool is_passed(const sl_loose_machine *loose, const sl_arc *arc) {
    if (arc->kind != SL_ARC_SYMBOL || loose->symbols[arc->symbol].is_token) {
        return false;
    }
    const sl_symbol *symbol = &loose->symbols[arc->symbol];
    return symbol->least == 0 || may_be_empty(loose->builder, loose->builder->rules[symbol->rule].expression);
}

/* The copy of a state in which the text has begun (bit 0) or must end (bit 1): four for each state. */
static int32_t scope_state(int32_t base, int32_t begin, int32_t state, int phase) {
    return base + (state - begin) * 4 + phase;
}

/* ^ and $: what the expression gives is made apart, and copied for each of: nothing was read yet, something
 * was; $ was passed, it was not. Behind $ nothing can be read, before ^ nothing can have been. */
static bool emit_scope(sl_loose_machine *loose, sl_expression of, int32_t from, int32_t to, bool escaped) {
    int32_t begin = loose->states;
    int32_t start = sl_loose_state(loose), accept = sl_loose_state(loose);
    if (!sl_loose_emit(loose, of, start, accept, escaped)) {
        return false;
    }
    int32_t base = loose->states, end = base;
    for (int32_t i = 0; i < (end - begin) * 4; i++) {
        sl_loose_state(loose);
    }
    if (loose->builder->error.code) {
        return false;
    }
    for (int32_t state = begin; state < end; state++) {
        for (int32_t a = loose->heads[state]; a >= 0; a = loose->arcs[a].next) {
            for (int phase = 0; phase < 4; phase++) {
                sl_arc arc = loose->arcs[a].arc;
                int next = phase;
                if (is_passed(loose, &arc)) {
                    add_empty(loose, scope_state(base, begin, state, phase),
                              scope_state(base, begin, arc.target, phase));
                }
                if (arc.kind == SL_ARC_BYTES || arc.kind == SL_ARC_SYMBOL) {
                    next = phase | 1;
                    if (phase & 2) {
                        continue;
                    }
                } else if (arc.kind == SL_ARC_END) {
                    next = phase | 2;
                } else if (arc.kind == SL_ARC_BEGIN && (phase & 1)) {
                    continue;
                }
                arc.kind = arc.kind == SL_ARC_BEGIN || arc.kind == SL_ARC_END ? SL_ARC_EMPTY : arc.kind;
                arc.target = scope_state(base, begin, arc.target, next);
                sl_loose_arc_add(loose, scope_state(base, begin, state, phase), arc);
            }
        }
    }
    add_empty(loose, from, scope_state(base, begin, start, 0));
    for (int phase = 0; phase < 4; phase++) {
        add_empty(loose, scope_state(base, begin, accept, phase), to);
    }
    for (int32_t state = begin; state < end && loose->builder->error.code == 0; state++) {
        loose->heads[state] = -1; /* only the copies are left */
    }
    return loose->builder->error.code == 0;
}

static bool emit_rule(sl_loose_machine *loose, sl_expression expression, int32_t from, int32_t to,
                      bool escaped) {
    sl_grammar_builder *builder = loose->builder;
    const sl_grammar_rule_entry *entry = &builder->rules[builder->nodes[expression].first];
    if (entry->expression == SL_NO_EXPRESSION) {
        sl_builder_fail(builder, SL_ERR_INVALID, "grammar: the rule %s is not defined",
                        builder->bytes + entry->name);
        return false;
    }
    if (entry->is_name_quote && (loose->whole || escaped)) {
        sl_builder_fail(builder, SL_ERR_UNSUPPORTED,
                        "grammar: an object whose names differ, within an intersection or a text");
        return false;
    }
    const sl_expression_node *body = &builder->nodes[entry->expression];
    bool is_small = body->weight <= WRITTEN_OUT && body->depth == 0 && body->kind != SL_EXPRESSION_RULE &&
                    !entry->is_name_quote;
    if (loose->whole || is_small) {
        return sl_loose_emit(loose, entry->expression, from, to, escaped || entry->escaped);
    }
    return add_call(loose, expression, from, to, NULL, escaped);
}

static bool emit_parts(sl_loose_machine *loose, sl_expression_node node, int32_t from, int32_t to,
                       bool escaped) {
    for (int32_t i = 0; i < node.count; i++) {
        sl_expression part = loose->builder->parts[node.first + i];
        if (node.kind == SL_EXPRESSION_CHOICE) {
            if (!sl_loose_emit(loose, part, from, to, escaped)) {
                return false;
            }
            continue;
        }
        int32_t next = i + 1 < node.count ? sl_loose_state(loose) : to;
        if (!sl_loose_emit(loose, part, from, next, escaped)) {
            return false;
        }
        from = next;
    }
    return loose->builder->error.code == 0;
}

static bool emit_inner(sl_loose_machine *loose, sl_expression expression, int32_t from, int32_t to,
                       bool escaped) {
    sl_grammar_builder *builder = loose->builder;
    sl_expression_node node = builder->nodes[expression];
    switch ((sl_expression_kind)node.kind) {
    case SL_EXPRESSION_EMPTY:
        add_empty(loose, from, to);
        break;
    case SL_EXPRESSION_NOTHING:
        break;
    case SL_EXPRESSION_LITERAL:
        return emit_literal(loose, &node, from, to, escaped);
    case SL_EXPRESSION_RANGES: {
        character_target target = {.loose = loose, .from = from, .to = to, .escaped = escaped};
        for (int32_t i = 0; i < node.count; i++) {
            sl_character_range range = builder->ranges[node.first + i];
            add_characters(&target, range.first, range.last);
        }
        break;
    }
    case SL_EXPRESSION_TOKEN: {
        sl_symbol symbol = {.is_token = true, .negated = node.negated, .rule = node.first};
        if (node.first < 0) {
            symbol.least = (int32_t)node.least;
            symbol.most = node.count;
        }
        return add_symbol(loose, from, to, symbol);
    }
    case SL_EXPRESSION_SEQUENCE:
    case SL_EXPRESSION_CHOICE:
        return emit_parts(loose, node, from, to, escaped);
    case SL_EXPRESSION_REPEAT:
        return emit_repeat(loose, node, from, to, escaped);
    case SL_EXPRESSION_RULE:
        return emit_rule(loose, expression, from, to, escaped);
    case SL_EXPRESSION_MACHINE:
        return emit_machine(loose, node.first, from, to, escaped);
    case SL_EXPRESSION_BEGIN:
        sl_loose_arc_add(loose, from, (sl_arc){.kind = SL_ARC_BEGIN, .symbol = -1, .target = to});
        break;
    case SL_EXPRESSION_END:
        sl_loose_arc_add(loose, from, (sl_arc){.kind = SL_ARC_END, .symbol = -1, .target = to});
        break;
    case SL_EXPRESSION_SCOPE:
        return emit_scope(loose, node.first, from, to, escaped);
    case SL_EXPRESSION_ESCAPED:
        return sl_loose_emit(loose, node.first, from, to, true);
    }
    return builder->error.code == 0;
}

bool sl_loose_emit(sl_loose_machine *loose, sl_expression expression, int32_t from, int32_t to,
                   bool escaped) {
    const sl_expression_node *node = &loose->builder->nodes[expression];
    bool is_shared =
        node->references > 1 && node->weight > SHARED && !node->anchored && node->kind != SL_EXPRESSION_RULE;
    if (is_shared && !loose->whole && loose->depth > 0) {
        return add_call(loose, expression, from, to, NULL, escaped);
    }
    if (loose->depth >= MOST_DEPTH) {
        sl_builder_fail(loose->builder, SL_ERR_LIMIT,
                        "grammar: an intersection or difference of something recursive or too deep");
        return false;
    }
    if (!sl_builder_count_work(loose->builder, 1)) {
        return false;
    }
    loose->depth++;
    bool fine = emit_inner(loose, expression, from, to, escaped);
    loose->depth--;
    return fine;
}
