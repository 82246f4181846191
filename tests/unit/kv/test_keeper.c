#define _GNU_SOURCE
/* The keeper against a cache whose pages hold a hash of all tokens up to their end, and whose state slots
 * one of all tokens before them: whatever was saved, evicted, loaded, damaged and removed in whatever order,
 * what a sequence goes on from must be its own past. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/log.h"
#include "kv/keeper.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONTEXT = 1024, CHUNK = 128, PAGE_WORDS = 4, STATE_WORDS = 8, MOST_PAGES = 64, SLOTS = 12 };

struct sl_executor {
    uint64_t pages[SL_CACHE_GROUPS * MOST_PAGES * PAGE_WORDS];
    uint64_t states[SLOTS * STATE_WORDS];
    int calls_to_fail; /* 0: none does */
};

typedef struct shape {
    const char *name;
    int32_t groups;
    int32_t windows[2]; /* 0: none */
    int32_t pages[2];
    bool recurrent;
} shape;

static const shape shapes[] = {
    {"full", 1, {0}, {40}, false},
    {"window", 1, {100}, {16}, false},
    {"full and window", 2, {0, 150}, {40, 9}, false},
    {"full and recurrent", 1, {0}, {40}, true},
    {"full, window and recurrent", 2, {0, 150}, {40, 12}, true},
};

typedef struct rig {
    const shape *shape;
    sl_program program;
    sl_deployment deployment;
    sl_executor *executor;
    sl_store *store;
    sl_cache *cache;
    sl_keeper *keeper;
    uint64_t stored, loaded; /* of keepers before */
} rig;

static char folder[512];

static uint32_t random_state;

static int32_t pick(int32_t count) { /* of [0, count) */
    random_state = random_state * 1664525u + 1013904223u;
    return (int32_t)((random_state >> 8) % (uint32_t)count);
}

/* ---- the pools
 * ------------------------------------------------------------------------------------------------------ */

static unsigned char *place(sl_executor *e, sl_pool_kind pool, uint64_t offset, uint64_t bytes) {
    assert_true(pool == SL_POOL_CACHE || pool == SL_POOL_STATE);
    assert_true(offset + bytes <= (pool == SL_POOL_CACHE ? sizeof e->pages : sizeof e->states));
    return (unsigned char *)(pool == SL_POOL_CACHE ? e->pages : e->states) + offset;
}

static int fails(sl_executor *e, sl_error *error) {
    return e->calls_to_fail && --e->calls_to_fail == 0 ? sl_fail(error, SL_ERR_DEVICE, "gone") : 0;
}

static int fake_read(sl_executor *e, sl_pool_kind pool, uint64_t offset, void *data, uint64_t bytes,
                     sl_error *error) {
    memcpy(data, place(e, pool, offset, bytes), bytes);
    return fails(e, error);
}

static int fake_write(sl_executor *e, sl_pool_kind pool, uint64_t offset, const void *data, uint64_t bytes,
                      sl_error *error) {
    memcpy(place(e, pool, offset, bytes), data, bytes);
    return fails(e, error);
}

static const sl_backend_functions functions = {.read = fake_read, .write = fake_write};

/* ---- a rig
 * ----------------------------------------------------------------------------------------------------------
 */

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

/* As a new process: pages hold what they may. */
static void start(rig *r, uint64_t budget) {
    sl_error error;
    memset(r->executor, 0xee, sizeof *r->executor);
    r->executor->calls_to_fail = 0;
    sl_store_options options = {.folder = folder, .budget = budget, .fingerprint = {{1}}};
    sl_keeper_part_bytes(&r->deployment, options.part_bytes);
    if (sl_store_open(&options, &r->store, &error) ||
        sl_cache_create(&r->deployment, true, &r->cache, &error)) {
        fail_msg("%s", error.message);
    }
    const sl_keeper_options keeper = {.deployment = &r->deployment,
                                      .functions = &functions,
                                      .executor = r->executor,
                                      .cache = r->cache,
                                      .store = r->store};
    assert_int_equal(sl_keeper_create(&keeper, &r->keeper, &error), 0);
}

