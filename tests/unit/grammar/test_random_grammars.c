/* Random grammars and expressions against their definition: every text over a few characters, up to a length,
 * is in the grammar or not, by sets of places that parts can end at. */
#include "support.h"

#include "base/alloc.h"
#include "base/text.h"
#include "support/sanitized.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <setjmp.h>
#include <cmocka.h>

typedef enum part_kind { LITERAL, CLASS, SEQUENCE, CHOICE, REPEAT, RULE } part_kind;
enum { MOST_PARTS = 200, MOST_CHILDREN = 3, RULES = 3, LONGEST_TEXT = 6, SYMBOLS = 3 };

typedef struct part {
    part_kind kind;
    bool negated;
    int symbols[2], symbol_count; /* LITERAL: in a row; CLASS: any of them */
    int children[MOST_CHILDREN], child_count;
    int least, most; /* REPEAT: most -1: no bound */
    int rule;
} part;

typedef struct grammar {
    const char *alphabet; /* [SYMBOLS] */
    part parts[MOST_PARTS];
    int count, rules[RULES];
    uint64_t random;
    uint32_t ends[MOST_PARTS][LONGEST_TEXT + 1]; /* bit e: from there the part can read up to e */
} grammar;

static sl_grammar_vocabulary *vocabulary;

static int make(void **state) {
    sl_error error;
    (void)state;
    vocabulary = make_vocabulary(&error);
    return vocabulary ? 0 : -1;
}

static int unmake(void **state) {
    (void)state;
    sl_grammar_vocabulary_release(vocabulary);
    return 0;
}

static int draw(grammar *g, int below) {
    g->random ^= g->random << 13;
    g->random ^= g->random >> 7;
    g->random ^= g->random << 17;
    return (int)((g->random >> 33) % (uint64_t)below);
}

static int make_part(grammar *g, int depth, bool with_rules) {
    const int number = g->count++;
    part p = {.kind = (part_kind)draw(g, depth > 0 && g->count < MOST_PARTS - 40 ? 6 : 2)};
    if (p.kind == RULE && !with_rules) {
        p.kind = CHOICE;
    }
    switch (p.kind) {
    case LITERAL:
    case CLASS:
        p.symbol_count = p.kind == LITERAL ? draw(g, 3) : 1 + draw(g, 2);
        p.negated = p.kind == CLASS && draw(g, 4) == 0;
        p.symbols[0] = draw(g, SYMBOLS);
        p.symbols[1] = draw(g, SYMBOLS);
        break;
    case SEQUENCE:
    case CHOICE:
        p.child_count = 2 + draw(g, 2);
        break;
    case REPEAT:
        p.child_count = 1;
        p.least = draw(g, 3);
        p.most = draw(g, 2) ? -1 : p.least + draw(g, 3);
        break;
    case RULE:
        p.rule = draw(g, RULES);
        break;
    }
    for (int i = 0; i < p.child_count; i++) {
        p.children[i] = make_part(g, depth - 1, with_rules);
    }
    g->parts[number] = p;
    return number;
}

/* ---- the definition
 * ----------------------------------------------------------------------------------------------- */

static uint32_t after(const grammar *g, int number, uint32_t from) {
    uint32_t ends = 0;
    for (int i = 0; i <= LONGEST_TEXT; i++) {
        ends |= from >> i & 1 ? g->ends[number][i] : 0;
    }
    return ends;
}

