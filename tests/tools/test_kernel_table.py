#!/usr/bin/env python3
"""tools/kernel-table with a program that prints a table of three shapes: the README it writes, and that it does not pass
one of another table."""
import json
import os
import stat
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(ROOT, "tools/kernel-table")
HEAD = "| name | op |\n| --- | --- |\n"
LIST = HEAD + "| `linear/TYPE/fast` | linear |\n| `linear/TYPE/plain` | linear |\n| `rope/cuda` | rope |\n"
NAMES = [{"name": f"linear/{kind}/{kernel}", "shape": f"linear/TYPE/{kernel}"}
         for kernel in ("fast", "plain") for kind in ("q4_k", "q8_0")] + [{"name": "rope/cuda", "shape": "rope/cuda"}]
FIGURES = {"device": "a GPU", "driver": "1.2", "commit": "abc", "date": "2026-01-02", "kernels": [
    {"shape": "linear/TYPE/fast", "kernel": "linear/q4_k/fast", "work": "4096 x 4096 q4_k", "rows": 1, "seconds": 2e-6,
     "rival": "linear/q4_k/plain", "rival_seconds": 5e-6},
    {"shape": "linear/TYPE/fast", "kernel": "linear/q4_k/fast", "work": "4096 x 4096 q4_k", "rows": 8, "seconds": 4e-6,
     "rival": "linear/q4_k/plain", "rival_seconds": 5e-6},
    {"shape": "linear/TYPE/plain", "kernel": "linear/q8_0/plain", "work": "4096 x 4096 q8_0", "rows": 1, "seconds": 3e-6},
    {"shape": "linear/TYPE/gone", "kernel": "linear/q8_0/gone", "work": "4096 x 4096 q8_0", "rows": 1, "seconds": 3e-6}]}
MARKS = "# Title\n\nProse.\n\n<!-- Written by tools/kernel-table, from here -->\n<!-- to here -->\n\nBehind.\n"


class Place:
    def __init__(self, folder):
        self.readme, self.figures = os.path.join(folder, "README.md"), os.path.join(folder, "kernels.json")
        self.program = os.path.join(folder, "test_kernels")
        self.write(self.readme, MARKS)
        self.write(self.figures, json.dumps(FIGURES))
        self.table(LIST)

    @staticmethod
    def write(path, text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def table(self, text, measured="", status=0):
        self.write(self.program, "#!/usr/bin/env python3\nimport sys\nsys.stdout.write("
                   f"{measured!r} if '--rivals' in sys.argv else {text!r} if 'md' in sys.argv else {json.dumps(NAMES)!r})\n"
                   f"sys.exit({status})\n")
        os.chmod(self.program, os.stat(self.program).st_mode | stat.S_IXUSR)

    def run(self, *options):
        result = subprocess.run([TOOL, "--program", self.program, "--readme", self.readme, "--figures", self.figures, *options],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return result.returncode, result.stdout

    def text(self):
        with open(self.readme, encoding="utf-8") as file:
            return file.read()


def expect(condition, what, output=""):
    if not condition:
        raise SystemExit(f"FAILED: {what}\n{output}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        place = Place(folder)
        status, output = place.run("--check")
        expect(status == 1 and "tools/kernel-table" in output.splitlines()[-1], "an empty table passes", output)
        expect(place.text() == MARKS, "--check wrote something")
        status, output = place.run()
        expect(status == 0, "it does not write", output)
        expect("linear/TYPE/gone" in output, "figures of a kernel that is gone are not named", output)
        text = place.text()
        expect(text.startswith("# Title\n\nProse.\n\n<!--") and text.endswith("<!-- to here -->\n\nBehind.\n"),
               "the prose around the table was changed", text)
        for line in ("| name | op | beats | gain |",
                     "| `linear/TYPE/fast` | linear | `linear/TYPE/plain` | 4096 x 4096 q4_k, 1 row: 2.50x; 8 rows: 1.25x |",
                     "| `linear/TYPE/plain` | linear |  | 4096 x 4096 q8_0, 1 row: alone |", "| `rope/cuda` | rope |  |  |"):
            expect(line in text.splitlines(), f"no line {line}", text)
        status, output = place.run("--check")
        expect(status == 0, "it does not pass what it wrote", output)
        place.table(LIST + "| `sample/cuda` | sample |\n")
        status, output = place.run("--check")
        expect(status == 1 and "+ | `sample/cuda` | sample |" in output, "a row more passes", output)
        place.table(LIST.replace("| rope |", "| rope2 |"))
        expect(place.run("--check")[0] == 1, "another cell passes")
        place.write(place.readme, "no marks\n")
        status, output = place.run()
        expect(status == 1 and "must stand between" in output and place.text() == "no marks\n", "a README without marks", output)
        measured = '{\n  "device": "a GPU",\n  "kernels": [\n    {"shape": "s", "rows": 1, "seconds": 1e-6}\n  ]\n}\n'
        place.table(LIST, measured)
        status, output = place.run("--measure", folder, "--commit", "def")
        expect(status == 0 and "1 measurements on a GPU" in output, "it does not measure", output)
        place.table(LIST, measured[:measured.index("\n  ]")] + ',\n    {"sha', 1) # killed on the way
        os.remove(place.figures)
        status, output = place.run("--measure", folder, "--commit", "def")
        expect(status == 1 and "what it had measured is kept" in output, "it does not say that the program failed", output)
        with open(place.figures, encoding="utf-8") as file:
            kept = json.load(file)
        expect(kept["commit"] == "def" and [k["rows"] for k in kept["kernels"]] == [1], "measurements are not kept", str(kept))
    print("passed")


if __name__ == "__main__":
    sys.exit(main())
