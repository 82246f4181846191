/* A file that is not complete: PATH.part, locked while it is open, and PATH.part.json, which says what of it
 * is there. The record never claims bytes that are not on disk, whatever ends the process or the machine. */
#ifndef SLUICE_HUB_PART_H
#define SLUICE_HUB_PART_H

#include "download.h"
#include "ranges.h"
#include "web.h"

#include <sys/types.h>

typedef struct hub_partial {
    char *path, *bytes, *record, *aside; /* PATH, PATH.part, PATH.part.json, and where that is written */
    int fd;                              /* of PATH.part, locked; -1: not open */
    char shown[HUB_SHOWN];               /* the URL, as the record keeps it */
    char sha256[65];                     /* promised; empty: none */
    bool sized;
    uint64_t size;
    char etag[HUB_TAG], modified[64]; /* of the server's file; empty: not known */
    hub_ranges have;                  /* written */
    bool changed;                     /* since the record was written */
} hub_partial;

typedef enum hub_place {
    HUB_PLACE_OPEN = 1, /* PATH.part is open and locked, and what its record claims is in `have` */
    HUB_PLACE_COMPLETE, /* PATH is there */
    HUB_PLACE_LOCKED,   /* another process, or another thread, has PATH.part open */
} hub_place;

/* Names, and what is promised; nothing on disk is touched. */
int hub_part_begin(hub_partial *part, const hub_file *file, const char *shown, char message[HUB_MESSAGE]);

/* A hub_place, or an error. */
int hub_part_open(hub_partial *part, char message[HUB_MESSAGE]);

/* When PATH.part last changed, in seconds; 0: it is not there. */
double hub_part_touched(const hub_partial *part);
void hub_part_touch(const hub_partial *part);

/* Forgets all bytes and whose they were. The size that is promised stays. */
int hub_part_clear(hub_partial *part, uint64_t promised, char message[HUB_MESSAGE]);

/* May this process write a file of that size? */
int hub_part_fits(const hub_partial *part, uint64_t size, char message[HUB_MESSAGE]);

/* `fresh`, when not NULL, becomes the number of bytes that were not there before. */
int hub_part_write(hub_partial *part, uint64_t offset, const void *bytes, size_t length, uint64_t *fresh,
                   char message[HUB_MESSAGE]);

/* Flushes the bytes, then writes the record. Without a size there is none: such a file begins anew. */
int hub_part_save(hub_partial *part, char message[HUB_MESSAGE]);

/* Are the bytes of an answer with these fields bytes of the same file? Where a SHA-256 is promised it decides
 * at the end, and servers may call the file what they like. */
bool hub_part_same(const hub_partial *part, const char *etag, const char *modified);

/* What If-Range may say; NULL: nothing. */
const char *hub_part_validator(const hub_partial *part);

/* All bytes are there and right: flushes, renames to PATH, removes the record. Closes. */
int hub_part_finish(hub_partial *part, char message[HUB_MESSAGE]);

void hub_part_remove(hub_partial *part); /* PATH.part and its record */
void hub_part_close(hub_partial *part);  /* lets go of the lock; what cannot be gone on with is removed */
void hub_part_free(hub_partial *part);

#endif
