/* Operands of matrix instructions. */
#ifndef SL_TESTS_EMULATION_PTX_MATRIX_H
#define SL_TESTS_EMULATION_PTX_MATRIX_H

#include "ptx.h"

/* A type of products' factors. Factors of floating-point types are exact in f32, and so are their products:
 * only sums round. */
struct ptx_factor {
    int bytes;
    bool integer, is_signed;
    ptx_format format;
};

/* False: no such factors. */
static inline bool ptx_find_factor(const ptx_type *type, ptx_factor *factor) {
    static const struct {
        const char *name;
        ptx_factor factor;
    } ROWS[] = {
        {"f16", {2, false, true, PTX_FORMAT_F16}},
        {"bf16", {2, false, true, PTX_FORMAT_BF16}},
        {"tf32", {4, false, true, PTX_FORMAT_TF32}},
        {"e4m3", {1, false, true, PTX_FORMAT_E4M3}},
        {"e5m2", {1, false, true, PTX_FORMAT_E5M2}},
        {"s8", {1, true, true, {}}},
        {"u8", {1, true, false, {}}},
    };
    for (const auto &row : ROWS) {
        if (ptx_is(type, row.name)) {
            *factor = row.factor;
            return true;
        }
    }
    return false;
}

/* `bytes` bytes of factors as floats, which hold integers of eight bits and sums of 32 of their products
 * exactly. */
static inline void ptx_factors(const ptx_factor &factor, const unsigned char *from, uint32_t bytes,
                               float *to) {
    const uint32_t count = bytes / (uint32_t)factor.bytes;
    if (factor.integer) {
        for (uint32_t i = 0; i < count; i++) {
            to[i] = factor.is_signed ? (float)(int8_t)from[i] : (float)from[i];
        }
    } else if (factor.bytes == 2) {
        const bool is_bf16 = factor.format.exponent_bits == 8;
        for (uint32_t i = 0; i < count; i++) {
            uint16_t bits;
            memcpy(&bits, from + 2 * i, sizeof bits);
            to[i] = is_bf16 ? ptx_from_bf16(bits) : ptx_from_f16(bits);
        }
    } else {
        for (uint32_t i = 0; i < count; i++) {
            uint32_t bits = 0;
            memcpy(&bits, from + i * (uint32_t)factor.bytes, (size_t)factor.bytes);
            to[i] = ptx_widen(factor.bytes == 4 ? bits >> 13 : bits, factor.format);
        }
    }
}

/* sums[rows][columns] = a[rows][depth] b[depth][columns]; columns: a multiple of 8. Added in double, so that
 * the order does not matter, as it does not on the device: kernels of one class may have columns of one
 * product in different places. The device also cuts off where this rounds. */
static inline void ptx_multiply(const float *a, const float *b, float *sums, const uint32_t (&sizes)[3]) {
    const uint32_t rows = sizes[0], columns = sizes[1], depth = sizes[2];
    for (uint32_t m = 0; m < rows; m++) {
        for (uint32_t n = 0; n < columns; n += 8) {
            double sum[8] = {};
            for (uint32_t k = 0; k < depth; k++) {
                const double factor = a[m * depth + k];
                for (uint32_t i = 0; i < 8; i++) {
                    sum[i] += factor * b[k * columns + n + i];
                }
            }
            for (uint32_t i = 0; i < 8; i++) {
                sums[m * columns + n + i] = (float)sum[i];
            }
        }
    }
}

#endif
