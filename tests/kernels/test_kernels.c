/* One loop over the registry: every kernel of a backend on every case of its kind of op, compared with the
 * plain CPU kernel and with the definition in double, and with itself when the rows are cut into steps in
 * other ways or more threads run. `--bench` times the same kernels.
 *
 *     test_kernels [--backend cpu|cuda|cuda:N] [--kernel TEXT] [--without TEXT] [--part I/N] [--cases N]
 *                  [--case TEXT] [--light] [--most-operations N] [--seed N] [--verbose]
 *     test_kernels --bench [--backend NAME] [--kernel TEXT] [--without TEXT] [--part I/N] [--seed N]
 *     test_kernels --rivals --backend cuda [--kernel TEXT] [--without TEXT] [--part I/N] [--seed N]
 *     test_kernels --list --backend cuda [-o md|json]
 *
 * --kernel takes the kernels whose names hold the text, --without leaves such out; each may be said several
 * times. --part takes every N-th kernel, from the I-th on (1 is the first). --case takes the cases whose
 * names hold the text; --cases runs at most N cases of a kernel, spread over all that it takes [all; under a
 * sanitizer 2]. --light runs each case whole and in chunks, against the definition: what a tool that makes
 * every access slow needs to see. --most-operations leaves out larger cases, unless a kernel takes no others:
 * then its smallest is run.
 * --rivals times each shape of kernel beside what would run without it, as JSON; --list prints the table of
 * kernels, without a GPU. */
#define _POSIX_C_SOURCE 200809L
#include "harness.h"

#include "support/sanitized.h"

#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NAMES = 24 };

typedef struct suite {
    sl_backend *backend, *threaded, *plain;
    const char *only[NAMES];    /* kernels whose names hold one of these are tested; none: all */
    const char *without[NAMES]; /* kernels whose names hold one of these are left out */
    int only_count, without_count;
    uint64_t seed;
    const char *of_case;    /* in the names of cases to run; "": all */
    int most;               /* cases of a kernel to run; 0: all */
    double most_operations; /* of a case; 0: any */
    bool verbose, light;
    bool bench, rivals, list, json; /* other things to do than to test */
    const char *device;
    int part, parts; /* every `parts`-th kernel from `part` on */
    int passed, failed;
    int run, declined; /* cases of the kernel under test */
} suite;

/* ---- comparing ---- */

static const float *floats(const void *data, int64_t at) {
    return (const float *)data + at;
}

/* Largest |difference| over the root mean square of `expected`; both NaN is equal; INFINITY for one NaN
 * alone. */
static double distance(const float *expected, const float *actual, int64_t count) {
    double largest = 0, squares = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < count; i++) {
        if (memcmp(&expected[i], &actual[i], sizeof(float)) == 0) {
            squares += isfinite(expected[i]) ? (double)expected[i] * (double)expected[i] : 0;
            finite++;
            continue;
        }
        const double difference = fabs((double)expected[i] - (double)actual[i]);
        if (isnan(difference)) {
            if (isnan(expected[i]) != isnan(actual[i])) {
                return INFINITY;
            }
            continue;
        }
        largest = difference > largest ? difference : largest;
        squares += (double)expected[i] * (double)expected[i];
        finite++;
    }
    return largest == 0 ? 0 : largest / sqrt(squares / (double)finite);
}

static int64_t bytes_of(const kt_case *c, int32_t v) {
    const sl_value *value = &c->program.values[v];
    const int64_t rows = value->rows == SL_ROWS_OUTPUT   ? c->output_count
                         : value->rows == SL_ROWS_EXPERT ? c->rows * c->program.experts_used
                                                         : c->rows;
    return rows * (int64_t)sl_value_row_bytes(value->type, value->width);
}

/* The whole value, so that columns which nothing should touch are compared too (they hold the pattern, which
 * is tiny as a float). */
