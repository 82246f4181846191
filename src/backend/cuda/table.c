/* The CUDA kernels. Tolerances: against the plain CPU kernels, which add in other orders and use another
 * libm. */
#include "backend/cuda/cublas.h"
#include "backend/cuda/flash_split.h"
#include "backend/cuda/units.h"

#define SIMPLE(ID, op_name, class_name, most)                                                                \
    {                                                                                                        \
        .kernel = {.name = #op_name "/cuda",                                                                 \
                   .op = SL_OP_##ID,                                                                         \
                   .numeric_class = class_name,                                                              \
                   .tolerance = most,                                                                        \
                   .batched = true},                                                                         \
        .run = sl_cuda_##op_name                                                                             \
    }
#define CHECKED(ID, op_name, class_name, most, check)                                                        \
    {                                                                                                        \
        .kernel = {.name = #op_name "/cuda",                                                                 \
                   .op = SL_OP_##ID,                                                                         \
                   .numeric_class = class_name,                                                              \
                   .tolerance = most,                                                                        \
                   .batched = true,                                                                          \
                   .declines = check},                                                                       \
        .run = sl_cuda_##op_name                                                                             \
    }
#define LINEAR(ID, type_name, shape, format, class_name, most, limit)                                        \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-" #shape,                                             \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = class_name,                                                              \
                   .activation = SL_VALUE_##format,                                                          \
                   .tolerance = most,                                                                        \
                   .batched = true,                                                                          \
                   .declines = sl_cuda_linear_declines},                                                     \
        .weight_type = SL_QTYPE_##ID, .most_rows = limit, .run = sl_cuda_linear_##shape##_##type_name        \
    }
#define LINEARS(ID, type_name, format, class_name)                                                           \
    LINEAR(ID, type_name, few, format, class_name, 2e-5f, SL_CUDA_FEW_ROWS),                                 \
        LINEAR(ID, type_name, many, format, class_name, 2e-5f, 0)
#define MATVEC(ID, type_name, shape, format, class_name, check, most)                                        \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-" #shape,                                             \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = class_name,                                                              \
                   .activation = SL_VALUE_##format,                                                          \
                   .tolerance = 2e-5f,                                                                       \
                   .batched = true,                                                                          \
                   .declines = check},                                                                       \
        .weight_type = SL_QTYPE_##ID, .most_rows = most, .run = sl_cuda_linear_##shape##_##type_name         \
    }
#define INTEGERS(ID, type_name, shape)                                                                       \
    MATVEC(ID, type_name, shape, Q8_32, "q8_32/256", sl_cuda_##shape##_declines, SL_CUDA_FEW_ROWS)
/* In class "q8_32/factors" products of scales are rounded to 16 bits of fraction, and sums start from numbers
 * that are up to 30 times as large as they are: of a product's root mean square 1e-5, three times that for
 * the largest of thousands of outputs, and ten times that where a few columns of x outweigh the others. */
#define HELD(ID, type_name, shape, class_name, most)                                                         \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-" #shape,                                             \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = class_name,                                                              \
                   .activation = SL_VALUE_Q8_32,                                                             \
                   .tolerance = most,                                                                        \
                   .batched = true,                                                                          \
                   .declines = sl_cuda_##shape##_declines},                                                  \
        .weight_type = SL_QTYPE_##ID, .least_rows = 2, .most_rows = SL_CUDA_FEW_ROWS,                        \
        .run = sl_cuda_linear_##shape##_##type_name                                                          \
    }
/* There is none for F32: such weights are few (routers), and are F32 because it matters. A weight that is not
 * BF16 is rounded to it: by at most 2^-9 of itself, about 2^-9.8 in the mean of squares. Of a product's root
 * mean square that is 0.0011 whatever its length, and five times that for the largest of a million outputs;
 * outliers of x that few columns hold can triple it. BF16 weights have only the order of adding, which the
 * instruction truncates instead of rounding. */
#define MATMUL(ID, type_name, shape, check, most)                                                            \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-" #shape,                                             \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = "bf16/" #shape,                                                          \
                   .activation = SL_VALUE_BF16,                                                              \
                   .tolerance = most,                                                                        \
                   .batched = true,                                                                          \
                   .declines = check},                                                                       \
        .weight_type = SL_QTYPE_##ID, .run = sl_cuda_linear_##shape##_##type_name                            \
    }
/* From `least` rows on (experts: SKINNY_EXPERT_ROWS), up to `rows` (experts: 128; beyond that in two
 * launches, which pays where that is quicker than CUBLAS with its decoding); below, the int8 rows of MATVEC
 * are faster. Scales are rounded to BF16 besides, and what comes of it once more: up to 1.5 times what
 * MATMUL's weights err where there are none but scales, 2.2 times with minima. */
#define SKINNY(ID, type_name, least, rows, most)                                                             \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-skinny",                                              \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = "bf16/skinny",                                                           \
                   .activation = SL_VALUE_BF16,                                                              \
                   .tolerance = most,                                                                        \
                   .batched = true,                                                                          \
                   .declines = sl_cuda_skinny_declines,                                                      \
                   .workspace = sl_cuda_skinny_workspace},                                                   \
        .weight_type = SL_QTYPE_##ID, .least_rows = least, .most_rows = rows,                                \
        .run = sl_cuda_linear_skinny_##type_name                                                             \
    }
