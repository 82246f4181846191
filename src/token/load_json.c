/* Tokenizers from Hugging Face files: tokenizer.json (the `tokenizers` library's own format, read as its
 * deserialisers read it) and tokenizer_config.json. What is not understood is refused by name, never ignored.
 */
#include "token/internal.h"

#include "base/alloc.h"
#include "base/map.h"
#include "format/json.h"

/* ---- reading
 * -----------------------------------------------------------------------------------------------------------
 */

static const char *type_name(const json_t *value) {
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};
    return value ? names[json_typeof(value)] : "nothing";
}

static int wrong_type(const char *field, const char *wanted, const json_t *value, sl_error *error) {
    return sl_fail(error, SL_ERR_FORMAT, "%s: wanted %s, found %s", field, wanted, type_name(value));
}

static sl_view view_of(const json_t *string) {
    return (sl_view){json_string_value(string), json_string_length(string)};
}

static bool is_absent(const json_t *value) {
    return !value || json_is_null(value);
}

/* A boolean field; absent or null leaves *value as it is. */
static int get_bool(const json_t *object, const char *key, bool *value, sl_error *error) {
    const json_t *found = json_object_get(object, key);
    if (is_absent(found)) {
        return 0;
    }
    if (!json_is_boolean(found)) {
        return wrong_type(key, "true or false", found, error);
    }
    *value = json_is_true(found);
    return 0;
}

/* A string field that must be there. */
static int get_string(const json_t *object, const char *key, sl_view *value, sl_error *error) {
    *value = (sl_view){"", 0};
    const json_t *found = json_object_get(object, key);
    if (!json_is_string(found)) {
        return wrong_type(key, "a string", found, error);
    }
    *value = view_of(found);
    return 0;
}

static int get_type(const json_t *object, const char *field, sl_view *type, sl_error *error) {
    *type = (sl_view){"", 0};
    if (!json_is_object(object)) {
        return wrong_type(field, "an object", object, error);
    }
    return get_string(object, "type", type, error);
}

static int unsupported(const char *field, sl_view what, sl_error *error) {
    return sl_fail(error, SL_ERR_UNSUPPORTED, "%s: '%.*s' is not supported", field,
                   (int)(what.length < 100 ? what.length : 100), what.data ? what.data : "");
}

/* A part of the file that is one object with a "type", or a Sequence of such. */
typedef struct stage {
    const char *field, *list_key; /* list_key: where a Sequence has its elements */
    int (*add)(sl_tokenizer *tokenizer, const json_t *element, sl_view type, sl_error *error);
} stage;

/* Adds an object, or each element of the Sequence it is; null is nothing at all. */
static int for_each(sl_tokenizer *tokenizer, const stage *stage, const json_t *value, int depth,
                    sl_error *error) {
    if (is_absent(value)) {
        return 0;
    }
    sl_view type;
    int code = get_type(value, stage->field, &type, error);
    if (code || !sl_view_is(type, "Sequence")) {
        return code ? code : stage->add(tokenizer, value, type, error);
    }
    const json_t *list = json_object_get(value, stage->list_key);
    if (!json_is_array(list)) {
        return wrong_type(stage->list_key, "an array", list, error);
    }
    if (depth == 0) {
        return sl_fail(error, SL_ERR_LIMIT, "%s: Sequences are nested too deeply", stage->field);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        code = for_each(tokenizer, stage, json_array_get(list, i), depth - 1, error);
        if (code) {
            return code;
        }
    }
    return 0;
}

/* ---- vocabulary
 * -------------------------------------------------------------------------------------------------------- */

static int get_id(const json_t *value, const char *field, size_t limit, int32_t *id, sl_error *error) {
    *id = 0;
    if (!json_is_integer(value)) {
        return wrong_type(field, "an integer", value, error);
    }
    json_int_t number = json_integer_value(value);
    if (number < 0 || (uint64_t)number >= limit) {
        return sl_fail(error, SL_ERR_FORMAT, "%s: id %lld is outside 0 to %zu", field, (long long)number,
                       limit - 1);
    }
    *id = (int32_t)number;
    return 0;
}

static int set_token(sl_tokenizer *tokenizer, int32_t id, sl_view text, sl_token_type type, sl_error *error) {
    int code = sl_vocabulary_reserve(tokenizer, (size_t)id + 1, error);
    return code ? code : sl_vocabulary_set(tokenizer, id, text, type, error);
}

static bool is_byte_text(sl_view text) {
    return text.length == 6 && memcmp(text.data, "<0x", 3) == 0 && text.data[5] == '>' &&
           strspn(text.data + 3, "0123456789ABCDEF") == 2;
}

/* Ids may have holes, but not so that a small file asks for a large table. */
static size_t id_limit(size_t entries) {
    size_t limit = entries + 65536;
    return limit < SL_TOKENIZER_MAX_TOKENS ? limit : SL_TOKENIZER_MAX_TOKENS;
}

static int load_added_token(sl_tokenizer *tokenizer, const json_t *entry, size_t limit, sl_error *error) {
    sl_view content;
    int32_t id;
    bool special = false;
    int code;
    if (!json_is_object(entry)) {
        return wrong_type("added_tokens", "objects", entry, error);
    }
    if ((code = get_string(entry, "content", &content, error)) != 0 ||
        (code = get_bool(entry, "special", &special, error)) != 0 ||
        (code = get_id(json_object_get(entry, "id"), "added_tokens", limit, &id, error)) != 0) {
        return code;
    }
    const sl_token_type type = special ? SL_TOKEN_CONTROL : SL_TOKEN_USER_DEFINED;
    if ((size_t)id < tokenizer->count && sl_view_equal(tokenizer->tokens[id].text, content) &&
        content.length > 0) {
        tokenizer->tokens[id].type = (uint8_t)type;
        return 0;
    }
    return set_token(tokenizer, id, content, type, error);
}

