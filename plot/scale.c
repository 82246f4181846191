/* Axes. Steps are 1, 2, 2.5 or 5 times a power of ten, or powers of two. */
#include "scale.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

/* mantissa * 10^exponent, exact where a double is. */
static double decimal(double mantissa, int exponent) {
    /* In two factors, as 10^-310 is no normal number. */
    if (exponent < -300) {
        return mantissa / 1e300 / pow(10, -exponent - 300);
    }
    return exponent < 0 ? mantissa / pow(10, -exponent) : mantissa * pow(10, exponent);
}

typedef struct step {
    double mantissa; /* 1, 2, 2.5 or 5; 1 to 512 of a binary one */
    int exponent;    /* of 10; of 1024 */
    bool binary;
} step;

static double times(const step *s, double count) {
    return s->binary ? count * s->mantissa * pow(1024, s->exponent)
                     : decimal(count * s->mantissa, s->exponent);
}

/* The least round step that is not below `wanted`. */
static step round_step(double wanted, bool binary, bool whole) {
    static const double mantissas[] = {1, 2, 2.5, 5};
    step s = {1, 0, binary};
    if (binary) {
        while (times(&s, 1) < wanted && s.exponent < 30) {
            s.mantissa *= 2;
            if (s.mantissa > 512) {
                s = (step){1, s.exponent + 1, true};
            }
        }
        return s;
    }
    s.exponent = (int)floor(log10(wanted)) - 1;
    for (;; s.exponent++) {
        for (int i = 0; i < 4; i++) {
            s.mantissa = mantissas[i];
            if (times(&s, 1) >= wanted * (1 - 1e-9) && (!whole || times(&s, 1) == floor(times(&s, 1)))) {
                return s;
            }
        }
    }
}

/* ---- labels ---------------------------------------------------------------------------------------------
 */

/* All of an axis with the same digits, as many as tell its ticks apart. */
static void label_linear(scale *s, const step *between) {
    const double most = fmax(fabs(s->ticks[0]), fabs(s->ticks[s->count - 1]));
    const int digits = -between->exponent + (between->mantissa == 2.5);
    const bool scientific = most >= 1e7 || (most < 1e-3 && most > 0) || digits > 6;
    const int mantissa = most > 0 ? (int)floor(log10(most) + 1e-9) + digits : 0;
    for (int i = 0; i < s->count; i++) {
        fixed_text(s->ticks[i],
                   scientific   ? (mantissa > 0 ? mantissa : 0)
                   : digits > 0 ? digits
                                : 0,
                   scientific && s->ticks[i] != 0, s->labels[i]);
        if (scientific && s->ticks[i] == 0) {
            snprintf(s->labels[i], NUMBER_SIZE, "0");
        }
    }
}

static void label_each(scale *s) {
    for (int i = 0; i < s->count; i++) {
        const double value = s->ticks[i];
        if (value >= 1e-3 && value < 1e7) {
            number_text(value, s->labels[i]);
        } else {
            fixed_text(value, 0, true, s->labels[i]);
        }
    }
}

/* ---- linear ---------------------------------------------------------------------------------------------
 */

static void add_tick(scale *s, double value) {
    if (s->count < TICKS) {
        s->ticks[s->count++] = value;
    }
}

/* Multiples of a step between s->low and s->high, and around them when `rounded`. */
static void place_ticks(scale *s, const step *between, bool rounded) {
    const double unit = times(between, 1), slack = 1e-9;
    double first = ceil(s->low / unit - slack), last = floor(s->high / unit + slack);
    if (rounded) {
        first = floor(s->low / unit + slack);
        last = ceil(s->high / unit - slack);
    }
    if (s->logarithmic && first < 1) {
        first = 1;
    }
    s->count = 0;
    for (double i = first; i <= last && s->count < TICKS; i++) {
        add_tick(s, times(between, i));
    }
}

/* Ticks at multiples of a round step, two at least; the axis ends at ticks when `rounded`. */
static void tick_linear(scale *s, const scale_wish *wish, bool binary) {
    int ticks = wish->ticks < 2 ? 2 : wish->ticks > 12 ? 12 : wish->ticks;
    step between;
    do {
        between = round_step((s->high - s->low) / ticks, binary, wish->whole);
        place_ticks(s, &between, wish->rounded);
        ticks++;
    } while (s->count < 2 && ticks < TICKS);
    if (wish->rounded) {
        s->low = s->logarithmic ? fmin(s->low, s->ticks[0]) : s->ticks[0];
        s->high = s->ticks[s->count - 1];
    }
    if (!binary) {
        label_linear(s, &between);
        return;
    }
    for (int i = 0; i < s->count; i++) {
        bytes_text(s->ticks[i], true, s->labels[i]);
    }
}

