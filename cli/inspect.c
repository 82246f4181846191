/* sluice inspect, plan, explain: what the library says of a model, printed. */
#include "cli.h"
#include "plot/plot.h"

#include <stdlib.h>
#include <string.h>

static sluice_text_format format_of(const settings *settings) {
    return strcmp(settings->output, "json") == 0 ? SLUICE_JSON : SLUICE_TEXT;
}

static int print_text(int result, char *text, const sluice_error *error) {
    if (result) {
        return fail_with(error);
    }
    fputs(text, stdout);
    sluice_free(text);
    return DONE;
}

/* ---- files as they are, whether they run or not ---- */

static const char *text_of(const json_t *object, const char *key, const char *otherwise) {
    const char *text = json_string_value(json_object_get(object, key));
    return text && *text ? text : otherwise;
}

static void print_value(const json_t *value) {
    enum { LONGEST = 200 };
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    const size_t length = text ? strlen(text) : 0;
    size_t shown = length > LONGEST ? LONGEST : length;
    while (shown < length && shown > 0 && ((unsigned char)text[shown] & 0xc0) == 0x80) {
        shown--; /* whole characters */
    }
    printf("%.*s%s", (int)shown, text ? text : "", shown < length ? "..." : "");
    free(text);
}

static void print_keys(const json_t *keys) {
    for (size_t i = 0; i < json_array_size(keys); i++) {
        const json_t *row = json_array_get(keys, i), *value = json_object_get(row, "value");
        printf("%-40s %-16s ", text_of(row, "key", ""), text_of(row, "type", ""));
        if (json_is_array(value)) {
            printf("%lld: ", (long long)json_integer_value(json_object_get(row, "count")));
        }
        print_value(value);
        printf("\n");
    }
}

static void print_tensors(const json_t *tensors) {
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *row = json_array_get(tensors, i), *shape = json_object_get(row, "shape");
        printf("%-48s %-8s ", text_of(row, "name", ""), text_of(row, "type", ""));
        for (size_t d = 0; d < json_array_size(shape); d++) {
            printf("%s%lld", d ? " x " : "", (long long)json_integer_value(json_array_get(shape, d)));
        }
        printf("  %lld bytes\n", (long long)json_integer_value(json_object_get(row, "bytes")));
    }
}

static void print_summary(const json_t *file, const char *why_not) {
    const json_t *types = json_object_get(file, "types"), *parts = json_object_get(file, "parts");
    printf("name        %s\n", text_of(file, "name", text_of(file, "path", "")));
    printf("family      %s (%s)\n", text_of(file, "family", "none"), text_of(file, "format", ""));
    if (text_of(file, "type", NULL)) {
        printf("type        %s\n", text_of(file, "type", ""));
    }
    printf("runs        no: %s\n", why_not);
    if (json_integer_value(parts) > 1) {
        printf("parts       %lld files\n", (long long)json_integer_value(parts));
    }
    printf("weights     %lld bytes in %lld tensors (--tensors lists them)\n",
           (long long)json_integer_value(json_object_get(file, "bytes")),
           (long long)json_integer_value(json_object_get(file, "tensor_count")));
    printf("metadata    %zu keys (--keys lists them)\n", json_array_size(json_object_get(file, "keys")));
    for (size_t i = 0; i < json_array_size(types); i++) {
        const json_t *row = json_array_get(types, i);
        printf("%-11s %lld tensors, %lld bytes\n", text_of(row, "type", ""),
               (long long)json_integer_value(json_object_get(row, "tensors")),
               (long long)json_integer_value(json_object_get(row, "bytes")));
    }
}

/* why_not: NULL for a file that runs, of which only the lists are asked for. */
static int print_file(const settings *settings, json_t *file, const char *why_not) {
    if (format_of(settings) == SLUICE_JSON) {
        if (!settings->keys) {
            json_object_del(file, "keys");
        }
        if (!settings->tensors) {
            json_object_del(file, "tensors");
        }
        json_object_set_new(file, "runs", json_boolean(!why_not));
        json_object_set_new(file, "why_not", why_not ? json_string(why_not) : json_null());
        return print_json(file);
    }
    if (why_not) {
        print_summary(file, why_not);
    }
    if (settings->keys) {
        printf("%s", why_not ? "\n" : "");
        print_keys(json_object_get(file, "keys"));
    }
    if (settings->tensors) {
        printf("%s", why_not || settings->keys ? "\n" : "");
        print_tensors(json_object_get(file, "tensors"));
    }
    json_decref(file);
    return DONE;
}

static int inspect_file(const settings *settings, const char *path, const sluice_error *why_not) {
    sluice_error error;
    char *text;
    if (sluice_file_describe(path, &text, &error)) {
        return fail_with(why_not ? why_not : &error);
    }
    json_t *file = json_loads(text, 0, NULL);
    sluice_free(text);
    return file ? print_file(settings, file, why_not ? why_not->message : NULL)
                : fail("%s: out of memory for JSON", path);
}

int inspect_command(const settings *settings) {
    session session = {0};
    sluice_error error;
    char *text = NULL, place[DATA_PATH_SIZE];
    const char *path = model_path(settings->model, place);
    int code;
    if (sluice_model_open(path, &session.model, &error)) {
        return inspect_file(settings, path, &error);
    }
    if (settings->keys || settings->tensors) {
        code = inspect_file(settings, path, NULL);
    } else {
        const int result = sluice_model_describe(session.model, format_of(settings), &text, &error);
        code = print_text(result, text, &error);
    }
    close_session(&session);
    return code;
}

/* The file of --plot. */
static int draw_plan(const settings *settings, const session *session, const sluice_engine_options *options) {
    sluice_error error;
    char *text = NULL;
    if (sluice_plan_describe(session->model, options, SLUICE_PLAN_MEMORY, SLUICE_JSON, &text, &error)) {
        return fail_with(&error);
    }
    const int code = plot_memory(settings, text);
    sluice_free(text);
    return code;
}

static int print_plan(const settings *settings, sluice_plan_view view) {
    session session = {0};
    sluice_error error;
    sluice_engine_options options;
    char *text = NULL;
    int code = open_model(settings, &session);
    if (code == DONE) {
        engine_options(settings, 0, &options);
        const int result =
            sluice_plan_describe(session.model, &options, view, format_of(settings), &text, &error);
        code = print_text(result, text, &error);
        code = code == DONE && settings->plot ? draw_plan(settings, &session, &options) : code;
    }
    close_session(&session);
    return code;
}

int plan_command(const settings *settings) {
    if (settings->ops && settings->plot) {
        fail("plan: --plot draws the bytes, and --ops lists operations: no picture of these");
        return WRONG_USAGE;
    }
    char message[PLOT_MESSAGE];
    if (settings->plot && plot_check(settings->plot, message)) {
        return fail("%s", message);
    }
    return print_plan(settings, settings->ops ? SLUICE_PLAN_OPS : SLUICE_PLAN_MEMORY);
}

int explain_command(const settings *settings) {
    return print_plan(settings, SLUICE_PLAN_EXPLAIN);
}