/* Behind the model's own tokens: those that were added, and the index of all. */
static int load_added_tokens(sl_tokenizer *tokenizer, const json_t *added, size_t limit, sl_error *error) {
    int code = 0;
    if (!is_absent(added) && !json_is_array(added)) {
        return wrong_type("added_tokens", "an array", added, error);
    }
    for (size_t i = 0; i < json_array_size(added) && code == 0; i++) {
        code = load_added_token(tokenizer, json_array_get(added, i), limit, error);
    }
    if (code == 0 && tokenizer->count == 0) {
        code = sl_fail(error, SL_ERR_FORMAT, "model.vocab is empty");
    }
    return code ? code : sl_vocabulary_index(tokenizer, error);
}

static int load_vocabulary(sl_tokenizer *tokenizer, json_t *vocabulary, const json_t *added,
                           sl_error *error) {
    if (!json_is_object(vocabulary)) {
        return wrong_type("model.vocab", "an object", vocabulary, error);
    }
    const size_t limit = id_limit(json_object_size(vocabulary) + json_array_size(added));
    int code = sl_vocabulary_reserve(tokenizer, json_object_size(vocabulary), error);
    const char *key;
    json_t *value;
    json_object_foreach(vocabulary, key, value) {
        sl_view text = sl_view_of(key);
        sl_token_type type = tokenizer->byte_fallback && is_byte_text(text) ? SL_TOKEN_BYTE : SL_TOKEN_NORMAL;
        int32_t id;
        if (code || (code = get_id(value, "model.vocab", limit, &id, error)) != 0 ||
            (code = set_token(tokenizer, id, text, type, error)) != 0) {
            return code;
        }
    }
    return code ? code : load_added_tokens(tokenizer, added, limit, error);
}

/* "a b" or ["a", "b"]. */
static bool split_merge(const json_t *value, sl_merge_text *parts) {
    if (json_is_array(value) && json_array_size(value) == 2) {
        const json_t *first = json_array_get(value, 0), *second = json_array_get(value, 1);
        if (!json_is_string(first) || !json_is_string(second)) {
            return false;
        }
        *parts = (sl_merge_text){view_of(first), view_of(second)};
        return true;
    }
    if (!json_is_string(value)) {
        return false;
    }
    sl_view text = view_of(value);
    const char *space = memchr(text.data, ' ', text.length);
    if (!space) {
        return false;
    }
    parts->left = (sl_view){text.data, (size_t)(space - text.data)};
    parts->right = (sl_view){space + 1, text.length - parts->left.length - 1};
    return !memchr(parts->right.data, ' ', parts->right.length);
}

static int load_merges(sl_tokenizer *tokenizer, const json_t *list, sl_error *error) {
    if (!json_is_array(list)) {
        return wrong_type("model.merges", "an array", list, error);
    }
    size_t total = json_array_size(list), count = 0;
    sl_merge *merges = sl_alloc_zero(total, sizeof *merges);
    if (!merges) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for %zu merges", total);
    }
    int code = 0;
    for (size_t i = 0; i < total && code == 0; i++) {
        const json_t *value = json_array_get(list, i);
        sl_merge_text parts;
        bool skip = true;
        if (!split_merge(value, &parts)) {
            code =
                sl_fail(error, SL_ERR_FORMAT, "model.merges: merge %zu is neither 'a b' nor ['a', 'b']", i);
        } else {
            code = sl_vocabulary_merge(tokenizer, i, parts, &merges[count], &skip, error);
        }
        count += !skip;
    }
    if (code == 0) {
        code = sl_vocabulary_set_merges(tokenizer, merges, count, error);
    }
    sl_free(merges);
    return code;
}

/* Options of the BPE model that change what it does and are not implemented: they must be off. */
static int refuse_options(const json_t *model, sl_error *error) {
    static const char *const texts[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *value = json_object_get(model, texts[i]);
        if (!is_absent(value) && !(json_is_string(value) && json_string_length(value) == 0)) {
            return sl_fail(error, SL_ERR_UNSUPPORTED, "model.%s is not supported", texts[i]);
        }
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (!is_absent(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0)) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "model.dropout is not supported");
    }
    return 0;
}

/* {"type": "WordPiece", "vocab", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word"} */
static int load_wordpiece(sl_tokenizer *tokenizer, const json_t *root, const json_t *model, sl_error *error) {
    const json_t *most = json_object_get(model, "max_input_chars_per_word");
    sl_view unknown, prefix;
    int code = get_string(model, "unk_token", &unknown, error);
    code = code ? code : get_string(model, "continuing_subword_prefix", &prefix, error);
    if (code == 0 && json_is_integer(most) && json_integer_value(most) != 100) {
        code = sl_fail(error, SL_ERR_UNSUPPORTED, "model.max_input_chars_per_word: only 100 is supported");
    }
    code = code ? code
                : load_vocabulary(tokenizer, json_object_get(model, "vocab"),
                                  json_object_get(root, "added_tokens"), error);
    if (code) {
        return code;
    }
    tokenizer->model = SL_MODEL_WORDPIECE;
    tokenizer->word_begin = (sl_view){"", 0};
    tokenizer->word_inside = sl_tokenizer_keep(tokenizer, prefix);
    tokenizer->unk = sl_tokenizer_find(tokenizer, unknown);
    if (!tokenizer->word_inside.data) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for the tokenizer");
    }
    return tokenizer->unk >= 0 ? 0
                               : sl_fail(error, SL_ERR_FORMAT,
                                         "model.unk_token '%.60s' is not in the vocabulary", unknown.data);
}

