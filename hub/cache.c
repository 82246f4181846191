#include "cache.h"

#include "hosts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RECORD ".sluice.json"
#define LOCK ".sluice.lock"

/* ---- paths -----------------------------------------------------------------------------------------------
 */

bool hub_join(const char *root, const char *path, char joined[HUB_PATH]) {
    const int written = snprintf(joined, HUB_PATH, "%s/%s", root, path);
    return written > 0 && written < HUB_PATH - 64; /* endings follow */
}

int hub_cache_folder(const hub_options *options, char folder[HUB_PATH], char message[HUB_MESSAGE]) {
    struct passwd entry, *found = NULL;
    char buffer[4096];
    const char *end = "/.cache/sluice/models";
    if (!options->cache && (getpwuid_r(getuid(), &entry, buffer, sizeof buffer, &found) || !found)) {
        return hub_fail(message, HUB_ERR_DISK, "this user has no home: name a folder with --cache-folder");
    }
    const int written = snprintf(folder, HUB_PATH, "%s%s", options->cache ? options->cache : found->pw_dir,
                                 options->cache ? "" : end);
    if (written >= HUB_PATH / 2 || written <= 0) {
        return hub_fail(message, HUB_ERR_DISK, "the cache folder's path has %d bytes, must have 1 to %d",
                        written, HUB_PATH / 2 - 1);
    }
    return HUB_OK;
}

int hub_make_folders(const char *root, const char *path, char message[HUB_MESSAGE]) {
    char whole[HUB_PATH];
    if (!hub_join(root, path, whole)) {
        return hub_fail(message, HUB_ERR_DISK, "%.200s: too long a path", path);
    }
    for (char *at = whole + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        if (mkdir(whole, 0777) != 0 && errno != EEXIST) {
            return hub_fail(message, HUB_ERR_DISK, "%.300s: cannot make the folder: %s", whole,
                            strerror(errno));
        }
        *at = '/';
    }
    return HUB_OK;
}

/* The folder that holds ROOT/PATH, without following links below root; -1 when there is none. *name: the last
 * part of the path. */
static int open_holder(const char *root, const char *path, const char **name) {
    int folder = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const char *slash;
    for (*name = path; folder >= 0 && (slash = strchr(*name, '/')) != NULL; *name = slash + 1) {
        char part[256];
        snprintf(part, sizeof part, "%.*s", (int)(slash - *name), *name);
        const int next = openat(folder, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        close(folder);
        folder = next;
    }
    return folder;
}

/* ---- locks -----------------------------------------------------------------------------------------------
 */

/* Whoever held it before may have taken the file away: then what is locked is nobody's. */
static bool is_current(const hub_lock *lock) {
    struct stat open, named;
    return fstat(lock->file, &open) == 0 && stat(lock->path, &named) == 0 && open.st_ino == named.st_ino &&
           open.st_dev == named.st_dev;
}

int hub_lock_model(const char *root, const char *model, const hub_transfer *transfer, hub_lock *lock,
                   char message[HUB_MESSAGE]) {
    const struct timespec pause = {.tv_nsec = 100000000};
    snprintf(lock->path, sizeof lock->path, "%s/%s%s", root, model, LOCK);
    for (;;) {
        lock->file = open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (lock->file < 0) {
            return hub_fail(message, HUB_ERR_DISK, "%.300s: cannot write: %s", lock->path, strerror(errno));
        }
        if (flock(lock->file, LOCK_EX | LOCK_NB) == 0 && is_current(lock)) {
            return HUB_OK;
        }
        close(lock->file);
        lock->file = -1;
        const hub_progress waiting = {.name = model, .doing = "locked"};
        if (!transfer) {
            return hub_fail(message, HUB_ERR_BUSY, "%s: another process is fetching or removing it", model);
        }
        if (transfer->progress && !transfer->progress(transfer->context, &waiting)) {
            return hub_fail(message, HUB_ERR_STOPPED, "stopped");
        }
        nanosleep(&pause, NULL);
    }
}

void hub_unlock(hub_lock *lock) {
    unlink(lock->path); /* while it is held */
    close(lock->file);
    lock->file = -1;
}

/* ---- records ---------------------------------------------------------------------------------------------
 */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec;
}

