#!/bin/sh
# Completions and manual pages: they say of commands and options what the help says. Prints what is wrong. Whether the other shells and
# groff can read them are cases of their own, which say when those are not there.
wrong() { echo "$*"; }
command -v bash > /dev/null || { echo 'there is no bash'; exit 77; }

$sluice completion bash > script
bash -n script || wrong 'bash does not read the script'
# complete WORD...: what bash offers behind these words, the last of which is begun.
cat > try.sh << 'END'
. ./script
COMP_WORDS=(sluice "$@")
COMP_CWORD=$#
_sluice
printf '%s\n' "${COMPREPLY[@]}"
END
complete() { bash try.sh "$@"; }
same() { [ "$2" = "$3" ] || wrong "$1: \"$2\" is not \"$3\""; }
: > model.gguf
mkdir sub
same 'commands' "$(complete ch)" chat
same 'commands of help' "$(complete help per)" perplexity
same 'shells' "$(complete completion z)" zsh
same 'options' "$(complete run --chat-template-k)" --chat-template-kwargs
same 'choices' "$(complete run -o '' | sort | tr '\n' ' ')" 'json text '
same 'a choice' "$(complete bench --output c)" csv
same 'models' "$(complete run -m m | sort | tr '\n' ' ')" 'mini mini-moe model.gguf '
same 'files' "$(complete quantize mod)" model.gguf
same 'formats' "$(complete chat --chat-template gem)" gemma
same 'a value that nobody knows' "$(complete run -n '')" ''
# Every option of every help is offered, and nothing else.
commands=$($sluice man | sed -n 's/^\.BR sluice\\-\([a-z]*\) (1).*/\1/p')
[ "$(echo "$commands" | wc -w)" -gt 12 ] || wrong "commands: $commands"
for command in $commands; do
    $sluice help "$command" | sed -n 's/^  \(-.*\)/\1/p' | grep -oE '(^|, )--?[a-z][a-z0-9-]*' | tr -d ', ' | sort > helped
    complete "$command" - | sort > offered
    cmp -s helped offered || wrong "$command: $(diff helped offered)"
    $sluice man "$command" > "sluice-$command.1"
    grep '^\\fB\\-' "sluice-$command.1" | grep -oE '\\fB[^ ]*\\fR' | sed 's/\\fB//g; s/\\fR.*//; s/\\//g' | sort -u > described
    sort -u helped > once
    cmp -s once described || wrong "sluice-$command.1: $(diff once described)"
done
same 'a shell that there is not' "$($sluice completion csh 2>&1)" 'sluice: completion: bash, zsh or fish, not "csh"'
same 'a page that there is not' "$($sluice man nothing 2>&1)" 'sluice: man: there is no command nothing (see sluice --help)'
true
