/* Matrix products for many rows by NVIDIA's library, from weights decoded to BF16. */
#ifndef SL_BACKEND_CUDA_LINEAR_BF16_BF16_CUBLAS_H
#define SL_BACKEND_CUDA_LINEAR_BF16_BF16_CUBLAS_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One matrix's part of a decoding: `elements` (a multiple of 16, from a block's start on; of FP8_128 from a
 * row's) to BF16. */
typedef struct sl_cuda_decode_job {
    const unsigned char *from;
    void *to; /* aligned to 16 */
    uint64_t elements;
} sl_cuda_decode_job;

typedef struct sl_cuda_decode {
    sl_cuda_decode_job jobs[SL_LINEAR_SEGMENTS];
    int32_t count;
    sl_qtype type;
    int32_t columns;    /* of a row that is decoded, and */
    uint64_t row_bytes; /* what it takes: FP8_128 alone asks */
    bool pairs;         /* by operations on BF16 pairs, as class "bf16/k16" has it (k16.h) */
    /* BF16 rows of x that the step does not have get zeros, so that what comes of them is the same each time.
     * data NULL: there is nothing to do. */
    sl_cuda_operand x;
    int32_t x_columns, x_rows; /* of the product; of the bucket */
} sl_cuda_decode;

/* bf16_scratch.cu */
cudaError_t sl_cuda_decode_weights(const sl_cuda_context *context, const sl_cuda_decode *decode,
                                   cudaStream_t stream);

/* NULL is fine. */
void sl_cuda_cublas_destroy(sl_cuda_blas *blas);
/* For cublas_attention.cu: cuBLAS (library.h) beside cuBLASLt. It must be there. */
int sl_cuda_cublas_make_gemm(sl_cuda_context *context, sl_error *error);
void *sl_cuda_cublas_gemm(const sl_cuda_blas *blas);

#ifdef __cplusplus
}
#endif
#endif
