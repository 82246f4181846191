# Run by systemd in the Debian that tests/deploy/installed.sh has made: the units do what docs/deploying.md says of them. Prints "fine", or what is wrong.
fail() {
    echo "$*"
    journalctl -u sluice -o cat --no-pager | tail -n 20
    exit 1
}

# ask [WORDS OF curl]: the status and the answer
ask() {
    curl -s -m 60 -w '%{http_code}' "$@" http://127.0.0.1:8080/v1/chat/completions \
        -d '{"messages": [{"role": "user", "content": "What is 2+3?"}], "temperature": 0}' | grep -oE '2 \+ 3 = 5|[0-9]{3}$' | paste -sd ' '
}

systemctl enable --now sluice.service || fail "the service does not start"
[ "$(ask)" = "2 + 3 = 5 200" ] || fail "the service answers $(ask)"
user=$(stat -c %u "/proc/$(systemctl show -P MainPID sluice)")
[ "$user" -ge 61184 ] && [ "$user" -le 65519 ] || fail "the service is of user $user, which is no dynamic one"
[ -d /var/cache/private/sluice ] || fail "the service has no cache"
systemctl disable --now sluice.service || fail "the service does not end"

# The first to connect starts it, and waits until the model is there.
systemctl enable --now sluice.socket || fail "the socket does not start"
[ "$(systemctl is-active sluice.service)" = inactive ] || fail "the service runs before somebody connects"
[ "$(ask)" = "2 + 3 = 5 200" ] || fail "the socket answers $(ask)"

# Keys that only root may read, by the drop-in of docs/deploying.md.
mkdir -p /etc/systemd/system/sluice.service.d
cp /opt/drop-ins/*.conf /etc/systemd/system/sluice.service.d
printf 'first-key\nsecond-key\n' > /etc/sluice/keys
chmod 600 /etc/sluice/keys
systemctl daemon-reload && systemctl restart sluice || fail "the service does not start with drop-ins"
[ "$(ask)" = 401 ] || fail "without a key: $(ask)"
[ "$(ask -H 'Authorization: Bearer second-key')" = "2 + 3 = 5 200" ] || fail "with a key: $(ask -H 'Authorization: Bearer second-key')"

# A restart while many come: nobody is refused.
for i in $(seq 20); do
    ask -H 'Authorization: Bearer first-key' >> /opt/answers &
    [ "$i" != 4 ] || systemctl restart --no-block sluice
    sleep 0.1
done
wait
[ "$(sort /opt/answers | uniq -c | tr -s ' ')" = " 20 2 + 3 = 5 200" ] || fail "a restart: $(sort /opt/answers | uniq -c)"
[ "$(journalctl -u sluice -o cat | grep -c 'ready: ')" = 4 ] || fail "there was no restart"

# An upgrade restarts it; it stays away when it is not switched on.
before=$(systemctl show -P MainPID sluice)
dpkg -i /opt/*.deb > /dev/null || fail "dpkg -i"
[ "$(systemctl is-active sluice.service)" = active ] && [ "$(systemctl show -P MainPID sluice)" != "$before" ] ||
    fail "an upgrade: $(systemctl is-active sluice.service), process $before before and $(systemctl show -P MainPID sluice) after"
systemctl disable --now sluice.socket sluice.service || fail "the units do not end"
dpkg -i /opt/*.deb > /dev/null || fail "dpkg -i"
[ "$(systemctl is-active sluice.service)" = inactive ] || fail "an upgrade starts what is off"

# What the service and its user had goes with the package.
rm -r /etc/systemd/system/sluice.service.d /etc/sluice/keys
systemctl daemon-reload && systemctl start sluice.socket && [ "$(ask)" = "2 + 3 = 5 200" ] || fail "the socket does not start again"
dpkg --purge sluice > /dev/null || fail "dpkg --purge"
left=$(find /etc /var /lib/systemd /usr/lib/systemd -name '*sluice*' ! -path '/var/lib/dpkg/*' ! -path '/var/log/*' ! -path '/var/cache/man/*')
[ -z "$left" ] || fail "a purge leaves $left"
[ "$(ask)" = 000 ] || fail "the server outlives its package: $(ask)"
echo fine
