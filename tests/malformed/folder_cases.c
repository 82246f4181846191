/* Hugging Face folders: every value of every JSON file in turn replaced, safetensors files cut and changed.
 */
#include "cases.h"

#include "base/text.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIXTURES SLUICE_SOURCE_DIR "/tests/logits/fixtures"
#define FOLDER "broken"

typedef struct yard {
    suite *s;
    const char *fixture, *file; /* being changed */
    json_t *root;
    bytes weights; /* of model.safetensors: header length, header, data */
    size_t data_at;
    void (*write)(struct yard *y, const char *text, size_t length);
    unsigned sampling;
} yard;

static void read_all(const char *path, bytes *to) {
    char chunk[4096];
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(2);
    }
    to->size = 0;
    for (size_t got; (got = fread(chunk, 1, sizeof chunk, file)) > 0;) {
        put_bytes(to, chunk, got);
    }
    fclose(file);
}

static void write_text(yard *y, const char *text, size_t length) {
    char path[128];
    snprintf(path, sizeof path, FOLDER "/%s", y->file);
    put_file(path, text, length);
}

/* The text is a safetensors header; the data follows it as it was. */
static void write_header(yard *y, const char *text, size_t length) {
    bytes file = {0};
    put_u64(&file, length);
    put_bytes(&file, text, length);
    put_bytes(&file, y->weights.data + y->data_at, y->weights.size - y->data_at);
    put_file(FOLDER "/model.safetensors", file.data, file.size);
    free(file.data);
}

static void run_text(yard *y, const char *text, size_t length, const char *what) {
    char name[400];
    snprintf(name, sizeof name, "folder %s %s: %s", y->fixture, y->file, what);
    y->write(y, text, length);
    run_case(y->s, FOLDER, name);
}

/* ---- JSON: any tree, each of its values replaced ---- */

/* Values that jansson cannot hold stand in strings with this mark and are put out as they are. */
#define RAW "@raw@"

static const char *const replacements[] = {"null",
                                           "true",
                                           "false",
                                           "0",
                                           "1",
                                           "-1",
                                           "2",
                                           "3",
                                           "7",
                                           "64",
                                           "2147483647",
                                           "2147483648",
                                           "4294967295",
                                           "4294967296",
                                           "9223372036854775807",
                                           "-9223372036854775808",
                                           "1e308",
                                           "-1e308",
                                           "5e-324",
                                           "0.5",
                                           "1.0",
                                           "\"\"",
                                           "\"x\"",
                                           "\"\\u0000a\"",
                                           "\"two\\nlines\\u001b[1m\"",
                                           "\"../../x\"",
                                           "\"1\"",
                                           "[]",
                                           "{}",
                                           "[[]]",
                                           "[0]",
                                           "[-1]",
                                           "[1,2,3,4,5,6,7,8,9]",
                                           "[\"a\",\"b\"]",
                                           "[4294967296,4294967296]",
                                           "{\"a\":{}}",
                                           "{\"type\":\"Sequence\"}",
                                           "\"" RAW "NaN\"",
                                           "\"" RAW "Infinity\"",
                                           "\"" RAW "1e999\"",
                                           "\"" RAW "18446744073709551616\"",
                                           "\"" RAW "9223372036854775808\"",
                                           "\"" RAW "-0\"",
                                           "\"" RAW "01\"",
                                           "\"" RAW "\"",
                                           "\"" RAW "\\\"\\\\ud800\\\"\""};

/* Dumps, with the marked strings as raw text. */
static char *dump(const json_t *root) {
    char *text = json_dumps(root, JSON_COMPACT), *to = text;
    for (const char *from = text; *from;) {
        if (strncmp(from, "\"" RAW, 1 + strlen(RAW)) == 0) {
            for (from += 1 + strlen(RAW); *from != '"'; from++) {
                from += *from == '\\';
                *to++ = *from;
            }
            from++;
        } else {
            *to++ = *from++;
        }
    }
    *to = 0;
    return text;
}

