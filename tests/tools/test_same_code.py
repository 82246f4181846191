#!/usr/bin/env python3
"""tools/same-code on a tree of two small files: what must be called the same, and what must not.

Skipped (77) where there is no nvcc."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(ROOT, "tools/same-code")
FLAGS = """set(cuda_flags -std=c++17 -O3 -fmad=false -I${CMAKE_SOURCE_DIR}/src ${SLUICE_CUDA_TARGETS}
  -Xcompiler=-Wall)
"""
HEADER = """#pragma once
struct scale_args {
    float *to;
    const float *from;
    int count;
};
/* A call, so that a kernel's section holds a function with a name of its own. */
static __device__ __noinline__ float root_of(float x) {
    return x < 0 ? 0.0f : sqrtf(x) / 3.0f;
}
"""
SCALE = """#include "backend/cuda/scale.cuh"
static __device__ const float steps[4] = {1.0f, 2.5f, 4.0f, 8.0f};
template <int WIDTH> __global__ void __launch_bounds__(128) scale_kernel(const __grid_constant__ scale_args args) {
    __shared__ float part[WIDTH];
    const int i = blockIdx.x * WIDTH + threadIdx.x;
    part[threadIdx.x % WIDTH] = i < args.count ? root_of(args.from[i]) * steps[i & 3] : 0.0f;
    __syncthreads();
    if (i < args.count)
        args.to[i] = part[(threadIdx.x + 1) % WIDTH] * 1.5f;
}
extern "C" void run_scale(scale_args args) {
    scale_kernel<64><<<1, 64>>>(args);
    scale_kernel<128><<<1, 128>>>(args);
}
"""
CLEAR = """__global__ void clear_kernel(int *to) {
    to[threadIdx.x] = 7;
}
"""
PLAIN = {"cmake/cuda.cmake": FLAGS, "src/backend/cuda/scale.cuh": HEADER, "src/backend/cuda/scale.cu": SCALE,
         "src/backend/cuda/clear.cu": CLEAR}


def changed(*edits):
    """PLAIN with (file, old text, new text) done."""
    tree = dict(PLAIN)
    for name, old, new in edits:
        name = next(n for n in tree if n.endswith("/" + name))
        assert old in tree[name], f"{name} has no {old}"
        tree[name] = tree[name].replace(old, new)
    return tree


def renamed():
    """Other names for everything, other files and folders, and comments: no other machine code."""
    words = {"scale_args": "weights_of_row", "scale_kernel": "a_row", "root_of": "zz_root", "steps": "factors",
             "part": "shared_row", "clear_kernel": "zz_clear", "backend/cuda/scale.cuh": "backend/cuda/common/row.cuh"}
    texts = {}
    for name, text in PLAIN.items():
        for old, new in words.items():
            text = text.replace(old, new)
        texts[name] = text
    return {"cmake/cuda.cmake": FLAGS,
            "src/backend/cuda/common/row.cuh": "/* A head. */\n\n" + texts["src/backend/cuda/scale.cuh"],
            "src/backend/cuda/rows/all.cu": texts["src/backend/cuda/scale.cu"] + texts["src/backend/cuda/clear.cu"]}


AGAIN = CLEAR.replace("__global__", "static __global__") + """extern "C" void again(int *to) {
    clear_kernel<<<1, 1>>>(to);
}
"""

# name, tree, how many kernels and data of each list the report holds; None: the same
CASES = [
    ("the tree itself", PLAIN, None),
    ("other names, files and comments", renamed(), None),
    ("another constant", changed(("scale.cu", "1.5f", "1.25f")), {"differ": 2}),
    # The table, and the place where the kernels find it.
    ("another number in a table", changed(("scale.cu", "2.5f", "2.75f")), {"differ": 2}),
    ("other launch bounds", changed(("scale.cu", "launch_bounds__(128)", "launch_bounds__(256)")), {"differ": 2}),
    ("a parameter that is not read", changed(("scale.cuh", "int count;", "int count, unused[2];")), {"differ": 2}),
    ("more shared memory that is not read", changed(("scale.cu", "part[WIDTH];", "part[WIDTH + 32];")), {"differ": 2}),
    ("a kernel less", changed(("scale.cu", "    scale_kernel<64><<<1, 64>>>(args);\n", "")), {"only_old": 1}),
    ("a kernel twice", dict(PLAIN, **{"src/backend/cuda/inst/again.cu": AGAIN}), {"only_new": 1}),
    ("other flags", changed(("cuda.cmake", "-fmad=false", "-fmad=false -prec-sqrt=false")), {"differ": 2}),
]


def write(tree, folder):
    for name, text in tree.items():
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    return folder


def run(*words, **options):
    return subprocess.run([sys.executable, TOOL, *words], capture_output=True, text=True, check=False, **options)


def check(name, good, result, failed):
    print(f"{'passed' if good else 'FAILED'}  {name}")
    if not good:
        print(f"status {result.returncode}\n{result.stdout}{result.stderr}")
        failed.append(name)


def expected(result, counts):
    """Whether the report says what CASES want of it, where it says anything else than the same."""
    if counts is None:
        return result.returncode == 0
    target = json.loads(result.stdout)["sm_80"] if result.returncode == 1 else {}
    return bool(target) and all(len(target[part]) == counts.get(part, 0) for part in ("differ", "only_old", "only_new"))


def main():
    nvcc = (shutil.which("nvcc") or "", "/usr/local/cuda/bin/nvcc", "/opt/cuda/bin/nvcc")
    if not any(os.path.exists(p) for p in nvcc):
        print("skipped: no nvcc")
        return 77
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        cache = ["--cache", os.path.join(temporary, "cache"), "--target", "sm_80"]
        old = write(PLAIN, os.path.join(temporary, "old"))
        for number, (name, tree, counts) in enumerate(CASES):
            new = write(tree, os.path.join(temporary, str(number)))
            result = run(*cache, "-o", "json", old, new)
            check(name, expected(result, counts), result, failed)
        result = run(*cache, old, os.path.join(temporary, "1"))
        check("in words", result.stdout == "same\n", result, failed)
        check("nothing compiled again", ", 0 compiled" in result.stderr, result, failed)
        result = run(*cache, old, os.path.join(temporary, "2"))
        words = "differs      void scale_kernel<64>(scale_args): 1 of "
        check("a difference in words", words in result.stdout, result, failed)
        result = run(*cache, "--only", "clear", old, os.path.join(temporary, "2"))
        check("--only another file", result.stdout == "same\n", result, failed)
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", old]
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "one"]):
            subprocess.run(git + words, check=True, capture_output=True)
        write(CASES[2][1], old)
        result = run(*cache, "HEAD", ".", cwd=old)
        check("a revision and a folder", result.returncode == 1, result, failed)
        broken = write(changed(("clear.cu", "= 7", "= nothing")), os.path.join(temporary, "broken"))
        result = run(*cache, old, broken)
        check("a file that does not compile", result.returncode == 2 and "nothing" in result.stderr, result, failed)
        result = run(*cache, old, os.path.join(temporary, "nowhere"))
        check("no such tree", result.returncode != 0 and "nowhere" in result.stderr, result, failed)
    print(f"{len(CASES) + 7 - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
