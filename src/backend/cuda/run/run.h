/* What the files of run/ share: checked calls, the device's facts, weights, measuring. */
#ifndef SL_BACKEND_CUDA_RUN_RUN_H
#define SL_BACKEND_CUDA_RUN_RUN_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* digest.cu: adds an order-free 64-bit digest of `bytes` (a multiple of 4) at `data` to *digest, on the
 * device */
cudaError_t sl_cuda_digest(const void *data, uint64_t bytes, unsigned long long *digest, cudaStream_t stream);

/* ---- checked calls (checked_calls.c) ---- */

/* Of one executor. A CUDA error in a step is final: `fault` keeps it, and every later call returns it. */
typedef struct sl_cuda_device {
    int32_t index;
    cudaStream_t stream;
    uint64_t allocations, synchronisations;
    sl_error fault;
} sl_cuda_device;

/* Evaluates a CUDA runtime call unless a test asked for a failure here; 0 or an SL_ERR_ code. */
#define SL_CUDA(call, error) sl_cuda_result(sl_cuda_inject(#call) ? cudaErrorUnknown : (call), #call, (error))
int sl_cuda_result(cudaError_t code, const char *call, sl_error *error);
/* True when this is the call that a test wants to fail. */
bool sl_cuda_inject(const char *call);
/* For tests, exported by the module: the n-th next checked call fails (1 = the next; 0 = none). */
__attribute__((visibility("default"))) void sl_cuda_fail_at(uint64_t nth);
/* The call that failed then, and the device that was set; NULL: none has since sl_cuda_fail_at. */
__attribute__((visibility("default"))) const char *sl_cuda_failed_call(int *device);
/* Checked calls since the module was loaded. */
__attribute__((visibility("default"))) uint64_t sl_cuda_call_count(void);
/* Allocations, on the device and pinned ones, that were not freed yet. */
__attribute__((visibility("default"))) uint64_t sl_cuda_live_count(void);

/* Zero bytes give a valid pointer too. */
int sl_cuda_malloc(sl_cuda_device *device, uint64_t bytes, void **memory, sl_error *error);
int sl_cuda_malloc_host(sl_cuda_device *device, uint64_t bytes, void **memory, sl_error *error);
/* Errors do not matter any more here; NULL is fine. */
void sl_cuda_free(void *memory);
void sl_cuda_free_host(void *memory);
/* Waiting inside a step or while loading; counted. */
int sl_cuda_synchronize(sl_cuda_device *device, sl_error *error);

/* ---- weights (upload.c) ---- */

/* Copies the deployment's weights, one after the other at multiples of 64, to their pool: on the device, or
 * pinned. offsets: [weight_count], filled in. Waits until all are there. */
int sl_cuda_upload(sl_cuda_device *device, const sl_deployment *deployment, unsigned char *const *pools,
                   uint64_t *offsets, const sl_progress *progress, sl_error *error);

/* ---- profile (profile.c, peaks.cu) ---- */

/* A list of ops and all that launching them takes. */
typedef struct sl_cuda_list {
    const sl_cuda_context *context, *tail; /* of ops of the tail */
    const sl_cuda_op *ops;
    int32_t count;
} sl_cuda_list;

/* Measures the list, whose step block is on the device. `memory`: weights, to measure how fast memory is
 * read. Allocates graphs, waits for the device. */
int sl_cuda_profile(sl_cuda_device *device, const sl_cuda_list *list, const void *memory, uint64_t bytes,
                    sl_profile *profile, sl_error *error);
/* The device's limits alone. */
int sl_cuda_rates(sl_cuda_device *device, const void *memory, uint64_t bytes, sl_rates *rates,
                  sl_error *error);
/* Reads all `bytes` (whole 16-byte words count) once. *sink is written only if the sum is one unlikely
 * number. */
cudaError_t sl_cuda_peak_read(const void *memory, uint64_t bytes, uint32_t *sink, cudaStream_t stream);
/* BF16 products of arbitrary numbers, as many as the tensor cores take; *operations: how many
 * multiplications and additions that is, 0 where there is no such kernel for the device. */
cudaError_t sl_cuda_peak_tensor(int device, float *sink, double *operations, cudaStream_t stream);

/* speeds.c: see sl_backend_functions.speeds */
int sl_cuda_speeds(sl_backend *backend, sl_speeds *speeds, sl_error *error);

/* deploy.c */
extern const sl_backend_functions sl_cuda_functions;

#ifdef __cplusplus
}
#endif
#endif
