#!/bin/sh
# Takes away what `make install` wrote: uninstall.sh PREFIX, with DESTDIR as for the installation. Files that were not listed stay,
# and so do folders that hold some.
set -eu
prefix=$1
root=${DESTDIR:-}
list=$root$prefix/share/sluice/installed.txt
[ -r "$list" ] || { echo "uninstall: $list is not there: nothing of sluice is installed under $prefix" >&2; exit 1; }
names=$(cat "$list")

folders=""
old=$IFS
IFS='
'
for name in $names; do
    case $name in
    */../* | ../*) echo "uninstall: $list: $name leads out of the prefix" >&2; exit 1 ;;
    esac
done
for name in $names; do
    case $name in
    /*) path=$root$name ;;
    *) path=$root$prefix/$name ;;
    esac
    rm -f -- "$path"
    case $name in
    /*) ;;
    *)
        folder=${name%/*}
        while [ "$folder" != "$name" ]; do
            folders="$folders$folder
"
            next=${folder%/*}
            [ "$next" != "$folder" ] || break
            folder=$next
        done
        ;;
    esac
done
# Folders of the system stay, empty or not; those that only sluice has go.
for folder in $(printf '%s' "$folders" | LC_ALL=C sort -ru); do
    case $prefix/$folder in
    /usr/share/sluice* | /usr/local/share/sluice*) ;;
    /usr/*) continue ;;
    esac
    rmdir -- "$root$prefix/$folder" 2>/dev/null || true
done
IFS=$old
case $prefix in
/usr | /usr/*) ;;
*) rmdir -- "$root$prefix" 2>/dev/null || true ;;
esac
