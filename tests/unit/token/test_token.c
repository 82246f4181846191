/* Small vocabularies made by hand: ids derived from the merge rules beside them, what is refused and how,
 * memory that runs out, the streaming detokenizer. */
#define _GNU_SOURCE
#include "support.h"

#include "format/gguf_writer.h"

#include <jansson.h>
#include <unistd.h>

/* Byte-level. Ranks: b+c 0, a+b 1, a+bc 2, space+a 3, a+a 4. */
static const char byte_level[] =
    "{\"added_tokens\":["
    "{\"id\":10,\"content\":\"<s>\",\"special\":true},{\"id\":11,\"content\":\"<t>\",\"special\":false},"
    "{\"id\":12,\"content\":\"<w>\",\"single_word\":true,\"special\":false},"
    "{\"id\":13,\"content\":\"<r>\",\"lstrip\":true,\"rstrip\":true,\"special\":false}],"
    "\"normalizer\":{\"type\":\"NFC\"},"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\","
    "\"type_id\":0}},"
    "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]},"
    "\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"\xc4\xa0\":3,\"ab\":4,\"bc\":5,\"abc\":"
    "6,"
    "\"\xc4\xa0"
    "a\":7,\"aa\":8,\"\xc4\x8a\":9,\"<\":14,\"s\":15,\">\":16,\"\xc3\x83\":17,\"\xc2\xa9\":18},"
    "\"merges\":[\"b c\",\"a b\",[\"a\",\"bc\"],\"\xc4\xa0 a\",\"a a\"]}}";
static const char byte_level_config[] =
    "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"<t>\",\"pad_token\":null,"
    "\"chat_template\":[{\"name\":\"default\",\"template\":\"D\"},{\"name\":\"tool_use\",\"template\":\"T\"}]"
    "}";

/* SentencePiece style with ranks: _+a 0, a+b 1, _a+b 2 (_ is U+2581). */
static const char character_level[] =
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
    "\"\xe2\x96\x81\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
    "\"},\"content\":\"\xe2\x96\x81\"}]},\"pre_tokenizer\":null,"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
    "\"\xe2\x96\x81\"},"
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,\"vocab\":{"
    "\"<unk>\":0,"
    "\"\xe2\x96\x81\":1,\"a\":2,\"b\":3,\"\xe2\x96\x81"
    "a\":4,\"ab\":5,\"\xe2\x96\x81"
    "ab\":6,\"<0xC3>\":7,\"<0xA9>\":8},\"merges\":[\"\xe2\x96\x81 a\",\"a b\",\"\xe2\x96\x81"
    "a b\"]}}";

static sl_tokenizer *from_text(const char *json, const char *config) {
    sl_tokenizer *tokenizer;
    sl_error error = {0};
    if (sl_tokenizer_from_json_memory(sl_view_of(json), sl_view_of(config), "test", &tokenizer, &error)) {
        fail_msg("%s", error.message);
    }
    return tokenizer;
}

static void check_decode(const sl_tokenizer *tokenizer, unsigned flags, const int32_t *ids, size_t count,
                         const char *expected) {
    sl_buffer out = {0};
    assert_int_equal(sl_tokenizer_decode(tokenizer, ids, count, flags, &out, NULL), 0);
    assert_string_equal(out.data ? out.data : "", expected);
    sl_buffer_free(&out);
}
#define CHECK_DECODE(tokenizer, flags, expected, ...)                                                        \
    check_decode(tokenizer, flags, (const int32_t[]){__VA_ARGS__},                                           \
                 sizeof((const int32_t[]){__VA_ARGS__}) / 4, expected)

static void byte_level_merges_by_rank(void **state) {
    (void)state;
    sl_tokenizer *t = from_text(byte_level, byte_level_config);
    check_encode(t, sl_view_of(""), 0, NULL, 0);
    CHECK_ENCODE(t, "ab", 0, 4);
    CHECK_ENCODE(t, "abc", 0, 6);    /* b+c before a+b, then a+bc */
    CHECK_ENCODE(t, "aab", 0, 0, 4); /* a+b before a+a */
    CHECK_ENCODE(t, "aaa", 0, 8, 0); /* equal ranks: from the left */
    CHECK_ENCODE(t, "aaaaa", 0, 8, 8, 0);
    CHECK_ENCODE(t, "a a", 0, 0, 7);
    CHECK_ENCODE(t, "a abc", 0, 0, 3, 6); /* a+bc takes the a before the space can */
    CHECK_ENCODE(t, "a\nb", 0, 0, 9, 1);
    CHECK_ENCODE(t, "a  a", 0, 0, 3, 7); /* the pattern leaves the last space to the word */
    CHECK_ENCODE(t, "\xc3\xa9", 0, 17, 18);
    CHECK_ENCODE(t, "a\xc3", 0, 0, 17); /* not UTF-8 */
    CHECK_ENCODE(t,
                 "ab\xff\xa9"
                 "ab",
                 0, 4, 18, 4); /* no token for 0xff */
    sl_tokenizer_destroy(t);
}