/* [["text", score], ...], the index is the id. */
static int load_scored_vocabulary(sl_tokenizer *tokenizer, const json_t *list, sl_error *error) {
    const size_t count = json_array_size(list);
    int code = json_is_array(list) ? sl_vocabulary_reserve(tokenizer, count, error)
                                   : wrong_type("model.vocab", "an array", list, error);
    for (size_t i = 0; i < count && code == 0; i++) {
        const json_t *entry = json_array_get(list, i), *text = json_array_get(entry, 0),
                     *score = json_array_get(entry, 1);
        if (!json_is_string(text) || !json_is_number(score)) {
            return sl_fail(error, SL_ERR_FORMAT, "model.vocab: entry %zu is not [\"text\", score]", i);
        }
        const bool is_byte = tokenizer->byte_fallback && is_byte_text(view_of(text));
        code =
            set_token(tokenizer, (int32_t)i, view_of(text), is_byte ? SL_TOKEN_BYTE : SL_TOKEN_NORMAL, error);
    }
    return code;
}

/* {"type": "Unigram", "unk_id", "vocab", "byte_fallback"} */
static int load_unigram(sl_tokenizer *tokenizer, const json_t *root, const json_t *model, sl_error *error) {
    const json_t *vocabulary = json_object_get(model, "vocab"),
                 *added = json_object_get(root, "added_tokens"), *unknown = json_object_get(model, "unk_id");
    const size_t count = json_array_size(vocabulary), limit = id_limit(count + json_array_size(added));
    tokenizer->model = SL_MODEL_UNIGRAM;
    tokenizer->fuse_unknown = true;
    int code = get_bool(model, "byte_fallback", &tokenizer->byte_fallback, error);
    code = code ? code : load_scored_vocabulary(tokenizer, vocabulary, error);
    code = code || is_absent(unknown) ? code : get_id(unknown, "model.unk_id", count, &tokenizer->unk, error);
    code = code ? code : load_added_tokens(tokenizer, added, limit, error);
    if (code) {
        return code;
    }
    tokenizer->scores = sl_arena_alloc(&tokenizer->arena, tokenizer->count, sizeof *tokenizer->scores);
    if (!tokenizer->scores) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for %zu scores", tokenizer->count);
    }
    for (size_t i = 0; i < tokenizer->count; i++) {
        tokenizer->scores[i] = json_number_value(json_array_get(json_array_get(vocabulary, i), 1));
    }
    return 0;
}

static int load_model(sl_tokenizer *tokenizer, const json_t *root, sl_error *error) {
    const json_t *model = json_object_get(root, "model");
    if (!json_is_object(model)) {
        return wrong_type("model", "an object", model, error);
    }
    const json_t *type = json_object_get(model, "type"), *unknown = json_object_get(model, "unk_token");
    if (!is_absent(type)) {
        if (!json_is_string(type)) {
            return wrong_type("model.type", "a string", type, error);
        }
        if (sl_view_is(view_of(type), "WordPiece")) {
            return load_wordpiece(tokenizer, root, model, error);
        }
        if (sl_view_is(view_of(type), "Unigram")) {
            return load_unigram(tokenizer, root, model, error);
        }
        if (!sl_view_is(view_of(type), "BPE")) {
            return unsupported("model.type", view_of(type), error);
        }
    }
    int code = refuse_options(model, error);
    if (code || (code = get_bool(model, "byte_fallback", &tokenizer->byte_fallback, error)) != 0 ||
        (code = get_bool(model, "fuse_unk", &tokenizer->fuse_unknown, error)) != 0 ||
        (code = get_bool(model, "ignore_merges", &tokenizer->whole_piece, error)) != 0 ||
        (code = load_vocabulary(tokenizer, json_object_get(model, "vocab"),
                                json_object_get(root, "added_tokens"), error)) != 0) {
        return code;
    }
    if (!is_absent(unknown)) {
        if (!json_is_string(unknown)) {
            return wrong_type("model.unk_token", "a string", unknown, error);
        }
        tokenizer->unk = sl_tokenizer_find(tokenizer, view_of(unknown));
        if (tokenizer->unk < 0) {
            return sl_fail(error, SL_ERR_FORMAT, "model.unk_token '%.60s' is not in the vocabulary",
                           json_string_value(unknown));
        }
    }
    return load_merges(tokenizer, json_object_get(model, "merges"), error);
}

/* ---- normaliser
 * -------------------------------------------------------------------------------------------------------- */

enum { LONGEST_REPLACEMENT = 64 };

