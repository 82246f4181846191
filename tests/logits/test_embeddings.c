/* Rows in front of the head, pooled. What a causal model's rows are is held to transformers by the logits of
 * the same fixtures: the head's matrix, read here from the folder, times a row must give them. */
#include "support/engine.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

static const char *const cases[] = {"llama", "qwen2", "qwen3", "qwen3-tied", "qwen3moe", "qwen3_5", "gemma3"};

typedef struct fixture {
    char folder[1024];
    int32_t tokens[512];
    size_t positions[512];
    size_t token_count, position_count, vocabulary, width;
    float *logits; /* [position_count][vocabulary] */
    float *head;   /* [vocabulary][width] */
} fixture;

static void *read_file(const char *folder, const char *name, size_t *size) {
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file) {
        fail_msg("%s is missing", path);
    }
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *data = calloc(1, *size + 1);
    assert_int_equal(fread(data, 1, *size, file), *size);
    fclose(file);
    return data;
}

/* An F32 tensor of model.safetensors; NULL when there is none of that name. */
static float *read_tensor(const char *folder, const char *name, size_t *rows, size_t *columns) {
    size_t size;
    unsigned char *data = read_file(folder, "model.safetensors", &size);
    uint64_t length;
    memcpy(&length, data, sizeof length);
    json_t *header = json_loadb((const char *)data + 8, (size_t)length, 0, NULL);
    const json_t *entry = json_object_get(header, name);
    float *values = NULL;
    if (entry) {
        const json_t *shape = json_object_get(entry, "shape");
        assert_string_equal(json_string_value(json_object_get(entry, "dtype")), "F32");
        *rows = (size_t)json_integer_value(json_array_get(shape, 0));
        *columns = (size_t)json_integer_value(json_array_get(shape, 1));
        values = malloc(*rows * *columns * sizeof *values);
        const size_t at =
            (size_t)json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 0));
        memcpy(values, data + 8 + length + at, *rows * *columns * sizeof *values);
    }
    json_decref(header);
    free(data);
    return values;
}

static void open_fixture(fixture *f, const char *name) {
    size_t size, rows;
    memset(f, 0, sizeof *f);
    snprintf(f->folder, sizeof f->folder, "%s/tests/logits/fixtures/%s", SLUICE_SOURCE_DIR, name);
    char *text = read_file(f->folder, "case.json", &size);
    json_t *facts = json_loads(text, 0, NULL), *tokens = json_object_get(facts, "tokens");
    const json_t *positions = json_object_get(facts, "positions");
    f->token_count = json_array_size(tokens);
    for (size_t i = 0; i < f->token_count; i++) {
        f->tokens[i] = (int32_t)json_integer_value(json_array_get(tokens, i));
    }
    f->position_count = json_array_size(positions);
    for (size_t i = 0; i < f->position_count; i++) {
        f->positions[i] = (size_t)json_integer_value(json_array_get(positions, i));
    }
    f->vocabulary = (size_t)json_integer_value(json_object_get(facts, "vocab"));
    json_decref(facts);
    free(text);
    f->logits = read_file(f->folder, "logits.f32", &size);
    assert_int_equal(size, f->position_count * f->vocabulary * sizeof(float));
    f->head = read_tensor(f->folder, "lm_head.weight", &rows, &f->width);
    f->head = f->head ? f->head : read_tensor(f->folder, "model.embed_tokens.weight", &rows, &f->width);
    assert_non_null(f->head);
    assert_int_equal(rows, f->vocabulary);
}

static void close_fixture(fixture *f) {
    free(f->logits);
    free(f->head);
}

static sluice_engine *open_embedder(sluice_model *model, int32_t chunk, int32_t sequences) {
    const sluice_engine_options options = {.size = sizeof options,
                                           .device = "cpu",
                                           .chunk = chunk,
                                           .context = 256,
                                           .sequences = sequences,
                                           .kv_type = "f32",
                                           .embeddings = true};
    return open_engine(model, &options);
}

/* All vectors one behind the other, owned by the caller. */
static float *embed(sluice_engine *engine, const sluice_embed_input *inputs, size_t count,
                    const sluice_embed_options *options, size_t *rows, size_t *width) {
    sluice_embedding *e;
    sluice_error error;
    size_t done, all = 0;
    must(sluice_embed(engine, inputs, count, options, &e, &error), &error, "embed");
    must(sluice_embedding_wait(e, -1, &done, &error), &error, "wait");
    assert_int_equal(done, count);
    float *vectors = NULL;
    for (size_t i = 0; i < count; i++) {
        const float *vector = sluice_embedding_vector(e, i, rows, width);
        assert_non_null(vector);
        assert_int_equal(sluice_embedding_tokens(e, i), inputs[i].token_count);
        vectors = realloc(vectors, (all + *rows) * *width * sizeof *vectors);
        memcpy(vectors + all * *width, vector, *rows * *width * sizeof *vectors);
        all += *rows;
    }
    *rows = all;
    sluice_embedding_release(e);
    return vectors;
}

