# Every small preset in a third of the weight types, in turn (test_invariants opens and runs all pairs): the file opens,
# says what it should, and generates numbers that are none but tokens, the same with whole prompts and one token at a time.
number=0
for preset in llama mistral qwen2 qwen3 qwen3moe gemma3 qwen3_5; do
    for type in f32 f16 bf16 q8_0 q6_k q5_k q5_1 q5_0 q4_k q4_1 q4_0 q3_k q2_k iq4_xs iq4_nl mxfp4 nvfp4 \
        tq1_0 tq2_0 iq3_xxs iq3_s iq2_xxs iq2_xs iq2_s iq1_s iq1_m; do
        # Encoders of these search a codebook, which takes minutes under a sanitizer.
        case $type in iq[123]*) [ $preset = llama ] || continue ;; esac
        number=$((number + 1))
        [ $((number % 3)) = 0 ] || continue
        $sluice synth $preset m.gguf --force --type $type --layers 4 2> err || cat err
        $sluice inspect -m m.gguf > facts || echo "$preset $type: inspect failed"
        grep -q "^family  *$preset " facts || [ $preset = mistral ] || echo "$preset $type: $(grep '^family' facts)"
        grep -q "^$type " facts || echo "$preset $type: no tensors of the type"
        $sluice run -m m.gguf -p "a sluice gate" -n 6 --temp 0 --ignore-eos > whole || echo "$preset $type: run failed"
        $sluice run -m m.gguf -p "a sluice gate" -n 6 --temp 0 --ignore-eos --chunk 1 > single
        cmp whole single
        [ -s whole ] || echo "$preset $type: no text"
    done
    echo "$preset"
done
