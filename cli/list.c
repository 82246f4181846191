/* sluice list: the models of the cache, and whether they fit this machine. */
#define _GNU_SOURCE
#include "models.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the table -------------------------------------------------------------------------------------------
 */

static char *count_text(uint64_t count, char text[16]) {
    if (count == 0) {
        snprintf(text, 16, "-");
    } else if (count < 1000000000) {
        snprintf(text, 16, "%.1f M", (double)count * 1e-6);
    } else {
        snprintf(text, 16, "%.1f B", (double)count * 1e-9);
    }
    return text;
}

/* "~12 t/s" */
static char *rate_text(double rate, char text[24]) {
    snprintf(text, 24, rate <= 0 ? "-" : rate < 10 ? "~%.1f t/s" : "~%.0f t/s", rate);
    return text;
}

static char *age_text(double then, char text[16]) {
    const double days = ((double)time(NULL) - then) / 86400;
    if (then <= 0) {
        snprintf(text, 16, "-");
    } else if (days < 1) {
        snprintf(text, 16, "today");
    } else {
        snprintf(text, 16, "%.0f day%s ago", days, days < 2 ? "" : "s");
    }
    return text;
}

static void fit_text(const fit *fit, char text[64]) {
    char needed[16], available[16];
    snprintf(text, 64, "%s, %s of %s", fit->fits ? "yes" : "no", size_text(fit->needed, needed),
             size_text(fit->available, available));
}

static void print_row(const model_row *r, int width) {
    char parameters[16], size[16], there[16], context[16] = "-", fits[64], generated[24], read[24], age[16];
    printf("%-*s  ", width, r->name);
    if (!r->complete && !r->remote) {
        printf("%s: %s of %s is there; sluice pull %s %s\n", r->busy ? "being fetched" : "not finished",
               size_text(r->there, there), size_text(r->bytes, size), r->name,
               r->busy ? "waits for it" : "goes on");
        return;
    }
    if (r->fit.why_not[0]) {
        printf("%s; does not run: %s\n", size_text(r->bytes, size), r->fit.why_not);
        return;
    }
    if (r->fit.context > 0) {
        snprintf(context, sizeof context, "%d", r->fit.context);
    }
    fit_text(&r->fit, fits);
    printf("%-12s  %9s  %-8s  %9s  %8s  %-24s  %-11s  %-11s  %s\n", r->fit.family,
           count_text(r->fit.parameters, parameters), r->fit.type, size_text(r->bytes, size), context, fits,
           rate_text(r->fit.generated, generated), rate_text(r->fit.read, read),
           r->remote ? "not here" : age_text(r->used, age));
}

static json_t *row_json(const model_row *r) {
    json_t *row = json_pack("{s:s, s:s*, s:s*, s:b, s:b, s:I, s:I, s:f, s:f}", "name", r->name, "path",
                            r->path, "source", r->source, "complete", r->complete, "busy", r->busy, "bytes",
                            (json_int_t)r->bytes, "bytes_there", (json_int_t)r->there, "pulled", r->pulled,
                            "used", r->used);
    if (row && (r->complete || r->remote)) {
        json_t *more = fit_json(&r->fit);
        json_object_update(row, more);
        json_decref(more);
    }
    return row;
}

static int print_rows_json(const model_row *rows, size_t count, const machine_rates *rates) {
    json_t *models = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(models, row_json(&rows[i]));
    }
    return print_json(json_pack("{s:s, s:f, s:f, s:o}", "device", rates->device, "memory_bytes_per_second",
                                rates->all.read_bytes, "operations_per_second", rates->reading, "models",
                                models));
}

int print_rows(const settings *s, const model_row *rows, size_t count, const machine_rates *rates) {
    if (strcmp(s->output, "json") == 0) {
        return print_rows_json(rows, count, rates);
    }
    int width = 4;
    char rate[16];
    for (size_t i = 0; i < count; i++) {
        const int length = (int)strlen(rows[i].name);
        width = length > width ? length : width;
    }
    printf("%-*s  %-12s  %9s  %-8s  %9s  %8s  %-24s  %-11s  %-11s  %s\n", width, "name", "family", "weights",
           "type", "size", "context", "fits, memory", "generates", "reads", "used");
    for (size_t i = 0; i < count; i++) {
        print_row(&rows[i], width);
    }
    if (rates->all.read_bytes > 0) {
        printf(
            "Tokens a second are estimates for one sequence on %s, whose memory was read at %s/s just now.\n",
            rates->device[0] ? rates->device : "this machine",
            size_text((uint64_t)rates->all.read_bytes, rate));
    }
    return DONE;
}

/* ---- rows ------------------------------------------------------------------------------------------------
 */

