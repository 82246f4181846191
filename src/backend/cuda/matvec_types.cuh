/* The matvec kernels of one integer type, with the sizes that suit it. */
#ifndef SL_BACKEND_CUDA_MATVEC_TYPES_CUH
#define SL_BACKEND_CUDA_MATVEC_TYPES_CUH

#include "backend/cuda/matvec_ring.cuh"
#include "backend/cuda/matvec_rows.cuh"

/* WARPS and SLOTS of the ring for one row, ROWS_SLOTS of that for several. */
template <int TYPE> struct matvec_sizes {
    enum { WARPS = 8, SLOTS = 3, ROWS_WARPS = 16, ROWS_SLOTS = 1 };
};
template <> struct matvec_sizes<SL_QTYPE_Q8_0> {
    enum { WARPS = 8, SLOTS = 2, ROWS_WARPS = 16, ROWS_SLOTS = 2 };
};
enum { MATVEC_ROWS_SUMS = 20480 }; /* bytes */

/* The blocks of several rows of y of experts are small, and two of them fit a multiprocessor. */
template <int TYPE>
static cudaError_t matvec_launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    typedef matvec_sizes<TYPE> sizes;
    const bool experts = op->in[1].data;
    if (experts || op->rows[op->out[0].rows] == 1) {
        return ring_launch<TYPE, sizes::WARPS, sizes::SLOTS>(context, op,
                                                             context->processors * (experts ? 2 : 1), stream);
    }
    return rows_launch<TYPE, sizes::ROWS_WARPS, sizes::ROWS_SLOTS>(context, op, context->processors,
                                                                   MATVEC_ROWS_SUMS, stream);
}

template <typename KERNEL> static cudaError_t matvec_prepare_kernel(KERNEL kernel, int most_bytes) {
    cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_bytes);
    /* So that a block can come up beside one of the kernel before. */
    return code ? code
                : cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                       cudaSharedmemCarveoutMaxShared);
}

template <int TYPE> static cudaError_t matvec_prepare_type(int most_bytes) {
    typedef matvec_sizes<TYPE> sizes;
    const cudaError_t code = matvec_prepare_kernel(ring_kernel<TYPE, sizes::WARPS, sizes::SLOTS>, most_bytes);
    return code ? code
                : matvec_prepare_kernel(rows_kernel<TYPE, sizes::ROWS_WARPS, sizes::ROWS_SLOTS>, most_bytes);
}

#endif
