#include "token/internal.h"

#include "base/alloc.h"
#include "base/checked.h"

#include <stddef.h>

sl_tokenizer *sl_tokenizer_new(void) {
    sl_tokenizer *tokenizer = sl_alloc_zero(1, sizeof *tokenizer);
    if (tokenizer) {
        tokenizer->bos = tokenizer->eos = tokenizer->unk = tokenizer->pad = tokenizer->closing = -1;
        tokenizer->pair_gap = 1;
        memset(tokenizer->byte_id, 0xff, sizeof tokenizer->byte_id);
    }
    return tokenizer;
}

void sl_tokenizer_destroy(sl_tokenizer *tokenizer) {
    if (!tokenizer) {
        return;
    }
    for (size_t i = 0; i < tokenizer->split_count; i++) {
        pcre2_code_free(tokenizer->splits[i].code);
    }
    pcre2_general_context_free(tokenizer->regex_context);
    sl_text_table_free(&tokenizer->by_text);
    sl_text_table_free(&tokenizer->whole);
    sl_pair_table_free(&tokenizer->merges);
    sl_trie_free(&tokenizer->raw);
    sl_trie_free(&tokenizer->normalized);
    sl_trie_free(&tokenizer->pieces);
    sl_free(tokenizer->tokens);
    sl_free(tokenizer->added);
    sl_free(tokenizer->templates);
    sl_arena_free(&tokenizer->arena);
    sl_free(tokenizer);
}

sl_view sl_tokenizer_keep(sl_tokenizer *tokenizer, sl_view text) {
    char *copy = sl_arena_strndup(&tokenizer->arena, text.data ? text.data : "", text.length);
    return (sl_view){copy, copy ? text.length : 0};
}

static sl_named_template *template_slot(sl_tokenizer *tokenizer, sl_view name) {
    for (size_t i = 0; i < tokenizer->template_count; i++) {
        if (sl_view_is(name, tokenizer->templates[i].name)) {
            return &tokenizer->templates[i];
        }
    }
    sl_named_template *templates =
        sl_realloc(tokenizer->templates, (tokenizer->template_count + 1) * sizeof *templates);
    if (!templates) {
        return NULL;
    }
    tokenizer->templates = templates;
    return &templates[tokenizer->template_count];
}

int sl_tokenizer_add_template(sl_tokenizer *tokenizer, sl_view name, sl_view text, sl_error *error) {
    const sl_named_template added = {sl_tokenizer_keep(tokenizer, name).data,
                                     sl_tokenizer_keep(tokenizer, text)};
    sl_named_template *slot = added.name && added.text.data ? template_slot(tokenizer, name) : NULL;
    if (!slot) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for the chat template");
    }
    tokenizer->template_count += slot == &tokenizer->templates[tokenizer->template_count];
    *slot = added;
    return 0;
}

/* ---- tokens
 * ----------------------------------------------------------------------------------------------------------
 */

int sl_vocabulary_reserve(sl_tokenizer *tokenizer, size_t count, sl_error *error) {
    if (count > SL_TOKENIZER_MAX_TOKENS) {
        return sl_fail(error, SL_ERR_LIMIT, "vocabulary of %zu tokens: at most %d are accepted", count,
                       SL_TOKENIZER_MAX_TOKENS);
    }
    if (count > tokenizer->capacity) {
        size_t capacity = count + count / 8;
        sl_token *tokens = sl_realloc(tokenizer->tokens, capacity * sizeof *tokens);
        if (!tokens) {
            return sl_fail(error, SL_ERR_NOMEM, "out of memory for a vocabulary of %zu tokens", count);
        }
        memset(tokens + tokenizer->capacity, 0, (capacity - tokenizer->capacity) * sizeof *tokens);
        tokenizer->tokens = tokens;
        tokenizer->capacity = capacity;
    }
    if (count > tokenizer->count) {
        tokenizer->count = count;
    }
    return 0;
}

