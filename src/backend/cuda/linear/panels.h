/* What products for many rows have in common whose weights are decoded to a scratch, a panel of rows at a
 * time. */
#ifndef SL_BACKEND_CUDA_LINEAR_PANELS_H
#define SL_BACKEND_CUDA_LINEAR_PANELS_H

#include "program/program.h"

#define SL_PANEL_BYTES ((uint64_t)64 << 20)    /* of decoded weights, about, where that pays */
#define SL_PANEL_SCRATCH ((uint64_t)256 << 20) /* and at most, about */

/* Segments [first, end) of a LINEAR are one product: neighbours in y, without bias, of one width. */
static inline int32_t sl_panel_run_end(const sl_program *program, const sl_op_linear *linear, int32_t first) {
    int32_t end = first + 1;
    while (end < linear->segment_count && linear->segments[first].bias == SL_NONE &&
           linear->segments[end].bias == SL_NONE &&
           linear->segments[end].column ==
               linear->segments[end - 1].column + program->weights[linear->segments[end - 1].weight].rows) {
        end++;
    }
    return end;
}

static inline int32_t sl_panel_run_rows(const sl_program *program, const sl_op_linear *linear, int32_t first,
                                        int32_t end) {
    int32_t rows = 0;
    for (int32_t s = first; s < end; s++) {
        rows += program->weights[linear->segments[s].weight].rows;
    }
    return rows;
}

/* Of `rows` rows of weights, decoded to `row_bytes` each, how many are a panel for `count` rows of x: panels
 * of one size, small enough to be partly in the L2 cache when they are multiplied, and large enough to fill
 * the processors with tiles of 128 by 256. H200, 24576 x 4096 Q4_K as BF16 for 2048 rows, microseconds: whole
 * 678, panels of 8192 rows 648, 4096 645, 2048 678, 1024 764; for 512 rows: 225, 213, 223, 270, 368. */
static inline int32_t sl_panel_rows(uint64_t row_bytes, int32_t rows, int32_t count) {
    enum { LEAST_TILES = 128, ROW_UNIT = 256 };
    const uint64_t bytes = row_bytes * (uint64_t)rows;
    const int64_t wanted = (int64_t)((bytes + SL_PANEL_BYTES - 1) / SL_PANEL_BYTES);
    const int64_t needed = (int64_t)((bytes + SL_PANEL_SCRATCH - 1) / SL_PANEL_SCRATCH);
    const int64_t filled = (int64_t)(rows / 128) * ((count + 255) / 256) / LEAST_TILES;
    const int64_t fitting = wanted < filled ? wanted : filled, panels = fitting > needed ? fitting : needed;
    const int64_t panel = ((rows + panels - 1) / panels + ROW_UNIT - 1) / ROW_UNIT * ROW_UNIT;
    return panel > rows ? rows : (int32_t)panel;
}

#endif
