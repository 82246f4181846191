/* The step block: its layout for given limits, and the check of one. */
#include "program/step.h"

#include <math.h>

/* Offset of an array of `count` elements at `*end`, which moves behind it to the next multiple of 64. The
 * factors are int32, so that no sum of them overflows. */
static uint64_t place(uint64_t *end, uint64_t count, uint64_t size) {
    const uint64_t offset = *end;
    *end = (offset + count * size + 63) & ~(uint64_t)63;
    return offset;
}

static uint64_t positive(int32_t value) {
    return value > 0 ? (uint64_t)value : 0;
}

void sl_step_layout_init(sl_step_layout *layout, const sl_limits *limits, int32_t group_count) {
    const uint64_t groups = positive(group_count), sequences = positive(limits->sequences);
    const uint64_t changes =
        groups * (sequences + (limits->keep > 0)) * positive(sl_table_width(limits->context));
    const uint64_t copies = groups * sequences;
    uint64_t end = 0;
    layout->limits = *limits;
    layout->max_table_changes = changes > INT32_MAX ? INT32_MAX : (int32_t)changes;
    layout->max_page_copies = copies > INT32_MAX ? INT32_MAX : (int32_t)copies;
    place(&end, 1, sizeof(sl_step_header));
    layout->rows = place(&end, positive(limits->rows), sizeof(sl_step_row));
    layout->spans = place(&end, sequences, sizeof(sl_step_span));
    layout->states = place(&end, positive(limits->states), sizeof(int32_t));
    layout->outputs = place(&end, positive(limits->outputs), sizeof(sl_step_output));
    layout->tail = place(&end, 1, sizeof(sl_step_header));
    layout->tail_rows = place(&end, positive(limits->outputs), sizeof(sl_step_row));
    layout->tail_spans = place(&end, sequences, sizeof(sl_step_span));
    layout->page_copies = place(&end, (uint64_t)layout->max_page_copies, sizeof(sl_page_copy));
    _Static_assert(sizeof(sl_adjustment) == sizeof(sl_table_change), "they share an array");
    layout->table_changes = place(&end, (uint64_t)layout->max_table_changes + positive(limits->adjustments),
                                  sizeof(sl_table_change));
    place(&end, positive(limits->masks), (uint64_t)sl_mask_words(limits->mask_tokens) * sizeof(uint32_t));
    layout->bytes = end;
}

void sl_step_write_tail(const sl_step_layout *layout, void *block) {
    const sl_step_header *head = sl_step_head(block);
    const sl_step_row *rows = sl_step_rows(layout, block);
    const sl_step_output *outputs = sl_step_outputs(layout, block);
    sl_step_row *tail_rows = sl_step_tail_rows(layout, block);
    sl_step_span *spans = sl_step_tail_spans(layout, block);
    int32_t count = 0;
    for (int32_t i = 0; i < head->outputs; i++) {
        const int32_t row = outputs[i].row;
        if (i == 0 || rows[row].span != rows[outputs[i - 1].row].span) {
            sl_step_span *span = &spans[count++];
            *span = sl_step_spans(layout, block)[rows[row].span];
            span->written = row - span->first_row;
            for (int32_t g = 0; g < SL_CACHE_GROUPS; g++) {
                span->length[g] += span->written;
            }
            span->first_row = i;
            span->row_count = 0;
        }
        tail_rows[i] = rows[row];
        tail_rows[i].span = count - 1;
        spans[count - 1].row_count++;
    }
    sl_step_header *tail = sl_step_tail(layout, block);
    *tail = *head;
    tail->rows = head->outputs;
    tail->spans = count;
}

/* ---- checking ---- */

typedef struct step_view {
    const sl_step_layout *layout;
    const sl_program *program;
    const sl_step_header *head;
    const sl_step_row *rows;
    const sl_step_span *spans;
    const int32_t *states;
    sl_error *error;
} step_view;

