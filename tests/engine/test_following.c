#define _POSIX_C_SOURCE 200809L
/* The engine on a device that takes two steps at once, as a GPU does: the CPU backend, behind a queue that
 * runs a step only when it is waited for. A step that follows another is then always built before the tokens
 * of the one in front of it are known, and whatever the scheduler and the stepping thread get wrong about
 * that shows as other texts than single steps give, at every run. */
#include "support/engine.h"

#include "backend/backend.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { SEQUENCES = 3, STEPS = 2 };

#define FIXTURE(family) SLUICE_SOURCE_DIR "/tests/logits/fixtures/" family
static const char *const models[] = {SLUICE_SOURCE_DIR "/models/mini.gguf", FIXTURE("qwen3"),
                                     FIXTURE("qwen3_5"), FIXTURE("gemma3")};

/* ---- the device
 * ----------------------------------------------------------------------------------------------------- */

struct sl_executor {
    const sl_deployment *deployment;
    sl_executor *inner;
    unsigned char *blocks[STEPS];
    int32_t buckets[STEPS];
    int32_t next, in_flight; /* where the next step goes; how many before it are not waited for */
    bool waits_for_masks;    /* the step submitted last */
    int32_t *tokens;         /* of the step waited for last */
    float *logits;
};

typedef struct device {
    sl_backend base;
    sl_backend *inner;
} device;

/* What the tests ask of the devices that are opened, and what they see of them. */
static bool two_at_once;
static atomic_int fail_submit_in, fail_wait_in; /* 0: never */
static atomic_int submitted, in_flight, most_in_flight, resumed;

/* How many steps may still end; the others are waited for in vain until it is raised. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_opened = PTHREAD_COND_INITIALIZER;
static int may_end;
enum { ANY = 1 << 30 };

static void let_end(int steps) {
    pthread_mutex_lock(&gate);
    may_end = steps;
    pthread_cond_broadcast(&gate_opened);
    pthread_mutex_unlock(&gate);
}

static void pass_gate(void) {
    pthread_mutex_lock(&gate);
    while (may_end == 0) {
        pthread_cond_wait(&gate_opened, &gate);
    }
    may_end--;
    pthread_mutex_unlock(&gate);
}

/* For the engine's own thread, which no test's longjmp may leave. */
static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "device: %s\n", what);
        exit(1);
    }
}

static const sl_backend_functions *functions_of(const sl_backend *backend) {
    return ((const device *)(const void *)backend)->inner->functions;
}

static sl_backend *inner_of(const sl_backend *backend) {
    return ((const device *)(const void *)backend)->inner;
}

static const sl_backend_functions *cpu;

static const sl_kernel *const *queue_kernels(const sl_backend *backend, int32_t *count) {
    return functions_of(backend)->kernels(inner_of(backend), count);
}

static void queue_destroy_executor(sl_executor *e) {
    require(e->in_flight == 0, "destroyed with steps in flight");
    cpu->destroy_executor(e->inner);
    for (int i = 0; i < STEPS; i++) {
        free(e->blocks[i]);
    }
    free(e->tokens);
    free(e->logits);
    free(e);
}

static int queue_deploy(sl_backend *backend, const sl_deployment *deployment, const sl_progress *progress,
                        sl_executor **executor, sl_error *error) {
    const size_t outputs = (size_t)deployment->limits.outputs;
    sl_executor *e = calloc(1, sizeof *e);
    e->deployment = deployment;
    for (int i = 0; i < STEPS; i++) {
        e->blocks[i] = calloc(1, deployment->step.bytes);
    }
    e->tokens = calloc(outputs, sizeof *e->tokens);
    e->logits = calloc(outputs * (size_t)deployment->program->vocabulary, sizeof *e->logits);
    *executor = e;
    return cpu->deploy(inner_of(backend), deployment, progress, &e->inner, error);
}

static void *queue_step_block(sl_executor *e) {
    return e->blocks[e->next];
}

