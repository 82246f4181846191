/* From rules to the automaton: what leads nowhere goes, rules become machines, and machines one table. */
#include "grammar/automaton.h"
#include "grammar/build.h"

#include "base/alloc.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define WARM_SECONDS 0.008 /* for masks made ahead of their first use */

typedef struct compiler {
    sl_grammar_builder *builder;
    sl_grammar_vocabulary *vocabulary;
    sl_loose_machine loose;
    int32_t *starts, *ends; /* [rules]: in the loose machine, or -1 */
    int32_t start_capacity, end_capacity;
    int32_t *queue; /* rules in the order in which they were reached */
    int32_t queue_count, queue_capacity;
    uint8_t *live;   /* [loose states] lead to their rule's end */
    uint8_t *passes; /* [symbols], see sl_determinise_options */
    int32_t live_capacity, pass_capacity;
    sl_machine *machines; /* [rules] */
    int32_t machine_capacity;
    int32_t *bases; /* [rules]: the first state in the automaton */
    int32_t base_capacity;
    int32_t *ranks; /* [rules] */
    int32_t rank_capacity;
} compiler;

static void compiler_free(compiler *compiler) {
    sl_grammar_builder *builder = compiler->builder;
    for (int32_t i = 0; i < compiler->queue_count && compiler->machines; i++) {
        sl_machine_free(builder, &compiler->machines[compiler->queue[i]]);
    }
    sl_loose_free(&compiler->loose);
    sl_builder_drop(builder, compiler->starts, compiler->start_capacity, sizeof(int32_t));
    sl_builder_drop(builder, compiler->ends, compiler->end_capacity, sizeof(int32_t));
    sl_builder_drop(builder, compiler->queue, compiler->queue_capacity, sizeof(int32_t));
    sl_builder_drop(builder, compiler->live, compiler->live_capacity, 1);
    sl_builder_drop(builder, compiler->passes, compiler->pass_capacity, 1);
    sl_builder_drop(builder, compiler->machines, compiler->machine_capacity, sizeof(sl_machine));
    sl_builder_drop(builder, compiler->bases, compiler->base_capacity, sizeof(int32_t));
    sl_builder_drop(builder, compiler->ranks, compiler->rank_capacity, sizeof(int32_t));
}

/* ---- rules to the loose machine
 * ------------------------------------------------------------------------------ */

static bool reach_rule(compiler *compiler, int32_t rule) {
    sl_grammar_builder *builder = compiler->builder;
    int32_t had = compiler->start_capacity;
    if (!sl_builder_grow(builder, &compiler->starts, &compiler->start_capacity, (int64_t)rule + 1,
                         sizeof(int32_t)) ||
        !sl_builder_grow(builder, &compiler->ends, &compiler->end_capacity, compiler->start_capacity,
                         sizeof(int32_t))) {
        return false;
    }
    for (int32_t i = had; i < compiler->start_capacity; i++) {
        compiler->starts[i] = -1;
    }
    if (compiler->starts[rule] >= 0) {
        return true;
    }
    if (!sl_builder_grow(builder, &compiler->queue, &compiler->queue_capacity,
                         (int64_t)compiler->queue_count + 1, sizeof(int32_t))) {
        return false;
    }
    compiler->starts[rule] = sl_loose_state(&compiler->loose);
    compiler->ends[rule] = sl_loose_state(&compiler->loose);
    compiler->queue[compiler->queue_count++] = rule;
    return builder->error.code == 0;
}

static bool emit_rules(compiler *compiler, int32_t root) {
    sl_grammar_builder *builder = compiler->builder;
    bool fine = reach_rule(compiler, root);
    int32_t symbols = 0;
    for (int32_t i = 0; fine && i < compiler->queue_count; i++) {
        int32_t rule = compiler->queue[i];
        const sl_grammar_rule_entry *entry = &builder->rules[rule];
        if (entry->expression == SL_NO_EXPRESSION) {
            sl_builder_fail(builder, SL_ERR_INVALID, "grammar: the rule %s is not defined",
                            builder->bytes + entry->name);
            return false;
        }
        compiler->loose.depth = 0;
        fine = sl_loose_emit(&compiler->loose, entry->expression, compiler->starts[rule],
                             compiler->ends[rule], entry->escaped);
        for (; fine && symbols < compiler->loose.symbol_count; symbols++) {
            const sl_symbol *symbol = &compiler->loose.symbols[symbols];
            fine = symbol->is_token || reach_rule(compiler, symbol->rule);
        }
    }
    return fine;
}

