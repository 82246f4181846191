/* Which of the shapes in mmq_batch.cuh and mmq_tile.cuh a product takes, by its bucket's rows and, with
 * experts, their mean load. */
#ifndef SL_BACKEND_CUDA_MMQ_LAUNCH_CUH
#define SL_BACKEND_CUDA_MMQ_LAUNCH_CUH

#include "backend/cuda/mmq_batch.cuh"
#include "backend/cuda/mmq_tile.cuh"

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
    int device = 0, most = 0;
    cudaError_t code = cudaGetDevice(&device);
    code = code ? code : cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (code) {
        return code;
    }
    const int32_t rows = mmq_rows(op);
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
    return rows <= limit       ? batch_launch<TYPE, 1>(context, op, stream)
           : rows <= 2 * limit ? batch_launch<TYPE, 2>(context, op, stream)
                               : batch_launch<TYPE, 4>(context, op, stream);
}

/* Allows the kernels their shared memory. */
template <int TYPE> static cudaError_t mmq_prepare(int most_bytes) {
    cudaError_t code = batch_prepare_shape<TYPE, 1>(most_bytes);
    code = code ? code : batch_prepare_shape<TYPE, 2>(most_bytes);
    code = code ? code : batch_prepare_shape<TYPE, 4>(most_bytes);
    code = code ? code : tile_prepare_shape<TYPE, wide_tile>(most_bytes);
    code = code ? code : tile_prepare_shape<TYPE, narrow_tile>(most_bytes);
    return code ? code : tile_prepare_shape<TYPE, low_tile>(most_bytes);
}

#define MMQ_RUN(ID, name)                                                                                    \
    SL_CUDA_RUN(sl_cuda_linear_mmq_batch_##name) {                                                           \
        return mmq_batch<SL_QTYPE_##ID>(context, op, stream);                                                \
    }                                                                                                        \
    SL_CUDA_RUN(sl_cuda_linear_mmq_tile_##name) {                                                            \
        return mmq_tile<SL_QTYPE_##ID>(context, op, stream);                                                 \
    }

#endif
