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

# A GGUF file that asks: entries of metadata put in front of its own, so many bytes that its tensors stay at multiples of 32.
number() { # SIZE VALUE: little endian
    value=$2
    for _ in $(seq "$1"); do
        printf "\\$(printf %03o $((value % 256)))"
        value=$((value / 256))
    done
}
key() { number 8 ${#1}; printf %s "$1"; }
entry() { key "general.sampling.$1"; } # NAME, followed by a type and a value
float() { entry "$1"; number 4 6; number 4 "$2"; } # NAME BITS
whole() { entry "$1"; number 4 5; number 4 "$2"; }
string() { entry "$1"; number 4 8; key "$2"; }
asking() { # COUNT: the mini model with the entries on standard input
    cat > entries
    filler=$((32 + (32 - ($(wc -c < entries) + 8 + 7 + 4 + 8) % 32) % 32))
    { key padding; number 4 8; key "$(printf %${filler}s)"; } >> entries
    had=$(od -An -tu8 -j16 -N8 mini.gguf | tr -d ' ')
    { head -c 16 mini.gguf; number 8 $((had + 1 + $1)); cat entries; tail -c +25 mini.gguf; } > asking.gguf
}
cp "$tests"/../../../models/mini.gguf .
story() { $sluice run asking.gguf "Tell me a story." -n 24 --seed 5 "$@" 2>&1; }
{ string sequence 'temperature;top_k;xtc'; float xtc_probability $((0x3f800000)); float xtc_threshold $((0x3e800000)); } | asking 3
story -v | grep -q "(asking.gguf): --xtc-probability 1 --xtc-threshold 0.25 --samplers temperature;top_k;xtc\$" ||
    wrong '-v does not say what the GGUF file asks for'
story > of_the_file
story --no-model-sampling --samplers 'temperature;top_k;xtc' --xtc-probability 1 --xtc-threshold 0.25 > given
story --no-model-sampling > usual
story --xtc-probability 0 --samplers 'penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature' > all_given
same of_the_file given 'XTC and the order of the GGUF file are not followed'
same all_given usual 'options do not win over XTC and the order of the GGUF file'
cmp -s usual given && wrong 'the test cannot tell XTC'
{ whole mirostat 2; float mirostat_tau $((0x3f000000)); float mirostat_eta $((0x3e800000)); } | asking 3
story -v | grep -q -- ': --mirostat 2 --mirostat-ent 0.5 --mirostat-lr 0.25$' || wrong '-v does not say mirostat'
story > of_the_file
story --no-model-sampling --mirostat 2 --mirostat-ent 0.5 --mirostat-lr 0.25 > given
same of_the_file given 'mirostat of the GGUF file is not followed'
cmp -s usual given && wrong 'the test cannot tell mirostat'
string sequence 'top_k;roulette' < /dev/null | asking 1
story | grep -q '^sluice: the order of samplers in asking.gguf is not followed: samplers: "roulette" is none of' ||
    wrong 'an order that nobody knows is taken silently'
true
