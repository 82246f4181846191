/* Reference decode and encode of every type; only qtype.c, which hands them out, and their own files
 * need this.
 *
 * Decode gives the bits of ggml's dequantize_row_*, encode those of its quantize_row_*_ref (f32, f16 and
 * bf16: those of the plain conversion; iq4_nl and mxfp4 but for what nonlinear.c says; IQ1, IQ2 and IQ3 have
 * an encoder of their own; types without a GGUF number are not ggml's, blocks.h defines them), on every
 * machine: no step is left to the compiler's or the libc's choice. Finite values only are promised to come
 * back near; a block with infinities or NaNs encodes to some block without undefined behaviour. */
#ifndef SL_QUANT_CODEC_H
#define SL_QUANT_CODEC_H

#include <stdint.h>

#define SL_QTYPE(ID, name, gguf_type, block_elements, block_bytes)                                           \
    void sl_decode_##name(const void *blocks, float *values, uint64_t count);                                \
    void sl_encode_##name(const float *values, void *blocks, uint64_t count);
#include "quant/qtypes.def"
#undef SL_QTYPE
void sl_decode_fp8(const void *blocks, float *values, uint64_t count);
void sl_encode_fp8(const float *values, void *blocks, uint64_t count);

#endif