int sl_vocabulary_set(sl_tokenizer *tokenizer, int32_t id, sl_view text, sl_token_type type,
                      sl_error *error) {
    sl_token *token = &tokenizer->tokens[id];
    if (text.length > SL_TOKENIZER_MAX_TOKEN_LENGTH) {
        return sl_fail(error, SL_ERR_LIMIT, "token %d: its text has %zu bytes, at most %d are accepted", id,
                       text.length, SL_TOKENIZER_MAX_TOKEN_LENGTH);
    }
    if (token->text.data) {
        return sl_fail(error, SL_ERR_FORMAT, "token id %d is given twice: to '%.60s' and to '%.60s'", id,
                       token->text.data, text.data);
    }
    token->text = sl_tokenizer_keep(tokenizer, text);
    token->type = (uint8_t)type;
    return token->text.data ? 0 : sl_fail(error, SL_ERR_NOMEM, "out of memory for the text of token %d", id);
}

bool sl_token_is_plain(const sl_token *token) {
    return token->text.length > 0 && (token->type == SL_TOKEN_NORMAL ||
                                      token->type == SL_TOKEN_USER_DEFINED || token->type == SL_TOKEN_UNUSED);
}

static bool has_text(const sl_token *token) {
    return token->text.length > 0;
}

static int build(sl_tokenizer *tokenizer, sl_text_table *table, size_t field, sl_token_filter filter,
                 int32_t *twice, sl_error *error) {
    int code = sl_text_table_build(table, field, tokenizer->tokens, tokenizer->count, filter, twice);
    return code == 0 ? 0
                     : sl_fail(error, code, "vocabulary of %zu tokens: %s", tokenizer->count,
                               code == SL_ERR_NOMEM ? "out of memory for its index"
                                                    : "its texts defeat every hash");
}

int sl_vocabulary_index(sl_tokenizer *tokenizer, sl_error *error) {
    int32_t twice;
    int code = build(tokenizer, &tokenizer->by_text, offsetof(sl_token, text), has_text, &twice, error);
    if (code == 0 && twice >= 0) {
        sl_view text = tokenizer->tokens[twice].text;
        int32_t first = sl_text_table_find(&tokenizer->by_text, tokenizer->tokens, text);
        code = sl_fail(error, SL_ERR_FORMAT, "tokens %d and %d have the same text '%.60s'", first, twice,
                       text.data);
    }
    return code;
}

int sl_vocabulary_add(sl_tokenizer *tokenizer, const sl_added_token *added, sl_view content, bool normalized,
                      sl_error *error) {
    if (tokenizer->added_count == tokenizer->added_capacity) {
        size_t capacity = tokenizer->added_capacity ? tokenizer->added_capacity * 2 : 64;
        sl_added_token *list = sl_realloc(tokenizer->added, capacity * sizeof *list);
        if (!list) {
            return sl_fail(error, SL_ERR_NOMEM, "out of memory for added tokens");
        }
        tokenizer->added = list;
        tokenizer->added_capacity = capacity;
    }
    tokenizer->added[tokenizer->added_count] = *added;
    sl_trie *trie = normalized ? &tokenizer->normalized : &tokenizer->raw;
    if (sl_trie_insert(trie, content, (int32_t)tokenizer->added_count)) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for added tokens");
    }
    tokenizer->added_count++;
    return 0;
}

/* ---- merges
 * ----------------------------------------------------------------------------------------------------------
 */

int sl_vocabulary_merge(const sl_tokenizer *tokenizer, size_t index, sl_merge_text text, sl_merge *merge,
                        bool *skip, sl_error *error) {
    const sl_view left = text.left, right = text.right;
    char joined[2 * SL_TOKENIZER_MAX_TOKEN_LENGTH];
    const sl_text_table *table = &tokenizer->by_text;
    int32_t ids[3] = {-1, -1, -1};
    sl_view parts[3] = {left, right, {joined, left.length + right.length}};
    for (int i = 0; i < 3; i++) {
        if (parts[i].length <= SL_TOKENIZER_MAX_TOKEN_LENGTH && parts[i].length > 0) {
            if (i == 2) {
                memcpy(joined, left.data, left.length);
                memcpy(joined + left.length, right.data, right.length);
            }
            ids[i] = sl_text_table_find(table, tokenizer->tokens, parts[i]);
        }
        if (ids[i] < 0) {
            return sl_fail(error, SL_ERR_FORMAT,
                           "merge %zu ('%.*s' '%.*s'): the vocabulary has no token for %s", index,
                           (int)(left.length < 40 ? left.length : 40), left.data,
                           (int)(right.length < 40 ? right.length : 40), right.data,
                           i == 0   ? "its left part"
                           : i == 1 ? "its right part"
                                    : "the two joined");
        }
    }
    *merge = (sl_merge){(uint32_t)ids[0], (uint32_t)ids[1], (uint32_t)index, (uint32_t)ids[2]};
    *skip = !sl_token_is_plain(&tokenizer->tokens[ids[2]]);
    return 0;
}

