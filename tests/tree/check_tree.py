#!/usr/bin/env python3
"""The rules that the whole tree keeps, checked over the files that git tracks.

check_tree.py ROOT [--cc CC]    checks ROOT; before that, plants one violation of every rule in a temporary
                                tree and sees that each is found

Prints what was checked; the closing line is "N passed, N failed". Needs nothing but Python 3, git and a compiler.
"""
import argparse
import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

LAYERS = ["base", "quant", "program", "format", "token", "grammar", "chat", "model", "backend", "plan", "kv", "sched", "api"]
# Over include/sluice.h, and these headers of each other.
PROGRAMS = {"plot": [], "hub": [], "load": ["plot/plot.h"], "server": ["hub/hub.h"],
            "cli": ["server/serve.h", "hub/hub.h", "hub/cache.h", "load/load.h", "plot/plot.h"]}
SOURCE = (".c", ".h", ".cu", ".cuh", ".def", ".inc")
TEXT = SOURCE + (".py", ".txt", ".cmake", ".sh", ".md", ".json", ".yml", ".yaml")
FILE_LINES, FUNCTION_LINES, PARAMETERS, COLUMNS = 1500, 80, 6, 120
PARAGRAPH_WORDS = 120

# ---- exceptions: (rule, file, what) -> why. One that no longer applies is a failure too. --------------------------
EXCEPTIONS = {
    ("memory", "src/api/api.c", "free"): "the text is jansson's own: json_dumps",
    ("memory", "src/token/load_templates.c", "free"): "scandir's entries",
    ("parameters", "include/sluice.h", "sluice_tokenize"): "text in and list out are a pair each",
    ("parameters", "include/sluice.h", "sluice_detokenize"): "list in and text out are a pair each",
    ("parameters", "src/api/tokens.c", "sluice_tokenize"): "as in sluice.h",
    ("parameters", "src/api/tokens.c", "sluice_detokenize"): "as in sluice.h",
    ("structs", "src/backend/cuda/run/executor.h", "sl_executor"): "backend.h leaves it to each backend",
    ("structs", "src/plan/split.c", "sl_executor"): "backend.h leaves it to each backend",
    ("parameters", "server/http_connection.c", "on_request"): "libmicrohttpd's MHD_AccessHandlerCallback",
}

# Headers that are no unit of their own: bodies that each CPU tier compiles with its own vector type and macros. The
# tiers' .c files compile them.
TEMPLATES = re.compile(r"src/backend/cpu/(simd|matmul)_\w+\.h$")
# What a tier's folder holds is called by what it does, the same in each.
TIERS = re.compile(r"src/backend/cpu/(plain|avx2|avxvnni|avx512|amx)/")


class Tree:
    def __init__(self, root):
        self.root = root
        names = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=False)
        own = os.path.exists(os.path.join(root, ".git"))
        if own and names.returncode == 0:
            self.names = [n for n in names.stdout.decode().split("\0") if n]
        else:  # an unpacked archive
            self.names = [os.path.relpath(os.path.join(folder, f), root)
                          for folder, _, files in os.walk(root) for f in files]
        self.names = sorted(n for n in self.names if os.path.isfile(os.path.join(root, n)))
        self.bytes = {}
        for name in self.names:
            if name.endswith(TEXT) or os.path.basename(name) == "Makefile":
                with open(os.path.join(root, name), "rb") as file:
                    self.bytes[name] = file.read()
        self.text = {n: b.decode("utf-8", "replace") for n, b in self.bytes.items()}
        self.code = {n: strip(t) for n, t in self.text.items() if n.endswith(SOURCE)}
        self.used = set()

    def sources(self, *prefixes):
        return [n for n in self.code if n.startswith(prefixes)]

    def excused(self, rule, name, what):
        key = (rule, name, what)
        if key in EXCEPTIONS:
            self.used.add(key)
            return True
        return False


TOKENS = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)