static double compare_values(const kt_case *c, int32_t v, const kt_result *a, const kt_result *b) {
    const sl_value *value = &c->program.values[v];
    const int64_t bytes = bytes_of(c, v);
    if (value->type == SL_VALUE_F32) {
        return distance(floats(a->values[v], 0), floats(b->values[v], 0), bytes / 4);
    }
    return memcmp(a->values[v], b->values[v], (size_t)bytes) == 0 ? 0 : INFINITY;
}

/* The states that both have left behind a row. */
static double compare_states(const kt_case *c, const kt_result *a, const kt_result *b) {
    const uint64_t bytes = c->program.state_bytes, count = bytes > 0 ? a->state_bytes / 2 / bytes : 0;
    double worst = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (a->has_state[i] && b->has_state[i]) {
            const double d = distance(floats(a->row_states, (int64_t)(i * bytes / 4)),
                                      floats(b->row_states, (int64_t)(i * bytes / 4)), (int64_t)bytes / 4);
            worst = d > worst ? d : worst;
        }
    }
    return worst;
}

/* How far two results of one time line are apart. `same_steps`: also what depends on the way it was cut. */
static double compare_results(const kt_case *c, const kt_result *a, const kt_result *b, bool same_steps) {
    const sl_op_kind kind = c->program.ops[c->op].kind;
    double worst = 0;
    for (int32_t v = 0; v < c->program.value_count; v++) {
        if (v == c->schedule_value && !same_steps) {
            continue;
        }
        const double d = compare_values(c, v, a, b);
        worst = d > worst ? d : worst;
    }
    if (same_steps && c->schedule_value != SL_NONE &&
        memcmp(a->schedule, b->schedule, (size_t)(c->program.experts + 1) * sizeof(int32_t)) != 0) {
        return INFINITY;
    }
    if (a->kept_bytes > 0 && memcmp(a->kept, b->kept, a->kept_bytes) != 0) {
        return INFINITY;
    }
    if (same_steps && memcmp(a->cache, b->cache, a->cache_bytes) != 0) {
        return INFINITY;
    }
    const double states = compare_states(c, a, b);
    worst = states > worst ? states : worst;
    if (same_steps && (kind == SL_OP_CONV || kind == SL_OP_DELTA_SCAN || kind == SL_OP_SSM_SCAN)) {
        const double d = distance(floats(a->state, 0), floats(b->state, 0), (int64_t)a->state_bytes / 4);
        worst = d > worst ? d : worst;
    }
    return memcmp(a->last_tokens, b->last_tokens, sizeof a->last_tokens) == 0 ? worst : INFINITY;
}

static bool is_written(const kt_case *c, int32_t v) {
    for (int32_t i = 0; i < c->program.op_count; i++) {
        for (int o = 0; o < SL_OP_OUTPUTS; o++) {
            if (c->program.ops[i].out[o].value == v) {
                return true;
            }
        }
    }
    return false;
}

/* Values that no op writes are as they were given. */
static bool inputs_are_intact(const kt_case *c, const kt_result *result) {
    for (int32_t v = 0; v < c->program.value_count; v++) {
        if (c->inputs[v] && !is_written(c, v) &&
            memcmp(c->inputs[v], result->values[v], (size_t)bytes_of(c, v)) != 0) {
            return false;
        }
    }
    return true;
}

/* ---- one case ---- */

static bool fail(const kt_case *c, const sl_kernel *kernel, const char *what, double error, double allowed) {
    fprintf(stderr, "FAILED %s, %s: %s: off by %g, allowed %g\n", kernel->name, c->name, what, error,
            allowed);
    return false;
}

/* Runs the time line on a backend; false with a message when that fails. */
static bool run_on(sl_backend *backend, const sl_kernel *kernel, const kt_case *c, kt_cut cut,
                   kt_random *random, kt_result *result) {
    const char *declined;
    kt_runner *runner = kt_runner_new(backend, kernel, c, &declined);
    if (!runner) {
        fprintf(stderr, "FAILED %s: %s\n", c->name, declined ? declined : "no executor");
        return false;
    }
    const bool good = kt_run(runner, cut, random, result);
    kt_runner_free(runner);
    return good;
}