static void added_tokens_are_found(void **state) {
    (void)state;
    sl_tokenizer *t = from_text(byte_level, byte_level_config);
    CHECK_ENCODE(t, "<s>a", 0, 14, 15, 16, 0);
    CHECK_ENCODE(t, "<s>a", SL_TOKENIZE_SPECIAL, 10, 0);
    CHECK_ENCODE(t, "<s>a", SL_TOKENIZE_BOS, 10, 14, 15, 16, 0);
    CHECK_ENCODE(t, "a<t>a", 0, 0, 11, 0);
    CHECK_ENCODE(t, "a <r>\n a", 0, 0, 13, 0);
    CHECK_ENCODE(t, "a<w>", 0, 0, 14, 16); /* not a word of its own; no token for w */
    CHECK_ENCODE(t, " <w> ", 0, 3, 12, 3);
    CHECK_ENCODE(t, "<<t>>", 0, 14, 11, 16);
    assert_int_equal(sl_tokenizer_size(t), 19);
    assert_int_equal(sl_tokenizer_bos(t), 10);
    assert_int_equal(sl_tokenizer_eos(t), 11);
    assert_int_equal(sl_tokenizer_pad(t), -1);
    assert_true(sl_tokenizer_adds_bos(t));
    assert_true(sl_tokenizer_is_eog(t, 11));
    assert_false(sl_tokenizer_is_eog(t, 10) || sl_tokenizer_is_eog(t, -1) || sl_tokenizer_is_eog(t, 1000));
    assert_int_equal(sl_tokenizer_find(t, sl_view_of("abc")), 6);
    assert_int_equal(sl_tokenizer_find(t, sl_view_of("abcd")), -1);
    assert_int_equal(sl_tokenizer_token_type(t, 10), SL_TOKEN_CONTROL);
    assert_int_equal(sl_tokenizer_token_type(t, 11), SL_TOKEN_USER_DEFINED);
    assert_true(sl_view_is(sl_tokenizer_token_text(t, 7), "\xc4\xa0"
                                                          "a"));
    assert_true(sl_view_is(sl_tokenizer_decode_piece(t, 7), " a"));
    assert_null(sl_tokenizer_decode_piece(t, 19).data);
    assert_true(sl_view_is(sl_tokenizer_chat_template(t, NULL), "D"));
    assert_true(sl_view_is(sl_tokenizer_chat_template(t, "tool_use"), "T"));
    assert_null(sl_tokenizer_chat_template(t, "none").data);
    CHECK_DECODE(t, 0, "<s> abc<t>", 10, 3, 6, 11);
    CHECK_DECODE(t, SL_DETOKENIZE_SKIP_SPECIAL, " abc<t>", 10, 3, 6, 11);
    sl_tokenizer_destroy(t);
}

static void character_level_falls_back_to_bytes(void **state) {
    (void)state;
    sl_tokenizer *t = from_text(character_level, NULL);
    CHECK_ENCODE(t, "ab", 0, 6);
    CHECK_ENCODE(t, "b ab", 0, 1, 3, 6);
    CHECK_ENCODE(t, " ab", 0, 1, 6);
    CHECK_ENCODE(t, "aab", 0, 4, 5);
    CHECK_ENCODE(t, "\xc3\xa9", 0, 1, 7, 8);
    CHECK_ENCODE(t, "zz", 0, 1, 0); /* no bytes for z; unknowns are fused */
    CHECK_ENCODE(t, "zaz", 0, 1, 0, 2, 0);
    CHECK_DECODE(t, 0, "ab ab", 6, 6);
    CHECK_DECODE(t, SL_DETOKENIZE_CONTINUE, " ab ab", 6, 6);
    CHECK_DECODE(t, 0, "\xc3\xa9", 1, 7, 8);
    CHECK_DECODE(t, 0,
                 "\xef\xbf\xbd"
                 "b",
                 7, 3);
    sl_tokenizer_destroy(t);
}

