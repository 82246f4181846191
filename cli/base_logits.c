/* sluice perplexity: the file of base logits (perplexity.h says what is in it). Written under another name
 * and renamed when it is complete; what is read is checked against its hashes. */
#define _GNU_SOURCE
#include "perplexity.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char MAGIC[8] = "SLUICEKL";
enum { VERSION = 1 };

static uint64_t hash_of(const base_header *header) {
    return hash_words(HASH_START, header, offsetof(base_header, hash) / sizeof(uint32_t));
}

static uint64_t logits_at(const base_header *header) {
    return sizeof *header + (header->windows + 1) * sizeof(uint64_t);
}

/* Of the whole file; false: more than a file can have. */
static bool size_of(const base_header *header, uint64_t *size) {
    uint64_t row, hashes;
    return !__builtin_mul_overflow(header->vocabulary, sizeof(float), &row) &&
           !__builtin_mul_overflow(row, header->rows, size) &&
           !__builtin_mul_overflow(header->windows, sizeof(uint64_t), &hashes) &&
           !__builtin_add_overflow(*size, hashes, size) &&
           !__builtin_add_overflow(*size, sizeof *header + sizeof(uint64_t), size) && *size <= INT64_MAX;
}

static int wrong_file(const char *path, const char *rule) {
    return fail("%s: %s", path, rule);
}

static int write_at(const base_logits *base, uint64_t at, const void *data, size_t bytes) {
    const char *from = data;
    while (bytes > 0) {
        const ssize_t done = pwrite(base->descriptor, from, bytes, (off_t)at);
        if (done == 0 || (done < 0 && errno != EINTR)) {
            return fail("%s: cannot write: %s", base->path, done == 0 ? "no room" : strerror(errno));
        }
        if (done > 0) {
            from += done;
            at += (uint64_t)done;
            bytes -= (size_t)done;
        }
    }
    return DONE;
}

static int read_at(const base_logits *base, uint64_t at, void *data, size_t bytes) {
    char *to = data;
    while (bytes > 0) {
        const ssize_t done = pread(base->descriptor, to, bytes, (off_t)at);
        if (done < 0 && errno != EINTR) {
            return fail("%s: cannot read: %s", base->path, strerror(errno));
        }
        if (done == 0) {
            return wrong_file(base->path, "cut short: it ends before its logits do");
        }
        if (done > 0) {
            to += done;
            at += (uint64_t)done;
            bytes -= (size_t)done;
        }
    }
    return DONE;
}

/* ---- writing ---------------------------------------------------------------------------------------------
 */