/* From `least` rows on: 0, SL_CUDA_CUBLAS_ROWS. */
#define CUBLAS_FROM(ID, type_name, least, most)                                                              \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-cublas",                                              \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = "bf16/cublaslt",                                                         \
                   .activation = SL_VALUE_BF16,                                                              \
                   .tolerance = most,                                                                        \
                   .batched = true,                                                                          \
                   .declines = sl_cuda_cublas_declines,                                                      \
                   .workspace = sl_cuda_cublas_workspace},                                                   \
        .weight_type = SL_QTYPE_##ID, .least_rows = least, .run = sl_cuda_linear_cublas,                     \
        .prepare = sl_cuda_cublas_prepare                                                                    \
    }
#define CUBLAS(ID, type_name, most) CUBLAS_FROM(ID, type_name, 0, most)
/* Class "bf16/k16" (k16.h), for every number of rows; off by what SKINNY's are. */
#define K16(ID, type_name, shape, least, most, check, scratch, most_error)                                   \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-k16-" #shape,                                         \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = "bf16/k16",                                                              \
                   .activation = SL_VALUE_BF16,                                                              \
                   .tolerance = most_error,                                                                  \
                   .batched = true,                                                                          \
                   .deterministic = true,                                                                    \
                   .declines = check,                                                                        \
                   .workspace = scratch},                                                                    \
        .weight_type = SL_QTYPE_##ID, .least_rows = least, .most_rows = most,                                \
        .run = sl_cuda_linear_##shape##_##type_name                                                          \
    }
#define K16_CUBLAS(ID, type_name, most_error)                                                                \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-k16-cublas",                                          \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = "bf16/k16",                                                              \
                   .activation = SL_VALUE_BF16,                                                              \
                   .tolerance = most_error,                                                                  \
                   .batched = true,                                                                          \
                   .deterministic = true,                                                                    \
                   .declines = sl_cuda_cublas_declines,                                                      \
                   .workspace = sl_cuda_cublas_workspace},                                                   \
        .weight_type = SL_QTYPE_##ID, .run = sl_cuda_linear_cublas, .prepare = sl_cuda_cublas_prepare        \
    }
#define K16S(ID, type_name, most_error)                                                                      \
    K16(ID, type_name, thin, 0, 4, sl_cuda_thin_declines, NULL, most_error),                                 \
        K16(ID, type_name, slim, 5, 8, sl_cuda_slim_declines, sl_cuda_skinny_workspace, most_error),         \
        K16(ID, type_name, skinny, 1, 128, sl_cuda_skinny_declines, sl_cuda_skinny_workspace, most_error),   \
        K16_CUBLAS(ID, type_name, most_error),                                                               \
        K16(ID, type_name, wgmma, 9, 0, sl_cuda_k16_wgmma_declines, NULL, most_error)
/* The same from a second copy of the weights in BF16: no decoding in a step, for two bytes an element of
 * memory.
 */
#define KEPT(ID, type_name)                                                                                  \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-cublas-kept",                                         \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = "bf16/cublaslt",                                                         \
                   .activation = SL_VALUE_BF16,                                                              \
                   .tolerance = 1.5e-2f,                                                                     \
                   .batched = true,                                                                          \
                   .on_request = true,                                                                       \
                   .declines = sl_cuda_cublas_declines,                                                      \
                   .packed_bytes = sl_cuda_kept_bytes,                                                       \
                   .pack = sl_cuda_kept_pack,                                                                \
                   .workspace = sl_cuda_cublas_workspace},                                                   \
        .weight_type = SL_QTYPE_##ID, .run = sl_cuda_linear_cublas, .prepare = sl_cuda_cublas_prepare,       \
        .repack = sl_cuda_kept_repack, .packed_type = SL_QTYPE_BF16                                          \
    }
/* Buckets of `least` to `most` rows (0: any); above `best` BF16 is faster. */
#define MMQ(ID, type_name, shape, least, most, best)                                                         \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-mmq-" #shape,                                         \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = "q8_32/256",                                                             \
                   .activation = SL_VALUE_Q8_32,                                                             \
                   .tolerance = 2e-5f,                                                                       \
                   .batched = true,                                                                          \
                   .declines = sl_cuda_mmq_declines},                                                        \
        .weight_type = SL_QTYPE_##ID, .least_rows = least, .most_rows = most, .best_rows = best,             \
        .run = sl_cuda_linear_mmq_##shape##_##type_name                                                      \
    }
/* Class "q8_256" (units.cuh), for `least` to `most` rows (0: any): activations with one scale per 256
 * columns. Off by 0.5 to 0.6 % of a product's root mean square; but beside an outlier 255 columns keep few
 * bits, and the tests have outliers. */
#define UNITS(ID, type_name, shape, least, most, check, bytes)                                               \
    {                                                                                                        \
        .kernel = {.name = "linear/" #type_name "/cuda-" #shape,                                             \
                   .op = SL_OP_LINEAR,                                                                       \
                   .numeric_class = "q8_256",                                                                \
                   .activation = SL_VALUE_Q8_32,                                                             \
                   .tolerance = 0.25f,                                                                       \
                   .batched = true,                                                                          \
                   .deterministic = true,                                                                    \
                   .declines = check,                                                                        \
                   .workspace = bytes},                                                                      \
        .weight_type = SL_QTYPE_##ID, .least_rows = least, .most_rows = most,                                \
        .run = sl_cuda_linear_##shape##_##type_name                                                          \
    }
/* q and p are rounded to f16 or bf16, by 2^-12 or 2^-9 of themselves (and q8_0's values to f16). What that
 * does to a score is done to its exponential: scores of some tens are off by up to 1e-2 and p with them. q8_0
 * is tested with outliers, whose scores are hundreds. */
