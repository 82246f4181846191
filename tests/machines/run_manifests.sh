#!/bin/sh
# The manifests of deploy/kubernetes against published schemas: run_manifests.sh SLUICE FOLDER
# FOLDER, in the build folder, gets the packages of manifests/package-lock.json and the test.
set -u
tests=$(cd "$(dirname "$0")" && pwd)
sluice=$1
folder=$2

for program in node npm; do
    if ! command -v $program >/dev/null 2>&1; then
        echo "skipped: no $program on this machine"
        exit 77
    fi
done
mkdir -p "$folder" || exit 1
cp "$tests/manifests/manifests.test.mjs" "$tests/manifests/schemas.json" "$tests/../server/support.mjs" "$folder" || exit 1

# Only when the lock file changed: the registry is not asked again.
if ! cmp -s "$tests/manifests/package-lock.json" "$folder/installed.json"; then
    rm -f "$folder/installed.json"
    cp "$tests/manifests/package.json" "$tests/manifests/package-lock.json" "$tests/manifests/.npmrc" "$folder" || exit 1
    registry=$(cd "$folder" && npm config get registry 2>/dev/null)
    if ! (cd "$folder" && npm ping >/dev/null 2>&1); then
        echo "skipped: the registry $registry is out of reach"
        exit 77
    fi
    if ! (cd "$folder" && npm ci >npm.log 2>&1); then
        cat "$folder/npm.log"
        exit 1
    fi
    cp "$tests/manifests/package-lock.json" "$folder/installed.json"
fi
exec node "$folder/manifests.test.mjs" --server "$sluice" --deploy "$tests/../../deploy/kubernetes"
