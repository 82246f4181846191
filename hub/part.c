#include "part.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RECORD_VERSION = 1, MOST_RECORD_BYTES = 1 << 20, MOST_OPENINGS = 100 };

static char *join(const char *path, const char *suffix) {
    const size_t room = strlen(path) + strlen(suffix) + 1;
    char *joined = malloc(room);
    if (joined) {
        snprintf(joined, room, "%s%s", path, suffix);
    }
    return joined;
}

static int disk(char message[HUB_MESSAGE], const char *path, const char *what, int error) {
    return hub_report(message, HUB_ERR_DISK, "%s: %s: %s", path, what, strerror(error));
}

int hub_part_begin(hub_partial *part, const hub_file *file, const char *shown, char message[HUB_MESSAGE]) {
    *part = (hub_partial){.fd = -1, .sized = file->size > 0, .size = file->size};
    snprintf(part->shown, sizeof part->shown, "%s", shown);
    for (size_t i = 0; file->sha256 && i < 64; i++) {
        const char c = file->sha256[i];
        part->sha256[i] = c >= 'A' && c <= 'F' ? (char)(c - 'A' + 'a') : c;
    }
    part->path = strdup(file->path);
    part->bytes = join(file->path, ".part");
    part->record = join(file->path, ".part.json");
    part->aside = join(file->path, ".part.json.new");
    if (!part->path || !part->bytes || !part->record || !part->aside) {
        hub_part_free(part);
        return hub_report(message, HUB_ERR_NOMEM, "%s: out of memory", file->path);
    }
    return 0;
}

/* ---- the record -------------------------------------------------------------------------------------------
 */

static bool is_plain(const char *text) {
    for (; *text; text++) {
        if ((unsigned char)*text < ' ' || *text == 127) {
            return false;
        }
    }
    return true;
}

/* A string of the record, copied; absent: empty. False: it cannot be one that was written here. */
static bool copy_text(const json_t *record, const char *key, char *to, size_t room) {
    const json_t *value = json_object_get(record, key);
    to[0] = '\0';
    if (!value || json_is_null(value)) {
        return true;
    }
    const char *text = json_string_value(value);
    if (!text || strlen(text) >= room || !is_plain(text)) {
        return false;
    }
    snprintf(to, room, "%s", text);
    return true;
}

static bool read_number(const json_t *value, uint64_t *number) {
    *number = json_is_integer(value) ? (uint64_t)json_integer_value(value) : 0;
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

/* 1, 0 (they cannot be believed), or HUB_ERR_NOMEM. */
static int read_ranges(hub_partial *part, const json_t *list, uint64_t length) {
    uint64_t behind = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *pair = json_array_get(list, i);
        uint64_t begin, end;
        if (json_array_size(pair) != 2 || !read_number(json_array_get(pair, 0), &begin) ||
            !read_number(json_array_get(pair, 1), &end) || begin >= end || (i && begin <= behind) ||
            end > part->size || end > length) {
            return 0;
        }
        if (!hub_ranges_add(&part->have, begin, end)) {
            return HUB_ERR_NOMEM;
        }
        behind = end;
    }
    return json_is_array(list);
}

/* 1: the record tells of the file that is wanted now; 0: it does not; or HUB_ERR_NOMEM. */
static int believe(hub_partial *part, const json_t *record, uint64_t length) {
    char url[HUB_SHOWN], sha256[65];
    uint64_t version, size;
    if (!read_number(json_object_get(record, "version"), &version) || version != RECORD_VERSION ||
        !read_number(json_object_get(record, "size"), &size) || size == 0 ||
        (part->sized && size != part->size) || !copy_text(record, "url", url, sizeof url) ||
        !copy_text(record, "sha256", sha256, sizeof sha256) ||
        !copy_text(record, "etag", part->etag, sizeof part->etag) ||
        !copy_text(record, "last_modified", part->modified, sizeof part->modified)) {
        return false;
    }
    /* The hash is the file's name. Without one, the server's own words for it must be the same. */
    if (part->sha256[0] ? strcmp(sha256, part->sha256) != 0
                        : strcmp(url, part->shown) != 0 || (!part->etag[0] && !part->modified[0])) {
        return false;
    }
    part->size = size;
    return read_ranges(part, json_object_get(record, "ranges"), length);
}

