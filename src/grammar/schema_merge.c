/* Sets of schemas that hold together, and what they come to once every choice is made. */
#include "grammar/schema_internal.h"

#include <stdlib.h>

enum {
    MOST_LEAVES = 4096, /* of one set: a product of choices grows fast */
    MOST_SETS = 1 << 18
};

/* ---- sets ---- */

static int compare_entries(const void *a, const void *b) {
    const int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;
    return (left > right) - (left < right);
}

static bool set_table_grow(sl_schema_context *c) {
    if ((uint64_t)c->set_count * 2 < c->set_slots) {
        return true;
    }
    const uint32_t slots = c->set_slots ? c->set_slots * 2 : 256;
    int32_t *table = sl_schema_alloc(c, slots, sizeof *table);
    if (!table) {
        return false;
    }
    memset(table, 0xff, slots * sizeof *table);
    for (int32_t i = 0; i < c->set_count; i++) {
        const sl_schema_set *set = &c->sets[i];
        uint32_t at = (uint32_t)sl_hash64(set->entries, (size_t)set->count * sizeof *set->entries, 0);
        while (table[at & (slots - 1)] >= 0) {
            at++;
        }
        table[at & (slots - 1)] = i;
    }
    c->set_table = table;
    c->set_slots = slots;
    return true;
}

/* What tidy leaves, in the order in which it was met. */
static int32_t *met_order(sl_schema_context *c, const int32_t *entries, int32_t count) {
    int32_t *order = sl_schema_alloc(c, (uint64_t)count + 1, sizeof *order);
    int32_t kept = 0;
    for (int32_t i = 0; order && i < count; i++) {
        bool again = entries[i] == SL_ENTRY_TRUE;
        for (int32_t at = 0; at < kept && !again; at++) {
            again = order[at] == entries[i];
        }
        if (!sl_schema_step(c, 1 + (uint64_t)kept / 16, entries[i])) {
            return NULL;
        }
        if (!again) {
            order[kept++] = entries[i];
        }
    }
    return order;
}

/* Ascending, each once; without TRUE, and FALSE alone. */
static int32_t tidy(int32_t *entries, int32_t count) {
    int32_t kept = 0;
    qsort(entries, (size_t)count, sizeof *entries, compare_entries);
    for (int32_t i = 0; i < count; i++) {
        if (entries[i] == SL_ENTRY_FALSE) {
            entries[0] = SL_ENTRY_FALSE;
            return 1;
        }
        if (entries[i] != SL_ENTRY_TRUE && (kept == 0 || entries[kept - 1] != entries[i])) {
            entries[kept++] = entries[i];
        }
    }
    return kept;
}

int32_t sl_schema_set_of(sl_schema_context *c, int32_t *entries, int32_t count) {
    if (c->code || !set_table_grow(c)) {
        return -1;
    }
    int32_t *order = met_order(c, entries, count);
    if (!order) {
        return -1;
    }
    count = count ? tidy(entries, count) : 0;
    if (count == 1) {
        order[0] = entries[0];
    }
    const size_t bytes = (size_t)count * sizeof *entries;
    uint32_t at = (uint32_t)sl_hash64(entries, bytes, 0);
    for (; c->set_table[at & (c->set_slots - 1)] >= 0; at++) {
        const sl_schema_set *set = &c->sets[c->set_table[at & (c->set_slots - 1)]];
        if (set->count == count && (count == 0 || memcmp(set->entries, entries, bytes) == 0)) {
            return c->set_table[at & (c->set_slots - 1)];
        }
    }
    if (c->set_count == MOST_SETS) {
        sl_schema_refuse(c, SL_ERR_LIMIT, count ? entries[0] : -1, NULL, "too many combinations of schemas");
        return -1;
    }
    if (!sl_schema_grow(c, (void **)&c->sets, c->set_count, &c->set_capacity, sizeof *c->sets)) {
        return -1;
    }
    sl_schema_set *set = &c->sets[c->set_count];
    *set = (sl_schema_set){.count = count, .order = order, .rule = -1, .expression = SL_NO_EXPRESSION};
    if (count && !(set->entries = sl_schema_alloc(c, (uint64_t)count, sizeof *entries))) {
        return -1;
    }
    if (count) {
        memcpy(set->entries, entries, bytes);
    }
    c->set_table[at & (c->set_slots - 1)] = c->set_count;
    return c->set_count++;
}

