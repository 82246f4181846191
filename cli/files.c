/* sluice quantize, sluice synth: files that are written. */
#define _GNU_SOURCE
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- what becomes of the tensors
 * -------------------------------------------------------------------------------- */

typedef struct tensor_row {
    char *name;
    const char *from, *to, *wanted; /* the library's own, which stay */
    uint64_t elements, columns, from_bytes, to_bytes;
} tensor_row;

typedef struct tensor_table {
    progress_bar bar; /* the progress function and this table have one context */
    tensor_row *rows;
    size_t count, capacity;
    bool failed; /* memory ran out */
} tensor_table;

static void add_row(void *context, const sluice_quantized_tensor *t) {
    tensor_table *table = context;
    if (table->count == table->capacity) {
        const size_t larger = table->capacity ? 2 * table->capacity : 256;
        tensor_row *rows = realloc(table->rows, larger * sizeof *rows);
        if (!rows) {
            table->failed = true;
            return;
        }
        table->rows = rows;
        table->capacity = larger;
    }
    char *name = strdup(t->name);
    table->failed |= !name;
    if (name) {
        table->rows[table->count++] = (tensor_row){name,        t->from,    t->to,         t->wanted,
                                                   t->elements, t->columns, t->from_bytes, t->to_bytes};
    }
}

static void free_table(tensor_table *table) {
    for (size_t i = 0; i < table->count; i++) {
        free(table->rows[i].name);
    }
    free(table->rows);
}

/* Sums over tensors of one type; over all with type NULL. */
typedef struct type_sum {
    const char *type;
    uint64_t tensors, weights, bytes;
} type_sum;

static double bits_per_weight(const type_sum *sum) {
    return sum->weights ? 8.0 * (double)sum->bytes / (double)sum->weights : 0;
}

static type_sum sum_of(const tensor_table *table, const char *type) {
    type_sum sum = {.type = type};
    for (size_t i = 0; i < table->count; i++) {
        if (!type || strcmp(table->rows[i].to, type) == 0) {
            sum.tensors++;
            sum.weights += table->rows[i].elements;
            sum.bytes += table->rows[i].to_bytes;
        }
    }
    return sum;
}

static bool is_first_of_type(const tensor_table *table, size_t row) {
    for (size_t i = 0; i < row; i++) {
        if (strcmp(table->rows[i].to, table->rows[row].to) == 0) {
            return false;
        }
    }
    return true;
}

enum { TYPES = 32 };

/* Of every type that there is, the one with the most bytes first; returns how many. */
static int type_sums(const tensor_table *table, type_sum sums[TYPES]) {
    int count = 0;
    for (size_t row = 0; row < table->count && count < TYPES; row++) {
        if (!is_first_of_type(table, row)) {
            continue;
        }
        const type_sum sum = sum_of(table, table->rows[row].to);
        int at = count++;
        for (; at > 0 && sums[at - 1].bytes < sum.bytes; at--) {
            sums[at] = sums[at - 1];
        }
        sums[at] = sum;
    }
    return count;
}

static bool falls_back_alike(const tensor_row *a, const tensor_row *b) {
    return strcmp(a->wanted, b->wanted) == 0 && strcmp(a->to, b->to) == 0 && a->columns == b->columns;
}

/* One line for all tensors that fall back for the same reason. */
static void print_fallbacks(const tensor_table *table) {
    for (size_t i = 0; i < table->count; i++) {
        const tensor_row *row = &table->rows[i];
        size_t alike = 0, before = 0;
        for (size_t k = 0; strcmp(row->wanted, row->to) != 0 && k < table->count; k++) {
            const bool same = falls_back_alike(row, &table->rows[k]);
            alike += same;
            before += same && k < i;
        }
        if (alike > 0 && before == 0) {
            fprintf(stderr,
                    "warning: %s instead of %s for %zu tensor%s with rows of %llu, no whole number of "
                    "blocks: %s%s\n",
                    row->to, row->wanted, alike, alike == 1 ? "" : "s", (unsigned long long)row->columns,
                    row->name, alike == 1 ? "" : ", ...");
        }
    }
}