/* ---- GGUF
 * ----------------------------------------------------------------------------------------------------------
 */

/* What the small SentencePiece file says; a test changes one thing and looks how that is taken. */
typedef struct spm_file {
    const char *model, *pre, *extra_text; /* of token 266 */
    int scores, types, type_of_last, bos;
    float last_score;
    bool with_merges;
    const char *merge;
} spm_file;
static const spm_file good_spm = {"llama", NULL, "<x>", 267, 267, SL_TOKEN_USER_DEFINED, 1, 0, false, NULL};

/* 0 <unk>, 1 <s>, 2 </s>, 3 + byte, and these with their scores: */
static const struct {
    const char *text;
    float score;
} spm_tokens[] = {{"\xe2\x96\x81", -10},
                  {"a", -11},
                  {"b", -12},
                  {"\xe2\x96\x81"
                   "a",
                   -1},
                  {"ab", -2},
                  {"\xe2\x96\x81"
                   "ab",
                   -3},
                  {"bb", -4}};

static int load_spm(const spm_file *file, sl_tokenizer **tokenizer, sl_error *error) {
    enum { COUNT = 267 };
    static char bytes[256][8];
    sl_view texts[COUNT];
    float scores[COUNT + 1] = {0};
    int32_t types[COUNT + 1];
    char path[256];
    snprintf(path, sizeof path, "%s/test_token_%d.gguf", SLUICE_BINARY_DIR, (int)getpid());
    for (int i = 0; i < COUNT; i++) {
        types[i] = i == 0    ? SL_TOKEN_UNKNOWN
                   : i < 3   ? SL_TOKEN_CONTROL
                   : i < 259 ? SL_TOKEN_BYTE
                             : SL_TOKEN_NORMAL;
        if (i >= 3 && i < 259) {
            snprintf(bytes[i - 3], sizeof bytes[0], "<0x%02X>", i - 3);
            texts[i] = sl_view_of(bytes[i - 3]);
        } else if (i >= 259 && i < 266) {
            texts[i] = sl_view_of(spm_tokens[i - 259].text);
            scores[i] = spm_tokens[i - 259].score;
        } else {
            texts[i] = sl_view_of(i == 0 ? "<unk>" : i == 1 ? "<s>" : i == 2 ? "</s>" : file->extra_text);
        }
    }
    types[266] = file->type_of_last;
    types[267] = SL_TOKEN_NORMAL;
    scores[266] = file->last_score;
    sl_gguf_writer *writer;
    assert_int_equal(sl_gguf_writer_create(path, &writer, NULL), 0);
    assert_int_equal(sl_gguf_writer_string(writer, "tokenizer.ggml.model", sl_view_of(file->model), NULL), 0);
    if (file->pre) {
        sl_gguf_writer_string(writer, "tokenizer.ggml.pre", sl_view_of(file->pre), NULL);
    }
    sl_gguf_items items = {SL_GGUF_STRING, texts, COUNT};
    assert_int_equal(sl_gguf_writer_array(writer, "tokenizer.ggml.tokens", &items, NULL), 0);
    items = (sl_gguf_items){SL_GGUF_F32, scores, (uint64_t)file->scores};
    if (file->scores) {
        assert_int_equal(sl_gguf_writer_array(writer, "tokenizer.ggml.scores", &items, NULL), 0);
    }
    items = (sl_gguf_items){SL_GGUF_I32, types, (uint64_t)file->types};
    assert_int_equal(sl_gguf_writer_array(writer, "tokenizer.ggml.token_type", &items, NULL), 0);
    sl_view merge = sl_view_of(file->merge);
    items = (sl_gguf_items){SL_GGUF_STRING, &merge, 1};
    if (file->merge) {
        assert_int_equal(sl_gguf_writer_array(writer, "tokenizer.ggml.merges", &items, NULL), 0);
    }
    sl_gguf_writer_unsigned(writer, "tokenizer.ggml.bos_token_id", SL_GGUF_U32, (uint64_t)file->bos, NULL);
    sl_gguf_writer_string(writer, "tokenizer.chat_template", sl_view_of("X"), NULL);
    sl_gguf_writer_string(writer, "tokenizer.chat_template.rag", sl_view_of("Y"), NULL);
    assert_int_equal(sl_gguf_writer_begin(writer, NULL, NULL), 0);
    assert_int_equal(sl_gguf_writer_finish(writer, NULL), 0);
    sl_gguf_writer_free(writer);
    sl_gguf *gguf;
    assert_int_equal(sl_gguf_open(path, &gguf, NULL), 0);
    unlink(path);
    int code = sl_tokenizer_from_gguf(gguf, tokenizer, error);
    sl_gguf_close(gguf);
    return code;
}

