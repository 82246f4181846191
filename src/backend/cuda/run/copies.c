#include "backend/cuda/run/copies.h"

/* The copies begin when what is on the list's stream so far has ended: the buffer's readers are among it. */
static cudaError_t begin(sl_cuda_copies *copies, const sl_cuda_fetch *fetch, cudaStream_t stream) {
    cudaError_t code = cudaEventRecord(copies->may_begin, stream);
    if (code == cudaSuccess) {
        code = cudaStreamWaitEvent(copies->stream, copies->may_begin, 0);
    }
    const uint64_t matrices = fetch->experts > 0 ? (uint64_t)fetch->experts : 1;
    for (int32_t p = 0; p < fetch->part_count && code == cudaSuccess; p++) {
        const sl_cuda_fetch_part *part = &fetch->parts[p];
        code = cudaMemcpyAsync(part->to, part->from, matrices * part->expert_bytes, cudaMemcpyHostToDevice,
                               copies->stream);
    }
    if (code == cudaSuccess) {
        code = cudaEventRecord(copies->ended[fetch->number % SL_FETCH_BUFFERS], copies->stream);
    }
    copies->begun = fetch->number;
    return code;
}

cudaError_t sl_cuda_begin_copies(sl_cuda_copies *copies, const sl_cuda_fetch *first, cudaStream_t stream) {
    cudaError_t code = cudaSuccess;
    copies->begun = SL_NONE;
    for (int i = 0; i < SL_FETCH_BUFFERS && first && code == cudaSuccess; i++, first = first->next) {
        code = begin(copies, first, stream);
    }
    return code;
}

cudaError_t sl_cuda_finish_copies(sl_cuda_copies *copies, const sl_cuda_fetch *fetch, cudaStream_t stream) {
    cudaError_t code = cudaSuccess;
    if (!copies->ahead || copies->begun < fetch->number) {
        code = begin(copies, fetch, stream);
    }
    if (code == cudaSuccess) {
        code = cudaStreamWaitEvent(stream, copies->ended[fetch->number % SL_FETCH_BUFFERS], 0);
    }
    if (copies->ahead && fetch->next && copies->begun < fetch->next->number && code == cudaSuccess) {
        code = begin(copies, fetch->next, stream);
    }
    return code;
}
