/* The vocabulary's trie: the tokens that have bytes, in preorder. */
#include "grammar/automaton.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

typedef struct sorted_token {
    const char *bytes;
    int32_t count, token;
} sorted_token;

static int compare_tokens(const void *a, const void *b) {
    const sorted_token *left = a, *right = b;
    int32_t shared = left->count < right->count ? left->count : right->count;
    int order = memcmp(left->bytes, right->bytes, (size_t)shared);
    if (order == 0) {
        order = left->count < right->count ? -1 : left->count > right->count;
    }
    return order ? order : (left->token < right->token ? -1 : left->token > right->token);
}

static bool copy_tokens(sl_grammar_vocabulary *vocabulary, const sl_grammar_token *tokens) {
    size_t total = 1;
    for (int32_t i = 0; i < vocabulary->count; i++) {
        total += tokens[i].count > 0 ? (size_t)tokens[i].count : 0;
    }
    vocabulary->bytes = sl_alloc(total);
    if (!vocabulary->bytes) {
        return false;
    }
    char *at = vocabulary->bytes;
    for (int32_t i = 0; i < vocabulary->count; i++) {
        vocabulary->tokens[i] = tokens[i];
        vocabulary->tokens[i].bytes = at;
        vocabulary->tokens[i].count = tokens[i].count > 0 ? tokens[i].count : 0;
        if (tokens[i].count > 0) {
            memcpy(at, tokens[i].bytes, (size_t)tokens[i].count);
            at += tokens[i].count;
        }
        vocabulary->same[i] = -1;
        if (tokens[i].is_end) {
            vocabulary->ends[vocabulary->end_count++] = i;
        }
    }
    return true;
}

/* The trie of sorted tokens; each adds the bytes that it does not share with the one before. */
static bool make_trie(sl_grammar_vocabulary *vocabulary, const sorted_token *sorted, int32_t count) {
    size_t nodes = 0;
    for (int pass = 0; pass < 2; pass++) {
        int32_t path[SL_TRIE_DEPTH + 1];
        int32_t depth = 0, at = 0;
        for (int32_t i = 0; i < count; i++) {
            const sorted_token *token = &sorted[i];
            int32_t shared = 0;
            while (i > 0 && shared < token->count && shared < sorted[i - 1].count &&
                   token->bytes[shared] == sorted[i - 1].bytes[shared]) {
                shared++;
            }
            nodes += (size_t)(token->count - shared);
            if (pass == 0) {
                continue;
            }
            if (i > 0 && shared == token->count) { /* the same bytes again */
                vocabulary->same[token->token] = vocabulary->trie[at - 1].token;
                vocabulary->trie[at - 1].token = token->token;
                continue;
            }
            for (; depth > shared; depth--) {
                vocabulary->trie[path[depth]].size = at - path[depth];
            }
            for (; depth < token->count; at++) {
                vocabulary->trie[at] = (sl_trie_node){
                    .token = -1, .byte = (uint8_t)token->bytes[depth], .depth = (uint8_t)(depth + 1)};
                path[++depth] = at;
            }
            vocabulary->trie[at - 1].token = token->token;
        }
        for (; pass == 1 && depth > 0; depth--) {
            vocabulary->trie[path[depth]].size = at - path[depth];
        }
        if (pass == 0) {
            vocabulary->trie = sl_alloc_zero(nodes + 1, sizeof(*vocabulary->trie));
            vocabulary->trie_count = (int32_t)nodes;
            if (!vocabulary->trie) {
                return false;
            }
        }
    }
    return true;
}

int sl_byte_kind(uint8_t byte) {
    const uint8_t letter = byte | 0x20;
    if (byte < 0x20) {
        return byte == '\t' ? 2 : byte == '\n' ? 3 : byte == '\r' ? 4 : 5;
    }
    if (letter >= 'a' && letter <= 'z') { /* hexadecimal digits and exponents apart */
        return 6 + (byte >= 'a') * 3 + (letter == 'e' ? 1 : letter > 'f' ? 2 : 0);
    }
    if (byte >= '0' && byte <= '9') {
        return 12 + (byte > '0');
    }
    return byte < '0'   ? 14 + byte - ' '
           : byte < 'A' ? 30 + byte - ':'
           : byte < 'a' ? 37 + byte - '['
                        : 43 + byte - '{';
}

