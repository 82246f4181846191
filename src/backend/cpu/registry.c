/* The list of all CPU kernels. */
#include "backend/cpu/cpu.h"

static int32_t append(const sl_cpu_kernel *table, const sl_kernel **kernels, int32_t count) {
    for (; table->kernel.name && count < SL_CPU_KERNELS_MAX; table++) {
        kernels[count++] = &table->kernel;
    }
    return count;
}

int32_t sl_cpu_registry(const sl_kernel **kernels) {
    int32_t count = 0;
#if defined(__x86_64__)
    count = append(sl_cpu_kernels_amx, kernels, count);
    count = append(sl_cpu_kernels_avx512, kernels, count);
    count = append(sl_cpu_kernels_avxvnni, kernels, count);
    count = append(sl_cpu_kernels_avx2, kernels, count);
#endif
    return append(sl_cpu_kernels_plain, kernels, count);
}

/* Static texts, because a plan keeps them. */
static const char *const isa_reasons[SL_ISA_COUNT][SL_ISA_COUNT] = {
    [SL_ISA_AVX2] = {[SL_ISA_PLAIN] = "needs avx2; this machine (or --isa) has plain"},
    [SL_ISA_AVXVNNI] = {[SL_ISA_PLAIN] = "needs avxvnni; this machine (or --isa) has plain",
                        [SL_ISA_AVX2] = "needs avxvnni; this machine (or --isa) has avx2"},
    [SL_ISA_AVX512] = {[SL_ISA_PLAIN] = "needs avx512; this machine (or --isa) has plain",
                       [SL_ISA_AVX2] = "needs avx512; this machine (or --isa) has avx2",
                       [SL_ISA_AVXVNNI] = "needs avx512; this machine (or --isa) has avxvnni"},
    [SL_ISA_AMX] = {[SL_ISA_PLAIN] = "needs amx; this machine (or --isa) has plain",
                    [SL_ISA_AVX2] = "needs amx; this machine (or --isa) has avx2",
                    [SL_ISA_AVXVNNI] = "needs amx; this machine (or --isa) has avxvnni",
                    [SL_ISA_AVX512] = "needs amx; this machine (or --isa) has avx512"},
};

const char *sl_cpu_needs(const sl_kernel_query *query, sl_isa isa) {
    const char *reason = isa_reasons[isa][query->backend->options.isa];
    return reason || sl_cpu_has(isa) ? reason : "needs avxvnni; this machine has none";
}
