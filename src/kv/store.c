#define _GNU_SOURCE
#include "kv/store.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A file: this, the parts in order without gaps, and a checksum of all that as uint64_t. Numbers as the
 * machine has them: the fingerprint tells machines apart. */
typedef struct header {
    char magic[8];
    uint32_t version, parts;
    sl_digest fingerprint, parent;
    int32_t tokens[SL_PAGE_TOKENS];
    uint64_t bytes; /* of the file */
} header;

static const char MAGIC[8] = {'s', 'l', 'u', 'i', 'c', 'e', 'p', 'g'};
enum {
    VERSION = 1,
    HEADER_BYTES = 384, /* parts begin at a multiple of 64 */
    OWN_FOLDER = 0,
    STALE_SECONDS = 3600, /* a temporary file that old was left by a process that ended */
    NANOSECONDS = 1000000000,
};
static_assert(sizeof(header) <= HEADER_BYTES, "the header fits");
static const char TEMPORARY[] = "new-";

/* A file that is known of. */
typedef struct entry {
    sl_digest name;
    int32_t folder; /* SL_NONE: unused */
    int32_t next;   /* in its bucket, or among the unused */
    uint64_t bytes;
    int64_t used;
} entry;

struct sl_store {
    int folder; /* descriptor */
    char *path; /* for messages */
    sl_store_options options;
    unsigned char *buffer; /* [largest file] */
    char (*folders)[SL_DIGEST_TEXT];
    int32_t folder_count;
    entry *entries;
    int32_t entry_count, unused; /* unused: head of the list */
    int32_t *buckets;
    int32_t bucket_count; /* a power of two */
    uint64_t total;       /* bytes of all entries */
    uint64_t written;     /* since the last scan */
    uint32_t serial;      /* of temporary files */
    bool failing;         /* the last write failed, and that was said */
};

/* "FOLDER/NAME" below the store's folder. */
typedef struct file_path {
    char text[2 * SL_DIGEST_TEXT];
} file_path;

static file_path path_of(const sl_store *store, int32_t folder, const sl_digest *name) {
    file_path path;
    char text[SL_DIGEST_TEXT];
    sl_digest_text(name, text);
    snprintf(path.text, sizeof path.text, "%s/%s", store->folders[folder], text);
    return path;
}

int64_t sl_store_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * NANOSECONDS + now.tv_nsec;
}

uint64_t sl_store_bytes(const sl_store *store) {
    return store->total;
}

/* ---- names
 * ----------------------------------------------------------------------------------------------------------
 */

void sl_store_root(uint64_t salt, sl_digest *root) {
    sl_sha256 hash;
    sl_sha256_begin(&hash);
    sl_sha256_add(&hash, &salt, sizeof salt);
    sl_sha256_end(&hash, root);
}

void sl_store_child(const sl_digest *parent, const int32_t *tokens, sl_store_key *key) {
    key->parent = *parent;
    memcpy(key->tokens, tokens, sizeof key->tokens);
    sl_sha256 hash;
    sl_sha256_begin(&hash);
    sl_sha256_add(&hash, &key->parent, sizeof key->parent);
    sl_sha256_add(&hash, key->tokens, sizeof key->tokens);
    sl_sha256_end(&hash, &key->name);
}

static bool parse_name(const char *text, sl_digest *digest) {
    for (int i = 0; i < 2 * SL_DIGEST_BYTES; i++) {
        const char c = text[i];
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) {
            return false;
        }
        unsigned char *byte = &digest->bytes[i / 2];
        *byte = (unsigned char)(i % 2 ? *byte << 4 | digit : digit);
    }
    return text[2 * SL_DIGEST_BYTES] == 0;
}

/* ---- the table of files
 * --------------------------------------------------------------------------------------------- */

static int32_t *bucket_of(const sl_store *store, const sl_digest *name) {
    uint32_t hash;
    memcpy(&hash, name->bytes, sizeof hash);
    return &store->buckets[hash & (uint32_t)(store->bucket_count - 1)];
}

