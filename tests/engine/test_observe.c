/* Engines that observe: what they add up against the definition in double, whatever the steps and threads,
 * and importance matrices written of it. */
#include "support/engine.h"

#include "format/gguf.h"
#include "model/importance.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#define DENSE SLUICE_SOURCE_DIR "/models/mini.gguf"
#define MIXTURE SLUICE_SOURCE_DIR "/models/mini-moe.gguf"
#define FOLDER SLUICE_SOURCE_DIR "/tests/logits/fixtures/llama"
#define OUT SLUICE_BINARY_DIR "/test_observe.gguf"
#define COPY SLUICE_BINARY_DIR "/test_observe-model.gguf"

enum { TOKENS = 70, VOCABULARY = 4096, MATRICES = 128 };

typedef struct seen {
    char name[64];
    int32_t columns, experts;
    double *sums, *counts;
} seen;

typedef struct gathered {
    seen all[MATRICES];
    int count;
} gathered;

static void take(void *context, const sluice_observation *o) {
    gathered *g = context;
    const size_t values = (size_t)o->columns * (size_t)o->experts;
    assert_true(g->count < MATRICES);
    seen *s = &g->all[g->count++];
    snprintf(s->name, sizeof s->name, "%s", o->name);
    s->columns = o->columns;
    s->experts = o->experts;
    s->sums = malloc(values * sizeof *s->sums);
    s->counts = malloc((size_t)o->experts * sizeof *s->counts);
    memcpy(s->sums, o->sums, values * sizeof *s->sums);
    memcpy(s->counts, o->counts, (size_t)o->experts * sizeof *s->counts);
}

static void drop(gathered *g) {
    for (int i = 0; i < g->count; i++) {
        free(g->all[i].sums);
        free(g->all[i].counts);
    }
}

static const seen *find(const gathered *g, const char *name) {
    for (int i = 0; i < g->count; i++) {
        if (strcmp(g->all[i].name, name) == 0) {
            return &g->all[i];
        }
    }
    fail_msg("nothing was observed of %s", name);
    return NULL;
}

static double all_rows(const seen *s) {
    double rows = 0;
    for (int32_t i = 0; i < s->experts; i++) {
        rows += s->counts[i];
    }
    return rows;
}

static void make_tokens(int32_t tokens[TOKENS]) {
    uint32_t state = 12345;
    for (int i = 0; i < TOKENS; i++) {
        state = state * 1664525u + 1013904223u;
        tokens[i] = (int32_t)(state >> 16) % VOCABULARY;
    }
}

typedef struct how {
    int32_t chunk, threads;
    sluice_logits logits;
} how;

/* An engine that has read the tokens as two sequences. */
static sluice_engine *run(sluice_model *model, how how) {
    int32_t tokens[TOKENS];
    const sluice_engine_options options = {.size = sizeof options,
                                           .device = "cpu",
                                           .threads = how.threads,
                                           .chunk = how.chunk,
                                           .sequences = 1,
                                           .context = 128,
                                           .outputs = 16,
                                           .no_prefix_reuse = true,
                                           .observe = true};
    sluice_engine *engine = open_engine(model, &options);
    make_tokens(tokens);
    for (int part = 0; part < 2; part++) {
        const int first = part ? 30 : 0, last = part ? TOKENS : 30;
        const sluice_request_options request = {.size = sizeof request,
                                                .tokens = tokens + first,
                                                .token_count = (size_t)(last - first),
                                                .no_text = true,
                                                .logits = how.logits};
        sluice_sequence *sequence = open_sequence(engine);
        collected none = {0};
        collect(submit(sequence, &request), &none);
        sluice_sequence_release(sequence);
    }
    return engine;
}

static void gather(sluice_engine *engine, gathered *g) {
    sluice_error error;
    g->count = 0;
    must(sluice_engine_get_observations(engine, take, g, &error), &error, "observations");
}

