/* Axes: which numbers stand at them, and where a value lies. */
#ifndef SLUICE_PLOT_SCALE_H
#define SLUICE_PLOT_SCALE_H

#include "text.h"

enum { TICKS = 24 };

/* What values are to be shown, and how. */
typedef struct scale_wish {
    double least, most; /* finite; above 0 when logarithmic */
    bool logarithmic, from_zero;
    bool binary;  /* ticks at powers of two; linear: bytes, at powers of two times 1, KiB, MiB, ... */
    bool whole;   /* no ticks between whole numbers */
    bool rounded; /* the axis begins and ends at ticks */
    int ticks;    /* at most, about; 2 to 12 */
} scale_wish;

typedef struct scale {
    bool logarithmic;
    double low, high; /* the axis: from < to */
    int count;
    double ticks[TICKS]; /* ascending, from low to high */
    char labels[TICKS][NUMBER_SIZE];
    double begin, end; /* pixels of low and high; set by the caller */
} scale;

void scale_make(scale *s, const scale_wish *wish);
/* The pixel of a value. */
double scale_at(const scale *s, double value);

#endif