/* ---- what leads to an end
 * ------------------------------------------------------------------------------------ */

typedef enum way { WITHOUT_TEXT, WITH_ANY_TEXT, WITH_SOME_TEXT } way;

/* Arcs backwards, and arcs that call a rule by rule. */
typedef struct backwards {
    compiler *compiler;
    int32_t *heads, *next, *from;   /* by target state; by arc; by arc */
    int32_t *callers, *next_caller; /* by rule; by arc */
    int32_t *owners;                /* by start state: its rule */
    int32_t *queue;
    int32_t count;
    int32_t room[7];
} backwards;

static void backwards_free(backwards *back) {
    sl_grammar_builder *builder = back->compiler->builder;
    int32_t *all[] = {back->heads,       back->next,   back->from, back->callers,
                      back->next_caller, back->owners, back->queue};
    for (int i = 0; i < 7; i++) {
        sl_builder_drop(builder, all[i], back->room[i], sizeof(int32_t));
    }
}

static bool backwards_make(backwards *back, compiler *compiler) {
    sl_loose_machine *loose = &compiler->loose;
    sl_grammar_builder *builder = compiler->builder;
    back->compiler = compiler;
    int32_t **all[] = {&back->heads,       &back->next,   &back->from, &back->callers,
                       &back->next_caller, &back->owners, &back->queue};
    int32_t sizes[] = {loose->states,    loose->arc_count, loose->arc_count, builder->rule_count,
                       loose->arc_count, loose->states,    loose->states};
    for (int i = 0; i < 7; i++) {
        if (!sl_builder_grow(builder, all[i], &back->room[i], (int64_t)sizes[i] + 1, sizeof(int32_t))) {
            return false;
        }
        memset(*all[i], 0xff, (size_t)back->room[i] * sizeof(int32_t));
    }
    for (int32_t i = 0; i < compiler->queue_count; i++) {
        back->owners[compiler->starts[compiler->queue[i]]] = compiler->queue[i];
    }
    for (int32_t state = 0; state < loose->states; state++) {
        for (int32_t a = loose->heads[state]; a >= 0; a = loose->arcs[a].next) {
            const sl_arc *arc = &loose->arcs[a].arc;
            back->from[a] = state;
            back->next[a] = back->heads[arc->target];
            back->heads[arc->target] = a;
            if (arc->kind == SL_ARC_SYMBOL && !loose->symbols[arc->symbol].is_token) {
                int32_t rule = loose->symbols[arc->symbol].rule;
                back->next_caller[a] = back->callers[rule];
                back->callers[rule] = a;
            }
        }
    }
    return true;
}

/* Is the arc, whose target leads to the end in this way, a step of such a way? */
static bool is_step(const backwards *back, way way, const uint8_t *marked, const uint8_t *any,
                    const sl_arc *arc) {
    const compiler *compiler = back->compiler;
    bool target_marked = marked[arc->target];
    if (arc->kind == SL_ARC_EMPTY) {
        return target_marked;
    }
    if (arc->kind == SL_ARC_BYTES) {
        return way == WITH_ANY_TEXT ? target_marked : way == WITH_SOME_TEXT && any[arc->target];
    }
    const sl_symbol *symbol = &compiler->loose.symbols[arc->symbol];
    if (symbol->is_token) {
        return way == WITH_ANY_TEXT ? target_marked : way == WITH_SOME_TEXT && any[arc->target];
    }
    int32_t start = compiler->starts[symbol->rule];
    if (way == WITH_SOME_TEXT) {
        bool passes = compiler->passes[arc->symbol] & 1;
        return (marked[start] && any[arc->target]) || (passes && target_marked);
    }
    return target_marked && (symbol->least == 0 || marked[start]);
}

