#define _GNU_SOURCE
/* Pages as files: what is damaged, foreign, too much or gone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/log.h"
#include "kv/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE_BYTES = 192, OTHER_BYTES = 64, STATE_BYTES = 40, ALL_PARTS = 1 | 2 | 1 << SL_STORE_STATE };

static char folder[512];
static int warnings;
static char last_line[1024];

static void take_line(void *context, sl_log_level level, const char *line) {
    (void)context;
    warnings += level == SL_LOG_WARNING;
    snprintf(last_line, sizeof last_line, "%s", line);
}

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

static int set_up(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "%s/store-%d", SLUICE_BINARY_DIR, (int)getpid());
    remove_tree(folder);
    warnings = 0;
    sl_log_set(take_line, NULL);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    sl_log_set(NULL, NULL);
    remove_tree(folder);
    return 0;
}

static sl_store *open_store(unsigned char fingerprint, uint64_t budget) {
    sl_store_options options = {.folder = folder,
                                .budget = budget,
                                .fingerprint = {{fingerprint}},
                                .part_bytes = {PAGE_BYTES, OTHER_BYTES, [SL_STORE_STATE] = STATE_BYTES}};
    sl_error error;
    sl_store *store;
    if (sl_store_open(&options, &store, &error)) {
        fail_msg("%s", error.message);
    }
    return store;
}

static sl_store_key key_of(int32_t number) {
    int32_t tokens[SL_PAGE_TOKENS];
    for (int32_t i = 0; i < SL_PAGE_TOKENS; i++) {
        tokens[i] = number * 1000 + i;
    }
    sl_digest root;
    sl_store_key key;
    sl_store_root(0, &root);
    sl_store_child(&root, tokens, &key);
    return key;
}

static void fill(sl_store *store, uint32_t parts, int32_t number) {
    memset(sl_store_part(store, parts, 0), number, PAGE_BYTES);
    memset(sl_store_part(store, parts, 1), number + 1, OTHER_BYTES);
    if (parts >> SL_STORE_STATE & 1) {
        memset(sl_store_part(store, parts, SL_STORE_STATE), number + 2, STATE_BYTES);
    }
}

static int put(sl_store *store, int32_t number, int64_t time) {
    sl_error error;
    const sl_store_key key = key_of(number);
    fill(store, ALL_PARTS, number);
    return sl_store_write(store, &key, ALL_PARTS, time, &error);
}

static bool holds(sl_store *store, int32_t number) {
    const sl_store_key key = key_of(number);
    uint32_t parts;
    if (!sl_store_read(store, &key, &parts)) {
        return false;
    }
    assert_int_equal(parts, ALL_PARTS);
    unsigned char expected[PAGE_BYTES];
    memset(expected, number, PAGE_BYTES);
    assert_memory_equal(sl_store_part(store, parts, 0), expected, PAGE_BYTES);
    memset(expected, number + 1, OTHER_BYTES);
    assert_memory_equal(sl_store_part(store, parts, 1), expected, OTHER_BYTES);
    memset(expected, number + 2, STATE_BYTES);
    assert_memory_equal(sl_store_part(store, parts, SL_STORE_STATE), expected, STATE_BYTES);
    return true;
}

static void path_of(unsigned char fingerprint, int32_t number, char path[1024]) {
    char outer[SL_DIGEST_TEXT], inner[SL_DIGEST_TEXT];
    const sl_digest digest = {{fingerprint}};
    const sl_store_key key = key_of(number);
    sl_digest_text(&digest, outer);
    sl_digest_text(&key.name, inner);
    snprintf(path, 1024, "%s/%s/%s", folder, outer, inner);
}

static off_t size_of(const char *path) {
    struct stat status;
    return stat(path, &status) ? -1 : status.st_size;
}

/* Files in the folder of a fingerprint. */
static int count_files(unsigned char fingerprint) {
    char path[1024], text[SL_DIGEST_TEXT];
    const sl_digest digest = {{fingerprint}};
    sl_digest_text(&digest, text);
    snprintf(path, sizeof path, "%s/%s", folder, text);
    int count = 0;
    DIR *listing = opendir(path);
    for (const struct dirent *d; listing && (d = readdir(listing)) != NULL;) {
        count += d->d_name[0] != '.';
    }
    if (listing) {
        closedir(listing);
    }
    return count;
}

