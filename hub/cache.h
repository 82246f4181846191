/* The folder in which models by name are kept:
 *
 *   hf/OWNER/REPO/COMMIT/FILE.gguf          files as they are called in the repository
 *   hf/OWNER/REPO/COMMIT/REPO/...           a repository that is one model's folder
 *   ollama/library/NAME/TAG/DIGEST/NAME-TAG.gguf
 *   url/HOST/PATH.gguf
 *
 * with 12 digits of each commit and digest. Beside each model lies a record, MODEL.sluice.json: its name and
 * source, its files with sizes and hashes, when it was pulled. It is written before the first file comes, so
 * that what was not finished is known; its time is when the model was last used. MODEL.sluice.lock is there
 * while the model is fetched or removed. Functions as in download.h. */
#ifndef SLUICE_HUB_CACHE_H
#define SLUICE_HUB_CACHE_H

#include "hub.h"

#include <jansson.h>

typedef struct hub_record {
    json_t *json;     /* as the record has it */
    const char *name; /* borrowed from it */
    char *model;      /* the model inside the cache folder */
    char *path;       /* the same with the cache folder in front */
    uint64_t bytes;   /* of all its files when they are complete; 0: not known */
    uint64_t there;   /* on the disk, of files that are not complete too */
    bool complete;
    bool busy;           /* a process is fetching it now */
    double pulled, used; /* seconds since 1970; 0: not known */
} hub_record;

/* The cache folder, which need not be there. */
int hub_cache_folder(const hub_options *options, char folder[HUB_PATH], char message[HUB_MESSAGE]);
/* All records, by name; freed with hub_cache_release. Without a cache folder there are none. */
int hub_cache_records(const hub_options *options, hub_record **records, size_t *count,
                      char message[HUB_MESSAGE]);
void hub_cache_release(hub_record *records, size_t count);
/* Is it what this name means? `exactly`: a name without QUANT means the default choice alone, and one without
 * a revision the usual branch; else all that it could mean. */
bool hub_cache_matches(const hub_record *record, const char *name, bool exactly);
/* Takes away a model's files, finished or not, its record, and the folders that are empty then. *freed: bytes
 * of the disk. HUB_ERR_BUSY while a process fetches it. Nothing outside the cache folder is ever touched. */
int hub_cache_remove(const hub_options *options, const hub_record *record, uint64_t *freed,
                     char message[HUB_MESSAGE]);

/* ---- for fetching; inside hub ---- */

typedef struct hub_lock {
    int file;
    char path[HUB_PATH];
} hub_lock;
/* Of a model; waits for other processes while `transfer`'s progress function says so, or not at all with
 * NULL: HUB_ERR_BUSY. */
int hub_lock_model(const char *root, const char *model, const hub_transfer *transfer, hub_lock *lock,
                   char message[HUB_MESSAGE]);
void hub_unlock(hub_lock *lock);
/* Makes the folders that a path inside `root` needs, and `root`. */
int hub_make_folders(const char *root, const char *path, char message[HUB_MESSAGE]);
int hub_write_record(const char *root, const hub_listing *listing, bool complete, char message[HUB_MESSAGE]);
/* Says that the model was used now. */
void hub_touch_record(const char *root, const char *model);
/* ROOT/PATH; false when it is too long. */
bool hub_join(const char *root, const char *path, char joined[HUB_PATH]);

#endif