static void make_linear(scale *s, const scale_wish *wish) {
    s->low = wish->from_zero ? fmin(wish->least, 0) : wish->least;
    s->high = wish->from_zero ? fmax(wish->most, 0) : wish->most;
    const double size = fmax(fabs(s->low), fabs(s->high));
    /* Values that are equal, or nearly: an axis that shows them as equal. */
    if (s->high - s->low <= size * 1e-6 || size < 1e-290) {
        const double pad = size < 1e-290 ? 1 : wish->whole ? fmax(1, size * 0.1) : size * 0.1;
        s->low -= wish->from_zero && s->low >= 0 ? 0 : pad;
        s->high += pad;
    }
    tick_linear(s, wish, wish->binary);
}

/* ---- logarithmic ----------------------------------------------------------------------------------------
 */

/* The tick with this number: all powers of two with a stride, powers of ten with a stride, or 1, 2 and 5. */
typedef struct ladder {
    double base;
    int stride; /* of the powers; 0: 1, 2, 5 */
} ladder;

static double rung(const ladder *l, int index) {
    static const double mantissas[] = {1, 2, 5};
    if (l->base == 2) {
        return ldexp(1, index * l->stride);
    }
    if (l->stride > 0) {
        return decimal(1, index * l->stride);
    }
    const int power = index >= 0 ? index / 3 : -((2 - index) / 3);
    return decimal(mantissas[index - 3 * power], power);
}

/* The ticks from s->low to s->high, and the next ones beyond when `rounded`: no further than 1e-307 to 1e307.
 */
static void climb(scale *s, const ladder *l, bool rounded) {
    const double slack = 1e-9, low = s->low, high = s->high;
    const double power = log10(low) / log10(l->base);
    int index = l->stride > 0 ? (int)floor(power / l->stride) - 2 : 3 * (int)floor(power) - 3;
    while (rung(l, index + (rounded ? 1 : 0)) <= low * (rounded ? 1 + slack : 1 - slack)) {
        index++;
    }
    for (bool more = true; more && s->count < TICKS; index++) {
        const double tick = rung(l, index);
        more = tick < high * (1 - slack);
        if (tick > 1e-307 && tick < 1e307 && (rounded || tick <= high * (1 + slack))) {
            add_tick(s, tick);
        }
    }
    if (rounded && s->count > 1) {
        s->low = fmin(low, s->ticks[0]);
        s->high = fmax(high, s->ticks[s->count - 1]);
    }
}

static void make_logarithmic(scale *s, const scale_wish *wish) {
    s->low = wish->least;
    s->high = wish->most;
    if (s->high <= s->low * (1 + 1e-6)) {
        s->low /= 2;
        s->high *= 2;
    }
    const double decades = log10(s->high) - log10(s->low);
    const int ticks = wish->ticks < 2 ? 2 : wish->ticks > 12 ? 12 : wish->ticks;
    ladder l = {10, 0};
    if (wish->binary) {
        l = (ladder){2, (int)ceil(decades / log10(2) / ticks - 1e-9)};
        l.stride = l.stride < 1 ? 1 : l.stride;
    } else if (decades * 3 > ticks) {
        l.stride = (int)ceil(decades / ticks - 1e-9);
        l.stride = l.stride < 1 ? 1 : l.stride;
    }
    if (decades >= 0.7 || wish->binary) {
        climb(s, &l, wish->rounded);
        label_each(s);
    }
    if (s->count < 2) {
        s->count = 0;
        tick_linear(s, wish, false);
    }
}

/* ---- both -----------------------------------------------------------------------------------------------
 */

void scale_make(scale *s, const scale_wish *wish) {
    *s = (scale){.logarithmic = wish->logarithmic, .end = 1};
    (wish->logarithmic ? make_logarithmic : make_linear)(s, wish);
}

double scale_at(const scale *s, double value) {
    double share;
    if (s->logarithmic) {
        share = (log10(value) - log10(s->low)) / (log10(s->high) - log10(s->low));
    } else {
        /* Halves, as the whole range may be more than a double holds. */
        share = (value / 2 - s->low / 2) / (s->high / 2 - s->low / 2);
    }
    return s->begin + share * (s->end - s->begin);
}
