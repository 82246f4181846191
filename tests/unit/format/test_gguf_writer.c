/* What the GGUF writer leaves on disk, byte by byte, and what it leaves when it is not let finish. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/map.h"
#include "format/gguf_writer.h"
#include "unit/format/bytes.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER SLUICE_BINARY_DIR "/test_gguf_writer"
#define PATH FOLDER "/out.gguf"

static int files_in_folder(void) {
    int count = 0;
    DIR *folder = opendir(FOLDER);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        count += entry->d_name[0] != '.';
    }
    closedir(folder);
    return count;
}

static int prepare(void **state) {
    (void)state;
    mkdir(FOLDER, 0777);
    unlink(PATH);
    return files_in_folder() == 0 ? 0 : -1;
}

/* What the writer is asked to write below, by hand. */
static bytes expected_file(void) {
    bytes b = {0};
    put_header(&b, 3, 3, 17);
    put_key(&b, "s.u8", 0), put_number(&b, 255, 1);
    put_key(&b, "s.u16", 2), put_number(&b, 65535, 2);
    put_key(&b, "s.u32", 4), put_u32(&b, 7);
    put_key(&b, "s.u64", 10), put_u64(&b, UINT64_MAX);
    put_key(&b, "s.i8", 1), put_number(&b, 0x80, 1);
    put_key(&b, "s.i16", 3), put_number(&b, 0xfffe, 2);
    put_key(&b, "s.i32", 5), put_u32(&b, 0x7fffffff);
    put_key(&b, "s.i64", 11), put_u64(&b, 0x8000000000000000u);
    put_key(&b, "s.f32", 6), put_u32(&b, 0x3f000000);
    put_key(&b, "s.f64", 12), put_u64(&b, 0x3ff0000000000000u);
    put_key(&b, "s.bool", 7), put_number(&b, 1, 1);
    put_key(&b, "s.text", 8), put_text(&b, "h\xc3\xa9");
    put_key(&b, "a.text", 9), put_u32(&b, 8), put_u64(&b, 2), put_text(&b, ""), put_text(&b, "b");
    put_key(&b, "a.i32", 9), put_u32(&b, 5), put_u64(&b, 2), put_u32(&b, 0xffffffff), put_u32(&b, 2);
    put_key(&b, "a.f32", 9), put_u32(&b, 6), put_u64(&b, 1), put_u32(&b, 0x3f800000);
    put_key(&b, "a.none", 9), put_u32(&b, 10), put_u64(&b, 0);
    put_key(&b, "a.nested", 9), put_u32(&b, 9), put_u64(&b, 1), put_u32(&b, 8), put_u64(&b, 1),
        put_text(&b, "x");
    put_text(&b, "one"), put_u32(&b, 2), put_u64(&b, 3), put_u64(&b, 3), put_u32(&b, 0), put_u64(&b, 0);
    put_text(&b, "two"), put_u32(&b, 1), put_u64(&b, 32), put_u32(&b, 2), put_u64(&b, 64);
    put_text(&b, "three"), put_u32(&b, 4), put_u64(&b, 4), put_u64(&b, 2), put_u64(&b, 1), put_u64(&b, 2);
    put_u32(&b, 30), put_u64(&b, 96);
    put_zeros_to(&b, 32);
    size_t start = b.size;
    for (int i = 0; i < 36 + 18 + 32; i++) {
        put_number(&b, (uint64_t)i + 1, 1);
        if (i == 35 || i == 53 || i == 85) {
            while ((b.size - start) % 32) {
                put_number(&b, 0, 1);
            }
        }
    }
    return b;
}