static void score_vocabularies_merge_by_score(void **state) {
    (void)state;
    sl_tokenizer *t;
    sl_error error = {0};
    if (load_spm(&good_spm, &t, &error)) {
        fail_msg("%s", error.message);
    }
    CHECK_ENCODE(t, "ab", 0, 264);       /* _+a (-1), then _a+b (-3) */
    CHECK_ENCODE(t, "abb", 0, 264, 261); /* _+a (-1), then _a+b (-3) before b+b (-4) */
    CHECK_ENCODE(t, "bab", 0, 259, 261, 263);
    CHECK_ENCODE(t, "bb", 0, 259, 265);
    CHECK_ENCODE(t, "bbb", 0, 259, 265, 261); /* equal scores: from the left */
    CHECK_ENCODE(t, "ab", SL_TOKENIZE_BOS, 1, 264);
    CHECK_ENCODE(t, "\xc3\xa9", 0, 259, 3 + 0xc3, 3 + 0xa9);
    CHECK_ENCODE(t, "\xff", 0, 259, 3 + 0xff);
    CHECK_ENCODE(t, "a<x>b", 0, 262, 266, 259, 261);
    CHECK_ENCODE(t, "</s>", 0, 259, 3 + '<', 3 + '/', 3 + 's', 3 + '>');
    CHECK_ENCODE(t, "</s>", SL_TOKENIZE_SPECIAL, 2);
    CHECK_DECODE(t, 0, "ab", 264);
    CHECK_DECODE(t, SL_DETOKENIZE_CONTINUE, " ab", 264);
    CHECK_DECODE(t, SL_DETOKENIZE_SKIP_SPECIAL, "ab", 1, 264, 2);
    CHECK_DECODE(t, 0, "<s> ab", 1, 264);
    assert_int_equal(sl_tokenizer_eos(t), 2);
    assert_int_equal(sl_tokenizer_unk(t), 0);
    assert_true(sl_view_is(sl_tokenizer_chat_template(t, NULL), "X"));
    assert_true(sl_view_is(sl_tokenizer_chat_template(t, "rag"), "Y"));
    sl_tokenizer_destroy(t);
}

static void expect_spm(spm_file file, int code, const char *words) {
    sl_tokenizer *t;
    sl_error error = {0};
    uint64_t live = sl_alloc_live_bytes();
    assert_int_equal(load_spm(&file, &t, &error), code);
    assert_null(t);
    assert_int_equal(sl_alloc_live_bytes(), live);
    if (!strstr(error.message, words)) {
        fail_msg("'%s' does not say '%s'", error.message, words);
    }
}

static void bad_gguf_is_refused(void **state) {
    (void)state;
    spm_file f;
#define WITH(change) (f = good_spm, change, f)
    expect_spm(WITH(f.model = "rwkv"), SL_ERR_UNSUPPORTED, "'rwkv' is not supported");
    expect_spm(WITH((f.model = "gpt2", f.pre = "blume")), SL_ERR_UNSUPPORTED, "'blume' is not supported");
    expect_spm(WITH(f.scores = 266), SL_ERR_FORMAT, "tokenizer.ggml.scores has 266 elements");
    expect_spm(WITH(f.scores = 0), SL_ERR_FORMAT, "tokenizer.ggml.scores is missing");
    expect_spm(WITH(f.types = 268), SL_ERR_FORMAT, "tokenizer.ggml.token_type has 268 elements");
    expect_spm(WITH(f.type_of_last = 7), SL_ERR_FORMAT, "token_type of token 266 is 7");
    expect_spm(WITH(f.type_of_last = SL_TOKEN_BYTE), SL_ERR_FORMAT, "not of the form <0x0A>");
    expect_spm(WITH(f.last_score = (float)(1e300 * 1e300)), SL_ERR_FORMAT, "is not finite");
    expect_spm(WITH(f.bos = 267), SL_ERR_FORMAT, "bos_token_id is 267");
    expect_spm(WITH(f.extra_text = "bb"), SL_ERR_FORMAT, "tokens 265 and 266 have the same text 'bb'");
    expect_spm(WITH((f.model = "gpt2", f.pre = "gpt-2")), SL_ERR_NOT_FOUND, "tokenizer.ggml.merges");
    expect_spm(WITH((f.model = "gpt2", f.pre = "gpt-2", f.merge = "ab")), SL_ERR_FORMAT,
               "is not two texts and a space");
    expect_spm(WITH((f.model = "gpt2", f.pre = "gpt-2", f.merge = "a q")), SL_ERR_FORMAT, "its right part");
    expect_spm(WITH((f.model = "gpt2", f.pre = "gpt-2", f.merge = "b a")), SL_ERR_FORMAT, "the two joined");
}