/* How a character of several bytes goes on: how many are missing, and the range of the next one. */
typedef struct character {
    int missing; /* -1: the bytes are no UTF-8 */
    uint8_t low, high;
} character;

/* RFC 3629, 4. */
static character next_character(character before, uint8_t byte) {
    if (before.missing < 0 || (before.missing > 0 && (byte < before.low || byte > before.high))) {
        return (character){-1, 0, 0};
    }
    if (before.missing > 0) {
        return (character){before.missing - 1, 0x80, 0xbf};
    }
    if (byte < 0x80) {
        return (character){0, 0, 0};
    }
    const int more = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    return (character){byte < 0xc2 || byte > 0xf4 ? -1 : more,
                       byte == 0xe0   ? 0xa0
                       : byte == 0xf0 ? 0x90
                                      : 0x80,
                       byte == 0xed   ? 0x9f
                       : byte == 0xf4 ? 0x8f
                                      : 0xbf};
}

/* Which kinds of characters are below each node. */
static void find_kinds(sl_grammar_vocabulary *vocabulary) {
    static const uint64_t WITHIN = (uint64_t)1 << 63, INVALID = (uint64_t)1 << 62;
    const uint64_t broken = (uint64_t)1 << SL_KIND_BROKEN, wide = (uint64_t)1 << SL_KIND_WIDE;
    uint64_t *kinds = vocabulary->kinds;
    character path[SL_TRIE_DEPTH + 1] = {{0, 0, 0}};
    for (int32_t i = 0; i < vocabulary->trie_count; i++) {
        const sl_trie_node *node = &vocabulary->trie[i];
        path[node->depth] = next_character(path[node->depth - 1], node->byte);
        const int missing = path[node->depth].missing;
        kinds[i] = missing < 0 ? INVALID : missing > 0 ? WITHIN : 0;
    }
    for (int32_t i = vocabulary->trie_count; i-- > 0;) {
        const int32_t end = i + vocabulary->trie[i].size;
        for (int32_t child = i + 1; child < end; child += vocabulary->trie[child].size) {
            const uint8_t byte = vocabulary->trie[child].byte;
            kinds[i] |= kinds[child] & ~(WITHIN | INVALID);
            kinds[i] |= kinds[child] & INVALID ? broken
                        : byte < 0x80          ? (uint64_t)1 << sl_byte_kind(byte)
                        : byte >= 0xc0         ? wide
                                               : 0;
        }
    }
    for (int32_t i = 0; i < vocabulary->trie_count; i++) {
        kinds[i] |= kinds[i] & (WITHIN | INVALID) ? broken : 0;
        kinds[i] &= ~(WITHIN | INVALID);
    }
}

static void find_quotes(sl_grammar_vocabulary *vocabulary) {
    for (int32_t i = vocabulary->trie_count; i-- > 0;) {
        sl_trie_node *node = &vocabulary->trie[i];
        node->quotes = node->byte == '"' && node->size > 1;
        for (int32_t child = 1; child < node->size && !node->quotes; child += node[child].size) {
            node->quotes = node[child].quotes;
        }
    }
}

/* What is known of the nodes of a trie without a grammar. */
static bool make_summaries(sl_grammar_vocabulary *vocabulary) {
    const size_t count = (size_t)vocabulary->trie_count, words = ((size_t)vocabulary->count + 31) / 32;
    vocabulary->in_order = sl_alloc_zero((size_t)vocabulary->count + 1, sizeof(int32_t));
    vocabulary->first_token = sl_alloc_zero(count + 1, sizeof(int32_t));
    vocabulary->kinds = sl_alloc_zero(count + 1, sizeof(uint64_t));
    vocabulary->heights = sl_alloc_zero(count + 1, 1);
    vocabulary->not_ends = sl_alloc_zero(words + 1, sizeof(uint32_t));
    vocabulary->in_trie = sl_alloc_zero(words + 1, sizeof(uint32_t));
    if (!vocabulary->in_order || !vocabulary->first_token || !vocabulary->kinds || !vocabulary->heights ||
        !vocabulary->not_ends || !vocabulary->in_trie) {
        return false;
    }
    int32_t tokens = 0;
    for (size_t i = 0; i < count; i++) {
        vocabulary->first_token[i] = tokens;
        for (int32_t token = vocabulary->trie[i].token; token >= 0; token = vocabulary->same[token]) {
            vocabulary->in_order[tokens++] = token;
            vocabulary->in_trie[token / 32] |= (uint32_t)1 << (token % 32);
        }
    }
    vocabulary->first_token[count] = tokens;
    find_kinds(vocabulary);
    find_quotes(vocabulary);
    for (size_t i = count; i-- > 0;) {
        const sl_trie_node *node = &vocabulary->trie[i];
        for (size_t child = i + 1; child < i + (size_t)node->size;
             child += (size_t)vocabulary->trie[child].size) {
            const uint8_t height = (uint8_t)(vocabulary->heights[child] + 1);
            vocabulary->heights[i] = height > vocabulary->heights[i] ? height : vocabulary->heights[i];
        }
    }
    for (int32_t i = 0; i < vocabulary->count; i++) {
        vocabulary->not_ends[i / 32] |= (uint32_t)!vocabulary->tokens[i].is_end << (i % 32);
    }
    return true;
}