static json_t *record_json(const hub_listing *l, bool complete) {
    json_t *files = json_array();
    for (size_t i = 0; i < l->count; i++) {
        const hub_part *p = &l->parts[i];
        json_array_append_new(files,
                              json_pack("{s:s, s:s, s:I, s:s*}", "path", p->path, "url", p->url, "bytes",
                                        (json_int_t)p->size, "sha256", p->sha256[0] ? p->sha256 : NULL));
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:b, s:b, s:s, s:I, s:o, s:f}", "name",
                     l->name, "source", l->source, "repo", l->repo, "revision", l->revision, "version",
                     l->version, "label", l->label, "file", l->file, "model", l->model, "default",
                     l->is_default, "complete", complete, "left_out", l->left_out, "bytes",
                     (json_int_t)l->bytes, "files", files, "pulled", now());
}

int hub_write_record(const char *root, const hub_listing *listing, bool complete, char message[HUB_MESSAGE]) {
    char path[HUB_PATH + 32], temporary[HUB_PATH + 64];
    snprintf(path, sizeof path, "%s/%s%s", root, listing->model, RECORD);
    snprintf(temporary, sizeof temporary, "%s.part", path);
    json_t *json = record_json(listing, complete);
    if (!json) {
        return hub_fail(message, HUB_ERR_NOMEM, "%s: out of memory", listing->name);
    }
    const int failed =
        json_dump_file(json, temporary, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) || rename(temporary, path);
    json_decref(json);
    if (failed) {
        unlink(temporary);
        return hub_fail(message, HUB_ERR_DISK, "%.300s: cannot write: %s", path, strerror(errno));
    }
    return HUB_OK;
}

void hub_touch_record(const char *root, const char *model) {
    char path[HUB_PATH + 32];
    snprintf(path, sizeof path, "%s/%s%s", root, model, RECORD);
    utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW); /* a cache that cannot be written stays as it is */
}

/* Bytes that a file takes, at most its size: one that comes in pieces has holes. */
static uint64_t bytes_of(const char *root, const char *path, const char *ending, uint64_t *size) {
    char whole[HUB_PATH + 32];
    struct stat status;
    snprintf(whole, sizeof whole, "%s/%s%s", root, path, ending);
    if (lstat(whole, &status) != 0 || !S_ISREG(status.st_mode)) {
        *size = UINT64_MAX;
        return 0;
    }
    *size = (uint64_t)status.st_size;
    const uint64_t blocks = (uint64_t)status.st_blocks * 512;
    return blocks < *size ? blocks : *size;
}

/* Files of the record, checked: what it says is somebody's text. */
static bool read_files(const char *root, hub_record *r) {
    const json_t *files = json_object_get(r->json, "files");
    r->complete = json_is_true(json_object_get(r->json, "complete"));
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *file = json_array_get(files, i);
        const char *path = json_string_value(json_object_get(file, "path"));
        const json_int_t bytes = json_integer_value(json_object_get(file, "bytes"));
        uint64_t size, part;
        if (!path || !hub_path_is_safe(path) || bytes < 0) {
            return false;
        }
        const uint64_t there = bytes_of(root, path, "", &size);
        r->bytes += (uint64_t)bytes;
        if (size == UINT64_MAX) {
            r->there += bytes_of(root, path, ".part", &part);
        } else {
            r->there += size == (uint64_t)bytes ? size : there; /* a file system may pack what is complete */
        }
        r->complete = r->complete && size != UINT64_MAX && (bytes == 0 || size == (uint64_t)bytes);
    }
    return json_array_size(files) > 0;
}

static bool is_locked(const char *root, const char *model) {
    char path[HUB_PATH + 32];
    snprintf(path, sizeof path, "%s/%s%s", root, model, LOCK);
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    const bool locked = file >= 0 && flock(file, LOCK_SH | LOCK_NB) != 0;
    if (file >= 0) {
        close(file);
    }
    return locked;
}