def strip(text):
    """Comments become blanks, strings and characters empty ones; lines stay where they are."""
    def blank(match):
        piece = match.group(0)
        if piece[0] == "/":
            return " " + "\n" * piece.count("\n")
        return piece[0] * 2
    return TOKENS.sub(blank, text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


# ---- rules: each yields "file:line: what is wrong" ----------------------------------------------------------------

def layer_of(name):
    """The place in the order of a file under src/; None: it is in no layer's folder."""
    parts = name.split("/")
    return LAYERS.index(parts[1]) if len(parts) > 2 and parts[1] in LAYERS else None


def includes(tree, name):
    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', tree.text[name], re.M):
        yield line_of(tree.text[name], match.start()), match.group(1), match.group(2)


def rule_layers(tree):
    """a layer includes itself and lower ones, by "layer/name.h"; the API sluice.h too; programs sluice.h only"""
    for name in tree.sources("src/", "include/"):
        own = layer_of(name) if name.startswith("src/") else None
        if name.startswith("src/") and own is None:
            yield f"{name}:1: its folder is no layer ({' '.join(LAYERS)})"
            continue
        for line, kind, target in includes(tree, name):
            if kind == "<":
                if target == "sluice.h":
                    yield f"{name}:{line}: sluice.h is included as \"sluice.h\""
                continue
            if name.startswith("include/"):
                yield f"{name}:{line}: the public header includes \"{target}\""
            elif target == "sluice.h":
                if own != LAYERS.index("api"):
                    yield f"{name}:{line}: a layer includes \"{target}\", which lies above it"
            elif target.split("/")[0] not in LAYERS or "/" not in target:
                yield f"{name}:{line}: \"{target}\" is not of the form \"layer/name.h\""
            elif LAYERS.index(target.split("/")[0]) > own:
                yield f"{name}:{line}: {name.split('/')[1]} includes \"{target}\", which lies above it"
            elif f"src/{target}" not in tree.names:
                yield f"{name}:{line}: there is no src/{target}"
    for name in tree.sources(*(p + "/" for p in PROGRAMS)):
        folder = name.split("/")[0]
        for line, kind, target in includes(tree, name):
            own = f"{folder}/{target}" in tree.names or target in PROGRAMS[folder]
            if kind == '"' and target != "sluice.h" and not own:
                yield f"{name}:{line}: a program includes \"{target}\"; it may have sluice.h and its own headers"


def calls(tree, names, words):
    pattern = re.compile(r"(?<![\w.>])(" + "|".join(words) + r")[ \t]*\(")
    for name in names:
        for match in pattern.finditer(tree.code[name]):
            yield name, line_of(tree.code[name], match.start()), match.group(1)


def rule_ends(tree):
    """no environment variables, and nothing that ends the process: src/ and the programs; exit only in cli/main.c"""
    words = ["getenv", "secure_getenv", "setenv", "putenv", "abort", "assert", "exit", "_exit", "_Exit", "quick_exit",
             "__builtin_trap", "__builtin_unreachable"]
    for name, line, word in calls(tree, tree.sources("src/", *(p + "/" for p in PROGRAMS)), words):
        if not (name == "cli/main.c" and word == "exit") and not tree.excused("ends", name, word):
            yield f"{name}:{line}: {word}"
    for name in tree.sources("src/", *(p + "/" for p in PROGRAMS)):
        for line, _, target in includes(tree, name):
            if target == "assert.h" and "static_assert" not in tree.code[name]:
                yield f"{name}:{line}: includes assert.h"
        for match in re.finditer(r"\benviron\b", tree.code[name]):
            yield f"{name}:{line_of(tree.code[name], match.start())}: environ"


def rule_memory(tree):
    """memory comes from base/alloc.c: no other call of the C library's allocator in src/"""
    words = ["malloc", "calloc", "realloc", "reallocarray", "free", "aligned_alloc", "posix_memalign", "strdup",
             "strndup", "asprintf", "vasprintf", "getline", "alloca", "__builtin_alloca"]
    for name, line, word in calls(tree, [n for n in tree.sources("src/") if n != "src/base/alloc.c"], words):
        if not tree.excused("memory", name, word):
            yield f"{name}:{line}: {word}"


def rule_prints(tree):
    """the library prints nothing"""
    words = ["printf", "puts", "putchar", "perror", "fprintf", "fputs", "vprintf", "vfprintf"]
    for name, line, word in calls(tree, tree.sources("src/"), words):
        if not tree.excused("prints", name, word):
            yield f"{name}:{line}: {word}"


def functions(code):
    """(name, first line, last line, parameters) of every function body, by counting braces."""
    lines = code.split("\n")
    for i, text in enumerate(lines):  # preprocessor lines, continued ones too, count as blank
        if text.lstrip().startswith("#"):
            while True:
                more = lines[i].rstrip().endswith("\\")
                lines[i] = ""
                i += 1
                if not more or i >= len(lines):
                    break
    flat = "\n".join(lines)
    depth, begin, head, skipped = 0, 0, None, []
    for match in re.finditer(r"[{};]", flat):
        at, mark = match.start(), match.group(0)
        if mark == "{":
            before = flat[begin:at].strip()
            if depth == 0 and re.search(r'(extern\s+""|\bnamespace(\s+\w+)?)$', before):
                skipped.append(depth)
                begin = at + 1
                continue
            if depth == 0:
                head = (before, begin + len(flat[begin:at]) - len(flat[begin:at].lstrip()))
            depth += 1
        elif mark == "}":
            if depth == 0:
                begin = at + 1
                continue
            depth -= 1
            if depth == 0:
                signature = head and parse_signature(head[0])
                if signature:
                    first = line_of(flat, head[1])
                    yield signature[0], first, line_of(flat, at), signature[1]
                begin, head = at + 1, None
        elif depth == 0:
            begin = at + 1


def parse_signature(text):
    """(name, parameters) of "... name(parameters)" or None when it is no function."""
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)|__launch_bounds__\s*\([^()]*\)|\b__restrict(__)?\b", " ", text, flags=re.S)
    text = text.strip()
    if not text.endswith(")") or "=" in re.sub(r"\([^()]*\)", "", text):
        return None
    depth = 0
    for i in range(len(text) - 1, -1, -1):
        depth += (text[i] == ")") - (text[i] == "(")
        if depth == 0:
            break
    name = re.search(r"(\w+)\s*$", text[:i])
    if not name or name.group(1) in ("if", "for", "while", "switch"):
        return None
    return name.group(1), count_parameters(text[i + 1:-1])


