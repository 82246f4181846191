#!/usr/bin/env python3
"""Writes facts.json from `sluice --help` and `sluice COMMAND --help`.

    models/corpus/extract_facts.py build/release/sluice > models/corpus/facts.json
"""
import json
import re
import subprocess
import sys


def help_of(program, *command):
    return subprocess.run([program, *command, "--help"], check=True, capture_output=True, text=True).stdout


def main():
    program = sys.argv[1]
    listed = re.findall(r"^  (\w+) +(.+)$", help_of(program).split("commands:")[1].split("\n\n")[0], re.M)
    commands, options = {}, {}
    for name, about in listed:
        text = help_of(program, name)
        first, body = text.split("\n\n", 1)
        paragraph, rest = body.split("\n\n", 1)
        examples = rest.split("examples:\n")[1] if "examples:\n" in rest else ""
        commands[name] = {
            "usage": first.replace("usage: ", ""),
            "about": about,
            "text": " ".join(paragraph.split()),
            "examples": [line.strip() for line in examples.strip().split("\n") if line.strip()],
        }
        for names, argument, meaning in re.findall(r"^  (-[-\w, ]*?)((?: [A-Z][A-Z,.]*| [a-z0-9|]+)?)  +(.+)$", rest, re.M):
            default = re.search(r" \[(.+)\]$", meaning)
            default = default.group(1) if default else None
            meaning = re.sub(r" \[.+\]$", "", meaning)
            key = (names.strip(), argument.strip(), meaning, default)
            options.setdefault(key, []).append(name)
    rows = [
        {"names": n.split(", "), "argument": a, "meaning": m, "default": d, "commands": c}
        for (n, a, m, d), c in options.items()
    ]
    json.dump({"commands": commands, "options": rows}, sys.stdout, indent=1)
    print()


main()
