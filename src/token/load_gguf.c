/* Tokenizers from GGUF metadata, as specified in ggml's docs/gguf.md; defaults are those of llama.cpp's
 * src/llama-vocab.cpp. */
#include "token/internal.h"

#include "base/alloc.h"

#include <math.h>

/* ---- optional keys
 * --------------------------------------------------------------------------------------------------- */

static int get_id(const sl_tokenizer *tokenizer, const sl_gguf *gguf, const char *key, int32_t *id,
                  sl_error *error) {
    uint64_t value;
    int code = sl_gguf_u64(gguf, key, &value, error);
    if (code == SL_ERR_NOT_FOUND) {
        if (*id >= 0 && (size_t)*id >= tokenizer->count) {
            *id = -1; /* a default that this vocabulary is too small for */
        }
        return 0;
    }
    if (code) {
        return code;
    }
    if (value >= tokenizer->count) {
        return sl_fail(error, SL_ERR_FORMAT, "%s is %llu, but the vocabulary has %zu tokens", key,
                       (unsigned long long)value, tokenizer->count);
    }
    *id = (int32_t)value;
    return 0;
}

static int get_bool(const sl_gguf *gguf, const char *key, bool *value, sl_error *error) {
    bool found;
    int code = sl_gguf_bool(gguf, key, &found, error);
    if (code == 0) {
        *value = found;
    }
    return code == SL_ERR_NOT_FOUND ? 0 : code;
}

/* An array that goes with the tokens, one element each; *entry is NULL when it is absent. */
static int get_beside(const sl_gguf *gguf, const char *key, sl_gguf_type type, uint64_t count,
                      const sl_gguf_entry **entry, sl_error *error) {
    *entry = NULL;
    int code = sl_gguf_array(gguf, key, type, entry, error);
    if (code == SL_ERR_NOT_FOUND) {
        *entry = NULL;
        return 0;
    }
    if (code == 0 && (*entry)->count != count) {
        return sl_fail(error, SL_ERR_FORMAT, "%s has %llu elements, but there are %llu tokens", key,
                       (unsigned long long)(*entry)->count, (unsigned long long)count);
    }
    return code;
}

/* ---- tokens and merges
 * ----------------------------------------------------------------------------------------------- */

/* Scores in the order of merging: the highest score gets the lowest rank. A float's bits, the sign's meaning
 * undone, order as the float does. Never SL_NO_RANK for a finite score. */
static uint32_t rank_of_score(float score) {
    uint32_t bits;
    score += 0.0f; /* -0 is 0 */
    memcpy(&bits, &score, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return ~bits;
}

static int load_tokens(sl_tokenizer *tokenizer, const sl_gguf *gguf, sl_error *error) {
    const sl_gguf_entry *texts, *scores, *types;
    int code = sl_gguf_array(gguf, "tokenizer.ggml.tokens", SL_GGUF_STRING, &texts, error);
    if (code == 0 && texts->count == 0) {
        code = sl_fail(error, SL_ERR_FORMAT, "tokenizer.ggml.tokens is empty");
    }
    if (code ||
        (code = get_beside(gguf, "tokenizer.ggml.scores", SL_GGUF_F32, texts->count, &scores, error)) != 0 ||
        (code = get_beside(gguf, "tokenizer.ggml.token_type", SL_GGUF_I32, texts->count, &types, error)) !=
            0 ||
        (code = sl_vocabulary_reserve(tokenizer, texts->count, error)) != 0) {
        return code;
    }
    const bool unigram = tokenizer->model == SL_MODEL_UNIGRAM;
    if ((unigram || tokenizer->model == SL_MODEL_SCORE) && !scores) {
        return sl_fail(error, SL_ERR_FORMAT, "tokenizer.ggml.scores is missing; model '%s' goes by it",
                       unigram ? "t5" : "llama");
    }
    tokenizer->scores =
        unigram ? sl_arena_alloc(&tokenizer->arena, texts->count, sizeof *tokenizer->scores) : NULL;
    if (unigram && !tokenizer->scores) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for the scores");
    }
    const unsigned char *cursor = texts->data;
    for (uint64_t i = 0; i < texts->count; i++) {
        int64_t type = types ? sl_gguf_item_i64(types, i) : SL_TOKEN_NORMAL;
        if (type < SL_TOKEN_UNDEFINED || type > SL_TOKEN_BYTE) {
            return sl_fail(error, SL_ERR_FORMAT,
                           "tokenizer.ggml.token_type of token %llu is %lld; 0 to 6 are known",
                           (unsigned long long)i, (long long)type);
        }
        code = sl_vocabulary_set(tokenizer, (int32_t)i, sl_gguf_next_string(&cursor), (sl_token_type)type,
                                 error);
        if (code) {
            return code;
        }
        double score = scores ? sl_gguf_item_f64(scores, i) : 0;
        if (!isfinite(score)) {
            return sl_fail(error, SL_ERR_FORMAT, "tokenizer.ggml.scores of token %llu is not finite",
                           (unsigned long long)i);
        }
        tokenizer->tokens[i].rank = rank_of_score((float)score);
        if (tokenizer->model == SL_MODEL_UNIGRAM) {
            tokenizer->scores[i] = score;
        }
    }
    return sl_vocabulary_index(tokenizer, error);
}