static uint32_t ends_of(const grammar *g, const part *p, const char *text, int length, int at) {
    uint32_t ends = p->kind == SEQUENCE ? (uint32_t)1 << at : 0;
    bool inside = false;
    switch (p->kind) {
    case LITERAL:
        for (int i = 0; i < p->symbol_count; i++) {
            if (at + i >= length || text[at + i] != g->alphabet[p->symbols[i]]) {
                return 0;
            }
        }
        return (uint32_t)1 << (at + p->symbol_count);
    case CLASS:
        for (int i = 0; i < p->symbol_count && at < length; i++) {
            inside |= text[at] == g->alphabet[p->symbols[i]];
        }
        return at < length && inside != p->negated ? (uint32_t)1 << (at + 1) : 0;
    case SEQUENCE:
        for (int i = 0; i < p->child_count; i++) {
            ends = after(g, p->children[i], ends);
        }
        return ends;
    case CHOICE:
        for (int i = 0; i < p->child_count; i++) {
            ends |= g->ends[p->children[i]][at];
        }
        return ends;
    case REPEAT: {
        uint32_t here = (uint32_t)1 << at;
        for (int i = 0; i <= (p->most < 0 ? p->least + LONGEST_TEXT : p->most); i++) {
            ends |= i >= p->least ? here : 0;
            here = after(g, p->children[0], here);
        }
        return ends;
    }
    case RULE:
        return g->ends[g->rules[p->rule]][at];
    }
    return 0;
}

/* The least sets that agree with all parts. */
static bool is_in(grammar *g, int root, const char *text, int length) {
    memset(g->ends, 0, sizeof(g->ends));
    for (bool changed = true; changed;) {
        changed = false;
        for (int i = g->count; i-- > 0;) {
            for (int at = 0; at <= length; at++) {
                const uint32_t ends = g->ends[i][at] | ends_of(g, &g->parts[i], text, length, at);
                changed |= ends != g->ends[i][at];
                g->ends[i][at] = ends;
            }
        }
    }
    return g->ends[root][0] >> length & 1;
}

/* The texts in order: shorter ones first. False: there are no more. */
static bool next_text(const grammar *g, char *text, int *length, int longest) {
    for (int i = *length; i-- > 0;) {
        const char *at = memchr(g->alphabet, text[i], SYMBOLS);
        if (at + 1 < g->alphabet + SYMBOLS) {
            text[i] = at[1];
            return true;
        }
        text[i] = g->alphabet[0];
    }
    text[(*length)++] = g->alphabet[0];
    return *length <= longest;
}

/* ---- grammars as GBNF
 * ----------------------------------------------------------------------------------------------- */

static void write_part(const grammar *g, int number, sl_buffer *out) {
    const part *p = &g->parts[number];
    if (p->kind == RULE) {
        sl_buffer_text(out, p->rule ? (p->rule == 1 ? " one " : " two ") : " root ");
        return;
    }
    sl_buffer_text(out, p->kind == LITERAL ? "\"" : p->kind == CLASS ? p->negated ? "[^" : "[" : "(");
    for (int i = 0; i < p->symbol_count; i++) {
        sl_buffer_append(out, &g->alphabet[p->symbols[i]], 1);
    }
    for (int i = 0; i < p->child_count; i++) {
        sl_buffer_text(out, i && p->kind == CHOICE ? " | " : " ");
        write_part(g, p->children[i], out);
    }
    sl_buffer_text(out, p->kind == LITERAL ? "\"" : p->kind == CLASS ? "]" : ")");
    if (p->kind == REPEAT && p->most < 0) {
        sl_buffer_printf(out, "{%d,}", p->least);
    } else if (p->kind == REPEAT) {
        sl_buffer_printf(out, "{%d,%d}", p->least, p->most);
    }
}

static sl_grammar *compile(const char *text, sl_error *error) {
    sl_grammar_builder *builder = sl_grammar_builder_create(NULL, error);
    sl_expression expression = sl_expression_gbnf(builder, text, strlen(text), error);
    sl_grammar *made = expression < 0 ? NULL : sl_grammar_compile(builder, expression, vocabulary, error);
    sl_grammar_builder_destroy(builder);
    return made;
}

