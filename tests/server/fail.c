/* Makes the Nth call of a kind in a running program fail: LD_PRELOAD this, with SLUICE_FAIL naming a file of
 * sizeof(control) bytes. A driver writes into the file at any time; the program sees it at once.
 *
 * The driver sets `mask` to 0, then `remaining` to N and `fired` to 0, then `mask` to the kinds. Every call
 * of such a kind counts `remaining` down; the one that brings it to 0 fails. (1 - remaining) then tells, with
 * N, how many there were. Where it was is written to stderr when
 * `mask` has FAIL_TRACE. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    FAIL_MEMORY = 1,   /* malloc, calloc, realloc, aligned_alloc, posix_memalign, mmap: ENOMEM */
    FAIL_READ = 2,     /* read, recv, recvmsg: ECONNRESET */
    FAIL_WRITE = 4,    /* write, writev, send, sendmsg, sendfile: EPIPE */
    FAIL_ACCEPT = 8,   /* accept, accept4: EMFILE */
    FAIL_WAIT = 16,    /* epoll_wait: EINTR */
    FAIL_CONTROL = 32, /* epoll_ctl, but not the removal of a descriptor, which needs no memory: ENOMEM */
    FAIL_OPEN = 64,    /* open, openat, eventfd, socket: EMFILE */
    FAIL_TRACE = 128,
    FRAMES = 24,
};

typedef struct control {
    _Atomic uint32_t mask, fired;
    _Atomic int64_t remaining;
} control;

