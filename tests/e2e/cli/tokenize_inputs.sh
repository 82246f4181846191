#!/bin/sh
# A text is the same with -p, with -f and on standard input, and its ids are the same in JSON. Prints what is wrong.
text='2+3 é <|im_end|> "x"'
printf '%s' "$text" > text.txt
ids=$($sluice tokenize --ids < text.txt)
wrong() { echo "$1: \"$2\" is not \"$ids\""; }
for given in "$($sluice tokenize --ids -p "$text")" "$($sluice tokenize mini --ids -f text.txt)" "$($sluice tokenize --ids -f - < text.txt)" \
    "$($sluice tokenize -p "$text" --ids -o json | tr -d ' \n' | sed 's/.*\[\(.*\)\].*/\1/; s/,/ /g')" \
    "$($sluice tokenize -p "$text" -o json | sed -n 's/ *"id": \([0-9]*\),/\1/p' | tr '\n' ' ' | sed 's/ $//')"; do
    [ "$given" = "$ids" ] || wrong 'another way' "$given"
done
# A character of two bytes in two tokens: neither is text.
[ "$($sluice tokenize -p 'é' -o json | grep -c '"text": null')" = 2 ] || wrong 'parts of a character' "$($sluice tokenize -p 'é' -o json)"
[ "$($sluice detokenize -p "$ids")" = "$text" ] || wrong 'detokenize -p' "$($sluice detokenize -p "$ids")"
echo "$ids" > ids.txt
[ "$($sluice detokenize -f ids.txt)" = "$text" ] || wrong 'detokenize -f' "$($sluice detokenize -f ids.txt)"
$sluice tokenize -p a -f text.txt 2> err
[ $? = 2 ] || wrong 'both' "$(cat err)"
