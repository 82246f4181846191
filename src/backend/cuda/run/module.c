/* What the module exports. It carries its own copy of the base code it uses, hidden, and needs nothing but
 * the driver. */
#include "backend/cuda/run/run.h"
#include "backend/cuda/table/table.h"
#include "backend/kernel_list.h"
#include "base/alloc.h"
#include "base/log.h"

#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int sl_cuda_backend_create(int abi, const sl_backend_options *options, sl_backend **backend,
                                  sl_error *error);
/* Where the module's log lines go; base/log.h. */
EXPORT void sl_cuda_log_set(sl_log_function function, void *context);

/* sl_cuda_kernel_at of backend/kernel_list.h. */
EXPORT bool sl_cuda_kernel_entry(int abi, int32_t index, sl_kernel_entry *entry);

void sl_cuda_log_set(sl_log_function function, void *context) {
    sl_log_set(function, context);
}

/* And reads the facts. */
static int describe(sl_cuda_backend *cuda, int32_t device, sl_error *error) {
    struct cudaDeviceProp properties;
    const int status = SL_CUDA(cudaGetDeviceProperties(&properties, device), error);
    if (status) {
        return status;
    }
    if (10 * properties.major + properties.minor < SL_CUDA_LEAST_CAPABILITY) {
        return sl_fail(error, SL_ERR_UNSUPPORTED,
                       "cuda: device %d, %s, has compute capability %d.%d; 8.0 is needed", (int)device,
                       properties.name, properties.major, properties.minor);
    }
    cuda->facts = (sl_cuda_facts){.major = properties.major,
                                  .minor = properties.minor,
                                  .processors = properties.multiProcessorCount,
                                  .block_bytes = (int32_t)properties.sharedMemPerBlockOptin,
                                  .processor_bytes = (int32_t)properties.sharedMemPerMultiprocessor,
                                  .has_wgmma = properties.major == 9,
                                  .has_bulk_copies = properties.major >= 9};
    snprintf(cuda->description, sizeof cuda->description, "%s, compute capability %d.%d, %llu MiB",
             properties.name, properties.major, properties.minor,
             (unsigned long long)(properties.totalGlobalMem >> 20));
    return SL_OK;
}

int sl_cuda_backend_create(int abi, const sl_backend_options *options, sl_backend **backend,
                           sl_error *error) {
    if (abi != SL_BACKEND_ABI) {
        return sl_fail(error, SL_ERR_UNSUPPORTED,
                       "cuda: the module has interface %d, the library %d; install both "
                       "from one build",
                       SL_BACKEND_ABI, abi);
    }
    int count = 0;
    sl_error why = {.code = SL_OK};
    if (SL_CUDA(cudaGetDeviceCount(&count), &why) || count == 0) {
        return sl_fail(error, SL_ERR_UNSUPPORTED, "cuda: no GPU: %s",
                       count == 0 && why.code ? why.message : "none found");
    }
    if (options->device < 0 || options->device >= count) {
        return sl_fail(error, SL_ERR_INVALID, "cuda: there is no device %d; this machine has %d",
                       (int)options->device, count);
    }
    sl_cuda_backend *cuda = sl_alloc_zero(1, sizeof *cuda);
    if (!cuda) {
        return sl_fail(error, SL_ERR_NOMEM, "cuda: no memory for the backend");
    }
    const int status = describe(cuda, options->device, error);
    if (status) {
        sl_free(cuda);
        return status;
    }
    cuda->base.functions = &sl_cuda_functions;
    cuda->base.name = "cuda";
    cuda->base.description = cuda->description;
    cuda->base.numerics = cuda->description; /* how products are cut depends on the device */
    cuda->base.maps_weights = false;
    cuda->base.column_multiple = SL_CUDA_COLUMN_MULTIPLE;
    cuda->base.steps_in_flight = SL_CUDA_STAGES;
    cuda->base.chunk = 2048;
    /* Two H200 read 8192 rows of an 8B of Q8_0 in chunks of 2048 as fast as in chunks of 1024
     * (docs/placement.md): five turns of a + 2048 are nine of a + 1024. */
    cuda->base.fixed_rows = 256;
    cuda->base.fixed_rows_of_floats = 96; /* of BF16 those of 1024 are 1.06 times as fast */
    cuda->base.fixed_buckets = true;
    cuda->base.options = *options;
    *backend = &cuda->base;
    return SL_OK;
}

bool sl_cuda_kernel_entry(int abi, int32_t index, sl_kernel_entry *entry) {
    int32_t count;
    const sl_kernel *const *kernels = sl_cuda_registry(&count);
    if (abi != SL_BACKEND_ABI || index < 0 || index >= count) {
        return false;
    }
    const sl_cuda_kernel *row = (const sl_cuda_kernel *)(const void *)kernels[index];
    *entry = (sl_kernel_entry){.kernel = &row->kernel,
                               .type = row->weight_type,
                               .least_rows = row->least_rows,
                               .most_rows = row->most_rows,
                               .best_rows = row->best_rows,
                               .devices = sl_cuda_devices_text(row->arrangement),
                               .purpose = sl_cuda_purpose(row)};
    return true;
}
