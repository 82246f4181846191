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
    {"Intel(R) Xeon(R) Processor", "amx", "avx2", "q8_0", 0.3564, 4.0, 2.53, 6.1},
    {"Intel(R) Xeon(R) Processor", "amx", "avx2", "q4_k", 0.4945, 1.3, 2.11, 3.3},
    {"Intel(R) Xeon(R) Processor", "amx", "avx512", "q8_0", 0.4163, 2.3, 7.65, 4.8},
    {"Intel(R) Xeon(R) Processor", "amx", "avx512", "q4_k", 0.4253, 2.4, 4.41, 5.1},
    {"Intel(R) Xeon(R) Processor", "amx", "amx", "q8_0", 0.0697, 1.5, 10.18, 3.4},
    {"Intel(R) Xeon(R) Processor", "amx", "amx", "q4_k", 0.0646, 2.9, 5.32, 5.1},
};

#endif
