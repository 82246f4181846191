[ -z "$sanitized" ] || { echo "it takes a minute under a sanitizer"; exit 77; }
# llama.cpp's own cases: text between separators, ids line by line.
for name in gpt-2 falcon phi-3; do
    file=$shared/tokenizers/ggml-vocab-$name.gguf
    # Where a case's text ends: at the newline before the separator.
    awk -v RS='\n__ggml_vocab_test__\n' '{ file = sprintf("case.%d", NR); printf "%s", $0 > file; close(file) }' "$file.inp"
    number=0 right=0
    while read -r ids; do
        number=$((number + 1))
        [ -e case.$number ] || continue
        got=$($sluice tokenize -m "$file" --ids < case.$number) || echo "exit $?"
        [ "$got" = "$(echo $ids)" ] && right=$((right + 1)) || echo "$name, case $number: $got instead of" $ids
    done < "$file.out"
    echo "$name: $right right"
    rm -f case.*
done