static void mark_state(backwards *back, uint8_t *marked, int32_t state) {
    if (!marked[state]) {
        marked[state] = 1;
        back->queue[back->count++] = state;
    }
}

/* Marks the states from which their rule's end is reached in this way. `any`: those of WITH_ANY_TEXT, for
 * WITH_SOME_TEXT. */
static bool mark_ways(backwards *back, way way, uint8_t *marked, const uint8_t *any) {
    compiler *compiler = back->compiler;
    sl_loose_machine *loose = &compiler->loose;
    memset(marked, 0, (size_t)loose->states);
    back->count = 0;
    if (way != WITH_SOME_TEXT) {
        for (int32_t i = 0; i < compiler->queue_count; i++) {
            mark_state(back, marked, compiler->ends[compiler->queue[i]]);
        }
    } else {
        for (int32_t a = 0; a < loose->arc_count; a++) {
            if (back->from[a] >= 0 && is_step(back, way, marked, any, &loose->arcs[a].arc)) {
                mark_state(back, marked, back->from[a]);
            }
        }
    }
    for (int32_t i = 0; i < back->count; i++) {
        int32_t state = back->queue[i];
        for (int32_t a = back->heads[state]; a >= 0; a = back->next[a]) {
            if (is_step(back, way, marked, any, &loose->arcs[a].arc)) {
                mark_state(back, marked, back->from[a]);
            }
        }
        int32_t rule = back->owners[state];
        for (int32_t a = rule >= 0 ? back->callers[rule] : -1; a >= 0; a = back->next_caller[a]) {
            if (is_step(back, way, marked, any, &loose->arcs[a].arc)) {
                mark_state(back, marked, back->from[a]);
            }
        }
    }
    return sl_builder_count_work(compiler->builder, (uint64_t)loose->arc_count);
}

static bool find_ways(compiler *compiler, bool *may_be_empty) {
    sl_grammar_builder *builder = compiler->builder;
    sl_loose_machine *loose = &compiler->loose;
    backwards back = {0};
    uint8_t *other = NULL;
    int32_t room = 0;
    bool fine =
        backwards_make(&back, compiler) &&
        sl_builder_grow(builder, &other, &room, (int64_t)loose->states + 1, 1) &&
        sl_builder_grow(builder, &compiler->live, &compiler->live_capacity, (int64_t)loose->states + 1, 1) &&
        sl_builder_grow(builder, &compiler->passes, &compiler->pass_capacity,
                        (int64_t)loose->symbol_count + 1, 1) &&
        mark_ways(&back, WITHOUT_TEXT, other, NULL);
    if (fine) {
        *may_be_empty = other[compiler->starts[compiler->queue[0]]];
        for (int32_t i = 0; i < loose->symbol_count; i++) {
            const sl_symbol *symbol = &loose->symbols[i];
            compiler->passes[i] =
                !symbol->is_token && (symbol->least == 0 || other[compiler->starts[symbol->rule]]);
        }
        fine = mark_ways(&back, WITH_ANY_TEXT, compiler->live, NULL) &&
               mark_ways(&back, WITH_SOME_TEXT, other, compiler->live);
    }
    for (int32_t i = 0; fine && i < loose->symbol_count; i++) {
        sl_symbol *symbol = &loose->symbols[i];
        bool some = symbol->is_token || other[compiler->starts[symbol->rule]];
        if (!symbol->is_token && (compiler->passes[i] & 1)) {
            symbol->least = 0; /* an empty text counts as often as wanted */
        }
        compiler->passes[i] |= (uint8_t)(some << 1);
    }
    if (fine && !compiler->live[compiler->starts[compiler->queue[0]]]) {
        sl_builder_fail(builder, SL_ERR_INVALID, "grammar: no text matches it");
        fine = false;
    }
    backwards_free(&back);
    sl_builder_drop(builder, other, room, 1);
    return fine;
}

/* ---- rules to machines
 * --------------------------------------------------------------------------------------- */