/* Puts a step at the end of steps[count]; its texts are copied. */
static int add_step(sl_tokenizer *tokenizer, sl_text_step *steps, size_t *count, sl_text_step step,
                    sl_error *error) {
    if (*count == SL_TOKENIZER_MAX_STAGES) {
        return sl_fail(error, SL_ERR_LIMIT, "normalizer: more than %d steps", SL_TOKENIZER_MAX_STAGES);
    }
    if (step.to.length > LONGEST_REPLACEMENT || step.from.length > LONGEST_REPLACEMENT) {
        return sl_fail(error, SL_ERR_LIMIT, "normalizer: a text of more than %d bytes", LONGEST_REPLACEMENT);
    }
    step.from = sl_tokenizer_keep(tokenizer, step.from);
    step.to = sl_tokenizer_keep(tokenizer, step.to);
    if (!step.from.data || !step.to.data) {
        return sl_fail(error, SL_ERR_NOMEM, "out of memory for the normalizer");
    }
    steps[(*count)++] = step;
    return 0;
}

static int base64_digit(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found = c ? strchr(digits, c) : NULL;
    return found ? (int)(found - digits) : -1;
}

/* RFC 4648, 4, into the arena; data is NULL when it is none, or without memory. */
static sl_view decode_base64(sl_tokenizer *tokenizer, sl_view text) {
    while (text.length > 0 && text.data[text.length - 1] == '=') {
        text.length--;
    }
    char *out = sl_arena_alloc(&tokenizer->arena, text.length / 4 * 3 + 3, 1);
    uint32_t bits = 0;
    size_t length = 0;
    for (size_t i = 0; out && i < text.length; i++) {
        const int digit = base64_digit(text.data[i]);
        if (digit < 0) {
            return (sl_view){0};
        }
        bits = bits << 6 | (uint32_t)digit;
        if (i % 4 != 0) {
            out[length++] = (char)(bits >> (6 - i % 4 * 2));
        }
    }
    return (sl_view){out, length};
}

/* {"type": "Precompiled", "precompiled_charsmap": base64} */
static int add_charsmap(sl_tokenizer *tokenizer, const json_t *element, sl_error *error) {
    sl_view text;
    int code = get_string(element, "precompiled_charsmap", &text, error);
    if (code || text.length == 0) {
        return code; /* an empty map changes nothing */
    }
    if (tokenizer->normalizer_count == SL_TOKENIZER_MAX_STAGES) {
        return sl_fail(error, SL_ERR_LIMIT, "normalizer: more than %d steps", SL_TOKENIZER_MAX_STAGES);
    }
    const sl_view blob = decode_base64(tokenizer, text);
    if (!blob.data) {
        return sl_fail(error, SL_ERR_FORMAT, "normalizer: precompiled_charsmap is no base64");
    }
    code = sl_charsmap_read(blob, &tokenizer->normalizer[tokenizer->normalizer_count], error);
    tokenizer->normalizer_count += code == 0;
    return code;
}

/* {"type": "Strip", "strip_left", "strip_right"} */
static int add_strip(sl_tokenizer *tokenizer, const json_t *element, sl_error *error) {
    bool left = true, right = true;
    int code = get_bool(element, "strip_left", &left, error);
    code = code ? code : get_bool(element, "strip_right", &right, error);
    for (int i = 0; i < 2 && code == 0; i++) {
        const sl_text_step step = {i ? SL_STEP_STRIP_END : SL_STEP_STRIP_START, {"", 0}, {"", 0}};
        if (i ? right : left) {
            code = add_step(tokenizer, tokenizer->normalizer, &tokenizer->normalizer_count, step, error);
        }
    }
    return code;
}

/* {"pattern": {"String": "x"}, "content": "y"} */
static int get_replace(const json_t *element, const char *field, sl_view *from, sl_view *to,
                       sl_error *error) {
    const json_t *pattern = json_object_get(element, "pattern"), *string = json_object_get(pattern, "String");
    if (!json_is_object(pattern)) {
        return wrong_type("pattern", "an object", pattern, error);
    }
    if (!json_is_string(string) || json_string_length(string) == 0) {
        return sl_fail(error, SL_ERR_UNSUPPORTED,
                       "%s: Replace by anything but a plain, non-empty String is not supported", field);
    }
    *from = view_of(string);
    return get_string(element, "content", to, error);
}

/* strip_accents that is absent follows lowercase; the two must agree, and the rest be on. */
static int bert_normalizer(const json_t *element, sl_text_step_kind *kind, sl_error *error) {
    bool clean = true, ideographs = true, lower = true;
    int code = get_bool(element, "clean_text", &clean, error);
    code = code ? code : get_bool(element, "handle_chinese_chars", &ideographs, error);
    code = code ? code : get_bool(element, "lowercase", &lower, error);
    bool accents = lower;
    code = code ? code : get_bool(element, "strip_accents", &accents, error);
    if (code == 0 && (!clean || !ideographs || accents != lower)) {
        code = unsupported("normalizer: BertNormalizer", sl_view_of("these options"), error);
    }
    *kind = lower ? SL_STEP_WORDS_LOWER : SL_STEP_WORDS;
    return code;
}

/* The one expression that tokenizers made from SentencePiece's have: runs of spaces become one mark. */
static bool is_runs_of_spaces(const json_t *element) {
    const char *regex = json_string_value(json_object_get(json_object_get(element, "pattern"), "Regex"));
    return regex && strcmp(regex, " {2,}") == 0;
}