static void gather_of(const char *path, how how, gathered *g) {
    sluice_model *model = open_model(path);
    sluice_engine *engine = run(model, how);
    gather(engine, g);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* ---- what is added up */

static float *decoded(const sl_gguf *gguf, const char *name) {
    const sl_tensor *tensor = sl_gguf_tensor(gguf, name);
    assert_non_null(tensor);
    float *values = malloc(tensor->elements * sizeof *values);
    sl_qtype_get(tensor->type)->decode(tensor->data, values, tensor->elements);
    return values;
}

/* Qwen3's first layer: q, k and v read the embedding over its root mean square, times a weight. */
static void first_layer_reads_the_norm_of_the_embedding(void **state) {
    (void)state;
    enum { WIDTH = 512 };
    static const char *const names[] = {"blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"};
    static double expected[WIDTH];
    sl_gguf *gguf;
    sl_error error;
    int32_t tokens[TOKENS];
    gathered g;
    assert_int_equal(sl_gguf_open(DENSE, &gguf, &error), 0);
    float *table = decoded(gguf, "token_embd.weight"), *weight = decoded(gguf, "blk.0.attn_norm.weight");
    make_tokens(tokens);
    for (int t = 0; t < TOKENS; t++) {
        const float *row = table + (size_t)tokens[t] * WIDTH;
        double squares = 0;
        for (int i = 0; i < WIDTH; i++) {
            squares += (double)row[i] * row[i];
        }
        for (int i = 0; i < WIDTH; i++) {
            const double y = row[i] / sqrt(squares / WIDTH + 1e-6) * weight[i];
            expected[i] += y * y;
        }
    }
    gather_of(DENSE, (how){0}, &g);
    for (int n = 0; n < 3; n++) {
        const seen *s = find(&g, names[n]);
        assert_int_equal(s->columns, WIDTH);
        assert_int_equal(s->experts, 1);
        assert_true(s->counts[0] == TOKENS);
        for (int i = 0; i < WIDTH; i++) {
            assert_true(fabs(s->sums[i] - expected[i]) <= 1e-4 * expected[i]);
        }
    }
    drop(&g);
    free(table);
    free(weight);
    sl_gguf_close(gguf);
}

/* Six layers of q, k, v, output, gate, up and down, and the head, which here is the embedding. */
static void every_matrix_is_seen_once(void **state) {
    (void)state;
    gathered g;
    gather_of(DENSE, (how){0}, &g);
    assert_int_equal(g.count, 6 * 7 + 1);
    for (int i = 0; i < g.count; i++) {
        const bool head = strcmp(g.all[i].name, "token_embd.weight") == 0;
        assert_true(g.all[i].counts[0] == (head ? 0 : TOKENS));
        assert_int_equal(g.all[i].columns, strstr(g.all[i].name, "ffn_down") ? 768 : 512);
    }
    drop(&g);
    gather_of(DENSE, (how){.chunk = 16, .logits = SLUICE_LOGITS_ALL}, &g);
    assert_true(find(&g, "token_embd.weight")->counts[0] == TOKENS);
    drop(&g);
}

/* Each row goes to 4 of 16 experts, and the router reads what they read. */
static void experts_are_seen_apart(void **state) {
    (void)state;
    gathered g;
    gather_of(MIXTURE, (how){0}, &g);
    for (int layer = 0; layer < 4; layer++) {
        char name[64];
        const seen *s[4];
        static const char *const parts[] = {"gate_inp", "gate_exps", "up_exps", "down_exps"};
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof name, "blk.%d.ffn_%s.weight", layer, parts[i]);
            s[i] = find(&g, name);
            assert_true(all_rows(s[i]) == (i ? 4.0 * TOKENS : TOKENS));
            assert_int_equal(s[i]->experts, i ? 16 : 1);
        }
        assert_memory_equal(s[1]->sums, s[2]->sums, sizeof(double) * 16 * (size_t)s[1]->columns);
        assert_memory_equal(s[1]->counts, s[2]->counts, sizeof(double) * 16);
        assert_memory_equal(s[1]->counts, s[3]->counts, sizeof(double) * 16);
        for (int32_t e = 0; e < 16; e++) {
            assert_true((s[1]->counts[e] > 0) == (s[1]->sums[e * s[1]->columns] > 0));
            assert_true((s[3]->counts[e] > 0) == (s[3]->sums[e * s[3]->columns] > 0));
        }
        for (int32_t i = 0; i < s[1]->columns; i++) {
            double sum = 0;
            for (int32_t e = 0; e < 16; e++) {
                sum += s[1]->sums[e * s[1]->columns + i];
            }
            assert_true(fabs(sum - 4 * s[0]->sums[i]) <= 1e-9 * sum);
        }
    }
    drop(&g);
}

