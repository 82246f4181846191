/* What the tokenizer tests share: files, cases in llama.cpp's format, comparison of ids. */
#ifndef SL_TEST_TOKEN_SUPPORT_H
#define SL_TEST_TOKEN_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/map.h"
#include "token/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* xorshift64*: the same numbers on every machine. */
static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1du;
}

/* A tokenizer of ../shared: a .gguf file or a folder with tokenizer.json and tokenizer_config.json. */
static inline sl_tokenizer *load_shared(const char *name) {
    char path[512], config[512];
    sl_tokenizer *tokenizer = NULL;
    sl_error error = {0};
    int code;
    if (strstr(name, ".gguf")) {
        sl_gguf *gguf;
        snprintf(path, sizeof path, "%s/tokenizers/%s", SLUICE_SHARED_DIR, name);
        code = sl_gguf_open(path, &gguf, &error);
        if (code == 0) {
            code = sl_tokenizer_from_gguf(gguf, &tokenizer, &error);
            sl_gguf_close(gguf);
        }
    } else {
        snprintf(path, sizeof path, "%s/tokenizers/%s/tokenizer.json", SLUICE_SHARED_DIR, name);
        snprintf(config, sizeof config, "%s/tokenizers/%s/tokenizer_config.json", SLUICE_SHARED_DIR, name);
        code = sl_tokenizer_from_json(path, config, &tokenizer, &error);
    }
    if (code) {
        fail_msg("%s", error.message);
    }
    return tokenizer;
}

static inline void check_ids(const char *what, const sl_tokens *found, const int32_t *expected,
                             size_t count) {
    bool equal = found->count == count;
    for (size_t i = 0; equal && i < count; i++) {
        equal = found->data[i] == expected[i];
    }
    if (!equal) {
        char line[1024];
        int used = snprintf(line, sizeof line, "%s\n expected:", what);
        for (size_t i = 0; i < count && used < 500; i++) {
            used += snprintf(line + used, sizeof line - (size_t)used, " %d", expected[i]);
        }
        used += snprintf(line + used, sizeof line - (size_t)used, "\n found:   ");
        for (size_t i = 0; i < found->count && used < 1000; i++) {
            used += snprintf(line + used, sizeof line - (size_t)used, " %d", found->data[i]);
        }
        fail_msg("%s", line);
    }
}

static inline void check_encode(const sl_tokenizer *tokenizer, sl_view text, unsigned flags,
                                const int32_t *expected, size_t count) {
    sl_tokens found = {0};
    sl_error error = {0};
    if (sl_tokenizer_encode(tokenizer, text.data, text.length, flags, &found, &error)) {
        fail_msg("%s", error.message);
    }
    char what[200];
    snprintf(what, sizeof what, "text '%.*s'", (int)(text.length < 150 ? text.length : 150), text.data);
    check_ids(what, &found, expected, count);
    sl_tokens_free(&found);
}

#define CHECK_ENCODE(tokenizer, text, flags, ...)                                                            \
    check_encode(tokenizer, sl_view_of(text), flags, (const int32_t[]){__VA_ARGS__},                         \
                 sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

#endif
