/* A gate for speed: fails when a change makes prompts 15 % slower. Everything is a ratio within one run, so
 * that a machine's own speed does not matter.
 *
 *     speed_gate                the gate: 0, 1, or 77 where the table has no row for this processor
 *     speed_gate --measure N    prints the rows of the table in speed_gate_rows.h, from N runs
 *
 * One thread: a second processor of a shared machine is often half there, and then a ratio says nothing. A
 * run takes short repetitions in turns, and of their ratios the median. A row that is missed is measured
 * again a few times: a neighbour passes, a regression stays. */
#include "backend/cpu/peak.h"
#include "engine/speed_gate_rows.h"
#include "sluice.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROMPT = 512, SINGLES = 16, REPETITIONS = 7, TRIES = 4, MOST_RUNS = 100, SKIPPED = 77 };
enum { LAYERS = 2, WIDTH = 1024, HEADS = 16, KV_HEADS = 8, HEAD_SIZE = 64, FEED_FORWARD = 3072 };

/* Of a row's figures: so much less passes. 15 % more time is 13 % less speed. */
static const double ROOM = 0.08;

static const char *const TIERS[] = {"avx2", "avx512", "amx"}, *const TYPES[] = {"q8_0", "q4_k"};

static void check(int result, const char *what, const char *message) {
    if (result) {
        fprintf(stderr, "%s: %s\n", what, message);
        exit(1);
    }
}

/* ---- a run ---- */

typedef struct machine {
    sl_pool *pool; /* of one thread */
    sl_isa isa;
    sluice_engine *chunks, *singles;
} machine;

typedef struct figures {
    double share, ratio;
} figures;

/* Multiplications and additions of a token in matrices, head not counted. */
static double token_operations(void) {
    const double attention = 2.0 * WIDTH * (HEADS + KV_HEADS) * HEAD_SIZE;
    return 2 * LAYERS * (attention + 3.0 * WIDTH * FEED_FORWARD);
}

/* Tokens a second of a prompt, by the time that its steps take. */
static double prompt_speed(sluice_engine *engine, size_t count) {
    int32_t tokens[PROMPT];
    sluice_error error;
    sluice_sequence *sequence;
    sluice_request *request;
    sluice_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    sluice_event event = {.size = sizeof event};
    for (int32_t i = 0; i < PROMPT; i++) {
        tokens[i] = (i * 7919 + 13) % 500;
    }
    const sluice_request_options options = {.size = sizeof options, .tokens = tokens, .token_count = count};
    sluice_engine_get_counters(engine, &before);
    check(sluice_sequence_create(engine, &sequence, &error), "sequence", error.message);
    check(sluice_submit(sequence, &options, &request, &error), "request", error.message);
    while (event.kind != SLUICE_EVENT_DONE) {
        check(sluice_poll(request, -1, &event, &error), "poll", error.message);
    }
    check(event.finish == SLUICE_FINISH_ERROR, "request", event.error.message);
    sluice_request_release(request);
    sluice_sequence_release(sequence);
    sluice_engine_get_counters(engine, &after);
    return (double)count / (after.step_seconds - before.step_seconds);
}

static int rising(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, rising);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static figures run_once(const machine *m) {
    double shares[REPETITIONS], ratios[REPETITIONS], peak;
    sl_error error;
    for (int r = 0; r < REPETITIONS; r++) {
        const double single = prompt_speed(m->singles, SINGLES), whole = prompt_speed(m->chunks, PROMPT);
        check(sl_cpu_peak_operations(m->pool, m->isa, SL_WITH_INT8, &peak, &error), "peak", error.message);
        shares[r] = whole * token_operations() / peak;
        ratios[r] = whole / single;
    }
    return (figures){median(shares, REPETITIONS), median(ratios, REPETITIONS)};
}

static sluice_engine *open_engine(sluice_model *model, const char *tier, int32_t chunk) {
    const sluice_engine_options options = {.size = sizeof options,
                                           .device = "cpu",
                                           .isa = tier,
                                           .threads = 1,
                                           .chunk = chunk,
                                           .context = 2 * PROMPT,
                                           .sequences = 1,
                                           .no_prefix_reuse = true};
    sluice_engine *engine;
    sluice_error error;
    check(sluice_engine_create(model, &options, &engine, &error), tier, error.message);
    return engine;
}

static sluice_model *make_model(const char *type) {
    char path[512];
    sluice_error error;
    sluice_model *model;
    const sluice_synth_options options = {.size = sizeof options,
                                          .preset = "qwen3",
                                          .type = type,
                                          .seed = 1,
                                          .layers = LAYERS,
                                          .width = WIDTH,
                                          .heads = HEADS,
                                          .kv_heads = KV_HEADS,
                                          .head_size = HEAD_SIZE,
                                          .feed_forward = FEED_FORWARD,
                                          .vocabulary = 512};
    snprintf(path, sizeof path, "%s/speed-gate-%d.gguf", SLUICE_BINARY_DIR, (int)getpid());
    check(sluice_synth(path, &options, NULL, NULL, &error), "synth", error.message);
    const int result = sluice_model_open(path, &model, &error);
    unlink(path);
    check(result, "model", error.message);
    return model;
}