static int load_merges(sl_tokenizer *tokenizer, const sl_gguf *gguf, sl_error *error) {
    const sl_gguf_entry *entry;
    int code = sl_gguf_array(gguf, "tokenizer.ggml.merges", SL_GGUF_STRING, &entry, error);
    if (code) {
        return code;
    }
    if (entry->count > SIZE_MAX / sizeof(sl_merge) / 2) {
        return sl_fail(error, SL_ERR_LIMIT, "tokenizer.ggml.merges: too many");
    }
    sl_merge *merges = sl_alloc((size_t)entry->count * sizeof *merges);
    if (!merges) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for %llu merges",
                       (unsigned long long)entry->count);
    }
    const unsigned char *cursor = entry->data;
    size_t count = 0;
    for (uint64_t i = 0; i < entry->count && code == 0; i++) {
        sl_view text = sl_gguf_next_string(&cursor);
        /* The first part is never empty, so a space in front belongs to it. */
        const char *space = text.length > 2 ? memchr(text.data + 1, ' ', text.length - 1) : NULL;
        size_t at = space ? (size_t)(space - text.data) : 0;
        bool skip = true;
        if (!space) {
            code = sl_fail(error, SL_ERR_FORMAT,
                           "tokenizer.ggml.merges: merge %llu ('%.*s') is not two texts and a space",
                           (unsigned long long)i, (int)(text.length < 60 ? text.length : 60), text.data);
        } else {
            const sl_merge_text parts = {{text.data, at}, {text.data + at + 1, text.length - at - 1}};
            code = sl_vocabulary_merge(tokenizer, (size_t)i, parts, &merges[count], &skip, error);
        }
        count += !skip;
    }
    if (code == 0) {
        code = sl_vocabulary_set_merges(tokenizer, merges, count, error);
    }
    sl_free(merges);
    return code;
}

static int load_special(sl_tokenizer *tokenizer, const sl_gguf *gguf, sl_error *error) {
    struct {
        const char *key;
        int32_t *id, value;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", &tokenizer->bos, 0},
        {"tokenizer.ggml.eos_token_id", &tokenizer->eos, 0},
        {"tokenizer.ggml.unknown_token_id", &tokenizer->unk, 0},
        {"tokenizer.ggml.padding_token_id", &tokenizer->pad, 0},
        /* As the format spells it. */
        {"tokenizer.ggml.seperator_token_id", &tokenizer->closing, 0},
        {"tokenizer.ggml.eot_token_id", NULL, -1},
        {"tokenizer.ggml.eom_token_id", NULL, -1},
    };
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        int32_t *id = ids[i].id ? ids[i].id : &ids[i].value;
        int code = get_id(tokenizer, gguf, ids[i].key, id, error);
        if (code) {
            return code;
        }
        if (!ids[i].id && *id >= 0) {
            tokenizer->tokens[*id].eog = true;
        }
    }
    bool closes = false;
    const int code = get_bool(gguf, "tokenizer.ggml.add_eos_token", &closes, error);
    if (code) {
        return code;
    }
    if (tokenizer->model != SL_MODEL_WORDPIECE) {
        tokenizer->closing = closes ? tokenizer->eos : -1;
    }
    sl_vocabulary_mark_eog(tokenizer, true);
    for (size_t id = 0; id < tokenizer->count; id++) {
        const sl_token *token = &tokenizer->tokens[id];
        sl_added_token added = {
            .id = (int32_t)id, .special = token->type == SL_TOKEN_CONTROL || token->type == SL_TOKEN_UNKNOWN};
        if (token->text.length > 0 && (added.special || token->type == SL_TOKEN_USER_DEFINED)) {
            int code = sl_vocabulary_add(tokenizer, &added, token->text, false, error);
            if (code) {
                return code;
            }
        }
    }
    return 0;
}

