#!/bin/sh
# Builds the image of deploy/Containerfile and asks a server in it. No registry is asked for debian:12: it is made from Debian's packages. By
# hand, as it takes minutes: needs root, mmdebstrap and buildah, and leaves nothing but what is in a storage of its own.
source=$(cd "$(dirname "$0")/../.." && pwd)
for tool in mmdebstrap buildah curl; do
    command -v $tool > /dev/null || { echo "skipped: no $tool on this machine"; exit 77; }
done
[ "$(id -u)" = 0 ] || { echo "skipped: not root"; exit 77; }
work=$(mktemp -d) || exit 1
storage="--storage-driver vfs --root $work/storage --runroot $work/run"
port=$((20000 + $$ % 20000))
server=""
trap '[ -z "$server" ] || kill "$server"; rm -rf --one-file-system "$work"' EXIT

fail() {
    echo "$*"
    exit 1
}

image() { buildah $storage "$@"; }

mmdebstrap --quiet --variant=minbase bookworm "$work/debian.tar" || fail "no Debian 12 could be made"
base=$(image from scratch) && folder=$(image mount "$base") && tar -xf "$work/debian.tar" -C "$folder" && image umount "$base" > "$work/log" &&
    image commit -q "$base" docker.io/library/debian:12 > "$work/log" && image tag docker.io/library/debian:12 docker.io/library/debian:12-slim ||
    fail "no base"
image build --isolation chroot --network host --format docker --pull-never -t sluice -f "$source/deploy/Containerfile" "$source" > "$work/log" 2>&1 ||
    fail "$(tail -n 20 "$work/log")"

told=$(image inspect --type image --format '{{.Docker.Config.User}} {{.Docker.Config.StopSignal}} {{.Docker.Config.Volumes}}' sluice)
[ "$told" = "10001:10001 SIGTERM map[/models:{}]" ] || fail "the image says $told"
check=$(image inspect --type image --format '{{index .Docker.Config.Healthcheck.Test 3}}' sluice | sed "s/8080/$port/")
container=$(image from --pull-never localhost/sluice)
run() { image run --isolation chroot --user 10001:10001 "$container" -- "$@"; }

# The words of CMD, but on this machine alone and on a port of our own; it writes its number first.
run sh -c "echo process \$\$; exec /usr/bin/sluice serve --host 127.0.0.1 --port $port" > "$work/log" 2>&1 &
for _ in $(seq 600); do
    grep -q 'ready:' "$work/log" && break
    sleep 0.1
done
server=$(sed -n "s/^process //p" "$work/log")
[ "$(stat -c %u "/proc/$server")" = 10001 ] || fail "the server does not run as 10001: $(cat "$work/log")"
answer=$(curl -s -m 60 "http://127.0.0.1:$port/v1/chat/completions" \
    -d '{"messages": [{"role": "user", "content": "What is 2+3?"}], "temperature": 0}')
echo "$answer" | grep -q '2 + 3 = 5' || fail "the server says $answer"
run bash -c "$check" > "$work/check" 2>&1 || fail "the health check: $(cat "$work/check")"
kill -TERM "$server"
wait
server=""
grep -q 'draining' "$work/log" || fail "SIGTERM: $(cat "$work/log")"
if run bash -c "$check" > "$work/check" 2>&1; then fail "the health check finds a server that is gone"; fi
run sh -c 'ls /source /deb' > "$work/check" 2>&1 && fail "the build is in the image: $(cat "$work/check")"
echo "built, asked, ended: $(image images --format '{{.Size}}' localhost/sluice)"