static int queue_submit(sl_executor *e, int32_t bucket, sl_error *error) {
    const int submissions = ++submitted;
    if (fail_submit_in > 0 && atomic_fetch_sub(&fail_submit_in, 1) == 1) {
        return sl_fail(error, SL_ERR_INTERNAL, "step %d does not begin", submissions);
    }
    e->buckets[e->next] = bucket;
    e->next = (e->next + 1) % STEPS;
    e->in_flight++;
    require(!e->waits_for_masks, "a step comes before the masks of the one in front of it");
    e->waits_for_masks = sl_step_head(e->blocks[(e->next + STEPS - 1) % STEPS])->masks_later;
    require(e->in_flight <= STEPS, "too many steps in flight");
    in_flight = e->in_flight;
    most_in_flight = e->in_flight > most_in_flight ? e->in_flight : most_in_flight;
    return 0;
}

static int queue_resume(sl_executor *e, sl_error *error) {
    (void)error;
    require(e->waits_for_masks, "masks for a step that has them");
    e->waits_for_masks = false;
    resumed++;
    return 0;
}

static int queue_wait(sl_executor *e, sl_error *error) {
    const int32_t oldest = (e->next + STEPS - e->in_flight) % STEPS;
    const sl_step_header *head = sl_step_head(e->blocks[oldest]);
    require(e->in_flight > 0, "waited for no step");
    require(e->in_flight > 1 || !e->waits_for_masks, "waited for a step without its masks");
    pass_gate();
    int status = fail_wait_in > 0 && atomic_fetch_sub(&fail_wait_in, 1) == 1
                     ? sl_fail(error, SL_ERR_DEVICE, "the device is gone")
                     : 0;
    if (status == 0) {
        memcpy(cpu->step_block(e->inner), e->blocks[oldest], e->deployment->step.bytes);
        status = cpu->submit(e->inner, e->buckets[oldest], error);
    }
    if (status == 0) {
        const size_t outputs = (size_t)head->outputs, vocabulary = (size_t)e->deployment->program->vocabulary;
        if (outputs > 0) {
            memcpy(e->tokens, cpu->tokens(e->inner), outputs * sizeof *e->tokens);
            memcpy(e->logits, cpu->logits(e->inner), outputs * vocabulary * sizeof *e->logits);
        }
    }
    e->in_flight = status == SL_ERR_DEVICE ? 0 : e->in_flight - 1;
    in_flight = e->in_flight;
    return status;
}

static const float *queue_logits(sl_executor *e) {
    return e->logits;
}

static const int32_t *queue_tokens(sl_executor *e) {
    return e->tokens;
}

static void queue_counters(const sl_executor *e, sl_counters *counters) {
    cpu->counters(e->inner, counters);
}

static uint64_t queue_memory_available(const sl_backend *backend) {
    return functions_of(backend)->memory_available(inner_of(backend));
}

static void queue_destroy(sl_backend *backend) {
    sl_backend *inner = inner_of(backend);
    inner->functions->destroy(inner);
    free(backend);
}

static const sl_backend_functions queue_functions = {.kernels = queue_kernels,
                                                     .deploy = queue_deploy,
                                                     .destroy_executor = queue_destroy_executor,
                                                     .step_block = queue_step_block,
                                                     .submit = queue_submit,
                                                     .resume = queue_resume,
                                                     .wait = queue_wait,
                                                     .logits = queue_logits,
                                                     .tokens = queue_tokens,
                                                     .counters = queue_counters,
                                                     .memory_available = queue_memory_available,
                                                     .destroy = queue_destroy};

/* The linker gives the library this function for sl_backend_open (--wrap). */
int __wrap_sl_backend_open(const char *name, const sl_backend_options *options, sl_backend **backend,
                           sl_error *error);
int __wrap_sl_backend_open(const char *name, const sl_backend_options *options, sl_backend **backend,
                           sl_error *error) {
    sl_backend *inner;
    assert_string_equal(name, "cpu");
    const int status = sl_cpu_backend_create(options, &inner, error);
    if (status || !two_at_once) {
        *backend = inner;
        return status;
    }
    device *d = calloc(1, sizeof *d);
    cpu = inner->functions;
    d->base = *inner;
    d->base.functions = &queue_functions;
    d->base.steps_in_flight = STEPS;
    d->inner = inner;
    *backend = &d->base;
    return 0;
}

/* ---- helpers
 * -------------------------------------------------------------------------------------------------------- */

