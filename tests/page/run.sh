#!/bin/sh
# Tests of the page in a browser: run.sh SLUICE FOLDER [NAME...]
# FOLDER, in the build folder, gets the packages of packages/package-lock.json. NAME: chat, ...; none: all.
set -u
tests=$(cd "$(dirname "$0")" && pwd)
sluice=$1
folder=$2
shift 2
if [ $# -eq 0 ]; then
    for file in "$tests"/*.test.mjs; do
        set -- "$@" "$(basename "$file" .test.mjs)"
    done
fi

if ! command -v npm >/dev/null 2>&1; then
    echo "skipped: no npm on this machine"
    exit 77
fi
if ! command -v chromium >/dev/null 2>&1 && ! command -v chromium-browser >/dev/null 2>&1 && ! command -v google-chrome >/dev/null 2>&1; then
    echo "skipped: no chromium on this machine"
    exit 77
fi
mkdir -p "$folder" || exit 1

# Only when the lock file changed: the registry is not asked again. One at a time, as tests may run side by side.
exec 9>"$folder/lock" || exit 1
flock 9 || exit 1
if ! cmp -s "$tests/packages/package-lock.json" "$folder/installed.json"; then
    rm -f "$folder/installed.json"
    cp "$tests/packages/package.json" "$tests/packages/package-lock.json" "$tests/packages/.npmrc" "$folder" || exit 1
    registry=$(cd "$folder" && npm config get registry 2>/dev/null)
    if ! (cd "$folder" && npm ping >/dev/null 2>&1); then
        echo "skipped: the registry $registry is out of reach"
        exit 77
    fi
    if ! (cd "$folder" && npm ci >npm.log 2>&1); then
        cat "$folder/npm.log"
        exit 1
    fi
    cp "$tests/packages/package-lock.json" "$folder/installed.json"
fi
flock -u 9

node=$folder/node_modules/.bin/node # the packages need a newer one than many systems have
[ -x "$node" ] || node=node
failed=0
for name; do
    echo "== $name"
    "$node" "$tests/$name.test.mjs" --server "$sluice" --modules "$folder" 9>&-
    code=$?
    [ $code -eq 0 ] || failed=$code
done
exit $failed
