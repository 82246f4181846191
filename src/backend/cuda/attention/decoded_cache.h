/* Keys and values of q8_0 and fp8, decoded to f16 for the kernels that read 16-bit caches: those of one
 * layer, of the step's sequences, in scratch. Between mma.cu, which launches, and decoded_cache.cu.
 *
 * Decoding is what the kernels of class "TYPE:f16/..." do with what they read, so the bits are theirs. It
 * pays where many rows read the same keys. */
#ifndef SL_BACKEND_CUDA_ATTENTION_DECODED_CACHE_H
#define SL_BACKEND_CUDA_ATTENTION_DECODED_CACHE_H

#include "backend/cuda/cuda.h"

/* The scratch: pages of as many sequence slots as fit, and a page table for them. With more slots than that
 * there are several rounds, each of a copy and the launch that reads it. */
typedef struct sl_decoded_cache {
    int32_t slots, rounds; /* slots: of a round */
    uint64_t page_bytes, values;
    uint64_t table, bytes; /* where the table begins, and all */
} sl_decoded_cache;

/* Which spans a launch takes: those of slots [first, first + count); count is 0: all. */
typedef struct sl_decoded_slots {
    int32_t first, count;
} sl_decoded_slots;

#ifdef __CUDACC__
__host__ __device__
#endif
    static inline bool
    sl_decoded_takes(const sl_decoded_slots *slots, int32_t slot) {
    return slots->count == 0 || (slot >= slots->first && slot - slots->first < slots->count);
}

/* rounds is 0 where a single sequence does not fit, or too few do. */
sl_decoded_cache sl_decoded_cache_of(const sl_cache_group *group, const sl_limits *limits);

/* Copies what the rows of the spans in `slots` see; *context becomes one whose cache that is. single: spans
 * of one row too. memory: sl_decoded_cache.bytes at a multiple of 256. */
typedef struct sl_decoded_args {
    sl_cache_place place;
    sl_decoded_slots slots;
    bool single;
} sl_decoded_args;
cudaError_t sl_decode_cache(sl_cuda_context *context, const sl_cuda_op *op, const sl_decoded_args *args,
                            unsigned char *memory, cudaStream_t stream);

#endif
