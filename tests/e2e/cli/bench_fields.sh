# bench: every combination of models, threads, depths and tests, in rows that have llama-bench's fields with its types.
command -v python3 > /dev/null || { echo "skipped: python3 is not installed"; exit 77; }
$sluice synth qwen3 one.gguf --layers 1 2> err && $sluice synth llama two.gguf --layers 1 2> err || cat err
cp one.gguf one,two.gguf
combinations="-t 1,2 -d 0,8 -p 8 -n 2,0 -pg 4,3 -pg 5,2 -r 2 --device cpu"
$sluice bench -m one.gguf,two.gguf -m one,two.gguf $combinations -o json > rows.json
$sluice bench -m one.gguf -m two.gguf -m one,two.gguf $combinations -o csv > rows.csv
cat > check.py << 'END'
import csv, itertools, json, re

# The order of tools/llama-bench; numbers as it types them. Those of devices that sluice has no option for are left out.
TEXTS = ["build_commit", "cpu_info", "gpu_info", "backends", "model_filename", "model_type", "type_k", "type_v", "test_time"]
FIELDS = """build_commit build_number cpu_info gpu_info backends model_filename model_type model_size model_n_params
n_batch n_ubatch n_threads type_k type_v flash_attn n_prompt n_gen n_depth test_time avg_ns stddev_ns avg_ts stddev_ts
samples_ns samples_ts""".split()
rows = json.load(open("rows.json"))
for row in rows:
    assert [name for name in row if name in FIELDS] == FIELDS, list(row)
    for name in FIELDS[:-2]:
        want = str if name in TEXTS else float if name in ("avg_ts", "stddev_ts") else int
        assert type(row[name]) is want, (name, row[name])
    assert all(type(ns) is int and ns > 0 for ns in row["samples_ns"]) and len(row["samples_ns"]) == 2
    assert abs(sum(row["samples_ns"]) / 2 - row["avg_ns"]) <= 1
    for ns, speed in zip(row["samples_ns"], row["samples_ts"]):
        assert abs((row["n_prompt"] + row["n_gen"]) * 1e9 / ns / speed - 1) < 1e-3, row
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row["test_time"]), row["test_time"]
    assert row["build_commit"] == "unknown" or re.fullmatch("[0-9a-f]{7,}", row["build_commit"])
    assert row["cpu_info"] and row["gpu_info"] == "" and row["n_batch"] == row["n_ubatch"] == 512
    # What the device can do, and how much of it was reached.
    rates = [row[f"{name}_per_second"] for name in ("int8_operations", "bf16_operations", "f32_operations", "read_bytes")]
    assert all(type(rate) is float and rate > 1e8 for rate in rates), rates
    assert abs(row["limit_fraction"] - row["avg_ts"] / row["limit_ts"]) < 1e-9, row
    assert 0 < row["limit_fraction"] < 200, row  # such weights lie in the caches, and others may hold up the measurement
for threads in (1, 2):
    assert len({row["read_bytes_per_second"] for row in rows if row["n_threads"] == threads}) == 3  # once for each model
def key(row):
    return tuple(str(row[name]) for name in ("model_filename", "n_threads", "n_depth", "n_prompt", "n_gen"))
want = [tuple(map(str, (model, threads, depth, *test))) for model, threads, depth, test in itertools.product(
    ("one.gguf", "two.gguf", "one,two.gguf"), (1, 2), (0, 8), ((8, 0), (0, 2), (4, 3), (5, 2)))]
assert [key(row) for row in rows] == want, [key(row) for row in rows]
assert {row["model_type"].split()[0] for row in rows if row["model_filename"] == "two.gguf"} == {"llama"}
lines = list(csv.DictReader(open("rows.csv")))
assert [key(row) for row in lines] == want
assert list(lines[0]) == [name for name in rows[0] if not name.startswith("samples")]
assert all(re.fullmatch("[0-9]+", line[name]) for line in lines for name in ("avg_ns", "stddev_ns", "n_batch"))
print(len(rows), "rows")
END
python3 check.py
$sluice bench -m one.gguf -p 0 -n 0; echo "exit $?"
for pair in 8 8, ,8 8,0 0,8 -8,8 8,8,8 8,99999999999 x,8; do $sluice bench -m one.gguf -p 0 -n 0 -pg $pair; echo "exit $?"; done
$sluice bench -m one.gguf -p 0 -n 0 -pg 8,4 -r 1 -t 1 | cut -d '|' -f 6,9
$sluice bench -m one.gguf -m nothing.gguf -p 4 -n 0 -r 1 > out; echo "exit $?, $(wc -l < out) lines"