/* Makes room for one more; false when memory ran out. */
static bool grow_table(sl_store *store) {
    if (store->unused != SL_NONE) {
        return true;
    }
    if (store->entry_count > INT32_MAX / 4) {
        return false;
    }
    const int32_t count = store->entry_count > 0 ? 2 * store->entry_count : 64;
    int32_t *buckets = sl_alloc((size_t)count * sizeof *buckets);
    entry *entries = buckets ? sl_realloc(store->entries, (size_t)count * sizeof *entries) : NULL;
    if (!entries) {
        sl_free(buckets);
        return false;
    }
    sl_free(store->buckets);
    store->entries = entries;
    store->buckets = buckets;
    store->bucket_count = count;
    for (int32_t i = 0; i < count; i++) {
        buckets[i] = SL_NONE;
    }
    for (int32_t i = 0; i < store->entry_count; i++) { /* all are in use: none was unused */
        int32_t *bucket = bucket_of(store, &entries[i].name);
        entries[i].next = *bucket;
        *bucket = i;
    }
    for (int32_t i = store->entry_count; i < count; i++) {
        entries[i].folder = SL_NONE;
        entries[i].next = store->unused;
        store->unused = i;
    }
    store->entry_count = count;
    return true;
}

static entry *find_entry(const sl_store *store, int32_t folder, const sl_digest *name) {
    for (int32_t i = store->bucket_count ? *bucket_of(store, name) : SL_NONE; i != SL_NONE;
         i = store->entries[i].next) {
        entry *e = &store->entries[i];
        if (e->folder == folder && memcmp(&e->name, name, sizeof *name) == 0) {
            return e;
        }
    }
    return NULL;
}

static void forget(sl_store *store, entry *e) {
    const int32_t index = (int32_t)(e - store->entries);
    int32_t *link = bucket_of(store, &e->name);
    while (*link != index) {
        link = &store->entries[*link].next;
    }
    *link = e->next;
    store->total -= e->bytes;
    e->folder = SL_NONE;
    e->next = store->unused;
    store->unused = index;
}

/* Adds a file or says anew what is known of it. Needs room. */
static void remember(sl_store *store, int32_t folder, const sl_digest *name, const struct stat *status) {
    entry *e = find_entry(store, folder, name);
    if (e) {
        store->total -= e->bytes;
    } else {
        const int32_t index = store->unused;
        e = &store->entries[index];
        store->unused = e->next;
        e->name = *name;
        e->folder = folder;
        int32_t *bucket = bucket_of(store, name);
        e->next = *bucket;
        *bucket = index;
    }
    e->bytes = (uint64_t)status->st_size;
    e->used = (int64_t)status->st_mtim.tv_sec * NANOSECONDS + status->st_mtim.tv_nsec;
    store->total += e->bytes;
}

/* ---- the folder's contents
 * ------------------------------------------------------------------------------------------ */

/* What a scan met that is not ours. */
typedef struct strangers {
    int32_t count;
    char first[128];
} strangers;

static void note_stranger(strangers *strangers, const char *name) {
    if (strangers->count++ == 0) {
        snprintf(strangers->first, sizeof strangers->first, "%s", name);
    }
}

static bool is_hidden(const char *name) {
    return name[0] == '.'; /* "." and ".." too */
}

static DIR *list(int at, const char *name) {
    const int descriptor = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *listing = descriptor < 0 ? NULL : fdopendir(descriptor);
    if (!listing && descriptor >= 0) {
        close(descriptor);
    }
    return listing;
}

static int no_table(const sl_store *store, sl_error *error) {
    return sl_fail(error, SL_ERR_NOMEM, "cache_folder %s: out of memory for the list of its files",
                   store->path);
}

static int scan_files(sl_store *store, int32_t folder, strangers *strangers, sl_error *error) {
    DIR *listing = list(store->folder, store->folders[folder]);
    if (!listing) {
        return 0; /* another process may have removed it */
    }
    int result = 0;
    for (const struct dirent *d; result == 0 && (d = readdir(listing)) != NULL;) {
        struct stat status;
        sl_digest name;
        if (is_hidden(d->d_name) || fstatat(dirfd(listing), d->d_name, &status, AT_SYMLINK_NOFOLLOW)) {
            continue;
        }
        const bool temporary = strncmp(d->d_name, TEMPORARY, sizeof TEMPORARY - 1) == 0;
        if (!S_ISREG(status.st_mode) || (!temporary && !parse_name(d->d_name, &name))) {
            note_stranger(strangers, d->d_name);
        } else if (temporary) {
            if (status.st_mtim.tv_sec < time(NULL) - STALE_SECONDS) {
                unlinkat(dirfd(listing), d->d_name, 0);
            }
        } else if (grow_table(store)) {
            remember(store, folder, &name, &status);
        } else {
            result = no_table(store, error);
        }
    }
    closedir(listing);
    return result;
}

