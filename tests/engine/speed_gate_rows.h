/* What tests/engine/speed_gate.c holds a build to: rows that `speed_gate --measure 10` printed, for a quiet
 * moment of a processor. When kernels have become faster, or a processor has no row: measure anew, and put
 * the lines in the place of those with the same processor, tier and type.
 *
 *     build/release/tests/engine/speed_gate --measure 10
 *
 * share: of a prompt of 512, its products a second over the peak of int8 products, both of one thread; ratio:
 * a prompt's speed with chunks of 512 over that with chunks of 1. Each is the median of ten runs. noise: of
 * these ten, how far the one furthest from the median lay below or above it, in percent. It has to stay well
 * below the room of the gate. */
#ifndef SLUICE_TESTS_SPEED_GATE_ROWS_H
#define SLUICE_TESTS_SPEED_GATE_ROWS_H

typedef struct gate_row {
    const char *processor; /* as /proc/cpuinfo has it */
    const char *best;      /* its best tier: names of virtual machines say little */
    const char *tier, *type;
    double share, share_noise, ratio, ratio_noise;
} gate_row;

static const gate_row ROWS[] = {
    {"Intel(R) Xeon(R) Processor", "amx", "avx2", "q8_0", 0.3023, 2.4, 2.47, 1.2},
    {"Intel(R) Xeon(R) Processor", "amx", "avx2", "q4_k", 0.3539, 3.4, 1.89, 8.4},
    {"Intel(R) Xeon(R) Processor", "amx", "avx512", "q8_0", 0.3376, 5.1, 6.63, 2.8},
    {"Intel(R) Xeon(R) Processor", "amx", "avx512", "q4_k", 0.2873, 1.5, 3.33, 4.5},
    {"Intel(R) Xeon(R) Processor", "amx", "amx", "q8_0", 0.0434, 2.4, 6.69, 3.6},
    {"Intel(R) Xeon(R) Processor", "amx", "amx", "q4_k", 0.0366, 1.6, 3.17, 4.1},
};

#endif