static bool make_machines(compiler *compiler) {
    sl_grammar_builder *builder = compiler->builder;
    if (!sl_builder_grow(builder, &compiler->machines, &compiler->machine_capacity, builder->rule_count,
                         sizeof(sl_machine))) {
        return false;
    }
    memset(compiler->machines, 0, (size_t)compiler->machine_capacity * sizeof(sl_machine));
    for (int32_t i = 0; i < compiler->queue_count; i++) {
        int32_t rule = compiler->queue[i];
        uint32_t weight = builder->nodes[builder->rules[rule].expression].weight;
        sl_determinise_options options = {.start = compiler->starts[rule],
                                          .accept = compiler->ends[rule],
                                          .apart = true,
                                          .live = compiler->live,
                                          .passes = compiler->passes};
        options.most_states = weight > 1 << 20 ? 1 << 22 : (int32_t)weight * 4 + 1024;
        int code = sl_determinise(&compiler->loose, &options, &compiler->machines[rule]);
        if (code == -1) {
            code = sl_remove_empty(&compiler->loose, &options, &compiler->machines[rule]);
        }
        if (code) {
            return false;
        }
    }
    return true;
}

/* The rules that a rule calls before it read anything are the calls of its state 0. Ranks: those that call
 * first are lower. A cycle is left recursion. */
static bool rank_rules(compiler *compiler) {
    sl_grammar_builder *builder = compiler->builder;
    int32_t *order = NULL, *arcs = NULL, order_room = 0, arc_room = 0, rank = INT_MAX / 2;
    bool fine = sl_builder_grow(builder, &compiler->ranks, &compiler->rank_capacity, builder->rule_count,
                                sizeof(int32_t)) &&
                sl_builder_grow(builder, &order, &order_room, compiler->queue_count, sizeof(int32_t)) &&
                sl_builder_grow(builder, &arcs, &arc_room, compiler->queue_count, sizeof(int32_t));
    if (fine) {
        memset(compiler->ranks, 0, (size_t)compiler->rank_capacity * sizeof(int32_t));
    }
    for (int32_t i = 0; fine && i < compiler->queue_count; i++) {
        int32_t depth = 0;
        if (compiler->ranks[compiler->queue[i]]) {
            continue;
        }
        order[depth] = compiler->queue[i];
        arcs[depth++] = 0;
        compiler->ranks[compiler->queue[i]] = -1;
        while (fine && depth) {
            int32_t rule = order[depth - 1];
            const sl_machine *machine = &compiler->machines[rule];
            if (arcs[depth - 1] >= (machine->states ? machine->first_arc[1] : 0)) {
                compiler->ranks[rule] = rank--;
                depth--;
                continue;
            }
            const sl_arc *arc = &machine->arcs[arcs[depth - 1]++];
            const sl_symbol *symbol =
                arc->kind == SL_ARC_SYMBOL ? &compiler->loose.symbols[arc->symbol] : NULL;
            if (!symbol || symbol->is_token || compiler->ranks[symbol->rule] > 0) {
                continue;
            }
            if (compiler->ranks[symbol->rule] < 0) {
                sl_builder_fail(builder, SL_ERR_INVALID,
                                "grammar: the rule %s can begin with itself (left recursion)",
                                builder->bytes + builder->rules[symbol->rule].name);
                fine = false;
                break;
            }
            compiler->ranks[symbol->rule] = -1;
            order[depth] = symbol->rule;
            arcs[depth++] = 0;
        }
    }
    sl_builder_drop(builder, order, order_room, sizeof(int32_t));
    sl_builder_drop(builder, arcs, arc_room, sizeof(int32_t));
    return fine;
}

/* ---- machines to the automaton
 * ------------------------------------------------------------------------------- */

