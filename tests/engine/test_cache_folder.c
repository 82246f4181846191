#define _GNU_SOURCE
/* Beginnings of prompts on disk: what an engine leaves in its cache_folder, another takes over, and gives the
 * same bits as one that computes all; and where it must not take it, it does not. */
#include "support/engine.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TOKENS = 300, PAGE = 64, FULL = TOKENS / PAGE * PAGE, VOCABULARY = 384, PAGES = FULL / PAGE };

static const char *device = "cpu"; /* --device */

/* ---- folders and files
 * ---------------------------------------------------------------------------------------------- */

static void remove_tree(const char *path) {
    DIR *listing = opendir(path);
    for (const struct dirent *d; listing && (d = readdir(listing)) != NULL;) {
        char below[1024];
        snprintf(below, sizeof below, "%s/%s", path, d->d_name);
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0 && unlink(below) != 0) {
            remove_tree(below);
        }
    }
    if (listing) {
        closedir(listing);
    }
    rmdir(path);
}

/* Calls back for every file two levels down; returns how many there are. */
static int each_file(const char *folder, void (*visit)(const char *path, int index)) {
    int count = 0;
    DIR *outer = opendir(folder);
    for (const struct dirent *d; outer && (d = readdir(outer)) != NULL;) {
        char middle[600], path[1200];
        snprintf(middle, sizeof middle, "%s/%s", folder, d->d_name);
        DIR *inner = d->d_name[0] == '.' ? NULL : opendir(middle);
        for (const struct dirent *f; inner && (f = readdir(inner)) != NULL;) {
            if (f->d_name[0] != '.') {
                snprintf(path, sizeof path, "%s/%s", middle, f->d_name);
                if (visit) {
                    visit(path, count);
                }
                count++;
            }
        }
        if (inner) {
            closedir(inner);
        }
    }
    if (outer) {
        closedir(outer);
    }
    return count;
}

/* ---- models and engines
 * --------------------------------------------------------------------------------------------- */

static sluice_model *make_model(const char *family, uint64_t seed) {
    char path[512];
    snprintf(path, sizeof path, "%s/cache-folder-%s-%d.gguf", SLUICE_BINARY_DIR, family, (int)getpid());
    sluice_synth_options options = {
        .size = sizeof options, .preset = family, .type = "q8_0", .seed = seed, .vocabulary = VOCABULARY};
    sluice_error error;
    must(sluice_synth(path, &options, NULL, NULL, &error), &error, path);
    sluice_model *model = open_model(path);
    unlink(path); /* the map stays */
    return model;
}

static char folder[512]; /* of the test that runs */

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "%s/cache-folder-%d", SLUICE_BINARY_DIR, (int)getpid());
    remove_tree(folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    remove_tree(folder);
    return 0;
}

static sluice_engine_options usual(void) {
    return (sluice_engine_options){.size = sizeof(sluice_engine_options),
                                   .device = device,
                                   .threads = 2,
                                   .context = 512,
                                   .sequences = 2,
                                   .deterministic = strcmp(device, "cpu") != 0,
                                   .cache_folder = folder};
}

static int32_t token_at(int32_t i) {
    return (int32_t)((uint32_t)(i * 7919 + 13) % VOCABULARY);
}

typedef struct outcome {
    size_t reused;
    uint64_t stored, loaded;
    float logits[VOCABULARY]; /* of the last token */
    int32_t generated[8];
} outcome;

/* The first `count` tokens of the text, in a new engine; `stored` is what it had saved before its end. */
static outcome read_text(sluice_model *model, const sluice_engine_options *options, size_t count) {
    outcome o = {0};
    int32_t tokens[TOKENS];
    for (int32_t i = 0; i < TOKENS; i++) {
        tokens[i] = token_at(i);
    }
    sluice_engine *engine = open_engine(model, options);
    sluice_sequence *sequence = open_sequence(engine);
    sluice_request_options request = {
        .size = sizeof request, .tokens = tokens, .token_count = count, .logits = SLUICE_LOGITS_LAST};
    collected got = {.logits = o.logits, .vocabulary = VOCABULARY, .first = count - 1, .room = 1};
    collect(submit(sequence, &request), &got);
    o.reused = got.reused;
    int32_t next = 1;
    sluice_request_options more = {.size = sizeof more,
                                   .tokens = &next,
                                   .token_count = 1,
                                   .generate = 8,
                                   .ignore_eos = true,
                                   .no_text = true};
    collected said = {.tokens = o.generated};
    assert_int_equal(collect(submit(sequence, &more), &said), 8);
    sluice_counters counters = {.size = sizeof counters};
    sluice_engine_get_counters(engine, &counters);
    o.stored = counters.stored_pages;
    o.loaded = counters.loaded_pages;
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
    return o;
}

