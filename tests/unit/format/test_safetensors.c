/* safetensors files built by hand: what is read, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/text.h"
#include "format/safetensors.h"
#include "unit/format/bytes.h"

#include <jansson.h>
#include <unistd.h>

/* bf16 [2, 3], f32 scalar, f16 [1, 1, 1, 1, 2], fp8 [3], an empty one: 12 + 4 + 4 + 3 = 23 bytes. */
static const char good_header[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]},"
    "\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
    "\"conv\":{\"dtype\":\"F16\",\"shape\":[1,1,1,1,2],\"data_offsets\":[16,20]},"
    "\"fp8\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[20,23]},"
    "\"none\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[23,23]},"
    "\"odd\":{\"dtype\":\"Q99\",\"shape\":[4],\"data_offsets\":[23,23]}}   ";

static bytes build(void) {
    bytes b = {0};
    put_safetensors(&b, good_header, "\0\1\2\3\4\5\6\7\10\11\12\13\14\15\16\17\20\21\22\23\24\25\26", 23);
    return b;
}

static int open_bytes(const bytes *b, sl_safetensors **file, sl_error *error) {
    return sl_safetensors_open_memory(b->data, b->size, "test.safetensors", file, error);
}

static uint64_t walk(const sl_safetensors *file) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < sl_safetensors_count(file); i++) {
        const sl_safetensors_entry *entry = sl_safetensors_at(file, i);
        const sl_tensor *tensor;
        assert_ptr_equal(sl_safetensors_find(file, entry->tensor.name), entry);
        int result = sl_safetensors_tensor(file, entry->tensor.name, &tensor, NULL);
        assert_int_equal(result, entry->refusal ? SL_ERR_UNSUPPORTED : 0);
        sum += sl_hash64(entry->tensor.data, entry->tensor.bytes, sum);
        sum += sl_hash64(entry->dtype, strlen(entry->dtype), sum);
    }
    return sum;
}

static void tensors_are_views(void **state) {
    (void)state;
    bytes b = build();
    sl_safetensors *file;
    sl_error error;
    const sl_tensor *tensor;
    assert_int_equal(open_bytes(&b, &file, &error), 0);
    assert_int_equal(sl_safetensors_count(file), 6);
    assert_string_equal(sl_safetensors_at(file, 0)->tensor.name, "a.weight");
    assert_string_equal(sl_safetensors_at(file, 0)->dtype, "BF16");
    assert_int_equal(sl_safetensors_tensor(file, "a.weight", &tensor, &error), 0);
    assert_int_equal(tensor->type, SL_QTYPE_BF16);
    assert_int_equal(tensor->dim_count, 2);
    assert_int_equal(tensor->dims[0], 3); /* innermost first */
    assert_int_equal(tensor->dims[1], 2);
    assert_int_equal(tensor->dims[2], 1);
    assert_int_equal(tensor->elements, 6);
    assert_int_equal(tensor->bytes, 12);
    assert_int_equal(((const unsigned char *)tensor->data)[11], 11);
    assert_int_equal(sl_safetensors_tensor(file, "b.weight", &tensor, &error), 0);
    assert_int_equal(tensor->dim_count, 1);
    assert_int_equal(tensor->dims[0], 1);
    assert_int_equal(*(const unsigned char *)tensor->data, 12);
    assert_int_equal(sl_safetensors_tensor(file, "c", &tensor, &error), SL_ERR_NOT_FOUND);
    assert_string_equal(error.message, "test.safetensors: there is no tensor 'c'");
    assert_int_equal(sl_safetensors_tensor(file, "__metadata__", &tensor, &error), SL_ERR_NOT_FOUND);
    static const char *const refused[][2] = {{"conv", "(F16) cannot be used: it has more than 4 dimensions"},
                                             {"fp8", "(F8_E4M3) cannot be used: its dtype"},
                                             {"none", "a dimension is 0"},
                                             {"odd", "(Q99)"}};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(sl_safetensors_tensor(file, refused[i][0], &tensor, &error), SL_ERR_UNSUPPORTED);
        assert_non_null(strstr(error.message, refused[i][1]));
    }
    assert_int_equal(sl_safetensors_find(file, "conv")->rank, 5);
    walk(file);
    sl_safetensors_close(file);
    free(b.data);
}

static void an_empty_file_of_no_tensors_opens(void **state) {
    (void)state;
    bytes b = {0};
    sl_safetensors *file;
    sl_error error;
    put_safetensors(&b, "{}", "", 0);
    assert_int_equal(open_bytes(&b, &file, &error), 0);
    assert_int_equal(sl_safetensors_count(file), 0);
    sl_safetensors_close(file);
    free(b.data);
}

static void every_prefix_is_refused(void **state) {
    (void)state;
    bytes b = build();
    for (size_t size = 0; size < b.size; size++) {
        unsigned char *copy = exact_copy(b.data, size);
        sl_safetensors *file;
        sl_error error = {0};
        assert_int_equal(sl_safetensors_open_memory(copy, size, "test.safetensors", &file, &error),
                         SL_ERR_FORMAT);
        assert_memory_equal(error.message, "test.safetensors: ", 18);
        assert_null(file);
        free(copy);
    }
    free(b.data);
}