static void print_tensors(const tensor_table *table) {
    for (size_t i = 0; i < table->count; i++) {
        const tensor_row *row = &table->rows[i];
        printf("%-40s %-7s -> %-7s %14llu bytes\n", row->name, row->from, row->to,
               (unsigned long long)row->to_bytes);
    }
    printf("\n");
}

static void print_sum(const type_sum *sum) {
    printf("%-8s %8llu %15llu %15llu %8.4f\n", sum->type ? sum->type : "all",
           (unsigned long long)sum->tensors, (unsigned long long)sum->weights, (unsigned long long)sum->bytes,
           bits_per_weight(sum));
}

static void print_types(const tensor_table *table, uint64_t file_bytes) {
    type_sum sums[TYPES];
    const int count = type_sums(table, sums);
    const type_sum all = sum_of(table, NULL);
    printf("%-8s %8s %15s %15s %8s\n", "type", "tensors", "weights", "bytes", "bits");
    for (int i = 0; i < count; i++) {
        print_sum(&sums[i]);
    }
    print_sum(&all);
    printf("the file has %llu bytes\n", (unsigned long long)file_bytes);
}

static json_t *sum_json(const type_sum *sum) {
    return json_pack("{s:s*, s:I, s:I, s:I, s:f}", "type", sum->type, "tensors", (json_int_t)sum->tensors,
                     "weights", (json_int_t)sum->weights, "bytes", (json_int_t)sum->bytes, "bits_per_weight",
                     bits_per_weight(sum));
}

static int print_table_json(const settings *s, const char *input, const char *output, const char *type,
                            const tensor_table *table, uint64_t file_bytes) {
    json_t *tensors = json_array(), *types = json_array();
    type_sum sums[TYPES];
    const int count = type_sums(table, sums);
    const type_sum all = sum_of(table, NULL);
    for (size_t i = 0; i < table->count; i++) {
        const tensor_row *r = &table->rows[i];
        json_array_append_new(tensors, json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I}", "name", r->name,
                                                 "from", r->from, "to", r->to, "wanted", r->wanted, "weights",
                                                 (json_int_t)r->elements, "columns", (json_int_t)r->columns,
                                                 "bytes_before", (json_int_t)r->from_bytes, "bytes",
                                                 (json_int_t)r->to_bytes));
    }
    for (int i = 0; i < count; i++) {
        json_array_append_new(types, sum_json(&sums[i]));
    }
    return print_json(json_pack("{s:s, s:s*, s:s, s:b, s:I, s:o, s:o, s:o}", "input", input, "output", output,
                                "type", type, "dry_run", s->dry_run, "file_bytes", (json_int_t)file_bytes,
                                "all", sum_json(&all), "types", types, "tensors", tensors));
}

/* ---- the commands
 * ----------------------------------------------------------------------------------------------- */

static void report_file(const char *path, double seconds, const char *more) {
    struct stat status;
    if (stat(path, &status) == 0) {
        fprintf(stderr, "%s: %lld bytes%s in %.2f s, %.2f GB/s\n", path, (long long)status.st_size, more,
                seconds, (double)status.st_size * 1e-9 / (seconds > 1e-6 ? seconds : 1e-6));
    }
}

/* PATTERN=TYPE; the pattern may hold further equals signs. Points into `text`, which is cut. */
static bool split_pattern(char *text, sluice_type_pattern *pattern) {
    char *equals = strrchr(text, '=');
    if (!equals || equals == text || !equals[1]) {
        return false;
    }
    *equals = '\0';
    *pattern = (sluice_type_pattern){text, equals + 1};
    return true;
}

