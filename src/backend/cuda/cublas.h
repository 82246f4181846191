/* Matrix products for many rows by NVIDIA's library, from weights decoded to BF16. */
#ifndef SL_BACKEND_CUDA_CUBLAS_H
#define SL_BACKEND_CUDA_CUBLAS_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One matrix's part of a decoding: `elements` (a multiple of 16, from a block's start on) of the file's bytes
 * to BF16. */
typedef struct sl_cuda_decode_job {
    const unsigned char *from;
    void *to; /* aligned to 16 */
    uint64_t elements;
} sl_cuda_decode_job;

typedef struct sl_cuda_decode {
    sl_cuda_decode_job jobs[SL_LINEAR_SEGMENTS];
    int32_t count;
    sl_qtype type;
    bool pairs; /* by operations on BF16 pairs, as class "bf16/k16" has it (k16.h) */
    /* BF16 rows of x that the step does not have get zeros, so that what comes of them is the same each time.
     * data NULL: there is nothing to do. */
    sl_cuda_operand x;
    int32_t x_columns, x_rows; /* of the product; of the bucket */
} sl_cuda_decode;

/* decode_scratch.cu */
cudaError_t sl_cuda_decode_weights(const sl_cuda_context *context, const sl_cuda_decode *decode,
                                   cudaStream_t stream);

enum { SL_CUDA_CUBLAS_ROWS = 96 }; /* of a bucket, at least, where the table says nothing else */

/* cublas.c: a kernel's functions. Products are looked for when an op is resolved; `run` only launches. */
SL_CUDA_RUN(sl_cuda_linear_cublas);
const char *sl_cuda_cublas_declines(const sl_kernel *kernel, const sl_kernel_query *query);
uint64_t sl_cuda_cublas_workspace(const sl_kernel *kernel, const sl_kernel_query *query);
int sl_cuda_cublas_prepare(sl_cuda_context *context, sl_cuda_op *op, sl_error *error);
/* In front of a launch that adds the ranges' sums. */
SL_CUDA_RANGES(sl_cuda_cublas_ranges);
const char *sl_cuda_cublas_ranges_reason(const sl_fusion_query *query);
/* The same of whichever kernel the product has. */
static inline SL_CUDA_RANGES(sl_cuda_run_ranges) {
    return op->kernel->kernel.declines == sl_cuda_cublas_declines
               ? sl_cuda_cublas_ranges(context, op, stream, ranges)
               : sl_cuda_skinny_ranges(context, op, stream, ranges);
}
static inline const char *sl_cuda_run_ranges_reason(const sl_fusion_query *query) {
    const sl_kernel *kernel = query->kernels[0];
    return kernel->declines == sl_cuda_cublas_declines && kernel->deterministic
               ? sl_cuda_cublas_ranges_reason(query)
               : sl_cuda_ranges_reason(query);
}
/* The layout of kernels that keep a matrix decoded: BF16, as it lies in the scratch of the others. */
uint64_t sl_cuda_kept_bytes(const sl_weight *weight);
void sl_cuda_kept_pack(const sl_weight *weight, void *packed, int32_t first, int32_t count);
cudaError_t sl_cuda_kept_repack(const sl_weight *weight, const unsigned char *from, unsigned char *packed,
                                cudaStream_t stream);
void sl_cuda_cublas_destroy(sl_cuda_blas *blas);
/* For attention_cublas.cu: cuBLAS (library.h) beside cuBLASLt. It must be there. */
int sl_cuda_cublas_make_gemm(sl_cuda_context *context, sl_error *error);
void *sl_cuda_cublas_gemm(const sl_cuda_blas *blas);

#ifdef __cplusplus
}
#endif
#endif
