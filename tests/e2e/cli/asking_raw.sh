#!/bin/sh
# A model without a chat template: run goes on from the text, and what else is done is said. Prints what is wrong.
wrong() { echo "$*"; }
same() { [ "$2" = "$3" ] || wrong "$1: \"$2\" is not \"$3\""; }

plain=$($sluice run "$story" 'Once upon a time' --temp 0 -n 20 2> err)
same 'raw by itself' "$plain" "$($sluice run -m "$story" --raw -p 'Once upon a time' --temp 0 -n 20)"
same 'a script need not know' "$(cat err)" ''
$sluice run -v "$story" Once -n 1 2>&1 > text | grep -q 'has no chat template: it goes on from the text as it stands' ||
    wrong '-v does not say that there is no template'
$sluice run "$story" Once --system x 2>&1 | grep -q 'has no chat template (--chat-template' || wrong '--system is lost'
$sluice chat "$story" -p Once -n 1 2>&1 > text | grep -q 'has no chat template: ChatML is used' ||
    wrong 'chat does not say that ChatML is used'
$sluice chat "$story" -p Once -n 1 --chat-template chatml 2>&1 > text | grep -q . && wrong 'a format that was asked for is said'
same 'a format asked for' "$($sluice template "$story" --chat-template gemma -p Hi)" '<start_of_turn>user
Hi<end_of_turn>
<start_of_turn>model'
tokens() { $sluice run "$story" -p Hi -n 1 --temp 0 -o json "$@" | sed -n 's/^ *"prompt_tokens": \([0-9]*\),$/\1/p'; }
[ "$(tokens --chat-template gemma)" -gt "$(tokens)" ] || wrong 'run does not use --chat-template'
true
