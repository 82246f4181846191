/* The file: written under another name beside it, and renamed when it is whole. */
#include "svg.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct aside {
    char *name; /* NULL: there is no file */
    int descriptor;
} aside;

/* A model whose name slips in here must not be lost. */
static bool begins_as_picture(const char *path) {
    char head[5] = "";
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const ssize_t length = descriptor >= 0 ? read(descriptor, head, sizeof head) : 0;
    if (descriptor >= 0) {
        close(descriptor);
    }
    return length == sizeof head && (memcmp(head, "<svg ", 5) == 0 || memcmp(head, "<?xml", 5) == 0);
}

static int check_target(const char *path, char message[PLOT_MESSAGE]) {
    struct stat status;
    if (!path || !path[0]) {
        return plot_fail(message, path, "a file without a name");
    }
    if (lstat(path, &status) != 0) {
        return errno == ENOENT ? 0 : plot_fail(message, path, "%s", strerror(errno));
    }
    const char *kind = S_ISDIR(status.st_mode)   ? "a folder"
                       : S_ISLNK(status.st_mode) ? "a link"
                       : S_ISREG(status.st_mode) ? NULL
                                                 : "a device or a pipe";
    if (kind) {
        return plot_fail(message, path, "is %s: only a regular file can be written", kind);
    }
    if (status.st_size > 0 && !begins_as_picture(path)) {
        return plot_fail(message, path, "is there already and is no SVG, and is not replaced");
    }
    return 0;
}

/* The kernel's mask of permissions holds, as the file is new. */
static int open_aside(aside *a, const char *path, char message[PLOT_MESSAGE]) {
    struct timespec now;
    const size_t room = strlen(path) + 32;
    a->name = malloc(room);
    if (!a->name) {
        return plot_fail(message, path, "out of memory");
    }
    for (int try = 0; try < 100; try++) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        snprintf(a->name, room, "%s.%08" PRIx32, path,
                 (uint32_t)now.tv_nsec * 2654435761u + (uint32_t)getpid());
        a->descriptor = open(a->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (a->descriptor >= 0) {
            return 0;
        }
        if (errno != EEXIST) {
            break;
        }
    }
    plot_fail(message, path, "cannot create: %s", strerror(errno));
    free(a->name);
    a->name = NULL;
    return -1;
}

static int fill(const aside *a, const char *data, size_t length) {
    while (length > 0) {
        const ssize_t done = write(a->descriptor, data, length);
        if (done < 0 && errno != EINTR) {
            return -1;
        }
        data += done > 0 ? done : 0;
        length -= done > 0 ? (size_t)done : 0;
    }
    return fsync(a->descriptor);
}

int plot_check(const char *path, char message[PLOT_MESSAGE]) {
    aside a;
    if (check_target(path, message) || open_aside(&a, path, message)) {
        return -1;
    }
    close(a.descriptor);
    unlink(a.name);
    free(a.name);
    return 0;
}

int plot_write_file(const char *path, const char *data, size_t length, char message[PLOT_MESSAGE]) {
    aside a;
    if (check_target(path, message) || open_aside(&a, path, message)) {
        return -1;
    }
    int code = fill(&a, data, length);
    int reason = errno;
    if (close(a.descriptor) != 0 && code == 0) {
        code = -1;
        reason = errno;
    }
    if (code == 0 && rename(a.name, path) != 0) {
        code = -1;
        reason = errno;
    }
    if (code != 0) {
        unlink(a.name);
        plot_fail(message, path, "cannot write: %s", strerror(reason));
    }
    free(a.name);
    return code;
}
