/* sl_format: any bytes as a GGUF file: refused, or everything that it shows can be read. */
#include "format/gguf.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_gguf *gguf;
    sl_error error;
    uint64_t sum = 0;
    if (sl_gguf_open_memory(data, size, "fuzz", &gguf, &error) != 0) {
        return 0;
    }
    for (uint64_t i = 0; i < sl_gguf_entry_count(gguf); i++) {
        const sl_gguf_entry *entry = sl_gguf_entry_at(gguf, i);
        const unsigned char *cursor = entry->data;
        uint64_t u = 0;
        int64_t s = 0;
        double f = 0;
        bool flag = false;
        sl_view text = {0};
        if (sl_gguf_find(gguf, entry->key) != entry) {
            abort();
        }
        sl_gguf_u64(gguf, entry->key, &u, &error);
        sl_gguf_i64(gguf, entry->key, &s, &error);
        sl_gguf_f64(gguf, entry->key, &f, &error);
        sl_gguf_bool(gguf, entry->key, &flag, &error);
        sl_gguf_string(gguf, entry->key, &text, &error);
        sum += u + (uint64_t)s + (f > 0) + flag + sl_hash64(text.data, text.length, 0);
        for (uint64_t n = 0; n < entry->count; n++) {
            if (entry->item_type == SL_GGUF_STRING) {
                text = sl_gguf_next_string(&cursor);
                sum += sl_hash64(text.data, text.length, 0);
            } else if (entry->item_type != SL_GGUF_ARRAY) {
                sum += (uint64_t)sl_gguf_item_i64(entry, n) + (sl_gguf_item_f64(entry, n) > 0);
            }
        }
        sum += sl_hash64(entry->data, entry->bytes, 0);
    }
    for (uint64_t i = 0; i < sl_gguf_tensor_count(gguf); i++) {
        const sl_tensor *tensor = sl_gguf_tensor_at(gguf, i);
        if (sl_gguf_tensor(gguf, tensor->name) != tensor) {
            abort();
        }
        sum += sl_hash64(tensor->data, tensor->bytes, 0);
    }
    sl_gguf_close(gguf);
    volatile uint64_t kept = sum; /* so that the reads stay */
    (void)kept;
    return 0;
}
