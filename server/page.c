/* GET /: the page. It is open, as there is nothing secret in it; what it asks for needs a key as ever. */
#include "page.h"
#include "server.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HASH = 32 };

/* Of the bytes that are served, computed once; `failed`: they are not known. */
static struct {
    pthread_once_t once;
    bool failed;
    char etag[2 * HASH + 3];
    char policy[512];
} facts = {.once = PTHREAD_ONCE_INIT};

/* "sha256-..." of a part, as Content-Security-Policy writes it. False: no memory. */
static bool write_hash(const page_part *part, char *out, size_t size) {
    unsigned char hash[HASH];
    const gnutls_datum_t bytes = {hash, sizeof hash};
    gnutls_datum_t letters = {NULL, 0};
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, PAGE_TEXT + part->at, part->length, hash) < 0 ||
        gnutls_base64_encode2(&bytes, &letters) < 0) {
        return false;
    }
    snprintf(out, size, "sha256-%.*s", (int)letters.size, (const char *)letters.data);
    gnutls_free(letters.data);
    return true;
}

static void find_facts(void) {
    unsigned char hash[HASH];
    char script[64], style[64];
    facts.failed = !write_hash(&PAGE_SCRIPT, script, sizeof script) ||
                   !write_hash(&PAGE_STYLE, style, sizeof style) ||
                   gnutls_hash_fast(GNUTLS_DIG_SHA256, PAGE_TEXT, PAGE_LENGTH, hash) < 0;
    if (facts.failed) {
        return;
    }
    /* Only the one script and the one style run, whatever a model or a file may say; trusted types that
     * nobody can make leave no way to turn a text into markup. */
    snprintf(facts.policy, sizeof facts.policy,
             "default-src 'none'; script-src '%s'; style-src '%s'; connect-src 'self'; img-src data: blob:; "
             "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
             "require-trusted-types-for 'script'; trusted-types 'none'",
             script, style);
    char *at = facts.etag;
    *at++ = '"';
    for (size_t i = 0; i < HASH; i++, at += 2) {
        snprintf(at, 3, "%02x", hash[i]);
    }
    memcpy(at, "\"", 2);
}

/* RFC 9110, 13.1.2: a list of tags, compared without their W/, or an asterisk. No tag of ours has a comma in
 * it. */
static bool is_known(const char *tags) {
    while (tags && *tags) {
        tags += strspn(tags, ", \t");
        size_t length = strcspn(tags, ",");
        const char *next = tags + length;
        while (length && (tags[length - 1] == ' ' || tags[length - 1] == '\t')) {
            length--;
        }
        if (length == 1 && *tags == '*') {
            return true;
        }
        if (length > 2 && strncmp(tags, "W/", 2) == 0) {
            tags += 2;
            length -= 2;
        }
        if (length == strlen(facts.etag) && memcmp(tags, facts.etag, length) == 0) {
            return true;
        }
        tags = next;
    }
    return false;
}

static void page(exchange *x, void *context) {
    (void)context;
    pthread_once(&facts.once, find_facts);
    const bool known = !facts.failed && is_known(exchange_header(x, "If-None-Match"));
    const size_t length = facts.failed || known ? 0 : PAGE_LENGTH;
    char *body = facts.failed ? NULL : malloc(length + 1);
    if (body) {
        memcpy(body, PAGE_TEXT, length);
        exchange_add_header(x, "Content-Security-Policy", facts.policy);
        exchange_add_header(x, "X-Content-Type-Options", "nosniff");
        exchange_add_header(x, "Referrer-Policy", "no-referrer");
        exchange_add_header(x, "Cache-Control", "no-cache");
        exchange_add_header(x, "ETag", facts.etag);
    }
    exchange_reply(x, known ? 304 : 200, "text/html; charset=utf-8", body, length);
}

static const route ROUTES[] = {
    {"GET", "/", true, true, page, NULL},
};
const route_table PAGE_ROUTES = {ROUTES, sizeof ROUTES / sizeof *ROUTES};
