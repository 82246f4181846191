/* The matvec kernels of one integer type, with the sizes that suit it. */
#ifndef SL_BACKEND_CUDA_MATVEC_TYPES_CUH
#define SL_BACKEND_CUDA_MATVEC_TYPES_CUH

#include "backend/cuda/matvec_bits.cuh"
#include "backend/cuda/matvec_ring.cuh"
#include "backend/cuda/matvec_rows.cuh"
#include "backend/cuda/matvec_stream.cuh"

/* Where there is room, more slots keep more copies under way. */
enum { MATVEC_WARPS = 8, MATVEC_SLOTS = 3 };

/* Warps for several rows of x: more hide more of the products' latency; Q6_K's slots are large. */
template <int TYPE> struct matvec_sizes {
    enum { ROWS_WARPS = TYPE == SL_QTYPE_Q6_K ? 8 : 16, ROWS_SLOTS = TYPE == SL_QTYPE_Q8_0 ? 2 : 1 };
};

template <int TYPE> static cudaError_t matvec_prepare_type(int most_bytes) {
    enum { ROWS_WARPS = matvec_sizes<TYPE>::ROWS_WARPS, ROWS_SLOTS = matvec_sizes<TYPE>::ROWS_SLOTS };
    cudaError_t code = sl_allow_shared(ring_kernel<TYPE, MATVEC_WARPS, MATVEC_SLOTS>, most_bytes);
    code = code ? code : sl_allow_shared(ring_kernel<TYPE, MATVEC_WARPS, 1>, most_bytes);
    if constexpr (sl_chunk_shape<TYPE>::HALVES) {
        code = code ? code : sl_allow_shared(stream_kernel<TYPE>, most_bytes);
    }
    code = code ? code : sl_allow_shared(rows_kernel<TYPE, ROWS_WARPS, ROWS_SLOTS>, most_bytes);
    return code ? code : sl_allow_shared(rows_kernel<TYPE, ROWS_WARPS, 1>, most_bytes);
}

/* Of experts' rows blocks are small, and two of them share a multiprocessor. */
#define MATVEC_RUN(ID, name)                                                                                 \
    SL_CUDA_RUN(sl_cuda_linear_ring_##name) {                                                                \
        return ring_launch<SL_QTYPE_##ID, MATVEC_WARPS, MATVEC_SLOTS>(                                       \
            context, op, context->processors * (op->in[1].data ? 2 : 1), stream);                            \
    }                                                                                                        \
    SL_CUDA_RUN(sl_cuda_linear_rows_##name) {                                                                \
        typedef matvec_sizes<SL_QTYPE_##ID> sizes;                                                           \
        return rows_launch<SL_QTYPE_##ID, sizes::ROWS_WARPS, sizes::ROWS_SLOTS>(                             \
            context, op, context->processors, stream);                                                       \
    }
/* Where there is sl_half_chunk. */
#define MATVEC_RUN_STREAM(ID, name)                                                                          \
    SL_CUDA_RUN(sl_cuda_linear_stream_##name) {                                                              \
        return stream_launch<SL_QTYPE_##ID>(context, op, stream);                                            \
    }

#endif