/* Every kind of named pre-tokenizer loads. Those of Llama 3 and tekken take a piece that is a token as it is
 * ("bb", for which there is no merge), and put bos first. */
static void named_pre_tokenizers_load(void **state) {
    (void)state;
    static const char *const names[] = {"default", "gpt-2", "falcon", "starcoder", "llama-bpe",
                                        "dbrx",    "qwen2", "qwen35", "gpt-4o",    "tekken"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        spm_file file = good_spm;
        sl_tokenizer *t;
        sl_error error = {0};
        file.model = "gpt2";
        file.pre = names[i];
        file.merge = "a b";
        if (load_spm(&file, &t, &error)) {
            fail_msg("%s: %s", names[i], error.message);
        }
        CHECK_ENCODE(t, "ab ab\nab", 0, 263, 263, 263); /* no token for a space or a newline */
        bool whole = strcmp(names[i], "llama-bpe") == 0 || strcmp(names[i], "tekken") == 0;
        check_encode(t, sl_view_of("bb"), 0, whole ? (const int32_t[]){265} : (const int32_t[]){261, 261},
                     whole ? 1 : 2);
        assert_int_equal(sl_tokenizer_adds_bos(t), whole);
        sl_tokenizer_destroy(t);
    }
}

/* ---- what tokenizer.json must not say
 * ------------------------------------------------------------------------------ */

/* byte_level with one text in it replaced by another. */
static void expect_json(const char *from, const char *to, int code, const char *words) {
    char text[4096];
    const char *at = strstr(byte_level, from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - byte_level), byte_level, to, at + strlen(from));
    sl_tokenizer *t;
    sl_error error = {0};
    uint64_t live = sl_alloc_live_bytes();
    int found = sl_tokenizer_from_json_memory(sl_view_of(text), (sl_view){0}, "x/tokenizer.json", &t, &error);
    if (found != code || (code && !strstr(error.message, words))) {
        fail_msg("'%s' -> '%s': code %d, '%s'", from, to, found, error.message);
    }
    if (code) {
        assert_null(t);
        assert_non_null(strstr(error.message, "x/tokenizer.json: "));
    }
    sl_tokenizer_destroy(t);
    assert_int_equal(sl_alloc_live_bytes(), live);
}

