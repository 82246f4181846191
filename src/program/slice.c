/* Parts of a program, for devices that run it one after the other. */
#include "base/alloc.h"
#include "base/checked.h"
#include "program/program.h"

#include <string.h>

int32_t sl_program_layers(const sl_program *program) {
    int32_t layers = 0;
    for (int32_t i = 0; i < program->op_count; i++) {
        layers = program->ops[i].layer >= layers ? program->ops[i].layer + 1 : layers;
    }
    return layers;
}

int32_t sl_program_layer_begin(const sl_program *program, int32_t layer) {
    int32_t last = SL_NONE;
    for (int32_t i = 0; i < program->op_count; i++) {
        if (program->ops[i].layer >= layer) {
            return i;
        }
        last = program->ops[i].layer >= 0 ? i : last;
    }
    return last + 1;
}

/* ---- what ops read and write, column by column ---- */

/* Columns of all values, value after value. */
typedef struct columns {
    uint64_t *starts; /* [value_count + 1] */
    sl_arena arena;
} columns;

static bool number_columns(const sl_program *program, columns *c) {
    c->starts = sl_arena_alloc(&c->arena, (size_t)program->value_count + 1, sizeof *c->starts);
    uint64_t total = 0;
    for (int32_t v = 0; c->starts && v < program->value_count; v++) {
        c->starts[v] = total;
        total += (uint64_t)program->values[v].width;
    }
    if (c->starts) {
        c->starts[program->value_count] = total;
    }
    return c->starts != NULL;
}

typedef struct stretch {
    uint64_t first, count;
    bool whole; /* written without gaps */
} stretch;

/* What op `o` writes as its output `out`: returns how many stretches, at most SL_LINEAR_SEGMENTS. */
static int32_t written_by(const sl_program *program, const columns *c, const sl_op *o, int out,
                          stretch list[SL_LINEAR_SEGMENTS]) {
    const sl_operand at = o->out[out];
    if (at.value == SL_NONE) {
        return 0;
    }
    const uint64_t first = c->starts[at.value] + (uint64_t)at.column;
    if (o->kind != SL_OP_LINEAR) {
        /* With gaps between its groups an op does not write all that its width spans. */
        const bool gaps = o->kind == SL_OP_RMSNORM && o->u.rmsnorm.stride != o->u.rmsnorm.width;
        list[0] = (stretch){first, (uint64_t)sl_operand_width(program, o, true, out), !gaps};
        return 1;
    }
    for (int32_t s = 0; s < o->u.linear.segment_count; s++) {
        const sl_linear_segment *segment = &o->u.linear.segments[s];
        list[s] = (stretch){first + (uint64_t)segment->column,
                            (uint64_t)program->weights[segment->weight].rows, true};
    }
    return o->u.linear.segment_count;
}

/* `needed` is what ops behind `o` read before they write it; becomes what `o` and they do. */
static void need_before(const sl_program *program, const columns *c, const sl_op *o, bool reads,
                        unsigned char *needed) {
    stretch list[SL_LINEAR_SEGMENTS];
    for (int out = 0; out < SL_OP_OUTPUTS; out++) {
        const int32_t count = written_by(program, c, o, out, list);
        for (int32_t i = 0; i < count; i++) {
            if (list[i].whole) {
                memset(needed + list[i].first, false, (size_t)list[i].count);
            }
        }
    }
    for (int in = 0; in < SL_OP_INPUTS && reads; in++) {
        if (o->in[in].value != SL_NONE) {
            memset(needed + c->starts[o->in[in].value] + o->in[in].column, true,
                   (size_t)sl_operand_width(program, o, false, in));
        }
    }
}

static void note_writer(const sl_program *program, const columns *c, int32_t op, int32_t *writers) {
    stretch list[SL_LINEAR_SEGMENTS];
    for (int out = 0; out < SL_OP_OUTPUTS; out++) {
        const int32_t count = written_by(program, c, &program->ops[op], out, list);
        for (int32_t i = 0; i < count; i++) {
            for (uint64_t k = 0; k < list[i].count; k++) {
                writers[list[i].first + k] = op;
            }
        }
    }
}

