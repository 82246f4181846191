#!/bin/sh
# Runs the table of command lines (cases.txt) against golden output: run.sh SLUICE SHARED [--update] [--sanitized] [NAME...]
# --update writes the golden files anew; read the difference. --sanitized: the program runs under a sanitizer, and what takes
# an optimised one long is left out.
tests=$(cd "$(dirname "$0")" && pwd)
sluice=$1
shared=$2
shift 2
update= sanitized=
while :; do
    case $1 in
    --update) update=1 ;;
    --sanitized) sanitized=1 ;;
    *) break ;;
    esac
    shift
done
only=" $* "
story=$shared/models/stories260K.gguf
fixtures=$(cd "$tests/../../logits/fixtures" && pwd)
export sluice shared story fixtures tests sanitized
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
passed=0 failed=0 skipped=0

# expect NAME SUFFIX FILE: compares with the golden file, which is absent when FILE is to be empty (or "0").
expect() {
    golden=$tests/golden/$1.$2
    if [ -n "$update" ]; then
        rm -f "$golden"
        { [ ! -s "$3" ] || [ "$(cat "$3")" = 0 ]; } || cp "$3" "$golden"
    elif [ -e "$golden" ]; then
        cmp -s "$golden" "$3" || { echo "$1: $2 differs from golden/$1.$2:"; diff "$golden" "$3" | head -n 20; return 1; }
    elif [ -s "$3" ] && [ "$(cat "$3")" != 0 ]; then
        echo "$1: $2 should be empty:"
        head -n 20 "$3"
        return 1
    fi
}

run_case() {
    mkdir "$work/here" || exit 1
    (cd "$work/here" && exec sh -c "$2" < /dev/null > ../stdout 2> ../stderr)
    echo $? > "$work/exit"
    rm -rf "$work/here"
    if [ "$(cat "$work/exit")" = 77 ]; then
        echo "$1: skipped: $(cat "$work/stdout")"
        skipped=$((skipped + 1))
        return
    fi
    wrong=0
    for suffix in stdout stderr exit; do
        expect "$1" $suffix "$work/$suffix" || wrong=1
    done
    failed=$((failed + wrong))
    passed=$((passed + 1 - wrong))
}

while read -r name needs command; do
    case $name in '' | '#'*) continue ;; esac
    case $only in '  ') ;; *" $name "*) ;; *) continue ;; esac
    if [ "$needs" = shared ] && [ ! -e "$story" ]; then
        echo "$name: skipped: there is no ${story:-shared folder}"
        skipped=$((skipped + 1))
        continue
    fi
    if [ "$needs" = optimised ] && [ -n "$sanitized" ]; then
        echo "$name: skipped: it takes minutes under a sanitizer"
        skipped=$((skipped + 1))
        continue
    fi
    run_case "$name" "$command"
done < "$tests/cases.txt"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