static int declare(sl_gguf_writer *w, const sl_gguf *nested, sl_error *error) {
    static const sl_view texts[] = {{NULL, 0}, {"b", 1}};
    static const int32_t integers[] = {-1, 2};
    static const float floats[] = {1.0f};
    const sl_gguf_items arrays[] = {{SL_GGUF_STRING, texts, 2},
                                    {SL_GGUF_I32, integers, 2},
                                    {SL_GGUF_F32, floats, 1},
                                    {SL_GGUF_U64, NULL, 0}};
    static const sl_gguf_shape shapes[] = {
        {SL_QTYPE_F32, 2, {3, 3}}, {SL_QTYPE_Q4_0, 1, {32}}, {SL_QTYPE_BF16, 4, {4, 2, 1, 2}}};
    int codes[] = {
        sl_gguf_writer_unsigned(w, "s.u8", SL_GGUF_U8, 255, error),
        sl_gguf_writer_unsigned(w, "s.u16", SL_GGUF_U16, 65535, error),
        sl_gguf_writer_unsigned(w, "s.u32", SL_GGUF_U32, 7, error),
        sl_gguf_writer_unsigned(w, "s.u64", SL_GGUF_U64, UINT64_MAX, error),
        sl_gguf_writer_signed(w, "s.i8", SL_GGUF_I8, -128, error),
        sl_gguf_writer_signed(w, "s.i16", SL_GGUF_I16, -2, error),
        sl_gguf_writer_signed(w, "s.i32", SL_GGUF_I32, INT32_MAX, error),
        sl_gguf_writer_signed(w, "s.i64", SL_GGUF_I64, INT64_MIN, error),
        sl_gguf_writer_float(w, "s.f32", SL_GGUF_F32, 0.5, error),
        sl_gguf_writer_float(w, "s.f64", SL_GGUF_F64, 1, error),
        sl_gguf_writer_bool(w, "s.bool", true, error),
        sl_gguf_writer_string(w, "s.text", sl_view_of("h\xc3\xa9"), error),
        sl_gguf_writer_array(w, "a.text", &arrays[0], error),
        sl_gguf_writer_array(w, "a.i32", &arrays[1], error),
        sl_gguf_writer_array(w, "a.f32", &arrays[2], error),
        sl_gguf_writer_array(w, "a.none", &arrays[3], error),
        sl_gguf_writer_copy(w, sl_gguf_find(nested, "a.nested"), error),
        sl_gguf_writer_tensor(w, "one", &shapes[0], error),
        sl_gguf_writer_tensor(w, "two", &shapes[1], error),
        sl_gguf_writer_tensor(w, "three", &shapes[2], error),
    };
    /* After a failure the others are refused; the first code is the reason. */
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (codes[i] != 0) {
            return codes[i];
        }
    }
    return 0;
}

/* Writes it all with the data cut in pieces of `piece`; `error` holds the last failure. */
static int write_file_in_pieces(const sl_gguf *nested, size_t piece, sl_error *error) {
    sl_gguf_writer *w;
    uint64_t size = 0;
    unsigned char data[86];
    for (int i = 0; i < 86; i++) {
        data[i] = (unsigned char)(i + 1);
    }
    int result = sl_gguf_writer_create(PATH, &w, error);
    result = result == 0 ? declare(w, nested, error) : result;
    result = result == 0 ? sl_gguf_writer_begin(w, &size, error) : result;
    for (size_t at = 0; result == 0 && at < sizeof data; at += piece) {
        size_t now = sizeof data - at < piece ? sizeof data - at : piece;
        result = sl_gguf_writer_data(w, data + at, now, error);
    }
    assert_true(result != 0 || access(PATH, F_OK) != 0); /* not there before it is complete */
    result = result == 0 ? sl_gguf_writer_finish(w, error) : result;
    struct stat status;
    assert_true(result != 0 || (stat(PATH, &status) == 0 && (uint64_t)status.st_size == size));
    sl_gguf_writer_free(w);
    return result;
}

static sl_gguf *open_nested(bytes *b) {
    sl_gguf *gguf;
    sl_error error;
    *b = expected_file();
    assert_int_equal(sl_gguf_open_memory(b->data, b->size, "expected", &gguf, &error), 0);
    return gguf;
}

static void files_are_as_specified(void **state) {
    (void)state;
    bytes b;
    sl_error error;
    sl_gguf *nested = open_nested(&b);
    static const size_t pieces[] = {1, 7, 36, 54, 86};
    for (size_t i = 0; i < 5; i++) {
        sl_map map = {0};
        assert_int_equal(write_file_in_pieces(nested, pieces[i], &error), 0);
        assert_int_equal(sl_map_open(&map, PATH, &error), 0);
        assert_int_equal(map.size, b.size);
        assert_memory_equal(map.data, b.data, b.size);
        sl_map_close(&map);
        assert_int_equal(files_in_folder(), 1);
        unlink(PATH);
    }
    sl_gguf_close(nested);
    free(b.data);
}

