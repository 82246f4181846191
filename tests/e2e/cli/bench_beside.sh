# bench --beside: sequences generate, a prompt in many steps arrives; what everybody waits for is in order and counted.
command -v python3 > /dev/null || { echo "skipped: python3 is not installed"; exit 77; }
$sluice synth qwen3 m.gguf --layers 1 2> err || cat err
cat > check.py << 'END'
import json
rows = json.load(open("rows.json"))
assert [(row["n_beside"], row["n_prompt"], row["n_threads"]) for row in rows] == [(3, p, t) for t in (1, 2) for p in (64, 128)]
for row in rows:
    assert row["first_token_alone_ms"] > 0 and row["first_token_ms"] > 0, row
    assert 0 <= row["between_before_median_ms"] <= row["between_before_p99_ms"], row
    assert 0 < row["between_median_ms"] <= row["between_p99_ms"] <= row["between_most_ms"], row
    # A prompt of n / 8 steps, of which each gives each sequence a token; two repetitions.
    steps = row["n_prompt"] // 8
    assert row["between_count"] >= 2 * 3 * (steps - 3), row
    # While a prompt of so many steps is read nobody waits for longer than it all takes.
    assert row["between_median_ms"] <= row["first_token_ms"], row
print(len(rows), "rows")
END
$sluice bench -m m.gguf --beside 3 -p 64,128 -n 8 --chunk 11 -c 16384 -t 1,2 -r 2 --device cpu -o json > rows.json && python3 check.py
$sluice bench -m m.gguf --beside 2 -p 16,0 -n 4 -r 1 -t 1 | tail -n 2 | cut -d '|' -f 4,5
$sluice bench -m m.gguf --beside 2 -p 16 -n 4 -r 1 -t 1 -o csv | cut -d , -f 5,6
for wrong in "-p 0" "-n 0" "-pg 4,4"; do $sluice bench -m m.gguf --beside 2 $wrong; echo "exit $?"; done