int sl_vocabulary_set_merges(sl_tokenizer *tokenizer, const sl_merge *merges, size_t count, sl_error *error) {
    int code = sl_pair_table_build(&tokenizer->merges, merges, count);
    return code == 0 ? 0
                     : sl_fail(error, code, "%zu merges: %s", count,
                               code == SL_ERR_NOMEM ? "out of memory" : "their pairs defeat every hash");
}

/* ---- what tokens stand for
 * ------------------------------------------------------------------------------------------- */

/* GPT-2's alphabet: printable Latin-1 characters stand for themselves, the other 68 bytes, in rising order,
 * for U+0100 and on (openai/gpt-2, encoder.py: bytes_to_unicode). */
static bool byte_is_printable(unsigned char byte) {
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

uint32_t sl_byte_to_code_point(unsigned char byte) {
    if (byte_is_printable(byte)) {
        return byte;
    }
    return 256u + (byte <= 0x20 ? byte : byte <= 0xa0 ? 33u + byte - 0x7f : 67u);
}

int sl_code_point_to_byte(uint32_t c) {
    if (c < 256) {
        return byte_is_printable((unsigned char)c) ? (int)c : -1;
    }
    c -= 256;
    return c <= 32 ? (int)c : c < 67 ? (int)(0x7f + c - 33) : c == 67 ? 0xad : -1;
}

/* The byte of "<0x0A>", or -1. */
static int byte_of_text(sl_view text) {
    int value = 0;
    if (text.length != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') {
        return -1;
    }
    for (int i = 3; i < 5; i++) {
        char c = text.data[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) {
            return -1;
        }
        value = value * 16 + digit;
    }
    return value;
}

static sl_view unmap_bytes(char *out, sl_view text) {
    size_t length = 0;
    for (size_t at = 0; at < text.length;) {
        uint32_t c;
        size_t size = sl_utf8_decode(text.data + at, text.length - at, &c);
        int byte = size ? sl_code_point_to_byte(c) : -1;
        if (byte < 0) {
            return text; /* not in the alphabet: it stands for itself */
        }
        out[length++] = (char)byte;
        at += size;
    }
    return (sl_view){out, length};
}

static sl_view unmap_spaces(char *out, sl_view text) {
    size_t length = 0;
    for (size_t at = 0; at < text.length;) {
        if (text.length - at >= 3 && memcmp(text.data + at, SL_SPM_SPACE, 3) == 0) {
            out[length++] = ' ';
            at += 3;
        } else {
            out[length++] = text.data[at++];
        }
    }
    return (sl_view){out, length};
}

static int finish_token(sl_tokenizer *tokenizer, int32_t id, bool spaces_in_added, sl_error *error) {
    sl_token *token = &tokenizer->tokens[id];
    bool added = token->type == SL_TOKEN_USER_DEFINED, byte_level = tokenizer->model == SL_MODEL_BYTE_LEVEL;
    token->bytes = token->text;
    if (token->type == SL_TOKEN_BYTE) {
        int byte = byte_of_text(token->text);
        char *copy = byte < 0 ? NULL : sl_arena_alloc(&tokenizer->arena, 2, 1);
        if (!copy) {
            return byte < 0 ? sl_fail(error, SL_ERR_FORMAT,
                                      "token %d ('%.60s') is a byte token, but not of the form <0x0A>", id,
                                      token->text.data)
                            : sl_fail(error, SL_ERR_NOMEM, "out of memory for the text of token %d", id);
        }
        copy[0] = (char)byte;
        token->bytes = (sl_view){copy, 1};
        if (!byte_level) {
            tokenizer->byte_id[byte] = id;
        }
        return 0;
    }
    if (!sl_token_is_plain(token)) {
        return 0;
    }
    if (token->text.length > tokenizer->max_length) {
        tokenizer->max_length = token->text.length;
    }
    if (added && (byte_level || !spaces_in_added)) {
        return 0;
    }
    char *out = sl_arena_alloc(&tokenizer->arena, token->text.length + 1, 1);
    if (!out) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for the text of token %d", id);
    }
    token->bytes = byte_level ? unmap_bytes(out, token->text) : unmap_spaces(out, token->text);
    /* Only a spelling of the alphabet stands for a byte, not a stray token that happens to be one byte long.
     */
    if (byte_level && token->bytes.length == 1 && token->bytes.data == out) {
        tokenizer->byte_id[(unsigned char)out[0]] = id;
    }
    return 0;
}

