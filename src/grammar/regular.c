/* Regular expressions as sets of texts: intersections, differences, and whether there is any text. */
#include "grammar/build.h"

#include "base/text.h"

#include <limits.h>
#include <string.h>

/* A deterministic machine for the whole expression. False: it stuck. */
static bool make_machine(sl_grammar_builder *builder, sl_expression expression, sl_machine *machine) {
    sl_loose_machine loose = {.builder = builder, .whole = true};
    int32_t start = sl_loose_state(&loose), accept = sl_loose_state(&loose);
    bool fine = sl_loose_emit(&loose, expression, start, accept, false);
    if (fine) {
        sl_determinise_options options = {.start = start, .accept = accept, .most_states = INT_MAX};
        fine = sl_determinise(&loose, &options, machine) == 0;
    }
    sl_loose_free(&loose);
    return fine;
}

/* Pairs of states of two machines, those of the second plus one: 0 is where it has no way. */
typedef struct pairs {
    sl_grammar_builder *builder;
    const sl_machine *left, *right;
    bool is_difference;
    sl_loose_machine loose; /* the product; state 1 is its end */
    int32_t (*list)[2];
    int32_t count, capacity;
    int32_t *table; /* pair + 1 by hash */
    int32_t table_capacity;
} pairs;

static uint64_t hash_pair(int32_t left, int32_t right) {
    int32_t both[2] = {left, right};
    return sl_hash64(both, sizeof(both), 0);
}

static bool grow_pairs(pairs *pairs) {
    int32_t wanted = pairs->table_capacity ? pairs->table_capacity * 2 : 64;
    sl_builder_drop(pairs->builder, pairs->table, pairs->table_capacity, sizeof(int32_t));
    pairs->table = NULL;
    pairs->table_capacity = 0;
    if (!sl_builder_grow(pairs->builder, &pairs->table, &pairs->table_capacity, wanted, sizeof(int32_t))) {
        return false;
    }
    memset(pairs->table, 0, (size_t)pairs->table_capacity * sizeof(int32_t));
    uint64_t last = (uint64_t)(pairs->table_capacity - 1);
    for (int32_t i = 0; i < pairs->count; i++) {
        uint64_t at = hash_pair(pairs->list[i][0], pairs->list[i][1]);
        while (pairs->table[at & last]) {
            at++;
        }
        pairs->table[at & last] = i + 1;
    }
    return true;
}

/* The product's state of a pair; -1: it stuck. State i + 2 of the loose machine is pair i. */
static int32_t find_pair(pairs *pairs, int32_t left, int32_t right) {
    if (pairs->count * 2 >= pairs->table_capacity && !grow_pairs(pairs)) {
        return -1;
    }
    uint64_t last = (uint64_t)(pairs->table_capacity - 1), at = hash_pair(left, right);
    for (; pairs->table[at & last]; at++) {
        int32_t pair = pairs->table[at & last] - 1;
        if (pairs->list[pair][0] == left && pairs->list[pair][1] == right) {
            return pair + 2;
        }
    }
    if (!sl_builder_count_states(pairs->builder, 1) ||
        !sl_builder_grow(pairs->builder, &pairs->list, &pairs->capacity, (int64_t)pairs->count + 1,
                         sizeof(*pairs->list))) {
        return -1;
    }
    int32_t state = sl_loose_state(&pairs->loose);
    pairs->list[pairs->count][0] = left;
    pairs->list[pairs->count][1] = right;
    pairs->table[at & last] = ++pairs->count;
    return pairs->builder->error.code ? -1 : state;
}

