#define _GNU_SOURCE
#include "base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const unsigned char empty_file[1];

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
        void *data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, descriptor, 0);
        if (data == MAP_FAILED) {
            result = sl_fail(error, SL_ERR_IO, "%s: cannot map: %s", path, strerror(errno));
        } else {
            map->data = data;
            map->size = (size_t)status.st_size;
        }
    }
    close(descriptor);
    return result;
}

void sl_map_close(sl_map *map) {
    if (map->data && map->data != empty_file) {
        munmap((void *)(size_t)map->data, map->size);
    }
    map->data = NULL;
    map->size = 0;
}