/* ---- where a program may be cut ---- */

/* The cache layer or recurrent state that an op touches: false when it has none. */
static bool place_of(const sl_op *op, sl_cache_place *place) {
    if (op->kind == SL_OP_CACHE_WRITE || op->kind == SL_OP_ATTENTION) {
        *place = op->kind == SL_OP_ATTENTION ? op->u.attention.place : op->u.cache_write.place;
        return true;
    }
    return false;
}

static int32_t state_of(const sl_op *op) {
    return op->kind == SL_OP_CONV         ? op->u.conv.state
           : op->kind == SL_OP_DELTA_SCAN ? op->u.delta_scan.state
           : op->kind == SL_OP_SSM_SCAN   ? op->u.ssm_scan.state
                                          : SL_NONE;
}

static bool touch_alike(const sl_op *a, const sl_op *b) {
    sl_cache_place left, right;
    if (place_of(a, &left) && place_of(b, &right)) {
        return left.group == right.group && left.layer == right.layer;
    }
    return state_of(a) != SL_NONE && state_of(a) == state_of(b);
}

static const char no_memory_reason[] = "out of memory";

/* One owner for each cache layer and each state. */
static const char *check_places(const sl_program *program, const int32_t *owners) {
    for (int32_t i = 0; i < program->op_count; i++) {
        for (int32_t k = i + 1; k < program->op_count; k++) {
            if (owners[i] != owners[k] && touch_alike(&program->ops[i], &program->ops[k])) {
                return "layers on both sides share a cache";
            }
        }
    }
    return NULL;
}

/* ---- sections and borders ---- */

typedef struct cutting {
    const sl_program *program;
    const int32_t *owners;
    sl_partition *partition;
    columns columns;
    unsigned char **needs; /* [section_count]: what its part reads from there on before it is written */
    int32_t *writers;      /* per column: the op that wrote it last */
} cutting;

static bool list_sections(cutting *c) {
    const sl_program *program = c->program;
    sl_partition *p = c->partition;
    int32_t *numbers = sl_arena_alloc(&c->columns.arena, (size_t)p->parts, sizeof *numbers);
    p->sections = sl_arena_alloc(&p->arena, (size_t)program->op_count + 1, sizeof *p->sections);
    for (int32_t i = 0; numbers && p->sections && i < program->op_count; i++) {
        if (i == 0 || c->owners[i] != c->owners[i - 1]) {
            const int32_t part = c->owners[i];
            p->sections[p->section_count++] = (sl_section){part, numbers[part]++, i, i};
        }
        p->sections[p->section_count - 1].end = i + 1;
    }
    return numbers && p->sections;
}

static const char *find_needs(cutting *c) {
    const sl_partition *p = c->partition;
    const size_t total = (size_t)c->columns.starts[c->program->value_count];
    unsigned char *needed = sl_alloc_zero(total + 1, 1);
    for (int32_t part = 0; needed && part < p->parts; part++) {
        memset(needed, false, total);
        for (int32_t s = p->section_count - 1; s >= 0; s--) {
            const sl_section *section = &p->sections[s];
            for (int32_t i = section->end - 1; i >= section->first; i--) {
                need_before(c->program, &c->columns, &c->program->ops[i], section->part == part, needed);
            }
            if (section->part == part && section->first > 0) {
                c->needs[s] = sl_arena_alloc(&c->columns.arena, total + 1, 1);
                if (!c->needs[s]) {
                    sl_free(needed);
                    return no_memory_reason;
                }
                memcpy(c->needs[s], needed, total);
            }
        }
    }
    sl_free(needed);
    return needed ? NULL : no_memory_reason;
}

