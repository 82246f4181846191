/* Split GGUF files: any part opens all, and parts that are missing, mixed up or do not belong together are
 * refused by name. Names and keys as llama.cpp's gguf-split writes them. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "format/gguf_writer.h"
#include "format/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER SLUICE_BINARY_DIR "/test_split"

typedef struct part {
    const char *file;
    int number, count, total; /* split.no, split.count, split.tensors.count */
    const char *tensors;      /* a letter each: an f32 tensor of 4 elements that are the letter's number */
    const char *key, *value;  /* one more key, or NULL */
} part;

static const part PARTS[] = {
    {"m-00001-of-00003.gguf", 0, 3, 4, "a", "general.architecture", "llama"},
    {"m-00002-of-00003.gguf", 1, 3, 4, "bc", NULL, NULL},
    {"m-00003-of-00003.gguf", 2, 3, 4, "d", NULL, NULL},
};

static const char *path_of(const char *file) {
    static char path[1024];
    snprintf(path, sizeof path, FOLDER "/%s", file);
    return path;
}

static void write_part(const part *p) {
    sl_gguf_writer *w;
    const sl_gguf_shape shape = {SL_QTYPE_F32, 1, {4}};
    mkdir(FOLDER, 0777);
    assert_int_equal(sl_gguf_writer_create(path_of(p->file), &w, NULL), 0);
    if (p->count) {
        sl_gguf_writer_unsigned(w, "split.no", SL_GGUF_U16, (uint64_t)p->number, NULL);
        sl_gguf_writer_unsigned(w, "split.count", SL_GGUF_U16, (uint64_t)p->count, NULL);
        sl_gguf_writer_signed(w, "split.tensors.count", SL_GGUF_I32, p->total, NULL);
    }
    if (p->key) {
        sl_gguf_writer_string(w, p->key, sl_view_of(p->value), NULL);
    }
    for (const char *t = p->tensors; *t; t++) {
        sl_gguf_writer_tensor(w, (char[]){*t, '\0'}, &shape, NULL);
    }
    assert_int_equal(sl_gguf_writer_begin(w, NULL, NULL), 0);
    for (const char *t = p->tensors; *t; t++) {
        const float values[4] = {(float)*t, (float)*t, (float)*t, (float)*t};
        assert_int_equal(sl_gguf_writer_data(w, values, sizeof values, NULL), 0);
    }
    assert_int_equal(sl_gguf_writer_finish(w, NULL), 0);
    sl_gguf_writer_free(w);
}

static void write_all(void) {
    for (size_t i = 0; i < 3; i++) {
        write_part(&PARTS[i]);
    }
}

static void any_part_opens_all(void **state) {
    (void)state;
    write_all();
    for (size_t i = 0; i < 3; i++) {
        sl_source *source;
        sl_error error;
        sl_view architecture;
        if (sl_source_open(path_of(PARTS[i].file), &source, &error)) {
            fail_msg("%s", error.message);
        }
        const sl_gguf *gguf = sl_source_gguf(source);
        assert_int_equal(sl_gguf_part_count(gguf), 3);
        assert_string_equal(sl_gguf_path(gguf), FOLDER "/m-00001-of-00003.gguf");
        assert_int_equal(sl_gguf_string(gguf, "general.architecture", &architecture, NULL), 0);
        assert_int_equal(sl_gguf_tensor_count(gguf), 4);
        for (int t = 0; t < 4; t++) {
            const char name[2] = {(char)('a' + t), 0};
            float value;
            assert_string_equal(sl_gguf_tensor_at(gguf, (uint64_t)t)->name, name);
            memcpy(&value, sl_gguf_tensor(gguf, name)->data, sizeof value);
            assert_true(value == (float)name[0]);
        }
        sl_source_close(source);
    }
    /* One part alone can be looked at. */
    sl_gguf *gguf;
    assert_int_equal(sl_gguf_open_part(path_of(PARTS[1].file), &gguf, NULL), 0);
    assert_int_equal(sl_gguf_tensor_count(gguf), 2);
    sl_gguf_close(gguf);
    /* A file that says it is the only part is one. */
    write_part(&(part){"one.gguf", 0, 1, 1, "a", NULL, NULL});
    assert_int_equal(sl_gguf_open(path_of("one.gguf"), &gguf, NULL), 0);
    sl_gguf_close(gguf);
}