static void stop(rig *r) {
    r->stored += sl_keeper_counts(r->keeper).stored_pages;
    r->loaded += sl_keeper_counts(r->keeper).loaded_pages;
    sl_keeper_destroy(r->keeper);
    sl_cache_destroy(r->cache);
    sl_store_close(r->store);
}

static void open_rig(rig *r, const shape *shape, uint64_t budget) {
    memset(r, 0, sizeof *r);
    snprintf(folder, sizeof folder, "%s/keeper-%d", SLUICE_BINARY_DIR, (int)getpid());
    remove_tree(folder);
    r->shape = shape;
    r->program.group_count = shape->groups;
    r->program.state_count = shape->recurrent;
    r->program.state_bytes = STATE_WORDS * sizeof(uint64_t);
    r->deployment.program = &r->program;
    r->deployment.limits = (sl_limits){.rows = CHUNK, .sequences = 2, .context = CONTEXT, .outputs = 2};
    r->deployment.state_slots = SLOTS;
    uint64_t offset = 0;
    for (int32_t g = 0; g < shape->groups; g++) {
        r->program.groups[g].window = shape->windows[g];
        r->deployment.caches[g].pages = shape->pages[g];
        r->deployment.caches[g].page_bytes = PAGE_WORDS * sizeof(uint64_t);
        r->deployment.cache_offsets[g] = offset;
        offset += (uint64_t)shape->pages[g] * PAGE_WORDS * sizeof(uint64_t);
    }
    r->executor = sl_alloc_zero(1, sizeof *r->executor);
    start(r, budget);
}

static void close_rig(rig *r) {
    stop(r);
    sl_free(r->executor);
    remove_tree(folder);
}

/* ---- what pages hold
 * ------------------------------------------------------------------------------------------------ */

static uint64_t *page_at(rig *r, int32_t group, int32_t page) {
    assert_in_range(page, 0, r->shape->pages[group] - 1);
    return r->executor->pages + r->deployment.cache_offsets[group] / sizeof(uint64_t) +
           (size_t)page * PAGE_WORDS;
}

static void expect_page(uint64_t words[PAGE_WORDS], const int32_t *tokens, int32_t index, int32_t group) {
    for (uint64_t i = 0; i < PAGE_WORDS; i++) {
        words[i] = sl_hash64(tokens, ((size_t)index + 1) * SL_PAGE_TOKENS * sizeof *tokens,
                             (uint64_t)group * PAGE_WORDS + i + 1);
    }
}

static void expect_state(uint64_t words[STATE_WORDS], const int32_t *tokens, int32_t count) {
    for (uint64_t i = 0; i < STATE_WORDS; i++) {
        words[i] = sl_hash64(tokens, (size_t)count * sizeof *tokens, 100 + i);
    }
}

/* All that the next row sees, in whole pages. */
static void check_past(rig *r, const sl_timeline *t, const int32_t *tokens) {
    uint64_t words[PAGE_WORDS], state[STATE_WORDS];
    for (int32_t g = 0; g < r->shape->groups; g++) {
        const int32_t window = r->shape->windows[g];
        const int32_t first = window && t->cached >= window ? t->cached - window + 1 : 0;
        for (int32_t i = first / SL_PAGE_TOKENS; i < t->cached / SL_PAGE_TOKENS; i++) {
            expect_page(words, tokens, i, g);
            assert_memory_equal(page_at(r, g, t->pages[g][i]), words, sizeof words);
        }
    }
    if (r->shape->recurrent && t->cached > 0) {
        expect_state(state, tokens, t->cached);
        assert_in_range(t->state, 0, SLOTS - 1);
        assert_memory_equal(r->executor->states + t->state * STATE_WORDS, state, sizeof state);
    }
}

/* A step of `rows`; false when there is no room. */
static bool compute(rig *r, sl_timeline *t, const int32_t *tokens, int32_t rows) {
    sl_page_copy copies[SL_CACHE_GROUPS];
    sl_copy_list list = {copies, 0, SL_CACHE_GROUPS};
    if (sl_timeline_reserve(r->cache, t, rows, 0, &list)) {
        return false;
    }
    for (int32_t i = t->cached / SL_PAGE_TOKENS; i < (t->cached + rows) / SL_PAGE_TOKENS; i++) {
        for (int32_t g = 0; g < r->shape->groups; g++) {
            expect_page(page_at(r, g, t->pages[g][i]), tokens, i, g);
        }
    }
    if (r->shape->recurrent) {
        expect_state(r->executor->states + t->write_states[0] * STATE_WORDS, tokens, t->cached + rows);
    }
    sl_timeline_advance(r->cache, t, tokens, rows);
    return true;
}

