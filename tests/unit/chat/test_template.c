/* Chat templates against Python's jinja2 (cases.json, written by make_cases.py), and against hostile ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "support/sanitized.h"
#include "chat/chat.h"
#include "chat/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <string.h>

static const char *const shared = SLUICE_SHARED_DIR;

static int render(const char *source, size_t length, json_t *variables, const sl_template_limits *limits,
                  sl_buffer *out, sl_error *error) {
    sl_template *compiled;
    int code = sl_template_compile(source, length, "case", &compiled, error);
    if (code) {
        assert_null(compiled);
        return code;
    }
    code = sl_template_render(compiled, variables, limits, out, error);
    sl_template_free(compiled);
    return code;
}

static json_t *load(const char *path) {
    json_error_t error;
    json_t *json = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (!json) {
        fail_msg("%s: line %d: %s", path, error.line, error.text);
    }
    return json;
}

static json_t *cases(void) {
    return load(SLUICE_SOURCE_DIR "/tests/unit/chat/cases.json");
}

/* True when the template says what jinja2 says; prints both when not. */
static int agrees(json_t *item, json_t *source, json_t *variables, size_t number, int64_t now) {
    json_t *expected = json_object_get(item, "expected");
    sl_template_limits limits = {.now = now};
    sl_buffer out = {0};
    sl_error error = {0};
    int code =
        render(json_string_value(source), json_string_length(source), variables, &limits, &out, &error);
    size_t length = json_is_string(expected) ? json_string_length(expected) : 0;
    int same = json_is_null(expected)
                   ? code != 0
                   : code == 0 && out.length == length &&
                         (length == 0 || memcmp(out.data, json_string_value(expected), length) == 0);
    if (!same) {
        print_error("case %zu: %.300s\n  jinja2: %s\n  sluice: %s\n", number, json_string_value(source),
                    json_is_null(expected) ? "(refused)" : json_string_value(expected),
                    code       ? error.message
                    : out.data ? out.data
                               : "");
    }
    if (code && (strncmp(error.message, "case: line ", 11) != 0 || error.code != code)) {
        print_error("case %zu: message without template and line: %s\n", number, error.message);
        same = 0;
    }
    sl_buffer_free(&out);
    return same;
}

static void language_is_that_of_jinja2(void **state) {
    (void)state;
    json_t *document = cases(), *item, *shared_variables = json_object_get(document, "variables");
    size_t number, run = 0, wrong = 0;
    json_array_foreach(json_object_get(document, "cases"), number, item) {
        json_t *source = json_object_get(item, "template"), *variables = json_object_get(item, "variables");
        if (source) {
            wrong += !agrees(item, source, variables ? variables : shared_variables, number,
                             json_integer_value(json_object_get(document, "now")));
            run++;
        }
    }
    json_decref(document);
    assert_true(run >= 200);
    assert_int_equal(wrong, 0);
}

static void model_templates_render_as_in_jinja2(void **state) {
    (void)state;
    if (!shared[0]) {
        print_message("skipped: ../shared is not there, so the models' templates are not\n");
        skip();
    }
    json_t *document = cases(), *configs = json_object(), *item;
    size_t number, run = 0, wrong = 0;
    json_array_foreach(json_object_get(document, "cases"), number, item) {
        const char *model = json_string_value(json_object_get(item, "model"));
        if (!model) {
            continue;
        }
        json_t *config = json_object_get(configs, model);
        if (!config) {
            char path[1024];
            snprintf(path, sizeof path, "%s/tokenizers/%s/tokenizer_config.json", shared, model);
            config = load(path);
            json_object_set_new(configs, model, config);
        }
        wrong += !agrees(item, json_object_get(config, "chat_template"), json_object_get(item, "variables"),
                         number, json_integer_value(json_object_get(document, "now")));
        run++;
    }
    json_decref(configs);
    json_decref(document);
    assert_true(run >= 100);
    assert_int_equal(wrong, 0);
}

