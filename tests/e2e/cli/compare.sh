#!/bin/sh
# tools/compare with programs that only pretend to measure: medians, ratios, turns and errors.
compare=$tests/../../../tools/compare
command -v python3 > /dev/null || { echo "skipped: python3 is not installed"; exit 77; }
# fake NAME SAMPLES: prints llama-bench's JSON, and notes its name and arguments.
fake() {
    cat > "$1" << END
#!/bin/sh
echo "$1 \$*" >> turns
echo '[{"n_prompt": 16, "n_gen": 0, "n_depth": 0, "samples_ts": [$2]}, {"n_prompt": 0, "n_gen": 4, "n_depth": 32, "samples_ts": [7.0]}]'
END
    chmod +x "$1"
}
fake ours "10.0, 20.0, 60.0"
fake other "4.0, 5.0, 6.0"
python3 "$compare" -m file.gguf --sluice "./ours --device cpu" --peer "other=./other -fa 1" -p 16 -n 4 -d 0,32 --rounds 2
cat turns
printf '#!/bin/sh\necho no such model >&2\nexit 3\n' > broken
printf '#!/bin/sh\necho [1]\n' > odd
chmod +x broken odd
python3 "$compare" -m file.gguf --sluice ./ours --peer broken=./broken 2>&1
python3 "$compare" -m file.gguf --sluice ./ours --peer odd=./odd 2>&1
python3 "$compare" -m file.gguf --sluice ./missing 2>&1
