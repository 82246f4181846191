/* The CUDA backend as a whole, through the public interface: the CPU's tokens, with and without graphs;
 * buckets that are captured and steps that allocate nothing and wait for nothing; and every CUDA call failing
 * once in turn.
 *
 *     test_cuda [MODEL]    a model file or folder to compare besides the fixtures */
#include "support/engine.h"

#include <dlfcn.h>
#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

#define FIXTURES SLUICE_SOURCE_DIR "/tests/logits/fixtures/"

enum { GENERATE = 48, PROMPT = 70 };

static const char *extra_model;

/* What the module exports for tests. */
static void (*fail_at)(uint64_t nth);
static uint64_t (*call_count)(void);
static uint64_t (*live_count)(void);

static bool find_hooks(void) {
    Dl_info info;
    char path[4096];
    snprintf(path, sizeof path, "%s", dladdr((const void *)FIXTURES, &info) ? info.dli_fname : "./test_cuda");
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
    return fail_at && call_count && live_count;
}

typedef struct setting {
    const char *device, *kv_type;
    int32_t chunk, sequences;
    bool no_graphs;
    bool any_class; /* not `deterministic` */
    float temperature;
    int32_t host_experts; /* of so many layers */
    uint64_t expert_cache;
    const char *expert_pin;
    int32_t gpu_layers;
} setting;

static sluice_engine_options options_of(const setting *s) {
    return (sluice_engine_options){.size = sizeof(sluice_engine_options),
                                   .device = s->device,
                                   .kv_type = s->kv_type,
                                   .chunk = s->chunk,
                                   .context = 256,
                                   .sequences = s->sequences ? s->sequences : 2,
                                   .deterministic = !s->any_class,
                                   .no_prefix_reuse = true,
                                   .cpu_experts = s->host_experts,
                                   .expert_cache = s->expert_cache,
                                   .expert_pin = s->expert_pin,
                                   .gpu_layers = s->gpu_layers,
                                   .no_graphs = s->no_graphs};
}

static void fill_prompt(int32_t *tokens, int32_t count, int32_t start) {
    for (int32_t i = 0; i < count; i++) {
        tokens[i] = 3 + (start + 37 * i) % 90;
    }
}

static sluice_request_options request_of(const setting *s, const int32_t *prompt) {
    return (sluice_request_options){.size = sizeof(sluice_request_options),
                                    .tokens = prompt,
                                    .token_count = PROMPT,
                                    .generate = GENERATE,
                                    .temperature = s->temperature,
                                    .top_k = s->temperature > 0 ? 40 : 0,
                                    .top_p = 0.9f,
                                    .min_p = 0.01f,
                                    .repetition_penalty = 1.1f,
                                    .seed = 11,
                                    .ignore_eos = true,
                                    .no_text = true};
}

/* Tokens of one request; *steady: what changed between the 24th token and the last. */
static void generate(sluice_engine *engine, const setting *s, int32_t start, int32_t *tokens,
                     sluice_counters *steady) {
    int32_t prompt[PROMPT];
    fill_prompt(prompt, PROMPT, start);
    const sluice_request_options options = request_of(s, prompt);
    sluice_sequence *sequence = open_sequence(engine);
    sluice_request *request = submit(sequence, &options);
    sluice_event event = {.size = sizeof event};
    sluice_error error;
    sluice_counters middle = {.size = sizeof middle};
    size_t count = 0;
    do {
        must(sluice_poll(request, -1, &event, &error), &error, "poll");
        if (event.kind == SLUICE_EVENT_TOKEN) {
            tokens[count++] = event.token;
            if (count == GENERATE / 2) {
                sluice_engine_get_counters(engine, &middle);
            }
        }
    } while (event.kind != SLUICE_EVENT_DONE);
    if (event.finish == SLUICE_FINISH_ERROR) {
        fail_msg("request: %s", event.error.message);
    }
    assert_int_equal(count, GENERATE);
    sluice_engine_get_counters(engine, steady);
    steady->device_allocations -= middle.device_allocations;
    steady->synchronisations -= middle.synchronisations;
    steady->eager_steps -= middle.eager_steps;
    sluice_request_release(request);
    sluice_sequence_release(sequence);
}

static void run(sluice_model *model, const setting *s, int32_t *tokens, sluice_counters *counters) {
    const sluice_engine_options options = options_of(s);
    sluice_engine *engine = open_engine(model, &options);
    generate(engine, s, 0, tokens, counters);
    sluice_engine_destroy(engine);
}

static void compare(const char *path, const char *what, const int32_t *expected, const int32_t *got) {
    for (int32_t i = 0; i < GENERATE; i++) {
        if (expected[i] != got[i]) {
            fail_msg("%s: %s: token %d is %d, expected %d", path, what, i, got[i], expected[i]);
        }
    }
}

static void check_model(const char *path) {
    static const char *const kv_types[] = {"f32", "f16", "bf16", "q8_0"};
    sluice_model *model = open_model(path);
    const bool is_fixture = strncmp(path, FIXTURES, sizeof FIXTURES - 1) == 0;
    for (int t = 0; t < 4; t++) {
        for (int sampled = 0; sampled < 2; sampled++) {
            int32_t cpu[GENERATE], eager[GENERATE], graphs[GENERATE], cut[GENERATE];
            sluice_counters counters = {.size = sizeof counters};
            setting s = {
                .device = "cpu", .kv_type = kv_types[t], .chunk = 64, .temperature = sampled ? 0.8f : 0};
            sluice_error error;
            const sluice_engine_options probe = options_of(&s);
            char *text;
            if (sluice_plan_describe(model, &probe, SLUICE_PLAN_MEMORY, SLUICE_TEXT, &text, &error)) {
                printf("%s, cache %s: skipped: %s\n", path, kv_types[t], error.message);
                continue;
            }
            sluice_free(text);
            run(model, &s, cpu, &counters);
            s.device = "cuda";
            run(model, &s, graphs, &counters);
            printf("%s, cache %s%s: %llu buckets captured, %llu failed, %llu of %llu steps replayed\n", path,
                   kv_types[t], sampled ? ", sampled" : "", (unsigned long long)counters.captured_buckets,
                   (unsigned long long)counters.failed_captures, (unsigned long long)counters.replayed_steps,
                   (unsigned long long)counters.steps);
            assert_true(counters.captured_buckets > 0);
            assert_int_equal(counters.failed_captures, 0);
            assert_true(counters.replayed_steps > GENERATE - 3);
            assert_int_equal(counters.eager_steps, 0);
            assert_int_equal(counters.device_allocations, 0);
            assert_int_equal(counters.synchronisations, 0);
            s.no_graphs = true;
            run(model, &s, eager, &counters);
            assert_int_equal(counters.captured_buckets, 0);
            assert_int_equal(counters.replayed_steps, 0);
            compare(path, "graphs against eager", eager, graphs);
            s.no_graphs = false;
            s.chunk = 7;
            run(model, &s, cut, &counters);
            compare(path, "chunks of 7 against chunks of 64", graphs, cut);
            /* An f32 cache rounds nothing, so that the two devices differ by rounding alone. */
            if (is_fixture && t == 0) {
                compare(path, "cuda against cpu", cpu, graphs);
            }
        }
    }
    sluice_model_release(model);
}