/* Who wrote, behind op `since`, what the section needs of a value: its last op; SL_NONE: nobody did. */
static const char *find_source(const cutting *c, int32_t section, int32_t value, int32_t since,
                               int32_t *source) {
    int32_t last = SL_NONE;
    bool mixed = false;
    for (uint64_t at = c->columns.starts[value]; at < c->columns.starts[value + 1]; at++) {
        if (c->needs[section][at] && c->writers[at] >= since) {
            mixed = mixed || (last != SL_NONE && c->owners[last] != c->owners[c->writers[at]]);
            last = c->writers[at] > last ? c->writers[at] : last;
        }
    }
    for (uint64_t at = c->columns.starts[value]; last != SL_NONE && at < c->columns.starts[value + 1]; at++) {
        const int32_t writer = c->writers[at];
        mixed = mixed || (c->needs[section][at] && writer != SL_NONE && c->owners[writer] != c->owners[last]);
    }
    *source = last;
    return mixed ? "what is needed behind it was computed on both sides" : NULL;
}

static int32_t last_section_of(const sl_partition *p, int32_t part, int32_t before) {
    int32_t number = SL_NONE;
    for (int32_t s = 0; s < before; s++) {
        number = p->sections[s].part == part ? p->sections[s].number : number;
    }
    return number;
}

/* What comes over the border in front of a section; `since`: the end of its part's section before. */
static const char *cross(cutting *c, int32_t s, int32_t since, int32_t *given) {
    sl_partition *p = c->partition;
    const sl_section *section = &p->sections[s];
    const int32_t before = p->border_count;
    for (int32_t v = 0; v < c->program->value_count; v++) {
        int32_t source;
        const char *reason = find_source(c, s, v, since, &source);
        if (!reason && source == SL_NONE) {
            continue;
        }
        const sl_value *value = &c->program->values[v];
        if (!reason && (value->type != SL_VALUE_F32 || value->rows != SL_ROWS_STEP)) {
            reason = "what is needed behind it has no row for each row of the step";
        }
        if (reason) {
            return reason;
        }
        const int32_t from = c->owners[source];
        p->borders[p->border_count++] = (sl_border){section->part,
                                                    section->number,
                                                    from,
                                                    last_section_of(p, from, s),
                                                    v,
                                                    c->program->value_count + given[section->part]++};
    }
    return section->number > 0 && p->border_count == before ? "nothing is needed behind it" : NULL;
}

static const char *find_borders(cutting *c) {
    sl_partition *p = c->partition;
    const uint64_t total = c->columns.starts[c->program->value_count];
    int32_t *given = sl_arena_alloc(&c->columns.arena, (size_t)p->parts, sizeof *given);
    int32_t *ends = sl_arena_alloc(&c->columns.arena, (size_t)p->parts, sizeof *ends);
    c->writers = sl_arena_alloc(&c->columns.arena, (size_t)total + 1, sizeof *c->writers);
    p->borders = sl_arena_alloc(&p->arena, (size_t)p->section_count * (size_t)c->program->value_count + 1,
                                sizeof *p->borders);
    if (!given || !ends || !c->writers || !p->borders) {
        return no_memory_reason;
    }
    for (uint64_t i = 0; i < total; i++) {
        c->writers[i] = SL_NONE;
    }
    for (int32_t s = 0; s < p->section_count; s++) {
        const sl_section *section = &p->sections[s];
        const char *reason = section->first > 0 ? cross(c, s, ends[section->part], given) : NULL;
        if (reason) {
            return reason;
        }
        for (int32_t i = section->first; i < section->end; i++) {
            note_writer(c->program, &c->columns, i, c->writers);
        }
        ends[section->part] = section->end;
    }
    return NULL;
}

static const char *divide(const sl_program *program, const int32_t *owners, int32_t parts,
                          sl_partition *partition) {
    cutting c = {.program = program, .owners = owners, .partition = partition};
    partition->parts = parts;
    const char *reason = check_places(program, owners);
    if (!reason && (!number_columns(program, &c.columns) || !list_sections(&c))) {
        reason = no_memory_reason;
    }
    if (!reason) {
        c.needs = sl_arena_alloc(&c.columns.arena, (size_t)partition->section_count + 1, sizeof *c.needs);
        reason = c.needs ? find_needs(&c) : no_memory_reason;
    }
    reason = reason ? reason : find_borders(&c);
    sl_arena_free(&c.columns.arena);
    return reason;
}

