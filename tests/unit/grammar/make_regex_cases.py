#!/usr/bin/env python3
"""Writes regex_cases.json: patterns, texts, and what Python's re says of them.

    python3 tests/unit/grammar/make_regex_cases.py > tests/unit/grammar/regex_cases.json

Each case is [pattern, [[text, whole, anywhere], ...]]: `whole` is fullmatch, `anywhere` search. Patterns are those
that Python and ECMAScript read alike: re.ASCII makes \\d, \\w and \\s so, and $ is written \\Z for Python, whose $
also matches before a last line break.
"""
import json
import random
import re
import signal

PATTERNS = [
    "", "a", "abc", "a|b", "a|", "|a", "(a|b)c", "(?:ab)+", "a*", "a+", "a?", "a*?b", "a+?", "a??b",
    "a{3}", "a{2,}", "a{2,4}", "a{0}", "a{0,0}b", "(ab){2,3}", "(a{1,2}){2}", "a{12,30}", "(ab|c){9,20}",
    ".", ".*", "a.c", ".+b", "[abc]", "[^abc]", "[a-c]+", "[a-cx-z]", "[-a]", "[a-]", "[a\\-c]", "[\\]a]", "[.]",
    "[^\\n]", "[\\d]", "[\\w-]+", "[\\s\\d]", "[^\\s]", "[\\b]", "\\d+", "\\D", "\\w+", "\\W", "\\s", "\\S+",
    "\\d{3}-\\d{4}", "\\t", "\\n", "\\x41", "\\u0041", "\\u00e9", "[\\u00e0-\\u00ff]+", "\\.", "\\\\", "\\/", "\\$",
    "\\^", "\\{", "\\(a\\)", "^a", "a$", "^a$", "^$", "^", "$", "^a|b$", "(^a|b)c", "a(b$|c)", "(^|x)a", "a($|x)",
    "^^a", "a$$", "(^a)?b", "(a$)?", "(^|,)[ab]", "^(a|b)*c$", "a^", "$a", "(a|^)b", "x*^a", "a$x*", "(?:^a|^b)c?$",
    "(?:a|b)(?:c|d)?", "(?P<n>a)b" , "((a)(b))c", "(a*)*", "(a*)+", "(a|a)*", "(a?){3}", "(|a)+", "((a|b)*c)+",
    "(a|ab)(c|bcd)(d*)", "é+", "[é-ü]", "[^é]", "€", "[\\u2000-\\u20ff]", "😀", "[😀-😂]", "[^😀]", "[^a]+b",
    "a{", "a{b}", "a{1", "{a", "a}", "x{1,2}{", "^[a-z0-9._%+-]+@[a-z0-9.-]+\\.[a-z]{2,6}$",
    "^\\d{4}-\\d{2}-\\d{2}$", "^(?:[01]\\d|2[0-3]):[0-5]\\d$", "^[A-Z][a-z]*( [A-Z][a-z]*)*$", "^.{2,5}$", "^[^,]{1,40}$",
    "^(a+)+$", "(a|b)*a(a|b)(a|b)(a|b)", "25[0-5]|2[0-4]\\d|1?\\d?\\d",
    "^#?([a-f0-9]{6}|[a-f0-9]{3})$", "[ab]{2,3}[bc]{1,2}", "(a{2}|b{3})*", "((ab)?c){2,}",
]
TEXTS = [
    "", "a", "b", "c", "ab", "abc", "aab", "aaa", "aaaa", "aaaaaaaaaaaa", "abab", "ababab", "ac", "bc", "abcd", "x", "xa",
    "a\n", "\n", "a\nc", "\t", " ", "-", "]", ".", "A", "é", "éé", "ü", "€", "😀", "😁b", "1", "123", "555-1234", "a1_b",
    "$", "^", "a{", "a{b}", "a{1", "{a", "a}", "(a)", "\\", "/", "\b", ",a", "a,b", "joe@site.org", "Joe Mc Abe",
    "2024-01-31", "23:59", "24:00", "#ffaa00", "fff", "255", "cc", "ccab", "bca", "bcd", "babbb", "x{1,2}{", "xx{",
]


def texts_of(generator):
    made = ["".join(generator.choice("abcx") for _ in range(generator.randint(1, 14))) for _ in range(6)]
    made += ["a" * generator.randint(5, 40), "ab" * generator.randint(5, 20), "abc" * generator.randint(2, 9)]
    return made


def random_pattern(generator, depth):
    kind = generator.randint(0, 8 if depth else 2)
    if kind <= 1:
        return generator.choice("abc")
    if kind == 2:
        return generator.choice(["[ab]", "[^a]", ".", "[b-c]", "", "\\w"])
    inner = random_pattern(generator, depth - 1)
    if kind <= 5:
        return inner + random_pattern(generator, depth - 1)
    if kind == 6:
        return "(?:%s|%s)" % (inner, random_pattern(generator, depth - 1))
    least = generator.randint(0, 3)
    quantifier = generator.choice(["*", "+", "?", "*?", "{%d}" % least, "{%d,}" % least, "{%d,%d}" % (least, least + 2),
                                   "{%d,%d}" % (least, least + 30)])
    return "(?:%s)%s" % (inner, quantifier)


def main():
    def give_up(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, give_up)
    generator = random.Random(7)
    patterns = list(dict.fromkeys(PATTERNS))
    while len(patterns) < 260:
        pattern = random_pattern(generator, 4)
        if generator.randint(0, 3) == 0:
            pattern = generator.choice(["^%s", "%s$", "^%s$", "(?:^%s|%s$)" % (pattern.replace("%", "%%"), "%s")]) % pattern
        if pattern not in patterns:
            patterns.append(pattern)
    cases = []
    for pattern in patterns:
        compiled = re.compile(re.sub(r"(?<!\\)((?:\\\\)*)\$", r"\1\\Z", pattern), re.ASCII)
        rows = []
        texts = TEXTS + texts_of(generator)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:  # Python backtracks: what takes it too long is left out
            for text in texts:
                rows.append([text, bool(compiled.fullmatch(text)), bool(compiled.search(text))])
        except TimeoutError:
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        cases.append([pattern, rows])
    print("[")
    print(",\n".join(json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in cases))
    print("]")


main()
