/* Whole fetch sets, copied to a buffer beside the ops that compute from the other one. The copies of
 * a list of ops are on a stream of their own, forked from the list's and joined by the FETCHes, so that they
 * are captured with it. Only copies and events, nothing waits on the host. */
#ifndef SL_BACKEND_CUDA_RUN_COPIES_H
#define SL_BACKEND_CUDA_RUN_COPIES_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* At the beginning of a list that is run whole and in order; `first`: its first FETCH of a whole set, or
 * NULL. The copies for that and for the next one begin. */
cudaError_t sl_cuda_begin_copies(sl_cuda_copies *copies, const sl_cuda_fetch *first, cudaStream_t stream);
/* A FETCH: what is behind it on the stream finds the weights in the buffer. Begins the next one's copies. */
cudaError_t sl_cuda_finish_copies(sl_cuda_copies *copies, const sl_cuda_fetch *fetch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