static bool check_against_plain(const suite *s, const sl_kernel *kernel, const kt_case *c,
                                const kt_result *whole, kt_random *random) {
    const sl_kernel *plain = kt_choose(s->plain, NULL, c);
    if (!plain || plain == kernel ||
        !strstr(plain->name, "/plain")) { /* of other tiers some round otherwise */
        return true;
    }
    kt_result expected = {0};
    bool good = run_on(s->plain, plain, c, KT_WHOLE, random, &expected);
    if (good) {
        const double error = compare_results(c, &expected, whole, true);
        good = error <= (double)kernel->tolerance ||
               fail(c, kernel, "against the plain kernel", error, (double)kernel->tolerance);
    }
    kt_result_free(&expected);
    return good;
}

static bool check_cut(kt_runner *runner, const kt_case *c, const kt_result *whole, kt_cut cut,
                      const char *what, kt_random *random) {
    const sl_kernel *kernel = kt_runner_kernel(runner);
    const double allowed = cut != KT_WHOLE && kernel->cut_dependent ? (double)kernel->tolerance : 0;
    kt_result other = {0};
    bool good = kt_run(runner, cut, random, &other);
    if (good) {
        const double error = compare_results(c, whole, &other, cut == KT_WHOLE);
        good = error <= allowed || fail(c, kernel, what, error, allowed);
    }
    kt_result_free(&other);
    return good;
}

/* The first rows of a case, as a case that shares all else with it. */
static kt_case first_rows(const kt_case *c, int32_t rows) {
    kt_case fewer = *c;
    fewer.rows = rows;
    fewer.span_count = 0;
    for (int32_t left = rows; left > 0; left -= fewer.span_rows[fewer.span_count++]) {
        const int32_t here = c->span_rows[fewer.span_count];
        fewer.span_rows[fewer.span_count] = here < left ? here : left;
    }
    return fewer;
}

/* Whether plans have buckets of many sizes in which the kernel's class is to be the same: deterministic ones,
 * and those whose products take x as floats. */
static bool has_buckets(const suite *s, const sl_kernel *kernel) {
    return kernel->deterministic ||
           (!s->threaded && kernel->op == SL_OP_LINEAR && kernel->activation == SL_VALUE_F32);
}

/* Kernels of one class give the same bits, whatever the rows of a bucket: the first rows by all of the class,
 * in buckets of several sizes, and all rows. On the CPU, where a plan has one bucket, tiers are compared, in
 * one size: each with the next that takes the case, which is compared with the one behind it in its turn. */
static bool check_class(const suite *s, const sl_kernel *kernel, const kt_case *c, const kt_result *whole,
                        kt_random *random) {
    static const int32_t sizes[] = {1, 3, 4, 8, 30, 96, 128, INT32_MAX, 256};
    const size_t size_count = sizeof sizes / sizeof *sizes;
    int32_t count = 0;
    const sl_kernel *const *kernels = s->backend->functions->kernels(s->backend, &count);
    bool good = true, behind = kernel->deterministic, met = false;
    for (int32_t k = 0; k < count && good && !met; k++) {
        const sl_kernel *other = kernels[k];
        behind = behind || other == kernel;
        if (!behind || other->op != kernel->op || other->activation != kernel->activation ||
            strcmp(other->numeric_class, kernel->numeric_class) != 0) {
            continue;
        }
        for (size_t i = has_buckets(s, kernel) ? 0 : size_count - 1; i < size_count && good; i++) {
            const kt_case fewer = first_rows(c, sizes[i] < c->rows ? sizes[i] : c->rows);
            kt_result result = {0};
            if ((other == kernel && fewer.rows == c->rows) || !kt_choose(s->backend, other, &fewer)) {
                continue;
            }
            met = !kernel->deterministic && other != kernel;
            good = run_on(s->backend, other, &fewer, KT_WHOLE, random, &result);
            if (good) {
                char what[160];
                double error = 0;
                for (int32_t v = 0; v < c->program.value_count; v++) {
                    const double d = v == c->schedule_value ? 0 : compare_values(&fewer, v, whole, &result);
                    error = d > error ? d : error;
                }
                snprintf(what, sizeof what, "%d rows by %s", fewer.rows, other->name);
                good = error == 0 || fail(c, kernel, what, error, 0);
            }
            kt_result_free(&result);
        }
    }
    return good;
}

