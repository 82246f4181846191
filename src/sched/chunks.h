/* Into which chunks is a prompt cut that is alone, where several devices have a stage each of every step?
 *
 * A chunk of r rows takes a stage about a + r, in rows: what it takes beside its rows, weights that are read
 * above all, is a. While one stage has a chunk the one in front has the next, so k chunks of n rows in all
 * take s stages k + s - 1 turns of a + n / k. Of many small chunks more is at once, and of few large ones
 * less is read. The least is near k = sqrt((s - 1) n / a). */
#ifndef SL_SCHED_CHUNKS_H
#define SL_SCHED_CHUNKS_H

#include <stdint.h>

enum { SL_CHUNK_ROWS = 64 }; /* chunks are multiples of a page */

typedef struct sl_chunks {
    int32_t stages;
    int32_t most;       /* rows of a step */
    int32_t fixed_rows; /* what a step takes a stage beside its rows, in rows; 0: not known */
} sl_chunks;

/* Rows of the first chunk of `rest` rows, and of those behind it but the last; `most` where nothing is gained
 * by less. With equal times the fewer chunks. */
int32_t sl_chunk_rows(const sl_chunks *chunks, int32_t rest);

#endif
