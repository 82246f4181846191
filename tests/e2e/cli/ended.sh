# Ended by a signal while it writes, a command leaves nothing behind.
for signal in INT TERM HUP; do
    # Stopped first, so that it cannot have ended before the signal comes; one that was quicker is begun again.
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        $sluice quantize mini-moe out.gguf q2_k > out 2>&1 &
        writer=$!
        while kill -0 $writer 2> err && ! ls out.gguf.tmp-* > names 2> err; do
            sleep 0.01
        done
        kill -STOP $writer 2> err
        ls out.gguf.tmp-* > names 2> err && break
        kill -CONT $writer 2> err
        wait $writer
        rm -f out.gguf
    done
    [ -s names ] && echo "$signal: writing"
    kill -$signal $writer
    kill -CONT $writer
    wait $writer
    echo "exit $?"
    cat out
    ls
done
