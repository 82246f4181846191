#define _POSIX_C_SOURCE 200809L
/* Steps over several devices: two CPU backends as one, two steps in flight. What they give is what one device
 * gives, bit for bit; while the second device is at a step the first is at the next; and whatever fails, on
 * whichever device, ends all requests and hangs nobody. Each device looks whether it is used as a backend may
 * be: by one call at a time, and its workspace between its sections only. Where devices send, places are sent
 * to and received from in turns. */
#include "support/engine.h"
#include "support/sanitized.h"

#include "api/engine.h"
#include "backend/backend.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#define FIXTURE(family) SLUICE_SOURCE_DIR "/tests/logits/fixtures/" family
#define MINI SLUICE_SOURCE_DIR "/models/mini.gguf"
#define MINI_MOE SLUICE_SOURCE_DIR "/models/mini-moe.gguf"

enum { SEQUENCES = 3, MANY = 8, CONTEXT = 1024, CHUNK = 16, DEVICES = 2 };

/* ---- the devices
 * ----------------------------------------------------------------------------------------------------- */

typedef enum call { SUBMIT, PROCEED, WAIT, READ, WRITE, SEND, RECEIVE, CALLS } call;
static const char *const call_names[] = {"submit", "proceed", "wait", "read", "write", "send", "receive"};

struct sl_executor {
    sl_executor *inner;
    int index;
    atomic_bool busy;
    unsigned char *landing; /* what others send */
    atomic_bool *full;      /* [bytes / PLACE]: sent, and not received yet */
    sl_executor *target;    /* of what it sends */
};

enum { PLACE = 64 };

typedef struct device {
    sl_backend base;
    sl_backend *inner;
    int index;
} device;

static const sl_backend_functions *cpu;
static atomic_int opened; /* devices, since the engine's options were written */
static atomic_int made[CALLS];

/* What is to fail. */
static struct {
    int device;
    call which;
    atomic_int countdown; /* 0: nothing */
    atomic_bool happened;
} failure;

/* Steps of each device; how many the second may begin before the first has begun the one behind. */
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int begun[DEVICES];
    int alone, together; /* of the first `together` steps, all but the first `alone` are not begun by the
                            second device before the first device is at the next one */
    int missed;          /* it did not come */
    int sent, received;  /* values */
    int late, values;    /* of the first so many steps, of so many values, each is received when those of the
                            step behind were sent */
    int held; /* the step, counted from 1, that the second device does not begin while this stands; 0 */
} meeting = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .values = 1};

/* For other threads than the test's, which no longjmp of its may leave. */
static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "device: %s\n", what);
        exit(1);
    }
}

static void begin_call(sl_executor *e) {
    require(!atomic_exchange(&e->busy, true), "two calls at once");
}

static int end_call(sl_executor *e, call which, int status, sl_error *error) {
    atomic_store(&e->busy, false);
    made[which]++;
    if (failure.device == e->index && failure.which == which && atomic_load(&failure.countdown) > 0 &&
        atomic_fetch_sub(&failure.countdown, 1) == 1) {
        failure.happened = true;
        return sl_fail(error, SL_ERR_INTERNAL, "%s has failed", call_names[which]);
    }
    return status;
}

static void meet(int index) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 120;
    pthread_mutex_lock(&meeting.mutex);
    const int step = ++meeting.begun[index];
    pthread_cond_broadcast(&meeting.changed);
    while (index == 1 && step == meeting.held) {
        pthread_cond_wait(&meeting.changed, &meeting.mutex);
    }
    while (index == 1 && step > meeting.alone && step <= meeting.together && meeting.missed == 0 &&
           meeting.begun[0] <= step) {
        meeting.missed += pthread_cond_timedwait(&meeting.changed, &meeting.mutex, &until) != 0;
    }
    pthread_mutex_unlock(&meeting.mutex);
}

/* What lies at its place stays there until it was received. */
static void count_sent(void) {
    pthread_mutex_lock(&meeting.mutex);
    meeting.sent++;
    pthread_cond_broadcast(&meeting.changed);
    pthread_mutex_unlock(&meeting.mutex);
}

static void receive_late(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 120;
    pthread_mutex_lock(&meeting.mutex);
    const int step = meeting.received++ / meeting.values + 1;
    while (step <= meeting.late && meeting.sent < (step + 1) * meeting.values && meeting.missed == 0) {
        meeting.missed += pthread_cond_timedwait(&meeting.changed, &meeting.mutex, &until) != 0;
    }
    pthread_mutex_unlock(&meeting.mutex);
}

static void destroy_device_executor(sl_executor *e) {
    require(!e->busy, "destroyed while a call runs");
    if (e->inner) {
        cpu->destroy_executor(e->inner);
    }
    free(e->landing);
    free(e->full);
    free(e);
}

static sl_backend *inner_of(const sl_backend *backend) {
    return ((const device *)(const void *)backend)->inner;
}

static int deploy_device(sl_backend *backend, const sl_deployment *deployment, const sl_progress *progress,
                         sl_executor **executor, sl_error *error) {
    sl_executor *e = calloc(1, sizeof *e);
    e->index = ((const device *)(const void *)backend)->index;
    const size_t landing = (size_t)deployment->pool_bytes[SL_POOL_EXCHANGE];
    e->landing = malloc(landing + 1);
    e->full = calloc(landing / PLACE + 1, sizeof *e->full);
    const int status = cpu->deploy(inner_of(backend), deployment, progress, &e->inner, error);
    *executor = e;
    return status;
}