static void rows_times_the_head_are_the_logits(void **state) {
    fixture f;
    open_fixture(&f, *state);
    sluice_model *model = open_model(f.folder);
    const sluice_embed_options options = {
        .size = sizeof options, .pooling = SLUICE_POOLING_NONE, .no_normalise = true};
    const sluice_embed_input input = {.tokens = f.tokens, .token_count = f.token_count};
    static const int32_t chunks[] = {512, 7};
    for (size_t k = 0; k < 2; k++) {
        sluice_engine *engine = open_embedder(model, chunks[k], 0);
        size_t rows, width;
        float *vectors = embed(engine, &input, 1, &options, &rows, &width);
        assert_int_equal(rows, f.token_count);
        assert_int_equal(width, f.width);
        double difference = 0, norm = 0;
        for (size_t i = 0; i < f.position_count; i++) {
            for (size_t v = 0; v < f.vocabulary; v++) {
                double sum = 0;
                for (size_t c = 0; c < width; c++) {
                    sum += (double)f.head[v * width + c] * vectors[f.positions[i] * width + c];
                }
                const double want = f.logits[i * f.vocabulary + v];
                difference += (sum - want) * (sum - want);
                norm += want * want;
            }
        }
        printf("%s, chunk %d: relative %.2e\n", (const char *)*state, chunks[k], sqrt(difference / norm));
        assert_true(sqrt(difference / norm) < 1e-4);
        free(vectors);
        sluice_engine_destroy(engine);
    }
    sluice_model_release(model);
    close_fixture(&f);
}

enum { TEXTS = 90, LONGEST = 100 };

/* Pieces of the fixture's tokens, of 1 to LONGEST. */
static void make_texts(const fixture *f, sluice_embed_input *inputs) {
    for (size_t i = 0; i < TEXTS; i++) {
        const size_t length = 1 + i * 37 % LONGEST, first = i * 13 % (f->token_count - length);
        inputs[i] = (sluice_embed_input){.tokens = f->tokens + first, .token_count = length};
    }
}

/* However many texts there are at once and however steps are cut, a text has the same bits. */
static void vectors_depend_on_their_text_alone(void **state) {
    fixture f;
    open_fixture(&f, *state);
    sluice_model *model = open_model(f.folder);
    sluice_embed_input inputs[TEXTS];
    make_texts(&f, inputs);
    static const sluice_pooling poolings[] = {SLUICE_POOLING_MEAN, SLUICE_POOLING_CLS, SLUICE_POOLING_LAST};
    sluice_engine *wide = open_embedder(model, 512, 64), *narrow = open_embedder(model, 7, 3);
    for (size_t p = 0; p < 3; p++) {
        const sluice_embed_options options = {.size = sizeof options, .pooling = poolings[p]};
        size_t rows, width;
        float *together = embed(wide, inputs, TEXTS, &options, &rows, &width);
        assert_int_equal(rows, TEXTS);
        float *cut = embed(narrow, inputs, TEXTS, &options, &rows, &width);
        assert_memory_equal(together, cut, TEXTS * width * sizeof *cut);
        float *alone = embed(wide, inputs + 41, 1, &options, &rows, &width);
        assert_memory_equal(together + 41 * width, alone, width * sizeof *alone);
        free(together);
        free(cut);
        free(alone);
    }
    sluice_engine_destroy(wide);
    sluice_engine_destroy(narrow);
    sluice_model_release(model);
    close_fixture(&f);
}

static double length_of(const float *x, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += (double)x[i] * x[i];
    }
    return sqrt(sum);
}

