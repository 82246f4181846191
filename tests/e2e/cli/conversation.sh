#!/bin/sh
# Conversations from standard input: commands, several lines, and what goes wrong. Prints what is wrong.
wrong() { echo "$*"; }
same() { [ "$2" = "$3" ] || wrong "$1: \"$2\" is not \"$3\""; }
talk() { $sluice chat --temp 0 "$@"; }

# A bad line, a command that is none, a file that is not there and a message beyond the context: a line each, and the
# conversation goes on.
{
    printf '\377\n/nonsense\n/load nothing\n'
    seq -s ' ' 1 400
    printf 'What is 2+3?\n'
} | talk -c 256 > out 2> err
same 'the status remembers' $? 1
same 'the conversation goes on' "$(cat out)" '2 + 3 = 5'
same 'a line for each' "$(wc -l < err)" 4
sed -n 1p err | grep -q 'UTF-8' || wrong 'bytes that are no text'
sed -n 2p err | grep -q 'no command /nonsense (/help lists them)' || wrong 'a command that is none'
sed -n 3p err | grep -q nothing || wrong 'a file that is not there'
sed -n 4p err | grep -q context || wrong 'a message that is too long'

# A path is a message, not a command.
printf '/etc/passwd\n' | talk -n 3 2>&1 | grep -q 'no command' && wrong 'a path is taken for a command'

# Several lines are one message.
printf 'What is\\\n2+3?\n' | talk > out
printf '"""What is\n2+3?"""\n/save m.json\n' | talk > block
printf '"""\nWhat is\n2+3?\n"""\n' | talk > lines
same 'lines joined by a backslash' "$(wc -l < out)" 1
cmp out block
cmp out lines
grep -q '"content": "What is\\n2+3?"' m.json || wrong 'the lines are not one message'

# /system, /save, /load, /reset: what is saved is what the template gets.
printf '/system Be brief.\nHello\n/save a.json\n/reset\n/load a.json\n/save b.json\n/system\n/save c.json\n' | talk > out
cmp a.json b.json
same 'roles' "$(grep -o '"role": "[a-z]*"' a.json | tr -d '\n')" '"role": "system""role": "user""role": "assistant"'
same 'no system message' "$(grep -c '"system"' c.json)" 0
same 'the answer is saved' "$(grep -c "\"content\": \"$(head -n 1 out)\"" a.json)" 1
printf '/save a.json\n' | talk
same 'saved over' "$(tr -d ' \n' < a.json)" '[]'
printf '/save .\n' | talk 2>&1 | grep -q 'not a regular file' || wrong 'saved over a folder'
printf '/load c.json\nHello\n/save d.json\n' | talk > out
same 'what was loaded is gone on from' "$(grep -c '"role": "user"' d.json)" 2

# /regen answers the last question anew: with another draw, and with the conversation as long as before.
printf '/regen\n' | talk 2>&1 | grep -q 'no question yet' || wrong '/regen of nothing'
printf 'Tell a story about a dog.\n/regen\n/save e.json\n' | $sluice chat --temp 1.5 --seed 1 > out
same 'one answer is kept' "$(grep -c '"assistant"' e.json)" 1
same 'two stories' "$(sort -u out | wc -l)" "$(wc -l < out)"

# Interrupted on a pipe, a chat ends.
printf 'Tell a story.\nWhat is 2+3?\n' > input
rm out err
$sluice chat --ignore-eos -n 8000 -c 8192 < input > out 2> err &
chat=$!
tries=0
while [ ! -s out ] 2> /dev/null && [ $tries -lt 200 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
kill -INT $chat
wait $chat
same 'status of an interrupted chat' $? 1
grep -q '2 + 3' out && wrong 'an interrupted chat goes on'
same 'an interrupted chat says so' "$(cat err)" 'sluice: cancelled'
true