static void same_tokens_as_the_cpu(void **state) {
    check_model(*state);
}

/* Sequences of a step do not see each other: alone or among others, the same tokens. */
static void sequences_together(void **state) {
    (void)state;
    sluice_model *model = open_model(FIXTURES "qwen3moe");
    setting s = {.device = "cuda", .kv_type = "f16", .chunk = 96, .sequences = 6};
    const sluice_engine_options options = options_of(&s);
    sluice_engine *engine = open_engine(model, &options);
    int32_t alone[6][GENERATE], tokens[GENERATE], prompts[6][PROMPT];
    sluice_counters counters = {.size = sizeof counters};
    sluice_sequence *sequences[6];
    sluice_request *requests[6];
    for (int i = 0; i < 6; i++) {
        generate(engine, &s, 5 * i, alone[i], &counters);
    }
    for (int i = 0; i < 6; i++) {
        fill_prompt(prompts[i], PROMPT, 5 * i);
        const sluice_request_options request = request_of(&s, prompts[i]);
        sequences[i] = open_sequence(engine);
        requests[i] = submit(sequences[i], &request);
    }
    for (int i = 0; i < 6; i++) {
        collected got = {.tokens = tokens};
        assert_int_equal(collect(requests[i], &got), GENERATE);
        compare("qwen3moe", "six sequences together", alone[i], tokens);
        sluice_sequence_release(sequences[i]);
    }
    sluice_engine_get_counters(engine, &counters);
    assert_int_equal(counters.failed_captures, 0);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* Experts in host memory give the tokens of experts on the device: streamed while the prompt is read, in
 * slots while it generates. With as few slots as a row uses, which then change with each row, and with as
 * many as fit; captured and eagerly. */
static void experts_from_host_memory(void **state) {
    (void)state;
    enum { FEW = 1, LAYERS = INT32_MAX };
    static const struct {
        uint64_t cache;
        bool no_graphs;
    } ways[] = {{FEW, false}, {0, true}};
    sluice_model *model = open_model(FIXTURES "qwen3moe");
    int32_t resident[GENERATE], tokens[GENERATE];
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        sluice_counters counters = {.size = sizeof counters}, steady = counters;
        setting s = {.device = "cuda", .kv_type = "f16", .chunk = 32, .sequences = 1, .any_class = true};
        s.no_graphs = ways[i].no_graphs;
        run(model, &s, resident, &steady);
        assert_int_equal(steady.streamed_bytes + steady.fetched_bytes, 0);
        s.host_experts = LAYERS;
        s.expert_cache = ways[i].cache;
        const sluice_engine_options options = options_of(&s);
        sluice_engine *engine = open_engine(model, &options);
        generate(engine, &s, 0, tokens, &steady);
        sluice_engine_get_counters(engine, &counters);
        sluice_engine_destroy(engine);
        compare("qwen3moe", "experts in host memory against experts on the device", resident, tokens);
        printf("%s slots: %llu bytes streamed, %llu fetched, %llu hits, %llu misses\n",
               ways[i].cache == FEW ? "few" : "many", (unsigned long long)counters.streamed_bytes,
               (unsigned long long)counters.fetched_bytes, (unsigned long long)counters.expert_hits,
               (unsigned long long)counters.expert_misses);
        assert_int_equal(counters.failed_captures, 0);
        assert_int_equal(steady.device_allocations + steady.synchronisations, 0);
        assert_true(counters.streamed_bytes > 0 && counters.expert_misses > 0 && counters.expert_hits > 0);
        assert_true(counters.expert_promotions > 0 && counters.expert_promotions <= counters.expert_hits);
        assert_true(ways[i].cache == FEW || counters.expert_hits > counters.expert_misses);
    }
    sluice_model_release(model);
}

/* ---- files of how often experts were chosen ---- */

enum { LAYERS = 8, EXPERTS = 64 }; /* more than the fixture has */

typedef struct layer_counts {
    sluice_expert_counters layers[LAYERS];
    int32_t count;
} layer_counts;

static void take_layer(void *context, const sluice_expert_counters *counters) {
    layer_counts *all = context;
    assert_true(all->count < LAYERS);
    all->layers[all->count++] = *counters;
}

/* What a file says of each expert of a layer; returns how many there are. */
static int32_t read_layer(const char *path, int32_t layer, uint64_t *chosen) {
    static char text[1 << 16];
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    const char *at = strstr(text, "\"chosen\":[");
    assert_non_null(at);
    at += strlen("\"chosen\":[");
    for (; layer > 0; layer--) {
        at = strchr(at, ']') + 2;
    }
    assert_true(*at == '[');
    int32_t count = 0;
    while (*at != ']') {
        assert_true(count < EXPERTS);
        chosen[count++] = strtoull(at + 1, (char **)(void *)&at, 10);
    }
    return count;
}

