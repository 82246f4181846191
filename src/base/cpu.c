#define _GNU_SOURCE
#include "base/cpu.h"

#include <sched.h>
#include <string.h>

static const char *const names[SL_ISA_COUNT] = {"plain", "avx2", "avx512"};

sl_isa sl_cpu_isa(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        return SL_ISA_PLAIN;
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16")) {
        return SL_ISA_AVX512;
    }
    return SL_ISA_AVX2;
#else
    return SL_ISA_PLAIN;
#endif
}

const char *sl_isa_name(sl_isa isa) {
    return (unsigned)isa < SL_ISA_COUNT ? names[isa] : "unknown";
}

int sl_isa_parse(const char *name) {
    for (int i = 0; i < SL_ISA_COUNT; i++) {
        if (strcmp(name, names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

int sl_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int count = CPU_COUNT(&set);
        return count > 0 ? count : 1;
    }
    return 1;
}
