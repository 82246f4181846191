/* What of an engine is in memory: its weights once, in the layout that it reads, and not the file's pages
 * beside them; neither when it is made nor at any moment until then. */
#include "support/engine.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOKENS = 8 };

typedef struct kind {
    const char *preset, *type;
    int32_t experts;
} kind;

static const kind kinds[] = {{.preset = "qwen3", .type = "q8_0"},
                             {.preset = "qwen3", .type = "bf16"},
                             {.preset = "qwen3moe", .type = "q4_k", .experts = 16}};

/* In bytes. */
typedef struct seen {
    uint64_t planned; /* by the plan's sum */
    uint64_t grown,
        most;       /* resident beyond what was before the engine: when it is made, and at most until then */
    uint64_t later; /* and when it has answered */
    int32_t tokens[TOKENS];
} seen;

static uint64_t status_bytes(const char *key) {
    char line[256];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) == 0) {
            assert_int_equal(sscanf(line + strlen(key), ": %llu kB", &kib), 1);
        }
    }
    fclose(file);
    return (uint64_t)kib * 1024;
}

static void ask(sluice_engine *engine, int32_t *tokens) {
    static const int32_t prompt[] = {3, 1, 4, 1, 5};
    const sluice_request_options options = {
        .size = sizeof options, .tokens = prompt, .token_count = 5, .generate = TOKENS, .ignore_eos = true};
    sluice_sequence *sequence = open_sequence(engine);
    collected all = {.tokens = tokens};
    assert_int_equal(collect(submit(sequence, &options), &all), TOKENS);
    sluice_sequence_release(sequence);
}

static sluice_engine *engine_of(sluice_model *model) {
    const sluice_engine_options options = {
        .size = sizeof options, .device = "cpu", .threads = 2, .chunk = 16, .sequences = 1, .context = 64};
    return open_engine(model, &options);
}

/* Two engines of one model, the second made when the first has given the file's pages back. */
static void look(const char *path, seen of[2]) {
    sluice_model *model = open_model(path);
    sluice_engine *engines[2];
    for (int i = 0; i < 2; i++) {
        const uint64_t before = status_bytes("VmRSS");
        engines[i] = engine_of(model);
        sluice_counters counters = {.size = sizeof counters};
        sluice_engine_get_counters(engines[i], &counters);
        of[i].planned = counters.memory;
        of[i].grown = status_bytes("VmRSS") - before;
        of[i].most = status_bytes("VmHWM") - before;
        ask(engines[i], of[i].tokens);
        of[i].later = status_bytes("VmRSS") - before;
    }
    sluice_engine_destroy(engines[1]);
    sluice_engine_destroy(engines[0]);
    sluice_model_release(model);
}

/* In a process of its own, which has held no more before than it holds now. */
static void look_apart(const char *path, seen of[2]) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        look(path, of);
        _exit(write(ends[1], of, 2 * sizeof *of) == (ssize_t)(2 * sizeof *of) ? 0 : 1);
    }
    int status = -1;
    close(ends[1]);
    assert_int_equal(read(ends[0], of, 2 * sizeof *of), 2 * sizeof *of);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void weights_are_in_memory_once(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        char path[512];
        seen of[2] = {{0}};
        snprintf(path, sizeof path, "%s/resident-%d.gguf", SLUICE_BINARY_DIR, (int)getpid());
        const sluice_synth_options options = {.size = sizeof options,
                                              .preset = kinds[k].preset,
                                              .type = kinds[k].type,
                                              .seed = 5,
                                              .layers = 2,
                                              .width = 1024,
                                              .feed_forward = kinds[k].experts ? 0 : 4096,
                                              .experts = kinds[k].experts,
                                              .expert_width = kinds[k].experts ? 1024 : 0};
        sluice_error error;
        must(sluice_synth(path, &options, NULL, NULL, &error), &error, path);
        look_apart(path, of);
        unlink(path);
        for (int i = 0; i < 2; i++) {
            const double planned = (double)of[i].planned;
            print_message(
                "%s %s, engine %d: planned %.1f MB; resident %.2f, at most %.2f, later %.2f of it\n",
                kinds[k].preset, kinds[k].type, i, planned / 1e6, (double)of[i].grown / planned,
                (double)of[i].most / planned, (double)of[i].later / planned);
            assert_true(planned > 30e6);
            assert_true((double)of[i].grown > 0.7 * planned);
            assert_true((double)of[i].most < 1.15 * planned);
            assert_true((double)of[i].later < 1.15 * planned);
        }
        assert_memory_equal(of[0].tokens, of[1].tokens, sizeof of[0].tokens);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_in_memory_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