/* A few tokens along, every mask. */
static void check_masks(sl_grammar *made, grammar *g, const char *text) {
    uint32_t mask[(TOKEN_COUNT + 31) / 32];
    sl_error error;
    sl_matcher *matcher = sl_matcher_create(made, &error);
    for (int step = 0; step < 8 && !sl_matcher_has_ended(matcher); step++) {
        const int32_t wrong = wrong_bit(matcher, mask);
        if (wrong != -1) {
            fail_msg("%s\nstep %d: the bit of token %d is wrong", text, step, wrong);
        }
        int32_t token = draw(g, TOKEN_COUNT);
        while (!has_token(mask, token)) {
            token = (token + 1) % TOKEN_COUNT;
        }
        assert_int_equal(sl_matcher_accept(matcher, token, &error), 1);
    }
    sl_matcher_destroy(matcher);
}

static void grammars_have_their_texts(void **state) {
    static const char *const NAMES[RULES] = {"root", "one", "two"};
    static grammar g;
    int compiled = 0, matched = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= (SANITIZED ? 300 : 1500); seed++) {
        sl_buffer source = {0};
        sl_error error = {0};
        g = (grammar){.alphabet = "abc", .random = seed * 0x9e3779b97f4a7c15u};
        for (int i = 0; i < RULES; i++) {
            g.rules[i] = make_part(&g, 3, true);
            sl_buffer_printf(&source, "%s ::= ", NAMES[i]);
            write_part(&g, g.rules[i], &source);
            sl_buffer_text(&source, "\n");
        }
        sl_grammar *made = compile(source.data, &error);
        const bool is_nothing = strstr(error.message, "no text matches") != NULL;
        if (!made && !is_nothing && !strstr(error.message, "left recursion")) {
            fail_msg("%s%s", source.data, error.message);
        }
        char text[LONGEST_TEXT + 1] = {0};
        int length = 0;
        do {
            const bool expected = (made || is_nothing) && is_in(&g, g.rules[0], text, length);
            if (expected != (made && match(made, text, (size_t)length) == 1)) {
                fail_msg("%s\"%.*s\" is %s", source.data, length, text, expected ? "missing" : "too much");
            }
            matched += expected;
        } while (next_text(&g, text, &length, 5));
        compiled += made != NULL;
        if (made) {
            check_masks(made, &g, source.data);
        }
        sl_grammar_release(made);
        sl_buffer_free(&source);
    }
    assert_true(compiled > 60 && matched > 2000);
}

/* ---- expressions as sets
 * ------------------------------------------------------------------------------------- */

static sl_expression build(sl_grammar_builder *builder, const grammar *g, int number) {
    const part *p = &g->parts[number];
    sl_expression children[MOST_CHILDREN];
    sl_character_range ranges[2];
    char bytes[2];
    for (int i = 0; i < p->child_count; i++) {
        children[i] = build(builder, g, p->children[i]);
    }
    for (int i = 0; i < p->symbol_count; i++) {
        bytes[i] = g->alphabet[p->symbols[i]];
        ranges[i] = (sl_character_range){(uint8_t)bytes[i], (uint8_t)bytes[i]};
    }
    switch (p->kind) {
    case LITERAL:
        return sl_expression_literal(builder, bytes, (size_t)p->symbol_count);
    case CLASS:
        return sl_expression_character(builder, ranges, p->symbol_count, p->negated);
    case SEQUENCE:
        return sl_expression_sequence(builder, children, p->child_count);
    case CHOICE:
        return sl_expression_choice(builder, children, p->child_count);
    default:
        return sl_expression_repeat(builder, children[0], p->least, p->most);
    }
}

typedef enum set { BOTH, EXCEPT, COMPLEMENT, UNTIL, ESCAPED, SETS } set;

