/* Numeric class "bf16/k16" of LINEAR: one for every number of rows, on Hopper's tensor cores.
 *
 * x is BF16. Weights are decoded to BF16 as bf16_rows128_types.cuh does: 2^-44 times the weight for types
 * that have scales. A sum takes its columns in rising order, sixteen at a time, each sixteen added as mma and
 * wgmma add them (k = 16, f32), from zero; cuBLASLt's algorithms that do not split K give the same bits (on a
 * H200 every one that the library proposes for 129 to 2048 rows does). Columns may be cut into ranges, whose
 * sums are added one after the other; then bias, then residual. How they are cut depends on the weights'
 * shapes and the device alone. */
#ifndef SL_BACKEND_CUDA_LINEAR_K16_K16_H
#define SL_BACKEND_CUDA_LINEAR_K16_K16_H

#include "backend/cuda/cuda.h"
#include "quant/convert.h"

enum {
    SL_K16_CHUNK = 256, /* columns: ranges are multiples */
    SL_K16_RANGES = 4,  /* at most */
    SL_K16_PART = 64,   /* outputs: what there should be one of for each processor */
    SL_K16_BITS = 44    /* sums of types with scales are 2^-44 of what they should be */
};

/* Of a LINEAR's columns, where the outputs alone leave processors idle. A chain of one row's products takes
 * 25 ns or less for sixteen columns, and a further range of many rows a pass over y (docs/lab/k16-rows8.md).
 * With a bias there is one range: the library adds it before the sums of others. */
static inline int32_t sl_k16_ranges(const sl_cuda_op *op, int32_t processors) {
    const int32_t columns = op->weights[0].columns;
    bool whole = op->in[1].data || op->in[2].data; /* experts */
    int32_t parts = 0;
    for (int32_t s = 0; s < op->weight_count; s++) {
        whole = whole || op->weights[s].bias;
        parts += (op->weights[s].rows + SL_K16_PART - 1) / SL_K16_PART;
    }
    return whole || parts > processors                                       ? 1
           : columns >= 4096 || (columns >= 2048 && parts <= processors / 4) ? 4
           : columns >= 2048                                                 ? 2
                                                                             : 1;
}

/* The first column of a range; of the one behind the last: all columns. Of two neighbours, the first of which
 * is even, the second is as long as the first or one chunk shorter. */
SL_INLINE int32_t sl_k16_range(int32_t columns, int32_t ranges, int32_t range) {
    return (columns / SL_K16_CHUNK * range + ranges - 1) / ranges * SL_K16_CHUNK;
}

/* Whether an op's kernel is of the class: its row is for deterministic plans. */
static inline bool sl_k16_is(const sl_cuda_op *op) {
    return op->kernel->kernel.deterministic;
}

#endif
