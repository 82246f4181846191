/* What a head drafts, against the published formula in double: a layer behind the others that reads
 * fc([norm(embedding of a token) | norm(what the model's head reads in the row in front)]), and whose normed
 * row goes through the model's head (vLLM's qwen3_5_mtp.py; DeepSeek-AI: "DeepSeek-V3 Technical
 * Report", 2.2). The model is the fixture qwen3_5 with such a head beside it, named as published folders name
 * it, and the GGUF file made of that folder. What the model's head reads is taken from a plan of the model
 * alone, which test_logits and test_embeddings hold to transformers.
 *
 * Then against fixtures of three families, whose heads are made of transformers' own layers: full attention,
 * full attention with experts and tables of the head's own, latent attention with experts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/log.h"
#include "model/files.h"
#include "model/model.h"
#include "plan/plan.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of the fixture's config.json. */
enum { WIDTH = 64, HEADS = 4, KV_HEADS = 2, SIZE = 32, TURNING = 8, FED = 96, VOCABULARY = 256 };
enum { MOST = 200, QUERIES = HEADS * 2 * SIZE, KEYS = KV_HEADS * SIZE, ATTENDED = HEADS * SIZE };
static const double THETA = 1e7, EPSILON = 1e-4;

/* ---- the head's tensors
 * -------------------------------------------------------------------------------------------- */

typedef struct part {
    const char *name;
    int32_t rows, columns;
    float *values;
} part;

enum {
    JOIN,
    EMBED_NORM,
    HIDDEN_NORM,
    FINAL,
    INPUT_NORM,
    QUERY,
    KEY,
    VALUE,
    OUTPUT,
    QUERY_NORM,
    KEY_NORM,
    POST_NORM,
    GATE,
    UP,
    DOWN,
    PARTS
};

static part parts[PARTS] = {
    [JOIN] = {"mtp.fc.weight", WIDTH, 2 * WIDTH, NULL},
    [EMBED_NORM] = {"mtp.pre_fc_norm_embedding.weight", 1, WIDTH, NULL},
    [HIDDEN_NORM] = {"mtp.pre_fc_norm_hidden.weight", 1, WIDTH, NULL},
    [FINAL] = {"mtp.norm.weight", 1, WIDTH, NULL},
    [INPUT_NORM] = {"mtp.layers.0.input_layernorm.weight", 1, WIDTH, NULL},
    [QUERY] = {"mtp.layers.0.self_attn.q_proj.weight", QUERIES, WIDTH, NULL},
    [KEY] = {"mtp.layers.0.self_attn.k_proj.weight", KEYS, WIDTH, NULL},
    [VALUE] = {"mtp.layers.0.self_attn.v_proj.weight", KEYS, WIDTH, NULL},
    [OUTPUT] = {"mtp.layers.0.self_attn.o_proj.weight", WIDTH, ATTENDED, NULL},
    [QUERY_NORM] = {"mtp.layers.0.self_attn.q_norm.weight", 1, SIZE, NULL},
    [KEY_NORM] = {"mtp.layers.0.self_attn.k_norm.weight", 1, SIZE, NULL},
    [POST_NORM] = {"mtp.layers.0.post_attention_layernorm.weight", 1, WIDTH, NULL},
    [GATE] = {"mtp.layers.0.mlp.gate_proj.weight", FED, WIDTH, NULL},
    [UP] = {"mtp.layers.0.mlp.up_proj.weight", FED, WIDTH, NULL},
    [DOWN] = {"mtp.layers.0.mlp.down_proj.weight", WIDTH, FED, NULL},
};

static uint64_t random_state = 11;

static float random_float(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(random_state >> 40) * 0x1p-23f - 1.0f;
}

static void make_parts(void) {
    for (int p = 0; p < PARTS; p++) {
        const int32_t count = parts[p].rows * parts[p].columns;
        parts[p].values = malloc((size_t)count * sizeof(float));
        assert_non_null(parts[p].values);
        const float spread = parts[p].rows == 1 ? 0.5f : 2 / sqrtf((float)parts[p].columns);
        for (int32_t i = 0; i < count; i++) {
            parts[p].values[i] = spread * random_float();
        }
    }
}

/* ---- folders
 * ---------------------------------------------------------------------------------------------------- */

#define FIXTURES SLUICE_SOURCE_DIR "/tests/logits/fixtures/"

