#!/usr/bin/env python3
"""Translates CUDA C++ to C++17 for the emulated GPU: translate.py SOURCE DESTINATION.

What device.h can give as a macro or a function stays as it is. Rewritten, token by token and without a line more or
less, are
  __shared__ variables      to references into the block's shared memory,
  asm statements            to calls of the interpreter of PTX, in macros too,
  kernel<<<...>>>(...)      to calls of the fake runtime,
  __grid_constant__         parameters, which nothing can change, to references: a copy for each thread takes time,
  some names                as threadIdx (but not a member of that name); __CUDA_ARCH__ to one of our own, since the
                            toolkit's headers are read as a host compiler reads them.
"""
import re
import sys

TOKEN = re.compile(
    r"""(?P<space>(?:[ \t\r\n\f]|\\\n)+)
      |(?P<comment>//[^\n]*|/\*.*?\*/)
      |(?P<string>(?:u8|[uUL])?R"(?P<delimiter>[^(\s]*)\(.*?\)(?P=delimiter)"|(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
      |(?P<character>'(?:[^'\\\n]|\\.)+')
      |(?P<name>[A-Za-z_]\w*)
      |(?P<number>\.?\d(?:[eEpP][+-]|[\w.'])*)
      |(?P<punctuation><<<|::|->|.)""",
    re.S | re.X,
)
RENAMED = {
    "__CUDA_ARCH__": "EMU_CUDA_ARCH",
    "__CUDA_ARCH_FEAT_SM90_ALL": "EMU_CUDA_ARCH_FEAT_SM90_ALL",
    "threadIdx": "emu_now->thread_index",
    "blockIdx": "emu_now->block->block_index",
    "blockDim": "emu_now->block->block_dim",
    "gridDim": "emu_now->block->grid_dim",
    "__noinline__": "__attribute__((noinline))",
    "__expf": "emu_expf",  # glibc has functions of these names
    "__logf": "emu_logf",
    "__powf": "emu_powf",
    "__sinf": "emu_sinf",
    "__cosf": "emu_cosf",
}
OPENING, CLOSING = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}


class Failure(Exception):
    pass


class Token:
    def __init__(self, kind, text, line):
        self.kind, self.text, self.line = kind, text, line

    @property
    def blank(self):
        return self.kind in ("space", "comment")


def tokenize(text):
    tokens, line = [], 1
    for match in TOKEN.finditer(text):
        tokens.append(Token(match.lastgroup if match.lastgroup != "delimiter" else "string", match.group(), line))
        line += match.group().count("\n")
    return tokens


def text_of(tokens):
    return "".join(token.text for token in tokens)


def line_breaks(tokens):
    """What keeps later lines where they were."""
    return "".join("\\\n" if "\\\n" in t.text else "\n" * t.text.count("\n") for t in tokens if t.blank)


def next_solid(tokens, at):
    while at < len(tokens) and tokens[at].blank:
        at += 1
    return at


