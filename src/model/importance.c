#include "model/importance.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/map.h"
#include "format/gguf_writer.h"

#include <math.h>

void sl_importance_free(sl_importance *importance) {
    sl_name_index_free(&importance->index);
    sl_free(importance->entries);
    sl_arena_free(&importance->arena);
    *importance = (sl_importance){0};
}

const sl_importance_entry *sl_importance_find(const sl_importance *importance, const char *name) {
    const uint64_t item = importance->count ? sl_name_index_find(&importance->index, name) : UINT64_MAX;
    return item == UINT64_MAX ? NULL : &importance->entries[item];
}

static int no_memory(const char *path, sl_error *error) {
    return sl_fail(error, SL_ERR_NOMEM, "%s: out of memory for an importance matrix", path);
}

/* An entry with room for `count` means; NULL when memory ran out. */
static sl_importance_entry *add_entry(sl_importance *importance, sl_view name, uint64_t count) {
    sl_importance_entry *entries =
        sl_grow(importance->entries, importance->count, &importance->capacity, sizeof *entries);
    importance->entries = entries ? entries : importance->entries;
    char *copy = sl_arena_strndup(&importance->arena, name.data, name.length);
    float *means = sl_arena_alloc(&importance->arena, (size_t)count, sizeof *means);
    if (!entries || !copy || !means) {
        return NULL;
    }
    entries[importance->count] = (sl_importance_entry){copy, means, count};
    return &entries[importance->count++];
}

/* The mean of one column; of experts that no row reached nothing is known, and all columns count alike. */
static int set_mean(const char *path, sl_importance_entry *entry, uint64_t at, double sum, double rows,
                    sl_error *error) {
    const double mean = rows > 0 ? sum / rows : 1;
    if (!(sum >= 0) || !(rows >= 0) || !(mean <= 3e38)) {
        return sl_fail(error, SL_ERR_FORMAT,
                       "%s: %.100s has a sum or count that is negative or no finite number", path,
                       entry->name);
    }
    entry->means[at] = (float)mean;
    return 0;
}

/* ---- GGUF
 * ------------------------------------------------------------------------------------------------------ */

static float float_at(const void *data, uint64_t index) {
    float value; /* anywhere in the file */
    memcpy(&value, (const unsigned char *)data + index * sizeof value, sizeof value);
    return value;
}

static int add_tensor(sl_importance *importance, const sl_gguf *gguf, const sl_tensor *sums,
                      sl_error *error) {
    static const char end[] = ".in_sum2";
    const char *path = sl_gguf_path(gguf);
    const size_t length = strlen(sums->name) - (sizeof end - 1);
    char *name = sl_arena_printf(&importance->arena, "%.*s.counts", (int)length, sums->name);
    if (!name) {
        return no_memory(path, error);
    }
    const sl_tensor *counts = sl_gguf_tensor(gguf, name);
    if (!counts || counts->type != SL_QTYPE_F32 || sums->type != SL_QTYPE_F32 ||
        sums->elements % counts->elements != 0) {
        return sl_fail(error, SL_ERR_FORMAT,
                       "%s: %.100s and its counts must be f32, whole rows of sums for each count", path,
                       sums->name);
    }
    sl_importance_entry *entry = add_entry(importance, (sl_view){sums->name, length}, sums->elements);
    if (!entry) {
        return no_memory(path, error);
    }
    const uint64_t columns = sums->elements / counts->elements;
    int code = 0;
    for (uint64_t i = 0; i < sums->elements && code == 0; i++) {
        code = set_mean(path, entry, i, float_at(sums->data, i), float_at(counts->data, i / columns), error);
    }
    return code;
}