/* false: it is no record of a model there. */
static bool read_record(const char *root, const char *path, hub_record *r) {
    char whole[HUB_PATH];
    struct stat status;
    memset(r, 0, sizeof *r);
    if (!hub_join(root, path, whole) || lstat(whole, &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_size > 16 << 20) {
        return false;
    }
    r->json = json_load_file(whole, 0, NULL);
    r->name = json_string_value(json_object_get(r->json, "name"));
    r->model = strndup(path, strlen(path) - strlen(RECORD));
    whole[strlen(whole) - strlen(RECORD)] = '\0';
    r->path = strdup(whole);
    if (!r->name || !r->model || !r->path || !hub_path_is_safe(r->model) || !read_files(root, r)) {
        json_decref(r->json);
        free(r->model);
        free(r->path);
        return false;
    }
    r->pulled = json_number_value(json_object_get(r->json, "pulled"));
    r->used = (double)status.st_mtim.tv_sec;
    r->busy = is_locked(root, r->model);
    return true;
}

typedef struct collection {
    const char *root;
    hub_record *records;
    size_t count;
    bool failed; /* no memory */
} collection;

static void collect(collection *c, const char *path, int depth);

static void collect_one(collection *c, const char *path, int depth) {
    char whole[HUB_PATH];
    struct stat status;
    if (!hub_join(c->root, path, whole) || lstat(whole, &status) != 0) {
        return;
    }
    if (S_ISDIR(status.st_mode)) {
        collect(c, path, depth + 1);
    } else if (hub_ends_with(path, RECORD)) {
        hub_record *records = realloc(c->records, (c->count + 1) * sizeof *records);
        c->failed |= !records;
        c->records = records ? records : c->records;
        c->count += records && read_record(c->root, path, &records[c->count]);
    }
}

static void collect(collection *c, const char *path, int depth) {
    enum { DEPTH = 24 };
    char whole[HUB_PATH];
    DIR *folder = depth < DEPTH && hub_join(c->root, path, whole) ? opendir(whole) : NULL;
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        char inside[HUB_PATH];
        if (entry->d_name[0] != '.' && snprintf(inside, sizeof inside, "%s%s%s", path, *path ? "/" : "",
                                                entry->d_name) < (int)sizeof inside) {
            collect_one(c, inside, depth);
        }
    }
    if (folder) {
        closedir(folder);
    }
}

static int by_name(const void *left, const void *right) {
    const hub_record *a = left, *b = right;
    const int order = strcmp(a->name, b->name);
    return order ? order : a->pulled < b->pulled ? 1 : -1;
}

int hub_cache_records(const hub_options *options, hub_record **records, size_t *count,
                      char message[HUB_MESSAGE]) {
    char root[HUB_PATH];
    collection c = {.root = root};
    *records = NULL;
    *count = 0;
    const int code = hub_cache_folder(options, root, message);
    if (code) {
        return code;
    }
    collect(&c, "", 0);
    if (c.failed) {
        hub_cache_release(c.records, c.count);
        return hub_fail(message, HUB_ERR_NOMEM, "%.200s: out of memory for the list of models", root);
    }
    if (c.count > 1) {
        qsort(c.records, c.count, sizeof *c.records, by_name);
    }
    *records = c.records;
    *count = c.count;
    return HUB_OK;
}

void hub_cache_release(hub_record *records, size_t count) {
    for (size_t i = 0; i < count; i++) {
        json_decref(records[i].json);
        free(records[i].model);
        free(records[i].path);
    }
    free(records);
}

/* ---- which one a name means ------------------------------------------------------------------------------
 */

static const char *member(const hub_record *record, const char *key) {
    const char *text = json_string_value(json_object_get(record->json, key));
    return text ? text : "";
}

static bool is_revision(const hub_record *record, const hub_name *name, bool exactly) {
    enum { SHORTEST = 7 }; /* digits of a commit */
    if (!name->given_revision && (!exactly || name->kind == HUB_KIND_OLLAMA)) {
        return name->kind == HUB_KIND_HF || strcmp(member(record, "revision"), name->revision) == 0;
    }
    return strcmp(member(record, "revision"), name->revision) == 0 ||
           (name->kind == HUB_KIND_HF && strlen(name->revision) >= SHORTEST &&
            strncmp(member(record, "version"), name->revision, strlen(name->revision)) == 0);
}

