#!/bin/sh
# What is installed under a prefix says that prefix: install_prefix.sh CMAKE BUILD. The second installation goes elsewhere
# from the same build.
cmake=$1
build=$2
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

for prefix in "$work/one" "$work/two with a space"; do
    "$cmake" --install "$build" --prefix "$prefix" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    file=$(find "$prefix" -name sluice.pc)
    said=$(sed -n 's/^prefix=//p' "$file")
    [ "$said" = "$prefix" ] || { echo "$file says \"$said\", not \"$prefix\""; exit 1; }
    grep -q '^libdir=${prefix}/lib' "$file" || { echo "$file: libdir:"; cat "$file"; exit 1; }
    grep -q '^includedir=${prefix}/include$' "$file" || { echo "$file: includedir:"; cat "$file"; exit 1; }
    grep -q '^Version: [0-9]' "$file" || { echo "$file: no version"; exit 1; }
    "$prefix/bin/sluice" --version || exit 1
done
