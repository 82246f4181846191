/* What the files that draw charts share. */
#ifndef SLUICE_PLOT_PANEL_H
#define SLUICE_PLOT_PANEL_H

#include "scale.h"
#include "svg.h"

enum { PANEL_PAD = 12 }; /* between the frame of a chart and its first and last point */

/* One chart on the page; places in pixels. */
typedef struct panel {
    const plot_lines *chart;
    scale x, y;
    double left, right, top, bottom;
    bool direct; /* names stand at the lines' ends */
    double names_width;
    double ends[PLOT_SERIES], label_y[PLOT_SERIES]; /* heights of the ends and of their names */
    char name[TEXT_SIZE];
} panel;

/* Title and subtitle of the page; returns where the next line of text stands. */
double draw_head(svg *s, const char *title, const char *subtitle);

#endif
