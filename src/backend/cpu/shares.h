/* Who packs which part of a weight, and who reads it: the same thread. Memory lies on the node (NUMA) of
 * whoever touches it first, and a thread of the pool stays on one node. So the rows of every matrix are cut
 * into as many shares as the pool has threads. A thread packs its own share of all weights before it helps
 * others, and in every product it takes the units of that share before it helps others.
 *
 * Threads of a node have numbers side by side (sl_cpu_node_of_thread), and so have their shares. Huge pages
 * that are read from two nodes are therefore those in which one node's shares end, one or two of a matrix.
 *
 * A share belongs to the pool's thread of the same number, whatever the team. Of a smaller team each thread
 * has its own share and those behind it, up to the next thread's (sl_pool_thread_of). */
#ifndef SL_BACKEND_CPU_SHARES_H
#define SL_BACKEND_CPU_SHARES_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A kernel's pack() is called with `first` a multiple of this, and `count` too except at a matrix's end: a
 * whole number of every kernel's panels. Shares begin at such rows. */
enum { SL_CPU_PACK_ROWS = 32 };

/* The part of [0, count) that is this thread's when work is divided evenly. */
static inline void sl_cpu_share(int32_t count, int thread, int threads, int32_t *first, int32_t *last) {
    *first = (int32_t)((int64_t)count * thread / threads);
    *last = (int32_t)((int64_t)count * (thread + 1) / threads);
}

/* Rows [first, last) of one share of a matrix; there may be none. */
static inline void sl_cpu_share_rows(int32_t rows, int32_t share, int32_t shares, int32_t *first,
                                     int32_t *last) {
    sl_cpu_share((rows - 1) / SL_CPU_PACK_ROWS + 1, share, shares, first, last);
    *first *= SL_CPU_PACK_ROWS;
    *last = *last * SL_CPU_PACK_ROWS < rows ? *last * SL_CPU_PACK_ROWS : rows;
}

/* How many units of a share were asked for: in the low half from its front, by its own thread, and in the
 * high half from its end, by others. As both are in one word, a unit is given once: the first `units` who ask
 * get one each, and those from the front meet those from the end. Zero at the start. */
typedef struct sl_cpu_taken {
    alignas(64) _Atomic uint64_t asked;
} sl_cpu_taken;

/* A thread's way through the shares of some work. */
typedef struct sl_cpu_taking {
    sl_cpu_taken *taken;     /* [shares] */
    _Atomic int32_t *ended;  /* shares whose units were all taken, or fewer: saves a look at each; zero at the
                                start */
    int32_t shares, visited; /* visited: from `first` on */
    int32_t first, own;      /* shares that are this thread's: the first, and how many */
    int32_t share;           /* that it takes from now */
    bool helps;              /* it is another's */
} sl_cpu_taking;

/* By member `thread` of a team of `threads`. */
static inline sl_cpu_taking sl_cpu_taking_of(sl_cpu_taken *taken, _Atomic int32_t *ended, int32_t shares,
                                             int thread, int threads) {
    sl_cpu_taking taking = {.taken = taken, .ended = ended, .shares = shares};
    int32_t last;
    sl_cpu_share(shares, thread, threads, &taking.first, &last);
    taking.own = last - taking.first;
    return taking;
}

/* Goes to the next share: the thread's own ones first, then those that follow them. False when nothing is
 * left. */
static inline bool sl_cpu_next_share(sl_cpu_taking *taking) {
    taking->helps = taking->visited >= taking->own;
    if (taking->visited == taking->shares ||
        (taking->helps && atomic_load_explicit(taking->ended, memory_order_relaxed) == taking->shares)) {
        return false;
    }
    taking->share = (taking->first + taking->visited++) % taking->shares;
    return true;
}

/* One of the `units` of the share, -1 when they are all taken. */
static inline int32_t sl_cpu_next_unit(sl_cpu_taking *taking, int32_t units) {
    _Atomic uint64_t *asked = &taking->taken[taking->share].asked;
    const uint64_t all = (uint64_t)units;
    uint64_t before = taking->helps ? atomic_load_explicit(asked, memory_order_relaxed) : 0;
    if ((uint32_t)before + (before >> 32) >= all && taking->helps) {
        return -1;
    }
    before = atomic_fetch_add_explicit(asked, taking->helps ? (uint64_t)1 << 32 : 1, memory_order_relaxed);
    const uint64_t front = (uint32_t)before, end = before >> 32;
    if (front + end < all) {
        return (int32_t)(taking->helps ? all - 1 - end : front);
    }
    if (front + end == all) { /* the first who gets none */
        atomic_fetch_add_explicit(taking->ended, 1, memory_order_relaxed);
    }
    return -1;
}

#endif
