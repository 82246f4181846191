/* Machines without empty arcs from machines with them: by the subset construction, or state by state. */
#include "grammar/build.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

typedef struct maker {
    sl_loose_machine *loose;
    sl_grammar_builder *builder;
    const sl_determinise_options *options;
    sl_machine *machine;
    int32_t *members; /* of all sets, one after the other */
    int32_t member_count, member_capacity;
    int32_t *first_member; /* [sets + 1] */
    int32_t set_capacity;
    int32_t sets;
    int32_t *table; /* set + 1 by hash; a power of two */
    int32_t table_capacity;
    int32_t *stamps; /* [states of the loose machine]: the closure that saw it last */
    int32_t stamp, stamp_capacity;
    int32_t *found; /* the set being made */
    int32_t found_count, found_capacity;
    sl_arc *gathered; /* arcs of the set being left, then sorted by what they read */
    int32_t gathered_count, gathered_capacity;
    int32_t leaving; /* the set whose arcs are made */
} maker;

static void maker_free(maker *maker) {
    sl_grammar_builder *builder = maker->builder;
    sl_builder_drop(builder, maker->members, maker->member_capacity, sizeof(int32_t));
    sl_builder_drop(builder, maker->first_member, maker->set_capacity, sizeof(int32_t));
    sl_builder_drop(builder, maker->table, maker->table_capacity, sizeof(int32_t));
    sl_builder_drop(builder, maker->stamps, maker->stamp_capacity, sizeof(int32_t));
    sl_builder_drop(builder, maker->found, maker->found_capacity, sizeof(int32_t));
    sl_builder_drop(builder, maker->gathered, maker->gathered_capacity, sizeof(sl_arc));
}

static bool is_live(const maker *maker, int32_t state) {
    return !maker->options->live || maker->options->live[state];
}

static bool see(maker *maker, int32_t state) {
    if (maker->stamps[state] == maker->stamp || !is_live(maker, state)) {
        return true;
    }
    maker->stamps[state] = maker->stamp;
    if (!sl_builder_grow(maker->builder, &maker->found, &maker->found_capacity,
                         (int64_t)maker->found_count + 1, sizeof(int32_t))) {
        return false;
    }
    maker->found[maker->found_count++] = state;
    return true;
}

static bool is_passed(const maker *maker, const sl_arc *arc) {
    return arc->kind == SL_ARC_EMPTY || (arc->kind == SL_ARC_SYMBOL && maker->options->passes &&
                                         (maker->options->passes[arc->symbol] & 1));
}

static bool is_read(const maker *maker, const sl_arc *arc) {
    return is_live(maker, arc->target) &&
           (arc->kind == SL_ARC_BYTES || (arc->kind == SL_ARC_SYMBOL && maker->options->passes &&
                                          (maker->options->passes[arc->symbol] & 2)));
}

static int compare_states(const void *a, const void *b) {
    int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;
    return left < right ? -1 : left > right;
}

/* Follows empty arcs from what is found, and keeps the states that read something or accept. */
static bool close_set(maker *maker) {
    sl_loose_machine *loose = maker->loose;
    uint64_t work = 1;
    for (int32_t i = 0; i < maker->found_count; i++) {
        for (int32_t a = loose->heads[maker->found[i]]; a >= 0; a = loose->arcs[a].next) {
            work++;
            if (is_passed(maker, &loose->arcs[a].arc) && !see(maker, loose->arcs[a].arc.target)) {
                return false;
            }
        }
    }
    int32_t kept = 0;
    for (int32_t i = 0; i < maker->found_count; i++) {
        int32_t state = maker->found[i];
        bool keep = state == maker->options->accept;
        for (int32_t a = loose->heads[state]; a >= 0 && !keep; a = loose->arcs[a].next) {
            keep = is_read(maker, &loose->arcs[a].arc);
        }
        if (keep) {
            maker->found[kept++] = state;
        }
    }
    maker->found_count = kept;
    if (kept > 1) {
        qsort(maker->found, (size_t)kept, sizeof(int32_t), compare_states);
    }
    return sl_builder_count_work(maker->builder, work);
}

