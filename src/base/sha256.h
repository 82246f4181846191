/* SHA-256 (FIPS 180-4): names for contents of which no two may be taken for each other, even when somebody
 * tries. */
#ifndef SL_BASE_SHA256_H
#define SL_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SL_DIGEST_BYTES = 32, SL_DIGEST_TEXT = 2 * SL_DIGEST_BYTES + 1 };

typedef struct sl_digest {
    unsigned char bytes[SL_DIGEST_BYTES];
} sl_digest;

typedef struct sl_sha256 {
    uint32_t state[8];
    uint64_t length; /* bytes so far */
    unsigned char block[64];
} sl_sha256;

void sl_sha256_begin(sl_sha256 *hash);
void sl_sha256_add(sl_sha256 *hash, const void *data, size_t length);
/* `hash` must be begun anew afterwards. */
void sl_sha256_end(sl_sha256 *hash, sl_digest *digest);

/* Lower-case hexadecimal digits and a NUL. */
void sl_digest_text(const sl_digest *digest, char text[SL_DIGEST_TEXT]);

#endif