/* Poolings by their definitions, from the rows of all tokens. */
static void poolings_are_what_they_say(void **state) {
    fixture f;
    open_fixture(&f, *state);
    sluice_model *model = open_model(f.folder);
    sluice_engine *engine = open_embedder(model, 16, 2);
    const sluice_embed_input input = {.tokens = f.tokens, .token_count = 50};
    sluice_embed_options options = {
        .size = sizeof options, .pooling = SLUICE_POOLING_NONE, .no_normalise = true};
    size_t rows, width, one;
    float *all = embed(engine, &input, 1, &options, &rows, &width);
    options.pooling = SLUICE_POOLING_MEAN;
    float *mean = embed(engine, &input, 1, &options, &one, &width);
    options.pooling = SLUICE_POOLING_CLS;
    float *first = embed(engine, &input, 1, &options, &one, &width);
    options.pooling = SLUICE_POOLING_MODEL; /* the files say nothing: the last */
    float *last = embed(engine, &input, 1, &options, &one, &width);
    for (size_t c = 0; c < width; c++) {
        double sum = 0;
        for (size_t i = 0; i < rows; i++) {
            sum += (double)all[i * width + c];
        }
        assert_true(fabs(sum / 50 - mean[c]) < 1e-6);
    }
    assert_memory_equal(first, all, width * sizeof *all);
    assert_memory_equal(last, all + 49 * width, width * sizeof *all);
    options.no_normalise = false;
    options.dimensions = 16;
    float *cut = embed(engine, &input, 1, &options, &one, &width);
    assert_int_equal(width, 16);
    assert_true(fabs(length_of(cut, 16) - 1) < 1e-6);
    const double whole = length_of(last, 16);
    for (size_t c = 0; c < 16; c++) {
        assert_true(fabs(cut[c] - last[c] / whole) < 1e-6);
    }
    free(all);
    free(mean);
    free(first);
    free(last);
    free(cut);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
    close_fixture(&f);
}

/* What is refused says why, and leaves nothing. */
static void wrong_uses_are_refused(void **state) {
    fixture f;
    open_fixture(&f, *state);
    sluice_model *model = open_model(f.folder);
    sluice_engine *engine = open_embedder(model, 16, 2);
    sluice_embedding *e;
    sluice_error error;
    sluice_embed_input inputs[2] = {{.tokens = f.tokens, .token_count = 3},
                                    {.tokens = f.tokens, .token_count = 300}};
    sluice_embed_options options = {.size = sizeof options};
    int32_t outside[300] = {0};
    inputs[1].tokens = outside;
    assert_int_equal(sluice_embed(engine, inputs, 2, &options, &e, &error), SLUICE_ERR_LIMIT);
    assert_string_equal(error.message, "text 1: context: 300 tokens do not fit the limit of 256");
    assert_null(e);
    inputs[1].token_count = 2;
    outside[1] = (int32_t)f.vocabulary;
    assert_int_equal(sluice_embed(engine, inputs, 2, &options, &e, &error), SLUICE_ERR_INVALID);
    inputs[1].token_count = 0;
    assert_int_equal(sluice_embed(engine, inputs, 2, &options, &e, &error), SLUICE_ERR_INVALID);
    assert_string_equal(error.message, "text 1: it has no tokens");
    options.dimensions = 65536;
    assert_int_equal(sluice_embed(engine, inputs, 1, &options, &e, &error), SLUICE_ERR_INVALID);
    sluice_sequence *sequence = open_sequence(engine);
    sluice_request *request;
    const sluice_request_options generate = {
        .size = sizeof generate, .tokens = f.tokens, .token_count = 3, .generate = 1};
    assert_int_equal(sluice_submit(sequence, &generate, &request, &error), SLUICE_ERR_UNSUPPORTED);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
    const sluice_engine_options usual = {.size = sizeof usual, .device = "cpu", .context = 256};
    engine = open_engine(model, &usual);
    options.dimensions = 0;
    assert_int_equal(sluice_embed(engine, inputs, 1, &options, &e, &error), SLUICE_ERR_UNSUPPORTED);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
    close_fixture(&f);
}

/* Released while texts are on their way: nothing hangs, and the engine goes on. */
static void embeddings_can_be_given_up(void **state) {
    fixture f;
    open_fixture(&f, *state);
    sluice_model *model = open_model(f.folder);
    sluice_embed_input inputs[TEXTS];
    make_texts(&f, inputs);
    sluice_engine *engine = open_embedder(model, 7, 3);
    const sluice_embed_options options = {.size = sizeof options};
    for (int i = 0; i < 20; i++) {
        sluice_embedding *e;
        sluice_error error;
        size_t done;
        must(sluice_embed(engine, inputs, TEXTS, &options, &e, &error), &error, "embed");
        must(sluice_embedding_wait(e, i % 3, &done, &error), &error, "wait");
        sluice_embedding_release(e);
    }
    size_t rows, width;
    free(embed(engine, inputs, 5, &options, &rows, &width));
    assert_int_equal(rows, 5);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
    close_fixture(&f);
}

/* ---- against transformers' hidden rows: texts.json and hidden.f32 of embed-* (README.md here) ---- */

enum { ORACLE_TEXTS = 16 };

typedef struct oracle {
    char folder[1024];
    sluice_embed_input inputs[ORACLE_TEXTS];
    int32_t tokens[2048];
    size_t count, rows, width;
    float *hidden; /* [rows][width] */
} oracle;

