/* Every CUDA call failing once in turn while two GPUs work together: ranks that share each step, with graphs
 * and without, and layers on each. Whatever fails, in loading, in a prompt, while tokens are generated: the
 * device is named, nothing hangs, nothing leaks, and the next engine works.
 *
 *     test_device_faults [--only PATTERN] [--every N] [--from K] [--until L] [--verbose]
 *
 * Only each Nth call, of the Kth to the Lth; --verbose says what became of each. */
#include "support/engine.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define FIXTURE(family) SLUICE_SOURCE_DIR "/tests/logits/fixtures/" family

enum { PROMPT = 6, CHUNK = 4, GENERATE = 3, HANGS = 300 /* seconds that a life does not take */ };

static uint64_t every = 1, from = 1, until = UINT64_MAX;
static bool verbose;

/* ---- what the module exports for tests ---- */

static void (*fail_at)(uint64_t nth);
static uint64_t (*call_count)(void);
static uint64_t (*live_count)(void);
static const char *(*failed_call)(int *device);

static bool find_hooks(void) {
    Dl_info info;
    char path[4096];
    snprintf(path, sizeof path, "%s",
             dladdr((const void *)&every, &info) ? info.dli_fname : "./test_device_faults");
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash : path, sizeof path - (size_t)(slash ? slash - path : 0), "/libsluice-cuda.so");
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module) {
        printf("skipped: %s\n", dlerror());
        return false;
    }
    *(void **)(void *)&fail_at = dlsym(module, "sl_cuda_fail_at");
    *(void **)(void *)&call_count = dlsym(module, "sl_cuda_call_count");
    *(void **)(void *)&live_count = dlsym(module, "sl_cuda_live_count");
    *(void **)(void *)&failed_call = dlsym(module, "sl_cuda_failed_call");
    return fail_at && call_count && live_count && failed_call;
}

/* ---- lives ---- */

typedef struct fault_case {
    const char *path;
    sluice_split split;
    bool no_graphs;
} fault_case;

static sluice_engine_options options_of(const fault_case *c) {
    return (sluice_engine_options){.size = sizeof(sluice_engine_options),
                                   .device = "cuda:0+cuda:1",
                                   .split = c->split,
                                   .chunk = CHUNK,
                                   .context = 64,
                                   .sequences = 1,
                                   .deterministic = true,
                                   .no_graphs = c->no_graphs};
}

static uint64_t number; /* of the call that is to fail */

static void on_alarm(int signal) {
    int device;
    const char *call = failed_call(&device);
    char text[256];
    (void)signal;
    const int length = snprintf(text, sizeof text, "FAILED: it hangs, call %llu: %s, device %d\n",
                                (unsigned long long)number, call ? call : "none has failed", device);
    _exit(write(STDOUT_FILENO, text, (size_t)length) == length ? 1 : 2);
}

/* What an engine did: the first error, and the tokens of its first request. */
typedef struct life {
    int status;
    sluice_error error;
    int32_t tokens[GENERATE];
} life;

static void note(life *l, int status, const sluice_error *error) {
    if (status && l->status == 0) {
        l->status = status;
        l->error = *error;
    }
}

/* The first one to its end, the second until it has a token, when it is cancelled. */
static void live_request(sluice_engine *engine, bool cancels, life *l) {
    int32_t prompt[PROMPT];
    sluice_sequence *sequence = NULL;
    sluice_request *request = NULL;
    sluice_error error = {0};
    for (int32_t i = 0; i < PROMPT; i++) {
        prompt[i] = 3 + 37 * i % 90;
    }
    const sluice_request_options options = {.size = sizeof options,
                                            .tokens = prompt,
                                            .token_count = PROMPT,
                                            .generate = cancels ? 40 : GENERATE,
                                            .no_reuse = true,
                                            .ignore_eos = true,
                                            .no_text = true};
    int status = sluice_sequence_create(engine, &sequence, &error);
    status = status ? status : sluice_submit(sequence, &options, &request, &error);
    sluice_event event = {.size = sizeof event};
    for (size_t count = 0; status == 0 && event.kind != SLUICE_EVENT_DONE;) {
        status = sluice_poll(request, -1, &event, &error);
        if (status == 0 && event.kind == SLUICE_EVENT_TOKEN && !cancels) {
            l->tokens[count++] = event.token;
        } else if (status == 0 && event.kind == SLUICE_EVENT_TOKEN) {
            sluice_cancel(request);
        }
    }
    if (status == 0 && event.finish == SLUICE_FINISH_ERROR) {
        error = event.error;
        status = error.code;
    }
    note(l, status, &error);
    sluice_request_release(request);
    sluice_sequence_release(sequence);
}

