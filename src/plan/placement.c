/* Where each value lies in the workspace. A value takes memory only from where it is written to where it is
 * last read; those that never live at the same time may share it. */
#include "plan/build.h"

#include "base/alloc.h"
#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

/* Copies of boxes and loads of whole warps touch as few lines of a GPU's cache as they can when rows begin
 * where lines do, of which it fetches two at a time; what lies across them costs batches up to 8 %. */
enum { ALIGNMENT = 256, GUARD = 256, MOST_INTERVALS = 16 };

typedef struct interval {
    int64_t first, end;
} interval;

/* Columns of a value that a later op reads. When there are too many intervals, one that covers them stands
 * for them: the value then lives longer than it must, never shorter. */
typedef struct needed {
    int32_t count;
    interval at[MOST_INTERVALS];
} needed;

typedef struct item {
    uint64_t bytes, offset;
    int32_t value;       /* or SL_NONE for the scratch of an op */
    int32_t op;          /* whose scratch it is */
    int32_t first, last; /* ops between which it lives */
} item;

typedef struct placement {
    const sl_plan *plan;
    const sl_lowered *lowered;
    uint64_t *live; /* [values][words]: bit i of a row: the value lives during op i */
    size_t words;
    needed *needs; /* [values] */
    item *items;
    item **order;  /* by size, the largest first */
    item **placed; /* by offset */
    int32_t item_count, placed_count;
} placement;

/* ---- what lives when ---- */

static void need_set(needed *need, const interval *parts, int32_t count) {
    need->count = 0;
    for (int32_t i = 0; i < count; i++) {
        if (count <= MOST_INTERVALS || i == 0) {
            need->at[need->count++] = parts[i];
            continue;
        }
        need->at[0].first = parts[i].first < need->at[0].first ? parts[i].first : need->at[0].first;
        need->at[0].end = parts[i].end > need->at[0].end ? parts[i].end : need->at[0].end;
    }
}

static void need_change(needed *need, int64_t first, int64_t end, bool add) {
    interval parts[2 * MOST_INTERVALS + 1];
    int32_t count = 0;
    for (int32_t i = 0; i < need->count; i++) {
        const interval old = need->at[i];
        if (old.first < first) {
            parts[count++] = (interval){old.first, old.end < first ? old.end : first};
        }
        if (old.end > end) {
            parts[count++] = (interval){old.first > end ? old.first : end, old.end};
        }
    }
    if (add && first < end) {
        parts[count++] = (interval){first, end};
    }
    need_set(need, parts, count);
}

static void set_live(placement *p, int32_t value, int32_t op) {
    p->live[(size_t)value * p->words + (size_t)op / 64] |= (uint64_t)1 << (op % 64);
}

static void note_op(placement *p, int32_t index) {
    const sl_program *program = p->plan->deployment.program;
    const sl_op *op = &p->lowered->ops[index];
    for (int o = 0; o < SL_OP_OUTPUTS; o++) {
        const sl_operand out = op->out[o];
        if (out.value == SL_NONE) {
            continue;
        }
        set_live(p, out.value, index);
        if (op->kind == SL_OP_LINEAR) {
            for (int32_t s = 0; s < op->u.linear.segment_count; s++) {
                const int64_t first = (int64_t)out.column + op->u.linear.segments[s].column;
                need_change(&p->needs[out.value], first,
                            first + program->weights[op->u.linear.segments[s].weight].rows, false);
            }
        } else {
            need_change(&p->needs[out.value], out.column, out.column + sl_operand_width(program, op, true, o),
                        false);
        }
    }
    for (int i = 0; i < SL_OP_INPUTS; i++) {
        const sl_operand in = op->in[i];
        if (in.value != SL_NONE) {
            set_live(p, in.value, index);
            need_change(&p->needs[in.value], in.column, in.column + sl_operand_width(program, op, false, i),
                        true);
        }
    }
}

/* Of a part: what others read behind its section. */
static void keep_values(placement *p, int32_t section) {
    const sl_partition *partition = p->plan->deployment.program->partition;
    for (int32_t i = 0; partition && i < partition->border_count; i++) {
        const sl_border *border = &partition->borders[i];
        if (border->from == p->plan->deployment.program->part && border->kept == section) {
            need_change(&p->needs[border->value], 0, p->lowered->values[border->value].width, true);
        }
    }
}

