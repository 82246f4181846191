/* The kernels of the AVX-512 tier, the preferred first. */
#include "backend/cpu/avx512/avx512.h"
#include "backend/cpu/matmul.h"

/* Tolerances. Integers are exact, so q8_32 differs from plain only by the rounding of one float product and sum per
 * group: 2^-24 of a running sum that may be some times the result, over a few hundred groups. Chains of a few thousand
 * float products: likewise. bf16 pairs: both factors are exact, sums as for floats. */
#define LINEAR_TOLERANCE 3e-5f

#define LINEAR(ID, type_name, format, class_name)                                                                      \
    {.kernel = {.name = "linear/" type_name "/avx512",                                                                 \
                .op = SL_OP_LINEAR,                                                                                    \
                .numeric_class = class_name,                                                                           \
                .activation = SL_VALUE_##format,                                                                       \
                .tolerance = LINEAR_TOLERANCE,                                                                         \
                .batched = true,                                                                                       \
                .declines = sl_avx512_linear_declines,                                                                 \
                .packed_bytes = sl_matmul_packed_bytes_32,                                                             \
                .pack = sl_matmul_pack_avx512,                                                                         \
                .workspace = sl_avx512_linear_workspace},                                                              \
     .isa = SL_ISA_AVX512,                                                                                             \
     .weight_type = SL_QTYPE_##ID,                                                                                     \
     .run = sl_avx512_linear}

const sl_cpu_kernel sl_cpu_kernels_avx512[] = {
    LINEAR(Q8_0, "q8_0", Q8_32, "q8_32/chain"),
    LINEAR(Q4_0, "q4_0", Q8_32, "q8_32/chain"),
    LINEAR(Q4_K, "q4_k", Q8_32, "q8_32/chain"),
    LINEAR(Q6_K, "q6_k", Q8_32, "q8_32/chain"),
    LINEAR(BF16, "bf16", BF16, "bf16/pairs"),
    LINEAR(F16, "f16", F32, "f32/chain"),
    LINEAR(F32, "f32", F32, "f32/chain"),
    {.kernel = {.name = NULL}},
};
