/* What tokenizing a text ahead of the model asks of the vocabulary. */
#include "grammar/automaton.h"

bool sl_grammar_vocabulary_extends(const sl_grammar_vocabulary *vocabulary, const char *bytes, size_t count) {
    const sl_trie_node *trie = vocabulary->trie;
    int32_t first = 0, end = vocabulary->trie_count;
    for (size_t i = 0; i < count; i++) {
        int32_t node = first;
        while (node < end && trie[node].byte != (uint8_t)bytes[i]) {
            node += trie[node].size;
        }
        if (node >= end) {
            return false;
        }
        first = node + 1;
        end = node + trie[node].size;
    }
    return first < end;
}

bool sl_grammar_vocabulary_is_text(const sl_grammar_vocabulary *vocabulary, int32_t token) {
    const sl_grammar_token *t = token >= 0 && token < vocabulary->count ? &vocabulary->tokens[token] : NULL;
    return t && t->count > 0 && t->count <= SL_TRIE_DEPTH && !t->is_special && !t->is_end;
}
