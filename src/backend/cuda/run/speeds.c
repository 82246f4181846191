/* What a choice between devices weighs: how fast memory is copied on the device and over the bus, and how
 * long who waits for a small copy waits. Products are not measured: the kernel of peaks.cu is for some
 * devices only. */
#include "backend/cuda/run/run.h"
#include "base/clock.h"

#include <string.h>

enum { RUNS = 4, WAITS = 16, SMALL_BYTES = 4096 };

/* Of the device's memory many times what its caches hold, and twice as much of it as is copied. */
static const uint64_t DEVICE_BYTES = 256 << 20, HOST_BYTES = 32 << 20;

typedef struct measuring {
    sl_cuda_device device;
    cudaEvent_t begin, end;
    unsigned char *memory;
    void *host; /* pinned */
} measuring;

static int start(measuring *m, sl_error *error) {
    void *memory = NULL;
    int status = SL_CUDA(cudaSetDevice(m->device.index), error);
    status =
        status ? status : SL_CUDA(cudaStreamCreateWithFlags(&m->device.stream, cudaStreamNonBlocking), error);
    status = status ? status : SL_CUDA(cudaEventCreate(&m->begin), error);
    status = status ? status : SL_CUDA(cudaEventCreate(&m->end), error);
    status = status ? status : sl_cuda_malloc(&m->device, DEVICE_BYTES, &memory, error);
    m->memory = memory;
    status = status ? status : sl_cuda_malloc_host(&m->device, HOST_BYTES, &m->host, error);
    if (!status) {
        memset(m->host, 1, HOST_BYTES);
        status = SL_CUDA(cudaMemsetAsync(m->memory, 1, DEVICE_BYTES, m->device.stream), error);
    }
    return status;
}

static void end(const measuring *m) {
    sl_cuda_free(m->memory);
    sl_cuda_free_host(m->host);
    if (m->begin) {
        cudaEventDestroy(m->begin);
    }
    if (m->end) {
        cudaEventDestroy(m->end);
    }
    if (m->device.stream) {
        cudaStreamDestroy(m->device.stream);
    }
}

/* Bytes a second, the best of some runs; what is copied on the device is read and written. */
static int copy_speed(const measuring *m, const void *from, uint64_t bytes, double *best, sl_error *error) {
    const double moved = from == m->host ? (double)bytes : 2 * (double)bytes;
    int status = SL_OK;
    for (int run = 0; run < RUNS && !status; run++) {
        float milliseconds = 0;
        status = SL_CUDA(cudaEventRecord(m->begin, m->device.stream), error);
        if (!status) {
            status =
                SL_CUDA(cudaMemcpyAsync(m->memory, from, bytes, cudaMemcpyDefault, m->device.stream), error);
        }
        status = status ? status : SL_CUDA(cudaEventRecord(m->end, m->device.stream), error);
        status = status ? status : SL_CUDA(cudaEventSynchronize(m->end), error);
        status = status ? status : SL_CUDA(cudaEventElapsedTime(&milliseconds, m->begin, m->end), error);
        const double rate = milliseconds > 0 ? moved / (1e-3 * (double)milliseconds) : 0;
        *best = rate > *best ? rate : *best;
    }
    return status;
}

static int border_time(measuring *m, double *best, sl_error *error) {
    int status = SL_OK;
    for (int run = 0; run < WAITS && !status; run++) {
        const double begin = sl_seconds_now();
        status = SL_CUDA(
            cudaMemcpyAsync(m->memory, m->host, SMALL_BYTES, cudaMemcpyDefault, m->device.stream), error);
        status = status ? status : SL_CUDA(cudaStreamSynchronize(m->device.stream), error);
        const double seconds = sl_seconds_now() - begin;
        *best = run == 0 || seconds < *best ? seconds : *best;
    }
    return status;
}

int sl_cuda_speeds(sl_backend *backend, sl_speeds *speeds, sl_error *error) {
    measuring m = {.device.index = backend->options.device};
    memset(speeds, 0, sizeof *speeds);
    if (backend->functions->memory_available(backend) < 2 * DEVICE_BYTES) {
        return SL_OK;
    }
    int status = start(&m, error);
    status = status ? status
                    : copy_speed(&m, m.memory + DEVICE_BYTES / 2, DEVICE_BYTES / 2, &speeds->rates.read_bytes,
                                 error);
    status = status ? status : copy_speed(&m, m.host, HOST_BYTES, &speeds->bus_bytes, error);
    status = status ? status : border_time(&m, &speeds->border_seconds, error);
    end(&m);
    return status;
}