/* As the engine does it; returns the tokens that came from the index and the files. */
static int32_t load(rig *r, sl_timeline *t, const int32_t *tokens, int32_t limit) {
    sl_error error;
    const sl_beginning beginning = {tokens, limit, limit};
    const int32_t known = sl_timeline_resume_pages(r->cache, t, &beginning).usable;
    check_past(r, t, tokens);
    sl_load load = {.timeline = t, .tokens = tokens, .limit = limit, .known = known, .end = SL_NONE};
    while (sl_keeper_seek(r->keeper, &load) > 0 && sl_keeper_reserve(r->keeper, &load) == 0) {
        assert_int_equal(sl_keeper_read(r->keeper, &load, &error), 0);
        if (!sl_keeper_finish(r->keeper, &load)) {
            break;
        }
    }
    if (load.loaded == 0 || !sl_timeline_complete(r->cache, t)) {
        sl_timeline_reset(r->cache, t);
        sl_timeline_resume(r->cache, t, &beginning);
    }
    assert_true(t->cached <= limit);
    check_past(r, t, tokens);
    return t->cached;
}

/* At most `most` pages. */
static void save(rig *r, int32_t most) {
    sl_error error;
    while (most-- > 0 && sl_keeper_choose(r->keeper)) {
        assert_int_equal(sl_keeper_save(r->keeper, &error), 0);
        sl_keeper_settle(r->keeper);
    }
}

/* Reads a text to its end, or as far as there is room; returns what did not have to be computed. */
static int32_t read_text(rig *r, const int32_t *tokens, int32_t count, int32_t chunk, int32_t saves) {
    sl_error error;
    sl_timeline t;
    assert_int_equal(sl_timeline_init(r->cache, &t, &error), 0);
    const int32_t reused = load(r, &t, tokens, count - 1);
    while (t.cached < count) {
        int32_t rows = count - t.cached < chunk ? count - t.cached : chunk;
        const int32_t end = (t.cached + rows) / SL_PAGE_TOKENS * SL_PAGE_TOKENS;
        rows = end > t.cached ? end - t.cached : rows;
        if (!compute(r, &t, tokens, rows)) {
            break;
        }
        check_past(r, &t, tokens);
        save(r, saves);
    }
    sl_timeline_free(r->cache, &t);
    return reused;
}

/* ---- tests
 * ----------------------------------------------------------------------------------------------------------
 */

enum { TEXTS = 6, TEXT_TOKENS = 900 };

static void make_texts(int32_t texts[TEXTS][TEXT_TOKENS]) {
    for (int32_t t = 0; t < TEXTS; t++) {
        const int32_t same = t == 0 ? 0 : pick(TEXT_TOKENS); /* as the one before, up to there */
        for (int32_t i = 0; i < TEXT_TOKENS; i++) {
            texts[t][i] = i < same ? texts[t - 1][i] : pick(1000);
        }
    }
}

static int file_number, file_to_spoil;

static void spoil(const char *path) {
    if (file_number++ == file_to_spoil) {
        const int file = open(path, O_RDWR);
        const char bytes[] = "spoilt";
        assert_true(pwrite(file, bytes, sizeof bytes, pick(400)) == sizeof bytes);
        close(file);
    } else if (pick(10) == 0) {
        unlink(path);
    }
}

static void each_file(void (*visit)(const char *path)) {
    char path[1200], name[SL_DIGEST_TEXT];
    const sl_digest digest = {{1}};
    sl_digest_text(&digest, name);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    DIR *listing = opendir(path);
    const size_t length = strlen(path);
    for (const struct dirent *d; listing && (d = readdir(listing)) != NULL;) {
        if (d->d_name[0] != '.') {
            snprintf(path + length, sizeof path - length, "/%s", d->d_name);
            visit(path);
        }
    }
    closedir(listing);
}