static life live(sluice_model *model, const fault_case *c) {
    const sluice_engine_options options = options_of(c);
    sluice_engine *engine = NULL;
    life l = {0};
    sluice_error error = {0};
    alarm(HANGS);
    note(&l, sluice_engine_create(model, &options, &engine, &error), &error);
    if (engine) {
        live_request(engine, false, &l);
        const bool is_over = l.status != 0;
        live_request(engine, true, &l);
        if (is_over) { /* for good: not the first request alone */
            sluice_sequence *sequence = open_sequence(engine);
            sluice_request *none;
            const int32_t token = 3;
            const sluice_request_options one = {.size = sizeof one, .tokens = &token, .token_count = 1};
            assert_int_equal(sluice_submit(sequence, &one, &none, &error), SLUICE_ERR_DEVICE);
            sluice_sequence_release(sequence);
        }
    }
    sluice_engine_destroy(engine);
    alarm(0);
    return l;
}

/* ---- faults ---- */

/* In one line, with the device's name. Of calls that set or ask for a device the other may be set. */
static void check_message(const life *l, const char *call, int device) {
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", device);
    static const char *const either[] = {"cudaSetDevice", "cudaGetDevice", "cudaDevice"};
    bool named = strstr(l->error.message, name) != NULL;
    for (size_t i = 0; i < sizeof either / sizeof *either; i++) {
        named |= strncmp(call, either[i], strlen(either[i])) == 0 &&
                 (strstr(l->error.message, "cuda:0") || strstr(l->error.message, "cuda:1"));
    }
    if (l->status != l->error.code || strchr(l->error.message, '\n') || !named) {
        fail_msg("call %llu, %s on device %d: code %d, message '%s'", (unsigned long long)number, call,
                 device, l->status, l->error.message);
    }
}

static void every_call_may_fail(void **state) {
    const fault_case *c = *state;
    sluice_model *model = open_model(c->path);
    number = 0;
    fail_at(0);
    const uint64_t live_before = live_count(), calls_before = call_count();
    const life expected = live(model, c);
    must(expected.status, &expected.error, "a life without faults");
    const uint64_t calls = call_count() - calls_before;
    uint64_t reported = 0, absorbed = 0, unreached = 0;
    for (number = from; number <= calls && number <= until; number += every) {
        int device;
        fail_at(number);
        const life l = live(model, c);
        const char *call = failed_call(&device);
        fail_at(0);
        reported += l.status != 0;
        absorbed += l.status == 0 && call;
        unreached += !call;
        if (verbose) {
            printf("%llu %s on %d: %s\n", (unsigned long long)number, call ? call : "none", device,
                   l.status ? l.error.message : "absorbed");
        }
        if (l.status) {
            check_message(&l, call ? call : "no call", device);
        } else {
            /* A graph that cannot be made costs speed only. */
            assert_memory_equal(l.tokens, expected.tokens, sizeof l.tokens);
        }
        if (live_count() != live_before) {
            fail_msg("call %llu, %s on device %d: %llu allocations leak", (unsigned long long)number,
                     call ? call : "none", device, (unsigned long long)(live_count() - live_before));
        }
    }
    printf("%llu calls, every %llu: %llu failures reported, %llu absorbed, %llu not reached\n",
           (unsigned long long)calls, (unsigned long long)every, (unsigned long long)reported,
           (unsigned long long)absorbed, (unsigned long long)unreached);
    assert_true(reported + absorbed > 0);
    /* Only calls at the very end may not come: when a cancelled request ends is a matter of threads. */
    assert_true(unreached * every <= calls / 10);
    const life last = live(model, c);
    must(last.status, &last.error, "after all failures");
    assert_memory_equal(last.tokens, expected.tokens, sizeof last.tokens);
    sluice_model_release(model);
}

static const fault_case ranks = {FIXTURE("qwen3"), SLUICE_SPLIT_TENSORS, false};
static const fault_case ranks_without_graphs = {FIXTURE("qwen3"), SLUICE_SPLIT_TENSORS, true};
static const fault_case layers = {FIXTURE("qwen3"), SLUICE_SPLIT_LAYERS, false};

int main(int argc, char **argv) {
    verbose = argc > 1 && strcmp(argv[argc - 1], "--verbose") == 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--only") == 0) {
            cmocka_set_test_filter(argv[i + 1]);
        } else if (strcmp(argv[i], "--every") == 0) {
            every = strtoull(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--from") == 0) {
            from = strtoull(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--until") == 0) {
            until = strtoull(argv[i + 1], NULL, 10);
        }
    }
    if (every == 0 || from == 0) {
        printf("usage: test_device_faults [--only PATTERN] [--every N] [--from K] [--until L] [--verbose]\n");
        return 2;
    }
    if (!find_hooks()) {
        return 77;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGALRM, on_alarm);
    sluice_model *model = open_model(ranks.path);
    const sluice_engine_options options = options_of(&ranks);
    sluice_engine *engine;
    sluice_error error;
    if (sluice_engine_create(model, &options, &engine, &error)) {
        printf("skipped: %s\n", error.message);
        return 77;
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
#define CASE(name)                                                                                           \
    { #name, every_call_may_fail, NULL, NULL, (void *)(size_t) & (name) }
    const struct CMUnitTest tests[] = {CASE(ranks), CASE(ranks_without_graphs), CASE(layers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
