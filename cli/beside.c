/* sluice bench --beside: sequences generate, a prompt arrives, and everybody's waiting is measured. What a
 * user notices of others: the time to the prompt's first token, and the time between two tokens of those that
 * generate, before it came and until its first token. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum {
    WARM = 8,   /* first tokens of a sequence, which do not count */
    ROOM = 4096 /* tokens of a sequence that generates, at least */
};

typedef struct generator {
    sluice_sequence *sequence;
    sluice_request *request;
    double last; /* when the last token came */
    int32_t tokens;
} generator;

typedef struct times {
    double *items; /* seconds */
    size_t count, room;
} times;

typedef struct beside {
    bench *bench;
    int32_t prompt;
    generator *generators; /* [one.beside] */
    times before, meanwhile;
    double alone[REPETITIONS], first[REPETITIONS]; /* seconds to the prompt's first token */
    int repetitions;
    bool counts; /* this repetition does */
} beside;

int64_t beside_context(const settings *s) {
    int64_t most = ROOM;
    for (int i = 0; i < s->prompts.count; i++) {
        most = s->prompts.items[i] + 2 > most ? s->prompts.items[i] + 2 : most;
    }
    return most;
}

static int add_time(times *t, double seconds) {
    if (t->count == t->room) {
        const size_t room = t->room ? 2 * t->room : 4096;
        double *items = realloc(t->items, room * sizeof *items);
        if (!items) {
            return fail("bench: out of memory");
        }
        t->items = items;
        t->room = room;
    }
    t->items[t->count++] = seconds;
    return DONE;
}

static int compare_times(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* In milliseconds, of times in rising order: the smallest that this share of them does not exceed. */
static double quantile(const times *t, double share) {
    if (t->count == 0) {
        return 0;
    }
    size_t at = (size_t)(share * (double)t->count);
    at = at < t->count ? at : t->count - 1;
    return t->items[at] * 1e3;
}

/* One event of a request, if there is one; *done: it was the last. */
static int poll_one(sluice_request *request, int timeout, bool *some, bool *token, bool *done) {
    sluice_error error;
    sluice_event event = {.size = sizeof event};
    if (sluice_poll(request, timeout, &event, &error)) {
        return fail_with(&error);
    }
    *some = event.kind != SLUICE_EVENT_NONE;
    *token = event.kind == SLUICE_EVENT_TOKEN;
    *done = event.kind == SLUICE_EVENT_DONE;
    if (*done && event.finish == SLUICE_FINISH_ERROR) {
        return fail_with(&event.error);
    }
    return interrupted() ? fail("cancelled") : DONE;
}

/* All events that are there; the times between tokens go to `to`. Waits a moment for the first sequence's, as
 * one step gives tokens to all. */
static int poll_generators(beside *b, times *to) {
    bool token, done;
    for (int32_t i = 0; i < b->bench->one.beside; i++) {
        generator *g = &b->generators[i];
        int wait = i == 0 ? 2 : 0;
        for (bool some = true; some; wait = 0) {
            const int code = poll_one(g->request, wait, &some, &token, &done);
            if (code != DONE) {
                return code;
            }
            if (done) {
                return fail("bench: a sequence had to end before the prompt was read; raise -c");
            }
            if (token) {
                const double now = seconds_now(), seconds = now - g->last;
                g->last = now;
                if (g->tokens++ >= WARM && b->counts && add_time(to, seconds) != DONE) {
                    return FAILED;
                }
            }
        }
    }
    return DONE;
}

static int submit_prompt(beside *b, sluice_sequence **sequence, sluice_request **request) {
    sluice_error error;
    const sluice_request_options options = {.size = sizeof options,
                                            .tokens = b->bench->tokens,
                                            .token_count = (size_t)b->prompt,
                                            .generate = 1,
                                            .no_text = true,
                                            .ignore_eos = true};
    return sluice_sequence_create(b->bench->session.engine, sequence, &error) ||
                   sluice_submit(*sequence, &options, request, &error)
               ? fail_with(&error)
               : DONE;
}

/* From the prompt's submission to its end, while the generators, if there are any, go on. */
static int time_prompt(beside *b, bool generating, double *seconds) {
    sluice_sequence *sequence = NULL;
    sluice_request *request = NULL;
    const double begin = seconds_now();
    int code = submit_prompt(b, &sequence, &request);
    for (bool some, token, done = false; code == DONE && !done;) {
        code = generating ? poll_generators(b, &b->meanwhile) : DONE;
        code = code == DONE ? poll_one(request, generating ? 0 : 100, &some, &token, &done) : code;
    }
    *seconds = seconds_now() - begin;
    /* The step that gave the prompt's token gave the others one too. */
    code = code == DONE && generating ? poll_generators(b, &b->meanwhile) : code;
    sluice_request_release(request);
    sluice_sequence_release(sequence);
    return code;
}

static int start_generators(beside *b) {
    for (int32_t i = 0; i < b->bench->one.beside; i++) {
        sluice_error error;
        generator *g = &b->generators[i];
        const sluice_request_options options = {.size = sizeof options,
                                                .tokens = b->bench->tokens + i % b->bench->context,
                                                .token_count = 1,
                                                .generate = (size_t)b->bench->context - 1,
                                                .no_text = true,
                                                .ignore_eos = true};
        *g = (generator){0};
        if (sluice_sequence_create(b->bench->session.engine, &g->sequence, &error) ||
            sluice_submit(g->sequence, &options, &g->request, &error)) {
            return fail_with(&error);
        }
    }
    return DONE;
}

static void end_generators(beside *b) {
    for (int32_t i = 0; i < b->bench->one.beside; i++) {
        sluice_request_release(b->generators[i].request);
        sluice_sequence_release(b->generators[i].sequence);
        b->generators[i] = (generator){0};
    }
}

static bool all_have(const beside *b, int32_t tokens) {
    for (int32_t i = 0; i < b->bench->one.beside; i++) {
        if (b->generators[i].tokens < tokens) {
            return false;
        }
    }
    return true;
}

static int repeat(beside *b, double *alone, double *first) {
    const int32_t before = WARM + b->bench->one.generates.items[0];
    int code = time_prompt(b, false, alone);
    code = code == DONE ? start_generators(b) : code;
    while (code == DONE && !all_have(b, before)) {
        code = poll_generators(b, &b->before);
    }
    code = code == DONE ? time_prompt(b, true, first) : code;
    end_generators(b);
    return code;
}

static double mean(const double *values, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) {
        sum += values[i] / count;
    }
    return sum;
}

