/* sluice plan --plot, sluice perplexity --kl --plot: what those commands print, as pictures. */
#include "perplexity.h"
#include "plot/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *name_of(const char *model) {
    const char *slash = strrchr(model, '/');
    return slash && slash[1] ? slash + 1 : model;
}

/* ---- memory ---------------------------------------------------------------------------------------------
 */

static int draw_memory(const settings *s, const json_t *plan) {
    char message[PLOT_MESSAGE], title[256], subtitle[256];
    const json_t *memory = json_object_get(plan, "memory");
    const size_t count = json_array_size(memory);
    plot_part *parts = calloc(count ? count : 1, sizeof *parts);
    if (!parts) {
        return fail("plan: out of memory for the picture");
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *row = json_array_get(memory, i);
        parts[i] = (plot_part){json_string_value(json_object_get(row, "name")),
                               json_string_value(json_object_get(row, "detail")),
                               json_number_value(json_object_get(row, "bytes"))};
    }
    const double mapped = json_number_value(json_object_get(plan, "mapped_bytes"));
    const int used =
        snprintf(subtitle, sizeof subtitle, "%.180s", json_string_value(json_object_get(plan, "device")));
    if (mapped > 0) {
        snprintf(subtitle + used, sizeof subtitle - (size_t)used,
                 "; besides, %.1f MiB of weights are read in the file", mapped / (1 << 20));
    }
    const plot_bar bar = {.name = "All pools",
                          .parts = parts,
                          .count = count,
                          .limit = json_number_value(json_object_get(plan, "memory_limit")),
                          .limit_name = s->memory_limit.all || s->memory_limit.by_device[0].device[0]
                                            ? "--memory-limit"
                                            : "memory there is"};
    snprintf(title, sizeof title, "Memory of %.200s", name_of(s->model));
    const plot_bars chart = {
        .title = title, .subtitle = subtitle, .bytes = true, .bars = &bar, .bar_count = 1};
    const int code = plot_write_bars(s->plot, &chart, message) ? fail("%s", message) : DONE;
    free(parts);
    return code;
}

int plot_memory(const settings *s, const char *text) {
    json_t *plan = json_loads(text, 0, NULL);
    const int code = plan ? draw_memory(s, plan) : fail("plan: out of memory for the picture");
    json_decref(plan);
    return code;
}

/* ---- divergence -----------------------------------------------------------------------------------------
 */

enum { STEPS = 400, WINDOWS_DRAWN = 500 };

/* Shares of the tokens from the smallest to the largest, 99 % to 100 % in finer steps; returns how many there
 * are to draw. A logarithmic axis has no place for 0, and what is far below the median tells little. */
static size_t fill_percentiles(const divergence_row *sorted, size_t count, plot_point points[STEPS]) {
    const double least = fmax(sorted[count - 1].divergence * 1e-6, percentile(sorted, count, 0.5) / 30);
    size_t used = 0;
    for (int i = 0; i < STEPS; i++) {
        const double share = i < 300 ? 0.99 * i / 300 : 0.99 + 0.01 * (i - 300) / (STEPS - 301);
        const double value = percentile(sorted, count, share);
        if (value > least) {
            points[used++] = (plot_point){share * 100, value, value, value};
        }
    }
    return used;
}

static plot_series level(const char *name, double value, plot_point ends[2], double from, double to) {
    ends[0] = (plot_point){from, value, value, value};
    ends[1] = (plot_point){to, value, value, value};
    return (plot_series){name, ends, 2, true};
}

/* Neighbours become one point where there are more windows than a chart shows. */
static size_t fill_windows(const divergence_picture *p, plot_point points[WINDOWS_DRAWN]) {
    const size_t count = p->window_count < WINDOWS_DRAWN ? p->window_count : WINDOWS_DRAWN;
    for (size_t i = 0; i < count; i++) {
        const size_t from = i * p->window_count / count, end = (i + 1) * p->window_count / count;
        plot_point *at = &points[i];
        *at = (plot_point){((double)from + (double)end + 1) / 2, 0, INFINITY, 0};
        for (size_t k = from; k < end; k++) {
            at->y += p->windows[k] / (double)(end - from);
            at->low = fmin(at->low, p->windows[k]);
            at->high = fmax(at->high, p->windows[k]);
        }
        at->low = fmin(at->low, at->y); /* a mean of equal numbers may be off by its last digit */
        at->high = fmax(at->high, at->y);
    }
    return count;
}

int plot_divergence(const settings *s, const divergence_picture *p) {
    static plot_point percentiles[STEPS], windows[WINDOWS_DRAWN];
    const divergence *d = p->figures;
    plot_point ends[3][2];
    char message[PLOT_MESSAGE], title[512], subtitle[512], mean[64], high[64], axis[96];
    if (!isfinite(d->mean)) {
        return fail("%s: the divergence is %s, of which there is no picture", s->plot,
                    isnan(d->mean) ? "not a number" : "infinite");
    }
    size_t drawn = fill_percentiles(p->sorted, p->row_count, percentiles);
    const bool some = drawn > 0;
    if (!some) { /* the same model */
        percentiles[0] = (plot_point){0, 0, 0, 0};
        percentiles[1] = (plot_point){100, 0, 0, 0};
        drawn = 2;
    }
    const size_t window_count = fill_windows(p, windows);
    snprintf(mean, sizeof mean, "mean %.6f", d->mean);
    snprintf(high, sizeof high, "99 %% %.6f", d->high);
    snprintf(axis, sizeof axis, "window of %zu tokens, in the order of the text", p->window);
    const plot_series over_text[] = {
        {window_count < p->window_count ? "several windows" : "window", windows, window_count, false},
        level(mean, d->mean, ends[0], windows[0].x, windows[window_count - 1].x)};
    const plot_series over_tokens[] = {{"tokens", percentiles, drawn, false},
                                       level(mean, d->mean, ends[1], 0, 100),
                                       level(high, d->high, ends[2], 0, 100)};
    const plot_axis nats = {"Kullback-Leibler divergence, nats", false, true};
    const plot_axis logarithmic = {"Kullback-Leibler divergence, nats", some && d->mean > 0 && d->high > 0,
                                   !some};
    const plot_lines charts[] = {
        {"Over the text: mean of each window", NULL, {axis, false, false}, nats, over_text, 2},
        {"Over the tokens, from the smallest divergence to the largest",
         some ? "those below a thirtieth of the median are left out" : NULL,
         {"% of the scored tokens lie below", false, true},
         logarithmic,
         over_tokens,
         some ? 3 : 2},
    };
    snprintf(title, sizeof title, "How far %.120s is from %.120s", name_of(s->model), name_of(s->kl));
    snprintf(subtitle, sizeof subtitle,
             "%zu tokens scored; mean %.6f ± %.6f, median %.6f, 99 %% %.6f, maximum %.6f; same top %.3f %%",
             p->row_count, d->mean, d->error, d->median, d->high, d->most, d->same_top * 100);
    const plot_page page = {title, subtitle, charts, 2};
    return plot_write_page(s->plot, &page, message) ? fail("%s", message) : DONE;
}
