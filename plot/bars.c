/* Stacked bars. Each has its numbers below it; equal names have equal colours in all bars, and a number that
 * stands in the part and before its name. */
#include "panel.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct stack {
    const plot_bars *chart;
    scale x;
    const char *known[PLOT_PARTS * PLOT_BARS]; /* names of parts, each once */
    size_t known_count;
    double name_width, value_width, exact_width; /* of the tables' columns */
} stack;

/* ---- what may be drawn ----------------------------------------------------------------------------------
 */

/* Bytes end before the largest unit does. */
static bool is_size(const plot_bars *chart, double value) {
    return isfinite(value) && value >= 0 && value <= (chart->bytes ? 1e18 : 1e300);
}

static int check_bars(const char *path, const plot_bars *chart, char message[PLOT_MESSAGE]) {
    char name[TEXT_SIZE];
    if (chart->bar_count == 0 || chart->bar_count > PLOT_BARS) {
        return plot_fail(message, path, "%zu bars: 1 to %d fit into a file", chart->bar_count, PLOT_BARS);
    }
    for (size_t i = 0; i < chart->bar_count; i++) {
        const plot_bar *bar = &chart->bars[i];
        text_fit(bar->name, 1, false, 40, name);
        if (bar->count == 0 || bar->count > PLOT_PARTS) {
            return plot_fail(message, path, "%.120s: %zu parts: 1 to %d fit into a bar", name, bar->count,
                             PLOT_PARTS);
        }
        for (size_t k = 0; k < bar->count; k++) {
            if (!is_size(chart, bar->parts[k].value)) {
                return plot_fail(message, path, "%.120s: part %zu is not from 0 to %s", name, k + 1,
                                 chart->bytes ? "1e18 bytes" : "1e300");
            }
        }
        if (!is_size(chart, bar->limit)) {
            return plot_fail(message, path, "%.120s: its limit is not from 0 to %s", name,
                             chart->bytes ? "1e18 bytes" : "1e300");
        }
    }
    return 0;
}

/* ---- texts ----------------------------------------------------------------------------------------------
 */

static double total_of(const plot_bar *bar) {
    double total = 0;
    for (size_t i = 0; i < bar->count; i++) {
        total += bar->parts[i].value;
    }
    return total;
}

/* "31.8 MiB", or "12.5 ms". */
static void value_words(const plot_bars *chart, double value, char out[TEXT_SIZE]) {
    char number[NUMBER_SIZE], unit[TEXT_SIZE];
    if (chart->bytes) {
        bytes_text(value, false, out);
        return;
    }
    number_text(value, number);
    text_fit(chart->unit, TEXT_PIXELS, false, 120, unit);
    snprintf(out, TEXT_SIZE, "%s%s%.200s", number, unit[0] ? " " : "", unit);
}

/* Which of all parts this is: its colour and number. */
static size_t index_of(stack *st, const char *name) {
    name = name ? name : "";
    for (size_t i = 0; i < st->known_count; i++) {
        if (strcmp(st->known[i], name) == 0) {
            return i;
        }
    }
    st->known[st->known_count] = name;
    return st->known_count++;
}

/* ---- drawing --------------------------------------------------------------------------------------------
 */

enum {
    BAR_HEIGHT = 30,
    SWATCH = 22,
    FAR = 4 /* a limit beyond so many times the largest bar is not shown to scale */
};

/* One scale for all bars; limits that are not far away are on it. */
static void make_scale(stack *st) {
    const plot_bars *chart = st->chart;
    double most = 0, reach = 0;
    for (size_t i = 0; i < chart->bar_count; i++) {
        most = fmax(most, total_of(&chart->bars[i]));
    }
    for (size_t i = 0; i < chart->bar_count; i++) {
        const double limit = chart->bars[i].limit;
        reach = limit <= most * FAR ? fmax(reach, limit) : reach;
    }
    scale_wish wish = {
        .most = fmax(most, reach), .from_zero = true, .binary = chart->bytes, .ticks = 10, .rounded = false};
    if (wish.most < (chart->bytes ? 8 : 1e-290)) {
        wish.most = chart->bytes ? 8 : 1;
    }
    for (wish.ticks = 8; wish.ticks >= 2; wish.ticks--) {
        scale_make(&st->x, &wish);
        st->x.begin = PAGE_EDGE;
        st->x.end = PAGE_WIDTH - PAGE_EDGE - 40;
        double free_from = 0;
        bool apart = true;
        for (int i = 0; i < st->x.count; i++) {
            const double at = scale_at(&st->x, st->x.ticks[i]);
            const double width = text_width(st->x.labels[i], TEXT_PIXELS, false);
            apart &= at - (i ? width / 2 : 0) >= free_from && at + width / 2 <= PAGE_WIDTH - PAGE_EDGE;
            free_from = at + (i ? width / 2 : width) + 10;
        }
        if (apart) {
            break;
        }
    }
}