static bool make_vocabulary(sl_grammar_vocabulary *vocabulary, const sl_grammar_token *tokens) {
    size_t count = (size_t)vocabulary->count;
    vocabulary->tokens = sl_alloc_zero(count + 1, sizeof(*vocabulary->tokens));
    vocabulary->same = sl_alloc_zero(count + 1, sizeof(int32_t));
    vocabulary->ends = sl_alloc_zero(count + 1, sizeof(int32_t));
    sorted_token *sorted = sl_alloc_zero(count + 1, sizeof(*sorted));
    bool fine = vocabulary->tokens && vocabulary->same && vocabulary->ends && sorted &&
                copy_tokens(vocabulary, tokens);
    int32_t kept = 0;
    for (int32_t i = 0; fine && i < vocabulary->count; i++) {
        const sl_grammar_token *token = &vocabulary->tokens[i];
        if (!token->is_special && !token->is_end && token->count > 0 && token->count <= SL_TRIE_DEPTH) {
            sorted[kept++] = (sorted_token){token->bytes, token->count, i};
        }
    }
    if (fine) {
        qsort(sorted, (size_t)kept, sizeof(*sorted), compare_tokens);
        fine = make_trie(vocabulary, sorted, kept) && make_summaries(vocabulary);
    }
    sl_free(sorted);
    return fine;
}

sl_grammar_vocabulary *sl_grammar_vocabulary_create(const sl_grammar_token *tokens, int32_t count,
                                                    sl_error *error) {
    sl_grammar_vocabulary *vocabulary = sl_alloc_zero(1, sizeof(*vocabulary));
    if (vocabulary) {
        atomic_init(&vocabulary->references, 1);
        vocabulary->count = count;
        if (make_vocabulary(vocabulary, tokens)) {
            return vocabulary;
        }
        sl_grammar_vocabulary_release(vocabulary);
    }
    sl_fail(error, SL_ERR_NOMEM, "grammar: out of memory for a vocabulary of %d tokens", count);
    return NULL;
}

void sl_grammar_vocabulary_release(sl_grammar_vocabulary *vocabulary) {
    if (!vocabulary || atomic_fetch_sub(&vocabulary->references, 1) != 1) {
        return;
    }
    sl_free(vocabulary->tokens);
    sl_free(vocabulary->bytes);
    sl_free(vocabulary->trie);
    sl_free(vocabulary->same);
    sl_free(vocabulary->ends);
    sl_free(vocabulary->in_order);
    sl_free(vocabulary->first_token);
    sl_free(vocabulary->kinds);
    sl_free(vocabulary->heights);
    sl_free(vocabulary->not_ends);
    sl_free(vocabulary->in_trie);
    sl_free(vocabulary);
}

int32_t sl_vocabulary_find(const sl_grammar_vocabulary *vocabulary, const char *text, size_t count) {
    int32_t found = -1;
    for (int32_t i = 0; i < vocabulary->count; i++) {
        const sl_grammar_token *token = &vocabulary->tokens[i];
        if ((size_t)token->count == count && memcmp(token->bytes, text, count) == 0) {
            if (token->is_special) {
                return i;
            }
            found = found < 0 ? i : found;
        }
    }
    return found;
}