static void open_oracle(oracle *o, const char *name) {
    size_t size, used = 0;
    memset(o, 0, sizeof *o);
    snprintf(o->folder, sizeof o->folder, "%s/tests/logits/fixtures/%s", SLUICE_SOURCE_DIR, name);
    char *text = read_file(o->folder, "texts.json", &size);
    json_t *facts = json_loads(text, 0, NULL), *texts = json_object_get(facts, "texts");
    for (o->count = 0; o->count < json_array_size(texts); o->count++) {
        const json_t *ids = json_array_get(texts, o->count);
        o->inputs[o->count] =
            (sluice_embed_input){.tokens = o->tokens + used, .token_count = json_array_size(ids)};
        for (size_t i = 0; i < json_array_size(ids); i++) {
            o->tokens[used++] = (int32_t)json_integer_value(json_array_get(ids, i));
        }
    }
    json_decref(facts);
    free(text);
    o->rows = used;
    o->hidden = read_file(o->folder, "hidden.f32", &size);
    o->width = size / sizeof(float) / used;
    assert_int_equal(size, o->rows * o->width * sizeof(float));
    assert_true(o->count > 1);
}

static double relative_error(const float *got, const float *want, size_t count) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    return sqrt(difference / norm);
}

static void hidden_rows_are_those_of_transformers(void **state) {
    static const char *const tiers[] = {"plain", "avx2", "avxvnni", "avx512", "amx"};
    oracle o;
    open_oracle(&o, *state);
    sluice_model *model = open_model(o.folder);
    for (size_t t = 0; t < sizeof tiers / sizeof *tiers; t++) {
        sluice_engine_options options = {
            .size = sizeof options, .device = "cpu", .isa = tiers[t], .kv_type = "f32", .embeddings = true};
        sluice_engine *engine;
        sluice_error error;
        if (sluice_engine_create(model, &options, &engine, &error)) {
            printf("%s: skipped: %s\n", tiers[t], error.message);
            continue;
        }
        const sluice_embed_options rows_wanted = {
            .size = sizeof rows_wanted, .pooling = SLUICE_POOLING_NONE, .no_normalise = true};
        size_t rows, width;
        float *all = embed(engine, o.inputs, o.count, &rows_wanted, &rows, &width);
        assert_int_equal(rows, o.rows);
        assert_int_equal(width, o.width);
        const double relative = relative_error(all, o.hidden, rows * width);
        printf("%s, %s: relative %.2e\n", (const char *)*state, tiers[t], relative);
        assert_true(relative < 1e-4);
        /* The longest text alone: the texts beside it were not seen. */
        const sluice_embed_input *last = &o.inputs[o.count - 1];
        float *alone = embed(engine, last, 1, &rows_wanted, &rows, &width);
        assert_memory_equal(alone, all + (o.rows - rows) * width, rows * width * sizeof *alone);
        free(all);
        free(alone);
        sluice_engine_destroy(engine);
    }
    sluice_model_release(model);
    free(o.hidden);
}

int main(void) {
    enum { CASES = sizeof cases / sizeof *cases };
    static const char *const oracles[] = {"embed-qwen3", "embed-bert", "embed-xlm-roberta", "embed-gemma3"};
    enum { ORACLES = sizeof oracles / sizeof *oracles };
    struct CMUnitTest tests[CASES + 6 + ORACLES];
    for (size_t i = 0; i < ORACLES; i++) {
        tests[CASES + 6 + i] = (struct CMUnitTest){oracles[i], hidden_rows_are_those_of_transformers, NULL,
                                                   NULL, (void *)(size_t)oracles[i]};
    }
    for (size_t i = 0; i < CASES; i++) {
        tests[i] = (struct CMUnitTest){cases[i], rows_times_the_head_are_the_logits, NULL, NULL,
                                       (void *)(size_t)cases[i]};
    }
    static const struct {
        const char *name, *model;
        void (*run)(void **state);
    } others[] = {{"vectors_depend_on_their_text_alone", "qwen3", vectors_depend_on_their_text_alone},
                  {"windows and norms behind", "gemma3", vectors_depend_on_their_text_alone},
                  {"recurrent layers", "qwen3_5", vectors_depend_on_their_text_alone},
                  {"poolings_are_what_they_say", "qwen3", poolings_are_what_they_say},
                  {"wrong_uses_are_refused", "qwen3", wrong_uses_are_refused},
                  {"embeddings_can_be_given_up", "qwen3", embeddings_can_be_given_up}};
    for (size_t i = 0; i < 6; i++) {
        tests[CASES + i] =
            (struct CMUnitTest){others[i].name, others[i].run, NULL, NULL, (void *)(size_t)others[i].model};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