static int add_normalizer(sl_tokenizer *tokenizer, const json_t *element, sl_view type, sl_error *error) {
    sl_text_step step = {SL_STEP_NFC, {"", 0}, {"", 0}};
    int code = 0;
    if (sl_view_is(type, "Prepend")) {
        step.kind = SL_STEP_PREPEND;
        code = get_string(element, "prepend", &step.to, error);
    } else if (sl_view_is(type, "Replace") && is_runs_of_spaces(element)) {
        step.kind = SL_STEP_REPLACE_RUNS;
        step.from = sl_view_of(" ");
        code = get_string(element, "content", &step.to, error);
    } else if (sl_view_is(type, "Replace")) {
        step.kind = SL_STEP_REPLACE;
        code = get_replace(element, "normalizer", &step.from, &step.to, error);
    } else if (sl_view_is(type, "Precompiled")) {
        return add_charsmap(tokenizer, element, error);
    } else if (sl_view_is(type, "Strip")) {
        return add_strip(tokenizer, element, error);
    } else if (sl_view_is(type, "BertNormalizer")) {
        code = bert_normalizer(element, &step.kind, error);
    } else if (!sl_view_is(type, "NFC")) {
        return unsupported("normalizer", type, error);
    }
    return code ? code
                : add_step(tokenizer, tokenizer->normalizer, &tokenizer->normalizer_count, step, error);
}

/* ---- pre-tokenizer
 * ------------------------------------------------------------------------------------------------------- */

static int get_behavior(const json_t *element, sl_split_behavior *behavior, sl_error *error) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext"};
    sl_view name;
    int code = get_string(element, "behavior", &name, error);
    if (code) {
        return code;
    }
    for (size_t i = 0; i < 4; i++) {
        if (sl_view_is(name, names[i])) {
            *behavior = (sl_split_behavior)i; /* in the enum's order */
            return 0;
        }
    }
    return unsupported("pre_tokenizer: behavior", name, error);
}

static int add_plain_split(sl_tokenizer *tokenizer, sl_view string, sl_split_behavior behavior,
                           sl_error *error) {
    sl_buffer pattern = {0};
    for (size_t i = 0; i < string.length; i++) {
        if (strchr("\\^$.[]|()?*+{}#&-", string.data[i])) {
            sl_buffer_text(&pattern, "\\");
        }
        sl_buffer_append(&pattern, string.data + i, 1);
    }
    int code = pattern.failed || !pattern.data
                   ? sl_fail(error, string.length ? SL_ERR_NOMEM : SL_ERR_FORMAT,
                             "pre_tokenizer: Split by '%.60s'", string.data)
                   : sl_split_add(tokenizer, (sl_view){pattern.data, pattern.length}, behavior, error);
    sl_buffer_free(&pattern);
    return code;
}

static int add_split(sl_tokenizer *tokenizer, const json_t *element, sl_error *error) {
    const json_t *pattern = json_object_get(element, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *string = json_object_get(pattern, "String");
    sl_split_behavior behavior = SL_SPLIT_ISOLATED;
    bool invert = false;
    int code = get_bool(element, "invert", &invert, error);
    if (code || (code = get_behavior(element, &behavior, error)) != 0) {
        return code;
    }
    if (invert) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "pre_tokenizer: an inverted Split is not supported");
    }
    if (json_is_string(regex)) {
        return sl_split_add(tokenizer, view_of(regex), behavior, error);
    }
    if (json_is_string(string)) {
        return add_plain_split(tokenizer, view_of(string), behavior, error);
    }
    return wrong_type("pre_tokenizer: Split: pattern", "a Regex or a String", pattern, error);
}

static int add_byte_level(sl_tokenizer *tokenizer, const json_t *element, sl_error *error) {
    bool prefix = true, split = true;
    int code = get_bool(element, "add_prefix_space", &prefix, error);
    if (code || (code = get_bool(element, "use_regex", &split, error)) != 0) {
        return code;
    }
    if (prefix) {
        if (tokenizer->split_count > 0) {
            return sl_fail(error, SL_ERR_UNSUPPORTED,
                           "pre_tokenizer: ByteLevel with add_prefix_space after another split is "
                           "not supported");
        }
        const sl_text_step step = {SL_STEP_PREPEND_MISSING, sl_view_of(" "), sl_view_of(" ")};
        code = add_step(tokenizer, tokenizer->prepare, &tokenizer->prepare_count, step, error);
    }
    tokenizer->model = SL_MODEL_BYTE_LEVEL;
    return code || !split ? code
                          : sl_split_add(tokenizer, sl_view_of(SL_PATTERN_GPT2), SL_SPLIT_ISOLATED, error);
}

/* Which texts Metaspace begins with a space: *kind, or none (returns false in *any). */
static int metaspace_prefix(const json_t *element, sl_text_step_kind *kind, bool *any, sl_error *error) {
    bool prefix = true;
    const json_t *scheme = json_object_get(element, "prepend_scheme");
    int code = get_bool(element, "add_prefix_space", &prefix, error);
    *kind = SL_STEP_PREPEND_MISSING;
    *any = prefix;
    if (code || is_absent(scheme)) {
        return code;
    }
    sl_view name = view_of(scheme);
    if (json_is_string(scheme) && sl_view_is(name, "first")) {
        *kind = SL_STEP_PREPEND_FIRST;
    } else if (json_is_string(scheme) && sl_view_is(name, "never")) {
        *any = false;
    } else if (!json_is_string(scheme) || !sl_view_is(name, "always")) {
        return unsupported("Metaspace: prepend_scheme",
                           json_is_string(scheme) ? name : sl_view_of(type_name(scheme)), error);
    }
    return 0;
}