static bool leave_pair(pairs *pairs, int32_t pair) {
    const sl_machine *a = pairs->left, *b = pairs->right;
    int32_t left = pairs->list[pair][0], right = pairs->list[pair][1] - 1;
    bool accepts = right >= 0 && b->accepts[right];
    if (a->accepts[left] && accepts != pairs->is_difference) {
        sl_loose_arc_add(&pairs->loose, pair + 2, (sl_arc){.kind = SL_ARC_EMPTY, .symbol = -1, .target = 1});
    }
    int32_t j = right >= 0 ? b->first_arc[right] : 0, end = right >= 0 ? b->first_arc[right + 1] : 0;
    for (int32_t i = a->first_arc[left]; i < a->first_arc[left + 1]; i++) {
        const sl_arc *arc = &a->arcs[i];
        for (int first = arc->first, last; first <= arc->last; first = last + 1) {
            while (j < end && b->arcs[j].last < first) {
                j++;
            }
            bool inside = j < end && b->arcs[j].first <= first;
            last = arc->last;
            if (j < end) {
                int stop = inside ? b->arcs[j].last : b->arcs[j].first - 1;
                last = stop < last ? stop : last;
            }
            if (!inside && !pairs->is_difference) {
                continue;
            }
            int32_t target = find_pair(pairs, arc->target, inside ? b->arcs[j].target + 1 : 0);
            if (target < 0) {
                return false;
            }
            sl_loose_arc_add(&pairs->loose, pair + 2,
                             (sl_arc){.kind = SL_ARC_BYTES,
                                      .first = (uint8_t)first,
                                      .last = (uint8_t)last,
                                      .symbol = -1,
                                      .target = target});
        }
    }
    return sl_builder_count_work(pairs->builder, (uint64_t)(a->first_arc[left + 1] - a->first_arc[left] + 1));
}

/* Which of a loose machine's states lead to its end. [states] zeroed; filled. */
static bool find_live(sl_loose_machine *loose, int32_t end, uint8_t *live) {
    sl_grammar_builder *builder = loose->builder;
    int32_t *heads = NULL, *next = NULL, *from = NULL, *queue = NULL;
    int32_t heads_room = 0, next_room = 0, from_room = 0, queue_room = 0, count = 0;
    bool fine = sl_builder_grow(builder, &heads, &heads_room, loose->states, sizeof(int32_t)) &&
                sl_builder_grow(builder, &queue, &queue_room, loose->states, sizeof(int32_t)) &&
                sl_builder_grow(builder, &next, &next_room, loose->arc_count, sizeof(int32_t)) &&
                sl_builder_grow(builder, &from, &from_room, loose->arc_count, sizeof(int32_t));
    if (fine) {
        memset(heads, 0xff, (size_t)loose->states * sizeof(int32_t));
        for (int32_t state = 0; state < loose->states; state++) {
            for (int32_t a = loose->heads[state]; a >= 0; a = loose->arcs[a].next) {
                int32_t target = loose->arcs[a].arc.target;
                from[a] = state;
                next[a] = heads[target];
                heads[target] = a;
            }
        }
        live[end] = 1;
        queue[count++] = end;
    }
    for (int32_t i = 0; i < count; i++) {
        for (int32_t a = heads[queue[i]]; a >= 0; a = next[a]) {
            if (!live[from[a]]) {
                live[from[a]] = 1;
                queue[count++] = from[a];
            }
        }
    }
    sl_builder_drop(builder, heads, heads_room, sizeof(int32_t));
    sl_builder_drop(builder, next, next_room, sizeof(int32_t));
    sl_builder_drop(builder, from, from_room, sizeof(int32_t));
    sl_builder_drop(builder, queue, queue_room, sizeof(int32_t));
    return fine;
}

/* The product's texts as an expression. */
static sl_expression finish_pairs(pairs *pairs) {
    sl_grammar_builder *builder = pairs->builder;
    sl_loose_machine *loose = &pairs->loose;
    uint8_t *live = NULL;
    int32_t live_room = 0;
    sl_expression result = SL_NO_EXPRESSION;
    if (sl_builder_grow(builder, &live, &live_room, loose->states, 1)) {
        memset(live, 0, (size_t)loose->states);
        if (find_live(loose, 1, live)) {
            sl_machine machine = {0};
            sl_determinise_options options = {.start = 2, .accept = 1, .most_states = INT_MAX, .live = live};
            if (!live[2]) {
                result = sl_expression_nothing(builder);
            } else if (sl_determinise(loose, &options, &machine) == 0) {
                result = sl_expression_machine(builder, &machine);
            }
        }
    }
    sl_builder_drop(builder, live, live_room, 1);
    return result;
}