/* Of a part: what is filled in front of a section lives through all of it; a first section may run twice. */
static void give_values(placement *p) {
    const sl_program *program = p->plan->deployment.program;
    for (int32_t i = 0; program->partition && i < program->partition->border_count; i++) {
        const sl_border *border = &program->partition->borders[i];
        int32_t section = 0;
        for (int32_t op = 0; border->part == program->part && op < p->lowered->op_count; op++) {
            section = sl_op_section(&p->lowered->ops[op], section);
            if (section == border->section) {
                set_live(p, border->given, op);
            }
        }
    }
}

/* From the last op to the first: a value lives during an op that touches it, and while something later needs
 * columns of what it holds. */
static void find_live(placement *p) {
    const int32_t results[] = {p->plan->deployment.result, p->plan->deployment.tokens};
    for (size_t r = 0; r < sizeof results / sizeof *results; r++) {
        if (results[r] != SL_NONE) {
            need_change(&p->needs[results[r]], 0, p->lowered->values[results[r]].width, true);
        }
    }
    int32_t section = sl_program_sections(p->plan->deployment.program) - 1;
    keep_values(p, section);
    give_values(p);
    for (int32_t op = p->lowered->op_count - 1; op >= 0; op--) {
        for (int32_t v = 0; v < p->lowered->value_count; v++) {
            if (p->needs[v].count > 0) {
                set_live(p, v, op);
            }
        }
        note_op(p, op);
        if (section > 0 && sl_begins_section(p->lowered, op)) {
            keep_values(p, --section);
        }
    }
}

static bool lives(const placement *p, int32_t value, int32_t op) {
    return p->live[(size_t)value * p->words + (size_t)op / 64] >> (op % 64) & 1;
}

/* A run is one moment: what lives in a part of it lives in all of it. */
static void merge_runs(placement *p) {
    for (int32_t op = 0; op < p->lowered->op_count; op += sl_run_length(p->lowered, op)) {
        const int32_t end = op + sl_run_length(p->lowered, op);
        for (int32_t v = 0; end > op + 1 && v < p->lowered->value_count; v++) {
            bool any = false;
            for (int32_t i = op; i < end; i++) {
                any |= lives(p, v, i);
            }
            for (int32_t i = op; any && i < end; i++) {
                set_live(p, v, i);
            }
        }
    }
}

static bool together(const placement *p, const item *a, const item *b) {
    if (a->last < b->first || b->last < a->first) {
        return false;
    }
    if (a->value == SL_NONE || b->value == SL_NONE) {
        return a->value == SL_NONE ? b->value == SL_NONE || lives(p, b->value, a->first)
                                   : lives(p, a->value, b->first);
    }
    const uint64_t *x = &p->live[(size_t)a->value * p->words], *y = &p->live[(size_t)b->value * p->words];
    for (size_t w = 0; w < p->words; w++) {
        if (x[w] & y[w]) {
            return true;
        }
    }
    return false;
}

/* ---- items ---- */

/* Of an op, and with it of a run that it begins. */
static uint64_t scratch_bytes(const placement *p, int32_t op) {
    const sl_fusion *fusion = p->lowered->fusions ? p->lowered->fusions[op] : NULL;
    if (fusion && fusion->workspace) {
        const sl_fusion_query query = sl_plan_fusion_query(p->plan, p->lowered, op);
        return fusion->workspace(fusion, &query);
    }
    const sl_kernel *kernel = p->lowered->kernels[op];
    const sl_kernel_query query = sl_plan_query(p->plan, p->lowered, &p->lowered->ops[op]);
    return kernel->workspace ? kernel->workspace(kernel, &query) : 0;
}

static void list_items(placement *p) {
    const sl_lowered *lowered = p->lowered;
    for (int32_t v = 0; v < lowered->value_count; v++) {
        lowered->value_offsets[v] = UINT64_MAX;
        item found = {
            .bytes = sl_value_bytes(&lowered->values[v], lowered->rows), .value = v, .first = SL_NONE};
        for (int32_t op = 0; op < lowered->op_count; op++) {
            if (lives(p, v, op)) {
                found.first = found.first == SL_NONE ? op : found.first;
                found.last = op;
            }
        }
        if (found.first != SL_NONE) {
            p->items[p->item_count++] = found;
        }
    }
    for (int32_t run = 0; run < lowered->op_count; run += sl_run_length(lowered, run)) {
        const int32_t last = run + sl_run_length(lowered, run) - 1;
        for (int32_t op = run; op <= last; op++) {
            const uint64_t bytes = scratch_bytes(p, op);
            lowered->scratch_offsets[op] = 0;
            if (bytes > 0) {
                p->items[p->item_count++] =
                    (item){.bytes = bytes, .value = SL_NONE, .op = op, .first = run, .last = last};
            }
        }
    }
}

