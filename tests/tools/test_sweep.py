#!/usr/bin/env python3
"""tools/gpu-sweep on figures of which each breaks one rule, with a bench that fails or hangs, and with `sluice bench`:

    test_sweep.py build/release/sluice"""
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEADER = "# Sweep of weight types, rows, caches and heads"
passed = failed = 0

# A bench with 100 tokens/s for each sequence, half of the limit. It fails with 4 sequences of q8_0, and hangs with 4 of bf16.
SLUICE = """#!/usr/bin/env python3
import os, sys, time
words = sys.argv[1:]
if words[0] == "synth":
    open(words[2], "w").close()
    sys.exit(0)
def after(option):
    return words[words.index(option) + 1]
def numbers(option):
    return [int(number) for number in after(option).split(",")]
names = ("model_filename", "type_k", "n_prompt", "n_gen", "n_depth", "n_sequences", "avg_ts", "stddev_ts", "limit_ts",
         "limit_fraction", "bf16_operations_per_second", "read_bytes_per_second", "device_info")
print(",".join(("version",) + names))
for model in [words[i + 1] for i, word in enumerate(words) if word == "-m"]:
    for sequences in numbers("--sequences"):
        for depth in numbers("-d"):
            if sequences == 4 and "q8_0" in model:
                sys.exit("a warning\\nno memory")
            sys.stdout.flush()
            if sequences == 4 and "bf16" in model:
                time.sleep(60)
            prompt = numbers("-p")[0]
            speed = 100.0 * sequences
            row = ("1", '"%s"' % model, '"%s"' % after("--kv-type"), prompt, numbers("-n")[0], depth, sequences, speed, 1,
                   2 * speed, 0.5, 7e14, 4e12, '"a GPU, or so"')
            print(",".join(str(field) for field in row))
"""


def check(what, right, output=""):
    global passed, failed
    passed, failed = passed + bool(right), failed + (not right)
    if not right:
        print("FAIL", what, "\n" + output if output else "")