#define REQUIRE(view, condition, ...)                                                                        \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            return sl_fail((view)->error, SL_ERR_INVALID, "step: " __VA_ARGS__);                             \
        }                                                                                                    \
    } while (0)

static bool within(int32_t value, int32_t limit) {
    return value >= 0 && value < limit;
}

static int check_counts(const step_view *v) {
    const sl_limits *limits = &v->layout->limits;
    const struct {
        const char *name;
        int32_t count, least, most;
    } counts[] = {
        {"rows", v->head->rows, 1, limits->rows},
        {"outputs", v->head->outputs, 0, limits->outputs},
        {"spans", v->head->spans, 1, limits->sequences},
        {"table changes", v->head->table_changes, 0, v->layout->max_table_changes},
        {"page copies", v->head->page_copies, 0, v->layout->max_page_copies},
        {"want_logits", v->head->want_logits, 0, 1},
        {"adjustments", v->head->adjustments, 0, limits->adjustments},
        {"masks", v->head->masks, 0, limits->masks},
        {"masks_later", v->head->masks_later, 0, 1},
        {"compact", v->head->compact, 0, limits->keep > 0},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        REQUIRE(v, counts[i].count >= counts[i].least && counts[i].count <= counts[i].most,
                "%s: %d is not in %d to %d", counts[i].name, counts[i].count, counts[i].least,
                counts[i].most);
    }
    REQUIRE(v, !v->head->compact || v->head->spans == 1, "compact: of %d sequences, not one", v->head->spans);
    REQUIRE(v, !v->head->compact || v->head->rows < limits->keep, "compact: %d rows of %d tokens kept",
            v->head->rows, limits->keep);
    return 0;
}

/* Of a span's states those from the step's `next` on, which it leaves. */
static int check_span_states(const step_view *v, int32_t s, int32_t next) {
    const sl_step_span *span = &v->spans[s];
    if (v->program->state_count == 0) {
        REQUIRE(v, span->state_read == SL_NONE && span->state_first == 0 && span->state_count == 0,
                "span %d: state slots in a program without recurrent layers", s);
        return 0;
    }
    const int32_t most = span->row_count < SL_SPAN_STATES ? span->row_count : SL_SPAN_STATES;
    REQUIRE(v, span->state_read >= SL_NONE, "span %d: state slot %d does not exist", s, span->state_read);
    REQUIRE(v, span->state_count >= 1 && span->state_count <= most, "span %d: leaves %d states, not 1 to %d",
            s, span->state_count, most);
    REQUIRE(v, span->state_first == next && next + span->state_count <= v->layout->limits.states,
            "span %d: states %d and %d more do not follow the span before, or are more than %d", s,
            span->state_first, span->state_count, v->layout->limits.states);
    for (int32_t i = next; i < next + span->state_count; i++) {
        REQUIRE(v, v->states[i] >= 0, "span %d: state slot %d does not exist", s, v->states[i]);
        for (int32_t other = 0; other < v->head->spans; other++) {
            REQUIRE(v, v->spans[other].state_read != v->states[i],
                    "span %d: writes state slot %d, which span %d reads", s, v->states[i], other);
        }
        for (int32_t other = 0; other < i; other++) {
            REQUIRE(v, v->states[other] != v->states[i], "span %d: state slot %d is written twice", s,
                    v->states[i]);
        }
    }
    return 0;
}