#define FLASH(shape, ID, type_name, class_name, bytes, limit, most)                                          \
    {                                                                                                        \
        .kernel = {.name = "attention/cuda-flash-" #shape "-" #type_name,                                    \
                   .op = SL_OP_ATTENTION,                                                                    \
                   .numeric_class = class_name,                                                              \
                   .tolerance = most,                                                                        \
                   .batched = true,                                                                          \
                   .declines = sl_cuda_flash_declines,                                                       \
                   .workspace = bytes},                                                                      \
        .weight_type = SL_QTYPE_##ID, .most_rows = limit, .run = sl_cuda_flash_##shape                       \
    }
#define FLASH_MMA "/mma64/split512"
/* The class of these for few rows and with wgmma, for deterministic plans: others are served by faster
 * classes. */
#define FLASH_DECODE_SPLIT(ID, type_name, product, most)                                                     \
    {                                                                                                        \
        .kernel = {.name = "attention/cuda-flash-decode-split-" #type_name,                                  \
                   .op = SL_OP_ATTENTION,                                                                    \
                   .numeric_class = product FLASH_MMA,                                                       \
                   .tolerance = most,                                                                        \
                   .batched = true,                                                                          \
                   .deterministic = true,                                                                    \
                   .declines = sl_cuda_flash_declines,                                                       \
                   .workspace = sl_cuda_flash_workspace},                                                    \
        .weight_type = SL_QTYPE_##ID, .run = sl_cuda_flash_decode_split                                      \
    }
#define FLASH_WGMMA_SPLIT(ID, type_name, product, most)                                                      \
    {                                                                                                        \
        .kernel = {.name = "attention/cuda-flash-wgmma-split-" #type_name,                                   \
                   .op = SL_OP_ATTENTION,                                                                    \
                   .numeric_class = product FLASH_MMA,                                                       \
                   .tolerance = most,                                                                        \
                   .batched = true,                                                                          \
                   .deterministic = true,                                                                    \
                   .declines = sl_cuda_flash_declines},                                                      \
        .weight_type = SL_QTYPE_##ID, .run = sl_cuda_flash_wgmma_split                                       \
    }
#define FLASHES(ID, type_name, product, most)                                                                \
    FLASH(split, ID, type_name, product FLASH_MMA, sl_cuda_flash_workspace, SL_CUDA_SPLIT_ROWS, most),       \
        FLASH(few, ID, type_name, product FLASH_MMA, NULL, SL_CUDA_FLASH_FEW_ROWS, most),                    \
        FLASH(whole, ID, type_name, product FLASH_MMA, NULL, 0, most)

/* Tolerances as above, for the same reasons. */
#define BATCHED(ID, type_name, class_name, most)                                                             \
    {                                                                                                        \
        .kernel = {.name = "attention/cuda-cublas-" #type_name,                                              \
                   .op = SL_OP_ATTENTION,                                                                    \
                   .numeric_class = class_name "/cublas",                                                    \
                   .tolerance = most,                                                                        \
                   .batched = true,                                                                          \
                   .on_request = true,                                                                       \
                   .cut_dependent = true,                                                                    \
                   .declines = sl_cuda_attention_cublas_declines,                                            \
                   .workspace = sl_cuda_attention_cublas_workspace},                                         \
        .weight_type = SL_QTYPE_##ID, .run = sl_cuda_attention_cublas,                                       \
        .prepare = sl_cuda_attention_cublas_prepare                                                          \
    }

