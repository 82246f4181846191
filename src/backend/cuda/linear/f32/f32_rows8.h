/* Rows of products of x that is F32. */
#ifndef SL_BACKEND_CUDA_LINEAR_F32_F32_ROWS8_H
#define SL_BACKEND_CUDA_LINEAR_F32_F32_ROWS8_H

#include "backend/cuda/linear/linear.h"

#ifdef __cplusplus
extern "C" {
#endif

const char *sl_f32_rows8_declines(const sl_kernel *kernel, const sl_kernel_query *query);
/* Of those for many rows. */
const char *sl_f32_tile_declines(const sl_kernel *kernel, const sl_kernel_query *query);

#ifdef __cplusplus
}
#endif

#define F32_KERNEL(ID, kernel_name, arranged, class_name, least, most, check, function)                      \
    {                                                                                                        \
        .kernel = {.name = kernel_name,                                                                      \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = class_name,                                                              \
                   .activation = SL_VALUE_F32,                                                               \
                   .tolerance = 2e-5f,                                                                       \
                   .batched = true,                                                                          \
                   .declines = check},                                                                       \
        .arrangement = arranged, .weight_type = SL_QTYPE_##ID, .most_rows = most, .least_rows = least,       \
        .run = function                                                                                      \
    }

#endif