/* Control tokens after which these models end a turn or a text, as their chat templates and generation
 * configs have it; files seldom say it themselves. */
static const char *const eog_texts[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<end_of_utterance>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "[e~[",
    ("<\xef\xbd\x9c"
     "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"),
};

/* A token that another one's presence makes an ordinary part of a turn: gpt-oss and Solar end messages, not
 * turns, with
 * <|end|>; Gemma 4's </s> is HTML. */
static const struct {
    const char *text, *if_first, *if_second;
} eog_exceptions[] = {
    {"<|end|>", "<|return|>", "<|call|>"},
    {"<|end|>", "<|calls|>", "<|flush|>"},
    {"</s>", "<|tool_response>", "<|tool_response>"},
};

static int32_t find(const sl_tokenizer *tokenizer, const char *text) {
    return sl_text_table_find(&tokenizer->by_text, tokenizer->tokens, sl_view_of(text));
}

static bool is_excepted(const sl_tokenizer *tokenizer, const char *text) {
    for (size_t i = 0; i < sizeof eog_exceptions / sizeof *eog_exceptions; i++) {
        if (strcmp(eog_exceptions[i].text, text) == 0 && find(tokenizer, eog_exceptions[i].if_first) >= 0 &&
            find(tokenizer, eog_exceptions[i].if_second) >= 0) {
            return true;
        }
    }
    return false;
}

void sl_vocabulary_mark_eog(sl_tokenizer *tokenizer, bool any_type) {
    for (size_t i = 0; i < sizeof eog_texts / sizeof *eog_texts; i++) {
        int32_t id = find(tokenizer, eog_texts[i]);
        if (id < 0 || is_excepted(tokenizer, eog_texts[i])) {
            continue;
        }
        sl_token *token = &tokenizer->tokens[id];
        if (any_type) {
            token->type = SL_TOKEN_CONTROL;
        }
        token->eog = token->type == SL_TOKEN_CONTROL || token->type == SL_TOKEN_USER_DEFINED;
    }
}

static void mark_joined(sl_tokenizer *tokenizer) {
    for (size_t id = 0; id < tokenizer->count; id++) {
        const sl_token *token = &tokenizer->tokens[id];
        if (!sl_token_is_plain(token)) {
            continue;
        }
        sl_view text = tokenizer->model == SL_MODEL_BYTE_LEVEL ? token->bytes : token->text;
        for (size_t i = 1; i < text.length; i++) {
            unsigned char left = (unsigned char)text.data[i - 1], right = (unsigned char)text.data[i];
            tokenizer->joined[left][right / 8] |= (unsigned char)(1 << right % 8);
        }
    }
}

int sl_vocabulary_finish(sl_tokenizer *tokenizer, bool spaces_in_added, sl_error *error) {
    for (size_t id = 0; id < tokenizer->count; id++) {
        int code = finish_token(tokenizer, (int32_t)id, spaces_in_added, error);
        if (code) {
            return code;
        }
    }
    mark_joined(tokenizer);
    if (tokenizer->eos >= 0) {
        tokenizer->tokens[tokenizer->eos].eog = true;
    }
    if (tokenizer->bos < 0) {
        tokenizer->add_bos = false;
    }
    if (tokenizer->model == SL_MODEL_UNIGRAM) {
        const int code = sl_unigram_prepare(tokenizer, error);
        if (code) {
            return code;
        }
    }
    if (tokenizer->whole_piece) {
        size_t field =
            tokenizer->model == SL_MODEL_BYTE_LEVEL ? offsetof(sl_token, bytes) : offsetof(sl_token, text);
        return build(tokenizer, &tokenizer->whole, field, sl_token_is_plain, NULL, error);
    }
    return 0;
}

