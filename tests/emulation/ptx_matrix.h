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

/* `bytes` bytes of factors as floats. */
static inline void ptx_factors(const ptx_factor &factor, const unsigned char *from, int bytes, float *to) {
    for (int i = 0; i < bytes / factor.bytes; i++) {
        uint32_t bits = 0;
        memcpy(&bits, from + i * factor.bytes, (size_t)factor.bytes);
        to[i] = ptx_widen(factor.bytes == 4 ? bits >> 13 : bits, factor.format);
    }
}

static inline void ptx_factors(const ptx_factor &factor, const unsigned char *from, int bytes, int32_t *to) {
    for (int i = 0; i < bytes; i++) {
        to[i] = factor.is_signed ? (int32_t)(int8_t)from[i] : (int32_t)from[i];
    }
}

#endif