static const sl_kernel *const *device_kernels(const sl_backend *backend, int32_t *count) {
    return cpu->kernels(inner_of(backend), count);
}

static void *device_block(sl_executor *e) {
    require(!e->busy, "its block is asked for while a call runs");
    return cpu->step_block(e->inner);
}

static int device_submit(sl_executor *e, int32_t bucket, sl_error *error) {
    begin_call(e);
    meet(e->index);
    return end_call(e, SUBMIT, cpu->submit(e->inner, bucket, error), error);
}

static int device_proceed(sl_executor *e, sl_error *error) {
    begin_call(e);
    return end_call(e, PROCEED, cpu->proceed(e->inner, error), error);
}

static int device_wait(sl_executor *e, sl_error *error) {
    begin_call(e);
    return end_call(e, WAIT, cpu->wait(e->inner, error), error);
}

static int device_read(sl_executor *e, sl_pool_kind pool, uint64_t offset, void *data, uint64_t bytes,
                       sl_error *error) {
    begin_call(e);
    return end_call(e, READ, cpu->read(e->inner, pool, offset, data, bytes, error), error);
}

static int device_write(sl_executor *e, sl_pool_kind pool, uint64_t offset, const void *data, uint64_t bytes,
                        sl_error *error) {
    begin_call(e);
    return end_call(e, WRITE, cpu->write(e->inner, pool, offset, data, bytes, error), error);
}

static int device_link(sl_executor *from, sl_executor *to, bool *reaches, sl_error *error) {
    (void)error;
    require(!from->busy && !to->busy, "linked while a call runs");
    from->target = to;
    *reaches = true;
    return 0;
}

static int device_send(sl_executor *from, const sl_executor *to, const sl_crossing *c, sl_error *error) {
    require(from->target == to, "sends to one that it was not linked to");
    begin_call(from);
    require(!atomic_exchange(&from->target->full[c->place / PLACE], true), "sends where something lies");
    const int status =
        cpu->read(from->inner, SL_POOL_WORKSPACE, c->from, to->landing + c->place, c->bytes, error);
    count_sent();
    return end_call(from, SEND, status, error);
}

static int device_receive(sl_executor *to, const sl_executor *from, const sl_crossing *c, sl_error *error) {
    require(from->target == to, "receives from one that was not linked to it");
    begin_call(to);
    receive_late();
    require(atomic_exchange(&to->full[c->place / PLACE], false), "receives what was not sent");
    return end_call(to, RECEIVE,
                    cpu->write(to->inner, SL_POOL_WORKSPACE, c->to, to->landing + c->place, c->bytes, error),
                    error);
}

static const float *device_logits(sl_executor *e) {
    require(!e->busy, "logits are asked for while a call runs");
    return cpu->logits(e->inner);
}

static const int32_t *device_tokens(sl_executor *e) {
    require(!e->busy, "tokens are asked for while a call runs");
    return cpu->tokens(e->inner);
}

static void device_counters(const sl_executor *e, sl_counters *counters) {
    require(!e->busy, "counters are asked for while a call runs");
    cpu->counters(e->inner, counters);
}

static uint64_t device_memory(const sl_backend *backend) {
    return cpu->memory_available(inner_of(backend));
}

static void destroy_device(sl_backend *backend) {
    cpu->destroy(inner_of(backend));
    free(backend);
}

#define USUAL_FUNCTIONS                                                                                      \
    .kernels = device_kernels, .deploy = deploy_device, .destroy_executor = destroy_device_executor,         \
    .step_block = device_block, .submit = device_submit, .proceed = device_proceed, .wait = device_wait,     \
    .logits = device_logits, .tokens = device_tokens, .read = device_read, .write = device_write,            \
    .counters = device_counters, .memory_available = device_memory, .destroy = destroy_device
static const sl_backend_functions device_functions = {USUAL_FUNCTIONS};
static const sl_backend_functions sending_functions = {USUAL_FUNCTIONS, .send = device_send,
                                                       .receive = device_receive, .link = device_link};
static bool sends; /* the devices that are opened */

/* The linker gives the library this function for sl_backend_open (--wrap). */
int __wrap_sl_backend_open(const char *name, const sl_backend_options *options, sl_backend **backend,
                           sl_error *error);
int __wrap_sl_backend_open(const char *name, const sl_backend_options *options, sl_backend **backend,
                           sl_error *error) {
    sl_backend *inner;
    require(strcmp(name, "cpu") == 0, "another device than cpu");
    const int status = sl_cpu_backend_create(options, &inner, error);
    if (status) {
        return status;
    }
    device *d = calloc(1, sizeof *d);
    cpu = inner->functions;
    d->base = *inner;
    d->base.functions = sends ? &sending_functions : &device_functions;
    d->inner = inner;
    d->base.fixed_rows = d->base.fixed_rows_of_floats = 16;
    d->index = opened++;
    *backend = &d->base;
    return 0;
}

/* ---- helpers
 * -------------------------------------------------------------------------------------------------------- */

/* Layers, and experts of the first layers, that are apart: 0 and 0 on one device. */
typedef struct placement {
    int32_t second, experts;
    bool drafts, sends;
    int32_t sequences; /* 0: SEQUENCES */
    sl_halving halving;
    size_t cache;  /* tokens; 0: for all sequences */
    int32_t chunk; /* 0: CHUNK */
    bool usual;    /* nobody says how many rows a step has */
} placement;

