/* Pre-tokenizers by the names of tokenizer.ggml.pre. Which names there are, what they imply and what they
 * split by are facts of llama.cpp's src/llama-vocab.cpp (commit 00ad355e, August 2026) and, where that file
 * has to write a pattern differently, of the models' own tokenizer.json. */
#include "token/internal.h"

#define PUNCTUATION(extra) "[\\p{P}$+<=>^~|" extra "]+"
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LAST_SPACES "\\s+(?!\\S)|\\s+"
#define TAIL "\\s*[\\r\\n]+|" LAST_SPACES
#define OTHERS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL
#define WORDS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
/* A word begins at a capital that follows small letters. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_OF(upper, lower, tail)                                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?" upper "*" lower "+" tail "|[^\\r\\n\\p{L}\\p{N}]?" upper "+" lower "*" tail "|"
#define CASED(tail) CASED_OF(UPPER, LOWER, tail)
#define CASED_OTHERS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL
#define LLAMA3 CONTRACTIONS "|" WORDS "\\p{N}{1,3}|" OTHERS
#define QWEN2 CONTRACTIONS "|" WORDS "\\p{N}|" OTHERS
#define GPT4O CASED(CONTRACTIONS "?") "\\p{N}{1,3}|" CASED_OTHERS

/* DeepSeek. Letters with case, of Unicode 11 without some; white space first; CJK, half of all planes
 * between. */
#define CASED_LETTERS                                                                                        \
    "\\x{41}-\\x{5a}\\x{61}-\\x{7a}\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"   \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}"   \
    "\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}"          \
    "\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}"          \
    "\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"        \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}"         \
    "\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"         \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}"        \
    "\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}"          \
    "\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}"                   \
    "\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}"                   \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"         \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}"        \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"                       \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"                   \
    "\\x{1e900}-\\x{1e943}"
#define DEEPSEEK_PUNCTUATION                                                                                 \
    "!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}"
#define DEEPSEEK_CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define HAN_AND_KANA "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
#define SYMBOL_WORDS                                                                                         \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"

/* Kimi: Chinese characters are pieces of their own. */
#define HAN "\\p{sc:Han}"
#define WITHOUT_HAN(class) "(?:(?!" HAN ")" class ")"

/* Arcee: scripts without spaces between words. */
#define ASIAN                                                                                                \
    "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{f900}-\\x{faff}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}"       \
    "\\x{ff65}-\\x{ff9f}\\x{2f00}-\\x{2fdf}\\x{e40}-\\x{e7f}\\x{e80}-\\x{eff}\\x{1780}-\\x{17ff}"            \
    "\\x{1000}-\\x{109f}\\x{aa60}-\\x{aa7f}\\x{a9e0}-\\x{a9ff}\\x{ac00}-\\x{d7af}\\x{1100}-\\x{11ff}]+"

#define YOUTU_SCRIPTS                                                                                        \
    "[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}\\x{2019}"      \
    "\\x{2014}\\x{ff1a}\\x{ff1b}\\x{ff0c}\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+|[\\x{3105}-\\x{312f}]+"    \
    "|" HAN_AND_KANA

#define SENTENCE_END " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"

#define SPACES(count) "\\s{" #count "}(?!\\S)|"

enum { SPLITS = 6 };

typedef struct pre_tokenizer {
    const char *names; /* separated by spaces */
    unsigned flags;    /* what the name implies unless the file says otherwise */
    const char *splits[SPLITS + 1];
} pre_tokenizer;

