/* GGUF files built by hand, and broken ones. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "format/gguf.h"
#include "format/index.h"
#include "unit/format/bytes.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static int open_bytes(const bytes *b, sl_gguf **gguf, sl_error *error) {
    return sl_gguf_open_memory(b->data, b->size, "test.gguf", gguf, error);
}

/* Reads everything that a file shows. */
static uint64_t walk(const sl_gguf *gguf) {
    uint64_t sum = sl_gguf_version(gguf);
    for (uint64_t i = 0; i < sl_gguf_entry_count(gguf); i++) {
        const sl_gguf_entry *entry = sl_gguf_entry_at(gguf, i);
        assert_ptr_equal(sl_gguf_find(gguf, entry->key), entry);
        const unsigned char *cursor = entry->data;
        for (uint64_t n = 0; n < entry->count; n++) {
            if (entry->item_type == SL_GGUF_STRING) {
                sl_view text = sl_gguf_next_string(&cursor);
                sum += sl_hash64(text.data, text.length, sum);
            } else if (entry->item_type != SL_GGUF_ARRAY) {
                sum += (uint64_t)sl_gguf_item_i64(entry, n);
                sum += sl_gguf_item_f64(entry, n) > 0;
            }
        }
        sum += sl_hash64(entry->data, entry->bytes, sum);
    }
    for (uint64_t i = 0; i < sl_gguf_tensor_count(gguf); i++) {
        const sl_tensor *tensor = sl_gguf_tensor_at(gguf, i);
        assert_ptr_equal(sl_gguf_tensor(gguf, tensor->name), tensor);
        assert_true(tensor->elements > 0 && tensor->bytes > 0);
        sum += sl_hash64(tensor->data, tensor->bytes, sum);
    }
    return sum;
}

static void put_every_type(bytes *b) {
    put_key(b, "a.u8", 0), put_number(b, 200, 1);
    put_key(b, "a.i8", 1), put_number(b, 0xfd, 1);
    put_key(b, "a.u16", 2), put_number(b, 60000, 2);
    put_key(b, "a.i16", 3), put_number(b, 0xfffe, 2);
    put_key(b, "a.u32", 4), put_u32(b, 4000000000u);
    put_key(b, "a.i32", 5), put_u32(b, 0xffffffffu);
    put_key(b, "a.f32", 6), put_u32(b, 0x3fc00000); /* 1.5 */
    put_key(b, "a.bool", 7), put_number(b, 1, 1);
    put_key(b, "a.string", 8), put_text(b, "sluice");
    put_key(b, "a.u64", 10), put_u64(b, 0x8000000000000001u);
    put_key(b, "a.i64", 11), put_u64(b, 0x8000000000000000u);
    put_key(b, "a.f64", 12), put_u64(b, 0xc004000000000000u); /* -2.5 */
    put_key(b, "b.strings", 9), put_u32(b, 8), put_u64(b, 3);
    put_text(b, "one"), put_text(b, ""), put_text(b, "three");
    put_key(b, "b.i16s", 9), put_u32(b, 3), put_u64(b, 2), put_number(b, 7, 2), put_number(b, 0x8001, 2);
    put_key(b, "b.f32s", 9), put_u32(b, 6), put_u64(b, 2), put_u32(b, 0x3f800000), put_u32(b, 0xbf000000);
    put_key(b, "b.bools", 9), put_u32(b, 7), put_u64(b, 2), put_number(b, 0, 1), put_number(b, 1, 1);
    put_key(b, "b.empty", 9), put_u32(b, 4), put_u64(b, 0);
    /* [[1, 2], [], [3]] of u8, and [[["x"]]] */
    put_key(b, "c.nested", 9), put_u32(b, 9), put_u64(b, 3);
    put_u32(b, 0), put_u64(b, 2), put_number(b, 1, 1), put_number(b, 2, 1);
    put_u32(b, 9), put_u64(b, 0);
    put_u32(b, 0), put_u64(b, 1), put_number(b, 3, 1);
    put_key(b, "c.deep", 9), put_u32(b, 9), put_u64(b, 1), put_u32(b, 9), put_u64(b, 1), put_u32(b, 8);
    put_u64(b, 1), put_text(b, "x");
}

