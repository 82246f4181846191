/* What may be written to, and what stands there when it is complete. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "format/output_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER SLUICE_BINARY_DIR "/test_output_file"
#define PATH FOLDER "/out"

static int empty_folder(void **state) {
    (void)state;
    mkdir(FOLDER, 0777);
    DIR *folder = opendir(FOLDER);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] != '.') {
            unlinkat(dirfd(folder), entry->d_name, 0);
        }
    }
    closedir(folder);
    return 0;
}

static int files(void) {
    int count = 0;
    DIR *folder = opendir(FOLDER);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    closedir(folder);
    return count;
}

static void put(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void check_text(const char *path, const char *wanted) {
    char text[64] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_string_equal(text, wanted);
}

static int check_rules(const char *path, bool replace, const char *input, sl_error *error) {
    const char *inputs[] = {input};
    const sl_output_rules rules = {replace, inputs, input ? 1 : 0};
    return sl_output_file_check(path, &rules, error);
}

static void shards_of_the_input_stay(void **state) {
    (void)state;
    sl_error error;
    put(FOLDER "/m-00001-of-00003.gguf", "1");
    put(FOLDER "/m-00003-of-00003.gguf", "3");
    put(FOLDER "/m-00004-of-00003.gguf", "4");
    put(FOLDER "/other-00003-of-00003.gguf", "3");
    const char *input = FOLDER "/m-00001-of-00003.gguf";
    assert_int_equal(check_rules(FOLDER "/m-00003-of-00003.gguf", true, input, &error), SL_ERR_INVALID);
    assert_non_null(strstr(error.message, "belongs to it"));
    assert_int_equal(check_rules(FOLDER "/m-00004-of-00003.gguf", true, input, &error), 0);
    assert_int_equal(check_rules(FOLDER "/other-00003-of-00003.gguf", true, input, &error), 0);
    /* A safetensors file stands for its folder. */
    put(FOLDER "/model.safetensors", "x");
    put(FOLDER "/config.json", "x");
    assert_int_equal(check_rules(FOLDER "/config.json", true, FOLDER "/model.safetensors", &error),
                     SL_ERR_INVALID);
    assert_int_equal(check_rules(FOLDER "/config.json", true, FOLDER, &error), SL_ERR_INVALID);
    assert_int_equal(check_rules(FOLDER "/config.json", true, NULL, &error), 0);
    assert_int_equal(check_rules(FOLDER "/config.json", false, NULL, &error), SL_ERR_INVALID);
    assert_int_equal(check_rules("", true, NULL, &error), SL_ERR_INVALID);
    assert_int_equal(check_rules(FOLDER "/config.json/x", true, NULL, &error), SL_ERR_IO);
}

/* What appears while the output is being written is not written over either. */
static void what_appears_meanwhile_stays(void **state) {
    (void)state;
    const sl_output_rules keep = {0}, replace = {.replace = true};
    for (int which = 0; which < 3; which++) {
        sl_error error;
        sl_output_file output;
        assert_int_equal(sl_output_file_open(&output, PATH, which == 0 ? &keep : &replace, &error), 0);
        assert_int_equal(write(output.file, "new", 3), 3);
        if (which == 1) {
            assert_int_equal(mkfifo(PATH, 0600), 0);
        } else {
            put(PATH, "old");
        }
        assert_int_equal(sl_output_file_commit(&output, &error), which == 2 ? 0 : SL_ERR_INVALID);
        sl_output_file_discard(&output);
        assert_int_equal(files(), 1);
        if (which != 1) {
            check_text(PATH, which == 0 ? "old" : "new");
        }
        unlink(PATH);
    }
}

static void links_and_devices_are_refused(void **state) {
    (void)state;
    sl_error error;
    put(FOLDER "/target", "old");
    assert_int_equal(symlink(FOLDER "/target", FOLDER "/link"), 0);
    assert_int_equal(symlink(FOLDER "/nothing", FOLDER "/dangling"), 0);
    static const char *const paths[] = {FOLDER "/link", FOLDER "/dangling", FOLDER, "/dev/null"};
    static const char *const words[] = {"symbolic link", "symbolic link", "folder", "device"};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(check_rules(paths[i], true, NULL, &error), SL_ERR_INVALID);
        assert_non_null(strstr(error.message, words[i]));
        assert_non_null(strstr(error.message, paths[i]));
    }
    check_text(FOLDER "/target", "old");
    assert_int_equal(files(), 3);
}

static void permissions_are_those_of_a_new_file(void **state) {
    (void)state;
    sl_error error;
    sl_output_file output;
    struct stat status;
    const sl_output_rules rules = {0};
    const mode_t before = umask(027);
    assert_int_equal(sl_output_file_open(&output, PATH, &rules, &error), 0);
    umask(before);
    assert_int_equal(sl_output_file_commit(&output, &error), 0);
    assert_int_equal(stat(PATH, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0640);
    const uint64_t live = sl_alloc_live_bytes();
    assert_int_equal(sl_output_file_open(&output, FOLDER "/two", &rules, &error), 0);
    sl_output_file_discard(&output);
    assert_int_equal(files(), 1);
    assert_int_equal(sl_alloc_live_bytes(), live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(shards_of_the_input_stay, empty_folder),
        cmocka_unit_test_setup(what_appears_meanwhile_stays, empty_folder),
        cmocka_unit_test_setup(links_and_devices_are_refused, empty_folder),
        cmocka_unit_test_setup(permissions_are_those_of_a_new_file, empty_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
