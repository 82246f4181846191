/* sl_grammar: any bytes as a regular expression, under small limits, anchored or not, and as what a JSON
 * string may hold. What compiles is followed for some tokens. */
#include "grammar/grammar.h"
#include "fuzz/follow.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2 || size > 512) {
        return 0;
    }
    sl_error error = {0};
    sl_grammar_builder *builder = fuzz_builder();
    sl_expression root = sl_expression_regex(builder, (const char *)data + 2, size - 2, data[0] & 1, &error);
    if (root >= 0 && data[0] & 2) {
        root = sl_expression_json_escaped(builder, root);
    }
    if (root >= 0 && data[0] & 4) {
        root = sl_expression_except(builder, SL_NO_EXPRESSION, root);
    }
    fuzz_follow(builder, root, data[0] | (uint64_t)data[1] << 8, &error);
    sl_grammar_builder_destroy(builder);
    return 0;
}