/* Renders and expects a code; the output must be as it was and nothing may be leaked. */
static void refuses(const char *source, size_t length, const sl_template_limits *limits, int expected) {
    uint64_t live = sl_alloc_live_bytes();
    sl_buffer out = {0};
    sl_error error = {0};
    json_t *none = json_object();
    sl_buffer_text(&out, "before");
    int code = render(source, length, none, limits, &out, &error);
    if (code != expected) {
        fail_msg("%.200s: %d %s, not %d", source, code, error.message, expected);
    }
    assert_string_equal(out.data, "before");
    json_decref(none);
    sl_buffer_free(&out);
    assert_int_equal(sl_alloc_live_bytes(), live);
}

/* prefix, then `part` many times, then suffix. */
static void refuses_repeated(const char *prefix, const char *part, size_t times, const char *suffix,
                             int expected) {
    sl_buffer text = {0};
    sl_buffer_text(&text, prefix);
    for (size_t i = 0; i < times; i++) {
        sl_buffer_text(&text, part);
    }
    sl_buffer_text(&text, suffix);
    refuses(text.data, text.length, NULL, expected);
    sl_buffer_free(&text);
}

static void deep_nesting_is_refused(void **state) {
    (void)state;
    static const char *const parts[] = {"(",  "[",  "{1:",          "not ", "-", "1+(",
                                        "a[", "a(", "x if y else ", "a|f(", "{{"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        refuses_repeated("{{ ", parts[i], 100000, "1 }}", SL_ERR_LIMIT);
    }
    refuses_repeated("", "{% if 1 %}", 50000, "", SL_ERR_LIMIT);
    refuses_repeated("", "{% for a in b %}", 30000, "", SL_ERR_LIMIT);
    refuses_repeated("{{ 1", "+1", 100000, "}}", SL_ERR_LIMIT);
    sl_buffer sum = {0};
    sl_template *compiled;
    sl_buffer_text(&sum, "{{ 1");
    for (int i = 0; i < 300; i++) {
        sl_buffer_text(&sum, "+1");
    }
    sl_buffer_text(&sum, "}}");
    assert_int_equal(sl_template_compile(sum.data, sum.length, NULL, &compiled, NULL), SL_ERR_LIMIT);
    sl_buffer_free(&sum);
    refuses_repeated("{{ a", ".a", 100000, "}}", SL_ERR_LIMIT);
    refuses_repeated("{{ a", "|e", 100000, "}}", SL_ERR_LIMIT);
    refuses_repeated("{{ a", " is b", 1000, "}}", SL_ERR_FORMAT);
    refuses_repeated("{{ ", "'a'", 200000, "}}{{ x.y }}", SL_ERR_INVALID);
    refuses_repeated("{% set ", "(", 150, "a", SL_ERR_FORMAT);
    refuses_repeated("", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 40000, "", SL_ERR_LIMIT);
}

static void bombs_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *source;
        int code;
    } bombs[] = {
        {"{{ range(10**9) }}", SL_ERR_LIMIT},
        {"{{ range(-9223372036854775807, 9223372036854775807) }}", SL_ERR_LIMIT},
        {"{{ 10**30 }}", SL_ERR_LIMIT},
        {"{{ 9223372036854775807 + 1 }}", SL_ERR_LIMIT},
        {"{{ (-9223372036854775807 - 1) // -1 }}", SL_ERR_LIMIT},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", SL_ERR_LIMIT},
        {"{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", SL_ERR_LIMIT},
        {"{% macro a(n) %}{% if n %}{{ a(n-1) }}{{ a(n-1) }}{% endif %}{% endmacro %}{{ a(60) }}",
         SL_ERR_LIMIT},
        {"{{ 'a' * 10**12 }}", SL_ERR_LIMIT},
        {"{{ ('a' * 10**7) * 10**7 }}", SL_ERR_LIMIT},
        {"{{ [0] * 10**12 }}", SL_ERR_LIMIT},
        {"{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% "
         "endfor %}",
         SL_ERR_LIMIT},
        {"{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% "
         "endfor %}",
         SL_ERR_LIMIT},
        {"{% set ns = namespace(x=[0]) %}{% for i in range(64) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
         "{{ ns.x }}",
         SL_ERR_LIMIT},
        {"{% set ns = namespace(x=[0]) %}{% for i in range(64) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
         "{{ ns.x|tojson }}",
         SL_ERR_LIMIT},
        {"{% set ns = namespace(x=[0], y=[0]) %}{% for i in range(64) %}{% set ns.x = [ns.x, ns.x] %}"
         "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
         SL_ERR_LIMIT},
        {"{% set ns = namespace(x=(0,)) %}{% for i in range(64) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}"
         "{{ {ns.x: 1} }}",
         SL_ERR_LIMIT},
        {"{% set ns = namespace(x=[0]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}"
         "{{ ns.x }}",
         SL_ERR_LIMIT},
        {"{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", SL_ERR_LIMIT},
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", SL_ERR_LIMIT},
        {"{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", SL_ERR_LIMIT},
        {"{{ ('a' * 1000000) | replace('', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbb') }}", SL_ERR_LIMIT},
        {"{{ '%9999999d' % 1 }}", SL_ERR_LIMIT},
        {"{{ ('a' * 4000000).rfind('b' * 2000000) }}", SL_ERR_LIMIT},
        {"{{ [1]|map('map', 'map', 'map', 'map')|list }}", SL_ERR_INVALID},
        {"{{ ['select']|select('nosuch')|list }}", SL_ERR_UNSUPPORTED},
        {"{% include 'x' %}", SL_ERR_UNSUPPORTED},
        {"{% for x in y recursive %}{% endfor %}", SL_ERR_UNSUPPORTED},
        {"\xff", SL_ERR_FORMAT},
        {"{{ '\\ud800' }}", SL_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof bombs / sizeof *bombs; i++) {
        refuses(bombs[i].source, strlen(bombs[i].source), NULL, bombs[i].code);
    }
}

