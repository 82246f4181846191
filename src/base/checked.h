/* Overflow-checked arithmetic: every size that a file or a request declares goes through here before it is used.
 * Each function returns false, leaving *result undefined, when the true result does not fit. */
#ifndef SL_BASE_CHECKED_H
#define SL_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool sl_add_u64(uint64_t a, uint64_t b, uint64_t *result) {
    return !__builtin_add_overflow(a, b, result);
}

static inline bool sl_mul_u64(uint64_t a, uint64_t b, uint64_t *result) {
    return !__builtin_mul_overflow(a, b, result);
}

/* Rounds up to a multiple of `alignment`, which must be a power of two. */
static inline bool sl_align_u64(uint64_t value, uint64_t alignment, uint64_t *result) {
    if (!sl_add_u64(value, alignment - 1, result)) {
        return false;
    }
    *result &= ~(alignment - 1);
    return true;
}

/* Is [offset, offset + size) inside [0, limit)? */
static inline bool sl_range_inside(uint64_t offset, uint64_t size, uint64_t limit) {
    return offset <= limit && size <= limit - offset;
}

static inline bool sl_is_power_of_two(uint64_t value) {
    return value != 0 && (value & (value - 1)) == 0;
}

#endif
