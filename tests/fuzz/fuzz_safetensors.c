/* sl_format: any bytes as a safetensors file: refused, or everything that it shows can be read. */
#include "base/text.h"
#include "format/safetensors.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_safetensors *file;
    sl_error error;
    uint64_t sum = 0;
    if (sl_safetensors_open_memory(data, size, "fuzz", &file, &error) != 0) {
        return 0;
    }
    for (uint64_t i = 0; i < sl_safetensors_count(file); i++) {
        const sl_safetensors_entry *entry = sl_safetensors_at(file, i);
        const sl_tensor *tensor;
        int result = sl_safetensors_tensor(file, entry->tensor.name, &tensor, &error);
        if (result != (entry->refusal ? SL_ERR_UNSUPPORTED : 0) ||
            sl_safetensors_find(file, entry->tensor.name) != entry) {
            abort();
        }
        sum += sl_hash64(entry->tensor.data, entry->tensor.bytes, 0);
    }
    sl_safetensors_close(file);
    volatile uint64_t kept = sum; /* so that the reads stay */
    (void)kept;
    return 0;
}