static void bad_json_is_refused(void **state) {
    (void)state;
    expect_json("\"a\":0", "\"a\":0", 0, "");
    expect_json("{\"added", "[\"added", SL_ERR_FORMAT, "tokenizer.json");
    expect_json("\"BPE\"", "\"WordLevel\"", SL_ERR_UNSUPPORTED, "'WordLevel' is not supported");
    expect_json("\"BPE\"", "\"Unigram\"", SL_ERR_FORMAT, "model.vocab: wanted an array");
    expect_json("\"BPE\"", "3", SL_ERR_FORMAT, "model.type: wanted a string, found an integer");
    expect_json("\"BPE\"", "\"BPE\",\"dropout\":0.1", SL_ERR_UNSUPPORTED, "dropout");
    expect_json("\"BPE\"", "\"BPE\",\"end_of_word_suffix\":\"</w>\"", SL_ERR_UNSUPPORTED,
                "end_of_word_suffix");
    expect_json("\"BPE\"", "\"BPE\",\"byte_fallback\":1", SL_ERR_FORMAT,
                "byte_fallback: wanted true or false");
    expect_json("\"BPE\"", "\"BPE\",\"unk_token\":\"<unk>\"", SL_ERR_FORMAT,
                "'<unk>' is not in the vocabulary");
    expect_json("\"a\":0", "\"a\":\"0\"", SL_ERR_FORMAT, "wanted an integer, found a string");
    expect_json("\"a\":0", "\"a\":-1", SL_ERR_FORMAT, "id -1 is outside");
    expect_json("\"a\":0", "\"a\":4000000000", SL_ERR_FORMAT, "id 4000000000 is outside");
    expect_json("\"a\":0", "\"a\":1", SL_ERR_FORMAT, "token id 1 is given twice");
    expect_json("\"a\":0", "\"a\":10", SL_ERR_FORMAT, "token id 10 is given twice");
    expect_json("\"a\":0", "\"a\":0,\"<s>\":30", SL_ERR_FORMAT, "have the same text '<s>'");
    expect_json("\"a\":0", "\"a\":0,\"a\":40", SL_ERR_FORMAT, "duplicate");
    expect_json("\"b c\"", "\"b d\"", SL_ERR_FORMAT,
                "merge 0 ('b' 'd'): the vocabulary has no token for its right part");
    expect_json("\"b c\"", "\"c b\"", SL_ERR_FORMAT, "the two joined");
    expect_json("\"b c\"", "\"bc\"", SL_ERR_FORMAT, "merge 0 is neither");
    expect_json("\"b c\"", "[\"b\"]", SL_ERR_FORMAT, "merge 0 is neither");
    expect_json("\"b c\"", "[\"b\",1]", SL_ERR_FORMAT, "merge 0 is neither");
    expect_json("\"merges\"", "\"mergers\"", SL_ERR_FORMAT, "model.merges: wanted an array, found nothing");
    expect_json("\"NFC\"", "\"NFKD\"", SL_ERR_UNSUPPORTED, "normalizer: 'NFKD'");
    expect_json("\"ByteLevel\",\"add", "\"UnicodeScripts\",\"add", SL_ERR_UNSUPPORTED,
                "pre_tokenizer: 'Unicode");
    expect_json("\"ByteLevel\",\"add",
                "\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":\"Isolated\",\"add",
                SL_ERR_UNSUPPORTED, "an intersection of classes");
    expect_json("\"ByteLevel\",\"add",
                "\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":\"Isolated\",\"add",
                SL_ERR_UNSUPPORTED, "does not compile");
    expect_json("\"ByteLevel\",\"add",
                "\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Contiguous\",\"add",
                SL_ERR_UNSUPPORTED, "'Contiguous'");
    expect_json("\"TemplateProcessing\"", "\"OtherProcessing\"", SL_ERR_UNSUPPORTED,
                "post_processor: 'OtherProcessing'");
    expect_json("\"id\":\"<s>\"", "\"id\":\"<q>\"", SL_ERR_FORMAT, "'<q>' is not in the vocabulary");
    expect_json("\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":{\"type\":\"CTC\"}",
                SL_ERR_UNSUPPORTED, "decoder: 'CTC'");
    expect_json("\"special\":true", "\"special\":1", SL_ERR_FORMAT, "special: wanted true or false");
}

/* Transformers writes "no limit" as an integer of 31 digits. */
static void the_longest_integer_is_read(void **state) {
    (void)state;
    sl_tokenizer *t =
        from_text(byte_level, "{\"model_max_length\":1000000000000000019884624838656,\"eos_token\":\"<t>\"}");
    assert_int_equal(sl_tokenizer_eos(t), 11);
    sl_tokenizer_destroy(t);
}

static void an_exponential_pattern_ends(void **state) {
    (void)state;
    static const char json[] =
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":"
        "{\"Regex\":\"(a+)+$\"},\"behavior\":\"Isolated\"}]},"
        "\"model\":{\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}";
    sl_tokenizer *t = from_text(json, NULL);
    sl_tokens out = {0};
    sl_error error = {0};
    sl_tokens_append(&out, 7);
    assert_int_equal(sl_tokenizer_encode(t, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", 40, 0, &out, &error),
                     SL_ERR_LIMIT);
    assert_non_null(strstr(error.message, "match limit"));
    assert_int_equal(out.count, 1);
    sl_tokens_free(&out);
    sl_tokenizer_destroy(t);
}

/* ---- memory
 * -------------------------------------------------------------------------------------------------------- */

static void every_failed_allocation_is_survived(void **state) {
    (void)state;
    const char *const texts[] = {byte_level, character_level};
    const char *text =
        "abc \xcc\x81\xcc\xa3"
        "e\xcc\xa3\xcc\x81 <t><s> b\xff aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    for (int v = 0; v < 2; v++) {
        uint64_t live = sl_alloc_live_bytes(), before = sl_alloc_count(), failures = 0;
        const char *config = v == 0 ? byte_level_config : NULL;
        sl_tokenizer *t = from_text(texts[v], config);
        uint64_t calls = sl_alloc_count() - before;
        assert_true(calls > 50);
        for (uint64_t n = 1; n <= calls; n++) {
            sl_tokenizer *other;
            sl_error error = {0};
            uint64_t held = sl_alloc_live_bytes();
            sl_alloc_fail_at(n);
            int code = sl_tokenizer_from_json_memory(sl_view_of(texts[v]), sl_view_of(config), "test", &other,
                                                     &error);
            sl_alloc_fail_at(0);
            failures += code != 0;
            assert_true(code ? !other && error.message[0] : other != NULL);
            sl_tokenizer_destroy(other);
            assert_int_equal(sl_alloc_live_bytes(), held);
        }
        /* All but those of the JIT, which can be done without. */
        assert_true(failures * 10 > calls * 9);
        sl_tokens out = {0};
        before = sl_alloc_count();
        assert_int_equal(sl_tokenizer_encode(t, text, strlen(text), 3, &out, NULL), 0);
        calls = sl_alloc_count() - before;
        sl_tokens_free(&out);
        for (uint64_t n = 1; n <= calls; n++) {
            sl_error error = {0};
            sl_alloc_fail_at(n);
            int code = sl_tokenizer_encode(t, text, strlen(text), 3, &out, &error);
            sl_alloc_fail_at(0);
            assert_int_equal(code, SL_ERR_NOMEM);
            assert_int_equal(out.count, 0);
            sl_tokens_free(&out);
        }
        sl_tokenizer_destroy(t);
        assert_int_equal(sl_alloc_live_bytes(), live);
    }
}

/* ---- streaming
 * ----------------------------------------------------------------------------------------------------- */

static void the_stream_holds_back_parts(void **state) {
    (void)state;
    sl_tokenizer *t;
    assert_int_equal(load_spm(&good_spm, &t, NULL), 0);
    sl_detokenizer d;
    sl_buffer out = {0};
    sl_detokenizer_begin(&d, t, 0);
    /* U+1F600, then two bytes of a three-byte character and a letter, then one byte that begins nothing, then
     * a start. */
    static const unsigned char bytes[] = {0xf0, 0x9f, 0x98, 0x80, 0xe2, 0x82, 'x', 0x80, 0xe0, 0x80, 0xc3};
    static const size_t lengths[] = {0, 0, 0, 4, 4, 4, 8, 11, 11, 17, 17};
    for (size_t i = 0; i < sizeof bytes; i++) {
        assert_int_equal(sl_detokenizer_feed(&d, 3 + bytes[i], &out, NULL), 0);
        assert_int_equal(out.length, lengths[i]);
    }
    assert_int_equal(sl_detokenizer_flush(&d, &out, NULL), 0);
    assert_string_equal(out.data,
                        "\xf0\x9f\x98\x80\xef\xbf\xbdx\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    sl_error error = {0};
    assert_int_equal(sl_detokenizer_feed(&d, 267, &out, &error), SL_ERR_INVALID);
    assert_int_equal(sl_detokenizer_feed(&d, -1, &out, &error), SL_ERR_INVALID);
    sl_buffer_free(&out);
    sl_tokenizer_destroy(t);
}

int main(void) {
    json_set_alloc_funcs(sl_alloc, sl_free); /* so that jansson's allocations fail in their turn, too */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_level_merges_by_rank),
        cmocka_unit_test(added_tokens_are_found),
        cmocka_unit_test(character_level_falls_back_to_bytes),
        cmocka_unit_test(score_vocabularies_merge_by_score),
        cmocka_unit_test(named_pre_tokenizers_load),
        cmocka_unit_test(bad_gguf_is_refused),
        cmocka_unit_test(bad_json_is_refused),
        cmocka_unit_test(the_longest_integer_is_read),
        cmocka_unit_test(an_exponential_pattern_ends),
        cmocka_unit_test(every_failed_allocation_is_survived),
        cmocka_unit_test(the_stream_holds_back_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
