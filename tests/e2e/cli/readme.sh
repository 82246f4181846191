#!/bin/sh
# Every command of the README's tour, in an empty folder: it ends as it should, and what depends on no machine is
# printed as the README has it. Prints what is wrong. What runs until it is stopped, or asks a server, is left out.
root=$(cd "$tests/../../.." && pwd)
mkdir bin
ln -s "$sluice" bin/sluice
PATH=$PWD/bin:$PATH
cp "$root/models/mini.gguf" model.gguf
cp "$root/LICENSE" .
sed -n '/^## A short tour/,/^## What runs/p' "$root/README.md" | sed -n 's/^    //p' > tour
[ "$(grep -c '^\$ ' tour)" -gt 15 ] || echo 'the tour is gone'
grep '^\$ ' tour | sed 's/^\$ //' > commands
# What the README shows under a command.
shown() { command=$1 awk '$0 == "$ " ENVIRON["command"] { on = 1; next } /^\$ / { on = 0 } on' tour; }
while read -r command; do
    case $command in *'&' | curl* | 'sluice load '*) continue ;; esac
    sh -c "$command" < /dev/null > printed 2> said
    status=$?
    case $command in
    *--memory-limit* | *-sm*) [ $status != 0 ] && [ "$(wc -l < said)" = 1 ] || echo "$command: exit $status" ;;
    *) [ $status = 0 ] || echo "$command: exit $status, $(cat said)" ;;
    esac
    case $command in *plan* | *explain* | *perplexity*) continue ;; esac
    shown "$command" > expected
    if [ -s expected ]; then
        cat said >> printed
        # The last digits of a likeness are those of the tier.
        case $command in *--similar*) sed -i 's/\(\.[0-9][0-9]\)[0-9]*/\1/g' expected printed ;; esac
        cmp -s expected printed || echo "$command: $(diff expected printed)"
    fi
done < commands
true