static bool allocate_automaton(compiler *compiler, sl_grammar *grammar) {
    sl_grammar_builder *builder = compiler->builder;
    size_t states = 0, arcs = 0;
    if (!sl_builder_grow(builder, &compiler->bases, &compiler->base_capacity, builder->rule_count,
                         sizeof(int32_t))) {
        return false;
    }
    for (int32_t i = 0; i < compiler->queue_count; i++) {
        const sl_machine *machine = &compiler->machines[compiler->queue[i]];
        compiler->bases[compiler->queue[i]] = (int32_t)states;
        states += (size_t)machine->states;
        arcs += (size_t)machine->arc_count;
    }
    grammar->state_count = (int32_t)states;
    grammar->states = sl_alloc_zero(states + 1, sizeof(*grammar->states));
    grammar->bytes = sl_alloc_zero(arcs + 1, sizeof(*grammar->bytes));
    grammar->calls = sl_alloc_zero(arcs + 1, sizeof(*grammar->calls));
    grammar->tokens = sl_alloc_zero(arcs + 1, sizeof(*grammar->tokens));
    if (!grammar->states || !grammar->bytes || !grammar->calls || !grammar->tokens) {
        sl_builder_fail(builder, SL_ERR_NOMEM, "grammar: out of memory");
        return false;
    }
    return true;
}

static bool fill_token(compiler *compiler, const sl_symbol *symbol, sl_token_arc *out) {
    sl_grammar_builder *builder = compiler->builder;
    out->negated = symbol->negated;
    out->token = symbol->rule;
    if (symbol->rule < 0) {
        out->token =
            sl_vocabulary_find(compiler->vocabulary, builder->bytes + symbol->least, (size_t)symbol->most);
        if (out->token < 0) {
            sl_builder_fail(builder, SL_ERR_INVALID, "grammar: the vocabulary has no token %.64s",
                            builder->bytes + symbol->least);
            return false;
        }
    } else if (symbol->rule >= compiler->vocabulary->count) {
        sl_builder_fail(builder, SL_ERR_INVALID, "grammar: the vocabulary has no token %d (it has %d)",
                        symbol->rule, compiler->vocabulary->count);
        return false;
    }
    return true;
}

static void mark_classes(sl_grammar *grammar, int32_t arcs) {
    bool cut[257] = {false};
    for (int32_t i = 0; i < arcs; i++) {
        cut[grammar->bytes[i].first] = cut[grammar->bytes[i].last + 1] = true;
    }
    for (int byte = 0; byte < 256; byte++) {
        grammar->class_count += byte == 0 || cut[byte];
        grammar->classes[byte] = (uint8_t)(grammar->class_count - 1);
    }
}

static bool is_apart(const sl_machine *machine, int32_t state) {
    int last = -1;
    for (int32_t a = machine->first_arc[state]; a < machine->first_arc[state + 1]; a++) {
        const sl_arc *arc = &machine->arcs[a];
        if (arc->kind == SL_ARC_BYTES) {
            if (arc->first <= last) {
                return false;
            }
            last = arc->last;
        }
    }
    return true;
}

static bool fill_automaton(compiler *compiler, sl_grammar *grammar) {
    int32_t bytes = 0, calls = 0, tokens = 0, at = 0;
    for (int32_t i = 0; i < compiler->queue_count; i++) {
        int32_t rule = compiler->queue[i], base = compiler->bases[rule];
        const sl_machine *machine = &compiler->machines[rule];
        for (int32_t state = 0; state < machine->states; state++, at++) {
            grammar->states[at] = (sl_automaton_state){.first_byte = bytes,
                                                       .first_call = calls,
                                                       .first_token = tokens,
                                                       .rank = state == 0 ? compiler->ranks[rule] : 0,
                                                       .accepts = machine->accepts[state],
                                                       .is_apart = is_apart(machine, state)};
            for (int32_t a = machine->first_arc[state]; a < machine->first_arc[state + 1]; a++) {
                const sl_arc *arc = &machine->arcs[a];
                int32_t target = base + arc->target;
                if (arc->kind == SL_ARC_BYTES) {
                    grammar->bytes[bytes++] = (sl_byte_arc){arc->first, arc->last, target};
                    continue;
                }
                const sl_symbol *symbol = &compiler->loose.symbols[arc->symbol];
                if (!symbol->is_token) {
                    grammar->calls[calls++] = (sl_call_arc){.callee = compiler->bases[symbol->rule],
                                                            .target = target,
                                                            .least = symbol->least,
                                                            .most = symbol->most};
                } else if (fill_token(compiler, symbol, &grammar->tokens[tokens])) {
                    grammar->tokens[tokens++].target = target;
                } else {
                    return false;
                }
            }
        }
    }
    grammar->states[at] =
        (sl_automaton_state){.first_byte = bytes, .first_call = calls, .first_token = tokens};
    grammar->root_states = compiler->machines[compiler->queue[0]].states;
    for (int ends = 0; ends < 2; ends++) {
        const int32_t rule = compiler->builder->name_rules[ends] - 1;
        const bool is_used = rule >= 0 && rule < compiler->start_capacity && compiler->starts[rule] >= 0;
        grammar->name_quotes[ends] = is_used ? compiler->bases[rule] : -1;
    }
    mark_classes(grammar, bytes);
    return true;
}