static void limits_are_the_callers(void **state) {
    (void)state;
    sl_template_limits output = {.output_bytes = 10}, steps = {.steps = 20}, depth = {.depth = 3};
    sl_template_limits memory = {.memory_bytes = 4096};
    refuses("12345678901", 11, &output, SL_ERR_LIMIT);
    const char *text = "{% for i in range(30) %}{% endfor %}";
    refuses(text, strlen(text), &steps, SL_ERR_LIMIT);
    refuses(text, strlen(text), &depth, SL_ERR_LIMIT);
    text = "{{ 'a' * 5000 }}";
    refuses(text, strlen(text), &memory, SL_ERR_LIMIT);
    sl_buffer out = {0};
    json_t *none = json_object();
    assert_int_equal(render("1234567890", 10, none, &output, &out, NULL), 0);
    assert_string_equal(out.data, "1234567890");
    sl_buffer_free(&out);
    json_decref(none);
}

static void errors_name_template_line_and_rule(void **state) {
    (void)state;
    sl_buffer out = {0};
    sl_error error = {0};
    json_t *none = json_object();
    const char *text = "a\n\n{{ messages[0].role }}";
    assert_int_equal(render(text, strlen(text), none, NULL, &out, &error), SL_ERR_INVALID);
    assert_string_equal(error.message, "case: line 3: 'messages' is undefined");
    text = "a\n{% if x %}\n";
    assert_int_equal(render(text, strlen(text), none, NULL, &out, &error), SL_ERR_FORMAT);
    assert_non_null(strstr(error.message, "case: line 2: "));
    text = "\n{{ raise_exception('only ' ~ 1) }}";
    assert_int_equal(render(text, strlen(text), none, NULL, &out, &error), SL_ERR_INVALID);
    assert_string_equal(error.message, "case: line 2: the template refuses: only 1");
    sl_buffer_free(&out);
    json_decref(none);
}

/* ---- time ----
 *
 * Expressions over large data, each evaluated again and again until the limit of steps: that must be reached
 * soon, whatever the expression does between two nodes. */