/* Behind WhitespaceSplit: each word has its mark, and begins a piece. */
static int add_metaspace_words(sl_tokenizer *tokenizer, bool marks, bool split, sl_error *error) {
    const sl_text_step words = {SL_STEP_METASPACE_WORDS, {"", 0}, {"", 0}};
    if (!marks || !split) {
        return unsupported("pre_tokenizer: Metaspace", sl_view_of("these options behind WhitespaceSplit"),
                           error);
    }
    pcre2_code_free(tokenizer->splits[--tokenizer->split_count].code);
    tokenizer->words_alone = false;
    const int code = add_step(tokenizer, tokenizer->prepare, &tokenizer->prepare_count, words, error);
    return code ? code : add_plain_split(tokenizer, sl_view_of(SL_SPM_SPACE), SL_SPLIT_WITH_NEXT, error);
}

static int add_metaspace(sl_tokenizer *tokenizer, const json_t *element, sl_error *error) {
    sl_view replacement;
    sl_text_step_kind kind;
    bool prefix, split = true;
    int code = get_string(element, "replacement", &replacement, error);
    if (code || (code = get_bool(element, "split", &split, error)) != 0 ||
        (code = metaspace_prefix(element, &kind, &prefix, error)) != 0) {
        return code;
    }
    if (sl_view_is(replacement, SL_SPM_SPACE) && tokenizer->words_alone && tokenizer->split_count == 1) {
        return add_metaspace_words(tokenizer, prefix && kind == SL_STEP_PREPEND_MISSING, split, error);
    }
    if (!sl_view_is(replacement, SL_SPM_SPACE) || tokenizer->split_count > 0) {
        return unsupported("pre_tokenizer: Metaspace",
                           sl_view_of(tokenizer->split_count ? "after another split" : "another replacement"),
                           error);
    }
    const sl_text_step replace = {SL_STEP_REPLACE, sl_view_of(" "), replacement};
    const sl_text_step prepend = {kind, replacement, replacement};
    code = add_step(tokenizer, tokenizer->prepare, &tokenizer->prepare_count, replace, error);
    if (code == 0 && prefix) {
        code = add_step(tokenizer, tokenizer->prepare, &tokenizer->prepare_count, prepend, error);
    }
    return code || !split ? code : add_plain_split(tokenizer, replacement, SL_SPLIT_WITH_NEXT, error);
}

static int add_pre_tokenizer(sl_tokenizer *tokenizer, const json_t *element, sl_view type, sl_error *error) {
    if (tokenizer->model == SL_MODEL_BYTE_LEVEL) {
        /* It would see GPT-2's alphabet instead of the text. */
        return sl_fail(error, SL_ERR_UNSUPPORTED, "pre_tokenizer: '%.60s' after ByteLevel is not supported",
                       type.data);
    }
    if (sl_view_is(type, "BertPreTokenizer")) {
        return sl_wordpiece_splits(tokenizer, error);
    }
    if (sl_view_is(type, "WhitespaceSplit")) {
        tokenizer->words_alone = true;
        return sl_split_add(tokenizer, sl_view_of("\\s+"), SL_SPLIT_REMOVED, error);
    }
    if (sl_view_is(type, "Split")) {
        return add_split(tokenizer, element, error);
    }
    if (sl_view_is(type, "ByteLevel")) {
        return add_byte_level(tokenizer, element, error);
    }
    if (sl_view_is(type, "Metaspace")) {
        return add_metaspace(tokenizer, element, error);
    }
    if (sl_view_is(type, "Digits")) {
        bool each = false;
        int code = get_bool(element, "individual_digits", &each, error);
        return code ? code
                    : sl_split_add(tokenizer, sl_view_of(each ? "\\p{N}" : "\\p{N}+"), SL_SPLIT_ISOLATED,
                                   error);
    }
    return unsupported("pre_tokenizer", type, error);
}

/* ---- post-processor and decoder
 * ------------------------------------------------------------------------------------------ */

/* 1 when the element of a template is a special token, whose id *id gets. */
static int template_token(const sl_tokenizer *tokenizer, const json_t *element, int32_t *id,
                          sl_error *error) {
    const json_t *special = json_object_get(element, "SpecialToken");
    sl_view text;
    if (!special) {
        return 0;
    }
    const int code = get_string(special, "id", &text, error);
    if (code) {
        return code;
    }
    *id = sl_tokenizer_find(tokenizer, text);
    return *id >= 0 ? 1
                    : sl_fail(error, SL_ERR_FORMAT, "post_processor: token '%.60s' is not in the vocabulary",
                              text.data);
}

/* {"sep": ["[SEP]", 102], "cls": ["[CLS]", 101]} */
static int bert_processing(sl_tokenizer *tokenizer, const json_t *element, sl_error *error) {
    const char *sep = json_string_value(json_array_get(json_object_get(element, "sep"), 0));
    const char *cls = json_string_value(json_array_get(json_object_get(element, "cls"), 0));
    tokenizer->closing = sep ? sl_tokenizer_find(tokenizer, sl_view_of(sep)) : -1;
    tokenizer->bos = cls ? sl_tokenizer_find(tokenizer, sl_view_of(cls)) : -1;
    tokenizer->add_bos = true;
    return tokenizer->closing >= 0 && tokenizer->bos >= 0
               ? 0
               : sl_fail(error, SL_ERR_FORMAT, "post_processor: sep and cls must be tokens");
}