/* As `believe`, or another error: then what is there must not be touched. */
static int load(hub_partial *part, char message[HUB_MESSAGE]) {
    struct stat facts;
    json_error_t error;
    FILE *file = fopen(part->record, "re");
    if (!file && errno != ENOENT) {
        return disk(message, part->record, "cannot be read", errno);
    }
    char *text = file ? malloc(MOST_RECORD_BYTES) : NULL;
    const size_t length = text ? fread(text, 1, MOST_RECORD_BYTES, file) : 0;
    if (file) {
        fclose(file);
    }
    memset(&error, 0, sizeof error);
    const bool usable = length && length < MOST_RECORD_BYTES;
    json_t *record = usable ? json_loadb(text, length, 0, &error) : NULL;
    const bool nomem =
        file && (!text || (usable && !record && json_error_code(&error) == json_error_out_of_memory));
    free(text);
    int code = nomem ? HUB_ERR_NOMEM : 0;
    if (record && fstat(part->fd, &facts) == 0) {
        code = believe(part, record, (uint64_t)facts.st_size);
    }
    json_decref(record);
    return code < 0 ? hub_report(message, code, "%s: out of memory", part->record) : code;
}

static json_t *make_record(const hub_partial *part) {
    json_t *ranges = json_array();
    bool good = ranges != NULL;
    for (size_t i = 0; good && i < part->have.count; i++) {
        const hub_range *r = &part->have.list[i];
        good =
            json_array_append_new(ranges, json_pack("[I, I]", (json_int_t)r->begin, (json_int_t)r->end)) == 0;
    }
    if (!good) {
        json_decref(ranges);
        return NULL;
    }
    return json_pack("{s:i, s:s, s:I, s:s, s:s, s:s, s:o}", "version", RECORD_VERSION, "url", part->shown,
                     "size", (json_int_t)part->size, "sha256", part->sha256, "etag", part->etag,
                     "last_modified", part->modified, "ranges", ranges);
}

/* Beyond the limit of `ulimit -f` the system would end the process. */
static bool too_long(uint64_t end, uint64_t *most) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY || end <= limit.rlim_cur) {
        return false;
    }
    *most = limit.rlim_cur;
    return true;
}

static int over_limit(char message[HUB_MESSAGE], const char *path, uint64_t needed, uint64_t most) {
    return hub_report(message, HUB_ERR_DISK,
                      "%s: %llu bytes, and this process may write files of %llu bytes: raise ulimit -f", path,
                      (unsigned long long)needed, (unsigned long long)most);
}

/* All of it, flushed, or false with errno. */
static bool write_all(int fd, const char *text, size_t length) {
    while (length) {
        const ssize_t written = write(fd, text, length);
        if (written < 0 && errno != EINTR) {
            return false;
        }
        text += written > 0 ? written : 0;
        length -= written > 0 ? (size_t)written : 0;
    }
    return fsync(fd) == 0;
}