bool hub_cache_matches(const hub_record *record, const char *text, bool exactly) {
    static const char *const KINDS[] = {"hf/", "ollama/", "url/"};
    char message[HUB_MESSAGE];
    hub_name name;
    if (strcmp(record->name, text) == 0) {
        return true;
    }
    if (hub_name_parse(text, &name, message) || name.kind == HUB_KIND_URL ||
        strncmp(record->model, KINDS[name.kind], strlen(KINDS[name.kind])) != 0 ||
        strcmp(member(record, "repo"), name.repo) != 0 || !is_revision(record, &name, exactly)) {
        return false;
    }
    if (name.file[0]) {
        int part, parts, other, others;
        const size_t stem = hub_gguf_stem(name.file, &part, &parts);
        return hub_gguf_stem(member(record, "file"), &other, &others) == stem && parts == others &&
               strncmp(member(record, "file"), name.file, stem) == 0;
    }
    if (name.quant[0]) {
        return *member(record, "file") && hub_quant_matches(member(record, "file"), name.quant) > 0;
    }
    return name.kind == HUB_KIND_OLLAMA || !exactly || json_is_true(json_object_get(record->json, "default"));
}

/* ---- removal ---------------------------------------------------------------------------------------------
 */

static void remove_file(const char *root, const char *path, const char *ending, uint64_t *freed) {
    struct stat status;
    const char *name;
    char whole[HUB_PATH];
    const int folder = open_holder(root, path, &name);
    snprintf(whole, sizeof whole, "%s%s", name, ending);
    if (folder >= 0 && fstatat(folder, whole, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        !S_ISDIR(status.st_mode) && unlinkat(folder, whole, 0) == 0 && status.st_nlink == 1) {
        *freed += (uint64_t)status.st_blocks * 512;
    }
    if (folder >= 0) {
        close(folder);
    }
}

/* Folders above a path that nothing is left in. */
static void remove_empty(const char *root, const char *path) {
    char above[HUB_PATH];
    snprintf(above, sizeof above, "%s", path);
    for (char *slash; (slash = strrchr(above, '/')) != NULL;) {
        *slash = '\0';
        const char *name;
        const int folder = open_holder(root, above, &name);
        const bool removed = folder >= 0 && unlinkat(folder, name, AT_REMOVEDIR) == 0;
        if (folder >= 0) {
            close(folder);
        }
        if (!removed) {
            return;
        }
    }
}

int hub_cache_remove(const hub_options *options, const hub_record *record, uint64_t *freed,
                     char message[HUB_MESSAGE]) {
    static const char *const ENDINGS[] = {"", ".part", ".part.json"};
    char root[HUB_PATH];
    hub_lock lock;
    const json_t *files = json_object_get(record->json, "files");
    *freed = 0;
    int code = hub_cache_folder(options, root, message);
    code = code ? code : hub_lock_model(root, record->model, NULL, &lock, message);
    if (code == HUB_ERR_BUSY) {
        return hub_fail(message, code, "%s: another process is fetching it: end that first", record->name);
    }
    if (code) {
        return code;
    }
    for (size_t i = 0; i < json_array_size(files); i++) {
        const char *path = json_string_value(json_object_get(json_array_get(files, i), "path"));
        for (size_t e = 0; e < sizeof ENDINGS / sizeof *ENDINGS; e++) {
            remove_file(root, path, ENDINGS[e], freed);
        }
    }
    uint64_t small = 0; /* a file of a few lines is not worth counting */
    remove_file(root, record->model, RECORD, &small);
    hub_unlock(&lock);
    for (size_t i = 0; i < json_array_size(files); i++) {
        remove_empty(root, json_string_value(json_object_get(json_array_get(files, i), "path")));
    }
    remove_empty(root, record->model);
    return HUB_OK;
}
