/* Numbers that are gathered one by one. */
#ifndef SLUICE_LOAD_SERIES_H
#define SLUICE_LOAD_SERIES_H

#include "load.h"

/* 0; -1: no memory. */
int load_series_add(load_series *series, double value);
int load_series_append(load_series *series, const load_series *more);
void load_series_sort(load_series *series);
void load_series_free(load_series *series);

#endif
