/* Where a step's time goes: ops grouped by kernel and shape, timed by the backend, set against their cost. */
#include "plan/build.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- groups ---- */

typedef struct grouping {
    const sl_plan *plan;
    const sl_lowered *lowered;
    sl_program view; /* the program with the lowered values, for costs */
    sl_plan_profile *profile;
    int32_t *groups; /* [op_count] */
    sl_buffer text;
} grouping;

static void add_cost(sl_cost *sum, const sl_cost *cost) {
    sum->operations += cost->operations;
    sum->weight_bytes += cost->weight_bytes;
    sum->value_bytes += cost->value_bytes;
}

/* Products of the arithmetic that has most of them in the first call decide what the others are held to. */
static void add_products(const grouping *g, sl_profile_row *row, const sl_op *op, double operations) {
    sl_arithmetic arithmetic;
    if (sl_op_products(&g->view, op, &arithmetic)) {
        row->arithmetic = row->products > 0 ? row->arithmetic : arithmetic;
        row->products += operations;
    }
}

static double operand_bytes(const grouping *g, const sl_op *op, bool output, int i) {
    const int32_t index = output ? op->out[i].value : op->in[i].value;
    if (index == SL_NONE) {
        return 0;
    }
    const sl_value *value = &g->view.values[index];
    const int64_t width = sl_operand_width(&g->view, op, output, i);
    int32_t tail[SL_ROWS_COUNT];
    sl_tail_rows(g->profile->step.rows, tail);
    const int32_t rows = value->tail ? tail[value->rows] : g->profile->step.rows[value->rows];
    return (double)sl_value_row_bytes(value->type, (int32_t)width) * rows;
}

/* What a run neither writes nor reads again: outputs that nobody else wants, and inputs that it has just
 * made. */
static double bytes_saved(const grouping *g, int32_t first, int32_t length) {
    double bytes = 0;
    for (int32_t i = first; i < first + length && length > 1; i++) {
        for (int o = 0; o < SL_OP_OUTPUTS; o++) {
            bytes += g->lowered->unread[i][o] ? operand_bytes(g, &g->lowered->ops[i], true, o) : 0;
        }
        for (int in = 0; in < SL_OP_INPUTS; in++) {
            const int32_t value = g->lowered->ops[i].in[in].value;
            bool made = false;
            for (int32_t before = first; before < i && value != SL_NONE; before++) {
                for (int o = 0; o < SL_OP_OUTPUTS; o++) {
                    made |= g->lowered->ops[before].out[o].value == value;
                }
            }
            bytes += made ? operand_bytes(g, &g->lowered->ops[i], false, in) : 0;
        }
    }
    return bytes;
}

/* The row with that kernel and the shape in g->text; -1 when there is no memory for a new one. */
static int32_t find_row(grouping *g, const char *kernel) {
    sl_plan_profile *profile = g->profile;
    int32_t r = 0;
    while (r < profile->row_count && (strcmp(profile->rows[r].kernel, kernel) != 0 ||
                                      strcmp(profile->rows[r].shape, g->text.data) != 0)) {
        r++;
    }
    if (r == profile->row_count) {
        profile->rows[r].kernel = kernel;
        profile->rows[r].shape = sl_arena_printf(&profile->arena, "%s", g->text.data);
        if (!profile->rows[r].shape) {
            return -1;
        }
        profile->row_count++;
    }
    return r;
}

static int add_run(grouping *g, int32_t first, int32_t length, sl_error *error) {
    const sl_fusion *fusion = sl_run_fusion(g->lowered, first);
    sl_buffer_clear(&g->text);
    for (int32_t i = first; i < first + length; i++) {
        sl_buffer_text(&g->text, i > first ? " > " : "");
        sl_plan_print_shape(g->plan, g->lowered, &g->lowered->ops[i], &g->text);
    }
    const int32_t r =
        g->text.failed ? -1 : find_row(g, fusion ? fusion->name : g->lowered->kernels[first]->name);
    if (r < 0) {
        return sl_fail(error, SL_ERR_NOMEM, "profile: out of memory");
    }
    sl_profile_row *row = &g->profile->rows[r];
    for (int32_t i = first; i < first + length; i++) {
        const sl_cost cost = sl_step_cost(&g->view, &g->lowered->ops[i], g->profile->step.rows,
                                          g->profile->step.keys, g->profile->step.spans);
        add_cost(&row->cost, &cost);
        add_products(g, row, &g->lowered->ops[i], cost.operations);
        g->groups[i] = r;
    }
    row->cost.value_bytes -= bytes_saved(g, first, length);
    row->calls++;
    row->ops += length;
    return 0;
}

static int slower_first(const void *left, const void *right) {
    const sl_profile_row *a = left, *b = right;
    if (a->seconds != b->seconds) {
        return a->seconds > b->seconds ? -1 : 1;
    }
    const int order = strcmp(a->kernel, b->kernel);
    return order ? order : strcmp(a->shape, b->shape);
}

