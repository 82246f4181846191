/* The table of a backend's kernels: one line for kernels that differ in their type of weights alone. */
#include "list.h"
#include "harness.h"

#include <stdlib.h>
#include <string.h>

/* ---- reading the table ---- */

/* Puts TYPE for the first word of `name` that is `type`; false when there is none. */
static bool without_type(const char *name, const char *type, char *shape) {
    const size_t length = strlen(type);
    for (const char *at = strstr(name, type); at; at = strstr(at + 1, type)) {
        const bool begins = at > name && strchr("/-", at[-1]);
        if (begins && (at[length] == '\0' || strchr("/-", at[length]))) {
            snprintf(shape, KT_NAME, "%.*sTYPE%s", (int)(at - name), name, at + length);
            return true;
        }
    }
    return false;
}

static void add_row(kt_listing *l, const sl_kernel_entry *entry) {
    kt_listed *rows = realloc(l->rows, (size_t)(l->count + 1) * sizeof *rows);
    if (!rows) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    l->rows = rows;
    kt_listed *row = &rows[l->count++];
    row->entry = *entry;
    row->type = sl_qtype_get(entry->type)->name;
    const bool typed = (entry->kernel->op == SL_OP_LINEAR || entry->kernel->op == SL_OP_ATTENTION) &&
                       without_type(entry->kernel->name, row->type, row->shape);
    if (!typed) {
        snprintf(row->shape, sizeof row->shape, "%s", entry->kernel->name);
        row->type = "";
    }
}

int kt_listing_read(kt_listing *listing) {
    sl_cuda_kernel_at at;
    sl_error error = {0};
    memset(listing, 0, sizeof *listing);
    if (sl_cuda_kernel_list(&at, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return 77;
    }
    sl_kernel_entry entry;
    for (int32_t i = 0; at(SL_BACKEND_ABI, i, &entry); i++) {
        add_row(listing, &entry);
    }
    return 0;
}

void kt_listing_free(kt_listing *listing) {
    free(listing->rows);
    memset(listing, 0, sizeof *listing);
}

/* ---- as JSON, a line for each row ---- */

void kt_print_json(const char *text) {
    putchar('"');
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') {
            putchar('\\');
        }
        putchar(*c);
    }
    putchar('"');
}

static void print_text(const char *key, const char *text) {
    printf("\"%s\": ", key);
    kt_print_json(text);
    printf(", ");
}

static void print_json(const kt_listing *l) {
    printf("[\n");
    for (int32_t i = 0; i < l->count; i++) {
        const kt_listed *row = &l->rows[i];
        const sl_kernel *kernel = row->entry.kernel;
        printf("  {");
        print_text("name", kernel->name);
        print_text("shape", row->shape);
        print_text("op", sl_op_name(kernel->op));
        print_text("type", row->type);
        print_text("numeric_class", kernel->numeric_class);
        print_text("purpose", row->entry.purpose ? row->entry.purpose : "");
        print_text("devices", row->entry.devices);
        printf("\"least_rows\": %d, \"most_rows\": %d, \"best_rows\": %d, \"on_request\": %s, "
               "\"deterministic\": %s, "
               "\"cut_dependent\": %s}%s\n",
               row->entry.least_rows, row->entry.most_rows, row->entry.best_rows,
               kernel->on_request ? "true" : "false", kernel->deterministic ? "true" : "false",
               kernel->cut_dependent ? "true" : "false", i + 1 < l->count ? "," : "");
    }
    printf("]\n");
}

/* ---- as a table, a line for each shape ---- */

typedef void (*cell)(const kt_listed *row, char *text, size_t size);

static void rows_cell(const kt_listed *row, char *text, size_t size) {
    const sl_kernel_entry *e = &row->entry;
    const int32_t least = e->least_rows > 0 ? e->least_rows : 1;
    int used = e->most_rows == least       ? snprintf(text, size, "%d", least)
               : e->most_rows > 0          ? snprintf(text, size, "%d..%d", least, e->most_rows)
               : least > 1 || e->best_rows ? snprintf(text, size, "%d..", least)
                                           : snprintf(text, size, "any");
    if (e->best_rows > 0 && e->best_rows != e->most_rows) {
        snprintf(text + used, size - (size_t)used, ", best to %d", e->best_rows);
    }
}

/* Classes of attention begin with the cache's type. */
static void class_cell(const kt_listed *row, char *text, size_t size) {
    const char *name = row->entry.kernel->numeric_class;
    const size_t length = strlen(row->type);
    if (row->entry.kernel->op == SL_OP_ATTENTION && length > 0 && strncmp(name, row->type, length) == 0) {
        snprintf(text, size, "`TYPE%s`", name + length);
    } else {
        snprintf(text, size, "`%s`", name);
    }
}

