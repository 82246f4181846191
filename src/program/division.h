/* Which values of a program its ranks divide, and where: what shard.c writes programs by.
 *
 * Values that ops other than LINEARs connect are a block. A block is divided where each of its ops works on
 * heads (or columns) that know nothing of one another, where LINEARs alone write it from outside, and LINEARs
 * alone read it from outside. Some columns of its values may be whole with every rank: those that all heads
 * read, as the one key head of queries beside it. */
#ifndef SL_PROGRAM_DIVISION_H
#define SL_PROGRAM_DIVISION_H

#include "program/program.h"

/* Columns [first, + width) of a value, of which each rank has its share, in the order of the ranks, or all.
 */
typedef struct sl_region {
    int32_t first, width;
    bool whole;
} sl_region;

/* Of `of` units, into which whatever is divided divides, a rank has [first, + count). */
typedef struct sl_share {
    int32_t first, count, of;
} sl_share;

/* Where a region begins, or the value ends. */
typedef struct sl_region_bound {
    int32_t column;
    bool whole; /* what begins here: each rank has all of it */
    struct sl_region_bound *next;
} sl_region_bound;

typedef struct sl_block {
    const char *reason; /* why every rank computes all of it; NULL: they divide it */
    bool attends, activates, recurs,
        streams;        /* has an ATTENTION, ACTIVATE, CONV or scan; is a residual stream */
    bool read, written; /* by a LINEAR */
    int32_t units;      /* as many as ranks, or as many as it has whole blocks of weights */
    int32_t turn;       /* the first of the ranks that have one unit more, where they do not have as many */
} sl_block;

typedef struct sl_division {
    const sl_program *program;
    int32_t ranks;
    sl_arena arena;
    int32_t *parents;         /* per value: another one of its block, or itself */
    sl_block *blocks;         /* of values that are their own parents */
    sl_region_bound **bounds; /* per value, in order */
    bool *partial; /* per value: each rank has a share of the sum, which a COMBINE adds up with others */
    bool *summed;  /* per op: its result is a share, and an ALL_REDUCE stands behind it */
    int32_t bound_count;
    bool groups[SL_CACHE_GROUPS]; /* whose key heads are divided */
    bool states;                  /* their channels and heads are divided */
    int32_t head;                 /* the op whose rows are tokens; SL_NONE: none is divided */
    const char *head_reason;      /* why the head is whole */
} sl_division;

static inline int32_t sl_common_divisor(int32_t a, int32_t b) {
    while (b != 0) {
        const int32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Zero-initialise, free with sl_division_free; SL_ERR_NOMEM is all that can go wrong. */
int sl_divide(const sl_program *program, int32_t ranks, sl_division *division);
void sl_division_free(sl_division *division);

const sl_block *sl_block_of(const sl_division *division, int32_t value);
static inline bool sl_divides(const sl_division *division, int32_t value) {
    return value != SL_NONE && !sl_block_of(division, value)->reason;
}
sl_region sl_region_at(const sl_division *division, int32_t value, int32_t column);
/* Columns [at.column, + width) are whole with every rank. */
bool sl_is_whole(const sl_division *division, sl_operand at, int64_t width);
/* Every rank has all heads that the op works on: it is the whole's op. */
bool sl_is_whole_op(const sl_division *division, const sl_op *op);
/* A rank's share of a value that is divided, and of the rows and columns that go with it. */
sl_share sl_share_of(const sl_division *division, int32_t value, int32_t rank);
/* Of `total` columns, heads or rows: where the share begins, and how many these are. */
static inline int32_t sl_share_begin(sl_share share, int32_t total) {
    return total / share.of * share.first;
}
static inline int32_t sl_share_size(sl_share share, int32_t total) {
    return total / share.of * share.count;
}
/* Of columns [at.column, + width) of a value, which begin and end where regions do, or between two heads. */
int32_t sl_share_columns(const sl_division *division, sl_share share, sl_operand at, int32_t width);

#endif