static void steps_and_threads_change_nothing(void **state) {
    (void)state;
    static const char *const models[] = {DENSE, MIXTURE};
    static const how ways[] = {{.chunk = 1}, {.chunk = 7, .threads = 3}, {.threads = 2}};
    for (int m = 0; m < 2; m++) {
        gathered first, other;
        gather_of(models[m], (how){.threads = 1}, &first);
        for (int w = 0; w < 3; w++) {
            gather_of(models[m], ways[w], &other);
            assert_int_equal(first.count, other.count);
            for (int i = 0; i < first.count; i++) {
                const seen *a = &first.all[i], *b = &other.all[i];
                const size_t experts = (size_t)a->experts, columns = (size_t)a->columns;
                assert_string_equal(a->name, b->name);
                assert_memory_equal(a->counts, b->counts, experts * sizeof(double));
                assert_memory_equal(a->sums, b->sums, experts * columns * sizeof(double));
            }
            drop(&other);
        }
        drop(&first);
    }
}

/* To the bit: an engine that observes computes as others do. */
static void logits_are_those_without(void **state) {
    (void)state;
    enum { ROWS = 16 };
    static float logits[2][ROWS * VOCABULARY];
    static const char *const models[] = {DENSE, MIXTURE};
    int32_t tokens[TOKENS];
    make_tokens(tokens);
    for (int m = 0; m < 2; m++) {
        sluice_model *model = open_model(models[m]);
        for (int observe = 0; observe < 2; observe++) {
            const sluice_engine_options options = {.size = sizeof options,
                                                   .device = "cpu",
                                                   .sequences = 1,
                                                   .context = 128,
                                                   .outputs = ROWS,
                                                   .observe = observe == 1};
            const sluice_request_options request = {.size = sizeof request,
                                                    .tokens = tokens,
                                                    .token_count = ROWS,
                                                    .no_text = true,
                                                    .logits = SLUICE_LOGITS_ALL};
            sluice_engine *engine = open_engine(model, &options);
            sluice_sequence *sequence = open_sequence(engine);
            collected into = {.logits = logits[observe], .vocabulary = VOCABULARY, .room = ROWS};
            collect(submit(sequence, &request), &into);
            sluice_sequence_release(sequence);
            sluice_engine_destroy(engine);
        }
        assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
        sluice_model_release(model);
    }
}

/* ---- files */

static int write_as(sluice_engine *engine, const char *path, bool replace, sluice_error *error) {
    const sluice_importance_options options = {
        .size = sizeof options, .dataset = "text.txt", .chunks = 2, .chunk_size = 40, .replace = replace};
    return sluice_engine_write_importance(engine, path, &options, error);
}

static void check_raw(const seen *s) {
    char name[96];
    sl_gguf *gguf;
    sl_error error;
    uint64_t chunk_size;
    assert_int_equal(sl_gguf_open(OUT, &gguf, &error), 0);
    snprintf(name, sizeof name, "%s.in_sum2", s->name);
    const sl_tensor *sums = sl_gguf_tensor(gguf, name);
    snprintf(name, sizeof name, "%s.counts", s->name);
    const sl_tensor *counts = sl_gguf_tensor(gguf, name);
    assert_non_null(sums);
    assert_non_null(counts);
    assert_int_equal(sums->type, SL_QTYPE_F32);
    assert_int_equal(sums->dims[0], s->columns);
    assert_int_equal(sums->dims[1], s->experts);
    assert_int_equal(counts->dims[0], 1);
    assert_int_equal(counts->dims[1], s->experts);
    assert_int_equal(sl_gguf_u64(gguf, "imatrix.chunk_size", &chunk_size, &error), 0);
    assert_int_equal(chunk_size, 40);
    for (int32_t i = 0; i < s->experts * s->columns; i++) {
        const float *value = (const float *)(const void *)((const char *)sums->data + 4 * (size_t)i);
        assert_true(*value == (float)s->sums[i]);
    }
    sl_gguf_close(gguf);
}

/* Of a model that a failing test may write over. */
static void copy_model(void) {
    static unsigned char data[1 << 16];
    FILE *from = fopen(MIXTURE, "rb"), *to = fopen(COPY, "wb");
    assert_non_null(from);
    assert_non_null(to);
    for (size_t count; (count = fread(data, 1, sizeof data, from)) > 0;) {
        assert_int_equal(fwrite(data, 1, count, to), count);
    }
    fclose(from);
    assert_int_equal(fclose(to), 0);
}