enum { EVERY_TYPE = 19 };

typedef struct tensor_entry {
    uint32_t type;
    uint64_t offset;
    int dims; /* however many are declared, at most 8 are written */
    uint64_t d0, d1;
} tensor_entry;

static void put_tensor(bytes *b, const char *name, tensor_entry entry) {
    put_text(b, name);
    put_u32(b, (uint64_t)entry.dims);
    for (int i = 0; i < entry.dims && i < 8; i++) {
        put_u64(b, i == 0 ? entry.d0 : i == 1 ? entry.d1 : 1);
    }
    put_u32(b, entry.type);
    put_u64(b, entry.offset);
}

/* Every value type and three tensors: f32 [3, 2], q8_0 [32], a scalar f16. */
static bytes build(uint32_t version) {
    bytes b = {0};
    put_header(&b, version, 3, EVERY_TYPE);
    put_every_type(&b);
    put_tensor(&b, "first.weight", (tensor_entry){0, 0, 2, 3, 2});
    put_tensor(&b, "second.weight", (tensor_entry){8, 32, 1, 32, 0});
    put_tensor(&b, "scalar", (tensor_entry){1, 96, 0, 0, 0});
    put_zeros_to(&b, 32);
    for (int i = 0; i < 98; i++) {
        put_number(&b, (uint64_t)i, 1);
    }
    return b;
}

static void check_scalars(const sl_gguf *gguf) {
    sl_error error;
    static const struct {
        const char *key;
        int u64, i64; /* codes of the two look-ups */
        int64_t value;
    } rows[] = {
        {"a.u8", 0, 0, 200},
        {"a.i8", SL_ERR_FORMAT, 0, -3},
        {"a.u16", 0, 0, 60000},
        {"a.i16", SL_ERR_FORMAT, 0, -2},
        {"a.u32", 0, 0, 4000000000},
        {"a.i32", SL_ERR_FORMAT, 0, -1},
        {"a.i64", SL_ERR_FORMAT, 0, INT64_MIN},
        {"a.u64", 0, SL_ERR_FORMAT, (int64_t)0x8000000000000001u},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t u = 0;
        int64_t s = 0;
        assert_int_equal(sl_gguf_u64(gguf, rows[i].key, &u, &error), rows[i].u64);
        assert_int_equal(sl_gguf_i64(gguf, rows[i].key, &s, &error), rows[i].i64);
        assert_true(rows[i].u64 != 0 || u == (uint64_t)rows[i].value);
        assert_true(rows[i].i64 != 0 || s == rows[i].value);
    }
    double f = 0;
    bool flag = false;
    sl_view text;
    uint64_t u;
    assert_int_equal(sl_gguf_f64(gguf, "a.f32", &f, &error), 0);
    assert_true(f == 1.5);
    assert_int_equal(sl_gguf_f64(gguf, "a.f64", &f, &error), 0);
    assert_true(f == -2.5);
    assert_int_equal(sl_gguf_bool(gguf, "a.bool", &flag, &error), 0);
    assert_true(flag);
    assert_int_equal(sl_gguf_string(gguf, "a.string", &text, &error), 0);
    assert_true(sl_view_is(text, "sluice"));
    assert_int_equal(sl_gguf_u64(gguf, "a.f32", &u, &error), SL_ERR_FORMAT);
    assert_string_equal(error.message, "test.gguf: metadata key 'a.f32' is f32, integer >= 0 wanted");
    assert_int_equal(sl_gguf_bool(gguf, "a.u8", &flag, &error), SL_ERR_FORMAT);
    assert_int_equal(sl_gguf_string(gguf, "b.strings", &text, &error), SL_ERR_FORMAT);
    assert_string_equal(error.message,
                        "test.gguf: metadata key 'b.strings' is array of string, string wanted");
    assert_int_equal(sl_gguf_f64(gguf, "a.gone", &f, &error), SL_ERR_NOT_FOUND);
    assert_string_equal(error.message, "test.gguf: metadata key 'a.gone' is missing (f32 or f64 wanted)");
    assert_int_equal(sl_gguf_u64(gguf, "a.gone", &u, NULL), SL_ERR_NOT_FOUND);
}

