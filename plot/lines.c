/* Line charts. Names stand at the lines' ends where there is room, else in a legend above the chart. */
#include "panel.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- what may be drawn ----------------------------------------------------------------------------------
 */

static bool fits(const plot_axis *axis, double value) {
    return isfinite(value) && fabs(value) <= 1e300 && (!axis->logarithmic || value >= 1e-300);
}

/* NULL, or which rule a point breaks. */
static const char *wrong_point(const plot_lines *chart, const plot_point *p, const plot_point *before) {
    const double values[] = {p->x, p->y, p->low, p->high};
    for (int i = 0; i < 4; i++) {
        const plot_axis *axis = i ? &chart->y : &chart->x;
        if (!isfinite(values[i])) {
            return "is no finite number";
        }
        if (!fits(axis, values[i])) {
            return axis->logarithmic ? "is not from 1e-300 to 1e300, as a logarithmic axis needs"
                                     : "is beyond 1e300";
        }
    }
    return !(p->low <= p->y && p->y <= p->high) ? "does not lie in its own spread"
           : before && p->x < before->x         ? "lies to the left of the one before"
                                                : NULL;
}

static int check_series(const char *path, const plot_lines *chart, const plot_series *series,
                        char message[PLOT_MESSAGE]) {
    char name[TEXT_SIZE];
    text_fit(series->name, 1, false, 40, name);
    if (series->count > PLOT_POINTS) {
        return plot_fail(message, path, "%.160s: more than %d points", name, PLOT_POINTS);
    }
    for (size_t i = 0; i < series->count; i++) {
        const char *wrong = wrong_point(chart, &series->points[i], i ? &series->points[i - 1] : NULL);
        if (wrong) {
            return plot_fail(message, path, "%.120s: point %zu %s", name, i + 1, wrong);
        }
    }
    return 0;
}

static int check_chart(const char *path, const plot_lines *chart, char message[PLOT_MESSAGE]) {
    size_t points = 0;
    if (chart->series_count > PLOT_SERIES) {
        return plot_fail(message, path, "more than %d lines in a chart", PLOT_SERIES);
    }
    for (size_t i = 0; i < chart->series_count; i++) {
        points += chart->series[i].is_limit ? 0 : chart->series[i].count;
        if (check_series(path, chart, &chart->series[i], message)) {
            return -1;
        }
    }
    return points > 0 ? 0 : plot_fail(message, path, "a chart without a point");
}

/* ---- axes -----------------------------------------------------------------------------------------------
 */

static void widen(scale_wish *wish, double value, bool first) {
    wish->least = first || value < wish->least ? value : wish->least;
    wish->most = first || value > wish->most ? value : wish->most;
    int exponent;
    wish->whole = (first || wish->whole) && value == floor(value);
    wish->binary = (first || wish->binary) && frexp(value, &exponent) == 0.5 && wish->logarithmic;
}

static void collect(const plot_lines *chart, scale_wish *x, scale_wish *y) {
    *x = (scale_wish){.logarithmic = chart->x.logarithmic, .from_zero = chart->x.from_zero, .ticks = 10};
    *y = (scale_wish){
        .logarithmic = chart->y.logarithmic, .from_zero = chart->y.from_zero, .rounded = true, .ticks = 5};
    bool first_x = true, first_y = true;
    for (size_t i = 0; i < chart->series_count; i++) {
        const plot_series *series = &chart->series[i];
        const bool across = series->is_limit && series->count == 1;
        for (size_t k = 0; k < series->count; k++) {
            const plot_point *p = &series->points[k];
            if (!across) {
                widen(x, p->x, first_x);
                first_x = false;
            }
            widen(y, p->low, first_y);
            widen(y, p->high, false);
            first_y = false;
        }
    }
    y->binary = y->whole = false;
}

/* Do the labels of the horizontal axis stand apart, and on the page? */
static bool labels_fit(const scale *x) {
    double free_from = PAGE_EDGE;
    for (int i = 0; i < x->count; i++) {
        const double half = text_width(x->labels[i], TEXT_PIXELS, false) / 2, at = scale_at(x, x->ticks[i]);
        if (at - half < free_from || at + half > PAGE_WIDTH - PAGE_EDGE) {
            return false;
        }
        free_from = at + half + 12;
    }
    return true;
}

