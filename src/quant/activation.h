/* What activations are quantised to.
 *
 * q8_32: activations for int8 matrix products, quantised in groups of 32 consecutive elements with one f32
 * scale each.
 *
 * A row of `width` elements (a multiple of 32) is three planes, one after the other, so that a kernel streams
 * the integers without gaps:
 *
 *     offset 0                  int8_t  values[width]        -127..127
 *     offset width              float   scales[width / 32]   element i ~ scales[i / 32] * values[i]
 *     offset width + width / 8  int32_t sums[width / 32]     sum of the group's 32 values
 *
 * A row takes width / 4 * 5 bytes; rows follow each other without padding, and a buffer aligned to 4 bytes
 * keeps every plane of every row so. The sums serve weight types with an offset or a minimum: sum((q - 8) *
 * v) = sum(q * v) - 8 * sum(v).
 *
 * The numeric definition, which every kernel that writes this format keeps bit for bit; with m the largest
 * |x| of a group: m not finite (any element is infinite or NaN)   scale = quiet NaN 0x7fc00000, values and
 * sum 0: the products show it m < 2^-100                                      scale = +0, values and sum 0
 *     else                                            scale = m / 127, values[i] = nearest_even(x[i] * (127 /
 * m)) in f32 with each operation rounded to nearest even by itself. The small groups that count as zero keep
 * 127 / m from overflowing and scales from being subnormal, so that flush-to-zero modes change nothing. A
 * step errs by at most scale / 2 (and the rounding of the three float operations, below 2^-15 of a scale). */
#ifndef SL_QUANT_ACTIVATION_H
#define SL_QUANT_ACTIVATION_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SL_Q8_32_GROUP = 32 };

#define SL_Q8_32_ZERO_BELOW 7.8886090522101181e-31f /* 2^-100 */

/* The planes of one row, or of a part of one: `width` elements from a multiple of 32 on. Borrowed. */
typedef struct sl_q8_32 {
    int8_t *values;
    float *scales;
    int32_t *sums;
} sl_q8_32;

/* Bytes of `rows` rows; false when width is no multiple of 32 or the product overflows. */
bool sl_q8_32_bytes(uint64_t rows, uint64_t width, uint64_t *bytes);

/* Planes of row `row` in a buffer (aligned to 4) of rows of `width` elements; sizes as sl_q8_32_bytes
 * accepted them. */
static inline sl_q8_32 sl_q8_32_row(void *buffer, uint64_t width, uint64_t row) {
    char *start = (char *)buffer + row * (width / 4 * 5);
    sl_q8_32 planes = {(int8_t *)start, (float *)(void *)(start + width),
                       (int32_t *)(void *)(start + width + width / 8)};
    return planes;
}

/* The reference encode and decode of `width` elements, a multiple of 32. */
void sl_q8_32_encode(const float *values, sl_q8_32 row, uint64_t width);
void sl_q8_32_decode(sl_q8_32 row, float *values, uint64_t width);

/* ---- e4m3_128 and q8_256 ---- */

/* Activations for products on 8-bit tensor cores: codes with one f32 scale for each group of columns, 128
 * with E4M3 codes and 256 with int8 ones. A row of `width` elements is two planes:
 *
 *     offset 0        uint8_t codes[padded]         width brought to whole groups; zeros behind the elements
 *     offset padded   float   scales[padded / group], element i ~ scales[i / group] * value of codes[i]
 *
 * and zeros to the next multiple of 16 bytes, so that every row of an aligned buffer begins at one.
 *
 * The numeric definition, which every kernel that writes these formats keeps bit for bit; with m the largest
 * |x| of a group, and L the largest code (448 or 127):
 *     m not finite (any element is infinite or NaN)   scale = quiet NaN 0x7fc00000, codes 0: the products
 * show it m < 2^-100                                      scale = +0, codes 0 else scale = m / L, codes[i] =
 * the code nearest to x[i] * (L / m), ties to the even one, in f32 with each operation rounded to nearest
 * even by itself. A product that rounding took past L has the code of L. An E4M3 code keeps x's sign also
 * when it is zero. */
typedef enum sl_codes { SL_CODES_E4M3_128, SL_CODES_Q8_256 } sl_codes;

enum { SL_E4M3_128_GROUP = 128, SL_Q8_256_GROUP = 256 };
#define SL_E4M3_LARGEST 448.0f

static inline uint64_t sl_codes_group(sl_codes type) {
    return type == SL_CODES_E4M3_128 ? SL_E4M3_128_GROUP : SL_Q8_256_GROUP;
}

/* Of a row of `width` elements, below 2^62: where its scales begin, and all of it. */
static inline uint64_t sl_codes_padded(sl_codes type, uint64_t width) {
    const uint64_t group = sl_codes_group(type);
    return (width + group - 1) / group * group;
}
static inline uint64_t sl_codes_row_bytes(sl_codes type, uint64_t width) {
    const uint64_t padded = sl_codes_padded(type, width);
    return (padded + padded / sl_codes_group(type) * sizeof(float) + 15) / 16 * 16;
}

/* The reference encode and decode. The row (aligned to 4) has room for `stored` elements, of which those from
 * `width` on become zeros. */
void sl_codes_encode(sl_codes type, const float *values, uint64_t width, uint64_t stored, void *row);
void sl_codes_decode(sl_codes type, const void *row, uint64_t stored, float *values, uint64_t width);

#ifdef __cplusplus
}
#endif
#endif
