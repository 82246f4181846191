/* sluice perplexity: a text's windows as sequences of their own, some at once, all logits looked at. Sums and
 * hash go by the place in the text and not by the order in which windows finish. */
#include "perplexity.h"
#include "plot/plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct window {
    const int32_t *tokens;
    size_t count;
    size_t first;     /* position whose logits are the first that score: those of the token behind it */
    size_t first_row; /* of the scored rows of all windows */
    sluice_sequence *sequence;
    sluice_request *request;
    double negative, squares;   /* sum of -log p of the tokens that are scored, and of its squares */
    uint64_t hash, scored_hash; /* of all logits so far, in order; of those that score */
    uint64_t base_hash;         /* of the base's */
    bool done;
} window;

typedef struct evaluation {
    const settings *settings;
    session session;
    size_t vocabulary, size, window_count, text_tokens, scored;
    int32_t sequences;
    bool second_half;
    int32_t *tokens; /* of all windows, [size] of each */
    window *windows;
    base_logits base, written; /* of --kl and --kl-write; not opened without these */
    float *base_row;           /* [vocabulary] */
    divergence_row *rows;      /* [scored] with --kl */
    double *averages;          /* [window_count] with --plot */
    size_t told;               /* windows at the beginning of the text that are in what follows */
    size_t told_tokens;
    double told_negative, told_at; /* when a line was printed last */
    char label[64];
    progress_bar bar;
} evaluation;

/* The rows among `rows` from position `first` on whose next token is scored: `from` .. `end`. */
static void scored_rows(const window *w, size_t first, size_t rows, size_t *from, size_t *end) {
    *from = w->first > first ? w->first - first : 0;
    *end = first + rows + 1 > w->count ? w->count - 1 - first : rows;
    *from = *from > *end ? *end : *from;
}

/* A row against the base's. */
static int compare_row(evaluation *e, window *w, const float *logits, size_t position) {
    const size_t at = w->first_row + position - w->first;
    const int code = base_read(&e->base, at, e->base_row, 1);
    if (code == DONE) {
        w->base_hash = hash_words(w->base_hash, e->base_row, e->vocabulary);
        e->rows[at] = compare_rows(e->base_row, logits, e->vocabulary, w->tokens[position + 1]);
    }
    return code;
}

static int take_logits(evaluation *e, window *w, const sluice_event *event) {
    size_t from, end;
    int code = DONE;
    scored_rows(w, event->first_position, event->rows, &from, &end);
    w->hash = hash_words(w->hash, event->logits, event->rows * e->vocabulary);
    for (size_t row = from; row < end && code == DONE; row++) {
        const float *logits = event->logits + row * e->vocabulary;
        const size_t position = event->first_position + row;
        const row_sum sum = sum_row(logits, e->vocabulary);
        const double negative = -log_probability(logits, &sum, (size_t)w->tokens[position + 1]);
        w->negative += negative;
        w->squares += negative * negative;
        code = e->base.opened ? compare_row(e, w, logits, position) : DONE;
    }
    if (code == DONE && e->written.opened && from < end) {
        const float *logits = event->logits + from * e->vocabulary;
        w->scored_hash = hash_words(w->scored_hash, logits, (end - from) * e->vocabulary);
        code = base_write(&e->written, w->first_row + event->first_position + from - w->first, logits,
                          end - from);
    }
    return code;
}

static int start_window(evaluation *e, window *w) {
    sluice_error error;
    const sluice_request_options options = {.size = sizeof options,
                                            .tokens = w->tokens,
                                            .token_count = w->count,
                                            .no_text = true,
                                            .logits = SLUICE_LOGITS_ALL};
    w->hash = w->scored_hash = w->base_hash = HASH_START;
    if (sluice_sequence_create(e->session.engine, &w->sequence, &error) ||
        sluice_submit(w->sequence, &options, &w->request, &error)) {
        return fail_with(&error);
    }
    return DONE;
}

static void end_window(window *w) {
    sluice_request_release(w->request);
    sluice_sequence_release(w->sequence);
    w->request = NULL;
    w->sequence = NULL;
}

