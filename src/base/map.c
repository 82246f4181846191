#define _GNU_SOURCE
#include "base/map.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const unsigned char empty_file[1];

/* ---- what is mapped
 * ------------------------------------------------------------------------------------------------ */

/* Files beyond these are mapped all the same, and a SIGBUS there is as if nobody handled it. */
enum { MOST_WATCHED = 2048 };

/* The handler looks here, so nothing is locked. `begin` is written last when a file is mapped, and first when
 * it is unmapped; 0 means that there is none, and 1 that one is about to be. */
static struct {
    _Atomic uintptr_t begin, end;
    _Atomic bool lost;
    char *path; /* owned */
} watched[MOST_WATCHED];
static _Atomic int watched_end; /* beyond all that were ever in use */
static _Atomic unsigned losses;

/* The first file that the thread closed and that had lost something; empty when there is none. */
static _Thread_local char closed_lost[512];

/* Takes the path over. 0 when there is no room. */
static int watch(const void *data, size_t size, char *path) {
    for (int i = 0; i < MOST_WATCHED; i++) {
        uintptr_t none = 0;
        if (atomic_compare_exchange_strong(&watched[i].begin, &none, 1)) {
            int end = atomic_load(&watched_end);
            while (end <= i && !atomic_compare_exchange_weak(&watched_end, &end, i + 1)) {
            }
            watched[i].path = path;
            atomic_store(&watched[i].lost, false);
            atomic_store(&watched[i].end, (uintptr_t)data + size);
            atomic_store(&watched[i].begin, (uintptr_t)data);
            return i + 1;
        }
    }
    sl_free(path);
    return 0;
}

static void unwatch(int which) {
    char *path = watched[which].path;
    if (atomic_load(&watched[which].lost) && !closed_lost[0]) {
        snprintf(closed_lost, sizeof closed_lost, "%s", path);
    }
    watched[which].path = NULL;
    atomic_store(&watched[which].end, 0);
    atomic_store(&watched[which].begin, 0);
    sl_free(path);
}

/* -1: in none. */
static int find_watched(uintptr_t address) {
    const int end = atomic_load(&watched_end);
    for (int i = 0; i < end; i++) {
        const uintptr_t begin = atomic_load(&watched[i].begin);
        if (begin > 1 && address >= begin && address < atomic_load(&watched[i].end)) {
            return i;
        }
    }
    return -1;
}

int sl_map_open(sl_map *map, const char *path, sl_error *error) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would wait for a writer */
    if (descriptor < 0) {
        return sl_fail(error, SL_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    }
    struct stat status;
    int result = 0;
    if (fstat(descriptor, &status) != 0) {
        result = sl_fail(error, SL_ERR_IO, "%s: cannot read its size: %s", path, strerror(errno));
    } else if (!S_ISREG(status.st_mode)) {
        result = sl_fail(error, SL_ERR_IO, "%s: not a regular file", path);
    } else if (status.st_size == 0) {
        map->data = empty_file;
        map->size = 0;
    } else {
        char *name = sl_strdup(path);
        void *data =
            name ? mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, descriptor, 0) : MAP_FAILED;
        if (!name) {
            result = sl_fail(error, SL_ERR_NOMEM, "%s: no memory", path);
        } else if (data == MAP_FAILED) {
            result = sl_fail(error, SL_ERR_IO, "%s: cannot map: %s", path, strerror(errno));
            sl_free(name);
        } else {
            map->data = data;
            map->size = (size_t)status.st_size;
            map->watch = watch(data, map->size, name);
        }
    }
    close(descriptor);
    return result;
}

void sl_map_close(sl_map *map) {
    if (map->watch) {
        unwatch(map->watch - 1);
    }
    if (map->data && map->data != empty_file) {
        munmap((void *)(size_t)map->data, map->size);
    }
    map->data = NULL;
    map->size = 0;
    map->watch = 0;
}

/* Whoever touches a page of a file may get all of the folio that the page lies in, given back before or not:
 * so many bytes at most, at a multiple of them. */
enum { FOLIO = 2 << 20 };

void sl_map_give_back(const void *data, size_t bytes) {
    const uintptr_t address = (uintptr_t)data;
    const int which = find_watched(address);
    if (which < 0 || bytes == 0) {
        return;
    }
    const uintptr_t first = atomic_load(&watched[which].begin), last = atomic_load(&watched[which].end);
    if (first > address || last <= address) { /* it has just been unmapped */
        return;
    }
    const uintptr_t begin = first + (address - first) / FOLIO * FOLIO;
    const uintptr_t end = first + (address - first + bytes + FOLIO - 1) / FOLIO * FOLIO;
    madvise((void *)begin, (end < last ? end : last) - begin, MADV_DONTNEED);
}

/* ---- what was lost
 * ------------------------------------------------------------------------------------------------- */

static struct sigaction before;

/* Gives a signal to whoever had it before. */
static void pass_on(int number, siginfo_t *info, void *context) {
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
    } else if (info->si_code > 0 || before.sa_handler == SIG_DFL) {
        /* The access is repeated, or the signal is sent again, and ends the process as it would have. */
        const struct sigaction usual = {.sa_handler = SIG_DFL};
        sigaction(number, &usual, NULL);
        if (info->si_code <= 0) {
            raise(number);
        }
    }
}

/* mmap is not in POSIX's list of functions for handlers, but on Linux it is a bare system call. */
static void on_bus_error(int number, siginfo_t *info, void *context) {
    const int saved = errno;
    const uintptr_t address = (uintptr_t)info->si_addr;
    const int which = info->si_code > 0 ? find_watched(address) : -1;
    bool handled = false;
    if (which >= 0) {
        const uintptr_t page = address & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
        const size_t rest = atomic_load(&watched[which].end) - page;
        handled = mmap((void *)page, rest, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                       -1, 0) != MAP_FAILED;
    }
    if (handled) {
        atomic_store(&watched[which].lost, true);
        atomic_fetch_add(&losses, 1);
    } else {
        pass_on(number, info, context);
    }
    errno = saved;
}

int sl_map_handle_loss(sl_error *error) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static bool installed;
    struct sigaction action = {.sa_sigaction = on_bus_error,
                               .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    int result = 0;
    sigemptyset(&action.sa_mask);
    pthread_mutex_lock(&mutex);
    if (!installed && (sigaction(SIGBUS, NULL, &before) != 0 || sigaction(SIGBUS, &action, NULL) != 0)) {
        result = sl_fail(error, SL_ERR_INTERNAL, "SIGBUS: no handler: %s", strerror(errno));
    }
    installed = installed || result == 0;
    pthread_mutex_unlock(&mutex);
    return result;
}

unsigned sl_map_losses(void) {
    return atomic_load_explicit(&losses, memory_order_acquire);
}

static int fail_lost(const char *path, sl_error *error) {
    return sl_fail(error, SL_ERR_IO, "%s: became shorter while it was in use, or cannot be read any more",
                   path);
}

int sl_map_check(const void *data, sl_error *error) {
    const int which = sl_map_losses() > 0 ? find_watched((uintptr_t)data) : -1;
    return which >= 0 && atomic_load(&watched[which].lost) ? fail_lost(watched[which].path, error) : 0;
}

void sl_map_begin(void) {
    closed_lost[0] = '\0';
}

int sl_map_end(int result, sl_error *error) {
    return closed_lost[0] ? fail_lost(closed_lost, error) : result;
}
