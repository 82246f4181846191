# The text that the model's author published must come out, however it is run.
sed -n 's/^    //p' "$shared/models/README.md" > published
prompt="Once upon a time"
[ -s published ] || echo "there is no published text in the README"
for options in "" "--isa plain" "--chunk 1" "-t 1 --chunk 3" "--kv-type f32" "--sequences 4 --no-prefix-reuse"; do
    { printf '%s' "$prompt"; $sluice run -m "$story" -p "$prompt" -n 400 --temp 0 $options; } > said || echo "exit $?"
    # The README ends in the middle of the story.
    head -c "$(($(wc -c < published) - 1))" said > beginning
    head -c "$(($(wc -c < published) - 1))" published | cmp - beginning && echo "as published"
done
