/* Weights from the file's bytes to codes and scales in a scratch, as eight-bit products read them.
 *
 * The values are those of the reference decode (quant/codec.h). Of a row's group of columns (128 of E4M3, 256
 * of int8) codes and scale are what sl_codes_encode makes of them (quant/activation.h), bit for bit. */
#ifndef SL_BACKEND_CUDA_LINEAR_NARROW_NARROW_WEIGHTS_H
#define SL_BACKEND_CUDA_LINEAR_NARROW_NARROW_WEIGHTS_H

#include "backend/cuda/linear/narrow/narrow.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of one matrix that become rows [first, first + rows) of the scratch. */
typedef struct sl_narrow_job {
    const unsigned char *from;
    int32_t first, rows;
} sl_narrow_job;

typedef struct sl_narrow_weights {
    sl_narrow_job jobs[SL_LINEAR_SEGMENTS];
    int32_t count;
    sl_qtype type;
    sl_narrow_kind kind;
    int32_t outputs, columns; /* of all jobs' rows; columns: a multiple of the kind's group */
    unsigned char *codes;     /* [outputs][columns], rows code_row_bytes apart; both multiples of 16 */
    uint64_t code_row_bytes;
    float *scales; /* [outputs][columns / group] as sl_narrow_scale_at says, scale_row floats apart */
    uint64_t scale_row;
} sl_narrow_weights;

/* cudaErrorInvalidValue: of a type that narrow_tile.c has no row for. */
cudaError_t sl_narrow_decode(const sl_cuda_context *context, const sl_narrow_weights *weights,
                             cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
