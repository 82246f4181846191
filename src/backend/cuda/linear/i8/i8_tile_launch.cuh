/* Which of the shapes in i8_rows64.cuh and i8_tile.cuh a product takes, by its bucket's rows and, with
 * experts, their mean load. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_TILE_LAUNCH_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_TILE_LAUNCH_CUH

#include "backend/cuda/types/integer_types.h"
#include "backend/cuda/linear/i8/i8.h"
#include "backend/cuda/linear/i8/i8_rows64.cuh"
#include "backend/cuda/linear/i8/i8_tile.cuh"

enum { MMQ_LEAST_BYTES = 112 * 1024 };

typedef tile_shape<4, 2, 2, 8, 1> wide_tile;   /* 128 weight rows x 128 rows */
typedef tile_shape<8, 1, 1, 8, 2> narrow_tile; /* 128 x 64 */
typedef tile_shape<8, 1, 1, 4, 2> low_tile;    /* 128 x 32 */

/* Rows of the bucket or, with experts, their mean load. */
static inline int32_t mmq_rows(const sl_cuda_op *op) {
    const int32_t rows = op->rows[op->out[0].rows];
    return op->in[2].data ? (rows + op->weights[0].experts - 1) / op->weights[0].experts : rows;
}

template <int TYPE>
static cudaError_t mmq_tile(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const int32_t rows = mmq_rows(op), most = op->facts->block_bytes;
    return rows > 64 && tile_memory<TYPE, wide_tile>::bytes <= most
               ? tile_launch<TYPE, wide_tile>(context, op, stream)
           : rows > 32 && tile_memory<TYPE, narrow_tile>::bytes <= most
               ? tile_launch<TYPE, narrow_tile>(context, op, stream)
               : tile_launch<TYPE, low_tile>(context, op, stream);
}

enum { MMQ_MANY_OUTPUTS = 8192 }; /* that keep all processors busy in tiles of 128 */

template <int TYPE>
static cudaError_t mmq_batch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    const bool experts = op->in[2].data != NULL;
    const int32_t rows = mmq_rows(op), limit = experts ? 4 : 8; /* loads of experts differ */
    if (!experts && rows > 2 * limit && mmq_outputs(op) >= MMQ_MANY_OUTPUTS) {
        return mmq_tile<TYPE>(context, op, stream);
    }
    return rows <= limit       ? rows64_launch<TYPE, 1>(context, op, stream)
           : rows <= 2 * limit ? rows64_launch<TYPE, 2>(context, op, stream)
                               : rows64_launch<TYPE, 4>(context, op, stream);
}

/* Allows the kernels their shared memory. */
template <int TYPE> static cudaError_t mmq_prepare(int most_bytes) {
    cudaError_t code = rows64_prepare_shape<TYPE, 1>(most_bytes);
    code = code ? code : rows64_prepare_shape<TYPE, 2>(most_bytes);
    code = code ? code : rows64_prepare_shape<TYPE, 4>(most_bytes);
    code = code ? code : tile_prepare_shape<TYPE, wide_tile>(most_bytes);
    code = code ? code : tile_prepare_shape<TYPE, narrow_tile>(most_bytes);
    return code ? code : tile_prepare_shape<TYPE, low_tile>(most_bytes);
}

template <int... TYPES> static cudaError_t mmq_prepare_types(const sl_cuda_facts *facts) {
    cudaError_t code = cudaSuccess;
    if (facts->block_bytes >= MMQ_LEAST_BYTES) {
        ((code = code ? code : mmq_prepare<TYPES>(facts->block_bytes)), ...);
    }
    return code;
}

/* Buckets of `least` to `most` rows (0: any); above `best` BF16 is faster. */
#define MMQ_KERNEL(ID, type_name, shape, arranged, least, most, best, function)                              \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-" shape,                                              \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = "q8_32/256",                                                             \
                   .activation = SL_VALUE_Q8_32,                                                             \
                   .tolerance = 2e-5f,                                                                       \
                   .batched = true,                                                                          \
                   .declines = sl_i8_tile_declines},                                                         \
        .arrangement = arranged, .weight_type = SL_QTYPE_##ID, .most_rows = most, .least_rows = least,       \
        .best_rows = best, .run = function                                                                   \
    }
#define I8_TILE(ID, type_name)                                                                               \
    MMQ_KERNEL(ID, type_name, "i8-rows64", SL_CUDA_I8_ROWS64, 9, 64, 64, mmq_batch<SL_QTYPE_##ID>),          \
        MMQ_KERNEL(ID, type_name, "i8-tile", SL_CUDA_I8_TILE, 17, 0, 0, mmq_tile<SL_QTYPE_##ID>)

#endif