bool sl_schema_set_has(const sl_schema_context *c, int32_t set, int32_t entry) {
    for (int32_t i = 0; i < c->sets[set].count; i++) {
        if (c->sets[set].entries[i] == entry) {
            return true;
        }
    }
    return false;
}

/* ---- expansion ---- */

/* An entry that holds, and why: because the one at `because` does (-1: it is of the set). */
typedef struct reason {
    int32_t entry, because;
} reason;

typedef struct open_group {
    const sl_schema_group *group;
    int32_t of; /* the reason that has it */
} open_group;

/* One way through the choices, as far as it is gone. Copied where a choice is made. */
typedef struct way {
    reason *reasons;
    open_group *groups;
    int32_t reason_count, reason_capacity, done; /* reasons before `done` are in */
    int32_t group_count, group_capacity, group_done;
    uint8_t types;
} way;

static bool way_add(sl_schema_context *c, way *w, int32_t entry, int32_t because) {
    for (int32_t at = because; at >= 0; at = w->reasons[at].because) {
        if (w->reasons[at].entry == entry) {
            sl_schema_refuse(c, SL_ERR_INVALID, entry, NULL,
                             "refers to itself with nothing in between, so that it says nothing");
            return false;
        }
    }
    if (entry == SL_ENTRY_TRUE) {
        return true;
    }
    for (int32_t i = 0; i < w->reason_count; i++) {
        if (w->reasons[i].entry == entry) {
            return true;
        }
    }
    if (!sl_schema_grow(c, (void **)&w->reasons, w->reason_count, &w->reason_capacity, sizeof *w->reasons)) {
        return false;
    }
    w->reasons[w->reason_count++] = (reason){entry, because};
    return sl_schema_step(c, 1 + (uint64_t)w->reason_count / 16, entry);
}

/* Takes in all that holds without a choice. */
static bool way_close(sl_schema_context *c, way *w) {
    for (; w->done < w->reason_count; w->done++) {
        const sl_schema_node *node = sl_schema_read(c, w->reasons[w->done].entry);
        if (!node) {
            return false;
        }
        w->types &= node->types;
        for (int32_t i = 0; i < node->all_count; i++) {
            if (!way_add(c, w, node->all[i], w->done)) {
                return false;
            }
        }
        for (const sl_schema_group *group = node->groups; group; group = group->next) {
            if (!sl_schema_grow(c, (void **)&w->groups, w->group_count, &w->group_capacity,
                                sizeof *w->groups)) {
                return false;
            }
            w->groups[w->group_count++] = (open_group){group, w->done};
        }
    }
    return true;
}

static bool way_copy(sl_schema_context *c, const way *from, way *to) {
    *to = *from;
    to->reason_capacity = from->reason_count + 4;
    to->group_capacity = from->group_count + 4;
    to->reasons = sl_schema_alloc(c, (uint64_t)to->reason_capacity, sizeof *to->reasons);
    to->groups = sl_schema_alloc(c, (uint64_t)to->group_capacity, sizeof *to->groups);
    if (!to->reasons || !to->groups) {
        return false;
    }
    memcpy(to->reasons, from->reasons, (size_t)from->reason_count * sizeof *to->reasons);
    if (from->group_count) {
        memcpy(to->groups, from->groups, (size_t)from->group_count * sizeof *to->groups);
    }
    return true;
}

/* Reasons with what follows from each right behind it: as a reader of the schema would meet them. */
static bool reading_order(sl_schema_context *c, const way *w, int32_t *order) {
    const size_t count = (size_t)w->reason_count;
    int32_t *heads = sl_schema_alloc(c, count * 2 + 1, sizeof *heads),
            *next = heads ? heads + count + 1 : NULL;
    int32_t *stack = sl_schema_alloc(c, count * 2 + 2, sizeof *stack), open = 0, done = 0;
    if (!heads || !stack) {
        return false;
    }
    memset(heads, 0xff, (count * 2 + 1) * sizeof *heads);
    for (int32_t i = w->reason_count - 1; i >= 0;
         i--) { /* lists of what follows from each; 0: from nothing */
        const int32_t list = w->reasons[i].because + 1;
        next[i] = heads[list];
        heads[list] = i;
    }
    stack[open++] = heads[0];
    while (open > 0) {
        const int32_t at = stack[--open];
        if (at >= 0) {
            order[done++] = at;
            stack[open++] = next[at];
            stack[open++] = heads[at + 1];
        }
    }
    return true;
}