static control *shared;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SLUICE_FAIL");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *frame;
    backtrace(&frame, 1); /* the first call allocates */
    if (fd >= 0) {
        void *map = mmap(NULL, sizeof(control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        shared = map == MAP_FAILED ? NULL : map;
    }
}

/* Whether this call is the one. */
static bool fails(uint32_t kind, int error) {
    control *c = shared;
    if (c == NULL || (atomic_load_explicit(&c->mask, memory_order_relaxed) & kind) == 0 ||
        atomic_fetch_sub(&c->remaining, 1) != 1) {
        return false;
    }
    atomic_fetch_add(&c->fired, 1);
    if (atomic_load(&c->mask) & FAIL_TRACE) {
        void *frames[FRAMES];
        backtrace_symbols_fd(frames, backtrace(frames, FRAMES), STDERR_FILENO);
    }
    errno = error;
    return true;
}

static void *find(const char *name, void **known) {
    if (*known == NULL) {
        *known = dlsym(RTLD_NEXT, name);
    }
    return *known;
}

/* One function of the C library, and its like here: type, name, parameters, arguments; what a failure
 * returns. */
#define WRAP(type, name, parameters, arguments, kind, error, failure)                                        \
    __attribute__((visibility("default"))) type name parameters {                                            \
        static void *next;                                                                                   \
        return fails(kind, error) ? (failure) : ((type(*) parameters)find(#name, &next))arguments;           \
    }

/* glibc's own names for its allocator: dlsym would allocate before there is one. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

__attribute__((visibility("default"))) void *malloc(size_t size) {
    return fails(FAIL_MEMORY, ENOMEM) ? NULL : __libc_malloc(size);
}
__attribute__((visibility("default"))) void *calloc(size_t count, size_t size) {
    return fails(FAIL_MEMORY, ENOMEM) ? NULL : __libc_calloc(count, size);
}
__attribute__((visibility("default"))) void *realloc(void *old, size_t size) {
    return fails(FAIL_MEMORY, ENOMEM) ? NULL : __libc_realloc(old, size);
}
__attribute__((visibility("default"))) void *aligned_alloc(size_t alignment, size_t size) {
    return fails(FAIL_MEMORY, ENOMEM) ? NULL : __libc_memalign(alignment, size);
}
__attribute__((visibility("default"))) int posix_memalign(void **memory, size_t alignment, size_t size) {
    void *found = fails(FAIL_MEMORY, ENOMEM) ? NULL : __libc_memalign(alignment, size);
    if (found) {
        *memory = found;
    }
    return found ? 0 : ENOMEM;
}

WRAP(void *, mmap, (void *address, size_t length, int protection, int flags, int fd, off_t offset),
     (address, length, protection, flags, fd, offset), FAIL_MEMORY, ENOMEM, MAP_FAILED)

WRAP(ssize_t, read, (int fd, void *bytes, size_t count), (fd, bytes, count), FAIL_READ, ECONNRESET, -1)
WRAP(ssize_t, recv, (int fd, void *bytes, size_t count, int flags), (fd, bytes, count, flags), FAIL_READ,
     ECONNRESET, -1)
WRAP(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags), FAIL_READ,
     ECONNRESET, -1)

WRAP(ssize_t, write, (int fd, const void *bytes, size_t count), (fd, bytes, count), FAIL_WRITE, EPIPE, -1)
WRAP(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count), FAIL_WRITE, EPIPE,
     -1)
WRAP(ssize_t, send, (int fd, const void *bytes, size_t count, int flags), (fd, bytes, count, flags),
     FAIL_WRITE, EPIPE, -1)
WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags), FAIL_WRITE,
     EPIPE, -1)
WRAP(ssize_t, sendfile, (int out, int in, off_t *offset, size_t count), (out, in, offset, count), FAIL_WRITE,
     EPIPE, -1)
WRAP(ssize_t, sendfile64, (int out, int in, off_t *offset, size_t count), (out, in, offset, count),
     FAIL_WRITE, EPIPE, -1)

WRAP(int, accept, (int fd, struct sockaddr *address, socklen_t *length), (fd, address, length), FAIL_ACCEPT,
     EMFILE, -1)
WRAP(int, accept4, (int fd, struct sockaddr *address, socklen_t *length, int flags),
     (fd, address, length, flags), FAIL_ACCEPT, EMFILE, -1)

WRAP(int, epoll_wait, (int fd, struct epoll_event *events, int count, int timeout),
     (fd, events, count, timeout), FAIL_WAIT, EINTR, -1)
__attribute__((visibility("default"))) int epoll_ctl(int fd, int operation, int target,
                                                     struct epoll_event *event) {
    static void *next;
    if (operation != EPOLL_CTL_DEL && fails(FAIL_CONTROL, ENOMEM)) {
        return -1;
    }
    return ((int (*)(int, int, int, struct epoll_event *))find("epoll_ctl", &next))(fd, operation, target,
                                                                                    event);
}

WRAP(int, socket, (int domain, int type, int protocol), (domain, type, protocol), FAIL_OPEN, EMFILE, -1)
WRAP(int, eventfd, (unsigned value, int flags), (value, flags), FAIL_OPEN, EMFILE, -1)

static mode_t mode_of(int flags, va_list list) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(list, mode_t) : 0;
}

#define WRAP_OPEN(name)                                                                                      \
    __attribute__((visibility("default"))) int name(const char *path, int flags, ...) {                      \
        static void *next;                                                                                   \
        va_list list;                                                                                        \
        va_start(list, flags);                                                                               \
        mode_t mode = mode_of(flags, list);                                                                  \
        va_end(list);                                                                                        \
        return fails(FAIL_OPEN, EMFILE)                                                                      \
                   ? -1                                                                                      \
                   : ((int (*)(const char *, int, ...))find(#name, &next))(path, flags, mode);               \
    }
WRAP_OPEN(open)
WRAP_OPEN(open64)

#define WRAP_OPENAT(name)                                                                                    \
    __attribute__((visibility("default"))) int name(int folder, const char *path, int flags, ...) {          \
        static void *next;                                                                                   \
        va_list list;                                                                                        \
        va_start(list, flags);                                                                               \
        mode_t mode = mode_of(flags, list);                                                                  \
        va_end(list);                                                                                        \
        return fails(FAIL_OPEN, EMFILE)                                                                      \
                   ? -1                                                                                      \
                   : ((int (*)(int, const char *, int, ...))find(#name, &next))(folder, path, flags, mode);  \
    }
WRAP_OPENAT(openat)
WRAP_OPENAT(openat64)
