#!/bin/sh
# What is installed works where it lies: install_prefix.sh CMAKE BUILD SOURCE. Several prefixes from one build, DESTDIR, a prefix that is
# moved afterwards, and taking it all away again.
cmake=$1
build=$2
source=$3
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
unset DESTDIR

fail() {
    echo "$*"
    exit 1
}

# Every kind of file is there: files PREFIX
files() {
    for name in bin/sluice include/sluice.h lib/systemd/system/sluice.service lib/systemd/system/sluice.socket \
        share/sluice/models/mini.gguf share/sluice/models/mini-moe.gguf share/sluice/models/eval/tasks.json \
        share/bash-completion/completions/sluice share/zsh/site-functions/_sluice share/fish/vendor_completions.d/sluice.fish \
        share/man/man1/sluice.1 share/man/man1/sluice-run.1; do
        [ -s "$1/$name" ] || fail "$1/$name is missing or empty"
    done
    for name in libsluice.so libsluice.so.0 libsluice.a pkgconfig/sluice.pc; do
        [ -n "$(find "$1/lib" -path "*/$name")" ] || fail "$1/lib: no $name"
    done
    if [ -f "$build/libsluice-cuda.so" ] && [ -z "$(find "$1/lib" -name libsluice-cuda.so)" ]; then
        fail "$1/lib: no libsluice-cuda.so, and it was built"
    fi
}

# The program finds its library and its models: works PREFIX
works() {
    answer=$("$1/bin/sluice" run "What is 2+3?" --temp 0 2>&1) || fail "$1: $answer"
    [ "$answer" = "2 + 3 = 5" ] || fail "$1/bin/sluice says \"$answer\""
    (cd / && "$1/bin/sluice" eval --task arithmetic -n 1 > "$work/log" 2>&1) || fail "$1: eval: $(cat "$work/log")"
}

for prefix in "$work/one" "$work/two with a 100% space"; do
    "$cmake" --install "$build" --prefix "$prefix" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    files "$prefix"
    file=$(find "$prefix" -name sluice.pc)
    said=$(sed -n 's/^prefix=//p' "$file")
    [ "$said" = "$prefix" ] || fail "$file says \"$said\", not \"$prefix\""
    grep -q '^libdir=${prefix}/lib' "$file" || fail "$file: libdir: $(cat "$file")"
    grep -q '^includedir=${prefix}/include$' "$file" || fail "$file: includedir: $(cat "$file")"
    grep -q '^Version: [0-9]' "$file" || fail "$file: no version"
    if command -v systemd-analyze > /dev/null; then # it looks for the program that ExecStart names
        systemd-analyze verify --man=no "$prefix/lib/systemd/system/sluice.service" > "$work/log" 2>&1 || fail "$(cat "$work/log")"
        ! grep -F "$prefix" "$work/log" || fail "the unit of $prefix: $(cat "$work/log")"
    fi
done
works "$prefix"
mv "$prefix" "$work/elsewhere"
works "$work/elsewhere"
[ ! -e "$prefix" ] || fail "$prefix came back"

# It looks for the CUDA module from where it lies as well: beside its library, and in a folder of its own there. What lies here is none.
libraries=$(dirname "$(find "$work/elsewhere/lib" -name libsluice.so.0)")
if [ ! -f "$build/libsluice-cuda.so" ]; then
    mkdir "$libraries/sluice"
    for module in "$libraries/sluice/libsluice-cuda.so" "$libraries/libsluice-cuda.so"; do
        echo none > "$module"
        said=$("$work/elsewhere/bin/sluice" run --device cuda Hello 2>&1)
        case $said in
        *"cuda: $work/elsewhere/"*"${module#"$libraries"} does not load"*) ;; # the loader's path has bin/.. in it
        *) fail "with $module: $said" ;;
        esac
    done
    rm -r "$libraries/sluice" "$libraries/libsluice-cuda.so"
fi

# The files are relative to the prefix, so they go from where it was moved to as well. What others put there stays.
echo mine > "$work/elsewhere/share/mine"
"$source/cmake/uninstall.sh" "$work/elsewhere" || exit 1
left=$(cd "$work/elsewhere" && find . -type f -o -type l)
[ "$left" = ./share/mine ] || fail "uninstall left: $left"
"$source/cmake/uninstall.sh" "$work/one" || exit 1
[ ! -e "$work/one" ] || fail "uninstall left: $(find "$work/one")"
if "$source/cmake/uninstall.sh" "$work/one" 2> "$work/log"; then fail "uninstall of nothing"; fi
grep -q 'nothing of sluice is installed' "$work/log" || fail "uninstall of nothing says $(cat "$work/log")"

# DESTDIR is nowhere in what is written; folders of the system stay.
mkdir -p "$work/stage/usr/local/bin"
DESTDIR=$work/stage "$cmake" --install "$build" --prefix /usr/local > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
files "$work/stage/usr/local"
found=$(grep -rlF "$work" "$work/stage/usr/local/lib/systemd" "$work/stage/usr/local/share" "$work/stage/usr/local/lib/pkgconfig")
[ -z "$found" ] || fail "DESTDIR is written into $found"
grep -q '^ExecStart=/usr/local/bin/sluice serve' "$work/stage/usr/local/lib/systemd/system/sluice.service" ||
    fail "the unit does not start /usr/local/bin/sluice"
works "$work/stage/usr/local"
DESTDIR=$work/stage "$source/cmake/uninstall.sh" /usr/local || exit 1
left=$(find "$work/stage" -type f -o -type l -o -path '*share/sluice*')
[ -z "$left" ] || fail "uninstall left: $left"
[ -d "$work/stage/usr/local/bin" ] || fail "uninstall took /usr/local/bin"