static sl_grammar *make_set(const grammar *g, const int roots[2], set set, bool *is_nothing) {
    sl_error error;
    sl_grammar_builder *builder = sl_grammar_builder_create(NULL, &error);
    const sl_expression left = build(builder, g, roots[0]), right = build(builder, g, roots[1]);
    sl_expression made = set == BOTH         ? sl_expression_both(builder, left, right)
                         : set == EXCEPT     ? sl_expression_except(builder, left, right)
                         : set == COMPLEMENT ? sl_expression_except(builder, SL_NO_EXPRESSION, left)
                         : set == UNTIL      ? sl_expression_until(builder, g->alphabet, 2)
                                             : sl_expression_json_escaped(builder, left);
    *is_nothing = sl_expression_is_nothing(builder, made);
    sl_grammar *grammar = *is_nothing ? NULL : sl_grammar_compile(builder, made, vocabulary, &error);
    if (!grammar && !*is_nothing) {
        fail_msg("%s", error.message);
    }
    sl_grammar_builder_destroy(builder);
    return grammar;
}

/* As JSON writes it inside a string (RFC 8259, 7), one of the ways. */
static void escape(const char *text, int length, int way, sl_buffer *out) {
    sl_buffer_clear(out);
    for (int i = 0; i < length; i++) {
        switch (text[i]) {
        case '"':
            sl_buffer_text(out, "\\\"");
            break;
        case '\\':
            sl_buffer_text(out, "\\\\");
            break;
        case '\n':
            sl_buffer_text(out, way ? "\\u000a" : "\\n");
            break;
        case '/':
            sl_buffer_text(out, way ? "\\/" : "/");
            break;
        default:
            sl_buffer_append(out, &text[i], 1);
        }
    }
}

static bool is_expected(grammar *g, const int roots[2], set set, const char *text, int length) {
    const bool left = is_in(g, roots[0], text, length), right = is_in(g, roots[1], text, length);
    bool has_mark = false;
    for (int i = 0; i + 1 < length; i++) {
        has_mark |= memcmp(text + i, g->alphabet, 2) == 0;
    }
    return set == BOTH         ? left && right
           : set == EXCEPT     ? left && !right
           : set == COMPLEMENT ? !left
           : set == UNTIL      ? !has_mark
                               : left;
}

static void expressions_are_sets(void **state) {
    static const char *const ALPHABETS[] = {"abc", "a\"\\", "\n/b"};
    static grammar g;
    int matched[SETS] = {0}, nothings = 0;
    sl_buffer escaped = {0};
    (void)state;
    for (uint64_t seed = 1; seed <= (SANITIZED ? 150 : 600); seed++) {
        const set set = (enum set)(seed % SETS);
        g = (grammar){.alphabet = ALPHABETS[seed / SETS % 3], .random = seed * 0x9e3779b97f4a7c15u};
        const int left = make_part(&g, 3, false), right = make_part(&g, 3, false), roots[2] = {left, right};
        bool is_nothing;
        sl_grammar *made = make_set(&g, roots, set, &is_nothing);
        char text[LONGEST_TEXT + 1] = {0};
        int length = 0;
        nothings += is_nothing;
        do {
            const bool expected = is_expected(&g, roots, set, text, length);
            for (int way = 0; way <= (set == ESCAPED); way++) {
                const char *bytes = text;
                size_t count = (size_t)length;
                if (set == ESCAPED) {
                    escape(text, length, way, &escaped);
                    bytes = escaped.data ? escaped.data : "";
                    count = escaped.length;
                }
                if (expected != (made && match(made, bytes, count) == 1)) {
                    fail_msg("seed %d, set %d: \"%.*s\" is %s", (int)seed, (int)set, (int)count, bytes,
                             expected ? "missing" : "too much");
                }
            }
            matched[set] += expected;
        } while (next_text(&g, text, &length, 5));
        sl_grammar_release(made);
    }
    for (int i = 0; i < SETS; i++) {
        assert_true(matched[i] > 10);
    }
    assert_true(nothings > 0);
    sl_buffer_free(&escaped);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(grammars_have_their_texts),
                                       cmocka_unit_test(expressions_are_sets)};
    return cmocka_run_group_tests(tests, make, unmake);
}