def count_parameters(inside):
    if inside.strip() in ("", "void"):
        return 0
    depth, count = 0, 1
    for c in inside:
        depth += (c in "([{<") - (c in ")]}>")
        count += c == "," and depth == 0
    return count


def rule_sizes(tree):
    """files up to 1,500 lines, functions up to 80, at most 6 parameters (declarations in headers too)"""
    for name in tree.sources("src/", "include/", "tests/", "bench/", "tools/", *(p + "/" for p in PROGRAMS)):
        code = tree.code[name]
        lines = code.count("\n")
        if lines > FILE_LINES:
            yield f"{name}: {lines} lines"
        found = {}
        for function, first, last, parameters in functions(code):
            length = last - first + 1
            if length > FUNCTION_LINES and not tree.excused("length", name, function):
                yield f"{name}:{first}: {function} has {length} lines"
            found[function] = (first, parameters)
        if name.endswith(".h"):
            for match in re.finditer(r"^[A-Za-z_][\w \t*]*?[ \t*](\w+)\(((?:[^(){};]|\([^()]*\))*)\)[\w\s()]*;", code, re.M):
                found[match.group(1)] = (line_of(code, match.start()), count_parameters(match.group(2)))
        for function, (line, parameters) in found.items():
            if parameters > PARAMETERS and not tree.excused("parameters", name, function):
                yield f"{name}:{line}: {function} has {parameters} parameters"