static void check_arrays(const sl_gguf *gguf) {
    sl_error error;
    const sl_gguf_entry *entry;
    assert_int_equal(sl_gguf_array(gguf, "b.strings", SL_GGUF_STRING, &entry, &error), 0);
    assert_int_equal(entry->count, 3);
    const unsigned char *cursor = entry->data;
    assert_true(sl_view_is(sl_gguf_next_string(&cursor), "one"));
    assert_true(sl_view_is(sl_gguf_next_string(&cursor), ""));
    assert_true(sl_view_is(sl_gguf_next_string(&cursor), "three"));
    assert_int_equal(cursor - entry->data, entry->bytes);
    assert_int_equal(sl_gguf_array(gguf, "b.i16s", SL_GGUF_I16, &entry, &error), 0);
    assert_int_equal(sl_gguf_item_i64(entry, 0), 7);
    assert_int_equal(sl_gguf_item_i64(entry, 1), -32767);
    assert_int_equal(sl_gguf_array(gguf, "b.f32s", SL_GGUF_F32, &entry, &error), 0);
    assert_true(sl_gguf_item_f64(entry, 1) == -0.5);
    assert_int_equal(sl_gguf_array(gguf, "b.bools", SL_GGUF_BOOL, &entry, &error), 0);
    assert_int_equal(sl_gguf_item_i64(entry, 0), 0);
    assert_int_equal(sl_gguf_item_i64(entry, 1), 1);
    assert_int_equal(sl_gguf_array(gguf, "b.empty", SL_GGUF_U32, &entry, &error), 0);
    assert_int_equal(entry->count, 0);
    assert_int_equal(sl_gguf_array(gguf, "c.nested", SL_GGUF_ARRAY, &entry, &error), 0);
    assert_int_equal(entry->count, 3);
    assert_int_equal(entry->bytes, 3 * 12 + 3);
    assert_int_equal(sl_gguf_array(gguf, "b.f32s", SL_GGUF_I32, &entry, &error), SL_ERR_FORMAT);
    assert_string_equal(error.message,
                        "test.gguf: metadata key 'b.f32s' is array of f32, array of i32 wanted");
}

static void every_value_type_is_read(void **state) {
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        bytes b = build(version);
        sl_gguf *gguf;
        sl_error error;
        assert_int_equal(open_bytes(&b, &gguf, &error), 0);
        assert_int_equal(sl_gguf_version(gguf), version);
        assert_int_equal(sl_gguf_alignment(gguf), 32);
        assert_int_equal(sl_gguf_entry_count(gguf), EVERY_TYPE);
        check_scalars(gguf);
        check_arrays(gguf);
        assert_int_equal(sl_gguf_tensor_count(gguf), 3);
        const sl_tensor *tensor = sl_gguf_tensor(gguf, "first.weight");
        assert_int_equal(tensor->type, SL_QTYPE_F32);
        assert_int_equal(tensor->dim_count, 2);
        assert_int_equal(tensor->dims[0], 3);
        assert_int_equal(tensor->dims[1], 2);
        assert_int_equal(tensor->dims[3], 1);
        assert_int_equal(tensor->elements, 6);
        assert_int_equal(tensor->bytes, 24);
        assert_int_equal(((const unsigned char *)tensor->data)[1], 1);
        tensor = sl_gguf_tensor(gguf, "second.weight");
        assert_int_equal(tensor->type, SL_QTYPE_Q8_0);
        assert_int_equal(tensor->bytes, 34);
        assert_int_equal(((const unsigned char *)tensor->data)[0], 32);
        tensor = sl_gguf_tensor(gguf, "scalar");
        assert_int_equal(tensor->dim_count, 1);
        assert_int_equal(tensor->bytes, 2);
        assert_int_equal(((const unsigned char *)tensor->data)[1], 97);
        assert_null(sl_gguf_tensor(gguf, "third"));
        walk(gguf);
        sl_gguf_close(gguf);
        free(b.data);
    }
}

/* ---- broken files
 * ---------------------------------------------------------------------------------------------- */

