/* sl_grammar: any bytes as GBNF, under small limits. What compiles is followed for some tokens: what the mask
 * says of a token is what accepting it says, and going back leads back. */
#include "grammar/grammar.h"
#include "fuzz/follow.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2 || size > 4096) {
        return 0;
    }
    sl_error error = {0};
    sl_grammar_builder *builder = fuzz_builder();
    sl_expression root = sl_expression_gbnf(builder, (const char *)data + 2, size - 2, &error);
    fuzz_follow(builder, root, data[0] | (uint64_t)data[1] << 8, &error);
    sl_grammar_builder_destroy(builder);
    return 0;
}