static const char *const expressions[] = {
    /* filters over a list of 100,000 numbers, of strings, of lists and over text */
    "l|sum",
    "l|sum(start=1)",
    "l|join",
    "l|join(',')",
    "t|join",
    "l|max",
    "l|min",
    "t|max",
    "l|sort",
    "l|sort(reverse=true)",
    "t|sort",
    "m|sort(attribute='a')",
    "m|sort(attribute='a,b')",
    "l|unique|list",
    "t|unique|list",
    "l|reverse|list",
    "l|list",
    "l|first",
    "l|last",
    "l|length",
    "l|map('string')|list",
    "t|map('upper')|list",
    "m|map(attribute='a')|list",
    "l|select|list",
    "l|select('odd')|list",
    "l|reject('odd')|list",
    "m|selectattr('a')|list",
    "m|rejectattr('a', 'equalto', 1)|list",
    "l|string",
    "l|tojson",
    "f|tojson",
    "f|string",
    "f|join",
    "f|sum",
    "m|tojson",
    "m|tojson(indent=4)",
    "m|tojson(sort_keys=true)",
    "d|tojson(sort_keys=true)",
    "d|dictsort",
    "d|dictsort(by='value')",
    "d|items|list",
    "d|length",
    "d|list",
    "s|upper",
    "s|lower",
    "s|title",
    "s|capitalize",
    "s|trim",
    "b|trim",
    "s|trim('a')",
    "s|trim('bcdefghijklmnopqrstuvwxyza')",
    "s|trim(c)",
    "s|replace('a', 'b')",
    "s|replace('aaaa', '')",
    "s|replace('', 'x')",
    "s|replace('b' + s, '')",
    "s|e",
    "q|e",
    "q|tojson",
    "q|string",
    "[q]|string",
    "u|tojson",
    "u|tojson(ensure_ascii=true)",
    "[u]|string",
    "s|length",
    "u|length",
    "s|list",
    "s|reverse",
    "s|first",
    "s|last",
    "s|indent",
    "n|indent",
    "s|int",
    "b|int",
    "z|int",
    "b|float",
    "z|float",
    "s|format",
    "p|format",
    "'%s'|format(s)",
    "'%1000s'|format('')",
    "'%1000d'|format(1)",
    "'%.300f'|format(1e300)",
    "'%.300e'|format(0.1)",
    "s|string",
    "s|default(1)",
    "(1/3)|string",
    "1e300|round(300)",
    "0.1|round(300)",
    "l|tojson|length",
    "s|map('upper')|join",
    "l|batchless if false else l|sum",
    "[l, l]|map('sum')|list",
    "[s, s]|map('length')|list",
    /* operators */
    "s + s",
    "s ~ s",
    "l + l",
    "'ab' * 100000",
    "[1] * 100000",
    "l == k",
    "l != k",
    "l < k",
    "l <= k",
    "t == v",
    "s == r",
    "s < r",
    "d == e",
    "[l] == [k]",
    "s in r",
    "'b' in s",
    "'aaaaaaaaaaaaaaab' in s",
    "('b' + 'a' * 200) in s",
    "-1 in l",
    "'x' in t",
    "-1 not in l",
    "'q' in d",
    "s in d",
    "l in [k]",
    "d[s]",
    "d.get(s)",
    "{s: 1}",
    "{(s, s): 1}",
    "{s: 1}[s]",
    "s[-1]",
    "s[999999]",
    "s[1:]",
    "s[:-1]",
    "s[::2]",
    "s[::-1]",
    "l[1:]",
    "l[::-1]",
    "l[-1]",
    "u[-1]",
    "u[5:-5]",
    "'%s' % s",
    "p % 1",
    "'%d%%' % 5",
    "dict(d)",
    "dict(d, x=1)",
    "range(100000)|length",
    "namespace(d)",
    "s is upper",
    "s is lower",
    "u is lower",
    "s is eq(r)",
    "l is eq(k)",
    "'b' is in(s)",
    "-1 is in(l)",
    "s is sameas(r)",
    "s is string",
    "l is iterable",
    /* methods */
    "s.upper()",
    "s.lower()",
    "s.title()",
    "s.capitalize()",
    "s.swapcase()",
    "s.strip()",
    "b.strip()",
    "b.lstrip()",
    "b.rstrip()",
    "s.strip('a')",
    "s.rstrip('a')",
    "s.strip(c)",
    "s.split()",
    "s.split('a')",
    "s.split('b')",
    "n.split()",
    "n.split(' ')",
    "n.rsplit()",
    "n.rsplit(' ')",
    "s.rsplit('a')",
    "s.rsplit('b')",
    "s.rsplit('b' + 'a' * 500)",
    "s.split('b' + 'a' * 500)",
    "b.split()",
    "b.rsplit()",
    "s.splitlines()",
    "n.splitlines()",
    "s.replace('a', 'b')",
    "s.replace('b', '')",
    "s.count('a')",
    "s.count('b')",
    "s.count('')",
    "s.find('b')",
    "s.find('a' * 500 + 'b')",
    "s.rfind('b')",
    "s.rfind('b' + 'a' * 500)",
    "s.startswith(r)",
    "s.endswith(r)",
    "s.endswith((r, r, r))",
    "s.removeprefix(r)",
    "s.removesuffix('b')",
    "s.isalpha()",
    "s.isalnum()",
    "z.isdigit()",
    "b.isspace()",
    "s.islower()",
    "s.isupper()",
    "','.join(t)",
    "s.join(['', ''])",
    "d.keys()|list",
    "d.values()|list",
    "d.items()|list",
    "d.get('q')",
    "d.copy()",
    "l.count(1)",
    "l.index(99999)",
    "t.count('x')",
    "strftime_now('%Y' * 1000)",
    "strftime_now(c)",
    "a.b if a is defined else l|sum",
    "x0123456789012345678901234567890123456789",
    "w",
};

