/* Stand-ins for models that are not there: files of the full size with their headers alone, from which an
 * engine can be planned. They are sparse and take no more of the disk than what was fetched. */
#include "cache.h"
#include "hosts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FOLDER ".preview-"

/* ---- where a header ends ---------------------------------------------------------------------------------
 */

/* GGUF (ggml's docs/gguf.md), little-endian. */
typedef struct reader {
    const unsigned char *data;
    uint64_t length, at;
    bool wrong; /* no GGUF file, or none of a size that can be */
} reader;

static uint64_t number(reader *r, unsigned size) {
    uint64_t value = 0;
    for (unsigned i = 0; i < size && r->at + size <= r->length; i++) {
        value |= (uint64_t)r->data[r->at + i] << 8 * i;
    }
    r->at += size;
    return value;
}

static bool more(const reader *r) {
    return r->at <= r->length && !r->wrong;
}

static void skip(reader *r, uint64_t count, uint64_t size) {
    const uint64_t most = (uint64_t)1 << 40;
    r->wrong |= count > most / (size ? size : 1);
    r->at += r->wrong ? 0 : count * size;
}

static void skip_value(reader *r, uint64_t type) {
    static const unsigned SIZES[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    enum { STRING = 8, ARRAY = 9, TYPES = 13 };
    uint64_t count = 1;
    if (type == ARRAY) {
        type = number(r, 4);
        count = number(r, 8);
        r->wrong |= more(r) && type == ARRAY;
    }
    r->wrong |= more(r) && type >= TYPES;
    if (!more(r)) {
        return;
    }
    if (type != STRING) {
        skip(r, count, SIZES[type]);
    }
    for (uint64_t i = 0; type == STRING && i < count && more(r); i++) {
        skip(r, number(r, 8), 1);
    }
}

/* Is all of the header in these bytes? HUB_ERR_CONTENT for what is no header. */
static int gguf_is_whole(const hub_head *head, bool *whole, char message[HUB_MESSAGE], const char *url) {
    reader r = {.data = head->bytes, .length = head->length};
    r.wrong = head->length < 24 || memcmp(head->bytes, "GGUF", 4) != 0;
    skip(&r, 8, 1);
    const uint64_t tensors = number(&r, 8), entries = number(&r, 8);
    for (uint64_t i = 0; i < entries && more(&r); i++) {
        skip(&r, number(&r, 8), 1);
        skip_value(&r, number(&r, 4));
    }
    for (uint64_t i = 0; i < tensors && more(&r); i++) {
        skip(&r, number(&r, 8), 1);
        skip(&r, number(&r, 4), 8);
        skip(&r, 12, 1);
    }
    *whole = more(&r);
    return r.wrong ? hub_fail(message, HUB_ERR_CONTENT, "%s: does not begin as a GGUF file", url) : HUB_OK;
}

/* safetensors: 8 bytes with the length of the header, then the header. */
static int safetensors_is_whole(const hub_head *head, bool *whole) {
    reader r = {.data = head->bytes, .length = head->length};
    const uint64_t length = number(&r, 8);
    *whole = head->length >= 8 && length <= head->length - 8;
    return HUB_OK;
}

/* ---- files -----------------------------------------------------------------------------------------------
 */

typedef struct preview {
    const hub_transfer *transfer;
    const char *root; /* the preview's own folder */
    uint64_t fetched;
    char *message;
} preview;

static int write_sparse(const preview *p, const char *path, const hub_head *head, uint64_t size) {
    char whole[HUB_PATH];
    if (!hub_join(p->root, path, whole)) {
        return hub_fail(p->message, HUB_ERR_DISK, "%.200s: too long a path", path);
    }
    const int file = open(whole, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const bool written = file >= 0 && write(file, head->bytes, head->length) == (ssize_t)head->length &&
                         ftruncate(file, (off_t)size) == 0;
    const int error = errno;
    if (file >= 0) {
        close(file);
    }
    return written ? HUB_OK
                   : hub_fail(p->message, HUB_ERR_DISK, "%.300s: cannot write: %s", whole, strerror(error));
}

/* Fetches more and more until the header is whole. */
static int fetch_header(preview *p, const hub_part *part, const char *name) {
    const uint64_t most = (uint64_t)1 << 30;
    const bool gguf = hub_ends_with(name, ".gguf"), tensors = hub_ends_with(name, ".safetensors");
    uint64_t size = gguf ? 2 << 20 : tensors ? 64 << 10 : 64 << 20;
    bool whole = false;
    int code = HUB_OK;
    while (code == HUB_OK && !whole) {
        hub_head head = {0};
        if (size > most) {
            return hub_fail(p->message, HUB_ERR_CONTENT, "%s: its header is longer than %llu bytes",
                            part->url, (unsigned long long)most);
        }
        code = hub_fetch_head(p->transfer, part->url, size, &head, p->message);
        if (code) {
            return code;
        }
        p->fetched += head.length;
        code = gguf      ? gguf_is_whole(&head, &whole, p->message, part->url)
               : tensors ? safetensors_is_whole(&head, &whole)
                         : HUB_OK;
        whole |= head.length >= head.total || (!gguf && !tensors);
        if (code == HUB_OK && whole) {
            code = write_sparse(p, name, &head,
                                part->size   ? part->size
                                : head.total ? head.total
                                             : head.length);
        }
        free(head.bytes);
        size *= 4;
    }
    return code;
}

/* Stand-ins that a killed process left behind. */
static void remove_stale(const char *root) {
    enum { STALE = 3600 };
    DIR *folder = opendir(root);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        char path[HUB_PATH];
        struct stat status;
        if (strncmp(entry->d_name, FOLDER, strlen(FOLDER)) == 0 && hub_join(root, entry->d_name, path) &&
            lstat(path, &status) == 0 && S_ISDIR(status.st_mode) && status.st_mtime + STALE < time(NULL)) {
            hub_preview_remove(path);
        }
    }
    if (folder) {
        closedir(folder);
    }
}

/* The folder's files lie side by side, but for modules and templates, which a plan does without. */
static int fetch_headers(preview *p, const hub_listing *listing) {
    int code = HUB_OK;
    const size_t inside = listing->is_folder ? strlen(listing->model) + 1 : 0;
    for (size_t i = 0; code == HUB_OK && i < listing->count; i++) {
        const char *path = listing->parts[i].path, *name = strrchr(path, '/') + 1;
        const bool wanted = listing->is_folder
                                ? !strchr(path + inside, '/') && strcmp(name, "tokenizer.json") != 0 &&
                                      strncmp(name, "tokenizer", 9) != 0 && strcmp(name, "modules.json") != 0
                                : hub_ends_with(name, ".gguf");
        code = wanted ? fetch_header(p, &listing->parts[i], name) : HUB_OK;
    }
    return code;
}

int hub_preview(const hub_options *options, const hub_listing *listing, char **path, char **folder,
                uint64_t *fetched, char message[HUB_MESSAGE]) {
    char root[HUB_PATH], whole[HUB_PATH];
    const hub_transfer transfer =
        hub_transfer_of(options, strncmp(listing->model, "hf/", 3) == 0 ? HUB_KIND_HF : HUB_KIND_URL);
    *path = *folder = NULL;
    int code = hub_cache_folder(options, root, message);
    code = code ? code : hub_make_folders(root, "x", message);
    if (code) {
        return code;
    }
    remove_stale(root);
    if (!hub_join(root, FOLDER "XXXXXX", whole) || !mkdtemp(whole)) {
        return hub_fail(message, HUB_ERR_DISK, "%.300s: cannot make a folder: %s", root, strerror(errno));
    }
    preview p = {.transfer = &transfer, .root = whole, .message = message};
    code = fetch_headers(&p, listing);
    *fetched = p.fetched;
    char model[HUB_PATH + HUB_NAME];
    snprintf(model, sizeof model, "%s%s", whole, listing->is_folder ? "" : strrchr(listing->model, '/'));
    if (code == HUB_OK) {
        *path = strdup(model);
        *folder = strdup(whole);
        code =
            *path && *folder ? HUB_OK : hub_fail(message, HUB_ERR_NOMEM, "%s: out of memory", listing->name);
    }
    if (code) {
        hub_preview_remove(whole);
        free(*path);
        free(*folder);
        *path = *folder = NULL;
    }
    return code;
}

void hub_preview_remove(const char *path) {
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            unlinkat(dirfd(folder), entry->d_name, 0);
        }
    }
    if (folder) {
        closedir(folder);
    }
    rmdir(path);
}