static int add_folder(sl_store *store, const char *name, sl_error *error) {
    char(*folders)[SL_DIGEST_TEXT] =
        sl_realloc(store->folders, ((size_t)store->folder_count + 1) * sizeof *folders);
    if (!folders) {
        return no_table(store, error);
    }
    store->folders = folders;
    snprintf(folders[store->folder_count++], SL_DIGEST_TEXT, "%s", name);
    return 0;
}

/* Makes the table anew from what the folder holds. On failure it knows of some files only. */
static int scan(sl_store *store, sl_error *error) {
    DIR *listing = list(store->folder, ".");
    if (!listing) {
        return sl_fail(error, SL_ERR_IO, "cache_folder %s: cannot read it: %s", store->path, strerror(errno));
    }
    strangers strangers = {0};
    for (int32_t i = 0; i < store->entry_count; i++) {
        if (store->entries[i].folder != SL_NONE) {
            forget(store, &store->entries[i]);
        }
    }
    store->folder_count = OWN_FOLDER + 1;
    store->written = 0;
    int result = scan_files(store, OWN_FOLDER, &strangers, error);
    for (const struct dirent *d; result == 0 && (d = readdir(listing)) != NULL;) {
        sl_digest name;
        if (is_hidden(d->d_name) || strcmp(d->d_name, store->folders[OWN_FOLDER]) == 0) {
            continue;
        }
        if (!parse_name(d->d_name, &name)) {
            note_stranger(&strangers, d->d_name);
            continue;
        }
        result = add_folder(store, d->d_name, error);
        result = result ? result : scan_files(store, store->folder_count - 1, &strangers, error);
    }
    closedir(listing);
    if (strangers.count > 0) {
        sl_log(SL_LOG_WARNING, "cache_folder %s: ignores what is not its own: %s%s", store->path,
               strangers.first, strangers.count > 1 ? " and more" : "");
    }
    return result;
}

static entry *oldest_entry(const sl_store *store) {
    entry *oldest = NULL;
    for (int32_t i = 0; i < store->entry_count; i++) {
        entry *e = &store->entries[i];
        if (e->folder != SL_NONE && (!oldest || e->used < oldest->used)) {
            oldest = e;
        }
    }
    return oldest;
}

/* Removes the least recently used until `bytes` more fit the budget, but nothing used later than `time`. */
static int make_room(sl_store *store, uint64_t bytes, int64_t time, sl_error *error) {
    entry *oldest;
    while (bytes > store->options.budget || store->total > store->options.budget - bytes) {
        oldest = bytes > store->options.budget ? NULL : oldest_entry(store);
        if (!oldest || oldest->used > time) {
            return sl_fail(error, SL_ERR_LIMIT,
                           "cache_folder %s: no room for %" PRIu64 " bytes in a budget of %" PRIu64,
                           store->path, bytes, store->options.budget);
        }
        const file_path path = path_of(store, oldest->folder, &oldest->name);
        const entry known = *oldest;
        struct stat status;
        if (fstatat(store->folder, path.text, &status, AT_SYMLINK_NOFOLLOW)) {
            forget(store, oldest);
            continue;
        }
        remember(store, known.folder, &known.name, &status);
        if (oldest->used > known.used) {
            continue; /* another process used it meanwhile */
        }
        if (unlinkat(store->folder, path.text, 0) && errno != ENOENT) {
            sl_log(SL_LOG_WARNING, "cache_folder %s: cannot remove %s: %s", store->path, path.text,
                   strerror(errno));
        }
        forget(store, oldest);
    }
    return 0;
}

/* ---- opening
 * ------------------------------------------------------------------------------------------------------------
 */