static sluice_engine *open_devices(sluice_model *model, placement p) {
    const sluice_engine_options options = {.size = sizeof options,
                                           .device = p.second ? "cpu+cpu" : "cpu",
                                           .gpu_layers = p.second,
                                           .cpu_experts = p.experts,
                                           .threads = 1,
                                           .context = CONTEXT,
                                           .chunk = p.usual   ? 0
                                                    : p.chunk ? p.chunk
                                                              : CHUNK,
                                           .outputs = CHUNK,
                                           .sequences = p.sequences ? p.sequences : SEQUENCES,
                                           .cache_tokens = p.cache,
                                           .speculate =
                                               p.drafts ? SLUICE_SPECULATE_NGRAM : SLUICE_SPECULATE_OFF,
                                           .draft_always = p.drafts};
    opened = 0;
    sends = p.sends;
    for (int i = 0; i < CALLS; i++) {
        made[i] = 0;
    }
    failure.countdown = 0;
    failure.happened = false;
    pthread_mutex_lock(&meeting.mutex);
    meeting.begun[0] = meeting.begun[1] = meeting.together = meeting.missed = meeting.held = 0;
    meeting.alone = meeting.sent = meeting.received = meeting.late = 0;
    meeting.values = 1;
    pthread_mutex_unlock(&meeting.mutex);
    sluice_engine *engine = open_engine(model, &options);
    pthread_mutex_lock(&engine->mutex);
    sl_scheduler_set_halving(engine->scheduler, p.halving);
    pthread_mutex_unlock(&engine->mutex);
    return engine;
}

static sl_scheduler_counters counts_of(sluice_engine *engine) {
    pthread_mutex_lock(&engine->mutex);
    const sl_scheduler_counters counts = *sl_scheduler_counts(engine->scheduler);
    pthread_mutex_unlock(&engine->mutex);
    return counts;
}

static uint64_t following_steps(sluice_engine *engine) {
    return counts_of(engine).following_steps;
}

/* The second device does not begin that step, counted from 1; 0: it goes on. */
static void hold(int step) {
    pthread_mutex_lock(&meeting.mutex);
    meeting.held = step;
    pthread_cond_broadcast(&meeting.changed);
    pthread_mutex_unlock(&meeting.mutex);
}

static void wait_until_held(void) {
    pthread_mutex_lock(&meeting.mutex);
    while (meeting.begun[1] < meeting.held) {
        pthread_cond_wait(&meeting.changed, &meeting.mutex);
    }
    pthread_mutex_unlock(&meeting.mutex);
}

static int32_t layers_of(sluice_model *model) {
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(model, &info);
    return info.layers;
}

static const int32_t *prompt_of(int32_t which) {
    static int32_t tokens[SEQUENCES * 8][CONTEXT];
    for (int32_t i = 0; i < CONTEXT; i++) {
        tokens[which][i] = 3 + (i * (which + 7) + i / 13 + which) % 90;
    }
    return tokens[which];
}

static sluice_request_options options_of(int32_t which, size_t prompt, size_t generate) {
    return (sluice_request_options){.size = sizeof(sluice_request_options),
                                    .tokens = prompt ? prompt_of(which) : NULL,
                                    .token_count = prompt,
                                    .generate = generate,
                                    .no_text = true,
                                    .ignore_eos = true};
}

static sluice_event poll_to_end(sluice_request *request) {
    sluice_event event = {.size = sizeof event};
    sluice_error error;
    do {
        must(sluice_poll(request, -1, &event, &error), &error, "poll");
    } while (event.kind != SLUICE_EVENT_DONE);
    return event;
}

/* ---- bits
 * ----------------------------------------------------------------------------------------------------------
 */

enum { RECORD = 1 << 20 };
typedef struct record {
    unsigned char bytes[RECORD];
    size_t size;
} record;

