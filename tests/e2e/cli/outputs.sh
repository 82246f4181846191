# What quantize and synth write to, and what they leave alone. Everything is named as it stands afterwards.
model=m.gguf
$sluice synth qwen3 $model --layers 1 --type f32 2> err || cat err
cp $model copy.gguf
ln $model hard.gguf
ln -s $model link.gguf
ln -s nowhere dangling.gguf
mkfifo fifo
mkdir folder
echo old > old.gguf
for output in m.gguf ./m.gguf hard.gguf link.gguf dangling.gguf fifo folder /dev/null /dev/full old.gguf; do
    $sluice quantize $model $output q8_0 2>&1
    $sluice quantize $model $output q8_0 --force > out 2>&1
    echo "  with --force: exit $?"
    $sluice synth qwen3 $output --layers 1 > out 2>&1
    echo "  synth: exit $?"
done
cmp $model copy.gguf && cat out
[ -p fifo ] && [ -c /dev/null ] && [ -L link.gguf ] && [ -L dangling.gguf ] && [ ! -e nowhere ] && echo "all as it was"

# A folder's files belong to the input, also through a link elsewhere.
mkdir input
cp $fixtures/llama/* input/
ln input/model.safetensors elsewhere
before=$(cksum input/*)
for output in input/config.json input/model.safetensors elsewhere; do
    $sluice quantize input $output q8_0 --force 2>&1
done
[ "$before" = "$(cksum input/*)" ] && echo "the folder is as it was"
umask 027
$sluice quantize $model new.gguf q8_0 2> err
stat -c '%A' new.gguf
rm -rf input elsewhere
ls
