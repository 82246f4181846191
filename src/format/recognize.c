#define _DEFAULT_SOURCE /* strncasecmp */
#include "format/recognize.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

typedef struct row {
    const char *begin, *words;
} row;

/* https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md; APPNOTE.TXT (zip, as torch.save writes); the
 * file formats of llama.cpp before GGUF. */
static const row ROWS[] = {
    {"version https://git-lfs.github.com/spec/",
     "a git-lfs pointer, not the file itself; fetch that with `git lfs pull`, or download the file"},
    {"<!doctype html",
     "an HTML page, not the file itself; download from the address that ends in the file's name "
     "(on huggingface.co with /resolve/, not /blob/)"},
    {"<html", "an HTML page, not the file itself; download from the address that ends in the file's name"},
    {"PK\x03\x04",
     "a zip archive, as PyTorch's .bin and .pt files are; get the .safetensors or .gguf files instead"},
    {"lmgg", "a file of llama.cpp from before GGUF; get or convert a .gguf file"},
    {"fmgg", "a file of llama.cpp from before GGUF; get or convert a .gguf file"},
    {"tjgg", "a file of llama.cpp from before GGUF; get or convert a .gguf file"},
};

static bool begins(const char *data, size_t size, const char *text) {
    const size_t length = strlen(text);
    return size >= length && strncasecmp(data, text, length) == 0;
}

const char *sl_recognize(const void *data, size_t size) {
    enum { LEADING = 64 };
    const char *text = data;
    size_t at = 0;
    while (at < size && at < LEADING && text[at] && strchr(" \t\r\n", text[at])) {
        at++;
    }
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        if (begins(text + at, size - at, ROWS[i].begin)) {
            return ROWS[i].words;
        }
    }
    size_t zeros = 0;
    while (zeros < size && zeros < LEADING && text[zeros] == 0) {
        zeros++;
    }
    return zeros == LEADING ? "a file of zeros, as downloads are that have not got there; get it again"
                            : NULL;
}

const char *sl_recognize_path(const char *path) {
    static const char *const ends[] = {".part",     ".partial", ".incomplete", ".crdownload",
                                       ".download", ".aria2",   ".tmp"};
    const size_t length = strlen(path);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t end = strlen(ends[i]);
        if (length > end && strcmp(path + length - end, ends[i]) == 0) {
            return "by its name it is a download that has not finished";
        }
    }
    return NULL;
}
