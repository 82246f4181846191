/* A gate for speed: fails when a change makes prompts 15 % slower. Everything is a ratio within one run, so
 * that a machine's own speed does not matter.
 *
 *     speed_gate                the gate: 0, 1, or 77 where it could not judge
 *     speed_gate --measure N    prints the rows of the table in speed_gate_rows.h, from N runs
 *
 * One thread: a second processor of a shared machine is often half there, and then a ratio says nothing. A
 * run takes short repetitions in turns and of each kind the quickest, as others only make them slower. Where
 * the usual repetition is much slower than the quickest, others had the processor, and a figure that is
 * missed then says nothing: the run is made again, a few times, and what is never quiet is not judged. A
 * regression is missed in quiet. */
#include "backend/cpu/peak.h"
#include "base/clock.h"
#include "engine/speed_gate_rows.h"
#include "sluice.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROMPT = 512, SINGLES = 16, MOST_REPETITIONS = 64, LEAST_MISSED = 3, MOST_RUNS = 100, SKIPPED = 77 };
enum { LAYERS = 2, WIDTH = 1024, HEADS = 16, KV_HEADS = 8, HEAD_SIZE = 64, FEED_FORWARD = 3072 };

/* Of a row's figures: so much less passes. 15 % more time is 13 % less speed. */
static const double ROOM = 0.07;
/* The usual repetition of a quiet run is that near to its quickest. */
static const double QUIET = 0.92;
static const double BUDGET_SECONDS = 13, RUN_SECONDS = 0.8, PEAK_SECONDS = 2e-3;

static const char *const TIERS[] = {"avx2", "avx512", "amx"}, *const TYPES[] = {"q8_0", "q4_k"};
enum { TIER_COUNT = sizeof TIERS / sizeof *TIERS, TYPE_COUNT = sizeof TYPES / sizeof *TYPES };

static void check(int result, const char *what, const char *message) {
    if (result) {
        fprintf(stderr, "%s: %s\n", what, message);
        exit(1);
    }
}

/* ---- a run ---- */

typedef struct machine {
    sl_cpu_peak_loop loop; /* the tier's int8 products */
    sluice_engine *chunks, *singles;
} machine;

typedef struct figures {
    double share, ratio;
    bool quiet;
} figures;

/* Repetitions of one kind. */
typedef struct series {
    double values[MOST_REPETITIONS];
    int count;
} series;

/* Multiplications and additions of a prompt's token in matrices: without the head, and of the last layer
 * queries, keys and values alone, as behind them rows without outputs are gone. */
