#!/usr/bin/env python3
"""tools/gpu-figures and tools/figures-plot on figures whose limits are known, and docs/ against the figures it shows."""
import copy
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FIGURES, PEERS = "docs/figures/h200.json", "docs/figures/peers.json"
passed = failed = 0

# Qwen3-0.6B has 28 layers, 16 query and 8 key heads of 128: 2 * 28 * 8 * 128 * 2 = 114688 bytes of keys and values a
# token, 4 * 28 * 16 * 128 = 229376 operations a token and key.
READ, TENSOR = 1e12, 1e15
PROFILE = {"rows": 1, "keys": 1, "ops": 1, "step_seconds": 1e-3, "read_bytes_per_second": READ,
           "tensor_operations_per_second": TENSOR, "kernels": [
               {"kernel": "k", "shape": "s", "calls": 1, "seconds": 1e-3, "weight_bytes": 5e8, "value_bytes": 0,
                "operations": 1e9}]}


def row(prompt, generated, depth, sequences, speed, size, operations):
    return {"n_prompt": prompt, "n_gen": generated, "n_depth": depth, "n_sequences": sequences, "avg_ts": speed,
            "weight_bytes_per_token": size, "tops": operations * speed * 1e-12}


def entry(rows, flag="", arguments=()):
    return {"model": "06b-q8_0", "flag": flag, "arguments": list(arguments), "rows": rows}


def figures():
    # One sequence: 1e9 - 64 * 114688 bytes of weights and 64 keys in the mean are 1 ms. A prompt: 1e10 - 1000 * 229376
    # operations and 1000 keys in the mean are 10 us.
    one = row(0, 128, 0, 1, 500.0, 1e9 - 64 * 114688, 1e6)
    prompt = row(2000, 0, 0, 1, 25000.0, 0, 1e10 - 1000 * 229376)
    return {"device": "A GPU, 1", "commit": "0", "date": "2026-01-01", "repetitions": 1, "runs": [
        entry([one, prompt]), entry([dict(one, avg_ts=250.0)], "--deterministic"),
        entry([dict(one, avg_ts=999.0, profile=PROFILE)], "", ["--profile"])]}


def check(what, right):
    global passed, failed
    passed, failed = passed + bool(right), failed + (not right)
    if not right:
        print("FAIL", what)


def run(tool, *arguments):
    done = subprocess.run([sys.executable, os.path.join(ROOT, "tools", tool), *arguments], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    return done.returncode, done.stdout, done.stderr


def plot(kept, *options, peers=None):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "figures.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(kept, file)
        if peers:
            with open(os.path.join(folder, "peers.json"), "w", encoding="utf-8") as file:
                json.dump(peers, file)
            options += ("--peers", os.path.join(folder, "peers.json"))
        return run("figures-plot", path, *options)


def widths(svg, kind):
    tree = xml.etree.ElementTree.fromstring(svg)
    bars = [e for e in tree.iter() if e.tag.endswith("rect") and e.get("class") == kind]
    return [float(bar.get("width")) for bar in bars[1:]]  # the first is the legend's


def test_limits():
    peers = {"engines": {"other": {"06b-q8_0": {"tg128": 125}}}}
    code, table, _ = plot(figures(), "--table", peers=peers)
    check("a table", code == 0)
    check("a sequence is bound by memory: 500 of 1000", "| tg128 | 500 | 50 % | 250 | 125 |" in table)
    check("a prompt is bound by products: 25000 of 100000", "| pp2000 | 25000 | 25 % |" in table)
    check("runs with a profile are no speeds", "999" not in table)
    shared = figures()
    shared["runs"][0]["rows"] = [row(0, 128, 0, 64, 3200.0, (1e9 - 64 * 64 * 114688) / 64, 1e6)]
    table = plot(shared, "--table")[1]
    check("keys and values count for each sequence: 3200 of 64000", "| tg128, 64 sequences | 3200 | 5 % |" in table)
    deep = figures()
    deep["runs"][0]["rows"] = [row(0, 128, 10000, 1, 500.0, 1e9 - 10064 * 114688, 1e6)]
    check("and those before the text", "| tg128 at 10000 | 500 | 50 % |" in plot(deep, "--table")[1])


def test_picture():
    code, svg, _ = plot(figures())
    plain, fixed = widths(svg, "plain"), widths(svg, "fixed")
    check("a picture", code == 0 and len(plain) == 2 and len(fixed) == 1)
    check("bars are as long as their shares", abs(plain[0] / plain[1] - 2) < 0.01 and abs(plain[0] / fixed[0] - 2) < 0.01)
    check("it can be read in the dark", "prefers-color-scheme: dark" in svg)
    without = copy.deepcopy(figures())
    without["runs"] = without["runs"][:1]
    code, out, error = plot(without)
    check("no profile, no limits: said so", code != 0 and not out and "--profile" in error)


def test_docs():
    with open(os.path.join(ROOT, "docs/figures/h200.svg"), encoding="utf-8") as file:
        check("docs/figures/h200.svg is drawn from h200.json", run("figures-plot", FIGURES, "--peers", PEERS)[1] == file.read())
    with open(os.path.join(ROOT, "docs/performance-h200.md"), encoding="utf-8") as file:
        shown = re.findall(r"^\| (?:pp|tg).*\|$", file.read(), re.M)
    made = re.findall(r"^\| (?:pp|tg).*\|$", run("gpu-figures", "--from", FIGURES)[1], re.M)
    check("docs/performance-h200.md has the speeds of h200.json", len(shown) > 20 and shown == made)


test_limits()
test_picture()
test_docs()
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
