#!/bin/sh
# Sampling as generation_config.json of a folder asks for it, unless an option says otherwise. Prints what is wrong.
wrong() { echo "$*"; }

mkdir folder
cp "$fixtures"/qwen3/config.json "$fixtures"/qwen3/model.safetensors folder/
{
    printf '{"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"decoder":{"type":"ByteLevel"},'
    printf '"model":{"type":"BPE","merges":[],"vocab":{"a":0,"b":1,"c":2,"d":3'
    seq 4 255 | sed 's/.*/,"t&":&/'
    printf '}}}'
} > folder/tokenizer.json
run() { $sluice run folder --raw abcd -n 12 --ignore-eos --seed 5 "$@"; }
tokens() { run -o json "$@" | sed -n '/"tokens"/,/]/p'; }
given() { printf '{%s}' "$1" > folder/generation_config.json; }
same() { cmp "$1" "$2" || wrong "$3"; }

given '"do_sample": true, "temperature": 0.3, "top_k": 7, "top_p": 0.5'
tokens > of_the_file
run -v 2>&1 > text |
    grep -q "the model's own sampling (.*generation_config.json): --temp 0.3 --top-k 7 --top-p 0.5\$" ||
    wrong '-v does not say what the file asks for'
run 2>&1 > text | grep 'own sampling'
tokens --temp 0.8 --top-k 40 --top-p 0.95 > all_given
tokens --no-model-sampling > not_asked
run --temp 0.8 -v 2>&1 > text | grep -q -- ': --top-k 7 --top-p 0.5$' || wrong 'what is given is taken from the file'
given '"do_sample": false, "temperature": 0.3'
tokens > greedy_of_the_file
given ''
tokens --temp 0.3 --top-k 7 --top-p 0.5 > given
tokens > usual
tokens --temp 0 > greedy
same of_the_file given 'the file is not followed'
same all_given usual 'options do not win'
same not_asked usual '--no-model-sampling follows the file'
same greedy_of_the_file greedy 'do_sample false is not greedy'
cmp -s usual given && wrong 'the test cannot tell 0.3 from 0.8'
cmp -s usual greedy && wrong 'the test cannot tell greedy from sampling'
true
