/* Unigram vocabularies, as SentencePiece has them (Kudo 2018, "Subword Regularization"): of all ways to cut a
 * text into tokens the one with the largest sum of scores; and what stands before it, SentencePiece's map of
 * characters. */
#include "token/internal.h"

#include "base/alloc.h"

#include <utf8proc.h>

/* ---- the best cut
 * ------------------------------------------------------------------------------------------------------ */

/* A character that no token is costs so much more than the worst token (unigram_model.cc: kUnkPenalty). */
static const double UNKNOWN_PENALTY = 10.0;

int sl_unigram_prepare(sl_tokenizer *tokenizer, sl_error *error) {
    double least = 0;
    for (size_t id = 0; id < tokenizer->count; id++) {
        const double score = tokenizer->scores[id];
        least = id == 0 || score < least ? score : least;
        const sl_token *token = &tokenizer->tokens[id];
        if (token->text.length > 0 && sl_token_is_plain(token) &&
            sl_trie_insert(&tokenizer->pieces, token->text, (int32_t)id)) {
            return sl_fail(error, SL_ERR_NOMEM, "out of memory for the vocabulary");
        }
    }
    tokenizer->unknown_score = least - UNKNOWN_PENALTY;
    return 0;
}

/* A later cut of equal score does not replace an earlier one. */
static void offer(sl_cut *cuts, size_t from, size_t to, int32_t id, double score) {
    if (cuts[to].from == UINT32_MAX || score > cuts[to].score) {
        cuts[to].score = score;
        cuts[to].from = (uint32_t)from;
        cuts[to].id = id;
    }
}

/* All tokens that begin at `at`, and the character itself when it is none. */
static void offer_tokens(const sl_tokenizer *tokenizer, sl_view part, size_t at, sl_cut *cuts) {
    const sl_trie *trie = &tokenizer->pieces;
    uint32_t code_point;
    size_t size = sl_utf8_decode(part.data + at, part.length - at, &code_point);
    size = size ? size : 1;
    bool is_token = false;
    uint32_t node = trie->count ? trie->first[(unsigned char)part.data[at]] : 0;
    for (size_t end = at + 1; node; end++) {
        const int32_t id = trie->nodes[node].entry;
        if (id >= 0) {
            offer(cuts, at, end, id, cuts[at].score + tokenizer->scores[id]);
            is_token |= end - at == size;
        }
        if (end == part.length) {
            break;
        }
        node = sl_trie_child(trie, node, part.data[end]);
    }
    if (!is_token) {
        offer(cuts, at, at + size, -1, cuts[at].score + tokenizer->unknown_score);
    }
}

int sl_unigram_part(sl_merger *merger, const sl_tokenizer *tokenizer, sl_view part, double *score) {
    if (merger->cut_capacity < part.length + 1) {
        const size_t capacity = part.length + part.length / 2 + 64;
        sl_cut *cuts = sl_alloc(capacity * sizeof *cuts);
        if (!cuts) {
            return SL_ERR_NOMEM;
        }
        sl_free(merger->cuts);
        merger->cuts = cuts;
        merger->cut_capacity = capacity;
    }
    sl_cut *cuts = merger->cuts;
    for (size_t at = 1; at <= part.length; at++) {
        cuts[at].from = UINT32_MAX;
    }
    cuts[0] = (sl_cut){.score = *score, .id = -1};
    for (size_t at = 0; at < part.length; at++) {
        if (at == 0 || cuts[at].from != UINT32_MAX) {
            offer_tokens(tokenizer, part, at, cuts);
        }
    }
    *score = cuts[part.length].score;
    for (size_t end = part.length; end > 0; end = cuts[end].from) {
        cuts[cuts[end].from].to = (uint32_t)end;
        cuts[cuts[end].from].chosen = cuts[end].id;
    }
    return 0;
}

/* ---- SentencePiece's map of characters
 * ---------------------------------------------------------------------------------------------------
 * A trie as darts-clone's double array, and texts that end in NUL (normalizer.cc: DecodePrecompiledCharsMap).
 * A unit is its label, whether a leaf follows, and the distance of its children; or a leaf's value. */

