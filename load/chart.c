/* Results as a picture. */
#include "client.h"

#include "plot/plot.h"

#include <math.h>
#include <stdlib.h>

enum { CURVE_POINTS = 100, SUBTITLE = 256 };

static void describe(const load *load, const load_result *first, size_t count, char text[SUBTITLE]) {
    char arrival[64] = "";
    if (count == 1 && first->rate > 0) {
        snprintf(arrival, sizeof arrival, ", %.10g requests/s", first->rate);
    } else if (count == 1) {
        snprintf(arrival, sizeof arrival, ", %d at once", (int)first->concurrency);
    }
    const double done = first->done > 0 ? (double)first->done : 1;
    const double told = first->by_usage > 0 ? (double)first->by_usage : 1;
    snprintf(text, SUBTITLE, "%s%s: %.0f tokens a prompt, %.0f an answer", load->model, arrival,
             (double)first->prompt_tokens / told, (double)first->answer_tokens / done);
}

/* ---- one result: percentiles -----------------------------------------------------------------------------
 */

/* Of 0 to 99 percent in steps, from where the values are above 0: the axis is logarithmic. The count. */
static size_t curve(const load_series *series, plot_point points[CURVE_POINTS]) {
    size_t count = 0;
    for (int i = 0; i < CURVE_POINTS; i++) {
        const double y = load_quantile(series, 0.01 * i);
        if (y >= 0.01) {
            points[count++] = (plot_point){i, y, y, y};
        }
    }
    return count;
}

static int plot_percentiles(const char *path, const load *load, const load_result *r,
                            char message[LOAD_MESSAGE]) {
    const struct {
        const char *name;
        const load_series *series;
    } kinds[] = {{"first token", &r->first},
                 {"between tokens", &r->gap},
                 {"per output token", &r->token},
                 {"end to end", &r->whole}};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    plot_point points[KINDS][CURVE_POINTS];
    plot_series series[KINDS];
    size_t count = 0;
    char subtitle[SUBTITLE];
    describe(load, r, 1, subtitle);
    for (size_t i = 0; i < KINDS; i++) {
        const size_t length = kinds[i].series->count > 1 ? curve(kinds[i].series, points[count]) : 0;
        if (length > 0) {
            series[count] = (plot_series){kinds[i].name, points[count], length, false};
            count++;
        }
    }
    if (count == 0) {
        snprintf(message, LOAD_MESSAGE, "%s: not written: too few requests were answered to draw", path);
        return -1;
    }
    const plot_lines chart = {
        .title = "What clients wait for",
        .subtitle = subtitle,
        .x = {.label = "percentile"},
        .y = {.label = "milliseconds", .logarithmic = true},
        .series = series,
        .series_count = count,
    };
    return plot_write_lines(path, &chart, message);
}

/* ---- a sweep ---------------------------------------------------------------------------------------------
 */

enum { RESULTS = 64 };

static double place_of(const load_result *r) {
    return r->rate > 0 ? r->rate : (double)r->concurrency;
}

static int by_place(const void *a, const void *b) {
    const double x = place_of(*(const load_result *const *)a), y = place_of(*(const load_result *const *)b);
    return (x > y) - (x < y);
}

/* A logarithmic axis takes nothing at 0. */
static plot_point latency_of(const load_result *r, const load_series *latency) {
    const double y = fmax(load_quantile(latency, 0.5), 0.001);
    return (plot_point){place_of(r), y, y, fmax(load_quantile(latency, 0.99), y)};
}

static plot_point speed_of(const load_result *r) {
    const double y = r->seconds > 0 ? r->generated / r->seconds : 0;
    return (plot_point){place_of(r), y, y, y};
}

static int plot_sweep(const char *path, const load *load, const load_result *results, size_t count,
                      char message[LOAD_MESSAGE]) {
    const load_result *sorted[RESULTS];
    plot_point speed[RESULTS], first[RESULTS], gap[RESULTS], whole[RESULTS];
    char subtitle[SUBTITLE];
    count = count < RESULTS ? count : RESULTS;
    for (size_t i = 0; i < count; i++) {
        sorted[i] = &results[i];
    }
    qsort(sorted, count, sizeof *sorted, by_place);
    for (size_t i = 0; i < count; i++) {
        speed[i] = speed_of(sorted[i]);
        first[i] = latency_of(sorted[i], &sorted[i]->first);
        gap[i] = latency_of(sorted[i], &sorted[i]->gap);
        whole[i] = latency_of(sorted[i], &sorted[i]->whole);
    }
    const plot_axis x = {.label = results[0].rate > 0 ? "arrivals per second" : "clients at once",
                         .logarithmic = place_of(sorted[count - 1]) >= 8 * place_of(sorted[0])};
    const plot_series throughput[] = {{"generated tokens", speed, count, false}};
    const plot_series latency[] = {{"first token", first, count, false},
                                   {"between tokens", gap, count, false},
                                   {"end to end", whole, count, false}};
    const plot_lines charts[] = {{.title = "Throughput",
                                  .subtitle = "tokens that were generated in the seconds that count",
                                  .x = x,
                                  .y = {.label = "tokens/s", .from_zero = true},
                                  .series = throughput,
                                  .series_count = 1},
                                 {.title = "Latency",
                                  .subtitle = "medians; whiskers reach to the 99th percentile",
                                  .x = x,
                                  .y = {.label = "milliseconds", .logarithmic = true},
                                  .series = latency,
                                  .series_count = 3}};
    describe(load, results, count, subtitle);
    const plot_page page = {
        .title = "A server under load", .subtitle = subtitle, .charts = charts, .count = 2};
    return plot_write_page(path, &page, message);
}

int load_plot(const char *path, const load *load, const load_result *results, size_t count,
              char message[LOAD_MESSAGE]) {
    return count == 1 ? plot_percentiles(path, load, results, message)
                      : plot_sweep(path, load, results, count, message);
}
_Static_assert((int)PLOT_MESSAGE <= (int)LOAD_MESSAGE, "one message fits into the other");