/* A model's folder and, for some, the GGUF file made of it. */
typedef struct place {
    char folder[512], gguf[600];
} place;

static place random_head, equal_tables;

enum { FAMILIES = 3 };

/* Fixtures whose head comes from transformers' own layer (make_fixtures.py), and the key that says there is
 * one where the trunk's config does not. */
static struct {
    const char *name, *key;
    place place;
} families[FAMILIES] = {
    {.name = "qwen3_5", .key = "mtp_num_hidden_layers"}, {.name = "glm4_moe"}, {.name = "deepseek_v3"}};

static void copy_file(const char *from, const char *to) {
    char buffer[65536];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    if (!in || !out) {
        fail_msg("%s to %s", from, to);
    }
    for (size_t count; (count = fread(buffer, 1, sizeof buffer, in)) > 0;) {
        assert_int_equal(fwrite(buffer, 1, count, out), count);
    }
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

static void write_parts(const char *path, const part *list, int count) {
    json_t *header = json_object();
    json_int_t at = 0;
    for (int p = 0; p < count; p++) {
        const json_int_t bytes = (json_int_t)list[p].rows * list[p].columns * 4;
        json_t *shape = list[p].rows == 1 ? json_pack("[i]", list[p].columns)
                                          : json_pack("[i, i]", list[p].rows, list[p].columns);
        json_object_set_new(header, list[p].name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets",
                                      at, at + bytes));
        at += bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    const uint64_t length = strlen(text);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(&length, sizeof length, 1, file);
    fwrite(text, 1, (size_t)length, file);
    for (int p = 0; p < count; p++) {
        fwrite(list[p].values, sizeof(float), (size_t)(list[p].rows * list[p].columns), file);
    }
    assert_int_equal(fclose(file), 0);
    free(text);
    json_decref(header);
}

/* The names of a safetensors file, as being in the file `as`. */
static void add_names(json_t *map, const char *path, const char *as) {
    uint64_t length = 0;
    FILE *file = fopen(path, "rb");
    assert_true(file && fread(&length, sizeof length, 1, file) == 1);
    char *text = malloc((size_t)length);
    assert_true(text && fread(text, 1, (size_t)length, file) == length);
    fclose(file);
    json_t *header = json_loadb(text, (size_t)length, 0, NULL);
    const char *name;
    json_t *tensor;
    json_object_foreach(header, name, tensor) {
        if (strcmp(name, "__metadata__") != 0) {
            json_object_set_new(map, name, json_string(as));
        }
    }
    json_decref(header);
    free(text);
}

static const char *const shards[] = {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                     "model-00003-of-00003.safetensors"};

static void make_place(place *p, const char *name) {
    snprintf(p->folder, sizeof p->folder, "%s/drafts-%s-%d", SLUICE_BINARY_DIR, name, (int)getpid());
    snprintf(p->gguf, sizeof p->gguf, "%s.gguf", p->folder);
    mkdir(p->folder, 0777);
}

/* Files are in the folder by the names of shards; `key` NULL: the config says it already. */
static void make_folder(const place *p, const char *fixture, const char *key) {
    char from[600], to[600];
    snprintf(from, sizeof from, "%s/model.safetensors", fixture);
    snprintf(to, sizeof to, "%s/%s", p->folder, shards[0]);
    copy_file(from, to);
    snprintf(from, sizeof from, "%s/config.json", fixture);
    json_t *config = json_load_file(from, 0, NULL), *map = json_object();
    if (key) {
        json_object_set_new(config, key, json_integer(1));
    }
    snprintf(to, sizeof to, "%s/config.json", p->folder);
    assert_int_equal(json_dump_file(config, to, 0), 0);
    json_decref(config);
    for (size_t i = 0; i < sizeof shards / sizeof *shards; i++) {
        snprintf(to, sizeof to, "%s/%s", p->folder, shards[i]);
        if (access(to, R_OK) == 0) {
            add_names(map, to, shards[i]);
        }
    }
    json_t *index = json_pack("{s:{}, s:o}", "metadata", "weight_map", map);
    snprintf(to, sizeof to, "%s/model.safetensors.index.json", p->folder);
    assert_int_equal(json_dump_file(index, to, 0), 0);
    json_decref(index);
}

static void remove_place(const place *p) {
    static const char *const names[] = {"config.json", "model.safetensors.index.json"};
    char path[700];
    for (size_t i = 0; i < sizeof shards / sizeof *shards; i++) {
        snprintf(path, sizeof path, "%s/%s", p->folder, shards[i]);
        unlink(path);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", p->folder, names[i]);
        unlink(path);
    }
    unlink(p->gguf);
    rmdir(p->folder);
}

static int remove_files(void **state) {
    (void)state;
    remove_place(&random_head);
    remove_place(&equal_tables);
    for (int f = 0; f < FAMILIES; f++) {
        remove_place(&families[f].place);
    }
    return 0;
}

static void make_gguf(const place *p) {
    static const sl_qtype f32 = SL_QTYPE_F32;
    const sl_mixture *mixture = sl_mixture_find("f32");
    const sl_quantize_options options = {
        .mixture = mixture, .output_type = &f32, .embedding_type = &f32, .replace = true};
    sl_error error;
    if (!mixture || sl_quantize_file(p->folder, p->gguf, &options, NULL, NULL, &error)) {
        fail_msg("%s", mixture ? error.message : "no f32");
    }
}

static int make_files(void **state) {
    (void)state;
    char from[600], to[600];
    make_parts();
    make_place(&random_head, "random");
    snprintf(to, sizeof to, "%s/%s", random_head.folder, shards[1]);
    write_parts(to, parts, PARTS);
    make_folder(&random_head, FIXTURES "qwen3_5", "mtp_num_hidden_layers");
    make_gguf(&random_head);
    for (int f = 0; f < FAMILIES; f++) {
        char fixture[600];
        snprintf(fixture, sizeof fixture, FIXTURES "%s", families[f].name);
        make_place(&families[f].place, families[f].name);
        snprintf(from, sizeof from, "%s/drafts.safetensors", fixture);
        snprintf(to, sizeof to, "%s/%s", families[f].place.folder, shards[1]);
        copy_file(from, to);
        make_folder(&families[f].place, fixture, families[f].key);
        make_gguf(&families[f].place);
    }
    return 0;
}

/* ---- runs
 * ----------------------------------------------------------------------------------------------------------
 */

static int32_t tokens[MOST];

static void set_tokens(void) {
    for (int32_t i = 0; i < MOST; i++) {
        tokens[i] = (i * i * 7 + i * 31 + 5) % VOCABULARY;
    }
}

typedef struct engine {
    sl_backend *backend;
    sl_plan *plan;
    sl_executor *executor;
    int32_t state; /* slot of the newest one; SL_NONE: none */
} engine;

static void open_engine(engine *e, const sl_program *program, bool embed) {
    const sl_backend_options backend = {.isa = SL_ISA_PLAIN, .threads = 1};
    const sl_plan_options options = {.chunk = MOST,
                                     .sequences = 1,
                                     .context = 256,
                                     .outputs = embed ? MOST : 1,
                                     .cache_type = SL_QTYPE_F32,
                                     .cache_tokens = 256,
                                     .embed = embed};
    sl_error error;
    assert_int_equal(sl_cpu_backend_create(&backend, &e->backend, &error), 0);
    if (sl_plan_create(program, e->backend, &options, &e->plan, &error) ||
        e->backend->functions->deploy(e->backend, &e->plan->deployment, NULL, &e->executor, &error)) {
        fail_msg("%s", error.message);
    }
    e->state = SL_NONE;
}

static void close_engine(engine *e) {
    e->backend->functions->destroy_executor(e->executor);
    sl_plan_destroy(e->plan);
    sl_backend_close(e->backend);
}

/* Rows [first, first + count) of the sequence, all with outputs or the last alone; `drafts`: through the list
 * that drafts. Returns the results. */
static const float *run(engine *e, const int32_t *ids, int32_t first, int32_t count, bool all, bool drafts) {
    const sl_step_layout *layout = &e->plan->deployment.step;
    const sl_program *program = e->plan->deployment.program;
    void *block = e->backend->functions->step_block(e->executor);
    sl_step_header *head = sl_step_head(block);
    sl_error error;
    *head = (sl_step_header){.rows = count, .spans = 1, .want_logits = 1};
    sl_step_span *span = &sl_step_spans(layout, block)[0];
    *span =
        (sl_step_span){.row_count = count, .state_read = e->state, .state_count = program->state_count > 0};
    if (program->state_count > 0) {
        sl_step_states(layout, block)[0] = e->state == 0;
    }
    for (int32_t g = 0; g < program->group_count; g++) {
        span->length[g] = first;
        for (int32_t page = 0; first == 0 && page < e->plan->deployment.caches[g].pages; page++) {
            sl_step_table_changes(layout, block)[head->table_changes++] = (sl_table_change){g, 0, page, page};
        }
    }
    for (int32_t i = 0; i < count; i++) {
        sl_step_rows(layout, block)[i] = (sl_step_row){SL_ROW_TOKEN, ids[i], first + i, 0};
        if (all || i == count - 1) {
            sl_step_outputs(layout, block)[head->outputs++] = (sl_step_output){.row = i, .mask = SL_NONE};
        }
    }
    const int32_t bucket = drafts ? sl_plan_draft_bucket(e->plan, count) : sl_plan_bucket(e->plan, head);
    if (e->backend->functions->submit(e->executor, bucket, &error) ||
        e->backend->functions->wait(e->executor, &error)) {
        fail_msg("%s", error.message);
    }
    e->state = drafts || program->state_count == 0 ? e->state : e->state == 0;
    return e->backend->functions->logits(e->executor);
}

/* The model has read `count` tokens, in steps of at most `step`; what its head then drafts behind the next
 * one, and behind the token `second`. */
static void draft(const sl_model *model, int32_t count, int32_t step, int32_t second,
                  float logits[2][VOCABULARY]) {
    engine e;
    open_engine(&e, &model->drafting, false);
    for (int32_t at = 0; at < count; at += step) {
        run(&e, tokens + at, at, step < count - at ? step : count - at, false, false);
    }
    memcpy(logits[0], run(&e, tokens + count, count, 1, true, true), sizeof logits[0]);
    memcpy(logits[1], run(&e, &second, count + 1, 1, true, true), sizeof logits[1]);
    close_engine(&e);
}

/* ---- the formula
 * --------------------------------------------------------------------------------------------------- */

typedef struct formula {
    const float *embed, *head; /* [VOCABULARY][WIDTH] */
    double rows[MOST][WIDTH];  /* what the model's head reads */
    double keys[MOST][KEYS], values[MOST][KEYS];
    double seen[WIDTH];
} formula;

static void multiply(int p, const double *x, double *y) {
    for (int32_t r = 0; r < parts[p].rows; r++) {
        y[r] = 0;
        for (int32_t c = 0; c < parts[p].columns; c++) {
            y[r] += (double)parts[p].values[r * parts[p].columns + c] * x[c];
        }
    }
}

static void norm(int p, const double *x, double *y) {
    const int32_t width = parts[p].columns;
    double mean = 0;
    for (int32_t i = 0; i < width; i++) {
        mean += x[i] * x[i] / width;
    }
    for (int32_t i = 0; i < width; i++) {
        y[i] = x[i] / sqrt(mean + EPSILON) * (1 + (double)parts[p].values[i]);
    }
}

static void turn(double *x, int32_t position) {
    for (int32_t i = 0; i < TURNING / 2; i++) {
        const double angle = position * pow(THETA, -2.0 * i / TURNING), a = x[i], b = x[i + TURNING / 2];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + TURNING / 2] = b * cos(angle) + a * sin(angle);
    }
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* Of the query with its gate behind it, over rows 1 to `position`. */
static void attend(const formula *f, double *query, int32_t head, int32_t position, double *y) {
    const int32_t at = head / (HEADS / KV_HEADS) * SIZE;
    double scores[MOST], total = 0;
    norm(QUERY_NORM, query, query);
    turn(query, position);
    for (int32_t j = 1; j <= position; j++) {
        scores[j] = 0;
        for (int32_t i = 0; i < SIZE; i++) {
            scores[j] += query[i] * f->keys[j][at + i] / sqrt(SIZE);
        }
        total += exp(scores[j]);
    }
    for (int32_t i = 0; i < SIZE; i++) {
        y[i] = 0;
        for (int32_t j = 1; j <= position; j++) {
            y[i] += exp(scores[j]) / total * f->values[j][at + i];
        }
        y[i] *= sigmoid(query[SIZE + i]);
    }
}

/* The row of a token at a position, with what is read in front of it; leaves its own in f->seen. */
static void pass(formula *f, int32_t token, int32_t position, const double *before) {
    double both[2 * WIDTH], embed[WIDTH], x[WIDTH], y[WIDTH], queries[QUERIES], attended[ATTENDED], gate[FED],
        up[FED];
    for (int32_t i = 0; i < WIDTH; i++) {
        embed[i] = (double)f->embed[token * WIDTH + i];
    }
    norm(EMBED_NORM, embed, both);
    norm(HIDDEN_NORM, before, both + WIDTH);
    multiply(JOIN, both, x);
    norm(INPUT_NORM, x, y);
    multiply(QUERY, y, queries);
    multiply(KEY, y, f->keys[position]);
    multiply(VALUE, y, f->values[position]);
    for (int32_t h = 0; h < KV_HEADS; h++) {
        norm(KEY_NORM, f->keys[position] + h * SIZE, f->keys[position] + h * SIZE);
        turn(f->keys[position] + h * SIZE, position);
    }
    for (int32_t h = 0; h < HEADS; h++) {
        attend(f, queries + h * 2 * SIZE, h, position, attended + h * SIZE);
    }
    multiply(OUTPUT, attended, y);
    for (int32_t i = 0; i < WIDTH; i++) {
        x[i] += y[i];
    }
    norm(POST_NORM, x, y);
    multiply(GATE, y, gate);
    multiply(UP, y, up);
    for (int32_t i = 0; i < FED; i++) {
        up[i] *= gate[i] * sigmoid(gate[i]);
    }
    multiply(DOWN, up, y);
    for (int32_t i = 0; i < WIDTH; i++) {
        x[i] += y[i];
    }
    norm(FINAL, x, f->seen);
}

/* The norm of the difference over that of what is expected. */
static double difference(const formula *f, const float *logits) {
    double off = 0, all = 0;
    for (int32_t v = 0; v < VOCABULARY; v++) {
        double expected = 0;
        for (int32_t i = 0; i < WIDTH; i++) {
            expected += (double)f->head[v * WIDTH + i] * f->seen[i];
        }
        off += (expected - (double)logits[v]) * (expected - (double)logits[v]);
        all += expected * expected;
    }
    return sqrt(off / all);
}

/* ---- tests
 * ---------------------------------------------------------------------------------------------------------
 */

static sl_model *must_load(const char *path) {
    sl_model *model;
    sl_error error;
    if (sl_model_load(path, &model, &error)) {
        fail_msg("%s", error.message);
    }
    return model;
}

static const float *floats_of(const sl_model *model, const char *name) {
    const sl_tensor *tensor;
    assert_int_equal(sl_source_tensor(model->source, name, &tensor, NULL), 0);
    assert_int_equal(tensor->type, SL_QTYPE_F32);
    return tensor->data;
}

static const int32_t places[] = {1, 2, 7, 63, 64, 65, 130};
enum { PLACES = sizeof places / sizeof *places, SECOND = 77 };

static void drafts_are_those_of_the_formula(void **state) {
    (void)state;
    static formula f;
    engine e;
    sl_model *model = must_load(random_head.folder);
    assert_int_equal(model->description.tensors, model->description.file_tensors);
    assert_true(model->drafting.draft_ops > 0);
    f.embed = floats_of(model, "model.embed_tokens.weight");
    f.head = floats_of(model, "lm_head.weight");
    open_engine(&e, &model->program, true);
    const float *rows = run(&e, tokens, 0, MOST, true, false);
    for (int32_t i = 0; i < MOST * WIDTH; i++) {
        f.rows[i / WIDTH][i % WIDTH] = (double)rows[i];
    }
    close_engine(&e);
    for (int i = 0; i < PLACES; i++) {
        float logits[2][VOCABULARY];
        double first[WIDTH];
        const int32_t count = places[i];
        draft(model, count, MOST, SECOND, logits);
        for (int32_t p = 1; p <= count; p++) {
            pass(&f, tokens[p], p, f.rows[p - 1]);
        }
        const double off = difference(&f, logits[0]);
        memcpy(first, f.seen, sizeof first);
        pass(&f, SECOND, count + 1, first);
        const double second = difference(&f, logits[1]);
        if (!(off < 1e-4) || !(second < 1e-4)) {
            fail_msg("behind %d tokens: off by %g, and the second draft by %g", count, off, second);
        }
    }
    sl_model_free(model);
}

static void drafts_do_not_depend_on_how_steps_are_cut(void **state) {
    (void)state;
    float whole[2][VOCABULARY], cut[2][VOCABULARY];
    sl_model *model = must_load(random_head.folder);
    for (int i = 0; i < PLACES; i++) {
        draft(model, places[i], MOST, SECOND, whole);
        for (int32_t step = 1; step <= 64; step = step * 4 + 3) {
            draft(model, places[i], step, SECOND, cut);
            assert_memory_equal(whole, cut, sizeof whole);
        }
    }
    sl_model_free(model);
}

/* Weights of norms are stored as w - 1 in folders and as w in GGUF files, rounded once more. */
static void a_gguf_file_keeps_the_head(void **state) {
    (void)state;
    float ours[2][VOCABULARY], its[2][VOCABULARY];
    sl_model *model = must_load(random_head.folder), *file = must_load(random_head.gguf);
    assert_int_equal(file->config.layers, model->config.layers);
    assert_int_equal(file->config.draft_layers, 1);
    assert_int_equal(file->description.tensors, file->description.file_tensors);
    for (int i = 0; i < PLACES; i++) {
        draft(model, places[i], MOST, SECOND, ours);
        draft(file, places[i], MOST, SECOND, its);
        for (int32_t v = 0; v < 2 * VOCABULARY; v++) {
            assert_true(fabsf(ours[v / VOCABULARY][v % VOCABULARY] - its[v / VOCABULARY][v % VOCABULARY]) <
                        1e-3f);
        }
    }
    sl_model_free(model);
    sl_model_free(file);
}

/* ---- heads of transformers' layers
 * ---------------------------------------------------------------------------------------------------- */

/* drafts.json and drafts.f32 of a fixture, and the tokens of its case.json. */
typedef struct fixture {
    int32_t tokens[MOST], positions[32], drafted[32];
    int32_t count;
    float logits[2][32][VOCABULARY]; /* of the first draft behind each position, of the second one */
} fixture;

static json_t *fixture_json(const char *name, const char *file) {
    char path[600];
    snprintf(path, sizeof path, FIXTURES "%s/%s", name, file);
    json_t *json = json_load_file(path, 0, NULL);
    if (!json) {
        fail_msg("%s", path);
    }
    return json;
}

static int32_t read_numbers(const json_t *json, const char *key, int32_t *numbers, int32_t most) {
    const json_t *array = json_object_get(json, key);
    assert_in_range(json_array_size(array), 1, most);
    for (size_t i = 0; i < json_array_size(array); i++) {
        numbers[i] = (int32_t)json_integer_value(json_array_get(array, i));
    }
    return (int32_t)json_array_size(array);
}

static void read_fixture(const char *name, fixture *f) {
    json_t *drafts = fixture_json(name, "drafts.json"), *facts = fixture_json(name, "case.json");
    read_numbers(facts, "tokens", f->tokens, MOST);
    f->count = read_numbers(drafts, "positions", f->positions, 32);
    assert_int_equal(read_numbers(drafts, "drafted", f->drafted, 32), f->count);
    json_decref(drafts);
    json_decref(facts);
    char path[600];
    snprintf(path, sizeof path, FIXTURES "%s/drafts.f32", name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    for (int second = 0; second < 2; second++) {
        assert_int_equal(fread(f->logits[second], sizeof f->logits[0][0], (size_t)f->count, file), f->count);
    }
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
}

/* Against the fixture: the first draft behind a position joins the token behind it with what the model's head
 * read there, the second one the first's token with what its own head read. */
static void must_draft(const sl_model *model, const char *name, double most) {
    static fixture f;
    read_fixture(name, &f);
    memcpy(tokens, f.tokens, sizeof tokens);
    for (int32_t i = 0; i < f.count; i++) {
        float logits[2][VOCABULARY];
        draft(model, f.positions[i] + 1, MOST, f.drafted[i], logits);
        for (int second = 0; second < 2; second++) {
            double off = 0;
            for (int32_t v = 0; v < VOCABULARY; v++) {
                off = fmax(off, fabs((double)logits[second][v] - (double)f.logits[second][i][v]));
            }
            if (!(off <= most)) {
                fail_msg("%s: %s draft behind position %d: off by %g", name, second ? "second" : "first",
                         f.positions[i], off);
            }
        }
    }
    set_tokens();
}

static void drafts_are_those_of_transformers(void **state) {
    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        sl_model *model = must_load(families[i].place.folder), *file = must_load(families[i].place.gguf);
        assert_int_equal(model->config.draft_layers, 1);
        assert_int_equal(file->config.draft_layers, 1);
        assert_int_equal(file->config.layers, model->config.layers);
        assert_int_equal(model->description.tensors, model->description.file_tensors);
        assert_int_equal(file->description.tensors, file->description.file_tensors);
        must_draft(model, families[i].name, 5e-4);
        must_draft(file, families[i].name, 1e-3);
        sl_model_free(model);
        sl_model_free(file);
    }
}

static void drafts_of_every_family_do_not_depend_on_cuts(void **state) {
    (void)state;
    static const int32_t counts[] = {2, 65};
    float whole[2][VOCABULARY], cut[2][VOCABULARY];
    for (int f = 0; f < FAMILIES; f++) {
        sl_model *model = must_load(families[f].place.folder);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            draft(model, counts[i], MOST, SECOND, whole);
            for (int32_t step = 1; step <= 64; step = step * 4 + 3) {
                draft(model, counts[i], step, SECOND, cut);
                assert_memory_equal(whole, cut, sizeof whole);
            }
        }
        sl_model_free(model);
    }
}