/* Special tokens between the two texts of a template for pairs. */
static int32_t count_between(const json_t *pair) {
    int32_t count = 0, sequences = 0;
    for (size_t i = 0; i < json_array_size(pair); i++) {
        sequences += json_object_get(json_array_get(pair, i), "Sequence") != NULL;
        count += sequences == 1 && json_object_get(json_array_get(pair, i), "SpecialToken") != NULL;
    }
    return sequences == 2 ? count : 1;
}

/* TemplateProcessing: a special token before the text is bos, one behind it closes it. */
static int add_post_processor(sl_tokenizer *tokenizer, const json_t *element, sl_view type, sl_error *error) {
    if (sl_view_is(type, "ByteLevel")) {
        return 0; /* changes offsets only */
    }
    if (sl_view_is(type, "RobertaProcessing")) {
        tokenizer->pair_gap = 2;
        return bert_processing(tokenizer, element, error);
    }
    if (sl_view_is(type, "BertProcessing")) {
        return bert_processing(tokenizer, element, error);
    }
    if (!sl_view_is(type, "TemplateProcessing")) {
        return unsupported("post_processor", type, error);
    }
    const json_t *single = json_object_get(element, "single");
    if (!json_is_array(single)) {
        return wrong_type("post_processor: single", "an array", single, error);
    }
    const size_t count = json_array_size(single);
    int code = template_token(tokenizer, json_array_get(single, 0), &tokenizer->bos, error);
    tokenizer->add_bos |= code == 1;
    if (code >= 0 && count > 1) {
        code = template_token(tokenizer, json_array_get(single, count - 1), &tokenizer->closing, error);
    }
    tokenizer->pair_gap = count_between(json_object_get(element, "pair"));
    return code < 0 ? code : 0;
}

static int add_decoder(sl_tokenizer *tokenizer, const json_t *element, sl_view type, sl_error *error) {
    sl_view from, to;
    int code = 0;
    if (sl_view_is(type, "Replace")) {
        code = get_replace(element, "decoder", &from, &to, error);
        if (code == 0 && !(sl_view_is(from, SL_SPM_SPACE) && sl_view_is(to, " "))) {
            code = unsupported("decoder: Replace", from, error);
        }
    } else if (sl_view_is(type, "Strip")) {
        const json_t *start = json_object_get(element, "start"), *stop = json_object_get(element, "stop");
        if ((code = get_string(element, "content", &to, error)) != 0) {
            return code;
        }
        if (!sl_view_is(to, " ") || !json_is_integer(start) || json_integer_value(start) > 1 ||
            !json_is_integer(stop) || json_integer_value(stop) != 0) {
            return unsupported("decoder: Strip", sl_view_of("anything but one space at the start"), error);
        }
        tokenizer->strip_start = json_integer_value(start) == 1;
    } else if (sl_view_is(type, "Metaspace")) {
        sl_text_step_kind kind;
        code = metaspace_prefix(element, &kind, &tokenizer->strip_start, error);
    } else if (!sl_view_is(type, "ByteLevel") && !sl_view_is(type, "ByteFallback") &&
               !sl_view_is(type, "WordPiece") && !sl_view_is(type, "Fuse")) {
        code = unsupported("decoder", type, error);
    }
    return code;
}

/* ---- added tokens
 * -------------------------------------------------------------------------------------------------------- */

static int load_added(sl_tokenizer *tokenizer, const json_t *list, sl_error *error) {
    sl_buffer buffers[2] = {0};
    int code = 0;
    for (size_t i = 0; i < json_array_size(list) && code == 0; i++) {
        const json_t *entry = json_array_get(list, i);
        sl_added_token added = {.id = (int32_t)json_integer_value(json_object_get(entry, "id"))};
        bool normalized = false;
        added.special = tokenizer->tokens[added.id].type == SL_TOKEN_CONTROL;
        if ((code = get_bool(entry, "single_word", &added.single_word, error)) != 0 ||
            (code = get_bool(entry, "lstrip", &added.strip_left, error)) != 0 ||
            (code = get_bool(entry, "rstrip", &added.strip_right, error)) != 0 ||
            (code = get_bool(entry, "normalized", &normalized, error)) != 0) {
            break;
        }
        sl_view content = tokenizer->tokens[added.id].text;
        if (normalized) {
            code = sl_text_steps_run(tokenizer->normalizer, tokenizer->normalizer_count, content, true,
                                     buffers, &content);
            if (code) {
                sl_fail(error, code, "added_tokens: token %d cannot be normalized", added.id);
                break;
            }
        }
        code = sl_vocabulary_add(tokenizer, &added, content, normalized, error);
    }
    sl_buffer_free(&buffers[0]);
    sl_buffer_free(&buffers[1]);
    return code;
}

/* ---- tokenizer_config.json
 * ----------------------------------------------------------------------------------------------- */

/* "bos_token": a string, or an object with "content"; *text.data is NULL when there is none. */
static int config_token(const json_t *config, const char *key, sl_view *text, sl_error *error) {
    const json_t *value = json_object_get(config, key);
    *text = (sl_view){0};
    if (is_absent(value)) {
        return 0;
    }
    if (json_is_object(value)) {
        value = json_object_get(value, "content");
    }
    if (!json_is_string(value)) {
        return wrong_type(key, "a string or an object with a string 'content'", value, error);
    }
    *text = view_of(value);
    return 0;
}

