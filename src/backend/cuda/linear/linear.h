/* What the families of LINEAR share on the host. */
#ifndef SL_BACKEND_CUDA_LINEAR_LINEAR_H
#define SL_BACKEND_CUDA_LINEAR_LINEAR_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SL_CUDA_FEW_ROWS = 8 };    /* what is meant by rows8 */
enum { SL_CUDA_COPY_ROWS = 129 }; /* from which on second copies of weights are read */

/* Whether weight type and rows are the kernel's (plain_linear.cu). */
const char *sl_cuda_linear_declines(const sl_kernel *kernel, const sl_kernel_query *query);
/* What Hopper's kernels for up to 128 rows take of shapes, and their scratch (bf16_rows128_floats.cu). */
const char *sl_bf16_rows128_declines(const sl_kernel *kernel, const sl_kernel_query *query);
uint64_t sl_bf16_rows128_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_bf16_rows128_ranges_declines(const sl_fusion_query *query);
/* Columns of x's value as the kernel reads it, and where x begins there: of an F32 value its copy. */
static inline int32_t sl_cuda_x_width(const sl_kernel_query *query) {
    const sl_op *op = query->op;
    const sl_value *x = &query->values[op->in[0].value];
    return x->type != SL_VALUE_F32
               ? x->width
               : sl_stored_width(SL_CUDA_COLUMN_MULTIPLE,
                                 query->program->weights[op->u.linear.segments[0].weight].columns);
}
static inline int32_t sl_cuda_x_column(const sl_kernel_query *query) {
    const sl_operand *x = &query->op->in[0];
    return query->values[x->value].type == SL_VALUE_F32 ? 0 : x->column;
}
/* Why a product does not compute that activation of gates and values, or NULL. `swiglu_oai`: whether it
 * computes that one too. */
static inline const char *sl_cuda_activation_reason(const sl_op *activate, bool swiglu_oai) {
    const bool is_oai =
        activate->u.activate.function == SL_ACTIVATION_SWIGLU_OAI && activate->in[2].value == SL_NONE;
    return sl_activation_is_gate(activate) || (swiglu_oai && is_oai) ? NULL
           : swiglu_oai ? "activates gates of values by silu, gelu_tanh and swiglu_oai"
                        : "activates gates of values by silu and gelu_tanh";
}
/* Why the run is not gates and values side by side, stored as BF16 alone, or NULL (gated.c). */
const char *sl_cuda_gated_reason(const sl_fusion_query *query, sl_value_type format);
/* Why the six ops are not one row's experts with activations in that format, each reading the one before, or
 * NULL; swiglu_oai: of sl_cuda_activation_reason. Gates and values are not looked at, nor whether zeros
 * follow a row (i8_experts.cu). */
const char *sl_cuda_experts_reason(const sl_fusion_query *query, sl_value_type format, bool swiglu_oai);

/* In front of a launch that adds the ranges' sums. */
static inline SL_CUDA_RANGES(sl_cuda_run_ranges) {
    return op->kernel->ranges(context, op, stream, ranges);
}
static inline const char *sl_cuda_run_ranges_reason(const sl_fusion_query *query) {
    const sl_cuda_kernel *kernel = (const sl_cuda_kernel *)(const void *)query->kernels[0];
    return kernel->ranges ? kernel->ranges_declines(query) : "is for products that store their ranges apart";
}

#ifdef __cplusplus
}
#endif

/* A kernel on BF16 x. There is none for F32: such weights are few (routers), and are F32 because it matters.
 * A weight that is not BF16 is rounded to it: by at most 2^-9 of itself, about 2^-9.8 in the mean of squares.
 * Of a product's root mean square that is 0.0011 whatever its length, and five times that for the largest of
 * a million outputs; outliers of x that few columns hold can triple it. BF16 weights have only the order of
 * adding, which the instruction truncates instead of rounding. Where scales are rounded to BF16 besides, and
 * what comes of it once more, it is up to 1.5 times that, 2.2 times with minima. */
#define BF16_KERNEL(kernel_name, class_name, most_error, ...)                                                \
    {                                                                                                        \
        .name = kernel_name, .op = SL_OP_LINEAR, .numeric_class = class_name, .activation = SL_VALUE_BF16,   \
        .tolerance = most_error, .batched = true, __VA_ARGS__                                                \
    }

#endif