/* What holds so far. */
static bool make_leaf(sl_schema_context *c, const way *w, sl_schema_leaf *leaf) {
    *leaf = (sl_schema_leaf){.types = w->types};
    leaf->nodes = sl_schema_alloc(c, (uint64_t)w->reason_count + 1, sizeof *leaf->nodes);
    int32_t *order = sl_schema_alloc(c, (uint64_t)w->reason_count + 1, sizeof *order);
    if (!leaf->nodes || !order || !reading_order(c, w, order)) {
        return false;
    }
    for (int32_t i = 0; i < w->reason_count; i++) {
        sl_schema_node *node = sl_schema_read(c, w->reasons[order[i]].entry);
        if (node && node->asserts) {
            leaf->nodes[leaf->count++] = node;
        }
    }
    return !c->code;
}

static bool add_leaf(sl_schema_context *c, const way *w, sl_schema_leaf leaf, sl_schema_leaves *leaves) {
    for (int32_t i = 0; i < leaves->count; i++) {
        if (leaves->rows[i].count == leaf.count &&
            memcmp(leaves->rows[i].nodes, leaf.nodes, (size_t)leaf.count * sizeof *leaf.nodes) == 0) {
            return true;
        }
    }
    if (leaves->count == MOST_LEAVES) {
        sl_schema_refuse(c, SL_ERR_LIMIT, w->reasons[0].entry, NULL,
                         "more than %d combinations of anyOf and oneOf hold together", MOST_LEAVES);
        return false;
    }
    if (!sl_schema_grow(c, (void **)&leaves->rows, leaves->count, &leaves->capacity, sizeof leaf)) {
        return false;
    }
    leaves->rows[leaves->count++] = leaf;
    return true;
}

/* Whether both can hold; two of a oneOf. */
static bool overlap(sl_schema_context *c, int32_t a, int32_t b) {
    int32_t pair[2] = {a, b};
    const int32_t set = sl_schema_set_of(c, pair, 2);
    return set >= 0 && !sl_schema_is_empty(c, set, 4);
}

/* oneOf as a choice: where branches overlap, each without those that it overlaps with. */
static const sl_schema_group *exclusive(sl_schema_context *c, const sl_schema_group *group, int32_t near) {
    sl_schema_group *made = sl_schema_alloc(c, 1, sizeof *made);
    int32_t *parts = sl_schema_alloc(c, (uint64_t)group->count, sizeof *parts);
    if (group->exclusive || !made || !parts) {
        return made && parts ? group->exclusive : NULL;
    }
    *made = *group;
    made->exactly_one = false;
    made->entries = sl_schema_alloc(c, (uint64_t)group->count, sizeof *made->entries);
    if (!made->entries) {
        return NULL;
    }
    for (int32_t i = 0; i < group->count; i++) {
        int32_t count = 0;
        parts[count++] = group->entries[i];
        for (int32_t j = 0; j < group->count && !c->code; j++) {
            if (i != j && overlap(c, group->entries[i], group->entries[j])) {
                parts[count++] = sl_schema_negation(c, group->entries[j]);
            }
        }
        made->entries[i] = count == 1 ? group->entries[i] : sl_schema_all_of(c, near, parts, count);
        if (c->code || made->entries[i] < 0) {
            return NULL;
        }
    }
    ((sl_schema_group *)group)->exclusive = made;
    return made;
}

typedef struct expansion {
    sl_schema_context *c;
    sl_schema_leaves *leaves;
    bool relaxed;
} expansion;

static bool leaf_is_empty(sl_schema_context *c, const sl_schema_leaf *leaf, int depth);

