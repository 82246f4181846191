/* Draws what a JSON list on standard input describes: charts that a script makes up, hostile ones too.
 *
 *     draw_chart FOLDER < pictures.json
 *
 * writes FOLDER/0.svg and so on, and prints a line for each: empty, or why it is refused. A picture is
 * {"bars": [...]} or {"charts": [...]}; members are called as in plot/plot.h. A number may be a text ("nan"),
 * and a text {"hex": "c3"}: bytes that JSON does not hold. */
#include "plot/plot.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Small things that live until their picture is drawn. */
enum { KEPT = 100000 };
static void *kept[KEPT];
static size_t kept_count;

static void *keep(size_t count, size_t size) {
    void *memory = kept_count < KEPT ? calloc(count ? count : 1, size) : NULL;
    if (!memory) {
        fprintf(stderr, "draw_chart: out of memory\n");
        exit(2);
    }
    return kept[kept_count++] = memory;
}

static void release_kept(void) {
    while (kept_count > 0) {
        free(kept[--kept_count]);
    }
}

static const char *text_of(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name), *hex = json_object_get(value, "hex");
    if (!hex) {
        return json_string_value(value);
    }
    const char *digits = json_string_value(hex);
    char *bytes = keep(strlen(digits) / 2 + 1, 1);
    for (size_t i = 0; digits[2 * i]; i++) {
        const char pair[3] = {digits[2 * i], digits[2 * i + 1], '\0'};
        bytes[i] = (char)strtol(pair, NULL, 16);
    }
    return bytes;
}

static double number_of(const json_t *value) {
    return json_is_string(value) ? strtod(json_string_value(value), NULL) : json_number_value(value);
}

static bool flag_of(const json_t *object, const char *name) {
    return json_is_true(json_object_get(object, name));
}

static plot_axis axis_of(const json_t *object) {
    return (plot_axis){text_of(object, "label"), flag_of(object, "logarithmic"),
                       flag_of(object, "from_zero")};
}

static plot_series series_of(const json_t *object) {
    const json_t *points = json_object_get(object, "points");
    plot_series series = {.name = text_of(object, "name"),
                          .count = json_array_size(points),
                          .is_limit = flag_of(object, "is_limit")};
    plot_point *all = keep(series.count, sizeof *all);
    for (size_t i = 0; i < series.count; i++) {
        const json_t *point = json_array_get(points, i); /* [x, y] or [x, y, low, high] */
        const bool spread = json_array_size(point) == 4;
        const double y = number_of(json_array_get(point, 1));
        all[i] = (plot_point){number_of(json_array_get(point, 0)), y,
                              spread ? number_of(json_array_get(point, 2)) : y,
                              spread ? number_of(json_array_get(point, 3)) : y};
    }
    series.points = all;
    return series;
}

static int draw_lines(const char *path, const json_t *root, char message[PLOT_MESSAGE]) {
    const json_t *list = json_object_get(root, "charts");
    const size_t count = json_array_size(list);
    plot_lines *charts = keep(count, sizeof *charts);
    for (size_t i = 0; i < count; i++) {
        const json_t *object = json_array_get(list, i), *all = json_object_get(object, "series");
        plot_series *series = keep(json_array_size(all), sizeof *series);
        for (size_t k = 0; k < json_array_size(all); k++) {
            series[k] = series_of(json_array_get(all, k));
        }
        charts[i] = (plot_lines){text_of(object, "title"),
                                 text_of(object, "subtitle"),
                                 axis_of(json_object_get(object, "x")),
                                 axis_of(json_object_get(object, "y")),
                                 series,
                                 json_array_size(all)};
    }
    if (!json_object_get(root, "title")) {
        return plot_write_lines(path, charts, message);
    }
    const plot_page page = {text_of(root, "title"), text_of(root, "subtitle"), charts, count};
    return plot_write_page(path, &page, message);
}

static int draw_bars(const char *path, const json_t *root, char message[PLOT_MESSAGE]) {
    const json_t *list = json_object_get(root, "bars");
    plot_bars chart = {.title = text_of(root, "title"),
                       .subtitle = text_of(root, "subtitle"),
                       .bytes = flag_of(root, "bytes"),
                       .unit = text_of(root, "unit"),
                       .bar_count = json_array_size(list)};
    plot_bar *bars = keep(chart.bar_count, sizeof *bars);
    for (size_t i = 0; i < chart.bar_count; i++) {
        const json_t *object = json_array_get(list, i), *all = json_object_get(object, "parts");
        plot_part *parts = keep(json_array_size(all), sizeof *parts);
        for (size_t k = 0; k < json_array_size(all); k++) {
            const json_t *part = json_array_get(all, k);
            parts[k] = (plot_part){text_of(part, "name"), text_of(part, "detail"),
                                   number_of(json_object_get(part, "value"))};
        }
        bars[i] = (plot_bar){text_of(object, "name"), parts, json_array_size(all),
                             number_of(json_object_get(object, "limit")), text_of(object, "limit_name")};
    }
    chart.bars = bars;
    return plot_write_bars(path, &chart, message);
}

int main(int count, char **arguments) {
    json_error_t error;
    json_t *root = count == 2 ? json_loadf(stdin, 0, &error) : NULL;
    if (!root) {
        fprintf(stderr, "draw_chart FOLDER < pictures.json\n");
        return 2;
    }
    for (size_t i = 0; i < json_array_size(root); i++) {
        char message[PLOT_MESSAGE] = "", path[4096];
        const json_t *picture = json_array_get(root, i);
        const bool bars = json_object_get(picture, "bars");
        snprintf(path, sizeof path, "%.4000s/%zu.svg", arguments[1], i);
        printf("%s\n", (bars ? draw_bars : draw_lines)(path, picture, message) ? message : "");
        release_kept();
    }
    json_decref(root);
    return 0;
}