int sl_program_partition(const sl_program *program, const int32_t *owners, int32_t parts,
                         sl_partition *partition, sl_error *error) {
    const char *reason = divide(program, owners, parts, partition);
    return !reason                      ? 0
           : reason == no_memory_reason ? sl_fail(error, SL_ERR_NOMEM, "%s", reason)
                                        : sl_fail(error, SL_ERR_UNSUPPORTED, "no border there: %s", reason);
}

void sl_partition_free(sl_partition *partition) {
    sl_arena_free(&partition->arena);
    memset(partition, 0, sizeof *partition);
}

const char *sl_program_cut_declines(const sl_program *program, int32_t op) {
    sl_partition partition = {0};
    int32_t *owners = sl_alloc_zero((size_t)program->op_count + 1, sizeof *owners);
    for (int32_t i = op > 0 ? op : 0; owners && i < program->op_count; i++) {
        owners[i] = 1;
    }
    const char *reason = owners ? divide(program, owners, 2, &partition) : no_memory_reason;
    sl_partition_free(&partition);
    sl_free(owners);
    return reason;
}

bool sl_program_is_expert(const sl_program *program, const sl_op *op) {
    bool found = op->kind == SL_OP_ROUTER || op->kind == SL_OP_COMBINE;
    for (int i = 0; i < SL_OP_INPUTS && !found; i++) {
        found = op->in[i].value != SL_NONE && program->values[op->in[i].value].rows == SL_ROWS_EXPERT;
    }
    for (int i = 0; i < SL_OP_OUTPUTS && !found; i++) {
        found = op->out[i].value != SL_NONE && program->values[op->out[i].value].rows == SL_ROWS_EXPERT;
    }
    return found;
}

/* ---- a part ---- */

static int no_memory(sl_error *error) {
    return sl_fail(error, SL_ERR_NOMEM, "out of memory for a part of a program");
}

/* Layers of groups and states that the part touches, numbered anew; its ops say the new numbers. */
static void number_places(sl_program *part, int32_t *layers) {
    int32_t counts[SL_CACHE_GROUPS] = {0}, first[SL_CACHE_GROUPS], total = 0;
    for (int32_t g = 0; g < part->group_count; g++) {
        first[g] = total;
        total += part->groups[g].layers;
    }
    for (int32_t i = 0; i < total; i++) {
        layers[i] = SL_NONE;
    }
    for (int32_t i = 0; i < part->op_count; i++) {
        sl_op *op = &part->ops[i];
        sl_cache_place place;
        if (!place_of(op, &place)) {
            continue;
        }
        int32_t *number = &layers[first[place.group] + place.layer];
        *number = *number == SL_NONE ? counts[place.group]++ : *number;
        place.layer = *number;
        if (op->kind == SL_OP_ATTENTION) {
            op->u.attention.place = place;
        } else {
            op->u.cache_write.place = place;
        }
    }
    for (int32_t g = 0; g < part->group_count; g++) {
        part->groups[g].layers = counts[g];
    }
}

/* A layer that the part does not touch takes no bytes of a slot. */
static void place_states(const sl_program *program, sl_program *part) {
    part->state_bytes = 0;
    for (int32_t s = 0; s < part->state_count; s++) {
        sl_state_layer *state = &part->states[s];
        const uint64_t begin = program->states[s].conv_offset, end = s + 1 < program->state_count
                                                                         ? program->states[s + 1].conv_offset
                                                                         : program->state_bytes;
        bool touched = false;
        for (int32_t i = 0; i < part->op_count && !touched; i++) {
            touched = state_of(&part->ops[i]) == s;
        }
        state->conv_offset = touched ? part->state_bytes : 0;
        state->delta_offset = touched ? part->state_bytes + (program->states[s].delta_offset - begin) : 0;
        part->state_bytes += touched ? end - begin : 0;
    }
}