/* Than a plain name. A sanitizer looks at every byte that a search of a text does. */
enum { SLOWER = SANITIZED ? 25 : 8 };

/* CPU seconds until a limit of 2 million steps, a tenth of the default, or the end. */
static double render_seconds(const char *expression, int *code) {
    static const char data[] =
        "{%% set l = range(100000)|list %%}{%% set k = range(100000)|list %%}{%% set s = 'a' * 1000000 %%}"
        "{%% set r = 'a' * 1000000 %%}{%% set b = ' ' * 1000000 %%}{%% set z = '0' * 1000000 %%}"
        "{%% set q = '\"<' * 300000 %%}{%% set n = 'a b\\n' * 200000 %%}{%% set u = "
        "'\xc3\xa4\xf0\x9f\x98\x80' * 100000 %%}"
        "{%% set c = 'bcdefghijklmnopqrstuvwxyz' * 1000 ~ 'a' %%}{%% set p = '%%%%' * 100000 %%}"
        "{%% set t = ('key ' * 20000).split() %%}{%% set v = ('key ' * 20000).split() %%}"
        "{%% set f = [1 / 3] * 20000 %%}{%% set m = [{'a': 1, 'b': 'c'}] * 20000 %%}"
        "{%% set d = dict([('q%%d' %% 1, 1), ('r', 2)]) %%}{%% set e = dict(d) %%}{%% set d = {s: 1, 'q': 2, "
        "5: 6} %%}"
        "{%% set e = {r: 1, 'q': 2, 5: 6} %%}"
        "{%% for i in range(100000) %%}{%% for j in range(100000) %%}{%% set y = %s %%}{%% endfor %%}{%% "
        "endfor %%}";
    char source[4096];
    sl_buffer out = {0};
    sl_error error = {0};
    const sl_template_limits limits = {.steps = 2000000};
    json_t *none = json_object();
    snprintf(source, sizeof source, data, expression);
    const clock_t begin = clock();
    *code = render(source, strlen(source), none, &limits, &out, &error);
    const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    json_decref(none);
    sl_buffer_free(&out);
    return seconds;
}

