/* Real GGUF files: a small model, and vocabularies without tensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "format/gguf.h"

#include <stdio.h>
#include <unistd.h>

static void real_files_open(void **state) {
    (void)state;
    sl_gguf *gguf;
    sl_error error;
    uint64_t value;
    const sl_gguf_entry *entry;
    assert_int_equal(sl_gguf_open(SLUICE_SHARED_DIR "/models/stories260K.gguf", &gguf, &error), 0);
    assert_int_equal(sl_gguf_u64(gguf, "llama.block_count", &value, &error), 0);
    assert_int_equal(value, 5);
    assert_int_equal(sl_gguf_u64(gguf, "llama.embedding_length", &value, &error), 0);
    assert_int_equal(value, 64);
    assert_int_equal(sl_gguf_u64(gguf, "llama.attention.head_count_kv", &value, &error), 0);
    assert_int_equal(value, 4);
    assert_int_equal(sl_gguf_array(gguf, "tokenizer.ggml.tokens", SL_GGUF_STRING, &entry, &error), 0);
    assert_int_equal(entry->count, 512);
    assert_int_equal(sl_gguf_tensor(gguf, "token_embd.weight")->dims[0], 64);
    assert_int_equal(sl_gguf_tensor(gguf, "token_embd.weight")->dims[1], 512);
    sl_gguf_close(gguf);
    static const struct {
        const char *path;
        uint64_t tokens; /* the published sizes of these vocabularies */
    } vocabularies[] = {{SLUICE_SHARED_DIR "/tokenizers/ggml-vocab-gpt-2.gguf", 50257},
                        {SLUICE_SHARED_DIR "/tokenizers/ggml-vocab-falcon.gguf", 65024},
                        {SLUICE_SHARED_DIR "/tokenizers/ggml-vocab-phi-3.gguf", 32064}};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(sl_gguf_open(vocabularies[i].path, &gguf, &error), 0);
        assert_int_equal(sl_gguf_tensor_count(gguf), 0);
        assert_int_equal(sl_gguf_array(gguf, "tokenizer.ggml.tokens", SL_GGUF_STRING, &entry, &error), 0);
        assert_int_equal(entry->count, vocabularies[i].tokens);
        sl_gguf_close(gguf);
    }
}

int main(void) {
    if (access(SLUICE_SHARED_DIR "/models/stories260K.gguf", R_OK) != 0) {
        printf("skipped: no model file beside the repository\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(real_files_open)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