static const sl_cuda_kernel kernels[] = {
    SIMPLE(BEGIN, begin, "exact", 0),
    SIMPLE(EMBED, embed, "exact", 0),
    CHECKED(RMSNORM, rmsnorm, "f32/tree", 1e-5f, sl_cuda_rmsnorm_declines),
    SIMPLE(QUANTIZE, quantize, "exact", 0),
    K16S(F16, f16, 1.5e-2f),
    K16S(BF16, bf16, 1e-4f),
    K16S(Q8_0, q8_0, 2.5e-2f),
    K16S(Q4_0, q4_0, 2.5e-2f),
    K16S(Q4_K, q4_k, 3.5e-2f),
    K16S(Q5_K, q5_k, 3.5e-2f),
    K16S(Q6_K, q6_k, 2.5e-2f),
    UNITS(Q4_K, q4_k, units_batch, 2, 64, sl_cuda_units_batch_declines, sl_cuda_units_batch_workspace),
    UNITS(Q4_K, q4_k, units, 0, SL_CUDA_FEW_ROWS, sl_cuda_matvec_declines, NULL),
    UNITS(Q4_K, q4_k, planes, SL_CUDA_FEW_ROWS + 1, 0, sl_cuda_planes_declines, sl_cuda_planes_workspace),
    SKINNY(F16, f16, 5, 128, 1.5e-2f),
    SKINNY(BF16, bf16, 5, 128, 1e-4f),
    SKINNY(Q8_0, q8_0, 9, 192, 2.5e-2f),
    SKINNY(Q4_0, q4_0, 5, 256, 2.5e-2f),
    SKINNY(Q4_K, q4_k, 9, 256, 3.5e-2f),
    SKINNY(Q5_K, q5_k, 5, 256, 3.5e-2f),
    SKINNY(Q6_K, q6_k, 5, 128, 2.5e-2f),
    SKINNY(MXFP4, mxfp4, 9, 256, 2.5e-2f),
    SKINNY(NVFP4, nvfp4, 9, 256, 2.5e-2f),
    SKINNY(NVFP4_128, nvfp4_128, 9, 256, 2.5e-2f),
    SKINNY(FP8_128, fp8_128, 9, 128, 2.5e-2f),
    MMQ(Q8_0, q8_0, batch, 9, 64, 64),
    MMQ(Q4_0, q4_0, batch, 9, 64, 64),
    MMQ(Q4_K, q4_k, batch, 9, 64, 64),
    MMQ(Q5_K, q5_k, batch, 9, 64, 64),
    MMQ(Q6_K, q6_k, batch, 9, 64, 64),
    MMQ(Q4_1, q4_1, batch, 9, 64, 64),
    MMQ(Q5_0, q5_0, batch, 9, 64, 64),
    MMQ(Q5_1, q5_1, batch, 9, 64, 64),
    MMQ(Q2_K, q2_k, batch, 9, 64, 64),
    MMQ(Q3_K, q3_k, batch, 9, 64, 64),
    MMQ(IQ4_NL, iq4_nl, batch, 9, 64, 64),
    MMQ(IQ4_XS, iq4_xs, batch, 9, 64, 64),
    MMQ(MXFP4, mxfp4, batch, 9, 64, 64),
    MMQ(NVFP4, nvfp4, batch, 9, 64, 64),
    MMQ(NVFP4_128, nvfp4_128, batch, 9, 64, 64),
    CUBLAS(F16, f16, 1.5e-2f),
    CUBLAS(BF16, bf16, 1e-4f),
    CUBLAS(Q8_0, q8_0, 1.5e-2f),
    CUBLAS(Q4_0, q4_0, 1.5e-2f),
    CUBLAS(Q4_K, q4_k, 1.5e-2f),
    CUBLAS(Q5_K, q5_k, 1.5e-2f),
    CUBLAS(Q6_K, q6_k, 1.5e-2f),
    CUBLAS(Q4_1, q4_1, 1.5e-2f),
    CUBLAS(Q5_0, q5_0, 1.5e-2f),
    CUBLAS(Q5_1, q5_1, 1.5e-2f),
    CUBLAS(Q2_K, q2_k, 1.5e-2f),
    CUBLAS(Q3_K, q3_k, 1.5e-2f),
    CUBLAS(IQ4_NL, iq4_nl, 1.5e-2f),
    CUBLAS(IQ4_XS, iq4_xs, 1.5e-2f),
    CUBLAS(MXFP4, mxfp4, 1.5e-2f),
    CUBLAS(NVFP4, nvfp4, 1.5e-2f),
    CUBLAS(NVFP4_128, nvfp4_128, 1.5e-2f),
    CUBLAS_FROM(FP8_128, fp8_128, SL_CUDA_FEW_ROWS + 1, 1.5e-2f),
    /* Behind those whose names theirs begin with. */
    KEPT(F16, f16),
    KEPT(Q8_0, q8_0),
    KEPT(Q4_0, q4_0),
    KEPT(Q4_K, q4_k),
    KEPT(Q5_K, q5_k),
    KEPT(Q6_K, q6_k),
    KEPT(Q4_1, q4_1),
    KEPT(Q5_0, q5_0),
    KEPT(Q5_1, q5_1),
    KEPT(Q2_K, q2_k),
    KEPT(Q3_K, q3_k),
    KEPT(IQ4_NL, iq4_nl),
    KEPT(IQ4_XS, iq4_xs),
    KEPT(MXFP4, mxfp4),
    KEPT(NVFP4, nvfp4),
    KEPT(NVFP4_128, nvfp4_128),
    KEPT(FP8_128, fp8_128),
    MATMUL(F16, f16, wgmma, sl_cuda_wgmma_declines, 1.5e-2f),
    MATMUL(BF16, bf16, wgmma, sl_cuda_wgmma_declines, 1e-4f),
    MATMUL(Q8_0, q8_0, wgmma, sl_cuda_wgmma_declines, 1.5e-2f),
    MATMUL(Q4_0, q4_0, wgmma, sl_cuda_wgmma_declines, 1.5e-2f),
    MATMUL(Q4_K, q4_k, wgmma, sl_cuda_wgmma_declines, 1.5e-2f),
    MATMUL(Q5_K, q5_k, wgmma, sl_cuda_wgmma_declines, 1.5e-2f),
    MATMUL(Q6_K, q6_k, wgmma, sl_cuda_wgmma_declines, 1.5e-2f),
    MATMUL(F16, f16, mma, sl_cuda_matmul_declines, 1.5e-2f),
    MATMUL(BF16, bf16, mma, sl_cuda_matmul_declines, 1e-4f),
    MATMUL(Q8_0, q8_0, mma, sl_cuda_matmul_declines, 1.5e-2f),
    MATMUL(Q4_0, q4_0, mma, sl_cuda_matmul_declines, 1.5e-2f),
    MATMUL(Q4_K, q4_k, mma, sl_cuda_matmul_declines, 1.5e-2f),
    MATMUL(Q6_K, q6_k, mma, sl_cuda_matmul_declines, 1.5e-2f),
    MATMUL(FP8_128, fp8_128, mma, sl_cuda_matmul_declines, 1.5e-2f),
    MMQ(Q8_0, q8_0, tile, 17, 0, 0),
    MMQ(Q4_0, q4_0, tile, 17, 0, 0),
    MMQ(Q4_K, q4_k, tile, 17, 0, 0),
    MMQ(Q5_K, q5_k, tile, 17, 0, 0),
    MMQ(Q6_K, q6_k, tile, 17, 0, 0),
    MMQ(Q4_1, q4_1, tile, 17, 0, 0),
    MMQ(Q5_0, q5_0, tile, 17, 0, 0),
    MMQ(Q5_1, q5_1, tile, 17, 0, 0),
    MMQ(Q2_K, q2_k, tile, 17, 0, 0),
    MMQ(Q3_K, q3_k, tile, 17, 0, 0),
    MMQ(IQ4_NL, iq4_nl, tile, 17, 0, 0),
    MMQ(IQ4_XS, iq4_xs, tile, 17, 0, 0),
    MMQ(MXFP4, mxfp4, tile, 17, 0, 0),
    MMQ(NVFP4, nvfp4, tile, 17, 0, 0),
    MMQ(NVFP4_128, nvfp4_128, tile, 17, 0, 0),
    {.kernel = {.name = "linear/f32/cuda-tile",
                .op = SL_OP_LINEAR,
                .numeric_class = "f32/lanes",
                .activation = SL_VALUE_F32,
                .tolerance = 2e-5f,
                .batched = true,
                .declines = sl_cuda_tile_declines},
     .weight_type = SL_QTYPE_F32,
     .least_rows = SL_CUDA_FEW_ROWS + 1,
     .run = sl_cuda_linear_tile_f32},
    MATVEC(F32, f32, matvec, F32, "f32/lanes", sl_cuda_matvec_float_declines, 0),
    MATVEC(F16, f16, matvec, F32, "f32/lanes", sl_cuda_matvec_float_declines, SL_CUDA_FEW_ROWS),
    MATVEC(BF16, bf16, matvec, F32, "f32/lanes", sl_cuda_matvec_float_declines, SL_CUDA_FEW_ROWS),
    MATVEC(FP8_128, fp8_128, matvec, F32, "fp8/lanes", sl_cuda_matvec_float_declines, SL_CUDA_FEW_ROWS),
    INTEGERS(Q8_0, q8_0, stream),
    INTEGERS(Q4_K, q4_k, stream),
    INTEGERS(Q8_0, q8_0, ring),
    INTEGERS(Q4_0, q4_0, ring),
    INTEGERS(Q4_K, q4_k, ring),
    INTEGERS(Q5_K, q5_k, ring),
    INTEGERS(Q6_K, q6_k, ring),
    INTEGERS(Q4_1, q4_1, ring),
    INTEGERS(Q5_0, q5_0, ring),
    INTEGERS(Q5_1, q5_1, ring),
    INTEGERS(Q2_K, q2_k, ring),
    INTEGERS(Q3_K, q3_k, ring),
    INTEGERS(IQ4_NL, iq4_nl, ring),
    INTEGERS(IQ4_XS, iq4_xs, ring),
    INTEGERS(MXFP4, mxfp4, ring),
    INTEGERS(NVFP4, nvfp4, ring),
    INTEGERS(NVFP4_128, nvfp4_128, ring),
    HELD(Q8_0, q8_0, wide, "q8_32/256", 2e-5f),
    HELD(Q8_0, q8_0, held, "q8_32/256", 2e-5f),
    HELD(Q4_K, q4_k, held, "q8_32/factors", 1.5e-4f),
    INTEGERS(Q8_0, q8_0, rows),
    INTEGERS(Q4_0, q4_0, rows),
    INTEGERS(Q4_K, q4_k, rows),
    INTEGERS(Q5_K, q5_k, rows),
    INTEGERS(Q6_K, q6_k, rows),
    INTEGERS(Q4_1, q4_1, rows),
    INTEGERS(Q5_0, q5_0, rows),
    INTEGERS(Q5_1, q5_1, rows),
    INTEGERS(Q2_K, q2_k, rows),
    INTEGERS(Q3_K, q3_k, rows),
    INTEGERS(IQ4_NL, iq4_nl, rows),
    INTEGERS(IQ4_XS, iq4_xs, rows),
    INTEGERS(MXFP4, mxfp4, rows),
    INTEGERS(NVFP4, nvfp4, rows),
    INTEGERS(NVFP4_128, nvfp4_128, rows),
    MATVEC(NVFP4, nvfp4, matvec, Q8_32, "q8_32/words", sl_cuda_fp4_declines, SL_CUDA_FEW_ROWS),
    MATVEC(NVFP4_128, nvfp4_128, matvec, Q8_32, "q8_32/words", sl_cuda_fp4_declines, SL_CUDA_FEW_ROWS),
    LINEARS(F32, f32, F32, "f32/256"),
    LINEARS(F16, f16, F32, "f32/256"),
    LINEARS(BF16, bf16, F32, "f32/256"),
    LINEARS(Q8_0, q8_0, Q8_32, "q8_32/256"),
    LINEARS(Q4_0, q4_0, Q8_32, "q8_32/256"),
    LINEARS(Q4_K, q4_k, Q8_32, "q8_32/256"),
    LINEARS(Q6_K, q6_k, Q8_32, "q8_32/256"),
    LINEARS(Q5_K, q5_k, Q8_32, "q8_32/256"),
    LINEARS(Q4_1, q4_1, Q8_32, "q8_32/256"),
    LINEARS(Q5_0, q5_0, Q8_32, "q8_32/256"),
    LINEARS(Q5_1, q5_1, Q8_32, "q8_32/256"),
    LINEARS(Q2_K, q2_k, Q8_32, "q8_32/256"),
    LINEARS(Q3_K, q3_k, Q8_32, "q8_32/256"),
    LINEARS(IQ4_NL, iq4_nl, Q8_32, "q8_32/256"),
    LINEARS(IQ4_XS, iq4_xs, Q8_32, "q8_32/256"),
    LINEARS(MXFP4, mxfp4, Q8_32, "q8_32/256"),
    LINEARS(NVFP4, nvfp4, Q8_32, "q8_32/256"),
    LINEARS(NVFP4_128, nvfp4_128, Q8_32, "q8_32/256"),
    LINEARS(FP8_128, fp8_128, F32, "f32/256"),
    SIMPLE(ROPE, rope, "f32", 1e-5f),
    SIMPLE(CACHE_WRITE, cache_write, "exact", 0),
    FLASH(decode, F16, f16, "f16/decode16", sl_cuda_flash_decode_workspace, 0, 1e-2f),
    FLASH(decode, BF16, bf16, "bf16/decode16", sl_cuda_flash_decode_workspace, 0, 5e-2f),
    FLASH(decode, Q8_0, q8_0, "q8_0:f16/decode16", sl_cuda_flash_decode_workspace, 0, 0.15f),
    FLASH(decode, FP8, fp8, "fp8:f16/decode16", sl_cuda_flash_decode_workspace, 0, 0.15f),
    FLASH(wgmma, F16, f16, "f16/wgmma128", NULL, 0, 1e-2f),
    FLASH(wgmma, BF16, bf16, "bf16/wgmma128", NULL, 0, 5e-2f),
    FLASH_DECODE_SPLIT(F16, f16, "f16", 1e-2f),
    FLASH_DECODE_SPLIT(BF16, bf16, "bf16", 5e-2f),
    FLASH_DECODE_SPLIT(Q8_0, q8_0, "q8_0:f16", 0.15f),
    FLASH_DECODE_SPLIT(FP8, fp8, "fp8:f16", 0.15f),
    FLASH_WGMMA_SPLIT(F16, f16, "f16", 1e-2f),
    FLASH_WGMMA_SPLIT(BF16, bf16, "bf16", 5e-2f),
    FLASHES(F16, f16, "f16", 1e-2f),
    FLASHES(BF16, bf16, "bf16", 5e-2f),
    FLASHES(Q8_0, q8_0, "q8_0:f16", 0.15f),
    FLASHES(FP8, fp8, "fp8:f16", 0.15f),
    CHECKED(ATTENTION, attention, "tile64/fma", 1e-4f, sl_cuda_attention_declines),
    {.kernel = {.name = "router/cuda",
                .op = SL_OP_ROUTER,
                .numeric_class = "f32/tree",
                .tolerance = 1e-5f,
                .batched = true,
                .declines = sl_cuda_router_declines,
                .workspace = sl_cuda_router_workspace},
     .run = sl_cuda_router},
    BATCHED(F16, f16, "f16", 1e-2f),
    BATCHED(BF16, bf16, "bf16", 5e-2f),
    BATCHED(F32, f32, "f32", 1e-4f),
    BATCHED(Q8_0, q8_0, "q8_0:f16", 0.15f),
    BATCHED(FP8, fp8, "fp8:f32", 1e-3f),
    SIMPLE(COMBINE, combine, "f32", 1e-5f),
    SIMPLE(ACTIVATE, activate, "f32", 1e-5f),
    SIMPLE(DELTA_CONV, delta_conv, "f32", 1e-5f),
    /* Factors are rounded to f16, by 2^-12 of themselves in the mean, about seven of them on the way to an
     * output; outputs are products of three numbers, the largest of them twenty times their mean. */
    {.kernel = {.name = "delta_scan/cuda-chunk",
                .op = SL_OP_DELTA_SCAN,
                .numeric_class = "f16/chunk64",
                .tolerance = 2.5e-2f,
                .batched = true,
                .cut_dependent = true,
                .declines = sl_cuda_delta_chunk_declines,
                .workspace = sl_cuda_delta_chunk_workspace},
     .run = sl_cuda_delta_chunk},
    CHECKED(DELTA_SCAN, delta_scan, "f32/parts", 1e-4f, sl_cuda_delta_declines),
    SIMPLE(GATHER, gather, "exact", 0),
    SIMPLE(SOFTCAP, softcap, "f32", 1e-5f),
    {.kernel = {.name = "sample/cuda",
                .op = SL_OP_SAMPLE,
                .numeric_class = "f32/fixed43",
                .batched = true,
                .workspace = sl_cuda_sample_workspace},
     .run = sl_cuda_sample},
};