/* ---- tests
 * ----------------------------------------------------------------------------------------------------------
 */

static void what_is_written_is_read(void **state) {
    (void)state;
    sl_store *store = open_store(1, 1 << 20);
    sl_error error;
    uint32_t parts;
    assert_false(holds(store, 3));
    assert_int_equal(put(store, 3, sl_store_now()), 0);
    assert_int_equal(put(store, 4, sl_store_now()), 0);
    assert_true(holds(store, 3));
    /* Fewer parts, in a shorter file; and none at all. */
    const sl_store_key key = key_of(5), bare = key_of(6);
    memset(sl_store_part(store, 2, 1), 9, OTHER_BYTES);
    assert_int_equal(sl_store_write(store, &key, 2, sl_store_now(), &error), 0);
    assert_int_equal(sl_store_write(store, &bare, 0, sl_store_now(), &error), 0);
    sl_store_close(store);
    store = open_store(1, 1 << 20);
    assert_true(holds(store, 4) && holds(store, 3));
    assert_true(sl_store_find(store, &key, &parts) && parts == 2);
    assert_true(sl_store_read(store, &key, &parts) && parts == 2);
    assert_int_equal(sl_store_part(store, parts, 1)[OTHER_BYTES - 1], 9);
    assert_true(sl_store_read(store, &bare, &parts) && parts == 0);
    assert_int_equal(count_files(1), 4);
    assert_int_equal(warnings, 0);
    sl_store_close(store);
}

static void names_follow_all_tokens(void **state) {
    (void)state;
    sl_digest plain, salted;
    sl_store_root(0, &plain);
    sl_store_root(1, &salted);
    assert_memory_not_equal(&plain, &salted, sizeof plain);
    const sl_store_key first = key_of(1), other = key_of(2);
    sl_store_key below, below_other;
    sl_store_child(&first.name, key_of(3).tokens, &below);
    sl_store_child(&other.name, key_of(3).tokens, &below_other);
    assert_memory_not_equal(&below.name, &below_other.name, sizeof below.name);
    assert_memory_equal(&below.parent, &first.name, sizeof first.name);
    below_other.name = first.name; /* the parent may lie in the key */
    sl_store_child(&below_other.name, key_of(3).tokens, &below_other);
    assert_memory_equal(&below.name, &below_other.name, sizeof below.name);
}

static void every_flipped_byte_is_found(void **state) {
    (void)state;
    char path[1024];
    sl_store *store = open_store(1, 1 << 20);
    path_of(1, 3, path);
    assert_int_equal(put(store, 3, sl_store_now()), 0);
    const off_t size = size_of(path);
    assert_true(size > PAGE_BYTES + OTHER_BYTES + STATE_BYTES);
    for (off_t at = 0; at < size; at++) {
        unsigned char byte;
        assert_int_equal(put(store, 3, sl_store_now()), 0);
        const int file = open(path, O_RDWR);
        assert_int_equal(pread(file, &byte, 1, at), 1);
        byte ^= (unsigned char)(1 << at % 8);
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
        close(file);
        warnings = 0;
        if (holds(store, 3)) {
            fail_msg("byte %d of %d was flipped and the file read", (int)at, (int)size);
        }
        assert_int_equal(warnings, 1);
        assert_non_null(strstr(last_line, folder));
        assert_int_equal(size_of(path), -1); /* removed */
        assert_int_equal(sl_store_bytes(store), 0);
    }
    sl_store_close(store);
}

static void short_and_long_files_are_found(void **state) {
    (void)state;
    char path[1024];
    sl_store *store = open_store(1, 1 << 20);
    path_of(1, 3, path);
    assert_int_equal(put(store, 3, sl_store_now()), 0);
    const off_t size = size_of(path);
    for (off_t cut = 0; cut <= size + 9; cut++) {
        assert_int_equal(put(store, 3, sl_store_now()), 0);
        assert_int_equal(truncate(path, cut), 0);
        assert_int_equal(holds(store, 3), cut == size);
        assert_int_equal(size_of(path), cut == size ? size : -1);
    }
    sl_store_close(store);
}

