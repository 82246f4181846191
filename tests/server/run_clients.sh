#!/bin/sh
# Clients as published against `sluice serve`: run_clients.sh SLUICE FOLDER [NAME...]
# FOLDER, in the build folder, gets the packages of clients/package-lock.json and the tests. NAME: openai, anthropic, ai,
# ollama, curl, tools; none: all.
set -u
tests=$(cd "$(dirname "$0")" && pwd)
sluice=$1
folder=$2
shift 2
[ $# -gt 0 ] || set -- openai anthropic ai ollama curl tools

if ! command -v npm >/dev/null 2>&1; then
    echo "skipped: no npm on this machine"
    exit 77
fi
mkdir -p "$folder" || exit 1
cp "$tests"/clients/*.mjs "$tests/support.mjs" "$folder" || exit 1

# Only when the lock file changed: the registry is not asked again.
if ! cmp -s "$tests/clients/package-lock.json" "$folder/installed.json"; then
    rm -f "$folder/installed.json"
    cp "$tests/clients/package.json" "$tests/clients/package-lock.json" "$tests/clients/.npmrc" "$folder" || exit 1
    registry=$(cd "$folder" && npm config get registry 2>/dev/null)
    if ! (cd "$folder" && npm ping >/dev/null 2>&1); then
        echo "skipped: the registry $registry is out of reach"
        exit 77
    fi
    if ! (cd "$folder" && npm ci >npm.log 2>&1); then
        cat "$folder/npm.log"
        exit 1
    fi
    cp "$tests/clients/package-lock.json" "$folder/installed.json"
fi

node=$folder/node_modules/.bin/node # the packages need a newer one than many systems have
[ -x "$node" ] || node=node
failed=0
for name; do
    echo "== $name"
    "$node" "$folder/$name.test.mjs" --server "$sluice" || failed=1
done
exit $failed
