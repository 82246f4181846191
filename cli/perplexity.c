/* sluice perplexity: a text's windows as sequences of their own, some at once, all logits looked at. Sums and
 * hash go by the place in the text and not by the order in which windows finish. */
#include "cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct window {
    const int32_t *tokens;
    size_t count;
    sluice_sequence *sequence;
    sluice_request *request;
    double negative; /* sum of -log p of the tokens after the first */
    uint64_t hash;   /* of all logits so far, in order */
    bool done;
} window;

typedef struct evaluation {
    const settings *settings;
    session session;
    size_t vocabulary, size, window_count, text_tokens, scored;
    int32_t sequences;
    int32_t *tokens; /* of all windows, each with its beginning-of-text token */
    window *windows;
    progress_bar bar;
} evaluation;

/* FNV-1a over 32-bit words: a bit that differs anywhere shows. */
static uint64_t hash_words(uint64_t hash, const float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, &values[i], sizeof word);
        hash = (hash ^ word) * 0x100000001b3u;
    }
    return hash;
}
static const uint64_t HASH_START = 0xcbf29ce484222325u;

/* -log of softmax(logits)[token], in doubles and in the order of the vocabulary. */
static double negative_log(const float *logits, size_t vocabulary, int32_t token) {
    float most = logits[0];
    for (size_t i = 1; i < vocabulary; i++) {
        most = logits[i] > most ? logits[i] : most;
    }
    double sum = 0;
    for (size_t i = 0; i < vocabulary; i++) {
        sum += exp((double)(logits[i] - most));
    }
    return log(sum) - (double)(logits[token] - most);
}

static void take_logits(const evaluation *e, window *w, const sluice_event *event) {
    for (size_t row = 0; row < event->rows; row++) {
        const float *logits = event->logits + row * e->vocabulary;
        const size_t next = event->first_position + row + 1;
        w->hash = hash_words(w->hash, logits, e->vocabulary);
        if (next < w->count) {
            w->negative += negative_log(logits, e->vocabulary, w->tokens[next]);
        }
    }
}

static int start_window(evaluation *e, window *w) {
    sluice_error error;
    const sluice_request_options options = {.size = sizeof options,
                                            .tokens = w->tokens,
                                            .token_count = w->count,
                                            .no_text = true,
                                            .logits = SLUICE_LOGITS_ALL};
    w->hash = HASH_START;
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

/* One event, if there is one. */
static int poll_window(evaluation *e, window *w, int timeout, bool *some) {
    sluice_error error;
    sluice_event event = {.size = sizeof event};
    if (sluice_poll(w->request, timeout, &event, &error)) {
        return fail_with(&error);
    }
    *some = event.kind != SLUICE_EVENT_NONE;
    if (event.kind == SLUICE_EVENT_LOGITS) {
        take_logits(e, w, &event);
    }
    if (event.kind == SLUICE_EVENT_DONE) {
        if (event.finish != SLUICE_FINISH_LENGTH) {
            return event.finish == SLUICE_FINISH_ERROR
                       ? fail_with(&event.error)
                       : fail("perplexity: a window ended early: %s", finish_name(event.finish));
        }
        w->done = true;
        end_window(w);
    }
    return DONE;
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
        progress_step(&e->bar, finished, e->window_count);
        code = code == DONE && interrupted() ? fail("cancelled") : code;
    }
    progress_end(&e->bar);
    for (size_t i = 0; i < started; i++) {
        end_window(&e->windows[i]);
    }
    return code;
}

/* Windows of `size` tokens, each with the model's beginning-of-text token in front if it wants one; what is
 * left at the end is a shorter window if anything can be scored in it. */
static int cut_text(evaluation *e, const int32_t *text, size_t count, const int32_t *begin,
                    size_t begin_count) {
    const size_t step = e->size - begin_count;
    const size_t most = count / step + 1;
    e->tokens = malloc(most * e->size * sizeof *e->tokens);
    e->windows = calloc(most, sizeof *e->windows);
    if (!e->tokens || !e->windows) {
        return fail("perplexity: out of memory");
    }
    for (size_t at = 0; at < count; at += step) {
        const size_t part = count - at < step ? count - at : step;
        int32_t *tokens = e->tokens + e->window_count * e->size;
        memcpy(tokens, begin, begin_count * sizeof *tokens);
        memcpy(tokens + begin_count, text + at, part * sizeof *tokens);
        if (begin_count + part >= 2) {
            e->windows[e->window_count++] = (window){.tokens = tokens, .count = begin_count + part};
            e->scored += begin_count + part - 1;
        }
    }
    e->text_tokens = count;
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

static int open_all(evaluation *e) {
    const settings *s = e->settings;
    sluice_engine_options options;
    int code = open_model(s, &e->session);
    if (code != DONE) {
        return code;
    }
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(e->session.model, &info);
    enum { USUAL_WINDOW = 512 };
    const int32_t context = s->context ? s->context : info.context;
    e->size = (size_t)(s->window ? s->window : context < USUAL_WINDOW ? context : USUAL_WINDOW);
    if (e->size < 2) {
        return fail("perplexity: a window of %zu tokens has nothing to score", e->size);
    }
    e->vocabulary = (size_t)info.vocabulary;
    e->sequences = s->sequences ? s->sequences : 1;
    code = read_text(e);
    engine_options(s, 1, &options);
    options.context = s->context > (int32_t)e->size ? s->context : (int32_t)e->size;
    options.outputs = s->chunk ? s->chunk : 512;
    options.no_prefix_reuse = true; /* every row is to be computed */
    return code == DONE ? open_engine(&e->session, &options) : code;
}

static int print_result(const evaluation *e) {
    double negative = 0;
    uint64_t hash = HASH_START;
    for (size_t i = 0; i < e->window_count; i++) {
        negative += e->windows[i].negative;
        hash = (hash ^ e->windows[i].hash) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    const double mean = negative / (double)e->scored;
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    if (strcmp(e->settings->output, "json") == 0) {
        return print_json(json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:s}", "model", e->settings->model,
                                    "tokens", (json_int_t)e->text_tokens, "scored", (json_int_t)e->scored,
                                    "windows", (json_int_t)e->window_count, "window", (json_int_t)e->size,
                                    "mean_nll", mean, "perplexity", exp(mean), "logits_hash", text));
    }
    printf("tokens       %zu, %zu of them scored\nwindows      %zu of %zu tokens\nmean nll     "
           "%.6f\nperplexity   %.6f\n"
           "logits hash  %s\n",
           e->text_tokens, e->scored, e->window_count, e->size, mean, exp(mean), text);
    return DONE;
}

int perplexity_command(const settings *settings) {
    evaluation e = {.settings = settings, .bar = {.label = "reading"}};
    int code = open_all(&e);
    catch_interrupt();
    code = code == DONE ? evaluate(&e) : code;
    release_interrupt();
    code = code == DONE ? print_result(&e) : code;
    free(e.windows);
    free(e.tokens);
    close_session(&e.session);
    return code;
}