enum { COUNT = sizeof kernels / sizeof *kernels };

/* A pointer for every row; what is left over points to the last. */
#define AT(i) &kernels[(i) < COUNT ? (i) : COUNT - 1].kernel
#define AT_8(i)                                                                                              \
    AT(i), AT((i) + 1), AT((i) + 2), AT((i) + 3), AT((i) + 4), AT((i) + 5), AT((i) + 6), AT((i) + 7)
#define AT_32(i) AT_8(i), AT_8((i) + 8), AT_8((i) + 16), AT_8((i) + 24)
static const sl_kernel *const list[] = {AT_32(0),   AT_32(32),  AT_32(64),  AT_32(96),
                                        AT_32(128), AT_32(160), AT_32(192), AT_32(224)};
_Static_assert(sizeof list / sizeof *list >= COUNT, "a pointer for every row");

const sl_kernel *const *sl_cuda_registry(int32_t *count) {
    *count = COUNT;
    return list;
}

#define FUSION(function, check, fusion_name, ...)                                                            \
    {                                                                                                        \
        .fusion = {.name = fusion_name "/cuda",                                                              \
                   .count = sizeof((const sl_op_kind[]){__VA_ARGS__}) / sizeof(sl_op_kind),                  \
                   .ops = {__VA_ARGS__},                                                                     \
                   .declines = check},                                                                       \
        .run = function                                                                                      \
    }