int base_check_output(const char *path, bool replace) {
    struct stat status;
    char magic[sizeof MAGIC] = "";
    if (lstat(path, &status) != 0) {
        return errno == ENOENT ? DONE : fail("%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) {
        return wrong_file(path, "is no regular file, and is not written to");
    }
    if (!replace) {
        return wrong_file(path, "is there already, and is replaced only with --force");
    }
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    const bool ours = descriptor >= 0 && read(descriptor, magic, sizeof magic) == sizeof magic &&
                      memcmp(magic, MAGIC, sizeof magic) == 0;
    if (descriptor >= 0) {
        close(descriptor);
    }
    return ours ? DONE : wrong_file(path, "has no base logits in it, so --force does not replace it");
}

int base_create(base_logits *base, const char *path, const base_header *header) {
    uint64_t size;
    base->path = path;
    base->header = *header;
    memcpy(base->header.magic, MAGIC, sizeof MAGIC);
    base->header.version = VERSION;
    base->header.hash = hash_of(&base->header);
    if (!size_of(&base->header, &size)) {
        return wrong_file(path, "more base logits than a file can hold; --limit asks for fewer windows");
    }
    base->hashes = calloc((size_t)header->windows + 1, sizeof *base->hashes);
    if (!base->hashes || asprintf(&base->temporary, "%s.XXXXXX", path) < 0) {
        base->temporary = NULL;
        return fail("perplexity: out of memory");
    }
    base->descriptor = mkostemp(base->temporary, O_CLOEXEC);
    if (base->descriptor < 0) {
        free(base->temporary);
        base->temporary = NULL;
        return fail("%s: cannot create: %s", path, strerror(errno));
    }
    base->opened = true;
    const mode_t mask = umask(0);
    umask(mask);
    if (fchmod(base->descriptor, 0666 & ~mask) != 0) {
        return fail("%s: %s", path, strerror(errno));
    }
    return write_at(base, 0, &base->header, sizeof base->header);
}

int base_write(base_logits *base, uint64_t first, const float *logits, size_t rows) {
    const uint64_t row = base->header.vocabulary * sizeof(float);
    return write_at(base, logits_at(&base->header) + first * row, logits, (size_t)(rows * row));
}

int base_finish(base_logits *base) {
    const size_t windows = (size_t)base->header.windows;
    base->hashes[windows] = hash_words(HASH_START, base->hashes, 2 * windows);
    const int code = write_at(base, sizeof base->header, base->hashes, (windows + 1) * sizeof *base->hashes);
    if (code != DONE) {
        return code;
    }
    if (fsync(base->descriptor) != 0 || rename(base->temporary, base->path) != 0) {
        return fail("%s: cannot write: %s", base->path, strerror(errno));
    }
    free(base->temporary);
    base->temporary = NULL;
    return DONE;
}

/* ---- reading ---------------------------------------------------------------------------------------------
 */

static int check_size(const base_logits *base, uint64_t bytes) {
    uint64_t size;
    if (!size_of(&base->header, &size) || base->header.windows == 0 || base->header.rows == 0) {
        return wrong_file(base->path, "damaged: the sizes in its header are of no file");
    }
    return bytes == size ? DONE
                         : fail("%s: %s: %" PRIu64 " bytes, and its header tells of %" PRIu64, base->path,
                                bytes < size ? "cut short" : "damaged", bytes, size);
}

static int read_hashes(base_logits *base) {
    const size_t windows = (size_t)base->header.windows;
    base->hashes = calloc(windows + 1, sizeof *base->hashes);
    if (!base->hashes) {
        return fail("perplexity: out of memory");
    }
    const int code = read_at(base, sizeof base->header, base->hashes, (windows + 1) * sizeof *base->hashes);
    return code != DONE ? code
           : base->hashes[windows] == hash_words(HASH_START, base->hashes, 2 * windows)
               ? DONE
               : wrong_file(base->path, "damaged: the hashes of its windows are not those that were written");
}

int base_open(base_logits *base, const char *path) {
    struct stat status;
    const base_header *h = &base->header;
    base->path = path;
    base->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (base->descriptor < 0) {
        return fail("%s: %s", path, strerror(errno));
    }
    base->opened = true;
    if (fstat(base->descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
        return wrong_file(path, "is no regular file");
    }
    const uint64_t bytes = (uint64_t)status.st_size;
    if (bytes < sizeof *h) {
        return wrong_file(path, "has no base logits in it; --kl-write makes such a file");
    }
    int code = read_at(base, 0, &base->header, sizeof base->header);
    if (code == DONE && memcmp(h->magic, MAGIC, sizeof MAGIC) != 0) {
        code = wrong_file(path, "has no base logits in it; --kl-write makes such a file");
    } else if (code == DONE && h->version != VERSION) {
        code = fail("%s: version %" PRIu32 " of base logits, and this program reads version %d", path,
                    h->version, VERSION);
    } else if (code == DONE && h->hash != hash_of(h)) {
        code = wrong_file(path, "damaged: its header is not the one that was written");
    }
    code = code == DONE ? check_size(base, bytes) : code;
    return code == DONE ? read_hashes(base) : code;
}

int base_match(const base_logits *base, const base_header *wanted) {
    const base_header *h = &base->header;
    static const char *const scoring[] = {"all", "second-half"};
    if (h->vocabulary != wanted->vocabulary) {
        return fail("%s: base logits of %" PRIu64 " tokens of vocabulary, and the model has %" PRIu64,
                    base->path, h->vocabulary, wanted->vocabulary);
    }
    if (h->second_half != wanted->second_half) {
        return fail("%s: base logits with --scoring %s, which must be the same here", base->path,
                    scoring[h->second_half != 0]);
    }
    if (h->window != wanted->window) {
        return fail("%s: base logits of windows of %" PRIu64 " tokens, which --window %" PRIu64
                    " does not fit",
                    base->path, h->window, wanted->window);
    }
    if (h->windows != wanted->windows) {
        return fail("%s: base logits of %" PRIu64 " windows, and here are %" PRIu64, base->path, h->windows,
                    wanted->windows);
    }
    if (h->rows != wanted->rows || h->tokens != wanted->tokens) {
        return wrong_file(base->path, "base logits of other tokens: of another text or tokenizer");
    }
    return DONE;
}

int base_read(base_logits *base, uint64_t first, float *logits, size_t rows) {
    const uint64_t row = base->header.vocabulary * sizeof(float);
    return read_at(base, logits_at(&base->header) + first * row, logits, (size_t)(rows * row));
}

void base_close(base_logits *base) {
    if (base->opened) {
        close(base->descriptor);
    }
    if (base->temporary) {
        unlink(base->temporary);
    }
    free(base->temporary);
    free(base->hashes);
    *base = (base_logits){0};
}