static bool has_weight(const sl_model *model, const char *name) {
    for (int32_t w = 0; w < model->program.weight_count; w++) {
        if (strcmp(model->program.weights[w].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static void keep_line(void *context, sl_log_level level, const char *line) {
    char *kept = context;
    if (level == SL_LOG_WARNING && kept[0] == '\0') {
        snprintf(kept, 256, "%s", line);
    }
}

/* As published: the head's embedding and head are the model's once more. They are not held twice. Of two
 * layers that draft the first one does. */
static void tables_that_are_the_models_are_held_once(void **state) {
    (void)state;
    static const char embed[] = "model.layers.3.embed_tokens.weight",
                      head[] = "model.layers.3.shared_head.head.weight";
    char from[600], to[600], line[256] = "";
    sl_model *plain = must_load(families[2].place.folder);
    part tables[] = {
        {embed, VOCABULARY, WIDTH, (float *)(uintptr_t)floats_of(plain, "model.embed_tokens.weight")},
        {head, VOCABULARY, WIDTH, (float *)(uintptr_t)floats_of(plain, "lm_head.weight")},
        {"model.layers.4.input_layernorm.weight", 1, WIDTH, parts[INPUT_NORM].values}};
    make_place(&equal_tables, "equal");
    snprintf(from, sizeof from, "%s/%s", families[2].place.folder, shards[1]);
    snprintf(to, sizeof to, "%s/%s", equal_tables.folder, shards[1]);
    copy_file(from, to);
    snprintf(to, sizeof to, "%s/%s", equal_tables.folder, shards[2]);
    write_parts(to, tables, 3);
    make_folder(&equal_tables, FIXTURES "deepseek_v3", NULL);
    sl_log_set(keep_line, line);
    sl_model *model = must_load(equal_tables.folder);
    sl_log_set(NULL, NULL);
    assert_non_null(strstr(line, "2 layers draft"));
    assert_int_equal(model->description.tensors + 1, model->description.file_tensors);
    assert_false(has_weight(model, embed) || has_weight(model, head));
    assert_int_equal(model->program.weight_count, plain->program.weight_count);
    must_draft(model, "deepseek_v3", 5e-4);
    sl_model_free(model);
    /* The last row is another one. */
    float *other = malloc(sizeof(float) * VOCABULARY * WIDTH);
    assert_non_null(other);
    memcpy(other, tables[1].values, sizeof(float) * VOCABULARY * WIDTH);
    other[VOCABULARY * WIDTH - 1] += 1;
    tables[1].values = other;
    write_parts(to, tables, 2);
    make_folder(&equal_tables, FIXTURES "deepseek_v3", NULL);
    model = must_load(equal_tables.folder);
    assert_true(!has_weight(model, embed) && has_weight(model, head));
    free(other);
    sl_model_free(model);
    sl_model_free(plain);
}

int main(void) {
    set_tokens();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_are_those_of_the_formula),
        cmocka_unit_test(drafts_do_not_depend_on_how_steps_are_cut),
        cmocka_unit_test(a_gguf_file_keeps_the_head),
        cmocka_unit_test(drafts_are_those_of_transformers),
        cmocka_unit_test(drafts_of_every_family_do_not_depend_on_cuts),
        cmocka_unit_test(tables_that_are_the_models_are_held_once),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