static int check_spans(const step_view *v) {
    const sl_limits *limits = &v->layout->limits;
    const int64_t capacity = (int64_t)sl_table_width(limits->context) * SL_PAGE_TOKENS;
    int64_t next = 0;
    int32_t states = 0;
    for (int32_t s = 0; s < v->head->spans; s++) {
        const sl_step_span *span = &v->spans[s];
        REQUIRE(v, within(span->slot, limits->sequences), "span %d: slot %d does not exist", s, span->slot);
        for (int32_t other = 0; other < s; other++) {
            REQUIRE(v, v->spans[other].slot != span->slot, "spans %d and %d have the same slot", other, s);
        }
        REQUIRE(v, span->first_row == next && span->row_count >= 1,
                "span %d: rows %d and %d more do not follow the span before", s, span->first_row,
                span->row_count);
        REQUIRE(v, span->written == 0, "span %d: %d tokens of this step are there before it", s,
                span->written);
        next += span->row_count;
        REQUIRE(v, next <= v->head->rows, "span %d: ends after the last row", s);
        for (int32_t g = 0; g < v->program->group_count; g++) {
            REQUIRE(v, span->length[g] >= 0 && span->length[g] + (int64_t)span->row_count <= capacity,
                    "span %d: length %d and %d rows exceed the page table of group %s", s, span->length[g],
                    span->row_count, v->program->groups[g].name);
        }
        if (check_span_states(v, s, states)) {
            return SL_ERR_INVALID;
        }
        states += span->state_count;
    }
    REQUIRE(v, next == v->head->rows, "spans hold %lld of %d rows", (long long)next, v->head->rows);
    return 0;
}

static int check_rows(const step_view *v) {
    for (int32_t s = 0; s < v->head->spans; s++) {
        const int32_t first = v->spans[s].first_row;
        for (int32_t r = first; r < first + v->spans[s].row_count; r++) {
            const sl_step_row *row = &v->rows[r];
            REQUIRE(v, row->span == s, "row %d: span %d, expected %d", r, row->span, s);
            REQUIRE(v, within(row->position, v->layout->limits.context),
                    "row %d: position %d is outside the context", r, row->position);
            REQUIRE(v, r == first || row->position > row[-1].position,
                    "row %d: positions must rise within a span", r);
            REQUIRE(v, row->source == SL_ROW_TOKEN || row->source == SL_ROW_LAST_TOKEN,
                    "row %d: unknown source %d", r, row->source);
            REQUIRE(v, row->source != SL_ROW_TOKEN || within(row->token, v->program->vocabulary),
                    "row %d: token %d is outside the vocabulary", r, row->token);
        }
    }
    return 0;
}

static int check_pages(const step_view *v, void *block) {
    const sl_table_change *changes = sl_step_table_changes(v->layout, block);
    const int32_t table_width = sl_table_width(v->layout->limits.context);
    for (int32_t i = 0; i < v->head->table_changes; i++) {
        const sl_table_change *change = &changes[i];
        REQUIRE(v, within(change->group, v->program->group_count), "table change %d: group %d does not exist",
                i, change->group);
        REQUIRE(v, within(change->slot, sl_table_rows(&v->layout->limits)),
                "table change %d: slot %d does not exist", i, change->slot);
        REQUIRE(v, within(change->index, table_width), "table change %d: index %d is outside the table", i,
                change->index);
        REQUIRE(v, change->page >= SL_NONE, "table change %d: page %d does not exist", i, change->page);
    }
    const sl_page_copy *copies = sl_step_page_copies(v->layout, block);
    for (int32_t i = 0; i < v->head->page_copies; i++) {
        const sl_page_copy *copy = &copies[i];
        REQUIRE(v, within(copy->group, v->program->group_count), "page copy %d: group %d does not exist", i,
                copy->group);
        REQUIRE(v, copy->source >= 0 && copy->target >= 0, "page copy %d: from %d to %d", i, copy->source,
                copy->target);
        for (int32_t other = 0; other < v->head->page_copies; other++) {
            REQUIRE(v, copies[other].group != copy->group || copies[other].source != copy->target,
                    "page copy %d: page %d is also a source", i, copy->target);
            REQUIRE(v,
                    other == i || copies[other].group != copy->group || copies[other].target != copy->target,
                    "page copies %d and %d have the same target", i, other);
        }
    }
    return 0;
}

