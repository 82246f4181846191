/* Products of eight-bit numbers on Hopper's tensor cores, many rows: E4M3 by E4M3, and int8 by int8.
 *
 * Classes "e4m3/128" and "s8/256": the columns are taken in groups of 128 or 256, in rising order, in one
 * chain:
 *
 *     sum = 0; for each group: sum = fmaf(scale of x's row * scale of the output, sum of the group, sum)
 *
 * and then + bias, + residual. A group's sum of int8 is exact (whole numbers; below 2^23, so a float holds
 * it). That of E4M3 is what four wgmma.m64nNk32 add to nothing, one after the other. Bits of a row depend on
 * that row alone: tiles differ, the chain does not. */
#ifndef SL_BACKEND_CUDA_LINEAR_NARROW_NARROW_H
#define SL_BACKEND_CUDA_LINEAR_NARROW_NARROW_H

#include "backend/cuda/cuda.h"

#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum sl_narrow_kind { SL_NARROW_E4M3, SL_NARROW_S8, SL_NARROW_KINDS } sl_narrow_kind;

enum { SL_NARROW_E4M3_GROUP = 128, SL_NARROW_S8_GROUP = 256 }; /* columns with one scale */
enum { SL_NARROW_BLOCK = 128 };                                /* outputs that may have the same scales */
enum { SL_NARROW_SHAPES = 4, SL_NARROW_GATED_SHAPES = 2 };     /* of tiles: narrow_shapes.cuh */

static inline int32_t sl_narrow_group(sl_narrow_kind kind) {
    return kind == SL_NARROW_S8 ? SL_NARROW_S8_GROUP : SL_NARROW_E4M3_GROUP;
}

/* Scales of weights lie output by output: floats of one, whole 16 bytes, where nothing else is between. */
static inline int32_t sl_narrow_scales(sl_narrow_kind kind, int32_t columns) {
    return (columns / sl_narrow_group(kind) + 3) / 4 * 4;
}

#ifdef __CUDACC__
__host__ __device__
#endif
    /* Floats from the first scale to that of an output and a group; row: floats from one output to the next.
     * Of int8 two outputs share their rows, so that a lane reads both at once: of four groups the even
     * output's row has the first two of both, group by group, and the odd output's the others. */
    static inline uint64_t
    sl_narrow_scale_at(sl_narrow_kind kind, int32_t output, int32_t group, uint64_t row) {
    const uint64_t of_four = (uint64_t)(group % 4), fours = (uint64_t)(group - group % 4);
    return kind == SL_NARROW_S8 ? ((uint64_t)output / 2 * 2 + of_four / 2) * row + fours + of_four % 2 * 2 +
                                      (uint64_t)output % 2
                                : (uint64_t)output * row + (uint64_t)group;
}

enum { SL_NARROW_EXPERTS = 512 }; /* most */

/* y = x weights^T (+ bias) (+ residual). All pointers are to device memory, fixed when it is prepared.
 *
 * With experts x has the rows of the schedule in its order: those of expert e are offsets[e] ..
 * offsets[e + 1] - 1, and row i's result is row list[i] of y and of the residual. Weights, their scales and
 * the bias are one expert's after the other's. */
typedef struct sl_narrow_product {
    sl_narrow_kind kind;
    int32_t rows, outputs, columns; /* rows: the bucket's; columns: a multiple of the group */
    /* [rows], row_bytes apart: codes [columns], and float scales [columns / group] `x_scales` bytes behind
     * the row's start. Address and both distances: multiples of 16. */
    const unsigned char *x;
    uint64_t x_row_bytes, x_scales;
    const unsigned char *weights; /* codes [outputs][columns], rows weight_row_bytes apart, aligned to 16 */
    uint64_t weight_row_bytes;
    /* [outputs][columns / group] as sl_narrow_scale_at says, rows scale_row_bytes apart, aligned to 16. int8:
     * of an even number of outputs; what is behind the last one counts for nothing. */
    const float *weight_scales;
    uint64_t scale_row_bytes;
    /* E4M3: outputs 128 i .. 128 i + 127 have the same scale in each group. Faster, with the same bits. */
    bool has_blocks;
    /* Gates are `weights` then, and these as many values, with scales, rows and has_blocks alike: of both the
     * activation is stored, [rows][outputs] in BF16, outputs a multiple of 8. No experts, bias and residual,
     * and y is not written. NULL: without. */
    const unsigned char *values;
    const float *value_scales;
    uint16_t *activated; /* rows activated_row_bytes apart, multiples of 16 */
    uint64_t activated_row_bytes;
    int32_t activation;
    float *y; /* [rows][outputs], rows y_row_bytes apart */
    uint64_t y_row_bytes;
    const float *bias;     /* [outputs], or NULL */
    const float *residual; /* [rows][outputs], rows residual_row_bytes apart, or NULL; may be y */
    uint64_t residual_row_bytes;
    const int32_t *true_rows;      /* how many rows the step has, at most `rows`: see sl_narrow_rows */
    int32_t experts;               /* 0: without */
    const int32_t *offsets, *list; /* the schedule: [experts + 1], [rows] */
} sl_narrow_product;

/* What a launch takes: shape and maps. Made when a plan is deployed, on the host; no device work. Aligned to
 * 64. */
typedef struct sl_narrow_plan {
    sl_narrow_product product;
    int32_t shape; /* of the tile; no bit depends on it */
    CUtensorMap x, x_scales, weights, weight_scales, values, value_scales;
} sl_narrow_plan;

/* Where the device finds how many rows a value without experts has. */
static inline const int32_t *sl_narrow_rows(const sl_cuda_context *context, sl_rows rows) {
    return rows == SL_ROWS_STEP ? &context->header->rows : &context->header->outputs;
}

/* Lets the kernels have their shared memory, on the device that is set: for a family's `prepare`. */
cudaError_t sl_narrow_allow(const sl_cuda_facts *facts);

/* Chooses the tile for the device's processors, and makes the maps. 0 or an error. */
int sl_narrow_prepare(const sl_narrow_product *product, int32_t processors, sl_narrow_plan *plan,
                      sl_error *error);

/* The same with a shape of one's own, 0 .. SL_NARROW_SHAPES - 1; with values SL_NARROW_GATED_SHAPES. */
int sl_narrow_prepare_shape(const sl_narrow_product *product, int32_t shape, sl_narrow_plan *plan,
                            sl_error *error);

/* One launch; x, weights and their scales may be what the launch before it writes. */
cudaError_t sl_narrow_launch(const sl_cuda_context *context, const sl_narrow_plan *plan, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
