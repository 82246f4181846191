#!/bin/sh
# A model's file that is cut while a run reads it ends the run with one line that names it: truncated.sh SLUICE MODEL
sluice=$1
model=$2
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cp "$model" "$work/model.gguf" || exit 1
"$sluice" run -m "$work/model.gguf" --device cpu --isa plain --ignore-eos --temp 0 -c 8192 -n 8000 -p "Once upon a time" \
    > "$work/stdout" 2> "$work/stderr" &
run=$!
while [ ! -s "$work/stdout" ]; do
    kill -0 $run 2> /dev/null || break
    sleep 0.05
done
: > "$work/model.gguf"
wait $run
code=$?
[ $code = 1 ] || { echo "exit $code, expected 1"; cat "$work/stderr"; exit 1; }
[ "$(wc -l < "$work/stderr")" = 1 ] && grep -q "$work/model.gguf: became shorter" "$work/stderr" ||
    { echo "stderr:"; cat "$work/stderr"; exit 1; }