static bool check_case(const suite *s, const sl_kernel *kernel, const kt_case *c, kt_runner *runner,
                       kt_random *random) {
    kt_result whole = {0};
    bool good = kt_run(runner, KT_WHOLE, random, &whole);
    if (good) {
        const double error = kt_reference_error(c, &whole);
        const double allowed = c->tolerance + (double)kernel->tolerance + (double)kernel->rounding;
        good = error <= allowed || fail(c, kernel, "against the definition", error, allowed);
        good = good && (inputs_are_intact(c, &whole) || fail(c, kernel, "an input was changed", 1, 0));
    }
    if (s->light) {
        good = good && check_cut(runner, c, &whole, KT_CHUNKS, "in random chunks", random);
        kt_result_free(&whole);
        return good;
    }
    good = good && check_against_plain(s, kernel, c, &whole, random);
    good = good && check_cut(runner, c, &whole, KT_WHOLE, "the same step again", random);
    /* Rows do not see each other: every kernel keeps that, whatever a plan then chooses among; to the bit
     * where it does not say otherwise. */
    if (good) {
        good = check_cut(runner, c, &whole, KT_ROW_BY_ROW, "row by row", random) &&
               check_cut(runner, c, &whole, KT_CHUNKS, "in random chunks", random);
    }
    if (has_buckets(s, kernel) || (s->threaded && kernel->op == SL_OP_LINEAR)) {
        good = good && check_class(s, kernel, c, &whole, random);
    }
    if (good && s->threaded) {
        const char *declined;
        kt_runner *threaded = kt_runner_new(s->threaded, kernel, c, &declined);
        good = threaded && check_cut(threaded, c, &whole, KT_WHOLE, "with more threads", random) &&
               check_cut(threaded, c, &whole, KT_CHUNKS, "in random chunks with more threads", random);
        if (threaded) {
            kt_runner_free(threaded);
        }
    }
    kt_result_free(&whole);
    return good;
}

/* ---- the loop ---- */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Each case has its own numbers, so that one of them can be run alone. */
static kt_random random_of(const suite *s, const sl_kernel *kernel, int32_t index) {
    return (kt_random){.state = s->seed * 1000003u + (uint64_t)kernel->op * 1009u + (uint64_t)index};
}

static double operations_of(const kt_case *c) {
    const int32_t rows[SL_ROWS_COUNT] = {c->rows, c->rows * c->program.experts_used, c->output_count};
    return sl_op_cost(&c->program, &c->program.ops[c->op], rows, (c->rows + 1) / 2).operations;
}

/* Whether the kernel takes the case, as far as its shape says: that spares making numbers for those that are
 * declined, most of LINEAR's and attention's. False with *end set past the last case. operations: of a case
 * that it takes. */
static bool takes_shape(const suite *s, const sl_kernel *kernel, int32_t index, double *operations,
                        bool *end) {
    kt_random random = random_of(s, kernel, index);
    kt_case c;
    random.only_shapes = kernel->op == SL_OP_ATTENTION || kernel->op == SL_OP_CACHE_WRITE;
    *end =
        !kt_make_case(&c, kernel->op, index, kernel->activation, kernel->op == SL_OP_LINEAR ? NULL : &random);
    if (*end) {
        return false;
    }
    const bool takes = c.rows && strstr(c.name, s->of_case) && kt_choose(s->backend, kernel, &c);
    *operations = takes ? operations_of(&c) : 0;
    kt_case_free(&c);
    return takes;
}