static void copies_keep_every_entry(void **state) {
    (void)state;
    bytes b;
    sl_error error;
    sl_gguf *from = open_nested(&b), *back;
    sl_gguf_writer *w;
    assert_int_equal(sl_gguf_writer_create(PATH, &w, &error), 0);
    for (uint64_t i = 0; i < sl_gguf_entry_count(from); i++) {
        assert_int_equal(sl_gguf_writer_copy(w, sl_gguf_entry_at(from, i), &error), 0);
    }
    assert_int_equal(sl_gguf_writer_unsigned(w, "general.alignment", SL_GGUF_U32, 64, &error), 0);
    sl_gguf_shape shape = {SL_QTYPE_F32, 1, {1}};
    assert_int_equal(sl_gguf_writer_tensor(w, "t", &shape, &error), 0);
    assert_int_equal(sl_gguf_writer_tensor(w, "u", &shape, &error), 0);
    assert_int_equal(sl_gguf_writer_begin(w, NULL, &error), 0);
    assert_int_equal(sl_gguf_writer_data(w, "abcdABCD", 8, &error), 0);
    assert_int_equal(sl_gguf_writer_finish(w, &error), 0);
    sl_gguf_writer_free(w);
    assert_int_equal(sl_gguf_open(PATH, &back, &error), 0);
    assert_int_equal(sl_gguf_entry_count(back), sl_gguf_entry_count(from) + 1);
    for (uint64_t i = 0; i < sl_gguf_entry_count(from); i++) {
        const sl_gguf_entry *a = sl_gguf_entry_at(from, i), *c = sl_gguf_entry_at(back, i);
        assert_string_equal(a->key, c->key);
        assert_true(a->type == c->type && a->item_type == c->item_type && a->count == c->count);
        assert_int_equal(a->bytes, c->bytes);
        assert_memory_equal(a->data, c->data, a->bytes);
    }
    assert_int_equal(sl_gguf_alignment(back), 64);
    assert_memory_equal(sl_gguf_tensor(back, "u")->data, "ABCD", 4);
    assert_int_equal(
        (const char *)sl_gguf_tensor(back, "u")->data - (const char *)sl_gguf_tensor(back, "t")->data, 64);
    sl_gguf_close(back);
    sl_gguf_close(from);
    free(b.data);
}

static void nothing_is_left_of_an_unfinished_file(void **state) {
    (void)state;
    sl_error error;
    sl_gguf_writer *w;
    sl_gguf_shape shape = {SL_QTYPE_F32, 1, {2}};
    write_file(PATH, "old", 3);
    assert_int_equal(sl_gguf_writer_create(PATH, &w, &error), 0);
    assert_int_equal(files_in_folder(), 2);
    assert_int_equal(sl_gguf_writer_tensor(w, "t", &shape, &error), 0);
    assert_int_equal(sl_gguf_writer_begin(w, NULL, &error), 0);
    assert_int_equal(sl_gguf_writer_data(w, "1234567", 7, &error), 0);
    assert_int_equal(sl_gguf_writer_finish(w, &error), SL_ERR_INVALID);
    sl_gguf_writer_free(w);
    assert_int_equal(files_in_folder(), 1);
    sl_map map = {0};
    assert_int_equal(sl_map_open(&map, PATH, &error), 0);
    assert_int_equal(map.size, 3); /* what was there stays */
    sl_map_close(&map);
    assert_int_equal(sl_gguf_writer_create(FOLDER "/none/out.gguf", &w, &error), SL_ERR_IO);
    assert_null(w);
    assert_non_null(strstr(error.message, "/none/out.gguf: cannot create"));
    sl_gguf_writer_free(NULL);
}

static void a_taken_name_is_stepped_over(void **state) {
    (void)state;
    char name[4096];
    sl_error error;
    sl_gguf_writer *w;
    snprintf(name, sizeof name, "%s.tmp-%ld-0", PATH, (long)getpid());
    assert_int_equal(symlink(FOLDER "/victim", name), 0);
    assert_int_equal(sl_gguf_writer_create(PATH, &w, &error), 0);
    assert_int_equal(sl_gguf_writer_begin(w, NULL, &error), 0);
    assert_int_equal(sl_gguf_writer_finish(w, &error), 0);
    sl_gguf_writer_free(w);
    assert_int_equal(unlink(name), 0);
    assert_int_equal(files_in_folder(), 1); /* no victim */
}

/* A file size limit stands for a full disk. */
static void failed_writes_are_errors(void **state) {
    (void)state;
    enum { SIZE = 16 << 20 };
    struct rlimit before, limit;
    sl_error error = {0};
    sl_gguf_writer *w;
    sl_gguf_shape shape = {SL_QTYPE_F32, 1, {SIZE / 4}};
    char *data = calloc(1, SIZE);
    assert_non_null(data);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = SIZE / 2;
    signal(SIGXFSZ, SIG_IGN);
    for (size_t piece = 1 << 20; piece <= SIZE; piece *= 16) {
        assert_int_equal(sl_gguf_writer_create(PATH, &w, &error), 0);
        assert_int_equal(sl_gguf_writer_tensor(w, "t", &shape, &error), 0);
        assert_int_equal(sl_gguf_writer_begin(w, NULL, &error), 0);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        int result = 0;
        for (size_t at = 0; result == 0 && at < SIZE; at += piece) {
            result = sl_gguf_writer_data(w, data, piece, &error);
        }
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(result, SL_ERR_IO);
        assert_non_null(strstr(error.message, "cannot write"));
        sl_gguf_writer_free(w);
        assert_int_equal(files_in_folder(), 0);
    }
    free(data);
}