static void expect_same(const outcome *a, const outcome *b) {
    assert_memory_equal(a->logits, b->logits, sizeof a->logits);
    assert_memory_equal(a->generated, b->generated, sizeof a->generated);
}

/* ---- tests
 * ----------------------------------------------------------------------------------------------------------
 */

static outcome computed(sluice_model *model, size_t count) {
    sluice_engine_options options = usual();
    options.cache_folder = NULL;
    return read_text(model, &options, count);
}

static void a_later_engine_takes_over(void **state) {
    static const int32_t chunks[] = {0, 64, 128, 40};
    sluice_model *model = make_model(*state, 3);
    const outcome reference = computed(model, TOKENS), shorter = computed(model, 200);
    sluice_engine_options options = usual();
    assert_int_equal(reference.loaded + reference.stored, 0);
    options.chunk = 64; /* so that recurrent models have a state at every page */
    const outcome first = read_text(model, &options, TOKENS);
    assert_int_equal(first.reused, 0);
    expect_same(&first, &reference);
    assert_int_equal(each_file(folder, NULL), PAGES);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        options.chunk = chunks[i];
        const outcome again = read_text(model, &options, TOKENS);
        assert_int_equal(again.reused, FULL);
        assert_int_equal(again.loaded, PAGES);
        assert_int_equal(again.stored, 0);
        expect_same(&again, &reference);
    }
    const outcome beginning = read_text(model, &options, 200);
    assert_int_equal(beginning.reused, 192);
    expect_same(&beginning, &shorter);
    sluice_model_release(model);
}

/* A text that was read in one chunk: a recurrent model has a state at the end of the last page only. */
static void one_chunk_serves_the_whole(void **state) {
    sluice_model *model = make_model(*state, 3);
    const outcome reference = computed(model, TOKENS);
    sluice_engine_options options = usual();
    read_text(model, &options, TOKENS);
    options.chunk = 64;
    const outcome again = read_text(model, &options, TOKENS);
    assert_int_equal(again.reused, FULL);
    expect_same(&again, &reference);
    sluice_model_release(model);
}

static int damaged_file;

static void flip_a_byte(const char *path, int index) {
    if (index == damaged_file) {
        struct stat status;
        const int file = open(path, O_RDWR);
        assert_true(file >= 0 && fstat(file, &status) == 0);
        unsigned char byte;
        assert_int_equal(pread(file, &byte, 1, status.st_size / 2), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(file, &byte, 1, status.st_size / 2), 1);
        close(file);
    }
}

static void damage_costs_time_only(void **state) {
    sluice_model *model = make_model(*state, 3);
    const outcome reference = computed(model, TOKENS);
    sluice_engine_options options = usual();
    size_t sum = 0;
    options.chunk = 128;
    read_text(model, &options, TOKENS);
    for (damaged_file = 0; damaged_file < PAGES; damaged_file++) {
        assert_int_equal(each_file(folder, flip_a_byte), PAGES);
        const outcome again = read_text(model, &options, TOKENS);
        assert_true(again.reused < FULL);
        sum += again.reused;
        expect_same(&again, &reference);
        const outcome mended = read_text(model, &options, TOKENS);
        assert_int_equal(mended.reused, FULL);
        expect_same(&mended, &reference);
    }
    assert_true(sum > 0); /* what lies before the damage is of use */
    sluice_model_release(model);
}

static void others_take_nothing(void **state) {
    (void)state;
    sluice_model *model = make_model("qwen3", 3), *other = make_model("qwen3", 4);
    const outcome reference = computed(other, TOKENS);
    sluice_engine_options options = usual();
    read_text(model, &options, TOKENS);
    const outcome of_other = read_text(other, &options, TOKENS);
    assert_int_equal(of_other.reused + of_other.loaded, 0);
    expect_same(&of_other, &reference);
    options.kv_type = "q8_0";
    assert_int_equal(read_text(model, &options, TOKENS).reused, 0);
    options.kv_type = NULL;
    options.isa = "plain";
    if (strcmp(device, "cpu") == 0) {
        assert_int_equal(read_text(model, &options, TOKENS).reused, 0);
    }
    options.isa = NULL;
    assert_int_equal(read_text(model, &options, TOKENS).reused, FULL);
    sluice_model_release(model);
    sluice_model_release(other);
}