static void every_prefix_is_refused(void **state) {
    (void)state;
    bytes b = build(3);
    for (size_t size = 0; size < b.size; size++) {
        unsigned char *copy = exact_copy(b.data, size);
        sl_gguf *gguf;
        sl_error error = {0};
        int result = sl_gguf_open_memory(copy, size, "test.gguf", &gguf, &error);
        assert_int_equal(result, SL_ERR_FORMAT);
        assert_int_equal(error.code, result);
        assert_memory_equal(error.message, "test.gguf: ", 11);
        assert_null(gguf);
        free(copy);
    }
    free(b.data);
}

static void flipped_bits_never_crash(void **state) {
    (void)state;
    bytes b = build(2);
    uint64_t live = sl_alloc_live_bytes();
    int refused = 0, opened = 0;
    unsigned char *copy = exact_copy(b.data, b.size);
    for (size_t bit = 0; bit < (b.size - 98) * 8; bit++) {
        copy[bit / 8] ^= (unsigned char)(1u << bit % 8);
        sl_gguf *gguf;
        sl_error error;
        if (sl_gguf_open_memory(copy, b.size, "test.gguf", &gguf, &error) == 0) {
            walk(gguf);
            opened++;
        } else {
            assert_null(strpbrk(error.message, "\n\r\x1b"));
            refused++;
        }
        sl_gguf_close(gguf);
        copy[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    assert_int_equal(sl_alloc_live_bytes(), live);
    assert_true(refused > 1000 && opened > 1000);
    free(copy);
    free(b.data);
}

/* Opens, expects a refusal whose message holds `part`, quickly and in little memory. */
static void refuse(bytes *b, int code, const char *part) {
    sl_gguf *gguf;
    sl_error error = {0};
    struct rusage before, after;
    struct timespec start, end;
    unsigned char *copy = exact_copy(b->data, b->size);
    getrusage(RUSAGE_SELF, &before);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
    int result = sl_gguf_open_memory(copy, b->size, "test.gguf", &gguf, &error);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    getrusage(RUSAGE_SELF, &after);
    if (result != code || !strstr(error.message, part)) {
        print_message("%s (wanted: %s)\n", result ? error.message : "opened", part);
    }
    assert_int_equal(result, code);
    assert_non_null(strstr(error.message, part));
    assert_true(end.tv_sec - start.tv_sec <= 1);
    assert_true(after.ru_maxrss - before.ru_maxrss < 64 << 10);
    assert_null(gguf);
    free(copy);
    b->size = 0;
}

static void bad_headers_are_refused(void **state) {
    (void)state;
    bytes b = {0};
    put_bytes(&b, "GGML\3\0\0\0", 8), put_u64(&b, 0), put_u64(&b, 0);
    refuse(&b, SL_ERR_FORMAT, "does not begin with \"GGUF\"");
    static const uint32_t versions[] = {0, 1, 4, 0x03000000};
    for (size_t i = 0; i < 4; i++) {
        put_header(&b, versions[i], 0, 0);
        refuse(&b, SL_ERR_UNSUPPORTED, i == 3 ? "big-endian" : "version");
    }
    static const uint64_t counts[] = {1, 1000, UINT32_MAX, INT64_MAX, (uint64_t)INT64_MAX + 1, UINT64_MAX};
    for (size_t i = 0; i < 6; i++) {
        put_header(&b, 3, counts[i], 0);
        refuse(&b, SL_ERR_FORMAT, "tensor_count is");
        put_header(&b, 3, 0, counts[i]);
        refuse(&b, SL_ERR_FORMAT, "metadata_kv_count is");
    }
    sl_gguf *gguf;
    sl_error error;
    put_header(&b, 3, 0, 0);
    assert_int_equal(open_bytes(&b, &gguf, &error), 0);
    sl_gguf_close(gguf);
    free(b.data);
}

static void bad_metadata_is_refused(void **state) {
    (void)state;
    bytes b = {0};
    static const uint64_t lengths[] = {1 << 20, UINT32_MAX, INT64_MAX, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < 5; i++) {
        put_header(&b, 3, 0, 1), put_u64(&b, lengths[i]), put_bytes(&b, "key....", 7);
        refuse(&b, SL_ERR_FORMAT, "the key's length is");
        put_header(&b, 3, 0, 1), put_key(&b, "k", 8), put_u64(&b, lengths[i]), put_u64(&b, 0);
        refuse(&b, SL_ERR_FORMAT, "metadata key 'k': a string's length is");
        for (uint32_t type = 0; type < 13; type++) {
            put_header(&b, 3, 0, 1), put_key(&b, "k", 9), put_u32(&b, type), put_u64(&b, lengths[i]);
            put_bytes(&b, "0123456789", 10);
            refuse(&b, SL_ERR_FORMAT, "metadata key 'k': the ");
        }
    }
    put_header(&b, 3, 0, 1), put_key(&b, "", 0), put_u64(&b, 0);
    refuse(&b, SL_ERR_FORMAT, "metadata key 0: the key's length is 0");
    put_header(&b, 3, 0, 1), put_key(&b, "a\nb", 0), put_u64(&b, 0);
    refuse(&b, SL_ERR_FORMAT, "byte 1 of the name is 0x0a");
    put_header(&b, 3, 0, 1), put_u64(&b, 2), put_bytes(&b, "a", 2), put_u32(&b, 0), put_u64(&b, 0);
    refuse(&b, SL_ERR_FORMAT, "byte 1 of the name is 0x00");
    put_header(&b, 3, 0, 1), put_key(&b, "k", 13), put_u64(&b, 0);
    refuse(&b, SL_ERR_FORMAT, "the value type is 13");
    put_header(&b, 3, 0, 1), put_key(&b, "k", 9), put_u32(&b, UINT32_MAX), put_u64(&b, 0);
    refuse(&b, SL_ERR_FORMAT, "the array's item type is 4294967295");
    put_header(&b, 3, 0, 1), put_key(&b, "k", 7), put_number(&b, 2, 1);
    refuse(&b, SL_ERR_FORMAT, "a bool is 2");
    put_header(&b, 3, 0, 2), put_key(&b, "twice", 0), put_number(&b, 1, 1), put_key(&b, "twice", 7);
    put_number(&b, 1, 1);
    refuse(&b, SL_ERR_FORMAT, "metadata key 'twice' is there twice");
    for (int depth = 1; depth <= 100000; depth = depth < 32 ? depth + 1 : depth * 50) {
        put_header(&b, 3, 0, 1), put_key(&b, "k", 9);
        for (int i = 1; i < depth; i++) {
            put_u32(&b, 9), put_u64(&b, 1);
        }
        put_u32(&b, 0), put_u64(&b, 1), put_number(&b, 5, 1);
        if (depth > SL_GGUF_ARRAY_DEPTH + 1) {
            refuse(&b, SL_ERR_LIMIT, "arrays nest more than");
        } else {
            sl_gguf *gguf;
            sl_error error;
            assert_int_equal(open_bytes(&b, &gguf, &error), 0);
            sl_gguf_close(gguf);
            b.size = 0;
        }
    }
    free(b.data);
}

static void alignment_follows_the_specification(void **state) {
    (void)state;
    bytes b = {0};
    static const uint32_t bad[] = {0, 1, 2, 3, 4, 12, 33, UINT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_header(&b, 3, 0, 1), put_key(&b, "general.alignment", 4), put_u32(&b, bad[i]);
        refuse(&b, SL_ERR_FORMAT, "general.alignment is");
    }
    put_header(&b, 3, 0, 1), put_key(&b, "general.alignment", 8), put_text(&b, "32");
    refuse(&b, SL_ERR_FORMAT, "'general.alignment' is string");
    static const uint32_t good[] = {8, 16, 24, 32, 64, 4096};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        put_header(&b, 3, 2, 1), put_key(&b, "general.alignment", 4), put_u32(&b, good[i]);
        put_tensor(&b, "t", (tensor_entry){0, 0, 1, 1, 0});
        put_tensor(&b, "u", (tensor_entry){0, good[i], 1, 1, 0});
        put_zeros_to(&b, good[i]);
        put_number(&b, 0x11, 4);
        put_zeros_to(&b, good[i]);
        put_number(&b, 0x22, 4);
        sl_gguf *gguf;
        sl_error error;
        assert_int_equal(open_bytes(&b, &gguf, &error), 0);
        assert_int_equal(sl_gguf_alignment(gguf), good[i]);
        assert_int_equal(*(const unsigned char *)sl_gguf_tensor(gguf, "t")->data, 0x11);
        assert_int_equal(*(const unsigned char *)sl_gguf_tensor(gguf, "u")->data, 0x22);
        sl_gguf_close(gguf);
        b.size = 0;
    }
    put_header(&b, 3, 1, 1), put_key(&b, "general.alignment", 4), put_u32(&b, 1u << 31);
    put_tensor(&b, "t", (tensor_entry){0, 0, 1, 1, 0}), put_zeros_to(&b, 64);
    refuse(&b, SL_ERR_FORMAT, "beyond the file's end");
    free(b.data);
}

static void bad_tensors_are_refused(void **state) {
    (void)state;
    static const struct {
        tensor_entry entry;
        int code;
        const char *part;
    } rows[] = {
        {{0, 0, 1, 0, 0}, SL_ERR_FORMAT, "dimension 0 is 0"},
        {{0, 0, 2, 4, 0}, SL_ERR_FORMAT, "dimension 1 is 0"},
        {{0, 0, 1, UINT64_MAX, 0}, SL_ERR_FORMAT, "dimension 0 is 18446744073709551615"},
        {{0, 0, 2, (uint64_t)1 << 62, 4}, SL_ERR_FORMAT, "elements overflows"},
        {{0, 0, 2, (uint64_t)1 << 32, (uint64_t)1 << 32}, SL_ERR_FORMAT, "elements overflows"},
        {{0, 0, 1, (uint64_t)1 << 62, 0}, SL_ERR_FORMAT, "size in bytes overflows"},
        {{1, 0, 1, ((uint64_t)1 << 63) - 1, 0},
         SL_ERR_FORMAT,
         "beyond the file's end"}, /* padded: wraps to 0 */
        {{0, 0, 5, 1, 1}, SL_ERR_FORMAT, "has 5 dimensions"},
        {{0, 0, 0x7fffffff, 1, 1}, SL_ERR_FORMAT, "dimensions"},
        {{8, 0, 2, 16, 2}, SL_ERR_FORMAT, "no whole number of q8_0 blocks"},
        {{0, 16, 1, 1, 0}, SL_ERR_FORMAT, "offset 16 is no multiple of the alignment, 32"},
        {{0, 96, 1, 1, 0}, SL_ERR_FORMAT, "beyond the file's end"},
        {{0, 64, 1, 9, 0}, SL_ERR_FORMAT, "beyond the file's end"},
        {{0, UINT64_MAX - 31, 1, 8, 0}, SL_ERR_FORMAT, "beyond the file's end"},
        {{31, 0, 1, 256, 0}, SL_ERR_UNSUPPORTED, "tensor 't': type"},
        {{4, 0, 1, 256, 0}, SL_ERR_UNSUPPORTED, "(4) is not supported"},
        {{4711, 0, 1, 256, 0}, SL_ERR_UNSUPPORTED, "type unknown (4711)"},
    };
    bytes b = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_header(&b, 3, 1, 0);
        put_tensor(&b, "t", rows[i].entry);
        put_zeros_to(&b, 32);
        for (int n = 0; n < 96; n++) {
            put_number(&b, 0, 1);
        }
        refuse(&b, rows[i].code, rows[i].part);
    }
    put_header(&b, 3, 2, 0);
    put_tensor(&b, "same", (tensor_entry){0, 0, 1, 1, 0});
    put_tensor(&b, "same", (tensor_entry){0, 32, 1, 1, 0});
    put_zeros_to(&b, 32), put_u64(&b, 0), put_zeros_to(&b, 32), put_u64(&b, 0);
    refuse(&b, SL_ERR_FORMAT, "tensor 'same' is there twice");
    put_header(&b, 3, 2, 0);
    put_tensor(&b, "late", (tensor_entry){0, 32, 1, 8, 0});
    put_tensor(&b, "early", (tensor_entry){0, 0, 1, 9, 0});
    put_zeros_to(&b, 32), put_u64(&b, 0), put_zeros_to(&b, 32), put_u64(&b, 0), put_zeros_to(&b, 32);
    refuse(&b, SL_ERR_FORMAT, "tensor 'late': offset 32 lies inside another tensor, which ends at 36");
    put_header(&b, 3, 1, 0), put_tensor(&b, "", (tensor_entry){0, 0, 1, 1, 0}), put_u64(&b, 0);
    refuse(&b, SL_ERR_FORMAT, "tensor 0: the name's length is 0");
    free(b.data);
}

