/* sluice bench --plot: speeds over what was varied. Prompts, generations and both have a chart each. */
#include "bench.h"
#include "plot/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What may differ between two measurements. The first that does is the horizontal axis, where it can be one;
 * the others tell lines apart. */
typedef enum vary { BY_DEPTH, BY_LENGTH, BY_SEQUENCES, BY_THREADS, BY_MODEL, VARIES } vary;

static const struct {
    const char *axis; /* NULL: is none */
    const char *unit; /* in a line's name, behind its number */
} VARIED[VARIES] = {
    {"tokens in the cache before", " tokens before"},
    {"tokens", " tokens"},
    {"sequences at once", " sequences"},
    {"threads", " threads"},
    {NULL, ""},
};

static const char *const KINDS[SPEED_KINDS] = {"Reading a prompt", "Generating", "A prompt and its answer"};
static const char *const LENGTHS[SPEED_KINDS] = {"tokens of the prompt", "tokens generated",
                                                 "tokens of prompt and answer"};

static int64_t value_of(const speed_point *p, vary what) {
    const int64_t values[VARIES] = {p->depth, (int64_t)p->prompt + p->generate, p->sequences, p->threads,
                                    p->model};
    return values[what];
}

/* Pairs of equal sums are different lines. */
static int64_t line_value(const speed_point *p, vary what) {
    return what == BY_LENGTH ? ((int64_t)p->prompt << 32) + p->generate : value_of(p, what);
}

int plot_collect(speed_list *list, const speed_point *point) {
    if (list->count == list->capacity) {
        const size_t larger = list->capacity ? 2 * list->capacity : 64;
        speed_point *points = realloc(list->points, larger * sizeof *points);
        if (!points) {
            return fail("bench: out of memory for the picture");
        }
        list->points = points;
        list->capacity = larger;
    }
    list->points[list->count++] = *point;
    return DONE;
}

/* ---- what can be drawn ----------------------------------------------------------------------------------
 */

static int distinct(const number_list *list) {
    int count = 0;
    for (int i = 0; i < list->count; i++) {
        bool seen = false;
        for (int k = 0; k < i; k++) {
            seen |= list->items[k] == list->items[i];
        }
        count += !seen;
    }
    return count;
}

const char *plot_refusal(const settings *s) {
    const bool varied =
        distinct(&s->depths) > 1 || distinct(&s->sequence_counts) > 1 || distinct(&s->thread_counts) > 1;
    number_list prompts = {.count = 0}, generates = {.count = 0}; /* without 0 */
    for (int i = 0; i < s->prompts.count; i++) {
        prompts.items[prompts.count] = s->prompts.items[i];
        prompts.count += s->prompts.items[i] > 0;
    }
    for (int i = 0; i < s->generates.count; i++) {
        generates.items[generates.count] = s->generates.items[i];
        generates.count += s->generates.items[i] > 0;
    }
    if (s->beside) {
        return "--plot draws speeds, and --beside measures waiting: no picture";
    }
    return varied || distinct(&prompts) > 1 || distinct(&generates) > 1
               ? NULL
               : "--plot wants something to draw speeds over: several numbers, as in 64,256,1024, for -d, "
                 "-p, -n, "
                 "--sequences or -t";
}

/* ---- a chart --------------------------------------------------------------------------------------------
 */

typedef struct line {
    char name[256];
    const speed_point *like; /* what tells lines apart is as here */
    plot_point *points, *limits;
    size_t count, limit_count;
} line;

typedef struct chart {
    const speed_list *list;
    int kind;
    bool varies[VARIES];
    vary axis; /* VARIES: nothing to draw over */
    line *lines;
    size_t line_count;
    plot_series *series; /* [2 * line_count], limits behind the lines */
    char limit_names[PLOT_SERIES][300];
} chart;

static bool of_kind(const chart *c, const speed_point *p) {
    const int kind = p->prompt > 0 && p->generate > 0 ? 2 : p->generate > 0 ? 1 : 0;
    return kind == c->kind;
}