static bool grow_table(maker *maker) {
    int32_t capacity = maker->table_capacity ? maker->table_capacity * 2 : 64;
    int32_t *old = maker->table, old_capacity = maker->table_capacity;
    maker->table = NULL;
    maker->table_capacity = 0;
    bool fine =
        sl_builder_grow(maker->builder, &maker->table, &maker->table_capacity, capacity, sizeof(int32_t));
    sl_builder_drop(maker->builder, old, old_capacity, sizeof(int32_t));
    if (!fine) {
        return false;
    }
    memset(maker->table, 0, (size_t)maker->table_capacity * sizeof(int32_t));
    for (int32_t i = maker->options->apart ? 1 : 0; i < maker->sets; i++) {
        int32_t first = maker->first_member[i];
        uint64_t at = sl_hash64(maker->members + first,
                                (size_t)(maker->first_member[i + 1] - first) * sizeof(int32_t), 0);
        while (maker->table[at & (uint64_t)(maker->table_capacity - 1)]) {
            at++;
        }
        maker->table[at & (uint64_t)(maker->table_capacity - 1)] = i + 1;
    }
    return true;
}

static bool append_set(maker *maker) {
    sl_grammar_builder *builder = maker->builder;
    sl_machine *machine = maker->machine;
    int32_t both = machine->state_capacity;
    if (!sl_builder_count_states(builder, 1) ||
        !sl_builder_grow(builder, &maker->first_member, &maker->set_capacity, (int64_t)maker->sets + 2,
                         sizeof(int32_t)) ||
        !sl_builder_grow(builder, &maker->members, &maker->member_capacity,
                         (int64_t)maker->member_count + maker->found_count, sizeof(int32_t)) ||
        !sl_builder_grow(builder, &machine->accepts, &both, (int64_t)maker->sets + 2, 1) ||
        !sl_builder_grow(builder, &machine->first_arc, &machine->state_capacity, (int64_t)maker->sets + 2,
                         sizeof(int32_t))) {
        return false;
    }
    bool accepts = false;
    for (int32_t i = 0; i < maker->found_count; i++) {
        accepts |= maker->found[i] == maker->options->accept;
    }
    if (maker->found_count) {
        memcpy(maker->members + maker->member_count, maker->found,
               (size_t)maker->found_count * sizeof(int32_t));
    }
    maker->first_member[maker->sets] = maker->member_count;
    maker->member_count += maker->found_count;
    machine->accepts[maker->sets] = accepts && !(maker->options->apart && maker->sets == 0);
    maker->sets++;
    maker->first_member[maker->sets] = maker->member_count;
    machine->states = maker->sets;
    return true;
}

/* The number of the set that was found; -1: an error stuck, or there are too many. */
static int32_t find_set(maker *maker) {
    if (maker->sets * 2 >= maker->table_capacity && !grow_table(maker)) {
        return -1;
    }
    size_t size = (size_t)maker->found_count * sizeof(int32_t);
    uint64_t at = sl_hash64(maker->found, size, 0);
    uint64_t last = (uint64_t)(maker->table_capacity - 1);
    for (; maker->table[at & last]; at++) {
        int32_t set = maker->table[at & last] - 1;
        int32_t first = maker->first_member[set];
        if (maker->first_member[set + 1] - first == maker->found_count &&
            (size == 0 || memcmp(maker->members + first, maker->found, size) == 0)) {
            return set;
        }
    }
    if (maker->sets >= maker->options->most_states || !append_set(maker)) {
        return -1;
    }
    maker->table[at & last] = maker->sets;
    return maker->sets - 1;
}

static bool add_arc(maker *maker, sl_arc arc) {
    sl_machine *machine = maker->machine;
    if (!sl_builder_grow(maker->builder, &machine->arcs, &machine->arc_capacity,
                         (int64_t)machine->arc_count + 1, sizeof(sl_arc))) {
        return false;
    }
    if (arc.kind == SL_ARC_BYTES && machine->arc_count > machine->first_arc[maker->leaving]) {
        sl_arc *before = &machine->arcs[machine->arc_count - 1];
        if (before->kind == SL_ARC_BYTES && before->target == arc.target && before->last + 1 == arc.first) {
            before->last = arc.last;
            return true;
        }
    }
    machine->arcs[machine->arc_count++] = arc;
    return true;
}