int judge_remote(const hub_options *options, const hub_listing *listing, const machine_rates *rates,
                 model_row *row, char message[HUB_MESSAGE]) {
    char *path, *folder;
    uint64_t fetched;
    *row = (model_row){
        .name = listing->name, .bytes = listing->bytes, .remote = true, .source = listing->source};
    const int code = hub_preview(options, listing, &path, &folder, &fetched, message);
    if (code == HUB_OK) {
        judge_model(path, rates, &row->fit);
        hub_preview_remove(folder);
        free(path);
        free(folder);
    }
    return code;
}

typedef struct table {
    const settings *settings;
    hub_options options;
    fetch_bar bar;
    machine_rates rates;
    hub_record *records;
    size_t record_count;
    model_row *rows;
    size_t count;
    hub_listing listings[LIST_ITEMS];
    int listing_count;
} table;

static model_row *add_row(table *t) {
    model_row *rows = realloc(t->rows, (t->count + 1) * sizeof *rows);
    if (!rows) {
        fail("list: out of memory");
        return NULL;
    }
    t->rows = rows;
    memset(&rows[t->count], 0, sizeof *rows);
    return &rows[t->count++];
}

static int add_record(table *t, const hub_record *record) {
    model_row *row = add_row(t);
    if (!row) {
        return FAILED;
    }
    *row = (model_row){.name = record->name,
                       .bytes = record->complete ? record->there : record->bytes,
                       .there = record->there,
                       .complete = record->complete,
                       .busy = record->busy,
                       .used = record->used,
                       .pulled = record->pulled,
                       .path = record->path,
                       .source = json_string_value(json_object_get(record->json, "source"))};
    if (record->complete) {
        measure_machine(&t->rates);
        judge_model(record->path, &t->rates, &row->fit);
    }
    return DONE;
}

/* A file, a folder or a built-in model. */
static int add_local(table *t, const char *text) {
    char place[DATA_PATH_SIZE];
    const char *path = model_path(text, place);
    model_row *row = add_row(t);
    if (!row) {
        return FAILED;
    }
    measure_machine(&t->rates);
    *row = (model_row){.name = text, .complete = true, .path = text};
    judge_model(path, &t->rates, &row->fit);
    row->bytes = row->there = row->fit.weight_bytes;
    return row->fit.why_not[0] ? fail("%s: %s", text, row->fit.why_not) : DONE;
}

static int add_remote(table *t, const char *name) {
    char message[HUB_MESSAGE];
    hub_listing *listing = &t->listings[t->listing_count];
    t->bar = (fetch_bar){.label = name};
    int code = hub_look_up(&t->options, name, listing, message);
    if (code == HUB_OK) {
        t->listing_count++;
        model_row *row = add_row(t);
        measure_machine(&t->rates);
        code = row ? judge_remote(&t->options, listing, &t->rates, row, message) : HUB_ERR_NOMEM;
    }
    fetch_end(&t->bar);
    return code ? fail_fetch(t->settings, code, name, message) : DONE;
}

static int add_name(table *t, const char *name) {
    bool found = false;
    int code = DONE;
    if (!hub_is_name(name)) {
        return add_local(t, name);
    }
    for (size_t i = 0; code == DONE && i < t->record_count; i++) {
        if (hub_cache_matches(&t->records[i], name, false)) {
            found = true;
            code = add_record(t, &t->records[i]);
        }
    }
    return code == DONE && !found ? add_remote(t, name) : code;
}

static int fill(table *t) {
    const settings *s = t->settings;
    int code = DONE;
    for (int i = 0; code == DONE && i < s->argument_count; i++) {
        code = add_name(t, s->arguments[i]);
    }
    for (size_t i = 0; code == DONE && s->argument_count == 0 && i < t->record_count; i++) {
        code = add_record(t, &t->records[i]);
    }
    return code;
}

int list_command(const settings *s) {
    static char token[TOKEN_SIZE];
    char message[HUB_MESSAGE], folder[HUB_PATH];
    table t = {.settings = s};
    int code = hub_settings(s, &t.bar, token, &t.options);
    if (code != DONE) {
        return code;
    }
    if (hub_cache_folder(&t.options, folder, message) ||
        hub_cache_records(&t.options, &t.records, &t.record_count, message)) {
        return fail("%s", message);
    }
    catch_ending();
    code = fill(&t);
    if (code == DONE && t.count == 0 && strcmp(s->output, "json") != 0) {
        printf("No model is in %s yet: sluice pull NAME fetches one.\n", folder);
    } else if (code == DONE) {
        code = print_rows(s, t.rows, t.count, &t.rates);
    }
    for (int i = 0; i < t.listing_count; i++) {
        hub_listing_release(&t.listings[i]);
    }
    hub_cache_release(t.records, t.record_count);
    free(t.rows);
    return code;
}