static const pre_tokenizer pre_tokenizers[] = {
    {"default", 0, {PUNCTUATION(""), SL_PATTERN_GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {"gpt-2 phi-2 mpt olmo jais exaone4 mellum trillion granite-docling modern-bert jina-es jina-de gigachat "
     "jina-v2-es jina-v2-de a.x-4.0 jina-v1-en jina-v2-code roberta-bpe",
     0,
     {SL_PATTERN_GPT2}},
    {"falcon", 0, {PUNCTUATION("`"), SL_PATTERN_GPT2, "[0-9][0-9][0-9]"}},
    {"starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", 0, {"\\p{N}", SL_PATTERN_GPT2}},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 midm-2.0 jina-v5-nano",
     SL_PRE_WHOLE_PIECE | SL_PRE_BOS,
     {LLAMA3}},
    {"dbrx smaug-bpe glm4 chatglm-bpe", 0, {LLAMA3}},
    {"minicpm5", SL_PRE_WHOLE_PIECE, {"\\p{N}{1,3}", CONTRACTIONS "|" WORDS "\\p{N}+|" OTHERS}},
    {"jais-2",
     0,
     {CONTRACTIONS "|" WORDS "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" SPACES(512) SPACES(
         256) SPACES(128) SPACES(64) SPACES(32) SPACES(16) SPACES(8) SPACES(4) "\\s{1,2}(?!\\S)|\\s{1}"}},
    {"qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan grok-2 kormo f2llmv2 solar-open", 0, {QWEN2}},
    {"qwen35",
     0,
     {CONTRACTIONS
      "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" TAIL}},
    {"ufakzeka", 0, {WORDS "\\p{N}|" OTHERS}},
    {"laguna", 0, {"[^\\n]+|[\\n]+", QWEN2}},
    {"gpt-4o llama4 kanana2 talkie minimax-m2", 0, {GPT4O}},
    {"granite-embed-multi-97m", SL_PRE_WHOLE_PIECE, {GPT4O}},
    {"tiny_aya cohere2moe", 0, {SL_PATTERN_TRIPLES_OF_NUMBERS, GPT4O}},
    {"tekken", SL_PRE_WHOLE_PIECE | SL_PRE_BOS, {CASED("") "\\p{N}|" CASED_OTHERS}},
    {"youtu", SL_PRE_WHOLE_PIECE, {YOUTU_SCRIPTS, CASED(CONTRACTIONS "?") "\\p{N}|" CASED_OTHERS}},
    {"kimi-k2",
     0,
     {"[" HAN
      "]+|" CASED_OF(WITHOUT_HAN(UPPER), WITHOUT_HAN(LOWER), CONTRACTIONS "?") "\\p{N}{1,3}|" OTHERS}},
    {"deepseek-llm",
     0,
     {"[\\r\\n]", "\\s?[" CASED_LETTERS "]+", "\\s?[" DEEPSEEK_PUNCTUATION "]+", "\\s+$", DEEPSEEK_CJK,
      "\\p{N}+"}},
    {"deepseek-coder", 0, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"}},
    {"deepseek-v3 hunyuan-dense joyai-llm hy_v4",
     0,
     {"\\p{N}{1,3}", HAN_AND_KANA, SYMBOL_WORDS " ?[\\p{P}\\p{S}]+[\\r\\n]*|" TAIL}},
    {"spark2_5",
     0,
     {"\\p{N}{1,3}", HAN_AND_KANA, SYMBOL_WORDS " ?[\\p{P}\\p{S}]+|[\\r\\n]|" LAST_SPACES, "\\p{N}"}},
    {"afmoe", 0, {SL_PATTERN_TRIPLES, ASIAN, SYMBOL_WORDS " ?[\\p{P}\\p{S}]+[\\r\\n]*|" TAIL}},
    {"superbpe", 0, {"\\p{N}+", SL_PATTERN_TRIPLES_OF_DIGITS}},
    {"bailingmoe bailingmoe2 llada-moe",
     0,
     {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| "
      "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|" LAST_SPACES}},
    {"seed-coder", 0, {CONTRACTIONS "|" WORDS "\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" TAIL}},
    {"exaone-moe",
     0,
     {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| "
                   "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|" LAST_SPACES}},
    {"bloom poro-chat gpt3-finnish", 0, {SENTENCE_END}},
    {"viking", 0, {SENTENCE_END, "\\p{N}"}},
    {"chameleon",
     SL_PRE_BOS,
     {"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ", "\\p{N}", "[\\p{P}!-/:-@\\[-`{-~]",
      SL_PATTERN_GPT2}},
    {"gemma4", SL_PRE_BOS | SL_PRE_ESCAPED | SL_PRE_WHOLE_NEWLINES, {"[^\\n]+|[\\n]+"}},
    {"granite-embed-multi-311m", SL_PRE_BOS | SL_PRE_ESCAPED | SL_PRE_WHOLE_NEWLINES, {"[^\\n]+|[\\n]+"}},
    {"sarvam-moe", SL_PRE_ESCAPED, {"[^\\n]+|[\\n]+"}},
    {"whitespace", SL_PRE_RAW, {"\\S+"}},
};

static bool names_contain(const char *names, sl_view name) {
    while (*names) {
        size_t length = strcspn(names, " ");
        if (sl_view_equal((sl_view){names, length}, name)) {
            return true;
        }
        names += length + (names[length] == ' ');
    }
    return false;
}

int sl_pre_tokenizer_set(sl_tokenizer *tokenizer, sl_view name, unsigned *flags, sl_error *error) {
    for (size_t i = 0; i < sizeof pre_tokenizers / sizeof *pre_tokenizers; i++) {
        const pre_tokenizer *row = &pre_tokenizers[i];
        if (!names_contain(row->names, name)) {
            continue;
        }
        *flags = row->flags;
        for (size_t j = 0; row->splits[j]; j++) {
            int code = sl_split_add(tokenizer, sl_view_of(row->splits[j]), SL_SPLIT_ISOLATED, error);
            if (code) {
                return code;
            }
        }
        return 0;
    }
    return sl_fail(error, SL_ERR_UNSUPPORTED, "tokenizer.ggml.pre: pre-tokenizer '%.*s' is not supported",
                   (int)(name.length < 100 ? name.length : 100), name.data);
}