static void keep(record *r, const void *data, size_t size) {
    assert_true(r->size + size <= RECORD);
    memcpy(r->bytes + r->size, data, size);
    r->size += size;
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

/* The rows behind what was read and generated: they see all of it. */
static void keep_logits(sluice_sequence *sequence, size_t vocabulary, record *r) {
    enum { ROWS = 3 };
    float *logits = calloc(ROWS * vocabulary, sizeof *logits);
    sluice_request_options o = options_of(1, ROWS, 0);
    o.logits = SLUICE_LOGITS_ALL;
    collected got = {
        .logits = logits, .vocabulary = vocabulary, .first = sluice_sequence_length(sequence), .room = ROWS};
    collect(submit(sequence, &o), &got);
    keep(r, logits, ROWS * vocabulary * sizeof *logits);
    free(logits);
}

/* A prompt of many chunks alone; then several at once, of every kind; each sequence is taken back a little,
 * and goes on. */
static void live(sluice_engine *engine, sluice_model *model, sluice_grammar *grammar, record *r) {
    static const size_t prompts[] = {9 * CHUNK + 3, 4 * CHUNK, CHUNK - 5};
    sluice_model_info info = {.size = sizeof info};
    sluice_sequence *sequences[SEQUENCES];
    sluice_request *requests[SEQUENCES];
    sluice_error error;
    sluice_model_get_info(model, &info);
    for (int32_t round = 0; round < 4; round++) {
        for (int32_t s = 0; s < SEQUENCES; s++) {
            sluice_request_options o = options_of(s + round * SEQUENCES, prompts[(s + round) % 3], 12);
            const sluice_logit_bias bias = {20, 3};
            collected got = {0};
            o.temperature = s == 1 ? 0.8f : 0;
            o.seed = (uint64_t)round;
            o.grammar = round == 1 || s == 2 ? grammar : NULL;
            o.repetition_penalty = round == 2 && s == 0 ? 1.2f : 0;
            o.logit_bias = &bias;
            o.logit_bias_count = s == 2;
            o.logits = round == 3 && s == 1 ? SLUICE_LOGITS_LAST : SLUICE_LOGITS_NONE;
            sequences[s] = round ? sequences[s] : open_sequence(engine);
            requests[s] = submit(sequences[s], &o);
            if (round == 0) {
                collect(requests[s], &got);
            }
        }
        for (int32_t s = 0; s < SEQUENCES; s++) {
            collected got = {0};
            if (round > 0) {
                collect(requests[s], &got);
            }
            const size_t length = sluice_sequence_length(sequences[s]);
            keep(r, sluice_sequence_tokens(sequences[s]), length * sizeof(int32_t));
            must(sluice_sequence_rollback(sequences[s], length - (size_t)round, &error), &error, "rollback");
            keep_logits(sequences[s], (size_t)info.vocabulary, r);
        }
    }
    for (int32_t s = 0; s < SEQUENCES; s++) {
        sluice_sequence_release(sequences[s]);
    }
}

static void live_on(sluice_model *model, placement p, sluice_grammar *grammar, record *r) {
    sluice_engine *engine = open_devices(model, p);
    r->size = 0;
    live(engine, model, grammar, r);
    assert_true(p.second == 0 ? following_steps(engine) == 0 : following_steps(engine) > 10);
    sluice_engine_destroy(engine);
}

static void devices_give_the_bits_of_one(void **state) {
    static record one, several;
    sluice_model *model = open_model(*state);
    sluice_grammar *grammar = strstr(*state, ".gguf") ? grammar_of(model) : NULL;
    const int32_t layers = layers_of(model);
    const bool experts = strstr(*state, "moe") != NULL;
    for (int drafts = 0; drafts < 2; drafts++) {
        live_on(model, (placement){.drafts = drafts}, grammar, &one);
        for (int32_t second = 1; second <= layers; second += SANITIZED ? layers - 1 : 1) {
            for (int32_t way = 0; way < (experts ? 4 : 2); way++) {
                const placement p = {
                    .second = second, .experts = way / 2 * layers, .drafts = drafts, .sends = way % 2};
                live_on(model, p, grammar, &several);
                assert_int_equal(made[SEND] > 0, p.sends);
                assert_int_equal(several.size, one.size);
                assert_memory_equal(several.bytes, one.bytes, one.size);
            }
        }
    }
    sluice_grammar_release(grammar);
    sluice_model_release(model);
}

/* ---- at once
 * --------------------------------------------------------------------------------------------------------
 */

/* The second device begins none of a prompt's chunks but the last before the first device is at the next.
 * What crosses the border goes through the host, or it does not; then a chunk's values are received when the
 * next one's were sent. */
static void read_chunks(sluice_model *model, bool sending) {
    enum { CHUNKS = 12 };
    sluice_engine *engine = open_devices(model, (placement){.second = 1, .sends = sending});
    sluice_sequence *sequence = open_sequence(engine);
    sluice_request_options o = options_of(0, CHUNKS * CHUNK, 0);
    collected got = {0};
    meeting.together = CHUNKS - 1;
    meeting.late = CHUNKS - 1;
    meeting.values = engine->planned.plan->partition.border_count;
    collect(submit(sequence, &o), &got);
    assert_int_equal(meeting.missed, 0);
    assert_int_equal(meeting.begun[1], CHUNKS);
    assert_int_equal(following_steps(engine), CHUNKS - 1);
    assert_int_equal(made[sending ? SEND : READ], CHUNKS * meeting.values);
    assert_int_equal(made[sending ? SEND : READ], made[sending ? RECEIVE : WRITE]);
    assert_int_equal(made[sending ? READ : SEND] + made[sending ? WRITE : RECEIVE], 0);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
}

static void chunks_of_a_prompt_are_on_both_devices(void **state) {
    (void)state;
    sluice_model *model = open_model(MINI);
    read_chunks(model, false);
    read_chunks(model, true);
    sluice_model_release(model);
}

/* Five chunks of 128 rows take 6 (16 + 128) rows' time, two of 320 3 (16 + 320). Who says 512 gets 512. */
static void a_prompt_alone_is_cut_to_suit(void **state) {
    enum { PROMPT = 640, ROWS = 512 };
    static const struct {
        placement place;
        int steps;
    } cases[] = {{{.second = 1, .chunk = ROWS}, 2}, {{.second = 1, .usual = true}, 5}};
    static record logits[2];
    sluice_model *model = open_model(MINI);
    sluice_model_info info = {.size = sizeof info};
    sluice_model_get_info(model, &info);
    (void)state;
    for (int i = 0; i < 2; i++) {
        sluice_engine *engine = open_devices(model, cases[i].place);
        sluice_sequence *sequence = open_sequence(engine);
        const sluice_request_options o = options_of(0, PROMPT, 0);
        collected got = {0};
        assert_int_equal(engine->planned.plan->options.chunk, ROWS);
        collect(submit(sequence, &o), &got);
        assert_int_equal(meeting.begun[1], cases[i].steps);
        assert_int_equal(following_steps(engine), cases[i].steps - 1);
        logits[i].size = 0;
        keep_logits(sequence, (size_t)info.vocabulary, &logits[i]);
        sluice_sequence_release(sequence);
        sluice_engine_destroy(engine);
    }
    assert_int_equal(logits[0].size, logits[1].size);
    assert_memory_equal(logits[0].bytes, logits[1].bytes, logits[0].size);
    sluice_model_release(model);
}

/* ---- halves
 * ----------------------------------------------------------------------------------------------------------
 */

/* Requests of every kind at once, more than there is room for; each ends when it ends, and whoever waited
 * comes in. */
static void live_in_halves(sluice_engine *engine, int32_t count, sluice_grammar *grammar, record *r) {
    enum { REQUESTS = 2 * MANY };
    static const char *const stops[] = {"e", " th"};
    static const sluice_logit_bias bias = {20, 3};
    sluice_sequence *sequences[REQUESTS];
    sluice_request *requests[REQUESTS];
    for (int32_t i = 0; i < 2 * count; i++) {
        sluice_request_options o =
            options_of(i, i % 5 == 4 ? 5 * CHUNK + 3 : 3 + (size_t)i, 40 + 13 * (size_t)(i % 4));
        o.temperature = i % 2 ? 0.8f : 0;
        o.seed = (uint64_t)i;
        o.grammar = i % 3 == 1 ? grammar : NULL;
        o.repetition_penalty = i % 4 == 2 ? 1.2f : 0;
        o.logit_bias = &bias;
        o.logit_bias_count = i % 5 == 0;
        o.no_text = !grammar;
        o.stops = stops;
        o.stop_count = grammar && i % 7 == 3 ? 2 : 0;
        o.logits = i % 8 == 6 ? SLUICE_LOGITS_LAST : SLUICE_LOGITS_NONE;
        sequences[i] = open_sequence(engine);
        requests[i] = submit(sequences[i], &o);
    }
    r->size = 0;
    for (int32_t i = 0; i < 2 * count; i++) {
        collected got = {0};
        collect(requests[i], &got);
        keep(r, &got.finish, sizeof got.finish);
        keep(r, sluice_sequence_tokens(sequences[i]), sluice_sequence_length(sequences[i]) * sizeof(int32_t));
        sluice_sequence_release(sequences[i]);
    }
}

static void halves_give_the_texts_of_one(void **state) {
    static const int32_t counts[] = {2, 3, MANY};
    static record one, several;
    sluice_model *model = open_model(*state);
    sluice_grammar *grammar = strstr(*state, ".gguf") ? grammar_of(model) : NULL;
    const int32_t layers = layers_of(model);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        sluice_engine *engine = open_devices(model, (placement){.sequences = counts[c]});
        live_in_halves(engine, counts[c], grammar, &one);
        assert_int_equal(counts_of(engine).halved_steps, 0);
        sluice_engine_destroy(engine);
        for (int32_t second = 1; second <= layers; second += SANITIZED ? layers - 1 : 1) {
            for (int way = 0; way < 4; way++) {
                const placement p = {.second = second,
                                     .drafts = way == 3,
                                     .sends = (second + way) % 2,
                                     .sequences = counts[c],
                                     .halving = way == 1 ? SL_HALVING_MEASURED : SL_HALVING_ALWAYS,
                                     .cache = way == 2 ? CONTEXT : 0};
                engine = open_devices(model, p);
                live_in_halves(engine, counts[c], grammar, &several);
                const sl_scheduler_counters counted = counts_of(engine);
                assert_true(way == 1 || (counted.halved_steps > 20) == (way != 3));
                sluice_engine_destroy(engine);
                assert_int_equal(several.size, one.size);
                assert_memory_equal(several.bytes, one.bytes, one.size);
            }
        }
    }
    sluice_grammar_release(grammar);
    sluice_model_release(model);
}

