/* What this processor can do at most: loops of each tier that do nothing but its arithmetic, on registers or
 * the first cache, and a read of memory. Profiles and benches are held to it. */
#ifndef SL_BACKEND_CPU_PEAK_H
#define SL_BACKEND_CPU_PEAK_H

#include "backend/backend.h"
#include "base/pool.h"

enum { SL_CPU_PEAK_SINK = 64 };

/* Some microseconds of products by one thread; returns how many operations they were. Their sum goes to
 * `sink`, of SL_CPU_PEAK_SINK bytes, so that no compiler leaves them out. */
typedef double (*sl_cpu_peak_loop)(void *sink);

/* How a tier's kernels compute products. Where it has no instruction for BF16 they are those of f32. NULL: as
 * the tier below it. */
typedef struct sl_cpu_peak {
    sl_cpu_peak_loop loops[SL_ARITHMETICS];
} sl_cpu_peak;

extern const sl_cpu_peak sl_cpu_peak_plain;
#if defined(__x86_64__)
extern const sl_cpu_peak sl_cpu_peak_avx2;
extern const sl_cpu_peak sl_cpu_peak_avxvnni;
extern const sl_cpu_peak sl_cpu_peak_avx512;
extern const sl_cpu_peak sl_cpu_peak_amx;
#endif

/* `isa` is not above the machine's, in both. */
sl_cpu_peak_loop sl_cpu_peak_loop_of(sl_isa isa, sl_arithmetic arithmetic);
/* What all threads do together, the best of some runs of milliseconds, and how fast memory is read that the
 * caches do not hold. It is allocated for that time; where it would be more than `room` bytes, that rate is
 * 0. SL_ERR_NOMEM. */
int sl_cpu_peak_rates(sl_pool *pool, sl_isa isa, uint64_t room, sl_rates *rates, sl_error *error);

/* A value that the compiler has to take as unknown and changed, so that a product is not moved out of its
 * loop; of a vector it stays in its register. */
#define SL_PEAK_VECTOR(value) __asm__("" : "+v"(value))
#define SL_PEAK_MEMORY(pointer) __asm__ volatile("" : : "r"(pointer) : "memory")

#endif
