/* Chat templates against Python's jinja2 (cases.json, written by make_cases.py), and against hostile ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "chat/chat.h"
#include "chat/template.h"

#include <stdio.h>
#include <stdlib.h>
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
        cmocka_unit_test(language_is_that_of_jinja2), cmocka_unit_test(model_templates_render_as_in_jinja2),
        cmocka_unit_test(deep_nesting_is_refused),    cmocka_unit_test(bombs_are_refused),
        cmocka_unit_test(limits_are_the_callers),     cmocka_unit_test(errors_name_template_line_and_rule),
        cmocka_unit_test(every_allocation_may_fail),  cmocka_unit_test(models_without_a_template_get_chatml),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
