/* SHA-256 against the examples that NIST publishes for FIPS 180-4 (and its "one million a" and empty text).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/sha256.h"

#include <string.h>

static void check(const char *text, size_t repeated, size_t piece, const char *expected) {
    sl_sha256 hash;
    sl_sha256_begin(&hash);
    const size_t length = strlen(text);
    for (size_t i = 0; i < repeated; i++) {
        for (size_t at = 0; at < length; at += piece) {
            sl_sha256_add(&hash, text + at, length - at < piece ? length - at : piece);
        }
    }
    sl_digest digest;
    sl_sha256_end(&hash, &digest);
    char got[SL_DIGEST_TEXT];
    sl_digest_text(&digest, got);
    assert_string_equal(got, expected);
}

static void published_examples(void **state) {
    (void)state;
    for (size_t piece = 1; piece <= 128; piece += 7) {
        check("", 1, piece, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        check("abc", 1, piece, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        check("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1, piece,
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
        check("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
              "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
              1, piece, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    }
    check("aaaaaaaaaa", 100000, 10, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(published_examples)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
