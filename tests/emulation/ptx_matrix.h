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
    } else if (factor.bytes == 1) {
        static float values[2][256]; /* of formats of eight bits, by whether they have an infinity */
        float *table = values[factor.format.has_infinity];
        for (uint32_t bits = 0; bits < 256 && table[255] == 0; bits++) { /* all ones: NaN */
            table[bits] = ptx_widen(bits, factor.format);
        }
        for (uint32_t i = 0; i < count; i++) {
            to[i] = table[from[i]];
        }
    } else {
        for (uint32_t i = 0; i < count; i++) {
            uint32_t bits;
            memcpy(&bits, from + 4 * i, sizeof bits);
            to[i] = ptx_widen(bits >> 13, factor.format);
        }
    }
}

/* sums[rows][columns] = a[rows][depth] b[depth][columns]; columns: a multiple of 8. Added in double, so that
 * the order does not matter, as it does not on the device: kernels of one class may have columns of one
 * product in different places. The device also cuts off where this rounds. */
static inline void ptx_multiply(const float *a, const float *b, float *sums, const uint32_t (&sizes)[3]) {
    typedef double four __attribute__((vector_size(32)));
    typedef float four_floats __attribute__((vector_size(16)));
    enum { DEPTH = 32 };
    const uint32_t rows = sizes[0], columns = sizes[1], depth = sizes[2];
    four block[DEPTH][2];
    for (uint32_t n = 0; n < columns; n += 8) {
        for (uint32_t k = 0; k < depth; k++) {
            four_floats halves[2];
            memcpy(halves, b + k * columns + n, sizeof halves);
            block[k][0] = __builtin_convertvector(halves[0], four);
            block[k][1] = __builtin_convertvector(halves[1], four);
        }
        for (uint32_t m = 0; m < rows; m++) {
            four low = {}, high = {};
            for (uint32_t k = 0; k < depth; k++) {
                const double factor = a[m * depth + k];
                low += factor * block[k][0];
                high += factor * block[k][1];
            }
            const four_floats halves[2] = {__builtin_convertvector(low, four_floats),
                                           __builtin_convertvector(high, four_floats)};
            memcpy(sums + m * columns + n, halves, sizeof halves);
        }
    }
}

#endif
