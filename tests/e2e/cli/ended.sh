# Ended by a signal while it writes, a command leaves nothing behind.
for signal in INT TERM HUP; do
    $sluice quantize mini-moe out.gguf q2_k > out 2>&1 &
    writer=$!
    while kill -0 $writer 2> err && ! ls out.gguf.tmp-* > names 2> err; do
        sleep 0.01
    done
    [ -s names ] && echo "$signal: writing"
    kill -$signal $writer
    wait $writer
    echo "exit $?"
    cat out
    ls
done