static int read_gguf(sl_importance *importance, const char *path, sl_error *error) {
    sl_gguf *gguf;
    sl_view type = {0};
    const sl_gguf_entry *datasets;
    int code = sl_gguf_open(path, &gguf, error);
    if (code) {
        return code;
    }
    if (sl_gguf_string(gguf, "general.type", &type, NULL) != 0 || !sl_view_is(type, "imatrix")) {
        code = sl_fail(error, SL_ERR_FORMAT, "%s: general.type is not imatrix: no importance matrix", path);
    }
    sl_gguf_u64(gguf, "imatrix.chunk_count", &importance->chunks, NULL);
    if (code == 0 && sl_gguf_array(gguf, "imatrix.datasets", SL_GGUF_STRING, &datasets, NULL) == 0 &&
        datasets->count > 0) {
        const unsigned char *cursor = datasets->data;
        const sl_view first = sl_gguf_next_string(&cursor);
        importance->dataset = sl_arena_strndup(&importance->arena, first.data, first.length);
    }
    for (uint64_t i = 0; i < sl_gguf_tensor_count(gguf) && code == 0; i++) {
        const sl_tensor *tensor = sl_gguf_tensor_at(gguf, i);
        const size_t length = strlen(tensor->name);
        if (length > 8 && strcmp(tensor->name + length - 8, ".in_sum2") == 0) {
            code = add_tensor(importance, gguf, tensor, error);
        }
    }
    sl_gguf_close(gguf);
    return code;
}

/* ---- .dat
 * ------------------------------------------------------------------------------------------------------ */

typedef struct reader {
    const char *path;
    const unsigned char *at;
    uint64_t left;
} reader;

static const unsigned char *take(reader *r, uint64_t bytes) {
    const unsigned char *data = r->at;
    if (bytes > r->left) {
        return NULL;
    }
    r->at += bytes;
    r->left -= bytes;
    return data;
}

/* A count, which is not negative; false at the file's end too. */
static bool take_count(reader *r, uint64_t *value) {
    int32_t number;
    const unsigned char *data = take(r, sizeof number);
    if (!data) {
        return false;
    }
    memcpy(&number, data, sizeof number);
    *value = (uint64_t)number;
    return number >= 0;
}

static int read_dat_entry(sl_importance *importance, reader *r, sl_error *error) {
    uint64_t length, calls, count;
    const unsigned char *name, *sums = NULL;
    if (!take_count(r, &length) || length == 0 || !(name = take(r, length)) ||
        sl_name_bad_byte((const char *)name, length, false) != length || !take_count(r, &calls) ||
        !take_count(r, &count) || count == 0 || !(sums = take(r, count * sizeof(float)))) {
        return sl_fail(error, SL_ERR_FORMAT,
                       "%s: entry %llu of the importance matrix is malformed or cut off", r->path,
                       (unsigned long long)importance->count);
    }
    sl_importance_entry *entry = add_entry(importance, (sl_view){(const char *)name, length}, count);
    if (!entry) {
        return no_memory(r->path, error);
    }
    int code = 0;
    for (uint64_t i = 0; i < count && code == 0; i++) {
        code = set_mean(r->path, entry, i, float_at(sums, i), calls > 0 ? (double)calls : 1, error);
    }
    return code;
}

static int read_dat(sl_importance *importance, const char *path, const sl_map *map, sl_error *error) {
    reader r = {path, map->data, map->size};
    uint64_t count, length;
    const unsigned char *name;
    /* An entry has 13 bytes at least. */
    if (!take_count(&r, &count) || count == 0 || count > r.left / 13) {
        return sl_fail(error, SL_ERR_FORMAT,
                       "%s: no importance matrix: neither GGUF nor llama.cpp's older format", path);
    }
    int code = 0;
    for (uint64_t i = 0; i < count && code == 0; i++) {
        code = read_dat_entry(importance, &r, error);
    }
    /* Files from before chunks were counted end here. */
    if (code == 0 && take_count(&r, &importance->chunks) && take_count(&r, &length) &&
        (name = take(&r, length))) {
        importance->dataset = sl_arena_strndup(&importance->arena, (const char *)name, (size_t)length);
    }
    return code;
}

int sl_importance_read(sl_importance *importance, const char *path, sl_error *error) {
    sl_map map = {0};
    int code = sl_map_open(&map, path, error);
    if (code) {
        return code;
    }
    code = map.size >= 4 && memcmp(map.data, "GGUF", 4) == 0 ? read_gguf(importance, path, error)
                                                             : read_dat(importance, path, &map, error);
    sl_map_close(&map);
    importance->dataset = importance->dataset ? importance->dataset : "";
    if (code == 0 && importance->count == 0) {
        return sl_fail(error, SL_ERR_FORMAT, "%s: the importance matrix has no entries", path);
    }
    code = code ? code : sl_name_index_reserve(&importance->index, importance->count, error);
    for (uint64_t i = 0; i < importance->count && code == 0; i++) {
        sl_name_index_add(&importance->index, importance->entries[i].name, i);
    }
    const char *twice = code ? NULL : sl_name_index_sort(&importance->index);
    return twice ? sl_fail(error, SL_ERR_FORMAT, "%s: %.100s stands there twice", path, twice) : code;
}