static int replace_record(hub_partial *part, const char *text, char message[HUB_MESSAGE]) {
    uint64_t most;
    if (too_long(strlen(text), &most)) {
        return over_limit(message, part->record, strlen(text), most);
    }
    const int fd = open(part->aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool good = fd >= 0 && write_all(fd, text, strlen(text));
    int error = errno;
    if (fd >= 0 && close(fd) && good) {
        good = false;
        error = errno;
    }
    if (good && rename(part->aside, part->record)) {
        good = false;
        error = errno;
    }
    if (!good) {
        unlink(part->aside);
        return disk(message, part->record, "cannot be written", error);
    }
    return 0;
}

int hub_part_save(hub_partial *part, char message[HUB_MESSAGE]) {
    if (!part->changed || part->fd < 0 || !part->sized) {
        return 0;
    }
    /* One thread: nothing is written between the flush and the record of what was written before it. */
    if (fdatasync(part->fd)) {
        return disk(message, part->bytes, "cannot be flushed", errno);
    }
    json_t *record = make_record(part);
    char *text = record ? json_dumps(record, JSON_COMPACT) : NULL;
    json_decref(record);
    if (!text) {
        return hub_report(message, HUB_ERR_NOMEM, "%s: out of memory", part->record);
    }
    const int code = replace_record(part, text, message);
    free(text);
    part->changed = code != 0;
    return code;
}

/* ---- opening ----------------------------------------------------------------------------------------------
 */

/* 1: PATH is complete; 0: it is not; or an error. */
static int look(const hub_partial *part, bool promised, char message[HUB_MESSAGE]) {
    struct stat facts;
    if (stat(part->path, &facts)) {
        return errno == ENOENT ? 0 : disk(message, part->path, "cannot be looked at", errno);
    }
    if (!S_ISREG(facts.st_mode)) {
        return hub_report(message, HUB_ERR_DISK, "%s: there is something else than a file", part->path);
    }
    return !promised || (uint64_t)facts.st_size == part->size;
}

/* 1: locked; 0: another has it; -1: it is not there any more, or is another file by now. */
static int lock(const hub_partial *part) {
    struct stat own, there;
    /* Where a file system has no locks, the hash at the end has to do. */
    if (flock(part->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        return 0;
    }
    if (fstat(part->fd, &own) || stat(part->bytes, &there) || own.st_dev != there.st_dev ||
        own.st_ino != there.st_ino) {
        return -1;
    }
    return 1;
}

int hub_part_open(hub_partial *part, char message[HUB_MESSAGE]) {
    const bool promised = part->sized;
    for (int i = 0; i < MOST_OPENINGS; i++) {
        int code = look(part, promised, message);
        if (code > 0 && access(part->bytes, F_OK)) {
            unlink(part->record); /* a process ended between the renaming and this */
        }
        if (code) {
            return code < 0 ? code : HUB_PLACE_COMPLETE;
        }
        part->fd = open(part->bytes, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (part->fd < 0) {
            return disk(message, part->bytes, "cannot be written", errno);
        }
        const int locked = lock(part);
        if (locked <= 0) {
            close(part->fd);
            part->fd = -1;
            if (locked == 0) {
                return HUB_PLACE_LOCKED;
            }
            continue;
        }
        code = look(part, promised, message); /* who had the lock may have finished it */
        if (code) {
            hub_part_remove(part);
            return code < 0 ? code : HUB_PLACE_COMPLETE;
        }
        const uint64_t size = part->size;
        code = load(part, message);
        if (code > 0) {
            part->sized = true;
        } else if (code == 0) {
            code = hub_part_clear(part, promised ? size : 0, message);
        }
        if (code < 0) {
            close(part->fd);
            part->fd = -1;
            return code;
        }
        return HUB_PLACE_OPEN;
    }
    return hub_report(message, HUB_ERR_BUSY, "%s: others make and remove it all the time", part->bytes);
}

double hub_part_touched(const hub_partial *part) {
    struct stat facts;
    return stat(part->bytes, &facts) ? 0
                                     : (double)facts.st_mtim.tv_sec + (double)facts.st_mtim.tv_nsec * 1e-9;
}

void hub_part_touch(const hub_partial *part) {
    if (part->fd >= 0) {
        futimens(part->fd, NULL);
    }
}

/* ---- bytes ------------------------------------------------------------------------------------------------
 */

int hub_part_clear(hub_partial *part, uint64_t promised, char message[HUB_MESSAGE]) {
    hub_ranges_clear(&part->have);
    part->etag[0] = part->modified[0] = '\0';
    part->sized = promised > 0;
    part->size = promised;
    part->changed = false;
    /* The record first: it would claim bytes that are gone. */
    if (unlink(part->record) && errno != ENOENT) {
        return disk(message, part->record, "cannot be removed", errno);
    }
    return ftruncate(part->fd, 0) ? disk(message, part->bytes, "cannot be written", errno) : 0;
}

int hub_part_fits(const hub_partial *part, uint64_t size, char message[HUB_MESSAGE]) {
    uint64_t most;
    return too_long(size, &most) ? over_limit(message, part->bytes, size, most) : 0;
}

int hub_part_write(hub_partial *part, uint64_t offset, const void *bytes, size_t length, uint64_t *fresh,
                   char message[HUB_MESSAGE]) {
    uint64_t most;
    if (too_long(offset + length, &most)) {
        return over_limit(message, part->bytes, part->sized ? part->size : offset + length, most);
    }
    const uint64_t before = part->have.total;
    const char *from = bytes;
    while (length) {
        const ssize_t written = pwrite(part->fd, from, length, (off_t)offset);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return disk(message, part->bytes, "cannot be written", written ? errno : ENOSPC);
        }
        if (!hub_ranges_add(&part->have, offset, offset + (uint64_t)written)) {
            return hub_report(message, HUB_ERR_NOMEM, "%s: out of memory", part->bytes);
        }
        part->changed = true;
        from += written;
        offset += (uint64_t)written;
        length -= (size_t)written;
    }
    if (fresh) {
        *fresh = part->have.total - before;
    }
    return 0;
}

/* ---- whose bytes ------------------------------------------------------------------------------------------
 */

static bool is_weak(const char *etag) {
    return !strncmp(etag, "W/", 2);
}

bool hub_part_same(const hub_partial *part, const char *etag, const char *modified) {
    if (part->sha256[0]) {
        return true;
    }
    if (part->etag[0] && etag[0]) {
        return !strcmp(part->etag + (is_weak(part->etag) ? 2 : 0), etag + (is_weak(etag) ? 2 : 0));
    }
    return !part->modified[0] || !modified[0] || !strcmp(part->modified, modified);
}

const char *hub_part_validator(const hub_partial *part) {
    if (part->sha256[0]) {
        return NULL;
    }
    if (part->etag[0]) {
        return is_weak(part->etag) ? NULL : part->etag;
    }
    return part->modified[0] ? part->modified : NULL;
}

/* ---- the end ----------------------------------------------------------------------------------------------
 */

/* So that the new name outlives a crash. A folder that cannot be opened is no reason to fail: the file is
 * there. */
static void flush_folder(const char *path) {
    char *folder = strdup(path);
    if (folder) {
        char *slash = strrchr(folder, '/');
        if (slash) {
            slash[slash == folder] = '\0';
        }
        const int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0) {
            fsync(fd);
            close(fd);
        }
        free(folder);
    }
}

int hub_part_finish(hub_partial *part, char message[HUB_MESSAGE]) {
    if (ftruncate(part->fd, (off_t)part->size) || fsync(part->fd)) {
        return disk(message, part->bytes, "cannot be flushed", errno);
    }
    if (rename(part->bytes, part->path)) {
        return disk(message, part->path, "cannot be put in place", errno);
    }
    unlink(part->record); /* after it: until then a crash must not lose what is there */
    unlink(part->aside);  /* of a process that was killed */
    close(part->fd);
    part->fd = -1;
    flush_folder(part->path);
    return 0;
}

void hub_part_remove(hub_partial *part) {
    unlink(part->record);
    unlink(part->aside);
    unlink(part->bytes);
    hub_part_close(part);
}

void hub_part_close(hub_partial *part) {
    if (part->fd >= 0) {
        if (!part->sized || (part->have.total == 0 && !part->changed)) {
            unlink(part->record);
            unlink(part->aside);
            unlink(part->bytes);
        }
        close(part->fd);
        part->fd = -1;
    }
}

void hub_part_free(hub_partial *part) {
    hub_part_close(part);
    hub_ranges_free(&part->have);
    free(part->path);
    free(part->bytes);
    free(part->record);
    free(part->aside);
    part->path = part->bytes = part->record = part->aside = NULL;
}