static bool writes_value(const sl_program *part, int32_t value) {
    for (int32_t i = 0; value != SL_NONE && i < part->op_count; i++) {
        for (int o = 0; o < SL_OP_OUTPUTS; o++) {
            if (part->ops[i].out[o].value == value) {
                return true;
            }
        }
    }
    return false;
}

/* A TRANSFER for each value that comes over the border in front of a section. */
static int add_front(const sl_program *program, const sl_section *section, sl_program *part,
                     sl_error *error) {
    const sl_partition *partition = part->partition;
    for (int32_t i = 0; i < partition->border_count; i++) {
        const sl_border *border = &partition->borders[i];
        if (border->part != section->part || border->section != section->number) {
            continue;
        }
        const sl_value *value = &program->values[border->value];
        const char *name = sl_arena_printf(&part->arena, "%s.border", value->name);
        const sl_value same = {.name = name,
                               .type = SL_VALUE_F32,
                               .rows = SL_ROWS_STEP,
                               .width = value->width,
                               .tail = value->tail};
        const int32_t given = name ? sl_program_typed_value(part, &same) : SL_NONE;
        sl_op *op = given == SL_NONE ? NULL : sl_program_op(part, SL_OP_TRANSFER, SL_NONE);
        if (!op) {
            return no_memory(error);
        }
        if (given != border->given) {
            return sl_fail(error, SL_ERR_INTERNAL, "part %d: its borders are out of order", section->part);
        }
        op->in[0] = (sl_operand){given, 0};
        op->out[0] = (sl_operand){border->value, 0};
        op->u.transfer.width = value->width;
        op->u.transfer.section = section->number;
    }
    return 0;
}

static int copy_ops(const sl_program *program, const sl_section *section, sl_program *part, sl_error *error) {
    for (int32_t i = section->first; i < section->end; i++) {
        sl_op *op = sl_program_op(part, program->ops[i].kind, program->ops[i].layer);
        if (!op) {
            return no_memory(error);
        }
        *op = program->ops[i];
    }
    return 0;
}

/* Every part begins with a BEGIN of its own. */
static int add_sections(const sl_program *program, sl_program *part, sl_error *error) {
    const sl_partition *partition = part->partition;
    const bool is_first = partition->sections[0].part == part->part;
    int code = is_first || sl_program_op(part, SL_OP_BEGIN, SL_NONE) ? 0 : no_memory(error);
    for (int32_t s = 0; s < partition->section_count && code == 0; s++) {
        if (partition->sections[s].part == part->part) {
            code = add_front(program, &partition->sections[s], part, error);
            code = code ? code : copy_ops(program, &partition->sections[s], part, error);
        }
    }
    return code;
}

static int fill(const sl_program *program, sl_program *part, sl_error *error) {
    int32_t layers = 0;
    for (int32_t v = 0; v < program->value_count; v++) {
        sl_program_typed_value(part, &program->values[v]);
    }
    for (int32_t s = 0; s < program->state_count; s++) {
        sl_program_state(part, &program->states[s]);
    }
    for (int32_t g = 0; g < program->group_count; g++) {
        layers += program->groups[g].layers;
    }
    int32_t *numbers = sl_arena_alloc(&part->arena, (size_t)layers + 1, sizeof *numbers);
    if (part->failed || !numbers) {
        return no_memory(error);
    }
    const int code = add_sections(program, part, error);
    if (code || part->failed) {
        return code ? code : no_memory(error);
    }
    number_places(part, numbers);
    place_states(program, part);
    part->hidden = writes_value(part, program->hidden) ? program->hidden : SL_NONE;
    part->logits = writes_value(part, program->logits) ? program->logits : SL_NONE;
    part->tokens = writes_value(part, program->tokens) ? program->tokens : SL_NONE;
    return 0;
}

int sl_program_slice(const sl_program *program, const sl_partition *partition, int32_t index,
                     sl_program *part, sl_error *error) {
    sl_program_copy_facts(program, part);
    part->weights = program->weights;
    part->weight_count = program->weight_count;
    part->partition = partition;
    part->part = index;
    return fill(program, part, error);
}