static sluice_engine *open_device(sluice_model *model, bool two) {
    sluice_engine_options options = {.size = sizeof options,
                                     .device = "cpu",
                                     .threads = 1,
                                     .context = 512,
                                     .chunk = 48,
                                     .sequences = SEQUENCES};
    fail_submit_in = fail_wait_in = in_flight = most_in_flight = 0;
    let_end(ANY);
    two_at_once = two;
    return open_engine(model, &options);
}

enum { PROMPT = 30 };
static const int32_t *prompt_of(int32_t which) {
    static int32_t tokens[PROMPT];
    for (int32_t i = 0; i < PROMPT; i++) {
        tokens[i] = 3 + (i * (which + 7) + which) % 90;
    }
    return tokens;
}

static sluice_request_options options_of(int32_t which, size_t generate) {
    return (sluice_request_options){.size = sizeof(sluice_request_options),
                                    .tokens = prompt_of(which),
                                    .token_count = PROMPT,
                                    .generate = generate,
                                    .no_text = true,
                                    .ignore_eos = true};
}

/* The sequence's tokens are those; what it went through to get them cannot be told from them. */
static void check_tokens(sluice_sequence *sequence, const int32_t *expected, size_t count) {
    assert_int_equal(sluice_sequence_length(sequence), count);
    assert_memory_equal(sluice_sequence_tokens(sequence), expected, count * sizeof *expected);
}

/* ---- texts
 * ----------------------------------------------------------------------------------------------------------
 */

enum { MOST_TOKENS = 512 * 16 };
typedef struct record {
    int32_t tokens[MOST_TOKENS];
    size_t count;
} record;

static void keep(record *r, sluice_sequence *sequence, sluice_finish finish) {
    const size_t length = sluice_sequence_length(sequence);
    assert_true(r->count + length + 2 <= MOST_TOKENS);
    r->tokens[r->count++] = (int32_t)length;
    r->tokens[r->count++] = (int32_t)finish;
    memcpy(r->tokens + r->count, sluice_sequence_tokens(sequence), length * sizeof *r->tokens);
    r->count += length;
}

/* Several requests at once, of every kind; then each sequence is taken back a little, forked, and goes on. */
static void live(sluice_engine *engine, bool text, sluice_grammar *grammar, record *r) {
    sluice_sequence *sequences[SEQUENCES];
    sluice_request *requests[SEQUENCES];
    sluice_error error;
    for (int32_t round = 0; round < 4; round++) {
        for (int32_t s = 0; s < SEQUENCES; s++) {
            const char *const stops[] = {"e", " th"};
            const sluice_logit_bias biases[] = {{20, 3}, {30, 5}};
            sluice_request_options o = options_of(s + round, 20 + 7 * (size_t)s);
            o.no_text = !text;
            o.ignore_eos = round % 2;
            o.stops = stops;
            o.stop_count = text && round != 3 ? 2 : 0;
            o.temperature = s == 1 ? 0.8f : 0;
            o.seed = (uint64_t)round;
            o.logit_bias =
                biases; /* of which steps that follow have to know nothing but the number of tokens */
            o.logit_bias_count = round < 2 && s == 2 ? 2 : 0;
            o.minimum = round < 2 ? 9 : 0;
            o.repetition_penalty = round == 2 && s == 0 ? 1.2f : 0;
            o.logits = round == 3 && s == 2 ? SLUICE_LOGITS_LAST : SLUICE_LOGITS_NONE;
            o.grammar = round == 1 ? grammar : NULL;
            sequences[s] = round ? sequences[s] : open_sequence(engine);
            requests[s] = submit(sequences[s], &o);
        }
        for (int32_t s = 0; s < SEQUENCES; s++) {
            collected got = {0};
            collect(requests[s], &got);
            keep(r, sequences[s], got.finish);
            const size_t length = sluice_sequence_length(sequences[s]);
            must(sluice_sequence_rollback(sequences[s], length - (size_t)round, &error), &error, "rollback");
            if (s == 1) {
                sluice_sequence *fork;
                must(sluice_sequence_fork(sequences[s], &fork, &error), &error, "fork");
                sluice_request_options o = options_of(9, 10);
                collect(submit(fork, &o), &got);
                keep(r, fork, got.finish);
                sluice_sequence_release(fork);
            }
        }
    }
    for (int32_t s = 0; s < SEQUENCES; s++) {
        sluice_sequence_release(sequences[s]);
    }
}