static sl_grammar *make_grammar(compiler *compiler, bool may_be_empty) {
    sl_grammar *grammar = sl_alloc_zero(1, sizeof(*grammar));
    if (!grammar) {
        sl_builder_fail(compiler->builder, SL_ERR_NOMEM, "grammar: out of memory");
        return NULL;
    }
    atomic_init(&grammar->references, 1);
    grammar->vocabulary = compiler->vocabulary;
    atomic_fetch_add(&compiler->vocabulary->references, 1);
    grammar->may_be_empty = may_be_empty;
    bool fine = allocate_automaton(compiler, grammar) && fill_automaton(compiler, grammar);
    if (fine && !sl_mask_cache_create(grammar)) {
        sl_builder_fail(compiler->builder, SL_ERR_NOMEM, "grammar: out of memory");
        fine = false;
    }
    if (!fine) {
        sl_grammar_release(grammar);
        return NULL;
    }
    return grammar;
}

sl_grammar *sl_grammar_compile(sl_grammar_builder *builder, sl_expression root,
                               sl_grammar_vocabulary *vocabulary, sl_error *error) {
    compiler compiler = {.builder = builder, .vocabulary = vocabulary, .loose.builder = builder};
    sl_grammar *grammar = NULL;
    int32_t rule = sl_grammar_rule(builder, "(root)");
    bool may_be_empty = false;
    sl_grammar_define(builder, rule, root);
    if (builder->error.code == 0 && emit_rules(&compiler, rule) && find_ways(&compiler, &may_be_empty) &&
        make_machines(&compiler) && rank_rules(&compiler)) {
        grammar = make_grammar(&compiler, may_be_empty);
    }
    compiler_free(&compiler);
    if (grammar) {
        sl_grammar_warm(grammar, WARM_SECONDS);
    } else {
        sl_fail(error, builder->error.code, "%s", builder->error.message);
    }
    return grammar;
}

sl_grammar *sl_grammar_retain(sl_grammar *grammar) {
    atomic_fetch_add(&grammar->references, 1);
    return grammar;
}

uint64_t sl_grammar_bytes(const sl_grammar *grammar) {
    const sl_automaton_state *end = &grammar->states[grammar->state_count];
    return sizeof *grammar + ((uint64_t)grammar->state_count + 1) * sizeof *grammar->states +
           (uint64_t)end->first_byte * sizeof *grammar->bytes +
           (uint64_t)end->first_call * sizeof *grammar->calls +
           (uint64_t)end->first_token * sizeof *grammar->tokens +
           grammar->cache.bucket_count * sizeof *grammar->cache.buckets +
           atomic_load_explicit(&grammar->cache.bytes, memory_order_relaxed);
}

void sl_grammar_release(sl_grammar *grammar) {
    if (!grammar || atomic_fetch_sub(&grammar->references, 1) != 1) {
        return;
    }
    sl_mask_cache_free(grammar);
    sl_grammar_vocabulary_release(grammar->vocabulary);
    sl_free(grammar->states);
    sl_free(grammar->bytes);
    sl_free(grammar->calls);
    sl_free(grammar->tokens);
    sl_free(grammar);
}