/* The end of a window; what was read of the base must be what was written. */
static int finish_window(evaluation *e, window *w) {
    const size_t index = (size_t)(w - e->windows);
    end_window(w);
    w->done = true;
    if (e->written.opened) {
        e->written.hashes[index] = w->scored_hash;
    }
    return e->base.opened && e->base.hashes[index] != w->base_hash
               ? fail("%s: damaged: the logits of window %zu are not those that were written", e->base.path,
                      index + 1)
               : DONE;
}

/* One event, if there is one. */
static int poll_window(evaluation *e, window *w, int timeout, bool *some) {
    sluice_error error;
    sluice_event event = {.size = sizeof event};
    if (sluice_poll(w->request, timeout, &event, &error)) {
        return fail_with(&error);
    }
    *some = event.kind != SLUICE_EVENT_NONE;
    if (event.kind == SLUICE_EVENT_LOGITS) {
        return take_logits(e, w, &event);
    }
    if (event.kind == SLUICE_EVENT_DONE && event.finish != SLUICE_FINISH_LENGTH) {
        return event.finish == SLUICE_FINISH_ERROR
                   ? fail_with(&event.error)
                   : fail("perplexity: a window ended early: %s", finish_name(event.finish));
    }
    return event.kind == SLUICE_EVENT_DONE ? finish_window(e, w) : DONE;
}

static size_t window_scored(const window *w) {
    return w->count - 1 - w->first;
}

/* The estimate from the windows at the text's beginning that are done: in the bar, or where nobody sees it as
 * a line for each tenth of the windows, and when none came for long. */
static void tell_progress(evaluation *e, size_t finished) {
    enum { LONG = 30 }; /* seconds */
    const bool lines = !isatty(STDERR_FILENO);
    for (; e->told < e->window_count && e->windows[e->told].done; e->told++) {
        const window *w = &e->windows[e->told];
        e->told_negative += w->negative;
        e->told_tokens += window_scored(w);
        const size_t now = e->told + 1, tenth = now * 10 / e->window_count;
        const double estimate = exp(e->told_negative / (double)e->told_tokens), at = seconds_now();
        if (lines && now < e->window_count &&
            (tenth > e->told * 10 / e->window_count || at - e->told_at > LONG)) {
            fprintf(stderr, "%zu of %zu windows, perplexity %.4f so far\n", now, e->window_count, estimate);
            e->told_at = at;
        }
        snprintf(e->label, sizeof e->label, "perplexity %.4f", estimate);
        e->bar.label = e->label;
    }
    progress_step(&e->bar, finished, e->window_count);
}

/* Windows first .. started are in flight. All are polled in turn: one that waits for room must not keep the
 * logits of another waiting. */
static int evaluate(evaluation *e) {
    size_t started = 0, finished = 0;
    int code = DONE;
    while (code == DONE && finished < e->window_count) {
        while (code == DONE && started < e->window_count && started - finished < (size_t)e->sequences) {
            code = start_window(e, &e->windows[started++]);
        }
        bool any = false;
        window *waiting = NULL;
        for (size_t i = 0; i < started && code == DONE; i++) {
            window *w = &e->windows[i];
            bool some = false;
            if (w->request) {
                code = poll_window(e, w, 0, &some);
                finished += code == DONE && w->done;
                waiting = w->request ? w : waiting;
                any |= some;
            }
        }
        if (code == DONE && !any && waiting) {
            code = poll_window(e, waiting, 5, &any);
            finished += code == DONE && waiting->done;
        }
        if (code == DONE) {
            tell_progress(e, finished);
        }
        code = code == DONE && interrupted() ? fail("cancelled") : code;
    }
    progress_end(&e->bar);
    for (size_t i = 0; i < started; i++) {
        end_window(&e->windows[i]);
    }
    return code;
}

static void add_window(evaluation *e, size_t count, size_t first) {
    window *w = &e->windows[e->window_count];
    *w = (window){.tokens = e->tokens + e->window_count * e->size,
                  .count = count,
                  .first = first,
                  .first_row = e->scored};
    e->window_count++;
    e->scored += window_scored(w);
}

/* Windows of `size` tokens, each with the model's beginning-of-text token in front if it wants one; what is
 * left at the end is a shorter window if anything can be scored in it. All tokens of the text score. */