def rule_text(tree):
    """UTF-8, lines end in LF and the last one too, no tabs, no trailing blanks; C and CUDA: up to 120 columns"""
    for name, data in tree.bytes.items():
        if "/fixtures/" in name or "/golden/" in name:  # written by programs
            continue
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            yield f"{name}: not UTF-8 at byte {error.start}"
            continue
        if data and not data.endswith(b"\n") and not name.endswith(".json"):  # most are written by programs
            yield f"{name}: no newline at the end"
        for number, line in enumerate(text.split("\n"), 1):
            makefile = os.path.basename(name) == "Makefile"
            if "\r" in line:
                yield f"{name}:{number}: carriage return"
            if "\t" in (line[1:] if makefile else line):
                yield f"{name}:{number}: tab"
            if line != line.rstrip():
                yield f"{name}:{number}: trailing blanks"
            if len(line) > COLUMNS and name.endswith((".c", ".h", ".cu", ".cuh")):
                yield f"{name}:{number}: {len(line)} columns"


def rule_names(tree):
    """headers have an include guard; nothing names a path of one machine"""
    for name in tree.sources("src/", "include/"):
        if name.endswith(".h") and not TEMPLATES.match(name) and not guarded(tree.text[name]):
            yield f"{name}:1: no include guard"
    for name in tree.text:
        for match in re.finditer(r"/(work|root|home)/\w", tree.text[name]):
            if not name.startswith("tests/tree/"):
                yield f"{name}:{line_of(tree.text[name], match.start())}: a path of one machine"


def jansson_flags():
    found = subprocess.run(["pkg-config", "--cflags", "jansson", "libpcre2-8", "libutf8proc"],
                           capture_output=True, text=True, check=False)
    return shlex.split(found.stdout) if found.returncode == 0 else []


def simd_flags(name):
    avx2 = ["-mavx2", "-mfma", "-mf16c"]
    avx512 = avx2 + ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx512bf16"]
    if "/amx/" in name:
        return avx512 + ["-mamx-tile", "-mamx-int8", "-mamx-bf16"]
    if "/avx512/" in name:
        return avx512
    if "/avxvnni/" in name:
        return avx2 + ["-mavxvnni"]
    return avx2 if "/avx2/" in name else []


def guarded(text):
    return re.search(r"^#ifndef (\w+)\s*\n#define \1\s", text, re.M)


def rule_headers(tree, cc="cc"):
    """every header compiles alone as C17; those with extern "C" and those that CUDA code includes as C++17 too"""
    cxx = next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)
    common = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I" + tree.root + "/src", "-I" + tree.root + "/include"]
    cuda = find_cuda()
    jobs = []
    shared = {"src/" + t for n in tree.code if n.endswith((".cu", ".cuh")) for _, _, t in includes(tree, n)}
    for name in tree.sources("src/", "include/"):
        if not name.endswith(".h") or TEMPLATES.match(name):
            continue
        if any(t.startswith(("cuda", "cublas", "nv")) for _, k, t in includes(tree, name) if k == "<"):
            if not cuda:
                continue
        # A file that includes it twice and holds one declaration of its own, so that it is no empty unit.
        text = f'#include "{tree.root}/{name}"\n#include "{tree.root}/{name}"\nextern int sl_alone;\n'
        flags = common + simd_flags(name) + jansson_flags_once() + (["-isystem", cuda] if cuda else [])
        jobs.append((name, "C17", [cc, "-std=c17", "-x", "c", *flags, "-"], text))
        if cxx and (name in shared or 'extern "C"' in tree.text[name]):
            jobs.append((name, "C++17", [cxx, "-std=c++17", "-x", "c++", *flags, "-"], text))

    def compile_one(job):
        name, language, command, text = job
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        first = next((l for l in done.stderr.split("\n") if "error" in l), done.stderr[:200])
        return None if done.returncode == 0 else f"{name}: not alone as {language}: {first}"
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from filter(None, pool.map(compile_one, jobs))


CACHE = {}


def jansson_flags_once():
    if "flags" not in CACHE:
        CACHE["flags"] = jansson_flags()
    return CACHE["flags"]