static void fit_ticks(panel *p, scale_wish *wish) {
    for (wish->ticks = 10; wish->ticks >= 2; wish->ticks--) {
        scale_make(&p->x, wish);
        p->x.begin = p->left + PANEL_PAD;
        p->x.end = p->right - PANEL_PAD;
        if (labels_fit(&p->x)) {
            break;
        }
    }
}

/* ---- names at the ends ----------------------------------------------------------------------------------
 */

enum { NAME_PIXELS = 190, LEADER = 22, NAME_SHIFT = 40 };

/* Moves labels apart that would overlap; false: too far from their lines' ends. */
static bool spread(panel *p, const size_t *order, size_t count) {
    double last = p->top - LINE_PIXELS;
    for (size_t i = 0; i < count; i++) {
        const double wanted = fmax(p->ends[order[i]], last + LINE_PIXELS - 2);
        last = p->label_y[order[i]] = wanted;
    }
    last = p->bottom + LINE_PIXELS;
    for (size_t i = count; i-- > 0;) {
        p->label_y[order[i]] = fmin(p->label_y[order[i]], last - LINE_PIXELS + 2);
        last = p->label_y[order[i]];
    }
    for (size_t i = 0; i < count; i++) {
        const double y = p->label_y[order[i]];
        if (y < p->top - 2 || fabs(y - p->ends[order[i]]) > NAME_SHIFT) {
            return false;
        }
    }
    return true;
}