static int read_patterns(const settings *s, sluice_type_pattern patterns[LIST_ITEMS],
                         char *texts[LIST_ITEMS]) {
    for (int i = 0; i < s->types_of.count; i++) {
        texts[i] = strdup(s->types_of.items[i]);
        if (!texts[i]) {
            return fail("quantize: out of memory");
        }
        if (!split_pattern(texts[i], &patterns[i])) {
            fail("quantize: --type-of wants PATTERN=TYPE, as in 'ffn_down=q6_k', not \"%s\"",
                 s->types_of.items[i]);
            return WRONG_USAGE;
        }
    }
    return DONE;
}

static int quantize(const settings *s, const sluice_type_pattern *patterns, tensor_table *table) {
    sluice_error error;
    char path[DATA_PATH_SIZE];
    const char *input = model_path(s->arguments[0], path);
    const char *output = s->argument_count > 2 ? s->arguments[1] : NULL;
    const char *type = s->arguments[s->argument_count - 1];
    uint64_t file_bytes = 0;
    const sluice_quantize_options options = {.size = sizeof options,
                                             .type = type,
                                             .pure = s->pure,
                                             .output_type = s->output_type,
                                             .embedding_type = s->embedding_type,
                                             .patterns = patterns,
                                             .pattern_count = (size_t)s->types_of.count,
                                             .importance = s->imatrix,
                                             .replace = s->force,
                                             .dry_run = s->dry_run,
                                             .tensor = add_row,
                                             .progress = progress_step,
                                             .context = table,
                                             .file_bytes = &file_bytes};
    const double begin = seconds_now();
    catch_ending();
    const int result = sluice_quantize_file(input, output, &options, &error);
    progress_end(&table->bar);
    if (result) {
        return fail_with(&error);
    }
    if (table->failed) {
        return fail("quantize: out of memory for the table of tensors");
    }
    print_fallbacks(table);
    if (strcmp(s->output, "json") == 0) {
        return print_table_json(s, input, output, type, table, file_bytes);
    }
    if (s->dry_run) {
        if (s->verbose) {
            print_tensors(table);
        }
        print_types(table, file_bytes);
    } else {
        char bits[48];
        const type_sum all = sum_of(table, NULL);
        snprintf(bits, sizeof bits, ", %.2f bits per weight,", bits_per_weight(&all));
        report_file(output, seconds_now() - begin, bits);
    }
    return DONE;
}

int quantize_command(const settings *settings) {
    tensor_table table = {.bar = {.label = "writing", .bytes = true}};
    sluice_type_pattern patterns[LIST_ITEMS];
    char *texts[LIST_ITEMS] = {NULL};
    int code = read_patterns(settings, patterns, texts);
    code = code == DONE ? quantize(settings, patterns, &table) : code;
    for (int i = 0; i < LIST_ITEMS; i++) {
        free(texts[i]);
    }
    free_table(&table);
    return code;
}

static sluice_synth_head head_of(const settings *s) {
    static const char *const NAMES[] = {"preset", "none", "random", "agreeing"};
    int head = SLUICE_SYNTH_HEAD_AGREEING;
    while (head > 0 && strcmp(s->draft_head, NAMES[head]) != 0) {
        head--;
    }
    return (sluice_synth_head)head;
}

int synth_command(const settings *s) {
    sluice_error error;
    progress_bar bar = {.label = "writing", .bytes = true};
    const sluice_synth_options options = {
        .size = sizeof options,
        .preset = s->arguments[0],
        .type = s->type,
        .seed = s->seed,
        .layers = s->layers,
        .width = s->width,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_size = s->head_size,
        .feed_forward = s->feed_forward,
        .vocabulary = s->vocabulary,
        .experts = s->experts,
        .experts_used = s->experts_used,
        .expert_width = s->expert_width,
        .expert_type = s->expert_type,
        .expert_skew = s->expert_skew,
        .head = head_of(s),
        .replace = s->force,
    };
    const double begin = seconds_now();
    catch_ending();
    const int result = sluice_synth(s->arguments[1], &options, progress_step, &bar, &error);
    progress_end(&bar);
    if (result) {
        return fail_with(&error);
    }
    report_file(s->arguments[1], seconds_now() - begin, "");
    return DONE;
}