/* By the function of the LINEAR's own kernel, the one that declines by `of`. */
#define ACTIVATES(shape, of, rest, ...)                                                                      \
    {                                                                                                        \
        .fusion = {.name = "linear-" #shape "+activate" rest "/cuda",                                        \
                   .count = 1 + sizeof((const sl_op_kind[]){__VA_ARGS__}) / sizeof(sl_op_kind),              \
                   .ops = {SL_OP_LINEAR, __VA_ARGS__},                                                       \
                   .declines = sl_cuda_matvec_activate_declines},                                            \
        .run = sl_cuda_matvec_activate, .product = of                                                        \
    }

/* The longest first: the plan takes the first that does not decline. */
static const sl_cuda_fusion fused[] = {
    FUSION(sl_cuda_experts, sl_cuda_experts_declines, "router+linear+activate+quantize+linear+combine",
           SL_OP_ROUTER, SL_OP_LINEAR, SL_OP_ACTIVATE, SL_OP_QUANTIZE, SL_OP_LINEAR, SL_OP_COMBINE),
    FUSION(sl_cuda_thin_experts, sl_cuda_thin_experts_declines,
           "router+linear-thin+activate+quantize+linear-thin+combine", SL_OP_ROUTER, SL_OP_LINEAR,
           SL_OP_ACTIVATE, SL_OP_QUANTIZE, SL_OP_LINEAR, SL_OP_COMBINE),
    FUSION(sl_cuda_route, sl_cuda_route_declines, "rmsnorm+quantize+linear-f32", SL_OP_RMSNORM,
           SL_OP_QUANTIZE, SL_OP_LINEAR),
    FUSION(sl_cuda_route, sl_cuda_route_declines, "rmsnorm+linear-f32", SL_OP_RMSNORM, SL_OP_LINEAR),
    ACTIVATES(stream, sl_cuda_stream_declines, "+quantize", SL_OP_ACTIVATE, SL_OP_QUANTIZE),
    ACTIVATES(ring, sl_cuda_ring_declines, "+quantize", SL_OP_ACTIVATE, SL_OP_QUANTIZE),
    ACTIVATES(wide, sl_cuda_wide_declines, "+quantize", SL_OP_ACTIVATE, SL_OP_QUANTIZE),
    ACTIVATES(held, sl_cuda_held_declines, "+quantize", SL_OP_ACTIVATE, SL_OP_QUANTIZE),
    ACTIVATES(rows, sl_cuda_rows_declines, "+quantize", SL_OP_ACTIVATE, SL_OP_QUANTIZE),
    ACTIVATES(units, sl_cuda_matvec_declines, "+quantize", SL_OP_ACTIVATE, SL_OP_QUANTIZE),
    FUSION(sl_cuda_gated_wgmma, sl_cuda_gated_declines, "linear-wgmma+activate+quantize", SL_OP_LINEAR,
           SL_OP_ACTIVATE, SL_OP_QUANTIZE),
    FUSION(sl_cuda_gated_skinny, sl_cuda_gated_skinny_declines, "linear-skinny+activate+quantize",
           SL_OP_LINEAR, SL_OP_ACTIVATE, SL_OP_QUANTIZE),
    FUSION(sl_cuda_gated_thin, sl_cuda_gated_thin_declines, "linear-thin+activate+quantize", SL_OP_LINEAR,
           SL_OP_ACTIVATE, SL_OP_QUANTIZE),
    FUSION(sl_cuda_gated_slim, sl_cuda_gated_slim_declines, "linear-slim+activate+quantize", SL_OP_LINEAR,
           SL_OP_ACTIVATE, SL_OP_QUANTIZE),
    FUSION(sl_cuda_ranges_heads, sl_cuda_ranges_heads_declines, "linear-ranges+norms+rope+cache_write",
           SL_OP_LINEAR, SL_OP_RMSNORM, SL_OP_RMSNORM, SL_OP_ROPE, SL_OP_ROPE, SL_OP_CACHE_WRITE),
    FUSION(sl_cuda_ranges_heads, sl_cuda_ranges_heads_declines, "linear-ranges+rope+cache_write",
           SL_OP_LINEAR, SL_OP_ROPE, SL_OP_ROPE, SL_OP_CACHE_WRITE),
    FUSION(sl_cuda_ranges_gather_norm, sl_cuda_ranges_gather_norm_declines,
           "linear-ranges+gather+gather+rmsnorm+quantize", SL_OP_LINEAR, SL_OP_GATHER, SL_OP_GATHER,
           SL_OP_RMSNORM, SL_OP_QUANTIZE),
    FUSION(sl_cuda_ranges_norm, sl_cuda_ranges_norm_declines, "linear-ranges+rmsnorm+quantize", SL_OP_LINEAR,
           SL_OP_RMSNORM, SL_OP_QUANTIZE),
    FUSION(sl_cuda_ranges_norm, sl_cuda_ranges_norm_declines, "linear-ranges+rmsnorm", SL_OP_LINEAR,
           SL_OP_RMSNORM),
    ACTIVATES(stream, sl_cuda_stream_declines, "", SL_OP_ACTIVATE),
    ACTIVATES(ring, sl_cuda_ring_declines, "", SL_OP_ACTIVATE),
    ACTIVATES(wide, sl_cuda_wide_declines, "", SL_OP_ACTIVATE),
    ACTIVATES(held, sl_cuda_held_declines, "", SL_OP_ACTIVATE),
    ACTIVATES(rows, sl_cuda_rows_declines, "", SL_OP_ACTIVATE),
    ACTIVATES(units, sl_cuda_matvec_declines, "", SL_OP_ACTIVATE),
    FUSION(sl_cuda_heads_decode, sl_cuda_heads_decode_declines, "norms+rope+cache_write+attention+quantize",
           SL_OP_RMSNORM, SL_OP_RMSNORM, SL_OP_ROPE, SL_OP_ROPE, SL_OP_CACHE_WRITE, SL_OP_ATTENTION,
           SL_OP_QUANTIZE),
    FUSION(sl_cuda_heads_decode, sl_cuda_heads_decode_declines, "rope+cache_write+attention+quantize",
           SL_OP_ROPE, SL_OP_ROPE, SL_OP_CACHE_WRITE, SL_OP_ATTENTION, SL_OP_QUANTIZE),
    FUSION(sl_cuda_heads_decode, sl_cuda_heads_decode_declines, "norms+rope+cache_write+attention",
           SL_OP_RMSNORM, SL_OP_RMSNORM, SL_OP_ROPE, SL_OP_ROPE, SL_OP_CACHE_WRITE, SL_OP_ATTENTION),
    FUSION(sl_cuda_heads_decode, sl_cuda_heads_decode_declines, "rope+cache_write+attention", SL_OP_ROPE,
           SL_OP_ROPE, SL_OP_CACHE_WRITE, SL_OP_ATTENTION),
    FUSION(sl_cuda_decode_quantize, sl_cuda_decode_quantize_declines, "attention+quantize", SL_OP_ATTENTION,
           SL_OP_QUANTIZE),
    FUSION(sl_cuda_heads, sl_cuda_heads_declines, "norms+rope+cache_write", SL_OP_RMSNORM, SL_OP_RMSNORM,
           SL_OP_ROPE, SL_OP_ROPE, SL_OP_CACHE_WRITE),
    FUSION(sl_cuda_heads, sl_cuda_heads_declines, "rope+cache_write", SL_OP_ROPE, SL_OP_ROPE,
           SL_OP_CACHE_WRITE),
    FUSION(sl_cuda_gather_gather_norm, sl_cuda_gathers_fusion_declines, "gather+gather+rmsnorm+quantize",
           SL_OP_GATHER, SL_OP_GATHER, SL_OP_RMSNORM, SL_OP_QUANTIZE),
    FUSION(sl_cuda_gather_gather_norm, sl_cuda_gathers_fusion_declines, "gather+gather+rmsnorm", SL_OP_GATHER,
           SL_OP_GATHER, SL_OP_RMSNORM),
    FUSION(sl_cuda_gather_norm, sl_cuda_source_fusion_declines, "gather+rmsnorm+quantize", SL_OP_GATHER,
           SL_OP_RMSNORM, SL_OP_QUANTIZE),
    FUSION(sl_cuda_gather_norm, sl_cuda_source_fusion_declines, "gather+rmsnorm", SL_OP_GATHER,
           SL_OP_RMSNORM),
    FUSION(sl_cuda_embed_norm, sl_cuda_source_fusion_declines, "embed+rmsnorm+quantize", SL_OP_EMBED,
           SL_OP_RMSNORM, SL_OP_QUANTIZE),
    FUSION(sl_cuda_embed_norm, sl_cuda_source_fusion_declines, "embed+rmsnorm", SL_OP_EMBED, SL_OP_RMSNORM),
    FUSION(sl_cuda_combine_norm, sl_cuda_source_fusion_declines, "combine+rmsnorm+quantize", SL_OP_COMBINE,
           SL_OP_RMSNORM, SL_OP_QUANTIZE),
    FUSION(sl_cuda_combine_norm, sl_cuda_source_fusion_declines, "combine+rmsnorm", SL_OP_COMBINE,
           SL_OP_RMSNORM),
    FUSION(sl_cuda_rmsnorm_quantize, sl_cuda_norm_fusion_declines, "rmsnorm+quantize", SL_OP_RMSNORM,
           SL_OP_QUANTIZE),
    FUSION(sl_cuda_activate_quantize, sl_cuda_activate_fusion_declines, "activate+quantize", SL_OP_ACTIVATE,
           SL_OP_QUANTIZE),
};

enum { FUSIONS = sizeof fused / sizeof *fused };

#define FUSED(i) &fused[(i) < FUSIONS ? (i) : FUSIONS - 1].fusion
#define FUSED_8(i)                                                                                           \
    FUSED(i), FUSED((i) + 1), FUSED((i) + 2), FUSED((i) + 3), FUSED((i) + 4), FUSED((i) + 5),                \
        FUSED((i) + 6), FUSED((i) + 7)
static const sl_fusion *const fusions[] = {FUSED_8(0),  FUSED_8(8),  FUSED_8(16),
                                           FUSED_8(24), FUSED_8(32), FUSED_8(40)};
_Static_assert(sizeof fusions / sizeof *fusions >= FUSIONS, "a pointer for every row");

const sl_fusion *const *sl_cuda_fusions(int32_t *count) {
    *count = FUSIONS;
    return fusions;
}
