#!/bin/sh
# Installs the packages of FOLDER in a Debian 12 made for it, uses them, installs them again and purges them: installed.sh FOLDER [TAR].
# Needs root, mmdebstrap and Debian's packages, or TAR: such a Debian with what the packages need, systemd and man-db. Called by package.sh.
folder=$1
tar=$2
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d) || exit 1
debian=$work/debian
trap 'umount -l "$debian/proc" 2> /dev/null; rm -rf --one-file-system "$work"' EXIT

fail() {
    echo "$*"
    exit 1
}

inside() { chroot "$debian" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"; }
# All that is there but what dpkg and others keep of their own work.
contents() {
    (cd "$debian" && find . -path ./proc -prune -o -path ./var/lib/dpkg -prune -o -path ./run -prune -o -path ./var/log -prune -o -path ./var/cache/man \
        -prune -o -path ./tmp -prune -o -path ./opt -prune -o -path ./var/cache/ldconfig -prune -o -print | LC_ALL=C sort)
}

# What the packages say they need is there, and what looks at them.
needed=$(for package in "$folder"/*.deb; do dpkg-deb -f "$package" Depends; done | tr ',' '\n' | sed 's/ *([^)]*)//; s/^ *//; s/|.*//' |
    grep -v '^libsluice0$' | sort -u | paste -sd ,)
if [ -n "$tar" ]; then
    mkdir "$debian" && tar -xf "$tar" -C "$debian" || exit 1
else
    mmdebstrap --quiet --variant=minbase --include="$needed,systemd-sysv,dbus,curl,man-db,bash-completion" bookworm "$debian" > "$work/log" 2>&1 || {
        echo "not installed anywhere: no Debian 12 could be made: $(tail -n 1 "$work/log")"
        exit 0
    }
fi
cp "$folder"/*.deb "$debian/opt"
mkdir -p "$debian/var/lib/systemd/deb-systemd-helper-enabled" "$debian/var/cache/private"
contents > "$work/before"
mount -t proc proc "$debian/proc" || fail "no /proc"

inside sh -c 'dpkg -i /opt/*.deb' > "$work/log" 2>&1 || fail "$(cat "$work/log")"
answer=$(inside sluice run "What is sluice?" --temp 0) || fail "sluice run failed"
echo "$answer" | grep -q 'sluice is an LLM inference engine' || fail "sluice run \"What is sluice?\" says \"$answer\""
inside man sluice-run | grep -q 'sluice-run - ' || fail "man sluice-run"
inside bash -ic '. /usr/share/bash-completion/bash_completion; _completion_loader sluice; complete -p sluice' > "$work/log" 2>&1 ||
    fail "completion: $(cat "$work/log")"
inside systemd-analyze verify --man=no sluice.service sluice.socket > "$work/log" 2>&1 || fail "$(cat "$work/log")"
grep sluice "$work/log" && fail "systemd-analyze verify has remarks"
for unit in sluice.service sluice.socket; do
    [ "$(inside systemctl is-enabled $unit)" = disabled ] || fail "$unit is $(inside systemctl is-enabled $unit) after the installation"
done
find "$debian/etc/systemd" -name 'sluice*' | grep . && fail "a unit is switched on"

# Again, over what was changed: a configuration that somebody wrote stays.
echo '{"model": ["mini-moe"]}' > "$debian/etc/sluice/serve.json"
inside sh -c 'dpkg -i /opt/*.deb' > "$work/log" 2>&1 || fail "$(cat "$work/log")"
grep -q mini-moe "$debian/etc/sluice/serve.json" || fail "an upgrade took the configuration"

# What the service leaves behind, as a user that is gone.
mkdir -p "$debian/var/cache/private/sluice"
ln -s private/sluice "$debian/var/cache/sluice"
packages=$(for package in "$folder"/*.deb; do dpkg-deb -f "$package" Package; done)
inside dpkg --purge $packages > "$work/log" 2>&1 || fail "$(cat "$work/log")"
contents > "$work/after"
diff "$work/before" "$work/after" > "$work/log" || fail "what a purge leaves, or takes too much: $(cat "$work/log")"
echo "installed, used, installed again and purged in Debian $(cat "$debian/etc/debian_version")"

# Installed once more and booted, where containers can be: the units at work.
if command -v systemd-nspawn > /dev/null; then
    inside sh -c 'dpkg -i /opt/*.deb' > "$work/log" 2>&1 || fail "$(cat "$work/log")"
    umount -l "$debian/proc"
    cp "$source/tests/deploy/booted.sh" "$debian/opt"
    mkdir "$debian/opt/drop-ins" && sh "$source/tests/deploy/drop_ins.sh" "$source/docs/deploying.md" "$debian/opt/drop-ins" || exit 1
    rm "$debian/opt/drop-ins/gpu.conf"
    printf '[Unit]\nAfter=basic.target dbus.service\n[Service]\nType=oneshot\nExecStart=/bin/sh -c "bash /opt/booted.sh > /opt/said 2>&1"
ExecStopPost=/bin/systemctl poweroff --no-block\nTimeoutStartSec=240\n' > "$debian/etc/systemd/system/booted.service"
    mkdir -p "$debian/etc/systemd/system/multi-user.target.wants"
    ln -s ../booted.service "$debian/etc/systemd/system/multi-user.target.wants/booted.service"
    timeout 300 systemd-nspawn -bD "$debian" --register=no --keep-unit --private-network --console=pipe < /dev/null > "$work/log" 2>&1
    [ "$(tail -n 1 "$debian/opt/said")" = fine ] || fail "booted: $(tail -n 3 "$work/log") $(cat "$debian/opt/said")"
    echo "booted: $(cat "$debian/opt/said")"
else
    echo "not booted: that needs systemd-nspawn"
fi