static void run_tree(yard *y, const char *path, const char *what) {
    char name[320];
    char *text = dump(y->root);
    snprintf(name, sizeof name, "%.240s %s", path, what);
    run_text(y, text, strlen(text), name);
    free(text);
}

typedef struct place {
    json_t *parent; /* object or array */
    const char *key;
    size_t index;
} place;

static json_t *get(const place *p) {
    return p->key ? json_object_get(p->parent, p->key) : json_array_get(p->parent, p->index);
}

static void set(const place *p, json_t *value) {
    if (p->key) {
        json_object_set(p->parent, p->key, value);
    } else {
        json_array_set(p->parent, p->index, value);
    }
}

static void replace_one(yard *y, const place *p, const char *path) {
    json_t *original = json_incref(get(p));
    for (size_t i = 0; i < sizeof replacements / sizeof *replacements; i++) {
        if (wanted(y->s, y->sampling)) {
            json_t *value = json_loads(replacements[i], JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
            set(p, value);
            run_tree(y, path, replacements[i]);
            json_decref(value);
            set(p, original);
        }
    }
    for (int by = -1; json_is_integer(original) && by <= 1; by += 2) {
        if (wanted(y->s, y->sampling)) {
            json_t *value = json_integer(json_integer_value(original) + by);
            set(p, value);
            run_tree(y, path, "one beside");
            json_decref(value);
            set(p, original);
        }
    }
    if (json_is_array(original) && json_array_size(original) > 1 && wanted(y->s, 1)) {
        json_t *reversed = json_array();
        for (size_t i = json_array_size(original); i-- > 0;) {
            json_array_append(reversed, json_array_get(original, i));
        }
        set(p, reversed);
        run_tree(y, path, "reversed");
        json_decref(reversed);
        set(p, original);
    }
    if (wanted(y->s, 1)) {
        if (p->key) { /* at the end of its object then: order does not count */
            json_object_del(p->parent, p->key);
            run_tree(y, path, "removed");
            json_object_set(p->parent, p->key, original);
        } else {
            json_array_remove(p->parent, p->index);
            run_tree(y, path, "removed");
            json_array_insert(p->parent, p->index, original);
        }
    }
    if (!p->key && wanted(y->s, 1)) {
        json_array_insert(p->parent, p->index, original);
        run_tree(y, path, "twice");
        json_array_remove(p->parent, p->index);
    }
    json_decref(original);
}

static void replace_below(yard *y, json_t *node, const char *path);

static void replace_at(yard *y, const place *p, const char *path) {
    replace_one(y, p, path);
    replace_below(y, get(p), path);
}

/* Of long arrays and objects the first, the last and some between. */
static bool skipped(size_t index, size_t size) {
    return index >= 4 && index + 1 < size && size > 40 && index % (size / 6) != 0;
}

static void replace_below(yard *y, json_t *node, const char *path) {
    char below[512];
    if (json_is_array(node)) {
        const size_t size = json_array_size(node);
        for (size_t i = 0; i < size; i++) {
            if (!skipped(i, size)) {
                snprintf(below, sizeof below, "%s[%zu]", path, i);
                replace_at(y, &(place){node, NULL, i}, below);
            }
        }
        return;
    }
    if (!json_is_object(node)) {
        return;
    }
    /* Replacing moves entries about: walk a list of keys. */
    json_t *keys = json_array();
    const char *key;
    json_t *value;
    json_object_foreach(node, key, value) {
        json_array_append_new(keys, json_string(key));
    }
    for (size_t i = 0; i < json_array_size(keys); i++) {
        if (!skipped(i, json_array_size(keys))) {
            const char *name = json_string_value(json_array_get(keys, i));
            snprintf(below, sizeof below, "%s.%s", path, name);
            replace_at(y, &(place){node, name, 0}, below);
        }
    }
    json_decref(keys);
}

static void add_keys(yard *y, json_t *object, const char *const *keys) {
    for (; *keys; keys++) {
        if (!json_object_get(object, *keys)) {
            json_object_set_new(object, *keys, json_null());
            replace_one(y, &(place){object, *keys, 0}, *keys);
            json_object_del(object, *keys);
        }
    }
}

/* The text as bytes: cut, bits flipped, nested, with a BOM, twice, empty. */
static void text_cases(yard *y, unsigned sampling) {
    char *text = dump(y->root);
    const size_t length = strlen(text), stride = length > 4096 ? length / 1024 : 1;
    for (size_t cut = 0; cut < length; cut += stride) {
        if (wanted(y->s, sampling)) {
            run_text(y, text, cut, "cut");
        }
    }
    for (size_t bit = 0; bit < length * 8; bit += stride * 3) {
        if (wanted(y->s, sampling)) {
            text[bit / 8] ^= (char)(1 << bit % 8);
            run_text(y, text, length, "a bit");
            text[bit / 8] ^= (char)(1 << bit % 8);
        }
    }
    static const struct {
        const char *repeated;
        size_t times;
    } floods[] = {{"[", 100000},   {"{\"a\":", 100000}, {" ", 1 << 20}, {"\xef\xbb\xbf{}", 1}, {"{}{}", 1},
                  {"[]", 1},       {"null", 1},         {"\"", 1},      {"9", 1 << 16},        {"", 0},
                  {"\xff\xfe{", 1}};
    for (size_t i = 0; i < sizeof floods / sizeof *floods; i++) {
        if (wanted(y->s, 1)) {
            bytes flood = {0};
            for (size_t n = 0; n < floods[i].times; n++) {
                put_bytes(&flood, floods[i].repeated, strlen(floods[i].repeated));
            }
            put_bytes(&flood, "", 1);
            run_text(y, (const char *)flood.data, flood.size - 1, "a flood");
            free(flood.data);
        }
    }
    free(text);
}

/* ---- a tokenizer.json ---- */

static size_t put_utf8(char *to, uint32_t c) {
    if (c < 0x80) {
        to[0] = (char)c;
        return 1;
    }
    to[0] = (char)(0xc0 | c >> 6);
    to[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

/* Byte-level: printable ASCII, some characters of bytes, two merges, two added tokens; 256 ids at most. */
static json_t *tokenizer_json(void) {
    json_t *vocabulary = json_object();
    int id = 0;
    for (uint32_t c = 33; c < 127; c++) {
        char text[8] = {0};
        put_utf8(text, c);
        json_object_set_new(vocabulary, text, json_integer(id++));
    }
    for (uint32_t c = 161; c < 200; c++) {
        char text[8] = {0};
        put_utf8(text, c);
        json_object_set_new(vocabulary, text, json_integer(id++));
    }
    static const char *const more[] = {"\xc4\xa0", "\xc4\x8a", "ab", "abc", "\304\240a"};
    for (int i = 0; i < 5; i++) {
        json_object_set_new(vocabulary, more[i], json_integer(id++));
    }
    return json_pack(
        "{s:s, s:n, s:n, s:[{s:i,s:s,s:b,s:b,s:b,s:b,s:b},{s:i,s:s,s:b,s:b,s:b,s:b,s:b}], s:{s:s}, "
        "s:{s:s,s:[{s:s,s:{s:s},s:s,s:b},{s:s,s:b,s:b,s:b}]}, s:{s:s,s:b,s:b,s:b}, s:{s:s,s:b,s:b,s:b}, "
        "s:{s:s,s:n,s:n,s:s,s:s,s:b,s:b,s:b,s:o,s:[[ss],[ss],[ss]]}}",
        "version", "1.0", "truncation", "padding", "added_tokens", "id", id, "content", "<|im_end|>",
        "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1, "id", id + 1, "content",
        "<think>", "single_word", 0, "lstrip", 0, "rstrip", 1, "normalized", 1, "special", 0, "normalizer",
        "type", "NFC", "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split", "pattern",
        "Regex", "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+|\\s+", "behavior", "Isolated", "invert", 0, "type",
        "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 0, "post_processor", "type",
        "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 0, "decoder", "type", "ByteLevel",
        "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 0, "model", "type", "BPE", "dropout",
        "unk_token", "continuing_subword_prefix", "", "end_of_word_suffix", "", "fuse_unk", 0,
        "byte_fallback", 0, "ignore_merges", 0, "vocab", vocabulary, "merges", "a", "b", "ab", "c",
        "\xc4\xa0", "a");
}

static void tokenizer_cases(yard *y) {
    json_t *config_json = y->root;
    json_t *config = json_pack("{s:s, s:{s:s,s:b}, s:b, s:s, s:{s:{s:s,s:b}}}", "bos_token", "<|im_end|>",
                               "eos_token", "content", "<|im_end|>", "special", 1, "add_bos_token", 1,
                               "chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}",
                               "added_tokens_decoder", "138", "content", "<|im_end|>", "special", 1);
    json_t *tokenizer = tokenizer_json();
    char *text = tokenizer ? json_dumps(tokenizer, 0) : NULL, *config_text = json_dumps(config, 0);
    if (!text || !config_text) {
        fprintf(stderr, "the valid tokenizer was not made\n");
        exit(2);
    }
    put_file(FOLDER "/tokenizer.json", text, strlen(text));
    put_file(FOLDER "/tokenizer_config.json", config_text, strlen(config_text));
    run_valid(y->s, FOLDER, "folder with a tokenizer, valid");
    y->write = write_text;
    y->file = "tokenizer.json";
    y->root = tokenizer;
    y->sampling = 1;
    replace_below(y, tokenizer, "");
    text_cases(y, 4);
    put_file(FOLDER "/tokenizer.json", text, strlen(text));
    y->file = "tokenizer_config.json";
    y->root = config;
    replace_below(y, config, "");
    text_cases(y, 2);
    unlink(FOLDER "/tokenizer.json");
    unlink(FOLDER "/tokenizer_config.json");
    free(text);
    free(config_text);
    json_decref(tokenizer);
    json_decref(config);
    y->root = config_json;
}

/* ---- config.json, model.safetensors, the index ---- */

static void config_cases(yard *y) {
    static const char *const keys[] = {"head_dim",
                                       "num_key_value_heads",
                                       "rope_theta",
                                       "rope_scaling",
                                       "sliding_window",
                                       "use_sliding_window",
                                       "max_window_layers",
                                       "layer_types",
                                       "sliding_window_pattern",
                                       "full_attention_interval",
                                       "query_pre_attn_scalar",
                                       "final_logit_softcapping",
                                       "attn_logit_softcapping",
                                       "num_experts",
                                       "moe_intermediate_size",
                                       "num_experts_per_tok",
                                       "norm_topk_prob",
                                       "decoder_sparse_step",
                                       "mlp_only_layers",
                                       "attention_bias",
                                       "mlp_bias",
                                       "partial_rotary_factor",
                                       "text_config",
                                       "quantization_config",
                                       "linear_num_key_heads",
                                       "num_kv_shared_layers",
                                       "mtp_num_hidden_layers",
                                       "vision_config",
                                       NULL};
    y->file = "config.json";
    y->write = write_text;
    replace_below(y, y->root, "");
    add_keys(y, y->root, keys);
    text_cases(y, 3);
}

static void weights_cases(yard *y, bool all) {
    json_t *config = y->root;
    uint64_t length;
    char what[64];
    memcpy(&length, y->weights.data, 8);
    y->data_at = 8 + (size_t)length;
    y->root = json_loadb((const char *)y->weights.data + 8, (size_t)length, 0, NULL);
    y->file = "model.safetensors";
    y->write = write_header;
    y->sampling = all ? 2 : 20;
    replace_below(y, y->root, "");
    text_cases(y, all ? 2 : 20);
    static const uint64_t lengths[] = {
        0, 1, 2, 8, 1ull << 31, 1ull << 32, 1ull << 63, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths + 4; i++) {
        if (wanted(y->s, 1)) {
            const uint64_t near[] = {length - 1, length + 1, y->weights.size - 8, y->weights.size};
            const uint64_t now = i < 4 ? near[i] : lengths[i - 4];
            memcpy(y->weights.data, &now, 8);
            put_file(FOLDER "/model.safetensors", y->weights.data, y->weights.size);
            snprintf(what, sizeof what, "folder %s header length %llu", y->fixture, (unsigned long long)now);
            run_case(y->s, FOLDER, what);
            memcpy(y->weights.data, &length, 8);
        }
    }
    for (size_t size = 0; size < y->weights.size; size += size < 16 ? 1 : y->weights.size / 64) {
        if (wanted(y->s, 2)) {
            put_file(FOLDER "/model.safetensors", y->weights.data, size);
            snprintf(what, sizeof what, "folder %s weights cut to %zu", y->fixture, size);
            run_case(y->s, FOLDER, what);
        }
    }
    json_decref(y->root);
    y->root = config;
    put_file(FOLDER "/model.safetensors", y->weights.data, y->weights.size);
}

static void index_cases(yard *y) {
    bytes index = {0};
    json_t *config = y->root;
    y->file = "model.safetensors.index.json";
    y->write = write_text;
    y->sampling = 2;
    read_all(FOLDER "/model.safetensors.index.json", &index);
    y->root = json_loadb((const char *)index.data, index.size, 0, NULL);
    replace_below(y, y->root, "");
    text_cases(y, 8);
    json_decref(y->root);
    y->root = config;
    free(index.data);
}

static void copy_files(const char *fixture) {
    static const char *const files[] = {"config.json",
                                        "generation_config.json",
                                        "model.safetensors",
                                        "model.safetensors.index.json",
                                        "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    mkdir(FOLDER, 0777);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char from[1024], to[128];
        bytes data = {0};
        snprintf(from, sizeof from, FIXTURES "/%s/%s", fixture, files[i]);
        snprintf(to, sizeof to, FOLDER "/%s", files[i]);
        unlink(to);
        if (access(from, R_OK) == 0) {
            read_all(from, &data);
            put_file(to, data.data, data.size);
        }
        free(data.data);
    }
}

void folder_cases(suite *s) {
    static const char *const fixtures[] = {"llama-scaled",    "mistral",     "qwen2",     "qwen3",
                                           "qwen3moe",        "gemma3",      "qwen3_5",   "qwen3-bf16",
                                           "llama-fp8-block", "llama-nvfp4", "qwen3-gptq"};
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        char name[128];
        bytes config = {0};
        yard y = {.s = s, .fixture = fixtures[i], .sampling = 1};
        copy_files(y.fixture);
        read_all(FOLDER "/config.json", &config);
        y.root = json_loadb((const char *)config.data, config.size, 0, NULL);
        snprintf(name, sizeof name, "folder %s, valid", y.fixture);
        run_valid(s, FOLDER, name);
        config_cases(&y);
        put_file(FOLDER "/config.json", config.data, config.size);
        if (access(FOLDER "/model.safetensors", R_OK) == 0) {
            read_all(FOLDER "/model.safetensors", &y.weights);
            weights_cases(&y, i == 0);
        } else {
            index_cases(&y);
        }
        if (strcmp(y.fixture, "qwen3") == 0) {
            tokenizer_cases(&y);
        }
        json_decref(y.root);
        free(config.data);
        free(y.weights.data);
    }
}