static void run_case(suite *s, const sl_kernel *kernel, int32_t index) {
    kt_random random = random_of(s, kernel, index);
    kt_case c;
    const char *declined = NULL;
    kt_make_case(&c, kernel->op, index, kernel->activation, &random);
    kt_runner *runner = kt_runner_new(s->backend, kernel, &c, &declined);
    const bool good = runner ? check_case(s, kernel, &c, runner, &random) : false;
    s->run++;
    s->passed += good;
    s->failed += !good;
    if (declined) {
        fprintf(stderr, "FAILED %s, %s: taken by its shape, then declined: %s\n", kernel->name, c.name,
                declined);
    }
    if (s->verbose && good) {
        printf("ok %s, %s\n", kernel->name, c.name);
    }
    if (runner) {
        kt_runner_free(runner);
    }
    kt_case_free(&c);
}

enum { MOST_CASES = 1024 };

static void test_kernel(suite *s, const sl_kernel *kernel) {
    int32_t taken[MOST_CASES], count = 0, smallest = 0;
    const double start = now();
    double operations, least = INFINITY;
    bool end = false;
    s->run = s->declined = 0;
    for (int32_t index = 0; !end && count < MOST_CASES; index++) {
        if (takes_shape(s, kernel, index, &operations, &end)) {
            smallest = operations < least ? index : smallest;
            least = operations < least ? operations : least;
            if (s->most_operations <= 0 || operations <= s->most_operations) {
                taken[count++] = index;
            }
        } else if (!end) {
            s->declined++;
        }
    }
    if (count == 0 && least < INFINITY) {
        taken[count++] = smallest;
    }
    const int32_t most = s->most > 0 && s->most < count ? s->most : count;
    for (int32_t i = 0; i < most; i++) {
        run_case(s, kernel, taken[most > 1 ? (int64_t)i * (count - 1) / (most - 1) : count / 2]);
    }
    printf("%-32s %-16s %3d cases, %d declined, %.1f s\n", kernel->name, kernel->numeric_class, s->run,
           s->declined, now() - start);
    fflush(stdout);
    if (s->run == 0) {
        /* A tier that this machine lacks; anything else would be a kernel that no test reaches. */
        printf("%-32s SKIPPED: it takes no case here\n", kernel->name);
    }
}

