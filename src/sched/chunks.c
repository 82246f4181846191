#include "sched/chunks.h"

/* Rounded up. */
static int64_t divide(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

int32_t sl_chunk_rows(const sl_chunks *chunks, int32_t rest) {
    const int64_t fixed = chunks->fixed_rows, others = chunks->stages - 1;
    if (others < 1 || fixed < 1 || rest < 1) {
        return chunks->most;
    }
    int64_t best = chunks->most, least = INT64_MAX;
    /* More chunks never take less than their number times what each takes beside its rows, and all rows. */
    for (int64_t count = divide(rest, chunks->most); (count + others) * fixed + rest < least; count++) {
        const int64_t whole = divide(divide(rest, count), SL_CHUNK_ROWS) * SL_CHUNK_ROWS;
        const int64_t rows = whole < chunks->most ? whole : chunks->most;
        const int64_t turns = (divide(rest, rows) + others) * (fixed + rows);
        best = turns < least ? rows : best;
        least = turns < least ? turns : least;
    }
    return (int32_t)best;
}
