/* What one GPU computed goes to another: from its workspace to a landing place in the other's memory, by the
 * other's stream from there to its workspace. */
#include "backend/cuda/run/executor.h"
#include "base/checked.h"

int sl_cuda_reach(int from, int to, bool *reaches, sl_error *error) {
    int can = 0;
    int status = SL_CUDA(cudaSetDevice(from), error);
    if (!status) {
        status = SL_CUDA(cudaDeviceCanAccessPeer(&can, from, to), error);
    }
    *reaches = can != 0;
    if (status || !can) {
        return status;
    }
    cudaError_t code =
        sl_cuda_inject("cudaDeviceEnablePeerAccess") ? cudaErrorUnknown : cudaDeviceEnablePeerAccess(to, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) {
        code = cudaSuccess;
        cudaGetLastError(); /* it must not show up in a later call */
    }
    return sl_cuda_result(code, "cudaDeviceEnablePeerAccess", error);
}

int sl_cuda_link(sl_executor *from, sl_executor *to, bool *reaches, sl_error *error) {
    const int source = from->device.index, target = to->device.index;
    int status = sl_cuda_check_fault(from, error);
    bool back = true;
    *reaches = true;
    if (!status && source != target) {
        status = sl_cuda_reach(target, source, &back, error);
        status = status ? status : sl_cuda_reach(source, target, reaches, error);
    }
    *reaches = *reaches && back;
    if (!status) {
        status = SL_CUDA(cudaSetDevice(source), error);
    }
    if (!status && !from->sent) {
        status = SL_CUDA(cudaEventCreateWithFlags(&from->sent, cudaEventDisableTiming), error);
    }
    return status;
}

/* Does it lie in the pools? */
static int check(const sl_executor *from, const sl_executor *to, const sl_crossing *c, sl_error *error) {
    const uint64_t *source = from->deployment->pool_bytes, *target = to->deployment->pool_bytes;
    return from->sent && sl_range_inside(c->from, c->bytes, source[SL_POOL_WORKSPACE]) &&
                   sl_range_inside(c->place, c->bytes, target[SL_POOL_EXCHANGE]) &&
                   sl_range_inside(c->to, c->bytes, target[SL_POOL_WORKSPACE])
               ? SL_OK
               : sl_fail(error, SL_ERR_INVALID,
                         "cuda: %llu bytes cross devices that are not linked, or lie "
                         "outside a pool",
                         (unsigned long long)c->bytes);
}

int sl_cuda_send(sl_executor *from, const sl_executor *to, const sl_crossing *c, sl_error *error) {
    int status = sl_cuda_check_fault(from, error);
    status = status ? status : check(from, to, c, error);
    if (status) {
        return status;
    }
    sl_error why = {.code = SL_OK};
    status = SL_CUDA(cudaSetDevice(from->device.index), &why);
    if (!status) {
        status = SL_CUDA(cudaMemcpyPeerAsync(to->pools[SL_POOL_EXCHANGE] + c->place, to->device.index,
                                             from->pools[SL_POOL_WORKSPACE] + c->from, from->device.index,
                                             c->bytes, from->device.stream),
                         &why);
    }
    if (!status) {
        status = SL_CUDA(cudaEventRecord(from->sent, from->device.stream), &why);
    }
    return status ? sl_cuda_fault(from, &why, error) : SL_OK;
}

/* The source may have sent something else since: then that is waited for as well, which does no harm. */
int sl_cuda_receive(sl_executor *to, const sl_executor *from, const sl_crossing *c, sl_error *error) {
    int status = sl_cuda_check_fault(to, error);
    status = status ? status : check(from, to, c, error);
    if (status) {
        return status;
    }
    sl_error why = {.code = SL_OK};
    status = SL_CUDA(cudaSetDevice(to->device.index), &why);
    if (!status) {
        status = SL_CUDA(cudaStreamWaitEvent(to->device.stream, from->sent, 0), &why);
    }
    if (!status) {
        status = SL_CUDA(cudaMemcpyAsync(to->pools[SL_POOL_WORKSPACE] + c->to,
                                         to->pools[SL_POOL_EXCHANGE] + c->place, c->bytes,
                                         cudaMemcpyDeviceToDevice, to->device.stream),
                         &why);
    }
    return status ? sl_cuda_fault(to, &why, error) : SL_OK;
}
