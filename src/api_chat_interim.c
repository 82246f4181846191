/* The C API: conversations as tokens. */
#include "api.h"

#include <string.h>

int sluice_chat_tokens(const sluice_model *model, const char *messages, const char *options, int32_t **tokens,
                       size_t *count, sluice_error *error) {
    char *text = NULL;
    int result = sluice_chat_render(model, messages, options, &text, error);
    if (result == 0) {
        result = sluice_tokenize(model, text, strlen(text), SLUICE_TOKENIZE_SPECIAL, tokens, count, error);
    }
    sluice_free(text);
    return result;
}

void sluice_chat_get_facts(const sluice_model *model, sluice_chat_facts *facts) {
    (void)model;
    const size_t size = facts->size;
    memset(facts, 0, size < sizeof *facts ? size : sizeof *facts);
    facts->size = size;
}