static void idle_engines_save(void **state) {
    (void)state;
    sluice_model *model = make_model("qwen3", 3);
    sluice_engine_options options = usual();
    sluice_engine *engine = open_engine(model, &options);
    sluice_sequence *sequence = open_sequence(engine);
    int32_t tokens[TOKENS];
    for (int32_t i = 0; i < TOKENS; i++) {
        tokens[i] = token_at(i);
    }
    sluice_request_options request = {.size = sizeof request, .tokens = tokens, .token_count = TOKENS};
    collected got = {0};
    collect(submit(sequence, &request), &got);
    sluice_counters counters = {.size = sizeof counters};
    for (int i = 0; i < 30000 && counters.stored_pages < PAGES; i++) {
        usleep(1000);
        sluice_engine_get_counters(engine, &counters);
    }
    assert_int_equal(counters.stored_pages, PAGES);
    assert_int_equal(each_file(folder, NULL), PAGES);
    const outcome beside = read_text(model, &options, TOKENS); /* while the first lives */
    assert_int_equal(beside.reused, FULL);
    sluice_sequence_release(sequence);
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

/* What the cache still has reaches further than files, which end with a page. */
static void memory_comes_before_files(void **state) {
    sluice_model *model = make_model(*state, 3);
    sluice_engine_options options = usual();
    options.state_slots = 4; /* for ends of texts, after the second */
    sluice_engine *engine = open_engine(model, &options);
    int32_t tokens[TOKENS + 10];
    for (int32_t i = 0; i < TOKENS + 10; i++) {
        tokens[i] = token_at(i);
    }
    for (int turn = 0; turn < 3; turn++) {
        const bool other = turn == 1;
        const sluice_request_options request = {.size = sizeof request,
                                                .tokens = tokens + (other ? 5 : 0),
                                                .token_count = other  ? 20
                                                               : turn ? TOKENS + 10
                                                                      : TOKENS};
        sluice_sequence *sequence = open_sequence(engine);
        collected got = {0};
        collect(submit(sequence, &request), &got);
        assert_int_equal(got.reused, turn == 2 ? TOKENS : 0);
        sluice_sequence_release(sequence);
        sluice_counters counters = {.size = sizeof counters};
        for (int i = 0; i < 30000 && counters.stored_pages < PAGES; i++) {
            usleep(1000);
            sluice_engine_get_counters(engine, &counters);
        }
        assert_int_equal(counters.loaded_pages, 0);
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

static uint64_t all_bytes;

static void add_bytes(const char *path, int index) {
    struct stat status;
    (void)index;
    assert_int_equal(stat(path, &status), 0);
    all_bytes += (uint64_t)status.st_size;
}

static void the_budget_is_kept(void **state) {
    (void)state;
    sluice_model *model = make_model("qwen3", 3);
    const outcome reference = computed(model, TOKENS);
    sluice_engine_options options = usual();
    read_text(model, &options, TOKENS);
    assert_int_equal(each_file(folder, NULL), PAGES);
    all_bytes = 0;
    assert_int_equal(each_file(folder, add_bytes), PAGES);
    options.cache_folder_bytes = all_bytes / PAGES * 2 + 10;
    const outcome again = read_text(model, &options, TOKENS); /* the last pages go first */
    assert_int_equal(again.reused, 2 * PAGE);
    expect_same(&again, &reference);
    assert_int_equal(each_file(folder, NULL), 2);
    sluice_model_release(model);
}

/* Many at once, so that requests wait for their turn to load, while others run and are cancelled. */
static void many_requests_load(void **state) {
    enum { COUNT = 12 };
    sluice_model *model = make_model(*state, 3);
    const outcome reference = computed(model, TOKENS);
    sluice_engine_options options = usual();
    options.chunk = 64;
    read_text(model, &options, TOKENS);
    sluice_engine *engine = open_engine(model, &options);
    sluice_sequence *sequences[COUNT];
    sluice_request *requests[COUNT];
    float logits[COUNT][VOCABULARY];
    int32_t tokens[TOKENS];
    for (int32_t i = 0; i < TOKENS; i++) {
        tokens[i] = token_at(i);
    }
    for (int i = 0; i < COUNT; i++) {
        sluice_request_options request = {
            .size = sizeof request, .tokens = tokens, .token_count = TOKENS, .logits = SLUICE_LOGITS_LAST};
        sequences[i] = open_sequence(engine);
        requests[i] = submit(sequences[i], &request);
    }
    for (int i = 1; i < COUNT; i += 3) {
        sluice_cancel(requests[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        collected got = {.logits = logits[i], .vocabulary = VOCABULARY, .first = TOKENS - 1, .room = 1};
        collect(requests[i], &got);
        if (got.finish != SLUICE_FINISH_CANCELLED) {
            /* From files, or from one that is through already. */
            assert_true(got.reused == FULL || (i > 0 && got.reused == TOKENS - 1));
            assert_memory_equal(logits[i], reference.logits, sizeof reference.logits);
        }
        sluice_sequence_release(sequences[i]);
    }
    sluice_engine_destroy(engine);
    sluice_model_release(model);
}

static void bad_folders_are_named(void **state) {
    (void)state;
    char inside[600], file[600];
    sluice_error error;
    sluice_engine *engine;
    sluice_model *model = make_model("qwen3", 3);
    sluice_engine_options options = usual();
    snprintf(file, sizeof file, "%s/cache-folder-file-%d", SLUICE_BINARY_DIR, (int)getpid());
    snprintf(inside, sizeof inside, "%s/inside", file);
    fclose(fopen(file, "w"));
    options.cache_folder = inside;
    assert_int_equal(sluice_engine_create(model, &options, &engine, &error), SLUICE_ERR_IO);
    assert_non_null(strstr(error.message, inside));
    options.cache_folder = file;
    assert_int_equal(sluice_engine_create(model, &options, &engine, &error), SLUICE_ERR_IO);
    assert_non_null(strstr(error.message, file));
    unlink(file);
    options.cache_folder = folder;
    options.no_prefix_reuse = true;
    assert_int_equal(sluice_engine_create(model, &options, &engine, &error), SLUICE_ERR_INVALID);
    assert_non_null(strstr(error.message, "cache_folder"));
    sluice_model_release(model);
}

/* Files of one salt are not found with another, and no_reuse neither leaves nor takes any. */
static void salts_and_no_reuse_stay_apart(void **state) {
    sluice_model *model = make_model(*state, 3);
    const sluice_engine_options options = usual();
    static const struct {
        uint64_t salt;
        bool no_reuse;
        size_t reused;
    } rows[] = {{5, true, 0},     {5, false, 0}, {6, false, 0},    {0, false, 0},
                {5, false, FULL}, {5, true, 0},  {6, false, FULL}, {0, false, FULL}};
    int32_t tokens[TOKENS];
    for (int32_t i = 0; i < TOKENS; i++) {
        tokens[i] = token_at(i);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        sluice_engine *engine = open_engine(model, &options);
        sluice_sequence *sequence = open_sequence(engine);
        const sluice_request_options request = {.size = sizeof request,
                                                .tokens = tokens,
                                                .token_count = TOKENS,
                                                .cache_salt = rows[i].salt,
                                                .no_reuse = rows[i].no_reuse};
        collected got = {0};
        collect(submit(sequence, &request), &got);
        assert_int_equal(got.reused, rows[i].reused);
        sluice_sequence_release(sequence);
        sluice_engine_destroy(engine);
    }
    sluice_model_release(model);
}

#define WITH(test, family)                                                                                   \
    { #test ", " family, test, make_folder, remove_folder, (void *)(size_t)family }

int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--device") == 0) {
            device = argv[i + 1];
        } else if (strcmp(argv[i], "--only") == 0) {
            cmocka_set_test_filter(argv[i + 1]);
        }
    }
    const struct CMUnitTest tests[] = {
        WITH(a_later_engine_takes_over, "qwen3"),
        WITH(a_later_engine_takes_over, "gemma3"),
        WITH(a_later_engine_takes_over, "mistral"),
        WITH(a_later_engine_takes_over, "qwen3_5"),
        WITH(one_chunk_serves_the_whole, "qwen3"),
        WITH(one_chunk_serves_the_whole, "gemma3"),
        WITH(one_chunk_serves_the_whole, "qwen3_5"),
        WITH(damage_costs_time_only, "qwen3"),
        WITH(damage_costs_time_only, "gemma3"),
        WITH(damage_costs_time_only, "qwen3_5"),
        WITH(many_requests_load, "qwen3"),
        WITH(many_requests_load, "gemma3"),
        WITH(many_requests_load, "qwen3_5"),
        WITH(memory_comes_before_files, "qwen3"),
        WITH(memory_comes_before_files, "qwen3_5"),
        WITH(salts_and_no_reuse_stay_apart, "qwen3"),
        WITH(salts_and_no_reuse_stay_apart, "qwen3_5"),
        cmocka_unit_test_setup_teardown(others_take_nothing, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(idle_engines_save, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(the_budget_is_kept, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(bad_folders_are_named, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
