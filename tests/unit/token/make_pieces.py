#!/usr/bin/env python3
"""Writes pieces.json: what pre-tokenizers split texts into, by Python's `regex` module (python3-regex), so that the
expectations come from another engine. Patterns as llama.cpp's src/llama-vocab.cpp has them (commit 00ad355e), or
the model's own tokenizer.json where that file names one beside its rewrite. Run: make_pieces.py > pieces.json"""
import json
import regex

C = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3 = C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def cased(tail, digits, up=UP, low=LOW, rest=TAIL):
    return (rf"[^\r\n\p{{L}}\p{{N}}]?{up}*{low}+{tail}|[^\r\n\p{{L}}\p{{N}}]?{up}+{low}*{tail}|{digits}|{rest}")


GPT4O = cased(C + "?", r"\p{N}{1,3}")
SYMBOLS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
DEEPSEEK3 = SYMBOLS + r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KANA = "[一-龥\u3040-ゟ゠-ヿ]+"
DEEPSEEK_CJK = "[一-龥\u0800-一가-\ud7ff]+"
LETTERS = ("A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅ"
           "Ὀ-Ὅὐ-ὗὙὛὝ\u1f5f-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌ\u1fd0-\u1fd3\u1fd6-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭ"
           "ℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃")
ASIAN = "[一-\u9fff㐀-\u4dbf豈-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+"
NO_HAN = r"(?:(?!\p{Script=Han})%s)"
SENTENCE = r" ?[^(\s|.,!?…。，、।۔،)]+"

