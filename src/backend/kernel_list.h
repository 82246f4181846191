/* The CUDA module's table of kernels, for people: what `test_kernels --list` prints and what
 * src/backend/cuda/README.md shows. It needs no GPU, only the module. */
#ifndef SL_BACKEND_KERNEL_LIST_H
#define SL_BACKEND_KERNEL_LIST_H

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A row of the table beside its sl_kernel. */
typedef struct sl_kernel_entry {
    const sl_kernel *kernel;
    sl_qtype
        type; /* LINEAR: of the weights; ATTENTION: of the cache, where the name says one; else no fact */
    int32_t least_rows, most_rows; /* of buckets it takes; 0: no such bound */
    int32_t best_rows;             /* of buckets it takes unless deterministic; 0: as most_rows */
    const char *devices;           /* by their compute capability: "from 8.0" */
    const char *purpose;           /* a few words without a full stop; NULL: nobody said */
} sl_kernel_entry;

/* What the module exports under SL_CUDA_LIST_NAME: the row at `index`, the preferred first; false past the
 * last, and when `abi` is not its SL_BACKEND_ABI. */
#define SL_CUDA_LIST_NAME "sl_cuda_kernel_entry"
typedef bool (*sl_cuda_kernel_at)(int abi, int32_t index, sl_kernel_entry *entry);

/* Loads the module as sl_backend_open does. */
int sl_cuda_kernel_list(sl_cuda_kernel_at *at, sl_error *error);

#ifdef __cplusplus
}
#endif
#endif