static int measure(grouping *g, sl_executor *executor, sl_error *error) {
    sl_plan_profile *profile = g->profile;
    sl_profile asked = {.groups = g->groups, .group_count = profile->row_count};
    asked.seconds = sl_arena_alloc(&profile->arena, (size_t)profile->row_count, sizeof *asked.seconds);
    if (!asked.seconds) {
        return sl_fail(error, SL_ERR_NOMEM, "profile: out of memory");
    }
    const int code = g->plan->backend->functions->profile(executor, &asked, error);
    if (code) {
        return code;
    }
    for (int32_t r = 0; r < profile->row_count; r++) {
        profile->rows[r].seconds = asked.seconds[r];
    }
    profile->step_seconds = asked.step_seconds;
    profile->rates = asked.rates;
    qsort(profile->rows, (size_t)profile->row_count, sizeof *profile->rows, slower_first);
    return 0;
}

int sl_plan_profile_step(const sl_plan *plan, sl_executor *executor, const sl_plan_step *step,
                         sl_plan_profile *profile, sl_error *error) {
    if (step->rows[SL_ROWS_STEP] == 0) {
        return sl_fail(error, SL_ERR_INVALID, "profile: no step has run yet");
    }
    grouping g = {.plan = plan, .view = *plan->deployment.program, .profile = profile};
    g.lowered = &plan->deployment.buckets[step->bucket];
    g.view.values = g.lowered->values;
    g.view.value_count = g.lowered->value_count;
    const size_t ops = (size_t)g.lowered->op_count;
    profile->step = *step;
    profile->bucket_rows = g.lowered->rows[SL_ROWS_STEP];
    profile->op_count = g.lowered->op_count;
    profile->rows = sl_arena_alloc(&profile->arena, ops, sizeof *profile->rows);
    g.groups = sl_arena_alloc(&profile->arena, ops, sizeof *g.groups);
    int code = profile->rows && g.groups ? 0 : sl_fail(error, SL_ERR_NOMEM, "profile: out of memory");
    for (int32_t i = 0; i < g.lowered->op_count && code == 0;) {
        const int32_t length = sl_run_length(g.lowered, i);
        code = add_run(&g, i, length, error);
        i += length;
    }
    sl_buffer_free(&g.text);
    return code ? code : measure(&g, executor, error);
}

void sl_plan_profile_free(sl_plan_profile *profile) {
    sl_arena_free(&profile->arena);
    memset(profile, 0, sizeof *profile);
}

/* ---- text ---- */

/* Of the time that the nearer of the two limits allows; negative when there is none to compare with. */
static double percent_of_limit(const sl_plan_profile *profile, const sl_profile_row *row) {
    const double least = sl_rates_least(&profile->rates, row->cost.weight_bytes + row->cost.value_bytes,
                                        row->arithmetic, row->products);
    return least > 0 && row->seconds > 0 ? 100 * least / row->seconds : -1;
}

static void print_limits(const sl_rates *rates, sl_buffer *out) {
    static const char *const names[SL_ARITHMETICS] = {"int8", "BF16", "f32"};
    if (rates->read_bytes > 0) {
        sl_buffer_printf(out, "limits: memory read at %.1f GB/s", 1e-9 * rates->read_bytes);
        for (int a = 0; a < SL_ARITHMETICS; a++) {
            if (rates->operations[a] > 0) {
                sl_buffer_printf(out, ", %s products at %.3f TOPS", names[a], 1e-12 * rates->operations[a]);
            }
        }
        sl_buffer_text(out, "\n");
    }
}

void sl_plan_print_profile(const sl_plan_profile *profile, sl_buffer *out) {
    double sum = 0;
    for (int32_t r = 0; r < profile->row_count; r++) {
        sum += profile->rows[r].seconds;
    }
    sl_buffer_printf(out, "%10s %6s %6s %9s %8s %8s %6s  %s\n", "us", "share", "calls", "us each", "GB/s",
                     "TFLOPS", "limit", "kernel, shape");
    for (int32_t r = 0; r < profile->row_count; r++) {
        const sl_profile_row *row = &profile->rows[r];
        const double percent = percent_of_limit(profile, row), seconds = row->seconds > 0 ? row->seconds : 1;
        char limit[16] = "-";
        if (percent >= 0) {
            snprintf(limit, sizeof limit, "%.0f%%", percent);
        }
        sl_buffer_printf(out, "%10.1f %5.1f%% %6d %9.2f %8.1f %8.2f %6s  %s, %s\n", 1e6 * row->seconds,
                         sum > 0 ? 100 * row->seconds / sum : 0, row->calls, 1e6 * row->seconds / row->calls,
                         1e-9 * (row->cost.weight_bytes + row->cost.value_bytes) / seconds,
                         1e-12 * row->cost.operations / seconds, limit, row->kernel, row->shape);
    }
    sl_buffer_printf(
        out, "%10.1f microseconds in %d ops; the step as a whole takes %.1f (%d rows in a bucket of %d, ",
        1e6 * sum, profile->op_count, 1e6 * profile->step_seconds, profile->step.rows[SL_ROWS_STEP],
        profile->bucket_rows);
    sl_buffer_printf(out, "%d keys a row)\n", profile->step.keys);
    print_limits(&profile->rates, out);
}