static void draw_axis(svg *s, const stack *st, double y) {
    for (int i = 0; i < st->x.count; i++) {
        const double x = scale_at(&st->x, st->x.ticks[i]);
        svg_add(s, "<path class=\"axis\" d=\"M%.2f %.2fv5\"/>\n", x, y);
        svg_text(s, &(text_place){x, y + 19, i ? "middle" : "start", "faint x-tick"}, st->x.labels[i]);
    }
}

static void draw_parts(svg *s, stack *st, const plot_bar *bar, double y) {
    double before = 0;
    char words[TEXT_SIZE], name[TEXT_SIZE];
    for (size_t i = 0; i < bar->count; i++) {
        const size_t index = index_of(st, bar->parts[i].name);
        const double from = scale_at(&st->x, before), to = scale_at(&st->x, before + bar->parts[i].value);
        before += bar->parts[i].value;
        /* A seam, where there is room for one, tells neighbours apart without their colours. */
        const double seam = to - from > 3 ? 1 : 0;
        value_words(st->chart, bar->parts[i].value, words);
        text_fit(bar->parts[i].name, TEXT_PIXELS, false, 300, name);
        svg_add(s,
                "<g class=\"c%zu\"><rect class=\"part\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" "
                "height=\"%d\"><title>",
                index % COLOURS, from, y, to - from - seam, BAR_HEIGHT);
        svg_escape(s, name);
        svg_add(s, ": ");
        svg_escape(s, words);
        svg_add(s, "</title></rect></g>\n");
        if (to - from >= SWATCH) {
            snprintf(words, sizeof words, "%zu", index + 1);
            svg_text(s, &(text_place){(from + to - seam) / 2, y + BAR_HEIGHT / 2.0 + 4, "start", "number"},
                     words);
        }
    }
}

/* Above the bar: a mark at its place, or an arrow that says where it would be. Returns the bar's top. */
static double draw_limit(svg *s, const stack *st, const plot_bar *bar, double y) {
    char words[TEXT_SIZE], value[TEXT_SIZE], name[TEXT_SIZE];
    if (!(bar->limit > 0)) {
        return y - LINE_PIXELS + 6;
    }
    value_words(st->chart, bar->limit, value);
    text_fit(bar->limit_name ? bar->limit_name : "limit", TEXT_PIXELS, false, 300, name);
    const bool shown = bar->limit <= st->x.high * (1 + 1e-9);
    const double x = shown ? scale_at(&st->x, bar->limit) : PAGE_WIDTH - PAGE_EDGE;
    const double edge = shown ? fmin(x, PAGE_WIDTH - PAGE_EDGE) : x - 34;
    snprintf(words, sizeof words, "%.300s %.180s", name, value);
    const bool left = edge < PAGE_EDGE + text_width(words, TEXT_PIXELS, false) + 6;
    svg_text(s, &(text_place){left ? edge + 6 : edge - 6, y, left ? "start" : "end", "faint"}, words);
    if (shown) {
        svg_add(s, "<path class=\"limit limit-at\" d=\"M%.2f %.2fV%.2f\"/>\n", x, y - 11,
                y + 12 + BAR_HEIGHT);
    } else {
        svg_add(s,
                "<path class=\"limit\" d=\"M%.2f %.2fh26\"/><path class=\"limit-mark\" d=\"M%.2f %.2fl-8 "
                "-4.5v9z\"/>\n",
                x - 34, y - 4.5, x, y - 4.5);
    }
    return y + 8;
}

/* Columns as wide as what is in them. */
static void measure_columns(stack *st) {
    enum { NAME_MOST = 230 };
    char text[TEXT_SIZE];
    for (size_t i = 0; i < st->chart->bar_count; i++) {
        const plot_bar *bar = &st->chart->bars[i];
        for (size_t k = 0; k < bar->count; k++) {
            text_fit(bar->parts[k].name, TEXT_PIXELS, false, NAME_MOST, text);
            st->name_width = fmax(st->name_width, text_width(text, TEXT_PIXELS, false));
            value_words(st->chart, bar->parts[k].value, text);
            st->value_width = fmax(st->value_width, text_width(text, TEXT_PIXELS, false));
            exact_bytes_text(bar->parts[k].value, text);
            st->exact_width = fmax(st->exact_width, text_width(text, TEXT_PIXELS, false));
        }
    }
    st->exact_width = st->chart->bytes ? st->exact_width : 0;
}