/* While all generate, the second device begins no step before the first device is at the next. */
static void halves_are_on_both_devices(void **state) {
    enum { COUNT = 4, ALONE = 12, STEPS = 40, GENERATE = 200 };
    (void)state;
    sluice_model *model = open_model(MINI);
    sluice_engine *engine =
        open_devices(model, (placement){.second = 1, .sequences = COUNT, .halving = SL_HALVING_ALWAYS});
    sluice_sequence *sequences[COUNT];
    sluice_request *requests[COUNT];
    meeting.alone = ALONE; /* steps of prompts, and the first tokens of who came first */
    meeting.together = ALONE + STEPS;
    hold(1);
    for (int32_t s = 0; s < COUNT; s++) {
        const sluice_request_options o = options_of(s, 3, GENERATE);
        sequences[s] = open_sequence(engine);
        requests[s] = submit(sequences[s], &o);
    }
    hold(0);
    for (int32_t s = 0; s < COUNT; s++) {
        collected got = {0};
        assert_int_equal(collect(requests[s], &got), GENERATE);
    }
    assert_int_equal(meeting.missed, 0);
    assert_true(meeting.begun[1] > meeting.together);
    assert_true(counts_of(engine).halved_steps > STEPS);
    for (int32_t s = 0; s < COUNT; s++) {
        sluice_sequence_release(sequences[s]);
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* Whose half is on which device when they are cancelled, all go on as if they had not been. */
static void cancelled_halves_go_on(void **state) {
    enum { COUNT = 4, ROUNDS = SANITIZED ? 8 : 48, LENGTH = 8 + 60 };
    int32_t expected[COUNT][LENGTH];
    (void)state;
    sluice_model *model = open_model(MINI);
    for (int two = 0; two < 2; two++) {
        const placement p = {.second = two, .sends = two, .sequences = COUNT, .halving = SL_HALVING_ALWAYS};
        sluice_engine *engine = open_devices(model, p);
        for (int round = 0; round < (two ? ROUNDS : 1); round++) {
            sluice_sequence *sequences[COUNT];
            sluice_request *requests[COUNT];
            pthread_mutex_lock(&meeting.mutex);
            meeting.begun[1] = 0;
            meeting.held = two ? 10 + round % 6 : 0;
            pthread_mutex_unlock(&meeting.mutex);
            for (int32_t s = 0; s < COUNT; s++) {
                sluice_request_options o = options_of(s, 8, LENGTH - 8);
                o.no_reuse = true;
                sequences[s] = open_sequence(engine);
                requests[s] = submit(sequences[s], &o);
            }
            /* One, two of a half or of both, all, with one half on the second device and the other behind. */
            const int cancelled = two ? 1 + round % 15 : 0;
            wait_until_held();
            for (int32_t s = 0; s < COUNT; s++) {
                if (cancelled & 1 << s) {
                    sluice_cancel(requests[s]);
                }
            }
            hold(0);
            for (int32_t s = 0; s < COUNT; s++) {
                poll_to_end(requests[s]);
                sluice_request_release(requests[s]);
                const size_t length = sluice_sequence_length(sequences[s]);
                assert_true(length == LENGTH || (cancelled & 1 << s));
                if (length < LENGTH) {
                    const sluice_request_options more = options_of(0, 0, LENGTH - length);
                    collected got = {0};
                    collect(submit(sequences[s], &more), &got);
                }
                const int32_t *tokens = sluice_sequence_tokens(sequences[s]);
                if (two) {
                    assert_memory_equal(tokens, expected[s], sizeof expected[s]);
                } else {
                    memcpy(expected[s], tokens, sizeof expected[s]);
                }
                sluice_sequence_release(sequences[s]);
            }
        }
        sluice_engine_destroy(engine);
    }
    sluice_model_release(model);
}

/* What steps take along is in the plan, and in the host's limit. */
static void what_steps_take_along_is_planned(void **state) {
    (void)state;
    sluice_model *model = open_model(MINI);
    sluice_engine *engine = open_devices(model, (placement){.second = 1});
    const sl_plan *plan = engine->planned.plan;
    sluice_counters counters = {.size = sizeof counters};
    sluice_error error;
    uint64_t rows = 0;
    for (int32_t i = 0; i < plan->memory_count; i++) {
        rows += plan->memory[i].bytes;
    }
    sluice_engine_get_counters(engine, &counters);
    /* Blocks, and at the border two values at most. */
    const uint64_t value = (uint64_t)CHUNK * 4 * (uint64_t)plan->deployment.program->vocabulary;
    assert_in_range(plan->flight_bytes, 2 * plan->deployment.step.bytes,
                    2 * plan->deployment.step.bytes + 8 * value);
    assert_int_equal(rows, sl_plan_bytes(plan));
    assert_int_equal(counters.memory, rows);
    assert_string_equal(counters.memory_on[0].device, "cpu");
    assert_int_equal(counters.memory_on[0].bytes, rows);
    /* Where devices send, the values lie on the second one, and nowhere on the host. */
    const uint64_t carried = plan->flight_bytes;
    sluice_engine_destroy(engine);
    engine = open_devices(model, (placement){.second = 1, .sends = true});
    plan = engine->planned.plan;
    const uint64_t landing = plan->segments[1].plan->deployment.pool_bytes[SL_POOL_EXCHANGE];
    const sl_value *values = plan->deployment.program->values;
    uint64_t expected = 0, total = 0;
    for (int32_t b = 0; b < plan->partition.border_count; b++) {
        expected += 2 * (uint64_t)CHUNK * 4 * (uint64_t)values[plan->partition.borders[b].value].width;
    }
    for (int32_t i = 0; i < plan->memory_count; i++) {
        total += plan->memory[i].bytes;
    }
    assert_true(expected > 0);
    assert_int_equal(landing, expected);
    assert_int_equal(plan->flight_bytes, carried - landing);
    assert_int_equal(plan->segments[0].plan->deployment.pool_bytes[SL_POOL_EXCHANGE], 0);
    assert_int_equal(total, rows);
    assert_int_equal(sl_plan_bytes(plan), rows);
    sluice_engine_destroy(engine);
    sluice_engine_options options = {
        .size = sizeof options, .device = "cpu+cpu", .gpu_layers = 1, .host_memory_limit = 1000};
    assert_int_equal(sluice_engine_create(model, &options, &engine, &error), SLUICE_ERR_LIMIT);
    assert_non_null(strstr(error.message, "of host memory, the limit is 1000"));
    sluice_model_release(model);
}

/* ---- ends
 * -----------------------------------------------------------------------------------------------------------
 */

/* Wherever it is when it is cancelled, a sequence goes on as if it had not been. */
static void cancelled_prompts_go_on(void **state) {
    enum { ROUNDS = SANITIZED ? 12 : 60, PROMPT = 24 * CHUNK + 5, LENGTH = PROMPT + 20 };
    sluice_model *model = open_model(MINI);
    int32_t expected[LENGTH];
    (void)state;
    for (int two = 0; two < 2; two++) {
        sluice_engine *engine = open_devices(model, (placement){.second = two});
        for (int round = 0; round < (two ? ROUNDS : 1); round++) {
            sluice_sequence *sequence = open_sequence(engine);
            sluice_request_options o = options_of(0, PROMPT, LENGTH - PROMPT);
            o.no_reuse = true;
            sluice_request *request = submit(sequence, &o);
            if (two) {
                nanosleep(&(struct timespec){.tv_nsec = round * 200000L}, NULL);
                sluice_cancel(request);
            }
            poll_to_end(request);
            sluice_request_release(request);
            if (sluice_sequence_length(sequence) < LENGTH) {
                sluice_request_options more = options_of(0, 0, LENGTH - sluice_sequence_length(sequence));
                collected got = {0};
                collect(submit(sequence, &more), &got);
            }
            assert_int_equal(sluice_sequence_length(sequence), LENGTH);
            if (two) {
                assert_memory_equal(sluice_sequence_tokens(sequence), expected, sizeof expected);
            } else {
                memcpy(expected, sluice_sequence_tokens(sequence), sizeof expected);
            }
            sluice_sequence_release(sequence);
        }
        sluice_engine_destroy(engine);
    }
    sluice_model_release(model);
}

static void expect_failure(sluice_request *request, const char *message) {
    const sluice_event end = poll_to_end(request);
    assert_int_equal(end.finish, SLUICE_FINISH_ERROR);
    assert_int_equal(end.error.code, SLUICE_ERR_DEVICE);
    assert_string_equal(end.error.message, message);
    sluice_request_release(request);
}

/* In the first steps of prompts, and in those that generate: which device it was is said, to all and for
 * good.
 */
static void a_device_that_fails_ends_all(void **state) {
    sluice_model *model = open_model(MINI_MOE);
    const int32_t layers = layers_of(model);
    enum { PLACES = 4, NTHS = 3, ALL = PLACES * DEVICES * CALLS * NTHS, STRIDE = SANITIZED ? 11 : 1 };
    const placement places[PLACES] = {{.second = 1},
                                      {.second = layers, .experts = layers},
                                      {.second = 1, .sends = true},
                                      {.second = layers, .experts = layers, .sends = true}};
    const int nths[NTHS] = {1, 2, 9};
    int happened = 0;
    (void)state;
    for (int i = 0; i < ALL; i += STRIDE) {
        const placement *p = &places[i % PLACES];
        sluice_engine *engine = open_devices(model, *p);
        sluice_sequence *sequences[SEQUENCES];
        sluice_request *requests[SEQUENCES], *none;
        sluice_error error;
        char message[128];
        failure.device = i / PLACES % DEVICES;
        failure.which = (call)(i / PLACES / DEVICES % CALLS);
        snprintf(message, sizeof message, "cpu, device %d of cpu+cpu: %s has failed", failure.device + 1,
                 call_names[failure.which]);
        failure.countdown = nths[i / PLACES / DEVICES / CALLS];
        for (int32_t s = 0; s < SEQUENCES; s++) {
            sluice_request_options o = options_of(s, (size_t)(5 * CHUNK), 20);
            sequences[s] = open_sequence(engine);
            /* The first may be through before the last comes. */
            if (sluice_submit(sequences[s], &o, &requests[s], &error)) {
                assert_int_equal(error.code, SLUICE_ERR_DEVICE);
                requests[s] = NULL;
            }
        }
        for (int32_t s = 0; s < SEQUENCES; s++) {
            if (requests[s] && !failure.happened) {
                const sluice_event end = poll_to_end(requests[s]);
                if (!failure.happened) {
                    assert_int_equal(end.finish, SLUICE_FINISH_LENGTH);
                }
                sluice_request_release(requests[s]);
            } else if (requests[s]) {
                expect_failure(requests[s], message);
            }
        }
        if (failure.happened) {
            sluice_request_options o = options_of(0, 1, 0);
            assert_int_equal(sluice_submit(sequences[0], &o, &none, &error), SLUICE_ERR_DEVICE);
            assert_string_equal(error.message, message);
            happened++;
        }
        for (int32_t s = 0; s < SEQUENCES; s++) {
            sluice_sequence_release(sequences[s]);
        }
        sluice_engine_destroy(engine);
    }
    /* Of one border nothing proceeds, the first device is given nothing and the second leaves nothing. Values
     * are sent to a later device, and read and written on their way back. */
    assert_true(SANITIZED ? happened >= 5 : happened == NTHS * (6 + 10 + 6 + 10));
    sluice_model_release(model);
}

/* Sequences that generate in halves, until a device's n-th such call fails: who is not done is told which
 * device it was. Returns how many that were; -1: there was no such call. */
static int fail_in_halves(sluice_model *model, int device, call which, int nth) {
    enum { COUNT = 4, GENERATE = 9 };
    const bool sending = which == SEND || which == RECEIVE;
    const placement p = {.second = 1, .sends = sending, .sequences = COUNT, .halving = SL_HALVING_ALWAYS};
    sluice_engine *engine = open_devices(model, p);
    sluice_sequence *sequences[COUNT];
    sluice_request *requests[COUNT] = {0};
    sluice_request_options o;
    sluice_error error;
    char message[128];
    snprintf(message, sizeof message, "cpu, device %d of cpu+cpu: %s has failed", device + 1,
             call_names[which]);
    failure.device = device;
    failure.which = which;
    failure.countdown = nth;
    hold(1); /* the first is not done before the last comes */
    for (int32_t s = 0; s < COUNT; s++) {
        o = options_of(s, 3, GENERATE);
        sequences[s] = open_sequence(engine);
        if (sluice_submit(sequences[s], &o, &requests[s], &error)) {
            assert_string_equal(error.message, message);
        }
    }
    hold(0);
    int failed = 0;
    for (int32_t s = 0; s < COUNT; s++) {
        const sluice_event end = requests[s] ? poll_to_end(requests[s])
                                             : (sluice_event){.finish = SLUICE_FINISH_ERROR, .error = error};
        sluice_request_release(requests[s]);
        assert_true(end.finish == SLUICE_FINISH_LENGTH || end.error.code == SLUICE_ERR_DEVICE);
        if (end.finish != SLUICE_FINISH_LENGTH) {
            assert_string_equal(end.error.message, message);
            failed++;
        }
    }
    if (failed > 0) {
        assert_int_equal(sluice_submit(sequences[0], &o, &requests[0], &error), SLUICE_ERR_DEVICE);
        assert_string_equal(error.message, message);
    }
    for (int32_t s = 0; s < COUNT; s++) {
        sluice_sequence_release(sequences[s]);
    }
    sluice_engine_destroy(engine);
    return failure.happened ? failed : -1;
}

/* Each call once, to the last. */
static void a_device_that_fails_ends_both_halves(void **state) {
    enum { SURE = 6, LEAST = 12 }; /* steps in which all generate / and that there are */
    (void)state;
    sluice_model *model = open_model(MINI);
    for (int device = 0; device < DEVICES; device++) {
        for (call which = SUBMIT; which < CALLS; which++) {
            int nth = 1, failed;
            for (; (failed = fail_in_halves(model, device, which, nth)) >= 0; nth += SANITIZED ? 5 : 1) {
                assert_true(nth > SURE || failed == 4);
            }
            /* Of one border nothing proceeds, the first device is given nothing and the second leaves
             * nothing. */
            const bool never = which == PROCEED || which == (device == 0 ? WRITE : READ) ||
                               which == (device == 0 ? RECEIVE : SEND);
            assert_true(never ? nth == 1 : nth > LEAST);
        }
    }
    sluice_model_release(model);
}

static void *let_go_soon(void *unused) {
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    pthread_mutex_lock(&meeting.mutex);
    meeting.held = 0;
    pthread_cond_broadcast(&meeting.changed);
    pthread_mutex_unlock(&meeting.mutex);
    return unused;
}

/* The first device fails at the step behind the one that the second is at: nobody waits for that one, but who
 * destroys the engine. */
static void a_step_in_flight_is_left(void **state) {
    sluice_model *model = open_model(MINI);
    (void)state;
    for (int step = 1; step <= 4; step++) {
        sluice_engine *engine = open_devices(model, (placement){.second = 1});
        sluice_sequence *sequence = open_sequence(engine);
        sluice_request_options o = options_of(0, 8 * CHUNK, 0);
        pthread_t thread;
        meeting.held = step;
        failure.device = 0;
        failure.which = SUBMIT;
        failure.countdown = step + 1;
        expect_failure(submit(sequence, &o), "cpu, device 1 of cpu+cpu: submit has failed");
        assert_int_equal(meeting.held, step);
        pthread_create(&thread, NULL, let_go_soon, NULL);
        sluice_sequence_release(sequence);
        sluice_engine_destroy(engine);
        pthread_join(thread, NULL);
    }
    sluice_model_release(model);
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "--only") == 0) {
        cmocka_set_test_filter(argv[2]);
    }
#define FOR_MODEL(test, path, name)                                                                          \
    { #test ": " name, test, NULL, NULL, (void *)(size_t)path }
    const struct CMUnitTest tests[] = {
        FOR_MODEL(devices_give_the_bits_of_one, MINI, "mini"),
        FOR_MODEL(devices_give_the_bits_of_one, MINI_MOE, "mini-moe"),
        FOR_MODEL(devices_give_the_bits_of_one, FIXTURE("qwen3"), "qwen3"),
        FOR_MODEL(devices_give_the_bits_of_one, FIXTURE("qwen3_5"), "qwen3_5"),
        FOR_MODEL(devices_give_the_bits_of_one, FIXTURE("gemma3"), "gemma3"),
        cmocka_unit_test(chunks_of_a_prompt_are_on_both_devices),
        cmocka_unit_test(a_prompt_alone_is_cut_to_suit),
        cmocka_unit_test(what_steps_take_along_is_planned),
        FOR_MODEL(halves_give_the_texts_of_one, MINI, "mini"),
        FOR_MODEL(halves_give_the_texts_of_one, FIXTURE("qwen3"), "qwen3"),
        FOR_MODEL(halves_give_the_texts_of_one, FIXTURE("qwen3_5"), "qwen3_5"),
        FOR_MODEL(halves_give_the_texts_of_one, FIXTURE("gemma3"), "gemma3"),
        cmocka_unit_test(halves_are_on_both_devices),
        cmocka_unit_test(cancelled_halves_go_on),
        cmocka_unit_test(cancelled_prompts_go_on),
        cmocka_unit_test(a_device_that_fails_ends_all),
        cmocka_unit_test(a_device_that_fails_ends_both_halves),
        cmocka_unit_test(a_step_in_flight_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
