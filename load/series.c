#include "series.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int reserve(load_series *series, size_t more) {
    if (more > SIZE_MAX / sizeof *series->values / 4 - series->count) {
        return -1;
    }
    const size_t need = series->count + more;
    if (need <= series->capacity) {
        return 0;
    }
    size_t capacity = series->capacity ? 2 * series->capacity : 64;
    capacity = capacity < need ? need : capacity;
    float *values = realloc(series->values, capacity * sizeof *values);
    if (!values) {
        return -1;
    }
    series->values = values;
    series->capacity = capacity;
    return 0;
}

int load_series_add(load_series *series, double value) {
    if (reserve(series, 1)) {
        return -1;
    }
    series->values[series->count++] = (float)value;
    return 0;
}

int load_series_append(load_series *series, const load_series *more) {
    if (more->count == 0) {
        return 0;
    }
    if (reserve(series, more->count)) {
        return -1;
    }
    memcpy(series->values + series->count, more->values, more->count * sizeof *more->values);
    series->count += more->count;
    return 0;
}

static int compare(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

void load_series_sort(load_series *series) {
    if (series->count > 1) {
        qsort(series->values, series->count, sizeof *series->values, compare);
    }
}

void load_series_free(load_series *series) {
    free(series->values);
    *series = (load_series){0};
}

double load_quantile(const load_series *series, double q) {
    if (series->count == 0) {
        return 0;
    }
    const double at = q * (double)(series->count - 1);
    const size_t below = (size_t)at, above = below + 1 < series->count ? below + 1 : below;
    const double low = (double)series->values[below], high = (double)series->values[above];
    return low + (at - (double)below) * (high - low);
}

double load_mean(const load_series *series) {
    double sum = 0;
    for (size_t i = 0; i < series->count; i++) {
        sum += (double)series->values[i];
    }
    return series->count ? sum / (double)series->count : 0;
}

double load_deviation(const load_series *series) {
    const double mean = load_mean(series);
    double sum = 0;
    for (size_t i = 0; i < series->count; i++) {
        const double off = (double)series->values[i] - mean;
        sum += off * off;
    }
    return series->count ? sqrt(sum / (double)series->count) : 0;
}