/* A run with all experts in host memory: its tokens, counters and file. */
static void count_experts(sluice_model *model, const setting *s, const char *path, int32_t *tokens,
                          sluice_counters *counters) {
    const sluice_engine_options options = options_of(s);
    sluice_error error;
    sluice_engine *engine = open_engine(model, &options);
    generate(engine, s, 0, tokens, counters);
    must(sluice_engine_write_expert_stats(engine, path, true, &error), &error, "whether it may be written");
    must(sluice_engine_write_expert_stats(engine, path, false, &error), &error, "expert stats");
    layer_counts by_layer = {.count = 0};
    assert_true(sluice_engine_get_expert_counters(engine, take_layer, &by_layer) > 1);
    sluice_counters sum = {.size = sizeof sum};
    for (int32_t i = 0; i < by_layer.count; i++) {
        const sluice_expert_counters *layer = &by_layer.layers[i];
        assert_int_equal(layer->layer, i);
        sum.expert_hits += layer->hits;
        sum.expert_misses += layer->misses;
        sum.expert_promotions += layer->promotions;
        sum.streamed_bytes += layer->streamed_bytes;
        sum.fetched_bytes += layer->fetched_bytes;
    }
    assert_int_equal(sum.expert_hits, counters->expert_hits);
    assert_int_equal(sum.expert_misses, counters->expert_misses);
    assert_int_equal(sum.expert_promotions, counters->expert_promotions);
    assert_int_equal(sum.streamed_bytes, counters->streamed_bytes);
    assert_int_equal(sum.fetched_bytes, counters->fetched_bytes);
    sluice_engine_destroy(engine);
}

/* Each row counts once for each of its experts, whether all of a layer came or the chosen ones; and an engine
 * that begins with those that were chosen misses none of them, with the same tokens. */
static void experts_begin_where_a_file_says(void **state) {
    (void)state;
    enum { USED = 2 };
    static const char *const streamed_file = "expert-stats-streamed.json", *chosen_file = "expert-stats.json";
    sluice_model *model = open_model(FIXTURES "qwen3moe");
    sluice_counters streamed = {.size = sizeof streamed}, chosen = streamed, pinned = streamed;
    int32_t tokens[GENERATE], others[GENERATE];
    uint64_t from_streams[EXPERTS], from_slots[EXPERTS], of_both[EXPERTS], sum = 0;
    setting s = {.device = "cuda", .kv_type = "f32", .chunk = 32, .sequences = 1, .no_graphs = true};
    s.host_experts = INT32_MAX;
    remove(streamed_file);
    remove(chosen_file);
    count_experts(model, &s, streamed_file, tokens, &streamed);
    s.chunk = 1;
    count_experts(model, &s, chosen_file, others, &chosen);
    compare("qwen3moe", "row by row against chunks", tokens, others);
    assert_true(streamed.streamed_bytes > 0 && chosen.streamed_bytes == 0);
    const int32_t experts = read_layer(streamed_file, 0, from_streams);
    assert_int_equal(read_layer(chosen_file, 0, from_slots), experts);
    for (int32_t e = 0; e < experts; e++) {
        assert_int_equal(from_streams[e], from_slots[e]);
        sum += from_streams[e];
    }
    assert_int_equal(sum, USED * streamed.rows);
    assert_true(streamed.expert_misses > 0);
    s.chunk = 32;
    s.expert_pin = chosen_file;
    count_experts(model, &s, streamed_file, others, &pinned);
    compare("qwen3moe", "experts at hand from the start against none", tokens, others);
    assert_int_equal(pinned.expert_misses, 0);
    assert_int_equal(pinned.expert_hits, streamed.expert_hits + streamed.expert_misses);
    read_layer(streamed_file, 0, of_both);
    for (int32_t e = 0; e < experts; e++) {
        assert_int_equal(of_both[e], 2 * from_slots[e]);
    }
    remove(streamed_file);
    remove(chosen_file);
    sluice_model_release(model);
}

static char *describe_plan(sluice_model *model, const sluice_engine_options *options,
                           sluice_text_format format) {
    sluice_error error;
    char *text = NULL;
    must(sluice_plan_describe(model, options, SLUICE_PLAN_MEMORY, format, &text, &error), &error, "plan");
    return text;
}

/* ---- steps that choose more experts than there are slots ---- */

/* Of 16 experts a row uses two: 8 rows choose more than four, and leave some out. */
enum { ALL_EXPERTS = 16, SLOTS = 4, MOST_PROTECTED = 3, STEP = 8, TOGETHER = 6, FEW_TOKENS = 12 };

static sluice_model *make_model_of_experts(void) {
    char path[64];
    snprintf(path, sizeof path, "cuda-experts-%d.gguf", (int)getpid());
    const sluice_synth_options options = {.size = sizeof options,
                                          .preset = "qwen3moe",
                                          .type = "q8_0",
                                          .seed = 3,
                                          .layers = 2,
                                          .width = 128,
                                          .feed_forward = 128,
                                          .vocabulary = 384,
                                          .experts = ALL_EXPERTS,
                                          .experts_used = 2,
                                          .expert_width = 128};
    sluice_error error;
    must(sluice_synth(path, &options, NULL, NULL, &error), &error, path);
    sluice_model *model = open_model(path);
    unlink(path); /* the map stays */
    return model;
}

/* Steps of up to STEP rows of that model, with four slots in each layer when experts are in host memory. */
static sluice_engine_options options_of_experts(sluice_model *model, bool on_host) {
    setting s = {.device = "cuda", .kv_type = "f16", .chunk = STEP, .sequences = TOGETHER};
    s.host_experts = on_host ? INT32_MAX : 0;
    sluice_engine_options options = options_of(&s);
    options.outputs = STEP;
    if (on_host) {
        char *text = describe_plan(model, &options, SLUICE_JSON);
        json_error_t why;
        json_t *plan = json_loads(text, 0, &why);
        const json_int_t bytes = json_integer_value(json_object_get(plan, "host_weights_bytes"));
        assert_true(bytes > 0);
        options.expert_cache = (uint64_t)bytes * SLOTS / ALL_EXPERTS;
        json_decref(plan);
        sluice_free(text);
    }
    return options;
}

static layer_counts counts_of(sluice_engine *engine) {
    layer_counts counts = {.count = 0};
    assert_int_equal(sluice_engine_get_expert_counters(engine, take_layer, &counts), 2);
    for (int32_t i = 0; i < counts.count; i++) {
        assert_int_equal(counts.layers[i].at_hand, SLOTS);
        assert_int_equal(counts.layers[i].streamed_bytes, 0);
    }
    return counts;
}