static void cut_all(evaluation *e, const int32_t *text, size_t count, const int32_t *begin,
                    size_t begin_count) {
    const size_t step = e->size - begin_count, most = e->window_count;
    e->window_count = 0;
    for (size_t at = 0; at < count && e->window_count < most; at += step) {
        const size_t part = count - at < step ? count - at : step;
        int32_t *tokens = e->tokens + e->window_count * e->size;
        memcpy(tokens, begin, begin_count * sizeof *tokens);
        memcpy(tokens + begin_count, text + at, part * sizeof *tokens);
        if (begin_count + part >= 2) {
            add_window(e, begin_count + part, 0);
        }
    }
}

/* As llama.cpp's tools/perplexity does it: the beginning-of-text token counts as a token of the text, whole
 * windows only, that token in place of each one's first, and the tokens behind the middle score. */
static void cut_second_half(evaluation *e, const int32_t *text, size_t count, const int32_t *begin,
                            size_t begin_count) {
    const size_t most = e->window_count;
    e->window_count = 0;
    while (e->window_count < most && (e->window_count + 1) * e->size <= begin_count + count) {
        int32_t *tokens = e->tokens + e->window_count * e->size;
        const size_t at = e->window_count * e->size, skipped = at ? at - begin_count : 0;
        const size_t front = at ? 0 : begin_count;
        memcpy(tokens + front, text + skipped, (e->size - front) * sizeof *tokens);
        memcpy(tokens, begin, begin_count * sizeof *tokens);
        add_window(e, e->size, e->size / 2);
    }
}

static int cut_text(evaluation *e, const int32_t *text, size_t count, const int32_t *begin,
                    size_t begin_count) {
    const size_t most = count / (e->size - begin_count) + 1;
    const size_t limit = e->settings->limit ? (size_t)e->settings->limit
                         : e->base.opened   ? (size_t)e->base.header.windows
                                            : most;
    e->tokens = calloc(most * e->size, sizeof *e->tokens);
    e->windows = calloc(most, sizeof *e->windows);
    if (!e->tokens || !e->windows) {
        return fail("perplexity: out of memory");
    }
    e->window_count = limit < most ? limit : most;
    (e->second_half ? cut_second_half : cut_all)(e, text, count, begin, begin_count);
    e->text_tokens = count;
    if (e->scored == 0 && e->second_half) {
        return fail("perplexity: the text has %zu tokens: too few for a window of %zu, and --scoring "
                    "second-half takes only whole ones",
                    count, e->size);
    }
    return e->scored > 0 ? DONE : fail("perplexity: the text has %zu tokens: too few to score any", count);
}

static int read_text(evaluation *e) {
    sluice_error error;
    size_t length, count, begin_count;
    int32_t *tokens = NULL, *begin = NULL;
    char *text = read_all(e->settings->file, &length);
    if (!text) {
        return FAILED;
    }
    int code =
        sluice_tokenize(e->session.model, text, length, 0, &tokens, &count, &error) ||
                sluice_tokenize(e->session.model, "", 0, SLUICE_TOKENIZE_BOS, &begin, &begin_count, &error)
            ? fail_with(&error)
            : DONE;
    code = code == DONE ? cut_text(e, tokens, count, begin, begin_count) : code;
    sluice_free(tokens);
    sluice_free(begin);
    free(text);
    return code;
}

/* What a file of base logits says of these windows. */
static base_header describe(const evaluation *e) {
    base_header facts = {.second_half = e->second_half,
                         .vocabulary = e->vocabulary,
                         .window = e->size,
                         .windows = e->window_count,
                         .rows = e->scored,
                         .tokens = HASH_START};
    for (size_t i = 0; i < e->window_count; i++) {
        const uint32_t count = (uint32_t)e->windows[i].count;
        facts.tokens = hash_words(facts.tokens, &count, 1);
        facts.tokens = hash_words(facts.tokens, e->windows[i].tokens, count);
    }
    return facts;
}

static int match_base(evaluation *e) {
    const base_header facts = describe(e);
    e->base_row = malloc(e->vocabulary * sizeof *e->base_row);
    e->rows = calloc(e->scored, sizeof *e->rows);
    return e->base_row && e->rows ? base_match(&e->base, &facts) : fail("perplexity: out of memory");
}