static void other_fingerprints_are_apart(void **state) {
    (void)state;
    char from[1024], to[1024];
    sl_store *store = open_store(1, 1 << 20), *other = open_store(2, 1 << 20);
    assert_int_equal(put(store, 3, sl_store_now()), 0);
    assert_int_equal(put(store, 4, sl_store_now()), 0);
    assert_false(holds(other, 3));
    /* A file that was brought to another's folder, and one under another's name. */
    path_of(1, 3, from);
    path_of(2, 3, to);
    assert_int_equal(link(from, to), 0);
    assert_false(holds(other, 3));
    assert_int_equal(size_of(to), -1);
    assert_true(holds(store, 3));
    path_of(1, 4, to);
    unlink(to);
    assert_int_equal(rename(from, to), 0);
    assert_false(holds(store, 4));
    assert_false(holds(store, 3));
    assert_int_equal(count_files(1), 0);
    sl_store_close(store);
    sl_store_close(other);
}

static void the_least_recently_used_go_first(void **state) {
    (void)state;
    sl_store *store = open_store(1, 1 << 20);
    sl_error error;
    const int64_t now = sl_store_now();
    assert_int_equal(put(store, 1, now - 4000), 0);
    const uint64_t one = sl_store_bytes(store);
    sl_store_close(store);
    store = open_store(1, 4 * one + one / 2);
    assert_int_equal(sl_store_bytes(store), one);
    for (int32_t i = 2; i <= 4; i++) {
        assert_int_equal(put(store, i, now - 4000 + i), 0);
    }
    const sl_store_key first = key_of(1), gone = key_of(77);
    assert_true(sl_store_touch(store, &first, now - 100));
    assert_false(sl_store_touch(store, &gone, now));
    assert_int_equal(put(store, 5, now - 50), 0); /* 2 is the oldest now */
    assert_false(holds(store, 2));
    assert_true(holds(store, 1) && holds(store, 3) && holds(store, 4) && holds(store, 5));
    assert_int_equal(sl_store_bytes(store), 4 * one);
    /* What is older than all that is there takes nobody's place. */
    assert_int_equal(put(store, 6, now - 9000), SL_ERR_LIMIT);
    assert_false(holds(store, 6));
    sl_store_close(store);
    /* Another model's files count, and go when a smaller budget asks for it. */
    store = open_store(2, 3 * one + 1);
    assert_int_equal(sl_store_bytes(store), 3 * one);
    assert_int_equal(count_files(1), 3);
    assert_int_equal(put(store, 1, now), 0);
    assert_int_equal(count_files(1), 2);
    sl_store_close(store);
    store = open_store(1, 1 << 20);
    assert_true(holds(store, 1) && holds(store, 5));
    sl_store_close(store);
    /* One page is more than the budget. */
    store = open_store(3, one - 1);
    const sl_store_key key = key_of(1);
    fill(store, ALL_PARTS, 1);
    assert_int_equal(sl_store_write(store, &key, ALL_PARTS, now, &error), SL_ERR_LIMIT);
    assert_int_equal(count_files(1) + count_files(2) + count_files(3), 0);
    sl_store_close(store);
}

static void two_stores_share_a_folder(void **state) {
    (void)state;
    char path[1024];
    sl_store *a = open_store(1, 1 << 20);
    const int64_t now = sl_store_now();
    assert_int_equal(put(a, 1, now - 1000), 0);
    const uint64_t one = sl_store_bytes(a);
    sl_store_close(a);
    a = open_store(1, 3 * one + 1);
    sl_store *b = open_store(1, 3 * one + 1);
    assert_int_equal(put(a, 2, now - 900), 0);
    assert_int_equal(put(a, 3, now - 800), 0);
    assert_true(holds(b, 1) && holds(b, 2) && holds(b, 3)); /* also what came after it was opened */
    assert_int_equal(sl_store_bytes(b), 3 * one);
    /* What b used, a must not take for old, though it has just looked. */
    const sl_store_key first = key_of(1);
    sl_store_close(a);
    a = open_store(1, 3 * one + 1);
    assert_true(sl_store_touch(b, &first, now - 1));
    assert_int_equal(put(a, 4, now - 500), 0);
    assert_true(holds(a, 1));
    assert_false(holds(a, 2));
    assert_false(holds(b, 2)); /* gone, and no error */
    /* Both write the same page. */
    assert_int_equal(put(b, 4, now - 400), 0);
    assert_true(holds(a, 4) && holds(b, 4));
    /* Many pages of both: their sum stays near the budget, as each looks again now and then. */
    for (int32_t i = 10; i < 60; i++) {
        assert_int_equal(put(i % 2 ? a : b, i, sl_store_now()), 0);
    }
    assert_in_range(count_files(1), 1, 5);
    /* Somebody removes the folder. */
    path_of(1, 1, path);
    *strrchr(path, '/') = 0;
    remove_tree(path);
    assert_false(holds(a, 59));
    assert_int_equal(put(a, 7, sl_store_now()), 0);
    assert_true(holds(b, 7));
    assert_int_equal(warnings, 0);
    sl_store_close(a);
    sl_store_close(b);
}