PATTERNS = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "starcoder": [r"\p{N}", GPT2],
    "llama-bpe": [LLAMA3],
    "dbrx": [LLAMA3],
    "minicpm5": [r"\p{N}{1,3}", LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")],
    "jais-2": [LLAMA3.replace(r"\s+(?!\S)|\s+", "|".join(r"\s{%d}(?!\S)" % n for n in (512, 256, 128, 64, 32, 16, 8, 4))
                              + r"|\s{1,2}(?!\S)|\s{1}")],
    "qwen2": [QWEN2],
    "qwen35": [C + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "ufakzeka": [QWEN2.replace(C + "|", "")],
    "laguna": [r"[^\n]+|[\n]+", QWEN2],
    "gpt-4o": [GPT4O],
    "granite-embed-multi-97m": [GPT4O],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
    "tekken": [cased("", r"\p{N}")],
    "youtu": ["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，\u3001-\u303f\ufe30-\ufe4f]+|[ㄅ-ㄯ]+|" + KANA, cased(C + "?", r"\p{N}")],
    "kimi-k2": [r"\p{Script=Han}+|" + cased(C + "?", r"\p{N}{1,3}", NO_HAN % UP, NO_HAN % LOW,
                                          TAIL.replace("/", ""))],
    "deepseek-llm": ["[\r\n]", rf"\s?[{LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+\Z", DEEPSEEK_CJK,
                     r"\p{N}+"],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", KANA, DEEPSEEK3],
    "spark2_5": [r"\p{N}{1,3}", KANA, SYMBOLS + r" ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"],
    "afmoe": [r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", ASIAN, DEEPSEEK3],
    "superbpe": [r"\p{N}+", r"(?=(?:\d{3})+(?!\d))"],
    "bailingmoe": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|"
                   r"\s+(?!\S)|\s+"],
    "seed-coder": [C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "exaone-moe": [C + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|"
                   r"\s*[\r\n]|\s+(?!\S)|\s+"],
    "bloom": [SENTENCE],
    "viking": [SENTENCE, r"\p{N}"],
    "chameleon": ["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\t\n]|    |  )", r"\p{N}",
                  r"[\p{P}!-/:-@\[-`{-~]", GPT2],
    "gemma4": [r"[^\n]+|[\n]+"],
    "whitespace": [r"\S+"],
}
# Names that stand for the same pattern.
SAME = {
    "gpt-2": "phi-2 mpt olmo jais exaone4 mellum trillion granite-docling modern-bert jina-es jina-de gigachat "
             "jina-v2-es jina-v2-de a.x-4.0 jina-v1-en jina-v2-code roberta-bpe",
    "starcoder": "refact command-r smollm codeshell exaone minerva-7b mellum2",
    "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 midm-2.0 jina-v5-nano",
    "dbrx": "smaug-bpe glm4 chatglm-bpe",
    "qwen2": "deepseek-r1-qwen megrez stablelm2 hunyuan grok-2 kormo f2llmv2 solar-open",
    "gpt-4o": "llama4 kanana2 talkie minimax-m2",
    "tiny_aya": "cohere2moe",
    "deepseek-v3": "hunyuan-dense joyai-llm hy_v4",
    "bailingmoe": "bailingmoe2 llada-moe",
    "bloom": "poro-chat gpt3-finnish",
    "gemma4": "granite-embed-multi-311m sarvam-moe",
}
TEXTS = [
    "Hello, World! I'm sure they'LL say it's 12:30, don't they'd've?",
    "one two  three   four\tfive \n six\r\n\r\n  seven \n\n\n eight    ",
    "1 12 123 1234 12345 123456 1234567 12345678901234567890 3.14159 1,000,000 x1234y 1234_ 12345z ½ ⅷ٣٤٥٦",
    "camelCase HTTPServer aBCdEF ÀÉÎõü ǅungla Straße ΑΒΓαβγ Ωmega ΐ Привет МИР ԱԲ ႠႡ ᲐᲑ ⰀⰁ 𐐀𐐨 ﬁﬂ Ａｂ Kelvin",
    "中文字符，和标点。「引号」……漢字カタカナひらがな、한국어 문장입니다！ㄅㄆㄇ ㄱㄴ 〆々〇 㐀㐁 豈更 丽",
    "हिन्दी भाषा। বাংলা ভাষা ไทยภาษา ລາວ ខ្មែរ မြန်မာ العربية، اردو۔ עברית שָׁלוֹם é ñ̃ a\u0301\u0302b",
    "if (x[i] <= y->z && !done) { return f(a, b) / 2; } // #tag @user $5 100% ~`^|\\_=+*",
    "https://example.com/a/b?c=d&e=f#g mail@host.org C:\\path\\file <sentinel:12> IMGIMGABCDZ IMGIMGAZ 'quoted' ''s",
    "🚀 😀😃 👩‍👩‍👧 ✅ ™ © € £ ¥ §¶ ° ‘a’ “b” …—–",
    "   leading, trailing   ",
    "a\n\nb\n \nc \t\n\td\u00a0e\u3000f\u2003g\u0085h",
    " " * 21 + "x" + " " * 9 + "\n" + " " * 6 + "y" + "  ",
    "'S 'T 'RE I'VE you'Ll 'x '1 l'été qu'il",
    "a b c d ab cd e1 f g\u0301 h",
    "x/// y//\n//z ?!/\n\n",
]


def split(pieces, pattern):
    out = []
    for piece in pieces:
        at = 0
        for match in regex.finditer(pattern, piece):
            if match.start() > at:
                out.append(piece[at:match.start()])
            if match.end() > match.start():
                out.append(match.group())
            at = match.end()
        if at < len(piece):
            out.append(piece[at:])
    return out


def main():
    pieces = {}
    for name, patterns in PATTERNS.items():
        rows = []
        for text in TEXTS:
            parts = [text]
            for pattern in patterns:
                parts = split(parts, pattern)
            assert "".join(parts) == text
            rows.append(" ".join(str(len(part.encode())) for part in parts))
        for same in [name] + SAME.get(name, "").split():
            pieces[same] = name if same != name else rows
    print(json.dumps({"texts": TEXTS, "pieces": pieces}, indent=1, ensure_ascii=True))


main()