static void a_sequence_finds_its_own_past(void **state) {
    static int32_t texts[TEXTS][TEXT_TOKENS];
    rig r;
    int64_t reused = 0;
    random_state = 5;
    open_rig(&r, *state, 1 << 20);
    for (int round = 0; round < 60; round++) {
        if (round % 10 == 0) {
            make_texts(texts);
        }
        for (int i = 0; i < 4; i++) {
            reused += read_text(&r, texts[pick(TEXTS)], 1 + pick(TEXT_TOKENS), 1 + pick(CHUNK), pick(8));
        }
        save(&r, pick(2) ? 1000 : pick(20));
        if (round % 7 == 6) {
            file_number = 0;
            file_to_spoil = pick(10);
            each_file(spoil);
        }
        if (pick(2)) {
            stop(&r);
            start(&r, (uint64_t)(pick(4) ? 1 << 20 : 1 << 14));
        }
    }
    close_rig(&r);
    assert_true(reused > 0 && r.stored > 0 && r.loaded > 0);
}

/* Pages of a window that were given up before they could be saved leave no hole where they are seen. */
static void the_last_window_is_enough(void **state) {
    rig r;
    int32_t tokens[TEXT_TOKENS];
    random_state = 9;
    open_rig(&r, *state, 1 << 20);
    for (int32_t i = 0; i < TEXT_TOKENS; i++) {
        tokens[i] = pick(1000);
    }
    const int32_t full = (TEXT_TOKENS - 1) / SL_PAGE_TOKENS * SL_PAGE_TOKENS;
    assert_int_equal(read_text(&r, tokens, TEXT_TOKENS, CHUNK, 0), 0); /* nothing is saved meanwhile */
    sl_timeline t;
    sl_error error;
    assert_int_equal(sl_timeline_init(r.cache, &t, &error), 0);
    const sl_beginning beginning = {tokens, TEXT_TOKENS, TEXT_TOKENS - 1};
    sl_timeline_resume_pages(r.cache, &t, &beginning);
    const int32_t here = t.cached;
    sl_timeline_free(r.cache, &t);
    save(&r, 1000);
    assert_int_equal(sl_keeper_counts(r.keeper).stored_pages, full / SL_PAGE_TOKENS);
    stop(&r);
    start(&r, 1 << 20);
    assert_int_equal(read_text(&r, tokens, TEXT_TOKENS, CHUNK, 0), here); /* no less than was here */
    save(&r, 1000);
    assert_int_equal(sl_keeper_counts(r.keeper).stored_pages > 0, here < full);
    close_rig(&r);
}

/* A page whose state came later: the file gets it too. */
static void a_file_follows_its_node(void **state) {
    rig r;
    int32_t tokens[TEXT_TOKENS];
    open_rig(&r, *state, 1 << 20);
    for (int32_t i = 0; i < TEXT_TOKENS; i++) {
        tokens[i] = i;
    }
    read_text(&r, tokens, 150, CHUNK, 0); /* a step ends behind the second page only */
    save(&r, 1000);
    tokens[70] = 0;
    const int32_t common = SL_PAGE_TOKENS + 6;
    assert_int_equal(read_text(&r, tokens, 100, SL_PAGE_TOKENS, 0), r.shape->recurrent ? 0 : common);
    save(&r, 1000);
    stop(&r);
    start(&r, 1 << 20);
    assert_int_equal(read_text(&r, tokens, 100, CHUNK, 0), SL_PAGE_TOKENS);
    tokens[70] = 70;
    assert_int_equal(read_text(&r, tokens, 150, CHUNK, 0), CHUNK);
    close_rig(&r);
}

/* Has the next row all pages that it sees? */
static bool sees_all(const rig *r, const sl_timeline *t) {
    bool all = true;
    for (int32_t g = 0; g < r->shape->groups; g++) {
        const int32_t window = r->shape->windows[g];
        for (int32_t i = 0; i < t->cached; i++) {
            const bool seen = window == 0 || i > t->cached - window;
            all &= !seen || t->pages[g][i / SL_PAGE_TOKENS] != SL_NONE;
        }
    }
    return all;
}

static void remove_file(const char *path) {
    unlink(path);
}