def find_cuda():
    for folder in ("/usr/local/cuda/include", "/opt/cuda/include", "/usr/include"):
        if os.path.exists(folder + "/cuda_runtime_api.h"):
            return folder
    return None


def rule_files(tree):
    """a file name is used once in a layer with its subfolders (the CPU's tiers aside), in each program's folder"""
    first = {}
    for name in tree.names:
        match = re.match(r"(src/\w+|cli|server|hub|load|plot)/(?:.*/)?([^/]+)$", name)
        if match and match.group(2) != "README.md" and not TIERS.match(name):
            other = first.setdefault(match.groups(), name)
            if other != name:
                yield f"{name}: {other} has the same name"


def without_macros(code):
    """The same without what the preprocessor reads: a macro's body defines nothing where it stands."""
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: "\n" * m.group(0).count("\n"), code, flags=re.M)


ATTRIBUTE = re.compile(r"\b__\w+__\s*\((?:[^()]|\([^()]*\))*\)")


def kernels(code):
    """(name, line) of every __global__ function that is defined here, not those declared or instantiated."""
    for match in re.finditer(r"\b__global__\b([^;{]*)\{", code):
        head = match.group(1)
        name = re.search(r"(\w+)\s*\(", ATTRIBUTE.sub(" ", head))
        if name:
            yield name.group(1), line_of(code, match.start())


def structs(code):
    """(name, line) of every struct that is defined here; specialisations of a template are no new ones."""
    for match in re.finditer(r"\bstruct\b((?:\s+\w+\s*\([^()]*\))*)\s*(\w*)\s*(?::[^;{}()]*)?\{", code):
        name = match.group(2)
        if not name:  # typedef struct {...} name;
            depth, at = 1, match.end()
            while depth and at < len(code):
                depth += (code[at] == "{") - (code[at] == "}")
                at += 1
            behind = re.match(r"\s*(\w+)\s*;", code[at:])
            if not behind or not re.search(r"\btypedef\s+$", code[:match.start()]):
                continue
            name = behind.group(1)
        yield name, line_of(code, match.start())


def rule_kernels(tree):
    """a __global__ function is defined under one name once in src/"""
    first = {}
    for name in tree.sources("src/"):
        for kernel, line in kernels(without_macros(tree.code[name])):
            other = first.setdefault(kernel, f"{name}:{line}")
            if other != f"{name}:{line}":
                yield f"{name}:{line}: __global__ {kernel} is defined in {other} too"


def rule_structs(tree):
    """a struct of a header is defined once in src/ or a program's folder; in src/backend/cuda any struct is"""
    found = {}
    for name in tree.sources("src/", *(p + "/" for p in PROGRAMS)):
        for struct, line in structs(without_macros(tree.code[name])):
            found.setdefault((name.split("/")[0], struct), []).append((name, line))
    for (_, struct), places in found.items():
        if not any(name.endswith((".h", ".cuh")) and not TEMPLATES.match(name) for name, _ in places):
            places = [p for p in places if p[0].startswith("src/backend/cuda/")]
        for name, line in places[1:]:
            if name != places[0][0] and not tree.excused("structs", name, struct):
                yield f"{name}:{line}: struct {struct} is defined in {places[0][0]}:{places[0][1]} too"


def paragraphs(text):
    """(line, words) of every paragraph, list item and row of a table; not of code, fenced or indented."""
    fence, blank, in_list, begin, words = None, True, False, 0, 0
    for number, line in enumerate(text.split("\n") + [""], 1):
        bare = line.strip()
        mark = re.match(r"(```|~~~)", bare)
        item = re.match(r"([-*+]|\d+[.)])\s", bare)
        code = fence or mark or (blank and not in_list and line.startswith("    "))
        if words and (not bare or code or item or bare.startswith(("#", "|"))):
            yield begin, words
            words = 0
        if mark:
            fence = None if fence == mark.group(1) else fence or mark.group(1)
        if not code:
            if bare and not words:
                begin = number
                in_list = bool(item) or (in_list and line.startswith(" "))
            words += sum(bool(re.search(r"\w", word)) for word in bare.split())
            blank = not bare