static sluice_grammar *grammar_of(sluice_model *model) {
    static const char pattern[] = "([a-z]{2,9} ){3,30}[a-z]+";
    sluice_error error;
    sluice_grammar *grammar;
    const sluice_grammar_options options = {
        .size = sizeof options, .kind = SLUICE_GRAMMAR_REGEX, .text = pattern, .length = sizeof pattern - 1};
    must(sluice_grammar_create(model, &options, &grammar, &error), &error, "grammar");
    return grammar;
}

static void texts_are_those_of_single_steps(void **state) {
    sluice_model *model = open_model(*state);
    static record single, followed;
    single.count = followed.count = 0;
    sluice_engine *engine = open_device(model, false);
    sluice_grammar *grammar = *state == models[0] ? grammar_of(model) : NULL;
    live(engine, *state == models[0], grammar, &single);
    sluice_engine_destroy(engine);
    engine = open_device(model, true);
    resumed = 0;
    live(engine, *state == models[0], grammar, &followed);
    assert_int_equal(most_in_flight, STEPS);
    assert_true(!grammar == (resumed == 0)); /* steps began before their masks were there */
    sluice_grammar_release(grammar);
    sluice_engine_destroy(engine);
    assert_int_equal(single.count, followed.count);
    assert_memory_equal(single.tokens, followed.tokens, single.count * sizeof *single.tokens);
    sluice_model_release(model);
}

/* Steps that a prompt of several tokens takes: where a recurrent state can be shared, one is kept before its
 * last token. */
static int steps_of_prompt(const char *model) {
    return strstr(model, "qwen3_5") ? 2 : 1;
}

/* ---- ends
 * -----------------------------------------------------------------------------------------------------------
 */

/* Greedy text of the first prompt and `generate` tokens, prompt included. */
static void read_alone(sluice_model *model, size_t generate, int32_t *tokens) {
    sluice_engine *engine = open_device(model, false);
    sluice_sequence *sequence = open_sequence(engine);
    sluice_request_options o = options_of(0, generate);
    collected got = {0};
    assert_int_equal(collect(submit(sequence, &o), &got), generate);
    memcpy(tokens, sluice_sequence_tokens(sequence), (PROMPT + generate) * sizeof *tokens);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
}

static sluice_request_options going_on(size_t generate) {
    sluice_request_options o = options_of(0, generate);
    o.token_count = 0;
    return o;
}

static void go_on_to(sluice_sequence *sequence, size_t length) {
    sluice_request_options o = going_on(length - sluice_sequence_length(sequence));
    collected got = {0};
    collect(submit(sequence, &o), &got);
}

/* The last event. */
static sluice_event poll_to_end(sluice_request *request) {
    sluice_event event = {.size = sizeof event};
    sluice_error error;
    do {
        must(sluice_poll(request, -1, &event, &error), &error, "poll");
    } while (event.kind != SLUICE_EVENT_DONE);
    return event;
}

static void *open_gate_soon(void *unused) {
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    let_end(ANY);
    return unused;
}

/* Ends with the first token that has a text: every ASCII character is a stop text. */
static void stop_at_once(sluice_sequence *sequence) {
    static char bytes[127][2];
    const char *stops[127];
    for (int b = 0; b < 127; b++) {
        bytes[b][0] = (char)(b + 1);
        stops[b] = bytes[b];
    }
    sluice_request_options o = going_on(50);
    o.no_text = false;
    o.stops = stops;
    o.stop_count = 127;
    collected got = {0};
    assert_int_equal(collect(submit(sequence, &o), &got), 1);
    assert_int_equal(got.finish, SLUICE_FINISH_STOP);
}

/* The end of a text is known while its next row is under way. What the owner does to the sequence then waits
 * for that row first, but for its release. */