/* As deep as there are groups on one way; way_add's steps bound it, and so does this. */
static bool expand_way(expansion *e, way *w, int depth) {
    sl_schema_context *c = e->c;
    if (!way_close(c, w)) {
        return false;
    }
    if (w->types == 0) {
        return true;
    }
    sl_schema_leaf leaf;
    if ((w->group_done > 0 || w->group_done == w->group_count) && !make_leaf(c, w, &leaf)) {
        return false;
    }
    if (w->group_done > 0 && c->looking < 2) { /* a way that ends early costs no product */
        c->looking++;
        const bool empty = leaf_is_empty(c, &leaf, 2);
        c->looking--;
        if (empty || c->code) {
            return !c->code;
        }
    }
    if (w->group_done == w->group_count) {
        return add_leaf(c, w, leaf, e->leaves);
    }
    const open_group open = w->groups[w->group_done++];
    const sl_schema_group *group = open.group;
    if (depth == 0) {
        sl_schema_refuse(c, SL_ERR_LIMIT, w->reasons[open.of].entry, group->keyword,
                         "too many choices hold together");
        return false;
    }
    if (group->exactly_one && !e->relaxed) {
        group = exclusive(c, group, w->reasons[open.of].entry);
        if (!group) {
            return false;
        }
    }
    for (int32_t i = 0; i < group->count; i++) {
        way next;
        if (!way_copy(c, w, &next) || !way_add(c, &next, group->entries[i], open.of) ||
            !expand_way(e, &next, depth - 1)) {
            return false;
        }
    }
    return true;
}

const sl_schema_leaves *sl_schema_expand(sl_schema_context *c, int32_t set, bool relaxed) {
    enum { DEEPEST = 200 };
    if (c->code) {
        return NULL;
    }
    if (c->sets[set].leaves[relaxed]) {
        return c->sets[set].leaves[relaxed];
    }
    way w = {.types = SL_TYPE_ANY};
    expansion e = {c, sl_schema_alloc(c, 1, sizeof *e.leaves), relaxed};
    if (!e.leaves) {
        return NULL;
    }
    for (int32_t i = 0; i < c->sets[set].count; i++) {
        if (!way_add(c, &w, c->sets[set].order[i], -1)) {
            return NULL;
        }
    }
    if (!expand_way(&e, &w, DEEPEST)) {
        return NULL;
    }
    c->sets[set].leaves[relaxed] = e.leaves;
    return e.leaves;
}

/* ---- parts of a leaf ---- */

static bool collect(sl_schema_context *c, int32_t **list, int32_t *count, int32_t *capacity, int32_t entry) {
    if (!sl_schema_grow(c, (void **)list, *count, capacity, sizeof **list)) {
        return false;
    }
    (*list)[(*count)++] = entry;
    return true;
}

int32_t sl_schema_key_set(sl_schema_context *c, const sl_schema_leaf *leaf, const char *key) {
    int32_t *list = NULL, count = 0, capacity = 0;
    for (int32_t i = 0; i < leaf->count; i++) {
        const sl_schema_node *node = leaf->nodes[i];
        bool known = false;
        if (!sl_schema_step(c, 1 + (uint64_t)node->property_count / 8, node->entry)) {
            return -1;
        }
        for (int32_t at = 0; at < node->property_count; at++) {
            if (strcmp(node->properties[at].key, key) == 0) {
                known = true;
                if (!collect(c, &list, &count, &capacity, node->properties[at].entry)) {
                    return -1;
                }
            }
        }
        for (int32_t at = 0; at < node->pattern_count; at++) {
            const sl_text_rule rule = sl_schema_key_rule(node->patterns[at].key, node->entry);
            const int matches = sl_schema_text_matches(c, &rule, key);
            known = known || matches > 0;
            if (matches < 0 || (matches && !collect(c, &list, &count, &capacity, node->patterns[at].entry))) {
                return -1;
            }
        }
        if (!known && node->additional >= 0 && !collect(c, &list, &count, &capacity, node->additional)) {
            return -1;
        }
        if (node->names >= 0) {
            json_t *name = json_string(key);
            const int accepted = name ? sl_schema_accepts(c, node->names, name, 32) : 0;
            json_decref(name);
            if (accepted < 0 || (!accepted && !collect(c, &list, &count, &capacity, SL_ENTRY_FALSE))) {
                return -1;
            }
        }
    }
    return sl_schema_set_of(c, list, count);
}

int32_t sl_schema_item_set(sl_schema_context *c, const sl_schema_leaf *leaf, int32_t index) {
    int32_t *list = NULL, count = 0, capacity = 0;
    for (int32_t i = 0; i < leaf->count; i++) {
        const sl_schema_node *node = leaf->nodes[i];
        const int32_t entry = index < node->prefix_count ? node->prefix[index] : node->items;
        if (entry >= 0 && !collect(c, &list, &count, &capacity, entry)) {
            return -1;
        }
    }
    return sl_schema_set_of(c, list, count);
}

