#!/usr/bin/env python3
"""tools/gpu-figures --vs with programs that print speeds of their own: rows that are slower are marked, and so is a build
that fails."""
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# A bench that generates at `slow` of its speed with --deterministic, and fails with 32 sequences if told to.
SLUICE = """#!/usr/bin/env python3
import json, os, sys
words = sys.argv[1:]
here = os.path.dirname(os.path.abspath(__file__))
if here not in os.environ["LD_LIBRARY_PATH"].split(":"):
    sys.exit("not in LD_LIBRARY_PATH")
if words[0] == "synth":
    open(words[2], "w").close()
    sys.exit(0)
def numbers(option, default):
    return [int(n) for n in (words[words.index(option) + 1] if option in words else default).split(",")]
if {fails} and numbers("--sequences", "1") == [32]:
    sys.exit("no | memory")
rows = []
for prompt in numbers("-p", "0"):
    rows += [dict(n_prompt=prompt, n_gen=0, avg_ts=1000.0)] if prompt else []
for tokens in numbers("-n", "0"):
    rows += [dict(n_prompt=0, n_gen=tokens, avg_ts=100.0 * ({slow} if "--deterministic" in words else 1))]
for row in rows:
    placed = "--memory-limit 8G" in " ".join(words) and "--device cuda+cpu" in " ".join(words)
    row["avg_ts"] *= 0.5 if placed else 1
    row.update(n_depth=numbers("-d", "0")[0], n_sequences=numbers("--sequences", "1")[0])
print(json.dumps(rows))
"""


def build(folder, name, slow=1.0, fails=False):
    place = os.path.join(folder, name)
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, "sluice"), "w", encoding="utf-8") as file:
        file.write(SLUICE.replace("{slow}", str(slow)).replace("{fails}", str(fails)))
    os.chmod(os.path.join(place, "sluice"), 0o755)
    return place


def versus(folder, old, new, *options):
    command = [os.path.join(ROOT, "tools/gpu-figures"), "--vs", old, new, "--models", folder, *options]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return result.returncode, result.stdout


def expect(condition, what, output):
    if not condition:
        raise SystemExit(f"FAILED: {what}\n{output}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        old, same = build(folder, "old"), build(folder, "same")
        status, output = versus(folder, old, build(folder, "fails", fails=True), "--budget", "0")
        expect(status == 3 and "not measured: 8b-q4_k -p 512" in output, "nothing measured in no time", output)
        # A command that was never run is taken to last 30 seconds, so that the first needs that much budget.
        options = ("--turns", "1", "--budget", "60")
        status, output = versus(folder, old, same, "--only", "06b-q8_0", *options)
        expect(status == 0 and "| 06b-q8_0 | pp2048 | 1000 | 1000 | 1.000 | 1 |  |" in output, "equal builds", output)
        expect("8 rows, 0 more than 1 % slower or failed, 0 commands not measured" in output, "the sum", output)
        slow = build(folder, "slow", slow=0.985)
        status, output = versus(folder, old, slow, "--only", "06b-q8_0", *options)
        expect(status == 1 and output.count("SLOWER") == 1 and
               "| 06b-q8_0 | tg128 --deterministic | 100 | 98 | 0.985 | 1 | SLOWER |" in output, "1.5 % slower", output)
        status, output = versus(folder, old, slow, "--only", "06b-q8_0", "--slower", "2", *options)
        expect(status == 0 and "SLOWER" not in output, "1.5 % slower where 2 % are allowed", output)
        status, output = versus(folder, old, same, "--only", "30b-q4_k-8g", *options)
        expect(status == 0 and "| 30b-q4_k-8g | pp512 | 500 | 500 | 1.000 | 1 |  |" in output and "\n3 rows" in output,
               "layers on the CPU", output)
        status, output = versus(folder, old, build(folder, "fails", fails=True), "--only", "8b-q4_k", *options)
        expect(status == 1 and output.count("FAILED: ") == 2 and "no / memory" in output, "a build that fails", output)
    print("passed")


if __name__ == "__main__":
    sys.exit(main())