static void look_what_varies(chart *c) {
    const speed_point *first = NULL;
    for (size_t i = 0; i < c->list->count; i++) {
        const speed_point *p = &c->list->points[i];
        if (!of_kind(c, p)) {
            continue;
        }
        first = first ? first : p;
        for (vary v = 0; v < VARIES; v++) {
            c->varies[v] |= line_value(p, v) != line_value(first, v);
        }
    }
    for (c->axis = 0; c->axis < VARIES; c->axis++) {
        /* Prompts and answers of several lengths are lines: their sum is no measure. */
        if (c->varies[c->axis] && VARIED[c->axis].axis && !(c->axis == BY_LENGTH && c->kind == 2)) {
            break;
        }
    }
}

static bool is_of_line(const chart *c, const line *l, const speed_point *p) {
    for (vary v = 0; v < VARIES; v++) {
        if (v != c->axis && line_value(l->like, v) != line_value(p, v)) {
            return false;
        }
    }
    return true;
}

/* "mini, 2 threads"; the model where nothing else tells it apart. */
static void name_line(const chart *c, line *l) {
    const speed_point *p = l->like;
    size_t used = 0;
    if (c->varies[BY_MODEL]) {
        used = (size_t)snprintf(l->name, sizeof l->name, "%.150s", p->name);
    }
    for (vary v = 0; v < BY_MODEL; v++) {
        const bool pair = v == BY_LENGTH && c->kind == 2;
        if (v == c->axis || !c->varies[v] || used >= sizeof l->name - 40) {
            continue;
        }
        char number[32];
        snprintf(number, sizeof number, pair ? "%lld+%d" : "%lld",
                 (long long)(pair ? p->prompt : value_of(p, v)), p->generate);
        used += (size_t)snprintf(l->name + used, sizeof l->name - used, "%s%s%s", used ? ", " : "", number,
                                 value_of(p, v) == 1 && !pair ? "" : VARIED[v].unit);
        if (value_of(p, v) == 1 && !pair) { /* "1 thread" */
            used += (size_t)snprintf(l->name + used, sizeof l->name - used, "%.*s",
                                     (int)strlen(VARIED[v].unit) - 1, VARIED[v].unit);
        }
    }
    if (!used) {
        snprintf(l->name, sizeof l->name, "%.150s", p->name);
    }
}

static int compare_points(const void *a, const void *b) {
    const double x = ((const plot_point *)a)->x, y = ((const plot_point *)b)->x;
    return (x > y) - (x < y);
}

static int add_point(chart *c, const speed_point *p) {
    size_t i = 0;
    while (i < c->line_count && !is_of_line(c, &c->lines[i], p)) {
        i++;
    }
    line *l = &c->lines[i];
    if (i == c->line_count) {
        *l = (line){.like = p,
                    .points = calloc(c->list->count, sizeof *l->points),
                    .limits = calloc(c->list->count, sizeof *l->limits)};
        c->line_count++;
        if (!l->points || !l->limits) {
            return fail("bench: out of memory for the picture");
        }
        name_line(c, l);
    }
    const double x = (double)value_of(p, c->axis);
    l->points[l->count++] = (plot_point){x, p->mean, p->least, p->most};
    if (p->limit > 0) {
        l->limits[l->limit_count++] = (plot_point){x, p->limit, p->limit, p->limit};
    }
    return DONE;
}

/* Several orders of magnitude, as lengths and sequences mostly have, are told apart on a logarithmic axis. */
static bool wants_logarithm(const chart *c) {
    double least = INFINITY, most = 0;
    for (size_t i = 0; i < c->line_count; i++) {
        const line *l = &c->lines[i];
        least = fmin(least, l->points[0].x);
        most = fmax(most, l->points[l->count - 1].x);
    }
    return c->axis != BY_DEPTH && least > 0 && most >= 8 * least;
}

static int fill_chart(chart *c, plot_lines *to) {
    int code = DONE;
    for (size_t i = 0; i < c->list->count && code == DONE; i++) {
        code = of_kind(c, &c->list->points[i]) ? add_point(c, &c->list->points[i]) : DONE;
    }
    if (code != DONE) {
        return code;
    }
    size_t limits = 0;
    for (size_t i = 0; i < c->line_count; i++) {
        line *l = &c->lines[i];
        qsort(l->points, l->count, sizeof *l->points, compare_points);
        qsort(l->limits, l->limit_count, sizeof *l->limits, compare_points);
        c->series[i] = (plot_series){l->name, l->points, l->count, false};
        if (l->limit_count > 1 && c->line_count + limits < PLOT_SERIES && limits < PLOT_SERIES) {
            snprintf(c->limit_names[limits], sizeof c->limit_names[limits], "limit%s%s",
                     c->line_count > 1 ? ", " : "", c->line_count > 1 ? l->name : "");
            c->series[c->line_count + limits] =
                (plot_series){c->limit_names[limits], l->limits, l->limit_count, true};
            limits++;
        }
    }
    *to = (plot_lines){
        .title = KINDS[c->kind],
        .x = {.label = c->axis == BY_LENGTH ? LENGTHS[c->kind] : VARIED[c->axis].axis,
              .logarithmic = wants_logarithm(c),
              .from_zero = true},
        .y = {.label = "tokens/s", .from_zero = true},
        .series = c->series,
        .series_count = c->line_count + limits,
    };
    return DONE;
}