static double token_operations(void) {
    const double attention = 2.0 * WIDTH * (HEADS + KV_HEADS) * HEAD_SIZE;
    const double last = 1.0 * WIDTH * (HEADS + 2 * KV_HEADS) * HEAD_SIZE;
    return 2 * ((LAYERS - 1) * (attention + 3.0 * WIDTH * FEED_FORWARD) + last);
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

/* Operations a second. */
static double peak_speed(sl_cpu_peak_loop loop) {
    unsigned char sink[SL_CPU_PEAK_SINK];
    const double begin = sl_seconds_now();
    double operations = 0, taken;
    do {
        operations += loop(sink);
        taken = sl_seconds_now() - begin;
    } while (taken < PEAK_SECONDS);
    return operations / taken;
}

static void add(series *s, double value) {
    s->values[s->count++] = value;
}

static double quickest(series *s, bool *quiet) {
    const double middle = median(s->values, s->count), most = s->values[s->count - 1];
    *quiet &= middle >= QUIET * most;
    return most;
}

static figures run_once(const machine *m) {
    series peaks = {.count = 0}, wholes = {.count = 0}, singles = {.count = 0};
    figures f = {.quiet = true};
    const double begin = sl_seconds_now();
    while (wholes.count < MOST_REPETITIONS / 2 && sl_seconds_now() - begin < RUN_SECONDS) {
        add(&peaks, peak_speed(m->loop));
        add(&singles, prompt_speed(m->singles, SINGLES));
        add(&peaks, peak_speed(m->loop));
        add(&wholes, prompt_speed(m->chunks, PROMPT));
    }
    const double peak = quickest(&peaks, &f.quiet), whole = quickest(&wholes, &f.quiet);
    f.share = whole * token_operations() / peak;
    f.ratio = whole / quickest(&singles, &f.quiet);
    return f;
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
    machine m = {.loop = sl_cpu_peak_loop_of((sl_isa)sl_isa_parse(tier), SL_WITH_INT8)};
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
    int disturbed = 0;
    for (int i = 0; i < runs;) {
        const figures f = run_once(&m);
        shares[i] = f.share;
        ratios[i] = f.ratio;
        i += f.quiet || disturbed >= runs;
        disturbed += !f.quiet;
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

typedef struct cell {
    const gate_row *row;
    machine machine;
    figures best;      /* of several tries each figure's best */
    int tries, missed; /* missed: in quiet */
    bool passed;
} cell;

static void try_cell(cell *c) {
    const figures f = run_once(&c->machine);
    c->best.share = fmax(c->best.share, f.share);
    c->best.ratio = fmax(c->best.ratio, f.ratio);
    c->passed = c->best.share >= (1 - ROOM) * c->row->share && c->best.ratio >= (1 - ROOM) * c->row->ratio;
    c->missed += !c->passed && f.quiet;
    c->tries++;
}

static bool is_missed(const cell *c) {
    return !c->passed && c->missed >= LEAST_MISSED;
}

static void report(const cell *c) {
    const gate_row *row = c->row;
    printf("%s %s, %s: %.4f of the int8 peak, the table has %.4f (%+.1f %%); chunk 512 over chunk 1 %.2f, "
           "the table "
           "has %.2f (%+.1f %%); tried %d times, %d missed in quiet\n",
           c->passed      ? "passed"
           : is_missed(c) ? "FAILED"
                          : "not judged, others had the processor:",
           row->tier, row->type, c->best.share, row->share, 100 * (c->best.share / row->share - 1),
           c->best.ratio, row->ratio, 100 * (c->best.ratio / row->ratio - 1), c->tries, c->missed);
}

/* Rounds of all that has not passed, so that the tries of each lie far apart. */
static int judge(cell *cells, int count) {
    const double begin = sl_seconds_now();
    int left = count, passed = 0, missed = 0;
    for (int round = 0; left > 0 && sl_seconds_now() - begin < BUDGET_SECONDS; round++) {
        if (round > 0) {
            sleep(1);
        }
        left = 0;
        for (int i = 0; i < count; i++) {
            if (!cells[i].passed) {
                try_cell(&cells[i]);
            }
            left += !cells[i].passed;
        }
    }
    for (int i = 0; i < count; i++) {
        report(&cells[i]);
        passed += cells[i].passed;
        missed += is_missed(&cells[i]);
        close_machine(&cells[i].machine);
    }
    if (passed + missed == 0) {
        printf("skipped: %s\n", count ? "others had the processor all the time"
                                      : "tests/engine/speed_gate_rows.h has no row for this processor");
        return SKIPPED;
    }
    return missed > 0;
}

int main(int argc, char **argv) {
    const int runs = argc == 3 && strcmp(argv[1], "--measure") == 0 ? atoi(argv[2]) : 0;
    static cell cells[TIER_COUNT * TYPE_COUNT];
    int count = 0;
    char processor[128];
    processor_name(processor);
    if (argc > 1 && (runs < 1 || runs > MOST_RUNS)) {
        fprintf(stderr, "usage: speed_gate [--measure RUNS], at most %d\n", MOST_RUNS);
        return 2;
    }
    for (int i = 0; i < TIER_COUNT * TYPE_COUNT; i++) {
        const char *tier = TIERS[i / TYPE_COUNT], *type = TYPES[i % TYPE_COUNT];
        const gate_row *row = find_row(processor, tier, type);
        if (sl_isa_parse(tier) > (int)sl_cpu_isa()) {
            break;
        }
        if (runs) {
            measure(processor, tier, type, runs);
        } else if (row) {
            cells[count++] = (cell){.row = row, .machine = open_machine(tier, type)};
        } else {
            printf("no row for %s with %s on \"%s\", whose best tier is %s\n", tier, type, processor,
                   sl_isa_name(sl_cpu_isa()));
        }
    }
    return runs ? 0 : judge(cells, count);
}
