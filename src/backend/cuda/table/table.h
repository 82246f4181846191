/* All kernels and fusions of the backend, as the plan tries them. */
#ifndef SL_BACKEND_CUDA_TABLE_TABLE_H
#define SL_BACKEND_CUDA_TABLE_TABLE_H

#include "backend/cuda/cuda.h"

/* The preferred first. Constant from the first call on; any thread may call. */
const sl_kernel *const *sl_cuda_registry(int32_t *count);
/* The longest first. */
const sl_fusion *const *sl_cuda_fusions(int32_t *count);
/* Compute capabilities: "from 8.0". */
const char *sl_cuda_devices_text(sl_cuda_arrangement arrangement);
/* What the kernel is for: a few words without a full stop. NULL: nobody said. */
const char *sl_cuda_purpose(const sl_cuda_kernel *kernel);
/* Allows all kernels their shared memory on the device that is set; once per device, before a launch. */
int sl_cuda_prepare_families(const sl_cuda_facts *facts, sl_error *error);

#endif
