/* Copies between the device and pinned host memory, of what a step begins and ends with (step_copies.cu). */
#ifndef SL_BACKEND_CUDA_RUN_STEP_COPIES_H
#define SL_BACKEND_CUDA_RUN_STEP_COPIES_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Copies `bytes` (a multiple of 4, not 0) by a kernel, between addresses that are multiples of 4, on the
 * device or in memory of sl_cuda_malloc_host. A kernel has that at the address that the host has it at, as
 * any device of a process of 64 bits (CUDA programming guide, "Unified Virtual Address Space"). A kernel that
 * comes up early (sl_launch) may not read the copy before it has waited for its inputs. */
cudaError_t sl_cuda_copy_staged(void *to, const void *from, uint64_t bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