static void devices_cell(const kt_listed *row, char *text, size_t size) {
    snprintf(text, size, "%s", row->entry.devices);
}

enum { CELL = 160 };

static bool same_shape(const kt_listing *l, int32_t a, int32_t b) {
    return strcmp(l->rows[a].shape, l->rows[b].shape) == 0;
}

/* Of the shape of row `first`: how many rows have that cell, and which is the first. */
static int32_t count_cells(const kt_listing *l, int32_t first, cell fill, const char *text,
                           int32_t *earliest) {
    int32_t count = 0;
    for (int32_t i = first; i < l->count; i++) {
        char other[CELL];
        fill(&l->rows[i], other, sizeof other);
        if (same_shape(l, i, first) && strcmp(other, text) == 0) {
            *earliest = count++ == 0 ? i : *earliest;
        }
    }
    return count;
}

static void print_types_with(const kt_listing *l, int32_t first, cell fill, const char *text) {
    const char *between = "";
    for (int32_t i = first; i < l->count; i++) {
        char other[CELL];
        fill(&l->rows[i], other, sizeof other);
        if (same_shape(l, i, first) && strcmp(other, text) == 0) {
            printf("%s %s", between, l->rows[i].type);
            between = ",";
        }
    }
}

/* What the rows of a shape say: what most of them do, behind what others do and for which types. */
static void print_cell(const kt_listing *l, int32_t first, cell fill) {
    char usual[CELL] = "", text[CELL];
    int32_t most = 0, earliest = first;
    for (int32_t i = first; i < l->count; i++) {
        fill(&l->rows[i], text, sizeof text);
        const int32_t count = same_shape(l, i, first) ? count_cells(l, first, fill, text, &earliest) : 0;
        if (count > most) {
            most = count;
            memcpy(usual, text, sizeof usual);
        }
    }
    const char *before = " ";
    for (int32_t i = first; i < l->count; i++) {
        fill(&l->rows[i], text, sizeof text);
        if (same_shape(l, i, first) && strcmp(text, usual) != 0 &&
            count_cells(l, first, fill, text, &earliest) && earliest == i) {
            printf("%s%s:", before, text);
            print_types_with(l, first, fill, text);
            before = "; ";
        }
    }
    printf("%s%s%s |", before, before[0] == ';' ? "else " : "", usual);
}

static void print_types(const kt_listing *l, int32_t first) {
    for (int32_t i = first; i < l->count; i++) {
        if (strcmp(l->rows[i].shape, l->rows[first].shape) == 0) {
            printf("%s %s", i == first ? "" : ",", l->rows[i].type[0] ? l->rows[i].type : "any");
        }
    }
    printf(" |");
}

static void print_table(const kt_listing *l) {
    printf("| name | op | types | rows | devices | numeric class | taken by | what it is for |\n"
           "| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (int32_t i = 0; i < l->count; i++) {
        const kt_listed *row = &l->rows[i];
        const sl_kernel *kernel = row->entry.kernel;
        bool seen = false;
        for (int32_t before = 0; before < i && !seen; before++) {
            seen = strcmp(l->rows[before].shape, row->shape) == 0;
        }
        if (seen) {
            continue;
        }
        printf("| `%s` | %s |", row->shape, sl_op_name(kernel->op));
        print_types(l, i);
        print_cell(l, i, rows_cell);
        print_cell(l, i, devices_cell);
        print_cell(l, i, class_cell);
        printf(" %s | %s |\n",
               kernel->on_request        ? "`--kernel` alone"
               : kernel->copies          ? "`--weight-copies`"
               : kt_is_asked_for(kernel) ? "`--prompt-precision`"
               : kernel->deterministic   ? "deterministic plans"
               : kernel->cut_dependent   ? "plans not deterministic"
                                         : "all",
               row->entry.purpose ? row->entry.purpose : "");
    }
}

int kt_list(bool json) {
    kt_listing l;
    const int status = kt_listing_read(&l);
    if (status) {
        return status;
    }
    int silent = 0; /* rows that do not say what they are for */
    for (int32_t i = 0; i < l.count; i++) {
        if (!l.rows[i].entry.purpose) {
            fprintf(stderr, "%s: the module does not say what it is for\n", l.rows[i].entry.kernel->name);
            silent = 1;
        }
    }
    if (json) {
        print_json(&l);
    } else {
        print_table(&l);
    }
    kt_listing_free(&l);
    return silent;
}