/* Are names at the ends possible? Then where, and how wide they are. */
static void place_names(panel *p, const scale_wish *x) {
    const plot_lines *chart = p->chart;
    size_t order[PLOT_SERIES];
    scale share;
    p->names_width = 0;
    p->direct = false;
    scale_make(&share, x);
    for (size_t i = 0; i < chart->series_count; i++) {
        const plot_series *series = &chart->series[i];
        const plot_point *last = series->count ? &series->points[series->count - 1] : NULL;
        const bool across = series->is_limit && series->count == 1;
        text_clean(series->name, p->name);
        const double width = text_width(p->name, TEXT_PIXELS, false);
        if (!last || width > NAME_PIXELS || (!across && scale_at(&share, last->x) < 0.985)) {
            return;
        }
        p->names_width = fmax(p->names_width, width);
        p->ends[i] = scale_at(&p->y, last->y);
        size_t at = i;
        for (; at > 0 && p->ends[order[at - 1]] > p->ends[i]; at--) {
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    p->direct = spread(p, order, chart->series_count);
}

/* ---- drawing --------------------------------------------------------------------------------------------
 */

static void draw_axes(svg *s, panel *p) {
    char text[TEXT_SIZE];
    text_fit(p->chart->y.label, TEXT_PIXELS, false, PAGE_WIDTH - 2 * PAGE_EDGE, text);
    svg_text(s, &(text_place){PAGE_EDGE, p->top - 14, "start", "faint"}, text);
    for (int i = 0; i < p->y.count; i++) {
        const double y = scale_at(&p->y, p->y.ticks[i]);
        svg_add(s, "<path class=\"grid\" d=\"M%.2f %.2fH%.2f\"/>\n", p->left, y, p->right);
        svg_text(s, &(text_place){p->left - 8, y + 4.5, "end", "faint y-tick"}, p->y.labels[i]);
    }
    svg_add(s, "<path class=\"axis\" d=\"M%.2f %.2fH%.2f\"/>\n", p->left, p->bottom, p->right);
    const bool labels = labels_fit(&p->x);
    for (int i = 0; i < p->x.count; i++) {
        const double x = scale_at(&p->x, p->x.ticks[i]);
        svg_add(s, "<path class=\"axis\" d=\"M%.2f %.2fv5\"/>\n", x, p->bottom);
        if (labels || i == 0) {
            const double half = text_width(p->x.labels[i], TEXT_PIXELS, false) / 2;
            svg_text(s, &(text_place){fmax(x, PAGE_EDGE + half), p->bottom + 20, "middle", "faint x-tick"},
                     p->x.labels[i]);
        }
    }
    text_fit(p->chart->x.label, TEXT_PIXELS, false, p->right - p->left, text);
    svg_text(s, &(text_place){(p->left + p->right) / 2, p->bottom + 40, "middle", "faint"}, text);
}

static void draw_path(svg *s, const panel *p, const plot_series *series) {
    svg_add(s, "<path class=\"%s\" d=\"", series->is_limit ? "limit" : "line");
    if (series->is_limit && series->count == 1) {
        svg_add(s, "M%.2f %.2fH%.2f", p->left, scale_at(&p->y, series->points[0].y), p->right);
    }
    for (size_t i = 0; i < series->count && series->count > 1; i++) {
        svg_add(s, "%s%.2f %.2f",
                i == 0   ? "M"
                : i == 1 ? "L"
                         : " ",
                scale_at(&p->x, series->points[i].x), scale_at(&p->y, series->points[i].y));
    }
    svg_add(s, "\"/>\n");
}

/* Spreads of many points are a band. */
static void draw_band(svg *s, const panel *p, const plot_series *series) {
    svg_add(s, "<path class=\"band\" d=\"");
    for (size_t i = 0; i < series->count; i++) {
        svg_add(s, "%s%.2f %.2f",
                i == 0   ? "M"
                : i == 1 ? "L"
                         : " ",
                scale_at(&p->x, series->points[i].x), scale_at(&p->y, series->points[i].high));
    }
    for (size_t i = series->count; i-- > 0;) {
        svg_add(s, " %.2f %.2f", scale_at(&p->x, series->points[i].x),
                scale_at(&p->y, series->points[i].low));
    }
    svg_add(s, "z\"/>\n");
}

static void draw_whisker(svg *s, const panel *p, const plot_point *at) {
    const double x = scale_at(&p->x, at->x), low = scale_at(&p->y, at->low), high = scale_at(&p->y, at->high);
    if (at->low < at->high) {
        svg_add(s, "<path class=\"whisker\" d=\"M%.2f %.2fV%.2fM%.2f %.2fh8M%.2f %.2fh8\"/>\n", x, low, high,
                x - 4, low, x - 4, high);
    }
}

/* "NAME: 12.5 (12 to 13) at 64" */
static void point_words(const char *name, const plot_point *at, char words[2 * TEXT_SIZE]) {
    char x[NUMBER_SIZE], y[NUMBER_SIZE], low[NUMBER_SIZE], high[NUMBER_SIZE];
    number_text(at->x, x);
    number_text(at->y, y);
    number_text(at->low, low);
    number_text(at->high, high);
    const bool spread = at->low < at->high;
    snprintf(words, 2 * TEXT_SIZE, "%s%s%s%s%s%s%s%s at %s", name, name[0] ? ": " : "", y, spread ? " (" : "",
             spread ? low : "", spread ? " to " : "", spread ? high : "", spread ? ")" : "", x);
}

/* All points of a line get a mark up to so many; of more, those that are so many pixels from each other. */
enum { MARKED = 40, MARK_DISTANCE = 18 };

static void draw_series(svg *s, panel *p, const plot_series *series, size_t colour) {
    char words[2 * TEXT_SIZE];
    const bool dense = series->count > MARKED;
    if (series->count == 0) {
        return;
    }
    text_fit(series->name, TEXT_PIXELS, false, 400, p->name);
    svg_add(s, "<g class=\"series c%zu\">\n", colour % COLOURS);
    if (dense) {
        draw_band(s, p, series);
    }
    draw_path(s, p, series);
    for (size_t i = 0; i < series->count && !dense; i++) {
        draw_whisker(s, p, &series->points[i]);
    }
    double last_x = -INFINITY, last_y = 0;
    for (size_t i = 0; i < series->count; i++) {
        const plot_point *at = &series->points[i];
        const double x = scale_at(&p->x, at->x), y = scale_at(&p->y, at->y);
        if (!dense || hypot(x - last_x, y - last_y) >= MARK_DISTANCE) {
            point_words(p->name, at, words);
            svg_mark(s, x, y, (int)(colour % MARKS), words);
            last_x = x;
            last_y = y;
        }
    }
    svg_add(s, "</g>\n");
}

static void draw_name(svg *s, panel *p, size_t index, size_t colour) {
    const plot_series *series = &p->chart->series[index];
    const plot_point *last = &series->points[series->count - 1];
    const bool across = series->is_limit && series->count == 1;
    const double x = across ? p->right : scale_at(&p->x, last->x) + 7, y = p->label_y[index];
    text_clean(series->name, p->name);
    if (!p->name[0]) {
        return;
    }
    if (series->is_limit) {
        svg_add(s, "<path class=\"limit\" d=\"M%.2f %.2fL%.2f %.2f\"/>\n", across ? x : x - 7, p->ends[index],
                p->right + LEADER - 4, y);
    } else {
        svg_add(s, "<path class=\"leader c%zu\" d=\"M%.2f %.2fL%.2f %.2f\"/>\n", colour % COLOURS, x,
                p->ends[index], p->right + LEADER - 4, y);
    }
    svg_text(s, &(text_place){p->right + LEADER, y + 4.5, "start", "name"}, p->name);
}

/* Entries side by side, as many as a row takes. Returns where the next thing begins. */
static double draw_legend(svg *s, panel *p, double y) {
    enum { SAMPLE = 30, GAP = 22 };
    double x = PAGE_EDGE;
    size_t colour = 0;
    bool any = false;
    const double most = PAGE_WIDTH - 2 * PAGE_EDGE - SAMPLE - 8;
    for (size_t i = 0; i < p->chart->series_count; i++) {
        const plot_series *series = &p->chart->series[i];
        char name[TEXT_SIZE];
        text_fit(series->name, TEXT_PIXELS, false, series->count ? most : most - 80, name);
        if (!name[0]) {
            colour += !series->is_limit;
            continue;
        }
        any = true;
        snprintf(p->name, sizeof p->name, "%.480s%s", name, series->count ? "" : " (no points)");
        const double width = SAMPLE + 8 + text_width(p->name, TEXT_PIXELS, false);
        if (x > PAGE_EDGE && x + width > PAGE_WIDTH - PAGE_EDGE) {
            x = PAGE_EDGE;
            y += LINE_PIXELS + 1;
        }
        svg_add(s, "<g class=\"c%zu\"><path class=\"%s\" d=\"M%.2f %.2fh%d\"/>", colour % COLOURS,
                series->is_limit ? "limit" : "line", x, y - 4.5, SAMPLE);
        if (!series->is_limit) {
            svg_mark(s, x + SAMPLE / 2.0, y - 4.5, (int)(colour % MARKS), NULL);
        }
        svg_add(s, "</g>");
        svg_text(s, &(text_place){x + SAMPLE + 8, y, "start", "name"}, p->name);
        x += width + GAP;
        colour += !series->is_limit;
    }
    return any ? y + LINE_PIXELS + 5 : y;
}

/* ---- in words -------------------------------------------------------------------------------------------
 */

static void describe_series(svg *s, panel *p, const plot_series *series) {
    enum { TOLD = 12 };
    char words[2 * TEXT_SIZE];
    text_fit(series->name, TEXT_PIXELS, false, 400, p->name);
    svg_escape(s, p->name);
    svg_add(s, series->is_limit ? " (limit): " : ": ");
    if (series->count > TOLD) {
        const plot_point *least = series->points, *most = least;
        for (const plot_point *at = least; at < series->points + series->count; at++) {
            least = at->y < least->y ? at : least;
            most = at->y > most->y ? at : most;
        }
        svg_add(s, "%zu points, ", series->count);
        const plot_point *told[] = {series->points, series->points + series->count - 1, least, most};
        static const char *const called[] = {"first ", ", last ", ", least ", ", most "};
        for (int i = 0; i < 4; i++) {
            point_words("", told[i], words);
            svg_add(s, "%s%s", called[i], words);
        }
    } else {
        for (size_t i = 0; i < series->count; i++) {
            point_words("", &series->points[i], words);
            svg_add(s, "%s%s", i ? ", " : "", words);
        }
    }
    svg_add(s, series->count ? ". " : "no points. ");
}

static void describe(svg *s, panel *p) {
    char text[TEXT_SIZE];
    const plot_axis *axes[] = {&p->chart->x, &p->chart->y};
    text_clean(p->chart->title, text);
    svg_escape(s, text);
    svg_add(s, ". ");
    for (int i = 0; i < 2; i++) {
        text_clean(axes[i]->label, text);
        svg_add(s, i ? "Vertical: " : "Horizontal: ");
        svg_escape(s, text);
        svg_add(s, axes[i]->logarithmic ? ", logarithmic. " : ". ");
    }
    for (size_t i = 0; i < p->chart->series_count; i++) {
        describe_series(s, p, &p->chart->series[i]);
    }
}

/* ---- a chart --------------------------------------------------------------------------------------------
 */

/* From `y` down; returns where the next one may begin. */
static double draw_chart(svg *s, const plot_lines *chart, double y, double height) {
    panel p = {.chart = chart};
    scale_wish x, vertical;
    collect(chart, &x, &vertical);
    scale_make(&p.y, &vertical);
    double widest = 0;
    for (int i = 0; i < p.y.count; i++) {
        widest = fmax(widest, text_width(p.y.labels[i], TEXT_PIXELS, false));
    }
    p.left = PAGE_EDGE + widest + 10;
    p.top = 0;
    p.bottom = p.y.begin = height;
    p.y.end = 0;
    place_names(&p, &x);
    svg_add(s, "<g class=\"chart\">\n");
    y = p.direct ? y : draw_legend(s, &p, y);
    p.top = p.y.end = y + 22;
    p.bottom = p.y.begin = p.top + height;
    if (p.direct) {
        place_names(&p, &x);
    }
    p.right = PAGE_WIDTH - PAGE_EDGE - (p.direct ? p.names_width + LEADER : PANEL_PAD);
    fit_ticks(&p, &x);
    draw_axes(s, &p);
    size_t colour = 0;
    for (int limits = 1; limits >= 0; limits--) {
        for (size_t i = 0; i < chart->series_count; i++) {
            const plot_series *series = &chart->series[i];
            if (limits && series->is_limit && series->count) {
                svg_add(s, "<g class=\"series\">\n");
                draw_path(s, &p, series);
                svg_add(s, "</g>\n");
            } else if (!limits && !series->is_limit) {
                draw_series(s, &p, series, colour++);
            }
        }
    }
    colour = 0;
    for (size_t i = 0; i < chart->series_count && p.direct; i++) {
        draw_name(s, &p, i, colour);
        colour += !chart->series[i].is_limit;
    }
    svg_add(s, "</g>\n");
    return p.bottom + 70;
}

/* ---- files ----------------------------------------------------------------------------------------------
 */

double draw_head(svg *s, const char *title, const char *subtitle) {
    const double width = PAGE_WIDTH - 2 * PAGE_EDGE;
    double y = PAGE_EDGE + TITLE_PIXELS;
    y += (TITLE_PIXELS + 6) * svg_lines(s, &(text_place){PAGE_EDGE, y, "start", "title"}, title, width, 2);
    y += LINE_PIXELS * svg_lines(s, &(text_place){PAGE_EDGE, y, "start", "faint"}, subtitle, width, 3);
    return y + 8;
}

int plot_write_page(const char *path, const plot_page *page, char message[PLOT_MESSAGE]) {
    svg body, description = {0};
    if (page->count == 0 || page->count > PLOT_CHARTS) {
        return plot_fail(message, path, "%zu charts: 1 to %d fit into a file", page->count, PLOT_CHARTS);
    }
    for (size_t i = 0; i < page->count; i++) {
        if (check_chart(path, &page->charts[i], message)) {
            return -1;
        }
    }
    if (svg_begin(&body, message)) {
        return -1;
    }
    double y = draw_head(&body, page->title, page->subtitle);
    for (size_t i = 0; i < page->count; i++) {
        const plot_lines *chart = &page->charts[i];
        const bool alone = chart->title == page->title;
        const double width = PAGE_WIDTH - 2 * PAGE_EDGE;
        if (!alone) {
            y += LINE_PIXELS *
                 svg_lines(&body, &(text_place){PAGE_EDGE, y, "start", "strong"}, chart->title, width, 2);
            y += LINE_PIXELS *
                 svg_lines(&body, &(text_place){PAGE_EDGE, y, "start", "faint"}, chart->subtitle, width, 2);
            y += 4;
        }
        y = draw_chart(&body, chart, y, page->count > 1 ? 220 : 280);
        describe(&description, &(panel){.chart = chart});
    }
    const svg_page whole = {page->title, &description, &body, ceil(y) - 14};
    const int code = svg_write(path, &whole, message);
    svg_end(&description);
    svg_end(&body);
    return code;
}

int plot_write_lines(const char *path, const plot_lines *chart, char message[PLOT_MESSAGE]) {
    return plot_write_page(path, &(plot_page){chart->title, chart->subtitle, chart, 1}, message);
}
