/* sluice perplexity against definitions in doubles, from logits got through the public interface: both ways
 * of scoring, the running estimate, base logits and what is compared with them, and files of these that are
 * damaged or of something else. */
#define _GNU_SOURCE
#include "support/engine.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char program[] = SLUICE_PROGRAM;
static char folder[] = "/tmp/test_perplexity-XXXXXX";
static const char story[] = SLUICE_SHARED_DIR "/models/stories260K.gguf";
static const char text[] = SLUICE_SOURCE_DIR "/LICENSE";

enum { VOCABULARY = 512, MOST = 4096 };

/* ---- the program, and files in the folder
 * ----------------------------------------------------------------------- */

static int run(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int run(const char *format, ...) {
    char arguments[2048], line[4096];
    va_list values;
    va_start(values, format);
    vsnprintf(arguments, sizeof arguments, format, values);
    va_end(values);
    snprintf(line, sizeof line, "cd %s && %s %s > out 2> err < /dev/null", folder, program, arguments);
    const int status = system(line);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static char *read_file(const char *name, size_t *size) {
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(name[0] == '/' ? name : path, "rb");
    assert_non_null(file);
    char *data = calloc(1, 4 << 20);
    *size = fread(data, 1, (4 << 20) - 1, file);
    fclose(file);
    return data;
}

static void write_file(const char *name, const char *data, size_t size) {
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    fclose(file);
}

/* The last line has these words, and none is before it but of progress. */
static void assert_said(const char *words) {
    size_t size;
    char *said = read_file("err", &size), *at = said;
    for (char *end = strchr(at, '\n'); end && end - at > 6 && memcmp(end - 6, "so far", 6) == 0;) {
        at = end + 1;
        end = strchr(at, '\n');
    }
    if (!strstr(at, words) || strchr(at, '\n') != said + size - 1) {
        fail_msg("\"%s\" is not one line with \"%s\"", at, words);
    }
    free(said);
}

static json_t *result(void) {
    size_t size;
    char *data = read_file("out", &size);
    json_t *root = json_loads(data, 0, NULL);
    assert_non_null(root);
    free(data);
    return root;
}

static double real_of(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void assert_near(double got, double want, double limit) {
    if (!(fabs(got - want) <= limit)) {
        fail_msg("%.15g where %.15g is right", got, want);
    }
}

/* ---- definitions -----------------------------------------------------------------------------------------
 */

/* The text's windows by a way of scoring: positions from `first` on predict the token behind them. */
typedef struct windows {
    int32_t tokens[512][256];
    size_t lengths[512], first, count;
} windows;

static const windows *cut(const char *model_path, size_t size, bool second_half) {
    static windows w;
    sluice_error error;
    size_t length, count;
    int32_t *tokens;
    char *data = read_file(text, &length);
    sluice_model *model = open_model(model_path);
    must(sluice_tokenize(model, data, length, SLUICE_TOKENIZE_BOS, &tokens, &count, &error), &error,
         "tokens");
    memset(&w, 0, sizeof w);
    w.first = second_half ? size / 2 : 0;
    assert_int_equal(tokens[0], 1); /* llama's <s>, which this vocabulary wants in front */
    /* Second half: pieces of the text with <s> in front, each one's first token replaced by <s>. All: pieces
     * of the text behind <s>, each with one more in front. */
    for (size_t at = second_half ? 0 : 1; at < count && (!second_half || at + size <= count);) {
        const size_t room = second_half ? size : size - 1, part = count - at < room ? count - at : room;
        int32_t *window = w.tokens[w.count];
        window[0] = 1;
        if (second_half) {
            memcpy(window + 1, tokens + at + 1, (size - 1) * sizeof *window);
        } else {
            memcpy(window + 1, tokens + at, part * sizeof *window);
        }
        w.lengths[w.count++] = second_half ? size : part + 1;
        at += part;
    }
    sluice_free(tokens);
    sluice_model_release(model);
    free(data);
    return &w;
}

/* Of all scored positions, in doubles: log-probabilities [rows][VOCABULARY], and the next tokens. */
typedef struct rows {
    double *logs;
    int32_t next[MOST];
    size_t window[MOST], count;
} rows;

static rows score(const char *model_path, const windows *w) {
    static float logits[256 * VOCABULARY];
    rows r = {.logs = calloc((size_t)MOST * VOCABULARY, sizeof(double))};
    sluice_model *model = open_model(model_path);
    const sluice_engine_options options = {
        .size = sizeof options, .device = "cpu", .context = 256, .sequences = 1, .outputs = 256};
    sluice_engine *engine = open_engine(model, &options);
    for (size_t i = 0; i < w->count; i++) {
        sluice_sequence *sequence = open_sequence(engine);
        const sluice_request_options read = {.size = sizeof read,
                                             .tokens = w->tokens[i],
                                             .token_count = w->lengths[i],
                                             .no_reuse = true,
                                             .logits = SLUICE_LOGITS_ALL};
        collected got = {.logits = logits, .vocabulary = VOCABULARY, .room = 256};
        collect(submit(sequence, &read), &got);
        for (size_t at = w->first; at + 1 < w->lengths[i]; at++) {
            double sum = 0, *logs = r.logs + r.count * VOCABULARY;
            for (size_t k = 0; k < VOCABULARY; k++) {
                sum += exp((double)logits[at * VOCABULARY + k]);
            }
            for (size_t k = 0; k < VOCABULARY; k++) {
                logs[k] = (double)logits[at * VOCABULARY + k] - log(sum);
            }
            r.window[r.count] = i;
            r.next[r.count++] = w->tokens[i][at + 1];
        }
        sluice_sequence_release(sequence);
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
    return r;
}

/* Mean of -log p of the next tokens in the first windows. */
static double mean_negative(const rows *r, size_t window_count, double *root) {
    double sum = 0, squares = 0, count = 0;
    for (size_t i = 0; i < r->count && r->window[i] < window_count; i++) {
        const double negative = -r->logs[i * VOCABULARY + (size_t)r->next[i]];
        sum += negative;
        squares += negative * negative;
        count++;
    }
    /* As llama.cpp's tools/perplexity estimates the error of the mean. */
    *root = sqrt((squares / count - sum / count * (sum / count)) / (count - 1));
    return sum / count;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- scoring ---------------------------------------------------------------------------------------------
 */

static void check_scoring(const char *scoring, size_t size) {
    const windows *w = cut(story, size, strcmp(scoring, "all") != 0);
    rows r = score(story, w);
    double root;
    const double mean = mean_negative(&r, w->count, &root);
    assert_int_equal(run("perplexity %s -f %s --window %zu --scoring %s -o json --sequences 3", story, text,
                         size, scoring),
                     0);
    json_t *got = result();
    assert_int_equal(real_of(got, "scored"), r.count);
    assert_int_equal(real_of(got, "windows"), w->count);
    assert_near(real_of(got, "mean_nll"), mean, 1e-9);
    assert_near(real_of(got, "perplexity"), exp(mean), 1e-6);
    assert_near(real_of(got, "perplexity_error"), root * exp(mean), 1e-6);
    assert_string_equal(json_string_value(json_object_get(got, "scoring")), scoring);
    json_decref(got);
    free(r.logs);
}

static void scores_are_the_definition(void **state) {
    (void)state;
    check_scoring("all", 64);
    check_scoring("all", 255);
    check_scoring("second-half", 64);
    check_scoring("second-half", 63);
    check_scoring("second-half", 3);
}

static void second_half_wants_whole_windows(void **state) {
    (void)state;
    assert_int_equal(run("perplexity %s -f %s --window 1000 --scoring second-half", story, text), 1);
    assert_said("too few for a window of 1000");
    assert_int_equal(run("perplexity %s -f %s --window 2 --scoring second-half", story, text), 1);
    assert_said("a window of 2 tokens has nothing to score");
    assert_int_equal(run("perplexity %s -f %s --window 64 --limit 5 -o json", story, text), 0);
    json_t *got = result();
    assert_int_equal(real_of(got, "windows"), 5);
    json_decref(got);
}

/* Where nobody sees a bar: a line for each tenth, with the perplexity of what came before it in the text. */
static void piped_progress_is_the_running_estimate(void **state) {
    (void)state;
    const windows *w = cut(story, 32, true);
    rows r = score(story, w);
    size_t size, lines = 0, before = 0;
    assert_int_equal(run("perplexity %s -f %s --window 32 --scoring second-half --sequences 4", story, text),
                     0);
    char *said = read_file("err", &size);
    for (char *line = strtok(said, "\n"); line; line = strtok(NULL, "\n")) {
        size_t done, total;
        double estimate, root;
        assert_int_equal(sscanf(line, "%zu of %zu windows, perplexity %lf so far", &done, &total, &estimate),
                         3);
        assert_int_equal(total, w->count);
        assert_true(done > before && done < total && done * 10 / total > before * 10 / total);
        assert_near(estimate, exp(mean_negative(&r, done, &root)), 6e-5);
        before = done;
        lines++;
    }
    assert_int_equal(lines, 9);
    free(said);
    free(r.logs);
}

/* ---- comparing -------------------------------------------------------------------------------------------
 */

static void a_model_is_itself(void **state) {
    static const char *const zeros[] = {"mean", "mean_error", "median",
                                        "p99",  "maximum",    "mean_probability_change"};
    (void)state;
    for (int half = 0; half < 2; half++) {
        const char *scoring = half ? "second-half" : "all";
        assert_int_equal(
            run("perplexity %s -f %s --window 50 --scoring %s --kl-write same -o json", story, text, scoring),
            0);
        json_t *written = result();
        /* Window and scoring come from the file; steps and sequences change nothing. */
        assert_int_equal(run("perplexity %s -f %s --kl same --chunk 7 --sequences 3 -o json", story, text),
                         0);
        json_t *got = result(), *divergence = json_object_get(got, "divergence");
        for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++) {
            assert_true(real_of(divergence, zeros[i]) == 0);
        }
        assert_true(real_of(divergence, "same_top") == 1);
        assert_near(real_of(divergence, "base_perplexity"), real_of(written, "perplexity"), 1e-9);
        assert_int_equal(real_of(got, "scored"), real_of(written, "scored"));
        assert_string_equal(json_string_value(json_object_get(got, "scoring")), scoring);
        json_decref(got);
        json_decref(written);
        assert_int_equal(run("perplexity %s -f %s --window 50 --kl-write same", story, text), 1);
        assert_said("is there already, and is replaced only with --force");
        assert_int_equal(run("perplexity %s -f %s --limit 2 --kl-write same --force", story, text), 0);
        char path[1200];
        snprintf(path, sizeof path, "%s/same", folder);
        unlink(path);
    }
}

typedef struct expected {
    double mean, median, high, most, same, change, root, base;
} expected;

static expected define_divergence(const rows *p, const rows *q) {
    static double values[MOST];
    expected x = {0};
    const double n = (double)p->count;
    for (size_t i = 0; i < p->count; i++) {
        const double *a = p->logs + i * VOCABULARY, *b = q->logs + i * VOCABULARY;
        const size_t next = (size_t)p->next[i];
        size_t top_a = 0, top_b = 0;
        values[i] = 0;
        for (size_t k = 0; k < VOCABULARY; k++) {
            values[i] += exp(a[k]) * (a[k] - b[k]);
            top_a = a[k] > a[top_a] ? k : top_a;
            top_b = b[k] > b[top_b] ? k : top_b;
        }
        const double change = exp(b[next]) - exp(a[next]);
        x.mean += values[i] / n;
        x.same += (top_a == top_b) / n;
        x.change += change / n;
        x.root += change * change / n;
        x.base -= a[next] / n;
    }
    qsort(values, p->count, sizeof *values, compare_doubles);
    const double at = 0.99 * (n - 1);
    const size_t low = (size_t)at;
    x.high = values[low] + (at - (double)low) * (values[low + 1] - values[low]);
    x.median = (values[(p->count - 1) / 2] + values[p->count / 2]) / 2;
    x.most = values[p->count - 1];
    x.root = sqrt(x.root);
    return x;
}

static void divergence_is_the_definition(void **state) {
    (void)state;
    char other[1200];
    snprintf(other, sizeof other, "%s/other.gguf", folder);
    assert_int_equal(run("quantize %s other.gguf q4_0", story), 0);
    const windows *w = cut(story, 64, true);
    rows p = score(story, w), q = score(other, w);
    const expected want = define_divergence(&p, &q);
    assert_true(want.mean > 1e-3 && want.most > want.high && want.high > want.median && want.same < 1);
    assert_int_equal(
        run("perplexity %s -f %s --window 64 --scoring second-half --kl-write base", story, text), 0);
    assert_int_equal(run("perplexity other.gguf -f %s --kl base -o json", text), 0);
    json_t *root = result(), *got = json_object_get(root, "divergence");
    assert_near(real_of(got, "mean"), want.mean, 1e-9);
    assert_near(real_of(got, "median"), want.median, 1e-9);
    assert_near(real_of(got, "p99"), want.high, 1e-9);
    assert_near(real_of(got, "maximum"), want.most, 1e-9);
    assert_near(real_of(got, "same_top"), want.same, 1e-9);
    assert_near(real_of(got, "mean_probability_change"), want.change, 1e-9);
    assert_near(real_of(got, "root_mean_square_probability_change"), want.root, 1e-9);
    assert_near(real_of(got, "base_perplexity"), exp(want.base), 1e-6);
    json_decref(root);
    free(p.logs);
    free(q.logs);
}

/* ---- files that are not what they should be
 * --------------------------------------------------------------------- */

static void damaged_files_are_refused(void **state) {
    (void)state;
    size_t size;
    assert_int_equal(run("perplexity %s -f %s --window 64 --limit 3 --kl-write whole", story, text), 0);
    char *whole = read_file("whole", &size);
    assert_int_equal(size, 64 + 4 * 8 + (size_t)3 * 63 * VOCABULARY * 4);
    const struct {
        size_t bytes, flipped;
        const char *words;
    } cases[] = {
        {size - 1, 0, "cut short"},
        {size + 1, 0, "damaged"},
        {100, 0, "cut short"},
        {64, 0, "cut short"},
        {63, 0, "has no base logits"},
        {0, 0, "has no base logits"},
        {size, 1, "has no base logits"}, /* magic */
        {size, 8, "version"},
        {size, 12, "damaged: its header"},          /* scoring */
        {size, 20, "damaged: its header"},          /* high half of the vocabulary */
        {size, 47, "damaged: its header"},          /* rows */
        {size, 60, "damaged: its header"},          /* the header's hash */
        {size, 70, "damaged: the hashes"},          /* of a window */
        {size, 90, "damaged: the hashes"},          /* of those */
        {size, 96, "the logits of window 1"},       /* the first */
        {size, size - 2, "the logits of window 3"}, /* the last */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *data = calloc(1, size + 1);
        memcpy(data, whole, size);
        if (cases[i].flipped) {
            data[cases[i].flipped] ^= 1;
        }
        write_file("damaged", data, cases[i].bytes);
        assert_int_equal(run("perplexity %s -f %s --kl damaged", story, text), 1);
        assert_said(cases[i].words);
        free(data);
    }
    free(whole);
}

static void mismatched_files_are_refused(void **state) {
    (void)state;
    const struct {
        const char *model, *text, *options, *words;
    } cases[] = {
        {story, text, "--window 65", "windows of 64 tokens"},
        {story, text, "--scoring second-half", "--scoring all"},
        {story, text, "--limit 2", "3 windows"},
        {story, SLUICE_SOURCE_DIR "/README.md", "", "other tokens"},
        {"mini", text, "", "512 tokens of vocabulary"},
        {story, text, "--kl-write another", "one at a time"},
        {story, text, "--kl nothing", "No such file"},
        {story, text, "--kl .", "no regular file"},
    };
    assert_int_equal(run("perplexity %s -f %s --window 64 --limit 3 --kl-write fits", story, text), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_not_equal(
            run("perplexity %s -f %s --kl fits %s", cases[i].model, cases[i].text, cases[i].options), 0);
        assert_said(cases[i].words);
    }
}

/* How many names there are in the folder "outputs". */
static int names(void) {
    size_t size;
    char line[1200];
    snprintf(line, sizeof line, "ls -A %s/outputs > %s/out", folder, folder);
    assert_int_equal(system(line), 0);
    char *data = read_file("out", &size);
    int count = 0;
    for (size_t i = 0; i < size; i++) {
        count += data[i] == '\n';
    }
    free(data);
    return count;
}

static void outputs_are_whole_or_not_there(void **state) {
    (void)state;
    char line[1200];
    snprintf(line, sizeof line, "cd %s && mkdir outputs && ln -s ../fits outputs/link", folder);
    assert_int_equal(system(line), 0);
    write_file("outputs/text", "no logits in it", 15);
    assert_int_equal(run("perplexity %s -f %s --kl-write outputs/text --force", story, text), 1);
    assert_said("--force does not replace it");
    assert_int_equal(run("perplexity %s -f %s --kl-write outputs/link --force", story, text), 1);
    assert_said("is no regular file");
    assert_int_equal(run("perplexity %s -f %s --kl-write /dev/null --force", story, text), 1);
    assert_said("is no regular file");
    assert_int_equal(run("perplexity %s -f %s --kl-write outputs/none/x", story, text), 1);
    assert_said("cannot create");
    /* A disk without room for it, as the shell can make one. */
    snprintf(line, sizeof line,
             "cd %s && (trap '' XFSZ; ulimit -f 100; exec %s perplexity %s -f %s --window 64 --kl-write "
             "outputs/full) > out 2> err",
             folder, program, story, text);
    assert_int_equal(WEXITSTATUS(system(line)), 1);
    assert_int_equal(names(), 2);
    /* Ended from outside, while the file is there under another name. */
    size_t size;
    char *words = read_file(text, &size), *many = calloc(100, size);
    for (size_t i = 0; i < 100; i++) {
        memcpy(many + i * size, words, size);
    }
    write_file("long", many, 100 * size);
    free(words);
    free(many);
    snprintf(line, sizeof line,
             "cd %s && (%s perplexity %s -f long --window 64 --chunk 1 --kl-write outputs/slow & p=$!; "
             "until ls outputs | grep -q slow; do sleep 0.01; done; kill -TERM $p; wait $p) > out 2> err",
             folder, program, story);
    assert_int_equal(WEXITSTATUS(system(line)), 1);
    assert_said("cancelled");
    assert_int_equal(names(), 2);
    char *same = read_file("outputs/text", &size);
    assert_string_equal(same, "no logits in it");
    free(same);
}

/* ---- numbers that JSON does not have
 * ---------------------------------------------------------------------------- */

/* Logits ten thousand times as large are still finite, and the perplexity is not. */
static void infinity_is_said(void **state) {
    (void)state;
    size_t size;
    char *data = read_file(story, &size);
    sluice_model *model = open_model(story);
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(model, &info);
    sluice_model_release(model);
    /* GGUF's record of a tensor: name, dimensions, type (0: F32), place among the weights, which end the
     * file.
     */
    char *record = memmem(data, size, "output_norm.weight", 18);
    assert_non_null(record);
    uint32_t facts[4];
    uint64_t place;
    memcpy(facts, record + 18, sizeof facts);
    memcpy(&place, record + 34, sizeof place);
    assert_true(facts[0] == 1 && facts[1] == 64 && facts[2] == 0 && facts[3] == 0);
    float *weights = calloc(64, sizeof *weights);
    char *at = data + size - info.bytes + place;
    memcpy(weights, at, 64 * sizeof *weights);
    for (int i = 0; i < 64; i++) {
        weights[i] *= 1e4F;
    }
    memcpy(at, weights, 64 * sizeof *weights);
    write_file("loud.gguf", data, size);
    assert_int_equal(run("perplexity loud.gguf -f %s --window 400 --limit 1 -o json", text), 0);
    json_t *got = result();
    assert_true(json_is_null(json_object_get(got, "perplexity")));
    assert_true(real_of(got, "mean_nll") > 709);
    json_decref(got);
    char *said = read_file("err", &size);
    assert_non_null(strstr(said, "perplexity is infinite, for which JSON has no number"));
    free(said);
    free(weights);
    free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_the_definition),
        cmocka_unit_test(second_half_wants_whole_windows),
        cmocka_unit_test(piped_progress_is_the_running_estimate),
        cmocka_unit_test(a_model_is_itself),
        cmocka_unit_test(divergence_is_the_definition),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(mismatched_files_are_refused),
        cmocka_unit_test(outputs_are_whole_or_not_there),
        cmocka_unit_test(infinity_is_said),
    };
    if (access(story, R_OK) != 0) {
        printf("skipped: there is no %s\n", story);
        return 77;
    }
    if (!mkdtemp(folder)) {
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char line[1200];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line) != 0 || failed;
}
