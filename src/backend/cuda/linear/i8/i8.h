/* Between i8_rows8.cu, which says what products with integer weights and few rows of x take, and the files
 * that hold the kernels of some types each. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_H
#define SL_BACKEND_CUDA_LINEAR_I8_I8_H

#include "backend/cuda/linear/linear.h"

#ifdef __cplusplus
extern "C" {
#endif

const char *sl_i8_row1_declines(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_i8_row1_tma_declines(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_i8_rows8_declines(const sl_kernel *kernel, const sl_kernel_query *query);
const char *sl_i8_tile_declines(const sl_kernel *kernel, const sl_kernel_query *query);

/* One row's experts of a weight type in two launches (i8_experts.cu). Lists of them end with zeros. */
typedef struct sl_i8_experts {
    sl_qtype type;
    sl_cuda_run gated, down;
    cudaError_t (*prepare)(int most_bytes);
} sl_i8_experts;
typedef const sl_i8_experts *(*sl_i8_experts_list)(void);
const sl_i8_experts *sl_i8_experts_kquants(void);
const sl_i8_experts *sl_i8_experts_bits(void);
const sl_i8_experts *sl_i8_experts_fp4(void);
const sl_i8_experts *sl_i8_experts_codebooks(void);

#ifdef __cplusplus
}
#endif

#define I8_KERNEL(ID, type_name, shape, arranged, rows, check, function)                                     \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-" shape,                                              \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = "q8_32/256",                                                             \
                   .activation = SL_VALUE_Q8_32,                                                             \
                   .tolerance = 2e-5f,                                                                       \
                   .batched = true,                                                                          \
                   .declines = check},                                                                       \
        .arrangement = arranged, .weight_type = SL_QTYPE_##ID, .most_rows = rows, .run = function            \
    }

/* In class "q8_32/factors" products of scales are rounded to 16 bits of fraction, and sums start from numbers
 * that are up to 30 times as large as they are: of a product's root mean square 1e-5, three times that for
 * the largest of thousands of outputs, and ten times that where a few columns of x outweigh the others. */
#define I8_ROWS8_TMA(ID, kernel_name, class_name, most, check, function)                                     \
    {                                                                                                        \
        .kernel = {.name = kernel_name,                                                                      \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = class_name,                                                              \
                   .activation = SL_VALUE_Q8_32,                                                             \
                   .tolerance = most,                                                                        \
                   .batched = true,                                                                          \
                   .declines = check},                                                                       \
        .arrangement = SL_CUDA_I8_ROWS8_TMA, .weight_type = SL_QTYPE_##ID, .most_rows = SL_CUDA_FEW_ROWS,    \
        .least_rows = 2, .run = function                                                                     \
    }

#endif