/* ---- writing
 * ----------------------------------------------------------------------------------------------------- */

static bool has_rows(const sl_importance_sums *entry) {
    bool some = false;
    for (uint64_t i = 0; i < entry->matrices; i++) {
        some |= entry->counts[i] > 0;
    }
    return some;
}

static int declare(sl_gguf_writer *writer, sl_arena *arena, const sl_importance_sums *entry,
                   sl_error *error) {
    const sl_gguf_shape sums = {SL_QTYPE_F32, 2, {entry->columns, entry->matrices}};
    const sl_gguf_shape counts = {SL_QTYPE_F32, 2, {1, entry->matrices}};
    const char *sums_name = sl_arena_printf(arena, "%s.in_sum2", entry->name);
    const char *counts_name = sl_arena_printf(arena, "%s.counts", entry->name);
    if (!sums_name || !counts_name) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for an importance matrix");
    }
    const int code = sl_gguf_writer_tensor(writer, sums_name, &sums, error);
    return code ? code : sl_gguf_writer_tensor(writer, counts_name, &counts, error);
}

static int write_floats(sl_gguf_writer *writer, const char *name, const double *values, uint64_t count,
                        sl_error *error) {
    float chunk[1024];
    int code = 0;
    for (uint64_t i = 0; i < count && code == 0;) {
        size_t filled = 0;
        for (; filled < sizeof chunk / sizeof *chunk && i < count; i++) {
            if (!(values[i] <= 3e38)) {
                return sl_fail(
                    error, SL_ERR_INVALID,
                    "%s: a sum of squares is no finite number: the model's activations are not either", name);
            }
            chunk[filled++] = (float)values[i];
        }
        code = sl_gguf_writer_data(writer, chunk, filled * sizeof *chunk, error);
    }
    return code;
}

static int write_metadata(sl_gguf_writer *writer, const sl_importance_text *text, sl_error *error) {
    const sl_view dataset = sl_view_of(text->dataset);
    const sl_gguf_items datasets = {SL_GGUF_STRING, &dataset, 1};
    int code = sl_gguf_writer_string(writer, "general.type", sl_view_of("imatrix"), error);
    code = code ? code : sl_gguf_writer_array(writer, "imatrix.datasets", &datasets, error);
    code = code ? code
                : sl_gguf_writer_unsigned(writer, "imatrix.chunk_count", SL_GGUF_U32, text->chunks, error);
    return code ? code
                : sl_gguf_writer_unsigned(writer, "imatrix.chunk_size", SL_GGUF_U32, text->chunk_size, error);
}

static int write_all(const sl_importance_text *text, sl_gguf_writer *writer, sl_arena *names,
                     sl_error *error) {
    uint64_t written = 0;
    int code = write_metadata(writer, text, error);
    for (uint64_t i = 0; i < text->count && code == 0; i++) {
        if (has_rows(&text->entries[i])) {
            written++;
            code = declare(writer, names, &text->entries[i], error);
        }
    }
    if (code == 0 && written == 0) {
        return sl_fail(error, SL_ERR_INVALID, "the importance matrix is empty: no row was computed");
    }
    code = code ? code : sl_gguf_writer_begin(writer, NULL, error);
    for (uint64_t i = 0; i < text->count && code == 0; i++) {
        const sl_importance_sums *e = &text->entries[i];
        if (has_rows(e)) {
            code = write_floats(writer, e->name, e->sums, e->matrices * e->columns, error);
            code = code ? code : write_floats(writer, e->name, e->counts, e->matrices, error);
        }
    }
    return code ? code : sl_gguf_writer_finish(writer, error);
}

int sl_importance_write(const sl_importance_text *text, const char *path, const sl_output_rules *rules,
                        sl_error *error) {
    sl_gguf_writer *writer;
    sl_arena names = {0};
    int code = sl_gguf_writer_open(path, rules, &writer, error);
    if (code == 0) {
        code = write_all(text, writer, &names, error);
        sl_gguf_writer_free(writer);
        sl_arena_free(&names);
    }
    return code;
}