def rule_paragraphs(tree):
    """docs/, CONTRIBUTING.md and every README.md: no paragraph, list item or row of a table above 120 words"""
    for name in tree.text:
        if re.match(r"docs/.*\.md$|CONTRIBUTING\.md$|(.*/)?README\.md$", name):
            for line, words in paragraphs(tree.text[name]):
                if words > PARAGRAPH_WORDS:
                    yield f"{name}:{line}: a paragraph of {words} words"


def rule_places(tree):
    """paths that documents name in backticks are there: src/, include/, tests/, tools/, docs/, cmake/, the programs' folders"""
    for name in tree.text:
        if not name.endswith(".md"):
            continue
        for match in re.finditer(r"`((?:src|include|tests|tools|docs|cmake|cli|server|hub|load|plot)/[^`\s:<>{}]*)", tree.text[name]):
            path = match.group(1).rstrip("/")
            if not any(n == path or n.startswith(path + "/") or fnmatch.fnmatchcase(n, path) for n in tree.names):
                yield f"{name}:{line_of(tree.text[name], match.start())}: {path} is not there"


RULES = [rule_layers, rule_ends, rule_memory, rule_prints, rule_sizes, rule_text, rule_names, rule_headers, rule_files,
         rule_kernels, rule_structs, rule_paragraphs, rule_places]

# ---- planted violations: (rule, file, text); the message must name the file ---------------------------------------

