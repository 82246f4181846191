/* Charts as SVG files: lines over numbers, stacked bars of bytes. A file stands alone: no script, no font,
 * nothing from elsewhere; its colours follow the reader's light or dark setting.
 *
 * Functions return 0, or -1 with one line in `message` that names file and rule; nothing half-written is left
 * at `path`, which is replaced when it is there and an SVG. Texts may be any bytes, of any length: they are
 * escaped here, and shortened where they have no room. Numbers that are not finite or beyond 1e300 are
 * refused. Any thread. */
#ifndef SLUICE_PLOT_H
#define SLUICE_PLOT_H

#include <stdbool.h>
#include <stddef.h>

enum {
    PLOT_MESSAGE = 512,
    PLOT_SERIES = 64,
    PLOT_POINTS = 100000,
    PLOT_PARTS = 32,
    PLOT_BARS = 64,
    PLOT_CHARTS = 16
};

/* Whether a picture could be written there: before what takes long. Nothing is left there. */
int plot_check(const char *path, char message[PLOT_MESSAGE]);

typedef struct plot_point {
    double x, y;
    double low, high; /* of what was measured at x, y between them; both equal to y: no whisker */
} plot_point;

typedef struct plot_series {
    const char *name;
    const plot_point *points; /* [count], x ascending */
    size_t count;             /* 0: the legend says so */
    bool is_limit;            /* drawn dashed and grey: what the machine allows; one point: all across */
} plot_series;

typedef struct plot_axis {
    const char *label; /* with the unit */
    bool logarithmic;  /* all values must be above 0; powers of two get such ticks */
    bool from_zero;    /* else from near the least value; not when logarithmic */
} plot_axis;

typedef struct plot_lines {
    const char *title, *subtitle; /* the subtitle says what was run on what; NULL: none */
    plot_axis x, y;
    const plot_series *series; /* [series_count] */
    size_t series_count;
} plot_lines;

int plot_write_lines(const char *path, const plot_lines *chart, char message[PLOT_MESSAGE]);

/* Several charts in one file, one below the other, each with its own title and subtitle. */
typedef struct plot_page {
    const char *title, *subtitle; /* above all; subtitle NULL: none */
    const plot_lines *charts;     /* [count] */
    size_t count;
} plot_page;

int plot_write_page(const char *path, const plot_page *page, char message[PLOT_MESSAGE]);

typedef struct plot_part {
    const char *name, *detail; /* detail: what stands behind the number; NULL: nothing */
    double value;              /* 0 or more; bytes: 1e18 at most */
} plot_part;

typedef struct plot_bar {
    const char *name;
    const plot_part *parts; /* [count], from the left */
    size_t count;
    double limit;           /* a mark on the bar; 0: none */
    const char *limit_name; /* "memory of the device", ...; NULL: "limit" */
} plot_bar;

typedef struct plot_bars {
    const char *title, *subtitle;
    bool bytes;           /* values are bytes, and are written as such */
    const char *unit;     /* when they are not */
    const plot_bar *bars; /* [bar_count] */
    size_t bar_count;
} plot_bars;

int plot_write_bars(const char *path, const plot_bars *chart, char message[PLOT_MESSAGE]);

#endif
