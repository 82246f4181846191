/* Libraries that are opened at run time. */
#ifndef SL_BACKEND_CUDA_RUN_LIBRARY_H
#define SL_BACKEND_CUDA_RUN_LIBRARY_H

#include "backend/cuda/cuda.h"

#include <library_types.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sl_cuda_symbol {
    const char *name;
    void *function; /* address of the pointer to fill */
} sl_cuda_symbol;

/* "libcublas.so.13": opens it and fills all pointers; false when it or one of them is not there. Not for
 * several threads at once. */
bool sl_cuda_library_open(const char *name, const sl_cuda_symbol *symbols, int32_t count);

/* ---- cublasGemmBatchedEx ---- */

bool sl_cuda_gemm_there(void);
/* Takes memory of the device; not in a step. */
int sl_cuda_gemm_create(void **handle, sl_error *error);
void sl_cuda_gemm_destroy(void *handle); /* NULL is fine */

/* c[m][n] = op(a) b for each of `count` triples of pointers, columns first: op(a) is [m][k], or a is [k][m]
 * transposed; b [k][n]. Sums and c are f32. */
typedef struct sl_cuda_gemm_call {
    int a_transposed;
    int m, n, k;
    cudaDataType type;               /* of a and b */
    const void *const *a, *const *b; /* in device memory, [count] */
    void *const *c;
    int a_stride, b_stride, c_stride; /* elements between columns */
    int count;
    void *workspace; /* aligned to 256 */
    size_t workspace_bytes;
} sl_cuda_gemm_call;

/* Puts it on the stream, also while that is captured. */
cudaError_t sl_cuda_gemm(void *handle, const sl_cuda_gemm_call *call, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