static sl_expression combine(sl_grammar_builder *builder, sl_expression left, sl_expression right,
                             bool is_difference) {
    sl_machine a = {0}, b = {0};
    pairs pairs = {.builder = builder, .left = &a, .right = &b, .is_difference = is_difference};
    pairs.loose.builder = builder;
    sl_expression result = SL_NO_EXPRESSION;
    if (make_machine(builder, left, &a) && make_machine(builder, right, &b)) {
        sl_loose_state(&pairs.loose);
        sl_loose_state(&pairs.loose);
        bool fine = find_pair(&pairs, 0, 1) == 2;
        for (int32_t i = 0; fine && i < pairs.count; i++) {
            fine = leave_pair(&pairs, i);
        }
        if (fine && builder->error.code == 0) {
            result = finish_pairs(&pairs);
        }
    }
    sl_machine_free(builder, &a);
    sl_machine_free(builder, &b);
    sl_loose_free(&pairs.loose);
    sl_builder_drop(builder, pairs.list, pairs.capacity, sizeof(*pairs.list));
    sl_builder_drop(builder, pairs.table, pairs.table_capacity, sizeof(int32_t));
    return result;
}

static bool is_operand(sl_grammar_builder *builder, sl_expression expression) {
    if (builder->error.code == 0 && (expression < 0 || expression >= builder->node_count)) {
        sl_builder_fail(builder, SL_ERR_INVALID, "grammar: there is no expression %d", expression);
    }
    return builder->error.code == 0;
}

sl_expression sl_expression_both(sl_grammar_builder *builder, sl_expression left, sl_expression right) {
    return is_operand(builder, left) && is_operand(builder, right) ? combine(builder, left, right, false)
                                                                   : SL_NO_EXPRESSION;
}

static sl_expression any_text(sl_grammar_builder *builder) {
    return sl_expression_repeat(builder, sl_expression_character(builder, NULL, 0, true), 0, -1);
}

sl_expression sl_expression_except(sl_grammar_builder *builder, sl_expression from, sl_expression without) {
    if (builder->error.code == 0 && from == SL_NO_EXPRESSION) {
        from = any_text(builder);
    }
    return is_operand(builder, from) && is_operand(builder, without) ? combine(builder, from, without, true)
                                                                     : SL_NO_EXPRESSION;
}

sl_expression sl_expression_until(sl_grammar_builder *builder, const char *text, size_t count) {
    sl_expression around[3] = {any_text(builder), sl_expression_literal(builder, text, count),
                               any_text(builder)};
    return sl_expression_except(builder, SL_NO_EXPRESSION, sl_expression_sequence(builder, around, 3));
}

int64_t sl_expression_count(sl_grammar_builder *builder, sl_expression expression, int64_t most) {
    sl_machine machine = {0};
    int64_t *paths[2] = {NULL, NULL}; /* [states]: from the start in so many bytes, and in one more */
    int32_t room[2] = {0, 0};
    int64_t sum = 0;
    bool fine = is_operand(builder, expression) && make_machine(builder, expression, &machine);
    for (int i = 0; i < 2 && fine; i++) {
        fine = sl_builder_grow(builder, &paths[i], &room[i], (int64_t)machine.states + 1, sizeof(int64_t));
    }
    if (fine && machine.states) {
        memset(paths[0], 0, (size_t)machine.states * sizeof(int64_t));
        paths[0][0] = 1;
    }
    /* A text with as many bytes as there are states comes by one of them twice: then there is no end of
     * texts, and one is shorter than twice that. */
    for (int64_t length = 0; fine && length < 2 * (int64_t)machine.states && sum < most; length++) {
        int64_t *from = paths[length & 1], *to = paths[~length & 1];
        memset(to, 0, (size_t)machine.states * sizeof(int64_t));
        for (int32_t state = 0; state < machine.states; state++) {
            sum += !machine.accepts[state] || !from[state] ? 0 : length < machine.states ? from[state] : most;
            for (int32_t a = machine.first_arc[state]; from[state] && a < machine.first_arc[state + 1]; a++) {
                const sl_arc *arc = &machine.arcs[a];
                const int64_t more = to[arc->target] + from[state] * (arc->last - arc->first + 1);
                to[arc->target] = more < most ? more : most;
            }
        }
        sum = sum < most ? sum : most;
        fine = sl_builder_count_work(builder, (uint64_t)machine.arc_count + 1);
    }
    for (int i = 0; i < 2; i++) {
        sl_builder_drop(builder, paths[i], room[i], sizeof(int64_t));
    }
    sl_machine_free(builder, &machine);
    return fine ? sum : 0;
}

