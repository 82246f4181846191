/* Files over HTTP(S), whole or not at all: several ranges at once, resumed where an earlier try stopped,
 * checked against size and SHA-256, renamed into place when complete. Over libcurl; knows nothing of models.
 *
 * Functions return 0 or a negative hub_status, with one line in `message` that names the URL (without a query
 * and without keys), the file and the rule, and says what to do next. Blocking; safe from any thread.
 *
 * Proxies, .netrc and cookies play no part, whatever environment variables say. Certificates are always
 * checked. At most five redirects are followed, none from https to another scheme. A URL with a user or a
 * password is refused. */
#ifndef SLUICE_HUB_DOWNLOAD_H
#define SLUICE_HUB_DOWNLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HUB_MESSAGE = 512 };

typedef enum hub_status {
    HUB_OK = 0,
    HUB_ERR_NOMEM = -1,
    HUB_ERR_NAME = -2,      /* a name that says nothing, or a bad URL */
    HUB_ERR_NOT_FOUND = -3, /* 404, or not in the cache while nothing may be fetched */
    HUB_ERR_DENIED = -4,    /* 401, 403: a token is missing or has no access */
    HUB_ERR_NETWORK = -5,   /* no connection, or it broke more often than retries allow */
    HUB_ERR_CONTENT = -6,   /* a size, hash or answer that is not what was promised */
    HUB_ERR_DISK = -7,      /* full, read-only, no such folder */
    HUB_ERR_STOPPED = -8,   /* the caller's progress function said so */
    HUB_ERR_BUSY = -9,      /* another process has been downloading the same file for longer than it may */
} hub_status;

typedef struct hub_progress {
    const char *name;      /* of the file that moves, or of the whole */
    uint64_t done, total;  /* bytes of all files of this call; total 0: not known */
    uint64_t resumed;      /* of `done`, how many were there before this call */
    double bytes_a_second; /* over the last 5 seconds; 0: not known yet */
    double seconds_left;   /* 0: not known */
    const char *doing; /* "fetching"; "checking": every byte is there, its hash is made; "waiting": for the
                          server, before another try; "locked": another process fetches the same file;
                          "complete": all files are */
    uint64_t checked;  /* bytes of `name` that its hash has seen; 0 without a hash */
} hub_progress;

/* Called several times a second from the calling thread; false ends the download, which can be resumed. What
 * the struct points to lives during the call. */
typedef bool (*hub_progress_function)(void *context, const hub_progress *progress);

typedef struct hub_transfer {
    const char *token; /* sent as "Authorization: Bearer" to the URL's own host alone, never behind a redirect
                          to another; NULL: none */
    int connections;   /* ranges at once, of all files together; 0: 4; at most 16 */
    /* Of a range without a byte of progress; 0: 5; -1: none. The waits before them grow from half a second. A
     * host that cannot be reached at all gets two. */
    int retries;
    /* Without a byte, then the connection is given up; 0: 30. Another process that holds a file is given four
     * times as long without a sign of life, then HUB_ERR_BUSY. */
    double stall_seconds;
    const char *ca_file;            /* PEM, instead of the system's certificates; NULL: those */
    hub_progress_function progress; /* NULL: none */
    void *context;
} hub_transfer;

typedef struct hub_file {
    const char *url;
    const char *path;   /* the final place, whose folder exists; beside it "PATH.part" and "PATH.part.json"
                           until it is complete */
    uint64_t size;      /* 0: what the server says */
    const char *sha256; /* 64 hexadecimal digits; NULL: not checked */
} hub_file;

/* Fetches all files that are not there yet. Those that are complete stay when a later one fails.
 *
 * A file at `path` is complete, and is not read, when it has the promised size, or when none is promised.
 * Another one is replaced when the new one is complete.
 *
 * What is in PATH.part is used again when it was made for the same SHA-256; where none is promised, when it
 * came from the same URL and the server still calls the file by the same ETag or Last-Modified. Else the file
 * begins anew, and also when it changes meanwhile, which may happen three times. PATH.part is locked (flock)
 * while a call works on it; a second call waits and finds the file complete. Where a file system has no locks
 * there is no such care. A file whose SHA-256 is wrong is removed. */
int hub_download(const hub_transfer *transfer, const hub_file *files, size_t count,
                 char message[HUB_MESSAGE]);

/* A small answer in memory, NUL-terminated; the caller frees it. `accept`: a media type, NULL: any. More than
 * `most` bytes is HUB_ERR_CONTENT. *text is NULL on failure. */
int hub_fetch_text(const hub_transfer *transfer, const char *url, const char *accept, size_t most,
                   char **text, char message[HUB_MESSAGE]);

typedef struct hub_head {
    void *bytes; /* [length]; the caller frees */
    size_t length;
    uint64_t total; /* bytes of the whole file; 0: the server does not say */
} hub_head;

/* The first `size` bytes of a file, fewer when it is shorter. head->bytes is NULL on failure. */
int hub_fetch_head(const hub_transfer *transfer, const char *url, size_t size, hub_head *head,
                   char message[HUB_MESSAGE]);

#endif
