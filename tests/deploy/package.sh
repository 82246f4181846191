#!/bin/sh
# The Debian packages: package.sh [--fast] [--twice] [FOLDER]. Builds them without the network, asks lintian, unpacks them and uses what is in
# them; as root with mmdebstrap also installs, upgrades and purges them in a Debian 12 of their own (tests/deploy/installed.sh).
#
# --fast: without optimisation, for the packing alone. --twice: builds again elsewhere and compares. FOLDER: packages that are there.
fast=""
twice=""
folder=""
for word in "$@"; do
    case $word in
    --fast) fast=noopt ;;
    --twice) twice=yes ;;
    *) folder=$word ;;
    esac
done
source=$(cd "$(dirname "$0")/../.." && pwd)
for tool in dpkg-buildpackage dh lintian; do
    command -v $tool > /dev/null || { echo "skipped: no $tool on this machine"; exit 77; }
done
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

fail() {
    echo "$*"
    exit 1
}

# Without the network, where this user may take it away.
alone=""
if unshare -n true 2> /dev/null; then
    alone="unshare -n"
elif unshare -rn true 2> /dev/null; then
    alone="unshare -rn"
else
    echo "the network stays: this user may not take it away"
fi

build() {
    DEB_BUILD_OPTIONS=$fast $alone "$source/deploy/debian/build" --no-cuda "$1" || fail "no packages"
}

if [ -z "$folder" ]; then
    folder=$work/deb
    build "$folder"
fi
set -- "$folder"/sluice_*.deb
[ $# = 1 ] && [ -f "$1" ] || fail "$folder: $# packages sluice, 1 was expected"
program=$1
library=$(ls "$folder"/libsluice0_*.deb) && development=$(ls "$folder"/libsluice-dev_*.deb) || fail "$folder: a package is missing"

# Errors and warnings are failures. What else it may say stands here, with its reason; without optimisation there is no hardening to see.
may="arch-dep-package-has-big-usr-share: the models are the program's, in one package
no-symbols-control-file: programs want the very version that they were built with
package-supports-alternative-init-but-no-init.d-script: Debian 12 starts with systemd
spelling-error-in-binary: a variable of the page's scripts"
[ -z "$fast" ] || may="$may
hardening-no-fortify-functions: built without optimisation"
lintian --allow-root --pedantic -EI --tag-display-limit 0 "$folder"/*.changes > "$work/said" 2>&1 || { cat "$work/said"; exit 1; }
said=$(grep -E '^[EWIPX]: ' "$work/said")
echo "$said" | grep -E '^[EW]: ' && fail "lintian has warnings"
for tag in $(echo "$said" | awk '{ print $NF == "" ? "" : $0 }' | sed 's/^[A-Z]: [^:]*: \([^ ]*\).*/\1/' | sort -u); do
    echo "$may" | grep -q "^$tag: " || fail "lintian: $(echo "$said" | grep -F " $tag")"
done

# Nothing is in the packages but what belongs there, and all that does.
for package in "$library" "$program" "$development"; do
    dpkg-deb -x "$package" "$work/unpacked" || fail "$package does not unpack"
    dpkg-deb -c "$package" | grep -v ' root/root ' && fail "$package: somebody's own files"
done
for name in usr/bin/sluice usr/share/sluice/models/mini.gguf usr/share/sluice/models/mini-moe.gguf usr/share/man/man1/sluice-run.1.gz \
    usr/share/bash-completion/completions/sluice usr/share/zsh/vendor-completions/_sluice lib/systemd/system/sluice.service \
    lib/systemd/system/sluice.socket etc/sluice/serve.json usr/include/sluice.h usr/share/doc/sluice/copyright \
    usr/share/doc/sluice/examples/grafana/sluice.json; do
    [ -s "$work/unpacked/$name" ] || fail "$name is missing or empty"
done
grep -q '^ExecStart=/usr/bin/sluice serve' "$work/unpacked/lib/systemd/system/sluice.service" || fail "the unit does not start /usr/bin/sluice"

# The program runs, finds its models, and says which commit it is of.
libraries=$(dirname "$(find "$work/unpacked/usr/lib" -name libsluice.so.0)")
run() { LD_LIBRARY_PATH=$libraries "$work/unpacked/usr/bin/sluice" "$@"; }
LD_LIBRARY_PATH=$libraries ldd "$work/unpacked/usr/bin/sluice" > "$work/said" || fail "ldd: $(cat "$work/said")"
grep 'not found' "$work/said" && fail "a library is not there"
answer=$(run run "What is 2+3?" --temp 0) && [ "$answer" = "2 + 3 = 5" ] || fail "sluice run says \"$answer\""
if dpkg-deb -f "$program" Version | grep -q git; then
    commit=$(dpkg-deb -f "$program" Version | sed 's/\.changed$//; s/.*\.//')
    run bench -p 8 -n 0 -r 1 -o json | grep -q "\"build_commit\": *\"$commit\"" || fail "sluice bench does not name $commit"
fi

# The manual's pages are free of what man complains about; bash completes.
for page in "$work"/unpacked/usr/share/man/man1/*; do
    said=$(LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 > /dev/null)
    [ -z "$said" ] || fail "$page: $said"
done
words=$(bash -c '. "$0"; COMP_WORDS=(sluice se); COMP_CWORD=1; COMP_LINE="sluice se"; COMP_POINT=9
    function=$(complete -p sluice | sed "s/.*-F \([^ ]*\).*/\1/"); "$function" sluice se sluice; echo "${COMPREPLY[*]}"' \
    "$work/unpacked/usr/share/bash-completion/completions/sluice")
[ "$words" = serve ] || fail "bash completes \"sluice se\" to \"$words\""

# A program of somebody else's: header, library and pkg-config file fit together.
printf '#include <sluice.h>\n#include <stdio.h>\nint main(void) {\n    return puts(sluice_version()) < 0;\n}\n' > "$work/hello.c"
flags=$(PKG_CONFIG_PATH=$libraries/pkgconfig PKG_CONFIG_SYSROOT_DIR=$work/unpacked pkg-config --cflags --libs sluice) || fail "pkg-config"
cc "$work/hello.c" -I"$work/unpacked/usr/include" $flags -L"$libraries" -o "$work/hello" || fail "nothing can be built with libsluice-dev"
[ -n "$(LD_LIBRARY_PATH=$libraries "$work/hello")" ] || fail "what was built with libsluice-dev says nothing"

if [ -n "$twice" ]; then
    mkdir -p "$work/a-folder-of-another-length"
    build "$work/a-folder-of-another-length/deb"
    for package in "$folder"/*.deb; do
        cmp "$package" "$work/a-folder-of-another-length/deb/$(basename "$package")" || fail "the second build differs"
    done
    echo "the second build is the same"
fi
if [ "$(id -u)" = 0 ] && command -v mmdebstrap > /dev/null; then
    unshare -m sh "$source/tests/deploy/installed.sh" "$folder" || exit 1
else
    echo "not installed anywhere: that needs root and mmdebstrap"
fi