/* ---- facts
 * -----------------------------------------------------------------------------------------------------------
 */

static const sl_token *token_at(const sl_tokenizer *tokenizer, int32_t id) {
    return id >= 0 && (size_t)id < tokenizer->count ? &tokenizer->tokens[id] : NULL;
}

int32_t sl_tokenizer_size(const sl_tokenizer *tokenizer) {
    return (int32_t)tokenizer->count;
}

int32_t sl_tokenizer_bos(const sl_tokenizer *tokenizer) {
    return tokenizer->bos;
}

int32_t sl_tokenizer_eos(const sl_tokenizer *tokenizer) {
    return tokenizer->eos;
}

int32_t sl_tokenizer_unk(const sl_tokenizer *tokenizer) {
    return tokenizer->unk;
}

int32_t sl_tokenizer_pad(const sl_tokenizer *tokenizer) {
    return tokenizer->pad;
}

int32_t sl_tokenizer_closing(const sl_tokenizer *tokenizer) {
    return tokenizer->closing;
}

int32_t sl_tokenizer_pair_gap(const sl_tokenizer *tokenizer) {
    return tokenizer->pair_gap;
}

bool sl_tokenizer_adds_bos(const sl_tokenizer *tokenizer) {
    return tokenizer->add_bos;
}

bool sl_tokenizer_is_eog(const sl_tokenizer *tokenizer, int32_t id) {
    const sl_token *token = token_at(tokenizer, id);
    return token && token->eog;
}

void sl_tokenizer_add_eog(sl_tokenizer *tokenizer, int32_t id) {
    tokenizer->tokens[id].eog = true;
    tokenizer->eos = tokenizer->eos >= 0 ? tokenizer->eos : id;
}

int32_t sl_tokenizer_find(const sl_tokenizer *tokenizer, sl_view text) {
    return sl_text_table_find(&tokenizer->by_text, tokenizer->tokens, text);
}

sl_view sl_tokenizer_token_text(const sl_tokenizer *tokenizer, int32_t id) {
    const sl_token *token = token_at(tokenizer, id);
    return token ? token->text : (sl_view){0};
}

sl_view sl_tokenizer_decode_piece(const sl_tokenizer *tokenizer, int32_t id) {
    const sl_token *token = token_at(tokenizer, id);
    return token ? token->bytes : (sl_view){0};
}

sl_token_type sl_tokenizer_token_type(const sl_tokenizer *tokenizer, int32_t id) {
    const sl_token *token = token_at(tokenizer, id);
    return token ? (sl_token_type)token->type : SL_TOKEN_UNDEFINED;
}

sl_view sl_tokenizer_chat_template(const sl_tokenizer *tokenizer, const char *name) {
    for (size_t i = 0; i < tokenizer->template_count; i++) {
        if (strcmp(tokenizer->templates[i].name, name ? name : "default") == 0) {
            return tokenizer->templates[i].text;
        }
    }
    return (sl_view){0};
}

int sl_tokens_append(sl_tokens *tokens, int32_t id) {
    if (tokens->count == tokens->capacity) {
        size_t capacity = tokens->capacity ? tokens->capacity * 2 : 64;
        int32_t *data = sl_realloc(tokens->data, capacity * sizeof *data);
        if (!data) {
            return SL_ERR_NOMEM;
        }
        tokens->data = data;
        tokens->capacity = capacity;
    }
    tokens->data[tokens->count++] = id;
    return 0;
}

void sl_tokens_free(sl_tokens *tokens) {
    sl_free(tokens->data);
    *tokens = (sl_tokens){0};
}

const char *sl_tokenizer_chat_template_name(const sl_tokenizer *tokenizer, int index) {
    return index >= 0 && (size_t)index < tokenizer->template_count ? tokenizer->templates[index].name : NULL;
}
