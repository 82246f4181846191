/* Importance matrices, in files put together here byte by byte by llama-imatrix's description of both
 * formats, and what quantize makes of them. */
#include "support.h"

#include "base/alloc.h"
#include "model/files.h"
#include "model/importance.h"
#include "quant/weighted.h"

#include <math.h>

#define MATRIX SLUICE_BINARY_DIR "/test_importance-matrix"
#define MODEL SLUICE_BINARY_DIR "/test_importance-model.gguf"
#define OUT SLUICE_BINARY_DIR "/test_importance-out.gguf"

static void must(int code, const sl_error *error) {
    if (code) {
        fail_msg("%s", error->message);
    }
}

/* ---- files */

typedef struct record {
    unsigned char data[4096];
    size_t size;
} record;

static void put(record *b, const void *data, size_t size) {
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

static void put_int(record *b, int32_t value) {
    put(b, &value, sizeof value);
}

static void put_entry(record *b, const char *name, int32_t calls, const float *sums, int32_t count) {
    put_int(b, (int32_t)strlen(name));
    put(b, name, strlen(name));
    put_int(b, calls);
    put_int(b, count);
    put(b, sums, (size_t)count * sizeof *sums);
}

static record dat_file(void) {
    static const float first[] = {2, 4, 0}, second[] = {1, 2};
    record b = {.size = 0};
    put_int(&b, 2);
    put_entry(&b, "blk.0.attn_q.weight", 4, first, 3);
    put_entry(&b, "blk.0.ffn_up.weight", 0, second, 2);
    return b;
}

typedef struct array {
    const char *name;
    float values[8];
    uint64_t columns, rows;
} array;

static void write_gguf(const char *type, const array *arrays, int count) {
    static const sl_view texts[] = {{"wiki.txt", 8}, {"more.txt", 8}};
    const sl_gguf_items datasets = {SL_GGUF_STRING, texts, 2};
    sl_gguf_writer *writer;
    sl_error error;
    must(sl_gguf_writer_create(MATRIX, &writer, &error), &error);
    must(sl_gguf_writer_string(writer, "general.type", sl_view_of(type), &error), &error);
    must(sl_gguf_writer_array(writer, "imatrix.datasets", &datasets, &error), &error);
    must(sl_gguf_writer_unsigned(writer, "imatrix.chunk_count", SL_GGUF_U32, 5, &error), &error);
    must(sl_gguf_writer_unsigned(writer, "imatrix.chunk_size", SL_GGUF_U32, 512, &error), &error);
    for (int i = 0; i < count; i++) {
        const sl_gguf_shape shape = {SL_QTYPE_F32, 2, {arrays[i].columns, arrays[i].rows}};
        must(sl_gguf_writer_tensor(writer, arrays[i].name, &shape, &error), &error);
    }
    must(sl_gguf_writer_begin(writer, NULL, &error), &error);
    for (int i = 0; i < count; i++) {
        must(sl_gguf_writer_data(writer, arrays[i].values, arrays[i].columns * arrays[i].rows * 4, &error),
             &error);
    }
    must(sl_gguf_writer_finish(writer, &error), &error);
    sl_gguf_writer_free(writer);
}

static void check_entry(const sl_importance *importance, const char *name, const float *means,
                        uint64_t count) {
    const sl_importance_entry *entry = sl_importance_find(importance, name);
    assert_non_null(entry);
    assert_int_equal(entry->count, count);
    for (uint64_t i = 0; i < count; i++) {
        assert_true(entry->means[i] == means[i]);
    }
}

static void the_older_format_is_read(void **state) {
    (void)state;
    static const float first[] = {0.5f, 1, 0}, second[] = {1, 2};
    for (int end = 0; end < 2; end++) {
        sl_importance importance = {0};
        sl_error error;
        record b = dat_file();
        if (end) {
            put_int(&b, 17);
            put_int(&b, 8);
            put(&b, "wiki.txt", 8);
        }
        write_file(MATRIX, b.data, b.size);
        must(sl_importance_read(&importance, MATRIX, &error), &error);
        assert_int_equal(importance.count, 2);
        check_entry(&importance, "blk.0.attn_q.weight", first, 3);
        check_entry(&importance, "blk.0.ffn_up.weight", second, 2);
        assert_int_equal(importance.chunks, end ? 17 : 0);
        assert_string_equal(importance.dataset, end ? "wiki.txt" : "");
        assert_null(sl_importance_find(&importance, "blk.0.attn_k.weight"));
        sl_importance_free(&importance);
    }
    unlink(MATRIX);
}

static void gguf_is_read(void **state) {
    (void)state;
    static const array arrays[] = {{"blk.0.attn_q.weight.counts", {4}, 1, 1},
                                   {"blk.0.attn_q.weight.in_sum2", {2, 4, 0}, 3, 1},
                                   {"blk.0.attn_q.weight.in_sum", {9, 9, 9}, 3, 1}, /* newer files: means */
                                   {"blk.1.ffn_up_exps.weight.in_sum2", {2, 4, 7, 8, 3, 6}, 2, 3},
                                   {"blk.1.ffn_up_exps.weight.counts", {2, 0, 3}, 1, 3}};
    static const float dense[] = {0.5f, 1, 0},
                       experts[] = {1, 2, 1, 1, 1, 2}; /* the second expert was never used */
    sl_importance importance = {0};
    sl_error error;
    write_gguf("imatrix", arrays, 5);
    must(sl_importance_read(&importance, MATRIX, &error), &error);
    assert_int_equal(importance.count, 2);
    check_entry(&importance, "blk.0.attn_q.weight", dense, 3);
    check_entry(&importance, "blk.1.ffn_up_exps.weight", experts, 6);
    assert_int_equal(importance.chunks, 5);
    assert_string_equal(importance.dataset, "wiki.txt");
    sl_importance_free(&importance);
    unlink(MATRIX);
}

static void refuse(const char *word) {
    sl_importance importance = {0};
    sl_error error = {0};
    assert_int_equal(sl_importance_read(&importance, MATRIX, &error), SL_ERR_FORMAT);
    sl_importance_free(&importance);
    if (!strstr(error.message, word) || !strstr(error.message, MATRIX)) {
        fail_msg("\"%s\" does not say %s", error.message, word);
    }
}

static void malformed_files_are_refused(void **state) {
    (void)state;
    const record whole = dat_file();
    for (size_t size = 1; size < whole.size; size++) { /* cut off anywhere */
        write_file(MATRIX, whole.data, size);
        refuse(size > 4 + 2 * 13 ? "entry" : "");
    }
    static const int32_t counts[] = {0, -1, 2000000000};
    for (int i = 0; i < 3; i++) {
        record b = whole;
        memcpy(b.data, &counts[i], 4);
        write_file(MATRIX, b.data, b.size);
        refuse("no importance matrix");
    }
    static const float bad[] = {-1, NAN, INFINITY};
    for (int i = 0; i < 3; i++) {
        record b = {.size = 0};
        put_int(&b, 1);
        put_entry(&b, "x", 1, &bad[i], 1);
        write_file(MATRIX, b.data, b.size);
        refuse("no finite number");
        const array arrays[] = {{"x.in_sum2", {bad[i]}, 1, 1}, {"x.counts", {1}, 1, 1}};
        write_gguf("imatrix", arrays, 2);
        refuse("no finite number");
    }
    record twice = {.size = 0};
    put_int(&twice, 2);
    put_entry(&twice, "x", 1, (const float[]){1}, 1);
    put_entry(&twice, "x", 1, (const float[]){1}, 1);
    write_file(MATRIX, twice.data, twice.size);
    refuse("twice");
    static const array odd[] = {{"x.in_sum2", {1, 2, 3}, 3, 1}, {"x.counts", {1, 2}, 1, 2}};
    write_gguf("imatrix", odd, 2);
    refuse("whole rows");
    write_gguf("imatrix", odd, 1);
    refuse("counts");
    write_gguf("imatrix", odd + 1, 1);
    refuse("no entries");
    write_gguf("model", odd, 2);
    refuse("general.type");
    unlink(MATRIX);
}

/* ---- quantize */

enum { WIDTH = 256 };

/* Means for every matrix that takes the width in, another for each expert. */
static void write_matrix(int experts, float *gate, float *query) {
    record *b = calloc(1, sizeof *b + 64 * WIDTH * 4);
    assert_non_null(b);
    FILE *file = fopen(MATRIX, "wb");
    assert_non_null(file);
    for (int i = 0; i < experts * WIDTH; i++) {
        gate[i] = expf(sinf((float)i * 1.7f) * 3);
    }
    for (int i = 0; i < WIDTH; i++) {
        query[i] = expf(cosf((float)i * 2.3f) * 3);
    }
    put_int(b, 2);
    put_int(b, 19);
    put(b, "blk.0.attn_q.weight", 19);
    put_int(b, 1);
    put_int(b, WIDTH);
    fwrite(b->data, 1, b->size, file);
    fwrite(query, 4, WIDTH, file);
    b->size = 0;
    put_int(b, 26);
    put(b, "blk.0.ffn_gate_exps.weight", 26);
    put_int(b, 1);
    put_int(b, experts * WIDTH);
    fwrite(b->data, 1, b->size, file);
    fwrite(gate, 4, (size_t)experts * WIDTH, file);
    fclose(file);
    free(b);
}

static void check_tensor(const sl_gguf *from, const sl_gguf *to, const char *name, const float *importance) {
    const sl_tensor *a = sl_gguf_tensor(from, name), *b = sl_gguf_tensor(to, name);
    const uint64_t rows = a->elements / WIDTH, each = a->dims[1];
    float values[WIDTH];
    unsigned char block[512];
    uint64_t bytes;
    assert_int_equal(b->type, SL_QTYPE_Q4_K);
    assert_true(sl_qtype_bytes(b->type, WIDTH, &bytes));
    for (uint64_t row = 0; row < rows; row++) {
        sl_qtype_get(a->type)->decode((const char *)a->data + row * a->bytes / rows, values, WIDTH);
        if (importance) {
            assert_true(
                sl_qtype_encode_weighted(b->type, values, importance + row / each * WIDTH, block, WIDTH));
        } else {
            sl_qtype_get(b->type)->encode(values, block, WIDTH);
        }
        assert_memory_equal((const char *)b->data + row * bytes, block, (size_t)bytes);
    }
}

static void quantize_weighs_by_it(void **state) {
    (void)state;
    enum { EXPERTS = 8 };
    static float gate[EXPERTS * WIDTH], query[WIDTH];
    const sl_synth_options synthetic = {.preset = "qwen3moe", .type = SL_QTYPE_BF16, .layers = 1};
    const sl_quantize_options options = {
        .mixture = sl_mixture_find("Q4_K_S"), .pure = true, .importance = MATRIX, .replace = true};
    sl_gguf *from, *to;
    sl_error error;
    uint64_t number = 0;
    must(sl_synth_file(MODEL, &synthetic, NULL, &error), &error);
    write_matrix(EXPERTS, gate, query);
    must(sl_quantize_file(MODEL, OUT, &options, NULL, NULL, &error), &error);
    must(sl_gguf_open(MODEL, &from, &error), &error);
    must(sl_gguf_open(OUT, &to, &error), &error);
    check_tensor(from, to, "blk.0.attn_q.weight", query);
    check_tensor(from, to, "blk.0.ffn_gate_exps.weight", gate);
    check_tensor(from, to, "blk.0.ffn_up_exps.weight", NULL);
    must(sl_gguf_u64(to, "quantize.imatrix.entries_count", &number, &error), &error);
    assert_int_equal(number, 2);
    sl_gguf_close(from);
    sl_gguf_close(to);
    /* One with another width. */
    record b = dat_file();
    write_file(MATRIX, b.data, b.size);
    assert_int_equal(sl_quantize_file(MODEL, OUT, &options, NULL, NULL, &error), SL_ERR_FORMAT);
    assert_non_null(strstr(error.message, "blk.0.attn_q.weight, which has 256 columns"));
    /* Nor is the matrix itself written over. */
    assert_int_equal(sl_quantize_file(MODEL, MATRIX, &options, NULL, NULL, &error), SL_ERR_INVALID);
    unlink(MODEL);
    unlink(MATRIX);
    unlink(OUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_older_format_is_read),
        cmocka_unit_test(gguf_is_read),
        cmocka_unit_test(malformed_files_are_refused),
        cmocka_unit_test(quantize_weighs_by_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
