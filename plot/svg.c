/* An SVG file. Its colours are those of Okabe and Ito (Color Universal Design, 2008), which colour-blind
 * readers tell apart; on white the pale ones are darker. */
#include "svg.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char STYLE[] =
    "text{font:13px system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica Neue\",Arial,sans-serif;"
    "fill:#1f2328}\n"
    ".title{font-size:16px;font-weight:600}.strong{font-weight:600}.faint{fill:#59636e}\n"
    ".number{text-anchor:middle;fill:#fff;font-size:11px;font-weight:600}\n"
    ".back{fill:#fff}.grid{stroke:#d1d9e0;stroke-width:1}.axis{stroke:#59636e;stroke-width:1}\n"
    ".line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}\n"
    ".mark{fill:currentColor;stroke:currentColor;stroke-width:1.5;stroke-linejoin:round}\n"
    ".hollow{fill:#fff}.stroke{fill:none;stroke-width:2.5}\n"
    ".whisker{fill:none;stroke:currentColor;stroke-width:1.2}.band{fill:currentColor;fill-opacity:.18}\n"
    ".leader{fill:none;stroke:currentColor;stroke-width:1;stroke-opacity:.6}\n"
    ".part{fill:currentColor}.over-words{fill:#b3261e}\n"
    ".limit{fill:none;stroke:#59636e;stroke-width:1.8;stroke-dasharray:7 5}.limit-mark{fill:#59636e}\n"
    ".c0{color:#0072b2}.c1{color:#c25400}.c2{color:#00805d}.c3{color:#b04c86}.c4{color:#a66f00}\n"
    ".c5{color:#1f7fb8}.c6{color:#3d444d}\n"
    "@media (prefers-color-scheme:dark){\n"
    "text{fill:#e6edf3}.faint{fill:#9198a1}.number{fill:#0d1117}.back{fill:#0d1117}.hollow{fill:#0d1117}\n"
    ".grid{stroke:#30363d}.axis{stroke:#9198a1}.limit{stroke:#9198a1}.limit-mark{fill:#9198a1}\n"
    ".over-words{fill:#ff8a80}\n"
    ".c0{color:#56b4e9}.c1{color:#f0803c}.c2{color:#1fc79a}.c3{color:#dc93bb}.c4{color:#e69f00}\n"
    ".c5{color:#8ecdf2}.c6{color:#d1d9e0}}\n";

int plot_fail(char message[PLOT_MESSAGE], const char *path, const char *format, ...) {
    char rule[PLOT_MESSAGE], name[TEXT_SIZE];
    va_list values;
    va_start(values, format);
    vsnprintf(rule, sizeof rule, format, values);
    va_end(values);
    text_fit(path, 1, false, 100, name); /* a line stays readable */
    snprintf(message, PLOT_MESSAGE, "%.255s: %.240s", name, rule);
    return -1;
}

int svg_begin(svg *s, char message[PLOT_MESSAGE]) {
    *s = (svg){.plain = newlocale(LC_ALL_MASK, "C", (locale_t)0)};
    if (!s->plain) {
        snprintf(message, PLOT_MESSAGE, "out of memory");
        return -1;
    }
    s->before = uselocale(s->plain);
    return 0;
}

void svg_end(svg *s) {
    if (s->plain) {
        uselocale(s->before);
        freelocale(s->plain);
    }
    free(s->data);
    *s = (svg){0};
}

static bool grow(svg *s, size_t more) {
    if (s->length + more < s->capacity) {
        return true;
    }
    const size_t larger = 2 * (s->length + more) + 4096;
    char *data = s->failed ? NULL : realloc(s->data, larger);
    s->failed = !data;
    if (data) {
        s->data = data;
        s->capacity = larger;
    }
    return data;
}

static void add_bytes(svg *s, const char *bytes, size_t length) {
    if (grow(s, length + 1)) {
        memcpy(s->data + s->length, bytes, length);
        s->length += length;
        s->data[s->length] = '\0';
    }
}

void svg_add(svg *s, const char *format, ...) {
    char piece[1024];
    va_list values;
    va_start(values, format);
    const int length = vsnprintf(piece, sizeof piece, format, values);
    va_end(values);
    if (length < 0 || (size_t)length >= sizeof piece) {
        s->failed = true;
        return;
    }
    add_bytes(s, piece, (size_t)length);
}