static void many_keys_take_linear_time(void **state) {
    (void)state;
    bytes b = {0};
    enum { KEYS = 200000 };
    put_header(&b, 3, 0, KEYS);
    for (int i = 0; i < KEYS; i++) {
        char key[32];
        snprintf(key, sizeof key, "key.%d", i);
        put_key(&b, key, 4), put_u32(&b, (uint64_t)i);
    }
    struct timespec start, end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
    sl_gguf *gguf;
    sl_error error;
    assert_int_equal(open_bytes(&b, &gguf, &error), 0);
    for (int i = 0; i < KEYS; i += 97) {
        char key[32];
        uint64_t value;
        snprintf(key, sizeof key, "key.%d", i);
        assert_int_equal(sl_gguf_u64(gguf, key, &value, &error), 0);
        assert_int_equal(value, i);
    }
    assert_null(sl_gguf_find(gguf, "key.200000"));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    assert_true(end.tv_sec - start.tv_sec < 3);
    sl_gguf_close(gguf);
    free(b.data);
}

static void memory_that_runs_out_is_an_error(void **state) {
    (void)state;
    bytes b = build(3);
    uint64_t live = sl_alloc_live_bytes();
    for (int from_file = 0; from_file <= 1; from_file++) {
        const char *path = SLUICE_BINARY_DIR "/test_gguf_memory.gguf";
        write_file(path, b.data, b.size);
        int result = SL_ERR_NOMEM;
        for (uint64_t nth = 1; result != 0; nth++) {
            sl_gguf *gguf;
            sl_error error = {0};
            assert_true(nth < 100);
            sl_alloc_fail_at(nth);
            result = from_file ? sl_gguf_open(path, &gguf, &error) : open_bytes(&b, &gguf, &error);
            sl_alloc_fail_at(0);
            if (result != 0) {
                assert_int_equal(result, SL_ERR_NOMEM);
                assert_int_equal(error.code, SL_ERR_NOMEM);
                assert_null(gguf);
            } else {
                assert_true(nth > 5);
                walk(gguf);
                sl_gguf_close(gguf);
            }
            assert_int_equal(sl_alloc_live_bytes(), live);
        }
        unlink(path);
    }
    free(b.data);
}