static int print_beside(beside *b) {
    bench *of = b->bench;
    char type[64], backend[32];
    const double alone = mean(b->alone, b->repetitions) * 1e3, first = mean(b->first, b->repetitions) * 1e3;
    model_type(of, type);
    backend_name(of, backend);
    qsort(b->before.items, b->before.count, sizeof *b->before.items, compare_times);
    qsort(b->meanwhile.items, b->meanwhile.count, sizeof *b->meanwhile.items, compare_times);
    if (strcmp(of->one.output, "md") != 0) {
        return print_row(
            of, json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I}",
                          "model_filename", of->one.model, "model_type", type, "backends", backend,
                          "n_threads", of->threads, "n_beside", of->one.beside, "n_prompt", b->prompt,
                          "first_token_alone_ms", alone, "first_token_ms", first, "between_before_median_ms",
                          quantile(&b->before, 0.5), "between_before_p99_ms", quantile(&b->before, 0.99),
                          "between_median_ms", quantile(&b->meanwhile, 0.5), "between_p99_ms",
                          quantile(&b->meanwhile, 0.99), "between_most_ms", quantile(&b->meanwhile, 1),
                          "between_count", (json_int_t)b->meanwhile.count));
    }
    if (of->first) {
        printf(
            "Milliseconds to a prompt's first token, alone and beside sequences that generate, and between\n"
            "two tokens of these before it came and until its first token.\n\n"
            "| %-24s | %-8s | %6s | %7s | %11s | %12s | %13s | %10s | %10s | %10s | %10s |\n",
            "model", "backend", "beside", "prompt", "first alone", "first beside", "before median",
            "before p99", "median", "p99", "most");
        printf("| ------------------------ | -------- | -----: | ------: | ----------: | -----------: | "
               "------------: | ---------: | ---------: | ---------: | ---------: |\n");
    }
    printf("| %-24s | %-8s | %6d | %7d | %11.2f | %12.2f | %13.3f | %10.3f | %10.3f | %10.3f | %10.3f |\n",
           type, backend, of->one.beside, b->prompt, alone, first, quantile(&b->before, 0.5),
           quantile(&b->before, 0.99), quantile(&b->meanwhile, 0.5), quantile(&b->meanwhile, 0.99),
           quantile(&b->meanwhile, 1));
    of->first = false;
    return fflush(stdout), DONE;
}

static int measure_one(bench *of, int32_t prompt, generator *generators) {
    static beside b;
    b = (beside){.bench = of, .prompt = prompt, .generators = generators};
    double alone, first;
    int code = repeat(&b, &alone, &first);
    b.counts = true;
    for (b.repetitions = 0; b.repetitions < of->one.repetitions && code == DONE; b.repetitions++) {
        code = repeat(&b, &b.alone[b.repetitions], &b.first[b.repetitions]);
    }
    code = code == DONE ? print_beside(&b) : code;
    free(b.before.items);
    free(b.meanwhile.items);
    return code;
}

int measure_beside(bench *b) {
    const settings *s = &b->one;
    generator *generators = calloc((size_t)s->beside, sizeof *generators);
    int code = generators ? DONE : fail("bench: out of memory");
    for (int i = 0; i < s->prompts.count && code == DONE; i++) {
        code = s->prompts.items[i] > 0 ? measure_one(b, s->prompts.items[i], generators) : DONE;
    }
    free(generators);
    return code;
}