/* Windows and scoring: as asked for, else the base's, else the usual ones. */
static int choose_windows(evaluation *e, int32_t model_context) {
    const settings *s = e->settings;
    enum { USUAL_WINDOW = 512 };
    const int32_t context = s->context ? s->context : model_context;
    const base_header *base = e->base.opened ? &e->base.header : NULL;
    e->size = (size_t)(s->window ? s->window : context < USUAL_WINDOW ? context : USUAL_WINDOW);
    e->second_half = strcmp(s->scoring, "second-half") == 0;
    if (base && !s->window) {
        e->size = (size_t)base->window;
    }
    if (base && !is_given(s, "--scoring")) {
        e->second_half = base->second_half != 0;
    }
    if (e->size > INT32_MAX) {
        return fail("%s: windows of %zu tokens are too long", s->kl, e->size);
    }
    const size_t least = e->second_half ? 3 : 2;
    return e->size < least ? fail("perplexity: a window of %zu tokens has nothing to score", e->size) : DONE;
}

static int open_all(evaluation *e) {
    const settings *s = e->settings;
    sluice_engine_options options;
    int code = s->kl_write ? base_check_output(s->kl_write, s->force) : DONE;
    code = code == DONE && s->kl ? base_open(&e->base, s->kl) : code;
    code = code == DONE ? open_model(s, &e->session) : code;
    if (code != DONE) {
        return code;
    }
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(e->session.model, &info);
    e->vocabulary = (size_t)info.vocabulary;
    e->sequences = s->sequences ? s->sequences : 1;
    code = choose_windows(e, info.context);
    code = code == DONE ? read_text(e) : code;
    code = code == DONE && e->base.opened ? match_base(e) : code;
    engine_options(s, 1, &options);
    options.context = s->context > (int32_t)e->size ? s->context : (int32_t)e->size;
    options.outputs = s->chunk ? s->chunk : 512;
    options.no_prefix_reuse = true; /* every row is to be computed */
    return code == DONE ? open_engine(s, &e->session, &options) : code;
}

/* ---- printing --------------------------------------------------------------------------------------------
 */

/* Mean divergence of each window, while the rows are in the order of the text. */
static int average_windows(evaluation *e) {
    e->averages = calloc(e->window_count, sizeof *e->averages);
    if (!e->averages) {
        return fail("perplexity: out of memory for the picture");
    }
    for (size_t i = 0; i < e->window_count; i++) {
        const window *w = &e->windows[i];
        const size_t end = i + 1 < e->window_count ? e->windows[i + 1].first_row : e->scored;
        for (size_t row = w->first_row; row < end; row++) {
            e->averages[i] += e->rows[row].divergence / (double)(end - w->first_row);
        }
    }
    return DONE;
}

typedef struct result {
    double mean, perplexity, error; /* of the perplexity, one standard deviation */
    char hash[24];
    divergence divergence;
} result;

