#!/bin/sh
# What `sluice run` and `sluice chat` do with a question for the built-in model. Prints what is wrong, and nothing else.
wrong() { echo "$*"; }
same() { [ "$2" = "$3" ] || wrong "$1: \"$2\" is not \"$3\""; }

# A sum has one answer, which shows that the question came in the chat format: a text that goes on repeats it first.
sum='12 + 13 = 25'
same 'a prompt alone' "$($sluice run 'What is 12+13?' --temp 0)" "$sum"
same 'a model and a prompt' "$($sluice run mini 'What is 12+13?' --temp 0)" "$sum"
same 'a prompt behind options' "$($sluice run -m mini --temp 0 'What is 12+13?')" "$sum"
same '-p' "$($sluice run -p 'What is 12+13?' --temp 0)" "$sum"
same 'a model and -p' "$($sluice run mini -p 'What is 12+13?' --temp 0)" "$sum"
same 'standard input' "$(echo 'What is 12+13?' | $sluice run --temp 0)" "$sum"
same '-f -' "$(echo 'What is 12+13?' | $sluice run -f - --temp 0)" "$sum"
printf 'What is 12+13?\r\n' > question
same '-f' "$($sluice run -f question --temp 0)" "$sum"
same 'chat -p' "$($sluice chat -p 'What is 12+13?' --temp 0)" "$sum"
same 'chat -f' "$($sluice chat mini -f question --temp 0 < /dev/null)" "$sum"
same 'chat -f -' "$($sluice chat -f - --temp 0 < question)" "$sum"
same 'the last line ends' "$($sluice run 'What is 12+13?' --temp 0 | wc -l)" 1

# The tokens are those of the template, which sluice template writes, and with --raw those of the text.
count() { grep -o '"prompt_tokens": [0-9]*' | tr -dc 0-9; }
$sluice template -p 'What is 12+13?' -o json > rendered
rendered=$(sed -n '/"tokens"/,/]/p' rendered | grep -c '^ *[0-9]')
same 'tokens asked' "$($sluice run 'What is 12+13?' -n 1 -o json --temp 0 | count)" "$rendered"
raw=$(printf 'What is 12+13?' | $sluice tokenize --ids | wc -w)
same 'tokens of --raw' "$($sluice run --raw 'What is 12+13?' -n 1 -o json --temp 0 2> /dev/null | count)" "$raw"

# A special token that a user writes is text: more tokens than one, and never the token itself (4094 is <|im_start|>).
$sluice template -p '<|im_start|>' -o json > rendered
same 'special tokens of the template alone' "$(grep -c '^ *4094,' rendered)" 2
special=$(sed -n '/"tokens"/,/]/p' rendered | grep -c '^ *[0-9]')
same 'special tokens in a message' "$($sluice run '<|im_start|>' -n 1 -o json --temp 0 | count)" "$special"

# Glued numbers, and -1 for no bound.
same '-n5' "$($sluice run 'What is sluice?' --temp 0 -n5 -t2 -o json | grep -o '"generated_tokens": 5')" '"generated_tokens": 5'
same '-n -1' "$($sluice run 'What is sluice?' --temp 0 -n -1 -o json | grep -o '"finish": ".*"')" '"finish": "eos"'
same 'until the context is full' \
    "$($sluice run --raw 'Once' --ignore-eos -n -1 -c 64 -o json | grep -o '"finish": ".*"')" '"finish": "context"'

# Seeds: another one each time, which is said, and which gives the same text again.
$sluice run --raw 'Once upon a' -n 40 --ignore-eos --temp 1.5 -v > one 2> said
$sluice run --raw 'Once upon a' -n 40 --ignore-eos --temp 1.5 --seed -1 > other
cmp -s one other && wrong 'two random seeds, one text'
seed=$(sed -n 's/^sluice: --seed \([0-9]*\)$/\1/p' said)
[ -n "$seed" ] || wrong '-v does not say the seed'
$sluice run --raw 'Once upon a' -n 40 --ignore-eos --temp 1.5 -s "$seed" > again
cmp one again
seed=$($sluice run --raw 'Once upon a' -n 9 --ignore-eos -o json | sed -n 's/^ *"seed": \([0-9]*\)$/\1/p')
[ -n "$seed" ] || wrong '-o json has no seed'

# A run without text is never silent.
said() { shift; "$@" 2>&1 > text; [ -s text ] && wrong "$*: wrote a text"; }
same 'nothing asked for' "$(said - $sluice run 'Hello' -n 0)" 'sluice: no text: -n 0 asks for none'
case $(said - $sluice run --raw 'What is sluice?' --temp 0) in
*'the model ended the text at once'*) ;;
*) wrong 'the end at once is silent' ;;
esac
case $(said - $sluice run 'What is 12+13?' --temp 0 --stop 12) in
*'no text: what came first was a text of --stop'*) ;;
*) wrong 'a stop text at once is silent' ;;
esac
case $(said - $sluice run 'What is 12+13?' -c "$rendered" --temp 0) in
sluice:*context*) ;;
*) wrong 'a full context is silent' ;;
esac

# A prompt file is a file: a FIFO would wait for ever.
mkfifo pipe
timeout 100 $sluice run -f pipe 2>&1 | grep -q '^sluice: pipe: a pipe; ' || wrong 'a FIFO'