static int load_templates(sl_tokenizer *tokenizer, const sl_gguf *gguf, sl_error *error) {
    static const char prefix[] = "tokenizer.chat_template";
    const size_t length = sizeof prefix - 1;
    for (uint64_t i = 0; i < sl_gguf_entry_count(gguf); i++) {
        const char *key = sl_gguf_entry_at(gguf, i)->key;
        if (strncmp(key, prefix, length) != 0 || (key[length] && key[length] != '.')) {
            continue;
        }
        sl_view text;
        int code = sl_gguf_string(gguf, key, &text, error);
        if (code == 0) {
            code = sl_tokenizer_add_template(
                tokenizer, sl_view_of(key[length] ? key + length + 1 : "default"), text, error);
        }
        if (code) {
            return code;
        }
    }
    return 0;
}

/* SentencePiece's unigram models, as llama.cpp's converter writes them. */
static int load_unigram(sl_tokenizer *tokenizer, const sl_gguf *gguf, sl_error *error) {
    const sl_gguf_entry *entry;
    bool prefix = true, collapse = false;
    tokenizer->model = SL_MODEL_UNIGRAM;
    tokenizer->fuse_unknown = true;
    tokenizer->pair_gap = 2;
    tokenizer->eos = 1;
    tokenizer->unk = 2;
    tokenizer->pad = 0;
    int code = get_bool(gguf, "tokenizer.ggml.add_space_prefix", &prefix, error);
    code = code ? code : get_bool(gguf, "tokenizer.ggml.remove_extra_whitespaces", &collapse, error);
    if (code) {
        return code;
    }
    code = sl_gguf_array(gguf, "tokenizer.ggml.precompiled_charsmap", SL_GGUF_U8, &entry, error);
    if (code == SL_ERR_FORMAT) {
        code = sl_gguf_array(gguf, "tokenizer.ggml.precompiled_charsmap", SL_GGUF_I8, &entry, error);
    }
    if (code == 0 && entry->count > 0) {
        const sl_view kept =
            sl_tokenizer_keep(tokenizer, (sl_view){(const char *)entry->data, (size_t)entry->count});
        code = kept.data ? sl_charsmap_read(kept, &tokenizer->normalizer[tokenizer->normalizer_count], error)
                         : sl_fail(error, SL_ERR_NOMEM, "out of memory for precompiled_charsmap");
        tokenizer->normalizer_count += code == 0;
    }
    if (code && code != SL_ERR_NOT_FOUND) {
        return code;
    }
    sl_text_step *step = &tokenizer->prepare[tokenizer->prepare_count];
    if (collapse && prefix) {
        *step++ = (sl_text_step){SL_STEP_METASPACE_WORDS, {"", 0}, {"", 0}};
    } else {
        *step++ = (sl_text_step){SL_STEP_REPLACE, sl_view_of(" "), sl_view_of(SL_SPM_SPACE)};
    }
    if (!collapse && prefix) {
        *step++ = (sl_text_step){SL_STEP_PREPEND_MISSING, sl_view_of(SL_SPM_SPACE), sl_view_of(SL_SPM_SPACE)};
    }
    tokenizer->prepare_count = (size_t)(step - tokenizer->prepare);
    tokenizer->strip_start = prefix;
    return sl_split_add(tokenizer, sl_view_of(SL_SPM_SPACE), SL_SPLIT_WITH_NEXT, error);
}

/* ---- the whole
 * ------------------------------------------------------------------------------------------------------- */

