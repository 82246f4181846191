# bench --peak: rates of every tier that there is, with one thread and with all; as a table, as csv and as json.
command -v python3 > /dev/null || { echo "skipped: python3 is not installed"; exit 77; }
$sluice bench --peak --device cpu -o json > rows.json
$sluice bench --peak --device cpu -t 2 --isa plain -o csv > rows.csv
$sluice bench --peak --device cpu -t 2 --isa plain > rows.md
cat > check.py << 'END'
import csv, json, os

RATES = ["int8_operations_per_second", "bf16_operations_per_second", "f32_operations_per_second", "read_bytes_per_second"]
rows = json.load(open("rows.json"))
most = max(row["n_threads"] for row in rows)
assert most == len(os.sched_getaffinity(0)), most
rates = {(row["isa"], row["n_threads"]): [row[name] for name in RATES] for row in rows}
tiers = list(dict.fromkeys(isa for isa, _ in rates))
known = ["plain", "avx2", "avxvnni", "avx512", "amx"]
assert tiers == [tier for tier in known if tier in tiers], tiers
assert set(rates) == {(tier, threads) for tier in tiers for threads in (1, most)}, list(rates)
for (tier, threads), (int8, bf16, f32, read) in rates.items():
    assert all(1e7 < rate < 1e16 for rate in (int8, bf16, f32, read)), (tier, threads, rates[tier, threads])
    assert tier == "plain" or int8 > f32, (tier, int8, f32)  # a register holds four times as many
    assert tier != "amx" or bf16 > f32, (bf16, f32)
for tier in tiers:
    for one, every in zip(rates[tier, 1], rates[tier, most]):
        assert 0.3 < every / one < 1.6 * most + 1, (tier, one, every)  # on a machine that others use as well
lines = list(csv.DictReader(open("rows.csv")))
assert [(line["isa"], line["n_threads"]) for line in lines] == [("plain", "2")], lines
assert all(float(lines[0][name]) > 0 for name in RATES)
END
python3 check.py
cut -d '|' -f 1-4 rows.md
for wrong in "--profile" "--beside 2" "-pg 4,4" "--plot p.svg" "-m mini -m mini-moe"; do $sluice bench --peak $wrong; echo "exit $?"; done
ls