static machine open_machine(const char *tier, const char *type) {
    machine m = {.isa = (sl_isa)sl_isa_parse(tier)};
    sl_error error;
    check(sl_pool_create(1, &m.pool, &error), "threads", error.message);
    sluice_model *model = make_model(type);
    m.chunks = open_engine(model, tier, PROMPT);
    m.singles = open_engine(model, tier, 1);
    sluice_model_release(model);
    prompt_speed(m.chunks, PROMPT); /* once without being counted: nothing is in the caches yet */
    prompt_speed(m.singles, SINGLES);
    return m;
}

static void close_machine(machine *m) {
    sluice_engine_destroy(m->chunks);
    sluice_engine_destroy(m->singles);
    sl_pool_destroy(m->pool);
}

/* ---- the table ---- */

static void processor_name(char name[128]) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    name[0] = '\0';
    while (file && !name[0] && fgets(line, sizeof line, file)) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && value) {
            value += 1 + strspn(value + 1, " \t");
            snprintf(name, 128, "%.*s", (int)strcspn(value, "\n"), value);
        }
    }
    if (file) {
        fclose(file);
    }
}

/* The largest distance from the median, in percent of it. */
static double noise(const double *values, int count, double middle) {
    double most = 0;
    for (int i = 0; i < count; i++) {
        most = fmax(most, 100 * fabs(values[i] - middle) / middle);
    }
    return most;
}

static void measure(const char *processor, const char *tier, const char *type, int runs) {
    double shares[MOST_RUNS], ratios[MOST_RUNS];
    machine m = open_machine(tier, type);
    for (int i = 0; i < runs; i++) {
        const figures f = run_once(&m);
        shares[i] = f.share;
        ratios[i] = f.ratio;
    }
    close_machine(&m);
    const double share = median(shares, runs), ratio = median(ratios, runs);
    printf("    {\"%s\", \"%s\", \"%s\", \"%s\", %.4f, %.1f, %.2f, %.1f},\n", processor,
           sl_isa_name(sl_cpu_isa()), tier, type, share, noise(shares, runs, share), ratio,
           noise(ratios, runs, ratio));
    fflush(stdout);
}

/* ---- the gate ---- */

static const gate_row *find_row(const char *processor, const char *tier, const char *type) {
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        const gate_row *row = &ROWS[i];
        if (strcmp(row->processor, processor) == 0 && strcmp(row->best, sl_isa_name(sl_cpu_isa())) == 0 &&
            strcmp(row->tier, tier) == 0 && strcmp(row->type, type) == 0) {
            return row;
        }
    }
    return NULL;
}

/* Of several tries each figure's best: what disturbs a run makes it worse. */
static bool passes(const gate_row *row) {
    machine m = open_machine(row->tier, row->type);
    figures best = {0, 0};
    bool good = false;
    int tries = 0;
    for (; tries < TRIES && !good; tries++) {
        const figures f = run_once(&m);
        best.share = fmax(best.share, f.share);
        best.ratio = fmax(best.ratio, f.ratio);
        good = best.share >= (1 - ROOM) * row->share && best.ratio >= (1 - ROOM) * row->ratio;
    }
    close_machine(&m);
    printf("%s %s, %s: %.4f of the int8 peak, the table has %.4f (%+.1f %%); chunk 512 over chunk 1 %.2f, "
           "the table "
           "has %.2f (%+.1f %%); %d %s\n",
           good ? "passed" : "FAILED", row->tier, row->type, best.share, row->share,
           100 * (best.share / row->share - 1), best.ratio, row->ratio, 100 * (best.ratio / row->ratio - 1),
           tries, tries == 1 ? "try" : "tries");
    fflush(stdout);
    return good;
}

int main(int argc, char **argv) {
    const int runs = argc == 3 && strcmp(argv[1], "--measure") == 0 ? atoi(argv[2]) : 0;
    int rows = 0, failed = 0;
    char processor[128];
    processor_name(processor);
    if (argc > 1 && (runs < 1 || runs > MOST_RUNS)) {
        fprintf(stderr, "usage: speed_gate [--measure RUNS], at most %d\n", MOST_RUNS);
        return 2;
    }
    for (size_t i = 0; i < sizeof TIERS / sizeof *TIERS; i++) {
        for (size_t k = 0; k < sizeof TYPES / sizeof *TYPES && sl_isa_parse(TIERS[i]) <= (int)sl_cpu_isa();
             k++) {
            const gate_row *row = find_row(processor, TIERS[i], TYPES[k]);
            if (runs) {
                measure(processor, TIERS[i], TYPES[k], runs);
            } else if (row) {
                rows++;
                failed += !passes(row);
            } else {
                printf("no row for %s with %s on \"%s\", whose best tier is %s\n", TIERS[i], TYPES[k],
                       processor, sl_isa_name(sl_cpu_isa()));
            }
        }
    }
    if (!runs && rows == 0) {
        printf("skipped: tests/engine/speed_gate_rows.h has no row for this processor\n");
        return SKIPPED;
    }
    return failed > 0;
}
