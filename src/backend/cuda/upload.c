/* Weights from the mapped file to the device, through two pinned buffers: while one is on its way the other
 * is filled, so that the disk and the bus work at the same time. */
#include "backend/cuda/cuda.h"
#include "base/checked.h"

#include <string.h>

enum { BUFFERS = 2, BUFFER_BYTES = 8 << 20 };

typedef struct upload {
    sl_cuda_device *device;
    const sl_progress *progress;
    void *buffers[BUFFERS];
    cudaEvent_t sent[BUFFERS];
    int next;
    void *staging; /* on the device: the file's bytes of a weight that is packed there */
    uint64_t done, total;
} upload;

/* staging: bytes of the largest weight that is packed; whole words of 16 bytes are read of it. */
static int begin(upload *u, uint64_t staging, sl_error *error) {
    int status = staging > 0 ? sl_cuda_malloc(u->device, staging + 64, &u->staging, error) : SL_OK;
    for (int b = 0; b < BUFFERS && !status; b++) {
        status = sl_cuda_malloc_host(u->device, BUFFER_BYTES, &u->buffers[b], error);
        if (!status) {
            status = SL_CUDA(cudaEventCreateWithFlags(&u->sent[b], cudaEventDisableTiming), error);
        }
    }
    return status;
}

static void end(upload *u) {
    for (int b = 0; b < BUFFERS; b++) {
        if (u->sent[b]) {
            cudaEventDestroy(u->sent[b]);
        }
        sl_cuda_free_host(u->buffers[b]);
    }
    sl_cuda_free(u->staging);
}

static int send(upload *u, const unsigned char *from, unsigned char *to, uint64_t bytes, sl_error *error) {
    while (bytes > 0) {
        const uint64_t part = bytes < BUFFER_BYTES ? bytes : BUFFER_BYTES;
        const int b = u->next;
        u->next = (b + 1) % BUFFERS;
        /* An event that was never recorded is over at once. */
        int status = SL_CUDA(cudaEventSynchronize(u->sent[b]), error);
        if (!status) {
            memcpy(u->buffers[b], from, part);
            status = SL_CUDA(
                cudaMemcpyAsync(to, u->buffers[b], part, cudaMemcpyHostToDevice, u->device->stream), error);
        }
        if (!status) {
            status = SL_CUDA(cudaEventRecord(u->sent[b], u->device->stream), error);
        }
        if (status) {
            return status;
        }
        from += part;
        to += part;
        bytes -= part;
        u->done += part;
        if (u->progress && u->progress->report &&
            !u->progress->report(u->progress->context, u->done, u->total)) {
            return sl_fail(error, SL_ERR_CANCELLED, "loading was cancelled");
        }
    }
    return SL_OK;
}

/* The next weight may come to the staging buffer as soon as it is packed: all is in the order of the stream.
 */
static int send_weight(upload *u, const sl_weight_use *use, const sl_weight *weight, unsigned char *to,
                       sl_error *error) {
    if (!use->layout) {
        return send(u, weight->data, to, use->bytes, error);
    }
    const sl_cuda_kernel *kernel = (const sl_cuda_kernel *)(const void *)use->layout;
    const int status = send(u, weight->data, u->staging, weight->bytes, error);
    return status ? status : SL_CUDA(kernel->repack(weight, u->staging, to, u->device->stream), error);
}

static int send_all(upload *u, const sl_deployment *deployment, unsigned char *pool, uint64_t *offsets,
                    sl_error *error) {
    uint64_t offset = 0;
    for (int32_t i = 0; i < deployment->weight_count; i++) {
        const sl_weight_use *use = &deployment->weights[i];
        const sl_weight *weight = &deployment->program->weights[use->weight];
        uint64_t next;
        if (use->layout ? use->bytes != use->layout->packed_bytes(weight) : use->bytes != weight->bytes) {
            return sl_fail(error, SL_ERR_INTERNAL, "plan: weight %s in a layout that cuda does not have",
                           weight->name);
        }
        if (!sl_range_inside(offset, use->bytes, deployment->pool_bytes[SL_POOL_WEIGHTS]) ||
            !sl_align_u64(offset + use->bytes, 64, &next)) {
            return sl_fail(error, SL_ERR_INTERNAL, "plan: weight %s lies outside the pool of weights",
                           weight->name);
        }
        offsets[i] = offset;
        const int status = send_weight(u, use, weight, pool + offset, error);
        if (status) {
            return status;
        }
        offset = next;
    }
    return sl_cuda_synchronize(u->device, error);
}

int sl_cuda_upload(sl_cuda_device *device, const sl_deployment *deployment, unsigned char *pool,
                   uint64_t *offsets, const sl_progress *progress, sl_error *error) {
    upload u = {.device = device, .progress = progress};
    uint64_t staging = 0;
    for (int32_t i = 0; i < deployment->weight_count; i++) {
        const uint64_t bytes = deployment->program->weights[deployment->weights[i].weight].bytes;
        u.total += bytes;
        staging = deployment->weights[i].layout && bytes > staging ? bytes : staging;
    }
    int status = begin(&u, staging, error);
    if (!status) {
        status = send_all(&u, deployment, pool, offsets, error);
    }
    if (status) {
        cudaStreamSynchronize(device->stream); /* nothing may be under way from a buffer that is freed */
    }
    end(&u);
    return status;
}
