#define _GNU_SOURCE
#include "format/output_file.h"

#include "base/alloc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what may be written
 * --------------------------------------------------------------------------------------- */

static const char *kind_of(mode_t mode) {
    return S_ISLNK(mode)    ? "a symbolic link"
           : S_ISDIR(mode)  ? "a folder"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISREG(mode)  ? NULL
                            : "a device";
}

static bool is_same(const char *path, const struct stat *target) {
    struct stat status;
    return stat(path, &status) == 0 && status.st_dev == target->st_dev && status.st_ino == target->st_ino;
}

/* Is `target` one of a folder's files? Links in it count as what they point to. */
static bool is_in_folder(const char *folder, const struct stat *target) {
    DIR *open_folder = opendir(folder);
    bool found = false;
    for (struct dirent *entry; open_folder && !found && (entry = readdir(open_folder)) != NULL;) {
        struct stat status;
        found = fstatat(dirfd(open_folder), entry->d_name, &status, 0) == 0 &&
                status.st_dev == target->st_dev && status.st_ino == target->st_ino;
    }
    if (open_folder) {
        closedir(open_folder);
    }
    return found;
}

/* The shards of a model are called NAME-00001-of-00003 and so on: where the number stands in `path`, and how
 * many there are; NULL when it is no such name. */
static const char *shard_number(const char *path, int *count) {
    enum { DIGITS = 5, LENGTH = 1 + DIGITS + 4 + DIGITS }; /* -00001-of-00003 */
    for (const char *at = strchr(path, '-'); at; at = strchr(at + 1, '-')) {
        if (strlen(at) >= LENGTH && strspn(at + 1, "0123456789") == DIGITS &&
            strncmp(at + 1 + DIGITS, "-of-", 4) == 0 &&
            strspn(at + LENGTH - DIGITS, "0123456789") == DIGITS) {
            *count = atoi(at + LENGTH - DIGITS);
            return at + 1;
        }
    }
    return NULL;
}

static bool is_sibling_shard(const char *path, const struct stat *target) {
    int count = 0;
    const char *number = shard_number(path, &count);
    char *name = number ? sl_strdup(path) : NULL;
    bool found = false;
    for (int shard = 1; name && shard <= count && !found; shard++) {
        char digits[16];
        snprintf(digits, sizeof digits, "%05d", shard);
        memcpy(name + (number - path), digits, 5);
        found = is_same(name, target);
    }
    sl_free(name);
    return found;
}

static bool ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* A safetensors file or index stands for its folder, as in format/source.c. */
static bool is_in_folder_of(const char *path, const struct stat *target) {
    if (!ends_with(path, ".safetensors") && !ends_with(path, ".safetensors.index.json")) {
        return false;
    }
    const char *slash = strrchr(path, '/');
    char *folder = slash ? sl_strndup(path, (size_t)(slash - path) + 1) : sl_strdup("./");
    const bool found = !folder || is_in_folder(folder, target); /* when in doubt, keep it */
    sl_free(folder);
    return found;
}

static bool is_input(const char *path, const struct stat *target) {
    struct stat status;
    if (stat(path, &status) != 0) {
        return false;
    }
    return S_ISDIR(status.st_mode)
               ? is_in_folder(path, target)
               : is_same(path, target) || is_sibling_shard(path, target) || is_in_folder_of(path, target);
}

int sl_output_file_check(const char *path, const sl_output_rules *rules, sl_error *error) {
    struct stat target;
    if (path[0] == '\0') {
        return sl_fail(error, SL_ERR_INVALID, "output: the name is empty");
    }
    if (lstat(path, &target) != 0) {
        return errno == ENOENT
                   ? 0
                   : sl_fail(error, SL_ERR_IO, "%s: cannot create a file there: %s", path, strerror(errno));
    }
    const char *kind = kind_of(target.st_mode);
    if (kind) {
        return sl_fail(error, SL_ERR_INVALID, "%s: is %s: only a regular file can be written", path, kind);
    }
    for (int i = 0; i < rules->input_count; i++) {
        if (is_input(rules->inputs[i], &target)) {
            return sl_fail(error, SL_ERR_INVALID,
                           "%s: is the input %s, or belongs to it: write to another name", path,
                           rules->inputs[i]);
        }
    }
    return rules->replace ? 0
                          : sl_fail(error, SL_ERR_INVALID,
                                    "%s: is there already, and is replaced only with force (--force)", path);
}

/* ---- the file
 * -------------------------------------------------------------------------------------------------- */

static int fail_io(const sl_output_file *output, const char *what, sl_error *error) {
    return sl_fail(error, SL_ERR_IO, "%s: cannot %s: %s", output->path, what, strerror(errno));
}

int sl_output_file_open(sl_output_file *output, const char *path, const sl_output_rules *rules,
                        sl_error *error) {
    enum { ATTEMPTS = 100, ROOM = 48 };
    *output = (sl_output_file){.path = path, .rules = *rules, .file = -1};
    const int code = sl_output_file_check(path, rules, error);
    const size_t size = strlen(path) + ROOM;
    char *name = code ? NULL : sl_alloc(size);
    if (!name) {
        return code ? code : sl_fail(error, SL_ERR_NOMEM, "%s: no memory to write", path);
    }
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        /* In the same folder, so that renaming it is one step. */
        snprintf(name, size, "%s.tmp-%ld-%d", path, (long)getpid(), attempt);
        output->file = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (output->file >= 0 || errno != EEXIST) {
            break;
        }
    }
    if (output->file < 0) {
        sl_free(name);
        return fail_io(output, "create a file beside it", error);
    }
    output->temporary = name;
    return 0;
}

/* Renames where nothing may stand; file systems without that are looked at first. */
static int rename_new(const sl_output_file *output) {
    struct stat status;
    if (renameat2(AT_FDCWD, output->temporary, AT_FDCWD, output->path, RENAME_NOREPLACE) == 0) {
        return 0;
    }
    if (errno != EINVAL && errno != ENOSYS) {
        return -1;
    }
    if (lstat(output->path, &status) == 0) {
        errno = EEXIST;
        return -1;
    }
    return rename(output->temporary, output->path);
}

int sl_output_file_commit(sl_output_file *output, sl_error *error) {
    const int closed = close(output->file);
    output->file = -1;
    int code = closed != 0 ? fail_io(output, "close", error)
                           : sl_output_file_check(output->path, &output->rules, error);
    if (code == 0) {
        const int renamed =
            output->rules.replace ? rename(output->temporary, output->path) : rename_new(output);
        code = renamed == 0 ? 0 : fail_io(output, "rename the finished file", error);
    }
    if (code) {
        unlink(output->temporary);
    }
    sl_free(output->temporary);
    output->temporary = NULL;
    return code;
}

void sl_output_file_discard(sl_output_file *output) {
    if (!output->temporary) {
        return;
    }
    close(output->file);
    unlink(output->temporary);
    sl_free(output->temporary);
    output->temporary = NULL;
    output->file = -1;
}