static void a_written_file_is_read_back(void **state) {
    (void)state;
    gathered g;
    sluice_error error;
    sl_error inner;
    sl_importance importance = {0};
    copy_model();
    sluice_model *model = open_model(COPY);
    sluice_engine *engine = run(model, (how){0});
    unlink(OUT);
    gather(engine, &g);
    must(write_as(engine, OUT, false, &error), &error, "write");
    assert_int_equal(sl_importance_read(&importance, OUT, &inner), 0);
    assert_int_equal(importance.chunks, 2);
    assert_string_equal(importance.dataset, "text.txt");
    assert_int_equal(importance.count, g.count - 1);
    assert_null(sl_importance_find(&importance, "token_embd.weight")); /* the head: no row reached it */
    for (int m = 0; m < g.count; m++) {
        const seen *s = &g.all[m];
        const sl_importance_entry *entry = sl_importance_find(&importance, s->name);
        for (int32_t i = 0; entry && i < s->experts * s->columns; i++) {
            const double rows = s->counts[i / s->columns], mean = rows > 0 ? s->sums[i] / rows : 1;
            assert_true(fabs((double)entry->means[i] - mean) <= 1e-6 * mean);
        }
    }
    check_raw(find(&g, "blk.0.ffn_down_exps.weight"));
    sl_importance_free(&importance);
    drop(&g);

    assert_int_equal(write_as(engine, OUT, false, &error), SLUICE_ERR_INVALID);
    assert_non_null(strstr(error.message, "--force"));
    must(write_as(engine, OUT, true, &error), &error, "write again");
    assert_int_equal(write_as(engine, COPY, true, &error), SLUICE_ERR_INVALID);
    assert_non_null(strstr(error.message, "is the input"));
    const char *const text = OUT;
    const sluice_importance_options of_text = {
        .size = sizeof of_text, .inputs = &text, .input_count = 1, .replace = true, .dry_run = true};
    assert_int_equal(sluice_engine_write_importance(engine, OUT, &of_text, &error), SLUICE_ERR_INVALID);
    assert_non_null(strstr(error.message, "is the input"));
    sluice_engine_destroy(engine);
    sluice_model_release(model);
    unlink(OUT);
    unlink(COPY);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    gathered g = {.count = 0};
    sluice_error error;
    sluice_model *model = open_model(DENSE);
    sluice_engine_options options = {
        .size = sizeof options, .device = "cpu", .context = 128, .sequences = 1, .observe = true};
    sluice_engine *engine = open_engine(model, &options);
    assert_int_equal(write_as(engine, OUT, false, &error), SLUICE_ERR_INVALID);
    assert_non_null(strstr(error.message, "no row"));
    assert_int_not_equal(access(OUT, F_OK), 0);
    assert_int_equal(sluice_engine_get_observations(engine, NULL, NULL, &error), SLUICE_ERR_INVALID);
    assert_int_equal(sluice_engine_write_importance(engine, NULL, NULL, &error), SLUICE_ERR_INVALID);

    /* A blocked request is unfinished. */
    const int32_t tokens[] = {1, 2, 3};
    const sluice_request_options request = {
        .size = sizeof request, .tokens = tokens, .token_count = 3, .logits = SLUICE_LOGITS_ALL};
    sluice_sequence *sequence = open_sequence(engine);
    sluice_request *unfinished = submit(sequence, &request);
    assert_int_equal(sluice_engine_get_observations(engine, take, &g, &error), SLUICE_ERR_BUSY);
    sluice_request_release(unfinished);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);

    options.observe = false;
    engine = open_engine(model, &options);
    assert_int_equal(sluice_engine_get_observations(engine, take, &g, &error), SLUICE_ERR_INVALID);
    assert_non_null(strstr(error.message, "without the option"));
    sluice_engine_destroy(engine);
    sluice_model_release(model);

    options.observe = true;
    model = open_model(FOLDER);
    engine = open_engine(model, &options);
    assert_int_equal(write_as(engine, OUT, false, &error), SLUICE_ERR_UNSUPPORTED);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_layer_reads_the_norm_of_the_embedding),
        cmocka_unit_test(every_matrix_is_seen_once),
        cmocka_unit_test(experts_are_seen_apart),
        cmocka_unit_test(steps_and_threads_change_nothing),
        cmocka_unit_test(logits_are_those_without),
        cmocka_unit_test(a_written_file_is_read_back),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