/* A row of the table below a bar: number, name, human and exact size, what stands behind it. */
static double draw_row(svg *s, stack *st, const plot_part *part, double y) {
    enum { NAME_AT = PAGE_EDGE + SWATCH + 10, GAP = 18 };
    char text[TEXT_SIZE];
    const size_t index = index_of(st, part->name);
    double x = NAME_AT + st->name_width;
    svg_add(s,
            "<g class=\"c%zu\"><rect class=\"part\" x=\"%d\" y=\"%.2f\" width=\"%d\" height=\"14\" "
            "rx=\"2\"/></g>",
            index % COLOURS, PAGE_EDGE, y - 11.5, SWATCH);
    snprintf(text, sizeof text, "%zu", index + 1);
    svg_text(s, &(text_place){PAGE_EDGE + SWATCH / 2.0, y - 0.5, "start", "number"}, text);
    text_fit(part->name, TEXT_PIXELS, false, st->name_width, text);
    svg_text(s, &(text_place){NAME_AT, y, "start", "name"}, text);
    value_words(st->chart, part->value, text);
    x += GAP + st->value_width;
    svg_text(s, &(text_place){x, y, "end", ""}, text);
    if (st->chart->bytes) {
        exact_bytes_text(part->value, text);
        x += GAP + st->exact_width;
        svg_text(s, &(text_place){x, y, "end", "faint"}, text);
    }
    x += GAP;
    text_fit(part->detail, TEXT_PIXELS, false, PAGE_WIDTH - PAGE_EDGE - x, text);
    if (text[0]) {
        svg_text(s, &(text_place){x, y, "start", "faint"}, text);
    }
    return y + LINE_PIXELS;
}

static double draw_bar(svg *s, stack *st, const plot_bar *bar, double y) {
    char name[TEXT_SIZE], total[TEXT_SIZE], words[2 * TEXT_SIZE], exact[NUMBER_SIZE];
    const double sum = total_of(bar);
    value_words(st->chart, sum, total);
    exact_bytes_text(sum, exact);
    snprintf(words, sizeof words, st->chart->bytes ? "%.200s (%.40s)" : "%.200s", total, exact);
    text_fit(words, TEXT_PIXELS, true, 360, total);
    const double wide = PAGE_WIDTH - 2 * PAGE_EDGE - text_width(total, TEXT_PIXELS, true) - 16;
    text_fit(bar->name, TEXT_PIXELS, true, wide, name);
    svg_text(s, &(text_place){PAGE_EDGE, y, "start", "strong"}, name);
    svg_text(s, &(text_place){PAGE_WIDTH - PAGE_EDGE, y, "end", "strong"}, total);
    y += LINE_PIXELS + 2;
    if (bar->limit > 0 && sum > bar->limit) {
        value_words(st->chart, sum - bar->limit, total);
        snprintf(words, sizeof words, "over the limit by %.200s", total);
        svg_text(s, &(text_place){PAGE_EDGE, y, "start", "over-words"}, words);
        y += LINE_PIXELS + 2;
    }
    svg_add(s, "<g class=\"bar\">\n");
    y = draw_limit(s, st, bar, y);
    draw_parts(s, st, bar, y);
    y += BAR_HEIGHT + 3;
    draw_axis(s, st, y);
    svg_add(s, "</g>\n");
    y += 50;
    for (size_t i = 0; i < bar->count; i++) {
        y = draw_row(s, st, &bar->parts[i], y);
    }
    return y + 16;
}

static void describe_bar(svg *s, const stack *st, const plot_bar *bar) {
    char text[TEXT_SIZE];
    text_clean(bar->name, text);
    svg_escape(s, text);
    value_words(st->chart, total_of(bar), text);
    svg_add(s, ": ");
    svg_escape(s, text);
    for (size_t i = 0; i < bar->count; i++) {
        svg_add(s, i ? ", " : " of ");
        text_clean(bar->parts[i].name, text);
        svg_escape(s, text);
        svg_add(s, " ");
        value_words(st->chart, bar->parts[i].value, text);
        svg_escape(s, text);
    }
    if (bar->limit > 0) {
        value_words(st->chart, bar->limit, text);
        svg_add(s, "; limit ");
        svg_escape(s, text);
    }
    svg_add(s, ". ");
}

int plot_write_bars(const char *path, const plot_bars *chart, char message[PLOT_MESSAGE]) {
    svg body, description = {0};
    stack st = {.chart = chart};
    if (check_bars(path, chart, message) || svg_begin(&body, message)) {
        return -1;
    }
    make_scale(&st);
    measure_columns(&st);
    double y = draw_head(&body, chart->title, chart->subtitle) + 6;
    for (size_t i = 0; i < chart->bar_count; i++) {
        y = draw_bar(&body, &st, &chart->bars[i], y);
        describe_bar(&description, &st, &chart->bars[i]);
    }
    const svg_page whole = {chart->title, &description, &body, ceil(y) - 18};
    const int code = svg_write(path, &whole, message);
    svg_end(&description);
    svg_end(&body);
    return code;
}