static void every_loop_over_data_spends(void **state) {
    (void)state;
    int code, wrong = 0;
    /* At the default limit all end within about a second. Sanitizers are slow at everything: then a plain
     * name is the measure. */
    const double plain = render_seconds("i", &code);
    const double most = SLOWER * plain > 0.15 ? SLOWER * plain : 0.15;
    assert_int_equal(code, SL_ERR_LIMIT);
    for (size_t i = 0; i < sizeof expressions / sizeof *expressions; i++) {
        const double seconds = render_seconds(expressions[i], &code);
        if (seconds > most ||
            (code && code != SL_ERR_LIMIT && code != SL_ERR_INVALID && code != SL_ERR_UNSUPPORTED)) {
            print_error("%s: %.2f s, code %d\n", expressions[i], seconds, code);
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}

static uint64_t jansson_fail_in;

static void *failing_malloc(size_t size) {
    return jansson_fail_in && --jansson_fail_in == 0 ? NULL : malloc(size);
}

/* One compile and one rendering through sl_chat. */
static int chat_once(json_t *messages, sl_buffer *out, sl_error *error) {
    static const char source[] =
        "{% macro m(a, b='x') %}{{ a|upper ~ b }}{% endmacro %}{% set ns = namespace(n=0) %}{% for x in "
        "messages %}"
        "{% set ns.n = ns.n + 1 %}{{ m(x.role, b=x.content)|trim }}{{ x|tojson(indent=2) }}{{ x.items()|list "
        "}}"
        "{% endfor %}{% set b %}{{ 'a\\n' 'b'|indent }}{% endset %}{{ b.split('a')|sort|join(',') ~ '%s' % "
        "ns.n }}"
        "{{ messages|map(attribute='role')|select('equalto', 'user')|unique|list }}{{ range(20)|list }}"
        "{{ dict(a=1, b=2, c=3, d=4, e=5, f=6, g=7, h=8, i=9, j=10)|dictsort|reverse|first }}{{ [1, 2][::-1] "
        "}}";
    sl_chat *chat;
    sl_chat_config config = {.source = source, .name = "memory"};
    int code = sl_chat_create(&config, &chat, error);
    if (!code) {
        sl_chat_request request = {.messages = messages};
        code = sl_chat_render(chat, &request, out, error);
        sl_chat_free(chat);
    }
    return code;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    json_t *messages =
        json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "user", "content", "hi", "role", "tool", "content", "x");
    sl_buffer whole = {0};
    sl_error error;
    assert_int_equal(chat_once(messages, &whole, &error), 0);
    json_set_alloc_funcs(failing_malloc, free);
    for (int jansson = 0; jansson <= 1; jansson++) {
        for (uint64_t nth = 1;; nth++) {
            uint64_t live = sl_alloc_live_bytes();
            sl_buffer out = {0};
            if (jansson) {
                jansson_fail_in = nth;
            } else {
                sl_alloc_fail_at(nth);
            }
            int code = chat_once(messages, &out, &error);
            bool reached = jansson ? jansson_fail_in == 0 : code != 0;
            jansson_fail_in = 0;
            sl_alloc_fail_at(0);
            if (code) {
                assert_int_equal(code, SL_ERR_NOMEM);
                assert_int_equal(out.length, 0);
            } else {
                assert_string_equal(out.data, whole.data);
            }
            sl_buffer_free(&out);
            assert_int_equal(sl_alloc_live_bytes(), live);
            if (!reached) {
                assert_true(nth > 5);
                break;
            }
        }
    }
    json_set_alloc_funcs(malloc, free);
    sl_buffer_free(&whole);
    json_decref(messages);
}

static void models_without_a_template_get_chatml(void **state) {
    (void)state;
    sl_chat *chat;
    sl_chat_config config = {.bos_token = "<s>"};
    sl_buffer out = {0};
    assert_int_equal(sl_chat_create(&config, &chat, NULL), 0);
    assert_true(sl_chat_get_facts(chat)->builtin);
    json_t *messages =
        json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "system", "content", "s", "role", "user", "content", "u");
    sl_chat_request request = {.messages = messages, .add_generation_prompt = true};
    assert_int_equal(sl_chat_render(chat, &request, &out, NULL), 0);
    assert_string_equal(out.data, "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
                                  "<|im_start|>assistant\n");
    sl_chat_free(chat);
    sl_buffer_clear(&out);
    config.source = "{{ bos_token }}{{ tools is none }}{{ messages|length }}{{ enable_thinking }}";
    assert_int_equal(sl_chat_create(&config, &chat, NULL), 0);
    assert_false(sl_chat_get_facts(chat)->builtin);
    request.extra = json_pack("{s:b}", "enable_thinking", 0);
    assert_int_equal(sl_chat_render(chat, &request, &out, NULL), 0);
    assert_string_equal(out.data, "<s>True2False");
    request.messages = request.extra;
    assert_int_equal(sl_chat_render(chat, &request, &out, NULL), SL_ERR_INVALID);
    json_decref(request.extra);
    json_decref(messages);
    sl_chat_free(chat);
    sl_buffer_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(language_is_that_of_jinja2),
        cmocka_unit_test(model_templates_render_as_in_jinja2),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(bombs_are_refused),
        cmocka_unit_test(limits_are_the_callers),
        cmocka_unit_test(errors_name_template_line_and_rule),
        cmocka_unit_test(every_loop_over_data_spends),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(models_without_a_template_get_chatml),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
