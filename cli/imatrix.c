/* sluice imatrix: a text's windows, one after the other, through an engine that observes. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

typedef struct gathering {
    const settings *settings;
    session session;
    size_t size, window_count, rows; /* tokens of a window; rows that were computed */
    int32_t *tokens, *begin;         /* the text's; what stands in front of each window */
    size_t count, begin_count;
    int32_t *window; /* [size] */
    progress_bar bar;
} gathering;

static int read_text(gathering *g) {
    sluice_error error;
    size_t length;
    char *text = read_all(g->settings->file, &length);
    if (!text) {
        return FAILED;
    }
    const int result =
        sluice_tokenize(g->session.model, text, length, 0, &g->tokens, &g->count, &error) ||
        sluice_tokenize(g->session.model, "", 0, SLUICE_TOKENIZE_BOS, &g->begin, &g->begin_count, &error);
    free(text);
    if (result) {
        return fail_with(&error);
    }
    if (g->count == 0) {
        return fail("imatrix: the text is empty: give one with -f");
    }
    if (g->begin_count >= g->size) {
        return fail("imatrix: a window of %zu tokens has no room for text", g->size);
    }
    const size_t step = g->size - g->begin_count, windows = (g->count + step - 1) / step;
    const size_t most = g->settings->limit > 0 ? (size_t)g->settings->limit : windows;
    g->window_count = windows < most ? windows : most;
    g->window = malloc(g->size * sizeof *g->window);
    return g->window ? DONE : fail("imatrix: out of memory");
}

/* Before the work, whether the file may be written; after it, the file. */
static int write_file(gathering *g, bool dry_run) {
    sluice_error error;
    const char *file = g->settings->file;
    const bool is_file = file && strcmp(file, "-") != 0;
    const sluice_importance_options options = {.size = sizeof options,
                                               .dataset = is_file ? file : "standard input",
                                               .chunks = (uint32_t)g->window_count,
                                               .chunk_size = (uint32_t)g->size,
                                               .inputs = &file,
                                               .input_count = is_file,
                                               .replace = g->settings->force,
                                               .dry_run = dry_run};
    return sluice_engine_write_importance(g->session.engine, g->settings->imatrix, &options, &error)
               ? fail_with(&error)
               : DONE;
}

static int open_all(gathering *g) {
    const settings *s = g->settings;
    sluice_engine_options options;
    int code = open_model(s, &g->session);
    if (code != DONE) {
        return code;
    }
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(g->session.model, &info);
    enum { USUAL_WINDOW = 512 };
    const int32_t context = s->context ? s->context : info.context;
    g->size = (size_t)(s->window ? s->window : context < USUAL_WINDOW ? context : USUAL_WINDOW);
    code = read_text(g);
    engine_options(s, 1, &options);
    options.context = s->context > (int32_t)g->size ? s->context : (int32_t)g->size;
    options.no_prefix_reuse = true; /* every row is to be computed, and to count once */
    options.observe = true;
    code = code == DONE ? open_engine(s, &g->session, &options) : code;
    return code == DONE ? write_file(g, true) : code;
}

static int run_window(gathering *g, size_t index) {
    sluice_error error;
    sluice_sequence *sequence;
    sluice_event done;
    const size_t step = g->size - g->begin_count, at = index * step;
    const size_t part = g->count - at < step ? g->count - at : step;
    memcpy(g->window, g->begin, g->begin_count * sizeof *g->window);
    memcpy(g->window + g->begin_count, g->tokens + at, part * sizeof *g->window);
    const sluice_request_options options = {
        .size = sizeof options, .tokens = g->window, .token_count = g->begin_count + part, .no_text = true};
    if (sluice_sequence_create(g->session.engine, &sequence, &error)) {
        return fail_with(&error);
    }
    int code = generate(sequence, &options, NULL, NULL, &done);
    if (code == DONE && done.finish != SLUICE_FINISH_LENGTH) {
        code = fail("imatrix: window %zu ended early: %s; nothing is written", index + 1,
                    finish_name(done.finish));
    }
    sluice_sequence_release(sequence);
    g->rows += options.token_count;
    return code;
}

static int run_windows(gathering *g) {
    int code = DONE;
    for (size_t i = 0; i < g->window_count && code == DONE; i++) {
        progress_step(&g->bar, i, g->window_count);
        code = run_window(g, i);
    }
    progress_end(&g->bar);
    return code;
}

typedef struct experts_seen {
    uint64_t all, unseen, matrices; /* experts of all matrices; those without rows; matrices with any row */
} experts_seen;

static void count_experts(void *context, const sluice_observation *observation) {
    experts_seen *seen = context;
    uint64_t unseen = 0;
    for (int32_t i = 0; i < observation->experts; i++) {
        unseen += !(observation->counts[i] > 0);
    }
    seen->matrices += unseen < (uint64_t)observation->experts;
    if (observation->experts > 1) {
        seen->all += (uint64_t)observation->experts;
        seen->unseen += unseen;
    }
}

static int report(const gathering *g, double seconds) {
    sluice_error error;
    experts_seen seen = {0, 0, 0};
    if (sluice_engine_get_observations(g->session.engine, count_experts, &seen, &error)) {
        return fail_with(&error);
    }
    if (seen.unseen > 0) {
        fprintf(stderr,
                "warning: %llu of %llu experts' matrices saw no token, and nothing is known about their "
                "columns: a longer text "
                "reaches more\n",
                (unsigned long long)seen.unseen, (unsigned long long)seen.all);
    }
    fprintf(stderr, "%s: %llu matrices, %zu tokens in %zu windows of %zu, %.2f s\n", g->settings->imatrix,
            (unsigned long long)seen.matrices, g->rows, g->window_count, g->size, seconds);
    return DONE;
}

int imatrix_command(const settings *settings) {
    gathering g = {.settings = settings, .bar = {.label = "reading"}};
    const double begin = seconds_now();
    int code = open_all(&g);
    code = code == DONE ? run_windows(&g) : code;
    if (code == DONE) {
        catch_ending();
        code = write_file(&g, false);
        code = code == DONE ? report(&g, seconds_now() - begin) : code;
    }
    sluice_free(g.tokens);
    sluice_free(g.begin);
    free(g.window);
    close_session(&g.session);
    return code;
}