static void strangers_are_left_alone(void **state) {
    (void)state;
    char path[1024], outer[SL_DIGEST_TEXT];
    const sl_digest digest = {{1}};
    sl_store_close(open_store(1, 1 << 20));
    sl_digest_text(&digest, outer);
    static const char *const names[] = {"note.txt", "new-1-2-3", "new-old"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s/%s", folder, outer, names[i]);
        fclose(fopen(path, "w"));
    }
    const struct timespec old[2] = {{1, 0}, {1, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    assert_int_equal(warnings, 0);
    sl_store *store = open_store(1, 100);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(last_line, "note.txt"));
    assert_int_equal(count_files(1), 2); /* a temporary file of an hour ago is gone */
    assert_int_equal(sl_store_bytes(store), 0);
    sl_store_close(store);
}

static void folders_that_cannot_be_used_are_named(void **state) {
    (void)state;
    char path[1024];
    sl_store_options options = {.folder = path, .budget = 1, .part_bytes = {PAGE_BYTES}};
    sl_store *store;
    sl_error error;
    snprintf(path, sizeof path, "%s/a/b", folder);
    assert_int_equal(sl_store_open(&options, &store, &error), SL_ERR_IO);
    assert_non_null(strstr(error.message, path));
    assert_null(store);
    snprintf(path, sizeof path, "%s", folder);
    fclose(fopen(path, "w"));
    assert_int_equal(sl_store_open(&options, &store, &error), SL_ERR_IO);
    assert_non_null(strstr(error.message, path));
    unlink(path);
    assert_int_equal(mkdir(path, 0555), 0);
    const uid_t user = geteuid();
    enum { NOBODY = 65534 };
    if (user == 0) { /* may write everywhere */
        assert_int_equal(seteuid(NOBODY), 0);
    }
    const int result = sl_store_open(&options, &store, &error);
    assert_int_equal(seteuid(user), 0);
    assert_int_equal(result, SL_ERR_IO);
    assert_non_null(strstr(error.message, path));
}

static void a_full_disk_leaves_nothing(void **state) {
    (void)state;
    sl_store *store = open_store(1, 1 << 20);
    struct rlimit before, tight;
    assert_int_equal(put(store, 1, sl_store_now()), 0);
    getrlimit(RLIMIT_FSIZE, &before);
    tight = before;
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < 600; limit += 199) {
        tight.rlim_cur = limit;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
        const int result = put(store, 2, sl_store_now());
        setrlimit(RLIMIT_FSIZE, &before);
        assert_int_equal(result, SL_ERR_IO);
        assert_int_equal(count_files(1), 1);
        assert_int_equal(warnings, 1); /* said once */
    }
    assert_int_equal(put(store, 2, sl_store_now()), 0);
    assert_true(holds(store, 1) && holds(store, 2));
    sl_store_close(store);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(what_is_written_is_read),
        TEST(names_follow_all_tokens),
        TEST(every_flipped_byte_is_found),
        TEST(short_and_long_files_are_found),
        TEST(other_fingerprints_are_apart),
        TEST(the_least_recently_used_go_first),
        TEST(two_stores_share_a_folder),
        TEST(strangers_are_left_alone),
        TEST(folders_that_cannot_be_used_are_named),
        TEST(a_full_disk_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