static int compare_arcs(const void *a, const void *b) {
    const sl_arc *left = a, *right = b;
    if (left->kind != right->kind) {
        return left->kind < right->kind ? -1 : 1;
    }
    int64_t x = left->kind == SL_ARC_BYTES ? left->first : left->symbol;
    int64_t y = right->kind == SL_ARC_BYTES ? right->first : right->symbol;
    x = x * INT32_MAX + left->target;
    y = y * INT32_MAX + right->target;
    return x < y ? -1 : x > y;
}

static bool gather(maker *maker, int32_t state) {
    sl_loose_machine *loose = maker->loose;
    for (int32_t a = loose->heads[state]; a >= 0; a = loose->arcs[a].next) {
        if (is_read(maker, &loose->arcs[a].arc)) {
            if (!sl_builder_grow(maker->builder, &maker->gathered, &maker->gathered_capacity,
                                 (int64_t)maker->gathered_count + 1, sizeof(sl_arc))) {
                return false;
            }
            maker->gathered[maker->gathered_count++] = loose->arcs[a].arc;
        }
    }
    return true;
}

/* The set that the found states make once closed, as the target of an arc. */
static int32_t finish_target(maker *maker) {
    return close_set(maker) ? find_set(maker) : -1;
}

static void begin_set(maker *maker) {
    maker->stamp++;
    maker->found_count = 0;
}

/* Arcs of gathered[0 .. count), which read bytes and are sorted by their first one. */
static bool add_byte_arcs(maker *maker, int32_t count) {
    bool cut[257] = {false};
    for (int32_t i = 0; i < count; i++) {
        cut[maker->gathered[i].first] = cut[maker->gathered[i].last + 1] = true;
    }
    int32_t begin = 0; /* no arc before it reaches as far */
    for (int first = 0, last; first < 256; first = last + 1) {
        for (last = first; !cut[last + 1] && last < 255; last++) {
        }
        begin_set(maker);
        bool any = false;
        for (int32_t i = begin; i < count && maker->gathered[i].first <= first; i++) {
            if (maker->gathered[i].last < first) {
                begin += i == begin;
                continue;
            }
            any = true;
            if (!see(maker, maker->gathered[i].target)) {
                return false;
            }
        }
        if (!any) {
            continue;
        }
        int32_t target = finish_target(maker);
        if (target < 0 || !sl_builder_count_work(maker->builder, (uint64_t)(maker->found_count + 1)) ||
            !add_arc(maker, (sl_arc){.kind = SL_ARC_BYTES,
                                     .first = (uint8_t)first,
                                     .last = (uint8_t)last,
                                     .symbol = -1,
                                     .target = target})) {
            return false;
        }
    }
    return true;
}

static bool leave_set(maker *maker, int32_t set) {
    maker->gathered_count = 0;
    for (int32_t i = maker->first_member[set]; i < maker->first_member[set + 1]; i++) {
        if (!gather(maker, maker->members[i])) {
            return false;
        }
    }
    if (maker->gathered_count) {
        qsort(maker->gathered, (size_t)maker->gathered_count, sizeof(sl_arc), compare_arcs);
    }
    int32_t bytes = 0;
    while (bytes < maker->gathered_count && maker->gathered[bytes].kind == SL_ARC_BYTES) {
        bytes++;
    }
    if (!sl_builder_count_work(maker->builder, (uint64_t)maker->gathered_count + 1) ||
        (bytes && !add_byte_arcs(maker, bytes))) {
        return false;
    }
    for (int32_t i = bytes; i < maker->gathered_count;) {
        sl_arc arc = maker->gathered[i];
        begin_set(maker);
        for (; i < maker->gathered_count && maker->gathered[i].symbol == arc.symbol; i++) {
            if (!see(maker, maker->gathered[i].target)) {
                return false;
            }
        }
        arc.target = finish_target(maker);
        if (arc.target < 0 || !add_arc(maker, arc)) {
            return false;
        }
    }
    return true;
}