static void an_ended_sequence_is_waited_for(void **state) {
    enum { BEFORE = 3, LENGTH = PROMPT + 60 }; /* the fourth token has a text */
    (void)state;
    sluice_model *model = open_model(models[0]);
    int32_t expected[LENGTH];
    read_alone(model, LENGTH - PROMPT, expected);
    sluice_engine *engine = open_device(model, true);
    for (int act = 0; act < 4; act++) {
        sluice_sequence *sequence = open_sequence(engine), *fork = NULL;
        sluice_error error;
        collected got = {0};
        sluice_request_options first = options_of(0, BEFORE), more = going_on(LENGTH - PROMPT - BEFORE - 1);
        collect(submit(sequence, &first), &got);
        let_end(1);
        stop_at_once(sequence);
        assert_int_equal(in_flight, 1);
        pthread_t thread;
        pthread_create(&thread, NULL, open_gate_soon, NULL);
        if (act == 0) {
            must(sluice_sequence_rollback(sequence, PROMPT + 2, &error), &error, "rollback");
            assert_int_equal(in_flight, 0);
        } else if (act == 1) {
            must(sluice_sequence_fork(sequence, &fork, &error), &error, "fork");
            assert_int_equal(in_flight, 0);
        } else if (act == 2) {
            sluice_sequence_release(sequence); /* the engine lets go of it when the row is through */
            assert_int_equal(in_flight, 1);
            sequence = open_sequence(engine);
            collect(submit(sequence, &first), &got);
        } else {
            collect(submit(sequence, &more), &got);
        }
        pthread_join(thread, NULL);
        if (act != 3) {
            go_on_to(sequence, LENGTH);
        }
        check_tokens(sequence, expected, LENGTH);
        if (fork) {
            go_on_to(fork, LENGTH);
            check_tokens(fork, expected, LENGTH);
        }
        sluice_sequence_release(fork);
        sluice_sequence_release(sequence);
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* Cancelled in the middle: it gets the tokens of what is under way, and no step more follows. Afterwards it
 * goes on as if it had not been. */
static void cancelled_texts_go_on(void **state) {
    enum { ROUNDS = 10, LENGTH = PROMPT + 100 };
    sluice_model *model = open_model(*state);
    int32_t expected[LENGTH];
    read_alone(model, LENGTH - PROMPT, expected);
    sluice_engine *engine = open_device(model, true);
    sluice_sequence *sequence = open_sequence(engine);
    for (int round = 0; round < ROUNDS; round++) {
        sluice_request_options o = round ? going_on(400) : options_of(0, 400);
        const size_t before = sluice_sequence_length(sequence) + o.token_count;
        sluice_event event = {.size = sizeof event};
        sluice_error error;
        let_end(4 + (round ? 1 : steps_of_prompt(*state)));
        sluice_request *request = submit(sequence, &o);
        for (int seen = 0; seen < 5; seen++) {
            must(sluice_poll(request, -1, &event, &error), &error, "poll");
            assert_int_equal(event.kind, SLUICE_EVENT_TOKEN);
        }
        sluice_cancel(request);
        let_end(ANY);
        if (round % 3 != 2) {
            assert_int_equal(poll_to_end(request).finish, SLUICE_FINISH_CANCELLED);
        }
        sluice_request_release(request);
        /* Two were under way, or the second was about to be. */
        assert_in_range(sluice_sequence_length(sequence) - before, 6, 7);
        check_tokens(sequence, expected, sluice_sequence_length(sequence));
    }
    go_on_to(sequence, LENGTH);
    check_tokens(sequence, expected, LENGTH);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* A request that has not ended is refused at once, not waited for. */
static void a_running_request_is_not_waited_for(void **state) {
    sluice_model *model = open_model(*state);
    sluice_engine *engine = open_device(model, true);
    sluice_sequence *sequence = open_sequence(engine), *fork;
    sluice_request_options o = options_of(0, 50);
    sluice_request *request, *second;
    sluice_event event = {.size = sizeof event};
    sluice_error error;
    let_end(steps_of_prompt(*state));
    request = submit(sequence, &o);
    must(sluice_poll(request, -1, &event, &error), &error, "poll");
    assert_int_equal(event.kind, SLUICE_EVENT_TOKEN);
    assert_int_equal(sluice_submit(sequence, &o, &second, &error), SLUICE_ERR_BUSY);
    assert_int_equal(sluice_sequence_rollback(sequence, 1, &error), SLUICE_ERR_BUSY);
    assert_int_equal(sluice_sequence_fork(sequence, &fork, &error), SLUICE_ERR_BUSY);
    assert_true(in_flight > 0);
    let_end(ANY);
    assert_int_equal(poll_to_end(request).finish, SLUICE_FINISH_LENGTH);
    sluice_request_release(request);
    /* And one whose logits have not been given back, so that no step is under way, can be released. */
    for (int by_sequence = 0; by_sequence < 2; by_sequence++) {
        o.logits = SLUICE_LOGITS_LAST;
        request = submit(sequence, &o);
        must(sluice_poll(request, -1, &event, &error), &error, "poll");
        assert_int_equal(event.kind, SLUICE_EVENT_LOGITS);
        if (by_sequence) {
            sluice_sequence_release(sequence);
        }
        sluice_request_release(request);
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* ---- failures
 * ------------------------------------------------------------------------------------------------------- */

/* A step that does not begin, alone or behind another: the one in front counts, the request ends with the
 * reason, and the sequence is as it was. */
static void steps_that_do_not_begin(void **state) {
    enum { LENGTH = PROMPT + 30 };
    sluice_model *model = open_model(*state);
    int32_t expected[LENGTH];
    read_alone(model, LENGTH - PROMPT, expected);
    sluice_engine *engine = open_device(model, true);
    for (int fail_in = 1; fail_in <= 4; fail_in++) {
        sluice_sequence *sequence = open_sequence(engine);
        sluice_request_options o = options_of(0, LENGTH - PROMPT);
        fail_submit_in = fail_in;
        submitted = 0;
        sluice_request *request = submit(sequence, &o);
        const sluice_event end = poll_to_end(request);
        assert_int_equal(end.finish, SLUICE_FINISH_ERROR);
        assert_int_equal(end.error.code, SLUICE_ERR_INTERNAL);
        char message[64];
        snprintf(message, sizeof message, "step %d does not begin", fail_in);
        assert_string_equal(end.error.message, message);
        assert_int_equal(end.generated_tokens, fail_in - 1);
        sluice_request_release(request);
        check_tokens(sequence, expected, PROMPT + (size_t)fail_in - 1);
        go_on_to(sequence, LENGTH);
        check_tokens(sequence, expected, LENGTH);
        sluice_sequence_release(sequence);
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* The device is gone, with a step behind the one that says so: everybody is told, at once and for good, and
 * nobody waits for steps that will not end. */
static void a_lost_device_ends_all(void **state) {
    sluice_model *model = open_model(*state);
    for (int fail_in = 1; fail_in <= 3; fail_in++) {
        sluice_engine *engine = open_device(model, true);
        sluice_sequence *sequences[SEQUENCES];
        sluice_request *requests[SEQUENCES], *none;
        sluice_error error;
        fail_wait_in = fail_in;
        let_end(0);
        for (int32_t s = 0; s < SEQUENCES; s++) {
            sluice_request_options o = options_of(s, 50);
            sequences[s] = open_sequence(engine);
            requests[s] = submit(sequences[s], &o);
        }
        let_end(ANY);
        for (int32_t s = 0; s < SEQUENCES; s++) {
            const sluice_event end = poll_to_end(requests[s]);
            assert_int_equal(end.finish, SLUICE_FINISH_ERROR);
            assert_int_equal(end.error.code, SLUICE_ERR_DEVICE);
            assert_string_equal(end.error.message, "the device is gone");
            sluice_request_release(requests[s]);
        }
        sluice_request_options o = options_of(0, 1);
        assert_int_equal(sluice_submit(sequences[0], &o, &none, &error), SLUICE_ERR_DEVICE);
        assert_string_equal(error.message, "the device is gone");
        for (int32_t s = 0; s < SEQUENCES; s++) {
            sluice_sequence_release(sequences[s]);
        }
        sluice_engine_destroy(engine);
    }
    sluice_model_release(model);
}

int main(void) {
#define FOR_MODEL(test, which, name)                                                                         \
    { #test ": " name, test, NULL, NULL, (void *)(size_t)models[which] }
#define FOR_MODELS(test)                                                                                     \
    FOR_MODEL(test, 0, "mini"), FOR_MODEL(test, 1, "qwen3"), FOR_MODEL(test, 2, "qwen3_5"),                  \
        FOR_MODEL(test, 3, "gemma3")
    const struct CMUnitTest tests[] = {
        FOR_MODELS(texts_are_those_of_single_steps), cmocka_unit_test(an_ended_sequence_is_waited_for),
        FOR_MODELS(cancelled_texts_go_on),           FOR_MODELS(a_running_request_is_not_waited_for),
        FOR_MODELS(steps_that_do_not_begin),         FOR_MODELS(a_lost_device_ends_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
