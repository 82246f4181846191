/* Read-only file maps. */
#ifndef SL_BASE_MAP_H
#define SL_BASE_MAP_H

#include "base/error.h"

#include <stddef.h>

/* Zero-initialise before use. An empty file gives data != NULL and size 0. */
typedef struct sl_map {
    const unsigned char *data;
    size_t size;
} sl_map;

/* Maps a whole regular file. On failure the map stays zero and the message names the path. */
int sl_map_open(sl_map *map, const char *path, sl_error *error);
/* Unmaps; a zero map is fine. */
void sl_map_close(sl_map *map);

#endif
