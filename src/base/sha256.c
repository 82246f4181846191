#include "base/sha256.h"

#include <string.h>

/* FIPS 180-4, 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int bits) {
    return x >> bits | x << (32 - bits);
}

static void add_block(uint32_t state[8], const unsigned char *block) {
    uint32_t schedule[64];
    for (int i = 0; i < 16; i++) {
        const unsigned char *at = block + 4 * i;
        schedule[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    }
    for (int i = 16; i < 64; i++) {
        const uint32_t x = schedule[i - 15], y = schedule[i - 2];
        schedule[i] = schedule[i - 16] + (rotate(x, 7) ^ rotate(x, 18) ^ x >> 3) + schedule[i - 7] +
                      (rotate(y, 17) ^ rotate(y, 19) ^ y >> 10);
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; i++) {
        const uint32_t first = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) +
                               constants[i] + schedule[i];
        const uint32_t second =
            (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + first;
        d = c;
        c = b;
        b = a;
        a = first + second;
    }
    const uint32_t added[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++) {
        state[i] += added[i];
    }
}

void sl_sha256_begin(sl_sha256 *hash) {
    /* The same of the square roots of the first 8 primes. */
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(hash->state, initial, sizeof initial);
    hash->length = 0;
}

void sl_sha256_add(sl_sha256 *hash, const void *data, size_t length) {
    const unsigned char *at = data;
    size_t held = (size_t)(hash->length % sizeof hash->block);
    hash->length += length;
    while (length > 0) {
        size_t taken = sizeof hash->block - held < length ? sizeof hash->block - held : length;
        memcpy(hash->block + held, at, taken);
        held += taken;
        at += taken;
        length -= taken;
        if (held == sizeof hash->block) {
            add_block(hash->state, hash->block);
            held = 0;
        }
    }
}

void sl_sha256_end(sl_sha256 *hash, sl_digest *digest) {
    const uint64_t bits = hash->length * 8;
    static const unsigned char padding[64] = {0x80};
    unsigned char length[8];
    for (int i = 0; i < 8; i++) {
        length[i] = (unsigned char)(bits >> (56 - 8 * i));
    }
    const size_t held = (size_t)(hash->length % sizeof hash->block);
    sl_sha256_add(hash, padding, held < 56 ? 56 - held : 120 - held);
    sl_sha256_add(hash, length, sizeof length);
    for (int i = 0; i < SL_DIGEST_BYTES; i++) {
        digest->bytes[i] = (unsigned char)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
    }
}

void sl_digest_text(const sl_digest *digest, char text[SL_DIGEST_TEXT]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < SL_DIGEST_BYTES; i++) {
        text[2 * i] = digits[digest->bytes[i] >> 4];
        text[2 * i + 1] = digits[digest->bytes[i] & 15];
    }
    text[2 * SL_DIGEST_BYTES] = 0;
}
