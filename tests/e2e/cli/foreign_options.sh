#!/bin/sh
# Options that llama.cpp has and sluice does without are answered, not guessed at. Prints what is wrong.
wrong() { echo "$*"; }

# Without these the run is the same: a note, and it runs.
for option in '-fa' '-fa on' '--flash-attn auto' '-b 512' '--mlock' '--no-mmap' '--no-warmup' '--jinja' '-cnv' '--no-escape'; do
    # shellcheck disable=SC2086
    text=$($sluice run $option 'What is 2+3?' --temp 0 2> said) || wrong "$option: exit $?"
    [ "$text" = '2 + 3 = 5' ] || wrong "$option: \"$text\""
    grep -q "^sluice: run: ${option%% *}: not needed: " said || wrong "$option: $(cat said)"
done
# These ask for what sluice does otherwise, or not: one line that says what to do, and no run.
for option in '-ctv q8_0' '-sm row' '-ts 1,1' '--rope-scaling yarn' '-i' '-e' '-tb 4' '-hft x' '-dr a/b' \
    '-mg 1' '--prompt-cache file' '--lora a.gguf' '--override-kv a=int:1' '-lv 3'; do
    # shellcheck disable=SC2086
    text=$($sluice run $option 'What is 2+3?' 2> said) && wrong "$option: it runs"
    [ -z "$text" ] || wrong "$option: \"$text\""
    [ "$(wc -l < said)" = 1 ] || wrong "$option: not one line: $(cat said)"
    grep -q "^sluice: run: ${option%% *}: " said || wrong "$option: $(cat said)"
    grep -q 'there is no option\|did you mean\|wants' said && wrong "$option: $(cat said)"
done
# Other programs' commands and names: the same option has another answer where another command is meant.
$sluice chat -i < /dev/null 2>&1 | grep -q 'not needed: that is what chat does' || wrong 'chat -i'
$sluice run -i x 2>&1 | grep -q ': sluice chat$' || wrong 'run -i'
$sluice serve --ssl-cert-file x 2>&1 | grep -q -- ': --tls-cert FILE$' || wrong 'serve --ssl-cert-file'
$sluice bench -sm row 2>&1 | grep -q -- '--device' || wrong 'bench -sm'
$sluice perplexity --kl-divergence --kl-divergence-base x 2>&1 | grep -q -- '--kl FILE' || wrong 'perplexity --kl-divergence'
$sluice quantize mini q8_0 --dry-run --allow-requantize 2>&1 | grep -q 'not needed: a model of any type' || wrong 'quantize --allow-requantize'
$sluice quantize mini q8_0 --dry-run --leave-output-tensor 2>&1 | grep -q -- ': --output-type bf16' || wrong 'quantize --leave-output-tensor'
$sluice quantize mini q8_0 --dry-run --prune-layers 1,2 2>&1 | grep -q 'layers and metadata stay' || wrong 'quantize --prune-layers'
$sluice run x --adaptive-target 0.5 2>&1 | grep -q 'adaptive-p is not there' || wrong 'run --adaptive-target'
# A model's name as llama.cpp writes it is that name: nothing is fetched with --offline.
for option in '-hf a/b:Q8_0' '-hfr a/b:Q8_0' '--hf-repo a/b:Q8_0' '-hfd a/b:Q8_0'; do
    # shellcheck disable=SC2086
    $sluice run $option --offline --cache-folder cache 'What is 2+3?' 2>&1 | grep -q ': sluice pull hf:a/b:Q8_0$' || wrong "$option"
done
$sluice run -hf a/b -hff c.gguf --offline --cache-folder cache x 2>&1 | grep -q ': sluice pull hf:a/b/c.gguf$' || wrong '-hff'
# llama.cpp's names of what sluice has.
$sluice run 'What is 2+3?' --temp 0 --n-predict 5 -ub 16 --ubatch-size 32 -np 1 --parallel 1 -ctk q8_0 --cache-type-k f16 \
    --system-prompt x -dev cpu -nr > out || wrong 'an option with its name in llama.cpp'
true