/* A step of STEP rows, all of which have outputs. */
static layer_counts one_step(sluice_engine *engine, int32_t start) {
    int32_t prompt[STEP];
    fill_prompt(prompt, STEP, start);
    const sluice_request_options options = {
        .size = sizeof options, .tokens = prompt, .token_count = STEP, .logits = SLUICE_LOGITS_ALL};
    sluice_sequence *sequence = open_sequence(engine);
    collected got = {0};
    sluice_counters before = {.size = sizeof before}, after = before;
    sluice_engine_get_counters(engine, &before);
    collect(submit(sequence, &options), &got);
    sluice_engine_get_counters(engine, &after);
    assert_int_equal(after.steps, before.steps + 1);
    sluice_sequence_release(sequence);
    return counts_of(engine);
}

/* The same step again finds as many of its experts as there are slots, and brings the others; bytes are those
 * of experts that were not there. Another step's experts do not put out those that were used again. */
static void more_experts_than_slots(void **state) {
    (void)state;
    enum { AGAIN = 3 };
    char file[64];
    snprintf(file, sizeof file, "expert-stats-%d.json", (int)getpid());
    sluice_model *model = make_model_of_experts();
    sluice_engine_options options = options_of_experts(model, true);
    options.no_graphs = true; /* a step that is captured may run twice */
    sluice_engine *engine = open_engine(model, &options);
    sluice_error error;
    layer_counts counts = one_step(engine, 0);
    uint64_t distinct[2] = {0, 0}, expert_bytes[2];
    must(sluice_engine_write_expert_stats(engine, file, false, &error), &error, "expert stats");
    for (int32_t l = 0; l < 2; l++) {
        uint64_t chosen[EXPERTS], sum = 0;
        assert_int_equal(read_layer(file, l, chosen), ALL_EXPERTS);
        for (int32_t e = 0; e < ALL_EXPERTS; e++) {
            distinct[l] += chosen[e] > 0;
            sum += chosen[e];
        }
        assert_int_equal(sum, 2 * STEP);
        assert_true(distinct[l] > SLOTS && distinct[l] < ALL_EXPERTS);
        assert_int_equal(counts.layers[l].hits + counts.layers[l].promotions, 0);
        assert_int_equal(counts.layers[l].misses, distinct[l]);
        expert_bytes[l] = counts.layers[l].fetched_bytes / distinct[l];
        assert_true(expert_bytes[l] > 0);
    }
    for (uint64_t n = 1; n <= AGAIN; n++) {
        counts = one_step(engine, 0);
        for (int32_t l = 0; l < 2; l++) {
            const sluice_expert_counters *layer = &counts.layers[l];
            assert_int_equal(layer->hits, n * SLOTS);
            assert_int_equal(layer->misses, distinct[l] + n * (distinct[l] - SLOTS));
            assert_int_equal(layer->promotions, SLOTS + (n - 1) * (SLOTS - MOST_PROTECTED));
            assert_int_equal(layer->fetched_bytes, layer->misses * expert_bytes[l]);
        }
    }
    for (int32_t start = 11; start < 90; start += 20) {
        const layer_counts others = one_step(engine, start);
        counts = one_step(engine, 0);
        for (int32_t l = 0; l < 2; l++) {
            const sluice_expert_counters *before = &others.layers[l], *after = &counts.layers[l];
            assert_int_equal(after->hits - before->hits + after->misses - before->misses, distinct[l]);
            assert_true(after->hits - before->hits >= MOST_PROTECTED);
        }
        one_step(engine, 0); /* which finds all four again */
    }
    remove(file);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* The tokens of all sequences, one by one or together. */
static void generate_all(sluice_engine *engine, bool together, int32_t (*tokens)[FEW_TOKENS]) {
    const setting s = {.temperature = 0};
    int32_t prompts[TOGETHER][STEP];
    sluice_sequence *sequences[TOGETHER];
    sluice_request *requests[TOGETHER];
    for (int i = 0; i < 2 * TOGETHER; i++) {
        const int it = together ? i % TOGETHER : i / 2;
        if (together ? i < TOGETHER : i % 2 == 0) {
            fill_prompt(prompts[it], STEP, 5 * it);
            sluice_request_options request = request_of(&s, prompts[it]);
            request.token_count = STEP;
            request.generate = FEW_TOKENS;
            sequences[it] = open_sequence(engine);
            requests[it] = submit(sequences[it], &request);
        } else {
            collected got = {.tokens = tokens[it]};
            assert_int_equal(collect(requests[it], &got), FEW_TOKENS);
            sluice_sequence_release(sequences[it]);
        }
    }
}

/* Together the sequences have the tokens that each has alone with all experts on the device, and no step
 * brings all of them. */
static void several_sequences_fetch_what_they_chose(void **state) {
    (void)state;
    sluice_model *model = make_model_of_experts();
    int32_t alone[TOGETHER][FEW_TOKENS], tokens[TOGETHER][FEW_TOKENS];
    sluice_engine_options options = options_of_experts(model, false);
    sluice_engine *engine = open_engine(model, &options);
    generate_all(engine, false, alone);
    sluice_engine_destroy(engine);
    options = options_of_experts(model, true);
    engine = open_engine(model, &options);
    generate_all(engine, true, tokens);
    sluice_counters all = {.size = sizeof all};
    sluice_engine_get_counters(engine, &all);
    assert_int_equal(all.failed_captures, 0);
    const layer_counts counts = counts_of(engine);
    for (int32_t l = 0; l < counts.count; l++) {
        assert_true(counts.layers[l].hits > 0 && counts.layers[l].misses > 0);
    }
    sluice_engine_destroy(engine);
    assert_memory_equal(tokens, alone, sizeof tokens);
    sluice_model_release(model);
}

/* ---- what auto chooses ---- */

static double seconds_of(const json_t *place, const char *key) {
    return json_number_value(json_object_get(json_object_get(place, "estimate"), key));
}

/* The text ends with the place that was taken, and says why. */
static void check_text(sluice_model *model, const sluice_engine_options *options) {
    static const char *const WORDS[] = {
        "tried       auto: plan: needs ", "placed on   ", " ms a token, ",
        " ms a prompt of 512\n",          "chosen for  ", "speeds      cpu: memory ",
        "speeds      gpu: memory "};
    char *text = describe_plan(model, options, SLUICE_TEXT);
    const char *at = text;
    for (size_t w = 0; w < sizeof WORDS / sizeof *WORDS; w++) {
        at = strstr(at, WORDS[w]);
        if (!at) {
            fail_msg("the plan lacks \"%s\", or has it too early:\n%s", WORDS[w], text);
            break;
        }
    }
    sluice_free(text);
}

/* What was tried, without all GPUs together, which a machine may have. The caller releases it. */
static json_t *places_of(const json_t *plan) {
    json_t *kept = json_array(), *place;
    size_t i;
    json_array_foreach(json_object_get(plan, "places"), i, place) {
        if (strncmp(json_string_value(json_object_get(place, "devices")), "cuda:0+", 7) != 0) {
            json_array_append(kept, place);
        }
    }
    return kept;
}

/* Of a model without room on the GPU each place was tried, in this order; the first was taken that takes at
 * most a tenth longer than the shortest. How fast this machine is, is nobody's business here. */
static void check_choice(sluice_model *model, const sluice_engine_options *options, const char *fetching) {
    const char *const names[] = {"auto", fetching, "cuda+cpu", "cpu"};
    char *text = describe_plan(model, options, SLUICE_JSON);
    json_t *plan = json_loads(text, 0, NULL);
    json_t *places = places_of(plan);
    const json_t *place;
    double least = 0;
    int taken = -1, first = -1;
    size_t i;
    sluice_free(text);
    assert_int_equal(json_array_size(places), sizeof names / sizeof *names);
    json_array_foreach(places, i, place) {
        const double seconds = seconds_of(place, "request_seconds");
        assert_string_equal(json_string_value(json_object_get(place, "devices")), names[i]);
        if (json_is_true(json_object_get(place, "taken"))) {
            assert_int_equal(taken, -1);
            taken = (int)i;
        }
        if (seconds > 0) {
            const double sum = seconds_of(place, "prompt_seconds") + 128 * seconds_of(place, "token_seconds");
            assert_true(seconds > 0.999 * sum && seconds < 1.001 * sum);
            assert_true(seconds_of(place, "long_prompt_token_seconds") > 0);
            least = least > 0 && least < seconds ? least : seconds;
        }
    }
    json_array_foreach(places, i, place) {
        const double seconds = seconds_of(place, "request_seconds");
        first = first < 0 && seconds > 0 && seconds <= 1.1 * least ? (int)i : first;
    }
    assert_true(seconds_of(json_array_get(places, 0), "request_seconds") == 0);
    assert_true(seconds_of(json_array_get(places, 1), "request_seconds") > 0);
    assert_true(seconds_of(json_array_get(places, 2), "request_seconds") > 0);
    assert_int_equal(taken, first);
    const json_t *gpu = json_object_get(json_object_get(plan, "speeds"), "gpu");
    assert_true(json_number_value(json_object_get(gpu, "bus_bytes")) > 0);
    assert_true(json_number_value(json_object_get(gpu, "border_seconds")) > 0);
    json_decref(places);
    json_decref(plan);
    check_text(model, options);
}

/* Calls of CUDA that fail while its speeds are measured leave a choice, by assumptions. Measuring is the last
 * that a plan does. */
static void check_choice_without_speeds(sluice_model *model, const sluice_engine_options *options) {
    enum { LAST = 72, STEP = 36 };
    bool bus_assumed = false;
    uint64_t calls = call_count();
    sluice_free(describe_plan(model, options, SLUICE_JSON));
    calls = call_count() - calls;
    assert_true(calls > LAST);
    const uint64_t live = live_count();
    for (uint64_t back = 0; back <= LAST; back += STEP) {
        fail_at(calls - back);
        char *text = describe_plan(model, options, SLUICE_JSON);
        json_t *plan = json_loads(text, 0, NULL);
        json_t *places = places_of(plan);
        assert_int_equal(json_array_size(places), 4);
        json_decref(places);
        const json_t *gpu = json_object_get(json_object_get(plan, "speeds"), "gpu");
        bus_assumed |= json_number_value(json_object_get(gpu, "bus_bytes")) == 12e9;
        json_decref(plan);
        sluice_free(text);
        assert_int_equal(live_count(), live);
        fail_at(0);
    }
    assert_true(bus_assumed);
}

/* A second GPU has no room for anything. */
static void leave_one_gpu(sluice_engine_options *options) {
    snprintf(options->memory_limits[0].device, sizeof options->memory_limits[0].device, "cuda:1");
    options->memory_limits[0].bytes = 4096;
}

/* With device auto, all on the GPU where there is room, and else what takes the least by estimates. Experts
 * in host memory give the tokens of experts on the device. */
static void auto_fetches_what_does_not_fit(void **state) {
    (void)state;
    sluice_model *model = open_model(FIXTURES "qwen3moe");
    const setting s = {.device = "auto", .kv_type = "f16", .chunk = 32, .sequences = 1, .any_class = true};
    sluice_engine_options options = options_of(&s);
    int32_t resident[GENERATE], tokens[GENERATE];
    sluice_counters counters = {.size = sizeof counters}, steady = counters;
    sluice_engine *engine = open_engine(model, &options);
    generate(engine, &s, 0, resident, &steady);
    sluice_engine_get_counters(engine, &counters);
    sluice_engine_destroy(engine);
    assert_int_equal(counters.streamed_bytes + counters.fetched_bytes, 0);
    options.memory_limit = counters.memory - 4096;
    leave_one_gpu(&options);
    check_choice(model, &options, "cuda, fetching experts");
    check_choice_without_speeds(model, &options);
    engine = open_engine(model, &options);
    generate(engine, &s, 0, tokens, &steady);
    sluice_engine_destroy(engine);
    options.device = "cuda";
    engine = open_engine(model, &options);
    generate(engine, &s, 0, tokens, &steady);
    sluice_engine_get_counters(engine, &counters);
    sluice_engine_destroy(engine);
    compare("qwen3moe", "experts that do not fit against experts on the device", resident, tokens);
    assert_true(counters.streamed_bytes + counters.fetched_bytes > 0);
    sluice_model_release(model);
}

static bool plan_says(sluice_model *model, const sluice_engine_options *options, const char *what) {
    char *text = describe_plan(model, options, SLUICE_TEXT);
    const bool found = strstr(text, what) != NULL;
    sluice_free(text);
    return found;
}

/* What does not fit one GPU is on all there are. */
static void auto_takes_all_gpus(void **state) {
    (void)state;
    sluice_model *model = open_model(FIXTURES "qwen3");
    setting s = {.device = "cuda", .kv_type = "f16", .chunk = 32, .sequences = 1, .any_class = true};
    sluice_engine_options options = options_of(&s);
    int32_t resident[GENERATE], tokens[GENERATE];
    sluice_counters counters = {.size = sizeof counters}, steady = counters;
    sluice_engine *engine = open_engine(model, &options);
    generate(engine, &s, 0, resident, &steady);
    sluice_engine_get_counters(engine, &counters);
    sluice_engine_destroy(engine);
    options.device = "auto";
    options.memory_limit = counters.memory - 4096;
    char *text = describe_plan(model, &options, SLUICE_JSON);
    const bool several = strstr(text, "cuda:0+cuda:1") != NULL;
    sluice_free(text);
    if (several) {
        assert_true(plan_says(model, &options, "placed on   cuda:0+cuda:1"));
        engine = open_engine(model, &options);
        generate(engine, &s, 0, tokens, &steady);
        sluice_engine_get_counters(engine, &counters);
        sluice_engine_destroy(engine);
        compare("qwen3", "layers on two GPUs against one", resident, tokens);
        assert_int_equal(counters.failed_captures, 0);
        /* Two that are named have layers each, also where scripts ask for all layers on the GPU. */
        options.memory_limit = 0;
        options.device = "cuda:0,cuda:1";
        options.gpu_layers = 99;
        assert_true(plan_says(model, &options, "\ncuda:1 weights"));
    } else {
        printf("skipped: there is one GPU\n");
    }
    sluice_model_release(model);
}

/* ---- layers in host memory ---- */

typedef struct streamed_layers {
    int32_t count;
    uint64_t least, most, sum; /* bytes of a layer, of all */
} streamed_layers;

static void take_streamed(void *context, const sluice_expert_counters *counters) {
    streamed_layers *layers = context;
    const uint64_t bytes = counters->streamed_bytes;
    assert_int_equal(counters->experts + counters->at_hand, 0);
    assert_int_equal(counters->hits + counters->misses + counters->promotions + counters->fetched_bytes, 0);
    layers->least = layers->count == 0 || bytes < layers->least ? bytes : layers->least;
    layers->most = bytes > layers->most ? bytes : layers->most;
    layers->sum += bytes;
    layers->count++;
}

/* The tokens of an engine whose layers' weights are all on the device; each step brings those of three of
 * four layers once. */
static void layers_from_host_memory(void **state) {
    (void)state;
    enum { KEPT = 1, STREAMED = 3 };
    sluice_model *model = open_model(FIXTURES "gemma3");
    int32_t resident[GENERATE], tokens[GENERATE];
    uint64_t memory = 0;
    for (int eager = 0; eager < 2; eager++) {
        sluice_counters counters = {.size = sizeof counters}, steady = counters;
        setting s = {.device = "cuda", .kv_type = "f16", .chunk = 32, .sequences = 1, .any_class = true};
        s.no_graphs = eager;
        run(model, &s, resident, &steady);
        assert_int_equal(steady.streamed_bytes + steady.fetched_bytes, 0);
        s.gpu_layers = KEPT;
        const sluice_engine_options options = options_of(&s);
        sluice_engine *engine = open_engine(model, &options);
        generate(engine, &s, 0, tokens, &steady);
        streamed_layers layers = {0};
        assert_int_equal(sluice_engine_get_expert_counters(engine, take_streamed, &layers), STREAMED);
        sluice_engine_get_counters(engine, &counters);
        sluice_error error;
        assert_int_equal(sluice_engine_write_expert_stats(engine, "no-experts.json", true, &error),
                         SLUICE_ERR_UNSUPPORTED);
        sluice_engine_destroy(engine);
        compare("gemma3", "layers in host memory against layers on the device", resident, tokens);
        assert_int_equal(counters.failed_captures, 0);
        assert_int_equal(steady.device_allocations + steady.synchronisations, 0);
        /* The fixture's layers are alike. */
        assert_int_equal(layers.count, STREAMED);
        assert_true(layers.least == layers.most && layers.sum == counters.streamed_bytes);
        assert_int_equal(counters.streamed_bytes % (STREAMED * counters.steps), 0);
        const uint64_t layer = counters.streamed_bytes / (STREAMED * counters.steps);
        printf("%llu bytes of a layer in each step\n", (unsigned long long)layer);
        char host[64];
        snprintf(host, sizeof host, "weights of %d layers in host memory", STREAMED);
        assert_true(plan_says(model, &options, host));
        memory = counters.memory;
    }
    /* A GPU with so much room takes that by itself; with device auto it is one of those that are tried. The
     * CPU has layers where their number is given. */
    setting s = {.device = "cuda", .kv_type = "f16", .chunk = 32, .sequences = 1, .any_class = true};
    sluice_engine_options options = options_of(&s);
    options.memory_limit = memory;
    assert_true(plan_says(model, &options, "weights of 3 layers in host memory"));
    sluice_counters counters = {.size = sizeof counters}, steady = counters;
    sluice_engine *engine = open_engine(model, &options);
    generate(engine, &s, 0, tokens, &steady);
    sluice_engine_get_counters(engine, &counters);
    sluice_engine_destroy(engine);
    compare("gemma3", "layers that did not fit against layers on the device", resident, tokens);
    assert_true(counters.streamed_bytes > 0 && counters.memory <= memory);
    options.device = "auto";
    leave_one_gpu(&options);
    check_choice(model, &options, "cuda, fetching weights");
    options.memory_limit = 0;
    options.gpu_layers = KEPT;
    assert_false(plan_says(model, &options, "host weights"));
    assert_true(plan_says(model, &options, "cpu    weights"));
    sluice_model_release(model);
}

/* The number behind `"key": ` after *at, which moves behind it. */
static double number_after(const char **at, const char *key) {
    *at = strstr(*at, key);
    if (!*at) {
        fail_msg("the profile has no %s", key);
        return 0;
    }
    *at += strlen(key) + 2;
    return strtod(*at, NULL);
}

/* All ops are timed, those with experts among them; groups together take about as long as the step. */
static void profile_of_a_step(void **state) {
    sluice_model *model = open_model(*state);
    const setting s = {.device = "cuda", .kv_type = "f16", .chunk = 96, .sequences = 2};
    sluice_engine_options options = options_of(&s);
    sluice_engine *engine = open_engine(model, &options);
    sluice_error error;
    char *text;
    assert_int_equal(sluice_engine_profile(engine, SLUICE_JSON, &text, &error), SLUICE_ERR_INVALID);
    int32_t tokens[GENERATE];
    sluice_counters counters = {.size = sizeof counters};
    generate(engine, &s, 0, tokens, &counters);
    must(sluice_engine_profile(engine, SLUICE_JSON, &text, &error), &error, "profile");
    const char *at = text;
    assert_int_equal(number_after(&at, "\"rows\""), 1);
    const double ops = number_after(&at, "\"ops\""), whole = number_after(&at, "\"step_seconds\"");
    assert_true(number_after(&at, "\"read_bytes_per_second\"") > 0);
    double counted = 0, sum = 0;
    while (strstr(at, "\"calls\"")) {
        const double calls = number_after(&at, "\"calls\""), here = number_after(&at, "\"ops\"");
        assert_true(calls >= 1 && here >= calls);
        counted += here;
        const double seconds = number_after(&at, "\"seconds\"");
        assert_true(seconds > 0);
        sum += seconds;
    }
    assert_int_equal(counted, ops);
    printf("%s: %.0f ops, %.1f us in groups, %.1f us as a step\n", (const char *)*state, ops, 1e6 * sum,
           1e6 * whole);
    assert_true(sum > 0.3 * whole && sum < 5 * whole);
    sluice_free(text);
    sluice_engine_destroy(engine);
    options.no_prefix_reuse = false;
    engine = open_engine(model, &options);
    generate(engine, &s, 0, tokens, &counters);
    assert_int_equal(sluice_engine_profile(engine, SLUICE_JSON, &text, &error), SLUICE_ERR_INVALID);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* Steps that fill their bucket in part, of the sizes where kernels for many rows work on all of the bucket:
 * the captured list and the eager one agree, whatever lies in the rows that the step does not have. */
static void buckets_filled_in_part(void **state) {
    (void)state;
    enum { MOST = 700 };
    static const int32_t lengths[] = {MOST, 110, 530, 300, 110, 530, 300, MOST};
    sluice_model *model = open_model(SLUICE_SOURCE_DIR "/models/mini.gguf");
    const sluice_engine_options options = {.size = sizeof options,
                                           .device = "cuda",
                                           .chunk = 1024,
                                           .context = 1024,
                                           .sequences = 1,
                                           .no_prefix_reuse = true};
    sluice_engine *engine = open_engine(model, &options);
    int32_t prompt[MOST], first[8];
    fill_prompt(prompt, MOST, 5);
    for (int i = 0; i < 8; i++) {
        sluice_sequence *sequence = open_sequence(engine);
        const sluice_request_options request = {.size = sizeof request,
                                                .tokens = prompt,
                                                .token_count = (size_t)lengths[i],
                                                .generate = 1,
                                                .ignore_eos = true,
                                                .no_text = true};
        collected got = {.tokens = &first[i]};
        assert_int_equal(collect(submit(sequence, &request), &got), 1);
        sluice_sequence_release(sequence);
    }
    for (int i = 4; i < 8; i++) { /* replayed by then */
        assert_int_equal(first[i], first[i == 7 ? 0 : i - 3]);
    }
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    printf("mini: %llu buckets captured, %llu failed, %llu of %llu steps replayed\n",
           (unsigned long long)counters.captured_buckets, (unsigned long long)counters.failed_captures,
           (unsigned long long)counters.replayed_steps, (unsigned long long)counters.steps);
    assert_int_equal(counters.failed_captures, 0);
    assert_true(counters.replayed_steps >= 4);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* ---- faults ---- */

/* Makes an engine and generates six tokens in three steps or more. 0, or the first error. *after: what a
 * second request on the same engine said. */
static int live(sluice_model *model, const setting *s, int32_t *tokens, int *after, sluice_error *error) {
    const sluice_engine_options options = options_of(s);
    sluice_engine *engine = NULL;
    int result = sluice_engine_create(model, &options, &engine, error);
    int32_t prompt[PROMPT];
    fill_prompt(prompt, PROMPT, 0);
    *after = 0;
    for (int round = 0; round < 2 && engine; round++) {
        sluice_sequence *sequence = NULL;
        sluice_request *request = NULL;
        sluice_error why = {0};
        sluice_request_options read = request_of(s, prompt);
        read.token_count = 40;
        read.generate = 6;
        sluice_event event = {.size = sizeof event};
        int status = sluice_sequence_create(engine, &sequence, &why);
        status = status ? status : sluice_submit(sequence, &read, &request, &why);
        size_t count = 0;
        while (status == 0 && event.kind != SLUICE_EVENT_DONE) {
            status = sluice_poll(request, 20000, &event, &why);
            if (status == 0 && event.kind == SLUICE_EVENT_NONE) {
                fail_msg("a step hangs");
            }
            if (event.kind == SLUICE_EVENT_TOKEN && round == 0) {
                tokens[count++] = event.token;
            }
        }
        if (status == 0 && event.finish == SLUICE_FINISH_ERROR) {
            why = event.error;
            status = why.code;
        }
        sluice_request_release(request);
        sluice_sequence_release(sequence);
        if (round == 0) {
            result = status;
            *error = status ? why : *error;
        } else {
            *after = status;
        }
    }
    sluice_engine_destroy(engine);
    return result;
}

typedef struct fault_case {
    const char *path;
    setting setting;
    uint64_t stride; /* of the calls that fail */
} fault_case;

static const fault_case few_rows = {FIXTURES "qwen3", {.device = "cuda", .kv_type = "f16", .chunk = 32}, 1};
/* With buckets that cuBLASLt serves; an engine of this model takes longer. */
static const fault_case many_rows = {SLUICE_SOURCE_DIR "/models/mini.gguf",
                                     {.device = "cuda", .kv_type = "f16", .chunk = 128, .any_class = true},
                                     13};

/* With experts in host memory. */
static const fault_case fetched = {
    FIXTURES "qwen3moe",
    {.device = "cuda", .kv_type = "f16", .chunk = 32, .sequences = 1, .host_experts = 2, .expert_cache = 1},
    5};

/* With layers in host memory. */
static const fault_case streamed = {
    FIXTURES "gemma3", {.device = "cuda", .kv_type = "f16", .chunk = 32, .sequences = 1, .gpu_layers = 1}, 5};

static void every_call_may_fail(void **state) {
    const fault_case *test = *state;
    const setting *s = &test->setting;
    sluice_model *model = open_model(test->path);
    int32_t expected[6], tokens[6];
    int after;
    sluice_error error = {0};
    must(live(model, s, expected, &after, &error), &error, "first run");
    const uint64_t live_before = live_count(), calls_before = call_count();
    must(live(model, s, expected, &after, &error), &error, "second run");
    const uint64_t calls = call_count() - calls_before;
    uint64_t failed = 0, eager = 0;
    for (uint64_t n = 1; n <= calls; n += test->stride) {
        error = (sluice_error){0};
        fail_at(n);
        const int result = live(model, s, tokens, &after, &error);
        fail_at(0);
        if (result) {
            failed++;
            if (error.message[0] == 0 || strchr(error.message, '\n') || result != error.code) {
                fail_msg("call %llu: code %d, message '%s'", (unsigned long long)n, result, error.message);
            }
        } else {
            /* A capture that fails costs speed only. */
            eager++;
            assert_memory_equal(tokens, expected, sizeof tokens);
        }
        if (live_count() != live_before) {
            fail_msg("call %llu: %llu allocations leak", (unsigned long long)n,
                     (unsigned long long)(live_count() - live_before));
        }
    }
    printf("%llu calls: %llu failures reported, %llu absorbed\n", (unsigned long long)calls,
           (unsigned long long)failed, (unsigned long long)eager);
    assert_true(failed > 0);
    must(live(model, s, tokens, &after, &error), &error, "after all failures");
    assert_memory_equal(tokens, expected, sizeof tokens);
    sluice_model_release(model);
}

static void every_call_may_fail_while_fetching(void **state) {
    (void)state;
    void *test = (void *)(size_t)&fetched;
    every_call_may_fail(&test);
    test = (void *)(size_t)&streamed;
    every_call_may_fail(&test);
}

/* After a fault in a step the engine is over: the next request fails at once, it does not hang. */
static void a_fault_is_final(void **state) {
    (void)state;
    const setting *s = &few_rows.setting;
    sluice_model *model = open_model(FIXTURES "qwen3");
    int32_t tokens[6];
    int after;
    sluice_error error = {0};
    const uint64_t start = call_count();
    must(live(model, s, tokens, &after, &error), &error, "first run");
    const uint64_t calls = call_count() - start;
    fail_at(calls - 2); /* in the second request's last step */
    assert_int_equal(live(model, s, tokens, &after, &error), 0);
    assert_int_equal(after, SLUICE_ERR_DEVICE);
    fail_at(calls - calls / 8); /* in the first request, or early in the second */
    const int result = live(model, s, tokens, &after, &error);
    fail_at(0);
    assert_true(result == SLUICE_ERR_DEVICE || after == SLUICE_ERR_DEVICE);
    assert_true(result == 0 || after != 0);
    sluice_model_release(model);
}

int main(int argc, char **argv) {
    sluice_error error;
    sluice_model *model = open_model(FIXTURES "qwen3");
    const setting cuda = {.device = "cuda", .kv_type = "f16"};
    const sluice_engine_options options = options_of(&cuda);
    sluice_engine *engine;
    if (!find_hooks()) {
        return 77;
    }
    if (sluice_engine_create(model, &options, &engine, &error)) {
        printf("skipped: %s\n", error.message);
        return 77;
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
    /* test_cuda [--only PATTERN] [MODEL]: a pattern of the tests' names, as cmocka takes it. */
    const bool only = argc > 2 && strcmp(argv[1], "--only") == 0;
    if (only) {
        cmocka_set_test_filter(argv[2]);
    }
    extra_model = argc > (only ? 3 : 1) ? argv[only ? 3 : 1] : NULL;
    static const char *const families[] = {FIXTURES "llama", FIXTURES "mistral",  FIXTURES "qwen2",
                                           FIXTURES "qwen3", FIXTURES "qwen3moe", FIXTURES "qwen3_5",
                                           FIXTURES "gemma3"};
    enum { FAMILIES = sizeof families / sizeof *families };
    struct CMUnitTest tests[FAMILIES + 16];
    size_t count = 0;
    for (; count < FAMILIES; count++) {
        tests[count] = (struct CMUnitTest){families[count], same_tokens_as_the_cpu, NULL, NULL,
                                           (void *)(size_t)families[count]};
    }
    if (extra_model) {
        tests[count++] =
            (struct CMUnitTest){extra_model, same_tokens_as_the_cpu, NULL, NULL, (void *)(size_t)extra_model};
    }
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(sequences_together);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test_prestate(profile_of_a_step, FIXTURES "qwen3moe");
    tests[count++] = (struct CMUnitTest)cmocka_unit_test_prestate(profile_of_a_step, FIXTURES "qwen3");
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(buckets_filled_in_part);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test_prestate(every_call_may_fail, (void *)&few_rows);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test_prestate(every_call_may_fail, (void *)&many_rows);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(experts_from_host_memory);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(experts_begin_where_a_file_says);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(more_experts_than_slots);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(several_sequences_fetch_what_they_chose);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(auto_fetches_what_does_not_fit);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(auto_takes_all_gpus);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(layers_from_host_memory);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(every_call_may_fail_while_fetching);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(a_fault_is_final);
    return _cmocka_run_group_tests("cuda", tests, count, NULL, NULL);
}