static void flipped_bits_never_crash(void **state) {
    (void)state;
    bytes b = build();
    uint64_t live = sl_alloc_live_bytes();
    int refused = 0, opened = 0;
    unsigned char *copy = exact_copy(b.data, b.size);
    for (size_t bit = 0; bit < b.size * 8; bit++) {
        copy[bit / 8] ^= (unsigned char)(1u << bit % 8);
        sl_safetensors *file;
        sl_error error;
        if (sl_safetensors_open_memory(copy, b.size, "test.safetensors", &file, &error) == 0) {
            walk(file);
            opened++;
        } else {
            assert_null(strpbrk(error.message, "\n\r\x1b"));
            refused++;
        }
        sl_safetensors_close(file);
        copy[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    assert_int_equal(sl_alloc_live_bytes(), live);
    assert_true(refused > 1000 && opened > 100);
    free(copy);
    free(b.data);
}

static void broken_headers_are_refused(void **state) {
    (void)state;
    /* Each with 8 bytes of data. */
    static const char *const rows[][2] = {
        {"[]", "does not begin with '{'"},
        {" {}", "does not begin with '{'"},
        {"{", "not JSON"},
        {"{}", "the tensors end at byte 0 of the data, which has 8"},
        {"{} x", "not JSON"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         "duplicate"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         "tensor 'b' begins at byte 0 of the data, but another ends at byte 4"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[0,6]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         "tensor 'b' begins at byte 4 of the data, but another ends at byte 6"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         "leaving a gap from byte 2"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "leaving a gap from byte 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "the tensors end at byte 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}",
         "end at byte 12, but the file has 8 bytes of data: it is not complete"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "are 8 and 0, must ascend"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}",
         "span 8 bytes, but 'shape' has 3 elements"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[17],\"data_offsets\":[0,8]}}", "17 elements of 4 bits"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[15],\"data_offsets\":[0,8]}}", "15 elements of 4 bits"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}",
         "'shape' item 0 must be an integer >= 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}",
         "'shape' item 0 must be an integer"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}",
         "elements overflows at 'shape' item 1"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[576460752303423490],\"data_offsets\":[0,8]}}", "span 8 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,8]}}", "not JSON"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", "'shape' must be an array"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", "'shape' must be an array"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", "'data_offsets' must be two"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-1,8]}}", "'data_offsets' must be two"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "'data_offsets' must be two"},
        {"{\"a\":{\"dtype\":32,\"shape\":[2],\"data_offsets\":[0,8]}}", "a 'dtype' of"},
        {"{\"a\":{\"dtype\":\"F\\n2\",\"shape\":[2],\"data_offsets\":[0,8]}}", "a 'dtype' of"},
        {"{\"a\":[]}", "a 'dtype' of"},
        {"{\"\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         "is empty or holds a control character"},
        {"{\"a\\nb\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "holds a control character"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bytes b = {0};
        sl_safetensors *file;
        sl_error error = {0};
        put_safetensors(&b, rows[i][0], "12345678", 8);
        int result = open_bytes(&b, &file, &error);
        if (result != SL_ERR_FORMAT || !strstr(error.message, rows[i][1])) {
            print_message("%s: %s\n", rows[i][0], error.message);
        }
        assert_int_equal(result, SL_ERR_FORMAT);
        assert_non_null(strstr(error.message, rows[i][1]));
        assert_null(file);
        free(b.data);
    }
}

static void declared_lengths_are_not_believed(void **state) {
    (void)state;
    static const uint64_t lengths[] = {0, 3, 1u << 30, 100000001, INT64_MAX, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        bytes b = {0};
        sl_safetensors *file;
        sl_error error;
        put_u64(&b, lengths[i]), put_bytes(&b, "{}", 2);
        assert_int_equal(open_bytes(&b, &file, &error), SL_ERR_FORMAT);
        assert_non_null(strstr(error.message, "header"));
        free(b.data);
    }
    /* Nested beyond what any header needs. */
    bytes b = {0};
    enum { DEPTH = 100000 };
    put_u64(&b, 5 + 2 * DEPTH), put_bytes(&b, "{\"a\":", 5);
    for (int i = 0; i < 2 * DEPTH; i++) {
        put_bytes(&b, i < DEPTH ? "[" : "]", 1);
    }
    sl_safetensors *file;
    sl_error error;
    assert_int_equal(open_bytes(&b, &file, &error), SL_ERR_LIMIT);
    assert_non_null(strstr(error.message, "depth"));
    free(b.data);
}

static void memory_that_runs_out_is_an_error(void **state) {
    (void)state;
    bytes b = build();
    uint64_t live = sl_alloc_live_bytes();
    const char *path = SLUICE_BINARY_DIR "/test_safetensors_memory.safetensors";
    write_file(path, b.data, b.size);
    json_set_alloc_funcs(sl_alloc, sl_free);
    int result = SL_ERR_NOMEM;
    for (uint64_t nth = 1; result != 0; nth++) {
        sl_safetensors *file;
        sl_error error = {0};
        assert_true(nth < 1000);
        sl_alloc_fail_at(nth);
        result = sl_safetensors_open(path, &file, &error);
        sl_alloc_fail_at(0);
        if (result != 0) {
            assert_int_equal(result, SL_ERR_NOMEM);
            assert_int_equal(error.code, result);
            assert_null(file);
        } else {
            assert_true(nth > 20);
            assert_int_equal(sl_safetensors_count(file), 6);
            walk(file);
            sl_safetensors_close(file);
        }
        assert_int_equal(sl_alloc_live_bytes(), live);
    }
    json_set_alloc_funcs(malloc, free);
    unlink(path);
    free(b.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_views),
        cmocka_unit_test(an_empty_file_of_no_tensors_opens),
        cmocka_unit_test(every_prefix_is_refused),
        cmocka_unit_test(flipped_bits_never_crash),
        cmocka_unit_test(broken_headers_are_refused),
        cmocka_unit_test(declared_lengths_are_not_believed),
        cmocka_unit_test(memory_that_runs_out_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