static bool open_backends(suite *s, sl_backend **deterministic) {
    sl_backend_options options = {.threads = 1, .isa = SL_ISA_COUNT - 1};
    const char *device = s->device;
    sl_error error = {0};
    const bool cpu = strcmp(device, "cpu") == 0;
    if (sl_backend_open(device, &options, &s->backend, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return false;
    }
    kt_set_column_multiple(s->backend->column_multiple);
    kt_set_without_nans(!cpu);
    options.threads = s->bench ? 0 : 3;
    if (cpu && sl_backend_open("cpu", &options, &s->threaded, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return false;
    }
    options.threads = 1;
    options.deterministic = true;
    if (s->rivals && sl_backend_open(device, &options, deterministic, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return false;
    }
    options.deterministic = false;
    if (sl_cpu_backend_create(&options, &s->plain, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return false;
    }
    return true;
}

static bool holds_one(const char *name, const char *const *texts, int count) {
    for (int i = 0; i < count; i++) {
        if (strstr(name, texts[i])) {
            return true;
        }
    }
    return false;
}

static bool is_wanted(const suite *s, const char *name) {
    return (s->only_count == 0 || holds_one(name, s->only, s->only_count)) &&
           !holds_one(name, s->without, s->without_count);
}

/* An option without a value, or NULL. */
static bool *flag_of(suite *s, const char *option) {
    const struct {
        const char *name;
        bool *flag;
    } flags[] = {{"--bench", &s->bench},
                 {"--rivals", &s->rivals},
                 {"--list", &s->list},
                 {"--verbose", &s->verbose},
                 {"--light", &s->light}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (strcmp(option, flags[i].name) == 0) {
            return flags[i].flag;
        }
    }
    return NULL;
}

/* An option with its value; false when there is no such option or it does not take the value. */
static bool set_option(suite *s, const char *option, const char *value) {
    if (strcmp(option, "--backend") == 0) {
        s->device = value;
    } else if (strcmp(option, "--kernel") == 0 && s->only_count < NAMES) {
        s->only[s->only_count++] = value;
    } else if (strcmp(option, "--without") == 0 && s->without_count < NAMES) {
        s->without[s->without_count++] = value;
    } else if (strcmp(option, "--seed") == 0) {
        s->seed = strtoull(value, NULL, 10);
    } else if (strcmp(option, "--case") == 0) {
        s->of_case = value;
    } else if (strcmp(option, "--cases") == 0) {
        s->most = atoi(value);
    } else if (strcmp(option, "--most-operations") == 0) {
        s->most_operations = strtod(value, NULL);
    } else if (strcmp(option, "--part") == 0) {
        if (sscanf(value, "%d/%d", &s->part, &s->parts) != 2 || s->part < 1 || s->part > s->parts) {
            fprintf(stderr, "--part %s: I/N with 1 <= I <= N was expected\n", value);
            return false;
        }
    } else if (strcmp(option, "-o") == 0 && (strcmp(value, "md") == 0 || strcmp(value, "json") == 0)) {
        s->json = strcmp(value, "json") == 0;
    } else {
        return false;
    }
    return true;
}

static bool parse(int argc, char **argv, suite *s) {
    for (int i = 1; i < argc; i++) {
        bool *flag = flag_of(s, argv[i]);
        if (flag) {
            *flag = true;
        } else if (i + 1 < argc && set_option(s, argv[i], argv[i + 1])) {
            i++;
        } else {
            fprintf(
                stderr,
                "usage: %s [--backend NAME] [--kernel TEXT] [--without TEXT] [--part I/N] [--cases N] "
                "[--case TEXT] [--light] [--most-operations N] [--seed N] [--verbose] [--bench | --rivals]\n"
                "       %s --list --backend cuda [-o md|json]\n",
                argv[0], argv[0]);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv) {
    enum { CASES = SANITIZED ? 2 : 0 };
    suite s = {.seed = 1, .part = 1, .parts = 1, .device = "cpu", .of_case = "", .most = CASES};
    sl_backend *deterministic = NULL;
    if (!parse(argc, argv, &s)) {
        return 2;
    }
    mallopt(M_MMAP_THRESHOLD, 1 << 25); /* a case's arrays are the next one's, without page faults */
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    const bool cpu = strcmp(s.device, "cpu") == 0;
    if (s.list || s.rivals) {
        if (cpu) {
            fprintf(stderr, "--list and --rivals are for --backend cuda\n");
            return 2;
        }
    }
    if (s.list) {
        return kt_list(s.json);
    }
    if (!open_backends(&s, &deterministic)) {
        return cpu ? 1 : 77;
    }
    if (!s.rivals) {
        printf("backend %s (%s), seed %llu\n", s.backend->name, s.backend->description,
               (unsigned long long)s.seed);
    }
    int32_t count;
    const sl_kernel *const *kernels = s.backend->functions->kernels(s.backend, &count);
    kt_rivals *rivals = s.rivals ? kt_rivals_new(s.backend, deterministic, s.seed) : NULL;
    if (s.rivals && !rivals) {
        return 1;
    }
    for (int32_t k = 0, found = 0; k < count; k++) {
        if (!is_wanted(&s, kernels[k]->name) || found++ % s.parts != s.part - 1) {
            continue;
        }
        if (rivals) {
            kt_rivals_time(rivals, k);
        } else if (s.bench) {
            kt_bench(s.threaded ? s.threaded : s.backend, kernels[k], s.seed);
        } else {
            test_kernel(&s, kernels[k]);
        }
    }
    if (rivals) {
        kt_rivals_free(rivals);
        sl_backend_close(deterministic);
    }
    sl_backend_close(s.backend);
    if (s.threaded) {
        sl_backend_close(s.threaded);
    }
    sl_backend_close(s.plain);
    if (!s.bench && !s.rivals) {
        printf("%d passed, %d failed\n", s.passed, s.failed);
    }
    return s.failed ? 1 : 0;
}
