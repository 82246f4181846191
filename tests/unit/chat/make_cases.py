#!/usr/bin/env python3
"""Writes cases.json: chat templates, variables, and what Python's jinja2 makes of them.

Run with a Python that has jinja2 3.1, from anywhere. The environment is the one that transformers compiles chat
templates with. Model templates are read from ../shared/tokenizers (beside the repository) and referred to by name.
"""
import datetime
import json
import pathlib

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).resolve().parent
SHARED = HERE.parents[3] / "shared" / "tokenizers"
NOW = 1721952000


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise TemplateError(message)

    def strftime_now(text):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None).strftime(text)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


ENV = environment()


def run(source, variables):
    """The text, or None for an error of any kind."""
    try:
        return ENV.from_string(source).render(**variables)
    except Exception:
        return None


# ---- model templates over a matrix of conversations ----

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather <now> & \"later\" in a city, é.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                   "required": ["city"], "extra": [], "none": None, "deep": {"a": [1, 2.5, True, {}]}}}}]
SYSTEM = {"role": "system", "content": " You are terse.\n"}
USER = {"role": "user", "content": " Hello, Größe 你好 🙂!\n"}
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2}}}]}
CALL_TEXT = {"role": "assistant", "content": "Looking.", "tool_calls": [
    {"function": {"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}}]}
TWO_CALLS = {"role": "assistant", "content": "", "tool_calls": CALL["tool_calls"] * 2}
RESPONSE = {"role": "tool", "content": "{\"degrees\": 21.5}"}
CONVERSATIONS = [
    [USER],
    [SYSTEM, USER],
    [USER, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "And?"}],
    [SYSTEM, USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi."}, {"role": "user", "content": "x"}],
    [USER, {"role": "assistant", "content": "Yes.", "reasoning_content": "\nwhy not\n"}],
    [USER, {"role": "assistant", "content": "<think>\n\nlong\n</think>\n\nYes."}],
    [SYSTEM, USER, CALL, RESPONSE],
    [USER, CALL_TEXT, RESPONSE, RESPONSE, {"role": "assistant", "content": "21 degrees"}],
    [USER, TWO_CALLS, RESPONSE, RESPONSE, USER],
    [USER, CALL, {"role": "ipython", "content": {"degrees": [1, 2]}}],
    [{"role": "user", "content": "<tool_response>\nx\n</tool_response>"}, USER, SYSTEM, USER],
    [USER, {"role": "assistant", "content": "a", "tool_calls": []}, USER],
    [SYSTEM],
    [],
]


def model_cases(folder):
    config = json.loads((SHARED / folder / "tokenizer_config.json").read_text())
    source = config["chat_template"]
    base = {key: config.get(key) or "" for key in ("bos_token", "eos_token")}
    cases = []
    for number, messages in enumerate(CONVERSATIONS):
        for tools in (None, TOOLS) if number in (0, 1, 6, 7, 8, 12) else (None,):
            for extra in ({}, {"add_generation_prompt": True}, {"add_generation_prompt": True, "enable_thinking": False},
                          {"add_generation_prompt": True, "enable_thinking": True},
                          {"date_string": "1 Jan 2025", "tools_in_user_message": False}):
                if len(extra) == 2 and number not in (0, 1, 6, 7):
                    continue
                variables = dict(base, messages=messages, **extra)
                if tools is not None:
                    variables["tools"] = tools
                elif number % 2:
                    variables["tools"] = None
                cases.append({"model": folder, "variables": variables, "expected": run(source, variables)})
    return cases


# ---- the language ----

V = {
    "t": True, "f": False, "n": None, "i": 7, "neg": -3, "x": 2.5, "s": "Hello World", "empty": "", "u": "Größe 你好🙂",
    "l": [3, 1, 2], "names": ["bob", "Alice", "carol", "alice"], "e": [], "d": {"b": 1, "a": 2, "C": 0}, "ed": {},
    "m": [{"role": "user", "content": "hi", "k": {"z": 1}}, {"role": "tool", "content": "x<y", "k": {"z": 0}},
          {"role": "user", "content": "", "k": {"z": 2}}],
    "q": "it's", "qq": "it's \"q\"", "nested": {"a": [1, "two", None, True, 1.0, {"k": []}]}, "sp": "  pad \n",
    "lines": "one\ntwo\n\nthree", "key": {"items": 5, "get": "g"}, "ctl": "a\tb\x01\x7f\u200b\\",
}

CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'"
          " + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
CHATML_SYSTEM = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
                 "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
                 "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
                 "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
MISTRAL = ("{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
           "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
           "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
           "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}"
           "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}")
GEMMA = ("{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
         "{% endif %}{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
         "{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content']"
         " | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}")

CHATS = [
    {"messages": [SYSTEM, USER], "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"},
    {"messages": [USER, {"role": "assistant", "content": "yes "}, USER], "bos_token": "<s>", "eos_token": "</s>"},
    {"messages": [USER, USER], "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": False},
]

TEXTS = [
    # white space control
    "a\n{% if t %}\nb\n{% endif %}\nc\n", "a\n   {% if t %}\nb\n   {% endif %}\nc", "  {{ i }}  \n", "x {{- i -}} y",
    "a\n  {%- if t %} b {%- endif %}  c", "a {%+ if t %}\nb{% endif +%}\nc", "  {%+ if t %}b{% endif %}", "a{# c #}\nb",
    "a\n  {# c #}\n b", "a {#- c -#} b", "{#- #}", "a  {#+ c +#}\nb", "\n\n{{ i }}\n\n", "a\r\nb\rc\n", "{% if t %}\n\n a{% endif %}",
    "{{ i }}\n{% if t %}  x{% endif %}\n  {% if f %}y{% endif %}\nz", "a\n\t {% set z = 1 %}\n{{ z }}", "{{ i }} {% if t %}\n  {% endif %}|",
    "{% for x in l %}\n  {{ x }}\n{% endfor %}\n", "{% for x in l -%}\n  {{ x }}\n{%- endfor %}\n.", "text only", "", "\n", "{", "a { b } % }}",
    "{% raw %}{{ x }} {% if %}{% endraw %}", "a\n  {% raw -%}\n  {{ y }}\n  {%- endraw %}\nb", "  {% raw %}\n x {% endraw %}\n  y", "{%- raw %} {# {%- endraw -%}  z",
    "{{ '{{' }}{{ '%}' }}{{ \"}}\" }}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ {'a':1}}}", "a{{i}}{#x#}{{i}}b", "{{-i-}}", "{{ i }}{%- if t -%} {% endif %} ",
    # literals
    "{{ 'a\\n\\t\\\\\\'\\\"b' }}", "{{ \"\\x41\\u00e9\\U0001F642\\101\\q\" }}", "{{ 'a' 'b' \"c\" }}", "{{ 1_000 }} {{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 0 }} {{ 00 }}", "{{ 1.5e3 }} {{ 1e-7 }} {{ 1.0 }} {{ 1e16 }} {{ 123456789.123 }} {{ 1e15 }} {{ 0.0001 }} {{ 5e-324 }} {{ 1_0.2_5 }}",
    "{{ [1, 'a', 2.0, none, True, [], ()] }}", "{{ (1,) }} {{ (1, 2) }} {{ () }} {{ 1, 2 }}", "{{ {'a': 1, 2: 'b', none: 1.5, (1,2): true} }}", "{{ true }} {{ True }} {{ none }} {{ None }} {{ false }}", "{{ [1,2,] }} {{ {'a':1,} }}",
    "{{ [q, qq, ctl, u, 'é\\u00a0'] }}", "{{ 'multi\nline' }}", "{{ 9223372036854775807 }}", "{{ 'a' ~ 1 ~ none ~ 2.5 ~ [1] }}", "{{ 1 if t }}|{{ 1 if f }}|", "{{ 'x' if f else 'y' if f else 'z' }}",
    # names, attributes, items, slices
    "{{ s }} {{ missing }}|", "{{ d.a }} {{ d['a'] }} {{ d.zz }}|{{ d['zz'] }}|", "{{ missing.x }}", "{{ missing['x'] }}", "{{ d.zz.y }}", "{{ l[0] }}{{ l[-1] }}{{ l[9] }}|", "{{ l.0 }} {{ nested.a.1 }} {{ nested.a[5].k }}", "{{ s[0] }}{{ s[-1] }}{{ u[6] }}{{ u[-1] }}{{ s[99] }}|",
    "{{ l[1:] }}{{ l[:1] }}{{ l[::-1] }}{{ l[-2:] }}{{ l[::2] }}{{ l[5:] }}{{ l[:] }}{{ l[2:0:-1] }}", "{{ s[1:4] }}|{{ s[::-1] }}|{{ s[-3:] }}|{{ u[::-1] }}|{{ u[2:8] }}|{{ u[::3] }}|{{ s[:-20] }}|", "{{ (1,2,3)[1:] }} {{ range(5)[1] }}", "{{ l[::0] }}", "{{ l['a'] }}|{{ s['a'] }}|{{ i['a'] }}|{{ i.b }}|", "{{ s.upper() }} {{ s['lower']() }}", "{{ key.items is callable }} {{ key['items'] }} {{ key.get('get') }}" , "{{ d.items() }} {{ d.keys() }} {{ d.values() }}", "{{ l[t] }}", "{{ nested['a'][5]['k'] }}", "{{ l[1.0] }}|", "{{ d[[]] }}|",
    "{{ s.__class__ }}|", "{{ l.append(1) }}", "{{ d.update({}) }}", "{{ l.append is defined }}", "{{ l[99999999999:] }}{{ l[-99999999999::9999999999] }}{{ l[9223372036854775807::-9223372036854775807] }}",
    # operators
    "{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }}", "{{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ -7.5 % 2 }} {{ 7.5 % -2 }} {{ 1 / 3 }} {{ 2 ** 0.5 }} {{ 1 - 0.9 }} {{ 0.1 + 0.2 }} {{ -0.0 }}", "{{ -i }} {{ +i }} {{ - -i }} {{ not t }} {{ not not i }} {{ -i|abs }} {{ -x }} {{ +t }} {{ -t }}", "{{ 1 / 0 }}", "{{ 1 % 0 }}", "{{ 1.0 // 0 }}", "{{ 'a' + 'b' }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ 'ab' * 3 }} {{ 2 * [0] }} {{ 'a' * -1 }}|", "{{ 'a' + 1 }}", "{{ [1] + (2,) }}", "{{ missing + 1 }}", "{{ none + 1 }}", "{{ missing ~ 'x' }}", "{{ true + true }} {{ i + true }} {{ 1 + 1.0 }} {{ 3 * 1.5 }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 == true }} {{ 1 < 2 > 1 }} {{ 'a' < 'b' }} {{ [1,2] < [1,3] }} {{ (1,) < (1,2) }}", "{{ 1 < 'a' }}", "{{ none < 1 }}", "{{ 1 == '1' }} {{ none == none }} {{ missing == missing }} {{ missing == none }} {{ [1] == (1,) }} {{ {'a':1} == {'a':1.0} }} {{ 'é' == u[3] }} {{ {1: 2} == {1: 3} }} {{ 1 != 2 }}", "{{ 1 in l }} {{ 9 in l }} {{ 'a' in d }} {{ 'ell' in s }} {{ 9 not in l }} {{ not 1 in l }} {{ '' in s }} {{ 'x' in missing }}", "{{ 1 in s }}", "{{ 1 in 5 }}", "{{ 1 or 2 }} {{ 0 or 'x' }} {{ '' and 1 }}| {{ 'a' and 'b' }} {{ none or [] }} {{ t and f or t }} {{ missing or 'd' }}", "{{ 0 or missing }}|{{ not missing }}", "{{ (1 + 2) * 3 }} {{ 1 + 2 ~ 3 + 4 }} {{ 'a' ~ 2 * 3 }}", "{{ '%s is %d and %.2f, %5s|%-5s|%03d %r %%' % ('a', 3, 2.5, 'b', 'c', 7, 'q') }}", "{{ '%s' % i }} {{ '%s %s' % ('a',) }}", "{{ '%x %X %+d %e %g' % (255, 255, 5, 1.5, 0.00001) }}", "{{ i is defined and i > 3 }}", "{{ 1 if i > 3 and not f else 2 }}",
    "{{ [] is none or {} == {} }}", "{{ 3 in (1,2,3) and 'b' not in ['a'] }}", "{{ 1 in d.values() }} {{ ('a', 2) in d.items() }}", "{{ 'a' 'b' in 'cab' }}",
    # statements
    "{% if f %}1{% elif i == 7 %}2{% else %}3{% endif %}", "{% if f %}1{% elif n %}2{% else %}3{% endif %}{% if e %}x{% endif %}", "{% if missing %}1{% else %}0{% endif %}{% if not missing %}y{% endif %}", "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }} {% endfor %}", "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }},{% endfor %}", "{% for x in l if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% else %}none{% endfor %}", "{% for x in e %}x{% else %}empty{% endfor %}", "{% for x in l if x > 9 %}x{% else %}none{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}{% for c in u %}[{{ c }}]{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [(1,2,3)] %}{% endfor %}", "{% for x in i %}{% endfor %}", "{% for x in missing %}x{% else %}e{% endfor %}", "{% for x in n %}{% endfor %}", "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}", "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}", "{% for x in l %}{% set o = loop %}{% for y in [0] %}{{ o.index }}{{ loop.depth }}{% endfor %}{% endfor %}",
    "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}", "{% break %}", "{% set a = 1 %}{{ a }}{% set a, b = 2, 3 %}{{ a }}{{ b }}", "{% set a = 1 %}{% for x in l %}{% set a = a + x %}{{ a }} {% endfor %}{{ a }}", "{% set a = 1 %}{% if t %}{% set a = 2 %}{% endif %}{{ a }}", "{% set ns = namespace(c=0, d='x') %}{% for x in l %}{% set ns.c = ns.c + x %}{% endfor %}{{ ns.c }}{{ ns.d }}{{ ns.zz }}|{{ ns['c'] }}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}", "{% set d.a = 5 %}", "{% set ns = namespace() %}{% set ns.l = l + [1] %}{{ ns.l }}", "{% set z %}a {{ i }}\n{% endset %}[{{ z }}]", "{% set z | upper | trim %} abc {% endset %}[{{ z }}]{{ z is string }}", "{% set z = 1, 2 %}{{ z }}", "{% for x in l %}{% if loop.first %}{% set q2 = x %}{% endif %}{{ q2 }}|{% endfor %}{{ q2 }}", "{% set x = 5 %}{% for x in l %}{{ x }}{% endfor %}{{ x }}", "{% for x in l %}{% endfor %}{{ loop }}|",
    "{% macro m(a, b=2, c=b) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=4) }}{{ m(b=1, a=0) }}{{ m() }}", "{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(4) }}", "{% macro m() %}{{ i }}{{ g }}{% endmacro %}{% set g = 9 %}{{ m() }}", "{% macro m() %}{% set i = 1 %}{{ i }}{% endmacro %}{{ m() }}{{ i }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, z=3) }}", "{% macro m(a) %}[{{ caller(a) }}]{% endmacro %}{% call(v) m(5) %}v={{ v }}{% endcall %}", "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{% endcall %}", "{% macro m() %} x {% endmacro %}{{ m() | trim | upper }}{{ m() + 'y' }}", "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m(l) %}{% for x in l %}{{ loop.index }}{{ x }}{% endfor %}{% endmacro %}{{ m([5, 6]) }}{{ m('ab') }}",
    "{% macro m(p) %}{{ p.k if p is mapping else p|join(',') }}{% endmacro %}{{ m({'k': 1}) }}{{ m(l) }}", "{% macro m(a) %}x{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}x{% endmacro %}{{ m(z=2) }}", "{% macro m(a) %}x{% endmacro %}{{ m(1, a=2) }}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}", "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aca{% endfilter %}", "{% with a = 1, b = i %}{{ a }}{{ b }}{% endwith %}{{ a }}|", "{% generation %}x{{ i }}{% endgeneration %}y", "{% for x in l %}{% generation %}\n{{ x }}\n{% endgeneration %}\n{% endfor %}", "{% generation %}{% set w = 1 %}{{ w }}{% endgeneration %}{{ w }}|",
    # calls
    "{{ range(3) | list }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ range(3) }} {{ range(0) | list }}", "{{ range(1, 9, 3) | length }}{{ 3 in range(5) }}", "{{ range(1000000) }}", "{{ range() }}", "{{ range(1, 2, 0) }}", "{{ dict(a=1, b='x') }} {{ dict([('k', 1)]) }} {{ dict({'a': 1}, b=2) }}", "{{ raise_exception('no') }}", "{{ missing() }}", "{{ i() }}", "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d %H:%M:%S %A %B %a %j %y %I %p %% %-d') }}", "{{ strftime_now is defined }} {{ raise_exception is defined }} {{ nothing is defined }}", "{{ range(*[1, 3]) | list }} {{ dict(**{'a': 1}) }}", "{{ s.replace('l', 'L', 1) }}", "{{ m[0].get('role') }} {{ m[0].get('zz') }} {{ m[0].get('zz', 'd') }}", "{{ s.nothing() }}",
    # tests
    "{{ i is defined }}{{ zz is defined }}{{ zz is undefined }}{{ n is none }}{{ i is none }}{{ s is string }}{{ i is string }}{{ d is mapping }}{{ l is mapping }}", "{{ l is sequence }}{{ s is sequence }}{{ d is sequence }}{{ i is sequence }}{{ l is iterable }}{{ i is iterable }}{{ s is iterable }}{{ n is iterable }}{{ d is iterable }}", "{{ i is number }}{{ x is number }}{{ t is number }}{{ s is number }}{{ t is boolean }}{{ i is boolean }}{{ t is true }}{{ f is false }}{{ 1 is true }}{{ i is integer }}{{ t is integer }}{{ x is float }}{{ i is float }}", "{{ i is odd }}{{ i is even }}{{ i is divisibleby 7 }}{{ i is divisibleby(2) }}{{ 'a' is lower }}{{ 'A' is upper }}{{ 'aB' is lower }}{{ '1' is upper }}{{ 'É' is upper }}", "{{ i is equalto 7 }}{{ i is eq 8 }}{{ i is == 7 }}", "{{ i is eq(7) }}{{ i is ne 7 }}{{ i is lt 8 }}{{ i is gt(8) }}{{ i is ge 7 }}{{ i is le 6 }}{{ i is greaterthan 1 }}{{ i is lessthan 1 }}", "{{ i is in [7] }}{{ 'a' is in 'abc' }}{{ i is not in [7] }}", "{{ i is not none }}{{ n is not none }}{{ zz is not defined }}", "{{ n is sameas none }}{{ t is sameas true }}{{ 1 is sameas true }}", "{{ i is nosuchtest }}", "{{ d.a is defined and d.a is not none and d.a == 2 }}", "{{ range is callable }}{{ s is callable }}{{ 'upper' is filter }}{{ 'zz' is filter }}{{ 'odd' is test }}", "{{ zz is string }}{{ zz is none }}{{ zz is sequence }}{{ zz is iterable }}{{ zz is mapping }}", "{{ 3 is odd is even }}", "{{ d.zz is defined or i is defined }}{{ 1 if zz is defined else 2 }}", "{{ s is odd }}", "{{ i is odd }} {{ none is odd }}", "{{ (l|map('upper')) is iterable }}{{ (l|map('string')) is sequence }}{{ d.items() is iterable }}{{ d.items() is sequence }}{{ range(2) is sequence }}", "{{ i is odd + 1 }}|",
    # filters
    "{{ nested | tojson }} {{ u | tojson }} {{ ctl | tojson }} {{ qq | tojson }} {{ '<&>' | tojson }}", "{{ nested | tojson(indent=2) }}", "{{ [[], {}, [1], {'a': {}}] | tojson(indent=4) }}", "{{ d | tojson(sort_keys=true) }} {{ d | tojson(separators=(',', ':')) }} {{ u | tojson(ensure_ascii=true) }} {{ d | tojson(indent='--') }} {{ l | tojson(false, 0) }}", "{{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }} {{ (1, 2) | tojson }} {{ [1e16, 1.0, -0.5] | tojson }}", "{{ missing | tojson }}", "{{ range(3) | tojson }}", "{{ namespace(a=1) | tojson }}", "{{ m | tojson }}", "{{ [1, missing] | tojson }}", "{{ {(1,): 2} | tojson }}",
    "{{ l | length }}{{ s | length }}{{ u | length }}{{ d | count }}{{ missing | length }}{{ e | length }}", "{{ i | length }}", "{{ sp | trim }}|{{ 'xxaxx' | trim('x') }}|{{ i | trim }}|{{ missing | trim }}|{{ '\u00a0a\u3000' | trim }}|", "{{ l | join(', ') }} {{ l | join }} {{ m | join('+', attribute='role') }} {{ m | join(attribute='k.z') }} {{ 'abc' | join('-') }} {{ [1, none, 2.0] | join('|') }}", "{{ s | upper }} {{ s | lower }} {{ u | upper }} {{ 'straße' | upper }} {{ i | upper }} {{ 'foo-bar (baz) [qUX] it\\'s' | title }} {{ 'hELLO wORLD' | capitalize }} {{ 'école' | title }}", "{{ s | replace('o', '0') }} {{ s | replace('l', '', 2) }} {{ s | replace('', '-') }} {{ i | replace('7', 8) }}", "{{ missing | default('d') }} {{ n | default('d') }} {{ '' | default('d', true) }} {{ 0 | d(5, boolean=true) }} {{ missing | default }}| {{ i | d('z') }}", "{{ l | first }}{{ l | last }}{{ e | first }}|{{ s | first }}{{ s | last }}{{ d | first }}{{ e | last }}|", "{{ s | list }} {{ d | list }} {{ (1,2) | list }} {{ missing | list }}", "{{ d | items | list }} {{ missing | items | list }}{% for k, v in d | items %}{{ k }}{{ v }}{% endfor %}", "{{ l | items | list }}", "{{ d | dictsort }} {{ d | dictsort(true) }} {{ d | dictsort(false, 'value') }} {{ d | dictsort(by='value', reverse=true) }}", "{{ d | dictsort(by='zz') }}",
    "{{ m | map(attribute='role') | list }} {{ m | map(attribute='k.z') | join }} {{ l | map('string') | list }} {{ names | map('upper') | join(',') }} {{ m | map(attribute='zz', default='?') | list }} {{ names | map('replace', 'a', '_') | list }}", "{{ m | map(attribute='zz') | list }}", "{{ [1,2,3,4] | select('odd') | list }} {{ [1,2,3,4] | reject('odd') | list }} {{ [0,1,'',none] | select | list }} {{ [1,2,3] | select('gt', 1) | list }} {{ [1,5,3] | reject('in', [5]) | list }}", "{{ m | selectattr('role', 'equalto', 'user') | list | length }} {{ m | rejectattr('role', '==', 'user') | map(attribute='content') | list }} {{ m | selectattr('content') | list | length }} {{ m | rejectattr('content') | list | length }} {{ m | selectattr('k.z', 'gt', 0) | map(attribute='k.z') | list }} {{ m | selectattr('zz', 'defined') | list }}", "{{ m | select('nosuch') | list }}", "{{ m | map('nosuch') | list }}", "{{ m | map() | list }}",
    "{{ l | sort }} {{ l | sort(reverse=true) }} {{ names | sort }} {{ names | sort(case_sensitive=true) }} {{ m | sort(attribute='k.z') | map(attribute='k.z') | list }} {{ m | sort(attribute='role,k.z', reverse=true) | map(attribute='k.z') | list }}", "{{ [1, 'a'] | sort }}", "{{ names | unique | list }} {{ names | unique(case_sensitive=true) | list }} {{ [1, 1.0, true, 2] | unique | list }} {{ m | unique(attribute='role') | map(attribute='k.z') | list }}", "{{ l | reverse | list }} {{ s | reverse }} {{ u | reverse }} {{ d | reverse | list }}", "{{ '42' | int }} {{ '4x' | int }} {{ '4.7' | int }} {{ 3.9 | int }} {{ -3.9 | int }} {{ none | int(5) }} {{ '0x1f' | int(0, 16) }} {{ ' 12 ' | int }} {{ true | int }} {{ '1_000' | int }}", "{{ '1.5' | float }} {{ 'x' | float }} {{ i | float }} {{ none | float(1.0) }} {{ '1e3' | float }} {{ 'inf' | float }} {{ '.5' | float }} {{ '5.' | float }} {{ '-' | float }}", "{{ i | string }}{{ n | string }}{{ l | string | length }}{{ missing | string }}|", "{{ neg | abs }} {{ -2.5 | abs }} {{ 'a' | abs }}", "{{ neg | abs }} {{ -2.5 | abs }}", "{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 42 | round }} {{ 1234.5 | round(-2) }} {{ 2.1 | round(0, 'ceil') }} {{ 2.9 | round(method='floor') }} {{ 2.123 | round(2, 'ceil') }} {{ 1.005 | round(2) }}", "{{ lines | indent }}|{{ lines | indent(2, true) }}|{{ lines | indent(1, blank=true) }}|{{ lines | indent('> ') }}|{{ 'a\n' | indent }}|{{ '' | indent(2, true) }}|", "{{ '<a & \"b\">' | e }} {{ \"'\" | escape }} {{ '<b>' | safe }}", "{{ l | sum }} {{ m | sum(attribute='k.z') }} {{ [0.5, 1] | sum }} {{ l | sum(start=10) }} {{ e | sum }}", "{{ l | min }}{{ l | max }}{{ names | min }}{{ names | max }}{{ e | min }}|{{ m | max(attribute='k.z') }}", "{{ s | nosuchfilter }}", "{{ '%s-%s' | format('a', 1) }}", "{{ m[0] | attr('get') is callable }}{{ m[0] | attr('role') }}|", "{{ s | upper | lower | length }} {{ s | replace('l', 'x') | upper }} {{ -1 | abs + 1 }} {{ 'a' ~ 'b' | upper }}", "{{ l | join(sep='x') }}", "{{ s | length(1) }}", "{{ s | replace('a') }}",
    "{% if m | selectattr('role', 'equalto', 'nobody') %}always{% endif %}{% if (m | selectattr('role', 'equalto', 'nobody') | list) %}never{% endif %}", "{% set g = l | map('string') %}{{ g | list }}{{ g | list }}", "{{ l | map('string') | first }}", "{{ (l | map('string'))[0] }}|", "{{ l | map('string') | length }}", "{{ m | map(attribute='content') | map('upper') | join(',') }}",
    # methods
    "{{ sp.strip() }}|{{ sp.lstrip() }}|{{ sp.rstrip() }}|{{ 'xxaxyx'.strip('xy') }}|{{ 'abc'.lstrip('ab') }}|{{ 'abc'.rstrip('cb') }}|{{ 'éaé'.strip('é') }}|{{ 'a'.strip('') }}|{{ 'a '.strip(none) }}|", "{{ 'a,b,,c'.split(',') }} {{ 'a b  c'.split() }} {{ 'a b  c '.split(none, 1) }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a'.split('ab') }} {{ 'a--b'.split('--') }} {{ 'aaa'.rsplit('aa') }} {{ 'a  b c'.rsplit() }} {{ 'abc'.split('c', maxsplit=0) }}", "{{ 'a'.split('') }}", "{{ s.startswith('Hell') }}{{ s.endswith('ld') }}{{ s.startswith('x') }}{{ s.startswith(('a', 'He')) }}{{ s.endswith('') }}", "{{ s.upper() }}{{ s.lower() }}{{ 'they\\'re x1y'.title() }}{{ 'ABC def'.capitalize() }}{{ 'aB'.swapcase() }}{{ 'ǆa'.title() }}", "{{ s.find('o') }}{{ s.find('zz') }}{{ s.rfind('o') }}{{ u.find('好') }}{{ s.index('W') }}{{ s.count('l') }}{{ s.count('') }}{{ ''.find('') }}{{ s.rfind('') }}", "{{ s.index('zz') }}", "{{ ', '.join(['a', 'b']) }}{{ '-'.join('xyz') }}{{ ''.join([]) }}|", "{{ ','.join([1]) }}", "{{ 'a.b'.replace('.', '!') }}{{ 'aaa'.replace('a', 'b', 2) }}{{ 'é'.replace('', '-') }}{{ 'ab'.replace('', '-', 2) }}{{ ''.replace('', 'x') }}", "{{ 'a\nb\r\nc'.splitlines() }} {{ 'a\n'.splitlines(true) }} {{ ''.splitlines() }}", "{{ '12'.isdigit() }}{{ 'a1'.isalnum() }}{{ 'ab'.isalpha() }}{{ ' '.isspace() }}{{ ''.isdigit() }}{{ 'Ab'.islower() }}{{ 'AB'.isupper() }}", "{{ 'prefix-x'.removeprefix('prefix-') }}{{ 'x.py'.removesuffix('.py') }}", "{{ d.items() | list }}{{ d.keys() | list }}{{ d.values() | list }}{{ d.get('a') }}{{ d.get('zz', 5) }}{{ d.copy() }}", "{{ l.index(1) }}{{ l.count(3) }}{{ (1, 2).index(2) }}", "{{ l.index(99) }}", "{{ d.items() | length }}{{ d.items()[0] }}|", "{{ s.strip(1) }}", "{{ s.split(',', 1, 2) }}", "{{ s.upper(1) }}", "{{ d.pop('a') }}", "{{ l.sort() }}",
    # malformed
    "{% if t %}", "{% for x in l %}", "{% endif %}", "{{ i", "{% if t %}{% endfor %}", "{{ 1 + }}", "{{ (1 }}", "{{ 1) }}", "{{ [1, }}", "{{ {1} }}", "{{ 'abc }}", "{{ i.  }}", "{{ | upper }}", "{{ i | }}", "{% nosuch %}", "{% set %}", "{% set a %}", "{% set 1 = 2 %}", "{% for in l %}{% endfor %}", "{% macro %}{% endmacro %}", "{{ a b }}", "{{ }}", "{# never closed", "{% raw %} never", "{{ i ? }}", "{{ m(a=1, 2) }}", "{% if %}{% endif %}", "{{ not }}", "{{ i is }}", "{% else %}", "{% macro m(a=1, b) %}{% endmacro %}", "{{ 'a' if }}", "{% set true = 1 %}", "{{ 007 }}", "{{ 1.2.3 }}", "{% for x in l %}{% else %}{% else %}{% endfor %}", "{{ '\\x4' }}", "{% if t %}a{% else %}b{% elif t %}c{% endif %}",
]

PLAIN_CHAT = [CHATML, CHATML_SYSTEM, MISTRAL, GEMMA]


def main():
    cases = [{"template": source, "expected": run(source, V)} for source in TEXTS]
    for source in PLAIN_CHAT:
        cases += [{"template": source, "variables": chat, "expected": run(source, chat)} for chat in CHATS]
    for folder in ("qwen3", "llama3_2"):
        cases += model_cases(folder)
    for case in cases:  # null: jinja2 refuses
        assert case["expected"] is None or "object at 0x" not in case["expected"], case
    document = {"now": NOW, "variables": V, "cases": cases}
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":")).replace('},{"template"', '},\n{"template"')
    (HERE / "cases.json").write_text(text.replace('},{"model"', '},\n{"model"') + "\n")
    print(len(cases), "cases,", sum(c["expected"] is None for c in cases), "refusals,", len(text), "bytes")


main()