static int load_model(sl_tokenizer *tokenizer, const sl_gguf *gguf, sl_error *error) {
    sl_view model, pre = sl_view_of("default");
    int code = sl_gguf_string(gguf, "tokenizer.ggml.model", &model, error);
    if (code == 0 && (code = sl_gguf_string(gguf, "tokenizer.ggml.pre", &pre, error)) == SL_ERR_NOT_FOUND) {
        code = 0;
    }
    if (code) {
        return code;
    }
    unsigned flags = 0;
    bool add_space = false;
    const sl_text_step escape = {SL_STEP_REPLACE, sl_view_of(" "), sl_view_of(SL_SPM_SPACE)};
    if (sl_view_is(model, "gpt2") && sl_view_is(pre, "gemma4")) {
        return sl_fail(error, SL_ERR_UNSUPPORTED,
                       "tokenizer.ggml.pre: 'gemma4' goes with model 'gemma4', not 'gpt2'");
    }
    if (sl_view_is(model, "gpt2") || sl_view_is(model, "gemma4")) {
        pre = sl_view_is(model, "gemma4") ? model : pre;
        if ((code = sl_pre_tokenizer_set(tokenizer, pre, &flags, error)) != 0) {
            return code;
        }
        const bool raw = flags & (SL_PRE_RAW | SL_PRE_ESCAPED);
        tokenizer->model = raw ? SL_MODEL_CHARACTER : SL_MODEL_BYTE_LEVEL;
        tokenizer->byte_fallback = flags & SL_PRE_ESCAPED;
        tokenizer->whole_newlines = flags & SL_PRE_WHOLE_NEWLINES;
        if (flags & SL_PRE_ESCAPED) {
            tokenizer->normalizer[tokenizer->normalizer_count++] = escape;
        }
    } else if (sl_view_is(model, "llama")) {
        tokenizer->model = SL_MODEL_SCORE;
        tokenizer->byte_fallback = true;
        tokenizer->bos = 1;
        tokenizer->eos = 2;
        tokenizer->unk = 0;
        flags = SL_PRE_BOS;
        add_space = true;
        if ((code = get_bool(gguf, "tokenizer.ggml.add_space_prefix", &add_space, error)) != 0) {
            return code;
        }
        if (add_space) {
            tokenizer->normalizer[tokenizer->normalizer_count++] =
                (sl_text_step){SL_STEP_PREPEND, {0}, sl_view_of(" ")};
        }
        tokenizer->normalizer[tokenizer->normalizer_count++] = escape;
    } else if (sl_view_is(model, "bert")) {
        tokenizer->model = SL_MODEL_WORDPIECE;
        tokenizer->word_begin = sl_view_of(SL_SPM_SPACE);
        tokenizer->word_inside = (sl_view){"", 0};
        tokenizer->bos = 101;
        tokenizer->unk = 100;
        tokenizer->closing = 102;
        flags = SL_PRE_BOS;
        tokenizer->normalizer[tokenizer->normalizer_count++] =
            (sl_text_step){SL_STEP_WORDS_LOWER, {"", 0}, {"", 0}};
        if ((code = sl_wordpiece_splits(tokenizer, error)) != 0) {
            return code;
        }
    } else if (sl_view_is(model, "t5")) {
        if ((code = load_unigram(tokenizer, gguf, error)) != 0) {
            return code;
        }
        add_space = tokenizer->strip_start;
    } else {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "tokenizer.ggml.model: '%.*s' is not supported",
                       (int)(model.length < 100 ? model.length : 100), model.data);
    }
    tokenizer->whole_piece = flags & SL_PRE_WHOLE_PIECE;
    tokenizer->add_bos = flags & SL_PRE_BOS;
    tokenizer->strip_start = add_space;
    return get_bool(gguf, "tokenizer.ggml.add_bos_token", &tokenizer->add_bos, error);
}

int sl_tokenizer_from_gguf(const sl_gguf *gguf, sl_tokenizer **out, sl_error *error) {
    *out = NULL;
    sl_tokenizer *tokenizer = sl_tokenizer_new();
    if (!tokenizer) {
        return sl_fail(error, SL_ERR_NOMEM, "%s: out of memory", sl_gguf_path(gguf));
    }
    int code;
    if ((code = load_model(tokenizer, gguf, error)) != 0 ||
        (code = load_tokens(tokenizer, gguf, error)) != 0 ||
        (code = load_special(tokenizer, gguf, error)) != 0 ||
        ((tokenizer->model == SL_MODEL_BYTE_LEVEL || tokenizer->model == SL_MODEL_CHARACTER) &&
         (code = load_merges(tokenizer, gguf, error)) != 0) ||
        (code = load_templates(tokenizer, gguf, error)) != 0 ||
        (code = sl_vocabulary_finish(tokenizer, false, error)) != 0) {
        sl_tokenizer_destroy(tokenizer);
        sl_fail_prefix(error, sl_gguf_path(gguf)); /* unless the format layer named it */
        return code;
    }
    *out = tokenizer;
    return 0;
}