/* ---- emptiness ---- */

/* None of null, true and false. */
static bool no_word(sl_schema_context *c, const sl_schema_leaf *leaf) {
    json_t *const words[] = {json_null(), json_true(), json_false()};
    for (int i = 0; i < 3; i++) {
        int accepted = leaf->types & (i ? SL_TYPE_BOOLEAN : SL_TYPE_NULL);
        for (int32_t at = 0; accepted > 0 && at < leaf->count; at++) {
            accepted = sl_schema_node_accepts(c, leaf->nodes[at], words[i], 1);
        }
        if (accepted) {
            return false;
        }
    }
    return true;
}

static bool no_string(sl_schema_context *c, const sl_schema_leaf *leaf) {
    int64_t least = 0, most = -1;
    int32_t texts = 0;
    for (int32_t i = 0; i < leaf->count; i++) {
        const sl_schema_node *node = leaf->nodes[i];
        least = node->min_length > least ? node->min_length : least;
        most = node->max_length >= 0 && (most < 0 || node->max_length < most) ? node->max_length : most;
        texts += node->text_count + (node->forbidden != NULL);
    }
    if (most >= 0 && least > most) {
        return true;
    }
    return texts > 1 && sl_expression_is_nothing(c->builder, sl_schema_string_body(c, leaf));
}

static bool no_array(sl_schema_context *c, const sl_schema_leaf *leaf, int depth) {
    enum { MOST = 64 };
    int64_t least = 0, most = -1, prefix = 0;
    for (int32_t i = 0; i < leaf->count; i++) {
        const sl_schema_node *node = leaf->nodes[i];
        least = node->min_items > least ? node->min_items : least;
        most = node->max_items >= 0 && (most < 0 || node->max_items < most) ? node->max_items : most;
        prefix = node->prefix_count > prefix ? node->prefix_count : prefix;
    }
    if (most >= 0 && least > most) {
        return true;
    }
    for (int64_t i = 0; i < least && i <= prefix && i < MOST; i++) {
        const int32_t set = sl_schema_item_set(c, leaf, (int32_t)i);
        if (set < 0 || sl_schema_is_empty(c, set, depth - 1)) {
            return set >= 0;
        }
    }
    return false;
}

static bool no_object(sl_schema_context *c, const sl_schema_leaf *leaf, int depth) {
    int64_t least = 0, most = -1;
    for (int32_t i = 0; i < leaf->count; i++) {
        const sl_schema_node *node = leaf->nodes[i];
        least = node->min_properties > least ? node->min_properties : least;
        most = node->max_properties >= 0 && (most < 0 || node->max_properties < most) ? node->max_properties
                                                                                      : most;
        for (int32_t at = 0; at < node->required_count; at++) {
            const int32_t set = sl_schema_key_set(c, leaf, node->required[at]);
            if (set < 0 || sl_schema_is_empty(c, set, depth - 1)) {
                return set >= 0;
            }
        }
    }
    return most >= 0 && least > most;
}

static bool leaf_is_empty(sl_schema_context *c, const sl_schema_leaf *leaf, int depth) {
    if (sl_schema_has_values(leaf)) {
        json_t *values = sl_schema_candidates(c, leaf);
        const bool none = values && json_array_size(values) == 0;
        json_decref(values);
        return none;
    }
    const uint8_t types = leaf->types;
    sl_bound lower, upper;
    return no_word(c, leaf) && (!(types & SL_TYPE_NUMBER) || !sl_schema_bounds(leaf, &lower, &upper)) &&
           (!(types & SL_TYPE_STRING) || no_string(c, leaf)) &&
           (!(types & SL_TYPE_ARRAY) || no_array(c, leaf, depth)) &&
           (!(types & SL_TYPE_OBJECT) || no_object(c, leaf, depth));
}

bool sl_schema_is_empty(sl_schema_context *c, int32_t set, int depth) {
    if (depth <= 0 || c->code) {
        return false;
    }
    if (c->sets[set].count == 1 && c->sets[set].entries[0] == SL_ENTRY_FALSE) {
        return true;
    }
    const sl_schema_leaves *leaves = sl_schema_expand(c, set, true);
    for (int32_t i = 0; leaves && i < leaves->count; i++) {
        if (!leaf_is_empty(c, &leaves->rows[i], depth) || c->code) {
            return false;
        }
    }
    return leaves && !c->code;
}
