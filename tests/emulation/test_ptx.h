/* What the tests of the PTX interpreter share. */
#ifndef SL_TESTS_EMULATION_TEST_PTX_H
#define SL_TESTS_EMULATION_TEST_PTX_H

#include "grid.h"

#include <algorithm>
#include <initializer_list>
#include <stdio.h>
#include <string.h>

/* A kernel, run by one cluster of `blocks` blocks; report: what must be said when it goes wrong, or NULL. */
struct test_case {
    const char *name;
    void (*kernel)();
    uint32_t threads, blocks;
    const char *report;
};

extern const test_case test_matrix_cases[]; /* test_ptx_matrix.cc */
extern const size_t test_matrix_count;

extern int test_passed, test_failed;
#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition) && test_failed++ < 20) {                                                            \
            printf("%s:%d: %s (thread %u)\n", __FILE__, __LINE__, #condition, emu_self()->index);            \
        }                                                                                                    \
    } while (0)

static inline uint32_t test_random() {
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return state >> 8 << 16 ^ state >> 4;
}

/* ---- asm statements ---- */

template <typename TYPE> static emu_operand out(TYPE &variable) {
    return {"=", &variable, sizeof variable};
}
/* A temporary lives until the statement's end. */
template <typename TYPE> static emu_operand in(const TYPE &value) {
    return {"", (void *)&value, sizeof value};
}

static inline void ptx(const char *text, std::initializer_list<emu_operand> operands) {
    emu_operand list[160];
    std::copy(operands.begin(), operands.end(), list);
    emu_asm(text, list, 0, (int)operands.size());
}

#endif
