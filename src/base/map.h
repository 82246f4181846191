/* Read-only file maps, and what becomes of them when somebody cuts their file meanwhile. */
#ifndef SL_BASE_MAP_H
#define SL_BASE_MAP_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* Zero-initialise before use. An empty file gives data != NULL and size 0. */
typedef struct sl_map {
    const unsigned char *data;
    size_t size;
    int watch; /* of this file's own */
} sl_map;

/* Maps a whole regular file. On failure the map stays zero and the message names the path. */
int sl_map_open(sl_map *map, const char *path, sl_error *error);
/* Unmaps; a zero map is fine. */
void sl_map_close(sl_map *map);
/* Gives the pages of [data, data + bytes) back, and those around them that came with them, when they lie in a
 * map made by sl_map_open: they count no longer as memory of the process, and whoever reads them again has
 * them from the file. Other memory is left alone. Any thread. */
void sl_map_give_back(const void *data, size_t bytes);

/* Reading a page that the file has no more, or that cannot be read, raises SIGBUS. This installs a handler
 * for the process: in maps made by sl_map_open the rest of the file then reads as zeros, and is *lost*. Any
 * other SIGBUS goes to the handler that was there. A second call changes nothing. Any thread. */
int sl_map_handle_loss(sl_error *error);
/* How many times something was lost, in the process. Whoever uses maps looks whether that has changed. */
unsigned sl_map_losses(void);
/* SL_ERR_IO that names the file when `data` lies in a map of which something was lost. The map must not be
 * closed meanwhile. */
int sl_map_check(const void *data, sl_error *error);
/* Of files that a thread opens, reads and closes again: sl_map_end gives SL_ERR_IO, and names the first, when
 * the calling thread has closed one since sl_map_begin of which something was lost; else `result`, and leaves
 * *error alone. */
void sl_map_begin(void);
int sl_map_end(int result, sl_error *error);

#endif
