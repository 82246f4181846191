#!/bin/sh
# `sluice serve --chat-template` and `--template-option`, where a request's own variables win. Prints what is wrong.
command -v curl > /dev/null || { echo 'there is no curl'; exit 77; }
printf '%s' '{{ tone }} {{ messages[0].content }}' > given.jinja
$sluice serve --port 0 --chat-template given.jinja --template-option tone=plain 2> log &
server=$!
trap 'kill $server 2> /dev/null' EXIT
tries=0
until { address=$(grep -o -m 1 '127.0.0.1:[0-9]*' log 2> /dev/null) && curl -sf "http://$address/health" > /dev/null; } || [ $tries -gt 300 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
ask() { curl -s "http://$address/apply-template" -d "$1"; echo; }
ask '{"messages": [{"role": "user", "content": "hi"}]}'
ask '{"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"tone": "loud"}}'
kill $server
wait $server
