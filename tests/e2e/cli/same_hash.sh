# One hash of all logits, whatever the steps, the threads and the kernels' batch sizes.
sed -n 's/^    //p' "$shared/models/README.md" > text
cat text text text text > long
for options in "" "--chunk 1" "--chunk 7" "--chunk 64" "--chunk 512" "--sequences 8" "--sequences 8 --chunk 7" \
    "-t 1" "-t 2" "-t 1 --sequences 2 --chunk 64" "--cache-tokens 320 --sequences 8"; do
    $sluice perplexity -m "$story" -f long --window 128 $options 2> err
done | sort | uniq -c | sed 's/^ *//' | cut -d ' ' -f 1,2 | sort | uniq
