#!/bin/sh
# The units of systemd: units.sh SLUICE SOURCE. systemd itself finds nothing wrong with them, also with what it may not do for the
# service, and the server takes the configuration that comes with them.
sluice=$1
source=$2
command -v systemd-analyze > /dev/null || { echo "skipped: no systemd-analyze on this machine"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

fail() {
    echo "$*"
    exit 1
}

# verify FILES: quiet, as what it finds does not always end in a failure
verify() {
    systemd-analyze verify --man=no "$@" > "$work/log" 2>&1 || fail "$(cat "$work/log")"
    if grep -F sluice "$work/log"; then fail "systemd-analyze verify has remarks"; fi
}

grep -q '^ExecStart=/usr/local/bin/sluice serve --config /etc/sluice/serve.json$' "$source/deploy/systemd/sluice.service" ||
    fail "sluice.service: ExecStart is another"
sed "s#/usr/local/bin/sluice#$sluice#" "$source/deploy/systemd/sluice.service" > "$work/sluice.service"
cp "$source/deploy/systemd/sluice.socket" "$work"
verify "$work/sluice.service" "$work/sluice.socket"

# The drop-ins that docs/deploying.md shows stand there in a block each, under the name of their file.
mkdir "$work/sluice.service.d"
sh "$source/tests/deploy/drop_ins.sh" "$source/docs/deploying.md" "$work/sluice.service.d"
found=$(ls "$work/sluice.service.d" | wc -l)
[ "$found" -ge 2 ] || fail "docs/deploying.md: $found drop-ins, at least 2 were expected"
sed -i "s#/usr/bin/sluice#$sluice#" "$work/sluice.service.d"/*
for file in "$work/sluice.service.d"/*; do
    mkdir -p "$work/one/sluice.service.d"
    cp "$work/sluice.service" "$work/one"
    cp "$file" "$work/one/sluice.service.d"
    verify "$work/one/sluice.service"
    rm -r "$work/one"
done

# 0 is a service that may do nothing, 10 one that may do all. Devices, which hold a GPU, are most of what is left.
if systemd-analyze security --help 2> /dev/null | grep -q -- --offline; then
    systemd-analyze security --offline=yes --threshold=40 "$work/sluice.service" > "$work/log" 2>&1 ||
        fail "the service may do more than it did: $(tail -n 1 "$work/log")"
    tail -n 1 "$work/log"
fi

# Its configuration, but for the port.
sed 's/"port": 8080/"port": 0/' "$source/deploy/systemd/serve.json" > "$work/serve.json"
"$sluice" serve --config "$work/serve.json" 2> "$work/log" &
server=$!
for _ in $(seq 300); do
    grep -q 'ready:' "$work/log" && break
    kill -0 $server 2> /dev/null || break
    sleep 0.1
done
kill $server 2> /dev/null
wait $server || fail "serve.json: the server ended with $?: $(cat "$work/log")"
grep -q 'ready: mini' "$work/log" || fail "serve.json: $(cat "$work/log")"