static void misuse_is_refused(void **state) {
    (void)state;
    enum { CASES = 16 };
    for (int i = 0; i < CASES; i++) {
        sl_error error = {0};
        sl_gguf_writer *w;
        sl_gguf_shape good = {SL_QTYPE_F32, 1, {2}}, zero = {SL_QTYPE_F32, 2, {2, 0}},
                      blocks = {SL_QTYPE_Q8_0, 1, {33}};
        sl_gguf_shape huge = {SL_QTYPE_F32, 2, {(uint64_t)1 << 40, (uint64_t)1 << 40}},
                      many = {SL_QTYPE_F32, 5, {1}};
        sl_gguf_shape unknown = {SL_QTYPE_COUNT, 1, {1}}, memory_only = {SL_QTYPE_FP8_128, 1, {128}};
        sl_gguf_items nested = {SL_GGUF_ARRAY, NULL, 1};
        assert_int_equal(sl_gguf_writer_create(PATH, &w, &error), 0);
        int result = 0;
        switch (i) {
        case 0:
            result = sl_gguf_writer_unsigned(w, "k", SL_GGUF_U8, 256, &error);
            break;
        case 1:
            result = sl_gguf_writer_signed(w, "k", SL_GGUF_I16, -32769, &error);
            break;
        case 2:
            result = sl_gguf_writer_float(w, "k", SL_GGUF_U8, 1, &error);
            break;
        case 3:
            result = sl_gguf_writer_unsigned(w, "k", SL_GGUF_F32, 1, &error);
            break;
        case 4:
            result = sl_gguf_writer_bool(w, "", true, &error);
            break;
        case 5:
            result = sl_gguf_writer_array(w, "k", &nested, &error);
            break;
        case 6:
            result = sl_gguf_writer_tensor(w, "t", &zero, &error);
            break;
        case 7:
            result = sl_gguf_writer_tensor(w, "t", &blocks, &error);
            break;
        case 8:
            result = sl_gguf_writer_tensor(w, "t", &huge, &error);
            break;
        case 9:
            result = sl_gguf_writer_tensor(w, "t", &many, &error);
            break;
        case 10:
            result = sl_gguf_writer_tensor(w, "t", &unknown, &error);
            break;
        case 14:
            result = sl_gguf_writer_tensor(w, "t", &memory_only, &error);
            break;
        case 11:
            result = sl_gguf_writer_unsigned(w, "general.alignment", SL_GGUF_U32, 12, &error);
            break;
        case 12:
            sl_gguf_writer_bool(w, "k", true, &error);
            sl_gguf_writer_bool(w, "k", false, &error);
            result = sl_gguf_writer_begin(w, NULL, &error);
            break;
        case 13:
            sl_gguf_writer_tensor(w, "t", &good, &error);
            sl_gguf_writer_tensor(w, "t", &good, &error);
            result = sl_gguf_writer_begin(w, NULL, &error);
            break;
        default:
            sl_gguf_writer_tensor(w, "t", &good, &error);
            assert_int_equal(sl_gguf_writer_begin(w, NULL, &error), 0);
            result = sl_gguf_writer_data(w, "123456789", 9, &error);
            break;
        }
        if (result != SL_ERR_INVALID) {
            print_message("case %d\n", i);
        }
        assert_int_equal(result, SL_ERR_INVALID);
        assert_int_equal(error.code, SL_ERR_INVALID);
        assert_int_not_equal(sl_gguf_writer_finish(w, &error), 0); /* an error stays */
        sl_gguf_writer_free(w);
        assert_int_equal(files_in_folder(), 0);
    }
}

static void memory_that_runs_out_is_an_error(void **state) {
    (void)state;
    bytes b;
    sl_gguf *nested = open_nested(&b);
    uint64_t live = sl_alloc_live_bytes();
    int result = SL_ERR_NOMEM;
    for (uint64_t nth = 1; result != 0; nth++) {
        sl_error error = {0};
        assert_true(nth < 200);
        sl_alloc_fail_at(nth);
        result = write_file_in_pieces(nested, 10, &error);
        sl_alloc_fail_at(0);
        assert_true(result == 0 || (result == SL_ERR_NOMEM && files_in_folder() == 0));
        assert_int_equal(sl_alloc_live_bytes(), live);
    }
    sl_gguf_close(nested);
    free(b.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(files_are_as_specified, prepare),
        cmocka_unit_test_setup(copies_keep_every_entry, prepare),
        cmocka_unit_test_setup(nothing_is_left_of_an_unfinished_file, prepare),
        cmocka_unit_test_setup(a_taken_name_is_stepped_over, prepare),
        cmocka_unit_test_setup(failed_writes_are_errors, prepare),
        cmocka_unit_test_setup(misuse_is_refused, prepare),
        cmocka_unit_test_setup(memory_that_runs_out_is_an_error, prepare),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(PATH);
    rmdir(FOLDER);
    return failed;
}
