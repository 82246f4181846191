/* What ranks leave for each other, and how their kernels find it.
 *
 * A rank writes what it has into the memory of all others, then takes from its own memory what they wrote
 * there. SL_POOL_EXCHANGE of each holds flags [SL_MOST_RANKS][SL_CUDA_EXCHANGE_BLOCKS], then slots
 * [SL_EXCHANGE_TURNS][ranks] (backend.h). A slot has two areas:
 * - of small exchanges, in 8 bytes an element and the number of the call: who reads the number has the
 *   element, so that neither fence nor flag is waited for;
 * - of the others, 2 * SL_EXCHANGE_SMALL behind its beginning, of elements alone. A block's flag says that
 *   what it has written is there.
 *
 * Calls are numbered from 1 on, by a counter on each device, and take turns. Two turns are enough. A rank
 * that begins call n + 2 has seen something of everybody's call n + 1; whoever was in call n + 1 had ended
 * call n, and so has read all that lay in the turn of n and n + 2. */
#ifndef SL_BACKEND_CUDA_EXCHANGE_EXCHANGE_H
#define SL_BACKEND_CUDA_EXCHANGE_EXCHANGE_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Flags are apart so that those of two ranks or blocks are no one sector of a cache's line. */
enum { SL_CUDA_EXCHANGE_BLOCKS = 256, SL_CUDA_FLAG_BYTES = 32, SL_CUDA_EXCHANGE_SECONDS = 10 };

/* Pinned: what a rank's kernels and the host tell each other while kernels wait. */
typedef struct sl_cuda_meeting {
    uint32_t absent; /* 1 + a rank that did not come within SL_CUDA_EXCHANGE_SECONDS; the kernel traps then */
    uint32_t over;   /* by the host: nobody is waited for any more, and what kernels leave is nothing */
} sl_cuda_meeting;

/* In device memory, all zeros until the executor joins others: kernels that were captured before find it
 * filled in then. Steps write `calls` and `arrivals` only, and `ranks` when they see that it is over. */
typedef struct sl_cuda_exchange {
    int32_t rank, ranks; /* ranks below 2: there are no others */
    uint64_t slot_bytes;
    unsigned char *pools[SL_MOST_RANKS]; /* SL_POOL_EXCHANGE of each, its own too */
    sl_cuda_meeting *meeting;
    unsigned long long calls; /* that have begun */
    uint32_t arrivals;        /* blocks that have read `calls` */
    uint32_t padding;
} sl_cuda_exchange;

/* Bytes of a slot that an ALL_REDUCE or ALL_GATHER takes. */
uint64_t sl_cuda_exchange_need(const sl_cuda_op *op);

#ifdef __cplusplus
}
#endif
#endif