/* On the way a window may lack what no file has. If it ends there, what was loaded is of no use. */
static void holes_on_the_way_are_known(void **state) {
    rig r;
    sl_error error;
    sl_timeline t;
    int32_t tokens[TEXT_TOKENS];
    open_rig(&r, *state, 1 << 20);
    for (int32_t i = 0; i < TEXT_TOKENS; i++) {
        tokens[i] = i;
    }
    read_text(&r, tokens, TEXT_TOKENS, CHUNK, 0);
    save(&r, 1000);
    stop(&r);
    start(&r, 1 << 20);
    assert_int_equal(sl_timeline_init(r.cache, &t, &error), 0);
    sl_load load = {.timeline = &t, .tokens = tokens, .limit = TEXT_TOKENS - 1, .end = SL_NONE};
    while (sl_timeline_complete(r.cache, &t) && sl_keeper_seek(r.keeper, &load) > 0) {
        assert_int_equal(sl_keeper_reserve(r.keeper, &load), 0);
        assert_int_equal(sl_keeper_read(r.keeper, &load, &error), 0);
        assert_true(sl_keeper_finish(r.keeper, &load));
        assert_int_equal(sl_timeline_complete(r.cache, &t), sees_all(&r, &t));
    }
    /* Pages were given up where the windowed group had not enough for all. */
    const bool holes = r.shape->pages[r.shape->groups - 1] < TEXT_TOKENS / SL_PAGE_TOKENS;
    assert_int_equal(t.cached < load.end * SL_PAGE_TOKENS, holes);
    each_file(remove_file);
    assert_int_equal(sl_keeper_seek(r.keeper, &load), 0);
    sl_timeline_free(r.cache, &t);
    close_rig(&r);
}

static void a_device_that_fails_is_told(void **state) {
    static int32_t tokens[TEXT_TOKENS];
    rig r;
    sl_error error;
    sl_timeline t;
    open_rig(&r, *state, 1 << 20);
    read_text(&r, tokens, 200, CHUNK, 0);
    r.executor->calls_to_fail = 1;
    assert_true(sl_keeper_choose(r.keeper));
    assert_int_equal(sl_keeper_save(r.keeper, &error), SL_ERR_DEVICE);
    sl_keeper_settle(r.keeper);
    save(&r, 1000);
    stop(&r);
    start(&r, 1 << 20);
    assert_int_equal(sl_timeline_init(r.cache, &t, &error), 0);
    const int32_t pages = sl_cache_available_pages(r.cache, 0);
    sl_load load = {.timeline = &t, .tokens = tokens, .limit = 199, .end = SL_NONE};
    assert_int_equal(sl_keeper_seek(r.keeper, &load) > 0, true);
    assert_int_equal(sl_keeper_reserve(r.keeper, &load), 0);
    r.executor->calls_to_fail = 1;
    assert_int_equal(sl_keeper_read(r.keeper, &load, &error), SL_ERR_DEVICE);
    assert_false(sl_keeper_finish(r.keeper, &load));
    assert_int_equal(t.cached, 0);
    sl_timeline_free(r.cache, &t);
    assert_int_equal(sl_cache_available_pages(r.cache, 0), pages); /* nothing is lost */
    close_rig(&r);
}

int main(void) {
    enum { SHAPES = sizeof shapes / sizeof *shapes, KINDS = 5 };
    static char names[KINDS * SHAPES][80];
    struct CMUnitTest tests[KINDS * SHAPES];
    for (int i = 0; i < SHAPES; i++) {
        static const struct {
            const char *name;
            CMUnitTestFunction run;
        } kinds[KINDS] = {{"a_sequence_finds_its_own_past", a_sequence_finds_its_own_past},
                          {"the_last_window_is_enough", the_last_window_is_enough},
                          {"a_file_follows_its_node", a_file_follows_its_node},
                          {"holes_on_the_way_are_known", holes_on_the_way_are_known},
                          {"a_device_that_fails_is_told", a_device_that_fails_is_told}};
        for (int k = 0; k < KINDS; k++) {
            char *name = names[KINDS * i + k];
            snprintf(name, sizeof names[0], "%s: %s", kinds[k].name, shapes[i].name);
            tests[KINDS * i + k] =
                (struct CMUnitTest){name, kinds[k].run, NULL, NULL, (void *)(size_t)&shapes[i]};
        }
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