static void free_chart(chart *c) {
    for (size_t i = 0; i < c->line_count; i++) {
        free(c->lines[i].points);
        free(c->lines[i].limits);
    }
    free(c->lines);
    free(c->series);
}

/* ---- the picture ----------------------------------------------------------------------------------------
 */

static void write_subtitle(const speed_list *list, const settings *s, char *text, size_t size) {
    const speed_point *first = list->points;
    bool one[VARIES] = {true, true, true, true, true};
    for (size_t i = 0; i < list->count; i++) {
        for (vary v = 0; v < VARIES; v++) {
            one[v] &= line_value(&list->points[i], v) == line_value(first, v);
        }
    }
    size_t used = (size_t)snprintf(text, size, "%.100s%s%.160s", one[BY_MODEL] ? first->type : "",
                                   one[BY_MODEL] ? ", " : "", list->machine);
    if (one[BY_SEQUENCES] && used < size) {
        used += (size_t)snprintf(text + used, size - used, ", %d sequence%s", first->sequences,
                                 first->sequences == 1 ? "" : "s");
    }
    if (one[BY_THREADS] && !list->gpu && used < size) {
        used += (size_t)snprintf(text + used, size - used, ", %d thread%s", first->threads,
                                 first->threads == 1 ? "" : "s");
    }
    if (used < size) {
        used += (size_t)snprintf(text + used, size - used, ", cache %.20s", s->kv_type);
    }
    if (s->repetitions > 1 && used < size) {
        snprintf(text + used, size - used, "; whiskers: least and most of %d repetitions", s->repetitions);
    }
}

/* Files of one name in several folders are called by their whole path. */
static void tell_names_apart(const speed_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        speed_point *p = &list->points[i];
        bool same = false;
        for (size_t k = 0; k < list->count && !same; k++) {
            const char *slash = strrchr(list->points[k].path, '/');
            same = strcmp(list->points[k].path, p->path) != 0 &&
                   strcmp(slash && slash[1] ? slash + 1 : list->points[k].path, p->name) == 0;
        }
        if (same) {
            snprintf(p->name, sizeof p->name, "%s", p->path);
        }
    }
}

int plot_speeds(const speed_list *list, const settings *s) {
    char message[PLOT_MESSAGE], title[256], subtitle[512];
    plot_lines charts[SPEED_KINDS];
    static chart made[SPEED_KINDS];
    size_t count = 0;
    int code = DONE;
    memset(made, 0, sizeof made);
    tell_names_apart(list);
    for (int kind = 0; kind < SPEED_KINDS && code == DONE; kind++) {
        chart *c = &made[kind];
        *c = (chart){.list = list, .kind = kind};
        look_what_varies(c);
        if (c->axis == VARIES) {
            continue;
        }
        c->lines = calloc(list->count, sizeof *c->lines);
        c->series = calloc(2 * list->count, sizeof *c->series);
        code = c->lines && c->series ? fill_chart(c, &charts[count++])
                                     : fail("bench: out of memory for the picture");
    }
    if (code == DONE && count == 0) {
        code = fail("bench: --plot: nothing was measured twice with another number: no picture");
    }
    if (code == DONE) {
        snprintf(title, sizeof title, "Speed of %.200s", list->several ? "models" : list->points[0].name);
        write_subtitle(list, s, subtitle, sizeof subtitle);
        const plot_page page = {title, subtitle, charts, count};
        code = plot_write_page(s->plot, &page, message) ? fail("%s", message) : DONE;
    }
    for (int kind = 0; kind < SPEED_KINDS; kind++) {
        free_chart(&made[kind]);
    }
    return code;
}