def sweep(*options):
    result = subprocess.run([os.path.join(ROOT, "tools/gpu-sweep"), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, check=False)
    return result.returncode, result.stdout, result.stderr


# ---- rules ----

def row(model, speed, fraction, sequences=1, cache="f16", depth=128, prompt=0):
    return {"model_filename": f"models/sweep-{model}.gguf", "type_k": cache, "n_prompt": prompt, "n_gen": 0 if prompt else 64,
            "n_depth": depth, "n_sequences": sequences, "avg_ts": speed, "stddev_ts": 0.0, "limit_ts": speed / fraction,
            "limit_fraction": fraction, "bf16_operations_per_second": 8e14, "read_bytes_per_second": 4e12,
            "device_info": "a GPU"}


def even():
    """Nothing falls short."""
    rows = [row(f"{group}-{kind}", 100.0 * n, 0.4, n) for group in ("dense", "experts") for kind in ("q4_k", "q3_k")
            for n in (1, 64)]
    for size in (64, 128):
        for cache in ("f16", "q8_0", "fp8", "f32"):
            rows += [row(f"heads-{size}", 1000.0, 0.4, 1, cache, depth) for depth in (0, 16384)]
    return rows + [row("heads-128", 5000.0, 0.4, 16, "f16", 16384), row("heads-128", 9000.0, 0.4, 1, "f16", 0, 512)]


def judged(rows, *options, seconds=1):
    kept = {"device": "a GPU", "commit": "0", "date": "2026-01-01", "repetitions": 1, "generate": 64, "seconds": seconds,
            "rows": rows}
    with tempfile.TemporaryDirectory() as folder:
        path, picture = os.path.join(folder, "kept.json"), os.path.join(folder, "picture.svg")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(kept, file)
        code, output, error = sweep("--from", path, "--plot", picture, *options)
        with open(picture, encoding="utf-8") as file:
            return code, output, error, file.read()


def cliffs(output):
    return re.findall(r"^- (.*)$", output.partition("## Cliffs")[2].partition("## Not measured")[0], re.M)


def changed(model, sequences=1, cache="f16", depth=128, **values):
    """The even rows, one with other values."""
    rows, found = even(), 0
    for one in rows:
        if (model in one["model_filename"] and not one["n_prompt"]
                and (one["n_sequences"], one["type_k"], one["n_depth"]) == (sequences, cache, depth)):
            one.update(values)
            found += 1
    assert found == 1, (model, found)
    return rows


def test_even():
    code, output, error, _ = judged(even())
    check("nothing falls short", code == 0 and "## Cliffs: 0" in output and output.startswith(HEADER), output + error)
    check("a table", "| dense | 1 | 64 |\n| --- | ---: | ---: |\n| q4_k | 100 (40 %) | 6400 (40 %) |" in output, output)
    check("caches", "| 64, fp8 | 1000 (40 %) | 1000 (40 %) |" in output, output)
    check("a prompt", "| 128, f16 | 9000 (40 %) |" in output, output)
    check("several sequences", "| head, cache | 1 | 16 |\n| --- | ---: | ---: |\n| 128, f16 | 1000 (40 %) | 5000 (40 %) |" in output,
          output)
    check("rates", "4.00 TB/s" in output and "800 TFLOPS" in output, output)


def test_rules():
    cases = (
        ("half of q4_k, dense", changed("dense-q3_k", 64, limit_fraction=0.19),
         "dense, q3_k, 64 sequences: 6400 tokens/s, 19 % of the limit; expected at least 20 %, half of the 40 % of q4_k"),
        ("half of q4_k, experts", changed("experts-q3_k", limit_fraction=0.05),
         "experts, q3_k, 1 sequence: 100 tokens/s, 5.0 % of the limit; expected at least 20 %, half of the 40 % of q4_k"),
        ("more sequences, fewer tokens", changed("dense-q4_k", 64, avg_ts=97.0),
         "dense, q4_k, 64 sequences: 97 tokens/s, 40 % of the limit; expected at least the 100 tokens/s of 1 sequence"),
        ("q8_0 caches", changed("heads-64", cache="q8_0", depth=16384, avg_ts=970.0),
         "heads of 64, cache q8_0, 1 sequence behind 16384 tokens: 970 tokens/s, 40 % of the limit; expected at least the 1000 "
         "tokens/s of cache f16"),
        ("fp8 caches", changed("heads-128", cache="fp8", depth=16384, avg_ts=970.0),
         "heads of 128, cache fp8, 1 sequence behind 16384 tokens: 970 tokens/s, 40 % of the limit; expected at least the 1000 "
         "tokens/s of cache f16"),
        ("f32 caches", changed("heads-128", cache="f32", depth=16384, limit_fraction=0.18),
         "heads of 128, cache f32, 1 sequence behind 16384 tokens: 1000 tokens/s, 18 % of the limit; expected at least 20 %, half "
         "of the 40 % of cache f16"),
        ("sizes of heads", changed("heads-64", cache="f16", depth=0, limit_fraction=0.19),
         "heads of 64, cache f16, 1 sequence behind 0 tokens: 1000 tokens/s, 19 % of the limit; expected at least 20 %, half of "
         "the 40 % of heads of 128"))
    for name, rows, line in cases:
        code, output, error, picture = judged(rows)
        check(name, code == 1 and cliffs(output) == [line], output + error)
        frames = 2 if "heads of 128, " in line else 1  # with one sequence and among several
        check(name + ": framed", picture.count('class="bad"') == frames and output.count("**") == 2 * frames, output)
    within = changed("dense-q4_k", 64, avg_ts=98.5)
    check("1.5 % are noise", judged(within)[0] == 0)
    check("unless told", judged(within, "--noise", "1")[0] == 1)
    near = changed("heads-64", cache="q8_0", depth=0, avg_ts=900.0)
    check("before 16384 tokens a narrow cache may be slower", judged(near)[0] == 0)
    three = changed("dense-q4_k", 64, avg_ts=6430.0) + [row("dense-q4_k", 6500.0, 0.4, 32), row("dense-q4_k", 6360.0, 0.4, 512)]
    check("a fall counts from the best before", [line[:27] for line in cliffs(judged(three)[1])] == ["dense, q4_k, 512 sequences:"])


def test_picture():
    short = changed("dense-q3_k", 64, limit_fraction=0.19)
    short.append({"model_filename": "sweep-dense-f32.gguf", "type_k": "f16", "n_prompt": 0, "n_depth": 128, "n_sequences": 1,
                  "trouble": "no <memory> & more"})
    short.append({"model_filename": "sweep-dense-f32.gguf", "type_k": "f16", "n_prompt": 0, "n_depth": 128, "n_sequences": 64,
                  "left_out": "behind one that failed"})
    code, output, error, picture = judged(short)
    tree = xml.etree.ElementTree.fromstring(picture)
    cells = [e for e in tree.iter() if e.tag.endswith("rect") and re.fullmatch("s[0-9]", e.get("class", ""))]
    steps = [e.get("class") for e in cells]
    # Cells measured, one that failed, and those of 128, f16 behind 16384 tokens twice: with one sequence and among several.
    measured = sum("avg_ts" in one for one in short)
    check("a rectangle for each cell", len(cells) == measured + 1 + 4, f"{len(cells)} of {measured}")
    check("as dark as its share", steps.count("s1") == 1 and steps.count("s4") == len(cells) - 2 and steps.count("s0") == 1)
    check("readable in the dark", "prefers-color-scheme: dark" in picture)
    check("what failed is said", code == 1 and "dense, f32, 1 sequence: failed: no <memory> & more; expected a figure" in output,
          output + error)
    check("what was left out is listed", "## Not measured: 1\n\n- dense f32: 64 sequences behind 128: behind one that failed" in
          output, output)
    texts = [e for e in tree.iter() if e.tag.endswith("text")]
    width = float(tree.get("width"))
    check("texts begin on the page", all(0 <= float(e.get("x")) < width for e in texts))


# ---- measuring ----

def test_fake_bench():
    with tempfile.TemporaryDirectory() as folder:
        program, kept = os.path.join(folder, "sluice"), os.path.join(folder, "kept.json")
        with open(program, "w", encoding="utf-8") as file:
            file.write(SLUICE)
        os.chmod(program, 0o755)
        usual = ("--sluice", program, "--models", folder, "--cell-seconds", "1.5", "--keep", kept)
        code, output, error = sweep(*usual, "--only", "dense", "--types", "q4_k,q8_0,bf16,f16", "--rows", "1,4,16")
        check("what fails and what hangs", code == 1 and "## Cliffs: 2" in output and
              "- dense, q8_0, 4 sequences: failed: no memory; expected a figure" in output and
              "- dense, bf16, 4 sequences: failed: took longer than 1.5 s; expected a figure" in output, output + error)
        check("keeps no other from its turn", "| f16 | 100 (50 %) | 400 (50 %) | 1600 (50 %) |" in output, output)
        check("nor what was measured before", "| bf16 | 100 (50 %) | **failed** |  |" in output, output)
        check("and what is behind is left out", "- dense q8_0: 16 sequences behind 128: behind one that failed" in output, output)
        check("--keep is what --from reads", sweep("--from", kept)[1] == output)
        usual += ("--rows", "1,2", "--types", "q4_k", "--caches", "f16,q8_0", "--head-sizes", "128", "--depths", "0,16384")
        code, output, error = sweep(*usual)
        check("all sections", code == 0 and output.count("\n## ") == 6 and "| 128, q8_0 | 100 (50 %) | 200 (50 %) |" in output,
              output + error)
        code, _, error = sweep(*usual, "--budget", "0")
        check("nothing in no time", code == 1 and "nothing was measured" in error, error)
        with open(kept, encoding="utf-8") as file:
            rows = json.load(file)["rows"]
        check("all left out", rows and all(one["left_out"] == "no time was left" for one in rows))
        rows = even() + [dict(rows[0], model_filename="sweep-dense-f32.gguf")]
        check("what was left out is a status of its own", judged(rows)[0] == 3)
        code, _, error = sweep(*usual, "--types", "q4_k,q9")
        check("a wrong type", code == 2 and "--types q9" in error, error)


def test_bench(program):
    """Fields and order are bench's."""
    with tempfile.TemporaryDirectory() as folder:
        code, output, error = sweep("--sluice", program, "--models", folder, "--device", "cpu", "--small", "--types", "q4_k,tq2_0",
                                    "--rows", "1,2", "--caches", "f16", "--head-sizes", "64", "--depths", "0,20",
                                    "--repetitions", "1", "--generate", "2", "--cell-seconds", "100")
        check("sluice bench", code in (0, 1) and "cpu: " in output and "failed" not in output and output.count("\n## ") == 5,
              output + error)
        check("every type and row", len(re.findall(r"^\| (?:q4_k|tq2_0) \|(?: \**\d+ \([0-9.]+ %\)\** \|){2}$", output, re.M)) == 4,
              output)


test_even()
test_rules()
test_picture()
test_fake_bench()
test_bench(sys.argv[1])
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
