/* The matvec kernels of one integer type, with the sizes that suit it. */
#ifndef SL_BACKEND_CUDA_MATVEC_TYPES_CUH
#define SL_BACKEND_CUDA_MATVEC_TYPES_CUH

#include "backend/cuda/matvec_bits.cuh"
#include "backend/cuda/matvec_held.cuh"
#include "backend/cuda/matvec_ring.cuh"
#include "backend/cuda/matvec_rows.cuh"
#include "backend/cuda/matvec_stream.cuh"

/* With these a block of `ring` or `rows` fits 160 KiB, whatever the type. Where there is room, more slots
 * keep more copies under way. */
enum { MATVEC_WARPS = 8, MATVEC_SLOTS = 3, MATVEC_ROWS_SUMS = 20480 /* bytes */ };

/* Warps for several rows of x: more hide more of the products' latency; Q6_K's slots are large. HOLDS: on
 * Hopper `held` takes these rows. */
template <int TYPE> struct matvec_sizes {
    enum { ROWS_WARPS = TYPE == SL_QTYPE_Q6_K ? 8 : 16, ROWS_SLOTS = TYPE == SL_QTYPE_Q8_0 ? 2 : 1 };
    enum { HOLDS = TYPE == SL_QTYPE_Q8_0, HELD_SLOTS = TYPE == SL_QTYPE_Q8_0 ? 4 : 2 };
};

/* Blocks of experts' rows are small, and two of them share a multiprocessor. */
template <int TYPE>
static cudaError_t matvec_launch(const sl_cuda_context *context, const sl_cuda_op *op, cudaStream_t stream) {
    enum { ROWS_WARPS = matvec_sizes<TYPE>::ROWS_WARPS, ROWS_SLOTS = matvec_sizes<TYPE>::ROWS_SLOTS };
    const bool experts = op->in[1].data, one = op->rows[op->out[0].rows] == 1;
    cudaError_t code = cudaErrorInvalidConfiguration;
    if constexpr (sl_chunk_shape<TYPE>::HALVES) {
        if (one && !experts && context->dependent_launches && stream_takes<TYPE>(op->weights[0].columns)) {
            code = stream_launch<TYPE>(context, op, stream);
        }
    }
    if (code != cudaErrorInvalidConfiguration) {
        return code;
    }
    if (experts || one) {
        const int32_t blocks = context->processors * (experts ? 2 : 1);
        code = ring_launch<TYPE, MATVEC_WARPS, MATVEC_SLOTS>(context, op, blocks, stream);
        return code == cudaErrorInvalidConfiguration
                   ? ring_launch<TYPE, MATVEC_WARPS, 1>(context, op, blocks, stream)
                   : code;
    }
    const int32_t blocks = context->processors;
    if constexpr (matvec_sizes<TYPE>::HOLDS) {
        if (held_takes(context, op)) {
            return held_launch<TYPE, true, matvec_sizes<TYPE>::HELD_SLOTS>(context, op, blocks, stream);
        }
    }
    code = rows_launch<TYPE, ROWS_WARPS, ROWS_SLOTS>(context, op, blocks, MATVEC_ROWS_SUMS, stream);
    return code == cudaErrorInvalidConfiguration
               ? rows_launch<TYPE, ROWS_WARPS, 1>(context, op, blocks, MATVEC_ROWS_SUMS, stream)
               : code;
}

template <int TYPE> static cudaError_t matvec_prepare_type(int most_bytes) {
    enum { ROWS_WARPS = matvec_sizes<TYPE>::ROWS_WARPS, ROWS_SLOTS = matvec_sizes<TYPE>::ROWS_SLOTS };
    cudaError_t code = matvec_prepare_kernel(ring_kernel<TYPE, MATVEC_WARPS, MATVEC_SLOTS>, most_bytes);
    code = code ? code : matvec_prepare_kernel(ring_kernel<TYPE, MATVEC_WARPS, 1>, most_bytes);
    if constexpr (sl_chunk_shape<TYPE>::HALVES) {
        code = code ? code : matvec_prepare_kernel(stream_kernel<TYPE>, most_bytes);
    }
    if constexpr (matvec_sizes<TYPE>::HOLDS) {
        code =
            code ? code
                 : matvec_prepare_kernel(held_kernel<TYPE, true, matvec_sizes<TYPE>::HELD_SLOTS>, most_bytes);
    }
    code = code ? code : matvec_prepare_kernel(rows_kernel<TYPE, ROWS_WARPS, ROWS_SLOTS>, most_bytes);
    return code ? code : matvec_prepare_kernel(rows_kernel<TYPE, ROWS_WARPS, 1>, most_bytes);
}

#define MATVEC_RUN(ID, name)                                                                                 \
    SL_CUDA_RUN(sl_cuda_linear_matvec_##name) {                                                              \
        return matvec_launch<SL_QTYPE_##ID>(context, op, stream);                                            \
    }

#endif