void svg_escape(svg *s, const char *text) {
    for (; *text; text++) {
        const char *as = *text == '<'    ? "&lt;"
                         : *text == '>'  ? "&gt;"
                         : *text == '&'  ? "&amp;"
                         : *text == '"'  ? "&quot;"
                         : *text == '\'' ? "&#39;"
                                         : NULL;
        add_bytes(s, as ? as : text, as ? strlen(as) : 1);
    }
}

void svg_text(svg *s, const text_place *place, const char *text) {
    svg_add(s, "<text x=\"%.2f\" y=\"%.2f\"", place->x, place->y);
    if (strcmp(place->anchor, "start") != 0) {
        svg_add(s, " text-anchor=\"%s\"", place->anchor);
    }
    if (place->kind[0]) {
        svg_add(s, " class=\"%s\"", place->kind);
    }
    svg_add(s, ">");
    svg_escape(s, text);
    svg_add(s, "</text>\n");
}

int svg_lines(svg *s, const text_place *place, const char *bytes, double width, int most) {
    char text[TEXT_SIZE], line[TEXT_SIZE];
    const bool title = strcmp(place->kind, "title") == 0, bold = title || strcmp(place->kind, "strong") == 0;
    const double size = title ? TITLE_PIXELS : TEXT_PIXELS;
    text_place at = *place;
    int count = 0;
    text_clean(bytes, text);
    for (const char *rest = text; *rest && count < most; count++, at.y += size + 6) {
        const size_t length = count + 1 < most ? text_line(rest, size, bold, width) : strlen(rest);
        memcpy(line, rest, length);
        line[length] = '\0';
        rest += length;
        text_fit(line, size, bold, width, line);
        svg_text(s, &at, line);
    }
    return count;
}

void svg_mark(svg *s, double x, double y, int shape, const char *title) {
    static const struct {
        const char *kind, *path; /* around 0, 0; circles have none */
    } shapes[MARKS] = {
        {"mark", NULL},
        {"mark", "M-4 -4h8v8h-8z"},
        {"mark", "M0 -5.2l5 9h-10z"},
        {"mark", "M0 -5.6l5 5.6l-5 5.6l-5 -5.6z"},
        {"mark hollow", NULL},
        {"mark stroke", "M-4.5 -4.5l9 9m0 -9l-9 9"},
        {"mark", "M0 5.2l5 -9h-10z"},
        {"mark stroke", "M-5.5 0h11m-5.5 -5.5v11"},
    };
    const char *path = shapes[shape].path;
    svg_add(s, "<%s class=\"%s\" transform=\"translate(%.2f %.2f)\" ", path ? "path" : "circle",
            shapes[shape].kind, x, y);
    svg_add(s, path ? "d=\"%s\">" : "r=\"4\">", path);
    if (title) {
        svg_add(s, "<title>");
        svg_escape(s, title);
        svg_add(s, "</title>");
    }
    svg_add(s, path ? "</path>\n" : "</circle>\n");
}

int svg_write(const char *path, const svg_page *page, char message[PLOT_MESSAGE]) {
    svg whole = {0};
    char title[TEXT_SIZE];
    text_clean(page->title, title);
    svg_add(&whole,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" viewBox=\"0 0 %d %.0f\" "
            "role=\"img\" aria-labelledby=\"title desc\">\n<title id=\"title\">",
            PAGE_WIDTH, page->height, PAGE_WIDTH, page->height);
    svg_escape(&whole, title);
    svg_add(&whole, "</title>\n<desc id=\"desc\">");
    add_bytes(&whole, page->description->data ? page->description->data : "", page->description->length);
    svg_add(&whole, "</desc>\n<style>");
    add_bytes(&whole, STYLE, sizeof STYLE - 1);
    svg_add(&whole, "</style>\n<rect class=\"back\" width=\"%d\" height=\"%.0f\"/>\n", PAGE_WIDTH,
            page->height);
    add_bytes(&whole, page->body->data ? page->body->data : "", page->body->length);
    svg_add(&whole, "</svg>\n");
    const bool failed = whole.failed || page->description->failed || page->body->failed;
    const int code = failed ? plot_fail(message, path, "out of memory")
                            : plot_write_file(path, whole.data, whole.length, message);
    free(whole.data);
    return code;
}
