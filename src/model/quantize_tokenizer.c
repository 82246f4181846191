/* A Hugging Face tokenizer as GGUF metadata. GGUF names pre-tokenizers instead of describing them, so only
 * those byte-level tokenizers can be written that have a name there (llama.cpp's convert_hf_to_gguf.py is the
 * list). */
#include "model/files.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "format/json.h"
#include "token/tokenizer.h"

static const struct {
    const char *name, *pattern; /* NULL: the byte-level step's own */
} PRE_TOKENIZERS[] = {
    {"qwen2",
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {"qwen35", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
               " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {"llama-bpe", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                  " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {"gpt-2", NULL},
};

static bool is_type(const json_t *object, const char *type) {
    const char *found = json_string_value(json_object_get(object, "type"));
    return found && strcmp(found, type) == 0;
}

/* The name of a pre_tokenizer, or NULL: a byte-level step alone, or one split in front of it. */
static const char *pre_tokenizer_name(const json_t *pre) {
    const json_t *steps = is_type(pre, "Sequence") ? json_object_get(pre, "pretokenizers") : NULL;
    const json_t *split = json_array_get(steps, 0), *bytes = steps ? json_array_get(steps, 1) : pre;
    const char *pattern = NULL;
    if (!is_type(bytes, "ByteLevel") || json_is_true(json_object_get(bytes, "add_prefix_space")) ||
        (steps && (json_array_size(steps) != 2 || !is_type(split, "Split")))) {
        return NULL;
    }
    if (steps) {
        pattern = json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
        if (!pattern) {
            return NULL;
        }
    }
    for (size_t i = 0; i < sizeof PRE_TOKENIZERS / sizeof *PRE_TOKENIZERS; i++) {
        const char *known = PRE_TOKENIZERS[i].pattern;
        if (known == pattern || (known && pattern && strcmp(known, pattern) == 0)) {
            return PRE_TOKENIZERS[i].name;
        }
    }
    return NULL;
}

typedef struct vocabulary {
    sl_arena arena;
    const sl_tokenizer *tokenizer;
    int32_t count;
    sl_view *texts;
    int32_t *types;
} vocabulary;

/* The model may have more rows than its tokenizer has tokens. */
static int list_tokens(vocabulary *v, const char *path, sl_error *error) {
    if (sl_tokenizer_size(v->tokenizer) > v->count) {
        return sl_fail(error, SL_ERR_FORMAT, "%s: %d tokens, but the model's vocab_size is %d", path,
                       sl_tokenizer_size(v->tokenizer), v->count);
    }
    v->texts = sl_arena_alloc(&v->arena, (size_t)v->count, sizeof *v->texts);
    v->types = sl_arena_alloc(&v->arena, (size_t)v->count, sizeof *v->types);
    for (int32_t id = 0; id < v->count && v->texts && v->types; id++) {
        const bool inside = id < sl_tokenizer_size(v->tokenizer);
        v->types[id] = inside ? (int32_t)sl_tokenizer_token_type(v->tokenizer, id) : SL_TOKEN_UNUSED;
        v->texts[id] = inside ? sl_tokenizer_token_text(v->tokenizer, id) : (sl_view){NULL, 0};
        if (!inside || v->types[id] == SL_TOKEN_UNDEFINED) {
            const char *name = sl_arena_printf(&v->arena, "[PAD%d]", id);
            v->texts[id] = sl_view_of(name);
            v->types[id] = SL_TOKEN_UNUSED;
        }
        if (!v->texts[id].data) {
            v->texts = NULL;
        }
    }
    return v->texts && v->types ? 0 : sl_fail(error, SL_ERR_NOMEM, "%s: out of memory", path);
}

/* Merges are pairs, or (older) one string with a space. */
static int write_merges(sl_gguf_writer *writer, sl_arena *arena, const json_t *merges, const char *path,
                        sl_error *error) {
    const size_t count = json_array_size(merges);
    sl_view *texts = sl_arena_alloc(arena, count + 1, sizeof *texts);
    if (!texts) {
        return sl_fail(error, SL_ERR_NOMEM, "%s: out of memory", path);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *merge = json_array_get(merges, i);
        const char *left = json_string_value(json_array_get(merge, 0));
        const char *right = json_string_value(json_array_get(merge, 1));
        const char *text =
            left && right ? sl_arena_printf(arena, "%s %s", left, right) : json_string_value(merge);
        if (!text) {
            return sl_fail(error, SL_ERR_NOMEM, "%s: out of memory for merge %zu", path, i);
        }
        texts[i] = sl_view_of(text);
    }
    const sl_gguf_items items = {SL_GGUF_STRING, texts, count};
    return sl_gguf_writer_array(writer, "tokenizer.ggml.merges", &items, error);
}

/* The default one, and others by their names, which are listed too (gguf-py, add_chat_template). */
static int write_templates(sl_gguf_writer *writer, const sl_tokenizer *t, sl_error *error) {
    enum { NAMED = 256 };
    sl_view names[NAMED];
    uint64_t count = 0;
    int code = 0;
    for (int i = 0; sl_tokenizer_chat_template_name(t, i) && code == 0; i++) {
        char key[256];
        const char *name = sl_tokenizer_chat_template_name(t, i);
        const bool usual = strcmp(name, "default") == 0;
        if (snprintf(key, sizeof key, "tokenizer.chat_template%s%s", usual ? "" : ".", usual ? "" : name) >=
                (int)sizeof key ||
            count == NAMED) {
            return sl_fail(error, SL_ERR_LIMIT, "chat template %.60s: too many, or too long a name", name);
        }
        if (!usual) {
            names[count++] = sl_view_of(name);
        }
        code = sl_gguf_writer_string(writer, key, sl_tokenizer_chat_template(t, name), error);
    }
    const sl_gguf_items items = {SL_GGUF_STRING, names, count};
    return code || count == 0 ? code
                              : sl_gguf_writer_array(writer, "tokenizer.chat_templates", &items, error);
}

static int write_facts(sl_gguf_writer *writer, const vocabulary *v, sl_error *error) {
    const sl_tokenizer *t = v->tokenizer;
    const struct {
        const char *key;
        int32_t id;
    } ids[] = {{"tokenizer.ggml.bos_token_id", sl_tokenizer_bos(t)},
               {"tokenizer.ggml.eos_token_id", sl_tokenizer_eos(t)},
               {"tokenizer.ggml.unknown_token_id", sl_tokenizer_unk(t)},
               {"tokenizer.ggml.padding_token_id", sl_tokenizer_pad(t)}};
    const sl_gguf_items tokens = {SL_GGUF_STRING, v->texts, (uint64_t)v->count};
    const sl_gguf_items types = {SL_GGUF_I32, v->types, (uint64_t)v->count};
    int code = sl_gguf_writer_array(writer, "tokenizer.ggml.tokens", &tokens, error);
    code = code ? code : sl_gguf_writer_array(writer, "tokenizer.ggml.token_type", &types, error);
    for (size_t i = 0; i < sizeof ids / sizeof *ids && code == 0; i++) {
        code = ids[i].id < 0
                   ? 0
                   : sl_gguf_writer_unsigned(writer, ids[i].key, SL_GGUF_U32, (uint64_t)ids[i].id, error);
    }
    code = code
               ? code
               : sl_gguf_writer_bool(writer, "tokenizer.ggml.add_bos_token", sl_tokenizer_adds_bos(t), error);
    return code ? code : write_templates(writer, t, error);
}

static int write_all(sl_gguf_writer *writer, vocabulary *v, const json_t *json, const char *path,
                     sl_error *error) {
    const char *name = pre_tokenizer_name(json_object_get(json, "pre_tokenizer"));
    const json_t *model = json_object_get(json, "model");
    if (!is_type(model, "BPE") || !name) {
        return sl_fail(error, SL_ERR_UNSUPPORTED,
                       "%s: GGUF has no name for this %s, so the tokenizer cannot be written into the file",
                       path, is_type(model, "BPE") ? "pre_tokenizer" : "model");
    }
    int code = list_tokens(v, path, error);
    code = code ? code : sl_gguf_writer_string(writer, "tokenizer.ggml.model", sl_view_of("gpt2"), error);
    code = code ? code : sl_gguf_writer_string(writer, "tokenizer.ggml.pre", sl_view_of(name), error);
    code = code ? code : write_facts(writer, v, error);
    return code ? code : write_merges(writer, &v->arena, json_object_get(model, "merges"), path, error);
}

int sl_file_write_tokenizer(sl_gguf_writer *writer, const char *path, const char *config_path, int32_t count,
                            sl_error *error) {
    enum { MOST_BYTES = 256 << 20 };
    sl_tokenizer *tokenizer;
    json_t *json = NULL;
    int code = sl_tokenizer_from_json(path, config_path, &tokenizer, error);
    if (code) {
        return code;
    }
    vocabulary v = {.tokenizer = tokenizer, .count = count};
    code = sl_json_load(path, MOST_BYTES, &json, error);
    code = code ? code : write_all(writer, &v, json, path, error);
    json_decref(json);
    sl_arena_free(&v.arena);
    sl_tokenizer_destroy(tokenizer);
    return code;
}
