/* What the AVX-VNNI tier supplies to matmul_tiles.h: weights are the unsigned operand of vpdpbusd. */
#ifndef SL_BACKEND_CPU_AVXVNNI_DOT_H
#define SL_BACKEND_CPU_AVXVNNI_DOT_H

#include "backend/cpu/avx2/unpack.h"

enum {
    SL_MAIN_ROWS = 6, /* 12 integer sums; the float sums stay in memory */
    SL_MOST_ROWS = 7,
    SL_INT_CHUNK = 1024,
};

SL_ALWAYS_INLINE int32_t unpack_offset(sl_qtype type) {
    return panel_offset(type, 128);
}
SL_ALWAYS_INLINE float unpack_scale(sl_qtype type, int phase) {
    (void)type, (void)phase;
    return 1.0f;
}
SL_ALWAYS_INLINE vi unpack_weights(sl_qtype type, const unsigned char *period, int phase, int quad, int v) {
    return panel_weights(type, 128, period, phase, quad, v);
}

SL_ALWAYS_INLINE int dot_quads(sl_qtype type) {
    (void)type;
    return 1;
}
SL_ALWAYS_INLINE vi dot_start(sl_qtype type, vi start) {
    (void)type;
    return start;
}
SL_ALWAYS_INLINE vi dot_add(sl_qtype type, vi sum, const vi *weights, const vi *x) {
    (void)type;
    return _mm256_dpbusd_avx_epi32(sum, *weights, *x);
}
SL_ALWAYS_INLINE vi dot_end(sl_qtype type, vi sum, vi start) {
    (void)type, (void)start;
    return sum;
}
/* Four bytes in all lanes. In a register: a compiler that broadcasts at each use runs out of load ports. */
SL_ALWAYS_INLINE vi dot_x(const unsigned char *p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    vi x = _mm256_set1_epi32(word);
    __asm__("" : "+x"(x));
    return x;
}

#endif