static uint32_t read_unit(sl_view units, size_t index) {
    const unsigned char *at = (const unsigned char *)units.data + 4 * index;
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static size_t unit_offset(uint32_t unit) {
    return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}

int sl_charsmap_read(sl_view blob, sl_text_step *step, sl_error *error) {
    const size_t size = blob.length >= 4 ? read_unit(blob, 0) : 0;
    if (size == 0 || size % 4 || size > blob.length - 4) {
        return sl_fail(error, SL_ERR_FORMAT,
                       "precompiled_charsmap: its trie of %zu bytes does not fit in %zu bytes", size,
                       blob.length);
    }
    *step = (sl_text_step){
        SL_STEP_CHARSMAP, {blob.data + 4, size}, {blob.data + 4 + size, blob.length - 4 - size}};
    return 0;
}

/* What the map makes of the shortest of its keys that the text begins with; false: there is none. Only what
 * lies inside the file is read. */
static bool transform(const sl_text_step *map, sl_view text, sl_view *to) {
    const size_t units = map->from.length / 4;
    size_t node = unit_offset(read_unit(map->from, 0));
    for (size_t i = 0; i < text.length && text.data[i]; i++) {
        node ^= (unsigned char)text.data[i];
        if (node >= units) {
            return false;
        }
        const uint32_t unit = read_unit(map->from, node);
        if ((unit & 0x800000ffu) != (unsigned char)text.data[i]) {
            return false;
        }
        node ^= unit_offset(unit);
        if (unit >> 8 & 1) {
            const size_t at = node < units ? read_unit(map->from, node) & 0x7fffffffu : map->to.length;
            const char *end =
                at < map->to.length ? memchr(map->to.data + at, '\0', map->to.length - at) : NULL;
            if (end) {
                *to = (sl_view){map->to.data + at, (size_t)(end - map->to.data) - at};
            }
            return end != NULL;
        }
    }
    return false;
}

/* The bytes of the grapheme cluster at the beginning (Unicode Standard Annex 29). */
static size_t grapheme_size(sl_view text) {
    utf8proc_int32_t state = 0;
    uint32_t previous, next;
    size_t at = sl_utf8_decode(text.data, text.length, &previous), size;
    while (at && at < text.length && (size = sl_utf8_decode(text.data + at, text.length - at, &next)) != 0 &&
           !utf8proc_grapheme_break_stateful((utf8proc_int32_t)previous, (utf8proc_int32_t)next, &state)) {
        previous = next;
        at += size;
    }
    return at ? at : 1;
}

int sl_charsmap_run(const sl_text_step *map, sl_view text, sl_buffer *out) {
    enum { LONGEST_WHOLE = 5 }; /* bytes of a cluster that is looked up as one (spm_precompiled) */
    for (size_t at = 0; at < text.length;) {
        const size_t end = at + grapheme_size((sl_view){text.data + at, text.length - at});
        sl_view to;
        if (end - at <= LONGEST_WHOLE && transform(map, (sl_view){text.data + at, end - at}, &to)) {
            sl_buffer_append(out, to.data, to.length);
            at = end;
        }
        while (at < end) {
            uint32_t code_point;
            size_t size = sl_utf8_decode(text.data + at, end - at, &code_point);
            const sl_view character = {text.data + at, size ? size : 1};
            to = character;
            transform(map, character, &to);
            sl_buffer_append(out, to.data, to.length);
            at += character.length;
        }
        if (out->length / 16 > text.length + 256) {
            return SL_ERR_LIMIT;
        }
    }
    return out->failed ? SL_ERR_NOMEM : 0;
}

int sl_metaspace_words(sl_view text, sl_buffer *out) {
    bool inside = false;
    for (size_t at = 0; at < text.length;) {
        uint32_t code_point;
        size_t size = sl_utf8_decode(text.data + at, text.length - at, &code_point);
        const bool blank = size && sl_is_space(code_point);
        size = size ? size : 1;
        if (!blank && !inside && (text.length - at < 3 || memcmp(text.data + at, SL_SPM_SPACE, 3) != 0)) {
            sl_buffer_text(out, SL_SPM_SPACE);
        }
        if (!blank) {
            sl_buffer_append(out, text.data + at, size);
        }
        inside = !blank;
        at += size;
    }
    return out->failed ? SL_ERR_NOMEM : 0;
}