static void wrong_sets_are_refused(void **state) {
    (void)state;
    static const struct {
        part change; /* written over a good set; without tensors: removed */
        const char *opened, *words;
        int code;
    } rows[] = {
        {{"m-00002-of-00003.gguf", 0, 0, 0, NULL, NULL, NULL},
         "m-00001-of-00003.gguf",
         "m-00002-of-00003.gguf: is not there: part 2 of the 3",
         SL_ERR_NOT_FOUND},
        {{"m-00001-of-00003.gguf", 0, 0, 0, NULL, NULL, NULL},
         "m-00003-of-00003.gguf",
         "m-00001-of-00003.gguf: is not there: part 1 of the 3",
         SL_ERR_NOT_FOUND},
        {{"m-00002-of-00003.gguf", 2, 3, 4, "bc", NULL, NULL},
         "m-00001-of-00003.gguf",
         "m-00002-of-00003.gguf: part 3 of 3 by what it says, not 2 of 3",
         SL_ERR_FORMAT},
        {{"m-00002-of-00003.gguf", 1, 4, 4, "bc", NULL, NULL},
         "m-00001-of-00003.gguf",
         "m-00002-of-00003.gguf: part 2 of 4 by what it says, not 2 of 3",
         SL_ERR_FORMAT},
        {{"m-00002-of-00003.gguf", 0, 0, 0, "bc", NULL, NULL},
         "m-00001-of-00003.gguf",
         "m-00002-of-00003.gguf: metadata key 'split.count' is missing",
         SL_ERR_NOT_FOUND},
        {{"m-00003-of-00003.gguf", 2, 3, 4, "b", NULL, NULL},
         "m-00001-of-00003.gguf",
         "m-00003-of-00003.gguf: tensor 'b' is also in " FOLDER "/m-00002-of-00003.gguf",
         SL_ERR_FORMAT},
        {{"m-00003-of-00003.gguf", 2, 3, 4, "a", NULL, NULL},
         "m-00001-of-00003.gguf",
         "m-00003-of-00003.gguf: tensor 'a' is also in " FOLDER "/m-00001-of-00003.gguf",
         SL_ERR_FORMAT},
        {{"m-00003-of-00003.gguf", 2, 3, 4, "de", NULL, NULL},
         "m-00001-of-00003.gguf",
         "split.tensors.count is 4, but the 3 parts have 5",
         SL_ERR_FORMAT},
        {{"m-00003-of-00003.gguf", 2, 3, 5, "d", NULL, NULL},
         "m-00001-of-00003.gguf",
         "m-00003-of-00003.gguf: metadata key 'split.tensors.count' differs",
         SL_ERR_FORMAT},
        {{"m-00003-of-00003.gguf", 2, 3, 4, "d", "general.architecture", "qwen3"},
         "m-00001-of-00003.gguf",
         "m-00003-of-00003.gguf: metadata key 'general.architecture' differs",
         SL_ERR_FORMAT},
        {{"other.gguf", 1, 3, 4, "bc", NULL, NULL},
         "other.gguf",
         "other.gguf: part 2 of 3 by what it says, so its name must end in -00002-of-00003.gguf",
         SL_ERR_FORMAT},
        {{"m-00003-of-00003.gguf", 3, 3, 4, "d", NULL, NULL},
         "m-00003-of-00003.gguf",
         "split.no is 3 and split.count 3",
         SL_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        sl_source *source;
        sl_error error;
        const uint64_t live = sl_alloc_live_bytes();
        write_all();
        if (rows[i].change.tensors) {
            write_part(&rows[i].change);
        } else {
            unlink(path_of(rows[i].change.file));
        }
        const int code = sl_source_open(path_of(rows[i].opened), &source, &error);
        if (code != rows[i].code || !strstr(error.message, rows[i].words)) {
            fail_msg("%zu: %d %s", i, code, error.message);
        }
        assert_int_equal(sl_alloc_live_bytes(), live);
    }
}

static void memory_that_runs_out_is_an_error(void **state) {
    (void)state;
    write_all();
    const uint64_t live = sl_alloc_live_bytes();
    int code = SL_ERR_NOMEM;
    for (uint64_t nth = 1; code == SL_ERR_NOMEM; nth++) {
        sl_source *source;
        sl_error error;
        sl_alloc_fail_at(nth);
        code = sl_source_open(path_of(PARTS[0].file), &source, &error);
        sl_alloc_fail_at(0);
        assert_true(code == 0 || code == SL_ERR_NOMEM);
        sl_source_close(source);
        assert_int_equal(sl_alloc_live_bytes(), live);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_part_opens_all),
        cmocka_unit_test(wrong_sets_are_refused),
        cmocka_unit_test(memory_that_runs_out_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