/* Creates a file of a new name in the own folder; its descriptor, or -1 and errno. */
static int create_temporary(sl_store *store, file_path *path) {
    for (int attempt = 0; attempt < 100; attempt++) {
        snprintf(path->text, sizeof path->text, "%s/%s%d-%u-%u", store->folders[OWN_FOLDER], TEMPORARY,
                 (int)getpid(), (unsigned)(sl_store_now() % NANOSECONDS), store->serial++);
        const int file =
            openat(store->folder, path->text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (file >= 0) {
            return file;
        }
        if (errno == ENOENT) {
            /* Somebody emptied the folder. */
            if (mkdirat(store->folder, store->folders[OWN_FOLDER], 0700) && errno != EEXIST) {
                return -1;
            }
        } else if (errno != EEXIST) {
            return -1;
        }
    }
    return -1;
}

static uint64_t file_bytes(const sl_store *store, uint32_t parts) {
    uint64_t bytes = HEADER_BYTES + sizeof(uint64_t);
    for (int p = 0; p < SL_STORE_PARTS; p++) {
        bytes += parts >> p & 1 ? store->options.part_bytes[p] : 0;
    }
    return bytes;
}

static int open_folder(sl_store *store, sl_error *error) {
    if (mkdir(store->path, 0700) && errno != EEXIST) {
        return sl_fail(error, SL_ERR_IO, "cache_folder %s: cannot make it: %s", store->path, strerror(errno));
    }
    store->folder = open(store->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store->folder < 0) {
        return sl_fail(error, SL_ERR_IO, "cache_folder %s: cannot open it: %s", store->path, strerror(errno));
    }
    char own[SL_DIGEST_TEXT];
    sl_digest_text(&store->options.fingerprint, own);
    const int result = add_folder(store, own, error);
    if (result) {
        return result;
    }
    file_path path;
    const int file = create_temporary(store, &path);
    if (file < 0) {
        return sl_fail(error, SL_ERR_IO, "cache_folder %s: cannot write in it: %s", store->path,
                       strerror(errno));
    }
    close(file);
    unlinkat(store->folder, path.text, 0);
    return 0;
}

int sl_store_open(const sl_store_options *options, sl_store **out, sl_error *error) {
    *out = NULL;
    uint64_t largest = HEADER_BYTES + sizeof(uint64_t);
    for (int p = 0; p < SL_STORE_PARTS; p++) {
        if (!sl_add_u64(largest, options->part_bytes[p], &largest)) {
            return sl_fail(error, SL_ERR_LIMIT, "cache_folder: a page's bytes pass 64 bits");
        }
    }
    sl_store *store = sl_alloc_zero(1, sizeof *store);
    if (!store) {
        return sl_fail(error, SL_ERR_NOMEM, "cache_folder: out of memory");
    }
    store->folder = -1;
    store->unused = SL_NONE;
    store->options = *options;
    store->options.folder = NULL; /* the caller's */
    store->path = sl_strdup(options->folder);
    store->buffer = largest <= SIZE_MAX ? sl_alloc((size_t)largest) : NULL;
    int result = store->path && store->buffer
                     ? open_folder(store, error)
                     : sl_fail(error, SL_ERR_NOMEM, "cache_folder: out of memory for a page");
    result = result ? result : scan(store, error);
    if (result) {
        sl_store_close(store);
        return result;
    }
    sl_error room;
    make_room(store, 0, INT64_MAX, &room);
    *out = store;
    return 0;
}

void sl_store_close(sl_store *store) {
    if (!store) {
        return;
    }
    if (store->folder >= 0) {
        close(store->folder);
    }
    sl_free(store->path);
    sl_free(store->buffer);
    sl_free(store->folders);
    sl_free(store->entries);
    sl_free(store->buckets);
    sl_free(store);
}

/* ---- reading
 * ------------------------------------------------------------------------------------------------------------
 */

/* Any changed word changes its lane, as each operation can be undone. Lanes are there for speed. */
static uint64_t checksum(const unsigned char *data, uint64_t length) {
    enum { LANES = 4, BLOCK = LANES * sizeof(uint64_t) };
    uint64_t lanes[LANES] = {1, 2, 3, 4}, words[LANES];
    uint64_t at = 0;
    for (; at + BLOCK <= length; at += BLOCK) {
        memcpy(words, data + at, BLOCK);
        for (int i = 0; i < LANES; i++) {
            const uint64_t mixed = (lanes[i] ^ words[i]) * 0x9e3779b97f4a7c15u;
            lanes[i] = mixed << 29 | mixed >> 35;
        }
    }
    return sl_hash64(data + at, (size_t)(length - at), sl_hash64(lanes, sizeof lanes, length));
}

static bool read_whole(int file, unsigned char *data, uint64_t bytes) {
    while (bytes > 0) {
        const ssize_t got = read(file, data, (size_t)bytes);
        if (got <= 0) {
            if (got < 0 && errno == EINTR) {
                continue;
            }
            errno = got == 0 ? EIO : errno; /* it became shorter */
            return false;
        }
        data += got;
        bytes -= (uint64_t)got;
    }
    return true;
}

static void log_ignored(const sl_store *store, const file_path *path, const char *why) {
    sl_log(SL_LOG_WARNING, "cache_folder %s: %s: %s; ignored", store->path, path->text, why);
}

static void remove_damaged(sl_store *store, const sl_store_key *key, const file_path *path, const char *why) {
    log_ignored(store, path, why);
    unlinkat(store->folder, path->text, 0);
    entry *e = find_entry(store, OWN_FOLDER, &key->name);
    if (e) {
        forget(store, e);
    }
}

/* NULL, or what is wrong with a file's beginning. */
static const char *check_header(const sl_store *store, const header *h, const sl_store_key *key,
                                uint64_t size) {
    uint32_t known = 0;
    for (int p = 0; p < SL_STORE_PARTS; p++) {
        known |= store->options.part_bytes[p] > 0 ? UINT32_C(1) << p : 0;
    }
    if (memcmp(h->magic, MAGIC, sizeof MAGIC) != 0) {
        return "is no page of sluice";
    }
    if (h->version != VERSION) {
        return "has another format";
    }
    if (memcmp(&h->fingerprint, &store->options.fingerprint, sizeof h->fingerprint) != 0) {
        return "is of another model or plan";
    }
    if (memcmp(&h->parent, &key->parent, sizeof h->parent) != 0 ||
        memcmp(h->tokens, key->tokens, sizeof h->tokens) != 0) {
        return "holds other tokens than its name says";
    }
    if ((h->parts & ~known) != 0) {
        return "holds parts that the model has not";
    }
    return h->bytes != size || size != file_bytes(store, h->parts) ? "has the wrong size" : NULL;
}

/* Opens a page's file and reads its beginning into the buffer; -1 when there is none. */
static int open_page(sl_store *store, const sl_store_key *key, file_path *path) {
    *path = path_of(store, OWN_FOLDER, &key->name);
    const int file = openat(store->folder, path->text, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) {
        if (errno != ENOENT) {
            log_ignored(store, path, strerror(errno));
        }
        return -1;
    }
    struct stat status;
    const char *why = NULL;
    if (fstat(file, &status) || !S_ISREG(status.st_mode)) {
        log_ignored(store, path, "is no file that can be read");
    } else if (status.st_size < HEADER_BYTES) {
        why = "is cut short";
    } else if (!read_whole(file, store->buffer, HEADER_BYTES)) {
        log_ignored(store, path, strerror(errno));
    } else {
        header h;
        memcpy(&h, store->buffer, sizeof h);
        why = check_header(store, &h, key, (uint64_t)status.st_size);
        if (!why) {
            if (grow_table(store)) {
                remember(store, OWN_FOLDER, &key->name, &status);
            }
            return file;
        }
    }
    if (why) {
        remove_damaged(store, key, path, why);
    }
    close(file);
    return -1;
}

static uint32_t parts_read(const sl_store *store) {
    header h;
    memcpy(&h, store->buffer, sizeof h);
    return h.parts;
}

bool sl_store_find(sl_store *store, const sl_store_key *key, uint32_t *parts) {
    file_path path;
    const int file = open_page(store, key, &path);
    if (file < 0) {
        return false;
    }
    close(file);
    *parts = parts_read(store);
    return true;
}

bool sl_store_read(sl_store *store, const sl_store_key *key, uint32_t *parts) {
    file_path path;
    const int file = open_page(store, key, &path);
    if (file < 0) {
        return false;
    }
    *parts = parts_read(store);
    const uint64_t checked = file_bytes(store, *parts) - sizeof(uint64_t);
    uint64_t expected;
    bool good = read_whole(file, store->buffer + HEADER_BYTES, checked - HEADER_BYTES + sizeof expected);
    if (!good) {
        log_ignored(store, &path, strerror(errno));
    } else {
        memcpy(&expected, store->buffer + checked, sizeof expected);
        good = checksum(store->buffer, checked) == expected;
        if (!good) {
            remove_damaged(store, key, &path, "has the wrong checksum");
        }
    }
    close(file);
    return good;
}

unsigned char *sl_store_part(sl_store *store, uint32_t parts, int part) {
    unsigned char *at = store->buffer + HEADER_BYTES;
    for (int p = 0; p < part; p++) {
        at += parts >> p & 1 ? store->options.part_bytes[p] : 0;
    }
    return at;
}

/* ---- writing
 * ------------------------------------------------------------------------------------------------------------
 */

static bool write_whole(int file, const unsigned char *data, uint64_t bytes) {
    while (bytes > 0) {
        const ssize_t put = write(file, data, (size_t)bytes);
        if (put <= 0) {
            if (put < 0 && errno == EINTR) {
                continue;
            }
            errno = put == 0 ? ENOSPC : errno;
            return false;
        }
        data += put;
        bytes -= (uint64_t)put;
    }
    return true;
}

static struct timespec time_of(int64_t time) {
    return (struct timespec){.tv_sec = (time_t)(time / NANOSECONDS), .tv_nsec = (long)(time % NANOSECONDS)};
}

static int put_file(sl_store *store, const file_path *path, uint64_t bytes, int64_t time,
                    struct stat *status) {
    const struct timespec times[2] = {time_of(time), time_of(time)};
    file_path temporary;
    const int file = create_temporary(store, &temporary);
    if (file < 0) {
        return errno;
    }
    bool good = write_whole(file, store->buffer, bytes) && futimens(file, times) == 0 && fsync(file) == 0 &&
                fstat(file, status) == 0;
    int why = good ? 0 : errno;
    if (close(file) && good) {
        good = false;
        why = errno;
    }
    if (good && renameat(store->folder, temporary.text, store->folder, path->text)) {
        good = false;
        why = errno;
    }
    if (!good) {
        unlinkat(store->folder, temporary.text, 0);
    }
    return why;
}

int sl_store_write(sl_store *store, const sl_store_key *key, uint32_t parts, int64_t time, sl_error *error) {
    enum { SCANS_PER_BUDGET = 16 };
    const uint64_t bytes = file_bytes(store, parts);
    int result = 0;
    if (store->written > store->options.budget / SCANS_PER_BUDGET) {
        result = scan(store, error); /* other processes write too */
    }
    result = result ? result : make_room(store, bytes, time, error);
    if (result == 0 && !grow_table(store)) {
        result = no_table(store, error);
    }
    if (result) {
        return result;
    }
    header h = {.version = VERSION,
                .parts = parts,
                .fingerprint = store->options.fingerprint,
                .parent = key->parent,
                .bytes = bytes};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    memcpy(h.tokens, key->tokens, sizeof h.tokens);
    memset(store->buffer, 0, HEADER_BYTES);
    memcpy(store->buffer, &h, sizeof h);
    const uint64_t sum = checksum(store->buffer, bytes - sizeof sum);
    memcpy(store->buffer + bytes - sizeof sum, &sum, sizeof sum);
    const file_path path = path_of(store, OWN_FOLDER, &key->name);
    struct stat status;
    const int why = put_file(store, &path, bytes, time, &status);
    if (why) {
        result = sl_fail(error, SL_ERR_IO, "cache_folder %s: cannot write %s: %s", store->path, path.text,
                         strerror(why));
        if (!store->failing) {
            sl_log(SL_LOG_WARNING, "%s", error->message);
        }
        store->failing = true;
        return result;
    }
    store->failing = false;
    store->written += bytes;
    remember(store, OWN_FOLDER, &key->name, &status);
    return 0;
}

bool sl_store_touch(sl_store *store, const sl_store_key *key, int64_t time) {
    const struct timespec times[2] = {time_of(time), time_of(time)};
    const file_path path = path_of(store, OWN_FOLDER, &key->name);
    entry *e = find_entry(store, OWN_FOLDER, &key->name);
    if (utimensat(store->folder, path.text, times, AT_SYMLINK_NOFOLLOW)) {
        if (errno == ENOENT && e) {
            forget(store, e);
        }
        return errno != ENOENT;
    }
    if (e) {
        e->used = time;
    }
    return true;
}
