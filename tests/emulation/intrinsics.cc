/* Intrinsics of device.h that are no one-liners. */
#include "device.h"

#include <time.h>

unsigned __ballot_sync(unsigned mask, int predicate) {
    const unsigned char mine = predicate != 0;
    const unsigned char *all = (const unsigned char *)emu_lanes(mask, &mine, sizeof mine, "__ballot_sync");
    unsigned result = 0;
    for (unsigned lane = 0; lane < EMU_WARP; lane++) {
        result |= (unsigned)all[lane] << lane;
    }
    return result;
}

unsigned __match_any_sync(unsigned mask, uint64_t value) {
    const uint64_t *all = (const uint64_t *)emu_lanes(mask, &value, sizeof value, "__match_any_sync");
    unsigned result = 0;
    for (unsigned lane = 0; lane < EMU_WARP; lane++) {
        result |= (unsigned)((mask >> lane & 1u) && all[lane] == value) << lane;
    }
    return result;
}

int __syncthreads_count(int predicate) {
    return (int)emu_block_count(predicate != 0);
}

int __syncthreads_or(int predicate) {
    return emu_block_count(predicate != 0) > 0;
}

int __syncthreads_and(int predicate) {
    return emu_block_count(predicate == 0) == 0;
}

long long clock64(void) {
    return (long long)emu_time();
}

unsigned __brev(unsigned x) {
    unsigned result = 0;
    for (int i = 0; i < 32; i++) {
        result |= (x >> i & 1u) << (31 - i);
    }
    return result;
}

/* PTX ISA, prmt, default mode: nibble 3 of a selector digit repeats the byte's sign. */
unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned digit = selector >> 4 * i & 15u;
        const unsigned byte = (unsigned)(bytes >> 8 * (digit & 7u)) & 255u;
        result |= (digit & 8u ? (byte & 128u ? 255u : 0u) : byte) << 8 * i;
    }
    return result;
}

int __dp4a(int a, int b, int c) {
    unsigned sum = (unsigned)c;
    for (int i = 0; i < 4; i++) {
        sum += (unsigned)((int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i));
    }
    return (int)sum;
}

unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; i++) {
        c += (a >> 8 * i & 255u) * (b >> 8 * i & 255u);
    }
    return c;
}

template <typename JOIN> static inline unsigned by_bytes(unsigned a, unsigned b, JOIN join) {
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        result |= (unsigned)(uint8_t)join((uint8_t)(a >> 8 * i), (uint8_t)(b >> 8 * i)) << 8 * i;
    }
    return result;
}

unsigned __vsub4(unsigned a, unsigned b) {
    return by_bytes(a, b, [](uint8_t x, uint8_t y) { return x - y; });
}

unsigned __vadd4(unsigned a, unsigned b) {
    return by_bytes(a, b, [](uint8_t x, uint8_t y) { return x + y; });
}

unsigned __vsubss4(unsigned a, unsigned b) {
    return by_bytes(a, b, [](uint8_t x, uint8_t y) { return max(-128, min(127, (int8_t)x - (int8_t)y)); });
}

unsigned __vcmpeq4(unsigned a, unsigned b) {
    return by_bytes(a, b, [](uint8_t x, uint8_t y) { return x == y ? 255 : 0; });
}

unsigned __vcmpne4(unsigned a, unsigned b) {
    return by_bytes(a, b, [](uint8_t x, uint8_t y) { return x != y ? 255 : 0; });
}
