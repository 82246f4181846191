#!/bin/sh
# Two runs at once share the processors: together they take about as long as one after the other, and threads that
# have no processor of their own cost little. two_at_once.sh SLUICE
# Others may use the machine while this runs, so the best of some attempts counts, against twice the time.
sluice=$1

one() {
    "$sluice" run -m mini --device cpu --temp 0 --ignore-eos -p "Once upon a time" -n 100 "$@" > /dev/null
}

milliseconds() {
    echo $(($(date +%s%N) / 1000000))
}

# at_most NAME MILLISECONDS OTHERS: true if the first is at most twice the second.
at_most() {
    echo "$1: $2 ms, against $3 ms"
    [ "$2" -le $((2 * $3)) ]
}

one || exit 1 # and the file is in memory
for attempt in 1 2 3 4 5; do
    begin=$(milliseconds)
    one -t 1 && one -t 1 || exit 1
    single=$(milliseconds)
    one && one || exit 1
    turns=$(milliseconds)
    one & first=$!
    one & second=$!
    wait $first && wait $second || exit 1
    both=$(milliseconds)
    one -t 64 2> /dev/null && one -t 64 2> /dev/null || exit 1
    many=$(milliseconds)
    # 64 threads are started and ended besides.
    at_most "in turn" $((turns - single)) $((single - begin)) &&
        at_most "at once" $((both - turns)) $((single - begin)) &&
        at_most "64 threads" $((many - both)) $((single - begin + 300)) && exit 0
done
exit 1