/* ---- is there any text?
 * ------------------------------------------------------------------------------------- */

/* What an expression has to wait for: so many of its parts must have a text. -1: none, it has none. */
static int32_t parts_needed(const sl_grammar_builder *builder, const sl_expression_node *node) {
    switch ((sl_expression_kind)node->kind) {
    case SL_EXPRESSION_NOTHING:
        return -1;
    case SL_EXPRESSION_SEQUENCE:
        return node->count;
    case SL_EXPRESSION_CHOICE:
    case SL_EXPRESSION_ESCAPED:
    case SL_EXPRESSION_SCOPE:
        return 1;
    case SL_EXPRESSION_REPEAT:
        return node->least > 0;
    case SL_EXPRESSION_RULE:
        return builder->rules[node->first].expression == SL_NO_EXPRESSION ? -1 : 1;
    default:
        return 0;
    }
}

/* The i-th expression that one waits for, or -1 behind the last. */
static sl_expression part_of(const sl_grammar_builder *builder, const sl_expression_node *node, int32_t i) {
    if (node->kind == SL_EXPRESSION_SEQUENCE || node->kind == SL_EXPRESSION_CHOICE) {
        return i < node->count ? builder->parts[node->first + i] : -1;
    }
    if (i > 0 || parts_needed(builder, node) <= 0) {
        return -1;
    }
    return node->kind == SL_EXPRESSION_RULE ? builder->rules[node->first].expression : node->first;
}

/* Those that wait for each expression, as lists: heads by expression, next and waiting by place. */
typedef struct waiting {
    int32_t *needed, *heads, *queue; /* [nodes] */
    int32_t *next, *who;             /* [places] */
    int32_t room[5];
} waiting;

static bool make_waiting(sl_grammar_builder *builder, waiting *w) {
    const int32_t nodes = builder->node_count;
    int32_t **all[] = {&w->needed, &w->heads, &w->queue, &w->next, &w->who};
    for (int i = 0; i < 5; i++) {
        const int64_t size = i < 3 ? nodes : (int64_t)nodes + builder->part_count;
        if (!sl_builder_grow(builder, all[i], &w->room[i], size + 1, sizeof(int32_t))) {
            return false;
        }
    }
    memset(w->heads, 0xff, (size_t)nodes * sizeof(int32_t));
    int32_t places = 0;
    for (int32_t n = 0; n < nodes; n++) {
        const sl_expression_node *node = &builder->nodes[n];
        sl_expression part;
        w->needed[n] = parts_needed(builder, node);
        for (int32_t i = 0; (part = part_of(builder, node, i)) >= 0; i++, places++) {
            w->who[places] = n;
            w->next[places] = w->heads[part];
            w->heads[part] = places;
        }
    }
    return sl_builder_count_work(builder, ((uint64_t)nodes + (uint64_t)places) / 8);
}

bool sl_expression_is_nothing(sl_grammar_builder *builder, sl_expression expression) {
    waiting w = {0};
    bool is_nothing = false;
    if (!is_operand(builder, expression)) {
        return false;
    }
    if (make_waiting(builder, &w)) {
        int32_t count = 0;
        for (int32_t n = 0; n < builder->node_count; n++) {
            if (w.needed[n] == 0) {
                w.queue[count++] = n;
            }
        }
        for (int32_t i = 0; i < count; i++) {
            for (int32_t at = w.heads[w.queue[i]]; at >= 0; at = w.next[at]) {
                if (--w.needed[w.who[at]] == 0) {
                    w.queue[count++] = w.who[at];
                }
            }
        }
        is_nothing = w.needed[expression] > 0;
        is_nothing |= parts_needed(builder, &builder->nodes[expression]) < 0;
    }
    int32_t *all[] = {w.needed, w.heads, w.queue, w.next, w.who};
    for (int i = 0; i < 5; i++) {
        sl_builder_drop(builder, all[i], w.room[i], sizeof(int32_t));
    }
    return is_nothing;
}
