/* An SVG file: grows in memory, then becomes a file as a whole. */
#ifndef SLUICE_PLOT_SVG_H
#define SLUICE_PLOT_SVG_H

#include "plot.h"
#include "text.h"

#include <locale.h>

enum {
    PAGE_WIDTH = 800,
    PAGE_EDGE = 16,   /* free on all sides */
    TEXT_PIXELS = 13, /* of all texts but titles */
    LINE_PIXELS = 19, /* from one line of them to the next */
    TITLE_PIXELS = 16,
    COLOURS = 7,
    MARKS = 8,
};

/* Zero-initialise, then svg_begin; svg_end releases. Nothing happens after a failure, which svg_end tells. */
typedef struct svg {
    char *data;
    size_t length, capacity;
    bool failed; /* memory */
    locale_t plain, before;
} svg;

/* Numbers have points in this thread until svg_end, whatever the program's locale. */
int svg_begin(svg *s, char message[PLOT_MESSAGE]);
void svg_add(svg *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Escapes. */
void svg_escape(svg *s, const char *text);

typedef struct text_place {
    double x, y;        /* of the baseline */
    const char *anchor; /* start, middle or end */
    const char *kind;   /* class: "", faint, strong, title, ... */
} text_place;
/* A clean text. */
void svg_text(svg *s, const text_place *place, const char *text);
/* Several lines of any bytes from `place` down, at most `most`; the last one is shortened. Returns how many.
 */
int svg_lines(svg *s, const text_place *place, const char *bytes, double width, int most);
/* A point's mark, of one of the MARKS shapes in the colour of its group; `title`: what a reader who points at
 * it sees, NULL: nothing. */
void svg_mark(svg *s, double x, double y, int shape, const char *title);

/* The whole: head, `body`, end; then the file. `description` says it in words. */
typedef struct svg_page {
    const char *title;
    const svg *description, *body;
    double height;
} svg_page;
int svg_write(const char *path, const svg_page *page, char message[PLOT_MESSAGE]);
void svg_end(svg *s);
/* Bytes as a file. */
int plot_write_file(const char *path, const char *data, size_t length, char message[PLOT_MESSAGE]);

/* Line in `message` that begins with the file's name; returns -1. */
int plot_fail(char message[PLOT_MESSAGE], const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
