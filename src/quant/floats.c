/* Types without blocks: f32, f16, bf16, fp8. */
#include "quant/blocks.h"
#include "quant/codec.h"

#include <string.h>

void sl_decode_f32(const void *blocks, float *values, uint64_t count) {
    memcpy(values, blocks, count * sizeof(float));
}

void sl_encode_f32(const float *values, void *blocks, uint64_t count) {
    memcpy(blocks, values, count * sizeof(float));
}

void sl_decode_f16(const void *blocks, float *values, uint64_t count) {
    const sl_block_f16 *halves = blocks;
    for (uint64_t i = 0; i < count; i++) {
        values[i] = sl_f16_to_f32(halves[i].value);
    }
}

void sl_encode_f16(const float *values, void *blocks, uint64_t count) {
    sl_block_f16 *halves = blocks;
    for (uint64_t i = 0; i < count; i++) {
        halves[i].value = sl_f32_to_f16(values[i]);
    }
}

void sl_decode_bf16(const void *blocks, float *values, uint64_t count) {
    const sl_block_bf16 *halves = blocks;
    for (uint64_t i = 0; i < count; i++) {
        values[i] = sl_bf16_to_f32(halves[i].value);
    }
}

void sl_encode_bf16(const float *values, void *blocks, uint64_t count) {
    sl_block_bf16 *halves = blocks;
    for (uint64_t i = 0; i < count; i++) {
        halves[i].value = sl_f32_to_bf16(values[i]);
    }
}

void sl_decode_fp8(const void *blocks, float *values, uint64_t count) {
    const uint8_t *codes = blocks;
    for (uint64_t i = 0; i < count; i++) {
        values[i] = sl_e4m3_to_f32(codes[i]);
    }
}

void sl_encode_fp8(const float *values, void *blocks, uint64_t count) {
    uint8_t *codes = blocks;
    for (uint64_t i = 0; i < count; i++) {
        codes[i] = sl_f32_to_e4m3(values[i]);
    }
}