static int load_config_tokens(sl_tokenizer *tokenizer, const json_t *config, sl_error *error) {
    const struct {
        const char *key;
        int32_t *id;
        bool must_exist; /* padding is often a token that a trainer meant to add */
    } rows[] = {
        {"bos_token", &tokenizer->bos, true},
        {"eos_token", &tokenizer->eos, true},
        {"unk_token", &tokenizer->unk, false},
        {"pad_token", &tokenizer->pad, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        sl_view text;
        int code = config_token(config, rows[i].key, &text, error);
        if (code) {
            return code;
        }
        if (!text.data || text.length == 0) {
            continue;
        }
        int32_t id = sl_tokenizer_find(tokenizer, text);
        if (id < 0 && rows[i].must_exist) {
            return sl_fail(error, SL_ERR_FORMAT, "tokenizer_config: %s '%.60s' is not in the vocabulary",
                           rows[i].key, text.data);
        }
        if (id >= 0) {
            *rows[i].id = id;
        }
    }
    return get_bool(config, "add_bos_token", &tokenizer->add_bos, error);
}

static int load_config(sl_tokenizer *tokenizer, const json_t *config, sl_error *error) {
    if (!json_is_object(config)) {
        return wrong_type("tokenizer_config", "an object", config, error);
    }
    int code = load_config_tokens(tokenizer, config, error);
    const json_t *value = json_object_get(config, "chat_template");
    if (code || is_absent(value)) {
        return code;
    }
    if (json_is_string(value)) {
        return sl_tokenizer_add_template(tokenizer, sl_view_of("default"), view_of(value), error);
    }
    if (!json_is_array(value)) {
        return wrong_type("tokenizer_config: chat_template", "a string or an array", value, error);
    }
    for (size_t i = 0; i < json_array_size(value) && code == 0; i++) {
        const json_t *entry = json_array_get(value, i);
        sl_view name, text;
        if ((code = get_string(entry, "name", &name, error)) == 0 &&
            (code = get_string(entry, "template", &text, error)) == 0) {
            code = sl_tokenizer_add_template(tokenizer, name, text, error);
        }
    }
    return code;
}

/* ---- the whole
 * -----------------------------------------------------------------------------------------------------------
 */

static int load_stage(sl_tokenizer *tokenizer, const json_t *root, const stage *stage, sl_error *error) {
    enum { DEPTH = 4 };
    return for_each(tokenizer, stage, json_object_get(root, stage->field), DEPTH, error);
}

static int load_root(sl_tokenizer *tokenizer, const json_t *root, sl_error *error) {
    int code;
    if (!json_is_object(root)) {
        return wrong_type("the document", "an object", root, error);
    }
    static const stage normalizer = {"normalizer", "normalizers", add_normalizer};
    static const stage pre_tokenizer = {"pre_tokenizer", "pretokenizers", add_pre_tokenizer};
    static const stage post_processor = {"post_processor", "processors", add_post_processor};
    static const stage decoder = {"decoder", "decoders", add_decoder};
    tokenizer->model = SL_MODEL_CHARACTER;
    if ((code = load_stage(tokenizer, root, &normalizer, error)) != 0 ||
        (code = load_stage(tokenizer, root, &pre_tokenizer, error)) != 0 ||
        (code = load_model(tokenizer, root, error)) != 0 ||
        (code = load_stage(tokenizer, root, &post_processor, error)) != 0 ||
        (code = load_stage(tokenizer, root, &decoder, error)) != 0) {
        return code;
    }
    return load_added(tokenizer, json_object_get(root, "added_tokens"), error);
}

int sl_tokenizer_from_json_memory(sl_view json, sl_view config, const char *name, sl_tokenizer **out,
                                  sl_error *error) {
    *out = NULL;
    json_t *root = NULL, *settings = NULL;
    sl_tokenizer *tokenizer = sl_tokenizer_new();
    int code = tokenizer ? sl_json_parse(json.data, json.length, name, &root, error)
                         : sl_fail(error, SL_ERR_NOMEM, "out of memory");
    if (code == 0) {
        code = load_root(tokenizer, root, error);
    }
    json_decref(root);
    if (code == 0 && config.data) {
        /* "model_max_length" is often an integer of 31 digits. No integer of this file is used. */
        code = sl_json_parse_as(config, SL_JSON_LARGE_INTEGERS, "tokenizer_config.json", &settings, error);
        if (code == 0) {
            code = load_config(tokenizer, settings, error);
        }
        json_decref(settings);
    }
    if (code == 0) {
        sl_vocabulary_mark_eog(tokenizer, false);
        code = sl_vocabulary_finish(tokenizer, true, error);
    }
    if (code) {
        sl_tokenizer_destroy(tokenizer);
        sl_fail_prefix(error, name);
        return code;
    }
    *out = tokenizer;
    return 0;
}

int sl_tokenizer_from_json(const char *path, const char *config_path, sl_tokenizer **out, sl_error *error) {
    sl_map json = {0}, config = {0};
    *out = NULL;
    int code = sl_map_open(&json, path, error);
    if (code == 0 && config_path) {
        code = sl_map_open(&config, config_path, error);
    }
    if (code == 0) {
        sl_view view = {(const char *)config.data, config.size};
        code = sl_tokenizer_from_json_memory((sl_view){(const char *)json.data, json.size}, view, path, out,
                                             error);
    }
    if (code == 0 && (code = sl_tokenizer_load_templates(*out, path, error)) != 0) {
        sl_tokenizer_destroy(*out);
        *out = NULL;
    }
    sl_map_close(&json);
    sl_map_close(&config);
    return code;
}