static bool begin_maker(maker *maker) {
    sl_grammar_builder *builder = maker->builder;
    if (!sl_builder_grow(builder, &maker->stamps, &maker->stamp_capacity, (int64_t)maker->loose->states + 1,
                         sizeof(int32_t))) {
        return false;
    }
    memset(maker->stamps, 0, (size_t)maker->stamp_capacity * sizeof(int32_t));
    begin_set(maker);
    return see(maker, maker->options->start) && close_set(maker);
}

int sl_determinise(sl_loose_machine *loose, const sl_determinise_options *options, sl_machine *machine) {
    maker maker = {.loose = loose, .builder = loose->builder, .options = options, .machine = machine};
    int32_t made = loose->builder->states_made;
    bool fine = begin_maker(&maker) && (options->apart ? append_set(&maker) : find_set(&maker) == 0);
    for (int32_t set = 0; fine && set < maker.sets; set++) {
        machine->first_arc[set] = machine->arc_count;
        maker.leaving = set;
        fine = leave_set(&maker, set);
    }
    if (fine) {
        machine->first_arc[machine->states] = machine->arc_count;
    }
    maker_free(&maker);
    if (fine) {
        return 0;
    }
    sl_machine_free(loose->builder, machine);
    if (loose->builder->error.code) {
        return loose->builder->error.code;
    }
    loose->builder->states_made = made;
    return -1;
}

/* Machine states are loose states, numbered as they are found; state 0 is the start. */
static bool add_loose_state(maker *maker, int32_t *numbers, int32_t state) {
    begin_set(maker);
    if (!see(maker, state) || !close_set(maker)) {
        return false;
    }
    maker->gathered_count = 0;
    bool accepts = false;
    for (int32_t i = 0; i < maker->found_count; i++) {
        accepts |= maker->found[i] == maker->options->accept;
        if (!gather(maker, maker->found[i])) {
            return false;
        }
    }
    sl_machine *machine = maker->machine;
    machine->accepts[maker->leaving] = accepts && !(maker->options->apart && maker->leaving == 0);
    machine->first_arc[maker->leaving] = machine->arc_count;
    for (int32_t i = 0; i < maker->gathered_count; i++) {
        sl_arc arc = maker->gathered[i];
        if (!numbers[arc.target]) {
            /* The list of states to come stands in the members, one for each. */
            maker->found[0] = arc.target;
            maker->found_count = 1;
            numbers[arc.target] = maker->sets + 1;
            if (!append_set(maker)) {
                return false;
            }
        }
        arc.target = numbers[arc.target] - 1;
        if (!sl_builder_grow(maker->builder, &machine->arcs, &machine->arc_capacity,
                             (int64_t)machine->arc_count + 1, sizeof(sl_arc))) {
            return false;
        }
        machine->arcs[machine->arc_count++] = arc;
    }
    if (maker->gathered_count) {
        qsort(machine->arcs + machine->first_arc[maker->leaving], (size_t)maker->gathered_count,
              sizeof(sl_arc), compare_arcs);
    }
    return sl_builder_count_work(maker->builder, (uint64_t)maker->gathered_count + 1);
}

int sl_remove_empty(sl_loose_machine *loose, const sl_determinise_options *options, sl_machine *machine) {
    maker maker = {.loose = loose, .builder = loose->builder, .options = options, .machine = machine};
    int32_t *numbers = NULL, capacity = 0;
    bool fine =
        sl_builder_grow(loose->builder, &numbers, &capacity, (int64_t)loose->states + 1, sizeof(int32_t)) &&
        begin_maker(&maker) &&
        sl_builder_grow(loose->builder, &maker.found, &maker.found_capacity, 1, sizeof(int32_t));
    if (fine) {
        memset(numbers, 0, (size_t)capacity * sizeof(int32_t));
        maker.found[0] = options->start;
        maker.found_count = 1;
        numbers[options->start] = options->apart ? 0 : 1;
        fine = append_set(&maker);
    }
    for (; fine && maker.leaving < maker.sets; maker.leaving++) {
        fine = add_loose_state(&maker, numbers, maker.members[maker.leaving]);
    }
    if (fine) {
        machine->first_arc[machine->states] = machine->arc_count;
    }
    maker_free(&maker);
    sl_builder_drop(loose->builder, numbers, capacity, sizeof(int32_t));
    if (!fine) {
        sl_machine_free(loose->builder, machine);
    }
    return loose->builder->error.code;
}