static int check_adjustments(const step_view *v, int32_t index, const sl_step_output *output, void *block) {
    REQUIRE(v,
            output->adjustment_first >= 0 && output->adjustment_count >= 0 &&
                (int64_t)output->adjustment_first + output->adjustment_count <= v->head->adjustments,
            "output %d: adjustment %d and %d more are not in the step's %d", index, output->adjustment_first,
            output->adjustment_count, v->head->adjustments);
    REQUIRE(v, output->mask == SL_NONE || within(output->mask, v->head->masks),
            "output %d: mask %d is not in the step's %d", index, output->mask, v->head->masks);
    const sl_adjustment *all = sl_step_adjustments(v->layout, block) + output->adjustment_first;
    for (int32_t i = 0; i < output->adjustment_count; i++) {
        const sl_adjustment *a = &all[i];
        REQUIRE(v, within(a->token, v->program->vocabulary),
                "output %d: adjusted token %d is outside the vocabulary", index, a->token);
        /* written so that a NaN is refused too */
        REQUIRE(v,
                a->before < INFINITY && a->repetition > 0 && a->repetition < INFINITY &&
                    fabsf(a->after) < INFINITY,
                "output %d: token %d is adjusted by %g, %g, %g", index, a->token, (double)a->before,
                (double)a->repetition, (double)a->after);
        for (int32_t other = 0; other < i; other++) {
            REQUIRE(v, all[other].token != a->token, "output %d: token %d is adjusted twice", index,
                    a->token);
        }
    }
    return 0;
}

/* Written so that a NaN is refused too. */
static bool is_sampler(const sl_sampler *s) {
    uint32_t seen = 0;
    for (int32_t i = 0; i < SL_SAMPLER_STAGES && s->order[i] != SL_STAGE_END; i++) {
        if (s->order[i] >= SL_STAGE_COUNT || (seen & 1u << s->order[i])) {
            return false;
        }
        seen |= 1u << s->order[i];
    }
    return s->temperature >= 0 && s->top_p >= 0 && s->min_p >= 0 && s->top_k >= 0 && s->typical_p >= 0 &&
           s->top_n_sigma >= 0 && s->xtc_probability >= 0 && s->xtc_threshold >= 0 && s->dynamic_range >= 0 &&
           s->dynamic_exponent >= 0;
}

static int check_outputs(const step_view *v, void *block) {
    const sl_step_output *outputs = sl_step_outputs(v->layout, block);
    for (int32_t i = 0; i < v->head->outputs; i++) {
        const sl_step_output *output = &outputs[i];
        REQUIRE(v, within(output->row, v->head->rows), "output %d: row %d does not exist", i, output->row);
        const sl_step_span *span = &v->spans[v->rows[output->row].span];
        REQUIRE(v, output->slot == span->slot, "output %d: slot %d is not the one of its row", i,
                output->slot);
        if (v->program->has_tail) {
            const bool ends = output->row + 1 == span->first_row + span->row_count;
            REQUIRE(v, i == 0 || output->row > output[-1].row, "output %d: rows must rise", i);
            REQUIRE(v, ends || (i + 1 < v->head->outputs && output[1].row == output->row + 1),
                    "output %d: the row behind it has none", i);
        }
        if (check_adjustments(v, i, output, block)) {
            return SL_ERR_INVALID;
        }
        REQUIRE(v, is_sampler(&output->sampler), "output %d: a sampler setting is out of range", i);
    }
    return 0;
}

int sl_step_check(const sl_step_layout *layout, const sl_program *program, void *block, sl_error *error) {
    const step_view view = {.layout = layout,
                            .program = program,
                            .head = sl_step_head(block),
                            .rows = sl_step_rows(layout, block),
                            .spans = sl_step_spans(layout, block),
                            .states = sl_step_states(layout, block),
                            .error = error};
    int code = check_counts(&view);
    code = code ? code : check_spans(&view);
    code = code ? code : check_rows(&view);
    code = code ? code : check_pages(&view, block);
    return code ? code : check_outputs(&view, block);
}