static int compare_numbers(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return a < b ? -1 : a > b;
}

static void sorting_orders_any_length(void **state) {
    (void)state;
    uint32_t numbers[130], random = 1;
    for (size_t count = 0; count <= 130; count++) {
        uint64_t sum = 0;
        for (size_t i = 0; i < count; i++) {
            random = random * 1664525 + 1013904223;
            numbers[i] = random >> 26; /* with repetitions */
            sum += numbers[i];
        }
        sl_sort(numbers, count, sizeof *numbers, compare_numbers);
        for (size_t i = 0; i < count; i++) {
            assert_true(i == 0 || numbers[i - 1] <= numbers[i]);
            sum -= numbers[i];
        }
        assert_int_equal(sum, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_type_is_read),

        cmocka_unit_test(every_prefix_is_refused),
        cmocka_unit_test(flipped_bits_never_crash),
        cmocka_unit_test(bad_headers_are_refused),
        cmocka_unit_test(bad_metadata_is_refused),
        cmocka_unit_test(alignment_follows_the_specification),
        cmocka_unit_test(bad_tensors_are_refused),
        cmocka_unit_test(many_keys_take_linear_time),
        cmocka_unit_test(memory_that_runs_out_is_an_error),
        cmocka_unit_test(sorting_orders_any_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
