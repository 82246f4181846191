#!/bin/sh
# What answers are held to: schemas, grammars and patterns, as texts and as files. Prints what is wrong.
wrong() { echo "$*"; }
matches() { printf '%s\n' "$2" | grep -Eq "$3" || wrong "$1: \"$2\" does not match $3"; }
says() { grep -q -- "$2" said || wrong "$1: $(cat said)"; }

question='Who lives by the river?'
schema='{"type": "object", "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer", "minimum": 10, "maximum": 99}},
  "required": ["name", "age"], "additionalProperties": false}'
object='^\{ ?"name": ?"(Ann|Bob)", ?"age": ?[1-9][0-9] ?\}$'
printf '%s' "$schema" > schema.json
printf 'root ::= name " and " name\nname ::= [A-Z] [a-z]{2,5}\n' > names.gbnf
for seed in 1 2 3; do
    wild="--temp 2 --seed $seed -n 200"
    # shellcheck disable=SC2086
    {
        matches '--json-schema TEXT' "$($sluice run "$question" $wild --json-schema "$schema")" "$object"
        matches '--json-schema FILE' "$($sluice run "$question" $wild --json-schema schema.json)" "$object"
        matches '-jf' "$($sluice run "$question" $wild -jf schema.json)" "$object"
        matches '-j of chat' "$($sluice chat -p "$question" $wild -j "$schema")" "$object"
        matches '--grammar FILE' "$($sluice run "$question" $wild --grammar names.gbnf)" '^[A-Z][a-z]{2,5} and [A-Z][a-z]{2,5}$'
        matches '--grammar-file' "$($sluice run "$question" $wild --grammar-file names.gbnf)" '^[A-Z][a-z]{2,5} and [A-Z][a-z]{2,5}$'
        matches '--grammar TEXT' "$($sluice run "$question" $wild --grammar 'root ::= "yes" | "no"')" '^(yes|no)$'
        matches '--regex' "$($sluice run "$question" $wild --regex '(red|blue){2} [0-9]{3}')" '^(red|blue){2} [0-9]{3}$'
        matches '--regex of --raw' "$($sluice run --raw 'It is' $wild --regex ' [a-z]{4}[.]' 2> /dev/null)" '^ [a-z]{4}\.$'
    }
done
# Every turn of a conversation.
turns=$(printf 'Who?\nAnd now?\n' | $sluice chat --temp 2 --seed 4 --regex '[a-c]{5}')
[ "$(printf '%s\n' "$turns" | grep -Ecx '[a-c]{5}')" = 2 ] || wrong "two turns: $turns"

$sluice run x --json-schema '{"enum": []}' 2> said && wrong 'an empty enum is taken'
says 'an empty enum' '^sluice: --json-schema: .*enum'
$sluice run x --json-schema nothing.json 2> said && wrong 'no file is taken'
says 'no file' 'nothing.json'
$sluice run x --grammar 'root ::= other' 2> said && wrong 'a rule that is not there is taken'
says 'no rule' 'other'
$sluice run x --regex '(a' 2> said && wrong 'half a pattern is taken'
says 'half a pattern' '^sluice: --regex: '
$sluice run x --regex a --grammar 'root ::= "a"' 2> said && wrong 'two are taken'
says 'two' 'exclude each other'
$sluice bench mini -p 0 -n 8 -r 1 --regex '[a-z]{99}' -o json > out || wrong 'bench with a pattern'
# Answers that end before the tokens are counted are followed by others, also behind a depth and in several sequences.
$sluice bench mini -p 0 -n 8 -pg 4,8 -d 0,8 -r 1 --parallel 2 --regex 'a' -o json > out 2> said || wrong "bench of short texts: $(cat said)"
[ "$(grep -c '"n_gen": 8' out)" = 4 ] || wrong "bench of short texts: $(cat out)"
$sluice bench mini -p 0 -n 8 -r 1 --json-schema '{"type": "boolean"}' -o json > out 2> said || wrong "bench of a schema: $(cat said)"
true
