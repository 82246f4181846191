/* sl_token: input = a tokenizer.json, a zero byte, and a text. Without a zero byte the whole input is both.
 */
#include "token/tokenizer.h"

#include "base/alloc.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    sl_view json = {(const char *)data, zero ? (size_t)(zero - data) : size};
    sl_view text = zero ? (sl_view){(const char *)zero + 1, size - json.length - 1} : json;
    sl_tokenizer *tokenizer;
    sl_error error = {0};
    /* The text is the configuration as well: what is no configuration is refused, and then it is left out. */
    if (sl_tokenizer_from_json_memory(json, text, "fuzz", &tokenizer, &error) &&
        sl_tokenizer_from_json_memory(json, (sl_view){0}, "fuzz", &tokenizer, &error)) {
        return 0;
    }
    sl_tokens ids = {0};
    sl_buffer whole = {0}, streamed = {0};
    sl_detokenizer detokenizer;
    if (sl_tokenizer_encode(tokenizer, text.data, text.length, SL_TOKENIZE_SPECIAL | SL_TOKENIZE_BOS, &ids,
                            &error) == 0 &&
        sl_tokenizer_decode(tokenizer, ids.data, ids.count, 0, &whole, &error) == 0) {
        sl_detokenizer_begin(&detokenizer, tokenizer, 0);
        for (size_t i = 0; i < ids.count; i++) {
            size_t before = streamed.length;
            if (sl_detokenizer_feed(&detokenizer, ids.data[i], &streamed, &error)) {
                abort();
            }
            for (size_t at = before; at < streamed.length;) {
                uint32_t c;
                size_t step = sl_utf8_decode(streamed.data + at, streamed.length - at, &c);
                if (step == 0) {
                    abort(); /* half a character */
                }
                at += step;
            }
        }
        sl_detokenizer_flush(&detokenizer, &streamed, &error);
        if (streamed.length != whole.length ||
            (whole.length && memcmp(streamed.data, whole.data, whole.length) != 0)) {
            abort();
        }
    }
    sl_tokens_free(&ids);
    sl_buffer_free(&whole);
    sl_buffer_free(&streamed);
    sl_tokenizer_destroy(tokenizer);
    return 0;
}
