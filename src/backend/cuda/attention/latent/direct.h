/* Latent attention's direct form: keys and values of every head are made of the latent rows once, and
 * ordinary attention reads them. Between direct.cu, which chooses and launches, direct_expand.cu, and the
 * kernels that have the rest of a step's sequences. */
#ifndef SL_BACKEND_CUDA_ATTENTION_DIRECT_H
#define SL_BACKEND_CUDA_ATTENTION_DIRECT_H

#include "backend/cuda/cuda.h"

#ifdef __CUDACC__
#define SL_DIRECT_INLINE static __host__ __device__ __forceinline__
#else
#define SL_DIRECT_INLINE static inline
#endif

/* Whose rows a launch has. */
typedef enum sl_direct_side { SL_DIRECT_ALL, SL_DIRECT_ALONE, SL_DIRECT_OTHERS } sl_direct_side;

/* Which sequences of a step go directly: what it says of one depends on that one alone. */
typedef struct sl_direct {
    sl_direct_side side;
    int32_t group;      /* of the cache */
    int32_t least_rows; /* of a sequence in the step */
    int32_t pages;      /* that the scratch has */
    int32_t rows;       /* that share them, each an equal part; 0: the step's only sequence has them all */
} sl_direct;

SL_DIRECT_INLINE int32_t sl_direct_span_pages(const sl_direct *direct, const sl_step_span *span) {
    return (span->length[direct->group] + span->row_count + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS;
}

SL_DIRECT_INLINE bool sl_direct_goes(const sl_direct *direct, const sl_step_span *span) {
    const int64_t pages = sl_direct_span_pages(direct, span);
    return span->row_count >= direct->least_rows &&
           (direct->rows > 0 ? pages * direct->rows <= (int64_t)span->row_count * direct->pages
                             : pages <= direct->pages);
}

SL_DIRECT_INLINE bool sl_direct_takes(const sl_direct *direct, const sl_step_span *span) {
    return direct->side == SL_DIRECT_ALL || sl_direct_goes(direct, span) == (direct->side == SL_DIRECT_ALONE);
}

/* Of the scratch: the parts of the rows in front are before it, its own rows' hold all its pages. */
SL_DIRECT_INLINE int32_t sl_direct_first_page(const sl_direct *direct, const sl_step_span *span) {
    return direct->rows > 0 ? (int32_t)((int64_t)span->first_row * direct->pages / direct->rows) : 0;
}

/* ---- making keys and values ---- */

enum {
    SL_DIRECT_MOST_SPANS = 64, /* that go directly in a step */
    SL_DIRECT_OUTPUTS = 128,   /* of a matrix that a block multiplies by */
    SL_DIRECT_BOX = 64,        /* columns of a latent row that are copied at a time */
    SL_DIRECT_MOST_BOXES = 8,
    SL_DIRECT_BOX_BYTES = SL_DIRECT_OUTPUTS * SL_DIRECT_BOX * 2 /* of a matrix: so many inputs of it */
};

/* A HEAD_LINEAR's matrices, of which keys or values are made. */
typedef struct sl_direct_matrix {
    sl_cuda_weight weight;
    int32_t outputs; /* of a head: columns of what is made */
    int32_t tiles;   /* of SL_DIRECT_OUTPUTS */
    bool by_inputs;  /* a row of the file is an input; else it is an output */
} sl_direct_matrix;

typedef struct sl_direct_args {
    sl_direct direct;
    sl_cache_place place;
    sl_direct_matrix keys, values;
    int32_t heads;
    int32_t latent, turning; /* columns of a cached row: those that are multiplied, those that are copied */
    int32_t boxes;           /* of the first ones */
    unsigned char *matrices; /* scratch, [head][tiles of keys, of values][SL_DIRECT_BOX_BYTES each box] */
    sl_cuda_cache to;        /* scratch: a cache of one layer, with tables of its own */
} sl_direct_args;

/* direct_expand.cu: devices of capability 9.0, caches of f16 and bf16. */
cudaError_t sl_direct_expand(const sl_cuda_context *context, const sl_direct_args *args, cudaStream_t stream);
cudaError_t sl_direct_expand_prepare(void);

/* rows/head_linear_tile.cu: the op for the rows of some sequences. */
cudaError_t sl_head_tile_launch(const sl_cuda_context *context, const sl_cuda_op *op, const sl_direct *direct,
                                cudaStream_t stream);

#endif