GUARD = "#ifndef X_H\n#define X_H\n{}\n#endif\n"
PLANTED = [
    (rule_layers, "src/base/a.c", '#include "quant/b.h"\n'),
    (rule_layers, "src/backend/cuda/a.cu", '#include "plan/b.h"\n'),
    (rule_layers, "src/sched/a.c", '#include "api/a.h"\n'),
    (rule_layers, "src/sched/a.c", '#include "sluice.h"\n'),
    (rule_layers, "src/quant/a.c", '#include "b.h"\n'),
    (rule_layers, "src/quant/a.c", '#include "../base/b.h"\n'),
    (rule_layers, "src/stray/a.c", "int a;\n"),
    (rule_layers, "src/stray.c", "int a;\n"),
    (rule_layers, "cli/a.c", '#include "base/alloc.h"\n'),
    (rule_layers, "include/sluice.h", '#include "base/error.h"\n'),
    (rule_ends, "src/base/a.c", 'int f(void) {\n    return getenv("HOME") != 0;\n}\n'),
    (rule_ends, "src/base/a.c", "void f(void) {\n    abort();\n}\n"),
    (rule_ends, "src/base/a.c", "void f(int x) {\n    assert (x);\n}\n"),
    (rule_ends, "src/backend/cuda/a.cu", "void f(void) {\n    exit(1);\n}\n"),
    (rule_ends, "cli/run.c", "void f(void) {\n    exit(1);\n}\n"),
    (rule_memory, "src/kv/a.c", "void *f(void) {\n    return malloc(1);\n}\n"),
    (rule_memory, "src/kv/a.c", "void f(void *p) {\n    free(p);\n}\n"),
    (rule_prints, "src/kv/a.c", "void f(void) {\n    printf(0);\n}\n"),
    (rule_sizes, "src/kv/a.c", "int a;\n" * (FILE_LINES + 1)),
    (rule_sizes, "src/kv/a.c", "static int f(int a) {\n" + "    a++;\n" * FUNCTION_LINES + "}\n"),
    (rule_sizes, "src/kv/a.c", "int f(int a, int b, int c, int d, int e, int f, int g) {\n    return a;\n}\n"),
    (rule_sizes, "src/kv/a.h", "int f(int a, int b, int c,\n      int d, int e, int f, int (*g)(int, int));\n"),
    (rule_sizes, "src/backend/cuda/a.cu", "__global__ void k(int *a, int b, int c, int d, int e, int f, int g) {\n}\n"),
    (rule_text, "src/kv/a.c", "\tint a;\n"),
    (rule_text, "src/kv/a.c", "int a; \n"),
    (rule_text, "src/kv/a.c", "int a;\r\n"),
    (rule_text, "src/kv/a.c", "int a;"),
    (rule_text, "src/kv/a.c", "int " + "a" * COLUMNS + ";\n"),
    (rule_text, "src/kv/a.c", b"/* \xff */\n"),
    (rule_names, "src/kv/a.h", "int a;\n"),
    (rule_names, "docs/a.md", "see /ho" + "me/somebody/notes\n"),
    (rule_paragraphs, "docs/a.md", "# a\n\n" + "word word\n" * (PARAGRAPH_WORDS // 2) + "word\n"),
    (rule_paragraphs, "README.md", "- a\n- " + "word " * PARAGRAPH_WORDS + "word\n\nb\n"),
    (rule_paragraphs, "src/backend/cuda/README.md", "| a |\n|---|\n| " + "word " * PARAGRAPH_WORDS + "word |\n"),
    (rule_places, "docs/a.md", "see `src/base/gone.h`\n"),
    (rule_places, "docs/a.md", "`tools/gone --flag FILE`\n"),
    (rule_headers, "src/kv/a.h", GUARD.format("size_t f(void);")),
    (rule_headers, "src/kv/a.h", GUARD.format('#ifdef __cplusplus\nextern "C" {\n#endif\nint f(int class);\n'
                                              "#ifdef __cplusplus\n}\n#endif")),
]
# The same with a second file beside the first: (rule, file, text, second file, its text).
KERNEL = "template <int N> __global__ void __launch_bounds__(32 * (N)) k(int *a) {\n    *a = N;\n}\n"
PAIRED = [
    (rule_files, "src/backend/cuda/linear/b.cu", "int b;\n", "src/backend/cuda/attention/b.cu", "int b;\n"),
    (rule_files, "cli/y/b.c", "int b;\n", "cli/x/b.c", "int b;\n"),
    (rule_kernels, "src/backend/cuda/y.cu", KERNEL, "src/backend/cuda/x.cuh", KERNEL),
    (rule_structs, "src/backend/cuda/y.cu", "struct args {\n    int b;\n};\n",
     "src/backend/cuda/x.cu", "typedef struct args {\n    int a;\n} args;\n"),
    (rule_structs, "src/backend/cuda/y.cu", "typedef struct {\n    struct {\n        int b;\n    } c;\n} args;\n",
     "src/backend/cuda/x.cuh", "struct __align__(16) args : base {\n    int a;\n};\n"),
    (rule_structs, "src/sched/y.c", "struct args {\n    int b;\n};\n", "src/kv/x.h", "struct args {\n    int a;\n};\n"),
    (rule_structs, "server/y.h", "struct args {\n    int b;\n};\n", "server/x.c", "struct args {\n    int a;\n};\n"),
]
PAIRED_INNOCENT = [
    (rule_files, "src/kv/b.c", "int b;\n", "src/base/b.c", "int b;\n"),
    (rule_files, "src/backend/cpu/plain/b.c", "int b;\n", "src/backend/cpu/avx2/b.c", "int b;\n"),
    (rule_files, "src/backend/cuda/linear/README.md", "b\n", "src/backend/cuda/README.md", "b\n"),
    (rule_kernels, "src/backend/cuda/y.cu", "__global__ void k(int *a);\ntemplate __global__ void k<1>(int *a);\n",
     "src/backend/cuda/x.cuh", KERNEL),
    (rule_kernels, "src/backend/cuda/y.cu", "#define K(name) \\\n    __global__ void name(int *a) {\\\n    }\n",
     "src/backend/cuda/x.cu", "#define K(name) \\\n    __global__ void name(int *a) {\\\n    }\n"),
    (rule_structs, "src/sched/y.c", "struct args {\n    int b;\n};\n", "src/kv/x.c", "struct args {\n    int a;\n};\n"),
    (rule_structs, "src/backend/cuda/y.cu", "struct args *f(struct args *a);\ntemplate <> struct b<1> {\n};\n",
     "src/backend/cuda/x.cuh", "struct args {\n};\ntemplate <int N> struct b {\n};\ntemplate <> struct b<2> {\n};\n"),
]
# What must not be taken for a violation.
INNOCENT = [
    (rule_paragraphs, "docs/a.md", "word\n" * PARAGRAPH_WORDS + "\n    " + "code " * 200 + "\n\n"
     + "```\n\n" + "code " * 200 + "\n```\n" + "- word\n" * 200 + "| word |\n" * 200),
    (rule_places, "docs/a.md", "`src/base/a.h`, `src/base/`, `src/base/*.h`, `docs/a.md`, `make tests/gone`, src/gone.h\n"),
    (rule_ends, "src/kv/a.c", '/* assert(x), exit(1) */\n_Static_assert(1, "abort(");\nint a;\n'),
    (rule_ends, "cli/main.c", "int main(void) {\n    exit(0);\n}\n"),
    (rule_memory, "src/base/alloc.c", "void *f(void) {\n    return malloc(1);\n}\n"),
    (rule_memory, "src/kv/a.c", "void f(struct x *p) {\n    p->free(1);\n    sl_free(p);\n}\n"),
    (rule_sizes, "src/kv/a.c", "static const int t[] = {\n" + "    1,\n" * 100 + "};\n"),
    (rule_sizes, "src/kv/a.c", "static int f(int a) {\n" + "    a++;\n" * (FUNCTION_LINES - 2) + "}\n"),
    (rule_layers, "src/sched/a.c", '#include "base/a.h"\n#include <stdio.h>\n'),
    (rule_headers, "src/kv/a.h", GUARD.format("#include <stddef.h>\nsize_t f(void);")),
]


def run_rule(rule, tree, cc):
    return list(rule(tree, cc) if rule is rule_headers else rule(tree))


def plant(rule, name, content, cc, beside=()):
    """The messages about `name` in a tree of that file, a header, and what is to stand beside it."""
    with tempfile.TemporaryDirectory() as root:
        files = {name: content, "src/base/a.h": "#ifndef A_H\n#define A_H\n#endif\n"}
        files.update([beside] if beside else [])
        for path, data in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "wb") as file:
                file.write(data if isinstance(data, bytes) else data.encode())
        return [m for m in run_rule(rule, Tree(root), cc) if m.startswith(name)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--cc", default="cc")
    options = parser.parse_args()
    passed = failed = 0
    planted = [case[:3] + (case[3:],) for case in PLANTED + PAIRED]
    innocent = [case[:3] + (case[3:],) for case in INNOCENT + PAIRED_INNOCENT]
    for rule, name, content, beside in planted:
        if plant(rule, name, content, options.cc, beside):
            passed += 1
        else:
            failed += 1
            print(f"FAIL self-test: {rule.__name__} does not see what is planted in {name}: {content[:60]!r}")
    for rule, name, content, beside in innocent:
        wrong = plant(rule, name, content, options.cc, beside)
        passed, failed = passed + (not wrong), failed + bool(wrong)
        for message in wrong:
            print(f"FAIL self-test: {rule.__name__} accuses the innocent: {message}")
    print(f"self-test: {len(planted)} planted violations, {len(innocent)} innocent files")
    tree = Tree(os.path.abspath(options.root))
    for rule in RULES:
        wrong = run_rule(rule, tree, options.cc)
        passed, failed = passed + (not wrong), failed + bool(wrong)
        print(f"{'FAIL' if wrong else 'ok  '} {rule.__doc__}")
        for message in wrong:
            print(f"       {message}")
    stale = [key for key in EXCEPTIONS if key not in tree.used]
    passed, failed = passed + (not stale), failed + bool(stale)
    for key in stale:
        print(f"FAIL the exception {key} is not needed any more")
    print(f"{len(tree.names)} files, {len(tree.code)} of them source, {len(EXCEPTIONS)} exceptions")
    for (rule, name, what), why in EXCEPTIONS.items():
        print(f"       {rule}: {what} in {name}: {why}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
