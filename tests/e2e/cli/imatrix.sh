# An importance matrix is gathered, and what quantize makes of it is another file than without, of the same size.
i=0
while [ $i -lt 300 ]; do
    echo "The lock is $i steps long, and the gate opens at $((i * 7 % 24)) o'clock."
    i=$((i + 1))
done > text
for model in mini mini-moe; do
    $sluice imatrix -m $model -f text --window 256 --chunks 3 -o $model.imatrix 2> err || cat err
    sed 's/[0-9.]* s$/... s/' err
    $sluice quantize --force $model plain.gguf q4_k_s 2> err || cat err
    $sluice quantize --force $model weighed.gguf q4_k_s --imatrix $model.imatrix 2> err || cat err
    cmp -s plain.gguf weighed.gguf && echo "$model: the importance matrix changed nothing"
    $sluice inspect plain.gguf | grep -v name > plain
    $sluice inspect weighed.gguf | grep -v name > weighed
    cmp plain weighed
    $sluice perplexity -m weighed.gguf -f text --window 256 > out 2> err && grep -c 'perplexity' out
done
# The default name, and a second time.
$sluice imatrix < text --chunks 1 2> err || cat err
$sluice imatrix < text --chunks 1 2>&1
echo "exit $?"
$sluice imatrix < text --chunks 1 --force 2> err || cat err
# What llama-imatrix has and sluice does without.
for option in '-np 2' '--no-ppl' '--save-frequency 3'; do
    $sluice imatrix -f text --chunks 1 --force $option 2>&1 | grep -v ' s$'
done
for option in '--process-output' '--in-file a' '--output-format dat'; do
    $sluice imatrix -f text --chunks 1 --force $option 2>&1 && echo "$option: it runs"
done
ls
