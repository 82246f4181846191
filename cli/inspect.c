/* sluice inspect, plan, explain: what the library says of a model, printed. */
#include "cli.h"

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

int inspect_command(const settings *settings) {
    session session = {0};
    sluice_error error;
    char *text = NULL;
    int code = open_model(settings, &session);
    if (code == DONE) {
        const int result = sluice_model_describe(session.model, format_of(settings), &text, &error);
        code = print_text(result, text, &error);
    }
    close_session(&session);
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
    }
    close_session(&session);
    return code;
}

int plan_command(const settings *settings) {
    return print_plan(settings, settings->ops ? SLUICE_PLAN_OPS : SLUICE_PLAN_MEMORY);
}

int explain_command(const settings *settings) {
    return print_plan(settings, SLUICE_PLAN_EXPLAIN);
}