static void summarize(evaluation *e, result *r) {
    double negative = 0, squares = 0;
    uint64_t hash = HASH_START;
    const double scored = (double)e->scored;
    for (size_t i = 0; i < e->window_count; i++) {
        negative += e->windows[i].negative;
        squares += e->windows[i].squares;
        hash = (hash ^ e->windows[i].hash) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    r->mean = negative / scored;
    r->perplexity = exp(r->mean);
    const double variance = squares / scored - r->mean * r->mean;
    r->error = e->scored > 1 && variance > 0 ? sqrt(variance / (scored - 1)) * r->perplexity : 0;
    snprintf(r->hash, sizeof r->hash, "%016" PRIx64, hash);
    if (e->rows) {
        r->divergence = summarize_rows(e->rows, e->scored);
    }
}

/* JSON has no infinity: null stands for it, which is said. */
static void set_real(json_t *object, const char *name, double value) {
    if (!isfinite(value)) {
        fail("perplexity: %s is %s, for which JSON has no number: it is null", name,
             isnan(value) ? "not a number" : "infinite");
    }
    json_object_set_new(object, name, isfinite(value) ? json_real(value) : json_null());
}

static int print_result_json(const evaluation *e, const result *r) {
    const divergence *d = &r->divergence;
    json_t *root = json_pack("{s:s, s:I, s:I, s:I, s:I, s:s}", "model", e->settings->model, "tokens",
                             (json_int_t)e->text_tokens, "scored", (json_int_t)e->scored, "windows",
                             (json_int_t)e->window_count, "window", (json_int_t)e->size, "scoring",
                             e->second_half ? "second-half" : "all");
    set_real(root, "mean_nll", r->mean);
    set_real(root, "perplexity", r->perplexity);
    set_real(root, "perplexity_error", r->error);
    json_object_set_new(root, "logits_hash", json_string(r->hash));
    if (e->rows) {
        json_t *object = json_object();
        json_object_set_new(object, "base", json_string(e->settings->kl));
        set_real(object, "base_perplexity", exp(d->negative));
        set_real(object, "mean", d->mean);
        set_real(object, "mean_error", d->error);
        set_real(object, "median", d->median);
        set_real(object, "p99", d->high);
        set_real(object, "maximum", d->most);
        set_real(object, "same_top", d->same_top);
        set_real(object, "mean_probability_change", d->change);
        set_real(object, "root_mean_square_probability_change", d->change_root);
        json_object_set_new(root, "divergence", object);
    }
    return print_json(root);
}

static void print_result_text(const evaluation *e, const result *r) {
    const divergence *d = &r->divergence;
    printf("tokens       %zu, %zu of them scored\nwindows      %zu of %zu tokens%s\nmean nll     "
           "%.6f\nperplexity   %.6f ± %.6f\n"
           "logits hash  %s\n",
           e->text_tokens, e->scored, e->window_count, e->size,
           e->second_half ? ", the second half of each scored" : "", r->mean, r->perplexity, r->error,
           r->hash);
    if (e->rows) {
        printf("base         perplexity %.6f: %s\n"
               "divergence   mean %.6f ± %.6f, median %.6f, 99 %% %.6f, maximum %.6f\n"
               "same top     %.3f %% of tokens\n"
               "probability  of the next token: mean change %+.4f %%, root mean square %.4f %%\n",
               exp(d->negative), e->settings->kl, d->mean, d->error, d->median, d->high, d->most,
               d->same_top * 100, d->change * 100, d->change_root * 100);
    }
    if (e->settings->kl_write) {
        printf("written      %s\n", e->settings->kl_write);
    }
}

static int print_result(evaluation *e) {
    result r = {0};
    int code = e->settings->plot ? average_windows(e) : DONE;
    if (code != DONE) {
        return code;
    }
    summarize(e, &r);
    if (strcmp(e->settings->output, "json") == 0) {
        code = print_result_json(e, &r);
    } else {
        print_result_text(e, &r);
    }
    const divergence_picture picture = {e->averages, e->window_count, e->size,
                                        e->rows,     e->scored,       &r.divergence};
    return code == DONE && e->settings->plot ? plot_divergence(e->settings, &picture) : code;
}

static int check_options(const settings *s) {
    char message[PLOT_MESSAGE];
    const char *wrong = s->kl && s->kl_write
                            ? "--kl reads base logits and --kl-write writes them: one at a time"
                        : s->plot && !s->kl ? "--plot draws the divergence from a base: it wants --kl FILE"
                                            : NULL;
    if (wrong) {
        fail("perplexity: %s", wrong);
        return WRONG_USAGE;
    }
    return s->plot && plot_check(s->plot, message) ? fail("%s", message) : DONE;
}

int perplexity_command(const settings *settings) {
    evaluation e = {.settings = settings, .bar = {.label = "reading"}, .told_at = seconds_now()};
    int code = check_options(settings);
    if (code != DONE) {
        return code;
    }
    code = open_all(&e);
    if (settings->kl_write && code == DONE) {
        const base_header facts = describe(&e);
        catch_ending();
        code = base_create(&e.written, settings->kl_write, &facts);
    } else {
        catch_interrupt();
    }
    code = code == DONE ? evaluate(&e) : code;
    code = code == DONE && e.written.opened ? base_finish(&e.written) : code;
    release_interrupt();
    code = code == DONE ? print_result(&e) : code;
    base_close(&e.base);
    base_close(&e.written);
    free(e.windows);
    free(e.tokens);
    free(e.base_row);
    free(e.rows);
    free(e.averages);
    close_session(&e.session);
    return code;
}
