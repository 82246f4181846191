/* What a head drafts, against the published formula in double: a layer behind the others that reads
 * fc([norm(embedding of a token) | norm(what the model's head reads in the row in front)]), and whose normed
 * row goes through the model's head (vLLM's qwen3_5_mtp.py; DeepSeek-AI: "DeepSeek-V3 Technical
 * Report", 2.2). The model is the fixture qwen3_5 with such a head beside it, named as published folders name
 * it, and the GGUF file made of that folder. What the model's head reads is taken from a plan of the model
 * alone, which test_logits and test_embeddings hold to transformers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

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

/* ---- the folder
 * ---------------------------------------------------------------------------------------------------- */

static char folder[512], gguf[600];

static void copy_file(const char *from, const char *to) {
    char buffer[65536];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_true(in && out);
    for (size_t count; (count = fread(buffer, 1, sizeof buffer, in)) > 0;) {
        assert_int_equal(fwrite(buffer, 1, count, out), count);
    }
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

static void write_parts(const char *path) {
    json_t *header = json_object();
    json_int_t at = 0;
    for (int p = 0; p < PARTS; p++) {
        const json_int_t bytes = (json_int_t)parts[p].rows * parts[p].columns * 4;
        json_t *shape = parts[p].rows == 1 ? json_pack("[i]", parts[p].columns)
                                           : json_pack("[i, i]", parts[p].rows, parts[p].columns);
        json_object_set_new(header, parts[p].name,
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
    for (int p = 0; p < PARTS; p++) {
        fwrite(parts[p].values, sizeof(float), (size_t)(parts[p].rows * parts[p].columns), file);
    }
    assert_int_equal(fclose(file), 0);
    free(text);
    json_decref(header);
}

static void make_folder(void) {
    static const char fixture[] = SLUICE_SOURCE_DIR "/tests/logits/fixtures/qwen3_5";
    char from[600], to[600];
    snprintf(folder, sizeof folder, "%s/drafts-%d", SLUICE_BINARY_DIR, (int)getpid());
    snprintf(gguf, sizeof gguf, "%s.gguf", folder);
    mkdir(folder, 0777);
    snprintf(from, sizeof from, "%s/model.safetensors", fixture);
    snprintf(to, sizeof to, "%s/model-00001-of-00002.safetensors", folder);
    copy_file(from, to);
    snprintf(to, sizeof to, "%s/model-00002-of-00002.safetensors", folder);
    write_parts(to);
    snprintf(from, sizeof from, "%s/config.json", fixture);
    json_t *config = json_load_file(from, 0, NULL);
    json_object_set_new(config, "mtp_num_hidden_layers", json_integer(1));
    snprintf(to, sizeof to, "%s/config.json", folder);
    assert_int_equal(json_dump_file(config, to, 0), 0);
    json_decref(config);
    sl_source *source;
    sl_error error;
    assert_int_equal(sl_source_open(fixture, &source, &error), 0);
    json_t *map = json_object();
    for (uint64_t i = 0; i < sl_source_tensor_count(source); i++) {
        json_object_set_new(map, sl_source_tensor_at(source, i, NULL)->name,
                            json_string("model-00001-of-00002.safetensors"));
    }
    for (int p = 0; p < PARTS; p++) {
        json_object_set_new(map, parts[p].name, json_string("model-00002-of-00002.safetensors"));
    }
    sl_source_close(source);
    json_t *index = json_pack("{s:{}, s:o}", "metadata", "weight_map", map);
    snprintf(to, sizeof to, "%s/model.safetensors.index.json", folder);
    assert_int_equal(json_dump_file(index, to, 0), 0);
    json_decref(index);
}

static int remove_folder(void **state) {
    (void)state;
    static const char *const names[] = {"model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors", "config.json",
                                        "model.safetensors.index.json"};
    char path[700];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    unlink(gguf);
    return rmdir(folder);
}

static int make_files(void **state) {
    (void)state;
    static const sl_qtype f32 = SL_QTYPE_F32;
    make_parts();
    make_folder();
    const sl_mixture *mixture = sl_mixture_find("f32");
    const sl_quantize_options options = {
        .mixture = mixture, .output_type = &f32, .embedding_type = &f32, .replace = true};
    sl_error error;
    if (!mixture || sl_quantize_file(folder, gguf, &options, NULL, NULL, &error)) {
        print_error("%s\n", mixture ? error.message : "no f32");
        return 1;
    }
    return 0;
}

/* ---- runs
 * ----------------------------------------------------------------------------------------------------------
 */

static int32_t tokens[MOST];

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
    sl_model *model = must_load(folder);
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
    sl_model *model = must_load(folder);
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
    sl_model *model = must_load(folder), *file = must_load(gguf);
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

int main(void) {
    for (int32_t i = 0; i < MOST; i++) {
        tokens[i] = (i * i * 7 + i * 31 + 5) % VOCABULARY;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_are_those_of_the_formula),
        cmocka_unit_test(drafts_do_not_depend_on_how_steps_are_cut),
        cmocka_unit_test(a_gguf_file_keeps_the_head),
    };
    return cmocka_run_group_tests(tests, make_files, remove_folder);
}
