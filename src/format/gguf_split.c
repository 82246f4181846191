/* Split GGUF files, as llama.cpp's gguf-split writes them: NAME-00001-of-00003.gguf and so on, each a GGUF
 * file with split.no (from 0), split.count and split.tensors.count; the first has the model's metadata. */
#include "base/alloc.h"
#include "format/gguf.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    NUMBER_LENGTH = sizeof "-00001-of-00003.gguf" - 1,
    MOST_PARTS = 9999,
};

typedef struct split {
    uint64_t number, count, tensors;
} split;

static int read_split(const sl_gguf *part, split *found, sl_error *error) {
    int code = sl_gguf_u64(part, "split.count", &found->count, error);
    code = code ? code : sl_gguf_u64(part, "split.no", &found->number, error);
    code = code ? code : sl_gguf_u64(part, "split.tensors.count", &found->tensors, error);
    if (code == 0 && (found->count > MOST_PARTS || found->number >= found->count)) {
        code = sl_fail(error, SL_ERR_FORMAT,
                       "%s: split.no is %llu and split.count %llu: must ascend, up to %d", sl_gguf_path(part),
                       (unsigned long long)found->number, (unsigned long long)found->count, MOST_PARTS);
    }
    return code;
}

/* The name of part `number` (from 0) beside `path`, whose own number is `of->number`; owned by the caller. */
static int part_path(const char *path, const split *of, uint64_t number, char **result, sl_error *error) {
    char ending[64];
    const size_t length = strlen(path);
    snprintf(ending, sizeof ending, "-%05llu-of-%05llu.gguf", (unsigned long long)of->number + 1,
             (unsigned long long)of->count);
    *result = NULL;
    if (length <= NUMBER_LENGTH || strcmp(path + length - NUMBER_LENGTH, ending) != 0) {
        return sl_fail(error, SL_ERR_FORMAT,
                       "%s: part %llu of %llu by what it says, so its name must end in %s, beside the others",
                       path, (unsigned long long)of->number + 1, (unsigned long long)of->count, ending);
    }
    if (!(*result = sl_strdup(path))) {
        return sl_fail(error, SL_ERR_NOMEM, "%s: no memory", path);
    }
    snprintf(*result + length - NUMBER_LENGTH, NUMBER_LENGTH + 1, "-%05llu-of-%05llu.gguf",
             (unsigned long long)number + 1, (unsigned long long)of->count);
    return 0;
}

/* What several parts say they say alike, except which of them they are. */
static int check_keys(const sl_gguf *first, const sl_gguf *part, sl_error *error) {
    for (uint64_t i = 0; i < sl_gguf_entry_count(part); i++) {
        const sl_gguf_entry *entry = sl_gguf_entry_at(part, i), *other = sl_gguf_find(first, entry->key);
        if (strcmp(entry->key, "split.no") != 0 && other &&
            (other->type != entry->type || other->item_type != entry->item_type ||
             other->count != entry->count || other->bytes != entry->bytes ||
             memcmp(other->data, entry->data, entry->bytes) != 0)) {
            return sl_fail(error, SL_ERR_FORMAT, "%s: metadata key '%.100s' differs from that of %s",
                           sl_gguf_path(part), entry->key, sl_gguf_path(first));
        }
    }
    return 0;
}

static int open_one(const char *path, const split *of, uint64_t number, sl_gguf **part, sl_error *error) {
    char *name;
    split found;
    int code = part_path(path, of, number, &name, error);
    *part = NULL;
    if (code) {
        return code;
    }
    if (access(name, F_OK) != 0) {
        code =
            sl_fail(error, SL_ERR_NOT_FOUND, "%s: is not there: part %llu of the %llu that the model is in",
                    name, (unsigned long long)number + 1, (unsigned long long)of->count);
    }
    code = code ? code : sl_gguf_open_file(name, part, error);
    code = code ? code : read_split(*part, &found, error);
    if (code == 0 && (found.number != number || found.count != of->count)) {
        code = sl_fail(error, SL_ERR_FORMAT, "%s: part %llu of %llu by what it says, not %llu of %llu", name,
                       (unsigned long long)found.number + 1, (unsigned long long)found.count,
                       (unsigned long long)number + 1, (unsigned long long)of->count);
    }
    sl_free(name);
    if (code) {
        sl_gguf_close(*part);
        *part = NULL;
    }
    return code;
}

/* parts[0 .. count - 1], of which the first receives the others. */
static int join(sl_gguf **parts, const split *of, sl_error *error) {
    uint64_t tensors = 0;
    for (uint64_t i = 0; i < of->count; i++) {
        const int code = i ? check_keys(parts[0], parts[i], error) : 0;
        if (code) {
            return code;
        }
        tensors += sl_gguf_tensor_count(parts[i]);
    }
    if (tensors != of->tensors) {
        return sl_fail(error, SL_ERR_FORMAT, "%s: split.tensors.count is %llu, but the %llu parts have %llu",
                       sl_gguf_path(parts[0]), (unsigned long long)of->tensors, (unsigned long long)of->count,
                       (unsigned long long)tensors);
    }
    return sl_gguf_join(parts[0], parts + 1, of->count - 1, error);
}

int sl_gguf_open(const char *path, sl_gguf **gguf, sl_error *error) {
    split of = {0};
    int code = sl_gguf_open_file(path, gguf, error);
    if (code || sl_gguf_u64(*gguf, "split.count", &of.count, NULL) != 0 || of.count < 2) {
        return code;
    }
    sl_gguf *given = *gguf;
    *gguf = NULL;
    sl_gguf **parts = NULL;
    code = read_split(given, &of, error);
    if (code == 0 && !(parts = sl_alloc_zero(of.count, sizeof *parts))) {
        code = sl_fail(error, SL_ERR_NOMEM, "%s: no memory", path);
    }
    for (uint64_t i = 0; code == 0 && i < of.count; i++) {
        code =
            open_one(path, &of, i, &parts[i], error); /* the given one again, by the name that it must have */
    }
    code = code ? code : join(parts, &of, error);
    for (uint64_t i = code ? 0 : of.count; parts && i < of.count; i++) {
        sl_gguf_close(parts[i]);
    }
    *gguf = code ? NULL : parts[0];
    sl_free(parts);
    sl_gguf_close(given);
    return code;
}
