/* The matvec kernels of one integer type, with the sizes that suit it. */
#ifndef SL_BACKEND_CUDA_LINEAR_I8_I8_ROWS8_LAUNCH_CUH
#define SL_BACKEND_CUDA_LINEAR_I8_I8_ROWS8_LAUNCH_CUH

#include "backend/cuda/types/integer_types.h"
#include "backend/cuda/linear/i8/i8.h"
#include "backend/cuda/linear/i8/i8_bits.cuh"
#include "backend/cuda/linear/i8/i8_codebook.cuh"
#include "backend/cuda/linear/i8/i8_fp4.cuh"
#include "backend/cuda/linear/i8/i8_row1.cuh"
#include "backend/cuda/linear/i8/i8_rows8.cuh"
#include "backend/cuda/linear/i8/i8_ternary.cuh"
#include "backend/cuda/linear/i8/i8_row1_tma.cuh"

/* Where there is room, a second slot's copy is under way while the first is multiplied. */
enum { MATVEC_WARPS = 8, MATVEC_SLOTS = 2 };

/* Warps for several rows of x: more hide more of the products' latency; Q6_K's slots are large. */
template <int TYPE> struct matvec_sizes {
    enum { ROWS_WARPS = TYPE == SL_QTYPE_Q6_K ? 8 : 16, ROWS_SLOTS = TYPE == SL_QTYPE_Q8_0 ? 2 : 1 };
};

template <int TYPE> static cudaError_t matvec_prepare_type(int most_bytes) {
    enum { ROWS_WARPS = matvec_sizes<TYPE>::ROWS_WARPS, ROWS_SLOTS = matvec_sizes<TYPE>::ROWS_SLOTS };
    cudaError_t code = sl_allow_shared(row1_kernel<TYPE, MATVEC_WARPS, MATVEC_SLOTS>, most_bytes);
    code = code ? code : sl_allow_shared(row1_kernel<TYPE, MATVEC_WARPS, 1>, most_bytes);
    if constexpr (sl_chunk_shape<TYPE>::HALVES) {
        code = code ? code : sl_allow_shared(row1_tma_kernel<TYPE>, most_bytes);
    }
    code = code ? code : sl_allow_shared(rows_kernel<TYPE, ROWS_WARPS, ROWS_SLOTS>, most_bytes);
    return code ? code : sl_allow_shared(rows_kernel<TYPE, ROWS_WARPS, 1>, most_bytes);
}

template <int... TYPES> static cudaError_t matvec_prepare(const sl_cuda_facts *facts) {
    cudaError_t code = cudaSuccess;
    ((code = code ? code : matvec_prepare_type<TYPES>(facts->block_bytes)), ...);
    return code;
}

template <int TYPE> static SL_CUDA_RUN(run_row1) {
    return row1_launch<TYPE, MATVEC_WARPS, MATVEC_SLOTS>(context, op, stream);
}

template <int TYPE> static SL_CUDA_RUN(run_rows8) {
    return rows_launch<TYPE, matvec_sizes<TYPE>::ROWS_WARPS, matvec_sizes<TYPE>::ROWS_SLOTS>(
        context, op, context->processors, stream);
}

#define I8_ROWS8(ID, type_name)                                                                              \
    I8_KERNEL(ID, type_name, "i8-row1", SL_CUDA_I8_ROW1, SL_CUDA_FEW_ROWS, sl_i8_row1_declines,              \
              run_row1<SL_QTYPE_##ID>),                                                                      \
        I8_KERNEL(ID, type_name, "i8-rows8", SL_CUDA_I8_ROWS8, SL_CUDA_FEW_ROWS, sl_i8_rows8_declines,       \
                  run_rows8<SL_QTYPE_##ID>)
/* Where there is sl_half_chunk. */
#define I8_ROW1_TMA(ID, type_name)                                                                           \
    I8_KERNEL(ID, type_name, "i8-row1-tma", SL_CUDA_I8_ROW1_TMA, 1, sl_i8_row1_tma_declines,                 \
              row1_tma_launch<SL_QTYPE_##ID>)

#endif