def closing(tokens, at):
    """Index of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(tokens)):
        if tokens[i].kind == "punctuation":
            depth += (tokens[i].text in OPENING) - (tokens[i].text in CLOSING)
            if depth == 0:
                return i
    raise Failure(f"line {tokens[at].line}: no bracket closes this one")


def split(tokens, separators):
    """At separators outside all brackets; a `::` counts as two colons if a colon separates."""
    parts, depth = [[]], 0
    for token in tokens:
        if token.kind == "punctuation":
            depth += (token.text in OPENING) - (token.text in CLOSING)
            if depth == 0 and token.text in separators:
                parts.append([])
                continue
            if depth == 0 and token.text == "::" and ":" in separators:
                parts += [[], []]
                continue
        parts[-1].append(token)
    return parts


def split_declarators(tokens):
    """At commas outside brackets and template arguments."""
    parts, depth, angles = [[]], 0, 0
    for token in tokens:
        if token.kind == "punctuation":
            depth += (token.text in OPENING) - (token.text in CLOSING)
            if depth == 0:
                angles += (token.text == "<") - (token.text == ">")
                if token.text == "," and angles == 0:
                    parts.append([])
                    continue
        parts[-1].append(token)
    return parts


def name_and_dimensions(tokens):
    """(what is before the name, the name, its dimensions)"""
    end = len(tokens)
    depth = 0
    for i, token in enumerate(tokens):
        if token.text == "[" and depth == 0:
            end = i
            break
        depth += (token.text == "<") - (token.text == ">")
    at = end - 1
    while tokens[at].blank:
        at -= 1
    if tokens[at].kind != "name":
        raise Failure(f"line {tokens[at].line}: the name of a __shared__ variable is not where it was expected")
    return tokens[:at], tokens[at].text, text_of(tokens[end:]).strip()


def take_alignment(tokens):
    """__align__(n) or alignas(n) at the start: (n, the tokens without it)."""
    at = next_solid(tokens, 0)
    if at < len(tokens) and tokens[at].text in ("__align__", "alignas"):
        start = next_solid(tokens, at + 1)
        end = closing(tokens, start)
        return text_of(tokens[start + 1 : end]), tokens[end + 1 :]
    return None, tokens


def shared_declaration(tokens, is_extern):
    """What stands for `__shared__ tokens;`."""
    alignment, rest = take_alignment(tokens)
    declarators = split_declarators(rest)
    kind, result = None, []
    for declarator in declarators:
        before, name, dimensions = name_and_dimensions(declarator)
        kind = text_of(before).strip() if kind is None else kind
        if is_extern:
            result.append(f"{kind} *const {name} = ({kind} *)emu_now->block->dynamic_shared;")
            continue
        asked = alignment or "1"
        result.append(
            f"using emu_type_{name} = {kind}{dimensions}; static char emu_key_{name}; "
            f"emu_type_{name} &{name} = *(emu_type_{name} *)emu_shared_variable(&emu_key_{name}, "
            f"sizeof(emu_type_{name}), ({asked}) > alignof(emu_type_{name}) ? ({asked}) : alignof(emu_type_{name}));"
        )
    return " ".join(result) + line_breaks(tokens)


def asm_statement(tokens):
    """What stands for `asm (tokens)`."""
    parts = split(tokens, {":"})
    text = [text_of(parts[0])]
    for name, part in zip(("outputs", "inputs"), parts[1:3]):
        text.append(f"emu::{name}({text_of(part)})")
    return "emu::assembly(" + ", ".join(text) + ")" + "".join(line_breaks(part) for part in parts[3:])


def is_constraint(tokens, at):
    if tokens[at].kind != "string" or not re.fullmatch(r'"[=+&]*[a-zA-Z]"', tokens[at].text):
        return False
    following = next_solid(tokens, at + 1)
    return following < len(tokens) and tokens[following].text == "("


def constraint(token):
    return Token("string", f"emu::{'output' if token.text[1] in '=+' else 'input'}{{{token.text}}}", token.line)


def closing_launch(tokens, at):
    """Index of the first of the three > that end the <<< at `at`."""
    depth = 0
    for i in range(at + 1, len(tokens) - 2):
        if tokens[i].kind == "punctuation":
            depth += (tokens[i].text in OPENING) - (tokens[i].text in CLOSING)
            if depth == 0 and [t.text for t in tokens[i : i + 3]] == [">", ">", ">"]:
                return i
    raise Failure(f"line {tokens[at].line}: no >>> closes this <<<")


def refer_to_grid_constants(tokens):
    """Puts & before the names of __grid_constant__ parameters."""
    result, is_constant, depth = list(tokens), False, 0
    for i, token in enumerate(tokens):
        if token.text == "__grid_constant__" and token.kind == "name":
            is_constant, depth = True, 0
        elif is_constant and token.kind == "punctuation":
            if depth == 0 and token.text in (",", ")"):
                at = next(j for j in range(i - 1, -1, -1) if tokens[j].kind == "name")
                result[at] = Token("name", "&" + tokens[at].text, tokens[at].line)
                is_constant = False
            depth += (token.text in OPENING or token.text == "<") - (token.text in CLOSING or token.text == ">")
    return result


def translate(tokens):
    result, at = [], 0
    tokens = [constraint(t) if is_constraint(tokens, i) else t for i, t in enumerate(tokens)]
    tokens = refer_to_grid_constants(tokens)
    while at < len(tokens):
        token = tokens[at]
        if token.kind == "name" and token.text in ("__shared__", "extern"):
            start = at
            is_extern = token.text == "extern"
            if is_extern:
                start = next_solid(tokens, at + 1)
            if tokens[start].text == "__shared__":
                end = next(i for i in range(start, len(tokens)) if tokens[i].text == ";")
                result.append(shared_declaration(tokens[start + 1 : end], is_extern))
                at = end + 1
                continue
        if token.kind == "name" and token.text == "asm":
            start = next_solid(tokens, at + 1)
            if tokens[start].text in ("volatile", "__volatile__"):
                start = next_solid(tokens, start + 1)
            end = closing(tokens, start)
            result.append(asm_statement(tokens[start + 1 : end]) + line_breaks(tokens[at:start]))
            at = end + 1
            continue
        if token.text == "<<<" and token.kind == "punctuation":
            end = closing_launch(tokens, at)
            result.append(" << emu::shape(" + translate(tokens[at + 1 : end]) + ")")
            at = end + 3
            continue
        is_member = at > 0 and tokens[at - 1].text in (".", "->")
        result.append(RENAMED.get(token.text, token.text) if not is_member else token.text)
        at += 1
    return "".join(result)


def main():
    source, destination = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        text = file.read()
    try:
        translated = f'#line 1 "{source}"\n' + translate(tokenize(text))
    except Failure as failure:
        sys.exit(f"{source}: {failure}")
    with open(destination, "w", encoding="utf-8") as file:
        file.write(translated)


if __name__ == "__main__":
    main()