static int by_size(const void *left, const void *right) {
    const item *a = *(item *const *)left, *b = *(item *const *)right;
    if (a->bytes != b->bytes) {
        return a->bytes > b->bytes ? -1 : 1;
    }
    return a < b ? -1 : a > b; /* items lie in one array: a total order, the same on every machine */
}

/* The smallest gap between neighbours in time that holds the item, else behind the last; false on overflow.
 */
static bool place_item(placement *p, item *it) {
    uint64_t need, end = GUARD, best = UINT64_MAX, best_room = UINT64_MAX;
    if (!sl_align_u64(it->bytes, ALIGNMENT, &need) || !sl_add_u64(need, GUARD, &need)) {
        return false;
    }
    for (int32_t i = 0; i < p->placed_count; i++) {
        const item *other = p->placed[i];
        if (!together(p, it, other)) {
            continue;
        }
        if (other->offset >= end && other->offset - end >= need && other->offset - end < best_room) {
            best_room = other->offset - end;
            best = end;
        }
        /* aligned sizes: every end is a multiple of ALIGNMENT */
        const uint64_t other_end =
            other->offset + ((other->bytes + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1)) + GUARD;
        end = other_end > end ? other_end : end;
    }
    it->offset = best != UINT64_MAX ? best : end;
    uint64_t checked;
    if (!sl_add_u64(it->offset, need, &checked)) {
        return false;
    }
    int32_t at = p->placed_count++;
    for (; at > 0 && p->placed[at - 1]->offset > it->offset; at--) {
        p->placed[at] = p->placed[at - 1];
    }
    p->placed[at] = it;
    return true;
}

static int place_all(placement *p, uint64_t *bytes, sl_error *error) {
    find_live(p);
    merge_runs(p);
    list_items(p);
    for (int32_t i = 0; i < p->item_count; i++) {
        p->order[i] = &p->items[i];
    }
    if (p->item_count > 0) {
        qsort(p->order, (size_t)p->item_count, sizeof *p->order, by_size);
    }
    *bytes = 0;
    for (int32_t i = 0; i < p->item_count; i++) {
        item *it = p->order[i];
        if (!place_item(p, it)) {
            return sl_fail(error, SL_ERR_LIMIT, "plan: the workspace of %d rows exceeds 64 bits",
                           p->lowered->rows[SL_ROWS_STEP]);
        }
        const uint64_t end = it->offset + ((it->bytes + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1)) + GUARD;
        *bytes = end > *bytes ? end : *bytes;
        if (it->value == SL_NONE) {
            p->lowered->scratch_offsets[it->op] = it->offset;
        } else {
            p->lowered->value_offsets[it->value] = it->offset;
        }
    }
    return 0;
}

int sl_place(sl_plan *plan, int32_t bucket, uint64_t *bytes, sl_error *error) {
    const sl_lowered *lowered = &plan->deployment.buckets[bucket];
    const size_t values = (size_t)lowered->value_count, ops = (size_t)lowered->op_count;
    placement p = {.plan = plan, .lowered = lowered, .words = (ops + 63) / 64};
    p.live = sl_alloc_zero(values * p.words, sizeof *p.live);
    p.needs = sl_alloc_zero(values, sizeof *p.needs);
    p.items = sl_alloc_zero(values + ops, sizeof *p.items);
    p.order = sl_alloc_zero(values + ops, sizeof *p.order);
    p.placed = sl_alloc_zero(values + ops, sizeof *p.placed);
    const int code = p.live && p.needs && p.items && p.order && p.placed
                         ? place_all(&p, bytes, error)
                         : sl_fail(error, SL_ERR_NOMEM, "plan: out of memory");
    sl_free(p.live);
    sl_free(p.needs);
    sl_free(p.items);
    sl_free(p.order);
    sl_free(p.placed);
    return code;
}
